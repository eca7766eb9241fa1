/* What broke sparse attention, sinks and joint calls for others, cases 9 and 64 to 91 of docs/reported-faults.md. */
#include "case_test.h"

#include <pthread.h>
#include <stdatomic.h>

enum { HEADS = 64, QUERY = HEADS * DSR_HEAD_DIM };

/* Rows of a joint call over one small cache of PAT, each with a list of its own. */
typedef struct joint {
    uint32_t n_rows, kv_len, max_width;
    uint16_t *q, *kv, *output; /* q, output [n_rows][64][512] */
    int32_t *indices;          /* [n_rows][max_width] */
    uint64_t widths[DSR_MAX_ROWS];
    float sinks[HEADS];
} joint;

static joint joint_new(uint32_t n_rows, uint32_t kv_len, uint32_t max_width)
{
    joint j;
    memset(&j, 0, sizeof j);
    j.n_rows = n_rows;
    j.kv_len = kv_len;
    j.max_width = max_width;
    j.q = zeros((size_t)n_rows * QUERY * sizeof *j.q);
    j.kv = zeros((size_t)kv_len * DSR_HEAD_DIM * sizeof *j.kv);
    j.output = zeros((size_t)n_rows * QUERY * sizeof *j.output);
    j.indices = zeros((size_t)n_rows * max_width * sizeof *j.indices);
    for (uint32_t r = 0; r < n_rows; r++) {
        fill_pat(j.q + (size_t)r * QUERY, r, QUERY);
        j.widths[r] = max_width;
        for (uint32_t i = 0; i < max_width; i++) {
            j.indices[r * max_width + i] = (int32_t)((r * 7 + i * 3) % kv_len);
        }
    }
    for (uint32_t t = 0; t < kv_len; t++) {
        fill_pat(j.kv + (size_t)t * DSR_HEAD_DIM, 500 + t, DSR_HEAD_DIM);
    }
    for (uint32_t h = 0; h < HEADS; h++) {
        j.sinks[h] = pat(9, h);
    }
    return j;
}

static void joint_free(joint *j)
{
    free(j->q);
    free(j->kv);
    free(j->output);
    free(j->indices);
}

/* Rows first..first + n - 1 in one call, output poisoned before. */
static dsr_status joint_encode(direct *d, direct_form form, joint *j, uint32_t first, uint32_t n)
{
    dsr_attention_row rows[DSR_MAX_ROWS + 65];
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    memset(rows, 0, sizeof rows);
    memset(j->output, 0xff, (size_t)j->n_rows * QUERY * sizeof *j->output);
    const dsr_view kv = direct_bf16(d, j->kv, (size_t)j->kv_len * DSR_HEAD_DIM);
    for (uint32_t i = 0; i < n; i++) {
        rows[i].kv = kv;
        rows[i].kv_len = j->kv_len;
        rows[i].q_row = first + i;
        rows[i].index_offset = (uint64_t)(first + i) * j->max_width;
        rows[i].width = j->widths[(first + i) % DSR_MAX_ROWS]; /* more rows than there may be are asked for, too */
    }
    desc.n_rows = n;
    desc.rows = rows;
    desc.n_heads = HEADS;
    desc.scale = DSR_ATTENTION_SCALE;
    desc.q = direct_bf16(d, j->q, (size_t)j->n_rows * QUERY);
    desc.indices = direct_i32(d, j->indices, (size_t)j->n_rows * j->max_width);
    desc.sinks = direct_f32(d, j->sinks, HEADS);
    desc.output = direct_bf16(d, j->output, (size_t)j->n_rows * QUERY);
    return direct_encode_attention(d, form, &desc);
}

static void joint_run(direct *d, direct_form form, joint *j, uint32_t first, uint32_t n)
{
    assert_ok(d, joint_encode(d, form, j, first, n));
    assert_ok(d, direct_run(d));
}

static const uint16_t *row_of(const joint *j, uint32_t r)
{
    return j->output + (size_t)r * QUERY;
}

