/* Phase "pack": the list of selected KV rows, and q widened with heads as lanes. */
#ifndef DSRI_ATTENTION_PACK_H
#define DSRI_ATTENTION_PACK_H

#include "cpu/kernels/attention_query.h"

/* Whether an index other than -1 names a KV row. */
static inline int is_row(const attention_query *a, int32_t index)
{
    const dsri_cache *kv = &a->row->kv;
    return index >= 0 && (uint64_t)index < a->row->kv_len &&
           (kv->page_table == NULL || (uint32_t)kv->page_table[(uint32_t)index >> kv->page_shift] < kv->n_pages);
}

/* Slots cut into chunks of 64: by their place in the caller's list for the chunked form, by their place among the
 * selected ones, all chunks but the last full, for the two-pass form. */
static inline void select_rows(const attention_query *a, int chunked)
{
    const size_t width = a->row->width;
    uint32_t n = 0;
    int usable = 1;
    for (size_t i = 0; i < width; i++) {
        const int32_t index = a->indices[i];
        if (i % DSRI_CHUNK_SLOTS == 0) {
            a->chunk_begin[i / DSRI_CHUNK_SLOTS] = n;
        }
        a->kv_rows[n] = (uint32_t)index;
        n += index != -1;
        usable &= index == -1 || is_row(a, index);
    }
    n = usable ? n : 0;
    for (uint32_t i = 0; i < n; i++) {
        a->rows[i] =
            rows_are_packed(a) ? decoded_row(a, i) : (const void *)dsri_cache_at(&a->row->kv, a->kv_rows[i]).values;
    }
    for (size_t c = 0; c <= a->n_chunks; c++) {
        const size_t full = c * DSRI_CHUNK_SLOTS;
        const uint32_t begin = chunked && c < a->n_chunks ? a->chunk_begin[c] : (uint32_t)(full < n ? full : n);
        a->chunk_begin[c] = begin < n ? begin : n;
    }
}

/* Features [feature, + 2 * VF_LANES) of VF_LANES heads from `head` into their panel, [512][PANEL_HEADS]. */
static inline void pack_block(const attention_query *a, uint32_t head, uint32_t feature)
{
    const uint16_t *q = a->q + (size_t)head * DSRI_HEAD_DIM + feature;
    const uint16_t *next = head + VF_LANES < a->n_heads ? q + VF_LANES * DSRI_HEAD_DIM : q;
    float *panel = a->q_panels + (size_t)(head / PANEL_HEADS) * DSRI_HEAD_DIM * PANEL_HEADS + head % PANEL_HEADS;
    vi pairs[VF_LANES];
    VEC_UNROLL
    for (int h = 0; h < VF_LANES; h++) {
        pairs[h] = vi_load_pairs(q + h * DSRI_HEAD_DIM);
        vec_prefetch(next + h * DSRI_HEAD_DIM);
    }
    vi_transpose(pairs);
    VEC_UNROLL
    for (uint32_t i = 0; i < VF_LANES; i++) {
        vf even, odd;
        vf_from_pairs(pairs[i], &even, &odd);
        vf_store(panel + (feature + 2 * i) * PANEL_HEADS, even);
        vf_store(panel + (feature + 2 * i + 1) * PANEL_HEADS, odd);
    }
}

/* Features [feature, + PACK_FEATURES) of all heads. */
static inline void pack_q(const attention_query *a, uint32_t feature)
{
    for (uint32_t h = 0; h < a->n_heads; h += VF_LANES) {
        for (uint32_t f = feature; f < feature + PACK_FEATURES; f += 2 * VF_LANES) {
            pack_block(a, h, f);
        }
    }
}

#endif
