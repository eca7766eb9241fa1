/* Device-exact attention, both forms, in two launches: logits with one F32 chain each, and largest logits of 16 slots;
 * then softmax weights and weighted sums with one chain per head and feature. Both are products of matrices whose inner
 * dimension (features, slots) is walked in order. Four warps of a block bring operands, as F32, through a ring in
 * shared memory; four others multiply: their lanes differ in columns (slots, features) and share heads, so that one
 * operand is a broadcast. Each launch comes in several sizes: how many outputs a thread has changes no bits. One or two
 * rows have kernels of their own in attention_exact_few.cu, and many a second launch of its own in
 * attention_exact_many.cu.
 *
 * A KV row or a query with a value that is not finite needs no look of its own: it gives logits that are not finite. */
#include "cuda/kernels/attention_exact.cuh"

enum { PRODUCT_WARPS = 4, HEAD_LANES = 2, BRING_THREADS = 32 * PRODUCT_WARPS, EXACT_THREADS = 2 * BRING_THREADS };

extern __shared__ uint4 shared_memory[];

/* ---- products: a thread has HEADS heads and COLUMNS columns; HEAD_LANES threads of a warp differ in heads, the others
 * in columns ---- */

/* Shared memory gives a multiprocessor 32 values a cycle, however many threads share one, so that four warps side by
 * side multiply at full rate only if HEADS x COLUMNS is more than 4 x (HEADS + COLUMNS). */

/* Column j of a thread: lanes have four columns each side by side, then four more, then what is left. */
template <int COLUMNS> static __device__ __forceinline__ uint32_t column_of(uint32_t j)
{
    enum { LANES = 32 / HEAD_LANES, QUADS = COLUMNS / 4, REST = COLUMNS % 4 };
    const uint32_t i = threadIdx.x % LANES;
    return j < 4 * QUADS ? (j / 4 * LANES + i) * 4 + j % 4 : 4 * QUADS * LANES + i * REST + j - 4 * QUADS;
}

static __device__ __forceinline__ void load_floats_4(const float *from, float to[4])
{
    const float4 x = *reinterpret_cast<const float4 *>(from);
    to[0] = x.x;
    to[1] = x.y;
    to[2] = x.z;
    to[3] = x.w;
}

/* N consecutive floats. */
template <int N> static __device__ __forceinline__ void load_floats(const float *from, float to[N])
{
    if constexpr (N >= 4) {
#pragma unroll
        for (int i = 0; i + 4 <= N; i += 4)
            load_floats_4(from + i, to + i);
    } else if constexpr (N == 2) {
        const float2 x = *reinterpret_cast<const float2 *>(from);
        to[0] = x.x;
        to[1] = x.y;
    } else {
        to[0] = from[0];
    }
}

/* One stage of the ring: STEPS of the inner dimension. */
template <int HEADS, int COLUMNS, int STEPS> struct operand_stage {
    enum { N_HEADS = HEAD_LANES * PRODUCT_WARPS * HEADS, N_COLUMNS = 32 / HEAD_LANES * COLUMNS };
    float heads[STEPS][N_HEADS];
    float columns[STEPS][N_COLUMNS];
};

/* What a few steps bring to a thread. */
template <int HEADS, int COLUMNS> struct step_group {
    enum { QUADS = COLUMNS / 4, N = HEADS * COLUMNS <= 4 ? 8 : HEADS * COLUMNS <= 20 ? 2 : 1 };
    float heads[N][HEADS], columns[N][COLUMNS];

    template <int STEPS>
    __device__ __forceinline__ void load(const operand_stage<HEADS, COLUMNS, STEPS> &stage, uint32_t first,
                                         uint32_t head)
    {
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            const float *from = stage.columns[first + i];
            load_floats<HEADS>(&stage.heads[first + i][head], heads[i]);
#pragma unroll
            for (int quad = 0; quad < QUADS; quad++)
                load_floats_4(from + column_of<COLUMNS>(4 * quad), columns[i] + 4 * quad);
            if constexpr (COLUMNS % 4 != 0)
                load_floats<COLUMNS % 4>(from + column_of<COLUMNS>(4 * QUADS), columns[i] + 4 * QUADS);
        }
    }
    __device__ __forceinline__ void add_to(float acc[HEADS][COLUMNS]) const
    {
#pragma unroll
        for (int step = 0; step < N; step++)
#pragma unroll
            for (int i = 0; i < HEADS; i++)
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    acc[i][j] = __fmaf_rn(heads[step][i], columns[step][j], acc[i][j]);
    }
};

