/* Joint calls on operands in host memory: stage the rows on the device, run the op for all of them, fetch the results.
 * Host pointers need no alignment. Failures are the session's (session.h). At most DSR_MAX_ROWS rows. */
#ifndef DSROWS_JOINT_H
#define DSROWS_JOINT_H

#include "session.h"

/* How a row's cache lies. All zero: kv_len BF16 entries. */
typedef struct cache_form {
    dsr_cache_format format;
    uint32_t page_size;     /* of one piece all its entries, of pages as the library takes it */
    uint64_t n_bytes;       /* of the piece, or of all pages */
    const void *page_table; /* I32 [n_pages], or null */
    uint64_t n_pages;
} cache_form;

typedef struct attention_row {
    const void *q;  /* BF16 [n_heads, 512] */
    const void *kv; /* BF16 [kv_len, 512], or as form says; rows with the same pointer share it */
    cache_form form;
    uint64_t kv_len;
    const void *indices; /* I32 [width] */
    uint64_t width;
    uint16_t *output; /* BF16 [n_heads, 512] */
} attention_row;

typedef struct attention_shared {
    int flash; /* 0: two-pass */
    uint32_t n_heads;
    float scale;
    const void *sinks; /* F32 [n_heads] */
} attention_shared;

void joint_attention(session *s, const attention_shared *shared, const attention_row *rows, uint32_t n_rows);

typedef struct indexer_row {
    const void *q;       /* BF16 [n_heads, 128] */
    const void *weights; /* F32 [n_heads] */
    const void *keys;    /* BF16 [kv_len, 128], likewise */
    cache_form form;
    uint64_t kv_len;
    uint32_t start_pos;
    int32_t offset;
    int32_t *indices; /* [top_k] */
    float *scores;    /* [kv_len] */
} indexer_row;

typedef struct indexer_shared {
    uint32_t n_heads;
    uint32_t top_k;
    uint32_t ratio;
} indexer_shared;

void joint_indexer(session *s, const indexer_shared *shared, const indexer_row *rows, uint32_t n_rows);

typedef struct compressor_row {
    const void *kv; /* F32 [n_tokens, coff * dim], tokens from position 0 on */
    const void *score;
    uint32_t n_tokens; /* not 0 */
    uint16_t *output;  /* BF16 [n_tokens / ratio, dim] */
    float *kv_state;   /* F32 [coff * ratio, coff * dim] after the last token */
    float *score_state;
} compressor_row;

typedef struct compressor_shared {
    uint32_t ratio;
    uint32_t dim;
    float epsilon;
    const void *ape;  /* F32 [ratio, coff * dim] */
    const void *norm; /* F32 [dim] */
} compressor_shared;

/* From a fresh state: token 0 of each row in a call of one row, then one token of every row that has tokens left per
 * call. */
void joint_compressor(session *s, const compressor_shared *shared, const compressor_row *rows, uint32_t n_rows);
/* The same tokens of one row in a single call. */
void alone_compressor(session *s, const compressor_shared *shared, const compressor_row *row);

/* output [n_rows, row_elements] F32 */
void joint_gather(session *s, const void *const *sources, uint64_t row_elements, uint32_t n_rows, float *output);

/* Elements per token, and rows of a state array. */
uint64_t compressor_token_elements(const compressor_shared *shared);
uint64_t compressor_state_rows(const compressor_shared *shared);

#endif
