/* Row-exact attention on tensor cores, one launch. A cluster of 8 blocks takes 32 heads of a query; each block takes an eighth
 * of the slots (a multiple of 16, a function of the width alone), gathers their KV rows straight into shared memory, and the
 * blocks' softmax parts are joined in rank order through distributed shared memory. Both forms of attention come out alike. */
#include "cuda/kernels/attention_common.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 /* clusters */

enum {
    ATT_THREADS = 256,
    ATT_HEADS = 32,    /* of a cluster */
    ATT_RANKS = 8,     /* blocks of a cluster */
    ATT_SLOTS = 80,    /* of a tile */
    KV_STRIDE = 1040,  /* bytes between rows in shared memory: 16-byte pieces of 8 rows hit all banks once */
    P_STRIDE = 176,
    O_STRIDE = 516     /* floats */
};

struct att_shared {
    union {
        uint8_t kv[ATT_SLOTS * KV_STRIDE];
        float numerators[ATT_HEADS * O_STRIDE]; /* after the last tile, scaled to the common maximum */
    };
    uint8_t p[ATT_HEADS * P_STRIDE]; /* BF16 [heads][slots] */
    float max[ATT_HEADS];            /* of this block's slots so far */
    float sum[ATT_HEADS];
    float scale[ATT_HEADS];          /* exp(old max - new max) of a tile; in the end exp(max - M) */
    float denominator[ATT_HEADS];
    float4 partial[4][5][32];        /* logits of the second half of the features: [warp][8 slots][lane] */
    float half_max[2][ATT_HEADS];
    float half_sum[2][ATT_HEADS];
    int32_t index[ATT_SLOTS];        /* KV row of a slot, -1 for none */
    uint32_t is_bad_head[ATT_HEADS];
    uint32_t is_bad;
};

/* Gathers a tile's KV rows; rows of slots that select nothing become zeros. */
template <bool WORDS>
static __device__ __forceinline__ void gather_tile(const attention_query &at, uint32_t first_slot, uint32_t end_slot,
                                                   att_shared &shared)
{
    for (uint32_t i = threadIdx.x; i < ATT_SLOTS; i += ATT_THREADS) {
        const uint32_t slot = first_slot + i;
        const int32_t index = slot < end_slot ? at.indices[slot] : -1;
        const bool is_selected = index >= 0 && (uint64_t)index < at.kv_len;
        if (index < -1 || (index >= 0 && !is_selected))
            shared.is_bad = 1;
        shared.index[i] = is_selected ? index : -1;
    }
    __syncthreads();
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < ATT_SLOTS * (DSRI_HEAD_DIM / 8); i += ATT_THREADS) {
        const uint32_t slot = i / (DSRI_HEAD_DIM / 8), piece = i % (DSRI_HEAD_DIM / 8);
        const int32_t index = shared.index[slot];
        uint8_t *to = shared.kv + slot * KV_STRIDE + piece * 16;
        const uint16_t *row = at.kv + (uint64_t)(index < 0 ? 0 : index) * at.kv_row_stride;
        if (WORDS)
            copy_async_16(to, row + piece * 8, index < 0 ? 0 : 16);
        else
            *reinterpret_cast<uint4 *>(to) = load_8<false>(index < 0 ? nullptr : row, piece * 8);
    }
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    bool is_bad = false;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < ATT_SLOTS * (DSRI_HEAD_DIM / 8); i += ATT_THREADS)
        is_bad = is_bad || !is_finite_8(*reinterpret_cast<const uint4 *>(
                               shared.kv + i / (DSRI_HEAD_DIM / 8) * KV_STRIDE + i % (DSRI_HEAD_DIM / 8) * 16));
    if (is_bad)
        shared.is_bad = 1;
}

template <bool WORDS>
static __device__ __forceinline__ uint32_t load_pair(const uint16_t *p)
{
    return WORDS ? *reinterpret_cast<const uint32_t *>(p) : p[0] | (uint32_t)p[1] << 16;
}

static __device__ __forceinline__ bool is_finite_pair(uint32_t x)
{
    return (x & 0x7f80u) != 0x7f80u && (x & 0x7f800000u) != 0x7f800000u;
}

/* Fragments of 32 features of a lane's two heads. */
template <bool WORDS>
static __device__ __forceinline__ void load_query_block(const uint16_t *low, const uint16_t *high, int block, uint32_t q[2][4])
{
#pragma unroll
    for (int step = 0; step < 2; step++) {
        const int f = 32 * block + 16 * step;
        q[step][0] = load_pair<WORDS>(low + f);
        q[step][1] = load_pair<WORDS>(high + f);
        q[step][2] = load_pair<WORDS>(low + f + 8);
        q[step][3] = load_pair<WORDS>(high + f + 8);
    }
}

