#include "reference.h"

#include <math.h>

void ref_rms_norm(const float *input, uint32_t n, const float *weight, float epsilon, float *scratch, float *output)
{
    uint32_t padded = 1;
    while (padded < n) {
        padded *= 2;
    }
    for (uint32_t f = 0; f < padded; f++) {
        scratch[f] = f < n ? input[f] * input[f] : 0.0f;
    }
    for (uint32_t s = padded / 2; s > 0; s /= 2) {
        for (uint32_t f = 0; f < s; f++) {
            scratch[f] += scratch[f + s];
        }
    }
    const float r = 1.0f / sqrtf(scratch[0] / (float)n + epsilon);
    for (uint32_t f = 0; f < n; f++) {
        const float y = input[f] * r;
        output[f] = weight ? y * weight[f] : y;
    }
}
