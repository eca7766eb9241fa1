/* Two-pass and chunked attention: cases that can be worked out by hand, then the float64 form on random data. */
#include "reference_test.h"

#include <math.h>

enum { D = REF_HEAD_DIM, MAX_ROWS = 5000, PINNED = 20 };

typedef void attention(const uint16_t *q, const uint16_t *kv, uint64_t kv_row_stride, uint64_t kv_len,
                       const int32_t *indices, uint64_t width, const float *sinks, float scale, uint32_t n_heads,
                       float *scratch, uint16_t *output);

static attention *const forms[] = {ref_sparse_attention, ref_flash_attention};
enum { N_FORMS = 2 };

static const float scale = 0x1.6a09e6p-5f; /* 512^-0.5 */

/* Scratch is filled with NaN and output with 0x55 first, so that nothing may rest on their content. */
static void run(int form, const uint16_t *q, const uint16_t *kv, uint64_t kv_len, const int32_t *indices,
                uint64_t width, const float *sinks, float s, uint32_t n_heads, uint16_t *output)
{
    const size_t n_scratch = (width + 63) / 64 * 514;
    float *scratch = allocate(n_scratch * sizeof *scratch);
    memset(scratch, 0xff, n_scratch * sizeof *scratch);
    memset(output, 0x55, n_heads * D * sizeof *output);
    forms[form](q, kv, D, kv_len, indices, width, sinks, s, n_heads, scratch, output);
    free(scratch);
}

static int is_zero(const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (x[i] != 0) {
            return 0;
        }
    }
    return 1;
}

static void mean_with_the_sink(void **state)
{
    (void)state;
    static uint16_t q[D], kv[3][D], output[D];
    static const int32_t indices[] = {0, 1, 2};
    static const float sinks[] = {0};
    for (int t = 0; t < 3; t++) {
        kv[t][0] = bf((float)t + 1);
    }
    for (int form = 0; form < N_FORMS; form++) {
        run(form, q, kv[0], 3, indices, 3, sinks, scale, 1, output);
        assert_int_equal(output[0], 0x3fc0); /* 6 / 4 */
        assert_true(is_zero(output + 1, D - 1));
    }
}

static void worked_example(void **state)
{
    (void)state;
    static uint16_t q[D], kv[3][D], output[D];
    static const float v0[] = {4, -4, 0}, sinks[] = {0.5f};
    static const struct {
        int32_t indices[6];
        uint64_t width;
        uint16_t first, second;
    } cases[] = {
        {{0, 1, 2}, 3, 0x400d, 0x3f8b},             /* 2.20990, 1.08485 */
        {{0, -1, 1, -1, -1, 2}, 6, 0x400d, 0x3f8b}, /* skipped slots */
        {{2, 0, 1}, 3, 0x400d, 0x3f8b},             /* any order */
    };
    q[0] = bf(8);
    for (int t = 0; t < 3; t++) {
        kv[t][0] = bf(v0[t]);
        kv[t][1] = bf((float)t + 1);
    }
    for (int form = 0; form < N_FORMS; form++) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            run(form, q, kv[0], 3, cases[i].indices, cases[i].width, sinks, scale, 1, output);
            assert_int_equal(output[0], cases[i].first);
            assert_int_equal(output[1], cases[i].second);
        }
        static const int32_t twice[] = {0, 0, 1, 2};
        run(form, q, kv[0], 3, twice, 4, sinks, scale, 1, output);
        assert_int_equal(output[1], 0x3f87); /* 1.05346: a duplicate counts twice */
    }
}

/* Chunks of the chunked form without any selected slot, in front, between and behind. */
static void empty_chunks_are_left_out(void **state)
{
    (void)state;
    static uint16_t q[D], kv[3][D], output[D];
    static const float v0[] = {4, -4, 0}, sinks[] = {0.5f};
    int32_t indices[64 * 7];
    q[0] = bf(8);
    for (int t = 0; t < 3; t++) {
        kv[t][0] = bf(v0[t]);
        kv[t][1] = bf((float)t + 1);
    }
    memset(indices, 0xff, sizeof indices);
    indices[64 * 2 - 1] = 0;
    indices[64 * 3] = 1;
    indices[64 * 5 + 7] = 2;
    for (int form = 0; form < N_FORMS; form++) {
        run(form, q, kv[0], 3, indices, 64 * 7, sinks, scale, 1, output);
        assert_int_equal(output[0], 0x400d);
        assert_int_equal(output[1], 0x3f8b);
    }
}

