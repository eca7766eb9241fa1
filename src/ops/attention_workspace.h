/* Layout of the workspace of one attention query: shared by the ops layer (how much) and the kernels (where). */
#ifndef DSRI_ATTENTION_WORKSPACE_H
#define DSRI_ATTENTION_WORKSPACE_H

#include "ops/op_plans.h"

#include <stddef.h>

enum { DSRI_HEAD_BLOCK = 16 }; /* heads of one block of logits; n_heads is a multiple of it */

/* Elements between decoded rows: a cache line more than a row, which spreads a column of rows over the cache's sets. */
enum { DSRI_DECODED_STRIDE = DSRI_HEAD_DIM + 32 };

/* Byte offsets. Selected slots are those whose index is not -1, numbered through in slot order. */
typedef struct dsri_attention_region {
    size_t q_panels;  /* float [512 * n_heads]: the query widened, heads as lanes */
    size_t weights;   /* float [n_heads / 16][width][16], second index a selected slot: logits, then exp(logit - max) */
    size_t chunk_max; /* float [n_chunks][n_heads]: chunked form, m_c */
    size_t chunk_sums;   /* float [n_chunks][n_heads]: chunked form, s_c */
    size_t denominators; /* float [n_heads], NaN where the head's output is zero */
    size_t kv_rows;      /* uint32_t [width]: KV row of a selected slot */
    size_t rows; /* CPU: address [width]: where a selected slot's row lies as BF16. CUDA: dsri_cache_entry [width]:
                    where the rows of all slots lie, null for none */
    size_t chunk_begin;  /* uint32_t [n_chunks + 1]: first selected slot of each chunk */
    size_t slot_max;     /* CUDA: float [(width + 15) / 16][n_heads], largest logits of 16 slots */
    size_t decoded_rows; /* uint16_t [width][DSRI_DECODED_STRIDE]: packed KV rows of the selected slots as BF16; empty
                            for BF16 caches */
    size_t size_bytes;   /* a multiple of 64 */
} dsri_attention_region;

DSRI_LAYOUT_CODE size_t dsri_align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

DSRI_LAYOUT_CODE uint64_t dsri_attention_chunks(uint64_t width)
{
    return (width + DSRI_CHUNK_SLOTS - 1) / DSRI_CHUNK_SLOTS;
}

DSRI_LAYOUT_CODE dsri_attention_region dsri_attention_region_of(uint64_t width, uint32_t n_heads, int is_packed)
{
    const size_t n_chunks = (size_t)dsri_attention_chunks(width);
    const size_t head_bytes = n_heads * sizeof(float);
    dsri_attention_region r;
    r.q_panels = 0;
    r.weights = r.q_panels + DSRI_HEAD_DIM * head_bytes;
    r.chunk_max = r.weights + (size_t)width * head_bytes;
    r.chunk_sums = r.chunk_max + n_chunks * head_bytes;
    r.denominators = r.chunk_sums + n_chunks * head_bytes;
    r.kv_rows = r.denominators + head_bytes;
    r.rows = r.kv_rows + dsri_align64((size_t)width * sizeof(uint32_t));
    r.chunk_begin = r.rows + dsri_align64((size_t)width * sizeof(dsri_cache_entry));
    r.slot_max = r.chunk_begin + dsri_align64((n_chunks + 1) * sizeof(uint32_t));
    r.decoded_rows = r.slot_max + ((size_t)width + 15) / 16 * head_bytes;
    r.size_bytes = r.decoded_rows + (is_packed ? (size_t)width * DSRI_DECODED_STRIDE * sizeof(uint16_t) : 0);
    return r;
}

#endif
