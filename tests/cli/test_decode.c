/* dsrows decode: the recorded layer, the same bytes on every level, and files that cannot be used. */
#include "command.h"
#include "safetensors.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "changed_file.h"

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

/* Writes a request of one kind of number, and a record of another. */
static void write_numbers(uint16_t input, float recorded)
{
    enum { TOKENS = 20, STEPS = 16, HIDDEN = 256 };
    static uint16_t x[TOKENS * HIDDEN];
    static float y[STEPS * HIDDEN];
    char message[ST_MESSAGE_BYTES];
    for (size_t i = 0; i < sizeof x / sizeof x[0]; i++)
        x[i] = input;
    for (size_t i = 0; i < sizeof y / sizeof y[0]; i++)
        y[i] = recorded;
    const st_tensor tensors[] = {
        {.name = "x.0", .dtype = "BF16", .n_dims = 2, .shape = {TOKENS, HIDDEN}, .data = x},
        {.name = "y.decode.0", .dtype = "F32", .n_dims = 2, .shape = {STEPS, HIDDEN}, .data = y}};
    if (!st_write("numbers.safetensors", tensors, 2, message))
        fail_msg("%s", message);
}

/* Zeros are what a layer gives for zeros, and no error; anything else is an infinite one beside them. */
static void errors_are_numbers(void **state)
{
    (void)state;
    write_numbers(0, 0);
    command_expect(0, "", "decode --model " LAYER " --requests numbers.safetensors");
    write_numbers(0x3f80, 0);
    command_result result = command_run("decode --model " LAYER " --requests numbers.safetensors");
    assert_int_equal(result.code, 1);
    assert_null(strstr(result.out, "nan"));
    assert_null(strstr(result.err, "nan"));
    assert_non_null(strstr(result.err, "the mean error is inf, at most 0.004 is right"));
    command_free(&result);
}

/* No error can be told beside a record that is no number. */
static void refuses_records_without_numbers(void **state)
{
    enum { STEP = 3, HIDDEN = 256 };
    (void)state;
    write_numbers(0, NAN);
    command_expect(2, "numbers.safetensors: tensor y.decode.0: element [0, 0] is nan, needed is a finite number\n",
                   "decode --model " LAYER " --requests numbers.safetensors");
    write_short_requests();
    write_changed_record("short.safetensors", 1, STEP * HIDDEN + 7, 1, INFINITY, "off.safetensors");
    command_result result = command_run("decode --model " LAYER " --requests off.safetensors");
    assert_int_equal(result.code, 2);
    assert_non_null(strstr(result.err, "tensor y.decode.0: element [3, 7] is "));
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
#define ROPE_TYPE(type) "\\\"rope_parameters\\\":{\\\"main\\\":{\\\"rope_type\\\":" type "}}"
#define CONFIG          "\"config\":\"{" SIZES "}\""
#define X_AFTER_2       "\"x.0\":{\"dtype\":\"BF16\",\"shape\":[20,16],\"data_offsets\":[514,1154]}"
#define X               "\"x.0\":{\"dtype\":\"BF16\",\"shape\":[20,16],\"data_offsets\":[512,1152]}"

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
        {"{\"__metadata__\":{\"config\":\"{\\\"hidden_size\\\":1180591620717411303424}\"}," Q_A "}", 512,
         "metadata config is not JSON: byte 37: too big integer"},
        {"{" Q_A ",\"x.\\u001b[1m\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[512,514]}," X_AFTER_2
         ",\"__metadata__\":{" CONFIG "}}",
         1154, "tensor x.?[1m: needed is x.R"},
        {"{\"__metadata__\":{\"config\":\"{}\"}," Q_A "}", 512,
         "hidden_size is missing, needed is a whole number from 1 to 4294967295"},
        {"{\"__metadata__\":{\"config\":\"{\\\"hidden_size\\\":-3}\"}," Q_A "}", 512,
         "hidden_size is -3, needed is a whole number from 1 to 4294967295"},
        {"{\"__metadata__\":{\"config\":\"{\\\"hidden_size\\\":[16,\\\"x\\\"]}\"}," Q_A "}", 512,
         "hidden_size is [16,\"x\"], needed is a whole number"},
        {"{\"__metadata__\":{\"config\":\"{\\\"head_dim\\\":128}\"}," Q_A "}", 512, "head_dim is 128, needed is 512"},
        {"{\"__metadata__\":{\"config\":\"{\\\"rms_norm_eps\\\":\\\"small\\\"," SIZES "}\"}," Q_A "}", 512,
         "rms_norm_eps is \"small\", needed is a number"},
        {"{\"__metadata__\":{\"config\":\"{" ROPE_TYPE("\\\"linear\\\"") "," SIZES "}\"}," Q_A "}", 512,
         "rope_type is \"linear\", needed is \"default\" or \"yarn\""},
        {"{\"__metadata__\":{\"config\":\"{" ROPE_TYPE("5") "," SIZES "}\"}," Q_A "}", 512,
         "rope_type is 5, needed is \"default\" or \"yarn\""},
        {"{\"__metadata__\":{\"config\":\"{\\\"rope_parameters\\\":5," SIZES "}\"}," Q_A "}", 512,
         "rope_parameters is 5, needed is an object"},
        {"{\"__metadata__\":{\"config\":\"{\\\"rope_parameters\\\":{\\\"main\\\":[]}," SIZES "}\"}," Q_A "}", 512,
         "rope_parameters.main is [], needed is an object"},
        {"{\"__metadata__\":{\"config\":\"{\\\"compress_rates\\\":{\\\"compressed_sparse_attention\\\":8}}\"}," Q_A "}",
         512, "compress_rates.compressed_sparse_attention is 8, needed is 4"},
        {"{\"__metadata__\":{" CONFIG "}," Q_A "}", 512, "x.0 is missing"},
        {"{\"__metadata__\":{" CONFIG ",\"decode_steps\":\"0\"}," Q_A "," X "}", 1152, "decode_steps is 0"},
        {"{\"__metadata__\":{" CONFIG ",\"decode_steps\":\"20\"}," Q_A "," X "}", 1152, "tensor x.0: 20 tokens given"},
        {"{\"__metadata__\":{" CONFIG "}," Q_A "," X "}", 1152, "tensor w.q_b_proj.weight is missing"},
        {"{\"__metadata__\":{" CONFIG "},\"w.q_a_proj.weight\":{\"dtype\":\"F64\",\"shape\":[16,4],\"data_offsets\":[0,"
         "512]}," X "}",
         1152, "bad.safetensors: tensor w.q_a_proj.weight is F64, needed is F32, BF16 or F8_E4M3\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file(cases[i].header, cases[i].n_data);
        command_expect(2, cases[i].message, "decode --model bad.safetensors");
    }
}

