/* The bit matrix: one case over kernel levels, numbers of rows, threads, alignment and the caller's floating-point
 * mode. */
#ifndef TEST_BIT_MATRIX_H
#define TEST_BIT_MATRIX_H

#include "bit_cases.h"

enum { BIT_N_ISAS = 4, BIT_N_THREAD_COUNTS = 4 };

/* One context per level of this machine and number of threads {0, 1, 2, 5}; for CUDA, where the number of threads means
 * nothing, one in place of the first level's. */
typedef struct bit_contexts {
    dsr_context *of[BIT_N_ISAS][BIT_N_THREAD_COUNTS]; /* null where the machine cannot run the level */
    uint32_t n_thread_counts;                         /* of each level; 1 for CUDA */
} bit_contexts;

/* 0 on success, else text says what failed. */
int bit_contexts_open(bit_contexts *contexts, char text[BIT_TEXT_BYTES]);
int bit_contexts_open_cuda(bit_contexts *contexts, char text[BIT_TEXT_BYTES]);
void bit_contexts_close(bit_contexts *contexts);
/* The best level of this machine with 2 threads. */
dsr_context *bit_contexts_best(const bit_contexts *contexts);

typedef enum bit_tier {
    BIT_TIER_QUICK, /* every (level, rows) pair, the rest of the product drawn so that every value occurs */
    BIT_TIER_FULL   /* the whole product, in a plain and a drawn layout */
} bit_tier;

/* Runs one case of (op, shape, seed). 0 if all runs give the reference's bits, else text describes the first
 * difference. *n_runs (may be null) is the number of runs made. */
int bit_matrix_run(const bit_contexts *contexts, const struct bit_op *op, uint32_t shape, uint64_t seed, bit_tier tier,
                   uint32_t *n_runs, char text[BIT_TEXT_BYTES]);

#endif