/* Every row alone, [n_rows][64][512]; the caller frees. */
static uint16_t *all_alone(direct *d, direct_form form, joint *j)
{
    uint16_t *alone = zeros((size_t)j->n_rows * QUERY * sizeof *alone);
    for (uint32_t r = 0; r < j->n_rows; r++) {
        joint_run(d, form, j, r, 1);
        memcpy(alone + (size_t)r * QUERY, row_of(j, r), QUERY * sizeof *alone);
    }
    return alone;
}

static void assert_zeros(const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(x[i], 0);
    }
}

static void in_both_forms(direct *d, void (*run)(direct *d, direct_form form))
{
    run(d, DIRECT_TWO_PASS);
    run(d, DIRECT_FLASH);
}

/* ---- m rows of ones give m / (m + 1) -------------------------------------------------------------------------- */

/* q = 0, sink = 0, v = 1. */
static void check_ones(direct *d, direct_form form, uint32_t m, uint32_t n_rows, uint32_t n_heads)
{
    const size_t query = (size_t)n_heads * DSR_HEAD_DIM;
    uint16_t *q = zeros(n_rows * query * sizeof *q), *output = filled(n_rows * query * sizeof *output, 0xff);
    uint16_t *kv = zeros((size_t)m * DSR_HEAD_DIM * sizeof *kv);
    int32_t *indices = zeros(m * sizeof *indices);
    float sinks[128] = {0};
    dsr_attention_row rows[DSR_MAX_ROWS];
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    fill_bf16(kv, (size_t)m * DSR_HEAD_DIM, BF16_ONE);
    memset(rows, 0, sizeof rows);
    for (uint32_t i = 0; i < m; i++) {
        indices[i] = (int32_t)i;
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        rows[r].kv = direct_bf16(d, kv, (size_t)m * DSR_HEAD_DIM);
        rows[r].kv_len = m;
        rows[r].q_row = r;
        rows[r].width = m;
    }
    desc.n_rows = n_rows;
    desc.rows = rows;
    desc.n_heads = n_heads;
    desc.scale = 1.0f;
    desc.q = direct_bf16(d, q, n_rows * query);
    desc.indices = direct_i32(d, indices, m);
    desc.sinks = direct_f32(d, sinks, n_heads);
    desc.output = direct_bf16(d, output, n_rows * query);
    assert_ok(d, direct_encode_attention(d, form, &desc));
    assert_ok(d, direct_run(d));
    const uint16_t want = bf16_nearest((float)m / (float)(m + 1));
    for (size_t i = 0; i < n_rows * query; i++) {
        assert_int_equal(output[i], want);
    }
    free(q);
    free(kv);
    free(output);
    free(indices);
}

/* 9: no selection is cut to 512. */
static void case_9(direct *d, direct_form form)
{
    static const uint32_t widths[] = {1, 511, 512, 513, 1024, 2000};
    for (size_t i = 0; i < COUNT_OF(widths); i++) {
        check_ones(d, form, widths[i], 1, 64);
    }
}

static void both_9(direct *d)
{
    in_both_forms(d, case_9);
}

static void test_9_no_selection_is_cut(void **state)
{
    (void)state;
    on_best_level(both_9);
}

/* 66: the sink counts once in every path. */
static void case_66(direct *d, direct_form form)
{
    static const uint32_t widths[] = {1, 2, 31, 32, 33};
    for (size_t i = 0; i < COUNT_OF(widths); i++) {
        check_ones(d, form, widths[i], 1, 64);
        check_ones(d, form, widths[i], 2, 128);
    }
}

static void both_66(direct *d)
{
    in_both_forms(d, case_66);
}

static void case_66_large(direct *d, direct_form form)
{
    check_ones(d, form, 512, 1, 64);
    check_ones(d, form, IS_EMULATED ? 700 : 5000, 1, 64);
    check_ones(d, form, 33, 64, 64);
}

