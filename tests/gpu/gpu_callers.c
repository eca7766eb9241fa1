/* What a caller brings of its own to a CUDA device: kernels, streams, captures, a current context, several contexts. A
 * plain program, for machines that have nothing else:
 *   dsrows_gpu_callers [FATBIN]
 * FATBIN is scale.cu compiled. Exit 0 if all is as it should be, 1 if not, 77 if there is no device. */
#include <dsrows/dsrows.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_ROWS = 8, N_ELEMENTS = 1024, N = N_ROWS * N_ELEMENTS, MAX_FATBIN_BYTES = 1 << 20 };

static int n_failed;

static int expect_at(int is_so, const char *what, int line)
{
    if (!is_so)
        printf("FAIL line %d: %s\n", line, what);
    n_failed += !is_so;
    return is_so;
}
#define expect(condition, what) expect_at(condition, what, __LINE__)

static void must_be_ok(dsr_context *context, dsr_status status, int line)
{
    if (status != DSR_OK) {
        printf("FAIL line %d: %s: %s\n", line, dsr_status_name(status),
               context ? dsr_context_error_text(context) : dsr_create_error_text());
        exit(1);
    }
}
#define must(context, call) must_be_ok(context, call, __LINE__)

/* ---- the driver, as a caller uses it ---------------------------------------------------------------------- */

static struct driver {
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_synchronize)(void *stream);
    int (*begin_capture)(void *stream, int mode);
    int (*end_capture)(void *stream, void **graph);
    int (*instantiate)(void **executable, void *graph, unsigned long long flags);
    int (*launch)(void *executable, void *stream);
    int (*executable_destroy)(void *executable);
    int (*graph_destroy)(void *graph);
    int (*retain)(void **context, int device);
    int (*create)(void **context, unsigned flags, int device);
    int (*destroy)(void *context);
    int (*set_current)(void *context);
    int (*get_current)(void **context);
} driver;

static void find(void *library, const char *name, void *function)
{
    void *address = dlsym(library, name);
    if (address == NULL) {
        printf("skipped: the driver has no %s\n", name);
        exit(77);
    }
    memcpy(function, &address, sizeof address);
}

static void open_driver(void)
{
    const char *path = getenv("DSR_CUDA_DRIVER");
    void *library = dlopen(path && path[0] ? path : "libcuda.so.1", RTLD_NOW);
    if (library == NULL || dsr_device_count(DSR_DEVICE_CUDA) == 0) {
        printf("skipped: no CUDA device\n");
        exit(77);
    }
    find(library, "cuStreamCreate", &driver.stream_create);
    find(library, "cuStreamDestroy_v2", &driver.stream_destroy);
    find(library, "cuStreamSynchronize", &driver.stream_synchronize);
    find(library, "cuStreamBeginCapture_v2", &driver.begin_capture);
    find(library, "cuStreamEndCapture", &driver.end_capture);
    find(library, "cuGraphInstantiateWithFlags", &driver.instantiate);
    find(library, "cuGraphLaunch", &driver.launch);
    find(library, "cuGraphExecDestroy", &driver.executable_destroy);
    find(library, "cuGraphDestroy", &driver.graph_destroy);
    find(library, "cuDevicePrimaryCtxRetain", &driver.retain);
    find(library, "cuCtxCreate_v2", &driver.create);
    find(library, "cuCtxDestroy_v2", &driver.destroy);
    find(library, "cuCtxSetCurrent", &driver.set_current);
    find(library, "cuCtxGetCurrent", &driver.get_current);
}

/* ---- kernels ---------------------------------------------------------------------------------------------- */

static const char cuda_c[] = "extern \"C\" __global__ void scale_f32(const float *x, float *y, float factor)\n"
                             "{\n"
                             "    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                             "    y[i] = factor * x[i];\n"
                             "}\n";

static const char ptx[] = ".version 7.0\n"
                          ".target sm_80\n"
                          ".address_size 64\n"
                          ".visible .entry scale_f32(.param .u64 x, .param .u64 y, .param .f32 factor)\n"
                          "{\n"
                          "    .reg .f32 %f<3>;\n"
                          "    .reg .b32 %r<5>;\n"
                          "    .reg .b64 %d<6>;\n"
                          "    ld.param.u64 %d1, [x];\n"
                          "    ld.param.u64 %d2, [y];\n"
                          "    ld.param.f32 %f1, [factor];\n"
                          "    mov.u32 %r1, %ctaid.x;\n"
                          "    mov.u32 %r2, %ntid.x;\n"
                          "    mov.u32 %r3, %tid.x;\n"
                          "    mad.lo.u32 %r4, %r1, %r2, %r3;\n"
                          "    mul.wide.u32 %d3, %r4, 4;\n"
                          "    add.u64 %d4, %d1, %d3;\n"
                          "    add.u64 %d5, %d2, %d3;\n"
                          "    ld.global.f32 %f2, [%d4];\n"
                          "    mul.rn.f32 %f2, %f2, %f1;\n"
                          "    st.global.f32 [%d5], %f2;\n"
                          "    ret;\n"
                          "}\n";

