/* How the KV rows and index keys of a request lie in memory: in which format, and in one piece or in pages.
 *
 *   format  of            values of an entry                                         scales of an entry
 *   BF16    either        dim BF16 values                                            -
 *   FP4     index keys    64 bytes: features 2i (low nibble) and 2i + 1 in E2M1      4 E8M0 bytes, one per 32 features
 *   FP8     KV rows       448 E4M3 bytes, then features 448..511 as 64 BF16 values   8 bytes: 7 E8M0, one per 64
 *                                                                                    features, and one unused
 *
 * A page of P entries of a packed format holds the values of all entries, then the scales of all entries; a page of KV
 * rows is padded to a multiple of 576 bytes. A cache without a page table is one page. With one, entry t is entry
 * t mod P of page page_table[t / P]; pages lie anywhere in the view and rows may share them.
 *
 * A packed value decodes to value * 2^(scale - 127), rounded to BF16 (exact but where the result is subnormal); scale
 * 255 gives NaN, and so do the E4M3 bytes 7f and ff. Every result is, bit for bit, that of the decoded BF16 cache.
 *
 * Values: a page id that is negative or not below the number of pages in the view makes its entries bad: an index into
 * them is a bad index, a key there is never selected. */
#ifndef DSROWS_CACHE_H
#define DSROWS_CACHE_H

#include <dsrows/context.h>

DSR_BEGIN_DECLS

enum { DSR_MIN_PAGE_SIZE = 16, DSR_MAX_PAGE_SIZE = 256 }; /* entries of a page of a page table; powers of two */

typedef enum dsr_cache_format {
    DSR_FORMAT_BF16 = 0, /* in BF16 views */
    DSR_FORMAT_FP4 = 1,  /* index keys, in U8 views */
    DSR_FORMAT_FP8 = 2   /* KV rows, in U8 views */
} dsr_cache_format;

/* All zero: BF16 in one piece. Packed caches start at a multiple of 16 bytes. */
typedef struct dsr_cache_layout {
    dsr_cache_format format;
    uint32_t page_size;   /* entries of a page: 16, 32, 64, 128 or 256 with a page table; without one at least the
                             entries of the cache, 0: as many */
    uint64_t page_stride; /* bytes from page to page, a multiple of 16 (BF16: of 2), no less than a page; 0: a page */
    dsr_view page_table;  /* I32 [ceil(entries / page_size)]; null: one page */
} dsr_cache_layout;

/* The smallest scale of a packed block, as two families of published code set it. Powers of two, so that they differ in
 * blocks of small values alone. */
typedef enum dsr_scale_floor {
    DSR_FLOOR_MODEL = 0, /* FP8 2^-22 (a greatest value of at least 1e-4), FP4 2^-126 (6 * 2^-126): the model's code */
    DSR_FLOOR_ENGINE = 1 /* FP8 2^-13 (a scale of at least 1e-4), FP4 2^-15 (1e-4): kernels of serving engines */
} dsr_scale_floor;

/* Bytes of a page of page_size entries of dim features; 0 if there is no such format of that dim (FP4: 128, FP8: 512)
 * or the size overflows. */
DSR_API uint64_t dsr_cache_page_bytes(dsr_cache_format format, uint32_t dim, uint64_t page_size);

DSR_END_DECLS
#endif