/* Takes a stage's steps in order: one group is on its way from shared memory while another is added. */
template <int HEADS, int COLUMNS, int STEPS>
static __device__ __forceinline__ void multiply_stage(const operand_stage<HEADS, COLUMNS, STEPS> &stage, uint32_t head,
                                                      float acc[HEADS][COLUMNS])
{
    typedef step_group<HEADS, COLUMNS> group;
    group even, odd;
    even.load(stage, 0, head);
#pragma unroll 1
    for (uint32_t first = 0; first < STEPS; first += 2 * group::N) {
        odd.load(stage, first + group::N, head);
        even.add_to(acc);
        if (first + 2 * group::N < STEPS)
            even.load(stage, first + 2 * group::N, head);
        odd.add_to(acc);
    }
}

/* A thread of the warps that multiply: the last ones, since a device prefers the first where several can go on, and
 * those that bring operands must stay ahead. */
static __device__ __forceinline__ bool multiplies()
{
    return threadIdx.x >= BRING_THREADS;
}

/* Its first head of the block. */
template <int HEADS> static __device__ __forceinline__ uint32_t own_head()
{
    return (threadIdx.x - BRING_THREADS) / (32 / HEAD_LANES) * HEADS;
}

/* Barriers of a ring of STAGES: every thread of the four warps arrives, which a race checker can follow. */
template <int STAGES> struct ring_barriers {
    uint64_t is_full[STAGES], is_empty[STAGES];

    __device__ __forceinline__ void prepare()
    {
        if (threadIdx.x != 0)
            return;
#pragma unroll
        for (int i = 0; i < STAGES; i++) {
            shared_barrier_init(&is_full[i], BRING_THREADS);
            shared_barrier_init(&is_empty[i], BRING_THREADS);
        }
        shared_barriers_ready();
    }
};

struct ring_turn {
    uint32_t stage, parity;

