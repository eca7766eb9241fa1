/* Exact top-k of one query's scores by one block, in the order (greater score, lower index).
 *
 * In the usual case values (scores, or maxima of 16 scores) stay in registers. They are counted once, in bins of equal
 * width between a value that k surely reach and the greatest: the counts say which bins have the k best and where each
 * value goes when those are sorted.
 *
 * Where many fall in one of these bins, and for longer lists, values (as ordered words) lie in shared memory, in pieces
 * if there are many. Counting them in windows of 2,048 bins from the greatest down finds a bound that at least k and
 * not many more reach; a crowded bin is cut into finer bins, at last by index. What reaches the bound is sorted by
 * counting and written. */
#ifndef DSRI_INDEXER_SELECT_CUH
#define DSRI_INDEXER_SELECT_CUH

#include "cuda/kernels/indexer_common.cuh"

enum {
    SELECT_VALUES = 16384,
    SELECT_BINS = 2048,
    SELECT_BIN_SLOTS = 2308,
    SELECT_ITEMS = 4096,
    SELECT_BLOCKS = 2048 + 64,
    SELECT_FIRST_SHIFT = 15,
    SELECT_CROWD = 64, /* values of a bin that are still sorted by comparing each two */
    SELECT_FEW = 2048 + SELECT_CROWD
};

struct select_shared {
    union {
        uint32_t values[SELECT_VALUES];
        struct {
            uint64_t sorted[SELECT_ITEMS]; /* once the values are no longer needed */
            uint32_t places[SELECT_ITEMS];
        };
    };
    union {
        uint64_t items[SELECT_ITEMS]; /* value << 32 | ~key: greater is better */
        struct {                      /* in the usual case: */
            uint64_t few[SELECT_FEW];
            uint32_t starts[SELECT_BINS + 1]; /* of bins, within the bins of a warp */
            uint32_t bases[32][33];           /* of the bins of each warp, and of none: every warp has its own copy */
        };
    };
    uint32_t bins[SELECT_BIN_SLOTS]; /* those past SELECT_BINS are empty: threads may own some */
    uint32_t taken[SELECT_BINS];     /* of each bin so far, in the usual case */
    uint32_t n_listed, n_few;        /* groups and values that reach a bound, in the usual case */
    uint32_t blocks[SELECT_BLOCKS];
    uint32_t warp_sums[32];
    uint32_t bin, before, inside, total; /* of the last search */
    uint32_t tops[32], leasts[32];       /* of the values of each warp, in the usual case */
    uint32_t is_crowded;
};

/* Values to choose from: scores of all keys, of all keys of the listed groups of 16, or maxima of groups. */
struct select_source {
    const float *scores;
    const uint32_t *blocks; /* null: all */
    uint32_t n;             /* values */
    uint32_t n_keys;        /* keys, or groups, that there are */
};

static __device__ __forceinline__ uint32_t key_of(const select_source &from, uint32_t i)
{
    return from.blocks ? from.blocks[i / DSRI_SCORE_BLOCK] * DSRI_SCORE_BLOCK + i % DSRI_SCORE_BLOCK : i;
}

static __device__ __forceinline__ uint32_t select_pieces(const select_source &from)
{
    return (from.n + SELECT_VALUES - 1) / SELECT_VALUES;
}

static __device__ __forceinline__ uint32_t piece_length(const select_source &from, uint32_t piece)
{
    const uint32_t left = from.n - piece * SELECT_VALUES;
    return left < SELECT_VALUES ? left : SELECT_VALUES;
}

