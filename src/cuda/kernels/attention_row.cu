/* Row-exact attention on tensor cores. The slots of a query are cut into 8 ranks (a multiple of 16 slots each, a
 * function of the width alone). A rank's softmax and weighted values are computed on their own, tile by tile, and ranks
 * are joined in order. With few rows a block takes one rank and a cluster joins them; with many, a block takes all
 * ranks of its heads in turn. Both do the same arithmetic for each output, so the bits do not tell which one ran. Both
 * forms of attention come out alike.
 *
 * Within a block 8 warps (a group) take 16 heads. Logits: a warp takes a quarter of the features and half of a tile's
 * slots. Values: a warp takes 64 features. Two warps of a group add the quarters up and make weights; the other six
 * bring the rows of the next tile meanwhile.
 *
 * A KV row or a query with a value that is not finite needs no look of its own: it gives logits that are not finite. */
#include "cuda/kernels/attention_common.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 /* clusters */

enum {
    ATT_RANKS = 8,
    GROUP_HEADS = 16,
    GROUP_WARPS = 8,
    GROUP_THREADS = 32 * GROUP_WARPS,
    TILE_SLOTS = 80,
    ROW_BYTES = DSRI_HEAD_DIM * 2,
    ROW_PIECES = ROW_BYTES / 16,
    P_STRIDE = TILE_SLOTS * 2 + 16
};

/* 16 heads. */
struct att_group {
    uint8_t q[GROUP_HEADS * ROW_BYTES]; /* pieces as piece_of_row() says */
    union {
        float4 partial[3][2][5][32]; /* logits of the other feature quarters: [part - 1][slot half][8 slots][lane] */
        uint8_t p[GROUP_HEADS * P_STRIDE]; /* BF16 weights [heads][slots] */
    };
    float tile_max[2][GROUP_HEADS]; /* of the halves of a tile */
    float scale[GROUP_HEADS];       /* exp(old max - new max) */
    float max[GROUP_HEADS];         /* of the rank so far */
    float sum[2][GROUP_HEADS];
    uint32_t is_bad_head[GROUP_HEADS];
};

template <int GROUPS, int TILES> struct att_shared {
    uint8_t kv[TILES][TILE_SLOTS * ROW_BYTES]; /* pieces as piece_of_row() says */
    att_group groups[GROUPS];
    uint64_t q_is_here, is_full[TILES], is_empty[TILES];
    uint8_t is_selected[TILES][TILE_SLOTS];
    uint32_t is_bad;
};

/* Where in a row of shared memory a piece of 16 bytes lies: the same piece of 8 rows hits all banks once. */
static __device__ __forceinline__ uint32_t piece_of_row(uint32_t piece, uint32_t row)
{
    return (piece ^ row % 8) * 16;
}

struct slot_range {
    uint32_t first, end;
};

static __device__ __forceinline__ slot_range slots_of_rank(uint32_t width, uint32_t rank)
{
    const uint32_t slots = ((width + ATT_RANKS - 1) / ATT_RANKS + 15) / 16 * 16, first = rank * slots;
    slot_range range = {first < width ? first : width, first + slots < width ? first + slots : width};
    return range;
}

static __device__ __forceinline__ float exp_approximate(float x)
{
    return exp2_approximate(x * 1.4426950408889634f);
}

/* ---- who does what ---- */

enum { GROUP_LOADERS = 6 };

struct att_warp {
    uint32_t group, feature_quarter, slot_half; /* of the logits */
    uint32_t feature_eighth;                    /* of the values */
    uint32_t
        part; /* of its slots: 0 makes weights, 1 has the other quarter of its half of the features, 2 and 3 the rest */
    uint32_t loader; /* of the block's, for parts 1 to 3 */
};

/* The warps that make weights share no partition of the multiprocessor. */
static __device__ __forceinline__ att_warp find_warp()
{
    const uint32_t w = threadIdx.x / 32 % GROUP_WARPS, group = threadIdx.x / GROUP_THREADS;
    att_warp warp = {group, w % 4, w / 4, w, 0, 0};
    warp.part = warp.feature_quarter ^ (2 * group + warp.slot_half) % 4;
    warp.loader = group * GROUP_LOADERS + warp.slot_half * 3 + warp.part - 1;
    return warp;
}

