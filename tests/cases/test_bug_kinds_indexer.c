/* What broke the indexer's scores, lengths and addressing for others, cases 33 to 43 of docs/reported-faults.md. */
#define _DEFAULT_SOURCE /* MAP_NORESERVE */
#include "score_keys.h"

#include <sys/mman.h>

enum { HEADS = SCORE_HEADS };

/* Scores and lists of one row. */
typedef struct indexer_case {
    const uint16_t *q;    /* [HEADS][128] */
    const float *weights; /* [HEADS] */
    const uint16_t *keys;
    size_t keys_elements;
    uint64_t kv_len, key_row_stride;
    uint32_t start_pos, ratio, top_k;
} indexer_case;

static dsr_status run_indexer(direct *d, const indexer_case *c, float *scores, int32_t *list)
{
    dsr_indexer_row row = {0};
    row.keys = direct_bf16(d, c->keys, c->keys_elements);
    row.kv_len = c->kv_len;
    row.key_row_stride = c->key_row_stride;
    row.start_pos = c->start_pos;
    row.ratio = c->ratio;
    dsr_indexer_desc desc = indexer_of_row(d, &row, HEADS, c->top_k, c->q, c->weights, list);
    if (scores) {
        desc.scores = direct_f32(d, scores, (size_t)c->kv_len);
    }
    const dsr_status status = direct_encode_indexer(d, &desc);
    return status == DSR_OK ? direct_run(d) : status;
}

/* 33: the clamp at 0 is per head, before the weight; totals may be negative. */
static void case_33(direct *d)
{
    static const float q_values[2][2] = {{2.0f, -3.0f}, {2.0f, 5.0f}};
    static const float head_weights[2][2] = {{1.0f, 1.0f}, {1.0f, -1.0f}};
    static const float want[2] = {2.0f, -3.0f};
    uint16_t q[HEADS * DSR_INDEX_DIM], key[DSR_INDEX_DIM] = {BF16_ONE};
    float weights[HEADS], score;
    int32_t list[32];
    for (int i = 0; i < 2; i++) {
        memset(q, 0, sizeof q);
        memset(weights, 0, sizeof weights);
        for (int h = 0; h < 2; h++) {
            q[h * DSR_INDEX_DIM] = bf16_from_f32_exact(q_values[i][h]);
            weights[h] = head_weights[i][h];
        }
        const indexer_case c = {q, weights, key, DSR_INDEX_DIM, 1, 0, 3, 4, 32};
        assert_ok(d, run_indexer(d, &c, &score, list));
        assert_true(score == want[i]);
        assert_int_equal(list[0], 0);
    }
}

static void test_33_relu_per_head(void **state)
{
    (void)state;
    on_every_level(case_33);
}

/* 34: a stride of D + 4 with NaN in the gap gives the bits of the packed cache; a stride below D is refused. */
static void case_34(direct *d)
{
    enum { N = 65, STRIDE = DSR_INDEX_DIM + 4 };
    uint16_t q[HEADS * DSR_INDEX_DIM], packed[N * DSR_INDEX_DIM], strided[N * STRIDE];
    float weights[HEADS], scores[2][N];
    int32_t lists[2][96];
    fill_pat(q, 3, COUNT_OF(q));
    for (uint32_t h = 0; h < HEADS; h++) {
        weights[h] = pat(4, h) / 64.0f;
    }
    fill_bf16(strided, COUNT_OF(strided), BF16_NAN);
    for (uint32_t t = 0; t < N; t++) {
        fill_pat(packed + t * DSR_INDEX_DIM, t, DSR_INDEX_DIM);
        memcpy(strided + t * STRIDE, packed + t * DSR_INDEX_DIM, DSR_INDEX_DIM * sizeof *packed);
    }
    indexer_case c = {q, weights, packed, COUNT_OF(packed), N, 0, 4 * N, 4, 96};
    assert_ok(d, run_indexer(d, &c, scores[0], lists[0]));
    c.keys = strided;
    c.keys_elements = COUNT_OF(strided);
    c.key_row_stride = STRIDE;
    assert_ok(d, run_indexer(d, &c, scores[1], lists[1]));
    assert_memory_equal(scores[0], scores[1], sizeof scores[0]);
    assert_memory_equal(lists[0], lists[1], sizeof lists[0]);
    for (int i = 0; i < 96; i++) {
        assert_true((lists[0][i] >= 0) == (i < N));
    }
    c.key_row_stride = DSR_INDEX_DIM - 1;
    assert_refused(d, run_indexer(d, &c, scores[1], lists[1]), DSR_ERR_STRIDE);
}

