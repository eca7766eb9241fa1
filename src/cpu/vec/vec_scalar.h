/* One lane, plain C: vec.h says what each function does. */
#ifndef DSRI_VEC_SCALAR_H
#define DSRI_VEC_SCALAR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define VF_LANES 1

typedef float vf;
typedef uint32_t vi;
typedef int vm;

static inline vf vf_load(const float *p)
{
    return *p;
}

static inline void vf_store(float *p, vf x)
{
    *p = x;
}

static inline vf vf_set1(float x)
{
    return x;
}

static inline vf vf_zero(void)
{
    return 0.0f;
}

static inline vf vf_add(vf a, vf b)
{
    return a + b;
}

static inline vf vf_sub(vf a, vf b)
{
    return a - b;
}

static inline vf vf_mul(vf a, vf b)
{
    return a * b;
}

static inline vf vf_div(vf a, vf b)
{
    return a / b;
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return fmaf(a, b, c);
}

static inline vf vf_max(vf a, vf b)
{
    return a > b ? a : b;
}

static inline void vf_pin(vf *x)
{
    (void)x;
}

static inline vi vf_bits(vf x)
{
    vi b;
    memcpy(&b, &x, sizeof b);
    return b;
}

static inline vf vf_from_bits(vi b)
{
    vf x;
    memcpy(&x, &b, sizeof x);
    return x;
}

static inline vi vi_load(const uint32_t *p)
{
    vi x;
    memcpy(&x, p, sizeof x); /* BF16 pairs are only 2-byte aligned */
    return x;
}

static inline void vi_store(uint32_t *p, vi x)
{
    memcpy(p, &x, sizeof x);
}

static inline vi vi_set1(uint32_t x)
{
    return x;
}

static inline vi vi_add(vi a, vi b)
{
    return a + b;
}

static inline vi vi_sub(vi a, vi b)
{
    return a - b;
}

static inline vi vi_and(vi a, vi b)
{
    return a & b;
}

static inline vi vi_or(vi a, vi b)
{
    return a | b;
}

static inline vi vi_xor(vi a, vi b)
{
    return a ^ b;
}

static inline vi vi_shl(vi x, int n)
{
    return x << n;
}

static inline vi vi_shr(vi x, int n)
{
    return x >> n;
}

static inline vi vi_sar_halves(vi x, int n)
{
    const uint32_t high = (uint32_t)((int32_t)x >> n), low = (uint32_t)((int32_t)(x << 16) >> n);
    return (high & 0xffff0000u) | low >> 16;
}

static inline void vi_transpose(vi x[VF_LANES])
{
    (void)x;
}

static inline vm vm_none(void)
{
    return 0;
}

static inline vm vm_gt(vf a, vf b)
{
    return a > b;
}

static inline vm vm_ge(vf a, vf b)
{
    return a >= b;
}

static inline vm vm_lt(vf a, vf b)
{
    return a < b;
}

static inline vm vm_eq(vf a, vf b)
{
    return a == b;
}

static inline vm vm_not_equal(vf a, vf b)
{
    return a != b;
}

static inline vm vm_eq_bits(vi a, vi b)
{
    return a == b;
}

static inline vm vm_not_finite(vf x)
{
    return (vf_bits(x) & 0x7f800000u) == 0x7f800000u;
}

static inline vm vm_and(vm a, vm b)
{
    return a & b;
}

static inline vm vm_or(vm a, vm b)
{
    return a | b;
}

static inline int vm_any(vm m)
{
    return m;
}

static inline uint32_t vm_bits(vm m)
{
    return (uint32_t)m;
}

static inline vi vi_count(vi n, vm m)
{
    return n + (vi)m;
}

static inline uint32_t vi_sum(vi x)
{
    return x;
}

static inline float vf_max_lane(vf x)
{
    return x;
}

static inline void vi_pack_store(uint32_t *p, vi x, vm m)
{
    (void)m; /* if not set, what it overwrites means nothing */
    *p = x;
}

static inline vf vf_halving_sums(const vf x[VF_LANES])
{
    return x[0];
}

static inline vf vf_select(vm m, vf a, vf b)
{
    return m ? a : b;
}

static inline void vf_load_pairs(const float *p, vf *even, vf *odd)
{
    *even = p[0];
    *odd = p[1];
}

static inline vf vf_load_bf16(const uint16_t *p)
{
    return vf_from_bits((uint32_t)*p << 16);
}

static inline void vi_store_low_halves(uint16_t *p, vi x)
{
    *p = (uint16_t)x;
}

static inline vi vi_load_pairs(const uint16_t *p)
{
    return (uint32_t)p[1] << 16 | p[0];
}

static inline void vi_store_pairs(uint16_t *p, vi x)
{
    p[0] = (uint16_t)x;
    p[1] = (uint16_t)(x >> 16);
}

static inline uint32_t vec_scalar_e2m1(uint32_t code, int n)
{
    static const uint16_t units[8] = {0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0};
    const uint32_t exponent = code & 7 ? (uint32_t)(n * 128) : 0;
    return (code & 8) << 12 | (units[code & 7] + exponent);
}

static inline vi vi_load_e2m1_pairs(const uint8_t *p, int n)
{
    return vec_scalar_e2m1(*p & 15u, n) | vec_scalar_e2m1((uint32_t)*p >> 4, n) << 16;
}

static inline uint32_t vec_scalar_e4m3(uint32_t code, int n)
{
    /* Subnormals in units of 2^-6. */
    static const uint16_t subnormals[8] = {0, 0x3e00, 0x3e80, 0x3ec0, 0x3f00, 0x3f20, 0x3f40, 0x3f60};
    const uint32_t magnitude = code & 0x7f;
    if (magnitude == 0x7f) {
        return 0x7fc0;
    }
    if (magnitude == 0) {
        return code << 8;
    }
    const uint32_t x = magnitude < 8 ? subnormals[magnitude] - (6u << 7) : (magnitude << 4) + (120u << 7);
    return (code & 0x80) << 8 | (x + (uint32_t)(n * 128));
}

static inline vi vi_load_e4m3_pairs(const uint8_t *p, int n)
{
    return vec_scalar_e4m3(p[0], n) | vec_scalar_e4m3(p[1], n) << 16;
}

static inline int vec_e4m3_is_normal(const uint8_t *p)
{
    int is_normal = 1;
    for (int i = 0; i < 64; i++) {
        const uint32_t magnitude = p[i] & 0x7fu;
        is_normal &= magnitude >= 8 && magnitude < 0x7f;
    }
    return is_normal;
}

static inline vi vi_load_normal_e4m3_pairs(const uint8_t *p, int n)
{
    const uint32_t codes = (uint32_t)p[1] << 16 | p[0];
    return ((codes & 0x00800080) << 8 | (codes & 0x007f007f) << 4) + (uint32_t)((n + 120) * 128) * 0x00010001u;
}

#endif
