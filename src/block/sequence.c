/* Sequences: memory of one request in one layer, shared by forks until one of them writes. */
#include "block/layer.h"

#include <string.h>

static uint64_t align64(uint64_t n)
{
    return (n + 63) & ~(uint64_t)63;
}

/* Reserves n elements of a size at the end of a layout. Sizes stay far below 2^64: contexts end at 2^20 tokens. */
static uint64_t place(uint64_t *end, uint64_t n_elements, uint64_t element_size)
{
    const uint64_t begin = *end;
    *end = align64(begin + n_elements * element_size);
    return begin;
}

/* Entries side by side, then the scales of all. */
static void place_cache(uint64_t *end, dsri_sequence_cache *cache, uint64_t n_entries)
{
    cache->n_entries = n_entries;
    cache->values = place(end, n_entries, cache->value_bytes);
    cache->scales = place(end, n_entries, cache->scale_bytes);
}

static dsri_sequence_cache cache_form(const dsr_attention *layer, uint32_t dim)
{
    const dsri_sequence_cache rows = {DSR_FORMAT_FP8, 576, 8, 0, 0, 0};
    const dsri_sequence_cache keys = {DSR_FORMAT_FP4, 64, 4, 0, 0, 0};
    const dsri_sequence_cache plain = {DSR_FORMAT_BF16, dim * (uint32_t)sizeof(uint16_t), 0, 0, 0, 0};
    if (layer->config.cache != DSR_CACHE_PACKED)
        return plain;
    return dim == DSR_HEAD_DIM ? rows : keys;
}

dsr_status dsri_sequence_layout_of(const dsr_attention *layer, uint32_t max_context, dsri_sequence_layout *layout)
{
    if (max_context == 0 || max_context > DSRI_MAX_CONTEXT)
        return dsri_fail(layer->context, DSR_ERR_VALUE, "sequence: max_context must be in 1..=%d, got %u",
                         (int)DSRI_MAX_CONTEXT, max_context);
    const uint32_t ratio = dsri_layer_ratio(layer);
    dsri_sequence_layout l;
    memset(&l, 0, sizeof l);
    uint64_t end = 0;
    for (uint32_t i = 0; i < DSRI_N_COMPRESSORS; i++) {
        const dsri_layer_compressor *c = &layer->compressors[i];
        l.compressors[i].kv_state = place(&end, c->state_elements, sizeof(float));
        l.compressors[i].score_state = place(&end, c->state_elements, sizeof(float));
        l.compressors[i].kv_history = place(&end, (uint64_t)c->history_rows * c->n_columns, sizeof(float));
        l.compressors[i].score_history = place(&end, (uint64_t)c->history_rows * c->n_columns, sizeof(float));
    }
    l.state_bytes = end;
    l.capacity = ratio ? max_context / ratio : 0;
    l.kv = cache_form(layer, DSR_HEAD_DIM);
    place_cache(&end, &l.kv, DSRI_RING_ROWS + l.capacity);
    l.keys = cache_form(layer, DSR_INDEX_DIM);
    /* One key at least: an op needs a view of its keys even before the first of them exists. */
    if (layer->compressors[DSRI_INDEX].dim)
        place_cache(&end, &l.keys, l.capacity ? l.capacity : 1);
    l.size_bytes = end;
    *layout = l;
    return DSR_OK;
}

dsr_view dsri_sequence_view(const dsr_sequence *sequence, uint64_t byte_offset, uint64_t n_elements, dsr_dtype dtype)
{
    return (dsr_view){sequence->storage->buffer, byte_offset, n_elements * dsr_dtype_size(dtype), dtype};
}

dsr_view dsri_sequence_cache_view(const dsr_sequence *sequence, const dsri_sequence_cache *cache)
{
    const uint64_t n_bytes = (cache->scale_bytes ? cache->scales + cache->n_entries * cache->scale_bytes
                                                 : cache->values + cache->n_entries * cache->value_bytes) -
                             cache->values;
    return (dsr_view){sequence->storage->buffer, cache->values, n_bytes,
                      cache->scale_bytes ? DSR_DTYPE_U8 : DSR_DTYPE_BF16};
}

dsr_cache_layout dsri_sequence_cache_layout(const dsri_sequence_cache *cache)
{
    dsr_cache_layout layout;
    memset(&layout, 0, sizeof layout);
    layout.format = cache->format;
    layout.page_size = (uint32_t)cache->n_entries;
    return layout;
}

