/* What the row-exact attention kernels share: matrices in shared memory, the softmax over parts of a query's slots, and
 * outputs. */
#ifndef DSRI_ATTENTION_ROW_CUH
#define DSRI_ATTENTION_ROW_CUH

#include "cuda/kernels/attention_common.cuh"

enum {
    PANEL_FEATURES = 64, /* a row of a matrix in shared memory: 128 bytes */
    PANEL_ROW_BYTES = 2 * PANEL_FEATURES,
    N_PANELS = DSRI_HEAD_DIM / PANEL_FEATURES
};

static __device__ __forceinline__ float exp_approximate(float x)
{
    return exp2_approximate(x * 1.4426950408889634f);
}

/* ---- rows to shared memory ---- */

/* Where piece i of 8 features of a row goes, in panels of n_bytes. */
static __device__ __forceinline__ uint32_t place_of_piece(uint32_t piece, uint32_t row, uint32_t n_bytes)
{
    return piece / 8 * n_bytes + row * PANEL_ROW_BYTES + (piece % 8 ^ row % 8) * 16;
}

/* One row of 512 values by a whole warp, or zeros. */
static __device__ __forceinline__ void bring_row(uint8_t *to, const void *from, bool is_here, uint32_t row,
                                                 uint32_t panel_bytes)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        copy_async_16(to + place_of_piece(lane + 32 * i, row, panel_bytes),
                      static_cast<const uint8_t *>(from) + (lane + 32 * i) * 16, is_here ? 16 : 0);
}

/* The value of lane `lane`. */
static __device__ __forceinline__ const uint8_t *of_lane(const uint8_t *p, uint32_t lane)
{
    return reinterpret_cast<const uint8_t *>(
        (uintptr_t)__shfl_sync(0xffffffffu, (unsigned long long)(uintptr_t)p, (int)lane));
}

/* ---- joining parts ---- */

/* Max and sum of the parts so far; starts as the sink alone. */
struct att_joined {
    float max, sum;
    bool is_bad;
};

static __device__ __forceinline__ att_joined join_sink(float sink)
{
    att_joined joined = {sink, 1.0f, !f32_is_finite(sink)};
    return joined;
}

/* Takes a part's max (a NaN where the head must be zero) and sum in; factors of the numerators so far and of the
 * part's. */
static __device__ __forceinline__ float2 join_statistics(att_joined &joined, float2 rank)
{
    joined.is_bad = joined.is_bad || rank.x != rank.x;
    const float max = fmaxf(joined.max, rank.x);
    const float2 factors = make_float2(exp_approximate(joined.max - max), exp_approximate(rank.x - max));
    joined.sum = fmaf(factors.y, rank.y, joined.sum * factors.x);
    joined.max = max;
    return factors;
}

/* ---- outputs ---- */

/* What numerators are multiplied by: a NaN, which comes out as zeros, for a bad head. */
static __device__ __forceinline__ float final_factor(const att_joined &joined)
{
    return joined.is_bad ? __uint_as_float(0x7fc00000u) : __fdividef(1.0f, joined.sum);
}

/* Two values as BF16, +0 where one is not finite. */
static __device__ __forceinline__ uint32_t finite_bf16_pair(float low, float high)
{
    const uint32_t pair = round_to_bf16_pair(low, high), size = pair & 0x7fff7fffu;
    const uint32_t is_bad = (size + 0x00800080u) & 0x80008000u;
    return is_bad == 0 ? pair : pair & ~((is_bad >> 15) * 0xffffu);
}

static __device__ __forceinline__ void write_pair(uint16_t *to, uint32_t pair)
{
    if ((uintptr_t)to % 4 == 0) {
        *reinterpret_cast<uint32_t *>(to) = pair;
    } else {
        to[0] = (uint16_t)pair;
        to[1] = (uint16_t)(pair >> 16);
    }
}

#endif
