/* Cache fake quantisation. */
#include "bit_case_ops.h"

#include "reference/reference.h"

enum { SHAPE_FP8_512, SHAPE_FP8_128, SHAPE_FP8_320, SHAPE_FP4, SHAPE_FP8_ENGINE, SHAPE_FP4_ENGINE, N_SHAPES };

static const uint32_t dims[N_SHAPES] = {512, 128, 320, 128, 512, 128};

/* Floors of the block maximum, as the model's code and as engines' kernels have them. */
static const float fp8_floors[2] = {1e-4f, 448e-4f}, fp4_floors[2] = {0x1.8p-124f, 1e-4f};

static dsr_scale_floor floor_of(const bit_case *c)
{
    return c->shape >= SHAPE_FP8_ENGINE ? DSR_FLOOR_ENGINE : DSR_FLOOR_MODEL;
}

static void generate(bit_case *c)
{
    static const float scales[4] = {1.0f, 0x1p-20f, 0x1p+60f, 0x1p-3f};

    c->n_rows = BIT_MAX_ROWS;
    c->dim = dims[c->shape];
    c->quant_kind =
        c->shape == SHAPE_FP4 || c->shape == SHAPE_FP4_ENGINE ? DSR_QUANT_HADAMARD_FP4_BLOCK32 : DSR_QUANT_FP8_BLOCK64;
    for (uint32_t r = 0; r < c->n_rows; r++) {
        random_stream random = random_open(c->seed, 100 * c->shape + r);
        c->rows[r].inputs[0] = bit_array_new(DSR_DTYPE_BF16, c->dim);
        pattern_fill_bf16(&random, (pattern)(r % N_PATTERNS), scales[(r / N_PATTERNS) % 4],
                          bit_bf16(&c->rows[r].inputs[0]), c->dim);
    }
}

static void reference(const bit_case *c, const bit_row *row, bit_array outputs[BIT_ROW_OUTPUTS])
{
    outputs[0] = bit_array_new(DSR_DTYPE_BF16, c->dim);
    if (c->quant_kind == DSR_QUANT_FP8_BLOCK64) {
        ref_fake_quant_fp8(bit_bf16(&row->inputs[0]), c->dim, fp8_floors[floor_of(c)], bit_bf16(&outputs[0]));
    } else {
        ref_hadamard_fp4(bit_bf16(&row->inputs[0]), fp4_floors[floor_of(c)], bit_bf16(&outputs[0]));
    }
}

enum { OPERAND_INPUT, OPERAND_OUTPUT };

static void place(bit_placement *p)
{
    const size_t dim = p->c->dim;

    p->in_place = p->layout.seed % 2 == 1;
    p->operands[OPERAND_OUTPUT] = bit_add_segment(p, BIT_SEGMENT_OUTPUT, DSR_DTYPE_BF16, p->n * dim);
    p->operands[OPERAND_INPUT] =
        p->in_place ? p->operands[OPERAND_OUTPUT] : bit_add_segment(p, BIT_SEGMENT_INPUT, DSR_DTYPE_BF16, p->n * dim);
    for (uint32_t i = 0; i < p->n; i++) {
        bit_put(p, p->operands[OPERAND_INPUT], i * dim, &bit_placed_row(p, i)->inputs[0], 0, dim);
        bit_add_piece(p, p->operands[OPERAND_OUTPUT], i * dim, i, 0, 0, dim);
    }
}

static dsr_status encode(const bit_placement *p, dsr_encoder *encoder)
{
    dsr_fake_quant_desc desc = DSR_FAKE_QUANT_DESC_INIT;

    desc.kind = p->c->quant_kind;
    desc.n_vectors = p->n;
    desc.dim = p->c->dim;
    desc.floor = floor_of(p->c);
    desc.input = bit_view(p, p->operands[OPERAND_INPUT]);
    desc.output = bit_view(p, p->operands[OPERAND_OUTPUT]);
    return dsr_encode_fake_quant(encoder, &desc);
}

const bit_op bit_op_fake_quant = {
    "fake-quant", N_SHAPES,  {"fp8-512", "fp8-128", "fp8-320", "fp4-128", "fp8-512-engine", "fp4-128-engine"},
    generate,     reference, place,
    encode,       NULL};
