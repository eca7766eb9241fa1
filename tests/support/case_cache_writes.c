/* Writing caches: append and convert, in every format, in one piece, in rings and in pages. */
#include "bit_pool.h"

#include "reference/reference.h"

#include <string.h>

enum { NO_BAD_PAGE = -1 };

/* Page of entry t of a row's pages side by side, and where in them it lies. */
static uint8_t *entry_values(const bit_page *page, const bit_array *pages, uint64_t t)
{
    const size_t page_bytes = bit_page_elements(page) * dsr_dtype_size(pages->dtype);
    return (uint8_t *)pages->data + t / page->page_size * page_bytes + bit_values_at(page, t % page->page_size);
}

static uint8_t *entry_scales(const bit_page *page, const bit_array *pages, uint64_t t)
{
    const size_t page_bytes = bit_page_elements(page) * dsr_dtype_size(pages->dtype);
    return (uint8_t *)pages->data + t / page->page_size * page_bytes + bit_scales_at(page, t % page->page_size);
}

static uint32_t page_count(const bit_page *page, uint64_t n_entries)
{
    return (uint32_t)((n_entries + page->page_size - 1) / page->page_size);
}

/* A page id in the middle of a row's table that is bad, in some rows with tables. */
static int bad_page_of(uint32_t n_pages, int has_table, uint32_t r)
{
    return has_table && n_pages > 1 && r % 3 == 1 ? (int)((r / 3) % (n_pages - 1)) : NO_BAD_PAGE;
}

/* Pages of random bytes, zeros where the page id is bad: what nobody writes or reads must be the same everywhere. */
static bit_array new_pages(random_stream *random, const bit_page *page, uint32_t n_pages, int bad_page)
{
    const size_t n = bit_page_elements(page);
    bit_array pages = bit_array_new(bit_page_dtype(page), n * n_pages);
    pattern_fill_bits(random, pages.data, bit_array_bytes(&pages));
    if (bad_page != NO_BAD_PAGE) {
        const size_t page_bytes = n * dsr_dtype_size(pages.dtype);
        memset((uint8_t *)pages.data + (size_t)bad_page * page_bytes, 0, page_bytes);
    }
    return pages;
}

/* ---- append ----------------------------------------------------------------------------------------------- */

typedef enum rotation { NOT_ROTATED, BASE, YARN } rotation;

typedef struct append_shape {
    dsr_cache_format format;
    uint32_t dim;
    uint32_t page_size; /* 0: in one piece */
    uint32_t ring;      /* 0: none */
    int is_shared;      /* one pool for all rows */
    dsr_scale_floor floor;
    rotation rotation;
    uint32_t most_tokens;
    uint32_t n_rows;
} append_shape;

static const append_shape append_shapes[] = {
    {DSR_FORMAT_BF16, 512, 0, 20, 0, DSR_FLOOR_MODEL, BASE, 20, 33},
    {DSR_FORMAT_BF16, 128, 32, 0, 1, DSR_FLOOR_MODEL, NOT_ROTATED, 70, 64},
    {DSR_FORMAT_FP8, 512, 0, 24, 0, DSR_FLOOR_MODEL, BASE, 8, 64},
    {DSR_FORMAT_FP8, 512, 16, 0, 1, DSR_FLOOR_MODEL, YARN, 3, 64},
    {DSR_FORMAT_FP8, 512, 64, 100, 0, DSR_FLOOR_ENGINE, NOT_ROTATED, 40, 9},
    {DSR_FORMAT_FP4, 128, 0, 0, 0, DSR_FLOOR_MODEL, YARN, 37, 64},
    {DSR_FORMAT_FP4, 128, 16, 0, 1, DSR_FLOOR_ENGINE, YARN, 3, 64},
    {DSR_FORMAT_FP4, 128, 128, 0, 0, DSR_FLOOR_MODEL, NOT_ROTATED, 200, 9},
};
enum { N_APPEND_SHAPES = sizeof append_shapes / sizeof append_shapes[0] };

enum { TOKENS = 0, BEFORE = 1 };

static const append_shape *append_shape_of(const bit_case *c)
{
    return &append_shapes[c->shape];
}

static bit_page page_of(dsr_cache_format format, uint32_t dim, uint32_t page_size, uint64_t n_entries)
{
    const bit_page page = {format, dim, page_size ? page_size : (uint32_t)n_entries};
    return page;
}

