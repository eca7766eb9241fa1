/* Loading a layer's tensors: found by name, checked, and packed for the projections. */
#include "block/layer.h"

#include <stdio.h>
#include <string.h>

typedef struct loader {
    dsr_attention *layer;
    dsr_tensor_lookup_fn lookup;
    void *user;
    const char *prefix;
} loader;

enum { MAX_TENSOR_NAME = 256 };

static const char *const weight_names[DSRI_N_WEIGHTS] = {
    [DSRI_WEIGHT_Q_A] = "q_a_proj.weight",
    [DSRI_WEIGHT_Q_B] = "q_b_proj.weight",
    [DSRI_WEIGHT_KV] = "kv_proj.weight",
    [DSRI_WEIGHT_O_A] = "o_a_proj.weight",
    [DSRI_WEIGHT_O_B] = "o_b_proj.weight",
    [DSRI_WEIGHT_MAIN_KV] = "compressor.kv_proj.weight",
    [DSRI_WEIGHT_MAIN_GATE] = "compressor.gate_proj.weight",
    [DSRI_WEIGHT_INDEX_Q] = "compressor.indexer.q_b_proj.weight",
    [DSRI_WEIGHT_INDEX_KV] = "compressor.indexer.kv_proj.weight",
    [DSRI_WEIGHT_INDEX_GATE] = "compressor.indexer.gate_proj.weight",
    [DSRI_WEIGHT_INDEX_WEIGHTS] = "compressor.indexer.scorer.weights_proj.weight",
};

typedef struct weight_shape {
    uint32_t n_groups;
    uint32_t n_inputs;  /* of a group */
    uint32_t n_outputs; /* of a group */
} weight_shape;

static weight_shape shape_of(const dsr_attention *layer, dsri_weight weight)
{
    const dsr_attention_config *c = &layer->config;
    const dsri_layer_compressor *main = &layer->compressors[DSRI_MAIN];
    const dsri_layer_compressor *index = &layer->compressors[DSRI_INDEX];
    switch (weight) {
    case DSRI_WEIGHT_Q_A:
        return (weight_shape){1, c->hidden_size, c->q_rank};
    case DSRI_WEIGHT_Q_B:
        return (weight_shape){1, c->q_rank, c->n_heads * DSR_HEAD_DIM};
    case DSRI_WEIGHT_KV:
        return (weight_shape){1, c->hidden_size, DSR_HEAD_DIM};
    case DSRI_WEIGHT_O_A:
        return (weight_shape){c->o_groups, c->n_heads / c->o_groups * DSR_HEAD_DIM, c->o_rank};
    case DSRI_WEIGHT_O_B:
        return (weight_shape){1, c->o_groups * c->o_rank, c->hidden_size};
    case DSRI_WEIGHT_MAIN_KV:
    case DSRI_WEIGHT_MAIN_GATE:
        return (weight_shape){1, c->hidden_size, main->n_columns};
    case DSRI_WEIGHT_INDEX_Q:
        return (weight_shape){1, c->q_rank, c->n_index_heads * DSR_INDEX_DIM};
    case DSRI_WEIGHT_INDEX_KV:
    case DSRI_WEIGHT_INDEX_GATE:
        return (weight_shape){1, c->hidden_size, index->n_columns};
    case DSRI_WEIGHT_INDEX_WEIGHTS:
        return (weight_shape){1, c->hidden_size, c->n_index_heads};
    case DSRI_N_WEIGHTS:
        break;
    }
    return (weight_shape){0, 0, 0};
}

/* Takes one more word into a hash. For either argument fixed it is a permutation of the other: two streams that differ
 * in one word keep different hashes. */
static uint64_t hash_word(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash << 29 | hash >> 35;
}

/* Four chains of words side by side, so that the memory and no multiplier sets the speed. */
static uint64_t hash_bytes(uint64_t hash, const void *bytes, uint64_t n_bytes)
{
    enum { N_LANES = 4, WORD_BYTES = 8, BLOCK_BYTES = N_LANES * WORD_BYTES };
    const unsigned char *at = bytes;
    uint64_t lanes[N_LANES] = {1, 2, 3, 4}, words[N_LANES];
    for (uint64_t left = n_bytes; left != 0;) {
        const uint64_t n = left < BLOCK_BYTES ? left : (uint64_t)BLOCK_BYTES;
        if (n < BLOCK_BYTES)
            memset(words, 0, sizeof words);
        memcpy(words, at, n);
        for (uint32_t i = 0; i < N_LANES; i++)
            lanes[i] = hash_word(lanes[i], words[i]);
        at += n;
        left -= n;
    }
    hash = hash_word(hash, n_bytes);
    for (uint32_t i = 0; i < N_LANES; i++)
        hash = hash_word(hash, lanes[i]);
    return hash;
}

