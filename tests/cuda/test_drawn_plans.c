/* Drawn plans of small commands that read and write each other's operands: submitted at once to a CUDA device, where
 * commands share launches and do the next one's work on the way, they leave the same bytes in every buffer as each
 * command submitted by itself: on the CPU for device-exact contexts, on the device for row-exact ones. */
#include "random.h"

#include <dsrows/dsrows.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    STATE,     /* F32: compressor states */
    PROJECTED, /* F32: a compressor's kv, score, ape and norm; sinks */
    ENTRIES,   /* BF16: compressed entries */
    CACHE,     /* pages, or one cache a row */
    TABLE,     /* I32: page tables, and another order of their first page ids */
    Q,         /* BF16: queries */
    ATTENDED,  /* BF16: attention's outputs, and rotated ones */
    LIST,      /* I32: rows that attention takes */
    WORKSPACE,
    N_BUFFERS,
    N_COMPARED = WORKSPACE
};
enum {
    MAX_ROWS = 33,
    MAX_QUERIES = 2,
    N_HEADS = 64,
    RATIO = 4,
    STATE_BYTES = 8 * 1024 * 4,
    ENTRY_BYTES = 1024, /* of a KV row, the largest entry */
    PAGE_ENTRIES = 16,
    ENTRIES_BYTES = 4 * MAX_ROWS * ENTRY_BYTES, /* of either half */
    PROJECTED_BYTES = 4 * MAX_ROWS * 1024 * 4,  /* of kv or score */
    QUERIES_BYTES = MAX_QUERIES * N_HEADS * ENTRY_BYTES,
    WORKSPACE_BYTES = 1 << 22,
    N_LIST = 256, /* of a query */
    OTHER_TABLE = 4096,
    SKIPPED = 77
};
static const uint64_t buffer_bytes[N_BUFFERS] = {2ull * MAX_ROWS * STATE_BYTES,
                                                 3 * PROJECTED_BYTES,
                                                 2 * ENTRIES_BYTES,
                                                 2ull * MAX_ROWS *PAGE_ENTRIES *ENTRY_BYTES,
                                                 2 * OTHER_TABLE,
                                                 2 * QUERIES_BYTES,
                                                 4 * QUERIES_BYTES,
                                                 4 * MAX_QUERIES *N_LIST,
                                                 2 * WORKSPACE_BYTES};

typedef struct side {
    dsr_context *context;
    dsr_encoder *encoder;
    dsr_buffer *buffers[N_BUFFERS];
    int one_by_one;
    char commands[400]; /* names of those encoded */
} side;

/* What the commands of a plan have in common. */
typedef struct plan_shape {
    uint32_t n_rows, n_queries, dim, position;
    uint64_t half; /* of the entries or outputs that a command and the one that follows it use */
    dsr_cache_format format;
    int is_paged;
} plan_shape;

static uint64_t seed = 1;

static dsr_view view_bytes(const side *s, int buffer, uint64_t first, uint64_t n, dsr_dtype dtype)
{
    return (dsr_view){s->buffers[buffer], first, n, dtype};
}

/* ---- commands ---- */

static dsr_status encode_compressor(side *s, const plan_shape *plan, random_stream *random)
{
    const uint64_t state_bytes = dsr_compressor_state_elements(RATIO, plan->dim) * 4;
    const int is_aligned = random_one_in(random, 3), is_reversed = random_one_in(random, 8);
    const uint32_t n_tokens = random_one_in(random, 4) ? random_between(random, 1, 4) : 1;
    dsr_compressor_row rows[MAX_ROWS];
    memset(rows, 0, sizeof rows);
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        rows[r].kv_state = view_bytes(s, STATE, 2 * r * state_bytes, state_bytes, DSR_DTYPE_F32);
        rows[r].score_state = view_bytes(s, STATE, (2 * r + 1) * state_bytes, state_bytes, DSR_DTYPE_F32);
        rows[r].start_pos = plan->position + (is_aligned ? RATIO - 1 : r);
        rows[r].n_tokens = n_tokens;
        rows[r].token_row = r * n_tokens;
        rows[r].output_row = is_reversed ? plan->n_rows - 1 - r : r;
    }
    dsr_compressor_desc desc = DSR_COMPRESSOR_DESC_INIT;
    desc.n_rows = plan->n_rows;
    desc.rows = rows;
    desc.ratio = RATIO;
    desc.dim = plan->dim;
    desc.epsilon = 1e-6f;
    desc.kv = view_bytes(s, PROJECTED, 0, PROJECTED_BYTES, DSR_DTYPE_F32);
    desc.score = view_bytes(s, PROJECTED, PROJECTED_BYTES, PROJECTED_BYTES, DSR_DTYPE_F32);
    desc.ape = view_bytes(s, PROJECTED, 2 * PROJECTED_BYTES, 8ull * plan->dim * 4, DSR_DTYPE_F32);
    desc.norm = view_bytes(s, PROJECTED, 2 * PROJECTED_BYTES + 65536, 4ull * plan->dim, DSR_DTYPE_F32);
    desc.output = random_one_in(random, 8)
                      ? view_bytes(s, CACHE, 0, ENTRIES_BYTES, DSR_DTYPE_BF16)
                      : view_bytes(s, ENTRIES, plan->half * ENTRIES_BYTES, ENTRIES_BYTES, DSR_DTYPE_BF16);
    return dsr_encode_compressor(s->encoder, &desc);
}

