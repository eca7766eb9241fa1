/* Tail RoPE. Lanes are pairs of features; the cosines and sines of a token are made once for a block of heads. */
#include "cpu/cpu_kernel.h"
#include "cpu/kernels/rotation.h"

enum { HEADS_PER_TASK = 32 };

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

    make_rotation(rope->frequencies, n_pairs, row->start_pos + token * row->position_step, (int)rope->inverse,
                  rotation);
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
