/* Times of the ops on a CUDA device, in microseconds; random data larger than the L2 cache.
 * dsrows_gpu_bench [device|row] [indexer|attention|core|parts|launch] [fp4[=SPAN]|fp8] [q=SPAN] [flash]
 *                  [ROWS CONTEXT-OR-WIDTH]
 * Scales of FP4 keys are drawn from SPAN + 1 powers of two, 3 by default; those of a head's blocks with q=SPAN, too.
 * "least", "median" and "90 %" are of events around one replay that is in the stream before its turn comes, so that the
 * device's time alone counts; "idle" is the median where the stream is empty, the CPU's launch included; "in a row" is
 * replays one after another; "CPU" is what the CPU needs for a replay. "parts" times the commands of the core step. */
#include <dsrows/dsrows.h>

#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int (*event_create_fn)(void **event, unsigned flags);
typedef int (*event_record_fn)(void *event, void *stream);
typedef int (*event_wait_fn)(void *event);
typedef int (*event_elapsed_fn)(float *milliseconds, void *begin, void *end);
typedef int (*stream_create_fn)(void **stream, unsigned flags);
typedef int (*context_fn)(void **context, int device);
typedef int (*push_fn)(void *context);
typedef int (*module_fn)(void **module, const void *image);
typedef int (*function_fn)(void **function, void *module, const char *name);
typedef int (*launch_fn)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                         unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **arguments,
                         void **extra);

typedef struct cuda_timer {
    event_record_fn record;
    event_wait_fn wait;
    event_elapsed_fn elapsed;
    launch_fn launch;
    void *stream, *begin, *end, *delay;
} cuda_timer;

