/* What broke top-k selection for others, cases 1 to 31 of docs/reported-faults.md. */
#include "score_keys.h"

#include <pthread.h>
#include <stdatomic.h>

static float *new_scores(size_t n)
{
    return zeros(n * sizeof(float));
}

/* n different numbers 0..n-1 in a fixed mixed order. */
static void fill_shuffled(float *scores, size_t n, uint64_t seed)
{
    random_stream random = random_open(seed, 7);
    uint32_t *order = zeros(n * sizeof *order);
    for (uint32_t i = 0; i < n; i++) {
        order[i] = i;
    }
    random_shuffle(&random, order, (uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        scores[i] = (float)order[i];
    }
    free(order);
}

/* 1: a flood of ties behind 100 winners. */
static void case_1(direct *d)
{
    enum { N = 8320, K = 2048 };
    float *scores = new_scores(N);
    int32_t list[K];
    for (int j = 0; j < 100; j++) {
        scores[83 * j] = 1.0f + (float)(j + 1) / 128.0f;
    }
    select_scores(d, scores, N, K, list);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(list[i], 83 * (99 - i));
    }
    for (int i = 100, zero = 0; i < K; i++, zero++) {
        while (scores[zero] > 0.0f) {
            zero++;
        }
        assert_int_equal(list[i], zero);
    }
    free(scores);
}

static void test_1_tie_flood(void **state)
{
    (void)state;
    on_every_level(case_1);
}

/* 3: 900 on top, 4,100 whose scores share their first 12 bits; again and again. */
static void case_3(direct *d)
{
    enum { N = 5000, K = 1024, REPEATS = IS_EMULATED ? 10 : 100 };
    float *scores = new_scores(N);
    random_stream random = random_open(3, 0);
    int32_t list[K], first[K];
    uint16_t q[SCORE_HEADS * DSR_INDEX_DIM];
    float weights[SCORE_HEADS];
    for (uint32_t t = 0; t < N; t++) {
        const uint32_t low = (uint32_t)random_next(&random) & 0xfffff;
        scores[t] = t % 50 < 9 ? 8.0f + (float)t : f32_from_bits(0x3f800000u | low);
    }
    uint16_t *keys = score_keys(scores, N);
    const score_row row = {keys, N};
    score_query(q, weights);
    assert_ok(d, encode_select(d, &row, 1, K, q, weights, list));
    assert_ok(d, dsr_encoder_submit(d->encoder));
    assert_list(list, K, scores, N);
    memcpy(first, list, sizeof list);
    for (int i = 1; i < REPEATS; i++) {
        memset(list, 0x55, sizeof list);
        assert_ok(d, dsr_encoder_replay(d->encoder));
        assert_memory_equal(list, first, sizeof list);
    }
    direct_drop(d);
    free(keys);
    free(scores);
}

static void test_3_overfull_bin(void **state)
{
    (void)state;
    on_best_level(case_3);
}

/* 3, the other way round: one key a single step above a flood of equal ones, wherever it stands. */
static void case_3_step(direct *d)
{
    enum { N = 1300, K = 32 };
    static const int places[] = {0, 15, 16, 31, 33, 511, 512, 900, 1295, 1299};
    static const float floods[] = {1.0f, -1.0f, 0x1p-60f, 0x1.fffffep+100f};
    for (size_t f = 0; f < COUNT_OF(floods); f++) {
        for (size_t p = 0; p < COUNT_OF(places); p++) {
            float scores[N];
            for (int t = 0; t < N; t++) {
                scores[t] = floods[f];
            }
            scores[places[p]] = nextafterf(floods[f], INFINITY);
            check_selection(d, scores, N, K);
            scores[places[p]] = nextafterf(floods[f], -INFINITY);
            check_selection(d, scores, N, K);
        }
    }
}

static void test_3_one_step_above_a_flood(void **state)
{
    (void)state;
    on_every_level(case_3_step);
}

