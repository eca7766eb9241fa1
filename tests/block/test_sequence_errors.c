/* What sequences and steps refuse, changing nothing: bad arguments, full contexts, damaged and foreign saved forms. */
#include "block_test.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

static void sequence_arguments(void **state)
{
    block_fixture f;
    uint64_t n_bytes = 0, more_bytes = 0;
    dsr_sequence *sequence = NULL;
    (void)state;
    block_open(&f, DSR_LAYER_RATIO_4, NULL, NULL);
    assert_status(dsr_sequence_bytes(NULL, 5, &n_bytes), DSR_ERR_NULL);
    assert_status(dsr_sequence_bytes(f.layer, 5, NULL), DSR_ERR_NULL);
    assert_status(dsr_sequence_bytes(f.layer, 0, &n_bytes), DSR_ERR_VALUE);
    assert_status(dsr_sequence_bytes(f.layer, 1048577, &n_bytes), DSR_ERR_VALUE);
    assert_int_equal(n_bytes, 0);
    assert_ok(dsr_sequence_bytes(f.layer, 1, &n_bytes));
    assert_ok(dsr_sequence_bytes(f.layer, 1048576, &more_bytes));
    assert_in_range(more_bytes - n_bytes, 262144ull * 1280 - 1280, 262144ull * 1280 + 1280);
    assert_status(dsr_sequence_create(NULL, 5, &sequence), DSR_ERR_NULL);
    assert_status(dsr_sequence_create(f.layer, 5, NULL), DSR_ERR_NULL);
    assert_status(dsr_sequence_create(f.layer, 0, &sequence), DSR_ERR_VALUE);
    assert_status(dsr_sequence_create(f.layer, 1048577, &sequence), DSR_ERR_VALUE);
    assert_null(sequence);
    sequence = block_sequence(&f, 5);
    assert_ok(block_prefill(&f, sequence, 5));
    block_state before = block_save(sequence);
    assert_status(dsr_sequence_grow(NULL, 6), DSR_ERR_NULL);
    assert_status(dsr_sequence_grow(sequence, 4), DSR_ERR_VALUE);
    assert_status(dsr_sequence_grow(sequence, 1048577), DSR_ERR_VALUE);
    assert_status(dsr_sequence_fork(NULL, &sequence), DSR_ERR_NULL);
    assert_status(dsr_sequence_fork(sequence, NULL), DSR_ERR_NULL);
    assert_status(dsr_sequence_reset(NULL), DSR_ERR_NULL);
    assert_status(dsr_sequence_truncate(NULL, 0), DSR_ERR_NULL);
    assert_status(dsr_sequence_truncate(sequence, 6), DSR_ERR_STATE);
    assert_status(dsr_sequence_save(NULL, before.bytes, before.n_bytes), DSR_ERR_NULL);
    assert_status(dsr_sequence_save(sequence, NULL, before.n_bytes), DSR_ERR_NULL);
    assert_status(dsr_sequence_save(sequence, before.bytes, before.n_bytes - 1), DSR_ERR_SIZE);
    assert_status(dsr_sequence_save(sequence, before.bytes, before.n_bytes + 1), DSR_ERR_SIZE);
    assert_status(dsr_sequence_load(NULL, before.bytes, before.n_bytes), DSR_ERR_NULL);
    assert_status(dsr_sequence_load(sequence, NULL, before.n_bytes), DSR_ERR_NULL);
    assert_status(dsr_sequence_save_file(NULL, "x"), DSR_ERR_NULL);
    assert_status(dsr_sequence_save_file(sequence, NULL), DSR_ERR_NULL);
    assert_status(dsr_sequence_load_file(NULL, "x"), DSR_ERR_NULL);
    assert_status(dsr_sequence_load_file(sequence, NULL), DSR_ERR_NULL);
    assert_int_equal(dsr_sequence_position(NULL), 0);
    assert_int_equal(dsr_sequence_max_context(NULL), 0);
    assert_int_equal(dsr_sequence_max_truncate(NULL), 0);
    assert_int_equal(dsr_sequence_save_bytes(NULL), 0);
    block_assert_unchanged(sequence, &before);
    dsr_sequence_destroy(NULL);
    dsr_sequence_destroy(sequence);
    block_close(&f);
}

/* Steps of two sequences, a and b, at positions 3 and 5 of 8. */
typedef struct step_fixture {
    block_fixture f;
    dsr_sequence *a, *b;
} step_fixture;

static void step_open(step_fixture *s)
{
    block_open(&s->f, DSR_LAYER_RATIO_4, NULL, NULL);
    s->a = block_sequence(&s->f, 8);
    s->b = block_sequence(&s->f, 8);
    assert_ok(block_prefill(&s->f, s->a, 3));
    assert_ok(block_prefill(&s->f, s->b, 5));
}

static void step_close(step_fixture *s)
{
    dsr_sequence_destroy(s->a);
    dsr_sequence_destroy(s->b);
    block_close(&s->f);
}

