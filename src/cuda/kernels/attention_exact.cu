/* Device-exact attention, both forms, in two launches: logits with one F32 chain each, and largest logits of 16 slots;
 * then softmax weights and weighted sums with one chain per head and feature. Lanes of a warp share heads and differ in
 * slots or features, so that one operand is a broadcast. Each launch comes in three sizes, for few to many rows: how
 * many outputs a thread has changes no bits.
 *
 * A KV row or a query with a value that is not finite needs no look of its own: it gives logits that are not finite. */
#include "cuda/kernels/attention_common.cuh"

/* ---- logits: a block is 8 HEADS heads x 16 SLOTS slots; warps differ in heads ---- */

enum {
    LOGIT_THREADS = 128,
    LOGIT_WARPS = LOGIT_THREADS / 32,
    LOGIT_QUARTERS = 4, /* of the features: a quarter is copied while others are multiplied */
    QUARTER_FEATURES = DSRI_HEAD_DIM / LOGIT_QUARTERS,
    Q_STRIDE = DSRI_HEAD_DIM + 4,      /* floats: heads that a warp reads at once lie in different banks */
    KV_STRIDE = DSRI_HEAD_DIM * 2 + 16 /* bytes: so do slots */
};

/* A thread has HEADS heads of the 2 HEADS of its warp, and slots lane % 16 + 16 i. */
template <int HEADS, int SLOTS> struct logit_shared {
    float q[2 * HEADS * LOGIT_WARPS][Q_STRIDE];
    uint8_t kv[16 * SLOTS * KV_STRIDE];
    dsri_cache_entry rows[16 * SLOTS];
};

/* The features of one quarter of rows that are not plain copies, a few rows at once. */
template <row_form FORM, int HEADS, int SLOTS>
static __device__ __forceinline__ void decode_quarter(uint32_t quarter, logit_shared<HEADS, SLOTS> &shared)
{
    const uint32_t piece = quarter * 16 + threadIdx.x % 16;
#pragma unroll 1
    for (uint32_t first = 0; first < 2 * SLOTS; first += 2) {
        uint4 loaded[2];
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            loaded[i] = load_piece<FORM>(shared.rows[threadIdx.x / 16 + 8 * (first + i)], piece * 8);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            decode_to<FORM>(shared.kv + (threadIdx.x / 16 + 8 * (first + i)) * KV_STRIDE + piece * 16, loaded[i],
                            piece);
    }
}

/* Starts the copies of the features of one quarter. */
template <int HEADS, int SLOTS>
static __device__ __forceinline__ void bring_quarter(const attention_query &at, uint32_t quarter,
                                                     logit_shared<HEADS, SLOTS> &shared)
{
    const uint32_t piece = quarter * 16 + threadIdx.x % 16;
    if (at.form == ROW_WORDS) {
#pragma unroll
        for (uint32_t i = 0; i < 2 * SLOTS; i++) {
            const uint32_t slot = threadIdx.x / 16 + 8 * i;
            const uint8_t *row = shared.rows[slot].values;
            copy_async_16(shared.kv + slot * KV_STRIDE + piece * 16, (row ? row : at.cache->pages) + piece * 16,
                          row ? 16 : 0);
        }
    } else if (at.form == ROW_FP8) {
        decode_quarter<ROW_FP8>(quarter, shared);
    } else {
        decode_quarter<ROW_HALVES>(quarter, shared);
    }
}

