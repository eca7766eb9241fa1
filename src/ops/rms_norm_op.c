#include "ops/op_checks.h"
#include "ops/op_plans.h"

#include <dsrows/ops.h>

#include <inttypes.h>
#include <stddef.h>

enum { INPUT, WEIGHT, OUTPUT };
static const char *const field_names[] = {"input", "weight", "output"};

enum { MAX_DIM = 16384 };

static dsr_status check_scalars(const dsri_check *check, const dsr_rms_norm_desc *desc)
{
    if (desc->dim == 0 || desc->dim % 16 != 0 || desc->dim > MAX_DIM)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_UNSUPPORTED_SHAPE,
                               "dim must be a multiple of 16 up to %d, got %" PRIu32, (int)MAX_DIM, desc->dim);
    if (desc->n_vectors == 0)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_VALUE, "n_vectors must be nonzero, got 0");
    DSRI_TRY(dsri_check_u32(check, DSRI_SHARED, "n_vectors", desc->n_vectors));
    return dsri_check_positive(check, "epsilon", desc->epsilon);
}

static dsr_status check_views(const dsri_check *check, const dsr_rms_norm_desc *desc, void **input, void **weight,
                              void **output)
{
    const uint64_t n_elements = desc->n_vectors * desc->dim;
    DSRI_TRY(dsri_check_float_view(check, "input", &desc->input, n_elements, DSRI_SHARED, input));
    *weight = NULL;
    if (desc->weight.buffer)
        DSRI_TRY(dsri_check_view(check, DSRI_SHARED, "weight", &desc->weight, DSR_DTYPE_F32, desc->dim, weight));
    return dsri_check_float_view(check, "output", &desc->output, n_elements, DSRI_SHARED, output);
}

dsr_status dsr_encode_rms_norm(dsr_encoder *encoder, const dsr_rms_norm_desc *desc)
{
    dsri_check check;
    dsri_rms_norm_plan plan;
    dsri_footprint footprint;
    uint64_t n_elements, input_bytes;
    void *input, *weight, *output;
    int in_place;
    DSRI_TRY(dsri_check_encoder(&check, encoder, DSRI_OP_RMS_NORM, desc));
    DSRI_TRY(dsri_check_struct_size(&check, desc->struct_size, sizeof(*desc)));
    DSRI_TRY(check_scalars(&check, desc));
    DSRI_TRY(check_views(&check, desc, &input, &weight, &output));
    plan.dim = desc->dim;
    plan.input_is_f32 = desc->input.dtype == DSR_DTYPE_F32;
    plan.output_is_f32 = desc->output.dtype == DSR_DTYPE_F32;
    plan.epsilon = desc->epsilon;
    plan.n_vectors = desc->n_vectors;
    plan.input = input;
    plan.weight = weight;
    plan.output = output;
    n_elements = desc->n_vectors * desc->dim;
    input_bytes = n_elements * dsr_dtype_size(desc->input.dtype);
    in_place = input == output && desc->input.dtype == desc->output.dtype;
    dsri_footprint_init(&footprint, field_names);
    dsri_footprint_write(&footprint, OUTPUT, DSRI_SHARED, output, n_elements * dsr_dtype_size(desc->output.dtype));
    if (weight)
        dsri_footprint_read(&footprint, WEIGHT, DSRI_SHARED, weight, desc->dim * sizeof(float));
    if (!in_place)
        dsri_footprint_read(&footprint, INPUT, DSRI_SHARED, input, input_bytes);
    DSRI_TRY(dsri_check_overlaps(&check, &footprint));
    if (in_place)
        dsri_footprint_read(&footprint, INPUT, DSRI_SHARED, input, input_bytes);
    return dsri_encoder_append(encoder, DSRI_OP_RMS_NORM, 1, &plan, sizeof(plan), &footprint.ranges);
}
