/* Device-exact kernels of the edge ops: compressor, gather, copy, RoPE, fake quantisation, RMS norm; and several commands in
 * one launch. */
#include "cuda/kernels/append.cuh"

/* ---- compressor: a block is a row, a thread a feature ----------------------------------------------------- */

/* Sum of values[0..n) by halving, n a power of two; every thread gets it. values is shared memory and is overwritten. */
static __device__ float sum_by_halving(float *values, uint32_t n)
{
    uint32_t s = n / 2;
    for (; s >= 32; s /= 2) {
        __syncthreads();
        for (uint32_t f = threadIdx.x; f < s; f += blockDim.x)
            values[f] = __fadd_rn(values[f], values[f + s]);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        float x = threadIdx.x < n ? values[threadIdx.x] : 0.0f;
        for (; s > 0; s /= 2)
            x = __fadd_rn(x, __shfl_down_sync(0xffffffffu, x, s));
        if (threadIdx.x == 0)
            values[0] = x;
    }
    __syncthreads();
    const float sum = values[0];
    __syncthreads();
    return sum;
}

struct token_state {
    float kv, score;
};

/* What the state keeps of a token's element. */
static __device__ __forceinline__ token_state keep_token(float kv, float score, float ape)
{
    const float s = __fadd_rn(score, ape);
    const bool is_good = f32_is_finite(kv) && f32_is_finite(s);
    return token_state{f32_is_finite(kv) ? kv : 0.0f, is_good ? s : __uint_as_float(0x7fc00000u)};
}

static __device__ float pool(const dsri_compressor_plan &plan, const dsri_compressor_row_plan &row, uint32_t f)
{
    const uint32_t coff = plan.ratio == 4 ? 2 : 1, n_items = coff * plan.ratio, width = coff * plan.dim;
    float max = __uint_as_float(0xff800000u), den = 0.0f, num = 0.0f;
#pragma unroll 16
    for (uint32_t i = 0; i < n_items; i++) {
        const float s = row.score_state[(uint64_t)i * width + (i < plan.ratio ? 0 : plan.dim) + f];
        max = s > max ? s : max;
    }
#pragma unroll 16
    for (uint32_t i = 0; i < n_items; i++) {
        const uint64_t at = (uint64_t)i * width + (i < plan.ratio ? 0 : plan.dim) + f;
        const float e = softmax_exp(__fadd_rn(row.score_state[at], -max));
        den = __fadd_rn(den, e);
        num = __fmaf_rn(e, row.kv_state[at], num);
    }
    return __fdiv_rn(num, den);
}

static __device__ void store_token(const dsri_compressor_plan &plan, const dsri_compressor_row_plan &row, uint32_t token)
{
    const uint32_t coff = plan.ratio == 4 ? 2 : 1, width = coff * plan.dim;
    const uint32_t j = (row.start_pos + token) % plan.ratio;
    const uint64_t state_row = (uint64_t)((coff - 1) * plan.ratio + j) * width;
    const float *kv = row.kv + (uint64_t)token * width, *score = row.score + (uint64_t)token * width;
    const float *ape = plan.ape + (uint64_t)j * width;
    for (uint32_t c = threadIdx.x; c < width; c += 2 * blockDim.x) {
        const uint32_t d = c + blockDim.x < width ? c + blockDim.x : c; /* two at a time: all loads before the stores */
        const token_state first = keep_token(kv[c], score[c], ape[c]), second = keep_token(kv[d], score[d], ape[d]);
        row.kv_state[state_row + c] = first.kv;
        row.kv_state[state_row + d] = second.kv;
        row.score_state[state_row + c] = first.score;
        row.score_state[state_row + d] = second.score;
    }
}

union compressor_shared {
    float squares[DSRI_HEAD_DIM];
    uint16_t entry[DSRI_HEAD_DIM]; /* the last that was made */
};

