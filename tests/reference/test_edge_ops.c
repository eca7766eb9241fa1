/* RoPE, fake quantisation, RMS norm and projections. */
#include "reference_test.h"

#include <math.h>

static void table(double theta, int yarn, float frequencies[32])
{
    double f[32];
    acc_rope_frequencies(theta, yarn, f);
    for (int i = 0; i < 32; i++) {
        frequencies[i] = (float)f[i];
    }
}

static void rope_of_known_pairs(void **state)
{
    (void)state;
    static const struct {
        int yarn;
        uint32_t pos, pair;
        float a, b;
    } cases[] = {
        {1, 5, 0, 2.203125f, -0.390625f},
        {1, 1000, 15, 0.06787109375f, -2.234375f},
        {1, 1000, 20, 0.37109375f, 2.203125f},
        {0, 1000, 15, -0.671875f, 2.125f},
        {0, 1000, 20, -0.95703125f, -2.015625f},
        {1, 100000, 31, 0.88671875f, 2.046875f},
        {1, 0, 7, 1, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float frequencies[32], f32[128] = {0};
        uint16_t x[128] = {0}, y[128];
        const uint32_t at = 64 + 2 * cases[i].pair;
        table(cases[i].yarn ? 160000.0 : 10000.0, cases[i].yarn, frequencies);
        f32[at] = 1, f32[at + 1] = 2, f32[63] = 1.00390625f;
        x[at] = bf(1), x[at + 1] = bf(2), x[63] = bf(1);
        ref_rope_f32(f32, 1, 128, 64, cases[i].pos, frequencies, 0, y);
        assert_int_equal(y[at], bf(cases[i].a));
        assert_int_equal(y[at + 1], bf(cases[i].b));
        assert_int_equal(y[63], bf(1)); /* the rest is only rounded */
        ref_rope_bf16(x, 1, 128, 64, cases[i].pos, frequencies, 0, x);
        assert_memory_equal(x, y, sizeof x);
        ref_rope_bf16(x, 1, 128, 64, cases[i].pos, frequencies, 1, x);
        assert_true(fabsf(unbf(x[at]) - 1) <= 0.0078125f && fabsf(unbf(x[at + 1]) - 2) <= 0.015625f);
    }
}

static void rope_on_all_heads_is_close_to_float64(void **state)
{
    (void)state;
    static const uint32_t positions[] = {0, 1, 127, 65536, 1000000, 1048575};
    static float x[3 * 512], frequencies[32];
    static uint16_t y[3 * 512];
    fill_f32(1, x, 3 * 512);
    table(160000.0, 1, frequencies);
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        for (int inverse = 0; inverse < 2; inverse++) {
            ref_rope_f32(x, 3, 512, 64, positions[i], frequencies, inverse, y);
            for (uint32_t k = 0; k < 3 * 512; k++) {
                const uint32_t f = k % 512, pair = (f - 448) / 2, even = k - k % 2;
                double exact = (double)x[k];
                if (f >= 448) {
                    const double angle = (double)((float)positions[i] * frequencies[pair]);
                    const double c = cos(angle), s = inverse ? -sin(angle) : sin(angle);
                    const double a = (double)x[even], b = (double)x[even + 1];
                    exact = f % 2 ? a * s + b * c : a * c - b * s;
                }
                assert_true(fabs((double)unbf(y[k]) - exact) <= fabs(exact) * 0x1p-8 + 1e-6);
            }
        }
    }
}

static void rope_with_bad_values(void **state)
{
    (void)state;
    static float frequencies[32];
    float x[80];
    uint16_t y[80];
    table(10000.0, 0, frequencies);
    for (int i = 0; i < 80; i++) {
        x[i] = 1;
    }
    x[3] = NAN, x[4] = INFINITY, x[16 + 10] = -INFINITY, x[16 + 21] = NAN;
    frequencies[20] = INFINITY;
    ref_rope_f32(x, 1, 80, 64, 3, frequencies, 0, y);
    for (int i = 0; i < 80; i++) {
        const int bad = i == 3 || i == 4 || i / 2 == 8 + 5 || i / 2 == 8 + 10 || i / 2 == 8 + 20;
        assert_int_equal(y[i] == 0, bad);
        assert_true(isfinite(unbf(y[i])));
    }
}

