/* Device-exact attention, both forms, in two launches: logits as register tiles of heads x slots with one F32 chain per
 * logit, then softmax weights and weighted sums with one chain per head and feature. */
#include "cuda/kernels/attention_common.cuh"

/* ---- logits: a block is 32 heads x 64 slots, a thread 4 heads x 4 slots ------------------------------------- */

enum { LOGIT_THREADS = 128, LOGIT_HEADS = 32, LOGIT_SLOTS = 64, K_STEP = 32, K_AHEAD = 4, K_STEPS = DSRI_HEAD_DIM / K_STEP };

struct alignas(16) logit_shared {
    float q[2][K_STEP][LOGIT_HEADS];
    float kv[2][K_STEP][LOGIT_SLOTS];
};

/* What a thread has on the way from memory for one step: 8 features of two parts of a slot, and of a head. */
struct logit_step {
    uint4 kv[2];
    uint4 q;
};

struct logit_source {
    const uint16_t *kv; /* null: zeros */
    const uint16_t *q;
};

template <bool WORDS>
static __device__ __forceinline__ logit_step load_step(const logit_source &source, uint32_t step)
{
    const uint32_t part = threadIdx.x / LOGIT_SLOTS * 8, q_part = threadIdx.x / LOGIT_HEADS * 8;
    logit_step loaded;
    loaded.kv[0] = load_8<WORDS>(source.kv, step * K_STEP + part);
    loaded.kv[1] = load_8<WORDS>(source.kv, step * K_STEP + 16 + part);
    loaded.q = load_8<WORDS>(source.q, step * K_STEP + q_part);
    return loaded;
}

static __device__ __forceinline__ void store_step(const logit_step &loaded, uint32_t buffer, logit_shared &shared)
{
    const uint32_t slot = threadIdx.x % LOGIT_SLOTS, part = threadIdx.x / LOGIT_SLOTS * 8;
    const uint32_t head = threadIdx.x % LOGIT_HEADS, q_part = threadIdx.x / LOGIT_HEADS * 8;
    store_column(loaded.kv[0], &shared.kv[buffer][part][slot], LOGIT_SLOTS);
    store_column(loaded.kv[1], &shared.kv[buffer][16 + part][slot], LOGIT_SLOTS);
    store_column(loaded.q, &shared.q[buffer][q_part][head], LOGIT_HEADS);
}

static __device__ __forceinline__ void multiply_step(const logit_shared &shared, uint32_t buffer, uint32_t head, uint32_t slot,
                                                     float acc[4][4])
{
#pragma unroll 8
    for (int k = 0; k < K_STEP; k++) {
        const float4 a = *reinterpret_cast<const float4 *>(&shared.q[buffer][k][head]);
        const float4 b = *reinterpret_cast<const float4 *>(&shared.kv[buffer][k][slot]);
        const float heads[4] = {a.x, a.y, a.z, a.w}, slots[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int h = 0; h < 4; h++)
#pragma unroll
            for (int s = 0; s < 4; s++)
                acc[h][s] = __fmaf_rn(heads[h], slots[s], acc[h][s]);
    }
}

template <bool WORDS>
static __device__ __forceinline__ void tile_of_logits(const dsri_attention_plan &plan, const attention_query &at,
                                                      uint32_t first_slot, uint32_t first_head, logit_shared &shared)
{
    const uint32_t t = threadIdx.x, own_slot = first_slot + t % LOGIT_SLOTS, own_head = first_head + t % LOGIT_HEADS;
    const int32_t index = own_slot < at.width ? at.indices[own_slot] : -1;
    const bool is_selected = index >= 0 && (uint64_t)index < at.kv_len;
    bool is_bad_row = index < -1 || (index >= 0 && !is_selected), is_bad_head = false;
    logit_source source;
    source.kv = is_selected ? at.kv + (uint64_t)index * at.kv_row_stride : nullptr;
    source.q = at.q + (uint64_t)own_head * DSRI_HEAD_DIM;
    const uint32_t head = t % 8 * 4, slot = t / 8 * 4;
    float acc[4][4] = {};

    logit_step ahead[K_AHEAD];
#pragma unroll
    for (int i = 0; i < K_AHEAD; i++)
        ahead[i] = load_step<WORDS>(source, i);
    for (uint32_t first = 0; first < K_STEPS; first += K_AHEAD) {
#pragma unroll
        for (int i = 0; i < K_AHEAD; i++) {
            is_bad_row = is_bad_row || !is_finite_8(ahead[i].kv[0]) || !is_finite_8(ahead[i].kv[1]);
            is_bad_head = is_bad_head || !is_finite_8(ahead[i].q);
            store_step(ahead[i], i % 2, shared);
            __syncthreads();
            if (first + i + K_AHEAD < K_STEPS)
                ahead[i] = load_step<WORDS>(source, first + i + K_AHEAD);
            multiply_step(shared, i % 2, head, slot, acc);
        }
    }
    if (is_bad_row)
        at.flags->is_bad = 1;
    if (is_bad_head)
        at.flags->is_bad_head[own_head] = 1;
#pragma unroll
    for (int s = 0; s < 4; s++) {
        if (first_slot + slot + s >= at.width)
            continue;
        float *logits = at.logits + (uint64_t)(first_slot + slot + s) * plan.n_heads + first_head + head;
#pragma unroll
        for (int h = 0; h < 4; h++) {
            logits[h] = __fmul_rn(acc[h][s], plan.scale);
            if (!f32_is_finite(logits[h]))
                at.flags->is_bad_head[first_head + head + h] = 1;
        }
    }
}

