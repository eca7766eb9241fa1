#include "schedules.h"

#include "synthetic_layer.h"

#include "patterns.h"
#include "random.h"

#include <dsrows/attention.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    HIDDEN = 64,
    N_STREAMS = 4,
    N_LAYERS = 8,
    MAX_LIVE = 7,
    MAX_CHUNK = 700,
    N_CHECKPOINTS = 6,
    BUFFER_ROWS = 768,
    POISON = 0xa5
};

/* ---- plain runs ------------------------------------------------------------------------------------------------ */

typedef struct saved_state {
    uint32_t position;
    uint64_t n_bytes;
    unsigned char *bytes;
} saved_state;

typedef struct plain_stream {
    uint32_t n_tokens;
    uint16_t *inputs;
    float *outputs;
    uint64_t *state_sums; /* of the state at each position 0..n_tokens: the save's checksum; 0 where none was made */
    saved_state checkpoints[N_CHECKPOINTS];
    uint32_t n_checkpoints;
} plain_stream;

typedef struct plain_layer {
    dsr_attention_config config;
    synthetic_weights weights;
    plain_stream streams[N_STREAMS];
} plain_layer;

static plain_layer layers[N_LAYERS];

static dsr_attention_config config_of(uint32_t which)
{
    static const struct {
        dsr_layer_kind kind;
        dsr_cache_treatment cache;
        uint32_t n_index_heads, top_k;
    } kinds[N_LAYERS] = {
        {DSR_LAYER_WINDOW, DSR_CACHE_BF16, 0, 0},      {DSR_LAYER_WINDOW, DSR_CACHE_OFFICIAL, 0, 0},
        {DSR_LAYER_RATIO_128, DSR_CACHE_BF16, 0, 0},   {DSR_LAYER_RATIO_128, DSR_CACHE_OFFICIAL, 0, 0},
        {DSR_LAYER_RATIO_4, DSR_CACHE_BF16, 64, 512},  {DSR_LAYER_RATIO_4, DSR_CACHE_OFFICIAL, 32, 32},
        {DSR_LAYER_RATIO_128, DSR_CACHE_PACKED, 0, 0}, {DSR_LAYER_RATIO_4, DSR_CACHE_PACKED, 64, 32},
    };
    dsr_attention_config config = DSR_ATTENTION_CONFIG_INIT;
    config.kind = kinds[which].kind;
    config.cache = kinds[which].cache;
    config.n_index_heads = kinds[which].n_index_heads;
    config.top_k = kinds[which].top_k;
    config.hidden_size = HIDDEN;
    config.n_heads = 64;
    config.q_rank = 32;
    config.o_groups = 8;
    config.o_rank = 16;
    return config;
}

/* Tokens of a stream: the top-512 layer gets the long one, where it starts to choose. */
static uint32_t stream_tokens(const schedule_sizes *sizes, uint32_t which, uint32_t stream)
{
    static const uint32_t lengths[N_STREAMS] = {2200, 300, 150, 40};
    static const uint32_t longest[N_LAYERS] = {720, 300, 720, 400, 2200, 720, 300, 720};
    uint32_t n = lengths[stream] < longest[which] ? lengths[stream] : longest[which];
    return n < sizes->longest_stream ? n : sizes->longest_stream;
}

static int is_state_recorded(uint32_t position)
{
    const uint32_t in_group = position % 128;
    return position < 10 || position % 13 == 0 || position % 32 == 0 || in_group <= 2 || in_group >= 126;
}

#define must(call) must_be_ok(call, __LINE__)
static dsr_context *error_context;

static void must_be_ok(dsr_status status, int line)
{
    if (status != DSR_OK) {
        print_error("schedules.c:%d: %s: %s\n", line, dsr_status_name(status), dsr_context_error_text(error_context));
        fail();
    }
}

static void *allocate(size_t n_bytes)
{
    void *memory = calloc(1, n_bytes ? n_bytes : 1);
    assert_non_null(memory);
    return memory;
}

