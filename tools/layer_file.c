#include "layer_file.h"

#include <float.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *layer_kind_name(dsr_layer_kind kind)
{
    return kind == DSR_LAYER_WINDOW ? "window" : kind == DSR_LAYER_RATIO_4 ? "ratio 4" : "ratio 128";
}

const char *layer_cache_name(dsr_cache_treatment cache)
{
    return cache == DSR_CACHE_BF16 ? "bf16" : cache == DSR_CACHE_OFFICIAL ? "official" : "packed";
}

static int ends_with(const char *text, const char *end)
{
    const size_t n_text = strlen(text), n_end = strlen(end);
    return n_text >= n_end && strcmp(text + n_text - n_end, end) == 0;
}

/* FP8 E4M3 is for weights, E8M0 for scales; either may also be stored as plain bytes. */
int layer_file_lookup(void *user, const char *name, dsr_tensor *tensor)
{
    enum { ANY, WEIGHT, SCALE };
    static const struct {
        const char *name;
        dsr_dtype dtype;
        int use;
    } dtypes[] = {{"F32", DSR_DTYPE_F32, ANY}, {"F16", DSR_DTYPE_F16, ANY},       {"BF16", DSR_DTYPE_BF16, ANY},
                  {"U8", DSR_DTYPE_U8, ANY},   {"F8_E4M3", DSR_DTYPE_U8, WEIGHT}, {"F8_E8M0", DSR_DTYPE_U8, SCALE},
                  {"U16", DSR_DTYPE_U16, ANY}, {"U32", DSR_DTYPE_U32, ANY},       {"I32", DSR_DTYPE_I32, ANY}};
    const layer_file *layer = user;
    const int use = ends_with(name, "_scale_inv") ? SCALE : WEIGHT;
    const st_tensor *found = st_find(layer->owner->file, name);
    if (found == NULL) {
        return 0;
    }
    *tensor = (dsr_tensor){.data = found->data, .size_bytes = found->n_bytes, .n_dims = found->n_dims};
    for (uint32_t d = 0; d < found->n_dims && d < 4; d++) {
        tensor->shape[d] = found->shape[d];
    }
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(found->dtype, dtypes[i].name) == 0 && (dtypes[i].use == ANY || dtypes[i].use == use)) {
            tensor->dtype = dtypes[i].dtype;
            return 1;
        }
    }
    case_fail(layer->owner, CLI_BAD_INPUT, "tensor %s is %s, needed is %s", name, found->dtype,
              use == SCALE ? "F32 or F8_E8M0" : "F32, BF16 or F8_E4M3");
    return 0;
}

/* The prefix is what stands before q_a_proj.weight. */
static void find_prefix(case_file *c, layer_file *layer)
{
    static const char suffix[] = "q_a_proj.weight";
    uint32_t n_layers = 0;
    for (size_t i = 0; i < st_n_tensors(c->file); i++) {
        const char *name = st_tensor_at(c->file, i)->name;
        const size_t length = strlen(name);
        if (!ends_with(name, suffix)) {
            continue;
        }
        n_layers++;
        snprintf(layer->prefix, sizeof layer->prefix, "%.*s", (int)(length - (sizeof suffix - 1)), name);
        if (length - (sizeof suffix - 1) >= sizeof layer->prefix) {
            case_fail(c, CLI_BAD_INPUT, "the prefix of the layer's tensors is too long");
        }
    }
    if (n_layers != 1) {
        case_fail(c, CLI_BAD_INPUT,
                  n_layers == 0 ? "no attention layer: tensor q_a_proj.weight is missing under any prefix"
                                : "several attention layers, needed is one a file");
    }
}

static void check_tensors(case_file *c, const layer_file *layer)
{
    for (size_t i = 0; i < st_n_tensors(c->file); i++) {
        const st_tensor *tensor = st_tensor_at(c->file, i);
        if (strncmp(tensor->name, layer->prefix, strlen(layer->prefix)) == 0 && ends_with(tensor->name, "_proj.bias")) {
            case_bad_value(c, tensor, "projections have no bias");
        }
    }
}