/* ---- bringing rows ---- */

/* One row of 512 values by a whole warp, or zeros. */
static __device__ __forceinline__ void bring_row(uint8_t *to, const void *from, bool is_here, uint32_t row)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        copy_async_16(to + piece_of_row(lane + 32 * i, row), static_cast<const uint8_t *>(from) + (lane + 32 * i) * 16,
                      is_here ? 16 : 0);
}

/* The same from an address that is not a multiple of 16. */
static __device__ __forceinline__ void bring_odd_row(uint8_t *to, const uint16_t *from, uint32_t row)
{
#pragma unroll 1
    for (uint32_t piece = threadIdx.x % 32; piece < ROW_PIECES; piece += 32)
        *reinterpret_cast<uint4 *>(to + piece_of_row(piece, row)) = load_8<false>(from, piece * 8);
}

/* The value of lane `lane`. */
static __device__ __forceinline__ const uint8_t *of_lane(const uint8_t *p, uint32_t lane)
{
    return reinterpret_cast<const uint8_t *>(
        (uintptr_t)__shfl_sync(0xffffffffu, (unsigned long long)(uintptr_t)p, (int)lane));
}

/* A loader's share of a tile: slots loader + i * N_LOADERS below TILE_SLOTS; lane i knows the index of the i-th. */
template <int GROUPS> struct tile_share {
    enum { N_LOADERS = GROUPS * GROUP_LOADERS, N_SLOTS = (TILE_SLOTS + N_LOADERS - 1) / N_LOADERS };

    static __device__ __forceinline__ uint32_t slot(const att_warp &warp, uint32_t i)
    {
        return warp.loader + i * N_LOADERS;
    }
    static __device__ __forceinline__ int32_t load_index(const attention_query &at, const att_warp &warp,
                                                         slot_range range)
    {
        const uint32_t i = slot(warp, threadIdx.x % 32);
        return i < TILE_SLOTS && range.first + i < range.end ? at.indices[range.first + i] : -1;
    }
};

/* A loader's share of rows that are not plain copies, a few rows at once; lane i knows where the i-th lies. */
template <int GROUPS, row_form FORM>
static __device__ __forceinline__ void decode_rows(const att_warp &warp, const dsri_cache_entry &own, uint8_t *kv)
{
    typedef tile_share<GROUPS> share;
    enum { AT_ONCE = 3 };
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll 1
    for (uint32_t first = 0; first < share::N_SLOTS; first += AT_ONCE) {
        uint4 loaded[AT_ONCE][2];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            dsri_cache_entry row;
            row.values = of_lane(own.values, first + i);
            row.scales = of_lane(own.scales, first + i);
            loaded[i][0] = load_piece<FORM>(row, lane * 8);
            loaded[i][1] = load_piece<FORM>(row, (lane + 32) * 8);
        }
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            const uint32_t slot = share::slot(warp, first + i);
            if (slot < TILE_SLOTS) {
                decode_to<FORM>(kv + slot * ROW_BYTES + piece_of_row(lane, slot), loaded[i][0], lane);
                decode_to<FORM>(kv + slot * ROW_BYTES + piece_of_row(lane + 32, slot), loaded[i][1], lane + 32);
            }
        }
    }
}

/* Arrives at a barrier when this thread's copies are there, and once for the warp with what it stored without a copy.
 */
static __device__ __forceinline__ void arrive_with_copies(uint64_t *barrier)
{
    copy_async_arrive(barrier);
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        shared_barrier_arrive(barrier);
}

