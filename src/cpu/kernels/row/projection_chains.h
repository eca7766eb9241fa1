/* Device-exact products of a segment on AVX512-BF16, for projection_row.c.
 *
 * A step of the unit is two fused multiply-adds of a lane, each rounded to nearest even: upper halves first, then lower
 * ones. With the halves of both operands exchanged that is the chain in index order. The unit takes subnormal numbers
 * for zero, so it may work only where none can occur: a sum of products x * w is a multiple of the product of their
 * units in the last place; if that is at least 2^-126 for the least x and the least w that are not zero, every
 * rounded sum is such a multiple, too. Other segments are done by F32 operations. */
#ifndef DSRI_ROW_PROJECTION_CHAINS_H
#define DSRI_ROW_PROJECTION_CHAINS_H

#include "cpu/kernels/row/dots_avx512bf16.h"

#define PRODUCTS_EXACTNESS DSR_EXACT_DEVICE

enum { TILE_ROWS = 8 };

/* A BF16 is taken by its magnitude: the bits without the sign, doubled, minus one. Zero is the greatest. */
enum { X_CLASS_OF_NOTHING = 0xffff, MAGNITUDES_PER_EXPONENT = 256 };

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

static inline vi least_magnitudes(vi least, vi pairs)
{
    return _mm512_min_epu16(least, _mm512_sub_epi16(_mm512_add_epi16(pairs, pairs), _mm512_set1_epi16(1)));
}

static inline vi exchange_halves(vi pairs)
{
    return _mm512_rol_epi32(pairs, 16);
}

/* n words of inputs, halves exchanged, to x. Returns the least magnitude of them and of x_class. */
static inline uint32_t pack_words(const uint16_t *inputs, uint32_t n, uint32_t *x, uint32_t x_class)
{
    vi least = _mm512_set1_epi16(-1);
    for (uint32_t i = 0; i < n; i += VF_LANES) {
        const __mmask16 there = n - i < VF_LANES ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xffff;
        const vi pairs = _mm512_maskz_loadu_epi32(there, inputs + 2 * i);
        least = least_magnitudes(least, pairs);
        vi_store(x + i, exchange_halves(pairs));
    }
    uint16_t magnitudes[2 * VF_LANES];
    memcpy(magnitudes, &least, sizeof magnitudes);
    for (uint32_t i = 0; i < 2 * VF_LANES; i++) {
        x_class = magnitudes[i] < x_class ? magnitudes[i] : x_class;
    }
    return x_class;
}

/* The least biased exponent that weights may have beside inputs of that class: neither operand is subnormal, and the
 * exponents of two units in the last place, 7 below those of the numbers, add up to -126. 256 and more: none may. */
static inline uint32_t least_exponent(uint32_t x_class)
{
    enum { SUM = 127 + 127 + 7 + 7 - 126 };
    const uint32_t x_exponent = (x_class + 1) / MAGNITUDES_PER_EXPONENT;
    return x_exponent == 0 ? 256 : x_exponent < SUM ? SUM - x_exponent : 1;
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

static inline int are_bf16_usable(vi least, uint32_t exponent)
{
    const uint32_t magnitude = exponent < 256 ? exponent * MAGNITUDES_PER_EXPONENT - 1 : 0xffff;
    return _mm512_cmplt_epu16_mask(least, _mm512_set1_epi16((short)magnitude)) == 0;
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

/* Returns 0, having done nothing, if a weight is too small. */
static inline __attribute__((always_inline)) int add_bf16_tile(uint32_t rows, const segment *s, uint32_t first_row)
{
    const uint32_t *words = s->words, *x = s->x + first_row * X_STRIDE;
    vi least = _mm512_set1_epi16(-1);
    tile t;
    clear_tile(&t, rows);
    for (uint32_t i = 0; i < s->n_words; i++, words += PANEL) {
        vi w[2];
        prefetch_panel(words);
        load_bf16(words, w, &least);
        step_tile(&t, rows, x + i, w);
    }
    if (!are_bf16_usable(least, least_exponent(s->x_class))) {
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
        const vf x_even = vf_from_bits(vi_set1(x[i] & 0xffff0000u)), x_odd = vf_from_bits(vi_set1(x[i] << 16));
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

/* Whether a step of the unit is what is said above, as its manuals have it: on models and emulators that nobody has
 * tried, too. Lanes: sums that round twice, to even; the upper halves first; a product beyond F32 that the sum brings
 * back; exact zeros. */
static int products_are_usable(void)
{
    static const struct {
        uint32_t sum, x, w, result; /* halves of x and w: upper, lower */
    } cases[] = {
        {0x3f800000, 0x3f803f80, 0x33803380, 0x3f800000}, /* 1 + 2^-24 + 2^-24 */
        {0x4b800000, 0x3f803f80, 0x3f80cb80, 0x00000000}, /* 2^24 + 1 - 2^24 */
        {0x4b800000, 0x3f803f80, 0xcb803f80, 0x3f800000}, /* 2^24 - 2^24 + 1 */
        {0xff7fffff, 0x5f803f80, 0x5f800000, 0x73800000}, /* 2^64 * 2^64 less the greatest number */
        {0xff7fffff, 0x3f805f80, 0x00005f80, 0x73800000},
        {0x00000000, 0x3f803f80, 0x80000000, 0x00000000}, /* 0 + -0 + 0 */
        {0x3f800000, 0xbf803f80, 0x3f800000, 0x00000000}, /* 1 - 1 + 0 */
    };
    enum { N_CASES = sizeof cases / sizeof cases[0] };
    uint32_t sums[VF_LANES] = {0}, x[VF_LANES] = {0}, w[VF_LANES] = {0}, results[VF_LANES] = {0};
    for (uint32_t i = 0; i < N_CASES; i++) {
        sums[i] = cases[i].sum;
        x[i] = cases[i].x;
        w[i] = cases[i].w;
        results[i] = cases[i].result;
    }
    const vi got = vf_bits(dot_step(vf_from_bits(vi_load(sums)), vi_load(x), vi_load(w)));
    return memcmp(&got, results, sizeof got) == 0;
}

#endif
