/* Callers' kernels in device code against a driver and a compiler that run nothing: what is loaded, launched and
 * refused. */
#include "fake_cuda.h"
#include "fake_nvrtc.h"

#include <dsrows/dsrows.h>

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static fake_cuda_state *cuda;
static fake_nvrtc_state *nvrtc;

/* Keeps a library open, so that its counters outlive contexts; gives what its function `name` returns. */
static void *state_of(const char *library, const char *name)
{
    void *(*get)(void);
    void *opened = dlopen(library, RTLD_NOW);
    void *symbol = opened ? dlsym(opened, name) : NULL;
    memcpy(&get, &symbol, sizeof get);
    return symbol ? get() : NULL;
}

static int load_fakes(void **state)
{
    (void)state;
    setenv("DSR_CUDA_DRIVER", FAKE_CUDA_LIBRARY, 1);
    setenv("DSR_NVRTC", FAKE_NVRTC_LIBRARY, 1);
    cuda = state_of(FAKE_CUDA_LIBRARY, "fake_cuda");
    nvrtc = state_of(FAKE_NVRTC_LIBRARY, "fake_nvrtc");
    return cuda && nvrtc ? 0 : -1;
}

static void reset_fakes(void)
{
    memset(cuda, 0, sizeof *cuda);
    memset(nvrtc, 0, sizeof *nvrtc);
    cuda->n_params = 3;
    cuda->params_bytes[0] = 8;
    cuda->params_bytes[1] = 8;
    cuda->params_bytes[2] = 12;
}

static void skip_unless_built(void)
{
    if (dsr_device_count(DSR_DEVICE_CUDA) == 0)
        skip();
    reset_fakes();
}

static char logged[1024];

static void keep_log(void *user, dsr_log_level level, const char *message)
{
    (void)user;
    (void)level;
    (void)snprintf(logged + strlen(logged), sizeof logged - strlen(logged), "%s|", message);
}

/* Two copies with a call of a kernel between them: source to middle, the kernel from middle to scaled, scaled to
 * result.
 */
typedef struct work {
    dsr_context *context;
    dsr_encoder *encoder;
    dsr_buffer *source, *middle, *scaled, *result;
} work;

static dsr_status open_work(work *w)
{
    memset(w, 0, sizeof *w);
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    desc.device = DSR_DEVICE_CUDA;
    desc.log = keep_log;
    logged[0] = '\0';
    dsr_status status = dsr_context_create(&desc, &w->context);
    dsr_buffer **const buffers[4] = {&w->source, &w->middle, &w->scaled, &w->result};
    for (int i = 0; i < 4 && status == DSR_OK; i++)
        status = dsr_buffer_create(w->context, 128, buffers[i]);
    return status == DSR_OK ? dsr_encoder_create(w->context, &w->encoder) : status;
}

static void close_work(work *w)
{
    dsr_encoder_destroy(w->encoder);
    dsr_buffer_destroy(w->source);
    dsr_buffer_destroy(w->middle);
    dsr_buffer_destroy(w->scaled);
    dsr_buffer_destroy(w->result);
    dsr_context_destroy(w->context);
}

/* A fatbin's header, and 64 bytes of what it says is there. */
static const uint8_t fatbin[80] = {0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0, 64};

static dsr_device_kernel_desc device_kernel(void)
{
    dsr_device_kernel_desc desc = DSR_DEVICE_KERNEL_DESC_INIT;
    desc.name = "scale";
    desc.code = fatbin;
    desc.code_bytes = sizeof fatbin;
    desc.entry = "scale_f32";
    return desc;
}

typedef struct scale_params {
    float factor;
    uint32_t n;
    uint32_t unused;
} scale_params;

