/* Scores on AMX. A step multiplies STEP_KEYS keys with STEP_HEADS heads of the query. Between its tile products it
 * stores and weighs the dots of the step before and prefetches keys of later ones: the tile unit is busy for 16 cycles
 * with a product, and the rest of the core is free for that time.
 *
 * A tile is stored right before the step that needs it next: stores that wait for their product would keep those behind
 * them from being issued. */
#ifndef DSRI_ROW_INDEXER_TILES_H
#define DSRI_ROW_INDEXER_TILES_H

#include "cpu/kernels/row/indexer_panels.h"
#include "cpu/kernels/row/tiles.h"

enum {
    STEP_KEYS = 32,
    STEP_HEADS = 32,
    BLOCK_KEYS = STEP_KEYS,
    STEP_FEATURES = 32,
    KEY_BYTES = DSRI_INDEX_DIM * sizeof(uint16_t),
    KEYS_AHEAD = 64 /* 16 KiB */
};

typedef struct score_scratch {
    float dots[STEP_KEYS * STEP_HEADS]; /* [key][head], of the step before */
    float sums[STEP_KEYS * VF_LANES];
    uint16_t keys[STEP_KEYS * DSRI_INDEX_DIM]; /* those that are not taken from where they lie */
} score_scratch;

/* Dots of a step, as they are in its tiles, on their way into the sums of their keys. */
typedef struct weighing {
    float *dots;
    const float *weights; /* [STEP_HEADS] */
    const float *from;    /* [STEP_KEYS][VF_LANES]: sums of the heads before */
    float *to;
} weighing;

/* Tile c of the step before, 0 to 3, to its place among the dots. c is a constant. */
#define STORE_DOTS(c, dots)                                                                                            \
    tile_store(c, (dots) + (c) / 2 * TILE_ROWS * STEP_HEADS + (c) % 2 * VF_LANES, STEP_HEADS * sizeof(float))

static inline void weigh_keys(weighing w, uint32_t first, uint32_t end)
{
    VEC_UNROLL
    for (uint32_t key = first; key < end; key++) {
        const float *dots = w.dots + key * STEP_HEADS;
        vf sum = vf_load(w.from + key * VF_LANES);
        sum = vf_fma(vf_relu(vf_load(dots)), vf_load(w.weights), sum);
        sum = vf_fma(vf_relu(vf_load(dots + VF_LANES)), vf_load(w.weights + VF_LANES), sum);
        vf_store(w.to + key * VF_LANES, sum);
    }
}

/* Operands of a step. */
typedef struct score_step {
    const uint8_t *keys;
    size_t key_bytes; /* from key to key */
    const uint32_t *panel;
    size_t panel_bytes;   /* from a pair of features to the next */
    const uint8_t *ahead; /* the first of 16 keys to prefetch */
} score_step;

/* What goes with product number i of a step, a constant: one key to prefetch, and keys of the step before to weigh,
 * once the first four products have stored its tiles. */
static inline __attribute__((always_inline)) void beside_product(uint32_t i, const score_step *s, int continues,
                                                                 weighing before)
{
    if (continues && i >= 4) {
        weigh_keys(before, (i - 4) * STEP_KEYS / 12, (i - 3) * STEP_KEYS / 12);
    }
    VEC_UNROLL
    for (size_t line = 0; line < KEY_BYTES; line += 64) {
        vec_prefetch_to_l2(s->ahead + i * s->key_bytes + line);
    }
}

/* Empties tile c for the first product of a step. */
#define START_TILE(c)                                                                                                  \
    if (continues) {                                                                                                   \
        STORE_DOTS(c, before.dots);                                                                                    \
    }                                                                                                                  \
    tile_zero(c)

