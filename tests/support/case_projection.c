/* Projections: plain, grouped, with BF16 and FP8 weights, as checkpoints have them and packed. */
#include "bit_case_ops.h"

#include "reference/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    SHAPE_BF16,
    SHAPE_BF16_PACKED,
    SHAPE_GROUPS,
    SHAPE_FP8,
    SHAPE_FP8_PACKED,
    SHAPE_FP8_E8M0,
    SHAPE_PATTERNS,
    N_SHAPES
};
enum { WEIGHT = 0, SCALES = 1 };

static const struct {
    uint32_t n_rows, n_groups, n_inputs, n_outputs;
    dsr_weight_format format;
    dsr_dtype scales, output;
    float output_scale;
} shapes[N_SHAPES] = {
    [SHAPE_BF16] = {64, 1, 528, 67, DSR_WEIGHT_BF16, DSR_DTYPE_F32, DSR_DTYPE_F32, 0.0f},
    [SHAPE_BF16_PACKED] = {64, 1, 1040, 130, DSR_WEIGHT_BF16_PACKED, DSR_DTYPE_F32, DSR_DTYPE_BF16, 0.0f},
    [SHAPE_GROUPS] = {33, 3, 256, 33, DSR_WEIGHT_BF16_PACKED, DSR_DTYPE_F32, DSR_DTYPE_BF16, 0.125f},
    [SHAPE_FP8] = {33, 1, 272, 140, DSR_WEIGHT_FP8, DSR_DTYPE_F32, DSR_DTYPE_F32, 0.0f},
    [SHAPE_FP8_PACKED] = {64, 2, 640, 129, DSR_WEIGHT_FP8_PACKED, DSR_DTYPE_F32, DSR_DTYPE_BF16, 0.3f},
    [SHAPE_FP8_E8M0] = {33, 1, 384, 150, DSR_WEIGHT_FP8_PACKED, DSR_DTYPE_U8, DSR_DTYPE_F32, 0.0f},
    [SHAPE_PATTERNS] = {33, 1, 144, 48, DSR_WEIGHT_BF16, DSR_DTYPE_F32, DSR_DTYPE_F32, 0.0f},
};

static int is_fp8(const bit_case *c)
{
    return c->weight_format == DSR_WEIGHT_FP8 || c->weight_format == DSR_WEIGHT_FP8_PACKED;
}

static int is_packed(const bit_case *c)
{
    return c->weight_format == DSR_WEIGHT_BF16_PACKED || c->weight_format == DSR_WEIGHT_FP8_PACKED;
}

static size_t scales_per_row(const bit_case *c)
{
    return (c->n_inputs + 127) / 128;
}

static void generate_weights(bit_case *c)
{
    const size_t n_outputs = (size_t)c->n_groups * c->n_outputs, n = n_outputs * c->n_inputs;
    const size_t n_scales = (n_outputs + 127) / 128 * scales_per_row(c);
    random_stream random = random_open(c->seed, c->shape);

    if (!is_fp8(c)) {
        c->shared[WEIGHT] = bit_array_new(DSR_DTYPE_BF16, n);
        pattern_fill_bf16(&random, c->shape == SHAPE_PATTERNS ? PATTERN_MIXED : PATTERN_NORMAL, 0x1p-4f,
                          bit_bf16(&c->shared[WEIGHT]), n);
        return;
    }
    c->shared[WEIGHT] = bit_array_new(DSR_DTYPE_U8, n);
    for (size_t i = 0; i < n; i++) { /* NaN codes are rare, so that most outputs are numbers */
        const uint8_t code = (uint8_t)random_next(&random);
        ((uint8_t *)c->shared[WEIGHT].data)[i] = (code & 0x7f) == 0x7f && !random_one_in(&random, 40) ? 0x38 : code;
    }
    c->shared[SCALES] = bit_array_new(shapes[c->shape].scales, n_scales);
    for (size_t i = 0; i < n_scales; i++) {
        if (shapes[c->shape].scales == DSR_DTYPE_F32) {
            bit_f32(&c->shared[SCALES])[i] = random_normal(&random) * 0x1p-8f;
        } else {
            ((uint8_t *)c->shared[SCALES].data)[i] = (uint8_t)random_between(&random, 0, 140);
        }
    }
}

static void generate(bit_case *c)
{
    c->n_rows = shapes[c->shape].n_rows;
    c->n_groups = shapes[c->shape].n_groups;
    c->n_inputs = shapes[c->shape].n_inputs;
    c->n_outputs = shapes[c->shape].n_outputs;
    c->weight_format = shapes[c->shape].format;
    c->output_dtype = shapes[c->shape].output;
    c->scale = shapes[c->shape].output_scale;
    generate_weights(c);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        random_stream random = random_open(c->seed, 100 * c->shape + r);
        const pattern kind = c->shape == SHAPE_PATTERNS ? (pattern)(r % N_PATTERNS) : PATTERN_NORMAL;
        c->rows[r].inputs[0] = bit_array_new(DSR_DTYPE_BF16, (size_t)c->n_groups * c->n_inputs);
        pattern_fill_bf16(&random, kind, 1.0f, bit_bf16(&c->rows[r].inputs[0]), c->rows[r].inputs[0].n);
    }
}

/* The scales of output `global` as F32. */
static void decode_scales(const bit_case *c, size_t global, float *scales)
{
    const size_t n = scales_per_row(c), first = global / 128 * n;
    for (size_t i = 0; i < n; i++) {
        if (c->shared[SCALES].dtype == DSR_DTYPE_F32) {
            scales[i] = bit_f32(&c->shared[SCALES])[first + i];
        } else {
            const uint32_t code = ((const uint8_t *)c->shared[SCALES].data)[first + i];
            scales[i] = f32_from_bits(code == 0 ? 0x00400000u : code << 23); /* 2^(code - 127); none is 255 */
        }
    }
}

