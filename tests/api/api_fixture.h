/* What the API tests share: a context with a pool of memory, and tables of faults.
 *
 * A table lists the checks of one encode call in the order in which they are made, each with a fault that it must find
 * in an otherwise valid call. api_run_faults() tries every fault alone and every pair of faults that touch different
 * fields, where the one listed first must win. */
#ifndef DSR_TEST_API_FIXTURE_H
#define DSR_TEST_API_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dsrows/context.h>
#include <dsrows/encoder.h>
#include <dsrows/ops.h>
#include <dsrows/step_plan.h>

/* Room before the first operand, so that a fault may shift a view to lower addresses. */
enum { POOL_BYTES = 4 * 1024 * 1024, POOL_FILL = 0xA5, POOL_MARGIN = 64 * 1024 };

/* Views of huge sizes lie in memory that does not exist: encoding touches no operand. */
#define HUGE_ADDRESS ((uintptr_t)1 << 44)
#define HUGE_BYTES   ((uint64_t)1 << 62)

typedef struct api_fixture {
    dsr_context *context;
    dsr_encoder *encoder;
    dsr_buffer *pool;
    dsr_buffer *huge;
    dsr_context *other_context;
    dsr_buffer *foreign; /* of other_context */
    uint64_t pool_used;
} api_fixture;

static inline int api_setup(void **state)
{
    api_fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    assert_int_equal(dsr_context_create(NULL, &f->context), DSR_OK);
    assert_int_equal(dsr_encoder_create(f->context, &f->encoder), DSR_OK);
    assert_int_equal(dsr_buffer_create(f->context, POOL_BYTES, &f->pool), DSR_OK);
    assert_int_equal(dsr_buffer_wrap(f->context, (void *)HUGE_ADDRESS, HUGE_BYTES, &f->huge), DSR_OK);
    assert_int_equal(dsr_context_create(NULL, &f->other_context), DSR_OK);
    assert_int_equal(dsr_buffer_create(f->other_context, POOL_BYTES, &f->foreign), DSR_OK);
    f->pool_used = POOL_MARGIN;
    *state = f;
    return 0;
}

static inline int api_teardown(void **state)
{
    api_fixture *f = *state;
    dsr_encoder_destroy(f->encoder);
    dsr_buffer_destroy(f->pool);
    dsr_buffer_destroy(f->huge);
    dsr_context_destroy(f->context);
    dsr_buffer_destroy(f->foreign);
    dsr_context_destroy(f->other_context);
    free(f);
    return 0;
}

/* The next n_elements of the pool, on a multiple of 64 bytes, with a gap after them. */
static inline dsr_view api_view(api_fixture *f, dsr_dtype dtype, uint64_t n_elements)
{
    const dsr_view view = {f->pool, f->pool_used, n_elements * dsr_dtype_size(dtype), dtype};
    f->pool_used = (f->pool_used + view.byte_length + 127) / 64 * 64;
    assert_true(f->pool_used <= POOL_BYTES);
    return view;
}

static inline void *api_data(dsr_view view)
{
    return (uint8_t *)dsr_buffer_data(view.buffer) + view.byte_offset;
}

static inline dsr_view api_huge_view(const api_fixture *f, dsr_dtype dtype)
{
    return dsr_view_whole(f->huge, dtype);
}

static inline void api_assert_text(const api_fixture *f, const char *part)
{
    const char *text = dsr_context_error_text(f->context);
    if (!strstr(text, part))
        fail_msg("error text \"%s\" lacks \"%s\"", text, part);
}

static inline void api_assert_pool_is_filled(const api_fixture *f)
{
    const uint8_t *bytes = dsr_buffer_data(f->pool);
    for (size_t i = 0; i < POOL_BYTES; i++) {
        if (bytes[i] != POOL_FILL)
            fail_msg("byte %zu of the operands was written", i);
    }
}

/* An encode call: a struct that begins with the descriptor, a function that makes it valid, and one that encodes it. */
typedef struct api_call {
    size_t bytes;
    void (*init)(void *call, api_fixture *f);
    dsr_status (*encode)(dsr_encoder *encoder, const void *call);
    const char *op;
} api_call;

typedef enum api_patch_kind {
    PATCH_NONE = 0,
    PATCH_SET,
    PATCH_ADD,
    PATCH_COPY,
    PATCH_HUGE,
    PATCH_FOREIGN
} api_patch_kind;

