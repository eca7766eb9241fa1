/* RMS norm. */
#include "bit_case_ops.h"

#include "reference/reference.h"

#include <math.h>
#include <stdlib.h>

enum { SHAPE_F32, SHAPE_BF16_TO_F32, SHAPE_F32_TO_BF16, SHAPE_BF16_ODD, N_SHAPES };

static const struct {
    uint32_t n_rows, dim;
    dsr_dtype input, output;
    int has_weight;
} shapes[N_SHAPES] = {
    [SHAPE_F32] = {33, 1024, DSR_DTYPE_F32, DSR_DTYPE_F32, 1},
    [SHAPE_BF16_TO_F32] = {64, 512, DSR_DTYPE_BF16, DSR_DTYPE_F32, 0},
    [SHAPE_F32_TO_BF16] = {16, 4096, DSR_DTYPE_F32, DSR_DTYPE_BF16, 1},
    [SHAPE_BF16_ODD] = {64, 208, DSR_DTYPE_BF16, DSR_DTYPE_BF16, 1},
};

static void generate(bit_case *c)
{
    random_stream random = random_open(c->seed, c->shape);

    c->n_rows = shapes[c->shape].n_rows;
    c->dim = shapes[c->shape].dim;
    c->dtype = shapes[c->shape].input;
    c->output_dtype = shapes[c->shape].output;
    c->epsilon = 1e-6f;
    if (shapes[c->shape].has_weight) {
        c->shared[0] = bit_array_new(DSR_DTYPE_F32, c->dim);
        pattern_fill_f32(&random, c->shape == SHAPE_BF16_ODD ? PATTERN_MIXED : PATTERN_NORMAL, 1.0f,
                         bit_f32(&c->shared[0]), c->dim);
    }
    for (uint32_t r = 0; r < c->n_rows; r++) {
        const pattern kind = (pattern)((r + c->shape) % N_PATTERNS);
        bit_array *input = &c->rows[r].inputs[0];
        random = random_open(c->seed, 100 * c->shape + r);
        *input = bit_array_new(c->dtype, c->dim);
        if (c->dtype == DSR_DTYPE_F32) {
            pattern_fill_f32(&random, kind, 1.0f, bit_f32(input), c->dim);
        } else {
            pattern_fill_bf16(&random, kind, 1.0f, bit_bf16(input), c->dim);
        }
    }
}

/* A vector whose sum of squares is not finite is zeros; a result that is not finite is 0. */
static void store(const bit_case *c, const float *y, int good, bit_array *output)
{
    for (uint32_t f = 0; f < c->dim; f++) {
        const uint16_t rounded = ref_bf16_from_f32(y[f]);
        if (c->output_dtype == DSR_DTYPE_F32) {
            bit_f32(output)[f] = good && isfinite(y[f]) ? y[f] : 0.0f;
        } else {
            bit_bf16(output)[f] = good && isfinite(f32_from_bf16(rounded)) ? rounded : 0;
        }
    }
}

static void reference(const bit_case *c, const bit_row *row, bit_array outputs[BIT_ROW_OUTPUTS])
{
    bit_array x = bit_array_new(DSR_DTYPE_F32, c->dim), y = bit_array_new(DSR_DTYPE_F32, c->dim);
    bit_array scratch = bit_array_new(DSR_DTYPE_F32, 2 * (size_t)c->dim);

    for (uint32_t f = 0; f < c->dim; f++) {
        bit_f32(&x)[f] =
            c->dtype == DSR_DTYPE_F32 ? bit_f32(&row->inputs[0])[f] : f32_from_bf16(bit_bf16(&row->inputs[0])[f]);
    }
    ref_rms_norm(bit_f32(&x), c->dim, c->shared[0].data, c->epsilon, bit_f32(&scratch), bit_f32(&y));
    outputs[0] = bit_array_new(c->output_dtype, c->dim);
    store(c, bit_f32(&y), isfinite(bit_f32(&scratch)[0]), &outputs[0]);
    bit_array_free(&x);
    bit_array_free(&y);
    bit_array_free(&scratch);
}

enum { OPERAND_INPUT, OPERAND_OUTPUT, OPERAND_WEIGHT };

static void place(bit_placement *p)
{
    const size_t dim = p->c->dim;

    p->in_place = p->c->dtype == p->c->output_dtype && p->layout.seed % 2 == 1;
    p->operands[OPERAND_OUTPUT] = bit_add_segment(p, BIT_SEGMENT_OUTPUT, p->c->output_dtype, p->n * dim);
    p->operands[OPERAND_INPUT] =
        p->in_place ? p->operands[OPERAND_OUTPUT] : bit_add_segment(p, BIT_SEGMENT_INPUT, p->c->dtype, p->n * dim);
    if (p->c->shared[0].data) {
        p->operands[OPERAND_WEIGHT] = bit_add_input(p, &p->c->shared[0]);
    }
    for (uint32_t i = 0; i < p->n; i++) {
        bit_put(p, p->operands[OPERAND_INPUT], i * dim, &bit_placed_row(p, i)->inputs[0], 0, dim);
        bit_add_piece(p, p->operands[OPERAND_OUTPUT], i * dim, i, 0, 0, dim);
    }
}

static dsr_status encode(const bit_placement *p, dsr_encoder *encoder)
{
    dsr_rms_norm_desc desc = DSR_RMS_NORM_DESC_INIT;

    desc.dim = p->c->dim;
    desc.n_vectors = p->n;
    desc.epsilon = p->c->epsilon;
    desc.input = bit_view(p, p->operands[OPERAND_INPUT]);
    desc.output = bit_view(p, p->operands[OPERAND_OUTPUT]);
    if (p->c->shared[0].data) {
        desc.weight = bit_view(p, p->operands[OPERAND_WEIGHT]);
    }
    return dsr_encode_rms_norm(encoder, &desc);
}

const bit_op bit_op_rms_norm = {"rms-norm", N_SHAPES,  {"f32-1024", "bf16-f32-512-plain", "f32-bf16-4096", "bf16-208"},
                                generate,   reference, place,
                                encode,     NULL};
