#include "layer_file.h"

#include <stdio.h>
#include <string.h>

const char *layer_kind_name(dsr_layer_kind kind)
{
    return kind == DSR_LAYER_WINDOW ? "window" : kind == DSR_LAYER_RATIO_4 ? "ratio 4" : "ratio 128";
}

const char *layer_cache_name(dsr_cache_treatment cache)
{
    return cache == DSR_CACHE_BF16 ? "bf16" : cache == DSR_CACHE_OFFICIAL ? "official" : "packed";
}

static void fail(case_file *c, const char *what)
{
    if (c->code == CLI_DONE) {
        cli_error(c->command, "%s: %s", c->path, what);
        c->code = CLI_BAD_INPUT;
    }
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
    const st_tensor *found = st_find(layer->file, name);
    if (found == NULL) {
        return 0;
    }
    *tensor = (dsr_tensor){.data = found->data, .size_bytes = found->n_bytes, .n_dims = found->n_dims};
    tensor->dtype = (dsr_dtype)-1; /* one that the library does not know, either */
    for (uint32_t d = 0; d < found->n_dims && d < 4; d++) {
        tensor->shape[d] = found->shape[d];
    }
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(found->dtype, dtypes[i].name) == 0) {
            tensor->dtype = dtypes[i].dtype;
        }
    }
    return 1;
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
            fail(c, "the prefix of the layer's tensors is too long");
        }
    }
    if (n_layers != 1) {
        fail(c, n_layers == 0 ? "no attention layer: tensor q_a_proj.weight is missing under any prefix"
                              : "several attention layers, needed is one a file");
    }
}

static int has_tensor(const layer_file *layer, const char *name)
{
    char full_name[512];
    snprintf(full_name, sizeof full_name, "%s%s", layer->prefix, name);
    return st_find(layer->file, full_name) != NULL;
}

/* ---- configuration ----------------------------------------------------------------------------------------- */

static uint32_t integer(case_file *c, const json_t *config, const char *key)
{
    char message[128];
    const json_t *value = json_object_get(config, key);
    const json_int_t number = json_integer_value(value);
    if (json_is_integer(value) && number > 0 && number <= UINT32_MAX) {
        return (uint32_t)number;
    }
    snprintf(message, sizeof message, "metadata config: %s %s, needed is a positive integer", key,
             value == NULL ? "is missing" : "is something else");
    fail(c, message);
    return 0;
}

/* A number that may be left out, which gives 0: the library's default. */
static float optional_number(case_file *c, const json_t *config, const char *key)
{
    char message[128];
    const json_t *value = json_object_get(config, key);
    if (value != NULL && !json_is_number(value)) {
        snprintf(message, sizeof message, "metadata config: %s is not a number", key);
        fail(c, message);
    }
    return value == NULL ? 0.0f : (float)json_number_value(value);
}

/* What the library computes with fixed sizes must be so in the model. */
static void check_fixed(case_file *c, const json_t *config)
{
    static const struct {
        const char *key;
        json_int_t value;
    } fixed[] = {{"head_dim", DSR_HEAD_DIM},
                 {"qk_rope_head_dim", DSR_ROPE_DIM},
                 {"sliding_window", DSR_WINDOW},
                 {"index_head_dim", DSR_INDEX_DIM}};
    char message[128];
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        const json_t *value = json_object_get(config, fixed[i].key);
        if (value != NULL && json_integer_value(value) != fixed[i].value) {
            snprintf(message, sizeof message, "metadata config: %s must be %lld", fixed[i].key,
                     (long long)fixed[i].value);
            fail(c, message);
        }
    }
}

/* A member that must be an object where there is one; null where there is none. */
static const json_t *optional_object(case_file *c, const json_t *config, const char *key)
{
    char message[128];
    const json_t *value = json_object_get(config, key);
    if (value != NULL && !json_is_object(value)) {
        snprintf(message, sizeof message, "metadata config: %s is not an object", key);
        fail(c, message);
    }
    return value;
}

/* The ratios are those of the layer kinds. */
static void check_ratios(case_file *c, const json_t *config)
{
    static const struct {
        const char *key;
        json_int_t value;
    } ratios[] = {{"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}};
    char message[128];
    const json_t *rates = optional_object(c, config, "compress_rates");
    for (size_t i = 0; i < sizeof ratios / sizeof ratios[0]; i++) {
        const json_t *value = json_object_get(rates, ratios[i].key);
        if (value != NULL && json_integer_value(value) != ratios[i].value) {
            snprintf(message, sizeof message, "metadata config: compress_rates.%s must be %lld", ratios[i].key,
                     (long long)ratios[i].value);
            fail(c, message);
        }
    }
}

static void read_rope(case_file *c, const json_t *config, dsr_attention_config *to)
{
    const int is_window = to->kind == DSR_LAYER_WINDOW;
    const json_t *rope =
        optional_object(c, optional_object(c, config, "rope_parameters"), is_window ? "main" : "compress");
    if (rope == NULL) {
        to->rope_theta = optional_number(c, config, is_window ? "rope_theta" : "compress_rope_theta");
        return;
    }
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    to->rope_theta = optional_number(c, rope, "rope_theta");
    to->yarn_factor = 1.0f;
    if (type != NULL && strcmp(type, "yarn") == 0) {
        to->yarn_factor = optional_number(c, rope, "factor");
        to->yarn_original_context = optional_number(c, rope, "original_max_position_embeddings");
        to->yarn_beta_fast = optional_number(c, rope, "beta_fast");
        to->yarn_beta_slow = optional_number(c, rope, "beta_slow");
    } else if (type != NULL && strcmp(type, "default") != 0) {
        fail(c, "metadata config: rope_type must be default or yarn");
    }
}

static void read_config(case_file *c, const json_t *config, dsr_attention_config *to)
{
    check_fixed(c, config);
    check_ratios(c, config);
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
    *layer = (layer_file){.file = c->file, .config = DSR_ATTENTION_CONFIG_INIT};
    if (c->code != CLI_DONE) {
        return;
    }
    find_prefix(c, layer);
    layer->config.cache = cache;
    layer->config.kind = has_tensor(layer, "compressor.indexer.q_b_proj.weight") ? DSR_LAYER_RATIO_4
                         : has_tensor(layer, "compressor.kv_proj.weight")        ? DSR_LAYER_RATIO_128
                                                                                 : DSR_LAYER_WINDOW;
    const char *text = st_metadata(c->file, "config");
    json_error_t error;
    json_t *config = text == NULL ? NULL : json_loads(text, 0, &error);
    if (text == NULL) {
        fail(c, "the metadata has no config");
    } else if (!json_is_object(config)) {
        fail(c, "metadata config is not a JSON object");
    } else {
        read_config(c, config, &layer->config);
    }
    json_decref(config);
}
