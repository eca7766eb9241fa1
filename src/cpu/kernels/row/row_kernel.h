/* Names of the row-exact kernels: one source, compiled once per unit with DSRI_ROW_UNIT set to avx512bf16 or amxbf16.
 * DSRI_ISA is avx512 in both. */
#ifndef DSRI_ROW_KERNEL_H
#define DSRI_ROW_KERNEL_H

#include "cpu/cpu_kernel.h"

#define DSRI_ROW_KERNEL(name)      DSRI_JOIN(dsri_kernel_##name, __, DSRI_ROW_UNIT)
#define DSRI_ROW_KERNEL_NAME(name) "dsr_" name "__" DSRI_STRING(DSRI_ROW_UNIT)

/* 1 in the sources of that unit. */
#define DSRI_ROW_IS_AMX                  (DSRI_ROW_UNIT_NUMBER == 2)
#define DSRI_ROW_UNIT_NUMBER             DSRI_JOIN(DSRI_ROW_UNIT_NUMBER, _, DSRI_ROW_UNIT)
#define DSRI_ROW_UNIT_NUMBER_avx512bf16  1
#define DSRI_ROW_UNIT_NUMBER_amxbf16     2
#define DSRI_ROW_UNIT_NUMBER_amxemulated 2 /* of the tests, with DSRI_TILES_EMULATED */

#endif
