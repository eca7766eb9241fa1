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

/* The least magnitude that weights may have beside inputs of that class. Biased exponents of products that are as
 * large as they must be add up to 127 + 127 + 7 + 7 - 126; no operand may be subnormal. */
static inline uint32_t least_weight(uint32_t x_class)
{
    const uint32_t x_exponent = (x_class + 1) / MAGNITUDES_PER_EXPONENT, sum = 142;
    const uint32_t exponent = x_exponent + 1 < sum ? sum - x_exponent : 1;
    return x_exponent == 0 ? X_CLASS_OF_NOTHING : exponent * MAGNITUDES_PER_EXPONENT - 1;
}

/* `rows` rows, a constant; returns 0, having done nothing, if a weight is too small. */
static inline __attribute__((always_inline)) int add_tile(uint32_t rows, const segment *s, uint32_t first_row)
{
    const uint32_t *words = s->words, *x = s->x + first_row * X_STRIDE;
    float *total = s->totals + first_row * PANEL;
    vf chains[TILE_ROWS][2];
    vi least = _mm512_set1_epi16(-1);
    VEC_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        chains[r][0] = chains[r][1] = vf_zero();
    }
    for (uint32_t i = 0; i < s->n_words; i++, words += PANEL, x++) {
        const vi first = vi_load(words), second = vi_load(words + VF_LANES);
        prefetch_panel(words);
        least = least_magnitudes(least_magnitudes(least, first), second);
        const vi w[2] = {exchange_halves(first), exchange_halves(second)};
        VEC_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            const vi pair = vi_set1(x[r * X_STRIDE]);
            chains[r][0] = dot_step(chains[r][0], pair, w[0]);
            chains[r][1] = dot_step(chains[r][1], pair, w[1]);
        }
    }
    if (_mm512_cmplt_epu16_mask(least, _mm512_set1_epi16((short)least_weight(s->x_class))) != 0) {
        return 0;
    }
    VEC_UNROLL
    for (uint32_t r = 0; r < rows; r++, total += PANEL) {
        vf_store(total, vf_add(vf_load(total), chains[r][0]));
        vf_store(total + VF_LANES, vf_add(vf_load(total + VF_LANES), chains[r][1]));
    }
    return 1;
}

/* The same chains by F32 operations, for one row. */
static __attribute__((noinline)) void add_f32_row(const segment *s, uint32_t row)
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

static inline int add_rows(const segment *s, uint32_t first_row)
{
    switch (s->n_rows - first_row) {
    case 1:
        return add_tile(1, s, first_row);
    case 2:
        return add_tile(2, s, first_row);
    case 3:
        return add_tile(3, s, first_row);
    case 4:
        return add_tile(4, s, first_row);
    case 5:
        return add_tile(5, s, first_row);
    case 6:
        return add_tile(6, s, first_row);
    case 7:
        return add_tile(7, s, first_row);
    default:
        return add_tile(TILE_ROWS, s, first_row);
    }
}

static void add_segment(const segment *s)
{
    for (uint32_t r = 0; r < s->n_rows; r += TILE_ROWS) {
        if (add_rows(s, r)) {
            continue;
        }
        for (uint32_t i = r; i < s->n_rows && i < r + TILE_ROWS; i++) {
            add_f32_row(s, i);
        }
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