/* The descriptor holds pointers into statics: one at a time. */
static dsr_kernel_desc call_of(const work *w, float factor)
{
    static const dsr_access access[2] = {DSR_ACCESS_READ, DSR_ACCESS_WRITE};
    static dsr_view views[2];
    static scale_params params;
    views[0] = dsr_view_slice(dsr_view_whole(w->middle, DSR_DTYPE_F32), 0, 16);
    views[1] = dsr_view_slice(dsr_view_whole(w->scaled, DSR_DTYPE_F32), 8, 16);
    params = (scale_params){factor, 16, 7};
    dsr_kernel_desc desc = DSR_KERNEL_DESC_INIT;
    desc.name = "scale";
    desc.n_views = 2;
    desc.views = views;
    desc.access = access;
    desc.params = &params;
    desc.params_bytes = sizeof params;
    desc.grid[0] = 3, desc.grid[1] = 2, desc.grid[2] = 1;
    desc.block[0] = 64, desc.block[1] = 4, desc.block[2] = 1;
    desc.shared_bytes = 1000;
    return desc;
}

static dsr_status encode_copy(work *w, dsr_buffer *from, dsr_buffer *to)
{
    dsr_copy_row row;
    memset(&row, 0, sizeof row);
    row.destination = dsr_view_whole(to, DSR_DTYPE_BF16);
    dsr_copy_desc desc = DSR_COPY_DESC_INIT;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.row_elements = 64;
    desc.source = dsr_view_whole(from, DSR_DTYPE_BF16);
    return dsr_encode_copy(w->encoder, &desc);
}

static dsr_status encode_all(work *w, float factor)
{
    const dsr_kernel_desc call = call_of(w, factor);
    dsr_status status = encode_copy(w, w->source, w->middle);
    if (status == DSR_OK)
        status = dsr_encode_kernel(w->encoder, &call);
    return status == DSR_OK ? encode_copy(w, w->scaled, w->result) : status;
}

/* Everything a user does once; stops at the first failure. */
static dsr_status run_all(work *w, const dsr_device_kernel_desc *desc)
{
    dsr_status status = open_work(w);
    if (status == DSR_OK)
        status = dsr_registry_add_device_kernel(w->context, desc);
    if (status == DSR_OK)
        status = encode_all(w, 2);
    if (status == DSR_OK)
        status = dsr_encoder_submit(w->encoder);
    if (status == DSR_OK)
        status = dsr_encoder_wait(w->encoder);
    if (status == DSR_OK)
        status = dsr_encoder_replay(w->encoder);
    return status == DSR_OK ? dsr_encoder_wait(w->encoder) : status;
}

/* The fakes keep the arguments of the last launch or node of a kernel that is not the library's. */
static void assert_arguments(const work *w, float factor)
{
    const uint64_t views[2] = {(uintptr_t)dsr_buffer_data(w->middle), (uintptr_t)dsr_buffer_data(w->scaled) + 32};
    const scale_params params = {factor, 16, 7};
    assert_memory_equal(cuda->last_arguments[0], &views[0], 8);
    assert_memory_equal(cuda->last_arguments[1], &views[1], 8);
    assert_memory_equal(cuda->last_arguments[2], &params, sizeof params);
}

static int collect(void *user, const char *text, size_t n_bytes)
{
    strncat(user, text, n_bytes);
    return 0;
}

static void test_runs_between_ours(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    static char text[8192];
    const dsr_device_kernel_desc desc = device_kernel();
    assert_int_equal(run_all(&w, &desc), DSR_OK);
    assert_memory_equal(cuda->last_image, fatbin, 64);
    assert_int_equal(cuda->n_instantiated, 1);
    assert_int_equal(cuda->n_launches, 6);
    assert_arguments(&w, 2);
    dsr_command_info info = {.struct_size = sizeof info};
    assert_int_equal(dsr_encoder_command(w.encoder, 1, &info), DSR_OK);
    assert_string_equal(info.op, "custom");
    assert_string_equal(info.kernels[0], "scale");
    assert_int_equal(info.n_kernels, 1);
    assert_int_equal(info.grid[0], 6);
    assert_int_equal(info.n_depends_on, 1);
    assert_int_equal(dsr_encoder_command(w.encoder, 2, &info), DSR_OK);
    assert_int_equal(info.n_depends_on, 1);
    assert_int_equal(info.depends_on[0], 1);
    text[0] = '\0';
    assert_int_equal(dsr_encoder_capture(w.encoder, DSR_CAPTURE_JSON, collect, text), DSR_OK);
    assert_non_null(strstr(text, "{\"name\": \"scale\", \"grid\": 6}"));
    const uint32_t n_kernels = dsr_registry_n_kernels(w.context);
    assert_string_equal(dsr_registry_kernel_name(w.context, n_kernels - 1), "scale");
    close_work(&w);
    assert_int_equal(cuda->n_allocations, 0);
    assert_int_equal(cuda->push_depth, 0);
}

