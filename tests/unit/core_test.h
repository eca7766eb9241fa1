/* What the tests of the core share: cmocka, an allocator that counts and fails on demand, and short ways to contexts.
 */
#ifndef TEST_CORE_TEST_H
#define TEST_CORE_TEST_H

#include <dsrows/encoder.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define assert_status(expression, wanted) assert_string_equal(dsr_status_name(expression), dsr_status_name(wanted))
#define assert_ok(expression)             assert_status(expression, DSR_OK)

typedef struct counting_allocator {
    uint64_t n_calls;
    uint64_t n_live;
    uint64_t live_bytes;
    uint64_t fail_at; /* the call, counted from 1, that gives null; 0: none */
    int fail_after;   /* the later ones give null too */
} counting_allocator;

static inline void *counting_allocate(void *user, size_t size_bytes, size_t alignment)
{
    counting_allocator *counter = user;
    void *memory = NULL;
    counter->n_calls++;
    if (counter->fail_at &&
        (counter->n_calls == counter->fail_at || (counter->fail_after && counter->n_calls > counter->fail_at)))
        return NULL;
    assert_int_not_equal(size_bytes, 0);
    assert_int_equal(alignment & (alignment - 1), 0);
    assert_true(alignment <= 4096);
    if (posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, size_bytes) != 0)
        return NULL;
    memset(memory, 0xa5, size_bytes < 65536 ? size_bytes : 65536);
    counter->n_live++;
    counter->live_bytes += size_bytes;
    return memory;
}

static inline void counting_release(void *user, void *memory, size_t size_bytes)
{
    counting_allocator *counter = user;
    assert_non_null(memory);
    counter->n_live--;
    counter->live_bytes -= size_bytes;
    free(memory);
}

static inline dsr_allocator counting_hook(counting_allocator *counter)
{
    return (dsr_allocator){.allocate = counting_allocate, .release = counting_release, .user = counter};
}

static inline dsr_context *new_context(uint32_t n_threads)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    dsr_context *context = NULL;
    desc.n_threads = n_threads;
    assert_ok(dsr_context_create(&desc, &context));
    return context;
}

static inline dsr_encoder *new_encoder(dsr_context *context)
{
    dsr_encoder *encoder = NULL;
    assert_ok(dsr_encoder_create(context, &encoder));
    return encoder;
}

static inline dsr_buffer *new_buffer(dsr_context *context, uint64_t size_bytes)
{
    dsr_buffer *buffer = NULL;
    assert_ok(dsr_buffer_create(context, size_bytes, &buffer));
    return buffer;
}

static inline dsr_view view_of(dsr_buffer *buffer, uint64_t byte_offset, uint64_t byte_length)
{
    return (dsr_view){.buffer = buffer, .byte_offset = byte_offset, .byte_length = byte_length, .dtype = DSR_DTYPE_U8};
}

/* Encodes a registered kernel on up to 8 views. */
static inline dsr_status encode_kernel(dsr_encoder *encoder, const char *name, uint32_t n_tasks, uint32_t n_views,
                                       const dsr_view *views, const dsr_access *access)
{
    dsr_kernel_desc desc = DSR_KERNEL_DESC_INIT;
    desc.name = name;
    desc.n_tasks = n_tasks;
    desc.n_views = n_views;
    desc.views = views;
    desc.access = access;
    return dsr_encode_kernel(encoder, &desc);
}

static inline dsr_command_info command_info(const dsr_encoder *encoder, uint32_t index)
{
    dsr_command_info info = {.struct_size = sizeof info};
    assert_ok(dsr_encoder_command(encoder, index, &info));
    return info;
}

static inline int depends_directly(const dsr_command_info *info, uint32_t earlier)
{
    for (uint32_t i = 0; i < info->n_depends_on; i++)
        if (info->depends_on[i] == earlier)
            return 1;
    return 0;
}

#endif
