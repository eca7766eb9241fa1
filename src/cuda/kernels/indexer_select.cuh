/* Exact top-k of one query's scores by one block, in the order (greater score, lower index).
 *
 * Values (scores as ordered words, or maxima of 16 scores) lie in shared memory, in pieces if there are many. Counting
 * them in windows of 2,048 bins from the greatest down finds a bound that at least k and not many more reach; a crowded
 * bin is cut into finer bins, at last by index. What reaches the bound is sorted by counting and written. */
#ifndef DSRI_INDEXER_SELECT_CUH
#define DSRI_INDEXER_SELECT_CUH

#include "cuda/kernels/indexer_common.cuh"

enum {
    SELECT_VALUES = 16384,
    SELECT_BINS = 2048,
    SELECT_BIN_SLOTS = 2308,
    SELECT_ITEMS = 4096,
    SELECT_BLOCKS = 2048,
    SELECT_FIRST_SHIFT = 15
};

struct select_shared {
    union {
        uint32_t values[SELECT_VALUES];
        struct {
            uint64_t sorted[SELECT_ITEMS]; /* once the values are no longer needed */
            uint32_t places[SELECT_ITEMS];
        };
    };
    uint64_t items[SELECT_ITEMS];    /* value << 32 | ~key: greater is better */
    uint32_t bins[SELECT_BIN_SLOTS]; /* those past SELECT_BINS are empty: threads may own some */
    uint32_t blocks[SELECT_BLOCKS];
    uint32_t warp_sums[32];
    uint32_t bin, before, inside, total; /* of the last search */
    uint32_t top, least;                 /* of the values, in the usual case */
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
        const uint32_t i = first + j * THREADS + threadIdx.x;
        own[j] = make_float4(none, none, none, none);
        if (4 * i < from.n)
            own[j] = load_four(from, i);
    }
}

/* A bound that k of the values reach, and not many more if they are spread: k of the greatest of each four reach it, or
 * of the values if there are but 4 * THREADS. Above EXCLUDED if those are fewer. Gives the greatest value too. */
template <int THREADS>
static __device__ __forceinline__ uint32_t bound_of_own(const float4 own[SELECT_OWN<THREADS>], bool are_few, uint32_t k,
                                                        uint32_t &greatest, select_shared &shared)
{
    uint32_t best[SELECT_OWN<THREADS>] = {};
    if (are_few) {
        best[0] = ordered_score(own[0].x);
        best[1] = ordered_score(own[0].y);
        best[2] = ordered_score(own[0].z);
        best[3] = ordered_score(own[0].w);
    } else {
#pragma unroll
        for (uint32_t j = 0; j < SELECT_OWN<THREADS>; j++)
            best[j] = ordered_score(fmaxf(fmaxf(own[j].x, own[j].y), fmaxf(own[j].z, own[j].w)));
    }
    uint32_t top = 0, least = 0xffffffffu;
#pragma unroll
    for (uint32_t j = 0; j < SELECT_OWN<THREADS>; j++) {
        top = max(top, best[j]);
        least = best[j] > EXCLUDED ? min(least, best[j]) : least;
    }
    top = __reduce_max_sync(0xffffffffu, top);
    least = __reduce_min_sync(0xffffffffu, least);
    if (threadIdx.x % 32 == 0) {
        atomicMax(&shared.top, top);
        atomicMin(&shared.least, least);
    }
    __syncthreads();
    greatest = top = shared.top;
    least = shared.least;
    if (top < least)
        return EXCLUDED + 1;
    for (uint32_t needed = k, shift = shift_for(top - least);;) {
#pragma unroll
        for (uint32_t j = 0; j < SELECT_OWN<THREADS>; j++)
            if (best[j] - least <= top - least)
                atomicAdd(&shared.bins[(top - best[j]) >> shift], 1u);
        find_bin<THREADS>(needed, shared);
        if (shared.total < needed)
            return EXCLUDED + 1;
        needed -= shared.before;
        top -= shared.bin << shift;
        const uint32_t width = (1u << shift) - 1;
        least = top - least > width ? top - width : least;
        if (shift == 0 || shared.inside <= needed + k / 16)
            return least;
        shift = shift > 11 ? shift - 11 : 0;
    }
}

/* Marks the thread's values that reach the bound, bit 4 * j + e for value e of its four j, and keeps the fours where
 * they can be numbered. */
template <int THREADS>
static __device__ __forceinline__ uint32_t mark_own(const float4 own[SELECT_OWN<THREADS>], float bound,
                                                    select_shared &shared)
{
    static_assert(SELECT_OWN<THREADS> <= 8, "a mark for each of a thread's values");
    float4 *kept = reinterpret_cast<float4 *>(shared.values) + threadIdx.x;
    uint32_t marks = 0;
#pragma unroll
    for (uint32_t j = 0; j < SELECT_OWN<THREADS>; j++) {
        kept[j * THREADS] = own[j];
        marks |= own[j].x >= bound ? 1u << 4 * j : 0;
        marks |= own[j].y >= bound ? 2u << 4 * j : 0;
        marks |= own[j].z >= bound ? 4u << 4 * j : 0;
        marks |= own[j].w >= bound ? 8u << 4 * j : 0;
    }
    return marks;
}

/* Calls take(value, number) for the marked values of those from four `first` on. */
template <int THREADS, typename Take>
static __device__ __forceinline__ void take_marked(uint32_t marks, uint32_t first, const select_shared &shared,
                                                   Take take)
{
    const float *kept = reinterpret_cast<const float *>(shared.values) + 4 * threadIdx.x;
#pragma unroll 1
    for (; marks; marks &= marks - 1) {
        const uint32_t bit = (uint32_t)__ffs((int)marks) - 1, at = bit / 4 * (4 * THREADS) + bit % 4;
        take(kept[at], 4 * (first + threadIdx.x) + at);
    }
}

