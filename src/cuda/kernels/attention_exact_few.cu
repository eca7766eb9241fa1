/* Device-exact attention of few rows, both forms, in two launches: logits, then weights and values. Such a command
 * takes as long as its longest chain of loads and multiply-adds, so each block asks for all its operands at once, keeps
 * them as F32 in shared memory, the inner dimension (features, slots) together, and has few outputs: a thread of the
 * warps that multiply has four or two. Bits are those of attention_exact.cu. */
#include "cuda/kernels/attention_common.cuh"

enum { FEW_SLOTS = 20, FEW_HEADS = 16, FEW_ROWS = FEW_HEADS + FEW_SLOTS };

/* ---- logits: a block is 16 heads x 20 slots; 8 threads bring a row --------------------------------------------- */

enum {
    FEW_PIECES = 8, /* of a thread: 8 features each, 64 apart */
    FEW_LOGIT_THREADS = 8 * FEW_ROWS,
    FEW_STRIDE = DSRI_HEAD_DIM + 4 /* floats from row to row: 8 rows in 32 banks */
};

struct few_logits {
    float rows[FEW_ROWS][FEW_STRIDE]; /* queries, then KV rows */
    dsri_cache_entry places[FEW_SLOTS];
};

static __device__ __forceinline__ uint4 load_piece_of(row_form form, const dsri_cache_entry &row, uint32_t f)
{
    return form == ROW_WORDS ? load_piece<ROW_WORDS>(row, f)
           : form == ROW_FP8 ? load_piece<ROW_FP8>(row, f)
                             : load_piece<ROW_HALVES>(row, f);
}

static __device__ __forceinline__ uint4 decode_piece_of(row_form form, uint4 piece, uint32_t f)
{
    return form == ROW_FP8 ? decode_piece<ROW_FP8>(piece, f) : piece;
}

/* Where a thread's row lies: a query, or the row of a slot, which one thread notes for others and for the values. */
static __device__ __forceinline__ dsri_cache_entry find_few_row(const attention_query &at, uint32_t first_head,
                                                                uint32_t first_slot, few_logits &shared)
{
    const uint32_t row = threadIdx.x / 8;
    if (row < FEW_HEADS) {
        dsri_cache_entry query;
        query.values = reinterpret_cast<const uint8_t *>(at.q + (uint64_t)(first_head + row) * DSRI_HEAD_DIM);
        query.scales = nullptr;
        return query;
    }
    const uint32_t slot = first_slot + row - FEW_HEADS;
    const int32_t index = slot < at.width ? at.indices[slot] : -1;
    const dsri_cache_entry found = find_row(at, index);
    if (threadIdx.x % 8 == 0) {
        if (index != -1 && !found.values)
            at.flags->is_bad = 1;
        shared.places[row - FEW_HEADS] = found;
        if (blockIdx.y == 0 && slot < at.width)
            at.rows[slot] = found;
    }
    return found;
}

static __device__ __forceinline__ float lane_of(float4 x, int i)
{
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

/* Lanes i and i ^ 1 share one operand, i and i ^ 2 the other: so that wide loads of either take two passes of shared
 * memory, not four. 8 lanes differ in heads, 4 in slots or features. */
static __device__ __forceinline__ uint32_t few_head_lane()
{
    return threadIdx.x % 16 / 2;
}

static __device__ __forceinline__ uint32_t few_other_lane()
{
    return threadIdx.x % 2 + threadIdx.x % 32 / 16 * 2;
}

/* Four steps of 2 heads and 2 slots, half of the block's apart. */
struct few_steps {
    float4 q[2], kv[2];

    __device__ __forceinline__ void load(const few_logits &shared, uint32_t head, uint32_t slot, uint32_t f)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            q[i] = *reinterpret_cast<const float4 *>(&shared.rows[head + FEW_HEADS / 2 * i][f]);
            kv[i] = *reinterpret_cast<const float4 *>(&shared.rows[FEW_HEADS + slot + FEW_SLOTS / 2 * i][f]);
        }
    }
    __device__ __forceinline__ void add_to(float acc[2][2]) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int s = 0; s < 2; s++)
                    acc[h][s] = __fmaf_rn(lane_of(q[h], i), lane_of(kv[s], i), acc[h][s]);
    }
};

