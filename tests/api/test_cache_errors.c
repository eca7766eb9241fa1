/* Errors of the caches that attention and the indexer read, the ranges they declare, and what bad page ids give. */
#include "api_fixture.h"

enum { N_ROWS = 3, N_ENTRIES = 40, N_HEADS = 64, PAGE = 16, N_PAGES = 5, TOP_K = 64 };
enum {
    ROW_PAGE_BYTES = 9792, /* 16 FP8 rows, values and scales, padded to a multiple of 576 */
    ROW_PAGE_USED = 16 * 584,
    KEY_PAGE_BYTES = 16 * 68,
    BF16_ROW_BYTES = 1024
};

/* ---- attention --------------------------------------------------------------------------------------------- */

typedef struct attention_call {
    dsr_attention_desc desc;
    dsr_attention_row rows[N_ROWS];
} attention_call;
#define CALL attention_call

/* FP8 rows in one piece, BF16 rows in pages, FP8 rows in pages. */
static void init_attention(void *memory, api_fixture *f)
{
    attention_call *call = memory;
    dsr_attention_row *rows = call->rows;
    call->desc = (dsr_attention_desc)DSR_ATTENTION_DESC_INIT;
    call->desc.n_rows = N_ROWS;
    call->desc.rows = rows;
    call->desc.n_heads = N_HEADS;
    call->desc.scale = DSR_ATTENTION_SCALE;
    rows[0].kv = api_view(f, DSR_DTYPE_U8, N_ENTRIES * 584);
    rows[1].kv = api_view(f, DSR_DTYPE_BF16, N_PAGES * PAGE * DSR_HEAD_DIM);
    rows[2].kv = api_view(f, DSR_DTYPE_U8, (N_PAGES - 1) * ROW_PAGE_BYTES + ROW_PAGE_USED);
    for (uint32_t r = 0; r < N_ROWS; r++) {
        rows[r].kv_layout.format = r == 1 ? DSR_FORMAT_BF16 : DSR_FORMAT_FP8;
        if (r > 0) {
            rows[r].kv_layout.page_size = PAGE;
            rows[r].kv_layout.page_table = api_view(f, DSR_DTYPE_I32, (N_ENTRIES + PAGE - 1) / PAGE);
        }
        rows[r].kv_len = N_ENTRIES;
        rows[r].q_row = r;
        rows[r].width = 4;
    }
    call->desc.q = api_view(f, DSR_DTYPE_BF16, N_ROWS * N_HEADS * DSR_HEAD_DIM);
    call->desc.output = api_view(f, DSR_DTYPE_BF16, N_ROWS * N_HEADS * DSR_HEAD_DIM);
    call->desc.indices = api_view(f, DSR_DTYPE_I32, 4);
    call->desc.sinks = api_view(f, DSR_DTYPE_F32, N_HEADS);
    call->desc.workspace = api_view(f, DSR_DTYPE_U8, 1024 * 1024);
}

static dsr_status encode_attention(dsr_encoder *encoder, const void *call)
{
    return dsr_encode_sparse_attention(encoder, call);
}

static const api_call attention = {sizeof(attention_call), init_attention, encode_attention, "sparse-attention: "};

/* Groups: the fields of a row's cache depend on each other. */
enum { ROW0 = 1, ROW1 = 2, ROW2 = 4 };

