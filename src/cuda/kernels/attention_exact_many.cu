/* The second launch of device-exact attention of many rows, both forms: softmax weights and weighted sums, a block 64
 * heads x 256 features of a query. All warps bring a stage of slots while they multiply the one before: with half of
 * the device's threads each has twice the registers, for 8 heads x 8 features of both a chunk's sums and the
 * numerators. Bits are those of attention_exact.cu. */
#include "cuda/kernels/attention_exact.cuh"

extern __shared__ uint4 shared_memory[];

enum {
    MANY_VALUE_THREADS = 256,
    MANY_HEADS = 64,
    MANY_FEATURES = 256,
    MANY_SLOTS = 32, /* of a stage */
    MANY_CHUNK_STAGES = DSRI_CHUNK_SLOTS / MANY_SLOTS,
    MANY_PARTS = MANY_VALUE_THREADS / MANY_HEADS,
    MANY_WARP_HEADS = 16, /* 4 warps differ in heads, two in features; a thread has 8 of each */
    MANY_WARP_FEATURES = 128
};

struct many_stage {
    float weights[MANY_SLOTS][MANY_HEADS]; /* exp(logit - max), 0 where nothing is selected */
    uint16_t values[MANY_SLOTS][MANY_FEATURES];
};

struct many_shared {
    many_stage stages[2];
    float factors[2][MANY_HEADS]; /* chunked: exp(m_c - M), or -1 for an empty chunk */
    float max[MANY_HEADS];        /* over all slots and the sink */
    float partial_max[MANY_PARTS][MANY_HEADS];
};

struct many_place {
    uint32_t n_heads, first_head, first_feature;
};

/* What a thread brings of a stage: weights of 4 heads of two slots, 8 features of four. */
template <bool CHUNKED, row_form FORM> struct many_bringer {
    enum { N_WEIGHTS = 2, N_PIECES = 4 };
    dsri_cache_entry rows[N_PIECES]; /* of the stage after */
    bool is_selected[N_WEIGHTS];
    float4 logits[N_WEIGHTS], max[CHUNKED ? 4 : 1];
    uint4 pieces[N_PIECES];

    static __device__ __forceinline__ uint32_t own_quad()
    {
        return threadIdx.x % 16 * 4;
    }
    static __device__ __forceinline__ uint32_t weight_slot(uint32_t i)
    {
        return threadIdx.x / 16 + 16 * i;
    }
    static __device__ __forceinline__ uint32_t own_piece()
    {
        return threadIdx.x % 32 * 8;
    }
    static __device__ __forceinline__ uint32_t piece_slot(uint32_t i)
    {
        return threadIdx.x / 32 + 8 * i;
    }

    __device__ __forceinline__ void find_rows(const attention_query &at, uint32_t first_slot)
    {
#pragma unroll
        for (uint32_t i = 0; i < N_PIECES; i++)
            rows[i] = row_of_slot(at, first_slot + piece_slot(i));
    }

    /* Of a stage whose rows are known; finds those of the next. */
    __device__ __forceinline__ void load(const attention_query &at, const many_place &place, uint32_t first_slot)
    {
        const uint32_t head = place.first_head + own_quad();
#pragma unroll
        for (uint32_t i = 0; i < N_WEIGHTS; i++) {
            is_selected[i] = row_of_slot(at, first_slot + weight_slot(i)).values != nullptr;
            logits[i] = logits_of(at, place.n_heads, first_slot + weight_slot(i), head);
        }
#pragma unroll
        for (uint32_t i = 0; i < N_PIECES; i++)
            pieces[i] = load_values(FORM, rows[i], place.first_feature + own_piece());
        if constexpr (CHUNKED) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                max[i] = slot_max_of(at, place.n_heads, first_slot / DSRI_CHUNK_SLOTS * 4 + i, head);
        }
        find_rows(at, first_slot + MANY_SLOTS);
    }

    /* `all` is the max of the thread's heads over all slots and the sink. */
    __device__ __forceinline__ void store(const many_place &place, float4 all, many_stage &to, float *factors) const
    {
        float4 m = all;
        if constexpr (CHUNKED) {
            m = greater(greater(max[0], max[1]), greater(max[2], max[3]));
            if (threadIdx.x < MANY_HEADS / 4)
                *reinterpret_cast<float4 *>(factors + own_quad()) = factors_of(m, all);
        }
#pragma unroll
        for (uint32_t i = 0; i < N_WEIGHTS; i++)
            *reinterpret_cast<float4 *>(&to.weights[weight_slot(i)][own_quad()]) =
                is_selected[i] ? weights_of(logits[i], m) : make_float4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t i = 0; i < N_PIECES; i++)
            *reinterpret_cast<uint4 *>(&to.values[piece_slot(i)][own_piece()]) =
                decode_piece<FORM>(pieces[i], place.first_feature + own_piece());
    }
};

