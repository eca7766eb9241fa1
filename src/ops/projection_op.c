#include "ops/op_checks.h"
#include "ops/op_plans.h"
#include "ops/projection_layout.h"

#include <dsrows/ops.h>

#include <inttypes.h>
#include <string.h>

enum { INPUT, WEIGHT, SCALES, OUTPUT };
static const char *const field_names[] = {"input", "weight", "scales", "output"};

enum { MAX_INPUTS = 65536, MAX_OUTPUTS = 1048576 };

/* The shape of weights, and what their forms take. */
typedef struct weight_shape {
    uint32_t n_groups;
    uint32_t n_inputs;
    uint32_t n_outputs;
    uint64_t n_elements;
    uint64_t n_scales;
    uint64_t bf16_words; /* packed */
    uint64_t fp8_words;
} weight_shape;

static dsr_status check_shape(const dsri_check *check, uint32_t n_groups, uint32_t n_inputs, uint32_t n_outputs,
                              weight_shape *shape)
{
    shape->n_groups = dsri_or_default(n_groups, 1);
    shape->n_inputs = n_inputs;
    shape->n_outputs = n_outputs;
    if (n_inputs == 0 || n_inputs % 16 != 0 || n_inputs > MAX_INPUTS)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_UNSUPPORTED_SHAPE,
                               "n_inputs must be a multiple of 16 up to %d, got %" PRIu32, (int)MAX_INPUTS, n_inputs);
    if (n_outputs == 0 || n_outputs > MAX_OUTPUTS)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_UNSUPPORTED_SHAPE,
                               "n_outputs must be in 1..=%d, got %" PRIu32, (int)MAX_OUTPUTS, n_outputs);
    /* At most 2^36 elements of a group: products with n_groups and small factors fit 64 bits if this does. */
    DSRI_TRY(dsri_check_u32(check, DSRI_SHARED, "n_groups * n_outputs", (uint64_t)shape->n_groups * n_outputs));
    const uint64_t all_outputs = (uint64_t)shape->n_groups * n_outputs;
    const uint64_t all_panels = shape->n_groups * dsri_panels(n_outputs);
    shape->n_elements = all_outputs * n_inputs;
    shape->n_scales =
        (all_outputs + DSRI_FP8_BLOCK - 1) / DSRI_FP8_BLOCK * ((n_inputs + DSRI_FP8_BLOCK - 1) / DSRI_FP8_BLOCK);
    shape->bf16_words = all_panels * dsri_bf16_panel_words(n_inputs);
    shape->fp8_words = all_panels * dsri_fp8_panel_words(n_inputs);
    return DSR_OK;
}

/* ---- encoding --------------------------------------------------------------------------------------------- */

static dsr_status check_scale(const dsri_check *check, float scale)
{
    if (!dsri_is_finite(scale))
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_VALUE, "output_scale must be finite, got %g", (double)scale);
    return DSR_OK;
}

static dsr_status check_weight(const dsri_check *check, const dsr_projection_desc *desc, const weight_shape *shape,
                               void **weight, void **scales)
{
    dsr_dtype scales_dtype;
    *scales = NULL;
    switch (desc->format) {
    case DSR_WEIGHT_BF16:
        return dsri_check_view(check, DSRI_SHARED, "weight", &desc->weight, DSR_DTYPE_BF16, shape->n_elements, weight);
    case DSR_WEIGHT_BF16_PACKED:
        return dsri_check_view(check, DSRI_SHARED, "weight", &desc->weight, DSR_DTYPE_U32, shape->bf16_words, weight);
    case DSR_WEIGHT_FP8_PACKED:
        return dsri_check_view(check, DSRI_SHARED, "weight", &desc->weight, DSR_DTYPE_U32, shape->fp8_words, weight);
    case DSR_WEIGHT_FP8:
        break;
    }
    DSRI_TRY(dsri_check_view(check, DSRI_SHARED, "weight", &desc->weight, DSR_DTYPE_U8, shape->n_elements, weight));
    scales_dtype = desc->scales.dtype;
    if (desc->scales.buffer && scales_dtype != DSR_DTYPE_F32 && scales_dtype != DSR_DTYPE_U8)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_DTYPE, "scales must be f32 or u8, got %s",
                               dsr_dtype_name(scales_dtype));
    return dsri_check_view(check, DSRI_SHARED, "scales", &desc->scales, scales_dtype, shape->n_scales, scales);
}

static dsr_status check_views(const dsri_check *check, const dsr_projection_desc *desc, const weight_shape *shape,
                              dsri_projection_plan *plan)
{
    const uint64_t n_vectors = (uint64_t)desc->n_rows * shape->n_groups;
    void *input, *weight, *scales, *output;
    DSRI_TRY(dsri_check_view(check, DSRI_SHARED, "input", &desc->input, DSR_DTYPE_BF16, n_vectors * shape->n_inputs,
                             &input));
    DSRI_TRY(check_weight(check, desc, shape, &weight, &scales));
    DSRI_TRY(dsri_check_float_view(check, "output", &desc->output, n_vectors * shape->n_outputs, DSRI_SHARED, &output));
    plan->input = input;
    plan->weight = weight;
    plan->scales = scales;
    plan->output = output;
    return DSR_OK;
}