static void generate_append(bit_case *c)
{
    static const float scales[4] = {1.0f, 0x1p-12f, 0x1p+60f, 0x1p-30f};
    const append_shape *s = append_shape_of(c);

    c->n_rows = s->n_rows;
    c->dim = s->dim;
    for (uint32_t r = 0; r < c->n_rows; r++) {
        bit_row *row = &c->rows[r];
        random_stream random = random_open(c->seed, 100 * c->shape + r);
        row->n_tokens = s->most_tokens > 100 ? s->most_tokens - 13 * r : 1 + random_below(&random, s->most_tokens);
        row->ring_rows = s->ring;
        row->destination_row = random_below(&random, s->ring ? 3 * s->ring : 20);
        row->kv_len = (s->ring ? s->ring : row->destination_row + row->n_tokens) + random_below(&random, 5);
        row->start_pos = random_below(&random, 4) ? random_below(&random, 1000000) : 0;
        row->position_step = s->rotation == YARN ? 4 : random_below(&random, 2);
        const bit_page page = page_of(s->format, s->dim, s->page_size, row->kv_len);
        const uint32_t n_pages = page_count(&page, row->kv_len);
        row->offset = bad_page_of(n_pages, s->page_size != 0, r);
        row->inputs[BEFORE] = new_pages(&random, &page, n_pages, row->offset);
        row->inputs[TOKENS] = bit_array_new(DSR_DTYPE_BF16, (size_t)row->n_tokens * s->dim);
        for (uint32_t i = 0; i < row->n_tokens; i++) {
            pattern_fill_bf16(&random, (pattern)((r + i) % N_PATTERNS), scales[(r + i) / N_PATTERNS % 4],
                              bit_bf16(&row->inputs[TOKENS]) + (size_t)i * s->dim, s->dim);
        }
    }
}

static const float *frequencies_of(const append_shape *s)
{
    return s->rotation == NOT_ROTATED ? NULL
                                      : dsr_rope_frequencies(s->rotation == BASE ? DSR_ROPE_BASE : DSR_ROPE_YARN);
}

static void reference_append(const bit_case *c, const bit_row *row, bit_array outputs[BIT_ROW_OUTPUTS])
{
    const append_shape *s = append_shape_of(c);
    const bit_page page = page_of(s->format, s->dim, s->page_size, row->kv_len);

    outputs[0] = bit_array_copy(&row->inputs[BEFORE]);
    for (uint32_t i = 0; i < row->n_tokens; i++) {
        const uint64_t step = row->position_step ? row->position_step : 1;
        const uint64_t to = row->destination_row + i, t = s->ring ? to % s->ring : to;
        uint16_t token[512];
        memcpy(token, bit_bf16(&row->inputs[TOKENS]) + (size_t)i * s->dim, s->dim * sizeof *token);
        if (s->page_size && (int)(t / s->page_size) == row->offset) {
            continue;
        }
        if (s->rotation != NOT_ROTATED) {
            ref_rope_bf16(token, 1, s->dim, 64, (uint32_t)(row->start_pos + i * step), frequencies_of(s), 0, token);
        }
        uint8_t *values = entry_values(&page, &outputs[0], t), *scales = entry_scales(&page, &outputs[0], t);
        if (s->format == DSR_FORMAT_FP8) {
            ref_encode_fp8_row(token, s->floor == DSR_FLOOR_MODEL ? 1e-4f : 448e-4f, values, scales);
        } else if (s->format == DSR_FORMAT_FP4) {
            ref_encode_fp4_key(token, s->floor == DSR_FLOOR_MODEL ? 0x1.8p-124f : 1e-4f, values, scales);
        } else {
            memcpy(values, token, s->dim * sizeof *token);
        }
    }
}

/* Places a row's pages in a pool and, with a table, the table: its segment, or UINT32_MAX. */
static uint32_t place_pages(bit_placement *p, bit_pool *pool, const bit_array *pages, uint32_t slot, int is_output,
                            int has_table, int bad_page)
{
    const uint32_t n_pages = (uint32_t)(pages->n / bit_page_elements(&pool->page));
    bit_array table = bit_array_new(DSR_DTYPE_I32, n_pages);
    for (uint32_t i = 0; i < n_pages; i++) {
        bit_i32(&table)[i] = (int)i == bad_page ? bit_bad_page(pool->n_pages, i + slot)
                             : is_output        ? bit_pool_take_output(p, pool, pages, i, slot, 0)
                                                : bit_pool_take(p, pool, pages, i);
    }
    const uint32_t segment = has_table ? bit_add_input(p, &table) : UINT32_MAX;
    bit_array_free(&table);
    return segment;
}