/* The step fails with `wanted` and changes nothing: neither the sequences, nor the outputs, nor the last step's
 * encoder. */
static void expect_step(step_fixture *s, const dsr_step_desc *step, dsr_status wanted)
{
    block_state a = block_save(s->a), b = block_save(s->b);
    memset(dsr_buffer_data(s->f.output), 0x5a, dsr_buffer_size(s->f.output));
    assert_status(dsr_attention_decode(s->f.layer, step), wanted);
    assert_int_not_equal(strlen(dsr_context_error_text(s->f.context)), 0);
    block_assert_unchanged(s->a, &a);
    block_assert_unchanged(s->b, &b);
    const unsigned char *output = dsr_buffer_data(s->f.output);
    for (uint64_t i = 0; i < dsr_buffer_size(s->f.output); i++)
        assert_int_equal(output[i], 0x5a);
}

/* The last message begins with `text`. */
static void expect_text(const block_fixture *f, const char *text)
{
    const char *message = dsr_context_error_text(f->context);
    if (strncmp(message, text, strlen(text)) != 0)
        fail_msg("\"%s\", needed is \"%s...\"", message, text);
}

static void step_arguments(void **state)
{
    step_fixture s;
    (void)state;
    step_open(&s);
    const dsr_step_entry good[2] = {{s.a, 0, 1}, {s.b, 1, 1}};
    dsr_step_entry e[65];
    dsr_step_desc step = block_step(&s.f, 2, good);
    assert_status(dsr_attention_decode(NULL, &step), DSR_ERR_NULL);
    expect_step(&s, NULL, DSR_ERR_NULL);
    step.struct_size--;
    expect_step(&s, &step, DSR_ERR_STRUCT_SIZE);
    step = block_step(&s.f, 0, good);
    expect_step(&s, &step, DSR_ERR_ROW_COUNT);
    step = block_step(&s.f, 65, e);
    expect_step(&s, &step, DSR_ERR_ROW_COUNT);
    step = block_step(&s.f, 2, NULL);
    expect_step(&s, &step, DSR_ERR_NULL);
#define expect_entry(sequence_, first_row_, n_tokens_, status)                                                         \
    do {                                                                                                               \
        memcpy(e, good, sizeof good);                                                                                  \
        e[1] = (dsr_step_entry){sequence_, first_row_, n_tokens_};                                                     \
        step = block_step(&s.f, 2, e);                                                                                 \
        expect_step(&s, &step, status);                                                                                \
    } while (0)
    expect_entry(NULL, 1, 1, DSR_ERR_NULL);
    expect_entry(s.a, 1, 1, DSR_ERR_DUPLICATE_ROW);
    expect_entry(s.b, 1, 9, DSR_ERR_VALUE);
    expect_entry(s.b, 0, 1, DSR_ERR_OVERLAP);
    expect_entry(s.b, UINT64_MAX, 1, DSR_ERR_OVERFLOW);
    expect_entry(s.b, BLOCK_ROWS, 1, DSR_ERR_SIZE);
    expect_entry(s.b, BLOCK_ROWS - 1, 2, DSR_ERR_SIZE);
    expect_text(&s.f, "decode: entry 1: hidden holds 16384 bytes, needs 16448 up to row 256");
    expect_entry(s.b, 1, 4, DSR_ERR_FULL);
    expect_text(&s.f, "decode: entry 1: the sequence holds ");
#undef expect_entry
    step_close(&s);
}

static void step_views(void **state)
{
    step_fixture s;
    dsr_context *other = new_context(1);
    dsr_buffer *foreign = new_buffer(other, BLOCK_ROWS * BLOCK_HIDDEN * 4);
    (void)state;
    step_open(&s);
    const dsr_step_entry entries[2] = {{s.a, 0, 1}, {s.b, 4, 2}};
    const dsr_step_desc good = block_step(&s.f, 2, entries);
    dsr_step_desc step = good;
    step.hidden.dtype = DSR_DTYPE_F32;
    expect_step(&s, &step, DSR_ERR_DTYPE);
    step = good;
    step.output.dtype = DSR_DTYPE_F16;
    expect_step(&s, &step, DSR_ERR_DTYPE);
    step = good;
    step.hidden.byte_length = 6 * BLOCK_HIDDEN * 2 - 2;
    expect_step(&s, &step, DSR_ERR_SIZE);
    step = good;
    step.output.byte_length = 6 * BLOCK_HIDDEN * 4 - 4;
    expect_step(&s, &step, DSR_ERR_SIZE);
    expect_text(&s.f, "decode: entry 1: output holds 764 bytes, needs 768 up to row 5");
    step = good;
    step.hidden = dsr_view_whole(NULL, DSR_DTYPE_F32);
    expect_step(&s, &step, DSR_ERR_NULL);
    expect_text(&s.f, "decode: hidden is null");
    step = good;
    step.output = dsr_view_whole(NULL, DSR_DTYPE_F16);
    expect_step(&s, &step, DSR_ERR_NULL);
    expect_text(&s.f, "decode: output is null");
    step = good;
    step.output.byte_offset = 1;
    step.output.byte_length -= 4;
    expect_step(&s, &step, DSR_ERR_ALIGNMENT);
    step = good;
    step.output.byte_length += 4;
    expect_step(&s, &step, DSR_ERR_RANGE);
    step = good;
    step.output = dsr_view_whole(s.f.hidden, DSR_DTYPE_BF16);
    expect_step(&s, &step, DSR_ERR_OVERLAP);
    step = good;
    step.output = dsr_view_whole(foreign, DSR_DTYPE_F32);
    expect_step(&s, &step, DSR_ERR_CONTEXT_MISMATCH);
    step_close(&s);
    dsr_buffer_destroy(foreign);
    dsr_context_destroy(other);
}

