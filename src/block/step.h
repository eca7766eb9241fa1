/* One step of an attention layer: the tokens of several sequences, encoded as one list of commands and run. */
#ifndef DSRI_STEP_H
#define DSRI_STEP_H

#include "block/layer.h"

/* A checked step. Tokens are numbered through in entry order: token `first_token[e] + i` is entry e's i-th. */
typedef struct dsri_step {
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
} dsri_step;

static inline uint64_t dsri_smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline dsr_view dsri_step_slot(const dsri_step *s, dsri_slot slot, uint64_t n_elements, dsr_dtype dtype)
{
    return (dsr_view){s->layer->slots[slot], 0, n_elements * dsr_dtype_size(dtype), dtype};
}

/* Of an entry's first token. */
static inline uint32_t dsri_step_position(const dsri_step *s, uint32_t entry)
{
    return s->sequences[entry]->position;
}

/* Compressed entries a token at `position` sees. */
static inline uint32_t dsri_visible_entries(const dsr_attention *layer, uint32_t position)
{
    const uint32_t ratio = dsri_layer_ratio(layer);
    return ratio ? (position + 1) / ratio : 0;
}

/* As many of them as it attends to. */
static inline uint32_t dsri_attended_entries(const dsr_attention *layer, uint32_t position)
{
    const uint32_t n = dsri_visible_entries(layer, position);
    return layer->config.kind == DSR_LAYER_RATIO_4 ? (uint32_t)dsri_smaller(n, layer->config.top_k) : n;
}

/* ---- step_checks.c ---------------------------------------------------------------------------------------- */

/* Checks a decode step; fills *s, all zero before, but for what a run sets. */
dsr_status dsri_step_check_decode(dsri_step *s, dsr_attention *layer, const dsr_step_desc *desc);
dsr_status dsri_step_check_prefill(dsr_attention *layer, const dsr_sequence *sequence, uint64_t n_tokens,
                                   const dsr_view *hidden, const dsr_view *output);

/* ---- step_tokens.c ---------------------------------------------------------------------------------------- */

/* q = rope(head_norm(q_b . q_norm(q_a . x))); the normed q_a output also feeds the index queries. */
dsr_status dsri_step_encode_queries(const dsri_step *s, dsr_view hidden);
/* rope(kv_norm(kv . x)) into the window rings. */
dsr_status dsri_step_encode_window(const dsri_step *s, dsr_view hidden);
/* Rotates [tokens, n_heads, head_dim] at the tokens' positions. */
dsr_status dsri_step_rotate(const dsri_step *s, dsr_view input, uint32_t n_heads, uint32_t head_dim, int inverse,
                            dsr_view output);

/* ---- step_caches.c ---------------------------------------------------------------------------------------- */

/* Rows of a step for the caches of some of its sequences: each goes to entries of that sequence's cache. */
typedef struct dsri_cache_rows {
    uint32_t n;
    uint32_t sequences[DSR_MAX_ROWS]; /* their numbers in the step */
    dsr_append_row rows[DSR_MAX_ROWS];
} dsri_cache_rows;

/* Rounds n_vectors rotated KV rows (dim 512) or index keys (dim 128) as the caches do, in place if at all, and stores
 * them. */
dsr_status dsri_step_store(const dsri_step *s, dsri_cache_rows *to, dsr_view values, uint64_t n_vectors, uint32_t dim);
dsr_status dsri_step_encode_copy(const dsri_step *s, const dsr_copy_row *rows, uint32_t n_rows, uint64_t row_elements,
                                 dsr_view source);
/* Rounds in place. */
dsr_status dsri_step_quantise(const dsri_step *s, dsr_quant_kind kind, dsr_view values, uint64_t n_vectors,
                              uint32_t dim);

/* ---- step_compressors.c ----------------------------------------------------------------------------------- */

/* The compressor `which` of the layer: states, histories, and the entries that the step completes. */
dsr_status dsri_step_encode_compressor(const dsri_step *s, uint32_t which, dsr_view hidden);

/* ---- step_lists.c ----------------------------------------------------------------------------------------- */

/* Places every token's list: 128 window slots, then room for the entries it attends to. */
void dsri_step_place_lists(dsri_step *s);
/* Writes what does not depend on scores. */
dsr_status dsri_step_write_lists(const dsri_step *s);
/* Index queries, scores, and the selection into the lists. */
dsr_status dsri_step_encode_indexer(const dsri_step *s, dsr_view hidden);

/* ---- step_attention.c ------------------------------------------------------------------------------------- */

dsr_status dsri_step_encode_attention(const dsri_step *s);
/* Inverse rotation, o_a, o_b. */
dsr_status dsri_step_encode_output(const dsri_step *s, dsr_view output);

#endif
