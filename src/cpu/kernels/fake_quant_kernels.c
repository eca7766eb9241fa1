/* Fake quantisation of cache rows. Scales are powers of two, so that dividing by one is multiplying by its inverse. */
#include "cpu/cpu_kernel.h"
#include "cpu/kernels/quantise.h"
#include "ops/op_plans.h"

#include <dsrows/ops.h>

#include <string.h>

enum { VECTORS_PER_TASK = 16 };

static uint32_t n_tasks(const void *plan, uint32_t phase)
{
    const dsri_fake_quant_plan *quant = plan;
    (void)phase;
    return (uint32_t)((quant->n_vectors + VECTORS_PER_TASK - 1) / VECTORS_PER_TASK);
}

static void fp8_block(const uint16_t *input, uint32_t min_scale, uint16_t *output)
{
    int is_good;
    const vi scale = fp8_block_scale(input, min_scale, &is_good);
    if (!is_good) {
        memset(output, 0, FP8_BLOCK * sizeof *output);
        return;
    }
    const vf inverse = inverse_of_scale(scale);
    for (int i = 0; i < FP8_BLOCK; i += VF_LANES) {
        const vf grid = round_e4m3(vf_mul(vf_load_bf16(input + i), inverse));
        vf_store_bf16(output + i, rescale(grid, scale));
    }
}

static void fp8_vector(const uint16_t *input, uint32_t dim, uint32_t min_scale, uint16_t *output)
{
    const uint32_t kept = dim - FP8_KEPT;
    for (uint32_t first = 0; first < kept; first += FP8_BLOCK) {
        fp8_block(input + first, min_scale, output + first);
    }
    if (output != input) {
        memcpy(output + kept, input + kept, FP8_KEPT * sizeof *output);
    }
}

/* Less than VF_LANES vectors leave lanes unused. */
static void fp4_vectors(const uint16_t *input, uint32_t n, uint32_t min_scale, uint16_t *output, vf x[FP4_DIM])
{
    vi square[VF_LANES];
    fp4_load(input, n, x);
    hadamard(x);
    for (int first = 0; first < FP4_DIM; first += FP4_BLOCK) {
        const vi scale = fp4_quantise(x + first, min_scale);
        for (int i = first; i < first + FP4_BLOCK; i++) {
            x[i] = rescale(x[i], scale);
        }
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
            fp8_vector(input + v * quant->dim, quant->dim, quant->min_scale, output + v * quant->dim);
        }
    } else {
        for (uint32_t v = 0; v < n; v += VF_LANES) {
            const size_t at = (size_t)v * FP4_DIM;
            fp4_vectors(input + at, n - v < VF_LANES ? n - v : VF_LANES, quant->min_scale, output + at, scratch);
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
