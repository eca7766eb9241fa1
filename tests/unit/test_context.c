/* Contexts: every field of the descriptor, refusals with their texts, and the order of destruction. */
#include "core_test.h"

typedef struct log_lines {
    int n;
    dsr_log_level level;
    char last[512];
} log_lines;

static void keep_line(void *user, dsr_log_level level, const char *message)
{
    log_lines *lines = user;
    lines->n++;
    lines->level = level;
    (void)snprintf(lines->last, sizeof lines->last, "%s", message);
}

/* The descriptor is refused: the result is left alone, the reason is logged and kept. */
static void refuse(dsr_context_desc desc, dsr_status status, const char *reason)
{
    log_lines lines = {0};
    dsr_context *const untouched = (dsr_context *)&lines;
    dsr_context *context = untouched;
    counting_allocator counter = {0};
    if (!desc.allocator.allocate && !desc.allocator.release)
        desc.allocator = counting_hook(&counter);
    desc.log = keep_line;
    desc.log_user = &lines;
    assert_status(dsr_context_create(&desc, &context), status);
    assert_ptr_equal(context, untouched);
    if (!strstr(dsr_create_error_text(), reason))
        fail_msg("the text is \"%s\" and does not hold \"%s\"", dsr_create_error_text(), reason);
    if (desc.struct_size == sizeof desc) {
        assert_int_equal(lines.n, 1);
        assert_int_equal(lines.level, DSR_LOG_ERROR);
        assert_string_equal(lines.last, dsr_create_error_text());
    }
    assert_int_equal(counter.n_live, 0);
}

static void test_defaults(void **state)
{
    dsr_context *context = NULL;
    (void)state;
    assert_ok(dsr_context_create(NULL, &context));
    assert_int_equal(dsr_context_device(context), DSR_DEVICE_CPU);
    assert_int_equal(dsr_context_exactness(context), DSR_EXACT_DEVICE);
    assert_int_equal(dsr_context_n_threads(context), 1);
    assert_int_not_equal(dsr_context_isa(context), DSR_ISA_AUTO);
    assert_true(dsr_isa_available(dsr_context_isa(context)));
    assert_string_equal(dsr_context_error_text(context), "");
    dsr_context_destroy(context);
    dsr_context_destroy(NULL);
    assert_string_equal(dsr_context_error_text(NULL), "");
}

static void test_refusals(void **state)
{
    const dsr_context_desc good = DSR_CONTEXT_DESC_INIT;
    dsr_context_desc desc = good;
    counting_allocator counter = {0};
    (void)state;
    desc.struct_size = 0;
    refuse(desc, DSR_ERR_STRUCT_SIZE, "struct_size is 0");
    desc.struct_size = sizeof desc - 4;
    refuse(desc, DSR_ERR_STRUCT_SIZE, "struct_size");
    desc = good;
    desc.device = (dsr_device_kind)2;
    refuse(desc, DSR_ERR_ENUM, "device is 2");
    desc = good;
    desc.exactness = (dsr_exactness)2;
    refuse(desc, DSR_ERR_ENUM, "exactness is 2");
    desc = good;
    desc.isa = (dsr_isa)5;
    refuse(desc, DSR_ERR_ENUM, "isa is 5");
    desc.isa = (dsr_isa)-1;
    refuse(desc, DSR_ERR_ENUM, "isa is -1");
    desc = good;
    desc.n_threads = 1025;
    refuse(desc, DSR_ERR_VALUE, "n_threads is 1025, needed is at most 1024");
    desc = good;
    desc.device_index = 1;
    refuse(desc, DSR_ERR_UNSUPPORTED_DEVICE, "device_index is 1");
    desc = good;
    desc.cuda_context = &counter;
    refuse(desc, DSR_ERR_VALUE, "cuda_context");
    desc = good;
    desc.allocator = counting_hook(&counter);
    desc.allocator.release = NULL;
    refuse(desc, DSR_ERR_NULL, "allocator");
    desc.allocator.allocate = NULL;
    desc.allocator.release = counting_release;
    refuse(desc, DSR_ERR_NULL, "allocator");
    assert_status(dsr_context_create(&good, NULL), DSR_ERR_NULL);
    assert_non_null(strstr(dsr_create_error_text(), "null"));
}

/* An instruction set of another family is never there. */
static void test_forced_isa(void **state)
{
    const dsr_isa isas[] = {DSR_ISA_SCALAR, DSR_ISA_AVX2, DSR_ISA_AVX512, DSR_ISA_NEON};
    (void)state;
    for (int i = 0; i < 4; i++) {
        dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
        dsr_context *context = NULL;
        desc.isa = isas[i];
        if (!dsr_isa_available(isas[i])) {
            refuse(desc, DSR_ERR_UNSUPPORTED_ISA, dsr_isa_name(isas[i]));
            continue;
        }
        assert_ok(dsr_context_create(&desc, &context));
        assert_int_equal(dsr_context_isa(context), isas[i]);
        dsr_context_destroy(context);
    }
#if defined(__aarch64__)
    assert_false(dsr_isa_available(DSR_ISA_AVX2) || dsr_isa_available(DSR_ISA_AVX512));
#else
    assert_false(dsr_isa_available(DSR_ISA_NEON));
#endif
}

