/* One query of an attention plan as the kernels see it, and what all phases share. */
#ifndef DSRI_ATTENTION_QUERY_H
#define DSRI_ATTENTION_QUERY_H

#include "cpu/kernels/cache_rows.h"
#include "cpu/vec/vec.h"
#include "ops/attention_workspace.h"
#include "ops/op_plans.h"

enum {
    PANEL_HEADS = 2 * VF_LANES, /* heads of a panel of q: two vectors */
    PACK_FEATURES = 128,        /* features of a packing task */
    LOGIT_SLOTS = 48,           /* selected slots of a logit task, */
    SHORT_LOGIT_SLOTS = 24,     /* and of one of a short list: more tasks, though each reads all of q */
    SHORT_WIDTH = 384,
    VALUE_FEATURES = 32, /* features of a value task */
    VALUE_TASKS = DSRI_HEAD_DIM / VALUE_FEATURES
};

typedef struct attention_query {
    const dsri_attention_row_plan *row;
    const int32_t *indices;
    const uint16_t *q;
    uint16_t *output;
    float *q_panels;
    float *weights;
    float *chunk_max;
    float *chunk_sums;
    float *denominators;
    uint32_t *kv_rows;
    const uint16_t **rows;
    uint32_t *chunk_begin;
    uint16_t *decoded_rows;
    size_t n_chunks;
    uint32_t n_heads;
} attention_query;

static inline attention_query attention_query_of(const dsri_attention_plan *plan, const dsri_attention_row_plan *row,
                                                 uint32_t query)
{
    const dsri_attention_region region = dsri_attention_region_of(row->width, plan->n_heads, row->kv.scale_bytes != 0);
    const size_t q_offset = (size_t)query * plan->n_heads * DSRI_HEAD_DIM;
    uint8_t *const base = row->workspace + query * region.size_bytes;
    const attention_query a = {
        .row = row,
        .indices = row->indices + query * row->index_stride,
        .q = row->q + q_offset,
        .output = row->output + q_offset,
        .q_panels = (void *)(base + region.q_panels),
        .weights = (void *)(base + region.weights),
        .chunk_max = (void *)(base + region.chunk_max),
        .chunk_sums = (void *)(base + region.chunk_sums),
        .denominators = (void *)(base + region.denominators),
        .kv_rows = (void *)(base + region.kv_rows),
        .rows = (void *)(base + region.rows),
        .chunk_begin = (void *)(base + region.chunk_begin),
        .decoded_rows = (void *)(base + region.decoded_rows),
        .n_chunks = (size_t)dsri_attention_chunks(row->width),
        .n_heads = plan->n_heads,
    };
    return a;
}

static inline uint32_t logit_slots(const dsri_attention_row_plan *row)
{
    return row->width <= SHORT_WIDTH ? SHORT_LOGIT_SLOTS : LOGIT_SLOTS;
}

/* 0 where the query has nothing selected or a bad index: every head is zero. */
static inline uint32_t n_selected(const attention_query *a)
{
    return a->chunk_begin[a->n_chunks];
}

static inline int rows_are_packed(const attention_query *a)
{
    return a->row->kv.scale_bytes != 0;
}

static inline dsri_cache_entry kv_entry(const attention_query *a, size_t selected)
{
    return dsri_cache_at(&a->row->kv, a->kv_rows[selected]);
}

static inline uint16_t *decoded_row(const attention_query *a, size_t selected)
{
    return a->decoded_rows + selected * DSRI_DECODED_STRIDE;
}

/* The row of a selected slot as BF16; a packed one is there once its logits task has decoded it. */
static inline const uint16_t *kv_row(const attention_query *a, size_t selected)
{
    return a->rows[selected];
}

/* Weight of head h, which begins a vector, in a selected slot. The weights of one block of heads lie slot after slot.
 */
static inline float *weight_at(const attention_query *a, uint32_t head, size_t selected)
{
    const size_t block = head / DSRI_HEAD_BLOCK;
    return a->weights + (block * a->row->width + selected) * DSRI_HEAD_BLOCK + head % DSRI_HEAD_BLOCK;
}

/* 2 * VF_LANES BF16 to F32: first the even ones, then the odd. */
static inline void widen_pair(const uint16_t *from, float *to)
{
    vf even, odd;
    vf_load_bf16_pairs(from, &even, &odd);
    vf_store(to, even);
    vf_store(to + VF_LANES, odd);
}

/* x, or +0 where it, or what it rounds to, is not finite. */
static inline vf finite_output(vf x)
{
    const vf limit = vf_from_bits(vi_set1(0x7f7f8000u)); /* the least that rounds to infinity in BF16 */
    return vf_select(vm_lt(vf_abs(x), limit), x, vf_zero());
}

#endif
