/* The device-exact attention kernels on AVX512-BF16: their logits against those of the kernel for F32 operations, byte
 * by byte, on data near the least normal number, which the unit takes for zero. (tests/bits has everything else.) */
#include "kernel_test.h"

#include "cpu/cpu_features.h"
#include "ops/attention_workspace.h"

#if defined(DSRI_HAVE_AVX512BF16)

DECLARE_KERNEL(sparse_attention, avx512);
DECLARE_KERNEL(sparse_attention_chains, avx512bf16);

/* Phases pack and logits of one query; returns its logits, [block of heads][slot][head]. */
static const float *logits_of(random_stream *random, const dsri_cpu_kernel *kernel, dsri_attention_plan *plan)
{
    dsri_attention_row_plan *row = &plan->rows[0];
    dsri_cpu_kernel first_phases = *kernel;
    const dsri_attention_region region = dsri_attention_region_of(row->width, plan->n_heads, 0);
    row->workspace = new_array(region.size_bytes);
    row->output = new_array((size_t)plan->n_heads * DSRI_HEAD_DIM * sizeof *row->output);
    first_phases.n_phases = 2;
    run_kernel(&first_phases, plan, random);
    return (const float *)(const void *)(row->workspace + region.weights);
}

static void test_small_products(void **state)
{
    (void)state;
    for (test_seed = 1; test_seed <= 150; test_seed++) {
        random_stream random = random_open(test_seed, 1);
        dsri_attention_plan plan = {.n_rows = 1, .n_queries = 1, .n_heads = 64, .scale = 1.0f};
        dsri_attention_row_plan *row = &plan.rows[0];
        const uint32_t sum = random_between(&random, 136, 143), end = random_below(&random, 2);
        const uint32_t all_of_q[] = {random_between(&random, 0, sum), end, sum - end};
        const uint32_t of_q = all_of_q[random_below(&random, 3)];
        row->n_queries = 1;
        row->kv_len = random_between(&random, 1, 60);
        row->width = random_between(&random, 1, 100);
        row->index_stride = row->width;
        int32_t *const indices = new_array(row->width * sizeof *indices);
        for (uint32_t i = 0; i < row->width; i++) {
            indices[i] = (int32_t)random_below(&random, (uint32_t)row->kv_len);
        }
        row->indices = indices;
        uint16_t *const q = new_small_bf16(&random, of_q, (size_t)plan.n_heads * DSRI_HEAD_DIM);
        if (random_one_in(&random, 2)) {
            q[random_below(&random, plan.n_heads * DSRI_HEAD_DIM)] = 1;
        }
        row->q = q;
        row->kv = plain_cache(new_small_bf16(&random, sum - of_q, row->kv_len * DSRI_HEAD_DIM), DSRI_HEAD_DIM);
        plan.sinks = new_f32(&random, PATTERN_NORMAL, 1.0f, plan.n_heads);
        const float *want = logits_of(&random, &dsri_kernel_sparse_attention__avx512, &plan);
        const float *got = logits_of(&random, &dsri_kernel_sparse_attention_chains__avx512bf16, &plan);
        assert_bits(&dsri_kernel_sparse_attention_chains__avx512bf16, "logits", DSR_DTYPE_F32, got, want,
                    (size_t)row->width * plan.n_heads * sizeof(float));
        drop_arrays();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
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
