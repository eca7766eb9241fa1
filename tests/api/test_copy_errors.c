/* Errors of the copy call. */
#include "api_fixture.h"

enum { N_ROWS = 3, ROW_ELEMENTS = 32, ROW_BYTES = 64, RING = 4 };

typedef struct copy_call {
    dsr_copy_desc desc;
    dsr_copy_row rows[N_ROWS];
} copy_call;
#define CALL copy_call

/* Row 0 wraps in its ring, row 1 writes compressed rows, row 2 one ring slot. */
static void init(void *memory, api_fixture *f)
{
    copy_call *call = memory;
    call->desc = (dsr_copy_desc)DSR_COPY_DESC_INIT;
    call->desc.n_rows = N_ROWS;
    call->desc.rows = call->rows;
    call->desc.row_elements = ROW_ELEMENTS;
    call->desc.source = api_view(f, DSR_DTYPE_BF16, 6 * ROW_ELEMENTS);
    for (uint32_t r = 0; r < N_ROWS; r++) {
        call->rows[r].destination = api_view(f, DSR_DTYPE_BF16, 10 * ROW_ELEMENTS);
        call->rows[r].source_row = 2 * r;
        call->rows[r].n_copies = 2;
    }
    call->rows[0].destination_row = 7;
    call->rows[0].ring_rows = RING;
    call->rows[1].destination_row = 8;
    call->rows[2].destination_row = UINT64_MAX;
    call->rows[2].ring_rows = RING;
    call->rows[2].n_copies = 0;
}

static dsr_status encode(dsr_encoder *encoder, const void *call)
{
    return dsr_encode_copy(encoder, call);
}

static const api_call copy = {sizeof(copy_call), init, encode, "copy: "};

enum { DESTINATIONS = 1, SOURCES = 2, PLACES = 4, DTYPES = 8 };

static const api_fault faults[] = {
    FAULT(DSR_ERR_STRUCT_SIZE, "struct_size must be", SET(desc.struct_size, 0)),
    FAULT(DSR_ERR_ROW_COUNT, "rows must be 1..=64, got 0", SET(desc.n_rows, 0)),
    FAULT(DSR_ERR_ROW_COUNT, "rows must be 1..=64, got 65", SET(desc.n_rows, 65)),
    FAULT(DSR_ERR_NULL, "rows is null", SET(desc.rows, 0)),
    FAULT(DSR_ERR_VALUE, "row_elements must be nonzero", SET(desc.row_elements, 0)),
    FAULT(DSR_ERR_NULL, "source is null", SET(desc.source.buffer, 0)),
    FAULT_OF(DTYPES, DSR_ERR_ENUM, "source has an unknown dtype, got 7", SET(desc.source.dtype, 7)),
    FAULT(DSR_ERR_OVERFLOW, "bytes of a row overflows", SET(desc.row_elements, (uint64_t)1 << 63)),

    FAULT_OF(DESTINATIONS, DSR_ERR_OVERFLOW, "row 1: destination_row + n_copies overflows",
             SET(rows[1].destination_row, UINT64_MAX - 1)),
    FAULT_OF(DESTINATIONS, DSR_ERR_VALUE, "row 1: n_copies must be at most ring_rows = 1, got 2",
             SET(rows[1].ring_rows, 1)),
    FAULT_OF(DESTINATIONS, DSR_ERR_OVERFLOW, "row 1: destination: shape product overflows",
             SET(rows[1].destination_row, UINT64_MAX / 2)),
    FAULT_OF(DTYPES, DSR_ERR_NULL, "row 1: destination is null", SET(rows[1].destination.buffer, 0)),
    FAULT_OF(DTYPES, DSR_ERR_DTYPE, "row 1: destination must be bf16, got f32",
             SET(rows[1].destination.dtype, DSR_DTYPE_F32), SET(rows[1].destination.byte_length, 0)),
    FAULT_OF(DESTINATIONS, DSR_ERR_SIZE, "row 1: destination holds 639 bytes, needs 640",
             ADD(rows[1].destination.byte_length, -1)),
    FAULT_OF(DESTINATIONS, DSR_ERR_SIZE, "row 1: destination holds 640 bytes, needs 704",
             SET(rows[1].destination_row, 9)),
    FAULT_OF(DESTINATIONS, DSR_ERR_SIZE, "row 1: destination holds 640 bytes, needs 704", SET(rows[1].ring_rows, 11)),
    FAULT(DSR_ERR_CONTEXT_MISMATCH, "row 1: destination", FOREIGN(rows[1].destination.buffer)),
    FAULT(DSR_ERR_RANGE, "row 1: destination", SET(rows[1].destination.byte_offset, POOL_BYTES)),
    FAULT(DSR_ERR_ALIGNMENT, "row 1: destination", ADD(rows[1].destination.byte_offset, 1)),
    FAULT_OF(SOURCES, DSR_ERR_OVERFLOW, "row 1: source_row + n_copies overflows", SET(rows[1].source_row, UINT64_MAX)),
    FAULT_OF(DESTINATIONS, DSR_ERR_SIZE, "row 2: destination holds 255 bytes, needs 256",
             SET(rows[2].destination.byte_length, 255)),

    FAULT_OF(SOURCES, DSR_ERR_OVERFLOW, "source: shape product overflows", SET(rows[1].source_row, UINT64_MAX / 8)),
    FAULT_OF(SOURCES, DSR_ERR_SIZE, "row 2: source holds 319 bytes, needs 320", SET(desc.source.byte_length, 319)),
    FAULT_OF(SOURCES, DSR_ERR_SIZE, "row 1: source holds 384 bytes, needs 448", SET(rows[1].source_row, 5)),
    FAULT(DSR_ERR_ALIGNMENT, "source", ADD(desc.source.byte_offset, 1)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "row 2: destination overlaps destination of row 1",
             COPY(rows[2].destination.byte_offset, rows[1].destination.byte_offset),
             ADD(rows[2].destination.byte_offset, 6 * ROW_BYTES)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "row 1: destination overlaps source of row 2",
             COPY(rows[1].destination.byte_offset, desc.source.byte_offset),
             ADD(rows[1].destination.byte_offset, -4 * ROW_BYTES)),
};

static void test_faults(void **state)
{
    api_run_faults(*state, &copy, faults, N_FAULTS(faults));
}

/* Rows may write next to each other, and to rows of the source that no row reads. */
static void test_touching_is_legal(void **state)
{
    api_fixture *f = *state;
    copy_call call;
    api_init_call(f, &copy, &call);
    /* Ring slots 3 and 0 of row 0, 4 and 5 of row 1, and 1 of row 2, in one destination. */
    call.rows[1].destination = call.rows[2].destination = call.rows[0].destination;
    call.rows[1].destination_row = 4;
    call.rows[2].destination_row = 1;
    api_expect_valid(f, &copy, &call);
    call.rows[0].n_copies = RING;
    call.rows[2].destination_row = 0;
    assert_int_equal(dsr_encode_copy(f->encoder, &call.desc), DSR_ERR_OVERLAP);
    call.desc.n_rows = 2;
    api_expect_valid(f, &copy, &call);
    call.desc.n_rows = 3;
    call.rows[0].n_copies = 2;
    call.rows[2].destination_row = 4;
    assert_int_equal(dsr_encode_copy(f->encoder, &call.desc), DSR_ERR_OVERLAP);
    call.rows[2].destination = call.desc.source;
    call.rows[2].destination_row = 1;
    call.rows[0].source_row = 2;
    api_expect_valid(f, &copy, &call);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_faults, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_touching_is_legal, api_setup, api_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
