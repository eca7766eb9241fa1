/* Speed of a joint step of the attention block at V4-Flash's shape (ratio 4, random weights) at a context of 32768: a
 * step of N requests against a step of one, where the time goes, and the projections at one row against the memory's
 * read rate. Everything is measured in turn within each round, in one process; the table shows
 * medians, and the least times, which the machine's other work disturbs less.
 *
 * usage: bench_attention_block [--threads N] [--requests N] [--context N] [--rounds N] [--cache bf16|official|packed]
 *                              [--clock wall|cpu] [--exact device|row]
 *
 * The cpu clock counts processor time: for one thread on a machine that others load, too. */
#include "synthetic_layer.h"

#include <dsrows/dsrows.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_REQUESTS = 64, MAX_ROUNDS = 1000, READ_BYTES = 256 << 20, READ_TASKS = 256, N_PROJECTIONS = 11 };

typedef struct options {
    uint32_t n_threads, n_requests, context, n_rounds;
    dsr_cache_treatment cache;
    clockid_t clock;
    dsr_exactness exactness;
} options;

/* What is timed, each for one request and for all. */
typedef enum part { PART_STEP, PART_PROJECTIONS, PART_INDEXER, PART_ATTENTION, PART_READ, N_PARTS } part;
static const char *const part_names[N_PARTS] = {"whole step", "projections alone", "indexer alone", "attention alone",
                                                "reading the same bytes"};

typedef struct bench {
    options o;
    dsr_context *context;
    dsr_attention_config config;
    dsr_attention *layer;
    dsr_sequence *one, *many[MAX_REQUESTS];
    dsr_buffer *hidden, *output;
    dsr_encoder *encoders[N_PARTS][2]; /* of all parts but the step */
    uint64_t weight_bytes;
    double seconds[N_PARTS][2][MAX_ROUNDS];
    uint64_t sums[READ_TASKS];
} bench;

static void must_be_ok(const bench *b, dsr_status status, int line)
{
    if (status != DSR_OK) {
        fprintf(stderr, "line %d: %s: %s\n", line, dsr_status_name(status), dsr_context_error_text(b->context));
        exit(1);
    }
}
#define must(call) must_be_ok(b, call, __LINE__)

