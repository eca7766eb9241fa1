/* The attention block on a CUDA device against the CPU: the same outputs and the same saved states, byte for byte,
 * through prefill, joint steps with drafts, truncation, forks and loads; states saved on one load on the other. A plain
 * program, for machines that have nothing else. Exit 0 if all agree, 1 if not, 77 if there is no device. */
#include "../block/synthetic_layer.h"

#include <dsrows/dsrows.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 64, N_PREFILL = 150, N_ROWS = 256, TOP_K = 32, N_RESULTS = 9 };

typedef struct device_run {
    dsr_context *context;
    dsr_attention *layer;
    dsr_sequence *a, *b, *fork;
    dsr_buffer *hidden, *output;
    unsigned char *results[N_RESULTS]; /* outputs and states along the way */
    uint64_t n_bytes[N_RESULTS];
    uint32_t n_results;
} device_run;

static void must_be_ok(const device_run *r, dsr_status status, int line)
{
    if (status != DSR_OK) {
        printf("line %d: %s: %s\n", line, dsr_status_name(status), dsr_context_error_text(r->context));
        exit(1);
    }
}
#define must(call) must_be_ok(r, call, __LINE__)

static dsr_attention_config config_of(dsr_layer_kind kind, dsr_cache_treatment cache)
{
    dsr_attention_config config = DSR_ATTENTION_CONFIG_INIT;
    config.kind = kind;
    config.cache = cache;
    config.hidden_size = HIDDEN;
    config.n_heads = 64;
    config.q_rank = 32;
    config.o_groups = 8;
    config.o_rank = 16;
    config.n_index_heads = 64;
    config.top_k = TOP_K;
    return config;
}

static void keep(device_run *r, void *bytes, uint64_t n_bytes)
{
    r->results[r->n_results] = bytes;
    r->n_bytes[r->n_results++] = n_bytes;
}

static void *allocate(uint64_t n_bytes)
{
    void *memory = calloc(1, n_bytes);
    if (memory == NULL)
        exit(1);
    return memory;
}

static void keep_outputs(device_run *r, uint32_t n_rows)
{
    const uint64_t n_bytes = (uint64_t)n_rows * HIDDEN * sizeof(float);
    void *bytes = allocate(n_bytes);
    must(dsr_buffer_read(r->output, 0, bytes, n_bytes));
    keep(r, bytes, n_bytes);
}

static void keep_state(device_run *r, const dsr_sequence *sequence)
{
    const uint64_t n_bytes = dsr_sequence_save_bytes(sequence);
    void *bytes = allocate(n_bytes);
    must(dsr_sequence_save(sequence, bytes, n_bytes));
    keep(r, bytes, n_bytes);
}

/* Which entries a token of the last step attended to, in order of selection. */
static void keep_selection(device_run *r, uint32_t token)
{
    dsr_attention_config config = DSR_ATTENTION_CONFIG_INIT;
    uint32_t n = 0, *entries = allocate(TOP_K * sizeof *entries);
    must(dsr_attention_get_config(r->layer, &config));
    if (config.kind == DSR_LAYER_RATIO_4)
        must(dsr_attention_selection(r->layer, token, entries, &n));
    keep(r, entries, n * sizeof *entries);
}

static void step(device_run *r, uint32_t n_a, uint32_t n_b)
{
    const dsr_step_entry entries[2] = {{r->b, 9, n_b}, {r->a, 0, n_a}};
    dsr_step_desc desc = DSR_STEP_DESC_INIT;
    desc.n_entries = 2;
    desc.entries = entries;
    desc.hidden = dsr_view_whole(r->hidden, DSR_DTYPE_BF16);
    desc.output = dsr_view_whole(r->output, DSR_DTYPE_F32);
    must(dsr_attention_decode(r->layer, &desc));
}

