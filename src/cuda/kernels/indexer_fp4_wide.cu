/* Device-exact index scores of packed FP4 keys for 64 heads by wgmma, keys as the rows: queries lie in shared memory,
 * so that warps have registers left and more of them run at once. */
#include "cuda/kernels/indexer_fp4.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

enum {
    WIDE_HEADS = 64,
    WIDE_WARPS = 4,  /* that multiply together */
    WIDE_GROUPS = 4, /* of a block */
    WIDE_THREADS = 32 * WIDE_WARPS * WIDE_GROUPS,
    WIDE_TILE = WIDE_WARPS * FP4_TILE,
    WIDE_STAGES = 2
};
static_assert((int)WIDE_TILE == (int)INDEX_TILE, "a group takes a tile of the line");

/* A column's weights, of two heads: columns 2 t and 2 t + 1 of a fragment of 8. */
struct wide_weights {
    float sizes[2];  /* times powers of two */
    float pair_sign; /* of the second head, if that of the first is 1 */
    float sign;      /* of this fragment's sum, if that of the fragment it is added to is 1; of fragment 0: its own */
};

/* Column c of fragment i is head c / 2 + 4 * (i + 8 * (c % 2)): a lane's columns and all fragments are heads 4 apart.
 */
struct wide_query {
    int8_matrix bytes; /* step 4: excess_bytes(), which take away what FP4_BIAS adds to keys' bytes */
    wide_weights weights[8][4];
};

struct wide_shared {
    fp4_stage ring[WIDE_WARPS * WIDE_GROUPS][WIDE_STAGES];
    wide_query query;
    fp4_tables tables[4];
    tile_run run;
    uint32_t greatest;                        /* size of the query's integers, or FP4_OTHER_QUERY */
    uint32_t has_positive;                    /* weights without a sign */
    alignas(4) uint8_t shifts[WIDE_HEADS][4]; /* of the bytes of a head's blocks, if they have powers of their own */
};

/* A part of a head: 16 features. */
struct head_part {
    uint32_t words[8]; /* BF16 pairs */
    float weight;
};

static __device__ __forceinline__ head_part load_head_part(const indexer_query &at, uint32_t number)
{
    const uint32_t h = number / 8, first = number % 8 * 16;
    const uint16_t *p = at.q + h * DSRI_INDEX_DIM;
    const bool is_aligned = ((uintptr_t)p & 15) == 0;
    head_part part;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint4 x = is_aligned ? load_8<true>(p, first + 8 * i) : load_8<false>(p, first + 8 * i);
        part.words[4 * i] = x.x;
        part.words[4 * i + 1] = x.y;
        part.words[4 * i + 2] = x.z;
        part.words[4 * i + 3] = x.w;
    }
    part.weight = at.weights[h];
    return part;
}

/* The left operand that goes with excess_bytes: of 32 bytes 31 are 5 * FP4_BIAS, and the last is FP4_BIAS. Gives a
 * lane's words; `upper`: of the last 16 bytes. */
static __device__ __forceinline__ uint32_t ones_of_lane(bool upper)
{
    const uint32_t five = 5 * FP4_BIAS * 0x01010101u;
    return upper && threadIdx.x % 4 == 3 ? (five & 0xffffffu) | (uint32_t)FP4_BIAS << 24 : five;
}

/* Bytes 4 * word to 4 * word + 3 of the 32 that are together -sum, the last counted once, the others five times. */
static __device__ __forceinline__ uint32_t excess_bytes(int sum, uint32_t word)
{
    enum { N = 31, MOST = 128 }; /* MOST and 8192 keep what is divided positive, so that it is rounded down */
    const int fifth = (5 * 8192 + 2 - sum) / 5 - 8192, rest = -sum - 5 * fifth;
    uint32_t bytes = 0;
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        const uint32_t place = 4 * word + j;
        /* Rounded down, (n + 0) / N to (n + N - 1) / N add up to n. */
        const int share = (int)((uint32_t)(fifth + N * MOST + (int)place) / N) - MOST;
        bytes |= ((uint32_t)(place == N ? rest : share) & 255u) << 8 * j;
    }
    return bytes;
}

/* The least exponent of the parts that n_lanes lanes side by side have; FP4_ZERO of zeros. */
static __device__ __forceinline__ int exponent_of_parts(const head_part &part, int n_lanes)
{
    int exponent = FP4_ZERO;
#pragma unroll
    for (int i = 0; i < 8; i++)
        exponent = min(exponent, min(low_exponent(part.words[i] & 0xffffu), low_exponent(part.words[i] >> 16)));
#pragma unroll
    for (int s = 1; s < n_lanes; s *= 2)
        exponent = min(exponent, __shfl_xor_sync(0xffffffffu, exponent, s));
    return exponent;
}

