/* Errors of the RoPE call. */
#include "api_fixture.h"

enum { N_ROWS = 3, N_HEADS = 2, HEAD_DIM = 128, TOKEN_BYTES = N_HEADS * HEAD_DIM * 2 };

typedef struct rope_call {
    dsr_rope_desc desc;
    dsr_rope_row rows[N_ROWS];
    float frequencies[DSR_ROPE_DIM / 2];
} rope_call;
#define CALL rope_call

/* Tokens 4, 1..3 and 0 of five, from BF16. */
static void init(void *memory, api_fixture *f)
{
    rope_call *call = memory;
    call->desc = (dsr_rope_desc)DSR_ROPE_DESC_INIT;
    call->desc.n_rows = N_ROWS;
    call->desc.rows = call->rows;
    call->desc.n_heads = N_HEADS;
    call->desc.head_dim = HEAD_DIM;
    call->desc.rope_dim = DSR_ROPE_DIM;
    call->desc.frequencies = call->frequencies;
    memcpy(call->frequencies, dsr_rope_frequencies(DSR_ROPE_YARN), sizeof(call->frequencies));
    call->rows[0].row = 4;
    call->rows[1].row = 1;
    call->rows[1].n_tokens = 3;
    call->rows[1].start_pos = 1000;
    call->rows[2].start_pos = UINT32_MAX;
    call->desc.input = api_view(f, DSR_DTYPE_BF16, 5 * N_HEADS * HEAD_DIM);
    call->desc.output = api_view(f, DSR_DTYPE_BF16, 5 * N_HEADS * HEAD_DIM);
}

static dsr_status encode(dsr_encoder *encoder, const void *call)
{
    return dsr_encode_rope(encoder, call);
}

static const api_call rope = {sizeof(rope_call), init, encode, "rope: "};

enum { SHAPE = 1, TOKENS = 2, PLACES = 4, DTYPES = 8 };

