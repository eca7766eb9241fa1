/* The rows that each token of a step attends to: of the window, and all entries or those that the indexer selects. */
#include "block/step.h"

#include <string.h>

/* Elements between the lists of a sequence's tokens, of which the last stands at `position`. */
static uint64_t list_stride(const dsr_attention *layer, uint32_t position)
{
    return DSR_WINDOW +
           (layer->config.kind == DSR_LAYER_RATIO_4 ? layer->config.top_k : dsri_attended_entries(layer, position));
}

void dsri_step_place_lists(dsri_step *s)
{
    const dsr_attention *layer = s->layer;
    s->n_list_elements = 0;
    s->max_list_elements = 0;
    for (uint32_t e = 0; e < s->n_entries; e++) {
        const uint32_t last = dsri_step_position(s, e) + s->n_entry_tokens[e] - 1;
        const uint64_t stride = list_stride(layer, last);
        for (uint32_t i = 0; i < s->n_entry_tokens[e]; i++) {
            const uint32_t token = s->first_token[e] + i;
            s->list_offset[token] = s->n_list_elements;
            s->list_width[token] = DSR_WINDOW + dsri_attended_entries(layer, dsri_step_position(s, e) + i);
            s->n_list_elements += stride;
        }
        s->max_list_elements += s->n_entry_tokens[e] * list_stride(layer, s->sequences[e]->storage->max_context - 1);
    }
}

/* Window rows oldest to newest, then -1; then, for ratio 128, every visible entry. */
static void fill_list(const dsr_attention *layer, uint32_t position, int32_t *list)
{
    const uint32_t n_window = (uint32_t)dsri_smaller(position + 1u, DSR_WINDOW);
    for (uint32_t i = 0; i < DSR_WINDOW; i++)
        list[i] = i < n_window ? (int32_t)((position + 1 - n_window + i) % DSRI_RING_ROWS) : -1;
    if (layer->config.kind == DSR_LAYER_RATIO_128)
        for (uint32_t g = 0; g < dsri_visible_entries(layer, position); g++)
            list[DSR_WINDOW + g] = (int32_t)(DSRI_RING_ROWS + g);
}

dsr_status dsri_step_write_lists(const dsri_step *s)
{
    dsr_attention *layer = s->layer;
    const size_t n_bytes = s->n_list_elements * sizeof(int32_t);
    if (layer->lists_bytes < n_bytes) {
        const size_t max_bytes = s->max_list_elements * sizeof(int32_t);
        int32_t *grown = dsri_allocate(&layer->context->allocator, max_bytes, 64);
        if (grown == NULL)
            return dsri_fail(layer->context, DSR_ERR_OUT_OF_MEMORY, "attention: no memory for the lists of a step");
        memset(grown, 0xff, max_bytes);
        dsri_release(&layer->context->allocator, layer->lists, layer->lists_bytes);
        layer->lists = grown;
        layer->lists_bytes = max_bytes;
    }
    for (uint32_t e = 0; e < s->n_entries; e++)
        for (uint32_t i = 0; i < s->n_entry_tokens[e]; i++)
            fill_list(layer, dsri_step_position(s, e) + i, layer->lists + s->list_offset[s->first_token[e] + i]);
    return dsr_buffer_write(layer->slots[DSRI_SLOT_LISTS], 0, layer->lists, n_bytes);
}

static dsr_status encode_index_queries(const dsri_step *s, dsr_view hidden, dsr_view q, dsr_view weights)
{
    const dsr_attention_config *c = &s->layer->config;
    const uint64_t n_q = (uint64_t)s->n_tokens * c->n_index_heads * DSR_INDEX_DIM;
    const dsr_view residual =
        dsri_step_slot(s, DSRI_SLOT_Q_RESIDUAL, (uint64_t)s->n_tokens * c->q_rank, DSR_DTYPE_BF16);
    const dsr_view q_f32 = dsri_step_slot(s, DSRI_SLOT_INDEX_Q_F32, n_q, DSR_DTYPE_F32);
    dsr_status status = dsri_layer_project(s->layer, s->encoder, DSRI_WEIGHT_INDEX_Q, s->n_tokens, residual, q_f32);
    if (status == DSR_OK)
        status = dsri_step_rotate(s, q_f32, c->n_index_heads, DSR_INDEX_DIM, 0, q);
    if (status == DSR_OK && c->cache != DSR_CACHE_BF16)
        status = dsri_step_quantise(s, DSR_QUANT_HADAMARD_FP4_BLOCK32, q, (uint64_t)s->n_tokens * c->n_index_heads,
                                    DSR_INDEX_DIM);
    if (status == DSR_OK)
        status = dsri_layer_project(s->layer, s->encoder, DSRI_WEIGHT_INDEX_WEIGHTS, s->n_tokens, hidden, weights);
    return status;
}

