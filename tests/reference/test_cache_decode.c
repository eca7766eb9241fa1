/* Decoding of packed keys and rows: every code under every scale against arithmetic in float64. */
#include "reference_test.h"

#include <math.h>

static double value_of_code(uint32_t code, int exponent_bits, int mantissa_bits, int bias)
{
    const uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
    const uint32_t exponent = code >> mantissa_bits & ((1u << exponent_bits) - 1);
    const double fraction = (double)mantissa / (double)(1u << mantissa_bits);
    const double magnitude = exponent == 0 ? ldexp(fraction, 1 - bias) : ldexp(1.0 + fraction, (int)exponent - bias);
    return code >> (exponent_bits + mantissa_bits) & 1 ? -magnitude : magnitude;
}

/* Nearest BF16, ties to even, infinite past the greatest. */
static uint16_t nearest_bf16(double x)
{
    const double a = fabs(x);
    int exponent;
    frexp(a, &exponent); /* a in [2^(exponent - 1), 2^exponent) */
    const double ulp = ldexp(1.0, exponent - 1 < -126 ? -133 : exponent - 8);
    const double rounded = nearbyint(a / ulp) * ulp;
    uint32_t magnitude;
    if (rounded >= 0x1p128) {
        magnitude = 0x7f80;
    } else {
        magnitude = bits((float)rounded) >> 16;
        assert_true((double)from_bits(magnitude << 16) == rounded);
    }
    return (uint16_t)(magnitude | (signbit(x) ? 0x8000u : 0));
}

static uint16_t expected(double value, int is_nan, uint32_t scale)
{
    return is_nan || scale == 255 ? 0x7fc0 : nearest_bf16(ldexp(value, (int)scale - 127));
}

static void fp4_keys_decode_as_in_float64(void **state)
{
    (void)state;
    for (uint32_t scale = 0; scale < 256; scale++) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint8_t values[64] = {0}, scales[4];
            uint16_t key[128];
            const uint32_t block = byte % 4, at = block * 16 + byte / 4 % 16;
            memset(scales, (int)(scale ^ 0x55), sizeof scales);
            scales[block] = (uint8_t)scale;
            values[at] = (uint8_t)byte;
            ref_decode_fp4_key(values, scales, key);
            assert_int_equal(key[2 * at], expected(value_of_code(byte & 15, 2, 1, 1), 0, scale));
            assert_int_equal(key[2 * at + 1], expected(value_of_code(byte >> 4, 2, 1, 1), 0, scale));
        }
    }
}

static void fp8_rows_decode_as_in_float64(void **state)
{
    (void)state;
    for (uint32_t scale = 0; scale < 256; scale++) {
        for (uint32_t code = 0; code < 256; code++) {
            uint8_t values[576] = {0}, scales[7];
            uint16_t row[512];
            const uint32_t block = code % 7, at = block * 64 + code / 4;
            memset(scales, (int)(scale ^ 0x55), sizeof scales);
            scales[block] = (uint8_t)scale;
            values[at] = (uint8_t)code;
            ref_decode_fp8_row(values, scales, row);
            assert_int_equal(row[at], expected(value_of_code(code, 4, 3, 7), (code & 0x7f) == 0x7f, scale));
        }
    }
}

static void last_features_of_a_row_are_kept(void **state)
{
    (void)state;
    for (uint32_t b = 0; b < 0x10000; b += 64) {
        uint8_t values[576] = {0};
        const uint8_t scales[7] = {255, 255, 255, 255, 255, 255, 255};
        uint16_t row[512];
        for (uint32_t i = 0; i < 64; i++) {
            values[448 + 2 * i] = (uint8_t)(b + i);
            values[449 + 2 * i] = (uint8_t)((b + i) >> 8);
        }
        ref_decode_fp8_row(values, scales, row);
        for (uint32_t i = 0; i < 64; i++) {
            assert_int_equal(row[448 + i], b + i);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp4_keys_decode_as_in_float64),
        cmocka_unit_test(fp8_rows_decode_as_in_float64),
        cmocka_unit_test(last_features_of_a_row_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