/* Every byte of every tensor counts in the layer's fingerprint. */
static void add_to_fingerprint(dsr_attention *layer, const void *bytes, uint64_t n_bytes)
{
    layer->fingerprint = hash_bytes(layer->fingerprint, bytes, n_bytes);
}

static dsr_status find(const loader *l, const char *name, char full_name[MAX_TENSOR_NAME], dsr_tensor *tensor)
{
    dsr_context *context = l->layer->context;
    if (snprintf(full_name, MAX_TENSOR_NAME, "%s%s", l->prefix, name) >= MAX_TENSOR_NAME)
        return dsri_fail(context, DSR_ERR_NAME, "attention: tensor name %s%s is longer than %d bytes", l->prefix, name,
                         MAX_TENSOR_NAME - 1);
    memset(tensor, 0, sizeof *tensor);
    if (!l->lookup(l->user, full_name, tensor))
        return dsri_fail(context, DSR_ERR_MISSING_TENSOR, "attention: tensor %s is missing", full_name);
    if (tensor->data == NULL || tensor->n_dims > 4)
        return dsri_fail(context, DSR_ERR_SIZE, "attention: tensor %s has no data or more than 4 dimensions",
                         full_name);
    return DSR_OK;
}

/* Checks that a tensor is [rows, columns], or [columns] where rows is 0. */
static dsr_status check_shape(const loader *l, const char *name, const dsr_tensor *t, uint64_t rows, uint64_t columns)
{
    dsr_context *context = l->layer->context;
    const uint32_t n_dims = rows ? 2 : 1;
    if (t->n_dims != n_dims || t->shape[n_dims - 1] != columns || (rows && t->shape[0] != rows)) {
        char given[96] = "";
        size_t used = 0;
        for (uint32_t i = 0; i < t->n_dims && used < sizeof given; i++)
            used += (size_t)snprintf(given + used, sizeof given - used, "%s%llu", i ? ", " : "",
                                     (unsigned long long)t->shape[i]);
        if (rows)
            return dsri_fail(context, DSR_ERR_SIZE, "attention: tensor %s has shape [%s], needs [%llu, %llu]", name,
                             given, (unsigned long long)rows, (unsigned long long)columns);
        return dsri_fail(context, DSR_ERR_SIZE, "attention: tensor %s has shape [%s], needs [%llu]", name, given,
                         (unsigned long long)columns);
    }
    const uint64_t needed = (rows ? rows : 1) * columns * dsr_dtype_size(t->dtype);
    if (t->size_bytes < needed)
        return dsri_fail(context, DSR_ERR_SIZE, "attention: tensor %s holds %llu bytes, needs %llu", name,
                         (unsigned long long)t->size_bytes, (unsigned long long)needed);
    return DSR_OK;
}

/* Host memory to a buffer on the layer's device. */
static dsr_status upload(dsr_attention *layer, const void *data, uint64_t size_bytes, dsr_buffer **buffer)
{
    dsr_buffer *created = NULL;
    dsr_status status = dsr_buffer_create(layer->context, size_bytes, &created);
    if (status == DSR_OK)
        status = dsr_buffer_write(created, 0, data, size_bytes);
    if (status != DSR_OK) {
        dsr_buffer_destroy(created);
        return status;
    }
    *buffer = created;
    return DSR_OK;
}