/* The call alone, so that it is the last node that the fake sees. */
static void test_launch_and_updates(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    const dsr_device_kernel_desc desc = device_kernel();
    assert_int_equal(open_work(&w), DSR_OK);
    assert_int_equal(dsr_registry_add_device_kernel(w.context, &desc), DSR_OK);
    for (uint32_t step = 0; step < 3; step++) {
        dsr_kernel_desc call = call_of(&w, (float)step);
        call.grid[2] += step;
        assert_int_equal(dsr_encoder_reset(w.encoder), DSR_OK);
        assert_int_equal(dsr_encode_kernel(w.encoder, &call), DSR_OK);
        assert_int_equal(dsr_encoder_submit(w.encoder), DSR_OK);
        assert_memory_equal(cuda->last_grid, call.grid, sizeof call.grid);
        assert_memory_equal(cuda->last_block, call.block, sizeof call.block);
        assert_int_equal(cuda->last_shared_bytes, 1000);
        assert_arguments(&w, (float)step);
        assert_int_equal(cuda->n_instantiated, 1);
        assert_int_equal(cuda->n_updates, step);
    }
    int stream;
    assert_int_equal(dsr_encoder_set_stream(w.encoder, &stream), DSR_OK);
    cuda->is_capturing = 1;
    const uint32_t n_launches = cuda->n_launches;
    assert_int_equal(dsr_encoder_replay(w.encoder), DSR_OK);
    assert_int_equal(cuda->n_launches, n_launches + 1);
    assert_ptr_equal(cuda->last_stream, &stream);
    assert_int_equal(cuda->last_block[1], 4);
    assert_int_equal(cuda->n_instantiated, 1);
    cuda->is_capturing = 0;
    close_work(&w);
}

/* A second kernel of the same code is another function: the graph is made anew. */
static void test_without_parameters(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    cuda->n_params = 0;
    dsr_device_kernel_desc desc = device_kernel();
    assert_int_equal(open_work(&w), DSR_OK);
    assert_int_equal(dsr_registry_add_device_kernel(w.context, &desc), DSR_OK);
    desc.name = "again";
    desc.entry = "again";
    assert_int_equal(dsr_registry_add_device_kernel(w.context, &desc), DSR_OK);
    dsr_kernel_desc call = DSR_KERNEL_DESC_INIT;
    for (uint32_t i = 0; i < 2; i++) {
        call.name = i ? "again" : "scale";
        for (int d = 0; d < 3; d++)
            call.grid[d] = call.block[d] = 1;
        assert_int_equal(dsr_encoder_reset(w.encoder), DSR_OK);
        assert_int_equal(dsr_encode_kernel(w.encoder, &call), DSR_OK);
        assert_int_equal(dsr_encoder_submit(w.encoder), DSR_OK);
        assert_int_equal(cuda->n_instantiated, i + 1);
    }
    close_work(&w);
}

static void refuse(dsr_context *context, dsr_device_kernel_desc desc, dsr_status status)
{
    const uint32_t n_kernels = dsr_registry_n_kernels(context);
    assert_int_equal(dsr_registry_add_device_kernel(context, &desc), status);
    assert_int_not_equal(strlen(dsr_context_error_text(context)), 0);
    assert_int_equal(dsr_registry_n_kernels(context), n_kernels);
}

