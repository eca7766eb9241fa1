/* Device-exact index scores of packed FP4 keys on tensor cores, and the top-k of each query by the block that finishes
 * its last tile.
 *
 * A key's values doubled are integers up to 12; shifted by how far its block's scale lies above the least of its four,
 * 48 at most. A query head whose values are integers up to 127 times a power of two becomes bytes. Then a dot product
 * is an integer below 2^20 times a power of two, every partial sum of the F32 chain is exact, and so is the sum of
 * products of bytes in any order. Powers of two that all heads of a key share wait until its score is summed. Keys and
 * queries that are not such take the chain itself, with the same bits either way.
 *
 * Bytes of keys carry 48 more, so that a nibble becomes one by a table of 8 bytes for each sign; the accumulators start
 * that much lower, and at the bits of 2^23, so that they end as the float 2^23 + dot where the dot is not negative. */
#include "cuda/kernels/indexer_common.cuh"

enum { FP4_WARPS = 12, FP4_THREADS = 32 * FP4_WARPS, FP4_STAGES = 7, FP4_KEYS = 16, FP4_TILE = FP4_WARPS * FP4_KEYS };
enum { FP4_MAX_GROUPS = 2, FP4_BIAS = 48 };

struct fp4_stage {
    uint4 values[FP4_KEYS][4]; /* a key's four blocks */
    uint32_t scales[FP4_KEYS];
};

/* A query as fragments: groups of 64 heads (or one of 32), 8 heads a fragment. Column c of fragment i of group p is
 * head c / 2 + 4 * (i + n * (c % 2 + 2 * p)), n fragments a group: a lane's two columns and all fragments are heads 4
 * apart. */
struct fp4_query {
    uint2 bytes[FP4_MAX_GROUPS][8][4][32]; /* [][fragment][word of 8 features of each block][lane] */
    int4 starts[FP4_MAX_GROUPS][8][4];     /* of a lane's accumulators */
    float2 weights[FP4_MAX_GROUPS][8][4];  /* times powers of two */
};

struct fp4_shared {
    fp4_stage ring[FP4_WARPS][FP4_STAGES];
    fp4_query query;
    indexer_line line;
    indexer_run run;
    uint32_t n_bad; /* heads that are not bytes, or whose weights are too great or small */
};

/* Starts the copies of 16 keys; what is not seen, or in a bad page, gives zeros, whose scales are taken for bad ones.
 */
static __device__ __forceinline__ void stage_fp4_keys(const indexer_query &at, uint32_t first_key, fp4_stage &stage)
{
    const uint32_t lane = threadIdx.x % 32;
    if (at.keys.page_table == nullptr && first_key + FP4_KEYS <= at.n_seen) {
        const uint8_t *values = at.keys.pages + (uint64_t)first_key * DSRI_FP4_KEY_BYTES + 16 * lane;
        const uint8_t *scales = at.keys.pages + at.keys.scales_offset + first_key * 4ull + 16 * lane;
        copy_async_16(&stage.values[lane / 4][lane % 4], values, 16);
        copy_async_16(&stage.values[8 + lane / 4][lane % 4], values + 512, 16);
        if (lane < FP4_KEYS / 4)
            copy_async_16(&stage.scales[4 * lane], scales, 16);
        return;
    }
    const dsri_cache keys = at.keys;
    const uint32_t n = first_key < at.n_seen ? min(at.n_seen - first_key, (uint32_t)FP4_KEYS) : 0;
    dsri_cache_entry first = {nullptr, nullptr};
    if (n)
        first = dsri_cache_at(&keys, first_key); /* 16 keys are in one page */
    const uint32_t n_there = first.values ? n : 0;
#pragma unroll 1
    for (uint32_t i = lane; i < FP4_KEYS * 4; i += 32) {
        const bool is_there = i / 4 < n_there;
        copy_async_16(&stage.values[i / 4][i % 4], is_there ? first.values + 16 * i : keys.pages, is_there ? 16 : 0);
    }
    if (lane < FP4_KEYS / 4) {
        const uint32_t n_bytes = 4 * lane < n_there ? min(4 * (n_there - 4 * lane), 16u) : 0;
        copy_async_16(&stage.scales[4 * lane], n_bytes ? first.scales + 16 * lane : keys.pages, n_bytes);
    }
}

