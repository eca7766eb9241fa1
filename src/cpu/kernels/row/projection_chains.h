/* Device-exact products of a segment on AVX512-BF16, for projection_row.c: chains.h.
 *
 * For FP8 weights the pairs of inputs have their halves exchanged, as those of the decoded weights. BF16 weights lie in
 * memory with the even input below; to exchange them would cost a rotation each. Instead a step takes the upper half of
 * one word and the lower half of the next, which is the order of the chain as well: word i of x is input 2i - 1 above
 * input 2i, zeros before the first input and after the last. */
#ifndef DSRI_ROW_PROJECTION_CHAINS_H
#define DSRI_ROW_PROJECTION_CHAINS_H

#include "cpu/kernels/row/chains.h"

#define PRODUCTS_EXACTNESS DSR_EXACT_DEVICE

/* From TWO_STEP_ROWS rows on, prefetches in two steps are faster. */
enum { TILE_ROWS = 8, TWO_STEP_ROWS = 4 };

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

/* Upper halves of `first`, lower halves of `second`. */
static inline vi join_halves(vi first, vi second)
{
    return _mm512_mask_blend_epi16(0x55555555u, first, second);
}

/* The words that go with BF16 weights, from 16 pairs of inputs and the 16 before them. */
static inline vi staggered_pairs(vi before, vi pairs)
{
    return join_halves(_mm512_alignr_epi32(pairs, before, VF_LANES - 1), pairs);
}

/* n words of inputs to x, as they go with FP8 or BF16 weights (one word more). Returns the least magnitude of them and
 * of x_class. */
static inline uint32_t pack_words(int is_fp8, const uint16_t *inputs, uint32_t n, uint32_t *x, uint32_t x_class)
{
    vi least = all_magnitudes(), before = vi_set1(0);
    for (uint32_t i = 0; i <= n; i += VF_LANES) {
        const vi pairs = n - i >= VF_LANES ? vi_load_pairs(inputs + 2 * i)
                                           : _mm512_maskz_loadu_epi32((__mmask16)((1u << (n - i)) - 1), inputs + 2 * i);
        least = least_magnitudes(least, pairs);
        vi_store(x + i, is_fp8 ? exchange_halves(pairs) : staggered_pairs(before, pairs));
        before = pairs;
    }
    const uint32_t magnitude = least_of(least);
    return magnitude < x_class ? magnitude : x_class;
}

/* ---- weights of a panel, in two vectors -------------------------------------------------------------------------- */

/* Joins the words before with the next ones, which take their place and whose magnitudes join *least. */
static inline void next_bf16(const uint32_t *words, vi before[2], vi joined[2], vi *least)
{
    for (uint32_t v = 0; v < 2; v++) {
        const vi w = vi_load(words + v * VF_LANES);
        *least = least_magnitudes(*least, w);
        joined[v] = join_halves(before[v], w);
        before[v] = w;
    }
}

/* Scales of a block times 2^120, which e4m3_small leaves out. */
static inline void load_scales(const uint32_t *words, vf scales[2])
{
    for (uint32_t v = 0; v < 2; v++) {
        scales[v] = vf_mul(vf_from_bits(vi_load(words + v * VF_LANES)), vf_set1(0x1p120f));
    }
}

/* A word of FP8 weights: pairs of the first two inputs, then of the others, halves exchanged. Weights must be exact as
 * BF16. */
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

/* Returns 0, having done nothing, if a weight is too small. */
static inline __attribute__((always_inline)) int add_bf16_tile(uint32_t rows, const segment *s, uint32_t first_row)
{
    const uint32_t *words = s->words, *x = s->x + first_row * X_STRIDE;
    vi least = all_magnitudes(), before[2] = {vi_set1(0), vi_set1(0)}, w[2];
    tile t;
    clear_tile(&t, rows);
    for (uint32_t i = 0; i < s->n_words; i++, words += PANEL) {
        if (rows < TWO_STEP_ROWS) {
            prefetch_panel(words);
        } else {
            prefetch_panel_in_two_steps(words);
        }
        next_bf16(words, before, w, &least);
        step_tile(&t, rows, x + i, w);
    }
    w[0] = join_halves(before[0], vi_set1(0));
    w[1] = join_halves(before[1], vi_set1(0));
    step_tile(&t, rows, x + s->n_words, w);
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
        const vf x_even = vf_from_bits(vi_set1(x[i] << 16)), x_odd = vf_from_bits(vi_set1(x[i + 1] & 0xffff0000u));
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
