/* What broke compressors and per-request state for others, cases 44 to 62 of docs/reported-faults.md, as far as the ops
 * go. */
#include "compressor_rig.h"

static const uint32_t shapes[3][2] = {{4, 128}, {4, 512}, {128, 512}};

/* 44: all columns of the first emission, the last one included; other dims are refused. */
static void plain_token(const rig *r, uint64_t token, float *kv, float *score)
{
    for (uint32_t f = 0; f < r->columns; f++) {
        kv[f] = (float)(token + 1) + (float)(f % r->dim) / 1024.0f;
        score[f] = 0.0f;
    }
}

static void case_44(direct *d)
{
    static const uint32_t bad_dims[] = {64, 100, 576, 7168};
    for (int i = 0; i < 2; i++) {
        rig r = rig_open(4, shapes[i][1]);
        rig_state state = rig_state_new(&r);
        uint16_t row[DSR_HEAD_DIM];
        assert_int_equal(rig_feed(d, &r, &state, 0, 0, 3, plain_token, row), 0);
        assert_int_equal(rig_feed(d, &r, &state, 3, 3, 1, plain_token, row), 1);
        double sum = 0.0;
        for (uint32_t f = 0; f < r.dim; f++) {
            const double pooled = (double)f32_from_bf16(bf16_nearest(2.5f + (float)f / 1024.0f));
            sum += pooled * pooled;
        }
        for (uint32_t f = 0; f < r.dim; f++) {
            const double pooled = (double)f32_from_bf16(bf16_nearest(2.5f + (float)f / 1024.0f));
            const double want = pooled / sqrt(sum / r.dim + 1e-6);
            assert_true(fabs((double)f32_from_bf16(row[f]) - want) <= want / 256);
        }
        rig_state_free(&state);
        rig_close(&r);
    }
    for (size_t i = 0; i < COUNT_OF(bad_dims); i++) {
        dsr_compressor_row row = {0};
        dsr_compressor_desc desc = DSR_COMPRESSOR_DESC_INIT;
        desc.n_rows = 1;
        desc.rows = &row;
        desc.ratio = 4;
        desc.dim = bad_dims[i];
        desc.epsilon = 1e-6f;
        assert_refused(d, dsr_encode_compressor(d->encoder, &desc), DSR_ERR_UNSUPPORTED_SHAPE);
        assert_int_equal(dsr_compressor_state_elements(4, bad_dims[i]), 0);
    }
}

static void test_44_last_column(void **state)
{
    (void)state;
    on_every_level(case_44);
}

/* The state of a request after `pos` tokens of PAT. */
static void bring_to(direct *d, const rig *r, rig_state *state, uint32_t pos)
{
    uint16_t *rows = zeros((pos / r->ratio + 1) * (size_t)r->dim * sizeof *rows);
    rig_feed(d, r, state, 0, 0, pos, pat_token, rows);
    free(rows);
}

/* 46: a position per row in one call; position 0 only alone. */
static void case_46(direct *d)
{
    enum { N = 5 };
    static const uint32_t positions[N] = {2, 3, 4, 7, 1000003};
    static const uint32_t emits[N] = {0, 1, 0, 1, 1}, slots[N] = {0, 0, 0, 1, 250000};
    rig r = rig_open(4, 128);
    rig_state states[N], alone[N];
    rig_row rows[N];
    float kv[N][RIG_MAX_COLUMNS], score[N][RIG_MAX_COLUMNS];
    uint16_t output[N][128], want[128];
    for (uint32_t i = 0; i < N; i++) {
        states[i] = rig_state_new(&r);
        alone[i] = rig_state_new(&r);
        bring_to(d, &r, &states[i], positions[i] < 100 ? positions[i] : 11); /* 11 and 1000003 are both 3 mod 4 */
        rig_state_copy(&r, &alone[i], &states[i]);
        pat_token(&r, positions[i], kv[i], score[i]);
        const rig_row row = {&states[i], positions[i], 1, kv[i], score[i], output[i]};
        rows[i] = row;
    }
    assert_ok(d, rig_step(d, &r, rows, N));
    for (uint32_t i = 0; i < N; i++) {
        const rig_row row = {&alone[i], positions[i], 1, kv[i], score[i], want};
        dsr_step_plan plan = {.struct_size = sizeof plan};
        assert_ok(d, rig_step(d, &r, &row, 1));
        assert_memory_equal(output[i], want, sizeof want);
        assert_same_state(&r, &states[i], &alone[i]);
        assert_int_equal(dsr_compressor_emitted(4, positions[i], 1), emits[i]);
        assert_int_equal(dsr_plan_step(DSR_LAYER_RATIO_4, positions[i], 1048576, 512, &plan), DSR_OK);
        assert_int_equal(plan.emits, emits[i]);
        assert_int_equal(plan.emit_slot, emits[i] ? slots[i] : 0);
    }
    rows[2].pos = 0;
    assert_refused(d, rig_step(d, &r, rows, N), DSR_ERR_POSITION);
    direct_drop(d);
    for (uint32_t i = 0; i < N; i++) {
        rig_state_free(&states[i]);
        rig_state_free(&alone[i]);
    }
    rig_close(&r);
}

