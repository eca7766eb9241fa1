/* Device-exact index scores of packed FP4 keys by mma.sync, keys as the columns: a warp holds all heads in registers.
 */
#include "cuda/kernels/indexer_fp4.cuh"

enum { FP4_WARPS = 12, FP4_THREADS = 32 * FP4_WARPS, FP4_STAGES = 5 };
enum { FP4_KEYS = 8, FP4_BATCHES = FP4_TILE / FP4_KEYS, FP4_MAX_GROUPS = 2, FP4_STEPS = 4 };

/* A query as fragments of 16 heads: groups of 64 heads (or one of 32), those of 128 the even and the odd ones. Row r of
 * fragment i of n is head r % 8 + 8 * (i + n * (r / 8)) of its group: a lane's two rows and all fragments are heads 8
 * apart. */
struct fp4_query {
    uint4 bytes[FP4_MAX_GROUPS][4][FP4_STEPS][32]; /* [][fragment][8 features of each block][lane] */
    int4 starts[FP4_MAX_GROUPS][4][8];             /* of the accumulators of lanes 4 i to 4 i + 3 */
    float2 weights[FP4_MAX_GROUPS][4][8];          /* their sizes, times powers of two */
    float2 signs[FP4_MAX_GROUPS][4][8];            /* 1 or -1 */
    uint2 shifts[FP4_MAX_GROUPS][4][8];            /* of the bytes of a head's blocks, a byte each */
};

struct fp4_shared {
    fp4_stage ring[FP4_WARPS][FP4_STAGES];
    fp4_query query;
    fp4_tables tables[4];
    tile_run run;
    uint32_t greatest;   /* size of the query's integers, or FP4_OTHER_QUERY */
    uint32_t n_positive; /* weights without a sign */
};

/* A lane's 4 features of a head as bytes, which times 2^exponent are their values; and the size of the greatest. */
static __device__ __forceinline__ uint32_t features_to_bytes(const uint32_t bf16[4], int exponent, uint32_t &bytes)
{
    const float scale = power_of_two(-exponent);
    uint32_t greatest = 0;
    bytes = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float value = __fmul_rn(__uint_as_float(bf16[i] << 16), scale);
        const int integer = fabsf(value) <= FP4_MOST_INTEGER ? __float2int_rz(value) : FP4_OTHER_QUERY;
        bytes |= ((uint32_t)integer & 255u) << 8 * i;
        greatest = max(greatest, (uint32_t)abs(integer));
    }
    return greatest;
}

/* One head as bytes times powers of two, by one warp; 4 features a lane. */
struct fp4_head {
    uint32_t bytes;    /* the lane's */
    uint32_t shifts;   /* by how much each block's power of two lies above the least, a byte each */
    int exponent;      /* of the least */
    uint32_t greatest; /* size of the lane's greatest integer times that, or FP4_OTHER_QUERY */
};

static __device__ __forceinline__ fp4_head head_to_bytes(uint2 features)
{
    const uint32_t bf16[4] = {features.x & 0xffffu, features.x >> 16, features.y & 0xffffu, features.y >> 16};
    fp4_head head = {};
    int least = FP4_ZERO;
#pragma unroll
    for (int i = 0; i < 4; i++)
        least = min(least, low_exponent(bf16[i]));
    const int found = __reduce_min_sync(0xffffffffu, least);
    const bool is_in_range = (found >= -40 && found <= 40) || found == FP4_ZERO;
    head.exponent = is_in_range && found != FP4_ZERO ? found : 0;
    head.greatest = features_to_bytes(bf16, head.exponent, head.bytes);
    if (__any_sync(0xffffffffu, head.greatest > FP4_MOST_BYTE)) {
#pragma unroll
        for (int s = 1; s < 8; s *= 2)
            least = min(least, __shfl_xor_sync(0xffffffffu, least, s));
        const int shift = least >= head.exponent && least <= head.exponent + 12 ? least - head.exponent : 0;
        if (features_to_bytes(bf16, head.exponent + shift, head.bytes) > FP4_MOST_BYTE)
            head.greatest = FP4_OTHER_QUERY;
        head.shifts = __reduce_or_sync(0xffffffffu, (uint32_t)shift << threadIdx.x % 32 / 8 * 8);
    }
    if (__any_sync(0xffffffffu, !is_in_range || head.greatest == FP4_OTHER_QUERY))
        head.greatest = FP4_OTHER_QUERY;
    return head;
}

