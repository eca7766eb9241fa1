/* Sparse attention, two-pass and chunked. */
#include "bit_caches.h"
#include "need_memory.h"

#include "reference/reference.h"

#include <stdlib.h>
#include <string.h>

enum { SHAPE_H64, SHAPE_H128, SHAPE_QUERIES, SHAPE_WIDE, SHAPE_SINKS, SHAPE_FP8, SHAPE_PAGES, N_SHAPES };
enum { Q = 0, KV = 1, INDICES = 2, PAGES = 3 };

typedef struct attention_shape {
    uint32_t n_rows, n_heads, max_width, max_queries;
    float scale;
} attention_shape;

static const attention_shape shapes[N_SHAPES] = {
    [SHAPE_H64] = {64, 64, 130, 1, DSR_ATTENTION_SCALE},
    [SHAPE_H128] = {33, 128, 33, 1, DSR_ATTENTION_SCALE},
    [SHAPE_QUERIES] = {33, 64, 70, 4, 0.25f},
    [SHAPE_WIDE] = {2, 64, 640, 1, DSR_ATTENTION_SCALE},
    [SHAPE_SINKS] = {8, 64, 65, 1, 1.0f},
    [SHAPE_FP8] = {33, 128, 65, 1, DSR_ATTENTION_SCALE},
    [SHAPE_PAGES] = {64, 64, 70, 2, DSR_ATTENTION_SCALE},
};

/* What the query and the KV rows of a row look like. */
static const struct {
    pattern q, kv;
    float q_scale;
} mixes[] = {
    {PATTERN_NORMAL, PATTERN_NORMAL, 1.0f},      {PATTERN_MIXED, PATTERN_NORMAL, 1.0f},
    {PATTERN_EQUAL, PATTERN_EQUAL, 1.0f},        {PATTERN_NORMAL, PATTERN_NORMAL, 16.0f},
    {PATTERN_SUBNORMAL, PATTERN_LARGE, 1.0f},    {PATTERN_NORMAL, PATTERN_SIGNED_ZERO, 1.0f},
    {PATTERN_GRID_FP4, PATTERN_GRID_FP4, 0.25f}, {PATTERN_NORMAL, PATTERN_NONFINITE, 1.0f},
    {PATTERN_NONFINITE, PATTERN_NORMAL, 1.0f},   {PATTERN_NORMAL, PATTERN_SUBNORMAL, 4.0f},
    {PATTERN_LARGE, PATTERN_LARGE, 1.0f},        {PATTERN_SIGNED_ZERO, PATTERN_MIXED, 1.0f},
};

enum { N_MIXES = sizeof mixes / sizeof mixes[0] };

static const uint32_t widths[16] = {7, 64, 1, 65, 2, 33, 5, 17, 3, 130, 12, 31, 32, 6, 9, 63};

/* One query's list. Some rows select nothing, name a row that is not there, or repeat one. */
static void fill_indices(random_stream *random, uint32_t r, const bit_row *row, int32_t *indices)
{
    for (uint64_t i = 0; i < row->width; i++) {
        indices[i] = random_one_in(random, 8) ? -1 : (int32_t)random_below(random, (uint32_t)row->kv_len);
    }
    const uint32_t place = random_below(random, (uint32_t)row->width);
    switch (r % 19) {
    case 6:
        indices[place] = -2;
        break;
    case 10:
        indices[place] = (int32_t)row->kv_len;
        break;
    case 13: /* nothing selected */
        for (uint64_t i = 0; i < row->width; i++) {
            indices[i] = -1;
        }
        break;
    case 15: /* one row over and over */
        for (uint64_t i = 0; i < row->width; i++) {
            indices[i] = indices[place] < 0 ? 0 : indices[place];
        }
        break;
    case 17: /* far outside */
        indices[place] = place % 2 ? INT32_MIN : INT32_MAX;
        break;
    default:
        break;
    }
}

/* Packed rows, or all formats in one piece and in pages. */
static int is_cache_shape(const bit_case *c)
{
    return c->shape == SHAPE_FP8 || c->shape == SHAPE_PAGES;
}

