/* The same work done by this library and by matrix product libraries with hand-written glue, in one process on the same
 * operands and threads; samples are taken in turn, results are checked against float64, medians are printed.
 *
 *   dsrows_peers [--threads N] [--seconds S] [indexer] [attention] */
#include "peer.h"

#include <dsrows/dsrows.h>

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_SAMPLES = 2001, POOL_ROWS = 16512, WINDOW = 128, DEVICE = 0, ROW = 1 };

typedef enum work { WORK_SCORES, WORK_SELECT, WORK_INDEXER, WORK_ATTENTION } work;

/* The operands of a shape, in BF16 and widened, and what the peers leave behind. */
typedef struct operands {
    uint32_t n_keys;
    uint16_t *keys, *q;
    float *keys_f32, *q_f32, *weights;
    int32_t *indices;
    double *exact, *bound;
    float *scores;
    int32_t *list;
    uint16_t *output;
    void *packed, *gathered, *values, *p;
    float *products, *mixed, *inverse;
    uint64_t *selection;
} operands;

typedef struct contestant {
    const char *name;
    const peer *peer; /* null: this library, or selection alone */
    dsr_context *context;
    int exactness, is_flash;
    dsr_encoder *encoder;
    dsr_buffer *buffers[8];
    uint32_t n_buffers;
    dsr_indexer_desc indexer;
    dsr_indexer_row indexer_row;
    dsr_attention_desc attention;
    dsr_attention_row attention_row;
    double samples[MAX_SAMPLES];
    double least, median;
} contestant;

static const peer *const known_peers[] = {
#ifdef HAVE_OPENBLAS
    &peer_openblas,
#endif
#ifdef HAVE_XSMM
    &peer_xsmm_f32,
#endif
#ifdef HAVE_DNNL
    &peer_dnnl,
#endif
#ifdef HAVE_XSMM
    &peer_xsmm_bf16,
#endif
    NULL,
};

static dsr_context *contexts[2];
static uint32_t n_threads = 1;
static double seconds = 1;
static int n_wrong;

static void need(int is_good, const char *what)
{
    if (is_good)
        return;
    fprintf(stderr, "dsrows_peers: %s\n", what);
    exit(1);
}

static void check(dsr_status status, const dsr_context *context)
{
    need(status == DSR_OK, context ? dsr_context_error_text(context) : dsr_create_error_text());
}

static void *zeros(size_t n, size_t size)
{
    const size_t n_bytes = (n * size + 4095) / 4096 * 4096;
    void *memory = aligned_alloc(4096, n_bytes);
    need(memory != NULL, "out of memory");
    memset(memory, 0, n_bytes);
    return memory;
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Work on one thread is timed by the thread's own clock, which stands still while others have the core. */
static clockid_t sample_clock(void)
{
    return n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
}

/* ---- operands ---------------------------------------------------------------------------------------------- */

static uint32_t next_random(void)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

/* About normal, variance 1. */
static float random_value(void)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(next_random() >> 8) * 0x1p-24f;
    return (sum - 2) * 1.7320508f;
}

static void fill(uint16_t *narrow, float *wide, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        narrow[i] = glue_to_bf16(random_value());
        wide[i] = glue_to_f32(narrow[i]);
    }
}

/* rows of dim features as keys or KV cache. */
static operands make_operands(uint32_t rows, uint32_t dim)
{
    operands o = {.n_keys = rows};
    o.keys = zeros((size_t)rows * dim, sizeof *o.keys);
    o.keys_f32 = zeros((size_t)rows * dim, sizeof *o.keys_f32);
    o.q = zeros((size_t)N_HEADS * dim, sizeof *o.q);
    o.q_f32 = zeros((size_t)N_HEADS * dim, sizeof *o.q_f32);
    o.weights = zeros(N_HEADS, sizeof *o.weights);
    fill(o.keys, o.keys_f32, (size_t)rows * dim);
    fill(o.q, o.q_f32, (size_t)N_HEADS * dim);
    for (uint32_t h = 0; h < N_HEADS; h++)
        o.weights[h] = random_value();
    o.packed = zeros(1, PEER_PACKED_BYTES);
    return o;
}