static const api_fault attention_faults[] = {
    FAULT_OF(ROW0, DSR_ERR_ENUM, "row 0: kv_layout.format must be 0 (BF16) or 2 (FP8), got 1",
             SET(rows[0].kv_layout.format, DSR_FORMAT_FP4)),
    FAULT_OF(ROW0, DSR_ERR_ENUM, "row 0: kv_layout.format must be 0 (BF16) or 2 (FP8), got 3",
             SET(rows[0].kv_layout.format, 3)),
    FAULT_OF(ROW0, DSR_ERR_STRIDE, "row 0: kv_row_stride must be 0 for packed entries, got 576",
             SET(rows[0].kv_row_stride, 576)),
    FAULT_OF(ROW0, DSR_ERR_VALUE, "row 0: kv_layout.page_size without a page table must hold all 40 entries, got 39",
             SET(rows[0].kv_layout.page_size, 39)),
    FAULT_OF(ROW0, DSR_ERR_SIZE, "row 0: kv holds 23360 bytes, needs 23944", SET(rows[0].kv_layout.page_size, 41)),
    FAULT_OF(ROW0, DSR_ERR_DTYPE, "row 0: kv must be u8, got bf16", SET(rows[0].kv.dtype, DSR_DTYPE_BF16)),
    FAULT_OF(ROW0, DSR_ERR_SIZE, "row 0: kv holds 23359 bytes, needs 23360", ADD(rows[0].kv.byte_length, -1)),
    FAULT_OF(ROW0, DSR_ERR_SIZE, "row 0: kv holds 23360 bytes, needs 23944", SET(rows[0].kv_len, 41)),
    FAULT_OF(ROW0, DSR_ERR_ALIGNMENT, "row 0: kv must start at a multiple of 16 bytes", ADD(rows[0].kv.byte_offset, 8)),
    FAULT_OF(ROW1, DSR_ERR_VALUE, "row 1: kv_layout.page_size must be 16, 32, 64, 128 or 256, got 0",
             SET(rows[1].kv_layout.page_size, 0)),
    FAULT_OF(ROW1, DSR_ERR_VALUE, "row 1: kv_layout.page_size must be 16, 32, 64, 128 or 256, got 8",
             SET(rows[1].kv_layout.page_size, 8)),
    FAULT_OF(ROW1, DSR_ERR_VALUE, "row 1: kv_layout.page_size must be 16, 32, 64, 128 or 256, got 24",
             SET(rows[1].kv_layout.page_size, 24)),
    FAULT_OF(ROW1, DSR_ERR_VALUE, "row 1: kv_layout.page_size must be 16, 32, 64, 128 or 256, got 512",
             SET(rows[1].kv_layout.page_size, 512)),
    FAULT_OF(ROW1, DSR_ERR_OVERFLOW, "row 1: kv: shape product overflows", SET(rows[1].kv_row_stride, UINT64_MAX / 8)),
    FAULT_OF(ROW1, DSR_ERR_STRIDE, "row 1: kv_layout.page_stride must be at least 16384 bytes, got 16382",
             SET(rows[1].kv_layout.page_stride, 16382)),
    FAULT_OF(ROW1, DSR_ERR_ALIGNMENT, "row 1: kv_layout.page_stride must be a multiple of 2 bytes, got 16385",
             SET(rows[1].kv_layout.page_stride, 16385)),
    FAULT_OF(ROW1, DSR_ERR_DTYPE, "row 1: kv must be bf16, got u8", SET(rows[1].kv.dtype, DSR_DTYPE_U8)),
    FAULT_OF(ROW1, DSR_ERR_SIZE, "row 1: kv holds 16382 bytes, needs 16384", SET(rows[1].kv.byte_length, 16382)),
    FAULT_OF(ROW1, DSR_ERR_ALIGNMENT, "row 1: kv", ADD(rows[1].kv.byte_offset, 1)),
    FAULT_OF(ROW1, DSR_ERR_DTYPE, "row 1: kv_layout.page_table must be i32, got u32",
             SET(rows[1].kv_layout.page_table.dtype, DSR_DTYPE_U32)),
    FAULT_OF(ROW1, DSR_ERR_SIZE, "row 1: kv_layout.page_table holds 11 bytes, needs 12",
             ADD(rows[1].kv_layout.page_table.byte_length, -1)),
    FAULT_OF(ROW1, DSR_ERR_SIZE, "row 1: kv_layout.page_table holds 12 bytes, needs 16", SET(rows[1].kv_len, 49)),
    FAULT_OF(ROW1, DSR_ERR_CONTEXT_MISMATCH, "row 1: kv_layout.page_table",
             FOREIGN(rows[1].kv_layout.page_table.buffer)),
    FAULT_OF(ROW1, DSR_ERR_ALIGNMENT, "row 1: kv_layout.page_table", ADD(rows[1].kv_layout.page_table.byte_offset, 2)),
    FAULT_OF(ROW2, DSR_ERR_STRIDE, "row 2: kv_row_stride must be 0 for packed entries, got 512",
             SET(rows[2].kv_row_stride, 512)),
    FAULT_OF(ROW2, DSR_ERR_STRIDE, "row 2: kv_layout.page_stride must be at least 9344 bytes, got 9328",
             SET(rows[2].kv_layout.page_stride, 9328)),
    FAULT_OF(ROW2, DSR_ERR_ALIGNMENT, "row 2: kv_layout.page_stride must be a multiple of 16 bytes, got 9352",
             SET(rows[2].kv_layout.page_stride, 9352)),
    FAULT_OF(ROW2, DSR_ERR_SIZE, "row 2: kv holds 9343 bytes, needs 9344", SET(rows[2].kv.byte_length, 9343)),
    FAULT_OF(ROW2, DSR_ERR_ALIGNMENT, "row 2: kv must start at a multiple of 16 bytes", ADD(rows[2].kv.byte_offset, 4)),
    FAULT(DSR_ERR_SIZE, "workspace holds 1000 bytes, needs ", SET(desc.workspace.byte_length, 1000)),
    FAULT_OF(ROW1, DSR_ERR_OVERLAP, "row 0: output overlaps kv_layout.page_table of row 1",
             COPY(rows[1].kv_layout.page_table.byte_offset, desc.output.byte_offset)),
    FAULT_OF(ROW2, DSR_ERR_OVERLAP, "row 0: output overlaps kv of row 2",
             COPY(rows[2].kv.byte_offset, desc.output.byte_offset)),
};