static void test_registrations_refused(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    const char *options[1] = {NULL};
    assert_int_equal(open_work(&w), DSR_OK);
    const dsr_device_kernel_desc good = device_kernel();
    dsr_device_kernel_desc desc;
    assert_int_equal(dsr_registry_add_device_kernel(NULL, &good), DSR_ERR_NULL);
    assert_int_equal(dsr_registry_add_device_kernel(w.context, NULL), DSR_ERR_NULL);
    desc = good, desc.struct_size--, refuse(w.context, desc, DSR_ERR_STRUCT_SIZE);
    desc = good, desc.name = NULL, refuse(w.context, desc, DSR_ERR_NULL);
    desc = good, desc.name = "a b", refuse(w.context, desc, DSR_ERR_NAME);
    desc = good, desc.name = dsr_registry_kernel_name(w.context, 0), refuse(w.context, desc, DSR_ERR_NAME);
    desc = good, desc.code = NULL, refuse(w.context, desc, DSR_ERR_NULL);
    desc = good, desc.entry = NULL, refuse(w.context, desc, DSR_ERR_NULL);
    desc = good, desc.entry = "", refuse(w.context, desc, DSR_ERR_NAME);
    desc = good, desc.kind = (dsr_code_kind)3, refuse(w.context, desc, DSR_ERR_ENUM);
    desc = good, desc.code_bytes = 0, refuse(w.context, desc, DSR_ERR_VALUE);
    desc = good, desc.code_bytes = (1u << 30) + 1, refuse(w.context, desc, DSR_ERR_VALUE);
    desc = good, desc.n_options = 1, refuse(w.context, desc, DSR_ERR_NULL);
    desc.options = options, refuse(w.context, desc, DSR_ERR_VALUE);
    desc.kind = DSR_CODE_CUDA_C, refuse(w.context, desc, DSR_ERR_NULL);
    assert_int_equal(dsr_registry_add_device_kernel(w.context, &good), DSR_OK);
    refuse(w.context, good, DSR_ERR_NAME); /* taken */
    cuda->n_params = 34;
    desc = good, desc.name = "many", refuse(w.context, desc, DSR_ERR_VALUE);
    close_work(&w);
    dsr_context *cpu = NULL;
    assert_int_equal(dsr_context_create(NULL, &cpu), DSR_OK);
    refuse(cpu, good, DSR_ERR_UNSUPPORTED_DEVICE);
    dsr_context_destroy(cpu);
}

/* An ELF file of two sections, the second without bytes in the file. */
static void make_cubin(uint8_t elf[256])
{
    memset(elf, 0, 256);
    memcpy(elf, "\177ELF\2\1", 6);
    elf[40] = 128; /* where the sections' table is */
    elf[58] = 64;
    elf[60] = 2;
    elf[128 + 4] = 1;
    elf[128 + 24] = 64;
    elf[128 + 32] = 64;
    elf[192 + 4] = 8;
    elf[192 + 35] = 1; /* long, but not there */
}

static void test_truncated_binaries(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    uint8_t elf[256];
    make_cubin(elf);
    assert_int_equal(open_work(&w), DSR_OK);
    dsr_device_kernel_desc desc = device_kernel();
    for (uint64_t n = 1; n < sizeof fatbin; n++)
        desc.code_bytes = n, refuse(w.context, desc, DSR_ERR_FORMAT);
    desc.code = elf;
    for (uint64_t n = 1; n < sizeof elf; n++)
        desc.code_bytes = n, refuse(w.context, desc, DSR_ERR_FORMAT);
    desc.code_bytes = sizeof elf;
    elf[128 + 32] = 193, refuse(w.context, desc, DSR_ERR_FORMAT); /* past the end by a byte */
    elf[128 + 32] = 192;
    elf[128 + 31] = 0xff, refuse(w.context, desc, DSR_ERR_FORMAT);
    elf[128 + 31] = 0;
    elf[47] = 0xff, refuse(w.context, desc, DSR_ERR_FORMAT);
    elf[47] = 0;
    assert_int_equal(dsr_registry_add_device_kernel(w.context, &desc), DSR_OK);
    close_work(&w);
}

static void test_large_blocks_of_shared_memory(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    assert_int_equal(open_work(&w), DSR_OK);
    dsr_device_kernel_desc desc = device_kernel();
    desc.max_shared_bytes = 100000;
    assert_int_equal(dsr_registry_add_device_kernel(w.context, &desc), DSR_OK);
    assert_int_equal(cuda->max_dynamic_bytes, 100000);
    dsr_kernel_desc call = call_of(&w, 1);
    call.shared_bytes = 100001;
    assert_int_equal(dsr_encode_kernel(w.encoder, &call), DSR_ERR_VALUE);
    call.shared_bytes = 100000;
    assert_int_equal(dsr_encode_kernel(w.encoder, &call), DSR_OK);
    cuda->fail_at = cuda->n_calls + 5; /* push, load, entry, attribute, and the wish for shared memory */
    cuda->fail_with = 1;
    desc.name = "more";
    refuse(w.context, desc, DSR_ERR_VALUE);
    close_work(&w);
}

