/* The compressors of a step: the tokens that they keep and the entries that these complete. */
#include "block/step.h"

#include <string.h>

typedef struct compressor_slots {
    dsri_weight kv_weight, gate_weight;
    dsri_slot kv, score, entries;
} compressor_slots;

static const compressor_slots slots_of[DSRI_N_COMPRESSORS] = {
    [DSRI_MAIN] = {DSRI_WEIGHT_MAIN_KV, DSRI_WEIGHT_MAIN_GATE, DSRI_SLOT_TOKEN_KV, DSRI_SLOT_TOKEN_SCORE,
                   DSRI_SLOT_ENTRIES},
    [DSRI_INDEX] = {DSRI_WEIGHT_INDEX_KV, DSRI_WEIGHT_INDEX_GATE, DSRI_SLOT_INDEX_TOKEN_KV, DSRI_SLOT_INDEX_TOKEN_SCORE,
                    DSRI_SLOT_INDEX_ENTRIES},
};

/* Compressed entries that a sequence completes in the step. */
static uint32_t emitted_by(const dsri_step *s, uint32_t entry)
{
    return dsr_compressor_emitted(dsri_layer_ratio(s->layer), dsri_step_position(s, entry), s->n_entry_tokens[entry]);
}

/* Copies `source` rows into a ring of every sequence, by position. */
static dsr_status copy_to_rings(const dsri_step *s, dsr_view source, uint64_t row_elements,
                                const uint64_t *byte_offsets, uint64_t ring_rows)
{
    dsr_copy_row rows[DSR_MAX_ROWS];
    memset(rows, 0, sizeof rows);
    for (uint32_t e = 0; e < s->n_entries; e++) {
        rows[e].destination =
            dsri_sequence_view(s->sequences[e], byte_offsets[e], ring_rows * row_elements, source.dtype);
        rows[e].source_row = s->first_token[e];
        rows[e].destination_row = dsri_step_position(s, e) % ring_rows;
        rows[e].ring_rows = ring_rows;
        rows[e].n_copies = s->n_entry_tokens[e];
    }
    return dsri_step_encode_copy(s, rows, s->n_entries, row_elements, source);
}

/* Projected kv and score of the tokens, kept in the histories too. */
static dsr_status encode_token_values(const dsri_step *s, uint32_t which, dsr_view hidden, dsr_view kv, dsr_view score)
{
    const dsri_layer_compressor *c = &s->layer->compressors[which];
    uint64_t kv_histories[DSR_MAX_ROWS], score_histories[DSR_MAX_ROWS];
    for (uint32_t e = 0; e < s->n_entries; e++) {
        kv_histories[e] = s->sequences[e]->storage->layout.compressors[which].kv_history;
        score_histories[e] = s->sequences[e]->storage->layout.compressors[which].score_history;
    }
    dsr_status status = dsri_layer_project(s->layer, s->encoder, slots_of[which].kv_weight, s->n_tokens, hidden, kv);
    if (status == DSR_OK)
        status = dsri_layer_project(s->layer, s->encoder, slots_of[which].gate_weight, s->n_tokens, hidden, score);
    if (status == DSR_OK)
        status = copy_to_rings(s, kv, c->n_columns, kv_histories, c->history_rows);
    if (status == DSR_OK)
        status = copy_to_rings(s, score, c->n_columns, score_histories, c->history_rows);
    return status;
}

static dsr_status encode_compressor_rows(const dsri_step *s, dsr_compressor_desc *desc, const dsr_compressor_row *rows)
{
    /* Entries at position 0 initialise their state, which the op does in a call of their own. */
    dsr_compressor_row later[DSR_MAX_ROWS];
    uint32_t n_later = 0;
    dsr_status status = DSR_OK;
    for (uint32_t e = 0; e < s->n_entries && status == DSR_OK; e++) {
        if (rows[e].start_pos != 0) {
            later[n_later++] = rows[e];
            continue;
        }
        desc->n_rows = 1;
        desc->rows = &rows[e];
        status = dsr_encode_compressor(s->encoder, desc);
    }
    if (status != DSR_OK || n_later == 0)
        return status;
    desc->n_rows = n_later;
    desc->rows = later;
    return dsr_encode_compressor(s->encoder, desc);
}