/* A thread's share of a quarter of the block's heads: from memory, and as F32 to shared memory. */
template <int HEADS> struct query_quarter {
    uint4 pieces[HEADS];

    __device__ __forceinline__ void load(const uint16_t *q, uint32_t quarter)
    {
        const uint16_t *from = q + threadIdx.x / 16 * DSRI_HEAD_DIM + quarter * QUARTER_FEATURES + threadIdx.x % 16 * 8;
        const bool is_aligned = is_word_aligned(q, 0);
#pragma unroll
        for (int i = 0; i < HEADS; i++)
            pieces[i] =
                is_aligned ? load_8<true>(from, 8 * i * DSRI_HEAD_DIM) : load_8<false>(from, 8 * i * DSRI_HEAD_DIM);
    }

    template <int SLOTS>
    __device__ __forceinline__ void store(uint32_t quarter, logit_shared<HEADS, SLOTS> &shared) const
    {
#pragma unroll
        for (int i = 0; i < HEADS; i++)
            widen_8(pieces[i], &shared.q[threadIdx.x / 16 + 8 * i][quarter * QUARTER_FEATURES + threadIdx.x % 16 * 8]);
    }
};

/* The products of one quarter's features; `head` is the thread's first. */
template <int HEADS, int SLOTS>
static __device__ __forceinline__ void multiply_quarter(const logit_shared<HEADS, SLOTS> &shared, uint32_t quarter,
                                                        uint32_t head, float acc[HEADS][SLOTS])
{
    const float *q = &shared.q[head][quarter * QUARTER_FEATURES];
    const uint8_t *kv = shared.kv + threadIdx.x % 16 * KV_STRIDE + quarter * QUARTER_FEATURES * 2;
#pragma unroll(SLOTS == 1 ? 4 : 2)
    for (uint32_t k = 0; k < QUARTER_FEATURES; k += 8) {
        uint4 rows[SLOTS];
#pragma unroll
        for (int s = 0; s < SLOTS; s++)
            rows[s] = *reinterpret_cast<const uint4 *>(kv + 16 * s * KV_STRIDE + k * 2);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float4 heads[HEADS];
#pragma unroll
            for (int h = 0; h < HEADS; h++)
                heads[h] = *reinterpret_cast<const float4 *>(q + h * Q_STRIDE + k + 4 * half);
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int s = 0; s < SLOTS; s++) {
                    const uint32_t pair = half ? (j / 2 ? rows[s].w : rows[s].z) : (j / 2 ? rows[s].y : rows[s].x);
                    const float v = __uint_as_float(j % 2 ? pair & 0xffff0000u : pair << 16);
#pragma unroll
                    for (int h = 0; h < HEADS; h++) {
                        const float w = j == 0 ? heads[h].x : j == 1 ? heads[h].y : j == 2 ? heads[h].z : heads[h].w;
                        acc[h][s] = __fmaf_rn(w, v, acc[h][s]);
                    }
                }
        }
    }
}

/* Scales and writes the logits; what is left in acc counts for the largest: -infinity where nothing is selected. */
template <int HEADS, int SLOTS>
static __device__ __forceinline__ void write_logits(const dsri_attention_plan &plan, const attention_query &at,
                                                    uint32_t first_slot, uint32_t head,
                                                    const logit_shared<HEADS, SLOTS> &shared, float acc[HEADS][SLOTS])
{
    bool is_bad[HEADS] = {};
#pragma unroll
    for (int s = 0; s < SLOTS; s++) {
        const uint32_t i = threadIdx.x % 16 + 16 * s;
        const bool is_selected = shared.rows[i].values != nullptr;
        float *logits = at.logits + (uint64_t)(first_slot + i) * plan.n_heads + head;
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            acc[h][s] = __fmul_rn(acc[h][s], plan.scale);
            is_bad[h] = is_bad[h] || (is_selected && !f32_is_finite(acc[h][s]));
        }
        if (first_slot + i < at.width)
#pragma unroll
            for (int h = 0; h < HEADS; h += 4)
                *reinterpret_cast<float4 *>(logits + h) =
                    make_float4(acc[h][s], acc[h + 1][s], acc[h + 2][s], acc[h + 3][s]);
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            acc[h][s] = is_selected ? acc[h][s] : __uint_as_float(0xff800000u);
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++)
        if (is_bad[h])
            at.flags->is_bad_head[head + h] = 1;
}