/* A kernel that keeps a stream busy for a number of clock ticks. */
static const char delay_code[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
                                 ".visible .entry delay(.param .u64 ticks)\n{\n"
                                 ".reg .u64 %r<4>;\n.reg .pred %p;\n"
                                 "ld.param.u64 %r1, [ticks];\n"
                                 "mov.u64 %r2, %clock64;\n"
                                 "again:\n"
                                 "mov.u64 %r3, %clock64;\n"
                                 "sub.u64 %r3, %r3, %r2;\n"
                                 "setp.lt.u64 %p, %r3, %r1;\n"
                                 "@%p bra again;\n"
                                 "ret;\n}\n";

static void need(int is_good, const char *what)
{
    if (is_good)
        return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void *symbol(void *library, const char *name, void *function)
{
    void *address = dlsym(library, name);
    need(address != NULL, name);
    memcpy(function, &address, sizeof address);
    return address;
}

static cuda_timer timer_open(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    need(library != NULL, "no CUDA driver");
    cuda_timer timer;
    event_create_fn event_create;
    stream_create_fn stream_create;
    context_fn retain;
    push_fn push;
    module_fn module_load;
    function_fn function_of;
    void *context = NULL, *module = NULL;
    symbol(library, "cuEventCreate", &event_create);
    symbol(library, "cuEventRecord", &timer.record);
    symbol(library, "cuEventSynchronize", &timer.wait);
    symbol(library, "cuEventElapsedTime", &timer.elapsed);
    symbol(library, "cuStreamCreate", &stream_create);
    symbol(library, "cuDevicePrimaryCtxRetain", &retain);
    symbol(library, "cuCtxPushCurrent_v2", &push);
    symbol(library, "cuModuleLoadData", &module_load);
    symbol(library, "cuModuleGetFunction", &function_of);
    symbol(library, "cuLaunchKernel", &timer.launch);
    need(retain(&context, 0) == 0 && push(context) == 0, "no context");
    need(stream_create(&timer.stream, 1) == 0 && event_create(&timer.begin, 0) == 0 && event_create(&timer.end, 0) == 0,
         "no stream or events");
    need(module_load(&module, delay_code) == 0 && function_of(&timer.delay, module, "delay") == 0, "no delay");
    return timer;
}

static dsr_context *context;

static void check(dsr_status status, const char *what)
{
    if (status == DSR_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, dsr_status_name(status), dsr_context_error_text(context));
    exit(1);
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

/* About normal, variance 1. */
static float random_value(uint64_t *state)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(next_random(state) >> 8) * 0x1p-24f;
    return (sum - 2) * 1.7320508f;
}

static uint16_t to_bf16(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return (uint16_t)((b + 0x7fffu + (b >> 16 & 1u)) >> 16);
}

static uint64_t random_state = 1;

/* A buffer of random bytes, those from n_values on E8M0 scales of n_powers powers of two from 2^-1 on. */
static dsr_buffer *random_packed(uint64_t n_values, uint64_t n_scales, uint32_t n_powers)
{
    uint8_t *bytes = malloc(n_values + n_scales);
    dsr_buffer *buffer;
    need(bytes != NULL, "out of memory");
    for (uint64_t i = 0; i < n_values + n_scales; i++)
        bytes[i] = (uint8_t)(i < n_values ? next_random(&random_state) : 126 + next_random(&random_state) % n_powers);
    check(dsr_buffer_create(context, n_values + n_scales, &buffer), "buffer");
    check(dsr_buffer_write(buffer, 0, bytes, n_values + n_scales), "write");
    free(bytes);
    return buffer;
}

/* Queries on the FP4 grid, blocks of n_powers scales from 1 on. */
static dsr_buffer *random_grid(uint64_t n, uint32_t n_powers)
{
    float scale = 1;
    static const float sizes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    uint16_t *values = malloc(n * sizeof *values);
    dsr_buffer *buffer;
    need(values != NULL, "out of memory");
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t code = next_random(&random_state) % 16;
        if (i % 32 == 0)
            scale = (float)(1u << next_random(&random_state) % n_powers);
        values[i] = to_bf16(scale * (code & 8 ? -sizes[code & 7] : sizes[code & 7]));
    }
    check(dsr_buffer_create(context, 2 * n, &buffer), "buffer");
    check(dsr_buffer_write(buffer, 0, values, 2 * n), "write");
    free(values);
    return buffer;
}

/* A buffer of random BF16 values; long ones repeat a pool from different places. */
static dsr_buffer *random_bf16(uint64_t n)
{
    enum { POOL = 1 << 22 };
    static uint16_t *pool;
    dsr_buffer *buffer;
    if (!pool) {
        pool = malloc(POOL * sizeof *pool);
        need(pool != NULL, "out of memory");
        for (uint32_t i = 0; i < POOL; i++)
            pool[i] = to_bf16(random_value(&random_state));
    }
    check(dsr_buffer_create(context, 2 * n, &buffer), "buffer");
    for (uint64_t done = 0; done < n;) {
        const uint64_t from = next_random(&random_state) % (POOL / 2);
        const uint64_t left = n - done, piece = left < POOL - from ? left : POOL - from;
        check(dsr_buffer_write(buffer, 2 * done, pool + from, 2 * piece), "write");
        done += piece;
    }
    return buffer;
}

static dsr_buffer *random_f32(uint64_t n, float scale)
{
    float *values = malloc(n * sizeof *values);
    dsr_buffer *buffer;
    need(values != NULL, "out of memory");
    for (uint64_t i = 0; i < n; i++)
        values[i] = random_value(&random_state) * scale;
    check(dsr_buffer_create(context, 4 * n, &buffer), "buffer");
    check(dsr_buffer_write(buffer, 0, values, 4 * n), "write");
    free(values);
    return buffer;
}

static dsr_buffer *plain(uint64_t n_bytes)
{
    dsr_buffer *buffer;
    check(dsr_buffer_create(context, n_bytes ? n_bytes : 1, &buffer), "buffer");
    return buffer;
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

enum { SAMPLES = 101 };

static void keep_busy(const cuda_timer *timer, uint64_t ticks)
{
    void *arguments[1] = {&ticks};
    need(timer->launch(timer->delay, 1, 1, 1, 1, 1, 1, 0, timer->stream, arguments, NULL) == 0, "delay");
}

static float elapsed(const cuda_timer *timer)
{
    float milliseconds = 0;
    timer->record(timer->end, timer->stream);
    need(timer->wait(timer->end) == 0 && timer->elapsed(&milliseconds, timer->begin, timer->end) == 0, "event");
    return 1000 * milliseconds;
}

/* Times of single replays; with a delay before each where is_busy. */
static void time_singles(const cuda_timer *timer, dsr_encoder **encoders, uint32_t n, int is_busy,
                         float samples[SAMPLES])
{
    for (int i = 0; i < SAMPLES; i++) {
        if (is_busy)
            keep_busy(timer, 100 * 1000);
        timer->record(timer->begin, timer->stream);
        check(dsr_encoder_replay(encoders[(uint32_t)i % n]), "replay");
        samples[i] = elapsed(timer);
    }
    qsort(samples, SAMPLES, sizeof *samples, by_value);
}

/* Microseconds of the CPU for a replay, the device being busy. */
static double cpu_time(const cuda_timer *timer, dsr_encoder **encoders, uint32_t n)
{
    struct timespec begin, end;
    keep_busy(timer, 1000 * 1000);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (uint32_t i = 0; i < n; i++)
        check(dsr_encoder_replay(encoders[i]), "replay");
    clock_gettime(CLOCK_MONOTONIC, &end);
    for (uint32_t i = 0; i < n; i++)
        check(dsr_encoder_wait(encoders[i]), "wait");
    return ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) / (1000.0 * n);
}

/* Sets of operands are used in turn, so that none of them waits in the cache. */
static void time_encoders(const cuda_timer *timer, dsr_encoder **encoders, uint32_t n, const char *name)
{
    float idle[SAMPLES], busy[SAMPLES];
    for (uint32_t i = 0; i < n; i++) {
        check(dsr_encoder_set_stream(encoders[i], timer->stream), "stream");
        check(dsr_encoder_submit(encoders[i]), "submit");
        check(dsr_encoder_wait(encoders[i]), "wait");
        check(dsr_encoder_replay(encoders[i]), "replay");
        check(dsr_encoder_wait(encoders[i]), "wait");
    }
    time_singles(timer, encoders, n, 0, idle);
    time_singles(timer, encoders, n, 1, busy);
    timer->record(timer->begin, timer->stream);
    for (int i = 0; i < SAMPLES; i++)
        check(dsr_encoder_replay(encoders[(uint32_t)i % n]), "replay");
    const float in_a_row = elapsed(timer) / SAMPLES;
    printf("%-44s %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f\n", name, busy[0], busy[SAMPLES / 2], busy[SAMPLES * 9 / 10],
           idle[SAMPLES / 2], in_a_row, cpu_time(timer, encoders, n));
    fflush(stdout);
}

static uint32_t n_sets(uint64_t bytes)
{
    const uint64_t n = 200 * 1000 * 1000 / (bytes ? bytes : 1) + 1;
    return n > 16 ? 16 : (uint32_t)n;
}

/* How many powers of two the scales of FP4 keys are drawn from, 0 for keys in BF16; and those of queries. */
typedef struct fp4_powers {
    uint32_t keys, queries;
} fp4_powers;

static void bench_indexer(const cuda_timer *timer, uint32_t n_rows, uint32_t tokens, fp4_powers powers)
{
    const int packed = powers.keys > 0;
    const uint32_t n_keys = tokens / 4, sets = n_sets((uint64_t)n_rows * n_keys * (packed ? 68 : 256));
    dsr_encoder *encoders[16];
    dsr_buffer *buffers[16 * 70];
    uint32_t n_buffers = 0;
    char name[64];
    for (uint32_t s = 0; s < sets; s++) {
        dsr_indexer_row rows[64];
        memset(rows, 0, sizeof rows);
        for (uint32_t r = 0; r < n_rows; r++) {
            dsr_buffer *keys = buffers[n_buffers++] =
                packed ? random_packed((uint64_t)n_keys * 64, (uint64_t)n_keys * 4, powers.keys)
                       : random_bf16((uint64_t)n_keys * 128);
            rows[r].keys = dsr_view_whole(keys, packed ? DSR_DTYPE_U8 : DSR_DTYPE_BF16);
            rows[r].key_layout.format = packed ? DSR_FORMAT_FP4 : DSR_FORMAT_BF16;
            rows[r].kv_len = n_keys;
            rows[r].q_row = r;
            rows[r].output_offset = 512 * r;
            rows[r].start_pos = tokens - 1;
        }
        dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
        desc.n_rows = n_rows;
        desc.rows = rows;
        desc.n_heads = 64;
        buffers[n_buffers] = packed ? random_grid(n_rows * 64 * 128, powers.queries) : random_bf16(n_rows * 64 * 128);
        desc.q = dsr_view_whole(buffers[n_buffers++], DSR_DTYPE_BF16);
        desc.weights = dsr_view_whole(buffers[n_buffers++] = random_f32(n_rows * 64, 0.011f), DSR_DTYPE_F32);
        desc.output = dsr_view_whole(buffers[n_buffers++] = plain(n_rows * 2048), DSR_DTYPE_I32);
        uint64_t bytes;
        check(dsr_indexer_workspace(context, &desc, &bytes), "workspace");
        desc.workspace = dsr_view_whole(buffers[n_buffers++] = plain(bytes), DSR_DTYPE_U8);
        check(dsr_encoder_create(context, &encoders[s]), "encoder");
        check(dsr_encode_indexer(encoders[s], &desc), "indexer");
    }
    snprintf(name, sizeof name, "indexer + top-512%s, %2u rows, context %u", packed ? ", FP4" : "", n_rows, tokens);
    time_encoders(timer, encoders, sets, name);
    for (uint32_t s = 0; s < sets; s++)
        dsr_encoder_destroy(encoders[s]);
    while (n_buffers)
        dsr_buffer_destroy(buffers[--n_buffers]);
}

/* FP8 rows in pages of 64 entries, in a shuffled order, made of random BF16 rows by the device. */
static void pack_rows(uint32_t n_entries, dsr_buffer *pages, dsr_buffer *table)
{
    const uint32_t n_pages = (n_entries + 63) / 64;
    int32_t *ids = malloc(n_pages * sizeof *ids);
    dsr_buffer *source = random_bf16((uint64_t)n_entries * 512);
    dsr_encoder *encoder;
    need(ids != NULL, "out of memory");
    for (uint32_t i = 0; i < n_pages; i++) {
        const uint32_t j = next_random(&random_state) % (i + 1);
        ids[i] = ids[j];
        ids[j] = (int32_t)i;
    }
    check(dsr_buffer_write(table, 0, ids, n_pages * sizeof *ids), "write");
    dsr_convert_row row;
    memset(&row, 0, sizeof row);
    row.source = dsr_view_whole(source, DSR_DTYPE_BF16);
    row.source_entries = n_entries;
    row.destination = dsr_view_whole(pages, DSR_DTYPE_U8);
    row.destination_layout.format = DSR_FORMAT_FP8;
    row.destination_layout.page_size = 64;
    row.destination_layout.page_table = dsr_view_whole(table, DSR_DTYPE_I32);
    row.destination_entries = n_entries;
    row.n_entries = n_entries;
    dsr_convert_desc convert = DSR_CONVERT_DESC_INIT;
    convert.n_rows = 1;
    convert.rows = &row;
    convert.dim = 512;
    check(dsr_encoder_create(context, &encoder), "encoder");
    check(dsr_encode_convert(encoder, &convert), "convert");
    check(dsr_encoder_submit(encoder), "submit");
    check(dsr_encoder_wait(encoder), "wait");
    dsr_encoder_destroy(encoder);
    dsr_buffer_destroy(source);
    free(ids);
}

typedef struct attention_shape {
    uint32_t n_rows, width, n_heads;
    int is_flash, is_packed;
} attention_shape;

enum { ATTENTION_POOL_ROWS = 16512, MAX_ATTENTION_ROWS = 64, MAX_ATTENTION_SETS = 16 };

/* Encoders of one shape over operands of their own, so that no replay finds what the one before it left in the cache.
 */
typedef struct attention_sets {
    dsr_encoder *encoders[MAX_ATTENTION_SETS];
    dsr_buffer *buffers[MAX_ATTENTION_SETS * (2 * MAX_ATTENTION_ROWS + 6)];
    uint32_t n_buffers;
} attention_sets;

static dsr_view hold(attention_sets *sets, dsr_buffer *buffer, dsr_dtype dtype)
{
    sets->buffers[sets->n_buffers++] = buffer;
    return dsr_view_whole(buffer, dtype);
}

static void draw_kv(attention_sets *sets, dsr_attention_row *row, int is_packed)
{
    const uint32_t n_pages = ATTENTION_POOL_ROWS / 64;
    if (!is_packed) {
        row->kv = hold(sets, random_bf16((uint64_t)ATTENTION_POOL_ROWS * 512), DSR_DTYPE_BF16);
        return;
    }
    dsr_buffer *pages = plain(n_pages * dsr_cache_page_bytes(DSR_FORMAT_FP8, 512, 64)), *table = plain(n_pages * 4);
    pack_rows(ATTENTION_POOL_ROWS, pages, table);
    row->kv = hold(sets, pages, DSR_DTYPE_U8);
    row->kv_layout.format = DSR_FORMAT_FP8;
    row->kv_layout.page_size = 64;
    row->kv_layout.page_table = hold(sets, table, DSR_DTYPE_I32);
}

static dsr_encoder *encode_attention(attention_sets *sets, const attention_shape *shape)
{
    const uint64_t n_rows = shape->n_rows, n_slots = n_rows * shape->width, n_heads = n_rows * shape->n_heads;
    dsr_attention_row rows[MAX_ATTENTION_ROWS];
    int32_t *indices = malloc(n_slots * sizeof *indices);
    need(indices != NULL, "out of memory");
    memset(rows, 0, sizeof rows);
    for (uint32_t r = 0; r < n_rows; r++) {
        draw_kv(sets, &rows[r], shape->is_packed);
        rows[r].kv_len = ATTENTION_POOL_ROWS;
        rows[r].q_row = r;
        rows[r].index_offset = (uint64_t)r * shape->width;
        rows[r].width = shape->width;
        for (uint32_t i = 0; i < shape->width; i++)
            indices[r * shape->width + i] = (int32_t)(i < 128 ? i : next_random(&random_state) % ATTENTION_POOL_ROWS);
    }
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    desc.n_rows = shape->n_rows;
    desc.rows = rows;
    desc.n_heads = shape->n_heads;
    desc.scale = DSR_ATTENTION_SCALE;
    desc.q = hold(sets, random_bf16(n_heads * 512), DSR_DTYPE_BF16);
    dsr_buffer *list = plain(n_slots * 4);
    check(dsr_buffer_write(list, 0, indices, n_slots * 4), "write");
    free(indices);
    desc.indices = hold(sets, list, DSR_DTYPE_I32);
    desc.sinks = hold(sets, random_f32(shape->n_heads, 1), DSR_DTYPE_F32);
    desc.output = hold(sets, plain(n_heads * 1024), DSR_DTYPE_BF16);
    uint64_t bytes;
    check((shape->is_flash ? dsr_flash_attention_workspace : dsr_sparse_attention_workspace)(context, &desc, &bytes),
          "workspace");
    desc.workspace = hold(sets, plain(bytes), DSR_DTYPE_U8);
    dsr_encoder *encoder;
    check(dsr_encoder_create(context, &encoder), "encoder");
    check((shape->is_flash ? dsr_encode_flash_attention : dsr_encode_sparse_attention)(encoder, &desc), "attention");
    return encoder;
}

static void bench_attention(const cuda_timer *timer, attention_shape shape)
{
    const uint32_t n_sets = 4;
    attention_sets sets = {.n_buffers = 0};
    char name[64];
    need(shape.n_rows <= MAX_ATTENTION_ROWS, "more than 64 rows");
    for (uint32_t s = 0; s < n_sets; s++)
        sets.encoders[s] = encode_attention(&sets, &shape);
    snprintf(name, sizeof name, "%s attention%s, %2u rows, %u heads x %u", shape.is_flash ? "flash" : "two-pass",
             shape.is_packed ? ", FP8 pages" : "", shape.n_rows, shape.n_heads, shape.width);
    time_encoders(timer, sets.encoders, n_sets, name);
    for (uint32_t s = 0; s < n_sets; s++)
        dsr_encoder_destroy(sets.encoders[s]);
    while (sets.n_buffers)
        dsr_buffer_destroy(sets.buffers[--sets.n_buffers]);
}

/* One encoder of all commands, or for each command one of it alone and one of all up to it. */
enum { CORE_COMMANDS = 10, MAX_CORE_ENCODERS = 2 * CORE_COMMANDS };

typedef struct core_encoder {
    dsr_encoder *encoder;
    uint32_t first, last; /* the commands it takes */
} core_encoder;

/* The operands of a step of the attention core; what is per row, in order. */
typedef struct core_step {
    core_encoder encoders[MAX_CORE_ENCODERS];
    uint32_t n_encoders;
    uint32_t n_commands; /* so far */
    const char *names[CORE_COMMANDS];
    uint32_t n_rows, position;
    dsr_buffer *buffers[1024];
    uint32_t n_buffers;
    dsr_view caches[64], index_caches[64];
    dsr_view entries, index_entries; /* what the compressors emit */
    dsr_view lists;                  /* [rows][640]: window slots, then the indexer's */
} core_step;

static dsr_view keep(core_step *step, dsr_buffer *buffer, dsr_dtype dtype)
{
    need(step->n_buffers < sizeof step->buffers / sizeof step->buffers[0], "too many buffers");
    step->buffers[step->n_buffers++] = buffer;
    return dsr_view_whole(buffer, dtype);
}

/* Appends a command to the encoders that take it. */
#define ENCODE(step, function, desc)                                                                                   \
    do {                                                                                                               \
        for (uint32_t i_ = 0; i_ < (step)->n_encoders; i_++)                                                           \
            if ((step)->encoders[i_].first <= (step)->n_commands && (step)->n_commands <= (step)->encoders[i_].last)   \
                check(function((step)->encoders[i_].encoder, desc), #function);                                        \
        (step)->names[(step)->n_commands++] = #function;                                                               \
    } while (0)

static dsr_view encode_compressor(core_step *step, uint32_t dim)
{
    const uint32_t n = step->n_rows, width = 2 * dim;
    const uint64_t n_state = dsr_compressor_state_elements(4, dim);
    dsr_compressor_row rows[64];
    memset(rows, 0, sizeof rows);
    for (uint32_t r = 0; r < n; r++) {
        rows[r].kv_state = keep(step, random_f32(n_state, 1), DSR_DTYPE_F32);
        rows[r].score_state = keep(step, random_f32(n_state, 1), DSR_DTYPE_F32);
        rows[r].token_row = rows[r].output_row = r;
        rows[r].start_pos = step->position;
    }
    dsr_compressor_desc desc = DSR_COMPRESSOR_DESC_INIT;
    desc.n_rows = n;
    desc.rows = rows;
    desc.ratio = 4;
    desc.dim = dim;
    desc.epsilon = 1e-6f;
    desc.kv = keep(step, random_f32((uint64_t)n * width, 1), DSR_DTYPE_F32);
    desc.score = keep(step, random_f32((uint64_t)n * width, 1), DSR_DTYPE_F32);
    desc.ape = keep(step, random_f32(4 * width, 1), DSR_DTYPE_F32);
    desc.norm = keep(step, random_f32(dim, 1), DSR_DTYPE_F32);
    desc.output = keep(step, plain((uint64_t)n * dim * 2), DSR_DTYPE_BF16);
    ENCODE(step, dsr_encode_compressor, &desc);
    return desc.output;
}

/* One entry a row to caches of n_entries. ring: the first 128 entries. */
static void encode_append(core_step *step, dsr_view source, uint32_t dim, const dsr_view *caches, uint64_t n_entries,
                          uint64_t first, int ring)
{
    dsr_append_row rows[64];
    memset(rows, 0, sizeof rows);
    for (uint32_t r = 0; r < step->n_rows; r++) {
        rows[r].cache = caches[r];
        rows[r].n_entries = n_entries;
        rows[r].first_entry = first;
        rows[r].ring_entries = ring ? 128 : 0;
        rows[r].source_row = r;
        rows[r].start_pos = ring ? step->position : step->position - 3;
    }
    dsr_append_desc desc = DSR_APPEND_DESC_INIT;
    desc.n_rows = step->n_rows;
    desc.rows = rows;
    desc.dim = dim;
    desc.source = source;
    desc.frequencies = dsr_rope_frequencies(DSR_ROPE_YARN);
    ENCODE(step, dsr_encode_append, &desc);
}

static dsr_view encode_rope(core_step *step, dsr_view input, uint32_t head_dim, int inverse)
{
    dsr_rope_row rows[64];
    memset(rows, 0, sizeof rows);
    for (uint32_t r = 0; r < step->n_rows; r++) {
        rows[r].row = r;
        rows[r].start_pos = step->position;
    }
    dsr_rope_desc desc = DSR_ROPE_DESC_INIT;
    desc.n_rows = step->n_rows;
    desc.rows = rows;
    desc.n_heads = 64;
    desc.head_dim = head_dim;
    desc.rope_dim = 64;
    desc.inverse = inverse;
    desc.input = input;
    desc.output = keep(step, plain((uint64_t)step->n_rows * 64 * head_dim * 2), DSR_DTYPE_BF16);
    desc.frequencies = dsr_rope_frequencies(DSR_ROPE_YARN);
    ENCODE(step, dsr_encode_rope, &desc);
    return desc.output;
}

static void encode_selection(core_step *step, dsr_view q, uint32_t n_keys)
{
    dsr_indexer_row rows[64];
    memset(rows, 0, sizeof rows);
    for (uint32_t r = 0; r < step->n_rows; r++) {
        rows[r].keys = step->index_caches[r];
        rows[r].kv_len = n_keys;
        rows[r].q_row = r;
        rows[r].output_offset = 640 * r + 128;
        rows[r].start_pos = step->position;
        rows[r].offset = 128;
    }
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    uint64_t bytes;
    desc.n_rows = step->n_rows;
    desc.rows = rows;
    desc.n_heads = 64;
    desc.q = q;
    desc.weights = keep(step, random_f32(step->n_rows * 64, 0.011f), DSR_DTYPE_F32);
    desc.output = step->lists;
    check(dsr_indexer_workspace(context, &desc, &bytes), "workspace");
    desc.workspace = keep(step, plain(bytes), DSR_DTYPE_U8);
    ENCODE(step, dsr_encode_indexer, &desc);
}

static dsr_view encode_core_attention(core_step *step, dsr_view q, uint64_t kv_len)
{
    dsr_attention_row rows[64];
    memset(rows, 0, sizeof rows);
    for (uint32_t r = 0; r < step->n_rows; r++) {
        rows[r].kv = step->caches[r];
        rows[r].kv_len = kv_len;
        rows[r].q_row = r;
        rows[r].index_offset = 640 * r;
        rows[r].width = 640;
    }
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    uint64_t bytes;
    desc.n_rows = step->n_rows;
    desc.rows = rows;
    desc.n_heads = 64;
    desc.scale = DSR_ATTENTION_SCALE;
    desc.q = q;
    desc.indices = step->lists;
    desc.sinks = keep(step, random_f32(64, 1), DSR_DTYPE_F32);
    desc.output = keep(step, plain((uint64_t)step->n_rows * 64 * 1024), DSR_DTYPE_BF16);
    check(dsr_flash_attention_workspace(context, &desc, &bytes), "workspace");
    desc.workspace = keep(step, plain(bytes), DSR_DTYPE_U8);
    ENCODE(step, dsr_encode_flash_attention, &desc);
    return desc.output;
}

/* Everything of a decode step but the projections and norms: compressors, new cache entries, rotations, indexer with
 * top-k, attention over 640 slots. The token completes a group. */
static void encode_core(core_step *step, uint32_t tokens)
{
    const uint32_t n = step->n_rows, n_keys = tokens / 4;
    const uint64_t kv_len = 128 + n_keys;
    int32_t slots[128];
    dsr_window_slots(tokens - 1, 128, slots);
    step->lists = keep(step, plain((uint64_t)n * 640 * 4), DSR_DTYPE_I32);
    for (uint32_t r = 0; r < n; r++) {
        step->caches[r] = keep(step, random_bf16(kv_len * 512), DSR_DTYPE_BF16);
        step->index_caches[r] = keep(step, random_bf16((uint64_t)n_keys * 128), DSR_DTYPE_BF16);
        check(dsr_buffer_write(step->lists.buffer, (uint64_t)r * 640 * 4, slots, sizeof slots), "write");
    }
    const dsr_view entries = encode_compressor(step, 512);
    const dsr_view index_entries = encode_compressor(step, 128);
    const dsr_view window = keep(step, random_bf16((uint64_t)n * 512), DSR_DTYPE_BF16);
    const dsr_view q = keep(step, random_bf16((uint64_t)n * 64 * 512), DSR_DTYPE_BF16);
    const dsr_view index_q = keep(step, random_bf16((uint64_t)n * 64 * 128), DSR_DTYPE_BF16);
    encode_append(step, window, 512, step->caches, kv_len, (tokens - 1) % 128, 1);
    encode_append(step, entries, 512, step->caches, kv_len, kv_len - 1, 0);
    encode_append(step, index_entries, 128, step->index_caches, n_keys, n_keys - 1, 0);
    const dsr_view turned = encode_rope(step, q, 512, 0);
    encode_selection(step, encode_rope(step, index_q, 128, 0), n_keys);
    (void)encode_rope(step, encode_core_attention(step, turned, kv_len), 512, 1);
}

static void bench_core(const cuda_timer *timer, uint32_t n_rows, uint32_t tokens)
{
    enum { MAX_SETS = 4 };
    const uint32_t wanted = n_sets((uint64_t)n_rows * tokens / 4 * 256), sets = wanted < MAX_SETS ? wanted : MAX_SETS;
    static core_step steps[MAX_SETS];
    dsr_encoder *encoders[MAX_SETS];
    char name[64];
    memset(steps, 0, sizeof steps);
    for (uint32_t s = 0; s < sets; s++) {
        steps[s].n_rows = n_rows;
        steps[s].position = tokens - 1;
        check(dsr_encoder_create(context, &encoders[s]), "encoder");
        steps[s].encoders[0] = (core_encoder){encoders[s], 0, CORE_COMMANDS - 1};
        steps[s].n_encoders = 1;
        encode_core(&steps[s], tokens);
    }
    snprintf(name, sizeof name, "core step, %2u rows, context %u", n_rows, tokens);
    time_encoders(timer, encoders, sets, name);
    for (uint32_t s = 0; s < sets; s++) {
        dsr_encoder_destroy(encoders[s]);
        while (steps[s].n_buffers)
            dsr_buffer_destroy(steps[s].buffers[--steps[s].n_buffers]);
    }
}

/* The commands of a core step one by one, and all up to each; the operands are the same each time. */
static void bench_parts(const cuda_timer *timer, uint32_t n_rows, uint32_t tokens)
{
    static core_step step;
    char name[64];
    memset(&step, 0, sizeof step);
    step.n_rows = n_rows;
    step.position = tokens - 1;
    step.n_encoders = MAX_CORE_ENCODERS;
    for (uint32_t i = 0; i < MAX_CORE_ENCODERS; i++) {
        const uint32_t command = i / 2;
        check(dsr_encoder_create(context, &step.encoders[i].encoder), "encoder");
        step.encoders[i].first = i % 2 ? 0 : command;
        step.encoders[i].last = command;
    }
    encode_core(&step, tokens);
    for (uint32_t i = 0; i < MAX_CORE_ENCODERS; i++) {
        snprintf(name, sizeof name, "%s %s", i % 2 ? "  all up to" : "", step.names[i / 2] + strlen("dsr_encode_"));
        time_encoders(timer, &step.encoders[i].encoder, 1, name);
    }
    for (uint32_t i = 0; i < MAX_CORE_ENCODERS; i++)
        dsr_encoder_destroy(step.encoders[i].encoder);
    while (step.n_buffers)
        dsr_buffer_destroy(step.buffers[--step.n_buffers]);
}

/* What a graph of one tiny kernel costs: a gather of 128 values. */
static void bench_launch(const cuda_timer *timer)
{
    dsr_encoder *encoder;
    dsr_buffer *from = random_f32(128, 1), *to = plain(512);
    const dsr_view source = dsr_view_whole(from, DSR_DTYPE_F32);
    dsr_gather_desc gather = DSR_GATHER_DESC_INIT;
    gather.n_rows = 1;
    gather.sources = &source;
    gather.row_elements = 128;
    gather.output = dsr_view_whole(to, DSR_DTYPE_F32);
    check(dsr_encoder_create(context, &encoder), "encoder");
    check(dsr_encode_gather(encoder, &gather), "gather");
    time_encoders(timer, &encoder, 1, "gather of 128 values");
    dsr_encoder_destroy(encoder);
    dsr_buffer_destroy(from);
    dsr_buffer_destroy(to);
}

static int has(int argc, char **argv, const char *word)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], word) == 0)
            return 1;
    return 0;
}

