/* Scores on AVX512-BF16. */
#ifndef DSRI_ROW_INDEXER_DOTS_H
#define DSRI_ROW_INDEXER_DOTS_H

#include "cpu/kernels/row/dots_avx512bf16.h"
#include "cpu/kernels/row/indexer_panels.h"

enum {
    TILE_KEYS = 12,
    BLOCK_KEYS = 48 /* a multiple of TILE_KEYS and of DSRI_SCORE_BLOCK */
};

typedef struct score_scratch {
    float sums[BLOCK_KEYS * VF_LANES];
    uint16_t keys[BLOCK_KEYS * DSRI_INDEX_DIM];
} score_scratch;

/* Keys that will be read next, n of them. */
typedef struct keys_ahead {
    const uint16_t *keys;
    uint64_t n;
} keys_ahead;

static inline void prefetch_keys(const keys_ahead *ahead, uint64_t first, uint64_t n)
{
    for (uint64_t t = first; t < first + n && t < ahead->n; t++) {
        for (int f = 0; f < DSRI_INDEX_DIM; f += 32) {
            vec_prefetch(ahead->keys + t * DSRI_INDEX_DIM + f);
        }
    }
}

/* One panel of the query. */
typedef struct panel_operand {
    const uint32_t *packed;
    const float *weights;
    uint32_t width; /* 32 or 64 heads */
    int is_first;   /* sums start with it */
} panel_operand;

/* sums [VF_LANES] of a key, from its dots with the n_vectors vectors of a panel. */
static inline __attribute__((always_inline)) void add_weighted(int n_vectors, const vf *dots, const panel_operand *p,
                                                               float *sums)
{
    vf sum = p->is_first ? vf_zero() : vf_load(sums);
    VEC_UNROLL
    for (int v = 0; v < n_vectors; v++) {
        sum = vf_fma(vf_relu(dots[v]), vf_load(p->weights + v * VF_LANES), sum);
    }
    vf_store(sums, sum);
}

static inline __attribute__((always_inline)) void score_tile(int n_vectors, const uint16_t *keys,
                                                             const panel_operand *p, float *sums)
{
    const int n_keys = MAX_DOT_ACCUMULATORS / n_vectors;
    vf dots[MAX_DOT_ACCUMULATORS];
    VEC_UNROLL
    for (int i = 0; i < MAX_DOT_ACCUMULATORS; i++) {
        dots[i] = vf_zero();
    }
    add_dots(n_keys, n_vectors, keys, DSRI_INDEX_DIM / 2, p->packed, (size_t)n_vectors * VF_LANES, FEATURE_PAIRS, dots);
    VEC_UNROLL
    for (int j = 0; j < n_keys; j++) {
        add_weighted(n_vectors, dots + j * n_vectors, p, sums + j * VF_LANES);
    }
}

static __attribute__((noinline)) void score_6_keys(const uint16_t *keys, const panel_operand *p, float *sums)
{
    score_tile(4, keys, p, sums);
}

static __attribute__((noinline)) void score_12_keys(const uint16_t *keys, const panel_operand *p, float *sums)
{
    score_tile(2, keys, p, sums);
}

/* Sums of n keys (rounded up to TILE_KEYS) that lie side by side. Prefetches the keys ahead, tile by tile. */
static void score_panel(const panel_operand *p, const uint16_t *keys, uint32_t n, const keys_ahead *ahead,
                        score_scratch *s)
{
    const uint32_t step = p->width == MAX_PANEL_HEADS ? 6 : 12;
    for (uint32_t t = 0; t < n; t += step) {
        prefetch_keys(ahead, t, step);
        (step == 6 ? score_6_keys : score_12_keys)(keys + t * DSRI_INDEX_DIM, p, s->sums + t * VF_LANES);
    }
}

/* Keys [t, t + n) where they lie, if side by side, or loaded. */
static inline const uint16_t *find_keys(const dsri_indexer_row_plan *row, uint64_t t, uint32_t n, uint64_t n_causal,
                                        score_scratch *s, keys_ahead *ahead)
{
    const uint32_t n_padded = (n + TILE_KEYS - 1) / TILE_KEYS * TILE_KEYS;
    if (n == n_padded && dsri_cache_is_plain(&row->keys) && row->keys.row_stride == DSRI_INDEX_DIM * sizeof(uint16_t)) {
        const uint16_t *keys = (const uint16_t *)(const void *)row->keys.pages + t * DSRI_INDEX_DIM;
        *ahead = (keys_ahead){keys + (size_t)n * DSRI_INDEX_DIM, n_causal - t - n};
        return keys;
    }
    load_block(row, t, n, n_padded, n_causal, s->keys);
    *ahead = (keys_ahead){NULL, 0};
    return s->keys;
}

/* Scores of a range of keys that the query sees. */
static void score_seen_keys(const dsri_indexer_row_plan *row, const query *x, uint32_t n_heads, key_range range,
                            score_scratch *s)
{
    const uint32_t width = panel_heads(n_heads);
    for (uint64_t t = range.first; t < range.end; t += BLOCK_KEYS) {
        const uint32_t n = range.end - t < BLOCK_KEYS ? (uint32_t)(range.end - t) : BLOCK_KEYS;
        keys_ahead ahead;
        const uint16_t *keys = find_keys(row, t, n, x->n_causal, s, &ahead);
        for (uint32_t h = 0; h < n_heads; h += width) {
            const panel_operand p = {query_panel(x, n_heads, h), x->weights + h, width, h == 0};
            score_panel(&p, keys, n, &ahead, s);
            ahead.n = 0;
        }
        store_scores(x, t, n, BLOCK_KEYS, s->sums);
    }
}

#endif
