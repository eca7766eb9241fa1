/* Lightning indexer scores and the top-k order. */
#include "reference_test.h"

#include <math.h>

enum { D = REF_INDEX_DIM };

/* One key of ones in feature 0; head h has q = dots[h] there, so that dot_h = dots[h]. */
static float score_of_dots(uint32_t n_heads, const float *dots, const float *weights)
{
    static uint16_t q[REF_MAX_HEADS][D], key[D];
    float score;
    key[0] = bf(1);
    for (uint32_t h = 0; h < n_heads; h++) {
        q[h][0] = bf(dots[h]);
    }
    ref_indexer_scores(q[0], weights, key, D, 1, 1, n_heads, &score);
    return score;
}

static void relu_is_per_head_and_weights_may_be_negative(void **state)
{
    (void)state;
    assert_true(score_of_dots(2, (float[]){2, -3}, (float[]){1, 1}) == 2);
    assert_true(score_of_dots(2, (float[]){2, 5}, (float[]){1, -1}) == -3);
    assert_int_equal(bits(score_of_dots(2, (float[]){-2, -5}, (float[]){-1, -1})) & 0x7fffffffu, 0);
}

static void heads_are_summed_by_halving(void **state)
{
    (void)state;
    /* (2^24 + 1) + (1 - 2^24) = 2^24 - (2^24 - 1) = 1; left to right it would be 0. */
    assert_true(score_of_dots(4, (float[]){0x1p24f, 1, 1, 0x1p24f}, (float[]){1, 1, 1, -1}) == 1);
    /* dot: 2^24 + 1 is lost before the last feature takes 2^24 away */
    static uint16_t q[2][D], key[D];
    float score;
    q[0][0] = bf(0x1p24f), q[0][1] = bf(1), q[0][127] = bf(-0x1p24f), q[0][126] = bf(1);
    for (int f = 0; f < D; f++) {
        key[f] = bf(1);
    }
    ref_indexer_scores(q[0], (float[]){1, 1}, key, D, 1, 1, 2, &score);
    assert_true(score == 0);
    q[0][1] = bf(-0x1p24f), q[0][127] = 0;
    ref_indexer_scores(q[0], (float[]){1, 1}, key, D, 1, 1, 2, &score);
    assert_true(score == 1);
}

static void anything_not_finite_excludes_the_key(void **state)
{
    (void)state;
    const float w[] = {1, 1};
    assert_true(score_of_dots(2, (float[]){1, NAN}, w) == -INFINITY);
    assert_true(score_of_dots(2, (float[]){1, INFINITY}, w) == -INFINITY);
    assert_true(score_of_dots(2, (float[]){1, -INFINITY}, w) == -INFINITY); /* relu would hide it */
    assert_true(score_of_dots(2, (float[]){1, -1}, (float[]){1, NAN}) == -INFINITY);
    assert_true(score_of_dots(2, (float[]){1, 0}, (float[]){1, -INFINITY}) == -INFINITY);
    assert_true(score_of_dots(2, (float[]){1, 1}, (float[]){3e38f, 3e38f}) == -INFINITY);
    assert_true(score_of_dots(2, (float[]){2, 2}, (float[]){3e38f, -3e38f}) == -INFINITY);

    static uint16_t q[32][D], keys[3][D];
    float weights[32], clean[3], scores[3];
    fill_bf16(1, q[0], sizeof q / 2);
    fill_bf16(2, keys[0], sizeof keys / 2);
    fill_f32(3, weights, 32);
    ref_indexer_scores(q[0], weights, keys[0], D, 3, 3, 32, clean);
    keys[1][77] = 0x7fc0;
    ref_indexer_scores(q[0], weights, keys[0], D, 3, 3, 32, scores);
    assert_true(scores[1] == -INFINITY);
    assert_int_equal(bits(scores[0]), bits(clean[0]));
    assert_int_equal(bits(scores[2]), bits(clean[2]));
}

