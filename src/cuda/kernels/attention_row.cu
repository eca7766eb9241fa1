/* Row-exact attention on tensor cores. A query's slots are cut into tiles of 64 and its tiles into 5 ranks, by the
 * width alone. A rank's softmax and weighted values are computed on their own, tile by tile, and ranks are joined in
 * order. With few rows a block takes one rank and a cluster joins them; with many, a block takes all ranks of its heads
 * in turn. Both do the same arithmetic for each output, so the bits do not tell which one ran. Both forms of attention
 * come out alike.
 *
 * Products are transposed: KV rows, as they lie in shared memory, are the left operand of both, so that few heads fill
 * a matrix unit. Group 0 of four groups of four warps multiplies a tile by the queries and makes weights; the other
 * groups bring the next tile meanwhile. Then each group adds weighted values of its 128 features.
 *
 * A KV row or a query with a value that is not finite needs no look of its own: it gives logits that are not finite. */
#include "cuda/kernels/attention_common.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

enum {
    ATT_RANKS = 5,
    TILE_SLOTS = 64,
    GROUP_THREADS = 128,
    BLOCK_THREADS = 4 * GROUP_THREADS,
    PANEL_FEATURES = 64, /* a row of a matrix in shared memory: 128 bytes */
    PANEL_ROW_BYTES = 2 * PANEL_FEATURES,
    N_PANELS = DSRI_HEAD_DIM / PANEL_FEATURES,
    KV_PANEL_BYTES = TILE_SLOTS * PANEL_ROW_BYTES,
    N_LOADERS = (BLOCK_THREADS - GROUP_THREADS) / 32,
    LOADER_SLOTS = (TILE_SLOTS + N_LOADERS - 1) / N_LOADERS
};

/* The numerators of 64 features x 8 heads, 4 of a thread of a group, are a piece. A cluster's blocks join every fifth
 * of HEADS pieces. */
template <int HEADS> struct att_shared {
    enum { QUERY_PANEL_BYTES = HEADS * PANEL_ROW_BYTES, MOST_PIECES = (HEADS + ATT_RANKS - 1) / ATT_RANKS };
    uint8_t kv[2][N_PANELS * KV_PANEL_BYTES]; /* panels of matrix_at(), slots are rows */
    union {
        uint8_t q[N_PANELS * QUERY_PANEL_BYTES];             /* panels, heads are rows */
        float4 parts[ATT_RANKS][MOST_PIECES][GROUP_THREADS]; /* what the ranks tell this block, after the last logits */
    };
    uint8_t p[HEADS * PANEL_ROW_BYTES]; /* a panel of the tile's weights: heads are rows of slots */
    float2 statistics[ATT_RANKS][HEADS];
    float2 join_factors[HEADS];
    float tile_max[4][HEADS]; /* of group 0's warps */
    float scale[HEADS];       /* exp(old max - new max) */
    float max[HEADS];         /* of the rank */
    float sum[4][HEADS];
    float sinks[HEADS];
    uint32_t is_bad_head[HEADS];
    uint64_t statistics_are_here, values_are_here;
    uint8_t is_selected[2][TILE_SLOTS];
    uint32_t is_bad;
};

static __device__ __forceinline__ float exp_approximate(float x)
{
    return exp2_approximate(x * 1.4426950408889634f);
}

/* ---- ranks ---- */

struct att_tiles {
    uint32_t n, a_rank;
};

static __device__ __forceinline__ att_tiles tiles_of(uint32_t width)
{
    const uint32_t n = (width + TILE_SLOTS - 1) / TILE_SLOTS;
    att_tiles tiles = {n, (n + ATT_RANKS - 1) / ATT_RANKS};
    return tiles;
}

/* ---- bringing rows ---- */

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

/* The i-th slot of a loader: a warp of groups 1 to 3. */
static __device__ __forceinline__ uint32_t loader_slot(uint32_t i)
{
    return (threadIdx.x - GROUP_THREADS) / 32 + i * N_LOADERS;
}

/* Lane i of a loader asks for the index of its i-th slot of a tile. */
static __device__ __forceinline__ int32_t load_index(const attention_query &at, uint32_t tile)
{
    const uint32_t slot = loader_slot(threadIdx.x % 32), i = tile * TILE_SLOTS + slot;
    return slot < TILE_SLOTS && i < at.width ? at.indices[i] : -1;
}