static float reference_output(const bit_case *c, const uint16_t *x, size_t global)
{
    const size_t at = global * c->n_inputs;
    float scales[64], dot;
    if (is_fp8(c)) {
        decode_scales(c, global, scales);
        dot = ref_projection_fp8(x, (const uint8_t *)c->shared[WEIGHT].data + at, scales, c->n_inputs);
    } else {
        dot = ref_projection_bf16(x, bit_bf16(&c->shared[WEIGHT]) + at, c->n_inputs);
    }
    return dot * (c->scale != 0.0f ? c->scale : 1.0f);
}

static void reference(const bit_case *c, const bit_row *row, bit_array outputs[BIT_ROW_OUTPUTS])
{
    const size_t n = (size_t)c->n_groups * c->n_outputs;

    outputs[0] = bit_array_new(c->output_dtype, n);
    for (size_t i = 0; i < n; i++) {
        const uint16_t *x = bit_bf16(&row->inputs[0]) + i / c->n_outputs * c->n_inputs;
        const float y = reference_output(c, x, i);
        const uint16_t rounded = ref_bf16_from_f32(y);
        if (c->output_dtype == DSR_DTYPE_F32) {
            bit_f32(&outputs[0])[i] = isfinite(y) ? y : 0.0f;
        } else {
            bit_bf16(&outputs[0])[i] = isfinite(f32_from_bf16(rounded)) ? rounded : 0;
        }
    }
}

enum { OPERAND_INPUT, OPERAND_OUTPUT, OPERAND_WEIGHT, OPERAND_SCALES };

static void stop(const char *what)
{
    fprintf(stderr, "test harness: projection: %s\n", what);
    exit(EXIT_FAILURE);
}

/* The packed form of the case's weights. */
static bit_array pack(const bit_case *c, dsr_context *context)
{
    dsr_projection_weights weights = DSR_PROJECTION_WEIGHTS_INIT;
    uint64_t n_bytes = 0;
    weights.n_groups = c->n_groups;
    weights.n_inputs = c->n_inputs;
    weights.n_outputs = c->n_outputs;
    weights.format = is_fp8(c) ? DSR_WEIGHT_FP8 : DSR_WEIGHT_BF16;
    weights.scales_dtype = c->shared[SCALES].dtype;
    weights.data = c->shared[WEIGHT].data;
    weights.scales = c->shared[SCALES].data;
    if (dsr_projection_packed_bytes(context, &weights, &n_bytes) != DSR_OK) {
        stop(dsr_context_error_text(context));
    }
    bit_array packed = bit_array_new(DSR_DTYPE_U32, (size_t)n_bytes / sizeof(uint32_t));
    if (dsr_projection_pack(context, &weights, packed.data, n_bytes) != DSR_OK) {
        stop(dsr_context_error_text(context));
    }
    return packed;
}

static void place_weights(bit_placement *p)
{
    if (is_packed(p->c)) {
        bit_array packed = pack(p->c, p->context);
        p->operands[OPERAND_WEIGHT] = bit_add_input(p, &packed);
        bit_array_free(&packed);
        return;
    }
    p->operands[OPERAND_WEIGHT] = bit_add_input(p, &p->c->shared[WEIGHT]);
    if (is_fp8(p->c)) {
        p->operands[OPERAND_SCALES] = bit_add_input(p, &p->c->shared[SCALES]);
    }
}

static void place(bit_placement *p)
{
    const size_t n_in = (size_t)p->c->n_groups * p->c->n_inputs, n_out = (size_t)p->c->n_groups * p->c->n_outputs;

    place_weights(p);
    p->operands[OPERAND_INPUT] = bit_add_segment(p, BIT_SEGMENT_INPUT, DSR_DTYPE_BF16, p->n * n_in);
    p->operands[OPERAND_OUTPUT] = bit_add_segment(p, BIT_SEGMENT_OUTPUT, p->c->output_dtype, p->n * n_out);
    for (uint32_t i = 0; i < p->n; i++) {
        bit_put(p, p->operands[OPERAND_INPUT], i * n_in, &bit_placed_row(p, i)->inputs[0], 0, n_in);
        bit_add_piece(p, p->operands[OPERAND_OUTPUT], i * n_out, i, 0, 0, n_out);
    }
}

static dsr_status encode(const bit_placement *p, dsr_encoder *encoder)
{
    dsr_projection_desc desc = DSR_PROJECTION_DESC_INIT;

    desc.n_rows = p->n;
    desc.n_groups = p->c->n_groups;
    desc.n_inputs = p->c->n_inputs;
    desc.n_outputs = p->c->n_outputs;
    desc.format = p->c->weight_format;
    desc.output_scale = p->c->scale;
    desc.input = bit_view(p, p->operands[OPERAND_INPUT]);
    desc.output = bit_view(p, p->operands[OPERAND_OUTPUT]);
    desc.weight = bit_view(p, p->operands[OPERAND_WEIGHT]);
    if (desc.format == DSR_WEIGHT_FP8) {
        desc.scales = bit_view(p, p->operands[OPERAND_SCALES]);
    }
    return dsr_encode_projection(encoder, &desc);
}

const bit_op bit_op_projection = {
    "projection",
    N_SHAPES,
    {"bf16", "bf16-packed", "groups", "fp8", "fp8-packed-groups", "fp8-packed-e8m0", "patterns"},
    generate,
    reference,
    place,
    encode,
    NULL};
