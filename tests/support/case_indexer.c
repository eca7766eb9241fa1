/* The lightning indexer. */
#include "bit_caches.h"

#include "reference/reference.h"

#include <string.h>

enum { SHAPE_H64, SHAPE_H32, SHAPE_H128, SHAPE_QUERIES, SHAPE_LONG, SHAPE_FP4, SHAPE_PAGES, SHAPE_FP4_H64, N_SHAPES };
enum { Q = 0, KEYS = 1, WEIGHTS = 2, PAGES = 3 };

typedef struct indexer_shape {
    uint32_t n_rows, n_heads, top_k, max_keys, max_queries;
} indexer_shape;

static const indexer_shape shapes[N_SHAPES] = {
    [SHAPE_H64] = {64, 64, 512, 130, 1},   [SHAPE_H32] = {33, 32, 32, 400, 1},
    [SHAPE_H128] = {8, 128, 2048, 300, 1}, [SHAPE_QUERIES] = {33, 64, 64, 140, 4},
    [SHAPE_LONG] = {3, 64, 1024, 4097, 1}, [SHAPE_FP4] = {33, 128, 128, 400, 1},
    [SHAPE_PAGES] = {64, 64, 64, 400, 2},  [SHAPE_FP4_H64] = {64, 64, 128, 400, 4},
};

static const struct {
    pattern q, keys, weights;
} mixes[] = {
    {PATTERN_GRID_FP4, PATTERN_GRID_FP4, PATTERN_NORMAL}, {PATTERN_NORMAL, PATTERN_NORMAL, PATTERN_NORMAL},
    {PATTERN_EQUAL, PATTERN_EQUAL, PATTERN_EQUAL},        {PATTERN_NORMAL, PATTERN_NONFINITE, PATTERN_NORMAL},
    {PATTERN_MIXED, PATTERN_NORMAL, PATTERN_SIGNED_ZERO}, {PATTERN_SUBNORMAL, PATTERN_LARGE, PATTERN_NORMAL},
    {PATTERN_SIGNED_ZERO, PATTERN_MIXED, PATTERN_NORMAL}, {PATTERN_NORMAL, PATTERN_NORMAL, PATTERN_NONFINITE},
    {PATTERN_NORMAL, PATTERN_SUBNORMAL, PATTERN_LARGE},   {PATTERN_NONFINITE, PATTERN_NORMAL, PATTERN_NORMAL},
    {PATTERN_LARGE, PATTERN_LARGE, PATTERN_SUBNORMAL},
};

enum { N_MIXES = sizeof mixes / sizeof mixes[0] };

static const uint32_t key_counts[16] = {33, 1, 64, 5, 400, 17, 129, 3, 128, 66, 31, 300, 16, 100, 2, 65};
static const uint32_t ratios[4] = {4, 1, 128, 2};

/* Sees any number of its keys, the newest one complete or nearly so. */
static void choose_position(random_stream *random, bit_row *row)
{
    const uint64_t most = row->kv_len * row->ratio + row->ratio - 1;
    uint64_t tokens = most;
    if (random_one_in(random, 2)) {
        tokens = (uint64_t)random_below(random, (uint32_t)row->kv_len + 1) * row->ratio;
        tokens += random_below(random, row->ratio);
    }
    tokens = tokens < row->n_queries ? row->n_queries : tokens;
    row->start_pos = (uint32_t)(tokens - row->n_queries);
}

/* Packed keys, or all formats in one piece and in pages. */
static int is_cache_shape(const bit_case *c)
{
    return c->shape == SHAPE_FP4 || c->shape == SHAPE_FP4_H64 || c->shape == SHAPE_PAGES;
}