static __device__ __forceinline__ uint32_t many_warp_head()
{
    return threadIdx.x / 32 % 4 * MANY_WARP_HEADS;
}

static __device__ __forceinline__ uint32_t many_head()
{
    return many_warp_head() + threadIdx.x % 32 / 16 * 8;
}

static __device__ __forceinline__ uint32_t many_feature()
{
    return threadIdx.x / 128 * MANY_WARP_FEATURES + threadIdx.x % 16 * 8;
}

/* The head whose weights a lane sums: each warp has the denominators of its 16 heads. */
static __device__ __forceinline__ uint32_t many_sum_head()
{
    return many_warp_head() + threadIdx.x % MANY_WARP_HEADS;
}

/* A slot's operands of a thread. */
struct many_step {
    float4 weights[2];
    uint4 values;
    float sum_weight;

    __device__ __forceinline__ void load(const many_stage &stage, uint32_t slot)
    {
        weights[0] = *reinterpret_cast<const float4 *>(&stage.weights[slot][many_head()]);
        weights[1] = *reinterpret_cast<const float4 *>(&stage.weights[slot][many_head() + 4]);
        values = *reinterpret_cast<const uint4 *>(&stage.values[slot][many_feature()]);
        sum_weight = stage.weights[slot][many_sum_head()];
    }
    /* Feature by feature: head by head takes 4 % more time. */
    __device__ __forceinline__ void add_to(float acc[8][8], float &sum) const
    {
        const float w[8] = {weights[0].x, weights[0].y, weights[0].z, weights[0].w,
                            weights[1].x, weights[1].y, weights[1].z, weights[1].w};
        const uint32_t pairs[4] = {values.x, values.y, values.z, values.w};
        sum = __fadd_rn(sum, sum_weight);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float v = __uint_as_float(j % 2 == 0 ? pairs[j / 2] << 16 : pairs[j / 2] & 0xffff0000u);
#pragma unroll
            for (int h = 0; h < 8; h++)
                acc[h][j] = __fmaf_rn(w[h], v, acc[h][j]);
        }
    }
};

/* Takes a stage's slots in order: one is on its way from shared memory while another is added. */
static __device__ __forceinline__ void multiply_many(const many_stage &stage, float acc[8][8], float &sum)
{
    many_step even, odd;
    even.load(stage, 0);
#pragma unroll 1
    for (uint32_t slot = 0; slot < MANY_SLOTS; slot += 2) {
        odd.load(stage, slot + 1);
        even.add_to(acc, sum);
        if (slot + 2 < MANY_SLOTS)
            even.load(stage, slot + 2);
        odd.add_to(acc, sum);
    }
}

/* Sums of a thread: 64 numerators, and the denominator of its lane's head. */
struct many_sums {
    float numerators[8][8], denominator;

