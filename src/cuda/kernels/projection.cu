/* Device-exact projections. A block is a panel of 32 outputs, a lane an output; a warp takes one segment of 512 inputs at a
 * time, so that eight chains of every output run side by side. Weights are read once for up to 8 rows. */
#include "cuda/kernels/scalar.cuh"
#include "ops/projection_layout.h"

enum { PROJECTION_WARPS = 8, PROJECTION_ROWS = 8, SEGMENT = 512, STEP = 16 };

struct projection_shared {
    uint16_t x[PROJECTION_WARPS][PROJECTION_ROWS][SEGMENT];
    float sums[PROJECTION_WARPS][PROJECTION_ROWS][32];
};

struct projection_panel {
    uint32_t group;
    uint64_t panel;       /* of all groups */
    uint64_t first_output; /* of the group */
    uint64_t output;      /* this lane's, of all groups; clamped to the last of the group */
};

/* Words of packed weights are 2 BF16 or 4 E4M3 values of consecutive inputs. */
template <bool FP8>
static __device__ __forceinline__ void unpack(const uint32_t *words, float scale, float w[STEP])
{
    if (FP8) {
#pragma unroll
        for (int i = 0; i < STEP; i++)
            w[i] = __fmul_rn(f32_from_e4m3(words[i / 4] >> (8 * (i % 4)) & 0xffu), scale);
    } else {
#pragma unroll
        for (int i = 0; i < STEP; i++)
            w[i] = __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
    }
}

static __device__ __forceinline__ float block_scale(const dsri_projection_plan &plan, uint64_t output, uint32_t input)
{
    const uint64_t at = output / 128 * ((plan.n_inputs + 127) / 128) + input / 128;
    return plan.scales_are_f32 ? static_cast<const float *>(plan.scales)[at]
                               : __uint_as_float(dsri_e8m0_bits(static_cast<const uint8_t *>(plan.scales)[at]));
}

/* Weights of this lane's output for STEP inputs from `input` on. */
template <bool FP8, bool PACKED>
static __device__ __forceinline__ void load_weights(const dsri_projection_plan &plan, const projection_panel &at,
                                                    uint32_t input, uint32_t lane, float w[STEP])
{
    uint32_t words[STEP / 2];
    float scale = 1.0f;
    if (PACKED && FP8) {
        const uint32_t *panel = static_cast<const uint32_t *>(plan.weight) + at.panel * dsri_fp8_panel_words(plan.n_inputs);
        const uint32_t *block = panel + (uint64_t)(input / 128) * (1 + 128 / 4) * 32;
        scale = __uint_as_float(block[lane]);
#pragma unroll
        for (int i = 0; i < STEP / 4; i++)
            words[i] = block[(1 + input % 128 / 4 + i) * 32 + lane];
    } else if (PACKED) {
        const uint32_t *panel = static_cast<const uint32_t *>(plan.weight) + at.panel * dsri_bf16_panel_words(plan.n_inputs);
#pragma unroll
        for (int i = 0; i < STEP / 2; i++)
            words[i] = panel[(input / 2 + i) * 32 + lane];
    } else if (FP8) {
        const uint8_t *row = static_cast<const uint8_t *>(plan.weight) + at.output * plan.n_inputs + input;
        scale = block_scale(plan, at.output, input);
#pragma unroll
        for (int i = 0; i < STEP / 4; i++)
            words[i] = row[4 * i] | (uint32_t)row[4 * i + 1] << 8 | (uint32_t)row[4 * i + 2] << 16 |
                       (uint32_t)row[4 * i + 3] << 24;
    } else {
        const uint16_t *row = static_cast<const uint16_t *>(plan.weight) + at.output * plan.n_inputs + input;
#pragma unroll
        for (int i = 0; i < STEP / 2; i++)
            words[i] = row[2 * i] | (uint32_t)row[2 * i + 1] << 16;
    }
    unpack<FP8>(words, scale, w);
}

template <int ROWS, bool FP8, bool PACKED>
static __device__ __forceinline__ void segment_sums(const dsri_projection_plan &plan, const projection_panel &at,
                                                    uint32_t first, uint32_t n, const uint16_t (*x)[SEGMENT], uint32_t lane,
                                                    float acc[ROWS])
{
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        acc[r] = 0.0f;
#pragma unroll 2
    for (uint32_t k = 0; k < n; k += STEP) {
        float w[STEP];
        load_weights<FP8, PACKED>(plan, at, first + k, lane, w);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const uint4 *words = reinterpret_cast<const uint4 *>(&x[r][k]);
            const uint4 a = words[0], b = words[1];
            const uint32_t pairs[STEP / 2] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (int i = 0; i < STEP; i++)
                acc[r] = __fmaf_rn(__uint_as_float(i % 2 ? pairs[i / 2] & 0xffff0000u : pairs[i / 2] << 16), w[i], acc[r]);
        }
    }
}

