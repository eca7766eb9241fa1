/* Attention of a step over the lists of its tokens, and the output projections. */
#include "block/step.h"

#include <string.h>

/* Entries that the last token of a sequence's room attends to. */
static uint32_t most_attended_entries(const dsri_step *s, uint32_t entry)
{
    return dsri_attended_entries(s->layer, s->sequences[entry]->storage->max_context - 1);
}

enum { LEAST_CHUNKED_ROWS = 384 };

/* The chunked form pays for wide lists of selected rows. A function of the token's position alone. */
static int uses_chunks(const dsr_attention *layer, uint32_t position)
{
    const uint32_t n_window = (uint32_t)dsri_smaller(position + 1u, DSR_WINDOW);
    return layer->config.kind == DSR_LAYER_RATIO_4 &&
           n_window + dsri_attended_entries(layer, position) >= LEAST_CHUNKED_ROWS;
}

typedef struct attention_call {
    dsr_attention_desc desc;
    dsr_attention_row rows[DSR_MAX_STEP_TOKENS]; /* one a token */
    uint64_t workspace_bytes;
} attention_call;

static void list_attention_rows(const dsri_step *s, int chunked, attention_call *call)
{
    const dsr_attention_config *c = &s->layer->config;
    const uint64_t n_q = (uint64_t)s->n_tokens * c->n_heads * DSR_HEAD_DIM;
    call->desc = (dsr_attention_desc)DSR_ATTENTION_DESC_INIT;
    call->desc.rows = call->rows;
    call->desc.n_heads = c->n_heads;
    call->desc.scale = c->scale;
    call->desc.q = dsri_step_slot(s, DSRI_SLOT_Q, n_q, DSR_DTYPE_BF16);
    call->desc.indices = dsri_step_slot(s, DSRI_SLOT_LISTS, s->n_list_elements, DSR_DTYPE_I32);
    call->desc.sinks = dsr_view_whole(s->layer->sinks, DSR_DTYPE_F32);
    call->desc.output = dsri_step_slot(s, DSRI_SLOT_ATTENTION, n_q, DSR_DTYPE_BF16);
    for (uint32_t e = 0; e < s->n_entries; e++) {
        const dsri_sequence_cache *kv = &s->sequences[e]->storage->layout.kv;
        for (uint32_t i = 0; i < s->n_entry_tokens[e]; i++) {
            const uint32_t token = s->first_token[e] + i;
            const uint32_t position = dsri_step_position(s, e) + i;
            if (uses_chunks(s->layer, position) != chunked)
                continue;
            dsr_attention_row *row = &call->rows[call->desc.n_rows++];
            memset(row, 0, sizeof *row);
            row->kv_len = DSRI_RING_ROWS + dsri_visible_entries(s->layer, position);
            row->kv = dsri_sequence_cache_view(s->sequences[e], kv);
            row->kv_layout = dsri_sequence_cache_layout(kv);
            row->q_row = token;
            row->index_offset = s->list_offset[token];
            row->width = s->list_width[token];
        }
    }
}

static dsr_status attention_workspace(const dsri_step *s, int chunked, attention_call *call)
{
    call->workspace_bytes = 0;
    if (call->desc.n_rows == 0)
        return DSR_OK;
    return chunked ? dsr_flash_attention_workspace(s->layer->context, &call->desc, &call->workspace_bytes)
                   : dsr_sparse_attention_workspace(s->layer->context, &call->desc, &call->workspace_bytes);
}

/* At least n_bytes, and enough for every sequence at the end of its room, so that later steps need no more. */
static dsr_status reserve_attention_workspace(const dsri_step *s, uint64_t n_bytes)
{
    dsr_attention_row rows[DSR_MAX_STEP_TOKENS];
    dsr_attention_desc largest = DSR_ATTENTION_DESC_INIT;
    memset(rows, 0, sizeof rows);
    largest.rows = rows;
    largest.n_heads = s->layer->config.n_heads;
    for (uint32_t e = 0; e < s->n_entries; e++)
        for (uint32_t i = 0; i < s->n_entry_tokens[e]; i++) {
            rows[largest.n_rows].kv_layout.format = s->sequences[e]->storage->layout.kv.format;
            rows[largest.n_rows++].width = DSR_WINDOW + most_attended_entries(s, e);
        }
    uint64_t two_pass = 0, chunked = 0;
    dsr_status status = dsr_sparse_attention_workspace(s->layer->context, &largest, &two_pass);
    if (status == DSR_OK)
        status = dsr_flash_attention_workspace(s->layer->context, &largest, &chunked);
    if (status != DSR_OK)
        return status;
    /* Tokens of both forms in one step: each call has room of its own to align its base. */
    const uint64_t both = 64 + (two_pass > chunked ? two_pass : chunked);
    return dsri_layer_reserve(s->layer, DSRI_SLOT_ATTENTION_WORKSPACE, both > n_bytes ? both : n_bytes);
}

/* Both forms, each with its part of the workspace, so that they may run side by side. */
dsr_status dsri_step_encode_attention(const dsri_step *s)
{
    attention_call calls[2];
    uint64_t n_bytes = 0;
    dsr_status status = DSR_OK;
    for (int chunked = 0; chunked < 2 && status == DSR_OK; chunked++) {
        list_attention_rows(s, chunked, &calls[chunked]);
        status = attention_workspace(s, chunked, &calls[chunked]);
        n_bytes += calls[chunked].workspace_bytes;
    }
    if (status == DSR_OK)
        status = reserve_attention_workspace(s, n_bytes);
    uint64_t begin = 0;
    for (int chunked = 0; chunked < 2 && status == DSR_OK; chunked++) {
        attention_call *call = &calls[chunked];
        call->desc.workspace =
            (dsr_view){s->layer->slots[DSRI_SLOT_ATTENTION_WORKSPACE], begin, call->workspace_bytes, DSR_DTYPE_U8};
        begin += call->workspace_bytes;
        if (call->desc.n_rows == 0)
            continue;
        status = chunked ? dsr_encode_flash_attention(s->encoder, &call->desc)
                         : dsr_encode_sparse_attention(s->encoder, &call->desc);
    }
    return status;
}

dsr_status dsri_step_encode_output(const dsri_step *s, dsr_view output)
{
    const dsr_attention_config *c = &s->layer->config;
    const dsr_view attention =
        dsri_step_slot(s, DSRI_SLOT_ATTENTION, (uint64_t)s->n_tokens * c->n_heads * DSR_HEAD_DIM, DSR_DTYPE_BF16);
    const dsr_view grouped =
        dsri_step_slot(s, DSRI_SLOT_GROUPED, (uint64_t)s->n_tokens * c->o_groups * c->o_rank, DSR_DTYPE_BF16);
    dsr_status status = dsri_step_rotate(s, attention, c->n_heads, DSR_HEAD_DIM, 1, attention);
    if (status == DSR_OK)
        status = dsri_layer_project(s->layer, s->encoder, DSRI_WEIGHT_O_A, s->n_tokens, attention, grouped);
    if (status == DSR_OK)
        status = dsri_layer_project(s->layer, s->encoder, DSRI_WEIGHT_O_B, s->n_tokens, grouped, output);
    return status;
}