/* Four chains: steps are on their way from shared memory while others are added. */
static __device__ __forceinline__ void multiply_few_rows(const few_logits &shared, uint32_t head, uint32_t slot,
                                                         float acc[2][2])
{
    few_steps steps[4];
#pragma unroll
    for (uint32_t i = 0; i < 3; i++)
        steps[i].load(shared, head, slot, 4 * i);
#pragma unroll 1
    for (uint32_t f = 0; f < DSRI_HEAD_DIM; f += 16) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            if (f + 4 * i + 12 < DSRI_HEAD_DIM)
                steps[(i + 3) % 4].load(shared, head, slot, f + 4 * i + 12);
            steps[i].add_to(acc);
        }
    }
}

/* Logits of a head are together, -infinity where nothing is selected. */
static __device__ __forceinline__ void write_few_logits(const dsri_attention_plan &plan, const attention_query &at,
                                                        uint32_t head, uint32_t first_slot, uint32_t slot,
                                                        const few_logits &shared, const float acc[2][2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t own_head = head + FEW_HEADS / 2 * h;
        bool is_bad = false;
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const uint32_t own_slot = slot + FEW_SLOTS / 2 * s;
            const bool is_selected = shared.places[own_slot].values != nullptr;
            const float logit = is_selected ? __fmul_rn(acc[h][s], plan.scale) : minus_infinity();
            is_bad = is_bad || (is_selected && !f32_is_finite(logit));
            if (first_slot + own_slot < at.width)
                at.logits[(uint64_t)own_head * at.width + first_slot + own_slot] = logit;
        }
        if (is_bad)
            at.flags->is_bad_head[own_head] = 1;
    }
}

extern "C" __global__ void __launch_bounds__(FEW_LOGIT_THREADS, 2)
    dsr_attention_few_logits16x20__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    extern __shared__ uint4 shared_memory[];
    auto &shared = *reinterpret_cast<few_logits *>(shared_memory);
    const attention_query at = find_query(plan, blockIdx.z, zeroed);
    const uint32_t first_slot = blockIdx.x * FEW_SLOTS, first_head = blockIdx.y * FEW_HEADS;
    const uint32_t row = threadIdx.x / 8, feature = threadIdx.x % 8 * 8;
    const bool is_query = row < FEW_HEADS;
    let_next_launch_start();
    wait_for_prior_launch();
    if (first_slot >= at.width)
        return;
    const row_form form = is_query ? (is_word_aligned(at.q, 0) ? ROW_WORDS : ROW_HALVES) : at.form;
    const dsri_cache_entry from = find_few_row(at, first_head, first_slot, shared);
    uint4 pieces[FEW_PIECES];
#pragma unroll
    for (uint32_t i = 0; i < FEW_PIECES; i++)
        pieces[i] = load_piece_of(form, from, 64 * i + feature);
#pragma unroll
    for (uint32_t i = 0; i < FEW_PIECES; i++)
        widen_8(decode_piece_of(form, pieces[i], 64 * i + feature), &shared.rows[row][64 * i + feature]);
    const uint32_t head = few_head_lane(), slot = threadIdx.x / 32 * 4 + few_other_lane();
    const bool multiplies = slot < FEW_SLOTS / 2;
    float acc[2][2] = {};
    __syncthreads();
    if (!multiplies)
        return;
    multiply_few_rows(shared, head, slot, acc);
    write_few_logits(plan, at, first_head + head, first_slot, slot, shared, acc);
}

/* ---- values: a block is 8 heads x 32 features, 640 slots at a time ---------------------------------------------
 *
 * Each warp makes the weights of a head. Four warps multiply, a thread one head by two features. */

