/* Layers of other shapes and weight forms: against the float64 model, and FP8 weights against the same values in BF16.
 */
#include "block_test.h"
#include "near_tie.h"

#include <math.h>

/* A layer of its own weights, and one request's outputs from it. */
typedef struct form {
    dsr_context *context;
    synthetic_weights weights;
    dsr_attention_config config;
    dsr_attention *layer;
    uint32_t n_tokens;
    uint16_t *inputs;
    float *outputs;
} form;

static void open_form(form *f, dsr_attention_config config, synthetic_format format, uint32_t n_tokens)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    memset(f, 0, sizeof *f);
    desc.isa = block_best_isa();
    assert_ok(dsr_context_create(&desc, &f->context));
    synthetic_weights_init(&f->weights, &config, format, 3);
    assert_ok(dsr_attention_create(f->context, &config, synthetic_lookup, &f->weights, SYNTHETIC_PREFIX, &f->layer));
    f->config = (dsr_attention_config)DSR_ATTENTION_CONFIG_INIT;
    assert_ok(dsr_attention_get_config(f->layer, &f->config));
    f->n_tokens = n_tokens;
    dsr_buffer *in = new_buffer(f->context, (uint64_t)n_tokens * config.hidden_size * sizeof(uint16_t));
    dsr_buffer *out = new_buffer(f->context, (uint64_t)n_tokens * config.hidden_size * sizeof(float));
    dsr_sequence *sequence = NULL;
    f->inputs = malloc(dsr_buffer_size(in));
    f->outputs = malloc(dsr_buffer_size(out));
    assert_true(f->inputs != NULL && f->outputs != NULL);
    for (uint32_t t = 0; t < n_tokens; t++)
        synthetic_input(3, 1, t, config.hidden_size, f->inputs + (size_t)t * config.hidden_size);
    assert_ok(dsr_buffer_write(in, 0, f->inputs, dsr_buffer_size(in)));
    assert_ok(dsr_sequence_create(f->layer, n_tokens, &sequence));
    assert_ok(dsr_attention_prefill(f->layer, sequence, n_tokens, dsr_view_whole(in, DSR_DTYPE_BF16),
                                    dsr_view_whole(out, DSR_DTYPE_F32)));
    memcpy(f->outputs, dsr_buffer_data(out), dsr_buffer_size(out));
    dsr_sequence_destroy(sequence);
    dsr_buffer_destroy(in);
    dsr_buffer_destroy(out);
}

static void close_form(form *f)
{
    dsr_attention_destroy(f->layer);
    dsr_context_destroy(f->context);
    synthetic_weights_free(&f->weights);
    free(f->inputs);
    free(f->outputs);
}

static double rms_of(const double *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum / n);
}

/* The last tokens of a request against the model; all entries are attended to. */
static void check_against_model(const char *what, dsr_attention_config config, uint32_t n_tokens)
{
    enum { N_LAST = 3 };
    form f;
    double largest = 0, output[512];
    open_form(&f, config, SYNTHETIC_BF16, n_tokens);
    const uint32_t n_last = n_tokens < N_LAST ? n_tokens : N_LAST;
    const uint32_t first = n_tokens - n_last;
    model_layer *model = model_layer_new(&f.config, synthetic_lookup, &f.weights, SYNTHETIC_PREFIX);
    model_request *request =
        model_request_new(model, f.inputs, n_tokens, first < DSR_WINDOW ? 0 : first - DSR_WINDOW + 1);
    model_rows *rows = model_rows_new(model, request, MODEL_EXACT);
    for (uint32_t t = first; t < n_tokens; t++) {
        model_output(rows, t, NULL, output);
        const double rms = rms_of(output, config.hidden_size);
        for (uint32_t i = 0; i < config.hidden_size; i++) {
            const double error = fabs(output[i] - (double)f.outputs[(size_t)t * config.hidden_size + i]) / rms;
            assert_true(error <= 3e-2);
            largest = fmax(largest, error);
        }
    }
    print_message("%s: %u tokens, largest error %.4f of the RMS\n", what, (unsigned)n_tokens, largest);
    assert_true(largest > 1e-5); /* BF16 was there */
    model_rows_free(rows);
    model_request_free(request);
    model_layer_free(model);
    close_form(&f);
}

static void layers_equal_the_model(void **state)
{
    (void)state;
    dsr_attention_config window = block_config(DSR_LAYER_WINDOW);
    window.hidden_size = 64;
    check_against_model("window", window, 1);
#ifndef DSR_TEST_EMULATED
    check_against_model("window", window, 150);
#endif
    dsr_attention_config far = block_config(DSR_LAYER_RATIO_128);
    far.hidden_size = 64;
    check_against_model("ratio 128", far, 130);
#ifndef DSR_TEST_EMULATED
    check_against_model("ratio 128", far, 300);
#endif
    dsr_attention_config near = block_config(DSR_LAYER_RATIO_4);
    near.hidden_size = 64;
    near.top_k = 512;
    check_against_model("ratio 4", near, 7);
#ifndef DSR_TEST_EMULATED
    check_against_model("ratio 4", near, 150);
#endif
    near.n_heads = 128;
    near.n_index_heads = 128;
    near.o_groups = 16;
    check_against_model("ratio 4, 128 heads", near, 40);
    window.n_heads = 128;
    window.o_groups = 4;
    window.o_rank = 48;
    check_against_model("window, 128 heads", window, 20);
}