    /* A chunk's sums, scaled and added; they begin anew. */
    __device__ __forceinline__ void add_chunk(float sums[8][8], float &sum, const float *factors)
    {
        const float own = factors[many_sum_head()];
        denominator = own < 0 ? denominator : __fmaf_rn(own, sum, denominator);
        sum = 0.0f;
#pragma unroll
        for (int h = 0; h < 8; h++) {
            const float factor = factors[many_head() + h];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                numerators[h][j] = factor < 0 ? numerators[h][j] : __fmaf_rn(factor, sums[h][j], numerators[h][j]);
                sums[h][j] = 0.0f;
            }
        }
    }
    /* One head at a time: code that runs once is waited for, and 64 divisions in a row are much of it. */
    __device__ __forceinline__ void write(const attention_query &at, const many_place &place) const
    {
        uint16_t *to = at.output + (uint64_t)(place.first_head + many_head()) * DSRI_HEAD_DIM + place.first_feature +
                       many_feature();
#pragma unroll 1
        for (int h = 0; h < 8; h++) {
            float own[8];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                own[j] = numerators[0][j];
#pragma unroll
                for (int i = 1; i < 8; i++)
                    own[j] = i == h ? numerators[i][j] : own[j];
            }
            write_values<8>(to + h * DSRI_HEAD_DIM, own,
                            __shfl_sync(0xffffffffu, denominator, threadIdx.x % 32 / 16 * 8 + h));
        }
    }
};

template <bool CHUNKED, row_form FORM>
static __device__ __forceinline__ void many_values_of_block(const dsri_attention_plan &plan, const attention_query &at)
{
    auto &shared = *reinterpret_cast<many_shared *>(shared_memory);
    const many_place place = {plan.n_heads, blockIdx.y * MANY_HEADS, blockIdx.x * MANY_FEATURES};
    many_bringer<CHUNKED, FORM> bringer;
    bringer.find_rows(at, 0);
    bringer.load(at, place, 0);
    const uint32_t sum_head = place.first_head + many_sum_head();
    const float sink = plan.sinks[sum_head];
    const bool is_zero = is_zero_head(at, sum_head, sink);
    find_max<MANY_HEADS, MANY_PARTS>(at, plan, place.first_head, shared.partial_max, shared.max);
    const float4 all = *reinterpret_cast<const float4 *>(&shared.max[bringer.own_quad()]);
    many_sums total = {};
    total.denominator = softmax_exp(__fadd_rn(sink, -shared.max[many_sum_head()]));
    bringer.store(place, all, shared.stages[0], shared.factors[0]);
    __syncthreads();
    if (threadIdx.x < 32)
        leave_query(at, plan.n_heads);
    float sums[8][8] = {}, sum = 0.0f;
    uint32_t turn = 0, chunk_stage = 0;
#pragma unroll 1
    for (uint32_t slot = 0; slot < at.width; slot += MANY_SLOTS, turn ^= 1) {
        const bool is_last = slot + MANY_SLOTS >= at.width;
        if (!is_last)
            bringer.load(at, place, slot + MANY_SLOTS);
        multiply_many(shared.stages[turn], CHUNKED ? sums : total.numerators, CHUNKED ? sum : total.denominator);
        if (CHUNKED && (++chunk_stage == MANY_CHUNK_STAGES || is_last)) {
            chunk_stage = 0;
            total.add_chunk(sums, sum, shared.factors[turn]);
        }
        if (!is_last)
            bringer.store(place, all, shared.stages[turn ^ 1], shared.factors[turn ^ 1]);
        __syncthreads();
    }
    total.denominator = is_zero ? __uint_as_float(0x7fc00000u) : total.denominator;
    total.write(at, place);
}

/* Each form of rows has a loop of its own: where one chooses, a load is waited for before the products. */
template <bool CHUNKED>
static __device__ __forceinline__ void many_values(const dsri_attention_plan &plan, uint8_t *zeroed)
{
    const attention_query at = find_query(plan, blockIdx.z, zeroed);
    wait_for_prior_launch();
    if (at.form == ROW_WORDS)
        many_values_of_block<CHUNKED, ROW_WORDS>(plan, at);
    else if (at.form == ROW_FP8)
        many_values_of_block<CHUNKED, ROW_FP8>(plan, at);
    else
        many_values_of_block<CHUNKED, ROW_HALVES>(plan, at);
}

extern "C" __global__ void __launch_bounds__(MANY_VALUE_THREADS, 1)
    dsr_attention_values64x256__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    many_values<false>(plan, zeroed);
}

extern "C" __global__ void __launch_bounds__(MANY_VALUE_THREADS, 1)
    dsr_attention_chunks64x256__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    many_values<true>(plan, zeroed);
}