/* Where a warp works: 16 heads, 40 slots and 256 features of the logits; 16 heads and 128 features of the values. */
struct att_warp {
    uint32_t head_half, slot_half, feature_half, feature_quarter;
};

/* Half of the features of the logits of a warp's heads and slots: logits[n][i] is head lane / 4 + i / 2 * 8, slot
 * 8 n + lane % 4 * 2 + i % 2. */
template <bool WORDS>
static __device__ __forceinline__ void half_logits(const attention_query &at, uint32_t first_head, const att_warp &warp,
                                                   att_shared &shared, float logits[5][4])
{
    enum { BLOCKS = DSRI_HEAD_DIM / 32 / 2 };
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, first = warp.feature_half * 256;
    const uint16_t *low = at.q + (uint64_t)(first_head + warp.head_half * 16 + g) * DSRI_HEAD_DIM + first + 2 * t;
    const uint16_t *high = low + 8 * DSRI_HEAD_DIM;
    const uint32_t rows = shared_address(shared.kv) + (warp.slot_half * 40 + lane % 8) * KV_STRIDE + lane / 8 * 16 + 2 * first;
    bool is_good_low = true, is_good_high = true;
    uint32_t q[2][2][4]; /* two blocks of 32 features ahead */
#pragma unroll
    for (int n = 0; n < 5; n++)
        logits[n][0] = logits[n][1] = logits[n][2] = logits[n][3] = 0.0f;
    load_query_block<WORDS>(low, high, 0, q[0]);
    load_query_block<WORDS>(low, high, 1, q[1]);
#pragma unroll 2
    for (int b = 0; b < BLOCKS; b++) {
        uint32_t now[2][4];
#pragma unroll
        for (int i = 0; i < 8; i++)
            now[i / 4][i % 4] = q[b % 2][i / 4][i % 4];
        load_query_block<WORDS>(low, high, b + 2 < BLOCKS ? b + 2 : b, q[b % 2]);
#pragma unroll
        for (int step = 0; step < 2; step++) {
            is_good_low = is_good_low && is_finite_pair(now[step][0]) && is_finite_pair(now[step][2]);
            is_good_high = is_good_high && is_finite_pair(now[step][1]) && is_finite_pair(now[step][3]);
        }
#pragma unroll
        for (int n = 0; n < 5; n++) {
            uint32_t k[4];
            load_matrices(rows + 8 * n * KV_STRIDE + 64 * b, k);
            multiply_add(logits[n], now[0], k[0], k[1]);
            multiply_add(logits[n], now[1], k[2], k[3]);
        }
    }
    if (!is_good_low)
        shared.is_bad_head[warp.head_half * 16 + g] = 1;
    if (!is_good_high)
        shared.is_bad_head[warp.head_half * 16 + g + 8] = 1;
}

/* Joins the halves: the warps of the first features end with the whole logits. */
static __device__ __forceinline__ void join_halves(const att_warp &warp, att_shared &shared, float logits[5][4])
{
    const uint32_t lane = threadIdx.x % 32, pair = warp.head_half + 2 * warp.slot_half;
    if (warp.feature_half == 1)
#pragma unroll
        for (int n = 0; n < 5; n++)
            shared.partial[pair][n][lane] = make_float4(logits[n][0], logits[n][1], logits[n][2], logits[n][3]);
    __syncthreads();
    if (warp.feature_half == 0)
#pragma unroll
        for (int n = 0; n < 5; n++) {
            const float4 other = shared.partial[pair][n][lane];
            logits[n][0] += other.x;
            logits[n][1] += other.y;
            logits[n][2] += other.z;
            logits[n][3] += other.w;
        }
}

/* Scales and masks a warp's logits; max over its slots, for its lanes' two heads. */
static __device__ __forceinline__ void mask_logits(float scale, const att_warp &warp, att_shared &shared, float logits[5][4])
{
    const uint32_t lane = threadIdx.x % 32, t = lane % 4, head = warp.head_half * 16 + lane / 4;
    const float nothing = __uint_as_float(0xff800000u);
    float max[2] = {nothing, nothing};
#pragma unroll
    for (int n = 0; n < 5; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const bool is_selected = shared.index[warp.slot_half * 40 + 8 * n + 2 * t + i % 2] >= 0;
            logits[n][i] *= scale;
            if (is_selected && !f32_is_finite(logits[n][i]))
                shared.is_bad_head[head + i / 2 * 8] = 1;
            logits[n][i] = is_selected ? logits[n][i] : nothing;
            max[i / 2] = fmaxf(max[i / 2], logits[n][i]);
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        max[r] = fmaxf(max[r], __shfl_xor_sync(0xffffffffu, max[r], 1));
        max[r] = fmaxf(max[r], __shfl_xor_sync(0xffffffffu, max[r], 2));
        if (t == 0)
            shared.half_max[warp.slot_half][head + 8 * r] = max[r];
    }
}

