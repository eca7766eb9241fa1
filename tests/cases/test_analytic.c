/* Cases whose results follow by hand, through the public API, on every level. */
#include "compressor_rig.h"
#include "score_keys.h"

enum { HEADS = 64, QUERY = HEADS * DSR_HEAD_DIM };

/* ---- attention ------------------------------------------------------------------------------------------------ */

static const direct_form forms[2] = {DIRECT_TWO_PASS, DIRECT_FLASH};

typedef struct small_attention {
    uint16_t q[QUERY], kv[4 * DSR_HEAD_DIM], output[QUERY];
    float sinks[HEADS];
} small_attention;

static small_attention *small_attention_new(void)
{
    return zeros(sizeof(small_attention));
}

static void attend_small(direct *d, direct_form form, small_attention *a, const int32_t *indices, uint64_t width,
                         uint64_t kv_len)
{
    const attention_case c = {a->q, a->kv, kv_len, indices, width, a->sinks, 0, 0.0f};
    memset(a->output, 0xff, sizeof a->output);
    assert_ok(d, attend(d, form, &c, a->output));
}

static void set(uint16_t *row, uint32_t feature, float value)
{
    row[feature] = bf16_nearest(value);
}

/* q[0] = 8 in every head; rows (4, 1), (-4, 2), (0, 3) and (NaN, ...); sink 0.5. */
static small_attention *worked_example(void)
{
    static const float values[3][2] = {{4.0f, 1.0f}, {-4.0f, 2.0f}, {0.0f, 3.0f}};
    small_attention *a = small_attention_new();
    for (int h = 0; h < HEADS; h++) {
        set(a->q + h * DSR_HEAD_DIM, 0, 8.0f);
        a->sinks[h] = 0.5f;
    }
    for (int t = 0; t < 3; t++) {
        set(a->kv + t * DSR_HEAD_DIM, 0, values[t][0]);
        set(a->kv + t * DSR_HEAD_DIM, 1, values[t][1]);
    }
    fill_bf16(a->kv + 3 * DSR_HEAD_DIM, DSR_HEAD_DIM, BF16_NAN);
    return a;
}

static void assert_every_head(const small_attention *a, uint32_t feature, uint16_t want)
{
    for (int h = 0; h < HEADS; h++) {
        assert_int_equal(a->output[h * DSR_HEAD_DIM + (int)feature], want);
    }
}

static void plain_average(direct *d)
{
    static const int32_t indices[3] = {0, 1, 2};
    small_attention *a = small_attention_new();
    for (int t = 0; t < 3; t++) {
        set(a->kv + t * DSR_HEAD_DIM, 0, (float)(t + 1));
    }
    for (int i = 0; i < 2; i++) {
        attend_small(d, forms[i], a, indices, 3, 3);
        assert_every_head(a, 0, 0x3fc0); /* 6 / 4 */
        assert_every_head(a, 1, 0);
    }
    free(a);
}

static void test_plain_average(void **state)
{
    (void)state;
    on_every_level(plain_average);
}

static void weighted(direct *d)
{
    static const int32_t lists[4][6] = {
        {0, 1, 2, -1, -1, -1}, {-1, 0, 1, -1, 2, -1}, {0, 0, 1, 2, -1, -1}, {-1, -1, -1, -1, -1, -1}};
    small_attention *a = worked_example();
    for (int i = 0; i < 2; i++) {
        attend_small(d, forms[i], a, lists[0], 3, 4);
        assert_every_head(a, 0, 0x400d);
        assert_every_head(a, 1, 0x3f8b);
        attend_small(d, forms[i], a, lists[1], 6, 4); /* skipped slots anywhere */
        assert_every_head(a, 0, 0x400d);
        assert_every_head(a, 1, 0x3f8b);
        attend_small(d, forms[i], a, lists[2], 4, 4); /* a duplicate counts twice */
        assert_every_head(a, 1, 0x3f87);
        attend_small(d, forms[i], a, lists[3], 6, 4);
        for (int f = 0; f < QUERY; f++) {
            assert_int_equal(a->output[f], 0);
        }
    }
    free(a);
}

static void test_weighted_skipped_repeated(void **state)
{
    (void)state;
    on_every_level(weighted);
}