void dsri_ring_layout_of(const dsri_sequence_layout *whole, dsri_sequence_layout *layout)
{
    uint64_t end = whole->state_bytes;
    *layout = *whole;
    place_cache(&end, &layout->kv, DSRI_RING_ROWS);
    layout->size_bytes = end;
}

dsr_status dsri_copy_bytes(dsr_buffer *destination, uint64_t destination_offset, const dsr_buffer *source,
                           uint64_t source_offset, uint64_t n_bytes)
{
    if (n_bytes == 0)
        return DSR_OK;
    if (dsr_context_device(source->context) == DSR_DEVICE_CPU)
        return dsr_buffer_write(destination, destination_offset,
                                (const unsigned char *)dsr_buffer_data(source) + source_offset, n_bytes);
    enum { PIECE = 64 * 1024 };
    const dsr_allocator *allocator = &source->context->allocator;
    void *piece = dsri_allocate(allocator, PIECE, 64);
    if (piece == NULL)
        return dsri_fail(source->context, DSR_ERR_OUT_OF_MEMORY, "sequence: no memory to copy");
    dsr_status status = DSR_OK;
    for (uint64_t done = 0; done < n_bytes && status == DSR_OK; done += PIECE) {
        const uint64_t n = n_bytes - done < PIECE ? n_bytes - done : PIECE;
        status = dsr_buffer_read(source, source_offset + done, piece, n);
        if (status == DSR_OK)
            status = dsr_buffer_write(destination, destination_offset + done, piece, n);
    }
    dsri_release(allocator, piece, PIECE);
    return status;
}

static dsr_status copy_entries(dsr_buffer *destination, const dsri_sequence_cache *to, const dsr_buffer *source,
                               const dsri_sequence_cache *from, uint64_t n_entries)
{
    const dsr_status status =
        dsri_copy_bytes(destination, to->values, source, from->values, n_entries * from->value_bytes);
    return status == DSR_OK
               ? dsri_copy_bytes(destination, to->scales, source, from->scales, n_entries * from->scale_bytes)
               : status;
}

dsr_status dsri_copy_states_and_rows(dsr_buffer *destination, const dsri_sequence_layout *to, const dsr_buffer *source,
                                     const dsri_sequence_layout *from, uint64_t n_entries)
{
    const dsr_status status = dsri_copy_bytes(destination, 0, source, 0, from->state_bytes);
    return status == DSR_OK ? copy_entries(destination, &to->kv, source, &from->kv, n_entries) : status;
}

/* Compressor states before the first token: kv 0 (as the buffer is created), score -inf. */
static dsr_status write_initial_scores(dsr_attention *layer, dsri_sequence_storage *storage)
{
    float minus_infinity[256];
    const uint32_t bits = 0xff800000u;
    for (uint32_t i = 0; i < 256; i++)
        memcpy(&minus_infinity[i], &bits, sizeof bits);
    for (uint32_t i = 0; i < DSRI_N_COMPRESSORS; i++) {
        const uint64_t n_bytes = layer->compressors[i].state_elements * sizeof(float);
        for (uint64_t done = 0; done < n_bytes; done += sizeof minus_infinity) {
            const dsr_status status =
                dsr_buffer_write(storage->buffer, storage->layout.compressors[i].score_state + done, minus_infinity,
                                 sizeof minus_infinity);
            if (status != DSR_OK)
                return status;
        }
    }
    return DSR_OK;
}

static dsr_status write_zeros(dsr_buffer *buffer, uint64_t byte_offset, uint64_t n_bytes)
{
    static const unsigned char zeros[1024];
    dsr_status status = DSR_OK;
    for (uint64_t done = 0; done < n_bytes && status == DSR_OK; done += sizeof zeros)
        status = dsr_buffer_write(buffer, byte_offset + done, zeros,
                                  n_bytes - done < sizeof zeros ? n_bytes - done : sizeof zeros);
    return status;
}

dsr_status dsri_storage_create(dsr_attention *layer, uint32_t max_context, dsri_sequence_storage **storage)
{
    const dsr_allocator *allocator = &layer->context->allocator;
    dsri_sequence_storage *created = dsri_allocate(allocator, sizeof *created, 64);
    if (created == NULL)
        return dsri_fail(layer->context, DSR_ERR_OUT_OF_MEMORY, "sequence: no memory for a sequence");
    memset(created, 0, sizeof *created);
    created->n_owners = 1;
    created->max_context = max_context;
    dsr_status status = dsri_sequence_layout_of(layer, max_context, &created->layout);
    if (status == DSR_OK)
        status = dsr_buffer_create(layer->context, created->layout.size_bytes, &created->buffer);
    if (status == DSR_OK)
        status = write_initial_scores(layer, created);
    if (status != DSR_OK) {
        dsri_storage_release(layer, created);
        return status;
    }
    *storage = created;
    return DSR_OK;
}

