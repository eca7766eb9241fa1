/* Exact top-k of one query's scores, in the order (greater score, lower index), by the blocks of a cluster.
 *
 * Values (scores, or maxima of 16 scores) are dealt to the blocks by chunks of 32. In the usual case a block's stay in
 * registers. They are counted once, in bins of equal width between a value that enough surely reach and the greatest:
 * the counts say which bins have the best of them and where each goes when those are sorted. A block sends somewhat
 * more of its best than its even share of k to all blocks; a value's place is then the sum of its places in these
 * lists. What is better than all that was not sent is placed for sure.
 *
 * Where that is not k, where many values fall in one bin, and for longer lists: indexer_select_any.cuh. */
#ifndef DSRI_INDEXER_SELECT_CUH
#define DSRI_INDEXER_SELECT_CUH

#include "cuda/kernels/indexer_common.cuh"

/* Fours of values in the registers of a thread. */
#if __CUDA_ARCH__ >= 900
enum { SELECT_OWN = 5 };
#else
enum { SELECT_OWN = 8 };
#endif

enum {
    SELECT_THREADS = 512,
    SELECT_WARPS = SELECT_THREADS / 32,
    SELECT_VALUES = 4 * SELECT_OWN * SELECT_THREADS,
    SELECT_CHUNK = 32,
    SELECT_BINS = 2048,
    SELECT_OWN_BINS = SELECT_BINS / SELECT_THREADS,
    SELECT_CROWD = 64, /* values of a bin that are still sorted by comparing each two */
    SELECT_MOST = 2048 /* of k */
};
static_assert(SELECT_OWN_BINS == 4, "bins of a thread are read at once");

/* How a list of the best of a part ends. */
enum list_end { LIST_IS_ALL, LIST_HAS_MORE, LIST_HAS_FAILED };

struct select_shared {
    uint32_t bins[SELECT_BINS + 32]; /* counts, zeros between uses; then of what is in no bin, a lane's each */
    uint32_t starts[SELECT_BINS + 4];
    uint64_t sorted[SELECT_MOST + SELECT_CROWD];
    uint32_t groups[SELECT_MOST + SELECT_CROWD];
    uint32_t tops[SELECT_WARPS], leasts[SELECT_WARPS], warp_sums[SELECT_WARPS];
    uint32_t last_bin, n_best, is_crowded; /* of the last counts */
};

/* Values to choose from: a part of scores or maxima, or scores of the keys of listed groups of 16. */
struct select_source {
    const float *scores;
    const uint32_t *groups; /* null: of all keys */
    uint32_t n;             /* values, some of no key */
    uint32_t n_keys;        /* keys, or groups, that there are */
    uint32_t part, n_parts;
};

static __device__ __forceinline__ select_source part_of(const float *scores, uint32_t n, uint32_t part,
                                                        uint32_t n_parts)
{
    const uint32_t n_chunks = (n + SELECT_CHUNK - 1) / SELECT_CHUNK;
    return select_source{scores, nullptr, (n_chunks + n_parts - 1 - part) / n_parts * SELECT_CHUNK, n, part, n_parts};
}

static __device__ __forceinline__ uint32_t key_of(const select_source &from, uint32_t i)
{
    return from.groups ? from.groups[i / DSRI_SCORE_BLOCK] * DSRI_SCORE_BLOCK + i % DSRI_SCORE_BLOCK
                       : (i / SELECT_CHUNK * from.n_parts + from.part) * SELECT_CHUNK + i % SELECT_CHUNK;
}

/* Four values from number 4 * i on; -inf where there is none. */
static __device__ __forceinline__ float4 load_four(const select_source &from, uint32_t i)
{
    const uint32_t key = key_of(from, 4 * i);
    const float *values = from.scores + key;
    if (key + 4 <= from.n_keys && ((uintptr_t)values & 15) == 0)
        return __ldcg(reinterpret_cast<const float4 *>(values));
    float four[4];
#pragma unroll
    for (uint32_t e = 0; e < 4; e++)
        four[e] = key + e < from.n_keys ? __ldcg(values + e) : __uint_as_float(0xff800000u);
    return make_float4(four[0], four[1], four[2], four[3]);
}

/* An item: greater is better, and none is 0. */
static __device__ __forceinline__ uint64_t item_of(float value, uint32_t key)
{
    return (uint64_t)ordered_score(value) << 32 | (uint32_t)~key;
}

