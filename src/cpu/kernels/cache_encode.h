/* Entries of packed caches from BF16. Bits are those of src/reference/ref_cache_encode.c. */
#ifndef DSRI_CACHE_ENCODE_H
#define DSRI_CACHE_ENCODE_H

#include "cpu/kernels/quantise.h"
#include "ops/cache_plan.h"
#include "ops/op_plans.h"

#include <stddef.h>
#include <string.h>

/* Where an entry is written. */
typedef struct entry_place {
    uint8_t *values; /* null: nowhere */
    uint8_t *scales;
} entry_place;

static inline entry_place place_of_entry(const dsri_cache *cache, uint64_t t)
{
    const dsri_cache_entry entry = dsri_cache_at(cache, t);
    const entry_place place = {(uint8_t *)(uintptr_t)entry.values, (uint8_t *)(uintptr_t)entry.scales};
    return place;
}

static inline void encode_fp8_block(const uint16_t *input, uint32_t min_scale, uint8_t *values, uint8_t *scale_byte)
{
    uint32_t codes[FP8_BLOCK];
    uint32_t scales[VF_LANES];
    int is_good;
    const vi scale = fp8_block_scale(input, min_scale, &is_good);
    vi_store(scales, scale);
    *scale_byte = (uint8_t)scales[0];
    if (!is_good) {
        memset(values, 0, FP8_BLOCK);
        return;
    }
    const vf inverse = inverse_of_scale(scale);
    for (int i = 0; i < FP8_BLOCK; i += VF_LANES) {
        vi_store(codes + i, e4m3_code(round_e4m3(vf_mul(vf_load_bf16(input + i), inverse)), scale));
    }
    for (int i = 0; i < FP8_BLOCK; i++) {
        values[i] = (uint8_t)codes[i];
    }
}

static inline void encode_fp8_row(const uint16_t *input, uint32_t min_scale, entry_place place)
{
    const uint32_t n_codes = DSRI_HEAD_DIM - FP8_KEPT;
    if (place.values == NULL) {
        return;
    }
    for (uint32_t first = 0; first < n_codes; first += FP8_BLOCK) {
        encode_fp8_block(input + first, min_scale, place.values + first, place.scales + first / FP8_BLOCK);
    }
    memcpy(place.values + n_codes, input + n_codes, FP8_KEPT * sizeof *input);
    place.scales[DSRI_FP8_SCALE_BYTES - 1] = 0;
}

/* Codes of a block side by side: four words of each lane's 8 features, low nibble first. */
static inline void pack_fp4_block(const vf x[FP4_BLOCK], vi scale, uint32_t words[4][VF_LANES])
{
    for (int w = 0; w < 4; w++) {
        vi word = vi_set1(0);
        for (int i = 7; i >= 0; i--) {
            word = vi_or(vi_shl(word, 4), e2m1_code(x[8 * w + i], scale));
        }
        vi_store(words[w], word);
    }
}

/* n <= VF_LANES keys, side by side, to their places. x: scratch. */
static inline void encode_fp4_keys(const uint16_t *keys, uint32_t n, int transforms, uint32_t min_scale,
                                   const entry_place *places, vf x[FP4_DIM])
{
    uint32_t words[FP4_DIM / 8][VF_LANES], scales[FP4_DIM / FP4_BLOCK][VF_LANES];
    fp4_load(keys, n, x);
    if (transforms) {
        hadamard(x);
    }
    for (int b = 0; b < FP4_DIM / FP4_BLOCK; b++) {
        const vi scale = fp4_quantise(x + b * FP4_BLOCK, min_scale);
        pack_fp4_block(x + b * FP4_BLOCK, scale, words + 4 * b);
        vi_store(scales[b], scale);
    }
    for (uint32_t v = 0; v < n; v++) {
        if (places[v].values == NULL) {
            continue;
        }
        for (int w = 0; w < FP4_DIM / 8; w++) {
            memcpy(places[v].values + 4 * w, &words[w][v], 4);
        }
        for (int b = 0; b < FP4_DIM / FP4_BLOCK; b++) {
            places[v].scales[b] = (uint8_t)scales[b][v];
        }
    }
}

#endif
