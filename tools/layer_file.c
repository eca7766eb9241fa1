#include "layer_file.h"

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

int layer_file_lookup(void *user, const char *name, dsr_tensor *tensor)
{
    static const struct {
        const char *name;
        dsr_dtype dtype;
    } dtypes[] = {{"F32", DSR_DTYPE_F32}, {"F16", DSR_DTYPE_F16},    {"BF16", DSR_DTYPE_BF16},
                  {"U8", DSR_DTYPE_U8},   {"F8_E4M3", DSR_DTYPE_U8}, {"F8_E8M0", DSR_DTYPE_U8},
                  {"U16", DSR_DTYPE_U16}, {"U32", DSR_DTYPE_U32},    {"I32", DSR_DTYPE_I32}};
    const layer_file *layer = user;
    const st_tensor *found = st_find(layer->owner->file, name);
    if (found == NULL) {
        return 0;
    }
    *tensor = (dsr_tensor){.data = found->data, .size_bytes = found->n_bytes, .n_dims = found->n_dims};
    for (uint32_t d = 0; d < found->n_dims && d < 4; d++) {
        tensor->shape[d] = found->shape[d];
    }
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(found->dtype, dtypes[i].name) == 0) {
            tensor->dtype = dtypes[i].dtype;
            return 1;
        }
    }
    case_fail(layer->owner, CLI_BAD_INPUT, "tensor %s is %s, needed is one of F32, BF16, F8_E4M3 and F8_E8M0", name,
              found->dtype);
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
        if (length < sizeof suffix - 1 || strcmp(name + length - (sizeof suffix - 1), suffix) != 0) {
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
    char *given = value == NULL ? NULL : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
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

/* A number that may be left out, which gives 0: the library's default. */
static float optional_number(case_file *c, const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);
    if (value != NULL && !json_is_number(value)) {
        bad_config(c, key, value, "a number");
    }
    return value == NULL ? 0.0f : (float)json_number_value(value);
}

/* A whole number that must be this one where it is given. */
static void check_fixed(case_file *c, const char *key, const json_t *value, json_int_t needed)
{
    if (value != NULL && json_integer_value(value) != needed) {
        bad_config(c, key, value, "%lld", (long long)needed);
    }
}

/* A member that must be an object where there is one; null where there is none. */
static const json_t *optional_object(case_file *c, const char *key, const json_t *value)
{
    if (value != NULL && !json_is_object(value)) {
        bad_config(c, key, value, "an object");
    }
    return value;
}

