/* Phase "values": the weighted sum of the selected rows over a block of features, for all heads, and the division.
 *
 * Features are lanes, and each numerator is one chain over the slots in order (for the chunked form, one per chunk). */
#ifndef DSRI_ATTENTION_VALUES_H
#define DSRI_ATTENTION_VALUES_H

#include "cpu/kernels/attention_query.h"

/* TILE(first, n): heads of the register tiles, of 2 vectors of features each, of a block of heads. */
#if DSRI_VEC == DSRI_VEC_avx2
#define VALUE_TILES(TILE) TILE(0, 6) TILE(6, 5) TILE(11, 5)
enum { BLOCK_TILES = 3 };
#elif DSRI_VEC == DSRI_VEC_scalar
#define VALUE_TILES(TILE) TILE(0, 4) TILE(4, 4) TILE(8, 4) TILE(12, 4)
enum { BLOCK_TILES = 4 };
#else
#define VALUE_TILES(TILE) TILE(0, 8) TILE(8, 8)
enum { BLOCK_TILES = 2 };
#endif

enum {
    PAIR_FEATURES = 2 * VF_LANES,
    VALUE_PAIRS = VALUE_FEATURES / PAIR_FEATURES,
    STEP_SLOTS = 8,  /* between two of these, one pair is widened */
    SLOTS_AHEAD = 32 /* prefetched */
};

typedef float value_chunk[VALUE_PAIRS][DSRI_CHUNK_SLOTS][PAIR_FEATURES]; /* in the order of widen_pair */

typedef struct value_scratch {
    value_chunk values[2]; /* of the chunk in use and of the next */
    float numerators[];    /* [VALUE_PAIRS][n_heads][PAIR_FEATURES] */
} value_scratch;

/* Widening of a chunk, pair by pair: slot after slot. */
typedef struct widening {
    const attention_query *query;
    uint32_t feature;
    size_t first_slot;
    size_t n_selected;
    size_t done; /* pairs */
    size_t n_pairs;
    float (*to)[DSRI_CHUNK_SLOTS][PAIR_FEATURES];
} widening;

static inline widening widening_of(const attention_query *a, uint32_t feature, size_t chunk, value_scratch *scratch)
{
    const size_t begin = a->chunk_begin[chunk];
    const size_t end = chunk < a->n_chunks ? a->chunk_begin[chunk + 1] : begin;
    const widening w = {
        .query = a,
        .feature = feature,
        .first_slot = begin,
        .n_selected = n_selected(a),
        .n_pairs = (end - begin) * VALUE_PAIRS,
        .to = scratch->values[chunk % 2],
    };
    return w;
}

/* Widens pairs up to `end`, at most `n`, and prefetches the same places of later slots. */
static inline void widen_values(widening *w, size_t end, size_t n)
{
    for (; w->done < end && n > 0; w->done++, n--) {
        const size_t slot = w->done / VALUE_PAIRS, pair = w->done % VALUE_PAIRS;
        const size_t offset = w->feature + pair * PAIR_FEATURES;
        const size_t later = w->first_slot + slot + SLOTS_AHEAD;
        vec_prefetch_to_l2(kv_row(w->query, later < w->n_selected ? later : w->n_selected - 1) + offset);
        widen_pair(kv_row(w->query, w->first_slot + slot) + offset, w->to[pair][slot]);
    }
}

/* How a chunk meets the numerators so far. */
typedef enum chunk_rule {
    CHUNK_CONTINUES, /* two-pass: the chain goes on */
    CHUNK_COMBINES   /* chunked: numerator = fma(factor, sum of the chunk, numerator) */
} chunk_rule;

/* Operands of a register tile for one chunk. */
typedef struct value_tile {
    const float *weights; /* [n_slots][16] */
    const float *values;  /* [n_slots][PAIR_FEATURES] */
    size_t n_slots;
    const float *factors; /* [n_heads] */
    float *numerators;    /* [n_heads][PAIR_FEATURES] */
} value_tile;

static inline __attribute__((always_inline)) void add_slot(vf acc[8][2], int n_heads, const float *weights,
                                                           const float *values)
{
    const vf v0 = vf_load(values);
    const vf v1 = vf_load(values + VF_LANES);
    VEC_UNROLL
    for (int h = 0; h < n_heads; h++) {
        const vf w = vf_set1(weights[h]);
        acc[h][0] = vf_fma(w, v0, acc[h][0]);
        acc[h][1] = vf_fma(w, v1, acc[h][1]);
    }
}

/* One chunk of a register tile of n_heads <= 8 heads (a constant). Beside it the next chunk is widened up to pair
 * `end_pair`. */
