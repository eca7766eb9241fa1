/* What broke CPU back ends and embedding for others, cases 101 to 126 of docs/reported-faults.md. */
#define _DEFAULT_SOURCE
#include "bit_cases.h"
#include "case_test.h"
#include "score_keys.h"

#include <pthread.h>
#include <time.h>

/* ---- 101: instruction sets are honoured or refused ------------------------------------------------------------- */

static void test_101_isa_is_honoured_or_refused(void **state)
{
    (void)state;
    assert_int_equal(dsr_isa_available(DSR_ISA_SCALAR), 1);
    for (size_t i = 0; i < COUNT_OF(all_isas); i++) {
        dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
        dsr_context *context = NULL;
        desc.isa = all_isas[i];
        const dsr_status status = dsr_context_create(&desc, &context);
        if (dsr_isa_available(all_isas[i])) {
            assert_int_equal(status, DSR_OK);
            assert_int_equal(dsr_context_isa(context), all_isas[i]);
            dsr_context_destroy(context);
        } else {
            assert_int_equal(status, DSR_ERR_UNSUPPORTED_ISA);
            assert_null(context);
            assert_non_null(strstr(dsr_create_error_text(), dsr_isa_name(all_isas[i])));
        }
    }
}

/* ---- 103: idle contexts use no CPU ------------------------------------------------------------------------------- */

static double process_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void test_103_idle_contexts_sleep(void **state)
{
    const struct timespec idle = {0, 200 * 1000 * 1000}, settle = {0, 20 * 1000 * 1000};
    float scores[64] = {0};
    int32_t list[32];
    direct d[4];
    (void)state;
    for (int i = 0; i < 4; i++) {
        direct_open(&d[i], DSR_ISA_AUTO, 4);
        select_scores(&d[i], scores, 64, 32, list);
    }
    nanosleep(&settle, NULL);
    const double before = process_seconds();
    nanosleep(&idle, NULL);
    assert_true(process_seconds() - before < 0.02);
    for (int i = 0; i < 4; i++) {
        direct_close(&d[i]);
    }
}

/* ---- 108: rounding to BF16 ----------------------------------------------------------------------------------------
 */

static void case_108(direct *d)
{
    static const uint32_t from[] = {0x7fff8c22u, 0x7f800001u, 0xff800001u, 0x7f800000u, 0x3f808000u,
                                    0x3f818000u, 0x00008000u, 0x00008001u, 0x80008000u, 0x80008001u,
                                    0xbf808001u, 0x3f807fffu, 0x7f7effffu, 0x00007fffu};
    /* A value that is not finite gives 0 in this op; the others round to nearest even, subnormal ones too. */
    static const uint16_t to[] = {0,      0,      0,      0,      0x3f80, 0x3f82, 0x0000,
                                  0x0001, 0x8000, 0x8001, 0xbf81, 0x3f80, 0x7f7f, 0x0000};
    enum { DIM = 64 };
    float input[DIM];
    uint16_t output[DIM];
    const float frequency = 1.0f;
    for (int lane = 0; lane < DIM - 2; lane++) { /* every value in every lane, vector body and tail */
        dsr_rope_row row = {0};
        dsr_rope_desc desc = DSR_ROPE_DESC_INIT;
        memset(input, 0, sizeof input);
        for (size_t i = 0; i < COUNT_OF(from); i++) {
            input[(size_t)(lane + (int)i) % (DIM - 2)] = f32_from_bits(from[i]);
        }
        desc.n_rows = 1;
        desc.rows = &row;
        desc.n_heads = 1;
        desc.head_dim = DIM;
        desc.rope_dim = 2;
        desc.input = direct_f32(d, input, DIM);
        desc.output = direct_bf16(d, output, DIM);
        desc.frequencies = &frequency;
        assert_ok(d, dsr_encode_rope(d->encoder, &desc));
        assert_ok(d, direct_run(d));
        for (size_t i = 0; i < COUNT_OF(from); i++) {
            assert_int_equal(output[(size_t)(lane + (int)i) % (DIM - 2)], to[i]);
        }
    }
}

static void test_108_rounding_to_bf16(void **state)
{
    (void)state;
    on_every_level(case_108);
}

/* ---- 110: one byte off is refused, for every operand of every op ------------------------------------------------- */

enum { ARENA_BYTES = 1 << 20 };

/* View number i of a call, n elements; the one with number `bad` begins one byte off. */
static dsr_view arena_view(direct *d, unsigned char *arena, int i, int bad, size_t n, dsr_dtype dtype)
{
    unsigned char *at = arena + (size_t)i * (ARENA_BYTES / 8) + (i == bad ? 1 : 0);
    return direct_view(d, at, n, dtype);
}

