/* Device twins of the reference's scalar definitions: BF16, exp, E4M3, E2M1 and the fixed-point sine and cosine. Every step
 * is one IEEE operation; the files that include this are compiled without contraction and without flush to zero. */
#ifndef DSRI_SCALAR_CUH
#define DSRI_SCALAR_CUH

#include "cuda/cuda_bundle.h"
#include "ops/op_plans.h"
#include "ops/sincos_fixed.h"

#include <stdint.h>

/* Where a block is in the grid of its command, and that grid's size. */
struct grid_place {
    uint32_t x, y, z, nx, ny, nz;
};

static __device__ __forceinline__ grid_place own_place()
{
    return grid_place{blockIdx.x, blockIdx.y, blockIdx.z, gridDim.x, gridDim.y, gridDim.z};
}

static __device__ __forceinline__ float bf16_to_f32(uint16_t x)
{
    return __uint_as_float((uint32_t)x << 16);
}

static __device__ __forceinline__ uint16_t f32_to_bf16(float x)
{
    const uint32_t b = __float_as_uint(x);
    if ((b & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(b >> 16 | 0x40u);
    return (uint16_t)((b + 0x7fffu + (b >> 16 & 1u)) >> 16);
}

/* +0 where the rounded value is not finite. */
static __device__ __forceinline__ uint16_t f32_to_finite_bf16(float x)
{
    const uint16_t rounded = f32_to_bf16(x);
    return (rounded & 0x7f80u) == 0x7f80u ? 0 : rounded;
}

static __device__ __forceinline__ bool f32_is_finite(float x)
{
    return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

static __device__ __forceinline__ bool bf16_is_finite(uint16_t x)
{
    return (x & 0x7f80u) != 0x7f80u;
}

/* ref_exp: x <= 0 */
static __device__ __forceinline__ float softmax_exp(float x)
{
    const float magic = 12582912.0f;
    const float t = __fmaf_rn(x, 0x1.715476p+0f, magic);
    const float n = __fadd_rn(t, -magic);
    const float r_high = __fmaf_rn(n, -0x1.62e430p-1f, x);
    const float r_low = __fmul_rn(n, 0x1.05c610p-29f);
    const float r = __fadd_rn(r_high, r_low);
    float q = 0x1.6a23d0p-10f;
    q = __fmaf_rn(q, r, 0x1.123a20p-7f);
    q = __fmaf_rn(q, r, 0x1.5558f2p-5f);
    q = __fmaf_rn(q, r, 0x1.555492p-3f);
    q = __fmaf_rn(q, r, 0x1.fffffcp-2f);
    const float p = __fadd_rn(__fadd_rn(r_high, __fmaf_rn(__fmul_rn(r, r), q, r_low)), 1.0f);
    float y = __uint_as_float(__float_as_uint(p) + (__float_as_uint(t) << 23));
    y = x < -0x1.5d589ep+6f ? 0.0f : y;
    return x != x ? x : y;
}

static __device__ __forceinline__ float pow2_ceil(float x)
{
    return __uint_as_float((__float_as_uint(x) + 0x7fffffu) & 0x7f800000u);
}

static __device__ __forceinline__ float with_sign_of(float size, float x)
{
    return __uint_as_float((__float_as_uint(size) & 0x7fffffffu) | (__float_as_uint(x) & 0x80000000u));
}

static __device__ __forceinline__ float round_e4m3(float x)
{
    const float a = fabsf(x);
    float rounded;
    if (a < 0x1p-6f) {
        rounded = __fadd_rn(__fadd_rn(a, 0x1p14f), -0x1p14f);
    } else {
        const uint32_t b = __float_as_uint(a);
        rounded = __uint_as_float((b + 0x7ffffu + (b >> 20 & 1u)) & 0xfff00000u);
    }
    return with_sign_of(rounded, x);
}

static __device__ __forceinline__ float round_e2m1(float x)
{
    const float a = fabsf(x);
    const float rounded = a <= 0.25f   ? 0.0f
                          : a < 0.75f  ? 0.5f
                          : a <= 1.25f ? 1.0f
                          : a < 1.75f  ? 1.5f
                          : a <= 2.5f  ? 2.0f
                          : a < 3.5f   ? 3.0f
                          : a <= 5.0f  ? 4.0f
                                       : 6.0f;
    return with_sign_of(rounded, x);
}

static __device__ __forceinline__ float f32_from_e4m3(uint32_t code)
{
    const uint32_t exponent = code >> 3 & 15u, mantissa = code & 7u;
    const float size = (code & 0x7fu) == 0x7fu ? __uint_as_float(0x7fc00000u)
                       : exponent == 0         ? __fmul_rn((float)mantissa, 0x1p-9f)
                                               : __uint_as_float((exponent + 120u) << 23 | mantissa << 20);
    return code & 0x80u ? -size : size;
}

/* ---- rotations of a pair ---- */

struct rotation {
    float sine, cosine;
    bool is_finite;
};

/* Not inlined: code that a launch has not run yet is slow to come. */
static __device__ __noinline__ rotation rotation_by(uint32_t position, float frequency)
{
    const float angle = __fmul_rn((float)position, frequency);
    rotation r = {0.0f, 1.0f, f32_is_finite(angle)};
    if (r.is_finite)
        sincos_fixed(angle, &r.sine, &r.cosine);
    return r;
}

/* Features a and b of a pair, turned, as two BF16 values; zeros where anything is not finite. */
static __device__ __forceinline__ uint32_t rotate_features(float a, float b, float sine, float cosine, bool is_finite)
{
    if (!is_finite || !f32_is_finite(a) || !f32_is_finite(b))
        return 0;
    const uint32_t low = f32_to_bf16(__fmaf_rn(a, cosine, -__fmul_rn(b, sine)));
    const uint32_t high = f32_to_bf16(__fmaf_rn(a, sine, __fmul_rn(b, cosine)));
    return low | high << 16;
}

static __device__ __forceinline__ uint32_t rotate_pair(uint32_t pair, const rotation &r)
{
    return rotate_features(bf16_to_f32((uint16_t)pair), bf16_to_f32((uint16_t)(pair >> 16)), r.sine, r.cosine,
                           r.is_finite);
}

#endif
