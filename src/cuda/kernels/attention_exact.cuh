/* What the values' kernels of device-exact attention share: softmax weights of four heads side by side, as F32. */
#ifndef DSRI_ATTENTION_EXACT_CUH
#define DSRI_ATTENTION_EXACT_CUH

#include "cuda/kernels/attention_common.cuh"

static __device__ __forceinline__ float4 minus_infinities()
{
    return make_float4(minus_infinity(), minus_infinity(), minus_infinity(), minus_infinity());
}

static __device__ __forceinline__ float4 greater(float4 a, float4 b)
{
    return make_float4(fmaxf(a.x, b.x), fmaxf(a.y, b.y), fmaxf(a.z, b.z), fmaxf(a.w, b.w));
}

/* exp(logit - max) */
static __device__ __forceinline__ float4 weights_of(float4 logits, float4 max)
{
    return make_float4(softmax_exp(__fadd_rn(logits.x, -max.x)), softmax_exp(__fadd_rn(logits.y, -max.y)),
                       softmax_exp(__fadd_rn(logits.z, -max.z)), softmax_exp(__fadd_rn(logits.w, -max.w)));
}

/* What a chunk's sums are scaled by: exp(m_c - M), or -1 where nothing of it is selected. */
static __device__ __forceinline__ float factor_of(float chunk_max, float all)
{
    return chunk_max == minus_infinity() ? -1.0f : softmax_exp(__fadd_rn(chunk_max, -all));
}

static __device__ __forceinline__ float4 factors_of(float4 chunk_max, float4 all)
{
    return make_float4(factor_of(chunk_max.x, all.x), factor_of(chunk_max.y, all.y), factor_of(chunk_max.z, all.z),
                       factor_of(chunk_max.w, all.w));
}

/* The largest logits of four heads in the 16 slots numbered `sixteen`. */
static __device__ __forceinline__ float4 slot_max_of(const attention_query &at, uint32_t n_heads, uint32_t sixteen,
                                                     uint32_t head)
{
    return sixteen * 16 < at.width ? *reinterpret_cast<const float4 *>(at.slot_max + (uint64_t)sixteen * n_heads + head)
                                   : minus_infinities();
}

/* Logits of four heads; zeros after the last slot. */
static __device__ __forceinline__ float4 logits_of(const attention_query &at, uint32_t n_heads, uint32_t slot,
                                                   uint32_t head)
{
    return slot < at.width ? *reinterpret_cast<const float4 *>(at.logits + (uint64_t)slot * n_heads + head)
                           : make_float4(0, 0, 0, 0);
}

/* max[h]: the sink and the largest logits of all 16 slots, found by N_PARTS threads a head. All threads of the block.
 */
template <int N_HEADS, int N_PARTS>
static __device__ __forceinline__ void find_max(const attention_query &at, const dsri_attention_plan &plan,
                                                uint32_t first_head, float (*partial)[N_HEADS], float *max)
{
    const uint32_t h = threadIdx.x % N_HEADS, part = threadIdx.x / N_HEADS;
    float own = minus_infinity();
#pragma unroll 8
    for (uint32_t i = part; i < (at.width + 15) / 16; i += N_PARTS)
        own = fmaxf(own, at.slot_max[(uint64_t)i * plan.n_heads + first_head + h]);
    partial[part][h] = own;
    __syncthreads();
    if (threadIdx.x < N_HEADS) {
        float all = plan.sinks[first_head + threadIdx.x];
#pragma unroll
        for (int i = 0; i < N_PARTS; i++)
            all = fmaxf(all, partial[i][threadIdx.x]);
        max[threadIdx.x] = all;
    }
    __syncthreads();
}

#endif
