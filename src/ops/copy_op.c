#include "ops/op_checks.h"
#include "ops/op_plans.h"

#include <dsrows/ops.h>

#include <inttypes.h>
#include <stddef.h>

enum { SOURCE, DESTINATION };
static const char *const field_names[] = {"source", "destination"};

static uint32_t n_copies_of(const dsr_copy_row *row)
{
    return dsri_or_default(row->n_copies, 1);
}

static dsr_status check_scalars(const dsri_check *check, const dsr_copy_desc *desc)
{
    const size_t element_bytes = dsr_dtype_size(desc->source.dtype);
    uint64_t row_bytes;
    if (desc->row_elements == 0)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_VALUE, "row_elements must be nonzero, got 0");
    if (!desc->source.buffer)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_NULL, "source is null");
    if (element_bytes == 0)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_ENUM, "source has an unknown dtype, got %d",
                               (int)desc->source.dtype);
    return dsri_check_product(check, DSRI_SHARED, "bytes of a row", desc->row_elements, element_bytes, &row_bytes);
}

/* Rows of the destination that must exist. A ring must be there as a whole, so that the answer is the same at every
 * position. */
static dsr_status destination_rows_of(const dsri_check *check, uint32_t r, const dsr_copy_row *row, uint64_t *n_rows)
{
    if (row->ring_rows == 0)
        return dsri_check_sum(check, r, "destination_row + n_copies", row->destination_row, n_copies_of(row), n_rows);
    if (n_copies_of(row) > row->ring_rows)
        return dsri_check_fail(check, r, DSR_ERR_VALUE,
                               "n_copies must be at most ring_rows = %" PRIu64 ", got %" PRIu32, row->ring_rows,
                               n_copies_of(row));
    *n_rows = row->ring_rows;
    return DSR_OK;
}

static dsr_status check_rows(const dsri_check *check, const dsr_copy_desc *desc, dsri_copy_plan *plan,
                             dsri_need *source_rows)
{
    *source_rows = (dsri_need){0, 0};
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        const dsr_copy_row *row = &desc->rows[r];
        dsri_copy_row_plan *to = &plan->rows[r];
        uint64_t n_rows, n_elements, source_end;
        void *destination;
        DSRI_TRY(destination_rows_of(check, r, row, &n_rows));
        DSRI_TRY(dsri_check_product(check, r, "destination: shape product", n_rows, desc->row_elements, &n_elements));
        DSRI_TRY(
            dsri_check_view(check, r, "destination", &row->destination, desc->source.dtype, n_elements, &destination));
        DSRI_TRY(dsri_check_sum(check, r, "source_row + n_copies", row->source_row, n_copies_of(row), &source_end));
        dsri_need_at_least(source_rows, source_end, r);
        to->destination = destination;
        to->destination_row = row->ring_rows ? row->destination_row % row->ring_rows : row->destination_row;
        to->ring_rows = row->ring_rows;
        to->n_copies = n_copies_of(row);
    }
    return DSR_OK;
}

/* What a row writes: up to the end of the ring, and from its start. */
static void add_row_ranges(const dsri_copy_plan *plan, uint32_t r, dsri_footprint *footprint)
{
    const dsri_copy_row_plan *row = &plan->rows[r];
    uint64_t n_before_wrap = row->n_copies;
    if (row->ring_rows && n_before_wrap > row->ring_rows - row->destination_row)
        n_before_wrap = row->ring_rows - row->destination_row;
    dsri_footprint_read(footprint, SOURCE, r, row->source, row->n_copies * plan->row_bytes);
    dsri_footprint_write(footprint, DESTINATION, r, row->destination + row->destination_row * plan->row_bytes,
                         n_before_wrap * plan->row_bytes);
    dsri_footprint_write(footprint, DESTINATION, r, row->destination,
                         (row->n_copies - n_before_wrap) * plan->row_bytes);
}

dsr_status dsr_encode_copy(dsr_encoder *encoder, const dsr_copy_desc *desc)
{
    dsri_check check;
    dsri_copy_plan plan;
    dsri_footprint footprint;
    dsri_need source_rows;
    uint64_t n_elements;
    void *source;
    DSRI_TRY(dsri_check_encoder(&check, encoder, DSRI_OP_COPY, desc));
    DSRI_TRY(dsri_check_struct_size(&check, desc->struct_size, sizeof(*desc)));
    DSRI_TRY(dsri_check_row_count(&check, desc->n_rows, desc->rows, "rows"));
    DSRI_TRY(check_scalars(&check, desc));
    plan.n_rows = desc->n_rows;
    plan.row_bytes = desc->row_elements * dsr_dtype_size(desc->source.dtype);
    DSRI_TRY(check_rows(&check, desc, &plan, &source_rows));
    DSRI_TRY(dsri_check_product(&check, DSRI_SHARED, "source: shape product", source_rows.n, desc->row_elements,
                                &n_elements));
    DSRI_TRY(dsri_check_shared_view(&check, "source", &desc->source, desc->source.dtype, n_elements, source_rows.row,
                                    &source));
    dsri_footprint_init(&footprint, field_names);
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        plan.rows[r].source = (const uint8_t *)source + desc->rows[r].source_row * plan.row_bytes;
        add_row_ranges(&plan, r, &footprint);
    }
    DSRI_TRY(dsri_check_overlaps(&check, &footprint));
    return dsri_encoder_append(encoder, DSRI_OP_COPY, plan.n_rows, &plan,
                               offsetof(dsri_copy_plan, rows) + plan.n_rows * sizeof(plan.rows[0]), &footprint.ranges);
}