/* Each output must be the nearest multiple by the format of the one scale that the block's largest value asks for. */
static void check_fp8_block(const uint16_t *x, const uint16_t *y, double amax_floor)
{
    double amax = amax_floor, scale = 0x1p-140;
    for (int i = 0; i < 64; i++) {
        amax = fmax(amax, fabs((double)unbf(x[i])));
    }
    while (scale * 448.0 < amax * (1 - 1e-9)) {
        scale *= 2;
    }
    for (int i = 0; i < 64; i++) {
        assert_int_equal(y[i], bf((float)((double)ref_round_e4m3((float)((double)unbf(x[i]) / scale)) * scale)));
    }
}

static void fp8_blocks(void **state)
{
    (void)state;
    static uint16_t x[512], y[512];
    for (int i = 0; i < 64; i++) {
        x[i] = bf((float)(i - 31) / 10.0f);
    }
    fill_bf16(4, x + 64, 448);
    for (int i = 128; i < 192; i++) {
        x[i] = bf(unbf(x[i]) * 1e-6f); /* below the floor */
    }
    for (int i = 192; i < 256; i++) {
        x[i] = bf(ldexpf(unbf(x[i]), i % 32));
    }
    x[300] = 0x7fc0;
    x[350] = 0xff80;
    x[384] = 0x43e0; /* 448: scale 1 */
    x[385] = 0xb980; /* -2^-12: rounds to -0 */
    x[386] = 0x8000;
    for (int i = 387; i < 448; i++) {
        x[i] = bf(unbf(x[i]) * 64);
    }
    x[450] = 0x7fc0;
    ref_fake_quant_fp8(x, 512, 1e-4f, y);

    static const float first[] = {-3, -3, -3, -2.75f, -2.75f, -2.5f};
    for (int i = 0; i < 6; i++) {
        assert_int_equal(y[i], bf(first[i]));
    }
    for (int block = 0; block < 7; block++) {
        if (block == 4 || block == 5) {
            for (int i = 0; i < 64; i++) {
                assert_int_equal(y[block * 64 + i], 0);
            }
        } else {
            check_fp8_block(x + block * 64, y + block * 64, 1e-4);
        }
    }
    assert_int_equal(y[385], 0x8000);
    assert_int_equal(y[386], 0x8000);
    assert_memory_equal(y + 448, x + 448, 64 * sizeof *x);
    ref_fake_quant_fp8(x, 512, 1e-4f, x); /* in place */
    assert_memory_equal(x, y, sizeof x);
}

static void the_top_of_bf16_does_not_become_infinite(void **state)
{
    (void)state;
    uint16_t x[128] = {0}, y[128];
    x[0] = 0x7f7f;
    x[1] = 0x7f00;
    ref_fake_quant_fp8(x, 128, 1e-4f, y);
    assert_int_equal(y[0], 0); /* rounds up to 2^128 */
    assert_int_equal(y[1], 0x7f00);
    for (int i = 0; i < 128; i++) {
        x[i] = 0x7f7f; /* the first sums overflow, which takes their block with them */
    }
    ref_hadamard_fp4(x, 7.052966e-38f, y);
    for (int i = 0; i < 128; i++) {
        assert_true(isfinite(unbf(y[i])));
    }
    assert_int_equal(y[0], 0);
}

