/* The table of CUDA kernels and their grids. */
#include "cuda/cuda_kernel.h"
#include "ops/op_plans.h"
#include "ops/projection_layout.h"

#include <stddef.h>

static uint32_t at_most(uint64_t n, uint32_t limit)
{
    return n < limit ? (uint32_t)n : limit;
}

static dsri_cuda_grid compressor_grid(const void *plan)
{
    const dsri_compressor_plan *p = plan;
    return (dsri_cuda_grid){p->n_rows, 1, 1};
}

static dsri_cuda_grid gather_grid(const void *plan)
{
    const dsri_gather_plan *p = plan;
    return (dsri_cuda_grid){at_most((p->row_elements + 255) / 256, 64), p->n_rows, 1};
}

static dsri_cuda_grid copy_grid(const void *plan)
{
    const dsri_copy_plan *p = plan;
    uint32_t longest = 1;
    for (uint32_t r = 0; r < p->n_rows; r++)
        longest = p->rows[r].n_copies > longest ? p->rows[r].n_copies : longest;
    return (dsri_cuda_grid){p->n_rows, at_most(longest, 1024), 1};
}

static dsri_cuda_grid rope_grid(const void *plan)
{
    const dsri_rope_plan *p = plan;
    uint32_t longest = 1;
    for (uint32_t r = 0; r < p->n_rows; r++)
        longest = p->rows[r].n_tokens > longest ? p->rows[r].n_tokens : longest;
    return (dsri_cuda_grid){p->n_rows, at_most(longest, 1024),
                            at_most((p->n_heads * p->head_dim + 8 * 512 - 1) / (8 * 512), 64)};
}

static dsri_cuda_grid fake_quant_grid(const void *plan)
{
    const dsri_fake_quant_plan *p = plan;
    return (dsri_cuda_grid){at_most((p->n_vectors + 3) / 4, 4096), 1, 1};
}

/* Four entries a block. */
static uint32_t entry_blocks(uint64_t n_entries)
{
    return at_most((n_entries + 3) / 4, 4096);
}

static dsri_cuda_grid append_grid(const void *plan)
{
    const dsri_append_plan *p = plan;
    uint32_t longest = 1;
    for (uint32_t r = 0; r < p->n_rows; r++)
        longest = p->rows[r].n_tokens > longest ? p->rows[r].n_tokens : longest;
    return (dsri_cuda_grid){entry_blocks(longest), p->n_rows, 1};
}

static dsri_cuda_grid convert_grid(const void *plan)
{
    const dsri_convert_plan *p = plan;
    uint64_t longest = 1;
    for (uint32_t r = 0; r < p->n_rows; r++)
        longest = p->rows[r].n_entries > longest ? p->rows[r].n_entries : longest;
    return (dsri_cuda_grid){entry_blocks(longest), p->n_rows, 1};
}

static dsri_cuda_grid rms_norm_grid(const void *plan)
{
    const dsri_rms_norm_plan *p = plan;
    return (dsri_cuda_grid){at_most(p->n_vectors, 65535), 1, 1};
}

static dsri_cuda_grid projection_grid(const void *plan)
{
    const dsri_projection_plan *p = plan;
    return (dsri_cuda_grid){p->n_groups * (uint32_t)dsri_panels(p->n_outputs), (p->n_rows + 7) / 8, 1};
}

/* Tiles of tile_keys keys of all queries, as kernels/indexer_runs.cuh deals them. */
static uint64_t index_tiles(const dsri_indexer_plan *p, uint32_t tile_keys)
{
    uint64_t n_tiles = 0;
    for (uint32_t r = 0; r < p->n_rows; r++) {
        const dsri_indexer_row_plan *row = &p->rows[r];
        const uint64_t n = row->scores ? row->kv_len : ((uint64_t)row->start_pos + row->n_queries) / row->ratio;
        n_tiles += (n ? (n + tile_keys - 1) / tile_keys : 1) * row->n_queries;
    }
    return n_tiles;
}

/* Blocks that a Hopper device runs at once: how many there are changes no bits. */
enum { SCORE_BLOCKS = 2 * 132, TENSOR_SCORE_BLOCKS = 132 };

/* As few blocks as have no more tiles each than `most` blocks would. Their equal pieces of the line end with rows where
 * these have a multiple of a piece's tiles: a block begins anew for a second row, and the others wait for it. */
