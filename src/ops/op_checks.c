#include "ops/op_checks.h"

#include "core/ranges.h"
#include "ops/op_plans.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES = 320, FIELD_BYTES = 96, NO_ROW = UINT8_MAX };

dsr_status dsri_check_fail(const dsri_check *check, uint32_t row, dsr_status status, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (row == DSRI_SHARED)
        return dsri_fail(check->context, status, "%s: %s", check->op, text);
    return dsri_fail(check->context, status, "%s: row %" PRIu32 ": %s", check->op, row, text);
}

dsr_status dsri_check_encoder(dsri_check *check, dsr_encoder *encoder, dsri_op op, const void *desc)
{
    if (!encoder)
        return DSR_ERR_NULL;
    check->context = dsri_encoder_context(encoder);
    check->op = dsri_op_name(op);
    DSRI_TRY(dsri_encoder_check_open(encoder));
    if (!desc)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_NULL, "desc is null");
    return DSR_OK;
}

dsr_status dsri_check_query(dsri_check *check, dsr_context *context, dsri_op op, const void *desc,
                            const uint64_t *size_bytes)
{
    if (!context)
        return DSR_ERR_NULL;
    check->context = context;
    check->op = dsri_op_name(op);
    if (!desc)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_NULL, "desc is null");
    if (!size_bytes)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_NULL, "size_bytes is null");
    return DSR_OK;
}

dsr_status dsri_check_struct_size(const dsri_check *check, uint32_t given, size_t needed)
{
    if (given != needed)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_STRUCT_SIZE, "struct_size must be %zu, got %" PRIu32, needed,
                               given);
    return DSR_OK;
}

dsr_status dsri_check_row_count(const dsri_check *check, uint32_t n_rows, const void *rows, const char *array)
{
    if (n_rows == 0 || n_rows > DSRI_MAX_ROWS)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_ROW_COUNT, "rows must be 1..=%d, got %" PRIu32,
                               (int)DSRI_MAX_ROWS, n_rows);
    if (!rows)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_NULL, "%s is null", array);
    return DSR_OK;
}

dsr_status dsri_check_positive(const dsri_check *check, const char *field, float value)
{
    if (!dsri_is_positive(value))
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_VALUE, "%s must be finite and positive, got %g", field,
                               (double)value);
    return DSR_OK;
}

dsr_status dsri_check_u32(const dsri_check *check, uint32_t row, const char *field, uint64_t value)
{
    if (value > UINT32_MAX)
        return dsri_check_fail(check, row, DSR_ERR_OVERFLOW, "%s exceeds u32: got %" PRIu64 ", needs at most %" PRIu32,
                               field, value, UINT32_MAX);
    return DSR_OK;
}

/* Asks the core; its text needs the op, row and field in one string, which is made only when it is needed. */
static dsr_status resolve_view(const dsri_check *check, uint32_t row, const char *field, const dsr_view *view,
                               void **address)
{
    char what[FIELD_BYTES];
    if (dsri_view_address(check->context, view, field, address) == DSR_OK)
        return DSR_OK;
    if (row == DSRI_SHARED)
        snprintf(what, sizeof(what), "%s: %s", check->op, field);
    else
        snprintf(what, sizeof(what), "%s: row %" PRIu32 ": %s", check->op, row, field);
    return dsri_view_address(check->context, view, what, address);
}

dsr_status dsri_check_view(const dsri_check *check, uint32_t row, const char *field, const dsr_view *view,
                           dsr_dtype dtype, uint64_t n_elements, void **address)
{
    const size_t element_bytes = dsr_dtype_size(dtype);
    uint64_t needed;
    if (!view->buffer)
        return dsri_check_fail(check, row, DSR_ERR_NULL, "%s is null", field);
    if (view->dtype != dtype)
        return dsri_check_fail(check, row, DSR_ERR_DTYPE, "%s must be %s, got %s", field, dsr_dtype_name(dtype),
                               dsr_dtype_name(view->dtype));
    if (__builtin_mul_overflow(n_elements, (uint64_t)element_bytes, &needed))
        return dsri_check_fail(check, row, DSR_ERR_OVERFLOW,
                               "%s: shape product overflows: %" PRIu64 " elements of %zu bytes", field, n_elements,
                               element_bytes);
    if (view->byte_length < needed)
        return dsri_check_fail(check, row, DSR_ERR_SIZE, "%s holds %" PRIu64 " bytes, needs %" PRIu64, field,
                               view->byte_length, needed);
    return resolve_view(check, row, field, view, address);
}