/* The largest logits of 16 slots. */
template <int HEADS, int SLOTS>
static __device__ __forceinline__ void write_slot_max(const dsri_attention_plan &plan, const attention_query &at,
                                                      uint32_t first_slot, uint32_t head, float acc[HEADS][SLOTS])
{
#pragma unroll
    for (int lanes = 1; lanes < 16; lanes *= 2)
#pragma unroll
        for (int s = 0; s < SLOTS; s++)
#pragma unroll
            for (int h = 0; h < HEADS; h++)
                acc[h][s] = fmaxf(acc[h][s], __shfl_xor_sync(0xffffffffu, acc[h][s], lanes));
    if (threadIdx.x % 16 != 0)
        return;
#pragma unroll
    for (int s = 0; s < SLOTS; s++)
        if (first_slot + 16 * s < at.width)
#pragma unroll
            for (int h = 0; h < HEADS; h += 4)
                *reinterpret_cast<float4 *>(at.slot_max + (uint64_t)(first_slot / 16 + s) * plan.n_heads + head + h) =
                    make_float4(acc[h][s], acc[h + 1][s], acc[h + 2][s], acc[h + 3][s]);
}

extern __shared__ uint4 shared_memory[];

template <int HEADS, int SLOTS>
static __device__ __forceinline__ void block_of_logits(const dsri_attention_plan &plan, uint8_t *zeroed)
{
    auto &shared = *reinterpret_cast<logit_shared<HEADS, SLOTS> *>(shared_memory);
    const attention_query at = find_query(plan, blockIdx.z, zeroed);
    const uint32_t t = threadIdx.x, lane = t % 32, head = (t / 32 * 2 + lane / 16) * HEADS;
    const uint32_t first_slot = blockIdx.x * 16 * SLOTS, first_head = blockIdx.y * 2 * HEADS * LOGIT_WARPS;
    if (first_slot >= at.width)
        return;
    if (t < 16 * SLOTS) {
        const uint32_t slot = first_slot + t;
        const int32_t index = slot < at.width ? at.indices[slot] : -1;
        const dsri_cache_entry row = find_row(at, index);
        if (index != -1 && !row.values)
            at.flags->is_bad = 1;
        shared.rows[t] = row;
        if (blockIdx.y == 0 && slot < at.width)
            at.rows[slot] = row;
    }
    const uint16_t *q = at.q + (uint64_t)first_head * DSRI_HEAD_DIM;
    query_quarter<HEADS> queries;
    queries.load(q, 0);
    __syncthreads();
    bring_quarter(at, 0, shared);
    copy_async_commit();
    bring_quarter(at, 1, shared);
    copy_async_commit();
    queries.store(0, shared);
    float acc[HEADS][SLOTS] = {};
#pragma unroll 1
    for (uint32_t quarter = 0; quarter < LOGIT_QUARTERS; quarter++) {
        if (quarter + 1 < LOGIT_QUARTERS)
            queries.load(q, quarter + 1);
        copy_async_wait<1>();
        __syncthreads();
        if (quarter + 2 < LOGIT_QUARTERS)
            bring_quarter(at, quarter + 2, shared);
        copy_async_commit();
        multiply_quarter<HEADS, SLOTS>(shared, quarter, head, acc);
        if (quarter + 1 < LOGIT_QUARTERS)
            queries.store(quarter + 1, shared);
    }
    write_logits<HEADS, SLOTS>(plan, at, first_slot, first_head + head, shared, acc);
    write_slot_max<HEADS, SLOTS>(plan, at, first_slot, first_head + head, acc);
}

extern "C" __global__ void __launch_bounds__(LOGIT_THREADS)
    dsr_attention_logits16_bf16__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    block_of_logits<4, 1>(plan, zeroed);
}

extern "C" __global__ void __launch_bounds__(LOGIT_THREADS)
    dsr_attention_logits80_bf16__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    block_of_logits<4, 5>(plan, zeroed);
}