/* Brings a piece of the values to shared memory, up to a multiple of 4. Gives the greatest of this thread's. */
template <int THREADS>
static __device__ uint32_t load_values(const select_source &from, uint32_t piece, select_shared &shared)
{
    const uint32_t first = piece * SELECT_VALUES, n = piece_length(from, piece), t = threadIdx.x;
    const uint32_t n_wide = ((uintptr_t)from.scores & 15) == 0 ? n & ~3u : 0;
    __syncthreads();
    for (uint32_t i = 4 * t; i < n_wide; i += 4 * THREADS) {
        const uint32_t key = key_of(from, first + i);
        if (key + 4 <= from.n_keys)
            copy_async_16(&shared.values[i], from.scores + key, 16);
        else /* in the last group */
            for (uint32_t j = 0; j < 4; j++)
                shared.values[i + j] =
                    key + j < from.n_keys ? __float_as_uint(__ldcg(from.scores + key + j)) : 0xff800000u;
    }
    for (uint32_t i = n_wide + t; i < ((n + 3) & ~3u); i += THREADS) {
        const uint32_t key = i < n ? key_of(from, first + i) : from.n_keys;
        if (key < from.n_keys)
            copy_async_4(&shared.values[i], from.scores + key);
        else
            shared.values[i] = 0xff800000u;
    }
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    uint32_t greatest = 0;
#pragma unroll 2
    for (uint32_t i = 4 * t; i < n; i += 4 * THREADS) {
        uint4 *at = reinterpret_cast<uint4 *>(&shared.values[i]);
        uint4 v = *at;
        v.x = ordered_score(__uint_as_float(v.x));
        v.y = ordered_score(__uint_as_float(v.y));
        v.z = ordered_score(__uint_as_float(v.z));
        v.w = ordered_score(__uint_as_float(v.w));
        greatest = max(max(max(greatest, v.x), max(v.y, v.z)), v.w);
        *at = v;
    }
    return greatest;
}

/* Calls visit(value, number) for all values, whole warps together; each thread meets the values it loaded. */
template <int THREADS, typename Visit>
static __device__ __forceinline__ void walk_values(const select_source &from, select_shared &shared, Visit visit)
{
    const uint32_t n_pieces = select_pieces(from);
    for (uint32_t piece = 0; piece < n_pieces; piece++) {
        if (n_pieces > 1)
            load_values<THREADS>(from, piece, shared);
        const uint32_t n = piece_length(from, piece);
#pragma unroll 2
        for (uint32_t first = 0; first < n; first += 4 * THREADS) {
            const uint32_t i = first + 4 * threadIdx.x;
            const uint4 v = i < n ? *reinterpret_cast<const uint4 *>(&shared.values[i]) : make_uint4(0, 0, 0, 0);
            const uint32_t number = piece * SELECT_VALUES + i;
            visit(v.x, number);
            visit(v.y, number + 1);
            visit(v.z, number + 2);
            visit(v.w, number + 3);
        }
    }
}

/* Sum of what lower threads give; `total` of all. */
template <int THREADS>
static __device__ __forceinline__ uint32_t sum_before(uint32_t mine, uint32_t &total, select_shared &shared)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t sum = mine;
#pragma unroll
    for (uint32_t s = 1; s < 32; s *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, sum, s);
        sum += lane >= s ? other : 0;
    }
    if (lane == 31)
        shared.warp_sums[warp] = sum;
    __syncthreads();
    const uint32_t of_warp = lane < THREADS / 32 ? shared.warp_sums[lane] : 0;
    total = __reduce_add_sync(0xffffffffu, of_warp);
    return sum - mine + __reduce_add_sync(0xffffffffu, lane < warp ? of_warp : 0);
}

/* Finds the bin in which the `needed` best end, bin 0 being the best, and clears the bins. */
template <int THREADS> static __device__ void find_bin(uint32_t needed, select_shared &shared)
{
    constexpr uint32_t OWN = (SELECT_BINS + THREADS - 1) / THREADS;
    uint32_t counts[OWN], mine = 0, total;
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < OWN; i++) {
        counts[i] = shared.bins[threadIdx.x * OWN + i];
        shared.bins[threadIdx.x * OWN + i] = 0;
        mine += counts[i];
    }
    uint32_t before = sum_before<THREADS>(mine, total, shared);
    if (threadIdx.x == 0)
        shared.total = total;
    if (before < needed && before + mine >= needed) {
#pragma unroll
        for (uint32_t i = 0; i < OWN; i++) {
            if (before < needed && before + counts[i] >= needed) {
                shared.bin = threadIdx.x * OWN + i;
                shared.before = before;
                shared.inside = counts[i];
            }
            before += counts[i];
        }
    }
    __syncthreads();
}