/* Stages the rows' inputs of this round's segments; rows past the last are zeros. */
template <int ROWS>
static __device__ void stage_inputs(const dsri_projection_plan &plan, uint32_t group, uint32_t first_row, uint32_t first,
                                    projection_shared &shared)
{
    const uint32_t n_pairs = PROJECTION_WARPS * SEGMENT / 2;
    for (uint32_t i = threadIdx.x; i < ROWS * n_pairs; i += blockDim.x) {
        const uint32_t r = i / n_pairs, k = i % n_pairs * 2, row = first_row + r;
        const uint64_t at = ((uint64_t)row * plan.n_groups + group) * plan.n_inputs + first + k;
        uint32_t pair = 0;
        if (row < plan.n_rows && first + k < plan.n_inputs)
            pair = plan.input[at] | (uint32_t)plan.input[at + 1] << 16;
        *reinterpret_cast<uint32_t *>(&shared.x[k / SEGMENT][r][k % SEGMENT]) = pair;
    }
}

template <int ROWS, bool FP8, bool PACKED>
static __device__ void project(const dsri_projection_plan &plan, const projection_panel &at, uint32_t first_row,
                               projection_shared &shared)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float total = 0.0f; /* of row `warp` */
    for (uint32_t first = 0; first < plan.n_inputs; first += PROJECTION_WARPS * SEGMENT) {
        __syncthreads();
        stage_inputs<ROWS>(plan, at.group, first_row, first, shared);
        __syncthreads();
        const uint32_t begin = first + warp * SEGMENT;
        if (begin < plan.n_inputs) {
            const uint32_t left = plan.n_inputs - begin;
            float acc[ROWS];
            segment_sums<ROWS, FP8, PACKED>(plan, at, begin, left < SEGMENT ? left : SEGMENT, shared.x[warp], lane, acc);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                shared.sums[warp][r][lane] = acc[r];
        }
        __syncthreads();
        if (warp < ROWS)
            for (uint32_t s = 0; s < PROJECTION_WARPS && first + s * SEGMENT < plan.n_inputs; s++)
                total = __fadd_rn(total, shared.sums[s][warp][lane]);
    }
    const uint64_t output = at.first_output + lane;
    if (warp >= ROWS || first_row + warp >= plan.n_rows || output >= plan.n_outputs)
        return;
    const uint64_t to = ((uint64_t)(first_row + warp) * plan.n_groups + at.group) * plan.n_outputs + output;
    const float y = __fmul_rn(total, plan.output_scale);
    if (plan.output_is_f32)
        static_cast<float *>(plan.output)[to] = f32_is_finite(y) ? y : 0.0f;
    else
        static_cast<uint16_t *>(plan.output)[to] = f32_to_finite_bf16(y);
}

template <bool FP8, bool PACKED>
static __device__ void project_rows(const dsri_projection_plan &plan, const projection_panel &at, uint32_t first_row,
                                    projection_shared &shared)
{
    const uint32_t left = plan.n_rows - first_row;
    if (left == 1)
        project<1, FP8, PACKED>(plan, at, first_row, shared);
    else if (left <= 4)
        project<4, FP8, PACKED>(plan, at, first_row, shared);
    else
        project<8, FP8, PACKED>(plan, at, first_row, shared);
}

extern "C" __global__ void __launch_bounds__(256) dsr_projection_bf16__cuda(const __grid_constant__ dsri_projection_plan plan,
                                                                           uint8_t *)
{
    let_next_launch_start();
    wait_for_prior_launch();
    extern __shared__ uint4 shared_memory[];
    projection_shared &shared = *reinterpret_cast<projection_shared *>(shared_memory);
    const uint32_t panels = (plan.n_outputs + 31) / 32;
    projection_panel at;
    at.group = blockIdx.x / panels;
    at.panel = blockIdx.x;
    at.first_output = (uint64_t)(blockIdx.x % panels) * 32;
    const uint64_t own = at.first_output + threadIdx.x % 32;
    at.output = (uint64_t)at.group * plan.n_outputs + (own < plan.n_outputs ? own : plan.n_outputs - 1);
    const uint32_t first_row = blockIdx.y * PROJECTION_ROWS;
    switch (plan.format) {
    case 0: project_rows<false, false>(plan, at, first_row, shared); break;
    case 1: project_rows<true, false>(plan, at, first_row, shared); break;
    case 2: project_rows<false, true>(plan, at, first_row, shared); break;
    default: project_rows<true, true>(plan, at, first_row, shared); break;
    }
}