static void test_attention_faults(void **state)
{
    api_run_faults(*state, &attention, attention_faults, N_FAULTS(attention_faults));
}

/* The whole of one piece, every page of a pool up to the end of the last one, and the table as far as it is used. */
static void test_attention_ranges(void **state)
{
    api_fixture *f = *state;
    attention_call call = {0};
    api_ranges reads = {0};
    f->pool_used = POOL_MARGIN;
    init_attention(&call, f);
    call.rows[0].kv_len = N_ENTRIES - 1;
    call.rows[0].kv_layout.page_size = N_ENTRIES;
    call.rows[1].kv_len = 2 * PAGE;
    api_expect_valid(f, &attention, &call);
    const dsr_command_info info = api_last_command(f);
    api_expect_range(&reads, call.rows[0].kv, 0, N_ENTRIES * 584);
    api_expect_range(&reads, call.rows[1].kv, 0, N_PAGES * PAGE * BF16_ROW_BYTES);
    api_expect_range(&reads, call.rows[1].kv_layout.page_table, 0, 2 * sizeof(int32_t));
    api_expect_range(&reads, call.rows[2].kv, 0, (N_PAGES - 1) * ROW_PAGE_BYTES + ROW_PAGE_USED);
    api_expect_range(&reads, call.rows[2].kv_layout.page_table, 0, 3 * sizeof(int32_t));
    api_expect_range(&reads, call.desc.q, 0, call.desc.q.byte_length);
    api_expect_range(&reads, call.desc.indices, 0, 4 * sizeof(int32_t));
    api_expect_range(&reads, call.desc.sinks, 0, call.desc.sinks.byte_length);
    api_assert_ranges(info.reads, info.n_reads, &reads);
}

/* ---- indexer ----------------------------------------------------------------------------------------------- */

typedef struct indexer_call {
    dsr_indexer_desc desc;
    dsr_indexer_row rows[N_ROWS];
} indexer_call;
#undef CALL
#define CALL indexer_call

/* FP4 keys in one piece, FP4 keys in pages, BF16 keys in pages with strides. */
static void init_indexer(void *memory, api_fixture *f)
{
    indexer_call *call = memory;
    dsr_indexer_row *rows = call->rows;
    call->desc = (dsr_indexer_desc)DSR_INDEXER_DESC_INIT;
    call->desc.n_rows = N_ROWS;
    call->desc.rows = rows;
    call->desc.n_heads = N_HEADS;
    call->desc.top_k = TOP_K;
    rows[0].keys = api_view(f, DSR_DTYPE_U8, N_ENTRIES * 68);
    rows[1].keys = api_view(f, DSR_DTYPE_U8, N_PAGES * KEY_PAGE_BYTES);
    rows[2].keys = api_view(f, DSR_DTYPE_BF16, N_PAGES * PAGE * 130);
    rows[2].key_row_stride = 130;
    for (uint32_t r = 0; r < N_ROWS; r++) {
        rows[r].key_layout.format = r == 2 ? DSR_FORMAT_BF16 : DSR_FORMAT_FP4;
        if (r > 0) {
            rows[r].key_layout.page_size = PAGE;
            rows[r].key_layout.page_table = api_view(f, DSR_DTYPE_I32, (N_ENTRIES + PAGE - 1) / PAGE);
        }
        rows[r].kv_len = N_ENTRIES;
        rows[r].q_row = r;
        rows[r].output_offset = r * TOP_K;
        rows[r].start_pos = 4 * N_ENTRIES - 1;
    }
    call->desc.q = api_view(f, DSR_DTYPE_BF16, N_ROWS * N_HEADS * DSR_INDEX_DIM);
    call->desc.weights = api_view(f, DSR_DTYPE_F32, N_ROWS * N_HEADS);
    call->desc.output = api_view(f, DSR_DTYPE_I32, N_ROWS * TOP_K);
    call->desc.workspace = api_view(f, DSR_DTYPE_U8, 1024 * 1024);
}

static dsr_status encode_indexer(dsr_encoder *encoder, const void *call)
{
    return dsr_encode_indexer(encoder, call);
}

