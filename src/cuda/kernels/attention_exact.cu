/* Device-exact attention, both forms, in two launches: logits as register tiles of heads x slots with one F32 chain per
 * logit, then softmax weights and weighted sums with one chain per head and feature. */
#include "cuda/kernels/attention_common.cuh"

/* ---- logits: a block is 32 heads x 32 slots, a thread 2 heads x 4 slots ------------------------------------ */

enum { LOGIT_THREADS = 128, TILE = 32, K_STEP = 64, K_STRIDE = K_STEP + 4 }; /* padded: rows start 4 banks apart */

struct logit_shared {
    float q[2][TILE][K_STRIDE];
    float kv[2][TILE][K_STRIDE];
};

/* 8 BF16 values as they come from memory; zeros for a null row. */
static __device__ __forceinline__ uint4 load_8(const uint16_t *row, uint32_t f, bool by_words)
{
    if (row == nullptr)
        return make_uint4(0, 0, 0, 0);
    if (by_words)
        return *reinterpret_cast<const uint4 *>(row + f);
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        w[i] = row[f + 2 * i] | (uint32_t)row[f + 2 * i + 1] << 16;
    return make_uint4(w[0], w[1], w[2], w[3]);
}

static __device__ __forceinline__ bool is_finite_8(uint4 x)
{
    const uint32_t w[4] = {x.x, x.y, x.z, x.w};
    bool is_good = true;
#pragma unroll
    for (int i = 0; i < 4; i++)
        is_good = is_good && (w[i] & 0x7f80u) != 0x7f80u && (w[i] & 0x7f800000u) != 0x7f800000u;
    return is_good;
}

static __device__ __forceinline__ void widen_8(uint4 x, float *to)
{
    float4 *out = reinterpret_cast<float4 *>(to);
    out[0] = make_float4(__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u), __uint_as_float(x.y << 16),
                         __uint_as_float(x.y & 0xffff0000u));
    out[1] = make_float4(__uint_as_float(x.z << 16), __uint_as_float(x.z & 0xffff0000u), __uint_as_float(x.w << 16),
                         __uint_as_float(x.w & 0xffff0000u));
}

static __device__ __forceinline__ void multiply_step(const float (*q)[K_STRIDE], const float (*kv)[K_STRIDE], float acc[2][4])
{
#pragma unroll 4
    for (int k = 0; k < K_STEP; k += 4) {
        float4 a[2], b[4];
#pragma unroll
        for (int h = 0; h < 2; h++)
            a[h] = *reinterpret_cast<const float4 *>(&q[4 * h][k]);
#pragma unroll
        for (int s = 0; s < 4; s++)
            b[s] = *reinterpret_cast<const float4 *>(&kv[8 * s][k]);
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int s = 0; s < 4; s++) {
                acc[h][s] = __fmaf_rn(a[h].x, b[s].x, acc[h][s]);
                acc[h][s] = __fmaf_rn(a[h].y, b[s].y, acc[h][s]);
                acc[h][s] = __fmaf_rn(a[h].z, b[s].z, acc[h][s]);
                acc[h][s] = __fmaf_rn(a[h].w, b[s].w, acc[h][s]);
            }
    }
}

