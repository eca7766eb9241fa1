/* What a layer refuses: configurations, and checkpoints with tensors missing, of a wrong dtype or of a wrong shape. */
#include "block_test.h"

static dsr_status create(block_fixture *f, const dsr_attention_config *config)
{
    dsr_attention *untouched = (dsr_attention *)f, *layer = untouched;
    const uint64_t n_live = f->counter.n_live;
    const dsr_status status =
        dsr_attention_create(f->context, config, synthetic_lookup, &f->weights, SYNTHETIC_PREFIX, &layer);
    if (status == DSR_OK) {
        dsr_attention_destroy(layer);
    } else {
        assert_ptr_equal(layer, untouched);
    }
    assert_int_equal(f->counter.n_live, n_live);
    return status;
}

static void configurations(void **state)
{
    block_fixture f;
    (void)state;
    block_open(&f, DSR_LAYER_RATIO_4, NULL, NULL);
#define expect(field, value, status)                                                                                   \
    do {                                                                                                               \
        dsr_attention_config config = f.config;                                                                        \
        config.field = (value);                                                                                        \
        assert_status(create(&f, &config), status);                                                                    \
        if ((status) != DSR_OK)                                                                                        \
            assert_non_null(strstr(dsr_context_error_text(f.context), #field));                                        \
    } while (0)
    expect(struct_size, 4, DSR_ERR_STRUCT_SIZE);
    expect(kind, (dsr_layer_kind)3, DSR_ERR_ENUM);
    expect(cache, (dsr_cache_treatment)3, DSR_ERR_ENUM);
    expect(hidden_size, 0, DSR_ERR_VALUE);
    expect(hidden_size, 40, DSR_ERR_VALUE);
    expect(hidden_size, 65552, DSR_ERR_VALUE);
    expect(n_heads, 32, DSR_ERR_UNSUPPORTED_SHAPE);
    expect(q_rank, 0, DSR_ERR_VALUE);
    expect(q_rank, 24, DSR_ERR_VALUE);
    expect(q_rank, 32768, DSR_ERR_VALUE);
    expect(o_groups, 0, DSR_ERR_VALUE);
    expect(o_groups, 7, DSR_ERR_VALUE);
    expect(o_rank, 0, DSR_ERR_VALUE);
    expect(o_rank, 8, DSR_ERR_VALUE);
    expect(o_rank, 16384, DSR_ERR_VALUE);
    expect(n_index_heads, 16, DSR_ERR_UNSUPPORTED_SHAPE);
    expect(top_k, 33, DSR_ERR_VALUE);
    expect(top_k, 4096, DSR_ERR_VALUE);
    expect(epsilon, -1e-6f, DSR_ERR_VALUE);
    expect(epsilon, strtof("nan", NULL), DSR_ERR_VALUE);
    expect(scale, strtof("inf", NULL), DSR_ERR_VALUE);
    expect(rope_theta, 1, DSR_ERR_VALUE);
    expect(yarn_factor, 0.5f, DSR_ERR_VALUE);
    expect(yarn_original_context, -1, DSR_ERR_VALUE);
    expect(yarn_beta_slow, -1, DSR_ERR_VALUE);
    expect(yarn_beta_fast, 0.5f, DSR_ERR_VALUE);
    expect(epsilon, 1e-5f, DSR_OK);
    expect(yarn_factor, 4, DSR_OK);
#undef expect
    dsr_attention_config tiny = f.config;
    tiny.rope_theta = tiny.yarn_factor = 3e38f;
    assert_status(create(&f, &tiny), DSR_ERR_VALUE); /* frequencies of 0 */
    dsr_attention_config large = f.config;
    large.top_k = UINT32_MAX;
    assert_status(create(&f, &large), DSR_ERR_VALUE);
    assert_non_null(strstr(dsr_context_error_text(f.context), "a multiple of 32 up to 2048, got 4294967295"));
    block_close(&f);
}

static void nulls_and_filled_config(void **state)
{
    block_fixture f;
    dsr_attention *layer = NULL;
    dsr_attention_config config = DSR_ATTENTION_CONFIG_INIT;
    (void)state;
    block_open(&f, DSR_LAYER_RATIO_4, NULL, NULL);
    assert_status(dsr_attention_create(NULL, &f.config, synthetic_lookup, &f.weights, "", &layer), DSR_ERR_NULL);
    assert_status(dsr_attention_create(f.context, NULL, synthetic_lookup, &f.weights, "", &layer), DSR_ERR_NULL);
    assert_status(dsr_attention_create(f.context, &f.config, NULL, &f.weights, "", &layer), DSR_ERR_NULL);
    assert_status(dsr_attention_create(f.context, &f.config, synthetic_lookup, &f.weights, "", NULL), DSR_ERR_NULL);
    assert_status(dsr_attention_create(f.context, &f.config, synthetic_lookup, &f.weights, NULL, &layer),
                  DSR_ERR_MISSING_TENSOR); /* no prefix: other names */
    char prefix[300];
    memset(prefix, 'p', sizeof prefix - 1);
    prefix[sizeof prefix - 1] = '\0';
    assert_status(dsr_attention_create(f.context, &f.config, synthetic_lookup, &f.weights, prefix, &layer),
                  DSR_ERR_NAME);
    assert_null(layer);
    assert_null(dsr_attention_encoder(f.layer));
    assert_null(dsr_attention_encoder(NULL));
    assert_status(dsr_attention_get_config(NULL, &config), DSR_ERR_NULL);
    assert_status(dsr_attention_get_config(f.layer, NULL), DSR_ERR_NULL);
    assert_ok(dsr_attention_get_config(f.layer, &config));
    assert_int_equal(config.n_index_heads, 32);
    assert_true(config.rope_theta == 160000.0f && config.yarn_factor == 16.0f && config.epsilon == 1e-6f);
    config.struct_size = 1;
    assert_status(dsr_attention_get_config(f.layer, &config), DSR_ERR_STRUCT_SIZE);
    dsr_attention_destroy(NULL);
    block_close(&f);
}

/* Makes a layer with one tensor changed, and puts it back. */
static void expect_tensor_error(block_fixture *f, synthetic_tensor *t, dsr_tensor changed, dsr_status wanted)
{
    const dsr_tensor original = t->tensor;
    t->tensor = changed;
    assert_status(create(f, &f->config), wanted);
    assert_non_null(strstr(dsr_context_error_text(f->context), t->name));
    t->tensor = original;
}

static void every_tensor(void **state)
{
    block_fixture f;
    (void)state;
    block_open(&f, DSR_LAYER_RATIO_4, NULL, NULL);
    assert_int_equal(f.weights.n_tensors, 18);
    for (uint32_t i = 0; i < f.weights.n_tensors; i++) {
        synthetic_tensor *t = &f.weights.tensors[i];
        dsr_tensor changed = t->tensor;
        changed.dtype = DSR_DTYPE_F16;
        expect_tensor_error(&f, t, changed, DSR_ERR_DTYPE);
        changed = t->tensor;
        changed.shape[0]++;
        expect_tensor_error(&f, t, changed, DSR_ERR_SIZE);
        changed = t->tensor;
        changed.shape[changed.n_dims - 1] /= 2;
        expect_tensor_error(&f, t, changed, DSR_ERR_SIZE);
        changed = t->tensor;
        changed.shape[changed.n_dims++] = 1;
        expect_tensor_error(&f, t, changed, DSR_ERR_SIZE);
        changed = t->tensor;
        changed.n_dims = 5;
        expect_tensor_error(&f, t, changed, DSR_ERR_SIZE);
        changed = t->tensor;
        changed.size_bytes--;
        expect_tensor_error(&f, t, changed, DSR_ERR_SIZE);
        changed = t->tensor;
        changed.data = NULL;
        expect_tensor_error(&f, t, changed, DSR_ERR_SIZE);
        t->name[0] = '?'; /* missing; the error names what is looked for */
        assert_status(create(&f, &f.config), DSR_ERR_MISSING_TENSOR);
        assert_non_null(strstr(dsr_context_error_text(f.context), t->name + 1));
        t->name[0] = 'l';
    }
    assert_ok(create(&f, &f.config));
    block_close(&f);
}

static void scales_of_fp8(void **state)
{
    block_fixture f;
    (void)state;
    block_open(&f, DSR_LAYER_WINDOW, NULL, NULL);
    synthetic_weights_free(&f.weights);
    synthetic_weights_init(&f.weights, &f.config, SYNTHETIC_FP8_E8M0, 7);
    synthetic_tensor *scales = synthetic_find(&f.weights, "q_b_proj.weight_scale_inv");
    assert_non_null(scales);
    dsr_tensor changed = scales->tensor;
    changed.dtype = DSR_DTYPE_BF16;
    expect_tensor_error(&f, scales, changed, DSR_ERR_DTYPE);
    changed = scales->tensor;
    changed.shape[0]--;
    expect_tensor_error(&f, scales, changed, DSR_ERR_SIZE);
    scales->name[0] = '?';
    assert_status(create(&f, &f.config), DSR_ERR_MISSING_TENSOR);
    scales->name[0] = 'l';
    assert_ok(create(&f, &f.config));
    block_close(&f);
}

/* Layers and contexts that go before their sequences stay, unusable, until the sequences are gone. */
static void wrong_order_of_destruction(void **state)
{
    block_fixture f;
    (void)state;
    for (int context_first = 0; context_first < 2; context_first++) {
        block_open(&f, DSR_LAYER_RATIO_128, NULL, NULL);
        dsr_sequence *sequence = block_sequence(&f, 10), *other = NULL, *untouched = NULL;
        assert_ok(block_prefill(&f, sequence, 3));
        assert_ok(dsr_sequence_fork(sequence, &other));
        if (context_first) {
            dsr_buffer_destroy(f.hidden);
            dsr_buffer_destroy(f.output);
            dsr_context_destroy(f.context);
        }
        dsr_attention_destroy(f.layer);
        unsigned char bytes[8];
        assert_status(dsr_sequence_fork(sequence, &untouched), DSR_ERR_STATE);
        assert_status(dsr_sequence_truncate(sequence, 1), DSR_ERR_STATE);
        assert_status(dsr_sequence_reset(sequence), DSR_ERR_STATE);
        assert_status(dsr_sequence_grow(sequence, 20), DSR_ERR_STATE);
        assert_status(dsr_sequence_load(sequence, bytes, sizeof bytes), DSR_ERR_STATE);
        assert_status(dsr_sequence_load_file(sequence, "none"), DSR_ERR_STATE);
        assert_status(dsr_sequence_create(f.layer, 3, &untouched), DSR_ERR_STATE);
        assert_null(untouched);
        dsr_sequence_destroy(sequence);
        dsr_sequence_destroy(other);
        if (!context_first) {
            dsr_buffer_destroy(f.hidden);
            dsr_buffer_destroy(f.output);
            dsr_context_destroy(f.context);
        }
        synthetic_weights_free(&f.weights);
        assert_int_equal(f.counter.n_live, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configurations), cmocka_unit_test(nulls_and_filled_config),    cmocka_unit_test(every_tensor),
        cmocka_unit_test(scales_of_fp8),  cmocka_unit_test(wrong_order_of_destruction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