/* A loader's share of rows that are not plain copies, a few rows at once; lane i knows where the i-th lies. */
template <row_form FORM> static __device__ __forceinline__ void decode_rows(const dsri_cache_entry &own, uint8_t *kv)
{
    enum { AT_ONCE = 2 };
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll 1
    for (uint32_t first = 0; first < LOADER_SLOTS; first += AT_ONCE) {
        uint4 loaded[AT_ONCE][2];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            dsri_cache_entry row;
            row.values = of_lane(own.values, first + i);
            row.scales = of_lane(own.scales, first + i);
            loaded[i][0] = load_piece<FORM>(row, lane * 8);
            loaded[i][1] = load_piece<FORM>(row, (lane + 32) * 8);
        }
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            const uint32_t slot = loader_slot(first + i);
            if (slot < TILE_SLOTS) {
                decode_to<FORM>(kv + place_of_piece(lane, slot, KV_PANEL_BYTES), loaded[i][0], lane);
                decode_to<FORM>(kv + place_of_piece(lane + 32, slot, KV_PANEL_BYTES), loaded[i][1], lane + 32);
            }
        }
    }
}

/* A loader's share of a tile; rows of slots that select nothing become zeros. Copies may be under way after. */
template <int HEADS>
static __device__ __forceinline__ void bring_tile(const attention_query &at, int32_t index, uint32_t place,
                                                  att_shared<HEADS> &shared)
{
    const uint32_t own_slot = loader_slot(threadIdx.x % 32);
    const dsri_cache_entry own = find_row(at, index);
    if (!own.values && index != -1)
        shared.is_bad = 1;
    if (own_slot < TILE_SLOTS)
        shared.is_selected[place][own_slot] = own.values != nullptr;
    if (at.form == ROW_WORDS) {
#pragma unroll
        for (uint32_t i = 0; i < LOADER_SLOTS; i++) {
            const uint8_t *row = of_lane(own.values, i);
            const uint32_t slot = loader_slot(i);
            if (slot < TILE_SLOTS)
                bring_row(shared.kv[place], row ? row : at.cache->pages, row != nullptr, slot, KV_PANEL_BYTES);
        }
    } else if (at.form == ROW_FP8) {
        decode_rows<ROW_FP8>(own, shared.kv[place]);
    } else {
        decode_rows<ROW_HALVES>(own, shared.kv[place]);
    }
}

/* The block's queries and sinks by group 0. */
template <int HEADS>
static __device__ __forceinline__ void bring_queries(const attention_query &at, const float *sinks, uint32_t first_head,
                                                     att_shared<HEADS> &shared)
{
    const uint16_t *q = at.q + (uint64_t)first_head * DSRI_HEAD_DIM;
    const bool is_aligned = is_word_aligned(q, 0);
#pragma unroll 4
    for (uint32_t head = threadIdx.x / 32; head < HEADS; head += GROUP_THREADS / 32) {
        if (is_aligned)
            bring_row(shared.q, q + head * DSRI_HEAD_DIM, true, head, HEADS * PANEL_ROW_BYTES);
        else
            for (uint32_t piece = threadIdx.x % 32; piece < 8 * N_PANELS; piece += 32)
                *reinterpret_cast<uint4 *>(shared.q + place_of_piece(piece, head, HEADS * PANEL_ROW_BYTES)) =
                    load_8<false>(q + head * DSRI_HEAD_DIM, piece * 8);
    }
    if (threadIdx.x < HEADS)
        shared.sinks[threadIdx.x] = sinks[first_head + threadIdx.x];
}

/* ---- weights, by group 0 ---- */

/* Statistics of a rank so far of a lane's heads 8 * (c / 2) + lane % 4 * 2 + c % 2; sums of its own slots. */
template <int HEADS> struct att_softmax {
    float max[HEADS / 4], sum[HEADS / 4];
};

/* Folds each of N values over the 8 lanes whose numbers differ by multiples of 4. A lane gets the one numbered
 * lane / 4 * N / 8. The order of the fold does not depend on N. */
template <int N, float FOLD(float, float)> static __device__ __forceinline__ float fold_lanes(float values[N])
{
    int n = N;
#pragma unroll
    for (uint32_t bit = 16; bit >= 4; bit /= 2) {
        const bool is_upper = threadIdx.x & bit;
        n /= 2;
        if (n == 0)
            values[0] = FOLD(values[0], __shfl_xor_sync(0xffffffffu, values[0], bit));
#pragma unroll
        for (int i = 0; i < n; i++) {
            const float other = __shfl_xor_sync(0xffffffffu, is_upper ? values[i] : values[n + i], bit);
            values[i] = FOLD(is_upper ? values[n + i] : values[i], other);
        }
    }
    return values[0];
}

