/* Rounding to the grids of packed caches: values times the inverse of a power-of-two scale per block, and their codes.
 */
#ifndef DSRI_QUANTISE_H
#define DSRI_QUANTISE_H

#include "cpu/vec/vec.h"

#include <stdint.h>

enum { FP8_BLOCK = 64, FP8_KEPT = 64, FP4_BLOCK = 32, FP4_DIM = 128 };

/* Greatest values of the formats, as F32 bits: 448 and 6. */
#define E4M3_LARGEST 0x43e00000u
#define E2M1_LARGEST 0x40c00000u

static inline vf copy_sign(vf size, vf sign)
{
    return vf_from_bits(vi_or(vf_bits(size), vi_and(vf_bits(sign), vi_set1(0x80000000u))));
}

/* The E8M0 byte, min_scale at least, of the least power of two with largest * 2^(byte - 127) >= amax. */
static inline vi block_scale(vf amax, uint32_t largest, uint32_t min_scale)
{
    const vf least = vf_from_bits(vi_set1(largest + (min_scale << 23) - (127u << 23)));
    const vi carried = vi_add(vf_bits(vf_max(amax, least)), vi_set1(0x7fffffu - (largest & 0x7fffffu)));
    return vi_sub(vi_shr(carried, 23), vi_set1((largest >> 23) - 127u));
}

/* 2^(127 - scale), scale <= 253. */
static inline vf inverse_of_scale(vi scale)
{
    return vf_from_bits(vi_shl(vi_sub(vi_set1(254), scale), 23));
}

/* 2^(scale - 127); 0 for scale 0. */
static inline vf value_of_scale(vi scale)
{
    return vf_from_bits(vi_shl(scale, 23));
}

/* To the E4M3 grid; the scale sees to it that |x| <= 448. */
static inline vf round_e4m3(vf x)
{
    const vf a = vf_abs(x);
    /* Subnormals have steps of 2^-9, the last bit of floats at 2^14. */
    const vf subnormal = vf_sub(vf_add(a, vf_set1(0x1p14f)), vf_set1(0x1p14f));
    const vi tie = vi_and(vi_shr(vf_bits(a), 20), vi_set1(1));
    const vi rounded = vi_and(vi_add(vi_add(vf_bits(a), vi_set1(0x7ffffu)), tie), vi_set1(0xfff00000u));
    return copy_sign(vf_select(vm_lt(a, vf_set1(0x1p-6f)), subnormal, vf_from_bits(rounded)), x);
}

/* To the grid 0, .5, 1, 1.5, 2, 3, 4, 6, ties to the even code; the scale sees to it that |x| rounds to 6 at most. */
static inline vf round_e2m1(vf x)
{
    const vf a = vf_abs(x);
    /* Steps of .5 below 2, of 1 below 4, of 2 above: the last bit of floats at 2^22, 2^23, 2^24. */
    const vf magic = vf_select(vm_lt(a, vf_set1(2.0f)), vf_set1(0x1p22f),
                               vf_select(vm_lt(a, vf_set1(4.0f)), vf_set1(0x1p23f), vf_set1(0x1p24f)));
    return copy_sign(vf_sub(vf_add(a, magic), magic), x);
}

/* Rounding up in the top binade can overflow: then 0. */
static inline vf rescale(vf grid, vi scale)
{
    const vf y = vf_mul(grid, value_of_scale(scale));
    return vf_select(vm_not_finite(y), vf_zero(), y);
}

/* The codes of values of a grid, 0 for those that rescale() takes to 0 because they overflow. */
static inline vi code_unless_overflow(vi code, vf grid, vi scale)
{
    const vm overflows = vm_not_finite(vf_mul(grid, value_of_scale(scale)));
    return vf_bits(vf_select(overflows, vf_zero(), vf_from_bits(code)));
}

static inline vi e4m3_code(vf grid, vi scale)
{
    const vf a = vf_abs(grid);
    const vi subnormal = vi_sub(vf_bits(vf_add(a, vf_set1(0x1p14f))), vf_bits(vf_set1(0x1p14f)));
    const vi normal = vi_sub(vi_shr(vf_bits(a), 20), vi_set1(120u << 3)); /* exponent bias 7 for 127 */
    const vi magnitude = vf_bits(vf_select(vm_lt(a, vf_set1(0x1p-6f)), vf_from_bits(subnormal), vf_from_bits(normal)));
    const vi sign = vi_and(vi_shr(vf_bits(grid), 24), vi_set1(0x80));
    return code_unless_overflow(vi_or(sign, magnitude), grid, scale);
}

