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
#include "cuda/kernels/attention_row.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

enum {
    ATT_RANKS = 5,
    TILE_SLOTS = 64,
    GROUP_THREADS = 128,
    BLOCK_THREADS = 4 * GROUP_THREADS,
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
    float2 join_factors[2][HEADS];
    float tile_max[4][HEADS]; /* of group 0's warps */
    float scale[HEADS];       /* exp(old max - new max) */
    float max[HEADS];         /* of the rank */
    float sum[4][HEADS];
    float sinks[HEADS];
    float2 turns[DSRI_TAIL_PAIRS]; /* cosine, and sine; a NaN where the angle is not finite */
    uint64_t statistics_are_here, values_are_here;
    uint8_t is_selected[2][TILE_SLOTS];
    uint32_t is_bad;
};

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

/* A slot's index and row. */
struct att_slot {
    int32_t index;
    dsri_cache_entry row;
};

static __device__ __forceinline__ att_slot find_slot(const attention_query &at, int32_t index)
{
    att_slot slot = {index, find_row(at, index)};
    return slot;
}

/* Asks for packed rows of a loader's slots, to find them in the L2 cache. */
static __device__ __forceinline__ void prefetch_packed(const dsri_cache_entry &own)
{
    if (own.values == nullptr)
        return;
#pragma unroll
    for (uint32_t i = 0; i < DSRI_FP8_ROW_BYTES; i += 128)
        prefetch_line(own.values + i);
    prefetch_line(own.values + DSRI_FP8_ROW_BYTES - 1);
    prefetch_line(own.scales);
}