extern "C" __global__ void __launch_bounds__(LOGIT_THREADS)
    dsr_attention_logits80x64_bf16__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    block_of_logits<8, 5>(plan, zeroed);
}

/* ---- values: four warps of HEADS heads x FEATURES features a thread, and one warp for denominators ---- */

enum { VALUE_WARPS = 4, VALUE_THREADS = 32 * (VALUE_WARPS + 1), SLOTS = 64 };

/* Warps differ in heads, lanes in features. */
template <int HEADS, int FEATURES> struct value_block {
    enum {
        N_HEADS = VALUE_WARPS * HEADS,
        N_FEATURES = 32 * FEATURES,
        ROW_PARTS = N_FEATURES / 8, /* pieces of 8 features in a slot */
        SLOTS_AT_ONCE = 32 * VALUE_WARPS / ROW_PARTS,
        N_PIECES = SLOTS / SLOTS_AT_ONCE, /* of a thread in a tile */
        N_LOGITS = N_HEADS / 2 / 4        /* float4 of a thread in a tile */
    };

    struct buffer {
        float weights[SLOTS][N_HEADS]; /* exp(logit - max); 0 where nothing is selected */
        float rows[SLOTS][N_FEATURES]; /* -0 where nothing is selected: then a step of a chain changes nothing */
        float max[N_HEADS];            /* chunked: of the chunk; else of all slots and the sink */
        float factors[N_HEADS];        /* chunked: exp(m_c - M), or -1 for an empty chunk */
    };

    struct shared {
        buffer tiles[2];
        float max[N_HEADS]; /* over all slots and the sink */
        float denominators[N_HEADS];
        float partial_max[VALUE_THREADS / N_HEADS][N_HEADS];
    };

    /* What a thread of the four warps has on the way for a tile, as it comes from memory. */
    struct tile {
        const uint8_t *row;      /* of slot t / 2, null where it selects nothing */
        float4 logits[N_LOGITS]; /* of that slot */
        uint4 rows[N_PIECES];
        float max[4]; /* chunked: of the tile's 16 slots each, for head threadIdx.x */
    };
};

static __device__ __forceinline__ float minus_infinity()
{
    return __uint_as_float(0xff800000u);
}

static __device__ __forceinline__ dsri_cache_entry row_of_slot(const attention_query &at, uint32_t slot)
{
    dsri_cache_entry none;
    none.values = none.scales = nullptr;
    return slot < at.width ? at.rows[slot] : none;
}

/* shared.max: the sink and the largest logits of all 16 slots. */
template <int HEADS, int FEATURES>
static __device__ __forceinline__ void find_max(const attention_query &at, const dsri_attention_plan &plan,
                                                uint32_t first_head,
                                                typename value_block<HEADS, FEATURES>::shared &shared)
{
    enum { N_HEADS = value_block<HEADS, FEATURES>::N_HEADS, STRIDE = VALUE_THREADS / N_HEADS };
    const uint32_t h = threadIdx.x % N_HEADS, part = threadIdx.x / N_HEADS;
    float max = minus_infinity();
#pragma unroll 8
    for (uint32_t i = part; i < (at.width + 15) / 16; i += STRIDE)
        max = fmaxf(max, at.slot_max[(uint64_t)i * plan.n_heads + first_head + h]);
    shared.partial_max[part][h] = max;
    __syncthreads();
    if (threadIdx.x < N_HEADS) {
        float all = plan.sinks[first_head + threadIdx.x];
#pragma unroll
        for (int i = 0; i < STRIDE; i++)
            all = fmaxf(all, shared.partial_max[i][threadIdx.x]);
        shared.max[threadIdx.x] = all;
    }
    __syncthreads();
}

struct value_place {
    uint32_t n_heads, first_head, first_feature;
};

