/* Selection of the k greatest scores in order: greater score first, equal scores by lower index, -inf never. The list
 * is unique, so nothing here can change a bit of it; the shape is for speed on any pattern.
 *
 * Only the maxima of blocks of 16 scores are looked at in full. At least k scores reach the k-th greatest maximum, so
 * those below it are out; and fewer than k blocks exceed it, so at most 16 k scores do. Among these candidates the same
 * search finds the k-th greatest score. */
#ifndef DSRI_TOP_K_H
#define DSRI_TOP_K_H

#include "cpu/cpu_kernel.h"
#include "cpu/vec/vec.h"
#include "ops/indexer_workspace.h"
#if DSRI_VEC == DSRI_VEC_avx512
#include "cpu/kernels/entry_sort.h"
#endif

#include <float.h>
#include <math.h>
#include <string.h>

enum {
    TOP_K_MAX = 2048,
    TOP_K_COUNT_STEP = 64, /* values that one step of counting takes: lists are padded to a multiple with -inf */
    /* Above the bound 16 k, equal to it k and what the last vector holds more, then padding. */
    TOP_K_MAX_CANDIDATES = (DSRI_SCORE_BLOCK + 1) * TOP_K_MAX + 2 * TOP_K_COUNT_STEP
};

typedef struct top_k_scratch {
    float scores[TOP_K_MAX_CANDIDATES]; /* candidates by rising index */
    uint32_t indices[TOP_K_MAX_CANDIDATES];
    uint64_t entries[2][TOP_K_MAX]; /* AVX-512 takes the first only */
} top_k_scratch;

_Static_assert(sizeof(top_k_scratch) <= DSRI_SCRATCH_BYTES, "scratch");