/* A loader's share of rows that are not plain copies, AT_ONCE rows at once; lane i knows where the i-th lies. */
template <row_form FORM, int AT_ONCE>
static __device__ __forceinline__ void decode_rows(const dsri_cache_entry &own, uint8_t *kv)
{
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
template <int HEADS, int AT_ONCE>
static __device__ __forceinline__ void bring_tile(const attention_query &at, const att_slot &own, uint32_t place,
                                                  att_shared<HEADS> &shared)
{
    const uint32_t own_slot = loader_slot(threadIdx.x % 32);
    if (!own.row.values && own.index != -1)
        shared.is_bad = 1;
    if (own_slot < TILE_SLOTS)
        shared.is_selected[place][own_slot] = own.row.values != nullptr;
    if (at.form == ROW_WORDS) {
#pragma unroll
        for (uint32_t i = 0; i < LOADER_SLOTS; i++) {
            const uint8_t *row = of_lane(own.row.values, i);
            const uint32_t slot = loader_slot(i);
            if (slot < TILE_SLOTS)
                bring_row(shared.kv[place], row ? row : at.cache->pages, row != nullptr, slot, KV_PANEL_BYTES);
        }
    } else if (at.form == ROW_FP8) {
        decode_rows<ROW_FP8, AT_ONCE>(own.row, shared.kv[place]);
    } else {
        decode_rows<ROW_HALVES, 2>(own.row, shared.kv[place]);
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

/* Max of a head's logits in a rank so far, infinity where the head must be zero, and the sum of its weights of a warp's
 * slots. A lane has head softmax_head(). */
struct att_softmax {
    float max, sum;
};

template <int HEADS> static __device__ __forceinline__ uint32_t softmax_head()
{
    const uint32_t lane = threadIdx.x % 32, column = lane / 4 * (HEADS / 4) / 8;
    return column / 2 * 8 + lane % 4 * 2 + column % 2;
}

/* The value of the lane whose own head is head 8 * (column / 2) + lane % 4 * 2 + column % 2. */
template <int HEADS> static __device__ __forceinline__ float of_column(float value, int column)
{
    return __shfl_sync(0xffffffffu, value, column * (128 / HEADS) + (int)(threadIdx.x % 4));
}

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

/* Starts: logits[4 j + i] is slot 16 * warp + lane / 4 + i / 2 * 8, head 8 j + lane % 4 * 2 + i % 2. */
template <int HEADS>
static __device__ __forceinline__ void multiply_by_queries(uint32_t place, float (&logits)[HEADS / 2])
{
    const uint32_t rows = matrix_at(offsetof(att_shared<HEADS>, kv) + place * N_PANELS * KV_PANEL_BYTES);
    const uint32_t heads = matrix_at(offsetof(att_shared<HEADS>, q));
#pragma unroll
    for (int i = 0; i < HEADS / 2; i++)
        logits[i] = 0.0f;
    begin_products(logits);
#pragma unroll
    for (int i = 0; i < DSRI_HEAD_DIM / 16; i++)
        multiply_add_shared<HEADS, 0>(logits, matrix_further(rows, i / 4 * KV_PANEL_BYTES + i % 4 * 32),
                                      matrix_further(heads, i / 4 * HEADS * PANEL_ROW_BYTES + i % 4 * 32), i != 0);
}

/* Scales and masks logits; max of the own head over a warp's slots. Rows of slots that select nothing are zeros. */
template <int HEADS>
static __device__ __forceinline__ float mask_logits(float scale, const uint8_t *is_selected, float (&logits)[HEADS / 2])
{
    const uint32_t slot = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    const bool is_slot[2] = {is_selected[slot] != 0, is_selected[slot + 8] != 0};
    float max[HEADS / 4];
#pragma unroll
    for (int c = 0; c < HEADS / 4; c++) {
        float &low = logits[c / 2 * 4 + c % 2], &high = logits[c / 2 * 4 + c % 2 + 2];
        low *= scale;
        high *= scale;
        const float is_bad = fmaf(low, 0.0f, high * 0.0f); /* a NaN if one is not finite */
        low = is_slot[0] ? low : minus_infinity();
        high = is_slot[1] ? high : minus_infinity();
        max[c] = is_bad == 0.0f ? fmaxf(low, high) : -minus_infinity();
    }
    return fold_lanes<HEADS / 4, greater>(max);
}

/* Weights of logits as BF16 to shared.p; the sum of the own head's. offset: the own head's max, or 0. */
template <int HEADS>
static __device__ __forceinline__ float weigh(const float (&logits)[HEADS / 2], float offset, att_shared<HEADS> &shared)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t pairs[HEADS / 8][2]; /* two heads of a slot */
    float sums[HEADS / 4];
#pragma unroll
    for (int j = 0; j < HEADS / 8; j++) {
        const float low = of_column<HEADS>(offset, 2 * j), high = of_column<HEADS>(offset, 2 * j + 1);
#pragma unroll
        for (int r = 0; r < 2; r++)
            pairs[j][r] = round_to_bf16_pair(exp_approximate(logits[4 * j + 2 * r] - low),
                                             exp_approximate(logits[4 * j + 2 * r + 1] - high));
        sums[2 * j] = __uint_as_float(pairs[j][0] << 16) + __uint_as_float(pairs[j][1] << 16);
        sums[2 * j + 1] = __uint_as_float(pairs[j][0] & 0xffff0000u) + __uint_as_float(pairs[j][1] & 0xffff0000u);
    }
#pragma unroll
    for (int j = 0; j < HEADS / 8; j += 2) {
        const int next = HEADS == 8 ? j : j + 1; /* the same matrices twice */
        const uint32_t matrices[4] = {pairs[j][0], pairs[j][1], pairs[next][0], pairs[next][1]};
        store_matrices_transposed(
            shared_address(shared.p) +
                place_of_piece(2 * warp + lane / 8 % 2, 8 * (lane < 16 ? (uint32_t)j : (uint32_t)next) + lane % 8, 0),
            matrices);
    }
    return fold_lanes<HEADS / 4, sum_of>(sums);
}

/* A tile's weights to shared.p and scale; with the last of a rank its max and sum, too. */
template <int HEADS>
static __device__ __forceinline__ void weigh_tile(float scale, uint32_t place, bool is_first, bool is_last,
                                                  att_softmax &softmax, att_shared<HEADS> &shared)
{
    const uint32_t warp = threadIdx.x / 32, head = softmax_head<HEADS>();
    float logits[HEADS / 2];
    multiply_by_queries<HEADS>(place, logits);
    finish_products(logits);
    shared.tile_max[warp][head] = mask_logits<HEADS>(scale, shared.is_selected[place], logits);
    named_barrier(1, GROUP_THREADS);
    const float old = is_first ? minus_infinity() : softmax.max;
    const float max = fmaxf(fmaxf(fmaxf(shared.tile_max[0][head], shared.tile_max[1][head]),
                                  fmaxf(shared.tile_max[2][head], shared.tile_max[3][head])),
                            old);
    const float sum = weigh<HEADS>(logits, max == minus_infinity() ? 0.0f : max, shared);
    const float factor = old == minus_infinity() ? 0.0f : exp_approximate(old - max);
    softmax.max = max;
    softmax.sum = is_first ? sum : softmax.sum * factor + sum;
    if (warp == 0)
        shared.scale[head] = factor;
    if (is_last) {
        shared.sum[warp][head] = softmax.sum;
        if (warp == 0)
            shared.max[head] = max;
    }
}

/* ---- values, by all groups ---- */

/* Adds a tile's weighted values to a rank's: values[m * HEADS / 2 + 4 j + i] is feature 128 * group + 64 m + 16 * warp
 * + lane / 4 + i / 2 * 8, head 8 j + lane % 4 * 2 + i % 2. */
template <int HEADS>
static __device__ __forceinline__ void add_values(uint32_t place, bool is_first, const att_shared<HEADS> &shared,
                                                  float (&values)[HEADS])
{
    /* by a shuffle, for the compiler to see that all lanes have the same */
    const uint32_t group = __shfl_sync(0xffffffffu, threadIdx.x / GROUP_THREADS, 0);
    const uint32_t rows = matrix_at(offsetof(att_shared<HEADS>, kv) + (place * N_PANELS + 2 * group) * KV_PANEL_BYTES);
    const uint32_t weights = matrix_at(offsetof(att_shared<HEADS>, p));
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

/* Max (a NaN where the head must be zero, -infinity where nothing is selected) and sum of a rank with tiles. */
template <int HEADS>
static __device__ __forceinline__ float2 statistics_of(const att_shared<HEADS> &shared, uint32_t head)
{
    const float max = shared.max[head];
    return make_float2(max == -minus_infinity() ? __uint_as_float(0x7fc00000u) : max,
                       (shared.sum[0][head] + shared.sum[1][head]) + (shared.sum[2][head] + shared.sum[3][head]));
}

static __device__ __forceinline__ float join_value(float so_far, float2 factors, float value)
{
    return fmaf(factors.y, value, so_far * factors.x);
}

/* Outputs of four numerators of a lane: features f and f + 8, heads h (even) and the next, as pairs of features from f
 * and f + 8 on (f even) of head h, or from f - 1 and f + 7 on (f odd) of the next. Lanes 4 apart have features f and
 * the next. */
static __device__ __forceinline__ void pair_outputs(const float values[4], float2 factors, uint32_t pairs[2])
{
    const bool is_odd = threadIdx.x / 4 % 2;
    const uint32_t low = finite_bf16_pair(values[0] * factors.x, values[2] * factors.x);
    const uint32_t high = finite_bf16_pair(values[1] * factors.y, values[3] * factors.y);
    const uint32_t other = __shfl_xor_sync(0xffffffffu, is_odd ? low : high, 4), own = is_odd ? high : low;
    const uint32_t first = is_odd ? other : own, second = is_odd ? own : other;
    pairs[0] = __byte_perm(first, second, 0x5410);
    pairs[1] = __byte_perm(first, second, 0x7632);
}

/* ---- a block's tiles ---- */

extern __shared__ uint4 shared_memory[];

template <int HEADS> static __device__ __forceinline__ void prepare(att_shared<HEADS> &shared)
{
    if (threadIdx.x == 0)
        shared.is_bad = 0;
}

/* Tiles first to end - 1 of ranks. after_weights(i) is called when the last weights of the block's i-th rank are there,
 * after_rank(i) when its values are, perhaps after the next rank's weights. */
template <int HEADS, int AT_ONCE, typename AFTER_WEIGHTS, typename AFTER_RANK>
static __device__ __forceinline__ void attend(const attention_query &at, const dsri_attention_plan &plan,
                                              uint32_t first_head, uint32_t first, uint32_t end, uint32_t tiles_a_rank,
                                              att_shared<HEADS> &shared, float (&values)[HEADS],
                                              AFTER_WEIGHTS after_weights, AFTER_RANK after_rank)
{
    const bool is_loader = threadIdx.x >= GROUP_THREADS;
    uint32_t brought = first; /* tiles before this one are under way or there */
    const bool is_plain = at.form == ROW_WORDS;
    att_slot own = {-1, {nullptr, nullptr}}; /* of the next tile to bring, if rows are not plain copies */
    int32_t index = -1;                      /* of the next tile to bring, or of the one after it */
    if (is_loader) {
        index = load_index(at, first);
        const int32_t second = load_index(at, first + 1);
        if (first < end)
            bring_tile<HEADS, AT_ONCE>(at, find_slot(at, index), 0, shared);
        own = find_slot(at, second);
        index = load_index(at, first + 2);
        brought = first + 1;
    } else {
        bring_queries(at, plan.sinks, first_head, shared);
    }
    copy_async_commit();
    if (is_loader && is_plain && brought < end) {
        bring_tile<HEADS, AT_ONCE>(at, own, 1, shared);
        brought++;
    }
    copy_async_commit();
    copy_async_wait<1>();
    order_before_async();
    __syncthreads();
    att_softmax softmax;
    uint32_t tile_of_rank = 0, n_ranks = 0;
#pragma unroll 1
    for (uint32_t tile = first; tile < end; tile++) {
        const uint32_t place = (tile - first) % 2;
        const bool is_first = tile_of_rank == 0, is_last = tile_of_rank + 1 == tiles_a_rank || tile + 1 == end;
        const bool is_new_rank = is_first && tile != first;
        if (!is_loader) {
            weigh_tile<HEADS>(plan.scale, place, is_first, is_last, softmax, shared);
            order_before_async();
        } else {
            if (brought == tile + 1 && brought < end) {
                att_slot now = own;
                own = find_slot(at, index);
                if (is_plain)
                    now = own;
                bring_tile<HEADS, AT_ONCE>(at, now, place ^ 1, shared);
                brought++;
                index = load_index(at, brought + !is_plain);
                if (at.form == ROW_FP8)
                    prefetch_packed(own.row);
            }
            if (is_new_rank)
                after_rank(n_ranks - 1);
        }
        __syncthreads();
        if (is_last)
            after_weights(n_ranks);
        if (is_new_rank && !is_loader) /* group 0 makes the weights before, for which all wait */
            after_rank(n_ranks - 1);
        add_values(place, is_first, shared, values);
        copy_async_commit();
        copy_async_wait<0>();
        order_before_async();
        __syncthreads();
        n_ranks += is_last;
        tile_of_rank = is_last ? 0 : tile_of_rank + 1;
    }
    if (first < end)
        after_rank(n_ranks - 1);
}

/* ---- a rank a block ---- */

/* Hands the block's statistics to all blocks, and its numerators to those that join them; all arrive at barriers in
 * shared memory, the block's own too: no barrier of the block is needed, and compute-sanitizer's racecheck does not see
 * all that one orders after named_barrier(). */
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
        if (threadIdx.x / HEADS == rank) {
            shared.statistics[rank][head] = statistics;
            shared_barrier_arrive(&shared.statistics_are_here);
        } else {
            send_float2(&shared.statistics[rank][head], statistics, &shared.statistics_are_here, threadIdx.x / HEADS);
        }
    }
#pragma unroll
    for (uint32_t n = 0; n < HEADS / 4; n++) {
        const uint32_t piece = group * (HEADS / 4) + n;
        const float4 part = make_float4(values[4 * n], values[4 * n + 1], values[4 * n + 2], values[4 * n + 3]);
        float4 *to = &shared.parts[rank][piece / ATT_RANKS][i];
        if (piece % ATT_RANKS == rank) {
            *to = part;
            shared_barrier_arrive(&shared.values_are_here);
        } else {
            send_float4(to, part, &shared.values_are_here, piece % ATT_RANKS);
        }
    }
}

/* The rotation that follows: where a query's outputs go, null if none follows. */
static __device__ __forceinline__ uint16_t *turned_output(const dsri_rope_plan &rope, const attention_query &at)
{
    return rope.n_rows ? rope.rows[at.row].output + (uint64_t)at.number * rope.n_heads * DSRI_HEAD_DIM : nullptr;
}

/* By a warp: a lane a pair. */
template <int HEADS>
static __device__ __forceinline__ void find_turns(const dsri_rope_plan &rope, const attention_query &at,
                                                  att_shared<HEADS> &shared)
{
    const uint32_t position = rope.rows[at.row].start_pos + at.number * rope.rows[at.row].position_step;
    const rotation turn = rotation_by(position, rope.frequencies[threadIdx.x]);
    shared.turns[threadIdx.x] =
        make_float2(turn.is_finite ? turn.cosine : __uint_as_float(0x7fc00000u), rope.inverse ? -turn.sine : turn.sine);
}

/* One piece of 64 features x 8 heads by a group; turned: null, or where the outputs go once more, their last 64
 * features turned. */
template <int HEADS>
static __device__ __forceinline__ void join_piece(uint32_t n_ranks, uint32_t rank, uint32_t place,
                                                  att_shared<HEADS> &shared, uint16_t *output, uint16_t *turned)
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
    uint32_t pairs[2];
    pair_outputs(sums, make_float2(final_factor(joined[0]), final_factor(joined[1])), pairs);
    const uint32_t offset = (head + lane / 4 % 2) * DSRI_HEAD_DIM + feature / 2 * 2,
                   tail = DSRI_HEAD_DIM - 2 * DSRI_TAIL_PAIRS;
    if (turned != output) {
        write_pair(output + offset, pairs[0]);
        write_pair(output + offset + 8, pairs[1]);
    }
    if (turned == nullptr)
        return;
    if (feature >= tail)
#pragma unroll
        for (uint32_t e = 0; e < 2; e++) {
            const float2 turn = shared.turns[(feature - tail) / 2 + 4 * e];
            pairs[e] = rotate_pair(pairs[e], rotation{turn.y, turn.x, turn.x == turn.x});
        }
    write_pair(turned + offset, pairs[0]);
    write_pair(turned + offset + 8, pairs[1]);
}

