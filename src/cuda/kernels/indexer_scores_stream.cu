/* Row-exact index scores of keys that lie 256 bytes apart, 32 or 64 heads: the bits of indexer_scores_row.cu.
 *
 * A warp takes 16 keys of each tile of its block's piece of the line. They come by bulk copies through a ring of its
 * own, which runs ahead across the ends of queries and rows: each lane finds out where the keys of one of the next 32
 * tiles are, and asks for them when their turn comes. */
#include "cuda/kernels/indexer_row.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 /* bulk copies */

enum { STREAM_WARPS = INDEX_TILE / ROW_KEYS, STREAM_THREADS = 32 * STREAM_WARPS, STREAM_STAGES = 2 };

/* Heads of a block's first query: 20 words from head to head, so that four words of two are read without bank
 * conflicts. */
struct stream_heads {
    uint4 words[64][KEY_WORDS + 4];
};

struct stream_ring {
    uint4 keys[STREAM_STAGES][ROW_KEYS][KEY_WORDS];
    uint64_t full[STREAM_STAGES];
    uint32_t n_there[STREAM_STAGES]; /* keys that were brought; 0 in a bad page */
};

/* Tile `tile` of query i of row r. */
struct line_place {
    uint32_t r, i, tile;
};

static __device__ __forceinline__ line_place place_of(const dsri_indexer_plan &plan, uint32_t number)
{
    line_place at = {0, 0, 0};
#pragma unroll 1
    for (uint32_t step = DSRI_MAX_ROWS / 2; step > 0; step /= 2)
        if (at.r + step < plan.n_rows && plan.first_tile[at.r + step] <= number)
            at.r += step;
    at.tile = number - plan.first_tile[at.r];
    if (plan.rows[at.r].n_queries > 1) {
        at.i = at.tile / plan.rows[at.r].n_tiles;
        at.tile -= at.i * plan.rows[at.r].n_tiles;
    }
    return at;
}

/* Where this warp's keys of a tile are. */
struct key_piece {
    const uint8_t *from;
    uint32_t n_there;
    uint64_t policy;
};

static __device__ __forceinline__ key_piece find_keys(const dsri_indexer_plan &plan, uint32_t number)
{
    const line_place at = place_of(plan, number);
    const dsri_indexer_row_plan &row = plan.rows[at.r];
    const uint32_t n_seen = (row.start_pos + at.i + 1) / row.ratio;
    const uint32_t key = at.tile * INDEX_TILE + threadIdx.x / 32 * ROW_KEYS;
    key_piece piece = {nullptr, 0, cache_policy(row.n_queries == 1)};
    if (key < n_seen)
        piece.from = dsri_cache_at(&row.keys, key).values; /* 16 keys are in one page */
    if (piece.from)
        piece.n_there = min(n_seen - key, (uint32_t)ROW_KEYS);
    return piece;
}

/* One lane calls it. */
static __device__ __forceinline__ void bring_keys(const key_piece &piece, uint32_t slot, stream_ring &ring)
{
    ring.n_there[slot] = piece.n_there;
    shared_barrier_arrive_expecting(&ring.full[slot], piece.n_there * DSRI_INDEX_DIM * 2);
    if (piece.n_there)
        copy_bulk(ring.keys[slot], piece.from, piece.n_there * DSRI_INDEX_DIM * 2, &ring.full[slot], piece.policy);
}

/* A query's heads, and its tiles of the line. */
template <int NTILES> struct stream_query {
    indexer_query at;
    row_heads<NTILES> heads;
    uint32_t first, end;
};

template <int NTILES>
static __device__ __forceinline__ void place_query(const dsri_indexer_plan &plan, uint32_t number,
                                                   stream_query<NTILES> &query)
{
    const line_place place = place_of(plan, number);
    query_at(plan, place.r, place.i, query.at);
    query.first = number - place.tile;
    query.end = query.first + plan.rows[place.r].n_tiles;
}

/* The same heads as load_heads, once this thread's copies are there. The whole block calls it. */
template <int NTILES>
static __device__ __forceinline__ void take_heads(const indexer_query &at, const stream_heads &from,
                                                  row_heads<NTILES> &heads)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float *weights = at.weights + 2 * t;
#pragma unroll
    for (int n = 0; n < NTILES; n++)
        heads.weights[n] = make_float2(weights[8 * n], weights[8 * n + 1]);
    copy_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int n = 0; n < NTILES; n++)
#pragma unroll
        for (int s = 0; s < WORD_STEPS; s++)
            heads.q[s][n] = from.words[8 * n + g][4 * s + t];
}

/* Zeros for keys that the first copies do not bring. Where later ones bring less there are keys of an earlier tile: they
 * change no other key's dots, and no one looks at theirs. */