/* Leaves the step's dots in tiles 0 to 3. continues: there is a step before, whose dots are there. */
static inline __attribute__((always_inline)) void multiply_step(score_step s, int continues, weighing before)
{
    VEC_UNROLL
    for (uint32_t i = 0; i < DSRI_INDEX_DIM / STEP_FEATURES; i++) {
        const uint8_t *keys = s.keys + i * TILE_ROW_BYTES;
        const uint32_t *panel = s.panel + i * TILE_ROWS * s.panel_bytes / sizeof *panel;
        tile_load(4, keys, s.key_bytes);
        tile_load(6, panel, s.panel_bytes);
        if (i == 0) {
            START_TILE(0);
        }
        tile_dots(0, 4, 6);
        beside_product(4 * i, &s, continues, before);
        tile_load(7, panel + VF_LANES, s.panel_bytes);
        if (i == 0) {
            START_TILE(1);
        }
        tile_dots(1, 4, 7);
        beside_product(4 * i + 1, &s, continues, before);
        tile_load(5, keys + TILE_ROWS * s.key_bytes, s.key_bytes);
        if (i == 0) {
            START_TILE(2);
        }
        tile_dots(2, 5, 6);
        beside_product(4 * i + 2, &s, continues, before);
        if (i == 0) {
            START_TILE(3);
        }
        tile_dots(3, 5, 7);
        beside_product(4 * i + 3, &s, continues, before);
    }
}

static __attribute__((noinline)) void multiply_first_step(const score_step *s)
{
    multiply_step(*s, 0, (weighing){NULL, NULL, NULL, NULL});
}

static __attribute__((noinline)) void multiply_next_step(const score_step *s, const weighing *before)
{
    multiply_step(*s, 1, *before);
}

static __attribute__((noinline)) void weigh_last_step(const weighing *before)
{
    STORE_DOTS(0, before->dots);
    STORE_DOTS(1, before->dots);
    STORE_DOTS(2, before->dots);
    STORE_DOTS(3, before->dots);
    weigh_keys(*before, 0, STEP_KEYS);
}

/* STEP_KEYS keys, or the last ones of a range. */
typedef struct key_block {
    const uint8_t *keys;
    size_t key_bytes;
    const uint8_t *ahead; /* STEP_KEYS keys to prefetch */
    uint64_t first;
    uint32_t n;
} key_block;

static inline key_block find_block(const dsri_indexer_row_plan *row, uint64_t first, uint64_t end, uint64_t n_causal,
                                   score_scratch *s)
{
    const uint32_t n = end - first < STEP_KEYS ? (uint32_t)(end - first) : STEP_KEYS;
    if (n < STEP_KEYS || !dsri_cache_is_plain(&row->keys)) {
        load_block(row, first, n, STEP_KEYS, n_causal, s->keys);
        return (key_block){(const void *)s->keys, KEY_BYTES, (const void *)s->keys, first, n};
    }
    const size_t key_bytes = row->keys.row_stride;
    const uint8_t *keys = row->keys.pages + first * key_bytes;
    const int has_more = n_causal - first >= KEYS_AHEAD + STEP_KEYS;
    return (key_block){keys, key_bytes, has_more ? keys + KEYS_AHEAD * key_bytes : keys, first, n};
}

/* Scores of a range of keys that the query sees. */
static void score_seen_keys(const dsri_indexer_row_plan *row, const query *x, uint32_t n_heads, key_range range,
                            score_scratch *s)
{
    static const float zeros[STEP_KEYS * VF_LANES];
    weighing before = {NULL, NULL, NULL, NULL};
    key_block block = {NULL, 0, NULL, 0, 0};
    uint32_t n_steps = 0;
    for (uint64_t t = range.first; t < range.end; t += STEP_KEYS) {
        const key_block last = block;
        block = find_block(row, t, range.end, x->n_causal, s);
        for (uint32_t h = 0; h < n_heads; h += STEP_HEADS, n_steps++) {
            const score_step step = {block.keys, block.key_bytes, query_panel(x, n_heads, h),
                                     panel_heads(n_heads) * sizeof(uint32_t),
                                     /* half of them with each of the first two steps; 32 heads have only one */
                                     h / STEP_HEADS < 2 ? block.ahead + h / 2 * block.key_bytes : block.keys};
            if (n_steps == 0) {
                multiply_first_step(&step);
            } else {
                multiply_next_step(&step, &before);
            }
            if (h == 0 && n_steps > 0) {
                store_scores(x, last.first, last.n, STEP_KEYS, s->sums);
            }
            before = (weighing){s->dots, x->weights + h, h == 0 ? zeros : s->sums, s->sums};
        }
    }
    weigh_last_step(&before);
    store_scores(x, block.first, block.n, STEP_KEYS, s->sums);
}

#endif
