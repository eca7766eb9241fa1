#include "bit_caches.h"

#include "bit_packed.h"

#include <string.h>

enum { CACHE = 0, TABLE = 1 };

static const uint32_t no_table = UINT32_MAX; /* as bit_pool_layout takes it */

bit_cache_form bit_mixed_form(dsr_cache_format packed, uint32_t r)
{
    static const uint32_t page_sizes[BIT_CACHE_FORMS / 2] = {0, 16, 32, 64, 128, 256};
    /* Neighbours are of one form, so that some can share a cache. */
    const uint32_t i = r / 3 % BIT_CACHE_FORMS;
    const bit_cache_form form = {i % 2 ? DSR_FORMAT_BF16 : packed, page_sizes[(i / 2 + 1) % (BIT_CACHE_FORMS / 2)]};
    return form;
}

static int is_plain(const bit_row *row)
{
    return row->cache_format == DSR_FORMAT_BF16 && row->page_size == 0;
}

/* Its pages; of a cache in one piece, one. */
static bit_page page_of_row(const bit_row *row, uint32_t dim)
{
    const bit_page page = {row->cache_format, dim, row->page_size ? row->page_size : (uint32_t)row->kv_len};
    return page;
}

static uint32_t page_count(const bit_row *row)
{
    return row->page_size ? (uint32_t)((row->kv_len - 1) / row->page_size) + 1 : 1;
}

/* Entry t into its page and into the decoded ones. */
static void draw_entry(random_stream *random, const bit_row *row, packed_kind kind, uint32_t dim, uint64_t t,
                       const bit_array *pages, uint16_t *decoded)
{
    const bit_page page = page_of_row(row, dim);
    const size_t page_bytes = bit_page_elements(&page) * dsr_dtype_size(pages->dtype);
    uint8_t *at = (uint8_t *)pages->data + t / page.page_size * page_bytes;
    uint8_t *values = at + bit_values_at(&page, t % page.page_size);
    uint8_t *scales = at + bit_scales_at(&page, t % page.page_size);
    if (row->page_size && (int32_t)(t / row->page_size) == row->bad_page) {
        packed_decode(dim, NULL, NULL, decoded);
    } else if (row->cache_format == DSR_FORMAT_BF16) {
        memcpy(values, decoded, dim * sizeof *decoded);
    } else {
        packed_fill(random, kind, dim, t, row->kv_len, values, scales);
        packed_decode(dim, values, scales, decoded);
    }
}

/* Takes the cache of the row before. */
static int borrow_cache(bit_case *c, uint32_t r, uint32_t decoded, uint32_t pages)
{
    bit_row *row = &c->rows[r];
    const bit_row *before = r % 5 == 4 ? &c->rows[r - 1] : NULL;
    if (!before || is_plain(row) || before->cache_format != row->cache_format || before->page_size != row->page_size ||
        before->kv_len != row->kv_len) {
        return 0;
    }
    row->bad_page = before->bad_page;
    row->inputs[decoded] = bit_array_borrow(&before->inputs[decoded]);
    row->inputs[pages] = bit_array_borrow(&before->inputs[pages]);
    return 1;
}

void bit_generate_cache(bit_case *c, uint32_t r, random_stream *random, bit_cache_form form, uint32_t dim,
                        uint32_t decoded, uint32_t pages)
{
    bit_row *row = &c->rows[r];
    const packed_kind kind = r % 3 == 0 ? PACKED_PLAIN : (packed_kind)(r % N_PACKED_KINDS);
    row->cache_format = form.format;
    row->page_size = form.page_size;
    row->bad_page = form.page_size && r % 7 == 3 ? (int32_t)random_below(random, page_count(row)) : -1;
    if (borrow_cache(c, r, decoded, pages)) {
        return;
    }
    row->inputs[decoded] = bit_array_new(DSR_DTYPE_BF16, (size_t)row->kv_len * dim);
    uint16_t *entries = bit_bf16(&row->inputs[decoded]);
    if (form.format == DSR_FORMAT_BF16) {
        pattern_fill_bf16(random, r % 3 == 0 ? PATTERN_NORMAL : (pattern)(r % N_PATTERNS), 1.0f, entries,
                          row->inputs[decoded].n);
    }
    if (is_plain(row)) {
        return;
    }
    const bit_page page = page_of_row(row, dim);
    row->inputs[pages] = bit_array_new(bit_page_dtype(&page), bit_page_elements(&page) * page_count(row));
    pattern_fill_bits(random, row->inputs[pages].data, bit_array_bytes(&row->inputs[pages]));
    for (uint64_t t = 0; t < row->kv_len; t++) {
        draw_entry(random, row, kind, dim, t, &row->inputs[pages], entries + t * dim);
    }
}

