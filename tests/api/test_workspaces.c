/* Workspace sizes, and the question whether the rows of a flash call are contiguous. */
#include "api_fixture.h"

static uint64_t attention_bytes(api_fixture *f, const dsr_attention_row *rows, uint32_t n_rows, uint32_t n_heads)
{
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    uint64_t sparse = 0, flash = 0;
    desc.n_rows = n_rows;
    desc.rows = rows;
    desc.n_heads = n_heads;
    assert_int_equal(dsr_sparse_attention_workspace(f->context, &desc, &sparse), DSR_OK);
    assert_int_equal(dsr_flash_attention_workspace(f->context, &desc, &flash), DSR_OK);
    assert_true(sparse > 0);
    assert_int_equal(sparse, flash);
    return sparse;
}

static uint64_t indexer_bytes(api_fixture *f, const dsr_indexer_row *rows, uint32_t n_rows, uint32_t n_heads,
                              uint32_t top_k)
{
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    uint64_t size_bytes = 0;
    desc.n_rows = n_rows;
    desc.rows = rows;
    desc.n_heads = n_heads;
    desc.top_k = top_k;
    assert_int_equal(dsr_indexer_workspace(f->context, &desc, &size_bytes), DSR_OK);
    assert_true(size_bytes > 0);
    return size_bytes;
}

static void test_attention_is_monotone(void **state)
{
    static const uint64_t widths[] = {1, 2, 63, 64, 65, 128, 640, 1152, 8320, 100000, 4000000};
    static const uint32_t counts[] = {1, 2, 3, 100};
    api_fixture *f = *state;
    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        for (size_t j = 0; j < sizeof(counts) / sizeof(counts[0]); j++) {
            const dsr_attention_row rows[] = {{.width = widths[i], .n_queries = counts[j]}, {.width = 1}};
            const dsr_attention_row wider = {.width = widths[i] + 1, .n_queries = counts[j]};
            const dsr_attention_row longer = {.width = widths[i], .n_queries = counts[j] + 1};
            const uint64_t size_bytes = attention_bytes(f, rows, 1, 64);
            assert_true(size_bytes <= attention_bytes(f, rows, 1, 128));
            assert_true(size_bytes <= attention_bytes(f, rows, 2, 64));
            assert_true(size_bytes <= attention_bytes(f, &wider, 1, 64));
            assert_true(size_bytes <= attention_bytes(f, &longer, 1, 64));
        }
    }
}

static void test_indexer_is_monotone(void **state)
{
    static const uint32_t positions[] = {0, 3, 63, 64, 1023, 4095, 65535, 1048575};
    api_fixture *f = *state;
    for (size_t i = 0; i < sizeof(positions) / sizeof(positions[0]); i++) {
        const dsr_indexer_row rows[] = {{.kv_len = 1048576, .start_pos = positions[i]}, {.kv_len = 1}};
        const dsr_indexer_row later = {.kv_len = 1048576, .start_pos = positions[i] + 4};
        const dsr_indexer_row longer = {.kv_len = 1048576, .start_pos = positions[i], .n_queries = 2};
        const dsr_indexer_row finer = {.kv_len = 1048576, .start_pos = positions[i], .ratio = 1};
        const uint64_t size_bytes = indexer_bytes(f, rows, 1, 32, 512);
        assert_true(size_bytes <= indexer_bytes(f, rows, 1, 64, 512));
        assert_true(size_bytes <= indexer_bytes(f, rows, 1, 32, 2048));
        assert_true(size_bytes <= indexer_bytes(f, rows, 2, 32, 512));
        assert_true(size_bytes <= indexer_bytes(f, &later, 1, 32, 512));
        assert_true(size_bytes <= indexer_bytes(f, &longer, 1, 32, 512));
        assert_true(size_bytes <= indexer_bytes(f, &finer, 1, 32, 512));
    }
}

/* A joint call needs at most the sum of what its rows need alone. */
static void test_joint_is_at_most_the_sum(void **state)
{
    api_fixture *f = *state;
    dsr_attention_row attention[DSR_MAX_ROWS];
    dsr_indexer_row indexer[DSR_MAX_ROWS];
    uint64_t attention_sum = 0, indexer_sum = 0;
    memset(attention, 0, sizeof(attention));
    memset(indexer, 0, sizeof(indexer));
    for (uint32_t r = 0; r < DSR_MAX_ROWS; r++) {
        attention[r].width = 1 + 37 * r;
        attention[r].n_queries = r % 3;
        indexer[r].kv_len = 1000 + 1000 * r;
        indexer[r].start_pos = 999 * r;
        indexer[r].n_queries = r % 4;
        attention_sum += attention_bytes(f, &attention[r], 1, 128);
        indexer_sum += indexer_bytes(f, &indexer[r], 1, 64, 1024);
        assert_true(attention_bytes(f, attention, r + 1, 128) <= attention_sum);
        assert_true(indexer_bytes(f, indexer, r + 1, 64, 1024) <= indexer_sum);
    }
}