/* F32 parameters (norms, biases, sinks), stored F32 or BF16. */
static dsr_status load_parameters(const loader *l, const char *name, uint64_t rows, uint64_t columns,
                                  dsr_buffer **buffer)
{
    dsr_context *context = l->layer->context;
    char full_name[MAX_TENSOR_NAME];
    dsr_tensor tensor;
    dsr_status status = find(l, name, full_name, &tensor);
    if (status != DSR_OK)
        return status;
    if (tensor.dtype != DSR_DTYPE_F32 && tensor.dtype != DSR_DTYPE_BF16)
        return dsri_fail(context, DSR_ERR_DTYPE, "attention: tensor %s must be f32 or bf16, got %s", full_name,
                         dsr_dtype_name(tensor.dtype));
    status = check_shape(l, full_name, &tensor, rows, columns);
    if (status != DSR_OK)
        return status;
    const uint64_t n = (rows ? rows : 1) * columns;
    uint32_t *values = dsri_allocate(&context->allocator, n * sizeof *values, 64);
    if (values == NULL)
        return dsri_fail(context, DSR_ERR_OUT_OF_MEMORY, "attention: no memory for tensor %s", full_name);
    const unsigned char *bytes = tensor.data;
    for (uint64_t i = 0; i < n; i++) {
        uint16_t half;
        if (tensor.dtype == DSR_DTYPE_F32) {
            memcpy(&values[i], bytes + 4 * i, 4);
        } else {
            memcpy(&half, bytes + 2 * i, 2);
            values[i] = (uint32_t)half << 16;
        }
    }
    add_to_fingerprint(l->layer, values, n * sizeof *values);
    status = upload(l->layer, values, n * sizeof *values, buffer);
    dsri_release(&context->allocator, values, n * sizeof *values);
    return status;
}

/* The scales of FP8 weights: <name>_scale_inv, one per block of 128 x 128. */
static dsr_status find_scales(const loader *l, const char *name, const weight_shape *shape,
                              dsr_projection_weights *weights)
{
    char scales_name[MAX_TENSOR_NAME], full_name[MAX_TENSOR_NAME];
    dsr_tensor scales;
    snprintf(scales_name, sizeof scales_name, "%s_scale_inv", name);
    dsr_status status = find(l, scales_name, full_name, &scales);
    if (status != DSR_OK)
        return status;
    if (scales.dtype != DSR_DTYPE_F32 && scales.dtype != DSR_DTYPE_U8)
        return dsri_fail(l->layer->context, DSR_ERR_DTYPE, "attention: tensor %s must be f32 or u8 (E8M0), got %s",
                         full_name, dsr_dtype_name(scales.dtype));
    const uint64_t n_rows = (uint64_t)shape->n_groups * shape->n_outputs;
    const uint64_t n_row_blocks = (n_rows + 127) / 128, n_input_blocks = (shape->n_inputs + 127) / 128;
    status = check_shape(l, full_name, &scales, n_row_blocks, n_input_blocks);
    if (status != DSR_OK)
        return status;
    weights->scales = scales.data;
    weights->scales_dtype = scales.dtype;
    add_to_fingerprint(l->layer, scales.data, n_row_blocks * n_input_blocks * dsr_dtype_size(scales.dtype));
    return DSR_OK;
}

static dsr_status pack(dsr_attention *layer, dsri_weight weight, const dsr_projection_weights *weights)
{
    dsr_context *context = layer->context;
    uint64_t size_bytes;
    dsr_status status = dsr_projection_packed_bytes(context, weights, &size_bytes);
    if (status != DSR_OK)
        return status;
    dsr_buffer *buffer = NULL;
    status = dsr_buffer_create(context, size_bytes, &buffer);
    if (status != DSR_OK)
        return status;
    layer->weights[weight] = buffer;
    layer->weight_format[weight] = weights->format == DSR_WEIGHT_BF16 ? DSR_WEIGHT_BF16_PACKED : DSR_WEIGHT_FP8_PACKED;
    if (dsr_context_device(context) == DSR_DEVICE_CPU)
        return dsr_projection_pack(context, weights, dsr_buffer_data(buffer), size_bytes);
    void *packed = dsri_allocate(&context->allocator, size_bytes, 64);
    if (packed == NULL)
        return dsri_fail(context, DSR_ERR_OUT_OF_MEMORY, "attention: no memory for %llu bytes of packed weights",
                         (unsigned long long)size_bytes);
    status = dsr_projection_pack(context, weights, packed, size_bytes);
    if (status == DSR_OK)
        status = dsr_buffer_write(buffer, 0, packed, size_bytes);
    dsri_release(&context->allocator, packed, size_bytes);
    return status;
}