static dsri_cuda_grid line_grid(const void *plan, uint32_t most)
{
    const uint64_t n_tiles = index_tiles(plan, 128), share = (n_tiles + most - 1) / most;
    return (dsri_cuda_grid){(uint32_t)((n_tiles + share - 1) / share), 1, 1};
}

static dsri_cuda_grid scores_grid(const void *plan)
{
    return line_grid(plan, SCORE_BLOCKS);
}

/* A tile for each multiprocessor at most, and heads that indexer_scores.cu deals to as many threads. */
static int has_few_tiles(const void *plan)
{
    const dsri_indexer_plan *p = plan;
    return p->n_heads >= 64 && index_tiles(p, 128) <= SCORE_BLOCKS / 2;
}

static dsri_cuda_grid tensor_scores_grid(const void *plan)
{
    return line_grid(plan, TENSOR_SCORE_BLOCKS);
}

static uint32_t n_packed_rows(const dsri_indexer_plan *p)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < p->n_rows; r++)
        n += p->rows[r].keys.scale_bytes != 0;
    return n;
}

static int has_packed_keys_alone(const void *plan)
{
    const dsri_indexer_plan *p = plan;
    return n_packed_rows(p) == p->n_rows;
}

static int has_packed_keys_and_64_heads(const void *plan)
{
    const dsri_indexer_plan *p = plan;
    return has_packed_keys_alone(plan) && p->n_heads == 64;
}

static int has_packed_keys_too(const void *plan)
{
    const dsri_indexer_plan *p = plan;
    const uint32_t n = n_packed_rows(p);
    return n > 0 && n < p->n_rows;
}

static int has_no_packed_keys(const void *plan)
{
    return n_packed_rows(plan) == 0;
}

/* Keys 256 bytes apart, and what indexer_scores_stream.cu has registers for. */
static int has_keys_in_pieces(const void *plan)
{
    const dsri_indexer_plan *p = plan;
    uintptr_t addresses = 0, strides = 0;
    for (uint32_t r = 0; r < p->n_rows; r++) {
        const dsri_cache *keys = &p->rows[r].keys;
        addresses |= (uintptr_t)keys->pages | (uintptr_t)p->rows[r].q | (keys->page_table ? keys->page_stride : 0);
        strides |= keys->row_stride ^ (2 * DSRI_INDEX_DIM);
    }
    return n_packed_rows(p) == 0 && p->n_heads <= 64 && addresses % 16 == 0 && strides == 0;
}

/* score_shared of kernels/indexer_scores.cu. */
enum {
    SCORES_FIXED_BYTES = 2 * 32 * 128 * 4 + 128 + 128 * 4,
    SCORES_SHARED_BYTES = SCORES_FIXED_BYTES + 128 * 128 * 4
};

static uint32_t scores_shared(const void *plan)
{
    const dsri_indexer_plan *p = plan;
    return SCORES_FIXED_BYTES + p->n_heads * 128 * 4;
}

/* A cluster of 8 blocks a query, or a block a query where lists are short: which is faster, as measured on an H200. */
static dsri_cuda_grid select_grid(const void *plan)
{
    enum { PARTS = 8, FEW_QUERIES = 16, SHORT_KEYS = 2048, SHORT_KEYS_OF_MANY = 8192 };
    const dsri_indexer_plan *p = plan;
    const uint32_t n_alone = (p->n_queries + PARTS - 1) / PARTS * PARTS;
    uint32_t longest = 0;
    for (uint32_t r = 0; r < p->n_rows; r++) {
        const uint32_t n = (p->rows[r].start_pos + p->rows[r].n_queries) / p->rows[r].ratio;
        longest = n > longest ? n : longest;
    }
    const int are_short = longest <= (p->n_queries > FEW_QUERIES ? SHORT_KEYS_OF_MANY : SHORT_KEYS);
    return (dsri_cuda_grid){are_short ? n_alone : PARTS * p->n_queries, 1, 1};
}

/* cluster_shared of kernels/indexer_select.cu; row_shared of kernels/indexer_scores_row.cu: 8 rings of 5 stages; what
 * kernels/indexer_scores_stream.cu has: 8 rings of 2 stages, and 64 heads; fp4_shared of kernels/indexer_fp4.cu: 12
 * rings of 5 stages, and queries of up to 2 groups of 64 heads: bytes, starts, weights and signs, shifts; wide_shared
 * of kernels/indexer_fp4_wide.cu: 16 rings of 2 stages, and 64 heads: bytes, weights, shifts. */
