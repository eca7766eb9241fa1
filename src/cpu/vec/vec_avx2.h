/* 8 lanes, AVX2 and FMA: vec.h says what each function does. */
#ifndef DSRI_VEC_AVX2_H
#define DSRI_VEC_AVX2_H

#include "cpu/vec/pack_table.h"

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

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline void vf_pin(vf *x)
{
    __asm__("" : "+x"(*x));
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

static inline vi vi_sar_halves(vi x, int n)
{
    return _mm256_srai_epi16(x, n);
}

static inline void vi_transpose(vi x[VF_LANES])
{
    vi y[VF_LANES];
    VEC_UNROLL
    for (int i = 0; i < 8; i += 2) { /* pairs of rows */
        y[i] = _mm256_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm256_unpackhi_epi32(x[i], x[i + 1]);
    }
    VEC_UNROLL
    for (int i = 0; i < 8; i += 4) { /* x[i + j]: columns j and 4 + j of rows i..i + 3 */
        x[i] = _mm256_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm256_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm256_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm256_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    VEC_UNROLL
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

static inline vm vm_ge(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_GE_OQ);
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

static inline vi vi_count(vi n, vm m)
{
    return _mm256_sub_epi32(n, vf_bits(m));
}

static inline uint32_t vi_sum(vi x)
{
    const __m128i y = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    const __m128i z = _mm_add_epi32(y, _mm_shuffle_epi32(y, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_add_epi32(z, _mm_shuffle_epi32(z, 0xb1)));
}

static inline float vf_max_lane(vf x)
{
    const __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 z = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}

static inline void vi_pack_store(uint32_t *p, vi x, vm m)
{
    const uint32_t bits = vm_bits(m), low = bits & 15, high = bits >> 4;
    const __m128i *table = (const void *)vec_pack_table;
    _mm_storeu_si128((void *)p, _mm_shuffle_epi8(_mm256_castsi256_si128(x), _mm_load_si128(table + low)));
    _mm_storeu_si128((void *)(p + __builtin_popcount(low)),
                     _mm_shuffle_epi8(_mm256_extracti128_si256(x, 1), _mm_load_si128(table + high)));
}

static inline vf vf_halving_sums(const vf x[VF_LANES])
{
    vf y[4], z[2];
    for (int i = 0; i < 4; i++) { /* fours: x[i] in the lower half, x[4 + i] in the upper one */
        y[i] =
            _mm256_add_ps(_mm256_permute2f128_ps(x[i], x[4 + i], 0x20), _mm256_permute2f128_ps(x[i], x[4 + i], 0x31));
    }
    for (int i = 0; i < 2; i++) { /* twos */
        z[i] = _mm256_add_ps(_mm256_shuffle_ps(y[2 * i], y[2 * i + 1], 0x44),
                             _mm256_shuffle_ps(y[2 * i], y[2 * i + 1], 0xee));
    }
    return _mm256_add_ps(_mm256_shuffle_ps(z[0], z[1], 0x88), _mm256_shuffle_ps(z[0], z[1], 0xdd));
}

static inline vf vf_select(vm m, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, m);
}

static inline void vf_load_pairs(const float *p, vf *even, vf *odd)
{
    const vf a = vf_load(p);
    const vf b = vf_load(p + 8);
    const vf low = _mm256_permute2f128_ps(a, b, 0x20);
    const vf high = _mm256_permute2f128_ps(a, b, 0x31);
    *even = _mm256_shuffle_ps(low, high, 0x88);
    *odd = _mm256_shuffle_ps(low, high, 0xdd);
}

static inline vf vf_load_bf16(const uint16_t *p)
{
    return vf_from_bits(vi_shl(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}

static inline void vi_store_low_halves(uint16_t *p, vi x)
{
    _mm_storeu_si128((void *)p, _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}

static inline vi vi_load_pairs(const uint16_t *p)
{
    return _mm256_loadu_si256((const void *)p);
}

static inline void vi_store_pairs(uint16_t *p, vi x)
{
    _mm256_storeu_si256((void *)p, x);
}

static inline vi vi_load_e2m1_pairs(const uint8_t *p, int n)
{
    const __m128i lower_bytes = _mm_setr_epi8(0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64);
    const __m128i upper_bytes = _mm_setr_epi8(0, 63, 63, 63, 64, 64, 64, 64, -128, -65, -65, -65, -64, -64, -64, -64);
    const vi bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
    const vi codes = vi_and(vi_or(bytes, vi_shl(bytes, 12)), vi_set1(0x000f000f));
    const vi lower = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(lower_bytes), codes);
    const vi upper = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(upper_bytes), vi_shl(codes, 8));
    const vi is_zero = _mm256_cmpeq_epi16(vi_and(codes, vi_set1(0x00070007)), _mm256_setzero_si256());
    return _mm256_add_epi16(vi_or(lower, upper), _mm256_andnot_si256(is_zero, _mm256_set1_epi16((short)(n * 128))));
}

static inline vi vi_load_e4m3_pairs(const uint8_t *p, int n)
{
    /* What makes 16 times a code, 0x100 more than the BF16 without its exponent's offset, right for subnormals. */
    const __m128i excess = _mm_setr_epi8(0, -1, 6, 9, 12, 13, 14, 15, 16, 16, 16, 16, 16, 16, 16, 16);
    const vi codes = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)p));
    const vi nan = vi_set1(0x007f007f), magnitude = vi_and(codes, nan);
    const vi place = _mm256_min_epi16(magnitude, vi_set1(0x000f000f));
    const vi x = _mm256_slli_epi16(
        _mm256_add_epi8(magnitude, _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(excess), place)), 4);
    const vi is_zero = _mm256_cmpeq_epi16(magnitude, _mm256_setzero_si256());
    const vi sum = _mm256_add_epi16(x, _mm256_set1_epi16((short)((n + 118) * 128)));
    const vi signs = vi_and(_mm256_slli_epi16(codes, 8), vi_set1(0x80008000u));
    return _mm256_blendv_epi8(vi_or(_mm256_andnot_si256(is_zero, sum), signs), vi_set1(0x7fc07fc0),
                              _mm256_cmpeq_epi16(magnitude, nan));
}

static inline vi vec_e4m3_above_least(const uint8_t *p)
{
    const vi codes = _mm256_loadu_si256((const void *)p);
    return _mm256_sub_epi8(_mm256_add_epi8(codes, codes), vi_set1(0x10101010));
}

static inline int vec_e4m3_is_normal(const uint8_t *p)
{
    const vi most = _mm256_max_epu8(vec_e4m3_above_least(p), vec_e4m3_above_least(p + 32));
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(most, _mm256_max_epu8(most, vi_set1(0xeeeeeeeeu)))) == 0;
}

static inline vi vi_load_normal_e4m3_pairs(const uint8_t *p, int n)
{
    const vi codes = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)p));
    return _mm256_add_epi16(vi_and(_mm256_slli_epi16(codes, 4), vi_set1(0x87f087f0u)),
                            _mm256_set1_epi16((short)((n + 120) * 128)));
}

#endif
