/* The AMX kernels, on emulated tiles, against a plain model of their sums, bit for bit. */
#include "drawn_cache.h"
#include "kernel_test.h"

#include "ops/attention_workspace.h"
#include "ops/indexer_workspace.h"
#include "ops/projection_layout.h"
#include "reference/reference.h"

#include <dsrows/ops.h>

#include <math.h>

#if defined(DSRI_HAVE_AMXBF16)

extern const dsri_cpu_kernel dsri_kernel_indexer__amxemulated;
extern const dsri_cpu_kernel dsri_kernel_sparse_attention__amxemulated;
extern const dsri_cpu_kernel dsri_kernel_flash_attention__amxemulated;
extern const dsri_cpu_kernel dsri_kernel_projection__amxemulated;

static float flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

static float bf16(uint16_t x)
{
    return flush(ref_f32_from_bf16(x));
}

/* sum + 32 products of x [32] with feature f of 32 rows, as one tile step adds them. */
static float add_step(float sum, const uint16_t *x, const uint16_t *const y[32], uint32_t f)
{
    float parts[2] = {0.0f, 0.0f};
    for (int i = 0; i < 32; i++) {
        parts[i % 2] = flush(fmaf(bf16(x[i]), bf16(y[i][f]), parts[i % 2]));
    }
    return flush(sum + flush(parts[0] + parts[1]));
}

static float dot(const uint16_t *x, const uint16_t *y, uint32_t n)
{
    float sum = 0.0f;
    for (uint32_t i = 0; i < n; i += 32) {
        const uint16_t *elements[32];
        for (uint32_t j = 0; j < 32; j++) {
            elements[j] = y + i + j;
        }
        sum = add_step(sum, x + i, elements, 0);
    }
    return sum;
}

/* ---- indexer ------------------------------------------------------------------------------------------------ */

static float model_score(const uint16_t *q, const float *weights, const uint16_t *key, uint32_t n_heads)
{
    float sums[16] = {0.0f};
    for (uint32_t h = 0; h < n_heads; h++) {
        const float d = dot(key, q + (size_t)h * DSRI_INDEX_DIM, DSRI_INDEX_DIM);
        sums[h % 16] = fmaf(isfinite(d) ? fmaxf(d, 0.0f) + 0.0f : NAN, weights[h], sums[h % 16]);
    }
    for (int s = 8; s > 0; s /= 2) {
        for (int i = 0; i < s; i++) {
            sums[i] += sums[i + s];
        }
    }
    return isfinite(sums[0]) ? sums[0] : -INFINITY;
}

static void draw_indexer_row(random_stream *random, const dsri_indexer_plan *plan, dsri_indexer_row_plan *row)
{
    static const uint32_t lengths[] = {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 191, 192, 193};
    row->n_queries = random_between(random, 1, 2);
    row->kv_len = lengths[random_below(random, sizeof lengths / sizeof lengths[0])];
    row->ratio = 4;
    row->start_pos = random_between(random, 1, (uint32_t)row->kv_len * 4 - 1);
    row->n_queries = row->start_pos + row->n_queries <= row->kv_len * 4 ? row->n_queries : 1;
    const uint64_t stride = DSRI_INDEX_DIM + (random_one_in(random, 2) ? random_below(random, 40) : 0);
    row->keys =
        plain_cache(new_bf16(random, any_pattern(random), 1.0f, (row->kv_len - 1) * stride + DSRI_INDEX_DIM), stride);
    row->q = new_bf16(random, any_pattern(random), 1.0f, (size_t)row->n_queries * plan->n_heads * DSRI_INDEX_DIM);
    row->weights = new_f32(random, any_pattern(random), 0.1f, (size_t)row->n_queries * plan->n_heads);
    row->output_stride = plan->top_k;
    row->output = new_array((size_t)row->n_queries * plan->top_k * sizeof *row->output);
    row->scores = new_array((size_t)(row->n_queries * row->kv_len) * sizeof *row->scores);
    const uint64_t n_causal = ((uint64_t)row->start_pos + row->n_queries) / row->ratio;
    row->workspace = new_array(row->n_queries * dsri_indexer_region_of(n_causal).size_bytes);
}

