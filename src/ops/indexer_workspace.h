/* Layout of the workspace of one indexer query: shared by the ops layer (how much) and the kernels (where). */
#ifndef DSRI_INDEXER_WORKSPACE_H
#define DSRI_INDEXER_WORKSPACE_H

#include "ops/attention_workspace.h"

enum { DSRI_SCORE_BLOCK = 16 }; /* scores under one block maximum */

typedef struct dsri_indexer_region {
    size_t scores;       /* float [n_causal]: used where the caller gave no scores */
    size_t block_maxima; /* float [n_blocks]: the greatest of 16 consecutive scores, -inf past the last of them */
    uint64_t n_blocks;   /* a multiple of 64 */
    size_t size_bytes;   /* a multiple of 64 */
} dsri_indexer_region;

/* n_causal: keys that the row's last query sees (the longest list of the row's queries). */
DSRI_LAYOUT_CODE dsri_indexer_region dsri_indexer_region_of(uint64_t n_causal)
{
    dsri_indexer_region r;
    r.scores = 0;
    r.block_maxima = r.scores + dsri_align64((size_t)n_causal * sizeof(float));
    r.n_blocks = ((n_causal + DSRI_SCORE_BLOCK - 1) / DSRI_SCORE_BLOCK + 63) & ~(uint64_t)63;
    r.size_bytes = r.block_maxima + (size_t)r.n_blocks * sizeof(float);
    return r;
}

#endif