static void add_ranges(const dsr_projection_desc *desc, const weight_shape *shape, const dsri_projection_plan *plan,
                       dsri_footprint *footprint)
{
    const uint64_t n_vectors = (uint64_t)plan->n_rows * plan->n_groups;
    const uint64_t weight_bytes = desc->format == DSR_WEIGHT_BF16          ? shape->n_elements * sizeof(uint16_t)
                                  : desc->format == DSR_WEIGHT_FP8         ? shape->n_elements
                                  : desc->format == DSR_WEIGHT_BF16_PACKED ? shape->bf16_words * sizeof(uint32_t)
                                                                           : shape->fp8_words * sizeof(uint32_t);
    dsri_footprint_init(footprint, field_names);
    dsri_footprint_read(footprint, INPUT, DSRI_SHARED, plan->input, n_vectors * plan->n_inputs * sizeof(uint16_t));
    dsri_footprint_read(footprint, WEIGHT, DSRI_SHARED, plan->weight, weight_bytes);
    if (plan->scales)
        dsri_footprint_read(footprint, SCALES, DSRI_SHARED, plan->scales,
                            shape->n_scales * dsr_dtype_size(desc->scales.dtype));
    dsri_footprint_write(footprint, OUTPUT, DSRI_SHARED, plan->output,
                         n_vectors * plan->n_outputs * dsr_dtype_size(desc->output.dtype));
}

dsr_status dsr_encode_projection(dsr_encoder *encoder, const dsr_projection_desc *desc)
{
    dsri_check check;
    weight_shape shape;
    dsri_projection_plan plan;
    dsri_footprint footprint;
    DSRI_TRY(dsri_check_encoder(&check, encoder, DSRI_OP_PROJECTION, desc));
    DSRI_TRY(dsri_check_struct_size(&check, desc->struct_size, sizeof(*desc)));
    DSRI_TRY(dsri_check_row_count(&check, desc->n_rows, desc, "desc"));
    if ((uint32_t)desc->format > DSR_WEIGHT_FP8_PACKED)
        return dsri_check_fail(&check, DSRI_SHARED, DSR_ERR_ENUM, "format must be in 0..=3, got %d", (int)desc->format);
    DSRI_TRY(check_shape(&check, desc->n_groups, desc->n_inputs, desc->n_outputs, &shape));
    DSRI_TRY(check_scale(&check, desc->output_scale));
    plan.n_rows = desc->n_rows;
    plan.n_groups = shape.n_groups;
    plan.n_inputs = shape.n_inputs;
    plan.n_outputs = shape.n_outputs;
    plan.format = (uint32_t)desc->format;
    plan.scales_are_f32 = desc->scales.dtype == DSR_DTYPE_F32;
    plan.output_is_f32 = desc->output.dtype == DSR_DTYPE_F32;
    plan.output_scale = dsri_float_bits(desc->output_scale) << 1 != 0 ? desc->output_scale : 1.0f;
    DSRI_TRY(check_views(&check, desc, &shape, &plan));
    add_ranges(desc, &shape, &plan, &footprint);
    DSRI_TRY(dsri_check_overlaps(&check, &footprint));
    return dsri_encoder_append(encoder, DSRI_OP_PROJECTION, plan.n_rows, &plan, sizeof(plan), &footprint.ranges);
}

/* ---- packing ---------------------------------------------------------------------------------------------- */

static dsr_status check_weights(dsri_check *check, dsr_context *context, const dsr_projection_weights *weights,
                                const void *result, const char *result_name, weight_shape *shape)
{
    if (!context)
        return DSR_ERR_NULL;
    check->context = context;
    check->op = "projection weights";
    if (!weights)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_NULL, "weights is null");
    if (!result)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_NULL, "%s is null", result_name);
    DSRI_TRY(dsri_check_struct_size(check, weights->struct_size, sizeof(*weights)));
    if (weights->format != DSR_WEIGHT_BF16 && weights->format != DSR_WEIGHT_FP8)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_ENUM, "format must be 0 or 1, got %d", (int)weights->format);
    return check_shape(check, weights->n_groups, weights->n_inputs, weights->n_outputs, shape);
}

static uint64_t packed_bytes(const dsr_projection_weights *weights, const weight_shape *shape)
{
    return (weights->format == DSR_WEIGHT_BF16 ? shape->bf16_words : shape->fp8_words) * sizeof(uint32_t);
}

dsr_status dsr_projection_packed_bytes(dsr_context *context, const dsr_projection_weights *weights,
                                       uint64_t *size_bytes)
{
    dsri_check check;
    weight_shape shape;
    DSRI_TRY(check_weights(&check, context, weights, size_bytes, "size_bytes", &shape));
    *size_bytes = packed_bytes(weights, &shape);
    return DSR_OK;
}