extern "C" __global__ void __launch_bounds__(LOGIT_THREADS) dsr_attention_logits_bf16__cuda(
    const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    __shared__ logit_shared shared;
    const attention_query at = find_query(plan, blockIdx.z, zeroed);
    const uint32_t first_slot = blockIdx.x * LOGIT_SLOTS, first_head = blockIdx.y * LOGIT_HEADS;
    if (first_slot >= at.width)
        return;
    if (is_word_aligned(at.kv, at.kv_row_stride) && is_word_aligned(at.q, 0))
        tile_of_logits<true>(plan, at, first_slot, first_head, shared);
    else
        tile_of_logits<false>(plan, at, first_slot, first_head, shared);
}

/* ---- values: a block is 16 heads x 64 features; four warps of 2 x 4 outputs a thread, and one for denominators -- */

enum { VALUE_WARPS = 4, VALUE_THREADS = 32 * (VALUE_WARPS + 1), BLOCK_HEADS = 16, BLOCK_FEATURES = 64, SLOTS = 64 };

struct alignas(16) value_shared {
    float weights[SLOTS][BLOCK_HEADS]; /* exp(logit - max) */
    float rows[SLOTS][BLOCK_FEATURES];
    float max[BLOCK_HEADS];            /* over all slots and the sink */
    float factors[BLOCK_HEADS];        /* chunked: exp(m_c - M) */
    float denominators[BLOCK_HEADS];
    float partial_max[VALUE_THREADS / 4][BLOCK_HEADS];
    uint32_t selected[VALUE_WARPS];    /* bits of 16 slots each */
    int is_last;
};

/* What a thread of the four warps has on the way for a tile of 64 slots: 8 logits of slot t / 2, features t % 8 * 8 of slots
 * t / 8 + 16 j, and the indices of those slots one tile further. */
struct value_tile {
    float4 logits[2];
    uint4 rows[4];
    int32_t index; /* of slot t / 2 */
};

struct value_place {
    uint32_t n_heads, first_head, first_feature;
};

static __device__ __forceinline__ float minus_infinity()
{
    return __uint_as_float(0xff800000u);
}