/* Starts the copies of a loader's share of a tile; rows of slots that select nothing become zeros. */
template <int GROUPS, int TILES>
static __device__ __forceinline__ void bring_tile(const attention_query &at, const att_warp &warp, int32_t index,
                                                  uint32_t tile, att_shared<GROUPS, TILES> &shared)
{
    typedef tile_share<GROUPS> share;
    const uint32_t own_slot = share::slot(warp, threadIdx.x % 32);
    const dsri_cache_entry own = find_row(at, index);
    if (!own.values && index != -1)
        shared.is_bad = 1;
    if (own_slot < TILE_SLOTS)
        shared.is_selected[tile][own_slot] = own.values != nullptr;
    if (at.form == ROW_WORDS) {
#pragma unroll
        for (uint32_t i = 0; i < share::N_SLOTS; i++) {
            const uint8_t *row = of_lane(own.values, i);
            const uint32_t slot = share::slot(warp, i);
            if (slot < TILE_SLOTS)
                bring_row(shared.kv[tile] + slot * ROW_BYTES, row ? row : at.cache->pages, row != nullptr, slot);
        }
    } else if (at.form == ROW_FP8) {
        decode_rows<GROUPS, ROW_FP8>(warp, own, shared.kv[tile]);
    } else {
        decode_rows<GROUPS, ROW_HALVES>(warp, own, shared.kv[tile]);
    }
    arrive_with_copies(&shared.is_full[tile]);
}

/* Half of a group's queries. */
template <int GROUPS, int TILES>
static __device__ __forceinline__ void bring_queries(const attention_query &at, uint32_t first_head,
                                                     const att_warp &warp, att_shared<GROUPS, TILES> &shared)
{
    const uint16_t *q = at.q + (uint64_t)first_head * DSRI_HEAD_DIM;
    const bool is_aligned = is_word_aligned(q, 0);
#pragma unroll
    for (uint32_t i = 0; i < GROUP_HEADS / 2; i++) {
        const uint32_t head = warp.slot_half * (GROUP_HEADS / 2) + i;
        uint8_t *to = shared.groups[warp.group].q + head * ROW_BYTES;
        if (is_aligned)
            bring_row(to, q + head * DSRI_HEAD_DIM, true, head);
        else
            bring_odd_row(to, q + head * DSRI_HEAD_DIM, head);
    }
    arrive_with_copies(&shared.q_is_here);
}

/* A group's queries and the block's first tile. */
template <int GROUPS, int TILES>
static __device__ __forceinline__ void bring_first(const attention_query &at, uint32_t first_head, const att_warp &warp,
                                                   slot_range range, int32_t index, att_shared<GROUPS, TILES> &shared)
{
    if (warp.part == 0)
        bring_queries(at, first_head, warp, shared);
    else if (range.first < range.end)
        bring_tile(at, warp, index, 0, shared);
}

/* ---- the work of a group on a tile ---- */

static __device__ __forceinline__ void group_barrier(const att_warp &warp)
{
    named_barrier(1 + warp.group, GROUP_THREADS);
}

/* A feature quarter of the logits: logits[n][i] is head lane / 4 + i / 2 * 8, slot 8 n + lane % 4 * 2 + i % 2 of the
 * half. */
static __device__ __forceinline__ void quarter_logits(const uint8_t *q, const uint8_t *kv, const att_warp &warp,
                                                      float logits[5][4])
{
    const uint32_t lane = threadIdx.x % 32, first_piece = warp.feature_quarter * (ROW_PIECES / 4);
    const uint32_t heads = shared_address(q) + (lane / 8 % 2 * 8 + lane % 8) * ROW_BYTES;
    const uint32_t rows = shared_address(kv) + (warp.slot_half * (TILE_SLOTS / 2) + lane % 8) * ROW_BYTES;
#pragma unroll
    for (int n = 0; n < 5; n++)
        logits[n][0] = logits[n][1] = logits[n][2] = logits[n][3] = 0.0f;
#pragma unroll
    for (int b = 0; b < 4; b++) { /* 32 features */
        const uint32_t piece = first_piece + 4 * b;
        uint32_t a[2][4];
        load_matrices(heads + piece_of_row(piece + lane / 16, lane), a[0]);
        load_matrices(heads + piece_of_row(piece + 2 + lane / 16, lane), a[1]);
#pragma unroll
        for (int n = 0; n < 5; n++) {
            uint32_t k[4];
            load_matrices(rows + 8 * n * ROW_BYTES + piece_of_row(piece + lane / 8, lane), k);
            multiply_add(logits[n], a[0], k[0], k[1]);
            multiply_add(logits[n], a[1], k[2], k[3]);
        }
    }
}