static const api_call indexer = {sizeof(indexer_call), init_indexer, encode_indexer, "indexer: "};

static const api_fault indexer_faults[] = {
    FAULT_OF(ROW0, DSR_ERR_ENUM, "row 0: key_layout.format must be 0 (BF16) or 1 (FP4), got 2",
             SET(rows[0].key_layout.format, DSR_FORMAT_FP8)),
    FAULT_OF(ROW0, DSR_ERR_STRIDE, "row 0: key_row_stride must be 0 for packed entries, got 128",
             SET(rows[0].key_row_stride, 128)),
    FAULT_OF(ROW0, DSR_ERR_VALUE, "row 0: key_layout.page_size without a page table must hold all 40 entries, got 16",
             SET(rows[0].key_layout.page_size, 16)),
    FAULT_OF(ROW0, DSR_ERR_DTYPE, "row 0: keys must be u8, got i32", SET(rows[0].keys.dtype, DSR_DTYPE_I32)),
    FAULT_OF(ROW0, DSR_ERR_SIZE, "row 0: keys holds 2719 bytes, needs 2720", ADD(rows[0].keys.byte_length, -1)),
    FAULT_OF(ROW0, DSR_ERR_ALIGNMENT, "row 0: keys must start at a multiple of 16 bytes",
             ADD(rows[0].keys.byte_offset, 1)),
    FAULT_OF(ROW1, DSR_ERR_VALUE, "row 1: key_layout.page_size must be 16, 32, 64, 128 or 256, got 17",
             SET(rows[1].key_layout.page_size, 17)),
    FAULT_OF(ROW1, DSR_ERR_STRIDE, "row 1: key_layout.page_stride must be at least 1088 bytes, got 1072",
             SET(rows[1].key_layout.page_stride, 1072)),
    FAULT_OF(ROW1, DSR_ERR_ALIGNMENT, "row 1: key_layout.page_stride must be a multiple of 16 bytes, got 1096",
             SET(rows[1].key_layout.page_stride, 1096)),
    FAULT_OF(ROW1, DSR_ERR_SIZE, "row 1: keys holds 1087 bytes, needs 1088", SET(rows[1].keys.byte_length, 1087)),
    FAULT_OF(ROW1, DSR_ERR_DTYPE, "row 1: key_layout.page_table must be i32, got f32",
             SET(rows[1].key_layout.page_table.dtype, DSR_DTYPE_F32)),
    FAULT_OF(ROW1, DSR_ERR_SIZE, "row 1: key_layout.page_table holds 8 bytes, needs 12",
             SET(rows[1].key_layout.page_table.byte_length, 8)),
    FAULT_OF(ROW2, DSR_ERR_STRIDE, "row 2: key_row_stride must be at least 128 elements, got 127",
             SET(rows[2].key_row_stride, 127)),
    FAULT_OF(ROW2, DSR_ERR_STRIDE, "row 2: key_layout.page_stride must be at least 4156 bytes, got 4154",
             SET(rows[2].key_layout.page_stride, 4154)),
    FAULT_OF(ROW2, DSR_ERR_SIZE, "row 2: key_layout.page_table holds 12 bytes, needs 16", SET(rows[2].kv_len, 50)),
    FAULT_OF(ROW2, DSR_ERR_OVERLAP, "row 0: output overlaps key_layout.page_table of row 2",
             COPY(rows[2].key_layout.page_table.byte_offset, desc.output.byte_offset)),
};

static void test_indexer_faults(void **state)
{
    api_run_faults(*state, &indexer, indexer_faults, N_FAULTS(indexer_faults));
}

/* ---- sizes ------------------------------------------------------------------------------------------------- */

static void test_page_bytes(void **state)
{
    (void)state;
    assert_int_equal(dsr_cache_page_bytes(DSR_FORMAT_BF16, 512, 64), 64 * 1024);
    assert_int_equal(dsr_cache_page_bytes(DSR_FORMAT_FP4, 128, 64), 64 * 68);
    assert_int_equal(dsr_cache_page_bytes(DSR_FORMAT_FP8, 512, 64), 37440);
    assert_int_equal(dsr_cache_page_bytes(DSR_FORMAT_FP8, 512, 256), 149760);
    assert_int_equal(dsr_cache_page_bytes(DSR_FORMAT_FP8, 512, 1), 1152);
    assert_int_equal(dsr_cache_page_bytes(DSR_FORMAT_FP4, 512, 64), 0);
    assert_int_equal(dsr_cache_page_bytes(DSR_FORMAT_FP8, 128, 64), 0);
    assert_int_equal(dsr_cache_page_bytes(DSR_FORMAT_FP8, 512, UINT64_MAX / 584 + 1), 0);
    assert_int_equal(dsr_cache_page_bytes(DSR_FORMAT_FP8, 512, UINT64_MAX / 584), 0);
    assert_int_equal(dsr_cache_page_bytes(DSR_FORMAT_BF16, 512, UINT64_MAX / 8), 0);
    assert_int_equal(dsr_cache_page_bytes((dsr_cache_format)3, 512, 64), 0);
}