static dsr_device_kernel_desc kernel_of(const char *name, dsr_code_kind kind, const void *code, uint64_t code_bytes)
{
    dsr_device_kernel_desc desc = DSR_DEVICE_KERNEL_DESC_INIT;
    desc.name = name;
    desc.kind = kind;
    desc.code = code;
    desc.code_bytes = code_bytes;
    desc.entry = "scale_f32";
    return desc;
}

/* Rows gathered, scaled by a caller's kernel, and copied as bits: result = factor * rows. */
typedef struct work {
    dsr_context *context;
    dsr_encoder *encoder;
    dsr_buffer *rows, *gathered, *scaled, *result;
} work;

static void open_work(work *w, dsr_context *context)
{
    dsr_buffer **const buffers[4] = {&w->rows, &w->gathered, &w->scaled, &w->result};
    w->context = context;
    must(context, dsr_encoder_create(context, &w->encoder));
    for (int i = 0; i < 4; i++)
        must(context, dsr_buffer_create(context, N * sizeof(float), buffers[i]));
}

static void close_work(work *w)
{
    dsr_encoder_destroy(w->encoder);
    dsr_buffer_destroy(w->rows);
    dsr_buffer_destroy(w->gathered);
    dsr_buffer_destroy(w->scaled);
    dsr_buffer_destroy(w->result);
}

static void fill(const work *w, uint32_t seed)
{
    static float values[N];
    for (uint32_t i = 0; i < N; i++)
        values[i] = (float)((i * 2654435761u + seed * 97u) >> 20);
    must(w->context, dsr_buffer_write(w->rows, 0, values, sizeof values));
}

static int is_result(const work *w, uint32_t seed, float factor)
{
    static float values[N];
    must(w->context, dsr_buffer_read(w->result, 0, values, sizeof values));
    for (uint32_t i = 0; i < N; i++)
        if (values[i] != factor * (float)((i * 2654435761u + seed * 97u) >> 20))
            return 0;
    return 1;
}

static void encode(work *w, const char *kernel, float factor)
{
    dsr_view sources[N_ROWS];
    for (uint32_t r = 0; r < N_ROWS; r++)
        sources[r] = dsr_view_slice(dsr_view_whole(w->rows, DSR_DTYPE_F32), r * N_ELEMENTS, N_ELEMENTS);
    dsr_gather_desc gather = DSR_GATHER_DESC_INIT;
    gather.n_rows = N_ROWS;
    gather.sources = sources;
    gather.row_elements = N_ELEMENTS;
    gather.output = dsr_view_whole(w->gathered, DSR_DTYPE_F32);
    const dsr_view views[2] = {gather.output, dsr_view_whole(w->scaled, DSR_DTYPE_F32)};
    const dsr_access access[2] = {DSR_ACCESS_READ, DSR_ACCESS_WRITE};
    dsr_kernel_desc call = DSR_KERNEL_DESC_INIT;
    call.name = kernel;
    call.n_views = 2;
    call.views = views;
    call.access = access;
    call.params = &factor;
    call.params_bytes = sizeof factor;
    call.grid[0] = N / 256, call.grid[1] = 1, call.grid[2] = 1;
    call.block[0] = 256, call.block[1] = 1, call.block[2] = 1;
    dsr_copy_row row;
    memset(&row, 0, sizeof row);
    row.destination = dsr_view_whole(w->result, DSR_DTYPE_F32);
    dsr_copy_desc copy = DSR_COPY_DESC_INIT;
    copy.n_rows = 1;
    copy.rows = &row;
    copy.row_elements = N;
    copy.source = views[1];
    must(w->context, dsr_encode_gather(w->encoder, &gather));
    must(w->context, dsr_encode_kernel(w->encoder, &call));
    must(w->context, dsr_encode_copy(w->encoder, &copy));
}

