/* Number formats, exp, sincos and the RoPE tables. */
#include "reference_test.h"

#include <math.h>

static void bf16_rounds_to_even_and_keeps_nan(void **state)
{
    (void)state;
    static const uint32_t nans[] = {0x7fff8c22u, 0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu};
    for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
        const uint16_t y = bf(from_bits(nans[i]));
        assert_true((y & 0x7fffu) > 0x7f80u);
        assert_int_equal(y & 0x8000u, nans[i] >> 16 & 0x8000u);
    }
    static const uint32_t cases[][2] = {{0x7f800000u, 0x7f80}, {0xff800000u, 0xff80}, {0x7f7fffffu, 0x7f80},
                                        {0x3f808000u, 0x3f80}, {0x3f818000u, 0x3f82}, {0x3f808001u, 0x3f81},
                                        {0x00008000u, 0x0000}, {0x00008001u, 0x0001}, {0x80000000u, 0x8000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(bf(from_bits(cases[i][0])), cases[i][1]);
    }
    for (uint32_t b = 0; b <= 0xffffu; b++) {
        const float x = unbf((uint16_t)b);
        assert_int_equal(bits(x), b << 16);
        if (x == x) {
            assert_int_equal(bf(x), b);
        }
    }
}

static void pow2_ceil_goes_up_unless_exact(void **state)
{
    (void)state;
    assert_true(ref_pow2_ceil(1.0f) == 1.0f);
    assert_true(ref_pow2_ceil(from_bits(0x3f800001u)) == 2.0f);
    assert_true(ref_pow2_ceil(from_bits(0x3f7fffffu)) == 1.0f);
    assert_true(ref_pow2_ceil(0x1p-126f) == 0x1p-126f);
    assert_true(ref_pow2_ceil(0x1.8p-126f) == 0x1p-125f);
    static const float fp8[][2] = {{1e-4f, 0x1p-22f}, {1, 0x1p-8f}, {3.5f, 0x1p-7f}, {7, 0x1p-6f}, {448, 1}, {449, 2}};
    for (size_t i = 0; i < sizeof fp8 / sizeof *fp8; i++) {
        assert_true(ref_pow2_ceil(fp8[i][0] / 448.0f) == fp8[i][1]);
    }
    static const float fp4[][2] = {{7.052966e-38f, 0x1p-126f}, {0.1f, 0x1p-5f}, {1, 0x1p-2f}, {6, 1}, {6.1f, 2}};
    for (size_t i = 0; i < sizeof fp4 / sizeof *fp4; i++) {
        assert_true(ref_pow2_ceil(fp4[i][0] / 6.0f) == fp4[i][1]);
    }
}

/* The nearest of a rising list of codes, ties to the even code, by trying them all. */
static float nearest(const double *grid, int n, float x)
{
    const double a = fabs((double)x);
    int best = 0;
    for (int code = 1; code < n; code++) {
        const double d = fabs(grid[code] - a), best_d = fabs(grid[best] - a);
        if (d < best_d || (d == best_d && code % 2 == 0)) {
            best = code;
        }
    }
    return copysignf((float)grid[best], x);
}

static void check_rounding(float (*round)(float), const double *grid, int n)
{
    uint64_t seed = 1;
    for (int i = 0; i < n - 1; i++) {
        const float low = (float)grid[i], high = (float)grid[i + 1], middle = (low + high) / 2;
        const float at[] = {low, middle, nextafterf(middle, 0.0f), nextafterf(middle, 1e9f), high};
        for (int j = 0; j < 5; j++) {
            assert_int_equal(bits(round(at[j])), bits(nearest(grid, n, at[j])));
            assert_int_equal(bits(round(-at[j])), bits(nearest(grid, n, -at[j])));
        }
    }
    for (int i = 0; i < 20000; i++) {
        const float x = ldexpf(random_value(&seed), (int)(random_bits(&seed) % 24) - 16);
        if (fabs((double)x) <= grid[n - 1]) {
            assert_int_equal(bits(round(x)), bits(nearest(grid, n, x)));
        }
    }
}