static void sequences_of_another_layer(void **state)
{
    step_fixture s;
    dsr_attention *other = NULL;
    dsr_sequence *foreign = NULL;
    (void)state;
    step_open(&s);
    assert_ok(dsr_attention_create(s.f.context, &s.f.config, synthetic_lookup, &s.f.weights, SYNTHETIC_PREFIX, &other));
    assert_ok(dsr_sequence_create(other, 8, &foreign));
    const dsr_step_entry entries[2] = {{s.a, 0, 1}, {foreign, 1, 1}};
    const dsr_step_desc step = block_step(&s.f, 2, entries);
    expect_step(&s, &step, DSR_ERR_CONTEXT_MISMATCH);
    assert_status(dsr_attention_prefill(s.f.layer, foreign, 1, block_hidden(&s.f, 0), block_output(&s.f)),
                  DSR_ERR_CONTEXT_MISMATCH);
    dsr_sequence_destroy(foreign);
    dsr_attention_destroy(other);
    step_close(&s);
}

/* 65 tokens do not fit a step; 9 sequences have them. */
static void too_many_tokens(void **state)
{
    block_fixture f;
    dsr_sequence *sequences[9];
    dsr_step_entry entries[9];
    (void)state;
    block_open(&f, DSR_LAYER_WINDOW, NULL, NULL);
    for (uint32_t i = 0; i < 9; i++) {
        sequences[i] = block_sequence(&f, 20);
        entries[i] = (dsr_step_entry){sequences[i], 8 * i, i < 8 ? 8 : 1};
    }
    dsr_step_desc step = block_step(&f, 9, entries);
    assert_status(dsr_attention_decode(f.layer, &step), DSR_ERR_ROW_COUNT);
    step.n_entries = 8;
    assert_ok(dsr_attention_decode(f.layer, &step));
    for (uint32_t i = 0; i < 9; i++) {
        assert_int_equal(dsr_sequence_position(sequences[i]), i < 8 ? 8 : 0);
        dsr_sequence_destroy(sequences[i]);
    }
    block_close(&f);
}

/* Which entries a step's tokens attended to: all of them up to top_k, then those of the indexer's choice. */
static void selections(void **state)
{
    enum { TOP_K = 32 };
    block_fixture f;
    uint32_t entries[TOP_K + 1], n = 7;
    (void)state;
    block_open(&f, DSR_LAYER_RATIO_4, NULL, NULL);
    assert_int_equal(f.config.top_k, TOP_K);
    dsr_sequence *sequence = block_sequence(&f, 200);
    assert_status(dsr_attention_selection(NULL, 0, entries, &n), DSR_ERR_NULL);
    assert_status(dsr_attention_selection(f.layer, 0, NULL, &n), DSR_ERR_NULL);
    assert_status(dsr_attention_selection(f.layer, 0, entries, NULL), DSR_ERR_NULL);
    assert_status(dsr_attention_selection(f.layer, 0, entries, &n), DSR_ERR_STATE);
    assert_ok(block_prefill(&f, sequence, 66)); /* pieces of 64 and 2 */
    assert_status(dsr_attention_selection(f.layer, 2, entries, &n), DSR_ERR_VALUE);
    expect_text(&f, "selection: token must be below 2");
    assert_int_equal(n, 7);
    assert_ok(dsr_attention_selection(f.layer, 1, entries, &n));
    assert_int_equal(n, 66 / 4);
    for (uint32_t seen = 0, i = 0; i < n; i++) {
        assert_in_range(entries[i], 0, n - 1);
        assert_false(seen >> entries[i] & 1);
        seen |= 1u << entries[i];
    }
    assert_ok(block_prefill(&f, sequence, 64 + 30));
    entries[TOP_K] = 0x5a5a5a5a;
    assert_ok(dsr_attention_selection(f.layer, 29, entries, &n));
    assert_int_equal(n, TOP_K);
    assert_int_equal(entries[TOP_K], 0x5a5a5a5a);
    for (uint32_t i = 0; i < n; i++) {
        assert_in_range(entries[i], 0, 160 / 4 - 1);
        for (uint32_t j = 0; j < i; j++)
            assert_int_not_equal(entries[i], entries[j]);
    }
    for (int refusal = 0; refusal < 3; refusal++) {
        const dsr_step_entry last = {sequence, 160, 1}, unfit = {sequence, 161, 40};
        const dsr_step_desc step = block_step(&f, 1, &last), no_step = block_step(&f, 1, &unfit);
        assert_ok(dsr_attention_decode(f.layer, &step));
        assert_ok(dsr_attention_selection(f.layer, 0, entries, &n));
        if (refusal == 0)
            assert_status(dsr_attention_decode(f.layer, NULL), DSR_ERR_NULL);
        else if (refusal == 1)
            assert_status(dsr_attention_decode(f.layer, &no_step), DSR_ERR_VALUE);
        else
            assert_status(block_prefill(&f, sequence, 90), DSR_ERR_FULL);
        assert_status(dsr_attention_selection(f.layer, 0, entries, &n), DSR_ERR_STATE);
    }
    dsr_sequence_destroy(sequence);
    block_close(&f);
    block_open(&f, DSR_LAYER_RATIO_128, NULL, NULL);
    assert_status(dsr_attention_selection(f.layer, 0, entries, &n), DSR_ERR_VALUE);
    block_close(&f);
}