/* Weights that are all negative give scores of -0, which tie in order of their indices. */
static void negative_zeros(direct *d)
{
    enum { N = 900, K = 512 };
    uint16_t q[SCORE_HEADS * DSR_INDEX_DIM];
    float weights[SCORE_HEADS], scores[N];
    int32_t list[K];
    uint16_t *keys = zeros(N * DSR_INDEX_DIM * sizeof *keys);
    fill_bf16(q, COUNT_OF(q), BF16_ONE);
    for (int h = 0; h < SCORE_HEADS; h++) {
        weights[h] = -1.0f;
    }
    for (int t = 0; t < N; t++) { /* every third key has a positive dot and so a negative score */
        keys[t * DSR_INDEX_DIM] = t % 3 == 1 ? BF16_ONE : t % 3 == 2 ? 0xbf80 : 0;
        scores[t] = t % 3 == 1 ? -32.0f : -0.0f;
    }
    const score_row row = {keys, N};
    assert_ok(d, encode_select(d, &row, 1, K, q, weights, list));
    assert_ok(d, direct_run(d));
    assert_list(list, K, scores, N);
    free(keys);
}

static void test_negative_zeros(void **state)
{
    (void)state;
    on_every_level(negative_zeros);
}

/* 4: one crowded bin of up to 32,768 keys, all different; every size also as a row of one call. */
static void case_4(direct *d)
{
    static const uint32_t sizes[] = {32768, 16385, 16384, 16383, 4097, 4096, 4095, 3709, 3708, 3707};
    static const uint32_t ks[] = {512, 1024, 2048};
    enum { N = 32768, FIRST = IS_EMULATED ? 4 : 0, N_ROWS = COUNT_OF(sizes) - FIRST };
    float *scores = new_scores(N);
    int32_t *lists = zeros(N_ROWS * 2048 * sizeof *lists);
    score_row rows[N_ROWS];
    fill_shuffled(scores, N, 4);
    for (uint32_t t = 0; t < N; t++) {
        scores[t] = f32_from_bits(0x3f800000u + (uint32_t)scores[t] * 62); /* 1.0 to 1.243 */
    }
    uint16_t *keys = score_keys(scores, N);
    for (uint32_t r = 0; r < N_ROWS; r++) {
        rows[r].keys = keys;
        rows[r].n = sizes[FIRST + r];
    }
    for (size_t k = 0; k < COUNT_OF(ks); k++) {
        memset(lists, 0x55, N_ROWS * 2048 * sizeof *lists);
        select_rows(d, rows, N_ROWS, ks[k], lists);
        for (uint32_t r = 0; r < N_ROWS; r++) {
            assert_list(lists + (size_t)r * ks[k], ks[k], scores, sizes[FIRST + r]);
        }
    }
    free(keys);
    free(lists);
    free(scores);
}

static void test_4_crowded_bin(void **state)
{
    (void)state;
    on_best_level(case_4);
}

/* 6: scores far below what a half-precision key could tell apart from filler. */
static void case_6(direct *d)
{
    enum { N = 301, K = 256 };
    float scores[N];
    int32_t list[K];
    for (int j = 0; j < N; j++) {
        scores[j] = -70000.0f - (float)j;
    }
    select_scores(d, scores, N, K, list);
    for (int i = 0; i < K; i++) {
        assert_int_equal(list[i], i);
    }
}

static void test_6_very_negative_scores(void **state)
{
    (void)state;
    on_every_level(case_6);
}

/* 7: around and above 2^18 keys, four rows on one cache. */
static void case_7(direct *d)
{
    enum { N = IS_EMULATED ? 16384 : 262144, MOST = N + 65, K = 2048 };
    static const uint32_t sizes[4] = {N - 1, N, N + 1, MOST};
    float *scores = new_scores(MOST);
    int32_t *lists = filled(4 * K * sizeof *lists, 0x55);
    score_row rows[4];
    fill_shuffled(scores, MOST, 7);
    uint16_t *keys = score_keys(scores, MOST);
    for (uint32_t r = 0; r < 4; r++) {
        rows[r].keys = keys;
        rows[r].n = sizes[r];
    }
    select_rows(d, rows, 4, K, lists);
    for (uint32_t r = 0; r < 4; r++) {
        assert_list(lists + (size_t)r * K, K, scores, sizes[r]);
    }
    free(keys);
    free(lists);
    free(scores);
}

