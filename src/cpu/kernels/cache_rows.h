/* Entries of a cache as BF16: the one place where packed keys and rows are decoded. Bits are those of
 * src/reference/ref_cache_decode.c. */
#ifndef DSRI_CACHE_ROWS_H
#define DSRI_CACHE_ROWS_H

#include "cpu/vec/vec.h"
#include "ops/cache_plan.h"
#include "ops/op_plans.h"

#include <string.h>

enum {
    ROW_CODES = 448, /* features of an FP8 row that are codes */
    ROW_BLOCK = 64,  /* of them under one scale */
    KEY_SCALE_FEATURES = 32,
    /* Scales that leave every code but zero and NaN a normal BF16. */
    FIRST_ROW_SCALE = 10,
    LAST_ROW_SCALE = 246,
    FIRST_KEY_SCALE = 2,
    LAST_KEY_SCALE = 252,
    SCALE_BIAS = 127
};

/* Pairs times 2^(scale - 127): for scales that could take some value out of the normal BF16. */
static __attribute__((noinline)) vi scale_pairs(vi pairs, uint32_t scale)
{
    const vf factor = vf_from_bits(vi_set1(scale > 0 ? scale << 23 : 0x00400000u));
    vf even, odd;
    if (scale == 255) {
        return vi_set1(0x7fc07fc0u);
    }
    vf_from_pairs(pairs, &even, &odd);
    return vf_to_pairs(vf_mul(even, factor), vf_mul(odd, factor));
}

/* Features [f, + 2 * VF_LANES) of a packed key. */
static inline vi key_pairs(const uint8_t *values, const uint8_t *scales, uint32_t f)
{
    const uint32_t scale = scales[f / KEY_SCALE_FEATURES];
    if (scale - FIRST_KEY_SCALE <= LAST_KEY_SCALE - FIRST_KEY_SCALE) {
        return vi_load_e2m1_pairs(values + f / 2, (int)scale - SCALE_BIAS);
    }
    return scale_pairs(vi_load_e2m1_pairs(values + f / 2, 0), scale);
}

static inline void decode_key(dsri_cache_entry key, uint16_t *to)
{
    for (uint32_t f = 0; f < DSRI_INDEX_DIM; f += 2 * VF_LANES) {
        vi_store_pairs(to + f, key_pairs(key.values, key.scales, f));
    }
}

/* Whether every code but zero and NaN times the scale is a normal BF16. */
static inline int row_scale_is_usual(uint32_t scale)
{
    return scale - FIRST_ROW_SCALE <= LAST_ROW_SCALE - FIRST_ROW_SCALE;
}

/* A block of codes of a packed row with an unusual scale. */
static __attribute__((noinline)) void decode_unusual_codes(const uint8_t *codes, uint32_t scale, uint16_t *to)
{
    for (uint32_t f = 0; f < ROW_BLOCK; f += 2 * VF_LANES) {
        vi_store_pairs(to + f, scale_pairs(vi_load_e4m3_pairs(codes + f, 0), scale));
    }
}

/* Whether the codes in features [f, + ROW_BLOCK) of a packed row, if any, take no more than their exponents to decode.
 */
static inline int row_block_is_normal(dsri_cache_entry row, uint32_t f)
{
    return f == ROW_CODES || vec_e4m3_is_normal(row.values + f);
}

/* Features [f, + 2 * VF_LANES) of a packed row, in a block with a usual scale. */
static inline vi row_pairs(dsri_cache_entry row, uint32_t f, int is_normal)
{
    if (f >= ROW_CODES) {
        return vi_load_pairs((const uint16_t *)(const void *)(row.values + ROW_CODES) + (f - ROW_CODES));
    }
    const int exponent = row.scales[f / ROW_BLOCK] - SCALE_BIAS;
    return is_normal ? vi_load_normal_e4m3_pairs(row.values + f, exponent)
                     : vi_load_e4m3_pairs(row.values + f, exponent);
}

/* Features [f, + ROW_BLOCK) of a packed row, f a multiple of ROW_BLOCK. */
static inline void decode_row_block(dsri_cache_entry row, uint32_t f, uint16_t *to)
{
    const uint32_t scale = row.scales[f / ROW_BLOCK];
    if (f < ROW_CODES && !row_scale_is_usual(scale)) {
        decode_unusual_codes(row.values + f, scale, to);
        return;
    }
    const int is_normal = row_block_is_normal(row, f);
    VEC_UNROLL
    for (uint32_t i = 0; i < ROW_BLOCK; i += 2 * VF_LANES) {
        vi_store_pairs(to + i, row_pairs(row, f + i, is_normal));
    }
}

static inline void decode_row(dsri_cache_entry row, uint16_t *to)
{
    for (uint32_t f = 0; f < DSRI_HEAD_DIM; f += ROW_BLOCK) {
        decode_row_block(row, f, to + f);
    }
}

static inline void prefetch_packed_row(dsri_cache_entry row)
{
    for (int line = 0; line < DSRI_FP8_ROW_BYTES; line += 64) {
        vec_prefetch_to_l2(row.values + line);
    }
    vec_prefetch_to_l2(row.scales);
}

static inline void prefetch_key(const dsri_cache *cache, uint64_t t)
{
    const dsri_cache_entry key = dsri_cache_at(cache, t);
    if (key.values == NULL) {
        return;
    }
    vec_prefetch(key.values);
    if (cache->scale_bytes != 0) {
        vec_prefetch(key.scales);
        return;
    }
    for (int line = 64; line < DSRI_INDEX_DIM * 2; line += 64) {
        vec_prefetch(key.values + line);
    }
}

/* A key as BF16; one of a bad page is NaN. */
static inline void load_key(const dsri_cache *cache, uint64_t t, uint16_t *to)
{
    const dsri_cache_entry key = dsri_cache_at(cache, t);
    if (key.values == NULL) {
        for (int f = 0; f < DSRI_INDEX_DIM; f++) {
            to[f] = 0x7fc0;
        }
    } else if (cache->scale_bytes == 0) {
        for (int f = 0; f < DSRI_INDEX_DIM; f += 2 * VF_LANES) {
            vi_store_pairs(to + f, vi_load_pairs((const uint16_t *)(const void *)key.values + f));
        }
    } else {
        decode_key(key, to);
    }
}

/* Keys [first, + n), side by side. Prefetches as many after them, as far as they come before `end`. */
static inline void load_keys(const dsri_cache *cache, uint64_t first, uint32_t n, uint64_t end, uint16_t *to)
{
    for (uint64_t t = first; t < first + n; t++, to += DSRI_INDEX_DIM) {
        if (t + n < end) {
            prefetch_key(cache, t + n);
        }
        load_key(cache, t, to);
    }
}

#endif