    template <int STAGES> __device__ __forceinline__ void advance()
    {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

static __device__ __forceinline__ void bringers_barrier()
{
    named_barrier(1, BRING_THREADS);
}

/* ---- logits ---- */

enum { LOGIT_STEPS = 32, LOGIT_STAGES = 4 };

template <int HEADS, int SLOTS> struct logit_shared {
    typedef operand_stage<HEADS, SLOTS, LOGIT_STEPS> stage;
    enum { N_HEADS = stage::N_HEADS, N_SLOTS = stage::N_COLUMNS, N_ROWS = N_HEADS + N_SLOTS };
    stage ring[LOGIT_STAGES];
    dsri_cache_entry rows[N_SLOTS];
    ring_barriers<LOGIT_STAGES> barriers;
};

/* Where the block's slots lie: for this block, and for the values. */
template <int HEADS, int SLOTS>
static __device__ __forceinline__ void find_rows(const attention_query &at, uint32_t first_slot,
                                                 logit_shared<HEADS, SLOTS> &shared)
{
    for (uint32_t t = threadIdx.x; t < shared.N_SLOTS; t += BRING_THREADS) {
        const uint32_t slot = first_slot + t;
        const int32_t index = slot < at.width ? at.indices[slot] : -1;
        const dsri_cache_entry row = find_row(at, index);
        if (index != -1 && !row.values)
            at.flags->is_bad = 1;
        shared.rows[t] = row;
        if (blockIdx.y == 0 && slot < at.width)
            at.rows[slot] = row;
    }
    bringers_barrier();
}

/* What a thread brings of a stage: 8 features each of every 32nd of the block's queries and rows. */
template <int HEADS, int SLOTS> struct logit_bringer {
    typedef logit_shared<HEADS, SLOTS> block;
    enum { N = (block::N_ROWS + 31) / 32 };
    dsri_cache_entry sources[N];
    uint4 pieces[N];
    row_form q_form, kv_form;

    static __device__ __forceinline__ uint32_t own_row(uint32_t i)
    {
        return threadIdx.x % 32 + 32 * i;
    }
    static __device__ __forceinline__ uint32_t own_feature(uint32_t stage)
    {
        return stage * LOGIT_STEPS + threadIdx.x / 32 * 8;
    }
    static __device__ __forceinline__ bool is_query(uint32_t i)
    {
        return own_row(i) < block::N_HEADS;
    }

    __device__ __forceinline__ void start(const attention_query &at, uint32_t first_head, const block &shared)
    {
        q_form = is_word_aligned(at.q, 0) ? ROW_WORDS : ROW_HALVES;
        kv_form = at.form;
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t row = own_row(i);
            sources[i].values = sources[i].scales = nullptr;
            if (is_query(i))
                sources[i].values =
                    reinterpret_cast<const uint8_t *>(at.q + (uint64_t)(first_head + row) * DSRI_HEAD_DIM);
            else if (row < block::N_ROWS)
                sources[i] = shared.rows[row - block::N_HEADS];
        }
    }
    __device__ __forceinline__ void load(uint32_t stage)
    {
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            const row_form form = is_query(i) ? q_form : kv_form;
            const uint32_t f = own_feature(stage);
            pieces[i] = form == ROW_WORDS ? load_piece<ROW_WORDS>(sources[i], f)
                        : form == ROW_FP8 ? load_piece<ROW_FP8>(sources[i], f)
                                          : load_piece<ROW_HALVES>(sources[i], f);
        }
    }
    __device__ __forceinline__ void store(uint32_t stage, typename block::stage &to) const
    {
        const uint32_t step = own_feature(0);
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            uint4 piece = pieces[i];
            if (!is_query(i) && kv_form == ROW_FP8)
                piece = decode_piece<ROW_FP8>(piece, own_feature(stage));
            if (is_query(i))
                store_column(piece, &to.heads[step][own_row(i)], block::N_HEADS);
            else if (own_row(i) < block::N_ROWS)
                store_column(piece, &to.columns[step][own_row(i) - block::N_HEADS], block::N_SLOTS);
        }
    }
};

template <int HEADS, int SLOTS>
static __device__ __forceinline__ void bring_logits(const attention_query &at, uint32_t first_head, uint32_t first_slot,
                                                    logit_shared<HEADS, SLOTS> &shared)
{
    logit_bringer<HEADS, SLOTS> bringer;
    find_rows(at, first_slot, shared);
    bringer.start(at, first_head, shared);
    bringer.load(0);
    ring_turn turn = {0, 0};
#pragma unroll 1
    for (uint32_t stage = 0; stage < DSRI_HEAD_DIM / LOGIT_STEPS; stage++, turn.advance<LOGIT_STAGES>()) {
        logit_bringer<HEADS, SLOTS> current = bringer;
        if (stage + 1 < DSRI_HEAD_DIM / LOGIT_STEPS)
            bringer.load(stage + 1);
        shared_barrier_wait(&shared.barriers.is_empty[turn.stage], turn.parity ^ 1);
        current.store(stage, shared.ring[turn.stage]);
        shared_barrier_arrive(&shared.barriers.is_full[turn.stage]);
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
        const uint32_t i = column_of<SLOTS>(s);
        const bool is_selected = shared.rows[i].values != nullptr;
        float *logits = at.logits + (uint64_t)(first_slot + i) * plan.n_heads + head;
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            acc[h][s] = __fmul_rn(acc[h][s], plan.scale);
            is_bad[h] = is_bad[h] || (is_selected && !f32_is_finite(acc[h][s]));
        }
        if (first_slot + i < at.width) {
            if constexpr (HEADS == 2) {
                *reinterpret_cast<float2 *>(logits) = make_float2(acc[0][s], acc[1][s]);
            } else {
#pragma unroll
                for (int h = 0; h < HEADS; h += 4)
                    *reinterpret_cast<float4 *>(logits + h) =
                        make_float4(acc[h][s], acc[h + 1][s], acc[h + 2][s], acc[h + 3][s]);
            }
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            acc[h][s] = is_selected ? acc[h][s] : minus_infinity();
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++)
        if (is_bad[h])
            at.flags->is_bad_head[head + h] = 1;
}