enum {
    SELECT_SHARED_BYTES = 2080 * 4 + 2052 * 4 + 2112 * 12 + 8 * 514 * 8 + 320,
    SELECT_ALONE_SHARED_BYTES = 117 * 1024, /* more than half of a multiprocessor's */
    ROW_SCORES_SHARED_BYTES = 8 * 5 * 4096 + 64 * 8 + 256,
    STREAM_SCORES_SHARED_BYTES = 8 * (2 * 4096 + 128) + 64 * 20 * 16,
    WIDE_SCORES_SHARED_BYTES = 16 * 2 * (2048 + 128) + 10240 + 512 + 256 + 64 + 128,
    FP4_SCORES_SHARED_BYTES = 12 * 5 * (2048 + 128) + 2 * (8192 + 512 + 512 + 256) + 64 + 128
};

/* A block of the selection gets a multiprocessor of its own where there are enough: two of a cluster would share one
 * while others are idle. 16 clusters would have to wait for one another then. */
static uint32_t select_shared(const void *plan)
{
    enum { FEW_QUERIES = 8 };
    const dsri_indexer_plan *p = plan;
    return p->n_queries <= FEW_QUERIES ? SELECT_ALONE_SHARED_BYTES : SELECT_SHARED_BYTES;
}

#define ROW_SCORES_LAUNCH                                                                                              \
    {                                                                                                                  \
        .entry = "dsr_indexer_scores_row_bf16__cuda", .block_x = 256, .waits = 1,                                      \
        .shared_bytes = ROW_SCORES_SHARED_BYTES, .grid = tensor_scores_grid,                                           \
    }

#define STREAM_SCORES_LAUNCH                                                                                           \
    {                                                                                                                  \
        .entry = "dsr_indexer_scores_stream_bf16__cuda", .block_x = 256, .waits = 1,                                   \
        .shared_bytes = STREAM_SCORES_SHARED_BYTES, .grid = tensor_scores_grid,                                        \
    }

#define WIDE_SCORES_LAUNCH                                                                                             \
    {                                                                                                                  \
        .entry = "dsr_indexer_scores_wide_fp4__cuda", .block_x = 512, .waits = 1,                                      \
        .shared_bytes = WIDE_SCORES_SHARED_BYTES, .grid = tensor_scores_grid,                                          \
    }

#define FP4_SCORES_LAUNCH                                                                                              \
    {                                                                                                                  \
        .entry = "dsr_indexer_scores_fp4__cuda", .block_x = 384, .waits = 1, .shared_bytes = FP4_SCORES_SHARED_BYTES,  \
        .grid = tensor_scores_grid,                                                                                    \
    }

#define EXACT_SCORES_LAUNCH(name, n_threads)                                                                           \
    {                                                                                                                  \
        .entry = name, .block_x = n_threads, .waits = 1, .shared_bytes = SCORES_SHARED_BYTES,                          \
        .shared_of = scores_shared, .grid = scores_grid,                                                               \
    }

#define SELECT_LAUNCH                                                                                                  \
    {                                                                                                                  \
        .entry = "dsr_indexer_select_f32__cuda", .block_x = 512, .waits = 1,                                           \
        .shared_bytes = SELECT_ALONE_SHARED_BYTES, .shared_of = select_shared, .grid = select_grid,                    \
    }

/* Blocks of attention_exact.cu: some slots, or features, of some heads. */
static dsri_cuda_grid logits_grid(const dsri_attention_plan *p, uint32_t n_heads, uint32_t n_slots)
{
    uint32_t widest = 1;
    for (uint32_t r = 0; r < p->n_rows; r++)
        widest = p->rows[r].width > widest ? p->rows[r].width : widest;
    return (dsri_cuda_grid){(widest + n_slots - 1) / n_slots, p->n_heads / n_heads, p->n_queries};
}

static dsri_cuda_grid values_grid(const dsri_attention_plan *p, uint32_t n_heads, uint32_t n_features)
{
    return (dsri_cuda_grid){DSRI_HEAD_DIM / n_features, p->n_heads / n_heads, p->n_queries};
}