/* Lists the groups of which k of the greatest keys are; gives how many, SELECT_BLOCKS + 1 if there is no room. */
template <int THREADS>
static __device__ __forceinline__ uint32_t list_groups(const select_source &groups, uint32_t k, uint32_t &bound,
                                                       uint32_t &greatest, select_shared &shared)
{
    float4 own[SELECT_OWN<THREADS>];
    uint32_t n;
    load_own<THREADS>(groups, 0, own);
    bound = bound_of_own<THREADS>(own, groups.n <= 4 * THREADS, k, greatest, shared);
    const uint32_t marks = mark_own<THREADS>(own, score_of_ordered(bound), shared);
    uint32_t place = sum_before<THREADS>((uint32_t)__popc(marks), n, shared);
    if (n > SELECT_BLOCKS)
        return SELECT_BLOCKS + 1;
    take_marked<THREADS>(marks, 0, shared, [&](float, uint32_t i) { shared.blocks[place++] = i; });
    __syncthreads();
    return n;
}

/* As select_query, if there are few values and not too many reach the bound that one look at them gives: if not, false,
 * with bins of zeros and nothing written. What reaches the bound is sorted by counting, without being listed before:
 * into bins by value (by index if all values are equal), then within the bin. */
template <int THREADS>
static __device__ __forceinline__ bool select_at_once(const indexer_query &at, uint32_t k, select_shared &shared)
{
    const uint32_t room = max(2 * k, 512u); /* SELECT_ITEMS at most */
    const uint32_t n_groups = (at.n_seen + DSRI_SCORE_BLOCK - 1) / DSRI_SCORE_BLOCK;
    select_source from = {at.scores, nullptr, at.n_seen, at.n_seen};
    if ((at.maxima ? n_groups : at.n_seen) > SELECT_VALUES)
        return false;
    uint32_t greatest = 0, bound = 0, marks = 0, n = 0;
    __syncthreads();
    if (at.maxima) {
        const select_source groups = {at.maxima, nullptr, n_groups, n_groups};
        from.n = DSRI_SCORE_BLOCK * list_groups<THREADS>(groups, k, bound, greatest, shared);
        from.blocks = shared.blocks;
        if (from.n > DSRI_SCORE_BLOCK * SELECT_BLOCKS)
            return false;
    }
    const auto item_of = [&](float v, uint32_t i) {
        return (uint64_t)ordered_score(v) << 32 | (uint32_t)~key_of(from, i);
    };
    bool by_key = false;
    uint32_t top = 0, shift = 0;
    const auto bin_of = [&](uint64_t item) { return (top - (uint32_t)(by_key ? item : item >> 32)) >> shift; };
#pragma unroll 1
    for (uint32_t round = 0; round < 2; round++) { /* counts, then places */
#pragma unroll 1
        for (uint32_t first = 0; 4 * first < from.n; first += SELECT_OWN<THREADS> * THREADS) {
            if (round == 0 || from.n > SELECT_VALUES) {
                float4 own[SELECT_OWN<THREADS>];
                load_own<THREADS>(from, first, own);
                if (bound == 0)
                    bound = bound_of_own<THREADS>(own, from.n <= 4 * THREADS, k, greatest, shared);
                marks = mark_own<THREADS>(own, score_of_ordered(bound), shared);
                by_key = greatest == bound;
                top = by_key ? 0xffffffffu : greatest;
                shift = shift_for(by_key ? at.n_seen : greatest - bound);
            }
            take_marked<THREADS>(marks, first, shared, [&](float v, uint32_t i) {
                const uint64_t item = item_of(v, i);
                if (round == 0)
                    atomicAdd(&shared.bins[bin_of(item)], 1u);
                else
                    shared.items[atomicAdd(&shared.bins[bin_of(item)], 1u)] = item;
            });
        }
        if (round == 0)
            n = start_bins<THREADS>(shared);
        if (n > room) {
            for (uint32_t i = threadIdx.x; i < SELECT_BINS; i += THREADS)
                shared.bins[i] = 0;
            return false;
        }
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        const uint64_t item = shared.items[i];
        const uint32_t bin = bin_of(item), end = shared.bins[bin];
        uint32_t rank = bin ? shared.bins[bin - 1] : 0;
        for (uint32_t j = rank; j < end; j++)
            rank += shared.items[j] > item;
        if (rank < k)
            at.output[rank] = (int32_t) ~(uint32_t)item + at.offset;
    }
    for (uint32_t i = n + threadIdx.x; i < k; i += THREADS)
        at.output[i] = -1;
    return true;
}

/* What select_query needs in shared memory before the scores are there. */
template <int THREADS> static __device__ __forceinline__ void prepare_select(select_shared &shared)
{
    for (uint32_t i = threadIdx.x; i < SELECT_BIN_SLOTS; i += THREADS)
        shared.bins[i] = 0;
    if (threadIdx.x == 0) {
        shared.top = 0;
        shared.least = 0xffffffffu;
    }
}

/* Called by all THREADS threads of a block, once the query's scores (and maxima) are in memory. */
template <int THREADS> static __device__ void select_query(const indexer_query &at, uint32_t k, select_shared &shared)
{
    if (!select_at_once<THREADS>(at, k, shared))
        select_in_pieces<THREADS>(at, k, shared);
}

#endif