static void test_46_position_per_row(void **state)
{
    (void)state;
    on_every_level(case_46);
}

/* 47: requests join, leave and change places; each ends as it would alone. */
static void case_47(direct *d)
{
    enum { A, B, C, D, N, STEPS = 3 };
    static const int steps[STEPS][N] = {{A, B, C, -1}, {C, A, -1, -1}, {B, C, A, D}};
    static const uint32_t first[N] = {5, 2, 7, 1};
    rig r = rig_open(4, 128);
    rig_state states[N], alone[N];
    uint32_t pos[N];
    uint16_t output[N][128], want[128];
    float kv[N][RIG_MAX_COLUMNS], score[N][RIG_MAX_COLUMNS];
    for (int i = 0; i < N; i++) {
        states[i] = rig_state_new(&r);
        alone[i] = rig_state_new(&r);
        bring_to(d, &r, &states[i], first[i]);
        rig_state_copy(&r, &alone[i], &states[i]);
        pos[i] = first[i];
    }
    for (int s = 0; s < STEPS; s++) {
        rig_row rows[N];
        uint32_t n = 0;
        for (int k = 0; k < N && steps[s][k] >= 0; k++, n++) {
            const int i = steps[s][k];
            const rig_row row = {&states[i], pos[i], 1, kv[k], score[k], output[k]};
            pat_token(&r, 100 * (uint64_t)i + pos[i], kv[k], score[k]);
            rows[n] = row;
        }
        assert_ok(d, rig_step(d, &r, rows, n));
        for (uint32_t k = 0; k < n; k++) {
            const int i = steps[s][k];
            const rig_row row = {&alone[i], pos[i], 1, kv[k], score[k], want};
            assert_ok(d, rig_step(d, &r, &row, 1));
            assert_memory_equal(output[k], want, sizeof want);
            assert_same_state(&r, &states[i], &alone[i]);
            pos[i]++;
        }
    }
    for (int i = 0; i < N; i++) {
        rig_state_free(&states[i]);
        rig_state_free(&alone[i]);
    }
    rig_close(&r);
}

static void test_47_places_change(void **state)
{
    (void)state;
    on_every_level(case_47);
}

/* 48: a query sees complete groups only. */
static uint32_t n_visible(direct *d, uint32_t pos, uint32_t ratio)
{
    enum { N = 8, HEADS = 32, K = 32 };
    uint16_t q[HEADS * DSR_INDEX_DIM] = {0}, keys[N * DSR_INDEX_DIM] = {0};
    float weights[HEADS] = {0};
    int32_t list[K];
    dsr_indexer_row row = {0};
    row.keys = direct_bf16(d, keys, COUNT_OF(keys));
    row.kv_len = N;
    row.start_pos = pos;
    row.ratio = ratio;
    dsr_indexer_desc desc = indexer_of_row(d, &row, HEADS, K, q, weights, list);
    assert_ok(d, direct_encode_indexer(d, &desc));
    assert_ok(d, direct_run(d));
    uint32_t n = 0;
    while (n < K && list[n] == (int32_t)n) {
        n++;
    }
    for (uint32_t i = n; i < K; i++) {
        assert_int_equal(list[i], -1);
    }
    return n;
}