extern "C" __global__ void __launch_bounds__(LOGIT_THREADS) dsr_attention_logits_bf16__cuda(
    const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    __shared__ logit_shared shared;
    const attention_query at = find_query(plan, blockIdx.z, zeroed);
    const uint32_t first_slot = blockIdx.x * TILE, first_head = blockIdx.y * TILE;
    if (first_slot >= at.width)
        return;
    const int t = threadIdx.x, warp = t / 32, lane = t % 32;
    /* Thread t stages 16 values (2 x 8) of one slot and of one head per step: row t / 4, features t % 4 * 16. */
    const uint32_t slot = first_slot + t / 4, part = t % 4 * 16;
    const int32_t index = slot < at.width ? at.indices[slot] : -1;
    const bool is_selected = index >= 0 && (uint64_t)index < at.kv_len;
    bool is_bad_row = index < -1 || (index >= 0 && !is_selected), is_bad_head = false;
    const uint16_t *kv = is_selected ? at.kv + (uint64_t)index * at.kv_row_stride : nullptr;
    const uint16_t *q = at.q + (uint64_t)(first_head + t / 4) * DSRI_HEAD_DIM;
    const bool kv_by_words = (((uintptr_t)at.kv | at.kv_row_stride * 2) & 15) == 0;
    const bool q_by_words = ((uintptr_t)at.q & 15) == 0;
    float acc[2][4] = {};
    uint4 next[4];

#pragma unroll
    for (int i = 0; i < 2; i++) {
        next[i] = load_8(kv, part + 8 * i, kv_by_words);
        next[2 + i] = load_8(q, part + 8 * i, q_by_words);
    }
    for (int step = 0; step < DSRI_HEAD_DIM / K_STEP; step++) {
        const int buffer = step % 2;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            is_bad_row = is_bad_row || !is_finite_8(next[i]);
            is_bad_head = is_bad_head || !is_finite_8(next[2 + i]);
            widen_8(next[i], &shared.kv[buffer][t / 4][part + 8 * i]);
            widen_8(next[2 + i], &shared.q[buffer][t / 4][part + 8 * i]);
        }
        __syncthreads();
        if (step + 1 < DSRI_HEAD_DIM / K_STEP) {
            const uint32_t f = (uint32_t)(step + 1) * K_STEP + part;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                next[i] = load_8(kv, f + 8 * i, kv_by_words);
                next[2 + i] = load_8(q, f + 8 * i, q_by_words);
            }
        }
        /* A lane's heads are 4 apart and its slots 8 apart: lanes of a warp read neighbouring rows. */
        multiply_step(&shared.q[buffer][warp * 8 + lane / 8], &shared.kv[buffer][lane % 8], acc);
    }
    if (is_bad_row)
        at.flags->is_bad = 1;
    if (is_bad_head)
        at.flags->is_bad_head[first_head + t / 4] = 1;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const uint32_t head = first_head + warp * 8 + lane / 8 + 4 * h, to = first_slot + lane % 8 + 8 * s;
            const float logit = __fmul_rn(acc[h][s], plan.scale);
            if (to >= at.width)
                continue;
            at.logits[(uint64_t)to * plan.n_heads + head] = logit;
            if (!f32_is_finite(logit))
                at.flags->is_bad_head[head] = 1;
        }
}

/* ---- values: a block is 16 heads x 64 features ------------------------------------------------------------- */

enum { VALUE_WARPS = 4, VALUE_THREADS = 32 * (VALUE_WARPS + 1), BLOCK_HEADS = 16, BLOCK_FEATURES = 64, SLOTS = 64 };

struct value_shared {
    float weights[SLOTS][BLOCK_HEADS]; /* logits, then exp(logit - max) */
    float rows[SLOTS][BLOCK_FEATURES];
    float max[BLOCK_HEADS];            /* over all slots and the sink */
    float chunk_max[BLOCK_HEADS];
    float factors[BLOCK_HEADS];        /* chunked: exp(m_c - M) */
    float denominators[BLOCK_HEADS];
    float partial_max[VALUE_THREADS / BLOCK_HEADS][BLOCK_HEADS];
    int32_t index[SLOTS];
    int is_last;
};

static __device__ float minus_infinity()
{
    return __uint_as_float(0xff800000u);
}

/* shared.max: the sink and the logits of all selected slots. */
static __device__ void find_max(const attention_query &at, const dsri_attention_plan &plan, uint32_t first_head,
                                value_shared &shared)
{
    const uint32_t h = threadIdx.x % BLOCK_HEADS, part = threadIdx.x / BLOCK_HEADS;
    const uint32_t n_parts = VALUE_THREADS / BLOCK_HEADS;
    float max = plan.sinks[first_head + h];
    for (uint32_t slot = part; slot < at.width; slot += n_parts) {
        const float logit = at.logits[(uint64_t)slot * plan.n_heads + first_head + h];
        max = at.indices[slot] >= 0 && logit > max ? logit : max;
    }
    shared.partial_max[part][h] = max;
    __syncthreads();
    if (part == 0) {
        for (uint32_t i = 1; i < n_parts; i++)
            max = shared.partial_max[i][h] > max ? shared.partial_max[i][h] : max;
        shared.max[h] = max;
    }
    __syncthreads();
}