/* 4 BF16 values, which lie at a multiple of 8 bytes if the query starts there. */
static __device__ __forceinline__ uint2 load_4(const uint16_t *p)
{
    if (((uintptr_t)p & 7) == 0)
        return *reinterpret_cast<const uint2 *>(p);
    return make_uint2(p[0] | (uint32_t)p[1] << 16, p[2] | (uint32_t)p[3] << 16);
}

/* Heads that a warp loads at a time: those of 64 by 12 warps. */
enum { FP4_OWN_HEADS = 6 };

/* This warp's heads from number `first` on, each 12 apart, 4 features a lane; the last head again past it. */
struct fp4_heads {
    uint2 features[FP4_OWN_HEADS];
    float weights[FP4_OWN_HEADS];
};

static __device__ __forceinline__ fp4_heads load_fp4_heads(const indexer_query &at, uint32_t n_heads, uint32_t first)
{
    const uint32_t lane = threadIdx.x % 32;
    fp4_heads heads;
#pragma unroll
    for (uint32_t i = 0; i < FP4_OWN_HEADS; i++) {
        const uint32_t h = min(first + i * FP4_WARPS, n_heads - 1);
        heads.features[i] = load_4(at.q + h * DSRI_INDEX_DIM + 4 * lane);
        heads.weights[i] = at.weights[h];
    }
    return heads;
}

/* Lays out one head for groups of n_fragments; gives what head_to_bytes does. A warp calls it. */
static __device__ __forceinline__ uint32_t stage_fp4_head(uint32_t h, uint2 features, float weight,
                                                          uint32_t n_fragments, uint32_t n_groups, fp4_query &query)
{
    const uint32_t lane = threadIdx.x % 32, group = h % n_groups, in_group = h / n_groups, row = in_group % 8;
    const uint32_t fragment = in_group / 8 % n_fragments, upper = in_group / 8 / n_fragments;
    const fp4_head head = head_to_bytes(features);
    const int sum = __reduce_add_sync(0xffffffffu, __dp4a((int)head.bytes, 0x01010101, 0));
    bool is_good = head.greatest < FP4_OTHER_QUERY;
    uint4 &place = query.bytes[group][fragment][lane % 8 / 2][4 * row + lane / 8];
    reinterpret_cast<uint32_t *>(&place)[upper + lane % 2 * 2] = head.bytes;
    const float size = size_of_weight(weight, head.exponent, is_good);
    if (lane == 0) {
        reinterpret_cast<float *>(&query.weights[group][fragment][row])[upper] = size;
        reinterpret_cast<float *>(&query.signs[group][fragment][row])[upper] = sign_of(weight);
        reinterpret_cast<uint32_t *>(&query.shifts[group][fragment][row])[upper] = head.shifts;
        int *start = reinterpret_cast<int *>(&query.starts[group][fragment][row]) + 2 * upper;
        start[0] = start[1] = -FP4_BIAS * sum;
    }
    return is_good ? head.greatest : FP4_OTHER_QUERY;
}

/* Lays out this warp's heads, of which the first have been loaded. */
template <int FRAGMENTS, int GROUPS>
static __device__ __forceinline__ void stage_fp4_heads(const indexer_query &at, fp4_heads heads, fp4_shared &shared)
{
    constexpr uint32_t n_heads = 16 * FRAGMENTS * GROUPS;
    uint32_t greatest = 0, n_positive = 0;
#pragma unroll 1
    for (uint32_t first = threadIdx.x / 32; first < n_heads; first += FP4_OWN_HEADS * FP4_WARPS) {
        if (first >= FP4_OWN_HEADS * FP4_WARPS)
            heads = load_fp4_heads(at, n_heads, first);
#pragma unroll
        for (uint32_t i = 0; i < FP4_OWN_HEADS; i++) {
            const uint32_t h = min(first + i * FP4_WARPS, n_heads - 1);
            greatest =
                max(greatest, stage_fp4_head(h, heads.features[i], heads.weights[i], FRAGMENTS, GROUPS, shared.query));
            n_positive += __float_as_int(heads.weights[i]) >= 0;
        }
    }
    greatest = __reduce_max_sync(0xffffffffu, greatest);
    if (threadIdx.x % 32 == 0) {
        atomicMax(&shared.greatest, greatest);
        if (n_positive)
            atomicAdd(&shared.n_positive, n_positive);
    }
}

