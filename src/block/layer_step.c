/* One step of an attention layer: the tokens of several sequences, encoded as one list of commands and run. */
#include "block/layer.h"

#include <stdio.h>
#include <string.h>

/* A checked step. Tokens are numbered through in entry order: token `first_token[e] + i` is entry e's i-th. */
typedef struct step {
    dsr_attention *layer;
    dsr_encoder *encoder;
    uint32_t n_entries;
    uint32_t n_tokens;
    dsr_sequence *sequences[DSR_MAX_ROWS];
    uint32_t n_entry_tokens[DSR_MAX_ROWS];
    uint32_t first_token[DSR_MAX_ROWS];
    uint64_t first_row[DSR_MAX_ROWS];
    dsr_view hidden; /* the caller's */
    dsr_view output;
    uint64_t list_offset[DSR_MAX_STEP_TOKENS]; /* of each token's attended rows, in elements */
    uint32_t list_width[DSR_MAX_STEP_TOKENS];
    uint64_t n_list_elements;
    uint64_t max_list_elements; /* with every sequence at the end of its room */
} step;

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static dsr_view slot_view(const step *s, dsri_slot slot, uint64_t n_elements, dsr_dtype dtype)
{
    return (dsr_view){s->layer->slots[slot], 0, n_elements * dsr_dtype_size(dtype), dtype};
}

static uint32_t position_of(const step *s, uint32_t entry)
{
    return s->sequences[entry]->position;
}

/* Compressed entries a token at `position` sees. */
static uint32_t visible_entries(const dsr_attention *layer, uint32_t position)
{
    const uint32_t ratio = dsri_layer_ratio(layer);
    return ratio ? (position + 1) / ratio : 0;
}

static uint32_t attended_entries(const dsr_attention *layer, uint32_t position)
{
    const uint32_t n = visible_entries(layer, position);
    return layer->config.kind == DSR_LAYER_RATIO_4 ? (uint32_t)smaller(n, layer->config.top_k) : n;
}

/* Entries that the last token of a sequence's room attends to. */
static uint32_t most_attended_entries(const step *s, uint32_t entry)
{
    return attended_entries(s->layer, s->sequences[entry]->storage->max_context - 1);
}

/* The chunked form pays for wide lists of selected rows. A function of the token's position alone. */
static int uses_chunks(const dsr_attention *layer, uint32_t position)
{
    const uint32_t n_window = (uint32_t)smaller(position + 1u, DSR_WINDOW);
    return layer->config.kind == DSR_LAYER_RATIO_4 && n_window + attended_entries(layer, position) >= 384;
}

static uint32_t emitted_by(const step *s, uint32_t entry)
{
    return dsr_compressor_emitted(dsri_layer_ratio(s->layer), position_of(s, entry), s->n_entry_tokens[entry]);
}

/* ---- queries and window ----------------------------------------------------------------------------------- */