static dsr_status encode_with_bad_attention(direct *d, unsigned char *arena, int bad, direct_form form)
{
    dsr_attention_row row = {0};
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    row.kv = arena_view(d, arena, 0, bad, DSR_HEAD_DIM, DSR_DTYPE_BF16);
    row.kv_len = row.width = 1;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.n_heads = 64;
    desc.scale = 1.0f;
    desc.q = arena_view(d, arena, 1, bad, 64 * DSR_HEAD_DIM, DSR_DTYPE_BF16);
    desc.indices = arena_view(d, arena, 2, bad, 1, DSR_DTYPE_I32);
    desc.sinks = arena_view(d, arena, 3, bad, 64, DSR_DTYPE_F32);
    desc.output = arena_view(d, arena, 4, bad, 64 * DSR_HEAD_DIM, DSR_DTYPE_BF16);
    return direct_encode_attention(d, form, &desc);
}

static dsr_status bad_two_pass(direct *d, unsigned char *arena, int bad)
{
    return encode_with_bad_attention(d, arena, bad, DIRECT_TWO_PASS);
}

static dsr_status bad_flash(direct *d, unsigned char *arena, int bad)
{
    return encode_with_bad_attention(d, arena, bad, DIRECT_FLASH);
}

static dsr_status bad_indexer(direct *d, unsigned char *arena, int bad)
{
    dsr_indexer_row row = {0};
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    row.keys = arena_view(d, arena, 0, bad, DSR_INDEX_DIM, DSR_DTYPE_BF16);
    row.kv_len = 1;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.n_heads = 32;
    desc.top_k = 32;
    desc.q = arena_view(d, arena, 1, bad, 32 * DSR_INDEX_DIM, DSR_DTYPE_BF16);
    desc.weights = arena_view(d, arena, 2, bad, 32, DSR_DTYPE_F32);
    desc.output = arena_view(d, arena, 3, bad, 32, DSR_DTYPE_I32);
    desc.scores = arena_view(d, arena, 4, bad, 1, DSR_DTYPE_F32);
    return direct_encode_indexer(d, &desc);
}

static dsr_status bad_compressor(direct *d, unsigned char *arena, int bad)
{
    dsr_compressor_row row = {0};
    dsr_compressor_desc desc = DSR_COMPRESSOR_DESC_INIT;
    row.kv_state = arena_view(d, arena, 0, bad, 2048, DSR_DTYPE_F32);
    row.score_state = arena_view(d, arena, 1, bad, 2048, DSR_DTYPE_F32);
    desc.n_rows = 1;
    desc.rows = &row;
    desc.ratio = 4;
    desc.dim = 128;
    desc.epsilon = 1e-6f;
    desc.kv = arena_view(d, arena, 2, bad, 256, DSR_DTYPE_F32);
    desc.score = arena_view(d, arena, 3, bad, 256, DSR_DTYPE_F32);
    desc.ape = arena_view(d, arena, 4, bad, 1024, DSR_DTYPE_F32);
    desc.norm = arena_view(d, arena, 5, bad, 128, DSR_DTYPE_F32);
    desc.output = arena_view(d, arena, 6, bad, 128, DSR_DTYPE_BF16);
    return dsr_encode_compressor(d->encoder, &desc);
}

static dsr_status bad_gather(direct *d, unsigned char *arena, int bad)
{
    dsr_gather_desc desc = DSR_GATHER_DESC_INIT;
    const dsr_view source = arena_view(d, arena, 0, bad, 8, DSR_DTYPE_F32);
    desc.n_rows = 1;
    desc.sources = &source;
    desc.row_elements = 8;
    desc.output = arena_view(d, arena, 1, bad, 8, DSR_DTYPE_F32);
    return dsr_encode_gather(d->encoder, &desc);
}

static dsr_status bad_copy(direct *d, unsigned char *arena, int bad)
{
    dsr_copy_row row = {0};
    dsr_copy_desc desc = DSR_COPY_DESC_INIT;
    row.destination = arena_view(d, arena, 0, bad, 8, DSR_DTYPE_U16);
    desc.n_rows = 1;
    desc.rows = &row;
    desc.row_elements = 8;
    desc.source = arena_view(d, arena, 1, bad, 8, DSR_DTYPE_U16);
    return dsr_encode_copy(d->encoder, &desc);
}

