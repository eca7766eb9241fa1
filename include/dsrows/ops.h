/* The operations of a DeepSeek-V4 decode step, for 1 to 64 independent rows (requests) per call.
 *
 * Every dsr_encode_* call takes one descriptor; with one row it is the one-row form, with more it is the rows form, and
 * both are the same code. Row r's results depend on nothing but row r's own operands and fields: not on the other rows,
 * their number or order, the thread count, addresses or earlier calls (docs/numerics.md).
 *
 * Bad arguments give a status and a text naming the op, the row, the field, what was given and what is needed; nothing
 * is encoded. Bad values in operand memory never give an error, a NaN or a stray read: each op says what they give.
 * Rows are checked in order, dtype before size, and the first failing check wins.
 *
 * Views may be larger than needed, and only their dtype and byte length are looked at. Addresses must be multiples of
 * the element size, no more. Descriptors and row arrays are copied; operand memory must live until the work is done.
 * kv_len, width, q_row, index_offset and output_offset of a row must fit 32 bits, and so must the slots (queries times
 * width) of an attention call and the elements of a gather; other products must fit 64.
 * Shapes are row-major with the last dimension contiguous. */
#ifndef DSROWS_OPS_H
#define DSROWS_OPS_H

#include <dsrows/cache.h>
#include <dsrows/encoder.h>

DSR_BEGIN_DECLS

enum {
    DSR_MAX_ROWS = 64,
    DSR_HEAD_DIM = 512,  /* features of a query head and of a shared KV row */
    DSR_ROPE_DIM = 64,   /* the last features of a head are rotated */
    DSR_INDEX_DIM = 128, /* features of an index head and of an index key */
    DSR_MAX_TOP_K = 2048,
    DSR_CHUNK_SLOTS = 64 /* slots of a chunk in chunked attention: part of the result's definition */
};

/* ---- sparse attention ------------------------------------------------------------------------------------- */

/* One row: n_queries queries of one request over the listed rows of its KV cache.
 * Query i is row q_row + i of q and of output, and attends to indices[index_offset + i * index_stride] and the width -
 * 1 entries after it. An index selects a KV row; -1 skips the slot; duplicates count twice. */
typedef struct dsr_attention_row {
    dsr_view kv;                /* BF16 [kv_len, 512], or as kv_layout says; rows may share it */
    dsr_cache_layout kv_layout; /* BF16 or FP8 */
    uint64_t kv_len;            /* not 0 */
    uint64_t kv_row_stride;     /* BF16: elements between KV rows, at least 512; 0: 512. FP8: 0 */
    uint64_t q_row;
    uint64_t index_offset; /* elements */
    uint64_t index_stride; /* elements between the lists of consecutive queries; 0: width */
    uint64_t width;        /* slots per query, not 0 */
    uint32_t n_queries;    /* 0: 1 */
} dsr_attention_row;

/* Attention with a learned sink per head over shared KV rows (K = V):
 *   logit = scale * (q . k);  out = sum exp(logit - m) v / (exp(sink - m) + sum exp(logit - m)).
 * dsr_encode_sparse_attention is the two-pass form, dsr_encode_flash_attention the form in chunks of 64 slots; their
 * bits differ in the last places and are both defined in docs/numerics.md.
 *
 * Values: an index below -1 or >= kv_len, or a non-finite element in a selected KV row, gives +0 in every head of that
 * query; a non-finite element in q of a head, a non-finite sink or logit of it gives +0 in that head; nothing selected
 * gives +0. KV rows that are not selected are never read into a result. */
typedef struct dsr_attention_desc {
    uint32_t struct_size; /* sizeof(dsr_attention_desc) */
    uint32_t n_rows;      /* 1..64 */
    const dsr_attention_row *rows;
    uint32_t n_heads;   /* 64 or 128 */
    float scale;        /* finite, > 0; DSR_ATTENTION_SCALE in the published models */
    dsr_view q;         /* BF16 [queries, n_heads, 512]; rows may name its rows in any order, each once */
    dsr_view indices;   /* I32 */
    dsr_view sinks;     /* F32 [n_heads] */
    dsr_view output;    /* BF16 [queries, n_heads, 512]; query rows that no row names are left alone */
    dsr_view workspace; /* U8, dsr_*_attention_workspace() bytes; contents need not be set and mean nothing after */
} dsr_attention_desc;