dsr_status dsri_check_shared_view(const dsri_check *check, const char *field, const dsr_view *view, dsr_dtype dtype,
                                  uint64_t n_elements, uint32_t row, void **address)
{
    const int is_short = view->buffer && view->dtype == dtype && view->byte_length / dsr_dtype_size(dtype) < n_elements;
    return dsri_check_view(check, is_short ? row : DSRI_SHARED, field, view, dtype, n_elements, address);
}

dsr_status dsri_check_float_view(const dsri_check *check, const char *field, const dsr_view *view, uint64_t n_elements,
                                 uint32_t row, void **address)
{
    if (view->buffer && view->dtype != DSR_DTYPE_F32 && view->dtype != DSR_DTYPE_BF16)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_DTYPE, "%s must be f32 or bf16, got %s", field,
                               dsr_dtype_name(view->dtype));
    if (!view->buffer)
        return dsri_check_view(check, DSRI_SHARED, field, view, view->dtype, n_elements, address);
    return dsri_check_shared_view(check, field, view, view->dtype, n_elements, row, address);
}

dsr_status dsri_check_extent(const dsri_check *check, uint32_t row, const char *what, uint64_t count, uint64_t stride,
                             uint64_t length, uint64_t *n_elements)
{
    uint64_t last;
    if (__builtin_mul_overflow(count - 1, stride, &last) || __builtin_add_overflow(last, length, n_elements))
        return dsri_check_fail(check, row, DSR_ERR_OVERFLOW,
                               "%s overflows: %" PRIu64 " pieces of %" PRIu64 " elements, %" PRIu64 " apart", what,
                               count, length, stride);
    return DSR_OK;
}

dsr_status dsri_check_sum(const dsri_check *check, uint32_t row, const char *what, uint64_t a, uint64_t b,
                          uint64_t *sum)
{
    if (__builtin_add_overflow(a, b, sum))
        return dsri_check_fail(check, row, DSR_ERR_OVERFLOW, "%s overflows: %" PRIu64 " + %" PRIu64, what, a, b);
    return DSR_OK;
}

dsr_status dsri_check_product(const dsri_check *check, uint32_t row, const char *what, uint64_t a, uint64_t b,
                              uint64_t *product)
{
    if (__builtin_mul_overflow(a, b, product))
        return dsri_check_fail(check, row, DSR_ERR_OVERFLOW, "%s overflows: %" PRIu64 " * %" PRIu64, what, a, b);
    return DSR_OK;
}

static int is_ascending(const dsr_range *ranges, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        if (ranges[i].begin < ranges[i - 1].end)
            return 0;
    }
    return 1;
}

static uint64_t total_bytes(const dsr_range *ranges, uint32_t n)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++)
        total += ranges[i].end - ranges[i].begin;
    return total;
}

/* Sorts and joins the ranges; returns how many are left, 0 if two of them overlapped, which joining makes shorter. */
static uint32_t join_disjoint(dsr_range *ranges, uint32_t n)
{
    const uint64_t before = total_bytes(ranges, n);
    const uint32_t n_joined = dsri_ranges_normalize(ranges, n);
    return total_bytes(ranges, n_joined) == before ? n_joined : 0;
}

