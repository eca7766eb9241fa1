#include "bit_matrix.h"

#include <stdio.h>
#include <string.h>

static const dsr_isa isas[BIT_N_ISAS] = {DSR_ISA_SCALAR, DSR_ISA_AVX2, DSR_ISA_AVX512, DSR_ISA_NEON};
static const uint32_t thread_counts[BIT_N_THREAD_COUNTS] = {0, 1, 2, 5};
static const uint32_t row_counts[] = {1, 2, 3, 7, 8, 33, 64};

enum { N_ROW_COUNTS = sizeof row_counts / sizeof row_counts[0] };

/* One point of the product. */
typedef struct point {
    uint32_t isa, rows, threads, misaligned, fp_mode, drawn_layout;
} point;

static int open_level(bit_contexts *contexts, uint32_t level, dsr_device_kind device, dsr_isa isa,
                      char text[BIT_TEXT_BYTES])
{
    for (uint32_t t = 0; t < contexts->n_thread_counts; t++) {
        dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
        desc.device = device;
        desc.isa = isa;
        desc.n_threads = thread_counts[t];
        if (dsr_context_create(&desc, &contexts->of[level][t]) != DSR_OK) {
            snprintf(text, BIT_TEXT_BYTES, "%s, %u threads: %s", dsr_isa_name(isa), thread_counts[t],
                     dsr_create_error_text());
            bit_contexts_close(contexts);
            return -1;
        }
    }
    return 0;
}

int bit_contexts_open(bit_contexts *contexts, char text[BIT_TEXT_BYTES])
{
    memset(contexts, 0, sizeof *contexts);
    contexts->n_thread_counts = BIT_N_THREAD_COUNTS;
    for (uint32_t i = 0; i < BIT_N_ISAS; i++) {
        if (dsr_isa_available(isas[i]) && open_level(contexts, i, DSR_DEVICE_CPU, isas[i], text) != 0) {
            return -1;
        }
    }
    return 0;
}

int bit_contexts_open_cuda(bit_contexts *contexts, char text[BIT_TEXT_BYTES])
{
    memset(contexts, 0, sizeof *contexts);
    contexts->n_thread_counts = 1;
    return open_level(contexts, 0, DSR_DEVICE_CUDA, DSR_ISA_AUTO, text);
}

void bit_contexts_close(bit_contexts *contexts)
{
    for (uint32_t i = 0; i < BIT_N_ISAS; i++) {
        for (uint32_t t = 0; t < BIT_N_THREAD_COUNTS; t++) {
            dsr_context_destroy(contexts->of[i][t]);
        }
    }
    memset(contexts, 0, sizeof *contexts);
}

dsr_context *bit_contexts_best(const bit_contexts *contexts)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < BIT_N_ISAS; i++) {
        best = contexts->of[i][2] ? i : best;
    }
    return contexts->of[best][2];
}

/* n consecutive rows of the case, from a place that moves from point to point. */
static uint32_t choose_rows(const bit_case *c, const point *at, uint64_t draw, uint32_t order[BIT_MAX_ROWS])
{
    const uint32_t n = row_counts[at->rows] < c->n_rows ? row_counts[at->rows] : c->n_rows;
    random_stream random = random_open(draw, 0x0de2);
    const uint32_t first = random_below(&random, c->n_rows);
    for (uint32_t i = 0; i < n; i++) {
        order[i] = (first + i) % c->n_rows;
    }
    if (at->drawn_layout) {
        random_shuffle(&random, order, n);
    }
    return n;
}

static int run_point(const bit_contexts *contexts, const bit_case *c, const bit_results *expected, const point *at,
                     uint64_t draw, char text[BIT_TEXT_BYTES])
{
    uint32_t order[BIT_MAX_ROWS];
    const uint32_t n = choose_rows(c, at, draw, order);
    const bit_layout layout = {at->drawn_layout ? 1 + draw % 1000003 : 0, (int)at->misaligned, draw % 2 ? 0xff : 0x55};
    const bit_run run = {(caller_fp_mode)at->fp_mode, 0, 0};
    return bit_check(c, expected, order, n, &layout, contexts->of[at->isa][at->threads], &run, text);
}

/* A case with fewer rows than a row count was already run with all its rows. */
static int is_repeat(const bit_case *c, uint32_t rows)
{
    return rows > 0 && row_counts[rows - 1] >= c->n_rows;
}

static int run_quick(const bit_contexts *contexts, const bit_case *c, const bit_results *expected, uint32_t *n_runs,
                     char text[BIT_TEXT_BYTES])
{
    uint32_t step = (uint32_t)random_mix(c->seed + c->shape) % 40; /* cycles through the other dimensions */
    for (uint32_t isa = 0; isa < BIT_N_ISAS; isa++) {
        for (uint32_t rows = 0; rows < N_ROW_COUNTS && contexts->of[isa][0]; rows++) {
            const point at = {isa, rows, step % contexts->n_thread_counts, step / 2 % 2, step % 5, step / 3 % 2};
            step++;
            if (is_repeat(c, rows)) {
                continue;
            }
            ++*n_runs;
            if (run_point(contexts, c, expected, &at, random_mix(c->seed) + step, text) != 0) {
                return -1;
            }
        }
    }
    return 0;
}

static int run_full(const bit_contexts *contexts, const bit_case *c, const bit_results *expected, uint32_t *n_runs,
                    char text[BIT_TEXT_BYTES])
{
    const uint32_t n_points = BIT_N_ISAS * N_ROW_COUNTS * contexts->n_thread_counts * 2 * N_CALLER_FP_MODES * 2;
    for (uint32_t i = 0; i < n_points; i++) {
        uint32_t rest = i;
        point at;
        at.drawn_layout = rest % 2, rest /= 2;
        at.misaligned = rest % 2, rest /= 2;
        at.fp_mode = rest % N_CALLER_FP_MODES, rest /= N_CALLER_FP_MODES;
        at.threads = rest % contexts->n_thread_counts, rest /= contexts->n_thread_counts;
        at.rows = rest % N_ROW_COUNTS, rest /= N_ROW_COUNTS;
        at.isa = rest;
        if (!contexts->of[at.isa][0] || is_repeat(c, at.rows)) {
            continue;
        }
        ++*n_runs;
        if (run_point(contexts, c, expected, &at, random_mix(c->seed) + i, text) != 0) {
            return -1;
        }
    }
    return 0;
}

int bit_matrix_run(const bit_contexts *contexts, const struct bit_op *op, uint32_t shape, uint64_t seed, bit_tier tier,
                   uint32_t *n_runs, char text[BIT_TEXT_BYTES])
{
    uint32_t n = 0;
    bit_case *c = bit_case_new(op, shape, seed);
    bit_results *expected = bit_reference(c);
    const int result = (tier == BIT_TIER_FULL ? run_full : run_quick)(contexts, c, expected, &n, text);
    bit_results_free(expected);
    bit_case_free(c);
    if (n_runs) {
        *n_runs = n;
    }
    return result;
}
