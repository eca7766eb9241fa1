/* Index scores as the contract's chains, for kernels that serve special data only: what they hand the rest to. */
#ifndef DSRI_INDEXER_FALLBACK_H
#define DSRI_INDEXER_FALLBACK_H

#include "cpu/kernels/indexer_query.h"

enum { FALLBACK_SCRATCH_BYTES = 128 * 1024 };

typedef struct indexer_fallback {
    void (*pack)(const query *x, uint32_t n_heads); /* to x->packed_q */
    /* Scores first..end - 1 of a packed query: -inf from n_causal on. first is a multiple of DSRI_SCORE_BLOCK. */
    void (*score)(const dsri_indexer_row_plan *row, const query *x, uint32_t n_heads, uint64_t first, uint64_t end,
                  void *scratch);
    int (*is_usable)(void); /* on this machine, whose CPU has the units */
} indexer_fallback;

/* row/indexer_row.c */
extern const indexer_fallback dsri_indexer_fallback__avx512bf16;

#endif
