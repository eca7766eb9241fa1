/* Sums over heads of a block of integer keys on AMX. A step multiplies TILE_ROWS keys with a panel of the query. What
 * else there is to do stands between its tile products: the dots of the step before are stored, those of the one before
 * that are weighed, and keys of the next block are loaded. */
#ifndef DSRI_INTEGER_TILES_H
#define DSRI_INTEGER_TILES_H

#include "cpu/kernels/exact/integer_block.h"
#include "cpu/kernels/row/tiles.h"

_Static_assert((int)GROUP_KEYS == (int)TILE_ROWS, "a group of keys is a tile");

/* Of a step: what its dots become sums with, and which. */
typedef struct integer_step {
    const integer_panel *panel;
    const uint8_t *keys; /* [TILE_ROWS][DSRI_INDEX_DIM] */
    int32_t *dots;       /* [TILE_ROWS][heads of the panel] */
    float *sums;         /* [TILE_ROWS][VF_LANES] */
} integer_step;

/* Steps that a step works for, null if there is none. */
typedef struct step_pipeline {
    const integer_step *in_tiles; /* the step before */
    const integer_step *in_dots;  /* the one before that */
    key_loading *loading;
} step_pipeline;

static inline __attribute__((always_inline)) void weigh_keys(int n_vectors, const integer_step *s, int first, int n)
{
    const integer_panel *p = s->panel;
    for (int t = first; t < first + n; t++) {
        vf x[4];
        VEC_UNROLL
        for (int v = 0; v < n_vectors; v++) {
            const vi dot = vi_load((const void *)(s->dots + (t * n_vectors + v) * VF_LANES));
            const vf positive = _mm512_cvtepi32_ps(_mm512_max_epi32(dot, _mm512_setzero_si512()));
            x[v] = vf_mul(positive, vf_load(p->weights + (uint32_t)v * p->vector_step));
        }
        vf sum = vf_add(x[0], x[n_vectors / 2]);
        if (n_vectors == 4) {
            sum = vf_add(sum, vf_add(x[1], x[3]));
        }
        vf_store(s->sums + t * VF_LANES, sum);
    }
}

/* Tile c, a constant: one vector of heads. */
#define STORE_DOTS(c, n_vectors, step)                                                                                 \
    tile_store(c, (step)->dots + (c)*VF_LANES, (size_t)(n_vectors)*VF_LANES * sizeof(int32_t))

/* The product of one half of the features with vector c of the heads, tile c. The first half empties the tile. */
#define PRODUCT(c, half, b)                                                                                            \
    do {                                                                                                               \
        tile_load(b, words + (size_t)(half)*TILE_ROWS * width + (c)*VF_LANES, width * sizeof *words);                  \
        if ((half) == 0) {                                                                                             \
            if (p.in_tiles) {                                                                                          \
                STORE_DOTS(c, n_vectors, p.in_tiles);                                                                  \
            }                                                                                                          \
            tile_zero(c);                                                                                              \
            tile_byte_dots(c, 4, b);                                                                                   \
        } else {                                                                                                       \
            tile_byte_dots(c, 5, b);                                                                                   \
        }                                                                                                              \
        if (p.in_dots) {                                                                                               \
            weigh_keys(n_vectors, p.in_dots, ((half)*n_vectors + (c)) * n_weigh, n_weigh);                             \
        }                                                                                                              \
    } while (0)

static inline __attribute__((always_inline)) void multiply_step(int n_vectors, const integer_step *s, step_pipeline p)
{
    const uint32_t width = (uint32_t)n_vectors * VF_LANES;
    const uint32_t *words = s->panel->words;
    const int n_weigh = TILE_ROWS / (2 * n_vectors);
    tile_load(4, s->keys, DSRI_INDEX_DIM);
    tile_load(5, s->keys + TILE_ROW_BYTES, DSRI_INDEX_DIM);
    PRODUCT(0, 0, 6);
    PRODUCT(1, 0, 7);
    load_key_group(p.loading);
    if (n_vectors == 4) {
        PRODUCT(2, 0, 6);
        PRODUCT(3, 0, 7);
    }
    PRODUCT(0, 1, 6);
    PRODUCT(1, 1, 7);
    if (n_vectors == 4) {
        PRODUCT(2, 1, 6);
        PRODUCT(3, 1, 7);
    }
}

#undef PRODUCT

