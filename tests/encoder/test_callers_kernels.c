/* Kernels of the caller's own: names, refusals, parameters, and a place between ours. */
#include "../unit/core_test.h"

#include <dsrows/ops.h>

static void double_values(void *user, uint32_t task, uint32_t n_tasks, void *const *views, const void *params)
{
    const uint32_t n = *(const uint32_t *)params;
    (void)n_tasks;
    for (uint32_t i = 0; i < n; i++)
        ((float *)views[1])[task * n + i] = *(const float *)user * ((const float *)views[0])[task * n + i];
}

static void test_names(void **state)
{
    dsr_context *context = new_context(1);
    const uint32_t n_ours = dsr_registry_n_kernels(context);
    float factor = 2;
    char longest[65];
    (void)state;
    memset(longest, 'x', 64);
    longest[64] = 0;
    assert_true(n_ours > 5);
    assert_status(dsr_registry_add_kernel(context, longest, double_values, &factor), DSR_ERR_NAME);
    longest[63] = 0;
    assert_ok(dsr_registry_add_kernel(context, longest, double_values, &factor));
    assert_status(dsr_registry_add_kernel(context, longest, double_values, &factor), DSR_ERR_NAME);
    assert_ok(dsr_registry_add_kernel(context, "a.B-9_", double_values, &factor));
    assert_status(dsr_registry_add_kernel(context, "", double_values, &factor), DSR_ERR_NAME);
    assert_status(dsr_registry_add_kernel(context, "a b", double_values, &factor), DSR_ERR_NAME);
    assert_status(dsr_registry_add_kernel(context, "a\"b", double_values, &factor), DSR_ERR_NAME);
    assert_status(dsr_registry_add_kernel(context, "\xc3\xa9", double_values, &factor), DSR_ERR_NAME);
    assert_status(dsr_registry_add_kernel(context, NULL, double_values, &factor), DSR_ERR_NULL);
    assert_status(dsr_registry_add_kernel(context, "b", NULL, &factor), DSR_ERR_NULL);
    assert_status(dsr_registry_add_kernel(NULL, "b", double_values, &factor), DSR_ERR_NULL);
    assert_status(dsr_registry_add_device_kernel(context, NULL), DSR_ERR_UNSUPPORTED_DEVICE);
    assert_status(dsr_registry_add_kernel(context, dsr_registry_kernel_name(context, 0), double_values, &factor),
                  DSR_ERR_NAME);
    assert_int_equal(dsr_registry_n_kernels(context), n_ours + 2);
    assert_string_equal(dsr_registry_kernel_name(context, n_ours), longest);
    assert_string_equal(dsr_registry_kernel_name(context, n_ours + 1), "a.B-9_");
    assert_null(dsr_registry_kernel_name(context, n_ours + 2));
    assert_null(dsr_registry_kernel_name(context, UINT32_MAX));
    assert_null(dsr_registry_kernel_name(NULL, 0));
    assert_int_equal(dsr_registry_n_kernels(NULL), 0);
    for (uint32_t i = 0; i < n_ours + 2; i++)
        for (uint32_t j = 0; j < i; j++)
            assert_string_not_equal(dsr_registry_kernel_name(context, i), dsr_registry_kernel_name(context, j));
    dsr_context_destroy(context);
}

static void refuse(dsr_encoder *encoder, dsr_kernel_desc desc, dsr_status status)
{
    assert_status(dsr_encode_kernel(encoder, &desc), status);
    assert_int_equal(dsr_encoder_n_commands(encoder), 0);
}

static void test_refusals(void **state)
{
    dsr_context *context = new_context(1);
    dsr_buffer *buffer = new_buffer(context, 1024);
    dsr_encoder *encoder = new_encoder(context);
    float factor = 2;
    dsr_view views[33];
    dsr_access access[33];
    static unsigned char params[5000];
    (void)state;
    for (int i = 0; i < 33; i++) {
        views[i] = view_of(buffer, (uint64_t)(i * 16), 16);
        access[i] = DSR_ACCESS_WRITE;
    }
    assert_ok(dsr_registry_add_kernel(context, "k", double_values, &factor));
    dsr_kernel_desc good = DSR_KERNEL_DESC_INIT, desc;
    good.name = "k";
    good.n_tasks = 1;
    good.n_views = 32;
    good.views = views;
    good.access = access;
    good.params = params;
    good.params_bytes = 4096;
    assert_status(dsr_encode_kernel(NULL, &good), DSR_ERR_NULL);
    assert_status(dsr_encode_kernel(encoder, NULL), DSR_ERR_NULL);
    desc = good, desc.struct_size--, refuse(encoder, desc, DSR_ERR_STRUCT_SIZE);
    desc = good, desc.name = NULL, refuse(encoder, desc, DSR_ERR_NULL);
    desc = good, desc.name = "unknown", refuse(encoder, desc, DSR_ERR_NAME);
    desc = good, desc.n_tasks = 0, refuse(encoder, desc, DSR_ERR_VALUE);
    desc = good, desc.grid[1] = 1, refuse(encoder, desc, DSR_ERR_VALUE); /* words of device code */
    desc = good, desc.block[2] = 1, refuse(encoder, desc, DSR_ERR_VALUE);
    desc = good, desc.shared_bytes = 1, refuse(encoder, desc, DSR_ERR_VALUE);
    desc = good, desc.n_views = 33, refuse(encoder, desc, DSR_ERR_VALUE);
    desc = good, desc.views = NULL, refuse(encoder, desc, DSR_ERR_NULL);
    desc = good, desc.access = NULL, refuse(encoder, desc, DSR_ERR_NULL);
    desc = good, desc.params = NULL, refuse(encoder, desc, DSR_ERR_NULL);
    desc = good, desc.params_bytes = 4097, refuse(encoder, desc, DSR_ERR_VALUE);
    access[5] = (dsr_access)0, refuse(encoder, good, DSR_ERR_ENUM);
    access[5] = (dsr_access)4, refuse(encoder, good, DSR_ERR_ENUM);
    access[5] = DSR_ACCESS_WRITE;
    views[5].byte_length = 2000, refuse(encoder, good, DSR_ERR_RANGE);
    views[5].byte_length = 17, refuse(encoder, good, DSR_ERR_OVERLAP);
    access[5] = DSR_ACCESS_READ, refuse(encoder, good, DSR_ERR_OVERLAP);
    access[6] = DSR_ACCESS_READ;
    assert_ok(dsr_encode_kernel(encoder, &good)); /* two views that are only read may overlap */
    dsr_encoder_destroy(encoder);
    dsr_buffer_destroy(buffer);
    dsr_context_destroy(context);
}

