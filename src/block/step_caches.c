/* Rows of a step into the caches of its sequences, rounded as the layer rounds them. */
#include "block/step.h"

#include <string.h>

dsr_status dsri_step_quantise(const dsri_step *s, dsr_quant_kind kind, dsr_view values, uint64_t n_vectors,
                              uint32_t dim)
{
    dsr_fake_quant_desc desc = DSR_FAKE_QUANT_DESC_INIT;
    desc.kind = kind;
    desc.n_vectors = n_vectors;
    desc.dim = dim;
    desc.input = values;
    desc.output = values;
    return dsr_encode_fake_quant(s->encoder, &desc);
}

dsr_status dsri_step_encode_copy(const dsri_step *s, const dsr_copy_row *rows, uint32_t n_rows, uint64_t row_elements,
                                 dsr_view source)
{
    dsr_copy_desc desc = DSR_COPY_DESC_INIT;
    desc.n_rows = n_rows;
    desc.rows = rows;
    desc.row_elements = row_elements;
    desc.source = source;
    return dsr_encode_copy(s->encoder, &desc);
}

static const dsri_sequence_cache *cache_of(const dsri_step *s, uint32_t entry, uint32_t dim)
{
    const dsri_sequence_layout *l = &s->sequences[entry]->storage->layout;
    return dim == DSR_HEAD_DIM ? &l->kv : &l->keys;
}

static dsr_status append_rows(const dsri_step *s, dsri_cache_rows *to, dsr_view values, uint32_t dim)
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

static dsr_status copy_rows(const dsri_step *s, const dsri_cache_rows *to, dsr_view values, uint32_t dim)
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
    return dsri_step_encode_copy(s, rows, to->n, dim, values);
}

dsr_status dsri_step_store(const dsri_step *s, dsri_cache_rows *to, dsr_view values, uint64_t n_vectors, uint32_t dim)
{
    dsr_status status = DSR_OK;
    if (s->layer->config.cache == DSR_CACHE_PACKED)
        return append_rows(s, to, values, dim);
    if (s->layer->config.cache == DSR_CACHE_OFFICIAL)
        status = dsri_step_quantise(s, dim == DSR_HEAD_DIM ? DSR_QUANT_FP8_BLOCK64 : DSR_QUANT_HADAMARD_FP4_BLOCK32,
                                    values, n_vectors, dim);
    return status == DSR_OK ? copy_rows(s, to, values, dim) : status;
}