/* The largest logits of 16 slots: 4 lanes have 4 consecutive ones each, or 16 or 8 lanes one or two. */
template <int HEADS, int SLOTS>
static __device__ __forceinline__ void write_slot_max(const dsri_attention_plan &plan, const attention_query &at,
                                                      uint32_t first_slot, uint32_t head, float acc[HEADS][SLOTS])
{
    enum { QUADS = SLOTS / 4, REST = SLOTS % 4, REST_LANES = REST != 0 ? 16 / REST : 1 };
    const uint32_t lane = threadIdx.x % (32 / HEAD_LANES);
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        float *to = at.slot_max + head + h;
#pragma unroll
        for (int quad = 0; quad < QUADS; quad++) {
            const float *own = acc[h] + 4 * quad,
                        max = max_of_lanes(fmaxf(fmaxf(own[0], own[1]), fmaxf(own[2], own[3])), 4);
            const uint32_t slot = first_slot + column_of<SLOTS>(4 * quad);
            if (lane % 4 == 0 && slot < at.width)
                to[(uint64_t)(slot / 16) * plan.n_heads] = max;
        }
        if constexpr (REST != 0) {
            const float max = max_of_lanes(fmaxf(acc[h][4 * QUADS], acc[h][SLOTS - 1]), REST_LANES);
            const uint32_t slot = first_slot + column_of<SLOTS>(4 * QUADS);
            if (lane % REST_LANES == 0 && slot < at.width)
                to[(uint64_t)(slot / 16) * plan.n_heads] = max;
        }
    }
}

template <int HEADS, int SLOTS>
static __device__ __forceinline__ void block_of_logits(const dsri_attention_plan &plan, uint8_t *zeroed)
{
    auto &shared = *reinterpret_cast<logit_shared<HEADS, SLOTS> *>(shared_memory);
    const attention_query at = find_query(plan, blockIdx.z, zeroed);
    const uint32_t first_slot = blockIdx.x * shared.N_SLOTS, first_head = blockIdx.y * shared.N_HEADS;
    let_next_launch_start();
    if (first_slot >= at.width)
        return;
    shared.barriers.prepare();
    wait_for_prior_launch();
    __syncthreads();
    if (!multiplies()) {
        bring_logits(at, first_head, first_slot, shared);
        return;
    }
    const uint32_t head = own_head<HEADS>();
    float acc[HEADS][SLOTS] = {};
    ring_turn turn = {0, 0};
#pragma unroll 1
    for (uint32_t stage = 0; stage < DSRI_HEAD_DIM / LOGIT_STEPS; stage++, turn.advance<LOGIT_STAGES>()) {
        shared_barrier_wait(&shared.barriers.is_full[turn.stage], turn.parity);
        multiply_stage(shared.ring[turn.stage], head, acc);
        shared_barrier_arrive(&shared.barriers.is_empty[turn.stage]);
    }
    write_logits<HEADS, SLOTS>(plan, at, first_slot, first_head + head, shared, acc);
    write_slot_max<HEADS, SLOTS>(plan, at, first_slot, first_head + head, acc);
}

extern "C" __global__ void __launch_bounds__(EXACT_THREADS, 2)
    dsr_attention_logits16x80__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    block_of_logits<2, 5>(plan, zeroed);
}