static __device__ __forceinline__ float greater(float a, float b)
{
    return fmaxf(a, b);
}

static __device__ __forceinline__ float sum_of(float a, float b)
{
    return a + b;
}

/* Hands a value of each head to others: of[warp][head]. */
template <int HEADS, float FOLD(float, float)>
static __device__ __forceinline__ void tell_heads(float values[HEADS / 4], float of[4][HEADS])
{
    const uint32_t lane = threadIdx.x % 32, column = lane / 4 * (HEADS / 4) / 8;
    of[threadIdx.x / 32][column / 2 * 8 + lane % 4 * 2 + column % 2] = fold_lanes<HEADS / 4, FOLD>(values);
}

/* logits[4 j + i]: slot 16 * warp + lane / 4 + i / 2 * 8, head 8 j + lane % 4 * 2 + i % 2. */
template <int HEADS>
static __device__ __forceinline__ void multiply_by_queries(const uint8_t *kv, const uint8_t *q,
                                                           float (&logits)[HEADS / 2])
{
    const uint64_t rows = matrix_at(shared_address(kv)), heads = matrix_at(shared_address(q));
#pragma unroll
    for (int i = 0; i < HEADS / 2; i++)
        logits[i] = 0.0f;
    begin_products(logits);
#pragma unroll
    for (int i = 0; i < DSRI_HEAD_DIM / 16; i++)
        multiply_add_shared<HEADS, 0>(logits, matrix_further(rows, i / 4 * KV_PANEL_BYTES + i % 4 * 32),
                                      matrix_further(heads, i / 4 * HEADS * PANEL_ROW_BYTES + i % 4 * 32), i != 0);
    finish_products(logits);
}

/* Scales and masks logits and tells their max over a warp's slots. */
template <int HEADS>
static __device__ __forceinline__ void mask_logits(float scale, const uint8_t *is_selected, float (&logits)[HEADS / 2],
                                                   att_shared<HEADS> &shared)
{
    const uint32_t lane = threadIdx.x % 32, slot = threadIdx.x / 32 * 16 + lane / 4;
    const bool is_slot[2] = {is_selected[slot] != 0, is_selected[slot + 8] != 0};
    float max[HEADS / 4];
#pragma unroll
    for (int c = 0; c < HEADS / 4; c++) {
        bool is_bad = false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float &logit = logits[c / 2 * 4 + c % 2 + 2 * r];
            const float l = logit * scale;
            is_bad = is_bad || (is_slot[r] && !(fabsf(l) <= 3.402823466e38f));
            logit = is_slot[r] ? l : minus_infinity();
        }
        max[c] = fmaxf(logits[c / 2 * 4 + c % 2], logits[c / 2 * 4 + c % 2 + 2]);
        if (is_bad)
            shared.is_bad_head[c / 2 * 8 + lane % 4 * 2 + c % 2] = 1;
    }
    tell_heads<HEADS, greater>(max, shared.tile_max);
}

/* Weights of logits as BF16 to shared.p, and the rank's statistics so far. */
template <int HEADS>
static __device__ __forceinline__ void weigh(const float (&logits)[HEADS / 2], att_softmax<HEADS> &softmax,
                                             att_shared<HEADS> &shared)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t pairs[HEADS / 8][2]; /* two heads of a slot */
#pragma unroll
    for (int j = 0; j < HEADS / 8; j++) {
        const uint32_t head = 8 * j + lane % 4 * 2;
        float weights[2][2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float &max = softmax.max[2 * j + e];
            const float old = max;
            max = fmaxf(fmaxf(fmaxf(shared.tile_max[0][head + e], shared.tile_max[1][head + e]),
                              fmaxf(shared.tile_max[2][head + e], shared.tile_max[3][head + e])),
                        old);
            const float factor = old == minus_infinity() ? 0.0f : exp_approximate(old - max);
            const float offset = max == minus_infinity() ? 0.0f : max;
            weights[0][e] = exp_approximate(logits[4 * j + e] - offset);
            weights[1][e] = exp_approximate(logits[4 * j + e + 2] - offset);
            softmax.sum[2 * j + e] *= factor;
            if (threadIdx.x < 4)
                shared.scale[head + e] = factor;
        }
        pairs[j][0] = round_to_bf16_pair(weights[0][0], weights[0][1]);
        pairs[j][1] = round_to_bf16_pair(weights[1][0], weights[1][1]);
        softmax.sum[2 * j] += __uint_as_float(pairs[j][0] << 16) + __uint_as_float(pairs[j][1] << 16);
        softmax.sum[2 * j + 1] +=
            __uint_as_float(pairs[j][0] & 0xffff0000u) + __uint_as_float(pairs[j][1] & 0xffff0000u);
    }