/* The step of a sequence that changed hands since then: a replay would write into memory of the fork, which no call
 * named. */
static void replays(void **state)
{
    enum { GONE, FORK_THEN_TRUNCATE, TRUNCATE_THEN_FORK, FORK_ALONE, FORK_OUTLIVES, GROW, LOAD, N_CASES };
    const dsr_layer_kind kinds[] = {DSR_LAYER_WINDOW, DSR_LAYER_RATIO_4};
    (void)state;
    for (uint32_t i = 0; i < 2 * N_CASES; i++) {
        const uint32_t which = i / 2;
        block_fixture f;
        block_open(&f, kinds[i % 2], NULL, NULL);
        dsr_sequence *sequence = block_sequence(&f, 40), *fork = NULL;
        assert_ok(block_prefill(&f, sequence, 31));
        const dsr_step_entry entry = {sequence, 31, 1};
        const dsr_step_desc step = block_step(&f, 1, &entry);
        assert_ok(dsr_attention_decode(f.layer, &step)); /* completes an entry */
        dsr_encoder *encoder = dsr_attention_encoder(f.layer);
        block_state form = block_save(sequence);
        if (which == FORK_THEN_TRUNCATE || which == FORK_ALONE || which == FORK_OUTLIVES)
            assert_ok(dsr_sequence_fork(sequence, &fork));
        if (which != FORK_ALONE && which != LOAD)
            assert_ok(dsr_sequence_truncate(sequence, 1));
        if (which == TRUNCATE_THEN_FORK) {
            assert_ok(dsr_encoder_replay(encoder));
            assert_ok(dsr_sequence_truncate(sequence, 0));
            assert_ok(dsr_sequence_fork(sequence, &fork));
        }
        if (which == GROW)
            assert_ok(dsr_sequence_grow(sequence, 50));
        if (which == LOAD)
            assert_ok(dsr_sequence_load(sequence, form.bytes, form.n_bytes));
        if (which == GONE || which == FORK_OUTLIVES) {
            dsr_sequence_destroy(sequence);
            sequence = NULL;
        }
        free(form.bytes);
        block_state before = {0};
        if (fork)
            before = block_save(fork);
        memset(dsr_buffer_data(f.output), 0x5a, dsr_buffer_size(f.output));
        assert_status(dsr_encoder_replay(encoder), DSR_ERR_STATE);
        expect_text(&f, fork ? "encoder: a buffer that its commands use belongs to a fork"
                             : "encoder: a buffer that its commands use was destroyed");
        assert_int_equal(*(unsigned char *)dsr_buffer_data(f.output), 0x5a);
        if (fork)
            block_assert_unchanged(fork, &before);
        dsr_sequence_destroy(sequence);
        dsr_sequence_destroy(fork);
        block_close(&f);
    }
}

/* Replays the step of a sequence that was where `plain` is now. */
static void replay_again(block_fixture *f, dsr_sequence *sequence, uint32_t n_tokens, const dsr_sequence *plain)
{
    dsr_encoder *encoder = dsr_attention_encoder(f->layer);
    const int has_states = f->config.kind != DSR_LAYER_WINDOW;
    for (uint32_t n = 0; n < n_tokens; n++) {
        block_state before = block_save(sequence);
        assert_status(dsr_encoder_replay(encoder), DSR_ERR_STATE);
        expect_text(f, "encoder: replay of a step: a sequence is not where the step began");
        block_assert_unchanged(sequence, &before);
        assert_ok(dsr_sequence_truncate(sequence, 1));
    }
    for (int again = 0; again < 2; again++) {
        block_state same = block_save(plain);
        assert_ok(dsr_encoder_replay(encoder));
        assert_ok(dsr_encoder_wait(encoder));
        block_assert_unchanged(sequence, &same);
        assert_status(dsr_encoder_replay(encoder), has_states ? DSR_ERR_STATE : DSR_OK);
        if (has_states)
            expect_text(f, "encoder: replay of a step: a sequence has the states of another run");
        if (again == 0)
            assert_ok(dsr_sequence_truncate(sequence, 0));
    }
}