/* ---- bad page ids: values, not errors ---------------------------------------------------------------------- */

static const int32_t bad_ids[] = {-1, N_PAGES, INT32_MAX, INT32_MIN};

enum { N_BAD_IDS = sizeof(bad_ids) / sizeof(bad_ids[0]) };

/* Every operand with positive values of every type. */
static void fill_pool(api_fixture *f)
{
    memset(dsr_buffer_data(f->pool), 0x3f, POOL_BYTES);
}

static void set_table(dsr_view table, int32_t middle)
{
    const int32_t ids[3] = {4, middle, 0};
    memcpy(api_data(table), ids, sizeof(ids));
}

static void run_call(api_fixture *f, const api_call *kind, const void *call)
{
    api_expect_valid(f, kind, call);
    assert_int_equal(dsr_encoder_submit(f->encoder), DSR_OK);
    assert_int_equal(dsr_encoder_wait(f->encoder), DSR_OK);
    assert_int_equal(dsr_encoder_reset(f->encoder), DSR_OK);
}

/* Whether each row gives zeros; the others give no zero. */
static void expect_zero_rows(const attention_call *call, const int is_zero[N_ROWS])
{
    const uint16_t *output = api_data(call->desc.output);
    for (uint32_t i = 0; i < N_ROWS * N_HEADS * DSR_HEAD_DIM; i++)
        assert_int_equal(output[i] == 0, is_zero[i / (N_HEADS * DSR_HEAD_DIM)]);
}

static void test_attention_on_bad_pages(void **state)
{
    static const int32_t selects[4] = {0, 20, -1, 39}, spares[4] = {0, 15, 32, 39};
    static const int none[N_ROWS] = {0, 0, 0}, paged[N_ROWS] = {0, 1, 1};
    api_fixture *f = *state;
    for (int i = 0; i < N_BAD_IDS + 1; i++) {
        attention_call call = {0};
        const int is_bad = i < N_BAD_IDS;
        f->pool_used = POOL_MARGIN;
        init_attention(&call, f);
        fill_pool(f);
        set_table(call.rows[1].kv_layout.page_table, is_bad ? bad_ids[i] : 2);
        set_table(call.rows[2].kv_layout.page_table, is_bad ? bad_ids[i] : 2);
        memcpy(api_data(call.desc.indices), selects, sizeof(selects));
        run_call(f, &attention, &call);
        expect_zero_rows(&call, is_bad ? paged : none);
        memcpy(api_data(call.desc.indices), spares, sizeof(spares));
        run_call(f, &attention, &call);
        expect_zero_rows(&call, none);
    }
}

static void test_indexer_on_bad_pages(void **state)
{
    api_fixture *f = *state;
    for (int i = 0; i < N_BAD_IDS + 1; i++) {
        indexer_call call = {0};
        const int is_bad = i < N_BAD_IDS;
        f->pool_used = POOL_MARGIN;
        init_indexer(&call, f);
        fill_pool(f);
        set_table(call.rows[1].key_layout.page_table, is_bad ? bad_ids[i] : 2);
        set_table(call.rows[2].key_layout.page_table, is_bad ? bad_ids[i] : 2);
        run_call(f, &indexer, &call);
        for (uint32_t r = 0; r < N_ROWS; r++) {
            const int32_t *list = (const int32_t *)api_data(call.desc.output) + r * TOP_K;
            const uint32_t n_listed = is_bad && r > 0 ? N_ENTRIES - PAGE : N_ENTRIES;
            for (uint32_t j = 0; j < TOP_K; j++) {
                /* All scores are equal: ascending, without the entries of the page. */
                const int32_t t = (int32_t)(n_listed < N_ENTRIES && j >= PAGE ? j + PAGE : j);
                assert_int_equal(list[j], j < n_listed ? t : -1);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_attention_faults, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_attention_ranges, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_indexer_faults, api_setup, api_teardown),
        cmocka_unit_test(test_page_bytes),
        cmocka_unit_test_setup_teardown(test_attention_on_bad_pages, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_indexer_on_bad_pages, api_setup, api_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