static void both_66_large(direct *d)
{
    in_both_forms(d, case_66_large);
}

static void test_66_sink_in_every_path(void **state)
{
    (void)state;
    on_every_level(both_66);
    on_best_level(both_66_large);
}

/* ---- nothing to attend to ------------------------------------------------------------------------------------- */

/* 64: rows that select nothing, at the beginning, in the middle, everywhere. */
static void case_64(direct *d, direct_form form)
{
    static const uint32_t spans[3][2] = {{0, 14}, {13, 27}, {0, 40}};
    enum { N = 40, WIDTH = 5 };
    joint j = joint_new(N, 11, WIDTH);
    uint16_t *alone = all_alone(d, form, &j);
    int32_t *indices = zeros(N * WIDTH * sizeof *indices);
    memcpy(indices, j.indices, N * WIDTH * sizeof *indices);
    for (int i = 0; i < 3; i++) {
        memcpy(j.indices, indices, N * WIDTH * sizeof *indices);
        memset(j.indices + spans[i][0] * WIDTH, 0xff, (spans[i][1] - spans[i][0]) * WIDTH * sizeof *indices);
        joint_run(d, form, &j, 0, N);
        for (uint32_t r = 0; r < N; r++) {
            if (r >= spans[i][0] && r < spans[i][1]) {
                assert_zeros(row_of(&j, r), QUERY);
            } else {
                assert_memory_equal(row_of(&j, r), alone + (size_t)r * QUERY, QUERY * sizeof *alone);
            }
        }
    }
    free(alone);
    free(indices);
    joint_free(&j);
}

static void both_64(direct *d)
{
    in_both_forms(d, case_64);
}

static void test_64_leading_empty_rows(void **state)
{
    (void)state;
    on_every_level(both_64);
}

/* 68: the sink is part of the maximum; a sink that is not finite gives zeros in its head. */
static void case_68(direct *d, direct_form form)
{
    const float sinks_to_try[6] = {100.0f, 50.0f, 0.0f, -1e30f, INFINITY, -INFINITY};
    const float want[6] = {0.0f, 1.9287498e-22f, 0.5f, 1.0f, 0.0f, 0.0f};
    uint16_t *q = zeros(QUERY * sizeof *q), *output = filled(QUERY * sizeof *q, 0xff), kv[DSR_HEAD_DIM];
    const int32_t index = 0;
    float sinks[HEADS];
    fill_bf16(kv, DSR_HEAD_DIM, BF16_ONE);
    for (int h = 0; h < HEADS; h++) {
        sinks[h] = sinks_to_try[h % 6];
    }
    const attention_case c = {q, kv, 1, &index, 1, sinks, 0, 0.0f};
    assert_ok(d, attend(d, form, &c, output));
    for (int h = 0; h < HEADS; h++) {
        for (int f = 0; f < DSR_HEAD_DIM; f++) {
            assert_int_equal(output[h * DSR_HEAD_DIM + f], bf16_nearest(want[h % 6]));
        }
    }
    free(q);
    free(output);
}

static void both_68(direct *d)
{
    in_both_forms(d, case_68);
}

static void test_68_sink_in_the_maximum(void **state)
{
    (void)state;
    on_every_level(both_68);
}

