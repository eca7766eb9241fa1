/* One DeepSeek-V4 attention layer, advanced by tokens for any set of requests, with all that a request owns kept in one
 * object. A request's hidden states depend on nothing but its own tokens: not on how they were cut into prefill and
 * decode calls, nor on who else was in any call.
 *
 * The path of a token x (BF16, already normed by the block): q = rope(head_norm(q_b . q_norm(q_a . x))); KV row =
 * rope(kv_norm(kv . x)) into the window ring; the compressors; for ratio 4 the indexer; sparse attention over window
 * and compressed rows; inverse rope; grouped output projection o_a, then o_b. Values are F32 between the BF16
 * boundaries: projection inputs, q and KV rows after rope, compressed rows, the attention output, o_a's output
 * (docs/numerics.md). */
#ifndef DSROWS_ATTENTION_H
#define DSROWS_ATTENTION_H

#include <dsrows/ops.h>
#include <dsrows/step_plan.h>

DSR_BEGIN_DECLS

typedef struct dsr_attention dsr_attention;
typedef struct dsr_sequence dsr_sequence;

enum {
    DSR_MAX_STEP_TOKENS = 64,    /* tokens of one decode step, over all its sequences */
    DSR_MAX_DRAFT_TOKENS = 8,    /* tokens of one sequence in a decode step */
    DSR_MAX_TRUNCATE_TOKENS = 64 /* how far back a sequence can go */
};

/* How KV rows and index keys are rounded before they are stored, and as what. The last two give the same bits. */
typedef enum dsr_cache_treatment {
    DSR_CACHE_BF16 = 0, /* plain BF16 */
    DSR_CACHE_OFFICIAL =
        1,               /* FP8 block 64 for KV rows, Hadamard and FP4 block 32 for index queries and keys; as BF16 */
    DSR_CACHE_PACKED = 2 /* the same rounding, in packed rows (DSR_FORMAT_FP8) and keys (DSR_FORMAT_FP4) */
} dsr_cache_treatment;

/* Zero means the default where one is given; the rest must be set. */
typedef struct dsr_attention_config {
    uint32_t struct_size; /* sizeof(dsr_attention_config) */
    dsr_layer_kind kind;
    uint32_t hidden_size;        /* a multiple of 16 */
    uint32_t n_heads;            /* 64 or 128 */
    uint32_t q_rank;             /* a multiple of 16 */
    uint32_t o_groups;           /* divides n_heads */
    uint32_t o_rank;             /* per group, a multiple of 16 */
    uint32_t n_index_heads;      /* 32, 64 (default) or 128; ratio 4 only */
    uint32_t top_k;              /* default 512; ratio 4 only */
    float epsilon;               /* default 1e-6 */
    float scale;                 /* default 512^-0.5 */
    float rope_theta;            /* default 10000 for window layers, 160000 else */
    float yarn_factor;           /* default 1 (none) for window layers, 16 else; 1 turns YaRN off */
    float yarn_original_context; /* default 65536 */
    float yarn_beta_fast;        /* default 32 */
    float yarn_beta_slow;        /* default 1 */
    dsr_cache_treatment cache;
} dsr_attention_config;

#define DSR_ATTENTION_CONFIG_INIT DSR_STRUCT_INIT(dsr_attention_config)

/* A tensor of a checkpoint, as a lookup function finds it. Host memory, row-major, read during dsr_attention_create
 * only: weights are repacked into memory of the layer's own. */
typedef struct dsr_tensor {
    const void *data;
    uint64_t size_bytes;
    uint64_t shape[4];
    uint32_t n_dims;
    dsr_dtype dtype; /* U8 for FP8 E4M3 weights and for E8M0 scales */
} dsr_tensor;

/* Finds a tensor by its name in the checkpoint; returns 1 and fills *tensor, or 0 if there is none. */
typedef int (*dsr_tensor_lookup_fn)(void *user, const char *name, dsr_tensor *tensor);