static void refuses_a_dtype_of_another_use(void **state)
{
    static const struct {
        const char *weight, *scale, *message;
    } cases[] = {
        {"F8_E8M0", "F32", "tensor w.q_a_proj.weight is F8_E8M0, needed is F32, BF16 or F8_E4M3\n"},
        {"F8_E4M3", "F8_E4M3", "tensor w.q_a_proj.weight_scale_inv is F8_E4M3, needed is F32 or F8_E8M0\n"},
        {"F8_E4M3", "F8_E8M0", "tensor w.q_b_proj.weight is missing"},
        {"U8", "U8", "tensor w.q_b_proj.weight is missing"},
    };
    char header[1024];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int n = strcmp(cases[i].scale, "F32") == 0 ? 4 : 1;
        snprintf(header, sizeof header,
                 "{\"__metadata__\":{" CONFIG
                 "},\"w.q_a_proj.weight\":{\"dtype\":\"%s\",\"shape\":[16,16],\"data_offsets\":[0,256]},"
                 "\"x.0\":{\"dtype\":\"BF16\",\"shape\":[20,16],\"data_offsets\":[256,896]},"
                 "\"w.q_a_proj.weight_scale_inv\":{\"dtype\":\"%s\",\"shape\":[1,1],\"data_offsets\":[896,%d]}}",
                 cases[i].weight, cases[i].scale, 896 + n);
        write_file(header, (size_t)(896 + n));
        command_expect(2, cases[i].message, "decode --model bad.safetensors");
    }
}

/* A file of a layer of ratio 128 whose configuration has these members too; ' stands for ". */
static void write_configuration(const char *members)
{
    char header[2048], escaped[1024];
    size_t used = 0;
    for (; *members != '\0'; members++) {
        assert_true(used + 3 < sizeof escaped);
        if (*members == '\'')
            escaped[used++] = '\\';
        escaped[used++] = *members == '\'' ? '"' : *members;
    }
    escaped[used] = '\0';
    snprintf(header, sizeof header,
             "{\"__metadata__\":{\"config\":\"{" SIZES
             ",%s}\"},\"layers.0.q_a_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[16,16],\"data_offsets\":[0,512]},"
             "\"layers.0.compressor.kv_norm.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[512,516]}}",
             escaped);
    write_file(header, 516);
}