static dsr_append_row draw_append_row(const side *s, const plan_shape *plan, random_stream *random, int buffer,
                                      uint32_t r)
{
    const dsr_dtype dtype = plan->format == DSR_FORMAT_BF16 ? DSR_DTYPE_BF16 : DSR_DTYPE_U8;
    const uint64_t n_bytes = PAGE_ENTRIES * ENTRY_BYTES;
    dsr_append_row row = {.n_entries = PAGE_ENTRIES, .position_step = RATIO};
    row.cache = view_bytes(s, buffer, r * n_bytes, n_bytes, dtype);
    row.cache_layout.format = plan->format;
    if (plan->is_paged && buffer == CACHE) {
        row.n_entries = 2 * PAGE_ENTRIES;
        row.cache = view_bytes(s, CACHE, 0, 2 * plan->n_rows * n_bytes, dtype);
        row.cache_layout.page_size = PAGE_ENTRIES;
        row.cache_layout.page_table = view_bytes(s, TABLE, r * 8, 8, DSR_DTYPE_I32);
    }
    row.first_entry = random_below(random, (uint32_t)row.n_entries - 1);
    row.start_pos = plan->position * 3 + r;
    return row;
}

static dsr_status encode_append(side *s, const plan_shape *plan, random_stream *random)
{
    const int target = random_one_in(random, 4) ? STATE : CACHE;
    const int is_reversed = random_one_in(random, 8), is_ring = random_one_in(random, 2);
    const uint32_t first_source = random_one_in(random, 8) ? 1 : 0, n_tokens = random_one_in(random, 8) ? 2 : 1;
    dsr_append_row rows[MAX_ROWS];
    dsr_append_desc desc = DSR_APPEND_DESC_INIT;
    desc.n_rows = random_one_in(random, 8) ? random_between(random, 1, plan->n_rows) : plan->n_rows;
    for (uint32_t r = 0; r < desc.n_rows; r++) {
        rows[r] = draw_append_row(s, plan, random, target, r);
        rows[r].ring_entries = is_ring ? rows[r].n_entries : 0;
        rows[r].n_tokens = n_tokens;
        rows[r].source_row = first_source + (is_reversed ? plan->n_rows - 1 - r : r);
    }
    desc.rows = rows;
    desc.dim = plan->dim;
    desc.source = view_bytes(s, ENTRIES, plan->half * ENTRIES_BYTES, ENTRIES_BYTES, DSR_DTYPE_BF16);
    desc.frequencies = random_one_in(random, 3) ? NULL : dsr_rope_frequencies(DSR_ROPE_YARN);
    desc.floor = (dsr_scale_floor)random_below(random, 2);
    return dsr_encode_append(s->encoder, &desc);
}