template <int HEADS, int FEATURES>
static __device__ __forceinline__ void load_rows(const attention_query &at, uint32_t first_slot,
                                                 dsri_cache_entry rows[value_block<HEADS, FEATURES>::N_PIECES])
{
    typedef value_block<HEADS, FEATURES> block;
#pragma unroll
    for (int j = 0; j < block::N_PIECES; j++)
        rows[j] = row_of_slot(at, first_slot + threadIdx.x / block::ROW_PARTS + block::SLOTS_AT_ONCE * j);
}

/* 8 features of a row as they lie in memory; as many -0 for none. */
static __device__ __forceinline__ uint4 load_values(row_form form, const dsri_cache_entry &row, uint32_t f)
{
    const uint32_t zeros = 0x80008000u, codes = 0x80808080u;
    if (!row.values)
        return form == ROW_FP8 && f < ROW_CODES ? make_uint4(codes, codes, 0, 0)
                                                : make_uint4(zeros, zeros, zeros, zeros);
    return form == ROW_WORDS ? load_piece<ROW_WORDS>(row, f)
           : form == ROW_FP8 ? load_piece<ROW_FP8>(row, f)
                             : load_piece<ROW_HALVES>(row, f);
}

template <int HEADS, int FEATURES>
static __device__ __forceinline__ void load_tile(const attention_query &at, const value_place &place,
                                                 uint32_t first_slot, bool chunked,
                                                 const dsri_cache_entry rows[value_block<HEADS, FEATURES>::N_PIECES],
                                                 typename value_block<HEADS, FEATURES>::tile &tile)
{
    typedef value_block<HEADS, FEATURES> block;
    const uint32_t t = threadIdx.x, slot = first_slot + t / 2;
    tile.row = row_of_slot(at, slot).values;
    const float4 *logits = reinterpret_cast<const float4 *>(at.logits + (uint64_t)slot * place.n_heads +
                                                            place.first_head + t % 2 * (block::N_HEADS / 2));
#pragma unroll
    for (int i = 0; i < block::N_LOGITS; i++)
        tile.logits[i] = slot < at.width ? logits[i] : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < block::N_PIECES; j++)
        tile.rows[j] = load_values(at.form, rows[j], place.first_feature + t % block::ROW_PARTS * 8);
    if (chunked && t < block::N_HEADS)
#pragma unroll
        for (int i = 0; i < 4; i++)
            tile.max[i] = first_slot + 16 * i < at.width
                              ? at.slot_max[(uint64_t)(first_slot / 16 + i) * place.n_heads + place.first_head + t]
                              : minus_infinity();
}

/* Chunked: the tile's max for the threads that make weights, and its factors. `all` is shared.max[threadIdx.x]. */
template <int HEADS, int FEATURES>
static __device__ __forceinline__ void store_max(const typename value_block<HEADS, FEATURES>::tile &tile, float all,
                                                 typename value_block<HEADS, FEATURES>::buffer &buffer)
{
    const uint32_t t = threadIdx.x;
    if (t >= value_block<HEADS, FEATURES>::N_HEADS)
        return;
    const float max = fmaxf(fmaxf(tile.max[0], tile.max[1]), fmaxf(tile.max[2], tile.max[3]));
    buffer.max[t] = max;
    buffer.factors[t] = max == minus_infinity() ? -1.0f : softmax_exp(__fadd_rn(max, -all));
}

