/* Row-exact contexts on the CPU: a row alone has the bits that it has in any company, the accuracy that
 * docs/numerics.md states, and lists that follow from its own scores. Every kind of row-exact kernel that this machine
 * has is tried, the others being refused. With the argument "cuda": the accuracy and the lists of some rows on a CUDA
 * device. */
#include "bit_cases.h"
#include "random.h"
#include "reference/reference.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_THREAD_COUNTS = 4, N_REFUSALS = 3 };

static const uint32_t thread_counts[N_THREAD_COUNTS] = {0, 1, 2, 5};
static const char *const refusals[N_REFUSALS] = {"", "amx_bf16", "avx512_bf16,amx_bf16"};

static dsr_device_kind device = DSR_DEVICE_CPU;

static dsr_context *open_context(const char *refused, uint32_t n_threads)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    dsr_context *context = NULL;
    desc.device = device;
    desc.exactness = DSR_EXACT_ROW;
    desc.n_threads = n_threads;
    assert_int_equal(setenv("DSR_WITHOUT", refused, 1), 0);
    assert_int_equal(dsr_context_create(&desc, &context), DSR_OK);
    assert_int_equal(unsetenv("DSR_WITHOUT"), 0);
    return context;
}

/* Whether contexts with the i-th refusal have the kernels of those with the one before. */
static int is_like_previous(int i)
{
    if (i == 0) {
        return 0;
    }
    dsr_context *before = open_context(refusals[i - 1], 1), *context = open_context(refusals[i], 1);
    const int same = strcmp(dsr_registry_kernel_name(before, 0), dsr_registry_kernel_name(context, 0)) == 0;
    dsr_context_destroy(before);
    dsr_context_destroy(context);
    return same;
}

/* ---- company ------------------------------------------------------------------------------------------------ */

/* Of every step-th row. */
static bit_results *run_alone(const bit_case *c, uint32_t step, dsr_context *context)
{
    bit_results *all = calloc(1, sizeof *all);
    assert_non_null(all);
    all->n_rows = c->n_rows;
    for (uint32_t r = 0; r < c->n_rows; r += step) {
        const bit_layout plain = {.poison = 0x55};
        const bit_run run = {.n_replays = 1};
        char text[BIT_TEXT_BYTES] = "";
        bit_placement *p = bit_place(c, &r, 1, &plain, context, text);
        bit_results *one = p ? bit_execute_read(p, context, &run, text) : NULL;
        if (!one) {
            fail_msg("row %u alone: %s", r, text);
        }
        memcpy(all->outputs[r], one->outputs[r], sizeof all->outputs[r]);
        memset(one->outputs[r], 0, sizeof one->outputs[r]);
        bit_results_free(one);
        bit_placement_free(p);
    }
    return all;
}

/* Other numbers of rows, orders, places, alignments, poisons, threads and floating-point modes. The rows of a case have
 * NaN, infinities and bad indices among them. */
static void check_company(const bit_case *c, const bit_results *alone, dsr_context *const *contexts)
{
    static const uint32_t counts[] = {1, 2, 3, 8, 33, 64};
    for (uint32_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        const uint32_t n = counts[i] < c->n_rows ? counts[i] : c->n_rows;
        random_stream random = random_open(c->seed, 900 + i);
        uint32_t order[BIT_MAX_ROWS];
        char text[BIT_TEXT_BYTES] = "";
        for (uint32_t r = 0; r < c->n_rows; r++) {
            order[r] = r;
        }
        random_shuffle(&random, order, c->n_rows);
        const bit_layout layout = {
            .seed = i ? c->seed * 7 + i : 0, .misaligned = (int)(i % 2), .poison = i % 2 ? 0xff : 0x55};
        const bit_run run = {.n_replays = i % 2, .fp_mode = (caller_fp_mode)(i % 3), .scramble = (int)(i % 2 == 0)};
        if (bit_check(c, alone, order, n, &layout, contexts[i % N_THREAD_COUNTS], &run, text)) {
            fail_msg("%s / %s, seed %" PRIu64 ", %u rows, %u threads: %s", bit_op_name(c->op),
                     bit_shape_name(c->op, c->shape), c->seed, n, thread_counts[i % N_THREAD_COUNTS], text);
        }
    }
}

