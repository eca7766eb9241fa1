/* The caches of a case: tensors kv.R, or kv for all rows, in any format, in one piece or in pages. */
#ifndef DSROWS_CASE_CACHE_H
#define DSROWS_CASE_CACHE_H

#include "case_file.h"
#include "joint.h"

/* kv_format and page_size of a case, for entries of dim features (128 or 512). */
typedef struct case_cache_format {
    uint32_t dim;
    dsr_cache_format format;
    uint32_t page_size; /* 0: none given */
} case_cache_format;

/* A row's cache. tensor: what messages name. */
typedef struct case_cache {
    const st_tensor *tensor;
    uint64_t kv_len;
    cache_form form;
} case_cache;

case_cache_format case_read_cache_format(case_file *c, uint32_t dim);
case_cache case_read_cache(case_file *c, uint32_t index, const case_cache_format *format);

#endif