/* Enough for every sequence at the end of its room, so that later steps need no more. */
static dsr_status reserve_indexer_workspace(const dsri_step *s, const dsr_indexer_desc *desc)
{
    dsr_indexer_row rows[DSR_MAX_ROWS];
    dsr_indexer_desc largest = *desc;
    uint64_t n_bytes = 0;
    memcpy(rows, desc->rows, s->n_entries * sizeof rows[0]);
    for (uint32_t e = 0; e < s->n_entries; e++) {
        const dsri_sequence_storage *storage = s->sequences[e]->storage;
        rows[e].start_pos = storage->max_context - s->n_entry_tokens[e];
        rows[e].kv_len = storage->layout.capacity ? storage->layout.capacity : 1;
    }
    largest.rows = rows;
    const dsr_status status = dsr_indexer_workspace(s->layer->context, &largest, &n_bytes);
    return status == DSR_OK ? dsri_layer_reserve(s->layer, DSRI_SLOT_INDEX_WORKSPACE, n_bytes) : status;
}

dsr_status dsri_step_encode_indexer(const dsri_step *s, dsr_view hidden)
{
    dsr_attention *layer = s->layer;
    const dsr_attention_config *c = &layer->config;
    dsr_indexer_row rows[DSR_MAX_ROWS];
    memset(rows, 0, sizeof rows);
    for (uint32_t e = 0; e < s->n_entries; e++) {
        const dsri_sequence_cache *keys = &s->sequences[e]->storage->layout.keys;
        const uint32_t n_keys = dsri_visible_entries(layer, dsri_step_position(s, e) + s->n_entry_tokens[e] - 1);
        rows[e].kv_len = n_keys ? n_keys : 1;
        rows[e].keys = dsri_sequence_cache_view(s->sequences[e], keys);
        rows[e].key_layout = dsri_sequence_cache_layout(keys);
        rows[e].q_row = s->first_token[e];
        rows[e].output_offset = s->list_offset[s->first_token[e]] + DSR_WINDOW;
        rows[e].output_stride = DSR_WINDOW + c->top_k;
        rows[e].start_pos = dsri_step_position(s, e);
        rows[e].ratio = dsri_layer_ratio(layer);
        rows[e].offset = DSRI_RING_ROWS;
        rows[e].n_queries = s->n_entry_tokens[e];
    }
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    desc.n_rows = s->n_entries;
    desc.rows = rows;
    desc.n_heads = c->n_index_heads;
    desc.top_k = c->top_k;
    desc.q =
        dsri_step_slot(s, DSRI_SLOT_INDEX_Q, (uint64_t)s->n_tokens * c->n_index_heads * DSR_INDEX_DIM, DSR_DTYPE_BF16);
    desc.weights = dsri_step_slot(s, DSRI_SLOT_INDEX_WEIGHTS, (uint64_t)s->n_tokens * c->n_index_heads, DSR_DTYPE_F32);
    desc.output = dsri_step_slot(s, DSRI_SLOT_LISTS, s->n_list_elements, DSR_DTYPE_I32);
    dsr_status status = reserve_indexer_workspace(s, &desc);
    if (status == DSR_OK)
        status = encode_index_queries(s, hidden, desc.q, desc.weights);
    desc.workspace = dsr_view_whole(layer->slots[DSRI_SLOT_INDEX_WORKSPACE], DSR_DTYPE_U8);
    return status == DSR_OK ? dsr_encode_indexer(s->encoder, &desc) : status;
}

dsr_status dsr_attention_selection(const dsr_attention *layer, uint32_t token, uint32_t *entries, uint32_t *n_entries)
{
    if (layer == NULL)
        return DSR_ERR_NULL;
    dsr_context *context = layer->context;
    if (entries == NULL || n_entries == NULL)
        return dsri_fail(context, DSR_ERR_NULL, "selection: %s is null", entries == NULL ? "entries" : "n_entries");
    if (layer->config.kind != DSR_LAYER_RATIO_4)
        return dsri_fail(context, DSR_ERR_VALUE, "selection: the layer has no indexer (ratio 4), its kind is %d",
                         (int)layer->config.kind);
    if (layer->n_step_tokens == 0)
        return dsri_fail(context, DSR_ERR_STATE, "selection: the layer has done no step, or its last one failed");
    if (token >= layer->n_step_tokens)
        return dsri_fail(context, DSR_ERR_VALUE, "selection: token must be below %u, the last step's tokens, got %u",
                         layer->n_step_tokens, token);
    const uint32_t top_k = layer->config.top_k;
    const uint64_t first = (uint64_t)token * (DSR_WINDOW + top_k) + DSR_WINDOW;
    const dsr_status status =
        dsr_buffer_read(layer->slots[DSRI_SLOT_LISTS], first * sizeof *entries, entries, top_k * sizeof *entries);
    if (status != DSR_OK)
        return status;
    uint32_t n = 0;
    for (; n < top_k && entries[n] != UINT32_MAX; n++) /* the rest is -1 */
        entries[n] -= DSRI_RING_ROWS;
    *n_entries = n;
    return DSR_OK;
}