/* ---- accuracy ----------------------------------------------------------------------------------------------- */

static double bf16_value(uint16_t x)
{
    return (double)ref_f32_from_bf16(x);
}

/* The greatest error found, in parts of the bound. */
static double worst;

static void check_error(const bit_case *c, uint32_t r, const char *what, double got, double want, double bound)
{
    const double error = fabs(got - want);
    if (error > bound) {
        fail_msg("%s / %s, seed %" PRIu64 ", row %u: %s %a, float64 %a, error %g, allowed %g", bit_op_name(c->op),
                 bit_shape_name(c->op, c->shape), c->seed, r, what, got, want, error, bound);
    }
    if (bound > 0 && error / bound > worst) {
        worst = error / bound;
    }
}

/* What the sum of products of a query head with a key could be with all signs equal. *flushed is the part with a
 * subnormal operand. */
static double absolute_dot(const uint16_t *q, const uint16_t *k, int n, double *flushed)
{
    double sum = 0;
    *flushed = 0;
    for (int f = 0; f < n; f++) {
        const double x = bf16_value(q[f]), y = bf16_value(k[f]), product = fabs(x * y);
        sum += product;
        *flushed += fabs(x) < 0x1p-126 || fabs(y) < 0x1p-126 ? product : 0;
    }
    return sum;
}

/* A score is off by at most 2^-16 of the sum of |weight| times |q| . |k|, and by what counts as zero: products with
 * subnormal operands, and 128 sums below 2^-126. Where |q| . |k| nearly overflows, a key may be left out. */
static void check_scores(const bit_case *c, uint32_t r, const bit_results *results)
{
    enum { Q, KEYS, WEIGHTS };
    const bit_row *row = &c->rows[r];
    const uint16_t *keys = bit_bf16(&row->inputs[KEYS]);
    double *want = malloc((size_t)row->kv_len * sizeof *want);
    assert_non_null(want);
    for (uint32_t i = 0; i < row->n_queries; i++) {
        const uint16_t *q = bit_bf16(&row->inputs[Q]) + (size_t)i * c->n_heads * DSR_INDEX_DIM;
        const float *weights = bit_f32(&row->inputs[WEIGHTS]) + (size_t)i * c->n_heads;
        const float *scores = bit_f32(&results->outputs[r][1]) + i * row->kv_len;
        acc_indexer_scores(q, weights, keys, DSR_INDEX_DIM, row->kv_len,
                           ((uint64_t)row->start_pos + i + 1) / row->ratio, c->n_heads, want);
        for (uint64_t t = 0; t < row->kv_len; t++) {
            double scale = 0, flushed = 0, most = 0;
            for (uint32_t h = 0; h < c->n_heads; h++) {
                double lost;
                const double dot =
                    absolute_dot(q + (size_t)h * DSR_INDEX_DIM, keys + t * DSR_INDEX_DIM, DSR_INDEX_DIM, &lost);
                most = fmax(most, dot);
                scale += fabs((double)weights[h]) * dot;
                flushed += fabs((double)weights[h]) * (lost + 0x1p-119);
            }
            const int is_near_overflow = fmax(scale, most) > 0.5 * (double)FLT_MAX;
            if (isfinite(want[t]) && !isfinite(scores[t]) && is_near_overflow) {
                continue;
            }
            if (!isfinite(want[t]) || !isfinite(scores[t])) {
                assert_true(is_near_overflow || scores[t] == -INFINITY);
                assert_true(is_near_overflow || want[t] == -INFINITY || isnan(scale));
                continue;
            }
            check_error(c, r, "score", (double)scores[t], want[t], scale * 0x1p-16 + flushed + 0x1p-126);
        }
    }
    free(want);
}

