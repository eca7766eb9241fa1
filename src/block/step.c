/* Steps and prefills: a checked step's commands, its memory, its run, and what a failure undoes. */
#include "block/step.h"

#include <string.h>

static int rows_are_consecutive(const dsri_step *s)
{
    for (uint32_t e = 1; e < s->n_entries; e++)
        if (s->first_row[e] != s->first_row[0] + s->first_token[e])
            return 0;
    return 1;
}

static dsr_view caller_rows(const dsri_step *s, dsr_view view)
{
    const uint64_t hidden_size = s->layer->config.hidden_size;
    return dsr_view_slice(view, s->first_row[0] * hidden_size, s->n_tokens * hidden_size);
}

/* Copies rows between the caller's places and consecutive ones. */
static dsr_status encode_row_moves(const dsri_step *s, dsr_view source, dsr_view destination, int gather)
{
    dsr_copy_row rows[DSR_MAX_ROWS];
    memset(rows, 0, sizeof rows);
    for (uint32_t e = 0; e < s->n_entries; e++) {
        rows[e].destination = destination;
        rows[e].source_row = gather ? s->first_row[e] : s->first_token[e];
        rows[e].destination_row = gather ? s->first_token[e] : s->first_row[e];
        rows[e].n_copies = s->n_entry_tokens[e];
    }
    return dsri_step_encode_copy(s, rows, s->n_entries, s->layer->config.hidden_size, source);
}

static dsr_status encode_step(const dsri_step *s)
{
    const uint64_t n_hidden = (uint64_t)s->n_tokens * s->layer->config.hidden_size;
    const int in_place = rows_are_consecutive(s);
    const dsr_view hidden =
        in_place ? caller_rows(s, s->hidden) : dsri_step_slot(s, DSRI_SLOT_HIDDEN, n_hidden, DSR_DTYPE_BF16);
    const dsr_view output =
        in_place ? caller_rows(s, s->output) : dsri_step_slot(s, DSRI_SLOT_OUTPUT, n_hidden, s->output.dtype);
    dsr_status status = in_place ? DSR_OK : encode_row_moves(s, s->hidden, hidden, 1);
    if (status == DSR_OK)
        status = dsri_step_encode_queries(s, hidden);
    if (status == DSR_OK)
        status = dsri_step_encode_window(s, hidden);
    if (status == DSR_OK && s->layer->config.kind != DSR_LAYER_WINDOW)
        status = dsri_step_encode_compressor(s, DSRI_MAIN, hidden);
    if (status == DSR_OK && s->layer->config.kind == DSR_LAYER_RATIO_4)
        status = dsri_step_encode_compressor(s, DSRI_INDEX, hidden);
    if (status == DSR_OK && s->layer->config.kind == DSR_LAYER_RATIO_4)
        status = dsri_step_encode_indexer(s, hidden);
    if (status == DSR_OK)
        status = dsri_step_encode_attention(s);
    if (status == DSR_OK)
        status = dsri_step_encode_output(s, output);
    return status == DSR_OK && !in_place ? encode_row_moves(s, output, s->output, 0) : status;
}

static dsr_status reserve_slots(const dsri_step *s)
{
    const dsr_attention_config *c = &s->layer->config;
    const dsri_layer_compressor *main = &s->layer->compressors[DSRI_MAIN];
    const dsri_layer_compressor *index = &s->layer->compressors[DSRI_INDEX];
    const uint64_t n = s->n_tokens;
    const uint64_t q = n * c->n_heads * DSR_HEAD_DIM;
    const uint64_t index_q = n * c->n_index_heads * DSR_INDEX_DIM;
    const uint64_t n_moved = n * c->hidden_size; /* now, or in a later step of this size whose rows have gaps */
    const struct {
        dsri_slot slot;
        uint64_t n_bytes;
    } needs[] = {
        {DSRI_SLOT_HIDDEN, 2 * n_moved},
        {DSRI_SLOT_OUTPUT, 4 * n_moved},
        {DSRI_SLOT_Q_RESIDUAL_F32, 4 * n * c->q_rank},
        {DSRI_SLOT_Q_RESIDUAL, 2 * n * c->q_rank},
        {DSRI_SLOT_Q_F32, 4 * q},
        {DSRI_SLOT_Q, 2 * q},
        {DSRI_SLOT_KV_F32, 4 * n * DSR_HEAD_DIM},
        {DSRI_SLOT_KV, 2 * n * DSR_HEAD_DIM},
        {DSRI_SLOT_TOKEN_KV, 4 * n * main->n_columns},
        {DSRI_SLOT_TOKEN_SCORE, 4 * n * main->n_columns},
        {DSRI_SLOT_INDEX_TOKEN_KV, 4 * n * index->n_columns},
        {DSRI_SLOT_INDEX_TOKEN_SCORE, 4 * n * index->n_columns},
        {DSRI_SLOT_INDEX_Q_F32, 4 * index_q},
        {DSRI_SLOT_INDEX_Q, 2 * index_q},
        {DSRI_SLOT_INDEX_WEIGHTS, 4 * n * c->n_index_heads},
        {DSRI_SLOT_LISTS, 4 * s->max_list_elements},
        {DSRI_SLOT_ATTENTION, 2 * q},
        {DSRI_SLOT_GROUPED, 2 * n * c->o_groups * c->o_rank},
    };
    dsr_status status = DSR_OK;
    for (uint32_t i = 0; i < sizeof needs / sizeof needs[0] && status == DSR_OK; i++)
        status = dsri_layer_reserve(s->layer, needs[i].slot, needs[i].n_bytes);
    return status;
}