/* What would be computed otherwise than a member says is an error that names it. */
static void refuses_what_it_does_not_compute(void **state)
{
#define ROPE(members)     "'rope_parameters':{'main':{},'compress':{" members "}}"
#define YARN              "'rope_type':'yarn','factor':16.0,'original_max_position_embeddings':65536"
#define A_NUMBER(of_what) of_what ", needed is a number from 1.2e-38 to 3.4e+38"
    static const struct {
        const char *members, *message;
    } cases[] = {
        {"'model_type':'llama'", "model_type is \"llama\", needed is \"deepseek_v4\""},
        {"'num_key_value_heads':8", "num_key_value_heads is 8, needed is 1"},
        {"'partial_rotary_factor':0.5", "partial_rotary_factor is 0.5, needed is 0.125"},
        {"'attention_bias':true", "attention_bias is true, needed is false"},
        {"'attention_bias':0", "attention_bias is 0, needed is false"},
        {"'head_dim':'512'", "head_dim is \"512\", needed is 512"},
        {"'qk_rope_head_dim':32", "qk_rope_head_dim is 32, needed is 64"},
        {"'sliding_window':64", "sliding_window is 64, needed is 128"},
        {"'index_head_dim':64", "index_head_dim is 64, needed is 128"},
        {"'compress_rate_csa':8", "compress_rate_csa is 8, needed is 4"},
        {"'compress_rates':{'heavily_compressed_attention':64}",
         "compress_rates.heavily_compressed_attention is 64, needed is 128"},
        {"'rms_norm_eps':0", A_NUMBER("rms_norm_eps is 0")},
        {"'rms_norm_eps':-1e-6", A_NUMBER("rms_norm_eps is -1e-6")},
        {"'rms_norm_eps':1e-300", A_NUMBER("rms_norm_eps is 1e-300")},
        {"'rms_norm_eps':1e300", A_NUMBER("rms_norm_eps is 1e300")},
        {"'layer_types':'sliding_attention'", "layer_types is \"sliding_attention\", needed is a list"},
        {"'compress_ratios':[8]", "compress_ratios[0] is 8, needed is 0, 4 or 128"},
        {"'compress_ratios':[0]", "compress_ratios[0] is 0, needed is heavily_compressed_attention: the layer has"},
        {"'compress_ratios':[4]", "index_n_heads is missing"},
        {"'rope_scaling':'yarn'", "rope_scaling is \"yarn\", needed is an object"},
        {"'rope_parameters':{'main':{'rope_theta':1e4}}", "rope_parameters.compress is missing, needed is an object"},
        {ROPE("'beta_fast':32"), A_NUMBER("rope_parameters.compress.rope_theta is missing")},
        {ROPE("'rope_theta':1.6e5,'rope_type':'yarn'"), A_NUMBER("rope_parameters.compress.factor is missing")},
        {ROPE("'rope_theta':1.6e5,'rope_type':'yarn','factor':16"),
         A_NUMBER("rope_parameters.compress.original_max_position_embeddings is missing")},
        {ROPE("'rope_theta':1.6e5,'attention_factor':2.0," YARN),
         "rope_parameters.compress.attention_factor is 2.0, needed is 1.0"},
        {ROPE("'rope_theta':1.6e5," YARN), "rope_parameters.compress.attention_factor is missing, needed is 1.0"},
        {ROPE("'rope_theta':1.6e5,'partial_rotary_factor':0.25"),
         "rope_parameters.compress.partial_rotary_factor is 0.25, needed is 0.125"},
        {ROPE("'rope_theta':1.6e5,'type':'linear'"), "rope_parameters.compress.rope_type is \"linear\", needed is"},
        {"'rope_parameters':{'rope_type':'llama3'}", "rope_parameters.rope_type is \"llama3\", needed is"},
        {"'rope_scaling':{'type':'yarn'}", A_NUMBER("rope_scaling.factor is missing")},
        {"'rope_scaling':{'attention_factor':1.5," YARN "}", "rope_scaling.attention_factor is 1.5, needed is 1.0"},
        {"'compress_rope_theta':0", A_NUMBER("compress_rope_theta is 0")},
        /* These are all right. */
        {"'anything':{'x':[1]},'attention_dropout':0.5,'hidden_act':'gelu','attention_bias':null", "x.0 is missing"},
        {"'model_type':'deepseek_v4','num_key_value_heads':1,'partial_rotary_factor':null,'head_dim':512.0",
         "x.0 is missing"},
        {"'compress_ratios':[128],'rope_parameters':null,'rope_scaling':null,'rms_norm_eps':null", "x.0 is missing"},
        {"'rope_scaling':{" YARN ",'mscale':1.0},'rope_parameters':{'rope_type':'linear'}", "x.0 is missing"},
        {ROPE("'rope_theta':1.6e5,'attention_factor':1,'beta_fast':null," YARN), "x.0 is missing"},
        {ROPE("'rope_theta':1.6e5,'rope_type':null,'attention_factor':2.0"), "x.0 is missing"},
    };
#undef ROPE
#undef YARN
#undef A_NUMBER
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_configuration(cases[i].members);
        command_expect(2, cases[i].message, "decode --model bad.safetensors");
    }
}

