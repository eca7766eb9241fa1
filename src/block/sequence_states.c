/* Compressor states of a sequence: empty, or rebuilt from the histories. */
#include "block/layer.h"

#include <string.h>

/* Fills memory with a word of 4 bytes. */
static dsr_status fill(dsr_buffer *buffer, uint64_t byte_offset, uint64_t n_bytes, uint32_t word)
{
    uint32_t words[256];
    dsr_status status = DSR_OK;
    for (uint32_t i = 0; i < sizeof words / sizeof words[0]; i++)
        words[i] = word;
    for (uint64_t done = 0; done < n_bytes && status == DSR_OK; done += sizeof words)
        status = dsr_buffer_write(buffer, byte_offset + done, words,
                                  n_bytes - done < sizeof words ? n_bytes - done : sizeof words);
    return status;
}

dsr_status dsri_write_initial_scores(dsr_attention *layer, dsri_sequence_storage *storage)
{
    const uint32_t minus_infinity = 0xff800000u;
    dsr_status status = DSR_OK;
    for (uint32_t i = 0; i < DSRI_N_COMPRESSORS && status == DSR_OK; i++)
        status = fill(storage->buffer, storage->layout.compressors[i].score_state,
                      layer->compressors[i].state_elements * sizeof(float), minus_infinity);
    return status;
}

uint32_t dsri_state_first_token(uint32_t ratio, uint32_t position)
{
    if (ratio == 0)
        return position;
    const uint32_t group_begin = position / ratio * ratio;
    if (ratio == 4 && group_begin != 0) /* an entry sees the group before its own, too */
        return group_begin - 4;
    return group_begin;
}

/* Encodes one compressor call over n_tokens projected tokens of the history ring, none behind its end. */
static dsr_status encode_replay(dsr_attention *layer, const dsri_sequence_storage *storage, uint32_t which,
                                uint32_t first, uint32_t n_tokens, dsr_buffer *discarded)
{
    const dsri_layer_compressor *c = &layer->compressors[which];
    const dsri_compressor_layout *l = &storage->layout.compressors[which];
    const uint64_t state_bytes = c->state_elements * sizeof(float);
    const uint64_t history_bytes = (uint64_t)c->history_rows * c->n_columns * sizeof(float);
    dsr_compressor_row row;
    memset(&row, 0, sizeof row);
    row.kv_state = (dsr_view){storage->buffer, l->kv_state, state_bytes, DSR_DTYPE_F32};
    row.score_state = (dsr_view){storage->buffer, l->score_state, state_bytes, DSR_DTYPE_F32};
    row.token_row = first % c->history_rows;
    row.start_pos = first;
    row.n_tokens = n_tokens;
    dsr_compressor_desc desc = DSR_COMPRESSOR_DESC_INIT;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.ratio = dsri_layer_ratio(layer);
    desc.dim = c->dim;
    desc.epsilon = layer->config.epsilon;
    desc.kv = (dsr_view){storage->buffer, l->kv_history, history_bytes, DSR_DTYPE_F32};
    desc.score = (dsr_view){storage->buffer, l->score_history, history_bytes, DSR_DTYPE_F32};
    desc.ape = dsr_view_whole(c->ape, DSR_DTYPE_F32);
    desc.norm = dsr_view_whole(c->norm, DSR_DTYPE_F32);
    desc.output = dsr_view_whole(discarded, DSR_DTYPE_BF16);
    return dsr_encode_compressor(layer->rebuild_encoder, &desc);
}

static dsr_status encode_rebuild(dsr_attention *layer, dsri_sequence_storage *storage, uint32_t position)
{
    const uint32_t ratio = dsri_layer_ratio(layer);
    const uint32_t first = dsri_state_first_token(ratio, position);
    dsr_status status = DSR_OK;
    for (uint32_t i = 0; i < DSRI_N_COMPRESSORS && status == DSR_OK; i++) {
        const dsri_layer_compressor *c = &layer->compressors[i];
        uint32_t next = first;
        while (c->dim && next < position && status == DSR_OK) {
            const uint32_t to_ring_end = c->history_rows - next % c->history_rows;
            const uint32_t n = position - next < to_ring_end ? position - next : to_ring_end;
            status = encode_replay(layer, storage, i, next, n,
                                   layer->slots[i == DSRI_MAIN ? DSRI_SLOT_ENTRIES : DSRI_SLOT_INDEX_ENTRIES]);
            next += n;
        }
    }
    return status;
}

dsr_status dsri_sequence_rebuild_states(dsr_attention *layer, dsri_sequence_storage *storage, uint32_t position)
{
    if (layer->compressors[DSRI_MAIN].dim == 0)
        return DSR_OK;
    dsr_status status = dsr_encoder_reset(layer->rebuild_encoder);
    if (status == DSR_OK)
        status = encode_rebuild(layer, storage, position);
    if (status != DSR_OK)
        return status;
    storage->has_stale_states = 1;
    for (uint32_t i = 0; i < DSRI_N_COMPRESSORS && status == DSR_OK; i++)
        status = fill(storage->buffer, storage->layout.compressors[i].kv_state,
                      layer->compressors[i].state_elements * sizeof(float), 0);
    if (status == DSR_OK)
        status = dsri_write_initial_scores(layer, storage);
    if (status == DSR_OK)
        status = dsr_encoder_submit(layer->rebuild_encoder);
    if (status == DSR_OK)
        status = dsr_encoder_wait(layer->rebuild_encoder);
    storage->has_stale_states = status != DSR_OK;
    return status;
}