#define DSR_ATTENTION_DESC_INIT DSR_STRUCT_INIT(dsr_attention_desc)
#define DSR_ATTENTION_SCALE     0.04419417382f /* 512^-0.5 */

DSR_API dsr_status dsr_encode_sparse_attention(dsr_encoder *encoder, const dsr_attention_desc *desc);
DSR_API dsr_status dsr_encode_flash_attention(dsr_encoder *encoder, const dsr_attention_desc *desc);
/* Bytes of workspace a call needs: a function of n_rows, n_heads and the rows' n_queries, width and format alone (views
 * are not looked at). A joint call needs at most the sum of what its rows need alone. */
DSR_API dsr_status dsr_sparse_attention_workspace(dsr_context *context, const dsr_attention_desc *desc,
                                                  uint64_t *size_bytes);
DSR_API dsr_status dsr_flash_attention_workspace(dsr_context *context, const dsr_attention_desc *desc,
                                                 uint64_t *size_bytes);
/* 1 if the rows are contiguous: in order, query row e is row e's, and grouping the rows by distinct width in order of
 * first appearance keeps them in order. A host that stages operands can then use q and output in place and leave out
 * its permutation scratch; the library itself takes any order without one. 0 otherwise and for a null or bad desc. */
DSR_API int dsr_flash_attention_contiguous(const dsr_attention_desc *desc);

/* ---- lightning indexer ------------------------------------------------------------------------------------ */

/* One row: n_queries queries at consecutive positions of one request over its index keys.
 * Query i is row q_row + i of q and weights, stands at position start_pos + i, sees the first (start_pos + i + 1) /
 * ratio keys, and writes its list to output[output_offset + i * output_stride]. */
typedef struct dsr_indexer_row {
    dsr_view keys;               /* BF16 [kv_len, 128], or as key_layout says; rows may share it */
    dsr_cache_layout key_layout; /* BF16 or FP4 */
    uint64_t kv_len;             /* not 0; at least the keys the last query sees; more are ignored */
    uint64_t key_row_stride;     /* BF16: elements between keys, at least 128; 0: 128. FP4: 0 */
    uint64_t q_row;              /* rows may share one */
    uint64_t output_offset;      /* elements */
    uint64_t output_stride;      /* elements between lists of consecutive queries, at least top_k; 0: top_k */
    uint64_t scores_offset;      /* elements, into scores; looked at only where scores is given */
    uint32_t start_pos;          /* below UINT32_MAX */
    uint32_t ratio;              /* tokens per key; 0: 4 */
    int32_t offset;              /* added to every index, >= 0 */
    uint32_t n_queries;          /* 0: 1 */
} dsr_indexer_row;

/* score_t = sum over heads of weight_h * max(0, q_h . k_t), then the top_k best keys as t + offset: greater score
 * first, equal scores by lower t, unfilled places -1. weights carry the scales of the model.
 *
 * Values: a key for which a dot product, weight or sum is not finite is never selected. */
typedef struct dsr_indexer_desc {
    uint32_t struct_size; /* sizeof(dsr_indexer_desc) */
    uint32_t n_rows;      /* 1..64 */
    const dsr_indexer_row *rows;
    uint32_t n_heads; /* 32, 64 or 128 */
    uint32_t top_k;   /* a multiple of 32 up to 2048; 0: 512 */
    dsr_view q;       /* BF16 [queries, n_heads, 128] */
    dsr_view weights; /* F32 [queries, n_heads] */
    dsr_view output;  /* I32; the lists of two queries may not overlap */
    dsr_view scores; /* F32, optional: query i of a row writes kv_len scores at scores_offset + i * kv_len, -inf where a
                        key is not seen or not finite; score ranges of two rows may not overlap */
    dsr_view workspace; /* U8, dsr_indexer_workspace() bytes */
} dsr_indexer_desc;

#define DSR_INDEXER_DESC_INIT DSR_STRUCT_INIT(dsr_indexer_desc)
#define DSR_INDEXER_SCALE     0.01104854346f /* 128^-0.5 * 64^-0.5 */

DSR_API dsr_status dsr_encode_indexer(dsr_encoder *encoder, const dsr_indexer_desc *desc);
/* Bytes of workspace: a function of n_heads, top_k and the rows' kv_len, n_queries, start_pos and ratio alone. For each
 * query at most 5 bytes per key that the row's last query sees and 128 KiB more, and 64 bytes for all. */