/* A head's exponent as sums are made of it. */
static __device__ __forceinline__ int exponent_of_head(const head_part &part, bool &is_good)
{
    const int found = exponent_of_parts(part, 8), exponent = found == FP4_ZERO ? 0 : found;
    is_good = exponent >= -40 && exponent <= 40;
    return is_good ? exponent : 0;
}

/* Lays out the bytes of a part of a head, which times 2^exponent are its values, where those can be such. Gives the
 * size of the greatest, and adds the bytes to `sum`. */
static __device__ __forceinline__ float stage_part_bytes(uint32_t number, const head_part &part, int exponent, int &sum,
                                                         wide_shared &shared)
{
    const uint32_t h = number / 8, x = h / 4, fragment = x % 8, column = h % 4 * 2 + x / 8;
    const float scale = power_of_two(-exponent);
    float greatest = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t bytes = 0;
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t bf16 = part.words[2 * i + j / 2] >> 16 * (j % 2) << 16;
            const float value = __fmul_rn(__uint_as_float(bf16), scale);
            greatest = fmaxf(greatest, fabsf(value));
            /* Of 1.5 * 2^23 + an integer, the low bits are the integer's. */
            bytes |= (__float_as_uint(__fadd_rn(value, 12582912.0f)) & 255u) << 8 * j;
        }
        sum = __dp4a((int)bytes, 0x01010101, sum);
        const uint32_t part_of_block = number % 2 * 4 + i; /* of 4 features */
        shared.query.bytes.at(part_of_block / 2, part_of_block % 2, fragment, column)[number % 8 / 2] = bytes;
    }
    return greatest;
}

static __device__ __forceinline__ void note_greatest(bool is_good, float greatest, wide_shared &shared)
{
    const uint32_t integer = __reduce_max_sync(0xffffffffu, is_good ? (uint32_t)greatest : FP4_OTHER_QUERY);
    if (threadIdx.x % 32 == 0)
        atomicMax(&shared.greatest, integer);
}

/* Lays out a part of a head, whose other parts the 7 lanes beside have. */
static __device__ __forceinline__ void stage_head_part(const indexer_query &at, uint32_t number, const head_part &part,
                                                       wide_shared &shared)
{
    const uint32_t h = number / 8, x = h / 4, fragment = x % 8, column = h % 4 * 2 + x / 8;
    int sum = 0;
    bool is_good;
    const int exponent = exponent_of_head(part, is_good);
    const float greatest = stage_part_bytes(number, part, exponent, sum, shared);
#pragma unroll
    for (int s = 1; s < 8; s *= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, s);
    const float size = size_of_weight(part.weight, exponent, is_good);
    note_greatest(is_good && greatest <= FP4_MOST_BYTE, greatest, shared);
    if (sign_of(part.weight) > 0.0f)
        shared.has_positive = 1;
    shared.query.bytes.at(4, number % 8 / 4, fragment, column)[number % 4] = excess_bytes(sum, number % 8);
    if (number % 8 != 0)
        return;
    wide_weights &weights = shared.query.weights[fragment][column / 2];
    weights.sizes[column % 2] = size;
    if (column % 2 == 0) {
        const uint32_t left = fragment ? fragment - (1u << (31 - __clz((int)fragment))) : 0;
        weights.pair_sign = __fmul_rn(sign_of(part.weight), sign_of(at.weights[h + WIDE_HEADS / 2]));
        weights.sign = __fmul_rn(sign_of(part.weight), fragment ? sign_of(at.weights[h % 4 + 4 * left]) : 1.0f);
    }
}

static __device__ __forceinline__ void stage_heads(const indexer_query &at, wide_shared &shared)
{
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < WIDE_HEADS * 8; i += WIDE_THREADS)
        stage_head_part(at, i, load_head_part(at, i), shared);
}

/* Lays out a query's bytes anew, where some integers are too great for them: each block by its own power of two. All
 * threads of the block call it. */
static __device__ __noinline__ void stage_blocks(const indexer_query &at, wide_shared &shared)
{
    __syncthreads();
    if (threadIdx.x == 0)
        shared.greatest = FP4_WIDE_QUERY;
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < WIDE_HEADS * 8; i += WIDE_THREADS) {
        const head_part part = load_head_part(at, i);
        int sum = 0;
        bool is_good;
        const int exponent = exponent_of_head(part, is_good), above = exponent_of_parts(part, 2) - exponent;
        const int shift = above >= 0 && above <= 12 ? above : 0; /* of zeros, too */
        const float greatest = stage_part_bytes(i, part, exponent + shift, sum, shared);
        const float integer = __fmul_rn(greatest, (float)(1 << shift));
        size_of_weight(part.weight, exponent, is_good);
        note_greatest(is_good && greatest <= FP4_MOST_BYTE && integer <= FP4_MOST_INTEGER, integer, shared);
        if (i % 2 == 0)
            shared.shifts[i / 8][i % 8 / 2] = (uint8_t)shift;
    }
    order_before_async();
    __syncthreads();
}

