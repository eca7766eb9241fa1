/* Gather of F32 rows: plain copies, cut into pieces of one row. */
#include "cpu/cpu_kernel.h"
#include "ops/op_plans.h"

#include <string.h>

enum { PIECE_ELEMENTS = 16384 };

static uint64_t pieces_per_row(const dsri_gather_plan *plan)
{
    return (plan->row_elements + PIECE_ELEMENTS - 1) / PIECE_ELEMENTS;
}

static uint32_t n_tasks(const void *plan, uint32_t phase)
{
    const dsri_gather_plan *gather = plan;
    (void)phase;
    return (uint32_t)(gather->n_rows * pieces_per_row(gather));
}

static void run(const void *plan, uint32_t phase, uint32_t task, void *scratch)
{
    const dsri_gather_plan *gather = plan;
    const uint64_t row = task / pieces_per_row(gather);
    const uint64_t first = task % pieces_per_row(gather) * PIECE_ELEMENTS;
    const uint64_t left = gather->row_elements - first;
    const uint64_t n = left < PIECE_ELEMENTS ? left : PIECE_ELEMENTS;
    (void)phase;
    (void)scratch;
    memcpy(gather->output + row * gather->row_elements + first, gather->sources[row] + first, n * sizeof(float));
}

const dsri_cpu_kernel DSRI_KERNEL(gather) = {
    .op = DSRI_OP_GATHER,
    .isa = DSRI_ISA_ENUM,
    .exactness = DSR_EXACT_DEVICE,
    .n_phases = 1,
    .phase_names = {DSRI_KERNEL_NAME("gather_f32")},
    .n_tasks = n_tasks,
    .run = run,
};