enum {
    FEW_VALUE_HEADS = 8,
    FEW_FEATURES = 32,
    FEW_VALUE_THREADS = 32 * FEW_VALUE_HEADS,
    FEW_VALUE_SLOTS = 640, /* whole chunks */
    FEW_CHUNKS = FEW_VALUE_SLOTS / DSRI_CHUNK_SLOTS,
    FEW_WEIGHT_STRIDE = FEW_VALUE_SLOTS + 4, /* 8 heads in 32 banks */
    FEW_LOGITS = FEW_VALUE_SLOTS / 32,       /* of a lane: every 32nd */
    FEW_VALUE_PIECES = FEW_VALUE_SLOTS * FEW_FEATURES / 8 / FEW_VALUE_THREADS,
    FEW_MULTIPLYING = FEW_VALUE_HEADS * FEW_FEATURES / 2
};

struct few_values {
    float weights[FEW_VALUE_HEADS][FEW_WEIGHT_STRIDE];
    float values[FEW_FEATURES][FEW_VALUE_SLOTS]; /* a slot lies at place_of_slot() */
    float factors[FEW_CHUNKS][FEW_VALUE_HEADS];  /* chunked: exp(m_c - M), or -1 for an empty chunk */
    float sink_weights[FEW_VALUE_HEADS];
    float denominators[FEW_VALUE_HEADS]; /* a NaN where the head is zero */
};

struct few_place {
    uint32_t first_head, first_feature;
};

/* Eights of slots trade places, differently for each eight of features: a warp that writes 8 slots of 32 features, and
 * one that reads 4 slots of a feature of each eight, then meet all banks. */
static __device__ __forceinline__ uint32_t place_of_slot(uint32_t slot, uint32_t eight)
{
    return slot ^ eight * 8;
}

/* A lane's logits of its warp's head. */
struct few_lane_logits {
    float of[FEW_LOGITS];

    __device__ __forceinline__ void load(const attention_query &at, uint32_t head, uint32_t first_slot)
    {
#pragma unroll
        for (uint32_t i = 0; i < FEW_LOGITS; i++) {
            const uint32_t slot = first_slot + threadIdx.x % 32 + 32 * i;
            of[i] = slot < at.width ? at.logits[(uint64_t)head * at.width + slot] : minus_infinity();
        }
    }
    __device__ __forceinline__ float max() const
    {
        float x = of[0];
#pragma unroll
        for (uint32_t i = 1; i < FEW_LOGITS; i++)
            x = fmaxf(x, of[i]);
        return max_of_lanes(x, 32);
    }
    template <bool CHUNKED>
    __device__ __forceinline__ void make_weights(float max, uint32_t h, few_values &shared) const
    {
        const uint32_t lane = threadIdx.x % 32;
        float own_factor = 0.0f;
#pragma unroll
        for (uint32_t c = 0; c < FEW_CHUNKS; c++) {
            float m = max;
            if constexpr (CHUNKED) {
                m = max_of_lanes(fmaxf(of[2 * c], of[2 * c + 1]), 32);
                own_factor = lane == c ? m : own_factor;
            }
            shared.weights[h][64 * c + lane] = softmax_exp(__fadd_rn(of[2 * c], -m));
            shared.weights[h][64 * c + 32 + lane] = softmax_exp(__fadd_rn(of[2 * c + 1], -m));
        }
        if (CHUNKED && lane < FEW_CHUNKS)
            shared.factors[lane][h] = own_factor == minus_infinity() ? -1.0f : softmax_exp(__fadd_rn(own_factor, -max));
    }
};

/* The largest of the sink and all logits of a head; `first` are those of the first slots. */
static __device__ __forceinline__ float max_of_head(const attention_query &at, uint32_t head, float sink,
                                                    const few_lane_logits &first)
{
    float max = fmaxf(sink, first.max());
    for (uint32_t slot = FEW_VALUE_SLOTS; slot < at.width; slot += FEW_VALUE_SLOTS) {
        few_lane_logits more;
        more.load(at, head, slot);
        max = fmaxf(max, more.max());
    }
    return max;
}

