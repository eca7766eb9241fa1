/* Sorting of 64-bit numbers in AVX-512 registers: a bitonic merge sort, whose steps are the same whatever the numbers.
 */
#ifndef DSRI_ENTRY_SORT_H
#define DSRI_ENTRY_SORT_H

#include "cpu/vec/vec.h"

enum {
    ENTRY_LANES = 8,
    SORT_VECTORS = 16, /* sorted and merged in registers */
    SORT_STEP = SORT_VECTORS * ENTRY_LANES
};

/* The lesser of two in *a, the greater in *b, lane by lane. */
static inline void order(vi *a, vi *b)
{
    const vi least = _mm512_min_epu64(*a, *b);
    *b = _mm512_max_epu64(*a, *b);
    *a = least;
}

/* Sorts each lane of 8 vectors. */
static inline void sort_columns(vi x[8])
{
    order(&x[0], &x[2]);
    order(&x[1], &x[3]);
    order(&x[4], &x[6]);
    order(&x[5], &x[7]);
    order(&x[0], &x[4]);
    order(&x[1], &x[5]);
    order(&x[2], &x[6]);
    order(&x[3], &x[7]);
    order(&x[0], &x[1]);
    order(&x[2], &x[3]);
    order(&x[4], &x[5]);
    order(&x[6], &x[7]);
    order(&x[2], &x[4]);
    order(&x[3], &x[5]);
    order(&x[1], &x[4]);
    order(&x[3], &x[6]);
    order(&x[1], &x[2]);
    order(&x[3], &x[4]);
    order(&x[5], &x[6]);
}

/* x[i] lane j <-> x[j] lane i. */
static inline void transpose_entries(vi x[8])
{
    vi y[8], z[8];
    VEC_UNROLL
    for (int i = 0; i < 8; i += 2) {
        y[i] = _mm512_unpacklo_epi64(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi64(x[i], x[i + 1]);
    }
    VEC_UNROLL
    for (int i = 0; i < 2; i++) { /* rows 0..3 and 4..7 of even, then odd columns: quarters 0, 2, then 1, 3 */
        z[i] = _mm512_shuffle_i64x2(y[i], y[i + 2], 0x88);
        z[i + 2] = _mm512_shuffle_i64x2(y[i], y[i + 2], 0xdd);
        z[i + 4] = _mm512_shuffle_i64x2(y[i + 4], y[i + 6], 0x88);
        z[i + 6] = _mm512_shuffle_i64x2(y[i + 4], y[i + 6], 0xdd);
    }
    VEC_UNROLL
    for (int i = 0; i < 4; i++) { /* columns i and 4 + i */
        x[i] = _mm512_shuffle_i64x2(z[i], z[i + 4], 0x88);
        x[i + 4] = _mm512_shuffle_i64x2(z[i], z[i + 4], 0xdd);
    }
}

/* Sorts each of two vectors that are bitonic: a part that rises and one that falls, or a rotation of such. */
static inline void merge_lanes(vi *x, vi *y)
{
    const vi first = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13),
             second = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    vi a = _mm512_shuffle_i64x2(*x, *y, 0x44), b = _mm512_shuffle_i64x2(*x, *y, 0xee);
    order(&a, &b); /* lanes 0..3 of x and y against 4..7 */
    vi c = _mm512_shuffle_i64x2(a, b, 0x88), d = _mm512_shuffle_i64x2(a, b, 0xdd);
    order(&c, &d); /* 0, 1, 4, 5 against 2, 3, 6, 7 */
    a = _mm512_unpacklo_epi64(c, d);
    b = _mm512_unpackhi_epi64(c, d);
    order(&a, &b); /* even against odd ones */
    c = _mm512_unpacklo_epi64(a, b);
    d = _mm512_unpackhi_epi64(a, b);
    *x = _mm512_permutex2var_epi64(c, first, d);
    *y = _mm512_permutex2var_epi64(c, second, d);
}

/* Sorts bitonic lists of `width` vectors each. */
static inline __attribute__((always_inline)) void merge_vectors(vi x[SORT_VECTORS], int width)
{
    VEC_UNROLL
    for (int stride = width / 2; stride > 0; stride /= 2) {
        VEC_UNROLL
        for (int i = 0; i < SORT_VECTORS; i++) {
            if ((i & stride) == 0) {
                order(&x[i], &x[i + stride]);
            }
        }
    }
    VEC_UNROLL
    for (int i = 0; i < SORT_VECTORS; i += 2) {
        merge_lanes(&x[i], &x[i + 1]);
    }
}

