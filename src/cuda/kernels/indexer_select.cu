/* Exact top-k of one query's scores, one block a query. The score kernel has counted scores by their top 12 bits; a second
 * count settles the next 12, and what is above or within those 24 bits is collected and sorted by (greater score, lower
 * index). If too many share the 24 bits, the last 8 and then the index decide before anything is collected. */
#include "cuda/kernels/indexer_common.cuh"

enum { SELECT_THREADS = 1024, SELECT_MAX = 4096, MAX_TOP_K = 2048 };

struct select_shared {
    uint64_t items[SELECT_MAX]; /* ordered score << 32 | ~index: greater is better */
    uint32_t bins[INDEXER_BINS];
    uint32_t warp_sums[32];
    uint32_t n_items;
    uint32_t bin;    /* the boundary bin of the last search */
    uint32_t needed; /* places left for it */
    uint32_t inside; /* its members */
};

/* Finds the bin in which the `needed` best end. counts may be global or shared memory; n_bins is a multiple of 1024 or 256.
 * All threads call it. If there are fewer members than needed, the boundary is bin 0 with all of its members. */
static __device__ void find_boundary(const uint32_t *counts, uint32_t n_bins, uint32_t needed, select_shared &shared)
{
    const uint32_t per_thread = n_bins / SELECT_THREADS ? n_bins / SELECT_THREADS : 1;
    const uint32_t n_threads = n_bins / per_thread, t = threadIdx.x, lane = t % 32, warp = t / 32;
    /* Thread 0 holds the greatest bins. */
    uint32_t mine = 0;
    if (t < n_threads)
        for (uint32_t i = 0; i < per_thread; i++)
            mine += counts[n_bins - 1 - (t * per_thread + i)];
    uint32_t before = mine; /* inclusive prefix, then exclusive */
    for (uint32_t s = 1; s < 32; s *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, before, s);
        before += lane >= s ? other : 0;
    }
    __syncthreads();
    if (lane == 31)
        shared.warp_sums[warp] = before;
    if (t == 0) {
        shared.bin = 0;
        shared.needed = needed;
        shared.inside = 0;
    }
    __syncthreads();
    if (warp == 0) {
        uint32_t sum = shared.warp_sums[lane];
        for (uint32_t s = 1; s < 32; s *= 2) {
            const uint32_t other = __shfl_up_sync(0xffffffffu, sum, s);
            sum += lane >= s ? other : 0;
        }
        shared.warp_sums[lane] = sum;
    }
    __syncthreads();
    before += (warp ? shared.warp_sums[warp - 1] : 0) - mine;
    const uint32_t total = shared.warp_sums[31];
    if (t < n_threads && before < needed && before + mine >= needed) {
        for (uint32_t i = 0; i < per_thread; i++) {
            const uint32_t bin = n_bins - 1 - (t * per_thread + i), n = counts[bin];
            if (before + n >= needed) {
                shared.bin = bin;
                shared.needed = needed - before;
                shared.inside = n;
                break;
            }
            before += n;
        }
    }
    if (t == 0 && total < needed) {
        shared.needed = needed - (total - counts[0]);
        shared.inside = counts[0];
    }
    __syncthreads();
}

enum { WALK = 8 }; /* scores a thread has in flight */

/* Calls visit(ordered score, key) for every score, whole warps together; keys past the last give an excluded score. */
template <typename Visit>
static __device__ __forceinline__ void walk_scores(const indexer_query &at, Visit visit)
{
    for (uint32_t first = threadIdx.x / 32 * 32; first < at.n_seen; first += SELECT_THREADS * WALK) {
        float scores[WALK];
#pragma unroll
        for (int j = 0; j < WALK; j++) {
            const uint32_t i = first + j * SELECT_THREADS + threadIdx.x % 32;
            scores[j] = i < at.n_seen ? at.scores[i] : __uint_as_float(0xff800000u);
        }
#pragma unroll
        for (int j = 0; j < WALK; j++)
            visit(ordered_score(scores[j]), first + j * SELECT_THREADS + threadIdx.x % 32);
    }
}