static void generate_row(bit_case *c, const indexer_shape *shape, uint32_t r)
{
    bit_row *row = &c->rows[r];
    random_stream random = random_open(c->seed, 100 * c->shape + r);
    const uint32_t mix = (r + 2 * c->shape) % N_MIXES;

    row->kv_len = shape->max_keys > 400 ? shape->max_keys - r * 1024 : key_counts[r % 16] % (shape->max_keys + 1);
    if (is_cache_shape(c) && r % 5 == 4) {
        row->kv_len = c->rows[r - 1].kv_len;
    }
    row->ratio = ratios[r % 4];
    row->n_queries = 1 + r % shape->max_queries;
    if (row->n_queries > row->kv_len * row->ratio) {
        row->n_queries = 1;
    }
    row->offset = r % 3 == 0 ? 0 : (int32_t)random_below(&random, 100000);
    choose_position(&random, row);
    row->inputs[Q] = bit_array_new(DSR_DTYPE_BF16, (size_t)row->n_queries * c->n_heads * DSR_INDEX_DIM);
    row->inputs[WEIGHTS] = bit_array_new(DSR_DTYPE_F32, (size_t)row->n_queries * c->n_heads);
    pattern_fill_bf16(&random, is_cache_shape(c) && r % 4 ? PATTERN_GRID_FP4 : mixes[mix].q, 1.0f,
                      bit_bf16(&row->inputs[Q]), row->inputs[Q].n);
    if (is_cache_shape(c)) {
        const bit_cache_form fp4 = {DSR_FORMAT_FP4, 0};
        bit_generate_cache(c, r, &random, c->shape == SHAPE_PAGES ? bit_mixed_form(DSR_FORMAT_FP4, r) : fp4,
                           DSR_INDEX_DIM, KEYS, PAGES);
    } else {
        row->inputs[KEYS] = bit_array_new(DSR_DTYPE_BF16, (size_t)row->kv_len * DSR_INDEX_DIM);
        pattern_fill_bf16(&random, mixes[mix].keys, 1.0f, bit_bf16(&row->inputs[KEYS]), row->inputs[KEYS].n);
    }
    pattern_fill_f32(&random, mixes[mix].weights, 0x1p-6f, bit_f32(&row->inputs[WEIGHTS]), row->inputs[WEIGHTS].n);
}

static void generate(bit_case *c)
{
    const indexer_shape *shape = &shapes[c->shape];

    c->n_rows = shape->n_rows;
    c->n_heads = shape->n_heads;
    c->top_k = shape->top_k;
    for (uint32_t r = 0; r < c->n_rows; r++) {
        generate_row(c, shape, r);
    }
}

static void reference(const bit_case *c, const bit_row *row, bit_array outputs[BIT_ROW_OUTPUTS])
{
    outputs[0] = bit_array_new(DSR_DTYPE_I32, (size_t)row->n_queries * c->top_k);
    outputs[1] = bit_array_new(DSR_DTYPE_F32, (size_t)(row->n_queries * row->kv_len));
    for (uint32_t i = 0; i < row->n_queries; i++) {
        float *scores = bit_f32(&outputs[1]) + i * row->kv_len;
        ref_indexer_scores(bit_bf16(&row->inputs[Q]) + (size_t)i * c->n_heads * DSR_INDEX_DIM,
                           bit_f32(&row->inputs[WEIGHTS]) + (size_t)i * c->n_heads, bit_bf16(&row->inputs[KEYS]),
                           DSR_INDEX_DIM, row->kv_len, (row->start_pos + (uint64_t)i + 1) / row->ratio, c->n_heads,
                           scores);
        ref_top_k(scores, row->kv_len, c->top_k, row->offset, bit_i32(&outputs[0]) + (size_t)i * c->top_k);
    }
}

enum { OPERAND_Q, OPERAND_WEIGHTS, OPERAND_OUTPUT, OPERAND_SCORES };

static void place_queries(bit_placement *p)
{
    const size_t n_heads = p->c->n_heads;
    uint64_t lengths[BIT_MAX_ROWS], places[BIT_MAX_ROWS];

    for (uint32_t i = 0; i < p->n; i++) {
        lengths[i] = bit_placed_row(p, i)->n_queries;
    }
    const size_t n = (size_t)bit_draw_places(p, lengths, places);
    p->operands[OPERAND_Q] = bit_add_segment(p, BIT_SEGMENT_INPUT, DSR_DTYPE_BF16, n * n_heads * DSR_INDEX_DIM);
    p->operands[OPERAND_WEIGHTS] = bit_add_segment(p, BIT_SEGMENT_INPUT, DSR_DTYPE_F32, n * n_heads);
    for (uint32_t i = 0; i < p->n; i++) {
        const bit_row *row = bit_placed_row(p, i);
        p->slots[i].query_row = places[i];
        bit_put(p, p->operands[OPERAND_Q], (size_t)places[i] * n_heads * DSR_INDEX_DIM, &row->inputs[Q], 0,
                row->inputs[Q].n);
        bit_put(p, p->operands[OPERAND_WEIGHTS], (size_t)places[i] * n_heads, &row->inputs[WEIGHTS], 0,
                row->inputs[WEIGHTS].n);
    }
}

