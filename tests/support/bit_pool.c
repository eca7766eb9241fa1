/* Caches of a placement. */
#include "bit_pool.h"

#include <string.h>

size_t bit_value_bytes(const bit_page *page)
{
    return page->format == DSR_FORMAT_BF16 ? 2 * (size_t)page->dim : page->format == DSR_FORMAT_FP4 ? 64 : 576;
}

size_t bit_scale_bytes(const bit_page *page)
{
    return page->format == DSR_FORMAT_BF16 ? 0 : page->format == DSR_FORMAT_FP4 ? 4 : 8;
}

size_t bit_page_elements(const bit_page *page)
{
    const size_t n_bytes = page->page_size * (bit_value_bytes(page) + bit_scale_bytes(page));
    if (page->format == DSR_FORMAT_BF16) {
        return n_bytes / 2;
    }
    return page->format == DSR_FORMAT_FP8 ? (n_bytes + 575) / 576 * 576 : n_bytes;
}

size_t bit_values_at(const bit_page *page, size_t t)
{
    return t * bit_value_bytes(page);
}

size_t bit_scales_at(const bit_page *page, size_t t)
{
    return page->page_size * bit_value_bytes(page) + t * bit_scale_bytes(page);
}

void bit_pool_open(bit_placement *p, bit_pool *pool, bit_segment_kind kind, const bit_page *page, uint32_t n_pages,
                   int has_table)
{
    const size_t n_elements = bit_page_elements(page);
    const int is_drawn = has_table && p->layout.seed != 0;
    pool->page = *page;
    pool->n_taken = 0;
    pool->n_pages = n_pages + (is_drawn ? random_below(&p->random, 4) : 0);
    pool->stride = n_elements;
    if (is_drawn) {
        pool->stride +=
            page->format == DSR_FORMAT_BF16 ? random_below(&p->random, 3) : 16 * random_below(&p->random, 3);
    }
    for (uint32_t i = 0; i < pool->n_pages; i++) {
        pool->ids[i] = i;
    }
    if (is_drawn) {
        random_shuffle(&p->random, pool->ids, pool->n_pages);
    }
    const size_t n = (size_t)(pool->stride * (pool->n_pages - 1)) + n_elements;
    pool->segment =
        page->format == DSR_FORMAT_BF16 ? bit_add_segment(p, kind, DSR_DTYPE_BF16, n) : bit_add_packed(p, kind, n);
}

int32_t bit_pool_take(bit_placement *p, bit_pool *pool, const bit_array *pages, uint32_t i)
{
    const size_t n = bit_page_elements(&pool->page);
    const uint32_t id = pool->ids[pool->n_taken++];
    bit_put(p, pool->segment, (size_t)(id * pool->stride), pages, i * n, n);
    return (int32_t)id;
}

int32_t bit_pool_take_output(bit_placement *p, bit_pool *pool, const bit_array *pages, uint32_t i, uint32_t slot,
                             uint32_t output)
{
    const size_t n = bit_page_elements(&pool->page);
    const int32_t id = bit_pool_take(p, pool, pages, i);
    bit_add_piece(p, pool->segment, (size_t)((uint32_t)id * pool->stride), slot, output, i * n, n);
    return id;
}

int32_t bit_bad_page(uint32_t n_pages, uint32_t draw)
{
    const int32_t ids[] = {-1, (int32_t)n_pages, INT32_MAX, INT32_MIN};
    return ids[draw % 4];
}

dsr_cache_layout bit_pool_layout(const bit_placement *p, dsr_cache_format format, uint32_t page_size, uint64_t stride,
                                 uint32_t table)
{
    dsr_cache_layout layout;
    memset(&layout, 0, sizeof layout);
    layout.format = format;
    layout.page_size = page_size;
    if (table != UINT32_MAX) {
        layout.page_stride = stride * (format == DSR_FORMAT_BF16 ? sizeof(uint16_t) : 1);
        layout.page_table = bit_view(p, table);
    }
    return layout;
}
