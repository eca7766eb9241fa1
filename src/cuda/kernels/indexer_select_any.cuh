/* Exact top-k of any scores, as indexer_select.cuh, by the blocks of a team: those of a cluster, or one. Values are
 * read from device memory, and counted as ordered words in 2,048 bins of all blocks together; the bin in which the k
 * best end is cut into finer bins, at last by index, until few enough are left. Where there are maxima, the k best
 * groups are found so, which hold the k best keys: a better key of another group would come after a key of each of
 * them. */
#ifndef DSRI_INDEXER_SELECT_ANY_CUH
#define DSRI_INDEXER_SELECT_ANY_CUH

#include "cuda/kernels/indexer_select.cuh"

enum { SELECT_PARTS = 8, SELECT_FOURS_AHEAD = 2 };

struct alignas(16) any_counts {
    uint32_t bins[SELECT_BINS];
    uint32_t top, least; /* of what is counted */
};

struct any_shared {
    any_counts counts[2]; /* in turn: the other blocks read one after the next is begun */
    uint64_t items[SELECT_MOST];
    union {
        uint32_t groups[SELECT_MOST];
        uint64_t share[SELECT_MOST / 4]; /* of a block, of the items of all */
    };
    uint32_t warp_sums[SELECT_WARPS];
    uint32_t bin, before, inside;
    uint32_t n_groups, n_items;
};

/* A block's place. `turn` counts the searches. */
struct select_team {
    uint32_t part, n_parts, turn;
};

/* The blocks see what all have written. */
static __device__ __forceinline__ void team_barrier(const select_team &team)
{
#if __CUDA_ARCH__ >= 900
    if (team.n_parts > 1)
        cluster_barrier();
    else
#endif
        __syncthreads();
}

/* A word, or four, of a block of the team. */
template <typename T> static __device__ __forceinline__ T word_of(const T *own, uint32_t part, const select_team &team)
{
#if __CUDA_ARCH__ >= 900
    if (team.n_parts > 1)
        return peer_word(own, part);
#endif
    return *own;
}

/* Calls visit(value, key) for all scores as ordered words. */
template <typename Visit> static __device__ __forceinline__ void walk_values(const select_source &from, Visit visit)
{
#pragma unroll 1
    for (uint32_t first = threadIdx.x; 4 * first < from.n; first += SELECT_FOURS_AHEAD * SELECT_THREADS) {
        float4 fours[SELECT_FOURS_AHEAD];
#pragma unroll
        for (uint32_t j = 0; j < SELECT_FOURS_AHEAD; j++)
            if (4 * (first + j * SELECT_THREADS) < from.n)
                fours[j] = load_four(from, first + j * SELECT_THREADS);
#pragma unroll
        for (uint32_t j = 0; j < SELECT_FOURS_AHEAD; j++) {
            const uint32_t i = 4 * (first + j * SELECT_THREADS);
            if (i >= from.n)
                break;
            const uint32_t key = key_of(from, i);
            visit(ordered_score(fours[j].x), key);
            visit(ordered_score(fours[j].y), key + 1);
            visit(ordered_score(fours[j].z), key + 2);
            visit(ordered_score(fours[j].w), key + 3);
        }
    }
}

/* The sums of a thread's bins over the team, and the range of what it counted. */
static __device__ __forceinline__ uint4 sum_bins(const select_team &team, const any_counts &counts, uint32_t &top,
                                                 uint32_t &least)
{
    const uint32_t lane = threadIdx.x % 32;
    top = lane < team.n_parts ? word_of(&counts.top, lane, team) : 0;
    least = lane < team.n_parts ? word_of(&counts.least, lane, team) : 0xffffffffu;
    uint4 sum = make_uint4(0, 0, 0, 0);
#pragma unroll 4
    for (uint32_t part = 0; part < team.n_parts; part++) {
        const uint4 bins = word_of(reinterpret_cast<const uint4 *>(counts.bins) + threadIdx.x, part, team);
        sum = make_uint4(sum.x + bins.x, sum.y + bins.y, sum.z + bins.z, sum.w + bins.w);
    }
    top = __reduce_max_sync(0xffffffffu, top);
    least = __reduce_min_sync(0xffffffffu, least);
    return sum;
}