/* A replay of a step that the sequence has taken would compress other tokens into entries in use. After one that ran,
 * a step goes on as if there had been none. */
static void replays_in_place(void **state)
{
    const dsr_layer_kind kinds[] = {DSR_LAYER_WINDOW, DSR_LAYER_RATIO_4, DSR_LAYER_RATIO_128};
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        const uint32_t position = kinds[i] == DSR_LAYER_RATIO_128 ? 126 : 30; /* the step completes an entry */
        block_fixture f;
        block_open(&f, kinds[i], NULL, NULL);
        dsr_sequence *sequence = block_sequence(&f, 160), *plain = block_sequence(&f, 160);
        assert_ok(block_prefill(&f, plain, position));
        assert_ok(block_prefill(&f, sequence, position));
        const dsr_step_entry entry = {sequence, position, 3};
        const dsr_step_desc step = block_step(&f, 1, &entry);
        assert_ok(dsr_attention_decode(f.layer, &step));
        replay_again(&f, sequence, 3, plain);
        assert_ok(block_prefill(&f, sequence, 20));
        assert_ok(block_prefill(&f, plain, 20));
        block_state same = block_save(plain);
        block_assert_unchanged(sequence, &same);
        dsr_sequence_destroy(sequence);
        dsr_sequence_destroy(plain);
        block_close(&f);
    }
}

static void prefill_arguments(void **state)
{
    step_fixture s;
    (void)state;
    step_open(&s);
    block_state before = block_save(s.a);
    const dsr_view hidden = block_hidden(&s.f, 3), output = block_output(&s.f);
    dsr_view changed = hidden;
    assert_status(dsr_attention_prefill(NULL, s.a, 1, hidden, output), DSR_ERR_NULL);
    assert_status(dsr_attention_prefill(s.f.layer, NULL, 1, hidden, output), DSR_ERR_NULL);
    assert_status(dsr_attention_prefill(s.f.layer, s.a, 0, hidden, output), DSR_ERR_VALUE);
    assert_status(dsr_attention_prefill(s.f.layer, s.a, 6, hidden, output), DSR_ERR_FULL);
    expect_text(&s.f, "prefill: the sequence holds ");
    assert_status(dsr_attention_prefill(s.f.layer, s.a, UINT64_MAX, hidden, output), DSR_ERR_FULL);
    assert_status(dsr_attention_prefill(s.f.layer, s.a, 1, (dsr_view){0}, output), DSR_ERR_NULL);
    expect_text(&s.f, "prefill: hidden is null");
    assert_status(dsr_attention_prefill(s.f.layer, s.a, 1, hidden, (dsr_view){0}), DSR_ERR_NULL);
    expect_text(&s.f, "prefill: output is null");
    changed.dtype = DSR_DTYPE_U16;
    assert_status(dsr_attention_prefill(s.f.layer, s.a, 1, changed, output), DSR_ERR_DTYPE);
    changed = dsr_view_slice(hidden, 0, 2 * BLOCK_HIDDEN - 1);
    assert_status(dsr_attention_prefill(s.f.layer, s.a, 2, changed, output), DSR_ERR_SIZE);
    expect_text(&s.f, "prefill: hidden holds 126 bytes, needs 128 up to row 1");
    assert_status(dsr_attention_prefill(s.f.layer, s.a, 2, hidden, dsr_view_slice(output, 0, 2 * BLOCK_HIDDEN - 1)),
                  DSR_ERR_SIZE);
    assert_status(dsr_attention_prefill(s.f.layer, s.a, 1, hidden, hidden), DSR_ERR_OVERLAP);
    block_assert_unchanged(s.a, &before);
    step_close(&s);
}

/* ---- saved forms ----------------------------------------------------------------------------------------------- */

