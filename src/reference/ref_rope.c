/* Rotary position embedding on the last features of each head, pairs interleaved. */
#include "reference.h"

#include <math.h>
#include <stddef.h>

static float element(const float *f32, const uint16_t *bf16, size_t i)
{
    return f32 ? f32[i] : ref_f32_from_bf16(bf16[i]);
}

/* One of f32 and bf16 is the input, the other null. */
static void rope(const float *f32, const uint16_t *bf16, uint32_t n_heads, uint32_t head_dim, uint32_t rope_dim,
                 uint32_t pos, const float *frequencies, int inverse, uint16_t *output)
{
    const size_t tail = head_dim - rope_dim;

    for (size_t head = 0; head < (size_t)n_heads * head_dim; head += head_dim) {
        for (size_t f = 0; f < tail; f++) {
            const float x = element(f32, bf16, head + f);
            output[head + f] = isfinite(x) ? ref_bf16_from_f32(x) : 0;
        }
    }
    for (uint32_t pair = 0; pair < rope_dim / 2; pair++) {
        const float angle = (float)pos * frequencies[pair];
        const int angle_is_finite = isfinite(angle);
        float s = 0.0f, c = 1.0f;
        if (angle_is_finite) {
            ref_sincos(angle, &s, &c);
        }
        s = inverse ? -s : s;
        for (uint32_t h = 0; h < n_heads; h++) {
            const size_t at = (size_t)h * head_dim + tail + 2 * (size_t)pair;
            const float a = element(f32, bf16, at), b = element(f32, bf16, at + 1);
            const int good = angle_is_finite && isfinite(a) && isfinite(b);
            output[at] = good ? ref_bf16_from_f32(fmaf(a, c, -(b * s))) : 0;
            output[at + 1] = good ? ref_bf16_from_f32(fmaf(a, s, b * c)) : 0;
        }
    }
}

void ref_rope_f32(const float *input, uint32_t n_heads, uint32_t head_dim, uint32_t rope_dim, uint32_t pos,
                  const float *frequencies, int inverse, uint16_t *output)
{
    rope(input, NULL, n_heads, head_dim, rope_dim, pos, frequencies, inverse, output);
}

void ref_rope_bf16(const uint16_t *input, uint32_t n_heads, uint32_t head_dim, uint32_t rope_dim, uint32_t pos,
                   const float *frequencies, int inverse, uint16_t *output)
{
    rope(NULL, input, n_heads, head_dim, rope_dim, pos, frequencies, inverse, output);
}