static void check_indexer_row(const dsri_indexer_plan *plan, const dsri_indexer_row_plan *row)
{
    const dsri_cpu_kernel *kernel = &dsri_kernel_indexer__amxemulated;
    float *scores = malloc((size_t)row->kv_len * sizeof *scores);
    int32_t *list = malloc(plan->top_k * sizeof *list);
    assert_true(scores && list);
    for (uint32_t i = 0; i < row->n_queries; i++) {
        const uint64_t n_causal = ((uint64_t)row->start_pos + i + 1) / row->ratio;
        for (uint64_t t = 0; t < row->kv_len; t++) {
            scores[t] = t >= n_causal ? -INFINITY
                                      : model_score(row->q + (size_t)i * plan->n_heads * DSRI_INDEX_DIM,
                                                    row->weights + (size_t)i * plan->n_heads,
                                                    plain_entry(&row->keys, t), plan->n_heads);
        }
        ref_top_k(scores, row->kv_len, plan->top_k, row->offset, list);
        assert_bits(kernel, "scores", DSR_DTYPE_F32, row->scores + i * row->kv_len, scores,
                    (size_t)row->kv_len * sizeof *scores);
        assert_bits(kernel, "list", DSR_DTYPE_I32, row->output + i * row->output_stride, list,
                    plan->top_k * sizeof *list);
    }
    free(scores);
    free(list);
}

static void indexer_on_tiles(void **state)
{
    static const uint32_t head_counts[] = {32, 64, 128};
    (void)state;
    for (test_seed = 1; test_seed <= 48; test_seed++) { /* from 25 on, row 0 is packed or paged */
        random_stream random = random_open(test_seed, 0);
        drawn_cache drawn;
        static dsri_indexer_plan plan;
        memset(&plan, 0, sizeof plan);
        plan.n_rows = random_between(&random, 1, 2);
        plan.n_heads = head_counts[test_seed % 3];
        plan.top_k = 32;
        for (uint32_t r = 0; r < plan.n_rows; r++) {
            draw_indexer_row(&random, &plan, &plan.rows[r]);
            plan.rows[r].first_query = plan.n_queries;
            plan.n_queries += plan.rows[r].n_queries;
            if (r == 0 && test_seed > 24) {
                drawn = draw_cache(&random, DSRI_INDEX_DIM, plan.rows[r].kv_len);
                plan.rows[r].keys = drawn.cache;
            }
        }
        run_kernel(&dsri_kernel_indexer__amxemulated, &plan, &random);
        if (test_seed > 24) {
            plan.rows[0].keys = plain_cache(drawn.decoded, DSRI_INDEX_DIM);
        }
        for (uint32_t r = 0; r < plan.n_rows; r++) {
            check_indexer_row(&plan, &plan.rows[r]);
        }
        drop_arrays();
    }
}

/* ---- attention ---------------------------------------------------------------------------------------------- */

static void draw_attention_row(random_stream *random, const dsri_attention_plan *plan, dsri_attention_row_plan *row)
{
    static const uint32_t widths[] = {1, 2, 15, 16, 17, 23, 24, 25, 31, 32, 33, 47, 48, 49, 63, 64, 65, 130};
    static const uint32_t wide[] = {385, 400, 520, 545};
    const int is_wide = plan->n_rows == 1;
    row->width = is_wide ? wide[random_below(random, 4)] : widths[random_below(random, sizeof widths / sizeof *widths)];
    row->n_queries = is_wide ? 1 : random_between(random, 1, 2);
    row->kv_len = random_between(random, 1, 100);
    const uint64_t stride = DSRI_HEAD_DIM + (random_one_in(random, 2) ? random_below(random, 70) : 0);
    row->index_stride = row->width;
    row->kv =
        plain_cache(new_bf16(random, any_pattern(random), 1.0f, (row->kv_len - 1) * stride + DSRI_HEAD_DIM), stride);
    const size_t n = (size_t)row->n_queries * plan->n_heads * DSRI_HEAD_DIM;
    row->q = new_bf16(random, any_pattern(random), 1.0f, n);
    row->output = new_array(n * sizeof *row->output);
    int32_t *indices = new_array(row->n_queries * row->width * sizeof *indices);
    const uint32_t skip = random_between(random, 2, 8);
    for (uint32_t i = 0; i < row->n_queries * row->width; i++) {
        indices[i] = random_one_in(random, skip) ? -1 : (int32_t)random_below(random, (uint32_t)row->kv_len);
    }
    if (random_one_in(random, 6)) {
        indices[random_below(random, row->width)] = (int32_t)row->kv_len;
    }
    row->indices = indices;
    row->workspace = new_array(row->n_queries * dsri_attention_region_of(row->width, plan->n_heads, 1).size_bytes);
}