static inline __attribute__((always_inline)) void store_dots(int n_vectors, const integer_step *s)
{
    STORE_DOTS(0, n_vectors, s);
    STORE_DOTS(1, n_vectors, s);
    if (n_vectors == 4) {
        STORE_DOTS(2, n_vectors, s);
        STORE_DOTS(3, n_vectors, s);
    }
}

/* n_steps of a block. */
static inline __attribute__((always_inline)) void run_steps(int n_vectors, const integer_step *steps, uint32_t n_steps,
                                                            key_loading *next)
{
    step_pipeline p = {NULL, NULL, next};
    for (uint32_t i = 0; i < n_steps; i++) {
        multiply_step(n_vectors, steps + i, p);
        p.in_dots = p.in_tiles;
        p.in_tiles = steps + i;
    }
    store_dots(n_vectors, p.in_tiles);
    if (p.in_dots) {
        weigh_keys(n_vectors, p.in_dots, 0, TILE_ROWS);
    }
    weigh_keys(n_vectors, p.in_tiles, 0, TILE_ROWS);
}

/* A step whose keys or whose query have several layers, by itself: products by level, from the highest one down. */
static inline __attribute__((always_inline)) void run_wide_step(int n_vectors, const integer_step *s, int n_layers,
                                                                int32_t *layer_dots, key_loading *next)
{
    const int n_dots = TILE_ROWS * n_vectors * VF_LANES;
    memset(s->dots, 0, (size_t)n_dots * sizeof *s->dots);
    int shift = 0; /* that is due to what is there */
    for (int level = level_of(n_layers - 1, s->panel->n_layers - 1); level >= 0; level--, shift += LAYER_BINADES) {
        for (int query_layer = 0; query_layer < s->panel->n_layers; query_layer++) {
            const int key_layer = level - level_of(0, query_layer);
            if (key_layer < 0 || key_layer >= n_layers) {
                continue;
            }
            integer_panel panel = *s->panel;
            panel.words += (size_t)((uint32_t)query_layer * panel.n_heads) * QUERY_WORDS;
            const integer_step part = {&panel, s->keys + key_layer * LAYER_BYTES, layer_dots, NULL};
            multiply_step(n_vectors, &part, (step_pipeline){NULL, NULL, next});
            store_dots(n_vectors, &part);
            for (int i = 0; i < n_dots; i += VF_LANES) {
                const vi above = _mm512_slli_epi32(vi_load((const void *)(s->dots + i)), (unsigned)shift);
                vi_store((void *)(s->dots + i), vi_add(above, vi_load((const void *)(layer_dots + i))));
            }
            shift = 0;
        }
    }
    weigh_keys(n_vectors, s, 0, TILE_ROWS);
}

static void run_wide_steps(uint32_t n_vectors, const integer_step *steps, uint32_t n_steps, integer_scratch *s,
                           int n_layers, key_loading *next)
{
    for (uint32_t i = 0; i < n_steps; i++) {
        if (n_vectors == 4) {
            run_wide_step(4, steps + i, n_layers, s->dots[(i + 1) % 2], next);
        } else {
            run_wide_step(2, steps + i, n_layers, s->dots[(i + 1) % 2], next);
        }
    }
}

static void add_integer_heads(const integer_panel *panels, uint32_t n_panels, uint32_t n_heads, integer_scratch *s,
                              const integer_block *block, key_loading *next)
{
    integer_step steps[MAX_PANELS * INTEGER_KEYS / TILE_ROWS];
    const uint32_t n_groups = (block->n + TILE_ROWS - 1) / TILE_ROWS;
    for (uint32_t i = 0; i < n_panels * n_groups; i++) {
        const uint32_t first = i % n_groups * TILE_ROWS;
        steps[i] = (integer_step){panels + i / n_groups, block->keys[0] + first * DSRI_INDEX_DIM, s->dots[i % 2],
                                  s->sums[i / n_groups] + first * VF_LANES};
    }
    if (layers_of(block) > 1 || panels->n_layers > 1) {
        run_wide_steps(panel_vectors(n_heads), steps, n_panels * n_groups, s, layers_of(block), next);
    } else if (panel_vectors(n_heads) == 4) {
        run_steps(4, steps, n_panels * n_groups, next);
    } else {
        run_steps(2, steps, n_panels * n_groups, next);
    }
}

#endif