static __device__ __forceinline__ void clear_ring(stream_ring &ring)
{
#pragma unroll
    for (uint32_t slot = 0; slot < STREAM_STAGES; slot++)
#pragma unroll
        for (uint32_t i = threadIdx.x % 32; i < ROW_KEYS * KEY_WORDS; i += 32)
            ring.keys[slot][i / KEY_WORDS][i % KEY_WORDS] = make_uint4(0, 0, 0, 0);
    order_before_async(); /* the copies */
    __syncwarp();
}

/* Dots of the keys of a stage. */
template <int NTILES>
static __device__ __forceinline__ void multiply_stage(const row_heads<NTILES> &heads, const stream_ring &ring,
                                                      uint32_t slot, float dots[NTILES][4])
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint4 *low_words = &ring.keys[slot][g][t], *high_words = low_words + 8 * KEY_WORDS;
    multiply_keys<NTILES>(
        heads,
        [&](int s, uint4 &low, uint4 &high) {
            low = low_words[4 * s];
            high = high_words[4 * s];
        },
        dots);
}

/* Scores of tiles [number, end) of the line. */
template <int NTILES>
static __device__ __forceinline__ void score_piece(const dsri_indexer_plan &plan, uint32_t number, uint32_t end,
                                                   stream_ring &ring, stream_heads &first_heads)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t slot = 0, parity = 0, to_bring = number + STREAM_STAGES, batch_end = number + 32;
    stream_query<NTILES> query;
    key_piece piece = {nullptr, 0, 0}; /* of tile batch_end - 32 + lane */
    place_query(plan, number, query);
#pragma unroll
    for (uint32_t i = 0; i < NTILES / 2; i++) {
        const uint32_t word = i * STREAM_THREADS + threadIdx.x;
        copy_async_16(&first_heads.words[word / KEY_WORDS][word % KEY_WORDS], query.at.q + 8 * word, 16);
    }
    copy_async_commit();
    if (number + lane < end)
        piece = find_keys(plan, number + lane);
    const bool is_first = lane < STREAM_STAGES && number + lane < end;
    if (__any_sync(0xffffffffu, is_first && piece.n_there < ROW_KEYS))
        clear_ring(ring);
    if (is_first)
        bring_keys(piece, lane, ring);
    take_heads<NTILES>(query.at, first_heads, query.heads);
#pragma unroll 1
    for (; number < end; number++, to_bring++) {
        float dots[NTILES][4], sums[2];
        if (number == query.end) {
            place_query(plan, number, query);
            load_heads<NTILES, true>(query.at, 0, query.heads);
        }
        shared_barrier_wait(&ring.full[slot], parity);
        const uint32_t n_there = ring.n_there[slot];
        multiply_stage<NTILES>(query.heads, ring, slot, dots);
        if (to_bring == batch_end) {
            batch_end += 32;
            if (to_bring + lane < end)
                piece = find_keys(plan, to_bring + lane);
        }
        __syncwarp();
        if (to_bring < end && lane == 32 - (batch_end - to_bring))
            bring_keys(piece, slot, ring);
        sum_keys<NTILES>(dots, query.heads, sums);
        store_keys(query.at, (number - query.first) * INDEX_TILE + warp * ROW_KEYS, n_there, sums);
        slot = slot + 1 < STREAM_STAGES ? slot + 1 : 0;
        parity ^= slot == 0;
    }
}

extern "C" __global__ void __launch_bounds__(STREAM_THREADS, 1)
    dsr_indexer_scores_stream_bf16__cuda(const __grid_constant__ dsri_indexer_plan plan, uint8_t *)
{
    extern __shared__ uint4 shared_memory[];
    stream_ring &ring = reinterpret_cast<stream_ring *>(shared_memory)[threadIdx.x / 32];
    stream_heads &heads =
        *reinterpret_cast<stream_heads *>(reinterpret_cast<stream_ring *>(shared_memory) + STREAM_WARPS);
    let_next_launch_start();
    if (threadIdx.x % 32 == 0) {
        for (uint32_t slot = 0; slot < STREAM_STAGES; slot++)
            shared_barrier_init(&ring.full[slot], 1);
        shared_barriers_ready();
    }
    const uint32_t n_tiles = plan.first_tile[plan.n_rows], share = n_tiles / gridDim.x, rest = n_tiles % gridDim.x;
    const uint32_t first = blockIdx.x * share + min(blockIdx.x, rest), end = first + share + (blockIdx.x < rest);
    __syncwarp();
    wait_for_prior_launch();
    if (plan.n_heads == 32)
        score_piece<4>(plan, first, end, ring, heads);
    else
        score_piece<8>(plan, first, end, ring, heads);
}

#endif
