/* FP4 keys as bytes: each key as integers of at most 7 bits times a power of two of its own; a key whose scales lie
 * farther apart in layers of such, each for the next LAYER_BINADES binades and zero elsewhere. */
#ifndef DSRI_INTEGER_KEYS_H
#define DSRI_INTEGER_KEYS_H

#include "cpu/kernels/cache_rows.h"

enum {
    KEY_BLOCKS = DSRI_INDEX_DIM / KEY_SCALE_FEATURES,
    LAYER_BINADES = 4, /* 12 * 2^3 still takes 7 bits */
    MAX_LAYERS = 3,
    MAX_KEY_SPAN = 9,  /* binades between the scales of a key's blocks */
    NO_KEY_SPAN = 255, /* of a key of another kind */
    MIN_KEY_SCALE = SCALE_BIAS - 39,
    MAX_KEY_SCALE = SCALE_BIAS + 40
};

/* What the codes of a block n binades above a layer's least one are, in units of half that one's scale. */
#define INTEGER_CODES(n)                                                                                               \
    {                                                                                                                  \
        0, 1 << (n), 2 << (n), 3 << (n), 4 << (n), 6 << (n), 8 << (n), 12 << (n), 0, -(1 << (n)), -(2 << (n)),         \
            -(3 << (n)), -(4 << (n)), -(6 << (n)), -(8 << (n)), -(12 << (n))                                           \
    }

typedef struct key_scales {
    uint8_t of_block[KEY_BLOCKS];
    int least;
    int span;
} key_scales;

static inline key_scales key_scales_of(const uint8_t *scales, uint32_t blocks)
{
    key_scales s = {.least = 255};
    int greatest = 0;
    for (int b = 0; b < KEY_BLOCKS; b++) {
        s.of_block[b] = scales[b];
        if (blocks >> b & 1) {
            s.least = scales[b] < s.least ? scales[b] : s.least;
            greatest = scales[b] > greatest ? scales[b] : greatest;
        }
    }
    s.span = greatest - s.least;
    return s;
}

/* Bit b: block b has an element that is not zero. */
static inline uint32_t blocks_with_values(vi codes)
{
    const uint64_t bytes = _mm512_test_epi8_mask(codes, _mm512_set1_epi8(0x77));
    uint32_t blocks = 0;
    for (int b = 0; b < KEY_BLOCKS; b++) {
        blocks |= (uint32_t)((bytes >> 16 * b & 0xffff) != 0) << b;
    }
    return blocks;
}

/* The scales of a key with those of its zero blocks, which mean nothing, set to its least. A scale of NaN means NaN
 * even there: the span is then too large. */
static __attribute__((noinline)) key_scales scales_without_zeros(const uint8_t *scales, vi codes)
{
    const uint32_t blocks = blocks_with_values(codes);
    key_scales s = key_scales_of(scales, blocks);
    if (blocks == 0) {
        s.least = SCALE_BIAS;
        s.span = 0;
    }
    for (int b = 0; b < KEY_BLOCKS; b++) {
        s.span = scales[b] == 255 ? 255 : s.span;
        s.of_block[b] = blocks >> b & 1 ? s.of_block[b] : (uint8_t)s.least;
    }
    return s;
}

static inline int is_integer_key(const key_scales *s)
{
    return s->span <= MAX_KEY_SPAN && s->least >= MIN_KEY_SCALE && s->least + s->span <= MAX_KEY_SCALE;
}

/* Per lane of 16 bytes, which hold a block, what its 16 codes are in a layer. */
static inline vi integers_of_blocks(const key_scales *s, int layer)
{
    static const int8_t integers[LAYER_BINADES + 1][16] = {INTEGER_CODES(0), INTEGER_CODES(1), INTEGER_CODES(2),
                                                           INTEGER_CODES(3)}; /* and zeros: of other layers */
    const int8_t *of_block[KEY_BLOCKS];
    for (int b = 0; b < KEY_BLOCKS; b++) {
        const int above = s->of_block[b] - s->least - layer * LAYER_BINADES;
        of_block[b] = integers[above >= 0 && above < LAYER_BINADES ? above : LAYER_BINADES];
    }
    vi table = _mm512_castsi128_si512(_mm_loadu_si128((const void *)of_block[0]));
    table = _mm512_inserti32x4(table, _mm_loadu_si128((const void *)of_block[1]), 1);
    table = _mm512_inserti32x4(table, _mm_loadu_si128((const void *)of_block[2]), 2);
    return _mm512_inserti32x4(table, _mm_loadu_si128((const void *)of_block[3]), 3);
}

/* to [128]: the even features, then the odd ones, in bytes plus `bias`, 0 or 128; further layers, as far as the key has
 * them, layer_bytes on. *unit: the power of two that is a byte's unit in the first. Returns the key's span. */
