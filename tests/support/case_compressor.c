/* The KV compressor. */
#include "bit_case_ops.h"

#include "reference/reference.h"

#include <string.h>

enum {
    SHAPE_R4D128,
    SHAPE_R4D512,
    SHAPE_R128D512,
    SHAPE_TOKENS_R4,
    SHAPE_TOKENS_R128,
    SHAPE_ZERO_R4,
    SHAPE_ZERO_R128,
    N_SHAPES
};
enum { KV = 0, SCORE = 1, KV_STATE = 2, SCORE_STATE = 3 };
enum { APE = 0, NORM = 1 };

typedef struct compressor_shape {
    uint32_t n_rows, ratio, dim, max_tokens;
    int from_zero;
} compressor_shape;

static const compressor_shape shapes[N_SHAPES] = {
    [SHAPE_R4D128] = {64, 4, 128, 1, 0},         [SHAPE_R4D512] = {33, 4, 512, 1, 0},
    [SHAPE_R128D512] = {12, 128, 512, 1, 0},     [SHAPE_TOKENS_R4] = {33, 4, 128, 13, 0},
    [SHAPE_TOKENS_R128] = {3, 128, 512, 200, 0}, [SHAPE_ZERO_R4] = {1, 4, 512, 11, 1},
    [SHAPE_ZERO_R128] = {1, 128, 512, 131, 1},
};

static const pattern kinds[] = {PATTERN_NORMAL, PATTERN_MIXED,    PATTERN_EQUAL,       PATTERN_NORMAL,
                                PATTERN_LARGE,  PATTERN_NORMAL,   PATTERN_SIGNED_ZERO, PATTERN_NONFINITE,
                                PATTERN_NORMAL, PATTERN_SUBNORMAL};

enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static uint32_t columns(const bit_case *c)
{
    return (c->ratio == 4 ? 2 : 1) * c->dim;
}

/* A state as a request could have it: rows of tokens seen, the rest dormant, here and there an element that was bad. */
static void fill_state(random_stream *random, const bit_case *c, bit_row *row, pattern kind)
{
    const size_t n = row->inputs[KV_STATE].n;
    float *kv = bit_f32(&row->inputs[KV_STATE]), *score = bit_f32(&row->inputs[SCORE_STATE]);
    const pattern finite = kind == PATTERN_NONFINITE ? PATTERN_NORMAL : kind;

    pattern_fill_f32(random, finite, 1.0f, kv, n);
    pattern_fill_f32(random, finite, 2.0f, score, n);
    for (size_t i = 0; kind == PATTERN_NONFINITE && i < n; i++) {
        if (random_one_in(random, 2 * c->dim)) {
            kv[i] = 0.0f;
            score[i] = f32_from_bits(0x7fc00000u);
        }
    }
    if (row->start_pos < c->ratio) { /* no group complete yet */
        for (size_t i = 0; c->ratio == 4 && i < n / 2; i++) {
            kv[i] = 0.0f;
            score[i] = f32_from_bits(0xff800000u);
        }
    }
}

static uint32_t choose_position(random_stream *random, const bit_case *c, uint32_t r)
{
    static const uint32_t starts[8] = {1, 3, 7, 127, 126, 511, 1000003, 1048575};
    const uint32_t start = r % 5 == 4 ? 1 + random_below(random, 2000000) : starts[(r / 2) % 8];
    return r % 2 ? start | (c->ratio - 1) : start;
}