static inline vi e2m1_code(vf grid, vi scale)
{
    const vf a = vf_abs(grid);
    const vi subnormal = vi_and(vi_shr(vf_bits(a), 24), vi_set1(1));      /* of 0 and .5 */
    const vi normal = vi_sub(vi_shr(vf_bits(a), 22), vi_set1(126u << 1)); /* exponent bias 1 for 127 */
    const vi magnitude = vf_bits(vf_select(vm_lt(a, vf_set1(1.0f)), vf_from_bits(subnormal), vf_from_bits(normal)));
    const vi sign = vi_and(vi_shr(vf_bits(grid), 28), vi_set1(8));
    return code_unless_overflow(vi_or(sign, magnitude), grid, scale);
}

/* ---- FP8: lanes are the features of one block -------------------------------------------------------------- */

/* The scale of a block, the same in all lanes; *is_good is 0 if an element is not finite. */
static inline vi fp8_block_scale(const uint16_t *input, uint32_t min_scale, int *is_good)
{
    vf amax = vf_zero();
    vm bad = vm_none();
    for (int i = 0; i < FP8_BLOCK; i += VF_LANES) {
        const vf x = vf_load_bf16(input + i);
        bad = vm_or(bad, vm_not_finite(x));
        amax = vf_max(vf_abs(x), amax);
    }
    *is_good = !vm_any(bad);
    return block_scale(*is_good ? vf_set1(vf_max_lane(amax)) : vf_zero(), E4M3_LARGEST, min_scale);
}

/* ---- FP4: lanes are keys, so that butterflies of all strides are the same ----------------------------------- */

/* x[f] gets feature f of n keys (in the lanes past them, of the first), 0 where it is not finite. */
static inline void fp4_load(const uint16_t *keys, uint32_t n, vf x[FP4_DIM])
{
    vi square[VF_LANES];
    for (int first = 0; first < FP4_DIM; first += VF_LANES) {
        for (uint32_t v = 0; v < VF_LANES; v++) {
            const vf element = vf_load_bf16(keys + (size_t)(v < n ? v : 0) * FP4_DIM + first);
            square[v] = vf_bits(vf_select(vm_not_finite(element), vf_zero(), element));
        }
        vi_transpose(square);
        for (int i = 0; i < VF_LANES; i++) {
            x[first + i] = vf_from_bits(square[i]);
        }
    }
}

/* Strides 1, 2, ... 64. */
static inline void hadamard(vf x[FP4_DIM])
{
    for (int stride = 1; stride < FP4_DIM; stride *= 2) {
        for (int first = 0; first < FP4_DIM; first += 2 * stride) {
            for (int i = first; i < first + stride; i++) {
                const vf a = x[i], b = x[i + stride];
                x[i] = vf_add(a, b);
                x[i + stride] = vf_sub(a, b);
            }
        }
    }
    for (int i = 0; i < FP4_DIM; i++) {
        x[i] = vf_mul(x[i], vf_set1(0x1.6a09e6p-4f)); /* 128^-0.5 */
    }
}

/* Takes a block to the E2M1 grid and returns its scale; where it has a value that is not finite, to zeros. */
static inline vi fp4_quantise(vf x[FP4_BLOCK], uint32_t min_scale)
{
    vf amax = vf_zero();
    vm bad = vm_none();
    for (int i = 0; i < FP4_BLOCK; i++) {
        bad = vm_or(bad, vm_not_finite(x[i]));
        amax = vf_max(vf_abs(x[i]), amax);
    }
    const vi scale = block_scale(vf_select(bad, vf_zero(), amax), E2M1_LARGEST, min_scale);
    const vf inverse = inverse_of_scale(scale);
    for (int i = 0; i < FP4_BLOCK; i++) {
        x[i] = vf_select(bad, vf_zero(), round_e2m1(vf_mul(x[i], inverse)));
    }
    return scale;
}

#endif
