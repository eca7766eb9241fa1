/* Row-exact attention on tensor cores by mma.sync, for devices and images without wgmma. A block has 16 heads of a
 * query and walks its slots in tiles of 64: warps copy the rows to shared memory once, and both products read them
 * there. Both forms of attention come out alike.
 *
 * Logits: 16 slots of 128 features a warp, whose heads stay in registers; the four sums of a logit are added in order.
 * Weights: a head a warp, two slots a lane. Values: 32 features a warp.
 *
 * A KV row or a query with a value that is not finite needs no look of its own: it gives logits that are not finite. */
#include "cuda/kernels/attention_row.cuh"

enum {
    MMA_HEADS = 16,
    MMA_SLOTS = 64, /* of a tile */
    MMA_WARPS = 16,
    MMA_THREADS = 32 * MMA_WARPS,
    MMA_PANEL_BYTES = MMA_SLOTS * PANEL_ROW_BYTES,
    MMA_QUARTERS = 4, /* of the features, for logits */
    MMA_STEPS = DSRI_HEAD_DIM / MMA_QUARTERS / 16,
    MMA_LOGITS = MMA_SLOTS + 8, /* of a head, so that stores meet no bank conflicts */
    WARP_SLOTS = MMA_SLOTS / MMA_WARPS,
    MMA_FOUND = 8 * MMA_SLOTS /* slots whose rows are found ahead */
};

struct mma_shared {
    uint8_t kv[2][N_PANELS * MMA_PANEL_BYTES]; /* panels of place_of_piece(), slots are rows */
    float logits[MMA_QUARTERS][MMA_HEADS][MMA_LOGITS];
    uint8_t weights[MMA_HEADS * PANEL_ROW_BYTES]; /* a panel of a tile's weights: heads are rows of slots */
    float scale[MMA_HEADS];                       /* exp(old max - new max); at the end what numerators are times */
    dsri_cache_entry rows[MMA_FOUND];             /* of the next slots; without values where none is selected */
    uint32_t is_bad;
};

/* ---- bringing rows ---- */

static __device__ __forceinline__ int32_t load_index_of(const attention_query &at, uint32_t slot)
{
    return slot < at.width ? at.indices[slot] : -1;
}

static __device__ __forceinline__ void find_row_of(const attention_query &at, uint32_t slot, int32_t index,
                                                   mma_shared &shared)
{
    const dsri_cache_entry row = find_row(at, index);
    if (!row.values && index != -1)
        shared.is_bad = 1;
    shared.rows[slot % MMA_FOUND] = row;
}

/* The i-th slot of a warp. */
static __device__ __forceinline__ uint32_t warp_slot(uint32_t i)
{
    return threadIdx.x / 32 + i * MMA_WARPS;
}

/* Pieces of a warp's rows that are not plain copies. */
struct mma_pieces {
    uint4 of_row[WARP_SLOTS][2];
};

/* Starts to bring a tile: copies to shared memory are under way after, other pieces have been asked for. Rows of slots
 * that select nothing become zeros. */
template <row_form FORM>
static __device__ __forceinline__ void start_rows(const attention_query &at, uint32_t tile, mma_pieces &pieces,
                                                  mma_shared &shared)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < WARP_SLOTS; i++) {
        const uint32_t slot = warp_slot(i);
        const dsri_cache_entry row = shared.rows[(tile * MMA_SLOTS + slot) % MMA_FOUND];
        if constexpr (FORM == ROW_WORDS) {
            bring_row(shared.kv[tile % 2], row.values ? row.values : at.cache->pages, row.values != nullptr, slot,
                      MMA_PANEL_BYTES);
        } else {
            pieces.of_row[i][0] = load_piece<FORM>(row, lane * 8);
            pieces.of_row[i][1] = load_piece<FORM>(row, (lane + 32) * 8);
        }
    }
    copy_async_commit();
}

