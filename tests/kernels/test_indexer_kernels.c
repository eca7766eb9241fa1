/* The indexer kernels against the reference, byte by byte, around the edges of tiles, blocks and tasks, on poisoned
 * workspaces. */
#include "drawn_cache.h"
#include "kernel_test.h"

#include "ops/indexer_workspace.h"
#include "reference/reference.h"

KERNELS(indexer);

#define COUNT_OF(a) (sizeof(a) / sizeof(a)[0])

/* Outputs of a row as they shall be: lists (poison between them), then scores. */
typedef struct wanted_row {
    int32_t *lists;
    size_t lists_bytes;
    float *scores;
    size_t scores_bytes;
} wanted_row;

/* What the reference takes for the keys of a plan's row: the plan's own, or the decoded ones. */
typedef struct wanted_keys {
    const uint16_t *keys;
    uint64_t stride;
} wanted_keys;

static wanted_keys plain_keys(const dsri_indexer_row_plan *row)
{
    return (wanted_keys){plain_entry(&row->keys, 0), row->keys.row_stride / sizeof(uint16_t)};
}

static uint64_t causal_keys(const dsri_indexer_row_plan *row, uint32_t i)
{
    return ((uint64_t)row->start_pos + i + 1) / row->ratio;
}

static void draw_position(random_stream *random, dsri_indexer_row_plan *row)
{
    static const uint32_t edges[] = {0,  1,  4,  5,  6,  7,  8,  9,  15, 16,  17,  42,  47,  48,  49,  52,  53,
                                     54, 55, 56, 63, 64, 65, 95, 96, 97, 112, 127, 128, 129, 143, 192, 240, 385};
    static const uint32_t ratios[] = {1, 4, 128};
    row->ratio = ratios[random_below(random, COUNT_OF(ratios))];
    row->n_queries = random_one_in(random, 3) ? random_between(random, 2, 3) : 1;
    const uint32_t n =
        random_one_in(random, 2) ? edges[random_below(random, COUNT_OF(edges))] : random_between(random, 1, 300);
    const uint32_t tokens = n * row->ratio + random_below(random, row->ratio);
    row->start_pos = tokens < row->n_queries ? 0 : tokens - row->n_queries;
}

static void draw_row(random_stream *random, uint32_t n_heads, uint32_t top_k, dsri_indexer_row_plan *row)
{
    draw_position(random, row);
    const uint64_t n = causal_keys(row, row->n_queries - 1);
    row->kv_len = n + (random_one_in(random, 2) ? random_below(random, 300) : 0);
    row->kv_len += row->kv_len == 0;
    const uint64_t stride = DSRI_INDEX_DIM + (random_one_in(random, 2) ? random_below(random, 70) : 0);
    row->keys =
        plain_cache(new_bf16(random, any_pattern(random), 1.0f, (row->kv_len - 1) * stride + DSRI_INDEX_DIM), stride);
    row->q = new_bf16(random, any_pattern(random), 1.0f, (size_t)row->n_queries * n_heads * DSRI_INDEX_DIM);
    row->weights = new_f32(random, any_pattern(random), 0x1p-6f, (size_t)row->n_queries * n_heads);
    row->output_stride = top_k + (random_one_in(random, 2) ? random_below(random, 40) : 0);
    row->offset = (int32_t)random_below(random, 2) * 128;
    row->scores = random_one_in(random, 2) ? new_array(row->n_queries * row->kv_len * sizeof(float)) : NULL;
}

static void draw_plan(random_stream *random, dsri_indexer_plan *plan)
{
    memset(plan, 0, sizeof *plan);
    plan->n_rows = random_between(random, 1, 3);
    plan->n_heads = 32u << random_below(random, 3);
    plan->top_k = 32 * random_between(random, 1, random_one_in(random, 2) ? 64 : 4);
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        plan->rows[r].first_query = plan->n_queries;
        draw_row(random, plan->n_heads, plan->top_k, &plan->rows[r]);
        plan->n_queries += plan->rows[r].n_queries;
    }
}