static void test_7_above_2_to_18_keys(void **state)
{
    (void)state;
    on_best_level(case_7);
}

/* 9: a k that is not supported is refused, never cut. (The attention part is in test_bug_kinds_attention.c.) */
static void case_9(direct *d)
{
    static const uint32_t bad[] = {1, 31, 33, 511, 513, 1000, 2047, 2049, 2080, 4096};
    float scores[40] = {0};
    int32_t list[4096];
    uint16_t q[SCORE_HEADS * DSR_INDEX_DIM];
    float weights[SCORE_HEADS];
    uint16_t *keys = score_keys(scores, 40);
    const score_row row = {keys, 40};
    score_query(q, weights);
    memset(list, 0x55, sizeof list);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_refused(d, encode_select(d, &row, 1, bad[i], q, weights, list), DSR_ERR_UNSUPPORTED_SHAPE);
        direct_drop(d);
    }
    for (size_t i = 0; i < COUNT_OF(list); i++) {
        assert_int_equal(list[i], 0x55555555);
    }
    free(keys);
}

static void test_9_unsupported_k_is_refused(void **state)
{
    (void)state;
    on_every_level(case_9);
}

/* 10: every number of rows, lists between poisoned guard rows. */
static void case_10(direct *d)
{
    enum { N = 40, K = 32 };
    float scores[DSR_MAX_ROWS][N];
    int32_t alone[DSR_MAX_ROWS][K], lists[DSR_MAX_ROWS + 2][K];
    uint16_t *keys[DSR_MAX_ROWS];
    score_row rows[DSR_MAX_ROWS];
    for (uint32_t r = 0; r < DSR_MAX_ROWS; r++) {
        for (uint32_t j = 0; j < N; j++) {
            scores[r][j] = pat(r, j);
        }
        keys[r] = score_keys(scores[r], N);
        rows[r].keys = keys[r];
        rows[r].n = N;
        select_rows(d, &rows[r], 1, K, alone[r]);
        assert_list(alone[r], K, scores[r], N);
    }
    for (uint32_t n = 1; n <= DSR_MAX_ROWS; n++) {
        memset(lists, 0x55, sizeof lists);
        select_rows(d, rows, n, K, lists[1]);
        assert_memory_equal(lists[1], alone, n * sizeof alone[0]);
        for (uint32_t i = 0; i < K; i++) {
            assert_int_equal(lists[0][i], 0x55555555);
            assert_int_equal(lists[n + 1][i], 0x55555555);
        }
    }
    for (uint32_t r = 0; r < DSR_MAX_ROWS; r++) {
        free(keys[r]);
    }
}

static void test_10_every_number_of_rows(void **state)
{
    (void)state;
    on_every_level(case_10);
}

/* 12: every list is a prefix of the longest one. */
static void case_12(direct *d)
{
    enum { N = 200, LONGEST = 224 };
    static const float cycle[5] = {1, 2, 5, 4, 5};
    static const int32_t first_ten[10] = {2, 4, 7, 9, 12, 14, 17, 19, 22, 24};
    float scores[N];
    int32_t longest[LONGEST], list[LONGEST];
    for (int j = 0; j < N; j++) {
        scores[j] = cycle[j % 5];
    }
    select_scores(d, scores, N, LONGEST, longest);
    assert_memory_equal(longest, first_ten, sizeof first_ten);
    for (int i = N; i < LONGEST; i++) {
        assert_int_equal(longest[i], -1);
    }
    for (uint32_t k = 32; k < LONGEST; k += 32) {
        select_scores(d, scores, N, k, list);
        assert_memory_equal(list, longest, k * sizeof *list);
    }
}

static void test_12_prefixes(void **state)
{
    (void)state;
    on_every_level(case_12);
}

