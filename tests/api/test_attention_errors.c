/* Errors of the two attention calls. */
#include "api_fixture.h"

enum { N_ROWS = 3, KV_LEN = 10, N_HEADS = 64 };

typedef struct attention_call {
    dsr_attention_desc desc;
    dsr_attention_row rows[N_ROWS];
} attention_call;
#define CALL attention_call

/* Rows of widths 4, 5 and 6 on query rows 2, 0 and 1. */
static void init(void *memory, api_fixture *f)
{
    attention_call *call = memory;
    call->desc = (dsr_attention_desc)DSR_ATTENTION_DESC_INIT;
    call->desc.n_rows = N_ROWS;
    call->desc.rows = call->rows;
    call->desc.n_heads = N_HEADS;
    call->desc.scale = DSR_ATTENTION_SCALE;
    for (uint32_t r = 0; r < N_ROWS; r++) {
        call->rows[r].kv = api_view(f, DSR_DTYPE_BF16, KV_LEN * DSR_HEAD_DIM);
        call->rows[r].kv_len = KV_LEN;
        call->rows[r].q_row = (r + 2) % N_ROWS;
        call->rows[r].index_offset = r * 8;
        call->rows[r].width = 4 + r;
    }
    call->desc.q = api_view(f, DSR_DTYPE_BF16, N_ROWS * N_HEADS * DSR_HEAD_DIM);
    call->desc.output = api_view(f, DSR_DTYPE_BF16, N_ROWS * N_HEADS * DSR_HEAD_DIM);
    call->desc.indices = api_view(f, DSR_DTYPE_I32, 2 * 8 + 6);
    call->desc.sinks = api_view(f, DSR_DTYPE_F32, N_HEADS);
    call->desc.workspace = api_view(f, DSR_DTYPE_U8, 1024 * 1024);
}

static dsr_status encode_sparse(dsr_encoder *encoder, const void *call)
{
    return dsr_encode_sparse_attention(encoder, call);
}

static dsr_status encode_flash(dsr_encoder *encoder, const void *call)
{
    return dsr_encode_flash_attention(encoder, call);
}

static const api_call sparse = {sizeof(attention_call), init, encode_sparse, "sparse-attention: "};
static const api_call flash = {sizeof(attention_call), init, encode_flash, "flash-attention: "};

/* Groups: faults that need a valid field which another fault of the group spoils. */
enum { QUERY_ROWS = 1, LISTS = 2, PLACES = 4, KV = 8 };

