/* A CUDA kernel of the caller's own between two of the library's, as in 05_own_kernel.c: gather rows, scale them, copy
 * one of the results. NVRTC compiles the kernel here; a program would rather bring a cubin or PTX that nvcc made. Says
 * so and ends where there is no GPU or no NVRTC. */
#include "example.h"

enum { N_ROWS = 4, N_ELEMENTS = 256 };

/* One pointer for each view, then the params by value. */
static const char source[] = "struct scale_params { float factor; unsigned row_elements; };\n"
                             "extern \"C\" __global__ void scale_row(float *rows, scale_params p)\n"
                             "{\n"
                             "    float *row = rows + blockIdx.x * p.row_elements;\n"
                             "    for (unsigned i = threadIdx.x; i < p.row_elements; i += blockDim.x)\n"
                             "        row[i] *= p.factor;\n"
                             "}\n";

typedef struct scale_params {
    float factor;
    uint32_t row_elements;
} scale_params;

/* 1 if the kernel is there to be called. */
static int add_kernel(dsr_context *context)
{
    dsr_device_kernel_desc desc = DSR_DEVICE_KERNEL_DESC_INIT;
    desc.name = "scale_row";
    desc.kind = DSR_CODE_CUDA_C;
    desc.code = source;
    desc.code_bytes = sizeof source - 1;
    desc.entry = "scale_row";
    const dsr_status status = dsr_registry_add_device_kernel(context, &desc);
    if (status == DSR_ERR_UNSUPPORTED_DEVICE) {
        printf("skipped: %s\n", dsr_context_error_text(context));
        return 0;
    }
    check(context, status);
    return 1;
}

/* Gather, our kernel, copy of row 2: nobody says what must wait for what. */
static void encode_step(dsr_context *context, dsr_encoder *encoder, const dsr_view *sources, dsr_view gathered,
                        dsr_view result)
{
    dsr_gather_desc gather = DSR_GATHER_DESC_INIT;
    gather.n_rows = N_ROWS;
    gather.sources = sources;
    gather.row_elements = N_ELEMENTS;
    gather.output = gathered;
    check(context, dsr_encode_gather(encoder, &gather));

    const dsr_access access = DSR_ACCESS_READ_WRITE;
    const scale_params params = {0.5f, N_ELEMENTS};
    dsr_kernel_desc scale = DSR_KERNEL_DESC_INIT;
    scale.name = "scale_row";
    scale.n_views = 1;
    scale.views = &gathered;
    scale.access = &access;
    scale.params = &params; /* copied */
    scale.params_bytes = sizeof params;
    scale.grid[0] = N_ROWS, scale.grid[1] = 1, scale.grid[2] = 1;
    scale.block[0] = 128, scale.block[1] = 1, scale.block[2] = 1;
    check(context, dsr_encode_kernel(encoder, &scale));

    dsr_copy_row row = {.destination = result, .source_row = 2};
    dsr_copy_desc copy = DSR_COPY_DESC_INIT;
    copy.n_rows = 1;
    copy.rows = &row;
    copy.row_elements = N_ELEMENTS;
    copy.source = gathered;
    check(context, dsr_encode_copy(encoder, &copy));
}

static float run(dsr_context *context)
{
    dsr_encoder *encoder = NULL;
    dsr_view sources[N_ROWS];
    const dsr_view gathered = new_view(context, N_ROWS * N_ELEMENTS, DSR_DTYPE_F32);
    const dsr_view result = new_view(context, N_ELEMENTS, DSR_DTYPE_F32);
    float values[N_ELEMENTS];
    for (int r = 0; r < N_ROWS; r++) {
        sources[r] = new_view(context, N_ELEMENTS, DSR_DTYPE_F32);
        for (int i = 0; i < N_ELEMENTS; i++) {
            values[i] = (float)(r + 1);
        }
        check(context, dsr_buffer_write(sources[r].buffer, 0, values, sizeof values));
    }
    check(context, dsr_encoder_create(context, &encoder));
    encode_step(context, encoder, sources, gathered, result);
    check(context, dsr_encoder_submit(encoder));
    check(context, dsr_buffer_read(result.buffer, 0, values, sizeof values)); /* waits for the submit */
    dsr_encoder_destroy(encoder);
    for (int r = 0; r < N_ROWS; r++) {
        dsr_buffer_destroy(sources[r].buffer);
    }
    dsr_buffer_destroy(gathered.buffer);
    dsr_buffer_destroy(result.buffer);
    return values[N_ELEMENTS - 1];
}

int main(void)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    desc.device = DSR_DEVICE_CUDA;
    if (dsr_device_count(DSR_DEVICE_CUDA) == 0) {
        printf("skipped: no CUDA device, or no CUDA in this build of the library\n");
        return 0;
    }
    dsr_context *context = open_context(&desc);
    float result = 1.5f;
    if (add_kernel(context)) {
        result = run(context);
        printf("3 * 0.5 = %g\n", (double)result);
    }
    dsr_context_destroy(context);
    return result != 1.5f;
}