static void check_lists(const bit_case *c, uint32_t r, const bit_results *results)
{
    const bit_row *row = &c->rows[r];
    int32_t *list = malloc(c->top_k * sizeof *list);
    assert_non_null(list);
    for (uint32_t i = 0; i < row->n_queries; i++) {
        ref_top_k(bit_f32(&results->outputs[r][1]) + i * row->kv_len, row->kv_len, c->top_k, row->offset, list);
        assert_memory_equal(bit_i32(&results->outputs[r][0]) + (size_t)i * c->top_k, list, c->top_k * sizeof *list);
    }
    free(list);
}

/* The greatest |q| . |k| * scale of a head, which is what the error of its logits is measured by, and the greatest
 * |value| of the selected rows. */
static void measure_head(const bit_case *c, const bit_row *row, const uint16_t *q, const int32_t *indices,
                         double *logit_scale, double *value_scale)
{
    const uint16_t *kv = bit_bf16(&row->inputs[1]);
    *logit_scale = *value_scale = 0;
    for (uint64_t i = 0; i < row->width; i++) {
        if (indices[i] < 0 || (uint64_t)indices[i] >= row->kv_len) {
            continue;
        }
        const uint16_t *k = kv + (size_t)indices[i] * DSR_HEAD_DIM;
        double lost;
        *logit_scale = fmax(*logit_scale, absolute_dot(q, k, DSR_HEAD_DIM, &lost) * fabs((double)c->scale));
        for (int f = 0; f < DSR_HEAD_DIM; f++) {
            *value_scale = fmax(*value_scale, fabs(bf16_value(k[f])));
        }
    }
}

/* An output is off by at most 2^-8 of itself, and of the greatest selected value 2^-8 plus twice what its logits are
 * off by: 2^-15 of the greatest |q| . |k| * scale. Where a head is zero in the reference, so is it here. */
static void check_outputs(const bit_case *c, uint32_t r, const bit_results *results)
{
    const bit_row *row = &c->rows[r];
    const size_t n = (size_t)c->n_heads * DSR_HEAD_DIM;
    double *want = malloc(n * sizeof *want), *scratch = malloc((size_t)row->width * sizeof *scratch);
    assert_true(want && scratch);
    for (uint32_t i = 0; i < row->n_queries; i++) {
        const uint16_t *q = bit_bf16(&row->inputs[0]) + i * n, *output = bit_bf16(&results->outputs[r][0]) + i * n;
        const int32_t *indices = bit_i32(&row->inputs[2]) + i * row->width;
        acc_sparse_attention(q, bit_bf16(&row->inputs[1]), DSR_HEAD_DIM, row->kv_len, indices, row->width,
                             bit_f32(&c->shared[0]), c->scale, c->n_heads, scratch, want);
        for (uint32_t h = 0; h < c->n_heads; h++) {
            double logit_scale, value_scale;
            measure_head(c, row, q + h * DSR_HEAD_DIM, indices, &logit_scale, &value_scale);
            if (!(logit_scale < 0.5 * (double)FLT_MAX && value_scale < 0x1p100)) {
                continue; /* not finite, or may overflow on the way: whether it is zero depends on the order of sums */
            }
            for (size_t f = h * DSR_HEAD_DIM; f < (h + 1) * DSR_HEAD_DIM; f++) {
                const double logit_error = fmin(1.0, 2 * logit_scale * 0x1p-15);
                check_error(c, r, "output", bf16_value(output[f]), want[f],
                            fabs(want[f]) * 0x1p-8 + value_scale * (0x1p-8 + logit_error) + 0x1p-120);
            }
        }
    }
    free(want);
    free(scratch);
}