/* Writes the normed row of a thread's pooled feature. */
static __device__ void emit(const dsri_compressor_plan &plan, float pooled, float norm, uint16_t *output,
                            compressor_shared &shared)
{
    const uint32_t f = threadIdx.x;
    const float c = bf16_to_f32(f32_to_bf16(pooled));
    if (f < plan.dim)
        shared.squares[f] = __fmul_rn(c, c);
    const float sum = sum_by_halving(shared.squares, plan.dim);
    const float r = __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)plan.dim), plan.epsilon)));
    uint16_t y = 0;
    if (f < plan.dim)
        y = f32_to_bf16(__fmul_rn(__fmul_rn(c, r), norm));
    const int is_good = __syncthreads_and(f32_is_finite(sum) && bf16_is_finite(y));
    if (f < plan.dim)
        output[f] = shared.entry[f] = is_good ? y : 0;
}

static __device__ void shift_groups(const dsri_compressor_plan &plan, const dsri_compressor_row_plan &row)
{
    const uint32_t group = plan.ratio * 2 * plan.dim;
    for (uint32_t i = threadIdx.x; i < group; i += blockDim.x) {
        row.kv_state[i] = row.kv_state[group + i];
        row.score_state[i] = row.score_state[group + i];
    }
}

/* The append that follows a compressor's row, by its block's first warp. */
struct following_append {
    bool follows; /* else the rest means nothing */
    const dsri_append_plan *plan;
    rotation turn;
};

static __device__ __forceinline__ void find_turn(following_append &append, uint32_t r)
{
    if (append.follows && threadIdx.x < 32)
        append.turn = rotation_at(*append.plan, append.plan->rows[r].start_pos);
}

/* The last token of a group of four, alone: as store_token, pool, emit and shift_groups, with all of memory asked for at
 * once, and the rotation of what follows found meanwhile. */
static __device__ __forceinline__ void end_group_of_4(const dsri_compressor_plan &plan, uint32_t r,
                                                      compressor_shared &shared, following_append &append)
{
    const dsri_compressor_row_plan &row = plan.rows[r];
    const uint32_t f = threadIdx.x, dim = plan.dim, width = 2 * dim;
    float pooled = 0.0f, norm = 0.0f;
    if (f < dim) {
        token_state old[4], own[4][2]; /* the group before, of feature f; this group, of elements f and dim + f */
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            old[i] = token_state{row.kv_state[i * width + f], row.score_state[i * width + f]};
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            const uint32_t c = h * dim + f;
#pragma unroll
            for (uint32_t i = 0; i < 3; i++)
                own[i][h] = token_state{row.kv_state[(4 + i) * width + c], row.score_state[(4 + i) * width + c]};
            own[3][h] = keep_token(row.kv[c], row.score[c], plan.ape[3 * width + c]);
        }
        norm = plan.norm[f];
        find_turn(append, r);
        float max = __uint_as_float(0xff800000u), den = 0.0f, num = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const float s = i < 4 ? old[i].score : own[i % 4][1].score;
            max = s > max ? s : max;
        }
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const token_state item = i < 4 ? old[i] : own[i % 4][1];
            const float e = softmax_exp(__fadd_rn(item.score, -max));
            den = __fadd_rn(den, e);
            num = __fmaf_rn(e, item.kv, num);
        }
        pooled = __fdiv_rn(num, den);
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            const uint32_t c = h * dim + f;
            row.kv_state[7 * width + c] = own[3][h].kv;
            row.score_state[7 * width + c] = own[3][h].score;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                row.kv_state[i * width + c] = own[i][h].kv;
                row.score_state[i * width + c] = own[i][h].score;
            }
        }
    }
    emit(plan, pooled, norm, row.output, shared);
}

static __device__ void initialise(const dsri_compressor_plan &plan, const dsri_compressor_row_plan &row)
{
    const uint32_t coff = plan.ratio == 4 ? 2 : 1, n = coff * plan.ratio * coff * plan.dim;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        row.kv_state[i] = 0.0f;
        row.score_state[i] = __uint_as_float(0xff800000u);
    }
}