/* gather, a kernel of the caller's, gather: in that order, under any number of threads. */
static void test_between_ours(void **state)
{
    (void)state;
    for (uint32_t n_threads = 1; n_threads <= 4; n_threads++) {
        enum { N = 1000 };
        dsr_context *context = new_context(n_threads);
        dsr_buffer *in = new_buffer(context, 2 * N * 4), *middle = new_buffer(context, 2 * N * 4),
                   *doubled = new_buffer(context, 2 * N * 4), *out = new_buffer(context, 2 * N * 4);
        dsr_encoder *encoder = new_encoder(context);
        float factor = 2;
        uint32_t chunk = N / 10;
        for (int i = 0; i < 2 * N; i++)
            ((float *)dsr_buffer_data(in))[i] = (float)i;
        assert_ok(dsr_registry_add_kernel(context, "double", double_values, &factor));
        const dsr_view whole_in = dsr_view_whole(in, DSR_DTYPE_F32);
        const dsr_view sources[2] = {dsr_view_slice(whole_in, N, N), dsr_view_slice(whole_in, 0, N)};
        dsr_gather_desc gather = DSR_GATHER_DESC_INIT;
        gather.n_rows = 2;
        gather.sources = sources;
        gather.row_elements = N;
        gather.output = dsr_view_whole(middle, DSR_DTYPE_F32);
        const dsr_view views[2] = {gather.output, dsr_view_whole(doubled, DSR_DTYPE_F32)};
        const dsr_access access[2] = {DSR_ACCESS_READ, DSR_ACCESS_WRITE};
        dsr_kernel_desc kernel = DSR_KERNEL_DESC_INIT;
        kernel.name = "double";
        kernel.n_tasks = 20;
        kernel.n_views = 2;
        kernel.views = views;
        kernel.access = access;
        kernel.params = &chunk;
        kernel.params_bytes = sizeof chunk;
        assert_ok(dsr_encode_gather(encoder, &gather));
        assert_ok(dsr_encode_kernel(encoder, &kernel));
        chunk = 999999; /* parameters were copied */
        const dsr_view again[2] = {dsr_view_slice(views[1], N, N), dsr_view_slice(views[1], 0, N)};
        gather.sources = again;
        gather.output = dsr_view_whole(out, DSR_DTYPE_F32);
        assert_ok(dsr_encode_gather(encoder, &gather));
        assert_int_equal(command_info(encoder, 1).wave, 1);
        assert_int_equal(command_info(encoder, 2).wave, 2);
        assert_ok(dsr_encoder_submit(encoder));
        assert_ok(dsr_encoder_wait(encoder));
        for (int i = 0; i < 2 * N; i++)
            assert_true(((const float *)dsr_buffer_data(out))[i] == (float)(2 * i));
        dsr_encoder_destroy(encoder);
        dsr_buffer_destroy(in);
        dsr_buffer_destroy(middle);
        dsr_buffer_destroy(doubled);
        dsr_buffer_destroy(out);
        dsr_context_destroy(context);
    }
}

static void check_parameters(void *user, uint32_t task, uint32_t n_tasks, void *const *views, const void *params)
{
    uint32_t *n_wrong = user;
    (void)task;
    (void)views;
    *n_wrong += (uintptr_t)params % 16 != 0 || n_tasks != 1;
    for (uint32_t i = 0; i < 4096; i++)
        *n_wrong += ((const unsigned char *)params)[i] != (unsigned char)(i * 7);
}

static void test_parameters(void **state)
{
    dsr_context *context = new_context(1);
    dsr_encoder *encoder = new_encoder(context);
    static unsigned char params[4097];
    uint32_t n_wrong = 0;
    (void)state;
    for (uint32_t i = 0; i < 4096; i++)
        params[i + 1] = (unsigned char)(i * 7);
    assert_ok(dsr_registry_add_kernel(context, "check", check_parameters, &n_wrong));
    dsr_kernel_desc desc = DSR_KERNEL_DESC_INIT;
    desc.name = "check";
    desc.n_tasks = 1;
    desc.params = params + 1;
    desc.params_bytes = 4096;
    assert_ok(dsr_encode_kernel(encoder, &desc));
    assert_ok(dsr_encode_kernel(encoder, &desc));
    memset(params, 0, sizeof params);
    assert_ok(dsr_encoder_submit(encoder));
    assert_int_equal(n_wrong, 0);
    assert_int_equal(command_info(encoder, 1).wave, 0); /* without views nothing conflicts */
    dsr_encoder_destroy(encoder);
    dsr_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_between_ours),
        cmocka_unit_test(test_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