/* What reaches it: greater values, and of equal ones those with ~key >= rest. */
struct select_bound {
    uint32_t value, rest;
};

/* Least shift that brings [least, top] into the bins. */
static __device__ __forceinline__ uint32_t shift_for(uint32_t range)
{
    const int bits = 32 - __clz((int)range);
    return bits > 11 ? (uint32_t)(bits - 11) : 0;
}

/* A bound that the k best reach and at most `room` values, or all from `least` on if those are fewer than k. */
template <int THREADS>
static __device__ select_bound find_bound(const select_source &from, uint32_t k, uint32_t room, uint32_t greatest,
                                          uint32_t least, select_shared &shared)
{
    uint32_t top = greatest, shift = SELECT_FIRST_SHIFT, needed = k;
    bool is_tied = false; /* only keys of value `tied` are left to tell apart, by ~key */
    uint32_t tied = 0;
    if (greatest < least) {
        __syncthreads();
        return select_bound{least, 0};
    }
    for (;;) {
        walk_values<THREADS>(from, shared, [&](uint32_t v, uint32_t i) {
            const uint32_t x = !is_tied ? v : v == tied ? ~key_of(from, i) : 0;
            const uint32_t bin = (top - x) >> shift;
            if (x - least <= top - least && bin < SELECT_BINS)
                atomicAdd(&shared.bins[bin], 1u);
        });
        find_bin<THREADS>(needed, shared);
        const bool is_last_window = (top - least) >> shift < SELECT_BINS;
        if (shared.total < needed) {
            if (is_last_window)
                return select_bound{least, 0};
            needed -= shared.total;
            top -= SELECT_BINS << shift;
            shift = shift_for(top - least);
            continue;
        }
        needed -= shared.before;
        top -= shared.bin << shift;
        const uint32_t width = (1u << shift) - 1, low = top - least > width ? top - width : least;
        if (k - needed + shared.inside <= room)
            return is_tied ? select_bound{tied, low} : select_bound{low, 0};
        if (shift == 0) {
            tied = top;
            is_tied = true;
            top = 0xffffffffu;
            least = ~(from.n_keys - 1);
            shift = shift_for(top - least);
        } else {
            shift = shift > 11 ? shift - 11 : 0;
        }
    }
}

/* Calls take(place, value, number) for every value that reaches the bound, and gives how many there are. Each thread
 * marks its values first, so that places come from one sum over the threads. */
template <int THREADS, typename Take>
static __device__ __forceinline__ uint32_t collect(const select_source &from, select_bound bound, select_shared &shared,
                                                   Take take)
{
    static_assert(SELECT_VALUES / THREADS <= 64, "a mark for each of a thread's values");
    const uint32_t n_pieces = select_pieces(from);
    uint32_t n_taken = 0;
    for (uint32_t piece = 0; piece < n_pieces; piece++) {
        if (n_pieces > 1)
            load_values<THREADS>(from, piece, shared);
        const uint32_t n = piece_length(from, piece), first_number = piece * SELECT_VALUES;
        const auto reaches = [&](uint32_t v, uint32_t i) {
            return v > bound.value ||
                   (v == bound.value && (bound.rest == 0 || ~key_of(from, first_number + i) >= bound.rest));
        };
        uint64_t marks = 0;
#pragma unroll 2
        for (uint32_t i = 4 * threadIdx.x, shift = 0; i < n; i += 4 * THREADS, shift += 4) {
            const uint4 v = *reinterpret_cast<const uint4 *>(&shared.values[i]);
            const uint32_t mine = (uint32_t)reaches(v.x, i) | (uint32_t)reaches(v.y, i + 1) << 1 |
                                  (uint32_t)reaches(v.z, i + 2) << 2 | (uint32_t)reaches(v.w, i + 3) << 3;
            marks |= (uint64_t)mine << shift;
        }
        uint32_t total, place = n_taken + sum_before<THREADS>((uint32_t)__popcll(marks), total, shared);
        while (marks) {
            const uint32_t bit = (uint32_t)__ffsll((long long)marks) - 1;
            const uint32_t i = 4 * threadIdx.x + bit / 4 * (4 * THREADS) + bit % 4;
            take(place++, shared.values[i], first_number + i);
            marks &= marks - 1;
        }
        n_taken += total;
        __syncthreads();
    }
    return n_taken;
}

