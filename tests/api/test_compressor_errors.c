/* Errors of the compressor call. */
#include "api_fixture.h"

enum { N_ROWS = 3, DIM = 128, COLUMNS = 256, STATE = 8 * COLUMNS, N_TOKENS = 6 };

typedef struct compressor_call {
    dsr_compressor_desc desc;
    dsr_compressor_row rows[N_ROWS];
} compressor_call;
#define CALL compressor_call

/* Ratio 4: rows of one token, two tokens, and three tokens that complete one group. */
static void init(void *memory, api_fixture *f)
{
    static const uint32_t start_pos[N_ROWS] = {1, 9, 5}, token_row[N_ROWS] = {0, 1, 3};
    compressor_call *call = memory;
    call->desc = (dsr_compressor_desc)DSR_COMPRESSOR_DESC_INIT;
    call->desc.n_rows = N_ROWS;
    call->desc.rows = call->rows;
    call->desc.ratio = 4;
    call->desc.dim = DIM;
    call->desc.epsilon = 1e-6f;
    for (uint32_t r = 0; r < N_ROWS; r++) {
        call->rows[r].kv_state = api_view(f, DSR_DTYPE_F32, STATE);
        call->rows[r].score_state = api_view(f, DSR_DTYPE_F32, STATE);
        call->rows[r].token_row = token_row[r];
        call->rows[r].output_row = N_ROWS - 1 - r;
        call->rows[r].start_pos = start_pos[r];
        call->rows[r].n_tokens = r + 1;
    }
    call->desc.kv = api_view(f, DSR_DTYPE_F32, N_TOKENS * COLUMNS);
    call->desc.score = api_view(f, DSR_DTYPE_F32, N_TOKENS * COLUMNS);
    call->desc.ape = api_view(f, DSR_DTYPE_F32, 4 * COLUMNS);
    call->desc.norm = api_view(f, DSR_DTYPE_F32, DIM);
    call->desc.output = api_view(f, DSR_DTYPE_BF16, N_ROWS * DIM);
}

static dsr_status encode(dsr_encoder *encoder, const void *call)
{
    return dsr_encode_compressor(encoder, call);
}

static const api_call compressor = {sizeof(compressor_call), init, encode, "compressor: "};

/* Groups: faults that need a valid field which another fault of the group spoils. */
enum { STATES = 1, TOKENS = 2, OUTPUTS = 4, PLACES = 8, SHAPE = 16 };

