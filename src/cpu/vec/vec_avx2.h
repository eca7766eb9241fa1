/* 8 lanes, AVX2 and FMA: vec.h says what each function does. */
#ifndef DSRI_VEC_AVX2_H
#define DSRI_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#define VF_LANES 8

typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm; /* all bits of a lane set or none */

static inline vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}

static inline vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}

static inline vf vf_zero(void)
{
    return _mm256_setzero_ps();
}

static inline vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

static inline vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

static inline vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

static inline vf vf_sqrt(vf x)
{
    return _mm256_sqrt_ps(x);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline vi vf_bits(vf x)
{
    return _mm256_castps_si256(x);
}

static inline vf vf_from_bits(vi b)
{
    return _mm256_castsi256_ps(b);
}

static inline vi vi_load(const uint32_t *p)
{
    return _mm256_loadu_si256((const void *)p);
}

static inline void vi_store(uint32_t *p, vi x)
{
    _mm256_storeu_si256((void *)p, x);
}

static inline vi vi_set1(uint32_t x)
{
    return _mm256_set1_epi32((int)x);
}

static inline vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}

static inline vi vi_sub(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}

static inline vi vi_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}

static inline vi vi_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}

static inline vi vi_xor(vi a, vi b)
{
    return _mm256_xor_si256(a, b);
}

static inline vi vi_shl(vi x, int n)
{
    return _mm256_slli_epi32(x, n);
}

static inline vi vi_shr(vi x, int n)
{
    return _mm256_srli_epi32(x, n);
}

static inline void vi_transpose(vi x[VF_LANES])
{
    vi y[VF_LANES];
    for (int i = 0; i < 8; i += 2) { /* pairs of rows */
        y[i] = _mm256_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm256_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) { /* x[i + j]: columns j and 4 + j of rows i..i + 3 */
        x[i] = _mm256_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm256_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm256_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm256_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    for (int j = 0; j < 4; j++) {
        const vi a = x[j];
        const vi b = x[4 + j];
        x[j] = _mm256_permute2x128_si256(a, b, 0x20);
        x[4 + j] = _mm256_permute2x128_si256(a, b, 0x31);
    }
}

static inline vm vm_none(void)
{
    return _mm256_setzero_ps();
}

static inline vm vm_gt(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_GT_OQ);
}

static inline vm vm_lt(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}

static inline vm vm_eq(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_EQ_OQ);
}

static inline vm vm_not_equal(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_NEQ_UQ);
}

static inline vm vm_eq_bits(vi a, vi b)
{
    return vf_from_bits(_mm256_cmpeq_epi32(a, b));
}

static inline vm vm_not_finite(vf x)
{
    const vi exponent = vi_set1(0x7f800000u);
    return vm_eq_bits(vi_and(vf_bits(x), exponent), exponent);
}

static inline vm vm_and(vm a, vm b)
{
    return _mm256_and_ps(a, b);
}

static inline vm vm_or(vm a, vm b)
{
    return _mm256_or_ps(a, b);
}

static inline uint32_t vm_bits(vm m)
{
    return (uint32_t)_mm256_movemask_ps(m);
}

static inline int vm_any(vm m)
{
    return _mm256_movemask_ps(m) != 0;
}

static inline vf vf_select(vm m, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, m);
}

static inline vf vf_load_bf16(const uint16_t *p)
{
    return vf_from_bits(vi_shl(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}

static inline void vi_store_low_halves(uint16_t *p, vi x)
{
    _mm_storeu_si128((void *)p, _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}

#endif