/* Adds the other quarters to a warp's own, scales and masks; max over the half's slots. Quarters 0 and 1, and 2 and 3,
 * are added first, whichever of them is the warp's. */
static __device__ __forceinline__ void whole_logits(float scale, const uint8_t *is_selected, const att_warp &warp,
                                                    att_group &group, float logits[5][4])
{
    const uint32_t lane = threadIdx.x % 32, t = lane % 4, head = lane / 4;
    const float nothing = __uint_as_float(0xff800000u);
    bool is_bad[2] = {false, false};
    float max[2] = {nothing, nothing};
#pragma unroll
    for (int n = 0; n < 5; n++) {
        const float4 *other = &group.partial[0][warp.slot_half][n][lane];
        const float4 x = other[0], y = other[2 * 5 * 32], z = other[2 * 2 * 5 * 32];
        const float others[3][4] = {{x.x, x.y, x.z, x.w}, {y.x, y.y, y.z, y.w}, {z.x, z.y, z.z, z.w}};
        const uint8_t *selected = is_selected + warp.slot_half * (TILE_SLOTS / 2) + 8 * n + 2 * t;
        const bool is_slot[2] = {selected[0] != 0, selected[1] != 0};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float l = ((logits[n][i] + others[0][i]) + (others[1][i] + others[2][i])) * scale;
            is_bad[i / 2] = is_bad[i / 2] || (is_slot[i % 2] && !(fabsf(l) <= 3.402823466e38f));
            logits[n][i] = is_slot[i % 2] ? l : nothing;
            max[i / 2] = fmaxf(max[i / 2], logits[n][i]);
        }
    }
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2) {
        max[0] = fmaxf(max[0], __shfl_xor_sync(0xffffffffu, max[0], lanes));
        max[1] = fmaxf(max[1], __shfl_xor_sync(0xffffffffu, max[1], lanes));
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (t == 0)
            group.tile_max[warp.slot_half][head + 8 * r] = max[r];
        if (is_bad[r])
            group.is_bad_head[head + 8 * r] = 1;
    }
}

/* Weights of the half's logits as BF16 to group.p, and the rank's statistics so far. */
static __device__ __forceinline__ void weigh(const att_warp &warp, const float logits[5][4], float max[2], float sum[2],
                                             att_group &group)
{
    const uint32_t lane = threadIdx.x % 32, t = lane % 4, head = lane / 4;
    const float nothing = __uint_as_float(0xff800000u);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t h = head + 8 * r;
        const float old = max[r];
        max[r] = fmaxf(fmaxf(group.tile_max[0][h], group.tile_max[1][h]), old);
        const float factor = old == nothing ? 0.0f : exp_approximate(old - max[r]);
        const float offset = max[r] == nothing ? 0.0f : max[r];
        float tile_sum = 0.0f;
#pragma unroll
        for (int n = 0; n < 5; n++) {
            const uint32_t pair = round_to_bf16_pair(exp_approximate(logits[n][2 * r] - offset),
                                                     exp_approximate(logits[n][2 * r + 1] - offset));
            tile_sum += __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u);
            *reinterpret_cast<uint32_t *>(group.p + h * P_STRIDE +
                                          (warp.slot_half * (TILE_SLOTS / 2) + 8 * n + 2 * t) * 2) = pair;
        }
        tile_sum += __shfl_xor_sync(0xffffffffu, tile_sum, 1);
        tile_sum += __shfl_xor_sync(0xffffffffu, tile_sum, 2);
        sum[r] = sum[r] * factor + tile_sum;
        if (t == 0) {
            group.sum[warp.slot_half][h] = sum[r];
            if (warp.slot_half == 0) {
                group.scale[h] = factor;
                group.max[h] = max[r];
            }
        }
    }
}