static void generate_row(bit_case *c, const compressor_shape *shape, uint32_t r)
{
    bit_row *row = &c->rows[r];
    random_stream random = random_open(c->seed, 100 * c->shape + r);
    const pattern kind = kinds[(r + c->shape) % N_KINDS];
    const size_t n_state = (size_t)dsr_compressor_state_elements(c->ratio, c->dim);

    row->n_tokens = shape->max_tokens == 1 ? 1 : shape->max_tokens - r % shape->max_tokens;
    row->start_pos = shape->from_zero ? 0 : choose_position(&random, c, r);
    row->inputs[KV] = bit_array_new(DSR_DTYPE_F32, (size_t)row->n_tokens * columns(c));
    row->inputs[SCORE] = bit_array_new(DSR_DTYPE_F32, (size_t)row->n_tokens * columns(c));
    row->inputs[KV_STATE] = bit_array_new(DSR_DTYPE_F32, n_state);
    row->inputs[SCORE_STATE] = bit_array_new(DSR_DTYPE_F32, n_state);
    pattern_fill_f32(&random, kind, 1.0f, bit_f32(&row->inputs[KV]), row->inputs[KV].n);
    pattern_fill_f32(&random, kind == PATTERN_LARGE ? PATTERN_NORMAL : kind, 2.0f, bit_f32(&row->inputs[SCORE]),
                     row->inputs[SCORE].n);
    fill_state(&random, c, row, kind);
}

static void generate(bit_case *c)
{
    const compressor_shape *shape = &shapes[c->shape];
    random_stream random = random_open(c->seed, c->shape);

    c->n_rows = shape->n_rows;
    c->ratio = shape->ratio;
    c->dim = shape->dim;
    c->epsilon = 1e-6f;
    c->shared[APE] = bit_array_new(DSR_DTYPE_F32, (size_t)c->ratio * columns(c));
    c->shared[NORM] = bit_array_new(DSR_DTYPE_F32, c->dim);
    pattern_fill_f32(&random, PATTERN_NORMAL, 0.5f, bit_f32(&c->shared[APE]), c->shared[APE].n);
    pattern_fill_f32(&random, PATTERN_NORMAL, 1.0f, bit_f32(&c->shared[NORM]), c->shared[NORM].n);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        generate_row(c, shape, r);
    }
}

static size_t output_rows(const bit_case *c, const bit_row *row)
{
    const uint32_t n = dsr_compressor_emitted(c->ratio, row->start_pos, row->n_tokens);
    return n > 0 ? n : 1;
}

static void reference(const bit_case *c, const bit_row *row, bit_array outputs[BIT_ROW_OUTPUTS])
{
    uint16_t emitted[DSR_HEAD_DIM];
    size_t n_emitted = 0;

    outputs[0] = bit_array_new(DSR_DTYPE_BF16, output_rows(c, row) * c->dim);
    outputs[1] = bit_array_copy(&row->inputs[KV_STATE]);
    outputs[2] = bit_array_copy(&row->inputs[SCORE_STATE]);
    if (row->start_pos == 0) {
        ref_compressor_init(c->ratio, c->dim, bit_f32(&outputs[1]), bit_f32(&outputs[2]));
    }
    for (uint32_t t = 0; t < row->n_tokens; t++) {
        const size_t at = (size_t)t * columns(c);
        if (ref_compressor_step(c->ratio, c->dim, row->start_pos + t, bit_f32(&row->inputs[KV]) + at,
                                bit_f32(&row->inputs[SCORE]) + at, bit_f32(&c->shared[APE]), bit_f32(&c->shared[NORM]),
                                c->epsilon, bit_f32(&outputs[1]), bit_f32(&outputs[2]), emitted)) {
            memcpy(bit_bf16(&outputs[0]) + n_emitted++ * c->dim, emitted, c->dim * sizeof *emitted);
        }
    }
}

enum { OPERAND_KV, OPERAND_SCORE, OPERAND_APE, OPERAND_NORM, OPERAND_OUTPUT };

static void place_tokens(bit_placement *p)
{
    const size_t width = columns(p->c);
    uint64_t lengths[BIT_MAX_ROWS], places[BIT_MAX_ROWS];

    for (uint32_t i = 0; i < p->n; i++) {
        lengths[i] = bit_placed_row(p, i)->n_tokens;
    }
    const size_t n = (size_t)bit_draw_places(p, lengths, places);
    p->operands[OPERAND_KV] = bit_add_segment(p, BIT_SEGMENT_INPUT, DSR_DTYPE_F32, n * width);
    p->operands[OPERAND_SCORE] = bit_add_segment(p, BIT_SEGMENT_INPUT, DSR_DTYPE_F32, n * width);
    for (uint32_t i = 0; i < p->n; i++) {
        const bit_row *row = bit_placed_row(p, i);
        p->slots[i].query_row = places[i];
        bit_put(p, p->operands[OPERAND_KV], (size_t)places[i] * width, &row->inputs[KV], 0, row->inputs[KV].n);
        bit_put(p, p->operands[OPERAND_SCORE], (size_t)places[i] * width, &row->inputs[SCORE], 0, row->inputs[KV].n);
    }
}

