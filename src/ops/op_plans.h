/* Plans: what an op's validation leaves for a back end. Plain values with resolved addresses on the context's device,
 * already checked; kernels trust them. A plan's per-row part is a function of that row's fields alone. */
#ifndef DSRI_OP_PLANS_H
#define DSRI_OP_PLANS_H

#include "ops/cache_plan.h"

#include <stdint.h>

enum {
    DSRI_MAX_ROWS = 64,
    DSRI_HEAD_DIM = 512,
    DSRI_INDEX_DIM = 128,
    DSRI_INDEX_TILE = 128,
    DSRI_CHUNK_SLOTS = 64,
    DSRI_MAX_ROPE_PAIRS = 64,
    DSRI_TAIL_PAIRS = 32 /* of a cache entry */
};

typedef struct dsri_attention_row_plan {
    dsri_cache kv; /* rows of 512 */
    uint64_t kv_len;
    const int32_t *indices; /* list of query i at indices + i * index_stride */
    uint64_t index_stride;
    const uint16_t *q;  /* query i at q + i * n_heads * 512 */
    uint16_t *output;   /* likewise */
    uint8_t *workspace; /* 64-byte aligned; query i's region at workspace + i * dsri_attention_region.size_bytes */
    uint32_t width;
    uint32_t n_queries;
    uint32_t first_query; /* queries of earlier rows: numbers (row, query) pairs through */
} dsri_attention_row_plan;

typedef struct dsri_attention_plan {
    uint32_t n_rows;
    uint32_t n_queries; /* of all rows */
    uint32_t n_heads;
    uint32_t chunked; /* 1: the flash form */
    float scale;
    const float *sinks;
    dsri_attention_row_plan rows[DSRI_MAX_ROWS];
} dsri_attention_plan;

typedef struct dsri_indexer_row_plan {
    dsri_cache keys; /* of 128 features */
    uint64_t kv_len;
    const uint16_t *q;    /* query i at q + i * n_heads * 128 */
    const float *weights; /* query i at weights + i * n_heads */
    int32_t *output;      /* list of query i at output + i * output_stride */
    uint64_t output_stride;
    float *scores;      /* null, or query i's kv_len scores at scores + i * kv_len */
    uint8_t *workspace; /* 64-byte aligned; query i's region at workspace + i * dsri_indexer_region.size_bytes */
    uint32_t start_pos;
    uint32_t ratio;
    int32_t offset;
    uint32_t n_queries;
    uint32_t first_query;
    uint32_t n_tiles; /* of DSRI_INDEX_TILE scores: of its last query, which has the most */
} dsri_indexer_row_plan;

typedef struct dsri_indexer_plan {
    uint32_t n_rows;
    uint32_t n_queries;
    uint32_t n_heads;
    uint32_t top_k;
    uint32_t first_tile[DSRI_MAX_ROWS + 1]; /* tiles of all queries of earlier rows, and of all rows */
    dsri_indexer_row_plan rows[DSRI_MAX_ROWS];
} dsri_indexer_plan;

typedef struct dsri_compressor_row_plan {
    const float *kv; /* this row's first token; tokens are coff * dim apart */
    const float *score;
    float *kv_state;
    float *score_state;
    uint16_t *output; /* this row's max(1, emitted) output rows */
    uint32_t start_pos;
    uint32_t n_tokens;
} dsri_compressor_row_plan;

typedef struct dsri_compressor_plan {
    uint32_t n_rows;
    uint32_t ratio;
    uint32_t dim;
    float epsilon;
    const float *ape;
    const float *norm;
    dsri_compressor_row_plan rows[DSRI_MAX_ROWS];
} dsri_compressor_plan;

typedef struct dsri_gather_plan {
    uint32_t n_rows;
    uint64_t row_elements;
    float *output;
    const float *sources[DSRI_MAX_ROWS];
} dsri_gather_plan;

typedef struct dsri_copy_row_plan {
    const uint8_t *source; /* first source row of this row */
    uint8_t *destination;  /* row 0 of the destination */
    uint64_t destination_row;
    uint64_t ring_rows; /* 0: no ring */
    uint32_t n_copies;
} dsri_copy_row_plan;

typedef struct dsri_copy_plan {
    uint32_t n_rows;
    uint64_t row_bytes;
    dsri_copy_row_plan rows[DSRI_MAX_ROWS];
} dsri_copy_plan;

typedef struct dsri_rope_row_plan {
    const void *input; /* first token of this row: F32 or BF16 [n_heads, head_dim] per token */
    uint16_t *output;
    uint32_t start_pos;
    uint32_t position_step;
    uint32_t n_tokens;
} dsri_rope_row_plan;

typedef struct dsri_rope_plan {
    uint32_t n_rows;
    uint32_t n_heads;
    uint32_t head_dim;
    uint32_t rope_dim;
    uint32_t inverse;
    uint32_t input_is_f32;
    float frequencies[DSRI_MAX_ROPE_PAIRS];
    dsri_rope_row_plan rows[DSRI_MAX_ROWS];
} dsri_rope_plan;

typedef struct dsri_fake_quant_plan {
    uint32_t kind; /* dsr_quant_kind */
    uint32_t dim;
    uint32_t min_scale; /* as an E8M0 byte, not 0 */
    uint64_t n_vectors;
    const uint16_t *input;
    uint16_t *output;
} dsri_fake_quant_plan;

typedef struct dsri_append_row_plan {
    dsri_cache cache;
    const uint16_t *source; /* first token of this row */
    uint64_t first_entry;   /* below ring_entries in a ring */
    uint64_t ring_entries;  /* 0: no ring */
    uint32_t n_tokens;
    uint32_t start_pos;
    uint32_t position_step;
} dsri_append_row_plan;

typedef struct dsri_append_plan {
    uint32_t n_rows;
    uint32_t dim;
    uint32_t min_scale; /* of the packed format of this dim, as an E8M0 byte */
    uint32_t rotates;
    float frequencies[DSRI_TAIL_PAIRS];
    dsri_append_row_plan rows[DSRI_MAX_ROWS];
} dsri_append_plan;

typedef struct dsri_convert_row_plan {
    dsri_cache source;
    dsri_cache destination;
    uint64_t first_source;
    uint64_t first_destination;
    uint64_t n_entries;
} dsri_convert_row_plan;

typedef struct dsri_convert_plan {
    uint32_t n_rows;
    uint32_t dim;
    dsri_convert_row_plan rows[DSRI_MAX_ROWS];
} dsri_convert_plan;

typedef struct dsri_rms_norm_plan {
    uint32_t dim;
    uint32_t input_is_f32;
    uint32_t output_is_f32;
    float epsilon;
    uint64_t n_vectors;
    const void *input;
    const float *weight; /* null: none */
    void *output;        /* may be input */
} dsri_rms_norm_plan;

typedef struct dsri_projection_plan {
    uint32_t n_rows;
    uint32_t n_groups;
    uint32_t n_inputs;       /* per group, a multiple of 16 */
    uint32_t n_outputs;      /* per group */
    uint32_t format;         /* dsr_weight_format */
    uint32_t scales_are_f32; /* FP8: else E8M0 */
    uint32_t output_is_f32;
    float output_scale;
    const uint16_t *input;
    const void *weight;
    const void *scales; /* FP8, not packed */
    void *output;
} dsri_projection_plan;

#endif
