/* The attention kernels against the reference, byte by byte: lists of every shape, on poisoned workspaces. */
#include "drawn_cache.h"
#include "kernel_test.h"

#include "ops/attention_workspace.h"
#include "reference/reference.h"

KERNELS(sparse_attention);
KERNELS(flash_attention);

/* What the reference takes for the KV rows of a plan's row: the plan's own, or the decoded ones. */
typedef struct wanted_kv {
    const uint16_t *rows;
    uint64_t stride;
} wanted_kv;

static wanted_kv plain_kv(const dsri_attention_row_plan *row)
{
    return (wanted_kv){plain_entry(&row->kv, 0), row->kv.row_stride / sizeof(uint16_t)};
}

static void draw_indices(random_stream *random, const dsri_attention_row_plan *row, int32_t *indices)
{
    const uint32_t n_rows = (uint32_t)row->kv_len;
    const uint32_t kind = random_below(random, 8);
    for (uint32_t i = 0; i < row->width; i++) {
        const int skipped = kind == 1   ? random_one_in(random, 3)
                            : kind == 2 ? i / DSRI_CHUNK_SLOTS % 2 == 0 /* whole chunks */
                            : kind == 3 ? !random_one_in(random, 40)
                            : kind == 4 ? i > row->width / 3
                                        : kind == 5;
        indices[i] = skipped ? -1 : (int32_t)random_below(random, n_rows);
    }
    if (kind == 6) {
        indices[random_below(random, row->width)] = random_one_in(random, 2) ? -2 : (int32_t)n_rows;
    }
}

static void draw_row(random_stream *random, uint32_t n_heads, dsri_attention_row_plan *row)
{
    static const uint32_t edges[] = {1, 23, 24, 25, 47, 48, 49, 63, 64, 65, 96, 128, 384, 385, 640, 1000};
    const uint32_t n_edges = sizeof edges / sizeof edges[0];
    row->width = random_one_in(random, 2) ? edges[random_below(random, n_edges)] : random_between(random, 1, 300);
    row->n_queries = random_between(random, 1, 2);
    row->kv_len = random_between(random, 1, 400);
    const uint64_t stride = DSRI_HEAD_DIM + (random_one_in(random, 2) ? random_below(random, 70) : 0);
    row->index_stride = row->width + random_below(random, 5);
    const size_t n_indices = (row->n_queries - 1) * row->index_stride + row->width;
    const size_t query_elements = (size_t)n_heads * DSRI_HEAD_DIM;
    row->kv =
        plain_cache(new_bf16(random, any_pattern(random), 1.0f, (row->kv_len - 1) * stride + DSRI_HEAD_DIM), stride);
    row->q =
        new_bf16(random, any_pattern(random), random_one_in(random, 4) ? 30.0f : 1.0f, row->n_queries * query_elements);
    int32_t *indices = new_array(n_indices * sizeof *indices);
    for (uint32_t i = 0; i < row->n_queries; i++) {
        draw_indices(random, row, indices + i * row->index_stride);
    }
    row->indices = indices;
}

static void draw_plan(random_stream *random, dsri_attention_plan *plan)
{
    memset(plan, 0, sizeof *plan);
    plan->n_rows = random_between(random, 1, 3);
    plan->n_heads = random_one_in(random, 2) ? 64 : 128;
    plan->scale = random_one_in(random, 8) ? 1e36f : 0.04419417382f;
    float *sinks = new_f32(random, any_pattern(random), 4.0f, plan->n_heads);
    if (random_one_in(random, 2)) {
        sinks[random_below(random, plan->n_heads)] = f32_from_bits(0xff800000u); /* the one that leaves no NaN behind */
    }
    plan->sinks = sinks;
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        plan->rows[r].first_query = plan->n_queries;
        draw_row(random, plan->n_heads, &plan->rows[r]);
        plan->n_queries += plan->rows[r].n_queries;
    }
}

static void reference_row(const dsri_attention_plan *plan, const dsri_attention_row_plan *row, wanted_kv kv,
                          uint16_t *output)
{
    const uint64_t n_chunks = dsri_attention_chunks(row->width);
    float *scratch = malloc((n_chunks * 514 + row->width) * sizeof *scratch);
    assert_non_null(scratch);
    for (uint32_t i = 0; i < row->n_queries; i++) {
        const size_t at = (size_t)i * plan->n_heads * DSRI_HEAD_DIM;
        (plan->chunked ? ref_flash_attention : ref_sparse_attention)(
            row->q + at, kv.rows, kv.stride, row->kv_len, row->indices + i * row->index_stride, row->width, plan->sinks,
            plan->scale, plan->n_heads, scratch, output + at);
    }
    free(scratch);
}

