/* One attention layer of whole requests: prefill two of them, decode them jointly, try draft tokens on a fork, take
 * rejected ones back, save a request and go on with it elsewhere. What a request gets depends on its own tokens alone,
 * so every way that leads to the same tokens leads to the same bytes. */
#include "example.h"

enum { HIDDEN = 256, N_HEADS = 64, Q_RANK = 32, O_GROUPS = 8, O_RANK = 32, INDEX_HEADS = 32, RATIO = 4 };
enum { MAX_CONTEXT = 512, N_STEPS = 5, N_DRAFTS = 4, N_ACCEPTED = 1 };

/* ---- a checkpoint: here made up, with an engine a mapped safetensors file ----------------------------------- */

typedef struct checkpoint_tensor {
    const char *name;
    uint64_t rows; /* 0: a vector */
    uint64_t columns;
    void *data;
} checkpoint_tensor;

static checkpoint_tensor checkpoint[] = {
    {"q_a_proj.weight", Q_RANK, HIDDEN, NULL},
    {"q_a_norm.weight", 0, Q_RANK, NULL},
    {"q_b_proj.weight", N_HEADS *DSR_HEAD_DIM, Q_RANK, NULL},
    {"kv_proj.weight", DSR_HEAD_DIM, HIDDEN, NULL},
    {"kv_norm.weight", 0, DSR_HEAD_DIM, NULL},
    {"sinks", 0, N_HEADS, NULL},
    {"o_a_proj.weight", O_GROUPS *O_RANK, N_HEADS / O_GROUPS *DSR_HEAD_DIM, NULL},
    {"o_b_proj.weight", HIDDEN, O_GROUPS *O_RANK, NULL},
    {"compressor.kv_proj.weight", 2 * DSR_HEAD_DIM, HIDDEN, NULL},
    {"compressor.gate_proj.weight", 2 * DSR_HEAD_DIM, HIDDEN, NULL},
    {"compressor.position_bias", RATIO, 2 * DSR_HEAD_DIM, NULL},
    {"compressor.kv_norm.weight", 0, DSR_HEAD_DIM, NULL},
    {"compressor.indexer.q_b_proj.weight", INDEX_HEADS *DSR_INDEX_DIM, Q_RANK, NULL},
    {"compressor.indexer.kv_proj.weight", 2 * DSR_INDEX_DIM, HIDDEN, NULL},
    {"compressor.indexer.gate_proj.weight", 2 * DSR_INDEX_DIM, HIDDEN, NULL},
    {"compressor.indexer.position_bias", RATIO, 2 * DSR_INDEX_DIM, NULL},
    {"compressor.indexer.kv_norm.weight", 0, DSR_INDEX_DIM, NULL},
    {"compressor.indexer.scorer.weights_proj.weight", INDEX_HEADS, HIDDEN, NULL},
};
enum { N_TENSORS = sizeof checkpoint / sizeof checkpoint[0] };

/* All BF16: vectors are ones, matrices random and, by a power of two, so small that outputs stay near 1. */
static void make_tensor(checkpoint_tensor *t, uint32_t seed)
{
    const uint64_t n = (t->rows ? t->rows : 1) * t->columns;
    uint16_t *x = malloc(n * sizeof *x);
    if (x == NULL) {
        exit(1);
    }
    if (t->rows == 0) {
        for (uint64_t i = 0; i < n; i++) {
            x[i] = 0x3f80;
        }
    } else {
        float scale = 1.0f;
        while (scale * scale * (float)t->columns > 3.0f) {
            scale *= 0.5f;
        }
        fill_bf16(x, n, seed);
        for (uint64_t i = 0; i < n; i++) {
            const float scaled = f32_of_bf16(x[i]) * scale;
            uint32_t bits;
            memcpy(&bits, &scaled, sizeof bits);
            x[i] = (uint16_t)(bits >> 16);
        }
    }
    t->data = x;
}

static int find_tensor(void *user, const char *name, dsr_tensor *tensor)
{
    const char *prefix = user;
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        const checkpoint_tensor *t = &checkpoint[i];
        if (strcmp(name + strlen(prefix), t->name) == 0) {
            *tensor = (dsr_tensor){.data = t->data, .n_dims = t->rows ? 2 : 1, .dtype = DSR_DTYPE_BF16};
            tensor->size_bytes = (t->rows ? t->rows : 1) * t->columns * sizeof(uint16_t);
            tensor->shape[0] = t->rows ? t->rows : t->columns;
            tensor->shape[1] = t->rows ? t->columns : 0;
            return 1;
        }
    }
    return 0;
}

static dsr_attention *open_layer(dsr_context *context)
{
    static char prefix[] = "model.layers.2.self_attn.";
    dsr_attention *layer = NULL;
    dsr_attention_config config = DSR_ATTENTION_CONFIG_INIT;
    config.kind = DSR_LAYER_RATIO_4;
    config.hidden_size = HIDDEN;
    config.n_heads = N_HEADS;
    config.q_rank = Q_RANK;
    config.o_groups = O_GROUPS;
    config.o_rank = O_RANK;
    config.n_index_heads = INDEX_HEADS;
    config.top_k = 32;
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        make_tensor(&checkpoint[i], i + 1);
    }
    check(context, dsr_attention_create(context, &config, find_tensor, prefix, prefix, &layer));
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        free(checkpoint[i].data); /* the layer has copies of its own */
    }
    return layer;
}

/* ---- requests ---------------------------------------------------------------------------------------------- */