static dsr_status bad_rope(direct *d, unsigned char *arena, int bad)
{
    const float frequency = 1.0f;
    dsr_rope_row row = {0};
    dsr_rope_desc desc = DSR_ROPE_DESC_INIT;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.n_heads = 1;
    desc.head_dim = desc.rope_dim = 2;
    desc.input = arena_view(d, arena, 0, bad, 2, DSR_DTYPE_F32);
    desc.output = arena_view(d, arena, 1, bad, 2, DSR_DTYPE_BF16);
    desc.frequencies = &frequency;
    return dsr_encode_rope(d->encoder, &desc);
}

static dsr_status bad_fake_quant(direct *d, unsigned char *arena, int bad)
{
    dsr_fake_quant_desc desc = DSR_FAKE_QUANT_DESC_INIT;
    desc.n_vectors = 1;
    desc.dim = 128;
    desc.input = arena_view(d, arena, 0, bad, 128, DSR_DTYPE_BF16);
    desc.output = arena_view(d, arena, 1, bad, 128, DSR_DTYPE_BF16);
    return dsr_encode_fake_quant(d->encoder, &desc);
}

static dsr_status bad_rms_norm(direct *d, unsigned char *arena, int bad)
{
    dsr_rms_norm_desc desc = DSR_RMS_NORM_DESC_INIT;
    desc.dim = 16;
    desc.n_vectors = 1;
    desc.epsilon = 1e-6f;
    desc.input = arena_view(d, arena, 0, bad, 16, DSR_DTYPE_F32);
    desc.weight = arena_view(d, arena, 1, bad, 16, DSR_DTYPE_F32);
    desc.output = arena_view(d, arena, 2, bad, 16, DSR_DTYPE_F32);
    return dsr_encode_rms_norm(d->encoder, &desc);
}

static dsr_status bad_projection(direct *d, unsigned char *arena, int bad)
{
    dsr_projection_desc desc = DSR_PROJECTION_DESC_INIT;
    desc.n_rows = 1;
    desc.n_inputs = 16;
    desc.n_outputs = 3;
    desc.input = arena_view(d, arena, 0, bad, 16, DSR_DTYPE_BF16);
    desc.weight = arena_view(d, arena, 1, bad, 48, DSR_DTYPE_BF16);
    desc.output = arena_view(d, arena, 2, bad, 3, DSR_DTYPE_F32);
    return dsr_encode_projection(d->encoder, &desc);
}

static dsr_status bad_append(direct *d, unsigned char *arena, int bad)
{
    dsr_append_row row = {0};
    dsr_append_desc desc = DSR_APPEND_DESC_INIT;
    row.cache = arena_view(d, arena, 1, bad, 16 * 128, DSR_DTYPE_BF16);
    row.cache_layout.page_size = 16;
    row.cache_layout.page_table = arena_view(d, arena, 2, bad, 1, DSR_DTYPE_I32);
    row.n_entries = 16;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.dim = 128;
    desc.source = arena_view(d, arena, 0, bad, 128, DSR_DTYPE_BF16);
    return dsr_encode_append(d->encoder, &desc);
}

static dsr_status bad_convert(direct *d, unsigned char *arena, int bad)
{
    dsr_convert_row row = {0};
    dsr_convert_desc desc = DSR_CONVERT_DESC_INIT;
    row.source = arena_view(d, arena, 0, bad, 584, DSR_DTYPE_U8);
    row.source_layout.format = DSR_FORMAT_FP8;
    row.destination = arena_view(d, arena, 1, bad, 16 * 512, DSR_DTYPE_BF16);
    row.destination_layout.page_size = 16;
    row.destination_layout.page_table = arena_view(d, arena, 2, bad, 1, DSR_DTYPE_I32);
    row.source_entries = row.destination_entries = row.n_entries = 1;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.dim = 512;
    return dsr_encode_convert(d->encoder, &desc);
}

static const struct {
    dsr_status (*encode)(direct *d, unsigned char *arena, int bad);
    int n_views;
} calls[] = {{bad_two_pass, 5}, {bad_flash, 5},      {bad_indexer, 5}, {bad_compressor, 7},
             {bad_gather, 2},   {bad_copy, 2},       {bad_rope, 2},    {bad_fake_quant, 2},
             {bad_rms_norm, 3}, {bad_projection, 3}, {bad_append, 3},  {bad_convert, 3}};

