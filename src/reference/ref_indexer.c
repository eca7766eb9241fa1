/* Lightning indexer: score[t] = sum over heads of w_h * relu(q_h . k_t). */
#include "reference.h"

#include <math.h>

static float score_key(const uint16_t *q, const float *weights, const uint16_t *key, uint32_t n_heads)
{
    float c[REF_MAX_HEADS];

    for (uint32_t h = 0; h < n_heads; h++, q += REF_INDEX_DIM) {
        float dot = 0.0f;
        for (int f = 0; f < REF_INDEX_DIM; f++) {
            dot = fmaf(ref_f32_from_bf16(q[f]), ref_f32_from_bf16(key[f]), dot);
        }
        if (!isfinite(dot)) {
            return -INFINITY; /* asked here because relu would hide it; a bad weight shows in the sum */
        }
        c[h] = (dot > 0.0f ? dot : 0.0f) * weights[h];
    }
    for (uint32_t s = n_heads / 2; s > 0; s /= 2) {
        for (uint32_t h = 0; h < s; h++) {
            c[h] += c[h + s];
        }
    }
    return isfinite(c[0]) ? c[0] : -INFINITY;
}

void ref_indexer_scores(const uint16_t *q, const float *weights, const uint16_t *keys, uint64_t key_row_stride,
                        uint64_t n_keys, uint64_t n_causal, uint32_t n_heads, float *scores)
{
    for (uint64_t t = 0; t < n_keys; t++) {
        scores[t] = t < n_causal ? score_key(q, weights, keys + t * key_row_stride, n_heads) : -INFINITY;
    }
}
