/* Top-k as a launch of its own: a cluster of 8 blocks a query, or of 8 queries; where there are no clusters, a block a
 * query. */
#include "cuda/kernels/indexer_select.cuh"

enum { SELECT_PARTS = 8, SELECT_LIST = 511 };
#if __CUDA_ARCH__ >= 900
enum { SELECT_HAS_CLUSTERS = 1 };
#else
enum { SELECT_HAS_CLUSTERS = 0 };
#endif

struct select_list {
    uint64_t items[SELECT_LIST]; /* the best of a part, greatest first; zeros past the last */
    uint64_t end; /* the last of them if the part has more, else 0; greater than all if there is no list */
};

struct cluster_shared {
    select_shared select;
    select_list lists[SELECT_PARTS];
    uint64_t lists_are_here;
};

/* Values that a block lists, one less than a power of 2: of values dealt at random hardly ever more than are among the
 * k best. */
static __device__ __forceinline__ uint32_t list_length(uint32_t k)
{
    return 0xffffffffu >> __clz((int)(k / SELECT_PARTS + k / 32 + 47));
}

static __device__ __forceinline__ int32_t output_of(uint64_t item, int32_t offset)
{
    return item ? (int32_t) ~(uint32_t)item + offset : -1;
}

/* What a block needs before the scores are there. */
static __device__ __forceinline__ void prepare_select(select_shared &shared)
{
    for (uint32_t i = threadIdx.x; i < SELECT_BINS; i += SELECT_THREADS)
        shared.bins[i] = 0;
    if (threadIdx.x == 0)
        shared.is_crowded = 0;
}

#if __CUDA_ARCH__ >= 900
#define SELECT_CLUSTER __cluster_dims__(8, 1, 1)

static constexpr uint64_t NO_LIST = ~(uint64_t)0;

/* Writes to the same place in all blocks. */
static __device__ __forceinline__ void send_item(uint64_t *to, uint64_t item, cluster_shared &shared)
{
    const float2 words = make_float2(__uint_as_float((uint32_t)item), __uint_as_float((uint32_t)(item >> 32)));
#pragma unroll
    for (uint32_t part = 0; part < SELECT_PARTS; part++)
        send_float2(reinterpret_cast<float2 *>(to), words, &shared.lists_are_here, part);
}

/* Sends the best of a part to all blocks, by the threads of one. */
static __device__ __forceinline__ void send_list(const select_scale &scale, list_end end, uint32_t n_best,
                                                 uint32_t part, uint32_t m, cluster_shared &shared)
{
    select_list &own = shared.lists[part];
    place_best(scale, end == LIST_HAS_FAILED ? 0 : n_best, m, shared.select, [&](uint32_t rank, uint64_t item) {
        send_item(&own.items[rank], item, shared);
        if (rank == m - 1)
            send_item(&own.end, end == LIST_HAS_MORE ? item : end == LIST_HAS_FAILED ? NO_LIST : 0, shared);
    });
}

/* The greatest end of a list, 0 if the lists have all, and whose it is. */
struct select_last {
    uint64_t item;
    uint32_t part;
};

static __device__ __forceinline__ select_last find_last(const cluster_shared &shared)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint64_t item = shared.lists[lane % SELECT_PARTS].end;
    const uint32_t high = __reduce_max_sync(0xffffffffu, (uint32_t)(item >> 32));
    const bool is_high = (uint32_t)(item >> 32) == high;
    const uint32_t low = __reduce_max_sync(0xffffffffu, is_high ? (uint32_t)item : 0);
    const uint32_t lanes = __ballot_sync(0xffffffffu, is_high && (uint32_t)item == low);
    return select_last{(uint64_t)high << 32 | low, (uint32_t)__ffs((int)lanes) - 1};
}

/* Items of two lists of m that are greater. */
static __device__ __forceinline__ uint32_t count_greater(const select_list two[2], uint32_t m, uint64_t item)
{
    uint32_t counts[2] = {};
#pragma unroll 1
    for (uint32_t step = (m + 1) / 2; step > 0; step /= 2)
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            if ((uint32_t)(two[i].items[counts[i] + step - 1] >> 32) > (uint32_t)(item >> 32))
                counts[i] += step;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
#pragma unroll 1
        while (counts[i] < m && two[i].items[counts[i]] > item) /* of equal value */
            counts[i]++;
    return counts[0] + counts[1];
}