/* Scratch of the indexer stays under a bound per query that the header states, whatever the number of rows. */
static void test_indexer_bound(void **state)
{
    api_fixture *f = *state;
    dsr_indexer_row rows[DSR_MAX_ROWS];
    memset(rows, 0, sizeof(rows));
    for (uint64_t n_keys = 1 << 20; n_keys <= 1 << 22; n_keys *= 2) {
        for (uint32_t r = 0; r < DSR_MAX_ROWS; r++) {
            rows[r].kv_len = n_keys;
            rows[r].start_pos = (uint32_t)(4 * n_keys - 1);
            assert_true(indexer_bytes(f, rows, r + 1, 128, 2048) <= (r + 1) * (5 * n_keys + 128 * 1024) + 64);
        }
    }
}

static void test_attention_errors(void **state)
{
    api_fixture *f = *state;
    dsr_attention_row row = {.width = 4};
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    uint64_t size_bytes = 77;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.n_heads = 64;
    assert_int_equal(dsr_sparse_attention_workspace(NULL, &desc, &size_bytes), DSR_ERR_NULL);
    assert_int_equal(dsr_sparse_attention_workspace(f->context, NULL, &size_bytes), DSR_ERR_NULL);
    assert_int_equal(dsr_sparse_attention_workspace(f->context, &desc, NULL), DSR_ERR_NULL);
    api_assert_text(f, "sparse-attention: size_bytes is null");
    desc.struct_size = 8;
    assert_int_equal(dsr_flash_attention_workspace(f->context, &desc, &size_bytes), DSR_ERR_STRUCT_SIZE);
    desc.struct_size = sizeof(desc);
    desc.n_rows = 65;
    assert_int_equal(dsr_flash_attention_workspace(f->context, &desc, &size_bytes), DSR_ERR_ROW_COUNT);
    desc.n_rows = 1;
    desc.n_heads = 32;
    assert_int_equal(dsr_flash_attention_workspace(f->context, &desc, &size_bytes), DSR_ERR_UNSUPPORTED_SHAPE);
    api_assert_text(f, "flash-attention: n_heads must be 64 or 128, got 32");
    desc.n_heads = 64;
    row.width = 0;
    assert_int_equal(dsr_flash_attention_workspace(f->context, &desc, &size_bytes), DSR_ERR_VALUE);
    api_assert_text(f, "flash-attention: row 0: width must be nonzero");
    row.width = (uint64_t)UINT32_MAX + 1;
    assert_int_equal(dsr_flash_attention_workspace(f->context, &desc, &size_bytes), DSR_ERR_OVERFLOW);
    row.width = UINT64_MAX;
    assert_int_equal(dsr_flash_attention_workspace(f->context, &desc, &size_bytes), DSR_ERR_OVERFLOW);
    row.width = (uint64_t)1 << 63;
    row.n_queries = 2;
    assert_int_equal(dsr_flash_attention_workspace(f->context, &desc, &size_bytes), DSR_ERR_OVERFLOW);
    row.width = 65536;
    row.n_queries = 65536;
    assert_int_equal(dsr_flash_attention_workspace(f->context, &desc, &size_bytes), DSR_ERR_OVERFLOW);
    api_assert_text(f, "flash-attention: row 0: number of slots of all queries exceeds u32: got 4294967296");
    assert_int_equal(size_bytes, 77);
}

static void test_indexer_errors(void **state)
{
    api_fixture *f = *state;
    dsr_indexer_row rows[DSR_MAX_ROWS] = {{.kv_len = UINT64_MAX}};
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    uint64_t size_bytes = 77;
    desc.n_rows = 1;
    desc.rows = rows;
    desc.n_heads = 64;
    assert_int_equal(dsr_indexer_workspace(NULL, &desc, &size_bytes), DSR_ERR_NULL);
    assert_int_equal(dsr_indexer_workspace(f->context, NULL, &size_bytes), DSR_ERR_NULL);
    assert_int_equal(dsr_indexer_workspace(f->context, &desc, NULL), DSR_ERR_NULL);
    desc.struct_size++;
    assert_int_equal(dsr_indexer_workspace(f->context, &desc, &size_bytes), DSR_ERR_STRUCT_SIZE);
    desc.struct_size--;
    desc.n_rows = 65;
    assert_int_equal(dsr_indexer_workspace(f->context, &desc, &size_bytes), DSR_ERR_ROW_COUNT);
    desc.n_rows = 1;
    desc.rows = NULL;
    assert_int_equal(dsr_indexer_workspace(f->context, &desc, &size_bytes), DSR_ERR_NULL);
    desc.rows = rows;
    desc.top_k = 48;
    assert_int_equal(dsr_indexer_workspace(f->context, &desc, &size_bytes), DSR_ERR_UNSUPPORTED_SHAPE);
    desc.top_k = 0;
    rows[0].kv_len = 0;
    assert_int_equal(dsr_indexer_workspace(f->context, &desc, &size_bytes), DSR_ERR_VALUE);
    rows[0].kv_len = 4;
    rows[0].start_pos = 20;
    assert_int_equal(dsr_indexer_workspace(f->context, &desc, &size_bytes), DSR_ERR_KV_LEN);
    rows[0].start_pos = UINT32_MAX;
    assert_int_equal(dsr_indexer_workspace(f->context, &desc, &size_bytes), DSR_ERR_POSITION);
    /* Queries are counted in 32 bits, and bytes in 64. */
    desc.n_rows = 2;
    for (uint32_t r = 0; r < 2; r++)
        rows[r] = (dsr_indexer_row){.kv_len = UINT32_MAX, .n_queries = UINT32_MAX / 2 + 1, .ratio = UINT32_MAX};
    assert_int_equal(dsr_indexer_workspace(f->context, &desc, &size_bytes), DSR_ERR_OVERFLOW);
    api_assert_text(f, "indexer: row 1: number of all queries exceeds u32");
    desc.n_rows = 1;
    rows[0] = (dsr_indexer_row){.kv_len = UINT32_MAX, .n_queries = UINT32_MAX, .ratio = 1};
    assert_int_equal(dsr_indexer_workspace(f->context, &desc, &size_bytes), DSR_ERR_OVERFLOW);
    api_assert_text(f, "indexer: row 0: workspace overflows");
    desc.n_rows = 2;
    rows[0].n_queries = 800000000;
    rows[0].start_pos = UINT32_MAX - 800000000;
    rows[1] = rows[0];
    assert_int_equal(dsr_indexer_workspace(f->context, &desc, &size_bytes), DSR_ERR_OVERFLOW);
    api_assert_text(f, "indexer: row 1: workspace overflows");
    assert_int_equal(size_bytes, 77);
}