/* Sum of what lower threads give; `total` of all. */
static __device__ __forceinline__ uint32_t sum_before(uint32_t mine, uint32_t &total, uint32_t warp_sums[SELECT_WARPS])
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t sum = mine;
#pragma unroll
    for (uint32_t s = 1; s < 32; s *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, sum, s);
        sum += lane >= s ? other : 0;
    }
    if (lane == 31)
        warp_sums[warp] = sum;
    __syncthreads();
    const uint32_t of_warp = lane < SELECT_WARPS ? warp_sums[lane] : 0;
    total = __reduce_add_sync(0xffffffffu, of_warp);
    return sum - mine + __reduce_add_sync(0xffffffffu, lane < warp ? of_warp : 0);
}

/* The counts of a thread's bins, which are zeros then. */
static __device__ __forceinline__ uint4 take_counts(select_shared &shared)
{
    uint4 &bins = reinterpret_cast<uint4 *>(shared.bins)[threadIdx.x];
    const uint4 counts = bins;
    bins = make_uint4(0, 0, 0, 0);
    return counts;
}

/* ---- the usual case: values in registers ---- */

/* A thread's fours: number t, t + SELECT_THREADS, ... */
static __device__ __forceinline__ void load_own(const select_source &from, float4 own[SELECT_OWN])
{
    const float none = __uint_as_float(0xff800000u);
#pragma unroll
    for (uint32_t j = 0; j < SELECT_OWN; j++) {
        if (4 * j * SELECT_THREADS >= from.n)
            break;
        const uint32_t i = j * SELECT_THREADS + threadIdx.x;
        own[j] = make_float4(none, none, none, none);
        if (4 * i < from.n)
            own[j] = load_four(from, i);
    }
}

/* Bins of equal width in which values from `least` to `top` fall, the greatest in bin 0. */
struct select_scale {
    float top, least, bins_per_unit;
};

static __device__ __forceinline__ select_scale scale_from(float top, float least)
{
    const float from = fmaxf(least, __uint_as_float(0xff7fffffu)); /* excluded values fall in no bin */
    const float bins_per_unit = __fdividef((float)(SELECT_BINS - 1), __fadd_rn(top, -from));
    return select_scale{top, from, top > from ? fminf(bins_per_unit, 0x1p100f) : 0.0f};
}

/* Never greater for a greater value. */
static __device__ __forceinline__ uint32_t bin_of(const select_scale &scale, float v)
{
    const float x = __fmaf_rn(__fadd_rn(scale.top, -v), scale.bins_per_unit, 0x1p23f); /* an integer in the low bits */
    return min(__float_as_uint(x) - __float_as_uint(0x1p23f), (uint32_t)(SELECT_BINS - 1));
}

/* A value below which none falls in bins up to `bin`; least at least. */
static __device__ __forceinline__ float cut_at(const select_scale &scale, uint32_t bin)
{
    return fmaxf(scale.least, __fadd_rn(scale.top, -__fdividef((float)(bin + 1), scale.bins_per_unit)));
}

/* The scale of the threads' values, n in all, from a value on that m of them reach, or all that are not excluded. */
static __device__ __forceinline__ select_scale scale_of_own(const float4 own[SELECT_OWN], uint32_t n, uint32_t m,
                                                            select_shared &shared)
{
    const uint32_t n_fours = (n + 3) / 4, lane = threadIdx.x % 32;
    const float none = __uint_as_float(0x7f800000u);
    float most = -none, least = none;
#pragma unroll
    for (uint32_t j = 0; j < SELECT_OWN; j++) {
        if (j * SELECT_THREADS >= n_fours)
            break;
        most = fmaxf(fmaxf(fmaxf(most, own[j].x), fmaxf(own[j].y, own[j].z)), own[j].w);
    }
    if (min(n_fours, (uint32_t)SELECT_THREADS) < m) {
#pragma unroll
        for (uint32_t j = 0; j < SELECT_OWN; j++) {
            if (j * SELECT_THREADS >= n_fours)
                break;
            least = fminf(least, own[j].x > -none ? own[j].x : none);
            least = fminf(least, own[j].y > -none ? own[j].y : none);
            least = fminf(least, own[j].z > -none ? own[j].z : none);
            least = fminf(least, own[j].w > -none ? own[j].w : none);
        }
    } else if (threadIdx.x < n_fours) { /* the greatest of a thread's values, or of some threads' */
        least = most;
    }
    if (n_fours >= SELECT_THREADS) {
#pragma unroll 1
        for (uint32_t s = 1; s < 32 && 2 * s * m <= SELECT_THREADS; s *= 2)
            least = fmaxf(least, __shfl_xor_sync(0xffffffffu, least, s));
    }
    const uint32_t top_of_warp = __reduce_max_sync(0xffffffffu, ordered_score(most));
    const uint32_t least_of_warp = __reduce_min_sync(0xffffffffu, ordered_score(least));
    if (lane == 0) {
        shared.tops[threadIdx.x / 32] = top_of_warp;
        shared.leasts[threadIdx.x / 32] = least_of_warp;
    }
    __syncthreads();
    const uint32_t warp = lane % SELECT_WARPS;
    return scale_from(score_of_ordered(__reduce_max_sync(0xffffffffu, shared.tops[warp])),
                      score_of_ordered(__reduce_min_sync(0xffffffffu, shared.leasts[warp])));
}

