/* Moving BF16 values between memory, shared memory and tensor cores, for the attention and indexer kernels. */
#ifndef DSRI_TILES_CUH
#define DSRI_TILES_CUH

#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/scalar.cuh"

/* 8 BF16 values from feature f of a row on; zeros for a null row. Without WORDS only 2-byte alignment is needed: kernels come
 * in both forms, so that the ordinary one does not carry the other's instructions. */
template <bool WORDS>
static __device__ __forceinline__ uint4 load_8(const uint16_t *row, uint32_t f)
{
    uint4 x = make_uint4(0, 0, 0, 0);
    if (row == nullptr)
        return x;
    if constexpr (WORDS) {
        x = *reinterpret_cast<const uint4 *>(row + f);
    } else {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = row[f + 2 * i] | (uint32_t)row[f + 2 * i + 1] << 16;
        x = make_uint4(w[0], w[1], w[2], w[3]);
    }
    return x;
}

/* Whether rows that start at p, stride elements apart, can be read 16 bytes at a time. */
static __device__ __forceinline__ bool is_word_aligned(const void *p, uint64_t stride)
{
    return (((uintptr_t)p | stride * 2) & 15) == 0;
}

/* 8 consecutive features of one row, as F32. */
static __device__ __forceinline__ void widen_8(uint4 x, float *to)
{
    float4 *out = reinterpret_cast<float4 *>(to);
    out[0] = make_float4(__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u), __uint_as_float(x.y << 16),
                         __uint_as_float(x.y & 0xffff0000u));
    out[1] = make_float4(__uint_as_float(x.z << 16), __uint_as_float(x.z & 0xffff0000u), __uint_as_float(x.w << 16),
                         __uint_as_float(x.w & 0xffff0000u));
}

/* The same to one column of a [features][stride] array. */
static __device__ __forceinline__ void store_column(uint4 x, float *to, int stride)
{
    const uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[2 * i * stride] = __uint_as_float(w[i] << 16);
        to[(2 * i + 1) * stride] = __uint_as_float(w[i] & 0xffff0000u);
    }
}

#endif