/* 13: a key whose score is not finite is never selected. */
static void case_13(direct *d)
{
    const float scores[6] = {NAN, INFINITY, INFINITY, 3.0f, -INFINITY, 2.0f};
    int32_t list[32];
    select_scores(d, scores, 6, 32, list);
    assert_int_equal(list[0], 3);
    assert_int_equal(list[1], 5);
    for (int i = 2; i < 32; i++) {
        assert_int_equal(list[i], -1);
    }
}

static void test_13_nan_and_infinities(void **state)
{
    (void)state;
    on_every_level(case_13);
}

/* 15: infinities displace no finite key. */
static void case_15(direct *d)
{
    float scores[64];
    for (int few_infinite = 0; few_infinite < 2; few_infinite++) {
        for (int j = 0; j < 64; j++) {
            const int special = j % 16 == 5;
            scores[j] = few_infinite ? (special ? INFINITY : pat(1, (uint64_t)j)) : (special ? (float)j : -INFINITY);
        }
        check_selection(d, scores, 64, 32);
    }
}

static void test_15_infinities_displace_nothing(void **state)
{
    (void)state;
    on_every_level(case_15);
}

/* 17: a row of NaN gives a list of -1 and leaves its neighbour alone. */
static void case_17(direct *d)
{
    enum { N = 100, K = 32 };
    float bad[N], good[N];
    int32_t lists[2][K], alone[K];
    for (uint32_t j = 0; j < N; j++) {
        bad[j] = NAN;
        good[j] = pat(0, j);
    }
    uint16_t *bad_keys = score_keys(bad, N), *good_keys = score_keys(good, N);
    const score_row rows[2] = {{bad_keys, N}, {good_keys, N}};
    select_rows(d, rows, 2, K, lists[0]);
    select_rows(d, &rows[1], 1, K, alone);
    assert_memory_equal(lists[1], alone, sizeof alone);
    for (int i = 0; i < K; i++) {
        assert_int_equal(lists[0][i], -1);
    }
    free(bad_keys);
    free(good_keys);
}

static void test_17_row_of_nan(void **state)
{
    (void)state;
    on_every_level(case_17);
}

/* 19: lengths that are 0 or were negative are refused, and nothing is written. */
static void case_19(direct *d)
{
    static const struct {
        uint64_t kv_len;
        uint32_t start_pos;
        dsr_status want;
    } bad[] = {
        {0, 0, DSR_ERR_VALUE},         {(uint64_t)-1, 0, DSR_ERR_OVERFLOW}, {(uint64_t)-1 / 256, 0, DSR_ERR_SIZE},
        {UINT32_MAX, 0, DSR_ERR_SIZE}, {5, UINT32_MAX, DSR_ERR_POSITION},   {5, 6, DSR_ERR_KV_LEN},
    };
    float scores[5] = {1, 2, 3, 4, 5};
    int32_t list[32];
    uint16_t q[SCORE_HEADS * DSR_INDEX_DIM];
    float weights[SCORE_HEADS];
    uint16_t *keys = score_keys(scores, 5);
    score_query(q, weights);
    memset(list, 0x55, sizeof list);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        dsr_indexer_row row = {0};
        uint8_t workspace[4096];
        row.keys = direct_bf16(d, keys, 5 * DSR_INDEX_DIM);
        row.kv_len = bad[i].kv_len;
        row.start_pos = bad[i].start_pos;
        row.ratio = 1;
        dsr_indexer_desc desc = indexer_of_row(d, &row, SCORE_HEADS, 32, q, weights, list);
        desc.workspace = direct_view(d, workspace, sizeof workspace, DSR_DTYPE_U8);
        assert_refused(d, dsr_encode_indexer(d->encoder, &desc), bad[i].want);
        direct_drop(d);
    }
    for (int i = 0; i < 32; i++) {
        assert_int_equal(list[i], 0x55555555);
    }
    free(keys);
}

static void test_19_negative_lengths(void **state)
{
    (void)state;
    on_best_level(case_19);
}