enum { CACHE = 0, TABLE = 1, SOURCE = 2, SOURCE_TABLE = 3 };

static void place_append(bit_placement *p)
{
    const append_shape *s = append_shape_of(p->c);
    uint64_t lengths[BIT_MAX_ROWS], places[BIT_MAX_ROWS];
    uint32_t n_pages = 0;
    bit_pool pool;

    for (uint32_t i = 0; i < p->n; i++) {
        const bit_row *row = bit_placed_row(p, i);
        lengths[i] = row->n_tokens;
        n_pages += s->page_size ? (uint32_t)((row->kv_len + s->page_size - 1) / s->page_size) : 1;
    }
    p->operands[TOKENS] =
        bit_add_segment(p, BIT_SEGMENT_INPUT, DSR_DTYPE_BF16, (size_t)bit_draw_places(p, lengths, places) * s->dim);
    for (uint32_t i = 0; i < p->n; i++) {
        const bit_row *row = bit_placed_row(p, i);
        bit_slot *slot = &p->slots[i];
        const bit_page page = page_of(s->format, s->dim, s->page_size, row->kv_len);
        if (i == 0 || !s->is_shared) {
            bit_pool_open(p, &pool, BIT_SEGMENT_OUTPUT, &page, s->is_shared ? n_pages : page_count(&page, row->kv_len),
                          s->page_size != 0);
        }
        slot->query_row = places[i];
        bit_put(p, p->operands[TOKENS], (size_t)places[i] * s->dim, &row->inputs[TOKENS], 0, row->inputs[TOKENS].n);
        slot->segments[CACHE] = pool.segment;
        slot->output_stride = pool.stride;
        slot->segments[TABLE] = place_pages(p, &pool, &row->inputs[BEFORE], i, 1, s->page_size != 0, row->offset);
    }
}

static dsr_status encode_append(const bit_placement *p, dsr_encoder *encoder)
{
    const append_shape *s = append_shape_of(p->c);
    dsr_append_row rows[BIT_MAX_ROWS];
    dsr_append_desc desc = DSR_APPEND_DESC_INIT;

    memset(rows, 0, sizeof rows);
    for (uint32_t i = 0; i < p->n; i++) {
        const bit_row *row = bit_placed_row(p, i);
        const bit_slot *slot = &p->slots[i];
        rows[i].cache = bit_view(p, slot->segments[CACHE]);
        rows[i].cache_layout = bit_pool_layout(p, s->format, s->page_size, slot->output_stride, slot->segments[TABLE]);
        rows[i].n_entries = row->kv_len;
        rows[i].first_entry = row->destination_row;
        rows[i].ring_entries = row->ring_rows;
        rows[i].source_row = slot->query_row;
        rows[i].n_tokens = row->n_tokens;
        rows[i].start_pos = row->start_pos;
        rows[i].position_step = row->position_step;
    }
    desc.n_rows = p->n;
    desc.rows = rows;
    desc.dim = s->dim;
    desc.floor = s->floor;
    desc.source = bit_view(p, p->operands[TOKENS]);
    desc.frequencies = frequencies_of(s);
    return dsr_encode_append(encoder, &desc);
}

const bit_op bit_op_append = {"append",
                              N_APPEND_SHAPES,
                              {"bf16-512-ring", "bf16-128-pages", "fp8-ring", "fp8-pool", "fp8-pages-ring",
                               "fp4-one-piece", "fp4-pool", "fp4-pages"},
                              generate_append,
                              reference_append,
                              place_append,
                              encode_append,
                              NULL};

/* ---- convert ---------------------------------------------------------------------------------------------- */

typedef struct convert_shape {
    dsr_cache_format from, to;
    uint32_t dim;
    uint32_t from_page_size, to_page_size; /* 0: in one piece */
    int is_shared;                         /* one pool for all destinations */
    uint32_t most_entries;
    uint32_t n_rows;
} convert_shape;