/* Writes where the items of a part are among the k best, as far as the lists tell, and -1 past the last of all. */
static __device__ __forceinline__ bool merge_lists(const indexer_query &at, uint32_t part, uint32_t m, uint32_t k,
                                                   const cluster_shared &shared)
{
    const select_last last = find_last(shared);
    const uint32_t quarter = threadIdx.x % 4;
    bool is_good = last.item != NO_LIST || last.part != part;
#pragma unroll 1
    for (uint32_t first = 0; first < m; first += SELECT_THREADS / 4) { /* four threads an item */
        const uint32_t i = first + threadIdx.x / 4;
        const uint64_t item = i < m ? shared.lists[part].items[i] : 0;
        uint32_t rank = count_greater(&shared.lists[2 * quarter], m, item);
        rank += __shfl_xor_sync(0xffffffffu, rank, 1);
        rank += __shfl_xor_sync(0xffffffffu, rank, 2);
        if (item != 0 && item >= last.item) {
            if (rank < k && quarter == 0)
                at.output[rank] = output_of(item, at.offset);
            is_good = is_good && (item != last.item || rank + 1 >= k); /* else not sent ones are among the best, too */
        }
    }
    if (last.item == 0) {
        uint32_t n = 0;
#pragma unroll 1
        for (uint32_t two = 0; two < SELECT_PARTS; two += 2)
            n += count_greater(&shared.lists[two], m, 0);
#pragma unroll 1
        for (uint32_t i = n + part * SELECT_THREADS + threadIdx.x; i < k; i += SELECT_PARTS * SELECT_THREADS)
            at.output[i] = -1;
    }
    return __syncthreads_and(is_good);
}

/* Lets the other blocks send to this one. */
static __device__ __forceinline__ void open_lists(uint32_t m, cluster_shared &shared)
{
    if (threadIdx.x == 0) {
        shared_barrier_init(&shared.lists_are_here, 1);
        shared_barriers_ready();
        shared_barrier_arrive_expecting(&shared.lists_are_here, SELECT_PARTS * (m + 1) * sizeof(uint64_t));
    }
    __syncthreads();
    cluster_arrive_relaxed();
}
#else
#define SELECT_CLUSTER
#endif

extern "C" __global__ void SELECT_CLUSTER __launch_bounds__(SELECT_THREADS)
    dsr_indexer_select_f32__cuda(const __grid_constant__ dsri_indexer_plan plan, uint8_t *)
{
    extern __shared__ uint4 shared_memory[];
    cluster_shared &shared = *reinterpret_cast<cluster_shared *>(shared_memory);
    const uint32_t k = plan.top_k, part = blockIdx.x % SELECT_PARTS;
    const bool is_dealt = gridDim.x == SELECT_PARTS * plan.n_queries;
    const bool is_alone = !is_dealt || !SELECT_HAS_CLUSTERS;
    const uint32_t number = is_dealt ? blockIdx.x / SELECT_PARTS : blockIdx.x, m = is_alone ? k : list_length(k);
    let_next_launch_start();
    if (number >= plan.n_queries || (is_dealt && is_alone && part > 0))
        return;
    indexer_query at;
    find_query(plan, number, at);
    prepare_select(shared.select);
#if __CUDA_ARCH__ >= 900
    if (!is_alone)
        open_lists(m, shared);
#endif
    __syncthreads();
    wait_for_prior_launch();
    select_scale scale = {};
    uint32_t n_best = 0;
    const list_end end =
        find_best(at, is_alone ? 0 : part, is_alone ? 1 : SELECT_PARTS, m, scale, n_best, shared.select);
    bool is_done = end != LIST_HAS_FAILED;
    if (is_alone && is_done)
        place_best(scale, n_best, k, shared.select,
                   [&](uint32_t rank, uint64_t item) { at.output[rank] = output_of(item, at.offset); });
#if __CUDA_ARCH__ >= 900
    if (!is_alone) {
        cluster_wait(); /* the lists of the other blocks are open */
        send_list(scale, end, n_best, part, m, shared);
        shared_barrier_wait(&shared.lists_are_here, 0);
        is_done = merge_lists(at, part, m, k, shared);
    }
#endif
    if (!is_done)
        select_in_general(at.scores, at.n_seen, k, at.output, at.offset, shared.select);
}