static void fails_closed(direct *d)
{
    static const int32_t bad_lists[3][3] = {{0, 1, 4}, {0, -2, 1}, {0, 3, 1}}; /* kv_len, below -1, a row of NaN */
    static const int32_t good[3] = {0, 1, 2};
    small_attention *a = worked_example();
    uint16_t clean[QUERY];
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 3; k++) {
            attend_small(d, forms[i], a, bad_lists[k], 3, 4);
            for (int f = 0; f < QUERY; f++) {
                assert_int_equal(a->output[f], 0);
            }
        }
        attend_small(d, forms[i], a, good, 3, 4);
        memcpy(clean, a->output, sizeof clean);
        for (int kind = 0; kind < 2; kind++) { /* head 5: NaN in q; a sink of -inf */
            const uint16_t q = a->q[5 * DSR_HEAD_DIM + 9];
            a->q[5 * DSR_HEAD_DIM + 9] = kind ? q : BF16_NAN;
            a->sinks[5] = kind ? -INFINITY : 0.5f;
            attend_small(d, forms[i], a, good, 3, 4);
            for (int f = 0; f < QUERY; f++) {
                assert_int_equal(a->output[f], f / DSR_HEAD_DIM == 5 ? 0 : clean[f]);
            }
            a->q[5 * DSR_HEAD_DIM + 9] = q;
            a->sinks[5] = 0.5f;
        }
    }
    free(a);
}

static void test_fails_closed(void **state)
{
    (void)state;
    on_every_level(fails_closed);
}

static void extreme_sinks(direct *d)
{
    static const int32_t indices[3] = {0, 1, 2};
    small_attention *a = small_attention_new();
    for (int t = 0; t < 3; t++) {
        set(a->kv + t * DSR_HEAD_DIM, 0, (float)(t + 1));
    }
    for (int h = 0; h < HEADS; h++) {
        a->sinks[h] = h % 2 ? 100.0f : -1e30f;
    }
    for (int i = 0; i < 2; i++) {
        attend_small(d, forms[i], a, indices, 3, 3);
        for (int h = 0; h < HEADS; h++) {
            const float x = f32_from_bf16(a->output[h * DSR_HEAD_DIM]);
            assert_true(h % 2 ? x >= 0.0f && x < 1e-40f : x == 2.0f);
        }
    }
    free(a);
}

static void test_extreme_sinks(void **state)
{
    (void)state;
    on_every_level(extreme_sinks);
}

/* Widths 160, 640, 160 with query rows in another order and one left out: each row as alone, the rest untouched. */
static void widths_and_query_rows(direct *d)
{
    static const uint64_t widths[3] = {160, 640, 160}, query_rows[3] = {3, 0, 2};
    enum { N_KV = 700, QUERIES = 4 };
    uint16_t *q = zeros(QUERIES * QUERY * sizeof *q), *output = filled(QUERIES * QUERY * sizeof *q, 0xff);
    uint16_t *kv = zeros(N_KV * DSR_HEAD_DIM * sizeof *kv), *alone = zeros(QUERY * sizeof *alone);
    int32_t *indices = zeros(960 * sizeof *indices);
    float sinks[HEADS] = {0};
    dsr_attention_row rows[3] = {0};
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    fill_pat(q, 1, QUERIES * QUERY);
    fill_pat(kv, 2, N_KV * DSR_HEAD_DIM);
    for (int32_t i = 0; i < 960; i++) {
        indices[i] = i * 13 % N_KV;
    }
    for (uint64_t r = 0, offset = 0; r < 3; offset += widths[r++]) {
        rows[r].kv = direct_bf16(d, kv, N_KV * DSR_HEAD_DIM);
        rows[r].kv_len = N_KV;
        rows[r].q_row = query_rows[r];
        rows[r].index_offset = offset;
        rows[r].width = widths[r];
    }
    desc.n_rows = 3;
    desc.rows = rows;
    desc.n_heads = HEADS;
    desc.scale = DSR_ATTENTION_SCALE;
    desc.q = direct_bf16(d, q, QUERIES * QUERY);
    desc.indices = direct_i32(d, indices, 960);
    desc.sinks = direct_f32(d, sinks, HEADS);
    desc.output = direct_bf16(d, output, QUERIES * QUERY);
    assert_int_equal(dsr_flash_attention_contiguous(&desc), 0);
    assert_ok(d, direct_encode_attention(d, DIRECT_FLASH, &desc));
    assert_ok(d, direct_run(d));
    for (uint64_t r = 0, offset = 0; r < 3; offset += widths[r++]) {
        const attention_case c = {q + query_rows[r] * QUERY, kv, N_KV, indices + offset, widths[r], sinks, 0, 0.0f};
        assert_ok(d, attend(d, DIRECT_FLASH, &c, alone));
        assert_memory_equal(alone, output + query_rows[r] * QUERY, QUERY * sizeof *alone);
    }
    for (size_t i = QUERY; i < 2 * QUERY; i++) {
        assert_int_equal(output[i], 0xffff);
    }
    free(q);
    free(kv);
    free(output);
    free(alone);
    free(indices);
}