/* 69, 86: rows that no list names hold NaN or infinities, row 0 among them; the list is followed by a good index. */
static void case_69(direct *d, direct_form form)
{
    static const int32_t lists[4][4] = {{0, 3, -1, -1}, {3, 5, -1, -1}, {-1, 4, -1, -1}, {-1, -1, -1, -1}};
    static const uint16_t bad[2] = {BF16_NAN, BF16_INF};
    enum { N = 4, WIDTH = 4 };
    joint j = joint_new(N, 8, WIDTH);
    uint16_t *clean = zeros((size_t)N * QUERY * sizeof *clean);
    memcpy(j.indices, lists, sizeof lists);
    for (uint32_t t = 0; t < 8; t++) {
        if (t != 0 && t != 3 && t != 4 && t != 5) {
            memset(j.kv + t * DSR_HEAD_DIM, 0, DSR_HEAD_DIM * sizeof *j.kv);
        }
    }
    joint_run(d, form, &j, 0, N);
    memcpy(clean, j.output, (size_t)N * QUERY * sizeof *clean);
    assert_zeros(clean + 3 * QUERY, QUERY);
    for (int b = 0; b < 2; b++) {
        for (uint32_t t = 0; t < 8; t++) {
            if (t != 0 && t != 3 && t != 4 && t != 5) {
                fill_bf16(j.kv + t * DSR_HEAD_DIM, DSR_HEAD_DIM, bad[b]);
            }
        }
        joint_run(d, form, &j, 0, N);
        assert_memory_equal(j.output, clean, (size_t)N * QUERY * sizeof *clean);
        for (uint32_t f = 0; f < DSR_HEAD_DIM; f++) { /* row 0 too: lists 1, 2 and 3 do not name it */
            j.kv[f] = bad[b];
        }
        joint_run(d, form, &j, 1, 3);
        assert_memory_equal(row_of(&j, 1), clean + QUERY, 3 * (size_t)QUERY * sizeof *clean);
        fill_pat(j.kv, 500, DSR_HEAD_DIM);
    }
    j.widths[0] = 2; /* the list (0, 3), then memory that says 5 */
    j.indices[2] = 5;
    joint_run(d, form, &j, 0, 1);
    assert_memory_equal(row_of(&j, 0), clean, QUERY * sizeof *clean);
    free(clean);
    joint_free(&j);
}

static void both_69(direct *d)
{
    in_both_forms(d, case_69);
}

static void test_69_86_unnamed_rows_are_not_read(void **state)
{
    (void)state;
    on_every_level(both_69);
}

/* 70: every row is written, also those without a selected entry; a width of 0 is refused. */
static void case_70(direct *d, direct_form form)
{
    static const uint32_t counts[4] = {3, 0, 2, 0};
    enum { N = 4, WIDTH = 3 };
    joint j = joint_new(N, 8, WIDTH);
    for (uint32_t r = 0; r < N; r++) {
        for (uint32_t i = counts[r]; i < WIDTH; i++) {
            j.indices[r * WIDTH + i] = -1;
        }
    }
    joint_run(d, form, &j, 0, N);
    assert_zeros(row_of(&j, 1), QUERY);
    assert_zeros(row_of(&j, 3), QUERY);
    for (size_t i = 0; i < (size_t)N * QUERY; i++) {
        assert_int_not_equal(j.output[i], 0xffff);
    }
    j.widths[1] = 0;
    assert_refused(d, joint_encode(d, form, &j, 0, N), DSR_ERR_VALUE);
    direct_drop(d);
    joint_free(&j);
}

static void both_70(direct *d)
{
    in_both_forms(d, case_70);
}

static void test_70_empty_rows_are_written(void **state)
{
    (void)state;
    on_every_level(both_70);
}

/* 26: -1 is skipped anywhere; an index past the cache or below -1 gives zeros; nothing is read for it. */
static void case_26(direct *d, direct_form form)
{
    enum { N = 5, WIDTH = 4 };
    static const int32_t lists[N][WIDTH] = {
        {3, -1, 5, -1}, {3, 5, -1, -1}, {3, 5, 8, -1}, {3, 5, -2, -1}, {INT32_MAX, INT32_MIN, 3, 5}};
    joint j = joint_new(N, 8, WIDTH);
    for (uint32_t r = 1; r < N; r++) {
        memcpy(j.q + (size_t)r * QUERY, j.q, QUERY * sizeof *j.q);
    }
    memcpy(j.indices, lists, sizeof lists);
    joint_run(d, form, &j, 0, N);
    assert_memory_equal(row_of(&j, 0), row_of(&j, 1), QUERY * sizeof *j.output);
    assert_int_not_equal(row_of(&j, 0)[0], 0);
    for (uint32_t r = 2; r < N; r++) {
        assert_zeros(row_of(&j, r), QUERY);
    }
    joint_free(&j);
}