/* Heads for which nothing can be computed are +0 everywhere. */
static void check_closed(const bit_case *c, uint32_t r, const bit_results *results)
{
    const bit_row *row = &c->rows[r];
    for (uint32_t i = 0; i < row->n_queries; i++) {
        const int32_t *indices = bit_i32(&row->inputs[2]) + i * row->width;
        int n_selected = 0, n_bad = 0;
        for (uint64_t s = 0; s < row->width; s++) {
            const int is_row = indices[s] >= 0 && (uint64_t)indices[s] < row->kv_len;
            n_bad += indices[s] != -1 && !is_row;
            n_selected += is_row;
            for (int f = 0; is_row && f < DSR_HEAD_DIM; f++) {
                n_bad +=
                    !isfinite(bf16_value(bit_bf16(&row->inputs[1])[(size_t)indices[s] * DSR_HEAD_DIM + (size_t)f]));
            }
        }
        for (uint32_t h = 0; h < c->n_heads; h++) {
            const size_t at = ((size_t)i * c->n_heads + h) * DSR_HEAD_DIM;
            int is_closed = n_selected == 0 || n_bad > 0 || !isfinite(bit_f32(&c->shared[0])[h]);
            for (size_t f = at; f < at + DSR_HEAD_DIM; f++) {
                is_closed |= !isfinite(bf16_value(bit_bf16(&row->inputs[0])[f]));
            }
            for (size_t f = at; f < at + DSR_HEAD_DIM; f++) {
                const uint16_t x = bit_bf16(&results->outputs[r][0])[f];
                assert_true(isfinite(bf16_value(x)));
                assert_true(!is_closed || x == 0);
            }
        }
    }
}

static double e4m3_value(uint8_t code)
{
    static const uint16_t one = 0x3f80;
    static const float scale = 1.0f;
    return (double)ref_projection_fp8(&one, &code, &scale, 1);
}

/* Weight i of an output, counted over all groups; FP8: the value times its scale. */
static double weight_value(const bit_case *c, size_t output, uint32_t i)
{
    const size_t at = output * c->n_inputs + i;
    const size_t scale = output / 128 * ((c->n_inputs + 127) / 128) + i / 128;
    if (c->weight_format == DSR_WEIGHT_BF16 || c->weight_format == DSR_WEIGHT_BF16_PACKED) {
        return bf16_value(bit_bf16(&c->shared[0])[at]);
    }
    return e4m3_value(((const uint8_t *)c->shared[0].data)[at]) *
           (c->shared[1].dtype == DSR_DTYPE_F32 ? (double)bit_f32(&c->shared[1])[scale]
                                                : ldexp(1.0, ((const uint8_t *)c->shared[1].data)[scale] - 127));
}

/* A projection is off by at most 2^-15 of its scale times the sum of |x w|, 2^-14 with FP8 weights, and by what counts
 * as zero; a BF16 output by 2^-8 of itself more. Where the sum nearly overflows, an output may be zero. */
static void check_projection(const bit_case *c, uint32_t r, const bit_results *results)
{
    const int is_f32 = c->output_dtype == DSR_DTYPE_F32, is_fp8 = c->shared[0].dtype == DSR_DTYPE_U8;
    const double output_scale = c->scale != 0.0f ? (double)c->scale : 1.0;
    const bit_array *output = &results->outputs[r][0];
    for (size_t o = 0; o < (size_t)c->n_groups * c->n_outputs; o++) {
        const uint16_t *x = bit_bf16(&c->rows[r].inputs[0]) + o / c->n_outputs * c->n_inputs;
        const double got = is_f32 ? (double)bit_f32(output)[o] : bf16_value(bit_bf16(output)[o]);
        double want = 0, most = 0, flushed = c->n_inputs * 0x1p-126;
        for (uint32_t i = 0; i < c->n_inputs; i++) {
            const double a = bf16_value(x[i]), b = weight_value(c, o, i);
            want += a * b;
            most += fabs(a * b);
            flushed += fabs(a) < 0x1p-126 || fabs(b) < 0x1p-126 ? fabs(a * b) : 0;
        }
        assert_true(isfinite(got));
        if (!isfinite(most)) {
            assert_true(got == 0);
        } else if (got != 0 || fmax(most, most * fabs(output_scale)) < 0.5 * (double)FLT_MAX) {
            const double allowed = fabs(output_scale) * (most * (is_fp8 ? 0x1p-14 : 0x1p-15) + flushed);
            check_error(c, r, "output", got, want * output_scale,
                        allowed + (is_f32 ? 0 : fabs(want * output_scale) * 0x1p-8) + 0x1p-126);
        }
    }
}

