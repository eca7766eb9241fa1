/* Copies entries from cache to cache, decoding or packing them where the formats differ. */
#include "cpu/cpu_kernel.h"
#include "cpu/kernels/cache_encode.h"
#include "cpu/kernels/cache_rows.h"
#include "ops/op_plans.h"

#include <dsrows/cache.h>

#include <string.h>

enum { ENTRIES_PER_TASK = 16 };

typedef struct convert_scratch {
    vf x[FP4_DIM];
    entry_place places[ENTRIES_PER_TASK];
    uint16_t keys[ENTRIES_PER_TASK * FP4_DIM];
} convert_scratch;

_Static_assert(sizeof(convert_scratch) <= DSRI_SCRATCH_BYTES, "scratch of a task");

static uint32_t row_tasks(const dsri_convert_plan *plan, uint32_t r)
{
    return (uint32_t)((plan->rows[r].n_entries - 1) / ENTRIES_PER_TASK + 1);
}

static uint32_t n_tasks(const void *plan, uint32_t phase)
{
    const dsri_convert_plan *convert = plan;
    uint32_t n = 0;
    (void)phase;
    for (uint32_t r = 0; r < convert->n_rows; r++) {
        n += row_tasks(convert, r);
    }
    return n;
}

static void copy_entry(const dsri_cache *cache, uint32_t dim, dsri_cache_entry from, entry_place to)
{
    memcpy(to.values, from.values, cache->scale_bytes ? cache->row_stride : dim * sizeof(uint16_t));
    memcpy(to.scales, from.scales, cache->scale_bytes);
}

/* To BF16. */
static void decode_entry(uint32_t dim, dsri_cache_entry from, entry_place to)
{
    (dim == FP4_DIM ? decode_key : decode_row)(from, (uint16_t *)(void *)to.values);
}

/* Keys are packed VF_LANES at a time: first side by side, those without a place left out. */
static void pack_keys(const dsri_convert_row_plan *row, uint64_t first, uint32_t n, convert_scratch *scratch)
{
    uint32_t n_packed = 0;
    for (uint64_t t = first; t < first + n; t++) {
        const dsri_cache_entry from = dsri_cache_at(&row->source, row->first_source + t);
        const entry_place to = place_of_entry(&row->destination, row->first_destination + t);
        if (from.values != NULL && to.values != NULL) {
            memcpy(scratch->keys + (size_t)n_packed * FP4_DIM, from.values, FP4_DIM * sizeof(uint16_t));
            scratch->places[n_packed++] = to;
        }
    }
    for (uint32_t i = 0; i < n_packed; i += VF_LANES) {
        encode_fp4_keys(scratch->keys + (size_t)i * FP4_DIM, n_packed - i < VF_LANES ? n_packed - i : VF_LANES, 0, 0,
                        scratch->places + i, scratch->x);
    }
}

static void convert_entries(const dsri_convert_plan *plan, const dsri_convert_row_plan *row, uint64_t first, uint32_t n)
{
    for (uint64_t t = first; t < first + n; t++) {
        const dsri_cache_entry from = dsri_cache_at(&row->source, row->first_source + t);
        const entry_place to = place_of_entry(&row->destination, row->first_destination + t);
        if (from.values == NULL || to.values == NULL) {
            continue;
        }
        if (row->source.format == row->destination.format) {
            copy_entry(&row->source, plan->dim, from, to);
        } else if (row->destination.format == DSR_FORMAT_BF16) {
            decode_entry(plan->dim, from, to);
        } else {
            encode_fp8_row((const uint16_t *)(const void *)from.values, 0, to);
        }
    }
}

static void run(const void *plan, uint32_t phase, uint32_t task, void *scratch)
{
    const dsri_convert_plan *convert = plan;
    uint32_t r = 0;
    (void)phase;

    for (; task >= row_tasks(convert, r); r++) {
        task -= row_tasks(convert, r);
    }
    const dsri_convert_row_plan *row = &convert->rows[r];
    const uint64_t first = (uint64_t)task * ENTRIES_PER_TASK, left = row->n_entries - first;
    const uint32_t n = left < ENTRIES_PER_TASK ? (uint32_t)left : ENTRIES_PER_TASK;
    if (row->destination.format == DSR_FORMAT_FP4 && row->source.format == DSR_FORMAT_BF16) {
        pack_keys(row, first, n, scratch);
    } else {
        convert_entries(convert, row, first, n);
    }
}

const dsri_cpu_kernel DSRI_KERNEL(convert) = {
    .op = DSRI_OP_CONVERT,
    .isa = DSRI_ISA_ENUM,
    .exactness = DSR_EXACT_DEVICE,
    .n_phases = 1,
    .phase_names = {DSRI_KERNEL_NAME("convert_cache")},
    .n_tasks = n_tasks,
    .run = run,
};