static void case_48(direct *d)
{
    static const uint32_t want[9] = {0, 0, 0, 1, 1, 1, 1, 2, 2};
    for (uint32_t pos = 0; pos < 9; pos++) {
        dsr_step_plan plan = {.struct_size = sizeof plan};
        assert_int_equal(n_visible(d, pos, 4), want[pos]);
        assert_int_equal(dsr_plan_step(DSR_LAYER_RATIO_4, pos, 4096, 512, &plan), DSR_OK);
        assert_int_equal(plan.compressed_count, want[pos]);
    }
    assert_int_equal(n_visible(d, 126, 128), 0);
    assert_int_equal(n_visible(d, 127, 128), 1);
    assert_int_equal(n_visible(d, 254, 128), 1);
    assert_int_equal(n_visible(d, 255, 128), 2);
}

static void test_48_visible_groups(void **state)
{
    (void)state;
    on_every_level(case_48);
}

/* 49: groups are emitted from the first token on, however short the context. */
static void case_49(direct *d)
{
    enum { TOKENS = 140 };
    rig r = rig_open(4, 128);
    rig_state state = rig_state_new(&r);
    uint16_t rows[TOKENS / 4 * 128];
    uint32_t n_emitted = 0;
    for (uint32_t t = 0; t < TOKENS; t++) {
        dsr_step_plan plan = {.struct_size = sizeof plan};
        n_emitted += rig_feed(d, &r, &state, t, t, 1, pat_token, rows);
        assert_int_equal(n_emitted, (t + 1) / 4);
        assert_int_equal(dsr_plan_step(DSR_LAYER_RATIO_4, t, TOKENS, 512, &plan), DSR_OK);
        assert_int_equal(plan.compressed_count, n_emitted);
    }
    assert_int_equal(n_emitted, 35);
    rig_state_free(&state);
    rig_close(&r);
}

static void test_49_short_contexts(void **state)
{
    (void)state;
    on_best_level(case_49);
}

/* 53: a state saved at any token is the way back to it; other tokens then give what a straight run gives. */
static void other_token(const rig *r, uint64_t token, float *kv, float *score)
{
    pat_token(r, token + 5000, kv, score);
}

static void case_53(direct *d)
{
    static const uint32_t back_to[] = {9, 8, 7, 4, 3, 0};
    enum { TOKENS = 10, MORE = 9 };
    rig r = rig_open(4, 128);
    uint16_t rows[(TOKENS + MORE) / 4 * 128 + 128], want[(TOKENS + MORE) / 4 * 128 + 128];
    for (size_t i = 0; i < COUNT_OF(back_to); i++) {
        rig_state state = rig_state_new(&r), saved = rig_state_new(&r), straight = rig_state_new(&r);
        rig_feed(d, &r, &state, 0, 0, back_to[i], pat_token, rows);
        rig_state_copy(&r, &saved, &state);
        rig_feed(d, &r, &state, back_to[i], back_to[i], TOKENS - back_to[i], pat_token, rows);
        rig_state_copy(&r, &state, &saved);
        const uint32_t n = rig_feed(d, &r, &state, back_to[i], 0, MORE, other_token, rows);
        rig_feed(d, &r, &straight, 0, 0, back_to[i], pat_token, want);
        assert_int_equal(rig_feed(d, &r, &straight, back_to[i], 0, MORE, other_token, want), n);
        assert_memory_equal(rows, want, (size_t)n * r.dim * sizeof *rows);
        assert_same_state(&r, &state, &straight);
        rig_state_free(&state);
        rig_state_free(&saved);
        rig_state_free(&straight);
    }
    rig_close(&r);
}

static void test_53_going_back(void **state)
{
    (void)state;
    on_best_level(case_53);
}

/* 54: rejected draft tokens leave no trace once the saved state is put back. */
static void loud_token(const rig *r, uint64_t token, float *kv, float *score)
{
    for (uint32_t f = 0; f < r->columns; f++) {
        kv[f] = 1000.0f;
        score[f] = 50.0f + (float)token;
    }
}

