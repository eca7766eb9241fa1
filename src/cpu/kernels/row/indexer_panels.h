/* What both units share of the row-exact indexer: the packed query, and the ends of a block of keys. */
#ifndef DSRI_ROW_INDEXER_PANELS_H
#define DSRI_ROW_INDEXER_PANELS_H

#include "cpu/kernels/cache_rows.h"
#include "cpu/kernels/indexer_query.h"
#include "cpu/kernels/row/pairs.h"

enum { FEATURE_PAIRS = DSRI_INDEX_DIM / 2, MAX_PANEL_HEADS = 64 };

static inline uint32_t panel_heads(uint32_t n_heads)
{
    return n_heads < MAX_PANEL_HEADS ? n_heads : MAX_PANEL_HEADS;
}

/* Head `head` of the packed query, [FEATURE_PAIRS] rows of panel_heads words. */
static inline uint32_t *query_panel(const query *x, uint32_t n_heads, uint32_t head)
{
    const uint32_t width = panel_heads(n_heads);
    return (uint32_t *)(void *)x->packed_q + (size_t)(head / width) * FEATURE_PAIRS * width + head % width;
}

/* Keys [t, t + n) of a row side by side in `to`, after which the row's query sees keys up to `end`; and zeros up to
 * n_padded. */
static inline void load_block(const dsri_indexer_row_plan *row, uint64_t t, uint32_t n, uint32_t n_padded, uint64_t end,
                              uint16_t *to)
{
    load_keys(&row->keys, t, n, end, to);
    memset(to + (size_t)n * DSRI_INDEX_DIM, 0, (size_t)(n_padded - n) * DSRI_INDEX_DIM * sizeof *to);
}

/* Scores [t, t + n) and their block maxima, from sums [n_padded][VF_LANES]. */
static inline void store_scores(const query *x, uint64_t t, uint32_t n, uint32_t n_padded, const float *sums)
{
    float scores[64], maxima[64 / DSRI_SCORE_BLOCK];
    float *const to = x->scores + t, *const to_maxima = x->block_maxima + t / DSRI_SCORE_BLOCK;
    if (n == n_padded) {
        finish_scores(sums, NULL, n_padded, n, to, to_maxima);
        return;
    }
    finish_scores(sums, NULL, n_padded, n, scores, maxima);
    memcpy(to, scores, n * sizeof *to);
    memcpy(to_maxima, maxima, (n + DSRI_SCORE_BLOCK - 1) / DSRI_SCORE_BLOCK * sizeof *to_maxima);
}

#endif
