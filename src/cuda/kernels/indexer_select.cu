/* Top-k as a launch of its own: a cluster of 8 blocks a query, or of 8 queries; where there are no clusters, a block a
 * query. */
#include "cuda/kernels/indexer_select_any.cuh"

enum { SELECT_LIST = 511 };
#if __CUDA_ARCH__ >= 900
enum { SELECT_HAS_CLUSTERS = 1 };
#else
enum { SELECT_HAS_CLUSTERS = 0 };
#endif

struct select_list {
    uint64_t items[SELECT_LIST]; /* the best of a part, greatest first; zeros past the last */
    uint64_t end;      /* the last of them if the part has more, else 0; greater than all if there is no list */
    uint64_t apart[2]; /* puts the same place of four other lists in other banks */
};

struct cluster_shared {
    union {
        select_shared select;
        any_shared any;
    };
    select_list lists[SELECT_PARTS];
    uint64_t lists_are_here;
};

static __device__ __forceinline__ cluster_shared &own_shared()
{
    extern __shared__ uint4 shared_memory[];
    return *reinterpret_cast<cluster_shared *>(shared_memory);
}

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

/* What a block needs before it counts. */
static __device__ __forceinline__ void prepare_select(select_shared &shared)
{
    for (uint32_t i = threadIdx.x; i < SELECT_BINS + 32; i += SELECT_THREADS)
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

/* The greatest end of a list, 0 if the lists have all. */
static __device__ __forceinline__ uint64_t find_last(const cluster_shared &shared)
{
    const uint64_t item = shared.lists[threadIdx.x % SELECT_PARTS].end;
    const uint32_t high = __reduce_max_sync(0xffffffffu, (uint32_t)(item >> 32));
    const bool is_high = (uint32_t)(item >> 32) == high;
    return (uint64_t)high << 32 | __reduce_max_sync(0xffffffffu, is_high ? (uint32_t)item : 0);
}

/* Items of two lists of m that are greater. */
static __device__ __forceinline__ uint32_t count_greater(const select_list two[2], uint32_t m, uint64_t item)
{
    uint32_t counts[2] = {};
#pragma unroll 1
    for (uint32_t step = (m + 1) / 2; step > 0; step /= 2)
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            if (two[i].items[counts[i] + step - 1] > item)
                counts[i] += step;
    return counts[0] + counts[1];
}

/* Writes where the items of a part are among the k best, as far as the lists tell, and -1 past the last of all. Gives
 * whether all of the k are told, the same in all blocks. */
static __device__ __forceinline__ bool merge_lists(const indexer_query &at, uint32_t part, uint32_t m, uint32_t k,
                                                   const cluster_shared &shared)
{
    const uint64_t last = find_last(shared);
    const uint32_t quarter = threadIdx.x % 4;
    bool is_good = last != NO_LIST;
#pragma unroll 1
    for (uint32_t first = 0; first <= m; first += SELECT_THREADS / 4) { /* four threads an item, and the last one */
        const uint32_t i = first + threadIdx.x / 4;
        const uint64_t item = i < m ? shared.lists[part].items[i] : i == m ? last : 0;
        uint32_t rank = count_greater(&shared.lists[2 * quarter], m, item);
        rank += __shfl_xor_sync(0xffffffffu, rank, 1);
        rank += __shfl_xor_sync(0xffffffffu, rank, 2);
        if (i == m && item != 0)
            is_good = is_good && rank + 1 >= k; /* else not sent ones are among the best, too */
        else if (item != 0 && item >= last && rank < k && quarter == 0)
            at.output[rank] = output_of(item, at.offset);
    }
    if (last == 0) {
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

/* Lets the other blocks send lists to this one. */
static __device__ __forceinline__ void expect_lists(uint32_t m, cluster_shared &shared)
{
    shared_barrier_arrive_expecting(&shared.lists_are_here, SELECT_PARTS * (m + 1) * sizeof(uint64_t));
}

static __device__ __forceinline__ void open_lists(uint32_t m, cluster_shared &shared)
{
    if (threadIdx.x == 0) {
        shared_barrier_init(&shared.lists_are_here, 1);
        shared_barriers_ready();
    }
    __syncthreads(); /* the init counts as the whole warp's for racecheck */
    if (threadIdx.x == 0)
        expect_lists(m, shared);
    cluster_arrive_relaxed();
}

/* The k best of items of all blocks, of which a block sorts a share. */
static __device__ __forceinline__ void merge_items(const indexer_query &at, uint32_t n, uint32_t m, uint32_t k,
                                                   const select_team &team, cluster_shared &shared)
{
    if (threadIdx.x == 0)
        expect_lists(m, shared);
    share_items(n, m + 1, team, shared.any);
    sort_items(shared.any.share, m + 1);
    for (uint32_t i = threadIdx.x; i <= m; i += SELECT_THREADS) {
        select_list &own = shared.lists[team.part];
        send_item(i < m ? &own.items[i] : &own.end, i < m ? shared.any.share[i] : 0, shared);
    }
    shared_barrier_wait(&shared.lists_are_here, 1);
    merge_lists(at, team.part, m, k, shared);
}
#else
#define SELECT_CLUSTER
#endif

/* The k best of any scores, by one block. */
static __device__ __forceinline__ void sort_alone(const indexer_query &at, uint32_t n, uint32_t k, any_shared &shared)
{
    const uint32_t most = max(n, k), n_sorted = most > 1 ? 1u << (32 - __clz((int)(most - 1))) : 1;
    for (uint32_t i = n + threadIdx.x; i < n_sorted; i += SELECT_THREADS)
        shared.items[i] = 0;
    __syncthreads();
    sort_items(shared.items, n_sorted);
    for (uint32_t i = threadIdx.x; i < k; i += SELECT_THREADS)
        at.output[i] = output_of(shared.items[i], at.offset);
}

/* Writes the k best of any scores; the lists of a cluster have been sent once. */
static __device__ __noinline__ void select_any(indexer_query at, uint32_t part, uint32_t n_parts, uint32_t k)
{
    cluster_shared &shared = own_shared();
    const uint32_t m = list_length(k), most = min(SELECT_PARTS * m, (uint32_t)SELECT_MOST);
    select_team team = {part, n_parts, 0};
    const uint32_t n = find_items(at, k, most, team, shared.any);
#if __CUDA_ARCH__ >= 900
    if (n_parts > 1)
        merge_items(at, n, m, k, team, shared);
    else
#endif
        sort_alone(at, n, k, shared.any);
}

extern "C" __global__ void SELECT_CLUSTER __launch_bounds__(SELECT_THREADS, 2)
    dsr_indexer_select_f32__cuda(const __grid_constant__ dsri_indexer_plan plan, uint8_t *)
{
    cluster_shared &shared = own_shared();
    const uint32_t k = plan.top_k, part = blockIdx.x % SELECT_PARTS;
    const bool is_dealt = gridDim.x == SELECT_PARTS * plan.n_queries;
    const bool is_alone = !is_dealt || !SELECT_HAS_CLUSTERS;
    const uint32_t number = is_dealt ? blockIdx.x / SELECT_PARTS : blockIdx.x, m = is_alone ? k : list_length(k);
    const uint32_t n_parts = is_alone ? 1 : SELECT_PARTS;
    let_next_launch_start();
    if (number >= plan.n_queries || (is_dealt && is_alone && part > 0))
        return;
    indexer_query at;
    find_query(plan, number, at);
    const auto prepare = [&] {
        prepare_select(shared.select);
#if __CUDA_ARCH__ >= 900
        if (!is_alone)
            open_lists(m, shared);
#endif
    };
    if (at.maxima) {
        prepare();
        __syncthreads();
    }
    wait_for_prior_launch();
    select_scale scale = {};
    uint32_t n_best = 0;
    const list_end end = find_best(at, is_alone ? 0 : part, n_parts, m, scale, n_best, shared.select, prepare);
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
        select_any(at, is_alone ? 0 : part, n_parts, k);
}
