/* Errors of the RMS norm call. */
#include "api_fixture.h"

typedef struct rms_norm_call {
    dsr_rms_norm_desc desc;
} rms_norm_call;
#define CALL rms_norm_call

enum { N_VECTORS = 5, DIM = 48, VECTOR_BYTES = 2 * DIM };

static void init(void *memory, api_fixture *f)
{
    rms_norm_call *call = memory;
    call->desc = (dsr_rms_norm_desc)DSR_RMS_NORM_DESC_INIT;
    call->desc.dim = DIM;
    call->desc.n_vectors = N_VECTORS;
    call->desc.epsilon = 1e-6f;
    call->desc.input = api_view(f, DSR_DTYPE_BF16, N_VECTORS * DIM);
    call->desc.weight = api_view(f, DSR_DTYPE_F32, DIM);
    call->desc.output = api_view(f, DSR_DTYPE_BF16, N_VECTORS * DIM);
}

static dsr_status encode(dsr_encoder *encoder, const void *call)
{
    return dsr_encode_rms_norm(encoder, call);
}

static const api_call rms_norm = {sizeof(rms_norm_call), init, encode, "rms-norm: "};

enum { SIZES = 1, PLACES = 2 };

static const api_fault faults[] = {
    FAULT(DSR_ERR_STRUCT_SIZE, "struct_size must be", SET(desc.struct_size, 0)),
    FAULT(DSR_ERR_UNSUPPORTED_SHAPE, "dim must be a multiple of 16 up to 16384, got 0", SET(desc.dim, 0)),
    FAULT(DSR_ERR_UNSUPPORTED_SHAPE, "dim must be a multiple of 16 up to 16384, got 40", SET(desc.dim, 40)),
    FAULT(DSR_ERR_UNSUPPORTED_SHAPE, "dim must be a multiple of 16 up to 16384, got 16400", SET(desc.dim, 16400)),
    FAULT(DSR_ERR_VALUE, "n_vectors must be nonzero", SET(desc.n_vectors, 0)),
    FAULT(DSR_ERR_OVERFLOW, "n_vectors exceeds u32: got 4294967296", SET(desc.n_vectors, (uint64_t)1 << 32)),
    FAULT(DSR_ERR_VALUE, "epsilon must be finite and positive, got 0", SET(desc.epsilon, 0)),
    FAULT(DSR_ERR_VALUE, "epsilon must be finite and positive, got nan", SET(desc.epsilon, FLOAT_NAN_BITS)),
    FAULT(DSR_ERR_NULL, "input is null", SET(desc.input.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "input must be f32 or bf16, got u16", SET(desc.input.dtype, DSR_DTYPE_U16),
          SET(desc.input.byte_length, 0)),
    FAULT_OF(SIZES, DSR_ERR_SIZE, "input holds 479 bytes, needs 480", ADD(desc.input.byte_length, -1)),
    FAULT_OF(SIZES, DSR_ERR_SIZE, "input holds 480 bytes, needs 960", SET(desc.input.dtype, DSR_DTYPE_F32)),
    FAULT_OF(SIZES, DSR_ERR_SIZE, "input holds 480 bytes, needs 576", SET(desc.n_vectors, 6)),
    FAULT(DSR_ERR_CONTEXT_MISMATCH, "input", FOREIGN(desc.input.buffer)),
    FAULT(DSR_ERR_ALIGNMENT, "input", ADD(desc.input.byte_offset, 1)),
    FAULT(DSR_ERR_DTYPE, "weight must be f32, got bf16", SET(desc.weight.dtype, DSR_DTYPE_BF16)),
    FAULT(DSR_ERR_SIZE, "weight holds 191 bytes, needs 192", ADD(desc.weight.byte_length, -1)),
    FAULT(DSR_ERR_ALIGNMENT, "weight", ADD(desc.weight.byte_offset, 2)),
    FAULT(DSR_ERR_NULL, "output is null", SET(desc.output.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "output must be f32 or bf16, got u8", SET(desc.output.dtype, DSR_DTYPE_U8)),
    FAULT(DSR_ERR_SIZE, "output holds 479 bytes, needs 480", ADD(desc.output.byte_length, -1)),
    FAULT(DSR_ERR_ALIGNMENT, "output", ADD(desc.output.byte_offset, 1)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "output overlaps weight", COPY(desc.weight.byte_offset, desc.output.byte_offset),
             ADD(desc.weight.byte_offset, -4)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "output overlaps input", COPY(desc.output.byte_offset, desc.input.byte_offset),
             ADD(desc.output.byte_offset, VECTOR_BYTES)),
};

static void test_faults(void **state)
{
    api_run_faults(*state, &rms_norm, faults, N_FAULTS(faults));
}

static void test_in_place(void **state)
{
    api_fixture *f = *state;
    rms_norm_call call;
    api_init_call(f, &rms_norm, &call);
    call.desc.output = call.desc.input;
    call.desc.weight.buffer = NULL;
    api_expect_valid(f, &rms_norm, &call);
    call.desc.dim = 16384;
    call.desc.input = call.desc.output = api_view(f, DSR_DTYPE_BF16, 16384 * N_VECTORS);
    api_expect_valid(f, &rms_norm, &call);
    api_init_call(f, &rms_norm, &call);
    /* The same address with another dtype is no place to stay in. */
    call.desc.output = api_view(f, DSR_DTYPE_F32, N_VECTORS * DIM);
    call.desc.input.byte_offset = call.desc.output.byte_offset;
    assert_int_equal(dsr_encode_rms_norm(f->encoder, &call.desc), DSR_ERR_OVERLAP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_faults, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_in_place, api_setup, api_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
