/* Tail RoPE. */
#include "bit_case_ops.h"

#include "reference/reference.h"

#include <string.h>

enum { SHAPE_F32, SHAPE_BF16_INVERSE, SHAPE_INDEX, SHAPE_STEPS, SHAPE_ODD, SHAPE_WHOLE, N_SHAPES };

static const struct {
    uint32_t n_rows, n_heads, head_dim, rope_dim, max_tokens, max_step;
    dsr_dtype dtype;
    int inverse;
} shapes[N_SHAPES] = {
    [SHAPE_F32] = {33, 64, 512, 64, 1, 1, DSR_DTYPE_F32, 0},
    [SHAPE_BF16_INVERSE] = {33, 64, 512, 64, 1, 1, DSR_DTYPE_BF16, 1},
    [SHAPE_INDEX] = {64, 64, 128, 64, 1, 1, DSR_DTYPE_F32, 0},
    [SHAPE_STEPS] = {64, 1, 512, 64, 5, 128, DSR_DTYPE_BF16, 0},
    [SHAPE_ODD] = {64, 3, 6, 2, 3, 4, DSR_DTYPE_F32, 1},
    [SHAPE_WHOLE] = {33, 2, 128, 128, 2, 4, DSR_DTYPE_BF16, 0},
};

static const uint32_t positions[12] = {0,     5,      1000,      100000,    1048575, 127,
                                       65535, 999983, 16777216u, 16777217u, 3,       4294960000u};

static void choose_frequencies(bit_case *c)
{
    random_stream random = random_open(c->seed, c->shape);

    if (c->rope_dim == DSR_ROPE_DIM) {
        memcpy(c->frequencies, dsr_rope_frequencies(c->inverse ? DSR_ROPE_BASE : DSR_ROPE_YARN),
               DSR_ROPE_DIM / 2 * sizeof(float));
        return;
    }
    for (uint32_t i = 0; i < c->rope_dim / 2; i++) { /* from subnormal to overflowing angles */
        const uint32_t bits = (uint32_t)random_next(&random);
        c->frequencies[i] = f32_from_bits(i % 4 == 3 ? bits % 0x7f800000u + (bits % 0x7f800000u == 0)
                                                     : 0x3f800000u - (bits & 0x07ffffffu));
    }
}

static void generate(bit_case *c)
{
    c->n_rows = shapes[c->shape].n_rows;
    c->n_heads = shapes[c->shape].n_heads;
    c->head_dim = shapes[c->shape].head_dim;
    c->rope_dim = shapes[c->shape].rope_dim;
    c->dtype = shapes[c->shape].dtype;
    c->inverse = shapes[c->shape].inverse;
    choose_frequencies(c);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        bit_row *row = &c->rows[r];
        random_stream random = random_open(c->seed, 100 * c->shape + r);
        const pattern kind = (pattern)((r + c->shape) % N_PATTERNS);
        row->n_tokens = 1 + r % shapes[c->shape].max_tokens;
        row->position_step = 1 + random_below(&random, shapes[c->shape].max_step);
        row->start_pos = r % 3 == 2 ? random_below(&random, 1048576) : positions[r % 12];
        row->inputs[0] = bit_array_new(c->dtype, (size_t)row->n_tokens * c->n_heads * c->head_dim);
        if (c->dtype == DSR_DTYPE_F32) {
            pattern_fill_f32(&random, kind, 1.0f, bit_f32(&row->inputs[0]), row->inputs[0].n);
        } else {
            pattern_fill_bf16(&random, kind, 1.0f, bit_bf16(&row->inputs[0]), row->inputs[0].n);
        }
    }
}

static void reference(const bit_case *c, const bit_row *row, bit_array outputs[BIT_ROW_OUTPUTS])
{
    const size_t token = (size_t)c->n_heads * c->head_dim;

    outputs[0] = bit_array_new(DSR_DTYPE_BF16, row->n_tokens * token);
    for (uint32_t i = 0; i < row->n_tokens; i++) {
        const uint32_t pos = row->start_pos + i * row->position_step;
        uint16_t *output = bit_bf16(&outputs[0]) + i * token;
        if (c->dtype == DSR_DTYPE_F32) {
            ref_rope_f32(bit_f32(&row->inputs[0]) + i * token, c->n_heads, c->head_dim, c->rope_dim, pos,
                         c->frequencies, c->inverse, output);
        } else {
            ref_rope_bf16(bit_bf16(&row->inputs[0]) + i * token, c->n_heads, c->head_dim, c->rope_dim, pos,
                          c->frequencies, c->inverse, output);
        }
    }
}

enum { OPERAND_INPUT, OPERAND_OUTPUT };

static void place(bit_placement *p)
{
    const size_t token = (size_t)p->c->n_heads * p->c->head_dim;
    uint64_t lengths[BIT_MAX_ROWS], places[BIT_MAX_ROWS];

    for (uint32_t i = 0; i < p->n; i++) {
        lengths[i] = bit_placed_row(p, i)->n_tokens;
    }
    const size_t n = (size_t)bit_draw_places(p, lengths, places);
    p->in_place = p->c->dtype == DSR_DTYPE_BF16 && p->layout.seed % 2 == 1;
    p->operands[OPERAND_OUTPUT] = bit_add_segment(p, BIT_SEGMENT_OUTPUT, DSR_DTYPE_BF16, n * token);
    p->operands[OPERAND_INPUT] =
        p->in_place ? p->operands[OPERAND_OUTPUT] : bit_add_segment(p, BIT_SEGMENT_INPUT, p->c->dtype, n * token);
    for (uint32_t i = 0; i < p->n; i++) {
        const bit_array *input = &bit_placed_row(p, i)->inputs[0];
        p->slots[i].query_row = places[i];
        bit_put(p, p->operands[OPERAND_INPUT], (size_t)places[i] * token, input, 0, input->n);
        bit_add_piece(p, p->operands[OPERAND_OUTPUT], (size_t)places[i] * token, i, 0, 0, input->n);
    }
}

static dsr_status encode(const bit_placement *p, dsr_encoder *encoder)
{
    dsr_rope_row rows[BIT_MAX_ROWS];
    dsr_rope_desc desc = DSR_ROPE_DESC_INIT;

    memset(rows, 0, sizeof rows);
    for (uint32_t i = 0; i < p->n; i++) {
        const bit_row *row = bit_placed_row(p, i);
        rows[i].row = p->slots[i].query_row;
        rows[i].start_pos = row->start_pos;
        rows[i].position_step = row->position_step;
        rows[i].n_tokens = row->n_tokens;
    }
    desc.n_rows = p->n;
    desc.rows = rows;
    desc.n_heads = p->c->n_heads;
    desc.head_dim = p->c->head_dim;
    desc.rope_dim = p->c->rope_dim;
    desc.inverse = p->c->inverse;
    desc.input = bit_view(p, p->operands[OPERAND_INPUT]);
    desc.output = bit_view(p, p->operands[OPERAND_OUTPUT]);
    desc.frequencies = p->c->frequencies;
    return dsr_encode_rope(encoder, &desc);
}

const bit_op bit_op_rope = {
    "rope",   N_SHAPES,  {"f32-yarn", "bf16-base-inverse", "index-yarn", "steps-bf16", "odd-f32-inverse", "whole-bf16"},
    generate, reference, place,
    encode,   NULL};
