/* Errors of the gather call. */
#include "api_fixture.h"

enum { N_ROWS = 3, ROW_ELEMENTS = 40 };

typedef struct gather_call {
    dsr_gather_desc desc;
    dsr_view sources[N_ROWS];
} gather_call;
#define CALL gather_call

static void init(void *memory, api_fixture *f)
{
    gather_call *call = memory;
    call->desc = (dsr_gather_desc)DSR_GATHER_DESC_INIT;
    call->desc.n_rows = N_ROWS;
    call->desc.sources = call->sources;
    call->desc.row_elements = ROW_ELEMENTS;
    for (uint32_t r = 0; r < N_ROWS; r++)
        call->sources[r] = api_view(f, DSR_DTYPE_F32, ROW_ELEMENTS);
    call->desc.output = api_view(f, DSR_DTYPE_F32, N_ROWS * ROW_ELEMENTS);
}

static dsr_status encode(dsr_encoder *encoder, const void *call)
{
    return dsr_encode_gather(encoder, call);
}

static const api_call gather = {sizeof(gather_call), init, encode, "gather: "};

enum { SIZES = 1, PLACES = 2 };

static const api_fault faults[] = {
    FAULT(DSR_ERR_STRUCT_SIZE, "struct_size must be", SET(desc.struct_size, 0)),
    FAULT(DSR_ERR_ROW_COUNT, "rows must be 1..=64, got 0", SET(desc.n_rows, 0)),
    FAULT(DSR_ERR_ROW_COUNT, "rows must be 1..=64, got 65", SET(desc.n_rows, 65)),
    FAULT(DSR_ERR_NULL, "sources is null", SET(desc.sources, 0)),
    FAULT(DSR_ERR_VALUE, "row_elements must be nonzero", SET(desc.row_elements, 0)),
    FAULT(DSR_ERR_OVERFLOW, "row 0: source: shape product overflows", SET(desc.row_elements, (uint64_t)1 << 62)),
    FAULT_OF(SIZES, DSR_ERR_SIZE, "row 0: source holds 160 bytes, needs 164", SET(desc.row_elements, ROW_ELEMENTS + 1)),
    FAULT(DSR_ERR_NULL, "row 1: source is null", SET(sources[1].buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "row 1: source must be f32, got bf16", SET(sources[1].dtype, DSR_DTYPE_BF16),
          SET(sources[1].byte_length, 0)),
    FAULT(DSR_ERR_SIZE, "row 1: source holds 159 bytes, needs 160", ADD(sources[1].byte_length, -1)),
    FAULT(DSR_ERR_CONTEXT_MISMATCH, "row 1: source", FOREIGN(sources[1].buffer)),
    FAULT(DSR_ERR_RANGE, "row 1: source", SET(sources[1].byte_offset, POOL_BYTES - 4)),
    FAULT(DSR_ERR_ALIGNMENT, "row 1: source", ADD(sources[1].byte_offset, 1)),
    FAULT(DSR_ERR_NULL, "output is null", SET(desc.output.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "output must be f32, got u32", SET(desc.output.dtype, DSR_DTYPE_U32),
          SET(desc.output.byte_length, 0)),
    FAULT_OF(SIZES, DSR_ERR_SIZE, "output holds 479 bytes, needs 480", ADD(desc.output.byte_length, -1)),
    FAULT(DSR_ERR_ALIGNMENT, "output", ADD(desc.output.byte_offset, 2)),
    FAULT_OF(SIZES, DSR_ERR_OVERFLOW, "row_elements exceeds u32: got 4294967296",
             SET(desc.row_elements, (uint64_t)1 << 32), HUGE_VIEW(sources[0]), HUGE_VIEW(sources[1]),
             HUGE_VIEW(sources[2]), HUGE_VIEW(desc.output)),
    FAULT_OF(SIZES, DSR_ERR_OVERFLOW, "number of elements of all rows exceeds u32: got 6442450944",
             SET(desc.row_elements, (uint64_t)1 << 31), HUGE_VIEW(sources[0]), HUGE_VIEW(sources[1]),
             HUGE_VIEW(sources[2]), HUGE_VIEW(desc.output)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "output overlaps source of row 2",
             COPY(sources[2].byte_offset, desc.output.byte_offset), ADD(sources[2].byte_offset, 476)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "output overlaps source of row 0",
             COPY(sources[0].byte_offset, desc.output.byte_offset)),
};

static void test_faults(void **state)
{
    api_run_faults(*state, &gather, faults, N_FAULTS(faults));
}

static void test_total_overflows(void **state)
{
    api_fixture *f = *state;
    dsr_view sources[DSR_MAX_ROWS];
    dsr_gather_desc desc = DSR_GATHER_DESC_INIT;
    for (uint32_t r = 0; r < DSR_MAX_ROWS; r++)
        sources[r] = api_huge_view(f, DSR_DTYPE_F32);
    desc.n_rows = DSR_MAX_ROWS;
    desc.sources = sources;
    desc.row_elements = (uint64_t)1 << 58;
    desc.output = api_view(f, DSR_DTYPE_F32, 1);
    assert_int_equal(dsr_encode_gather(f->encoder, &desc), DSR_ERR_OVERFLOW);
    api_assert_text(f, "gather: output: shape product overflows: 64 * 288230376151711744");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_faults, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_total_overflows, api_setup, api_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
