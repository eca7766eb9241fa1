#include "ops/cache_checks.h"

#include <inttypes.h>
#include <stdio.h>

enum { KV_PAGE_PADDING = 576, PACKED_ALIGNMENT = 16, MAX_PAGE_SHIFT = 8, MIN_PAGE_SHIFT = 4 };
_Static_assert(DSR_MIN_PAGE_SIZE == 1 << MIN_PAGE_SHIFT && DSR_MAX_PAGE_SIZE == 1 << MAX_PAGE_SHIFT, "page sizes");

static uint64_t or_zero_on_overflow(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? 0 : product;
}

uint64_t dsr_cache_page_bytes(dsr_cache_format format, uint32_t dim, uint64_t page_size)
{
    uint64_t n_bytes;
    switch (format) {
    case DSR_FORMAT_BF16:
        return or_zero_on_overflow(page_size, (uint64_t)dim * sizeof(uint16_t));
    case DSR_FORMAT_FP4:
        return dim == 128 ? or_zero_on_overflow(page_size, DSRI_FP4_KEY_BYTES + DSRI_FP4_SCALE_BYTES) : 0;
    case DSR_FORMAT_FP8:
        n_bytes = dim == 512 ? or_zero_on_overflow(page_size, DSRI_FP8_ROW_BYTES + DSRI_FP8_SCALE_BYTES) : 0;
        if (__builtin_add_overflow(n_bytes, (uint64_t)KV_PAGE_PADDING - 1, &n_bytes))
            return 0;
        return n_bytes / KV_PAGE_PADDING * KV_PAGE_PADDING;
    }
    return 0;
}

static dsr_status check_format(const dsri_check *check, uint32_t r, const dsri_cache_operand *operand)
{
    const dsr_cache_format format = operand->layout->format;
    if (format != DSR_FORMAT_BF16 && format != operand->packed)
        return dsri_check_fail(check, r, DSR_ERR_ENUM, "%s.format must be 0 (BF16) or %d (%s), got %d",
                               operand->layout_field, (int)operand->packed,
                               operand->packed == DSR_FORMAT_FP4 ? "FP4" : "FP8", (int)format);
    if (format != DSR_FORMAT_BF16 && operand->row_stride != 0)
        return dsri_check_fail(check, r, DSR_ERR_STRIDE, "%s must be 0 for packed entries, got %" PRIu64,
                               operand->stride_field, operand->row_stride);
    if (operand->row_stride != 0 && operand->row_stride < operand->dim)
        return dsri_check_fail(check, r, DSR_ERR_STRIDE, "%s must be at least %" PRIu32 " elements, got %" PRIu64,
                               operand->stride_field, operand->dim, operand->row_stride);
    return DSR_OK;
}

/* Sets page_shift. */
static dsr_status check_page_size(const dsri_check *check, uint32_t r, const dsri_cache_operand *operand,
                                  dsri_cache *cache)
{
    const uint32_t page_size = operand->layout->page_size;
    cache->page_shift = 0;
    if (!operand->layout->page_table.buffer) {
        if (page_size != 0 && page_size < operand->n_entries)
            return dsri_check_fail(check, r, DSR_ERR_VALUE,
                                   "%s.page_size without a page table must hold all %" PRIu64 " entries, got %" PRIu32,
                                   operand->layout_field, operand->n_entries, page_size);
        return DSR_OK;
    }
    for (uint32_t shift = MIN_PAGE_SHIFT; shift <= MAX_PAGE_SHIFT; shift++) {
        if (page_size == UINT32_C(1) << shift)
            cache->page_shift = shift;
    }
    if (cache->page_shift == 0)
        return dsri_check_fail(check, r, DSR_ERR_VALUE, "%s.page_size must be 16, 32, 64, 128 or 256, got %" PRIu32,
                               operand->layout_field, page_size);
    return DSR_OK;
}

