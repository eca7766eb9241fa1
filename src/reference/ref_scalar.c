/* The scalar number formats: BF16, power-of-two scales, E4M3 and E2M1. */
#include "ref_bits.h"
#include "reference.h"

#include <math.h>

float ref_f32_from_bf16(uint16_t x)
{
    return float_of((uint32_t)x << 16);
}

uint16_t ref_bf16_from_f32(float x)
{
    const uint32_t b = bits_of(x);
    if (x != x) {
        return (uint16_t)(b >> 16 | 0x40u); /* the carry below could turn a NaN into -0 */
    }
    return (uint16_t)((b + 0x7fffu + (b >> 16 & 1u)) >> 16);
}

float ref_pow2_ceil(float x)
{
    return float_of((bits_of(x) + 0x7fffffu) & 0x7f800000u);
}

float ref_round_e4m3(float x)
{
    const float a = fabsf(x);
    float rounded;
    if (a < 0x1p-6f) {
        rounded = (a + 0x1p14f) - 0x1p14f; /* subnormals: steps of 2^-9, the unit of floats at 2^14 */
    } else {
        const uint32_t b = bits_of(a);
        rounded = float_of((b + 0x7ffffu + (b >> 20 & 1u)) & 0xfff00000u);
    }
    return copysignf(rounded, x);
}

float ref_round_e2m1(float x)
{
    const float a = fabsf(x);
    /* Between two grid points the tie goes to the one with the even code: 0, 1, 2, 4. */
    const float rounded = a <= 0.25f   ? 0.0f
                          : a < 0.75f  ? 0.5f
                          : a <= 1.25f ? 1.0f
                          : a < 1.75f  ? 1.5f
                          : a <= 2.5f  ? 2.0f
                          : a < 3.5f   ? 3.0f
                          : a <= 5.0f  ? 4.0f
                                       : 6.0f;
    return copysignf(rounded, x);
}