/* shared.max: the sink and the logits of all selected slots. Thread t takes slots t / 4 + 40 i, heads t % 4 * 4. */
static __device__ __forceinline__ void find_max(const attention_query &at, const dsri_attention_plan &plan,
                                                uint32_t first_head, value_shared &shared)
{
    enum { STRIDE = VALUE_THREADS / 4 };
    const uint32_t h = threadIdx.x % 4 * 4, part = threadIdx.x / 4;
    float max[4] = {minus_infinity(), minus_infinity(), minus_infinity(), minus_infinity()};
#pragma unroll 8
    for (uint32_t slot = part; slot < at.width; slot += STRIDE) {
        const float4 l =
            *reinterpret_cast<const float4 *>(at.logits + (uint64_t)slot * plan.n_heads + first_head + h);
        const bool is_selected = at.indices[slot] >= 0;
        max[0] = is_selected && l.x > max[0] ? l.x : max[0];
        max[1] = is_selected && l.y > max[1] ? l.y : max[1];
        max[2] = is_selected && l.z > max[2] ? l.z : max[2];
        max[3] = is_selected && l.w > max[3] ? l.w : max[3];
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        shared.partial_max[part][h + i] = max[i];
    __syncthreads();
    if (threadIdx.x < BLOCK_HEADS) {
        float all = plan.sinks[first_head + threadIdx.x];
#pragma unroll 8
        for (int i = 0; i < STRIDE; i++)
            all = shared.partial_max[i][threadIdx.x] > all ? shared.partial_max[i][threadIdx.x] : all;
        shared.max[threadIdx.x] = all;
    }
    __syncthreads();
}

static __device__ __forceinline__ int32_t usable_index(const attention_query &at, uint32_t slot)
{
    const int32_t index = slot < at.width ? at.indices[slot] : -1;
    return index >= 0 && (uint64_t)index < at.kv_len ? index : -1;
}

static __device__ __forceinline__ void load_indices(const attention_query &at, uint32_t first_slot, int32_t indices[4])
{
#pragma unroll
    for (int j = 0; j < 4; j++)
        indices[j] = usable_index(at, first_slot + threadIdx.x / 8 + 16 * j);
}

template <bool WORDS>
static __device__ __forceinline__ void load_tile(const attention_query &at, const value_place &place, uint32_t first_slot,
                                                 const int32_t indices[4], value_tile &tile)
{
    const uint32_t slot = first_slot + threadIdx.x / 2, h = place.first_head + threadIdx.x % 2 * 8;
    tile.index = usable_index(at, slot);
    tile.logits[0] = tile.logits[1] = make_float4(0, 0, 0, 0);
    if (tile.index >= 0) {
        const float4 *logits = reinterpret_cast<const float4 *>(at.logits + (uint64_t)slot * place.n_heads + h);
        tile.logits[0] = logits[0];
        tile.logits[1] = logits[1];
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint16_t *row = indices[j] >= 0 ? at.kv + (uint64_t)indices[j] * at.kv_row_stride : nullptr;
        tile.rows[j] = load_8<WORDS>(row, place.first_feature + threadIdx.x % 8 * 8);
    }
}

/* Bits 0, 2, 4, ... 30 to bits 0..15. */
static __device__ __forceinline__ uint32_t even_bits(uint32_t x)
{
    x &= 0x55555555u;
    x = (x | x >> 1) & 0x33333333u;
    x = (x | x >> 2) & 0x0f0f0f0fu;
    x = (x | x >> 4) & 0x00ff00ffu;
    return (x | x >> 8) & 0x0000ffffu;
}

/* Chunked form: turns shared.partial_max[0..3] into the chunk's maxima for the four warps that hold its logits. */
static __device__ __forceinline__ void find_chunk_max(const float logits[8], bool is_selected, float max[8],
                                                      value_shared &shared)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = threadIdx.x % 2 * 8;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        max[i] = is_selected ? logits[i] : minus_infinity();
#pragma unroll
        for (int s = 2; s < 32; s *= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, max[i], s);
            max[i] = other > max[i] ? other : max[i];
        }
        if (lane < 2)
            shared.partial_max[warp][h + i] = max[i];
    }
    named_barrier(1, 32 * VALUE_WARPS); /* the four warps alone */
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int w = 0; w < VALUE_WARPS; w++)
            max[i] = shared.partial_max[w][h + i] > max[i] ? shared.partial_max[w][h + i] : max[i];
}

