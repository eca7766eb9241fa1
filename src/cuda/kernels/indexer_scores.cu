/* Device-exact index scores: every dot product is one F32 chain, so this is a matrix product on the F32 pipe with tiles
 * of 8 heads x 8 keys in each thread's registers. Keys stream through a ring in shared memory, 32 features of 128 keys
 * at a time, as BF16; queries lie there as F32.
 *
 * Heads are dealt to threads so that the sum by halving stays local: of a pass of 64 heads, a thread holds b, b + 32,
 * b + 16, b + 48, b + 8, b + 40, b + 24 and b + 56, and only the last levels cross threads. 128 heads are two passes,
 * joined first; 32 heads are half a pass with half the keys a thread. */
#include "cuda/kernels/indexer_common.cuh"

enum { TILE_HEADS = 8, STAGE_FEATURES = 32, N_QUARTERS = DSRI_INDEX_DIM / STAGE_FEATURES, SCORE_STAGES = 3 };

enum { SCORE_THREADS = 128, SCORE_BLOCKS_AT_ONCE = 3 };

/* A lane's heads and keys: lanes i and i ^ 1 share heads, i and i ^ 2 share keys, so that wide loads of either are
 * merged. */
template <int HEADS> struct score_shape {
    static constexpr int PASS = HEADS < 64 ? HEADS : 64;
    static constexpr int PASSES = HEADS / PASS;
    static constexpr int GROUPS = PASS / TILE_HEADS; /* of heads: lanes of a warp along the heads, from lane bit 1 on */
    static constexpr int KEY_LANES = 32 / GROUPS;    /* lane bit 0, then those above the heads' */
    static constexpr int WARP_KEYS = INDEX_TILE / (SCORE_THREADS / 32);
    static constexpr int KEYS = WARP_KEYS / KEY_LANES; /* of a thread, KEY_LANES apart */

    static __device__ __forceinline__ int head_group()
    {
        return threadIdx.x % 32 / 2 % GROUPS;
    }
    static __device__ __forceinline__ int key_lane()
    {
        return threadIdx.x % 2 + threadIdx.x % 32 / (2 * GROUPS) * 2;
    }
};

/* Place of head h in a row of the staged queries: a thread's heads are two runs of 4, lanes side by side in each run.
 */
template <int PASS> static __device__ __forceinline__ int place_of(int h)
{
    const int b = h % (PASS / 8), j = (h / (PASS / 2) & 1) + (h / (PASS / 4) & 1) * 2 + (h / (PASS / 8) & 1) * 4;
    return (j / 4) * (PASS / 2) + b * 4 + j % 4;
}

/* 32 features of 128 keys: 4 words of 16 bytes a key. Word w of key k lies at w ^ (k / 2 & 3): four keys side by side
 * are read without bank conflicts. */
struct score_stage {
    uint4 words[INDEX_TILE][4];
};

struct score_shared {
    score_stage ring[SCORE_STAGES];
    indexer_line line;
    indexer_run run;
    float weights[128];    /* by place */
    alignas(16) float q[]; /* [pass][feature][place] */
};

/* Words of 16 bytes of the queries that a thread loads at a time. */
enum { OWN_QUERY_WORDS = 8 };

/* Word i of the threads' next ones is 8 features of one head; lanes have heads side by side. */
template <int HEADS, bool WORDS>
static __device__ __forceinline__ void load_queries(const indexer_query &at, int first, uint4 loaded[OWN_QUERY_WORDS])
{
#pragma unroll
    for (int i = 0; i < OWN_QUERY_WORDS; i++) {
        const int n = first + i * SCORE_THREADS + threadIdx.x;
        if (n < HEADS * (DSRI_INDEX_DIM / 8))
            loaded[i] = load_8<WORDS>(at.q + n % HEADS * DSRI_INDEX_DIM, n / HEADS * 8);
    }
}