/* 64 of a buffer's elements over those of another. */
static dsr_status encode_copy(side *s, const plan_shape *plan, random_stream *random)
{
    static const int ways[][2] = {{ENTRIES, PROJECTED}, {ENTRIES, CACHE},  {CACHE, PROJECTED}, {PROJECTED, ENTRIES},
                                  {PROJECTED, STATE},   {CACHE, ATTENDED}, {ATTENDED, Q}};
    const int *way = ways[random_below(random, sizeof ways / sizeof ways[0])];
    (void)plan;
    dsr_copy_row row = {.n_copies = 8};
    row.destination = view_bytes(s, way[1], random_below(random, 4) * 4096, 8192, DSR_DTYPE_BF16);
    dsr_copy_desc desc = DSR_COPY_DESC_INIT;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.row_elements = 64;
    desc.source = view_bytes(s, way[0], 0, 8192, DSR_DTYPE_BF16);
    return dsr_encode_copy(s->encoder, &desc);
}

/* The other order of the first page ids. */
static dsr_status encode_tables(side *s, const plan_shape *plan, random_stream *random)
{
    (void)plan;
    (void)random;
    dsr_copy_row row = {.destination = view_bytes(s, TABLE, 0, 32, DSR_DTYPE_I32)};
    dsr_copy_desc desc = DSR_COPY_DESC_INIT;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.row_elements = 8;
    desc.source = view_bytes(s, TABLE, OTHER_TABLE, 32, DSR_DTYPE_I32);
    return dsr_encode_copy(s->encoder, &desc);
}

static dsr_status encode_attention(side *s, const plan_shape *plan, random_stream *random)
{
    const int is_flash = random_one_in(random, 2);
    const uint64_t n_bytes = plan->n_queries * N_HEADS * ENTRY_BYTES;
    dsr_attention_row rows[MAX_QUERIES];
    memset(rows, 0, sizeof rows);
    uint64_t workspace_bytes = 0;
    for (uint32_t r = 0; r < plan->n_queries; r++) {
        rows[r].kv = view_bytes(s, CACHE, 0, 2 * PAGE_ENTRIES * ENTRY_BYTES, DSR_DTYPE_BF16);
        rows[r].kv_len = 2 * PAGE_ENTRIES;
        rows[r].q_row = r;
        rows[r].index_offset = r * N_LIST;
        rows[r].width = random_between(random, 1, 70);
    }
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    desc.n_rows = plan->n_queries;
    desc.rows = rows;
    desc.n_heads = N_HEADS;
    desc.scale = DSR_ATTENTION_SCALE;
    desc.q = view_bytes(s, Q, 0, n_bytes, DSR_DTYPE_BF16);
    desc.indices = view_bytes(s, LIST, 0, buffer_bytes[LIST], DSR_DTYPE_I32);
    desc.sinks = view_bytes(s, PROJECTED, 2 * PROJECTED_BYTES, 4 * N_HEADS, DSR_DTYPE_F32);
    desc.output = view_bytes(s, ATTENDED, plan->half * QUERIES_BYTES, n_bytes, DSR_DTYPE_BF16);
    const dsr_status status = is_flash ? dsr_flash_attention_workspace(s->context, &desc, &workspace_bytes)
                                       : dsr_sparse_attention_workspace(s->context, &desc, &workspace_bytes);
    if (status != DSR_OK)
        return status;
    assert_true(workspace_bytes <= WORKSPACE_BYTES);
    desc.workspace = view_bytes(s, WORKSPACE, plan->half * WORKSPACE_BYTES, workspace_bytes, DSR_DTYPE_U8);
    return is_flash ? dsr_encode_flash_attention(s->encoder, &desc) : dsr_encode_sparse_attention(s->encoder, &desc);
}

/* Of attention's outputs: in place, over the queries, or elsewhere. */
static dsr_status encode_rope(side *s, const plan_shape *plan, random_stream *random)
{
    const uint64_t n_bytes = plan->n_queries * N_HEADS * ENTRY_BYTES;
    const uint32_t way = random_below(random, 4);
    const int is_reversed = random_one_in(random, 5);
    dsr_rope_row rows[MAX_QUERIES];
    memset(rows, 0, sizeof rows);
    dsr_rope_desc desc = DSR_ROPE_DESC_INIT;
    desc.n_rows = random_one_in(random, 5) ? random_between(random, 1, plan->n_queries) : plan->n_queries;
    for (uint32_t r = 0; r < desc.n_rows; r++) {
        rows[r].row = is_reversed ? plan->n_queries - 1 - r : r;
        rows[r].start_pos = plan->position * 7 + r;
        rows[r].position_step = 2;
    }
    desc.rows = rows;
    desc.n_heads = N_HEADS;
    desc.head_dim = 512;
    desc.rope_dim = random_one_in(random, 5) ? 32 : 64;
    desc.inverse = random_one_in(random, 2);
    desc.frequencies = dsr_rope_frequencies(DSR_ROPE_YARN);
    desc.input = view_bytes(s, ATTENDED, plan->half * QUERIES_BYTES, n_bytes, DSR_DTYPE_BF16);
    desc.output = way < 2    ? desc.input
                  : way == 2 ? view_bytes(s, Q, 0, n_bytes, DSR_DTYPE_BF16)
                             : view_bytes(s, ATTENDED, 2 * QUERIES_BYTES, n_bytes, DSR_DTYPE_BF16);
    return dsr_encode_rope(s->encoder, &desc);
}

