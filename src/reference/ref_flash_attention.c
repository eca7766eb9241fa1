/* Chunked attention: chunks of 64 slots, each reduced on its own, then combined in chunk order. */
#include "ref_attention.h"
#include "reference.h"

#include <math.h>

/* A chunk with at least one selected slot: all weights are relative to its own largest logit. */
struct chunk {
    float max, sum, weighted[REF_HEAD_DIM];
};

static int reduce_chunk(const uint16_t *kv, uint64_t kv_row_stride, const int32_t *indices, const float *logits,
                        uint64_t width, struct chunk *chunk)
{
    int n_selected = 0;
    for (uint64_t i = 0; i < width; i++) {
        if (indices[i] >= 0 && (n_selected++ == 0 || logits[i] > chunk->max)) {
            chunk->max = logits[i];
        }
    }
    chunk->sum = 0.0f;
    for (int f = 0; f < REF_HEAD_DIM; f++) {
        chunk->weighted[f] = 0.0f;
    }
    for (uint64_t i = 0; i < width; i++) {
        if (indices[i] >= 0) {
            const float weight = ref_exp(logits[i] - chunk->max);
            chunk->sum += weight;
            ref_add_weighted_row(weight, kv + (uint64_t)indices[i] * kv_row_stride, chunk->weighted);
        }
    }
    return n_selected > 0;
}