DSR_API dsr_status dsr_indexer_workspace(dsr_context *context, const dsr_indexer_desc *desc, uint64_t *size_bytes);

/* ---- compressor ------------------------------------------------------------------------------------------- */

/* One row: n_tokens consecutive tokens of one request from position start_pos.
 * Token i reads row token_row + i of kv and score. A token at position p completes group p / ratio when (p + 1) is a
 * multiple of ratio, and then emits one output row. The row owns max(1, emitted) rows of output from output_row; if
 * nothing is emitted, that one row is zeros. */
typedef struct dsr_compressor_row {
    dsr_view kv_state;    /* F32 [coff * ratio, coff * dim], coff = 2 for ratio 4 and 1 for ratio 128 */
    dsr_view score_state; /* the same; a request's own: no two views of a call may overlap, whole as they are */
    uint64_t token_row;
    uint64_t output_row;
    uint32_t start_pos; /* at 0 the state is initialised first (kv 0, score -inf); only a one-row call may start at 0 */
    uint32_t n_tokens;  /* 0: 1; start_pos + n_tokens must not exceed UINT32_MAX */
} dsr_compressor_row;

/* The learned KV compressor: a softmax over the window's items per feature, BF16, RMS norm with weight, BF16. The state
 * after a call is byte-identical however the tokens were cut into calls.
 *
 * Values: a non-finite kv element is stored as 0 with a NaN score; a non-finite score as NaN; an emission that meets
 * one, or a non-finite norm weight or result, is a row of zeros; the state goes on. */
typedef struct dsr_compressor_desc {
    uint32_t struct_size; /* sizeof(dsr_compressor_desc) */
    uint32_t n_rows;      /* 1..64 */
    const dsr_compressor_row *rows;
    uint32_t ratio; /* (ratio, dim) is (4, 128), (4, 512) or (128, 512) */
    uint32_t dim;
    float epsilon;   /* finite, > 0 */
    dsr_view kv;     /* F32 [tokens, coff * dim] */
    dsr_view score;  /* F32 [tokens, coff * dim] */
    dsr_view ape;    /* F32 [ratio, coff * dim] */
    dsr_view norm;   /* F32 [dim] */
    dsr_view output; /* BF16 [output rows, dim] */
} dsr_compressor_desc;

#define DSR_COMPRESSOR_DESC_INIT DSR_STRUCT_INIT(dsr_compressor_desc)

DSR_API dsr_status dsr_encode_compressor(dsr_encoder *encoder, const dsr_compressor_desc *desc);
/* Elements of each of the two state arrays; 0 for an unsupported (ratio, dim). */
DSR_API uint64_t dsr_compressor_state_elements(uint32_t ratio, uint32_t dim);
/* Groups completed by n_tokens tokens from start_pos. */
DSR_API uint32_t dsr_compressor_emitted(uint32_t ratio, uint32_t start_pos, uint32_t n_tokens);

/* ---- gather ----------------------------------------------------------------------------------------------- */

/* output[r * row_elements + i] = sources[r][i], bit for bit. */
typedef struct dsr_gather_desc {
    uint32_t struct_size;    /* sizeof(dsr_gather_desc) */
    uint32_t n_rows;         /* 1..64 */
    const dsr_view *sources; /* F32 [row_elements] each */
    uint64_t row_elements;   /* not 0 */
    dsr_view output;         /* F32 [n_rows, row_elements] */
} dsr_gather_desc;

#define DSR_GATHER_DESC_INIT DSR_STRUCT_INIT(dsr_gather_desc)

DSR_API dsr_status dsr_encode_gather(dsr_encoder *encoder, const dsr_gather_desc *desc);

/* ---- copy into caches ------------------------------------------------------------------------------------- */

/* One row: n_copies consecutive rows of source to consecutive rows of this request's destination, wrapping at ring_rows
 * if it is not 0: copy i goes to row (destination_row + i) mod ring_rows. */
typedef struct dsr_copy_row {
    dsr_view destination; /* same dtype as source */
    uint64_t source_row;
    uint64_t destination_row; /* a ring slot (position mod window) or a compressed slot (window + position / ratio) */
    uint64_t ring_rows;       /* 0: no ring; else destination must hold all of them */
    uint32_t n_copies;        /* 0: 1; at most ring_rows in a ring */
} dsr_copy_row;

