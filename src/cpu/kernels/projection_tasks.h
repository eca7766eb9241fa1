/* What the projection kernels share: panels of the packed form (ops/projection_layout.h), tasks, and outputs from
 * totals. A task is some panels of one group. */
#ifndef DSRI_PROJECTION_TASKS_H
#define DSRI_PROJECTION_TASKS_H

#include "cpu/cpu_kernel.h"
#include "cpu/vec/vec.h"
#include "ops/op_plans.h"
#include "ops/projection_layout.h"

#include <string.h>

enum {
    SEGMENT = DSRI_SEGMENT_INPUTS,
    PANEL = DSRI_PANEL_OUTPUTS,
    PANEL_VECTORS = PANEL / VF_LANES,
    MAX_PANELS_PER_TASK = 8,
    PREFETCH_WORDS = 2048,
    LINE_WORDS = 16 /* of the caches */
};

/* totals[i][r * PANEL + o]: output o of panel i of a task, row r. */
typedef float panel_totals[DSRI_MAX_ROWS * PANEL];

typedef struct task_panels {
    uint32_t group;
    uint64_t first; /* panel of the group */
    uint32_t n;
} task_panels;

static inline uint32_t panels_per_task(const dsri_projection_plan *plan)
{
    const uint64_t n = plan->n_groups * dsri_panels(plan->n_outputs) / 32;
    return n < 1 ? 1 : n < MAX_PANELS_PER_TASK ? (uint32_t)n : MAX_PANELS_PER_TASK;
}

static inline uint32_t tasks_per_group(const dsri_projection_plan *plan)
{
    return (uint32_t)((dsri_panels(plan->n_outputs) + panels_per_task(plan) - 1) / panels_per_task(plan));
}

static inline uint32_t n_tasks(const void *plan, uint32_t phase)
{
    const dsri_projection_plan *projection = plan;
    (void)phase;
    return projection->n_groups * tasks_per_group(projection);
}

static inline task_panels panels_of_task(const dsri_projection_plan *plan, uint32_t task)
{
    const uint32_t per_task = panels_per_task(plan);
    task_panels panels = {.group = task / tasks_per_group(plan)};
    panels.first = (uint64_t)(task % tasks_per_group(plan)) * per_task;
    const uint64_t left = dsri_panels(plan->n_outputs) - panels.first;
    panels.n = left < per_task ? (uint32_t)left : per_task;
    return panels;
}

/* Panel i of a task, counted over all groups. */
static inline uint64_t panel_of_all(const dsri_projection_plan *plan, const task_panels *panels, uint32_t i)
{
    return panels->group * dsri_panels(plan->n_outputs) + panels->first + i;
}

/* The inputs of a row in the group, from the first-th on. */
static inline const uint16_t *row_inputs(const dsri_projection_plan *plan, uint32_t group, uint32_t row, uint32_t first)
{
    return plan->input + ((uint64_t)row * plan->n_groups + group) * plan->n_inputs + first;
}

/* The words of a panel that are read next, from those being read on. */
static inline void prefetch_panel(const uint32_t *words)
{
    for (uint32_t i = 0; i < PANEL; i += LINE_WORDS) {
        vec_prefetch(words + i + PREFETCH_WORDS);
    }
}

/* The same for several rows, which compute meanwhile: lines come into the second cache long before, and into the first
 * when they are due. */
static inline void prefetch_panel_in_two_steps(const uint32_t *words)
{
    for (uint32_t i = 0; i < PANEL; i += LINE_WORDS) {
        vec_prefetch_to_l2(words + i + 2 * PREFETCH_WORDS);
        vec_prefetch(words + i + PREFETCH_WORDS / 8);
    }
}

/* The E4M3 codes in the upper bytes of the upper or lower halves, which have been shifted down by four with their
 * signs, as F32 times 2^-120: the exponent of a code has the bias 7, an F32's 127. Subnormals come out right too. */
static inline vf e4m3_small(vi halves, int upper)
{
    return vf_from_bits(vi_and(upper ? halves : vi_shl(halves, 16), vi_set1(0x87f00000u)));
}

/* A vector of outputs from totals: scaled, and 0 where it, or what it rounds to, is not finite. */
static inline vf finish_outputs(const dsri_projection_plan *plan, const float *totals)
{
    const vf limit = vf_from_bits(vi_set1(plan->output_is_f32 ? 0x7f800000u : 0x7f7f8000u)); /* rounds to infinity */
    const vf y = vf_mul(vf_load(totals), vf_set1(plan->output_scale));
    return vf_select(vm_lt(vf_abs(y), limit), y, vf_zero());
}

/* The first n outputs of a panel. */
static inline void store_outputs(const dsri_projection_plan *plan, uint64_t at, uint32_t n, const float *totals)
{
    float f32[PANEL];
    uint16_t bf16[PANEL];
    float *const to_f32 = n == PANEL ? (float *)plan->output + at : f32;
    uint16_t *const to_bf16 = n == PANEL ? (uint16_t *)plan->output + at : bf16;
    for (uint32_t o = 0; o < PANEL; o += VF_LANES) {
        if (plan->output_is_f32) {
            vf_store(to_f32 + o, finish_outputs(plan, totals + o));
        } else {
            vf_store_bf16(to_bf16 + o, finish_outputs(plan, totals + o));
        }
    }
    if (n < PANEL && plan->output_is_f32) {
        memcpy((float *)plan->output + at, f32, n * sizeof *f32);
    } else if (n < PANEL) {
        memcpy((uint16_t *)plan->output + at, bf16, n * sizeof *bf16);
    }
}

static inline void store_panels(const dsri_projection_plan *plan, const task_panels *panels, panel_totals *totals)
{
    for (uint32_t i = 0; i < panels->n; i++) {
        const uint64_t output = (panels->first + i) * PANEL, left = plan->n_outputs - output;
        for (uint32_t r = 0; r < plan->n_rows; r++) {
            const uint64_t at = ((uint64_t)r * plan->n_groups + panels->group) * plan->n_outputs + output;
            store_outputs(plan, at, left < PANEL ? (uint32_t)left : PANEL, totals[i] + r * PANEL);
        }
    }
}

static inline void clear_totals(const dsri_projection_plan *plan, const task_panels *panels, panel_totals *totals)
{
    for (uint32_t i = 0; i < panels->n; i++) {
        memset(totals[i], 0, plan->n_rows * PANEL * sizeof(float));
    }
}

#endif
