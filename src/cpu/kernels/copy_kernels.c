/* Ring-slot writes and copies to compressed slots, cut into pieces of one row's bytes. */
#include "cpu/cpu_kernel.h"
#include "ops/op_plans.h"

#include <string.h>

enum { PIECE_BYTES = 65536 };

static uint64_t row_total(const dsri_copy_plan *plan, uint32_t row)
{
    return plan->rows[row].n_copies * plan->row_bytes;
}

static uint64_t row_pieces(const dsri_copy_plan *plan, uint32_t row)
{
    return (row_total(plan, row) + PIECE_BYTES - 1) / PIECE_BYTES;
}

static uint32_t n_tasks(const void *plan, uint32_t phase)
{
    const dsri_copy_plan *copy = plan;
    uint64_t n = 0;
    (void)phase;
    for (uint32_t r = 0; r < copy->n_rows; r++) {
        n += row_pieces(copy, r);
    }
    return (uint32_t)n;
}

/* n bytes of the row's source from byte `first` on. A piece is at most as long as the ring, so it wraps once at most.
 */
static void copy_piece(const dsri_copy_row_plan *row, uint64_t row_bytes, uint64_t first, uint64_t n)
{
    const uint8_t *source = row->source + first;
    const uint64_t ring = row->ring_rows * row_bytes;
    uint64_t at = row->destination_row * row_bytes + first;
    uint64_t before_end = n;

    if (ring != 0) {
        at %= ring;
        before_end = ring - at < n ? ring - at : n;
    }
    memcpy(row->destination + at, source, before_end);
    memcpy(row->destination, source + before_end, n - before_end);
}

static void run(const void *plan, uint32_t phase, uint32_t task, void *scratch)
{
    const dsri_copy_plan *copy = plan;
    uint64_t piece = task;
    uint32_t r = 0;
    (void)phase;
    (void)scratch;

    for (; piece >= row_pieces(copy, r); r++) {
        piece -= row_pieces(copy, r);
    }
    const uint64_t first = piece * PIECE_BYTES, left = row_total(copy, r) - first;
    copy_piece(&copy->rows[r], copy->row_bytes, first, left < PIECE_BYTES ? left : PIECE_BYTES);
}

const dsri_cpu_kernel DSRI_KERNEL(copy) = {
    .op = DSRI_OP_COPY,
    .isa = DSRI_ISA_ENUM,
    .exactness = DSR_EXACT_DEVICE,
    .n_phases = 1,
    .phase_names = {DSRI_KERNEL_NAME("copy_bytes")},
    .n_tasks = n_tasks,
    .run = run,
};