static void e4m3_rounds_to_the_nearest_code(void **state)
{
    (void)state;
    double grid[127];
    for (int code = 0; code < 127; code++) {
        grid[code] = code < 8 ? code * 0x1p-9 : ldexp(1.0 + (code % 8) / 8.0, code / 8 - 7);
    }
    assert_true(grid[126] == 448.0);
    check_rounding(ref_round_e4m3, grid, 127);
    static const float cases[][2] = {{0.0009765625f, 0}, {0.00146484375f, 0.001953125f},
                                     {1.0625f, 1},       {1.1875f, 1.25f},
                                     {17, 16},           {19, 20},
                                     {440, 448},         {448, 448}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(bits(ref_round_e4m3(cases[i][0])), bits(cases[i][1]));
    }
    assert_int_equal(bits(ref_round_e4m3(-0.0005f)), 0x80000000u);
}

static void e2m1_rounds_to_the_nearest_code(void **state)
{
    (void)state;
    static const double grid[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    check_rounding(ref_round_e2m1, grid, 8);
    static const float cases[][2] = {{0.25f, 0}, {0.75f, 1}, {1.25f, 1},     {1.75f, 2}, {2.5f, 2},
                                     {3.5f, 4},  {5, 4},     {5.657f, 6.0f}, {100, 6},   {-0.25f, -0.0f}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(bits(ref_round_e2m1(cases[i][0])), bits(cases[i][1]));
    }
}

static void exp_at_the_ends(void **state)
{
    (void)state;
    assert_int_equal(bits(ref_exp(0.0f)), 0x3f800000u);
    assert_int_equal(bits(ref_exp(-0.0f)), 0x3f800000u);
    assert_int_equal(bits(ref_exp(-1e-30f)), 0x3f800000u);
    assert_int_equal(bits(ref_exp(-INFINITY)), 0);
    assert_int_equal(bits(ref_exp(-3e38f)), 0);
    assert_int_equal(bits(ref_exp(from_bits(0xc2aeac50u))), 0); /* the first float below ln(2^-126) */
    assert_true(ref_exp(from_bits(0xc2aeac4fu)) >= 0x1p-126f);  /* the last above */
    assert_true(isnan(ref_exp(NAN)));
    assert_true(isnan(ref_exp(from_bits(0xffc00001u))));

    /* Changing this number is changing the bits of the library. */
    uint64_t hash = 0;
    for (uint32_t b = 0xbe000000u; b < 0xc2b00000u; b += 211) {
        hash = hash * 0x100000001b3ull + bits(ref_exp(from_bits(b)));
    }
    assert_int_equal(hash, 0x5537593b8af69758u);
}

/* Values from 113-bit arithmetic, correctly rounded. */
static void sincos_of_known_angles(void **state)
{
    (void)state;
    static const uint32_t cases[][3] = {
        {0x39800000u, 0x39800000u, 0x3f800000u}, /* 0.000244140625 */
        {0x3a83126fu, 0x3a83126eu, 0x3f7ffff8u}, /* 0.00100000005 */
        {0x3f000000u, 0x3ef57744u, 0x3f60a940u}, /* 0.5 */
        {0x3f490fdbu, 0x3f3504f3u, 0x3f3504f3u}, /* 0.785398185 */
        {0x3f490fdbu, 0x3f3504f3u, 0x3f3504f3u}, /* 0.785398185 */
        {0x3f800000u, 0x3f576aa4u, 0x3f0a5140u}, /* 1 */
        {0x3fc90fdau, 0x3f800000u, 0x33a22169u}, /* 1.57079625 */
        {0x3fc90fdbu, 0x3f800000u, 0xb33bbd2eu}, /* 1.57079637 */
        {0x40490fdbu, 0xb3bbbd2eu, 0xbf800000u}, /* 3.14159274 */
        {0x4096cbe4u, 0xbf800000u, 0x324cde2eu}, /* 4.71238899 */
        {0x40c90fdbu, 0x343bbd2eu, 0x3f800000u}, /* 6.28318548 */
        {0x42c80000u, 0xbf01a12eu, 0x3f5cc0eeu}, /* 100 */
        {0x4068acaau, 0xbef2bdbdu, 0xbf61666au}, /* 3.63553858 */
        {0x497ffff0u, 0xbf1d9959u, 0x3f49bd23u}, /* 1048575 */
        {0x49300a2fu, 0x3f0ec760u, 0x3f547c5du}, /* 721058.938 */
        {0x501502f9u, 0xbef99a64u, 0x3f5f84c5u}, /* 1e+10 */
        {0x50a3e87fu, 0x3f800000u, 0xb10a4ed8u}, /* 2.19993846e+10 */
        {0x5f800000u, 0x3cc151aau, 0xbf7fedc0u}, /* 1.84467441e+19 */
        {0x64078678u, 0xbf3becc4u, 0x3f2dd6f7u}, /* 9.99999978e+21 */
        {0x7f7fffffu, 0xbf0599b3u, 0x3f5a5f96u}, /* 3.40282347e+38 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float s, c;
        ref_sincos(from_bits(cases[i][0]), &s, &c);
        assert_int_equal(bits(s), cases[i][1]);
        assert_int_equal(bits(c), cases[i][2]);
        ref_sincos(-from_bits(cases[i][0]), &s, &c);
        assert_int_equal(bits(s), cases[i][1] ^ 0x80000000u);
        assert_int_equal(bits(c), cases[i][2]);
    }
}

static void sincos_of_zero_and_tiny_angles(void **state)
{
    (void)state;
    static const uint32_t angles[] = {0x00000000u, 0x80000000u, 0x00000001u, 0x80000001u, 0x00800000u, 0x397fffffu};
    for (size_t i = 0; i < sizeof angles / sizeof *angles; i++) {
        float s, c;
        ref_sincos(from_bits(angles[i]), &s, &c);
        assert_int_equal(bits(s), angles[i]);
        assert_int_equal(bits(c), 0x3f800000u);
    }
}

static void rope_tables_are_the_published_ones(void **state)
{
    (void)state;
    static const struct {
        int i;
        double f;
    } yarn[] = {{0, 1},
                {1, 0.687656022},
                {8, 0.05},
                {15, 0.00363553858},
                {16, 0.002265625},
                {18, 0.000849689727},
                {20, 0.000296977778},
                {22, 9.0867843e-05},
                {24, 1.953125e-05},
                {25, 5.37231267e-06},
                {28, 1.74692811e-06},
                {31, 5.68052904e-07}};
    double f[32];
    acc_rope_frequencies(160000.0, 1, f);
    for (size_t i = 0; i < sizeof yarn / sizeof *yarn; i++) {
        assert_true(fabs(f[yarn[i].i] / yarn[i].f - 1.0) < 2e-9);
    }
    acc_rope_frequencies(10000.0, 0, f);
    assert_true(f[0] == 1.0);
    assert_true(fabs(f[8] - 0.1) < 1e-16);
    assert_true(fabs(f[16] - 0.01) < 1e-17);
    assert_true(fabs(f[31] / 1.333521432163324e-04 - 1.0) < 1e-14);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_rounds_to_even_and_keeps_nan),
        cmocka_unit_test(pow2_ceil_goes_up_unless_exact),
        cmocka_unit_test(e4m3_rounds_to_the_nearest_code),
        cmocka_unit_test(e2m1_rounds_to_the_nearest_code),
        cmocka_unit_test(exp_at_the_ends),
        cmocka_unit_test(sincos_of_known_angles),
        cmocka_unit_test(sincos_of_zero_and_tiny_angles),
        cmocka_unit_test(rope_tables_are_the_published_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