static operands make_index_operands(uint32_t n_keys)
{
    operands o = make_operands(n_keys, INDEX_DIM);
    for (uint32_t h = 0; h < N_HEADS; h++)
        o.weights[h] *= DSR_INDEXER_SCALE;
    o.exact = zeros(n_keys, sizeof *o.exact);
    o.bound = zeros(n_keys, sizeof *o.bound);
    o.scores = zeros(n_keys, sizeof *o.scores);
    o.list = zeros(TOP_K, sizeof *o.list);
    o.products = zeros((size_t)n_threads * 2048 * N_HEADS, sizeof *o.products);
    o.selection = zeros(n_keys, sizeof *o.selection);
    exact_scores(o.keys_f32, n_keys, o.q_f32, o.weights, o.exact, o.bound);
    return o;
}

static operands make_attention_operands(void)
{
    const size_t n = (size_t)N_HEADS * HEAD_DIM;
    operands o = make_operands(POOL_ROWS, HEAD_DIM);
    o.indices = zeros(N_SLOTS, sizeof *o.indices);
    for (uint32_t s = 0; s < N_SLOTS; s++)
        o.indices[s] = (int32_t)(s < WINDOW ? s : WINDOW + next_random() % (POOL_ROWS - WINDOW));
    o.exact = zeros(n, sizeof *o.exact);
    o.bound = zeros(n, sizeof *o.bound);
    o.output = zeros(n, sizeof *o.output);
    o.gathered = zeros((size_t)N_SLOTS * HEAD_DIM, sizeof(float));
    o.values = zeros((size_t)N_SLOTS * HEAD_DIM, sizeof(float));
    o.p = zeros((size_t)N_HEADS * N_SLOTS, sizeof(float));
    o.products = zeros((size_t)N_SLOTS * N_HEADS, sizeof *o.products);
    o.mixed = zeros(n, sizeof *o.mixed);
    o.inverse = zeros(N_HEADS, sizeof *o.inverse);
    exact_attention(o.keys_f32, o.indices, o.q_f32, DSR_ATTENTION_SCALE, o.weights, o.exact, o.bound);
    return o;
}

