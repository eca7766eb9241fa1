/* Errors of the append call. */
#include "api_fixture.h"

enum { N_ROWS = 3, DIM = 512, N_ENTRIES = 40, PAGE = 16, N_POOL = 6, PAGE_BYTES = 17 * 576 };

typedef struct append_call {
    dsr_append_desc desc;
    dsr_append_row rows[N_ROWS];
    float frequencies[32];
} append_call;
#define CALL append_call

/* Row 0 wraps in the ring of a BF16 cache, row 1 writes to pages of FP8, row 2 to FP8 in one piece. */
static void init(void *memory, api_fixture *f)
{
    append_call *call = memory;
    call->desc = (dsr_append_desc)DSR_APPEND_DESC_INIT;
    call->desc.n_rows = N_ROWS;
    call->desc.rows = call->rows;
    call->desc.dim = DIM;
    call->desc.source = api_view(f, DSR_DTYPE_BF16, 6 * DIM);
    memcpy(call->frequencies, dsr_rope_frequencies(DSR_ROPE_YARN), sizeof(call->frequencies));
    call->desc.frequencies = call->frequencies;
    for (uint32_t r = 0; r < N_ROWS; r++) {
        call->rows[r].n_entries = N_ENTRIES;
        call->rows[r].source_row = 2 * r;
        call->rows[r].n_tokens = 2;
        call->rows[r].first_entry = 15;
        call->rows[r].start_pos = 1000;
        call->rows[r].position_step = 4;
    }
    call->rows[0].cache = api_view(f, DSR_DTYPE_BF16, N_ENTRIES * DIM);
    call->rows[0].ring_entries = 16;
    call->rows[1].cache = api_view(f, DSR_DTYPE_U8, N_POOL * PAGE_BYTES);
    call->rows[1].cache_layout.format = DSR_FORMAT_FP8;
    call->rows[1].cache_layout.page_size = PAGE;
    call->rows[1].cache_layout.page_table = api_view(f, DSR_DTYPE_I32, 3);
    call->rows[2].cache = api_view(f, DSR_DTYPE_U8, N_ENTRIES * 584);
    call->rows[2].cache_layout.format = DSR_FORMAT_FP8;
    call->rows[2].n_tokens = 0;
}

static dsr_status encode(dsr_encoder *encoder, const void *call)
{
    return dsr_encode_append(encoder, call);
}

static const api_call append = {sizeof(append_call), init, encode, "append: "};

enum { SOURCES = 1, CACHES = 2, PLACES = 4, ENTRIES = 8, TOKENS = 16 };