extern "C" __global__ void __launch_bounds__(EXACT_THREADS, 2)
    dsr_attention_logits32x80__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    block_of_logits<4, 5>(plan, zeroed);
}

extern "C" __global__ void __launch_bounds__(EXACT_THREADS, 2)
    dsr_attention_logits64x80__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    block_of_logits<8, 5>(plan, zeroed);
}

/* ---- values ---- */

template <int HEADS, int FEATURES> struct value_block {
    enum {
        SLOTS = DSRI_CHUNK_SLOTS, /* of a stage */
        STAGES = 3
    };
    typedef operand_stage<HEADS, FEATURES, SLOTS> stage; /* weights: exp(logit - max), 0 where nothing is selected */
    enum {
        N_HEADS = stage::N_HEADS,
        N_FEATURES = stage::N_COLUMNS,
        QUADS = N_HEADS / 4, /* a bringing thread makes weights of 4 heads */
        QUAD_SLOTS = BRING_THREADS / QUADS,
        N_LOGITS = SLOTS / QUAD_SLOTS,
        ROW_PARTS = N_FEATURES / 8, /* and widens 8 features at a time */
        PART_SLOTS = BRING_THREADS / ROW_PARTS,
        N_PIECES = SLOTS / PART_SLOTS,
        MAX_PARTS = EXACT_THREADS / N_HEADS
    };

    struct shared {
        stage ring[STAGES];
        float factors[STAGES][N_HEADS]; /* chunked: exp(m_c - M), or -1 for an empty chunk */
        float max[N_HEADS];             /* over all slots and the sink */
        float denominators[N_HEADS];    /* a NaN where the head is zero */
        float partial_max[MAX_PARTS][N_HEADS];
        ring_barriers<STAGES> barriers;
        uint64_t denominators_are_here;
    };
};

struct value_place {
    uint32_t n_heads, first_head, first_feature;
};

/* What a bringing thread has on the way for a stage, as it comes from memory. */
template <int HEADS, int FEATURES, bool CHUNKED> struct value_bringer {
    typedef value_block<HEADS, FEATURES> block;
    dsri_cache_entry rows[block::N_PIECES];      /* of the stage after */
    const uint8_t *is_selected[block::N_LOGITS]; /* null: no */
    float4 logits[block::N_LOGITS], max[CHUNKED ? 4 : 1];
    uint4 pieces[block::N_PIECES];

    static __device__ __forceinline__ uint32_t thread()
    {
        return threadIdx.x;
    }
    static __device__ __forceinline__ uint32_t quad()
    {
        return thread() % block::QUADS * 4;
    }
    static __device__ __forceinline__ uint32_t feature()
    {
        return thread() % block::ROW_PARTS * 8;
    }

    __device__ __forceinline__ void find_rows(const attention_query &at, uint32_t first_slot)
    {
#pragma unroll
        for (uint32_t j = 0; j < block::N_PIECES; j++)
            rows[j] = row_of_slot(at, first_slot + thread() / block::ROW_PARTS + block::PART_SLOTS * j);
    }

    /* Of a stage whose rows are known; finds those of the next. */
    __device__ __forceinline__ void load(const attention_query &at, const value_place &place, uint32_t first_slot)
    {
        const uint32_t head = place.first_head + quad();
#pragma unroll
        for (uint32_t i = 0; i < block::N_LOGITS; i++) {
            const uint32_t slot = first_slot + thread() / block::QUADS + block::QUAD_SLOTS * i;
            is_selected[i] = row_of_slot(at, slot).values;
            logits[i] = logits_of(at, place.n_heads, slot, head);
        }
#pragma unroll
        for (uint32_t j = 0; j < block::N_PIECES; j++)
            pieces[j] = load_values(at.form, rows[j], place.first_feature + feature());
        if constexpr (CHUNKED) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                max[i] = slot_max_of(at, place.n_heads, first_slot / 16 + i, head);
        }
        find_rows(at, first_slot + block::SLOTS);
    }

    /* `all` is the max of the thread's heads over all slots and the sink. */
    __device__ __forceinline__ void store(const attention_query &at, const value_place &place, float4 all,
                                          typename block::stage &to, float *factors) const
    {
        float4 m = all;
        if constexpr (CHUNKED) {
            m = greater(greater(max[0], max[1]), greater(max[2], max[3]));
            if (thread() < block::QUADS)
                *reinterpret_cast<float4 *>(factors + quad()) = factors_of(m, all);
        }
#pragma unroll
        for (uint32_t i = 0; i < block::N_LOGITS; i++)
            *reinterpret_cast<float4 *>(&to.heads[thread() / block::QUADS + block::QUAD_SLOTS * i][quad()]) =
                is_selected[i] != nullptr ? weights_of(logits[i], m) : make_float4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t j = 0; j < block::N_PIECES; j++) {
            uint4 piece = pieces[j];
            if (at.form == ROW_FP8)
                piece = decode_piece<ROW_FP8>(piece, place.first_feature + feature());
            widen_8(piece, &to.columns[thread() / block::ROW_PARTS + block::PART_SLOTS * j][feature()]);
        }
    }
};

