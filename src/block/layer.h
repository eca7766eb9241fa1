/* Insides of an attention layer and its sequences. The block is a client of the ops: everything it computes goes
 * through dsr_encode_* calls on the layer's own encoders. */
#ifndef DSRI_LAYER_H
#define DSRI_LAYER_H

#include <dsrows/attention.h>

#include "core/alloc.h"
#include "core/context_internal.h"
#include "core/encoder_internal.h"

enum {
    /* Window rows are kept for the oldest query of a 64-token piece, or of a sequence truncated by 64 tokens. */
    DSRI_RING_ROWS = DSR_WINDOW + DSR_MAX_STEP_TOKENS,
    DSRI_N_FREQUENCIES = DSR_ROPE_DIM / 2,
    DSRI_MAX_CONTEXT = 1048576,
    DSRI_FORM_HEADER_BYTES = 92 /* of a saved sequence */
};

_Static_assert((int)DSR_MAX_TRUNCATE_TOKENS <= (int)DSR_MAX_STEP_TOKENS, "the ring holds one or the other");

/* A compressor of the layer: the main one, or the indexer's. */
typedef struct dsri_layer_compressor {
    uint32_t dim;          /* features of an entry; 0: the layer has none */
    uint32_t n_columns;    /* coff * dim: features of a token's kv and score */
    uint32_t history_rows; /* projected tokens a sequence keeps, to rebuild the state after a truncation */
    uint64_t state_elements;
    dsr_buffer *ape;
    dsr_buffer *norm;
} dsri_layer_compressor;

enum { DSRI_MAIN = 0, DSRI_INDEX = 1, DSRI_N_COMPRESSORS = 2 };

/* Step buffers of a layer, grown on demand and kept. */
typedef enum dsri_slot {
    DSRI_SLOT_HIDDEN, /* BF16 [tokens, hidden]: gathered input rows, where they are not consecutive */
    DSRI_SLOT_OUTPUT, /* the output before it is scattered, likewise */
    DSRI_SLOT_Q_RESIDUAL_F32,
    DSRI_SLOT_Q_RESIDUAL, /* BF16 [tokens, q_rank] */
    DSRI_SLOT_Q_F32,
    DSRI_SLOT_Q, /* BF16 [tokens, heads, 512] */
    DSRI_SLOT_KV_F32,
    DSRI_SLOT_KV,       /* BF16 [tokens, 512] */
    DSRI_SLOT_TOKEN_KV, /* F32 [tokens, coff * dim], main */
    DSRI_SLOT_TOKEN_SCORE,
    DSRI_SLOT_ENTRIES, /* BF16 [entries, dim], main */
    DSRI_SLOT_INDEX_TOKEN_KV,
    DSRI_SLOT_INDEX_TOKEN_SCORE,
    DSRI_SLOT_INDEX_ENTRIES,
    DSRI_SLOT_INDEX_Q_F32,
    DSRI_SLOT_INDEX_Q,
    DSRI_SLOT_INDEX_WEIGHTS,
    DSRI_SLOT_INDEX_WORKSPACE,
    DSRI_SLOT_LISTS, /* I32: the attended rows of each token */
    DSRI_SLOT_ATTENTION_WORKSPACE,
    DSRI_SLOT_ATTENTION, /* BF16 [tokens, heads, 512] */
    DSRI_SLOT_GROUPED,   /* BF16 [tokens, o_groups, o_rank] */
    DSRI_SLOT_BACKUP,    /* the fixed part of a sequence before a prefill of several pieces */
    DSRI_N_SLOTS
} dsri_slot;

/* Projections of a layer. */
typedef enum dsri_weight {
    DSRI_WEIGHT_Q_A,
    DSRI_WEIGHT_Q_B,
    DSRI_WEIGHT_KV,
    DSRI_WEIGHT_O_A,
    DSRI_WEIGHT_O_B,
    DSRI_WEIGHT_MAIN_KV,
    DSRI_WEIGHT_MAIN_GATE,
    DSRI_WEIGHT_INDEX_Q,
    DSRI_WEIGHT_INDEX_KV,
    DSRI_WEIGHT_INDEX_GATE,
    DSRI_WEIGHT_INDEX_WEIGHTS,
    DSRI_N_WEIGHTS
} dsri_weight;

struct dsr_attention {
    dsr_context *context;
    dsr_attention_config config;
    float frequencies[DSRI_N_FREQUENCIES];
    float index_scale; /* of the head weights */
    dsr_weight_format weight_format[DSRI_N_WEIGHTS];
    dsr_buffer *weights[DSRI_N_WEIGHTS];
    dsr_buffer *q_norm;
    dsr_buffer *kv_norm;
    dsr_buffer *sinks;
    dsri_layer_compressor compressors[DSRI_N_COMPRESSORS];
    dsr_buffer *slots[DSRI_N_SLOTS];
    int32_t *lists; /* host copy of the attended rows of a step */
    size_t lists_bytes;
    dsr_encoder *step_encoder; /* null before the first step */
    uint32_t n_step_tokens;    /* of the last step; 0 if it failed or was refused */
    uint32_t n_step_sequences; /* what the commands of step_encoder advance, and from where */
    dsr_sequence *step_sequences[DSR_MAX_ROWS];
    uint32_t step_positions[DSR_MAX_ROWS];
    dsr_encoder *rebuild_encoder; /* compressor replays after a truncation or load */
    uint64_t fingerprint;         /* of its tensors: tells a saved sequence of another layer */
    uint32_t n_sequences;
    int is_destroyed; /* by the caller while sequences live: memory stays until the last of them goes */
};

