/* What a CPU kernel is: a fixed number of phases, each a number of independent tasks.
 *
 * The back end runs all tasks of a phase, in any order and on any threads, before it starts the next phase; commands
 * that do not conflict may run side by side. Tasks are cut by the plan's rows alone: which tasks exist, and what each
 * computes, may depend on nothing but the descriptor of its row, never on the thread count or the other rows. */
#ifndef DSRI_CPU_KERNEL_H
#define DSRI_CPU_KERNEL_H

#include "core/encoder_internal.h"

#include <stddef.h>
#include <stdint.h>

enum { DSRI_MAX_PHASES = 6 };

/* Scratch a worker hands to every task it runs, 64-byte aligned, contents undefined. */
enum { DSRI_SCRATCH_BYTES = 512 * 1024 };

typedef struct dsri_cpu_kernel {
    dsri_op op;
    dsr_isa isa;
    dsr_exactness exactness;
    uint32_t n_phases;
    const char *phase_names[DSRI_MAX_PHASES]; /* dsr_<op>[_<phase>]_<dtype>__<isa> */
    uint32_t (*n_tasks)(const void *plan, uint32_t phase);
    /* Runs in the default floating-point mode. Must not allocate, lock, log or call the system. */
    void (*run)(const void *plan, uint32_t phase, uint32_t task, void *scratch);
    /* Null, or whether this kernel takes the plan (otherwise the next best one is asked). */
    int (*accepts)(const void *plan);
} dsri_cpu_kernel;

/* Kernel sources are compiled once per instruction set with DSRI_ISA set to one of scalar, avx2, avx512, neon.
 * DSRI_KERNEL(indexer) is the symbol dsri_kernel_indexer__avx512. */
#define DSRI_JOIN3(a, b, c)    a##b##c
#define DSRI_JOIN(a, b, c)     DSRI_JOIN3(a, b, c)
#define DSRI_KERNEL(name)      DSRI_JOIN(dsri_kernel_##name, __, DSRI_ISA)
#define DSRI_STRING2(x)        #x
#define DSRI_STRING(x)         DSRI_STRING2(x)
#define DSRI_KERNEL_NAME(name) "dsr_" name "__" DSRI_STRING(DSRI_ISA)
/* The dsr_isa of DSRI_ISA. */
#define DSRI_ISA_ENUM        DSRI_JOIN(DSRI_ISA_ENUM, _, DSRI_ISA)
#define DSRI_ISA_ENUM_scalar DSR_ISA_SCALAR
#define DSRI_ISA_ENUM_avx2   DSR_ISA_AVX2
#define DSRI_ISA_ENUM_avx512 DSR_ISA_AVX512
#define DSRI_ISA_ENUM_neon   DSR_ISA_NEON

#endif