/* 2^n for a normal result. */
static __device__ __forceinline__ float power_of_two(int n)
{
    return __uint_as_float((uint32_t)(n + 127) << 23);
}

/* Exponent of the lowest bit of a normal value; great for a zero, and bad for what is neither. */
enum { FP4_ZERO = 1000, FP4_NOT_BYTES = -1000 };
static __device__ __forceinline__ int low_exponent(uint32_t bf16)
{
    const int exponent = (int)(bf16 >> 7 & 255u);
    if ((bf16 & 0x7fffu) == 0)
        return FP4_ZERO;
    return exponent == 0 || exponent == 255 ? FP4_NOT_BYTES : exponent - 134 + __ffs((int)(bf16 | 128u)) - 1;
}

/* One head as bytes times 2^exponent, by one warp; 4 features a lane. Gives whether it can be. */
static __device__ __forceinline__ bool head_to_bytes(uint2 features, int &exponent, uint32_t &bytes, int &sum)
{
    const uint32_t bf16[4] = {features.x & 0xffffu, features.x >> 16, features.y & 0xffffu, features.y >> 16};
    int least = FP4_ZERO;
#pragma unroll
    for (int i = 0; i < 4; i++)
        least = min(least, low_exponent(bf16[i]));
    exponent = __reduce_min_sync(0xffffffffu, least);
    exponent = exponent == FP4_ZERO ? 0 : exponent;
    bool is_good = exponent >= -40 && exponent <= 40;
    const float scale = power_of_two(is_good ? -exponent : 0);
    bytes = 0;
    sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float value = __fmul_rn(__uint_as_float(bf16[i] << 16), scale);
        is_good = is_good && fabsf(value) <= 127.0f;
        const int integer = is_good ? __float2int_rz(value) : 0;
        bytes |= ((uint32_t)integer & 255u) << 8 * i;
        sum += integer;
    }
    sum = __reduce_add_sync(0xffffffffu, sum);
    return __all_sync(0xffffffffu, is_good);
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

/* This warp's heads from number `first` on, each 12 apart, 4 features a lane. */
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

/* Lays out one head for n_fragments a group; gives whether it can be. A warp calls it. */
static __device__ __forceinline__ bool stage_fp4_head(uint32_t h, uint2 features, float weight, uint32_t n_fragments,
                                                      fp4_query &query)
{
    const uint32_t lane = threadIdx.x % 32, x = h / 4, group = x / (2 * n_fragments), fragment = x % n_fragments;
    const uint32_t column = h % 4 * 2 + x / n_fragments % 2, block = lane / 8;
    int exponent, sum;
    uint32_t bytes;
    const bool are_bytes = head_to_bytes(features, exponent, bytes, sum);
    reinterpret_cast<uint32_t *>(&query.bytes[group][fragment][lane % 8 / 2][column * 4 + block])[lane % 2] = bytes;
    /* The dot is 2^(exponent - 1) times the integer, which comes times 2^-22. */
    const float scaled = __fmul_rn(weight, power_of_two(are_bytes ? exponent + 21 : 0)), size = fabsf(scaled);
    if (lane == 0) {
        reinterpret_cast<float *>(&query.weights[group][fragment][column / 2])[column % 2] = scaled;
        int *start = reinterpret_cast<int *>(&query.starts[group][fragment][column / 2]) + column % 2;
        start[0] = start[2] = 0x4b000000 - FP4_BIAS * sum;
    }
    return are_bytes && (scaled == 0.0f ? weight == 0.0f : size >= 0x1p-50f && size <= 0x1p60f);
}

/* Lays out this warp's heads, of which the first have been loaded. */
static __device__ __forceinline__ void stage_fp4_heads(const indexer_query &at, uint32_t n_heads, uint32_t n_fragments,
                                                       fp4_heads heads, fp4_shared &shared)
{
    uint32_t n_bad = 0;
#pragma unroll 1
    for (uint32_t first = threadIdx.x / 32; first < n_heads; first += FP4_OWN_HEADS * FP4_WARPS) {
        if (first >= FP4_OWN_HEADS * FP4_WARPS)
            heads = load_fp4_heads(at, n_heads, first);
#pragma unroll
        for (uint32_t i = 0; i < FP4_OWN_HEADS; i++)
            if (first + i * FP4_WARPS < n_heads)
                n_bad += !stage_fp4_head(first + i * FP4_WARPS, heads.features[i], heads.weights[i], n_fragments,
                                         shared.query);
    }
    if (n_bad && threadIdx.x % 32 == 0)
        atomicAdd(&shared.n_bad, n_bad);
}

