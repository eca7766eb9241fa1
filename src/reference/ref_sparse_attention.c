/* Two-pass attention over selected shared-KV rows with a sink: weights from all logits first, then the weighted sum. */
#include "ref_attention.h"
#include "reference.h"

void ref_sparse_attention(const uint16_t *q, const uint16_t *kv, uint64_t kv_row_stride, uint64_t kv_len,
                          const int32_t *indices, uint64_t width, const float *sinks, float scale, uint32_t n_heads,
                          float *scratch, uint16_t *output)
{
    const int usable = ref_selection_is_usable(kv, kv_row_stride, kv_len, indices, width);

    for (uint32_t h = 0; h < n_heads; h++, q += REF_HEAD_DIM, output += REF_HEAD_DIM) {
        if (!usable || !ref_head_logits(q, kv, kv_row_stride, indices, width, sinks[h], scale, scratch)) {
            ref_zero_head(output);
            continue;
        }

        float max = sinks[h];
        for (uint64_t i = 0; i < width; i++) {
            if (indices[i] >= 0 && scratch[i] > max) {
                max = scratch[i];
            }
        }

        float denominator = ref_exp(sinks[h] - max);
        float numerator[REF_HEAD_DIM] = {0};
        for (uint64_t i = 0; i < width; i++) {
            if (indices[i] >= 0) {
                const float weight = ref_exp(scratch[i] - max);
                denominator += weight;
                ref_add_weighted_row(weight, kv + (uint64_t)indices[i] * kv_row_stride, numerator);
            }
        }
        ref_store_head(numerator, denominator, output);
    }
}
