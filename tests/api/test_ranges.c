/* The byte ranges that commands declare: every byte they may touch, and no other. */
#include "api_fixture.h"

static void assert_last(const api_fixture *f, const char *op, uint32_t n_rows, api_ranges *reads, api_ranges *writes)
{
    const dsr_command_info info = api_last_command(f);
    assert_string_equal(info.op, op);
    assert_int_equal(info.n_rows, n_rows);
    api_assert_ranges(info.reads, info.n_reads, reads);
    api_assert_ranges(info.writes, info.n_writes, writes);
}

/* Query rows that no row names are in no range; the workspace is used from the next multiple of 64 bytes on. */
static void test_attention(void **state)
{
    enum { N_HEADS = 128, QUERY_BYTES = N_HEADS * 1024 };
    api_fixture *f = *state;
    api_ranges reads = {0}, writes = {0};
    dsr_attention_row rows[2];
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    uint64_t size_bytes = 0;
    memset(rows, 0, sizeof(rows));
    rows[0].kv = api_view(f, DSR_DTYPE_BF16, 40 * 512);
    rows[0].kv_len = 10; /* shorter than the view */
    rows[0].q_row = 4;
    rows[0].width = 3;
    rows[1].kv = api_view(f, DSR_DTYPE_BF16, 40 * 600);
    rows[1].kv_len = 7;
    rows[1].kv_row_stride = 600;
    rows[1].q_row = 1;
    rows[1].n_queries = 2;
    rows[1].index_offset = 50;
    rows[1].index_stride = 9;
    rows[1].width = 4;
    desc.n_rows = 2;
    desc.rows = rows;
    desc.n_heads = N_HEADS;
    desc.scale = 1.0f;
    desc.q = api_view(f, DSR_DTYPE_BF16, 5 * N_HEADS * 512);
    desc.output = api_view(f, DSR_DTYPE_BF16, 5 * N_HEADS * 512);
    desc.indices = api_view(f, DSR_DTYPE_I32, 80);
    desc.sinks = api_view(f, DSR_DTYPE_F32, 200);
    assert_int_equal(dsr_flash_attention_workspace(f->context, &desc, &size_bytes), DSR_OK);
    desc.workspace = api_view(f, DSR_DTYPE_U8, size_bytes + 7);
    desc.workspace.byte_offset += 7;
    desc.workspace.byte_length -= 7;
    assert_int_equal(dsr_encode_flash_attention(f->encoder, &desc), DSR_OK);

    api_expect_range(&reads, rows[0].kv, 0, 10 * 1024);
    api_expect_range(&reads, rows[1].kv, 0, 6 * 1200 + 1024);
    api_expect_range(&reads, desc.q, 4 * QUERY_BYTES, QUERY_BYTES);
    api_expect_range(&reads, desc.q, 1 * QUERY_BYTES, 2 * QUERY_BYTES);
    api_expect_range(&reads, desc.indices, 0, 3 * 4);
    api_expect_range(&reads, desc.indices, 50 * 4, (9 + 4) * 4);
    api_expect_range(&reads, desc.sinks, 0, N_HEADS * 4);
    api_expect_range(&writes, desc.output, 4 * QUERY_BYTES, QUERY_BYTES);
    api_expect_range(&writes, desc.output, 1 * QUERY_BYTES, 2 * QUERY_BYTES);
    api_expect_range(&writes, desc.workspace, 57, size_bytes - 64);
    assert_last(f, "flash-attention", 2, &reads, &writes);
}