static dsr_status load_weight(const loader *l, dsri_weight weight)
{
    const weight_shape shape = shape_of(l->layer, weight);
    char full_name[MAX_TENSOR_NAME];
    dsr_tensor tensor;
    dsr_status status = find(l, weight_names[weight], full_name, &tensor);
    if (status != DSR_OK)
        return status;
    if (tensor.dtype != DSR_DTYPE_BF16 && tensor.dtype != DSR_DTYPE_U8)
        return dsri_fail(l->layer->context, DSR_ERR_DTYPE, "attention: tensor %s must be bf16 or u8 (FP8 E4M3), got %s",
                         full_name, dsr_dtype_name(tensor.dtype));
    const uint64_t n_rows = (uint64_t)shape.n_groups * shape.n_outputs;
    status = check_shape(l, full_name, &tensor, n_rows, shape.n_inputs);
    if (status != DSR_OK)
        return status;
    dsr_projection_weights weights = DSR_PROJECTION_WEIGHTS_INIT;
    weights.n_groups = shape.n_groups;
    weights.n_inputs = shape.n_inputs;
    weights.n_outputs = shape.n_outputs;
    weights.format = tensor.dtype == DSR_DTYPE_BF16 ? DSR_WEIGHT_BF16 : DSR_WEIGHT_FP8;
    weights.data = tensor.data;
    add_to_fingerprint(l->layer, tensor.data, n_rows * shape.n_inputs * dsr_dtype_size(tensor.dtype));
    if (weights.format == DSR_WEIGHT_FP8)
        status = find_scales(l, weight_names[weight], &shape, &weights);
    return status == DSR_OK ? pack(l->layer, weight, &weights) : status;
}

static dsr_status load_compressor(const loader *l, uint32_t which, const char *group)
{
    dsri_layer_compressor *compressor = &l->layer->compressors[which];
    char name[64];
    snprintf(name, sizeof name, "%sposition_bias", group);
    dsr_status status = load_parameters(l, name, dsri_layer_ratio(l->layer), compressor->n_columns, &compressor->ape);
    if (status != DSR_OK)
        return status;
    snprintf(name, sizeof name, "%skv_norm.weight", group);
    return load_parameters(l, name, 0, compressor->dim, &compressor->norm);
}

dsr_status dsri_layer_load(dsr_attention *layer, dsr_tensor_lookup_fn lookup, void *user, const char *prefix)
{
    const loader l = {layer, lookup, user, prefix};
    const dsri_weight n_weights = layer->config.kind == DSR_LAYER_WINDOW    ? DSRI_WEIGHT_MAIN_KV
                                  : layer->config.kind == DSR_LAYER_RATIO_4 ? DSRI_N_WEIGHTS
                                                                            : DSRI_WEIGHT_INDEX_Q;
    dsr_status status = DSR_OK;
    for (uint32_t weight = 0; weight < (uint32_t)n_weights && status == DSR_OK; weight++)
        status = load_weight(&l, (dsri_weight)weight);
    if (status == DSR_OK)
        status = load_parameters(&l, "q_a_norm.weight", 0, layer->config.q_rank, &layer->q_norm);
    if (status == DSR_OK)
        status = load_parameters(&l, "kv_norm.weight", 0, DSR_HEAD_DIM, &layer->kv_norm);
    if (status == DSR_OK)
        status = load_parameters(&l, "sinks", 0, layer->config.n_heads, &layer->sinks);
    if (status == DSR_OK && layer->config.kind != DSR_LAYER_WINDOW)
        status = load_compressor(&l, DSRI_MAIN, "compressor.");
    if (status == DSR_OK && layer->config.kind == DSR_LAYER_RATIO_4)
        status = load_compressor(&l, DSRI_INDEX, "compressor.indexer.");
    return status;
}

dsr_status dsri_layer_project(dsr_attention *layer, dsr_encoder *encoder, dsri_weight weight, uint32_t n_rows,
                              dsr_view input, dsr_view output)
{
    const weight_shape shape = shape_of(layer, weight);
    dsr_projection_desc desc = DSR_PROJECTION_DESC_INIT;
    desc.n_rows = n_rows;
    desc.n_groups = shape.n_groups;
    desc.n_inputs = shape.n_inputs;
    desc.n_outputs = shape.n_outputs;
    desc.format = layer->weight_format[weight];
    desc.input = input;
    desc.weight = dsr_view_whole(layer->weights[weight], DSR_DTYPE_U32);
    desc.output = output;
    if (weight == DSRI_WEIGHT_INDEX_WEIGHTS)
        desc.output_scale = layer->index_scale;
    return dsr_encode_projection(encoder, &desc);
}
