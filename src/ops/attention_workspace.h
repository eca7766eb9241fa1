/* Layout of the workspace of one attention query: shared by the ops layer (how much) and the kernels (where). */
#ifndef DSRI_ATTENTION_WORKSPACE_H
#define DSRI_ATTENTION_WORKSPACE_H

#include "ops/op_plans.h"

#include <stddef.h>

typedef struct dsri_attention_region {
    size_t packed_q;      /* float [512][n_heads]: the query widened, heads as lanes */
    size_t weights;       /* float [width][n_heads]: logits, then exp(logit - max) */
    size_t slot_flags;    /* uint8_t [width] */
    size_t chunk_factors; /* float [chunks][n_heads]: exp(m_c - M) of the chunked form */
    size_t head_state;    /* float [n_heads] denominators, then uint32_t [n_heads] flags */
    size_t size_bytes;    /* a multiple of 64 */
} dsri_attention_region;

static inline size_t dsri_align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static inline dsri_attention_region dsri_attention_region_of(uint64_t width, uint32_t n_heads)
{
    const size_t n_chunks = (size_t)((width + DSRI_CHUNK_SLOTS - 1) / DSRI_CHUNK_SLOTS);
    dsri_attention_region r;
    r.packed_q = 0;
    r.weights = r.packed_q + (size_t)DSRI_HEAD_DIM * n_heads * sizeof(float);
    r.slot_flags = r.weights + dsri_align64((size_t)width * n_heads * sizeof(float));
    r.chunk_factors = r.slot_flags + dsri_align64((size_t)width);
    r.head_state = r.chunk_factors + dsri_align64(n_chunks * n_heads * sizeof(float));
    r.size_bytes = r.head_state + dsri_align64(2 * (size_t)n_heads * sizeof(float));
    return r;
}

#endif