static void free_operands(operands *o)
{
    void *const all[] = {o->keys,  o->q,      o->keys_f32, o->q_f32,    o->weights,  o->indices,  o->exact,
                         o->bound, o->scores, o->list,     o->output,   o->packed,   o->gathered, o->values,
                         o->p,     o->mixed,  o->inverse,  o->products, o->selection};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

/* ---- a peer's turn ----------------------------------------------------------------------------------------- */

/* The largest block, at most `most`, that cuts total into equal parts, halved until there is one for every thread. */
static uint32_t block_size(uint32_t total, uint32_t most, uint32_t least)
{
    uint32_t block = total;
    while (block > least && block % 2 == 0 && (block > most || total / block < n_threads))
        block /= 2;
    return block;
}

static peer_shape shape_for(const peer *p, uint32_t n_keys)
{
    const peer_shape shape = {.key_block = block_size(n_keys, p->key_block, 64),
                              .slot_block = block_size(N_SLOTS, p->slot_block, 16),
                              .head_group = block_size(N_HEADS, N_HEADS, 16),
                              .n_threads = n_threads};
    return shape;
}

static void peer_scores(const peer *p, operands *o)
{
    const peer_shape shape = shape_for(p, o->n_keys);
    const uint32_t block = shape.key_block, n_blocks = o->n_keys / block;
    const size_t key_bytes = INDEX_DIM * (p->is_bf16 ? 2 : 4);
    const char *keys = p->is_bf16 ? (const char *)o->keys : (const char *)o->keys_f32;
    p->pack_queries(p->is_bf16 ? (const void *)o->q : o->q_f32, INDEX_DIM, o->packed);
#pragma omp parallel for schedule(static) num_threads((int)n_threads) if (n_threads > 1)
    for (uint32_t b = 0; b < n_blocks; b++) {
        float *products = o->products + (size_t)omp_get_thread_num() * block * N_HEADS;
        p->products(keys + b * block * key_bytes, block, INDEX_DIM, o->packed, products);
        glue_relu_sum(products, block, o->weights, o->scores + (size_t)b * block);
    }
}

static void peer_logits(const peer *p, operands *o, uint32_t block)
{
    const uint32_t row_bytes = HEAD_DIM * (p->is_bf16 ? 2u : 4u);
    const void *pool = p->is_bf16 ? (const void *)o->keys : o->keys_f32;
#pragma omp parallel for schedule(static) num_threads((int)n_threads) if (n_threads > 1)
    for (uint32_t s = 0; s < N_SLOTS; s += block) {
        char *slots = (char *)o->gathered + (size_t)s * row_bytes;
        glue_gather(pool, row_bytes, o->indices + s, block, slots);
        p->products(slots, block, HEAD_DIM, o->packed, o->products + (size_t)s * N_HEADS);
        if (p->pack_values)
            p->pack_values(slots, block, (char *)o->values + (size_t)s * row_bytes);
    }
}

static void peer_attention(const peer *p, operands *o)
{
    const peer_shape shape = shape_for(p, 2048);
    const uint32_t group = shape.head_group;
    const size_t p_bytes = N_SLOTS * (p->is_bf16 ? 2 : 4);
    p->pack_queries(p->is_bf16 ? (const void *)o->q : o->q_f32, HEAD_DIM, o->packed);
    peer_logits(p, o, shape.slot_block);
#pragma omp parallel for schedule(static) num_threads((int)n_threads) if (n_threads > 1)
    for (uint32_t h = 0; h < N_HEADS; h += group) {
        float *mixed = o->mixed + (size_t)h * HEAD_DIM;
        glue_softmax(o->products, h, group, DSR_ATTENTION_SCALE, o->weights, p->is_bf16, o->p, o->inverse);
        p->mix((const char *)o->p + h * p_bytes, group, p->pack_values ? o->values : o->gathered, mixed);
        glue_output(mixed, group, o->inverse + h, o->output + (size_t)h * HEAD_DIM);
    }
}

/* ---- our turn ---------------------------------------------------------------------------------------------- */

static dsr_view wrap(contestant *c, void *data, size_t n_bytes, dsr_dtype dtype)
{
    dsr_buffer *buffer = NULL;
    check(dsr_buffer_wrap(c->context, data, n_bytes, &buffer), c->context);
    c->buffers[c->n_buffers++] = buffer;
    return dsr_view_whole(buffer, dtype);
}

static dsr_view workspace(contestant *c, uint64_t n_bytes)
{
    dsr_buffer *buffer = NULL;
    check(dsr_buffer_create(c->context, n_bytes ? n_bytes : 1, &buffer), c->context);
    c->buffers[c->n_buffers++] = buffer;
    return dsr_view_whole(buffer, DSR_DTYPE_U8);
}

static void describe_indexer(contestant *c, operands *o, work what)
{
    const dsr_indexer_row row = {.keys = wrap(c, o->keys, 2 * (size_t)o->n_keys * INDEX_DIM, DSR_DTYPE_BF16),
                                 .kv_len = o->n_keys,
                                 .start_pos = 4 * o->n_keys - 1};
    const dsr_indexer_desc init = DSR_INDEXER_DESC_INIT;
    uint64_t n_bytes;
    c->indexer_row = row;
    c->indexer = init;
    c->indexer.n_rows = 1;
    c->indexer.rows = &c->indexer_row;
    c->indexer.n_heads = N_HEADS;
    c->indexer.q = wrap(c, o->q, 2 * N_HEADS * INDEX_DIM, DSR_DTYPE_BF16);
    c->indexer.weights = wrap(c, o->weights, 4 * N_HEADS, DSR_DTYPE_F32);
    c->indexer.output = wrap(c, o->list, 4 * TOP_K, DSR_DTYPE_I32);
    c->indexer.top_k = TOP_K;
    if (what == WORK_SCORES) {
        c->indexer.top_k = 32;
        c->indexer.scores = wrap(c, o->scores, 4 * (size_t)o->n_keys, DSR_DTYPE_F32);
    }
    check(dsr_indexer_workspace(c->context, &c->indexer, &n_bytes), c->context);
    c->indexer.workspace = workspace(c, n_bytes);
}

static void describe_attention(contestant *c, operands *o)
{
    const dsr_attention_row row = {.kv = wrap(c, o->keys, 2 * (size_t)POOL_ROWS * HEAD_DIM, DSR_DTYPE_BF16),
                                   .kv_len = POOL_ROWS,
                                   .width = N_SLOTS};
    const dsr_attention_desc init = DSR_ATTENTION_DESC_INIT;
    uint64_t n_bytes;
    c->attention_row = row;
    c->attention = init;
    c->attention.n_rows = 1;
    c->attention.rows = &c->attention_row;
    c->attention.n_heads = N_HEADS;
    c->attention.scale = DSR_ATTENTION_SCALE;
    c->attention.q = wrap(c, o->q, 2 * N_HEADS * HEAD_DIM, DSR_DTYPE_BF16);
    c->attention.indices = wrap(c, o->indices, 4 * N_SLOTS, DSR_DTYPE_I32);
    c->attention.sinks = wrap(c, o->weights, 4 * N_HEADS, DSR_DTYPE_F32);
    c->attention.output = wrap(c, o->output, 2 * N_HEADS * HEAD_DIM, DSR_DTYPE_BF16);
    check(c->is_flash ? dsr_flash_attention_workspace(c->context, &c->attention, &n_bytes)
                      : dsr_sparse_attention_workspace(c->context, &c->attention, &n_bytes),
          c->context);
    c->attention.workspace = workspace(c, n_bytes);
}

static dsr_status encode(contestant *c, work what)
{
    if (what != WORK_ATTENTION)
        return dsr_encode_indexer(c->encoder, &c->indexer);
    return c->is_flash ? dsr_encode_flash_attention(c->encoder, &c->attention)
                       : dsr_encode_sparse_attention(c->encoder, &c->attention);
}

static void our_turn(contestant *c, work what)
{
    check(dsr_encoder_reset(c->encoder), c->context);
    check(encode(c, what), c->context);
    check(dsr_encoder_submit(c->encoder), c->context);
    check(dsr_encoder_wait(c->encoder), c->context);
}

static void turn(contestant *c, operands *o, work what)
{
    if (c->context)
        our_turn(c, what);
    else if (what == WORK_ATTENTION)
        peer_attention(c->peer, o);
    else if (what != WORK_SELECT)
        peer_scores(c->peer, o);
    if (what == WORK_SELECT || (what == WORK_INDEXER && !c->context))
        glue_top_k(o->scores, o->n_keys, o->selection, o->list);
}

/* ---- results ----------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int scores_are_right(const operands *o)
{
    for (uint32_t i = 0; i < o->n_keys; i++)
        if (!(fabs((double)o->scores[i] - o->exact[i]) <= o->bound[i]))
            return 0;
    return 1;
}

/* TOP_K different keys, each at least as good as the exact list's last, but for what F32 sums may be off. */
static int list_is_right(const operands *o)
{
    double *sorted = zeros(o->n_keys, sizeof *sorted);
    char *is_listed = zeros(o->n_keys, 1);
    int is_right = 1;
    memcpy(sorted, o->exact, o->n_keys * sizeof *sorted);
    qsort(sorted, o->n_keys, sizeof *sorted, by_value);
    for (uint32_t i = 0; i < TOP_K && is_right; i++) {
        const uint32_t t = (uint32_t)o->list[i];
        is_right = t < o->n_keys && !is_listed[t] && o->exact[t] >= sorted[o->n_keys - TOP_K] - 2 * o->bound[t];
        if (is_right)
            is_listed[t] = 1;
    }
    free(sorted);
    free(is_listed);
    return is_right;
}

/* An output rounded to BF16 is off by 2^-8 of itself at most; BF16 softmax weights add rounding errors of either sign.
 */
static int output_is_right(const operands *o, int is_bf16)
{
    for (uint32_t i = 0; i < N_HEADS * HEAD_DIM; i++) {
        const double allowed = fabs(o->exact[i]) * 0x1.01p-8 + o->bound[i] * (is_bf16 ? 0x1p-10 : 1e-6);
        if (!(fabs((double)glue_to_f32(o->output[i]) - o->exact[i]) <= allowed))
            return 0;
    }
    return 1;
}

static void forget_results(operands *o)
{
    if (o->output)
        memset(o->output, 0xff, 2 * N_HEADS * HEAD_DIM);
    if (o->list)
        memset(o->list, 0xff, 4 * TOP_K);
    if (o->scores)
        memset(o->scores, 0xff, 4 * (size_t)o->n_keys);
}

static void check_results(contestant *c, operands *o, work what)
{
    const int is_bf16 = c->context ? c->exactness == ROW : c->peer && c->peer->is_bf16;
    int is_right;
    if (what != WORK_SELECT)
        forget_results(o);
    turn(c, o, what);
    if (what == WORK_SCORES)
        is_right = scores_are_right(o);
    else
        is_right = what == WORK_ATTENTION ? output_is_right(o, is_bf16) : list_is_right(o);
    if (!is_right) {
        printf("WRONG RESULT of %s\n", c->name);
        n_wrong++;
    }
}

/* Threads of an OpenMP library spin for milliseconds after their work; on several threads the next contestant waits
 * until those of the one before sleep. */
static void let_others_sleep(void)
{
    const struct timespec pause = {0, 50 * 1000 * 1000};
    if (n_threads > 1)
        nanosleep(&pause, NULL);
}

/* Samples are taken in turn, one of each contestant on one thread, a few on several. One untimed turn before them:
 * every contestant finds its own operands in the caches and its own threads awake. */
static uint32_t take_samples(contestant *c, uint32_t n, operands *o, work what)
{
    const double end = seconds_of(CLOCK_MONOTONIC) + seconds;
    const uint32_t at_once = n_threads > 1 ? 8 : 1;
    uint32_t n_samples = 0;
    while (n_samples + at_once <= MAX_SAMPLES && (n_samples < 5 || seconds_of(CLOCK_MONOTONIC) < end)) {
        for (uint32_t i = 0; i < n; i++) {
            let_others_sleep();
            turn(&c[i], o, what);
            for (uint32_t k = 0; k < at_once; k++) {
                const double begin = seconds_of(sample_clock());
                turn(&c[i], o, what);
                c[i].samples[n_samples + k] = seconds_of(sample_clock()) - begin;
            }
        }
        n_samples += at_once;
    }
    return n_samples;
}

static void print_table(const char *shape, const contestant *c, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        printf("%-32s %-26s %9.1f %9.1f", i ? "" : shape, c[i].name, 1e6 * c[i].least, 1e6 * c[i].median);
        if (c[0].context)
            printf(" %8.2f %8.2f", c[i].median / c[DEVICE].median, c[i].median / c[ROW].median);
        putchar('\n');
    }
    fflush(stdout);
}