/* Weights of a warp's logits as BF16 to shared.p, and their sums. */
static __device__ __forceinline__ void weigh_logits(const att_warp &warp, att_shared &shared, const float logits[5][4])
{
    const uint32_t lane = threadIdx.x % 32, t = lane % 4, head = warp.head_half * 16 + lane / 4;
    const float nothing = __uint_as_float(0xff800000u);
    float max[2], sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        max[r] = fmaxf(shared.half_max[0][head + 8 * r], shared.half_max[1][head + 8 * r]);
        max[r] = fmaxf(max[r], shared.max[head + 8 * r]);
    }
#pragma unroll
    for (int n = 0; n < 5; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t pair = 0;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float l = logits[n][2 * r + i];
                const uint16_t w = l == nothing ? 0 : f32_to_bf16(__expf(l - max[r]));
                sum[r] += bf16_to_f32(w);
                pair |= (uint32_t)w << (16 * i);
            }
            *reinterpret_cast<uint32_t *>(shared.p + (head + 8 * r) * P_STRIDE +
                                          (warp.slot_half * 40 + 8 * n + 2 * t) * 2) = pair;
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
        if (t == 0)
            shared.half_sum[warp.slot_half][head + 8 * r] = sum[r];
    }
}

/* Turns a tile's logits into BF16 weights in shared.p and brings max, sum and scale up to date. */
static __device__ __forceinline__ void tile_softmax(float scale, const att_warp &warp, att_shared &shared, float logits[5][4])
{
    join_halves(warp, shared, logits);
    if (warp.feature_half == 0)
        mask_logits(scale, warp, shared, logits);
    __syncthreads();
    if (warp.feature_half == 0)
        weigh_logits(warp, shared, logits);
    __syncthreads();
    if (threadIdx.x < ATT_HEADS) {
        const uint32_t h = threadIdx.x;
        const float old = shared.max[h], now = fmaxf(fmaxf(shared.half_max[0][h], shared.half_max[1][h]), old);
        const float factor = old == __uint_as_float(0xff800000u) ? 0.0f : __expf(old - now);
        shared.scale[h] = factor;
        shared.max[h] = now;
        shared.sum[h] = shared.sum[h] * factor + (shared.half_sum[0][h] + shared.half_sum[1][h]);
    }
    __syncthreads();
}

/* values[n][i]: head lane / 4 + i / 2 * 8, feature 8 n + lane % 4 * 2 + i % 2 of this warp's 128. */
static __device__ __forceinline__ void tile_values(const att_warp &warp, const att_shared &shared, float values[16][4])
{
    const uint32_t lane = threadIdx.x % 32, row = (lane / 8 & 1) * 8 + lane % 8, column = lane / 16 * 8;
    const float low = shared.scale[warp.head_half * 16 + lane / 4], high = shared.scale[warp.head_half * 16 + lane / 4 + 8];
    const uint32_t p = shared_address(shared.p) + (warp.head_half * 16 + row) * P_STRIDE + column * 2;
    const uint32_t kv = shared_address(shared.kv) + row * KV_STRIDE + (warp.feature_quarter * 128 + column) * 2;
#pragma unroll
    for (int n = 0; n < 16; n++) {
        values[n][0] *= low;
        values[n][1] *= low;
        values[n][2] *= high;
        values[n][3] *= high;
    }
#pragma unroll 1
    for (int step = 0; step < ATT_SLOTS / 16; step++) {
        uint32_t w[4];
        load_matrices(p + step * 32, w);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            uint32_t v[4];
            load_matrices_transposed(kv + step * 16 * KV_STRIDE + n * 32, v);
            multiply_add(values[2 * n], w, v[0], v[1]);
            multiply_add(values[2 * n + 1], w, v[2], v[3]);
        }
    }
}

/* shared.scale and shared.denominator from all ranks' parts; a head that must be zero gets a NaN denominator. */
static __device__ __forceinline__ void join_statistics(const dsri_attention_plan &plan, uint32_t first_head, att_shared &shared)
{
    cluster_barrier();
    if (threadIdx.x < ATT_HEADS) {
        const uint32_t h = threadIdx.x;
        const float sink = plan.sinks[first_head + h];
        float max = sink, sums[ATT_RANKS], maxima[ATT_RANKS];
        uint32_t is_bad = !f32_is_finite(sink);
#pragma unroll
        for (int r = 0; r < ATT_RANKS; r++) {
            maxima[r] = peer_float(&shared.max[h], r);
            sums[r] = peer_float(&shared.sum[h], r);
            is_bad |= peer_word(&shared.is_bad, r) | peer_word(&shared.is_bad_head[h], r);
            max = fmaxf(max, maxima[r]);
        }
        float denominator = __expf(sink - max);
#pragma unroll
        for (int r = 0; r < ATT_RANKS; r++)
            denominator = fmaf(__expf(maxima[r] - max), sums[r], denominator);
        shared.denominator[h] = is_bad ? __uint_as_float(0x7fc00000u) : denominator;
        shared.scale[h] = __expf(shared.max[h] - max);
    }
    __syncthreads();
}