/* ---- configuration ----------------------------------------------------------------------------------------- */

static void bad_config(case_file *c, const char *key, const json_t *value, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Says what is given (value may be null: nothing) and, by format, what is needed. */
static void bad_config(case_file *c, const char *key, const json_t *value, const char *format, ...)
{
    char needed[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(needed, sizeof needed, format, arguments);
    va_end(arguments);
    char *given = value == NULL
                      ? NULL
                      : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
    case_fail(c, CLI_BAD_INPUT, "metadata config: %s is %.60s, needed is %s", key, given == NULL ? "missing" : given,
              needed);
    free(given);
}

static uint32_t integer(case_file *c, const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);
    const json_int_t number = json_integer_value(value);
    if (json_is_integer(value) && number > 0 && number <= UINT32_MAX) {
        return (uint32_t)number;
    }
    bad_config(c, key, value, "a whole number from 1 to %u", (unsigned)UINT32_MAX);
    return 0;
}

/* null is what transformers writes for a member that is not set. */
static int is_given(const json_t *value)
{
    return value != NULL && !json_is_null(value);
}

/* A member of an object of that path, "" or ending in a dot. One that may be left out gives 0: the library's default.
 */
static float number(case_file *c, const json_t *object, const char *path, const char *key, int is_needed)
{
    char full_key[64];
    const json_t *value = json_object_get(object, key);
    const double given = json_number_value(value);
    if (!is_given(value) && !is_needed) {
        return 0;
    }
    if (!json_is_number(value) || given < (double)FLT_MIN || given > (double)FLT_MAX) {
        snprintf(full_key, sizeof full_key, "%s%s", path, key);
        bad_config(c, full_key, value, "a number from %.2g to %.2g", (double)FLT_MIN, (double)FLT_MAX);
        return 0;
    }
    return (float)given;
}

/* A member that must be this where it is given. Gives up the reference of `needed`. */
static void check_fixed(case_file *c, const char *key, const json_t *value, json_t *needed)
{
    const int is_right = json_is_number(needed)
                             ? json_is_number(value) && json_number_value(value) == json_number_value(needed)
                             : json_equal(value, needed);
    if (is_given(value) && !is_right) {
        char *text = json_dumps(needed, JSON_ENCODE_ANY);
        bad_config(c, key, value, "%s", text == NULL ? "another" : text);
        free(text);
    }
    json_decref(needed);
}

/* A member that must be an object where there is one; null where there is none. */
static const json_t *optional_object(case_file *c, const char *key, const json_t *value)
{
    if (is_given(value) && !json_is_object(value)) {
        bad_config(c, key, value, "an object");
    }
    return json_is_object(value) ? value : NULL;
}

/* What the library computes in one way only must be so in the model. Other members are not looked at: they say nothing
 * about attention. */
static void check_model(case_file *c, const json_t *config)
{
    const json_t *rates = optional_object(c, "compress_rates", json_object_get(config, "compress_rates"));
    const struct {
        const char *key;
        json_t *needed;
    } members[] = {{"model_type", json_string("deepseek_v4")},
                   {"head_dim", json_integer(DSR_HEAD_DIM)},
                   {"num_key_value_heads", json_integer(1)},
                   {"qk_rope_head_dim", json_integer(DSR_ROPE_DIM)},
                   {"partial_rotary_factor", json_real((double)DSR_ROPE_DIM / DSR_HEAD_DIM)},
                   {"sliding_window", json_integer(DSR_WINDOW)},
                   {"index_head_dim", json_integer(DSR_INDEX_DIM)},
                   {"compress_rate_csa", json_integer(4)},
                   {"compress_rate_hca", json_integer(128)},
                   {"attention_bias", json_false()}};
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        check_fixed(c, members[i].key, json_object_get(config, members[i].key), members[i].needed);
    }
    check_fixed(c, "compress_rates.compressed_sparse_attention", json_object_get(rates, "compressed_sparse_attention"),
                json_integer(4));
    check_fixed(c, "compress_rates.heavily_compressed_attention",
                json_object_get(rates, "heavily_compressed_attention"), json_integer(128));
}