static __device__ __forceinline__ void compressor_block(const dsri_compressor_plan &plan, const grid_place &at,
                                                        compressor_shared &shared, following_append &append)
{
    const dsri_compressor_row_plan &row = plan.rows[at.x];
    wait_for_prior_launch();
    uint16_t *output = row.output;
    if (plan.ratio == 4 && row.n_tokens == 1 && row.start_pos % 4 == 3) {
        end_group_of_4(plan, at.x, shared, append);
        return;
    }
    find_turn(append, at.x);
    if (row.start_pos == 0) {
        initialise(plan, row);
        __syncthreads();
    }
    uint32_t n_emitted = 0;
    for (uint32_t token = 0; token < row.n_tokens; token++) {
        store_token(plan, row, token);
        __syncthreads();
        if ((row.start_pos + token + 1) % plan.ratio != 0)
            continue;
        const uint32_t f = threadIdx.x;
        emit(plan, f < plan.dim ? pool(plan, row, f) : 0.0f, f < plan.dim ? plan.norm[f] : 0.0f, output, shared);
        output += plan.dim;
        n_emitted++;
        if (plan.ratio == 4) {
            __syncthreads();
            shift_groups(plan, row);
        }
        __syncthreads();
    }
    if (n_emitted == 0)
        for (uint32_t f = threadIdx.x; f < plan.dim; f += blockDim.x)
            output[f] = shared.entry[f] = 0;
}

extern "C" __global__ void __launch_bounds__(DSRI_BUNDLE_THREADS) dsr_compressor_f32__cuda(
    const __grid_constant__ dsri_compressor_plan plan, uint8_t *)
{
    __shared__ compressor_shared shared;
    let_next_launch_start();
    following_append append = {false, nullptr, {}};
    compressor_block(plan, own_place(), shared, append);
}

/* ---- gather and copy -------------------------------------------------------------------------------------- */

extern "C" __global__ void dsr_gather_f32__cuda(const __grid_constant__ dsri_gather_plan plan, uint8_t *)
{
    let_next_launch_start();
    wait_for_prior_launch();
    const float *source = plan.sources[blockIdx.y];
    float *output = plan.output + blockIdx.y * plan.row_elements;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < plan.row_elements;
         i += (uint64_t)gridDim.x * blockDim.x) {
        /* as integers: a NaN keeps its payload */
        reinterpret_cast<uint32_t *>(output)[i] = reinterpret_cast<const uint32_t *>(source)[i];
    }
}

static __device__ void copy_block(const dsri_copy_plan &plan, const grid_place &at)
{
    const dsri_copy_row_plan &row = plan.rows[at.x];
    wait_for_prior_launch();
    for (uint64_t copy = at.y; copy < row.n_copies; copy += at.ny) {
        const uint64_t to = row.destination_row + copy;
        const uint8_t *source = row.source + copy * plan.row_bytes;
        uint8_t *destination = row.destination + (row.ring_rows ? to % row.ring_rows : to) * plan.row_bytes;
        const bool by_words = (((uintptr_t)source | (uintptr_t)destination | plan.row_bytes) & 15) == 0;
        if (by_words)
            for (uint64_t i = threadIdx.x; i < plan.row_bytes / 16; i += blockDim.x)
                reinterpret_cast<uint4 *>(destination)[i] = reinterpret_cast<const uint4 *>(source)[i];
        else
            for (uint64_t i = threadIdx.x; i < plan.row_bytes; i += blockDim.x)
                destination[i] = source[i];
    }
}

extern "C" __global__ void __launch_bounds__(DSRI_BUNDLE_THREADS) dsr_copy_bytes__cuda(
    const __grid_constant__ dsri_copy_plan plan, uint8_t *)
{
    let_next_launch_start();
    copy_block(plan, own_place());
}