/* Loads all values, if they are one piece, and finds the greatest. */
template <int THREADS> static __device__ uint32_t find_greatest(const select_source &from, select_shared &shared)
{
    uint32_t greatest = 0;
    for (uint32_t piece = 0; piece < select_pieces(from); piece++)
        greatest = max(greatest, load_values<THREADS>(from, piece, shared));
    greatest = __reduce_max_sync(0xffffffffu, greatest);
    if (threadIdx.x % 32 == 0)
        shared.warp_sums[threadIdx.x / 32] = greatest;
    __syncthreads();
    return __reduce_max_sync(0xffffffffu, threadIdx.x % 32 < THREADS / 32 ? shared.warp_sums[threadIdx.x % 32] : 0);
}

/* Turns the counts of bins into the places where they start; gives the sum. */
template <int THREADS> static __device__ __forceinline__ uint32_t start_bins(select_shared &shared)
{
    constexpr uint32_t OWN = (SELECT_BINS + THREADS - 1) / THREADS;
    uint32_t counts[OWN], mine = 0, total;
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < OWN; i++) {
        counts[i] = shared.bins[threadIdx.x * OWN + i];
        mine += counts[i];
    }
    uint32_t before = sum_before<THREADS>(mine, total, shared);
#pragma unroll
    for (uint32_t i = 0; i < OWN; i++) {
        shared.bins[threadIdx.x * OWN + i] = before;
        before += counts[i];
    }
    __syncthreads();
    return total;
}

/* Writes the k best of n items in order: bins by value (by index if all values are equal), then a count within the bin.
 */
template <int THREADS>
static __device__ void sort_and_write(const indexer_query &at, uint32_t k, uint32_t n, uint32_t greatest,
                                      uint32_t least, select_shared &shared)
{
    const bool by_key = greatest == least;
    const uint32_t top = by_key ? 0xffffffffu : greatest;
    const uint32_t shift = shift_for(by_key ? at.n_seen : greatest - least);
    const auto bin_of = [&](uint64_t item) { return (top - (uint32_t)(by_key ? item : item >> 32)) >> shift; };
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        shared.places[i] = atomicAdd(&shared.bins[bin_of(shared.items[i])], 1u);
    if (threadIdx.x == 0)
        shared.bins[SELECT_BINS] = n;
    (void)start_bins<THREADS>(shared);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        const uint64_t item = shared.items[i];
        shared.sorted[shared.bins[bin_of(item)] + shared.places[i]] = item;
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        const uint64_t item = shared.sorted[i];
        const uint32_t bin = bin_of(item), end = shared.bins[bin + 1];
        uint32_t rank = shared.bins[bin];
        for (uint32_t j = rank; j < end; j++)
            rank += shared.sorted[j] > item;
        if (rank < k)
            at.output[rank] = (int32_t) ~(uint32_t)item + at.offset;
    }
    for (uint32_t i = n + threadIdx.x; i < k; i += THREADS)
        at.output[i] = -1;
}

/* The general case. The bins are zeros. */
template <int THREADS>
static __device__ void select_in_pieces(const indexer_query &at, uint32_t k, select_shared &shared)
{
    select_source from = {at.scores, nullptr, at.n_seen, at.n_seen};
    uint32_t least = EXCLUDED + 1;
    if (at.maxima) {
        const uint32_t n_groups = (at.n_seen - 1) / DSRI_SCORE_BLOCK + 1;
        const uint32_t room =
            k <= SELECT_VALUES / DSRI_SCORE_BLOCK / 2 ? SELECT_VALUES / DSRI_SCORE_BLOCK : SELECT_BLOCKS;
        const select_source groups = {at.maxima, nullptr, n_groups, n_groups};
        const uint32_t greatest = find_greatest<THREADS>(groups, shared);
        const select_bound bound = find_bound<THREADS>(groups, k, room, greatest, least, shared);
        from.blocks = shared.blocks;
        from.n = DSRI_SCORE_BLOCK * collect<THREADS>(groups, bound, shared, [&](uint32_t place, uint32_t, uint32_t i) {
                     shared.blocks[place] = i;
                 });
        least = bound.value; /* k groups reach it, and so k keys */
    }
    const uint32_t greatest = find_greatest<THREADS>(from, shared);
    const select_bound bound = find_bound<THREADS>(from, k, 2 * k, greatest, least, shared);
    const uint32_t n_items = collect<THREADS>(from, bound, shared, [&](uint32_t place, uint32_t v, uint32_t i) {
        shared.items[place] = (uint64_t)v << 32 | (uint32_t)~key_of(from, i);
    });
    sort_and_write<THREADS>(at, k, n_items, greatest, bound.value, shared);
}

