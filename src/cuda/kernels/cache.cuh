/* Entries of caches on the device: decoding packed ones to BF16, and the codes and scales of new ones. Device twins of
 * src/reference/ref_cache_decode.c and ref_cache_encode.c. */
#ifndef DSRI_CACHE_CUH
#define DSRI_CACHE_CUH

#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/scalar.cuh"
#include "ops/cache_plan.h"

enum {
    ROW_CODES = 448, /* features of an FP8 row that are codes; the others are BF16 */
    ROW_BLOCK = 64,  /* of them under one scale */
    KEY_BLOCK = 32
};

/* ---- decoding ---------------------------------------------------------------------------------------------- */

/* Two BF16 values times 2^(scale - 127), rounded once: `unit` is 2^(bias of BF16 - bias of the code) as BF16. */
static __device__ __forceinline__ uint32_t scale_pair(uint32_t pair, uint32_t unit, uint32_t scale)
{
    const uint32_t factor = scale != 0 ? scale << 7 : 0x0040u;
    return multiply_bf16_pairs(multiply_bf16_pairs(pair, unit * 0x10001u), factor * 0x10001u);
}

/* A pair of E4M3 codes in the low bytes of the halves: the code's bits are those of a BF16 value 2^-120 as large, but for
 * NaN. */
static __device__ __forceinline__ uint32_t decode_e4m3_pair(uint32_t codes, uint32_t scale, uint32_t &has_nan)
{
    const uint32_t size = (codes & 0x007f007fu) << 4;
    has_nan |= (size + 0x00100010u) & 0x08000800u;
    return scale_pair(size | (codes & 0x00800080u) << 8, 0x7b80u, scale);
}

static __device__ __forceinline__ uint32_t mark_nan_codes(uint32_t pair, uint32_t codes)
{
    const uint32_t low = (codes & 0x0000007fu) == 0x0000007fu ? 0x0000ffffu : 0;
    const uint32_t high = (codes & 0x007f0000u) == 0x007f0000u ? 0xffff0000u : 0;
    return (pair & ~(low | high)) | ((low | high) & 0x7fc07fc0u);
}

/* 8 E4M3 codes under one scale as BF16; every NaN is 7fc0. */
static __device__ __forceinline__ uint4 decode_8_e4m3(uint2 codes, uint32_t scale)
{
    const uint32_t spread[4] = {__byte_perm(codes.x, 0, 0x4140), __byte_perm(codes.x, 0, 0x4342),
                                __byte_perm(codes.y, 0, 0x4140), __byte_perm(codes.y, 0, 0x4342)};
    uint32_t pairs[4], has_nan = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        pairs[i] = decode_e4m3_pair(spread[i], scale, has_nan);
    if (has_nan != 0 || scale == 255) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            pairs[i] = scale == 255 ? 0x7fc07fc0u : mark_nan_codes(pairs[i], spread[i]);
    }
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

/* Two E2M1 codes of a byte, low nibble first. */
static __device__ __forceinline__ uint32_t decode_e2m1_pair(uint32_t byte, uint32_t scale)
{
    const uint32_t pair = (byte & 0x07u) << 6 | (byte & 0x08u) << 12 | (byte & 0x70u) << 18 | (byte & 0x80u) << 24;
    return scale == 255 ? 0x7fc07fc0u : scale_pair(pair, 0x7e80u, scale);
}

/* ---- KV rows ----------------------------------------------------------------------------------------------- */

/* How rows are read: BF16 by 16 bytes, BF16 at addresses that are multiples of 2 only, FP8. Kernels come in each form, so
 * that the ordinary one does not carry the others' instructions. */
enum row_form { ROW_WORDS, ROW_HALVES, ROW_FP8 };

static __device__ __forceinline__ row_form form_of_rows(const dsri_cache &cache)
{
    if (cache.scale_bytes != 0)
        return ROW_FP8;
    const uint64_t address = (uintptr_t)cache.pages | cache.row_stride | (cache.page_table != nullptr ? cache.page_stride : 0);
    return (address & 15) == 0 ? ROW_WORDS : ROW_HALVES;
}