/* ---- RoPE: blocks are (row, token), (part of the heads) ---------------------------------------------------- */

static __device__ float rope_element(const dsri_rope_plan &plan, const void *input, uint64_t at)
{
    return plan.input_is_f32 ? static_cast<const float *>(input)[at]
                             : bf16_to_f32(static_cast<const uint16_t *>(input)[at]);
}

struct rope_angles {
    float sines[DSRI_MAX_ROPE_PAIRS], cosines[DSRI_MAX_ROPE_PAIRS];
    uint8_t is_finite[DSRI_MAX_ROPE_PAIRS];
};

/* Features f and f + 1 of a head, turned, as two BF16 values. */
static __device__ __forceinline__ uint32_t rope_pair(const dsri_rope_plan &plan, uint32_t f, float a, float b,
                                                     const rope_angles &angles)
{
    const uint32_t tail = plan.head_dim - plan.rope_dim;
    if (f >= tail) {
        const uint32_t pair = (f - tail) / 2;
        const float sine = plan.inverse ? -angles.sines[pair] : angles.sines[pair];
        return rotate_features(a, b, sine, angles.cosines[pair], angles.is_finite[pair]);
    }
    const uint32_t y0 = f32_is_finite(a) ? f32_to_bf16(a) : 0, y1 = f32_is_finite(b) ? f32_to_bf16(b) : 0;
    return y0 | y1 << 16;
}