/* The integer products of a group of heads with 8 keys, of which a lane has one block of one. */
template <int FRAGMENTS, typename Bytes>
static __device__ __forceinline__ void multiply_fp4(uint4 block, const int4 starts[4][8], Bytes bytes,
                                                    const fp4_tables &tables, int dots[FRAGMENTS][4])
{
    const uint32_t words[4] = {block.x, block.y, block.z, block.w}, row = threadIdx.x % 32 / 4;
#pragma unroll
    for (int j = 0; j < FP4_STEPS; j++) {
        const uint32_t negated = words[j] ^ 0x88888888u;
        const uint32_t low = widen_4(tables, words[j], negated);
        const uint32_t high = widen_4(tables, words[j] >> 16, negated >> 16);
#pragma unroll
        for (int i = 0; i < FRAGMENTS; i++) {
            const int4 start = j ? make_int4(dots[i][0], dots[i][1], dots[i][2], dots[i][3]) : starts[i][row];
            multiply_add_bytes(dots[i], bytes(i, j), low, high, start);
        }
    }
}

/* A group's weights as a lane needs them: sizes of its rows, and signs of each sum's right part, those of the left one
 * being 1. */
template <int FRAGMENTS> struct fp4_weights {
    float sizes[FRAGMENTS][2];
    float row_signs[FRAGMENTS]; /* of the upper rows */
    float signs[FRAGMENTS];     /* of fragments: entries [s, 2 s) are right parts where s are left */
    float sign;                 /* of all */
};

template <int FRAGMENTS>
static __device__ __forceinline__ fp4_weights<FRAGMENTS> weights_of_lane(const fp4_query &query, int group)
{
    const uint32_t row = threadIdx.x % 32 / 4;
    fp4_weights<FRAGMENTS> w;
    float first[FRAGMENTS];
#pragma unroll
    for (int i = 0; i < FRAGMENTS; i++) {
        const float2 size = query.weights[group][i][row], sign = query.signs[group][i][row];
        w.sizes[i][0] = size.x;
        w.sizes[i][1] = size.y;
        w.row_signs[i] = __fmul_rn(sign.x, sign.y);
        first[i] = sign.x;
    }
    w.sign = first[0];
#pragma unroll
    for (int s = FRAGMENTS / 2; s > 0; s /= 2)
#pragma unroll
        for (int i = 0; i < s; i++)
            w.signs[s + i] = __fmul_rn(first[i], first[s + i]);
    return w;
}

/* Sums by halving of a lane's heads for its two keys of 8, but for the sign of all. */
template <int FRAGMENTS>
static __device__ __forceinline__ void sum_fp4_heads(const int dots[FRAGMENTS][4],
                                                     const fp4_weights<FRAGMENTS> &weights, float sums[2])
{
#pragma unroll
    for (int key = 0; key < 2; key++) {
        float t[FRAGMENTS];
#pragma unroll
        for (int i = 0; i < FRAGMENTS; i++)
            t[i] = __fmaf_rn(weigh_fp4(dots[i][2 + key], weights.sizes[i][1]), weights.row_signs[i],
                             weigh_fp4(dots[i][key], weights.sizes[i][0]));
#pragma unroll
        for (int s = FRAGMENTS / 2; s > 0; s /= 2)
#pragma unroll
            for (int i = 0; i < s; i++)
                t[i] = __fmaf_rn(t[s + i], weights.signs[s + i], t[i]);
        sums[key] = t[0];
    }
}

/* The key of a tile that a lane has at last. */
static __device__ __forceinline__ uint32_t own_key_fp4()
{
    const uint32_t lane = threadIdx.x % 32;
    return lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2;
}

/* Sums over the lanes of other heads: a lane has keys 2 * (lane % 4) and the next of each 8, and keeps the one that is
 * its own. */