/* ---- a shape ----------------------------------------------------------------------------------------------- */

static uint32_t list_ours(contestant *c, work what)
{
    static const char *const names[2][2] = {{"dsrows device-exact", "dsrows row-exact"},
                                            {"dsrows device-exact flash", "dsrows row-exact flash"}};
    uint32_t n = 0;
    for (int is_flash = 0; is_flash <= (what == WORK_ATTENTION); is_flash++)
        for (int exactness = DEVICE; exactness <= ROW; exactness++) {
            c[n].name = names[is_flash][exactness];
            c[n].context = contexts[exactness];
            c[n].exactness = exactness;
            c[n].is_flash = is_flash;
            n++;
        }
    return n;
}

static uint32_t list_peers(contestant *c, uint32_t n_keys)
{
    uint32_t n = 0;
    for (const peer *const *p = known_peers; *p; p++) {
        const peer_shape shape = shape_for(*p, n_keys);
        const char *why = (*p)->prepare(&shape);
        if (why) {
            printf("%s left out: %s\n", (*p)->name, why);
            continue;
        }
        c[n].name = (*p)->name;
        c[n].peer = *p;
        n++;
    }
    return n;
}

static void open_ours(contestant *c, operands *o, work what)
{
    check(dsr_encoder_create(c->context, &c->encoder), c->context);
    if (what == WORK_ATTENTION)
        describe_attention(c, o);
    else
        describe_indexer(c, o, what);
}