#pragma unroll
    for (int j = 0; j < HEADS / 8; j += 2)
        store_matrices_transposed(shared_address(shared.p) +
                                      place_of_piece(2 * warp + lane / 8 % 2, 8 * (j + lane / 16) + lane % 8, 0),
                                  pairs[j]);
}

/* A tile's weights to shared.p and scale; with the last of a rank its max and sum, too. */
template <int HEADS>
static __device__ __forceinline__ void weigh_tile(float scale, uint32_t place, bool is_first, bool is_last,
                                                  att_softmax<HEADS> &softmax, att_shared<HEADS> &shared)
{
    float logits[HEADS / 2];
    if (is_first)
#pragma unroll
        for (int c = 0; c < HEADS / 4; c++) {
            softmax.max[c] = minus_infinity();
            softmax.sum[c] = 0.0f;
        }
    multiply_by_queries<HEADS>(shared.kv[place], shared.q, logits);
    mask_logits<HEADS>(scale, shared.is_selected[place], logits, shared);
    named_barrier(1, GROUP_THREADS);
    weigh<HEADS>(logits, softmax, shared);
    if (!is_last)
        return;
    tell_heads<HEADS, sum_of>(softmax.sum, shared.sum);
    if (threadIdx.x < 4)
#pragma unroll
        for (int c = 0; c < HEADS / 4; c++)
            shared.max[c / 2 * 8 + threadIdx.x * 2 + c % 2] = softmax.max[c];
}

/* ---- values, by all groups ---- */

/* Adds a tile's weighted values to a rank's: values[m * HEADS / 2 + 4 j + i] is feature 128 * group + 64 m + 16 * warp
 * + lane / 4 + i / 2 * 8, head 8 j + lane % 4 * 2 + i % 2. */
template <int HEADS>
static __device__ __forceinline__ void add_values(uint32_t place, bool is_first, const att_shared<HEADS> &shared,
                                                  float (&values)[HEADS])
{
    const uint32_t group = threadIdx.x / GROUP_THREADS;
    const uint64_t rows = matrix_at(shared_address(shared.kv[place]) + 2 * group * KV_PANEL_BYTES);
    const uint64_t weights = matrix_at(shared_address(shared.p));
    if (!is_first)
#pragma unroll
        for (int j = 0; j < HEADS / 8; j++) {
            const float2 scale = *reinterpret_cast<const float2 *>(&shared.scale[8 * j + threadIdx.x % 4 * 2]);
#pragma unroll
            for (int i = 0; i < 8; i++)
                values[i / 4 * (HEADS / 2) + 4 * j + i % 4] *= i % 2 ? scale.y : scale.x;
        }
    begin_products(values);
#pragma unroll
    for (int k = 0; k < TILE_SLOTS / 16; k++)
#pragma unroll
        for (int m = 0; m < 2; m++)
            multiply_add_shared<HEADS, 1>(values + m * (HEADS / 2),
                                          matrix_further(rows, m * KV_PANEL_BYTES + k * 16 * PANEL_ROW_BYTES),
                                          matrix_further(weights, k * 32), k != 0 || !is_first);
    finish_products(values);
}

/* ---- joining ranks ---- */

/* Max and sum of the ranks so far; starts as the sink alone. */
struct att_joined {
    float max, sum;
    bool is_bad;
};

static __device__ __forceinline__ att_joined join_sink(float sink)
{
    att_joined joined = {sink, 1.0f, !f32_is_finite(sink)};
    return joined;
}

/* Max (a NaN where the head must be zero, -infinity where nothing is selected) and sum of a rank with tiles. */
template <int HEADS>
static __device__ __forceinline__ float2 statistics_of(const att_shared<HEADS> &shared, uint32_t head)
{
    const float max = shared.is_bad_head[head] ? __uint_as_float(0x7fc00000u) : shared.max[head];
    return make_float2(max, (shared.sum[0][head] + shared.sum[1][head]) + (shared.sum[2][head] + shared.sum[3][head]));
}