/* As a graph of ours: submit, replay on new data, a new factor without a new graph. */
static void check_graph(dsr_context *context, const char *kernel)
{
    work w;
    open_work(&w, context);
    for (uint32_t step = 0; step < 3; step++) {
        must(context, dsr_encoder_reset(w.encoder));
        encode(&w, kernel, 0.5f + (float)step);
        fill(&w, step);
        must(context, dsr_encoder_submit(w.encoder));
        expect(is_result(&w, step, 0.5f + (float)step), kernel);
        fill(&w, step + 10);
        must(context, dsr_encoder_replay(w.encoder));
        must(context, dsr_encoder_wait(w.encoder));
        expect(is_result(&w, step + 10, 0.5f + (float)step), "replay on new data");
    }
    close_work(&w);
}

/* In the caller's stream, and as part of a graph that the caller captures and launches as often as it likes. */
static void check_stream(dsr_context *context, const char *kernel)
{
    work w;
    void *stream, *graph, *executable;
    open_work(&w, context);
    expect(driver.stream_create(&stream, 1) == 0, "a stream");
    must(context, dsr_encoder_set_stream(w.encoder, stream));
    encode(&w, kernel, 3);
    fill(&w, 1);
    must(context, dsr_encoder_submit(w.encoder));
    expect(driver.stream_synchronize(stream) == 0 && is_result(&w, 1, 3), "in the caller's stream");
    must(context, dsr_encoder_wait(w.encoder));
    expect(driver.begin_capture(stream, 2) == 0, "begin of a capture");
    must(context, dsr_encoder_replay(w.encoder));
    expect(driver.end_capture(stream, &graph) == 0 && driver.instantiate(&executable, graph, 0) == 0, "a capture");
    for (uint32_t seed = 2; seed < 4; seed++) {
        fill(&w, seed);
        expect(driver.launch(executable, stream) == 0 && driver.stream_synchronize(stream) == 0, "launch");
        expect(is_result(&w, seed, 3), "in the caller's graph");
    }
    expect(driver.executable_destroy(executable) == 0 && driver.graph_destroy(graph) == 0, "end of a graph");
    must(context, dsr_encoder_set_stream(w.encoder, NULL));
    close_work(&w);
    expect(driver.stream_destroy(stream) == 0, "end of a stream");
}

static dsr_status open_context(uint32_t device, void *cuda_context, dsr_context **context)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    desc.device = DSR_DEVICE_CUDA;
    desc.device_index = device;
    desc.cuda_context = cuda_context;
    return dsr_context_create(&desc, context);
}

/* The current context is the caller's before and after every kind of call; and a context of ours works in it. */
static void check_current(dsr_context *context, const char *kernel)
{
    const dsr_device_kernel_desc scale = kernel_of("in_own", DSR_CODE_PTX, ptx, sizeof ptx - 1);
    dsr_context *inside = NULL;
    void *own = NULL, *now = NULL;
    work w;
    if (!expect(driver.create(&own, 0, 0) == 0, "a context of the caller's"))
        return;
    open_work(&w, context);
    encode(&w, kernel, 2);
    fill(&w, 7);
    must(context, dsr_encoder_submit(w.encoder));
    expect(is_result(&w, 7, 2), "under another current context");
    close_work(&w);
    expect(driver.get_current(&now) == 0 && now == own, "the current context stays");
    must(NULL, open_context(0, own, &inside));
    must(inside, dsr_registry_add_device_kernel(inside, &scale));
    check_graph(inside, "in_own");
    check_stream(inside, "in_own");
    dsr_context_destroy(inside);
    expect(driver.destroy(own) == 0, "end of a context");
}

/* Two contexts, on two devices where there are two, each with several encoders in flight at once. */
static void check_many(void)
{
    enum { N_CONTEXTS = 2, N_ENCODERS = 6 };
    const uint32_t n_devices = dsr_device_count(DSR_DEVICE_CUDA);
    const dsr_device_kernel_desc kernel = kernel_of("scale", DSR_CODE_PTX, ptx, sizeof ptx - 1);
    dsr_context *contexts[N_CONTEXTS];
    work w[N_CONTEXTS][N_ENCODERS];
    for (uint32_t c = 0; c < N_CONTEXTS; c++) {
        must(NULL, open_context(c % n_devices, NULL, &contexts[c]));
        must(contexts[c], dsr_registry_add_device_kernel(contexts[c], &kernel));
        for (uint32_t e = 0; e < N_ENCODERS; e++) {
            open_work(&w[c][e], contexts[c]);
            encode(&w[c][e], "scale", (float)(10 * c + e));
            fill(&w[c][e], c + e);
        }
    }
    for (int round = 0; round < 20; round++)
        for (uint32_t e = 0; e < N_ENCODERS; e++)
            for (uint32_t c = 0; c < N_CONTEXTS; c++)
                must(contexts[c], round ? dsr_encoder_replay(w[c][e].encoder) : dsr_encoder_submit(w[c][e].encoder));
    for (uint32_t c = 0; c < N_CONTEXTS; c++) {
        for (uint32_t e = 0; e < N_ENCODERS; e++) {
            must(contexts[c], dsr_encoder_wait(w[c][e].encoder));
            expect(is_result(&w[c][e], c + e, (float)(10 * c + e)), "one of many");
            close_work(&w[c][e]);
        }
        dsr_context_destroy(contexts[c]);
    }
}