static void place_outputs(bit_placement *p)
{
    const size_t dim = p->c->dim;
    uint64_t lengths[BIT_MAX_ROWS], places[BIT_MAX_ROWS];

    for (uint32_t i = 0; i < p->n; i++) {
        lengths[i] = output_rows(p->c, bit_placed_row(p, i));
    }
    const size_t n = (size_t)bit_draw_places(p, lengths, places);
    p->operands[OPERAND_OUTPUT] = bit_add_segment(p, BIT_SEGMENT_OUTPUT, DSR_DTYPE_BF16, n * dim);
    for (uint32_t i = 0; i < p->n; i++) {
        p->slots[i].output_row = places[i];
        bit_add_piece(p, p->operands[OPERAND_OUTPUT], (size_t)places[i] * dim, i, 0, 0, (size_t)lengths[i] * dim);
    }
}

static void place(bit_placement *p)
{
    place_tokens(p);
    p->operands[OPERAND_APE] = bit_add_input(p, &p->c->shared[APE]);
    p->operands[OPERAND_NORM] = bit_add_input(p, &p->c->shared[NORM]);
    place_outputs(p);
    for (uint32_t i = 0; i < p->n; i++) {
        for (uint32_t state = 0; state < 2; state++) {
            const bit_array *before = &bit_placed_row(p, i)->inputs[KV_STATE + state];
            p->slots[i].segments[state] = bit_add_segment(p, BIT_SEGMENT_OUTPUT, DSR_DTYPE_F32, before->n);
            bit_put(p, p->slots[i].segments[state], 0, before, 0, before->n);
            bit_add_piece(p, p->slots[i].segments[state], 0, i, 1 + state, 0, before->n);
        }
    }
}

static dsr_status encode(const bit_placement *p, dsr_encoder *encoder)
{
    dsr_compressor_row rows[BIT_MAX_ROWS];
    dsr_compressor_desc desc = DSR_COMPRESSOR_DESC_INIT;

    memset(rows, 0, sizeof rows);
    for (uint32_t i = 0; i < p->n; i++) {
        const bit_row *row = bit_placed_row(p, i);
        rows[i].kv_state = bit_view(p, p->slots[i].segments[0]);
        rows[i].score_state = bit_view(p, p->slots[i].segments[1]);
        rows[i].token_row = p->slots[i].query_row;
        rows[i].output_row = p->slots[i].output_row;
        rows[i].start_pos = row->start_pos;
        rows[i].n_tokens = row->n_tokens;
    }
    desc.n_rows = p->n;
    desc.rows = rows;
    desc.ratio = p->c->ratio;
    desc.dim = p->c->dim;
    desc.epsilon = p->c->epsilon;
    desc.kv = bit_view(p, p->operands[OPERAND_KV]);
    desc.score = bit_view(p, p->operands[OPERAND_SCORE]);
    desc.ape = bit_view(p, p->operands[OPERAND_APE]);
    desc.norm = bit_view(p, p->operands[OPERAND_NORM]);
    desc.output = bit_view(p, p->operands[OPERAND_OUTPUT]);
    return dsr_encode_compressor(encoder, &desc);
}

const bit_op bit_op_compressor = {
    "compressor",
    N_SHAPES,
    {"r4-d128", "r4-d512", "r128-d512", "tokens-r4-d128", "tokens-r128-d512", "zero-r4-d512", "zero-r128-d512"},
    generate,
    reference,
    place,
    encode,
    NULL};