/* Takes a rank's max and sum in; factors of the numerators so far and of the rank's. */
static __device__ __forceinline__ float2 join_statistics(att_joined &joined, float2 rank)
{
    joined.is_bad = joined.is_bad || rank.x != rank.x;
    const float max = fmaxf(joined.max, rank.x);
    const float2 factors = make_float2(exp_approximate(joined.max - max), exp_approximate(rank.x - max));
    joined.sum = fmaf(factors.y, rank.y, joined.sum * factors.x);
    joined.max = max;
    return factors;
}

static __device__ __forceinline__ float join_value(float so_far, float2 factors, float value)
{
    return fmaf(factors.y, value, so_far * factors.x);
}

/* What numerators are multiplied by: a NaN, which comes out as zeros, for a bad head. */
static __device__ __forceinline__ float final_factor(const att_joined &joined)
{
    return joined.is_bad ? __uint_as_float(0x7fc00000u) : __fdividef(1.0f, joined.sum);
}

/* Four numerators of a lane: features `feature` and 8 further, heads `head` (even) and the next. Lanes 4 apart have the
 * next feature, and take a head of both each. */
static __device__ __forceinline__ void write_outputs(uint16_t *output, uint32_t head, uint32_t feature,
                                                     const float values[4], float2 factors)
{
    const uint32_t is_odd = threadIdx.x / 4 % 2;
    const uint32_t low = f32_to_finite_bf16(values[0] * factors.x) | (uint32_t)f32_to_finite_bf16(values[2] * factors.x)
                                                                         << 16;
    const uint32_t high =
        f32_to_finite_bf16(values[1] * factors.y) | (uint32_t)f32_to_finite_bf16(values[3] * factors.y) << 16;
    const uint32_t other = __shfl_xor_sync(0xffffffffu, is_odd ? low : high, 4), own = is_odd ? high : low;
    const uint32_t first = is_odd ? other : own, second = is_odd ? own : other;
    uint16_t *to = output + (head + is_odd) * DSRI_HEAD_DIM + feature - is_odd;
    if ((uintptr_t)to % 4 == 0) {
        *reinterpret_cast<uint32_t *>(to) = __byte_perm(first, second, 0x5410);
        *reinterpret_cast<uint32_t *>(to + 8) = __byte_perm(first, second, 0x7632);
    } else {
        to[0] = (uint16_t)first;
        to[1] = (uint16_t)second;
        to[8] = (uint16_t)(first >> 16);
        to[9] = (uint16_t)(second >> 16);
    }
}

/* ---- a block's tiles ---- */

extern __shared__ uint4 shared_memory[];

template <int HEADS> static __device__ __forceinline__ void prepare(att_shared<HEADS> &shared)
{
    if (threadIdx.x < HEADS)
        shared.is_bad_head[threadIdx.x] = 0;
    if (threadIdx.x == 0)
        shared.is_bad = 0;
}

/* Tiles first to end - 1 of ranks; after_weights(is_last) is called when the last weights of a rank are there, all
 * logits of the block if it is the last rank; after_rank() when its values are. */
template <int HEADS, typename AFTER_WEIGHTS, typename AFTER_RANK>
static __device__ __forceinline__ void attend(const attention_query &at, const dsri_attention_plan &plan,
                                              uint32_t first_head, uint32_t first, uint32_t end, uint32_t tiles_a_rank,
                                              att_shared<HEADS> &shared, float (&values)[HEADS],
                                              AFTER_WEIGHTS after_weights, AFTER_RANK after_rank)
{
    const bool is_loader = threadIdx.x >= GROUP_THREADS;
    uint32_t brought = first; /* tiles before this one are under way or there */
    int32_t index = -1;
    if (is_loader) {
        index = load_index(at, first);
        const int32_t second = load_index(at, first + 1);
        if (first < end)
            bring_tile(at, index, 0, shared);
        brought = first + 1;
        index = second;
    } else {
        bring_queries(at, plan.sinks, first_head, shared);
    }
    copy_async_commit();
    if (is_loader && at.form == ROW_WORDS && brought < end) {
        bring_tile(at, index, 1, shared);
        brought++;
        index = load_index(at, brought);
    }
    copy_async_commit();
    copy_async_wait<1>();
    order_before_matrices();
    __syncthreads();
    att_softmax<HEADS> softmax;
    uint32_t tile_of_rank = 0;
#pragma unroll 1
    for (uint32_t tile = first; tile < end; tile++) {
        const uint32_t place = (tile - first) % 2;
        const bool is_first = tile_of_rank == 0, is_last = tile_of_rank + 1 == tiles_a_rank || tile + 1 == end;
        if (!is_loader) {
            weigh_tile(plan.scale, place, is_first, is_last, softmax, shared);
            order_before_matrices();
        } else if (brought == tile + 1 && brought < end) {
            bring_tile(at, index, place ^ 1, shared);
            brought++;
            index = load_index(at, brought);
        }
        __syncthreads();
        if (is_last)
            after_weights(tile + 1 == end);
        add_values(place, is_first, shared, values);
        copy_async_commit();
        copy_async_wait<0>();
        order_before_matrices();
        __syncthreads();
        if (is_last)
            after_rank();
        tile_of_rank = is_last ? 0 : tile_of_rank + 1;
    }
}

