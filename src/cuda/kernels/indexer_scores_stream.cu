/* Row-exact index scores of keys that lie 256 bytes apart, 32 or 64 heads: the bits of indexer_scores_row.cu.
 *
 * Blocks form teams, each with a piece of the line of tiles. Of most of it every warp has a fixed share, 16 keys of
 * each tile of its block; the rest is claimed, 16 keys at a time, since some of a device's processors get more of the
 * memory's bandwidth than others. Keys come by bulk copies through a ring of the warp's own, across the ends of queries
 * and rows. */
#include "cuda/kernels/indexer_row.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 /* bulk copies */

enum { STREAM_WARPS = INDEX_TILE / ROW_KEYS, STREAM_THREADS = 32 * STREAM_WARPS, STREAM_STAGES = 6, TEAM = 12 };

struct stream_ring {
    uint4 keys[STREAM_STAGES][ROW_KEYS][KEY_WORDS];
    uint64_t full[STREAM_STAGES];
    uint32_t unit[STREAM_STAGES];
    uint32_t n_there[STREAM_STAGES]; /* keys that were brought; 0 in a bad page */
};

/* Work in units of 16 keys, STREAM_WARPS of them a tile of the line. */
struct stream_work {
    uint32_t first, n_fixed;             /* this warp's, STREAM_WARPS apart */
    uint32_t first_claimed, end_claimed; /* its team's */
    uint32_t *n_claimed;
};

static __device__ __forceinline__ stream_work work_of(const dsri_indexer_plan &plan, uint8_t *zeroed)
{
    const uint32_t n_tiles = plan.first_tile[plan.n_rows], share = n_tiles / gridDim.x, rest = n_tiles % gridDim.x;
    const uint32_t team = blockIdx.x / TEAM, leader = team * TEAM, next = min(leader + TEAM, gridDim.x);
    const uint32_t first = leader * share + min(leader, rest), end = next * share + min(next, rest);
    stream_work work;
    work.n_fixed = max(min(share, (uint32_t)STREAM_STAGES), share - share / 4);
    work.first = (first + (blockIdx.x - leader) * work.n_fixed) * STREAM_WARPS + threadIdx.x / 32;
    work.first_claimed = (first + (next - leader) * work.n_fixed) * STREAM_WARPS;
    work.end_claimed = end * STREAM_WARPS;
    work.n_claimed = reinterpret_cast<uint32_t *>(zeroed) + team * CLAIM_WORDS;
    return work;
}

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

/* Where the keys of a unit are. */
struct key_piece {
    const uint8_t *from;
    uint32_t n_there;
};

static __device__ __forceinline__ key_piece find_keys(const dsri_indexer_plan &plan, uint32_t unit)
{
    const line_place at = place_of(plan, unit / STREAM_WARPS);
    const dsri_indexer_row_plan &row = plan.rows[at.r];
    const uint32_t n_seen = (row.start_pos + at.i + 1) / row.ratio;
    const uint32_t key = at.tile * INDEX_TILE + unit % STREAM_WARPS * ROW_KEYS;
    key_piece piece = {nullptr, 0};
    if (key < n_seen)
        piece.from = dsri_cache_at(&row.keys, key).values; /* 16 keys are in one page */
    if (piece.from)
        piece.n_there = min(n_seen - key, (uint32_t)ROW_KEYS);
    return piece;
}

/* One lane calls it. */
static __device__ __forceinline__ void bring_keys(const key_piece &piece, uint32_t unit, uint32_t slot,
                                                  stream_ring &ring)
{
    ring.unit[slot] = unit;
    ring.n_there[slot] = piece.n_there;
    shared_barrier_arrive_expecting(&ring.full[slot], piece.n_there * DSRI_INDEX_DIM * 2);
    if (piece.n_there)
        copy_bulk(ring.keys[slot], piece.from, piece.n_there * DSRI_INDEX_DIM * 2, &ring.full[slot]);
}

/* A query's heads, and its units of the line. */
template <int NTILES> struct stream_query {
    indexer_query at;
    row_heads<NTILES> heads;
    uint32_t first, end;
};

template <int NTILES>
static __device__ __forceinline__ void enter_query(const dsri_indexer_plan &plan, uint32_t unit,
                                                   stream_query<NTILES> &query)
{
    const line_place place = place_of(plan, unit / STREAM_WARPS);
    query_at(plan, place.r, place.i, query.at);
    load_heads<NTILES, true>(query.at, 0, query.heads);
    query.first = (unit / STREAM_WARPS - place.tile) * STREAM_WARPS;
    query.end = query.first + plan.rows[place.r].n_tiles * STREAM_WARPS;
}

