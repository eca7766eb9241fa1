/* Device-exact products of a segment on AVX512-BF16, for projection_row.c: chains.h. */
#ifndef DSRI_ROW_PROJECTION_CHAINS_H
#define DSRI_ROW_PROJECTION_CHAINS_H

#include "cpu/kernels/row/chains.h"

#define PRODUCTS_EXACTNESS DSR_EXACT_DEVICE

enum { TILE_ROWS = 8 };

/* Least magnitudes. */
enum { X_CLASS_OF_NOTHING = GREATEST_MAGNITUDE };

static inline int products_are_usable(void)
{
    return chains_are_in_order();
}

static inline void begin_products(void)
{
}

static inline void end_products(void)
{
}

static inline uint32_t padded_rows(uint32_t n_rows)
{
    return n_rows;
}

/* n words of inputs, halves exchanged, to x. Returns the least magnitude of them and of x_class. */
static inline uint32_t pack_words(const uint16_t *inputs, uint32_t n, uint32_t *x, uint32_t x_class)
{
    const uint32_t n_whole = n / VF_LANES * VF_LANES;
    vi least = all_magnitudes();
    for (uint32_t i = 0; i < n_whole; i += VF_LANES) {
        const vi pairs = vi_load_pairs(inputs + 2 * i);
        least = least_magnitudes(least, pairs);
        vi_store(x + i, exchange_halves(pairs));
    }
    if (n_whole < n) {
        const vi pairs = _mm512_maskz_loadu_epi32(0x00ff, inputs + 2 * n_whole);
        least = least_magnitudes(least, pairs);
        vi_store(x + n_whole, exchange_halves(pairs));
    }
    const uint32_t magnitude = least_of(least);
    return magnitude < x_class ? magnitude : x_class;
}

/* ---- weights of a panel, in two vectors: pairs with their halves exchanged --------------------------------------- */

/* Word i of a segment's BF16 weights; their magnitudes join *least. */
static inline void load_bf16(const uint32_t *words, vi pairs[2], vi *least)
{
    for (uint32_t v = 0; v < 2; v++) {
        const vi w = vi_load(words + v * VF_LANES);
        *least = least_magnitudes(*least, w);
        pairs[v] = exchange_halves(w);
    }
}

/* Scales of a block times 2^120, which e4m3_small leaves out. */
static inline void load_scales(const uint32_t *words, vf scales[2])
{
    for (uint32_t v = 0; v < 2; v++) {
        scales[v] = vf_mul(vf_from_bits(vi_load(words + v * VF_LANES)), vf_set1(0x1p120f));
    }
}

/* A word of FP8 weights: pairs of the first two inputs, then of the others. Weights must be exact as BF16. */
static inline void load_fp8(const uint32_t *words, const vf scales[2], vi first[2], vi second[2])
{
    for (uint32_t v = 0; v < 2; v++) {
        const vi codes = vi_load(words + v * VF_LANES);
        const vi odd = vi_sar_halves(codes, 4), even = vi_sar_halves(vi_shl(codes, 8), 4);
        vi w[4];
        VEC_UNROLL
        for (int place = 0; place < 4; place++) {
            w[place] = vf_bits(vf_mul(e4m3_small(place % 2 ? odd : even, place >= 2), scales[v]));
        }
        first[v] = vi_or(w[0], vi_shr(w[1], 16));
        second[v] = vi_or(w[2], vi_shr(w[3], 16));
    }
}

/* Whether all weights of a segment are exact as BF16 (four bits of a scale beside four of a code), 2^120 times a scale
 * is finite, and the least weight, 2^-9 times a scale, has at least the exponent. */
