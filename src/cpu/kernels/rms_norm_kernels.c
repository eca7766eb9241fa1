/* RMS norm, vector by vector. */
#include "cpu/cpu_kernel.h"
#include "cpu/kernels/halving.h"
#include "cpu/vec/vec.h"
#include "ops/op_plans.h"

#include <math.h>

enum { ELEMENTS_PER_TASK = 16384 };

static uint32_t vectors_per_task(const dsri_rms_norm_plan *plan)
{
    return plan->dim < ELEMENTS_PER_TASK ? ELEMENTS_PER_TASK / plan->dim : 1;
}

static uint32_t n_tasks(const void *plan, uint32_t phase)
{
    const dsri_rms_norm_plan *norm = plan;
    const uint32_t n = vectors_per_task(norm);
    (void)phase;
    return (uint32_t)((norm->n_vectors + n - 1) / n);
}

static vf load(const dsri_rms_norm_plan *plan, uint64_t at)
{
    return plan->input_is_f32 ? vf_load((const float *)plan->input + at)
                              : vf_load_bf16((const uint16_t *)plan->input + at);
}

static void store(const dsri_rms_norm_plan *plan, uint64_t at, vf y)
{
    if (plan->output_is_f32) {
        vf_store((float *)plan->output + at, vf_select(vm_not_finite(y), vf_zero(), y));
    } else {
        /* What is not below this rounds to infinity, or is a NaN or an infinity already. */
        const vf limit = vf_from_bits(vi_set1(0x7f7f8000u));
        vf_store_bf16((uint16_t *)plan->output + at, vf_select(vm_lt(vf_abs(y), limit), y, vf_zero()));
    }
}

/* The vector that begins at element `first`. squares: dim floats, rounded up to a power of two. */
static void norm_vector(const dsri_rms_norm_plan *plan, uint64_t first, float *squares)
{
    const uint32_t dim = plan->dim;
    uint32_t f = 0, padded = VF_LANES;
    for (; f < dim; f += VF_LANES) {
        const vf x = load(plan, first + f);
        vf_store(squares + f, vf_mul(x, x));
    }
    while (padded < dim) {
        padded *= 2;
    }
    for (; f < padded; f += VF_LANES) {
        vf_store(squares + f, vf_zero());
    }
    const float sum = sum_by_halving(squares, padded);
    if (!isfinite(sum)) {
        for (f = 0; f < dim; f += VF_LANES) {
            store(plan, first + f, vf_zero());
        }
        return;
    }
    const vf r = vf_set1(1.0f / sqrtf(sum / (float)dim + plan->epsilon));
    for (f = 0; f < dim; f += VF_LANES) {
        const vf y = vf_mul(load(plan, first + f), r);
        store(plan, first + f, plan->weight ? vf_mul(y, vf_load(plan->weight + f)) : y);
    }
}

static void run(const void *plan, uint32_t phase, uint32_t task, void *scratch)
{
    const dsri_rms_norm_plan *norm = plan;
    const uint64_t first = (uint64_t)task * vectors_per_task(norm), left = norm->n_vectors - first;
    const uint64_t n = left < vectors_per_task(norm) ? left : vectors_per_task(norm);
    (void)phase;
    for (uint64_t v = first; v < first + n; v++) {
        norm_vector(norm, v * norm->dim, scratch);
    }
}

const dsri_cpu_kernel DSRI_KERNEL(rms_norm) = {
    .op = DSRI_OP_RMS_NORM,
    .isa = DSRI_ISA_ENUM,
    .exactness = DSR_EXACT_DEVICE,
    .n_phases = 1,
    .phase_names = {DSRI_KERNEL_NAME("rms_norm_f32")},
    .n_tasks = n_tasks,
    .run = run,
};