/* ---- the usual case: at most 16 values a thread ---- */

/* Fours of values of a thread: number t, t + THREADS, ... */
template <int THREADS> constexpr uint32_t SELECT_OWN = SELECT_VALUES / 4 / THREADS;

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

/* A thread's fours from number `first` on. */
template <int THREADS>
static __device__ __forceinline__ void load_own(const select_source &from, uint32_t first,
                                                float4 own[SELECT_OWN<THREADS>])
{
    const float none = __uint_as_float(0xff800000u);
#pragma unroll
    for (uint32_t j = 0; j < SELECT_OWN<THREADS>; j++) {
        if (4 * (first + j * THREADS) >= from.n)
            break;
        const uint32_t i = first + j * THREADS + threadIdx.x;
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
    return select_scale{top, least, __fdividef((float)(SELECT_BINS - 1), __fadd_rn(top, -least))};
}

/* Never greater for a greater value. */
static __device__ __forceinline__ uint32_t bin_of(const select_scale &scale, float v)
{
    const float x = __fmaf_rn(__fadd_rn(scale.top, -v), scale.bins_per_unit, 0x1p23f); /* an integer in the low bits */
    return min(__float_as_uint(x) - __float_as_uint(0x1p23f), (uint32_t)(SELECT_BINS - 1));
}

/* The scale of a thread's values, n of all threads, from a value that k of them reach (or all that are not excluded)
 * on. Its bins_per_unit is 0, infinite or NaN if there is none. */
template <int THREADS>
static __device__ __forceinline__ select_scale scale_of_own(const float4 own[SELECT_OWN<THREADS>], uint32_t n,
                                                            uint32_t k, select_shared &shared)
{
    constexpr uint32_t WARPS = THREADS / 32;
    const uint32_t n_fours = (n + 3) / 4, lane = threadIdx.x % 32;
    const float none = __uint_as_float(0x7f800000u);
    float most = -none, least = none;
#pragma unroll
    for (uint32_t j = 0; j < SELECT_OWN<THREADS>; j++) {
        if (j * THREADS >= n_fours)
            break;
        most = fmaxf(fmaxf(fmaxf(most, own[j].x), fmaxf(own[j].y, own[j].z)), own[j].w);
    }
    if (min(n_fours, (uint32_t)THREADS) < k) {
#pragma unroll
        for (uint32_t j = 0; j < SELECT_OWN<THREADS>; j++) {
            if (j * THREADS >= n_fours)
                break;
            least = fminf(least, own[j].x > -none ? own[j].x : none);
            least = fminf(least, own[j].y > -none ? own[j].y : none);
            least = fminf(least, own[j].z > -none ? own[j].z : none);
            least = fminf(least, own[j].w > -none ? own[j].w : none);
        }
    } else if (threadIdx.x < n_fours) { /* the greatest of a thread's values, or of some threads' */
        least = most;
    }
    if (n_fours >= THREADS) {
#pragma unroll 1
        for (uint32_t s = 1; s < 32 && THREADS / (2 * s) >= k; s *= 2)
            least = fmaxf(least, __shfl_xor_sync(0xffffffffu, least, s));
    }
    const uint32_t top_of_warp = __reduce_max_sync(0xffffffffu, ordered_score(most));
    const uint32_t least_of_warp = __reduce_min_sync(0xffffffffu, ordered_score(least));
    if (lane == 0) {
        shared.tops[threadIdx.x / 32] = top_of_warp;
        shared.leasts[threadIdx.x / 32] = least_of_warp;
    }
    __syncthreads();
    const uint32_t warp = lane < WARPS ? lane : 0;
    return scale_from(score_of_ordered(__reduce_max_sync(0xffffffffu, shared.tops[warp])),
                      score_of_ordered(__reduce_min_sync(0xffffffffu, shared.leasts[warp])));
}

/* Counts a thread's values in bins. */
template <int THREADS>
static __device__ __forceinline__ void count_own(const float4 own[SELECT_OWN<THREADS>], uint32_t n_fours,
                                                 const select_scale &scale, select_shared &shared)
{
#pragma unroll
    for (uint32_t j = 0; j < SELECT_OWN<THREADS>; j++) {
        if (j * THREADS >= n_fours)
            break;
        const float four[4] = {own[j].x, own[j].y, own[j].z, own[j].w};
#pragma unroll
        for (uint32_t e = 0; e < 4; e++)
            if (four[e] >= scale.least)
                atomicAdd(&shared.bins[bin_of(scale, four[e])], 1u);
    }
}

/* The best bins: those with the k best values. */
struct select_best {
    uint32_t last_bin, n; /* values in them */
};

/* Where bins start, from their counts, which are zeros then; says in shared memory if one of the best is crowded. */
template <int THREADS> static __device__ __forceinline__ select_best start_best(uint32_t k, select_shared &shared)
{
    constexpr uint32_t OWN = SELECT_BINS / THREADS, WARPS = THREADS / 32;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = threadIdx.x * OWN;
    uint32_t counts[OWN], mine = 0, most = 0;
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < OWN; i++) {
        counts[i] = shared.bins[first + i];
        shared.bins[first + i] = 0;
        mine += counts[i];
        most = max(most, counts[i]);
    }
    uint32_t sum = mine;
#pragma unroll
    for (uint32_t s = 1; s < 32; s *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, sum, s);
        sum += lane >= s ? other : 0;
    }
    uint32_t start = sum - mine;