static void refuse_call(const work *w, dsr_kernel_desc desc, dsr_status status)
{
    assert_int_equal(dsr_encode_kernel(w->encoder, &desc), status);
    assert_int_equal(dsr_encoder_n_commands(w->encoder), 0);
}

static void test_calls_refused(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    const dsr_device_kernel_desc kernel = device_kernel();
    assert_int_equal(open_work(&w), DSR_OK);
    cuda->max_threads = 512;
    assert_int_equal(dsr_registry_add_device_kernel(w.context, &kernel), DSR_OK);
    const dsr_kernel_desc good = call_of(&w, 1);
    dsr_kernel_desc desc;
    desc = good, desc.name = "unknown", refuse_call(&w, desc, DSR_ERR_NAME);
    desc = good, desc.n_tasks = 1, refuse_call(&w, desc, DSR_ERR_VALUE);
    for (int d = 0; d < 3; d++) {
        desc = good, desc.grid[d] = 0, refuse_call(&w, desc, DSR_ERR_VALUE);
        desc = good, desc.grid[d] = d ? 65536 : 0x80000000u, refuse_call(&w, desc, DSR_ERR_VALUE);
        desc = good, desc.block[d] = 0, refuse_call(&w, desc, DSR_ERR_VALUE);
        desc = good, desc.block[d] = d < 2 ? 1025 : 65, refuse_call(&w, desc, DSR_ERR_VALUE);
    }
    desc = good, desc.grid[0] = desc.grid[1] = 65535, desc.grid[2] = 2, refuse_call(&w, desc, DSR_ERR_OVERFLOW);
    desc = good, desc.block[0] = 257, refuse_call(&w, desc, DSR_ERR_VALUE);     /* 1,028 threads */
    desc = good, desc.block[0] = 128 + 1, refuse_call(&w, desc, DSR_ERR_VALUE); /* 516, more than the code takes */
    desc = good, desc.shared_bytes = 48 * 1024 + 1, refuse_call(&w, desc, DSR_ERR_VALUE);
    desc = good, desc.n_views = 1, refuse_call(&w, desc, DSR_ERR_VALUE);
    desc = good, desc.params_bytes = 0, refuse_call(&w, desc, DSR_ERR_VALUE);
    desc = good, desc.params_bytes = 8, refuse_call(&w, desc, DSR_ERR_SIZE);
    desc = good, desc.views = NULL, refuse_call(&w, desc, DSR_ERR_NULL);
    desc = good, desc.block[0] = 128;
    assert_int_equal(dsr_encode_kernel(w.encoder, &desc), DSR_OK);
    close_work(&w);
}

/* A kernel whose first parameter is no pointer; and calls in the other device's words. */
static void test_parameter_sizes_and_kinds(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    const dsr_device_kernel_desc kernel = device_kernel();
    assert_int_equal(open_work(&w), DSR_OK);
    cuda->params_bytes[0] = 4;
    assert_int_equal(dsr_registry_add_device_kernel(w.context, &kernel), DSR_OK);
    refuse_call(&w, call_of(&w, 1), DSR_ERR_SIZE);
    close_work(&w);
}

static const char ptx[] = ".version 8.0\n.target sm_80\n.visible .entry scale_f32() { ret; }\n";

static void test_ptx(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    dsr_device_kernel_desc desc = device_kernel();
    desc.kind = DSR_CODE_PTX;
    desc.code = ptx;
    desc.code_bytes = sizeof ptx - 1;
    assert_int_equal(run_all(&w, &desc), DSR_OK);
    assert_memory_equal(cuda->last_image, ptx, 64);
    desc.name = "bad";
    cuda->module_log = "ptxas application ptx input, line 3; fatal: Parsing error\nptxas fatal : aborted";
    refuse(w.context, desc, DSR_ERR_FORMAT);
    assert_non_null(strstr(dsr_context_error_text(w.context), "Parsing error"));
    assert_string_equal(logged, "ptxas application ptx input, line 3; fatal: Parsing error|ptxas fatal : aborted|");
    close_work(&w);
}

