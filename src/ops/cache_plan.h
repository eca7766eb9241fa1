/* A row's cache as plans hold it, and where an entry lies: arithmetic that every back end runs. */
#ifndef DSRI_CACHE_PLAN_H
#define DSRI_CACHE_PLAN_H

#include <stddef.h>
#include <stdint.h>

/* Layout arithmetic that device code runs too. */
#if defined(__CUDACC__)
#define DSRI_LAYOUT_CODE static __host__ __device__ inline
#else
#define DSRI_LAYOUT_CODE static inline
#endif

enum { DSRI_FP4_KEY_BYTES = 64, DSRI_FP4_SCALE_BYTES = 4, DSRI_FP8_ROW_BYTES = 576, DSRI_FP8_SCALE_BYTES = 8 };

typedef struct dsri_cache {
    const uint8_t *pages;      /* page 0 */
    const int32_t *page_table; /* null: one page */
    uint64_t page_stride;      /* bytes */
    uint64_t row_stride;       /* bytes from entry to entry of a page */
    uint64_t scales_offset;    /* packed: bytes from a page to its scales */
    uint32_t n_pages;          /* page ids below it are good */
    uint32_t page_shift;       /* log2 of a page's entries, with a page table */
    uint32_t format;           /* dsr_cache_format */
    uint32_t scale_bytes;      /* of an entry; 0: BF16 */
} dsri_cache;

/* Whether entry t is at pages + t * row_stride, as BF16, for all t. */
DSRI_LAYOUT_CODE int dsri_cache_is_plain(const dsri_cache *cache)
{
    return cache->scale_bytes == 0 && cache->page_table == NULL;
}

typedef struct dsri_cache_entry {
    const uint8_t *values; /* null: the page id is bad */
    const uint8_t *scales; /* of a packed entry */
} dsri_cache_entry;

DSRI_LAYOUT_CODE dsri_cache_entry dsri_cache_at(const dsri_cache *cache, uint64_t t)
{
    dsri_cache_entry entry = {NULL, NULL};
    const uint8_t *page = cache->pages;
    if (cache->page_table != NULL) {
        const uint32_t id = (uint32_t)cache->page_table[t >> cache->page_shift];
        if (id >= cache->n_pages)
            return entry;
        page += id * cache->page_stride;
        t &= ((uint64_t)1 << cache->page_shift) - 1;
    }
    entry.values = page + t * cache->row_stride;
    entry.scales = page + cache->scales_offset + t * cache->scale_bytes;
    return entry;
}

#endif
