/* An attention layer in float64, written from the model's formulas: whole requests at once, no caches, no states. Every
 * place where the library rounds to BF16 can be switched on, alone or together, to see what it costs. */
#ifndef TEST_LAYER_MODEL_H
#define TEST_LAYER_MODEL_H

#include <dsrows/attention.h>

/* Places where the library rounds to BF16. */
typedef enum model_boundary {
    MODEL_Q_RESIDUAL,   /* normed q_a output */
    MODEL_Q,            /* queries after RoPE */
    MODEL_KV,           /* window rows after RoPE */
    MODEL_POOLED,       /* compressed rows before their norm */
    MODEL_ENTRY_NORM,   /* compressed rows after their norm */
    MODEL_ENTRY,        /* compressed rows after RoPE */
    MODEL_INDEX_POOLED, /* index keys likewise */
    MODEL_INDEX_NORM,
    MODEL_INDEX_KEY,
    MODEL_INDEX_Q,   /* index queries after RoPE */
    MODEL_ATTENTION, /* attention output */
    MODEL_UNROTATED, /* attention output after the inverse RoPE */
    MODEL_GROUPED,   /* o_a output */
    MODEL_N_BOUNDARIES
} model_boundary;

enum { MODEL_EXACT = 0, MODEL_ALL = (1 << MODEL_N_BOUNDARIES) - 1 };

const char *model_boundary_name(model_boundary boundary);

typedef struct model_layer model_layer;
/* Tensors as dsr_attention_create takes them; the configuration with its defaults filled in. */
model_layer *model_layer_new(const dsr_attention_config *config, dsr_tensor_lookup_fn lookup, void *user,
                             const char *prefix);
void model_layer_free(model_layer *layer);
const dsr_attention_config *model_config(const model_layer *layer);

/* A request with what does not depend on rounding: products of its exact inputs. */
typedef struct model_request model_request;
/* hidden: BF16 [n_tokens, hidden_size], copied. Window rows are computed for tokens from first_row on. */
model_request *model_request_new(const model_layer *layer, const void *hidden, uint32_t n_tokens, uint32_t first_row);
void model_request_free(model_request *request);

/* The same after rounding at the boundaries of a set of bits 1 << boundary. */
typedef struct model_rows model_rows;
model_rows *model_rows_new(const model_layer *layer, const model_request *request, uint32_t boundaries);
void model_rows_free(model_rows *rows);
const model_layer *model_rows_layer(const model_rows *rows);

/* Entries that a token sees: (token + 1) / ratio. */
uint32_t model_visible(const model_layer *layer, uint32_t token);
/* Index scores of the entries that a token sees. */
void model_scores(const model_rows *rows, uint32_t token, double *scores);
/* The top_k best of n scores: sets is_selected. Returns the smallest score selected. */
double model_select(const double *scores, uint32_t n, uint32_t top_k, unsigned char *is_selected);
/* Output [hidden_size] of a token; is_selected is per visible entry, null: all of them. */
void model_output(const model_rows *rows, uint32_t token, const unsigned char *is_selected, double *output);

#endif
