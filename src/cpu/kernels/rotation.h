/* Interleaved rotation of pairs of features. Lanes are pairs. */
#ifndef DSRI_ROTATION_H
#define DSRI_ROTATION_H

#include "cpu/vec/vec.h"
#include "ops/op_plans.h"
#include "ops/sincos_fixed.h"

#include <math.h>
#include <string.h>

/* Of one token; padded so that whole vectors can be read. A cosine that is a NaN marks an angle that is not finite. */
typedef struct token_rotation {
    float cosines[DSRI_MAX_ROPE_PAIRS + 16];
    float sines[DSRI_MAX_ROPE_PAIRS + 16];
} token_rotation;

static inline void make_rotation(const float *frequencies, uint32_t n_pairs, uint32_t position, int inverse,
                                 token_rotation *rotation)
{
    for (uint32_t i = 0; i < n_pairs; i++) {
        const float angle = (float)position * frequencies[i];
        float sine = 0.0f, cosine = NAN;
        if (isfinite(angle)) {
            sincos_fixed(angle, &sine, &cosine);
        }
        rotation->cosines[i] = cosine;
        rotation->sines[i] = inverse ? -sine : sine;
    }
}

static inline void rotate(vf a, vf b, const token_rotation *rotation, uint32_t pair, uint16_t *output)
{
    const vf c = vf_load(rotation->cosines + pair), s = vf_load(rotation->sines + pair);
    const vm bad = vm_or(vm_not_finite(c), vm_or(vm_not_finite(a), vm_not_finite(b)));
    const vf even = vf_fma(a, c, vf_neg(vf_mul(b, s)));
    const vf odd = vf_fma(a, s, vf_mul(b, c));
    vf_store_bf16_pairs(output, vf_select(bad, vf_zero(), even), vf_select(bad, vf_zero(), odd));
}

static inline void rotate_bf16(const uint16_t *input, uint32_t n_pairs, const token_rotation *rotation,
                               uint16_t *output)
{
    uint32_t i = 0;
    vf a, b;
    for (; i + VF_LANES <= n_pairs; i += VF_LANES) {
        vf_load_bf16_pairs(input + 2 * i, &a, &b);
        rotate(a, b, rotation, i, output + 2 * i);
    }
    if (i < n_pairs) {
        uint16_t in[2 * VF_LANES] = {0};
        uint16_t out[2 * VF_LANES];
        memcpy(in, input + 2 * i, 2 * (n_pairs - i) * sizeof *in);
        vf_load_bf16_pairs(in, &a, &b);
        rotate(a, b, rotation, i, out);
        memcpy(output + 2 * i, out, 2 * (n_pairs - i) * sizeof *out);
    }
}

/* The features outside the tail: 0 where they are not finite. */
static inline void keep_bf16(const uint16_t *input, uint32_t n, uint16_t *output)
{
    for (uint32_t i = 0; i < n; i++) {
        output[i] = (input[i] & 0x7f80u) == 0x7f80u ? 0 : input[i];
    }
}

#endif