static void hadamard_of_a_unit_vector(void **state)
{
    (void)state;
    uint16_t x[128] = {0}, y[128];
    for (int k = 0; k < 128; k++) {
        x[k] = bf(1);
        ref_hadamard_fp4(x, 7.052966e-38f, y);
        for (int i = 0; i < 128; i++) {
            int odd = 0;
            for (int b = i & k; b; b &= b - 1) {
                odd ^= 1;
            }
            assert_int_equal(y[i], bf(odd ? -0.09375f : 0.09375f)); /* 0.08838835 is 5.657 of 2^-6, which gives 6 */
        }
        x[k] = 0;
    }
    ref_hadamard_fp4(x, 7.052966e-38f, y);
    for (int i = 0; i < 128; i++) {
        assert_int_equal(y[i], 0);
    }
}

static void fp4_blocks_against_the_definition(void **state)
{
    (void)state;
    static const double grid[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    uint64_t seed = 12;
    for (int round = 0; round < 50; round++) {
        uint16_t x[128], y[128];
        float t[128];
        for (int i = 0; i < 128; i++) { /* small multiples of 1/16, so that all sums are exact */
            x[i] = bf((float)((int)(random_bits(&seed) % 255) - 127) / 16.0f * (i / 32 == round % 5 ? 1.0f : 0.125f));
        }
        for (int i = 0; i < 128; i++) {
            double sum = 0;
            for (int k = 0; k < 128; k++) {
                int odd = 0;
                for (int b = i & k; b; b &= b - 1) {
                    odd ^= 1;
                }
                sum += (odd ? -1.0 : 1.0) * (double)unbf(x[k]);
            }
            t[i] = (float)sum * 0.08838834764f;
        }
        ref_hadamard_fp4(x, 7.052966e-38f, y);
        for (int block = 0; block < 128; block += 32) {
            double amax = 0, scale = 0x1p-30;
            for (int i = block; i < block + 32; i++) {
                amax = fmax(amax, fabs((double)t[i]));
            }
            while (scale * 6 < amax) {
                scale *= 2;
            }
            for (int i = block; i < block + 32; i++) {
                int best = 0;
                for (int code = 1; code < 8; code++) {
                    const double d = fabs(fabs((double)t[i]) / scale - grid[code]);
                    const double best_d = fabs(fabs((double)t[i]) / scale - grid[best]);
                    best = d < best_d || (d == best_d && code % 2 == 0) ? code : best;
                }
                assert_int_equal(y[i], bf(copysignf((float)(grid[best] * scale), t[i])));
            }
        }
    }
}

/* The factor is the F32 number 3db504f3: at these two sums a neighbour of it would fall on the other side of a tie. */
static void the_hadamard_factor_is_exact(void **state)
{
    (void)state;
    uint16_t x[128] = {0}, y[128];
    x[0] = bf(0xe20000 * 0x1p-19f);
    x[1] = bf(0x4600 * 0x1p-19f);
    x[2] = bf(0x30 * 0x1p-19f); /* times the factor 2.5 exactly: 5 of a scale of 1/2, which goes to 4 */
    ref_hadamard_fp4(x, 7.052966e-38f, y);
    assert_int_equal(y[0], bf(2));
    x[2] = bf(0x31 * 0x1p-19f); /* one unit more, so 6 */
    ref_hadamard_fp4(x, 7.052966e-38f, y);
    assert_int_equal(y[0], bf(3));
}

static void hadamard_reads_bad_elements_as_zero(void **state)
{
    (void)state;
    uint16_t x[128], expected[128], y[128];
    fill_bf16(5, x, 128);
    x[9] = x[100] = x[127] = 0;
    ref_hadamard_fp4(x, 7.052966e-38f, expected);
    x[9] = 0x7fc0, x[100] = 0x7f80, x[127] = 0xff80;
    ref_hadamard_fp4(x, 7.052966e-38f, y);
    assert_memory_equal(y, expected, sizeof y);
}

static void fp4_floor_keeps_tiny_blocks(void **state)
{
    (void)state;
    uint16_t x[128] = {0}, y[128];
    x[0] = bf(0x1p-100f);
    ref_hadamard_fp4(x, 7.052966e-38f, y);
    assert_int_equal(y[0], bf(6 * 0x1p-106f));
    ref_hadamard_fp4(x, 1e-4f, y);
    assert_int_equal(y[0], 0);
    x[0] = bf(0x1.8p-122f); /* scale 2^-126, and the result is subnormal in places */
    ref_hadamard_fp4(x, 7.052966e-38f, y);
    assert_int_equal(y[5], bf(2 * 0x1p-126f)); /* 16 * 1.5 / 11.3 = 2.12 */
    x[0] = bf(0x1p-124f);
    ref_hadamard_fp4(x, 7.052966e-38f, y);
    assert_int_equal(y[5], 0x0040); /* 4 / 11.3 = 0.354, so half of 2^-126 */
}

static void rms_norm(void **state)
{
    (void)state;
    static float x[4096], w[4096], y[4096], scratch[4096];
    const float three[] = {3, -4, 12};
    ref_rms_norm(three, 3, NULL, 0.0f, scratch, y);
    const float r = 1.0f / sqrtf(169.0f / 3.0f);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(bits(y[i]), bits(three[i] * r));
    }

    /* By halving, 2^24 and seven ones make 2^24 + 6; from left to right the ones would be lost. */
    const float eight[] = {4096, 1, 1, 1, 1, 1, 1, 1};
    ref_rms_norm(eight, 8, NULL, 0.0f, scratch, y);
    assert_int_equal(bits(y[1]), bits(1.0f / sqrtf((0x1p24f + 6) / 8)));
    assert_int_not_equal(bits(y[1]), bits(1.0f / sqrtf(0x1p24f / 8)));

    static const uint32_t sizes[] = {512, 1024, 1280, 1536, 4096};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const uint32_t n = sizes[s];
        double sum = 0;
        fill_f32(s + 1, x, n);
        fill_f32(s + 9, w, n);
        memset(scratch, 0xff, sizeof scratch);
        ref_rms_norm(x, n, w, 1e-6f, scratch, y);
        for (uint32_t f = 0; f < n; f++) {
            sum += (double)x[f] * (double)x[f];
        }
        for (uint32_t f = 0; f < n; f++) {
            const double exact = (double)x[f] / sqrt(sum / n + 1e-6) * (double)w[f];
            assert_true(fabs((double)y[f] - exact) <= fabs(exact) * 1e-6);
        }
    }
}

