/* A query of the indexer in bytes: each head as integers of at most 7 bits times a power of two of its own.
 *
 * Why sums of such integers give the chain's bits (docs/numerics.md, "Exact sums"): with keys of the same kind all
 * partial sums are integers of at most 24 bits times one power of two, so the chain never rounds; products with the
 * weights and their sum round alike whatever power of two is taken out, as long as nothing is subnormal or overflows,
 * which the limits below see to. */
#ifndef DSRI_INTEGER_QUERY_H
#define DSRI_INTEGER_QUERY_H

#include "cpu/kernels/indexer_query.h"

enum {
    QUERY_WORDS = DSRI_INDEX_DIM / 4, /* of a head: words of 4 bytes */
    /* Binades that a key may span with a query: 128 * 127 * 12 * 2^6 < 2^24. */
    MIN_QUERY_KEY_SPAN = 6,
    MAX_QUERY_KEY_SPAN = 9,
    /* Magnitudes of the greatest feature of a head, and of weights times the unit of their head, as exponents. */
    MIN_Q_EXPONENT = -60,
    MAX_Q_EXPONENT = 60,
    MIN_WEIGHT_EXPONENT = -60,
    MAX_WEIGHT_EXPONENT = 50,
    F32_BIAS = 127,
    F32_EXPONENT_SHIFT = 23
};

/* At the query's exact_q. Words of a panel: [QUERY_WORDS][heads of the panel]; word g holds features
 * 8g, 8g + 2, 8g + 4, 8g + 6, and word 16 + g those after them: the order in which nibbles lie in the bytes of a key.
 */
typedef struct integer_query {
    uint32_t *key_span; /* that keys may have with it; 0: the query is of another kind, and the rest means nothing */
    float *weights;     /* [n_heads], times the unit of the head */
    int32_t *sums;      /* [n_heads]: of its integers */
    uint32_t *words;    /* [panel] */
} integer_query;

static inline integer_query integer_query_of(const query *x, uint32_t n_heads)
{
    integer_query y;
    y.key_span = (void *)x->exact_q;
    y.weights = (void *)(x->exact_q + 64);
    y.sums = (void *)(y.weights + n_heads);
    y.words = (void *)(y.sums + n_heads);
    return y;
}

static inline vi power_bits(int exponent)
{
    return vi_set1((uint32_t)(exponent + F32_BIAS) << F32_EXPONENT_SHIFT);
}

static inline __mmask16 is_zero(vf x)
{
    return _mm512_testn_epi32_mask(vf_bits(x), vi_set1(0x7fffffff));
}

/* Lanes where x is 0 or a number of a magnitude in [2^min, 2^max). */
static inline __mmask16 is_zero_or_within(vf x, int min, int max)
{
    const vi magnitude = vi_and(vf_bits(x), vi_set1(0x7fffffff));
    const vi above_min = vi_sub(magnitude, power_bits(min));
    const vi width = vi_set1((uint32_t)(max - min) << F32_EXPONENT_SHIFT);
    return _mm512_cmplt_epu32_mask(above_min, width) | is_zero(x);
}

/* Features of VF_LANES heads: x[f] lane h. */
static inline void load_heads(const uint16_t *q, vf x[DSRI_INDEX_DIM])
{
    for (uint32_t f = 0; f < DSRI_INDEX_DIM; f += 2 * VF_LANES) {
        vi pairs[VF_LANES];
        VEC_UNROLL
        for (int h = 0; h < VF_LANES; h++) {
            pairs[h] = vi_load_pairs(q + h * DSRI_INDEX_DIM + f);
        }
        vi_transpose(pairs);
        VEC_UNROLL
        for (uint32_t i = 0; i < VF_LANES; i++) {
            vf_from_pairs(pairs[i], &x[f + 2 * i], &x[f + 2 * i + 1]);
        }
    }
}

/* A power of two, as bits, that the greatest feature of each head is at least 2^6 and less than 2^7 times; *ok loses
 * the lanes where that one is out of the limits. */
