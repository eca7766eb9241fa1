/* The learned KV compressor. Lanes are features: everything up to the norm knows one feature at a time, so blocks of
 * features are tasks that walk through a row's tokens in order, state and all.
 *
 * Phase 0 leaves the pooled values of every emitted row in the output, where BF16 holds them exactly; phase 1 norms
 * them in place. What must give a row of zeros (a NaN or +inf score, a non-finite state, all items dormant) comes out
 * of the softmax as a NaN or an infinity, and phase 1 sees it in the sum of squares. */
#include "cpu/cpu_kernel.h"
#include "cpu/kernels/halving.h"
#include "cpu/vec/vec.h"
#include "cpu/vec/vmath.h"
#include "ops/op_plans.h"

#include <math.h>
#include <string.h>

enum {
    BLOCK_FEATURES = 128,
    ROWS_PER_NORM_TASK = 8,
#if DSRI_VEC == DSRI_VEC_scalar
    POOL_VECTORS = 1,
#elif DSRI_VEC == DSRI_VEC_avx2
    POOL_VECTORS = 2, /* 16 registers */
#else
    POOL_VECTORS = 4,
#endif
    POOL_FEATURES = POOL_VECTORS * VF_LANES
};

static uint32_t halves(const dsri_compressor_plan *plan)
{
    return plan->ratio == 4 ? 2 : 1;
}

static size_t state_row_elements(const dsri_compressor_plan *plan)
{
    return (size_t)halves(plan) * plan->dim;
}

static uint32_t n_emitted(const dsri_compressor_plan *plan, uint32_t row)
{
    const dsri_compressor_row_plan *r = &plan->rows[row];
    return (uint32_t)(((uint64_t)(r->start_pos % plan->ratio) + r->n_tokens) / plan->ratio);
}

static uint32_t norm_tasks(const dsri_compressor_plan *plan, uint32_t row)
{
    return n_emitted(plan, row) / ROWS_PER_NORM_TASK + (n_emitted(plan, row) % ROWS_PER_NORM_TASK != 0);
}

static uint32_t n_tasks(const void *plan, uint32_t phase)
{
    const dsri_compressor_plan *compressor = plan;
    uint32_t n = 0;
    if (phase == 0) {
        return compressor->n_rows * (compressor->dim / BLOCK_FEATURES);
    }
    for (uint32_t r = 0; r < compressor->n_rows; r++) {
        n += norm_tasks(compressor, r);
    }
    return n;
}

static void fill(float *x, float value)
{
    for (uint32_t f = 0; f < BLOCK_FEATURES; f++) {
        x[f] = value;
    }
}

static void init_block(const dsri_compressor_plan *plan, const dsri_compressor_row_plan *row, uint32_t first)
{
    const size_t n = halves(plan) * plan->ratio * state_row_elements(plan);
    for (size_t at = first; at < n; at += plan->dim) {
        fill(row->kv_state + at, 0.0f);
        fill(row->score_state + at, -INFINITY);
    }
}

/* BLOCK_FEATURES columns of one token to its state row. */
static void write_columns(const float *kv, const float *score, const float *ape, float *kv_state, float *score_state)
{
    const vf nan = vf_from_bits(vi_set1(0x7fc00000u));
    for (uint32_t f = 0; f < BLOCK_FEATURES; f += VF_LANES) {
        const vf v = vf_load(kv + f);
        const vf s = vf_add(vf_load(score + f), vf_load(ape + f));
        const vm bad = vm_not_finite(v);
        vf_store(kv_state + f, vf_select(bad, vf_zero(), v));
        vf_store(score_state + f, vf_select(vm_or(bad, vm_not_finite(s)), nan, s));
    }
}

/* Softmax over the window's items of POOL_FEATURES features. Item i of a feature is `row` elements behind item i - 1,
 * and from item `ratio` on also in the other half. */
static void pool(const dsri_compressor_plan *plan, const float *kv_state, const float *score_state, uint16_t *pooled)
{
    const size_t row = state_row_elements(plan);
    const uint32_t n_items = halves(plan) * plan->ratio;
    vf max[POOL_VECTORS], den[POOL_VECTORS], num[POOL_VECTORS];

    for (int j = 0; j < POOL_VECTORS; j++) {
        max[j] = vf_set1(-INFINITY);
        den[j] = num[j] = vf_zero();
    }
    for (uint32_t i = 0; i < n_items; i++) {
        const float *score = score_state + i * row + (i < plan->ratio ? 0 : plan->dim);
        for (int j = 0; j < POOL_VECTORS; j++) {
            max[j] = vf_max(vf_load(score + j * VF_LANES), max[j]);
        }
    }
    for (uint32_t i = 0; i < n_items; i++) {
        const size_t at = i * row + (i < plan->ratio ? 0 : plan->dim);
        for (int j = 0; j < POOL_VECTORS; j++) {
            const vf e = v_exp(vf_sub(vf_load(score_state + at + j * VF_LANES), max[j]));
            den[j] = vf_add(den[j], e);
            num[j] = vf_fma(e, vf_load(kv_state + at + j * VF_LANES), num[j]);
        }
    }
    for (int j = 0; j < POOL_VECTORS; j++) {
        vf_store_bf16(pooled + j * VF_LANES, vf_div(num[j], den[j]));
    }
}

