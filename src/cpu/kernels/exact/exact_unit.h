/* Units that add small integers exactly: one source, compiled once per unit with DSRI_EXACT_UNIT set to avx512vnni or
 * amxint8. DSRI_ISA is avx512 in both. */
#ifndef DSRI_EXACT_UNIT_H
#define DSRI_EXACT_UNIT_H

#include "cpu/cpu_kernel.h"

#define DSRI_EXACT_KERNEL(name)      DSRI_JOIN(dsri_kernel_##name, __, DSRI_EXACT_UNIT)
#define DSRI_EXACT_KERNEL_NAME(name) "dsr_" name "__" DSRI_STRING(DSRI_EXACT_UNIT)

/* 1 in the sources of that unit. */
#define DSRI_EXACT_IS_AMX                  (DSRI_EXACT_UNIT_NUMBER == 2)
#define DSRI_EXACT_UNIT_NUMBER             DSRI_JOIN(DSRI_EXACT_UNIT_NUMBER, _, DSRI_EXACT_UNIT)
#define DSRI_EXACT_UNIT_NUMBER_avx512vnni  1
#define DSRI_EXACT_UNIT_NUMBER_amxint8     2
#define DSRI_EXACT_UNIT_NUMBER_amxemulated 2 /* of the tests, with DSRI_TILES_EMULATED */

#endif
