/* A query of the indexer in bytes: each head as integers times a power of two of its own, of at most 7 bits, or, where
 * some head takes more, of at most 13 bits in two layers: their lower 8 bits, with a sign, and the rest.
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
    MAX_QUERY_LAYERS = 2,
    QUERY_LAYER_BITS = 8,
    /* Bits of the integers of a query of that many layers, and binades that a key may span with it if all of them are
     * used: 128 * 127 * 12 * 2^6 < 2^24, 128 * 8191 * 12 < 2^24. */
    NARROW_BITS = 7,
    NARROW_KEY_SPAN = 6,
    WIDE_BITS = 13,
    WIDE_KEY_SPAN = 0,
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
    uint32_t *n_layers; /* 0: the query is of another kind, and the rest means nothing */
    uint32_t *key_span; /* that keys may have with it */
    float *weights;     /* [n_heads], times the unit of the head */
    int32_t *sums;      /* [layer][n_heads]: of its integers */
    uint32_t *words;    /* [layer][panel] */
} integer_query;

static inline integer_query integer_query_of(const query *x, uint32_t n_heads)
{
    integer_query y;
    y.n_layers = (void *)x->exact_q;
    y.key_span = y.n_layers + 1;
    y.weights = (void *)(x->exact_q + 64);
    y.sums = (void *)(y.weights + n_heads);
    y.words = (void *)(y.sums + MAX_QUERY_LAYERS * n_heads);
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

/* A power of two, as bits, that the greatest feature of each head is less than 2^n_bits times, and at least half as
 * many; *ok loses the lanes where that one is out of the limits. */
static inline vi unit_of_heads(const vf x[DSRI_INDEX_DIM], uint32_t n_bits, __mmask16 *ok)
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
    const vi unit =
        vi_sub(vi_and(most, vi_set1(0xffu << F32_EXPONENT_SHIFT)), vi_set1((n_bits - 1) << F32_EXPONENT_SHIFT));
    /* A head of zeros has any unit. */
    return _mm512_mask_mov_epi32(unit, is_zero(vf_from_bits(most)), power_bits(0));
}

/* Four bytes to a word. */
static inline vi join_bytes(vi a, vi b, vi c, vi d)
{
    const vi low = vi_or(vi_and(a, vi_set1(0xff)), vi_shl(vi_and(b, vi_set1(0xff)), 8));
    return vi_or(low, vi_or(vi_shl(vi_and(c, vi_set1(0xff)), 16), vi_shl(d, 24)));
}

/* Weights of VF_LANES heads times their units. 0: some are out of the limits. */
static inline int scale_weights(const float *weights, vi unit, float *scaled)
{
    const vf w = vf_load(weights), x = vf_mul(w, vf_from_bits(unit));
    vf_store(scaled, x);
    return is_zero_or_within(x, MIN_WEIGHT_EXPONENT, MAX_WEIGHT_EXPONENT) == 0xffff &&
           is_zero(x) == is_zero(w); /* the product may underflow */
}

/* Leaves of integers what their lower QUERY_LAYER_BITS, taken with a sign, lack, over 2^QUERY_LAYER_BITS. Its sum. */
static inline vi take_high_layer(vi integers[4])
{
    vi sum = _mm512_setzero_si512();
    VEC_UNROLL
    for (int i = 0; i < 4; i++) {
        integers[i] = _mm512_srai_epi32(vi_add(integers[i], vi_set1(1u << (QUERY_LAYER_BITS - 1))), QUERY_LAYER_BITS);
        sum = vi_add(sum, integers[i]);
    }
    return sum;
}

/* What the heads of a query have in common. */
typedef struct head_packing {
    const query *x;
    integer_query to;
    uint32_t n_heads;
    uint32_t width; /* heads of a panel */
    uint32_t n_layers;
    vi all; /* the bits of all integers so far */
} head_packing;

/* VF_LANES heads from `head` on; their words go to `words`. 0: some head is not exact. */
static inline int pack_integer_heads(head_packing *p, uint32_t head, uint32_t *words)
{
    vf features[DSRI_INDEX_DIM];
    vi sum = _mm512_setzero_si512(), high_sum = sum;
    __mmask16 ok = 0xffff;
    load_heads(p->x->q + (size_t)head * DSRI_INDEX_DIM, features);
    const vi unit = unit_of_heads(features, p->n_layers == 1 ? NARROW_BITS : WIDE_BITS, &ok);
    const vf inverse = vf_from_bits(vi_sub(vi_set1(2u * F32_BIAS << F32_EXPONENT_SHIFT), unit));
    if (!scale_weights(p->x->weights + head, unit, p->to.weights + head) || ok != 0xffff) {
        return 0;
    }
    for (uint32_t g = 0; g < QUERY_WORDS; g++, words += p->width) {
        const vf *four = features + g % 16 * 8 + g / 16;
        vi integers[4];
        VEC_UNROLL
        for (int i = 0; i < 4; i++) {
            const vf scaled = vf_mul(four[2 * i], inverse);
            integers[i] = _mm512_cvtps_epi32(scaled);
            ok &= _mm512_cmp_ps_mask(_mm512_cvtepi32_ps(integers[i]), scaled, _CMP_EQ_OQ);
            sum = vi_add(sum, integers[i]);
            p->all = vi_or(p->all, integers[i]);
        }
        vi_store(words, join_bytes(integers[0], integers[1], integers[2], integers[3]));
        if (p->n_layers == 2) {
            high_sum = vi_add(high_sum, take_high_layer(integers));
            vi_store(words + (size_t)p->n_heads * QUERY_WORDS,
                     join_bytes(integers[0], integers[1], integers[2], integers[3]));
        }
    }
    vi_store((void *)(p->to.sums + head), vi_sub(sum, vi_shl(high_sum, QUERY_LAYER_BITS)));
    vi_store((void *)(p->to.sums + p->n_heads + head), high_sum);
    return ok == 0xffff;
}

/* Each power of two that all integers of the query are multiples of is a binade more for the keys. */
static inline uint32_t key_span_of(const head_packing *p)
{
    const uint32_t least = p->n_layers == 1 ? NARROW_KEY_SPAN : WIDE_KEY_SPAN, spare = MAX_QUERY_KEY_SPAN - least;
    return least + (uint32_t)__builtin_ctz((uint32_t)_mm512_reduce_or_epi32(p->all) | 1u << spare);
}

static inline int pack_layers(const query *x, uint32_t n_heads, uint32_t width, uint32_t n_layers)
{
    head_packing p = {x, integer_query_of(x, n_heads), n_heads, width, n_layers, _mm512_setzero_si512()};
    const uint32_t n_panels = n_heads / width;
    for (uint32_t v = 0; v < n_heads / VF_LANES; v++) {
        uint32_t *words = p.to.words + (size_t)(v % n_panels) * QUERY_WORDS * width + v / n_panels * VF_LANES;
        if (!pack_integer_heads(&p, v * VF_LANES, words)) {
            return 0;
        }
    }
    *p.to.n_layers = n_layers;
    *p.to.key_span = key_span_of(&p);
    return 1;
}

/* Panels as those of the chain: panel p takes every n-th vector of heads from p on. Returns whether the query is of
 * this kind. */
static inline int pack_integer_query(const query *x, uint32_t n_heads, uint32_t width)
{
    const integer_query y = integer_query_of(x, n_heads);
    *y.n_layers = *y.key_span = 0;
    return pack_layers(x, n_heads, width, 1) || pack_layers(x, n_heads, width, MAX_QUERY_LAYERS);
}

#endif