static void place_lists(bit_placement *p)
{
    const uint32_t top_k = p->c->top_k;
    uint64_t lengths[BIT_MAX_ROWS], places[BIT_MAX_ROWS];

    for (uint32_t i = 0; i < p->n; i++) {
        p->slots[i].output_stride = bit_draw_stride(p, top_k);
        lengths[i] = (bit_placed_row(p, i)->n_queries - 1) * p->slots[i].output_stride + top_k;
    }
    const size_t n = (size_t)bit_draw_places(p, lengths, places);
    p->operands[OPERAND_OUTPUT] = bit_add_segment(p, BIT_SEGMENT_OUTPUT, DSR_DTYPE_I32, n);
    for (uint32_t i = 0; i < p->n; i++) {
        p->slots[i].output_offset = places[i];
        for (uint32_t j = 0; j < bit_placed_row(p, i)->n_queries; j++) {
            bit_add_piece(p, p->operands[OPERAND_OUTPUT], (size_t)(places[i] + j * p->slots[i].output_stride), i, 0,
                          (size_t)j * top_k, top_k);
        }
    }
}

static void place_scores(bit_placement *p)
{
    uint64_t lengths[BIT_MAX_ROWS], places[BIT_MAX_ROWS];

    p->has_scores = p->layout.seed % 3 != 1;
    if (!p->has_scores) {
        return;
    }
    for (uint32_t i = 0; i < p->n; i++) {
        lengths[i] = bit_placed_row(p, i)->n_queries * bit_placed_row(p, i)->kv_len;
    }
    const size_t n = (size_t)bit_draw_places(p, lengths, places);
    p->operands[OPERAND_SCORES] = bit_add_segment(p, BIT_SEGMENT_OUTPUT, DSR_DTYPE_F32, n);
    for (uint32_t i = 0; i < p->n; i++) {
        p->slots[i].scores_offset = places[i];
        bit_add_piece(p, p->operands[OPERAND_SCORES], (size_t)places[i], i, 1, 0, (size_t)lengths[i]);
    }
}

static void place(bit_placement *p)
{
    place_queries(p);
    place_lists(p);
    place_scores(p);
    bit_place_caches(p, DSR_INDEX_DIM, KEYS, PAGES);
}

static dsr_indexer_desc describe(const bit_placement *p, dsr_indexer_row rows[BIT_MAX_ROWS])
{
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;

    memset(rows, 0, BIT_MAX_ROWS * sizeof *rows);
    for (uint32_t i = 0; i < p->n; i++) {
        const bit_row *row = bit_placed_row(p, i);
        rows[i].keys = bit_cache_view(p, i);
        rows[i].key_layout = bit_cache_layout(p, i);
        rows[i].kv_len = row->kv_len;
        rows[i].key_row_stride = bit_cache_row_stride(p, i);
        rows[i].q_row = p->slots[i].query_row;
        rows[i].output_offset = p->slots[i].output_offset;
        rows[i].output_stride = p->slots[i].output_stride;
        rows[i].scores_offset = p->slots[i].scores_offset;
        rows[i].start_pos = row->start_pos;
        rows[i].ratio = row->ratio;
        rows[i].offset = row->offset;
        rows[i].n_queries = row->n_queries;
    }
    desc.n_rows = p->n;
    desc.rows = rows;
    desc.n_heads = p->c->n_heads;
    desc.top_k = p->c->top_k;
    desc.q = bit_view(p, p->operands[OPERAND_Q]);
    desc.weights = bit_view(p, p->operands[OPERAND_WEIGHTS]);
    desc.output = bit_view(p, p->operands[OPERAND_OUTPUT]);
    if (p->has_scores) {
        desc.scores = bit_view(p, p->operands[OPERAND_SCORES]);
    }
    desc.workspace = bit_workspace_view(p);
    return desc;
}

static dsr_status encode(const bit_placement *p, dsr_encoder *encoder)
{
    dsr_indexer_row rows[BIT_MAX_ROWS];
    const dsr_indexer_desc desc = describe(p, rows);
    return dsr_encode_indexer(encoder, &desc);
}

static dsr_status workspace(const bit_placement *p, dsr_context *context, uint64_t *n_bytes)
{
    dsr_indexer_row rows[BIT_MAX_ROWS];
    const dsr_indexer_desc desc = describe(p, rows);
    return dsr_indexer_workspace(context, &desc, n_bytes);
}

const bit_op bit_op_indexer = {
    "indexer", N_SHAPES,  {"h64-k512", "h32-k32", "h128-k2048", "queries", "long", "fp4", "pages", "fp4-h64"},
    generate,  reference, place,
    encode,    workspace};
