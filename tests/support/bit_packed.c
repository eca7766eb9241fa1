#include "bit_packed.h"

#include "patterns.h"
#include "reference/reference.h"

#include <string.h>

enum { BF16_FEATURES = 64 };

static uint8_t draw_scale(random_stream *random, packed_kind kind, uint32_t middle)
{
    static const uint8_t ends[] = {0, 1, 2, 9, 10, 11, 245, 246, 247, 252, 253, 254, 255};
    switch (kind) {
    case PACKED_SPAN_9:
        return (uint8_t)(middle - 5 + random_below(random, 2) * 9);
    case PACKED_SPAN_10:
        return (uint8_t)(middle - 5 + random_below(random, 2) * 10);
    case PACKED_SPAN_14:
        return (uint8_t)(middle - 7 + random_below(random, 15));
    case PACKED_END_SCALES:
        return random_one_in(random, 3) ? (uint8_t)middle : ends[random_below(random, sizeof ends)];
    case PACKED_ANY_SCALES:
        return (uint8_t)random_next(random);
    default:
        return (uint8_t)(middle - 2 + random_below(random, 4));
    }
}

/* A code of sign, exponent and mantissa in `bits` bits, neither zero nor NaN. */
static uint32_t plain_code(random_stream *random, uint32_t bits)
{
    const uint32_t sign = (uint32_t)random_below(random, 2) << (bits - 1);
    return bits == 4 ? sign | random_between(random, 1, 7) : sign | random_between(random, 8, 0x7e);
}

static uint32_t draw_code(random_stream *random, packed_kind kind, uint32_t bits, int is_zero_block)
{
    if (is_zero_block) {
        return (uint32_t)random_below(random, 2) << (bits - 1);
    }
    if (kind == PACKED_LARGEST) {
        return bits == 4 ? 7 : 0x7e;
    }
    if (kind == PACKED_ANY_CODES || kind == PACKED_ANY_SCALES) {
        return bits == 4 ? random_below(random, 16) : random_below(random, 256);
    }
    return plain_code(random, bits);
}

static void fill_key(random_stream *random, packed_kind kind, uint8_t *values, uint8_t *scales)
{
    for (uint32_t block = 0; block < FP4_SCALE_BYTES; block++) {
        const int is_zero = kind == PACKED_ZERO_BLOCKS && random_one_in(random, 2);
        scales[block] = draw_scale(random, kind, 125);
        for (uint32_t i = 0; i < FP4_VALUE_BYTES / FP4_SCALE_BYTES; i++) {
            const uint32_t low = draw_code(random, kind, 4, is_zero), high = draw_code(random, kind, 4, is_zero);
            values[block * (FP4_VALUE_BYTES / FP4_SCALE_BYTES) + i] = (uint8_t)(high << 4 | low);
        }
    }
}

static void fill_row(random_stream *random, packed_kind kind, uint8_t *values, uint8_t *scales)
{
    uint16_t last[BF16_FEATURES];
    for (uint32_t block = 0; block < FP8_SCALE_BYTES - 1; block++) {
        const int is_zero = kind == PACKED_ZERO_BLOCKS && random_one_in(random, 2);
        scales[block] = draw_scale(random, kind, 119);
        for (uint32_t i = 0; i < 64; i++) {
            values[64 * block + i] = (uint8_t)draw_code(random, kind, 8, is_zero);
        }
        if (kind == PACKED_ANY_CODES && !random_one_in(random, 4)) {
            values[64 * block + random_below(random, 64)] = 0; /* few rows without a NaN otherwise */
            for (uint32_t i = 0; i < 64; i++) {
                values[64 * block + i] &= (values[64 * block + i] & 0x7f) == 0x7f ? 0xfe : 0xff;
            }
        }
    }
    scales[FP8_SCALE_BYTES - 1] = (uint8_t)random_next(random);
    pattern_fill_bf16(random, kind == PACKED_ANY_SCALES ? PATTERN_MIXED : PATTERN_NORMAL, 1.0f, last, BF16_FEATURES);
    memcpy(values + FP8_VALUE_BYTES - sizeof last, last, sizeof last);
}

void packed_fill(random_stream *random, packed_kind kind, uint32_t dim, uint64_t t, uint64_t n, uint8_t *values,
                 uint8_t *scales)
{
    (dim == REF_INDEX_DIM ? fill_key : fill_row)(random, kind, values, scales);
    if (kind == PACKED_ONE_OFF && t == n / 2) {
        scales[1] = 150;
    }
}

void packed_decode(uint32_t dim, const uint8_t *values, const uint8_t *scales, uint16_t *entry)
{
    if (!values) {
        for (uint32_t f = 0; f < dim; f++) {
            entry[f] = 0x7fc0;
        }
    } else if (dim == REF_INDEX_DIM) {
        ref_decode_fp4_key(values, scales, entry);
    } else {
        ref_decode_fp8_row(values, scales, entry);
    }
}