static uint64_t fnv1a(const unsigned char *bytes, uint64_t n_bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < n_bytes; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

/* Damage that a checksum does not show: the form gets a right one. */
static void expect_word_refused(dsr_sequence *sequence, const block_state *form, uint64_t offset, uint32_t word)
{
    unsigned char *changed = malloc(form->n_bytes);
    assert_non_null(changed);
    memcpy(changed, form->bytes, form->n_bytes);
    memcpy(changed + offset, &word, sizeof word);
    const uint64_t sum = fnv1a(changed, form->n_bytes - 8);
    memcpy(changed + form->n_bytes - 8, &sum, sizeof sum);
    assert_status(dsr_sequence_load(sequence, changed, form->n_bytes), DSR_ERR_FORMAT);
    free(changed);
}

/* Every stride-th byte flipped, many lengths, and headers that lie. */
static void damaged_forms(dsr_layer_kind kind, uint32_t n_tokens, uint32_t stride)
{
    block_fixture f;
    block_open(&f, kind, NULL, NULL);
    dsr_sequence *from = block_sequence(&f, 20), *to = block_sequence(&f, 9);
    assert_ok(block_prefill(&f, from, n_tokens));
    assert_ok(block_prefill(&f, to, 7));
    block_state form = block_save(from), before = block_save(to);
    for (uint64_t i = 0; i < form.n_bytes; i += stride) {
        form.bytes[i] ^= (unsigned char)(1u << i % 8);
        assert_status(dsr_sequence_load(to, form.bytes, form.n_bytes), DSR_ERR_FORMAT);
        form.bytes[i] ^= (unsigned char)(1u << i % 8);
    }
    for (uint64_t n = 0; n < form.n_bytes; n += 1 + n / 100)
        assert_status(dsr_sequence_load(to, form.bytes, n), DSR_ERR_FORMAT);
    unsigned char *longer = calloc(1, form.n_bytes + 1);
    assert_non_null(longer);
    memcpy(longer, form.bytes, form.n_bytes);
    assert_status(dsr_sequence_load(to, longer, form.n_bytes + 1), DSR_ERR_FORMAT);
    free(longer);
    expect_word_refused(to, &form, 8, 1);           /* version: of an older form */
    expect_word_refused(to, &form, 8, 3);           /* of a newer one */
    expect_word_refused(to, &form, 12, 20);         /* header words */
    expect_word_refused(to, &form, 16, 5);          /* layer kind */
    expect_word_refused(to, &form, 16 + 18 * 4, 0); /* position */
    expect_word_refused(to, &form, 16 + 18 * 4, n_tokens + 1);
    expect_word_refused(to, &form, 16 + 18 * 4, 1048577);
    expect_word_refused(to, &form, 16 + 18 * 4, UINT32_MAX);
    block_assert_unchanged(to, &before);
    assert_ok(dsr_sequence_load(to, form.bytes, form.n_bytes));
    block_state after = block_save(to);
    assert_memory_equal(after.bytes, form.bytes, form.n_bytes);
    free(after.bytes);
    free(form.bytes);
    dsr_sequence_destroy(from);
    dsr_sequence_destroy(to);
    block_close(&f);
}

static void damaged_forms_of_every_kind(void **state)
{
    (void)state;
    damaged_forms(DSR_LAYER_WINDOW, 3, 1);
    damaged_forms(DSR_LAYER_RATIO_4, 1, 1);
    damaged_forms(DSR_LAYER_RATIO_4, 5, 37);
    damaged_forms(DSR_LAYER_RATIO_128, 1, 1);
}

static void forms_of_other_layers(void **state)
{
    block_fixture f;
    synthetic_weights others;
    (void)state;
    block_open(&f, DSR_LAYER_RATIO_128, NULL, NULL);
    dsr_sequence *to = block_sequence(&f, 9);
    block_state before = block_save(to);
    for (uint32_t which = 0; which < 2; which++) {
        dsr_attention *layer = NULL;
        dsr_sequence *from = NULL;
        dsr_attention_config config = f.config;
        config.epsilon = which == 0 ? 1e-5f : 0;
        synthetic_weights_init(&others, &config, SYNTHETIC_BF16, which == 0 ? 7 : 8);
        assert_ok(dsr_attention_create(f.context, &config, synthetic_lookup, &others, SYNTHETIC_PREFIX, &layer));
        assert_ok(dsr_sequence_create(layer, 9, &from));
        block_state form = block_save(from);
        assert_status(dsr_sequence_load(to, form.bytes, form.n_bytes), DSR_ERR_FORMAT);
        assert_non_null(
            strstr(dsr_context_error_text(f.context), which == 0 ? "another configuration" : "other weights"));
        free(form.bytes);
        dsr_sequence_destroy(from);
        dsr_attention_destroy(layer);
        synthetic_weights_free(&others);
    }
    block_assert_unchanged(to, &before);
    dsr_sequence_destroy(to);
    block_close(&f);
}

/* A form saved before one byte of a tensor changed. */
static void expect_other_weights(block_fixture *f, const dsr_attention_config *config, const synthetic_weights *weights,
                                 const block_state *form)
{
    dsr_attention *layer = NULL;
    dsr_sequence *to = NULL;
    assert_ok(dsr_attention_create(f->context, config, synthetic_lookup, (void *)(uintptr_t)weights, SYNTHETIC_PREFIX,
                                   &layer));
    assert_ok(dsr_sequence_create(layer, 9, &to));
    assert_status(dsr_sequence_load(to, form->bytes, form->n_bytes), DSR_ERR_FORMAT);
    expect_text(f, "sequence: saved by a layer with other weights");
    dsr_sequence_destroy(to);
    dsr_attention_destroy(layer);
}

/* Every tensor counts, to its last byte: scales, and weights of more than a few kilobytes. */
static void forms_of_nearly_the_same_layer(void **state)
{
    static const synthetic_format formats[] = {SYNTHETIC_BF16, SYNTHETIC_FP8_F32, SYNTHETIC_FP8_E8M0};
    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        block_fixture f;
        block_open(&f, i == 0 ? DSR_LAYER_RATIO_4 : DSR_LAYER_WINDOW, NULL, NULL);
        dsr_attention *layer = NULL;
        dsr_sequence *from = NULL;
        synthetic_weights weights;
        synthetic_weights_init(&weights, &f.config, formats[i], 7);
        assert_ok(dsr_attention_create(f.context, &f.config, synthetic_lookup, &weights, SYNTHETIC_PREFIX, &layer));
        assert_ok(dsr_sequence_create(layer, 9, &from));
        block_state form = block_save(from);
        for (uint32_t t = 0; t < weights.n_tensors; t++) {
            unsigned char *bytes = weights.tensors[t].data;
            const uint64_t n = weights.tensors[t].tensor.size_bytes;
            const uint64_t places[] = {0, n / 2, n - 1};
            for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
                bytes[places[p]] ^= 1;
                expect_other_weights(&f, &f.config, &weights, &form);
                bytes[places[p]] ^= 1;
            }
            if (n >= 80) { /* the signs of two values in one lane of the hash */
                bytes[7] ^= 0x80;
                bytes[39] ^= 0x80;
                expect_other_weights(&f, &f.config, &weights, &form);
                bytes[7] ^= 0x80;
                bytes[39] ^= 0x80;
            }
        }
        block_assert_unchanged(from, &form);
        dsr_sequence_destroy(from);
        dsr_attention_destroy(layer);
        synthetic_weights_free(&weights);
        block_close(&f);
    }
}