/* 8 features each of every 64th slot. */
struct few_value_pieces {
    uint4 of[FEW_VALUE_PIECES];

    static __device__ __forceinline__ uint32_t own_slot(uint32_t i)
    {
        return threadIdx.x / 4 + FEW_VALUE_THREADS / 4 * i;
    }
    __device__ __forceinline__ void load(const attention_query &at, uint32_t first_feature, uint32_t first_slot)
    {
        dsri_cache_entry rows[FEW_VALUE_PIECES];
#pragma unroll
        for (uint32_t i = 0; i < FEW_VALUE_PIECES; i++)
            rows[i] = row_of_slot(at, first_slot + own_slot(i));
#pragma unroll
        for (uint32_t i = 0; i < FEW_VALUE_PIECES; i++)
            of[i] = load_values(at.form, rows[i], first_feature + threadIdx.x % 4 * 8);
    }
    __device__ __forceinline__ void store(const attention_query &at, uint32_t first_feature, few_values &shared) const
    {
        const uint32_t eight = threadIdx.x % 4;
#pragma unroll
        for (uint32_t i = 0; i < FEW_VALUE_PIECES; i++)
            store_column(decode_piece_of(at.form, of[i], first_feature + eight * 8),
                         &shared.values[eight * 8][place_of_slot(own_slot(i), eight)], FEW_VALUE_SLOTS);
    }
};

/* Two chains on over n slots, or one chain for each chunk, scaled and added. Four slots are read at a time: those after
 * the last have weight 0. */
template <bool CHUNKED>
static __device__ __forceinline__ void multiply_few_values(const few_values &shared, uint32_t n, uint32_t h,
                                                           uint32_t feature, float numerators[2])
{
    const uint32_t eight = feature / 8;
    const float *w = shared.weights[h], *v = shared.values[feature];
#pragma unroll 1
    for (uint32_t chunk = 0; chunk < n; chunk += DSRI_CHUNK_SLOTS) {
        float sums[2] = {CHUNKED ? 0.0f : numerators[0], CHUNKED ? 0.0f : numerators[1]};
#pragma unroll
        for (uint32_t i = 0; i < DSRI_CHUNK_SLOTS; i += 4) {
            const float4 weights = *reinterpret_cast<const float4 *>(w + chunk + i);
            const float *from = v + chunk + place_of_slot(i, eight);
            const float4 a = *reinterpret_cast<const float4 *>(from),
                         b = *reinterpret_cast<const float4 *>(from + FEW_VALUE_SLOTS);
            sums[0] = __fmaf_rn(weights.x, a.x, sums[0]);
            sums[1] = __fmaf_rn(weights.x, b.x, sums[1]);
            sums[0] = __fmaf_rn(weights.y, a.y, sums[0]);
            sums[1] = __fmaf_rn(weights.y, b.y, sums[1]);
            sums[0] = __fmaf_rn(weights.z, a.z, sums[0]);
            sums[1] = __fmaf_rn(weights.z, b.z, sums[1]);
            sums[0] = __fmaf_rn(weights.w, a.w, sums[0]);
            sums[1] = __fmaf_rn(weights.w, b.w, sums[1]);
        }
        const float factor = CHUNKED ? shared.factors[chunk / DSRI_CHUNK_SLOTS][h] : 0.0f;
#pragma unroll
        for (int j = 0; j < 2; j++)
            numerators[j] = !CHUNKED ? sums[j] : factor < 0 ? numerators[j] : __fmaf_rn(factor, sums[j], numerators[j]);
    }
}

