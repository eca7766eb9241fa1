/* Gather and copy: bits pass through unchanged, whatever they mean. */
#include "bit_case_ops.h"

#include <string.h>

/* ---- gather ----------------------------------------------------------------------------------------------- */

static const uint32_t gather_elements[] = {1, 3, 17, 512, 1001, 40003};

static void generate_gather(bit_case *c)
{
    c->row_elements = gather_elements[c->shape];
    c->n_rows = c->row_elements > 10000 ? 8 : BIT_MAX_ROWS;
    for (uint32_t r = 0; r < c->n_rows; r++) {
        random_stream random = random_open(c->seed, 100 * c->shape + r);
        c->rows[r].inputs[0] = bit_array_new(DSR_DTYPE_F32, c->row_elements);
        pattern_fill_bits(&random, c->rows[r].inputs[0].data, bit_array_bytes(&c->rows[r].inputs[0]));
    }
}

static void reference_gather(const bit_case *c, const bit_row *row, bit_array outputs[BIT_ROW_OUTPUTS])
{
    (void)c;
    outputs[0] = bit_array_copy(&row->inputs[0]);
}

static void place_gather(bit_placement *p)
{
    const size_t n = p->c->row_elements;
    p->operands[0] = bit_add_segment(p, BIT_SEGMENT_OUTPUT, DSR_DTYPE_F32, p->n * n);
    for (uint32_t i = 0; i < p->n; i++) {
        p->slots[i].segments[0] = bit_add_input(p, &bit_placed_row(p, i)->inputs[0]);
        bit_add_piece(p, p->operands[0], i * n, i, 0, 0, n);
    }
}

static dsr_status encode_gather(const bit_placement *p, dsr_encoder *encoder)
{
    dsr_view sources[BIT_MAX_ROWS];
    dsr_gather_desc desc = DSR_GATHER_DESC_INIT;

    for (uint32_t i = 0; i < p->n; i++) {
        sources[i] = bit_view(p, p->slots[i].segments[0]);
    }
    desc.n_rows = p->n;
    desc.sources = sources;
    desc.row_elements = p->c->row_elements;
    desc.output = bit_view(p, p->operands[0]);
    return dsr_encode_gather(encoder, &desc);
}

const bit_op bit_op_gather = {
    "gather",      6,   {"n1", "n3", "n17", "n512", "n1001", "n40003"}, generate_gather, reference_gather, place_gather,
    encode_gather, NULL};

/* ---- copy ------------------------------------------------------------------------------------------------- */

enum { SOURCE = 0, DESTINATION = 1 };

static const struct {
    dsr_dtype dtype;
    uint32_t row_elements, ring_rows, max_copies, n_rows;
} copy_shapes[] = {
    {DSR_DTYPE_BF16, 512, 128, 1, 33}, {DSR_DTYPE_BF16, 512, 0, 1, 64}, {DSR_DTYPE_F32, 3, 7, 7, 64},
    {DSR_DTYPE_U8, 5, 0, 9, 64},       {DSR_DTYPE_I32, 128, 4, 4, 64},  {DSR_DTYPE_BF16, 512, 128, 128, 8},
};

static void generate_copy(bit_case *c)
{
    const uint32_t ring = copy_shapes[c->shape].ring_rows, max_copies = copy_shapes[c->shape].max_copies;

    c->n_rows = copy_shapes[c->shape].n_rows;
    c->row_elements = copy_shapes[c->shape].row_elements;
    c->dtype = copy_shapes[c->shape].dtype;
    for (uint32_t r = 0; r < c->n_rows; r++) {
        bit_row *row = &c->rows[r];
        random_stream random = random_open(c->seed, 100 * c->shape + r);
        row->n_copies = max_copies > 16 ? max_copies - r : 1 + r % max_copies;
        row->ring_rows = ring;
        row->destination_row = random_below(&random, ring ? ring : 20);
        const size_t destination_rows = ring ? ring : (size_t)row->destination_row + row->n_copies + r % 3;
        row->inputs[SOURCE] = bit_array_new(c->dtype, (size_t)row->n_copies * c->row_elements);
        row->inputs[DESTINATION] = bit_array_new(c->dtype, destination_rows * c->row_elements);
        pattern_fill_bits(&random, row->inputs[SOURCE].data, bit_array_bytes(&row->inputs[SOURCE]));
        pattern_fill_bits(&random, row->inputs[DESTINATION].data, bit_array_bytes(&row->inputs[DESTINATION]));
    }
}

static void reference_copy(const bit_case *c, const bit_row *row, bit_array outputs[BIT_ROW_OUTPUTS])
{
    const size_t row_bytes = c->row_elements * dsr_dtype_size(c->dtype);

    outputs[0] = bit_array_copy(&row->inputs[DESTINATION]);
    for (uint32_t i = 0; i < row->n_copies; i++) {
        uint64_t to = row->destination_row + i;
        to = row->ring_rows ? to % row->ring_rows : to;
        memcpy((uint8_t *)outputs[0].data + to * row_bytes, (const uint8_t *)row->inputs[SOURCE].data + i * row_bytes,
               row_bytes);
    }
}

static void place_copy(bit_placement *p)
{
    const size_t n = p->c->row_elements;
    uint64_t lengths[BIT_MAX_ROWS], places[BIT_MAX_ROWS];

    for (uint32_t i = 0; i < p->n; i++) {
        lengths[i] = bit_placed_row(p, i)->n_copies;
    }
    p->operands[0] =
        bit_add_segment(p, BIT_SEGMENT_INPUT, p->c->dtype, (size_t)bit_draw_places(p, lengths, places) * n);
    for (uint32_t i = 0; i < p->n; i++) {
        const bit_row *row = bit_placed_row(p, i);
        const bit_array *before = &row->inputs[DESTINATION];
        p->slots[i].query_row = places[i];
        bit_put(p, p->operands[0], (size_t)places[i] * n, &row->inputs[SOURCE], 0, row->inputs[SOURCE].n);
        p->slots[i].segments[0] = bit_add_segment(p, BIT_SEGMENT_OUTPUT, p->c->dtype, before->n);
        bit_put(p, p->slots[i].segments[0], 0, before, 0, before->n);
        bit_add_piece(p, p->slots[i].segments[0], 0, i, 0, 0, before->n);
    }
}

static dsr_status encode_copy(const bit_placement *p, dsr_encoder *encoder)
{
    dsr_copy_row rows[BIT_MAX_ROWS];
    dsr_copy_desc desc = DSR_COPY_DESC_INIT;

    memset(rows, 0, sizeof rows);
    for (uint32_t i = 0; i < p->n; i++) {
        const bit_row *row = bit_placed_row(p, i);
        rows[i].destination = bit_view(p, p->slots[i].segments[0]);
        rows[i].source_row = p->slots[i].query_row;
        rows[i].destination_row = row->destination_row;
        rows[i].ring_rows = row->ring_rows;
        rows[i].n_copies = row->n_copies;
    }
    desc.n_rows = p->n;
    desc.rows = rows;
    desc.row_elements = p->c->row_elements;
    desc.source = bit_view(p, p->operands[0]);
    return dsr_encode_copy(encoder, &desc);
}

const bit_op bit_op_copy = {
    "copy",
    6,
    {"ring-bf16-512", "slot-bf16-512", "ring-f32-3", "slot-u8-5", "ring-i32-128", "long-ring-bf16-512"},
    generate_copy,
    reference_copy,
    place_copy,
    encode_copy,
    NULL};