template <int HEADS, int FEATURES>
static __device__ __forceinline__ void store_tile(row_form form, const value_place &place,
                                                  const typename value_block<HEADS, FEATURES>::tile &tile,
                                                  typename value_block<HEADS, FEATURES>::buffer &buffer)
{
    typedef value_block<HEADS, FEATURES> block;
    const uint32_t t = threadIdx.x, h = t % 2 * (block::N_HEADS / 2);
#pragma unroll
    for (int i = 0; i < block::N_LOGITS; i++) {
        const float4 max = *reinterpret_cast<const float4 *>(&buffer.max[h + 4 * i]), l = tile.logits[i];
        float4 w = make_float4(0, 0, 0, 0);
        if (tile.row != nullptr) {
            w.x = softmax_exp(__fadd_rn(l.x, -max.x));
            w.y = softmax_exp(__fadd_rn(l.y, -max.y));
            w.z = softmax_exp(__fadd_rn(l.z, -max.z));
            w.w = softmax_exp(__fadd_rn(l.w, -max.w));
        }
        *reinterpret_cast<float4 *>(&buffer.weights[t / 2][h + 4 * i]) = w;
    }
#pragma unroll
    for (int j = 0; j < block::N_PIECES; j++) {
        uint4 row = tile.rows[j];
        if (form == ROW_FP8)
            row = decode_piece<ROW_FP8>(row, place.first_feature + t % block::ROW_PARTS * 8);
        widen_8(row, &buffer.rows[t / block::ROW_PARTS + block::SLOTS_AT_ONCE * j][t % block::ROW_PARTS * 8]);
    }
}

/* What a slot brings to a thread. */
template <int HEADS, int FEATURES> struct slot_operands {
    float weights[HEADS], values[FEATURES];

    __device__ __forceinline__ void load(const typename value_block<HEADS, FEATURES>::buffer &buffer, uint32_t slot,
                                         uint32_t h, uint32_t f)
    {
#pragma unroll
        for (int i = 0; i < HEADS; i += 4) {
            const float4 w = *reinterpret_cast<const float4 *>(&buffer.weights[slot][h + i]);
            weights[i] = w.x;
            weights[i + 1] = w.y;
            weights[i + 2] = w.z;
            weights[i + 3] = w.w;
        }
        if constexpr (FEATURES == 4) {
            const float4 v = *reinterpret_cast<const float4 *>(&buffer.rows[slot][f]);
            values[0] = v.x;
            values[1] = v.y;
            values[2] = v.z;
            values[3] = v.w;
        } else if constexpr (FEATURES == 2) {
            const float2 v = *reinterpret_cast<const float2 *>(&buffer.rows[slot][f]);
            values[0] = v.x;
            values[1] = v.y;
        } else {
            values[0] = buffer.rows[slot][f];
        }
    }
};

/* A few slots at once. */
template <int HEADS, int FEATURES> struct slot_group {
    enum { N = HEADS * FEATURES <= 4 ? 8 : HEADS * FEATURES <= 16 ? 2 : 1 };
    slot_operands<HEADS, FEATURES> slots[N];

    __device__ __forceinline__ void load(const typename value_block<HEADS, FEATURES>::buffer &buffer, uint32_t first,
                                         uint32_t h, uint32_t f)
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            slots[i].load(buffer, first + i, h, f);
    }
    __device__ __forceinline__ void add_to(float acc[HEADS][FEATURES]) const
    {
#pragma unroll
        for (int slot = 0; slot < N; slot++)
#pragma unroll
            for (int i = 0; i < HEADS; i++)
#pragma unroll
                for (int j = 0; j < FEATURES; j++)
                    acc[i][j] = __fmaf_rn(slots[slot].weights[i], slots[slot].values[j], acc[i][j]);
    }
};

/* Adds a tile's slots in order: one group is on its way from shared memory while another is added. */
template <int HEADS, int FEATURES>
static __device__ __forceinline__ void add_slots(const typename value_block<HEADS, FEATURES>::buffer &buffer,
                                                 uint32_t h, uint32_t f, float acc[HEADS][FEATURES])
{
    typedef slot_group<HEADS, FEATURES> group;
    group even, odd;
    even.load(buffer, 0, h, f);
#pragma unroll 1
    for (uint32_t first = 0; first < SLOTS; first += 2 * group::N) {
        odd.load(buffer, first + group::N, h, f);
        even.add_to(acc);
        if (first + 2 * group::N < SLOTS)
            even.load(buffer, first + 2 * group::N, h, f);
        odd.add_to(acc);
    }
}