/* Pieces that have been asked for to shared memory, as BF16. */
template <row_form FORM>
static __device__ __forceinline__ void finish_rows(uint32_t tile, const mma_pieces &pieces, mma_shared &shared)
{
    const uint32_t lane = threadIdx.x % 32;
    if constexpr (FORM != ROW_WORDS)
#pragma unroll
        for (uint32_t i = 0; i < WARP_SLOTS; i++)
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                const uint32_t piece = lane + 32 * half;
                decode_to<FORM>(shared.kv[tile % 2] + place_of_piece(piece, warp_slot(i), MMA_PANEL_BYTES),
                                pieces.of_row[i][half], piece);
            }
}

/* ---- logits ---- */

/* A warp's features of 16 heads, as the left operand. */
struct mma_heads {
    uint32_t q[MMA_STEPS][4];
};

static __device__ __forceinline__ uint32_t quarter_of_warp()
{
    return threadIdx.x / 32 % MMA_QUARTERS;
}

/* The block's heads to panels of shared memory, one a warp. */
static __device__ __forceinline__ void bring_queries(const uint16_t *q, uint8_t *to)
{
    const uint32_t head = threadIdx.x / 32;
    if (is_word_aligned(q, 0))
        bring_row(to, q + head * DSRI_HEAD_DIM, true, head, MMA_HEADS * PANEL_ROW_BYTES);
    else
        for (uint32_t piece = threadIdx.x % 32; piece < 8 * N_PANELS; piece += 32)
            *reinterpret_cast<uint4 *>(to + place_of_piece(piece, head, MMA_HEADS * PANEL_ROW_BYTES)) =
                load_8<false>(q + head * DSRI_HEAD_DIM, piece * 8);
    copy_async_commit();
}

static __device__ __forceinline__ void load_queries(const uint8_t *from, mma_heads &heads)
{
    const uint32_t lane = threadIdx.x % 32, first = quarter_of_warp() * (2 * MMA_STEPS) + lane / 16;
#pragma unroll
    for (uint32_t s = 0; s < MMA_STEPS; s++)
        load_matrices(shared_address(from) + place_of_piece(first + 2 * s, lane % 16, MMA_HEADS * PANEL_ROW_BYTES),
                      heads.q[s]);
}