static void case_110(direct *d)
{
    unsigned char *arena = filled(ARENA_BYTES + 64, 0x11);
    for (size_t i = 0; i < COUNT_OF(calls); i++) {
        for (int bad = 0; bad < calls[i].n_views; bad++) {
            assert_refused(d, calls[i].encode(d, arena, bad), DSR_ERR_ALIGNMENT);
            direct_drop(d);
        }
        assert_ok(d, calls[i].encode(d, arena, -1));
        assert_int_equal(dsr_encoder_n_commands(d->encoder), 1);
        direct_drop(d);
    }
    for (size_t i = 0; i < ARENA_BYTES; i++) {
        assert_int_equal(arena[i], 0x11);
    }
    free(arena);
}

static void test_110_one_byte_off_is_refused(void **state)
{
    (void)state;
    on_best_level(case_110);
}

/* ---- 114: a small thread stack ------------------------------------------------------------------------------------
 */

typedef struct stack_test {
    const bit_case *c;
    const bit_results *expected;
    dsr_context *context;
    int result;
    char text[BIT_TEXT_BYTES];
} stack_test;

static void *run_on_small_stack(void *argument)
{
    stack_test *t = argument;
    const bit_layout layout = {3, 0, 0x55};
    const bit_run run = {FP_MODE_DEFAULT, 1, 0};
    uint32_t order[BIT_MAX_ROWS];
    for (uint32_t r = 0; r < t->c->n_rows; r++) {
        order[r] = r;
    }
    t->result = bit_check(t->c, t->expected, order, t->c->n_rows, &layout, t->context, &run, t->text);
    return NULL;
}

/* The shape of each op with most rows on it: the caller encodes and runs with 128 KiB of stack. */
static void test_114_small_stack(void **state)
{
    (void)state;
    for (size_t level = 0; level < COUNT_OF(all_isas); level++) {
        if (!dsr_isa_available(all_isas[level])) {
            continue;
        }
        direct d;
        direct_open(&d, all_isas[level], 0);
        for (uint32_t i = 0; i < bit_n_ops(); i++) {
            const uint32_t shape = i < 2 ? 4 : 0; /* attention: the shape with 8 rows is quick */
            bit_case *c = bit_case_new(bit_op_at(i), shape, 114);
            bit_results *expected = bit_reference(c);
            stack_test t = {c, expected, d.context, -1, ""};
            pthread_attr_t attributes;
            pthread_t thread;
            pthread_attr_init(&attributes);
            assert_int_equal(pthread_attr_setstacksize(&attributes, 128 * 1024), 0);
            assert_int_equal(pthread_create(&thread, &attributes, run_on_small_stack, &t), 0);
            pthread_join(thread, NULL);
            pthread_attr_destroy(&attributes);
            if (t.result != 0) {
                fail_msg("%s", t.text);
            }
            bit_results_free(expected);
            bit_case_free(c);
        }
        direct_close(&d);
    }
}

/* ---- 120: versions and struct sizes --------------------------------------------------------------------------------
 */

static void test_120_versions_and_sizes(void **state)
{
    direct d;
    (void)state;
    assert_string_equal(dsr_version_string(), DSR_VERSION_STRING);
    assert_int_equal(dsr_bits_version(), DSR_BITS_VERSION);
    direct_open(&d, DSR_ISA_AUTO, 0);
    dsr_gather_desc gather = DSR_GATHER_DESC_INIT;
    for (uint32_t size = 0; size <= 2 * sizeof gather; size++) {
        gather.struct_size = size;
        assert_refused(&d, dsr_encode_gather(d.encoder, &gather),
                       size == sizeof gather ? DSR_ERR_ROW_COUNT : DSR_ERR_STRUCT_SIZE);
    }
    direct_close(&d);
}

/* ---- 121: misuse gives a status, writes nothing, and leaves the context usable -------------------------------------
 */

static void case_121(direct *d)
{
    dsr_attention_desc attention = DSR_ATTENTION_DESC_INIT;
    dsr_indexer_desc indexer = DSR_INDEXER_DESC_INIT;
    dsr_compressor_desc compressor = DSR_COMPRESSOR_DESC_INIT;
    dsr_fake_quant_desc fake_quant = DSR_FAKE_QUANT_DESC_INIT;
    float scores[40];
    int32_t list[32];
    assert_int_equal(dsr_encode_sparse_attention(NULL, &attention), DSR_ERR_NULL);
    assert_refused(d, dsr_encode_flash_attention(d->encoder, NULL), DSR_ERR_NULL);
    assert_refused(d, dsr_encode_sparse_attention(d->encoder, &attention), DSR_ERR_ROW_COUNT);
    attention.n_rows = 1;
    assert_refused(d, dsr_encode_sparse_attention(d->encoder, &attention), DSR_ERR_NULL);
    indexer.n_rows = UINT32_MAX;
    assert_refused(d, dsr_encode_indexer(d->encoder, &indexer), DSR_ERR_ROW_COUNT);
    compressor.n_rows = 65;
    assert_refused(d, dsr_encode_compressor(d->encoder, &compressor), DSR_ERR_ROW_COUNT);
    fake_quant.kind = (dsr_quant_kind)99;
    assert_refused(d, dsr_encode_fake_quant(d->encoder, &fake_quant), DSR_ERR_ENUM);
    for (uint32_t t = 0; t < 40; t++) {
        scores[t] = pat(t, 121);
    }
    select_scores(d, scores, 40, 32, list);
    assert_list(list, 32, scores, 40);
}