static void check_refusals(dsr_context *context)
{
    static const char bad[] = ".version 7.0\n.target sm_80\n.address_size 64\n.entry scale_f32() { nonsense; }\n";
    dsr_device_kernel_desc kernel = kernel_of("bad", DSR_CODE_PTX, bad, sizeof bad - 1);
    expect(dsr_registry_add_device_kernel(context, &kernel) == DSR_ERR_FORMAT, "PTX that does not compile");
    printf("refused: %s\n", dsr_context_error_text(context));
    kernel = kernel_of("no_entry", DSR_CODE_PTX, ptx, sizeof ptx - 1);
    kernel.entry = "scale_f64";
    expect(dsr_registry_add_device_kernel(context, &kernel) == DSR_ERR_NAME, "an entry that is not there");
    kernel = kernel_of("large", DSR_CODE_PTX, ptx, sizeof ptx - 1);
    kernel.max_shared_bytes = 1 << 20;
    expect(dsr_registry_add_device_kernel(context, &kernel) == DSR_ERR_VALUE, "a megabyte of shared memory");
    work w;
    dsr_kernel_desc call = DSR_KERNEL_DESC_INIT;
    open_work(&w, context);
    call.name = "ptx";
    for (int i = 0; i < 3; i++)
        call.grid[i] = call.block[i] = 1;
    expect(dsr_encode_kernel(w.encoder, &call) == DSR_ERR_VALUE, "a call without its parameters");
    printf("refused: %s\n", dsr_context_error_text(context));
    close_work(&w);
}

static void check_kernel(dsr_context *context, const dsr_device_kernel_desc *kernel)
{
    must(context, dsr_registry_add_device_kernel(context, kernel));
    check_graph(context, kernel->name);
    check_stream(context, kernel->name);
    printf("%s: between ours, in a stream, in a capture\n", kernel->name);
}

static void check_fatbin(dsr_context *context, const char *path)
{
    static unsigned char bytes[MAX_FATBIN_BYTES];
    FILE *file = fopen(path, "rb");
    const size_t n_bytes = file ? fread(bytes, 1, sizeof bytes, file) : 0;
    const dsr_device_kernel_desc kernel = kernel_of("fatbin", DSR_CODE_BINARY, bytes, n_bytes);
    if (file)
        (void)fclose(file);
    check_kernel(context, &kernel);
}

int main(int argc, char **argv)
{
    dsr_context *context = NULL;
    void *primary = NULL, *now = &now;
    open_driver();
    must(NULL, open_context(0, NULL, &context));
    expect(driver.get_current(&now) == 0 && now == NULL, "no current context stays none");
    expect(driver.retain(&primary, 0) == 0 && driver.set_current(primary) == 0, "the primary context");
    dsr_device_kernel_desc kernel = kernel_of("ptx", DSR_CODE_PTX, ptx, sizeof ptx - 1);
    check_kernel(context, &kernel);
    if (argc > 1)
        check_fatbin(context, argv[1]);
    kernel = kernel_of("cuda_c", DSR_CODE_CUDA_C, cuda_c, sizeof cuda_c - 1);
    const dsr_status status = dsr_registry_add_device_kernel(context, &kernel);
    if (status == DSR_OK) {
        check_graph(context, "cuda_c");
        check_stream(context, "cuda_c");
    }
    printf("CUDA C: %s\n", status == DSR_OK ? "compiled by NVRTC, runs" : dsr_context_error_text(context));
    expect(status == DSR_OK || status == DSR_ERR_UNSUPPORTED_DEVICE, "CUDA C, or a clear word");
    check_refusals(context);
    check_many();
    check_current(context, "ptx");
    dsr_context_destroy(context);
    printf("callers' kernels, streams, captures and contexts: %s\n", n_failed ? "FAILED" : "as they should be");
    return n_failed != 0;
}
