/* Fake quantisation: values are rounded to a small format with one power-of-two scale per block and returned as BF16,
 * so that a cache holds exactly what a packed cache would. Signs survive: a negative value that rounds to zero is -0.
 */
#include "reference.h"

#include <math.h>
#include <string.h>

enum { FP8_BLOCK = 64, FP8_KEPT = 64, FP4_BLOCK = 32 };

/* The scale that brings a block into [-largest, largest]; 0 if an element is not finite. */
static float block_scale(const float *x, uint32_t n, float amax_floor, float largest)
{
    float amax = amax_floor;
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            return 0.0f;
        }
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    }
    return ref_pow2_ceil(amax / largest);
}

static float clamp(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

/* Rounding up in the top binade can overflow. */
static uint16_t bf16_or_zero(float x)
{
    const uint16_t rounded = ref_bf16_from_f32(x);
    return isfinite(ref_f32_from_bf16(rounded)) ? rounded : 0;
}

void ref_fake_quant_fp8(const uint16_t *input, uint32_t dim, float amax_floor, uint16_t *output)
{
    const uint32_t n = dim - FP8_KEPT;

    for (uint32_t first = 0; first < n; first += FP8_BLOCK) {
        float x[FP8_BLOCK];
        for (uint32_t i = 0; i < FP8_BLOCK; i++) {
            x[i] = ref_f32_from_bf16(input[first + i]);
        }
        const float scale = block_scale(x, FP8_BLOCK, amax_floor, 448.0f);
        for (uint32_t i = 0; i < FP8_BLOCK; i++) {
            output[first + i] = scale > 0.0f ? bf16_or_zero(ref_round_e4m3(clamp(x[i] / scale, 448.0f)) * scale) : 0;
        }
    }
    memmove(output + n, input + n, FP8_KEPT * sizeof *output);
}

void ref_hadamard(const uint16_t input[128], float output[128])
{
    for (int i = 0; i < REF_INDEX_DIM; i++) {
        const float element = ref_f32_from_bf16(input[i]);
        output[i] = isfinite(element) ? element : 0.0f;
    }
    for (int stride = 1; stride < REF_INDEX_DIM; stride *= 2) {
        for (int i = 0; i < REF_INDEX_DIM; i++) {
            if (!(i & stride)) {
                const float a = output[i], b = output[i + stride];
                output[i] = a + b;
                output[i + stride] = a - b;
            }
        }
    }
    for (int i = 0; i < REF_INDEX_DIM; i++) {
        output[i] *= 0x1.6a09e6p-4f; /* 128^-0.5 */
    }
}

void ref_hadamard_fp4(const uint16_t input[128], float amax_floor, uint16_t output[128])
{
    float x[REF_INDEX_DIM];

    ref_hadamard(input, x);
    for (int first = 0; first < REF_INDEX_DIM; first += FP4_BLOCK) {
        const float scale = block_scale(x + first, FP4_BLOCK, amax_floor, 6.0f);
        for (int i = first; i < first + FP4_BLOCK; i++) {
            output[i] = scale > 0.0f ? bf16_or_zero(ref_round_e2m1(x[i] / scale) * scale) : 0;
        }
    }
}
