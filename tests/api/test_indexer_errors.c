/* Errors of the indexer call. */
#include "api_fixture.h"

enum { N_ROWS = 3, KV_LEN = 16, N_HEADS = 32, TOP_K = 64 };

typedef struct indexer_call {
    dsr_indexer_desc desc;
    dsr_indexer_row rows[N_ROWS];
} indexer_call;
#define CALL indexer_call

/* Positions 55, 58 and 61 see 14 or 15 keys; query rows 2, 0 and 1; row 2 holds two queries. */
static void init(void *memory, api_fixture *f)
{
    indexer_call *call = memory;
    call->desc = (dsr_indexer_desc)DSR_INDEXER_DESC_INIT;
    call->desc.n_rows = N_ROWS;
    call->desc.rows = call->rows;
    call->desc.n_heads = N_HEADS;
    call->desc.top_k = TOP_K;
    for (uint32_t r = 0; r < N_ROWS; r++) {
        call->rows[r].keys = api_view(f, DSR_DTYPE_BF16, KV_LEN * DSR_INDEX_DIM);
        call->rows[r].kv_len = KV_LEN;
        call->rows[r].q_row = (r + 2) % N_ROWS;
        call->rows[r].output_offset = r * (TOP_K + 8);
        call->rows[r].scores_offset = r * KV_LEN;
        call->rows[r].start_pos = 55 + 3 * r;
        call->rows[r].offset = 128;
    }
    call->rows[2].n_queries = 2;
    call->desc.q = api_view(f, DSR_DTYPE_BF16, N_ROWS * N_HEADS * DSR_INDEX_DIM);
    call->desc.weights = api_view(f, DSR_DTYPE_F32, N_ROWS * N_HEADS);
    call->desc.scores = api_view(f, DSR_DTYPE_F32, (N_ROWS + 1) * KV_LEN);
    call->desc.workspace = api_view(f, DSR_DTYPE_U8, 512 * 1024);
    call->desc.output = api_view(f, DSR_DTYPE_I32, 2 * (TOP_K + 8) + 2 * TOP_K);
}

static dsr_status encode(dsr_encoder *encoder, const void *call)
{
    return dsr_encode_indexer(encoder, call);
}

static const api_call indexer = {sizeof(indexer_call), init, encode, "indexer: "};

/* Groups: faults that need a valid field which another fault of the group spoils. */
enum { KEYS = 1, LISTS = 2, QUERIES = 4, PLACES = 8, CAUSAL = 16, SCORES = 32 };