/* The current group becomes the previous one. */
static void shift_block(const dsri_compressor_plan *plan, const dsri_compressor_row_plan *row, uint32_t first)
{
    const size_t group = plan->ratio * state_row_elements(plan);
    for (size_t at = first; at < group; at += plan->dim) {
        memcpy(row->kv_state + at, row->kv_state + at + group, BLOCK_FEATURES * sizeof(float));
        memcpy(row->score_state + at, row->score_state + at + group, BLOCK_FEATURES * sizeof(float));
    }
}

/* All tokens of a row, features first .. first + BLOCK_FEATURES of each half. */
static void run_tokens(const dsri_compressor_plan *plan, const dsri_compressor_row_plan *row, uint32_t first)
{
    const size_t width = state_row_elements(plan);
    uint16_t *output = row->output + first;

    if (row->start_pos == 0) {
        init_block(plan, row, first);
    }
    for (uint32_t i = 0; i < row->n_tokens; i++) {
        const uint32_t place = (row->start_pos + i) % plan->ratio;
        const size_t state_row = (halves(plan) - 1) * plan->ratio + place;
        for (size_t f = first; f < width; f += plan->dim) {
            write_columns(row->kv + i * width + f, row->score + i * width + f, plan->ape + place * width + f,
                          row->kv_state + state_row * width + f, row->score_state + state_row * width + f);
        }
        if (place + 1 < plan->ratio) {
            continue;
        }
        for (uint32_t f = 0; f < BLOCK_FEATURES; f += POOL_FEATURES) {
            pool(plan, row->kv_state + first + f, row->score_state + first + f, output + f);
        }
        output += plan->dim;
        if (halves(plan) == 2) {
            shift_block(plan, row, first);
        }
    }
    if (output == row->output + first) {
        memset(output, 0, BLOCK_FEATURES * sizeof *output);
    }
}

/* Norm of one pooled row in place; zeros if anything on the way is not finite. squares: dim floats. */
static void norm_row(const dsri_compressor_plan *plan, uint16_t *row, float *squares)
{
    const uint32_t dim = plan->dim;
    /* What is not below this rounds to infinity, or is a NaN or an infinity already. */
    const vf limit = vf_from_bits(vi_set1(0x7f7f8000u));
    vm good = vm_eq(limit, limit);

    for (uint32_t f = 0; f < dim; f += VF_LANES) {
        const vf c = vf_load_bf16(row + f);
        vf_store(squares + f, vf_mul(c, c));
    }
    const float sum = sum_by_halving(squares, dim);
    const vf r = vf_set1(1.0f / sqrtf(sum / (float)dim + plan->epsilon));
    for (uint32_t f = 0; f < dim; f += VF_LANES) {
        const vf y = vf_mul(vf_mul(vf_load_bf16(row + f), r), vf_load(plan->norm + f));
        good = vm_and(good, vm_lt(vf_abs(y), limit));
        vf_store_bf16(row + f, y);
    }
    if (!isfinite(sum) || vm_bits(good) != (1u << VF_LANES) - 1) {
        memset(row, 0, dim * sizeof *row);
    }
}

static void run_norm(const dsri_compressor_plan *plan, uint32_t task, float *squares)
{
    uint32_t r = 0;
    for (; task >= norm_tasks(plan, r); r++) {
        task -= norm_tasks(plan, r);
    }
    const uint32_t first = task * ROWS_PER_NORM_TASK, left = n_emitted(plan, r) - first;
    const uint32_t n = left < ROWS_PER_NORM_TASK ? left : ROWS_PER_NORM_TASK;
    for (uint32_t i = first; i < first + n; i++) {
        norm_row(plan, plan->rows[r].output + (size_t)i * plan->dim, squares);
    }
}

static void run(const void *plan, uint32_t phase, uint32_t task, void *scratch)
{
    const dsri_compressor_plan *compressor = plan;
    if (phase == 0) {
        const uint32_t blocks = compressor->dim / BLOCK_FEATURES;
        run_tokens(compressor, &compressor->rows[task / blocks], task % blocks * BLOCK_FEATURES);
    } else {
        run_norm(compressor, task, scratch);
    }
}

const dsri_cpu_kernel DSRI_KERNEL(compressor) = {
    .op = DSRI_OP_COMPRESSOR,
    .isa = DSRI_ISA_ENUM,
    .exactness = DSR_EXACT_DEVICE,
    .n_phases = 2,
    .phase_names = {DSRI_KERNEL_NAME("compressor_pool_f32"), DSRI_KERNEL_NAME("compressor_norm_bf16")},
    .n_tasks = n_tasks,
    .run = run,
};
