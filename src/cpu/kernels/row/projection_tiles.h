/* Row-exact products of a segment on AMX, for projection_row.c: a segment is a sum of its own, 32 products a step. */
#ifndef DSRI_ROW_PROJECTION_TILES_H
#define DSRI_ROW_PROJECTION_TILES_H

#include "cpu/kernels/row/tiles.h"

#define PRODUCTS_EXACTNESS DSR_EXACT_ROW

enum { X_CLASS_OF_NOTHING = 0, STEP_WORDS = TILE_ROW_BYTES / 4 };

static inline void begin_products(void)
{
    tiles_open();
}

static inline void end_products(void)
{
    tiles_close();
}

static inline int products_are_usable(void)
{
    return 1;
}

static inline uint32_t padded_rows(uint32_t n_rows)
{
    return (n_rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
}

/* n words of inputs to x, zeros up to a whole step. */
static inline uint32_t pack_words(const uint16_t *inputs, uint32_t n, uint32_t *x, uint32_t x_class)
{
    const uint32_t n_padded = (n + STEP_WORDS - 1) / STEP_WORDS * STEP_WORDS;
    memcpy(x, inputs, n * sizeof *x);
    memset(x + n, 0, (n_padded - n) * sizeof *x);
    return x_class;
}

/* One step of one or two tiles of rows, with both vectors of outputs. */
static inline __attribute__((always_inline)) void step_tiles(int n_tiles, const uint32_t *x, const uint32_t *words)
{
    const size_t x_bytes = X_STRIDE * sizeof *x, panel_bytes = PANEL * sizeof *words;
    tile_load(4, x, x_bytes);
    tile_load(6, words, panel_bytes);
    tile_dots(0, 4, 6);
    tile_load(7, words + VF_LANES, panel_bytes);
    tile_dots(1, 4, 7);
    if (n_tiles == 2) {
        tile_load(5, x + TILE_ROWS * X_STRIDE, x_bytes);
        tile_dots(2, 5, 6);
        tile_dots(3, 5, 7);
    }
}

static inline __attribute__((always_inline)) void multiply_tiles(int n_tiles, const segment *s, uint32_t first_row,
                                                                 float *sums)
{
    const size_t row_bytes = PANEL * sizeof *sums;
    const uint32_t *x = s->x + first_row * X_STRIDE, *words = s->words;
    const uint32_t n_whole = s->n_words / STEP_WORDS * STEP_WORDS;
    tile_zero(0);
    tile_zero(1);
    if (n_tiles == 2) {
        tile_zero(2);
        tile_zero(3);
    }
    for (uint32_t i = 0; i < n_whole; i += STEP_WORDS) {
        for (uint32_t j = 0; j < STEP_WORDS; j++) {
            prefetch_panel(words + (i + j) * PANEL);
        }
        step_tiles(n_tiles, x + i, words + i * PANEL);
    }
    if (n_whole < s->n_words) {
        uint32_t last[STEP_WORDS * PANEL] __attribute__((aligned(64))) = {0};
        memcpy(last, words + n_whole * PANEL, (s->n_words - n_whole) * PANEL * sizeof *last);
        step_tiles(n_tiles, x + n_whole, last);
    }
    tile_store(0, sums, row_bytes);
    tile_store(1, sums + VF_LANES, row_bytes);
    if (n_tiles == 2) {
        tile_store(2, sums + TILE_ROWS * PANEL, row_bytes);
        tile_store(3, sums + TILE_ROWS * PANEL + VF_LANES, row_bytes);
    }
}

static void add_segment(const segment *s)
{
    float sums[2 * TILE_ROWS * PANEL] __attribute__((aligned(64)));
    for (uint32_t first = 0; first < s->n_rows; first += 2 * TILE_ROWS) {
        const uint32_t left = s->n_rows - first, n = left < 2 * TILE_ROWS ? left : 2 * TILE_ROWS;
        float *totals = s->totals + first * PANEL;
        if (n > TILE_ROWS) {
            multiply_tiles(2, s, first, sums);
        } else {
            multiply_tiles(1, s, first, sums);
        }
        for (uint32_t i = 0; i < n * PANEL; i += VF_LANES) {
            vf_store(totals + i, vf_add(vf_load(totals + i), vf_load(sums + i)));
        }
    }
}

#endif