static void both_26(direct *d)
{
    in_both_forms(d, case_26);
}

static void test_26_one_rule_for_bad_indices(void **state)
{
    (void)state;
    on_every_level(both_26);
}

/* 72: the list ends at an unreadable page; the bits of the same list padded to 512. */
static void case_72(direct *d, direct_form form)
{
    static const uint32_t widths[] = {1, 7, 63, 65, 500};
    guarded_memory memory;
    joint j = joint_new(1, 40, 512);
    uint16_t *output = zeros(QUERY * sizeof *output);
    assert_int_equal(guarded_open(&memory, 1 << 22), 0);
    for (size_t i = 0; i < COUNT_OF(widths); i++) {
        int32_t *list = (int32_t *)guarded_allocate(&memory, widths[i] * sizeof *list, 0, 0x01).memory;
        for (uint32_t k = 0; k < 512; k++) {
            j.indices[k] = k < widths[i] ? (int32_t)(k * 7 % 40) : -1;
        }
        memcpy(list, j.indices, widths[i] * sizeof *list);
        const attention_case c = {j.q, j.kv, 40, list, widths[i], j.sinks, 0, 0.0f};
        assert_ok(d, attend(d, form, &c, output));
        joint_run(d, form, &j, 0, 1);
        assert_memory_equal(output, j.output, QUERY * sizeof *output);
    }
    guarded_close(&memory);
    free(output);
    joint_free(&j);
}

static void both_72(direct *d)
{
    in_both_forms(d, case_72);
}

static void test_72_list_ends_at_a_page(void **state)
{
    (void)state;
    on_every_level(both_72);
}

/* ---- the batch decides nothing --------------------------------------------------------------------------------- */

/* 74, 76, 78, 79: every number of rows up to 64 gives each row its own bits; 65 are refused. */
static void case_74(direct *d, direct_form form)
{
    joint j = joint_new(64, 9, 3);
    uint16_t *alone = all_alone(d, form, &j);
    for (uint32_t n = 1; n <= 64; n += IS_EMULATED ? 9 : 1) {
        joint_run(d, form, &j, 0, n);
        assert_memory_equal(j.output, alone, (size_t)n * QUERY * sizeof *alone);
        for (size_t i = (size_t)n * QUERY; i < (size_t)64 * QUERY; i++) {
            assert_int_equal(j.output[i], 0xffff);
        }
    }
    for (uint32_t n = 65; n <= 129; n += n == 65 ? 62 : 1) {
        assert_refused(d, joint_encode(d, form, &j, 0, n > 64 ? n : 64), DSR_ERR_ROW_COUNT);
        direct_drop(d);
    }
    free(alone);
    joint_free(&j);
}

static void both_74(direct *d)
{
    in_both_forms(d, case_74);
}

static void test_74_76_78_79_every_number_of_rows(void **state)
{
    (void)state;
    on_best_level(both_74);
}

/* 75: 46 rows; row 0 is fixed while the others are copies, zeros, huge, NaN. */
static void case_75(direct *d, direct_form form)
{
    static const uint16_t values[3] = {0x0000, 0x714a, BF16_NAN}; /* 0, 1e30, NaN */
    enum { N = 46, WIDTH = 6 };
    joint j = joint_new(N, 9, WIDTH);
    uint16_t *alone = zeros(QUERY * sizeof *alone);
    joint_run(d, form, &j, 0, 1);
    memcpy(alone, row_of(&j, 0), QUERY * sizeof *alone);
    for (int kind = 0; kind < 4; kind++) {
        for (uint32_t r = 1; r < N; r++) {
            if (kind == 3) {
                memcpy(j.q + (size_t)r * QUERY, j.q, QUERY * sizeof *j.q);
                memcpy(j.indices + r * WIDTH, j.indices, WIDTH * sizeof *j.indices);
            } else {
                fill_bf16(j.q + (size_t)r * QUERY, QUERY, values[kind]);
            }
        }
        joint_run(d, form, &j, 0, N);
        assert_memory_equal(row_of(&j, 0), alone, QUERY * sizeof *alone);
        for (uint32_t r = 1; r < N && kind == 3; r++) {
            assert_memory_equal(row_of(&j, r), alone, QUERY * sizeof *alone);
        }
    }
    free(alone);
    joint_free(&j);
}

