/* Chunked attention: chunks of 64 slots, each reduced on its own against its own largest logit, then combined in chunk
 * order. A chunk's numbers depend on nothing outside it, so chunks may be computed anywhere and at any time. */
#include "ref_attention.h"
#include "reference.h"

#include <math.h>

enum { CHUNK_FLOATS = 2 + REF_HEAD_DIM }; /* largest logit, sum of weights, weighted sum of rows */

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* 0 where no slot of the chunk is selected. */
static int reduce_chunk(const uint16_t *kv, uint64_t kv_row_stride, const int32_t *indices, const float *logits,
                        uint64_t width, float *chunk)
{
    float *max = chunk, *sum = chunk + 1, *weighted = chunk + 2;
    int n_selected = 0;
    for (uint64_t i = 0; i < width; i++) {
        if (indices[i] >= 0 && (n_selected++ == 0 || logits[i] > *max)) {
            *max = logits[i];
        }
    }
    *sum = 0.0f;
    for (int f = 0; f < REF_HEAD_DIM; f++) {
        weighted[f] = 0.0f;
    }
    for (uint64_t i = 0; i < width; i++) {
        if (indices[i] >= 0) {
            const float weight = ref_exp(logits[i] - *max);
            *sum += weight;
            ref_add_weighted_row(weight, kv + (uint64_t)indices[i] * kv_row_stride, weighted);
        }
    }
    return n_selected > 0;
}

static void combine_chunks(const float *chunks, uint64_t n_chunks, float sink, uint16_t *output)
{
    float max = sink;
    for (uint64_t c = 0; c < n_chunks; c++) {
        const float chunk_max = chunks[c * CHUNK_FLOATS];
        max = chunk_max > max ? chunk_max : max;
    }
    float denominator = ref_exp(sink - max);
    float numerator[REF_HEAD_DIM] = {0};
    for (uint64_t c = 0; c < n_chunks; c++) {
        const float *chunk = chunks + c * CHUNK_FLOATS;
        const float weight = ref_exp(chunk[0] - max);
        denominator = fmaf(weight, chunk[1], denominator);
        for (int f = 0; f < REF_HEAD_DIM; f++) {
            numerator[f] = fmaf(weight, chunk[2 + f], numerator[f]);
        }
    }
    ref_store_head(numerator, denominator, output);
}

void ref_flash_attention(const uint16_t *q, const uint16_t *kv, uint64_t kv_row_stride, uint64_t kv_len,
                         const int32_t *indices, uint64_t width, const float *sinks, float scale, uint32_t n_heads,
                         float *scratch, uint16_t *output)
{
    const int usable = ref_selection_is_usable(kv, kv_row_stride, kv_len, indices, width);

    for (uint32_t h = 0; h < n_heads; h++, q += REF_HEAD_DIM, output += REF_HEAD_DIM) {
        uint64_t n_chunks = 0; /* those that are not empty, packed at the front of scratch */
        int good = usable;
        for (uint64_t first = 0; good && first < width; first += REF_CHUNK_SLOTS) {
            const uint64_t n = smaller(REF_CHUNK_SLOTS, width - first);
            float logits[REF_CHUNK_SLOTS];
            good = ref_head_logits(q, kv, kv_row_stride, indices + first, n, sinks[h], scale, logits);
            if (good &&
                reduce_chunk(kv, kv_row_stride, indices + first, logits, n, scratch + n_chunks * CHUNK_FLOATS)) {
                n_chunks++;
            }
        }
        if (good) {
            combine_chunks(scratch, n_chunks, sinks[h], output);
        } else {
            ref_zero_head(output);
        }
    }
}