/* 8 features at a time: BF16 input, and 16-byte aligned rows. */
static __device__ void rope_token_by_words(const dsri_rope_plan &plan, const dsri_rope_row_plan &row, uint32_t token,
                                           const grid_place &at, const rope_angles &angles)
{
    const uint32_t words = plan.head_dim / 8;
    const uint64_t first = (uint64_t)token * plan.n_heads * words;
    const uint4 *input = static_cast<const uint4 *>(row.input) + first;
    uint4 *output = reinterpret_cast<uint4 *>(row.output) + first;
    for (uint32_t i = at.z * blockDim.x + threadIdx.x; i < plan.n_heads * words; i += at.nz * blockDim.x) {
        const uint4 word = input[i];
        uint32_t w[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
        for (uint32_t p = 0; p < 4; p++)
            w[p] = rope_pair(plan, i % words * 8 + 2 * p, bf16_to_f32((uint16_t)w[p]), bf16_to_f32((uint16_t)(w[p] >> 16)),
                             angles);
        output[i] = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

static __device__ void rope_token(const dsri_rope_plan &plan, const dsri_rope_row_plan &row, uint32_t token,
                                  const grid_place &at, const rope_angles &angles)
{
    const uint32_t half = plan.head_dim / 2;
    const uint64_t first = (uint64_t)token * plan.n_heads * plan.head_dim;
    for (uint32_t i = at.z * blockDim.x + threadIdx.x; i < plan.n_heads * half; i += at.nz * blockDim.x) {
        const uint32_t f = i % half * 2;
        const uint64_t element = first + (uint64_t)(i / half) * plan.head_dim + f;
        const float a = rope_element(plan, row.input, element), b = rope_element(plan, row.input, element + 1);
        const uint32_t y = rope_pair(plan, f, a, b, angles);
        row.output[element] = (uint16_t)y;
        row.output[element + 1] = (uint16_t)(y >> 16);
    }
}

/* angles: shared memory. */
static __device__ void rope_block(const dsri_rope_plan &plan, const grid_place &at, rope_angles &angles)
{
    const dsri_rope_row_plan &row = plan.rows[at.x];
    const bool by_words = !plan.input_is_f32 && plan.head_dim % 8 == 0 &&
                          (((uintptr_t)row.input | (uintptr_t)row.output) & 15) == 0;
    for (uint32_t token = at.y; token < row.n_tokens; token += at.ny) {
        __syncthreads();
        if (threadIdx.x < plan.rope_dim / 2) {
            const rotation turn =
                rotation_by(row.start_pos + token * row.position_step, plan.frequencies[threadIdx.x]);
            angles.is_finite[threadIdx.x] = turn.is_finite;
            angles.sines[threadIdx.x] = turn.sine;
            angles.cosines[threadIdx.x] = turn.cosine;
        }
        wait_for_prior_launch();
        __syncthreads();
        if (by_words)
            rope_token_by_words(plan, row, token, at, angles);
        else
            rope_token(plan, row, token, at, angles);
    }
}

extern "C" __global__ void __launch_bounds__(DSRI_BUNDLE_THREADS) dsr_rope_bf16__cuda(
    const __grid_constant__ dsri_rope_plan plan, uint8_t *)
{
    __shared__ rope_angles angles;
    let_next_launch_start();
    rope_block(plan, own_place(), angles);
}

/* ---- fake quantisation: a warp is a vector ------------------------------------------------------------------ */

static __device__ uint16_t quantise(float x, float scale, bool is_fp8)
{
    if (!(scale > 0.0f))
        return 0;
    float y = __fdiv_rn(x, scale);
    if (is_fp8)
        y = y > 448.0f ? 448.0f : y < -448.0f ? -448.0f : y;
    return f32_to_finite_bf16(__fmul_rn(is_fp8 ? round_e4m3(y) : round_e2m1(y), scale));
}

static __device__ void quantise_fp8(const dsri_fake_quant_plan &plan, uint64_t vector, uint32_t lane)
{
    const uint16_t *input = plan.input + vector * plan.dim;
    uint16_t *output = plan.output + vector * plan.dim;
    for (uint32_t first = 0; first < plan.dim - 64; first += 64) {
        const float a = bf16_to_f32(input[first + lane]), b = bf16_to_f32(input[first + 32 + lane]);
        const float amax = warp_amax(a, b), floor = 448.0f * __uint_as_float(plan.min_scale << 23);
        const float scale = f32_is_finite(amax) ? pow2_ceil(__fdiv_rn(fmaxf(amax, floor), 448.0f)) : 0.0f;
        output[first + lane] = quantise(a, scale, true);
        output[first + 32 + lane] = quantise(b, scale, true);
    }
    const uint16_t kept0 = input[plan.dim - 64 + lane], kept1 = input[plan.dim - 32 + lane];
    output[plan.dim - 64 + lane] = kept0;
    output[plan.dim - 32 + lane] = kept1;
}

static __device__ void quantise_fp4(const dsri_fake_quant_plan &plan, uint64_t vector, uint32_t lane)
{
    const uint16_t *input = plan.input + vector * 128;
    float x[4];
    for (int i = 0; i < 4; i++) {
        const uint16_t element = input[32 * i + lane];
        x[i] = bf16_is_finite(element) ? bf16_to_f32(element) : 0.0f;
    }
    hadamard_128(x);
    for (int i = 0; i < 4; i++) {
        const float amax = warp_amax(x[i], x[i]), floor = 6.0f * __uint_as_float(plan.min_scale << 23);
        const float scale = f32_is_finite(amax) ? pow2_ceil(__fdiv_rn(fmaxf(amax, floor), 6.0f)) : 0.0f;
        plan.output[vector * 128 + 32 * i + lane] = quantise(x[i], scale, false);
    }
}

extern "C" __global__ void dsr_fake_quant_bf16__cuda(const __grid_constant__ dsri_fake_quant_plan plan, uint8_t *)
{
    let_next_launch_start();
    wait_for_prior_launch();
    const uint32_t lane = threadIdx.x % 32;
    const uint64_t stride = (uint64_t)gridDim.x * (blockDim.x / 32);
    for (uint64_t v = (uint64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; v < plan.n_vectors; v += stride) {
        if (plan.kind == 0)
            quantise_fp8(plan, v, lane);
        else
            quantise_fp4(plan, v, lane);
    }
}

/* ---- RMS norm: a block is a vector -------------------------------------------------------------------------- */

extern "C" __global__ void dsr_rms_norm_f32__cuda(const __grid_constant__ dsri_rms_norm_plan plan, uint8_t *)
{
    let_next_launch_start();
    wait_for_prior_launch();
    extern __shared__ uint4 shared_memory[];
    float *squares = reinterpret_cast<float *>(shared_memory);
    uint32_t padded = 1;
    while (padded < plan.dim)
        padded *= 2;
    for (uint64_t v = blockIdx.x; v < plan.n_vectors; v += gridDim.x) {
        const uint64_t first = v * plan.dim;
        for (uint32_t f = threadIdx.x; f < padded; f += blockDim.x) {
            float x = 0.0f;
            if (f < plan.dim)
                x = plan.input_is_f32 ? static_cast<const float *>(plan.input)[first + f]
                                      : bf16_to_f32(static_cast<const uint16_t *>(plan.input)[first + f]);
            squares[f] = __fmul_rn(x, x);
        }
        const float sum = sum_by_halving(squares, padded);
        const float r = __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)plan.dim), plan.epsilon)));
        for (uint32_t f = threadIdx.x; f < plan.dim; f += blockDim.x) {
            const float x = plan.input_is_f32 ? static_cast<const float *>(plan.input)[first + f]
                                              : bf16_to_f32(static_cast<const uint16_t *>(plan.input)[first + f]);
            float y = __fmul_rn(x, r);
            y = plan.weight ? __fmul_rn(y, plan.weight[f]) : y;
            y = f32_is_finite(sum) && f32_is_finite(y) ? y : 0.0f;
            if (plan.output_is_f32)
                static_cast<float *>(plan.output)[first + f] = y;
            else
                static_cast<uint16_t *>(plan.output)[first + f] = f32_to_finite_bf16(y);
        }
    }
}

