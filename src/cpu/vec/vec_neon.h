/* 4 lanes, AArch64 NEON: vec.h says what each function does. */
#ifndef DSRI_VEC_NEON_H
#define DSRI_VEC_NEON_H

#include "cpu/vec/pack_table.h"

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define VF_LANES 4

typedef float32x4_t vf;
typedef uint32x4_t vi;
typedef uint32x4_t vm; /* all bits of a lane set or none */

static inline vf vf_load(const float *p)
{
    return vld1q_f32(p);
}

static inline void vf_store(float *p, vf x)
{
    vst1q_f32(p, x);
}

static inline vf vf_set1(float x)
{
    return vdupq_n_f32(x);
}

static inline vf vf_zero(void)
{
    return vdupq_n_f32(0.0f);
}

static inline vf vf_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}

static inline vf vf_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}

static inline vf vf_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}

static inline void vf_pin(vf *x)
{
    __asm__("" : "+w"(*x));
}

static inline vi vf_bits(vf x)
{
    return vreinterpretq_u32_f32(x);
}

static inline vf vf_from_bits(vi b)
{
    return vreinterpretq_f32_u32(b);
}

static inline vi vi_load(const uint32_t *p)
{
    return vld1q_u32(p);
}

static inline void vi_store(uint32_t *p, vi x)
{
    vst1q_u32(p, x);
}

static inline vi vi_set1(uint32_t x)
{
    return vdupq_n_u32(x);
}

static inline vi vi_add(vi a, vi b)
{
    return vaddq_u32(a, b);
}

static inline vi vi_sub(vi a, vi b)
{
    return vsubq_u32(a, b);
}

static inline vi vi_and(vi a, vi b)
{
    return vandq_u32(a, b);
}

static inline vi vi_or(vi a, vi b)
{
    return vorrq_u32(a, b);
}

static inline vi vi_xor(vi a, vi b)
{
    return veorq_u32(a, b);
}

static inline vi vi_shl(vi x, int n)
{
    return vshlq_u32(x, vdupq_n_s32(n));
}

static inline vi vi_shr(vi x, int n)
{
    return vshlq_u32(x, vdupq_n_s32(-n));
}

static inline vi vi_sar_halves(vi x, int n)
{
    return vreinterpretq_u32_s16(vshlq_s16(vreinterpretq_s16_u32(x), vdupq_n_s16((int16_t)-n)));
}

static inline void vi_transpose(vi x[VF_LANES])
{
    const uint32x4x2_t a = vtrnq_u32(x[0], x[1]);
    const uint32x4x2_t b = vtrnq_u32(x[2], x[3]);
    x[0] = vcombine_u32(vget_low_u32(a.val[0]), vget_low_u32(b.val[0]));
    x[1] = vcombine_u32(vget_low_u32(a.val[1]), vget_low_u32(b.val[1]));
    x[2] = vcombine_u32(vget_high_u32(a.val[0]), vget_high_u32(b.val[0]));
    x[3] = vcombine_u32(vget_high_u32(a.val[1]), vget_high_u32(b.val[1]));
}

static inline vm vm_none(void)
{
    return vdupq_n_u32(0);
}

static inline vm vm_gt(vf a, vf b)
{
    return vcgtq_f32(a, b);
}

static inline vm vm_ge(vf a, vf b)
{
    return vcgeq_f32(a, b);
}

static inline vm vm_lt(vf a, vf b)
{
    return vcltq_f32(a, b);
}

static inline vm vm_eq(vf a, vf b)
{
    return vceqq_f32(a, b);
}

static inline vm vm_not_equal(vf a, vf b)
{
    return vmvnq_u32(vceqq_f32(a, b));
}

static inline vm vm_eq_bits(vi a, vi b)
{
    return vceqq_u32(a, b);
}

static inline vm vm_not_finite(vf x)
{
    const vi exponent = vi_set1(0x7f800000u);
    return vm_eq_bits(vi_and(vf_bits(x), exponent), exponent);
}

static inline vm vm_and(vm a, vm b)
{
    return vandq_u32(a, b);
}

static inline vm vm_or(vm a, vm b)
{
    return vorrq_u32(a, b);
}

static inline uint32_t vm_bits(vm m)
{
    static const uint32_t lane_bits[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(m, vld1q_u32(lane_bits)));
}

static inline int vm_any(vm m)
{
    return vmaxvq_u32(m) != 0;
}

static inline vi vi_count(vi n, vm m)
{
    return vsubq_u32(n, m);
}

static inline uint32_t vi_sum(vi x)
{
    return vaddvq_u32(x);
}

static inline float vf_max_lane(vf x)
{
    return vmaxvq_f32(x);
}

static inline void vi_pack_store(uint32_t *p, vi x, vm m)
{
    const uint8x16_t order = vld1q_u8(vec_pack_table[vm_bits(m)]);
    vst1q_u8((uint8_t *)p, vqtbl1q_u8(vreinterpretq_u8_u32(x), order));
}

static inline vf vf_halving_sums(const vf x[VF_LANES])
{
    const vf twos01 = vaddq_f32(vcombine_f32(vget_low_f32(x[0]), vget_low_f32(x[1])),
                                vcombine_f32(vget_high_f32(x[0]), vget_high_f32(x[1])));
    const vf twos23 = vaddq_f32(vcombine_f32(vget_low_f32(x[2]), vget_low_f32(x[3])),
                                vcombine_f32(vget_high_f32(x[2]), vget_high_f32(x[3])));
    return vpaddq_f32(twos01, twos23);
}

