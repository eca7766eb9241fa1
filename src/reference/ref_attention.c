#include "ref_attention.h"
#include "reference.h"

#include <math.h>
#include <string.h>

static int all_finite(const uint16_t *row)
{
    for (int f = 0; f < REF_HEAD_DIM; f++) {
        if (!isfinite(ref_f32_from_bf16(row[f]))) {
            return 0;
        }
    }
    return 1;
}

int ref_selection_is_usable(const uint16_t *kv, uint64_t kv_row_stride, uint64_t kv_len, const int32_t *indices,
                            uint64_t width)
{
    for (uint64_t i = 0; i < width; i++) {
        if (indices[i] == -1) {
            continue;
        }
        if (indices[i] < 0 || (uint64_t)indices[i] >= kv_len ||
            !all_finite(kv + (uint64_t)indices[i] * kv_row_stride)) {
            return 0;
        }
    }
    return 1;
}

int ref_head_logits(const uint16_t *q, const uint16_t *kv, uint64_t kv_row_stride, const int32_t *indices,
                    uint64_t width, float sink, float scale, float *logits)
{
    if (!isfinite(sink) || !all_finite(q)) {
        return 0;
    }
    for (uint64_t i = 0; i < width; i++) {
        if (indices[i] < 0) {
            continue;
        }
        const uint16_t *k = kv + (uint64_t)indices[i] * kv_row_stride;
        float dot = 0.0f;
        for (int f = 0; f < REF_HEAD_DIM; f++) {
            dot = fmaf(ref_f32_from_bf16(q[f]), ref_f32_from_bf16(k[f]), dot);
        }
        logits[i] = dot * scale;
        if (!isfinite(logits[i])) {
            return 0;
        }
    }
    return 1;
}

void ref_add_weighted_row(float weight, const uint16_t *row, float *numerator)
{
    for (int f = 0; f < REF_HEAD_DIM; f++) {
        numerator[f] = fmaf(weight, ref_f32_from_bf16(row[f]), numerator[f]);
    }
}

void ref_store_head(const float *numerator, float denominator, uint16_t *output)
{
    for (int f = 0; f < REF_HEAD_DIM; f++) {
        const uint16_t rounded = ref_bf16_from_f32(numerator[f] / denominator);
        output[f] = isfinite(ref_f32_from_bf16(rounded)) ? rounded : 0;
    }
}

void ref_zero_head(uint16_t *output)
{
    memset(output, 0, REF_HEAD_DIM * sizeof *output);
}