static void test_widths_and_query_rows(void **state)
{
    (void)state;
    on_best_level(widths_and_query_rows);
}

/* ---- indexer --------------------------------------------------------------------------------------------------- */

/* The lists of one row of n keys over 64 heads. */
static void index_64(direct *d, const uint16_t *q, const float *weights, const uint16_t *keys, uint64_t n, uint32_t pos,
                     int32_t offset, int32_t list[512])
{
    dsr_indexer_row row = {0};
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    row.keys = direct_bf16(d, keys, (size_t)n * DSR_INDEX_DIM);
    row.kv_len = n;
    row.start_pos = pos;
    row.offset = offset;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.n_heads = HEADS;
    desc.q = direct_bf16(d, q, HEADS * DSR_INDEX_DIM);
    desc.weights = direct_f32(d, weights, HEADS);
    desc.output = direct_i32(d, list, 512);
    assert_ok(d, direct_encode_indexer(d, &desc));
    assert_ok(d, direct_run(d));
}

static void all_scores_equal(direct *d)
{
    enum { N = 700 };
    uint16_t q[HEADS * DSR_INDEX_DIM] = {0};
    uint16_t *keys = zeros(N * DSR_INDEX_DIM * sizeof *keys);
    float weights[HEADS];
    int32_t list[512];
    for (int h = 0; h < HEADS; h++) {
        weights[h] = 0.01f;
    }
    fill_bf16(keys, N * DSR_INDEX_DIM, 0xbf80); /* -1: with q = 0, then with q > 0 and all dots negative */
    for (int negative = 0; negative < 2; negative++) {
        fill_bf16(q, COUNT_OF(q), negative ? BF16_ONE : 0);
        index_64(d, q, weights, keys, N, 4 * N - 1, 128, list);
        for (int i = 0; i < 512; i++) {
            assert_int_equal(list[i], 128 + i);
        }
    }
    free(keys);
}

static void test_all_scores_equal(void **state)
{
    (void)state;
    on_every_level(all_scores_equal);
}

static void few_keys(direct *d)
{
    uint16_t q[HEADS * DSR_INDEX_DIM] = {0}, keys[5 * DSR_INDEX_DIM] = {0};
    float weights[HEADS] = {0};
    int32_t list[512];
    index_64(d, q, weights, keys, 5, 19, 7, list);
    for (int i = 0; i < 512; i++) {
        assert_int_equal(list[i], i < 5 ? 7 + i : -1);
    }
    for (uint32_t pos = 0; pos < 3; pos++) {
        index_64(d, q, weights, keys, 1, pos, 7, list);
        for (int i = 0; i < 512; i++) {
            assert_int_equal(list[i], -1);
        }
    }
}

static void test_few_keys(void **state)
{
    (void)state;
    on_every_level(few_keys);
}

static void grouped_scores(direct *d)
{
    enum { N = 600 };
    uint16_t q[HEADS * DSR_INDEX_DIM] = {BF16_ONE};
    uint16_t *keys = zeros(N * DSR_INDEX_DIM * sizeof *keys);
    float weights[HEADS] = {1.0f};
    int32_t list[512];
    for (int t = 0; t < N; t++) {
        set(keys + t * DSR_INDEX_DIM, 0, (float)(t % 7));
    }
    index_64(d, q, weights, keys, N, 4 * N - 1, 0, list);
    for (int i = 0, value = 6, t = 6; i < 512; i++) {
        assert_int_equal(list[i], t);
        t += 7;
        if (t >= N) {
            t = --value;
        }
    }
    keys[13 * DSR_INDEX_DIM + 100] = BF16_NAN; /* key 13 (value 6) drops out, the others stay in order */
    index_64(d, q, weights, keys, N, 4 * N - 1, 0, list);
    assert_int_equal(list[0], 6);
    assert_int_equal(list[1], 20);
    for (int i = 0; i < 512; i++) {
        assert_int_not_equal(list[i], 13);
    }
    weights[40] = NAN;
    index_64(d, q, weights, keys, N, 4 * N - 1, 0, list);
    for (int i = 0; i < 512; i++) {
        assert_int_equal(list[i], -1);
    }
    free(keys);
}

