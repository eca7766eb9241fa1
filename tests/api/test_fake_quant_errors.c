/* Errors of the fake quantisation call. */
#include "api_fixture.h"

typedef struct fake_quant_call {
    dsr_fake_quant_desc desc;
} fake_quant_call;
#define CALL fake_quant_call

enum { N_VECTORS = 5, DIM = 512, VECTOR_BYTES = 2 * DIM };

static void init(void *memory, api_fixture *f)
{
    fake_quant_call *call = memory;
    call->desc = (dsr_fake_quant_desc)DSR_FAKE_QUANT_DESC_INIT;
    call->desc.kind = DSR_QUANT_FP8_BLOCK64;
    call->desc.n_vectors = N_VECTORS;
    call->desc.dim = DIM;
    call->desc.input = api_view(f, DSR_DTYPE_BF16, N_VECTORS * DIM);
    call->desc.output = api_view(f, DSR_DTYPE_BF16, N_VECTORS * DIM);
}

static dsr_status encode(dsr_encoder *encoder, const void *call)
{
    return dsr_encode_fake_quant(encoder, call);
}

static const api_call fake_quant = {sizeof(fake_quant_call), init, encode, "fake-quant: "};

enum { SIZES = 1, PLACES = 2, DIMS = 4 };

static const api_fault faults[] = {
    FAULT(DSR_ERR_STRUCT_SIZE, "struct_size must be", SET(desc.struct_size, 0)),
    FAULT(DSR_ERR_ENUM, "kind must be 0 or 1, got 2", SET(desc.kind, 2)),
    FAULT(DSR_ERR_ENUM, "kind must be 0 or 1, got -1", SET(desc.kind, -1)),
    FAULT_OF(DIMS, DSR_ERR_UNSUPPORTED_SHAPE, "dim must be 128 for Hadamard and FP4, got 512",
             SET(desc.kind, DSR_QUANT_HADAMARD_FP4_BLOCK32)),
    FAULT_OF(DIMS, DSR_ERR_UNSUPPORTED_SHAPE, "dim must be a multiple of 64 in 128..=512 for FP8, got 0",
             SET(desc.dim, 0)),
    FAULT_OF(DIMS, DSR_ERR_UNSUPPORTED_SHAPE, "dim must be a multiple of 64 in 128..=512 for FP8, got 64",
             SET(desc.dim, 64)),
    FAULT_OF(DIMS, DSR_ERR_UNSUPPORTED_SHAPE, "dim must be a multiple of 64 in 128..=512 for FP8, got 160",
             SET(desc.dim, 160)),
    FAULT_OF(DIMS, DSR_ERR_UNSUPPORTED_SHAPE, "dim must be a multiple of 64 in 128..=512 for FP8, got 576",
             SET(desc.dim, 576)),
    FAULT(DSR_ERR_ENUM, "floor must be 0 or 1, got 2", SET(desc.floor, 2)),
    FAULT(DSR_ERR_VALUE, "n_vectors must be nonzero", SET(desc.n_vectors, 0)),
    FAULT(DSR_ERR_OVERFLOW, "n_vectors exceeds u32: got 4294967296", SET(desc.n_vectors, (uint64_t)1 << 32)),
    FAULT(DSR_ERR_NULL, "input is null", SET(desc.input.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "input must be bf16, got f32", SET(desc.input.dtype, DSR_DTYPE_F32),
          SET(desc.input.byte_length, 0)),
    FAULT_OF(SIZES, DSR_ERR_SIZE, "input holds 5119 bytes, needs 5120", ADD(desc.input.byte_length, -1)),
    FAULT_OF(SIZES, DSR_ERR_SIZE, "input holds 5120 bytes, needs 6144", SET(desc.n_vectors, 6)),
    FAULT(DSR_ERR_CONTEXT_MISMATCH, "input", FOREIGN(desc.input.buffer)),
    FAULT(DSR_ERR_RANGE, "input", SET(desc.input.byte_offset, POOL_BYTES)),
    FAULT(DSR_ERR_ALIGNMENT, "input", ADD(desc.input.byte_offset, 1)),
    FAULT(DSR_ERR_NULL, "output is null", SET(desc.output.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "output must be bf16, got u8", SET(desc.output.dtype, DSR_DTYPE_U8)),
    FAULT(DSR_ERR_SIZE, "output holds 5119 bytes, needs 5120", ADD(desc.output.byte_length, -1)),
    FAULT(DSR_ERR_ALIGNMENT, "output", ADD(desc.output.byte_offset, 1)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "output overlaps input", COPY(desc.output.byte_offset, desc.input.byte_offset),
             ADD(desc.output.byte_offset, 2)),
};

static void test_faults(void **state)
{
    api_run_faults(*state, &fake_quant, faults, N_FAULTS(faults));
}

static void test_in_place(void **state)
{
    api_fixture *f = *state;
    fake_quant_call call;
    api_init_call(f, &fake_quant, &call);
    call.desc.output = call.desc.input;
    api_expect_valid(f, &fake_quant, &call);
    call.desc.dim = 128;
    api_expect_valid(f, &fake_quant, &call);
    call.desc.kind = DSR_QUANT_HADAMARD_FP4_BLOCK32;
    api_expect_valid(f, &fake_quant, &call);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_faults, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_in_place, api_setup, api_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