/* ---- the kind of layer ------------------------------------------------------------------------------------- */

static int has_group(const layer_file *layer, const char *group)
{
    char begin[sizeof layer->prefix + 32];
    const int length = snprintf(begin, sizeof begin, "%s%s", layer->prefix, group);
    for (size_t i = 0; i < st_n_tensors(layer->owner->file); i++) {
        if (strncmp(st_tensor_at(layer->owner->file, i)->name, begin, (size_t)length) == 0) {
            return 1;
        }
    }
    return 0;
}

/* A main compressor of ratio 4 has two columns where one of ratio 128 has one. */
static int has_wide_compressor(const layer_file *layer)
{
    static const struct {
        const char *name;
        uint32_t dimension;
    } sizes[] = {{"compressor.kv_proj.weight", 0}, {"compressor.gate_proj.weight", 0}, {"compressor.position_bias", 1}};
    char name[sizeof layer->prefix + 32];
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        snprintf(name, sizeof name, "%s%s", layer->prefix, sizes[i].name);
        const st_tensor *tensor = st_find(layer->owner->file, name);
        if (tensor != NULL && tensor->n_dims == 2 && tensor->shape[sizes[i].dimension] == 2 * DSR_HEAD_DIM) {
            return 1;
        }
    }
    return 0;
}

static dsr_layer_kind kind_of_tensors(const layer_file *layer)
{
    return !has_group(layer, "compressor.")                                        ? DSR_LAYER_WINDOW
           : has_group(layer, "compressor.indexer.") || has_wide_compressor(layer) ? DSR_LAYER_RATIO_4
                                                                                   : DSR_LAYER_RATIO_128;
}

/* The N of a prefix such as "model.layers.N.self_attn."; -1 where it has none. */
static int layer_number(const char *prefix)
{
    static const char before[] = "layers.";
    uint64_t number = 0;
    char digits[8];
    const char *found = strstr(prefix, before);
    const int is_component = found != NULL && (found == prefix || found[-1] == '.');
    const char *text = is_component ? found + sizeof before - 1 : "";
    const size_t length = strspn(text, "0123456789");
    if (length >= sizeof digits || text[length] != '.') {
        return -1;
    }
    snprintf(digits, sizeof digits, "%.*s", (int)length, text);
    return cli_parse_u64(digits, INT_MAX, &number) ? (int)number : -1;
}

static const struct {
    const char *name;
    dsr_layer_kind kind;
} layer_types[] = {{"sliding_attention", DSR_LAYER_WINDOW},
                   {"compressed_sparse_attention", DSR_LAYER_RATIO_4},
                   {"heavily_compressed_attention", DSR_LAYER_RATIO_128}};
enum { N_LAYER_TYPES = sizeof layer_types / sizeof layer_types[0] };
static const char type_names[] = "sliding_attention, compressed_sparse_attention or heavily_compressed_attention";

static const char *type_of_kind(dsr_layer_kind kind)
{
    return layer_types[kind == DSR_LAYER_WINDOW ? 0 : kind == DSR_LAYER_RATIO_4 ? 1 : 2].name;
}

/* 0 if a type, or a ratio, is none of them. */
static int kind_of_type(const json_t *type, dsr_layer_kind *kind)
{
    for (size_t i = 0; i < N_LAYER_TYPES; i++) {
        if (json_is_string(type) ? strcmp(json_string_value(type), layer_types[i].name) == 0
                                 : json_is_integer(type) && json_integer_value(type) == (int)layer_types[i].kind) {
            *kind = layer_types[i].kind;
            return 1;
        }
    }
    return 0;
}

