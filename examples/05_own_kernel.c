/* A kernel of the caller's own between two of the library's: gather rows, scale them with our kernel, copy one of the
 * results into a cache. Nobody says what must wait for what: the encoder finds it from the bytes that commands touch.
 */
#include "example.h"

enum { N_ROWS = 4, N_ELEMENTS = 256 };

typedef struct scale_params {
    float factor;
    uint32_t row_elements;
} scale_params;

/* Called once per task, on any thread: task t scales row t of view 0, in place. */
static void scale_row(void *user, uint32_t task, uint32_t n_tasks, void *const *views, const void *params)
{
    const scale_params *p = params;
    float *row = (float *)views[0] + (size_t)task * p->row_elements;
    (void)user;
    (void)n_tasks;
    for (uint32_t i = 0; i < p->row_elements; i++) {
        row[i] *= p->factor;
    }
}

int main(void)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    desc.n_threads = 2;
    dsr_context *context = open_context(&desc);
    dsr_encoder *encoder = NULL;
    check(context, dsr_encoder_create(context, &encoder));
    check(context, dsr_registry_add_kernel(context, "scale_row", scale_row, NULL));

    dsr_view sources[N_ROWS];
    for (int r = 0; r < N_ROWS; r++) {
        sources[r] = new_view(context, N_ELEMENTS, DSR_DTYPE_F32);
        for (int i = 0; i < N_ELEMENTS; i++) {
            ((float *)data_of(sources[r]))[i] = (float)(r + 1);
        }
    }
    dsr_gather_desc gather = DSR_GATHER_DESC_INIT;
    gather.n_rows = N_ROWS;
    gather.sources = sources;
    gather.row_elements = N_ELEMENTS;
    gather.output = new_view(context, N_ROWS * N_ELEMENTS, DSR_DTYPE_F32);
    check(context, dsr_encode_gather(encoder, &gather));

    /* The access says what the kernel does with each view; the hazard rules rest on it. */
    const dsr_access access = DSR_ACCESS_READ_WRITE;
    const scale_params params = {0.5f, N_ELEMENTS};
    dsr_kernel_desc scale = DSR_KERNEL_DESC_INIT;
    scale.name = "scale_row";
    scale.n_tasks = N_ROWS;
    scale.n_views = 1;
    scale.views = &gather.output;
    scale.access = &access;
    scale.params = &params; /* copied */
    scale.params_bytes = sizeof params;
    check(context, dsr_encode_kernel(encoder, &scale));

    dsr_copy_row row = {.destination = new_view(context, N_ELEMENTS, DSR_DTYPE_F32), .source_row = 2};
    dsr_copy_desc copy = DSR_COPY_DESC_INIT;
    copy.n_rows = 1;
    copy.rows = &row;
    copy.row_elements = N_ELEMENTS;
    copy.source = gather.output;
    check(context, dsr_encode_copy(encoder, &copy));

    for (uint32_t i = 0; i < dsr_encoder_n_commands(encoder); i++) {
        dsr_command_info info = {.struct_size = sizeof info};
        check(context, dsr_encoder_command(encoder, i, &info));
        printf("command %u: %s, waits for %u of the earlier ones\n", (unsigned)i, info.kernels[0],
               (unsigned)info.n_depends_on);
    }
    check(context, dsr_encoder_submit(encoder));
    check(context, dsr_encoder_wait(encoder));
    const float result = ((const float *)data_of(row.destination))[N_ELEMENTS - 1];
    printf("3 * 0.5 = %g\n", (double)result);

    dsr_encoder_destroy(encoder);
    for (int r = 0; r < N_ROWS; r++) {
        dsr_buffer_destroy(sources[r].buffer);
    }
    dsr_buffer_destroy(gather.output.buffer);
    dsr_buffer_destroy(row.destination.buffer);
    dsr_context_destroy(context);
    return result != 1.5f;
}