static void test_indexer(void **state)
{
    enum { N_HEADS = 64, TOP_K = 32 };
    api_fixture *f = *state;
    api_ranges reads = {0}, writes = {0};
    dsr_indexer_row rows[2];
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    uint64_t size_bytes = 0;
    memset(rows, 0, sizeof(rows));
    rows[0].keys = api_view(f, DSR_DTYPE_BF16, 100 * 132);
    rows[0].kv_len = 20;
    rows[0].key_row_stride = 132;
    rows[0].q_row = 3;
    rows[0].output_offset = 500;
    rows[0].scores_offset = 11;
    rows[0].start_pos = 30;
    rows[1].keys = api_view(f, DSR_DTYPE_BF16, 100 * 128);
    rows[1].kv_len = 30;
    rows[1].q_row = 0;
    rows[1].n_queries = 3;
    rows[1].output_offset = 10;
    rows[1].output_stride = 100;
    rows[1].scores_offset = 40;
    rows[1].start_pos = 60;
    desc.n_rows = 2;
    desc.rows = rows;
    desc.n_heads = N_HEADS;
    desc.top_k = TOP_K;
    desc.q = api_view(f, DSR_DTYPE_BF16, 5 * N_HEADS * 128);
    desc.weights = api_view(f, DSR_DTYPE_F32, 5 * N_HEADS);
    desc.output = api_view(f, DSR_DTYPE_I32, 600);
    desc.scores = api_view(f, DSR_DTYPE_F32, 200);
    assert_int_equal(dsr_indexer_workspace(f->context, &desc, &size_bytes), DSR_OK);
    desc.workspace = api_view(f, DSR_DTYPE_U8, size_bytes + 100);
    desc.workspace.byte_offset += 100;
    desc.workspace.byte_length -= 100;
    assert_int_equal(dsr_encode_indexer(f->encoder, &desc), DSR_OK);

    api_expect_range(&reads, rows[0].keys, 0, (19 * 132 + 128) * 2);
    api_expect_range(&reads, rows[1].keys, 0, 30 * 256);
    api_expect_range(&reads, desc.q, 3 * N_HEADS * 256, N_HEADS * 256);
    api_expect_range(&reads, desc.q, 0, 3 * N_HEADS * 256);
    api_expect_range(&reads, desc.weights, 3 * N_HEADS * 4, N_HEADS * 4);
    api_expect_range(&reads, desc.weights, 0, 3 * N_HEADS * 4);
    api_expect_range(&writes, desc.output, 500 * 4, TOP_K * 4);
    api_expect_range(&writes, desc.output, 10 * 4, (200 + TOP_K) * 4);
    api_expect_range(&writes, desc.scores, 11 * 4, 20 * 4);
    api_expect_range(&writes, desc.scores, 40 * 4, 90 * 4);
    api_expect_range(&writes, desc.workspace, 28, size_bytes - 64);
    assert_last(f, "indexer", 2, &reads, &writes);
}

static void test_compressor(void **state)
{
    enum { DIM = 128, COLUMNS = 256, STATE_BYTES = 8 * COLUMNS * 4 };
    api_fixture *f = *state;
    api_ranges reads = {0}, writes = {0};
    dsr_compressor_row rows[2];
    dsr_compressor_desc desc = DSR_COMPRESSOR_DESC_INIT;
    memset(rows, 0, sizeof(rows));
    for (uint32_t r = 0; r < 2; r++) {
        rows[r].kv_state = api_view(f, DSR_DTYPE_F32, 8 * COLUMNS + 50);
        rows[r].score_state = api_view(f, DSR_DTYPE_F32, 8 * COLUMNS + 50);
    }
    rows[0].token_row = 9;
    rows[0].output_row = 6;
    rows[0].start_pos = 4; /* emits nothing: one row of zeros */
    rows[1].token_row = 1;
    rows[1].output_row = 2;
    rows[1].start_pos = 3;
    rows[1].n_tokens = 5; /* emits two rows */
    desc.n_rows = 2;
    desc.rows = rows;
    desc.ratio = 4;
    desc.dim = DIM;
    desc.epsilon = 1e-6f;
    desc.kv = api_view(f, DSR_DTYPE_F32, 12 * COLUMNS);
    desc.score = api_view(f, DSR_DTYPE_F32, 12 * COLUMNS);
    desc.ape = api_view(f, DSR_DTYPE_F32, 5 * COLUMNS);
    desc.norm = api_view(f, DSR_DTYPE_F32, 2 * DIM);
    desc.output = api_view(f, DSR_DTYPE_BF16, 8 * DIM);
    assert_int_equal(dsr_encode_compressor(f->encoder, &desc), DSR_OK);

    for (uint32_t r = 0; r < 2; r++) {
        api_expect_range(&reads, rows[r].kv_state, 0, STATE_BYTES);
        api_expect_range(&reads, rows[r].score_state, 0, STATE_BYTES);
        api_expect_range(&writes, rows[r].kv_state, 0, STATE_BYTES);
        api_expect_range(&writes, rows[r].score_state, 0, STATE_BYTES);
    }
    for (uint32_t i = 0; i < 2; i++) {
        const dsr_view view = i == 0 ? desc.kv : desc.score;
        api_expect_range(&reads, view, 9 * COLUMNS * 4, COLUMNS * 4);
        api_expect_range(&reads, view, 1 * COLUMNS * 4, 5 * COLUMNS * 4);
    }
    api_expect_range(&reads, desc.ape, 0, 4 * COLUMNS * 4);
    api_expect_range(&reads, desc.norm, 0, DIM * 4);
    api_expect_range(&writes, desc.output, 6 * DIM * 2, DIM * 2);
    api_expect_range(&writes, desc.output, 2 * DIM * 2, 2 * DIM * 2);
    assert_last(f, "compressor", 2, &reads, &writes);
}

