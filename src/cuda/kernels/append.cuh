/* Packing entries of caches, and append: new entries, rotated and quantised. A warp is an entry. */
#ifndef DSRI_APPEND_CUH
#define DSRI_APPEND_CUH

#include "cuda/kernels/cache.cuh"

enum { FORMAT_BF16 = 0, FORMAT_FP4 = 1, FORMAT_FP8 = 2 };

struct entry_place {
    uint8_t *values; /* null: nowhere */
    uint8_t *scales;
};

static __device__ __forceinline__ entry_place place_of_entry(const dsri_cache &cache, uint64_t t)
{
    const dsri_cache_entry entry = dsri_cache_at(&cache, t);
    entry_place place;
    place.values = const_cast<uint8_t *>(entry.values);
    place.scales = const_cast<uint8_t *>(entry.scales);
    return place;
}

/* ---- packing ----------------------------------------------------------------------------------------------- */

/* pairs[i] of lane l: features 64 i + 2 l and the next. */
static __device__ void pack_row(const uint32_t pairs[8], uint32_t min_scale, entry_place place)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t b = 0; b < ROW_CODES / ROW_BLOCK; b++) {
        const float x = bf16_to_f32((uint16_t)pairs[b]), y = bf16_to_f32((uint16_t)(pairs[b] >> 16));
        const float amax = warp_amax(x, y);
        const bool is_good = f32_is_finite(amax);
        const uint32_t scale = is_good ? scale_byte(amax, 8, 0x600000u, min_scale) : min_scale;
        const uint32_t codes = is_good ? e4m3_code(x, scale) | e4m3_code(y, scale) << 8 : 0;
        reinterpret_cast<uint16_t *>(place.values)[b * ROW_BLOCK / 2 + lane] = (uint16_t)codes;
        if (lane == 0)
            place.scales[b] = (uint8_t)scale;
    }
    reinterpret_cast<uint32_t *>(place.values + ROW_CODES)[lane] = pairs[7];
    if (lane == 0)
        place.scales[7] = 0;
}

/* x[i] of lane l is element 32 i + l. */
static __device__ void pack_key(const float x[4], uint32_t min_scale, entry_place place)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t b = 0; b < 4; b++) {
        const float amax = warp_amax(x[b], x[b]);
        const bool is_good = f32_is_finite(amax);
        const uint32_t scale = is_good ? scale_byte(amax, 2, 0x400000u, min_scale) : min_scale;
        const uint32_t code = is_good ? e2m1_code(x[b], scale) : 0;
        const uint32_t next = __shfl_down_sync(0xffffffffu, code, 1);
        if (lane % 2 == 0)
            place.values[16 * b + lane / 2] = (uint8_t)(code | next << 4);
        if (lane == 0)
            place.scales[b] = (uint8_t)scale;
    }
}

/* ---- append ------------------------------------------------------------------------------------------------ */

/* Of the lane's pair. */
static __device__ __forceinline__ rotation rotation_at(const dsri_append_plan &plan, uint32_t position)
{
    const rotation none = {0.0f, 1.0f, true};
    return plan.rotates ? rotation_by(position, plan.frequencies[threadIdx.x % 32]) : none;
}

/* Values that are not finite become zeros. */
static __device__ __forceinline__ uint32_t finite_pair(uint32_t pair)
{
    const uint32_t low = (pair & 0x7f80u) != 0x7f80u ? 0x0000ffffu : 0;
    const uint32_t high = (pair & 0x7f800000u) != 0x7f800000u ? 0xffff0000u : 0;
    return pair & (low | high);
}

static __device__ __forceinline__ uint32_t load_pair(const uint16_t *at)
{
    return at[0] | (uint32_t)at[1] << 16;
}

/* pairs[i] of lane l: features 64 i + 2 l and the next; the last 64 features turned. */
template <int N>
static __device__ __forceinline__ void load_token(const dsri_append_plan &plan, const uint16_t *token, const rotation &turn,
                                                  uint32_t pairs[N])
{
    const uint32_t lane = threadIdx.x % 32;
    for (int i = 0; i < N; i++)
        pairs[i] = load_pair(token + 64 * i + 2 * lane);
    if (!plan.rotates)
        return;
    for (int i = 0; i < N - 1; i++)
        pairs[i] = finite_pair(pairs[i]);
    pairs[N - 1] = rotate_pair(pairs[N - 1], turn);
}

template <int N> static __device__ __forceinline__ void store_pairs(const uint32_t pairs[N], uint8_t *values)
{
    uint16_t *to = reinterpret_cast<uint16_t *>(values) + threadIdx.x % 32 * 2;
    for (int i = 0; i < N; i++) {
        to[64 * i] = (uint16_t)pairs[i];
        to[64 * i + 1] = (uint16_t)(pairs[i] >> 16);
    }
}

/* Pairs to elements 32 i + lane, those that are not finite as zeros. */
static __device__ __forceinline__ void spread_key(const uint32_t pairs[2], float x[4])
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t pair = __shfl_sync(0xffffffffu, finite_pair(pairs[i / 2]), (int)(i % 2 * 16 + lane / 2));
        x[i] = bf16_to_f32((uint16_t)(lane % 2 ? pair >> 16 : pair));
    }
}

static __device__ void append_row(const dsri_append_plan &plan, uint32_t format, const uint16_t *token,
                                  const rotation &turn, entry_place place)
{
    uint32_t pairs[8];
    load_token<8>(plan, token, turn, pairs);
    if (format == FORMAT_FP8)
        pack_row(pairs, plan.min_scale, place);
    else
        store_pairs<8>(pairs, place.values);
}

static __device__ void append_key(const dsri_append_plan &plan, uint32_t format, const uint16_t *token,
                                  const rotation &turn, entry_place place)
{
    uint32_t pairs[2];
    float x[4];
    load_token<2>(plan, token, turn, pairs);
    if (format != FORMAT_FP4) {
        store_pairs<2>(pairs, place.values);
        return;
    }
    spread_key(pairs, x);
    hadamard_128(x);
    pack_key(x, plan.min_scale, place);
}

/* The part of a block at `at` in the command's grid. made: null, or the only token of the row, which `turn` rotates. */
static __device__ __forceinline__ void append_block(const dsri_append_plan &plan, const grid_place &at,
                                                    const uint16_t *made, rotation turn)
{
    const dsri_append_row_plan &row = plan.rows[at.y];
    const uint32_t n_warps = blockDim.x / 32;
    for (uint64_t i = (uint64_t)at.x * n_warps + threadIdx.x / 32; i < row.n_tokens; i += (uint64_t)at.nx * n_warps) {
        if (!made) {
            turn = rotation_at(plan, row.start_pos + (uint32_t)i * row.position_step);
            wait_for_prior_launch();
        }
        const uint64_t entry = row.first_entry + i;
        const entry_place place = place_of_entry(row.cache, row.ring_entries ? entry % row.ring_entries : entry);
        const uint16_t *token = made ? made : row.source + i * plan.dim;
        if (place.values == nullptr)
            continue;
        if (plan.dim == DSRI_INDEX_DIM)
            append_key(plan, row.cache.format, token, turn, place);
        else
            append_row(plan, row.cache.format, token, turn, place);
    }
}

#endif
