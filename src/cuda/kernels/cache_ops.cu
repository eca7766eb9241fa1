/* Writers of caches: append, and convert. A warp is an entry. */
#include "cuda/kernels/append.cuh"

enum { CACHE_THREADS = 128, CACHE_WARPS = CACHE_THREADS / 32 };

extern "C" __global__ void __launch_bounds__(DSRI_BUNDLE_THREADS) dsr_append_bf16__cuda(
    const __grid_constant__ dsri_append_plan plan, uint8_t *)
{
    let_next_launch_start();
    append_block(plan, own_place(), nullptr, {});
}

/* ---- convert ----------------------------------------------------------------------------------------------- */

static __device__ void copy_entry(const dsri_cache &cache, uint32_t dim, const dsri_cache_entry &from, entry_place to)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t n_values = cache.scale_bytes ? (uint32_t)cache.row_stride / 2 : dim;
    for (uint32_t i = lane; i < n_values; i += 32)
        reinterpret_cast<uint16_t *>(to.values)[i] = reinterpret_cast<const uint16_t *>(from.values)[i];
    if (lane < cache.scale_bytes)
        to.scales[lane] = from.scales[lane];
}

static __device__ void decode_key(const dsri_cache_entry &from, entry_place to)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t pairs[2];
    for (uint32_t i = 0; i < 2; i++)
        pairs[i] = decode_e2m1_pair(from.values[32 * i + lane], from.scales[2 * i + lane / 16]);
    store_pairs<2>(pairs, to.values);
}

static __device__ void decode_row(const dsri_cache_entry &from, entry_place to)
{
    uint16_t *values = reinterpret_cast<uint16_t *>(to.values);
    for (uint32_t f = threadIdx.x % 32 * 8; f < DSRI_HEAD_DIM; f += 256) {
        const uint4 piece = decode_piece<ROW_FP8>(load_piece<ROW_FP8>(from, f), f);
        const uint32_t w[4] = {piece.x, piece.y, piece.z, piece.w};
        for (int i = 0; i < 4; i++) {
            values[f + 2 * i] = (uint16_t)w[i];
            values[f + 2 * i + 1] = (uint16_t)(w[i] >> 16);
        }
    }
}

static __device__ void encode_entry(uint32_t dim, const dsri_cache_entry &from, entry_place to)
{
    const uint16_t *values = reinterpret_cast<const uint16_t *>(from.values) + threadIdx.x % 32 * 2;
    uint32_t pairs[8];
    for (uint32_t i = 0; i < 8; i++)
        pairs[i] = i < dim / 64 ? load_pair(values + 64 * i) : 0;
    if (dim == DSRI_INDEX_DIM) {
        float x[4];
        spread_key(pairs, x);
        pack_key(x, 0, to);
    } else {
        pack_row(pairs, 0, to);
    }
}

extern "C" __global__ void __launch_bounds__(CACHE_THREADS) dsr_convert_cache__cuda(
    const __grid_constant__ dsri_convert_plan plan, uint8_t *)
{
    let_next_launch_start();
    wait_for_prior_launch();
    const dsri_convert_row_plan &row = plan.rows[blockIdx.y];
    for (uint64_t i = (uint64_t)blockIdx.x * CACHE_WARPS + threadIdx.x / 32; i < row.n_entries;
         i += (uint64_t)gridDim.x * CACHE_WARPS) {
        const dsri_cache_entry from = dsri_cache_at(&row.source, row.first_source + i);
        const entry_place to = place_of_entry(row.destination, row.first_destination + i);
        if (from.values == nullptr || to.values == nullptr)
            continue;
        if (row.source.format == row.destination.format)
            copy_entry(row.source, plan.dim, from, to);
        else if (row.destination.format != FORMAT_BF16)
            encode_entry(plan.dim, from, to);
        else if (plan.dim == DSRI_INDEX_DIM)
            decode_key(from, to);
        else
            decode_row(from, to);
    }
}
