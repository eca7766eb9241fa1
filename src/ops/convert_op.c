#include "ops/cache_checks.h"
#include "ops/op_plans.h"

#include <dsrows/ops.h>

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

enum { SOURCE, SOURCE_TABLE, DESTINATION, DESTINATION_TABLE };
static const char *const field_names[] = {"source", "source_layout.page_table", "destination",
                                          "destination_layout.page_table"};

/* What the checks leave for the footprint. */
typedef struct side_bytes {
    uint64_t cache;
    uint64_t table;
} side_bytes;

typedef struct convert_sizes {
    side_bytes sources[DSRI_MAX_ROWS];
    side_bytes destinations[DSRI_MAX_ROWS];
} convert_sizes;

static dsr_status check_side(const dsri_check *check, uint32_t r, const dsri_cache_operand *operand, uint64_t first,
                             uint64_t n_converted, dsri_cache *cache, side_bytes *bytes)
{
    uint64_t end;
    char what[40];
    if (operand->n_entries == 0)
        return dsri_check_fail(check, r, DSR_ERR_VALUE, "%s_entries must be nonzero, got 0", operand->field);
    snprintf(what, sizeof(what), "first_%s + n_entries", operand->field);
    DSRI_TRY(dsri_check_sum(check, r, what, first, n_converted, &end));
    if (end > operand->n_entries)
        return dsri_check_fail(check, r, DSR_ERR_SIZE, "entries reach %" PRIu64 ", needs at most %s_entries = %" PRIu64,
                               end, operand->field, operand->n_entries);
    return dsri_check_cache(check, r, operand, cache, &bytes->cache, &bytes->table);
}

static dsr_status check_rows(const dsri_check *check, const dsr_convert_desc *desc, dsr_cache_format packed,
                             dsri_convert_plan *plan, convert_sizes *sizes)
{
    uint64_t n_entries = 0;
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        const dsr_convert_row *row = &desc->rows[r];
        dsri_convert_row_plan *to = &plan->rows[r];
        const dsri_cache_operand source = {"source",           "source_layout",     "source_stride",
                                           &row->source,       &row->source_layout, row->source_entries,
                                           row->source_stride, desc->dim,           packed};
        const dsri_cache_operand destination = {"destination",
                                                "destination_layout",
                                                "destination_stride",
                                                &row->destination,
                                                &row->destination_layout,
                                                row->destination_entries,
                                                row->destination_stride,
                                                desc->dim,
                                                packed};
        if (row->n_entries == 0)
            return dsri_check_fail(check, r, DSR_ERR_VALUE, "n_entries must be nonzero, got 0");
        DSRI_TRY(dsri_check_sum(check, r, "number of entries of all rows", n_entries, row->n_entries, &n_entries));
        DSRI_TRY(dsri_check_u32(check, r, "number of entries of all rows", n_entries));
        DSRI_TRY(check_side(check, r, &source, row->first_source, row->n_entries, &to->source, &sizes->sources[r]));
        DSRI_TRY(check_side(check, r, &destination, row->first_destination, row->n_entries, &to->destination,
                            &sizes->destinations[r]));
        to->first_source = row->first_source;
        to->first_destination = row->first_destination;
        to->n_entries = row->n_entries;
    }
    return DSR_OK;
}

static void add_row_ranges(const dsri_convert_plan *plan, uint32_t r, const convert_sizes *sizes,
                           dsri_cache_writes *writes)
{
    const dsri_convert_row_plan *row = &plan->rows[r];
    dsr_range ranges[2];
    const uint32_t n_ranges =
        dsri_cache_ranges(&row->source, plan->dim, sizes->sources[r].cache, row->first_source, row->n_entries, ranges);
    for (uint32_t i = 0; i < n_ranges; i++)
        dsri_footprint_read(writes->footprint, SOURCE, r, (const void *)(uintptr_t)ranges[i].begin,
                            ranges[i].end - ranges[i].begin);
    dsri_footprint_read(writes->footprint, SOURCE_TABLE, r, row->source.page_table, sizes->sources[r].table);
    dsri_footprint_read(writes->footprint, DESTINATION_TABLE, r, row->destination.page_table,
                        sizes->destinations[r].table);
    dsri_write_entries(writes, r, &row->destination, plan->dim, sizes->destinations[r].cache, row->first_destination,
                       row->n_entries);
}

dsr_status dsr_encode_convert(dsr_encoder *encoder, const dsr_convert_desc *desc)
{
    dsri_check check;
    dsri_convert_plan plan;
    dsri_footprint footprint;
    convert_sizes sizes;
    dsri_cache_writes writes = {.footprint = &footprint, .field = DESTINATION, .n_pools = 0};
    dsr_cache_format packed;
    DSRI_TRY(dsri_check_encoder(&check, encoder, DSRI_OP_CONVERT, desc));
    DSRI_TRY(dsri_check_struct_size(&check, desc->struct_size, sizeof(*desc)));
    DSRI_TRY(dsri_check_row_count(&check, desc->n_rows, desc->rows, "rows"));
    DSRI_TRY(dsri_check_entry_dim(&check, desc->dim, &packed));
    plan.n_rows = desc->n_rows;
    plan.dim = desc->dim;
    DSRI_TRY(check_rows(&check, desc, packed, &plan, &sizes));
    dsri_footprint_init(&footprint, field_names);
    for (uint32_t r = 0; r < desc->n_rows; r++)
        add_row_ranges(&plan, r, &sizes, &writes);
    DSRI_TRY(dsri_check_overlaps(&check, &footprint));
    return dsri_encoder_append(encoder, DSRI_OP_CONVERT, plan.n_rows, &plan,
                               offsetof(dsri_convert_plan, rows) + plan.n_rows * sizeof(plan.rows[0]),
                               &footprint.ranges);
}