/* 21: operands that may not overlap are refused, every pair of written and any other operand. */
static void case_21(direct *d)
{
    enum { N = 1025, K = 1024, ARENA = 1 << 20 };
    float scores[N];
    uint16_t q[SCORE_HEADS * DSR_INDEX_DIM];
    float weights[SCORE_HEADS];
    for (uint32_t j = 0; j < N; j++) {
        scores[j] = pat(21, j);
    }
    uint16_t *keys = score_keys(scores, N);
    uint8_t *arena = filled(ARENA, 0x55);
    score_query(q, weights);
    /* Byte offsets of list, scores and workspace in one arena: each pair meets once. */
    static const uint64_t places[][3] = {{0, 4092, 65536}, {0, 65536, 2048}, {131072, 0, 2048}, {0, 0, 0}};
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        dsr_indexer_row row = {0};
        dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
        const dsr_view whole = direct_view(d, arena, ARENA, DSR_DTYPE_U8);
        row.keys = direct_bf16(d, keys, (size_t)N * DSR_INDEX_DIM);
        row.kv_len = N;
        row.start_pos = N - 1;
        row.ratio = 1;
        desc.n_rows = 1;
        desc.rows = &row;
        desc.n_heads = SCORE_HEADS;
        desc.top_k = K;
        desc.q = direct_bf16(d, q, COUNT_OF(q));
        desc.weights = direct_f32(d, weights, SCORE_HEADS);
        desc.output = desc.scores = desc.workspace = whole;
        desc.output.byte_offset = places[i][0];
        desc.scores.byte_offset = places[i][1];
        desc.workspace.byte_offset = places[i][2];
        desc.output.dtype = DSR_DTYPE_I32;
        desc.scores.dtype = DSR_DTYPE_F32;
        desc.output.byte_length = K * sizeof(int32_t);
        desc.scores.byte_length = N * sizeof(float);
        desc.workspace.byte_length = 32768;
        assert_refused(d, dsr_encode_indexer(d->encoder, &desc), DSR_ERR_OVERLAP);
        direct_drop(d);
    }
    for (size_t i = 0; i < ARENA; i++) {
        assert_int_equal(arena[i], 0x55);
    }
    free(arena);
    free(keys);
}

static void test_21_overlapping_operands(void **state)
{
    (void)state;
    on_best_level(case_21);
}

/* 22: workspace is stated in advance and bounded as the header says: 5 bytes a key and 128 KiB a query. */
static void case_22(direct *d)
{
    for (uint32_t n_rows = 32; n_rows <= 64; n_rows *= 2) {
        for (uint64_t n = 1 << 20; n <= 1 << 21; n *= 2) {
            dsr_indexer_row rows[DSR_MAX_ROWS];
            dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
            uint64_t n_bytes = 0;
            memset(rows, 0, sizeof rows);
            for (uint32_t r = 0; r < n_rows; r++) {
                rows[r].kv_len = n;
                rows[r].start_pos = (uint32_t)n - 1;
                rows[r].ratio = 1;
            }
            desc.n_rows = n_rows;
            desc.rows = rows;
            desc.n_heads = 64;
            desc.top_k = 2048;
            assert_ok(d, dsr_indexer_workspace(d->context, &desc, &n_bytes));
            assert_true(n_bytes <= 64 + n_rows * (5 * n + 131072));
        }
    }
}

static void test_22_workspace_is_bounded(void **state)
{
    (void)state;
    on_best_level(case_22);
}

/* 24: wide rows, rising, falling, all equal, with infinities; twice from one recording. */
static void case_24(direct *d)
{
    enum { MOST = IS_EMULATED ? 12000 : 128256, K = 512 };
    static const uint32_t sizes[] = {8192, 8193, IS_EMULATED ? 11000 : 32000, MOST};
    uint16_t q[SCORE_HEADS * DSR_INDEX_DIM];
    float weights[SCORE_HEADS];
    float *scores = new_scores(MOST);
    score_query(q, weights);
    for (int kind = 0; kind < 4; kind++) {
        int32_t lists[COUNT_OF(sizes)][K];
        score_row rows[COUNT_OF(sizes)];
        for (uint32_t t = 0; t < MOST; t++) {
            const float plain = kind == 0   ? (float)t
                                : kind == 1 ? (float)(MOST - t)
                                : kind == 2 ? 3.0f
                                            : (float)(t % 1000);
            scores[t] = kind == 3 && t % 7 == 0 ? INFINITY : plain;
        }
        uint16_t *keys = score_keys(scores, MOST);
        for (size_t r = 0; r < COUNT_OF(sizes); r++) {
            rows[r].keys = keys;
            rows[r].n = sizes[r];
        }
        assert_ok(d, encode_select(d, rows, COUNT_OF(sizes), K, q, weights, lists[0]));
        for (int run = 0; run < 2; run++) {
            memset(lists, 0x55, sizeof lists);
            assert_ok(d, run ? dsr_encoder_replay(d->encoder) : dsr_encoder_submit(d->encoder));
            for (size_t r = 0; r < COUNT_OF(sizes); r++) {
                assert_list(lists[r], K, scores, sizes[r]);
            }
        }
        direct_drop(d);
        free(keys);
    }
    free(scores);
}