static void both_75(direct *d)
{
    in_both_forms(d, case_75);
}

static void test_75_neighbours(void **state)
{
    (void)state;
    on_every_level(both_75);
}

static atomic_int busy_stop;

static void *keep_busy(void *argument)
{
    direct d;
    (void)argument;
    direct_open(&d, DSR_ISA_AUTO, 3);
    while (!atomic_load(&busy_stop)) {
        joint j = joint_new(3, 9, 40);
        joint_run(&d, DIRECT_FLASH, &j, 0, 3);
        joint_free(&j);
    }
    direct_close(&d);
    return NULL;
}

/* 76: 20 identical calls beside another busy context. */
static void test_76_repeats_beside_a_busy_context(void **state)
{
    static const uint32_t ns[] = {8, 43, 44, 45, 64};
    pthread_t busy;
    direct d;
    joint j = joint_new(64, 9, 5);
    uint16_t *first = zeros((size_t)64 * QUERY * sizeof *first);
    (void)state;
    atomic_store(&busy_stop, 0);
    assert_int_equal(pthread_create(&busy, NULL, keep_busy, NULL), 0);
    direct_open(&d, DSR_ISA_AUTO, 5);
    for (int form = DIRECT_TWO_PASS; form <= DIRECT_FLASH; form++) {
        joint_run(&d, (direct_form)form, &j, 0, 64);
        memcpy(first, j.output, (size_t)64 * QUERY * sizeof *first);
        for (size_t i = 0; i < COUNT_OF(ns); i++) {
            assert_ok(&d, joint_encode(&d, (direct_form)form, &j, 0, ns[i]));
            assert_ok(&d, dsr_encoder_submit(d.encoder));
            for (int repeat = 0; repeat < (IS_EMULATED ? 1 : 20); repeat++) {
                assert_memory_equal(j.output, first, (size_t)ns[i] * QUERY * sizeof *first);
                memset(j.output, 0xff, (size_t)ns[i] * QUERY * sizeof *first);
                assert_ok(&d, dsr_encoder_replay(d.encoder));
            }
            direct_drop(&d);
        }
    }
    direct_close(&d);
    atomic_store(&busy_stop, 1);
    pthread_join(busy, NULL);
    free(first);
    joint_free(&j);
}

/* 80: every width; joint, alone and against double precision. */
static void check_accuracy(const joint *j, uint32_t r)
{
    double logits[512], out[DSR_HEAD_DIM];
    const int32_t *list = j->indices + (size_t)r * j->max_width;
    for (uint32_t h = 0; h < HEADS; h += 21) {
        const uint16_t *q = j->q + ((size_t)r * HEADS + h) * DSR_HEAD_DIM;
        double max = (double)j->sinks[h], den;
        for (uint64_t i = 0; i < j->widths[r]; i++) {
            logits[i] = 0.0;
            for (size_t f = 0; f < DSR_HEAD_DIM; f++) {
                logits[i] +=
                    (double)f32_from_bf16(q[f]) * (double)f32_from_bf16(j->kv[(size_t)list[i] * DSR_HEAD_DIM + f]);
            }
            logits[i] *= (double)DSR_ATTENTION_SCALE;
            max = logits[i] > max ? logits[i] : max;
        }
        den = exp((double)j->sinks[h] - max);
        memset(out, 0, sizeof out);
        for (uint64_t i = 0; i < j->widths[r]; i++) {
            const double w = exp(logits[i] - max);
            den += w;
            for (size_t f = 0; f < DSR_HEAD_DIM; f++) {
                out[f] += w * (double)f32_from_bf16(j->kv[(size_t)list[i] * DSR_HEAD_DIM + f]);
            }
        }
        for (size_t f = 0; f < DSR_HEAD_DIM; f++) {
            const double got = (double)f32_from_bf16(row_of(j, r)[h * DSR_HEAD_DIM + f]), want = out[f] / den;
            assert_true(fabs(got - want) <= fabs(want) / 256 + 1e-5);
        }
    }
}

