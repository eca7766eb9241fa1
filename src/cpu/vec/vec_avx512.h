/* 16 lanes, AVX-512 F, BW, DQ and VL: vec.h says what each function does. */
#ifndef DSRI_VEC_AVX512_H
#define DSRI_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define VF_LANES 16

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

static inline vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void vf_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}

static inline vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf vf_zero(void)
{
    return _mm512_setzero_ps();
}

static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static inline vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline void vf_pin(vf *x)
{
    __asm__("" : "+v"(*x));
}

static inline vi vf_bits(vf x)
{
    return _mm512_castps_si512(x);
}

static inline vf vf_from_bits(vi b)
{
    return _mm512_castsi512_ps(b);
}

static inline vi vi_load(const uint32_t *p)
{
    return _mm512_loadu_si512(p);
}

static inline void vi_store(uint32_t *p, vi x)
{
    _mm512_storeu_si512(p, x);
}

static inline vi vi_set1(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}

static inline vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}

static inline vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}

static inline vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}

static inline vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}

static inline vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}

static inline vi vi_shl(vi x, int n)
{
    return _mm512_slli_epi32(x, (unsigned)n);
}

static inline vi vi_shr(vi x, int n)
{
    return _mm512_srli_epi32(x, (unsigned)n);
}

static inline vi vi_sar_halves(vi x, int n)
{
    return _mm512_srai_epi16(x, (uint8_t)n); /* gcc takes an int here, clang an unsigned */
}

static inline void vi_transpose(vi x[VF_LANES])
{
    vi y[VF_LANES];
    VEC_UNROLL
    for (int i = 0; i < 16; i += 2) { /* pairs of rows */
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    VEC_UNROLL
    for (int i = 0; i < 16; i += 4) { /* x[i + j]: columns j, 4 + j, 8 + j, 12 + j of rows i..i + 3 */
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    VEC_UNROLL
    for (int j = 0; j < 4; j++) { /* quarters of 128 bits: a 4 x 4 transpose of them */
        const vi a = _mm512_shuffle_i32x4(x[j], x[4 + j], 0x88);
        const vi b = _mm512_shuffle_i32x4(x[j], x[4 + j], 0xdd);
        const vi c = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0x88);
        const vi d = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0xdd);
        y[j] = _mm512_shuffle_i32x4(a, c, 0x88);
        y[8 + j] = _mm512_shuffle_i32x4(a, c, 0xdd);
        y[4 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
        y[12 + j] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
    VEC_UNROLL
    for (int i = 0; i < 16; i++) {
        x[i] = y[i];
    }
}

static inline vm vm_none(void)
{
    return 0;
}

static inline vm vm_gt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}

static inline vm vm_ge(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}

static inline vm vm_lt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

static inline vm vm_eq(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

static inline vm vm_not_equal(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ);
}

static inline vm vm_eq_bits(vi a, vi b)
{
    return _mm512_cmpeq_epi32_mask(a, b);
}

static inline vm vm_not_finite(vf x)
{
    return _mm512_fpclass_ps_mask(x, 0x99); /* quiet NaN, +inf, -inf, signalling NaN */
}

static inline vm vm_and(vm a, vm b)
{
    return (vm)(a & b);
}

static inline vm vm_or(vm a, vm b)
{
    return (vm)(a | b);
}

static inline int vm_any(vm m)
{
    return m != 0;
}

static inline uint32_t vm_bits(vm m)
{
    return m;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion" /* in gcc's own macro for this intrinsic at -O0 */
static inline vf vf_relu(vf x)
{
    /* One digit per class of x: above 0 x, infinite NaN, below 0 +0, 1 x, zero +0, NaN x. */
    return _mm512_fixupimm_ps(x, x, _mm512_set1_epi32(0x18331811), 0);
}
#pragma GCC diagnostic pop

static inline vi vi_count(vi n, vm m)
{
    return _mm512_mask_add_epi32(n, m, n, _mm512_set1_epi32(1));
}

static inline uint32_t vi_sum(vi x)
{
    return (uint32_t)_mm512_reduce_add_epi32(x);
}

static inline float vf_max_lane(vf x)
{
    return _mm512_reduce_max_ps(x);
}

static inline void vi_pack_store(uint32_t *p, vi x, vm m)
{
    /* Not the storing form of the instruction, which is microcode on some machines. */
    vi_store(p, _mm512_maskz_compress_epi32(m, x));
}

static inline vf vf_halving_sums(const vf x[VF_LANES])
{
    vf y[8], z[4], w[2];
    for (int i = 0; i < 4;
         i++) { /* eights: x[i] in the lower half, x[i + 4] in the upper one, and x[8 + i], x[12 + i] */
        y[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x[i], x[i + 4], 0x44), _mm512_shuffle_f32x4(x[i], x[i + 4], 0xee));
        y[4 + i] = _mm512_add_ps(_mm512_shuffle_f32x4(x[8 + i], x[12 + i], 0x44),
                                 _mm512_shuffle_f32x4(x[8 + i], x[12 + i], 0xee));
    }
    for (int i = 0; i < 4; i++) { /* fours: one quarter for each of x[i], x[4 + i], x[8 + i], x[12 + i] */
        z[i] = _mm512_add_ps(_mm512_shuffle_f32x4(y[i], y[4 + i], 0x88), _mm512_shuffle_f32x4(y[i], y[4 + i], 0xdd));
    }
    for (int i = 0; i < 2; i++) { /* twos */
        w[i] = _mm512_add_ps(_mm512_shuffle_ps(z[2 * i], z[2 * i + 1], 0x44),
                             _mm512_shuffle_ps(z[2 * i], z[2 * i + 1], 0xee));
    }
    return _mm512_add_ps(_mm512_shuffle_ps(w[0], w[1], 0x88), _mm512_shuffle_ps(w[0], w[1], 0xdd));
}

static inline vf vf_select(vm m, vf a, vf b)
{
    return _mm512_mask_blend_ps(m, b, a);
}

static inline void vf_load_pairs(const float *p, vf *even, vf *odd)
{
    const vi evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const vf a = vf_load(p);
    const vf b = vf_load(p + 16);
    *even = _mm512_permutex2var_ps(a, evens, b);
    *odd = _mm512_permutex2var_ps(a, vi_add(evens, vi_set1(1)), b);
}

static inline vf vf_load_bf16(const uint16_t *p)
{
    return vf_from_bits(vi_shl(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16));
}

static inline void vi_store_low_halves(uint16_t *p, vi x)
{
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(x));
}

