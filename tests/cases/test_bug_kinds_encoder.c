/* What broke command encoders for others, cases 92 to 99 of docs/reported-faults.md, and 88 to 90, whole decode steps.
 */
#include "case_test.h"

/* One command that copies n bytes; ranges are exactly [from, from + n) and [to, to + n). */
static void encode_copy(direct *d, uint8_t *to, const uint8_t *from, size_t n)
{
    dsr_copy_row row = {0};
    dsr_copy_desc desc = DSR_COPY_DESC_INIT;
    row.destination = direct_view(d, to, n, DSR_DTYPE_U8);
    desc.n_rows = 1;
    desc.rows = &row;
    desc.row_elements = n;
    desc.source = direct_view(d, from, n, DSR_DTYPE_U8);
    assert_ok(d, dsr_encode_copy(d->encoder, &desc));
}

static dsr_command_info command(const direct *d, uint32_t index)
{
    dsr_command_info info = {.struct_size = sizeof info};
    assert_int_equal(dsr_encoder_command(d->encoder, index, &info), DSR_OK);
    return info;
}

/* 92: a command that overwrites what an earlier one still reads waits for it. */
static void test_92_write_after_read(void **state)
{
    enum { BIG = 8 << 20, SMALL = 4096, RUNS = 100 };
    uint8_t *a = filled(BIG, 1), *b = filled(BIG, 0), *fresh = filled(SMALL, 2);
    direct d;
    (void)state;
    direct_open(&d, DSR_ISA_AUTO, 5);
    encode_copy(&d, b, a, BIG);
    encode_copy(&d, a + BIG - SMALL, fresh, SMALL);
    assert_int_equal(command(&d, 1).n_depends_on, 1);
    assert_true(command(&d, 1).wave > command(&d, 0).wave);
    for (int run = 0; run < RUNS; run++) {
        memset(a + BIG - SMALL, 1, SMALL);
        memset(b + BIG - SMALL, 0, SMALL);
        assert_ok(&d, run ? dsr_encoder_replay(d.encoder) : dsr_encoder_submit(d.encoder));
        assert_ok(&d, dsr_encoder_wait(d.encoder));
        for (int i = BIG - SMALL; i < BIG; i++) {
            assert_int_equal(b[i], 1);
            assert_int_equal(a[i], 2);
        }
    }
    direct_close(&d);
    free(a);
    free(b);
    free(fresh);
}

/* 93: a reader waits for all writers of its range. */
static void case_93(direct *d)
{
    enum { N = 3000 };
    uint8_t sources[4][N], target[N], joined[N];
    for (int i = 0; i < 4; i++) {
        memset(sources[i], 10 + i, N);
    }
    encode_copy(d, target, sources[0], N / 3);
    encode_copy(d, target + N / 3, sources[1], N / 3);
    encode_copy(d, target + 2 * N / 3, sources[2], N / 3);
    encode_copy(d, target + N / 6, sources[3], 2 * N / 3); /* over the middle */
    encode_copy(d, joined, target, N);
    const dsr_command_info last = command(d, 4);
    assert_int_equal(command(d, 0).wave, command(d, 1).wave);
    assert_int_equal(command(d, 0).wave, command(d, 2).wave);
    assert_true(command(d, 3).wave > command(d, 2).wave);
    assert_true(last.wave > command(d, 3).wave);
    for (int run = 0; run < 50; run++) {
        memset(target, 0, N);
        memset(joined, 0, N);
        assert_ok(d, run ? dsr_encoder_replay(d->encoder) : dsr_encoder_submit(d->encoder));
        for (int i = 0; i < N; i++) {
            const int want = i >= N / 6 && i < N / 6 + 2 * N / 3 ? 13 : 10 + i / (N / 3);
            assert_int_equal(joined[i], want);
        }
    }
    direct_drop(d);
}

static void test_93_several_writers(void **state)
{
    (void)state;
    on_every_level(case_93);
}