/* Counts the digit `score >> shift & (n_bins - 1)` of scores whose bits above the digit equal prefix. */
static __device__ void count_digit(const indexer_query &at, uint32_t prefix, uint32_t shift, uint32_t n_bins,
                                   select_shared &shared)
{
    for (uint32_t i = threadIdx.x; i < n_bins; i += SELECT_THREADS)
        shared.bins[i] = 0;
    __syncthreads();
    const uint32_t above = shift + (n_bins == 4096 ? 12 : 8);
    walk_scores(at, [&](uint32_t s, uint32_t) {
        const bool is_member = s > EXCLUDED && s >> above == prefix;
        const uint32_t digit = is_member ? s >> shift & (n_bins - 1) : 0xffffffffu;
        const uint32_t peers = __match_any_sync(0xffffffffu, digit);
        if (is_member && (threadIdx.x & 31u) == (uint32_t)(__ffs((int)peers) - 1))
            atomicAdd(&shared.bins[digit], (uint32_t)__popc(peers));
    });
    __syncthreads();
}

static __device__ void collect(const indexer_query &at, uint32_t least, select_shared &shared)
{
    walk_scores(at, [&](uint32_t s, uint32_t key) {
        const bool is_taken = s > EXCLUDED && s >= least;
        const uint32_t ballot = __ballot_sync(0xffffffffu, is_taken), lane = threadIdx.x % 32;
        uint32_t place = 0;
        if (lane == 0 && ballot)
            place = atomicAdd(&shared.n_items, (uint32_t)__popc(ballot));
        place = __shfl_sync(0xffffffffu, place, 0) + (uint32_t)__popc(ballot & ((1u << lane) - 1));
        if (is_taken)
            shared.items[place] = (uint64_t)s << 32 | (uint32_t)~key;
    });
}

/* The `needed` keys of lowest index among those with exactly this score. */
static __device__ void collect_ties(const indexer_query &at, uint32_t score, uint32_t needed, select_shared &shared)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t taken = 0;
    for (uint32_t first = 0; first < at.n_seen && taken < needed; first += SELECT_THREADS) {
        const uint32_t i = first + threadIdx.x;
        const bool is_tie = i < at.n_seen && ordered_score(at.scores[i]) == score;
        const uint32_t ballot = __ballot_sync(0xffffffffu, is_tie);
        __syncthreads();
        if (lane == 0)
            shared.warp_sums[warp] = (uint32_t)__popc(ballot);
        __syncthreads();
        uint32_t before = taken, all = 0;
        for (uint32_t w = 0; w < 32; w++) {
            before += w < warp ? shared.warp_sums[w] : 0;
            all += shared.warp_sums[w];
        }
        before += (uint32_t)__popc(ballot & ((1u << lane) - 1));
        if (is_tie && before < needed) {
            const uint32_t place = atomicAdd(&shared.n_items, 1u);
            shared.items[place] = (uint64_t)score << 32 | (uint32_t)~i;
        }
        taken += all;
    }
}

/* One step of the bitonic network on the items a thread holds: item e of thread t is number e * 1024 + t. */
template <int ITEMS>
static __device__ __forceinline__ void compare_step(uint64_t mine[ITEMS], uint32_t size, uint32_t s, select_shared &shared)
{
    const uint32_t t = threadIdx.x;
    uint64_t other[ITEMS];
    if (s >= 32 && s < SELECT_THREADS) {
        __syncthreads();
#pragma unroll
        for (int e = 0; e < ITEMS; e++)
            shared.items[e * SELECT_THREADS + t] = mine[e];
        __syncthreads();
    }
#pragma unroll
    for (int e = 0; e < ITEMS; e++) {
        if (s >= SELECT_THREADS) {
            other[e] = mine[0];
#pragma unroll
            for (int o = 1; o < ITEMS; o++)
                other[e] = (uint32_t)o == ((uint32_t)e ^ s / SELECT_THREADS) ? mine[o] : other[e];
        } else if (s >= 32) {
            other[e] = shared.items[(e * SELECT_THREADS + t) ^ s];
        } else {
            other[e] = __shfl_xor_sync(0xffffffffu, mine[e], s);
        }
    }
#pragma unroll
    for (int e = 0; e < ITEMS; e++) {
        const uint32_t i = e * SELECT_THREADS + t;
        const bool is_descending = (i & size) == 0, is_low = (i & s) == 0;
        const uint64_t greater = mine[e] > other[e] ? mine[e] : other[e], less = mine[e] > other[e] ? other[e] : mine[e];
        mine[e] = is_descending == is_low ? greater : less;
    }
}