static void advance(dsr_sequence *sequence, uint32_t n_tokens)
{
    sequence->position += n_tokens;
    sequence->max_truncate = (uint32_t)dsri_smaller(sequence->max_truncate + n_tokens, DSR_MAX_TRUNCATE_TOKENS);
}

/* Of a layer that has states at all. */
static void leave_stale_states(dsr_sequence *sequence)
{
    sequence->storage->has_stale_states = sequence->attention->config.kind != DSR_LAYER_WINDOW;
}

/* A run that failed on the way may have written what n_tokens more tokens write: states, and the oldest rows of the
 * ring and of the histories, which only a truncation needs. */
static void break_off(dsr_sequence *sequence, uint32_t n_tokens)
{
    leave_stale_states(sequence);
    sequence->max_truncate = (uint32_t)dsri_smaller(sequence->max_truncate, DSR_MAX_TRUNCATE_TOKENS - n_tokens);
}

/* Puts the entry before the text of a failure with its sequence. */
static dsr_status name_entry(const dsri_step *s, uint32_t entry, dsr_status status)
{
    char text[DSRI_ERROR_TEXT_BYTES];
    if (s->n_entries == 1)
        return status;
    memcpy(text, s->layer->context->error_text, sizeof text);
    return dsri_fail(s->layer->context, status, "decode: entry %u: %s", entry, text);
}

/* From other positions, or from other states than the step began with, a replay would compress other tokens into
 * entries that are looked at. One that runs leaves the states of after the step. */
static const char *prepare_replay(void *of)
{
    const dsr_attention *layer = of;
    for (uint32_t e = 0; e < layer->n_step_sequences; e++) {
        if (layer->step_sequences[e]->position != layer->step_positions[e])
            return "replay of a step: a sequence is not where the step began (truncate it by its tokens of the step)";
        if (layer->step_sequences[e]->storage->has_stale_states)
            return "replay of a step: a sequence has the states of another run (truncate it by 0 tokens)";
    }
    for (uint32_t e = 0; e < layer->n_step_sequences; e++)
        leave_stale_states(layer->step_sequences[e]);
    return NULL;
}

/* Notes where the step's commands begin. Their encoder has lost its memory when one of the sequences is gone. */
static void guard_replays(const dsri_step *s)
{
    dsr_attention *layer = s->layer;
    layer->n_step_sequences = s->n_entries;
    for (uint32_t e = 0; e < s->n_entries; e++) {
        layer->step_sequences[e] = s->sequences[e];
        layer->step_positions[e] = s->sequences[e]->position;
    }
    dsri_encoder_guard_replays(s->encoder, prepare_replay, layer);
}

/* Makes the memory of a step and its commands ready. */
static dsr_status prepare_step(dsri_step *s)
{
    dsr_attention *layer = s->layer;
    dsr_status status = layer->step_encoder == NULL ? dsr_encoder_create(layer->context, &layer->step_encoder)
                                                    : dsr_encoder_reset(layer->step_encoder);
    s->encoder = layer->step_encoder;
    dsri_step_place_lists(s);
    for (uint32_t e = 0; e < s->n_entries && status == DSR_OK; e++) {
        status = dsri_sequence_make_writable(s->sequences[e]);
        if (status != DSR_OK)
            status = name_entry(s, e, status);
    }
    if (status == DSR_OK)
        status = reserve_slots(s);
    if (status == DSR_OK)
        status = dsri_step_write_lists(s);
    if (status == DSR_OK)
        status = encode_step(s);
    if (status != DSR_OK && s->encoder != NULL)
        (void)dsr_encoder_reset(s->encoder);
    return status;
}