static const api_fault faults[] = {
    FAULT(DSR_ERR_STRUCT_SIZE, "struct_size must be", SET(desc.struct_size, 0)),
    FAULT(DSR_ERR_ROW_COUNT, "rows must be 1..=64, got 0", SET(desc.n_rows, 0)),
    FAULT(DSR_ERR_ROW_COUNT, "rows must be 1..=64, got 65", SET(desc.n_rows, 65)),
    FAULT(DSR_ERR_NULL, "rows is null", SET(desc.rows, 0)),
    FAULT_OF(CACHES | SOURCES | PLACES, DSR_ERR_UNSUPPORTED_SHAPE,
             "dim must be 128 (index keys) or 512 (KV rows), got 256", SET(desc.dim, 256)),
    FAULT(DSR_ERR_ENUM, "floor must be 0 or 1, got 2", SET(desc.floor, 2)),
    FAULT(DSR_ERR_ENUM, "floor must be 0 or 1, got -1", SET(desc.floor, -1)),
    FAULT(DSR_ERR_VALUE, "frequencies[3] must be finite and positive, got 0", SET(frequencies[3], 0)),
    FAULT(DSR_ERR_VALUE, "frequencies[31] must be finite and positive, got inf",
          SET(frequencies[31], FLOAT_INFINITY_BITS)),

    FAULT_OF(TOKENS, DSR_ERR_POSITION, "row 1: position overflows: start_pos 4294967292, n_tokens 2",
             SET(rows[1].start_pos, UINT32_MAX - 3)),
    FAULT_OF(TOKENS, DSR_ERR_POSITION, "row 1: position overflows: start_pos 1000, n_tokens 4294967295",
             SET(rows[1].n_tokens, UINT32_MAX)),
    FAULT_OF(ENTRIES | CACHES, DSR_ERR_VALUE, "row 1: n_entries must be nonzero, got 0", SET(rows[1].n_entries, 0)),
    FAULT_OF(ENTRIES, DSR_ERR_OVERFLOW, "row 1: first_entry + n_tokens overflows",
             SET(rows[1].first_entry, UINT64_MAX)),
    FAULT_OF(ENTRIES, DSR_ERR_SIZE, "row 1: entries reach 41, needs at most n_entries = 40",
             SET(rows[1].first_entry, 39)),
    FAULT_OF(ENTRIES, DSR_ERR_SIZE, "row 1: ring_entries must be at most n_entries = 40, got 41",
             SET(rows[1].ring_entries, 41)),
    FAULT_OF(ENTRIES | TOKENS, DSR_ERR_VALUE, "row 1: n_tokens must be at most ring_entries = 1, got 2",
             SET(rows[1].ring_entries, 1)),
    FAULT_OF(CACHES, DSR_ERR_ENUM, "row 1: cache_layout.format must be 0 (BF16) or 2 (FP8), got 1",
             SET(rows[1].cache_layout.format, DSR_FORMAT_FP4)),
    FAULT_OF(CACHES, DSR_ERR_STRIDE, "row 1: entry_stride must be 0 for packed entries, got 512",
             SET(rows[1].entry_stride, 512)),
    FAULT_OF(CACHES, DSR_ERR_VALUE, "row 1: cache_layout.page_size must be 16, 32, 64, 128 or 256, got 48",
             SET(rows[1].cache_layout.page_size, 48)),
    FAULT_OF(CACHES, DSR_ERR_STRIDE, "row 1: cache_layout.page_stride must be at least 9344 bytes, got 9328",
             SET(rows[1].cache_layout.page_stride, 9328)),
    FAULT_OF(CACHES, DSR_ERR_NULL, "row 1: cache is null", SET(rows[1].cache.buffer, 0)),
    FAULT_OF(CACHES, DSR_ERR_DTYPE, "row 1: cache must be u8, got bf16", SET(rows[1].cache.dtype, DSR_DTYPE_BF16)),
    FAULT_OF(CACHES, DSR_ERR_SIZE, "row 1: cache holds 9343 bytes, needs 9344", SET(rows[1].cache.byte_length, 9343)),
    FAULT_OF(CACHES, DSR_ERR_ALIGNMENT, "row 1: cache must start at a multiple of 16 bytes",
             ADD(rows[1].cache.byte_offset, 8)),
    FAULT_OF(CACHES, DSR_ERR_SIZE, "row 1: cache_layout.page_table holds 11 bytes, needs 12",
             SET(rows[1].cache_layout.page_table.byte_length, 11)),
    FAULT_OF(SOURCES, DSR_ERR_OVERFLOW, "row 1: source_row + n_tokens overflows", SET(rows[1].source_row, UINT64_MAX)),
    FAULT_OF(CACHES, DSR_ERR_SIZE, "row 2: cache holds 23359 bytes, needs 23360",
             SET(rows[2].cache.byte_length, 23359)),

    FAULT_OF(SOURCES, DSR_ERR_OVERFLOW, "source: shape product overflows", SET(rows[1].source_row, UINT64_MAX / 4)),
    FAULT_OF(SOURCES, DSR_ERR_NULL, "source is null", SET(desc.source.buffer, 0)),
    FAULT_OF(SOURCES, DSR_ERR_DTYPE, "source must be bf16, got f32", SET(desc.source.dtype, DSR_DTYPE_F32)),
    FAULT_OF(SOURCES, DSR_ERR_SIZE, "row 2: source holds 5119 bytes, needs 5120", SET(desc.source.byte_length, 5119)),
    FAULT_OF(SOURCES, DSR_ERR_ALIGNMENT, "source", ADD(desc.source.byte_offset, 1)),
    FAULT_OF(PLACES | CACHES, DSR_ERR_OVERLAP, "row 2: cache overlaps cache of row 1",
             COPY(rows[2].cache.byte_offset, rows[1].cache.byte_offset)),
    FAULT_OF(PLACES | CACHES | SOURCES, DSR_ERR_OVERLAP, "row 1: cache overlaps source of row 0",
             COPY(desc.source.byte_offset, rows[1].cache.byte_offset)),
    FAULT_OF(PLACES | CACHES, DSR_ERR_OVERLAP, "row 1: cache overlaps cache_layout.page_table of row 1",
             COPY(rows[1].cache_layout.page_table.byte_offset, rows[1].cache.byte_offset)),
};

static void test_faults(void **state)
{
    api_run_faults(*state, &append, faults, N_FAULTS(faults));
}

