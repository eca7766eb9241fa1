#include "reference.h"

#include <math.h>

void acc_compressor_emit(uint32_t ratio, uint32_t dim, const float *kv_state, const float *score_state,
                         const float *norm, float epsilon, int round_pooled, double *output)
{
    const uint32_t halves = ratio == 4 ? 2 : 1, row = halves * dim;
    double squares = 0.0;

    for (uint32_t f = 0; f < dim; f++) {
        double max = -INFINITY, den = 0.0, num = 0.0;
        for (uint32_t i = 0; i < halves * ratio; i++) {
            max = fmax(max, (double)score_state[i * row + (i < ratio ? 0 : dim) + f]);
        }
        for (uint32_t i = 0; i < halves * ratio; i++) {
            const uint32_t at = i * row + (i < ratio ? 0 : dim) + f;
            const double e = exp((double)score_state[at] - max);
            den += e;
            num += e * (double)kv_state[at];
        }
        output[f] = num / den;
        if (round_pooled) {
            output[f] = (double)ref_f32_from_bf16(ref_bf16_from_f32((float)output[f]));
        }
        squares += output[f] * output[f];
    }
    for (uint32_t f = 0; f < dim; f++) {
        output[f] = output[f] / sqrt(squares / dim + (double)epsilon) * (double)norm[f];
    }
}