static double largest_error_of(const char *model)
{
    char arguments[128];
    snprintf(arguments, sizeof arguments, "--model %s --requests short.safetensors", model);
    json_t *document = decode_json(arguments);
    const json_t *layer = json_array_get(json_object_get(document, "layers"), 0);
    const json_t *request = json_array_get(json_object_get(layer, "requests"), 1);
    const double error = json_real_value(json_object_get(request, "largest_error"));
    json_decref(document);
    return error;
}

/* The flat form of RoPE's parameters counts like the other one. */
static void reads_both_forms_of_rope(void **state)
{
#define KEY  "\\\"rope_parameters\\\": "
#define REST ", \\\"anything\\\": "
    (void)state;
    write_short_requests();
    const double recorded = largest_error_of(LAYER);
    write_changed_header(LAYER, KEY,
                         "\\\"rope_scaling\\\": {\\\"type\\\": \\\"yarn\\\", \\\"factor\\\": 16, "
                         "\\\"original_max_position_embeddings\\\": 65536}" REST);
    assert_true(largest_error_of("changed.safetensors") == recorded);
    write_changed_header(LAYER, KEY, KEY "{\\\"rope_type\\\": \\\"default\\\"}" REST);
    assert_true(largest_error_of("changed.safetensors") != recorded);
#undef KEY
#undef REST
}

static void refuses_a_bias(void **state)
{
    (void)state;
    write_changed_header(LAYER, "w.compressor.indexer.kv_norm.weight", "w.kv_proj.bias");
    command_expect(2, "tensor w.kv_proj.bias: projections have no bias", "decode --model changed.safetensors");
}

/* What a layer is: by its number where the configuration lists the types, else by the tensors that are there. */
static void decides_the_kind_of_layer(void **state)
{
    static const struct {
        const char *layer, *types, *other_tensor, *message;
    } cases[] = {
        {"layers.1.", "sliding_attention\\\",\\\"compressed_sparse_attention", "x", "index_n_heads is missing"},
        {"model.layers.0.self_attn.", "compressed_sparse_attention", "compressor.kv_proj.weight",
         "index_n_heads is missing"},
        {"layers.0.", "heavily_compressed_attention", "x", "x.0 is missing"},
        {"layers.1.", "sliding_attention", "compressor.indexer.kv_norm.weight",
         "layer_types[1] is missing, needed is sliding_attention, compressed_sparse_attention or"},
        {"w.", "sliding_attention\\\",\\\"compressed_sparse_attention", "compressor.indexer.kv_norm.weight",
         "index_n_heads is missing"},
        {"w.", "sliding_attention", "compressor.indexer.kv_norm.weight",
         "layer_types is [\"sliding_attention\"], needed is a list with compressed_sparse_attention"},
        {"w.", "compressed_sparse_attention", "x",
         "tensor w.compressor.kv_proj.weight is missing: by layer_types no layer is without it"},
        {"layers.0.", "sliding_attention", "compressor.kv_norm.weight",
         "layer_types[0] is \"sliding_attention\", needed is heavily_compressed_attention: the layer has tensors of "
         "that"},
        {"layers.0.", "heavily_compressed_attention", "compressor.indexer.kv_norm.weight",
         "layer_types[0] is \"heavily_compressed_attention\", needed is compressed_sparse_attention"},
        {"layers.0.", "full_attention", "x",
         "layer_types[0] is \"full_attention\", needed is sliding_attention, compressed_sparse_attention or "
         "heavily_compressed_attention"},
    };
    char header[1024];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(
            header, sizeof header,
            "{\"__metadata__\":{\"config\":\"{" SIZES ",\\\"layer_types\\\":[\\\"%s\\\"]}\"},\"%sq_a_proj.weight\":"
            "{\"dtype\":\"BF16\",\"shape\":[16,16],\"data_offsets\":[0,512]},\"%s%s\":{\"dtype\":\"F32\",\"shape\":"
            "[1],\"data_offsets\":[512,516]}}",
            cases[i].types, cases[i].layer, cases[i].layer, cases[i].other_tensor);
        write_file(header, 516);
        command_expect(2, cases[i].message, "decode --model bad.safetensors");
    }
}