static __device__ __forceinline__ void clear_counts(any_counts &counts)
{
    reinterpret_cast<uint4 *>(counts.bins)[threadIdx.x] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x == 0) {
        counts.top = 0;
        counts.least = 0xffffffffu;
    }
}

/* Of the values counted by the team: how many, their range, and the bin in which the `needed` best end. */
struct select_search {
    uint32_t total, top, least;
    uint32_t bin, before, inside; /* if total >= needed */
};

/* Once a turn, when a block has counted its values. */
static __device__ select_search search_bins(uint32_t needed, select_team &team, any_shared &shared)
{
    select_search found;
    team_barrier(team);
    const uint4 four = sum_bins(team, shared.counts[team.turn % 2], found.top, found.least);
    team.turn++;
    clear_counts(shared.counts[team.turn % 2]); /* all blocks have read it */
    const uint32_t counts[4] = {four.x, four.y, four.z, four.w};
    uint32_t before = sum_before(four.x + four.y + four.z + four.w, found.total, shared.warp_sums);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        if (before < needed && before + counts[i] >= needed) {
            shared.bin = 4 * threadIdx.x + i;
            shared.before = before;
            shared.inside = counts[i];
        }
        before += counts[i];
    }
    __syncthreads();
    found.bin = shared.bin;
    found.before = shared.before;
    found.inside = shared.inside;
    return found;
}

/* What reaches it: greater values, and of equal ones those with ~key >= rest. */
struct select_bound {
    uint32_t value, rest;
    uint32_t n; /* that reach it */
};

/* Values in a range; of a tie, the keys of one value, as ~key. */
struct select_window {
    uint32_t top, least;
    bool is_tie;
    uint32_t tied;
};

static __device__ __forceinline__ select_window tie_of(uint32_t value, uint32_t n_keys)
{
    return select_window{0xffffffffu, ~(n_keys - 1), true, value};
}

/* Least shift that brings a range into the bins. */
static __device__ __forceinline__ uint32_t shift_for(uint32_t range)
{
    const int bits = 32 - __clz((int)range);
    return bits > 11 ? (uint32_t)(bits - 11) : 0;
}

static __device__ __forceinline__ void count_window(const select_source &from, const select_window &window,
                                                    uint32_t shift, any_counts &counts)
{
    uint32_t top = 0, least = 0xffffffffu;
    walk_values(from, [&](uint32_t v, uint32_t key) {
        const uint32_t x = !window.is_tie ? v : v == window.tied ? ~key : 0;
        if (x - window.least <= window.top - window.least) {
            atomicAdd(&counts.bins[(window.top - x) >> shift], 1u);
            top = max(top, x);
            least = min(least, x);
        }
    });
    top = __reduce_max_sync(0xffffffffu, top);
    least = __reduce_min_sync(0xffffffffu, least);
    if (threadIdx.x % 32 == 0 && top != 0) {
        atomicMax(&counts.top, top);
        atomicMin(&counts.least, least);
    }
}

/* A bound that the k best of the team's values reach, and no more than `most`, from k on; all that are not excluded if
 * those are fewer than k. */
static __device__ select_bound find_bound(const select_source &from, uint32_t k, uint32_t most, select_team &team,
                                          any_shared &shared)
{
    select_window window = {0xffffffffu, EXCLUDED + 1, false, 0};
    uint32_t better = 0; /* values above the window */
    for (;;) {
        const uint32_t shift = shift_for(window.top - window.least);
        count_window(from, window, shift, shared.counts[team.turn % 2]);
        const select_search found = search_bins(k - better, team, shared);
        if (better + found.total <= most) /* so, too, if there are fewer than k */
            return select_bound{window.is_tie ? window.tied : window.least, window.is_tie ? window.least : 0,
                                better + found.total};
        if (!window.is_tie && found.top == found.least) {
            window = tie_of(found.top, from.n_keys);
            continue;
        }
        const uint32_t top = window.top - (found.bin << shift), width = (1u << shift) - 1;
        const uint32_t low = top - window.least > width ? top - width : window.least;
        if (better + found.before + found.inside <= most)
            return select_bound{window.is_tie ? window.tied : low, window.is_tie ? low : 0,
                                better + found.before + found.inside};
        better += found.before;
        window.top = min(top, found.top);
        window.least = max(low, found.least);
        if (!window.is_tie && window.top == window.least)
            window = tie_of(window.top, from.n_keys);
    }
}