/* Tables for a key's block: entry m of `plus` is 48 + 2 * value m << shift, of `minus` 48 - that. */
struct fp4_tables {
    uint32_t plus[2], minus[2];
};

static __device__ __forceinline__ fp4_tables tables_for(uint32_t shift)
{
    const uint32_t factor = 1u << shift;
    fp4_tables tables;
    tables.plus[0] = 0x03020100u * factor + 0x30303030u;
    tables.plus[1] = 0x0c080604u * factor + 0x30303030u;
    tables.minus[0] = 0x60606060u - tables.plus[0];
    tables.minus[1] = 0x60606060u - tables.plus[1];
    return tables;
}

/* Bytes of the four values in the low half of a word. A table gives zero for a nibble of the other sign. */
static __device__ __forceinline__ uint32_t widen_4(const fp4_tables &tables, uint32_t nibbles)
{
    return select_bytes(tables.plus[0], tables.plus[1], nibbles) |
           select_bytes(tables.minus[0], tables.minus[1], nibbles ^ 0x8888u);
}

/* The integer products of 16 keys with a group of heads. */
template <int FRAGMENTS, typename Bytes>
static __device__ __forceinline__ void multiply_fp4(const fp4_stage &stage, const int4 starts[8][4], Bytes bytes,
                                                    const fp4_tables &low_tables, const fp4_tables &high_tables,
                                                    int dots[FRAGMENTS][4])
{
    const uint32_t lane = threadIdx.x % 32;
    const uint4 low = stage.values[lane / 4][lane % 4], high = stage.values[lane / 4 + 8][lane % 4];
    const uint32_t low_words[4] = {low.x, low.y, low.z, low.w}, high_words[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t a[4] = {widen_4(low_tables, low_words[j]), widen_4(high_tables, high_words[j]),
                               widen_4(low_tables, low_words[j] >> 16), widen_4(high_tables, high_words[j] >> 16)};
#pragma unroll
        for (int i = 0; i < FRAGMENTS; i++) {
            const int4 start = j ? make_int4(dots[i][0], dots[i][1], dots[i][2], dots[i][3]) : starts[i][lane % 4];
            const uint2 b = bytes(i, j);
            multiply_add_bytes(dots[i], a, b.x, b.y, start);
        }
    }
}

/* relu(dot) * weight, in units of the key's own power of two. */
static __device__ __forceinline__ float weigh_fp4(int dot, float weight)
{
    return __fmul_rn(__saturatef(__fmaf_rn(__int_as_float(dot), 0x1p-22f, -2.0f)), weight);
}

/* Sums by halving over a lane's heads of one key. c: [fragment]. */
template <int FRAGMENTS> static __device__ __forceinline__ float sum_fragments(float c[FRAGMENTS])
{
#pragma unroll
    for (int s = FRAGMENTS / 2; s > 0; s /= 2)
#pragma unroll
        for (int i = 0; i < s; i++)
            c[i] = __fadd_rn(c[i], c[i + s]);
    return c[0];
}

/* Adds a group's products to those of the group before, whose heads are half of all apart. */
template <int FRAGMENTS>
static __device__ __forceinline__ void join_groups(const float c[4][FRAGMENTS], int group, float joined[4][FRAGMENTS])
{
#pragma unroll
    for (int i = 0; i < FRAGMENTS; i++)
#pragma unroll
        for (int column = 0; column < 4; column++)
            joined[column][i] = group ? __fadd_rn(joined[column][i], c[column][i]) : c[column][i];
}

/* Scores of 16 keys by the chain: a lane takes every second head of a key, 8 at a time. Gives the score to lanes 0
 * to 15. */
