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
enum { DSRI_SCRATCH_BYTES = 512 * 1024, DSRI_KEPT_BYTES = 288 * 1024 };

/* What a worker keeps from one task of a phase to the next: what a kernel made of an operand that these tasks share.
 * The back end empties it before the worker's first task of a phase. */
typedef struct dsri_kept {
    const void *owner; /* the row's plan whose operand it is; null: it is empty */
    uint32_t query;    /* of the row */
    _Alignas(64) uint8_t bytes[DSRI_KEPT_BYTES];
} dsri_kept;

/* Tasks are given the address of the scratch. */
typedef struct dsri_worker_memory {
    _Alignas(64) uint8_t scratch[DSRI_SCRATCH_BYTES];
    dsri_kept kept;
} dsri_worker_memory;

static inline dsri_kept *dsri_kept_beside(void *scratch)
{
    return &((dsri_worker_memory *)scratch)->kept;
}

/* Whether the worker's last task left what is made of the query of a row; if not, the caller makes it. */
static inline int dsri_is_kept(dsri_kept *kept, const void *row, uint32_t query)
{
    const int is_kept = kept->owner == row && kept->query == query;
    kept->owner = row;
    kept->query = query;
    return is_kept;
}

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