static saved_state save(const dsr_sequence *sequence)
{
    saved_state saved = {dsr_sequence_position(sequence), dsr_sequence_save_bytes(sequence), NULL};
    saved.bytes = allocate(saved.n_bytes);
    must(dsr_sequence_save(sequence, saved.bytes, saved.n_bytes));
    return saved;
}

/* The form's own checksum, over all its bytes: 0 is as good as never. */
static uint64_t sum_of(const saved_state *saved)
{
    uint64_t sum;
    memcpy(&sum, saved->bytes + saved->n_bytes - sizeof sum, sizeof sum);
    return sum;
}

static dsr_context *open_context(dsr_isa isa, uint32_t n_threads)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    desc.isa = isa;
    desc.n_threads = n_threads;
    dsr_context *context = NULL;
    if (dsr_context_create(&desc, &context) != DSR_OK)
        fail_msg("%s", dsr_create_error_text());
    error_context = context;
    return context;
}

static void record_state(plain_stream *stream, const dsr_sequence *sequence)
{
    static const uint32_t checkpoints[] = {90, 120, 254, 505, 1018, 2040};
    const uint32_t position = dsr_sequence_position(sequence);
    int is_checkpoint = 0;
    for (size_t i = 0; i < sizeof checkpoints / sizeof checkpoints[0]; i++)
        is_checkpoint = is_checkpoint || checkpoints[i] == position;
    if (!is_checkpoint && !is_state_recorded(position))
        return;
    saved_state saved = save(sequence);
    stream->state_sums[position] = sum_of(&saved);
    if (is_checkpoint)
        stream->checkpoints[stream->n_checkpoints++] = saved;
    else
        free(saved.bytes);
}

static void run_plain(dsr_context *context, dsr_attention *attention, uint64_t seed, uint32_t number,
                      plain_stream *stream)
{
    dsr_sequence *sequence = NULL;
    dsr_buffer *hidden = NULL, *output = NULL;
    must(dsr_sequence_create(attention, stream->n_tokens, &sequence));
    must(dsr_buffer_create(context, HIDDEN * sizeof(uint16_t), &hidden));
    must(dsr_buffer_create(context, HIDDEN * sizeof(float), &output));
    stream->inputs = allocate((size_t)stream->n_tokens * HIDDEN * sizeof(uint16_t));
    stream->outputs = allocate((size_t)stream->n_tokens * HIDDEN * sizeof(float));
    stream->state_sums = allocate((stream->n_tokens + 1) * sizeof(uint64_t));
    record_state(stream, sequence);
    for (uint32_t t = 0; t < stream->n_tokens; t++) {
        uint16_t *row = stream->inputs + (size_t)t * HIDDEN;
        const dsr_step_entry entry = {.sequence = sequence};
        dsr_step_desc step = DSR_STEP_DESC_INIT;
        synthetic_input(seed, number, t, HIDDEN, row);
        must(dsr_buffer_write(hidden, 0, row, HIDDEN * sizeof(uint16_t)));
        step.n_entries = 1;
        step.entries = &entry;
        step.hidden = dsr_view_whole(hidden, DSR_DTYPE_BF16);
        step.output = dsr_view_whole(output, DSR_DTYPE_F32);
        must(dsr_attention_decode(attention, &step));
        must(dsr_buffer_read(output, 0, stream->outputs + (size_t)t * HIDDEN, HIDDEN * sizeof(float)));
        record_state(stream, sequence);
    }
    dsr_sequence_destroy(sequence);
    dsr_buffer_destroy(hidden);
    dsr_buffer_destroy(output);
}

static dsr_isa best_isa(void)
{
    static const dsr_isa levels[] = {DSR_ISA_AVX512, DSR_ISA_AVX2, DSR_ISA_NEON};
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        if (dsr_isa_available(levels[i]))
            return levels[i];
    return DSR_ISA_SCALAR;
}