#pragma unroll
    for (uint32_t i = 0; i < OWN; i++) {
        shared.starts[first + i] = start;
        start += counts[i];
    }
    if (lane == 31)
        shared.warp_sums[warp] = sum;
    if (threadIdx.x == 0)
        shared.starts[SELECT_BINS] = 0;
    __syncthreads();
    const uint32_t of_warp = lane < WARPS ? shared.warp_sums[lane] : 0;
    uint32_t base = of_warp;
#pragma unroll
    for (uint32_t s = 1; s < 32; s *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, base, s);
        base += lane >= s ? other : 0;
    }
    uint32_t *bases = shared.bases[warp];
    bases[lane + 1] = base;
    base -= of_warp;
    if (lane == 0)
        bases[0] = 0;
    __syncwarp();
    const uint32_t last_warp = 31 - (uint32_t)__clz((int)__ballot_sync(0xffffffffu, lane < WARPS && base < k));
    uint32_t n_best = 0;
#pragma unroll
    for (uint32_t i = 0; i < OWN; i++)
        n_best += __popc(
            __ballot_sync(0xffffffffu, bases[last_warp] + shared.starts[last_warp * 32 * OWN + i * 32 + lane] < k));
    select_best best;
    best.last_bin = last_warp * 32 * OWN + n_best - 1;
    const uint32_t end = best.last_bin + 1;
    best.n = bases[end / (32 * OWN)] + shared.starts[end];
    if (most > SELECT_CROWD && bases[warp] + sum - mine < k) /* about: a bin further may do it */
        shared.is_crowded = 1;
    return best;
}

/* Where the first value of a bin goes. */
template <int THREADS>
static __device__ __forceinline__ uint32_t start_of_bin(uint32_t bin, const select_shared &shared)
{
    return shared.bases[threadIdx.x / 32][bin / (SELECT_BINS / (THREADS / 32))] + shared.starts[bin];
}