void dsri_storage_release(dsr_attention *layer, dsri_sequence_storage *storage)
{
    if (storage == NULL || --storage->n_owners != 0)
        return;
    dsr_buffer_destroy(storage->buffer);
    dsri_release(&layer->context->allocator, storage, sizeof *storage);
}

/* Storage of another size with the first `position` tokens of a sequence. */
static dsr_status copy_storage(dsr_sequence *sequence, uint32_t max_context, dsri_sequence_storage **copy)
{
    dsr_attention *layer = sequence->attention;
    const dsri_sequence_storage *from = sequence->storage;
    const uint32_t ratio = dsri_layer_ratio(layer);
    const uint64_t n_entries = ratio ? sequence->position / ratio : 0;
    dsri_sequence_storage *to = NULL;
    dsr_status status = dsri_storage_create(layer, max_context, &to);
    if (status != DSR_OK)
        return status;
    to->has_stale_states = from->has_stale_states;
    status =
        dsri_copy_states_and_rows(to->buffer, &to->layout, from->buffer, &from->layout, DSRI_RING_ROWS + n_entries);
    if (status == DSR_OK && layer->compressors[DSRI_INDEX].dim)
        status = copy_entries(to->buffer, &to->layout.keys, from->buffer, &from->layout.keys, n_entries);
    if (status != DSR_OK) {
        dsri_storage_release(layer, to);
        return status;
    }
    *copy = to;
    return DSR_OK;
}

static dsr_status replace_storage(dsr_sequence *sequence, uint32_t max_context)
{
    dsri_sequence_storage *copy;
    const dsr_status status = copy_storage(sequence, max_context, &copy);
    if (status != DSR_OK)
        return status;
    dsri_storage_release(sequence->attention, sequence->storage);
    sequence->storage = copy;
    return DSR_OK;
}

dsr_status dsri_sequence_make_writable(dsr_sequence *sequence)
{
    dsr_status status = DSR_OK;
    if (sequence->storage->n_owners > 1)
        status = replace_storage(sequence, sequence->storage->max_context);
    if (status == DSR_OK && sequence->storage->has_stale_states)
        status = dsri_sequence_rebuild_states(sequence->attention, sequence->storage, sequence->position);
    return status;
}

static dsr_status create_handle(dsr_attention *layer, dsri_sequence_storage *storage, dsr_sequence **sequence)
{
    dsr_sequence *created = dsri_allocate(&layer->context->allocator, sizeof *created, 64);
    if (created == NULL)
        return dsri_fail(layer->context, DSR_ERR_OUT_OF_MEMORY, "sequence: no memory for a sequence");
    memset(created, 0, sizeof *created);
    created->attention = layer;
    created->storage = storage;
    layer->n_sequences++;
    *sequence = created;
    return DSR_OK;
}

dsr_status dsr_sequence_bytes(const dsr_attention *layer, uint32_t max_context, uint64_t *size_bytes)
{
    if (layer == NULL)
        return DSR_ERR_NULL;
    if (size_bytes == NULL)
        return dsri_fail(layer->context, DSR_ERR_NULL, "sequence: size_bytes is null");
    dsri_sequence_layout layout;
    const dsr_status status = dsri_sequence_layout_of(layer, max_context, &layout);
    if (status == DSR_OK)
        *size_bytes = layout.size_bytes;
    return status;
}

dsr_status dsr_sequence_create(dsr_attention *layer, uint32_t max_context, dsr_sequence **sequence)
{
    if (layer == NULL)
        return DSR_ERR_NULL;
    if (sequence == NULL)
        return dsri_fail(layer->context, DSR_ERR_NULL, "sequence: sequence is null");
    dsri_sequence_storage *storage = NULL;
    dsr_status status = dsri_layer_check_usable(layer);
    if (status == DSR_OK)
        status = dsri_storage_create(layer, max_context, &storage);
    if (status != DSR_OK)
        return status;
    status = create_handle(layer, storage, sequence);
    if (status != DSR_OK)
        dsri_storage_release(layer, storage);
    return status;
}

void dsr_sequence_destroy(dsr_sequence *sequence)
{
    if (sequence == NULL)
        return;
    dsr_attention *layer = sequence->attention;
    dsri_storage_release(layer, sequence->storage);
    dsri_release(&layer->context->allocator, sequence, sizeof *sequence);
    layer->n_sequences--;
    dsri_layer_release_if_done(layer);
}