template <int HEADS>
static __device__ __forceinline__ void store_queries(int first, const uint4 loaded[OWN_QUERY_WORDS],
                                                     score_shared &shared)
{
    constexpr int PASS = score_shape<HEADS>::PASS;
#pragma unroll
    for (int i = 0; i < OWN_QUERY_WORDS; i++) {
        const int n = first + i * SCORE_THREADS + threadIdx.x, head = n % HEADS, f = n / HEADS * 8;
        if (n < HEADS * (DSRI_INDEX_DIM / 8))
            store_column(loaded[i], shared.q + (head / PASS * DSRI_INDEX_DIM + f) * PASS + place_of<PASS>(head % PASS),
                         PASS);
    }
}

/* Puts the queries and weights in their places; the first words of the queries have been loaded. */
template <int HEADS, bool WORDS>
static __device__ __forceinline__ void stage_queries(const indexer_query &at, uint4 loaded[OWN_QUERY_WORDS],
                                                     score_shared &shared)
{
    constexpr int PASS = score_shape<HEADS>::PASS;
    store_queries<HEADS>(0, loaded, shared);
#pragma unroll 1
    for (int first = OWN_QUERY_WORDS * SCORE_THREADS; first < HEADS * (DSRI_INDEX_DIM / 8);
         first += OWN_QUERY_WORDS * SCORE_THREADS) {
        load_queries<HEADS, WORDS>(at, first, loaded);
        store_queries<HEADS>(first, loaded, shared);
    }
    for (int h = threadIdx.x; h < HEADS; h += SCORE_THREADS)
        shared.weights[h / PASS * PASS + place_of<PASS>(h % PASS)] = at.weights[h];
}

/* Starts the copies of step `step` of a run: a quarter of the features of a tile. Every pass over the heads takes all
 * four. */
template <int PASSES, key_source SOURCE>
static __device__ __forceinline__ void stage_step(const indexer_run &run, uint32_t step, score_stage &stage)
{
    constexpr uint32_t ROWS = SCORE_THREADS / 4; /* keys copied side by side */
    const dsri_cache keys = run.at.keys;
    const uint32_t n_seen = run.at.n_seen, word = threadIdx.x % 4;
    const uint32_t feature = step % N_QUARTERS * STAGE_FEATURES + 8 * word;
    const uint32_t first_key = (run.first + step / (N_QUARTERS * PASSES)) * INDEX_TILE;
#pragma unroll
    for (uint32_t row = threadIdx.x / 4, i = 0; i < INDEX_TILE / ROWS; i++, row += ROWS) {
        const uint32_t key = first_key + row;
        dsri_cache_entry from = {keys.pages + key * keys.row_stride, nullptr};
        if (SOURCE == FROM_FP4 || keys.page_table)
            from = dsri_cache_at(&keys, key < n_seen ? key : 0);
        from.values = key < n_seen ? from.values : nullptr;
        stage_8<SOURCE>(&stage.words[row][word ^ (row / 2 & 3)], from, feature, keys.pages);
    }
}

/* Goes on with the chains of a thread's heads and keys. q: of this quarter and thread. */
template <int HEADS>
static __device__ __forceinline__ void multiply_step(const score_stage &stage, const float *q,
                                                     float dots[TILE_HEADS][score_shape<HEADS>::KEYS])
{
    typedef score_shape<HEADS> shape;
    constexpr int PASS = shape::PASS, KEYS = shape::KEYS, LANES = shape::KEY_LANES;
    const int row = threadIdx.x / 32 * shape::WARP_KEYS + shape::key_lane();
#pragma unroll 1
    for (int f = 0; f < STAGE_FEATURES; f += 4) {
        uint2 raw[KEYS];
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            const int r = row + k * LANES;
            raw[k] = reinterpret_cast<const uint2 *>(&stage.words[r][f / 8 ^ (r / 2 & 3)])[f / 4 % 2];
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float4 a = *reinterpret_cast<const float4 *>(q + (f + i) * PASS);
            const float4 b = *reinterpret_cast<const float4 *>(q + (f + i) * PASS + PASS / 2);
            const float heads[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            float key[KEYS];
#pragma unroll
            for (int k = 0; k < KEYS; k++) {
                const uint32_t pair = i < 2 ? raw[k].x : raw[k].y;
                key[k] = __uint_as_float(i % 2 ? pair & 0xffff0000u : pair << 16);
            }
#pragma unroll
            for (int h = 0; h < TILE_HEADS; h++)
#pragma unroll
                for (int k = 0; k < KEYS; k++)
                    dots[h][k] = __fmaf_rn(heads[h], key[k], dots[h][k]);
        }
    }
}

