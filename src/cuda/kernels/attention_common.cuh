/* What the attention kernels share: where a query's operands lie, and the flags that zero heads. */
#ifndef DSRI_ATTENTION_COMMON_CUH
#define DSRI_ATTENTION_COMMON_CUH

#include "cuda/kernels/cache.cuh"
#include "cuda/kernels/tiles.cuh"
#include "ops/attention_workspace.h"

/* Zero when a command starts, and left so. */
struct attention_flags {
    uint32_t is_bad; /* a bad index or a KV row that is not finite: every head is zero */
    uint32_t n_done; /* blocks of the last launch that are through with the query */
    uint32_t is_bad_head[254];
};

struct attention_query {
    const dsri_cache *cache;
    row_form form;
    uint64_t kv_len;
    const int32_t *indices;
    uint32_t width;
    const uint16_t *q;
    uint16_t *output;
    float *logits;          /* [width][n_heads] */
    float *slot_max;        /* [(width + 15) / 16][n_heads] */
    dsri_cache_entry *rows; /* [width] */
    attention_flags *flags;
    uint32_t row, number; /* it is query `number` of the row */
};

static __device__ __forceinline__ float minus_infinity()
{
    return __uint_as_float(0xff800000u);
}

/* The query numbered `query` through all rows. */
static __device__ __forceinline__ attention_query find_query(const dsri_attention_plan &plan, uint32_t query,
                                                             uint8_t *zeroed)
{
    uint32_t r = plan.n_queries == plan.n_rows ? query : 0; /* one query a row: no search */
    while (r + 1 < plan.n_rows && plan.rows[r + 1].first_query <= query)
        r++;
    const dsri_attention_row_plan &row = plan.rows[r];
    const uint64_t i = query - row.first_query;
    const dsri_attention_region region = dsri_attention_region_of(row.width, plan.n_heads, row.kv.scale_bytes != 0);
    attention_query at;
    at.cache = &row.kv;
    at.form = form_of_rows(row.kv);
    at.kv_len = row.kv_len;
    at.indices = row.indices + i * row.index_stride;
    at.width = row.width;
    at.q = row.q + i * plan.n_heads * DSRI_HEAD_DIM;
    at.output = row.output + i * plan.n_heads * DSRI_HEAD_DIM;
    at.logits = reinterpret_cast<float *>(row.workspace + i * region.size_bytes + region.weights);
    at.slot_max = reinterpret_cast<float *>(row.workspace + i * region.size_bytes + region.slot_max);
    at.rows = reinterpret_cast<dsri_cache_entry *>(row.workspace + i * region.size_bytes + region.rows);
    at.flags = reinterpret_cast<attention_flags *>(zeroed) + query;
    at.row = r;
    at.number = query - row.first_query;
    return at;
}

/* The KV row that an index selects: without values for -1, which selects none, and for bad indices. */
static __device__ __forceinline__ dsri_cache_entry find_row(const attention_query &at, int32_t index)
{
    dsri_cache_entry none;
    none.values = none.scales = nullptr;
    return index < 0 || (uint64_t)index >= at.kv_len ? none : dsri_cache_at(at.cache, (uint32_t)index);
}

/* Piece i of a row (8 features from 8 i on) to shared memory as BF16, where it is not a plain copy. */
template <row_form FORM> static __device__ __forceinline__ void decode_to(uint8_t *to, uint4 loaded, uint32_t piece)
{
    *reinterpret_cast<uint4 *>(to) = decode_piece<FORM>(loaded, piece * 8);
}

/* Where a slot's row lies, as the logits' launch has found it. */
static __device__ __forceinline__ dsri_cache_entry row_of_slot(const attention_query &at, uint32_t slot)
{
    dsri_cache_entry none;
    none.values = none.scales = nullptr;
    return slot < at.width ? at.rows[slot] : none;
}

/* 8 features of a row as they lie in memory; as many -0 for none: then a step of a chain changes nothing. */
static __device__ __forceinline__ uint4 load_values(row_form form, const dsri_cache_entry &row, uint32_t f)
{
    const uint32_t zeros = 0x80008000u, codes = 0x80808080u;
    if (!row.values)
        return form == ROW_FP8 && f < ROW_CODES ? make_uint4(codes, codes, 0, 0)
                                                : make_uint4(zeros, zeros, zeros, zeros);
    return form == ROW_WORDS ? load_piece<ROW_WORDS>(row, f)
           : form == ROW_FP8 ? load_piece<ROW_FP8>(row, f)
                             : load_piece<ROW_HALVES>(row, f);
}

/* The greatest of n lanes, a power of two. */
static __device__ __forceinline__ float max_of_lanes(float x, int n)
{
#pragma unroll
    for (int lanes = 1; lanes < n; lanes *= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    return x;
}

/* N consecutive outputs of a head. A NaN denominator makes zeros. */
template <int N>
static __device__ __forceinline__ void write_values(uint16_t *to, const float *numerators, float denominator)
{
    uint16_t values[N];
#pragma unroll
    for (int j = 0; j < N; j++)
        values[j] = f32_to_finite_bf16(__fdiv_rn(numerators[j], denominator));
    if ((uintptr_t)to % 4 == 0) {
#pragma unroll
        for (int j = 0; j + 1 < N; j += 2)
            *reinterpret_cast<uint32_t *>(to + j) = values[j] | (uint32_t)values[j + 1] << 16;
    } else {
#pragma unroll
        for (int j = 0; j < N; j++)
            to[j] = values[j];
    }
}

/* Whether what the logits' launch has seen, or the sink, makes a head zero. */
static __device__ __forceinline__ bool is_zero_head(const attention_query &at, uint32_t head, float sink)
{
    return (at.flags->is_bad | at.flags->is_bad_head[head]) != 0 || !f32_is_finite(sink);
}

/* Tells that a block is through with a query's flags, after a barrier since its threads have read them; the last block
 * clears them for the next command. One warp. */
static __device__ __forceinline__ void leave_query(const attention_query &at, uint32_t n_heads)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t n_done = 0;
    if (lane == 0) {
        __threadfence();
        n_done = atomicAdd(&at.flags->n_done, 1u);
    }
    n_done = __shfl_sync(0xffffffffu, n_done, 0);
    if (n_done == gridDim.x * gridDim.y - 1) {
        for (uint32_t h = lane; h < n_heads; h += 32)
            at.flags->is_bad_head[h] = 0;
        if (lane == 0) {
            at.flags->is_bad = 0;
            at.flags->n_done = 0;
        }
    }
}

#endif
