/* The indexer's selection against the reference on scores of every shape, fed to it as a finished score phase. */
#include "kernel_test.h"

#include "ops/indexer_workspace.h"
#include "reference/reference.h"

#include <math.h>

KERNELS(indexer);

#define COUNT_OF(a) (sizeof(a) / sizeof(a)[0])

typedef float score_shape(random_stream *random, uint32_t t, uint32_t n);

static float uniform(random_stream *random)
{
    return (float)(random_next(random) >> 40) * 0x1p-24f;
}

static float any(random_stream *random, uint32_t t, uint32_t n)
{
    (void)t, (void)n;
    return 4.0f * uniform(random) - 1.0f;
}

static float rising(random_stream *random, uint32_t t, uint32_t n)
{
    (void)random, (void)n;
    return (float)t * 0.5f;
}

static float falling(random_stream *random, uint32_t t, uint32_t n)
{
    (void)random, (void)n;
    return -70000.0f - (float)t;
}

static float equal(random_stream *random, uint32_t t, uint32_t n)
{
    (void)random, (void)t, (void)n;
    return 0.25f;
}

static float two_values(random_stream *random, uint32_t t, uint32_t n)
{
    (void)t, (void)n;
    return random_one_in(random, 2) ? 1.0f : 2.0f;
}

static float crowded(random_stream *random, uint32_t t, uint32_t n)
{
    (void)t, (void)n;
    return f32_from_bits(0x3f800000u | (uint32_t)(random_next(random) >> 44));
}

static float next_to_each_other(random_stream *random, uint32_t t, uint32_t n)
{
    (void)random;
    return f32_from_bits(0x3f800000u + (t * 7919u) % n);
}

/* Two neighbours among the floats, the greater one now and then. */
static float neighbours(random_stream *random, uint32_t t, uint32_t n)
{
    (void)t, (void)n;
    return random_one_in(random, 400) ? 0x1.000002p+0f : 1.0f;
}

static float few_above_zero(random_stream *random, uint32_t t, uint32_t n)
{
    (void)n;
    return t % 83 == 0 ? 1.0f + uniform(random) : 0.0f;
}

static float many_masked(random_stream *random, uint32_t t, uint32_t n)
{
    (void)t, (void)n;
    return random_one_in(random, 3) ? uniform(random) : -INFINITY;
}

static float all_masked(random_stream *random, uint32_t t, uint32_t n)
{
    (void)random, (void)t, (void)n;
    return -INFINITY;
}

static float signed_zeros(random_stream *random, uint32_t t, uint32_t n)
{
    (void)t, (void)n;
    return random_one_in(random, 60) ? (uniform(random) - 0.5f) * 0x1p-130f : random_one_in(random, 2) ? -0.0f : 0.0f;
}

static float minus_zero_at_best(random_stream *random, uint32_t t, uint32_t n)
{
    (void)t, (void)n;
    return random_one_in(random, 30) ? -0.0f : -uniform(random);
}

static float any_bits(random_stream *random, uint32_t t, uint32_t n)
{
    const float x = f32_from_bits((uint32_t)random_next(random));
    (void)t, (void)n;
    return isfinite(x) ? x : -INFINITY;
}

static float extremes(random_stream *random, uint32_t t, uint32_t n)
{
    static const float values[] = {-0x1.fffffep+127f, 0x1.fffffep+127f, -0x1.fffffcp+127f, -0x1p-149f};
    (void)t, (void)n;
    return values[random_below(random, COUNT_OF(values))];
}

/* The least of all scores there can be is selected like any other. */
static float lowest(random_stream *random, uint32_t t, uint32_t n)
{
    (void)random, (void)t, (void)n;
    return -0x1.fffffep+127f;
}

static float one_per_block(random_stream *random, uint32_t t, uint32_t n)
{
    (void)n;
    return t % DSRI_SCORE_BLOCK == 5 ? 3.0f : uniform(random);
}

static float best_last(random_stream *random, uint32_t t, uint32_t n)
{
    return uniform(random) + (t >= n - n / 20 ? 10.0f : 0.0f);
}

static float bf16_values(random_stream *random, uint32_t t, uint32_t n)
{
    (void)t, (void)n;
    return f32_from_bits(f32_to_bits(uniform(random)) & 0xffff0000u);
}