/* What the library computes with fixed sizes must be so in the model, and the ratios those of the layer kinds. */
static void check_sizes(case_file *c, const json_t *config)
{
    const json_t *rates = optional_object(c, "compress_rates", json_object_get(config, "compress_rates"));
    check_fixed(c, "head_dim", json_object_get(config, "head_dim"), DSR_HEAD_DIM);
    check_fixed(c, "qk_rope_head_dim", json_object_get(config, "qk_rope_head_dim"), DSR_ROPE_DIM);
    check_fixed(c, "sliding_window", json_object_get(config, "sliding_window"), DSR_WINDOW);
    check_fixed(c, "index_head_dim", json_object_get(config, "index_head_dim"), DSR_INDEX_DIM);
    check_fixed(c, "compress_rates.compressed_sparse_attention", json_object_get(rates, "compressed_sparse_attention"),
                4);
    check_fixed(c, "compress_rates.heavily_compressed_attention",
                json_object_get(rates, "heavily_compressed_attention"), 128);
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

static dsr_layer_kind kind_of_tensors(const layer_file *layer)
{
    return has_group(layer, "compressor.indexer.") ? DSR_LAYER_RATIO_4
           : has_group(layer, "compressor.")       ? DSR_LAYER_RATIO_128
                                                   : DSR_LAYER_WINDOW;
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

static const char *type_of_kind(dsr_layer_kind kind)
{
    return layer_types[kind == DSR_LAYER_WINDOW ? 0 : kind == DSR_LAYER_RATIO_4 ? 1 : 2].name;
}

/* 0 if a type is none of them. */
static int kind_of_type(const json_t *type, dsr_layer_kind *kind)
{
    for (size_t i = 0; i < N_LAYER_TYPES; i++) {
        if (json_is_string(type) && strcmp(json_string_value(type), layer_types[i].name) == 0) {
            *kind = layer_types[i].kind;
            return 1;
        }
    }
    return 0;
}

/* The configuration's layer_types say what a layer is whose number the prefix holds; otherwise its tensors show it. */
static void find_kind(case_file *c, const json_t *config, layer_file *layer)
{
    char key[32];
    const dsr_layer_kind shown = kind_of_tensors(layer);
    const int number = layer_number(layer->prefix);
    const json_t *type = number < 0 ? NULL : json_array_get(json_object_get(config, "layer_types"), (size_t)number);
    dsr_layer_kind *kind = &layer->config.kind;
    *kind = shown;
    snprintf(key, sizeof key, "layer_types[%d]", number);
    if (type != NULL && !kind_of_type(type, kind)) {
        bad_config(c, key, type, "%s, %s or %s", layer_types[0].name, layer_types[1].name, layer_types[2].name);
    } else if (*kind != shown && *kind != DSR_LAYER_RATIO_4 && shown != DSR_LAYER_WINDOW) {
        bad_config(c, key, type, "%s: the layer has tensors of that", type_of_kind(shown));
    }
}

/* ------------------------------------------------------------------------------------------------------------ */

static void read_rope(case_file *c, const json_t *config, dsr_attention_config *to)
{
    const int is_window = to->kind == DSR_LAYER_WINDOW;
    const json_t *all = optional_object(c, "rope_parameters", json_object_get(config, "rope_parameters"));
    const json_t *rope = is_window ? optional_object(c, "rope_parameters.main", json_object_get(all, "main"))
                                   : optional_object(c, "rope_parameters.compress", json_object_get(all, "compress"));
    if (rope == NULL) {
        to->rope_theta = optional_number(c, config, is_window ? "rope_theta" : "compress_rope_theta");
        return;
    }
    const json_t *type = json_object_get(rope, "rope_type");
    const char *name = type == NULL ? "default" : json_is_string(type) ? json_string_value(type) : "";
    to->rope_theta = optional_number(c, rope, "rope_theta");
    to->yarn_factor = 1.0f;
    if (strcmp(name, "yarn") == 0) {
        to->yarn_factor = optional_number(c, rope, "factor");
        to->yarn_original_context = optional_number(c, rope, "original_max_position_embeddings");
        to->yarn_beta_fast = optional_number(c, rope, "beta_fast");
        to->yarn_beta_slow = optional_number(c, rope, "beta_slow");
    } else if (strcmp(name, "default") != 0) {
        bad_config(c, "rope_type", type, "\"default\" or \"yarn\"");
    }
}

static void read_config(case_file *c, const json_t *config, dsr_attention_config *to)
{
    check_sizes(c, config);
    to->hidden_size = integer(c, config, "hidden_size");
    to->n_heads = integer(c, config, "num_attention_heads");
    to->q_rank = integer(c, config, "q_lora_rank");
    to->o_groups = integer(c, config, "o_groups");
    to->o_rank = integer(c, config, "o_lora_rank");
    if (to->kind == DSR_LAYER_RATIO_4) {
        to->n_index_heads = integer(c, config, "index_n_heads");
        to->top_k = integer(c, config, "index_topk");
    }
    to->epsilon = optional_number(c, config, "rms_norm_eps");
    read_rope(c, config, to);
}

void layer_file_read(case_file *c, dsr_cache_treatment cache, layer_file *layer)
{
    *layer = (layer_file){.owner = c, .config = DSR_ATTENTION_CONFIG_INIT};
    if (c->code != CLI_DONE) {
        return;
    }
    find_prefix(c, layer);
    layer->config.cache = cache;
    const char *text = st_metadata(c->file, "config");
    json_error_t error;
    json_t *config = text == NULL ? NULL : json_loads(text, 0, &error);
    if (text == NULL) {
        case_fail(c, CLI_BAD_INPUT, "the metadata has no config");
    } else if (!json_is_object(config)) {
        case_fail(c, CLI_BAD_INPUT, "metadata config is not a JSON object");
    } else {
        find_kind(c, config, layer);
        read_config(c, config, &layer->config);
    }
    json_decref(config);
}