/* The kind that a configuration's list gives the layer of a number. */
static void take_listed_kind(case_file *c, const char *list_key, const json_t *list, size_t number, layer_file *layer)
{
    char key[32];
    const dsr_layer_kind shown = kind_of_tensors(layer);
    const json_t *type = json_array_get(list, number);
    dsr_layer_kind *kind = &layer->config.kind;
    snprintf(key, sizeof key, "%s[%zu]", list_key, number);
    if (type == NULL || !kind_of_type(type, kind)) {
        bad_config(c, key, type, "%s", strcmp(list_key, "layer_types") == 0 ? type_names : "0, 4 or 128");
    } else if (*kind != shown && *kind != DSR_LAYER_RATIO_4 && shown != DSR_LAYER_WINDOW) {
        bad_config(c, key, type, "%s: the layer has tensors of that", type_of_kind(shown));
    }
}

/* The kind that the tensors show, which must be one of the list's, if there is a list. A layer of the window alone
 * shows by what it does not have: where the list does not leave that as the only kind, it is said. */
static void take_shown_kind(case_file *c, const char *list_key, const json_t *list, layer_file *layer)
{
    const dsr_layer_kind shown = kind_of_tensors(layer);
    size_t i, n_same = 0;
    json_t *type;
    json_array_foreach(list, i, type)
    {
        dsr_layer_kind kind;
        n_same += kind_of_type(type, &kind) && kind == shown;
    }
    layer->config.kind = shown;
    if (list != NULL && n_same == 0 && shown == DSR_LAYER_WINDOW) {
        case_fail(c, CLI_BAD_INPUT, "tensor %scompressor.kv_proj.weight is missing: by %s no layer is without it",
                  layer->prefix, list_key);
    } else if (list != NULL && n_same == 0) {
        bad_config(c, list_key, list, "a list with %s: the layer has tensors of that", type_of_kind(shown));
    } else if (shown == DSR_LAYER_WINDOW && (list == NULL || n_same < json_array_size(list))) {
        cli_error(c->command,
                  "%s: note: taken for a layer of the window alone: there is no tensor %scompressor.*, and no entry of "
                  "layer_types for a layer number in that prefix",
                  c->path, layer->prefix);
    }
}

/* The configuration's layer_types, or compress_ratios in older ones, say what a layer is whose number the prefix holds;
 * otherwise its tensors show it. */
static void find_kind(case_file *c, const json_t *config, layer_file *layer)
{
    const int number_of_layer = layer_number(layer->prefix);
    const char *list_key = is_given(json_object_get(config, "layer_types")) ? "layer_types" : "compress_ratios";
    const json_t *given = json_object_get(config, list_key);
    const json_t *list = is_given(given) ? given : NULL;
    if (list != NULL && !json_is_array(list)) {
        bad_config(c, list_key, list, "a list");
    } else if (list != NULL && number_of_layer >= 0) {
        take_listed_kind(c, list_key, list, (size_t)number_of_layer, layer);
    } else {
        take_shown_kind(c, list_key, list, layer);
    }
}

/* ---- RoPE -------------------------------------------------------------------------------------------------- */

/* The flat form leaves YaRN's factor of cos and sin to the model, where it is 1; the form with an object per kind of
 * layer leaves it to YaRN's own formula. */
