/* Overlaps among the ranges of up to 64 rows at random places, against every pair of ranges. */
#include "api_fixture.h"

enum { N_CALLS = 3000, ELEMENTS = 4, BYTES = 16 };

typedef struct random_state {
    uint32_t seed;
} random_state;

static uint32_t draw(random_state *random, uint32_t n)
{
    random->seed = random->seed * 1664525u + 1013904223u;
    return (random->seed >> 8) % n;
}

static int any_meets(const dsr_range *a, uint32_t n_a, const dsr_range *b, uint32_t n_b)
{
    for (uint32_t i = 0; i < n_a; i++) {
        for (uint32_t j = 0; j < n_b; j++) {
            const int is_same = a == b && i == j;
            if (!is_same && a[i].begin < b[j].end && b[j].begin < a[i].end)
                return 1;
        }
    }
    return 0;
}

/* Statuses of both kinds must occur, or the test shows nothing. */
typedef struct tally {
    uint32_t n_meet;
    uint32_t n_apart;
} tally;

static void expect_status(const api_fixture *f, tally *counts, int meet, dsr_status status)
{
    if (status != (meet ? DSR_ERR_OVERLAP : DSR_OK))
        fail_msg("ranges %s, got %s: %s", meet ? "meet" : "are apart", dsr_status_name(status),
                 dsr_context_error_text(f->context));
    counts->n_meet += meet != 0;
    counts->n_apart += meet == 0;
    if (dsr_encoder_n_commands(f->encoder) == 50)
        assert_int_equal(dsr_encoder_reset(f->encoder), DSR_OK);
}

/* Rows of a copy go to random rings of one buffer, some of which hold the source. */
static void test_copies(void **state)
{
    enum { RING = 4, N_PLACES = 700 };
    api_fixture *f = *state;
    random_state random = {1};
    tally counts = {0, 0};
    const dsr_view all = api_view(f, DSR_DTYPE_F32, (uint64_t)N_PLACES * RING * ELEMENTS);
    dsr_copy_row rows[DSR_MAX_ROWS];
    for (uint32_t n = 0; n < N_CALLS; n++) {
        dsr_range reads[DSR_MAX_ROWS], writes[RING * DSR_MAX_ROWS];
        uint32_t n_writes = 0;
        dsr_copy_desc desc = DSR_COPY_DESC_INIT;
        const uint64_t source_row = draw(&random, N_PLACES - DSR_MAX_ROWS) * RING;
        memset(rows, 0, sizeof(rows));
        desc.n_rows = 1 + draw(&random, n % 2 ? 64 : 8);
        desc.rows = rows;
        desc.row_elements = ELEMENTS;
        desc.source = dsr_view_slice(all, source_row * ELEMENTS, DSR_MAX_ROWS * ELEMENTS);
        for (uint32_t r = 0; r < desc.n_rows; r++) {
            const uint64_t ring = draw(&random, N_PLACES) * RING;
            rows[r].destination = dsr_view_slice(all, ring * ELEMENTS, RING * ELEMENTS);
            rows[r].source_row = r;
            rows[r].destination_row = draw(&random, 100);
            rows[r].ring_rows = RING;
            rows[r].n_copies = desc.n_rows < 32 && r + 3 <= DSR_MAX_ROWS ? 1 + draw(&random, 3) : 1;
            reads[r].begin = (source_row + r) * BYTES;
            reads[r].end = reads[r].begin + rows[r].n_copies * BYTES;
            for (uint32_t i = 0; i < rows[r].n_copies; i++) {
                const uint64_t at = (ring + (rows[r].destination_row + i) % RING) * BYTES;
                writes[n_writes++] = (dsr_range){at, at + BYTES};
            }
        }
        expect_status(f, &counts,
                      any_meets(writes, n_writes, writes, n_writes) || any_meets(writes, n_writes, reads, desc.n_rows),
                      dsr_encode_copy(f->encoder, &desc));
    }
    assert_true(counts.n_meet > N_CALLS / 10 && counts.n_apart > N_CALLS / 10);
}