static __device__ __noinline__ float chain_fp4(const indexer_query &at, uint32_t n_heads, uint32_t first_key)
{
    enum { HEADS = 8 };
    const uint32_t lane = threadIdx.x % 32, key_number = first_key + lane % 16;
    const dsri_cache keys = at.keys;
    dsri_cache_entry key = {nullptr, nullptr};
    if (key_number < at.n_seen)
        key = dsri_cache_at(&keys, key_number);
    const uint32_t n_own = n_heads / 2, n_bits = 31 - __clz((int)n_own);
    float waiting[6] = {}, sum = 0.0f; /* sums of 1, 2, 4, ... heads that wait for their partners */
#pragma unroll 1
    for (uint32_t first = 0; first < n_own; first += HEADS) {
        uint32_t heads[HEADS];
        float dots[HEADS];
#pragma unroll
        for (uint32_t j = 0; j < HEADS; j++) {
            heads[j] = 2 * (__brev(first + j) >> (32 - n_bits)) + lane / 16;
            dots[j] = key.values ? 0.0f : __uint_as_float(0x7fc00000u);
        }
        if (key.values)
#pragma unroll 1
            for (uint32_t f = 0; f < DSRI_INDEX_DIM; f++) {
                const float value = fp4_value(key, f);
#pragma unroll
                for (uint32_t j = 0; j < HEADS; j++)
                    dots[j] = __fmaf_rn(bf16_to_f32(at.q[heads[j] * DSRI_INDEX_DIM + f]), value, dots[j]);
            }
#pragma unroll
        for (uint32_t j = 0; j < HEADS; j++) {
            const float positive = dots[j] > 0.0f ? dots[j] : 0.0f;
            sum = f32_is_finite(dots[j]) ? __fmul_rn(positive, at.weights[heads[j]]) : __uint_as_float(0x7fc00000u);
            bool is_carried = true;
#pragma unroll
            for (uint32_t b = 0; b < 6; b++) {
                if (is_carried && ((first + j) >> b & 1u))
                    sum = __fadd_rn(waiting[b], sum);
                else if (is_carried) {
                    waiting[b] = sum;
                    is_carried = false;
                }
            }
        }
    }
    return __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 16));
}

/* Stores the scores of 16 keys; lane i < 16 has key i's. */
static __device__ __forceinline__ void store_fp4(const indexer_query &at, uint32_t first_key, float score)
{
    const uint32_t lane = threadIdx.x % 32, key = first_key + lane;
    float stored = __uint_as_float(0xff800000u);
    if (lane < FP4_KEYS)
        stored = store_score(at, key, true, score);
    if (at.maxima) {
        const uint32_t greatest = __reduce_max_sync(0xffffffffu, ordered_score(stored));
        if (lane == 0 && first_key < at.n_seen)
            at.maxima[first_key / DSRI_SCORE_BLOCK] = score_of_ordered(greatest);
    }
}

/* A key's least scale in the low byte, and by how much the four lie above it; not in range: a byte greater than 2, or
 * bad. */
struct fp4_scales {
    uint32_t least, above;
    bool are_good;
};

static __device__ __forceinline__ fp4_scales find_scales(uint32_t scales)
{
    fp4_scales found;
    found.least = min(min(scales & 255u, scales >> 8 & 255u), min(scales >> 16 & 255u, scales >> 24));
    found.above = scales - found.least * 0x01010101u;
    found.are_good = ((found.above + 0x01010101u) & 0xfcfcfcfcu) == 0 && found.least - 87 <= 165 - 87;
    return found;
}