/* ---- several commands in one launch ------------------------------------------------------------------------- */

union bundle_shared {
    compressor_shared compressor;
    rope_angles angles;
};

extern "C" __global__ void __launch_bounds__(DSRI_BUNDLE_THREADS) dsr_bundle__cuda(const __grid_constant__ dsri_bundle plan,
                                                                                  uint8_t *)
{
    __shared__ bundle_shared shared;
    let_next_launch_start();
    uint32_t i = 0;
    while (i + 1 < plan.n_items && blockIdx.x >= plan.items[i + 1].first_block)
        i++;
    const dsri_bundle_item &item = plan.items[i];
    const uint32_t b = blockIdx.x - item.first_block, nx = item.grid[0], ny = item.grid[1];
    grid_place at = {b % nx, b / nx % ny, b / nx / ny, nx, ny, item.grid[2]};
    const void *own = &plan.plans[item.first_word];
    const bool is_append = item.code == DSRI_BUNDLE_APPEND;
    const void *to_append = &plan.plans[is_append ? item.first_word : item.follower_word];
    following_append append = {!is_append && item.follower_word != 0, static_cast<const dsri_append_plan *>(to_append), {}};
    if (item.code == DSRI_BUNDLE_COMPRESSOR) {
        compressor_block(*static_cast<const dsri_compressor_plan *>(own), at, shared.compressor, append);
        at = grid_place{0, at.x, 0, 1, at.nx, 1};
    } else if (item.code == DSRI_BUNDLE_COPY) {
        copy_block(*static_cast<const dsri_copy_plan *>(own), at);
    } else if (item.code == DSRI_BUNDLE_ROPE) {
        rope_block(*static_cast<const dsri_rope_plan *>(own), at, shared.angles);
    }
    if (append.follows)
        __syncthreads();
    if (is_append || append.follows)
        append_block(*append.plan, at, append.follows ? shared.compressor.entry : nullptr, append.turn);
}