/* Scales, bases and YaRN of a caller's own. */
static void other_parameters(void **state)
{
    (void)state;
    dsr_attention_config config = block_config(DSR_LAYER_RATIO_4);
    config.top_k = 512;
    config.epsilon = 1e-2f;
    config.scale = 0.03125f;
    config.rope_theta = 50000.0f;
    config.yarn_factor = 4.0f;
    config.yarn_original_context = 4096.0f;
    config.yarn_beta_fast = 16.0f;
    config.yarn_beta_slow = 2.0f;
    check_against_model("ratio 4, own parameters", config, 60);
    config.kind = DSR_LAYER_WINDOW;
    config.yarn_factor = 1.0f;
    check_against_model("window, own base", config, 60);
}

/* The model reads FP8 weights to the same values. */
static void check_model_of_fp8(form *fp8, form *bf16)
{
    double outputs[2][272];
    for (int i = 0; i < 2; i++) {
        form *f = i ? fp8 : bf16;
        model_layer *model = model_layer_new(&f->config, synthetic_lookup, &f->weights, SYNTHETIC_PREFIX);
        model_request *request = model_request_new(model, f->inputs, 11, 0);
        model_rows *rows = model_rows_new(model, request, MODEL_EXACT);
        model_output(rows, 10, NULL, outputs[i]);
        model_rows_free(rows);
        model_request_free(request);
        model_layer_free(model);
    }
    assert_memory_equal(outputs[0], outputs[1], sizeof outputs[0]);
}

static void fp8_equals_bf16(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        dsr_attention_config config = block_config(kind ? DSR_LAYER_RATIO_4 : DSR_LAYER_RATIO_128);
        config.hidden_size = 272; /* blocks of 128, 128 and 16 inputs */
        config.q_rank = 144;
        form bf16;
        open_form(&bf16, config, SYNTHETIC_FP8_AS_BF16, 11);
        for (int format = SYNTHETIC_FP8_F32; format <= SYNTHETIC_FP8_E8M0; format++) {
            form fp8;
            open_form(&fp8, config, (synthetic_format)format, 11);
            assert_memory_equal(fp8.outputs, bf16.outputs, 11 * config.hidden_size * sizeof(float));
            check_model_of_fp8(&fp8, &bf16);
            close_form(&fp8);
        }
        double sum = 0;
        for (uint32_t i = 0; i < 11 * config.hidden_size; i++)
            sum += fabs((double)bf16.outputs[i]);
        assert_true(sum > 1);
        close_form(&bf16);
    }
}

/* The judge of near-ties takes only what is one. */
static void near_ties_need_near_scores(void **state)
{
    enum { N_TOKENS = 160, TOKEN = N_TOKENS - 1, N = N_TOKENS / 4 };
    form f;
    double recorded[BLOCK_HIDDEN], output[BLOCK_HIDDEN], scores[N];
    unsigned char selected[N] = {0}, own[N];
    uint32_t best = 0, worst = 0;
    (void)state;
    open_form(&f, block_config(DSR_LAYER_RATIO_4), SYNTHETIC_BF16, N_TOKENS);
    model_layer *model = model_layer_new(&f.config, synthetic_lookup, &f.weights, SYNTHETIC_PREFIX);
    model_request *request = model_request_new(model, f.inputs, N_TOKENS, 0);
    model_rows *exact = model_rows_new(model, request, MODEL_EXACT);
    model_rows *rounded = model_rows_new(model, request, MODEL_ALL);
    model_scores(exact, TOKEN, scores);
    (void)model_select(scores, N, f.config.top_k, selected);
    model_output(exact, TOKEN, selected, recorded);
    const double rms = rms_of(recorded, BLOCK_HIDDEN);
    near_tie tie = near_tie_compare(exact, rounded, TOKEN, selected, recorded, recorded, rms, own);
    assert_memory_equal(own, selected, N);
    assert_true(tie.n_swapped == 0 && tie.forced_error <= 0.0);
    assert_string_equal(near_tie_objection(&tie), "the same entries are selected as in a float64 model");
    for (uint32_t e = 0; e < N; e++) {
        best = scores[e] > scores[best] ? e : best;
        worst = scores[e] < scores[worst] ? e : worst;
    }
    selected[best] = 0;
    selected[worst] = 1;
    model_output(exact, TOKEN, selected, output);
    tie = near_tie_compare(exact, rounded, TOKEN, selected, output, recorded, rms, own);
    assert_int_equal(tie.n_swapped, 2);
    assert_true(tie.gap > tie.allowed && tie.forced_error <= 0.0);
    assert_string_equal(near_tie_objection(&tie), "other entries are selected, whose scores are no near-ties");
    tie.gap = tie.allowed;
    assert_null(near_tie_objection(&tie));
    tie.forced_error = 0.04;
    assert_non_null(near_tie_objection(&tie));
    recorded[3] += 0.01 * rms;
    tie = near_tie_compare(exact, rounded, TOKEN, selected, output, recorded, rms, NULL);
    assert_string_equal(near_tie_objection(&tie), "a float64 model of the layer does not reproduce the record");
    output[3] = NAN;
    assert_true(isinf(near_tie_error(output, recorded, BLOCK_HIDDEN, rms)));
    model_rows_free(exact);
    model_rows_free(rounded);
    model_request_free(request);
    model_layer_free(model);
    close_form(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_equal_the_model),
        cmocka_unit_test(other_parameters),
        cmocka_unit_test(fp8_equals_bf16),
        cmocka_unit_test(near_ties_need_near_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