/* Ring-slot write and copy to a compressed slot. Destination ranges of two rows may not overlap, nor overlap source. */
typedef struct dsr_copy_desc {
    uint32_t struct_size; /* sizeof(dsr_copy_desc) */
    uint32_t n_rows;      /* 1..64 */
    const dsr_copy_row *rows;
    uint64_t row_elements; /* not 0 */
    dsr_view source;       /* any dtype [source rows, row_elements] */
} dsr_copy_desc;

#define DSR_COPY_DESC_INIT DSR_STRUCT_INIT(dsr_copy_desc)

DSR_API dsr_status dsr_encode_copy(dsr_encoder *encoder, const dsr_copy_desc *desc);

/* ---- tail RoPE -------------------------------------------------------------------------------------------- */

/* One row: n_tokens consecutive rows from row `row` of input and output, at positions start_pos + i * position_step. */
typedef struct dsr_rope_row {
    uint64_t row;
    uint32_t start_pos;
    uint32_t position_step; /* 0: 1; the ratio for compressed entries */
    uint32_t n_tokens;      /* 0: 1 */
} dsr_rope_row;

/* Interleaved rotation of the last rope_dim features of each head: angle = (float)position * frequency, one F32
 * product. Values: a non-finite feature outside the tail gives 0; a pair with a non-finite input or angle gives 0, 0.
 */
typedef struct dsr_rope_desc {
    uint32_t struct_size; /* sizeof(dsr_rope_desc) */
    uint32_t n_rows;      /* 1..64; rows may not overlap */
    const dsr_rope_row *rows;
    uint32_t n_heads;  /* 1..128 */
    uint32_t head_dim; /* 2..512, even */
    uint32_t rope_dim; /* even, 2..head_dim, at most 128 */
    int inverse;       /* 0 or 1 */
    dsr_view input;    /* F32 or BF16 [tokens, n_heads, head_dim] */
    dsr_view output; /* BF16, the same shape; may be the very same view as a BF16 input, and not overlap it otherwise */
    const float *frequencies; /* host memory, rope_dim / 2 values, finite and > 0, copied: dsr_rope_frequencies() */
} dsr_rope_desc;

#define DSR_ROPE_DESC_INIT DSR_STRUCT_INIT(dsr_rope_desc)

DSR_API dsr_status dsr_encode_rope(dsr_encoder *encoder, const dsr_rope_desc *desc);

typedef enum dsr_rope_table {
    DSR_ROPE_BASE = 0, /* theta 10000, for window-only layers */
    DSR_ROPE_YARN = 1  /* theta 160000 with YaRN (factor 16, original 65536, beta 32 and 1), for compressed layers */
} dsr_rope_table;
/* The 32 published frequencies of a table (static constants, rounded to F32 from float64); null for a bad enum. */
DSR_API const float *dsr_rope_frequencies(dsr_rope_table table);

/* ---- cache fake quantisation ------------------------------------------------------------------------------ */

typedef enum dsr_quant_kind {
    DSR_QUANT_FP8_BLOCK64 = 0,         /* E4M3, power-of-two scale per 64 features, the last 64 features copied */
    DSR_QUANT_HADAMARD_FP4_BLOCK32 = 1 /* Walsh-Hadamard of 128, then E2M1, power-of-two scale per 32 features */
} dsr_quant_kind;

/* Round rows to the grid of a cache format and back to BF16. Values: FP8: a block with a non-finite value is zeros;
 * FP4: a non-finite input element counts as 0. Signs are kept, so -0 occurs. */
typedef struct dsr_fake_quant_desc {
    uint32_t struct_size; /* sizeof(dsr_fake_quant_desc) */
    dsr_quant_kind kind;
    uint64_t n_vectors; /* not 0: vectors of dim features, contiguous */
    uint32_t dim;       /* FP8: a multiple of 64, 128..512; FP4: 128 */
    dsr_view input;     /* BF16 [n_vectors, dim] */
    dsr_view output;    /* BF16, the same shape; may be the very same view as input, and not overlap it otherwise */
    dsr_scale_floor floor;
} dsr_fake_quant_desc;

#define DSR_FAKE_QUANT_DESC_INIT DSR_STRUCT_INIT(dsr_fake_quant_desc)

DSR_API dsr_status dsr_encode_fake_quant(dsr_encoder *encoder, const dsr_fake_quant_desc *desc);

/* ---- append to caches ------------------------------------------------------------------------------------- */

/* One row: source rows source_row .. source_row + n_tokens - 1 to entries of this request's cache: token i to entry
 * first_entry + i, or (first_entry + i) mod ring_entries in a ring of the cache's first entries. */