/* Counts a thread's values, n of all threads, in bins. Byte e of slots[j]: how many came before value e of four j in
 * its bin, if that has no more than 256. */
static __device__ __forceinline__ void count_own(const float4 own[SELECT_OWN], uint32_t n, const select_scale &scale,
                                                 uint32_t slots[SELECT_OWN], select_shared &shared)
{
#pragma unroll
    for (uint32_t j = 0; j < SELECT_OWN; j++) {
        if (4 * j * SELECT_THREADS >= n)
            break;
        const float four[4] = {own[j].x, own[j].y, own[j].z, own[j].w};
        uint32_t slot[4];
#pragma unroll
        for (uint32_t e = 0; e < 4; e++)
            slot[e] = atomicAdd(
                &shared.bins[four[e] >= scale.least ? bin_of(scale, four[e]) : SELECT_BINS + threadIdx.x % 32], 1u);
        slots[j] = (slot[0] & 255u) | (slot[1] & 255u) << 8 | (slot[2] & 255u) << 16 | slot[3] << 24;
    }
}

/* The best bins: those with the m best values. */
struct select_best {
    uint32_t last_bin, n; /* values in them */
};

/* Where bins start, from their counts, which are zeros then; says in shared memory if one of the best, or about, is
 * crowded. */
static __device__ __forceinline__ select_best start_best(uint32_t m, select_shared &shared)
{
    uint32_t total;
    __syncthreads();
    const uint4 counts = take_counts(shared);
    const uint32_t first = sum_before(counts.x + counts.y + counts.z + counts.w, total, shared.warp_sums);
    const uint32_t second = first + counts.x, third = second + counts.y, fourth = third + counts.z;
    const uint32_t end = fourth + counts.w;
    reinterpret_cast<uint4 *>(shared.starts)[threadIdx.x] = make_uint4(first, second, third, fourth);
    if (first < m && end >= m) {
        const uint32_t before = (uint32_t)(second < m) + (uint32_t)(third < m) + (uint32_t)(fourth < m);
        shared.last_bin = 4 * threadIdx.x + before;
        shared.n_best = before == 0 ? second : before == 1 ? third : before == 2 ? fourth : end;
    }
    if (first < m && max(max(counts.x, counts.y), max(counts.z, counts.w)) > SELECT_CROWD)
        shared.is_crowded = 1;
    if (threadIdx.x == SELECT_THREADS - 1) {
        shared.starts[SELECT_BINS] = total;
        if (total < m) {
            shared.last_bin = SELECT_BINS - 1;
            shared.n_best = total;
        }
    }
    __syncthreads();
    return select_best{shared.last_bin, shared.n_best};
}