static const char source[] = "extern \"C\" __global__ void scale_f32(const float *x, float *y, params p) {}";

static dsr_device_kernel_desc source_kernel(void)
{
    dsr_device_kernel_desc desc = device_kernel();
    desc.kind = DSR_CODE_CUDA_C;
    desc.code = source;
    desc.code_bytes = sizeof source - 1;
    return desc;
}

static void test_cuda_c(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    const char *options[2] = {"-DN=3", "--use_fast_math"};
    dsr_device_kernel_desc desc = source_kernel();
    assert_int_equal(run_all(&w, &desc), DSR_OK);
    assert_string_equal(nvrtc->source, source);
    assert_memory_equal(cuda->last_image, FAKE_NVRTC_IMAGE, sizeof FAKE_NVRTC_IMAGE);
    assert_int_equal(nvrtc->n_options, 1);
    assert_string_equal(nvrtc->options[0], "--gpu-architecture=sm_90");
    desc.name = "with_options";
    desc.options = options;
    desc.n_options = 2;
    assert_int_equal(dsr_registry_add_device_kernel(w.context, &desc), DSR_OK);
    assert_int_equal(nvrtc->n_options, 3);
    assert_string_equal(nvrtc->options[1], "-DN=3");
    assert_string_equal(nvrtc->options[2], "--use_fast_math");
    options[0] = "--gpu-architecture=sm_90a"; /* the caller's word */
    desc.name = "with_architecture";
    assert_int_equal(dsr_registry_add_device_kernel(w.context, &desc), DSR_OK);
    assert_int_equal(nvrtc->n_options, 2);
    assert_string_equal(nvrtc->options[0], "--gpu-architecture=sm_90a");
    close_work(&w);
    assert_int_equal(nvrtc->n_programs, 0);
}

static void test_cuda_c_that_does_not_compile(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    static const char bad[] = "#error no";
    dsr_device_kernel_desc desc = source_kernel();
    desc.code = bad;
    desc.code_bytes = sizeof bad - 1;
    assert_int_equal(open_work(&w), DSR_OK);
    refuse(w.context, desc, DSR_ERR_FORMAT);
    assert_non_null(strstr(dsr_context_error_text(w.context), "mine(1): error: #error directive"));
    assert_string_equal(logged, "mine(1): error: #error directive|1 error detected in the compilation of \"mine\".|");
    close_work(&w);
}

static void test_every_compiler_call_may_fail(void **state)
{
    (void)state;
    skip_unless_built();
    static const struct {
        int result;
        dsr_status status;
    } failures[] = {{1, DSR_ERR_OUT_OF_MEMORY}, {6, DSR_ERR_FORMAT}, {11, DSR_ERR_DEVICE}};
    work w;
    const dsr_device_kernel_desc desc = source_kernel();
    assert_int_equal(open_work(&w), DSR_OK);
    for (size_t f = 0; f < sizeof failures / sizeof failures[0]; f++)
        for (uint32_t fail_at = 1; fail_at <= 4; fail_at++) { /* create, compile, size, image */
            nvrtc->n_calls = 0;
            nvrtc->fail_at = fail_at;
            nvrtc->fail_with = failures[f].result;
            refuse(w.context, desc, failures[f].status);
            assert_int_equal(nvrtc->n_programs, 0);
        }
    nvrtc->fail_at = 0;
    assert_int_equal(dsr_registry_add_device_kernel(w.context, &desc), DSR_OK);
    close_work(&w);
}