static void generate_row(bit_case *c, const attention_shape *shape, uint32_t r)
{
    bit_row *row = &c->rows[r];
    random_stream random = random_open(c->seed, 100 * c->shape + r);
    const uint32_t mix = (r + c->shape) % N_MIXES;

    row->n_queries = 1 + r % shape->max_queries;
    row->width = shape->max_width > 130 ? shape->max_width - r : widths[r % 16] % (shape->max_width + 1);
    row->kv_len = row->width / 2 + random_between(&random, 1, 60);
    if (is_cache_shape(c)) {
        row->kv_len = r % 5 == 4 ? c->rows[r - 1].kv_len : row->kv_len + r % 4 / 3 * 250;
    }
    row->inputs[Q] = bit_array_new(DSR_DTYPE_BF16, (size_t)row->n_queries * c->n_heads * DSR_HEAD_DIM);
    row->inputs[INDICES] = bit_array_new(DSR_DTYPE_I32, (size_t)(row->n_queries * row->width));
    pattern_fill_bf16(&random, mixes[mix].q, mixes[mix].q_scale, bit_bf16(&row->inputs[Q]), row->inputs[Q].n);
    if (is_cache_shape(c)) {
        const bit_cache_form fp8 = {DSR_FORMAT_FP8, 0};
        bit_generate_cache(c, r, &random, c->shape == SHAPE_FP8 ? fp8 : bit_mixed_form(DSR_FORMAT_FP8, r), DSR_HEAD_DIM,
                           KV, PAGES);
    } else {
        row->inputs[KV] = bit_array_new(DSR_DTYPE_BF16, (size_t)row->kv_len * DSR_HEAD_DIM);
        pattern_fill_bf16(&random, mixes[mix].kv, 1.0f, bit_bf16(&row->inputs[KV]), row->inputs[KV].n);
    }
    for (uint32_t i = 0; i < row->n_queries; i++) {
        fill_indices(&random, r, row, bit_i32(&row->inputs[INDICES]) + i * row->width);
    }
}

static void generate(bit_case *c)
{
    const attention_shape *shape = &shapes[c->shape];
    random_stream random = random_open(c->seed, c->shape);

    c->n_rows = shape->n_rows;
    c->n_heads = shape->n_heads;
    c->scale = shape->scale;
    c->shared[0] = bit_array_new(DSR_DTYPE_F32, c->n_heads);
    pattern_fill_f32(&random, PATTERN_NORMAL, 2.0f, bit_f32(&c->shared[0]), c->n_heads);
    if (c->shape == SHAPE_SINKS) {
        pattern_fill_f32(&random, PATTERN_MIXED, 8.0f, bit_f32(&c->shared[0]), c->n_heads);
        bit_f32(&c->shared[0])[5] = f32_from_bits(0x7fc00000u);
        bit_f32(&c->shared[0])[17] = f32_from_bits(0x7f800000u);
        bit_f32(&c->shared[0])[63] = f32_from_bits(0xff800000u);
    }
    for (uint32_t r = 0; r < c->n_rows; r++) {
        generate_row(c, shape, r);
    }
}

static void reference(const bit_case *c, const bit_row *row, bit_array outputs[BIT_ROW_OUTPUTS])
{
    const int chunked = c->op == &bit_op_flash_attention;
    const size_t query = (size_t)c->n_heads * DSR_HEAD_DIM;
    float *scratch = need_memory(malloc((size_t)(row->width + (row->width / 64 + 1) * 514) * sizeof *scratch));

    outputs[0] = bit_array_new(DSR_DTYPE_BF16, row->n_queries * query);
    for (uint32_t i = 0; i < row->n_queries; i++) {
        (chunked ? ref_flash_attention : ref_sparse_attention)(
            bit_bf16(&row->inputs[Q]) + i * query, bit_bf16(&row->inputs[KV]), DSR_HEAD_DIM, row->kv_len,
            bit_i32(&row->inputs[INDICES]) + i * row->width, row->width, bit_f32(&c->shared[0]), c->scale, c->n_heads,
            scratch, bit_bf16(&outputs[0]) + i * query);
    }
    free(scratch);
}

enum { OPERAND_SINKS, OPERAND_Q, OPERAND_INDICES, OPERAND_OUTPUT };

static void place_queries(bit_placement *p)
{
    const size_t query = (size_t)p->c->n_heads * DSR_HEAD_DIM;
    uint64_t lengths[BIT_MAX_ROWS], places[BIT_MAX_ROWS];

    for (uint32_t i = 0; i < p->n; i++) {
        lengths[i] = bit_placed_row(p, i)->n_queries;
    }
    const uint64_t n_queries = bit_draw_places(p, lengths, places);
    p->operands[OPERAND_Q] = bit_add_segment(p, BIT_SEGMENT_INPUT, DSR_DTYPE_BF16, (size_t)n_queries * query);
    p->operands[OPERAND_OUTPUT] = bit_add_segment(p, BIT_SEGMENT_OUTPUT, DSR_DTYPE_BF16, (size_t)n_queries * query);
    for (uint32_t i = 0; i < p->n; i++) {
        const bit_array *q = &bit_placed_row(p, i)->inputs[Q];
        p->slots[i].query_row = places[i];
        bit_put(p, p->operands[OPERAND_Q], (size_t)places[i] * query, q, 0, q->n);
        bit_add_piece(p, p->operands[OPERAND_OUTPUT], (size_t)places[i] * query, i, 0, 0, q->n);
    }
}

