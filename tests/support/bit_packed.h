/* Bytes of packed entries of every kind that matters, and what they decode to. */
#ifndef TEST_BIT_PACKED_H
#define TEST_BIT_PACKED_H

#include "random.h"

#include <stdint.h>

/* Of all entries of a cache. */
typedef enum packed_kind {
    PACKED_PLAIN = 0,   /* normal codes, scales within 4 binades: finite results */
    PACKED_ANY_CODES,   /* zeros, subnormals and NaN among the codes */
    PACKED_ZERO_BLOCKS, /* blocks of zeros, of either sign */
    PACKED_SPAN_9,      /* scales that span 9 binades */
    PACKED_SPAN_10,
    PACKED_SPAN_14,
    PACKED_LARGEST,    /* the greatest value everywhere, of one sign */
    PACKED_ONE_OFF,    /* as PLAIN, but one entry with a scale far off */
    PACKED_END_SCALES, /* scales at both ends, 255 (NaN) among them, and where results stop being normal */
    PACKED_ANY_SCALES, /* any byte anywhere */
    N_PACKED_KINDS
} packed_kind;

/* Bytes of an entry of 128 (FP4) or 512 features (FP8). */
enum { FP4_VALUE_BYTES = 64, FP4_SCALE_BYTES = 4, FP8_VALUE_BYTES = 576, FP8_SCALE_BYTES = 8 };

/* Entry t of n. */
void packed_fill(random_stream *random, packed_kind kind, uint32_t dim, uint64_t t, uint64_t n, uint8_t *values,
                 uint8_t *scales);
/* What it decodes to; NaN for null values, as for an entry on a bad page. */
void packed_decode(uint32_t dim, const uint8_t *values, const uint8_t *scales, uint16_t *entry);

#endif