static dsr_status norm(const step *s, dsr_view input, dsr_buffer *weight, uint64_t n_vectors, uint32_t dim,
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

/* Rotates [tokens, n_heads, head_dim] at the tokens' positions. */
static dsr_status rotate(const step *s, dsr_view input, uint32_t n_heads, uint32_t head_dim, int inverse,
                         dsr_view output)
{
    dsr_rope_row rows[DSR_MAX_ROWS];
    memset(rows, 0, sizeof rows);
    for (uint32_t e = 0; e < s->n_entries; e++) {
        rows[e].row = s->first_token[e];
        rows[e].start_pos = position_of(s, e);
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

static dsr_status quantise(const step *s, dsr_quant_kind kind, dsr_view values, uint64_t n_vectors, uint32_t dim)
{
    dsr_fake_quant_desc desc = DSR_FAKE_QUANT_DESC_INIT;
    desc.kind = kind;
    desc.n_vectors = n_vectors;
    desc.dim = dim;
    desc.input = values;
    desc.output = values;
    return dsr_encode_fake_quant(s->encoder, &desc);
}

/* q = rope(head_norm(q_b . q_norm(q_a . x))); the normed q_a output also feeds the index queries. */
static dsr_status encode_queries(const step *s, dsr_view hidden)
{
    const dsr_attention_config *c = &s->layer->config;
    const uint64_t n_q = (uint64_t)s->n_tokens * c->n_heads * DSR_HEAD_DIM;
    const uint64_t n_residual = (uint64_t)s->n_tokens * c->q_rank;
    const dsr_view residual_f32 = slot_view(s, DSRI_SLOT_Q_RESIDUAL_F32, n_residual, DSR_DTYPE_F32);
    const dsr_view residual = slot_view(s, DSRI_SLOT_Q_RESIDUAL, n_residual, DSR_DTYPE_BF16);
    const dsr_view q_f32 = slot_view(s, DSRI_SLOT_Q_F32, n_q, DSR_DTYPE_F32);
    const dsr_view q = slot_view(s, DSRI_SLOT_Q, n_q, DSR_DTYPE_BF16);
    dsr_status status = dsri_layer_project(s->layer, s->encoder, DSRI_WEIGHT_Q_A, s->n_tokens, hidden, residual_f32);
    if (status == DSR_OK)
        status = norm(s, residual_f32, s->layer->q_norm, s->n_tokens, c->q_rank, residual);
    if (status == DSR_OK)
        status = dsri_layer_project(s->layer, s->encoder, DSRI_WEIGHT_Q_B, s->n_tokens, residual, q_f32);
    if (status == DSR_OK)
        status = norm(s, q_f32, NULL, (uint64_t)s->n_tokens * c->n_heads, DSR_HEAD_DIM, q_f32);
    return status == DSR_OK ? rotate(s, q_f32, c->n_heads, DSR_HEAD_DIM, 0, q) : status;
}

/* Copies `source` rows into a ring of every sequence, by position. */
static dsr_status copy_to_rings(const step *s, dsr_view source, uint64_t row_elements, const uint64_t *byte_offsets,
                                uint64_t ring_rows)
{
    dsr_copy_row rows[DSR_MAX_ROWS];
    memset(rows, 0, sizeof rows);
    for (uint32_t e = 0; e < s->n_entries; e++) {
        rows[e].destination =
            dsri_sequence_view(s->sequences[e], byte_offsets[e], ring_rows * row_elements, source.dtype);
        rows[e].source_row = s->first_token[e];
        rows[e].destination_row = position_of(s, e) % ring_rows;
        rows[e].ring_rows = ring_rows;
        rows[e].n_copies = s->n_entry_tokens[e];
    }
    dsr_copy_desc desc = DSR_COPY_DESC_INIT;
    desc.n_rows = s->n_entries;
    desc.rows = rows;
    desc.row_elements = row_elements;
    desc.source = source;
    return dsr_encode_copy(s->encoder, &desc);
}

/* Rows of a step for the caches of some of its sequences: each goes to entries of that sequence's cache. */
typedef struct cache_rows {
    uint32_t n;
    uint32_t sequences[DSR_MAX_ROWS]; /* their numbers in the step */
    dsr_append_row rows[DSR_MAX_ROWS];
} cache_rows;

static const dsri_sequence_cache *cache_of(const step *s, uint32_t entry, uint32_t dim)
{
    const dsri_sequence_layout *l = &s->sequences[entry]->storage->layout;
    return dim == DSR_HEAD_DIM ? &l->kv : &l->keys;
}

static dsr_status append_rows(const step *s, cache_rows *to, dsr_view values, uint32_t dim)
{
    for (uint32_t i = 0; i < to->n; i++) {
        const dsri_sequence_cache *cache = cache_of(s, to->sequences[i], dim);
        to->rows[i].cache = dsri_sequence_cache_view(s->sequences[to->sequences[i]], cache);
        to->rows[i].cache_layout = dsri_sequence_cache_layout(cache);
        to->rows[i].n_entries = cache->n_entries;
    }
    dsr_append_desc desc = DSR_APPEND_DESC_INIT;
    desc.n_rows = to->n;
    desc.rows = to->rows;
    desc.dim = dim;
    desc.source = values;
    return dsr_encode_append(s->encoder, &desc);
}

static dsr_status copy_rows(const step *s, const cache_rows *to, dsr_view values, uint32_t dim)
{
    dsr_copy_row rows[DSR_MAX_ROWS];
    memset(rows, 0, sizeof rows);
    for (uint32_t i = 0; i < to->n; i++) {
        const dsri_sequence_cache *cache = cache_of(s, to->sequences[i], dim);
        rows[i].destination = dsri_sequence_cache_view(s->sequences[to->sequences[i]], cache);
        rows[i].source_row = to->rows[i].source_row;
        rows[i].destination_row = to->rows[i].first_entry;
        rows[i].ring_rows = to->rows[i].ring_entries;
        rows[i].n_copies = to->rows[i].n_tokens;
    }
    dsr_copy_desc desc = DSR_COPY_DESC_INIT;
    desc.n_rows = to->n;
    desc.rows = rows;
    desc.row_elements = dim;
    desc.source = values;
    return dsr_encode_copy(s->encoder, &desc);
}

/* Rounds n_vectors rotated KV rows (dim 512) or index keys (dim 128) as the caches do, in place if at all, and stores
 * them. */
static dsr_status store(const step *s, cache_rows *to, dsr_view values, uint64_t n_vectors, uint32_t dim)
{
    dsr_status status = DSR_OK;
    if (s->layer->config.cache == DSR_CACHE_PACKED)
        return append_rows(s, to, values, dim);
    if (s->layer->config.cache == DSR_CACHE_OFFICIAL)
        status = quantise(s, dim == DSR_HEAD_DIM ? DSR_QUANT_FP8_BLOCK64 : DSR_QUANT_HADAMARD_FP4_BLOCK32, values,
                          n_vectors, dim);
    return status == DSR_OK ? copy_rows(s, to, values, dim) : status;
}

static dsr_status encode_window(const step *s, dsr_view hidden)
{
    const uint64_t n_kv = (uint64_t)s->n_tokens * DSR_HEAD_DIM;
    const dsr_view kv_f32 = slot_view(s, DSRI_SLOT_KV_F32, n_kv, DSR_DTYPE_F32);
    const dsr_view kv = slot_view(s, DSRI_SLOT_KV, n_kv, DSR_DTYPE_BF16);
    cache_rows rows;
    memset(&rows, 0, sizeof rows);
    rows.n = s->n_entries;
    for (uint32_t e = 0; e < s->n_entries; e++) {
        rows.sequences[e] = e;
        rows.rows[e].first_entry = position_of(s, e) % DSRI_RING_ROWS;
        rows.rows[e].ring_entries = DSRI_RING_ROWS;
        rows.rows[e].source_row = s->first_token[e];
        rows.rows[e].n_tokens = s->n_entry_tokens[e];
    }
    dsr_status status = dsri_layer_project(s->layer, s->encoder, DSRI_WEIGHT_KV, s->n_tokens, hidden, kv_f32);
    if (status == DSR_OK)
        status = norm(s, kv_f32, s->layer->kv_norm, s->n_tokens, DSR_HEAD_DIM, kv_f32);
    if (status == DSR_OK)
        status = rotate(s, kv_f32, 1, DSR_HEAD_DIM, 0, kv);
    return status == DSR_OK ? store(s, &rows, kv, s->n_tokens, DSR_HEAD_DIM) : status;
}

/* ---- compressors ------------------------------------------------------------------------------------------ */

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

/* Projected kv and score of the tokens, kept in the histories too. */
static dsr_status encode_token_values(const step *s, uint32_t which, dsr_view hidden, dsr_view kv, dsr_view score)
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

static dsr_status encode_compressor_rows(const step *s, dsr_compressor_desc *desc, const dsr_compressor_row *rows)
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
static dsr_status encode_entries(const step *s, uint32_t which, dsr_view entries, const uint64_t *entry_rows,
                                 uint64_t n_entry_rows)
{
    const dsri_layer_compressor *c = &s->layer->compressors[which];
    const uint32_t ratio = dsri_layer_ratio(s->layer);
    dsr_rope_row rope_rows[DSR_MAX_ROWS];
    cache_rows to;
    memset(rope_rows, 0, sizeof rope_rows);
    memset(&to, 0, sizeof to);
    for (uint32_t e = 0; e < s->n_entries; e++) {
        const uint32_t n_emitted = emitted_by(s, e);
        const uint32_t group = position_of(s, e) / ratio;
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
    return status == DSR_OK ? store(s, &to, entries, n_entry_rows, c->dim) : status;
}

static dsr_status encode_compressor(const step *s, uint32_t which, dsr_view hidden)
{
    const dsri_layer_compressor *c = &s->layer->compressors[which];
    const uint64_t n_values = (uint64_t)s->n_tokens * c->n_columns;
    const dsr_view kv = slot_view(s, slots_of[which].kv, n_values, DSR_DTYPE_F32);
    const dsr_view score = slot_view(s, slots_of[which].score, n_values, DSR_DTYPE_F32);
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
        rows[e].start_pos = position_of(s, e);
        rows[e].n_tokens = s->n_entry_tokens[e];
    }
    const dsr_view entries = slot_view(s, slots_of[which].entries, n_entry_rows * c->dim, DSR_DTYPE_BF16);
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

/* ---- indexer and lists ------------------------------------------------------------------------------------ */

/* Elements between the lists of a sequence's tokens, of which the last stands at `position`. */
static uint64_t list_stride(const dsr_attention *layer, uint32_t position)
{
    return DSR_WINDOW +
           (layer->config.kind == DSR_LAYER_RATIO_4 ? layer->config.top_k : attended_entries(layer, position));
}

/* Places every token's list: 128 window slots, then room for the entries it attends to. */
static void place_lists(step *s)
{
    const dsr_attention *layer = s->layer;
    s->n_list_elements = 0;
    s->max_list_elements = 0;
    for (uint32_t e = 0; e < s->n_entries; e++) {
        const uint32_t last = position_of(s, e) + s->n_entry_tokens[e] - 1;
        const uint64_t stride = list_stride(layer, last);
        for (uint32_t i = 0; i < s->n_entry_tokens[e]; i++) {
            const uint32_t token = s->first_token[e] + i;
            s->list_offset[token] = s->n_list_elements;
            s->list_width[token] = DSR_WINDOW + attended_entries(layer, position_of(s, e) + i);
            s->n_list_elements += stride;
        }
        s->max_list_elements += s->n_entry_tokens[e] * list_stride(layer, s->sequences[e]->storage->max_context - 1);
    }
}

/* Window rows oldest to newest, then -1; then, for ratio 128, every visible entry. */
static void fill_list(const dsr_attention *layer, uint32_t position, int32_t *list)
{
    const uint32_t n_window = (uint32_t)smaller(position + 1u, DSR_WINDOW);
    for (uint32_t i = 0; i < DSR_WINDOW; i++)
        list[i] = i < n_window ? (int32_t)((position + 1 - n_window + i) % DSRI_RING_ROWS) : -1;
    if (layer->config.kind == DSR_LAYER_RATIO_128)
        for (uint32_t g = 0; g < visible_entries(layer, position); g++)
            list[DSR_WINDOW + g] = (int32_t)(DSRI_RING_ROWS + g);
}

static dsr_status write_lists(const step *s)
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
            fill_list(layer, position_of(s, e) + i, layer->lists + s->list_offset[s->first_token[e] + i]);
    return dsr_buffer_write(layer->slots[DSRI_SLOT_LISTS], 0, layer->lists, n_bytes);
}

static dsr_status encode_index_queries(const step *s, dsr_view hidden, dsr_view q, dsr_view weights)
{
    const dsr_attention_config *c = &s->layer->config;
    const uint64_t n_q = (uint64_t)s->n_tokens * c->n_index_heads * DSR_INDEX_DIM;
    const dsr_view residual = slot_view(s, DSRI_SLOT_Q_RESIDUAL, (uint64_t)s->n_tokens * c->q_rank, DSR_DTYPE_BF16);
    const dsr_view q_f32 = slot_view(s, DSRI_SLOT_INDEX_Q_F32, n_q, DSR_DTYPE_F32);
    dsr_status status = dsri_layer_project(s->layer, s->encoder, DSRI_WEIGHT_INDEX_Q, s->n_tokens, residual, q_f32);
    if (status == DSR_OK)
        status = rotate(s, q_f32, c->n_index_heads, DSR_INDEX_DIM, 0, q);
    if (status == DSR_OK && c->cache != DSR_CACHE_BF16)
        status =
            quantise(s, DSR_QUANT_HADAMARD_FP4_BLOCK32, q, (uint64_t)s->n_tokens * c->n_index_heads, DSR_INDEX_DIM);
    if (status == DSR_OK)
        status = dsri_layer_project(s->layer, s->encoder, DSRI_WEIGHT_INDEX_WEIGHTS, s->n_tokens, hidden, weights);
    return status;
}

/* Enough for every sequence at the end of its room, so that later steps need no more. */
static dsr_status reserve_indexer_workspace(const step *s, const dsr_indexer_desc *desc)
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

static dsr_status encode_indexer(const step *s, dsr_view hidden)
{
    dsr_attention *layer = s->layer;
    const dsr_attention_config *c = &layer->config;
    dsr_indexer_row rows[DSR_MAX_ROWS];
    memset(rows, 0, sizeof rows);
    for (uint32_t e = 0; e < s->n_entries; e++) {
        const dsri_sequence_cache *keys = &s->sequences[e]->storage->layout.keys;
        const uint32_t n_keys = visible_entries(layer, position_of(s, e) + s->n_entry_tokens[e] - 1);
        rows[e].kv_len = n_keys ? n_keys : 1;
        rows[e].keys = dsri_sequence_cache_view(s->sequences[e], keys);
        rows[e].key_layout = dsri_sequence_cache_layout(keys);
        rows[e].q_row = s->first_token[e];
        rows[e].output_offset = s->list_offset[s->first_token[e]] + DSR_WINDOW;
        rows[e].output_stride = DSR_WINDOW + c->top_k;
        rows[e].start_pos = position_of(s, e);
        rows[e].ratio = dsri_layer_ratio(layer);
        rows[e].offset = DSRI_RING_ROWS;
        rows[e].n_queries = s->n_entry_tokens[e];
    }
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    desc.n_rows = s->n_entries;
    desc.rows = rows;
    desc.n_heads = c->n_index_heads;
    desc.top_k = c->top_k;
    desc.q = slot_view(s, DSRI_SLOT_INDEX_Q, (uint64_t)s->n_tokens * c->n_index_heads * DSR_INDEX_DIM, DSR_DTYPE_BF16);
    desc.weights = slot_view(s, DSRI_SLOT_INDEX_WEIGHTS, (uint64_t)s->n_tokens * c->n_index_heads, DSR_DTYPE_F32);
    desc.output = slot_view(s, DSRI_SLOT_LISTS, s->n_list_elements, DSR_DTYPE_I32);
    dsr_status status = reserve_indexer_workspace(s, &desc);
    if (status == DSR_OK)
        status = encode_index_queries(s, hidden, desc.q, desc.weights);
    desc.workspace = dsr_view_whole(layer->slots[DSRI_SLOT_INDEX_WORKSPACE], DSR_DTYPE_U8);
    return status == DSR_OK ? dsr_encode_indexer(s->encoder, &desc) : status;
}

/* ---- attention and output --------------------------------------------------------------------------------- */

typedef struct attention_call {
    dsr_attention_desc desc;
    dsr_attention_row rows[DSR_MAX_ROWS];
    uint64_t workspace_bytes;
} attention_call;

static void list_attention_rows(const step *s, int chunked, attention_call *call)
{
    const dsr_attention_config *c = &s->layer->config;
    const uint64_t n_q = (uint64_t)s->n_tokens * c->n_heads * DSR_HEAD_DIM;
    call->desc = (dsr_attention_desc)DSR_ATTENTION_DESC_INIT;
    call->desc.rows = call->rows;
    call->desc.n_heads = c->n_heads;
    call->desc.scale = c->scale;
    call->desc.q = slot_view(s, DSRI_SLOT_Q, n_q, DSR_DTYPE_BF16);
    call->desc.indices = slot_view(s, DSRI_SLOT_LISTS, s->n_list_elements, DSR_DTYPE_I32);
    call->desc.sinks = dsr_view_whole(s->layer->sinks, DSR_DTYPE_F32);
    call->desc.output = slot_view(s, DSRI_SLOT_ATTENTION, n_q, DSR_DTYPE_BF16);
    for (uint32_t e = 0; e < s->n_entries; e++) {
        const dsri_sequence_cache *kv = &s->sequences[e]->storage->layout.kv;
        for (uint32_t i = 0; i < s->n_entry_tokens[e]; i++) {
            const uint32_t token = s->first_token[e] + i;
            const uint32_t position = position_of(s, e) + i;
            if (uses_chunks(s->layer, position) != chunked)
                continue;
            dsr_attention_row *row = &call->rows[call->desc.n_rows++];
            memset(row, 0, sizeof *row);
            row->kv_len = DSRI_RING_ROWS + visible_entries(s->layer, position);
            row->kv = dsri_sequence_cache_view(s->sequences[e], kv);
            row->kv_layout = dsri_sequence_cache_layout(kv);
            row->q_row = token;
            row->index_offset = s->list_offset[token];
            row->width = s->list_width[token];
        }
    }
}

static dsr_status attention_workspace(const step *s, int chunked, attention_call *call)
{
    call->workspace_bytes = 0;
    if (call->desc.n_rows == 0)
        return DSR_OK;
    return chunked ? dsr_flash_attention_workspace(s->layer->context, &call->desc, &call->workspace_bytes)
                   : dsr_sparse_attention_workspace(s->layer->context, &call->desc, &call->workspace_bytes);
}

/* At least n_bytes, and enough for every sequence at the end of its room, so that later steps need no more. */
static dsr_status reserve_attention_workspace(const step *s, uint64_t n_bytes)
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
static dsr_status encode_attention(const step *s)
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

static dsr_status encode_output(const step *s, dsr_view output)
{
    const dsr_attention_config *c = &s->layer->config;
    const dsr_view attention =
        slot_view(s, DSRI_SLOT_ATTENTION, (uint64_t)s->n_tokens * c->n_heads * DSR_HEAD_DIM, DSR_DTYPE_BF16);
    const dsr_view grouped =
        slot_view(s, DSRI_SLOT_GROUPED, (uint64_t)s->n_tokens * c->o_groups * c->o_rank, DSR_DTYPE_BF16);
    dsr_status status = rotate(s, attention, c->n_heads, DSR_HEAD_DIM, 1, attention);
    if (status == DSR_OK)
        status = dsri_layer_project(s->layer, s->encoder, DSRI_WEIGHT_O_A, s->n_tokens, attention, grouped);
    if (status == DSR_OK)
        status = dsri_layer_project(s->layer, s->encoder, DSRI_WEIGHT_O_B, s->n_tokens, grouped, output);
    return status;
}

/* ---- the whole step --------------------------------------------------------------------------------------- */

static int rows_are_consecutive(const step *s)
{
    for (uint32_t e = 1; e < s->n_entries; e++)
        if (s->first_row[e] != s->first_row[0] + s->first_token[e])
            return 0;
    return 1;
}

static dsr_view caller_rows(const step *s, dsr_view view)
{
    const uint64_t hidden_size = s->layer->config.hidden_size;
    return dsr_view_slice(view, s->first_row[0] * hidden_size, s->n_tokens * hidden_size);
}

/* Copies rows between the caller's places and consecutive ones. */
static dsr_status encode_row_moves(const step *s, dsr_view source, dsr_view destination, int gather)
{
    dsr_copy_row rows[DSR_MAX_ROWS];
    memset(rows, 0, sizeof rows);
    for (uint32_t e = 0; e < s->n_entries; e++) {
        rows[e].destination = destination;
        rows[e].source_row = gather ? s->first_row[e] : s->first_token[e];
        rows[e].destination_row = gather ? s->first_token[e] : s->first_row[e];
        rows[e].n_copies = s->n_entry_tokens[e];
    }
    dsr_copy_desc desc = DSR_COPY_DESC_INIT;
    desc.n_rows = s->n_entries;
    desc.rows = rows;
    desc.row_elements = s->layer->config.hidden_size;
    desc.source = source;
    return dsr_encode_copy(s->encoder, &desc);
}

static dsr_status encode_step(const step *s)
{
    const uint64_t n_hidden = (uint64_t)s->n_tokens * s->layer->config.hidden_size;
    const int in_place = rows_are_consecutive(s);
    const dsr_view hidden =
        in_place ? caller_rows(s, s->hidden) : slot_view(s, DSRI_SLOT_HIDDEN, n_hidden, DSR_DTYPE_BF16);
    const dsr_view output =
        in_place ? caller_rows(s, s->output) : slot_view(s, DSRI_SLOT_OUTPUT, n_hidden, s->output.dtype);
    dsr_status status = in_place ? DSR_OK : encode_row_moves(s, s->hidden, hidden, 1);
    if (status == DSR_OK)
        status = encode_queries(s, hidden);
    if (status == DSR_OK)
        status = encode_window(s, hidden);
    if (status == DSR_OK && s->layer->config.kind != DSR_LAYER_WINDOW)
        status = encode_compressor(s, DSRI_MAIN, hidden);
    if (status == DSR_OK && s->layer->config.kind == DSR_LAYER_RATIO_4)
        status = encode_compressor(s, DSRI_INDEX, hidden);
    if (status == DSR_OK && s->layer->config.kind == DSR_LAYER_RATIO_4)
        status = encode_indexer(s, hidden);
    if (status == DSR_OK)
        status = encode_attention(s);
    if (status == DSR_OK)
        status = encode_output(s, output);
    return status == DSR_OK && !in_place ? encode_row_moves(s, output, s->output, 0) : status;
}

static dsr_status reserve_slots(const step *s)
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
    sequence->max_truncate = (uint32_t)smaller(sequence->max_truncate + n_tokens, DSR_MAX_TRUNCATE_TOKENS);
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
    sequence->max_truncate = (uint32_t)smaller(sequence->max_truncate, DSR_MAX_TRUNCATE_TOKENS - n_tokens);
}

/* Puts the entry before the text of a failure with its sequence. */
static dsr_status name_entry(const step *s, uint32_t entry, dsr_status status)
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
static void guard_replays(const step *s)
{
    dsr_attention *layer = s->layer;
    layer->n_step_sequences = s->n_entries;
    for (uint32_t e = 0; e < s->n_entries; e++) {
        layer->step_sequences[e] = s->sequences[e];
        layer->step_positions[e] = s->sequences[e]->position;
    }
    dsri_encoder_guard_replays(s->encoder, prepare_replay, layer);
}

/* Encodes and runs a checked step; positions move only when all of it is done. */
static dsr_status run_step(step *s)
{
    dsr_attention *layer = s->layer;
    layer->n_step_tokens = 0;
    dsr_status status = dsri_layer_check_usable(layer);
    if (status != DSR_OK)
        return status;
    if (layer->step_encoder == NULL)
        status = dsr_encoder_create(layer->context, &layer->step_encoder);
    else
        status = dsr_encoder_reset(layer->step_encoder);
    s->encoder = layer->step_encoder;
    place_lists(s);
    for (uint32_t e = 0; e < s->n_entries && status == DSR_OK; e++) {
        status = dsri_sequence_make_writable(s->sequences[e]);
        if (status != DSR_OK)
            status = name_entry(s, e, status);
    }
    if (status == DSR_OK)
        status = reserve_slots(s);
    if (status == DSR_OK)
        status = write_lists(s);
    if (status == DSR_OK)
        status = encode_step(s);
    if (status != DSR_OK) {
        if (s->encoder != NULL)
            (void)dsr_encoder_reset(s->encoder);
        return status;
    }
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
    return status;
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

/* ---- checks ----------------------------------------------------------------------------------------------- */

/* A decode step, or a prefill. */
typedef struct call {
    dsr_context *context;
    int is_prefill;
    uint32_t entry;  /* of a step: whose rows end last */
    uint64_t n_rows; /* needed of hidden and output */
    uint64_t hidden_size;
} call;

/* What a message begins with: "prefill", or "decode: entry 3". */
typedef struct place {
    char text[32];
} place;

static place place_of(const call *c, uint32_t entry)
{
    place p = {"prefill"};
    if (!c->is_prefill)
        snprintf(p.text, sizeof p.text, "decode: entry %u", entry);
    return p;
}

static dsr_status check_rows(const call *c, const char *field, const dsr_view *view, unsigned char **address)
{
    const uint64_t needed = c->n_rows * c->hidden_size * dsr_dtype_size(view->dtype);
    char what[32];
    void *begin;
    snprintf(what, sizeof what, "%s: %s", c->is_prefill ? "prefill" : "decode", field);
    const dsr_status status = dsri_view_address(c->context, view, what, &begin);
    if (status != DSR_OK)
        return status;
    if (view->byte_length < needed)
        return dsri_fail(c->context, DSR_ERR_SIZE, "%s: %s holds %llu bytes, needs %llu up to row %llu",
                         place_of(c, c->entry).text, field, (unsigned long long)view->byte_length,
                         (unsigned long long)needed, (unsigned long long)(c->n_rows - 1));
    *address = begin;
    return DSR_OK;
}

static dsr_status check_given(const call *c, const char *field, const dsr_view *view)
{
    if (view->buffer != NULL)
        return DSR_OK;
    return dsri_fail(c->context, DSR_ERR_NULL, "%s: %s is null", c->is_prefill ? "prefill" : "decode", field);
}

static dsr_status check_memory(const call *c, const dsr_view *hidden, const dsr_view *output)
{
    const char *op = c->is_prefill ? "prefill" : "decode";
    dsr_status status = check_given(c, "hidden", hidden);
    if (status == DSR_OK)
        status = check_given(c, "output", output);
    if (status != DSR_OK)
        return status;
    if (hidden->dtype != DSR_DTYPE_BF16)
        return dsri_fail(c->context, DSR_ERR_DTYPE, "%s: hidden must be bf16, got %s", op,
                         dsr_dtype_name(hidden->dtype));
    if (output->dtype != DSR_DTYPE_F32 && output->dtype != DSR_DTYPE_BF16)
        return dsri_fail(c->context, DSR_ERR_DTYPE, "%s: output must be f32 or bf16, got %s", op,
                         dsr_dtype_name(output->dtype));
    unsigned char *in, *out;
    status = check_rows(c, "hidden", hidden, &in);
    if (status == DSR_OK)
        status = check_rows(c, "output", output, &out);
    if (status != DSR_OK)
        return status;
    const uint64_t in_bytes = c->n_rows * c->hidden_size * 2;
    const uint64_t out_bytes = c->n_rows * c->hidden_size * dsr_dtype_size(output->dtype);
    if (in < out + out_bytes && out < in + in_bytes)
        return dsri_fail(c->context, DSR_ERR_OVERLAP, "%s: hidden and output overlap", op);
    return DSR_OK;
}

static dsr_status check_room(const call *c, uint32_t entry, const dsr_sequence *sequence, uint64_t n_tokens)
{
    if (n_tokens > sequence->storage->max_context - sequence->position)
        return dsri_fail(
            c->context, DSR_ERR_FULL, "%s: the sequence holds %u of at most %u tokens, %llu more do not fit",
            place_of(c, entry).text, sequence->position, sequence->storage->max_context, (unsigned long long)n_tokens);
    return DSR_OK;
}

static dsr_status check_entry(const call *c, step *s, uint32_t e, const dsr_step_entry *entry)
{
    dsr_context *context = s->layer->context;
    const uint32_t n_tokens = entry->n_tokens ? entry->n_tokens : 1;
    if (entry->sequence == NULL)
        return dsri_fail(context, DSR_ERR_NULL, "decode: entry %u: sequence is null", e);
    if (entry->sequence->attention != s->layer)
        return dsri_fail(context, DSR_ERR_CONTEXT_MISMATCH, "decode: entry %u: the sequence is of another layer", e);
    if (n_tokens > DSR_MAX_DRAFT_TOKENS)
        return dsri_fail(context, DSR_ERR_VALUE, "decode: entry %u: n_tokens must be in 1..=8, got %u", e, n_tokens);
    if (entry->first_row > UINT32_MAX)
        return dsri_fail(context, DSR_ERR_OVERFLOW, "decode: entry %u: first_row %llu exceeds u32", e,
                         (unsigned long long)entry->first_row);
    for (uint32_t other = 0; other < e; other++) {
        if (s->sequences[other] == entry->sequence)
            return dsri_fail(context, DSR_ERR_DUPLICATE_ROW, "decode: entry %u: its sequence is entry %u's too", e,
                             other);
        if (entry->first_row < s->first_row[other] + s->n_entry_tokens[other] &&
            s->first_row[other] < entry->first_row + n_tokens)
            return dsri_fail(context, DSR_ERR_OVERLAP, "decode: entries %u and %u share rows", other, e);
    }
    if (s->n_tokens + n_tokens > DSR_MAX_STEP_TOKENS)
        return dsri_fail(context, DSR_ERR_ROW_COUNT, "decode: entry %u: more than 64 tokens in one step", e);
    const dsr_status status = check_room(c, e, entry->sequence, n_tokens);
    if (status != DSR_OK)
        return status;
    s->sequences[e] = entry->sequence;
    s->n_entry_tokens[e] = n_tokens;
    s->first_token[e] = s->n_tokens;
    s->first_row[e] = entry->first_row;
    s->n_entries = e + 1;
    s->n_tokens += n_tokens;
    return DSR_OK;
}

dsr_status dsr_attention_decode(dsr_attention *layer, const dsr_step_desc *desc)
{
    if (layer == NULL)
        return DSR_ERR_NULL;
    dsr_context *context = layer->context;
    layer->n_step_tokens = 0;
    if (desc == NULL || desc->entries == NULL)
        return dsri_fail(context, DSR_ERR_NULL, "decode: %s is null", desc == NULL ? "desc" : "entries");
    if (desc->struct_size != sizeof *desc)
        return dsri_fail(context, DSR_ERR_STRUCT_SIZE, "decode: struct_size is %u, this library knows %zu",
                         desc->struct_size, sizeof *desc);
    if (desc->n_entries == 0 || desc->n_entries > DSR_MAX_ROWS)
        return dsri_fail(context, DSR_ERR_ROW_COUNT, "decode: entries must be 1..=64, got %u", desc->n_entries);
    step s;
    memset(&s, 0, sizeof s);
    s.layer = layer;
    s.hidden = desc->hidden;
    s.output = desc->output;
    call c = {.context = context, .hidden_size = layer->config.hidden_size};
    for (uint32_t e = 0; e < desc->n_entries; e++) {
        const dsr_status status = check_entry(&c, &s, e, &desc->entries[e]);
        if (status != DSR_OK)
            return status;
        const uint64_t end = s.first_row[e] + s.n_entry_tokens[e];
        if (end > c.n_rows) {
            c.n_rows = end;
            c.entry = e;
        }
    }
    const dsr_status status = check_memory(&c, &desc->hidden, &desc->output);
    return status == DSR_OK ? run_step(&s) : status;
}

/* ---- prefill ---------------------------------------------------------------------------------------------- */

static dsr_status run_piece(dsr_attention *layer, dsr_sequence *sequence, uint64_t first_row, uint32_t n_tokens,
                            dsr_view hidden, dsr_view output)
{
    step s;
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
    const dsri_sequence_layout *whole = &sequence->storage->layout;
    dsri_sequence_layout kept;
    dsri_ring_layout_of(whole, &kept);
    dsr_status status = dsri_sequence_make_writable(sequence);
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
    dsr_context *context = layer->context;
    layer->n_step_tokens = 0;
    if (sequence == NULL)
        return dsri_fail(context, DSR_ERR_NULL, "prefill: sequence is null");
    if (sequence->attention != layer)
        return dsri_fail(context, DSR_ERR_CONTEXT_MISMATCH, "prefill: the sequence is of another layer");
    if (n_tokens == 0)
        return dsri_fail(context, DSR_ERR_VALUE, "prefill: n_tokens must not be 0");
    const call c = {context, 1, 0, n_tokens, layer->config.hidden_size};
    dsr_status status = check_room(&c, 0, sequence, n_tokens);
    if (status == DSR_OK)
        status = check_memory(&c, &hidden, &output);
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
        status =
            run_piece(layer, sequence, done, (uint32_t)smaller(n_tokens - done, DSR_MAX_STEP_TOKENS), hidden, output);
    if (status != DSR_OK && in_pieces) {
        sequence->position = position;
        sequence->max_truncate = max_truncate;
        sequence->storage->has_stale_states = restore(layer, sequence) != DSR_OK;
    }
    return status;
}
