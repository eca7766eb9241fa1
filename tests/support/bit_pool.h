/* Caches of a placement: entries of a format in one piece or in pages, and pools whose pages rows take in any order. */
#ifndef TEST_BIT_POOL_H
#define TEST_BIT_POOL_H

#include "bit_case_ops.h"

enum { BIT_MAX_POOL_PAGES = 1024 };

/* A page of a format; a cache in one piece is one page. */
typedef struct bit_page {
    dsr_cache_format format;
    uint32_t dim;
    uint32_t page_size; /* entries */
} bit_page;

static inline dsr_dtype bit_page_dtype(const bit_page *page)
{
    return page->format == DSR_FORMAT_BF16 ? DSR_DTYPE_BF16 : DSR_DTYPE_U8;
}

/* Elements (BF16 values or bytes) of a page. */
size_t bit_page_elements(const bit_page *page);
/* Bytes from a page's begin to the values and to the scales of entry t, and how many there are. */
size_t bit_value_bytes(const bit_page *page);
size_t bit_scale_bytes(const bit_page *page);
size_t bit_values_at(const bit_page *page, size_t t);
size_t bit_scales_at(const bit_page *page, size_t t);

/* Pages in one segment. A pool with a table has a few pages that nobody takes. */
typedef struct bit_pool {
    bit_page page;
    uint32_t segment;
    uint64_t stride; /* elements */
    uint32_t n_pages;
    uint32_t n_taken;
    uint32_t ids[BIT_MAX_POOL_PAGES]; /* in the order they are taken */
} bit_pool;

/* One page without a table; n_pages of them, in an order that is drawn, with one. */
void bit_pool_open(bit_placement *p, bit_pool *pool, bit_segment_kind kind, const bit_page *page, uint32_t n_pages,
                   int has_table);
/* Puts page i of the array (pages side by side) into the pool and returns its id. */
int32_t bit_pool_take(bit_placement *p, bit_pool *pool, const bit_array *pages, uint32_t i);
/* The same for a page that a row writes: page i of one of its outputs. */
int32_t bit_pool_take_output(bit_placement *p, bit_pool *pool, const bit_array *pages, uint32_t i, uint32_t slot,
                             uint32_t output);
/* A page id that no pool of n_pages has. */
int32_t bit_bad_page(uint32_t n_pages, uint32_t draw);
/* The layout field of a descriptor; table: a segment, or the null view's UINT32_MAX. */
dsr_cache_layout bit_pool_layout(const bit_placement *p, dsr_cache_format format, uint32_t page_size, uint64_t stride,
                                 uint32_t table);

#endif