static void case_80(direct *d, direct_form form)
{
    enum { MOST = 300 };
    joint j = joint_new(60, 50, MOST);
    uint16_t *output = zeros(QUERY * sizeof *output);
    for (uint32_t first = 1; first <= (IS_EMULATED ? 60 : MOST); first += 60) {
        for (uint32_t r = 0; r < 60; r++) {
            j.widths[r] = first + r;
        }
        joint_run(d, form, &j, 0, 60);
        for (uint32_t r = first % 7; r < 60; r += 13) {
            const attention_case c = {
                j.q + (size_t)r * QUERY, j.kv, 50, j.indices + r * MOST, j.widths[r], j.sinks, 0, 0.0f};
            assert_ok(d, attend(d, form, &c, output));
            assert_memory_equal(output, row_of(&j, r), QUERY * sizeof *output);
            check_accuracy(&j, r);
        }
    }
    free(output);
    joint_free(&j);
}

static void both_80(direct *d)
{
    in_both_forms(d, case_80);
}

static void test_80_every_width(void **state)
{
    (void)state;
    on_best_level(both_80);
}

/* 85: one valid key among m slots gives v / (1 + e^sink) for every m, the same bits on every level. */
static uint16_t level_bits[2][34][DSR_HEAD_DIM];
static int have_level_bits;

static void case_85(direct *d, direct_form form)
{
    enum { MOST = 33 };
    joint j = joint_new(MOST, 4, MOST);
    memset(j.q, 0, (size_t)MOST * QUERY * sizeof *j.q);
    for (uint32_t r = 0; r < MOST; r++) {
        j.widths[r] = r + 1;
        memset(j.indices + r * MOST, 0xff, MOST * sizeof *j.indices);
    }
    joint_run(d, form, &j, 0, MOST);
    assert_zeros(j.output, (size_t)MOST * QUERY);
    for (uint32_t r = 0; r < MOST; r++) {
        j.indices[r * MOST + r * 5 % (r + 1)] = 2;
    }
    joint_run(d, form, &j, 0, MOST);
    for (uint32_t r = 0; r < MOST; r++) {
        for (int f = 0; f < DSR_HEAD_DIM; f++) {
            const double v = (double)f32_from_bf16(j.kv[2 * DSR_HEAD_DIM + f]);
            const double want = v / (1.0 + exp((double)j.sinks[0]));
            assert_true(fabs((double)f32_from_bf16(row_of(&j, r)[f]) - want) <= fabs(want) / 256);
        }
        if (have_level_bits) {
            assert_memory_equal(level_bits[form][r], row_of(&j, r), sizeof level_bits[form][r]);
        }
        memcpy(level_bits[form][r], row_of(&j, r), sizeof level_bits[form][r]);
    }
    joint_free(&j);
}

static void both_85(direct *d)
{
    in_both_forms(d, case_85);
    have_level_bits = 1;
}

static void test_85_one_key_and_none(void **state)
{
    (void)state;
    have_level_bits = 0;
    on_every_level(both_85);
}