/* Memory of a sequence: one buffer, shared by forks until one of them writes. */
typedef struct dsri_compressor_layout {
    uint64_t kv_state, score_state;     /* byte offsets: F32 [state_elements] */
    uint64_t kv_history, score_history; /* F32 [history_rows, n_columns], a ring by position */
} dsri_compressor_layout;

/* A cache in one piece. */
typedef struct dsri_sequence_cache {
    dsr_cache_format format;
    uint32_t value_bytes; /* of an entry */
    uint32_t scale_bytes; /* of an entry; 0: BF16 */
    uint64_t n_entries;   /* there is room for */
    uint64_t values;      /* byte offsets */
    uint64_t scales;
} dsri_sequence_cache;

typedef struct dsri_sequence_layout {
    dsri_compressor_layout compressors[DSRI_N_COMPRESSORS];
    uint64_t state_bytes;     /* states and histories: all before the caches */
    dsri_sequence_cache kv;   /* window ring, then compressed rows */
    dsri_sequence_cache keys; /* index keys; no entries: the layer has none */
    uint64_t capacity;        /* compressed rows there is room for */
    uint64_t size_bytes;
} dsri_sequence_layout;

typedef struct dsri_sequence_storage {
    uint32_t n_owners;
    uint32_t max_context;
    dsri_sequence_layout layout;
    dsr_buffer *buffer;
    int has_stale_states; /* after a broken run or a replay: the compressor states are anything, the histories whole */
} dsri_sequence_storage;

struct dsr_sequence {
    dsr_attention *attention;
    dsri_sequence_storage *storage;
    uint32_t position;
    uint32_t max_truncate;
};

/* ---- layer ------------------------------------------------------------------------------------------------ */

/* Checks a configuration and fills in its defaults. */
dsr_status dsri_layer_config(dsr_context *context, const dsr_attention_config *config, dsr_attention_config *filled);
/* The 32 RoPE frequencies of a layer whose config is set. */
dsr_status dsri_layer_frequencies(dsr_attention *layer);
/* Loads all tensors of a layer whose config is set. On failure the caller destroys the layer. */
dsr_status dsri_layer_load(dsr_attention *layer, dsr_tensor_lookup_fn lookup, void *user, const char *prefix);
/* DSR_ERR_STATE after the destruction of the layer or its context, DSR_ERR_FORKED in a child process. */
dsr_status dsri_layer_check_usable(dsr_attention *layer);
/* Frees a destroyed layer once no sequence of it lives. */
void dsri_layer_release_if_done(dsr_attention *layer);
/* Tokens per compressed entry; 0 for window layers. */
static inline uint32_t dsri_layer_ratio(const dsr_attention *layer)
{
    return (uint32_t)layer->config.kind;
}
/* Makes a step buffer hold at least size_bytes; contents are lost when it grows. */
dsr_status dsri_layer_reserve(dsr_attention *layer, dsri_slot slot, uint64_t size_bytes);
/* Weights times rows. n_groups and widths follow from the weight. */
dsr_status dsri_layer_project(dsr_attention *layer, dsr_encoder *encoder, dsri_weight weight, uint32_t n_rows,
                              dsr_view input, dsr_view output);

/* ---- sequences -------------------------------------------------------------------------------------------- */

dsr_status dsri_sequence_layout_of(const dsr_attention *layer, uint32_t max_context, dsri_sequence_layout *layout);
dsr_view dsri_sequence_view(const dsr_sequence *sequence, uint64_t byte_offset, uint64_t n_elements, dsr_dtype dtype);
/* A whole cache, as descriptors of ops name it. */
dsr_view dsri_sequence_cache_view(const dsr_sequence *sequence, const dsri_sequence_cache *cache);
dsr_cache_layout dsri_sequence_cache_layout(const dsri_sequence_cache *cache);
/* New storage with one owner, contents of an empty sequence. */
dsr_status dsri_storage_create(dsr_attention *layer, uint32_t max_context, dsri_sequence_storage **storage);
void dsri_storage_release(dsr_attention *layer, dsri_sequence_storage *storage);
/* Storage of a sequence's own, of another size or not, with the tokens that it has. */
dsr_status dsri_sequence_replace_storage(dsr_sequence *sequence, uint32_t max_context);
/* Gives the sequence storage of its own if a fork shares it, and compressor states that are not stale. */
dsr_status dsri_sequence_make_writable(dsr_sequence *sequence);
/* Compressor states before the first token: score -inf, beside kv 0 as a buffer is created. */
dsr_status dsri_write_initial_scores(dsr_attention *layer, dsri_sequence_storage *storage);
/* Sets the compressor states to what they are after `position` tokens, from the histories. States are stale after a
 * failure. */
dsr_status dsri_sequence_rebuild_states(dsr_attention *layer, dsri_sequence_storage *storage, uint32_t position);
/* Checks the header of a saved form and reads from it the bytes of the whole. */
dsr_status dsri_sequence_form_bytes(const dsr_sequence *sequence, const unsigned char header[DSRI_FORM_HEADER_BYTES],
                                    uint64_t *size_bytes);
/* First token whose projected values the states after `position` tokens depend on. */
uint32_t dsri_state_first_token(uint32_t ratio, uint32_t position);
/* Copies between device buffers of one context. */
dsr_status dsri_copy_bytes(dsr_buffer *destination, uint64_t destination_offset, const dsr_buffer *source,
                           uint64_t source_offset, uint64_t n_bytes);
/* Copies the states, the histories and the first n_entries KV rows to another place of the same form. */
dsr_status dsri_copy_states_and_rows(dsr_buffer *destination, const dsri_sequence_layout *to, const dsr_buffer *source,
                                     const dsri_sequence_layout *from, uint64_t n_entries);
/* A layout of the states, the histories and the window ring alone. */
void dsri_ring_layout_of(const dsri_sequence_layout *whole, dsri_sequence_layout *layout);

#endif
