/* Device-exact index scores: every dot product is one F32 chain, so this is a matrix product on the F32 pipe with tiles of
 * 4 heads x 8 keys in each thread's registers.
 *
 * Heads are dealt to threads so that the sum by halving stays local: a thread holds heads b, b + H/2, b + H/4, b + 3H/4 of
 * a quarter's head b; the remaining levels are across threads. 128 heads are two passes of 64, joined first. */
#include "cuda/kernels/indexer_common.cuh"

enum { SCORE_THREADS = 256, KEYS_PER_THREAD = 8, HEADS_PER_THREAD = 4 };

template <int HEADS>
struct score_shape {
    static constexpr int PASS = HEADS < 64 ? HEADS : 64;   /* heads of a pass */
    static constexpr int HEAD_WARPS = PASS / 32;           /* warps side by side along the heads */
    static constexpr int KEYS = 8 / HEAD_WARPS * 32;       /* keys of a block */
    static constexpr int PASSES = HEADS / PASS;
};

/* Head that stands at place p of a pass. */
template <int PASS>
static __device__ __forceinline__ int head_at(int p)
{
    const int b = p / 4, j = p % 4;
    return b + (j & 1 ? PASS / 2 : 0) + (j & 2 ? PASS / 4 : 0);
}

template <int PASS>
static __device__ void stage_queries(const indexer_query &at, int first_head, float *q)
{
    for (int i = threadIdx.x; i < PASS * DSRI_INDEX_DIM; i += SCORE_THREADS) {
        const int p = i % PASS, f = i / PASS;
        q[f * PASS + p] = bf16_to_f32(at.q[(first_head + head_at<PASS>(p)) * DSRI_INDEX_DIM + f]);
    }
}