/* Stages the logits and the KV features of 64 slots. Slots past the width and unselected ones get index -1. */
static __device__ void stage_slots(const attention_query &at, uint32_t n_heads, uint32_t first_head, uint32_t first_feature,
                                   uint32_t first_slot, value_shared &shared)
{
    for (uint32_t i = threadIdx.x; i < SLOTS; i += VALUE_THREADS) {
        const int32_t index = first_slot + i < at.width ? at.indices[first_slot + i] : -1;
        shared.index[i] = index >= 0 && (uint64_t)index < at.kv_len ? index : -1;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < SLOTS * BLOCK_HEADS; i += VALUE_THREADS) {
        const uint32_t slot = i / BLOCK_HEADS, h = i % BLOCK_HEADS;
        shared.weights[slot][h] =
            shared.index[slot] >= 0 ? at.logits[(uint64_t)(first_slot + slot) * n_heads + first_head + h] : minus_infinity();
    }
    const bool by_words = (((uintptr_t)at.kv | at.kv_row_stride * 2) & 15) == 0;
    for (uint32_t i = threadIdx.x; i < SLOTS * BLOCK_FEATURES / 8; i += VALUE_THREADS) {
        const uint32_t slot = i / (BLOCK_FEATURES / 8), f = i % (BLOCK_FEATURES / 8) * 8;
        const int32_t index = shared.index[slot];
        const uint16_t *row = index >= 0 ? at.kv + (uint64_t)index * at.kv_row_stride : nullptr;
        widen_8(load_8(row, first_feature + f, by_words), &shared.rows[slot][f]);
    }
    __syncthreads();
}

/* Chunked form: the largest logit of the staged chunk, -inf if none is selected. */
static __device__ void find_chunk_max(value_shared &shared)
{
    const uint32_t lane = threadIdx.x % 32, h = lane % BLOCK_HEADS;
    if (threadIdx.x / 32 == VALUE_WARPS) {
        float max = minus_infinity();
        for (uint32_t slot = lane / BLOCK_HEADS; slot < SLOTS; slot += 2)
            max = shared.weights[slot][h] > max ? shared.weights[slot][h] : max;
        const float other = __shfl_xor_sync(0xffffffffu, max, BLOCK_HEADS);
        max = other > max ? other : max;
        shared.chunk_max[h] = max;
        shared.factors[h] = softmax_exp(__fadd_rn(max, -shared.max[h]));
    }
    __syncthreads();
}

static __device__ void exponentiate(const float *max, value_shared &shared)
{
    for (uint32_t i = threadIdx.x; i < SLOTS * BLOCK_HEADS; i += VALUE_THREADS) {
        const uint32_t slot = i / BLOCK_HEADS, h = i % BLOCK_HEADS;
        if (shared.index[slot] >= 0)
            shared.weights[slot][h] = softmax_exp(__fadd_rn(shared.weights[slot][h], -max[h]));
    }
    __syncthreads();
}

static __device__ __forceinline__ void add_rows(const value_shared &shared, uint32_t h, uint32_t f, float acc[2][4])
{
#pragma unroll 8
    for (int slot = 0; slot < SLOTS; slot++) {
        if (shared.index[slot] < 0)
            continue;
        const float2 w = *reinterpret_cast<const float2 *>(&shared.weights[slot][h]);
        const float4 v = *reinterpret_cast<const float4 *>(&shared.rows[slot][f]);
        acc[0][0] = __fmaf_rn(w.x, v.x, acc[0][0]);
        acc[0][1] = __fmaf_rn(w.x, v.y, acc[0][1]);
        acc[0][2] = __fmaf_rn(w.x, v.z, acc[0][2]);
        acc[0][3] = __fmaf_rn(w.x, v.w, acc[0][3]);
        acc[1][0] = __fmaf_rn(w.y, v.x, acc[1][0]);
        acc[1][1] = __fmaf_rn(w.y, v.y, acc[1][1]);
        acc[1][2] = __fmaf_rn(w.y, v.z, acc[1][2]);
        acc[1][3] = __fmaf_rn(w.y, v.w, acc[1][3]);
    }
}