typedef struct api_patch {
    api_patch_kind kind;
    size_t offset; /* in the call */
    size_t bytes;
    uint64_t value; /* PATCH_COPY: offset of the source */
} api_patch;

#define PATCH_AT(patch, member, given)                                                                                 \
    {                                                                                                                  \
        patch, offsetof(CALL, member), sizeof(((CALL *)0)->member), (uint64_t)(given)                                  \
    }
/* Members of CALL, which a test defines as its struct. SET and ADD are for integers, enums, pointers and float bits. */
#define SET(member, given)   PATCH_AT(PATCH_SET, member, given)
#define ADD(member, given)   PATCH_AT(PATCH_ADD, member, given)
#define COPY(member, source) PATCH_AT(PATCH_COPY, member, offsetof(CALL, source))
/* HUGE_VIEW: the view becomes all of the huge buffer, with the dtype it had. FOREIGN: a buffer of another context. */
#define HUGE_VIEW(member) PATCH_AT(PATCH_HUGE, member, 0)
#define FOREIGN(member)   PATCH_AT(PATCH_FOREIGN, member, 0)

enum { FLOAT_NAN_BITS = 0x7fc00000, FLOAT_INFINITY_BITS = 0x7f800000, FLOAT_MINUS_ONE_BITS = (int)0xbf800000 };

enum { MAX_PATCHES = 10 };

typedef struct api_fault {
    const char *text; /* beginning of the error text, after the op */
    dsr_status status;
    uint32_t groups; /* a bit set: faults of one group are not tried together, though they touch different fields */
    api_patch patches[MAX_PATCHES];
} api_fault;

