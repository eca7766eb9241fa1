/* Caches that rows of a case read: entries of any format, in one piece or in pages, with what they decode to. */
#ifndef TEST_BIT_CACHES_H
#define TEST_BIT_CACHES_H

#include "bit_pool.h"

/* How a row's cache lies; all zero: BF16 in one piece. */
typedef struct bit_cache_form {
    dsr_cache_format format;
    uint32_t page_size; /* entries; 0: in one piece */
} bit_cache_form;

enum { BIT_CACHE_FORMS = 12 };
/* Forms of row r where formats and page sizes are mixed. packed: FP4 or FP8. */
bit_cache_form bit_mixed_form(dsr_cache_format packed, uint32_t r);

/* Draws the row's cache of kv_len entries of dim features: inputs[decoded] is what the reference takes, with NaN in
 * the entries of bad pages, and inputs[pages] what lies in memory. Every fifth row takes the cache of the one before
 * if it is of the same form and large enough. */
void bit_generate_cache(bit_case *c, uint32_t r, random_stream *random, bit_cache_form form, uint32_t dim,
                        uint32_t decoded, uint32_t pages);
/* Places the caches of all rows, in pools that rows of one form share. */
void bit_place_caches(bit_placement *p, uint32_t dim, uint32_t decoded, uint32_t pages);
/* Fields of a placed row's descriptor. */
dsr_view bit_cache_view(const bit_placement *p, uint32_t slot);
dsr_cache_layout bit_cache_layout(const bit_placement *p, uint32_t slot);
uint64_t bit_cache_row_stride(const bit_placement *p, uint32_t slot);

#endif
