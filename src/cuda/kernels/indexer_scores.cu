/* Device-exact index scores: every dot product is one F32 chain, so this is a matrix product on the F32 pipe with tiles
 * of 8 heads x 8 keys, or 8 x 4 where there are few keys, in each thread's registers. Queries and keys lie in shared
 * memory as F32, features apart, 32 features of 128 keys at a time; the next ones are on their way in registers
 * meanwhile.
 *
 * Heads are dealt to threads so that the sum by halving stays local: of 64 heads, a thread holds b, b + 32, b + 16,
 * b + 48, b + 8, b + 40, b + 24 and b + 56, and only the last levels cross threads. 128 heads are two passes, of the
 * even and of the odd heads, whose sums are joined last; 32 heads are half a pass with half the keys a thread. */
#include "cuda/kernels/indexer_runs.cuh"

enum { TILE_HEADS = 8, STAGE_FEATURES = 32, N_QUARTERS = DSRI_INDEX_DIM / STAGE_FEATURES };

/* Threads of a block. Where there is a tile for each multiprocessor at most, twice as many with half the keys each. */
enum { FEW_THREADS = 128, MANY_THREADS = 256 };

/* A lane's heads and keys: lanes i and i ^ 1 share heads, i and i ^ 2 share keys, so that wide loads of either are
 * merged. */
template <int HEADS, int THREADS> struct score_shape {
    static constexpr int PASS = HEADS < 64 ? HEADS : 64;
    static constexpr int PASSES = HEADS / PASS;
    static constexpr int GROUPS = PASS / TILE_HEADS; /* of heads: lanes of a warp along the heads, from lane bit 1 on */
    static constexpr int KEY_LANES = 32 / GROUPS;    /* lane bit 0, then those above the heads' */
    static constexpr int WARP_KEYS = INDEX_TILE / (THREADS / 32);
    static constexpr int KEYS = WARP_KEYS / KEY_LANES; /* of a thread: runs of 4, half of the warp's keys apart */

    static __device__ __forceinline__ int head_group()
    {
        return threadIdx.x % 32 / 2 % GROUPS;
    }
    static __device__ __forceinline__ int key_lane()
    {
        return threadIdx.x % 2 + threadIdx.x % 32 / (2 * GROUPS) * 2;
    }
};

/* Place of head h of a pass in a row of the staged queries: a thread's heads are two runs of 4, lanes side by side in
 * each run. */
template <int PASS> static __device__ __forceinline__ int place_of(int h)
{
    const int b = h % (PASS / 8), j = (h / (PASS / 2) & 1) + (h / (PASS / 4) & 1) * 2 + (h / (PASS / 8) & 1) * 4;
    return (j / 4) * (PASS / 2) + b * 4 + j % 4;
}

/* 32 features of 128 keys. Key k of feature f lies at k ^ (8 * (f / 8)): threads that bring 8 features of a key each
 * write without bank conflicts. */
struct score_stage {
    float keys[STAGE_FEATURES][INDEX_TILE];
};

struct score_shared {
    score_stage stages[2];
    tile_run run;
    alignas(16) float weights[128]; /* by pass and place */
    alignas(16) float q[];          /* [pass][feature][place] */
};

/* Words of 16 bytes of the queries that the threads load at a time, and each of them. */
enum { QUERY_WORDS = 1024 };
template <int THREADS> constexpr int own_query_words = QUERY_WORDS / THREADS;

/* Word i of the threads' next ones is 8 features of one head; lanes have heads side by side. */
template <int HEADS, int THREADS, bool WORDS>
static __device__ __forceinline__ void load_queries(const indexer_query &at, int first,
                                                    uint4 loaded[own_query_words<THREADS>])
{
#pragma unroll
    for (int i = 0; i < own_query_words<THREADS>; i++) {
        const int n = first + i * THREADS + threadIdx.x;
        if (n < HEADS * (DSRI_INDEX_DIM / 8))
            loaded[i] = load_8<WORDS>(at.q + n % HEADS * DSRI_INDEX_DIM, n / HEADS * 8);
    }
}

