/* Textbook attention with a sink in float64. Heads that fail closed are zero as in the F32 forms. */
#include "ref_attention.h"
#include "reference.h"

#include <float.h>
#include <math.h>

static int head_logits(const uint16_t *q, const uint16_t *kv, uint64_t kv_row_stride, const int32_t *indices,
                       uint64_t width, double scale, double *logits)
{
    for (uint64_t i = 0; i < width; i++) {
        double dot = 0.0;
        for (int f = 0; indices[i] >= 0 && f < REF_HEAD_DIM; f++) {
            dot += (double)ref_f32_from_bf16(q[f]) *
                   (double)ref_f32_from_bf16(kv[(uint64_t)indices[i] * kv_row_stride + (uint64_t)f]);
        }
        logits[i] = dot * scale;
        if (!(fabs(dot) <= (double)FLT_MAX && fabs(logits[i]) <= (double)FLT_MAX)) {
            return 0; /* a non-finite q, or a logit that F32 cannot hold */
        }
    }
    return 1;
}

void acc_sparse_attention(const uint16_t *q, const uint16_t *kv, uint64_t kv_row_stride, uint64_t kv_len,
                          const int32_t *indices, uint64_t width, const float *sinks, float scale, uint32_t n_heads,
                          double *scratch, double *output)
{
    const int usable = ref_selection_is_usable(kv, kv_row_stride, kv_len, indices, width);

    for (uint32_t h = 0; h < n_heads; h++, q += REF_HEAD_DIM, output += REF_HEAD_DIM) {
        for (int f = 0; f < REF_HEAD_DIM; f++) {
            output[f] = 0.0;
        }
        if (!usable || !isfinite(sinks[h]) ||
            !head_logits(q, kv, kv_row_stride, indices, width, (double)scale, scratch)) {
            continue;
        }
        double max = (double)sinks[h];
        for (uint64_t i = 0; i < width; i++) {
            max = indices[i] >= 0 ? fmax(max, scratch[i]) : max;
        }
        double denominator = exp((double)sinks[h] - max);
        for (uint64_t i = 0; i < width; i++) {
            if (indices[i] < 0) {
                continue;
            }
            const double weight = exp(scratch[i] - max);
            denominator += weight;
            for (int f = 0; f < REF_HEAD_DIM; f++) {
                output[f] += weight * (double)ref_f32_from_bf16(kv[(uint64_t)indices[i] * kv_row_stride + (uint64_t)f]);
            }
        }
        for (int f = 0; f < REF_HEAD_DIM; f++) {
            output[f] /= denominator;
        }
    }
}