typedef struct engine {
    dsr_context *context;
    dsr_attention *layer;
    dsr_view hidden; /* BF16 [MAX_CONTEXT, HIDDEN]: inputs of a call */
    dsr_view output; /* F32, the same */
} engine;

/* The input of token `position` of a request: with an engine the normed hidden state of the layer before. */
static void put_input(const engine *e, uint64_t row, uint32_t request, uint32_t position)
{
    fill_bf16((uint16_t *)data_of(e->hidden) + row * HIDDEN, HIDDEN, 1000 * request + position);
}

static const float *output_row(const engine *e, uint64_t row)
{
    return (const float *)data_of(e->output) + row * HIDDEN;
}

static dsr_sequence *prefill(const engine *e, uint32_t request, uint32_t n_tokens)
{
    dsr_sequence *sequence = NULL;
    check(e->context, dsr_sequence_create(e->layer, MAX_CONTEXT, &sequence));
    for (uint32_t t = 0; t < n_tokens; t++) {
        put_input(e, t, request, t);
    }
    check(e->context, dsr_attention_prefill(e->layer, sequence, n_tokens, e->hidden, e->output));
    return sequence;
}

/* The next n_tokens[i] tokens of each of n requests in one step; outputs lie one after the other. */
static void decode(const engine *e, uint32_t n, dsr_sequence *const *sequences, const uint32_t *requests,
                   uint32_t n_tokens)
{
    dsr_step_entry entries[8] = {{0}};
    dsr_step_desc step = DSR_STEP_DESC_INIT;
    for (uint32_t i = 0; i < n; i++) {
        entries[i].sequence = sequences[i];
        entries[i].first_row = i * n_tokens;
        entries[i].n_tokens = n_tokens;
        for (uint32_t t = 0; t < n_tokens; t++) {
            put_input(e, i * n_tokens + t, requests[i], dsr_sequence_position(sequences[i]) + t);
        }
    }
    step.n_entries = n;
    step.entries = entries;
    step.hidden = e->hidden;
    step.output = e->output;
    check(e->context, dsr_attention_decode(e->layer, &step));
}

/* Draft tokens on a fork: one step computes all of them, those that are rejected are taken back. */
static void try_drafts(const engine *e, dsr_sequence *sequence, uint32_t request)
{
    dsr_sequence *draft = NULL;
    check(e->context, dsr_sequence_fork(sequence, &draft)); /* copies nothing yet */
    decode(e, 1, &draft, &request, N_DRAFTS);
    check(e->context, dsr_sequence_truncate(draft, N_DRAFTS - N_ACCEPTED));
    printf("drafts: request %u at %u, its fork at %u\n", (unsigned)request, (unsigned)dsr_sequence_position(sequence),
           (unsigned)dsr_sequence_position(draft));
    decode(e, 1, &sequence, &request, N_ACCEPTED); /* the accepted token, for the request itself */
    dsr_sequence_destroy(draft);
}

/* A copy of a request by way of saved bytes. dsr_sequence_save_file and _load_file do it with a file. */
static dsr_sequence *save_and_load(const engine *e, const dsr_sequence *sequence)
{
    const uint64_t n_bytes = dsr_sequence_save_bytes(sequence);
    void *saved = malloc(n_bytes);
    dsr_sequence *loaded = NULL;
    check(e->context, dsr_sequence_save(sequence, saved, n_bytes));
    check(e->context, dsr_sequence_create(e->layer, MAX_CONTEXT, &loaded));
    check(e->context, dsr_sequence_load(loaded, saved, n_bytes));
    printf("saved: %llu bytes at %u tokens\n", (unsigned long long)n_bytes, (unsigned)dsr_sequence_position(sequence));
    free(saved);
    return loaded;
}

int main(void)
{
    static const uint32_t requests[2] = {0, 1};
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    desc.n_threads = 2;
    engine e = {.context = open_context(&desc)};
    e.layer = open_layer(e.context);
    e.hidden = new_view(e.context, MAX_CONTEXT * HIDDEN, DSR_DTYPE_BF16);
    e.output = new_view(e.context, MAX_CONTEXT * HIDDEN, DSR_DTYPE_F32);

    dsr_sequence *sequences[2] = {prefill(&e, 0, 150), prefill(&e, 1, 40)};
    for (int t = 0; t < N_STEPS; t++) {
        decode(&e, 2, sequences, requests, 1);
    }
    try_drafts(&e, sequences[0], 0);
    dsr_sequence *copies[2] = {save_and_load(&e, sequences[0]), prefill(&e, 1, 40 + N_STEPS)};

    float joint[2][HIDDEN];
    int n_different = 0;
    decode(&e, 2, sequences, requests, 1);
    memcpy(joint, output_row(&e, 0), sizeof joint);
    for (uint32_t r = 0; r < 2; r++) {
        decode(&e, 1, &copies[r], &requests[r], 1); /* alone, and come by on another way */
        n_different += memcmp(joint[r], output_row(&e, 0), sizeof joint[r]) != 0;
        printf("request %u at %u: first outputs %.4f %.4f\n", (unsigned)r,
               (unsigned)dsr_sequence_position(sequences[r]), (double)joint[r][0], (double)joint[r][1]);
    }
    printf("%d of 2 requests differ between jointly and alone\n", n_different);

    for (int r = 0; r < 2; r++) {
        dsr_sequence_destroy(sequences[r]);
        dsr_sequence_destroy(copies[r]);
    }
    dsr_attention_destroy(e.layer);
    dsr_buffer_destroy(e.hidden.buffer);
    dsr_buffer_destroy(e.output.buffer);
    dsr_context_destroy(e.context);
    return n_different;
}