static void test_34_strided_cache(void **state)
{
    (void)state;
    on_every_level(case_34);
}

/* 35: 4,100 tokens are 1,025 keys; the cache ends at an unreadable page; token counts are refused. */
static void case_35(direct *d)
{
    enum { TOKENS = 4100, N = 1025, K = 2048 };
    uint16_t q[HEADS * DSR_INDEX_DIM];
    float weights[HEADS], scores[N];
    int32_t list[K];
    guarded_memory memory;
    assert_int_equal(guarded_open(&memory, 1 << 22), 0);
    uint16_t *keys = (uint16_t *)guarded_allocate(&memory, N * DSR_INDEX_DIM * sizeof *keys, 0, 0xff).memory;
    score_query(q, weights);
    for (uint32_t t = 0; t < N; t++) {
        scores[t] = pat(t, 35);
        score_key(scores[t], keys + t * DSR_INDEX_DIM);
    }
    indexer_case c = {q, weights, keys, N * DSR_INDEX_DIM, N, 0, TOKENS - 1, 4, K};
    assert_ok(d, run_indexer(d, &c, NULL, list));
    assert_list(list, K, scores, N);
    assert_int_equal(list[N], -1);
    c.kv_len = TOKENS;
    assert_refused(d, run_indexer(d, &c, NULL, list), DSR_ERR_SIZE);
    c.kv_len = N - 1;
    assert_refused(d, run_indexer(d, &c, NULL, list), DSR_ERR_KV_LEN);
    guarded_close(&memory);
}

static void test_35_tokens_are_not_keys(void **state)
{
    (void)state;
    on_every_level(case_35);
}

/* ---- big addresses ---------------------------------------------------------------------------------------- */

/* A mapping of n_rows rows, stride elements of 2 bytes apart, without memory behind it but for the named rows. Null
 * where the machine cannot map it. */
