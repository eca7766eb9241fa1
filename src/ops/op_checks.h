/* Checks that every op's validation is made of: failure texts, views, sizes, and which byte ranges may not overlap.
 * Nothing here formats text or allocates unless a check fails. */
#ifndef DSRI_OP_CHECKS_H
#define DSRI_OP_CHECKS_H

#include "core/encoder_internal.h"

#include <string.h>

#define DSRI_TRY(expression)                                                                                           \
    do {                                                                                                               \
        const dsr_status dsri_try_status = (expression);                                                               \
        if (dsri_try_status != DSR_OK)                                                                                 \
            return dsri_try_status;                                                                                    \
    } while (0)

/* In place of a row number: what the rows of a call share. */
#define DSRI_SHARED UINT32_MAX

/* Who is checked: where failure texts go, and how they begin. */
typedef struct dsri_check {
    dsr_context *context;
    const char *op;
} dsri_check;

/* Sets the context's text to "OP: row ROW: ..." (no row part for DSRI_SHARED) and returns `status`. */
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
dsr_status
dsri_check_fail(const dsri_check *check, uint32_t row, dsr_status status, const char *format, ...);

/* First checks of every encode call: the encoder takes commands, desc is there. Fills *check. */
dsr_status dsri_check_encoder(dsri_check *check, dsr_encoder *encoder, dsri_op op, const void *desc);
/* First checks of every workspace function. */
dsr_status dsri_check_query(dsri_check *check, dsr_context *context, dsri_op op, const void *desc,
                            const uint64_t *size_bytes);
dsr_status dsri_check_struct_size(const dsri_check *check, uint32_t given, size_t needed);
/* 1 to 64 rows, and the array that describes them is there. `array` names it. */
dsr_status dsri_check_row_count(const dsri_check *check, uint32_t n_rows, const void *rows, const char *array);
/* Numbers are judged by their bits, since a caller's floating-point mode may take subnormal ones for zero. */
static inline uint32_t dsri_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline int dsri_is_finite(float value)
{
    return (dsri_float_bits(value) & 0x7f800000u) != 0x7f800000u;
}

/* Finite and above zero. */
static inline int dsri_is_positive(float value)
{
    return dsri_float_bits(value) > 0 && dsri_float_bits(value) < 0x7f800000u;
}

dsr_status dsri_check_positive(const dsri_check *check, const char *field, float value);
dsr_status dsri_check_u32(const dsri_check *check, uint32_t row, const char *field, uint64_t value);

/* A view must be there, of `dtype`, hold n_elements, lie in its buffer, belong to the context, and be aligned: checked
 * in this order. Stores the address of its first byte. */
dsr_status dsri_check_view(const dsri_check *check, uint32_t row, const char *field, const dsr_view *view,
                           dsr_dtype dtype, uint64_t n_elements, void **address);

/* The most that a row needs of what all rows share, and the first such row. */
typedef struct dsri_need {
    uint64_t n;
    uint32_t row;
} dsri_need;

static inline void dsri_need_at_least(dsri_need *need, uint64_t n, uint32_t row)
{
    if (n > need->n) {
        need->n = n;
        need->row = row;
    }
}

/* The same for a view that all rows share: if it is too short, the text names the row that needs the most. */
dsr_status dsri_check_shared_view(const dsri_check *check, const char *field, const dsr_view *view, dsr_dtype dtype,
                                  uint64_t n_elements, uint32_t row, void **address);
/* The same for one that may be F32 or BF16. */
dsr_status dsri_check_float_view(const dsri_check *check, const char *field, const dsr_view *view, uint64_t n_elements,
                                 uint32_t row, void **address);

/* (count - 1) * stride + length: elements of `count` (not 0) pieces of `length` that start `stride` apart. `what` names
 * the sum in the failure text. */
dsr_status dsri_check_extent(const dsri_check *check, uint32_t row, const char *what, uint64_t count, uint64_t stride,
                             uint64_t length, uint64_t *n_elements);
/* a + b and a * b. */
dsr_status dsri_check_sum(const dsri_check *check, uint32_t row, const char *what, uint64_t a, uint64_t b,
                          uint64_t *sum);
dsr_status dsri_check_product(const dsri_check *check, uint32_t row, const char *what, uint64_t a, uint64_t b,
                              uint64_t *product);

static inline uint32_t dsri_or_default(uint32_t value, uint32_t replacement)
{
    return value ? value : replacement;
}

static inline uint64_t dsri_or_default64(uint64_t value, uint64_t replacement)
{
    return value ? value : replacement;
}

static inline uint64_t dsri_max64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline int dsri_ranges_meet(dsr_range a, dsr_range b)
{
    return a.begin < b.end && b.begin < a.end;
}

/* 1 if two of n (at most DSRI_MAX_RANGES) ranges that are not empty overlap; then *second is the first range that meets
 * an earlier one, and *first that one. Linear in n for ascending ranges. */
int dsri_find_overlap(const dsr_range *ranges, uint32_t n, uint32_t *first, uint32_t *second);

/* The byte ranges of a command, each with the operand and the row that it belongs to. */
typedef struct dsri_footprint {
    const char *const *field_names; /* indexed by the op's own numbers of its operands */
    dsri_ranges ranges;
    uint8_t read_field[DSRI_MAX_RANGES];
    uint8_t write_field[DSRI_MAX_RANGES];
    uint8_t read_row[DSRI_MAX_RANGES];
    uint8_t write_row[DSRI_MAX_RANGES];
} dsri_footprint;

void dsri_footprint_init(dsri_footprint *footprint, const char *const *field_names);
/* row: a row or DSRI_SHARED. No bytes: nothing is added. */
void dsri_footprint_read(dsri_footprint *footprint, uint32_t field, uint32_t row, const void *begin, uint64_t n_bytes);
void dsri_footprint_write(dsri_footprint *footprint, uint32_t field, uint32_t row, const void *begin, uint64_t n_bytes);
/* No range written may overlap another one. Operands that a command may read and write in one place are added as reads
 * after this check. */
dsr_status dsri_check_overlaps(const dsri_check *check, const dsri_footprint *footprint);

#endif
