/* Row-exact index scores of keys that lie 256 bytes apart, 32 or 64 heads: the bits of indexer_scores_row.cu.
 *
 * A warp takes 16 keys of each tile of its block's piece of the line. They come by bulk copies through a ring of its
 * own, which runs ahead across the ends of queries and rows. */
#include "cuda/kernels/indexer_row.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 /* bulk copies */

enum { STREAM_WARPS = INDEX_TILE / ROW_KEYS, STREAM_THREADS = 32 * STREAM_WARPS, STREAM_STAGES = 6 };

/* Tile `tile` of n_tiles of query i of row r, and how many tiles of the piece are left from it on. */
struct line_place {
    uint32_t r, i, tile, n_tiles, n_seen;
    uint64_t n_left;
};

struct stream_ring {
    uint4 keys[STREAM_STAGES][ROW_KEYS][KEY_WORDS];
    uint64_t full[STREAM_STAGES];
    uint32_t n_there[STREAM_STAGES]; /* keys that were brought; 0 in a bad page */
    line_place next;                 /* to bring; lane 0's */
};

static __device__ __forceinline__ void enter_query(const dsri_indexer_plan &plan, line_place &at)
{
    const dsri_indexer_row_plan &row = plan.rows[at.r];
    at.n_tiles = tiles_of_query<INDEX_TILE>(row);
    at.n_seen = (row.start_pos + at.i + 1) / row.ratio;
}

/* This block's piece of the line. */
static __device__ __forceinline__ line_place piece_of(const dsri_indexer_plan &plan)
{
    const uint64_t n = plan.first_tile[plan.n_rows], share = n / gridDim.x, rest = n % gridDim.x, b = blockIdx.x;
    const uint64_t first = b * share + (b < rest ? b : rest);
    line_place at = {};
    at.n_left = share + (b < rest ? 1 : 0);
    for (uint32_t step = DSRI_MAX_ROWS / 2; step > 0; step /= 2)
        if (at.r + step < plan.n_rows && plan.first_tile[at.r + step] <= first)
            at.r += step;
    const uint32_t n_tiles = tiles_of_query<INDEX_TILE>(plan.rows[at.r]);
    const uint64_t tile = first - plan.first_tile[at.r];
    at.i = plan.rows[at.r].n_queries > 1 ? (uint32_t)(tile / n_tiles) : 0;
    at.tile = (uint32_t)(tile - (uint64_t)at.i * n_tiles);
    enter_query(plan, at);
    return at;
}

static __device__ __forceinline__ void next_query(const dsri_indexer_plan &plan, line_place &at)
{
    at.tile = 0;
    if (++at.i == plan.rows[at.r].n_queries) {
        at.i = 0;
        at.r++;
    }
    enter_query(plan, at);
}

/* Starts the copy of this warp's keys of the next tile. Lane 0 calls it. */
static __device__ __forceinline__ void bring_keys(const dsri_indexer_plan &plan, uint32_t slot, stream_ring &ring)
{
    line_place &at = ring.next;
    if (at.n_left == 0)
        return;
    if (at.tile == at.n_tiles)
        next_query(plan, at);
    const dsri_cache &keys = plan.rows[at.r].keys;
    const uint32_t key = at.tile * INDEX_TILE + threadIdx.x / 32 * ROW_KEYS;
    const uint32_t n_seen = key < at.n_seen ? min(at.n_seen - key, (uint32_t)ROW_KEYS) : 0;
    const uint8_t *from = n_seen ? dsri_cache_at(&keys, key).values : nullptr; /* 16 keys are in one page */
    const uint32_t n_there = from ? n_seen : 0;
    ring.n_there[slot] = n_there;
    shared_barrier_arrive_expecting(&ring.full[slot], n_there * DSRI_INDEX_DIM * 2);
    if (n_there)
        copy_bulk(ring.keys[slot], from, n_there * DSRI_INDEX_DIM * 2, &ring.full[slot]);
    at.tile++;
    at.n_left--;
}

template <int NTILES>
static __device__ __forceinline__ void score_piece(const dsri_indexer_plan &plan, line_place place, stream_ring &ring)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t slot = 0, parity = 0;
    for (;;) {
        indexer_query at;
        row_heads<NTILES> heads;
        query_at(plan, place.r, place.i, at);
        load_heads<NTILES, true>(at, 0, heads);
        uint64_t n = place.n_tiles - place.tile;
        n = n < place.n_left ? n : place.n_left;
        place.n_left -= n;
        uint32_t first_key = place.tile * INDEX_TILE + warp * ROW_KEYS;
#pragma unroll 1
        for (uint32_t j = (uint32_t)n; j > 0; j--, first_key += INDEX_TILE) {
            float dots[NTILES][4], sums[2];
            shared_barrier_wait(&ring.full[slot], parity);
            const uint32_t n_there = ring.n_there[slot];
            const uint4 *low_words = &ring.keys[slot][g][t], *high_words = low_words + 8 * KEY_WORDS;
            multiply_keys<NTILES>(
                heads,
                [&](int s, uint4 &low, uint4 &high) {
                    low = high = make_uint4(0, 0, 0, 0);
                    if (g < n_there)
                        low = low_words[4 * s];
                    if (g + 8 < n_there)
                        high = high_words[4 * s];
                },
                dots);
            __syncwarp();
            if (lane == 0)
                bring_keys(plan, slot, ring);
            sum_keys<NTILES>(dots, heads, sums);
            store_keys(at, first_key, n_there, sums);
            slot = slot + 1 < STREAM_STAGES ? slot + 1 : 0;
            parity ^= slot == 0;
        }
        if (place.n_left == 0)
            return;
        next_query(plan, place);
    }
}

extern "C" __global__ void __launch_bounds__(STREAM_THREADS, 1)
    dsr_indexer_scores_stream_bf16__cuda(const __grid_constant__ dsri_indexer_plan plan, uint8_t *)
{
    extern __shared__ uint4 shared_memory[];
    stream_ring &ring = reinterpret_cast<stream_ring *>(shared_memory)[threadIdx.x / 32];
    let_next_launch_start();
    const line_place place = piece_of(plan);
    if (threadIdx.x % 32 == 0) {
        ring.next = place;
        for (uint32_t slot = 0; slot < STREAM_STAGES; slot++)
            shared_barrier_init(&ring.full[slot], 1);
        shared_barriers_ready();
    }
    wait_for_prior_launch();
    if (threadIdx.x % 32 == 0) {
#pragma unroll 1
        for (uint32_t slot = 0; slot < STREAM_STAGES; slot++)
            bring_keys(plan, slot, ring);
    }
    __syncwarp();
    if (plan.n_heads == 32)
        score_piece<4>(plan, place, ring);
    else
        score_piece<8>(plan, place, ring);
}

#endif