/* One chain on from `numerators`, or a chain of the chunk's own that is then scaled and added. */
static __device__ __forceinline__ void add_values(const value_shared &shared, uint32_t h, uint32_t f, bool chunked,
                                                  float numerators[2][4])
{
    float sums[2][4];
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            sums[i][j] = chunked ? 0.0f : numerators[i][j];
    add_rows(shared, h, f, sums);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            numerators[i][j] = chunked ? __fmaf_rn(shared.factors[h + i], sums[i][j], numerators[i][j]) : sums[i][j];
}

static __device__ __forceinline__ float add_weights(const value_shared &shared, uint32_t h, bool chunked, float denominator)
{
    float sum = chunked ? 0.0f : denominator;
#pragma unroll 8
    for (int slot = 0; slot < SLOTS; slot++)
        sum = shared.index[slot] >= 0 ? __fadd_rn(sum, shared.weights[slot][h]) : sum;
    return chunked ? __fmaf_rn(shared.factors[h], sum, denominator) : sum;
}

/* The last block of a query to get here clears its flags for the next command. */
static __device__ void release_flags(const attention_query &at, uint32_t n_heads, value_shared &shared)
{
    __syncthreads();
    if (threadIdx.x == 0)
        shared.is_last = atomicAdd(&at.flags->n_done, 1u) == gridDim.x * gridDim.y - 1;
    __syncthreads();
    if (!shared.is_last)
        return;
    for (uint32_t h = threadIdx.x; h < n_heads; h += VALUE_THREADS)
        at.flags->is_bad_head[h] = 0;
    if (threadIdx.x == 0) {
        at.flags->is_bad = 0;
        at.flags->n_done = 0;
    }
}

extern "C" __global__ void __launch_bounds__(VALUE_THREADS) dsr_attention_values_bf16__cuda(
    const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    __shared__ value_shared shared;
    const attention_query at = find_query(plan, blockIdx.z, zeroed);
    const uint32_t first_feature = blockIdx.x * BLOCK_FEATURES, first_head = blockIdx.y * BLOCK_HEADS;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool is_denominator_warp = warp == VALUE_WARPS;
    /* A warp is 8 heads x 32 features, a lane 2 heads x 4 features. */
    const uint32_t h = is_denominator_warp ? lane % BLOCK_HEADS : warp / 2 * 8 + lane / 8 * 2;
    const uint32_t f = warp % 2 * 32 + lane % 8 * 4;
    float numerators[2][4] = {}, denominator = 0.0f;

    find_max(at, plan, first_head, shared);
    if (is_denominator_warp)
        denominator = softmax_exp(__fadd_rn(plan.sinks[first_head + h], -shared.max[h]));
    for (uint32_t first_slot = 0; first_slot < at.width; first_slot += SLOTS) {
        stage_slots(at, plan.n_heads, first_head, first_feature, first_slot, shared);
        if (plan.chunked)
            find_chunk_max(shared);
        exponentiate(plan.chunked ? shared.chunk_max : shared.max, shared);
        const bool is_empty = !__syncthreads_or(threadIdx.x < SLOTS && shared.index[threadIdx.x] >= 0);
        if (is_empty)
            continue;
        if (is_denominator_warp)
            denominator = add_weights(shared, h, plan.chunked, denominator);
        else
            add_values(shared, h, f, plan.chunked, numerators);
        __syncthreads();
    }
    if (is_denominator_warp && lane < BLOCK_HEADS)
        shared.denominators[h] = denominator;
    __syncthreads();
    if (!is_denominator_warp)
        for (int i = 0; i < 2; i++) {
            const uint32_t head = first_head + h + i;
            const bool is_zero = at.flags->is_bad || at.flags->is_bad_head[head] || !f32_is_finite(plan.sinks[head]);
            uint16_t *output = at.output + (uint64_t)head * DSRI_HEAD_DIM + first_feature + f;
            for (int j = 0; j < 4; j++)
                output[j] = is_zero ? 0 : f32_to_finite_bf16(__fdiv_rn(numerators[i][j], shared.denominators[h + i]));
        }
    release_flags(at, plan.n_heads, shared);
}
