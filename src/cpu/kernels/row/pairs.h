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

/* 32 features of two rows: 32 words, a word is a feature of both. Features 8 i .. 8 i + 3 come first, for i = 0..3,
 * then 8 i + 4 .. 8 i + 7. */
static inline void interleave_rows(vi first, vi second, uint32_t *to)
{
    vi_store(to, _mm512_unpacklo_epi16(first, second));
    vi_store(to + VF_LANES, _mm512_unpackhi_epi16(first, second));
}

/* x, finite, rounded to BF16 (ties to even), in the upper half. */
static inline vi round_to_upper(vf x)
{
    const vi b = vf_bits(x);
    const vi tie = vi_and(vi_shr(b, 16), vi_set1(1));
    return vi_and(vi_add(b, vi_add(tie, vi_set1(0x7fff))), vi_set1(0xffff0000u));
}

/* 32 finite values, in the order of interleave_rows, rounded to BF16 and in order. */
static inline void store_rounded(uint16_t *to, vf first, vf second)
{
    const vi low = vi_shr(round_to_upper(first), 16), high = vi_shr(round_to_upper(second), 16);
    vi_store_pairs(to, _mm512_packus_epi32(low, high));
}

#endif