/* Calls take(place, value, key) for those of a thread's values that are in the best bins. */
template <typename Take>
static __device__ __forceinline__ void take_best(const select_source &from, const float4 own[SELECT_OWN],
                                                 const select_scale &scale, const uint32_t slots[SELECT_OWN],
                                                 select_best best, select_shared &shared, Take take)
{
#pragma unroll
    for (uint32_t j = 0; j < SELECT_OWN; j++) {
        if (4 * j * SELECT_THREADS >= from.n)
            break;
        const float four[4] = {own[j].x, own[j].y, own[j].z, own[j].w};
        const uint32_t number = 4 * (j * SELECT_THREADS + threadIdx.x);
        const uint32_t key = number < from.n ? key_of(from, number) : 0;
        uint32_t bins[4], starts[4];
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) {
            bins[e] = bin_of(scale, four[e]);
            starts[e] = shared.starts[bins[e]];
        }
#pragma unroll
        for (uint32_t e = 0; e < 4; e++)
            if (four[e] >= scale.least && bins[e] <= best.last_bin)
                take(starts[e] + (slots[j] >> 8 * e & 255u), four[e], key + e);
    }
}

/* Lists the groups that the m best keys of a part are in: `from` is their keys then, and the scale that of the groups.
 */
static __device__ __forceinline__ bool list_groups(const indexer_query &at, const select_source &groups, uint32_t m,
                                                   select_source &from, select_scale &scale, select_shared &shared)
{
    float4 own[SELECT_OWN];
    uint32_t slots[SELECT_OWN];
    if (groups.n > SELECT_VALUES)
        return false;
    load_own(groups, own);
    scale = scale_of_own(own, groups.n, m, shared);
    count_own(own, groups.n, scale, slots, shared);
    const select_best best = start_best(m, shared);
    if (shared.is_crowded || best.n < m)
        return false;
    take_best(groups, own, scale, slots, best, shared,
              [&](uint32_t place, float, uint32_t group) { shared.groups[place] = group; });
    __syncthreads();
    from = select_source{at.scores, shared.groups, DSRI_SCORE_BLOCK * best.n, at.n_seen, 0, 1};
    scale = scale_from(scale.top, cut_at(scale, best.last_bin)); /* m keys reach the cut */
    return true;
}

/* Sorts the m best of a part into bins, and tells how many those bins have and how the list ends. Calls prepare() while
 * the values come, if they are the first that are read. */
template <typename Prepare>
static __device__ __forceinline__ list_end find_best(const indexer_query &at, uint32_t part, uint32_t n_parts,
                                                     uint32_t m, select_scale &scale, uint32_t &n_best,
                                                     select_shared &shared, Prepare prepare)
{
    select_source from = part_of(at.scores, at.n_seen, part, n_parts);
    if (at.maxima) {
        const uint32_t n_groups = (at.n_seen + DSRI_SCORE_BLOCK - 1) / DSRI_SCORE_BLOCK;
        if (!list_groups(at, part_of(at.maxima, n_groups, part, n_parts), m, from, scale, shared))
            return LIST_HAS_FAILED;
    }
    float4 own[SELECT_OWN];
    uint32_t slots[SELECT_OWN];
    if (from.n <= SELECT_VALUES)
        load_own(from, own);
    if (!at.maxima)
        prepare();
    if (from.n > SELECT_VALUES)
        return LIST_HAS_FAILED;
    if (!at.maxima)
        scale = scale_of_own(own, from.n, m, shared);
    count_own(own, from.n, scale, slots, shared);
    const select_best best = start_best(m, shared);
    if (shared.is_crowded)
        return LIST_HAS_FAILED;
    take_best(from, own, scale, slots, best, shared,
              [&](uint32_t to, float v, uint32_t key) { shared.sorted[to] = item_of(v, key); });
    __syncthreads();
    n_best = best.n;
    return best.n < m || from.n <= m ? LIST_IS_ALL : LIST_HAS_MORE;
}

/* Calls place(rank, item) for the m best of them in any order, and with items of 0 past the last. */
template <typename Place>
static __device__ __forceinline__ void place_best(const select_scale &scale, uint32_t n_best, uint32_t m,
                                                  const select_shared &shared, Place place)
{
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < max(n_best, m); i += SELECT_THREADS) {
        uint32_t rank = i;
        uint64_t item = 0;
        if (i < n_best) {
            item = shared.sorted[i];
            const uint32_t bin = bin_of(scale, score_of_ordered((uint32_t)(item >> 32))), end = shared.starts[bin + 1];
            rank = shared.starts[bin];
#pragma unroll 1
            for (uint32_t j = rank; j < end; j++)
                rank += shared.sorted[j] > item;
        }
        if (rank < m)
            place(rank, item);
    }
}

#endif