/* keys[f][key] as F32; keys past the last one seen are zeros. A lane is a key: stores without bank conflicts. */
template <int KEYS>
static __device__ void stage_keys(const indexer_query &at, uint64_t first_key, float *keys)
{
    const bool by_words = (((uintptr_t)at.keys | at.key_row_stride * 2) & 15) == 0;
    for (int i = threadIdx.x; i < KEYS * (DSRI_INDEX_DIM / 8); i += SCORE_THREADS) {
        const int key = i % KEYS, f = i / KEYS * 8;
        uint32_t pairs[4] = {0, 0, 0, 0};
        if (first_key + key < at.n_seen) {
            const uint16_t *source = at.keys + (first_key + key) * at.key_row_stride + f;
            if (by_words) {
                const uint4 word = *reinterpret_cast<const uint4 *>(source);
                pairs[0] = word.x, pairs[1] = word.y, pairs[2] = word.z, pairs[3] = word.w;
            } else {
                for (int j = 0; j < 4; j++)
                    pairs[j] = source[2 * j] | (uint32_t)source[2 * j + 1] << 16;
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            keys[(f + 2 * j) * KEYS + key] = __uint_as_float(pairs[j] << 16);
            keys[(f + 2 * j + 1) * KEYS + key] = __uint_as_float(pairs[j] & 0xffff0000u);
        }
    }
}

/* c = relu(dot) * weight, NaN where the dot is not finite. */
static __device__ __forceinline__ float weighted(float dot, float weight)
{
    return f32_is_finite(dot) ? __fmul_rn(dot > 0.0f ? dot : 0.0f, weight) : __uint_as_float(0x7fc00000u);
}

template <int PASS, int KEYS>
static __device__ __forceinline__ void multiply(const float *q, const float *keys, float dots[HEADS_PER_THREAD][KEYS_PER_THREAD])
{
#pragma unroll
    for (int h = 0; h < HEADS_PER_THREAD; h++)
#pragma unroll
        for (int k = 0; k < KEYS_PER_THREAD; k++)
            dots[h][k] = 0.0f;
#pragma unroll 8
    for (int f = 0; f < DSRI_INDEX_DIM; f++) {
        const float4 a = *reinterpret_cast<const float4 *>(q + f * PASS);
        const float4 k0 = *reinterpret_cast<const float4 *>(keys + f * KEYS);
        const float4 k1 = *reinterpret_cast<const float4 *>(keys + f * KEYS + 16);
        const float heads[4] = {a.x, a.y, a.z, a.w};
        const float key[8] = {k0.x, k0.y, k0.z, k0.w, k1.x, k1.y, k1.z, k1.w};
#pragma unroll
        for (int h = 0; h < HEADS_PER_THREAD; h++)
#pragma unroll
            for (int k = 0; k < KEYS_PER_THREAD; k++)
                dots[h][k] = __fmaf_rn(heads[h], key[k], dots[h][k]);
    }
}

template <int HEADS>
static __device__ void score_block(const indexer_query &at, uint64_t first_key, float *shared)
{
    typedef score_shape<HEADS> shape;
    constexpr int PASS = shape::PASS, KEYS = shape::KEYS;
    float *q = shared, *keys = q + DSRI_INDEX_DIM * PASS, *partial = keys + DSRI_INDEX_DIM * KEYS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int head_warp = warp % shape::HEAD_WARPS, key_warp = warp / shape::HEAD_WARPS;
    const int group = lane % 8; /* of 4 heads */
    /* A lane's keys are 4 from key_base and 4 from key_base + 16. */
    const int key_base = key_warp * 32 + lane / 8 * 4;
    float sums[KEYS_PER_THREAD];

    stage_keys<KEYS>(at, first_key, keys);
    float c[HEADS_PER_THREAD][KEYS_PER_THREAD];
#pragma unroll
    for (int pass = 0; pass < shape::PASSES; pass++) {
        if (pass)
            __syncthreads();
        stage_queries<PASS>(at, pass * PASS, q);
        __syncthreads();
        float dots[HEADS_PER_THREAD][KEYS_PER_THREAD];
        multiply<PASS, KEYS>(q + (head_warp * 8 + group) * 4, keys + key_base, dots);
#pragma unroll
        for (int h = 0; h < HEADS_PER_THREAD; h++) {
            const float weight = at.weights[pass * PASS + head_at<PASS>((head_warp * 8 + group) * 4 + h)];
#pragma unroll
            for (int k = 0; k < KEYS_PER_THREAD; k++) {
                const float term = weighted(dots[h][k], weight);
                c[h][k] = pass ? __fadd_rn(c[h][k], term) : term;
            }
        }
    }
#pragma unroll
    for (int k = 0; k < KEYS_PER_THREAD; k++)
        sums[k] = __fadd_rn(__fadd_rn(c[0][k], c[1][k]), __fadd_rn(c[2][k], c[3][k]));
    if (shape::HEAD_WARPS == 2) {
        float *mine = partial + (key_warp * 32 + lane) * KEYS_PER_THREAD;
        if (head_warp == 1)
            for (int k = 0; k < KEYS_PER_THREAD; k++)
                mine[k] = sums[k];
        __syncthreads();
        if (head_warp == 1)
            return;
        for (int k = 0; k < KEYS_PER_THREAD; k++)
            sums[k] = __fadd_rn(sums[k], mine[k]);
    }
#pragma unroll
    for (int k = 0; k < KEYS_PER_THREAD; k++)
#pragma unroll
        for (int s = 4; s > 0; s /= 2)
            sums[k] = __fadd_rn(sums[k], __shfl_xor_sync(0xffffffffu, sums[k], s));
    /* Lane group g of 8 lanes holds the same 8 sums: lane l keeps the (l % 8)th. */
    float mine = sums[0];
#pragma unroll
    for (int k = 1; k < KEYS_PER_THREAD; k++)
        mine = group == k ? sums[k] : mine;
    store_score(at, first_key + key_base + group % 4 + group / 4 * 16, true, mine);
}

extern "C" __global__ void __launch_bounds__(SCORE_THREADS) dsr_indexer_scores_bf16__cuda(
    const __grid_constant__ dsri_indexer_plan plan, uint8_t *zeroed)
{
    extern __shared__ float score_shared[];
    const indexer_query at = find_query(plan, blockIdx.y, zeroed);
    const uint32_t keys_per_block = plan.n_heads == 32 ? score_shape<32>::KEYS : score_shape<64>::KEYS;
    const uint64_t first_key = (uint64_t)blockIdx.x * keys_per_block;
    if (first_key >= at.n_scores)
        return;
    if (first_key >= at.n_seen) { /* nothing but excluded scores to write */
        for (uint32_t i = threadIdx.x; i < keys_per_block; i += SCORE_THREADS)
            if (first_key + i < at.n_scores)
                at.scores[first_key + i] = __uint_as_float(0xff800000u);
        return;
    }
    if (plan.n_heads == 32)
        score_block<32>(at, first_key, score_shared);
    else if (plan.n_heads == 64)
        score_block<64>(at, first_key, score_shared);
    else
        score_block<128>(at, first_key, score_shared);
}
