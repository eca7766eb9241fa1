/* Device-exact chains of BF16 products on AVX512-BF16.
 *
 * A step of the unit is two fused multiply-adds of a lane, each rounded to nearest even: upper halves first, then lower
 * ones. With the halves of both operands exchanged that is the chain in index order. The unit takes subnormal numbers
 * for zero, so it may work only where none can occur: a sum of products x * y is a multiple of the product of their
 * units in the last place; if that is at least 2^-126 for the least x and the least y that are not zero, every
 * rounded sum is such a multiple, too. What does not pass is done by F32 operations. */
#ifndef DSRI_ROW_CHAINS_H
#define DSRI_ROW_CHAINS_H

#include "cpu/kernels/row/dots_avx512bf16.h"

/* A BF16 is taken by its magnitude: the bits without the sign, doubled, minus one. Zero is the greatest. */
enum { GREATEST_MAGNITUDE = 0xffff, MAGNITUDES_PER_EXPONENT = 256 };

static inline vi all_magnitudes(void)
{
    return _mm512_set1_epi16((short)GREATEST_MAGNITUDE);
}

static inline vi least_magnitudes(vi least, vi pairs)
{
    return _mm512_min_epu16(least, _mm512_sub_epi16(_mm512_add_epi16(pairs, pairs), _mm512_set1_epi16(1)));
}

static inline vi exchange_halves(vi pairs)
{
    return _mm512_rol_epi32(pairs, 16);
}

/* The least of the lanes of least_magnitudes. */
static inline uint32_t least_of(vi magnitudes)
{
    uint16_t all[2 * VF_LANES];
    uint32_t least = GREATEST_MAGNITUDE;
    memcpy(all, &magnitudes, sizeof all);
    for (uint32_t i = 0; i < 2 * VF_LANES; i++) {
        least = all[i] < least ? all[i] : least;
    }
    return least;
}

/* The least biased exponent that numbers may have beside others whose least magnitude is given: none is subnormal, and
 * the exponents of two units in the last place, 7 below those of the numbers, add up to -126. 256: none may. */
static inline uint32_t least_exponent(uint32_t magnitude)
{
    enum { SUM = 127 + 127 + 7 + 7 - 126 };
    const uint32_t exponent = (magnitude + 1) / MAGNITUDES_PER_EXPONENT;
    return exponent == 0 ? 256 : exponent < SUM ? SUM - exponent : 1;
}

/* Whether all numbers have at least the exponent, or are zero. */
static inline int have_exponent(vi magnitudes, uint32_t exponent)
{
    const uint32_t least = exponent < 256 ? exponent * MAGNITUDES_PER_EXPONENT - 1 : GREATEST_MAGNITUDE;
    return _mm512_cmplt_epu16_mask(magnitudes, _mm512_set1_epi16((short)least)) == 0;
}

/* A pair with its halves exchanged, as F32. */
static inline void vf_from_exchanged(vi pairs, vf *even, vf *odd)
{
    vf_from_pairs(pairs, odd, even);
}

/* Whether a step of the unit is what is said above, as its manuals have it: on models and emulators that nobody has
 * tried, too. Lanes: sums that round twice, to even; the upper halves first; a product beyond F32 that the sum brings
 * back; exact zeros. */
static int chains_are_in_order(void)
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
