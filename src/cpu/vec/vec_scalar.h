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

static inline vf vf_sqrt(vf x)
{
    return sqrtf(x);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return fmaf(a, b, c);
}

static inline vf vf_max(vf a, vf b)
{
    return a > b ? a : b;
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
    return *p;
}

static inline void vi_store(uint32_t *p, vi x)
{
    *p = x;
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

static inline vf vf_select(vm m, vf a, vf b)
{
    return m ? a : b;
}

static inline vf vf_load_bf16(const uint16_t *p)
{
    return vf_from_bits((uint32_t)*p << 16);
}

static inline void vf_store_bf16(uint16_t *p, vf x)
{
    const vi b = vf_bits(x);
    /* The carry could turn a NaN into -0. */
    *p = (uint16_t)(x != x ? b >> 16 | 0x40u : (b + 0x7fffu + (b >> 16 & 1u)) >> 16);
}

static inline void vf_load_bf16_pairs(const uint16_t *p, vf *even, vf *odd)
{
    *even = vf_load_bf16(p);
    *odd = vf_load_bf16(p + 1);
}

static inline void vf_store_bf16_pairs(uint16_t *p, vf even, vf odd)
{
    vf_store_bf16(p, even);
    vf_store_bf16(p + 1, odd);
}

#endif