/* c = relu(dot) * weight, NaN where the dot is not finite. */
static __device__ __forceinline__ float weighted(float dot, float weight)
{
    return f32_is_finite(dot) ? __fmul_rn(dot > 0.0f ? dot : 0.0f, weight) : __uint_as_float(0x7fc00000u);
}

/* Sums N keys over S * 2 lanes of head groups, S apart from one another at last; each lane ends with one key, or lanes
 * share one. Bits of the lane's group choose the keys it keeps, the highest first. */
template <int N, int S> static __device__ __forceinline__ float sum_over_groups(const float *sums, int group)
{
    if constexpr (S == 0) {
        return sums[0];
    } else if constexpr (N == 1) {
        const float sum = __fadd_rn(sums[0], __shfl_xor_sync(0xffffffffu, sums[0], 2 * S));
        return sum_over_groups<1, S / 2>(&sum, group);
    } else {
        float kept[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const float keep = group & S ? sums[N / 2 + i] : sums[i], send = group & S ? sums[i] : sums[N / 2 + i];
            kept[i] = __fadd_rn(keep, __shfl_xor_sync(0xffffffffu, send, 2 * S));
        }
        return sum_over_groups<N / 2, S / 2>(kept, group);
    }
}

/* The sum by halving over all heads, and what is stored of it. */
template <int HEADS>
static __device__ __forceinline__ void store_tile(const indexer_query &at, uint32_t first_key,
                                                  const float c[TILE_HEADS][score_shape<HEADS>::KEYS])
{
    typedef score_shape<HEADS> shape;
    constexpr int KEYS = shape::KEYS, GROUPS = shape::GROUPS, SHARED = GROUPS / KEYS > 1 ? GROUPS / KEYS : 1;
    float sums[KEYS];
#pragma unroll
    for (int k = 0; k < KEYS; k++)
        sums[k] = __fadd_rn(__fadd_rn(__fadd_rn(c[0][k], c[1][k]), __fadd_rn(c[2][k], c[3][k])),
                            __fadd_rn(__fadd_rn(c[4][k], c[5][k]), __fadd_rn(c[6][k], c[7][k])));
    const int group = shape::head_group(), warp = threadIdx.x / 32;
    const float score = sum_over_groups<KEYS, GROUPS / 2>(sums, group);
    const uint32_t in_warp = shape::key_lane() + group / SHARED * shape::KEY_LANES;
    const uint32_t first = first_key + warp * shape::WARP_KEYS, key = first + in_warp;
    float stored = __uint_as_float(0xff800000u);
    if (group % SHARED == 0) {
        const bool is_good = key < at.n_seen && dsri_cache_at(&at.keys, key).values != nullptr;
        stored = store_score(at, key, is_good, score);
    }
    if (at.maxima) {
#pragma unroll
        for (uint32_t i = 0; i < shape::WARP_KEYS / DSRI_SCORE_BLOCK; i++) {
            const uint32_t own = in_warp / DSRI_SCORE_BLOCK == i ? ordered_score(stored) : 0;
            const uint32_t greatest = __reduce_max_sync(0xffffffffu, own);
            if (threadIdx.x % 32 == 0 && first + i * DSRI_SCORE_BLOCK < at.n_seen)
                at.maxima[first / DSRI_SCORE_BLOCK + i] = score_of_ordered(greatest);
        }
    }
}