static void make_plain_layer(const schedule_sizes *sizes, uint64_t seed, uint32_t which)
{
    plain_layer *plain = &layers[which];
    dsr_context *context = open_context(best_isa(), 1);
    dsr_attention *attention = NULL;
    plain->config = config_of(which);
    synthetic_weights_init(&plain->weights, &plain->config, SYNTHETIC_BF16, seed + which);
    must(
        dsr_attention_create(context, &plain->config, synthetic_lookup, &plain->weights, SYNTHETIC_PREFIX, &attention));
    for (uint32_t i = 0; i < N_STREAMS; i++) {
        plain->streams[i].n_tokens = stream_tokens(sizes, which, i);
        run_plain(context, attention, seed, which * N_STREAMS + i, &plain->streams[i]);
    }
    dsr_attention_destroy(attention);
    dsr_context_destroy(context);
}

static void free_plain_layer(plain_layer *plain)
{
    for (uint32_t i = 0; i < N_STREAMS; i++) {
        plain_stream *stream = &plain->streams[i];
        for (uint32_t k = 0; k < stream->n_checkpoints; k++)
            free(stream->checkpoints[k].bytes);
        free(stream->inputs);
        free(stream->outputs);
        free(stream->state_sums);
    }
    synthetic_weights_free(&plain->weights);
    memset(plain, 0, sizeof *plain);
}

/* ---- schedules ------------------------------------------------------------------------------------------------- */

typedef struct live_request {
    dsr_sequence *sequence;
    const plain_stream *stream;
    uint32_t position;
    uint32_t max_truncate; /* as it should be */
} live_request;

typedef struct schedule {
    const plain_layer *plain;
    dsr_context *context;
    dsr_attention *attention;
    dsr_buffer *hidden;
    dsr_buffer *output;
    random_stream random;
    live_request live[MAX_LIVE];
    uint32_t n_live;
    int64_t tokens_left;
    uint32_t n_events;
    char file[64];
} schedule;

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void advance(schedule *s, live_request *r, uint32_t n_tokens)
{
    r->position += n_tokens;
    r->max_truncate = smaller(r->max_truncate + n_tokens, DSR_MAX_TRUNCATE_TOKENS);
    s->tokens_left -= n_tokens;
}

static void check_request(const live_request *r)
{
    assert_int_equal(dsr_sequence_position(r->sequence), r->position);
    assert_int_equal(dsr_sequence_max_truncate(r->sequence), r->max_truncate);
}

static void check_state(const live_request *r)
{
    check_request(r);
    if (r->stream->state_sums[r->position] == 0)
        return;
    saved_state saved = save(r->sequence);
    if (sum_of(&saved) != r->stream->state_sums[r->position])
        fail_msg("the state at position %u is not that of the plain run", (unsigned)r->position);
    free(saved.bytes);
}