static void test_isa_from_the_environment(void **state)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    dsr_context *context = NULL;
    (void)state;
    assert_int_equal(setenv("DSR_ISA", "scalar", 1), 0);
    assert_ok(dsr_context_create(&desc, &context));
    assert_int_equal(dsr_context_isa(context), DSR_ISA_SCALAR);
    dsr_context_destroy(context);
#if defined(__aarch64__)
    assert_int_equal(setenv("DSR_ISA", "avx2", 1), 0);
    refuse(desc, DSR_ERR_UNSUPPORTED_ISA, "avx2");
#else
    assert_int_equal(setenv("DSR_ISA", "neon", 1), 0);
    refuse(desc, DSR_ERR_UNSUPPORTED_ISA, "neon");
#endif
    /* The descriptor goes before the environment. */
    desc.isa = DSR_ISA_SCALAR;
    assert_ok(dsr_context_create(&desc, &context));
    dsr_context_destroy(context);
    desc.isa = DSR_ISA_AUTO;
    assert_int_equal(setenv("DSR_ISA", "avx1024", 1), 0);
    refuse(desc, DSR_ERR_VALUE, "avx1024");
    assert_int_equal(setenv("DSR_ISA", "AVX2", 1), 0);
    refuse(desc, DSR_ERR_VALUE, "AVX2");
    const char *const same_as_unset[] = {"", "auto"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(setenv("DSR_ISA", same_as_unset[i], 1), 0);
        assert_ok(dsr_context_create(&desc, &context));
        const dsr_isa isa = dsr_context_isa(context);
        dsr_context_destroy(context);
        assert_int_equal(unsetenv("DSR_ISA"), 0);
        assert_ok(dsr_context_create(&desc, &context));
        assert_int_equal(dsr_context_isa(context), isa);
        dsr_context_destroy(context);
    }
}

/* Without a driver, a device or CUDA in the build: a code with a text, and CPU contexts work. */
static void test_no_cuda(void **state)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    (void)state;
    assert_int_equal(dsr_device_count(DSR_DEVICE_CPU), 1);
    assert_int_equal(dsr_device_count((dsr_device_kind)9), 0);
    if (dsr_device_count(DSR_DEVICE_CUDA) > 0)
        skip();
    desc.device = DSR_DEVICE_CUDA;
    refuse(desc, DSR_ERR_UNSUPPORTED_DEVICE, "CUDA");
    dsr_context *context = new_context(1);
    dsr_context_destroy(context);
}

static void test_thread_counts(void **state)
{
    const uint32_t counts[] = {0, 1, 2, 5, 40};
    (void)state;
    for (int i = 0; i < 5; i++) {
        dsr_context *context = new_context(counts[i]);
        assert_int_equal(dsr_context_n_threads(context), counts[i] ? counts[i] : 1);
        dsr_context_destroy(context);
    }
}

/* Memory under living objects stays until the last of them goes, in any order; calls are refused. */
static void test_context_destroyed_first(void **state)
{
    counting_allocator counter = {0};
    log_lines lines = {0};
    (void)state;
    for (int order = 0; order < 2; order++) {
        dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
        dsr_context *context = NULL;
        desc.allocator = counting_hook(&counter);
        desc.n_threads = 2;
        desc.log = keep_line;
        desc.log_user = &lines;
        assert_ok(dsr_context_create(&desc, &context));
        dsr_buffer *buffer = new_buffer(context, 100);
        dsr_encoder *encoder = new_encoder(context);
        char byte = 0;
        lines.n = 0;
        dsr_context_destroy(context);
        assert_int_equal(lines.n, 1);
        assert_int_equal(lines.level, DSR_LOG_ERROR);
        assert_status(dsr_buffer_write(buffer, 0, &byte, 1), DSR_ERR_STATE);
        assert_status(dsr_encoder_submit(encoder), DSR_ERR_STATE);
        assert_status(dsr_encoder_wait(encoder), DSR_ERR_STATE);
        assert_status(dsr_encoder_reset(encoder), DSR_ERR_STATE);
        assert_status(dsr_encoder_set_stream(encoder, NULL), DSR_ERR_STATE);
        assert_true(counter.n_live > 0);
        if (order == 0) {
            dsr_buffer_destroy(buffer);
            dsr_encoder_destroy(encoder);
        } else {
            dsr_encoder_destroy(encoder);
            dsr_buffer_destroy(buffer);
        }
        assert_int_equal(counter.n_live, 0);
        assert_int_equal(counter.live_bytes, 0);
    }
}

static void test_error_text_is_per_context(void **state)
{
    dsr_context *a = new_context(1), *b = new_context(1);
    dsr_buffer *buffer;
    (void)state;
    assert_status(dsr_buffer_create(a, 0, &buffer), DSR_ERR_VALUE);
    assert_string_equal(dsr_context_error_text(a), "buffer: size_bytes is 0, needed is at least 1");
    assert_string_equal(dsr_context_error_text(b), "");
    dsr_context_destroy(a);
    dsr_context_destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_forced_isa),
        cmocka_unit_test(test_no_cuda),
        cmocka_unit_test(test_thread_counts),
        cmocka_unit_test(test_context_destroyed_first),
        cmocka_unit_test(test_error_text_is_per_context),
        cmocka_unit_test(test_isa_from_the_environment),
    };
    /* The tests are run once per level with DSR_ISA set; here the descriptor decides. */
    (void)unsetenv("DSR_ISA");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
