/* Sequences as the caller has them: created, forked, grown, cut back. */
#include "block/layer.h"

#include <string.h>

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
    return max_context == sequence->storage->max_context ? DSR_OK
                                                         : dsri_sequence_replace_storage(sequence, max_context);
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