/* A value below which none falls in bins up to `bin`; least at least. */
static __device__ __forceinline__ float cut_at(const select_scale &scale, uint32_t bin)
{
    return fmaxf(scale.least, __fadd_rn(scale.top, -__fdividef((float)(bin + 1), scale.bins_per_unit)));
}

/* Calls take(place, value, number) for those of a thread's values, from four `first` on, that reach the cut; places
 * follow *n_taken, in any order. */
template <int THREADS, typename Take>
static __device__ __forceinline__ void take_own(const float4 own[SELECT_OWN<THREADS>], uint32_t first, uint32_t n_fours,
                                                float cut, uint32_t *n_taken, select_shared &shared, Take take)
{
    static_assert(SELECT_OWN<THREADS> <= 8, "a mark for each of a thread's values");
    const uint32_t lane = threadIdx.x % 32;
    float *kept = reinterpret_cast<float *>(shared.values) + 4 * threadIdx.x; /* where they can be numbered */
    uint32_t marks = 0;
#pragma unroll
    for (uint32_t j = 0; j < SELECT_OWN<THREADS>; j++) {
        if (j * THREADS >= n_fours)
            break;
        *reinterpret_cast<float4 *>(kept + j * 4 * THREADS) = own[j];
        marks |= own[j].x >= cut ? 1u << 4 * j : 0;
        marks |= own[j].y >= cut ? 2u << 4 * j : 0;
        marks |= own[j].z >= cut ? 4u << 4 * j : 0;
        marks |= own[j].w >= cut ? 8u << 4 * j : 0;
    }
    const uint32_t n = (uint32_t)__popc(marks);
    uint32_t place = n, start = 0;
#pragma unroll
    for (uint32_t s = 1; s < 32; s *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, place, s);
        place += lane >= s ? other : 0;
    }
    if (lane == 31 && place)
        start = atomicAdd(n_taken, place);
    place += __shfl_sync(0xffffffffu, start, 31) - n;
#pragma unroll 1
    for (; marks; marks &= marks - 1, place++) {
        const uint32_t bit = (uint32_t)__ffs((int)marks) - 1, at = bit / 4 * (4 * THREADS) + bit % 4;
        if (place < SELECT_FEW)
            take(place, kept[at], 4 * (first + threadIdx.x) + at);
    }
}

static __device__ __forceinline__ bool is_usable(const select_scale &scale)
{
    return scale.bins_per_unit > 0x1p-100f && scale.bins_per_unit < 0x1p100f;
}

/* Lists the groups of which k of the greatest keys are: `from` is their keys then, and the scale that of the groups. */
template <int THREADS>
static __device__ __forceinline__ bool list_groups(const indexer_query &at, uint32_t k, select_source &from,
                                                   select_scale &scale, select_shared &shared)
{
    const uint32_t n_groups = (at.n_seen + DSRI_SCORE_BLOCK - 1) / DSRI_SCORE_BLOCK, n_fours = (n_groups + 3) / 4;
    const select_source groups = {at.maxima, nullptr, n_groups, n_groups};
    float4 own[SELECT_OWN<THREADS>];
    load_own<THREADS>(groups, 0, own);
    scale = scale_of_own<THREADS>(own, n_groups, k, shared);
    if (!is_usable(scale))
        return false;
    count_own<THREADS>(own, n_fours, scale, shared);
    const select_best best = start_best<THREADS>(k, shared);
    const float cut = cut_at(scale, best.last_bin);
    take_own<THREADS>(own, 0, n_fours, cut, &shared.n_listed, shared,
                      [&](uint32_t place, float, uint32_t i) { shared.blocks[place] = i; });
    __syncthreads();
    from.n = DSRI_SCORE_BLOCK * shared.n_listed;
    from.blocks = shared.blocks;
    scale = scale_from(scale.top, cut); /* k keys reach the cut */
    return !shared.is_crowded && shared.n_listed <= SELECT_BLOCKS && is_usable(scale);
}

/* Sorts the values of the best bins, which are among n_few listed ones, and writes the k best: into bins, then by
 * comparing those of a bin. */