static void case_54(direct *d)
{
    static const uint32_t at[3] = {6, 6, 126}, until[3] = {8, 8, 130};
    for (int i = 0; i < 3; i++) {
        rig r = rig_open(shapes[i][0], shapes[i][1]);
        rig_state state = rig_state_new(&r), saved = rig_state_new(&r), straight = rig_state_new(&r);
        uint16_t rows[2 * DSR_HEAD_DIM], want[40 * DSR_HEAD_DIM], ignored[40 * DSR_HEAD_DIM];
        rig_feed(d, &r, &state, 0, 0, at[i], plain_token, ignored);
        rig_state_copy(&r, &saved, &state);
        rig_feed(d, &r, &state, at[i], 0, 3, loud_token, ignored);
        rig_state_copy(&r, &state, &saved);
        const uint32_t n = rig_feed(d, &r, &state, at[i], at[i], until[i] - at[i], plain_token, rows);
        const uint32_t n_all = rig_feed(d, &r, &straight, 0, 0, until[i], plain_token, want);
        assert_int_equal(n, 1);
        assert_memory_equal(rows, want + (size_t)(n_all - 1) * r.dim, r.dim * sizeof *rows);
        assert_same_state(&r, &state, &straight);
        rig_state_free(&state);
        rig_state_free(&saved);
        rig_state_free(&straight);
        rig_close(&r);
    }
}

static void test_54_rejected_drafts(void **state)
{
    (void)state;
    on_best_level(case_54);
}

/* 56: four requests, two of them set back, all then go on together. */
static void case_56(direct *d)
{
    enum { N = 4 };
    static const uint32_t first[N] = {5, 6, 127, 300};
    for (int shape = 0; shape < 3; shape += 2) {
        rig r = rig_open(shapes[shape][0], shapes[shape][1]);
        rig_state states[N], straight[N], saved[N];
        uint16_t *rows = zeros(80 * (size_t)r.dim * sizeof *rows), output[N][DSR_HEAD_DIM];
        uint32_t pos[N];
        float kv[N][RIG_MAX_COLUMNS], score[N][RIG_MAX_COLUMNS];
        for (int i = 0; i < N; i++) {
            states[i] = rig_state_new(&r);
            straight[i] = rig_state_new(&r);
            saved[i] = rig_state_new(&r);
            pos[i] = first[i];
            rig_feed(d, &r, &states[i], 0, 0, first[i], pat_token, rows);
            rig_state_copy(&r, &saved[i], &states[i]);
            rig_feed(d, &r, &states[i], pos[i], pos[i], 3, i % 2 ? loud_token : pat_token, rows);
            pos[i] += i % 2 ? 0 : 3;
            if (i % 2) {
                rig_state_copy(&r, &states[i], &saved[i]);
            }
        }
        for (int step = 0; step < 5; step++) {
            rig_row at[N];
            for (int i = 0; i < N; i++) {
                const rig_row row = {&states[i], pos[i], 1, kv[i], score[i], output[i]};
                pat_token(&r, pos[i]++, kv[i], score[i]);
                at[(i + step) % N] = row;
            }
            assert_ok(d, rig_step(d, &r, at, N));
        }
        for (int i = 0; i < N; i++) {
            rig_feed(d, &r, &straight[i], 0, 0, pos[i], pat_token, rows);
            assert_same_state(&r, &states[i], &straight[i]);
            rig_state_free(&states[i]);
            rig_state_free(&straight[i]);
            rig_state_free(&saved[i]);
        }
        free(rows);
        rig_close(&r);
    }
}

static void test_56_rollback_of_some(void **state)
{
    (void)state;
    on_best_level(case_56);
}

/* 58: unequal tokens per request in one call; one request twice is refused. */
static void case_58(direct *d)
{
    rig r = rig_open(4, 128);
    rig_state states[2], alone[2];
    uint16_t output[2][128], want[2][128];
    float kv[3 * RIG_MAX_COLUMNS], score[3 * RIG_MAX_COLUMNS];
    static const uint32_t pos[2] = {1, 8}, n_tokens[2] = {3, 1};
    rig_row rows[2];
    for (uint32_t t = 0; t < 3; t++) {
        pat_token(&r, t, kv + t * r.columns, score + t * r.columns);
    }
    for (int i = 0; i < 2; i++) {
        states[i] = rig_state_new(&r);
        alone[i] = rig_state_new(&r);
        bring_to(d, &r, &states[i], pos[i]);
        rig_state_copy(&r, &alone[i], &states[i]);
        const rig_row row = {&states[i], pos[i], n_tokens[i], kv, score, output[i]};
        rows[i] = row;
    }
    assert_ok(d, rig_step(d, &r, rows, 2));
    for (int i = 0; i < 2; i++) {
        rig_row row = rows[i];
        row.state = &alone[i];
        row.output = want[i];
        assert_ok(d, rig_step(d, &r, &row, 1));
        assert_memory_equal(output[i], want[i], sizeof want[i]);
        assert_same_state(&r, &states[i], &alone[i]);
    }
    rows[1].state = rows[0].state;
    assert_refused(d, rig_step(d, &r, rows, 2), DSR_ERR_OVERLAP);
    direct_drop(d);
    for (int i = 0; i < 2; i++) {
        rig_state_free(&states[i]);
        rig_state_free(&alone[i]);
    }
    rig_close(&r);
}

