/* Fake quantisation of cache rows. Scales are powers of two, so that dividing by one is multiplying by its inverse. */
#include "cpu/cpu_kernel.h"
#include "cpu/vec/vec.h"
#include "ops/op_plans.h"

#include <dsrows/ops.h>

#include <math.h>
#include <string.h>

enum { VECTORS_PER_TASK = 16, FP8_BLOCK = 64, FP8_KEPT = 64, FP4_BLOCK = 32, FP4_DIM = 128 };

static uint32_t n_tasks(const void *plan, uint32_t phase)
{
    const dsri_fake_quant_plan *quant = plan;
    (void)phase;
    return (uint32_t)((quant->n_vectors + VECTORS_PER_TASK - 1) / VECTORS_PER_TASK);
}

static vf copy_sign(vf size, vf sign)
{
    return vf_from_bits(vi_or(vf_bits(size), vi_and(vf_bits(sign), vi_set1(0x80000000u))));
}

/* The smallest power of two >= x, x > 0 and normal. */
static vf pow2_ceil(vf x)
{
    return vf_from_bits(vi_and(vi_add(vf_bits(x), vi_set1(0x7fffffu)), vi_set1(0x7f800000u)));
}

/* 1 / x of a power of two in 2^-126 .. 2^126. */
static vf pow2_inverse(vf x)
{
    return vf_from_bits(vi_sub(vi_set1(254u << 23), vf_bits(x)));
}

/* To the E4M3 grid; the scale sees to it that |x| <= 448. */
static vf round_e4m3(vf x)
{
    const vf a = vf_abs(x);
    /* Subnormals have steps of 2^-9, the last bit of floats at 2^14. */
    const vf subnormal = vf_sub(vf_add(a, vf_set1(0x1p14f)), vf_set1(0x1p14f));
    const vi tie = vi_and(vi_shr(vf_bits(a), 20), vi_set1(1));
    const vi rounded = vi_and(vi_add(vi_add(vf_bits(a), vi_set1(0x7ffffu)), tie), vi_set1(0xfff00000u));
    return copy_sign(vf_select(vm_lt(a, vf_set1(0x1p-6f)), subnormal, vf_from_bits(rounded)), x);
}

/* To the grid 0, .5, 1, 1.5, 2, 3, 4, 6, ties to the even code; the scale sees to it that |x| rounds to 6 at most. */
static vf round_e2m1(vf x)
{
    const vf a = vf_abs(x);
    /* Steps of .5 below 2, of 1 below 4, of 2 above: the last bit of floats at 2^22, 2^23, 2^24. */
    const vf magic = vf_select(vm_lt(a, vf_set1(2.0f)), vf_set1(0x1p22f),
                               vf_select(vm_lt(a, vf_set1(4.0f)), vf_set1(0x1p23f), vf_set1(0x1p24f)));
    return copy_sign(vf_sub(vf_add(a, magic), magic), x);
}

/* Rounding up in the top binade can overflow: then 0. */
static vf rescale(vf grid, vf scale)
{
    const vf y = vf_mul(grid, scale);
    return vf_select(vm_not_finite(y), vf_zero(), y);
}

/* Lanes are the features of one block. */
static void fp8_block(const uint16_t *input, uint16_t *output)
{
    vf amax = vf_set1(1e-4f);
    vm bad = vm_none();
    for (int i = 0; i < FP8_BLOCK; i += VF_LANES) {
        const vf x = vf_load_bf16(input + i);
        bad = vm_or(bad, vm_not_finite(x));
        amax = vf_max(vf_abs(x), amax);
    }
    if (vm_any(bad)) {
        memset(output, 0, FP8_BLOCK * sizeof *output);
        return;
    }
    const vf scale = pow2_ceil(vf_div(vf_set1(vf_max_lane(amax)), vf_set1(448.0f)));
    const vf inverse = pow2_inverse(scale);
    for (int i = 0; i < FP8_BLOCK; i += VF_LANES) {
        const vf grid = round_e4m3(vf_mul(vf_load_bf16(input + i), inverse));
        vf_store_bf16(output + i, rescale(grid, scale));
    }
}

static void fp8_vector(const uint16_t *input, uint32_t dim, uint16_t *output)
{
    const uint32_t kept = dim - FP8_KEPT;
    for (uint32_t first = 0; first < kept; first += FP8_BLOCK) {
        fp8_block(input + first, output + first);
    }
    if (output != input) {
        memcpy(output + kept, input + kept, FP8_KEPT * sizeof *output);
    }
}

