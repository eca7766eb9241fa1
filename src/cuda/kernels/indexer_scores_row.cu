/* Row-exact index scores of BF16 keys, wherever they lie: any stride, pages, alignment, and 32, 64 or 128 heads. Each
 * warp streams 16 keys at a time through a ring of its own in shared memory. */
#include "cuda/kernels/indexer_row.cuh"
#include "cuda/kernels/indexer_runs.cuh"

enum { ROW_WARPS = INDEX_TILE / ROW_KEYS, ROW_THREADS = 32 * ROW_WARPS, ROW_STAGES = 5 };

/* Rows of 16 words of 16 bytes; word w of row r lies at w ^ r % 8, so that four words of 8 rows are read without bank
 * conflicts. */
struct key_stage {
    uint4 words[ROW_KEYS][KEY_WORDS];
};

struct row_shared {
    key_stage ring[ROW_WARPS][ROW_STAGES];
    tile_run run;
};

/* Starts the copies of the keys from first_key on; keys that are not seen give zeros. */
template <bool WORDS>
static __device__ __forceinline__ void stage_keys_row(const indexer_query &at, uint32_t first_key, key_stage &stage)
{
    const uint32_t lane = threadIdx.x % 32, word = lane % KEY_WORDS;
    if (WORDS && at.keys.page_table == nullptr && first_key + ROW_KEYS <= at.n_seen) {
        const uint64_t row_stride = at.keys.row_stride;
        const uint8_t *from = at.keys.pages + (first_key + lane / KEY_WORDS) * row_stride + 16 * word;
#pragma unroll
        for (uint32_t i = 0; i < ROW_KEYS / 2; i++, from += 2 * row_stride) {
            const uint32_t row = 2 * i + lane / KEY_WORDS;
            copy_async_16(&stage.words[row][word ^ row % 8], from, 16);
        }
        return;
    }
    const dsri_cache keys = at.keys;
    const uint32_t n_seen = at.n_seen;
    const uint8_t *first =
        dsri_cache_at(&keys, first_key < n_seen ? first_key : 0).values; /* 16 keys are in one page */
#pragma unroll 1
    for (uint32_t row = lane / KEY_WORDS; row < ROW_KEYS; row += 2) {
        dsri_cache_entry key = {first && first_key + row < n_seen ? first + row * keys.row_stride : nullptr, nullptr};
        stage_8<WORDS ? BY_WORDS : BY_ELEMENT>(&stage.words[row][word ^ row % 8], key, 8 * word, keys.pages);
    }
}

/* How many of 16 keys are in memory. */
static __device__ __forceinline__ uint32_t keys_there(const indexer_query &at, uint32_t first_key)
{
    if (first_key >= at.n_seen || (at.keys.page_table && !dsri_cache_at(&at.keys, first_key).values))
        return 0;
    return min(at.n_seen - first_key, (uint32_t)ROW_KEYS);
}

/* Scores of a run of tiles against NTILES * 8 heads from first_head on. PART: 0 all heads at once; 1 leaves partial
 * sums in the scores; 2 adds to them. */
template <int NTILES, int PART, bool WORDS>
static __device__ __forceinline__ void score_run(const tile_run &run, uint32_t first_head, row_shared &shared)
{
    const indexer_query &at = run.at;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    key_stage *ring = shared.ring[warp];
    const uint32_t first_key = run.first * INDEX_TILE + warp * ROW_KEYS;
    for (uint32_t j = 0; j < ROW_STAGES - 1; j++) {
        if (j < run.n)
            stage_keys_row<WORDS>(at, first_key + j * INDEX_TILE, ring[j]);
        copy_async_commit();
    }
    row_heads<NTILES> heads;
    load_heads<NTILES, WORDS>(at, first_head, heads);
    uint32_t slot = 0, free_slot = ROW_STAGES - 1;
    for (uint32_t j = 0; j < run.n; j++) {
        const uint32_t key = first_key + j * INDEX_TILE;
        float dots[NTILES][4], sums[2];
        copy_async_wait<ROW_STAGES - 2>();
        __syncwarp();
        if (j + ROW_STAGES - 1 < run.n)
            stage_keys_row<WORDS>(at, key + (ROW_STAGES - 1) * INDEX_TILE, ring[free_slot]);
        copy_async_commit();
        const key_stage &stage = ring[slot];
        multiply_keys<NTILES>(
            heads,
            [&](int s, uint4 &low, uint4 &high) {
                low = stage.words[g][(4 * s + t) ^ g];
                high = stage.words[g + 8][(4 * s + t) ^ g];
            },
            dots);
        sum_keys<NTILES>(dots, heads, sums);
        free_slot = slot;
        slot = slot + 1 < ROW_STAGES ? slot + 1 : 0;
        if (PART) {
#pragma unroll
            for (int k = 0; k < 2; k++) { /* every lane of the four has the sums */
                float *partial = at.scores + key + g + 8 * k;
                const bool is_mine = t == 0 && key + g + 8 * k < at.n_seen;
                if (PART == 1 && is_mine)
                    *partial = sums[k];
                const float first = PART == 2 && is_mine ? *partial : 0.0f;
                sums[k] = __fadd_rn(__shfl_sync(0xffffffffu, first, lane / 4 * 4), sums[k]);
            }
        }
        if (PART != 1)
            store_keys(at, key, keys_there(at, key), sums);
    }
    copy_async_wait<0>();
    __syncthreads();
}

template <bool WORDS>
static __device__ __forceinline__ void score_run_of(uint32_t n_heads, const tile_run &run, row_shared &shared)
{
    if (n_heads == 32) {
        score_run<4, 0, WORDS>(run, 0, shared);
    } else if (n_heads == 64) {
        score_run<8, 0, WORDS>(run, 0, shared);
    } else {
        score_run<8, 1, WORDS>(run, 0, shared);
        score_run<8, 2, WORDS>(run, 64, shared);
    }
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS, 1)
    dsr_indexer_scores_row_bf16__cuda(const __grid_constant__ dsri_indexer_plan plan, uint8_t *)
{
    extern __shared__ uint4 shared_memory[];
    row_shared &shared = *reinterpret_cast<row_shared *>(shared_memory);
    let_next_launch_start();
    wait_for_prior_launch();
    for (tile_piece piece = tiles_of_block(plan); piece.next < piece.end;) {
        take_run(plan, piece, shared.run);
        if (shared.run.at.keys.scale_bytes) /* for the kernel of packed keys */
            __syncthreads();
        else if (source_of(shared.run.at) == BY_WORDS)
            score_run_of<true>(plan.n_heads, shared.run, shared);
        else
            score_run_of<false>(plan.n_heads, shared.run, shared);
    }
}