static inline vi unit_of_heads(const vf x[DSRI_INDEX_DIM], __mmask16 *ok)
{
    vi greatest[4] = {vi_set1(0), vi_set1(0), vi_set1(0), vi_set1(0)};
    for (int f = 0; f < DSRI_INDEX_DIM; f += 4) {
        VEC_UNROLL
        for (int i = 0; i < 4; i++) {
            greatest[i] = _mm512_max_epu32(greatest[i], vi_and(vf_bits(x[f + i]), vi_set1(0x7fffffff)));
        }
    }
    greatest[0] = _mm512_max_epu32(greatest[0], greatest[1]);
    greatest[2] = _mm512_max_epu32(greatest[2], greatest[3]);
    const vi most = _mm512_max_epu32(greatest[0], greatest[2]);
    *ok &= is_zero_or_within(vf_from_bits(most), MIN_Q_EXPONENT, MAX_Q_EXPONENT);
    const vi unit = vi_sub(vi_and(most, vi_set1(0xffu << F32_EXPONENT_SHIFT)), vi_set1(6u << F32_EXPONENT_SHIFT));
    /* A head of zeros has any unit. */
    return _mm512_mask_mov_epi32(unit, is_zero(vf_from_bits(most)), power_bits(0));
}

/* Four bytes to a word. */
static inline vi join_bytes(vi a, vi b, vi c, vi d)
{
    const vi low = vi_or(vi_and(a, vi_set1(0xff)), vi_shl(vi_and(b, vi_set1(0xff)), 8));
    return vi_or(low, vi_or(vi_shl(vi_and(c, vi_set1(0xff)), 16), vi_shl(d, 24)));
}

/* VF_LANES heads from `head` on; their words go to `words`, `width` apart, and *all gets the bits of all integers.
 * 0: some head is not exact. */
static inline int pack_integer_heads(const query *x, const integer_query *y, uint32_t head, uint32_t *words,
                                     uint32_t width, vi *all)
{
    vf features[DSRI_INDEX_DIM];
    vi sum = _mm512_setzero_si512();
    __mmask16 ok = 0xffff;
    load_heads(x->q + (size_t)head * DSRI_INDEX_DIM, features);
    const vi unit = unit_of_heads(features, &ok);
    const vf weights = vf_mul(vf_load(x->weights + head), vf_from_bits(unit));
    const vf inverse = vf_from_bits(vi_sub(vi_set1(2u * F32_BIAS << F32_EXPONENT_SHIFT), unit));
    ok &= is_zero_or_within(weights, MIN_WEIGHT_EXPONENT, MAX_WEIGHT_EXPONENT);
    ok &= (__mmask16) ~(is_zero(weights) ^ is_zero(vf_load(x->weights + head))); /* the product may underflow */
    if (ok != 0xffff) {
        return 0;
    }
    vf_store(y->weights + head, weights);
    for (uint32_t g = 0; g < QUERY_WORDS; g++) {
        const vf *four = features + g % 16 * 8 + g / 16;
        vi bytes[4];
        VEC_UNROLL
        for (int i = 0; i < 4; i++) {
            const vf scaled = vf_mul(four[2 * i], inverse);
            bytes[i] = _mm512_cvtps_epi32(scaled);
            ok &= _mm512_cmp_ps_mask(_mm512_cvtepi32_ps(bytes[i]), scaled, _CMP_EQ_OQ);
            sum = vi_add(sum, bytes[i]);
            *all = vi_or(*all, bytes[i]);
        }
        vi_store(words + (size_t)g * width, join_bytes(bytes[0], bytes[1], bytes[2], bytes[3]));
    }
    vi_store((void *)(y->sums + head), sum);
    return ok == 0xffff;
}

/* Each power of two that all integers of the query are multiples of is a binade more for the keys. */
static inline uint32_t key_span_of(vi all)
{
    const int spare = MAX_QUERY_KEY_SPAN - MIN_QUERY_KEY_SPAN;
    return MIN_QUERY_KEY_SPAN + (uint32_t)__builtin_ctz((uint32_t)_mm512_reduce_or_epi32(all) | 1u << spare);
}

/* Panels as those of the chain: panel p takes every n-th vector of heads from p on. Returns whether the query is of
 * this kind. */
static inline int pack_integer_query(const query *x, uint32_t n_heads, uint32_t width)
{
    const integer_query y = integer_query_of(x, n_heads);
    const uint32_t n_panels = n_heads / width;
    vi all = _mm512_setzero_si512();
    int is_exact = 1;
    for (uint32_t v = 0; v < n_heads / VF_LANES && is_exact; v++) {
        uint32_t *words = y.words + (size_t)(v % n_panels) * QUERY_WORDS * width + v / n_panels * VF_LANES;
        is_exact = pack_integer_heads(x, &y, v * VF_LANES, words, width, &all);
    }
    *y.key_span = is_exact ? key_span_of(all) : 0;
    return is_exact;
}

#endif