/* Scores of a run of tiles. GROUPS of 8 * FRAGMENTS heads. */
template <int FRAGMENTS, int GROUPS>
static __device__ __forceinline__ void score_fp4_run(const indexer_run &run, uint32_t n_heads, fp4_shared &shared)
{
    const indexer_query &at = run.at;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
    fp4_stage *ring = shared.ring[warp];
    const uint32_t first_key = run.first * FP4_TILE + warp * FP4_KEYS;
    const fp4_heads heads = load_fp4_heads(at, n_heads, warp);
    for (uint32_t j = 0; j < FP4_STAGES - 1; j++) {
        if (j < run.n)
            stage_fp4_keys(at, first_key + j * FP4_TILE, ring[j]);
        copy_async_commit();
    }
    stage_fp4_heads(at, n_heads, FRAGMENTS, heads, shared);
    __syncthreads();
    uint2 bytes[FRAGMENTS][4];
    float2 weights[FRAGMENTS];
    if (GROUPS == 1)
#pragma unroll
        for (int i = 0; i < FRAGMENTS; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                bytes[i][j] = shared.query.bytes[0][i][j][lane];
            weights[i] = shared.query.weights[0][i][t];
        }
    const bool is_bytes = shared.n_bad == 0;
    uint32_t slot = 0, free_slot = FP4_STAGES - 1;
    for (uint32_t j = 0; j < run.n; j++) {
        const uint32_t key = first_key + j * FP4_TILE;
        copy_async_wait<FP4_STAGES - 2>();
        __syncwarp();
        if (j + FP4_STAGES - 1 < run.n)
            stage_fp4_keys(at, key + (FP4_STAGES - 1) * FP4_TILE, ring[free_slot]);
        copy_async_commit();
        const fp4_stage &stage = ring[slot];
        free_slot = slot;
        slot = slot + 1 < FP4_STAGES ? slot + 1 : 0;
        const fp4_scales scales = find_scales(stage.scales[lane % 16]);
        const bool is_bad = !scales.are_good && key + lane % 16 < at.n_seen;
        if (!is_bytes || __any_sync(0xffffffffu, is_bad)) {
            store_fp4(at, key, chain_fp4(at, n_heads, key));
            continue;
        }
        const uint32_t low_above = __shfl_sync(0xffffffffu, scales.above, lane / 4) >> 8 * t & 3u;
        const uint32_t high_above = __shfl_sync(0xffffffffu, scales.above, lane / 4 + 8) >> 8 * t & 3u;
        const fp4_tables low_tables = tables_for(low_above), high_tables = tables_for(high_above);
        float joined[4][FRAGMENTS], low[FRAGMENTS], high[FRAGMENTS];
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            int dots[FRAGMENTS][4];
            multiply_fp4<FRAGMENTS>(
                stage, shared.query.starts[group],
                [&](int i, int word) {
                    return GROUPS == 1 ? bytes[i][word] : shared.query.bytes[group][i][word][lane];
                },
                low_tables, high_tables, dots);
            float c[4][FRAGMENTS];
#pragma unroll
            for (int i = 0; i < FRAGMENTS; i++) {
                const float2 weight = GROUPS == 1 ? weights[i] : shared.query.weights[group][i][t];
#pragma unroll
                for (int column = 0; column < 4; column++)
                    c[column][i] = weigh_fp4(dots[i][column], column % 2 ? weight.y : weight.x);
            }
            join_groups<FRAGMENTS>(c, group, joined);
        }
#pragma unroll
        for (int i = 0; i < FRAGMENTS; i++) {
            low[i] = __fadd_rn(joined[0][i], joined[1][i]);
            high[i] = __fadd_rn(joined[2][i], joined[3][i]);
        }
        const float low_sum = sum_fragments<FRAGMENTS>(low), high_sum = sum_fragments<FRAGMENTS>(high);
        /* Lanes t = 0 and 1 keep the key lane / 4, the others the one 8 further. */
        const float sent = t & 2 ? low_sum : high_sum;
        float sum = __fadd_rn(t & 2 ? high_sum : low_sum, __shfl_xor_sync(0xffffffffu, sent, 2));
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
        sum = __shfl_sync(0xffffffffu, sum, lane % 8 * 4 + lane / 8 % 2 * 2);
        store_fp4(at, key, __fmul_rn(sum, __uint_as_float(scales.least << 23)));
    }
    copy_async_wait<0>();
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(FP4_THREADS, 1)
    dsr_indexer_scores_fp4__cuda(const __grid_constant__ dsri_indexer_plan plan, uint8_t *)
{
    extern __shared__ uint4 shared_memory[];
    fp4_shared &shared = *reinterpret_cast<fp4_shared *>(shared_memory);
    line_up<FP4_TILE, PACKED_ROWS>(plan, shared.line);
    for (indexer_piece piece = piece_of_block(shared.line); piece.next < piece.end;) {
        if (threadIdx.x == 0)
            shared.n_bad = 0;
        next_run<FP4_TILE>(plan, shared.line, piece, shared.run);
        if (plan.n_heads == 32)
            score_fp4_run<4, 1>(shared.run, 32, shared);
        else if (plan.n_heads == 64)
            score_fp4_run<8, 1>(shared.run, 64, shared);
        else
            score_fp4_run<8, 2>(shared.run, 128, shared);
    }
}