static __device__ __forceinline__ float sum_over_rows(const float sums[8], float sign)
{
    const uint32_t lane = threadIdx.x % 32;
    const bool keeps_16 = lane & 16, keeps_8 = lane & 8, keeps_1 = lane & 4;
    float four[4], two[2];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float sent = __fmul_rn(keeps_16 ? sums[i] : sums[4 + i], sign);
        four[i] = __fmaf_rn(keeps_16 ? sums[4 + i] : sums[i], sign, __shfl_xor_sync(0xffffffffu, sent, 16));
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        two[i] = __fadd_rn(keeps_8 ? four[2 + i] : four[i],
                           __shfl_xor_sync(0xffffffffu, keeps_8 ? four[i] : four[2 + i], 8));
    return __fadd_rn(keeps_1 ? two[1] : two[0], __shfl_xor_sync(0xffffffffu, keeps_1 ? two[0] : two[1], 4));
}

/* The query as join_tile_fp4 takes it. */
template <int GROUPS> struct fp4_query_heads {
    const fp4_query &query;

    __device__ void bytes(uint32_t i, uint4 of_blocks[4]) const
    {
        const uint32_t g = threadIdx.x % 32 / 4, in_group = (8 * i + g) / GROUPS;
#pragma unroll
        for (uint32_t b = 0; b < 4; b++)
            of_blocks[b] = query.bytes[g % GROUPS][in_group / 8][threadIdx.x % 4][4 * (in_group % 8) + b];
    }

    __device__ uint2 shifts(uint32_t i) const
    {
        const uint32_t g = threadIdx.x % 32 / 4, in_group = (8 * i + g) / GROUPS;
        return query.shifts[g % GROUPS][in_group / 8][in_group % 8];
    }

    __device__ float2 weights(uint32_t i) const
    {
        const uint32_t g = threadIdx.x % 32 / 4, in_group = (8 * i + g) / GROUPS;
        const float2 size = query.weights[g % GROUPS][in_group / 8][in_group % 8];
        const float2 sign = query.signs[g % GROUPS][in_group / 8][in_group % 8];
        return make_float2(__fmul_rn(size.x, sign.x), __fmul_rn(size.y, sign.y));
    }
};

/* Scores of a tile that has keys of another kind, or a query. */
template <int FRAGMENTS, int GROUPS>
static __device__ __noinline__ float score_other_tile(const indexer_query &at, fp4_stage &stage, uint32_t key,
                                                      uint32_t own_key, const fp4_shared &shared)
{
    constexpr int N = FRAGMENTS * GROUPS;
    leave_out_zeros(stage, own_key);
    if (!can_join_tile(shared.greatest, stage.scales[own_key], key + own_key < at.n_seen))
        return chain_tile_fp4(at, 16 * N, key, own_key);
    const fp4_query_heads<GROUPS> heads = {shared.query};
    return join_tile_fp4<N>(heads, stage, shared.tables[0], own_key);
}

/* Scores of a run of tiles. GROUPS of 16 * FRAGMENTS heads. */
template <int FRAGMENTS, int GROUPS>
static __device__ __forceinline__ void score_fp4_run(const tile_run &run, uint32_t n_heads, fp4_shared &shared)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const indexer_query at = run.at;
    const fp4_source from = source_of_fp4(at);
    fp4_stage *ring = shared.ring[warp];
    const uint32_t first_key = run.first * INDEX_TILE, n_scores = max(run.at.n_scores, first_key + 1) - first_key;
    const uint32_t n_tiles = min(run.n * (INDEX_TILE / FP4_TILE), (n_scores - 1) / FP4_TILE + 1);
    const fp4_heads heads = load_fp4_heads(at, n_heads, warp);
    for (uint32_t i = 0; i < FP4_STAGES - 1; i++) {
        const uint32_t tile = warp + i * FP4_WARPS;
        if (tile < n_tiles)
            stage_fp4_keys(run.at, from, first_key + tile * FP4_TILE, ring[i]);
        copy_async_commit();
    }
    stage_fp4_heads<FRAGMENTS, GROUPS>(at, heads, shared);
    __syncthreads();
    uint4 own_bytes[FRAGMENTS][FP4_STEPS];
    fp4_weights<FRAGMENTS> weights;
    if (GROUPS == 1) {
#pragma unroll
        for (int i = 0; i < FRAGMENTS * FP4_STEPS; i++)
            own_bytes[i / FP4_STEPS][i % FP4_STEPS] = shared.query.bytes[0][i / FP4_STEPS][i % FP4_STEPS][lane];
        weights = weights_of_lane<FRAGMENTS>(shared.query, 0);
    }
    const bool is_bytes = shared.greatest < FP4_WIDE_QUERY;
    const float zero = shared.n_positive ? 0.0f : -0.0f; /* what a sum of zeros is */
    const uint32_t own_key = own_key_fp4();
    uint32_t slot = 0, free_slot = FP4_STAGES - 1;
