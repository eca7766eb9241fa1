/* Row-exact products of a segment on AMX, for projection_row.c: 32 products a step. A segment of BF16 weights is a sum
 * of its own; of FP8 weights each block is one, of the values without their scales, which BF16 holds exactly. */
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
static inline uint32_t pack_words(int is_fp8, const uint16_t *inputs, uint32_t n, uint32_t *x, uint32_t x_class)
{
    const uint32_t n_padded = (n + STEP_WORDS - 1) / STEP_WORDS * STEP_WORDS;
    (void)is_fp8;
    memcpy(x, inputs, n * sizeof *x);
    memset(x + n, 0, (n_padded - n) * sizeof *x);
    return x_class;
}

/* Words of a step that is yet to come, if weights are read from memory. */
static inline void prefetch_step(const uint32_t *words)
{
    for (uint32_t i = 0; i < STEP_WORDS; i++) {
        prefetch_panel(words + i * PANEL);
    }
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

/* sums [32][PANEL]: one or two tiles of rows times n_words words of a panel, which may lie in memory. */
static inline __attribute__((always_inline)) void multiply_tiles(int n_tiles, int in_memory, const uint32_t *x,
                                                                 const uint32_t *words, uint32_t n_words, float *sums)
{
    const size_t row_bytes = PANEL * sizeof *sums;
    const uint32_t n_whole = n_words / STEP_WORDS * STEP_WORDS;
    tile_zero(0);
    tile_zero(1);
    if (n_tiles == 2) {
        tile_zero(2);
        tile_zero(3);
    }
    for (uint32_t i = 0; i < n_whole; i += STEP_WORDS) {
        if (in_memory) {
            prefetch_step(words + i * PANEL);
        }
        step_tiles(n_tiles, x + i, words + i * PANEL);
    }
    if (n_whole < n_words) {
        uint32_t last[STEP_WORDS * PANEL] __attribute__((aligned(64))) = {0};
        memcpy(last, words + n_whole * PANEL, (n_words - n_whole) * PANEL * sizeof *last);
        step_tiles(n_tiles, x + n_whole, last);
    }
    tile_store(0, sums, row_bytes);
    tile_store(1, sums + VF_LANES, row_bytes);
    if (n_tiles == 2) {
        tile_store(2, sums + TILE_ROWS * PANEL, row_bytes);
        tile_store(3, sums + TILE_ROWS * PANEL + VF_LANES, row_bytes);
    }
}

/* totals [n_rows][PANEL] += scales [PANEL] times the sums of n_words words of a panel. */
static inline __attribute__((always_inline)) void add_products(int in_memory, const uint32_t *x, uint32_t n_rows,
                                                               const uint32_t *words, uint32_t n_words,
                                                               const vf scales[2], float *totals)
{
    float sums[2 * TILE_ROWS * PANEL] __attribute__((aligned(64)));
    for (uint32_t first = 0; first < n_rows; first += 2 * TILE_ROWS, x += 2 * TILE_ROWS * X_STRIDE) {
        const uint32_t left = n_rows - first, n = left < 2 * TILE_ROWS ? left : 2 * TILE_ROWS;
        if (n > TILE_ROWS) {
            multiply_tiles(2, in_memory, x, words, n_words, sums);
        } else {
            multiply_tiles(1, in_memory, x, words, n_words, sums);
        }
        for (uint32_t i = 0; i < n * PANEL; i += VF_LANES, totals += VF_LANES) {
            vf_store(totals, vf_fma(vf_load(sums + i), scales[i / VF_LANES % 2], vf_load(totals)));
        }
    }
}

static void add_bf16_segment(const segment *s)
{
    const vf ones[2] = {vf_set1(1.0f), vf_set1(1.0f)};
    add_products(1, s->x, s->n_rows, s->words, s->n_words, ones, s->totals);
}

/* pairs [2 * n][PANEL]: the values of n words of codes as BF16. */
static void decode_values(const uint32_t *codes, uint32_t n, uint32_t *pairs)
{
    for (uint32_t i = 0; i < n * PANEL; i += PANEL) {
        prefetch_panel(codes + i);
        for (uint32_t o = 0; o < PANEL; o += VF_LANES) {
            const vi c = vi_load(codes + i + o);
            const vi halves[2] = {vi_sar_halves(vi_shl(c, 8), 4), vi_sar_halves(c, 4)};
            vi values[4];
            VEC_UNROLL
            for (int place = 0; place < 4; place++) {
                values[place] = vf_bits(vf_mul(e4m3_small(halves[place % 2], place >= 2), vf_set1(0x1p120f)));
            }
            vi_store(pairs + 2 * i + o, vi_or(vi_shr(values[0], 16), values[1]));
            vi_store(pairs + 2 * i + PANEL + o, vi_or(vi_shr(values[2], 16), values[3]));
        }
    }
}

static void add_fp8_segment(const segment *s)
{
    uint32_t pairs[BLOCK_X_WORDS * PANEL] __attribute__((aligned(64)));
    const uint32_t *words = s->words;
    for (uint32_t i = 0; i < s->n_words; i += BLOCK_X_WORDS, words += (1 + BLOCK_CODE_WORDS) * PANEL) {
        const vf scales[2] = {vf_from_bits(vi_load(words)), vf_from_bits(vi_load(words + VF_LANES))};
        decode_values(words + PANEL, block_words(s, i) / 2, pairs);
        add_products(0, s->x + i, s->n_rows, pairs, block_words(s, i), scales, s->totals);
    }
}

#endif
