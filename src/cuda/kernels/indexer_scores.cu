/* Device-exact index scores: every dot product is one F32 chain, so this is a matrix product on the F32 pipe with tiles of
 * 8 heads x 8 keys in each thread's registers.
 *
 * Heads are dealt to threads so that the sum by halving stays local: of a pass of 64 heads, a thread holds b, b + 32,
 * b + 16, b + 48, b + 8, b + 40, b + 24 and b + 56, and only the last levels cross threads. 128 heads are two passes, joined
 * first; 32 heads are half a pass with twice the keys. */
#include "cuda/kernels/indexer_common.cuh"

enum { SCORE_THREADS = 128, TILE_KEYS = 8, TILE_HEADS = 8 };

template <int HEADS>
struct score_shape {
    static constexpr int PASS = HEADS < 64 ? HEADS : 64;
    static constexpr int PASSES = HEADS / PASS;
    static constexpr int GROUPS = PASS / TILE_HEADS;             /* of heads: lanes of a warp along the heads */
    static constexpr int WARP_KEYS = 32 / GROUPS * TILE_KEYS;
    static constexpr int KEYS = SCORE_THREADS / 32 * WARP_KEYS;  /* of a block */
};

/* Head j of thread group b. */
template <int PASS>
static __device__ __forceinline__ int head_of(int b, int j)
{
    return b + (j & 1 ? PASS / 2 : 0) + (j & 2 ? PASS / 4 : 0) + (j & 4 ? PASS / 8 : 0);
}

/* Place of head h in a row of the staged queries: a thread's heads are two runs of 4, lanes side by side in each run. */
template <int PASS>
static __device__ __forceinline__ int place_of(int h)
{
    const int b = h % (PASS / 8), j = (h / (PASS / 2) & 1) + (h / (PASS / 4) & 1) * 2 + (h / (PASS / 8) & 1) * 4;
    return (j / 4) * (PASS / 2) + b * 4 + j % 4;
}

template <int PASS, bool WORDS>
static __device__ __forceinline__ void stage_queries(const indexer_query &at, int first_head, float *q)
{
    constexpr int N = PASS * (DSRI_INDEX_DIM / 8) / SCORE_THREADS;
    uint4 loaded[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int at_i = i * SCORE_THREADS + threadIdx.x, head = at_i % PASS, f = at_i / PASS * 8;
        loaded[i] = load_8<WORDS>(at.q + (first_head + head) * DSRI_INDEX_DIM, f);
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int at_i = i * SCORE_THREADS + threadIdx.x, head = at_i % PASS, f = at_i / PASS * 8;
        store_column(loaded[i], q + f * PASS + place_of<PASS>(head), PASS);
    }
}

/* keys[f][key] as F32; keys past the last one seen are zeros. A lane is a key: stores without bank conflicts. */
template <int KEYS, bool WORDS>
static __device__ __forceinline__ void stage_keys(const indexer_query &at, uint64_t first_key, float *keys)
{
    constexpr int N = KEYS * (DSRI_INDEX_DIM / 8) / SCORE_THREADS, BATCH = 8;
#pragma unroll 1
    for (int first = 0; first < N; first += BATCH) {
        uint4 loaded[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int at_i = (first + i) * SCORE_THREADS + threadIdx.x, key = at_i % KEYS, f = at_i / KEYS * 8;
            const uint16_t *row = at.keys + (first_key + key) * at.key_row_stride;
            loaded[i] = load_8<WORDS>(first_key + key < at.n_seen ? row : nullptr, f);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int at_i = (first + i) * SCORE_THREADS + threadIdx.x, key = at_i % KEYS, f = at_i / KEYS * 8;
            store_column(loaded[i], keys + f * KEYS + key, KEYS);
        }
    }
}

/* c = relu(dot) * weight, NaN where the dot is not finite. */
static __device__ __forceinline__ float weighted(float dot, float weight)
{
    return f32_is_finite(dot) ? __fmul_rn(dot > 0.0f ? dot : 0.0f, weight) : __uint_as_float(0x7fc00000u);
}