template <int THREADS>
static __device__ __forceinline__ void sort_few(const indexer_query &at, uint32_t k, uint32_t n_few,
                                                const select_scale &scale, select_best best, select_shared &shared)
{
    const auto bin_of_item = [&](uint64_t item) { return bin_of(scale, score_of_ordered((uint32_t)(item >> 32))); };
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n_few; i += THREADS) {
        const uint64_t item = shared.few[i];
        const uint32_t bin = bin_of_item(item);
        if (bin <= best.last_bin)
            shared.sorted[start_of_bin<THREADS>(bin, shared) + atomicAdd(&shared.taken[bin], 1u)] = item;
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < best.n; i += THREADS) {
        const uint64_t item = shared.sorted[i];
        const uint32_t bin = bin_of_item(item), end = start_of_bin<THREADS>(bin + 1, shared);
        uint32_t rank = start_of_bin<THREADS>(bin, shared);
        for (uint32_t j = rank; j < end; j++)
            rank += shared.sorted[j] > item;
        if (rank < k)
            at.output[rank] = (int32_t) ~(uint32_t)item + at.offset;
    }
    for (uint32_t i = best.n + threadIdx.x; i < k; i += THREADS)
        at.output[i] = -1;
}

/* As select_query, if there are few values and the best of them spread over bins: if not, false, with nothing written.
 */
template <int THREADS>
static __device__ __forceinline__ bool select_at_once(const indexer_query &at, uint32_t k, select_shared &shared)
{
    constexpr uint32_t STEP = SELECT_OWN<THREADS> * THREADS;
    select_source from = {at.scores, nullptr, at.n_seen, at.n_seen};
    select_scale scale;
    if ((at.maxima ? (at.n_seen - 1) / DSRI_SCORE_BLOCK + 1 : at.n_seen) > SELECT_VALUES)
        return false;
    if (at.maxima && !list_groups<THREADS>(at, k, from, scale, shared))
        return false;
    const uint32_t n_fours = (from.n + 3) / 4;
    float4 own[SELECT_OWN<THREADS>];
    load_own<THREADS>(from, 0, own);
    if (!at.maxima)
        scale = scale_of_own<THREADS>(own, from.n, k, shared);
    if (!is_usable(scale))
        return false;
#pragma unroll 1
    for (uint32_t first = 0; first < n_fours; first += STEP) {
        if (first > 0)
            load_own<THREADS>(from, first, own);
        count_own<THREADS>(own, n_fours - first, scale, shared);
    }
    const select_best best = start_best<THREADS>(k, shared);
    const float cut = cut_at(scale, best.last_bin);
#pragma unroll 1
    for (uint32_t first = 0; first < n_fours; first += STEP) {
        if (n_fours > STEP)
            load_own<THREADS>(from, first, own);
        take_own<THREADS>(own, first, n_fours - first, cut, &shared.n_few, shared,
                          [&](uint32_t place, float v, uint32_t i) {
                              shared.few[place] = (uint64_t)ordered_score(v) << 32 | (uint32_t)~key_of(from, i);
                          });
    }
    __syncthreads();
    const uint32_t n_few = shared.n_few;
    if (shared.is_crowded || n_few > SELECT_FEW)
        return false;
    sort_few<THREADS>(at, k, n_few, scale, best, shared);
    return true;
}

/* What select_query needs in shared memory before the scores are there. */
template <int THREADS> static __device__ __forceinline__ void prepare_select(select_shared &shared)
{
    for (uint32_t i = threadIdx.x; i < SELECT_BIN_SLOTS; i += THREADS)
        shared.bins[i] = 0;
    for (uint32_t i = threadIdx.x; i < SELECT_BINS; i += THREADS)
        shared.taken[i] = 0;
    if (threadIdx.x == 0)
        shared.is_crowded = shared.n_listed = shared.n_few = 0;
}

/* Called by all THREADS threads of a block, once the query's scores (and maxima) are in memory. */
template <int THREADS> static __device__ void select_query(const indexer_query &at, uint32_t k, select_shared &shared)
{
    if (select_at_once<THREADS>(at, k, shared))
        return;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < SELECT_BINS; i += THREADS)
        shared.bins[i] = 0;
    select_in_pieces<THREADS>(at, k, shared);
}

#endif