/* values[n][i]: head lane / 4 + i / 2 * 8, feature 8 n + lane % 4 * 2 + i % 2 of this warp's 64. */
static __device__ __forceinline__ void add_values(const att_group &group, const uint8_t *kv, const att_warp &warp,
                                                  float values[8][4])
{
    const uint32_t lane = threadIdx.x % 32, row = lane / 8 % 2 * 8 + lane % 8;
    const float low = group.scale[lane / 4], high = group.scale[lane / 4 + 8];
    const uint32_t weights = shared_address(group.p) + row * P_STRIDE + lane / 16 * 16;
    const uint32_t rows = shared_address(kv) + row * ROW_BYTES;
    uint32_t pieces[4];
#pragma unroll
    for (int n = 0; n < 4; n++)
        pieces[n] = rows + piece_of_row(warp.feature_eighth * 8 + 2 * n + lane / 16, lane);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        values[n][0] *= low;
        values[n][1] *= low;
        values[n][2] *= high;
        values[n][3] *= high;
    }
#pragma unroll
    for (int step = 0; step < TILE_SLOTS / 16; step++) {
        uint32_t w[4];
        load_matrices(weights + step * 32, w);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t v[4];
            load_matrices_transposed(pieces[n] + step * 16 * ROW_BYTES, v);
            multiply_add(values[2 * n], w, v[0], v[1]);
            multiply_add(values[2 * n + 1], w, v[2], v[3]);
        }
    }
}

/* ---- ranks ---- */

/* The tile after `range` of rank `rank`: empty at the end. */
static __device__ __forceinline__ slot_range next_tile(const attention_query &at, slot_range range, uint32_t rank,
                                                       uint32_t end_rank)
{
    range.first += TILE_SLOTS;
    if (range.first >= range.end) {
        const slot_range none = {0, 0};
        range = rank + 1 < end_rank ? slots_of_rank(at.width, rank + 1) : none;
    }
    return range;
}

/* One rank: values and group.max, group.sum. n_tiles counts the block's tiles so far; the first of this rank is on its
 * way. */
template <int GROUPS, int TILES>
static __device__ __forceinline__ void attend_rank(const attention_query &at, float scale, uint32_t rank,
                                                   uint32_t end_rank, const att_warp &warp, uint32_t &n_tiles,
                                                   att_shared<GROUPS, TILES> &shared, float values[8][4])
{
    att_group &group = shared.groups[warp.group];
    const float nothing = __uint_as_float(0xff800000u);
    float max[2] = {nothing, nothing}, sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < 8; n++)
        values[n][0] = values[n][1] = values[n][2] = values[n][3] = 0.0f;
    slot_range range = slots_of_rank(at.width, rank);
#pragma unroll 1
    for (; range.first < range.end; range.first += TILE_SLOTS, n_tiles++) {
        const uint32_t tile = n_tiles % TILES;
        const uint8_t *kv = shared.kv[tile];
        const slot_range next = next_tile(at, range, rank, end_rank);
        const bool has_next = next.first < next.end;
        const int32_t next_index = has_next && warp.part != 0 ? tile_share<GROUPS>::load_index(at, warp, next) : -1;
        float logits[5][4];
        shared_barrier_wait(&shared.is_full[tile], n_tiles / TILES & 1);
        quarter_logits(group.q, kv, warp, logits);
        group_barrier(warp); /* the last tile's weights have been read */
        if (warp.part != 0)
#pragma unroll
            for (int n = 0; n < 5; n++)
                group.partial[warp.part - 1][warp.slot_half][n][threadIdx.x % 32] =
                    make_float4(logits[n][0], logits[n][1], logits[n][2], logits[n][3]);
        group_barrier(warp);
        if (warp.part == 0) {
            whole_logits(scale, shared.is_selected[tile], warp, group, logits);
            named_barrier(1 + GROUPS + warp.group, 64); /* the warps of both halves */
            weigh(warp, logits, max, sum, group);
        } else if (TILES > 1 && has_next) {
            if (n_tiles > 0)
                shared_barrier_wait(&shared.is_empty[tile ^ 1], (n_tiles - 1) / 2 & 1);
            bring_tile(at, warp, next_index, tile ^ 1, shared);
        }
        group_barrier(warp);
        add_values(group, kv, warp, values);
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            shared_barrier_arrive(&shared.is_empty[tile]);
        if (TILES == 1 && has_next && warp.part != 0) {
            shared_barrier_wait(&shared.is_empty[0], n_tiles & 1);
            bring_tile(at, warp, next_index, 0, shared);
        }
    }
}