static void open_run(device_run *r, dsr_device_kind device, const dsr_attention_config *config,
                     synthetic_weights *weights)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    uint16_t rows[N_ROWS * HIDDEN];
    memset(r, 0, sizeof *r);
    desc.device = device;
    if (dsr_context_create(&desc, &r->context) != DSR_OK) {
        printf("%s\n", dsr_create_error_text());
        exit(1);
    }
    must(dsr_attention_create(r->context, config, synthetic_lookup, weights, SYNTHETIC_PREFIX, &r->layer));
    must(dsr_buffer_create(r->context, sizeof rows, &r->hidden));
    must(dsr_buffer_create(r->context, 2 * sizeof rows, &r->output));
    for (uint32_t t = 0; t < N_ROWS; t++)
        synthetic_input(9, 1, t, HIDDEN, rows + t * HIDDEN);
    must(dsr_buffer_write(r->hidden, 0, rows, sizeof rows));
    must(dsr_sequence_create(r->layer, N_PREFILL + 30, &r->a));
    must(dsr_sequence_create(r->layer, 40, &r->b));
}

static void live(device_run *r)
{
    must(dsr_attention_prefill(r->layer, r->a, N_PREFILL, dsr_view_whole(r->hidden, DSR_DTYPE_BF16),
                               dsr_view_whole(r->output, DSR_DTYPE_F32)));
    keep_outputs(r, N_PREFILL);
    step(r, 1, 5);
    keep_outputs(r, 14);
    must(dsr_sequence_fork(r->a, &r->fork));
    step(r, 8, 3);
    must(dsr_sequence_truncate(r->a, 6));
    must(dsr_sequence_truncate(r->b, 3));
    step(r, 3, 4);
    keep_outputs(r, 13);
    keep_state(r, r->a);
    keep_state(r, r->b);
    keep_state(r, r->fork);
}

/* The other device's states, continued: the same outputs as there. */
static void continue_from(device_run *r, const device_run *other)
{
    must(dsr_sequence_load(r->b, other->results[3], other->n_bytes[3]));
    must(dsr_sequence_load(r->fork, other->results[5], other->n_bytes[5]));
    must(dsr_sequence_grow(r->b, N_PREFILL + 30));
    step(r, 2, 7);
    keep_outputs(r, 16);
    keep_state(r, r->b);
    keep_selection(r, 8);
}

static void close_run(device_run *r)
{
    for (uint32_t i = 0; i < r->n_results; i++)
        free(r->results[i]);
    dsr_sequence_destroy(r->a);
    dsr_sequence_destroy(r->b);
    dsr_sequence_destroy(r->fork);
    dsr_attention_destroy(r->layer);
    dsr_buffer_destroy(r->hidden);
    dsr_buffer_destroy(r->output);
    dsr_context_destroy(r->context);
}

static int compare(dsr_layer_kind kind, dsr_cache_treatment cache)
{
    const dsr_attention_config config = config_of(kind, cache);
    synthetic_weights weights;
    device_run cpu, gpu;
    int n_failed = 0;
    synthetic_weights_init(&weights, &config, SYNTHETIC_BF16, 9);
    open_run(&cpu, DSR_DEVICE_CPU, &config, &weights);
    open_run(&gpu, DSR_DEVICE_CUDA, &config, &weights);
    live(&cpu);
    live(&gpu);
    continue_from(&cpu, &gpu);
    continue_from(&gpu, &cpu);
    for (uint32_t i = 0; i < cpu.n_results; i++) {
        if (cpu.n_bytes[i] == gpu.n_bytes[i] && memcmp(cpu.results[i], gpu.results[i], cpu.n_bytes[i]) == 0)
            continue;
        printf("FAIL kind %d, cache %d: result %u differs\n", (int)kind, (int)cache, (unsigned)i);
        n_failed++;
    }
    close_run(&cpu);
    close_run(&gpu);
    synthetic_weights_free(&weights);
    return n_failed;
}

int main(void)
{
    static const dsr_layer_kind kinds[] = {DSR_LAYER_WINDOW, DSR_LAYER_RATIO_4, DSR_LAYER_RATIO_128};
    int n_failed = 0;
    if (dsr_device_count(DSR_DEVICE_CUDA) == 0) {
        printf("no CUDA device\n");
        return 77;
    }
    for (int k = 0; k < 3; k++)
        for (int cache = DSR_CACHE_BF16; cache <= DSR_CACHE_PACKED; cache++)
            n_failed += compare(kinds[k], (dsr_cache_treatment)cache);
    printf("attention block: %s\n", n_failed ? "FAILED" : "CUDA equals the CPU, byte for byte");
    return n_failed != 0;
}