static void read_rope_object(case_file *c, const json_t *rope, const char *path, int is_flat, dsr_attention_config *to)
{
    char key[64];
    const json_t *type = json_object_get(rope, "rope_type");
    type = is_given(type) ? type : json_object_get(rope, "type");
    const char *name = !is_given(type) ? "default" : json_is_string(type) ? json_string_value(type) : "";
    snprintf(key, sizeof key, "%spartial_rotary_factor", path);
    check_fixed(c, key, json_object_get(rope, "partial_rotary_factor"), json_real((double)DSR_ROPE_DIM / DSR_HEAD_DIM));
    to->yarn_factor = 1;
    if (strcmp(name, "yarn") == 0) {
        const json_t *amplitude = json_object_get(rope, "attention_factor");
        to->yarn_factor = number(c, rope, path, "factor", 1);
        to->yarn_original_context = number(c, rope, path, "original_max_position_embeddings", 1);
        to->yarn_beta_fast = number(c, rope, path, "beta_fast", 0);
        to->yarn_beta_slow = number(c, rope, path, "beta_slow", 0);
        snprintf(key, sizeof key, "%sattention_factor", path);
        check_fixed(c, key, amplitude, json_real(1));
        if (!is_flat && !is_given(amplitude)) {
            bad_config(c, key, amplitude, "1.0");
        }
    } else if (strcmp(name, "default") != 0) {
        snprintf(key, sizeof key, "%srope_type", path);
        bad_config(c, key, type, "\"default\" or \"yarn\"");
    }
}

/* rope_parameters, or rope_scaling in older configurations: an object for each of two kinds of layers, or the members
 * of one, which are for layers with compressed entries. Where there is nothing of it, the library's defaults count. */
static void read_rope(case_file *c, const json_t *config, dsr_attention_config *to)
{
    char path[48];
    const int is_window = to->kind == DSR_LAYER_WINDOW;
    const char *name = is_window ? "main" : "compress";
    const json_t *older = optional_object(c, "rope_scaling", json_object_get(config, "rope_scaling"));
    const char *key = json_object_size(older) ? "rope_scaling" : "rope_parameters";
    const json_t *all = optional_object(c, key, json_object_get(config, key));
    if (json_object_get(all, "main") != NULL || json_object_get(all, "compress") != NULL) {
        const json_t *rope = json_object_get(all, name);
        snprintf(path, sizeof path, "%s.%s", key, name);
        if (!json_is_object(rope)) {
            bad_config(c, path, rope, "an object");
        }
        snprintf(path, sizeof path, "%s.%s.", key, name);
        read_rope_object(c, rope, path, 0, to);
        to->rope_theta = number(c, rope, path, "rope_theta", 1);
        return;
    }
    to->rope_theta = number(c, config, "", is_window ? "rope_theta" : "compress_rope_theta", 0);
    if (json_object_size(all) != 0 && !is_window) {
        snprintf(path, sizeof path, "%s.", key);
        read_rope_object(c, all, path, 1, to);
    }
}

/* ------------------------------------------------------------------------------------------------------------ */

static void read_config(case_file *c, const json_t *config, dsr_attention_config *to)
{
    check_model(c, config);
    to->hidden_size = integer(c, config, "hidden_size");
    to->n_heads = integer(c, config, "num_attention_heads");
    to->q_rank = integer(c, config, "q_lora_rank");
    to->o_groups = integer(c, config, "o_groups");
    to->o_rank = integer(c, config, "o_lora_rank");
    if (to->kind == DSR_LAYER_RATIO_4) {
        to->n_index_heads = integer(c, config, "index_n_heads");
        to->top_k = integer(c, config, "index_topk");
    }
    to->epsilon = number(c, config, "", "rms_norm_eps", 0);
    read_rope(c, config, to);
}

void layer_file_read(case_file *c, dsr_cache_treatment cache, layer_file *layer)
{
    *layer = (layer_file){.owner = c, .config = DSR_ATTENTION_CONFIG_INIT};
    if (c->code != CLI_DONE) {
        return;
    }
    find_prefix(c, layer);
    check_tensors(c, layer);
    layer->config.cache = cache;
    json_t *config = case_config(c);
    if (config == NULL) {
        case_fail(c, CLI_BAD_INPUT, "the metadata has no config");
    } else {
        find_kind(c, config, layer);
        read_config(c, config, &layer->config);
    }
    json_decref(config);
}