int dsri_find_overlap(const dsr_range *ranges, uint32_t n, uint32_t *first, uint32_t *second)
{
    dsr_range joined[DSRI_MAX_RANGES];
    if (is_ascending(ranges, n))
        return 0;
    memcpy(joined, ranges, n * sizeof(*ranges));
    if (join_disjoint(joined, n) > 0)
        return 0;
    for (*second = 1; *second < n; ++*second) {
        for (*first = 0; *first < *second; ++*first) {
            if (dsri_ranges_meet(ranges[*first], ranges[*second]))
                return 1;
        }
    }
    return 0;
}

void dsri_footprint_init(dsri_footprint *footprint, const char *const *field_names)
{
    footprint->field_names = field_names;
    footprint->ranges.n_reads = 0;
    footprint->ranges.n_writes = 0;
}

void dsri_footprint_read(dsri_footprint *footprint, uint32_t field, uint32_t row, const void *begin, uint64_t n_bytes)
{
    const uint32_t i = footprint->ranges.n_reads;
    footprint->read_field[i] = (uint8_t)field;
    footprint->read_row[i] = (uint8_t)(row == DSRI_SHARED ? NO_ROW : row);
    dsri_ranges_read(&footprint->ranges, begin, n_bytes);
}

void dsri_footprint_write(dsri_footprint *footprint, uint32_t field, uint32_t row, const void *begin, uint64_t n_bytes)
{
    const uint32_t i = footprint->ranges.n_writes;
    footprint->write_field[i] = (uint8_t)field;
    footprint->write_row[i] = (uint8_t)(row == DSRI_SHARED ? NO_ROW : row);
    dsri_ranges_write(&footprint->ranges, begin, n_bytes);
}

static int has_overlap(const dsri_ranges *ranges)
{
    dsri_ranges joined;
    memcpy(joined.writes, ranges->writes, ranges->n_writes * sizeof(joined.writes[0]));
    joined.n_writes = join_disjoint(joined.writes, ranges->n_writes);
    if (joined.n_writes == 0)
        return 1;
    memcpy(joined.reads, ranges->reads, ranges->n_reads * sizeof(joined.reads[0]));
    joined.n_reads = dsri_ranges_normalize(joined.reads, ranges->n_reads);
    return dsri_ranges_overlap(joined.writes, joined.n_writes, joined.reads, joined.n_reads);
}

static dsr_status fail_overlap(const dsri_check *check, uint32_t row, const char *field, dsr_range range,
                               const char *other_field, uint8_t other_row, dsr_range other)
{
    char of_row[24] = "";
    if (other_row != NO_ROW)
        snprintf(of_row, sizeof(of_row), " of row %u", (unsigned)other_row);
    return dsri_check_fail(check, row, DSR_ERR_OVERLAP,
                           "%s overlaps %s%s: bytes [0x%" PRIx64 ", 0x%" PRIx64 ") and [0x%" PRIx64 ", 0x%" PRIx64
                           "), needs disjoint ones",
                           field, other_field, of_row, range.begin, range.end, other.begin, other.end);
}

dsr_status dsri_check_overlaps(const dsri_check *check, const dsri_footprint *footprint)
{
    const dsri_ranges *ranges = &footprint->ranges;
    const char *const *names = footprint->field_names;
    if (!has_overlap(ranges))
        return DSR_OK;
    for (uint32_t i = 0; i < ranges->n_writes; i++) {
        const dsr_range range = ranges->writes[i];
        const char *field = names[footprint->write_field[i]];
        const uint32_t row = footprint->write_row[i] == NO_ROW ? DSRI_SHARED : footprint->write_row[i];
        for (uint32_t j = 0; j < i; j++) {
            if (dsri_ranges_meet(range, ranges->writes[j]))
                return fail_overlap(check, row, field, range, names[footprint->write_field[j]], footprint->write_row[j],
                                    ranges->writes[j]);
        }
        for (uint32_t j = 0; j < ranges->n_reads; j++) {
            if (dsri_ranges_meet(range, ranges->reads[j]))
                return fail_overlap(check, row, field, range, names[footprint->read_field[j]], footprint->read_row[j],
                                    ranges->reads[j]);
        }
    }
    return DSR_OK;
}
