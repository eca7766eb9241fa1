/* Creating and destroying attention layers, and their step buffers. */
#include "block/layer.h"

#include <string.h>

static void set_compressor(dsri_layer_compressor *compressor, uint32_t ratio, uint32_t dim)
{
    const uint32_t coff = ratio == 4 ? 2 : 1;
    compressor->dim = dim;
    compressor->n_columns = coff * dim;
    compressor->history_rows = coff * ratio + DSR_MAX_TRUNCATE_TOKENS;
    compressor->state_elements = dsr_compressor_state_elements(ratio, dim);
}

/* Emitted rows of any step or replay: these slots must not move under a step encoder when a truncation replays. */
static dsr_status reserve_entries(dsr_attention *layer)
{
    dsr_status status = DSR_OK;
    if (layer->compressors[DSRI_MAIN].dim)
        status = dsri_layer_reserve(layer, DSRI_SLOT_ENTRIES, DSR_MAX_ROWS * DSR_HEAD_DIM * sizeof(uint16_t));
    if (status == DSR_OK && layer->compressors[DSRI_INDEX].dim)
        status = dsri_layer_reserve(layer, DSRI_SLOT_INDEX_ENTRIES, DSR_MAX_ROWS * DSR_INDEX_DIM * sizeof(uint16_t));
    return status;
}

dsr_status dsr_attention_create(dsr_context *context, const dsr_attention_config *config, dsr_tensor_lookup_fn lookup,
                                void *lookup_user, const char *prefix, dsr_attention **attention)
{
    if (context == NULL)
        return DSR_ERR_NULL;
    if (config == NULL || lookup == NULL || attention == NULL)
        return dsri_fail(context, DSR_ERR_NULL, "attention: %s is null",
                         config == NULL   ? "config"
                         : lookup == NULL ? "lookup"
                                          : "attention");
    dsr_attention_config filled;
    dsr_status status = dsri_layer_config(context, config, &filled);
    if (status != DSR_OK)
        return status;
    dsr_attention *layer = dsri_allocate(&context->allocator, sizeof *layer, 64);
    if (layer == NULL)
        return dsri_fail(context, DSR_ERR_OUT_OF_MEMORY, "attention: no memory for a layer");
    memset(layer, 0, sizeof *layer);
    layer->context = context;
    layer->config = filled;
    if (filled.kind != DSR_LAYER_WINDOW)
        set_compressor(&layer->compressors[DSRI_MAIN], (uint32_t)filled.kind, DSR_HEAD_DIM);
    /* 1 / sqrt(128 * index heads) */
    layer->index_scale = filled.n_index_heads == 32    ? 0.015625f
                         : filled.n_index_heads == 128 ? 0.0078125f
                                                       : DSR_INDEXER_SCALE;
    if (filled.kind == DSR_LAYER_RATIO_4)
        set_compressor(&layer->compressors[DSRI_INDEX], (uint32_t)filled.kind, DSR_INDEX_DIM);
    status = dsri_layer_frequencies(layer);
    if (status == DSR_OK)
        status = dsri_layer_load(layer, lookup, lookup_user, prefix ? prefix : "");
    if (status == DSR_OK)
        status = reserve_entries(layer);
    if (status == DSR_OK)
        status = dsr_encoder_create(context, &layer->rebuild_encoder);
    if (status != DSR_OK) {
        dsr_attention_destroy(layer);
        return status;
    }
    *attention = layer;
    return DSR_OK;
}

void dsri_layer_release_if_done(dsr_attention *layer)
{
    if (!layer->is_destroyed || layer->n_sequences != 0)
        return;
    const dsr_allocator allocator = layer->context->allocator; /* a destroyed context goes with its last buffer */
    dsr_encoder_destroy(layer->step_encoder);
    dsr_encoder_destroy(layer->rebuild_encoder);
    for (uint32_t i = 0; i < DSRI_N_WEIGHTS; i++)
        dsr_buffer_destroy(layer->weights[i]);
    for (uint32_t i = 0; i < DSRI_N_SLOTS; i++)
        dsr_buffer_destroy(layer->slots[i]);
    for (uint32_t i = 0; i < DSRI_N_COMPRESSORS; i++) {
        dsr_buffer_destroy(layer->compressors[i].ape);
        dsr_buffer_destroy(layer->compressors[i].norm);
    }
    dsr_buffer_destroy(layer->q_norm);
    dsr_buffer_destroy(layer->kv_norm);
    dsr_buffer_destroy(layer->sinks);
    dsri_release(&allocator, layer->lists, layer->lists_bytes);
    dsri_release(&allocator, layer, sizeof *layer);
}

void dsr_attention_destroy(dsr_attention *layer)
{
    if (layer == NULL)
        return;
    if (layer->n_sequences != 0)
        dsri_log(layer->context, DSR_LOG_ERROR,
                 "attention: destroyed before its sequences; kept until they are destroyed");
    layer->is_destroyed = 1;
    dsri_layer_release_if_done(layer);
}

dsr_status dsri_layer_check_usable(dsr_attention *layer)
{
    if (layer->is_destroyed)
        return dsri_fail(layer->context, DSR_ERR_STATE, "attention: the layer was destroyed before its sequences");
    return dsri_context_check_usable(layer->context);
}

dsr_status dsr_attention_get_config(const dsr_attention *layer, dsr_attention_config *config)
{
    if (layer == NULL)
        return DSR_ERR_NULL;
    if (config == NULL)
        return dsri_fail(layer->context, DSR_ERR_NULL, "attention: config is null");
    if (config->struct_size != sizeof *config)
        return dsri_fail(layer->context, DSR_ERR_STRUCT_SIZE,
                         "attention: config.struct_size is %u, this library knows %zu", config->struct_size,
                         sizeof *config);
    *config = layer->config;
    return DSR_OK;
}

dsr_encoder *dsr_attention_encoder(dsr_attention *layer)
{
    return layer ? layer->step_encoder : NULL;
}

dsr_status dsri_layer_reserve(dsr_attention *layer, dsri_slot slot, uint64_t size_bytes)
{
    dsr_buffer *old = layer->slots[slot];
    if (size_bytes == 0 || (old != NULL && dsr_buffer_size(old) >= size_bytes))
        return DSR_OK;
    dsr_buffer *grown = NULL;
    dsr_status status = dsr_buffer_create(layer->context, size_bytes, &grown);
    if (status != DSR_OK)
        return status;
    dsr_buffer_destroy(old);
    layer->slots[slot] = grown;
    return DSR_OK;
}