static uint16_t rounded(float x)
{
    const uint32_t bits = f32_to_bits(x);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Row `row` of the output is that of the plain run's token `token`. */
static void check_row(const schedule *s, dsr_dtype dtype, uint64_t row, const plain_stream *stream, uint32_t token)
{
    const float *expected = stream->outputs + (size_t)token * HIDDEN;
    const unsigned char *got = (const unsigned char *)dsr_buffer_data(s->output) + row * HIDDEN * dsr_dtype_size(dtype);
    uint16_t halves[HIDDEN];
    for (uint32_t i = 0; i < HIDDEN; i++)
        halves[i] = rounded(expected[i]);
    if (memcmp(got, dtype == DSR_DTYPE_F32 ? (const void *)expected : halves, HIDDEN * dsr_dtype_size(dtype)) != 0)
        fail_msg("the output of token %u is not that of the plain run", (unsigned)token);
}

static void put_row(const schedule *s, uint64_t row, const uint16_t *input)
{
    must(dsr_buffer_write(s->hidden, row * HIDDEN * sizeof(uint16_t), input, HIDDEN * sizeof(uint16_t)));
}

static dsr_dtype any_output_dtype(schedule *s)
{
    memset(dsr_buffer_data(s->output), POISON, BUFFER_ROWS * HIDDEN * sizeof(float));
    return random_one_in(&s->random, 3) ? DSR_DTYPE_BF16 : DSR_DTYPE_F32;
}

/* Room for n more tokens; a request that has none is refused first. */
static void make_room(schedule *s, live_request *r, uint32_t n_tokens)
{
    const uint32_t needed = r->position + n_tokens;
    if (needed <= dsr_sequence_max_context(r->sequence))
        return;
    assert_int_equal(dsr_attention_prefill(s->attention, r->sequence, n_tokens,
                                           dsr_view_whole(s->hidden, DSR_DTYPE_BF16),
                                           dsr_view_whole(s->output, DSR_DTYPE_F32)),
                     DSR_ERR_FULL);
    check_request(r);
    must(dsr_sequence_grow(r->sequence, needed + random_below(&s->random, 300)));
}

static void prefill(schedule *s, live_request *r, uint32_t n_tokens)
{
    make_room(s, r, n_tokens);
    const dsr_dtype dtype = any_output_dtype(s);
    const uint32_t first = random_below(&s->random, BUFFER_ROWS - MAX_CHUNK);
    for (uint32_t i = 0; i < n_tokens; i++)
        put_row(s, first + i, r->stream->inputs + (size_t)(r->position + i) * HIDDEN);
    const dsr_view hidden =
        dsr_view_slice(dsr_view_whole(s->hidden, DSR_DTYPE_BF16), first * HIDDEN, n_tokens * HIDDEN);
    must(dsr_attention_prefill(s->attention, r->sequence, n_tokens, hidden, dsr_view_whole(s->output, dtype)));
    for (uint32_t i = 0; i < n_tokens; i++)
        check_row(s, dtype, i, r->stream, r->position + i);
    advance(s, r, n_tokens);
    check_request(r);
}

static live_request *any_request(schedule *s)
{
    return &s->live[random_below(&s->random, s->n_live)];
}

static void prefill_some(schedule *s)
{
    live_request *r = any_request(s);
    const uint32_t left = r->stream->n_tokens - r->position;
    const uint32_t limits[] = {MAX_CHUNK, 150, 70, 20};
    uint32_t limit = smaller(limits[random_below(&s->random, 4)], left);
    limit = smaller(limit, s->tokens_left > 1 ? (uint32_t)s->tokens_left : 1);
    if (limit != 0)
        prefill(s, r, random_between(&s->random, 1, limit));
}

/* One entry of a joint step: the first n_right tokens are the stream's, the rest are drafts to be rejected. */
typedef struct draft {
    live_request *request;
    uint32_t n_tokens;
    uint32_t n_right;
    uint64_t first_row;
} draft;

static uint32_t choose_drafts(schedule *s, draft *drafts)
{
    uint32_t order[MAX_LIVE], n = 0, n_tokens = 0;
    for (uint32_t i = 0; i < s->n_live; i++)
        order[i] = i;
    random_shuffle(&s->random, order, s->n_live);
    const uint32_t wanted = random_between(&s->random, 1, s->n_live);
    const int plain_step = random_one_in(&s->random, 2);
    for (uint32_t i = 0; i < wanted; i++) {
        live_request *r = &s->live[order[i]];
        const uint32_t left = r->stream->n_tokens - r->position;
        draft *d = &drafts[n];
        d->request = r;
        d->n_tokens = plain_step ? 1 : random_between(&s->random, 1, DSR_MAX_DRAFT_TOKENS);
        d->n_right = random_one_in(&s->random, 2) ? d->n_tokens : random_below(&s->random, d->n_tokens + 1);
        d->n_right = smaller(d->n_right, left);
        if (n_tokens + d->n_tokens > DSR_MAX_STEP_TOKENS)
            break;
        make_room(s, r, d->n_tokens);
        n_tokens += d->n_tokens;
        n++;
    }
    return n;
}

/* Rows in entry order, or with gaps and out of order. */
static void place_drafts(schedule *s, draft *drafts, uint32_t n)
{
    uint32_t places[MAX_LIVE];
    const int scattered = random_one_in(&s->random, 2);
    uint64_t next = random_below(&s->random, 4);
    for (uint32_t i = 0; i < n; i++)
        places[i] = i;
    if (scattered)
        random_shuffle(&s->random, places, n);
    for (uint32_t i = 0; i < n; i++) {
        draft *d = &drafts[places[i]];
        d->first_row = next;
        next += d->n_tokens + (scattered ? random_below(&s->random, 3) : 0);
    }
}

static void put_drafts(schedule *s, const draft *drafts, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t t = 0; t < drafts[i].n_tokens; t++) {
            uint16_t wrong[HIDDEN];
            const live_request *r = drafts[i].request;
            synthetic_input(random_next(&s->random), 0, t, HIDDEN, wrong);
            put_row(s, drafts[i].first_row + t,
                    t < drafts[i].n_right ? r->stream->inputs + (size_t)(r->position + t) * HIDDEN : wrong);
        }
}

