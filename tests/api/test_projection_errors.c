/* Errors of the projection calls. */
#include "api_fixture.h"

enum { N_ROWS = 3, N_GROUPS = 2, N_INPUTS = 144, N_OUTPUTS = 100 };

typedef struct projection_call {
    dsr_projection_desc desc;
} projection_call;
#define CALL projection_call

/* FP8 weights: 2 blocks of outputs by 2 of inputs. */
static void init(void *memory, api_fixture *f)
{
    projection_call *call = memory;
    call->desc = (dsr_projection_desc)DSR_PROJECTION_DESC_INIT;
    call->desc.n_rows = N_ROWS;
    call->desc.n_groups = N_GROUPS;
    call->desc.n_inputs = N_INPUTS;
    call->desc.n_outputs = N_OUTPUTS;
    call->desc.format = DSR_WEIGHT_FP8;
    call->desc.input = api_view(f, DSR_DTYPE_BF16, N_ROWS * N_GROUPS * N_INPUTS);
    call->desc.weight = api_view(f, DSR_DTYPE_U8, N_GROUPS * N_OUTPUTS * N_INPUTS);
    call->desc.scales = api_view(f, DSR_DTYPE_F32, 4);
    call->desc.output = api_view(f, DSR_DTYPE_F32, N_ROWS * N_GROUPS * N_OUTPUTS);
}

static dsr_status encode(dsr_encoder *encoder, const void *call)
{
    return dsr_encode_projection(encoder, call);
}

static const api_call projection = {sizeof(projection_call), init, encode, "projection: "};

enum { SHAPE = 1, FORMAT = 2, PLACES = 4 };