/* x[f] holds feature f of VF_LANES vectors; stride 1, 2, ... 64. */
static void hadamard(vf x[FP4_DIM])
{
    for (int stride = 1; stride < FP4_DIM; stride *= 2) {
        for (int first = 0; first < FP4_DIM; first += 2 * stride) {
            for (int i = first; i < first + stride; i++) {
                const vf a = x[i], b = x[i + stride];
                x[i] = vf_add(a, b);
                x[i + stride] = vf_sub(a, b);
            }
        }
    }
    for (int i = 0; i < FP4_DIM; i++) {
        x[i] = vf_mul(x[i], vf_set1(0x1.6a09e6p-4f)); /* 128^-0.5 */
    }
}

static void fp4_block(vf x[FP4_BLOCK])
{
    vf amax = vf_set1(0x1.8p-124f); /* gives the smallest normal scale */
    vm bad = vm_none();
    for (int i = 0; i < FP4_BLOCK; i++) {
        bad = vm_or(bad, vm_not_finite(x[i]));
        amax = vf_max(vf_abs(x[i]), amax);
    }
    const vf scale = pow2_ceil(vf_div(vf_select(bad, vf_set1(1.0f), amax), vf_set1(6.0f)));
    const vf inverse = pow2_inverse(scale);
    for (int i = 0; i < FP4_BLOCK; i++) {
        const vf y = rescale(round_e2m1(vf_mul(x[i], inverse)), scale);
        x[i] = vf_select(bad, vf_zero(), y);
    }
}

/* Lanes are vectors, so that butterflies of all strides are the same; less than VF_LANES vectors leave lanes unused. */
static void fp4_vectors(const uint16_t *input, uint32_t n, uint16_t *output, vf x[FP4_DIM])
{
    vi square[VF_LANES];
    for (int first = 0; first < FP4_DIM; first += VF_LANES) {
        for (uint32_t v = 0; v < VF_LANES; v++) {
            const vf element = vf_load_bf16(input + (size_t)(v < n ? v : 0) * FP4_DIM + first);
            square[v] = vf_bits(vf_select(vm_not_finite(element), vf_zero(), element));
        }
        vi_transpose(square);
        for (int i = 0; i < VF_LANES; i++) {
            x[first + i] = vf_from_bits(square[i]);
        }
    }
    hadamard(x);
    for (int first = 0; first < FP4_DIM; first += FP4_BLOCK) {
        fp4_block(x + first);
    }
    for (int first = 0; first < FP4_DIM; first += VF_LANES) {
        for (int i = 0; i < VF_LANES; i++) {
            square[i] = vf_bits(x[first + i]);
        }
        vi_transpose(square);
        for (uint32_t v = 0; v < n; v++) {
            vf_store_bf16(output + (size_t)v * FP4_DIM + first, vf_from_bits(square[v]));
        }
    }
}

static void run(const void *plan, uint32_t phase, uint32_t task, void *scratch)
{
    const dsri_fake_quant_plan *quant = plan;
    const uint64_t first = (uint64_t)task * VECTORS_PER_TASK, left = quant->n_vectors - first;
    const uint32_t n = left < VECTORS_PER_TASK ? (uint32_t)left : VECTORS_PER_TASK;
    const uint16_t *input = quant->input + first * quant->dim;
    uint16_t *output = quant->output + first * quant->dim;
    (void)phase;

    if (quant->kind == DSR_QUANT_FP8_BLOCK64) {
        for (size_t v = 0; v < n; v++) {
            fp8_vector(input + v * quant->dim, quant->dim, output + v * quant->dim);
        }
    } else {
        for (uint32_t v = 0; v < n; v += VF_LANES) {
            const size_t at = (size_t)v * FP4_DIM;
            fp4_vectors(input + at, n - v < VF_LANES ? n - v : VF_LANES, output + at, scratch);
        }
    }
}

const dsri_cpu_kernel DSRI_KERNEL(fake_quant) = {
    .op = DSRI_OP_FAKE_QUANT,
    .isa = DSRI_ISA_ENUM,
    .exactness = DSR_EXACT_DEVICE,
    .n_phases = 1,
    .phase_names = {DSRI_KERNEL_NAME("fake_quant_bf16")},
    .n_tasks = n_tasks,
    .run = run,
};