static const api_fault faults[] = {
    FAULT(DSR_ERR_STRUCT_SIZE, "struct_size must be", SET(desc.struct_size, 1)),
    FAULT(DSR_ERR_ROW_COUNT, "rows must be 1..=64, got 0", SET(desc.n_rows, 0)),
    FAULT(DSR_ERR_ROW_COUNT, "rows must be 1..=64, got 4294967295", SET(desc.n_rows, UINT32_MAX)),
    FAULT(DSR_ERR_NULL, "rows is null", SET(desc.rows, 0)),
    FAULT_OF(SHAPE, DSR_ERR_UNSUPPORTED_SHAPE, "(ratio, dim) must be (4,128), (4,512) or (128,512), got (4,256)",
             SET(desc.dim, 256)),
    FAULT_OF(SHAPE, DSR_ERR_UNSUPPORTED_SHAPE, "(ratio, dim) must be (4,128), (4,512) or (128,512), got (128,128)",
             SET(desc.ratio, 128)),
    FAULT_OF(SHAPE, DSR_ERR_UNSUPPORTED_SHAPE, "(ratio, dim) must be (4,128), (4,512) or (128,512), got (0,128)",
             SET(desc.ratio, 0)),
    FAULT(DSR_ERR_VALUE, "epsilon must be finite and positive, got 0", SET(desc.epsilon, 0)),
    FAULT(DSR_ERR_VALUE, "epsilon must be finite and positive, got nan", SET(desc.epsilon, FLOAT_NAN_BITS)),
    FAULT(DSR_ERR_VALUE, "epsilon must be finite and positive, got inf", SET(desc.epsilon, FLOAT_INFINITY_BITS)),

    FAULT(DSR_ERR_POSITION, "row 1: position must be in 1..=429496729", SET(rows[1].start_pos, 0)),
    FAULT(DSR_ERR_POSITION, "row 1: position must be in 1..=4294967293, got 4294967294",
          SET(rows[1].start_pos, UINT32_MAX - 1)),
    FAULT(DSR_ERR_POSITION, "row 1: position must be in 1..=4294967294, got 4294967295",
          SET(rows[1].start_pos, UINT32_MAX), SET(rows[1].n_tokens, 0)),
    FAULT_OF(STATES, DSR_ERR_NULL, "row 1: kv_state is null", SET(rows[1].kv_state.buffer, 0)),
    FAULT_OF(STATES, DSR_ERR_DTYPE, "row 1: kv_state must be f32, got bf16",
             SET(rows[1].kv_state.dtype, DSR_DTYPE_BF16), SET(rows[1].kv_state.byte_length, 0)),
    FAULT_OF(STATES, DSR_ERR_SIZE, "row 1: kv_state holds 8191 bytes, needs 8192",
             ADD(rows[1].kv_state.byte_length, -1)),
    FAULT_OF(STATES, DSR_ERR_CONTEXT_MISMATCH, "row 1: kv_state", FOREIGN(rows[1].kv_state.buffer)),
    FAULT_OF(STATES, DSR_ERR_ALIGNMENT, "row 1: kv_state", ADD(rows[1].kv_state.byte_offset, 1)),
    FAULT_OF(STATES, DSR_ERR_NULL, "row 1: score_state is null", SET(rows[1].score_state.buffer, 0)),
    FAULT_OF(STATES, DSR_ERR_DTYPE, "row 1: score_state must be f32, got u8",
             SET(rows[1].score_state.dtype, DSR_DTYPE_U8)),
    FAULT_OF(STATES, DSR_ERR_SIZE, "row 1: score_state holds 100 bytes, needs 8192",
             SET(rows[1].score_state.byte_length, 100)),
    FAULT_OF(STATES, DSR_ERR_RANGE, "row 1: score_state", SET(rows[1].score_state.byte_offset, POOL_BYTES)),
    FAULT_OF(STATES, DSR_ERR_OVERLAP,
             "row 1: states of two rows overlap: kv_state of 8192 bytes meets kv_state of row 0",
             COPY(rows[1].kv_state, rows[0].kv_state)),
    FAULT_OF(STATES, DSR_ERR_OVERLAP,
             "row 1: states of two rows overlap: score_state of 8192 bytes meets score_state of row 0",
             COPY(rows[1].score_state, rows[0].score_state)),
    FAULT_OF(STATES, DSR_ERR_OVERLAP,
             "row 2: states of two rows overlap: score_state of 8192 bytes meets kv_state of row 2",
             COPY(rows[2].score_state, rows[2].kv_state)),
    FAULT_OF(STATES, DSR_ERR_OVERLAP,
             "row 0: states of two rows overlap: score_state of 8260 bytes meets kv_state of row 1",
             ADD(rows[0].score_state.byte_length, 68)),
    FAULT_OF(TOKENS, DSR_ERR_OVERFLOW, "row 1: token_row + n_tokens overflows", SET(rows[1].token_row, UINT64_MAX)),
    FAULT_OF(OUTPUTS, DSR_ERR_OVERFLOW, "row 1: output_row overflows", SET(rows[1].output_row, UINT64_MAX)),
    FAULT_OF(OUTPUTS, DSR_ERR_OVERLAP,
             "row 2: outputs of two rows overlap: output rows [1, 2) and [1, 2) of row 1, needs disjoint ones",
             SET(rows[2].output_row, 1)),

    FAULT_OF(TOKENS, DSR_ERR_OVERFLOW, "kv: shape product overflows", SET(rows[1].token_row, UINT64_MAX / 16)),
    FAULT(DSR_ERR_NULL, "kv is null", SET(desc.kv.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "kv must be f32, got bf16", SET(desc.kv.dtype, DSR_DTYPE_BF16), SET(desc.kv.byte_length, 0)),
    FAULT_OF(TOKENS, DSR_ERR_SIZE, "row 2: kv holds 6143 bytes, needs 6144", ADD(desc.kv.byte_length, -1)),
    FAULT_OF(TOKENS, DSR_ERR_SIZE, "row 2: kv holds 6144 bytes, needs 7168", SET(rows[2].token_row, 4)),
    FAULT(DSR_ERR_ALIGNMENT, "kv", ADD(desc.kv.byte_offset, 2)),
    FAULT(DSR_ERR_NULL, "score is null", SET(desc.score.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "score must be f32, got i32", SET(desc.score.dtype, DSR_DTYPE_I32)),
    FAULT(DSR_ERR_SIZE, "row 2: score holds 6143 bytes, needs 6144", ADD(desc.score.byte_length, -1)),
    FAULT(DSR_ERR_NULL, "ape is null", SET(desc.ape.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "ape must be f32, got f16", SET(desc.ape.dtype, DSR_DTYPE_F16)),
    FAULT(DSR_ERR_SIZE, "ape holds 4095 bytes, needs 4096", ADD(desc.ape.byte_length, -1)),
    FAULT(DSR_ERR_NULL, "norm is null", SET(desc.norm.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "norm must be f32, got bf16", SET(desc.norm.dtype, DSR_DTYPE_BF16)),
    FAULT(DSR_ERR_SIZE, "norm holds 511 bytes, needs 512", ADD(desc.norm.byte_length, -1)),
    FAULT_OF(OUTPUTS, DSR_ERR_OVERFLOW, "output: shape product overflows", SET(rows[1].output_row, UINT64_MAX / 64)),
    FAULT(DSR_ERR_NULL, "output is null", SET(desc.output.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "output must be bf16, got f32", SET(desc.output.dtype, DSR_DTYPE_F32)),
    FAULT_OF(OUTPUTS, DSR_ERR_SIZE, "row 0: output holds 767 bytes, needs 768", ADD(desc.output.byte_length, -1)),
    FAULT_OF(OUTPUTS, DSR_ERR_SIZE, "row 0: output holds 768 bytes, needs 1024", SET(rows[0].output_row, 3)),
    FAULT(DSR_ERR_ALIGNMENT, "output", ADD(desc.output.byte_offset, 1)),

    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "row 0: output overlaps kv of row 2",
             COPY(desc.kv.byte_offset, desc.output.byte_offset), ADD(desc.kv.byte_offset, -5120)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "row 1: output overlaps norm",
             COPY(desc.norm.byte_offset, desc.output.byte_offset), ADD(desc.norm.byte_offset, 256 - 2 * 256 + 4)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "row 0: kv_state overlaps score of row 0",
             COPY(desc.score.byte_offset, rows[0].kv_state.byte_offset)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "row 2: score_state overlaps ape",
             COPY(desc.ape.byte_offset, rows[2].score_state.byte_offset)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "row 1: kv_state overlaps output of row 0",
             COPY(desc.output.byte_offset, rows[1].kv_state.byte_offset)),
};

static void test_faults(void **state)
{
    api_run_faults(*state, &compressor, faults, N_FAULTS(faults));
}

static void test_only_one_row_may_start(void **state)
{
    api_fixture *f = *state;
    compressor_call call;
    api_init_call(f, &compressor, &call);
    call.rows[0].start_pos = 0;
    call.desc.n_rows = 1;
    api_expect_valid(f, &compressor, &call);
    call.desc.n_rows = 2;
    assert_int_equal(dsr_encode_compressor(f->encoder, &call.desc), DSR_ERR_POSITION);
    api_assert_text(
        f, "compressor: row 0: position must be in 1..=4294967294, got 0 (a request starts at 0 in the one-row "
           "form)");
    call.rows[0].start_pos = UINT32_MAX - 1;
    api_expect_valid(f, &compressor, &call);
    call.desc.n_rows = 1;
    call.rows[0].start_pos = UINT32_MAX;
    assert_int_equal(dsr_encode_compressor(f->encoder, &call.desc), DSR_ERR_POSITION);
    api_assert_text(f, "compressor: row 0: position must be in 0..=4294967294, got 4294967295");
}

static void test_supported_shapes(void **state)
{
    static const uint32_t ratios[] = {0, 1, 2, 4, 8, 64, 128, 256}, dims[] = {0, 64, 128, 256, 512, 1024};
    api_fixture *f = *state;
    compressor_call call;
    for (size_t i = 0; i < sizeof(ratios) / sizeof(ratios[0]); i++) {
        for (size_t j = 0; j < sizeof(dims) / sizeof(dims[0]); j++) {
            const uint64_t n_elements = dsr_compressor_state_elements(ratios[i], dims[j]);
            api_init_call(f, &compressor, &call);
            call.desc.n_rows = 1;
            call.desc.ratio = ratios[i];
            call.desc.dim = dims[j];
            call.desc.kv = call.desc.score = call.desc.ape = call.desc.norm = api_huge_view(f, DSR_DTYPE_F32);
            call.desc.output = api_view(f, DSR_DTYPE_BF16, 4 * 512);
            call.rows[0].kv_state = api_view(f, DSR_DTYPE_F32, 65536);
            call.rows[0].score_state = api_view(f, DSR_DTYPE_F32, 65536);
            assert_int_equal(dsr_encode_compressor(f->encoder, &call.desc),
                             n_elements ? DSR_OK : DSR_ERR_UNSUPPORTED_SHAPE);
        }
    }
    assert_int_equal(dsr_compressor_state_elements(4, 128), 2048);
    assert_int_equal(dsr_compressor_state_elements(4, 512), 8192);
    assert_int_equal(dsr_compressor_state_elements(128, 512), 65536);
    assert_int_equal(dsr_compressor_state_elements(128, 128), 0);
}

static void test_emitted(void **state)
{
    (void)state;
    assert_int_equal(dsr_compressor_emitted(4, 0, 3), 0);
    assert_int_equal(dsr_compressor_emitted(4, 3, 1), 1);
    assert_int_equal(dsr_compressor_emitted(4, 2, 7), 2);
    assert_int_equal(dsr_compressor_emitted(128, 0, 256), 2);
    assert_int_equal(dsr_compressor_emitted(4, UINT32_MAX - 4, 4), 1);
    assert_int_equal(dsr_compressor_emitted(4, UINT32_MAX, UINT32_MAX), 1073741824);
    assert_int_equal(dsr_compressor_emitted(0, 1, 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_faults, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_only_one_row_may_start, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_supported_shapes, api_setup, api_teardown),
        cmocka_unit_test(test_emitted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