static void test_58_unequal_tokens(void **state)
{
    (void)state;
    on_every_level(case_58);
}

/* 59: a request's bits do not move when its neighbour changes or starts anew. */
static void case_59(direct *d)
{
    enum { STEPS = 12 };
    rig r = rig_open(4, 128);
    rig_state mine = rig_state_new(&r), other = rig_state_new(&r), want = rig_state_new(&r), fresh = rig_state_new(&r);
    uint16_t rows[8 * 128], output[2][128];
    float kv[2][RIG_MAX_COLUMNS], score[2][RIG_MAX_COLUMNS];
    rig_feed(d, &r, &want, 0, 0, STEPS + 1, pat_token, rows);
    for (uint64_t content = 0; content < 10; content++) {
        uint32_t other_pos = 1;
        bring_to(d, &r, &mine, 1);
        bring_to(d, &r, &other, 1);
        for (uint32_t pos = 1; pos <= STEPS; pos++, other_pos++) {
            if (pos == 6) { /* the neighbour starts anew: alone, by the call at position 0 */
                rig_feed(d, &r, &other, 0, 0, 1, pat_token, rows);
                other_pos = 1;
            }
            const rig_row at[2] = {{&other, other_pos, 1, kv[0], score[0], output[0]},
                                   {&mine, pos, 1, kv[1], score[1], output[1]}};
            pat_token(&r, other_pos + 77 * content, kv[0], score[0]);
            pat_token(&r, pos, kv[1], score[1]);
            assert_ok(d, rig_step(d, &r, at, 2));
        }
        assert_same_state(&r, &mine, &want);
        if (content == 0) {
            bring_to(d, &r, &fresh, other_pos);
            assert_same_state(&r, &other, &fresh);
        }
    }
    rig_state_free(&mine);
    rig_state_free(&other);
    rig_state_free(&want);
    rig_state_free(&fresh);
    rig_close(&r);
}

static void test_59_neighbour_changes(void **state)
{
    (void)state;
    on_best_level(case_59);
}

/* 61: an emission reads positions p-7..p (ratio 4) or p-127..p, no older ones; and that is the size of the state. */
static void case_61(direct *d)
{
    static const uint32_t oldest[3] = {8, 8, 128}, span[3] = {8, 8, 128};
    for (int i = 0; i < 3; i++) {
        rig r = rig_open(shapes[i][0], shapes[i][1]);
        rig_state good = rig_state_new(&r), bad = rig_state_new(&r);
        uint16_t rows[40 * DSR_HEAD_DIM], want[40 * DSR_HEAD_DIM];
        float kv[RIG_MAX_COLUMNS], score[RIG_MAX_COLUMNS];
        assert_int_equal(dsr_compressor_state_elements(r.ratio, r.dim), (uint64_t)span[i] * r.columns);
        for (uint32_t f = 0; f < r.columns; f++) {
            kv[f] = score[f] = NAN;
        }
        for (uint32_t t = 0; t < oldest[i]; t++) { /* tokens 0..7 or 0..127, all NaN for one of the two */
            const rig_row row = {&bad, t, 1, kv, score, rows};
            assert_ok(d, rig_step(d, &r, &row, 1));
        }
        rig_feed(d, &r, &good, 0, 0, oldest[i], pat_token, rows);
        const uint32_t n = rig_feed(d, &r, &bad, oldest[i], oldest[i], span[i], pat_token, rows);
        assert_int_equal(rig_feed(d, &r, &good, oldest[i], oldest[i], span[i], pat_token, want), n);
        assert_memory_equal(rows + (size_t)(n - 1) * r.dim, want + (size_t)(n - 1) * r.dim, r.dim * sizeof *rows);
        int all_zero = 1;
        for (uint32_t f = 0; f < r.dim; f++) {
            const float x = f32_from_bf16(rows[(size_t)(n - 1) * r.dim + f]);
            assert_true(isfinite(x));
            all_zero &= x == 0.0f;
        }
        assert_false(all_zero);
        rig_state_free(&good);
        rig_state_free(&bad);
        rig_close(&r);
    }
}