static const struct {
    const char *name;
    score_shape *score;
} shapes[] = {
    {"any", any},
    {"rising", rising},
    {"falling", falling},
    {"equal", equal},
    {"two values", two_values},
    {"crowded", crowded},
    {"next to each other", next_to_each_other},
    {"neighbours", neighbours},
    {"few above zero", few_above_zero},
    {"many masked", many_masked},
    {"all masked", all_masked},
    {"signed zeros", signed_zeros},
    {"minus zero at best", minus_zero_at_best},
    {"any bits", any_bits},
    {"extremes", extremes},
    {"lowest", lowest},
    {"one per block", one_per_block},
    {"best last", best_last},
    {"BF16 values", bf16_values},
};

/* The workspace as the score phase leaves it: with the maxima of blocks, and poison where nothing is written. */
static uint8_t *new_workspace(const float *scores, uint32_t n)
{
    const dsri_indexer_region region = dsri_indexer_region_of(n);
    uint8_t *workspace = new_array(region.size_bytes);
    float *maxima = (void *)(workspace + region.block_maxima);
    for (uint32_t t = 0; t < n; t++) {
        float *maximum = &maxima[t / DSRI_SCORE_BLOCK];
        *maximum = t % DSRI_SCORE_BLOCK == 0 || scores[t] > *maximum ? scores[t] : *maximum;
    }
    return workspace;
}

static void check(uint32_t shape, uint32_t n, uint32_t top_k)
{
    random_stream random = random_open(test_seed, ((uint64_t)shape << 32 | n) << 16 | top_k);
    dsri_indexer_plan plan = {.n_rows = 1, .n_queries = 1, .n_heads = 32, .top_k = top_k};
    dsri_indexer_row_plan *row = &plan.rows[0];
    float *scores = new_array(n * sizeof *scores);
    int32_t *want = new_array(top_k * sizeof *want);
    for (uint32_t t = 0; t < n; t++) {
        scores[t] = shapes[shape].score(&random, t, n);
    }
    *row = (dsri_indexer_row_plan){.kv_len = n,
                                   .scores = scores,
                                   .workspace = new_workspace(scores, n),
                                   .start_pos = n - 1,
                                   .ratio = 1,
                                   .offset = (int32_t)random_below(&random, 200),
                                   .n_queries = 1,
                                   .output_stride = top_k};
    ref_top_k(scores, n, top_k, row->offset, want);

    for (const dsri_cpu_kernel *const *kernel = indexer_kernels; *kernel; kernel++) {
        if (can_run(*kernel)) {
            static dsri_worker_memory memory;
            char what[96];
            row->output = new_array(top_k * sizeof *row->output);
            pattern_fill_bits(&random, memory.scratch, sizeof memory.scratch / 8);
            (*kernel)->run(&plan, (*kernel)->n_phases - 1, 0, memory.scratch);
            snprintf(what, sizeof what, "%s, %" PRIu32 " scores, top %" PRIu32, shapes[shape].name, n, top_k);
            assert_bits(*kernel, what, DSR_DTYPE_I32, row->output, want, top_k * sizeof *want);
        }
    }
    drop_arrays();
}

static void test_edges(void **state)
{
    static const uint32_t sizes[] = {1,    2,    15,   16,   17,   31,   32,   33,   63,    64,    65,    255,
                                     256,  301,  511,  512,  513,  1023, 1024, 1025, 2047,  2048,  2049,  4095,
                                     4096, 4097, 8192, 8193, 8209, 8320, 8704, 9000, 16383, 16384, 16385, 32769};
    static const uint32_t ks[] = {32, 256, 512, 2048};
    (void)state;
    for (uint32_t shape = 0; shape < COUNT_OF(shapes); shape++) {
        for (size_t i = 0; i < COUNT_OF(sizes); i++) {
            check(shape, sizes[i], ks[(shape + i) % COUNT_OF(ks)]);
        }
    }
}

static void test_random_sizes(void **state)
{
    random_stream random = random_open(test_seed, 1);
    (void)state;
    for (int i = 0; i < 600; i++) {
        check(random_below(&random, COUNT_OF(shapes)),
              random_between(&random, 1, random_one_in(&random, 3) ? 9000 : 700), 32 * random_between(&random, 1, 64));
    }
}

static void test_long_rows(void **state)
{
    static const uint32_t sizes[] = {262143, 262144, 262145, 262209};
    (void)state;
    for (uint32_t shape = 0; shape < COUNT_OF(shapes); shape += 2) {
        check(shape, sizes[shape / 2 % COUNT_OF(sizes)], shape % 4 ? 512 : 2048);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_edges, open_memory, close_memory),
        cmocka_unit_test_setup_teardown(test_random_sizes, open_memory, close_memory),
        cmocka_unit_test_setup_teardown(test_long_rows, open_memory, close_memory),
    };
    if (argc > 1) {
        test_seed = strtoull(argv[1], NULL, 0);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