static fp4_powers powers_of(int argc, char **argv)
{
    fp4_powers powers = {has(argc, argv, "fp4") ? 3 : 0, 1};
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "fp4=", 4) == 0)
            powers.keys = (uint32_t)atoi(argv[i] + 4) + 1;
        else if (strncmp(argv[i], "q=", 2) == 0)
            powers.queries = (uint32_t)atoi(argv[i] + 2) + 1;
    return powers;
}

static void bench_one_shape(const cuda_timer *timer, int argc, char **argv)
{
    const uint32_t rows = (uint32_t)atoi(argv[argc - 2]), size = (uint32_t)atoi(argv[argc - 1]);
    if (has(argc, argv, "indexer"))
        bench_indexer(timer, rows, size, powers_of(argc, argv));
    else if (has(argc, argv, "core"))
        bench_core(timer, rows, size);
    else if (has(argc, argv, "parts"))
        bench_parts(timer, rows, size);
    else
        bench_attention(timer, (attention_shape){rows, size, 64, has(argc, argv, "flash"), has(argc, argv, "fp8")});
}

static void bench_all_indexers(const cuda_timer *timer, fp4_powers powers)
{
    static const uint32_t shapes[][2] = {{1, 65536}, {8, 8192}, {8, 65536}, {8, 262144}, {8, 1048576}, {64, 8192}};
    for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        bench_indexer(timer, shapes[i][0], shapes[i][1], powers);
}