typedef struct dsr_append_row {
    dsr_view cache;                /* BF16 [n_entries, dim], or as cache_layout says */
    dsr_cache_layout cache_layout; /* BF16, or FP4 if dim is 128 and FP8 if it is 512 */
    uint64_t n_entries;            /* there is room for; not 0 */
    uint64_t entry_stride;         /* BF16: elements between entries, at least dim; 0: dim. Packed: 0 */
    uint64_t first_entry;          /* a ring slot (position mod window) or a compressed entry (position / ratio) */
    uint64_t ring_entries;         /* 0: no ring; at most n_entries */
    uint64_t source_row;
    uint32_t n_tokens;      /* 0: 1; at most ring_entries in a ring */
    uint32_t start_pos;     /* position of the first token; this and the next for the rotation alone */
    uint32_t position_step; /* 0: 1; the ratio for compressed entries */
} dsr_append_row;

/* Quantise and append: tail RoPE if frequencies are given, then by the format of the cache: BF16: no more; FP8: power
 * of two scales per 64 features, the last 64 features kept; FP4: Walsh-Hadamard of 128, power of two scales per 32. The
 * entries decode to the bits that dsr_encode_rope and dsr_encode_fake_quant give.
 *
 * Rows may share the very same pages (one pool for many requests) if each has a page table; which entries of them two
 * rows write is data, so that it is the caller's part that no two tokens of a call go to one entry: what that would
 * hold is undefined, and nothing else. A command with a page table counts as writing all pages of the view.
 *
 * Values: as of the two ops. A token whose page id is bad is not written. A block of zeros, or of an FP8 block with a
 * non-finite value, has the smallest scale. */
typedef struct dsr_append_desc {
    uint32_t struct_size; /* sizeof(dsr_append_desc) */
    uint32_t n_rows;      /* 1..64 */
    const dsr_append_row *rows;
    uint32_t dim; /* 128: index keys; 512: KV rows */
    dsr_scale_floor floor;
    dsr_view source;          /* BF16 [source rows, dim] */
    const float *frequencies; /* host memory, 32 values, finite and > 0, copied; null: no rotation */
} dsr_append_desc;

#define DSR_APPEND_DESC_INIT DSR_STRUCT_INIT(dsr_append_desc)

DSR_API dsr_status dsr_encode_append(dsr_encoder *encoder, const dsr_append_desc *desc);

/* ---- convert caches --------------------------------------------------------------------------------------- */

/* One row: entries first_source .. first_source + n_entries - 1 of a cache to the entries from first_destination on of
 * another. */
typedef struct dsr_convert_row {
    dsr_view source; /* BF16 [source_entries, dim], or as source_layout says; rows may share it */
    dsr_cache_layout source_layout;
    uint64_t source_entries; /* of the whole cache, not 0 */
    uint64_t source_stride;  /* BF16: elements between entries, at least dim; 0: dim. Packed: 0 */
    uint64_t first_source;
    dsr_view destination; /* likewise */
    dsr_cache_layout destination_layout;
    uint64_t destination_entries;
    uint64_t destination_stride;
    uint64_t first_destination;
    uint64_t n_entries; /* to convert; not 0 */
} dsr_convert_row;

/* Entries of a cache to another of any format and paging. Equal formats: the same bytes. Packed to BF16: decoded. BF16
 * to packed: rounded to the format's grid without Hadamard, with the smallest scale that holds a block's greatest
 * value, so that all that an entry of that format decodes to is kept exactly.
 *
 * Destinations follow the rules of dsr_append_desc. No destination may overlap a source.
 * Values: an entry whose page id is bad on either side is not written. To FP8: a block with a non-finite value is
 * zeros; to FP4: a non-finite element is 0. */
typedef struct dsr_convert_desc {
    uint32_t struct_size; /* sizeof(dsr_convert_desc) */
    uint32_t n_rows;      /* 1..64 */
    const dsr_convert_row *rows;
    uint32_t dim; /* 128: index keys; 512: KV rows */
} dsr_convert_desc;

#define DSR_CONVERT_DESC_INIT DSR_STRUCT_INIT(dsr_convert_desc)

DSR_API dsr_status dsr_encode_convert(dsr_encoder *encoder, const dsr_convert_desc *desc);

/* ---- RMS norm --------------------------------------------------------------------------------------------- */