/* Word k of outputs first .. first + n to words[k * 32 ..], zeros behind them. Rows are row_bytes apart. */
static void pack_words(const uint8_t *rows, uint64_t row_bytes, uint32_t n, uint64_t n_words, uint32_t *words)
{
    memset(words, 0, n_words * DSRI_PANEL_OUTPUTS * sizeof(*words));
    for (uint32_t o = 0; o < n; o++) {
        for (uint64_t k = 0; k < n_words; k++)
            memcpy(&words[k * DSRI_PANEL_OUTPUTS + o], rows + o * row_bytes + k * sizeof(*words), sizeof(*words));
    }
}

static uint32_t scale_bits(const dsr_projection_weights *weights, uint64_t output, uint32_t input)
{
    const uint64_t per_row = (weights->n_inputs + DSRI_FP8_BLOCK - 1) / DSRI_FP8_BLOCK;
    const uint64_t at = output / DSRI_FP8_BLOCK * per_row + input / DSRI_FP8_BLOCK;
    uint32_t bits;
    if (weights->scales_dtype == DSR_DTYPE_U8)
        return dsri_e8m0_bits(((const uint8_t *)weights->scales)[at]);
    memcpy(&bits, (const uint8_t *)weights->scales + at * sizeof(bits), sizeof(bits));
    return bits;
}

/* One block of 128 (or at the end less) inputs of a panel; returns the words after it. */
static uint32_t *pack_fp8_block(const dsr_projection_weights *weights, uint64_t output, uint32_t n_outputs,
                                uint32_t input, uint32_t *words)
{
    const uint32_t left = weights->n_inputs - input;
    const uint32_t n_words = (left < DSRI_FP8_BLOCK ? left : DSRI_FP8_BLOCK) / 4;
    const uint8_t *rows = (const uint8_t *)weights->data + output * weights->n_inputs + input;
    uint32_t *codes = words + DSRI_PANEL_OUTPUTS;
    pack_words(rows, weights->n_inputs, n_outputs, n_words, codes);
    for (uint32_t o = 0; o < DSRI_PANEL_OUTPUTS; o++) {
        uint32_t nans = 0;
        for (uint32_t k = 0; k < n_words; k++)
            nans |= dsri_e4m3_nans(codes[k * DSRI_PANEL_OUTPUTS + o]);
        words[o] = o >= n_outputs ? 0 : nans ? 0x7fc00000u : scale_bits(weights, output + o, input);
    }
    return codes + (uint64_t)n_words * DSRI_PANEL_OUTPUTS;
}

static uint32_t *pack_panel(const dsr_projection_weights *weights, uint64_t output, uint32_t n_outputs, uint32_t *words)
{
    if (weights->format == DSR_WEIGHT_BF16) {
        const uint64_t row_bytes = weights->n_inputs * sizeof(uint16_t);
        pack_words((const uint8_t *)weights->data + output * row_bytes, row_bytes, n_outputs, weights->n_inputs / 2,
                   words);
        return words + dsri_bf16_panel_words(weights->n_inputs);
    }
    for (uint32_t input = 0; input < weights->n_inputs; input += DSRI_FP8_BLOCK)
        words = pack_fp8_block(weights, output, n_outputs, input, words);
    return words;
}

dsr_status dsr_projection_pack(dsr_context *context, const dsr_projection_weights *weights, void *packed,
                               uint64_t size_bytes)
{
    dsri_check check;
    weight_shape shape;
    uint32_t *words = packed;
    DSRI_TRY(check_weights(&check, context, weights, packed, "packed", &shape));
    if (!weights->data)
        return dsri_check_fail(&check, DSRI_SHARED, DSR_ERR_NULL, "data is null");
    if (weights->format == DSR_WEIGHT_FP8) {
        if (weights->scales_dtype != DSR_DTYPE_F32 && weights->scales_dtype != DSR_DTYPE_U8)
            return dsri_check_fail(&check, DSRI_SHARED, DSR_ERR_DTYPE, "scales must be f32 or u8, got %s",
                                   dsr_dtype_name(weights->scales_dtype));
        if (!weights->scales)
            return dsri_check_fail(&check, DSRI_SHARED, DSR_ERR_NULL, "scales is null");
    }
    if (size_bytes < packed_bytes(weights, &shape))
        return dsri_check_fail(&check, DSRI_SHARED, DSR_ERR_SIZE, "packed holds %" PRIu64 " bytes, needs %" PRIu64,
                               size_bytes, packed_bytes(weights, &shape));
    if ((uintptr_t)packed % sizeof(*words) != 0)
        return dsri_check_fail(&check, DSRI_SHARED, DSR_ERR_ALIGNMENT,
                               "packed is at address 0x%" PRIxPTR ", needs a multiple of %zu", (uintptr_t)packed,
                               sizeof(*words));
    for (uint32_t group = 0; group < shape.n_groups; group++) {
        for (uint32_t first = 0; first < shape.n_outputs; first += DSRI_PANEL_OUTPUTS) {
            const uint32_t left = shape.n_outputs - first;
            words = pack_panel(weights, (uint64_t)group * shape.n_outputs + first,
                               left < DSRI_PANEL_OUTPUTS ? left : DSRI_PANEL_OUTPUTS, words);
        }
    }
    return DSR_OK;
}
