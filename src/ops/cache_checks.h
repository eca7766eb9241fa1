/* Checks of a row's cache: its format, its pages, its view and page table. */
#ifndef DSRI_CACHE_CHECKS_H
#define DSRI_CACHE_CHECKS_H

#include "ops/cache_plan.h"
#include "ops/op_checks.h"

#include <dsrows/cache.h>

/* A cache as a descriptor names it. */
typedef struct dsri_cache_operand {
    const char *field; /* such as "keys"; the layout's is <field>_layout, the stride's stride_field */
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

#endif