static void test_gather(void **state)
{
    api_fixture *f = *state;
    api_ranges reads = {0}, writes = {0};
    dsr_view sources[3];
    dsr_gather_desc desc = DSR_GATHER_DESC_INIT;
    for (uint32_t r = 0; r < 3; r++)
        sources[r] = api_view(f, DSR_DTYPE_F32, 100);
    desc.n_rows = 3;
    desc.sources = sources;
    desc.row_elements = 33;
    desc.output = api_view(f, DSR_DTYPE_F32, 400);
    assert_int_equal(dsr_encode_gather(f->encoder, &desc), DSR_OK);
    for (uint32_t r = 0; r < 3; r++)
        api_expect_range(&reads, sources[r], 0, 33 * 4);
    api_expect_range(&writes, desc.output, 0, 3 * 33 * 4);
    assert_last(f, "gather", 3, &reads, &writes);
}

static void test_copy(void **state)
{
    enum { ELEMENTS = 7, BYTES = 14 };
    api_fixture *f = *state;
    api_ranges reads = {0}, writes = {0};
    dsr_copy_row rows[3];
    dsr_copy_desc desc = DSR_COPY_DESC_INIT;
    memset(rows, 0, sizeof(rows));
    for (uint32_t r = 0; r < 3; r++) {
        rows[r].destination = api_view(f, DSR_DTYPE_F16, 20 * ELEMENTS);
        rows[r].source_row = 3 * r;
    }
    rows[0].destination_row = 2 * 11 + 9; /* slots 9, 10 and 0 */
    rows[0].ring_rows = 11;
    rows[0].n_copies = 3;
    rows[1].destination_row = 12;
    rows[1].n_copies = 2;
    rows[2].destination_row = 5;
    rows[2].ring_rows = 5; /* slot 0 */
    desc.n_rows = 3;
    desc.rows = rows;
    desc.row_elements = ELEMENTS;
    desc.source = api_view(f, DSR_DTYPE_F16, 10 * ELEMENTS);
    assert_int_equal(dsr_encode_copy(f->encoder, &desc), DSR_OK);
    api_expect_range(&reads, desc.source, 0, 3 * BYTES);
    api_expect_range(&reads, desc.source, 3 * BYTES, 2 * BYTES);
    api_expect_range(&reads, desc.source, 6 * BYTES, BYTES);
    api_expect_range(&writes, rows[0].destination, 9 * BYTES, 2 * BYTES);
    api_expect_range(&writes, rows[0].destination, 0, BYTES);
    api_expect_range(&writes, rows[1].destination, 12 * BYTES, 2 * BYTES);
    api_expect_range(&writes, rows[2].destination, 0, BYTES);
    assert_last(f, "copy", 3, &reads, &writes);
}