/* 87: a long row moves nobody's list: rows of 2,343, 100 and 7 entries in every order. */
static void case_87(direct *d, direct_form form)
{
    static const uint64_t widths[3] = {2343, 100, 7};
    static const uint32_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    joint by_width = joint_new(3, 60, 2343);
    for (uint32_t r = 0; r < 3; r++) {
        by_width.widths[r] = widths[r];
    }
    uint16_t *alone = all_alone(d, form, &by_width);
    for (int o = 0; o < 6; o++) {
        joint j = joint_new(3, 60, 2343);
        for (uint32_t r = 0; r < 3; r++) {
            const uint32_t from = orders[o][r];
            j.widths[r] = widths[from];
            memcpy(j.q + (size_t)r * QUERY, by_width.q + (size_t)from * QUERY, QUERY * sizeof *j.q);
            memcpy(j.indices + r * 2343, by_width.indices + from * 2343, 2343 * sizeof *j.indices);
        }
        joint_run(d, form, &j, 0, 3);
        for (uint32_t r = 0; r < 3; r++) {
            assert_memory_equal(row_of(&j, r), alone + (size_t)orders[o][r] * QUERY, QUERY * sizeof *alone);
        }
        joint_free(&j);
    }
    free(alone);
    joint_free(&by_width);
}

static void both_87(direct *d)
{
    in_both_forms(d, case_87);
}

static void test_87_long_row_moves_no_list(void **state)
{
    (void)state;
    on_best_level(both_87);
}

/* 91: a number of heads works or is refused, by the workspace question too; every width works. */
static void case_91(direct *d, direct_form form)
{
    static const uint32_t heads[] = {0, 1, 2, 3, 8, 16, 24, 63, 64, 65, 127, 128, 129, 256};
    static const uint32_t widths[] = {1, 64, 128, 256, 500, 512, 1024, 2048};
    for (size_t i = 0; i < COUNT_OF(heads); i++) {
        dsr_attention_row row = {0};
        dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
        uint64_t n_bytes = 77;
        const int good = heads[i] == 64 || heads[i] == 128;
        row.kv_len = row.width = 1;
        desc.n_rows = 1;
        desc.rows = &row;
        desc.n_heads = heads[i];
        desc.scale = 1.0f;
        const dsr_status status = (form == DIRECT_FLASH ? dsr_flash_attention_workspace
                                                        : dsr_sparse_attention_workspace)(d->context, &desc, &n_bytes);
        assert_int_equal(status, good ? DSR_OK : DSR_ERR_UNSUPPORTED_SHAPE);
        assert_int_equal(n_bytes == 77, !good);
        assert_int_equal(
            (form == DIRECT_FLASH ? dsr_encode_flash_attention : dsr_encode_sparse_attention)(d->encoder, &desc),
            good ? DSR_ERR_NULL : DSR_ERR_UNSUPPORTED_SHAPE);
    }
    for (size_t i = 0; i < COUNT_OF(widths); i++) {
        check_ones(d, form, widths[i], 1, 64);
        check_ones(d, form, widths[i], 1, 128);
    }
}

static void both_91(direct *d)
{
    in_both_forms(d, case_91);
}

static void test_91_every_pair_or_a_refusal(void **state)
{
    (void)state;
    on_best_level(both_91);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_9_no_selection_is_cut),
        cmocka_unit_test(test_26_one_rule_for_bad_indices),
        cmocka_unit_test(test_64_leading_empty_rows),
        cmocka_unit_test(test_66_sink_in_every_path),
        cmocka_unit_test(test_68_sink_in_the_maximum),
        cmocka_unit_test(test_69_86_unnamed_rows_are_not_read),
        cmocka_unit_test(test_70_empty_rows_are_written),
        cmocka_unit_test(test_72_list_ends_at_a_page),
        cmocka_unit_test(test_74_76_78_79_every_number_of_rows),
        cmocka_unit_test(test_75_neighbours),
        cmocka_unit_test(test_76_repeats_beside_a_busy_context),
        cmocka_unit_test(test_80_every_width),
        cmocka_unit_test(test_85_one_key_and_none),
        cmocka_unit_test(test_87_long_row_moves_no_list),
        cmocka_unit_test(test_91_every_pair_or_a_refusal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