static void test_24_wide_rows(void **state)
{
    (void)state;
    on_best_level(case_24);
}

/* ---- 27 to 31: one list, whoever computes it, however often --------------------------------------------------- */

static atomic_int busy_stop;

/* Keeps a context of its own at work. */
static void *keep_busy(void *argument)
{
    float scores[700];
    int32_t list[512];
    direct d;
    (void)argument;
    for (uint32_t j = 0; j < 700; j++) {
        scores[j] = pat(99, j);
    }
    direct_open(&d, DSR_ISA_AUTO, 2);
    while (!atomic_load(&busy_stop)) {
        select_scores(&d, scores, 700, 512, list);
    }
    direct_close(&d);
    return NULL;
}

/* The same recording, replayed; every list equal to the full sort's. */
static void check_repeats(direct *d, const float *scores, size_t n, uint32_t n_rows, uint32_t top_k, int n_repeats)
{
    uint16_t q[SCORE_HEADS * DSR_INDEX_DIM];
    float weights[SCORE_HEADS];
    score_row rows[DSR_MAX_ROWS];
    uint16_t *keys = score_keys(scores, n);
    int32_t *lists = zeros((size_t)n_rows * top_k * sizeof *lists), *first = zeros(top_k * sizeof *first);
    score_query(q, weights);
    for (uint32_t r = 0; r < n_rows; r++) {
        rows[r].keys = keys;
        rows[r].n = n;
    }
    assert_ok(d, encode_select(d, rows, n_rows, top_k, q, weights, lists));
    assert_ok(d, dsr_encoder_submit(d->encoder));
    assert_list(lists, top_k, scores, n);
    memcpy(first, lists, top_k * sizeof *first);
    for (int i = 0; i < n_repeats; i++) {
        for (uint32_t r = 0; r < n_rows; r++) {
            assert_memory_equal(lists + (size_t)r * top_k, first, top_k * sizeof *first);
        }
        memset(lists, 0x55, (size_t)n_rows * top_k * sizeof *lists);
        assert_ok(d, dsr_encoder_replay(d->encoder));
    }
    direct_drop(d);
    free(lists);
    free(first);
    free(keys);
}

/* 27: 1,000 keys equal at the boundary; 200 runs beside a busy context. */
static void test_27_boundary_ties(void **state)
{
    enum { N = 2048, K = 512 };
    float scores[N];
    pthread_t busy;
    direct d;
    (void)state;
    for (int t = 0; t < N; t++) {
        scores[t] = t % 2 == 0 && t < 2000 ? 1.0f : t % 8 == 1 ? 2.0f + (float)t : -1.0f - (float)t;
    }
    atomic_store(&busy_stop, 0);
    assert_int_equal(pthread_create(&busy, NULL, keep_busy, NULL), 0);
    direct_open(&d, DSR_ISA_AUTO, 5);
    check_repeats(&d, scores, N, 1, K, IS_EMULATED ? 20 : 200);
    direct_close(&d);
    atomic_store(&busy_stop, 1);
    pthread_join(busy, NULL);
}