static void bench_all_attention(const cuda_timer *timer)
{
    static const attention_shape shapes[] = {{1, 640, 64, 0, 0},   {8, 640, 64, 0, 0}, {64, 640, 64, 0, 0},
                                             {8, 1152, 128, 0, 0}, {8, 640, 64, 0, 1}, {64, 640, 64, 0, 1}};
    for (int is_flash = 0; is_flash < 2; is_flash++)
        for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            attention_shape shape = shapes[i];
            shape.is_flash = is_flash;
            bench_attention(timer, shape);
        }
}

int main(int argc, char **argv)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    desc.device = DSR_DEVICE_CUDA;
    desc.exactness = has(argc, argv, "row") ? DSR_EXACT_ROW : DSR_EXACT_DEVICE;
    if (dsr_context_create(&desc, &context) != DSR_OK) {
        printf("skipped: %s\n", dsr_create_error_text());
        return 77;
    }
    const cuda_timer timer = timer_open();
    printf("%-44s %9s %9s %9s %9s %9s %9s   (microseconds, %s-exact)\n", "", "least", "median", "90 %", "idle",
           "in a row", "CPU", desc.exactness == DSR_EXACT_ROW ? "row" : "device");
    if (argc > 3 && atoi(argv[argc - 1]) > 0) {
        bench_one_shape(&timer, argc, argv);
        dsr_context_destroy(context);
        return 0;
    }
    const int launch = has(argc, argv, "launch");
    bench_launch(&timer);
    if (launch) {
        bench_attention(&timer, (attention_shape){.n_rows = 1, .width = 16, .n_heads = 64});
        bench_indexer(&timer, 1, 4, (fp4_powers){0, 0});
    }
    if (!has(argc, argv, "attention") && !launch && desc.exactness == DSR_EXACT_DEVICE)
        bench_all_indexers(&timer, (fp4_powers){3, 1});
    if (!has(argc, argv, "attention") && !launch)
        bench_all_indexers(&timer, (fp4_powers){0, 0});
    if (!has(argc, argv, "indexer") && !launch)
        bench_all_attention(&timer);
    if (argc < 3)
        bench_core(&timer, 8, 65536);
    dsr_context_destroy(context);
    return 0;
}