/* KV rows that a list selects; -1 for a bad one. */
static int selected_rows(const dsri_attention_row_plan *row, const int32_t *indices, const uint16_t **rows)
{
    int n = 0;
    for (uint32_t i = 0; i < row->width; i++) {
        if (indices[i] < -1 || indices[i] >= (int32_t)row->kv_len) {
            return -1;
        }
        if (indices[i] >= 0) {
            rows[n++] = plain_entry(&row->kv, (uint64_t)indices[i]);
        }
    }
    return n;
}

/* 2^y as the kernel has it. */
static float power_of(float y)
{
    const float magic = 12582912.0f, t = y + magic, r = y - (t - magic);
    float p = fmaf(0x1.c3f764p-5f, r, 0x1.f0de20p-3f);
    uint32_t p_bits, t_bits;
    if (y < -125.5f) {
        return 0.0f;
    }
    p = fmaf(p, r, 0x1.62f31ap-1f);
    p = fmaf(p, r, 0x1.fff692p-1f);
    memcpy(&p_bits, &p, sizeof p);
    memcpy(&t_bits, &t, sizeof t);
    p_bits += t_bits << 23;
    memcpy(&p, &p_bits, sizeof p);
    return p;
}

/* Rounded to BF16, ties away from zero. */
static uint16_t rounded_weight(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x8000u) >> 16);
}

static void model_head(const dsri_attention_plan *plan, uint32_t h, const uint16_t *q, const uint16_t **rows, int n,
                       uint16_t *output)
{
    static const uint16_t zeros[DSRI_HEAD_DIM];
    const float log2_e = 0x1.715476p+0f;
    float *products = calloc((size_t)n + 64, sizeof *products);
    uint16_t *weights = calloc((size_t)n + 64, sizeof *weights);
    float max = plan->sinks[h], sum;
    int usable = n > 0 && isfinite(max);
    assert_true(products && weights);
    memset(output, 0, DSRI_HEAD_DIM * sizeof *output);
    for (int i = 0; i < n; i++) {
        products[i] = dot(rows[i], q, DSRI_HEAD_DIM);
        usable &= isfinite(products[i] * plan->scale);
        max = fmaxf(max, products[i] * plan->scale);
    }
    const float offset = max * -log2_e;
    sum = usable ? power_of(fmaf(plan->sinks[h], log2_e, offset)) : 0.0f;
    for (int i = 0; usable && i < n; i++) {
        weights[i] = rounded_weight(power_of(fmaf(products[i], plan->scale * log2_e, offset)));
        sum += ref_f32_from_bf16(weights[i]);
    }
    for (uint32_t f = 0; usable && f < DSRI_HEAD_DIM; f++) {
        float numerator = 0.0f;
        for (int i = 0; i < n; i += 32) {
            const uint16_t *group[32];
            for (int j = 0; j < 32; j++) {
                group[j] = i + j < n ? rows[i + j] : zeros;
            }
            numerator = add_step(numerator, weights + i, group, f);
        }
        const uint16_t rounded = ref_bf16_from_f32(numerator * (1.0f / sum));
        output[f] = isfinite(ref_f32_from_bf16(rounded)) ? rounded : 0;
    }
    free(products);
    free(weights);
}

static void check_attention_row(const dsri_cpu_kernel *kernel, const dsri_attention_plan *plan,
                                const dsri_attention_row_plan *row)
{
    const uint16_t **rows = malloc(row->width * sizeof *rows);
    uint16_t output[DSRI_HEAD_DIM];
    assert_non_null(rows);
    for (uint32_t i = 0; i < row->n_queries; i++) {
        const int n = selected_rows(row, row->indices + i * row->index_stride, rows);
        /* Some heads of each block, others as the seeds go. */
        for (uint32_t h = (uint32_t)test_seed % 5; h < plan->n_heads; h += 5) {
            const size_t at = ((size_t)i * plan->n_heads + h) * DSRI_HEAD_DIM;
            model_head(plan, h, row->q + at, rows, n < 0 ? 0 : n, output);
            assert_bits(kernel, "output", DSR_DTYPE_BF16, row->output + at, output, sizeof output);
        }
    }
    free(rows);
}

