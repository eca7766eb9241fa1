/* What every token of a step has: its queries, and its row of the window. */
#include "block/step.h"

#include <string.h>

static dsr_status norm(const dsri_step *s, dsr_view input, dsr_buffer *weight, uint64_t n_vectors, uint32_t dim,
                       dsr_view output)
{
    dsr_rms_norm_desc desc = DSR_RMS_NORM_DESC_INIT;
    desc.dim = dim;
    desc.n_vectors = n_vectors;
    desc.epsilon = s->layer->config.epsilon;
    desc.input = input;
    desc.weight = dsr_view_whole(weight, DSR_DTYPE_F32);
    desc.output = output;
    return dsr_encode_rms_norm(s->encoder, &desc);
}

dsr_status dsri_step_rotate(const dsri_step *s, dsr_view input, uint32_t n_heads, uint32_t head_dim, int inverse,
                            dsr_view output)
{
    dsr_rope_row rows[DSR_MAX_ROWS];
    memset(rows, 0, sizeof rows);
    for (uint32_t e = 0; e < s->n_entries; e++) {
        rows[e].row = s->first_token[e];
        rows[e].start_pos = dsri_step_position(s, e);
        rows[e].n_tokens = s->n_entry_tokens[e];
    }
    dsr_rope_desc desc = DSR_ROPE_DESC_INIT;
    desc.n_rows = s->n_entries;
    desc.rows = rows;
    desc.n_heads = n_heads;
    desc.head_dim = head_dim;
    desc.rope_dim = DSR_ROPE_DIM;
    desc.inverse = inverse;
    desc.input = input;
    desc.output = output;
    desc.frequencies = s->layer->frequencies;
    return dsr_encode_rope(s->encoder, &desc);
}

dsr_status dsri_step_encode_queries(const dsri_step *s, dsr_view hidden)
{
    const dsr_attention_config *c = &s->layer->config;
    const uint64_t n_q = (uint64_t)s->n_tokens * c->n_heads * DSR_HEAD_DIM;
    const uint64_t n_residual = (uint64_t)s->n_tokens * c->q_rank;
    const dsr_view residual_f32 = dsri_step_slot(s, DSRI_SLOT_Q_RESIDUAL_F32, n_residual, DSR_DTYPE_F32);
    const dsr_view residual = dsri_step_slot(s, DSRI_SLOT_Q_RESIDUAL, n_residual, DSR_DTYPE_BF16);
    const dsr_view q_f32 = dsri_step_slot(s, DSRI_SLOT_Q_F32, n_q, DSR_DTYPE_F32);
    const dsr_view q = dsri_step_slot(s, DSRI_SLOT_Q, n_q, DSR_DTYPE_BF16);
    dsr_status status = dsri_layer_project(s->layer, s->encoder, DSRI_WEIGHT_Q_A, s->n_tokens, hidden, residual_f32);
    if (status == DSR_OK)
        status = norm(s, residual_f32, s->layer->q_norm, s->n_tokens, c->q_rank, residual);
    if (status == DSR_OK)
        status = dsri_layer_project(s->layer, s->encoder, DSRI_WEIGHT_Q_B, s->n_tokens, residual, q_f32);
    if (status == DSR_OK)
        status = norm(s, q_f32, NULL, (uint64_t)s->n_tokens * c->n_heads, DSR_HEAD_DIM, q_f32);
    return status == DSR_OK ? dsri_step_rotate(s, q_f32, c->n_heads, DSR_HEAD_DIM, 0, q) : status;
}

dsr_status dsri_step_encode_window(const dsri_step *s, dsr_view hidden)
{
    const uint64_t n_kv = (uint64_t)s->n_tokens * DSR_HEAD_DIM;
    const dsr_view kv_f32 = dsri_step_slot(s, DSRI_SLOT_KV_F32, n_kv, DSR_DTYPE_F32);
    const dsr_view kv = dsri_step_slot(s, DSRI_SLOT_KV, n_kv, DSR_DTYPE_BF16);
    dsri_cache_rows rows;
    memset(&rows, 0, sizeof rows);
    rows.n = s->n_entries;
    for (uint32_t e = 0; e < s->n_entries; e++) {
        rows.sequences[e] = e;
        rows.rows[e].first_entry = dsri_step_position(s, e) % DSRI_RING_ROWS;
        rows.rows[e].ring_entries = DSRI_RING_ROWS;
        rows.rows[e].source_row = s->first_token[e];
        rows.rows[e].n_tokens = s->n_entry_tokens[e];
    }
    dsr_status status = dsri_layer_project(s->layer, s->encoder, DSRI_WEIGHT_KV, s->n_tokens, hidden, kv_f32);
    if (status == DSR_OK)
        status = norm(s, kv_f32, s->layer->kv_norm, s->n_tokens, DSR_HEAD_DIM, kv_f32);
    if (status == DSR_OK)
        status = dsri_step_rotate(s, kv_f32, 1, DSR_HEAD_DIM, 0, kv);
    return status == DSR_OK ? dsri_step_store(s, &rows, kv, s->n_tokens, DSR_HEAD_DIM) : status;
}