static __device__ __forceinline__ void write_outputs(const attention_query &at, uint32_t first_head, const att_warp &warp,
                                                     const float values[16][4], att_shared &shared)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, rank = blockIdx.x;
    const float low = shared.scale[warp.head_half * 16 + g], high = shared.scale[warp.head_half * 16 + g + 8];
    float *to = shared.numerators + (warp.head_half * 16 + g) * O_STRIDE + warp.feature_quarter * 128 + 2 * t;
#pragma unroll
    for (int n = 0; n < 16; n++) {
        *reinterpret_cast<float2 *>(to + 8 * n) = make_float2(values[n][0] * low, values[n][1] * low);
        *reinterpret_cast<float2 *>(to + 8 * O_STRIDE + 8 * n) = make_float2(values[n][2] * high, values[n][3] * high);
    }
    cluster_barrier();
    /* This block joins 64 features of all heads. */
#pragma unroll
    for (uint32_t i = threadIdx.x; i < ATT_HEADS * 16; i += ATT_THREADS) {
        const uint32_t h = i / 16, f = rank * 64 + i % 16 * 4;
        float4 parts[ATT_RANKS], sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int r = 0; r < ATT_RANKS; r++)
            parts[r] = peer_float4(shared.numerators + h * O_STRIDE + f, r);
#pragma unroll
        for (int r = 0; r < ATT_RANKS; r++) {
            sum.x += parts[r].x;
            sum.y += parts[r].y;
            sum.z += parts[r].z;
            sum.w += parts[r].w;
        }
        const float denominator = shared.denominator[h], all[4] = {sum.x, sum.y, sum.z, sum.w};
        uint16_t *output = at.output + (uint64_t)(first_head + h) * DSRI_HEAD_DIM + f;
#pragma unroll
        for (int j = 0; j < 4; j++)
            output[j] = f32_to_finite_bf16(all[j] / denominator);
    }
    cluster_barrier();
}

template <bool WORDS>
static __device__ __forceinline__ void attend(const dsri_attention_plan &plan, const attention_query &at, att_shared &shared)
{
    const uint32_t first_head = blockIdx.y * ATT_HEADS, w = threadIdx.x / 32;
    const att_warp warp = {w % 2, w / 2 % 2, w / 4, w / 2};
    const uint32_t slots = ((at.width + ATT_RANKS - 1) / ATT_RANKS + 15) / 16 * 16;
    const uint32_t first_slot = blockIdx.x * slots;
    const uint32_t end_slot = first_slot + slots < at.width ? first_slot + slots : at.width;
    float values[16][4];
#pragma unroll
    for (int n = 0; n < 16; n++)
        values[n][0] = values[n][1] = values[n][2] = values[n][3] = 0.0f;
    for (uint32_t slot = first_slot; slot < end_slot; slot += ATT_SLOTS) {
        float logits[5][4];
        gather_tile<WORDS>(at, slot, end_slot, shared);
        half_logits<WORDS>(at, first_head, warp, shared, logits);
        tile_softmax(plan.scale, warp, shared, logits);
        tile_values(warp, shared, values);
        __syncthreads();
    }
    join_statistics(plan, first_head, shared);
    write_outputs(at, first_head, warp, values, shared);
}

extern "C" __global__ void __cluster_dims__(ATT_RANKS, 1, 1) __launch_bounds__(ATT_THREADS, 2)
    dsr_attention_row_bf16__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    extern __shared__ uint4 shared_memory[];
    att_shared &shared = *reinterpret_cast<att_shared *>(shared_memory);
    const attention_query at = find_query(plan, blockIdx.z, zeroed);
    if (threadIdx.x < ATT_HEADS) {
        shared.max[threadIdx.x] = __uint_as_float(0xff800000u);
        shared.sum[threadIdx.x] = 0.0f;
        shared.is_bad_head[threadIdx.x] = 0;
    }
    if (threadIdx.x == 0)
        shared.is_bad = 0;
    __syncthreads();
    if (is_word_aligned(at.kv, at.kv_row_stride) && is_word_aligned(at.q, 0))
        attend<true>(plan, at, shared);
    else
        attend<false>(plan, at, shared);
}

#endif