static const api_fault faults[] = {
    FAULT(DSR_ERR_STRUCT_SIZE, "struct_size must be", SET(desc.struct_size, 0)),
    FAULT(DSR_ERR_ROW_COUNT, "rows must be 1..=64, got 0", SET(desc.n_rows, 0)),
    FAULT(DSR_ERR_ROW_COUNT, "rows must be 1..=64, got 65", SET(desc.n_rows, 65)),
    FAULT_OF(FORMAT, DSR_ERR_ENUM, "format must be in 0..=3, got 4", SET(desc.format, 4)),
    FAULT_OF(FORMAT, DSR_ERR_ENUM, "format must be in 0..=3, got -1", SET(desc.format, -1)),
    FAULT_OF(SHAPE, DSR_ERR_UNSUPPORTED_SHAPE, "n_inputs must be a multiple of 16 up to 65536, got 0",
             SET(desc.n_inputs, 0)),
    FAULT_OF(SHAPE, DSR_ERR_UNSUPPORTED_SHAPE, "n_inputs must be a multiple of 16 up to 65536, got 8",
             SET(desc.n_inputs, 8)),
    FAULT_OF(SHAPE, DSR_ERR_UNSUPPORTED_SHAPE, "n_inputs must be a multiple of 16 up to 65536, got 65552",
             SET(desc.n_inputs, 65552)),
    FAULT_OF(SHAPE, DSR_ERR_UNSUPPORTED_SHAPE, "n_outputs must be in 1..=1048576, got 0", SET(desc.n_outputs, 0)),
    FAULT_OF(SHAPE, DSR_ERR_UNSUPPORTED_SHAPE, "n_outputs must be in 1..=1048576, got 1048577",
             SET(desc.n_outputs, 1048577)),
    FAULT_OF(SHAPE, DSR_ERR_OVERFLOW, "n_groups * n_outputs exceeds u32", SET(desc.n_groups, UINT32_MAX)),
    FAULT(DSR_ERR_VALUE, "output_scale must be finite, got inf", SET(desc.output_scale, FLOAT_INFINITY_BITS)),
    FAULT(DSR_ERR_VALUE, "output_scale must be finite, got nan", SET(desc.output_scale, FLOAT_NAN_BITS)),
    FAULT(DSR_ERR_NULL, "input is null", SET(desc.input.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "input must be bf16, got f32", SET(desc.input.dtype, DSR_DTYPE_F32),
          SET(desc.input.byte_length, 0)),
    FAULT_OF(SHAPE, DSR_ERR_SIZE, "input holds 1727 bytes, needs 1728", ADD(desc.input.byte_length, -1)),
    FAULT(DSR_ERR_CONTEXT_MISMATCH, "input", FOREIGN(desc.input.buffer)),
    FAULT(DSR_ERR_ALIGNMENT, "input", ADD(desc.input.byte_offset, 1)),
    FAULT_OF(FORMAT, DSR_ERR_DTYPE, "weight must be bf16, got u8", SET(desc.format, DSR_WEIGHT_BF16)),
    FAULT_OF(FORMAT, DSR_ERR_DTYPE, "weight must be u32, got u8", SET(desc.format, DSR_WEIGHT_FP8_PACKED)),
    FAULT_OF(FORMAT, DSR_ERR_NULL, "weight is null", SET(desc.weight.buffer, 0)),
    FAULT_OF(FORMAT, DSR_ERR_DTYPE, "weight must be u8, got u32", SET(desc.weight.dtype, DSR_DTYPE_U32)),
    FAULT_OF(SHAPE, DSR_ERR_SIZE, "weight holds 28799 bytes, needs 28800", ADD(desc.weight.byte_length, -1)),
    FAULT_OF(FORMAT, DSR_ERR_NULL, "scales is null", SET(desc.scales.buffer, 0)),
    FAULT_OF(FORMAT, DSR_ERR_DTYPE, "scales must be f32 or u8, got bf16", SET(desc.scales.dtype, DSR_DTYPE_BF16),
             SET(desc.scales.byte_length, 0)),
    FAULT_OF(SHAPE, DSR_ERR_SIZE, "scales holds 15 bytes, needs 16", ADD(desc.scales.byte_length, -1)),
    FAULT(DSR_ERR_ALIGNMENT, "scales", ADD(desc.scales.byte_offset, 2)),
    FAULT(DSR_ERR_NULL, "output is null", SET(desc.output.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "output must be f32 or bf16, got u8", SET(desc.output.dtype, DSR_DTYPE_U8)),
    FAULT(DSR_ERR_SIZE, "output holds 2399 bytes, needs 2400", ADD(desc.output.byte_length, -1)),
    FAULT(DSR_ERR_ALIGNMENT, "output", ADD(desc.output.byte_offset, 2)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "output overlaps input", COPY(desc.output.byte_offset, desc.input.byte_offset)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "output overlaps weight", COPY(desc.weight.byte_offset, desc.output.byte_offset)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "output overlaps scales", COPY(desc.scales.byte_offset, desc.output.byte_offset)),
};

static void test_faults(void **state)
{
    api_run_faults(*state, &projection, faults, N_FAULTS(faults));
}

static void test_ranges(void **state)
{
    api_fixture *f = *state;
    projection_call call;
    api_ranges reads = {0}, writes = {0};
    dsr_command_info info;
    api_init_call(f, &projection, &call);
    api_expect_valid(f, &projection, &call);
    api_expect_range(&reads, call.desc.input, 0, N_ROWS * N_GROUPS * N_INPUTS * 2);
    api_expect_range(&reads, call.desc.weight, 0, N_GROUPS * N_OUTPUTS * N_INPUTS);
    api_expect_range(&reads, call.desc.scales, 0, 4 * 4);
    api_expect_range(&writes, call.desc.output, 0, N_ROWS * N_GROUPS * N_OUTPUTS * 4);
    info = api_last_command(f);
    api_assert_ranges(info.reads, info.n_reads, &reads);
    api_assert_ranges(info.writes, info.n_writes, &writes);
}

static void test_pack_errors(void **state)
{
    api_fixture *f = *state;
    static const uint16_t data[16];
    static uint32_t packed[512];
    dsr_projection_weights weights = DSR_PROJECTION_WEIGHTS_INIT;
    uint64_t size_bytes = 77;
    weights.n_inputs = 16;
    weights.n_outputs = 1;
    assert_int_equal(dsr_projection_packed_bytes(NULL, &weights, &size_bytes), DSR_ERR_NULL);
    assert_int_equal(dsr_projection_packed_bytes(f->context, NULL, &size_bytes), DSR_ERR_NULL);
    assert_int_equal(dsr_projection_packed_bytes(f->context, &weights, NULL), DSR_ERR_NULL);
    weights.format = DSR_WEIGHT_FP8_PACKED;
    assert_int_equal(dsr_projection_packed_bytes(f->context, &weights, &size_bytes), DSR_ERR_ENUM);
    weights.format = DSR_WEIGHT_BF16;
    weights.n_inputs = 15;
    assert_int_equal(dsr_projection_packed_bytes(f->context, &weights, &size_bytes), DSR_ERR_UNSUPPORTED_SHAPE);
    weights.n_inputs = 16;
    weights.struct_size = 0;
    assert_int_equal(dsr_projection_packed_bytes(f->context, &weights, &size_bytes), DSR_ERR_STRUCT_SIZE);
    weights.struct_size = sizeof(weights);
    assert_int_equal(size_bytes, 77);
    assert_int_equal(dsr_projection_packed_bytes(f->context, &weights, &size_bytes), DSR_OK);
    assert_true(size_bytes > 0 && size_bytes <= sizeof(packed) - 4);

    assert_int_equal(dsr_projection_pack(f->context, &weights, packed, size_bytes), DSR_ERR_NULL);
    api_assert_text(f, "data is null");
    weights.data = data;
    assert_int_equal(dsr_projection_pack(f->context, &weights, NULL, size_bytes), DSR_ERR_NULL);
    assert_int_equal(dsr_projection_pack(f->context, &weights, packed, size_bytes - 1), DSR_ERR_SIZE);
    assert_int_equal(dsr_projection_pack(f->context, &weights, (uint8_t *)packed + 1, size_bytes), DSR_ERR_ALIGNMENT);
    assert_int_equal(dsr_projection_pack(f->context, &weights, packed, size_bytes), DSR_OK);
    weights.format = DSR_WEIGHT_FP8;
    assert_int_equal(dsr_projection_pack(f->context, &weights, packed, sizeof(packed)), DSR_ERR_NULL);
    api_assert_text(f, "scales is null");
    weights.scales_dtype = DSR_DTYPE_BF16;
    assert_int_equal(dsr_projection_pack(f->context, &weights, packed, sizeof(packed)), DSR_ERR_DTYPE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_faults, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_ranges, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_pack_errors, api_setup, api_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