static void keys_past_the_causal_count_are_not_read(void **state)
{
    (void)state;
    static uint16_t q[32][D];
    uint16_t *keys = allocate(2 * D * sizeof *keys); /* no memory for the others */
    float weights[32], scores[5];
    fill_bf16(1, q[0], sizeof q / 2);
    fill_bf16(2, keys, 2 * D);
    fill_f32(3, weights, 32);
    ref_indexer_scores(q[0], weights, keys, D, 5, 2, 32, scores);
    free(keys);
    assert_true(isfinite(scores[0]) && isfinite(scores[1]));
    for (int t = 2; t < 5; t++) {
        assert_true(scores[t] == -INFINITY);
    }
}

static void scores_are_close_to_float64(void **state)
{
    (void)state;
    enum { N = 300, STRIDE = 160 };
    static uint16_t q[REF_MAX_HEADS * D], keys[N * STRIDE];
    static float weights[REF_MAX_HEADS], scores[N];
    static double exact[N];
    for (uint32_t n_heads = 32; n_heads <= 128; n_heads *= 2) {
        fill_bf16(n_heads, q, n_heads * D);
        fill_bf16(n_heads + 1, keys, sizeof keys / 2);
        fill_f32(n_heads + 2, weights, n_heads);
        for (uint32_t h = 0; h < n_heads; h++) {
            weights[h] *= 0.011048543f; /* 8192^-0.5, as the model scales them */
        }
        ref_indexer_scores(q, weights, keys, STRIDE, N, N - 10, n_heads, scores);
        acc_indexer_scores(q, weights, keys, STRIDE, N, N - 10, n_heads, exact);
        for (int t = 0; t < N; t++) {
            assert_true((double)scores[t] == exact[t] || fabs((double)scores[t] - exact[t]) < 2e-5);
            assert_int_equal(exact[t] == -INFINITY, t >= N - 10);
        }
    }
}

static void check_list(const float *scores, uint64_t n, uint32_t k, int32_t offset, const int32_t *expected)
{
    int32_t *indices = allocate(k * sizeof *indices);
    memset(indices, 0x55, k * sizeof *indices);
    ref_top_k(scores, n, k, offset, indices);
    for (uint32_t i = 0; i < k; i++) {
        assert_int_equal(indices[i], expected[i]);
    }
    free(indices);
}

static void ties_go_to_the_lower_index(void **state)
{
    (void)state;
    float scores[700];
    int32_t expected[512];
    for (int i = 0; i < 700; i++) {
        scores[i] = i % 2 ? -0.0f : 0.0f;
    }
    for (int i = 0; i < 512; i++) {
        expected[i] = 128 + i;
    }
    check_list(scores, 700, 512, 128, expected);
    for (int i = 0; i < 512; i++) {
        expected[i] = i < 5 ? i : -1;
    }
    check_list(scores, 5, 512, 0, expected);
    memset(expected, 0xff, sizeof expected);
    check_list(scores, 0, 512, 128, expected);

    int n = 0;
    for (int i = 0; i < 700; i++) {
        scores[i] = (float)(i % 7);
    }
    for (int value = 6; value >= 0; value--) {
        for (int i = value; i < 700 && n < 512; i += 7) {
            expected[n++] = i;
        }
    }
    check_list(scores, 700, 512, 0, expected);
}

static void shorter_lists_are_prefixes(void **state)
{
    (void)state;
    static const float pattern[] = {1, 2, 5, 4, 5};
    static const int32_t first[] = {2, 4, 7, 9, 12, 14, 17, 19, 22, 24};
    float scores[200];
    int32_t all[200];
    for (int i = 0; i < 200; i++) {
        scores[i] = pattern[i % 5];
    }
    ref_top_k(scores, 200, 200, 0, all);
    assert_memory_equal(all, first, sizeof first);
    for (uint32_t k = 1; k < 200; k++) {
        check_list(scores, 200, k, 0, all);
    }
}

