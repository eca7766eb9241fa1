#include "ops/op_checks.h"
#include "ops/op_plans.h"

#include <dsrows/ops.h>

#include <inttypes.h>
#include <stddef.h>

enum { SOURCE, OUTPUT };
static const char *const field_names[] = {"source", "output"};

static dsr_status check_views(const dsri_check *check, const dsr_gather_desc *desc, dsri_gather_plan *plan,
                              dsri_footprint *footprint)
{
    const uint64_t row_bytes = desc->row_elements * sizeof(float);
    uint64_t total;
    void *output;
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        void *source;
        DSRI_TRY(dsri_check_view(check, r, "source", &desc->sources[r], DSR_DTYPE_F32, desc->row_elements, &source));
        plan->sources[r] = source;
        dsri_footprint_read(footprint, SOURCE, r, source, row_bytes);
    }
    DSRI_TRY(dsri_check_product(check, DSRI_SHARED, "output: shape product", desc->n_rows, desc->row_elements, &total));
    DSRI_TRY(dsri_check_view(check, DSRI_SHARED, "output", &desc->output, DSR_DTYPE_F32, total, &output));
    DSRI_TRY(dsri_check_u32(check, DSRI_SHARED, "row_elements", desc->row_elements));
    DSRI_TRY(dsri_check_u32(check, DSRI_SHARED, "number of elements of all rows", total));
    plan->output = output;
    dsri_footprint_write(footprint, OUTPUT, DSRI_SHARED, output, desc->n_rows * row_bytes);
    return dsri_check_overlaps(check, footprint);
}

dsr_status dsr_encode_gather(dsr_encoder *encoder, const dsr_gather_desc *desc)
{
    dsri_check check;
    dsri_gather_plan plan;
    dsri_footprint footprint;
    DSRI_TRY(dsri_check_encoder(&check, encoder, DSRI_OP_GATHER, desc));
    DSRI_TRY(dsri_check_struct_size(&check, desc->struct_size, sizeof(*desc)));
    DSRI_TRY(dsri_check_row_count(&check, desc->n_rows, desc->sources, "sources"));
    if (desc->row_elements == 0)
        return dsri_check_fail(&check, DSRI_SHARED, DSR_ERR_VALUE, "row_elements must be nonzero, got 0");
    plan.n_rows = desc->n_rows;
    plan.row_elements = desc->row_elements;
    dsri_footprint_init(&footprint, field_names);
    DSRI_TRY(check_views(&check, desc, &plan, &footprint));
    return dsri_encoder_append(encoder, DSRI_OP_GATHER, plan.n_rows, &plan,
                               offsetof(dsri_gather_plan, sources) + plan.n_rows * sizeof(plan.sources[0]),
                               &footprint.ranges);
}