/* Bytes of a lane's block of keys lane / 4 and 8 further of a half of the tile. */
static __device__ __forceinline__ void widen_keys(const fp4_stage &stage, uint32_t half, uint32_t above,
                                                  const fp4_tables tables[4], uint32_t bytes[4][4])
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        /* The lane whose own key it is knows the scales. */
        const uint32_t of_key = __shfl_sync(0xffffffffu, above, (lane & ~3u) + 2 * half + r);
        const fp4_tables table = tables[of_key >> lane % 4 * 8 & 3u];
        const uint4 block = stage.values[16 * half + 8 * r + lane / 4][lane % 4];
        const uint32_t words[4] = {block.x, block.y, block.z, block.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t negated = words[j] ^ 0x88888888u;
            bytes[j][r] = widen_4(table, words[j], negated);
            bytes[j][2 + r] = widen_4(table, words[j] >> 16, negated >> 16);
        }
    }
}

/* The sum by halving of a lane's heads of the key in row `row` of its two. */
static __device__ __forceinline__ float sum_columns(const int dots[32], int row, const wide_weights weights[8])
{
    float t[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        t[i] = __fmaf_rn(weigh_fp4(dots[4 * i + 2 * row + 1], weights[i].sizes[1]), weights[i].pair_sign,
                         weigh_fp4(dots[4 * i + 2 * row], weights[i].sizes[0]));
#pragma unroll
    for (int s = 4; s > 0; s /= 2)
#pragma unroll
        for (int i = 0; i < s; i++)
            t[i] = __fmaf_rn(t[s + i], weights[s + i].sign, t[i]);
    return __fmul_rn(t[0], weights[0].sign);
}

/* The key of a tile that a lane has at last. */
static __device__ __forceinline__ uint32_t own_key_wide()
{
    const uint32_t lane = threadIdx.x % 32;
    return lane / 2 % 2 * 16 + lane % 2 * 8 + lane / 4;
}

/* Sums over the 4 lanes of other heads; of the 4 keys, a lane keeps its own. */
static __device__ __forceinline__ float sum_over_columns(const float sums[4])
{
    const bool keeps_upper = threadIdx.x & 2, keeps_8 = threadIdx.x & 1;
    float two[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        two[i] = __fadd_rn(keeps_upper ? sums[2 + i] : sums[i],
                           __shfl_xor_sync(0xffffffffu, keeps_upper ? sums[i] : sums[2 + i], 2));
    return __fadd_rn(keeps_8 ? two[1] : two[0], __shfl_xor_sync(0xffffffffu, keeps_8 ? two[0] : two[1], 1));
}

/* The query as join_tile_fp4 takes it. */
struct wide_heads {
    wide_shared &shared;
    const float *signed_weights;

    __device__ void bytes(uint32_t i, uint4 of_blocks[4]) const
    {
        const uint32_t lane = threadIdx.x % 32, t = lane % 4, g = lane / 4;
        const uint32_t fragment = 2 * i + g / 4, column = g % 4 * 2;
        const uint4 x = words_at(t, 0, fragment, column), y = words_at(t, 0, fragment, column + 1);
        const uint4 z = words_at(t, 1, fragment, column), w = words_at(t, 1, fragment, column + 1);
        of_blocks[0] = make_uint4(x.x, y.x, z.x, w.x);
        of_blocks[1] = make_uint4(x.y, y.y, z.y, w.y);
        of_blocks[2] = make_uint4(x.z, y.z, z.z, w.z);
        of_blocks[3] = make_uint4(x.w, y.w, z.w, w.w);
    }

    /* A column's words of the four blocks. */
    __device__ uint4 words_at(uint32_t step, uint32_t half, uint32_t fragment, uint32_t column) const
    {
        return *reinterpret_cast<const uint4 *>(shared.query.bytes.at(step, half, fragment, column));
    }

    __device__ uint2 shifts(uint32_t i) const
    {
        if (shared.greatest < FP4_WIDE_QUERY)
            return make_uint2(0, 0);
        const uint32_t *all = reinterpret_cast<const uint32_t *>(shared.shifts) + 8 * i + threadIdx.x % 32 / 4;
        return make_uint2(all[0], all[WIDE_HEADS / 2]);
    }

    __device__ float2 weights(uint32_t i) const
    {
        const uint32_t g = threadIdx.x % 32 / 4;
        const float *sizes = shared.query.weights[2 * i + g / 4][g % 4].sizes, *all = signed_weights + 8 * i + g;
        return make_float2(__fmul_rn(sizes[0], sign_of(all[0])), __fmul_rn(sizes[1], sign_of(all[WIDE_HEADS / 2])));
    }
};

/* Scores of a tile that has keys of another kind, or a query. */
static __device__ __noinline__ float score_other_tile(const indexer_query &at, fp4_stage &stage, uint32_t key,
                                                      uint32_t own_key, wide_shared &shared)
{
    leave_out_zeros(stage, own_key);
    if (!can_join_tile(shared.greatest, stage.scales[own_key], key + own_key < at.n_seen))
        return chain_tile_fp4(at, WIDE_HEADS, key, own_key);
    const wide_heads heads = {shared, at.weights};
    return join_tile_fp4<WIDE_HEADS / 16>(heads, stage, shared.tables[0], own_key);
}

/* Scores of a run of tiles. */
static __device__ __forceinline__ void score_run_wide(const tile_run &run, wide_shared &shared)
{
    const uint32_t warp = threadIdx.x / 32, t = threadIdx.x % 4, n_tiles = run.n;
    const indexer_query at = run.at;
    const fp4_source from = source_of_fp4(at);
    fp4_stage *ring = shared.ring[warp];
    const uint32_t first_key = run.first * INDEX_TILE + warp % WIDE_WARPS * FP4_TILE, own_key = own_key_wide();
#pragma unroll 1
    for (uint32_t i = 0; i < WIDE_STAGES - 1; i++) {
        const uint32_t tile = warp / WIDE_WARPS + i * WIDE_GROUPS;
        if (tile < n_tiles)
            stage_fp4_keys(run.at, from, first_key + tile * INDEX_TILE, ring[i]);
        copy_async_commit();
    }
    stage_heads(at, shared);
    order_before_async();
    __syncthreads();
    /* A vote, for the compiler to know that warps stay together: their products need it. */
    if (__any_sync(0xffffffffu, shared.greatest == FP4_OTHER_QUERY))
        stage_blocks(run.at, shared);
    wide_weights weights[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        weights[i] = shared.query.weights[i][t];
    const float zero = shared.has_positive ? 0.0f : -0.0f; /* what a sum of zeros is */
    uint32_t slot = 0, free_slot = WIDE_STAGES - 1;
#pragma unroll 1
    for (uint32_t tile = warp / WIDE_WARPS; tile < n_tiles; tile += WIDE_GROUPS) {
        const uint32_t key = first_key + tile * INDEX_TILE;
        copy_async_wait<WIDE_STAGES - 2>();
        __syncwarp();
        if (tile + (WIDE_STAGES - 1) * WIDE_GROUPS < n_tiles)
            stage_fp4_keys(run.at, from, key + (WIDE_STAGES - 1) * WIDE_GROUPS * INDEX_TILE, ring[free_slot]);
        copy_async_commit();
        fp4_stage &stage = ring[slot];
        free_slot = slot;
        slot = slot + 1 < WIDE_STAGES ? slot + 1 : 0;
        const fp4_scales scales = find_scales(stage.scales[own_key]);
        float sums[4] = {};
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t bytes[4][4];
            int dots[32];
            widen_keys(stage, half, scales.above, shared.tables, bytes);
            multiply_bytes_64(dots, bytes, ones_of_lane(false), ones_of_lane(true), shared.query.bytes);
            sums[0] = sums[2];
            sums[1] = sums[3];
            sums[2] = sum_columns(dots, 0, weights);
            sums[3] = sum_columns(dots, 1, weights);
        }
        const float sum = __fadd_rn(sum_over_columns(sums), zero);
        float score = __fmul_rn(sum, unit_of_scores(scales.least));
        /* All warps of a group multiply together, so what one of them does alone comes after. */
        if (shared.greatest >= FP4_WIDE_QUERY || __any_sync(0xffffffffu, !scales.are_good && key + own_key < at.n_seen))
            score = score_other_tile(run.at, stage, key, own_key, shared);
        store_fp4(at, key, own_key, score);
    }
    copy_async_wait<0>();
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 1)
    dsr_indexer_scores_wide_fp4__cuda(const __grid_constant__ dsri_indexer_plan plan, uint8_t *)
{
    extern __shared__ uint4 shared_memory[];
    let_next_launch_start();
    wide_shared &shared = *reinterpret_cast<wide_shared *>(shared_memory);
    if (threadIdx.x < 4)
        shared.tables[threadIdx.x] = tables_for(threadIdx.x);
    for (tile_piece piece = tiles_of_block(plan); piece.next < piece.end;) {
        if (threadIdx.x == 0)
            shared.greatest = shared.has_positive = 0;
        take_run(plan, piece, shared.run);
        wait_for_prior_launch();
        score_run_wide(shared.run, shared);
    }
}

#endif