static void only_finite_scores_are_selected(void **state)
{
    (void)state;
    const float mixed[] = {NAN, INFINITY, INFINITY, 3, -INFINITY, 2, -3e38f, 3e38f};
    check_list(mixed, 8, 3, 0, (int32_t[]){7, 3, 5});
    check_list(mixed, 8, 6, 10, (int32_t[]){17, 13, 15, 16, -1, -1});
    check_list((float[]){1, 2, 3, INFINITY, NAN, 4, INFINITY}, 7, 2, 0, (int32_t[]){5, 2});
    const float none[] = {NAN, -NAN, -INFINITY, INFINITY};
    check_list(none, 4, 3, 7, (int32_t[]){-1, -1, -1});
}

static void a_flood_of_ties_leaves_no_hole(void **state)
{
    (void)state;
    static float scores[8320];
    static int32_t expected[2048];
    for (int i = 0; i < 100; i++) {
        scores[83 * i] = 2 + (float)i;
        expected[99 - i] = 83 * i;
    }
    for (int i = 0, n = 100; n < 2048; i++) {
        if (i % 83 || i >= 8300) {
            expected[n++] = i;
        }
    }
    check_list(scores, 8320, 2048, 0, expected);
}

static void very_negative_scores_beat_nothing_past_the_end(void **state)
{
    (void)state;
    float scores[301];
    int32_t expected[256];
    for (int i = 0; i < 301; i++) {
        scores[i] = -70000.0f - (float)i;
        expected[i < 256 ? i : 0] = i < 256 ? i : 0;
    }
    check_list(scores, 301, 256, 0, expected);
}

static const float *sorted_scores;

static int by_rank(const void *a, const void *b)
{
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    const float x = sorted_scores[i], y = sorted_scores[j];
    return x != y ? (x < y ? 1 : -1) : (i > j) - (i < j);
}

static void equal_to_a_full_sort(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 31, 511, 512, 513, 1024, 1025, 2047, 2048, 2049, 4097, 16385, 262209};
    float *scores = allocate(262209 * sizeof *scores);
    int32_t *order = allocate(262209 * sizeof *order);
    uint64_t seed = 9;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int kind = 0; kind < 3; kind++) { /* distinct, a few values, crowded in one binade */
            for (uint32_t t = 0; t < sizes[i]; t++) {
                const float x = random_value(&seed);
                scores[t] = kind == 0 ? x : kind == 1 ? floorf(x * 4) : 1.0f + fabsf(x) * 0x1p-12f;
                order[t] = (int32_t)t;
            }
            sorted_scores = scores;
            qsort(order, sizes[i], sizeof *order, by_rank);
            for (uint32_t k = 512; k <= 2048; k *= 2) {
                int32_t expected[2048];
                for (uint32_t j = 0; j < k; j++) {
                    expected[j] = j < sizes[i] ? order[j] : -1;
                }
                check_list(scores, sizes[i], k, 0, expected);
            }
        }
    }
    free(scores);
    free(order);
}

/* Changing this number is changing the bits of the library. */
static void the_bits_are_pinned(void **state)
{
    (void)state;
    static uint16_t q[64][D], keys[1000][D];
    static float weights[64], scores[1000];
    fill_bf16(1, q[0], sizeof q / 2);
    fill_bf16(2, keys[0], sizeof keys / 2);
    fill_f32(3, weights, 64);
    ref_indexer_scores(q[0], weights, keys[0], D, 1000, 1000, 64, scores);
    assert_int_equal(hash_of(scores, sizeof scores), 0xbb62f3fef0f58c2cu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(relu_is_per_head_and_weights_may_be_negative),
        cmocka_unit_test(heads_are_summed_by_halving),
        cmocka_unit_test(anything_not_finite_excludes_the_key),
        cmocka_unit_test(keys_past_the_causal_count_are_not_read),
        cmocka_unit_test(scores_are_close_to_float64),
        cmocka_unit_test(ties_go_to_the_lower_index),
        cmocka_unit_test(shorter_lists_are_prefixes),
        cmocka_unit_test(only_finite_scores_are_selected),
        cmocka_unit_test(a_flood_of_ties_leaves_no_hole),
        cmocka_unit_test(very_negative_scores_beat_nothing_past_the_end),
        cmocka_unit_test(equal_to_a_full_sort),
        cmocka_unit_test(the_bits_are_pinned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
