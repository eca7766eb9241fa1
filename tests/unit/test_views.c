/* Buffers, views as values, and what a view that does not fit gives. */
#include "core_test.h"

#include "core/encoder_internal.h"

static void test_buffer_of_ours(void **state)
{
    dsr_context *context = new_context(1);
    dsr_buffer *buffer = new_buffer(context, 1000);
    const unsigned char *data = dsr_buffer_data(buffer);
    unsigned char text[16] = "0123456789abcde", back[16];
    (void)state;
    assert_int_equal(dsr_buffer_size(buffer), 1000);
    assert_int_equal((uintptr_t)data % 64, 0);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(data[i], 0);
    assert_ok(dsr_buffer_write(buffer, 984, text, 16));
    assert_ok(dsr_buffer_read(buffer, 984, back, 16));
    assert_memory_equal(text, back, 16);
    assert_ok(dsr_buffer_write(buffer, 1000, text, 0));
    assert_status(dsr_buffer_write(buffer, 985, text, 16), DSR_ERR_RANGE);
    assert_status(dsr_buffer_read(buffer, 1001, back, 0), DSR_ERR_RANGE);
    assert_status(dsr_buffer_read(buffer, UINT64_MAX, back, 2), DSR_ERR_RANGE);
    assert_status(dsr_buffer_read(buffer, 2, back, UINT64_MAX), DSR_ERR_RANGE);
    assert_status(dsr_buffer_write(buffer, 0, NULL, 1), DSR_ERR_NULL);
    assert_status(dsr_buffer_read(NULL, 0, back, 1), DSR_ERR_NULL);
    dsr_buffer_destroy(buffer);
    dsr_context_destroy(context);
}

static void test_wrapped_buffer(void **state)
{
    dsr_context *context = new_context(1);
    unsigned char memory[64];
    dsr_buffer *buffer = NULL, *untouched = (dsr_buffer *)memory;
    (void)state;
    memset(memory, 7, sizeof memory);
    assert_ok(dsr_buffer_wrap(context, memory + 3, 50, &buffer));
    assert_ptr_equal(dsr_buffer_data(buffer), memory + 3);
    assert_int_equal(memory[3], 7);
    dsr_buffer_destroy(buffer);
    assert_int_equal(memory[3], 7);
    buffer = untouched;
    assert_status(dsr_buffer_wrap(context, NULL, 50, &buffer), DSR_ERR_NULL);
    assert_status(dsr_buffer_wrap(context, memory, 0, &buffer), DSR_ERR_VALUE);
    assert_status(dsr_buffer_wrap(context, memory, UINT64_MAX - 10, &buffer), DSR_ERR_OVERFLOW);
    assert_status(dsr_buffer_wrap(context, memory, 5, NULL), DSR_ERR_NULL);
    assert_status(dsr_buffer_wrap(NULL, memory, 5, &buffer), DSR_ERR_NULL);
    assert_status(dsr_buffer_create(context, 0, &buffer), DSR_ERR_VALUE);
    assert_status(dsr_buffer_create(context, 5, NULL), DSR_ERR_NULL);
    assert_status(dsr_buffer_create(NULL, 5, &buffer), DSR_ERR_NULL);
    assert_ptr_equal(buffer, untouched);
    dsr_buffer_destroy(NULL);
    assert_null(dsr_buffer_data(NULL));
    assert_int_equal(dsr_buffer_size(NULL), 0);
    dsr_context_destroy(context);
}

/* Sanitizers otherwise stop the program at the request below. Their libraries look the functions up by name. */
#define SANITIZER_HOOK __attribute__((visibility("default")))
SANITIZER_HOOK const char *__asan_default_options(void);
SANITIZER_HOOK const char *__tsan_default_options(void);

const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

/* More memory than any machine has: a code that names the bytes, and a context that still works. */
static void test_too_large(void **state)
{
    dsr_context *context = new_context(1);
    dsr_buffer *buffer = NULL;
    (void)state;
    assert_status(dsr_buffer_create(context, (uint64_t)1 << 60, &buffer), DSR_ERR_OUT_OF_MEMORY);
    assert_non_null(strstr(dsr_context_error_text(context), "1152921504606846976"));
    assert_null(buffer);
    buffer = new_buffer(context, 10);
    dsr_buffer_destroy(buffer);
    dsr_context_destroy(context);
}