static wanted_row reference_row(const dsri_indexer_plan *plan, const dsri_indexer_row_plan *row, wanted_keys keys)
{
    wanted_row want;
    want.lists_bytes = ((row->n_queries - 1) * row->output_stride + plan->top_k) * sizeof(int32_t);
    want.lists = new_array(want.lists_bytes);
    want.scores_bytes = row->n_queries * row->kv_len * sizeof(float);
    want.scores = new_array(want.scores_bytes);
    for (uint32_t i = 0; i < row->n_queries; i++) {
        float *scores = want.scores + i * row->kv_len;
        ref_indexer_scores(row->q + (size_t)i * plan->n_heads * DSRI_INDEX_DIM, row->weights + i * plan->n_heads,
                           keys.keys, keys.stride, row->kv_len, causal_keys(row, i), plan->n_heads, scores);
        ref_top_k(scores, row->kv_len, plan->top_k, row->offset, want.lists + i * row->output_stride);
    }
    return want;
}

static void compare(random_stream *random, const dsri_cpu_kernel *kernel, dsri_indexer_plan *plan,
                    const wanted_row *want)
{
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        dsri_indexer_row_plan *row = &plan->rows[r];
        const dsri_indexer_region region = dsri_indexer_region_of(causal_keys(row, row->n_queries - 1));
        row->output = new_array(want[r].lists_bytes);
        row->workspace = new_array(row->n_queries * region.size_bytes);
        if (row->scores) {
            row->scores = new_array(want[r].scores_bytes);
        }
    }
    run_kernel(kernel, plan, random);
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        const dsri_indexer_row_plan *row = &plan->rows[r];
        char what[128];
        snprintf(what, sizeof what, "row %" PRIu32 ": %" PRIu64 " keys, %" PRIu32 " heads, top %" PRIu32, r,
                 causal_keys(row, row->n_queries - 1), plan->n_heads, plan->top_k);
        if (row->scores) {
            assert_bits(kernel, what, DSR_DTYPE_F32, row->scores, want[r].scores, want[r].scores_bytes);
        }
        assert_bits(kernel, what, DSR_DTYPE_I32, row->output, want[r].lists, want[r].lists_bytes);
    }
}

/* keys: of each row, or null for the plan's own. */
static void compare_all(random_stream *random, dsri_indexer_plan *plan, const wanted_keys *keys)
{
    wanted_row want[3];
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        want[r] = reference_row(plan, &plan->rows[r], keys ? keys[r] : plain_keys(&plan->rows[r]));
    }
    for (const dsri_cpu_kernel *const *kernel = indexer_kernels; *kernel; kernel++) {
        if (can_run(*kernel)) {
            compare(random, *kernel, plan, want);
        }
    }
    drop_arrays();
}

static void test_plans(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 60; i++) {
        random_stream random = random_open(test_seed, i);
        dsri_indexer_plan plan;
        draw_plan(&random, &plan);
        compare_all(&random, &plan, NULL);
    }
}

/* q on the FP4 grid or not; keys of every format. */
static void test_packed_and_paged_keys(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 48; i++) {
        random_stream random = random_open(test_seed, 2000 + i);
        dsri_indexer_plan plan;
        wanted_keys keys[3];
        draw_plan(&random, &plan);
        for (uint32_t r = 0; r < plan.n_rows; r++) {
            dsri_indexer_row_plan *row = &plan.rows[r];
            const drawn_cache drawn = draw_cache(&random, DSRI_INDEX_DIM, row->kv_len);
            if (random_one_in(&random, 2)) {
                row->q =
                    new_bf16(&random, PATTERN_GRID_FP4, 1.0f, (size_t)row->n_queries * plan.n_heads * DSRI_INDEX_DIM);
            }
            row->keys = drawn.cache;
            keys[r] = (wanted_keys){drawn.decoded, DSRI_INDEX_DIM};
        }
        compare_all(&random, &plan, keys);
    }
}

/* One row of one query over n keys; scores wanted, the rest to be filled in. */
static dsri_indexer_plan plan_of(uint32_t n, uint32_t n_heads, uint32_t top_k)
{
    dsri_indexer_plan plan = {.n_rows = 1, .n_queries = 1, .n_heads = n_heads, .top_k = top_k};
    plan.rows[0] = (dsri_indexer_row_plan){.kv_len = n,
                                           .output_stride = top_k,
                                           .scores = new_array(n * sizeof(float)),
                                           .start_pos = n - 1,
                                           .ratio = 1,
                                           .n_queries = 1};
    return plan;
}