static inline vi vi_load_pairs(const uint16_t *p)
{
    return _mm512_loadu_si512(p);
}

static inline void vi_store_pairs(uint16_t *p, vi x)
{
    _mm512_storeu_si512(p, x);
}

static inline vi vi_load_e2m1_pairs(const uint8_t *p, int n)
{
    static const uint32_t units[VF_LANES] = {0x3f000000, 0x3fc03f80, 0x40404000, 0x40c04080, 0xbf008000, 0xbfc0bf80,
                                             0xc040c000, 0xc0c0c080, 0x3f000000, 0x3fc03f80, 0x40404000, 0x40c04080,
                                             0xbf008000, 0xbfc0bf80, 0xc040c000, 0xc0c0c080};
    const vi unit = vi_load(units), exponent = _mm512_set1_epi16((short)(n * 128));
    const vi values = _mm512_mask_add_epi16(unit, 0xfefefefeu, unit, exponent);
    const vi bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
    return _mm512_permutexvar_epi16(vi_or(bytes, vi_shl(bytes, 12)), values); /* takes 5 bits of each half */
}

static inline vi vi_load_e4m3_pairs(const uint8_t *p, int n)
{
    /* Subnormals as if they had an exponent: the first 8 of 32. */
    static const uint32_t subnormals[VF_LANES] = {0xff000000, 0xffc0ff80, 0x00200000, 0x00600040};
    const vi codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)p));
    const vi magnitude = vi_and(codes, vi_set1(0x007f007f));
    const vi exponent = _mm512_set1_epi16((short)((n + 120) * 128));
    vi x = _mm512_slli_epi16(magnitude, 4);
    x = _mm512_mask_permutexvar_epi16(x, _mm512_cmplt_epu16_mask(magnitude, vi_set1(0x00080008)), magnitude,
                                      vi_load(subnormals));
    x = _mm512_maskz_add_epi16(_mm512_test_epi16_mask(magnitude, magnitude), x, exponent);
    x = vi_or(x, vi_and(_mm512_slli_epi16(codes, 8), vi_set1(0x80008000u)));
    return _mm512_mask_mov_epi16(x, _mm512_cmpeq_epi16_mask(magnitude, vi_set1(0x007f007f)), vi_set1(0x7fc07fc0));
}

static inline int vec_e4m3_is_normal(const uint8_t *p)
{
    const vi codes = _mm512_loadu_si512(p);
    const vi above_least = _mm512_sub_epi8(_mm512_add_epi8(codes, codes), vi_set1(0x10101010));
    return _mm512_cmpge_epu8_mask(above_least, vi_set1(0xeeeeeeeeu)) == 0;
}

static inline vi vi_load_normal_e4m3_pairs(const uint8_t *p, int n)
{
    const vi codes = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)p));
    return _mm512_add_epi16(vi_and(_mm512_slli_epi16(codes, 4), vi_set1(0x87f087f0u)),
                            _mm512_set1_epi16((short)((n + 120) * 128)));
}

#endif
