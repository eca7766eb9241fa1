/* Caches as plans hold them, drawn: every format, in one piece or in pages, that end where their last entry does. */
#ifndef TEST_DRAWN_CACHE_H
#define TEST_DRAWN_CACHE_H

#include "kernel_test.h"

#include "bit_packed.h"

#include <dsrows/cache.h>

typedef struct drawn_cache {
    dsri_cache cache;
    uint16_t *decoded; /* [n_entries][dim]: NaN where the page is bad */
} drawn_cache;

/* Sets everything of the cache but its pages and page table. */
static inline void draw_layout(random_stream *random, uint32_t dim, uint64_t n_entries, int is_paged, dsri_cache *cache)
{
    const int is_packed = is_paged ? random_one_in(random, 2) : 1;
    const size_t value_bytes = !is_packed ? 2 * dim : dim == 128 ? FP4_VALUE_BYTES : FP8_VALUE_BYTES;
    const uint64_t page_size = is_paged ? UINT64_C(16) << random_below(random, 5) : n_entries + random_below(random, 3);
    memset(cache, 0, sizeof *cache);
    cache->format = !is_packed ? DSR_FORMAT_BF16 : dim == 128 ? DSR_FORMAT_FP4 : DSR_FORMAT_FP8;
    cache->scale_bytes = !is_packed ? 0 : dim == 128 ? FP4_SCALE_BYTES : FP8_SCALE_BYTES;
    cache->row_stride = value_bytes + (is_packed ? 0 : 2 * random_below(random, 40));
    cache->scales_offset = is_packed ? page_size * value_bytes : 0;
    cache->page_stride = page_size * (cache->row_stride + cache->scale_bytes) + 16 * random_below(random, 3);
    cache->n_pages = is_paged ? (uint32_t)(n_entries / page_size + random_between(random, 1, 3)) : 1;
    while (is_paged && UINT64_C(1) << cache->page_shift < page_size) {
        cache->page_shift++;
    }
}

/* Bytes from page 0 to the end of the last entry in memory. */
static inline size_t used_bytes(uint32_t dim, uint64_t n_entries, const dsri_cache *cache)
{
    const size_t value_bytes = cache->scale_bytes ? cache->row_stride : 2 * dim;
    size_t end = 0;
    for (uint64_t t = 0; t < n_entries; t++) {
        const dsri_cache_entry entry = dsri_cache_at(cache, t);
        const uint8_t *last = cache->scale_bytes ? entry.scales + cache->scale_bytes : entry.values + value_bytes;
        if (entry.values && (size_t)(last - cache->pages) > end) {
            end = (size_t)(last - cache->pages);
        }
    }
    return (end + 15) / 16 * 16;
}

/* A page for each stretch of entries: any page for any stretch, the same one twice now and then, and a bad one. */
static inline void draw_table(random_stream *random, uint64_t n_entries, dsri_cache *cache)
{
    const uint64_t n = ((n_entries - 1) >> cache->page_shift) + 1;
    const int32_t bad[] = {-1, (int32_t)cache->n_pages, INT32_MAX, INT32_MIN};
    int32_t *table = new_array(n * sizeof *table);
    for (uint64_t i = 0; i < n; i++) {
        table[i] = (int32_t)random_below(random, cache->n_pages);
    }
    if (random_one_in(random, 3)) {
        table[random_below(random, (uint32_t)n)] = bad[random_below(random, 4)];
    }
    cache->page_table = table;
}

static inline void fill_entry(random_stream *random, packed_kind kind, uint32_t dim, const dsri_cache *cache,
                              uint64_t t, uint64_t n)
{
    const dsri_cache_entry entry = dsri_cache_at(cache, t);
    if (!entry.values) {
        return;
    }
    uint8_t *values = (uint8_t *)(uintptr_t)entry.values, *scales = (uint8_t *)(uintptr_t)entry.scales;
    if (cache->scale_bytes == 0) {
        pattern_fill_bf16(random, kind == PACKED_PLAIN ? PATTERN_NORMAL : PATTERN_MIXED, 1.0f, (void *)values, dim);
    } else {
        packed_fill(random, kind, dim, t, n, values, scales);
    }
}

static inline drawn_cache draw_cache(random_stream *random, uint32_t dim, uint64_t n_entries)
{
    const packed_kind kind =
        random_one_in(random, 2) ? PACKED_PLAIN : (packed_kind)random_below(random, N_PACKED_KINDS);
    const int is_paged = !random_one_in(random, 4);
    drawn_cache drawn;
    draw_layout(random, dim, n_entries, is_paged, &drawn.cache);
    if (is_paged) {
        draw_table(random, n_entries, &drawn.cache);
    }
    drawn.cache.pages = new_array(drawn.cache.n_pages * drawn.cache.page_stride); /* to measure how much is used */
    drawn.cache.pages = new_array(used_bytes(dim, n_entries, &drawn.cache));
    for (uint64_t t = 0; t < n_entries; t++) {
        fill_entry(random, kind, dim, &drawn.cache, t, n_entries);
    }
    drawn.decoded = new_array((size_t)n_entries * dim * sizeof *drawn.decoded);
    for (uint64_t t = 0; t < n_entries; t++) {
        const dsri_cache_entry entry = dsri_cache_at(&drawn.cache, t);
        if (entry.values && drawn.cache.scale_bytes == 0) {
            memcpy(drawn.decoded + t * dim, entry.values, dim * sizeof *drawn.decoded);
        } else {
            packed_decode(dim, entry.values, entry.scales, drawn.decoded + t * dim);
        }
    }
    return drawn;
}

#endif