static void test_rope(void **state)
{
    enum { ELEMENTS = 3 * 128 };
    api_fixture *f = *state;
    dsr_rope_row rows[2];
    dsr_rope_desc desc = DSR_ROPE_DESC_INIT;
    memset(rows, 0, sizeof(rows));
    rows[0].row = 7;
    rows[1].row = 2;
    rows[1].n_tokens = 3;
    desc.n_rows = 2;
    desc.rows = rows;
    desc.n_heads = 3;
    desc.head_dim = 128;
    desc.rope_dim = 64;
    desc.frequencies = dsr_rope_frequencies(DSR_ROPE_BASE);
    for (uint32_t is_f32 = 0; is_f32 < 2; is_f32++) {
        const uint64_t bytes = is_f32 ? 4 : 2;
        api_ranges reads = {0}, writes = {0};
        desc.input = api_view(f, is_f32 ? DSR_DTYPE_F32 : DSR_DTYPE_BF16, 9 * ELEMENTS);
        desc.output = is_f32 ? api_view(f, DSR_DTYPE_BF16, 9 * ELEMENTS) : desc.input;
        assert_int_equal(dsr_encode_rope(f->encoder, &desc), DSR_OK);
        api_expect_range(&reads, desc.input, 7 * ELEMENTS * bytes, ELEMENTS * bytes);
        api_expect_range(&reads, desc.input, 2 * ELEMENTS * bytes, 3 * ELEMENTS * bytes);
        api_expect_range(&writes, desc.output, 7 * ELEMENTS * 2, ELEMENTS * 2);
        api_expect_range(&writes, desc.output, 2 * ELEMENTS * 2, 3 * ELEMENTS * 2);
        assert_last(f, "rope", 2, &reads, &writes);
    }
}

static void test_fake_quant(void **state)
{
    api_fixture *f = *state;
    dsr_fake_quant_desc desc = DSR_FAKE_QUANT_DESC_INIT;
    desc.kind = DSR_QUANT_HADAMARD_FP4_BLOCK32;
    desc.n_vectors = 3;
    desc.dim = 128;
    desc.input = api_view(f, DSR_DTYPE_BF16, 5 * 128);
    for (uint32_t in_place = 0; in_place < 2; in_place++) {
        api_ranges reads = {0}, writes = {0};
        desc.output = in_place ? desc.input : api_view(f, DSR_DTYPE_BF16, 5 * 128);
        assert_int_equal(dsr_encode_fake_quant(f->encoder, &desc), DSR_OK);
        api_expect_range(&reads, desc.input, 0, 3 * 256);
        api_expect_range(&writes, desc.output, 0, 3 * 256);
        assert_last(f, "fake-quant", 1, &reads, &writes);
    }
}

static void test_rms_norm(void **state)
{
    api_fixture *f = *state;
    dsr_rms_norm_desc desc = DSR_RMS_NORM_DESC_INIT;
    desc.dim = 96;
    desc.n_vectors = 3;
    desc.epsilon = 1e-6f;
    desc.input = api_view(f, DSR_DTYPE_F32, 500);
    desc.weight = api_view(f, DSR_DTYPE_F32, 500);
    for (uint32_t in_place = 0; in_place < 2; in_place++) {
        const uint64_t bytes = in_place ? 4 : 2;
        api_ranges reads = {0}, writes = {0};
        desc.output = in_place ? desc.input : api_view(f, DSR_DTYPE_BF16, 500);
        assert_int_equal(dsr_encode_rms_norm(f->encoder, &desc), DSR_OK);
        api_expect_range(&reads, desc.input, 0, 3 * 96 * 4);
        api_expect_range(&reads, desc.weight, 0, 96 * 4);
        api_expect_range(&writes, desc.output, 0, 3 * 96 * bytes);
        assert_last(f, "rms-norm", 1, &reads, &writes);
    }
}

