/* Memory of a sequence: where its parts lie, copies of it, and sharing it until somebody writes. */
#include "block/layer.h"

#include "ops/cache_plan.h"

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
    const dsri_sequence_cache rows = {DSR_FORMAT_FP8, DSRI_FP8_ROW_BYTES, DSRI_FP8_SCALE_BYTES, 0, 0, 0};
    const dsri_sequence_cache keys = {DSR_FORMAT_FP4, DSRI_FP4_KEY_BYTES, DSRI_FP4_SCALE_BYTES, 0, 0, 0};
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
        status = dsri_write_initial_scores(layer, created);
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

dsr_status dsri_sequence_replace_storage(dsr_sequence *sequence, uint32_t max_context)
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
        status = dsri_sequence_replace_storage(sequence, sequence->storage->max_context);
    if (status == DSR_OK && sequence->storage->has_stale_states)
        status = dsri_sequence_rebuild_states(sequence->attention, sequence->storage, sequence->position);
    return status;
}