/* 95: a write is remembered after its first reader; ranges that only touch do not wait for each other. */
static void case_95(direct *d)
{
    uint8_t a[200], first[100], second[100], fresh[100], third[100], fourth[100];
    memset(first, 1, sizeof first);
    memset(fresh, 4, sizeof fresh);
    encode_copy(d, a, first, 100);       /* c1 writes 0..99 */
    encode_copy(d, second, a + 96, 4);   /* c2 reads 96..99 */
    encode_copy(d, third, a, 100);       /* c3 reads 0..99 */
    encode_copy(d, a + 96, fresh, 100);  /* c4 writes 96..195 */
    encode_copy(d, fourth, a + 50, 100); /* c5 reads 50..149 */
    assert_int_equal(command(d, 1).n_depends_on, 1);
    assert_int_equal(command(d, 1).depends_on[0], 0);
    assert_int_equal(command(d, 2).n_depends_on, 1);
    assert_int_equal(command(d, 2).depends_on[0], 0);
    assert_int_equal(command(d, 1).wave, command(d, 2).wave);
    assert_int_equal(command(d, 3).n_depends_on, 2);
    assert_true(command(d, 4).wave > command(d, 3).wave);
    memset(a, 0, sizeof a);
    assert_ok(d, direct_run(d));
    for (int i = 0; i < 100; i++) {
        assert_int_equal(third[i], 1);
        assert_int_equal(fourth[i], i < 46 ? 1 : 4);
    }
    assert_int_equal(second[0], 1);

    encode_copy(d, a, first, 96); /* touching ranges: 0..95 and 96..195 */
    encode_copy(d, a + 96, fresh, 100);
    assert_int_equal(command(d, 0).wave, command(d, 1).wave);
    assert_int_equal(command(d, 1).n_depends_on, 0);
    direct_drop(d);
}

static void test_95_ranges_in_part(void **state)
{
    (void)state;
    on_every_level(case_95);
}

/* 96: what submit promised is there; memory may go and the encoder be destroyed right after. */
static void test_96_destroyed_right_after(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        enum { N = 100000 };
        uint8_t *from = filled(N, i), *to = filled(N, 255);
        direct d;
        direct_open(&d, DSR_ISA_AUTO, 4);
        encode_copy(&d, to, from, N);
        assert_ok(&d, dsr_encoder_submit(d.encoder));
        dsr_encoder_destroy(d.encoder);
        d.encoder = NULL;
        assert_int_equal(to[0], i);
        assert_int_equal(to[N - 1], i);
        for (uint32_t b = 0; b < d.n_buffers; b++) {
            dsr_buffer_destroy(d.buffers[b]);
        }
        dsr_context_destroy(d.context);
        free(from);
        free(to);
    }
}

/* 99: the plan is made for the lengths of encode time; after a reset the same encoder takes any other. */
static void case_99(direct *d)
{
    static const uint64_t lengths[] = {100, 1023, 1024, 1025, 3000};
    enum { MOST = 3000, QUERY = 64 * DSR_HEAD_DIM };
    uint16_t *q = zeros(QUERY * sizeof *q), *kv = zeros((size_t)MOST * DSR_HEAD_DIM * sizeof *kv);
    uint16_t *output = zeros(QUERY * sizeof *output);
    int32_t *indices = zeros(MOST * sizeof *indices);
    float sinks[64] = {0};
    for (int32_t i = 0; i < MOST; i++) {
        indices[i] = i;
    }
    fill_bf16(kv, (size_t)MOST * DSR_HEAD_DIM, BF16_ONE);
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        const attention_case c = {q, kv, lengths[i], indices, lengths[i], sinks, 0, 0.0f};
        assert_ok(d, attend(d, DIRECT_FLASH, &c, output));
        for (int f = 0; f < QUERY; f++) {
            assert_int_equal(output[f], bf16_nearest((float)lengths[i] / (float)(lengths[i] + 1)));
        }
    }
    free(q);
    free(kv);
    free(output);
    free(indices);
}

static void test_99_other_lengths_after_reset(void **state)
{
    (void)state;
    on_best_level(case_99);
}

/* ---- whole decode steps --------------------------------------------------------------------------------------- */

enum { WINDOW = 128, CONTEXT = 160, INDEX_HEADS = 32, TOP_K = 512, CACHE_ROWS = WINDOW + CONTEXT / 4 };
enum { MAIN_COLUMNS = 1024, INDEX_COLUMNS = 256, QUERY = 64 * DSR_HEAD_DIM, LIST = WINDOW + TOP_K };