/* Numbers in the order of the floats (not NaN): +0 comes right after -0. */
static inline uint32_t rank_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static inline float float_at_rank(uint32_t rank)
{
    const uint32_t bits = rank & 0x80000000u ? rank ^ 0x80000000u : ~rank;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t count_at_least(const float *x, uint64_t n, float bound)
{
    const vf b = vf_set1(bound);
    vi count[4] = {vi_set1(0), vi_set1(0), vi_set1(0), vi_set1(0)};
    for (uint64_t i = 0; i < n; i += 4 * VF_LANES) {
        for (int j = 0; j < 4; j++) {
            count[j] = vi_count(count[j], vm_ge(vf_load(x + i + j * VF_LANES), b));
        }
    }
    return vi_sum(vi_add(vi_add(count[0], count[1]), vi_add(count[2], count[3])));
}

static inline float greatest_of(const float *x, uint64_t n)
{
    vf m = vf_set1(-INFINITY);
    for (uint64_t i = 0; i < n; i += VF_LANES) {
        m = vf_max(m, vf_load(x + i));
    }
    return vf_max_lane(m);
}

/* Where a list of values is cut: the values above `least` are in, and the first n_equal of those equal to it. */
typedef struct top_k_cut {
    float least;
    uint32_t n_equal;
} top_k_cut;

/* The cut that leaves k values, or every finite one if there are no more. n is a multiple of TOP_K_COUNT_STEP.
 * Bisects the numbers of rank_of: first down from the greatest in widening steps, then within the step. */
static inline top_k_cut find_cut(const float *x, uint64_t n, uint32_t k)
{
    const top_k_cut every = {-FLT_MAX, UINT32_MAX};
    const uint32_t bottom = rank_of(-FLT_MAX);
    const float greatest = n > k ? greatest_of(x, n) : -INFINITY;
    if (greatest < -FLT_MAX) {
        return every;
    }

    uint32_t high = rank_of(greatest), low = high, width = 1u << 20;
    uint32_t n_above = 0; /* values above high, fewer than k */
    uint32_t n_low;       /* values from low on, k or more in the end */
    while ((n_low = count_at_least(x, n, float_at_rank(low))) < k) {
        if (low == bottom) {
            return every;
        }
        n_above = n_low;
        high = low - 1;
        width = width < 1u << 30 ? 4 * width : UINT32_MAX;
        low = high - bottom > width ? high - width : bottom;
    }
    while (n_low > k && low < high) {
        const uint32_t middle = low + (high - low) / 2 + 1;
        const uint32_t n_middle = count_at_least(x, n, float_at_rank(middle));
        if (n_middle < k) {
            high = middle - 1;
            n_above = n_middle;
        } else {
            low = middle;
            n_low = n_middle;
        }
    }
    return (top_k_cut){float_at_rank(low), k - n_above};
}

/* Appends the scores of x, which stand at indices first..first + VF_LANES - 1, that are in `mask`. */
static inline uint32_t append_candidates(top_k_scratch *s, uint32_t n, vf x, vi indices, vm mask)
{
    vi_pack_store((void *)(s->scores + n), vf_bits(x), mask);
    vi_pack_store(s->indices + n, indices, mask);
    return n + (uint32_t)__builtin_popcount(vm_bits(mask));
}

/* Scores of one block, the last one filled up with -inf. */
static inline const float *block_scores(const float *scores, uint64_t n, uint64_t block, float last[DSRI_SCORE_BLOCK])
{
    const uint64_t first = block * DSRI_SCORE_BLOCK;
    if (n - first >= DSRI_SCORE_BLOCK) {
        return scores + first;
    }
    for (uint64_t i = 0; i < DSRI_SCORE_BLOCK; i++) {
        last[i] = i < n - first ? scores[first + i] : -INFINITY;
    }
    return last;
}

/* Collects every score that can be among the k greatest, by rising index; returns how many. */
static inline uint32_t collect_candidates(top_k_scratch *s, const float *scores, uint64_t n, const float *block_maxima,
                                          uint64_t n_blocks, uint32_t k)
{
    static const uint32_t lane_numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const vi lanes = vi_load(lane_numbers);
    const float least = find_cut(block_maxima, n_blocks, k).least;
    float bound = least, last[DSRI_SCORE_BLOCK];
    uint32_t n_candidates = 0, n_equal = 0;

    for (uint64_t b = 0; b < n_blocks; b += VF_LANES) {
        uint32_t hits = vm_bits(vm_ge(vf_load(block_maxima + b), vf_set1(bound)));
        for (; hits != 0; hits &= hits - 1) {
            const uint64_t block = b + (uint64_t)__builtin_ctz(hits);
            const float *x = block_scores(scores, n, block, last);
            for (int i = 0; i < DSRI_SCORE_BLOCK; i += VF_LANES) {
                const vf v = vf_load(x + i);
                const vi at = vi_add(vi_set1((uint32_t)block * DSRI_SCORE_BLOCK + (uint32_t)i), lanes);
                n_candidates = append_candidates(s, n_candidates, v, at, vm_ge(v, vf_set1(bound)));
                n_equal += (uint32_t)__builtin_popcount(vm_bits(vm_eq(v, vf_set1(least))));
            }
            /* Of equal scores only the first k can be selected. -0 has +0 next to it, but is a cut only where no more
             * than k blocks reach it. */
            if (n_equal >= k) {
                bound = float_at_rank(rank_of(least) + 1);
            }
        }
    }
    return n_candidates;
}

/* Leaves the candidates of the cut, in place; returns how many. */
static inline uint32_t apply_cut(top_k_scratch *s, uint32_t n, top_k_cut cut)
{
    const vf least = vf_set1(cut.least);
    uint32_t n_left = 0, n_equal = cut.n_equal;
    for (uint32_t i = 0; i < n; i += VF_LANES) {
        const vf x = vf_load(s->scores + i);
        const vi indices = vi_load(s->indices + i);
        const uint32_t here = (uint32_t)__builtin_popcount(vm_bits(vm_eq(x, least)));
        if (here <= n_equal) {
            n_left = append_candidates(s, n_left, x, indices, vm_ge(x, least));
            n_equal -= here;
        } else if (n_equal == 0) {
            n_left = append_candidates(s, n_left, x, indices, vm_gt(x, least));
        } else {
            for (uint32_t j = i; j < i + VF_LANES; j++) {
                if (s->scores[j] > cut.least || (s->scores[j] == cut.least && n_equal != 0)) {
                    n_equal -= s->scores[j] == cut.least;
                    s->scores[n_left] = s->scores[j];
                    s->indices[n_left++] = s->indices[j];
                }
            }
        }
    }
    return n_left;
}

/* sort_candidates(s, n): sorts n candidates, which stand by rising index; returns the entries, whose lower half is the
 * index. -0 ranks as +0. */
#if DSRI_VEC == DSRI_VEC_avx512
static inline const uint64_t *sort_candidates(top_k_scratch *s, uint32_t n)
{
    uint64_t *entries = s->entries[0];
    uint32_t n_padded = SORT_STEP;
    while (n_padded < n) {
        n_padded *= 2;
    }
    for (uint32_t i = 0; i < n; i++) {
        entries[i] = (uint64_t)~rank_of(s->scores[i] + 0.0f) << 32 | s->indices[i];
    }
    for (uint32_t i = n; i < n_padded; i++) {
        entries[i] = UINT64_MAX;
    }
    sort_entries(entries, n_padded);
    return entries;
}
#else
/* A radix sort, which keeps the order of equal keys; a digit that all keys share needs no pass. */
static inline const uint64_t *sort_candidates(top_k_scratch *s, uint32_t n)
{
    uint64_t *from = s->entries[0], *to = s->entries[1];
    uint32_t counts[4][256] = {{0}}, greatest = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t rank = rank_of(s->scores[i] + 0.0f);
        greatest = rank > greatest ? rank : greatest;
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t key = greatest - rank_of(s->scores[i] + 0.0f);
        from[i] = (uint64_t)key << 32 | s->indices[i];
        counts[0][key & 255]++;
        counts[1][key >> 8 & 255]++;
        counts[2][key >> 16 & 255]++;
        counts[3][key >> 24]++;
    }
    for (int digit = 0; digit < 4; digit++) {
        const int shift = 32 + 8 * digit;
        uint32_t *place = counts[digit], n_before = 0;
        if (n == 0 || place[from[0] >> shift & 255] == n) {
            continue;
        }
        for (uint32_t d = 0; d < 256; d++) {
            const uint32_t here = place[d];
            place[d] = n_before;
            n_before += here;
        }
        for (uint32_t i = 0; i < n; i++) {
            to[place[from[i] >> shift & 255]++] = from[i];
        }
        uint64_t *const sorted = to;
        to = from;
        from = sorted;
    }
    return from;
}
#endif

