/* What the score kernels of packed FP4 keys share.
 *
 * A key's values doubled are integers up to 12; shifted by how far its block's scale lies above the least of its four,
 * 48 at most. A query head whose values are integers up to 127 times a power of two becomes bytes. Then a dot product
 * is an integer below 2^20 times a power of two, every partial sum of the F32 chain is exact, and so is the sum of
 * products of bytes in any order. Powers of two that all heads of a key share wait until its score is summed. Keys and
 * queries that are not such take the chain itself, with the same bits either way. Where keys or queries span more
 * binades, but not more than 9 together, no chain is needed: their blocks are multiplied one by one, and each block's
 * sums shifted, which stay below 2^24.
 *
 * Bytes of keys carry 48 more, so that a nibble becomes one by a table of 8 bytes for each sign; the accumulators start
 * that much lower, and end as the dot product. Its bits are those of a subnormal float, 2^-149 times as large, or of a
 * NaN where it is negative: one product that saturates is relu and weight at once. Weights are taken without their
 * signs, which come back as factors in the sum over the heads. */
#ifndef DSRI_INDEXER_FP4_CUH
#define DSRI_INDEXER_FP4_CUH

#include "cuda/kernels/indexer_runs.cuh"

enum { FP4_TILE = 32, FP4_BIAS = 48 }; /* keys that a warp scores at a time */

struct fp4_stage {
    uint4 values[FP4_TILE][4]; /* a key's four blocks */
    uint32_t scales[FP4_TILE];
};

/* Tables for a key's block: entry m of `plus` is 48 + 2 * value m << shift, of `minus` 48 - that. */
struct alignas(16) fp4_tables {
    uint32_t plus[2], minus[2];
};

/* Starts the copies of 16 keys that may be in a page, or seen in part; what is not seen, or in a bad page, gives zeros,
 * whose scales are taken for bad ones. */
static __device__ __noinline__ void stage_half_fp4(const indexer_query &at, uint32_t first_key, uint4 (*values)[4],
                                                   uint32_t *scales)
{
    enum { HALF = FP4_TILE / 2 };
    const uint32_t lane = threadIdx.x % 32;
    const dsri_cache keys = at.keys;
    const uint32_t n = first_key < at.n_seen ? min(at.n_seen - first_key, (uint32_t)HALF) : 0;
    dsri_cache_entry first = {nullptr, nullptr};
    if (n)
        first = dsri_cache_at(&keys, first_key); /* 16 keys are in one page */
    const uint32_t n_there = first.values ? n : 0;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t key = 8 * i + lane / 4;
        const bool is_there = key < n_there;
        copy_async_16(&values[key][lane % 4], is_there ? first.values + 512 * i + 16 * lane : keys.pages,
                      is_there ? 16 : 0);
    }
    if (lane < n_there)
        copy_async_4(&scales[lane], first.scales + 4 * lane);
    else if (lane < HALF)
        scales[lane] = 0;
}

/* Where this lane's parts of keys that lie in one piece are, and how many of them are seen; none if they are in pages.
 */
struct fp4_source {
    const uint8_t *values, *scales;
    uint64_t policy;
    uint32_t n_keys;
};

static __device__ __forceinline__ fp4_source source_of_fp4(const indexer_query &at)
{
    const uint32_t lane = threadIdx.x % 32;
    fp4_source from;
    from.values = at.keys.pages + 16 * lane;
    from.scales = at.keys.pages + at.keys.scales_offset + 16 * lane;
    from.policy = cache_policy(at.reads_alone);
    from.n_keys = at.keys.page_table == nullptr ? at.n_seen : 0;
    return from;
}