/* A prefix without a number leaves it to the tensors: what can be a mistake is said. */
static void notes_what_is_taken_for_a_window_layer(void **state)
{
    static const char note[] = "note: taken for a layer of the window alone: there is no tensor w.compressor.*";
    (void)state;
    write_short_requests();
    write_changed_header(LAYER, "w.compressor.", "other.");
    command_result result =
        command_run("decode --model changed.safetensors --requests short.safetensors --cache official");
    assert_int_equal(result.code, 0);
    assert_non_null(strstr(result.err, note));
    command_free(&result);
    assert_int_equal(rename("changed.safetensors", "window.safetensors"), 0);
    write_changed_header("window.safetensors", "\"w.", "\"layers.0.");
    result = command_run("decode --model changed.safetensors --requests short.safetensors --cache official");
    assert_int_equal(result.code, 0);
    assert_string_equal(result.err, "");
    command_free(&result);
}

/* Nothing is noted of a layer that is refused. */
static void says_only_what_is_wrong(void **state)
{
    (void)state;
    write_file("{\"__metadata__\":{" CONFIG "}," Q_A ",\"v.q_a_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[1],"
               "\"data_offsets\":[512,514]}}",
               514);
    command_result result = command_run("decode --model bad.safetensors");
    assert_int_equal(result.code, 2);
    assert_string_equal(result.err, "dsrows decode: bad.safetensors: several attention layers, needed is one a file\n");
    command_free(&result);
}

static void names_the_missing_tensor(void **state)
{
    static const char *const names[][2] = {
        {"w.compressor.indexer.q_b_proj.weight", "w.compressor.indexer.q_B_proj.weight"},
        {"w.compressor.indexer.position_bias", "w.compressor.indexer.Position_bias"},
        {"w.compressor.kv_proj.weight", "w.compressor.Kv_proj.weight"},
        {"w.sinks", "w.Sinks"}};
    char text[128];
    (void)state;
    write_changed_header(LAYER, "w.compressor.indexer.", "other.");
    command_expect(2, "changed.safetensors: attention: tensor w.compressor.indexer.q_b_proj.weight is missing",
                   "decode --model changed.safetensors");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        write_changed_header(LAYER, names[i][0], names[i][1]);
        snprintf(text, sizeof text, "tensor %s is missing", names[i][0]);
        command_expect(2, text, "decode --model changed.safetensors");
    }
}

/* A layer that has a tensor of a compressor is none of the window alone, whichever tensor that is. */
static void names_the_missing_tensor_of_ratio_128(void **state)
{
    (void)state;
    write_changed_header(LAYER, "w.compressor.indexer.", "other.");
    assert_int_equal(rename("changed.safetensors", "ratio128.safetensors"), 0);
    write_changed_header("ratio128.safetensors", "w.compressor.kv_proj.", "w.other.");
    command_expect(2, "tensor w.compressor.kv_proj.weight is missing", "decode --model changed.safetensors");
}

