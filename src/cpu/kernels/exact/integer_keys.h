/* FP4 keys as bytes: each key as integers of at most 7 bits times a power of two of its own. */
#ifndef DSRI_INTEGER_KEYS_H
#define DSRI_INTEGER_KEYS_H

#include "cpu/kernels/cache_rows.h"

enum {
    KEY_BLOCKS = DSRI_INDEX_DIM / KEY_SCALE_FEATURES,
    MAX_KEY_SPAN = 3, /* binades between the scales of a key's blocks: 12 * 2^3 still takes 7 bits */
    MIN_KEY_SCALE = SCALE_BIAS - 39,
    MAX_KEY_SCALE = SCALE_BIAS + 40 - MAX_KEY_SPAN
};

/* What the codes of a block n binades above a key's least one are, in units of half that one's scale. */
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

/* Per lane of 16 bytes, which hold a block, what its 16 codes are. */
static inline vi integers_of_blocks(const key_scales *s)
{
    static const int8_t integers[MAX_KEY_SPAN + 1][16] = {INTEGER_CODES(0), INTEGER_CODES(1), INTEGER_CODES(2),
                                                          INTEGER_CODES(3)};
    const int8_t *of_block[KEY_BLOCKS];
    for (int b = 0; b < KEY_BLOCKS; b++) {
        of_block[b] = integers[s->of_block[b] - s->least];
    }
    vi table = _mm512_castsi128_si512(_mm_loadu_si128((const void *)of_block[0]));
    table = _mm512_inserti32x4(table, _mm_loadu_si128((const void *)of_block[1]), 1);
    table = _mm512_inserti32x4(table, _mm_loadu_si128((const void *)of_block[2]), 2);
    return _mm512_inserti32x4(table, _mm_loadu_si128((const void *)of_block[3]), 3);
}

/* to [128]: the even features, then the odd ones, in bytes plus `bias`, 0 or 128; *unit: the power of two that is a
 * byte's unit. 0 where the key is of another kind. */
static inline int load_integer_key(const dsri_cache *cache, uint64_t t, int bias, uint8_t *to, float *unit)
{
    const dsri_cache_entry key = dsri_cache_at(cache, t);
    if (key.values == NULL) {
        return 0;
    }
    const vi codes = _mm512_loadu_si512(key.values);
    key_scales s = key_scales_of(key.scales, 0xf);
    if (s.span > MAX_KEY_SPAN || s.least < MIN_KEY_SCALE || s.least > MAX_KEY_SCALE) {
        s = scales_without_zeros(key.scales, codes);
        if (s.span > MAX_KEY_SPAN || s.least < MIN_KEY_SCALE || s.least > MAX_KEY_SCALE) {
            return 0;
        }
    }
    const vi table = integers_of_blocks(&s);
    const vi values = vi_xor(table, _mm512_set1_epi8((char)bias)); /* +128 flips the top bit */
    const vi nibble = _mm512_set1_epi8(0xf);
    _mm512_storeu_si512(to, _mm512_shuffle_epi8(values, vi_and(codes, nibble)));
    _mm512_storeu_si512(to + 64, _mm512_shuffle_epi8(values, vi_and(vi_shr(codes, 4), nibble)));
    /* A code is twice its value. */
    const uint32_t bits = (uint32_t)(s.least - 1) << 23;
    memcpy(unit, &bits, sizeof *unit);
    return 1;
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

/* Keys [t, + n), t a multiple of 16 and n at most 16: all of one page. to [n][128], units [16]. What each is, is seen
 * for all at once; only where zero blocks may have any scale, key by key. 0 where one is of another kind. */
static inline int load_integer_keys(const dsri_cache *cache, uint64_t t, uint32_t n, int bias, uint8_t *to,
                                    float *units)
{
    static const int8_t tables[MAX_KEY_SPAN + 1][16]
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
    const __mmask64 is_narrow =
        _mm512_cmple_epu8_mask(_mm512_sub_epi8(greatest, least), _mm512_set1_epi8(MAX_KEY_SPAN));
    const __mmask64 is_usual = _mm512_cmple_epu8_mask(_mm512_sub_epi8(least, _mm512_set1_epi8(MIN_KEY_SCALE)),
                                                      _mm512_set1_epi8((char)(MAX_KEY_SCALE - MIN_KEY_SCALE)));
    if ((is_narrow & is_usual) != UINT64_MAX) {
        int is_exact = 1;
        for (uint32_t k = 0; k < n && is_exact; k++) {
            is_exact = load_integer_key(cache, t + k, bias, to + k * DSRI_INDEX_DIM, units + k);
        }
        return is_exact;
    }
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