static void place_indices(bit_placement *p)
{
    uint64_t lengths[BIT_MAX_ROWS], places[BIT_MAX_ROWS];

    for (uint32_t i = 0; i < p->n; i++) {
        const bit_row *row = bit_placed_row(p, i);
        p->slots[i].index_stride = bit_draw_stride(p, row->width);
        lengths[i] = (row->n_queries - 1) * p->slots[i].index_stride + row->width;
    }
    const uint64_t n = bit_draw_places(p, lengths, places);
    p->operands[OPERAND_INDICES] = bit_add_segment(p, BIT_SEGMENT_INPUT, DSR_DTYPE_I32, (size_t)n);
    for (uint32_t i = 0; i < p->n; i++) {
        const bit_row *row = bit_placed_row(p, i);
        p->slots[i].index_offset = places[i];
        for (uint32_t j = 0; j < row->n_queries; j++) {
            bit_put(p, p->operands[OPERAND_INDICES], (size_t)(places[i] + j * p->slots[i].index_stride),
                    &row->inputs[INDICES], (size_t)(j * row->width), (size_t)row->width);
        }
    }
}

static void place(bit_placement *p)
{
    p->operands[OPERAND_SINKS] = bit_add_input(p, &p->c->shared[0]);
    place_queries(p);
    place_indices(p);
    bit_place_caches(p, DSR_HEAD_DIM, KV, PAGES);
}

static dsr_attention_desc describe(const bit_placement *p, dsr_attention_row rows[BIT_MAX_ROWS])
{
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;

    memset(rows, 0, BIT_MAX_ROWS * sizeof *rows);
    for (uint32_t i = 0; i < p->n; i++) {
        const bit_row *row = bit_placed_row(p, i);
        rows[i].kv = bit_cache_view(p, i);
        rows[i].kv_layout = bit_cache_layout(p, i);
        rows[i].kv_len = row->kv_len;
        rows[i].kv_row_stride = bit_cache_row_stride(p, i);
        rows[i].q_row = p->slots[i].query_row;
        rows[i].index_offset = p->slots[i].index_offset;
        rows[i].index_stride = p->slots[i].index_stride;
        rows[i].width = row->width;
        rows[i].n_queries = row->n_queries;
    }
    desc.n_rows = p->n;
    desc.rows = rows;
    desc.n_heads = p->c->n_heads;
    desc.scale = p->c->scale;
    desc.q = bit_view(p, p->operands[OPERAND_Q]);
    desc.indices = bit_view(p, p->operands[OPERAND_INDICES]);
    desc.sinks = bit_view(p, p->operands[OPERAND_SINKS]);
    desc.output = bit_view(p, p->operands[OPERAND_OUTPUT]);
    desc.workspace = bit_workspace_view(p);
    return desc;
}

static int is_chunked(const bit_placement *p)
{
    return p->c->op == &bit_op_flash_attention;
}

static dsr_status encode(const bit_placement *p, dsr_encoder *encoder)
{
    dsr_attention_row rows[BIT_MAX_ROWS];
    const dsr_attention_desc desc = describe(p, rows);
    return (is_chunked(p) ? dsr_encode_flash_attention : dsr_encode_sparse_attention)(encoder, &desc);
}

static dsr_status workspace(const bit_placement *p, dsr_context *context, uint64_t *n_bytes)
{
    dsr_attention_row rows[BIT_MAX_ROWS];
    const dsr_attention_desc desc = describe(p, rows);
    return (is_chunked(p) ? dsr_flash_attention_workspace : dsr_sparse_attention_workspace)(context, &desc, n_bytes);
}

const bit_op bit_op_sparse_attention = {"sparse-attention",
                                        N_SHAPES,
                                        {"h64", "h128", "queries", "wide", "sinks", "fp8", "pages"},
                                        generate,
                                        reference,
                                        place,
                                        encode,
                                        workspace};
const bit_op bit_op_flash_attention = {"flash-attention",
                                       N_SHAPES,
                                       {"h64", "h128", "queries", "wide", "sinks", "fp8", "pages"},
                                       generate,
                                       reference,
                                       place,
                                       encode,
                                       workspace};