static const api_fault faults[] = {
    FAULT(DSR_ERR_STRUCT_SIZE, "struct_size must be", SET(desc.struct_size, 0)),
    FAULT(DSR_ERR_ROW_COUNT, "rows must be 1..=64, got 0", SET(desc.n_rows, 0)),
    FAULT(DSR_ERR_ROW_COUNT, "rows must be 1..=64, got 65", SET(desc.n_rows, 65)),
    FAULT(DSR_ERR_NULL, "rows is null", SET(desc.rows, 0)),
    FAULT(DSR_ERR_UNSUPPORTED_SHAPE, "n_heads must be 32, 64 or 128, got 16", SET(desc.n_heads, 16)),
    FAULT(DSR_ERR_UNSUPPORTED_SHAPE, "top_k must be a multiple of 32 up to 2048, got 8", SET(desc.top_k, 8)),
    FAULT(DSR_ERR_UNSUPPORTED_SHAPE, "top_k must be a multiple of 32 up to 2048, got 2080", SET(desc.top_k, 2080)),

    FAULT_OF(KEYS | CAUSAL, DSR_ERR_VALUE, "row 1: kv_len must be nonzero", SET(rows[1].kv_len, 0)),
    FAULT(DSR_ERR_STRIDE, "row 1: key_row_stride must be at least 128 elements, got 127",
          SET(rows[1].key_row_stride, 127)),
    FAULT(DSR_ERR_OVERFLOW, "row 1: keys: shape product overflows", SET(rows[1].key_row_stride, UINT64_MAX / 4)),
    FAULT(DSR_ERR_NULL, "row 1: keys is null", SET(rows[1].keys.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "row 1: keys must be bf16, got u16", SET(rows[1].keys.dtype, DSR_DTYPE_U16)),
    FAULT_OF(KEYS, DSR_ERR_SIZE, "row 1: keys holds 4095 bytes, needs 4096", ADD(rows[1].keys.byte_length, -1)),
    FAULT_OF(KEYS, DSR_ERR_SIZE, "row 1: keys holds 4096 bytes, needs 4126", SET(rows[1].key_row_stride, 129)),
    FAULT(DSR_ERR_CONTEXT_MISMATCH, "row 1: keys", FOREIGN(rows[1].keys.buffer)),
    FAULT(DSR_ERR_RANGE, "row 1: keys", SET(rows[1].keys.byte_offset, POOL_BYTES)),
    FAULT(DSR_ERR_ALIGNMENT, "row 1: keys", ADD(rows[1].keys.byte_offset, 1)),
    FAULT_OF(CAUSAL, DSR_ERR_POSITION, "row 1: position overflows: start_pos must be at most 4294967294",
             SET(rows[1].start_pos, UINT32_MAX)),
    FAULT_OF(CAUSAL, DSR_ERR_POSITION, "row 1: position overflows: start_pos must be at most 4294967291",
             SET(rows[1].start_pos, UINT32_MAX - 3), SET(rows[1].n_queries, 4)),
    FAULT_OF(CAUSAL | KEYS, DSR_ERR_KV_LEN, "row 1: kv_len 16 is shorter than 17 causal compressed entries",
             SET(rows[1].start_pos, 67)),
    FAULT_OF(CAUSAL | KEYS, DSR_ERR_KV_LEN, "row 1: kv_len 16 is shorter than 29 causal compressed entries",
             SET(rows[1].ratio, 2)),
    FAULT_OF(CAUSAL | KEYS, DSR_ERR_KV_LEN, "row 1: kv_len 16 is shorter than 17 causal compressed entries",
             SET(rows[1].start_pos, 66), SET(rows[1].n_queries, 2)),
    FAULT(DSR_ERR_VALUE, "row 1: offset must be nonnegative, got -2; -1 is reserved for the sentinel",
          SET(rows[1].offset, -2)),
    FAULT_OF(CAUSAL, DSR_ERR_OVERFLOW, "row 1: offset plus compressed index exceeds i32: offset 2147483634",
             SET(rows[1].offset, INT32_MAX - 13), SET(rows[1].start_pos, 59)),
    FAULT_OF(KEYS | SCORES | CAUSAL, DSR_ERR_OVERFLOW, "row 1: kv_len exceeds u32: got 4294967296",
             HUGE_VIEW(rows[1].keys), SET(rows[1].kv_len, (uint64_t)1 << 32)),
    FAULT_OF(QUERIES, DSR_ERR_OVERFLOW, "row 1: q_row exceeds u32: got 4294967296",
             SET(rows[1].q_row, (uint64_t)1 << 32)),
    FAULT_OF(LISTS, DSR_ERR_OVERFLOW, "row 1: output_offset exceeds u32: got 4294967296",
             SET(rows[1].output_offset, (uint64_t)1 << 32)),
    FAULT_OF(LISTS, DSR_ERR_STRIDE, "row 1: output_stride must be at least top_k = 64 elements, got 63",
             SET(rows[1].output_stride, 63)),
    FAULT_OF(LISTS, DSR_ERR_OVERFLOW, "row 2: output_stride overflows", SET(rows[2].output_stride, UINT64_MAX)),
    FAULT_OF(SCORES, DSR_ERR_OVERFLOW, "row 2: scores_offset + n_queries * kv_len overflows",
             SET(rows[2].scores_offset, UINT64_MAX - 31)),
    FAULT_OF(LISTS, DSR_ERR_OVERLAP,
             "row 1: outputs of two rows overlap: output_offset 63 meets the list of row 0 at 0",
             SET(rows[1].output_offset, 63)),
    FAULT_OF(LISTS, DSR_ERR_OVERLAP,
             "row 2: outputs of two rows overlap: output_offset 9 meets the list of row 1 at 72",
             SET(rows[2].output_offset, 9), SET(rows[0].output_offset, 600)),
    FAULT_OF(SCORES, DSR_ERR_OVERLAP, "row 2: scores of two rows overlap: elements [1, 33) and [16, 32) of row 1",
             SET(rows[2].scores_offset, 1), SET(rows[0].scores_offset, 600)),

    FAULT(DSR_ERR_NULL, "q is null", SET(desc.q.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "q must be bf16, got f32", SET(desc.q.dtype, DSR_DTYPE_F32), SET(desc.q.byte_length, 0)),
    FAULT_OF(QUERIES, DSR_ERR_SIZE, "row 0: q holds 24575 bytes, needs 24576", ADD(desc.q.byte_length, -1)),
    FAULT_OF(QUERIES, DSR_ERR_SIZE, "row 0: q holds 24576 bytes, needs 32768", SET(rows[0].q_row, 3)),
    FAULT(DSR_ERR_ALIGNMENT, "q", ADD(desc.q.byte_offset, 1)),
    FAULT(DSR_ERR_NULL, "weights is null", SET(desc.weights.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "weights must be f32, got bf16", SET(desc.weights.dtype, DSR_DTYPE_BF16)),
    FAULT(DSR_ERR_SIZE, "row 0: weights holds 383 bytes, needs 384", ADD(desc.weights.byte_length, -1)),
    FAULT(DSR_ERR_ALIGNMENT, "weights", ADD(desc.weights.byte_offset, 2)),
    FAULT_OF(SCORES, DSR_ERR_DTYPE, "scores must be f32, got i32", SET(desc.scores.dtype, DSR_DTYPE_I32)),
    FAULT_OF(SCORES, DSR_ERR_SIZE, "row 2: scores holds 255 bytes, needs 256", ADD(desc.scores.byte_length, -1)),
    FAULT_OF(SCORES, DSR_ERR_ALIGNMENT, "scores", ADD(desc.scores.byte_offset, 2)),
    FAULT_OF(KEYS | LISTS | QUERIES | CAUSAL | SCORES, DSR_ERR_OVERFLOW, "row 2: workspace overflows",
             HUGE_VIEW(rows[2].keys), SET(rows[2].kv_len, UINT32_MAX), SET(rows[2].ratio, 1), SET(rows[2].start_pos, 0),
             SET(rows[2].n_queries, INT32_MAX), SET(rows[2].offset, 0), HUGE_VIEW(desc.q), HUGE_VIEW(desc.weights),
             HUGE_VIEW(desc.output), SET(desc.scores.buffer, 0)),
    FAULT(DSR_ERR_NULL, "workspace is null", SET(desc.workspace.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "workspace must be u8, got i32", SET(desc.workspace.dtype, DSR_DTYPE_I32)),
    FAULT(DSR_ERR_SIZE, "workspace holds 64 bytes, needs ", SET(desc.workspace.byte_length, 64)),
    FAULT(DSR_ERR_NULL, "output is null", SET(desc.output.buffer, 0)),
    FAULT(DSR_ERR_DTYPE, "output must be i32, got f32", SET(desc.output.dtype, DSR_DTYPE_F32)),
    FAULT_OF(LISTS, DSR_ERR_SIZE, "row 2: output holds 1087 bytes, needs 1088", ADD(desc.output.byte_length, -1)),
    FAULT_OF(LISTS, DSR_ERR_SIZE, "row 2: output holds 1088 bytes, needs 1092", SET(rows[2].output_stride, TOP_K + 1)),
    FAULT(DSR_ERR_ALIGNMENT, "output", ADD(desc.output.byte_offset, 2)),

    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "row 1: scores overlaps keys of row 2",
             COPY(rows[2].keys.byte_offset, desc.scores.byte_offset), ADD(rows[2].keys.byte_offset, 64)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "row 0: output overlaps q of row 0",
             COPY(desc.q.byte_offset, desc.output.byte_offset), ADD(desc.q.byte_offset, -16384)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "row 2: output overlaps weights of row 0",
             COPY(desc.weights.byte_offset, desc.output.byte_offset), ADD(desc.weights.byte_offset, 1024 - 256)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "row 0: output overlaps scores of row 0",
             COPY(desc.scores.byte_offset, desc.output.byte_offset)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "workspace overlaps scores of row 0",
             COPY(desc.workspace.byte_offset, desc.scores.byte_offset)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "row 0: output overlaps workspace",
             COPY(desc.output.byte_offset, desc.workspace.byte_offset)),
    FAULT_OF(PLACES, DSR_ERR_OVERLAP, "workspace overlaps keys of row 1",
             COPY(rows[1].keys.byte_offset, desc.workspace.byte_offset)),
};

static void test_faults(void **state)
{
    api_run_faults(*state, &indexer, faults, N_FAULTS(faults));
}

/* The last command declares elements [begin, end) of its output, and nothing between or beside them. */
static void assert_output_range(const api_fixture *f, const indexer_call *call, uint64_t begin, uint64_t end)
{
    const dsr_command_info info = api_last_command(f);
    const uint64_t base = (uintptr_t)api_data(call->desc.output);
    assert_int_equal(info.n_writes, 2);
    for (uint32_t i = 0; i < 2; i++) {
        if (info.writes[i].begin == base + begin * sizeof(int32_t)) {
            assert_int_equal(info.writes[i].end, base + end * sizeof(int32_t));
            return;
        }
    }
    fail_msg("no range begins at element %u of the output", (unsigned)begin);
}

/* Rows with several lists may lie in each other's gaps, and lists that meet are found there too. */
static void test_interleaved_lists(void **state)
{
    api_fixture *f = *state;
    indexer_call call;
    api_init_call(f, &indexer, &call);
    call.desc.scores.buffer = NULL;
    call.desc.output = api_view(f, DSR_DTYPE_I32, 64 * TOP_K);
    for (uint32_t r = 0; r < N_ROWS; r++) {
        call.rows[r].n_queries = 1 + r;
        call.rows[r].output_stride = 4 * TOP_K;
        call.rows[r].output_offset = (N_ROWS - r) * TOP_K;
        call.rows[r].q_row = 0;
    }
    api_expect_valid(f, &indexer, &call);
    assert_output_range(f, &call, TOP_K, 10 * TOP_K);
    call.rows[0].output_offset = 40 * TOP_K;
    call.rows[2].output_offset = 1;
    call.rows[1].output_stride = 2 * TOP_K;
    call.rows[1].output_offset = TOP_K + 1;
    api_expect_valid(f, &indexer, &call);
    /* The third list of row 2 meets the second of row 1. */
    call.rows[2].output_stride = TOP_K + TOP_K / 2 + 1;
    assert_int_equal(dsr_encode_indexer(f->encoder, &call.desc), DSR_ERR_OVERLAP);
    api_assert_text(f, "indexer: row 2: outputs of two rows overlap: output_offset 1 meets the list of row 1 at 65");
}

static int lists_meet(const dsr_indexer_row *a, const dsr_indexer_row *b)
{
    for (uint64_t i = 0; i < a->n_queries; i++) {
        for (uint64_t j = 0; j < b->n_queries; j++) {
            const uint64_t x = a->output_offset + i * a->output_stride, y = b->output_offset + j * b->output_stride;
            if (x < y + TOP_K && y < x + TOP_K)
                return 1;
        }
    }
    return 0;
}

/* Lists of two rows at random places, against every pair of lists. */
static void test_lists_by_brute_force(void **state)
{
    enum { N_CALLS = 20000 };
    api_fixture *f = *state;
    indexer_call call;
    uint32_t seed = 7, n_meet = 0, n_apart = 0;
    api_init_call(f, &indexer, &call);
    call.desc.n_rows = 2;
    call.desc.scores.buffer = NULL;
    call.desc.q = api_huge_view(f, DSR_DTYPE_BF16);
    call.desc.output = api_view(f, DSR_DTYPE_I32, 10000);
    call.desc.workspace = api_view(f, DSR_DTYPE_U8, 1 << 20);
    call.rows[0].start_pos = call.rows[1].start_pos = 3;
    call.desc.weights = (dsr_view){f->huge, (uint64_t)1 << 50, 1 << 20, DSR_DTYPE_F32};
    for (uint32_t n = 0; n < N_CALLS; n++) {
        for (uint32_t r = 0; r < 2; r++) {
            dsr_indexer_row *row = &call.rows[r];
            uint32_t drawn[3];
            for (uint32_t i = 0; i < 3; i++) {
                seed = seed * 1664525u + 1013904223u;
                drawn[i] = seed >> 16;
            }
            row->n_queries = 1 + drawn[0] % 6;
            row->output_stride = TOP_K * (1 + drawn[1] % 6) + (drawn[1] / 8) % 2;
            row->output_offset = drawn[2] % 8 * (TOP_K / 2) + (drawn[2] / 8) % 3;
        }
        if (lists_meet(&call.rows[0], &call.rows[1])) {
            n_meet++;
            assert_int_equal(dsr_encode_indexer(f->encoder, &call.desc), DSR_ERR_OVERLAP);
        } else {
            n_apart++;
            api_expect_valid(f, &indexer, &call);
        }
        if (dsr_encoder_n_commands(f->encoder) == 100)
            assert_int_equal(dsr_encoder_reset(f->encoder), DSR_OK);
    }
    assert_true(n_meet > N_CALLS / 10 && n_apart > N_CALLS / 10);
}

static void test_greatest_index(void **state)
{
    api_fixture *f = *state;
    indexer_call call;
    api_init_call(f, &indexer, &call);
    call.rows[1].start_pos = 59;
    call.rows[1].offset = INT32_MAX - 14;
    api_expect_valid(f, &indexer, &call);
}

/* No key is seen at positions below ratio - 1: legal, all of the list is -1. */
static void test_nothing_to_see_is_legal(void **state)
{
    api_fixture *f = *state;
    indexer_call call;
    for (uint32_t position = 0; position < 3; position++) {
        api_init_call(f, &indexer, &call);
        call.rows[1].start_pos = position;
        call.rows[1].kv_len = 1;
        call.rows[1].offset = INT32_MAX;
        api_expect_valid(f, &indexer, &call);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_faults, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_interleaved_lists, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_lists_by_brute_force, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_greatest_index, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_nothing_to_see_is_legal, api_setup, api_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