template <bool CHUNKED>
static __device__ __forceinline__ float add_few_weights(const few_values &shared, uint32_t n, uint32_t h,
                                                        float denominator)
{
#pragma unroll 1
    for (uint32_t chunk = 0; chunk < n; chunk += DSRI_CHUNK_SLOTS) {
        float sum = CHUNKED ? 0.0f : denominator;
#pragma unroll
        for (uint32_t i = 0; i < DSRI_CHUNK_SLOTS; i += 4) {
            const float4 w = *reinterpret_cast<const float4 *>(&shared.weights[h][chunk + i]);
            sum = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(sum, w.x), w.y), w.z), w.w);
        }
        const float factor = CHUNKED ? shared.factors[chunk / DSRI_CHUNK_SLOTS][h] : 0.0f;
        denominator = !CHUNKED ? sum : factor < 0 ? denominator : __fmaf_rn(factor, sum, denominator);
    }
    return denominator;
}

template <bool CHUNKED>
static __device__ __forceinline__ void few_values_of_block(const dsri_attention_plan &plan, uint8_t *zeroed)
{
    extern __shared__ uint4 shared_memory[];
    auto &shared = *reinterpret_cast<few_values *>(shared_memory);
    const attention_query at = find_query(plan, blockIdx.z, zeroed);
    const uint32_t t = threadIdx.x, warp = t / 32, lane = t % 32;
    const uint32_t first_head = blockIdx.y * FEW_VALUE_HEADS, first_feature = blockIdx.x * FEW_FEATURES;
    wait_for_prior_launch();
    few_value_pieces pieces;
    few_lane_logits logits;
    logits.load(at, first_head + warp, 0);
    const float sink = plan.sinks[first_head + warp];
    pieces.load(at, first_feature, 0);
    const bool is_zero =
        is_zero_head(at, first_head + t % FEW_VALUE_HEADS, plan.sinks[first_head + t % FEW_VALUE_HEADS]);
    const float max = max_of_head(at, first_head + warp, sink, logits);
    if (lane == 0)
        shared.sink_weights[warp] = softmax_exp(__fadd_rn(sink, -max));
    /* 8 heads x 4 eights of features a warp, of which each of the warps has two features */
    const uint32_t head = few_head_lane(), feature = few_other_lane() * 8 + 2 * warp;
    const bool multiplies = t < FEW_MULTIPLYING, adds = t >= FEW_MULTIPLYING && t < FEW_MULTIPLYING + FEW_VALUE_HEADS;
    float numerators[2] = {0.0f, 0.0f}, denominator = 0.0f;
    for (uint32_t slot = 0; slot < at.width; slot += FEW_VALUE_SLOTS) {
        if (slot > 0) {
            __syncthreads();
            logits.load(at, first_head + warp, slot);
            pieces.load(at, first_feature, slot);
        }
        logits.make_weights<CHUNKED>(max, warp, shared);
        pieces.store(at, first_feature, shared);
        __syncthreads();
        const uint32_t n = at.width - slot < FEW_VALUE_SLOTS ? at.width - slot : FEW_VALUE_SLOTS;
        if (multiplies)
            multiply_few_values<CHUNKED>(shared, n, head, feature, numerators);
        else if (adds)
            denominator =
                add_few_weights<CHUNKED>(shared, n, lane, slot == 0 ? shared.sink_weights[lane] : denominator);
    }
    if (adds)
        shared.denominators[lane] = is_zero ? __uint_as_float(0x7fc00000u) : denominator;
    __syncthreads();
    if (multiplies)
        write_values<2>(at.output + (uint64_t)(first_head + head) * DSRI_HEAD_DIM + first_feature + feature, numerators,
                        shared.denominators[head]);
    if (warp == FEW_VALUE_HEADS - 1)
        leave_query(at, plan.n_heads);
}

extern "C" __global__ void __launch_bounds__(FEW_VALUE_THREADS, 2)
    dsr_attention_few_values8x32__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    few_values_of_block<false>(plan, zeroed);
}

extern "C" __global__ void __launch_bounds__(FEW_VALUE_THREADS, 2)
    dsr_attention_few_chunks8x32__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    few_values_of_block<true>(plan, zeroed);
}
