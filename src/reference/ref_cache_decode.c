/* Decoding of packed caches: value * 2^(scale - 127) in F32, rounded to BF16. Every NaN is 7fc0. */
#include "ref_bits.h"
#include "reference.h"

#include <math.h>
#include <string.h>

enum { FP4_BLOCK = 32, FP8_BLOCK = 64, FP8_VALUES = 448, BF16_NAN = 0x7fc0 };

/* E2M1: 1 sign bit, 2 of exponent (bias 1), 1 of mantissa. */
static float value_of_e2m1(uint32_t code)
{
    static const float magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    return code & 8 ? -magnitudes[code & 7] : magnitudes[code & 7];
}

/* E4M3: 1 sign bit, 4 of exponent (bias 7), 3 of mantissa; no infinities, two NaN. */
static float value_of_e4m3(uint32_t code)
{
    const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
    float magnitude;
    if ((code & 0x7f) == 0x7f) {
        magnitude = NAN;
    } else if (exponent == 0) {
        magnitude = (float)mantissa * 0x1p-9f;
    } else {
        magnitude = float_of((exponent + 120) << 23 | mantissa << 20);
    }
    return code & 0x80 ? -magnitude : magnitude;
}

/* 2^(scale - 127); the least is subnormal. */
static float value_of_e8m0(uint32_t scale)
{
    return scale == 255 ? NAN : float_of(scale > 0 ? scale << 23 : 0x00400000u);
}

static uint16_t scaled(float value, float scale)
{
    const float x = value * scale;
    return isnan(x) ? BF16_NAN : ref_bf16_from_f32(x);
}

void ref_decode_fp4_key(const uint8_t values[64], const uint8_t scales[4], uint16_t key[128])
{
    for (uint32_t f = 0; f < REF_INDEX_DIM; f++) {
        const uint32_t code = f % 2 ? values[f / 2] >> 4 : values[f / 2] & 15u;
        key[f] = scaled(value_of_e2m1(code), value_of_e8m0(scales[f / FP4_BLOCK]));
    }
}

void ref_decode_fp8_row(const uint8_t values[576], const uint8_t scales[7], uint16_t row[512])
{
    for (uint32_t f = 0; f < FP8_VALUES; f++) {
        row[f] = scaled(value_of_e4m3(values[f]), value_of_e8m0(scales[f / FP8_BLOCK]));
    }
    memcpy(row + FP8_VALUES, values + FP8_VALUES, (REF_HEAD_DIM - FP8_VALUES) * sizeof *row);
}