static void test_grouped_scores(void **state)
{
    (void)state;
    on_every_level(grouped_scores);
}

static void block_boundaries(direct *d)
{
    static const uint32_t sizes[] = {1024, 1025, 2048, 2049, 4097};
    float scores[4097];
    for (uint32_t t = 0; t < 4097; t++) {
        scores[t] = (float)((t * 2654435761u) >> 22);
    }
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        check_selection(d, scores, sizes[i], 512);
    }
}

static void test_block_boundaries(void **state)
{
    (void)state;
    on_every_level(block_boundaries);
}

/* ---- compressor ------------------------------------------------------------------------------------------------ */

static const float ln2 = 0.693147182f;

/* Current-group columns: (p + 1) (1 + (f odd)), score (p mod 4) ln 2. Previous-group columns: -(p + 1), score 0. */
static void worked_token(const rig *r, uint64_t token, float *kv, float *score)
{
    for (uint32_t f = 0; f < r->dim; f++) {
        kv[f] = -(float)(token + 1);
        score[f] = 0.0f;
        kv[r->dim + f] = (float)(token + 1) * (float)(1 + f % 2);
        score[r->dim + f] = (float)(token % 4) * ln2;
    }
}

static void assert_even_odd(const uint16_t *row, uint32_t dim, float even, float odd)
{
    for (uint32_t f = 0; f < dim; f++) {
        assert_int_equal(row[f], bf16_nearest(f % 2 ? odd : even));
    }
}

static void two_groups(direct *d)
{
    rig r = rig_open(4, 128);
    rig_state state = rig_state_new(&r);
    uint16_t rows[2 * 128];
    assert_int_equal(rig_feed(d, &r, &state, 0, 0, 8, worked_token, rows), 2);
    assert_even_odd(rows, 128, 0.6328125f, 1.265625f);
    assert_even_odd(rows + 128, 128, 0.609375f, 1.2734375f);
    rig_state_free(&state);
    rig_close(&r);
}

static void test_two_groups(void **state)
{
    (void)state;
    on_every_level(two_groups);
}

static void unscored_token(const rig *r, uint64_t token, float *kv, float *score)
{
    worked_token(r, token, kv, score);
    memset(score, 0, r->columns * sizeof *score);
}

static void position_bias(direct *d)
{
    rig r = rig_open(4, 128);
    rig_state state = rig_state_new(&r);
    uint16_t row[128];
    for (uint32_t j = 0; j < 4; j++) {
        for (uint32_t f = 0; f < r.columns; f++) {
            r.ape[j * r.columns + f] = (float)j * ln2;
        }
    }
    assert_int_equal(rig_feed(d, &r, &state, 0, 0, 4, unscored_token, row), 1);
    assert_even_odd(row, 128, 0.6328125f, 1.265625f);
    rig_state_free(&state);
    rig_close(&r);
}

static void test_position_bias(void **state)
{
    (void)state;
    on_every_level(position_bias);
}

static uint32_t n_changed_rows(const rig *r, const float *before, const float *after)
{
    uint32_t n = 0;
    for (size_t row = 0; row < r->n_state / r->columns; row++) {
        n += memcmp(before + row * r->columns, after + row * r->columns, r->columns * sizeof *before) != 0;
    }
    return n;
}

static void state_rows(direct *d)
{
    rig r = rig_open(4, 512);
    rig_state state = rig_state_new(&r), before = rig_state_new(&r);
    uint16_t rows[512];
    const size_t half = r.n_state / 2;
    rig_feed(d, &r, &state, 0, 0, 5, pat_token, rows);
    rig_state_copy(&r, &before, &state);
    assert_int_equal(rig_feed(d, &r, &state, 5, 5, 1, pat_token, rows), 0);
    assert_int_equal(n_changed_rows(&r, before.kv, state.kv), 1);
    assert_int_equal(n_changed_rows(&r, before.score, state.score), 1);
    rig_feed(d, &r, &state, 6, 6, 1, pat_token, rows);
    rig_state_copy(&r, &before, &state);
    assert_int_equal(rig_feed(d, &r, &state, 7, 7, 1, pat_token, rows), 1);
    assert_memory_equal(state.kv, state.kv + half,
                        half * sizeof(float)); /* the group just emitted is the previous one */
    assert_memory_equal(state.score, state.score + half, half * sizeof(float));
    assert_memory_equal(state.kv + half, before.kv + half, 3 * r.columns * sizeof(float));
    rig_state_free(&state);
    rig_state_free(&before);
    rig_close(&r);
}