static inline uint32_t load_integer_key(const dsri_cache *cache, uint64_t t, int bias, uint8_t *to, size_t layer_bytes,
                                        float *unit)
{
    const dsri_cache_entry key = dsri_cache_at(cache, t);
    if (key.values == NULL) {
        return NO_KEY_SPAN;
    }
    const vi codes = _mm512_loadu_si512(key.values), nibble = _mm512_set1_epi8(0xf);
    key_scales s = key_scales_of(key.scales, 0xf);
    if (s.span >= LAYER_BINADES || !is_integer_key(&s)) {
        s = scales_without_zeros(key.scales, codes);
        if (!is_integer_key(&s)) {
            return NO_KEY_SPAN;
        }
    }
    for (int layer = 0; layer <= s.span / LAYER_BINADES; layer++, to += layer_bytes) {
        const vi values = vi_xor(integers_of_blocks(&s, layer), _mm512_set1_epi8((char)bias)); /* +128: the top bit */
        _mm512_storeu_si512(to, _mm512_shuffle_epi8(values, vi_and(codes, nibble)));
        _mm512_storeu_si512(to + 64, _mm512_shuffle_epi8(values, vi_and(vi_shr(codes, 4), nibble)));
    }
    /* A code is twice its value. */
    const uint32_t bits = (uint32_t)(s.least - 1) << 23;
    memcpy(unit, &bits, sizeof *unit);
    return (uint32_t)s.span;
}

/* Keys [t, + 16), t a multiple of 16, as far as they are there. */
static inline void prefetch_integer_keys(const dsri_cache *cache, uint64_t t)
{
    const dsri_cache_entry first = dsri_cache_at(cache, t);
    if (first.values != NULL) {
        for (uint32_t k = 0; k < VF_LANES; k++) {
            vec_prefetch(first.values + k * cache->row_stride);
        }
        vec_prefetch(first.scales);
    }
}

/* Keys [t, + n), t a multiple of 16 and n at most 16: all of one page. to [n][128], units [16], spans: greatest of what
 * was there and those of the keys, four bytes each. What each is, is seen for all at once. 0, and nothing is written,
 * where one may have more than one layer or be of another kind. */
static inline int load_narrow_keys(const dsri_cache *cache, uint64_t t, uint32_t n, int bias, uint8_t *to, float *units,
                                   uint32_t spans[VF_LANES])
{
    static const int8_t tables[LAYER_BINADES][16]
        __attribute__((aligned(64))) = {INTEGER_CODES(0), INTEGER_CODES(1), INTEGER_CODES(2), INTEGER_CODES(3)};
    static const uint64_t byte_of_block[8]
        __attribute__((aligned(64))) = {0x8080808080808000, 0x8080808080808000, 0x8080808080808001, 0x8080808080808001,
                                        0x8080808080808002, 0x8080808080808002, 0x8080808080808003, 0x8080808080808003};
    static const uint64_t second_half[8] __attribute__((aligned(64))) = {0, 1, 0, 1, 0, 1, 0, 1};
    const dsri_cache_entry first = dsri_cache_at(cache, t);
    uint32_t halves[VF_LANES]; /* of a key: which half of the tables its blocks take, in bytes */
    if (first.values == NULL) {
        return 0;
    }
    const vi scales = _mm512_mask_loadu_epi32(_mm512_set1_epi8(SCALE_BIAS), (__mmask16)((1u << n) - 1), first.scales);
    vi least = _mm512_min_epu8(scales, _mm512_rol_epi32(scales, 8));
    vi greatest = _mm512_max_epu8(scales, _mm512_rol_epi32(scales, 8));
    least = _mm512_min_epu8(least, _mm512_rol_epi32(least, 16));
    greatest = _mm512_max_epu8(greatest, _mm512_rol_epi32(greatest, 16));
    enum { MAX_LEAST = MAX_KEY_SCALE - LAYER_BINADES + 1 };
    const vi span = _mm512_sub_epi8(greatest, least);
    const __mmask64 is_narrow = _mm512_cmplt_epu8_mask(span, _mm512_set1_epi8(LAYER_BINADES));
    const __mmask64 is_usual = _mm512_cmple_epu8_mask(_mm512_sub_epi8(least, _mm512_set1_epi8(MIN_KEY_SCALE)),
                                                      _mm512_set1_epi8((char)(MAX_LEAST - MIN_KEY_SCALE)));
    if ((is_narrow & is_usual) != UINT64_MAX) {
        return 0;
    }
    vi_store(spans, _mm512_max_epu32(vi_load(spans), span));
    /* A code is twice its value. */
    vi_store((void *)units, vi_shl(vi_sub(vi_and(least, vi_set1(0xff)), vi_set1(1)), 23));
    const vi above = _mm512_sub_epi8(scales, least);
    vi_store(halves, _mm512_add_epi8(above, above));
    const vi all_tables = vi_xor(_mm512_load_si512(tables), _mm512_set1_epi8((char)bias)),
             nibble = _mm512_set1_epi8(0xf);
    for (uint32_t k = 0; k < n; k++, to += DSRI_INDEX_DIM) {
        const vi codes = _mm512_loadu_si512(first.values + k * cache->row_stride);
        const vi half = vi_or(_mm512_shuffle_epi8(vi_set1(halves[k]), _mm512_load_si512(byte_of_block)),
                              _mm512_load_si512(second_half));
        const vi table = _mm512_permutexvar_epi64(half, all_tables);
        _mm512_storeu_si512(to, _mm512_shuffle_epi8(table, vi_and(codes, nibble)));
        _mm512_storeu_si512(to + 64, _mm512_shuffle_epi8(table, vi_and(vi_shr(codes, 4), nibble)));
    }
    return 1;
}

#endif
