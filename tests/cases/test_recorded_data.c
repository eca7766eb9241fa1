/* Operands and float64 results of eight requests, recorded from another implementation: how far this one is from them.
 */
#include "case_test.h"
#include "safetensors.h"

#include <stdio.h>

enum { REQUESTS = 8, HEADS = 64, QUERY = HEADS * DSR_HEAD_DIM, TOP_K = 512 };

static const char data_path[] = DSR_SOURCE_DIR "/data/open_ops.safetensors";
static st_file *file;

static int open_data(void **state)
{
    char message[ST_MESSAGE_BYTES];
    (void)state;
    file = st_open(data_path, message);
    if (!file) {
        print_error("%s\n", message);
    }
    return file ? 0 : -1;
}

static int close_data(void **state)
{
    (void)state;
    st_close(file);
    return 0;
}

/* An aligned copy of a tensor; *n its elements. The caller frees. */
static void *load(const char *name, const char *dtype, size_t *n)
{
    const st_tensor *tensor = st_find(file, name);
    if (!tensor || strcmp(tensor->dtype, dtype) != 0) {
        fail_msg("%s of %s is not in the file", name, dtype);
    }
    void *copy = zeros((size_t)tensor->n_bytes);
    memcpy(copy, tensor->data, (size_t)tensor->n_bytes);
    *n = (size_t)tensor->n_elements;
    return copy;
}

static void *load_row(const char *name, uint32_t row, const char *dtype, size_t *n)
{
    char text[64];
    snprintf(text, sizeof text, "%s.%u", name, row);
    return load(text, dtype, n);
}

/* Distance of two neighbouring BF16 values around x. */
static double bf16_unit(double x)
{
    int exponent;
    frexp(x, &exponent);
    return x == 0.0 ? ldexp(1.0, -133) : ldexp(1.0, exponent - 8);
}

/* ---- attention ------------------------------------------------------------------------------------------------- */

static double worst_attention(direct *d, direct_form form, const char *list_name, uint32_t r)
{
    size_t n_q, n_kv, n_list, n_sinks, n_scale, n_want;
    uint16_t *q = load_row("sparse.q", r, "BF16", &n_q), *kv = load_row("sparse.kv", r, "BF16", &n_kv);
    int32_t *list = load_row(list_name, r, "I32", &n_list);
    float *want = load_row("sparse.expected", r, "F32", &n_want);
    float *sinks = load("sparse.sinks", "F32", &n_sinks), *scale = load("sparse.scale", "F32", &n_scale);
    uint16_t *output = filled(QUERY * sizeof *output, 0xff);
    const attention_case c = {q, kv, n_kv / DSR_HEAD_DIM, list, n_list, sinks, HEADS, scale[0]};
    double worst = 0.0;
    assert_int_equal(n_q, QUERY);
    assert_int_equal(n_want, QUERY);
    assert_int_equal(n_sinks, HEADS);
    assert_ok(d, attend(d, form, &c, output));
    for (size_t i = 0; i < QUERY; i++) {
        const double error = fabs((double)f32_from_bf16(output[i]) - (double)want[i]);
        if (!(error <= bf16_unit((double)want[i]) / 2 + 1e-5)) {
            fail_msg("request %u, %s, element %zu: got %.9g, want %.9g", r, list_name, i,
                     (double)f32_from_bf16(output[i]), (double)want[i]);
        }
        worst = error > worst ? error : worst;
    }
    free(q);
    free(kv);
    free(list);
    free(want);
    free(sinks);
    free(scale);
    free(output);
    return worst;
}

static void attention(direct *d)
{
    for (int form = DIRECT_TWO_PASS; form <= DIRECT_FLASH; form++) {
        double worst = 0.0;
        for (uint32_t r = 0; r < REQUESTS; r++) {
            worst = fmax(worst, worst_attention(d, (direct_form)form, "sparse.indices", r));
            worst = fmax(worst, worst_attention(d, (direct_form)form, "sparse.indices640", r));
        }
        print_message("%s attention: largest error %.3g\n", form == DIRECT_FLASH ? "flash" : "sparse", worst);
    }
}

static void test_attention(void **state)
{
    (void)state;
    on_best_level(attention);
}

/* ---- indexer ---------------------------------------------------------------------------------------------------- */