/* 28: the order agrees for 1 and 16 threads, every level, as row 0 and as row 37. */
static void test_28_replicas_agree(void **state)
{
    enum { N = 900, K = 512 };
    static const uint32_t threads[2] = {1, 16};
    float scores[N];
    int32_t lists[38][K];
    score_row rows[38];
    (void)state;
    for (uint32_t t = 0; t < N; t++) {
        scores[t] = (float)(t * 7 % 13);
    }
    uint16_t *keys = score_keys(scores, N);
    for (int r = 0; r < 38; r++) {
        rows[r].keys = keys;
        rows[r].n = r == 0 || r == 37 ? N : 100 + (uint64_t)r;
    }
    for (size_t i = 0; i < COUNT_OF(all_isas) * 2; i++) {
        direct d;
        if (!dsr_isa_available(all_isas[i / 2])) {
            continue;
        }
        direct_open(&d, all_isas[i / 2], threads[i % 2]);
        select_rows(&d, rows, 38, K, lists[0]);
        assert_list(lists[0], K, scores, N);
        assert_memory_equal(lists[37], lists[0], sizeof lists[0]);
        direct_close(&d);
    }
    free(keys);
}

/* 29: scores rounded so that 120 keys share the k-th value. */
static void case_29(direct *d)
{
    enum { N = 4096, K = 256 };
    float scores[N];
    for (int t = 0; t < N; t++) {
        scores[t] = t % 34 == 3 ? 5.0f : (float)(t % 256) * 0.5f > 120.0f ? 6.0f + (float)(t % 16) : 1.0f;
    }
    check_repeats(d, scores, N, 1, K, 20);
}

static void test_29_shared_threshold(void **state)
{
    (void)state;
    on_every_level(case_29);
}

/* 30: 16 different values, and all equal, 64 rows. */
static void case_30(direct *d)
{
    enum { N = 2048, K = 512, N_ROWS = IS_EMULATED ? 8 : 64 };
    float scores[N];
    for (int t = 0; t < N; t++) {
        scores[t] = (float)((t * 37) % 16);
    }
    check_repeats(d, scores, N, N_ROWS, K, 5);
    for (int t = 0; t < N; t++) {
        scores[t] = 0.0f;
    }
    check_repeats(d, scores, N, N_ROWS, K, 5);
}

static void test_30_quantised_and_equal_rows(void **state)
{
    (void)state;
    on_best_level(case_30);
}

/* 31: long rows back to back on several threads. */
static void test_31_back_to_back(void **state)
{
    enum { N = IS_EMULATED ? 4000 : 20000, K = 512 };
    float *scores = new_scores(N);
    direct d;
    (void)state;
    for (int t = 0; t < N; t++) {
        scores[t] = (float)((t * 7919) % 5003);
    }
    direct_open(&d, DSR_ISA_AUTO, 5);
    check_repeats(&d, scores, N, 8, K, 8);
    direct_close(&d);
    free(scores);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_1_tie_flood),
        cmocka_unit_test(test_3_overfull_bin),
        cmocka_unit_test(test_3_one_step_above_a_flood),
        cmocka_unit_test(test_negative_zeros),
        cmocka_unit_test(test_4_crowded_bin),
        cmocka_unit_test(test_6_very_negative_scores),
        cmocka_unit_test(test_7_above_2_to_18_keys),
        cmocka_unit_test(test_9_unsupported_k_is_refused),
        cmocka_unit_test(test_10_every_number_of_rows),
        cmocka_unit_test(test_12_prefixes),
        cmocka_unit_test(test_13_nan_and_infinities),
        cmocka_unit_test(test_15_infinities_displace_nothing),
        cmocka_unit_test(test_17_row_of_nan),
        cmocka_unit_test(test_19_negative_lengths),
        cmocka_unit_test(test_21_overlapping_operands),
        cmocka_unit_test(test_22_workspace_is_bounded),
        cmocka_unit_test(test_24_wide_rows),
        cmocka_unit_test(test_27_boundary_ties),
        cmocka_unit_test(test_28_replicas_agree),
        cmocka_unit_test(test_29_shared_threshold),
        cmocka_unit_test(test_30_quantised_and_equal_rows),
        cmocka_unit_test(test_31_back_to_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
