/* Layout of the workspace of one indexer query: shared by the ops layer (how much) and the kernels (where). */
#ifndef DSRI_INDEXER_WORKSPACE_H
#define DSRI_INDEXER_WORKSPACE_H

#include "ops/attention_workspace.h"

typedef struct dsri_indexer_region {
    size_t scores;     /* float [n_causal]: used where the caller gave no scores */
    size_t size_bytes; /* a multiple of 64 */
} dsri_indexer_region;

/* n_causal: keys that the row's last query sees (the longest list of the row's queries). */
static inline dsri_indexer_region dsri_indexer_region_of(uint64_t n_causal, uint32_t n_heads, uint32_t top_k)
{
    dsri_indexer_region r;
    (void)n_heads;
    (void)top_k;
    r.scores = 0;
    r.size_bytes = dsri_align64((size_t)n_causal * sizeof(float));
    return r;
}

#endif