#define EXACT_ATTENTION_GRID(kind, which, n_heads, n_columns)                                                          \
    static dsri_cuda_grid which##n_heads##x##n_columns##_grid(const void *plan)                                        \
    {                                                                                                                  \
        return kind##_grid(plan, n_heads, n_columns);                                                                  \
    }

EXACT_ATTENTION_GRID(logits, few_logits, 16, 20)
EXACT_ATTENTION_GRID(logits, logits, 16, 80)
EXACT_ATTENTION_GRID(logits, logits, 32, 80)
EXACT_ATTENTION_GRID(logits, logits, 64, 80)
EXACT_ATTENTION_GRID(values, few_values, 8, 32)
EXACT_ATTENTION_GRID(values, values, 16, 64)
EXACT_ATTENTION_GRID(values, values, 32, 64)
EXACT_ATTENTION_GRID(values, values, 64, 256)
EXACT_ATTENTION_GRID(values, few_chunks, 8, 32)
EXACT_ATTENTION_GRID(values, chunks, 16, 64)
EXACT_ATTENTION_GRID(values, chunks, 32, 64)
EXACT_ATTENTION_GRID(values, chunks, 64, 256)

/* Of attention_row.cu: 5 ranks of 8, 16 or 32 heads, or all ranks of 32 heads in a block. */
static dsri_cuda_grid row8_attention_grid(const void *plan)
{
    const dsri_attention_plan *p = plan;
    return (dsri_cuda_grid){5, p->n_heads / 8, p->n_queries};
}

static dsri_cuda_grid row16_attention_grid(const void *plan)
{
    const dsri_attention_plan *p = plan;
    return (dsri_cuda_grid){5, p->n_heads / 16, p->n_queries};
}

static dsri_cuda_grid row32_attention_grid(const void *plan)
{
    const dsri_attention_plan *p = plan;
    return (dsri_cuda_grid){5, p->n_heads / 32, p->n_queries};
}

static dsri_cuda_grid rows_attention_grid(const void *plan)
{
    const dsri_attention_plan *p = plan;
    return (dsri_cuda_grid){1, p->n_heads / 32, p->n_queries};
}

/* Of attention_row_mma.cu: 16 heads a block. */
static dsri_cuda_grid mma16_attention_grid(const void *plan)
{
    const dsri_attention_plan *p = plan;
    return (dsri_cuda_grid){p->n_heads / 16, p->n_queries, 1};
}

/* Which is fastest, as measured on an H200; the bits are the same. Of 64 heads: */
enum {
    FEW_EXACT_ROWS = 2,
    SMALL_EXACT_ROWS = 4,
    NARROW_EXACT_ROWS = 8,
    MIDDLE_EXACT_ROWS = 40,
    ROW8_ROWS = 2,
    ROW16_ROWS = 5,
    ROW32_ROWS = 22
};

static int is_at_most(const dsri_attention_plan *p, uint32_t n_rows)
{
    return p->n_queries * p->n_heads <= 64 * n_rows;
}

static int is_few_exact(const void *plan)
{
    return is_at_most(plan, FEW_EXACT_ROWS);
}

static int is_small_exact(const void *plan)
{
    return is_at_most(plan, SMALL_EXACT_ROWS);
}

static int is_narrow_exact(const void *plan)
{
    return is_at_most(plan, NARROW_EXACT_ROWS);
}

static int is_middle_exact(const void *plan)
{
    return is_at_most(plan, MIDDLE_EXACT_ROWS);
}

static int is_for_row8(const void *plan)
{
    return is_at_most(plan, ROW8_ROWS);
}

static int is_for_row16(const void *plan)
{
    return is_at_most(plan, ROW16_ROWS);
}

static int is_for_row32(const void *plan)
{
    return is_at_most(plan, ROW32_ROWS);
}

/* The flags of attention_common.cuh. */
static uint64_t attention_flag_bytes(const void *plan)
{
    const dsri_attention_plan *p = plan;
    return (uint64_t)p->n_queries * 1024;
}

/* logit_shared of attention_exact.cu: 4 stages of 32 features, where slots lie, barriers. value_block: 3 stages of 64
 * slots, statistics, barriers. many_shared of attention_exact_many.cu: two stages of 32 slots, statistics. */
