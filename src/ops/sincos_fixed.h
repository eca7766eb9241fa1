/* Sine and cosine of an F32 angle in fixed point: integer arithmetic only, so no compiler, instruction set or device
 * can give other bits. Right to the last bit but for near-ties. */
#ifndef DSRI_SINCOS_FIXED_H
#define DSRI_SINCOS_FIXED_H

#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define DSRI_SHARED_CODE static __device__ inline
#else
#define DSRI_SHARED_CODE static inline
#endif

DSRI_SHARED_CODE uint64_t sincos_multiply_high(uint64_t a, uint64_t b)
{
#if defined(__CUDA_ARCH__)
    return __umul64hi(a, b);
#elif defined(__SIZEOF_INT128__)
    __extension__ typedef unsigned __int128 uint128;
    return (uint64_t)((uint128)a * b >> 64);
#else
    const uint64_t a_low = (uint32_t)a, a_high = a >> 32, b_low = (uint32_t)b, b_high = b >> 32;
    const uint64_t first = a_high * b_low + (a_low * b_low >> 32);
    const uint64_t second = a_low * b_high + (uint32_t)first;
    return a_high * b_high + (first >> 32) + (second >> 32);
#endif
}

/* value is not 0. */
DSRI_SHARED_CODE int sincos_leading_zeros(uint64_t value)
{
#if defined(__CUDA_ARCH__)
    return __clzll((long long)value);
#else
    return __builtin_clzll(value);
#endif
}

DSRI_SHARED_CODE float sincos_float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* value * 2^-scale to F32 bits, nearest even. value is not 0 and the result is normal. */
DSRI_SHARED_CODE uint32_t sincos_round(uint64_t value, int scale)
{
    const int zeros = sincos_leading_zeros(value);
    value <<= zeros;
    /* 24 bits stay; a tie goes to the even one. The hidden bit raises the exponent field by 1, and so does a carry. */
    const uint64_t half_or_less = 0x7fffffffffu + (value >> 40 & 1u);
    const uint64_t mantissa = (value >> 40) + (((value & 0xffffffffffu) + half_or_less) >> 40);
    return (uint32_t)mantissa + ((uint32_t)(63 - (scale + zeros) + 126) << 23);
}

/* c[0] - square * (c[1] - square * (... c[8])), all in units of 2^-63 but square in 2^-64. */
DSRI_SHARED_CODE uint64_t sincos_series(uint64_t square, const uint64_t c[9])
{
    uint64_t sum = c[8];
    for (int k = 7; k >= 0; k--) {
        sum = c[k] - sincos_multiply_high(square, sum);
    }
    return sum;
}

/* The angle in quarter turns: the low two bits of the result and *place, in units of 2^-64 quarter turns. The angle is
 * mantissa * 2^(exponent_field - 150) with exponent_field >= 115. */
DSRI_SHARED_CODE uint32_t sincos_quarter_turns(uint32_t mantissa, uint32_t exponent_field, uint64_t *place)
{
    /* 2 / pi behind 64 zero bits. Of the product only 2 bits before the point and 64 behind are wanted: the 96 bits of
     * 2 / pi from bit exponent_field - 88 on give them. */
    static const uint32_t words[9] = {0,           0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                      0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
    const uint32_t first = exponent_field - 88, at = first / 32, left = first % 32;
    const uint64_t pair0 = (uint64_t)words[at] << 32 | words[at + 1];
    const uint64_t pair1 = (uint64_t)words[at + 1] << 32 | words[at + 2];
    const uint64_t pair2 = (uint64_t)words[at + 2] << 32 | words[at + 3];

    const uint64_t low = (uint64_t)mantissa * (uint32_t)(pair2 << left >> 32);
    const uint64_t middle = (uint64_t)mantissa * (uint32_t)(pair1 << left >> 32) + (low >> 32);
    const uint32_t high = mantissa * (uint32_t)(pair0 << left >> 32) + (uint32_t)(middle >> 32);

    *place = (uint64_t)high << 34 | (uint64_t)(uint32_t)middle << 2 | (uint32_t)low >> 30;
    return high >> 30;
}

/* angle must be finite. */
DSRI_SHARED_CODE void sincos_fixed(float angle, float *sine, float *cosine)
{
    /* (pi / 2)^k / k! * 2^63 for odd and even k */
    static const uint64_t sine_terms[9] = {0xc90fdaa22168c235u, 0x52aef39896f94afbu, 0xa335e33bad570e9u,
                                           0x9969667315ec2eu,   0x541e0d21fb9e0u,    0x1e3074fde887u,
                                           0x7a3d0d3406u,       0x16fadb9f1u,        0x355d865u};
    static const uint64_t cosine_terms[9] = {0x8000000000000000u, 0x9de9e64df22ef2d2u, 0x20783e1036b58767u,
                                             0x2aba78fc797ff40u,  0x1e1f506891babbu,   0xd368f9510254u,
                                             0x3f3a7146ec8u,      0xdb7127a26u,        0x2418c586u};
    uint32_t bits;
    memcpy(&bits, &angle, sizeof bits);
    const uint32_t size = bits & 0x7fffffffu, minus = 0x80000000u;

    if (size < 0x39800000u) { /* below 2^-12: the nearest floats are the angle itself and 1 */
        *sine = angle;
        *cosine = 1.0f;
        return;
    }
    uint64_t place;
    uint32_t quadrant = sincos_quarter_turns((size & 0x7fffffu) | 0x800000u, size >> 23, &place);
    uint32_t s_sign = 0; /* of the sine of the distance to the nearest axis */
    if (place >> 63) {
        place = 0 - place;
        quadrant++;
        s_sign = minus;
    }
    const uint64_t square = sincos_multiply_high(place, place);
    uint32_t s = 0;
    if (place != 0) {
        const int zeros = sincos_leading_zeros(place); /* scale a small place up: all its bits count */
        s = sincos_round(sincos_multiply_high(place << zeros, sincos_series(square, sine_terms)), 63 + zeros);
    }
    s ^= s_sign;
    const uint32_t c = sincos_round(sincos_series(square, cosine_terms), 63);

    const uint32_t odd = quadrant & 1u;
    const uint32_t sine_minus = (quadrant & 2u) != 0 ? minus : 0;
    const uint32_t cosine_minus = ((quadrant + 1u) & 2u) != 0 ? minus : 0;
    *sine = sincos_float_of((odd ? c : s) ^ sine_minus ^ (bits & minus));
    *cosine = sincos_float_of((odd ? s : c) ^ cosine_minus);
}

#endif
