/* What all encode calls have in common: nulls, closed encoders, limits of rows, copies of descriptors, small stacks. */
#include "api_fixture.h"

#include <pthread.h>
#include <stdio.h>

static dsr_status encode_sparse(dsr_encoder *encoder, const void *desc)
{
    return dsr_encode_sparse_attention(encoder, desc);
}

static dsr_status encode_flash(dsr_encoder *encoder, const void *desc)
{
    return dsr_encode_flash_attention(encoder, desc);
}

static dsr_status encode_indexer(dsr_encoder *encoder, const void *desc)
{
    return dsr_encode_indexer(encoder, desc);
}

static dsr_status encode_compressor(dsr_encoder *encoder, const void *desc)
{
    return dsr_encode_compressor(encoder, desc);
}

static dsr_status encode_gather(dsr_encoder *encoder, const void *desc)
{
    return dsr_encode_gather(encoder, desc);
}

static dsr_status encode_copy(dsr_encoder *encoder, const void *desc)
{
    return dsr_encode_copy(encoder, desc);
}

static dsr_status encode_rope(dsr_encoder *encoder, const void *desc)
{
    return dsr_encode_rope(encoder, desc);
}

static dsr_status encode_fake_quant(dsr_encoder *encoder, const void *desc)
{
    return dsr_encode_fake_quant(encoder, desc);
}

static dsr_status encode_rms_norm(dsr_encoder *encoder, const void *desc)
{
    return dsr_encode_rms_norm(encoder, desc);
}

static dsr_status encode_projection(dsr_encoder *encoder, const void *desc)
{
    return dsr_encode_projection(encoder, desc);
}

static dsr_status encode_append(dsr_encoder *encoder, const void *desc)
{
    return dsr_encode_append(encoder, desc);
}

static dsr_status encode_convert(dsr_encoder *encoder, const void *desc)
{
    return dsr_encode_convert(encoder, desc);
}

static const struct {
    const char *op;
    dsr_status (*encode)(dsr_encoder *encoder, const void *desc);
} calls[] = {
    {"sparse-attention", encode_sparse},
    {"flash-attention", encode_flash},
    {"indexer", encode_indexer},
    {"compressor", encode_compressor},
    {"gather", encode_gather},
    {"copy", encode_copy},
    {"rope", encode_rope},
    {"fake-quant", encode_fake_quant},
    {"rms-norm", encode_rms_norm},
    {"projection", encode_projection},
    {"append", encode_append},
    {"convert", encode_convert},
};
enum { N_CALLS = sizeof(calls) / sizeof(calls[0]) };

static void test_nulls(void **state)
{
    static const uint32_t some_desc[64];
    api_fixture *f = *state;
    for (size_t i = 0; i < N_CALLS; i++) {
        char text[64];
        snprintf(text, sizeof(text), "%s: desc is null", calls[i].op);
        assert_int_equal(calls[i].encode(NULL, NULL), DSR_ERR_NULL);
        assert_int_equal(calls[i].encode(NULL, some_desc), DSR_ERR_NULL);
        assert_int_equal(calls[i].encode(f->encoder, NULL), DSR_ERR_NULL);
        assert_string_equal(dsr_context_error_text(f->context), text);
        assert_int_equal(calls[i].encode(f->encoder, some_desc), DSR_ERR_STRUCT_SIZE);
    }
    assert_int_equal(dsr_encoder_n_commands(f->encoder), 0);
}

/* A closed encoder is told before anything else is looked at. */
static void test_closed_encoder(void **state)
{
    api_fixture *f = *state;
    assert_int_equal(dsr_encoder_submit(f->encoder), DSR_OK);
    for (size_t i = 0; i < N_CALLS; i++)
        assert_int_equal(calls[i].encode(f->encoder, NULL), DSR_ERR_STATE);
    assert_int_equal(dsr_encoder_wait(f->encoder), DSR_OK);
    assert_int_equal(dsr_encoder_reset(f->encoder), DSR_OK);
    for (size_t i = 0; i < N_CALLS; i++)
        assert_int_equal(calls[i].encode(f->encoder, NULL), DSR_ERR_NULL);
}

/* 64 rows of each op, in views that no memory stands behind. */
typedef struct many_rows {
    dsr_attention_row attention[DSR_MAX_ROWS];
    dsr_indexer_row indexer[DSR_MAX_ROWS];
    dsr_compressor_row compressor[DSR_MAX_ROWS];
    dsr_copy_row copy[DSR_MAX_ROWS];
    dsr_rope_row rope[DSR_MAX_ROWS];
    dsr_view sources[DSR_MAX_ROWS];
} many_rows;

static dsr_view far_view(const api_fixture *f, uint32_t number, dsr_dtype dtype)
{
    const uint64_t bytes = 1 << 26;
    return (dsr_view){f->huge, number * 2 * bytes, bytes, dtype};
}