/* All that a request owns in one ratio-4 layer. */
typedef struct request {
    uint16_t cache[CACHE_ROWS * DSR_HEAD_DIM];
    uint16_t index_cache[CONTEXT / 4 * DSR_INDEX_DIM];
    float main_state[2][8 * MAIN_COLUMNS], index_state[2][8 * INDEX_COLUMNS];
    int32_t list[LIST];
    uint16_t output[QUERY];
    uint32_t pos;
} request;

/* Operands of one token of one request, all made from (request number, position). */
typedef struct token {
    uint16_t q[QUERY], kv[DSR_HEAD_DIM], index_q[INDEX_HEADS * DSR_INDEX_DIM];
    float weights[INDEX_HEADS], main[2][MAIN_COLUMNS], index[2][INDEX_COLUMNS];
    uint16_t emitted[DSR_HEAD_DIM], index_emitted[DSR_INDEX_DIM];
} token;

static void make_token(token *t, uint64_t who, uint32_t pos)
{
    const uint64_t r = who * 1000 + pos;
    fill_pat(t->q, r, QUERY);
    fill_pat(t->kv, r + 7, DSR_HEAD_DIM);
    fill_pat(t->index_q, r + 11, COUNT_OF(t->index_q));
    for (uint32_t i = 0; i < INDEX_HEADS; i++) {
        t->weights[i] = pat(r, 3 * i) / 64.0f;
    }
    for (int part = 0; part < 2; part++) {
        for (uint32_t f = 0; f < MAIN_COLUMNS; f++) {
            t->main[part][f] = pat(r + 13 + (uint64_t)part, f);
        }
        for (uint32_t f = 0; f < INDEX_COLUMNS; f++) {
            t->index[part][f] = pat(r + 17 + (uint64_t)part, f);
        }
    }
}

static void encode_compressor(direct *d, float *state[2], float *columns[2], uint32_t dim, uint32_t pos, uint16_t *out)
{
    static const float ape[4 * MAIN_COLUMNS] = {0.25f, -0.5f};
    static float norm[DSR_HEAD_DIM];
    const uint32_t n = 2 * dim;
    dsr_compressor_row row = {0};
    dsr_compressor_desc desc = DSR_COMPRESSOR_DESC_INIT;
    for (int f = 0; f < DSR_HEAD_DIM; f++) {
        norm[f] = 1.0f;
    }
    row.kv_state = direct_f32(d, state[0], 8 * n);
    row.score_state = direct_f32(d, state[1], 8 * n);
    row.start_pos = pos;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.ratio = 4;
    desc.dim = dim;
    desc.epsilon = 1e-6f;
    desc.kv = direct_f32(d, columns[0], n);
    desc.score = direct_f32(d, columns[1], n);
    desc.ape = direct_f32(d, ape, 4 * n);
    desc.norm = direct_f32(d, norm, dim);
    desc.output = direct_bf16(d, out, dim);
    assert_ok(d, dsr_encode_compressor(d->encoder, &desc));
}

static void encode_row_copy(direct *d, uint16_t *to, uint64_t to_row, uint64_t to_rows, const uint16_t *from, size_t n)
{
    dsr_copy_row row = {0};
    dsr_copy_desc desc = DSR_COPY_DESC_INIT;
    row.destination = direct_bf16(d, to, to_rows * n);
    row.destination_row = to_row;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.row_elements = n;
    desc.source = direct_bf16(d, from, n);
    assert_ok(d, dsr_encode_copy(d->encoder, &desc));
}

static void encode_index(direct *d, request *r, token *t, const dsr_step_plan *plan)
{
    dsr_indexer_row row = {0};
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    row.keys = direct_bf16(d, r->index_cache, COUNT_OF(r->index_cache));
    row.kv_len = CONTEXT / 4;
    row.output_offset = plan->window_count;
    row.start_pos = r->pos;
    row.offset = WINDOW;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.n_heads = INDEX_HEADS;
    desc.top_k = TOP_K;
    desc.q = direct_bf16(d, t->index_q, COUNT_OF(t->index_q));
    desc.weights = direct_f32(d, t->weights, INDEX_HEADS);
    desc.output = direct_i32(d, r->list, LIST);
    assert_ok(d, direct_encode_indexer(d, &desc));
}

