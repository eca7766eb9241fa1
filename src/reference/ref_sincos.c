/* Sine and cosine of an F32 angle in integer arithmetic.
 *
 * The angle is an integer m < 2^24 times a power of two. Counted in quadrants (quarter turns) it is m times 2/pi times
 * that power, of which only the value modulo 4 matters, so it is enough to multiply m by the 96 bits of 2/pi that
 * begin where a unit of m weighs 2 quadrants. The product holds the quadrant in its top two bits and the place within
 * it below, right to 2^-70. Sine and cosine of that place follow as Taylor sums in 64-bit fixed point, and one rounding
 * to F32 ends it. */
#include "ref_bits.h"
#include "reference.h"

/* High 64 bits of the product of two 64-bit integers. */
static uint64_t multiply_high(uint64_t a, uint64_t b)
{
    const uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    const uint64_t low = a0 * b0, cross = a1 * b0 + (low >> 32), middle = a0 * b1 + (uint32_t)cross;
    return a1 * b1 + (cross >> 32) + (middle >> 32);
}

/* angle = mantissa * 2^exponent >= 2^-12. Returns the quadrant, 0 to 3, and the place in it as a fraction of 2^64. */
static uint32_t reduce(uint32_t mantissa, int exponent, uint64_t *fraction)
{
    /* 64 zero bits, then 2/pi. */
    static const uint32_t two_over_pi[9] = {0,           0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                            0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
    const uint32_t first_bit = (uint32_t)(exponent + 62), word = first_bit / 32, shift = first_bit % 32;
    uint32_t window[3];
    for (uint32_t i = 0; i < 3; i++) {
        const uint64_t pair = (uint64_t)two_over_pi[word + i] << 32 | two_over_pi[word + i + 1];
        window[i] = (uint32_t)(pair >> (32 - shift));
    }
    const uint64_t low = (uint64_t)mantissa * window[2];
    const uint64_t middle = (uint64_t)mantissa * window[1] + (low >> 32);
    const uint64_t high = (uint64_t)mantissa * window[0] + (middle >> 32);
    const uint32_t top = (uint32_t)high; /* beyond: whole turns */

    *fraction = (uint64_t)top << 34 | (uint64_t)(uint32_t)middle << 2 | (uint32_t)low >> 30;
    return top >> 30;
}

/* Rounds value * 2^-scale to F32, nearest even; the result is a normal number or 0. */
static float round_to_f32(uint64_t value, int scale)
{
    if (value == 0) {
        return 0.0f;
    }
    while (value >> 63 == 0) {
        value <<= 1;
        scale++;
    }
    uint64_t mantissa = value >> 40; /* 24 bits, the first of them 1 */
    const uint64_t rest = value & 0xffffffffffu, half = 0x8000000000u;
    mantissa += rest > half || (rest == half && (mantissa & 1));
    return float_of((uint32_t)mantissa + ((uint32_t)(63 - scale + 127 - 1) << 23)); /* a carry moves the exponent up */
}

/* sin(z pi / 2) for z = place * 2^-64 <= 1/2. */
static float sine_of_place(uint64_t place)
{
    /* (pi / 2)^k / k! * 2^63 for k = 17, 15, ... 1 */
    static const uint64_t c[9] = {0x355d865u,         0x16fadb9f1u,        0x7a3d0d3406u,
                                  0x1e3074fde887u,    0x541e0d21fb9e0u,    0x9969667315ec2eu,
                                  0xa335e33bad570e9u, 0x52aef39896f94afbu, 0xc90fdaa22168c235u};
    const uint64_t square = multiply_high(place, place);
    uint64_t sum = c[0];
    int scale = 63;
    for (int i = 1; i < 9; i++) {
        sum = c[i] - multiply_high(square, sum);
    }
    if (place == 0) {
        return 0.0f;
    }
    while (place >> 63 == 0) { /* keep all bits of a small place */
        place <<= 1;
        scale++;
    }
    return round_to_f32(multiply_high(place, sum), scale);
}

/* cos(z pi / 2) for z = place * 2^-64 <= 1/2. */
static float cosine_of_place(uint64_t place)
{
    /* (pi / 2)^k / k! * 2^63 for k = 16, 14, ... 0 */
    static const uint64_t c[9] = {0x2418c586u,         0xdb7127a26u,        0x3f3a7146ec8u,
                                  0xd368f9510254u,     0x1e1f506891babbu,   0x2aba78fc797ff40u,
                                  0x20783e1036b58767u, 0x9de9e64df22ef2d2u, 0x8000000000000000u};
    const uint64_t square = multiply_high(place, place);
    uint64_t sum = c[0];
    for (int i = 1; i < 9; i++) {
        sum = c[i] - multiply_high(square, sum);
    }
    return round_to_f32(sum, 63);
}

void ref_sincos(float angle, float *sine, float *cosine)
{
    const uint32_t bits = bits_of(angle), size = bits & 0x7fffffffu, sign = bits & 0x80000000u;

    if (size < 0x39800000u) { /* below 2^-12 the sine rounds to the angle and the cosine to 1 */
        *sine = angle;
        *cosine = 1.0f;
        return;
    }
    uint64_t place;
    uint32_t quadrant = reduce((size & 0x7fffffu) | 0x800000u, (int)(size >> 23) - 150, &place);
    uint32_t flip = 0; /* count from the nearer end of the quadrant */
    if (place >> 63) {
        place = 0 - place;
        quadrant++;
        flip = 0x80000000u;
    }
    const uint32_t s = bits_of(sine_of_place(place)) ^ flip, c = bits_of(cosine_of_place(place));
    const uint32_t minus = 0x80000000u;
    switch (quadrant & 3) {
    case 0:
        *sine = float_of(s ^ sign);
        *cosine = float_of(c);
        break;
    case 1:
        *sine = float_of(c ^ sign);
        *cosine = float_of(s ^ minus);
        break;
    case 2:
        *sine = float_of(s ^ minus ^ sign);
        *cosine = float_of(c ^ minus);
        break;
    default:
        *sine = float_of(c ^ minus ^ sign);
        *cosine = float_of(s);
    }
}