/* In one piece, the entries that are written and no others; with a page table, all pages of the view. */
static void test_append(void **state)
{
    api_fixture *f = *state;
    api_ranges reads = {0}, writes = {0};
    dsr_append_row rows[3];
    dsr_append_desc desc = DSR_APPEND_DESC_INIT;
    memset(rows, 0, sizeof(rows));
    desc.n_rows = 3;
    desc.rows = rows;
    desc.dim = 512;
    desc.source = api_view(f, DSR_DTYPE_BF16, 12 * 512);
    for (uint32_t r = 0; r < 3; r++) {
        rows[r].cache_layout.format = DSR_FORMAT_FP8;
        rows[r].n_entries = 30;
        rows[r].n_tokens = 3;
        rows[r].source_row = 4 * r;
    }
    rows[0].cache = api_view(f, DSR_DTYPE_U8, 40 * 584);
    rows[0].cache_layout.page_size = 40;
    rows[0].first_entry = 49; /* slots 9, 0 and 1 */
    rows[0].ring_entries = 10;
    rows[1].cache = api_view(f, DSR_DTYPE_U8, 4 * 9792 + 100);
    rows[1].cache_layout.page_size = 16;
    rows[1].cache_layout.page_table = api_view(f, DSR_DTYPE_I32, 9);
    rows[2].cache = api_view(f, DSR_DTYPE_BF16, 40 * 520);
    rows[2].cache_layout.format = DSR_FORMAT_BF16;
    rows[2].entry_stride = 520;
    rows[2].first_entry = 7;
    assert_int_equal(dsr_encode_append(f->encoder, &desc), DSR_OK);
    for (uint32_t r = 0; r < 3; r++)
        api_expect_range(&reads, desc.source, 4 * r * 1024, 3 * 1024);
    api_expect_range(&reads, rows[1].cache_layout.page_table, 0, 2 * 4);
    api_expect_range(&writes, rows[0].cache, 9 * 576, 576);
    api_expect_range(&writes, rows[0].cache, 0, 2 * 576);
    api_expect_range(&writes, rows[0].cache, 40 * 576 + 9 * 8, 8);
    api_expect_range(&writes, rows[0].cache, 40 * 576, 2 * 8);
    api_expect_range(&writes, rows[1].cache, 0, 3 * 9792 + 16 * 584);
    api_expect_range(&writes, rows[2].cache, 7 * 1040, 2 * 1040 + 1024);
    assert_last(f, "append", 3, &reads, &writes);
}

static void test_convert(void **state)
{
    api_fixture *f = *state;
    api_ranges reads = {0}, writes = {0};
    dsr_convert_row rows[2];
    dsr_convert_desc desc = DSR_CONVERT_DESC_INIT;
    const dsr_view pool = api_view(f, DSR_DTYPE_U8, 5 * 2176);
    memset(rows, 0, sizeof(rows));
    desc.n_rows = 2;
    desc.rows = rows;
    desc.dim = 128;
    for (uint32_t r = 0; r < 2; r++) {
        rows[r].source = api_view(f, DSR_DTYPE_U8, 30 * 68);
        rows[r].source_layout.format = DSR_FORMAT_FP4;
        rows[r].source_entries = 30;
        rows[r].first_source = 2 + r;
        rows[r].destination = pool;
        rows[r].destination_layout.format = DSR_FORMAT_FP4;
        rows[r].destination_layout.page_size = 32;
        rows[r].destination_layout.page_table = api_view(f, DSR_DTYPE_I32, 2);
        rows[r].destination_entries = 33;
        rows[r].n_entries = 20;
        api_expect_range(&reads, rows[r].source, (2 + r) * 64, 20 * 64);
        api_expect_range(&reads, rows[r].source, 30 * 64 + (2 + r) * 4, 20 * 4);
        api_expect_range(&reads, rows[r].destination_layout.page_table, 0, 2 * 4);
    }
    assert_int_equal(dsr_encode_convert(f->encoder, &desc), DSR_OK);
    api_expect_range(&writes, pool, 0, 5 * 2176);
    assert_last(f, "convert", 2, &reads, &writes);
}

/* Ranges are tight enough that rows of one buffer, written by two commands, do not order them. */
static void test_rows_of_one_buffer_do_not_conflict(void **state)
{
    api_fixture *f = *state;
    const dsr_view source = api_view(f, DSR_DTYPE_F32, 64), output = api_view(f, DSR_DTYPE_F32, 64);
    dsr_gather_desc desc = DSR_GATHER_DESC_INIT;
    desc.n_rows = 1;
    desc.sources = &source;
    desc.row_elements = 32;
    desc.output = dsr_view_slice(output, 0, 32);
    assert_int_equal(dsr_encode_gather(f->encoder, &desc), DSR_OK);
    desc.output = dsr_view_slice(output, 32, 32);
    assert_int_equal(dsr_encode_gather(f->encoder, &desc), DSR_OK);
    assert_int_equal(api_last_command(f).n_depends_on, 0);
    desc.output = dsr_view_slice(output, 31, 33);
    assert_int_equal(dsr_encode_gather(f->encoder, &desc), DSR_OK);
    assert_int_equal(api_last_command(f).n_depends_on, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_attention, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_indexer, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_compressor, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_gather, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_copy, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_rope, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_fake_quant, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_rms_norm, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_append, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_convert, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_rows_of_one_buffer_do_not_conflict, api_setup, api_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