static void test_slices(void **state)
{
    dsr_context *context = new_context(1);
    dsr_buffer *buffer = new_buffer(context, 256);
    const dsr_view whole = dsr_view_whole(buffer, DSR_DTYPE_F32);
    (void)state;
    assert_ptr_equal(whole.buffer, buffer);
    assert_int_equal(whole.byte_offset, 0);
    assert_int_equal(whole.byte_length, 256);
    const dsr_view slice = dsr_view_slice(whole, 10, 20);
    assert_int_equal(slice.byte_offset, 40);
    assert_int_equal(slice.byte_length, 80);
    assert_int_equal(slice.dtype, DSR_DTYPE_F32);
    const dsr_view inner = dsr_view_slice(slice, 1, 19);
    assert_int_equal(inner.byte_offset, 44);
    assert_int_equal(inner.byte_length, 76);
    assert_int_equal(dsr_view_slice(slice, 20, 0).byte_length, 0);
    assert_null(dsr_view_whole(NULL, DSR_DTYPE_F32).buffer);
    assert_int_equal(dsr_view_whole(NULL, DSR_DTYPE_F32).byte_length, 0);
    assert_null(dsr_view_slice(dsr_view_whole(NULL, DSR_DTYPE_F32), 3, 4).buffer);
    dsr_buffer_destroy(buffer);
    dsr_context_destroy(context);
}

static void test_slices_that_do_not_fit(void **state)
{
    dsr_context *context = new_context(1);
    dsr_buffer *buffer = new_buffer(context, 256);
    const dsr_view part = dsr_view_slice(dsr_view_whole(buffer, DSR_DTYPE_F32), 10, 20);
    dsr_view strange = part, odd_dtype = part;
    strange.byte_offset = UINT64_MAX - 7;
    odd_dtype.dtype = (dsr_dtype)9;
    const dsr_view bad[] = {
        dsr_view_slice(part, 1, 20), /* inside the buffer, outside the view */
        dsr_view_slice(part, 21, 0),
        dsr_view_slice(part, UINT64_MAX, 1),
        dsr_view_slice(part, (uint64_t)1 << 62, 1),
        dsr_view_slice(part, 1, (uint64_t)1 << 62),
        dsr_view_slice(part, UINT64_MAX / 4 + 2, 0),
        dsr_view_slice(strange, 4, 1), /* the offset would wrap to a small one */
        dsr_view_slice(odd_dtype, 0, 1),
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        void *address = &address;
        dsr_view view = bad[i];
        view.dtype = DSR_DTYPE_F32;
        if (dsri_view_address(context, &view, "a test", &address) != DSR_ERR_RANGE)
            fail_msg("slice %zu was taken", i);
        assert_ptr_equal(address, &address);
    }
    dsr_buffer_destroy(buffer);
    dsr_context_destroy(context);
}

static void test_view_address(void **state)
{
    dsr_context *context = new_context(1), *other = new_context(1);
    dsr_buffer *buffer = new_buffer(context, 256);
    unsigned char *data = dsr_buffer_data(buffer);
    dsr_view view = {.buffer = buffer, .byte_offset = 4, .byte_length = 8, .dtype = DSR_DTYPE_F32};
    void *address = NULL;
    (void)state;
    assert_ok(dsri_view_address(context, &view, "op, row 3: field", &address));
    assert_ptr_equal(address, data + 4);
    assert_status(dsri_view_address(other, &view, "op, row 3: field", &address), DSR_ERR_CONTEXT_MISMATCH);
    assert_non_null(strstr(dsr_context_error_text(other), "op, row 3: field"));
    assert_status(dsri_view_address(context, NULL, "x", &address), DSR_ERR_NULL);
    view.byte_offset = 2;
    assert_status(dsri_view_address(context, &view, "x", &address), DSR_ERR_ALIGNMENT);
    view.dtype = DSR_DTYPE_BF16;
    assert_ok(dsri_view_address(context, &view, "x", &address));
    view.byte_offset = 248;
    assert_ok(dsri_view_address(context, &view, "x", &address));
    view.byte_offset = 249;
    assert_status(dsri_view_address(context, &view, "op, row 3: field", &address), DSR_ERR_RANGE);
    assert_string_equal(dsr_context_error_text(context),
                        "op, row 3: field: the view has 8 bytes from byte 249, its buffer has 256");
    view.dtype = (dsr_dtype)12;
    assert_status(dsri_view_address(context, &view, "x", &address), DSR_ERR_ENUM);
    view.buffer = NULL;
    assert_status(dsri_view_address(context, &view, "x", &address), DSR_ERR_NULL);
    dsr_buffer_destroy(buffer);
    dsr_context_destroy(context);
    dsr_context_destroy(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buffer_of_ours), cmocka_unit_test(test_wrapped_buffer),
        cmocka_unit_test(test_too_large),      cmocka_unit_test(test_slices),
        cmocka_unit_test(test_view_address),   cmocka_unit_test(test_slices_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