/* A tile's numerators: one chain on from what is there, or a chain of the chunk's own that is then scaled and added. */
template <int HEADS, int FEATURES>
static __device__ __forceinline__ void add_values(const typename value_block<HEADS, FEATURES>::buffer &buffer,
                                                  uint32_t h, uint32_t f, bool chunked,
                                                  float numerators[HEADS][FEATURES])
{
    float sums[HEADS][FEATURES];
#pragma unroll
    for (int i = 0; i < HEADS; i++)
#pragma unroll
        for (int j = 0; j < FEATURES; j++)
            sums[i][j] = chunked ? 0.0f : numerators[i][j];
    add_slots<HEADS, FEATURES>(buffer, h, f, sums);
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
        const float factor = buffer.factors[h + i];
#pragma unroll
        for (int j = 0; j < FEATURES; j++) {
            const float joined = factor < 0 ? numerators[i][j] : __fmaf_rn(factor, sums[i][j], numerators[i][j]);
            numerators[i][j] = chunked ? joined : sums[i][j];
        }
    }
}

template <int HEADS, int FEATURES>
static __device__ __forceinline__ float add_weights(const typename value_block<HEADS, FEATURES>::buffer &buffer,
                                                    uint32_t h, bool chunked, float denominator)
{
    float sum = chunked ? 0.0f : denominator;
#pragma unroll 16
    for (int slot = 0; slot < SLOTS; slot++)
        sum = __fadd_rn(sum, buffer.weights[slot][h]);
    const float factor = buffer.factors[h];
    return !chunked ? sum : factor < 0 ? denominator : __fmaf_rn(factor, sum, denominator);
}

/* For one warp of a block: whether flags make the lane's head zero. The last block of a query to ask clears its flags
 * for the next command. */
static __device__ __forceinline__ bool take_flags(const attention_query &at, uint32_t n_heads, uint32_t head)
{
    const uint32_t lane = threadIdx.x % 32;
    const bool is_zero = (at.flags->is_bad | at.flags->is_bad_head[head]) != 0;
    const uint32_t zeros = __ballot_sync(0xffffffffu, is_zero); /* all lanes have read */
    uint32_t n_done = 0;
    __threadfence();
    if (lane == 0)
        n_done = atomicAdd(&at.flags->n_done, 1u);
    n_done = __shfl_sync(0xffffffffu, n_done, 0);
    if (n_done == gridDim.x * gridDim.y - 1) {
        for (uint32_t h = lane; h < n_heads; h += 32)
            at.flags->is_bad_head[h] = 0;
        if (lane == 0) {
            at.flags->is_bad = 0;
            at.flags->n_done = 0;
        }
    }
    return zeros >> lane & 1;
}

/* N consecutive outputs of a head. A NaN denominator makes zeros. */
template <int N>
static __device__ __forceinline__ void write_values(uint16_t *to, const float numerators[N], float denominator)
{
    uint16_t values[N];
#pragma unroll
    for (int j = 0; j < N; j++)
        values[j] = f32_to_finite_bf16(__fdiv_rn(numerators[j], denominator));
    if (N > 1 && (uintptr_t)to % 4 == 0) {
#pragma unroll
        for (int j = 0; j + 1 < N; j += 2)
            *reinterpret_cast<uint32_t *>(to + j) = values[j] | (uint32_t)values[j + 1] << 16;
    } else {
#pragma unroll
        for (int j = 0; j < N; j++)
            to[j] = values[j];
    }
}

