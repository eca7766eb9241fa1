/* What the tests of the block's errors and failures share: small layers, and sequences to run on them. */
#ifndef TEST_BLOCK_TEST_H
#define TEST_BLOCK_TEST_H

#include "../unit/core_test.h"

#include "synthetic_layer.h"

#include <dsrows/attention.h>

enum { BLOCK_HIDDEN = 32 };

static inline dsr_attention_config block_config(dsr_layer_kind kind)
{
    dsr_attention_config config = DSR_ATTENTION_CONFIG_INIT;
    config.kind = kind;
    config.hidden_size = BLOCK_HIDDEN;
    config.n_heads = 64;
    config.q_rank = 16;
    config.o_groups = 8;
    config.o_rank = 16;
    config.n_index_heads = 32;
    config.top_k = 32;
    return config;
}

/* The best instruction set, whatever the environment says. */
static inline dsr_isa block_best_isa(void)
{
    static const dsr_isa levels[] = {DSR_ISA_AVX512, DSR_ISA_AVX2, DSR_ISA_NEON};
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        if (dsr_isa_available(levels[i]))
            return levels[i];
    return DSR_ISA_SCALAR;
}

/* A context, one layer with its weights, and rows for its inputs and outputs. */
typedef struct block_fixture {
    counting_allocator counter;
    dsr_context *context;
    dsr_attention_config config;
    synthetic_weights weights;
    dsr_attention *layer;
    dsr_buffer *hidden; /* BF16 [64 * 4, BLOCK_HIDDEN]: inputs of stream 0 */
    dsr_buffer *output; /* F32, the same */
} block_fixture;

enum { BLOCK_ROWS = 256 };

static inline void block_open_with(block_fixture *f, dsr_layer_kind kind, dsr_cache_treatment cache,
                                   dsr_parallel_fn parallel, void *user)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    memset(f, 0, sizeof *f);
    desc.isa = block_best_isa();
    desc.allocator = counting_hook(&f->counter);
    desc.parallel = parallel;
    desc.parallel_user = user;
    desc.n_threads = parallel ? 2 : 1;
    assert_ok(dsr_context_create(&desc, &f->context));
    f->config = block_config(kind);
    f->config.cache = cache;
    synthetic_weights_init(&f->weights, &f->config, SYNTHETIC_BF16, 7);
    assert_ok(dsr_attention_create(f->context, &f->config, synthetic_lookup, &f->weights, SYNTHETIC_PREFIX, &f->layer));
    f->hidden = new_buffer(f->context, BLOCK_ROWS * BLOCK_HIDDEN * sizeof(uint16_t));
    f->output = new_buffer(f->context, BLOCK_ROWS * BLOCK_HIDDEN * sizeof(float));
    for (uint32_t t = 0; t < BLOCK_ROWS; t++)
        synthetic_input(7, 0, t, BLOCK_HIDDEN, (uint16_t *)dsr_buffer_data(f->hidden) + (size_t)t * BLOCK_HIDDEN);
}

static inline void block_open(block_fixture *f, dsr_layer_kind kind, dsr_parallel_fn parallel, void *user)
{
    block_open_with(f, kind, DSR_CACHE_BF16, parallel, user);
}

/* Frees all; nothing of ours may be left. */
static inline void block_close(block_fixture *f)
{
    dsr_attention_destroy(f->layer);
    dsr_buffer_destroy(f->hidden);
    dsr_buffer_destroy(f->output);
    dsr_context_destroy(f->context);
    synthetic_weights_free(&f->weights);
    assert_int_equal(f->counter.n_live, 0);
    assert_int_equal(f->counter.live_bytes, 0);
}

static inline dsr_view block_hidden(const block_fixture *f, uint64_t first_row)
{
    return dsr_view_slice(dsr_view_whole(f->hidden, DSR_DTYPE_BF16), first_row * BLOCK_HIDDEN,
                          (BLOCK_ROWS - first_row) * BLOCK_HIDDEN);
}

static inline dsr_view block_output(const block_fixture *f)
{
    return dsr_view_whole(f->output, DSR_DTYPE_F32);
}

static inline dsr_sequence *block_sequence(const block_fixture *f, uint32_t max_context)
{
    dsr_sequence *sequence = NULL;
    assert_ok(dsr_sequence_create(f->layer, max_context, &sequence));
    return sequence;
}

/* The next n_tokens tokens of stream 0. */
static inline dsr_status block_prefill(const block_fixture *f, dsr_sequence *sequence, uint32_t n_tokens)
{
    return dsr_attention_prefill(f->layer, sequence, n_tokens, block_hidden(f, dsr_sequence_position(sequence)),
                                 block_output(f));
}

static inline dsr_step_desc block_step(const block_fixture *f, uint32_t n_entries, const dsr_step_entry *entries)
{
    dsr_step_desc step = DSR_STEP_DESC_INIT;
    step.n_entries = n_entries;
    step.entries = entries;
    step.hidden = block_hidden(f, 0);
    step.output = block_output(f);
    return step;
}

/* A saved state on the C heap. */
typedef struct block_state {
    uint64_t n_bytes;
    unsigned char *bytes;
    uint32_t max_context;
} block_state;

static inline block_state block_save(const dsr_sequence *sequence)
{
    block_state state = {dsr_sequence_save_bytes(sequence), NULL, dsr_sequence_max_context(sequence)};
    state.bytes = malloc(state.n_bytes);
    assert_non_null(state.bytes);
    assert_ok(dsr_sequence_save(sequence, state.bytes, state.n_bytes));
    return state;
}

/* The sequence is still as saved; frees the state. */
static inline void block_assert_unchanged(const dsr_sequence *sequence, block_state *state)
{
    block_state now = block_save(sequence);
    assert_int_equal(now.n_bytes, state->n_bytes);
    assert_memory_equal(now.bytes, state->bytes, now.n_bytes);
    assert_int_equal(now.max_context, state->max_context);
    free(now.bytes);
    free(state->bytes);
}

#endif