static double now(const bench *b)
{
    struct timespec t;
    clock_gettime(b->o.clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static dsr_view new_view(bench *b, uint64_t n_elements, dsr_dtype dtype)
{
    dsr_buffer *buffer = NULL;
    must(dsr_buffer_create(b->context, n_elements * dsr_dtype_size(dtype), &buffer));
    return dsr_view_whole(buffer, dtype);
}

/* BF16 numbers of magnitude 1 to 2: no part is faster for zeros. */
static dsr_view new_numbers(bench *b, uint64_t n_elements)
{
    const dsr_view view = new_view(b, n_elements, DSR_DTYPE_BF16);
    uint16_t *values = dsr_buffer_data(view.buffer);
    uint32_t x = 12345;
    for (uint64_t i = 0; i < n_elements; i++) {
        x = x * 1664525 + 1013904223;
        values[i] = (uint16_t)(0x3f80 | (x >> 16 & 0x807f));
    }
    return view;
}

/* ---- the parts alone ------------------------------------------------------------------------------------------- */

typedef struct projection_shape {
    uint32_t n_groups, n_inputs, n_outputs;
} projection_shape;

static void list_projections(const dsr_attention_config *c, projection_shape shapes[N_PROJECTIONS])
{
    const projection_shape all[N_PROJECTIONS] = {{1, c->hidden_size, c->q_rank},
                                                 {1, c->q_rank, c->n_heads * DSR_HEAD_DIM},
                                                 {1, c->hidden_size, DSR_HEAD_DIM},
                                                 {c->o_groups, c->n_heads / c->o_groups * DSR_HEAD_DIM, c->o_rank},
                                                 {1, c->o_groups * c->o_rank, c->hidden_size},
                                                 {1, c->hidden_size, 2 * DSR_HEAD_DIM},
                                                 {1, c->hidden_size, 2 * DSR_HEAD_DIM},
                                                 {1, c->q_rank, c->n_index_heads * DSR_INDEX_DIM},
                                                 {1, c->hidden_size, 2 * DSR_INDEX_DIM},
                                                 {1, c->hidden_size, 2 * DSR_INDEX_DIM},
                                                 {1, c->hidden_size, c->n_index_heads}};
    memcpy(shapes, all, sizeof all);
}

static dsr_view packed_weights(bench *b, const projection_shape *s)
{
    dsr_projection_weights weights = DSR_PROJECTION_WEIGHTS_INIT;
    const dsr_view plain = new_numbers(b, (uint64_t)s->n_groups * s->n_inputs * s->n_outputs);
    uint64_t n_bytes = 0;
    weights.n_groups = s->n_groups;
    weights.n_inputs = s->n_inputs;
    weights.n_outputs = s->n_outputs;
    weights.format = DSR_WEIGHT_BF16;
    weights.data = dsr_buffer_data(plain.buffer);
    must(dsr_projection_packed_bytes(b->context, &weights, &n_bytes));
    const dsr_view packed = new_view(b, n_bytes / 4, DSR_DTYPE_U32);
    must(dsr_projection_pack(b->context, &weights, dsr_buffer_data(packed.buffer), n_bytes));
    dsr_buffer_destroy(plain.buffer);
    b->weight_bytes += n_bytes;
    return packed;
}

/* Each into outputs of its own, all from one input: they may run side by side, as those of a step partly do. */
static void encode_projections(bench *b)
{
    projection_shape shapes[N_PROJECTIONS];
    list_projections(&b->config, shapes);
    const dsr_view input = new_numbers(b, (uint64_t)b->o.n_requests * b->config.n_heads * DSR_HEAD_DIM);
    for (uint32_t i = 0; i < N_PROJECTIONS; i++) {
        dsr_projection_desc desc = DSR_PROJECTION_DESC_INIT;
        desc.n_groups = shapes[i].n_groups;
        desc.n_inputs = shapes[i].n_inputs;
        desc.n_outputs = shapes[i].n_outputs;
        desc.format = DSR_WEIGHT_BF16_PACKED;
        desc.weight = packed_weights(b, &shapes[i]);
        desc.input = input;
        desc.output = new_view(b, (uint64_t)b->o.n_requests * desc.n_groups * desc.n_outputs, DSR_DTYPE_F32);
        for (int all = 0; all < 2; all++) {
            desc.n_rows = all ? b->o.n_requests : 1;
            must(dsr_encode_projection(b->encoders[PART_PROJECTIONS][all], &desc));
        }
    }
}

static void encode_indexer(bench *b)
{
    dsr_indexer_row rows[MAX_REQUESTS];
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    const uint32_t n = b->o.n_requests, n_keys = b->o.context / 4;
    uint64_t n_bytes = 0;
    memset(rows, 0, sizeof rows);
    for (uint32_t r = 0; r < n; r++) {
        rows[r].kv_len = n_keys;
        rows[r].keys = new_numbers(b, (uint64_t)n_keys * DSR_INDEX_DIM);
        rows[r].q_row = r;
        rows[r].output_offset = (uint64_t)r * b->config.top_k;
        rows[r].start_pos = b->o.context - 1;
    }
    desc.rows = rows;
    desc.n_rows = n;
    desc.n_heads = b->config.n_index_heads;
    desc.top_k = b->config.top_k;
    desc.q = new_numbers(b, (uint64_t)n * desc.n_heads * DSR_INDEX_DIM);
    desc.weights = new_view(b, (uint64_t)n * desc.n_heads, DSR_DTYPE_F32);
    for (uint32_t i = 0; i < n * desc.n_heads; i++)
        ((float *)dsr_buffer_data(desc.weights.buffer))[i] = 0.01f;
    desc.output = new_view(b, (uint64_t)n * desc.top_k, DSR_DTYPE_I32);
    must(dsr_indexer_workspace(b->context, &desc, &n_bytes));
    desc.workspace = new_view(b, n_bytes, DSR_DTYPE_U8);
    for (int all = 0; all < 2; all++) {
        desc.n_rows = all ? n : 1;
        must(dsr_encode_indexer(b->encoders[PART_INDEXER][all], &desc));
    }
}

static void encode_attention(bench *b)
{
    dsr_attention_row rows[MAX_REQUESTS];
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    const uint32_t n = b->o.n_requests, n_rows = DSR_WINDOW + b->o.context / 4, width = DSR_WINDOW + b->config.top_k;
    const uint64_t n_q = (uint64_t)n * b->config.n_heads * DSR_HEAD_DIM;
    uint64_t n_bytes = 0;
    memset(rows, 0, sizeof rows);
    desc.indices = new_view(b, (uint64_t)n * width, DSR_DTYPE_I32);
    int32_t *indices = dsr_buffer_data(desc.indices.buffer);
    for (uint32_t i = 0; i < n * width; i++)
        indices[i] = (int32_t)(i * 2654435761u % n_rows);
    for (uint32_t r = 0; r < n; r++) {
        rows[r].kv_len = n_rows;
        rows[r].kv = new_numbers(b, (uint64_t)n_rows * DSR_HEAD_DIM);
        rows[r].q_row = r;
        rows[r].index_offset = (uint64_t)r * width;
        rows[r].width = width;
    }
    desc.rows = rows;
    desc.n_rows = n;
    desc.n_heads = b->config.n_heads;
    desc.scale = DSR_ATTENTION_SCALE;
    desc.q = new_numbers(b, n_q);
    desc.output = new_view(b, n_q, DSR_DTYPE_BF16);
    desc.sinks = new_view(b, b->config.n_heads, DSR_DTYPE_F32);
    must(dsr_flash_attention_workspace(b->context, &desc, &n_bytes));
    desc.workspace = new_view(b, n_bytes, DSR_DTYPE_U8);
    for (int all = 0; all < 2; all++) {
        desc.n_rows = all ? n : 1;
        must(dsr_encode_flash_attention(b->encoders[PART_ATTENTION][all], &desc));
    }
}

/* Reads its part of a buffer in 16 streams of sums. */
static void read_piece(void *user, uint32_t task, uint32_t n_tasks, void *const *views, const void *params)
{
    const uint64_t n = READ_BYTES / sizeof(uint64_t) / n_tasks;
    const uint64_t *from = (const uint64_t *)views[0] + task * n;
    uint64_t sums[16] = {0};
    bench *b = user;
    (void)params;
    for (uint64_t i = 0; i < n; i += 16)
        for (uint32_t k = 0; k < 16; k++)
            sums[k] += from[i + k];
    for (uint32_t k = 1; k < 16; k++)
        sums[0] += sums[k];
    b->sums[task] = sums[0];
}

static void encode_reading(bench *b)
{
    static const dsr_access access = DSR_ACCESS_READ;
    const dsr_view view = new_view(b, READ_BYTES, DSR_DTYPE_U8);
    dsr_kernel_desc desc = DSR_KERNEL_DESC_INIT;
    memset(dsr_buffer_data(view.buffer), 1, READ_BYTES);
    must(dsr_registry_add_kernel(b->context, "read", read_piece, b));
    desc.name = "read";
    desc.n_tasks = READ_TASKS;
    desc.n_views = 1;
    desc.views = &view;
    desc.access = &access;
    must(dsr_encode_kernel(b->encoders[PART_READ][0], &desc));
}

/* ---- running --------------------------------------------------------------------------------------------------- */

static void open_layer(bench *b)
{
    synthetic_weights weights;
    b->config = (dsr_attention_config)DSR_ATTENTION_CONFIG_INIT;
    b->config.kind = DSR_LAYER_RATIO_4;
    b->config.hidden_size = 4096;
    b->config.n_heads = 64;
    b->config.q_rank = 1024;
    b->config.o_groups = 8;
    b->config.o_rank = 1024;
    b->config.cache = b->o.cache;
    synthetic_weights_init(&weights, &b->config, SYNTHETIC_BF16, 1);
    must(dsr_attention_create(b->context, &b->config, synthetic_lookup, &weights, SYNTHETIC_PREFIX, &b->layer));
    synthetic_weights_free(&weights);
    must(dsr_attention_get_config(b->layer, &b->config));
    for (uint32_t r = 0; r <= b->o.n_requests; r++) {
        dsr_sequence **sequence = r < b->o.n_requests ? &b->many[r] : &b->one;
        must(dsr_sequence_create(b->layer, b->o.context + 2 * b->o.n_rounds + 16, sequence));
        synthetic_state_load(*sequence, b->o.context - 1, r);
    }
    must(dsr_buffer_create(b->context, (uint64_t)b->o.n_requests * b->config.hidden_size * 2, &b->hidden));
    must(dsr_buffer_create(b->context, (uint64_t)b->o.n_requests * b->config.hidden_size * 4, &b->output));
    for (uint32_t r = 0; r < b->o.n_requests; r++)
        synthetic_input(1, r, 0, b->config.hidden_size,
                        (uint16_t *)dsr_buffer_data(b->hidden) + (size_t)r * b->config.hidden_size);
}

static void run_step(bench *b, int all)
{
    dsr_step_entry entries[MAX_REQUESTS];
    dsr_step_desc step = DSR_STEP_DESC_INIT;
    step.n_entries = all ? b->o.n_requests : 1;
    for (uint32_t r = 0; r < step.n_entries; r++)
        entries[r] = (dsr_step_entry){all ? b->many[r] : b->one, r, 1};
    step.entries = entries;
    step.hidden = dsr_view_whole(b->hidden, DSR_DTYPE_BF16);
    step.output = dsr_view_whole(b->output, DSR_DTYPE_F32);
    must(dsr_attention_decode(b->layer, &step));
}

static void run_part(bench *b, part p, int all, double *seconds)
{
    const double begin = now(b);
    if (p == PART_STEP) {
        run_step(b, all);
    } else {
        must(dsr_encoder_replay(b->encoders[p][all]));
        must(dsr_encoder_wait(b->encoders[p][all]));
    }
    *seconds = now(b) - begin;
}

static void run_rounds(bench *b)
{
    double ignored;
    for (int p = 1; p < N_PARTS; p++)
        for (int all = 0; all < (p == PART_READ ? 1 : 2); all++)
            must(dsr_encoder_submit(b->encoders[p][all]));
    for (int all = 0; all < 2; all++)
        run_part(b, PART_STEP, all, &ignored);
    for (uint32_t i = 0; i < b->o.n_rounds; i++)
        for (int p = 0; p < N_PARTS; p++)
            for (int all = 0; all < (p == PART_READ ? 1 : 2); all++)
                run_part(b, (part)p, all, &b->seconds[p][all][i]);
}

/* ---- report ---------------------------------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static const char *const cache_names[] = {"bf16", "official", "packed"};

static double median(bench *b, part p, int all)
{
    qsort(b->seconds[p][all], b->o.n_rounds, sizeof(double), compare_doubles);
    return b->seconds[p][all][b->o.n_rounds / 2];
}

static void report(bench *b)
{
    const double read_rate = READ_BYTES / median(b, PART_READ, 0);
    const double projection_rate = (double)b->weight_bytes / median(b, PART_PROJECTIONS, 0);
    printf(
        "V4-Flash shape, ratio 4, context %u, %s caches, %s, %s-exact, %u threads, medians of %u rounds, %s time\n\n",
        (unsigned)b->o.context, cache_names[b->o.cache], dsr_isa_name(dsr_context_isa(b->context)),
        b->o.exactness == DSR_EXACT_ROW ? "row" : "device", (unsigned)b->o.n_threads, (unsigned)b->o.n_rounds,
        b->o.clock == CLOCK_MONOTONIC ? "wall" : "processor");
    printf("%-22s %12s %9u reqs %7s %20s %7s\n", "milliseconds", "1 request", (unsigned)b->o.n_requests, "ratio",
           "least times", "ratio");
    for (int p = 0; p < PART_READ; p++) {
        const double one = median(b, (part)p, 0), many = median(b, (part)p, 1);
        const double least_one = b->seconds[p][0][0], least_many = b->seconds[p][1][0]; /* median sorted them */
        printf("%-22s %12.3f %14.3f %7.2f %10.3f %9.3f %7.2f\n", part_names[p], 1e3 * one, 1e3 * many, many / one,
               1e3 * least_one, 1e3 * least_many, least_many / least_one);
    }
    printf("%-22s %12.3f %32.3f\n\n", part_names[PART_READ], 1e3 * (double)b->weight_bytes / read_rate,
           1e3 * (double)b->weight_bytes / READ_BYTES * b->seconds[PART_READ][0][0]);
    printf("weights %.1f MB; projections at one row read %.2f GB/s, %.0f %% of the %.2f GB/s that reading alone has\n",
           1e-6 * (double)b->weight_bytes, 1e-9 * projection_rate, 100 * projection_rate / read_rate, 1e-9 * read_rate);
}

