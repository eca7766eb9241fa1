/* What the index score kernels share: how their work is dealt to blocks, where a query's operands lie, and what they
 * leave for the selection. */
#ifndef DSRI_INDEXER_COMMON_CUH
#define DSRI_INDEXER_COMMON_CUH

#include "cuda/kernels/tiles.cuh"
#include "ops/indexer_workspace.h"

enum { INDEX_TILE = DSRI_INDEX_TILE }; /* keys that a block scores at a time */

/* Selection looks for groups of 16 keys before it looks at keys where there are many. */
static __device__ __forceinline__ bool has_maxima(uint64_t n_seen, uint32_t top_k)
{
    return n_seen > 16384 && n_seen >= (uint64_t)top_k * 2 * DSRI_SCORE_BLOCK;
}

struct indexer_query {
    dsri_cache keys;
    const uint16_t *q;
    const float *weights;
    float *scores; /* of this query: n_seen, or kv_len where the caller wants them */
    float *maxima; /* of 16 keys each; null: not asked for */
    int32_t *output;
    uint32_t n_seen;   /* keys the query sees */
    uint32_t n_scores; /* scores to write */
    int32_t offset;
    bool reads_alone; /* no other query of the row reads the keys */
};

/* Query i of row r. */
static __device__ __forceinline__ void query_at(const dsri_indexer_plan &plan, uint32_t r, uint32_t i,
                                                indexer_query &at)
{
    const dsri_indexer_row_plan &row = plan.rows[r];
    const uint32_t n_last = (row.start_pos + row.n_queries) / row.ratio;
    const dsri_indexer_region region = dsri_indexer_region_of(n_last);
    uint8_t *own = row.workspace + i * region.size_bytes;
    at.keys = row.keys;
    at.q = row.q + (uint64_t)i * plan.n_heads * DSRI_INDEX_DIM;
    at.weights = row.weights + (uint64_t)i * plan.n_heads;
    at.n_seen = (row.start_pos + i + 1) / row.ratio;
    at.scores = row.scores ? row.scores + i * row.kv_len : reinterpret_cast<float *>(own + region.scores);
    at.maxima = has_maxima(at.n_seen, plan.top_k) ? reinterpret_cast<float *>(own + region.block_maxima) : nullptr;
    at.n_scores = row.scores ? (uint32_t)row.kv_len : at.n_seen;
    at.output = row.output + i * row.output_stride;
    at.offset = row.offset;
    at.reads_alone = row.n_queries == 1;
}

/* The query numbered `number` through all rows. */
static __device__ __forceinline__ void find_query(const dsri_indexer_plan &plan, uint32_t number, indexer_query &at)
{
    uint32_t r = plan.n_queries == plan.n_rows ? number : 0; /* one query a row: no search */
    while (r + 1 < plan.n_rows && plan.rows[r + 1].first_query <= number)
        r++;
    query_at(plan, r, number - plan.rows[r].first_query, at);
}

/* Greater scores give greater values; -0 and +0 the same. Excluded keys (-inf) give EXCLUDED. */
enum { EXCLUDED = 0x007fffff };
static __device__ __forceinline__ uint32_t ordered_score(float score)
{
    const uint32_t b = __float_as_uint(__fadd_rn(score, 0.0f));
    return b ^ ((uint32_t)((int32_t)b >> 31) | 0x80000000u);
}

static __device__ __forceinline__ float score_of_ordered(uint32_t ordered)
{
    return __uint_as_float(ordered & 0x80000000u ? ordered ^ 0x80000000u : ~ordered);
}

/* Stores a key's score, or -inf. Gives what it stored; -inf past the last score. */
static __device__ __forceinline__ float store_score(const indexer_query &at, uint32_t key, bool is_good, float score)
{
    const float stored = is_good && key < at.n_seen && f32_is_finite(score) ? score : __uint_as_float(0xff800000u);
    if (key < at.n_scores)
        at.scores[key] = stored;
    return stored;
}

/* Value of feature f of a packed key: exact as F32. */
static __device__ __forceinline__ float fp4_value(const dsri_cache_entry &key, uint32_t f)
{
    const uint32_t code = key.values[f / 2] >> f % 2 * 4, magnitude = code & 7u, scale = key.scales[f / 32];
    const uint32_t doubled = 0xc8643210u >> 4 * magnitude & 15u;
    const float unit = scale == 255 ? __uint_as_float(0x7fc00000u) : scale ? __uint_as_float(scale << 23) : 0x1p-127f;
    const float value = __fmul_rn(__fmul_rn((float)doubled, 0.5f), unit);
    return code & 8u ? -value : value;
}

/* How a kernel of BF16 keys reads them. */
enum key_source { BY_ELEMENT, BY_WORDS, FROM_FP4 };

/* BY_WORDS if keys and queries can be read 16 bytes at a time. */
static __device__ __forceinline__ key_source source_of(const indexer_query &at)
{
    const uint64_t paged = at.keys.page_table ? at.keys.page_stride : 0;
    const bool has_words = (((uintptr_t)at.keys.pages | at.keys.row_stride | paged | (uintptr_t)at.q) & 15) == 0;
    return at.keys.scale_bytes ? FROM_FP4 : has_words ? BY_WORDS : BY_ELEMENT;
}

/* Brings features [f, f + 8) of a key to shared memory as BF16, zeros for a key of no values; BY_WORDS once the copy
 * has finished. `anything` can be read. */
template <key_source SOURCE>
static __device__ __forceinline__ void stage_8(uint4 *to, const dsri_cache_entry &key, uint32_t f,
                                               const uint8_t *anything)
{
    static_assert(SOURCE != FROM_FP4, "BF16 keys");
    if constexpr (SOURCE == BY_WORDS)
        copy_async_16(to, key.values ? key.values + 2 * f : anything, key.values ? 16 : 0);
    else
        *to = load_8<false>(reinterpret_cast<const uint16_t *>(key.values), f);
}

#endif
