#include "reference.h"

#include <float.h>
#include <math.h>

static double score_key(const uint16_t *q, const float *weights, const uint16_t *key, uint32_t n_heads)
{
    double score = 0.0;
    for (uint32_t h = 0; h < n_heads; h++, q += REF_INDEX_DIM) {
        double dot = 0.0;
        for (int f = 0; f < REF_INDEX_DIM; f++) {
            dot += (double)ref_f32_from_bf16(q[f]) * (double)ref_f32_from_bf16(key[f]);
        }
        if (!(fabs(dot) <= (double)FLT_MAX)) {
            return -INFINITY;
        }
        score += fmax(dot, 0.0) * (double)weights[h];
    }
    return fabs(score) <= (double)FLT_MAX ? score : -INFINITY; /* also where a weight was not finite */
}

void acc_indexer_scores(const uint16_t *q, const float *weights, const uint16_t *keys, uint64_t key_row_stride,
                        uint64_t n_keys, uint64_t n_causal, uint32_t n_heads, double *scores)
{
    for (uint64_t t = 0; t < n_keys; t++) {
        scores[t] = t < n_causal ? score_key(q, weights, keys + t * key_row_stride, n_heads) : -INFINITY;
    }
}
