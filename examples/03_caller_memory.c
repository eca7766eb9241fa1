/* All memory is the caller's: one block, wrapped once, cut into views; and one encoder that is replayed, so that a step
 * after the first allocates nothing and encodes nothing. */
#include "example.h"

enum { RATIO = 4, DIM = 128, COFF = 2, N_TOKENS = 8, BLOCK_BYTES = 1 << 20 };

/* Cuts n elements off a block, from a multiple of 64 bytes on. */
static dsr_view take(dsr_view block, uint64_t *used, uint64_t n, dsr_dtype dtype)
{
    dsr_view view = block;
    view.dtype = dtype;
    view.byte_offset = *used;
    view.byte_length = n * dsr_dtype_size(dtype);
    *used = (*used + view.byte_length + 63) / 64 * 64;
    return view;
}

int main(void)
{
    dsr_context *context = open_context(NULL);
    dsr_encoder *encoder = NULL;
    dsr_buffer *buffer = NULL;
    uint64_t used = 0;

    /* Nothing is copied: the library reads and writes this very memory, and never frees it. */
    void *memory = aligned_alloc(64, BLOCK_BYTES);
    if (memory == NULL) {
        return 1;
    }
    memset(memory, 0, BLOCK_BYTES);
    check(context, dsr_buffer_wrap(context, memory, BLOCK_BYTES, &buffer));
    const dsr_view block = dsr_view_whole(buffer, DSR_DTYPE_U8);

    /* A compressor call of one request: eight tokens, from position 0 on, complete two groups of four. */
    const uint64_t n_state = dsr_compressor_state_elements(RATIO, DIM);
    dsr_compressor_row row = {.n_tokens = N_TOKENS};
    row.kv_state = take(block, &used, n_state, DSR_DTYPE_F32);
    row.score_state = take(block, &used, n_state, DSR_DTYPE_F32);
    dsr_compressor_desc desc = DSR_COMPRESSOR_DESC_INIT;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.ratio = RATIO;
    desc.dim = DIM;
    desc.epsilon = 1e-6f;
    desc.kv = take(block, &used, N_TOKENS * COFF * DIM, DSR_DTYPE_F32);
    desc.score = take(block, &used, N_TOKENS * COFF * DIM, DSR_DTYPE_F32);
    desc.ape = take(block, &used, RATIO * COFF * DIM, DSR_DTYPE_F32);
    desc.norm = take(block, &used, DIM, DSR_DTYPE_F32);
    desc.output = take(block, &used, dsr_compressor_emitted(RATIO, 0, N_TOKENS) * (uint64_t)DIM, DSR_DTYPE_BF16);

    char *base = memory;
    float *kv = (float *)(void *)(base + desc.kv.byte_offset);
    float *norm = (float *)(void *)(base + desc.norm.byte_offset);
    const uint16_t *output = (const uint16_t *)(void *)(base + desc.output.byte_offset);
    for (int i = 0; i < DIM; i++) {
        norm[i] = 1;
    }

    check(context, dsr_encoder_create(context, &encoder));
    check(context, dsr_encode_compressor(encoder, &desc));
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < N_TOKENS * COFF * DIM; i++) {
            kv[i] = (float)((i + step) % 11);
        }
        /* The same commands on whatever the memory now holds. */
        check(context, step == 0 ? dsr_encoder_submit(encoder) : dsr_encoder_replay(encoder));
        check(context, dsr_encoder_wait(encoder));
        printf("step %d: groups start with %g and %g\n", step, (double)f32_of_bf16(output[0]),
               (double)f32_of_bf16(output[DIM]));
    }

    dsr_encoder_destroy(encoder);
    dsr_buffer_destroy(buffer);
    free(memory); /* still ours */
    dsr_context_destroy(context);
    return 0;
}