/* ---- placing ------------------------------------------------------------------------------------------------ */

/* The slot before this one that has the same cache, or this one. */
static uint32_t owner_of(const bit_placement *p, uint32_t slot, uint32_t pages)
{
    const void *data = bit_placed_row(p, slot)->inputs[pages].data;
    uint32_t owner = 0;
    while (bit_placed_row(p, owner)->inputs[pages].data != data) {
        owner++;
    }
    return owner;
}

static int is_of_pool(const bit_row *row, const bit_row *first)
{
    return row->cache_format == first->cache_format && row->page_size == first->page_size;
}

static void take_pages(bit_placement *p, bit_pool *pool, uint32_t i, uint32_t pages)
{
    const bit_row *row = bit_placed_row(p, i);
    bit_array table = bit_array_new(DSR_DTYPE_I32, page_count(row));
    for (uint32_t j = 0; j < page_count(row); j++) {
        bit_i32(&table)[j] = (int32_t)j == row->bad_page ? bit_bad_page(pool->n_pages, i + j)
                                                         : bit_pool_take(p, pool, &row->inputs[pages], j);
    }
    p->slots[i].segments[CACHE] = pool->segment;
    p->slots[i].row_stride = pool->stride;
    p->slots[i].segments[TABLE] = row->page_size ? bit_add_input(p, &table) : no_table;
    bit_array_free(&table);
}

/* The pages of all rows of slot i's form, of which it is the first. */
static void place_pool(bit_placement *p, uint32_t i, uint32_t dim, uint32_t pages)
{
    const bit_row *first = bit_placed_row(p, i);
    const bit_page page = page_of_row(first, dim);
    const uint32_t end = first->page_size ? p->n : i + 1; /* a cache in one piece is alone */
    uint32_t n_pages = 0;
    bit_pool pool;
    for (uint32_t j = i; j < end; j++) {
        n_pages += is_of_pool(bit_placed_row(p, j), first) ? page_count(bit_placed_row(p, j)) : 0;
    }
    bit_pool_open(p, &pool, BIT_SEGMENT_INPUT, &page, n_pages, first->page_size != 0);
    for (uint32_t j = i; j < end; j++) {
        if (is_of_pool(bit_placed_row(p, j), first) && owner_of(p, j, pages) == j) {
            take_pages(p, &pool, j, pages);
        }
    }
}

/* Whether no slot before has opened the pool of slot i. */
static int opens_pool(const bit_placement *p, uint32_t i)
{
    const bit_row *row = bit_placed_row(p, i);
    for (uint32_t j = 0; j < i && row->page_size; j++) {
        if (is_of_pool(bit_placed_row(p, j), row)) {
            return 0;
        }
    }
    return 1;
}

void bit_place_caches(bit_placement *p, uint32_t dim, uint32_t decoded, uint32_t pages)
{
    for (uint32_t i = 0; i < p->n; i++) {
        const bit_row *row = bit_placed_row(p, i);
        const uint32_t owner = is_plain(row) ? i : owner_of(p, i, pages);
        bit_slot *slot = &p->slots[i];
        if (is_plain(row)) {
            slot->segments[CACHE] = bit_add_rows(p, &row->inputs[decoded], dim, &slot->row_stride);
            slot->segments[TABLE] = no_table;
        } else if (owner == i && opens_pool(p, i)) {
            place_pool(p, i, dim, pages);
        }
        if (owner != i) {
            memcpy(slot->segments, p->slots[owner].segments, sizeof slot->segments);
            slot->row_stride = p->slots[owner].row_stride;
        }
    }
}

dsr_view bit_cache_view(const bit_placement *p, uint32_t slot)
{
    return bit_view(p, p->slots[slot].segments[CACHE]);
}

dsr_cache_layout bit_cache_layout(const bit_placement *p, uint32_t slot)
{
    const bit_row *row = bit_placed_row(p, slot);
    return bit_pool_layout(p, row->cache_format, row->page_size, p->slots[slot].row_stride,
                           p->slots[slot].segments[TABLE]);
}

uint64_t bit_cache_row_stride(const bit_placement *p, uint32_t slot)
{
    return is_plain(bit_placed_row(p, slot)) ? p->slots[slot].row_stride : 0;
}
