/* Errors of the convert call. */
#include "api_fixture.h"

enum { N_ROWS = 2, DIM = 128, N_ENTRIES = 40, PAGE = 32, N_POOL = 4, PAGE_BYTES = PAGE * 68 };

typedef struct convert_call {
    dsr_convert_desc desc;
    dsr_convert_row rows[N_ROWS];
} convert_call;
#define CALL convert_call

/* Row 0 decodes pages to one piece, row 1 packs one piece into pages. */
static void init(void *memory, api_fixture *f)
{
    convert_call *call = memory;
    call->desc = (dsr_convert_desc)DSR_CONVERT_DESC_INIT;
    call->desc.n_rows = N_ROWS;
    call->desc.rows = call->rows;
    call->desc.dim = DIM;
    for (uint32_t r = 0; r < N_ROWS; r++) {
        dsr_view plain = api_view(f, DSR_DTYPE_BF16, N_ENTRIES * DIM);
        dsr_view packed = api_view(f, DSR_DTYPE_U8, N_POOL * PAGE_BYTES);
        dsr_cache_layout layout;
        memset(&layout, 0, sizeof(layout));
        layout.format = DSR_FORMAT_FP4;
        layout.page_size = PAGE;
        layout.page_table = api_view(f, DSR_DTYPE_I32, 2);
        call->rows[r].source = r == 0 ? packed : plain;
        call->rows[r].destination = r == 0 ? plain : packed;
        *(r == 0 ? &call->rows[r].source_layout : &call->rows[r].destination_layout) = layout;
        call->rows[r].source_entries = N_ENTRIES;
        call->rows[r].destination_entries = N_ENTRIES;
        call->rows[r].first_source = 3;
        call->rows[r].first_destination = 4;
        call->rows[r].n_entries = 30;
    }
}

static dsr_status encode(dsr_encoder *encoder, const void *call)
{
    return dsr_encode_convert(encoder, call);
}

static const api_call convert = {sizeof(convert_call), init, encode, "convert: "};

enum { CACHES = 1, ENTRIES = 2 };

static const api_fault faults[] = {
    FAULT(DSR_ERR_STRUCT_SIZE, "struct_size must be", SET(desc.struct_size, 0)),
    FAULT(DSR_ERR_ROW_COUNT, "rows must be 1..=64, got 0", SET(desc.n_rows, 0)),
    FAULT(DSR_ERR_ROW_COUNT, "rows must be 1..=64, got 65", SET(desc.n_rows, 65)),
    FAULT(DSR_ERR_NULL, "rows is null", SET(desc.rows, 0)),
    FAULT_OF(CACHES, DSR_ERR_UNSUPPORTED_SHAPE, "dim must be 128 (index keys) or 512 (KV rows), got 64",
             SET(desc.dim, 64)),
    FAULT_OF(ENTRIES, DSR_ERR_VALUE, "row 1: n_entries must be nonzero, got 0", SET(rows[1].n_entries, 0)),
    FAULT_OF(ENTRIES, DSR_ERR_OVERFLOW, "row 1: number of entries of all rows overflows",
             SET(rows[1].n_entries, UINT64_MAX)),
    FAULT_OF(ENTRIES, DSR_ERR_OVERFLOW, "row 1: number of entries of all rows exceeds u32: got 4294967326",
             SET(rows[1].n_entries, (uint64_t)1 << 32)),
    FAULT_OF(ENTRIES | CACHES, DSR_ERR_VALUE, "row 1: source_entries must be nonzero, got 0",
             SET(rows[1].source_entries, 0)),
    FAULT_OF(ENTRIES, DSR_ERR_OVERFLOW, "row 1: first_source + n_entries overflows",
             SET(rows[1].first_source, UINT64_MAX)),
    FAULT_OF(ENTRIES, DSR_ERR_SIZE, "row 1: entries reach 41, needs at most source_entries = 40",
             SET(rows[1].first_source, 11)),
    FAULT_OF(CACHES, DSR_ERR_ENUM, "row 1: source_layout.format must be 0 (BF16) or 1 (FP4), got 2",
             SET(rows[1].source_layout.format, DSR_FORMAT_FP8)),
    FAULT_OF(CACHES, DSR_ERR_STRIDE, "row 1: source_stride must be at least 128 elements, got 127",
             SET(rows[1].source_stride, 127)),
    FAULT_OF(CACHES, DSR_ERR_VALUE, "row 1: source_layout.page_size without a page table must hold all 40 entries",
             SET(rows[1].source_layout.page_size, 39)),
    FAULT_OF(CACHES, DSR_ERR_NULL, "row 1: source is null", SET(rows[1].source.buffer, 0)),
    FAULT_OF(CACHES, DSR_ERR_SIZE, "row 1: source holds 10239 bytes, needs 10240",
             SET(rows[1].source.byte_length, 10239)),
    FAULT_OF(ENTRIES | CACHES, DSR_ERR_VALUE, "row 1: destination_entries must be nonzero, got 0",
             SET(rows[1].destination_entries, 0)),
    FAULT_OF(ENTRIES, DSR_ERR_SIZE, "row 1: entries reach 41, needs at most destination_entries = 40",
             SET(rows[1].first_destination, 11)),
    FAULT_OF(CACHES, DSR_ERR_STRIDE, "row 1: destination_stride must be 0 for packed entries, got 128",
             SET(rows[1].destination_stride, 128)),
    FAULT_OF(CACHES, DSR_ERR_ALIGNMENT, "row 1: destination_layout.page_stride must be a multiple of 16 bytes",
             SET(rows[1].destination_layout.page_stride, 2184)),
    FAULT_OF(CACHES, DSR_ERR_DTYPE, "row 1: destination must be u8, got i32",
             SET(rows[1].destination.dtype, DSR_DTYPE_I32)),
    FAULT_OF(CACHES, DSR_ERR_DTYPE, "row 1: destination_layout.page_table must be i32, got u32",
             SET(rows[1].destination_layout.page_table.dtype, DSR_DTYPE_U32)),
    FAULT_OF(CACHES, DSR_ERR_OVERLAP, "row 1: destination overlaps source of row 0",
             COPY(rows[1].destination.byte_offset, rows[0].source.byte_offset)),
    FAULT_OF(CACHES, DSR_ERR_OVERLAP, "row 1: destination overlaps destination of row 0",
             COPY(rows[1].destination.byte_offset, rows[0].destination.byte_offset)),
};

static void test_faults(void **state)
{
    api_run_faults(*state, &convert, faults, N_FAULTS(faults));
}

static void test_what_rows_may_share(void **state)
{
    api_fixture *f = *state;
    convert_call call;
    api_init_call(f, &convert, &call);
    call.rows[0] = call.rows[1];
    api_expect_valid(f, &convert, &call); /* one pool: that the pages differ is the caller's duty */
    call.rows[0].destination.byte_offset += 16;
    call.rows[0].destination.byte_length -= 16;
    assert_int_equal(dsr_encode_convert(f->encoder, &call.desc), DSR_ERR_OVERLAP);
    /* One cache's entries to others of the same cache in one piece. */
    call.desc.n_rows = 1;
    memset(&call.rows[0].destination_layout, 0, sizeof(call.rows[0].destination_layout));
    call.rows[0].destination = call.rows[0].source;
    call.rows[0].n_entries = 1;
    api_expect_valid(f, &convert, &call);
    call.rows[0].n_entries = 2;
    assert_int_equal(dsr_encode_convert(f->encoder, &call.desc), DSR_ERR_OVERLAP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_faults, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_what_rows_may_share, api_setup, api_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
