/* Products of BF16 operands with AVX512-BF16. Lanes are outputs; a lane takes a pair of products per step, in order. */
#ifndef DSRI_ROW_DOTS_AVX512BF16_H
#define DSRI_ROW_DOTS_AVX512BF16_H

#include "cpu/vec/vec.h"

#include <string.h>

enum { MAX_DOT_ACCUMULATORS = 24 };

static inline vf dot_step(vf acc, vi a, vi b)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}

static inline vi broadcast_pair(const void *pair)
{
    uint32_t word;
    memcpy(&word, pair, sizeof word);
    return vi_set1(word);
}

/* acc [n_rows * n_vectors], vectors of a row side by side, += over n_pairs: the words of each row, row_words apart and
 * one after the other, times the vectors of a panel, [n_pairs] rows of panel_words words. n_rows and n_vectors are
 * constants. */
static inline __attribute__((always_inline)) void add_dots(int n_rows, int n_vectors, const void *rows,
                                                           size_t row_words, const uint32_t *panel, size_t panel_words,
                                                           size_t n_pairs, vf *acc)
{
    const unsigned char *row = rows;
    for (size_t i = 0; i < n_pairs; i++, row += 4, panel += panel_words) {
        vi x[4];
        VEC_UNROLL
        for (int v = 0; v < n_vectors; v++) {
            x[v] = vi_load(panel + v * VF_LANES);
        }
        VEC_UNROLL
        for (int r = 0; r < n_rows; r++) {
            const vi y = broadcast_pair(row + (size_t)r * row_words * 4);
            VEC_UNROLL
            for (int v = 0; v < n_vectors; v++) {
                acc[r * n_vectors + v] = dot_step(acc[r * n_vectors + v], y, x[v]);
            }
        }
    }
}

#endif
