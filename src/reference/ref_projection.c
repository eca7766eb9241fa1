/* One output of a projection. Segments of 512 inputs are independent chains, so they may be computed side by side. */
#include "ref_bits.h"
#include "reference.h"

#include <math.h>

enum { SEGMENT = 512, FP8_SCALE_INPUTS = 128 };

float ref_projection_bf16(const uint16_t *x, const uint16_t *w, uint64_t n)
{
    float sum = 0.0f;
    for (uint64_t first = 0; first < n; first += SEGMENT) {
        float acc = 0.0f;
        for (uint64_t k = first; k < n && k < first + SEGMENT; k++) {
            acc = fmaf(ref_f32_from_bf16(x[k]), ref_f32_from_bf16(w[k]), acc);
        }
        sum += acc;
    }
    return sum;
}

/* E4M3 has no infinities; both codes with all other bits set are NaN. */
static float f32_from_e4m3(uint8_t code)
{
    const uint32_t exponent = code >> 3 & 15u, mantissa = code & 7u;
    const float size = (code & 0x7fu) == 0x7fu ? float_of(0x7fc00000u)
                       : exponent == 0         ? (float)mantissa * 0x1p-9f
                                               : float_of((exponent + 120u) << 23 | mantissa << 20);
    return code & 0x80u ? -size : size;
}

float ref_projection_fp8(const uint16_t *x, const uint8_t *w, const float *scales, uint64_t n)
{
    float sum = 0.0f;
    for (uint64_t first = 0; first < n; first += SEGMENT) {
        float acc = 0.0f;
        for (uint64_t k = first; k < n && k < first + SEGMENT; k++) {
            const float weight = f32_from_e4m3(w[k]) * scales[k / FP8_SCALE_INPUTS];
            acc = fmaf(ref_f32_from_bf16(x[k]), weight, acc);
        }
        sum += acc;
    }
    return sum;
}
