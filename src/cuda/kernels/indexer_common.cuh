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
};

/* Tiles of TILE keys of every query of a row: as many as its last one has. */
template <int TILE> static __device__ __forceinline__ uint32_t tiles_of_query(const dsri_indexer_row_plan &row)
{
    const uint64_t n = row.scores ? row.kv_len : ((uint64_t)row.start_pos + row.n_queries) / row.ratio;
    return n ? (uint32_t)((n + TILE - 1) / TILE) : 1;
}

/* Query i of row r. */
static __device__ __forceinline__ void query_at(const dsri_indexer_plan &plan, uint32_t r, uint32_t i,
                                                indexer_query &at)
{
    const dsri_indexer_row_plan &row = plan.rows[r];
    const uint32_t n_last = (row.start_pos + row.n_queries) / row.ratio;
    const dsri_indexer_region region = dsri_indexer_region_of(n_last, plan.n_heads, plan.top_k);
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
}

/* The query numbered `number` through all rows. */
static __device__ __forceinline__ void find_query(const dsri_indexer_plan &plan, uint32_t number, indexer_query &at)
{
    uint32_t r = plan.n_queries == plan.n_rows ? number : 0; /* one query a row: no search */
    while (r + 1 < plan.n_rows && plan.rows[r + 1].first_query <= number)
        r++;
    query_at(plan, r, number - plan.rows[r].first_query, at);
}

/* All tiles of all queries in one line, of which each block takes a piece. */
struct indexer_line {
    uint64_t row_end[DSRI_MAX_ROWS]; /* of a row's tiles; all of them past the last row */
};

/* Rows that a kernel takes. */
enum index_rows { PLAIN_ROWS = 1, PACKED_ROWS = 2, ALL_ROWS = 3 };

/* Lines up the tiles of the rows that are taken. Called by the whole block; line is in shared memory. */
template <int TILE, index_rows TAKEN>
static __device__ __forceinline__ void line_up(const dsri_indexer_plan &plan, indexer_line &line)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    for (uint32_t r = warp; r < DSRI_MAX_ROWS; r += n_warps) {
        const bool is_taken = r < plan.n_rows && (TAKEN & (plan.rows[r].keys.scale_bytes ? PACKED_ROWS : PLAIN_ROWS));
        line.row_end[r] = is_taken ? (uint64_t)tiles_of_query<TILE>(plan.rows[r]) * plan.rows[r].n_queries : 0;
    }
    __syncthreads();
    if (warp == 0) {
        const uint64_t low = line.row_end[2 * lane], high = line.row_end[2 * lane + 1];
        uint64_t sum = low + high;
        for (uint32_t s = 1; s < 32; s *= 2) {
            const uint64_t other = __shfl_up_sync(0xffffffffu, sum, s);
            sum += lane >= s ? other : 0;
        }
        line.row_end[2 * lane] = sum - high;
        line.row_end[2 * lane + 1] = sum;
    }
    __syncthreads();
}

/* A block's piece of the line: [next, end). */
struct indexer_piece {
    uint64_t next, end;
};

static __device__ __forceinline__ indexer_piece piece_of_block(const indexer_line &line)
{
    const uint64_t n = line.row_end[DSRI_MAX_ROWS - 1], share = n / gridDim.x, rest = n % gridDim.x;
    const uint64_t b = blockIdx.x;
    indexer_piece piece;
    piece.next = b * share + (b < rest ? b : rest);
    piece.end = piece.next + share + (b < rest ? 1 : 0);
    return piece;
}

/* Consecutive tiles [first, first + n) of one query. */
struct indexer_run {
    indexer_query at;
    uint32_t first, n;
};

/* Takes the next run, in shared memory, off the piece. The whole block calls it, when it is done with the last run. */
template <int TILE>
static __device__ __forceinline__ void next_run(const dsri_indexer_plan &plan, const indexer_line &line,
                                                indexer_piece &piece, indexer_run &run)
{
    const uint32_t lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        const uint32_t r = (uint32_t)__popc(__ballot_sync(0xffffffffu, line.row_end[lane] <= piece.next)) +
                           (uint32_t)__popc(__ballot_sync(0xffffffffu, line.row_end[32 + lane] <= piece.next));
        const uint32_t n_tiles = tiles_of_query<TILE>(plan.rows[r]);
        uint64_t tile = piece.next - (r ? line.row_end[r - 1] : 0), i = 0;
        if (plan.rows[r].n_queries > 1) {
            i = tile / n_tiles;
            tile -= i * n_tiles;
        }
        const uint64_t left = n_tiles - tile, mine = piece.end - piece.next;
        if (lane == 0) {
            query_at(plan, r, (uint32_t)i, run.at);
            run.first = (uint32_t)tile;
            run.n = (uint32_t)(left < mine ? left : mine);
        }
    }
    __syncthreads();
    piece.next += run.n;
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
    if constexpr (SOURCE == BY_WORDS) {
        copy_async_16(to, key.values ? key.values + 2 * f : anything, key.values ? 16 : 0);
    } else if constexpr (SOURCE == BY_ELEMENT) {
        *to = load_8<false>(reinterpret_cast<const uint16_t *>(key.values), f);
    } else {
        uint32_t w[4] = {0, 0, 0, 0};
        if (key.values)
#pragma unroll
            for (int i = 0; i < 4; i++)
                w[i] = __float_as_uint(fp4_value(key, f + 2 * i)) >> 16 |
                       (__float_as_uint(fp4_value(key, f + 2 * i + 1)) & 0xffff0000u);
        *to = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

#endif