static uint32_t number_of(const char *text, uint32_t least, uint32_t most)
{
    char *end;
    const unsigned long value = strtoul(text, &end, 10);
    if (*end != '\0' || value < least || value > most) {
        fprintf(stderr, "%s: give a number from %u to %u\n", text, (unsigned)least, (unsigned)most);
        exit(2);
    }
    return (uint32_t)value;
}

static dsr_cache_treatment cache_of(const char *name)
{
    for (int cache = 0; cache < 3; cache++)
        if (strcmp(name, cache_names[cache]) == 0)
            return (dsr_cache_treatment)cache;
    fprintf(stderr, "%s: give bf16, official or packed\n", name);
    exit(2);
}

static options parse(int argc, char **argv)
{
    options o = {.n_threads = 1, .n_requests = 8, .context = 32768, .n_rounds = 15, .clock = CLOCK_MONOTONIC};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--threads") == 0)
            o.n_threads = number_of(argv[i + 1], 1, 1024);
        else if (strcmp(argv[i], "--requests") == 0)
            o.n_requests = number_of(argv[i + 1], 1, MAX_REQUESTS);
        else if (strcmp(argv[i], "--context") == 0)
            o.context = number_of(argv[i + 1], 4096, 1000000);
        else if (strcmp(argv[i], "--rounds") == 0)
            o.n_rounds = number_of(argv[i + 1], 1, MAX_ROUNDS);
        else if (strcmp(argv[i], "--cache") == 0)
            o.cache = cache_of(argv[i + 1]);
        else if (strcmp(argv[i], "--clock") == 0)
            o.clock = strcmp(argv[i + 1], "cpu") == 0 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
        else if (strcmp(argv[i], "--exact") == 0)
            o.exactness = strcmp(argv[i + 1], "row") == 0 ? DSR_EXACT_ROW : DSR_EXACT_DEVICE;
        else
            argc = -1;
    }
    if (argc < 0 || argc % 2 == 0) {
        fputs("usage: bench_attention_block [--threads N] [--requests N] [--context N] [--rounds N] "
              "[--cache bf16|official|packed] [--clock wall|cpu] [--exact device|row]\n",
              stderr);
        exit(2);
    }
    return o;
}

int main(int argc, char **argv)
{
    bench *b = calloc(1, sizeof *b);
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    if (b == NULL)
        return 1;
    b->o = parse(argc, argv);
    desc.n_threads = b->o.n_threads;
    desc.exactness = b->o.exactness;
    if (dsr_context_create(&desc, &b->context) != DSR_OK) {
        fprintf(stderr, "%s\n", dsr_create_error_text());
        return 1;
    }
    for (int p = 1; p < N_PARTS; p++)
        for (int all = 0; all < 2; all++)
            must(dsr_encoder_create(b->context, &b->encoders[p][all]));
    open_layer(b);
    encode_projections(b);
    encode_indexer(b);
    encode_attention(b);
    encode_reading(b);
    run_rounds(b);
    report(b);
    /* The process ends here: its memory goes with it. */
    return 0;
}