/* One step of one request, all ops in one encoder. The joint attention of several requests comes after. */
static uint64_t encode_step(direct *d, request *r, token *t)
{
    float *main_state[2] = {r->main_state[0], r->main_state[1]}, *main_columns[2] = {t->main[0], t->main[1]};
    float *index_state[2] = {r->index_state[0], r->index_state[1]}, *index_columns[2] = {t->index[0], t->index[1]};
    dsr_step_plan plan = {.struct_size = sizeof plan};
    assert_int_equal(dsr_plan_step(DSR_LAYER_RATIO_4, r->pos, CONTEXT, TOP_K, &plan), DSR_OK);
    dsr_window_slots(r->pos, plan.window_capacity, r->list);
    encode_row_copy(d, r->cache, plan.ring_slot, CACHE_ROWS, t->kv, DSR_HEAD_DIM);
    encode_compressor(d, main_state, main_columns, 512, r->pos, t->emitted);
    encode_compressor(d, index_state, index_columns, 128, r->pos, t->index_emitted);
    if (plan.emits) {
        encode_row_copy(d, r->cache, plan.emit_cache_row, CACHE_ROWS, t->emitted, DSR_HEAD_DIM);
        encode_row_copy(d, r->index_cache, plan.emit_slot, CONTEXT / 4, t->index_emitted, DSR_INDEX_DIM);
    }
    encode_index(d, r, t, &plan);
    return plan.width;
}

/* Steps of n requests with one joint attention; outputs go to the requests. */
static void step(direct *d, direct_form form, request **requests, const uint64_t *who, uint32_t n)
{
    token *tokens = zeros(n * sizeof *tokens);
    uint16_t *q = zeros((size_t)n * QUERY * sizeof *q), *output = zeros((size_t)n * QUERY * sizeof *q);
    int32_t *lists = zeros((size_t)n * LIST * sizeof *lists);
    dsr_attention_row rows[DSR_MAX_ROWS];
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    float sinks[64];
    memset(rows, 0, sizeof rows);
    for (int h = 0; h < 64; h++) {
        sinks[h] = pat(5, (uint64_t)h);
    }
    for (uint32_t i = 0; i < n; i++) {
        make_token(&tokens[i], who[i], requests[i]->pos);
        rows[i].width = encode_step(d, requests[i], &tokens[i]);
    }
    assert_ok(d, direct_run(d));
    for (uint32_t i = 0; i < n; i++) {
        rows[i].kv = direct_bf16(d, requests[i]->cache, COUNT_OF(requests[i]->cache));
        rows[i].kv_len = CACHE_ROWS;
        rows[i].q_row = i;
        rows[i].index_offset = (uint64_t)i * LIST;
        memcpy(q + (size_t)i * QUERY, tokens[i].q, QUERY * sizeof *q);
        memcpy(lists + (size_t)i * LIST, requests[i]->list, LIST * sizeof *lists);
    }
    desc.n_rows = n;
    desc.rows = rows;
    desc.n_heads = 64;
    desc.scale = DSR_ATTENTION_SCALE;
    desc.q = direct_bf16(d, q, (size_t)n * QUERY);
    desc.indices = direct_i32(d, lists, (size_t)n * LIST);
    desc.sinks = direct_f32(d, sinks, 64);
    desc.output = direct_bf16(d, output, (size_t)n * QUERY);
    assert_ok(d, direct_encode_attention(d, form, &desc));
    assert_ok(d, direct_run(d));
    for (uint32_t i = 0; i < n; i++) {
        memcpy(requests[i]->output, output + (size_t)i * QUERY, QUERY * sizeof *output);
        requests[i]->pos++;
    }
    free(tokens);
    free(q);
    free(output);
    free(lists);
}

/* A request at position 0, its memory at an address that moves with `shift`. */
static request *request_new(size_t shift, void **memory)
{
    *memory = filled(sizeof(request) + 4096, 0xff);
    request *r = (request *)(void *)((uint8_t *)*memory + shift % 1024 * 4);
    r->pos = 0;
    return r;
}