static void close_ours(contestant *c)
{
    dsr_encoder_destroy(c->encoder);
    for (uint32_t i = 0; i < c->n_buffers; i++)
        dsr_buffer_destroy(c->buffers[i]);
}

static void measure(const char *shape, operands *o, work what)
{
    enum { MOST = 12 };
    contestant *c = zeros(MOST, sizeof *c);
    uint32_t n = 0;
    if (what == WORK_SELECT) {
        c[n++].name = "glue, after any peer";
    } else {
        n = list_ours(c, what);
        n += list_peers(c + n, what == WORK_ATTENTION ? 2048 : o->n_keys);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (c[i].context)
            open_ours(&c[i], o, what);
        check_results(&c[i], o, what);
    }
    const uint32_t n_samples = take_samples(c, n, o, what);
    for (uint32_t i = 0; i < n; i++) {
        qsort(c[i].samples, n_samples, sizeof c[i].samples[0], by_value);
        c[i].least = c[i].samples[0];
        c[i].median = c[i].samples[n_samples / 2];
    }
    print_table(shape, c, n);
    for (uint32_t i = 0; i < n; i++)
        close_ours(&c[i]);
    free(c);
}

static void measure_indexer(uint32_t n_keys)
{
    char shape[64];
    operands o = make_index_operands(n_keys);
    snprintf(shape, sizeof shape, "scores, %u keys", n_keys);
    measure(shape, &o, WORK_SCORES);
    snprintf(shape, sizeof shape, "top-512 of %u", n_keys);
    measure(shape, &o, WORK_SELECT);
    snprintf(shape, sizeof shape, "scores + top-512, %u keys", n_keys);
    measure(shape, &o, WORK_INDEXER);
    free_operands(&o);
}