/* Rows in an order that no check can take a short cut for. */
static void fill_rows(const api_fixture *f, many_rows *rows)
{
    memset(rows, 0, sizeof(*rows));
    for (uint32_t r = 0; r < DSR_MAX_ROWS; r++) {
        const uint32_t place = (r * 37 + 11) % DSR_MAX_ROWS;
        rows->attention[r].kv = far_view(f, 100 + place, DSR_DTYPE_BF16);
        rows->attention[r].kv_len = 1;
        rows->attention[r].width = 1;
        rows->attention[r].q_row = place * 2;
        rows->indexer[r].keys = far_view(f, 200 + place, DSR_DTYPE_BF16);
        rows->indexer[r].kv_len = 1;
        rows->indexer[r].output_offset = place * 70;
        rows->compressor[r].kv_state = far_view(f, 300 + place, DSR_DTYPE_F32);
        rows->compressor[r].score_state = far_view(f, 400 + (place * 5) % DSR_MAX_ROWS, DSR_DTYPE_F32);
        rows->compressor[r].start_pos = 1;
        rows->compressor[r].output_row = place * 2;
        rows->compressor[r].token_row = r;
        rows->copy[r].destination = far_view(f, 500 + place, DSR_DTYPE_F32);
        rows->copy[r].ring_rows = 4;
        rows->copy[r].n_copies = 3;
        rows->copy[r].destination_row = r;
        rows->rope[r].row = place * 2;
        rows->sources[r] = far_view(f, 600 + place, DSR_DTYPE_F32);
    }
}

static void encode_many_rows_attention(api_fixture *f, const many_rows *rows, uint32_t n_rows)
{
    dsr_attention_desc attention = DSR_ATTENTION_DESC_INIT;
    attention.n_rows = n_rows;
    attention.rows = rows->attention;
    attention.n_heads = 128;
    attention.scale = 1.0f;
    attention.q = far_view(f, 0, DSR_DTYPE_BF16);
    attention.output = far_view(f, 1, DSR_DTYPE_BF16);
    attention.indices = far_view(f, 2, DSR_DTYPE_I32);
    attention.sinks = far_view(f, 3, DSR_DTYPE_F32);
    attention.workspace = far_view(f, 4, DSR_DTYPE_U8);
    assert_int_equal(dsr_encode_sparse_attention(f->encoder, &attention), DSR_OK);
    assert_int_equal(dsr_encode_flash_attention(f->encoder, &attention), DSR_OK);
}

static void encode_many_rows_indexer(api_fixture *f, const many_rows *rows, uint32_t n_rows)
{
    dsr_indexer_desc indexer = DSR_INDEXER_DESC_INIT;
    indexer.n_rows = n_rows;
    indexer.rows = rows->indexer;
    indexer.n_heads = 64;
    indexer.top_k = 64;
    indexer.q = far_view(f, 0, DSR_DTYPE_BF16);
    indexer.weights = far_view(f, 1, DSR_DTYPE_F32);
    indexer.output = far_view(f, 2, DSR_DTYPE_I32);
    indexer.workspace = far_view(f, 3, DSR_DTYPE_U8);
    assert_int_equal(dsr_encode_indexer(f->encoder, &indexer), DSR_OK);
}

static void encode_many_rows_compressor(api_fixture *f, const many_rows *rows, uint32_t n_rows)
{
    dsr_compressor_desc compressor = DSR_COMPRESSOR_DESC_INIT;
    compressor.n_rows = n_rows;
    compressor.rows = rows->compressor;
    compressor.ratio = 128;
    compressor.dim = 512;
    compressor.epsilon = 1e-6f;
    compressor.kv = far_view(f, 0, DSR_DTYPE_F32);
    compressor.score = far_view(f, 1, DSR_DTYPE_F32);
    compressor.ape = far_view(f, 2, DSR_DTYPE_F32);
    compressor.norm = far_view(f, 3, DSR_DTYPE_F32);
    compressor.output = far_view(f, 4, DSR_DTYPE_BF16);
    assert_int_equal(dsr_encode_compressor(f->encoder, &compressor), DSR_OK);
}

static void encode_many_rows_gather(api_fixture *f, const many_rows *rows, uint32_t n_rows)
{
    dsr_gather_desc gather = DSR_GATHER_DESC_INIT;
    gather.n_rows = n_rows;
    gather.sources = rows->sources;
    gather.row_elements = 5;
    gather.output = far_view(f, 0, DSR_DTYPE_F32);
    assert_int_equal(dsr_encode_gather(f->encoder, &gather), DSR_OK);
}

static void encode_many_rows_copy(api_fixture *f, const many_rows *rows, uint32_t n_rows)
{
    dsr_copy_desc copy = DSR_COPY_DESC_INIT;
    copy.n_rows = n_rows;
    copy.rows = rows->copy;
    copy.row_elements = 5;
    copy.source = far_view(f, 0, DSR_DTYPE_F32);
    assert_int_equal(dsr_encode_copy(f->encoder, &copy), DSR_OK);
}