static void assert_same_request(const request *a, const request *b)
{
    assert_memory_equal(a->output, b->output, sizeof a->output);
    assert_memory_equal(a->main_state, b->main_state, sizeof a->main_state);
    assert_memory_equal(a->index_state, b->index_state, sizeof a->index_state);
    assert_memory_equal(a->cache, b->cache, sizeof a->cache);
    assert_memory_equal(a->index_cache, b->index_cache, sizeof a->index_cache);
}

/* 88: one short request, the whole chain, again and again at other addresses. */
static void test_88_chain_at_other_addresses(void **state)
{
    enum { STEPS = 40, REPEATS = 8 };
    void *first_memory, *memory;
    const uint64_t who = 88;
    direct d;
    (void)state;
    direct_open(&d, DSR_ISA_AUTO, 2);
    request *first = request_new(0, &first_memory);
    for (int i = 0; i < STEPS; i++) {
        step(&d, DIRECT_TWO_PASS, &first, &who, 1);
    }
    for (size_t repeat = 1; repeat < REPEATS; repeat++) {
        request *r = request_new(repeat * 37, &memory);
        for (int i = 0; i < STEPS; i++) {
            step(&d, DIRECT_TWO_PASS, &r, &who, 1);
        }
        assert_same_request(r, first);
        free(memory);
    }
    free(first_memory);
    direct_close(&d);
}

/* 89: equal and different requests together over the wrap of the window ring; each as it is alone, at every step. */
static void test_89_joint_steps_over_the_wrap(void **state)
{
    enum { N = 5, STEPS = IS_EMULATED ? 9 : 140 };
    static const uint64_t who[N] = {1, 2, 2, 2, 3};
    static const uint32_t alone_row[3] = {0, 1, 4};
    void *memory[N + 3];
    request *joint[N], *alone[3];
    direct d;
    (void)state;
    direct_open(&d, DSR_ISA_AUTO, 5);
    for (int i = 0; i < N; i++) {
        joint[i] = request_new((size_t)i, &memory[i]);
    }
    for (int i = 0; i < 3; i++) {
        alone[i] = request_new((size_t)i, &memory[N + i]);
    }
    for (int s = 0; s < STEPS; s++) {
        step(&d, s % 2 ? DIRECT_FLASH : DIRECT_TWO_PASS, joint, who, N);
        for (int i = 0; i < 3; i++) {
            step(&d, s % 2 ? DIRECT_FLASH : DIRECT_TWO_PASS, &alone[i], &who[alone_row[i]], 1);
            assert_same_request(joint[alone_row[i]], alone[i]);
        }
        assert_same_request(joint[1], joint[2]);
        assert_same_request(joint[1], joint[3]);
    }
    for (int i = 0; i < N + 3; i++) {
        free(memory[i]);
    }
    direct_close(&d);
}

/* 90: after each step, everything rebuilt from the token history in a fresh context on another level. */
static void test_90_rebuilt_from_history(void **state)
{
    enum { STEPS = IS_EMULATED ? 9 : 22 };
    const uint64_t who = 90;
    void *memory, *rebuilt_memory;
    direct d;
    (void)state;
    direct_open(&d, DSR_ISA_AUTO, 3);
    request *r = request_new(5, &memory);
    for (int s = 1; s <= STEPS; s++) {
        direct fresh;
        direct_open(&fresh, s % 7 == 0 ? DSR_ISA_SCALAR : DSR_ISA_AUTO, (uint32_t)s % 4);
        step(&d, DIRECT_TWO_PASS, &r, &who, 1);
        request *rebuilt = request_new((size_t)s, &rebuilt_memory);
        for (int i = 0; i < s; i++) {
            step(&fresh, DIRECT_TWO_PASS, &rebuilt, &who, 1);
        }
        assert_same_request(rebuilt, r);
        free(rebuilt_memory);
        direct_close(&fresh);
    }
    free(memory);
    direct_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_88_chain_at_other_addresses), cmocka_unit_test(test_89_joint_steps_over_the_wrap),
        cmocka_unit_test(test_90_rebuilt_from_history),     cmocka_unit_test(test_92_write_after_read),
        cmocka_unit_test(test_93_several_writers),          cmocka_unit_test(test_95_ranges_in_part),
        cmocka_unit_test(test_96_destroyed_right_after),    cmocka_unit_test(test_99_other_lengths_after_reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