/* Max and sum of the ranks so far of a lane's heads lane / 4 and lane / 4 + 8; starts as the sink alone. */
struct att_joined {
    float max[2], sum[2];
    bool is_bad[2];
};

static __device__ __forceinline__ att_joined join_sinks(const float sinks[2])
{
    att_joined joined;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        joined.max[r] = sinks[r];
        joined.sum[r] = 1.0f;
        joined.is_bad[r] = !f32_is_finite(sinks[r]);
    }
    return joined;
}

/* Max (a NaN where the head must be zero, -infinity where nothing is selected) and sum of a rank. */
static __device__ __forceinline__ float2 statistics_of(const att_group &group, uint32_t is_bad, uint32_t head)
{
    const float max = is_bad | group.is_bad_head[head] ? __uint_as_float(0x7fc00000u) : group.max[head];
    return make_float2(max, group.sum[0][head] + group.sum[1][head]);
}

/* Takes a rank's max and sum in; factors of the numerators so far and of the rank's. */
static __device__ __forceinline__ float2 join_statistics(att_joined &joined, int r, float2 rank)
{
    joined.is_bad[r] = joined.is_bad[r] || rank.x != rank.x;
    const float max = fmaxf(joined.max[r], rank.x);
    const float2 factors = make_float2(exp_approximate(joined.max[r] - max), exp_approximate(rank.x - max));
    joined.sum[r] = fmaf(factors.y, rank.y, joined.sum[r] * factors.x);
    joined.max[r] = max;
    return factors;
}

static __device__ __forceinline__ float join_value(float so_far, float2 factors, float value)
{
    return fmaf(factors.y, value, so_far * factors.x);
}

/* Two heads x two features of a lane. */
static __device__ __forceinline__ void write_outputs(uint16_t *output, const att_joined &joined, const float values[4])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float factor = __fdividef(1.0f, joined.sum[r]);
        uint16_t *to = output + r * 8 * DSRI_HEAD_DIM;
        const uint16_t low = joined.is_bad[r] ? 0 : f32_to_finite_bf16(values[2 * r] * factor);
        const uint16_t high = joined.is_bad[r] ? 0 : f32_to_finite_bf16(values[2 * r + 1] * factor);
        if ((uintptr_t)to % 4 == 0) {
            *reinterpret_cast<uint32_t *>(to) = low | (uint32_t)high << 16;
        } else {
            to[0] = low;
            to[1] = high;
        }
    }
}

template <int GROUPS, int TILES> static __device__ __forceinline__ void prepare(att_shared<GROUPS, TILES> &shared)
{
    const uint32_t i = threadIdx.x % GROUP_THREADS;
    if (i < GROUP_HEADS) {
        att_group &group = shared.groups[threadIdx.x / GROUP_THREADS];
        group.is_bad_head[i] = 0;
        group.max[i] = __uint_as_float(0xff800000u); /* what a rank without slots tells */
        group.sum[0][i] = group.sum[1][i] = 0.0f;
    }
    if (threadIdx.x == 0) {
        shared.is_bad = 0;
        shared_barrier_init(&shared.q_is_here, GROUPS * (GROUP_WARPS - GROUP_LOADERS) * 33);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            shared_barrier_init(&shared.is_full[tile], GROUPS * GROUP_LOADERS * 33); /* arrive_with_copies() */
            shared_barrier_init(&shared.is_empty[tile], GROUPS * GROUP_WARPS);
        }
        shared_barriers_ready();
    }
}

static __device__ __forceinline__ void load_sinks(const float *sinks, uint32_t first_head, float of_lane[2])
{
    const float *from = sinks + first_head + threadIdx.x % 32 / 4;
    of_lane[0] = from[0];
    of_lane[1] = from[8];
}

/* ---- a rank a block ---- */