static void test_without_a_compiler(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    dsr_device_kernel_desc desc = source_kernel();
    assert_int_equal(open_work(&w), DSR_OK);
    setenv("DSR_NVRTC", "/nonexistent/libnvrtc.so", 1);
    refuse(w.context, desc, DSR_ERR_UNSUPPORTED_DEVICE);
    assert_non_null(strstr(dsr_context_error_text(w.context), "/nonexistent/libnvrtc.so"));
    setenv("DSR_NVRTC", FAKE_CUDA_LIBRARY, 1); /* a library without the functions */
    refuse(w.context, desc, DSR_ERR_UNSUPPORTED_DEVICE);
    setenv("DSR_NVRTC", FAKE_NVRTC_LIBRARY, 1);
    assert_int_equal(dsr_registry_add_device_kernel(w.context, &desc), DSR_OK);
    close_work(&w);
}

static void test_every_driver_call_may_fail(void **state)
{
    (void)state;
    skip_unless_built();
    static const int errors[] = {2, 999, 700};
    const dsr_device_kernel_desc desc = source_kernel();
    for (size_t e = 0; e < sizeof errors / sizeof errors[0]; e++) {
        uint32_t n_calls = 1;
        for (uint32_t fail_at = 1; fail_at <= n_calls; fail_at++) {
            reset_fakes();
            cuda->fail_at = fail_at;
            cuda->fail_with = errors[e];
            work w;
            const dsr_status status = run_all(&w, &desc);
            const uint32_t n_made = cuda->n_calls;
            assert_int_equal(status == DSR_OK, n_made < fail_at);
            if (status != DSR_OK && w.context != NULL && errors[e] != 2)
                assert_int_equal(status, errors[e] == 700 ? DSR_ERR_DEVICE_LOST : DSR_ERR_DEVICE);
            close_work(&w);
            assert_int_equal(cuda->push_depth, 0);
            assert_int_equal(nvrtc->n_programs, 0);
            n_calls = n_made >= fail_at ? n_made + 1 : 0;
        }
    }
}

/* The real compiler needs no device: what it makes is a cubin, which the library hands on. */
static void test_the_real_compiler(void **state)
{
    (void)state;
    skip_unless_built();
    static const char *const libraries[] = {"libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so"};
    static const char text[] = "struct params { float factor; unsigned n, unused; };\n"
                               "extern \"C\" __global__ void scale_f32(const float *x, float *y, params p)\n"
                               "{\n"
                               "    if (threadIdx.x < p.n)\n"
                               "        y[threadIdx.x] = p.factor * x[threadIdx.x];\n"
                               "}\n";
    uint32_t i = 0;
    while (i < 3 && dlopen(libraries[i], RTLD_NOW) == NULL)
        i++;
    if (i == 3)
        skip();
    work w;
    dsr_device_kernel_desc desc = source_kernel();
    desc.code = text;
    desc.code_bytes = sizeof text - 1;
    setenv("DSR_NVRTC", libraries[i], 1);
    const dsr_status status = run_all(&w, &desc);
    desc.name = "cut_short";
    desc.code_bytes -= 3;
    const dsr_status status_of_bad = dsr_registry_add_device_kernel(w.context, &desc);
    setenv("DSR_NVRTC", FAKE_NVRTC_LIBRARY, 1);
    assert_int_equal(status, DSR_OK);
    assert_memory_equal(cuda->last_image, "\177ELF", 4);
    assert_int_equal(status_of_bad, DSR_ERR_FORMAT);
    assert_non_null(strstr(logged, "error"));
    close_work(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_between_ours),
        cmocka_unit_test(test_launch_and_updates),
        cmocka_unit_test(test_without_parameters),
        cmocka_unit_test(test_registrations_refused),
        cmocka_unit_test(test_truncated_binaries),
        cmocka_unit_test(test_large_blocks_of_shared_memory),
        cmocka_unit_test(test_calls_refused),
        cmocka_unit_test(test_parameter_sizes_and_kinds),
        cmocka_unit_test(test_ptx),
        cmocka_unit_test(test_cuda_c),
        cmocka_unit_test(test_cuda_c_that_does_not_compile),
        cmocka_unit_test(test_every_compiler_call_may_fail),
        cmocka_unit_test(test_without_a_compiler),
        cmocka_unit_test(test_every_driver_call_may_fail),
        cmocka_unit_test(test_the_real_compiler),
    };
    return cmocka_run_group_tests(tests, load_fakes, NULL);
}
