/* Eight requests in one call of the indexer, each with its own number of keys and its own position; then every request
 * alone. The joint call gives each of them the bytes it gets alone. */
#include "example.h"

enum { N_ROWS = 8, N_HEADS = 64, TOP_K = 64, RATIO = 4 };

static uint64_t n_keys_of(int r)
{
    return 10 + 90 * (uint64_t)r;
}

typedef struct requests {
    dsr_view q, weights; /* one query row of each request */
    dsr_view keys[N_ROWS];
} requests;

/* Runs requests first..first+n-1 jointly; their lists go to lists, one after the other. */
static void run(dsr_context *context, const requests *all, int first, int n, int32_t *lists)
{
    dsr_encoder *encoder = NULL;
    dsr_indexer_row rows[N_ROWS];
    uint64_t workspace_bytes = 0;

    check(context, dsr_encoder_create(context, &encoder));
    memset(rows, 0, sizeof rows); /* 0 is the default of every field */
    for (int r = 0; r < n; r++) {
        rows[r].keys = all->keys[first + r];
        rows[r].kv_len = n_keys_of(first + r);
        rows[r].q_row = (uint64_t)(first + r);
        rows[r].output_offset = (uint64_t)r * TOP_K;
        rows[r].start_pos = (uint32_t)n_keys_of(first + r) * RATIO - 1; /* the newest token has completed a group */
        rows[r].ratio = RATIO;
    }
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    desc.n_rows = (uint32_t)n;
    desc.rows = rows;
    desc.n_heads = N_HEADS;
    desc.top_k = TOP_K;
    desc.q = all->q;
    desc.weights = all->weights;
    desc.output = new_view(context, (uint64_t)n * TOP_K, DSR_DTYPE_I32);
    check(context, dsr_indexer_workspace(context, &desc, &workspace_bytes));
    desc.workspace = new_view(context, workspace_bytes, DSR_DTYPE_U8);
    check(context, dsr_encode_indexer(encoder, &desc));
    check(context, dsr_encoder_submit(encoder));
    check(context, dsr_encoder_wait(encoder));
    memcpy(lists, data_of(desc.output), (size_t)n * TOP_K * sizeof *lists);

    dsr_encoder_destroy(encoder);
    dsr_buffer_destroy(desc.output.buffer);
    dsr_buffer_destroy(desc.workspace.buffer);
}

int main(void)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    static int32_t joint[N_ROWS][TOP_K], alone[N_ROWS][TOP_K];
    int n_different = 0;

    desc.n_threads = 2; /* this thread and one more */
    dsr_context *context = open_context(&desc);
    requests all = {.q = new_view(context, N_ROWS * N_HEADS * DSR_INDEX_DIM, DSR_DTYPE_BF16),
                    .weights = new_view(context, N_ROWS * N_HEADS, DSR_DTYPE_F32)};
    fill_bf16(data_of(all.q), N_ROWS * N_HEADS * DSR_INDEX_DIM, 1);
    for (int i = 0; i < N_ROWS * N_HEADS; i++) {
        ((float *)data_of(all.weights))[i] = DSR_INDEXER_SCALE * (float)(i % 7 - 2);
    }
    for (int r = 0; r < N_ROWS; r++) {
        all.keys[r] = new_view(context, n_keys_of(r) * DSR_INDEX_DIM, DSR_DTYPE_BF16);
        fill_bf16(data_of(all.keys[r]), n_keys_of(r) * DSR_INDEX_DIM, 100 + (uint32_t)r);
    }

    run(context, &all, 0, N_ROWS, joint[0]);
    for (int r = 0; r < N_ROWS; r++) {
        run(context, &all, r, 1, alone[r]);
        const int equal = memcmp(joint[r], alone[r], sizeof joint[r]) == 0;
        printf("request %d: %3d keys, best is %3d, joint = alone: %s\n", r, (int)n_keys_of(r), (int)joint[r][0],
               equal ? "yes" : "NO");
        n_different += !equal;
    }

    for (int r = 0; r < N_ROWS; r++) {
        dsr_buffer_destroy(all.keys[r].buffer);
    }
    dsr_buffer_destroy(all.q.buffer);
    dsr_buffer_destroy(all.weights.buffer);
    dsr_context_destroy(context);
    return n_different != 0;
}
