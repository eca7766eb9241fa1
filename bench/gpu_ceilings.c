/* What a CUDA device can do at most: bytes read from memory, F32 multiply-adds, products of the matrix units as
 * mma.sync gives them. dsrows_gpu_ceilings FATBIN, where FATBIN is gpu_ceilings.cu compiled; its kernels are registered
 * and run as any caller's are. Least of many runs, each some milliseconds long. */
#include <dsrows/dsrows.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_FATBIN_BYTES = 1 << 20, N_RUNS = 20, N_BLOCKS = 132 * 16 };

static dsr_context *context;

static void check(dsr_status status, const char *what)
{
    if (status == DSR_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, dsr_status_name(status), dsr_context_error_text(context));
    exit(1);
}

static double seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void add_kernel(const char *name, const void *code, size_t n_bytes)
{
    dsr_device_kernel_desc desc = DSR_DEVICE_KERNEL_DESC_INIT;
    desc.name = name;
    desc.code = code;
    desc.code_bytes = n_bytes;
    desc.entry = name;
    check(dsr_registry_add_device_kernel(context, &desc), name);
}

/* Seconds of one run, at least. source may be null: the kernel takes what it writes to, and n. */
static double least_seconds(const char *name, dsr_buffer *source, dsr_buffer *out, uint32_t block, uint64_t n)
{
    const dsr_view views[2] = {dsr_view_whole(source, DSR_DTYPE_U8), dsr_view_whole(out, DSR_DTYPE_U8)};
    const dsr_access access[2] = {DSR_ACCESS_READ, DSR_ACCESS_WRITE};
    dsr_encoder *encoder;
    dsr_kernel_desc call = DSR_KERNEL_DESC_INIT;
    call.name = name;
    call.n_views = source ? 2 : 1;
    call.views = source ? views : views + 1;
    call.access = source ? access : access + 1;
    call.params = &n;
    call.params_bytes = sizeof n;
    call.grid[0] = N_BLOCKS, call.grid[1] = 1, call.grid[2] = 1;
    call.block[0] = block, call.block[1] = 1, call.block[2] = 1;
    check(dsr_encoder_create(context, &encoder), name);
    check(dsr_encode_kernel(encoder, &call), name);
    check(dsr_encoder_submit(encoder), name);
    check(dsr_encoder_wait(encoder), name);
    double least = 1e9;
    for (int i = 0; i < N_RUNS; i++) {
        const double begin = seconds();
        check(dsr_encoder_replay(encoder), name);
        check(dsr_encoder_wait(encoder), name);
        const double took = seconds() - begin;
        least = took < least ? took : least;
    }
    dsr_encoder_destroy(encoder);
    return least;
}

static void measure(void)
{
    const uint64_t n_bytes = (uint64_t)8 << 30, n = 16384;
    const double n_threads = (double)N_BLOCKS * 256;
    dsr_buffer *source, *out;
    check(dsr_buffer_create(context, n_bytes, &source), "buffer");
    check(dsr_buffer_create(context, 16, &out), "buffer");
    const double read = least_seconds("read_all", source, out, 512, n_bytes / 16);
    printf("reads of memory            %7.2f TB/s\n", 1e-12 * (double)n_bytes / read);
    const double f32 = least_seconds("multiply_add_f32", NULL, out, 256, n);
    printf("F32 multiply-adds          %7.1f TFLOP/s\n", 1e-12 * n_threads * 16 * 2 * (double)n / f32);
    const double bf16 = least_seconds("multiply_bf16", NULL, out, 256, n / 4);
    printf("BF16 products by mma.sync  %7.1f TFLOP/s\n", 1e-12 * n_threads / 32 * 8 * 4096 * (double)(n / 4) / bf16);
    const double s8 = least_seconds("multiply_s8", NULL, out, 256, n / 4);
    printf("INT8 products by mma.sync  %7.1f TOP/s\n", 1e-12 * n_threads / 32 * 8 * 8192 * (double)(n / 4) / s8);
    dsr_buffer_destroy(source);
    dsr_buffer_destroy(out);
}

int main(int argc, char **argv)
{
    static unsigned char code[MAX_FATBIN_BYTES];
    static const char *const kernels[] = {"read_all", "multiply_add_f32", "multiply_bf16", "multiply_s8"};
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    desc.device = DSR_DEVICE_CUDA;
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
    if (!file) {
        fprintf(stderr, "usage: dsrows_gpu_ceilings FATBIN\n");
        return 2;
    }
    const size_t n_bytes = fread(code, 1, sizeof code, file);
    (void)fclose(file);
    if (dsr_context_create(&desc, &context) != DSR_OK) {
        printf("skipped: %s\n", dsr_create_error_text());
        return 77;
    }
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        add_kernel(kernels[i], code, n_bytes);
    measure();
    dsr_context_destroy(context);
    return 0;
}