/* Starts the copies of a tile. */
static __device__ __forceinline__ void stage_fp4_keys(const indexer_query &at, const fp4_source &from,
                                                      uint32_t first_key, fp4_stage &stage)
{
    const uint32_t lane = threadIdx.x % 32;
    if (first_key + FP4_TILE <= from.n_keys) {
        const uint8_t *values = from.values + (uint64_t)first_key * DSRI_FP4_KEY_BYTES;
#pragma unroll
        for (uint32_t i = 0; i < FP4_TILE / 8; i++)
            copy_async_16_by(&stage.values[8 * i + lane / 4][lane % 4], values + 512 * i, from.policy);
        if (lane < FP4_TILE / 4)
            copy_async_16_by(&stage.scales[4 * lane], from.scales + first_key * 4ull, from.policy);
        return;
    }
    stage_half_fp4(at, first_key, stage.values, stage.scales);
    stage_half_fp4(at, first_key + FP4_TILE / 2, stage.values + FP4_TILE / 2, stage.scales + FP4_TILE / 2);
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
    const int exponent = (int)(bf16 >> 7 & 255u), low = exponent - 134 + __ffs((int)(bf16 | 128u)) - 1;
    const int of_normal = exponent == 0 || exponent == 255 ? FP4_NOT_BYTES : low;
    return (bf16 & 0x7fffu) == 0 ? FP4_ZERO : of_normal;
}

/* Weights' sizes are multiplied by 2^FP4_WEIGHT_UNIT, and then by integers' bits as floats. */
enum { FP4_WEIGHT_UNIT = 89 };

/* The size of a weight that goes with bytes times 2^exponent; is_good tells whether sums can be made of it. */
static __device__ __forceinline__ float size_of_weight(float weight, int exponent, bool &is_good)
{
    const float size = __fmul_rn(fabsf(weight), power_of_two(exponent));
    is_good = is_good && (size == 0.0f ? weight == 0.0f : size >= 0x1p-66f && size < 0x1p38f);
    return __fmul_rn(size, power_of_two(FP4_WEIGHT_UNIT));
}

/* 1 or -1 */
static __device__ __forceinline__ float sign_of(float weight)
{
    return __float_as_int(weight) < 0 ? -1.0f : 1.0f;
}

static __device__ __forceinline__ fp4_tables tables_for(uint32_t shift)
{
    const uint32_t factor = 1u << shift, bias = FP4_BIAS * 0x01010101u;
    fp4_tables tables;
    tables.plus[0] = 0x03020100u * factor + bias;
    tables.plus[1] = 0x0c080604u * factor + bias;
    tables.minus[0] = 2 * bias - tables.plus[0];
    tables.minus[1] = 2 * bias - tables.plus[1];
    return tables;
}

/* Bytes of the four values in the low half of a word. A table gives zero for a nibble of the other sign. Added, not
 * or-ed: the pipe of logic is busy with the selections, that of multiply-adds is not. */
static __device__ __forceinline__ uint32_t widen_4(const fp4_tables &tables, uint32_t nibbles, uint32_t negated)
{
    return select_bytes(tables.plus[0], tables.plus[1], nibbles) +
           select_bytes(tables.minus[0], tables.minus[1], negated);
}

