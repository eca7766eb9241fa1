/* Checks of a row's cache: its format, its pages, its view and page table. */
#ifndef DSRI_CACHE_CHECKS_H
#define DSRI_CACHE_CHECKS_H

#include "ops/cache_plan.h"
#include "ops/op_checks.h"

#include <dsrows/cache.h>

/* A cache as a descriptor names it. */
typedef struct dsri_cache_operand {
    const char *field; /* such as "keys" */
    const char *layout_field;
    const char *stride_field;
    const dsr_view *view;
    const dsr_cache_layout *layout;
    uint64_t n_entries;      /* not 0 */
    uint64_t row_stride;     /* elements; 0: dim */
    uint32_t dim;            /* 128 or 512 */
    dsr_cache_format packed; /* the packed format of this dim */
} dsri_cache_operand;

/* Fills *cache, and the bytes that its pages and its page table take from cache->pages and cache->page_table on. */
dsr_status dsri_check_cache(const dsri_check *check, uint32_t row, const dsri_cache_operand *operand, dsri_cache *cache,
                            uint64_t *cache_bytes, uint64_t *table_bytes);

/* A descriptor's scale floor. */
dsr_status dsri_check_floor(const dsri_check *check, dsr_scale_floor floor);
/* The smallest scale of a checked floor, as an E8M0 byte. */
uint32_t dsri_min_scale(dsr_cache_format packed, dsr_scale_floor floor);

/* The packed format of entries of this many features: DSR_ERR_UNSUPPORTED_SHAPE but for 128 and 512. */
dsr_status dsri_check_entry_dim(const dsri_check *check, uint32_t dim, dsr_cache_format *packed);

/* The bytes of entries first .. first + n - 1 of a cache in one piece: the values and, if packed, the scales. With a
 * page table, all pages, cache_bytes as dsri_check_cache gave them. n is not 0. Returns how many ranges, 1 or 2. */
uint32_t dsri_cache_ranges(const dsri_cache *cache, uint32_t dim, uint64_t cache_bytes, uint64_t first, uint64_t n,
                           dsr_range ranges[2]);

/* Entries that rows of a call write: adds their ranges to the footprint. Rows with page tables may share the very same
 * pages, which are added once. */
typedef struct dsri_cache_writes {
    dsri_footprint *footprint;
    uint32_t field;
    uint32_t n_pools;
    dsr_range pools[64];
} dsri_cache_writes;

void dsri_write_entries(dsri_cache_writes *writes, uint32_t row, const dsri_cache *cache, uint32_t dim,
                        uint64_t cache_bytes, uint64_t first, uint64_t n);

#endif