static void a_logit_of_minus_infinity_is_no_mask(void **state)
{
    (void)state;
    static uint16_t q[2][D], kv[2][D], output[2][D];
    static const int32_t indices[] = {0, 1};
    static const float sinks[] = {0, 0};
    q[0][0] = 0x7f7f;
    kv[0][0] = bf(-4);
    kv[0][1] = kv[1][1] = bf(3);
    for (int form = 0; form < N_FORMS; form++) {
        run(form, q[0], kv[0], 2, indices, 2, sinks, scale, 2, output[0]);
        assert_true(is_zero(output[0], D));
        assert_int_equal(output[1][1], bf(2));
    }
}

static void the_sink_counts_once_whatever_the_width(void **state)
{
    (void)state;
    static const uint32_t widths[] = {1, 2, 31, 32, 33, 63, 64, 65, 512, 1024, MAX_ROWS};
    static uint16_t q[D], v[D], output[D];
    static const float sinks[] = {0};
    int32_t *indices = allocate(MAX_ROWS * sizeof *indices);
    memset(indices, 0, MAX_ROWS * sizeof *indices);
    for (int f = 0; f < D; f++) {
        v[f] = bf(1);
    }
    for (int form = 0; form < N_FORMS; form++) {
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
            const float m = (float)widths[i];
            run(form, q, v, 1, indices, widths[i], sinks, scale, 1, output);
            assert_int_equal(output[0], bf(m / (m + 1)));
            assert_int_equal(output[D - 1], output[0]);
        }
    }
    free(indices);
}

static void extreme_sinks(void **state)
{
    (void)state;
    static const float sinks[] = {100, 50, 0, -1e30f, INFINITY, -INFINITY, NAN};
    /* exp(-100) is below the normal floats, so 0. A non-finite sink zeroes its head. */
    const uint16_t expected[] = {0, bf(1.9287498e-22f), bf(0.5f), bf(1), 0, 0, 0};
    static uint16_t q[7][D], v[D], output[7][D];
    static const int32_t indices[] = {0};
    for (int f = 0; f < D; f++) {
        v[f] = bf(1);
    }
    for (int form = 0; form < N_FORMS; form++) {
        run(form, q[0], v, 1, indices, 1, sinks, scale, 7, output[0]);
        for (int h = 0; h < 7; h++) {
            for (int f = 0; f < D; f++) {
                assert_int_equal(output[h][f], expected[h]);
            }
        }
    }
}

static void nothing_selected_or_a_bad_index_gives_zero(void **state)
{
    (void)state;
    static const struct {
        int32_t indices[70];
        uint64_t width;
    } lists[] = {{{-1}, 1},        {{-1, -1, -1}, 3},      {{0, 4, 1}, 3}, {{0, -2, 1}, 3},
                 {{INT32_MIN}, 1}, {{0, 1, INT32_MAX}, 3}, {{0}, 0},       {{[69] = 4}, 70}};
    static uint16_t q[2][D], kv[8][D], output[2][D];
    static const float sinks[] = {0, 0.25f};
    fill_bf16(1, q[0], sizeof q / 2);
    fill_bf16(2, kv[0], sizeof kv / 2);
    for (int form = 0; form < N_FORMS; form++) {
        for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
            run(form, q[0], kv[0], 4, lists[i].indices, lists[i].width, sinks, scale, 2, output[0]);
            assert_true(is_zero(output[0], 2 * D));
        }
    }
}

/* 8 heads on 200 rows, of which every third is skipped and row 7 not selected. */
struct problem {
    uint16_t q[8][D], kv[200][D], output[8][D];
    int32_t indices[200];
    float sinks[8];
};

static struct problem *make_problem(uint64_t seed)
{
    struct problem *p = allocate(sizeof *p);
    fill_bf16(seed, p->q[0], sizeof p->q / 2);
    fill_bf16(seed + 1, p->kv[0], sizeof p->kv / 2);
    fill_f32(seed + 2, p->sinks, 8);
    for (int i = 0; i < 200; i++) {
        p->indices[i] = i % 3 == 1 ? -1 : 199 - i;
    }
    return p;
}

static void solve(int form, struct problem *p)
{
    run(form, p->q[0], p->kv[0], 200, p->indices, 200, p->sinks, scale, 8, p->output[0]);
}