static void projection_order(void **state)
{
    (void)state;
    static uint16_t x[1100], w[1100];
    for (int k = 0; k < 1100; k++) {
        x[k] = bf(1);
    }
    w[0] = bf(0x1p24f), w[1] = bf(1), w[2] = bf(1); /* lost one by one within a segment */
    assert_true(ref_projection_bf16(x, w, 1100) == 0x1p24f);
    w[1] = w[2] = 0, w[512] = w[513] = bf(1); /* summed before they meet the first segment */
    assert_true(ref_projection_bf16(x, w, 1100) == 0x1p24f + 2);
    w[513] = 0, w[1024] = bf(1); /* a segment each, added in order */
    assert_true(ref_projection_bf16(x, w, 1100) == 0x1p24f);
    assert_true(ref_projection_bf16(x, w, 1024) == 0x1p24f);
    assert_true(ref_projection_bf16(x, w, 0) == 0.0f);
    w[0] = 0, w[1024] = 0, w[1099] = bf(3);
    assert_true(ref_projection_bf16(x, w, 1100) == 4.0f);
    assert_true(ref_projection_bf16(x, w, 1099) == 1.0f);
}

static void projection_decodes_every_e4m3_code(void **state)
{
    (void)state;
    const uint16_t one = bf(1);
    const float scale = 0.75f;
    for (int code = 0; code < 256; code++) {
        const uint8_t w = (uint8_t)code;
        const int exponent = code >> 3 & 15, mantissa = code & 7;
        const double size = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
        const float y = ref_projection_fp8(&one, &w, &scale, 1);
        if ((code & 127) == 127) {
            assert_true(isnan(y));
        } else {
            assert_true((double)y == (code & 128 ? -size : size) * 0.75);
        }
    }
}