/* Sets the strides inside a page; *page_bytes is how much of a page is used, from its begin on. */
static dsr_status size_page(const dsri_check *check, uint32_t r, const dsri_cache_operand *operand, dsri_cache *cache,
                            uint64_t *page_bytes)
{
    const uint64_t page_size = dsri_or_default64(operand->layout->page_size, operand->n_entries);
    char what[48];
    uint64_t n_elements;
    snprintf(what, sizeof(what), "%s: shape product", operand->field);
    cache->scale_bytes = 0;
    cache->scales_offset = 0;
    if (cache->format == DSR_FORMAT_BF16) {
        const uint64_t stride = dsri_or_default64(operand->row_stride, operand->dim);
        const uint64_t n_used = operand->layout->page_table.buffer ? page_size : operand->n_entries;
        DSRI_TRY(dsri_check_extent(check, r, what, n_used, stride, operand->dim, &n_elements));
        DSRI_TRY(dsri_check_product(check, r, what, n_elements, sizeof(uint16_t), page_bytes));
        DSRI_TRY(dsri_check_product(check, r, what, stride, sizeof(uint16_t), &cache->row_stride));
        return DSR_OK;
    }
    cache->row_stride = cache->format == DSR_FORMAT_FP4 ? DSRI_FP4_KEY_BYTES : DSRI_FP8_ROW_BYTES;
    cache->scale_bytes = cache->format == DSR_FORMAT_FP4 ? DSRI_FP4_SCALE_BYTES : DSRI_FP8_SCALE_BYTES;
    DSRI_TRY(dsri_check_product(check, r, what, page_size, cache->row_stride + cache->scale_bytes, page_bytes));
    cache->scales_offset = page_size * cache->row_stride;
    return DSR_OK;
}

static dsr_status check_page_stride(const dsri_check *check, uint32_t r, const dsri_cache_operand *operand,
                                    uint64_t page_bytes, dsri_cache *cache)
{
    const uint32_t alignment = cache->format == DSR_FORMAT_BF16 ? sizeof(uint16_t) : PACKED_ALIGNMENT;
    const uint64_t page_size = operand->layout->page_size;
    uint64_t whole = dsr_cache_page_bytes((dsr_cache_format)cache->format, operand->dim, page_size);
    if (cache->format == DSR_FORMAT_BF16)
        DSRI_TRY(dsri_check_product(check, r, "bytes of a page", page_size, cache->row_stride, &whole));
    cache->page_stride = dsri_or_default64(operand->layout->page_stride, whole);
    if (cache->page_stride < page_bytes)
        return dsri_check_fail(check, r, DSR_ERR_STRIDE,
                               "%s.page_stride must be at least %" PRIu64 " bytes, got %" PRIu64, operand->layout_field,
                               page_bytes, cache->page_stride);
    if (cache->page_stride % alignment != 0)
        return dsri_check_fail(check, r, DSR_ERR_ALIGNMENT,
                               "%s.page_stride must be a multiple of %" PRIu32 " bytes, got %" PRIu64,
                               operand->layout_field, alignment, cache->page_stride);
    return DSR_OK;
}

/* The view, as whole pages; sets pages and n_pages. */
static dsr_status check_pages(const dsri_check *check, uint32_t r, const dsri_cache_operand *operand,
                              uint64_t page_bytes, dsri_cache *cache, uint64_t *cache_bytes)
{
    const int is_bf16 = cache->format == DSR_FORMAT_BF16;
    const uint64_t n_elements = is_bf16 ? page_bytes / sizeof(uint16_t) : page_bytes;
    void *address;
    DSRI_TRY(dsri_check_view(check, r, operand->field, operand->view, is_bf16 ? DSR_DTYPE_BF16 : DSR_DTYPE_U8,
                             n_elements, &address));
    if (!is_bf16 && (uintptr_t)address % PACKED_ALIGNMENT != 0)
        return dsri_check_fail(check, r, DSR_ERR_ALIGNMENT, "%s must start at a multiple of %d bytes, got 0x%" PRIxPTR,
                               operand->field, (int)PACKED_ALIGNMENT, (uintptr_t)address);
    cache->pages = address;
    cache->n_pages = 1;
    *cache_bytes = page_bytes;
    if (operand->layout->page_table.buffer) {
        const uint64_t n_more = (operand->view->byte_length - page_bytes) / cache->page_stride;
        cache->n_pages = n_more < INT32_MAX ? (uint32_t)n_more + 1 : (uint32_t)INT32_MAX + 1;
        *cache_bytes = (cache->n_pages - 1) * cache->page_stride + page_bytes;
    }
    return DSR_OK;
}