template <int HEADS, int THREADS>
static __device__ __forceinline__ void store_queries(int first, const uint4 loaded[own_query_words<THREADS>],
                                                     score_shared &shared)
{
    typedef score_shape<HEADS, THREADS> shape;
    constexpr int PASS = shape::PASS, PASSES = shape::PASSES;
#pragma unroll
    for (int i = 0; i < own_query_words<THREADS>; i++) {
        const int n = first + i * THREADS + threadIdx.x, head = n % HEADS, f = n / HEADS * 8;
        if (n < HEADS * (DSRI_INDEX_DIM / 8))
            store_column(loaded[i],
                         shared.q + (head % PASSES * DSRI_INDEX_DIM + f) * PASS + place_of<PASS>(head / PASSES), PASS);
    }
}

/* Puts the queries and weights in their places; the first words of the queries have been loaded. */
template <int HEADS, int THREADS, bool WORDS>
static __device__ __forceinline__ void stage_queries(const indexer_query &at, uint4 loaded[own_query_words<THREADS>],
                                                     score_shared &shared)
{
    typedef score_shape<HEADS, THREADS> shape;
    constexpr int PASS = shape::PASS, PASSES = shape::PASSES;
    store_queries<HEADS, THREADS>(0, loaded, shared);
#pragma unroll 1
    for (int first = QUERY_WORDS; first < HEADS * (DSRI_INDEX_DIM / 8); first += QUERY_WORDS) {
        load_queries<HEADS, THREADS, WORDS>(at, first, loaded);
        store_queries<HEADS, THREADS>(first, loaded, shared);
    }
    for (int h = threadIdx.x; h < HEADS; h += THREADS)
        shared.weights[h % PASSES * PASS + place_of<PASS>(h / PASSES)] = at.weights[h];
}

/* What a thread brings of a step: 8 features, the same of 4 or 2 keys. */
template <int THREADS> constexpr int step_keys = INDEX_TILE *STAGE_FEATURES / 8 / THREADS;
template <int THREADS> constexpr int step_keys_apart = THREADS / 4;

/* Features [f, f + 8) of a packed key as BF16. */
static __device__ __forceinline__ uint4 load_fp4_8(const dsri_cache_entry &key, uint32_t f)
{
    uint32_t w[4] = {0, 0, 0, 0};
    if (key.values)
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = __float_as_uint(fp4_value(key, f + 2 * i)) >> 16 |
                   (__float_as_uint(fp4_value(key, f + 2 * i + 1)) & 0xffff0000u);
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* Features [f, f + 8) of a key as BF16, zeros for a key of no values. */
template <key_source SOURCE> static __device__ __forceinline__ uint4 load_key_8(const dsri_cache_entry &key, uint32_t f)
{
    if constexpr (SOURCE == FROM_FP4)
        return load_fp4_8(key, f);
    else
        return load_8<SOURCE == BY_WORDS>(reinterpret_cast<const uint16_t *>(key.values), f);
}

/* Loads them for step `step` of a run: a quarter of the features of a tile. Every pass over the heads takes all four.
 */
template <int PASSES, int THREADS, key_source SOURCE>
static __device__ __forceinline__ void load_step(const indexer_query &at, uint32_t first_tile, uint32_t step,
                                                 uint4 loaded[step_keys<THREADS>])
{
    const dsri_cache keys = at.keys;
    const uint32_t feature = step % N_QUARTERS * STAGE_FEATURES + threadIdx.x % 4 * 8;
    const uint32_t first_key = (first_tile + step / (N_QUARTERS * PASSES)) * INDEX_TILE + threadIdx.x / 4;
#pragma unroll
    for (uint32_t i = 0; i < step_keys<THREADS>; i++) {
        const uint32_t key = first_key + i * step_keys_apart<THREADS>;
        dsri_cache_entry from = {keys.pages + key * keys.row_stride, nullptr};
        if (SOURCE == FROM_FP4 || keys.page_table)
            from = dsri_cache_at(&keys, key < at.n_seen ? key : 0);
        from.values = key < at.n_seen ? from.values : nullptr;
        loaded[i] = load_key_8<SOURCE>(from, feature);
    }
}

template <int THREADS>
static __device__ __forceinline__ void store_step(const uint4 loaded[step_keys<THREADS>], score_stage &stage)
{
    const uint32_t word = threadIdx.x % 4;
#pragma unroll
    for (uint32_t i = 0; i < step_keys<THREADS>; i++)
        store_column(loaded[i], &stage.keys[8 * word][(threadIdx.x / 4 + i * step_keys_apart<THREADS>)^8 * word],
                     INDEX_TILE);
}

/* N values from p on, runs of 4 that are `apart` from one another. */
template <int N> static __device__ __forceinline__ void load_runs(const float *p, int apart, float to[N])
{
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const float4 x = *reinterpret_cast<const float4 *>(p + i * apart);
        to[4 * i] = x.x;
        to[4 * i + 1] = x.y;
        to[4 * i + 2] = x.z;
        to[4 * i + 3] = x.w;
    }
}

