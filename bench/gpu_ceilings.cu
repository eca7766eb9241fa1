// Kernels that do one thing as fast as the device can, for gpu_ceilings.c.
#include <stdint.h>

// Reads n pieces of 16 bytes. What is read decides whether something is written, so that no read can be left out.
extern "C" __global__ void __launch_bounds__(512) read_all(const uint4 *x, uint32_t *out, uint64_t n)
{
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    uint32_t any = 0;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += 4 * stride) {
        uint4 v[4];
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            v[k] = i + k * stride < n ? __ldcs(x + i + k * stride) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            any |= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    if (any == 0x5eed5eedu)
        *out = any;
}

// 16 chains a thread, n multiply-adds each.
extern "C" __global__ void __launch_bounds__(256) multiply_add_f32(float *out, uint64_t n)
{
    const float factor = 1.0f + 1e-7f * threadIdx.x;
    float chains[16];
    for (uint32_t c = 0; c < 16; c++)
        chains[c] = (float)c;
    for (uint64_t i = 0; i < n; i++)
#pragma unroll
        for (uint32_t c = 0; c < 16; c++)
            chains[c] = __fmaf_rn(chains[c], factor, 1e-3f);
    float sum = 0.0f;
    for (uint32_t c = 0; c < 16; c++)
        sum += chains[c];
    if (sum == 12345.0f)
        *out = sum;
}

// 8 accumulators a warp, n products of 16 x 8 x 16 each.
extern "C" __global__ void __launch_bounds__(256) multiply_bf16(float *out, uint64_t n)
{
    const uint32_t a = 0x3f803f80u + threadIdx.x, b = 0x3f813f80u;
    float d[8][4];
    for (uint32_t t = 0; t < 8; t++)
        for (uint32_t e = 0; e < 4; e++)
            d[t][e] = 0.0f;
    for (uint64_t i = 0; i < n; i++)
#pragma unroll
        for (uint32_t t = 0; t < 8; t++)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%5}, {%0,%1,%2,%3};"
                         : "+f"(d[t][0]), "+f"(d[t][1]), "+f"(d[t][2]), "+f"(d[t][3])
                         : "r"(a), "r"(b));
    float sum = 0.0f;
    for (uint32_t t = 0; t < 8; t++)
        for (uint32_t e = 0; e < 4; e++)
            sum += d[t][e];
    if (sum == 12345.0f)
        *out = sum;
}

// The same in 8-bit integers: 16 x 8 x 32.
extern "C" __global__ void __launch_bounds__(256) multiply_s8(float *out, uint64_t n)
{
    const uint32_t a = 0x01020304u + threadIdx.x, b = 0x01010101u;
    int d[8][4];
    for (uint32_t t = 0; t < 8; t++)
        for (uint32_t e = 0; e < 4; e++)
            d[t][e] = 0;
    for (uint64_t i = 0; i < n; i++)
#pragma unroll
        for (uint32_t t = 0; t < 8; t++)
            asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%5}, {%0,%1,%2,%3};"
                         : "+r"(d[t][0]), "+r"(d[t][1]), "+r"(d[t][2]), "+r"(d[t][3])
                         : "r"(a), "r"(b));
    int sum = 0;
    for (uint32_t t = 0; t < 8; t++)
        for (uint32_t e = 0; e < 4; e++)
            sum += d[t][e];
    if (sum == 12345)
        *out = (float)sum;
}