static double worst_scores(direct *d, uint32_t r)
{
    size_t n_q, n_keys, n_weights, n_pos, n_want, n_list;
    uint16_t *q = load_row("indexer.q", r, "BF16", &n_q), *keys = load_row("indexer.k", r, "BF16", &n_keys);
    float *weights = load_row("indexer.weights", r, "F32", &n_weights);
    int32_t *start_pos = load_row("indexer.start_pos", r, "I32", &n_pos);
    float *want = load_row("indexer.scores", r, "F32", &n_want);
    int32_t *want_list = load_row("indexer.top512", r, "I32", &n_list), list[TOP_K];
    float *scores = zeros(n_want * sizeof *scores);
    dsr_indexer_row row = {0};
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    double worst = 0.0;
    row.keys = direct_bf16(d, keys, n_keys);
    row.kv_len = n_keys / DSR_INDEX_DIM;
    row.start_pos = (uint32_t)start_pos[0];
    desc.n_rows = 1;
    desc.rows = &row;
    desc.n_heads = HEADS;
    desc.q = direct_bf16(d, q, n_q);
    desc.weights = direct_f32(d, weights, n_weights);
    desc.output = direct_i32(d, list, TOP_K);
    desc.scores = direct_f32(d, scores, n_want);
    assert_int_equal(n_want, row.kv_len);
    assert_ok(d, direct_encode_indexer(d, &desc));
    assert_ok(d, direct_run(d));
    for (size_t t = 0; t < n_want; t++) {
        const double error = fabs((double)scores[t] - (double)want[t]);
        assert_true(error <= 2e-5);
        worst = error > worst ? error : worst;
    }
    for (size_t i = 0; i < TOP_K; i++) { /* the recorded order, but for scores closer than the errors */
        assert_int_equal(list[i] < 0, want_list[i] < 0);
        assert_true(list[i] < (int32_t)n_want);
        assert_true(list[i] < 0 || fabs((double)want[list[i]] - (double)want[want_list[i]]) <= 4e-5);
    }
    free(q);
    free(keys);
    free(weights);
    free(start_pos);
    free(want);
    free(want_list);
    free(scores);
    return worst;
}

static void indexer(direct *d)
{
    double worst = 0.0;
    for (uint32_t r = 0; r < REQUESTS; r++) {
        worst = fmax(worst, worst_scores(d, r));
    }
    print_message("indexer scores: largest error %.3g\n", worst);
}

static void test_indexer(void **state)
{
    (void)state;
    on_best_level(indexer);
}

/* ---- compressor ------------------------------------------------------------------------------------------------- */

/* BF16 numbers in order: neighbours differ by 1. */
static int32_t bf16_place(uint16_t x)
{
    return x & 0x8000 ? -(int32_t)(x & 0x7fff) : x;
}

static void *load_of_shape(uint32_t ratio, uint32_t dim, const char *what, size_t *n)
{
    char text[64];
    snprintf(text, sizeof text, "compressor.r%ud%u.%s", ratio, dim, what);
    return load(text, "F32", n);
}

static void compress(direct *d, uint32_t ratio, uint32_t dim)
{
    size_t n_kv, n_score, n_ape, n_norm, n_want;
    float *kv = load_of_shape(ratio, dim, "kv", &n_kv), *score = load_of_shape(ratio, dim, "score", &n_score);
    float *ape = load_of_shape(ratio, dim, "ape", &n_ape), *norm = load_of_shape(ratio, dim, "norm", &n_norm);
    float *want = load_of_shape(ratio, dim, "expected", &n_want);
    const size_t n_state = (size_t)dsr_compressor_state_elements(ratio, dim), columns = n_ape / ratio;
    float *kv_state = filled(n_state * sizeof(float), 0xff), *score_state = filled(n_state * sizeof(float), 0xff);
    uint16_t *output = filled(n_want * sizeof *output, 0xff);
    dsr_compressor_row row = {0};
    dsr_compressor_desc desc = DSR_COMPRESSOR_DESC_INIT;
    int32_t worst = 0;
    row.kv_state = direct_f32(d, kv_state, n_state);
    row.score_state = direct_f32(d, score_state, n_state);
    row.n_tokens = (uint32_t)(n_kv / columns);
    desc.n_rows = 1;
    desc.rows = &row;
    desc.ratio = ratio;
    desc.dim = dim;
    desc.epsilon = 1e-6f;
    desc.kv = direct_f32(d, kv, n_kv);
    desc.score = direct_f32(d, score, n_score);
    desc.ape = direct_f32(d, ape, n_ape);
    desc.norm = direct_f32(d, norm, n_norm);
    desc.output = direct_bf16(d, output, n_want);
    assert_ok(d, dsr_encode_compressor(d->encoder, &desc));
    assert_ok(d, direct_run(d));
    for (size_t i = 0; i < n_want; i++) { /* the nearest BF16 number to the record, or the next one to it */
        const int32_t steps = abs(bf16_place(output[i]) - bf16_place(bf16_nearest(want[i])));
        if (steps > 1) {
            fail_msg("ratio %u, dim %u, element %zu: got %.9g, want %.9g", ratio, dim, i,
                     (double)f32_from_bf16(output[i]), (double)want[i]);
        }
        worst = steps > worst ? steps : worst;
    }
    print_message("compressor (%u, %u): at most %d BF16 numbers from the record\n", ratio, dim, (int)worst);
    free(kv);
    free(score);
    free(ape);
    free(norm);
    free(want);
    free(kv_state);
    free(score_state);
    free(output);
}

static void compressor(direct *d)
{
    compress(d, 4, 128);
    compress(d, 4, 512);
    compress(d, 128, 512);
}

static void test_compressor(void **state)
{
    (void)state;
    on_best_level(compressor);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_indexer),
        cmocka_unit_test(test_compressor),
    };
    return cmocka_run_group_tests(tests, open_data, close_data);
}