static void attention_on_tiles(void **state)
{
    (void)state;
    for (test_seed = 1; test_seed <= 32; test_seed++) { /* from 17 on, row 0 is packed or paged */
        random_stream random = random_open(test_seed, 1);
        drawn_cache drawn;
        const dsri_cpu_kernel *kernel =
            test_seed % 2 ? &dsri_kernel_sparse_attention__amxemulated : &dsri_kernel_flash_attention__amxemulated;
        static dsri_attention_plan plan;
        memset(&plan, 0, sizeof plan);
        plan.n_rows = random_between(&random, 1, 3);
        plan.n_heads = random_one_in(&random, 4) ? 128 : 64;
        plan.chunked = test_seed % 2 == 0;
        plan.scale = 0.04419417382f;
        plan.sinks = new_f32(&random, any_pattern(&random), 4.0f, plan.n_heads);
        for (uint32_t r = 0; r < plan.n_rows; r++) {
            draw_attention_row(&random, &plan, &plan.rows[r]);
            plan.rows[r].first_query = plan.n_queries;
            plan.n_queries += plan.rows[r].n_queries;
            if (r == 0 && test_seed > 16) {
                drawn = draw_cache(&random, DSRI_HEAD_DIM, plan.rows[r].kv_len);
                plan.rows[r].kv = drawn.cache;
            }
        }
        run_kernel(kernel, &plan, &random);
        if (test_seed > 16) {
            plan.rows[0].kv = plain_cache(drawn.decoded, DSRI_HEAD_DIM);
        }
        for (uint32_t r = 0; r < plan.n_rows; r++) {
            check_attention_row(kernel, &plan, &plan.rows[r]);
        }
        drop_arrays();
    }
}

/* ---- projections -------------------------------------------------------------------------------------------- */

/* Sum of n products of x and w, 32 at a time. */
static float sum_of_steps(const uint16_t *x, const uint16_t *w, uint32_t n)
{
    static const uint16_t zero = 0;
    float sum = 0.0f;
    for (uint32_t i = 0; i < n; i += 32) {
        uint16_t step_x[32] = {0};
        const uint16_t *step_w[32];
        for (uint32_t j = 0; j < 32; j++) {
            step_x[j] = i + j < n ? x[i + j] : 0;
            step_w[j] = i + j < n ? w + i + j : &zero;
        }
        sum = add_step(sum, step_x, step_w, 0);
    }
    return sum;
}

/* w: BF16 weights, or the values of FP8 weights, which have scales. */
static float model_output(const uint16_t *x, const uint16_t *w, const float *scales, uint32_t n, float scale)
{
    const uint32_t part = scales ? DSRI_FP8_BLOCK : DSRI_SEGMENT_INPUTS;
    float total = 0.0f;
    for (uint32_t i = 0; i < n; i += part) {
        total = fmaf(sum_of_steps(x + i, w + i, n - i < part ? n - i : part), scales ? scales[i / part] : 1.0f, total);
    }
    total *= scale;
    return isfinite(total) ? total : 0.0f;
}

static uint16_t e4m3_value(uint8_t code)
{
    static const uint16_t one = 0x3f80;
    static const float scale = 1.0f;
    return bf16_from_f32_exact(ref_projection_fp8(&one, &code, &scale, 1));
}

typedef struct weights {
    dsr_projection_weights all;
    const uint16_t *values; /* [output][input], without scales */
    float *scales;          /* FP8 */
} weights;

