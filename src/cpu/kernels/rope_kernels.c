/* Tail RoPE. Lanes are pairs of features; the cosines and sines of a token are made once for a block of heads. */
#include "cpu/cpu_kernel.h"
#include "cpu/vec/vec.h"
#include "ops/op_plans.h"
#include "ops/sincos_fixed.h"

#include <math.h>
#include <string.h>

enum { HEADS_PER_TASK = 32 };

/* Of one token; padded so that whole vectors can be read. A cosine that is a NaN marks an angle that is not finite. */
typedef struct token_rotation {
    float cosines[DSRI_MAX_ROPE_PAIRS + 16];
    float sines[DSRI_MAX_ROPE_PAIRS + 16];
} token_rotation;

static uint32_t head_blocks(const dsri_rope_plan *plan)
{
    return (plan->n_heads + HEADS_PER_TASK - 1) / HEADS_PER_TASK;
}

static uint32_t n_tasks(const void *plan, uint32_t phase)
{
    const dsri_rope_plan *rope = plan;
    uint32_t n = 0;
    (void)phase;
    for (uint32_t r = 0; r < rope->n_rows; r++) {
        n += rope->rows[r].n_tokens * head_blocks(rope);
    }
    return n;
}

static void make_rotation(const dsri_rope_plan *plan, uint32_t position, token_rotation *rotation)
{
    for (uint32_t i = 0; i < plan->rope_dim / 2; i++) {
        const float angle = (float)position * plan->frequencies[i];
        float sine = 0.0f, cosine = NAN;
        if (isfinite(angle)) {
            sincos_fixed(angle, &sine, &cosine);
        }
        rotation->cosines[i] = cosine;
        rotation->sines[i] = plan->inverse ? -sine : sine;
    }
}

static void rotate(vf a, vf b, const token_rotation *rotation, uint32_t pair, uint16_t *output)
{
    const vf c = vf_load(rotation->cosines + pair), s = vf_load(rotation->sines + pair);
    const vm bad = vm_or(vm_not_finite(c), vm_or(vm_not_finite(a), vm_not_finite(b)));
    const vf even = vf_fma(a, c, vf_neg(vf_mul(b, s)));
    const vf odd = vf_fma(a, s, vf_mul(b, c));
    vf_store_bf16_pairs(output, vf_select(bad, vf_zero(), even), vf_select(bad, vf_zero(), odd));
}

static void rotate_f32(const float *input, uint32_t n_pairs, const token_rotation *rotation, uint16_t *output)
{
    uint32_t i = 0;
    vf a, b;
    for (; i + VF_LANES <= n_pairs; i += VF_LANES) {
        vf_load_pairs(input + 2 * i, &a, &b);
        rotate(a, b, rotation, i, output + 2 * i);
    }
    if (i < n_pairs) {
        float in[2 * VF_LANES] = {0};
        uint16_t out[2 * VF_LANES];
        memcpy(in, input + 2 * i, 2 * (n_pairs - i) * sizeof *in);
        vf_load_pairs(in, &a, &b);
        rotate(a, b, rotation, i, out);
        memcpy(output + 2 * i, out, 2 * (n_pairs - i) * sizeof *out);
    }
}

static void rotate_bf16(const uint16_t *input, uint32_t n_pairs, const token_rotation *rotation, uint16_t *output)
{
    uint32_t i = 0;
    vf a, b;
    for (; i + VF_LANES <= n_pairs; i += VF_LANES) {
        vf_load_bf16_pairs(input + 2 * i, &a, &b);
        rotate(a, b, rotation, i, output + 2 * i);
    }
    if (i < n_pairs) {
        uint16_t in[2 * VF_LANES] = {0};
        uint16_t out[2 * VF_LANES];
        memcpy(in, input + 2 * i, 2 * (n_pairs - i) * sizeof *in);
        vf_load_bf16_pairs(in, &a, &b);
        rotate(a, b, rotation, i, out);
        memcpy(output + 2 * i, out, 2 * (n_pairs - i) * sizeof *out);
    }
}

/* The features outside the tail: rounded, 0 where they are not finite. */
static void keep_f32(const float *input, uint32_t n, uint16_t *output)
{
    uint32_t i = 0;
    for (; i + VF_LANES <= n; i += VF_LANES) {
        const vf x = vf_load(input + i);
        vf_store_bf16(output + i, vf_select(vm_not_finite(x), vf_zero(), x));
    }
    if (i < n) {
        float in[VF_LANES] = {0};
        uint16_t out[VF_LANES];
        memcpy(in, input + i, (n - i) * sizeof *in);
        keep_f32(in, VF_LANES, out);
        memcpy(output + i, out, (n - i) * sizeof *out);
    }
}

static void keep_bf16(const uint16_t *input, uint32_t n, uint16_t *output)
{
    for (uint32_t i = 0; i < n; i++) {
        output[i] = (input[i] & 0x7f80u) == 0x7f80u ? 0 : input[i];
    }
}

static void run(const void *plan, uint32_t phase, uint32_t task, void *scratch)
{
    const dsri_rope_plan *rope = plan;
    const dsri_rope_row_plan *row = rope->rows;
    token_rotation *const rotation = scratch;
    (void)phase;

    for (; task >= row->n_tokens * head_blocks(rope); row++) {
        task -= row->n_tokens * head_blocks(rope);
    }
    const uint32_t token = task / head_blocks(rope), first = task % head_blocks(rope) * HEADS_PER_TASK;
    const uint32_t left = rope->n_heads - first, n_heads = left < HEADS_PER_TASK ? left : HEADS_PER_TASK;
    const uint32_t kept = rope->head_dim - rope->rope_dim, n_pairs = rope->rope_dim / 2;
    size_t at = ((size_t)token * rope->n_heads + first) * rope->head_dim;

    make_rotation(rope, row->start_pos + token * row->position_step, rotation);
    for (uint32_t h = 0; h < n_heads; h++, at += rope->head_dim) {
        uint16_t *output = row->output + at;
        if (rope->input_is_f32) {
            const float *input = (const float *)row->input + at;
            keep_f32(input, kept, output);
            rotate_f32(input + kept, n_pairs, rotation, output + kept);
        } else {
            const uint16_t *input = (const uint16_t *)row->input + at;
            keep_bf16(input, kept, output);
            rotate_bf16(input + kept, n_pairs, rotation, output + kept);
        }
    }
}

const dsri_cpu_kernel DSRI_KERNEL(rope) = {
    .op = DSRI_OP_ROPE,
    .isa = DSRI_ISA_ENUM,
    .exactness = DSR_EXACT_DEVICE,
    .n_phases = 1,
    .phase_names = {DSRI_KERNEL_NAME("rope_bf16")},
    .n_tasks = n_tasks,
    .run = run,
};