static int are_fp8_usable(const segment *s, uint32_t exponent)
{
    const vi lower_bits = vi_set1(0x000fffffu), least = vi_set1((exponent + 9) << 23), end = vi_set1(134u << 23);
    const uint32_t *words = s->words;
    __mmask16 bad = 0;
    for (uint32_t i = 0; i < s->n_words; i += BLOCK_X_WORDS, words += (1 + BLOCK_CODE_WORDS) * PANEL) {
        for (uint32_t v = 0; v < 2; v++) {
            const vi scale = vi_and(vi_load(words + v * VF_LANES), vi_set1(0x7fffffffu));
            const __mmask16 outside = _mm512_cmplt_epu32_mask(scale, least) | _mm512_cmpge_epu32_mask(scale, end) |
                                      _mm512_test_epi32_mask(scale, lower_bits);
            bad |= outside & _mm512_test_epi32_mask(scale, scale);
        }
    }
    return exponent < 256 && bad == 0;
}

/* ---- tiles: `rows` rows, a constant, times a panel ----------------------------------------------------------------
 */

typedef struct tile {
    vf chains[TILE_ROWS][2];
} tile;

static inline __attribute__((always_inline)) void clear_tile(tile *t, uint32_t rows)
{
    VEC_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        t->chains[r][0] = t->chains[r][1] = vf_zero();
    }
}

static inline __attribute__((always_inline)) void step_tile(tile *t, uint32_t rows, const uint32_t *x, const vi w[2])
{
    VEC_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        const vi pair = vi_set1(x[r * X_STRIDE]);
        t->chains[r][0] = dot_step(t->chains[r][0], pair, w[0]);
        t->chains[r][1] = dot_step(t->chains[r][1], pair, w[1]);
    }
}

static inline __attribute__((always_inline)) void finish_tile(const tile *t, uint32_t rows, float *total)
{
    VEC_UNROLL
    for (uint32_t r = 0; r < rows; r++, total += PANEL) {
        vf_store(total, vf_add(vf_load(total), t->chains[r][0]));
        vf_store(total + VF_LANES, vf_add(vf_load(total + VF_LANES), t->chains[r][1]));
    }
}

/* The words of a panel that are read next. Few rows wait for memory, and get lines as early as they can. More rows
 * compute meanwhile: lines then come into the second cache long before, and into the first when they are due. */
static inline __attribute__((always_inline)) void prefetch_weights(uint32_t rows, const uint32_t *words)
{
    if (rows < 6) {
        prefetch_panel(words);
        return;
    }
    for (uint32_t i = 0; i < PANEL; i += LINE_WORDS) {
        __builtin_prefetch(words + i + 2 * PREFETCH_WORDS, 0, 2);
        vec_prefetch(words + i + PREFETCH_WORDS / 8);
    }
}

/* Returns 0, having done nothing, if a weight is too small. */
static inline __attribute__((always_inline)) int add_bf16_tile(uint32_t rows, const segment *s, uint32_t first_row)
{
    const uint32_t *words = s->words, *x = s->x + first_row * X_STRIDE;
    vi least = all_magnitudes();
    tile t;
    clear_tile(&t, rows);
    for (uint32_t i = 0; i < s->n_words; i++, words += PANEL) {
        vi w[2];
        prefetch_weights(rows, words);
        load_bf16(words, w, &least);
        step_tile(&t, rows, x + i, w);
    }
    if (!have_exponent(least, least_exponent(s->x_class))) {
        return 0;
    }
    finish_tile(&t, rows, s->totals + first_row * PANEL);
    return 1;
}

static inline __attribute__((always_inline)) int add_fp8_tile(uint32_t rows, const segment *s, uint32_t first_row)
{
    const uint32_t *words = s->words, *x = s->x + first_row * X_STRIDE;
    tile t;
    clear_tile(&t, rows);
    for (uint32_t i = 0; i < s->n_words; i += BLOCK_X_WORDS) {
        vf scales[2];
        load_scales(words, scales);
        words += PANEL;
        for (uint32_t end = i + block_words(s, i), k = i; k < end; k += 2, words += PANEL) {
            vi first[2], second[2];
            prefetch_panel(words);
            load_fp8(words, scales, first, second);
            step_tile(&t, rows, x + k, first);
            step_tile(&t, rows, x + k + 1, second);
        }
    }
    finish_tile(&t, rows, s->totals + first_row * PANEL);
    return 1;
}