/* Runs a checked step; positions move only when all of it is done. */
static dsr_status run_step(dsri_step *s)
{
    dsr_attention *layer = s->layer;
    layer->n_step_tokens = 0;
    dsr_status status = dsri_layer_check_usable(layer);
    if (status == DSR_OK)
        status = prepare_step(s);
    if (status != DSR_OK)
        return status;
    guard_replays(s);
    status = dsr_encoder_submit(s->encoder);
    if (status == DSR_OK)
        status = dsr_encoder_wait(s->encoder);
    for (uint32_t e = 0; e < s->n_entries; e++) {
        if (status == DSR_OK)
            advance(s->sequences[e], s->n_entry_tokens[e]);
        else
            break_off(s->sequences[e], s->n_entry_tokens[e]);
    }
    if (status == DSR_OK)
        layer->n_step_tokens = s->n_tokens;
    else
        (void)dsr_encoder_reset(s->encoder); /* nobody may run the rest, or all of it again */
    return status;
}

dsr_status dsr_attention_decode(dsr_attention *layer, const dsr_step_desc *desc)
{
    dsri_step s;
    if (layer == NULL)
        return DSR_ERR_NULL;
    layer->n_step_tokens = 0;
    memset(&s, 0, sizeof s);
    const dsr_status status = dsri_step_check_decode(&s, layer, desc);
    return status == DSR_OK ? run_step(&s) : status;
}

/* ---- prefill ---------------------------------------------------------------------------------------------- */

static dsr_status run_piece(dsr_attention *layer, dsr_sequence *sequence, uint64_t first_row, uint32_t n_tokens,
                            dsr_view hidden, dsr_view output)
{
    dsri_step s;
    memset(&s, 0, sizeof s);
    s.layer = layer;
    s.hidden = hidden;
    s.output = output;
    s.n_entries = 1;
    s.n_tokens = n_tokens;
    s.sequences[0] = sequence;
    s.n_entry_tokens[0] = n_tokens;
    s.first_row[0] = first_row;
    return run_step(&s);
}

/* What a failed piece could have changed: compressed rows past the position are not looked at. */
static dsr_status back_up(dsr_attention *layer, dsr_sequence *sequence)
{
    dsri_sequence_layout kept;
    dsr_status status = dsri_sequence_make_writable(sequence);
    const dsri_sequence_layout *whole = &sequence->storage->layout; /* its own from here on */
    dsri_ring_layout_of(whole, &kept);
    if (status == DSR_OK)
        status = dsri_layer_reserve(layer, DSRI_SLOT_BACKUP, kept.size_bytes);
    if (status == DSR_OK)
        status = dsri_copy_states_and_rows(layer->slots[DSRI_SLOT_BACKUP], &kept, sequence->storage->buffer, whole,
                                           DSRI_RING_ROWS);
    return status;
}

static dsr_status restore(dsr_attention *layer, dsr_sequence *sequence)
{
    const dsri_sequence_layout *whole = &sequence->storage->layout;
    dsri_sequence_layout kept;
    dsri_ring_layout_of(whole, &kept);
    return dsri_copy_states_and_rows(sequence->storage->buffer, whole, layer->slots[DSRI_SLOT_BACKUP], &kept,
                                     DSRI_RING_ROWS);
}

dsr_status dsr_attention_prefill(dsr_attention *layer, dsr_sequence *sequence, uint64_t n_tokens, dsr_view hidden,
                                 dsr_view output)
{
    if (layer == NULL)
        return DSR_ERR_NULL;
    layer->n_step_tokens = 0;
    dsr_status status = dsri_step_check_prefill(layer, sequence, n_tokens, &hidden, &output);
    if (status == DSR_OK)
        status = dsri_layer_check_usable(layer);
    const int in_pieces = n_tokens > DSR_MAX_STEP_TOKENS;
    if (status == DSR_OK && in_pieces)
        status = back_up(layer, sequence);
    if (status != DSR_OK)
        return status;
    const uint32_t position = sequence->position;
    const uint32_t max_truncate = sequence->max_truncate;
    for (uint64_t done = 0; done < n_tokens && status == DSR_OK; done += DSR_MAX_STEP_TOKENS)
        status = run_piece(layer, sequence, done, (uint32_t)dsri_smaller(n_tokens - done, DSR_MAX_STEP_TOKENS), hidden,
                           output);
    if (status != DSR_OK && in_pieces) {
        sequence->position = position;
        sequence->max_truncate = max_truncate;
        sequence->storage->has_stale_states = restore(layer, sequence) != DSR_OK;
    }
    return status;
}