static uint16_t *sparse_map(uint64_t n_rows, uint64_t stride, size_t *n_bytes)
{
    *n_bytes = (size_t)(n_rows * stride * sizeof(uint16_t));
    void *memory = mmap(NULL, *n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static uint16_t *back_row(uint16_t *map, uint64_t row, uint64_t stride, size_t row_elements)
{
    uint16_t *at = map + row * stride;
    const uintptr_t page = 4096, begin = (uintptr_t)at & ~(page - 1);
    const uintptr_t end = ((uintptr_t)(at + row_elements) + page - 1) & ~(page - 1);
    assert_int_equal(mprotect((void *)begin, end - begin, PROT_READ | PROT_WRITE), 0);
    return at;
}

/* Attention over far rows of a cache with this stride: the bits of the same rows packed. */
static void check_far_rows(direct *d, uint64_t stride, const uint64_t *rows, uint32_t n, uint64_t n_rows)
{
    enum { MOST = 8, QUERY = 64 * DSR_HEAD_DIM };
    size_t n_bytes;
    uint16_t *map = sparse_map(n_rows, stride, &n_bytes), packed[MOST * DSR_HEAD_DIM];
    uint16_t *q = zeros(QUERY * sizeof *q), *near = zeros(QUERY * sizeof *q), *far = zeros(QUERY * sizeof *q);
    int32_t indices[2][MOST];
    float sinks[64] = {0};
    if (!map) {
        print_message("address space for %llu bytes is not to be had here\n", (unsigned long long)n_bytes);
        skip();
    }
    fill_pat(q, 1, QUERY);
    for (uint32_t i = 0; i < n; i++) {
        indices[0][i] = (int32_t)i;
        indices[1][i] = (int32_t)rows[i];
        fill_pat(packed + i * DSR_HEAD_DIM, rows[i], DSR_HEAD_DIM);
        fill_pat(back_row(map, rows[i], stride, DSR_HEAD_DIM), rows[i], DSR_HEAD_DIM);
    }
    const attention_case c = {q, packed, n, indices[0], n, sinks, 0, 0.0f};
    for (int form = DIRECT_TWO_PASS; form <= DIRECT_FLASH; form++) {
        dsr_attention_row row = {0};
        dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
        assert_ok(d, attend(d, (direct_form)form, &c, near));
        row.kv = direct_bf16(d, map, (size_t)(n_rows * stride));
        row.kv_len = n_rows;
        row.kv_row_stride = stride;
        row.width = n;
        desc.n_rows = 1;
        desc.rows = &row;
        desc.n_heads = 64;
        desc.scale = DSR_ATTENTION_SCALE;
        desc.q = direct_bf16(d, q, QUERY);
        desc.indices = direct_i32(d, indices[1], n);
        desc.sinks = direct_f32(d, sinks, 64);
        desc.output = direct_bf16(d, far, QUERY);
        assert_ok(d, direct_encode_attention(d, (direct_form)form, &desc));
        assert_ok(d, direct_run(d));
        assert_memory_equal(near, far, QUERY * sizeof *far);
    }
    munmap(map, n_bytes);
    free(q);
    free(near);
    free(far);
}

/* 36: row numbers times stride pass 2^31 and 2^32. */
static void case_36(direct *d)
{
    static const uint64_t rows[] = {0, 2065, 2066, 4131, 4132};
    check_far_rows(d, 1039680, rows, COUNT_OF(rows), 4133);
}

static void test_36_far_rows(void **state)
{
    (void)state;
    on_every_level(case_36);
}

/* 36, scores: every key of a far cache is read where it lies. */
static void case_36_scores(direct *d)
{
    enum { N = 4133 };
    const uint64_t stride = 1039680;
    static const uint64_t rows[] = {0, 2065, 2066, 4131, 4132};
    uint16_t q[HEADS * DSR_INDEX_DIM];
    float weights[HEADS], *scores = zeros(N * sizeof *scores);
    int32_t list[32];
    size_t n_bytes;
    uint16_t *map = sparse_map(N, stride, &n_bytes);
    if (!map || mprotect(map, n_bytes, PROT_READ | PROT_WRITE) != 0) {
        skip();
    }
    score_query(q, weights);
    for (size_t i = 0; i < COUNT_OF(rows); i++) { /* the other keys are the zeros of untouched pages */
        score_key(pat(rows[i], 1) + 100.0f, map + rows[i] * stride);
    }
    const indexer_case c = {q, weights, map, (size_t)(N * stride), N, stride, N - 1, 1, 32};
    assert_ok(d, run_indexer(d, &c, scores, list));
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        assert_true(scores[rows[i]] == pat(rows[i], 1) + 100.0f);
    }
    assert_list(list, 32, scores, N);
    free(scores);
    munmap(map, n_bytes);
}

static void test_36_far_keys(void **state)
{
    (void)state;
    on_every_level(case_36_scores);
}

/* 36, copies: from and to rows beyond 2^32 elements. */
static void case_36_copy(direct *d)
{
    enum { N = 4133, FAR = 4132, NEAR = 2066 };
    const uint64_t stride = 1039680;
    size_t n_bytes;
    uint16_t *map = sparse_map(N, stride, &n_bytes);
    if (!map) {
        skip();
    }
    dsr_copy_row row = {0};
    dsr_copy_desc desc = DSR_COPY_DESC_INIT;
    fill_pat(back_row(map, FAR, stride, stride), FAR, stride);
    back_row(map, NEAR, stride, stride);
    row.destination = direct_bf16(d, map, (size_t)(FAR * stride));
    row.source_row = FAR;
    row.destination_row = NEAR;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.row_elements = stride;
    desc.source = direct_bf16(d, map, (size_t)(N * stride));
    assert_ok(d, dsr_encode_copy(d->encoder, &desc));
    assert_ok(d, direct_run(d));
    assert_memory_equal(map + NEAR * stride, map + FAR * stride, stride * sizeof *map);
    munmap(map, n_bytes);
}

static void test_36_far_copies(void **state)
{
    (void)state;
    on_best_level(case_36_copy);
}

/* 38: the cache is a strided view of bigger records. */
static void case_38(direct *d)
{
    static const uint64_t rows[] = {1993, 1994, 1995};
    check_far_rows(d, 2 * 269280, rows, COUNT_OF(rows), 1996);
}

static void test_38_strided_records(void **state)
{
    (void)state;
    on_every_level(case_38);
}

/* 40: more threads than work; every operand ends at an unreadable page. */
static void test_40_idle_workers(void **state)
{
    enum { K = 32 };
    guarded_memory memory;
    direct d;
    (void)state;
    assert_int_equal(guarded_open(&memory, 1 << 22), 0);
    uint16_t *q = (uint16_t *)guarded_allocate(&memory, HEADS * DSR_INDEX_DIM * sizeof *q, 0, 0xff).memory;
    uint16_t *key = (uint16_t *)guarded_allocate(&memory, DSR_INDEX_DIM * sizeof *q, 0, 0xff).memory;
    float *weights = (float *)guarded_allocate(&memory, HEADS * sizeof *weights, 0, 0xff).memory;
    int32_t *list = (int32_t *)guarded_allocate(&memory, K * sizeof *list, 0, 0xff).memory;
    score_query(q, weights);
    score_key(5.0f, key);
    direct_open(&d, DSR_ISA_AUTO, 16);
    const indexer_case c = {q, weights, key, DSR_INDEX_DIM, 1, 0, 0, 1, K};
    for (int i = 0; i < 100; i++) {
        memset(list, 0x55, K * sizeof *list);
        assert_ok(&d, run_indexer(&d, &c, NULL, list));
        assert_int_equal(list[0], 0);
        for (int j = 1; j < K; j++) {
            assert_int_equal(list[j], -1);
        }
    }
    direct_close(&d);
    guarded_close(&memory);
}

/* 42: lengths and offsets are those of encode time; the descriptor may change before and while the command runs. */
static void case_42(direct *d)
{
    enum { N = 50, K = 32 };
    uint16_t q[HEADS * DSR_INDEX_DIM];
    float weights[HEADS], scores[N];
    int32_t list[K];
    dsr_indexer_row row = {0};
    for (uint32_t t = 0; t < N; t++) {
        scores[t] = pat(t, 42);
    }
    uint16_t *keys = score_keys(scores, N);
    score_query(q, weights);
    row.keys = direct_bf16(d, keys, N * DSR_INDEX_DIM);
    row.kv_len = N;
    row.start_pos = N - 1;
    row.ratio = 1;
    dsr_indexer_desc desc = indexer_of_row(d, &row, HEADS, K, q, weights, list);
    assert_ok(d, direct_encode_indexer(d, &desc));
    memset(&row, 0xff, sizeof row);
    memset(&desc, 0xff, sizeof desc);
    for (int run = 0; run < 2; run++) {
        memset(list, 0x55, sizeof list);
        assert_ok(d, run ? dsr_encoder_replay(d->encoder) : dsr_encoder_submit(d->encoder));
        assert_list(list, K, scores, N);
    }
    free(keys);
    direct_drop(d);
}

static void test_42_lengths_of_encode_time(void **state)
{
    (void)state;
    on_every_level(case_42);
}

/* 43: arrays at any multiple of their element size work, others are refused by name. */
static void case_43(direct *d)
{
    enum { N = 9, K = 32 };
    static unsigned char bytes[8 + N * DSR_INDEX_DIM * 2];
    uint16_t q[HEADS * DSR_INDEX_DIM];
    float weights[HEADS], scores[N];
    int32_t storage[K + 2], *list = storage + 1;
    for (uint32_t t = 0; t < N; t++) {
        scores[t] = pat(t, 43);
    }
    uint16_t *keys = score_keys(scores, N);
    score_query(q, weights);
    for (size_t shift = 0; shift < 4; shift++) {
        memcpy(bytes + shift, keys, N * DSR_INDEX_DIM * sizeof *keys);
        const indexer_case c = {
            q, weights, (const uint16_t *)(uintptr_t)(bytes + shift), N * DSR_INDEX_DIM, N, 0, N - 1, 1, K};
        const dsr_status status = run_indexer(d, &c, NULL, list);
        if ((uintptr_t)(bytes + shift) % 2 != 0) {
            assert_refused(d, status, DSR_ERR_ALIGNMENT);
            assert_non_null(strstr(direct_error(d), "keys"));
            direct_drop(d);
        } else {
            assert_ok(d, status);
            assert_list(list, K, scores, N);
        }
    }
    free(keys);
}

static void test_43_odd_addresses(void **state)
{
    (void)state;
    on_every_level(case_43);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_33_relu_per_head),
        cmocka_unit_test(test_34_strided_cache),
        cmocka_unit_test(test_35_tokens_are_not_keys),
        cmocka_unit_test(test_36_far_rows),
        cmocka_unit_test(test_36_far_keys),
        cmocka_unit_test(test_36_far_copies),
        cmocka_unit_test(test_38_strided_records),
        cmocka_unit_test(test_40_idle_workers),
        cmocka_unit_test(test_42_lengths_of_encode_time),
        cmocka_unit_test(test_43_odd_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