static void a_bad_head_is_zero_and_the_others_keep_their_bits(void **state)
{
    (void)state;
    static const uint16_t bad_q[] = {0x7fc0, 0x7f80, 0xff80, 0x7f7f}; /* the last is finite but its logits overflow */
    static const float bad_sinks[] = {NAN, INFINITY, -INFINITY};
    struct problem *clean = make_problem(3), *p = make_problem(3);
    for (int form = 0; form < N_FORMS; form++) {
        solve(form, clean);
        assert_false(is_zero(clean->output[5], D));
        for (int i = 0; i < 7; i++) {
            p->q[5][511] = i < 4 ? bad_q[i] : clean->q[5][511];
            p->sinks[5] = i < 4 ? clean->sinks[5] : bad_sinks[i - 4];
            solve(form, p);
            assert_true(is_zero(p->output[5], D));
            assert_memory_equal(p->output[0], clean->output[0], sizeof(uint16_t[5][D]));
            assert_memory_equal(p->output[6], clean->output[6], sizeof(uint16_t[2][D]));
        }
    }
    free(clean);
    free(p);
}

static void non_finite_kv_matters_only_where_selected(void **state)
{
    (void)state;
    static const uint16_t bad[] = {0x7fc0, 0x7f80, 0xff80, 0xffff};
    struct problem *clean = make_problem(3), *p = make_problem(3);
    p->indices[199 - 7] = -1;
    clean->indices[199 - 7] = -1;
    for (int form = 0; form < N_FORMS; form++) {
        solve(form, clean);
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            const uint16_t kept = p->kv[199][500];
            p->kv[7][0] = bad[i];
            p->kv[198][17] = bad[i]; /* slot 1 is skipped */
            solve(form, p);
            assert_memory_equal(p->output, clean->output, sizeof p->output);
            p->kv[199][500] = bad[i];
            solve(form, p);
            assert_true(is_zero(p->output[0], 8 * D));
            p->kv[199][500] = kept;
        }
    }
    free(clean);
    free(p);
}

static void an_overflowing_element_is_zero(void **state)
{
    (void)state;
    static uint16_t q[D], kv[2][D], output[D];
    static const int32_t indices[] = {0, 1};
    static const float sinks[] = {-100};
    for (int t = 0; t < 2; t++) {
        kv[t][3] = 0x7f7f; /* their sum overflows though their mean would not */
        kv[t][4] = bf(2);
    }
    for (int form = 0; form < N_FORMS; form++) {
        run(form, q, kv[0], 2, indices, 2, sinks, scale, 1, output);
        assert_int_equal(output[3], 0);
        assert_int_equal(output[4], bf(2));
    }
}

/* A cut at 64 slots that both forms see: chunk sums are rounded on their own. With weights 1, values 2^24, then 63
 * times 0, then 64 ones: the two-pass chain loses every one, the chunked form adds 64 at once. */
static void the_order_of_sums_is_the_documented_one(void **state)
{
    (void)state;
    static uint16_t q[D], kv[3][D], output[D];
    static const float sinks[] = {-200};
    int32_t indices[129];
    kv[0][0] = bf(0x1p24f);
    kv[1][0] = bf(1);
    kv[2][0] = bf(-0x1p24f);
    for (int i = 0; i < 129; i++) {
        indices[i] = i == 0 ? 0 : i < 64 ? -1 : i < 128 ? 1 : 2;
    }
    run(0, q, kv[0], 3, indices, 129, sinks, scale, 1, output);
    assert_int_equal(output[0], 0);
    run(1, q, kv[0], 3, indices, 129, sinks, scale, 1, output);
    assert_int_equal(output[0], bf(64.0f / 66.0f));

    /* The logit: features from 0 up, each fused. 2^24 + 1 is lost, -2^24 + 1 is not; then both rows tie or not. */
    memset(q, 0, sizeof q);
    memset(kv, 0, sizeof kv);
    q[0] = q[1] = q[2] = bf(1);
    kv[0][0] = bf(0x1p24f), kv[0][1] = bf(1), kv[0][2] = bf(-0x1p24f), kv[0][511] = bf(1);
    static const int32_t one[] = {0};
    static const float zero[] = {0};
    for (int form = 0; form < N_FORMS; form++) {
        run(form, q, kv[0], 1, one, 1, zero, 1.0f, 1, output);
        assert_int_equal(output[511], bf(0.5f)); /* logit 0 */
    }
    kv[0][1] = bf(-0x1p24f), kv[0][2] = bf(1);
    for (int form = 0; form < N_FORMS; form++) {
        run(form, q, kv[0], 1, one, 1, zero, 1.0f, 1, output);
        assert_int_equal(output[511], bf(0.7310586f)); /* logit 1: e / (e + 1) */
    }
}