/* What 8 features from f on (a multiple of 8) look like in memory; zeros if the entry has no values. */
template <row_form FORM>
static __device__ __forceinline__ uint4 load_piece(const dsri_cache_entry &entry, uint32_t f)
{
    uint4 piece = make_uint4(0, 0, 0, 0);
    if (entry.values == nullptr)
        return piece;
    if constexpr (FORM == ROW_WORDS)
        return *reinterpret_cast<const uint4 *>(entry.values + 2 * f);
    if constexpr (FORM == ROW_FP8) {
        if (f >= ROW_CODES)
            return *reinterpret_cast<const uint4 *>(entry.values + 2 * f - ROW_CODES);
        const uint2 codes = *reinterpret_cast<const uint2 *>(entry.values + f);
        return make_uint4(codes.x, codes.y, entry.scales[f / ROW_BLOCK], 0);
    }
    const uint16_t *halves = reinterpret_cast<const uint16_t *>(entry.values) + f;
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        w[i] = halves[2 * i] | (uint32_t)halves[2 * i + 1] << 16;
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* A loaded piece as BF16. */
template <row_form FORM>
static __device__ __forceinline__ uint4 decode_piece(uint4 piece, uint32_t f)
{
    if constexpr (FORM == ROW_FP8) {
        if (f < ROW_CODES)
            return decode_8_e4m3(make_uint2(piece.x, piece.y), piece.z);
    }
    return piece;
}

/* ---- encoding ---------------------------------------------------------------------------------------------- */

/* The least E8M0 byte from min_scale on whose power of two brings amax (finite) down to (1 + fraction / 2^23) * 2^exponent,
 * the format's greatest value. */
static __device__ __forceinline__ uint32_t scale_byte(float amax, uint32_t exponent, uint32_t fraction, uint32_t min_scale)
{
    const uint32_t bits = __float_as_uint(amax), above = (bits & 0x7fffffu) > fraction, biased = (bits >> 23) + above;
    const uint32_t byte = biased > exponent ? biased - exponent : 0;
    return byte > min_scale ? byte : min_scale;
}

static __device__ __forceinline__ float power_of_scale(uint32_t scale)
{
    return __uint_as_float(scale != 0 ? scale << 23 : 0x00400000u);
}

/* x / 2^(scale - 127) */
static __device__ __forceinline__ float unscaled(float x, uint32_t scale)
{
    return __fmul_rn(x, power_of_scale(254 - scale));
}

/* 0 where the code would not decode to a finite value. */
static __device__ __forceinline__ uint32_t e4m3_code(float x, uint32_t scale)
{
    float y = unscaled(x, scale);
    y = round_e4m3(y > 448.0f ? 448.0f : y < -448.0f ? -448.0f : y);
    const float a = fabsf(y);
    const uint32_t size = a < 0x1p-6f ? (uint32_t)(a * 512.0f) : (__float_as_uint(a) >> 20) - 960u;
    return f32_is_finite(__fmul_rn(y, power_of_scale(scale))) ? size | (__float_as_uint(y) >> 24 & 0x80u) : 0;
}

static __device__ __forceinline__ uint32_t e2m1_code(float x, uint32_t scale)
{
    const float y = round_e2m1(unscaled(x, scale)), a = fabsf(y);
    const float size = a < 2.0f ? a * 2.0f : a < 4.0f ? a + 2.0f : a * 0.5f + 4.0f;
    return f32_is_finite(__fmul_rn(y, power_of_scale(scale))) ? (uint32_t)size | (__float_as_uint(y) >> 28 & 0x8u) : 0;
}

/* The greatest size of a warp's values; NaN if one is not finite. */
static __device__ __forceinline__ float warp_amax(float a, float b)
{
    const bool is_good = __all_sync(0xffffffffu, f32_is_finite(a) && f32_is_finite(b));
    float amax = fmaxf(fabsf(a), fabsf(b));
    for (int offset = 16; offset > 0; offset /= 2)
        amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, offset));
    return is_good ? amax : __uint_as_float(0x7fc00000u);
}

/* Walsh-Hadamard of 128 elements: lane l holds l, l + 32, l + 64, l + 96. Strides below 32 cross lanes. */
static __device__ __forceinline__ void hadamard_128(float x[4])
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t stride = 1; stride < 32; stride *= 2)
        for (int i = 0; i < 4; i++) {
            const float other = __shfl_xor_sync(0xffffffffu, x[i], stride);
            x[i] = lane & stride ? __fadd_rn(other, -x[i]) : __fadd_rn(x[i], other);
        }
    for (int stride = 1; stride < 4; stride *= 2)
        for (int i = 0; i < 4; i++)
            if (!(i & stride)) {
                const float a = x[i], b = x[i + stride];
                x[i] = __fadd_rn(a, b);
                x[i + stride] = __fadd_rn(a, -b);
            }
    for (int i = 0; i < 4; i++)
        x[i] = __fmul_rn(x[i], 0x1.6a09e6p-4f);
}

#endif