/* ---- a rank a block ---- */

/* Hands the block's statistics to all blocks, and its numerators to those that join them. */
template <int HEADS>
static __device__ __forceinline__ void send_parts(bool has_tiles, const float (&values)[HEADS], uint32_t rank,
                                                  att_shared<HEADS> &shared)
{
    const uint32_t i = threadIdx.x % GROUP_THREADS, group = threadIdx.x / GROUP_THREADS;
    if (threadIdx.x < ATT_RANKS * HEADS) {
        const uint32_t head = threadIdx.x % HEADS;
        float2 statistics = make_float2(minus_infinity(), 0.0f);
        if (has_tiles)
            statistics = statistics_of(shared, head);
        if (shared.is_bad)
            statistics.x = __uint_as_float(0x7fc00000u);
        send_float2(&shared.statistics[rank][head], statistics, &shared.statistics_are_here, threadIdx.x / HEADS);
    }
#pragma unroll
    for (uint32_t n = 0; n < HEADS / 4; n++) {
        const uint32_t piece = group * (HEADS / 4) + n;
        const float *v = values + 4 * n;
        send_float4(&shared.parts[rank][piece / ATT_RANKS][i], make_float4(v[0], v[1], v[2], v[3]),
                    &shared.values_are_here, piece % ATT_RANKS);
    }
}

/* One piece of 64 features x 8 heads by a group. */
template <int HEADS>
static __device__ __forceinline__ void join_piece(uint32_t n_ranks, uint32_t rank, uint32_t place,
                                                  att_shared<HEADS> &shared, uint16_t *output)
{
    const uint32_t piece = place * ATT_RANKS + rank, lane = threadIdx.x % 32, i = threadIdx.x % GROUP_THREADS;
    const uint32_t head = piece % (HEADS / 8) * 8 + lane % 4 * 2;
    const uint32_t feature = piece / (HEADS / 8) * 64 + i / 32 * 16 + lane / 4;
    att_joined joined[2] = {join_sink(shared.sinks[head]), join_sink(shared.sinks[head + 1])};
    float2 factors[ATT_RANKS][2];
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    shared_barrier_wait(&shared.statistics_are_here, 0);
#pragma unroll
    for (uint32_t r = 0; r < ATT_RANKS; r++)
        if (r < n_ranks)
            for (uint32_t e = 0; e < 2; e++)
                factors[r][e] = join_statistics(joined[e], shared.statistics[r][head + e]);
    shared_barrier_wait(&shared.values_are_here, 0);
#pragma unroll
    for (uint32_t r = 0; r < ATT_RANKS; r++)
        if (r < n_ranks) {
            const float4 part = shared.parts[r][place][i];
            sums[0] = join_value(sums[0], factors[r][0], part.x);
            sums[1] = join_value(sums[1], factors[r][1], part.y);
            sums[2] = join_value(sums[2], factors[r][0], part.z);
            sums[3] = join_value(sums[3], factors[r][1], part.w);
        }
    write_outputs(output, head, feature, sums, make_float2(final_factor(joined[0]), final_factor(joined[1])));
}