static void measure_attention(void)
{
    operands o = make_attention_operands();
    measure("attention, 640 slots", &o, WORK_ATTENTION);
    free_operands(&o);
}

/* ---- command line ------------------------------------------------------------------------------------------ */

static dsr_context *open_context(dsr_exactness exactness)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    dsr_context *context = NULL;
    desc.exactness = exactness;
    desc.n_threads = n_threads;
    check(dsr_context_create(&desc, &context), NULL);
    return context;
}

static void print_head(void)
{
    printf("one row, 64 heads, %u thread%s, %s time; dsrows: %s\n", n_threads, n_threads == 1 ? "" : "s",
           n_threads == 1 ? "CPU" : "wall clock", dsr_isa_name(dsr_context_isa(contexts[DEVICE])));
    for (const peer *const *p = known_peers; *p; p++) {
        const peer_shape shape = shape_for(*p, 2048);
        const char *why = (*p)->prepare(&shape);
        printf("%s: %s\n", (*p)->name, why ? why : (*p)->detail());
    }
    printf("%-32s %-26s %9s %9s %8s %8s\n", "", "microseconds:", "least", "median", "/ device", "/ row");
}

static int usage(void)
{
    fprintf(stderr, "usage: dsrows_peers [--threads N] [--seconds S] [indexer] [attention]\n");
    return 2;
}

int main(int argc, char **argv)
{
    int is_indexer = 0, is_attention = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            n_threads = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            seconds = strtod(argv[++i], NULL);
        else if (strcmp(argv[i], "indexer") == 0)
            is_indexer = 1;
        else if (strcmp(argv[i], "attention") == 0)
            is_attention = 1;
        else
            return usage();
    }
    if (n_threads < 1 || n_threads > 256 || !(seconds >= 0))
        return usage();
    omp_set_num_threads(1); /* for what the libraries do on their own; our parallel loops say how many they want */
    contexts[DEVICE] = open_context(DSR_EXACT_DEVICE);
    contexts[ROW] = open_context(DSR_EXACT_ROW);
    print_head();
    if (is_indexer || !is_attention)
        for (uint32_t n_keys = 2048; n_keys <= 65536; n_keys *= n_keys == 2048 ? 8 : 4)
            measure_indexer(n_keys);
    if (is_attention || !is_indexer)
        measure_attention();
    dsr_context_destroy(contexts[ROW]);
    dsr_context_destroy(contexts[DEVICE]);
    return n_wrong > 0;
}