/* Sorts n items, greatest first, and writes the first k as indices. */
template <int ITEMS>
static __device__ __forceinline__ void sort_and_write(const indexer_query &at, uint32_t k, uint32_t n, select_shared &shared)
{
    uint64_t mine[ITEMS];
#pragma unroll
    for (int e = 0; e < ITEMS; e++) {
        const uint32_t i = e * SELECT_THREADS + threadIdx.x;
        mine[e] = i < n ? shared.items[i] : 0;
    }
    uint32_t padded = 32;
    while (padded < n)
        padded *= 2;
    for (uint32_t size = 2; size <= padded; size *= 2)
        for (uint32_t s = size / 2; s > 0; s /= 2)
            compare_step<ITEMS>(mine, size, s, shared);
#pragma unroll
    for (int e = 0; e < ITEMS; e++) {
        const uint32_t i = e * SELECT_THREADS + threadIdx.x;
        if (i < k)
            at.output[i] = i < n ? (int32_t)~(uint32_t)mine[e] + at.offset : -1;
    }
    for (uint32_t i = ITEMS * SELECT_THREADS + threadIdx.x; i < k; i += SELECT_THREADS)
        at.output[i] = -1;
}

static __device__ void select_items(const indexer_query &at, uint32_t k, select_shared &shared)
{
    find_boundary(at.histogram, INDEXER_BINS, k, shared);
    uint32_t prefix = shared.bin, needed = shared.needed, inside = shared.inside;
    uint32_t n_above = k - needed;
    /* As many as are sorted anyway, and some more: a second count costs as much as a longer sort. */
    if (n_above + inside <= (k <= 1024 ? 1024 : 2048)) {
        collect(at, prefix << 20, shared);
        return;
    }
    count_digit(at, prefix, 8, 4096, shared);
    find_boundary(shared.bins, 4096, needed, shared);
    prefix = prefix << 12 | shared.bin, needed = shared.needed, inside = shared.inside;
    n_above = k - needed;
    if (n_above + inside <= SELECT_MAX) {
        collect(at, prefix << 8, shared);
        return;
    }
    count_digit(at, prefix, 0, 256, shared);
    find_boundary(shared.bins, 256, needed, shared);
    const uint32_t score = prefix << 8 | shared.bin;
    needed = shared.needed;
    collect(at, score + 1, shared);
    collect_ties(at, score, needed, shared);
}

extern "C" __global__ void __launch_bounds__(SELECT_THREADS) dsr_indexer_select_f32__cuda(
    const __grid_constant__ dsri_indexer_plan plan, uint8_t *zeroed)
{
    extern __shared__ uint4 shared_memory[];
    select_shared &shared = *reinterpret_cast<select_shared *>(shared_memory);
    const indexer_query at = find_query(plan, blockIdx.x, zeroed);
    if (threadIdx.x == 0)
        shared.n_items = 0;
    __syncthreads();
    select_items(at, plan.top_k, shared);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < INDEXER_BINS; i += SELECT_THREADS)
        at.histogram[i] = 0;
    const uint32_t n = shared.n_items;
    if (n <= SELECT_THREADS)
        sort_and_write<1>(at, plan.top_k, n, shared);
    else if (n <= 2 * SELECT_THREADS)
        sort_and_write<2>(at, plan.top_k, n, shared);
    else
        sort_and_write<4>(at, plan.top_k, n, shared);
}