static void write_bytes(const char *path, const void *bytes, size_t n_bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
}

static void files(void **state)
{
    block_fixture f;
    char directory[] = "/tmp/dsrows-block-XXXXXX", path[64], long_path[5000];
    (void)state;
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/a.seq", directory);
    memset(long_path, 'p', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = '\0';
    block_open(&f, DSR_LAYER_WINDOW, NULL, NULL);
    dsr_sequence *from = block_sequence(&f, 20), *to = block_sequence(&f, 2);
    assert_ok(block_prefill(&f, from, 3));
    block_state form = block_save(from), before = block_save(to);
    assert_status(dsr_sequence_load_file(to, path), DSR_ERR_IO);
    assert_non_null(strstr(dsr_context_error_text(f.context), path));
    assert_status(dsr_sequence_load_file(to, directory), DSR_ERR_IO);
    assert_status(dsr_sequence_save_file(from, directory), DSR_ERR_IO);
    assert_status(dsr_sequence_save_file(from, "/nowhere/at/all"), DSR_ERR_IO);
    assert_status(dsr_sequence_save_file(from, long_path), DSR_ERR_IO);
    assert_non_null(strstr(dsr_context_error_text(f.context), strerror(ENAMETOOLONG)));
    const size_t lengths[] = {0, 1, 50, 92, form.n_bytes / 2, form.n_bytes - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        write_bytes(path, form.bytes, lengths[i]);
        assert_status(dsr_sequence_load_file(to, path), DSR_ERR_FORMAT);
    }
    unsigned char *longer = calloc(1, form.n_bytes + 5);
    assert_non_null(longer);
    memcpy(longer, form.bytes, form.n_bytes);
    write_bytes(path, longer, form.n_bytes + 5);
    free(longer);
    assert_status(dsr_sequence_load_file(to, path), DSR_ERR_FORMAT);
    block_assert_unchanged(to, &before);
    assert_ok(dsr_sequence_save_file(from, path));
    assert_ok(dsr_sequence_load_file(to, path));
    assert_int_equal(dsr_sequence_max_context(to), 3); /* grown */
    block_state after = block_save(to);
    assert_memory_equal(after.bytes, form.bytes, form.n_bytes);
    free(after.bytes);
    free(form.bytes);
    dsr_sequence_destroy(from);
    dsr_sequence_destroy(to);
    block_close(&f);
    assert_int_equal(remove(path), 0);
    assert_int_equal(rmdir(directory), 0); /* nothing is left beside it */
}

static uint32_t mode_of(const char *path)
{
    struct stat found;
    assert_int_equal(lstat(path, &found), 0);
    return (uint32_t)found.st_mode;
}

static void assert_saved(const char *path, const block_state *form)
{
    unsigned char *bytes = malloc(form->n_bytes + 1);
    FILE *file = fopen(path, "rb");
    assert_non_null(bytes);
    assert_non_null(file);
    assert_int_equal(fread(bytes, 1, form->n_bytes + 1, file), form->n_bytes);
    assert_memory_equal(bytes, form->bytes, form->n_bytes);
    fclose(file);
    free(bytes);
}

/* What lies at the place of a saved file, and beside it, stays what it was. */
static void places(void **state)
{
    block_fixture f;
    char directory[] = "/tmp/dsrows-block-XXXXXX", path[64], link[64], dangling[64], fifo[64], longest[300];
    (void)state;
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/a.seq", directory);
    snprintf(longest, sizeof longest, "%s/%0255d", directory, 7); /* a name of 255 bytes */
    snprintf(link, sizeof link, "%s/link", directory);
    snprintf(dangling, sizeof dangling, "%s/dangling", directory);
    snprintf(fifo, sizeof fifo, "%s/fifo", directory);
    block_open(&f, DSR_LAYER_WINDOW, NULL, NULL);
    dsr_sequence *from = block_sequence(&f, 20);
    assert_ok(block_prefill(&f, from, 3));
    block_state form = block_save(from);

    write_bytes(path, "old", 3);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(symlink("/nowhere/at/all", dangling), 0);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    const char *const good[] = {path, link};
    for (size_t i = 0; i < 2; i++) {
        write_bytes(path, "old", 3);
        assert_ok(dsr_sequence_save_file(from, good[i]));
        assert_saved(path, &form);
        assert_true(S_ISREG(mode_of(path)));
        assert_int_equal(mode_of(path) & 0777, 0600);
    }
    assert_true(S_ISLNK(mode_of(link)));
    for (size_t i = 0; i < 2; i++) {
        assert_ok(dsr_sequence_save_file(from, longest));
        assert_saved(longest, &form);
    }

    const char *const bad[] = {fifo, dangling, directory};
    for (size_t i = 0; i < 3; i++) {
        const uint32_t before = mode_of(bad[i]);
        alarm(60); /* the pipe has no writer to wait for */
        assert_status(dsr_sequence_load_file(from, bad[i]), DSR_ERR_IO);
        alarm(0);
        assert_non_null(strstr(dsr_context_error_text(f.context), bad[i]));
        assert_status(dsr_sequence_save_file(from, bad[i]), DSR_ERR_IO);
        assert_non_null(strstr(dsr_context_error_text(f.context), bad[i]));
        assert_int_equal(mode_of(bad[i]), before);
    }
    free(form.bytes);
    dsr_sequence_destroy(from);
    block_close(&f);
    const char *const all[] = {path, link, dangling, fifo, longest};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        assert_int_equal(remove(all[i]), 0);
    assert_int_equal(rmdir(directory), 0); /* nothing is left beside it */
}

/* Who may read a saved file does not grow when it is replaced, and who may not write it does not replace it. As root,
 * the test plays an ordinary user for a while. */
static void access_to_files(void **state)
{
    enum { USER = 54321, OTHER_GROUP = 54322 };
    const int is_root = geteuid() == 0;
    block_fixture f;
    char directory[] = "/tmp/dsrows-block-XXXXXX", path[64];
    struct stat found;
    (void)state;
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/a.seq", directory);
    block_open(&f, DSR_LAYER_WINDOW, NULL, NULL);
    dsr_sequence *from = block_sequence(&f, 20);
    block_state form = block_save(from);
    write_bytes(path, "old", 3);
    assert_int_equal(chmod(path, 0640), 0);
    if (is_root) {
        assert_int_equal(chown(path, USER, OTHER_GROUP), 0);
        assert_int_equal(chown(directory, USER, USER), 0);
        assert_ok(dsr_sequence_save_file(from, path));
        assert_int_equal(stat(path, &found), 0);
        assert_int_equal(found.st_uid, USER);
        assert_int_equal(found.st_gid, OTHER_GROUP);
        assert_int_equal(found.st_mode & 07777, 0640);
        assert_int_equal(setegid(USER), 0);
        assert_int_equal(seteuid(USER), 0);
    }
    assert_ok(dsr_sequence_save_file(from, path));
    assert_saved(path, &form);
    assert_int_equal(stat(path, &found), 0);
    assert_int_equal(found.st_mode & 07777, is_root ? 0600 : 0640);
    write_bytes(path, "old", 3);
    assert_int_equal(chmod(path, 0444), 0);
    assert_status(dsr_sequence_save_file(from, path), DSR_ERR_IO);
    assert_non_null(strstr(dsr_context_error_text(f.context), path));
    assert_int_equal(stat(path, &found), 0);
    assert_int_equal(found.st_size, 3);
    if (is_root) {
        assert_int_equal(seteuid(0), 0);
        assert_int_equal(setegid(0), 0);
    }
    free(form.bytes);
    dsr_sequence_destroy(from);
    block_close(&f);
    assert_int_equal(remove(path), 0);
    assert_int_equal(rmdir(directory), 0); /* nothing is left beside it */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequence_arguments),
        cmocka_unit_test(step_arguments),
        cmocka_unit_test(step_views),
        cmocka_unit_test(sequences_of_another_layer),
        cmocka_unit_test(too_many_tokens),
        cmocka_unit_test(selections),
        cmocka_unit_test(replays),
        cmocka_unit_test(replays_in_place),
        cmocka_unit_test(prefill_arguments),
        cmocka_unit_test(damaged_forms_of_every_kind),
        cmocka_unit_test(forms_of_other_layers),
        cmocka_unit_test(forms_of_nearly_the_same_layer),
        cmocka_unit_test(files),
        cmocka_unit_test(places),
        cmocka_unit_test(access_to_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