/* Create a layer from the tensors of a Hugging Face checkpoint: <prefix>q_a_proj.weight, q_a_norm.weight,
 * q_b_proj.weight, kv_proj.weight, kv_norm.weight, o_a_proj.weight, o_b_proj.weight, sinks,
 * compressor.{kv_proj,gate_proj}.weight, compressor.position_bias, compressor.kv_norm.weight,
 * compressor.indexer.{q_b_proj,kv_proj,gate_proj}.weight, compressor.indexer.position_bias,
 * compressor.indexer.kv_norm.weight, compressor.indexer.scorer.weights_proj.weight. Weights are BF16, or FP8 E4M3 (U8)
 * with a second tensor <name>_scale_inv of one F32 or E8M0 (U8) scale per 128 x 128 block; norms, biases and sinks are
 * F32 or BF16. A missing tensor gives DSR_ERR_MISSING_TENSOR, a wrong one DSR_ERR_DTYPE or DSR_ERR_SIZE; the context's
 * error text names it, what it is and what is needed. */
DSR_API dsr_status dsr_attention_create(dsr_context *context, const dsr_attention_config *config,
                                        dsr_tensor_lookup_fn lookup, void *lookup_user, const char *prefix,
                                        dsr_attention **attention);
/* Its sequences must have been destroyed before; a layer is kept, unusable, until the last of them is. */
DSR_API void dsr_attention_destroy(dsr_attention *attention);
/* The configuration with its defaults filled in. config->struct_size is set by the caller. */
DSR_API dsr_status dsr_attention_get_config(const dsr_attention *attention, dsr_attention_config *config);

/* ---- sequences -------------------------------------------------------------------------------------------- */

/* Bytes of device memory a sequence of at most max_context tokens takes (1..1048576). */
DSR_API dsr_status dsr_sequence_bytes(const dsr_attention *attention, uint32_t max_context, uint64_t *size_bytes);
/* An empty sequence of a layer with room for max_context tokens. */
DSR_API dsr_status dsr_sequence_create(dsr_attention *attention, uint32_t max_context, dsr_sequence **sequence);
DSR_API void dsr_sequence_destroy(dsr_sequence *sequence);
/* Tokens so far, which is the position of the next one. */
DSR_API uint32_t dsr_sequence_position(const dsr_sequence *sequence);
DSR_API uint32_t dsr_sequence_max_context(const dsr_sequence *sequence);
/* Make room for max_context tokens, at least the present room. */
DSR_API dsr_status dsr_sequence_grow(dsr_sequence *sequence, uint32_t max_context);
/* Back to empty. */
DSR_API dsr_status dsr_sequence_reset(dsr_sequence *sequence);
/* A second sequence with the same tokens. Nothing is copied until one of the two is written. */
DSR_API dsr_status dsr_sequence_fork(dsr_sequence *sequence, dsr_sequence **fork);
/* Forget the last n_tokens tokens; the state is then byte-equal to one that never saw them. DSR_ERR_STATE, changing
 * nothing, if that is further back than the sequence remembers: dsr_sequence_max_truncate() tokens. 0 is allowed, and
 * undoes what a replay of a step's encoder did to the state (dsr_attention_encoder). */
DSR_API dsr_status dsr_sequence_truncate(dsr_sequence *sequence, uint32_t n_tokens);
/* How many tokens can be forgotten now: at most DSR_MAX_TRUNCATE_TOKENS, less after a truncation or a step that the
 * device broke off, and none of those from before a load. */
DSR_API uint32_t dsr_sequence_max_truncate(const dsr_sequence *sequence);

/* Bytes dsr_sequence_save writes. Equal states give equal bytes, whatever calls led to them. */
DSR_API uint64_t dsr_sequence_save_bytes(const dsr_sequence *sequence);
/* Save to memory of exactly that size. The form has a version, the layer's configuration, a fingerprint of all bytes of
 * its tensors and a checksum. It does not say on which device, instruction set or exactness the state was computed: the
 * state is its bytes, and any context may go on from them. Where two contexts give the same bits, so do a save and a
 * load between them; a state of a row-exact context may differ in bits from what a device-exact one would have
 * computed. */