/* Sums over a warp's features of 16 slots. */
static __device__ __forceinline__ void multiply_by_heads(const mma_heads &heads, uint32_t place, mma_shared &shared)
{
    const uint32_t lane = threadIdx.x % 32, quarter = quarter_of_warp();
    const uint32_t first_slot = threadIdx.x / 32 / MMA_QUARTERS * 16;
    const uint32_t slot = first_slot + lane / 16 * 8 + lane % 8, piece = quarter * (2 * MMA_STEPS) + lane / 8 % 2;
    const uint32_t first = shared_address(shared.kv[place]) + place_of_piece(piece, slot, MMA_PANEL_BYTES);
    float sums[2][4] = {};
#pragma unroll
    for (uint32_t s = 0; s < MMA_STEPS; s++) { /* two pieces further: another place among 8, or another panel */
        uint32_t rows[4];
        load_matrices((first ^ s % 4 * 32) + s / 4 * MMA_PANEL_BYTES, rows);
        multiply_add(sums[0], heads.q[s], rows[0], rows[1]);
        multiply_add(sums[1], heads.q[s], rows[2], rows[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float *to = &shared.logits[quarter][lane / 4 + i % 2 * 8][first_slot + i / 2 * 8 + lane % 4 * 2];
        *reinterpret_cast<float2 *>(to) = make_float2(sums[i / 2][i % 2 * 2], sums[i / 2][i % 2 * 2 + 1]);
    }
}

/* ---- weights ---- */

/* Of a warp's head so far: the max of its logits, and a lane's share of the sum of weights. */
struct mma_softmax {
    float max, sum;
    bool is_bad;
};

static __device__ __forceinline__ float2 sum_of_quarters(const float *logits)
{
    float2 parts[MMA_QUARTERS];
#pragma unroll
    for (int i = 0; i < MMA_QUARTERS; i++)
        parts[i] = *reinterpret_cast<const float2 *>(logits + i * MMA_HEADS * MMA_LOGITS);
    return make_float2((parts[0].x + parts[1].x) + (parts[2].x + parts[3].x),
                       (parts[0].y + parts[1].y) + (parts[2].y + parts[3].y));
}

/* A tile's weights and scale of the warp's head. */
static __device__ __forceinline__ void weigh(float scale, uint32_t tile, mma_softmax &softmax, mma_shared &shared)
{
    const uint32_t head = threadIdx.x / 32, lane = threadIdx.x % 32, slot = 2 * lane;
    float2 logits = sum_of_quarters(&shared.logits[0][head][slot]);
    logits.x *= scale;
    logits.y *= scale;
    softmax.is_bad = softmax.is_bad || !(fmaf(logits.x, 0.0f, logits.y * 0.0f) == 0.0f);
    const dsri_cache_entry *rows = &shared.rows[(tile * MMA_SLOTS + slot) % MMA_FOUND];
    logits.x = rows[0].values ? logits.x : minus_infinity();
    logits.y = rows[1].values ? logits.y : minus_infinity();
    const float max = fmaxf(softmax.max, max_of_lanes(fmaxf(logits.x, logits.y), 32));
    const float offset = max == minus_infinity() ? 0.0f : max, factor = exp_approximate(softmax.max - offset);
    const uint32_t pair = round_to_bf16_pair(exp_approximate(logits.x - offset), exp_approximate(logits.y - offset));
    softmax.sum = softmax.sum * factor + (__uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u));
    softmax.max = max;
    *reinterpret_cast<uint32_t *>(shared.weights + place_of_piece(lane / 4, head, 0) + lane % 4 * 4) = pair;
    if (lane == 0)
        shared.scale[head] = factor;
}

/* What the numerators of the warp's head are multiplied by, to shared.scale. */
static __device__ __forceinline__ void finish_softmax(const mma_softmax &softmax, float sink, mma_shared &shared)
{
    const bool is_bad = __any_sync(0xffffffffu, softmax.is_bad) || shared.is_bad;
    float sum = softmax.sum;
#pragma unroll
    for (uint32_t lanes = 16; lanes > 0; lanes /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    att_joined joined = join_sink(sink);
    const float2 factors =
        join_statistics(joined, make_float2(is_bad ? __uint_as_float(0x7fc00000u) : softmax.max, sum));
    if (threadIdx.x % 32 == 0)
        shared.scale[threadIdx.x / 32] = factors.y * final_factor(joined);
}

/* ---- values ---- */

/* Adds a tile's weighted values: values[n][i] is head lane / 4 + i / 2 * 8, feature 32 * warp + 8 n + lane % 4 * 2 +
 * i % 2. */
static __device__ __forceinline__ void add_weighted(uint32_t place, float (&values)[4][4], const mma_shared &shared)
{
    const uint32_t lane = threadIdx.x % 32, row = lane % 16, piece = lane / 16;
    const uint32_t first_weight = shared_address(shared.weights) + place_of_piece(piece, row, 0);
    const uint32_t first =
        shared_address(shared.kv[place]) + place_of_piece(threadIdx.x / 32 * 4 + piece, row, MMA_PANEL_BYTES);
    const float scale[2] = {shared.scale[lane / 4], shared.scale[lane / 4 + 8]};
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            values[n][i] *= scale[i / 2];
#pragma unroll
    for (uint32_t k = 0; k < MMA_SLOTS / 16; k++) {
        uint32_t left[4], right[4];
        load_matrices(first_weight ^ k * 32, left);
#pragma unroll
        for (uint32_t n = 0; n < 4; n += 2) {
            load_matrices_transposed((first ^ n * 16) + k * 16 * PANEL_ROW_BYTES, right);
            multiply_add(values[n], left, right[0], right[1]);
            multiply_add(values[n + 1], left, right[2], right[3]);
        }
    }
}

static __device__ __forceinline__ void write_outputs(const float (&values)[4][4], uint16_t *output,
                                                     const mma_shared &shared)
{
    const uint32_t lane = threadIdx.x % 32;
    const float factors[2] = {shared.scale[lane / 4], shared.scale[lane / 4 + 8]};
    uint16_t *to = output + lane / 4 * DSRI_HEAD_DIM + threadIdx.x / 32 * 32 + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            write_pair(to + i * 8 * DSRI_HEAD_DIM + 8 * n,
                       finite_bf16_pair(values[n][2 * i] * factors[i], values[n][2 * i + 1] * factors[i]));
}

/* ---- a block ---- */

/* Of 16 heads of a query, whose first are at q and output. */
template <row_form FORM>
static __device__ __forceinline__ void attend_heads(const attention_query &at, float logit_scale, const uint16_t *q,
                                                    const float *sinks, uint16_t *output, mma_shared &shared)
{
    const uint32_t n_tiles = (at.width + MMA_SLOTS - 1) / MMA_SLOTS;
    const int32_t first_index = load_index_of(at, threadIdx.x);
    int32_t index = load_index_of(at, MMA_FOUND + threadIdx.x);
    const float sink = sinks[threadIdx.x / 32];
    bring_queries(q, shared.kv[1]);
    find_row_of(at, threadIdx.x, first_index, shared);
    mma_pieces pieces;
    __syncthreads();
    start_rows<FORM>(at, 0, pieces, shared);
    finish_rows<FORM>(0, pieces, shared);
    copy_async_wait<1>();
    __syncthreads();
    mma_heads heads;
    load_queries(shared.kv[1], heads);
    mma_softmax softmax = {minus_infinity(), 0.0f, false};
    float values[4][4] = {};
#pragma unroll 1
    for (uint32_t tile = 0; tile < n_tiles; tile++) {
        copy_async_wait<0>();
        __syncthreads();
        if (tile + 1 < n_tiles)
            start_rows<FORM>(at, tile + 1, pieces, shared);
        if (tile > 0 && tile % 4 == 0 && threadIdx.x < MMA_FOUND / 2) { /* in the place of four tiles that are done */
            const uint32_t slot = (tile + 4) * MMA_SLOTS + threadIdx.x;
            find_row_of(at, slot, index, shared);
            index = load_index_of(at, slot + MMA_FOUND / 2);
        }
        multiply_by_heads(heads, tile % 2, shared);
        __syncthreads();
        weigh(logit_scale, tile, softmax, shared);
        __syncthreads();
        add_weighted(tile % 2, values, shared);
        if (tile + 1 < n_tiles)
            finish_rows<FORM>(tile + 1, pieces, shared);
    }
    let_next_launch_start();
    __syncthreads(); /* all have read the last scale, and written is_bad */
    finish_softmax(softmax, sink, shared);
    __syncthreads();
    write_outputs(values, output, shared);
}

extern "C" __global__ void __launch_bounds__(MMA_THREADS, 1)
    dsr_attention_mma16_bf16__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    extern __shared__ uint4 shared_memory[];
    auto &shared = *reinterpret_cast<mma_shared *>(shared_memory);
    const uint32_t first_head = blockIdx.x * MMA_HEADS;
    const attention_query at = find_query(plan, blockIdx.y, zeroed);
    const uint16_t *q = at.q + (uint64_t)first_head * DSRI_HEAD_DIM;
    uint16_t *output = at.output + (uint64_t)first_head * DSRI_HEAD_DIM;
    const float *sinks = plan.sinks + first_head;
    if (threadIdx.x == 0)
        shared.is_bad = 0;
    __syncthreads();
    wait_for_prior_launch();
    if (at.form == ROW_WORDS)
        attend_heads<ROW_WORDS>(at, plan.scale, q, sinks, output, shared);
    else if (at.form == ROW_FP8)
        attend_heads<ROW_FP8>(at, plan.scale, q, sinks, output, shared);
    else
        attend_heads<ROW_HALVES>(at, plan.scale, q, sinks, output, shared);
}