static void compare(random_stream *random, dsri_attention_plan *plan, const wanted_kv *kv,
                    const dsri_cpu_kernel *const *kernels)
{
    uint16_t *want[3];
    size_t n_bytes[3];
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        n_bytes[r] = (size_t)plan->rows[r].n_queries * plan->n_heads * DSRI_HEAD_DIM * sizeof(uint16_t);
        want[r] = new_array(n_bytes[r]);
        reference_row(plan, &plan->rows[r], kv[r], want[r]);
    }
    for (; *kernels != NULL; kernels++) {
        if (!can_run(*kernels)) {
            continue;
        }
        for (uint32_t r = 0; r < plan->n_rows; r++) {
            dsri_attention_row_plan *row = &plan->rows[r];
            row->output = new_array(n_bytes[r]);
            const size_t region_bytes =
                dsri_attention_region_of(row->width, plan->n_heads, row->kv.scale_bytes != 0).size_bytes;
            row->workspace = new_array(row->n_queries * region_bytes);
            memset(row->workspace, 0xff, row->n_queries * region_bytes); /* NaN */
        }
        run_kernel(*kernels, plan, random);
        for (uint32_t r = 0; r < plan->n_rows; r++) {
            assert_bits(*kernels, "output", DSR_DTYPE_BF16, plan->rows[r].output, want[r], n_bytes[r]);
        }
    }
}

static void compare_both_forms(random_stream *random, dsri_attention_plan *plan, const wanted_kv *kv)
{
    plan->chunked = 0;
    compare(random, plan, kv, sparse_attention_kernels);
    plan->chunked = 1;
    compare(random, plan, kv, flash_attention_kernels);
    drop_arrays();
}

static void kernels_give_the_reference_bits(void **state)
{
    (void)state;
    static dsri_attention_plan plan;
    for (test_seed = 1; test_seed <= 16; test_seed++) {
        random_stream random = random_open(test_seed, 0);
        draw_plan(&random, &plan);
        const wanted_kv kv[3] = {plain_kv(&plan.rows[0]), plain_kv(&plan.rows[1]), plain_kv(&plan.rows[2])};
        compare_both_forms(&random, &plan, kv);
    }
}

static void packed_and_paged_rows_give_the_bits_of_decoded_ones(void **state)
{
    (void)state;
    static dsri_attention_plan plan;
    for (test_seed = 200; test_seed < 210; test_seed++) {
        random_stream random = random_open(test_seed, 0);
        wanted_kv kv[3];
        draw_plan(&random, &plan);
        for (uint32_t r = 0; r < plan.n_rows; r++) {
            const drawn_cache drawn = draw_cache(&random, DSRI_HEAD_DIM, plan.rows[r].kv_len);
            plan.rows[r].kv = drawn.cache;
            kv[r] = (wanted_kv){drawn.decoded, DSRI_HEAD_DIM};
        }
        compare_both_forms(&random, &plan, kv);
    }
}

/* A list of more than 48 * 64 slots, so that no per-list array of a kernel has a fixed size. */
static void long_lists_give_the_reference_bits(void **state)
{
    (void)state;
    static dsri_attention_plan plan;
    test_seed = 100;
    random_stream random = random_open(test_seed, 0);
    do {
        draw_plan(&random, &plan);
    } while (plan.n_rows != 1);
    dsri_attention_row_plan *row = &plan.rows[0];
    int32_t *indices = new_array(5000 * sizeof *indices);
    row->width = 5000;
    row->n_queries = plan.n_queries = 1;
    row->index_stride = row->width;
    for (uint32_t i = 0; i < row->width; i++) {
        indices[i] = random_one_in(&random, 9) ? -1 : (int32_t)random_below(&random, (uint32_t)row->kv_len);
    }
    row->indices = indices;
    row->kv = plain_cache(new_bf16(&random, PATTERN_NORMAL, 1.0f, row->kv_len * DSRI_HEAD_DIM), DSRI_HEAD_DIM);
    row->q = new_bf16(&random, PATTERN_NORMAL, 1.0f, (size_t)plan.n_heads * DSRI_HEAD_DIM);
    const wanted_kv kv = plain_kv(row);
    compare_both_forms(&random, &plan, &kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_give_the_reference_bits),
        cmocka_unit_test(packed_and_paged_rows_give_the_bits_of_decoded_ones),
        cmocka_unit_test(long_lists_give_the_reference_bits),
    };
    return cmocka_run_group_tests(tests, open_memory, close_memory);
}