static void fp8_projection_is_the_bf16_one_on_decoded_weights(void **state)
{
    (void)state;
    enum { N = 1280 };
    static uint16_t x[N], decoded[N];
    static uint8_t w[N];
    float scales[N / 128];
    uint64_t seed = 3;
    const uint16_t one = bf(1);
    fill_bf16(1, x, N);
    for (int k = 0; k < N; k++) {
        w[k] = (uint8_t)(random_bits(&seed) % 127 | (random_bits(&seed) & 128));
        scales[k / 128] = ldexpf(1.0f, -(k / 128));
        decoded[k] = bf(ref_projection_fp8(&one, w + k, scales + k / 128, 1));
    }
    double exact = 0, size = 0;
    for (int k = 0; k < N; k++) {
        exact += (double)unbf(x[k]) * (double)unbf(decoded[k]);
        size += fabs((double)unbf(x[k]) * (double)unbf(decoded[k]));
    }
    const float y = ref_projection_fp8(x, w, scales, N);
    assert_int_equal(bits(y), bits(ref_projection_bf16(x, decoded, N)));
    assert_true(fabs((double)y - exact) < 1e-6 * size);
}

/* Changing one of these numbers is changing the bits of the library. */
static void the_bits_are_pinned(void **state)
{
    (void)state;
    static uint16_t x[4096], w[4096], y[4096];
    static float f32[4096], weight[4096], out[4096], scratch[4096], frequencies[32];
    fill_bf16(1, x, 4096);
    fill_bf16(2, w, 4096);
    fill_f32(3, f32, 4096);
    fill_f32(4, weight, 4096);
    table(160000.0, 1, frequencies);

    ref_rope_f32(f32, 8, 512, 64, 1048575, frequencies, 0, y);
    assert_int_equal(hash_of(y, sizeof y), 0xb7bc851947ec2a0eu);
    ref_fake_quant_fp8(x, 512, 1e-4f, y);
    assert_int_equal(hash_of(y, 1024), 0x1db4b19ab194a38au);
    for (int i = 0; i < 32; i++) {
        ref_hadamard_fp4(x + 128 * i, 7.052966e-38f, y + 128 * i);
    }
    assert_int_equal(hash_of(y, sizeof y), 0x1654066d4b4bae90u);
    ref_rms_norm(f32, 1280, weight, 1e-6f, scratch, out);
    assert_int_equal(hash_of(out, 1280 * sizeof *out), 0x3bb04bd71e4c2d4bu);
    assert_int_equal(bits(ref_projection_bf16(x, w, 4096)), 0xc265f9e1u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_of_known_pairs),
        cmocka_unit_test(rope_on_all_heads_is_close_to_float64),
        cmocka_unit_test(rope_with_bad_values),
        cmocka_unit_test(fp8_blocks),
        cmocka_unit_test(the_top_of_bf16_does_not_become_infinite),
        cmocka_unit_test(hadamard_of_a_unit_vector),
        cmocka_unit_test(fp4_blocks_against_the_definition),
        cmocka_unit_test(the_hadamard_factor_is_exact),
        cmocka_unit_test(hadamard_reads_bad_elements_as_zero),
        cmocka_unit_test(fp4_floor_keeps_tiny_blocks),
        cmocka_unit_test(rms_norm),
        cmocka_unit_test(projection_order),
        cmocka_unit_test(projection_decodes_every_e4m3_code),
        cmocka_unit_test(fp8_projection_is_the_bf16_one_on_decoded_weights),
        cmocka_unit_test(the_bits_are_pinned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
