/* dsrows decode: the recorded layer, the same bytes on every level, and files that cannot be used. */
#include "command.h"
#include "safetensors.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "changed_record.h"

#define LAYER DSR_SOURCE_DIR "/data/layer_csa.safetensors"

static json_t *decode_json(const char *arguments)
{
    command_result result = command_run("decode --json %s", arguments);
    if (result.code != 0)
        print_error("%s\n", result.err);
    assert_int_equal(result.code, 0);
    json_t *document = json_loads(result.out, 0, NULL);
    assert_non_null(document);
    command_free(&result);
    return document;
}

/* The two shortest of the recorded requests: the scalar level would take minutes for the long one. */
static void write_short_requests(void)
{
    static const char *const names[] = {
        "x.0", "x.1", "y.decode.0", "y.decode.1", "y.prefill_last.0", "y.prefill_last.1"};
    enum { N = sizeof names / sizeof names[0] };
    char message[ST_MESSAGE_BYTES];
    st_tensor tensors[N];
    st_file *file = st_open(LAYER, message);
    assert_non_null(file);
    for (size_t i = 0; i < N; i++)
        tensors[i] = *st_find(file, names[i]);
    if (!st_write("short.safetensors", tensors, N, message))
        fail_msg("%s", message);
    st_close(file);
}

static void recorded_layer_passes(void **state)
{
    write_short_requests();
    json_t *document = decode_json("--model " LAYER " --requests short.safetensors --threads 2");
    const json_t *layer = json_array_get(json_object_get(document, "layers"), 0);
    const json_t *requests = json_object_get(layer, "requests");
    (void)state;
    assert_true(json_is_true(json_object_get(document, "passed")));
    assert_string_equal(json_string_value(json_object_get(layer, "kind")), "ratio 4");
    assert_int_equal(json_array_size(requests), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *request = json_array_get(requests, i);
        assert_true(json_is_true(json_object_get(request, "outputs_equal_alone")));
        assert_true(json_is_true(json_object_get(request, "state_equals_alone")));
        assert_true(json_real_value(json_object_get(request, "mean_error")) < 4e-3);
        assert_true(json_real_value(json_object_get(request, "largest_error")) > 1e-4);
    }
    json_decref(document);
}

/* An error beyond the bound fails where a request has no choice of entries. */
static void off_record_fails(void **state)
{
    enum { STEP = 3, HIDDEN = 256 };
    (void)state;
    write_short_requests();
    write_changed_record("short.safetensors", 1, STEP * HIDDEN + 7, 1, 3, "off.safetensors");
    command_result result = command_run("decode --model " LAYER " --requests off.safetensors");
    assert_int_equal(result.code, 1);
    assert_non_null(strstr(result.out, "  FAILED\n"));
    assert_non_null(
        strstr(result.err, "request 0: outputs beyond 0.03 that are no near-ties: 1; the first, of token 40, "));
    assert_non_null(strstr(result.err, "a float64 model of the layer does not reproduce the record"));
    command_free(&result);
    result = command_run("decode --json --model " LAYER " --requests off.safetensors");
    assert_int_equal(result.code, 1);
    assert_non_null(strstr(result.out, "\"unproven\": 1,"));
    assert_non_null(strstr(result.out, "\"passed\": false"));
    command_free(&result);
}

/* With other caches there is nothing to compare with but the request alone. */
static void run_with_caches(const char *cache)
{
    char command[128];
    snprintf(command, sizeof command, "--model " LAYER " --requests short.safetensors --cache %s", cache);
    json_t *document = decode_json(command);
    const json_t *layer = json_array_get(json_object_get(document, "layers"), 0);
    assert_string_equal(json_string_value(json_object_get(layer, "cache")), cache);
    assert_true(json_is_null(json_object_get(json_array_get(json_object_get(layer, "requests"), 1), "largest_error")));
    json_decref(document);
}

static void other_caches_run(void **state)
{
    (void)state;
    write_short_requests();
    run_with_caches("official");
    run_with_caches("packed");
}

/* Records count for one layer only. */
static void several_layers_run_in_turn(void **state)
{
    write_short_requests();
    json_t *document = decode_json("--model " LAYER " " LAYER " --requests short.safetensors");
    const json_t *layers = json_object_get(document, "layers");
    (void)state;
    assert_int_equal(json_array_size(layers), 2);
    const json_t *requests = json_object_get(json_array_get(layers, 1), "requests");
    assert_true(json_is_null(json_object_get(json_array_get(requests, 1), "mean_error")));
    json_decref(document);
}