static void encode_many_rows_rope(api_fixture *f, const many_rows *rows, uint32_t n_rows)
{
    dsr_rope_desc rope = DSR_ROPE_DESC_INIT;
    rope.n_rows = n_rows;
    rope.rows = rows->rope;
    rope.n_heads = 64;
    rope.head_dim = 512;
    rope.rope_dim = 64;
    rope.frequencies = dsr_rope_frequencies(DSR_ROPE_BASE);
    rope.input = far_view(f, 0, DSR_DTYPE_F32);
    rope.output = far_view(f, 1, DSR_DTYPE_BF16);
    assert_int_equal(dsr_encode_rope(f->encoder, &rope), DSR_OK);
}

static void encode_many_rows(api_fixture *f, const many_rows *rows, uint32_t n_rows)
{
    encode_many_rows_attention(f, rows, n_rows);
    encode_many_rows_indexer(f, rows, n_rows);
    encode_many_rows_compressor(f, rows, n_rows);
    encode_many_rows_gather(f, rows, n_rows);
    encode_many_rows_copy(f, rows, n_rows);
    encode_many_rows_rope(f, rows, n_rows);
}

static void test_every_row_count(void **state)
{
    api_fixture *f = *state;
    many_rows *rows = malloc(sizeof(*rows));
    assert_non_null(rows);
    fill_rows(f, rows);
    for (uint32_t n_rows = 1; n_rows <= DSR_MAX_ROWS; n_rows++)
        encode_many_rows(f, rows, n_rows);
    assert_int_equal(dsr_encoder_n_commands(f->encoder), 7 * DSR_MAX_ROWS);
    free(rows);
}

typedef struct thread_call {
    api_fixture *fixture;
    const many_rows *rows;
} thread_call;

static void *encode_on_thread(void *argument)
{
    const thread_call *call = argument;
    encode_many_rows(call->fixture, call->rows, DSR_MAX_ROWS);
    return NULL;
}

/* 64 rows of every op are encoded on a stack of 128 KiB. */
static void test_small_stack(void **state)
{
    api_fixture *f = *state;
    many_rows *rows = malloc(sizeof(*rows));
    const thread_call call = {f, rows};
    pthread_attr_t attributes;
    pthread_t thread;
    assert_non_null(rows);
    fill_rows(f, rows);
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, 128 * 1024), 0);
    assert_int_equal(pthread_create(&thread, &attributes, encode_on_thread, (void *)(uintptr_t)&call), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(pthread_attr_destroy(&attributes), 0);
    assert_int_equal(dsr_encoder_n_commands(f->encoder), 7);
    free(rows);
}

/* Descriptor, rows and frequencies are the library's once they are encoded. */
static void test_descriptors_are_copied(void **state)
{
    api_fixture *f = *state;
    dsr_copy_row row = {0};
    dsr_copy_desc copy = DSR_COPY_DESC_INIT;
    dsr_rope_row token = {.start_pos = 1};
    dsr_rope_desc rope = DSR_ROPE_DESC_INIT;
    float frequencies[1] = {1.5707964f}; /* a quarter turn */
    uint16_t *from, *to;
    row.destination = api_view(f, DSR_DTYPE_BF16, 4);
    copy.n_rows = 1;
    copy.rows = &row;
    copy.row_elements = 2;
    copy.source = api_view(f, DSR_DTYPE_BF16, 4);
    rope.n_rows = 1;
    rope.rows = &token;
    rope.n_heads = 1;
    rope.head_dim = 2;
    rope.rope_dim = 2;
    rope.frequencies = frequencies;
    rope.input = copy.source;
    rope.output = api_view(f, DSR_DTYPE_BF16, 4);
    assert_int_equal(dsr_encode_copy(f->encoder, &copy), DSR_OK);
    assert_int_equal(dsr_encode_rope(f->encoder, &rope), DSR_OK);
    from = api_data(copy.source);
    to = api_data(row.destination);
    from[0] = 0x3f80; /* 1 */
    row.destination_row = 1;
    row.n_copies = 2;
    copy.row_elements = 1;
    token.start_pos = 2;
    frequencies[0] = 0.0f;
    assert_int_equal(dsr_encoder_submit(f->encoder), DSR_OK);
    assert_int_equal(dsr_encoder_wait(f->encoder), DSR_OK);
    assert_int_equal(to[0], 0x3f80);
    assert_int_equal(to[2], 0);
    /* cos and sin of the quarter turn */
    to = api_data(rope.output);
    assert_true(to[0] > 0x8000 && to[0] < 0xb400);
    assert_int_equal(to[1], 0x3f80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nulls, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_closed_encoder, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_every_row_count, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_small_stack, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_descriptors_are_copied, api_setup, api_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