uint32_t dsr_sequence_position(const dsr_sequence *sequence)
{
    return sequence ? sequence->position : 0;
}

uint32_t dsr_sequence_max_context(const dsr_sequence *sequence)
{
    return sequence ? sequence->storage->max_context : 0;
}

uint32_t dsr_sequence_max_truncate(const dsr_sequence *sequence)
{
    return sequence ? sequence->max_truncate : 0;
}

dsr_status dsr_sequence_grow(dsr_sequence *sequence, uint32_t max_context)
{
    if (sequence == NULL)
        return DSR_ERR_NULL;
    const dsr_status status = dsri_layer_check_usable(sequence->attention);
    if (status != DSR_OK)
        return status;
    if (max_context < sequence->storage->max_context)
        return dsri_fail(sequence->attention->context, DSR_ERR_VALUE,
                         "sequence: max_context must be at least the present %u, got %u",
                         sequence->storage->max_context, max_context);
    return max_context == sequence->storage->max_context ? DSR_OK : replace_storage(sequence, max_context);
}

dsr_status dsr_sequence_reset(dsr_sequence *sequence)
{
    if (sequence == NULL)
        return DSR_ERR_NULL;
    dsr_attention *layer = sequence->attention;
    dsri_sequence_storage *storage = sequence->storage;
    dsr_status status = dsri_layer_check_usable(layer);
    if (status == DSR_OK && storage->n_owners == 1) {
        status = dsri_sequence_rebuild_states(layer, storage, 0);
    } else if (status == DSR_OK) {
        status = dsri_storage_create(layer, storage->max_context, &sequence->storage);
        if (status == DSR_OK)
            dsri_storage_release(layer, storage);
    }
    if (status != DSR_OK)
        return status;
    sequence->position = 0;
    sequence->max_truncate = 0;
    return DSR_OK;
}

dsr_status dsr_sequence_fork(dsr_sequence *sequence, dsr_sequence **fork)
{
    if (sequence == NULL)
        return DSR_ERR_NULL;
    if (fork == NULL)
        return dsri_fail(sequence->attention->context, DSR_ERR_NULL, "sequence: fork is null");
    dsr_sequence *created = NULL;
    dsr_status status = dsri_layer_check_usable(sequence->attention);
    if (status == DSR_OK)
        status = create_handle(sequence->attention, sequence->storage, &created);
    if (status != DSR_OK)
        return status;
    sequence->storage->n_owners++;
    /* Whoever of the two writes first leaves this memory to the other one, under the commands of the last step. */
    dsri_encoders_forget_memory(sequence->attention->context, sequence->storage->buffer,
                                "belongs to a fork since then");
    created->position = sequence->position;
    created->max_truncate = sequence->max_truncate;
    *fork = created;
    return DSR_OK;
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

/* Encodes one compressor call over projected tokens from the history ring: those from `first` to the ring's end or
 * `end`. */
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
        status = write_zeros(storage->buffer, storage->layout.compressors[i].kv_state,
                             layer->compressors[i].state_elements * sizeof(float));
    if (status == DSR_OK)
        status = write_initial_scores(layer, storage);
    if (status == DSR_OK)
        status = dsr_encoder_submit(layer->rebuild_encoder);
    if (status == DSR_OK)
        status = dsr_encoder_wait(layer->rebuild_encoder);
    storage->has_stale_states = status != DSR_OK;
    return status;
}

dsr_status dsr_sequence_truncate(dsr_sequence *sequence, uint32_t n_tokens)
{
    if (sequence == NULL)
        return DSR_ERR_NULL;
    dsr_attention *layer = sequence->attention;
    if (n_tokens > sequence->max_truncate)
        return dsri_fail(layer->context, DSR_ERR_STATE,
                         "sequence: cannot forget %u tokens, it remembers %u (position %u)", n_tokens,
                         sequence->max_truncate, sequence->position);
    dsr_status status = dsri_layer_check_usable(layer);
    if (status == DSR_OK && n_tokens != 0)
        status = dsri_sequence_make_writable(sequence);
    if (status == DSR_OK)
        status = dsri_sequence_rebuild_states(layer, sequence->storage, sequence->position - n_tokens);
    if (status != DSR_OK)
        return status;
    sequence->position -= n_tokens;
    sequence->max_truncate -= n_tokens;
    return DSR_OK;
}