/* ---- plans ---- */

enum { COMPRESSOR, APPEND, COPY, TABLES, ATTENTION, ROPE, N_COMMANDS };
static const struct {
    const char *name;
    dsr_status (*encode)(side *, const plan_shape *, random_stream *);
} commands[N_COMMANDS] = {
    [COMPRESSOR] = {"compressor", encode_compressor},
    [APPEND] = {"append", encode_append},
    [COPY] = {"copy", encode_copy},
    [TABLES] = {"tables", encode_tables},
    [ATTENTION] = {"attention", encode_attention},
    [ROPE] = {"rope", encode_rope},
};

static dsr_status run(const side *s)
{
    dsr_status status = dsr_encoder_submit(s->encoder);
    if (status == DSR_OK)
        status = dsr_encoder_wait(s->encoder);
    return status == DSR_OK ? dsr_encoder_reset(s->encoder) : status;
}

static dsr_status encode_command(side *s, const plan_shape *plan, uint32_t command, random_stream *random)
{
    const size_t n = strlen(s->commands);
    snprintf(s->commands + n, sizeof s->commands - n, " %s", commands[command].name);
    const dsr_status status = commands[command].encode(s, plan, random);
    return status == DSR_OK && s->one_by_one ? run(s) : status;
}

static plan_shape draw_plan(random_stream *random)
{
    static const uint32_t n_rows[] = {1, 2, 3, 8, MAX_ROWS};
    plan_shape plan = {.n_rows = n_rows[random_below(random, random_one_in(random, 4) ? 5 : 4)],
                       .n_queries = random_between(random, 1, MAX_QUERIES),
                       .dim = random_one_in(random, 2) ? 128 : 512,
                       .position = random_between(random, 1, 64),
                       .is_paged = random_one_in(random, 2)};
    if (random_one_in(random, 2))
        plan.format = plan.dim == 128 ? DSR_FORMAT_FP4 : DSR_FORMAT_FP8;
    return plan;
}

/* What works on a command's outputs often follows, at once or after a copy. */
static dsr_status run_plan(side *s, random_stream random)
{
    plan_shape plan = draw_plan(&random);
    const uint32_t n_draws = random_between(&random, 1, 6);
    dsr_status status = DSR_OK;
    s->commands[0] = '\0';
    for (uint32_t i = 0; i < n_draws && status == DSR_OK; i++) {
        const uint32_t command = random_one_in(&random, 3) ? COMPRESSOR : random_below(&random, N_COMMANDS);
        const int has_follower = (command == COMPRESSOR || command == ATTENTION) && !random_one_in(&random, 4);
        plan.half = random_below(&random, 2);
        status = encode_command(s, &plan, command, &random);
        if (status == DSR_OK && has_follower && random_one_in(&random, 2))
            status = encode_command(s, &plan, random_between(&random, COPY, TABLES), &random);
        if (status == DSR_OK && has_follower)
            status = encode_command(s, &plan, command == COMPRESSOR ? APPEND : ROPE, &random);
    }
    return status == DSR_OK && !s->one_by_one ? run(s) : status;
}

static uint32_t draw_word(int buffer, uint64_t word, random_stream *random)
{
    if (buffer == LIST)
        return random_one_in(random, 9) ? UINT32_MAX : random_below(random, 2 * PAGE_ENTRIES + 2);
    if (buffer == TABLE)
        return word == OTHER_TABLE / 4 + 4 ? 200 : word < OTHER_TABLE / 4 ? (uint32_t)word : 7 - (uint32_t)word % 8;
    const uint32_t bits = (uint32_t)random_next(random);
    return random_one_in(random, 3000) ? 0x7f80ff80 : (bits & 0x81ff81ff) | 0x3e003e00;
}