template <int HEADS>
static __device__ __forceinline__ void attend_in_cluster(const dsri_attention_plan &plan, uint8_t *zeroed)
{
    auto &shared = *reinterpret_cast<att_shared<HEADS> *>(shared_memory);
    const uint32_t rank = blockIdx.x, first_head = blockIdx.y * HEADS;
    const attention_query at = find_query(plan, blockIdx.z, zeroed);
    const att_tiles tiles = tiles_of(at.width);
    const uint32_t first = min(rank * tiles.a_rank, tiles.n), end = min(first + tiles.a_rank, tiles.n);
    const uint32_t n_ranks = tiles.n ? (tiles.n + tiles.a_rank - 1) / tiles.a_rank : 0;
    const uint32_t n_pieces = (HEADS + ATT_RANKS - 1 - rank) / ATT_RANKS;
    prepare(shared);
    if (threadIdx.x == 0) {
        shared_barrier_init(&shared.statistics_are_here, 1);
        shared_barrier_init(&shared.values_are_here, 1);
        shared_barriers_ready();
        shared_barrier_arrive_expecting(&shared.statistics_are_here, sizeof shared.statistics);
        shared_barrier_arrive_expecting(&shared.values_are_here, ATT_RANKS * n_pieces * sizeof shared.parts[0][0]);
    }
    __syncthreads();
    wait_for_prior_launch();
    float values[HEADS] = {};
    attend<HEADS>(
        at, plan, first_head, first, end, tiles.a_rank, shared, values, [](bool) { cluster_arrive(); }, []() {});
    if (first == end)
        cluster_arrive();
    let_next_launch_start();
    cluster_wait(); /* the other blocks' barriers are ready, and their queries no longer needed */
    send_parts<HEADS>(first < end, values, rank, shared);
#pragma unroll 1
    for (uint32_t place = threadIdx.x / GROUP_THREADS; place < n_pieces; place += 4)
        join_piece<HEADS>(n_ranks, rank, place, shared, at.output + (uint64_t)first_head * DSRI_HEAD_DIM);
}

extern "C" __global__ void __cluster_dims__(ATT_RANKS, 1, 1) __launch_bounds__(BLOCK_THREADS, 1)
    dsr_attention_row16_bf16__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    attend_in_cluster<16>(plan, zeroed);
}

extern "C" __global__ void __cluster_dims__(ATT_RANKS, 1, 1) __launch_bounds__(BLOCK_THREADS, 1)
    dsr_attention_row32_bf16__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    attend_in_cluster<32>(plan, zeroed);
}

/* ---- all ranks in one block ---- */

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    dsr_attention_rows_bf16__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    enum { HEADS = 32 };
    auto &shared = *reinterpret_cast<att_shared<HEADS> *>(shared_memory);
    const uint32_t first_head = blockIdx.y * HEADS, lane = threadIdx.x % 32;
    const attention_query at = find_query(plan, blockIdx.z, zeroed);
    const att_tiles tiles = tiles_of(at.width);
    const bool joins = threadIdx.x / 32 == GROUP_THREADS / 32; /* a lane a head */
    att_joined joined = {0.0f, 1.0f, false};
    float values[HEADS] = {}, sums[HEADS] = {};
    prepare(shared);
    __syncthreads();
    wait_for_prior_launch();
    if (joins)
        joined = join_sink(plan.sinks[first_head + lane]);
    attend<HEADS>(
        at, plan, first_head, 0, tiles.n, tiles.a_rank, shared, values,
        [&](bool) {
            if (joins)
                shared.join_factors[lane] = join_statistics(joined, statistics_of(shared, lane));
        },
        [&]() {
#pragma unroll
            for (int j = 0; j < HEADS / 8; j++)
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const int n = i / 4 * (HEADS / 2) + 4 * j + i % 4;
                    sums[n] = join_value(sums[n], shared.join_factors[8 * j + lane % 4 * 2 + i % 2], values[n]);
                }
        });
    let_next_launch_start();
    if (joins) {
        joined.is_bad = joined.is_bad || shared.is_bad;
        shared.scale[lane] = final_factor(joined);
    }
    __syncthreads();
    uint16_t *output = at.output + (uint64_t)first_head * DSRI_HEAD_DIM;
    const uint32_t feature = threadIdx.x / GROUP_THREADS * 128 + threadIdx.x % GROUP_THREADS / 32 * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < HEADS / 4; n++) {
        const uint32_t head = n % (HEADS / 8) * 8 + lane % 4 * 2;
        const float2 factors = make_float2(shared.scale[head], shared.scale[head + 1]);
        write_outputs(output, head, feature + n / (HEADS / 8) * 64, sums + 4 * n, factors);
    }
}

#endif