/* Scores of one unit. */
template <int NTILES>
static __device__ __forceinline__ void multiply_stage(const stream_query<NTILES> &query, const stream_ring &ring,
                                                      uint32_t slot, uint32_t n_there, float dots[NTILES][4])
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint4 *low_words = &ring.keys[slot][g][t], *high_words = low_words + 8 * KEY_WORDS;
    multiply_keys<NTILES>(
        query.heads,
        [&](int s, uint4 &low, uint4 &high) {
            low = high = make_uint4(0, 0, 0, 0);
            if (g < n_there)
                low = low_words[4 * s];
            if (g + 8 < n_there)
                high = high_words[4 * s];
        },
        dots);
}

template <int NTILES>
static __device__ __forceinline__ void score_units(const dsri_indexer_plan &plan, const stream_work &work,
                                                   stream_ring &ring)
{
    enum { AT_FIRST = 2 }; /* copies before the heads, which the first product waits for */
    const uint32_t lane = threadIdx.x % 32;
    stream_query<NTILES> query;
    key_piece piece = {nullptr, 0}; /* lane i's: of the fixed unit whose number has i as its low bits */
    uint32_t n_brought = min(work.n_fixed, (uint32_t)STREAM_STAGES), slot = 0, parity = 0;
    uint32_t free_slot = n_brought % STREAM_STAGES;
    bool is_claiming = true;
    if (lane < work.n_fixed)
        piece = find_keys(plan, work.first + lane * STREAM_WARPS);
    if (lane < min(n_brought, (uint32_t)AT_FIRST))
        bring_keys(piece, work.first + lane * STREAM_WARPS, lane, ring);
    enter_query(plan, work.first, query);
    if (lane >= AT_FIRST && lane < n_brought)
        bring_keys(piece, work.first + lane * STREAM_WARPS, lane, ring);
#pragma unroll 1
    for (uint32_t n = 0; n < n_brought; n++) {
        float dots[NTILES][4], sums[2];
        uint32_t claimed = 0;
        if (n_brought >= work.n_fixed && is_claiming && lane == 0)
            claimed = atomicAdd(work.n_claimed, 1u); /* not waited for before the products are under way */
        shared_barrier_wait(&ring.full[slot], parity);
        const uint32_t unit = ring.unit[slot], n_there = ring.n_there[slot];
        if (unit >= query.end)
            enter_query(plan, unit, query);
        multiply_stage<NTILES>(query, ring, slot, n_there, dots);
        __syncwarp();
        if (n_brought < work.n_fixed) {
            if (n_brought % 32 == 0 && n_brought + lane < work.n_fixed)
                piece = find_keys(plan, work.first + (n_brought + lane) * STREAM_WARPS);
            if (lane == n_brought % 32)
                bring_keys(piece, work.first + n_brought * STREAM_WARPS, free_slot, ring);
            n_brought++;
        } else if (is_claiming) {
            const uint32_t next = work.first_claimed + __shfl_sync(0xffffffffu, claimed, 0);
            is_claiming = next < work.end_claimed;
            if (is_claiming) {
                if (lane == 0)
                    bring_keys(find_keys(plan, next), next, free_slot, ring);
                n_brought++;
            }
        }
        sum_keys<NTILES>(dots, query.heads, sums);
        store_keys(query.at, (unit - query.first) * ROW_KEYS, n_there, sums);
        free_slot = free_slot + 1 < STREAM_STAGES ? free_slot + 1 : 0;
        slot = slot + 1 < STREAM_STAGES ? slot + 1 : 0;
        parity ^= slot == 0;
    }
}

extern "C" __global__ void __launch_bounds__(STREAM_THREADS, 1)
    dsr_indexer_scores_stream_bf16__cuda(const __grid_constant__ dsri_indexer_plan plan, uint8_t *zeroed)
{
    extern __shared__ uint4 shared_memory[];
    stream_ring &ring = reinterpret_cast<stream_ring *>(shared_memory)[threadIdx.x / 32];
    let_next_launch_start();
    if (threadIdx.x % 32 == 0) {
        for (uint32_t slot = 0; slot < STREAM_STAGES; slot++)
            shared_barrier_init(&ring.full[slot], 1);
        shared_barriers_ready();
    }
    const stream_work work = work_of(plan, zeroed);
    __syncwarp();
    wait_for_prior_launch();
    if (plan.n_heads == 32)
        score_units<4>(plan, work, ring);
    else
        score_units<8>(plan, work, ring);
}

#endif
