/* Index keys whose scores are given numbers, exactly: three BF16 pieces hold the 24 bits of an F32, and heads of weight
 * +1 and -1 give the sign. With 32 heads. */
#ifndef TEST_SCORE_KEYS_H
#define TEST_SCORE_KEYS_H

#include "case_test.h"

enum { SCORE_HEADS = 32 };

/* The query that reads scores off such keys. */
static inline void score_query(uint16_t q[SCORE_HEADS * DSR_INDEX_DIM], float weights[SCORE_HEADS])
{
    memset(q, 0, SCORE_HEADS * DSR_INDEX_DIM * sizeof *q);
    memset(weights, 0, SCORE_HEADS * sizeof *weights);
    for (int piece = 0; piece < 3; piece++) {
        q[piece] = BF16_ONE;
        q[DSR_INDEX_DIM + 3 + piece] = BF16_ONE;
    }
    weights[0] = 1.0f;
    weights[1] = -1.0f;
}

/* The key of a score. NaN and infinities make a key whose score is not finite. */
static inline void score_key(float score, uint16_t key[DSR_INDEX_DIM])
{
    uint16_t *pieces = key + (score < 0.0f ? 3 : 0);
    float rest = fabsf(score);

    memset(key, 0, DSR_INDEX_DIM * sizeof *key);
    if (!isfinite(score)) {
        pieces[0] = isnan(score) ? BF16_NAN : BF16_INF;
        return;
    }
    for (int piece = 0; piece < 3; piece++) {
        pieces[piece] = (uint16_t)(f32_to_bits(rest) >> 16);
        rest -= f32_from_bf16(pieces[piece]);
    }
}

static inline uint16_t *score_keys(const float *scores, size_t n)
{
    uint16_t *keys = zeros(n * DSR_INDEX_DIM * sizeof *keys);
    for (size_t t = 0; t < n; t++) {
        score_key(scores[t], keys + t * DSR_INDEX_DIM);
    }
    return keys;
}

/* One row of a joint selection: the first n of keys. */
typedef struct score_row {
    const uint16_t *keys;
    uint64_t n;
} score_row;

/* The lists of n_rows rows, top_k apart, from one joint call; keys are shared where pointers are equal. */
static inline dsr_status encode_select(direct *d, const score_row *rows, uint32_t n_rows, uint32_t top_k,
                                       const uint16_t *q, const float *weights, int32_t *lists)
{
    dsr_indexer_row at[DSR_MAX_ROWS];
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    memset(at, 0, sizeof at);
    for (uint32_t r = 0; r < n_rows; r++) {
        at[r].keys = direct_bf16(d, rows[r].keys, (size_t)rows[r].n * DSR_INDEX_DIM);
        at[r].kv_len = rows[r].n;
        at[r].output_offset = (uint64_t)r * top_k;
        at[r].start_pos = (uint32_t)rows[r].n - 1;
        at[r].ratio = 1;
    }
    desc.n_rows = n_rows;
    desc.rows = at;
    desc.n_heads = SCORE_HEADS;
    desc.top_k = top_k;
    desc.q = direct_bf16(d, q, SCORE_HEADS * DSR_INDEX_DIM);
    desc.weights = direct_f32(d, weights, SCORE_HEADS);
    desc.output = direct_i32(d, lists, (size_t)n_rows * top_k);
    return direct_encode_indexer(d, &desc);
}

static inline void select_rows(direct *d, const score_row *rows, uint32_t n_rows, uint32_t top_k, int32_t *lists)
{
    uint16_t q[SCORE_HEADS * DSR_INDEX_DIM];
    float weights[SCORE_HEADS];
    score_query(q, weights);
    assert_ok(d, encode_select(d, rows, n_rows, top_k, q, weights, lists));
    assert_ok(d, direct_run(d));
}

/* The list of one row alone. */
static inline void select_scores(direct *d, const float *scores, size_t n, uint32_t top_k, int32_t *list)
{
    uint16_t *keys = score_keys(scores, n);
    const score_row row = {keys, n};
    select_rows(d, &row, 1, top_k, list);
    free(keys);
}

/* ---- the right list, by a full sort ------------------------------------------------------------------------- */

static const float *full_sort_scores;

static inline int full_sort_order(const void *a, const void *b)
{
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    const float x = full_sort_scores[i], y = full_sort_scores[j];
    return x > y ? -1 : x < y ? 1 : i < j ? -1 : i > j;
}

/* All finite keys by falling score, then rising index; *n_finite of them. The caller frees. */
static inline int32_t *full_sort(const float *scores, size_t n, size_t *n_finite)
{
    int32_t *order = zeros(n * sizeof *order);
    *n_finite = 0;
    for (size_t t = 0; t < n; t++) {
        if (isfinite(scores[t])) {
            order[(*n_finite)++] = (int32_t)t;
        }
    }
    full_sort_scores = scores;
    qsort(order, *n_finite, sizeof *order, full_sort_order);
    return order;
}

static inline void assert_list(const int32_t *list, uint32_t top_k, const float *scores, size_t n)
{
    size_t n_finite;
    int32_t *order = full_sort(scores, n, &n_finite);
    for (uint32_t i = 0; i < top_k; i++) {
        const int32_t want = i < n_finite ? order[i] : -1;
        if (list[i] != want) {
            fail_msg("n %zu, k %u: entry %u is %d, want %d", n, top_k, i, list[i], want);
        }
    }
    free(order);
}

/* Select alone on this level and compare with the full sort. */
static inline void check_selection(direct *d, const float *scores, size_t n, uint32_t top_k)
{
    int32_t *list = filled(top_k * sizeof *list, 0x55);
    select_scores(d, scores, n, top_k, list);
    assert_list(list, top_k, scores, n);
    free(list);
}

#endif