static const api_fault faults[] = {
    FAULT(DSR_ERR_STRUCT_SIZE, "struct_size must be", SET(desc.struct_size, 0)),
    FAULT(DSR_ERR_ROW_COUNT, "rows must be 1..=64, got 0", SET(desc.n_rows, 0)),
    FAULT(DSR_ERR_ROW_COUNT, "rows must be 1..=64, got 65", SET(desc.n_rows, 65)),
    FAULT(DSR_ERR_NULL, "rows is null", SET(desc.rows, 0)),
    FAULT(DSR_ERR_UNSUPPORTED_SHAPE, "n_heads must be in 1..=128, got 0", SET(desc.n_heads, 0)),
    FAULT(DSR_ERR_UNSUPPORTED_SHAPE, "n_heads must be in 1..=128, got 129", SET(desc.n_heads, 129)),
    FAULT(DSR_ERR_UNSUPPORTED_SHAPE, "head_dim must be even and in 2..=512, got 0", SET(desc.head_dim, 0)),
    FAULT(DSR_ERR_UNSUPPORTED_SHAPE, "head_dim must be even and in 2..=512, got 127", SET(desc.head_dim, 127)),
    FAULT(DSR_ERR_UNSUPPORTED_SHAPE, "head_dim must be even and in 2..=512, got 514", SET(desc.head_dim, 514)),
    FAULT_OF(SHAPE, DSR_ERR_UNSUPPORTED_SHAPE, "rope_dim must be even, in 2..=128 and at most head_dim = 128, got 0",
             SET(desc.rope_dim, 0)),
    FAULT_OF(SHAPE, DSR_ERR_UNSUPPORTED_SHAPE, "rope_dim must be even, in 2..=128 and at most head_dim = 128, got 63",
             SET(desc.rope_dim, 63)),
    FAULT_OF(SHAPE, DSR_ERR_UNSUPPORTED_SHAPE, "rope_dim must be even, in 2..=128 and at most head_dim = 128, got 130",
             SET(desc.rope_dim, 130)),
    FAULT_OF(SHAPE, DSR_ERR_UNSUPPORTED_SHAPE, "rope_dim must be even, in 2..=128 and at most head_dim = 62, got 64",
             SET(desc.head_dim, 62)),
    FAULT(DSR_ERR_VALUE, "inverse must be 0 or 1, got 2", SET(desc.inverse, 2)),
    FAULT(DSR_ERR_VALUE, "inverse must be 0 or 1, got -1", SET(desc.inverse, -1)),
    FAULT(DSR_ERR_NULL, "frequencies is null", SET(desc.frequencies, 0)),
    FAULT(DSR_ERR_VALUE, "frequencies[0] must be finite and positive, got 0", SET(frequencies[0], 0)),
    FAULT(DSR_ERR_VALUE, "frequencies[5] must be finite and positive, got nan", SET(frequencies[5], FLOAT_NAN_BITS)),
    FAULT(DSR_ERR_VALUE, "frequencies[31] must be finite and positive, got inf",
          SET(frequencies[31], FLOAT_INFINITY_BITS)),
    FAULT(DSR_ERR_VALUE, "frequencies[31] must be finite and positive, got -1",
          SET(frequencies[31], FLOAT_MINUS_ONE_BITS)),

    FAULT(DSR_ERR_POSITION, "row 1: position overflows: start_pos 4294967294, n_tokens 3 and position_step ",
          SET(rows[1].start_pos, UINT32_MAX - 1)),
    FAULT_OF(TOKENS, DSR_ERR_POSITION,
             "row 1: position overflows: start_pos 1000, n_tokens 3 and position_step 4294967295",
             SET(rows[1].position_step, UINT32_MAX)),
    FAULT_OF(TOKENS, DSR_ERR_OVERFLOW, "row 1: number of heads of all tokens exceeds u32",
             SET(rows[1].n_tokens, UINT32_MAX / 2), SET(rows[1].start_pos, 0)),
    FAULT_OF(TOKENS, DSR_ERR_OVERFLOW, "row 1: row + n_tokens overflows", SET(rows[1].row, UINT64_MAX - 2)),
    FAULT_OF(TOKENS, DSR_ERR_OVERLAP,
             "row 1: tokens of two rows overlap: [2, 5) and [4, 5) of row 0, needs disjoint ones", SET(rows[1].row, 2)),
    FAULT_OF(TOKENS, DSR_ERR_OVERLAP,
             "row 2: tokens of two rows overlap: [3, 4) and [1, 4) of row 1, needs disjoint ones", SET(rows[2].row, 3)),

    FAULT_OF(TOKENS, DSR_ERR_OVERFLOW, "input: shape product overflows", SET(rows[0].row, UINT64_MAX / 16)),
    FAULT(DSR_ERR_NULL, "input is null", SET(desc.input.buffer, 0)),
    FAULT_OF(DTYPES, DSR_ERR_DTYPE, "input must be f32 or bf16, got f16", SET(desc.input.dtype, DSR_DTYPE_F16),
             SET(desc.input.byte_length, 0)),
    FAULT_OF(TOKENS, DSR_ERR_SIZE, "row 0: input holds 2559 bytes, needs 2560", ADD(desc.input.byte_length, -1)),
    FAULT_OF(TOKENS, DSR_ERR_SIZE, "row 0: input holds 2560 bytes, needs 5120", SET(desc.input.dtype, DSR_DTYPE_F32)),
    FAULT_OF(TOKENS, DSR_ERR_SIZE, "row 0: input holds 2560 bytes, needs 3072", SET(rows[0].row, 5)),
    FAULT(DSR_ERR_CONTEXT_MISMATCH, "input", FOREIGN(desc.input.buffer)),
    FAULT(DSR_ERR_RANGE, "input", SET(desc.input.byte_offset, POOL_BYTES)),
    FAULT(DSR_ERR_ALIGNMENT, "input", ADD(desc.input.byte_offset, 1)),
    FAULT(DSR_ERR_NULL, "output is null", SET(desc.output.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "output must be bf16, got f32", SET(desc.output.dtype, DSR_DTYPE_F32)),
    FAULT_OF(TOKENS, DSR_ERR_SIZE, "row 0: output holds 2559 bytes, needs 2560", ADD(desc.output.byte_length, -1)),
    FAULT(DSR_ERR_ALIGNMENT, "output", ADD(desc.output.byte_offset, 1)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "row 0: output overlaps input of row 1",
             COPY(desc.output.byte_offset, desc.input.byte_offset), ADD(desc.output.byte_offset, -2 * TOKEN_BYTES)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "row 0: output overlaps input of row 0",
             COPY(desc.output.byte_offset, desc.input.byte_offset), ADD(desc.output.byte_offset, 2)),
    FAULT_OF(PLACES | TOKENS, DSR_ERR_OVERLAP, "row 0: output overlaps input of row 2",
             COPY(desc.output.byte_offset, desc.input.byte_offset), ADD(desc.output.byte_offset, -4 * TOKEN_BYTES),
             SET(desc.input.dtype, DSR_DTYPE_F32), SET(desc.input.byte_length, 2 * 5 * TOKEN_BYTES),
             SET(desc.output.byte_length, 5 * TOKEN_BYTES)),
};

static void test_faults(void **state)
{
    api_run_faults(*state, &rope, faults, N_FAULTS(faults));
}

static void test_in_place(void **state)
{
    api_fixture *f = *state;
    rope_call call;
    api_init_call(f, &rope, &call);
    call.desc.output = call.desc.input;
    api_expect_valid(f, &rope, &call);
    /* An F32 input may not be the output. */
    call.desc.input = api_view(f, DSR_DTYPE_F32, 5 * N_HEADS * HEAD_DIM);
    call.desc.output.byte_offset = call.desc.input.byte_offset;
    assert_int_equal(dsr_encode_rope(f->encoder, &call.desc), DSR_ERR_OVERLAP);
}

static void test_extreme_shapes(void **state)
{
    static const uint32_t shapes[][3] = {{1, 2, 2}, {128, 512, 128}, {1, 128, 128}, {3, 130, 2}, {64, 66, 66}};
    api_fixture *f = *state;
    rope_call call;
    float frequencies[64];
    for (uint32_t i = 0; i < 64; i++)
        frequencies[i] = i % 2 ? 1.4e-45f : 3.402823e38f;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        api_init_call(f, &rope, &call);
        call.desc.n_heads = shapes[i][0];
        call.desc.head_dim = shapes[i][1];
        call.desc.rope_dim = shapes[i][2];
        call.desc.frequencies = frequencies;
        call.desc.input = api_view(f, DSR_DTYPE_BF16, 5 * 128 * 512);
        call.desc.output = api_view(f, DSR_DTYPE_BF16, 5 * 128 * 512);
        api_expect_valid(f, &rope, &call);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_faults, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_in_place, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_extreme_shapes, api_setup, api_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