template <int HEADS>
static __device__ __forceinline__ void attend_in_cluster(const dsri_attention_plan &plan, const dsri_rope_plan &rope,
                                                         uint8_t *zeroed)
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
        shared_barrier_init(&shared.statistics_are_here, 1 + HEADS + DSRI_TAIL_PAIRS);
        shared_barrier_init(&shared.values_are_here, 1 + n_pieces * GROUP_THREADS);
        shared_barriers_ready();
        shared_barrier_arrive_expecting(&shared.statistics_are_here, (ATT_RANKS - 1) * sizeof shared.statistics[0]);
        shared_barrier_arrive_expecting(&shared.values_are_here,
                                        (ATT_RANKS - 1) * n_pieces * sizeof shared.parts[0][0]);
    }
    __syncthreads();
    if (threadIdx.x < DSRI_TAIL_PAIRS) {
        if (rope.n_rows)
            find_turns(rope, at, shared);
        shared_barrier_arrive(&shared.statistics_are_here); /* racecheck, as in send_parts() */
    }
    wait_for_prior_launch();
    float values[HEADS] = {};
    attend<HEADS, 6>(
        at, plan, first_head, first, end, tiles.a_rank, shared, values, [](uint32_t) { cluster_arrive_after_reads(); },
        [](uint32_t) {});
    if (first == end)
        cluster_arrive_after_reads();
    let_next_launch_start();
    cluster_wait(); /* the other blocks' barriers are ready, and their queries no longer needed */
    send_parts<HEADS>(first < end, values, rank, shared);
    uint16_t *output = at.output + (uint64_t)first_head * DSRI_HEAD_DIM, *turned = turned_output(rope, at);
    if (turned)
        turned += (uint64_t)first_head * DSRI_HEAD_DIM;