static void check_values(const bit_case *c, uint32_t r, const bit_results *results)
{
    if (strcmp(bit_op_name(c->op), "indexer") == 0) {
        check_scores(c, r, results);
        check_lists(c, r, results);
    } else if (strcmp(bit_op_name(c->op), "projection") == 0) {
        check_projection(c, r, results);
    } else {
        check_outputs(c, r, results);
        check_closed(c, r, results);
    }
}

/* ---- tests -------------------------------------------------------------------------------------------------- */

static void check_op(const char *name)
{
    const struct bit_op *op = bit_op_named(name);
    for (int i = 0; i < N_REFUSALS; i++) {
        dsr_context *contexts[N_THREAD_COUNTS];
        if (is_like_previous(i)) {
            continue;
        }
        for (int t = 0; t < N_THREAD_COUNTS; t++) {
            contexts[t] = open_context(refusals[i], thread_counts[t]);
        }
        worst = 0;
        for (uint32_t shape = 0; shape < bit_n_shapes(op); shape++) {
            bit_case *c = bit_case_new(op, shape, 1 + (uint64_t)i);
            bit_results *alone = run_alone(c, 1, contexts[1]);
            check_company(c, alone, contexts);
            for (uint32_t r = 0; r<c->n_rows; r += c->n_rows> 24 ? 5 : 1) {
                check_values(c, r, alone);
            }
            bit_results_free(alone);
            bit_case_free(c);
        }
        printf("%s, %s: greatest error %.3f of its bound\n", name, dsr_registry_kernel_name(contexts[1], 0), worst);
        for (int t = 0; t < N_THREAD_COUNTS; t++) {
            dsr_context_destroy(contexts[t]);
        }
    }
}

static void check_accuracy(const char *name)
{
    const struct bit_op *op = bit_op_named(name);
    dsr_context *context = open_context("", 0);
    worst = 0;
    for (uint32_t shape = 0; shape < bit_n_shapes(op); shape++) {
        bit_case *c = bit_case_new(op, shape, 1);
        const uint32_t step = c->n_rows > 8 ? 13 : 1;
        bit_results *alone = run_alone(c, step, context);
        for (uint32_t r = 0; r < c->n_rows; r += step) {
            check_values(c, r, alone);
        }
        bit_results_free(alone);
        bit_case_free(c);
    }
    printf("%s: greatest error %.3f of its bound\n", name, worst);
    dsr_context_destroy(context);
}

static void test_on_device(void **state)
{
    (void)state;
    check_accuracy("indexer");
    check_accuracy("sparse-attention");
    check_accuracy("flash-attention");
}

static void test_indexer(void **state)
{
    (void)state;
    check_op("indexer");
}

static void test_sparse_attention(void **state)
{
    (void)state;
    check_op("sparse-attention");
}

static void test_flash_attention(void **state)
{
    (void)state;
    check_op("flash-attention");
}

static void test_projection(void **state)
{
    (void)state;
    check_op("projection");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest on_device[] = {cmocka_unit_test(test_on_device)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_indexer),
        cmocka_unit_test(test_sparse_attention),
        cmocka_unit_test(test_flash_attention),
        cmocka_unit_test(test_projection),
    };
    if (argc > 1 && strcmp(argv[1], "cuda") == 0) {
        device = DSR_DEVICE_CUDA;
        return cmocka_run_group_tests_name("row-exact CUDA contexts", on_device, NULL, NULL);
    }
    return cmocka_run_group_tests_name("row-exact contexts", tests, NULL, NULL);
}