/* relu(dot) * weight, in units of the key's own power of two. */
static __device__ __forceinline__ float weigh_fp4(int dot, float weight)
{
    return __saturatef(__fmul_rn(__int_as_float(dot), weight));
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

/* The chain's scores of a tile: each lane gets that of its own key. */
static __device__ __noinline__ float chain_tile_fp4(const indexer_query &at, uint32_t n_heads, uint32_t first_key,
                                                    uint32_t own_key)
{
    const float low = chain_fp4(at, n_heads, first_key), high = chain_fp4(at, n_heads, first_key + FP4_TILE / 2);
    const float own_low = __shfl_sync(0xffffffffu, low, own_key % 16);
    const float own_high = __shfl_sync(0xffffffffu, high, own_key % 16);
    return own_key < 16 ? own_low : own_high;
}

/* Stores the scores of a tile: each lane has that of its own key. */
static __device__ __forceinline__ void store_fp4(const indexer_query &at, uint32_t first_key, uint32_t own_key,
                                                 float score)
{
    const float stored = store_score(at, first_key + own_key, true, score);
    if (at.maxima) {
        const uint32_t value = ordered_score(stored);
        const uint32_t low = __reduce_max_sync(0xffffffffu, own_key < 16 ? value : 0);
        const uint32_t high = __reduce_max_sync(0xffffffffu, own_key < 16 ? 0 : value);
        if (own_key % 16 == 0 && first_key + own_key < at.n_seen)
            at.maxima[(first_key + own_key) / DSRI_SCORE_BLOCK] = score_of_ordered(own_key < 16 ? low : high);
    }
}

/* A key's least scale, and by how much the four lie above it, a byte each. */
struct fp4_scales {
    uint32_t least, above;
    bool are_in_range; /* none too great or small, were they all the least */
    bool are_good;     /* in range, and at most 2 binades apart */
};

static __device__ __forceinline__ fp4_scales find_scales(uint32_t scales)
{
    fp4_scales found;
    found.least = min(min(scales & 255u, scales >> 8 & 255u), min(scales >> 16 & 255u, scales >> 24));
    found.above = scales - found.least * 0x01010101u;
    found.are_in_range = found.least - 87 <= 165 - 87;
    found.are_good = ((found.above + 0x01010101u) & 0xfcfcfcfcu) == 0 && found.are_in_range;
    return found;
}

/* What the sum of a key's heads is to be multiplied by. */
static __device__ __forceinline__ float unit_of_scores(uint32_t least_scale)
{
    return __uint_as_float((least_scale + 148 - FP4_WEIGHT_UNIT) << 23);
}

/* Of a query, as the greatest size of its integers: from FP4_WIDE_QUERY on, bytes hold those of each block of 32 by
 * itself; at FP4_OTHER_QUERY some head is not such, or has a weight too great or small. */
enum { FP4_MOST_BYTE = 127, FP4_WIDE_QUERY = 128, FP4_MOST_INTEGER = 8191, FP4_OTHER_QUERY = 8192 };

/* Gives a key's blocks of zeros the least scale of its others, so that they widen no span: they change no sum. A key of
 * zeros alone gets 255s, which the chain takes: such are those in bad pages, too. */
static __device__ __forceinline__ void leave_out_zeros(fp4_stage &stage, uint32_t key)
{
    const uint32_t scales = stage.scales[key];
    uint32_t zeros = 0, least = 255;
#pragma unroll
    for (int b = 0; b < 4; b++) {
        const uint4 x = stage.values[key][b];
        const uint32_t scale = scales >> 8 * b & 255u;
        const bool is_zeros = ((x.x | x.y | x.z | x.w) & 0x77777777u) == 0 && scale != 255; /* 255: NaNs */
        zeros |= is_zeros ? 255u << 8 * b : 0;
        least = is_zeros ? least : min(least, scale);
    }
    stage.scales[key] = (scales & ~zeros) | (least * 0x01010101u & zeros);
    __syncwarp();
}

/* Whether the keys of a tile, of which a lane looks at its own, can be scored by join_tile_fp4: they span at most 6
 * binades with a query of integers up to 127, 7 to 9 with one up to 63, 31 and 15, 5 to 0 with one up to 255 to 8,191:
 * 128 * 8191 * 12 < 2^24. */
static __device__ __forceinline__ bool can_join_tile(uint32_t greatest, uint32_t scales_of_key, bool is_seen)
{
    const fp4_scales scales = find_scales(scales_of_key);
    const uint32_t above = scales.above, span = 9 - (32 - __clz((int)(greatest >> 4)));
    const bool is_near = max(max(above & 255u, above >> 8 & 255u), max(above >> 16 & 255u, above >> 24)) <= span;
    return __all_sync(0xffffffffu, greatest < FP4_OTHER_QUERY && ((scales.are_in_range && is_near) || !is_seen));
}

/* Signed bytes of the four values in the low half of a word, doubled. The tables are those of shift 0. */
static __device__ __forceinline__ uint32_t signed_4(const fp4_tables &tables, uint32_t nibbles)
{
    /* A byte 48 above its value becomes one 128 above. */
    return (widen_4(tables, nibbles, nibbles ^ 0x88888888u) + 0x50505050u) ^ 0x80808080u;
}

/* relu(dot) * weight for dots up to 2^24, which may be more than 1. */
static __device__ __forceinline__ float weigh_great(int dot, float weight)
{
    return __fmul_rn(__int_as_float(max(dot, 0)), weight);
}

/* Scores of a tile of keys and a query that can be joined, by one warp: a product of each block of features by itself.
 * heads.bytes(i, x) gives a lane fragment i of each block, whose rows are heads 8 i + lane / 4 and those half of all
 * further, and whose columns of lane t of four are features 8 t to 8 t + 7; heads.weights(i) their weights' sizes and
 * signs; heads.shifts(i), a byte for each block, what their blocks are to be shifted by. Each lane gets the score of
 * its own key. */
template <int FRAGMENTS, typename Heads>
static __device__ __noinline__ float join_tile_fp4(const Heads &heads, const fp4_stage &stage, const fp4_tables &tables,
                                                   uint32_t own_key)
{
    constexpr uint32_t N_BITS = FRAGMENTS == 2 ? 1 : FRAGMENTS == 4 ? 2 : 3;
    const uint32_t lane = threadIdx.x % 32, t = lane % 4;
    float own = 0.0f;
#pragma unroll 1
    for (uint32_t first = 0; first < FP4_TILE; first += 8) {
        uint32_t bytes[4][2];
#pragma unroll
        for (int b = 0; b < 4; b++) {
            const uint32_t word = reinterpret_cast<const uint32_t *>(&stage.values[first + lane / 4][b])[t];
            bytes[b][0] = signed_4(tables, word);
            bytes[b][1] = signed_4(tables, word >> 16);
        }
        const uint32_t *scales = &stage.scales[first + 2 * t];
        const uint32_t above[2] = {find_scales(scales[0]).above, find_scales(scales[1]).above};
        float waiting[2][N_BITS] = {}, sums[2] = {}; /* sums of 1, 2 and 4 fragments that wait for their partners */
#pragma unroll 1
        for (uint32_t i = 0; i < FRAGMENTS; i++) {
            const uint32_t fragment = __brev(i) >> (32 - N_BITS);
            const float2 weights = heads.weights(fragment);
            const uint2 shifts = heads.shifts(fragment);
            uint4 of_heads[4];
            heads.bytes(fragment, of_heads);
            int dots[4] = {};
#pragma unroll
            for (int b = 0; b < 4; b++) {
                int of_block[4];
                multiply_signed_bytes(of_block, of_heads[b], bytes[b][0], bytes[b][1]);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    dots[j] += of_block[j] * (1 << (above[j % 2] >> 8 * b & 15u)) *
                               (1 << ((j < 2 ? shifts.x : shifts.y) >> 8 * b & 15u));
            }
#pragma unroll
            for (int key = 0; key < 2; key++) {
                sums[key] = __fadd_rn(weigh_great(dots[key], weights.x), weigh_great(dots[2 + key], weights.y));
                bool is_carried = true;
#pragma unroll
                for (uint32_t bit = 0; bit < N_BITS; bit++) {
                    const bool adds = is_carried && (i >> bit & 1u);
                    waiting[key][bit] = is_carried && !adds ? sums[key] : waiting[key][bit];
                    sums[key] = adds ? __fadd_rn(waiting[key][bit], sums[key]) : sums[key];
                    is_carried = adds;
                }
            }
        }
#pragma unroll
        for (int key = 0; key < 2; key++)
#pragma unroll
            for (int s = 16; s >= 4; s /= 2)
                sums[key] = __fadd_rn(sums[key], __shfl_xor_sync(0xffffffffu, sums[key], s));
        const float even = __shfl_sync(0xffffffffu, sums[0], own_key % 8 / 2);
        const float odd = __shfl_sync(0xffffffffu, sums[1], own_key % 8 / 2);
        if (own_key / 8 == first / 8)
            own = own_key % 2 ? odd : even;
    }
    return __fmul_rn(own, unit_of_scores(find_scales(stage.scales[own_key]).least));
}

#endif