#pragma unroll 1
    for (uint32_t tile = warp; tile < n_tiles; tile += FP4_WARPS) {
        const uint32_t key = first_key + tile * FP4_TILE;
        copy_async_wait<FP4_STAGES - 2>();
        __syncwarp();
        if (tile + (FP4_STAGES - 1) * FP4_WARPS < n_tiles)
            stage_fp4_keys(run.at, from, key + (FP4_STAGES - 1) * FP4_WARPS * FP4_TILE, ring[free_slot]);
        copy_async_commit();
        fp4_stage &stage = ring[slot];
        free_slot = slot;
        slot = slot + 1 < FP4_STAGES ? slot + 1 : 0;
        const fp4_scales scales = find_scales(stage.scales[own_key]);
        if (!is_bytes || __any_sync(0xffffffffu, !scales.are_good && key + own_key < at.n_seen)) {
            store_fp4(at, key, own_key, score_other_tile<FRAGMENTS, GROUPS>(run.at, stage, key, own_key, shared));
            continue;
        }
        float score = 0.0f;
#pragma unroll 1
        for (int group = 0; group < GROUPS; group++) {
            if (GROUPS > 1)
                weights = weights_of_lane<FRAGMENTS>(shared.query, group);
            float sums[2 * FP4_BATCHES];
#pragma unroll
            for (uint32_t i = 0; i < FP4_BATCHES; i++) {
                /* The lane whose own key is 8 i + lane / 4. */
                const uint32_t above = __shfl_sync(0xffffffffu, scales.above, 8 * i + lane / 4 % 2 * 4 + lane / 8);
                const fp4_tables tables = shared.tables[above >> lane % 4 * 8 & 3u];
                int dots[FRAGMENTS][4];
                multiply_fp4<FRAGMENTS>(
                    stage.values[FP4_KEYS * i + lane / 4][lane % 4], shared.query.starts[group],
                    [&](int f, int j) { return GROUPS == 1 ? own_bytes[f][j] : shared.query.bytes[group][f][j][lane]; },
                    tables, dots);
                sum_fp4_heads<FRAGMENTS>(dots, weights, sums + 2 * i);
            }
            const float sum = sum_over_rows(sums, weights.sign);
            score = group ? __fadd_rn(score, sum) : sum;
        }
        score = __fadd_rn(score, zero);
        store_fp4(at, key, own_key, __fmul_rn(score, unit_of_scores(scales.least)));
    }
    copy_async_wait<0>();
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(FP4_THREADS, 1)
    dsr_indexer_scores_fp4__cuda(const __grid_constant__ dsri_indexer_plan plan, uint8_t *)
{
    extern __shared__ uint4 shared_memory[];
    let_next_launch_start();
    fp4_shared &shared = *reinterpret_cast<fp4_shared *>(shared_memory);
    if (threadIdx.x < 4)
        shared.tables[threadIdx.x] = tables_for(threadIdx.x);
    for (tile_piece piece = tiles_of_block(plan); piece.next < piece.end;) {
        if (threadIdx.x == 0)
            shared.greatest = shared.n_positive = 0;
        take_run(plan, piece, shared.run);
        wait_for_prior_launch();
        if (shared.run.at.keys.scale_bytes == 0) { /* a row that another kernel takes */
            __syncthreads();
            continue;
        }
        if (plan.n_heads == 32)
            score_fp4_run<2, 1>(shared.run, 32, shared);
        else if (plan.n_heads == 64)
            score_fp4_run<4, 1>(shared.run, 64, shared);
        else
            score_fp4_run<4, 2>(shared.run, 128, shared);
    }
}