static void test_state_rows(void **state)
{
    (void)state;
    on_every_level(state_rows);
}

/* Which emissions are zeros when one element of token 5 is NaN. */
static uint32_t nan_column;

static void one_nan(const rig *r, uint64_t token, float *kv, float *score)
{
    pat_token(r, token, kv, score);
    if (token == 5) {
        kv[nan_column] = NAN;
    }
}

static int is_zero_row(const uint16_t *row, uint32_t dim)
{
    for (uint32_t f = 0; f < dim; f++) {
        if (row[f] != 0) {
            return 0;
        }
    }
    return 1;
}

static void nan_in_a_token(direct *d)
{
    static const struct {
        uint32_t ratio, dim, column, zero_emission; /* emissions 0.. */
    } cases[] = {{4, 128, 128 + 7, 1}, {4, 128, 7, 2}, {4, 512, 512 + 511, 1}, {4, 512, 0, 2}, {128, 512, 300, 0}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        rig r = rig_open(cases[i].ratio, cases[i].dim);
        rig_state state = rig_state_new(&r);
        uint16_t rows[5 * DSR_HEAD_DIM];
        nan_column = cases[i].column;
        const uint32_t n = rig_feed(d, &r, &state, 0, 0, r.ratio == 4 ? 20 : 256, one_nan, rows);
        for (uint32_t e = 0; e < n; e++) {
            assert_int_equal(is_zero_row(rows + e * r.dim, r.dim), e == cases[i].zero_emission);
        }
        rig_state_free(&state);
        rig_close(&r);
    }
}

static void test_nan_in_a_token(void **state)
{
    (void)state;
    on_every_level(nan_in_a_token);
}

/* ---- RoPE ------------------------------------------------------------------------------------------------------ */

static void rotate(direct *d, dsr_rope_table table, uint32_t pos, int inverse, const uint16_t *input, uint16_t *output)
{
    dsr_rope_row row = {0};
    dsr_rope_desc desc = DSR_ROPE_DESC_INIT;
    row.start_pos = pos;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.n_heads = 1;
    desc.head_dim = DSR_HEAD_DIM;
    desc.rope_dim = DSR_ROPE_DIM;
    desc.inverse = inverse;
    desc.input = direct_bf16(d, input, DSR_HEAD_DIM);
    desc.output = direct_bf16(d, output, DSR_HEAD_DIM);
    desc.frequencies = dsr_rope_frequencies(table);
    assert_ok(d, dsr_encode_rope(d->encoder, &desc));
    assert_ok(d, direct_run(d));
}

static void rotated_pairs(direct *d)
{
    static const struct {
        dsr_rope_table table;
        uint32_t pos, pair;
        float a, b;
    } cases[] = {
        {DSR_ROPE_YARN, 5, 0, 2.203125f, -0.390625f},        {DSR_ROPE_YARN, 1000, 15, 0.06787109375f, -2.234375f},
        {DSR_ROPE_YARN, 1000, 20, 0.37109375f, 2.203125f},   {DSR_ROPE_BASE, 1000, 15, -0.671875f, 2.125f},
        {DSR_ROPE_BASE, 1000, 20, -0.95703125f, -2.015625f}, {DSR_ROPE_YARN, 100000, 31, 0.88671875f, 2.046875f},
    };
    uint16_t input[DSR_HEAD_DIM], output[DSR_HEAD_DIM], back[DSR_HEAD_DIM];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const uint32_t at = 448 + 2 * cases[i].pair;
        for (uint32_t f = 0; f < DSR_HEAD_DIM; f++) {
            input[f] = f % 2 ? 0x4000 : BF16_ONE;
        }
        rotate(d, cases[i].table, cases[i].pos, 0, input, output);
        assert_int_equal(output[at], bf16_nearest(cases[i].a));
        assert_int_equal(output[at + 1], bf16_nearest(cases[i].b));
        assert_memory_equal(output, input, 448 * sizeof *output);
        rotate(d, cases[i].table, cases[i].pos, 1, output, back);
        for (uint32_t f = 448; f < DSR_HEAD_DIM; f++) {
            assert_true(fabsf(f32_from_bf16(back[f]) - f32_from_bf16(input[f])) <= 0.0625f);
        }
    }
}