#define FAULT_OF(number, status, text, ...)                                                                            \
    {                                                                                                                  \
        text, status, number,                                                                                          \
        {                                                                                                              \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }
#define FAULT(status, text, ...) FAULT_OF(0, status, text, __VA_ARGS__)
#define N_FAULTS(faults)         (sizeof(faults) / sizeof((faults)[0]))

static inline void api_apply_patch(void *call, const api_fixture *f, const api_patch *patch)
{
    uint8_t *at = (uint8_t *)call + patch->offset;
    uint64_t value = 0;
    dsr_view view;
    switch (patch->kind) {
    case PATCH_NONE:
        break;
    case PATCH_SET:
        memcpy(at, &patch->value, patch->bytes);
        break;
    case PATCH_ADD:
        memcpy(&value, at, patch->bytes);
        value += patch->value;
        memcpy(at, &value, patch->bytes);
        break;
    case PATCH_COPY:
        memmove(at, (uint8_t *)call + patch->value, patch->bytes);
        break;
    case PATCH_HUGE:
        memcpy(&view, at, sizeof(view));
        view = dsr_view_whole(f->huge, view.dtype);
        memcpy(at, &view, sizeof(view));
        break;
    case PATCH_FOREIGN:
        memcpy(at, &f->foreign, sizeof(f->foreign));
        break;
    }
}

static inline void api_inject(void *call, const api_fixture *f, const api_fault *fault)
{
    for (size_t i = 0; i < MAX_PATCHES; i++)
        api_apply_patch(call, f, &fault->patches[i]);
}

static inline int api_faults_touch(const api_fault *a, const api_fault *b)
{
    if (a->groups & b->groups)
        return 1;
    for (size_t i = 0; i < MAX_PATCHES; i++) {
        for (size_t j = 0; j < MAX_PATCHES; j++) {
            const api_patch *p = &a->patches[i], *q = &b->patches[j];
            if (p->offset < q->offset + q->bytes && q->offset < p->offset + p->bytes)
                return 1;
        }
    }
    return 0;
}

static inline void api_init_call(api_fixture *f, const api_call *kind, void *call)
{
    memset(call, 0, kind->bytes);
    f->pool_used = POOL_MARGIN;
    kind->init(call, f);
}

/* Whether a text is the op and then what a fault names; what is needed may depend on another fault. */
static inline int api_text_fits(const char *text, const char *op, const char *named, int whole)
{
    const char *needs = strstr(named, ", needs ");
    const size_t n_compared = whole || !needs ? strlen(named) : (size_t)(needs - named);
    return strncmp(text, op, strlen(op)) == 0 && strncmp(text + strlen(op), named, n_compared) == 0;
}

/* `also`: a fault that is there as well and must lose; null: none. */
static inline void api_expect_fault(api_fixture *f, const api_call *kind, const void *call, const api_fault *fault,
                                    const api_fault *also)
{
    const uint32_t before = dsr_encoder_n_commands(f->encoder);
    const dsr_status status = kind->encode(f->encoder, call);
    const char *text = dsr_context_error_text(f->context);
    if (status != fault->status || !api_text_fits(text, kind->op, fault->text, !also))
        fail_msg("expected %s \"%s%s\"%s%s, got %s \"%s\"", dsr_status_name(fault->status), kind->op, fault->text,
                 also ? " before " : "", also ? also->text : "", dsr_status_name(status), text);
    assert_int_equal(dsr_encoder_n_commands(f->encoder), before);
}

static inline void api_expect_valid(api_fixture *f, const api_call *kind, const void *call)
{
    const uint32_t before = dsr_encoder_n_commands(f->encoder);
    const dsr_status status = kind->encode(f->encoder, call);
    if (status != DSR_OK)
        fail_msg("a valid call gave %s: %s", dsr_status_name(status), dsr_context_error_text(f->context));
    assert_int_equal(dsr_encoder_n_commands(f->encoder), before + 1);
}

static inline void api_run_faults(api_fixture *f, const api_call *kind, const api_fault *faults, size_t n_faults)
{
    void *call = malloc(kind->bytes);
    assert_non_null(call);
    memset(dsr_buffer_data(f->pool), POOL_FILL, POOL_BYTES);
    api_init_call(f, kind, call);
    api_expect_valid(f, kind, call);
    for (size_t i = 0; i < n_faults; i++) {
        api_init_call(f, kind, call);
        api_inject(call, f, &faults[i]);
        api_expect_fault(f, kind, call, &faults[i], NULL);
        for (size_t later = i + 1; later < n_faults; later++) {
            if (api_faults_touch(&faults[i], &faults[later]))
                continue;
            api_init_call(f, kind, call);
            api_inject(call, f, &faults[later]);
            api_inject(call, f, &faults[i]);
            api_expect_fault(f, kind, call, &faults[i], &faults[later]);
        }
    }
    api_init_call(f, kind, call);
    api_expect_valid(f, kind, call);
    api_assert_pool_is_filled(f);
    free(call);
}

enum { MAX_EXPECTED = 512 };

/* Ranges that a command is expected to declare, in any order; ranges may touch. */
typedef struct api_ranges {
    uint32_t n;
    dsr_range ranges[MAX_EXPECTED];
} api_ranges;

/* n_bytes of a view from byte `first`. */
static inline void api_expect_range(api_ranges *expected, dsr_view view, uint64_t first, uint64_t n_bytes)
{
    const uint64_t begin = (uintptr_t)api_data(view) + first;
    assert_true(expected->n < MAX_EXPECTED);
    expected->ranges[expected->n++] = (dsr_range){begin, begin + n_bytes};
}

static inline int api_compare_ranges(const void *a, const void *b)
{
    const dsr_range *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Whether the ranges found are ascending, apart, and cover the expected bytes and no other. */
static inline void api_assert_ranges(const dsr_range *found, uint32_t n_found, api_ranges *expected)
{
    uint32_t n = 0;
    qsort(expected->ranges, expected->n, sizeof(expected->ranges[0]), api_compare_ranges);
    for (uint32_t i = 0; i < expected->n; i++) {
        if (n > 0 && expected->ranges[i].begin <= expected->ranges[n - 1].end) {
            if (expected->ranges[i].end > expected->ranges[n - 1].end)
                expected->ranges[n - 1].end = expected->ranges[i].end;
        } else {
            expected->ranges[n++] = expected->ranges[i];
        }
    }
    assert_int_equal(n_found, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(found[i].begin, expected->ranges[i].begin);
        assert_int_equal(found[i].end, expected->ranges[i].end);
    }
}

static inline dsr_command_info api_last_command(const api_fixture *f)
{
    dsr_command_info info = {.struct_size = sizeof(info)};
    assert_int_equal(dsr_encoder_command(f->encoder, dsr_encoder_n_commands(f->encoder) - 1, &info), DSR_OK);
    return info;
}

#endif
