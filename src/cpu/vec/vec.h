/* A small vector vocabulary, one implementation per instruction set, chosen by DSRI_ISA (scalar, avx2, avx512, neon).
 *
 * Lanes are different outputs: no operation mixes lanes, but for the ones listed last. Every operation is one IEEE-754
 * operation, a comparison or integer arithmetic per lane, so that all levels give the same bits.
 *
 * Types: vf VF_LANES floats, vi VF_LANES uint32_t, vm a lane mask. Loads and stores want no more than element alignment
 * and touch exactly VF_LANES elements.
 *
 *   vf_load vf_store vf_set1 vf_zero             vf_add vf_sub vf_mul vf_div
 *   vf_fma(a, b, c)          a * b + c, rounded once
 *   vf_max(a, b)             a > b ? a : b
 *   vf_relu(x)               x > 0 ? x : +0, but NaN where x is not finite
 *   vf_abs vf_neg            bit operations, also on NaN
 *   vf_select(m, a, b)       m ? a : b
 *   vf_load_bf16(p)          VF_LANES consecutive BF16, widened exactly
 *   vf_store_bf16(p, x)      rounded to nearest even, a NaN quieted
 *   vf_load_bf16_pairs(p, &even, &odd)  2 * VF_LANES consecutive BF16, p[2i] in even[i], p[2i + 1] in odd[i]: cheaper
 *   vf_store_bf16_pairs(p, even, odd)   its inverse, rounding as vf_store_bf16 does
 *   vi_load_pairs vf_from_pairs vf_to_pairs vi_store_pairs  the two in two steps; a pair is p[2i] | p[2i + 1] << 16
 *   vf_load_pairs(p, &even, &odd)       2 * VF_LANES consecutive floats, likewise
 *   vi_load_e2m1_pairs(p, n)  2 * VF_LANES E2M1 codes, low nibble of a byte first, times 2^n as BF16 pairs, |n| <= 125
 *   vi_load_e4m3_pairs(p, n)  2 * VF_LANES E4M3 codes, times 2^n as BF16 pairs, |n| <= 117; codes 7f and ff give 7fc0
 *   vec_e4m3_is_normal(p)     whether 64 E4M3 codes are neither zero nor subnormal nor NaN
 *   vi_load_normal_e4m3_pairs(p, n)  vi_load_e4m3_pairs for such: cheaper
 *   vf_pin(&x)               keeps x in a register here: gcc 12 may otherwise move and spill accumulators at a branch
 *   vf_bits vf_from_bits     reinterpretation to and from vi
 *   vi_load vi_store vi_set1 vi_add vi_sub vi_and vi_or vi_xor vi_shl(x, n) vi_shr(x, n)  (n < 32, logical)
 *   vi_sar_halves(x, n)      the same for the two 16-bit halves of a lane, each on its own; their top bits move in
 *   vi_count(n, m)           n + 1 in the lanes of m, n elsewhere
 *   vm_none vm_gt vm_ge vm_lt vm_eq vm_not_equal (true for NaN) vm_eq_bits vm_not_finite vm_and vm_or
 * Across lanes:
 *   vm_any(m), vm_bits(m)    0 or 1; lane i in bit i
 *   vi_transpose(x)          x[i] lane j <-> x[j] lane i, x[VF_LANES]
 *   vi_sum(x)                sum of the lanes, modulo 2^32
 *   vf_max_lane(x)           greatest lane, none of them NaN
 *   vi_pack_store(p, x, m)   the lanes of m side by side from p on; may overwrite all of p[0..VF_LANES)
 *   vf_halving_sums(x)       lane j: the lanes of x[j], x[VF_LANES], added by halving (lane i += lane i + s for s =
 *                            VF_LANES / 2 ... 1)
 */
#ifndef DSRI_VEC_H
#define DSRI_VEC_H

#define DSRI_VEC_scalar      1
#define DSRI_VEC_avx2        2
#define DSRI_VEC_avx512      3
#define DSRI_VEC_neon        4
#define DSRI_VEC_JOIN2(a, b) a##b
#define DSRI_VEC_JOIN(a, b)  DSRI_VEC_JOIN2(a, b)
/* The level as a number, for #if. */
#define DSRI_VEC DSRI_VEC_JOIN(DSRI_VEC_, DSRI_ISA)

/* Before a loop of up to 16 steps over an array that must live in registers. Not with a sanitizer, whose checks in so
 * many copies take minutes to compile. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define VEC_UNROLL
#elif !defined(__clang__)
#define VEC_UNROLL _Pragma("GCC unroll 16")
#elif __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(undefined_behavior_sanitizer)
#define VEC_UNROLL
#else
#define VEC_UNROLL _Pragma("clang loop unroll(full)")
#endif

#if DSRI_VEC == DSRI_VEC_scalar
#include "cpu/vec/vec_scalar.h"
#elif DSRI_VEC == DSRI_VEC_avx2
#include "cpu/vec/vec_avx2.h"
#elif DSRI_VEC == DSRI_VEC_avx512
#include "cpu/vec/vec_avx512.h"
#elif DSRI_VEC == DSRI_VEC_neon
#include "cpu/vec/vec_neon.h"
#else
#error "DSRI_ISA must be scalar, avx2, avx512 or neon"
#endif

#if DSRI_VEC != DSRI_VEC_avx512
static inline vf vf_relu(vf x)
{
    return vf_max(x, vf_sub(x, x));
}
#endif

static inline vf vf_abs(vf x)
{
    return vf_from_bits(vi_and(vf_bits(x), vi_set1(0x7fffffffu)));
}

static inline vf vf_neg(vf x)
{
    return vf_from_bits(vi_xor(vf_bits(x), vi_set1(0x80000000u)));
}

static inline void vf_from_pairs(vi pairs, vf *even, vf *odd)
{
    *even = vf_from_bits(vi_shl(pairs, 16));
    *odd = vf_from_bits(vi_and(pairs, vi_set1(0xffff0000u)));
}

static inline void vf_load_bf16_pairs(const uint16_t *p, vf *even, vf *odd)
{
    vf_from_pairs(vi_load_pairs(p), even, odd);
}

/* The BF16 of each lane in the upper half, the lower half undefined. */
static inline vi vf_round_to_bf16(vf x)
{
    const vi b = vf_bits(x);
    const vi tie = vi_and(vi_shr(b, 16), vi_set1(1));
    const vi rounded = vi_add(vi_add(b, vi_set1(0x7fffu)), tie);
    /* The carry could turn a NaN into -0. */
    const vi quiet = vi_or(b, vi_set1(0x400000u));
    return vf_bits(vf_select(vm_not_equal(x, x), vf_from_bits(quiet), vf_from_bits(rounded)));
}

static inline vi vf_to_pairs(vf even, vf odd)
{
    const vi low = vi_shr(vf_round_to_bf16(even), 16);
    const vi high = vi_and(vf_round_to_bf16(odd), vi_set1(0xffff0000u));
    return vi_or(low, high);
}

static inline void vf_store_bf16_pairs(uint16_t *p, vf even, vf odd)
{
    vi_store_pairs(p, vf_to_pairs(even, odd));
}

static inline void vf_store_bf16(uint16_t *p, vf x)
{
    vi_store_low_halves(p, vi_shr(vf_round_to_bf16(x), 16));
}

static inline void vec_prefetch(const void *p)
{
    __builtin_prefetch(p);
}

/* Into the second-level cache, which takes more lines at a time than the first. */
static inline void vec_prefetch_to_l2(const void *p)
{
    __builtin_prefetch(p, 0, 2);
}

#endif