static void table_is_text(void **state)
{
    write_short_requests();
    command_result result = command_run("decode --model " LAYER " --requests short.safetensors");
    (void)state;
    assert_int_equal(result.code, 0);
    assert_string_equal(result.err, "");
    assert_non_null(strstr(result.out, "\n      1      37     16   1."));
    assert_non_null(strstr(result.out, "joint: "));
    assert_non_null(strstr(result.out, "-exact, 1 thread\n"));
    assert_null(strstr(result.out, "NO"));
    command_free(&result);
}

/* A file of one header and as many zero bytes as it needs. */
static void write_file(const char *header, size_t n_data)
{
    FILE *file = fopen("bad.safetensors", "wb");
    const uint64_t length = strlen(header);
    assert_non_null(file);
    fwrite(&length, sizeof length, 1, file);
    fwrite(header, 1, length, file);
    for (size_t i = 0; i < n_data; i++)
        fputc(0, file);
    assert_int_equal(fclose(file), 0);
}

#define Q_A "\"w.q_a_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[16,16],\"data_offsets\":[0,512]}"
#define SIZES                                                                                                          \
    "\\\"hidden_size\\\":16,\\\"num_attention_heads\\\":64,\\\"q_lora_rank\\\":16,"                                    \
    "\\\"o_groups\\\":8,\\\"o_lora_rank\\\":16"
#define CONFIG "\"config\":\"{" SIZES "}\""
#define X      "\"x.0\":{\"dtype\":\"BF16\",\"shape\":[20,16],\"data_offsets\":[512,1152]}"

static void says_what_is_wrong_with_a_file(void **state)
{
    static const struct {
        const char *header;
        size_t n_data;
        const char *message;
    } cases[] = {
        {"{}", 0, "no attention layer"},
        {"{" Q_A ",\"v.q_a_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[512,514]}}", 514,
         "several attention layers"},
        {"{" Q_A "}", 512, "the metadata has no config"},
        {"{\"__metadata__\":{\"config\":\"[1]\"}," Q_A "}", 512, "config is not a JSON object"},
        {"{\"__metadata__\":{\"config\":\"{}\"}," Q_A "}", 512, "hidden_size is missing"},
        {"{\"__metadata__\":{\"config\":\"{\\\"head_dim\\\":128}\"}," Q_A "}", 512, "head_dim must be 512"},
        {"{\"__metadata__\":{\"config\":\"{\\\"rope_parameters\\\":5," SIZES "}\"}," Q_A "}", 512,
         "rope_parameters is not an object"},
        {"{\"__metadata__\":{\"config\":\"{\\\"compress_rates\\\":{\\\"compressed_sparse_attention\\\":8}}\"}," Q_A "}",
         512, "compress_rates.compressed_sparse_attention must be 4"},
        {"{\"__metadata__\":{" CONFIG "}," Q_A "}", 512, "x.0 is missing"},
        {"{\"__metadata__\":{" CONFIG ",\"decode_steps\":\"0\"}," Q_A "," X "}", 1152, "decode_steps is 0"},
        {"{\"__metadata__\":{" CONFIG ",\"decode_steps\":\"20\"}," Q_A "," X "}", 1152, "tensor x.0: 20 tokens given"},
        {"{\"__metadata__\":{" CONFIG "}," Q_A "," X "}", 1152, "tensor w.q_b_proj.weight is missing"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file(cases[i].header, cases[i].n_data);
        command_expect(2, cases[i].message, "decode --model bad.safetensors");
    }
}

static void says_what_bad_usage_is(void **state)
{
    (void)state;
    command_expect(2, "--model is needed", "decode");
    command_expect(2, "--model is needed", "decode some.safetensors");
    command_expect(2, "missing.safetensors: No such file", "decode --model missing.safetensors");
    command_expect(2, "other.safetensors: No such file", "decode --model " LAYER " --requests other.safetensors");
    command_expect(2, "--cache fp8: give bf16, official or packed", "decode --model " LAYER " --cache fp8");
    command_result help = command_run("decode --help");
    assert_int_equal(help.code, 0);
    assert_non_null(strstr(help.out, "usage: dsrows decode --model FILE..."));
    command_free(&help);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_layer_passes),  cmocka_unit_test(other_caches_run),
        cmocka_unit_test(off_record_fails),       cmocka_unit_test(several_layers_run_in_turn),
        cmocka_unit_test(table_is_text),          cmocka_unit_test(says_what_is_wrong_with_a_file),
        cmocka_unit_test(says_what_bad_usage_is),
    };
    return cmocka_run_group_tests(tests, command_enter_directory, command_leave_directory);
}