static int is_contiguous(const uint64_t *widths, const uint64_t *q_rows, uint32_t n_rows)
{
    dsr_attention_row rows[DSR_MAX_ROWS];
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    memset(rows, 0, sizeof(rows));
    for (uint32_t r = 0; r < n_rows; r++) {
        rows[r].width = widths[r];
        rows[r].q_row = q_rows[r];
    }
    desc.n_rows = n_rows;
    desc.rows = rows;
    return dsr_flash_attention_contiguous(&desc);
}

static void test_contiguous(void **state)
{
    static const uint64_t in_order[] = {0, 1, 2, 3}, swapped[] = {1, 0, 2, 3}, from_1[] = {1, 2, 3, 4};
    static const uint64_t equal[] = {160, 160, 160, 160}, mixed[] = {160, 640, 160, 160},
                          grouped[] = {160, 640, 640, 5};
    dsr_attention_row rows[] = {{.width = 7, .n_queries = 3}, {.width = 7, .q_row = 3}, {.width = 9, .q_row = 4}};
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    (void)state;
    assert_int_equal(is_contiguous(equal, in_order, 1), 1);
    assert_int_equal(is_contiguous(equal, in_order, 4), 1);
    assert_int_equal(is_contiguous(grouped, in_order, 4), 1);
    assert_int_equal(is_contiguous(mixed, in_order, 2), 1);
    assert_int_equal(is_contiguous(mixed, in_order, 3), 0);
    assert_int_equal(is_contiguous(equal, swapped, 4), 0);
    assert_int_equal(is_contiguous(equal, from_1, 4), 0);

    uint64_t many_widths[DSR_MAX_ROWS], many_rows[DSR_MAX_ROWS];
    for (uint32_t r = 0; r < DSR_MAX_ROWS; r++) {
        many_widths[r] = 100 + r / 7;
        many_rows[r] = r;
    }
    assert_int_equal(is_contiguous(many_widths, many_rows, DSR_MAX_ROWS), 1);
    many_widths[DSR_MAX_ROWS - 1] = 100;
    assert_int_equal(is_contiguous(many_widths, many_rows, DSR_MAX_ROWS), 0);

    /* Several queries of a row take as many rows of q. */
    desc.n_rows = 3;
    desc.rows = rows;
    assert_int_equal(dsr_flash_attention_contiguous(&desc), 1);
    rows[1].q_row = 1;
    assert_int_equal(dsr_flash_attention_contiguous(&desc), 0);
    rows[1].q_row = 3;

    assert_int_equal(dsr_flash_attention_contiguous(NULL), 0);
    rows[2].width = 0;
    assert_int_equal(dsr_flash_attention_contiguous(&desc), 0);
    rows[2].width = 9;
    desc.n_rows = 0;
    assert_int_equal(dsr_flash_attention_contiguous(&desc), 0);
    desc.n_rows = 65;
    assert_int_equal(dsr_flash_attention_contiguous(&desc), 0);
    desc.n_rows = 3;
    desc.rows = NULL;
    assert_int_equal(dsr_flash_attention_contiguous(&desc), 0);
    desc.rows = rows;
    desc.struct_size = 0;
    assert_int_equal(dsr_flash_attention_contiguous(&desc), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_attention_is_monotone, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_indexer_is_monotone, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_joint_is_at_most_the_sum, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_indexer_bound, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_attention_errors, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_indexer_errors, api_setup, api_teardown),
        cmocka_unit_test(test_contiguous),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
