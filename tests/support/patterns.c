#include "patterns.h"

#include <string.h>

static const uint32_t special_bits[] = {
    0x00000000u, 0x80000000u, 0x00010000u, 0x80010000u, 0x007f0000u, 0x807f0000u, 0x00800000u, 0x80800000u,
    0x7f7f0000u, 0xff7f0000u, 0x3f800000u, 0xbf800000u, 0x40000000u, 0x33800000u, 0x4b800000u, 0xc0490000u,
};
static const uint32_t nonfinite_bits[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffff0000u, 0x7f810000u, 0xff910000u};

enum { N_SPECIAL = sizeof special_bits / sizeof special_bits[0], N_NONFINITE = 6 };

const char *pattern_name(pattern kind)
{
    static const char *const names[N_PATTERNS] = {"normal", "equal", "signed-zero", "subnormal",
                                                  "large",  "mixed", "grid-fp4",    "nonfinite"};
    return kind < N_PATTERNS ? names[kind] : "?";
}

float f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

uint32_t f32_to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

float f32_from_bf16(uint16_t x)
{
    return f32_from_bits((uint32_t)x << 16);
}

uint16_t bf16_from_f32_exact(float x)
{
    return (uint16_t)(f32_to_bits(x) >> 16);
}

static uint32_t subnormal_bits(random_stream *random, uint32_t mantissa_mask)
{
    const uint32_t bits = (uint32_t)random_next(random);
    const uint32_t exponent = random_one_in(random, 4) ? 1 : 0;
    return (bits & 0x80000000u) | (exponent << 23) | (bits & 0x007fffffu & mantissa_mask);
}

/* Exponents near the top, infinity and NaN left out. */
static uint32_t large_bits(random_stream *random, uint32_t mantissa_mask)
{
    const uint32_t bits = (uint32_t)random_next(random);
    const uint32_t exponent = 254 - random_below(random, 70);
    return (bits & 0x80000000u) | (exponent << 23) | (bits & 0x007fffffu & mantissa_mask);
}

/* Bits of one value; mantissa_mask keeps it exact in the wanted format. */
static uint32_t value_bits(random_stream *random, pattern kind, float scale, uint32_t mantissa_mask)
{
    const uint32_t normal = f32_to_bits(random_normal(random) * scale) & (0xff800000u | mantissa_mask);

    switch (kind) {
    case PATTERN_EQUAL:
        return f32_to_bits((float)((int)random_below(random, 3) - 1) * scale);
    case PATTERN_SIGNED_ZERO:
        return random_one_in(random, 16) ? normal : normal & 0x80000000u;
    case PATTERN_SUBNORMAL:
        return subnormal_bits(random, mantissa_mask);
    case PATTERN_LARGE:
        return large_bits(random, mantissa_mask);
    case PATTERN_MIXED:
        return random_one_in(random, 4) ? special_bits[random_below(random, N_SPECIAL)] : normal;
    case PATTERN_NONFINITE:
        return random_one_in(random, 97) ? nonfinite_bits[random_below(random, N_NONFINITE)] : normal;
    case PATTERN_NORMAL:
    case PATTERN_GRID_FP4:
    case N_PATTERNS:
        break;
    }
    return normal;
}

static float grid_value(random_stream *random, float block_scale)
{
    static const float grid[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    const uint32_t code = random_below(random, 16);
    const float magnitude = grid[code & 7] * block_scale;
    return code & 8 ? -magnitude : magnitude;
}

/* Element i of a grid row; block scales span 2^-4..2^3 around `scale`. */
static float grid_element(random_stream *random, size_t i, float scale, float *block_scale)
{
    if (i % 32 == 0) {
        *block_scale = scale * (float)(1u << random_below(random, 8)) * 0x1p-4f;
    }
    return grid_value(random, *block_scale);
}

void pattern_fill_bf16(random_stream *random, pattern kind, float scale, uint16_t *x, size_t n)
{
    float block_scale = scale;
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = kind == PATTERN_GRID_FP4 ? f32_to_bits(grid_element(random, i, scale, &block_scale))
                                                       : value_bits(random, kind, scale, 0x007f0000u);
        x[i] = (uint16_t)(bits >> 16);
    }
}

void pattern_fill_f32(random_stream *random, pattern kind, float scale, float *x, size_t n)
{
    float block_scale = scale;
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = kind == PATTERN_GRID_FP4 ? f32_to_bits(grid_element(random, i, scale, &block_scale))
                                                       : value_bits(random, kind, scale, 0x007fffffu);
        memcpy(&x[i], &bits, sizeof bits);
    }
}

void pattern_fill_bits(random_stream *random, void *bytes, size_t n_bytes)
{
    uint8_t *at = bytes;
    for (size_t i = 0; i < n_bytes; i++) {
        at[i] = (uint8_t)random_next(random);
    }
}