static void test_61_reach_of_an_emission(void **state)
{
    (void)state;
    on_every_level(case_61);
}

/* 62: ragged rows of 1, 3, 2, 1 and 1 tokens, every operand ending at an unreadable page. */
static void case_62(direct *d)
{
    enum { N = 5, TOKENS = 8 };
    static const uint32_t n_tokens[N] = {1, 3, 2, 1, 1}, pos[N] = {3, 1, 7, 6, 2};
    rig r = rig_open(4, 512);
    guarded_memory memory;
    dsr_compressor_row rows[N] = {0};
    dsr_compressor_desc desc = DSR_COMPRESSOR_DESC_INIT;
    rig_state alone[N];
    assert_int_equal(guarded_open(&memory, 1 << 24), 0);
    const size_t tokens_bytes = TOKENS * r.columns * sizeof(float), out_bytes = N * r.dim * sizeof(uint16_t);
    float *kv = (float *)guarded_allocate(&memory, tokens_bytes, 0, 0xff).memory;
    float *score = (float *)guarded_allocate(&memory, tokens_bytes, 0, 0xff).memory;
    uint16_t *output = (uint16_t *)guarded_allocate(&memory, out_bytes, 0, 0xff).memory;
    for (uint32_t t = 0; t < TOKENS; t++) {
        pat_token(&r, t, kv + t * r.columns, score + t * r.columns);
    }
    for (uint32_t i = 0; i < N; i++) {
        alone[i] = rig_state_new(&r);
        bring_to(d, &r, &alone[i], pos[i]);
    }
    for (uint32_t i = 0, token = 0; i < N; i++) {
        const size_t state_bytes = r.n_state * sizeof(float);
        const rig_state state = {(float *)guarded_allocate(&memory, state_bytes, 0, 0xff).memory,
                                 (float *)guarded_allocate(&memory, state_bytes, 0, 0xff).memory};
        rig_state at = state;
        rig_state_copy(&r, &at, &alone[i]);
        rows[i].kv_state = direct_f32(d, at.kv, r.n_state);
        rows[i].score_state = direct_f32(d, at.score, r.n_state);
        rows[i].token_row = token;
        rows[i].output_row = i;
        rows[i].start_pos = pos[i];
        rows[i].n_tokens = n_tokens[i];
        token += n_tokens[i];
    }
    desc.n_rows = N;
    desc.rows = rows;
    desc.ratio = r.ratio;
    desc.dim = r.dim;
    desc.epsilon = 1e-6f;
    desc.kv = direct_f32(d, kv, TOKENS * r.columns);
    desc.score = direct_f32(d, score, TOKENS * r.columns);
    desc.ape = direct_f32(d, r.ape, r.ratio * r.columns);
    desc.norm = direct_f32(d, r.norm, r.dim);
    desc.output = direct_bf16(d, output, N * r.dim);
    assert_ok(d, dsr_encode_compressor(d->encoder, &desc));
    assert_ok(d, direct_run(d));
    for (uint32_t i = 0, token = 0; i < N; token += n_tokens[i++]) {
        uint16_t want[DSR_HEAD_DIM];
        const rig_row row = {&alone[i], pos[i], n_tokens[i], kv + token * r.columns, score + token * r.columns, want};
        assert_ok(d, rig_step(d, &r, &row, 1));
        assert_memory_equal(output + i * r.dim, want, r.dim * sizeof *want);
        rig_state_free(&alone[i]);
    }
    guarded_close(&memory);
    rig_close(&r);
}

static void test_62_ragged_rows(void **state)
{
    (void)state;
    on_every_level(case_62);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_44_last_column),          cmocka_unit_test(test_46_position_per_row),
        cmocka_unit_test(test_47_places_change),        cmocka_unit_test(test_48_visible_groups),
        cmocka_unit_test(test_49_short_contexts),       cmocka_unit_test(test_53_going_back),
        cmocka_unit_test(test_54_rejected_drafts),      cmocka_unit_test(test_56_rollback_of_some),
        cmocka_unit_test(test_58_unequal_tokens),       cmocka_unit_test(test_59_neighbour_changes),
        cmocka_unit_test(test_61_reach_of_an_emission), cmocka_unit_test(test_62_ragged_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
