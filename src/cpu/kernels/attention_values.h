/* Phase "values": the weighted sum of the selected rows over a block of features, for all heads, and the division.
 *
 * Features are lanes, and each numerator is one chain over the slots in order (for the chunked form, one per chunk). */
#ifndef DSRI_ATTENTION_VALUES_H
#define DSRI_ATTENTION_VALUES_H

#include "cpu/kernels/attention_query.h"

/* Heads of a register tile of 2 feature vectors: the tiles of one block of heads, in order. */
#if DSRI_VEC == DSRI_VEC_avx2
#define VALUE_TILES(TILE) TILE(0, 6) TILE(6, 5) TILE(11, 5)
#elif DSRI_VEC == DSRI_VEC_scalar
#define VALUE_TILES(TILE) TILE(0, 4) TILE(4, 4) TILE(8, 4) TILE(12, 4)
#else
#define VALUE_TILES(TILE) TILE(0, 8) TILE(8, 8)
#endif

enum { PAIR_FEATURES = 2 * VF_LANES, VALUE_PAIRS = VALUE_FEATURES / PAIR_FEATURES };

typedef struct value_scratch {
    /* Widened: per PAIR_FEATURES features first the even, then the odd. */
    float values[VALUE_PAIRS][DSRI_CHUNK_SLOTS][PAIR_FEATURES];
    float numerators[]; /* [VALUE_PAIRS][n_heads][PAIR_FEATURES] */
} value_scratch;

static inline void prefetch_values(const attention_query *a, uint32_t feature, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        vec_prefetch(kv_row(a, i) + feature);
    }
}

static inline void widen_values(const attention_query *a, uint32_t feature, size_t begin, size_t end,
                                value_scratch *scratch)
{
    for (size_t i = begin; i < end; i++) {
        const uint16_t *from = kv_row(a, i) + feature;
        VEC_UNROLL
        for (int p = 0; p < VALUE_PAIRS; p++) {
            vf even, odd;
            vf_load_bf16_pairs(from + p * PAIR_FEATURES, &even, &odd);
            vf_store(scratch->values[p][i - begin], even);
            vf_store(scratch->values[p][i - begin] + VF_LANES, odd);
        }
    }
}

/* How a chunk meets the numerators so far. */
typedef enum chunk_rule {
    CHUNK_CONTINUES, /* two-pass: the chain goes on */
    CHUNK_COMBINES   /* chunked: numerator = fma(factor, sum of the chunk, numerator) */
} chunk_rule;

/* One chunk of a register tile of n_heads <= 8 heads (a constant). weights [n_slots][16]; values
 * [n_slots][PAIR_FEATURES]; factors [n_heads]; numerators [n_heads][PAIR_FEATURES]. */
static inline __attribute__((always_inline)) void add_chunk(int n_heads, chunk_rule rule, const float *weights,
                                                            const float *values, size_t n_slots, const float *factors,
                                                            float *numerators)
{
    vf acc[8][2];
    VEC_UNROLL
    for (int h = 0; h < n_heads; h++) {
        acc[h][0] = rule == CHUNK_COMBINES ? vf_zero() : vf_load(numerators + h * PAIR_FEATURES);
        acc[h][1] = rule == CHUNK_COMBINES ? vf_zero() : vf_load(numerators + h * PAIR_FEATURES + VF_LANES);
    }
    for (size_t i = 0; i < n_slots; i++) {
        const vf v0 = vf_load(values + i * PAIR_FEATURES);
        const vf v1 = vf_load(values + i * PAIR_FEATURES + VF_LANES);
        VEC_UNROLL
        for (int h = 0; h < n_heads; h++) {
            const vf w = vf_set1(weights[i * DSRI_HEAD_BLOCK + (size_t)h]);
            acc[h][0] = vf_fma(w, v0, acc[h][0]);
            acc[h][1] = vf_fma(w, v1, acc[h][1]);
        }
    }
    VEC_UNROLL
    for (int h = 0; h < n_heads; h++) {
        float *to = numerators + h * PAIR_FEATURES;
        if (rule == CHUNK_COMBINES) {
            const vf factor = vf_set1(factors[h]);
            acc[h][0] = vf_fma(factor, acc[h][0], vf_load(to));
            acc[h][1] = vf_fma(factor, acc[h][1], vf_load(to + VF_LANES));
        }
        vf_store(to, acc[h][0]);
        vf_store(to + VF_LANES, acc[h][1]);
    }
}

static inline __attribute__((always_inline)) void add_chunk_all_heads(const attention_query *a, chunk_rule rule,
                                                                      size_t c, value_scratch *scratch)
{
    const size_t begin = a->chunk_begin[c], n_slots = a->chunk_begin[c + 1] - begin;
    const float *const factors = a->chunk_max + c * a->n_heads;
    for (int p = 0; p < VALUE_PAIRS; p++) {
        const float *values = scratch->values[p][0];
        for (uint32_t h = 0; h < a->n_heads; h += DSRI_HEAD_BLOCK) {
            float *to = scratch->numerators + ((size_t)p * a->n_heads + h) * PAIR_FEATURES;
            const float *weights = weight_at(a, h, begin);
#define TILE(at, n) add_chunk(n, rule, weights + at, values, n_slots, factors + h + at, to + at * PAIR_FEATURES);
            VALUE_TILES(TILE)
#undef TILE
        }
    }
}

/* +0 where the quotient, or what it rounds to, is not finite. */
static inline vf finite_quotient(vf numerator, vf denominator)
{
    const vf limit = vf_from_bits(vi_set1(0x7f7f8000u)); /* the least that rounds to infinity in BF16 */
    const vf quotient = vf_div(numerator, denominator);
    return vf_select(vm_lt(vf_abs(quotient), limit), quotient, vf_zero());
}

static inline void store_output(const attention_query *a, uint32_t feature, const value_scratch *scratch)
{
    for (uint32_t h = 0; h < a->n_heads; h++) {
        const vf denominator = vf_set1(a->denominators[h]);
        uint16_t *to = a->output + (size_t)h * DSRI_HEAD_DIM + feature;
        VEC_UNROLL
        for (int p = 0; p < VALUE_PAIRS; p++) {
            const float *from = scratch->numerators + ((size_t)p * a->n_heads + h) * PAIR_FEATURES;
            vf_store_bf16_pairs(to + p * PAIR_FEATURES, finite_quotient(vf_load(from), denominator),
                                finite_quotient(vf_load(from + VF_LANES), denominator));
        }
    }
}

/* Output features [feature, + VALUE_FEATURES) of all heads. */
static inline void compute_output(const attention_query *a, uint32_t feature, int chunked, value_scratch *scratch)
{
    for (size_t i = 0; i < (size_t)VALUE_FEATURES * a->n_heads; i += VF_LANES) {
        vf_store(scratch->numerators + i, vf_zero());
    }
    const size_t n = n_selected(a);
    for (size_t c = 0; c < a->n_chunks; c++) {
        const size_t begin = a->chunk_begin[c], end = a->chunk_begin[c + 1];
        if (begin == end) {
            continue;
        }
        widen_values(a, feature, begin, end, scratch);
        prefetch_values(a, feature, end, end + DSRI_CHUNK_SLOTS < n ? end + DSRI_CHUNK_SLOTS : n);
        if (chunked) {
            add_chunk_all_heads(a, CHUNK_COMBINES, c, scratch);
        } else {
            add_chunk_all_heads(a, CHUNK_CONTINUES, c, scratch);
        }
    }
    store_output(a, feature, scratch);
}

#endif