static const api_fault faults[] = {
    FAULT(DSR_ERR_STRUCT_SIZE, "struct_size must be", SET(desc.struct_size, 0)),
    FAULT(DSR_ERR_STRUCT_SIZE, "struct_size must be", ADD(desc.struct_size, 8)),
    FAULT(DSR_ERR_ROW_COUNT, "rows must be 1..=64, got 0", SET(desc.n_rows, 0)),
    FAULT(DSR_ERR_ROW_COUNT, "rows must be 1..=64, got 65", SET(desc.n_rows, 65)),
    FAULT(DSR_ERR_NULL, "rows is null", SET(desc.rows, 0)),
    FAULT(DSR_ERR_UNSUPPORTED_SHAPE, "n_heads must be 64 or 128, got 0", SET(desc.n_heads, 0)),
    FAULT(DSR_ERR_UNSUPPORTED_SHAPE, "n_heads must be 64 or 128, got 96", SET(desc.n_heads, 96)),
    FAULT(DSR_ERR_VALUE, "scale must be finite and positive, got 0", SET(desc.scale, 0)),
    FAULT(DSR_ERR_VALUE, "scale must be finite and positive, got -1", SET(desc.scale, FLOAT_MINUS_ONE_BITS)),
    FAULT(DSR_ERR_VALUE, "scale must be finite and positive, got nan", SET(desc.scale, FLOAT_NAN_BITS)),
    FAULT(DSR_ERR_VALUE, "scale must be finite and positive, got inf", SET(desc.scale, FLOAT_INFINITY_BITS)),
    FAULT(DSR_ERR_VALUE, "row 1: kv_len and width must be nonzero, got kv_len 0", SET(rows[1].kv_len, 0)),
    FAULT(DSR_ERR_VALUE, "row 1: kv_len and width must be nonzero", SET(rows[1].width, 0)),
    FAULT(DSR_ERR_STRIDE, "row 1: kv_row_stride must be at least 512 elements, got 511",
          SET(rows[1].kv_row_stride, 511)),
    FAULT(DSR_ERR_OVERFLOW, "row 1: kv: shape product overflows", SET(rows[1].kv_row_stride, UINT64_MAX / 4)),
    FAULT(DSR_ERR_NULL, "row 1: kv is null", SET(rows[1].kv.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "row 1: kv must be bf16, got f16", SET(rows[1].kv.dtype, DSR_DTYPE_F16)),
    FAULT(DSR_ERR_DTYPE, "row 1: kv must be bf16, got ?", SET(rows[1].kv.dtype, 99)),
    FAULT(DSR_ERR_SIZE, "row 1: kv holds 10238 bytes, needs 102", ADD(rows[1].kv.byte_length, -2)),
    FAULT_OF(KV, DSR_ERR_SIZE, "row 1: kv holds 10240 bytes, needs 10258", SET(rows[1].kv_row_stride, 513)),
    FAULT(DSR_ERR_CONTEXT_MISMATCH, "row 1: kv", FOREIGN(rows[1].kv.buffer)),
    FAULT(DSR_ERR_RANGE, "row 1: kv", SET(rows[1].kv.byte_offset, POOL_BYTES - 2)),
    FAULT(DSR_ERR_RANGE, "row 1: kv", SET(rows[1].kv.byte_offset, UINT64_MAX - 1)),
    FAULT(DSR_ERR_ALIGNMENT, "row 1: kv", ADD(rows[1].kv.byte_offset, 1)),
    FAULT_OF(QUERY_ROWS, DSR_ERR_DUPLICATE_ROW, "row 1: q_row 2 is used twice, first by row 0", SET(rows[1].q_row, 2)),
    FAULT_OF(QUERY_ROWS, DSR_ERR_DUPLICATE_ROW, "row 1: q_row 2 is used twice, first by row 0", SET(rows[1].q_row, 1),
             SET(rows[1].n_queries, 2)),
    FAULT_OF(QUERY_ROWS, DSR_ERR_DUPLICATE_ROW, "row 1: q_row 4 is used twice, first by row 0",
             SET(rows[0].n_queries, 3), SET(rows[1].q_row, 4)),
    FAULT_OF(KV, DSR_ERR_OVERFLOW, "row 1: kv_len exceeds u32: got 4294967296", HUGE_VIEW(rows[1].kv),
             SET(rows[1].kv_len, (uint64_t)1 << 32)),
    FAULT(DSR_ERR_OVERFLOW, "row 1: width exceeds u32: got 4294967296", SET(rows[1].width, (uint64_t)1 << 32)),
    FAULT(DSR_ERR_OVERFLOW, "row 1: index_offset exceeds u32: got 4294967296",
          SET(rows[1].index_offset, (uint64_t)1 << 32)),
    FAULT_OF(QUERY_ROWS, DSR_ERR_OVERFLOW, "row 1: q_row exceeds u32: got 4294967296",
             SET(rows[1].q_row, (uint64_t)1 << 32)),
    FAULT_OF(QUERY_ROWS, DSR_ERR_OVERFLOW, "row 1: q_row exceeds u32: got 18446744073709551615",
             SET(rows[1].q_row, UINT64_MAX), SET(rows[1].n_queries, 4)),
    FAULT(DSR_ERR_VALUE, "row 2: kv_len and width must be nonzero", SET(rows[2].kv_len, 0)),
    FAULT_OF(QUERY_ROWS, DSR_ERR_DUPLICATE_ROW, "row 2: q_row 2 is used twice, first by row 0", SET(rows[2].q_row, 2)),
    FAULT(DSR_ERR_NULL, "q is null", SET(desc.q.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "q must be bf16, got f32", SET(desc.q.dtype, DSR_DTYPE_F32), SET(desc.q.byte_length, 100)),
    FAULT_OF(QUERY_ROWS, DSR_ERR_SIZE, "row 0: q holds 100 bytes, needs 196608", SET(desc.q.byte_length, 100)),
    FAULT_OF(QUERY_ROWS, DSR_ERR_SIZE, "row 1: q holds 196608 bytes, needs 262144", SET(rows[1].q_row, 3)),
    FAULT_OF(QUERY_ROWS, DSR_ERR_SIZE, "row 0: q holds 196608 bytes, needs 327680", SET(rows[0].n_queries, 3)),
    FAULT(DSR_ERR_CONTEXT_MISMATCH, "q", FOREIGN(desc.q.buffer)),
    FAULT(DSR_ERR_RANGE, "q", SET(desc.q.byte_offset, POOL_BYTES)),
    FAULT(DSR_ERR_ALIGNMENT, "q", ADD(desc.q.byte_offset, 1)),
    FAULT(DSR_ERR_NULL, "output is null", SET(desc.output.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "output must be bf16, got u16", SET(desc.output.dtype, DSR_DTYPE_U16),
          SET(desc.output.byte_length, 0)),
    FAULT_OF(QUERY_ROWS, DSR_ERR_SIZE, "row 0: output holds 196607 bytes, needs 196608",
             ADD(desc.output.byte_length, -1)),
    FAULT(DSR_ERR_RANGE, "output", SET(desc.output.byte_offset, POOL_BYTES)),
    FAULT(DSR_ERR_ALIGNMENT, "output", ADD(desc.output.byte_offset, 1)),
    FAULT_OF(QUERY_ROWS, DSR_ERR_OVERFLOW, "row 2: index_stride overflows", HUGE_VIEW(desc.q), HUGE_VIEW(desc.output),
             SET(rows[2].q_row, 3), SET(rows[2].n_queries, 2), SET(rows[2].index_stride, UINT64_MAX)),
    FAULT_OF(QUERY_ROWS, DSR_ERR_OVERFLOW, "row 2: index_stride overflows", HUGE_VIEW(desc.q), HUGE_VIEW(desc.output),
             SET(rows[2].q_row, 3), SET(rows[2].n_queries, 4), SET(rows[2].index_stride, (uint64_t)1 << 63)),
    FAULT_OF(QUERY_ROWS, DSR_ERR_OVERFLOW, "row 2: index_", HUGE_VIEW(desc.q), HUGE_VIEW(desc.output),
             SET(rows[2].q_row, 3), SET(rows[2].n_queries, 2), SET(rows[2].index_stride, UINT64_MAX - 16)),
    FAULT(DSR_ERR_NULL, "indices is null", SET(desc.indices.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "indices must be i32, got u32", SET(desc.indices.dtype, DSR_DTYPE_U32),
          SET(desc.indices.byte_length, 0)),
    FAULT_OF(LISTS, DSR_ERR_SIZE, "row 2: indices holds 87 bytes, needs 88", ADD(desc.indices.byte_length, -1)),
    FAULT_OF(LISTS, DSR_ERR_SIZE, "row 1: indices holds 88 bytes, needs 4020", SET(rows[1].index_offset, 1000)),
    FAULT(DSR_ERR_ALIGNMENT, "indices", ADD(desc.indices.byte_offset, 2)),
    FAULT(DSR_ERR_NULL, "sinks is null", SET(desc.sinks.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "sinks must be f32, got bf16", SET(desc.sinks.dtype, DSR_DTYPE_BF16),
          SET(desc.sinks.byte_length, 0)),
    FAULT(DSR_ERR_SIZE, "sinks holds 255 bytes, needs 256", ADD(desc.sinks.byte_length, -1)),
    FAULT(DSR_ERR_ALIGNMENT, "sinks", ADD(desc.sinks.byte_offset, 2)),
    FAULT_OF(LISTS, DSR_ERR_OVERFLOW, "row 2: number of slots of all queries exceeds u32",
             SET(rows[2].width, UINT32_MAX), HUGE_VIEW(desc.indices)),
    FAULT(DSR_ERR_NULL, "workspace is null", SET(desc.workspace.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "workspace must be u8, got f32", SET(desc.workspace.dtype, DSR_DTYPE_F32),
          SET(desc.workspace.byte_length, 0)),
    FAULT(DSR_ERR_SIZE, "workspace holds 1000 bytes, needs ", SET(desc.workspace.byte_length, 1000)),
    FAULT(DSR_ERR_RANGE, "workspace", SET(desc.workspace.byte_offset, POOL_BYTES - 1024)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "row 0: output overlaps q of row 0",
             COPY(desc.output.byte_offset, desc.q.byte_offset)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "row 0: output overlaps kv of row 1",
             COPY(rows[1].kv.byte_offset, desc.output.byte_offset), ADD(rows[1].kv.byte_offset, 2 * 65536)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "row 1: output overlaps sinks",
             COPY(desc.sinks.byte_offset, desc.output.byte_offset), ADD(desc.sinks.byte_offset, 65536 - 256)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "row 1: output overlaps indices of row 0",
             COPY(desc.indices.byte_offset, desc.output.byte_offset), ADD(desc.indices.byte_offset, 65536 - 16 * 4)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "workspace overlaps output of row 0",
             COPY(desc.workspace.byte_offset, desc.output.byte_offset)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "workspace overlaps kv of row 2",
             COPY(rows[2].kv.byte_offset, desc.workspace.byte_offset), ADD(rows[2].kv.byte_offset, 300)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "workspace overlaps q of row 0",
             COPY(desc.q.byte_offset, desc.workspace.byte_offset)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "workspace overlaps sinks",
             COPY(desc.sinks.byte_offset, desc.workspace.byte_offset)),
};

static void test_sparse_faults(void **state)
{
    api_run_faults(*state, &sparse, faults, N_FAULTS(faults));
}

static void test_flash_faults(void **state)
{
    api_run_faults(*state, &flash, faults, N_FAULTS(faults));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sparse_faults, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_flash_faults, api_setup, api_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