static inline __attribute__((always_inline)) void add_chunk(int n_heads, chunk_rule rule, value_tile t, widening *next,
                                                            size_t end_pair)
{
    vf acc[8][2];
    VEC_UNROLL
    for (int h = 0; h < n_heads; h++) {
        acc[h][0] = rule == CHUNK_COMBINES ? vf_zero() : vf_load(t.numerators + h * PAIR_FEATURES);
        acc[h][1] = rule == CHUNK_COMBINES ? vf_zero() : vf_load(t.numerators + h * PAIR_FEATURES + VF_LANES);
    }
    size_t i = 0;
    for (; i + STEP_SLOTS <= t.n_slots; i += STEP_SLOTS) {
        widen_values(next, end_pair, 1);
        VEC_UNROLL
        for (size_t j = 0; j < STEP_SLOTS; j++) {
            add_slot(acc, n_heads, t.weights + (i + j) * DSRI_HEAD_BLOCK, t.values + (i + j) * PAIR_FEATURES);
        }
    }
    for (; i < t.n_slots; i++) {
        add_slot(acc, n_heads, t.weights + i * DSRI_HEAD_BLOCK, t.values + i * PAIR_FEATURES);
    }
    widen_values(next, end_pair, end_pair);
    VEC_UNROLL
    for (int h = 0; h < n_heads; h++) {
        float *to = t.numerators + h * PAIR_FEATURES;
        if (rule == CHUNK_COMBINES) {
            const vf factor = vf_set1(t.factors[h]);
            acc[h][0] = vf_fma(factor, acc[h][0], vf_load(to));
            acc[h][1] = vf_fma(factor, acc[h][1], vf_load(to + VF_LANES));
        }
        vf_store(to, acc[h][0]);
        vf_store(to + VF_LANES, acc[h][1]);
    }
}

/* Chunk c, widened before, for all heads; then chunk c + 1 is widened too. */
static inline __attribute__((always_inline)) void
add_chunk_all_heads(const attention_query *a, chunk_rule rule, size_t c, uint32_t feature, value_scratch *scratch)
{
    const size_t begin = a->chunk_begin[c], n_slots = a->chunk_begin[c + 1] - begin;
    const float *const factors = a->chunk_max + c * a->n_heads;
    widening next = widening_of(a, feature, c + 1, scratch);
    const size_t n_tiles = VALUE_PAIRS * BLOCK_TILES * a->n_heads / DSRI_HEAD_BLOCK;
    const size_t share = (next.n_pairs + n_tiles - 1) / n_tiles;
    size_t end_pair = 0;
    for (size_t p = 0; p < VALUE_PAIRS && n_slots > 0; p++) {
        for (uint32_t h = 0; h < a->n_heads; h += DSRI_HEAD_BLOCK) {
            const float *weights = weight_at(a, h, begin);
            float *numerators = scratch->numerators + (p * a->n_heads + h) * PAIR_FEATURES;
#define TILE(at, n)                                                                                                    \
    end_pair = end_pair + share < next.n_pairs ? end_pair + share : next.n_pairs;                                      \
    add_chunk(n, rule,                                                                                                 \
              (value_tile){weights + at, scratch->values[c % 2][p][0], n_slots, factors + h + at,                      \
                           numerators + at * PAIR_FEATURES},                                                           \
              &next, end_pair);
            VALUE_TILES(TILE)
#undef TILE
        }
    }
    widen_values(&next, next.n_pairs, next.n_pairs);
}

static inline void store_output(const attention_query *a, uint32_t feature, const value_scratch *scratch)
{
    for (uint32_t h = 0; h < a->n_heads; h++) {
        const vf denominator = vf_set1(a->denominators[h]);
        uint16_t *to = a->output + (size_t)h * DSRI_HEAD_DIM + feature;
        VEC_UNROLL
        for (int p = 0; p < VALUE_PAIRS; p++) {
            const float *from = scratch->numerators + ((size_t)p * a->n_heads + h) * PAIR_FEATURES;
            vf_store_bf16_pairs(to + p * PAIR_FEATURES, finite_output(vf_div(vf_load(from), denominator)),
                                finite_output(vf_div(vf_load(from + VF_LANES), denominator)));
        }
    }
}

/* Output features [feature, + VALUE_FEATURES) of all heads. */
static inline void compute_output(const attention_query *a, uint32_t feature, int chunked, value_scratch *scratch)
{
    for (size_t i = 0; i < (size_t)VALUE_FEATURES * a->n_heads; i += VF_LANES) {
        vf_store(scratch->numerators + i, vf_zero());
    }
    if (n_selected(a) > 0) {
        widening first = widening_of(a, feature, 0, scratch);
        widen_values(&first, first.n_pairs, first.n_pairs);
        for (size_t c = 0; c < a->n_chunks; c++) {
            if (chunked) {
                add_chunk_all_heads(a, CHUNK_COMBINES, c, feature, scratch);
            } else {
                add_chunk_all_heads(a, CHUNK_CONTINUES, c, feature, scratch);
            }
        }
    }
    store_output(a, feature, scratch);
}

#endif