template <int HEADS, key_source SOURCE>
static __device__ __forceinline__ void score_run(const indexer_run &run, score_shared &shared)
{
    typedef score_shape<HEADS> shape;
    constexpr int PASS = shape::PASS, PASSES = shape::PASSES, KEYS = shape::KEYS;
    const uint32_t n_steps = run.n * N_QUARTERS * PASSES;
    const int group = shape::head_group();
    float dots[TILE_HEADS][KEYS], first_half[TILE_HEADS][KEYS];
    uint4 queries[OWN_QUERY_WORDS];
    load_queries<HEADS, SOURCE == BY_WORDS>(run.at, 0, queries);
    for (uint32_t i = 0; i < SCORE_STAGES - 1; i++) {
        if (i < n_steps)
            stage_step<PASSES, SOURCE>(run, i, shared.ring[i]);
        copy_async_commit();
    }
    stage_queries<HEADS, SOURCE == BY_WORDS>(run.at, queries, shared);
    uint32_t slot = 0, free_slot = SCORE_STAGES - 1;
#pragma unroll 1
    for (uint32_t step = 0; step < n_steps; step++) {
        const uint32_t quarter = step % N_QUARTERS, pass = PASSES == 1 ? 0 : step / N_QUARTERS % PASSES;
        copy_async_wait<SCORE_STAGES - 2>();
        __syncthreads();
        if (step + SCORE_STAGES - 1 < n_steps)
            stage_step<PASSES, SOURCE>(run, step + SCORE_STAGES - 1, shared.ring[free_slot]);
        copy_async_commit();
        if (quarter == 0)
#pragma unroll
            for (int i = 0; i < TILE_HEADS * KEYS; i++)
                dots[i / KEYS][i % KEYS] = 0.0f;
        const float *q = shared.q + (pass * DSRI_INDEX_DIM + quarter * STAGE_FEATURES) * PASS + 4 * group;
        multiply_step<HEADS>(shared.ring[slot], q, dots);
        free_slot = slot;
        slot = slot + 1 < SCORE_STAGES ? slot + 1 : 0;
        if (quarter + 1 < N_QUARTERS)
            continue;
#pragma unroll
        for (int h = 0; h < TILE_HEADS; h++) {
            const float weight = shared.weights[pass * PASS + h / 4 * (PASS / 2) + 4 * group + h % 4];
#pragma unroll
            for (int k = 0; k < KEYS; k++) {
                dots[h][k] = weighted(dots[h][k], weight);
                if (PASSES > 1 && pass == 0)
                    first_half[h][k] = dots[h][k];
                else if (PASSES > 1)
                    dots[h][k] = __fadd_rn(first_half[h][k], dots[h][k]);
            }
        }
        if (pass + 1 == PASSES)
            store_tile<HEADS>(run.at, (run.first + step / (N_QUARTERS * PASSES)) * INDEX_TILE, dots);
    }
    copy_async_wait<0>();
    __syncthreads();
}

template <key_source SOURCE>
static __device__ __forceinline__ void score_run_of(uint32_t n_heads, const indexer_run &run, score_shared &shared)
{
    if (n_heads == 32)
        score_run<32, SOURCE>(run, shared);
    else if (n_heads == 64)
        score_run<64, SOURCE>(run, shared);
    else
        score_run<128, SOURCE>(run, shared);
}

extern "C" __global__ void __launch_bounds__(SCORE_THREADS, SCORE_BLOCKS_AT_ONCE)
    dsr_indexer_scores_bf16__cuda(const __grid_constant__ dsri_indexer_plan plan, uint8_t *)
{
    extern __shared__ uint4 shared_memory[];
    score_shared &shared = *reinterpret_cast<score_shared *>(shared_memory);
    line_up<INDEX_TILE, ALL_ROWS>(plan, shared.line);
    for (indexer_piece piece = piece_of_block(shared.line); piece.next < piece.end;) {
        next_run<INDEX_TILE>(plan, shared.line, piece, shared.run);
        const key_source source = source_of(shared.run.at);
        if (source == BY_WORDS)
            score_run_of<BY_WORDS>(plan.n_heads, shared.run, shared);
        else if (source == BY_ELEMENT)
            score_run_of<BY_ELEMENT>(plan.n_heads, shared.run, shared);
        else
            score_run_of<FROM_FP4>(plan.n_heads, shared.run, shared);
    }
}
