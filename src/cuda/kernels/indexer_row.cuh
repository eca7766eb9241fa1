/* What the two kernels of row-exact index scores share: 16 keys of a warp against 8 * NTILES heads on tensor cores
 * (mma.sync, BF16 in, F32 out). Scores are summed over heads in registers and lanes.
 *
 * A product sums over features in any order that both operands follow: lane t of four takes words t, t + 4, ... of 16
 * bytes of keys and heads, whose four pairs of features are its parts of two steps. */
#ifndef DSRI_INDEXER_ROW_CUH
#define DSRI_INDEXER_ROW_CUH

#include "cuda/kernels/indexer_common.cuh"

enum { ROW_KEYS = 16, KEY_WORDS = DSRI_INDEX_DIM / 8, WORD_STEPS = KEY_WORDS / 4 };

/* A lane's fragments of 8 * NTILES heads, and weights of the heads that its sums are of. */
template <int NTILES> struct row_heads {
    uint4 q[WORD_STEPS][NTILES];
    float2 weights[NTILES];
};

template <int NTILES, bool WORDS>
static __device__ __forceinline__ void load_heads(const indexer_query &at, uint32_t first_head,
                                                  row_heads<NTILES> &heads)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint16_t *q = at.q + (first_head + g) * DSRI_INDEX_DIM;
    const float *weights = at.weights + first_head + 2 * t;
#pragma unroll
    for (int n = 0; n < NTILES; n++) {
        heads.weights[n] = make_float2(weights[8 * n], weights[8 * n + 1]);
#pragma unroll
        for (int s = 0; s < WORD_STEPS; s++)
            heads.q[s][n] = load_8<WORDS>(q + 8 * n * DSRI_INDEX_DIM, 8 * (4 * s + t));
    }
}

/* Dots of 16 keys. load(s, low, high) gives word 4 s + t of keys g and g + 8 for lane 4 g + t. */
template <int NTILES, typename Load>
static __device__ __forceinline__ void multiply_keys(const row_heads<NTILES> &heads, Load load, float dots[NTILES][4])
{
#pragma unroll
    for (int n = 0; n < NTILES; n++)
        dots[n][0] = dots[n][1] = dots[n][2] = dots[n][3] = 0.0f;
#pragma unroll
    for (int s = 0; s < WORD_STEPS; s++) {
        uint4 low, high;
        load(s, low, high);
        const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
        for (int n = 0; n < NTILES; n++)
            multiply_add(dots[n], first, heads.q[s][n].x, heads.q[s][n].y);
#pragma unroll
        for (int n = 0; n < NTILES; n++)
            multiply_add(dots[n], second, heads.q[s][n].z, heads.q[s][n].w);
    }
}

/* Weighted sums of a lane's heads for its two keys, then over the four lanes that share them; not finite if a dot is
 * not. d + |d| is twice relu(d), and NaN for an infinite or undefined d that relu would hide, so that a dot takes two
 * instructions. A dot or a sum above half of the greatest float counts as not finite, too. */
template <int NTILES>
static __device__ __forceinline__ void sum_keys(const float dots[NTILES][4], const row_heads<NTILES> &heads,
                                                float sums[2])
{
    sums[0] = sums[1] = 0.0f;
#pragma unroll
    for (int n = 0; n < NTILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float weight = i % 2 ? heads.weights[n].y : heads.weights[n].x;
            sums[i / 2] = __fmaf_rn(__fadd_rn(dots[n][i], fabsf(dots[n][i])), weight, sums[i / 2]);
        }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        sums[k] = __fadd_rn(sums[k], __shfl_xor_sync(0xffffffffu, sums[k], 1));
        sums[k] = __fadd_rn(sums[k], __shfl_xor_sync(0xffffffffu, sums[k], 2));
        sums[k] = __fmul_rn(sums[k], 0.5f);
    }
}

/* Stores the scores of 16 keys, of which n_there are in memory: lane t = 0 of each four has key lane / 4, lane t = 1
 * the one 8 further. */
static __device__ __forceinline__ void store_keys(const indexer_query &at, uint32_t first_key, uint32_t n_there,
                                                  const float sums[2])
{
    const uint32_t lane = threadIdx.x % 32, t = lane % 4, own = lane / 4 + t * 8;
    float stored = __uint_as_float(0xff800000u);
    if (t < 2)
        stored = store_score(at, first_key + own, own < n_there, t ? sums[1] : sums[0]);
    if (at.maxima) {
        const uint32_t greatest = __reduce_max_sync(0xffffffffu, ordered_score(stored));
        if (lane == 0 && first_key < at.n_seen)
            at.maxima[first_key / DSRI_SCORE_BLOCK] = score_of_ordered(greatest);
    }
}

#endif