/* y = (x * r) * weight with r = 1 / sqrt(sum of squares / dim + epsilon), in F32, for each vector on its own.
 * Values: a vector whose sum of squares is not finite is zeros; a result that is not finite is 0. */
typedef struct dsr_rms_norm_desc {
    uint32_t struct_size; /* sizeof(dsr_rms_norm_desc) */
    uint32_t dim;         /* a multiple of 16 up to 16384 */
    uint64_t n_vectors;   /* not 0 */
    float epsilon;        /* finite, > 0 */
    dsr_view input;       /* F32 or BF16 [n_vectors, dim] */
    dsr_view weight;      /* F32 [dim], optional */
    dsr_view
        output; /* F32 or BF16 [n_vectors, dim]; may be the very same view as input, and not overlap it otherwise */
} dsr_rms_norm_desc;

#define DSR_RMS_NORM_DESC_INIT DSR_STRUCT_INIT(dsr_rms_norm_desc)

DSR_API dsr_status dsr_encode_rms_norm(dsr_encoder *encoder, const dsr_rms_norm_desc *desc);

/* ---- projection ------------------------------------------------------------------------------------------- */

typedef enum dsr_weight_format {
    DSR_WEIGHT_BF16 = 0,        /* BF16 [n_groups * n_outputs, n_inputs] as checkpoints have it */
    DSR_WEIGHT_FP8 = 1,         /* U8 (E4M3), the same shape, with a scale per block of 128 outputs x 128 inputs */
    DSR_WEIGHT_BF16_PACKED = 2, /* U32, made by dsr_projection_pack from BF16: read as one stream, the fastest */
    DSR_WEIGHT_FP8_PACKED = 3   /* U32, made from FP8; holds the scales too */
} dsr_weight_format;

/* output[r][g][o] = input[r][g] . weight[g][o] for 1 to 64 rows; each weight is read once for all rows. One group is
 * the plain product; several are the grouped output projection, each group with inputs and weights of its own.
 *
 * FP8 weights decode to F32 as E4M3 value * scale. Packed weights give the bits of the unpacked ones.
 * Values: a result that is not finite is 0. */
typedef struct dsr_projection_desc {
    uint32_t struct_size; /* sizeof(dsr_projection_desc) */
    uint32_t n_rows;      /* 1..64 */
    uint32_t n_groups;    /* 0: 1 */
    uint32_t n_inputs;    /* of a group: a multiple of 16 up to 65536 */
    uint32_t n_outputs;   /* of a group: 1..1048576 */
    float output_scale;   /* finite; 0: 1. One F32 product per output, before its rounding */
    dsr_weight_format format;
    dsr_view input; /* BF16 [n_rows, n_groups, n_inputs] */
    dsr_view weight;
    dsr_view scales; /* FP8 only: F32 or U8 (E8M0) [ceil(n_groups * n_outputs / 128), ceil(n_inputs / 128)] */
    dsr_view output; /* F32 or BF16 [n_rows, n_groups, n_outputs] */
} dsr_projection_desc;

#define DSR_PROJECTION_DESC_INIT DSR_STRUCT_INIT(dsr_projection_desc)

DSR_API dsr_status dsr_encode_projection(dsr_encoder *encoder, const dsr_projection_desc *desc);

/* Weights in host memory. */
typedef struct dsr_projection_weights {
    uint32_t struct_size; /* sizeof(dsr_projection_weights) */
    uint32_t n_groups;    /* 0: 1 */
    uint32_t n_inputs;
    uint32_t n_outputs;
    dsr_weight_format format; /* BF16 or FP8: of data; the packed form is the one of the same name */
    dsr_dtype scales_dtype;   /* FP8: F32 or U8 (E8M0) */
    const void *data;
    const void *scales;
} dsr_projection_weights;

#define DSR_PROJECTION_WEIGHTS_INIT DSR_STRUCT_INIT(dsr_projection_weights)

/* Bytes of the packed form; data and scales are not looked at. */
DSR_API dsr_status dsr_projection_packed_bytes(dsr_context *context, const dsr_projection_weights *weights,
                                               uint64_t *size_bytes);
/* Pack into host memory of at least that size: done once, when weights are loaded. The packed form is the same for
 * every device and instruction set of one library version; it is not a file format. */
DSR_API dsr_status dsr_projection_pack(dsr_context *context, const dsr_projection_weights *weights, void *packed,
                                       uint64_t size_bytes);

DSR_END_DECLS
#endif
