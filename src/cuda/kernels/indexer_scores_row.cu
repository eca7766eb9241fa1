/* Row-exact index scores on tensor cores (mma.sync, BF16 in, F32 out). Keys stream from memory straight into fragments, the
 * queries stay in registers, scores are summed over heads in registers and lanes.
 *
 * The order of features in a dot product is free here, so a lane's fragment is 16 consecutive bytes of a key: word i of lane
 * t's 16 bytes of block b stands for feature pair (b, t, i), for keys and queries alike. A row is cut into at most 128 blocks
 * of keys, whatever the other rows are. */
#include "cuda/kernels/indexer_common.cuh"

enum { ROW_WARPS = 8, ROW_THREADS = 32 * ROW_WARPS, TILE_KEYS_ROW = 16, FEATURE_BLOCKS = DSRI_INDEX_DIM / 32 };

/* Two rows of 16 keys' fragments: this lane's keys lane / 4 and lane / 4 + 8. */
struct key_fragments {
    uint4 low[FEATURE_BLOCKS];
    uint4 high[FEATURE_BLOCKS];
};

template <bool WORDS>
static __device__ __forceinline__ uint4 load_key_block(const indexer_query &at, uint64_t key, int block)
{
    const uint16_t *row = at.keys + key * at.key_row_stride;
    return load_8<WORDS>(key < at.n_seen ? row : nullptr, 32 * block + threadIdx.x % 4 * 8);
}

/* One tile's products with NTILES * 8 heads; each block of fragments is replaced by the next tile's once it is used. */
template <int NTILES, bool WORDS>
static __device__ __forceinline__ void multiply_tile(const indexer_query &at, const uint4 q[FEATURE_BLOCKS][NTILES],
                                                     key_fragments &keys, uint64_t next_key,
                                                     float dots[NTILES][4])
{
#pragma unroll
    for (int n = 0; n < NTILES; n++)
        dots[n][0] = dots[n][1] = dots[n][2] = dots[n][3] = 0.0f;
#pragma unroll
    for (int b = 0; b < FEATURE_BLOCKS; b++) {
        const uint4 low = keys.low[b], high = keys.high[b];
#pragma unroll
        for (int n = 0; n < NTILES; n++) {
            const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
            multiply_add(dots[n], first, q[b][n].x, q[b][n].y);
            multiply_add(dots[n], second, q[b][n].z, q[b][n].w);
        }
        keys.low[b] = load_key_block<WORDS>(at, next_key, b);
        keys.high[b] = load_key_block<WORDS>(at, next_key + 8, b);
    }
}

/* Weighted sums of a lane's heads for its two keys, then over the four lanes that share them; NaN if a dot is not finite. */
template <int NTILES>
static __device__ __forceinline__ void sum_tile(const float dots[NTILES][4], const float weights[NTILES][2], float sums[2])
{
    float poison[2] = {0.0f, 0.0f};
    sums[0] = sums[1] = 0.0f;
#pragma unroll
    for (int n = 0; n < NTILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sums[i / 2] = __fmaf_rn(fmaxf(dots[n][i], 0.0f), weights[n][i % 2], sums[i / 2]);
            poison[i / 2] = __fmaf_rn(dots[n][i], 0.0f, poison[i / 2]);
        }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        sums[k] = __fadd_rn(sums[k], poison[k]);
        sums[k] = __fadd_rn(sums[k], __shfl_xor_sync(0xffffffffu, sums[k], 1));
        sums[k] = __fadd_rn(sums[k], __shfl_xor_sync(0xffffffffu, sums[k], 2));
    }
}

/* Keys [first, end) against heads first_head... of the query. PART: 0 all heads at once; 1 leaves partial sums in the scores;
 * 2 adds to them. */
template <int NTILES, int PART, bool WORDS>
static __device__ __forceinline__ void score_keys(const indexer_query &at, uint64_t first, uint64_t end, int first_head)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
    uint64_t key = first + warp * TILE_KEYS_ROW + lane / 4;
    key_fragments keys;
    uint4 q[FEATURE_BLOCKS][NTILES];
    float weights[NTILES][2];
#pragma unroll
    for (int b = 0; b < FEATURE_BLOCKS; b++) {
        keys.low[b] = load_key_block<WORDS>(at, key, b);
        keys.high[b] = load_key_block<WORDS>(at, key + 8, b);
    }
#pragma unroll
    for (int n = 0; n < NTILES; n++) {
        const uint16_t *head = at.q + (uint64_t)(first_head + 8 * n + lane / 4) * DSRI_INDEX_DIM;
#pragma unroll
        for (int b = 0; b < FEATURE_BLOCKS; b++)
            q[b][n] = load_8<WORDS>(head, 32 * b + t * 8);
        weights[n][0] = at.weights[first_head + 8 * n + 2 * t];
        weights[n][1] = at.weights[first_head + 8 * n + 2 * t + 1];
    }
    for (; key - lane / 4 < end; key += ROW_WARPS * TILE_KEYS_ROW) {
        float dots[NTILES][4], sums[2];
        multiply_tile<NTILES, WORDS>(at, q, keys, key + ROW_WARPS * TILE_KEYS_ROW, dots);
        sum_tile<NTILES>(dots, weights, sums);
        /* Lane t = 0 keeps the tile's key lane / 4, lane t = 1 the one 8 further. */
        const uint64_t own = key + t * 8;
        const bool is_mine = t < 2 && own < end;
        float score = t ? sums[1] : sums[0];
        if (PART == 1) {
            if (is_mine && own < at.n_seen)
                at.scores[own] = score;
        } else {
            if (PART == 2 && is_mine && own < at.n_seen)
                score = __fadd_rn(at.scores[own], score);
            store_score(at, own, is_mine, score);
        }
    }
}

template <bool WORDS>
static __device__ __forceinline__ void score_keys_of(uint32_t n_heads, const indexer_query &at, uint64_t first, uint64_t end)
{
    if (n_heads == 32) {
        score_keys<4, 0, WORDS>(at, first, end, 0);
    } else if (n_heads == 64) {
        score_keys<8, 0, WORDS>(at, first, end, 0);
    } else {
        score_keys<8, 1, WORDS>(at, first, end, 0);
        score_keys<8, 2, WORDS>(at, first, end, 64);
    }
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS, 1) dsr_indexer_scores_row_bf16__cuda(
    const __grid_constant__ dsri_indexer_plan plan, uint8_t *zeroed)
{
    const indexer_query at = find_query(plan, blockIdx.y, zeroed);
    const uint64_t keys = dsri_indexer_block_keys(at.n_scores), first = blockIdx.x * keys;
    if (first >= at.n_scores)
        return;
    const uint64_t end = first + keys < at.n_scores ? first + keys : at.n_scores;
    if (is_word_aligned(at.keys, at.key_row_stride) && is_word_aligned(at.q, 0))
        score_keys_of<true>(plan.n_heads, at, first, end);
    else
        score_keys_of<false>(plan.n_heads, at, first, end);
}