/* Sums of weights, one chain a head. */
template <int HEADS, int FEATURES, bool CHUNKED> struct denominator_chain {
    typedef value_block<HEADS, FEATURES> block;
    float denominator;

    __device__ __forceinline__ void add(const typename block::stage &stage, const float *factors, uint32_t h)
    {
        float sum = CHUNKED ? 0.0f : denominator;
#pragma unroll 16
        for (int slot = 0; slot < block::SLOTS; slot++)
            sum = __fadd_rn(sum, stage.heads[slot][h]);
        if (!CHUNKED) {
            denominator = sum;
        } else {
            const float factor = factors[h];
            denominator = factor < 0 ? denominator : __fmaf_rn(factor, sum, denominator);
        }
    }
};

template <int HEADS, int FEATURES, bool CHUNKED>
static __device__ __forceinline__ void
bring_values(const dsri_attention_plan &plan, const attention_query &at, const value_place &place,
             typename value_block<HEADS, FEATURES>::shared &shared, value_bringer<HEADS, FEATURES, CHUNKED> &bringer)
{
    typedef value_block<HEADS, FEATURES> block;
    const uint32_t t = threadIdx.x, h = t % block::N_HEADS;
    const float sink = plan.sinks[place.first_head + h];
    const bool is_zero = is_zero_head(at, place.first_head + h, sink);
    bringers_barrier(); /* all have read */
    if (t < 32)
        leave_query(at, plan.n_heads);
    const float4 all = *reinterpret_cast<const float4 *>(&shared.max[bringer.quad()]);
    denominator_chain<HEADS, FEATURES, CHUNKED> chain = {softmax_exp(__fadd_rn(sink, -shared.max[h]))};
    ring_turn turn = {0, 0};
#pragma unroll 1
    for (uint32_t slot = 0; slot < at.width; slot += block::SLOTS, turn.template advance<block::STAGES>()) {
        typename block::stage &stage = shared.ring[turn.stage];
        shared_barrier_wait(&shared.barriers.is_empty[turn.stage], turn.parity ^ 1);
        bringer.store(at, place, all, stage, shared.factors[turn.stage]);
        if (slot + block::SLOTS < at.width)
            bringer.load(at, place, slot + block::SLOTS);
        shared_barrier_arrive(&shared.barriers.is_full[turn.stage]);
        bringers_barrier(); /* the weights of all of them */
        if (t < block::N_HEADS)
            chain.add(stage, shared.factors[turn.stage], h);
    }
    if (t < block::N_HEADS) {
        shared.denominators[h] = is_zero ? __uint_as_float(0x7fc00000u) : chain.denominator;
        shared_barrier_arrive(&shared.denominators_are_here);
    }
}

/* Numerators of a thread: one chain on from stage to stage, or chains of the chunks' own that are then scaled and
 * added. */