/* Rows that no entry names still hold the poison. */
static void check_other_rows(const schedule *s, dsr_dtype dtype, const draft *drafts, uint32_t n)
{
    const size_t row_bytes = HIDDEN * dsr_dtype_size(dtype);
    const unsigned char *output = dsr_buffer_data(s->output);
    for (uint64_t row = 0; row < 100; row++) {
        int is_named = 0;
        for (uint32_t i = 0; i < n; i++)
            is_named = is_named || (row >= drafts[i].first_row && row < drafts[i].first_row + drafts[i].n_tokens);
        for (size_t b = 0; b < row_bytes && !is_named; b++)
            assert_int_equal(output[row * row_bytes + b], POISON);
    }
}

static void run_drafts(schedule *s, draft *drafts, uint32_t n, dsr_dtype dtype)
{
    dsr_step_entry entries[MAX_LIVE];
    dsr_step_desc step = DSR_STEP_DESC_INIT;
    for (uint32_t i = 0; i < n; i++)
        entries[i] = (dsr_step_entry){drafts[i].request->sequence, drafts[i].first_row, drafts[i].n_tokens};
    step.n_entries = n;
    step.entries = entries;
    step.hidden = dsr_view_whole(s->hidden, DSR_DTYPE_BF16);
    step.output = dsr_view_whole(s->output, dtype);
    must(dsr_attention_decode(s->attention, &step));
}

static void check_drafts(const schedule *s, const draft *drafts, uint32_t n, dsr_dtype dtype)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t t = 0; t < drafts[i].n_right; t++)
            check_row(s, dtype, drafts[i].first_row + t, drafts[i].request->stream, drafts[i].request->position + t);
    check_other_rows(s, dtype, drafts, n);
}

static void forget(live_request *r, uint32_t n_tokens)
{
    must(dsr_sequence_truncate(r->sequence, n_tokens));
    r->position -= n_tokens;
    r->max_truncate -= n_tokens;
    check_request(r);
}

static void decode(schedule *s)
{
    draft drafts[MAX_LIVE];
    const uint32_t n = choose_drafts(s, drafts);
    place_drafts(s, drafts, n);
    put_drafts(s, drafts, n);
    const dsr_dtype dtype = any_output_dtype(s);
    run_drafts(s, drafts, n, dtype);
    check_drafts(s, drafts, n, dtype);
    for (uint32_t i = 0; i < n; i++) {
        live_request *r = drafts[i].request;
        advance(s, r, drafts[i].n_tokens);
        check_request(r);
        if (drafts[i].n_right < drafts[i].n_tokens)
            forget(r, drafts[i].n_tokens - drafts[i].n_right);
    }
}

/* The step again, by replay of its commands: the same bytes, and no trace of it. */
static void decode_and_replay(schedule *s)
{
    draft drafts[MAX_LIVE];
    const uint32_t n = choose_drafts(s, drafts);
    place_drafts(s, drafts, n);
    put_drafts(s, drafts, n);
    run_drafts(s, drafts, n, DSR_DTYPE_F32);
    for (uint32_t i = 0; i < n; i++) {
        advance(s, drafts[i].request, drafts[i].n_tokens);
        forget(drafts[i].request, drafts[i].n_tokens);
    }
    memset(dsr_buffer_data(s->output), POISON, BUFFER_ROWS * HIDDEN * sizeof(float));
    must(dsr_encoder_replay(dsr_attention_encoder(s->attention)));
    must(dsr_encoder_wait(dsr_attention_encoder(s->attention)));
    check_drafts(s, drafts, n, DSR_DTYPE_F32);
    for (uint32_t i = 0; i < n; i++)
        forget(drafts[i].request, 0);
}

