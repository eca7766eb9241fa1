/* A picture of a step: the KV row of a new token goes into the window's ring, the indexer picks compressed entries, and
 * attention reads both. The Graphviz text goes to standard output:
 *
 *   06_capture_picture | dot -Tsvg -o step.svg */
#include "example.h"

enum { N_HEADS = 64, WINDOW = DSR_WINDOW, N_ENTRIES = 200, TOP_K = 64, RATIO = 4, POSITION = N_ENTRIES * RATIO - 1 };

static int write_text(void *user, const char *text, size_t n_bytes)
{
    return fwrite(text, 1, n_bytes, user) != n_bytes;
}

/* The token's KV row to its ring slot. The cache holds the window's rows first, then the compressed entries. */
static void encode_ring_write(dsr_context *context, dsr_encoder *encoder, dsr_view new_row, dsr_view cache)
{
    dsr_step_plan plan = {.struct_size = sizeof plan};
    check(context, dsr_plan_step(DSR_LAYER_RATIO_4, POSITION, 4096, TOP_K, &plan));
    dsr_copy_row row = {.destination = cache, .destination_row = plan.ring_slot};
    dsr_copy_desc copy = DSR_COPY_DESC_INIT;
    copy.n_rows = 1;
    copy.rows = &row;
    copy.row_elements = DSR_HEAD_DIM;
    copy.source = new_row;
    check(context, dsr_encode_copy(encoder, &copy));
}

/* The best entries, as rows of the cache, behind the window's rows in the list. */
static void encode_selection(dsr_context *context, dsr_encoder *encoder, const dsr_view views[3], dsr_view list,
                             dsr_view workspace)
{
    dsr_indexer_row row = {.keys = views[0],
                           .kv_len = N_ENTRIES,
                           .output_offset = WINDOW,
                           .start_pos = POSITION,
                           .ratio = RATIO,
                           .offset = WINDOW};
    dsr_indexer_desc indexer = DSR_INDEXER_DESC_INIT;
    indexer.n_rows = 1;
    indexer.rows = &row;
    indexer.n_heads = N_HEADS;
    indexer.top_k = TOP_K;
    indexer.q = views[1];
    indexer.weights = views[2];
    indexer.output = list;
    indexer.workspace = workspace;
    check(context, dsr_encode_indexer(encoder, &indexer));
}

static void encode_attention(dsr_context *context, dsr_encoder *encoder, dsr_view cache, dsr_view list,
                             const dsr_view views[3], dsr_view workspace)
{
    dsr_attention_row row = {.kv = cache, .kv_len = WINDOW + N_ENTRIES, .width = WINDOW + TOP_K};
    dsr_attention_desc attention = DSR_ATTENTION_DESC_INIT;
    attention.n_rows = 1;
    attention.rows = &row;
    attention.n_heads = N_HEADS;
    attention.scale = DSR_ATTENTION_SCALE;
    attention.q = views[0];
    attention.indices = list;
    attention.sinks = views[1];
    attention.output = views[2];
    attention.workspace = workspace;
    check(context, dsr_encode_flash_attention(encoder, &attention));
}

int main(void)
{
    dsr_context *context = open_context(NULL);
    dsr_encoder *encoder = NULL;
    check(context, dsr_encoder_create(context, &encoder));

    const dsr_view new_row = new_view(context, DSR_HEAD_DIM, DSR_DTYPE_BF16);
    const dsr_view cache = new_view(context, (WINDOW + N_ENTRIES) * DSR_HEAD_DIM, DSR_DTYPE_BF16);
    const dsr_view list = new_view(context, WINDOW + TOP_K, DSR_DTYPE_I32);
    const dsr_view index_views[3] = {new_view(context, N_ENTRIES * DSR_INDEX_DIM, DSR_DTYPE_BF16),
                                     new_view(context, N_HEADS * DSR_INDEX_DIM, DSR_DTYPE_BF16),
                                     new_view(context, N_HEADS, DSR_DTYPE_F32)};
    const dsr_view attention_views[3] = {new_view(context, N_HEADS * DSR_HEAD_DIM, DSR_DTYPE_BF16),
                                         new_view(context, N_HEADS, DSR_DTYPE_F32),
                                         new_view(context, N_HEADS * DSR_HEAD_DIM, DSR_DTYPE_BF16)};
    /* Generous for either op; dsr_*_workspace() says what is needed (01_one_row.c). */
    const dsr_view index_workspace = new_view(context, 1 << 20, DSR_DTYPE_U8);
    const dsr_view attention_workspace = new_view(context, 1 << 20, DSR_DTYPE_U8);

    dsr_window_slots(POSITION, WINDOW, data_of(list));
    encode_ring_write(context, encoder, new_row, cache);
    encode_selection(context, encoder, index_views, list, index_workspace);
    encode_attention(context, encoder, cache, list, attention_views, attention_workspace);
    check(context, dsr_encoder_capture(encoder, DSR_CAPTURE_DOT, write_text, stdout));
    check(context, dsr_encoder_submit(encoder));
    check(context, dsr_encoder_wait(encoder));

    dsr_encoder_destroy(encoder);
    const dsr_view views[] = {new_row,
                              cache,
                              list,
                              index_views[0],
                              index_views[1],
                              index_views[2],
                              attention_views[0],
                              attention_views[1],
                              attention_views[2],
                              index_workspace,
                              attention_workspace};
    for (size_t i = 0; i < sizeof views / sizeof views[0]; i++) {
        dsr_buffer_destroy(views[i].buffer);
    }
    dsr_context_destroy(context);
    return 0;
}