template <int HEADS, int FEATURES, bool CHUNKED>
static __device__ __forceinline__ void multiply_values(const attention_query &at,
                                                       typename value_block<HEADS, FEATURES>::shared &shared,
                                                       float numerators[HEADS][FEATURES])
{
    typedef value_block<HEADS, FEATURES> block;
    const uint32_t head = own_head<HEADS>();
    float sums[HEADS][FEATURES] = {};
    ring_turn turn = {0, 0};
#pragma unroll 1
    for (uint32_t slot = 0; slot < at.width; slot += block::SLOTS, turn.template advance<block::STAGES>()) {
        shared_barrier_wait(&shared.barriers.is_full[turn.stage], turn.parity);
        multiply_stage(shared.ring[turn.stage], head, CHUNKED ? sums : numerators);
        if constexpr (CHUNKED) {
#pragma unroll
            for (int i = 0; i < HEADS; i++) {
                const float factor = shared.factors[turn.stage][head + i];
#pragma unroll
                for (int j = 0; j < FEATURES; j++) {
                    numerators[i][j] = factor < 0 ? numerators[i][j] : __fmaf_rn(factor, sums[i][j], numerators[i][j]);
                    sums[i][j] = 0.0f;
                }
            }
        }
        shared_barrier_arrive(&shared.barriers.is_empty[turn.stage]);
    }
}

template <int HEADS, int FEATURES, bool CHUNKED>
static __device__ __forceinline__ void block_of_values(const dsri_attention_plan &plan, uint8_t *zeroed)
{
    typedef value_block<HEADS, FEATURES> block;
    auto &shared = *reinterpret_cast<typename block::shared *>(shared_memory);
    const attention_query at = find_query(plan, blockIdx.z, zeroed);
    const value_place place = {plan.n_heads, blockIdx.y * block::N_HEADS, blockIdx.x * block::N_FEATURES};
    value_bringer<HEADS, FEATURES, CHUNKED> bringer;
    if (threadIdx.x == 0)
        shared_barrier_init(&shared.denominators_are_here, block::N_HEADS);
    shared.barriers.prepare();
    wait_for_prior_launch();
    if (!multiplies() && at.width > 0) {
        bringer.find_rows(at, 0);
        bringer.load(at, place, 0);
    }
    find_max<block::N_HEADS, block::MAX_PARTS>(at, plan, place.first_head, shared.partial_max, shared.max);
    if (!multiplies()) {
        bring_values<HEADS, FEATURES, CHUNKED>(plan, at, place, shared, bringer);
        return;
    }
    float numerators[HEADS][FEATURES] = {};
    multiply_values<HEADS, FEATURES, CHUNKED>(at, shared, numerators);
    /* Not a barrier of the block: after bringers_barrier() compute-sanitizer's racecheck does not see all that one
     * orders. */
    shared_barrier_wait(&shared.denominators_are_here, 0);
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
        const uint32_t h = own_head<HEADS>() + i;
        uint16_t *output = at.output + (uint64_t)(place.first_head + h) * DSRI_HEAD_DIM + place.first_feature;
#pragma unroll
        for (int j = 0; j < FEATURES; j += 4)
            write_values<(FEATURES < 4 ? FEATURES : 4)>(output + column_of<FEATURES>(j), &numerators[i][j],
                                                        shared.denominators[h]);
    }
}

extern "C" __global__ void __launch_bounds__(EXACT_THREADS, 2)
    dsr_attention_values16x64__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    block_of_values<2, 4, false>(plan, zeroed);
}

extern "C" __global__ void __launch_bounds__(EXACT_THREADS, 2)
    dsr_attention_values32x64__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    block_of_values<4, 4, false>(plan, zeroed);
}

extern "C" __global__ void __launch_bounds__(EXACT_THREADS, 2)
    dsr_attention_chunks16x64__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    block_of_values<2, 4, true>(plan, zeroed);
}

extern "C" __global__ void __launch_bounds__(EXACT_THREADS, 2)
    dsr_attention_chunks32x64__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    block_of_values<4, 4, true>(plan, zeroed);
}