/* list [k]: the k best of n scores (none NaN) as index + offset, then -1. block_maxima [n_blocks] as
 * dsri_indexer_region describes; those past the last score are filled in here. */
static inline void select_top_k(const float *scores, uint64_t n, float *block_maxima, uint64_t n_blocks, uint32_t k,
                                int32_t offset, int32_t *list, top_k_scratch *s)
{
    for (uint64_t b = (n + DSRI_SCORE_BLOCK - 1) / DSRI_SCORE_BLOCK; b < n_blocks; b++) {
        block_maxima[b] = -INFINITY;
    }
    uint32_t n_left = collect_candidates(s, scores, n, block_maxima, n_blocks, k);
    if (n_left > k) {
        uint32_t n_padded = n_left;
        for (; n_padded % TOP_K_COUNT_STEP != 0; n_padded++) {
            s->scores[n_padded] = -INFINITY;
        }
        n_left = apply_cut(s, n_padded, find_cut(s->scores, n_padded, k));
    }
    const uint64_t *entries = sort_candidates(s, n_left);
    for (uint32_t i = 0; i < n_left; i++) {
        list[i] = (int32_t)(uint32_t)entries[i] + offset;
    }
    for (uint32_t i = n_left; i < k; i++) {
        list[i] = -1;
    }
}

#endif