/* Rotates, rounds and stores the entries that the step completed. */
static dsr_status encode_entries(const dsri_step *s, uint32_t which, dsr_view entries, const uint64_t *entry_rows,
                                 uint64_t n_entry_rows)
{
    const dsri_layer_compressor *c = &s->layer->compressors[which];
    const uint32_t ratio = dsri_layer_ratio(s->layer);
    dsr_rope_row rope_rows[DSR_MAX_ROWS];
    dsri_cache_rows to;
    memset(rope_rows, 0, sizeof rope_rows);
    memset(&to, 0, sizeof to);
    for (uint32_t e = 0; e < s->n_entries; e++) {
        const uint32_t n_emitted = emitted_by(s, e);
        const uint32_t group = dsri_step_position(s, e) / ratio;
        if (n_emitted == 0)
            continue;
        rope_rows[to.n] = (dsr_rope_row){entry_rows[e], group * ratio, ratio, n_emitted};
        to.sequences[to.n] = e;
        to.rows[to.n].first_entry = group + (which == DSRI_MAIN ? DSRI_RING_ROWS : 0u);
        to.rows[to.n].source_row = entry_rows[e];
        to.rows[to.n].n_tokens = n_emitted;
        to.n++;
    }
    if (to.n == 0)
        return DSR_OK;
    dsr_rope_desc rope = DSR_ROPE_DESC_INIT;
    rope.n_rows = to.n;
    rope.rows = rope_rows;
    rope.n_heads = 1;
    rope.head_dim = c->dim;
    rope.rope_dim = DSR_ROPE_DIM;
    rope.input = entries;
    rope.output = entries;
    rope.frequencies = s->layer->frequencies;
    const dsr_status status = dsr_encode_rope(s->encoder, &rope);
    return status == DSR_OK ? dsri_step_store(s, &to, entries, n_entry_rows, c->dim) : status;
}

dsr_status dsri_step_encode_compressor(const dsri_step *s, uint32_t which, dsr_view hidden)
{
    const dsri_layer_compressor *c = &s->layer->compressors[which];
    const uint64_t n_values = (uint64_t)s->n_tokens * c->n_columns;
    const dsr_view kv = dsri_step_slot(s, slots_of[which].kv, n_values, DSR_DTYPE_F32);
    const dsr_view score = dsri_step_slot(s, slots_of[which].score, n_values, DSR_DTYPE_F32);
    dsr_compressor_row rows[DSR_MAX_ROWS];
    uint64_t entry_rows[DSR_MAX_ROWS];
    uint64_t n_entry_rows = 0;
    memset(rows, 0, sizeof rows);
    for (uint32_t e = 0; e < s->n_entries; e++) {
        const dsri_compressor_layout *l = &s->sequences[e]->storage->layout.compressors[which];
        const uint32_t n_emitted = emitted_by(s, e);
        entry_rows[e] = n_entry_rows;
        n_entry_rows += n_emitted ? n_emitted : 1;
        rows[e].kv_state = dsri_sequence_view(s->sequences[e], l->kv_state, c->state_elements, DSR_DTYPE_F32);
        rows[e].score_state = dsri_sequence_view(s->sequences[e], l->score_state, c->state_elements, DSR_DTYPE_F32);
        rows[e].token_row = s->first_token[e];
        rows[e].output_row = entry_rows[e];
        rows[e].start_pos = dsri_step_position(s, e);
        rows[e].n_tokens = s->n_entry_tokens[e];
    }
    const dsr_view entries = dsri_step_slot(s, slots_of[which].entries, n_entry_rows * c->dim, DSR_DTYPE_BF16);
    dsr_compressor_desc desc = DSR_COMPRESSOR_DESC_INIT;
    desc.ratio = dsri_layer_ratio(s->layer);
    desc.dim = c->dim;
    desc.epsilon = s->layer->config.epsilon;
    desc.kv = kv;
    desc.score = score;
    desc.ape = dsr_view_whole(c->ape, DSR_DTYPE_F32);
    desc.norm = dsr_view_whole(c->norm, DSR_DTYPE_F32);
    desc.output = entries;
    dsr_status status = encode_token_values(s, which, hidden, kv, score);
    if (status == DSR_OK)
        status = encode_compressor_rows(s, &desc, rows);
    return status == DSR_OK ? encode_entries(s, which, entries, entry_rows, n_entry_rows) : status;
}