static inline vf vf_select(vm m, vf a, vf b)
{
    return vbslq_f32(m, a, b);
}

/* Not vmaxq_f32, which gives NaN for a NaN in either. */
static inline vf vf_max(vf a, vf b)
{
    return vf_select(vm_gt(a, b), a, b);
}

static inline void vf_load_pairs(const float *p, vf *even, vf *odd)
{
    const float32x4x2_t pairs = vld2q_f32(p);
    *even = pairs.val[0];
    *odd = pairs.val[1];
}

static inline vf vf_load_bf16(const uint16_t *p)
{
    return vf_from_bits(vshll_n_u16(vld1_u16(p), 16));
}

static inline void vi_store_low_halves(uint16_t *p, vi x)
{
    vst1_u16(p, vmovn_u32(x));
}

static inline vi vi_load_pairs(const uint16_t *p)
{
    return vreinterpretq_u32_u16(vld1q_u16(p));
}

static inline void vi_store_pairs(uint16_t *p, vi x)
{
    vst1q_u16(p, vreinterpretq_u16_u32(x));
}

static inline vi vi_load_e2m1_pairs(const uint8_t *p, int n)
{
    static const uint8_t lower_bytes[16] = {0, 0, 128, 192, 0, 64, 128, 192, 0, 0, 128, 192, 0, 64, 128, 192};
    static const uint8_t upper_bytes[16] = {0, 63, 63, 63, 64, 64, 64, 64, 128, 191, 191, 191, 192, 192, 192, 192};
    uint32_t four;
    memcpy(&four, p, sizeof four);
    const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(four));
    const uint8x8_t codes = vzip1_u8(vand_u8(bytes, vdup_n_u8(15)), vshr_n_u8(bytes, 4));
    const uint8x8_t lower = vqtbl1_u8(vld1q_u8(lower_bytes), codes), upper = vqtbl1_u8(vld1q_u8(upper_bytes), codes);
    const uint16x8_t units = vreinterpretq_u16_u8(vcombine_u8(vzip1_u8(lower, upper), vzip2_u8(lower, upper)));
    const int16x8_t is_nonzero = vmovl_s8(vreinterpret_s8_u8(vtst_u8(codes, vdup_n_u8(7))));
    const uint16x8_t exponents = vandq_u16(vreinterpretq_u16_s16(is_nonzero), vdupq_n_u16((uint16_t)(n * 128)));
    return vreinterpretq_u32_u16(vaddq_u16(units, exponents));
}

static inline vi vi_load_e4m3_pairs(const uint8_t *p, int n)
{
    /* What makes 16 times a code, 0x100 more than the BF16 without its exponent's offset, right for subnormals. */
    static const uint8_t excess[16] = {0, 255, 6, 9, 12, 13, 14, 15, 16, 16, 16, 16, 16, 16, 16, 16};
    const uint8x8_t codes = vld1_u8(p), magnitude = vand_u8(codes, vdup_n_u8(0x7f));
    const uint8x8_t place = vmin_u8(magnitude, vdup_n_u8(15));
    const uint16x8_t x = vshll_n_u8(vadd_u8(magnitude, vqtbl1_u8(vld1q_u8(excess), place)), 4);
    const uint16x8_t is_nonzero = vreinterpretq_u16_s16(vmovl_s8(vreinterpret_s8_u8(vtst_u8(magnitude, magnitude))));
    const uint16x8_t sum = vaddq_u16(x, vdupq_n_u16((uint16_t)((n + 118) * 128)));
    const uint16x8_t signs = vandq_u16(vshll_n_u8(codes, 8), vdupq_n_u16(0x8000));
    const int8x8_t is_nan = vreinterpret_s8_u8(vceq_u8(magnitude, vdup_n_u8(0x7f)));
    return vreinterpretq_u32_u16(vbslq_u16(vreinterpretq_u16_s16(vmovl_s8(is_nan)), vdupq_n_u16(0x7fc0),
                                           vorrq_u16(vandq_u16(is_nonzero, sum), signs)));
}

static inline uint8x16_t vec_e4m3_above_least(const uint8_t *p)
{
    return vsubq_u8(vshlq_n_u8(vld1q_u8(p), 1), vdupq_n_u8(0x10));
}

static inline int vec_e4m3_is_normal(const uint8_t *p)
{
    const uint8x16_t first = vmaxq_u8(vec_e4m3_above_least(p), vec_e4m3_above_least(p + 16));
    const uint8x16_t last = vmaxq_u8(vec_e4m3_above_least(p + 32), vec_e4m3_above_least(p + 48));
    return vmaxvq_u8(vmaxq_u8(first, last)) < 0xee;
}

static inline vi vi_load_normal_e4m3_pairs(const uint8_t *p, int n)
{
    const uint16x8_t codes = vreinterpretq_u16_s16(vshll_n_s8(vreinterpret_s8_u8(vld1_u8(p)), 4));
    return vreinterpretq_u32_u16(
        vaddq_u16(vandq_u16(codes, vdupq_n_u16(0x87f0)), vdupq_n_u16((uint16_t)((n + 120) * 128))));
}

#endif
