/* The built-in CPU kernels of this build. */
#ifndef DSRI_KERNEL_TABLE_H
#define DSRI_KERNEL_TABLE_H

#include "cpu/cpu_kernel.h"

enum { DSRI_MAX_CANDIDATES = 8 };

/* Kernels of an op that a context may run, best first, closed by null. */
typedef struct dsri_candidates {
    const dsri_cpu_kernel *kernels[DSRI_MAX_CANDIDATES + 1];
} dsri_candidates;

/* A candidate is of the context's instruction set or scalar, needs no feature that is absent, and is device-exact, or
 * row-exact in a row-exact context. Row-exact kernels come first, then those of the instruction set, then later lines
 * of the table. */
dsri_candidates dsri_find_candidates(dsri_op op, dsr_isa isa, dsr_exactness exactness, uint32_t features);

#endif