static void test_121_misuse(void **state)
{
    (void)state;
    on_every_level(case_121);
}

/* ---- 124: rows of unequal cost --------------------------------------------------------------------------------------
 */

static void test_124_unequal_rows(void **state)
{
    enum { N_ROWS = 16, LONG = 100000, SHORT = 100, K = 64 };
    static const uint32_t threads[] = {1, 2, 3, 7, 16};
    float *scores = zeros(LONG * sizeof *scores);
    int32_t lists[N_ROWS][K];
    score_row rows[N_ROWS];
    (void)state;
    for (uint32_t t = 0; t < LONG; t++) {
        scores[t] = (float)((t * 2654435761u) >> 12);
    }
    uint16_t *keys = score_keys(scores, LONG);
    for (int r = 0; r < N_ROWS; r++) {
        rows[r].keys = keys;
        rows[r].n = r == 11 ? LONG : SHORT;
    }
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        direct d;
        direct_open(&d, DSR_ISA_AUTO, threads[i]);
        memset(lists, 0x55, sizeof lists);
        select_rows(&d, rows, N_ROWS, K, lists[0]);
        for (int r = 0; r < N_ROWS; r++) {
            assert_list(lists[r], K, scores, rows[r].n);
        }
        direct_close(&d);
    }
    free(keys);
    free(scores);
}

/* ---- 126: sizes are known before, one byte less is refused
 * ----------------------------------------------------------- */

static void case_126(direct *d)
{
    enum { N = 40, K = 32, HEADS = SCORE_HEADS };
    float scores[N], weights[HEADS];
    uint16_t q[HEADS * DSR_INDEX_DIM];
    int32_t list[K];
    dsr_indexer_row row = {0};
    uint64_t n_bytes = 0;
    for (uint32_t t = 0; t < N; t++) {
        scores[t] = pat(t, 126);
    }
    uint16_t *keys = score_keys(scores, N);
    score_query(q, weights);
    row.keys = direct_bf16(d, keys, N * DSR_INDEX_DIM);
    row.kv_len = N;
    row.start_pos = N - 1;
    row.ratio = 1;
    dsr_indexer_desc desc = indexer_of_row(d, &row, HEADS, K, q, weights, list);
    assert_ok(d, dsr_indexer_workspace(d->context, &desc, &n_bytes));
    uint8_t *workspace = zeros((size_t)n_bytes);
    char needed[32];
    snprintf(needed, sizeof needed, "%llu", (unsigned long long)n_bytes);
    desc.workspace = direct_view(d, workspace, (size_t)n_bytes - 1, DSR_DTYPE_U8);
    assert_refused(d, dsr_encode_indexer(d->encoder, &desc), DSR_ERR_SIZE);
    assert_non_null(strstr(direct_error(d), needed));
    desc.workspace = direct_view(d, workspace, (size_t)n_bytes, DSR_DTYPE_U8);
    assert_ok(d, dsr_encode_indexer(d->encoder, &desc));
    assert_ok(d, direct_run(d));
    assert_list(list, K, scores, N);
    free(workspace);
    free(keys);
}

static void test_126_sizes_are_known_before(void **state)
{
    (void)state;
    on_every_level(case_126);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_101_isa_is_honoured_or_refused),
        cmocka_unit_test(test_103_idle_contexts_sleep),
        cmocka_unit_test(test_108_rounding_to_bf16),
        cmocka_unit_test(test_110_one_byte_off_is_refused),
        cmocka_unit_test(test_114_small_stack),
        cmocka_unit_test(test_120_versions_and_sizes),
        cmocka_unit_test(test_121_misuse),
        cmocka_unit_test(test_124_unequal_rows),
        cmocka_unit_test(test_126_sizes_are_known_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