static void load(schedule *s, live_request *r, const saved_state *saved, const plain_stream *stream)
{
    if (random_one_in(&s->random, 4)) {
        FILE *file = fopen(s->file, "wb");
        assert_non_null(file);
        assert_int_equal(fwrite(saved->bytes, 1, saved->n_bytes, file), saved->n_bytes);
        assert_int_equal(fclose(file), 0);
        must(dsr_sequence_load_file(r->sequence, s->file));
    } else {
        must(dsr_sequence_load(r->sequence, saved->bytes, saved->n_bytes));
    }
    r->stream = stream;
    r->position = saved->position;
    r->max_truncate = 0;
    check_state(r);
}

/* A new request: from nothing, or from a state of the plain run. */
static void join(schedule *s)
{
    if (s->n_live == MAX_LIVE)
        return;
    live_request *r = &s->live[s->n_live++];
    *r = (live_request){.stream = &s->plain->streams[random_below(&s->random, N_STREAMS)]};
    const uint32_t room = random_one_in(&s->random, 2) ? r->stream->n_tokens : random_between(&s->random, 1, 200);
    must(dsr_sequence_create(s->attention, room, &r->sequence));
    if (r->stream->n_checkpoints != 0 && random_one_in(&s->random, 2))
        load(s, r, &r->stream->checkpoints[random_below(&s->random, r->stream->n_checkpoints)], r->stream);
    check_state(r);
}

static void leave(schedule *s)
{
    live_request *r = any_request(s);
    dsr_sequence_destroy(r->sequence);
    *r = s->live[--s->n_live];
}

static void fork_one(schedule *s)
{
    if (s->n_live == MAX_LIVE)
        return;
    const live_request *r = any_request(s);
    live_request *child = &s->live[s->n_live++];
    *child = *r;
    must(dsr_sequence_fork(r->sequence, &child->sequence));
    check_request(child);
}

static void truncate_some(schedule *s)
{
    live_request *r = any_request(s);
    assert_int_equal(dsr_sequence_truncate(r->sequence, r->max_truncate + 1), DSR_ERR_STATE);
    forget(r, random_below(&s->random, r->max_truncate + 1));
    check_state(r);
}

/* One request's state into another. */
static void copy_by_save(schedule *s)
{
    const live_request from = *any_request(s);
    live_request *to = any_request(s);
    check_state(&from);
    if (random_one_in(&s->random, 3)) {
        must(dsr_sequence_save_file(from.sequence, s->file));
        must(dsr_sequence_load_file(to->sequence, s->file));
        to->stream = from.stream;
        to->position = from.position;
        to->max_truncate = 0;
        check_state(to);
        return;
    }
    saved_state saved = save(from.sequence);
    load(s, to, &saved, from.stream);
    free(saved.bytes);
}

static void grow_or_reset(schedule *s)
{
    live_request *r = any_request(s);
    if (random_one_in(&s->random, 3)) {
        must(dsr_sequence_reset(r->sequence));
        r->position = r->max_truncate = 0;
    } else {
        must(dsr_sequence_grow(r->sequence, dsr_sequence_max_context(r->sequence) + random_below(&s->random, 400)));
    }
    check_state(r);
}

static void one_event(schedule *s)
{
    const uint32_t dice = random_below(&s->random, 100);
    s->n_events++;
    if (s->n_live == 0 || dice < 12)
        join(s);
    else if (dice < 25)
        prefill_some(s);
    else if (dice < 66)
        decode(s);
    else if (dice < 73)
        fork_one(s);
    else if (dice < 78)
        leave(s);
    else if (dice < 86)
        truncate_some(s);
    else if (dice < 91)
        copy_by_save(s);
    else if (dice < 96)
        grow_or_reset(s);
    else
        decode_and_replay(s);
}

