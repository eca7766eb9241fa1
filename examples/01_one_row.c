/* One request: attention of 64 heads over 200 selected rows of a KV cache of 1000. */
#include "example.h"

enum { N_HEADS = 64, KV_LEN = 1000, WIDTH = 200 };

int main(void)
{
    dsr_context *context = open_context(NULL); /* all defaults: CPU, device-exact, this thread alone */
    dsr_encoder *encoder = NULL;
    check(context, dsr_encoder_create(context, &encoder));

    /* One query. Every KV row serves as key and as value. A sink is one more logit of its head, without a value. */
    dsr_attention_row row = {
        .kv = new_view(context, KV_LEN * DSR_HEAD_DIM, DSR_DTYPE_BF16), .kv_len = KV_LEN, .width = WIDTH};
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.n_heads = N_HEADS;
    desc.scale = DSR_ATTENTION_SCALE;
    desc.q = new_view(context, N_HEADS * DSR_HEAD_DIM, DSR_DTYPE_BF16);
    desc.indices = new_view(context, WIDTH, DSR_DTYPE_I32);
    desc.sinks = new_view(context, N_HEADS, DSR_DTYPE_F32);
    desc.output = new_view(context, N_HEADS * DSR_HEAD_DIM, DSR_DTYPE_BF16);

    fill_bf16(data_of(desc.q), N_HEADS * DSR_HEAD_DIM, 1);
    fill_bf16(data_of(row.kv), KV_LEN * DSR_HEAD_DIM, 2);
    int32_t *indices = data_of(desc.indices);
    for (int i = 0; i < WIDTH; i++) {
        indices[i] = i < 190 ? i * 5 : -1; /* -1 skips a slot: lists of any length fit a fixed width */
    }

    /* The library allocates nothing while it works: ask how much workspace the call needs, and hand it over. */
    uint64_t workspace_bytes = 0;
    check(context, dsr_sparse_attention_workspace(context, &desc, &workspace_bytes));
    desc.workspace = new_view(context, workspace_bytes, DSR_DTYPE_U8);

    check(context, dsr_encode_sparse_attention(encoder, &desc)); /* checks and plans; nothing runs yet */
    check(context, dsr_encoder_submit(encoder));
    check(context, dsr_encoder_wait(encoder));

    const uint16_t *output = data_of(desc.output);
    printf("%s: head 0 is %g %g %g %g ...\n", dsr_isa_name(dsr_context_isa(context)), (double)f32_of_bf16(output[0]),
           (double)f32_of_bf16(output[1]), (double)f32_of_bf16(output[2]), (double)f32_of_bf16(output[3]));

    dsr_encoder_destroy(encoder);
    const dsr_view views[] = {row.kv, desc.q, desc.indices, desc.sinks, desc.output, desc.workspace};
    for (size_t i = 0; i < sizeof views / sizeof views[0]; i++) {
        dsr_buffer_destroy(views[i].buffer);
    }
    dsr_context_destroy(context);
    return 0;
}
