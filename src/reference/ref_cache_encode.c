/* Encoding of packed caches. A block's scale is the least power of two from 2^-127 on that brings its greatest value
 * into the format; a block with a value that is not finite is zeros, and so is a value whose decoding would not be
 * finite. */
#include "ref_bits.h"
#include "reference.h"

#include <math.h>
#include <string.h>

enum { FP4_BLOCK = 32, FP8_BLOCK = 64, FP8_VALUES = 448 };

/* 2^(scale - 127); the least is subnormal. */
static float value_of_scale(uint32_t scale)
{
    return float_of(scale > 0 ? scale << 23 : 0x00400000u);
}

/* The least E8M0 byte with largest * 2^(byte - 127) >= the greatest of n magnitudes and the floor. Values that are not
 * finite count as 0; *is_good tells whether there are none. */
static uint8_t scale_of_block(const float *x, uint32_t n, float amax_floor, float largest, int *is_good)
{
    float amax = amax_floor;
    uint8_t scale = 0;

    *is_good = 1;
    for (uint32_t i = 0; i < n; i++) {
        *is_good = *is_good && isfinite(x[i]);
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    }
    amax = *is_good ? amax : amax_floor;
    while (amax > largest * value_of_scale(scale)) {
        scale++;
    }
    return scale;
}

/* x / 2^(scale - 127): exact, since it is not subnormal where x is not. */
static float unscaled(float x, uint8_t scale)
{
    return x / value_of_scale(scale);
}

static int decodes_to_finite(float grid, uint8_t scale)
{
    return isfinite(ref_f32_from_bf16(ref_bf16_from_f32(grid * value_of_scale(scale))));
}

static uint32_t sign_of(float x)
{
    return signbit(x) ? 1 : 0;
}

/* The code of a value on the E4M3 grid. */
static uint8_t code_of_e4m3(float grid)
{
    const float a = fabsf(grid);
    const uint32_t normal = (bits_of(a) >> 20) - (120u << 3); /* exponent bias 7 for 127 */
    const uint32_t magnitude = a < 0x1p-6f ? (uint32_t)(a * 0x1p9f) : normal;
    return (uint8_t)(sign_of(grid) << 7 | magnitude);
}

/* The code of a value on the E2M1 grid. */
static uint8_t code_of_e2m1(float grid)
{
    static const float magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    uint32_t magnitude = 0;
    while (magnitudes[magnitude] < fabsf(grid)) {
        magnitude++;
    }
    return (uint8_t)(sign_of(grid) << 3 | magnitude);
}

static float clamp(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

static void encode_fp8(const uint16_t input[512], float amax_floor, uint8_t values[576], uint8_t scales[8])
{
    float x[FP8_BLOCK];

    for (uint32_t first = 0; first < FP8_VALUES; first += FP8_BLOCK) {
        int is_good;
        for (uint32_t i = 0; i < FP8_BLOCK; i++) {
            x[i] = ref_f32_from_bf16(input[first + i]);
        }
        const uint8_t scale = scale_of_block(x, FP8_BLOCK, amax_floor, 448.0f, &is_good);
        for (uint32_t i = 0; i < FP8_BLOCK; i++) {
            const float grid = is_good ? ref_round_e4m3(clamp(unscaled(x[i], scale), 448.0f)) : 0.0f;
            values[first + i] = decodes_to_finite(grid, scale) ? code_of_e4m3(grid) : 0;
        }
        scales[first / FP8_BLOCK] = scale;
    }
    memcpy(values + FP8_VALUES, input + FP8_VALUES, (REF_HEAD_DIM - FP8_VALUES) * sizeof *input);
    scales[7] = 0;
}

static void encode_fp4(const float x[128], float amax_floor, uint8_t values[64], uint8_t scales[4])
{
    memset(values, 0, REF_INDEX_DIM / 2);
    for (uint32_t first = 0; first < REF_INDEX_DIM; first += FP4_BLOCK) {
        int is_good;
        const uint8_t scale = scale_of_block(x + first, FP4_BLOCK, amax_floor, 6.0f, &is_good);
        for (uint32_t i = first; i < first + FP4_BLOCK; i++) {
            const float grid = is_good ? ref_round_e2m1(unscaled(x[i], scale)) : 0.0f;
            const uint32_t code = decodes_to_finite(grid, scale) ? code_of_e2m1(grid) : 0;
            values[i / 2] = (uint8_t)(values[i / 2] | code << (i % 2 ? 4 : 0));
        }
        scales[first / FP4_BLOCK] = scale;
    }
}

void ref_encode_fp8_row(const uint16_t input[512], float amax_floor, uint8_t values[576], uint8_t scales[8])
{
    encode_fp8(input, amax_floor, values, scales);
}

void ref_pack_fp8_row(const uint16_t input[512], uint8_t values[576], uint8_t scales[8])
{
    encode_fp8(input, 0.0f, values, scales);
}

void ref_encode_fp4_key(const uint16_t input[128], float amax_floor, uint8_t values[64], uint8_t scales[4])
{
    float x[REF_INDEX_DIM];

    ref_hadamard(input, x);
    encode_fp4(x, amax_floor, values, scales);
}

void ref_pack_fp4_key(const uint16_t input[128], uint8_t values[64], uint8_t scales[4])
{
    float x[REF_INDEX_DIM];

    for (int i = 0; i < REF_INDEX_DIM; i++) {
        const float element = ref_f32_from_bf16(input[i]);
        x[i] = isfinite(element) ? element : 0.0f;
    }
    encode_fp4(x, 0.0f, values, scales);
}