#define LOGITS_BYTES(n_heads, n_slots)    (4 * 32 * ((n_heads) + (n_slots)) * 4 + (n_slots)*16 + 64)
#define VALUES_BYTES(n_heads, n_features) (3 * 64 * ((n_heads) + (n_features)) * 4 + 5 * (n_heads)*4 + 256 * 4 + 80)
enum { MANY_VALUES_BYTES = 2 * 32 * (64 * 4 + 256 * 2) + 3 * 64 * 4 + 256 * 4 };

/* Of attention_exact_few.cu. Logits: rows of 516 floats, where slots lie. Values: 8 x 644 weights, 32 x 640 values,
 * statistics. */
enum {
    FEW_LOGITS_BYTES = 36 * 516 * 4 + 20 * 16,
    FEW_VALUES_BYTES = (8 * 644 + 32 * 640 + 10 * 8 + 2 * 8) * 4,
    FEW_SPREAD_BYTES = 116000
};

/* With so much shared memory a multiprocessor starts one block of the second launch while it still runs one of the
 * first: so the blocks of one row spread over all. */
static uint32_t few_values_bytes(const void *plan)
{
    return is_at_most(plan, 1) ? FEW_SPREAD_BYTES : FEW_VALUES_BYTES;
}

#define EXACT_ATTENTION(which, logits, logits_bytes, values, values_bytes, condition)                                  \
    {                                                                                                                  \
        .op = which, .n_launches = 2,                                                                                  \
        .launches = {{.entry = "dsr_attention_" #logits "__cuda",                                                      \
                      .block_x = 256,                                                                                  \
                      .shared_bytes = logits_bytes,                                                                    \
                      .waits = 1,                                                                                      \
                      .grid = logits##_grid},                                                                          \
                     {.entry = "dsr_attention_" #values "__cuda",                                                      \
                      .block_x = 256,                                                                                  \
                      .shared_bytes = values_bytes,                                                                    \
                      .waits = 1,                                                                                      \
                      .grid = values##_grid}},                                                                         \
        .zeroed_bytes = attention_flag_bytes, .accepts = condition                                                     \
    }

#define FEW_EXACT_ATTENTION(which, form)                                                                               \
    {                                                                                                                  \
        .op = which, .n_launches = 2,                                                                                  \
        .launches = {{.entry = "dsr_attention_few_logits16x20__cuda",                                                  \
                      .block_x = 288,                                                                                  \
                      .shared_bytes = FEW_LOGITS_BYTES,                                                                \
                      .waits = 1,                                                                                      \
                      .grid = few_logits16x20_grid},                                                                   \
                     {.entry = "dsr_attention_few_" #form "8x32__cuda",                                                \
                      .block_x = 256,                                                                                  \
                      .shared_bytes = FEW_SPREAD_BYTES,                                                                \
                      .shared_of = few_values_bytes,                                                                   \
                      .waits = 1,                                                                                      \
                      .grid = few_##form##8x32_grid}},                                                                 \
        .zeroed_bytes = attention_flag_bytes, .accepts = is_few_exact                                                  \
    }

#define EXACT_ATTENTIONS(which, form)                                                                                  \
    FEW_EXACT_ATTENTION(which, form),                                                                                  \
        EXACT_ATTENTION(which, logits16x80, LOGITS_BYTES(16, 80), form##16x64, VALUES_BYTES(16, 64), is_small_exact),  \
        EXACT_ATTENTION(which, logits32x80, LOGITS_BYTES(32, 80), form##32x64, VALUES_BYTES(32, 64), is_narrow_exact), \
        EXACT_ATTENTION(which, logits64x80, LOGITS_BYTES(64, 80), form##32x64, VALUES_BYTES(32, 64), is_middle_exact), \
        EXACT_ATTENTION(which, logits64x80, LOGITS_BYTES(64, 80), form##64x256, MANY_VALUES_BYTES, NULL)

/* att_shared of attention_row.cu: two tiles of 64 slots; numerators of 5 ranks in the place of queries; weights,
 * statistics. */
#define ROW_SHARED_BYTES(n_heads)                                                                                      \
    (2 * 64 * 1024 + 5 * (((n_heads) + 4) / 5) * 128 * 16 + (n_heads) * (128 + 7 * 8 + 11 * 4) + 32 * 8 + 16 +         \
     2 * 64 + 16)

#define ROW_ATTENTION_FORM(which, form, n_heads, condition, can_be_followed)                                           \
    {                                                                                                                  \
        .op = which, .exactness = DSR_EXACT_ROW, .n_launches = 1,                                                      \
        .launches = {{.entry = "dsr_attention_" #form "_bf16__cuda",                                                   \
                      .block_x = 512,                                                                                  \
                      .shared_bytes = ROW_SHARED_BYTES(n_heads),                                                       \
                      .waits = 1,                                                                                      \
                      .grid = form##_attention_grid}},                                                                 \
        .accepts = condition, .follower = can_be_followed, .min_compute = 90                                           \
    }

#define ROW_ATTENTION(which)                                                                                           \
    ROW_ATTENTION_FORM(which, row8, 8, is_for_row8, DSRI_FOLLOWER_ROTATION),                                           \
        ROW_ATTENTION_FORM(which, row16, 16, is_for_row16, DSRI_FOLLOWER_ROTATION),                                    \
        ROW_ATTENTION_FORM(which, row32, 32, is_for_row32, DSRI_FOLLOWER_ROTATION),                                    \
        ROW_ATTENTION_FORM(which, rows, 32, NULL, DSRI_FOLLOWER_NONE)

/* mma_shared of attention_row_mma.cu: two tiles of 64 slots; a tile's logits in 4 parts; weights; where the rows of 512
 * slots are. */
enum { MMA_ATTENTION_BYTES = 2 * 64 * 1024 + 4 * 16 * 72 * 4 + 16 * (128 + 4) + 512 * 16 + 8 };

#define MMA_ATTENTION(which)                                                                                           \
    {                                                                                                                  \
        .op = which, .exactness = DSR_EXACT_ROW, .n_launches = 1, .launches = {                                        \
            {.entry = "dsr_attention_mma16_bf16__cuda",                                                                \
             .block_x = 512,                                                                                           \
             .shared_bytes = MMA_ATTENTION_BYTES,                                                                      \
             .waits = 1,                                                                                               \
             .grid = mma16_attention_grid}                                                                             \
        }                                                                                                              \
    }

/* Of projection.cu: 8 segments of 8 rows of 512 BF16 inputs, and their sums. */
enum { PROJECTION_SHARED_BYTES = 8 * 8 * 512 * 2 + 8 * 8 * 32 * 4 };
enum { RMS_NORM_SHARED_BYTES = 16384 * 4 };

static const dsri_cuda_kernel kernels[] = {
    EXACT_ATTENTIONS(DSRI_OP_SPARSE_ATTENTION, values),
    EXACT_ATTENTIONS(DSRI_OP_FLASH_ATTENTION, chunks),
    ROW_ATTENTION(DSRI_OP_SPARSE_ATTENTION),
    ROW_ATTENTION(DSRI_OP_FLASH_ATTENTION),
    MMA_ATTENTION(DSRI_OP_SPARSE_ATTENTION),
    MMA_ATTENTION(DSRI_OP_FLASH_ATTENTION),
    {.op = DSRI_OP_INDEXER,
     .n_launches = 2,
     .launches = {WIDE_SCORES_LAUNCH, SELECT_LAUNCH},
     .accepts = has_packed_keys_and_64_heads,
     .min_compute = 90},
    {.op = DSRI_OP_INDEXER,
     .n_launches = 2,
     .launches = {FP4_SCORES_LAUNCH, SELECT_LAUNCH},
     .accepts = has_packed_keys_alone},
    {.op = DSRI_OP_INDEXER,
     .n_launches = 2,
     .launches = {EXACT_SCORES_LAUNCH("dsr_indexer_scores_short_bf16__cuda", 256), SELECT_LAUNCH},
     .accepts = has_few_tiles},
    {.op = DSRI_OP_INDEXER,
     .n_launches = 2,
     .launches = {EXACT_SCORES_LAUNCH("dsr_indexer_scores_bf16__cuda", 128), SELECT_LAUNCH}},
    {.op = DSRI_OP_INDEXER,
     .exactness = DSR_EXACT_ROW,
     .n_launches = 2,
     .launches = {STREAM_SCORES_LAUNCH, SELECT_LAUNCH},
     .accepts = has_keys_in_pieces,
     .min_compute = 90},
    {.op = DSRI_OP_INDEXER,
     .exactness = DSR_EXACT_ROW,
     .n_launches = 2,
     .launches = {ROW_SCORES_LAUNCH, SELECT_LAUNCH},
     .accepts = has_no_packed_keys},
    /* Each row by the kernel that it has alone. */
    {.op = DSRI_OP_INDEXER,
     .exactness = DSR_EXACT_ROW,
     .n_launches = 3,
     .launches = {ROW_SCORES_LAUNCH, FP4_SCORES_LAUNCH, SELECT_LAUNCH},
     .accepts = has_packed_keys_too},
    {.op = DSRI_OP_COMPRESSOR,
     .n_launches = 1,
     .launches = {{.entry = "dsr_compressor_f32__cuda", .block_x = 512, .waits = 1, .grid = compressor_grid}},
     .bundle = DSRI_BUNDLE_COMPRESSOR,
     .follower = DSRI_FOLLOWER_APPEND},
    {.op = DSRI_OP_GATHER,
     .n_launches = 1,
     .launches = {{.entry = "dsr_gather_f32__cuda", .block_x = 256, .waits = 1, .grid = gather_grid}}},
    {.op = DSRI_OP_COPY,
     .n_launches = 1,
     .launches = {{.entry = "dsr_copy_bytes__cuda", .block_x = 128, .waits = 1, .grid = copy_grid}},
     .bundle = DSRI_BUNDLE_COPY},
    {.op = DSRI_OP_ROPE,
     .n_launches = 1,
     .launches = {{.entry = "dsr_rope_bf16__cuda", .block_x = DSRI_BUNDLE_THREADS, .waits = 1, .grid = rope_grid}},
     .bundle = DSRI_BUNDLE_ROPE},
    {.op = DSRI_OP_FAKE_QUANT,
     .n_launches = 1,
     .launches = {{.entry = "dsr_fake_quant_bf16__cuda", .block_x = 128, .waits = 1, .grid = fake_quant_grid}}},
    {.op = DSRI_OP_APPEND,
     .n_launches = 1,
     .launches = {{.entry = "dsr_append_bf16__cuda", .block_x = 128, .waits = 1, .grid = append_grid}},
     .bundle = DSRI_BUNDLE_APPEND},
    {.op = DSRI_OP_CONVERT,
     .n_launches = 1,
     .launches = {{.entry = "dsr_convert_cache__cuda", .block_x = 128, .waits = 1, .grid = convert_grid}}},
    {.op = DSRI_OP_RMS_NORM,
     .n_launches = 1,
     .launches = {{.entry = "dsr_rms_norm_f32__cuda",
                   .block_x = 256,
                   .waits = 1,
                   .shared_bytes = RMS_NORM_SHARED_BYTES,
                   .grid = rms_norm_grid}}},
    {.op = DSRI_OP_PROJECTION,
     .n_launches = 1,
     .launches = {{.entry = "dsr_projection_bf16__cuda",
                   .block_x = 256,
                   .waits = 1,
                   .shared_bytes = PROJECTION_SHARED_BYTES,
                   .grid = projection_grid}}},
};

const char dsri_cuda_bundle_entry[] = "dsr_bundle__cuda";

size_t dsri_cuda_bundled_bytes(dsri_bundle_code code, const void *plan)
{
    union {
        const void *any;
        const dsri_compressor_plan *compressor;
        const dsri_copy_plan *copy;
        const dsri_rope_plan *rope;
        const dsri_append_plan *append;
    } p = {plan};
    switch (code) {
    case DSRI_BUNDLE_COMPRESSOR:
        return offsetof(dsri_compressor_plan, rows) + p.compressor->n_rows * sizeof p.compressor->rows[0];
    case DSRI_BUNDLE_COPY:
        return offsetof(dsri_copy_plan, rows) + p.copy->n_rows * sizeof p.copy->rows[0];
    case DSRI_BUNDLE_ROPE:
        return offsetof(dsri_rope_plan, rows) + p.rope->n_rows * sizeof p.rope->rows[0];
    case DSRI_BUNDLE_APPEND:
        return offsetof(dsri_append_plan, rows) + p.append->n_rows * sizeof p.append->rows[0];
    default:
        return 0;
    }
}

const dsri_cuda_kernel *dsri_cuda_kernel_at(uint32_t index)
{
    return index < sizeof kernels / sizeof kernels[0] ? &kernels[index] : NULL;
}