#pragma unroll 1
    for (uint32_t place = threadIdx.x / GROUP_THREADS; place < n_pieces; place += 4)
        join_piece<HEADS>(n_ranks, rank, place, shared, output, turned);
}

extern "C" __global__ void __cluster_dims__(ATT_RANKS, 1, 1) __launch_bounds__(BLOCK_THREADS, 1)
    dsr_attention_row8_bf16__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed,
                                  __grid_constant__ const dsri_rope_plan rope)
{
    attend_in_cluster<8>(plan, rope, zeroed);
}

extern "C" __global__ void __cluster_dims__(ATT_RANKS, 1, 1) __launch_bounds__(BLOCK_THREADS, 1)
    dsr_attention_row16_bf16__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed,
                                   __grid_constant__ const dsri_rope_plan rope)
{
    attend_in_cluster<16>(plan, rope, zeroed);
}

extern "C" __global__ void __cluster_dims__(ATT_RANKS, 1, 1) __launch_bounds__(BLOCK_THREADS, 1)
    dsr_attention_row32_bf16__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed,
                                   __grid_constant__ const dsri_rope_plan rope)
{
    attend_in_cluster<32>(plan, rope, zeroed);
}

/* ---- all ranks in one block ---- */

enum { STAGED_ROW_BYTES = DSRI_HEAD_DIM * 2 + 16 };