/* Tokens of all rows fit 32 bits. */
static void test_too_many_tokens(void **state)
{
    api_fixture *f = *state;
    append_call call;
    api_init_call(f, &append, &call);
    call.desc.frequencies = NULL;
    for (uint32_t r = 0; r < N_ROWS; r++) {
        call.rows[r].cache = api_huge_view(f, DSR_DTYPE_BF16);
        memset(&call.rows[r].cache_layout, 0, sizeof(call.rows[r].cache_layout));
        call.rows[r].ring_entries = 0;
        call.rows[r].n_entries = (uint64_t)1 << 33;
        call.rows[r].n_tokens = 1431655766;
    }
    assert_int_equal(dsr_encode_append(f->encoder, &call.desc), DSR_ERR_OVERFLOW);
    api_assert_text(f, "append: row 2: number of tokens of all rows exceeds u32: got 4294967298");
}

/* Rows share a pool if it is the very same pages of both; entries of one cache in one piece may touch. */
static void test_what_rows_may_share(void **state)
{
    api_fixture *f = *state;
    append_call call;
    api_init_call(f, &append, &call);
    call.rows[2] = call.rows[1];
    call.rows[2].source_row = 0;
    call.rows[2].cache_layout.page_table = api_view(f, DSR_DTYPE_I32, 3);
    api_expect_valid(f, &append, &call);
    call.rows[2].cache_layout.page_table = call.rows[1].cache_layout.page_table; /* the caller's duty */
    api_expect_valid(f, &append, &call);
    call.rows[2].cache.byte_length -= PAGE_BYTES;
    assert_int_equal(dsr_encode_append(f->encoder, &call.desc), DSR_ERR_OVERLAP);

    call.rows[1] = call.rows[0];
    call.rows[1].ring_entries = 0;
    call.rows[1].first_entry = 16;
    call.desc.n_rows = 2;
    api_expect_valid(f, &append, &call);
    call.rows[1].first_entry = 14;
    assert_int_equal(dsr_encode_append(f->encoder, &call.desc), DSR_ERR_OVERLAP);
    call.rows[0].first_entry = 12;
    api_expect_valid(f, &append, &call);
}

/* As many pools as rows, each with a ring. */
static void test_pools_of_every_row(void **state)
{
    enum { POOL = 1 << 20 };
    api_fixture *f = *state;
    dsr_append_row rows[DSR_MAX_ROWS];
    append_call call;
    api_ranges writes = {0};
    api_init_call(f, &append, &call);
    call.desc.n_rows = DSR_MAX_ROWS;
    call.desc.rows = rows;
    for (uint32_t r = 0; r < DSR_MAX_ROWS; r++) {
        rows[r] = call.rows[1];
        rows[r].source_row = 0;
        rows[r].ring_entries = 20;
        rows[r].first_entry = r % 20;
        rows[r].cache = api_huge_view(f, DSR_DTYPE_U8);
        rows[r].cache.byte_offset = 2 * (uint64_t)POOL * r;
        rows[r].cache.byte_length = POOL;
        const uint64_t begin = HUGE_ADDRESS + rows[r].cache.byte_offset;
        writes.ranges[writes.n++] = (dsr_range){begin, begin + (POOL - 9344) / 9792 * 9792 + 9344};
    }
    assert_int_equal(dsr_encode_append(f->encoder, &call.desc), DSR_OK);
    const dsr_command_info info = api_last_command(f);
    api_assert_ranges(info.writes, info.n_writes, &writes);
}

/* Keys, without a rotation; positions are then not looked at. */
static void test_keys(void **state)
{
    api_fixture *f = *state;
    append_call call;
    api_init_call(f, &append, &call);
    call.desc.dim = 128;
    call.desc.frequencies = NULL;
    for (uint32_t r = 1; r < N_ROWS; r++) {
        call.rows[r].cache_layout.format = DSR_FORMAT_FP4;
        call.rows[r].start_pos = UINT32_MAX;
    }
    api_expect_valid(f, &append, &call);
    call.rows[2].cache_layout.format = DSR_FORMAT_FP8;
    assert_int_equal(dsr_encode_append(f->encoder, &call.desc), DSR_ERR_ENUM);
    api_assert_text(f, "append: row 2: cache_layout.format must be 0 (BF16) or 1 (FP4), got 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_faults, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_too_many_tokens, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_what_rows_may_share, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_pools_of_every_row, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_keys, api_setup, api_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