static dsr_status check_page_table(const dsri_check *check, uint32_t r, const dsri_cache_operand *operand,
                                   dsri_cache *cache, uint64_t *table_bytes)
{
    const uint64_t n_ids = ((operand->n_entries - 1) >> cache->page_shift) + 1;
    char field[48];
    void *address;
    cache->page_table = NULL;
    *table_bytes = 0;
    if (!operand->layout->page_table.buffer)
        return DSR_OK;
    snprintf(field, sizeof(field), "%s.page_table", operand->layout_field);
    DSRI_TRY(dsri_check_view(check, r, field, &operand->layout->page_table, DSR_DTYPE_I32, n_ids, &address));
    cache->page_table = address;
    *table_bytes = n_ids * sizeof(int32_t);
    return DSR_OK;
}

dsr_status dsri_check_cache(const dsri_check *check, uint32_t r, const dsri_cache_operand *operand, dsri_cache *cache,
                            uint64_t *cache_bytes, uint64_t *table_bytes)
{
    uint64_t page_bytes;
    cache->format = (uint32_t)operand->layout->format;
    cache->page_stride = 0;
    DSRI_TRY(check_format(check, r, operand));
    DSRI_TRY(check_page_size(check, r, operand, cache));
    DSRI_TRY(size_page(check, r, operand, cache, &page_bytes));
    if (operand->layout->page_table.buffer)
        DSRI_TRY(check_page_stride(check, r, operand, page_bytes, cache));
    DSRI_TRY(check_pages(check, r, operand, page_bytes, cache, cache_bytes));
    return check_page_table(check, r, operand, cache, table_bytes);
}

dsr_status dsri_check_floor(const dsri_check *check, dsr_scale_floor floor)
{
    if (floor != DSR_FLOOR_MODEL && floor != DSR_FLOOR_ENGINE)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_ENUM, "floor must be 0 or 1, got %d", (int)floor);
    return DSR_OK;
}

uint32_t dsri_min_scale(dsr_cache_format packed, dsr_scale_floor floor)
{
    /* The powers of two above 1e-4 / 448 and 1e-4, and above 6 * 2^-126 / 6 and 1e-4 / 6. */
    if (packed == DSR_FORMAT_FP8)
        return floor == DSR_FLOOR_MODEL ? 127 - 22 : 127 - 13;
    return floor == DSR_FLOOR_MODEL ? 127 - 126 : 127 - 15;
}

dsr_status dsri_check_entry_dim(const dsri_check *check, uint32_t dim, dsr_cache_format *packed)
{
    if (dim != 128 && dim != 512)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_UNSUPPORTED_SHAPE,
                               "dim must be 128 (index keys) or 512 (KV rows), got %" PRIu32, dim);
    *packed = dim == 128 ? DSR_FORMAT_FP4 : DSR_FORMAT_FP8;
    return DSR_OK;
}

uint32_t dsri_cache_ranges(const dsri_cache *cache, uint32_t dim, uint64_t cache_bytes, uint64_t first, uint64_t n,
                           dsr_range ranges[2])
{
    const uint64_t base = (uintptr_t)cache->pages;
    if (cache->page_table != NULL) {
        ranges[0] = (dsr_range){base, base + cache_bytes};
        return 1;
    }
    const uint64_t value_bytes = cache->scale_bytes ? cache->row_stride : dim * sizeof(uint16_t);
    ranges[0].begin = base + first * cache->row_stride;
    ranges[0].end = ranges[0].begin + (n - 1) * cache->row_stride + value_bytes;
    if (cache->scale_bytes == 0)
        return 1;
    ranges[1].begin = base + cache->scales_offset + first * cache->scale_bytes;
    ranges[1].end = ranges[1].begin + n * cache->scale_bytes;
    return 2;
}

void dsri_write_entries(dsri_cache_writes *writes, uint32_t row, const dsri_cache *cache, uint32_t dim,
                        uint64_t cache_bytes, uint64_t first, uint64_t n)
{
    dsr_range ranges[2];
    if (n == 0)
        return;
    const uint32_t n_ranges = dsri_cache_ranges(cache, dim, cache_bytes, first, n, ranges);
    if (cache->page_table != NULL) {
        for (uint32_t i = 0; i < writes->n_pools; i++) {
            if (writes->pools[i].begin == ranges[0].begin && writes->pools[i].end == ranges[0].end)
                return;
        }
        writes->pools[writes->n_pools++] = ranges[0];
    }
    for (uint32_t i = 0; i < n_ranges; i++)
        dsri_footprint_write(writes->footprint, writes->field, row, (const void *)(uintptr_t)ranges[i].begin,
                             ranges[i].end - ranges[i].begin);
}