/* A request or a record that would be left out is an error. */
static void takes_every_request_or_none(void **state)
{
    static const struct {
        const char *name, *other, *message;
    } cases[] = {
        {"x.1", "x.01", "tensor x.01: needed is x.R, R the number of a row without leading zeros"},
        {"x.1", "x.", "tensor x.: needed"},
        {"x.1", "x.a", "tensor x.a: needed"},
        {"x.1", "x.-1", "tensor x.-1: needed"},
        {"x.1", "x. 1", "tensor x. 1: needed"},
        {"x.1", "x.1e1", "tensor x.1e1: needed"},
        {"x.1", "x.99999999999999999999", "tensor x.99999999999999999999: needed"},
        {"x.1", "X.1", "tensor X.1: needed is x.R"},
        {"x.1", "x1", "tensor x1: needed is x.R"},
        {"x.1", "x_1", "tensor x_1: needed is x.R"},
        {"x.1", "x", "tensor x: needed is x.R"},
        {"x.1", "x.2", "tensor x.1 is missing"},
        {"x.1", "z.1", "tensor y.decode.1: there is no row 1, the last one is 0"},
        {"y.decode.1", "y.decode.7", "tensor y.decode.7: there is no row 7, the last one is 1"},
        {"y.decode.1", "y.decode.01", "tensor y.decode.01: needed is y.decode.R"},
        {"y.decode.1", "y.Decode.1", "tensor y.Decode.1: needed is y.decode.R"},
        {"y.decode.1", "z.decode.1", "tensor y.prefill_last.1: tensor y.decode.1 is missing"},
        {"y.prefill_last.1", "y.prefill_last.2", "tensor y.prefill_last.2: there is no row 2"},
    };
    (void)state;
    write_short_requests();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[32], other[32];
        snprintf(name, sizeof name, "\"%s\"", cases[i].name);
        snprintf(other, sizeof other, "\"%s\"", cases[i].other);
        write_changed_header("short.safetensors", name, other);
        command_expect(2, cases[i].message, "decode --model " LAYER " --requests changed.safetensors");
    }
}

/* A layer whose prefix begins like the requests' names hides none of them. */
static void takes_requests_beside_a_layer_of_their_prefix(void **state)
{
    static const struct {
        const char *prefix, *name, *message;
    } cases[] = {
        {"x.", "x.7", "tensor x.1 is missing"},
        {"x.", "x.01", "tensor x.01: needed is x.R"},
        {"x.", "x-1", "tensor x-1: needed is x.R"},
        {"y.", "y.decode.7", "tensor y.decode.7: there is no row 7"},
        {"y.", "y.decode.a", "tensor y.decode.a: needed"},
        {"y.", "y.Decode.1", "tensor y.Decode.1: needed"},
        {"x.", "x.more", "tensor x.q_b_proj.weight is missing"},
    };
    char header[1024];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(header, sizeof header,
                 "{\"__metadata__\":{" CONFIG "},\"%sq_a_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[16,16],"
                 "\"data_offsets\":[0,512]}," X ",\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":"
                 "[1152,1156]}}",
                 cases[i].prefix, cases[i].name);
        write_file(header, 1156);
        command_expect(2, cases[i].message, "decode --model bad.safetensors");
    }
}

/* Nothing of a table where there is none. */
static void a_failure_prints_no_table(void **state)
{
    (void)state;
    command_result result = command_run("decode --model missing.safetensors");
    assert_int_equal(result.code, 2);
    assert_string_equal(result.out, "");
    command_free(&result);
}

static void says_what_bad_usage_is(void **state)
{
    (void)state;
    command_expect(2, "--model is needed", "decode");
    command_expect(2, "--model is needed", "decode some.safetensors");
    command_expect(2, "missing.safetensors: No such file", "decode --model missing.safetensors");
    command_expect(2, "00: File name too long\n", "decode --model $(printf '%05000d' 0)");
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
        cmocka_unit_test(recorded_layer_passes),
        cmocka_unit_test(other_caches_run),
        cmocka_unit_test(off_record_fails),
        cmocka_unit_test(errors_are_numbers),
        cmocka_unit_test(refuses_records_without_numbers),
        cmocka_unit_test(several_layers_run_in_turn),
        cmocka_unit_test(table_is_text),
        cmocka_unit_test(says_what_is_wrong_with_a_file),
        cmocka_unit_test(refuses_a_dtype_of_another_use),
        cmocka_unit_test(refuses_what_it_does_not_compute),
        cmocka_unit_test(reads_both_forms_of_rope),
        cmocka_unit_test(refuses_a_bias),
        cmocka_unit_test(decides_the_kind_of_layer),
        cmocka_unit_test(notes_what_is_taken_for_a_window_layer),
        cmocka_unit_test(says_only_what_is_wrong),
        cmocka_unit_test(names_the_missing_tensor),
        cmocka_unit_test(names_the_missing_tensor_of_ratio_128),
        cmocka_unit_test(takes_every_request_or_none),
        cmocka_unit_test(takes_requests_beside_a_layer_of_their_prefix),
        cmocka_unit_test(a_failure_prints_no_table),
        cmocka_unit_test(says_what_bad_usage_is),
    };
    return cmocka_run_group_tests(tests, command_enter_directory, command_leave_directory);
}