/* Outputs of numerators to shared.kv[0], of which shared.scale are the factors. */
template <int HEADS>
static __device__ __forceinline__ void stage_outputs(const float (&sums)[HEADS], att_shared<HEADS> &shared)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t feature = threadIdx.x / GROUP_THREADS * 128 + threadIdx.x % GROUP_THREADS / 32 * 16 + lane / 8 * 2;
#pragma unroll
    for (int n = 0; n < HEADS / 4; n++) {
        const uint32_t head = n % (HEADS / 8) * 8 + lane % 4 * 2;
        uint32_t pairs[2];
        pair_outputs(sums + 4 * n, make_float2(shared.scale[head], shared.scale[head + 1]), pairs);
        uint8_t *to = shared.kv[0] + (head + lane / 4 % 2) * STAGED_ROW_BYTES + (feature + n / (HEADS / 8) * 64) * 2;
        *reinterpret_cast<uint32_t *>(to) = pairs[0];
        *reinterpret_cast<uint32_t *>(to + 16) = pairs[1];
    }
}

template <int HEADS> static __device__ __forceinline__ void write_staged(const uint8_t *staged, uint16_t *output)
{
    const bool is_aligned = is_word_aligned(output, 0);
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < HEADS * DSRI_HEAD_DIM / 8; i += BLOCK_THREADS) {
        const uint8_t *from = staged + i / (DSRI_HEAD_DIM / 8) * STAGED_ROW_BYTES + i % (DSRI_HEAD_DIM / 8) * 16;
        if (is_aligned)
            *reinterpret_cast<uint4 *>(output + 8 * i) = *reinterpret_cast<const uint4 *>(from);
        else
            for (uint32_t k = 0; k < 8; k++)
                output[8 * i + k] = reinterpret_cast<const uint16_t *>(from)[k];
    }
}

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
    if (threadIdx.x == 0) {
        shared_barrier_init(&shared.statistics_are_here, HEADS);
        shared_barrier_init(&shared.values_are_here, BLOCK_THREADS);
        shared_barriers_ready();
    }
    __syncthreads();
    wait_for_prior_launch();
    if (joins)
        joined = join_sink(plan.sinks[first_head + lane]);
    attend<HEADS, 3>(
        at, plan, first_head, 0, tiles.n, tiles.a_rank, shared, values,
        [&](uint32_t i) {
            if (joins)
                shared.join_factors[i % 2][lane] = join_statistics(joined, statistics_of(shared, lane));
        },
        [&](uint32_t rank) {
#pragma unroll
            for (int j = 0; j < HEADS / 8; j++)
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const int n = i / 4 * (HEADS / 2) + 4 * j + i % 4;
                    sums[n] =
                        join_value(sums[n], shared.join_factors[rank % 2][8 * j + lane % 4 * 2 + i % 2], values[n]);
                }
        });
    let_next_launch_start();
    if (joins) {
        joined.is_bad = joined.is_bad || shared.is_bad;
        shared.scale[lane] = final_factor(joined);
        shared_barrier_arrive(&shared.statistics_are_here); /* racecheck, as in send_parts() */
    }
    shared_barrier_wait(&shared.statistics_are_here, 0);
    stage_outputs<HEADS>(sums, shared);
    shared_barrier_arrive(&shared.values_are_here);
    shared_barrier_wait(&shared.values_are_here, 0);
    write_staged<HEADS>(shared.kv[0], at.output + (uint64_t)first_head * DSRI_HEAD_DIM);
}

#endif
