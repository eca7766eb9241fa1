/* The device-exact indexer kernel on AVX512-BF16 against the reference, byte by byte: any data, and data near the least
 * normal number, which the unit takes for zero. */
#include "kernel_test.h"

#include "cpu/cpu_features.h"
#include "ops/indexer_workspace.h"
#include "reference/reference.h"

#if defined(DSRI_HAVE_AVX512BF16)

DECLARE_KERNEL(indexer, avx512bf16);

enum { MOST_KEYS = 200 };

/* One row with one query; q and keys are to be filled in. */
static dsri_indexer_plan draw_plan(random_stream *random)
{
    dsri_indexer_plan plan = {.n_rows = 1, .n_queries = 1, .n_heads = 32u << random_below(random, 3), .top_k = 64};
    dsri_indexer_row_plan *row = &plan.rows[0];
    row->n_queries = 1;
    row->kv_len = random_between(random, 1, MOST_KEYS);
    row->ratio = 1;
    row->start_pos = (uint32_t)row->kv_len - 1;
    row->output_stride = plan.top_k;
    row->weights = new_f32(random, any_pattern(random), 0x1p-6f, plan.n_heads);
    row->scores = new_array(row->kv_len * sizeof(float));
    row->output = new_array(plan.top_k * sizeof(int32_t));
    row->workspace = new_array(dsri_indexer_region_of(row->kv_len).size_bytes);
    return plan;
}

static void check(random_stream *random, const dsri_indexer_plan *plan)
{
    const dsri_indexer_row_plan *row = &plan->rows[0];
    const dsri_cpu_kernel *kernel = &dsri_kernel_indexer__avx512bf16;
    float scores[MOST_KEYS];
    int32_t list[64];
    ref_indexer_scores(row->q, row->weights, plain_entry(&row->keys, 0), row->keys.row_stride / sizeof(uint16_t),
                       row->kv_len, row->kv_len, plan->n_heads, scores);
    ref_top_k(scores, row->kv_len, plan->top_k, row->offset, list);
    run_kernel(kernel, plan, random);
    assert_bits(kernel, "scores", DSR_DTYPE_F32, row->scores, scores, row->kv_len * sizeof(float));
    assert_bits(kernel, "list", DSR_DTYPE_I32, row->output, list, sizeof list);
    drop_arrays();
}

static void test_any_data(void **state)
{
    (void)state;
    for (test_seed = 1; test_seed <= 60; test_seed++) {
        random_stream random = random_open(test_seed, 1);
        dsri_indexer_plan plan = draw_plan(&random);
        dsri_indexer_row_plan *row = &plan.rows[0];
        const uint64_t stride = DSRI_INDEX_DIM + (random_one_in(&random, 2) ? random_below(&random, 70) : 0);
        row->keys = plain_cache(
            new_bf16(&random, any_pattern(&random), 1.0f, (row->kv_len - 1) * stride + DSRI_INDEX_DIM), stride);
        row->q = new_bf16(&random, any_pattern(&random), 1.0f, (size_t)plan.n_heads * DSRI_INDEX_DIM);
        check(&random, &plan);
    }
}

static void test_small_products(void **state)
{
    (void)state;
    for (test_seed = 1; test_seed <= 300; test_seed++) {
        random_stream random = random_open(test_seed, 2);
        dsri_indexer_plan plan = draw_plan(&random);
        dsri_indexer_row_plan *row = &plan.rows[0];
        const uint32_t sum = random_between(&random, 136, 143), end = random_below(&random, 2);
        const uint32_t all_of_q[] = {random_between(&random, 0, sum), end, sum - end};
        const uint32_t of_q = all_of_q[random_below(&random, 3)];
        uint16_t *const q = new_small_bf16(&random, of_q, (size_t)plan.n_heads * DSRI_INDEX_DIM);
        if (random_one_in(&random, 2)) {
            q[random_below(&random, plan.n_heads * DSRI_INDEX_DIM)] = 1;
        }
        row->q = q;
        row->keys = plain_cache(new_small_bf16(&random, sum - of_q, row->kv_len * DSRI_INDEX_DIM), DSRI_INDEX_DIM);
        check(&random, &plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_any_data, open_memory, close_memory),
        cmocka_unit_test_setup_teardown(test_small_products, open_memory, close_memory),
    };
    return dsri_cpu_features() & DSRI_CPU_AVX512_BF16 ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}

#else

int main(void)
{
    return 77;
}

#endif
