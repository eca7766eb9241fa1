/* What the index score kernels share: where a query's operands lie, and what they leave for the selection. */
#ifndef DSRI_INDEXER_COMMON_CUH
#define DSRI_INDEXER_COMMON_CUH

#include "cuda/kernels/tiles.cuh"
#include "ops/indexer_workspace.h"

/* Bins of the first histogram: the top 12 bits of an ordered score. */
enum { INDEXER_BINS = 4096 };

struct indexer_query {
    const uint16_t *keys;
    uint64_t key_row_stride;
    const uint16_t *q;
    const float *weights;
    float *scores;     /* of this query: n_seen, or kv_len where the caller wants them */
    int32_t *output;
    uint32_t n_seen;   /* keys the query sees */
    uint32_t n_scores; /* scores to write */
    int32_t offset;
    uint32_t *histogram;
};

/* The query numbered `query` through all rows. */
static __device__ __forceinline__ indexer_query find_query(const dsri_indexer_plan &plan, uint32_t query, uint8_t *zeroed)
{
    uint32_t r = plan.n_queries == plan.n_rows ? query : 0; /* one query a row: no search */
    while (r + 1 < plan.n_rows && plan.rows[r + 1].first_query <= query)
        r++;
    const dsri_indexer_row_plan &row = plan.rows[r];
    const uint32_t i = query - row.first_query;
    const uint32_t n_last = (row.start_pos + row.n_queries) / row.ratio;
    const dsri_indexer_region region = dsri_indexer_region_of(n_last, plan.n_heads, plan.top_k);
    indexer_query at;
    at.keys = reinterpret_cast<const uint16_t *>(row.keys.pages);
    at.key_row_stride = row.keys.row_stride / sizeof(uint16_t);
    at.q = row.q + (uint64_t)i * plan.n_heads * DSRI_INDEX_DIM;
    at.weights = row.weights + (uint64_t)i * plan.n_heads;
    at.n_seen = (row.start_pos + i + 1) / row.ratio;
    at.scores = row.scores ? row.scores + i * row.kv_len
                           : reinterpret_cast<float *>(row.workspace + i * region.size_bytes + region.scores);
    at.n_scores = row.scores ? (uint32_t)row.kv_len : at.n_seen;
    at.output = row.output + i * row.output_stride;
    at.offset = row.offset;
    at.histogram = reinterpret_cast<uint32_t *>(zeroed) + (uint64_t)query * INDEXER_BINS;
    return at;
}

/* Greater scores give greater values; -0 and +0 the same. Excluded keys (-inf) give at most EXCLUDED. */
enum { EXCLUDED = 0x007fffff };
static __device__ __forceinline__ uint32_t ordered_score(float score)
{
    uint32_t b = __float_as_uint(score);
    b = b == 0x80000000u ? 0 : b;
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

/* Stores a score and counts it. Called by whole warps; lanes without a key pass is_mine = false. */
static __device__ __forceinline__ void store_score(const indexer_query &at, uint64_t key, bool is_mine, float score)
{
    const bool is_seen = is_mine && key < at.n_seen && f32_is_finite(score);
    if (is_mine && key < at.n_scores)
        at.scores[key] = is_seen ? score : __uint_as_float(0xff800000u);
    const uint32_t bin = is_seen ? ordered_score(score) >> 20 : 0xffffffffu;
    const uint32_t peers = __match_any_sync(0xffffffffu, bin);
    if (is_seen && (threadIdx.x & 31u) == (uint32_t)(__ffs((int)peers) - 1))
        atomicAdd(&at.histogram[bin], (uint32_t)__popc(peers));
}

#endif
