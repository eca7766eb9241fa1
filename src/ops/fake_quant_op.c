#include "ops/cache_checks.h"
#include "ops/op_checks.h"
#include "ops/op_plans.h"

#include <dsrows/ops.h>

#include <inttypes.h>
#include <stddef.h>

enum { INPUT, OUTPUT };
static const char *const field_names[] = {"input", "output"};

static dsr_status check_scalars(const dsri_check *check, const dsr_fake_quant_desc *desc)
{
    switch (desc->kind) {
    case DSR_QUANT_FP8_BLOCK64:
        if (desc->dim % 64 != 0 || desc->dim < 128 || desc->dim > DSR_HEAD_DIM)
            return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_UNSUPPORTED_SHAPE,
                                   "dim must be a multiple of 64 in 128..=%d for FP8, got %" PRIu32, (int)DSR_HEAD_DIM,
                                   desc->dim);
        break;
    case DSR_QUANT_HADAMARD_FP4_BLOCK32:
        if (desc->dim != DSR_INDEX_DIM)
            return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_UNSUPPORTED_SHAPE,
                                   "dim must be %d for Hadamard and FP4, got %" PRIu32, (int)DSR_INDEX_DIM, desc->dim);
        break;
    default:
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_ENUM, "kind must be 0 or 1, got %d", (int)desc->kind);
    }
    DSRI_TRY(dsri_check_floor(check, desc->floor));
    if (desc->n_vectors == 0)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_VALUE, "n_vectors must be nonzero, got 0");
    return dsri_check_u32(check, DSRI_SHARED, "n_vectors", desc->n_vectors);
}

dsr_status dsr_encode_fake_quant(dsr_encoder *encoder, const dsr_fake_quant_desc *desc)
{
    dsri_check check;
    dsri_fake_quant_plan plan;
    dsri_footprint footprint;
    uint64_t n_elements;
    void *input, *output;
    DSRI_TRY(dsri_check_encoder(&check, encoder, DSRI_OP_FAKE_QUANT, desc));
    DSRI_TRY(dsri_check_struct_size(&check, desc->struct_size, sizeof(*desc)));
    DSRI_TRY(check_scalars(&check, desc));
    n_elements = desc->n_vectors * desc->dim;
    DSRI_TRY(dsri_check_view(&check, DSRI_SHARED, "input", &desc->input, DSR_DTYPE_BF16, n_elements, &input));
    DSRI_TRY(dsri_check_view(&check, DSRI_SHARED, "output", &desc->output, DSR_DTYPE_BF16, n_elements, &output));
    plan.kind = (uint32_t)desc->kind;
    plan.dim = desc->dim;
    plan.min_scale = dsri_min_scale(desc->kind == DSR_QUANT_FP8_BLOCK64 ? DSR_FORMAT_FP8 : DSR_FORMAT_FP4, desc->floor);
    plan.n_vectors = desc->n_vectors;
    plan.input = input;
    plan.output = output;
    dsri_footprint_init(&footprint, field_names);
    dsri_footprint_write(&footprint, OUTPUT, DSRI_SHARED, output, n_elements * sizeof(uint16_t));
    if (input != output)
        dsri_footprint_read(&footprint, INPUT, DSRI_SHARED, input, n_elements * sizeof(uint16_t));
    DSRI_TRY(dsri_check_overlaps(&check, &footprint));
    if (input == output)
        dsri_footprint_read(&footprint, INPUT, DSRI_SHARED, input, n_elements * sizeof(uint16_t));
    return dsri_encoder_append(encoder, DSRI_OP_FAKE_QUANT, 1, &plan, sizeof(plan), &footprint.ranges);
}