/* Sizes around 1 as F32 and as pairs of BF16, a few not finite; page ids that no two rows share, one of them bad. */
static void fill_buffer(const side sides[2], int buffer, uint64_t draw)
{
    static uint32_t words[2 * MAX_ROWS * STATE_BYTES / 4];
    random_stream random = random_open(seed, draw * N_BUFFERS + (uint64_t)buffer);
    for (uint64_t i = 0; i < buffer_bytes[buffer] / 4; i++)
        words[i] = draw_word(buffer, i, &random);
    for (int i = 0; i < 2; i++)
        assert_int_equal(dsr_buffer_write(sides[i].buffers[buffer], 0, words, buffer_bytes[buffer]), DSR_OK);
}

static void expect_equal_bytes(const side sides[2], uint64_t draw)
{
    static uint8_t bytes[2][2 * MAX_ROWS * STATE_BYTES];
    for (int b = 0; b < N_COMPARED; b++) {
        for (int i = 0; i < 2; i++)
            assert_int_equal(dsr_buffer_read(sides[i].buffers[b], 0, bytes[i], buffer_bytes[b]), DSR_OK);
        for (uint64_t i = 0; i < buffer_bytes[b]; i++)
            if (bytes[0][i] != bytes[1][i])
                fail_msg("draw %llu of seed %llu:%s: byte %llu of buffer %d differs", (unsigned long long)draw,
                         (unsigned long long)seed, sides[1].commands, (unsigned long long)i, b);
    }
}

static void open_side(side *s, dsr_device_kind device, dsr_exactness exactness)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    desc.device = device;
    desc.exactness = exactness;
    assert_int_equal(dsr_context_create(&desc, &s->context), DSR_OK);
    assert_int_equal(dsr_encoder_create(s->context, &s->encoder), DSR_OK);
    for (int b = 0; b < N_BUFFERS; b++)
        assert_int_equal(dsr_buffer_create(s->context, buffer_bytes[b], &s->buffers[b]), DSR_OK);
}

static void close_side(side *s)
{
    for (int b = 0; b < N_BUFFERS; b++)
        dsr_buffer_destroy(s->buffers[b]);
    dsr_encoder_destroy(s->encoder);
    dsr_context_destroy(s->context);
}

static void test_plans(dsr_exactness exactness, dsr_device_kind device_alone, uint64_t n_draws)
{
    enum { N_BETWEEN_FILLS = 8 };
    static side sides[2];
    memset(sides, 0, sizeof sides);
    open_side(&sides[0], device_alone, exactness);
    open_side(&sides[1], DSR_DEVICE_CUDA, exactness);
    sides[0].one_by_one = 1;
    for (uint64_t draw = 0; draw < n_draws; draw++) {
        for (int b = 0; b < N_COMPARED && draw % N_BETWEEN_FILLS == 0; b++)
            fill_buffer(sides, b, draw);
        for (int i = 0; i < 2; i++)
            if (run_plan(&sides[i], random_open(seed, 1000000 + draw)) != DSR_OK)
                fail_msg("draw %llu of seed %llu:%s: %s", (unsigned long long)draw, (unsigned long long)seed,
                         sides[i].commands, dsr_context_error_text(sides[i].context));
        expect_equal_bytes(sides, draw);
    }
    for (int i = 0; i < 2; i++)
        close_side(&sides[i]);
}

static void test_device_exact_plans(void **state)
{
    (void)state;
    test_plans(DSR_EXACT_DEVICE, DSR_DEVICE_CPU, 30);
}

static void test_row_exact_plans(void **state)
{
    (void)state;
    test_plans(DSR_EXACT_ROW, DSR_DEVICE_CUDA, 150);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_device_exact_plans),
                                       cmocka_unit_test(test_row_exact_plans)};
    const char *given = getenv("DSR_TEST_SEED");
    seed = given != NULL ? strtoull(given, NULL, 10) : seed;
    dsr_context *context;
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    desc.device = DSR_DEVICE_CUDA;
    if (dsr_context_create(&desc, &context) != DSR_OK) {
        printf("skipped: %s\n", dsr_create_error_text());
        return SKIPPED;
    }
    dsr_context_destroy(context);
    printf("seed %llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