/* To the next position whose state is on record. */
static void finish(schedule *s, live_request *r)
{
    while (r->position < r->stream->n_tokens && r->stream->state_sums[r->position] == 0)
        prefill(s, r, 1);
    check_state(r);
}

static void open_schedule(schedule *s, dsr_isa isa, uint32_t n_threads)
{
    s->context = open_context(isa, n_threads);
    must(dsr_attention_create(s->context, &s->plain->config, synthetic_lookup, (void *)(uintptr_t)&s->plain->weights,
                              SYNTHETIC_PREFIX, &s->attention));
    must(dsr_buffer_create(s->context, BUFFER_ROWS * HIDDEN * sizeof(uint16_t), &s->hidden));
    must(dsr_buffer_create(s->context, BUFFER_ROWS * HIDDEN * sizeof(float), &s->output));
    snprintf(s->file, sizeof s->file, "schedule-%ld.seq", (long)getpid());
}

static void close_schedule(schedule *s)
{
    for (uint32_t i = 0; i < s->n_live; i++)
        dsr_sequence_destroy(s->live[i].sequence);
    remove(s->file);
    dsr_attention_destroy(s->attention);
    dsr_buffer_destroy(s->hidden);
    dsr_buffer_destroy(s->output);
    dsr_context_destroy(s->context);
}

static void run_schedule(const schedule_sizes *sizes, uint64_t seed, uint32_t number)
{
    static const dsr_isa levels[] = {DSR_ISA_AVX512, DSR_ISA_AVX2, DSR_ISA_NEON, DSR_ISA_SCALAR};
    static const uint32_t threads[] = {1, 2, 5};
    schedule s = {.plain = &layers[number % N_LAYERS], .random = random_open(seed, number)};
    dsr_isa isa;
    do
        isa = levels[random_below(&s.random, 4)];
    while (!dsr_isa_available(isa));
    const uint32_t n_threads = threads[random_below(&s.random, 3)];
    const int is_slow = isa == DSR_ISA_SCALAR || isa != best_isa();
    s.tokens_left = isa == DSR_ISA_SCALAR ? sizes->n_scalar_tokens : sizes->n_tokens / (is_slow ? 2 : 1);
    print_message("schedule %u of seed %llu: layer %u, %s, %u threads\n", (unsigned)number, (unsigned long long)seed,
                  (unsigned)(number % N_LAYERS), dsr_isa_name(isa), (unsigned)n_threads);
    open_schedule(&s, isa, n_threads);
    while (s.tokens_left > 0 && s.n_events < 400)
        one_event(&s);
    for (uint32_t i = 0; i < s.n_live && i < (isa == DSR_ISA_SCALAR ? 1u : MAX_LIVE); i++)
        finish(&s, &s.live[i]);
    close_schedule(&s);
}

/* ---- the test -------------------------------------------------------------------------------------------------- */

static const schedule_sizes *test_sizes;

static uint64_t number_from_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void schedules_equal_plain_runs(void **state)
{
    const uint64_t seed = number_from_environment("DSR_SCHEDULE_SEED", 1);
    const uint64_t only = number_from_environment("DSR_SCHEDULE", UINT64_MAX);
    const time_t end = time(NULL) + (time_t)number_from_environment("DSR_SOAK_SECONDS", 0);
    (void)state;
    for (uint32_t i = 0; i < N_LAYERS; i++)
        if (only == UINT64_MAX || only % N_LAYERS == i)
            make_plain_layer(test_sizes, seed, i);
    if (only != UINT64_MAX) {
        run_schedule(test_sizes, seed, (uint32_t)only);
    } else {
        for (uint32_t i = 0; i < test_sizes->n_schedules || time(NULL) < end; i++)
            run_schedule(test_sizes, seed, i);
    }
    for (uint32_t i = 0; i < N_LAYERS; i++)
        free_plain_layer(&layers[i]);
}

int schedules_main(const schedule_sizes *sizes)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(schedules_equal_plain_runs)};
    test_sizes = sizes;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