DSR_API dsr_status dsr_sequence_save(const dsr_sequence *sequence, void *memory, uint64_t size_bytes);
/* Replace a sequence's state by a saved one, growing if needed. A damaged or foreign form, or one of another
 * configuration, layer or version, gives DSR_ERR_FORMAT and changes nothing. */
DSR_API dsr_status dsr_sequence_load(dsr_sequence *sequence, const void *memory, uint64_t size_bytes);
/* Save to a file: new, or a regular one that the caller may write, which is replaced when the new one is whole and on
 * the disk. Its permissions, group and owner stay; a group that the caller may not give loses its permissions, and the
 * owner becomes the caller where it must. The directory must be writable, too. A link leads to the file to replace.
 * Anything else at `path` gives DSR_ERR_IO and stays as it is. */
DSR_API dsr_status dsr_sequence_save_file(const dsr_sequence *sequence, const char *path);
/* Load from a regular file, which is read no further than its header says. Anything else at `path` gives DSR_ERR_IO. */
DSR_API dsr_status dsr_sequence_load_file(dsr_sequence *sequence, const char *path);

/* ---- steps ------------------------------------------------------------------------------------------------ */

/* One sequence of a step: n_tokens new tokens, rows first_row.. of hidden and output. */
typedef struct dsr_step_entry {
    dsr_sequence *sequence; /* each at most once in a step */
    uint64_t first_row;
    uint32_t n_tokens; /* 0: 1; up to 8 (draft tokens); truncate the sequence after to reject some */
} dsr_step_entry;

typedef struct dsr_step_desc {
    uint32_t struct_size; /* sizeof(dsr_step_desc) */
    uint32_t n_entries;   /* 1..64; at most 64 tokens in all */
    const dsr_step_entry *entries;
    dsr_view hidden; /* BF16 [rows, hidden_size] */
    dsr_view output; /* F32 or BF16 [rows, hidden_size]; may not overlap hidden */
} dsr_step_desc;

#define DSR_STEP_DESC_INIT DSR_STRUCT_INIT(dsr_step_desc)

/* Advance n sequences jointly. A failed step leaves every sequence as it was. Sequences may join, leave and change
 * places between steps. Steady state allocates nothing (the first step of a size, the first truncation, a fork's first
 * write and a grow do). */
DSR_API dsr_status dsr_attention_decode(dsr_attention *attention, const dsr_step_desc *desc);
/* Advance one sequence by any number of tokens: rows 0..n_tokens-1 of hidden and output. Runs in pieces of 64 tokens;
 * if a piece fails, the sequence keeps none of the call's tokens. */
DSR_API dsr_status dsr_attention_prefill(dsr_attention *attention, dsr_sequence *sequence, uint64_t n_tokens,
                                         dsr_view hidden, dsr_view output);
/* The encoder of the layer's last step, for capture and replay. It stays the layer's; null before the first step, and
 * without commands after one that failed. Replay runs the step's commands again on the same memory, without advancing
 * the positions: with every sequence of the step truncated by its tokens of that step, it gives the same bytes. Before
 * another replay, truncate them by 0 tokens. Replay gives DSR_ERR_STATE, changing nothing, while one of those sequences
 * is not where the step began or was not truncated so, and once one was forked, grown, loaded or destroyed after the
 * step. A graph captured from it may be launched only where a replay could run; after a launch, truncate those
 * sequences by 0 tokens before anything else. */
DSR_API dsr_encoder *dsr_attention_encoder(dsr_attention *attention);
/* The compressed entries that a token of the layer's last step attended to, in order of selection: at most top_k
 * numbers into `entries`, which has room for top_k, and how many into *n_entries. Entry e stands for tokens 4 e to
 * 4 e + 3. Tokens of a step are numbered through in the order of its entries; of a prefill those of its last piece are
 * there: with n tokens, token t of the call is number t - (n - 1) / 64 * 64. Layers of ratio 4 only (DSR_ERR_VALUE);
 * DSR_ERR_STATE before the first step and after a failed or refused one. */
DSR_API dsr_status dsr_attention_selection(const dsr_attention *attention, uint32_t token, uint32_t *entries,
                                           uint32_t *n_entries);

DSR_END_DECLS
#endif
