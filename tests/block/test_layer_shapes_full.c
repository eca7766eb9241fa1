/* The published shapes, with random weights: they load, run, and give a request the same bytes jointly and alone. */
#include "block_test.h"

static void run_shape(const char *what, dsr_attention_config config, synthetic_format format)
{
    enum { N_PREFILL = 9, N_STEPS = 3, N_REQUESTS = 3 };
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    dsr_context *context = NULL;
    dsr_attention *layer = NULL;
    synthetic_weights weights;
    dsr_sequence *joint[N_REQUESTS], *alone[N_REQUESTS];
    const uint32_t n_tokens = N_PREFILL + N_STEPS, hidden_size = config.hidden_size;
    desc.isa = block_best_isa();
    desc.n_threads = 2;
    assert_ok(dsr_context_create(&desc, &context));
    synthetic_weights_init(&weights, &config, format, 5);
    assert_ok(dsr_attention_create(context, &config, synthetic_lookup, &weights, SYNTHETIC_PREFIX, &layer));
    synthetic_weights_free(&weights);
    dsr_buffer *in = new_buffer(context, (uint64_t)N_REQUESTS * n_tokens * hidden_size * sizeof(uint16_t));
    dsr_buffer *out = new_buffer(context, (uint64_t)N_REQUESTS * n_tokens * hidden_size * sizeof(float));
    dsr_buffer *step_out = new_buffer(context, (uint64_t)N_REQUESTS * n_tokens * hidden_size * sizeof(float));
    const dsr_view hidden = dsr_view_whole(in, DSR_DTYPE_BF16), output = dsr_view_whole(out, DSR_DTYPE_F32);
    const uint64_t request_elements = (uint64_t)n_tokens * hidden_size;
    for (uint32_t r = 0; r < N_REQUESTS; r++) {
        for (uint32_t t = 0; t < n_tokens; t++)
            synthetic_input(5, r, t, hidden_size,
                            (uint16_t *)dsr_buffer_data(in) + r * request_elements + t * hidden_size);
        assert_ok(dsr_sequence_create(layer, 64, &alone[r]));
        assert_ok(dsr_sequence_create(layer, 64, &joint[r]));
        assert_ok(dsr_attention_prefill(layer, alone[r], n_tokens,
                                        dsr_view_slice(hidden, r * request_elements, request_elements),
                                        dsr_view_slice(output, r * request_elements, request_elements)));
        assert_ok(dsr_attention_prefill(layer, joint[r], N_PREFILL,
                                        dsr_view_slice(hidden, r * request_elements, request_elements),
                                        dsr_view_whole(step_out, DSR_DTYPE_F32)));
    }
    for (uint32_t t = N_PREFILL; t < n_tokens; t++) {
        dsr_step_entry entries[N_REQUESTS];
        dsr_step_desc step = DSR_STEP_DESC_INIT;
        for (uint32_t r = 0; r < N_REQUESTS; r++)
            entries[r] = (dsr_step_entry){joint[r], r * n_tokens + t, 1};
        step.n_entries = N_REQUESTS;
        step.entries = entries;
        step.hidden = hidden;
        step.output = dsr_view_whole(step_out, DSR_DTYPE_F32);
        assert_ok(dsr_attention_decode(layer, &step));
        for (uint32_t r = 0; r < N_REQUESTS; r++) {
            const uint64_t at = r * request_elements + t * hidden_size;
            assert_memory_equal((float *)dsr_buffer_data(step_out) + at, (float *)dsr_buffer_data(out) + at,
                                hidden_size * sizeof(float));
        }
    }
    for (uint32_t r = 0; r < N_REQUESTS; r++) {
        dsr_sequence_destroy(joint[r]);
        dsr_sequence_destroy(alone[r]);
    }
    uint64_t largest = 0;
    assert_ok(dsr_sequence_bytes(layer, 1048576, &largest));
    print_message("%s: a sequence of 1048576 tokens takes %llu bytes\n", what, (unsigned long long)largest);
    dsr_buffer_destroy(in);
    dsr_buffer_destroy(out);
    dsr_buffer_destroy(step_out);
    dsr_attention_destroy(layer);
    dsr_context_destroy(context);
}

static dsr_attention_config flash_config(dsr_layer_kind kind)
{
    dsr_attention_config config = DSR_ATTENTION_CONFIG_INIT;
    config.kind = kind;
    config.hidden_size = 4096;
    config.n_heads = 64;
    config.q_rank = 1024;
    config.o_groups = 8;
    config.o_rank = 1024;
    return config;
}

static void flash(void **state)
{
    (void)state;
    run_shape("Flash, ratio 4", flash_config(DSR_LAYER_RATIO_4), SYNTHETIC_BF16);
    run_shape("Flash, ratio 128", flash_config(DSR_LAYER_RATIO_128), SYNTHETIC_BF16);
    run_shape("Flash, window", flash_config(DSR_LAYER_WINDOW), SYNTHETIC_BF16);
}

static void pro(void **state)
{
    dsr_attention_config config = flash_config(DSR_LAYER_RATIO_4);
    (void)state;
    config.hidden_size = 7168;
    config.n_heads = 128;
    config.q_rank = 1536;
    config.o_groups = 16;
    config.top_k = 1024;
    config.cache = DSR_CACHE_OFFICIAL;
    run_shape("Pro, ratio 4, official caches", config, SYNTHETIC_BF16);
}

/* The longest sequence there can be: its last tokens, after a jump to the end by a made-up saved state. */
static void last_tokens_of_the_longest_context(void **state)
{
    static const dsr_layer_kind kinds[] = {DSR_LAYER_RATIO_128, DSR_LAYER_RATIO_4};
    (void)state;
    for (int k = 0; k < 2; k++) {
        block_fixture f;
        block_open(&f, kinds[k], NULL, NULL);
        dsr_sequence *sequence = block_sequence(&f, 1);
        synthetic_state_load(sequence, 1048573, 11);
        assert_int_equal(dsr_sequence_position(sequence), 1048573);
        assert_ok(dsr_sequence_grow(sequence, 1048576));
        dsr_sequence *alone = NULL;
        assert_ok(dsr_sequence_fork(sequence, &alone));
        assert_ok(dsr_attention_prefill(f.layer, alone, 3, block_hidden(&f, 0), block_output(&f)));
        float expected[3 * BLOCK_HIDDEN];
        memcpy(expected, dsr_buffer_data(f.output), sizeof expected);
        for (uint32_t t = 0; t < 3; t++)
            assert_ok(
                dsr_attention_prefill(f.layer, sequence, 1, block_hidden(&f, t),
                                      dsr_view_slice(block_output(&f), (uint64_t)t * BLOCK_HIDDEN, BLOCK_HIDDEN)));
        assert_memory_equal(dsr_buffer_data(f.output), expected, sizeof expected);
        assert_status(dsr_attention_prefill(f.layer, sequence, 1, block_hidden(&f, 0), block_output(&f)), DSR_ERR_FULL);
        block_state a = block_save(sequence);
        block_assert_unchanged(alone, &a);
        dsr_sequence_destroy(sequence);
        dsr_sequence_destroy(alone);
        block_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(last_tokens_of_the_longest_context),
        cmocka_unit_test(flash),
        cmocka_unit_test(pro),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
