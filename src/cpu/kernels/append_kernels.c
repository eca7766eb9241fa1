/* Rotates, quantises and writes new entries of caches. */
#include "cpu/cpu_kernel.h"
#include "cpu/kernels/cache_encode.h"
#include "cpu/kernels/rotation.h"
#include "ops/op_plans.h"

#include <dsrows/cache.h>

#include <string.h>

enum { TOKENS_PER_TASK = 16 };

typedef struct append_scratch {
    vf x[FP4_DIM];
    token_rotation rotation;
    entry_place places[TOKENS_PER_TASK];
    uint16_t tokens[TOKENS_PER_TASK * DSRI_HEAD_DIM];
} append_scratch;

_Static_assert(sizeof(append_scratch) <= DSRI_SCRATCH_BYTES, "scratch of a task");

static uint32_t row_tasks(const dsri_append_plan *plan, uint32_t r)
{
    return (plan->rows[r].n_tokens - 1) / TOKENS_PER_TASK + 1;
}

static uint32_t n_tasks(const void *plan, uint32_t phase)
{
    const dsri_append_plan *append = plan;
    uint32_t n = 0;
    (void)phase;
    for (uint32_t r = 0; r < append->n_rows; r++) {
        n += row_tasks(append, r);
    }
    return n;
}

/* The n tokens from `first` on, rotated if the plan says so. */
static const uint16_t *tokens_of(const dsri_append_plan *plan, const dsri_append_row_plan *row, uint32_t first,
                                 uint32_t n, append_scratch *scratch)
{
    const uint16_t *source = row->source + (size_t)first * plan->dim;
    const uint32_t kept = plan->dim - 2 * DSRI_TAIL_PAIRS;
    if (!plan->rotates) {
        return source;
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint16_t *token = source + (size_t)i * plan->dim;
        uint16_t *rotated = scratch->tokens + (size_t)i * plan->dim;
        make_rotation(plan->frequencies, DSRI_TAIL_PAIRS, row->start_pos + (first + i) * row->position_step, 0,
                      &scratch->rotation);
        keep_bf16(token, kept, rotated);
        rotate_bf16(token + kept, DSRI_TAIL_PAIRS, &scratch->rotation, rotated + kept);
    }
    return scratch->tokens;
}

static void write_entries(const dsri_append_plan *plan, uint32_t format, const uint16_t *tokens, uint32_t n,
                          append_scratch *scratch)
{
    const entry_place *places = scratch->places;
    if (format == DSR_FORMAT_FP4) {
        for (uint32_t i = 0; i < n; i += VF_LANES) {
            encode_fp4_keys(tokens + (size_t)i * FP4_DIM, n - i < VF_LANES ? n - i : VF_LANES, 1, plan->min_scale,
                            places + i, scratch->x);
        }
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint16_t *token = tokens + (size_t)i * plan->dim;
        if (format == DSR_FORMAT_FP8) {
            encode_fp8_row(token, plan->min_scale, places[i]);
        } else if (places[i].values != NULL) {
            memcpy(places[i].values, token, plan->dim * sizeof *token);
        }
    }
}

static void run(const void *plan, uint32_t phase, uint32_t task, void *memory)
{
    const dsri_append_plan *append = plan;
    append_scratch *scratch = memory;
    uint32_t r = 0;
    (void)phase;

    for (; task >= row_tasks(append, r); r++) {
        task -= row_tasks(append, r);
    }
    const dsri_append_row_plan *row = &append->rows[r];
    const uint32_t first = task * TOKENS_PER_TASK, left = row->n_tokens - first;
    const uint32_t n = left < TOKENS_PER_TASK ? left : TOKENS_PER_TASK;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t entry = row->first_entry + first + i;
        scratch->places[i] = place_of_entry(&row->cache, row->ring_entries ? entry % row->ring_entries : entry);
    }
    write_entries(append, row->cache.format, tokens_of(append, row, first, n, scratch), n, scratch);
}

const dsri_cpu_kernel DSRI_KERNEL(append) = {
    .op = DSRI_OP_APPEND,
    .isa = DSRI_ISA_ENUM,
    .exactness = DSR_EXACT_DEVICE,
    .n_phases = 1,
    .phase_names = {DSRI_KERNEL_NAME("append_bf16")},
    .n_tasks = n_tasks,
    .run = run,
};