/* What the ranks tell a block about 16 heads. */
struct att_parts {
    float4 values[ATT_RANKS][8]
                 [32]; /* numerators of this block's 64 features, as mma has them: [rank][8 features][lane] */
    float2 statistics[ATT_RANKS][GROUP_HEADS];
};

template <int GROUPS, int TILES> struct att_cluster_shared {
    att_shared<GROUPS, TILES> own;
    att_parts parts[GROUPS];
    uint64_t statistics_are_here, values_are_here;
};

/* Hands the group's statistics to all blocks, and a warp's 64 features to the block that joins them. */
template <int GROUPS, int TILES>
static __device__ __forceinline__ void send_parts(const float values[8][4], uint32_t rank, const att_warp &warp,
                                                  att_cluster_shared<GROUPS, TILES> &shared)
{
    const uint32_t i = threadIdx.x % GROUP_THREADS, head = i % GROUP_HEADS;
    att_parts &parts = shared.parts[warp.group];
    if (i < ATT_RANKS * GROUP_HEADS)
        send_float2(&parts.statistics[rank][head],
                    statistics_of(shared.own.groups[warp.group], shared.own.is_bad, head), &shared.statistics_are_here,
                    i / GROUP_HEADS);
#pragma unroll
    for (int n = 0; n < 8; n++)
        send_float4(&parts.values[rank][n][threadIdx.x % 32],
                    make_float4(values[n][0], values[n][1], values[n][2], values[n][3]), &shared.values_are_here,
                    warp.feature_eighth);
}

/* This block's 64 features of 16 heads: a warp takes 8 features. */
template <int GROUPS, int TILES>
static __device__ __forceinline__ void join_parts(const float sinks[2], uint32_t rank, const att_warp &warp,
                                                  att_cluster_shared<GROUPS, TILES> &shared, uint16_t *output)
{
    const uint32_t lane = threadIdx.x % 32, head = lane / 4;
    const att_parts &parts = shared.parts[warp.group];
    att_joined joined = join_sinks(sinks);
    float2 low[ATT_RANKS], high[ATT_RANKS];
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    shared_barrier_wait(&shared.statistics_are_here, 0);
#pragma unroll
    for (int r = 0; r < ATT_RANKS; r++) {
        low[r] = join_statistics(joined, 0, parts.statistics[r][head]);
        high[r] = join_statistics(joined, 1, parts.statistics[r][head + 8]);
    }
    shared_barrier_wait(&shared.values_are_here, 0);
#pragma unroll
    for (int r = 0; r < ATT_RANKS; r++) {
        const float4 part = parts.values[r][warp.feature_eighth][lane];
        sums[0] = join_value(sums[0], low[r], part.x);
        sums[1] = join_value(sums[1], low[r], part.y);
        sums[2] = join_value(sums[2], high[r], part.z);
        sums[3] = join_value(sums[3], high[r], part.w);
    }
    write_outputs(output + head * DSRI_HEAD_DIM + rank * 64 + warp.feature_eighth * 8 + lane % 4 * 2, joined, sums);
}

template <int GROUPS, int TILES>
static __device__ __forceinline__ void attend_in_cluster(const dsri_attention_plan &plan, uint8_t *zeroed,
                                                         att_cluster_shared<GROUPS, TILES> &shared)
{
    const uint32_t rank = blockIdx.x;
    const attention_query at = find_query(plan, blockIdx.z, zeroed);
    const att_warp warp = find_warp();
    const uint32_t block_head = blockIdx.y * GROUPS * GROUP_HEADS, first_head = block_head + warp.group * GROUP_HEADS;
    const slot_range range = slots_of_rank(at.width, rank);
    const int32_t index = warp.part != 0 ? tile_share<GROUPS>::load_index(at, warp, range) : -1;
    prepare(shared.own);
    if (threadIdx.x == 0) {
        shared_barrier_init(&shared.statistics_are_here, 1);
        shared_barrier_init(&shared.values_are_here, 1);
        shared_barriers_ready();
        shared_barrier_arrive_expecting(&shared.statistics_are_here, GROUPS * sizeof shared.parts[0].statistics);
        shared_barrier_arrive_expecting(&shared.values_are_here, GROUPS * sizeof shared.parts[0].values);
    }
    __syncthreads();
    cluster_arrive();
    bring_first(at, first_head, warp, range, index, shared.own);
    float sinks[2], values[8][4];
    load_sinks(plan.sinks, first_head, sinks);
    shared_barrier_wait(&shared.own.q_is_here, 0);
    uint32_t n_tiles = 0;
    attend_rank(at, plan.scale, rank, rank + 1, warp, n_tiles, shared.own, values);
    cluster_wait(); /* the other blocks' barriers are ready */
    send_parts(values, rank, warp, shared);
    join_parts(sinks, rank, warp, shared, at.output + (uint64_t)first_head * DSRI_HEAD_DIM);
}