static const convert_shape convert_shapes[] = {
    {DSR_FORMAT_FP8, DSR_FORMAT_BF16, 512, 64, 0, 0, 90, 17},
    {DSR_FORMAT_BF16, DSR_FORMAT_FP8, 512, 0, 16, 1, 40, 33},
    {DSR_FORMAT_FP8, DSR_FORMAT_FP8, 512, 0, 32, 1, 40, 33},
    {DSR_FORMAT_FP4, DSR_FORMAT_BF16, 128, 16, 64, 1, 70, 33},
    {DSR_FORMAT_BF16, DSR_FORMAT_FP4, 128, 32, 0, 0, 70, 33},
    {DSR_FORMAT_FP4, DSR_FORMAT_FP4, 128, 256, 16, 0, 300, 17},
    {DSR_FORMAT_BF16, DSR_FORMAT_BF16, 512, 16, 32, 1, 40, 17},
};
enum { N_CONVERT_SHAPES = sizeof convert_shapes / sizeof convert_shapes[0] };

static const convert_shape *convert_shape_of(const bit_case *c)
{
    return &convert_shapes[c->shape];
}

/* Packed bytes are any bytes; scales near each other and near the middle in two of three rows. */
static void fill_source(random_stream *random, const bit_page *page, const bit_row *row, uint32_t r)
{
    const bit_array *pages = &row->inputs[0];
    for (uint64_t t = 0; t < row->kv_len; t++) {
        if ((int)(t / page->page_size) == row->offset) {
            continue;
        }
        if (page->format == DSR_FORMAT_BF16) {
            pattern_fill_bf16(random, (pattern)((r + t) % N_PATTERNS), 1.0f,
                              (uint16_t *)(void *)entry_values(page, pages, t), page->dim);
            continue;
        }
        for (uint32_t i = 0; i < bit_scale_bytes(page) && r % 3 != 0; i++) {
            entry_scales(page, pages, t)[i] = (uint8_t)(120 + random_below(random, 14));
        }
    }
}

static void generate_convert(bit_case *c)
{
    const convert_shape *s = convert_shape_of(c);

    c->n_rows = s->n_rows;
    c->dim = s->dim;
    for (uint32_t r = 0; r < c->n_rows; r++) {
        bit_row *row = &c->rows[r];
        random_stream random = random_open(c->seed, 100 * c->shape + r);
        row->n_copies = 1 + random_below(&random, s->most_entries);
        row->start_pos = random_below(&random, 10);
        row->destination_row = random_below(&random, 20);
        row->kv_len = row->start_pos + row->n_copies + random_below(&random, 5);
        row->width = row->destination_row + row->n_copies + random_below(&random, 5);
        const bit_page from = page_of(s->from, s->dim, s->from_page_size, row->kv_len);
        const bit_page to = page_of(s->to, s->dim, s->to_page_size, row->width);
        row->offset = bad_page_of(page_count(&from, row->kv_len), s->from_page_size != 0, r);
        row->ring_rows = (uint64_t)(1 + bad_page_of(page_count(&to, row->width), s->to_page_size != 0, r + 1));
        row->inputs[0] = new_pages(&random, &from, page_count(&from, row->kv_len), row->offset);
        row->inputs[BEFORE] = new_pages(&random, &to, page_count(&to, row->width), (int)row->ring_rows - 1);
        fill_source(&random, &from, row, r);
    }
}

static void convert_entry(const convert_shape *s, const uint8_t *values, const uint8_t *scales, uint8_t *to_values,
                          uint8_t *to_scales)
{
    const bit_page page = {s->from, s->dim, 1};
    uint16_t entry[512];

    memcpy(entry, values, s->from == DSR_FORMAT_BF16 ? bit_value_bytes(&page) : 0);
    if (s->from == s->to) {
        memcpy(to_values, values, bit_value_bytes(&page));
        memcpy(to_scales, scales, bit_scale_bytes(&page));
    } else if (s->from == DSR_FORMAT_FP8) {
        ref_decode_fp8_row(values, scales, entry);
        memcpy(to_values, entry, 1024);
    } else if (s->from == DSR_FORMAT_FP4) {
        ref_decode_fp4_key(values, scales, entry);
        memcpy(to_values, entry, 256);
    } else if (s->to == DSR_FORMAT_FP8) {
        ref_pack_fp8_row(entry, to_values, to_scales);
    } else {
        ref_pack_fp4_key(entry, to_values, to_scales);
    }
}