static void test_rotated_pairs(void **state)
{
    (void)state;
    on_every_level(rotated_pairs);
}

/* ---- quantisers ------------------------------------------------------------------------------------------------- */

static void quantise(direct *d, dsr_quant_kind kind, const uint16_t input[128], uint16_t output[128])
{
    dsr_fake_quant_desc desc = DSR_FAKE_QUANT_DESC_INIT;
    desc.kind = kind;
    desc.n_vectors = 1;
    desc.dim = 128;
    desc.input = direct_bf16(d, input, 128);
    desc.output = direct_bf16(d, output, 128);
    assert_ok(d, dsr_encode_fake_quant(d->encoder, &desc));
    assert_ok(d, direct_run(d));
}

static void fp8_blocks(direct *d)
{
    static const float first[6] = {-3.0f, -3.0f, -3.0f, -2.75f, -2.75f, -2.5f};
    static const float from[] = {448.0f, 0.0009765625f, 0.00146484375f, 1.0625f, 1.1875f, 17.0f, 19.0f, 440.0f};
    static const float to[] = {448.0f, 0.0f, 0.001953125f, 1.0f, 1.25f, 16.0f, 20.0f, 448.0f};
    uint16_t input[128], output[128];
    for (int i = 0; i < 128; i++) {
        set(input, (uint32_t)i, (float)(i - 31) / 10.0f);
    }
    quantise(d, DSR_QUANT_FP8_BLOCK64, input, output);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(output[i], bf16_nearest(first[i]));
    }
    assert_memory_equal(output + 64, input + 64, 64 * sizeof *output);
    for (int negative = 0; negative < 2; negative++) {
        memset(input, 0, sizeof input);
        for (size_t i = 0; i < COUNT_OF(from); i++) {
            set(input, (uint32_t)i, negative ? -from[i] : from[i]);
        }
        quantise(d, DSR_QUANT_FP8_BLOCK64, input, output);
        for (size_t i = 0; i < COUNT_OF(to); i++) {
            assert_int_equal(output[i], bf16_nearest(negative ? -to[i] : to[i]));
        }
    }
    input[3] = BF16_INF; /* a block with a value that is not finite is zeros */
    quantise(d, DSR_QUANT_FP8_BLOCK64, input, output);
    assert_true(is_zero_row(output, 64));
}

static void test_fp8_blocks(void **state)
{
    (void)state;
    on_every_level(fp8_blocks);
}

static void hadamard_of_a_unit(direct *d)
{
    uint16_t input[128] = {BF16_ONE}, output[128];
    quantise(d, DSR_QUANT_HADAMARD_FP4_BLOCK32, input, output);
    for (int i = 0; i < 128; i++) {
        assert_int_equal(output[i], bf16_nearest(0.09375f));
    }
    input[1] = BF16_NAN; /* counts as 0 */
    quantise(d, DSR_QUANT_HADAMARD_FP4_BLOCK32, input, output);
    for (int i = 0; i < 128; i++) {
        assert_int_equal(output[i], bf16_nearest(0.09375f));
    }
}

static void test_hadamard_of_a_unit(void **state)
{
    (void)state;
    on_every_level(hadamard_of_a_unit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_average),
        cmocka_unit_test(test_weighted_skipped_repeated),
        cmocka_unit_test(test_fails_closed),
        cmocka_unit_test(test_extreme_sinks),
        cmocka_unit_test(test_widths_and_query_rows),
        cmocka_unit_test(test_all_scores_equal),
        cmocka_unit_test(test_few_keys),
        cmocka_unit_test(test_grouped_scores),
        cmocka_unit_test(test_block_boundaries),
        cmocka_unit_test(test_two_groups),
        cmocka_unit_test(test_position_bias),
        cmocka_unit_test(test_state_rows),
        cmocka_unit_test(test_nan_in_a_token),
        cmocka_unit_test(test_rotated_pairs),
        cmocka_unit_test(test_fp8_blocks),
        cmocka_unit_test(test_hadamard_of_a_unit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