template <int PASS, int KEYS>
static __device__ __forceinline__ void multiply(const float *q, const float *keys, float dots[TILE_HEADS][TILE_KEYS])
{
    constexpr int HALF = 32 / (PASS / TILE_HEADS) * 4; /* a lane's second run of 4 keys */
#pragma unroll
    for (int h = 0; h < TILE_HEADS; h++)
#pragma unroll
        for (int k = 0; k < TILE_KEYS; k++)
            dots[h][k] = 0.0f;
#pragma unroll 4
    for (int f = 0; f < DSRI_INDEX_DIM; f++) {
        const float4 a = *reinterpret_cast<const float4 *>(q + f * PASS);
        const float4 b = *reinterpret_cast<const float4 *>(q + f * PASS + PASS / 2);
        const float4 c = *reinterpret_cast<const float4 *>(keys + f * KEYS);
        const float4 d = *reinterpret_cast<const float4 *>(keys + f * KEYS + HALF);
        const float heads[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        const float key[8] = {c.x, c.y, c.z, c.w, d.x, d.y, d.z, d.w};
#pragma unroll
        for (int h = 0; h < TILE_HEADS; h++)
#pragma unroll
            for (int k = 0; k < TILE_KEYS; k++)
                dots[h][k] = __fmaf_rn(heads[h], key[k], dots[h][k]);
    }
}

/* Sum over a thread's heads by halving: head j and j + 1 are PASS / 2 apart, then PASS / 4, then PASS / 8. */
static __device__ __forceinline__ float sum_heads(const float c[TILE_HEADS])
{
    const float low = __fadd_rn(__fadd_rn(c[0], c[1]), __fadd_rn(c[2], c[3]));
    const float high = __fadd_rn(__fadd_rn(c[4], c[5]), __fadd_rn(c[6], c[7]));
    return __fadd_rn(low, high);
}

template <int HEADS, bool WORDS>
static __device__ void score_block(const indexer_query &at, uint64_t first_key, float *shared)
{
    typedef score_shape<HEADS> shape;
    constexpr int PASS = shape::PASS, KEYS = shape::KEYS, GROUPS = shape::GROUPS;
    float *q = shared, *keys = q + DSRI_INDEX_DIM * PASS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, b = lane % GROUPS;
    const int key_base = warp * shape::WARP_KEYS + lane / GROUPS * 4;
    float dots[TILE_HEADS][TILE_KEYS], first_half[TILE_HEADS][TILE_KEYS];

    stage_keys<KEYS, WORDS>(at, first_key, keys);
#pragma unroll
    for (int pass = 0; pass < shape::PASSES; pass++) {
        if (pass)
            __syncthreads();
        stage_queries<PASS, WORDS>(at, pass * PASS, q);
        __syncthreads();
        multiply<PASS, KEYS>(q + b * 4, keys + key_base, dots);
#pragma unroll
        for (int h = 0; h < TILE_HEADS; h++) {
            const float weight = at.weights[pass * PASS + head_of<PASS>(b, h)];
#pragma unroll
            for (int k = 0; k < TILE_KEYS; k++) {
                dots[h][k] = weighted(dots[h][k], weight);
                if (pass)
                    dots[h][k] = __fadd_rn(first_half[h][k], dots[h][k]);
                else if (shape::PASSES > 1)
                    first_half[h][k] = dots[h][k];
            }
        }
    }
    float mine = 0.0f; /* every lane of a group ends with the same 8 sums and keeps one or two of them */
    float mine_too = 0.0f;
#pragma unroll
    for (int k = 0; k < TILE_KEYS; k++) {
        const float c[TILE_HEADS] = {dots[0][k], dots[1][k], dots[2][k], dots[3][k],
                                     dots[4][k], dots[5][k], dots[6][k], dots[7][k]};
        float sum = sum_heads(c);
#pragma unroll
        for (int s = GROUPS / 2; s > 0; s /= 2)
            sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, s));
        mine = k % GROUPS == b && k < GROUPS ? sum : mine;
        mine_too = k % GROUPS == b && k >= GROUPS ? sum : mine_too;
    }
    constexpr int HALF = 32 / GROUPS * 4;
    store_score(at, first_key + key_base + b % 4 + b / 4 * HALF, true, mine);
    if (GROUPS == 4)
        store_score(at, first_key + key_base + b + HALF, true, mine_too);
}

template <bool WORDS>
static __device__ __forceinline__ void score_block_of(uint32_t n_heads, const indexer_query &at, uint64_t first_key,
                                                      float *shared)
{
    if (n_heads == 32)
        score_block<32, WORDS>(at, first_key, shared);
    else if (n_heads == 64)
        score_block<64, WORDS>(at, first_key, shared);
    else
        score_block<128, WORDS>(at, first_key, shared);
}

extern "C" __global__ void __launch_bounds__(SCORE_THREADS) dsr_indexer_scores_bf16__cuda(
    const __grid_constant__ dsri_indexer_plan plan, uint8_t *zeroed)
{
    extern __shared__ uint4 shared_memory[];
    float *score_shared = reinterpret_cast<float *>(shared_memory);
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
    if (is_word_aligned(at.keys, at.key_row_stride) && is_word_aligned(at.q, 0))
        score_block_of<true>(plan.n_heads, at, first_key, score_shared);
    else
        score_block_of<false>(plan.n_heads, at, first_key, score_shared);
}