/* Leaves in shared.items what a block has of items that the k best of the team are among, in no order, and how many in
 * shared.n_items. Gives how many the team has: `most` or fewer, which is k to SELECT_MOST. */
static __device__ uint32_t find_items(const indexer_query &at, uint32_t k, uint32_t most, select_team &team,
                                      any_shared &shared)
{
    __syncthreads();
    clear_counts(shared.counts[0]);
    if (threadIdx.x == 0)
        shared.n_groups = shared.n_items = shared.bin = shared.before = shared.inside = 0;
    __syncthreads();
    const uint32_t n_groups = (at.n_seen + DSRI_SCORE_BLOCK - 1) / DSRI_SCORE_BLOCK;
    bool are_groups = at.maxima != nullptr;
    select_source from = are_groups ? part_of(at.maxima, n_groups, team.part, team.n_parts)
                                    : part_of(at.scores, at.n_seen, team.part, team.n_parts);
#pragma unroll 1
    for (;;) { /* once, or for groups and then for their keys */
        const select_bound bound = find_bound(from, k, most, team, shared);
        walk_values(from, [&](uint32_t v, uint32_t key) {
            if (v < bound.value || (v == bound.value && ~key < bound.rest))
                return;
            if (are_groups)
                shared.groups[atomicAdd(&shared.n_groups, 1u)] = key;
            else
                shared.items[atomicAdd(&shared.n_items, 1u)] = (uint64_t)v << 32 | (uint32_t)~key;
        });
        __syncthreads();
        if (!are_groups)
            return bound.n;
        are_groups = false;
        from = select_source{at.scores, shared.groups, DSRI_SCORE_BLOCK * shared.n_groups, at.n_seen, 0, 1};
    }
}

/* Deals the items of all blocks evenly: a block gets n_share or fewer, zeros past the last. */
static __device__ void share_items(uint32_t n, uint32_t n_share, const select_team &team, any_shared &shared)
{
    const uint32_t lane = threadIdx.x % 32;
    team_barrier(team);
    uint32_t ends[SELECT_PARTS] = {}, end = 0;
    const uint32_t n_of_lane = lane < team.n_parts ? word_of(&shared.n_items, lane, team) : 0;
#pragma unroll
    for (uint32_t part = 0; part < SELECT_PARTS; part++)
        ends[part] = end += __shfl_sync(0xffffffffu, n_of_lane, (int)part);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n_share; i += SELECT_THREADS) {
        const uint32_t number = i * team.n_parts + team.part;
        uint32_t part = 0, first = 0;
#pragma unroll
        for (uint32_t p = 0; p + 1 < SELECT_PARTS; p++)
            if (number >= ends[p]) {
                part = p + 1;
                first = ends[p];
            }
        uint64_t item = 0;
        if (number < n) {
            const uint32_t *words = reinterpret_cast<const uint32_t *>(&shared.items[number - first]);
            item = (uint64_t)word_of(words + 1, part, team) << 32 | word_of(words, part, team);
        }
        shared.share[i] = item;
    }
    __syncthreads();
}

/* Sorts n items, a power of 2, the greatest first. */
static __device__ void sort_items(uint64_t *items, uint32_t n)
{
#pragma unroll 1
    for (uint32_t run = 2; run <= n; run *= 2)
#pragma unroll 1
        for (uint32_t distance = run / 2; distance > 0; distance /= 2) {
#pragma unroll 1
            for (uint32_t i = threadIdx.x; i < n / 2; i += SELECT_THREADS) {
                const uint32_t low = 2 * i - (i & (distance - 1)), high = low + distance;
                const uint64_t a = items[low], b = items[high];
                if ((a < b) == ((low & run) == 0)) {
                    items[low] = b;
                    items[high] = a;
                }
            }
            __syncthreads();
        }
}

#endif