/* Two tiles of the four warps' threads are under way: one as registers, one in shared memory. */
template <int HEADS, int FEATURES>
static __device__ __forceinline__ void block_of_values(const dsri_attention_plan &plan, uint8_t *zeroed)
{
    typedef value_block<HEADS, FEATURES> block;
    auto &shared = *reinterpret_cast<typename block::shared *>(shared_memory);
    const attention_query at = find_query(plan, blockIdx.z, zeroed);
    const value_place place = {plan.n_heads, blockIdx.y * block::N_HEADS, blockIdx.x * block::N_FEATURES};
    const uint32_t t = threadIdx.x, warp = t / 32, lane = t % 32;
    const bool is_denominator_warp = warp == VALUE_WARPS, chunked = plan.chunked != 0;
    const uint32_t h = is_denominator_warp ? lane % block::N_HEADS : warp * HEADS, f = lane * FEATURES;
    float numerators[HEADS][FEATURES] = {}, denominator = 0.0f;
    bool is_zero = false;
    dsri_cache_entry rows[block::N_PIECES];
    typename block::tile tile;

    if (!is_denominator_warp) {
        load_rows<HEADS, FEATURES>(at, 0, rows);
        load_tile<HEADS, FEATURES>(at, place, 0, chunked, rows, tile);
        load_rows<HEADS, FEATURES>(at, SLOTS, rows);
    } else {
        const uint32_t head = place.first_head + h;
        is_zero = take_flags(at, plan.n_heads, head) || !f32_is_finite(plan.sinks[head]);
    }
    find_max<HEADS, FEATURES>(at, plan, place.first_head, shared);
    if (is_denominator_warp)
        denominator = softmax_exp(__fadd_rn(plan.sinks[place.first_head + h], -shared.max[h]));
    const float all = t < block::N_HEADS ? shared.max[t] : 0.0f;
    if (t < block::N_HEADS) {
        shared.tiles[0].max[t] = shared.tiles[1].max[t] = all;
        shared.tiles[0].factors[t] = shared.tiles[1].factors[t] = 0.0f; /* read where not chunked, and not used */
    }
    __syncthreads();
    uint32_t turn = 0;
#pragma unroll 1
    for (uint32_t first_slot = 0; first_slot < at.width; first_slot += SLOTS, turn ^= 1) {
        typename block::buffer &buffer = shared.tiles[turn];
        if (chunked) {
            store_max<HEADS, FEATURES>(tile, all, buffer);
            __syncthreads();
        }
        if (!is_denominator_warp) {
            store_tile<HEADS, FEATURES>(at.form, place, tile, buffer);
            if (first_slot + SLOTS < at.width) {
                load_tile<HEADS, FEATURES>(at, place, first_slot + SLOTS, chunked, rows, tile);
                load_rows<HEADS, FEATURES>(at, first_slot + 2 * SLOTS, rows);
            }
        }
        __syncthreads();
        if (is_denominator_warp)
            denominator = add_weights<HEADS, FEATURES>(buffer, h, chunked, denominator);
        else
            add_values<HEADS, FEATURES>(buffer, h, f, chunked, numerators);
    }
    if (is_denominator_warp && lane < block::N_HEADS)
        shared.denominators[h] = is_zero ? __uint_as_float(0x7fc00000u) : denominator;
    __syncthreads();
    if (is_denominator_warp)
        return;
#pragma unroll
    for (int i = 0; i < HEADS; i++)
        write_values<FEATURES>(at.output + (uint64_t)(place.first_head + h + i) * DSRI_HEAD_DIM + place.first_feature +
                                   f,
                               numerators[i], shared.denominators[h + i]);
}

extern "C" __global__ void __launch_bounds__(VALUE_THREADS)
    dsr_attention_values16_bf16__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    block_of_values<4, 1>(plan, zeroed);
}

extern "C" __global__ void __launch_bounds__(VALUE_THREADS, 3)
    dsr_attention_values32_bf16__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    block_of_values<8, 2>(plan, zeroed);
}

extern "C" __global__ void __launch_bounds__(VALUE_THREADS, 2)
    dsr_attention_values32x128_bf16__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    block_of_values<8, 4>(plan, zeroed);
}