/* States of a compressor at random places, in views that are longer than needed. */
static void test_states(void **state)
{
    enum { STATE_BYTES = 8192, STEP = 4096, N_PLACES = 40000 };
    api_fixture *f = *state;
    random_state random = {2};
    tally counts = {0, 0};
    dsr_compressor_row rows[DSR_MAX_ROWS];
    dsr_compressor_desc desc = DSR_COMPRESSOR_DESC_INIT;
    memset(rows, 0, sizeof(rows));
    desc.rows = rows;
    desc.ratio = 4;
    desc.dim = 128;
    desc.epsilon = 1e-6f;
    desc.kv = api_view(f, DSR_DTYPE_F32, 64 * 256);
    desc.score = api_view(f, DSR_DTYPE_F32, 64 * 256);
    desc.ape = api_view(f, DSR_DTYPE_F32, 4 * 256);
    desc.norm = api_view(f, DSR_DTYPE_F32, 128);
    desc.output = api_view(f, DSR_DTYPE_BF16, 64 * 128);
    for (uint32_t n = 0; n < N_CALLS; n++) {
        dsr_range states[2 * DSR_MAX_ROWS];
        desc.n_rows = 1 + draw(&random, n % 2 ? 64 : 20);
        for (uint32_t i = 0; i < 2 * desc.n_rows; i++) {
            dsr_view *view = i % 2 ? &rows[i / 2].score_state : &rows[i / 2].kv_state;
            *view = (dsr_view){f->huge, (uint64_t)draw(&random, N_PLACES) * STEP, STATE_BYTES + draw(&random, 2) * STEP,
                               DSR_DTYPE_F32};
            states[i] = (dsr_range){view->byte_offset, view->byte_offset + view->byte_length};
            rows[i / 2].start_pos = 1;
            rows[i / 2].output_row = i / 2;
        }
        expect_status(f, &counts, any_meets(states, 2 * desc.n_rows, states, 2 * desc.n_rows),
                      dsr_encode_compressor(f->encoder, &desc));
    }
    assert_true(counts.n_meet > N_CALLS / 10 && counts.n_apart > N_CALLS / 10);
}

/* Query rows of attention entries with several queries each. */
static void test_query_rows(void **state)
{
    enum { N_QUERY_ROWS = 2000 };
    api_fixture *f = *state;
    random_state random = {3};
    tally counts = {0, 0};
    dsr_attention_row rows[DSR_MAX_ROWS];
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    memset(rows, 0, sizeof(rows));
    desc.rows = rows;
    desc.n_heads = 64;
    desc.scale = 1.0f;
    desc.q = (dsr_view){f->huge, 0, (uint64_t)1 << 30, DSR_DTYPE_BF16};
    desc.output = (dsr_view){f->huge, (uint64_t)1 << 30, (uint64_t)1 << 30, DSR_DTYPE_BF16};
    desc.workspace = (dsr_view){f->huge, (uint64_t)1 << 31, (uint64_t)1 << 31, DSR_DTYPE_U8};
    desc.indices = api_view(f, DSR_DTYPE_I32, 100);
    desc.sinks = api_view(f, DSR_DTYPE_F32, 64);
    rows[0].kv = api_view(f, DSR_DTYPE_BF16, 512);
    for (uint32_t n = 0; n < N_CALLS; n++) {
        dsr_range queries[DSR_MAX_ROWS];
        const uint32_t most = 1 + draw(&random, 8);
        int meet;
        dsr_status status;
        desc.n_rows = 1 + draw(&random, n % 2 ? 64 : 10);
        for (uint32_t r = 0; r < desc.n_rows; r++) {
            rows[r] = (dsr_attention_row){.kv = rows[0].kv, .kv_len = 1, .width = 1};
            rows[r].q_row = draw(&random, N_QUERY_ROWS);
            rows[r].n_queries = 1 + draw(&random, most);
            queries[r] = (dsr_range){rows[r].q_row, rows[r].q_row + rows[r].n_queries};
        }
        meet = any_meets(queries, desc.n_rows, queries, desc.n_rows);
        status = dsr_encode_sparse_attention(f->encoder, &desc);
        if (meet) {
            assert_int_equal(status, DSR_ERR_DUPLICATE_ROW);
            status = DSR_ERR_OVERLAP;
        }
        expect_status(f, &counts, meet, status);
    }
    assert_true(counts.n_meet > N_CALLS / 10 && counts.n_apart > N_CALLS / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_copies, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_states, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_query_rows, api_setup, api_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