/* ---- the same chains by F32 operations, for one row ---------------------------------------------------------------
 */

static void add_f32_row(const segment *s, uint32_t row)
{
    const uint32_t *words = s->words, *x = s->x + row * X_STRIDE;
    float *total = s->totals + row * PANEL;
    vf chains[2] = {vf_zero(), vf_zero()};
    for (uint32_t i = 0; i < s->n_words; i++, words += PANEL) {
        vf x_even, x_odd;
        vf_from_exchanged(vi_set1(x[i]), &x_even, &x_odd);
        VEC_UNROLL
        for (uint32_t v = 0; v < 2; v++) {
            vf even, odd;
            vf_from_pairs(vi_load(words + v * VF_LANES), &even, &odd);
            chains[v] = vf_fma(x_odd, odd, vf_fma(x_even, even, chains[v]));
        }
    }
    for (uint32_t v = 0; v < 2; v++) {
        vf_store(total + v * VF_LANES, vf_add(vf_load(total + v * VF_LANES), chains[v]));
    }
}

static void add_f32_row_fp8(const segment *s, uint32_t row)
{
    float *total = s->totals + row * PANEL;
    for (uint32_t v = 0; v < 2; v++) {
        const uint32_t *words = s->words + v * VF_LANES, *x = s->x + row * X_STRIDE;
        vf chain = vf_zero(), scale = vf_zero();
        for (uint32_t i = 0; i < s->n_words; i += 2, words += PANEL) {
            if (i % BLOCK_X_WORDS == 0) {
                scale = vf_from_bits(vi_load(words));
                words += PANEL;
            }
            const vi codes = vi_load(words);
            const vi halves[2] = {vi_sar_halves(vi_shl(codes, 8), 4), vi_sar_halves(codes, 4)};
            for (uint32_t place = 0; place < 4; place++) {
                const uint32_t pair = x[i + place / 2];
                const vf activation = vf_from_bits(vi_set1(place % 2 ? pair << 16 : pair & 0xffff0000u));
                const vf value = vf_mul(e4m3_small(halves[place % 2], place >= 2), vf_set1(0x1p120f));
                chain = vf_fma(activation, vf_mul(value, scale), chain);
            }
        }
        vf_store(total + v * VF_LANES, vf_add(vf_load(total + v * VF_LANES), chain));
    }
}

/* ---- segments -----------------------------------------------------------------------------------------------------
 */

#define ADD_ROWS(add_tile, s, r)                                                                                       \
    ((s)->n_rows - (r) == 1   ? add_tile(1, s, r)                                                                      \
     : (s)->n_rows - (r) == 2 ? add_tile(2, s, r)                                                                      \
     : (s)->n_rows - (r) == 3 ? add_tile(3, s, r)                                                                      \
     : (s)->n_rows - (r) == 4 ? add_tile(4, s, r)                                                                      \
     : (s)->n_rows - (r) == 5 ? add_tile(5, s, r)                                                                      \
     : (s)->n_rows - (r) == 6 ? add_tile(6, s, r)                                                                      \
     : (s)->n_rows - (r) == 7 ? add_tile(7, s, r)                                                                      \
                              : add_tile(TILE_ROWS, s, r))

static void add_bf16_segment(const segment *s)
{
    for (uint32_t r = 0; r < s->n_rows; r += TILE_ROWS) {
        if (ADD_ROWS(add_bf16_tile, s, r)) {
            continue;
        }
        for (uint32_t i = r; i < s->n_rows && i < r + TILE_ROWS; i++) {
            add_f32_row(s, i);
        }
    }
}

static void add_fp8_segment(const segment *s)
{
    const int is_usable = are_fp8_usable(s, least_exponent(s->x_class));
    for (uint32_t r = 0; is_usable && r < s->n_rows; r += TILE_ROWS) {
        (void)ADD_ROWS(add_fp8_tile, s, r);
    }
    for (uint32_t r = 0; !is_usable && r < s->n_rows; r++) {
        add_f32_row_fp8(s, r);
    }
}

#endif