/* Goes on with the chains of a thread's heads and keys. q: of this quarter and thread. */
template <int HEADS, int THREADS>
static __device__ __forceinline__ void multiply_step(const score_stage &stage, const float *q,
                                                     float dots[TILE_HEADS][score_shape<HEADS, THREADS>::KEYS])
{
    typedef score_shape<HEADS, THREADS> shape;
    constexpr int PASS = shape::PASS, KEYS = shape::KEYS, HALF = shape::WARP_KEYS / 2;
    const int first_key = threadIdx.x / 32 * shape::WARP_KEYS + 4 * shape::key_lane();
#pragma unroll 1
    for (int word = 0; word < STAGE_FEATURES / 8; word++) {
        const int own_key = first_key ^ 8 * word, apart = (own_key ^ HALF) - own_key;
        const float *keys = &stage.keys[8 * word][own_key], *heads = q + 8 * word * PASS;
#pragma unroll
        for (int f = 0; f < 8; f++) {
            float head[TILE_HEADS], key[KEYS];
            load_runs<TILE_HEADS>(heads + f * PASS, PASS / 2, head);
            load_runs<KEYS>(keys + f * INDEX_TILE, apart, key);
#pragma unroll
            for (int h = 0; h < TILE_HEADS; h++)
#pragma unroll
                for (int k = 0; k < KEYS; k++)
                    dots[h][k] = __fmaf_rn(head[h], key[k], dots[h][k]);
        }
    }
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

/* The sum by halving over all heads of a pass, of one key a lane; NaN if a dot product is not finite. weights: of this
 * pass and thread. */
template <int HEADS, int THREADS>
static __device__ __forceinline__ float sum_pass(const float dots[TILE_HEADS][score_shape<HEADS, THREADS>::KEYS],
                                                 const float *weights)
{
    typedef score_shape<HEADS, THREADS> shape;
    constexpr int KEYS = shape::KEYS, GROUPS = shape::GROUPS;
    float weight[TILE_HEADS], sums[KEYS];
    load_runs<TILE_HEADS>(weights, shape::PASS / 2, weight);
#pragma unroll
    for (int k = 0; k < KEYS; k++) {
        float c[TILE_HEADS], zero = 0.0f;
#pragma unroll
        for (int h = 0; h < TILE_HEADS; h++) {
            const float dot = dots[h][k];
            zero = __fmaf_rn(dot, 0.0f, zero); /* or NaN */
            c[h] = __fmul_rn(dot > 0.0f ? dot : 0.0f, weight[h]);
        }
        const float sum = __fadd_rn(__fadd_rn(__fadd_rn(c[0], c[1]), __fadd_rn(c[2], c[3])),
                                    __fadd_rn(__fadd_rn(c[4], c[5]), __fadd_rn(c[6], c[7])));
        sums[k] = zero == 0.0f ? sum : zero;
    }
    return sum_over_groups<KEYS, GROUPS / 2>(sums, shape::head_group());
}

/* Stores the score of a lane's key. */
template <int HEADS, int THREADS>
static __device__ __forceinline__ void store_tile(const indexer_query &at, uint32_t first_key, float score)
{
    typedef score_shape<HEADS, THREADS> shape;
    constexpr int SHARED = shape::GROUPS / shape::KEYS > 1 ? shape::GROUPS / shape::KEYS : 1;
    const int number = shape::head_group() / SHARED; /* among the thread's keys */
    const uint32_t in_warp = number / 4 * (shape::WARP_KEYS / 2) + 4 * shape::key_lane() + number % 4;
    const uint32_t first = first_key + threadIdx.x / 32 * shape::WARP_KEYS, key = first + in_warp;
    float stored = __uint_as_float(0xff800000u);
    if (shape::head_group() % SHARED == 0) {
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

template <int HEADS, int THREADS, key_source SOURCE>
static __device__ __forceinline__ void score_run(const tile_run &run, score_shared &shared)
{
    typedef score_shape<HEADS, THREADS> shape;
    constexpr int PASS = shape::PASS, PASSES = shape::PASSES, KEYS = shape::KEYS;
    const uint32_t first_tile = run.first, n_passes = run.n * PASSES, n_steps = n_passes * N_QUARTERS;
    float first_sum = 0.0f;
    uint4 loaded[step_keys<THREADS>], queries[own_query_words<THREADS>];
    load_queries<HEADS, THREADS, SOURCE == BY_WORDS>(run.at, 0, queries);
    load_step<PASSES, THREADS, SOURCE>(run.at, first_tile, 0, loaded);
    stage_queries<HEADS, THREADS, SOURCE == BY_WORDS>(run.at, queries, shared);
    store_step<THREADS>(loaded, shared.stages[0]);
    load_step<PASSES, THREADS, SOURCE>(run.at, first_tile, 1, loaded);
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = 0; i < n_passes; i++) {
        const int pass = i % PASSES;
        float dots[TILE_HEADS][KEYS] = {};
#pragma unroll 1
        for (uint32_t quarter = 0; quarter < N_QUARTERS; quarter++) {
            const uint32_t step = i * N_QUARTERS + quarter;
            const float *q =
                shared.q + (pass * DSRI_INDEX_DIM + quarter * STAGE_FEATURES) * PASS + 4 * shape::head_group();
            if (step + 1 < n_steps)
                store_step<THREADS>(loaded, shared.stages[(quarter + 1) % 2]);
            if (step + 2 < n_steps)
                load_step<PASSES, THREADS, SOURCE>(run.at, first_tile, step + 2, loaded);
            multiply_step<HEADS, THREADS>(shared.stages[quarter % 2], q, dots);
            __syncthreads();
        }
        float sum = sum_pass<HEADS, THREADS>(dots, shared.weights + pass * PASS + 4 * shape::head_group());
        if (PASSES == 2 && pass == 0)
            first_sum = sum;
        else if (PASSES == 2)
            sum = __fadd_rn(first_sum, sum);
        if (pass + 1 == PASSES)
            store_tile<HEADS, THREADS>(run.at, (first_tile + i / PASSES) * INDEX_TILE, sum);
    }
    __syncthreads();
}

template <int THREADS, key_source SOURCE>
static __device__ __forceinline__ void score_run_of(uint32_t n_heads, const tile_run &run, score_shared &shared)
{
    if (n_heads == 64)
        score_run<64, THREADS, SOURCE>(run, shared);
    else if (n_heads == 128)
        score_run<128, THREADS, SOURCE>(run, shared);
    else if constexpr (THREADS == FEW_THREADS)
        score_run<32, THREADS, SOURCE>(run, shared);
}

template <int THREADS>
static __device__ __forceinline__ void score_piece(const dsri_indexer_plan &plan, score_shared &shared)
{
    for (tile_piece piece = tiles_of_block(plan); piece.next < piece.end;) {
        take_run(plan, piece, shared.run);
        wait_for_prior_launch();
        const key_source source = source_of(shared.run.at);
        if (source == BY_WORDS)
            score_run_of<THREADS, BY_WORDS>(plan.n_heads, shared.run, shared);
        else if (source == BY_ELEMENT)
            score_run_of<THREADS, BY_ELEMENT>(plan.n_heads, shared.run, shared);
        else
            score_run_of<THREADS, FROM_FP4>(plan.n_heads, shared.run, shared);
    }
}

extern "C" __global__ void __launch_bounds__(FEW_THREADS, 2)
    dsr_indexer_scores_bf16__cuda(const __grid_constant__ dsri_indexer_plan plan, uint8_t *)
{
    extern __shared__ uint4 shared_memory[];
    let_next_launch_start();
    score_piece<FEW_THREADS>(plan, *reinterpret_cast<score_shared *>(shared_memory));
}

/* Not of 32 heads. */
extern "C" __global__ void __launch_bounds__(MANY_THREADS, 1)
    dsr_indexer_scores_short_bf16__cuda(const __grid_constant__ dsri_indexer_plan plan, uint8_t *)
{
    extern __shared__ uint4 shared_memory[];
    let_next_launch_start();
    score_piece<MANY_THREADS>(plan, *reinterpret_cast<score_shared *>(shared_memory));
}
