/* Operands of BF16 dot products: words of two BF16, the even-numbered one of the pair below. */
#ifndef DSRI_ROW_PAIRS_H
#define DSRI_ROW_PAIRS_H

#include "cpu/vec/vec.h"

/* n_features of 16 heads, which are dim apart in q, to packed [n_features / 2] rows of `width` words: a word is a pair
 * of features of a head. */
static inline void pack_head_pairs(const uint16_t *q, uint32_t dim, uint32_t n_features, uint32_t width,
                                   uint32_t *packed)
{
    for (uint32_t f = 0; f < n_features; f += 2 * VF_LANES) {
        vi pairs[VF_LANES];
        VEC_UNROLL
        for (uint32_t h = 0; h < VF_LANES; h++) {
            pairs[h] = vi_load_pairs(q + h * dim + f);
        }
        vi_transpose(pairs);
        VEC_UNROLL
        for (uint32_t i = 0; i < VF_LANES; i++, packed += width) {
            vi_store(packed, pairs[i]);
        }
    }
}

/* 32 features of two rows: 32 words, a word is a feature of both. */
static inline void interleave_rows(vi first, vi second, uint32_t *to)
{
    /* Word i of the result: half i of the first operand, half i of the second. */
    static const uint32_t halves[2 * VF_LANES] = {
        0x00200000, 0x00210001, 0x00220002, 0x00230003, 0x00240004, 0x00250005, 0x00260006, 0x00270007,
        0x00280008, 0x00290009, 0x002a000a, 0x002b000b, 0x002c000c, 0x002d000d, 0x002e000e, 0x002f000f,
        0x00300010, 0x00310011, 0x00320012, 0x00330013, 0x00340014, 0x00350015, 0x00360016, 0x00370017,
        0x00380018, 0x00390019, 0x003a001a, 0x003b001b, 0x003c001c, 0x003d001d, 0x003e001e, 0x003f001f};
    vi_store(to, _mm512_permutex2var_epi16(first, vi_load(halves), second));
    vi_store(to + VF_LANES, _mm512_permutex2var_epi16(first, vi_load(halves + VF_LANES), second));
}

/* x, finite, rounded to BF16 (ties to even), in the upper half. */
static inline vi round_to_upper(vf x)
{
    const vi b = vf_bits(x);
    const vi tie = vi_and(vi_shr(b, 16), vi_set1(1));
    return vi_and(vi_add(b, vi_add(tie, vi_set1(0x7fff))), vi_set1(0xffff0000u));
}

/* 32 finite values rounded to BF16, in order. */
static inline void store_rounded(uint16_t *to, vf first, vf second)
{
    static const uint32_t upper_halves[VF_LANES] = {
        0x00030001, 0x00070005, 0x000b0009, 0x000f000d, 0x00130011, 0x00170015, 0x001b0019, 0x001f001d,
        0x00230021, 0x00270025, 0x002b0029, 0x002f002d, 0x00330031, 0x00370035, 0x003b0039, 0x003f003d};
    vi_store_pairs(to, _mm512_permutex2var_epi16(round_to_upper(first), vi_load(upper_halves), round_to_upper(second)));
}

#endif