static void draw_weights(random_stream *random, const dsri_projection_plan *plan, weights *w)
{
    const size_t n_outputs = (size_t)plan->n_groups * plan->n_outputs, n = n_outputs * plan->n_inputs;
    const size_t n_scales = (n_outputs + 127) / 128 * ((plan->n_inputs + 127) / 128);
    memset(w, 0, sizeof *w);
    w->all = (dsr_projection_weights){.struct_size = sizeof w->all,
                                      .n_groups = plan->n_groups,
                                      .n_inputs = plan->n_inputs,
                                      .n_outputs = plan->n_outputs,
                                      .scales_dtype = DSR_DTYPE_F32};
    if (plan->format == DSR_WEIGHT_BF16_PACKED) {
        w->all.format = DSR_WEIGHT_BF16;
        w->values = w->all.data = new_bf16(random, any_pattern(random), 0x1p-4f, n);
        return;
    }
    uint8_t *codes = new_array(n);
    uint16_t *values = new_array(n * sizeof *values);
    for (size_t i = 0; i < n; i++) {
        codes[i] = (uint8_t)(random_below(random, 2) << 7 | random_below(random, 0x7f));
        values[i] = e4m3_value(codes[i]);
    }
    w->all.format = DSR_WEIGHT_FP8;
    w->all.data = codes;
    w->values = values;
    w->all.scales = w->scales = new_f32(random, any_pattern(random), 0x1p-7f, n_scales);
}

static const void *pack_weights(const weights *w)
{
    dsr_context *context;
    uint64_t n_bytes;
    assert_int_equal(dsr_context_create(NULL, &context), DSR_OK);
    assert_int_equal(dsr_projection_packed_bytes(context, &w->all, &n_bytes), DSR_OK);
    void *packed = new_array(n_bytes);
    assert_int_equal(dsr_projection_pack(context, &w->all, packed, n_bytes), DSR_OK);
    dsr_context_destroy(context);
    return packed;
}

static void model_outputs(const dsri_projection_plan *plan, const weights *w, float *outputs)
{
    const size_t n = plan->n_inputs, n_outputs = (size_t)plan->n_groups * plan->n_outputs;
    for (size_t i = 0; i < plan->n_rows * n_outputs; i++) {
        const size_t row = i / n_outputs, o = i % n_outputs, group = o / plan->n_outputs;
        outputs[i] = model_output(plan->input + (row * plan->n_groups + group) * n, w->values + o * n,
                                  w->scales ? w->scales + o / 128 * ((n + 127) / 128) : NULL, plan->n_inputs,
                                  plan->output_scale);
    }
}

static void projections_on_tiles(void **state)
{
    static const uint32_t inputs[] = {16, 32, 48, 112, 144, 512, 528, 672, 1040};
    static const uint32_t rows[] = {1, 2, 8, 15, 16, 17, 32, 33, 64};
    const dsri_cpu_kernel *kernel = &dsri_kernel_projection__amxemulated;
    (void)state;
    for (test_seed = 1; test_seed <= 60; test_seed++) {
        random_stream random = random_open(test_seed, 2);
        dsri_projection_plan plan = {.n_rows = rows[test_seed % 9],
                                     .n_groups = random_between(&random, 1, 2),
                                     .n_inputs = inputs[random_below(&random, 9)],
                                     .n_outputs = random_between(&random, 1, 70),
                                     .format =
                                         random_one_in(&random, 2) ? DSR_WEIGHT_BF16_PACKED : DSR_WEIGHT_FP8_PACKED,
                                     .output_is_f32 = 1,
                                     .output_scale = random_one_in(&random, 2) ? 1.0f : 0.3f};
        const size_t n_vectors = (size_t)plan.n_rows * plan.n_groups, output_bytes = n_vectors * plan.n_outputs * 4;
        weights w;
        draw_weights(&random, &plan, &w);
        float *want = new_array(output_bytes);
        plan.input = new_bf16(&random, any_pattern(&random), 1.0f, n_vectors * plan.n_inputs);
        plan.weight = pack_weights(&w);
        plan.output = new_array(output_bytes);
        model_outputs(&plan, &w, want);
        assert_true(kernel->accepts(&plan));
        run_kernel(kernel, &plan, &random);
        assert_bits(kernel, "output", DSR_DTYPE_F32, plan.output, want, output_bytes);
        drop_arrays();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(projections_on_tiles),
        cmocka_unit_test(indexer_on_tiles),
        cmocka_unit_test(attention_on_tiles),
    };
    return dsr_isa_available(DSR_ISA_AVX512)
               ? cmocka_run_group_tests_name("emulated tiles", tests, open_memory, close_memory)
               : 77;
}

#else

int main(void)
{
    return 77;
}

#endif