/* Tasks of more than the least size, the last one cut short; no score is above 0, which a key that is not there has. */
static void test_long_row(void **state)
{
    enum { N = 16384 + 3 * 256 + 1, N_HEADS = 32 };
    random_stream random = random_open(test_seed, 1000);
    dsri_indexer_plan plan = plan_of(N, N_HEADS, 32);
    float *weights = new_f32(&random, PATTERN_NORMAL, 1.0f, N_HEADS);
    (void)state;
    for (int h = 0; h < N_HEADS; h++) {
        weights[h] = weights[h] > 0.0f ? -weights[h] : weights[h];
    }
    plan.rows[0].keys =
        plain_cache(new_bf16(&random, PATTERN_NORMAL, 1.0f, (size_t)N * DSRI_INDEX_DIM), DSRI_INDEX_DIM);
    plan.rows[0].q = new_bf16(&random, PATTERN_NORMAL, 1.0f, N_HEADS * DSRI_INDEX_DIM);
    plan.rows[0].weights = weights;
    compare_all(&random, &plan, NULL);
}

/* A dot that underflows to -0 counts as +0, so the sign of a zero score is the weights'. */
static void test_zero_signs(void **state)
{
    (void)state;
    for (uint32_t n_heads = 32; n_heads <= 128; n_heads *= 2) {
        for (int negative = 0; negative < 2; negative++) {
            random_stream random = random_open(test_seed, 1001);
            dsri_indexer_plan plan = plan_of(20, n_heads, 32);
            uint16_t *keys = new_array(20 * DSRI_INDEX_DIM * sizeof *keys);
            uint16_t *q = new_array(n_heads * DSRI_INDEX_DIM * sizeof *q);
            float *weights = new_array(n_heads * sizeof *weights);
            for (int i = 0; i < 20 * DSRI_INDEX_DIM; i++) {
                keys[i] = 0x8000 | 0x0080; /* -2^-126 */
            }
            for (uint32_t i = 0; i < n_heads * DSRI_INDEX_DIM; i++) {
                q[i] = 0x0080;
            }
            for (uint32_t h = 0; h < n_heads; h++) {
                weights[h] = negative ? -1.0f : 1.0f;
            }
            plan.rows[0].keys = plain_cache(keys, DSRI_INDEX_DIM);
            plan.rows[0].q = q;
            plan.rows[0].weights = weights;
            compare_all(&random, &plan, NULL);
        }
    }
}

/* Tasks are cut by the row alone: their number for two rows is that of each row added up, however long they are. */
static void test_task_counts(void **state)
{
    static const uint32_t lengths[] = {1, 63, 64, 65, 1023, 1025, 4095, 4096, 32768, 262144, 4000000000u};
    const dsri_cpu_kernel *kernel = indexer_kernels[0];
    (void)state;
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        for (size_t j = 0; j < COUNT_OF(lengths); j++) {
            dsri_indexer_plan plan = {.n_rows = 2, .n_heads = 64, .top_k = 512};
            plan.rows[0] = (dsri_indexer_row_plan){.start_pos = lengths[i] - 1, .ratio = 1, .n_queries = 1};
            plan.rows[1] = (dsri_indexer_row_plan){.start_pos = lengths[j] - 1, .ratio = 1, .n_queries = 5};
            dsri_indexer_plan alone = plan;
            for (uint32_t phase = 0; phase < kernel->n_phases; phase++) {
                alone.n_rows = 1;
                alone.rows[0] = plan.rows[0];
                uint32_t n = kernel->n_tasks(&alone, phase);
                alone.rows[0] = plan.rows[1];
                n += kernel->n_tasks(&alone, phase);
                assert_int_equal(kernel->n_tasks(&plan, phase), n);
            }
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_plans, open_memory, close_memory),
        cmocka_unit_test_setup_teardown(test_packed_and_paged_keys, open_memory, close_memory),
        cmocka_unit_test_setup_teardown(test_long_row, open_memory, close_memory),
        cmocka_unit_test_setup_teardown(test_zero_signs, open_memory, close_memory),
        cmocka_unit_test(test_task_counts),
    };
    if (argc > 1) {
        test_seed = strtoull(argv[1], NULL, 0);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