extern __shared__ uint4 shared_memory[];

extern "C" __global__ void __cluster_dims__(ATT_RANKS, 1, 1) __launch_bounds__(GROUP_THREADS, 1)
    dsr_attention_row16_bf16__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    attend_in_cluster(plan, zeroed, *reinterpret_cast<att_cluster_shared<1, 2> *>(shared_memory));
}

extern "C" __global__ void __cluster_dims__(ATT_RANKS, 1, 1) __launch_bounds__(2 * GROUP_THREADS, 1)
    dsr_attention_row32_bf16__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    attend_in_cluster(plan, zeroed, *reinterpret_cast<att_cluster_shared<2, 1> *>(shared_memory));
}

/* ---- all ranks in one block ---- */

extern "C" __global__ void __launch_bounds__(2 * GROUP_THREADS, 1)
    dsr_attention_rows_bf16__cuda(const __grid_constant__ dsri_attention_plan plan, uint8_t *zeroed)
{
    enum { GROUPS = 2 };
    auto &shared = *reinterpret_cast<att_shared<GROUPS, 2> *>(shared_memory);
    const attention_query at = find_query(plan, blockIdx.z, zeroed);
    const att_warp warp = find_warp();
    const uint32_t block_head = blockIdx.y * GROUPS * GROUP_HEADS, first_head = block_head + warp.group * GROUP_HEADS;
    const uint32_t lane = threadIdx.x % 32, head = lane / 4;
    const slot_range first = slots_of_rank(at.width, 0);
    const int32_t index = warp.part != 0 ? tile_share<GROUPS>::load_index(at, warp, first) : -1;
    prepare(shared);
    __syncthreads();
    bring_first(at, first_head, warp, first, index, shared);
    float sinks[2], sums[8][4] = {};
    load_sinks(plan.sinks, first_head, sinks);
    att_joined joined = join_sinks(sinks);
    shared_barrier_wait(&shared.q_is_here, 0);
    uint32_t n_tiles = 0;
#pragma unroll 1
    for (uint32_t rank = 0; rank < ATT_RANKS; rank++) {
        att_group &group = shared.groups[warp.group];
        float values[8][4];
        attend_rank(at, plan.scale, rank, ATT_RANKS, warp, n_tiles, shared, values);
        const slot_range range = slots_of_rank(at.width, rank);
        const float2 none = make_float2(__uint_as_float(0xff800000u), 0.0f);
        const bool is_empty = range.first == range.end;
        const float2 low = join_statistics(joined, 0, is_empty ? none : statistics_of(group, shared.is_bad, head));
        const float2 high = join_statistics(joined, 1, is_empty ? none : statistics_of(group, shared.is_bad, head + 8));
#pragma unroll
        for (int n = 0; n < 8; n++) {
            sums[n][0] = join_value(sums[n][0], low, values[n][0]);
            sums[n][1] = join_value(sums[n][1], low, values[n][1]);
            sums[n][2] = join_value(sums[n][2], high, values[n][2]);
            sums[n][3] = join_value(sums[n][3], high, values[n][3]);
        }
    }
    uint16_t *output =
        at.output + (uint64_t)(first_head + head) * DSRI_HEAD_DIM + warp.feature_eighth * 64 + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; n++)
        write_outputs(output + 8 * n, joined, sums[n]);
}

#endif