static void reference_convert(const bit_case *c, const bit_row *row, bit_array outputs[BIT_ROW_OUTPUTS])
{
    const convert_shape *s = convert_shape_of(c);
    const bit_page from = page_of(s->from, s->dim, s->from_page_size, row->kv_len);
    const bit_page to = page_of(s->to, s->dim, s->to_page_size, row->width);

    outputs[0] = bit_array_copy(&row->inputs[BEFORE]);
    for (uint32_t i = 0; i < row->n_copies; i++) {
        const uint64_t t = row->start_pos + i, u = row->destination_row + i;
        if ((int)(t / from.page_size) != row->offset && (int)(u / to.page_size) != (int)row->ring_rows - 1) {
            convert_entry(s, entry_values(&from, &row->inputs[0], t), entry_scales(&from, &row->inputs[0], t),
                          entry_values(&to, &outputs[0], u), entry_scales(&to, &outputs[0], u));
        }
    }
}

static void place_convert(bit_placement *p)
{
    const convert_shape *s = convert_shape_of(p->c);
    uint32_t n_pages = 0;
    bit_pool pool, sources;

    for (uint32_t i = 0; i < p->n; i++) {
        n_pages +=
            s->to_page_size ? (uint32_t)((bit_placed_row(p, i)->width + s->to_page_size - 1) / s->to_page_size) : 1;
    }
    for (uint32_t i = 0; i < p->n; i++) {
        const bit_row *row = bit_placed_row(p, i);
        bit_slot *slot = &p->slots[i];
        const bit_page from = page_of(s->from, s->dim, s->from_page_size, row->kv_len);
        const bit_page to = page_of(s->to, s->dim, s->to_page_size, row->width);
        if (i == 0 || !s->is_shared) {
            bit_pool_open(p, &pool, BIT_SEGMENT_OUTPUT, &to, s->is_shared ? n_pages : page_count(&to, row->width),
                          s->to_page_size != 0);
        }
        bit_pool_open(p, &sources, BIT_SEGMENT_INPUT, &from, page_count(&from, row->kv_len), s->from_page_size != 0);
        slot->segments[CACHE] = pool.segment;
        slot->output_stride = pool.stride;
        slot->segments[TABLE] =
            place_pages(p, &pool, &row->inputs[BEFORE], i, 1, s->to_page_size != 0, (int)row->ring_rows - 1);
        slot->segments[SOURCE] = sources.segment;
        slot->row_stride = sources.stride;
        slot->segments[SOURCE_TABLE] =
            place_pages(p, &sources, &row->inputs[0], i, 0, s->from_page_size != 0, row->offset);
    }
}

static dsr_status encode_convert(const bit_placement *p, dsr_encoder *encoder)
{
    const convert_shape *s = convert_shape_of(p->c);
    dsr_convert_row rows[BIT_MAX_ROWS];
    dsr_convert_desc desc = DSR_CONVERT_DESC_INIT;

    memset(rows, 0, sizeof rows);
    for (uint32_t i = 0; i < p->n; i++) {
        const bit_row *row = bit_placed_row(p, i);
        const bit_slot *slot = &p->slots[i];
        rows[i].source = bit_view(p, slot->segments[SOURCE]);
        rows[i].source_layout =
            bit_pool_layout(p, s->from, s->from_page_size, slot->row_stride, slot->segments[SOURCE_TABLE]);
        rows[i].source_entries = row->kv_len;
        rows[i].first_source = row->start_pos;
        rows[i].destination = bit_view(p, slot->segments[CACHE]);
        rows[i].destination_layout =
            bit_pool_layout(p, s->to, s->to_page_size, slot->output_stride, slot->segments[TABLE]);
        rows[i].destination_entries = row->width;
        rows[i].first_destination = row->destination_row;
        rows[i].n_entries = row->n_copies;
    }
    desc.n_rows = p->n;
    desc.rows = rows;
    desc.dim = s->dim;
    return dsr_encode_convert(encoder, &desc);
}

const bit_op bit_op_convert = {
    "convert",
    N_CONVERT_SHAPES,
    {"fp8-to-bf16", "bf16-to-fp8", "fp8-to-fp8", "fp4-to-bf16", "bf16-to-fp4", "fp4-to-fp4", "bf16-to-bf16"},
    generate_convert,
    reference_convert,
    place_convert,
    encode_convert,
    NULL};