static inline vi reverse_lanes(vi x)
{
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(7, 6, 5, 4, 3, 2, 1, 0), x);
}

/* Of each two sorted lists of `width` vectors, the lesser half and then the greater half, as bitonic lists. */
static inline __attribute__((always_inline)) void join_lists(vi x[SORT_VECTORS], int width)
{
    VEC_UNROLL
    for (int i = 0; i < SORT_VECTORS; i += 2 * width) {
        vi reversed[SORT_VECTORS / 2];
        VEC_UNROLL
        for (int j = 0; j < width; j++) {
            reversed[j] = reverse_lanes(x[i + 2 * width - 1 - j]);
        }
        VEC_UNROLL
        for (int j = 0; j < width; j++) {
            x[i + width + j] = reversed[j];
            order(&x[i + j], &x[i + width + j]);
        }
    }
}

static inline void load_entries(const uint64_t *from, vi x[SORT_VECTORS])
{
    VEC_UNROLL
    for (int i = 0; i < SORT_VECTORS; i++) {
        x[i] = _mm512_loadu_si512(from + i * ENTRY_LANES);
    }
}

static inline void store_entries(uint64_t *to, const vi x[SORT_VECTORS])
{
    VEC_UNROLL
    for (int i = 0; i < SORT_VECTORS; i++) {
        _mm512_storeu_si512(to + i * ENTRY_LANES, x[i]);
    }
}

/* Sorts SORT_STEP entries. */
static __attribute__((noinline)) void sort_step(uint64_t *entries)
{
    vi x[SORT_VECTORS];
    load_entries(entries, x);
    sort_columns(x);
    sort_columns(x + 8);
    transpose_entries(x);
    transpose_entries(x + 8);
    join_lists(x, 1);
    merge_vectors(x, 1);
    join_lists(x, 2);
    merge_vectors(x, 2);
    join_lists(x, 4);
    merge_vectors(x, 4);
    join_lists(x, 8);
    merge_vectors(x, 8);
    store_entries(entries, x);
}

/* Sorts a bitonic list of SORT_STEP entries. */
static __attribute__((noinline)) void merge_step(uint64_t *entries)
{
    vi x[SORT_VECTORS];
    load_entries(entries, x);
    merge_vectors(x, SORT_VECTORS);
    store_entries(entries, x);
}

/* Of a bitonic list of 2 * half entries the lesser half, then the greater one, both bitonic. */
static inline void halve(uint64_t *entries, uint32_t half)
{
    for (uint32_t i = 0; i < half; i += ENTRY_LANES) {
        vi a = _mm512_loadu_si512(entries + i), b = _mm512_loadu_si512(entries + half + i);
        order(&a, &b);
        _mm512_storeu_si512(entries + i, a);
        _mm512_storeu_si512(entries + half + i, b);
    }
}

/* The same of two sorted lists of `half` entries each. */
static inline void join_halves(uint64_t *entries, uint32_t half)
{
    for (uint32_t i = 0; i < half / 2; i += ENTRY_LANES) { /* vectors i of both lists, and those they meet */
        uint64_t *const at[4] = {entries + i, entries + half - ENTRY_LANES - i, entries + half + i,
                                 entries + 2 * half - ENTRY_LANES - i};
        vi a = _mm512_loadu_si512(at[0]), b = _mm512_loadu_si512(at[1]);
        vi c = reverse_lanes(_mm512_loadu_si512(at[3])), d = reverse_lanes(_mm512_loadu_si512(at[2]));
        order(&a, &c);
        order(&b, &d);
        _mm512_storeu_si512(at[0], a);
        _mm512_storeu_si512(at[1], b);
        _mm512_storeu_si512(at[2], c);
        _mm512_storeu_si512(at[3], d);
    }
}

/* Sorts n entries, SORT_STEP times a power of two. */
static inline void sort_entries(uint64_t *entries, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += SORT_STEP) {
        sort_step(entries + i);
    }
    for (uint32_t list = 2 * SORT_STEP; list <= n; list *= 2) {
        for (uint32_t first = 0; first < n; first += list) {
            join_halves(entries + first, list / 2);
        }
        for (uint32_t part = list / 2; part > SORT_STEP; part /= 2) {
            for (uint32_t first = 0; first < n; first += part) {
                halve(entries + first, part / 2);
            }
        }
        for (uint32_t i = 0; i < n; i += SORT_STEP) {
            merge_step(entries + i);
        }
    }
}

#endif