static __device__ __forceinline__ void store_tile(const value_tile &tile, bool chunked, value_shared &shared)
{
    const uint32_t t = threadIdx.x, warp = t / 32, lane = t % 32, h = t % 2 * 8;
    const float logits[8] = {tile.logits[0].x, tile.logits[0].y, tile.logits[0].z, tile.logits[0].w,
                             tile.logits[1].x, tile.logits[1].y, tile.logits[1].z, tile.logits[1].w};
    const bool is_selected = tile.index >= 0;
    float max[8], weights[8];
    if (chunked) {
        find_chunk_max(logits, is_selected, max, shared);
        if (t < 2)
            for (int i = 0; i < 8; i++)
                shared.factors[h + i] = softmax_exp(__fadd_rn(max[i], -shared.max[h + i]));
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            max[i] = shared.max[h + i];
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        weights[i] = softmax_exp(__fadd_rn(logits[i], -max[i]));
    float4 *to = reinterpret_cast<float4 *>(&shared.weights[t / 2][h]);
    to[0] = make_float4(weights[0], weights[1], weights[2], weights[3]);
    to[1] = make_float4(weights[4], weights[5], weights[6], weights[7]);
    const uint32_t bits = even_bits(__ballot_sync(0xffffffffu, is_selected));
    if (lane == 0)
        shared.selected[warp] = bits;
#pragma unroll
    for (int j = 0; j < 4; j++)
        widen_8(tile.rows[j], &shared.rows[t / 8 + 16 * j][t % 8 * 8]);
}

static __device__ __forceinline__ void add_slot(const value_shared &shared, uint32_t slot, uint32_t h, uint32_t f,
                                                float acc[2][4])
{
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

/* Adds a tile's selected slots in order: one chain on from `numerators`, or a chain of the chunk's own that is then scaled
 * and added. */
static __device__ __forceinline__ void add_values(const value_shared &shared, uint64_t selected, uint32_t h, uint32_t f,
                                                  bool chunked, float numerators[2][4])
{
    float sums[2][4];
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            sums[i][j] = chunked ? 0.0f : numerators[i][j];
    if (selected == ~(uint64_t)0) {
#pragma unroll 16
        for (int slot = 0; slot < SLOTS; slot++)
            add_slot(shared, slot, h, f, sums);
    } else {
        for (uint64_t left = selected; left != 0; left &= left - 1)
            add_slot(shared, __ffsll((long long)left) - 1, h, f, sums);
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            numerators[i][j] = chunked ? __fmaf_rn(shared.factors[h + i], sums[i][j], numerators[i][j]) : sums[i][j];
}

static __device__ __forceinline__ float add_weights(const value_shared &shared, uint64_t selected, uint32_t h, bool chunked,
                                                    float denominator)
{
    float sum = chunked ? 0.0f : denominator;
    if (selected == ~(uint64_t)0) {
#pragma unroll 16
        for (int slot = 0; slot < SLOTS; slot++)
            sum = __fadd_rn(sum, shared.weights[slot][h]);
    } else {
        for (uint64_t left = selected; left != 0; left &= left - 1)
            sum = __fadd_rn(sum, shared.weights[__ffsll((long long)left) - 1][h]);
    }
    return chunked ? __fmaf_rn(shared.factors[h], sum, denominator) : sum;
}

/* The last block of a query to get here clears its flags for the next command. */
static __device__ __forceinline__ void release_flags(const attention_query &at, uint32_t n_heads, value_shared &shared)
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

template <bool WORDS>
static __device__ __forceinline__ void block_of_values(const dsri_attention_plan &plan, const attention_query &at,
                                                       value_shared &shared)
{
    const value_place place = {plan.n_heads, blockIdx.y * BLOCK_HEADS, blockIdx.x * BLOCK_FEATURES};
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool is_denominator_warp = warp == VALUE_WARPS, chunked = plan.chunked != 0;
    /* A warp is 8 heads x 32 features, a lane 2 heads x 4 features. */
    const uint32_t h = is_denominator_warp ? lane % BLOCK_HEADS : warp / 2 * 8 + lane / 8 * 2;
    const uint32_t f = warp % 2 * 32 + lane % 8 * 4;
    float numerators[2][4] = {}, denominator = 0.0f;
    int32_t indices[4];
    value_tile tile;

    find_max(at, plan, place.first_head, shared);
    if (is_denominator_warp) {
        denominator = softmax_exp(__fadd_rn(plan.sinks[place.first_head + h], -shared.max[h]));
    } else {
        load_indices(at, 0, indices);
        load_tile<WORDS>(at, place, 0, indices, tile);
        load_indices(at, SLOTS, indices);
    }
    for (uint32_t first_slot = 0; first_slot < at.width; first_slot += SLOTS) {
        if (!is_denominator_warp)
            store_tile(tile, chunked, shared);
        __syncthreads();
        if (!is_denominator_warp && first_slot + SLOTS < at.width) {
            load_tile<WORDS>(at, place, first_slot + SLOTS, indices, tile);
            load_indices(at, first_slot + 2 * SLOTS, indices);
        }
        const uint64_t selected = (uint64_t)(shared.selected[2] | shared.selected[3] << 16) << 32 |
                                  (shared.selected[0] | shared.selected[1] << 16);
        if (selected != 0) {
            if (is_denominator_warp)
                denominator = add_weights(shared, selected, h, chunked, denominator);
            else
                add_values(shared, selected, h, f, chunked, numerators);
        }
        __syncthreads();
    }
    if (is_denominator_warp && lane < BLOCK_HEADS)
        shared.denominators[h] = denominator;
    __syncthreads();
    if (!is_denominator_warp)
        for (int i = 0; i < 2; i++) {
            const uint32_t head = place.first_head + h + i;
            const bool is_zero = at.flags->is_bad || at.flags->is_bad_head[head] || !f32_is_finite(plan.sinks[head]);
            uint16_t *output = at.output + (uint64_t)head * DSRI_HEAD_DIM + place.first_feature + f;
            for (int j = 0; j < 4; j++)
                output[j] = is_zero ? 0 : f32_to_finite_bf16(__fdiv_rn(numerators[i][j], shared.denominators[h + i]));
        }
    release_flags(at, plan.n_heads, shared);
}

extern "C" __global__ void __launch_bounds__(VALUE_THREADS) dsr_attention_values_bf16__cuda(
    const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    __shared__ value_shared shared;
    const attention_query at = find_query(plan, blockIdx.z, zeroed);
    if (is_word_aligned(at.kv, at.kv_row_stride))
        block_of_values<true>(plan, at, shared);
    else
        block_of_values<false>(plan, at, shared);
}