static void check_against_float64(uint32_t n_heads, uint64_t n_rows, uint64_t width, uint64_t stride, uint64_t seed)
{
    uint16_t *q = allocate(n_heads * D * sizeof *q), *kv = allocate(n_rows * stride * sizeof *kv);
    uint16_t *output = allocate(n_heads * D * sizeof *output);
    double *exact = allocate(n_heads * D * sizeof *exact), *logits = allocate(width * sizeof *logits);
    float *sinks = allocate(n_heads * sizeof *sinks);
    float *scratch = allocate((width + 63) / 64 * 514 * sizeof *scratch);
    int32_t *indices = allocate(width * sizeof *indices);

    fill_bf16(seed, q, n_heads * D);
    fill_bf16(seed + 1, kv, n_rows * stride);
    fill_f32(seed + 2, sinks, n_heads);
    for (uint64_t i = 0; i < width; i++) {
        const uint64_t r = random_bits(&seed);
        indices[i] = r % 8 == 0 ? -1 : (int32_t)((r >> 8) % n_rows);
    }
    for (uint32_t i = 0; i < n_heads * D; i++) { /* some sharp heads */
        q[i] = i / D % 4 == 3 ? bf(unbf(q[i]) * 8) : q[i];
    }
    acc_sparse_attention(q, kv, stride, n_rows, indices, width, sinks, scale, n_heads, logits, exact);
    for (int form = 0; form < N_FORMS; form++) {
        forms[form](q, kv, stride, n_rows, indices, width, sinks, scale, n_heads, scratch, output);
        for (uint32_t i = 0; i < n_heads * D; i++) {
            const double half_unit = fabs(exact[i]) * 0x1p-8;
            assert_true(fabs((double)unbf(output[i]) - exact[i]) <= half_unit + 1e-5);
        }
    }
    free(q), free(kv), free(output), free(exact), free(logits), free(sinks), free(scratch), free(indices);
}

static void close_to_float64(void **state)
{
    (void)state;
    check_against_float64(64, 200, 160, D, 11);
    check_against_float64(16, 1000, 640, 600, 22);
    check_against_float64(128, 70, 65, D, 33);
    check_against_float64(4, 9000, 8320, D, 44);
}

static void float64_form_fails_closed_alike(void **state)
{
    (void)state;
    struct problem *p = make_problem(3);
    double *exact = allocate(8 * D * sizeof *exact), *logits = allocate(200 * sizeof *logits);
    p->q[2][9] = 0x7fc0;
    p->sinks[3] = INFINITY;
    p->q[4][0] = p->kv[199][0] = 0x7f7f;
    acc_sparse_attention(p->q[0], p->kv[0], D, 200, p->indices, 200, p->sinks, scale, 8, logits, exact);
    for (int form = 0; form < N_FORMS; form++) {
        solve(form, p);
        for (int h = 0; h < 8; h++) {
            const int zero = exact[h * D] == 0.0 && exact[h * D + 1] == 0.0;
            assert_int_equal(zero, h >= 2 && h <= 4);
            assert_int_equal(is_zero(p->output[h], D), zero);
        }
    }
    p->indices[0] = 200;
    acc_sparse_attention(p->q[0], p->kv[0], D, 200, p->indices, 200, p->sinks, scale, 8, logits, exact);
    for (int i = 0; i < 8 * D; i++) {
        assert_true(exact[i] == 0.0);
    }
    free(p), free(exact), free(logits);
}

/* Changing these numbers is changing the bits of the library. */
static void the_bits_are_pinned(void **state)
{
    (void)state;
    static const uint64_t expected[] = {0x5d6dd08e603449aau, 0xc3298676c5fc916bu};
    static uint16_t outputs[PINNED][8][D];
    for (int form = 0; form < N_FORMS; form++) {
        for (uint64_t i = 0; i < PINNED; i++) { /* this many, because a rounding of the denominator seldom shows */
            struct problem *p = make_problem(100 * i + 7);
            solve(form, p);
            memcpy(outputs[i], p->output, sizeof p->output);
            free(p);
        }
        assert_int_equal(hash_of(outputs, sizeof outputs), expected[form]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mean_with_the_sink),
        cmocka_unit_test(worked_example),
        cmocka_unit_test(empty_chunks_are_left_out),
        cmocka_unit_test(a_logit_of_minus_infinity_is_no_mask),
        cmocka_unit_test(the_sink_counts_once_whatever_the_width),
        cmocka_unit_test(extreme_sinks),
        cmocka_unit_test(nothing_selected_or_a_bad_index_gives_zero),
        cmocka_unit_test(a_bad_head_is_zero_and_the_others_keep_their_bits),
        cmocka_unit_test(non_finite_kv_matters_only_where_selected),
        cmocka_unit_test(an_overflowing_element_is_zero),
        cmocka_unit_test(the_order_of_sums_is_the_documented_one),
        cmocka_unit_test(close_to_float64),
        cmocka_unit_test(float64_form_fails_closed_alike),
        cmocka_unit_test(the_bits_are_pinned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
