/* Row-exact index scores on tensor cores (mma.sync, BF16 in, F32 out).
 *
 * Each warp streams 16 keys at a time through a ring of its own in shared memory; the queries go through shared memory
 * once and stay in registers as fragments; scores are summed over heads in registers and lanes. */
#include "cuda/kernels/indexer_common.cuh"

enum { ROW_WARPS = 8, ROW_THREADS = 32 * ROW_WARPS, ROW_STAGES = 6, WARP_KEYS_ROW = 16 };
enum { ROW_HEADS = 64, KEY_WORDS = DSRI_INDEX_DIM / 8 };

/* Rows of 16 words of 16 bytes; word w of row r lies at w ^ r % 8, so that a word of 8 rows is read without bank
 * conflicts. */
struct key_stage {
    uint4 words[WARP_KEYS_ROW][KEY_WORDS];
};

struct row_shared {
    key_stage ring[ROW_WARPS][ROW_STAGES];
    uint4 q[ROW_HEADS][KEY_WORDS];
    indexer_line line;
    indexer_run run;
};

/* Starts the copies of the keys from first_key on; keys that are not seen give zeros. */
template <bool WORDS>
static __device__ __forceinline__ void stage_keys_row(const indexer_query &at, uint32_t first_key, key_stage &stage)
{
    const uint32_t lane = threadIdx.x % 32, word = lane % KEY_WORDS;
    const uint64_t row_stride = at.keys.row_stride;
    if (WORDS && at.keys.page_table == nullptr && first_key + WARP_KEYS_ROW <= at.n_seen) {
        const uint8_t *from = at.keys.pages + (first_key + lane / KEY_WORDS) * row_stride + 16 * word;
#pragma unroll
        for (uint32_t i = 0; i < WARP_KEYS_ROW / 2; i++, from += 2 * row_stride) {
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
    for (uint32_t row = lane / KEY_WORDS; row < WARP_KEYS_ROW; row += 2) {
        dsri_cache_entry key = {first && first_key + row < n_seen ? first + row * row_stride : nullptr, nullptr};
        stage_8<WORDS ? BY_WORDS : BY_ELEMENT>(&stage.words[row][word ^ row % 8], key, 8 * word, keys.pages);
    }
}

/* Starts the copies of n_heads heads from first_head on. The whole block calls it. */
template <bool WORDS>
static __device__ __forceinline__ void stage_heads(const indexer_query &at, uint32_t first_head, uint32_t n_heads,
                                                   row_shared &shared)
{
    const uint8_t *heads = reinterpret_cast<const uint8_t *>(at.q + first_head * DSRI_INDEX_DIM);
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < n_heads * KEY_WORDS; i += ROW_THREADS) {
        const uint32_t head = i / KEY_WORDS, word = i % KEY_WORDS;
        const dsri_cache_entry from = {heads + head * DSRI_INDEX_DIM * 2, nullptr};
        stage_8<WORDS ? BY_WORDS : BY_ELEMENT>(&shared.q[head][word ^ head % 8], from, 8 * word, heads);
    }
}

/* Fragments of NTILES * 8 heads: q[p][n] serves features 32 p to 32 p + 31, two steps of 16. */
template <int NTILES>
static __device__ __forceinline__ void load_heads(const row_shared &shared, uint32_t q[DSRI_INDEX_DIM / 32][NTILES][4])
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int p = 0; p < DSRI_INDEX_DIM / 32; p++)
#pragma unroll
        for (int n = 0; n < NTILES; n++) {
            const uint32_t head = 8 * n + lane % 8, word = 4 * p + lane / 8;
            load_matrices(shared_address(&shared.q[head][word ^ head % 8]), q[p][n]);
        }
}

/* Products of 16 keys with NTILES * 8 heads. */
template <int NTILES>
static __device__ __forceinline__ void
multiply_keys(const key_stage &stage, const uint32_t q[DSRI_INDEX_DIM / 32][NTILES][4], float dots[NTILES][4])
{
    const uint32_t lane = threadIdx.x % 32, row = lane % 16;
    const uint32_t rows = shared_address(&stage.words[row][0]);
#pragma unroll
    for (int n = 0; n < NTILES; n++)
        dots[n][0] = dots[n][1] = dots[n][2] = dots[n][3] = 0.0f;
#pragma unroll
    for (int step = 0; step < DSRI_INDEX_DIM / 16; step++) {
        uint32_t keys[4];
        load_matrices(rows + 16 * ((2 * step + lane / 16) ^ row % 8), keys);
#pragma unroll
        for (int n = 0; n < NTILES; n++)
            multiply_add(dots[n], keys, q[step / 2][n][step % 2 * 2], q[step / 2][n][step % 2 * 2 + 1]);
    }
}

/* Weighted sums of a lane's heads for its two keys, then over the four lanes that share them; NaN if a dot is not
 * finite. */
template <int NTILES>
static __device__ __forceinline__ void sum_keys(const float dots[NTILES][4], const float2 weights[NTILES],
                                                float sums[2])
{
    float poison[2] = {0.0f, 0.0f};
    sums[0] = sums[1] = 0.0f;
#pragma unroll
    for (int n = 0; n < NTILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sums[i / 2] = __fmaf_rn(fmaxf(dots[n][i], 0.0f), i % 2 ? weights[n].y : weights[n].x, sums[i / 2]);
            poison[i / 2] = __fmaf_rn(dots[n][i], 0.0f, poison[i / 2]);
        }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        sums[k] = __fadd_rn(sums[k], poison[k]);
        sums[k] = __fadd_rn(sums[k], __shfl_xor_sync(0xffffffffu, sums[k], 1));
        sums[k] = __fadd_rn(sums[k], __shfl_xor_sync(0xffffffffu, sums[k], 2));
    }
}

/* Stores the scores of 16 keys: lane t = 0 of each four has key lane / 4, lane t = 1 the one 8 further. */
static __device__ __forceinline__ void store_keys(const indexer_query &at, uint32_t first_key, const float sums[2])
{
    const uint32_t lane = threadIdx.x % 32, t = lane % 4, key = first_key + lane / 4 + t * 8;
    float stored = __uint_as_float(0xff800000u);
    if (t < 2) {
        const bool is_good = key < at.n_seen && (!at.keys.page_table || dsri_cache_at(&at.keys, key).values != nullptr);
        stored = store_score(at, key, is_good, t ? sums[1] : sums[0]);
    }
    if (at.maxima) {
        const uint32_t greatest = __reduce_max_sync(0xffffffffu, ordered_score(stored));
        if (lane == 0 && first_key < at.n_seen)
            at.maxima[first_key / DSRI_SCORE_BLOCK] = score_of_ordered(greatest);
    }
}

/* Scores of a run of tiles against NTILES * 8 heads from first_head on. PART: 0 all heads at once; 1 leaves partial
 * sums in the scores; 2 adds to them. */
template <int NTILES, int PART, bool WORDS>
static __device__ __forceinline__ void score_run(const indexer_run &run, int first_head, row_shared &shared)
{
    const indexer_query &at = run.at;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
    key_stage *ring = shared.ring[warp];
    const uint32_t first_key = run.first * INDEX_TILE + warp * WARP_KEYS_ROW;
    uint32_t q[DSRI_INDEX_DIM / 32][NTILES][4];
    float2 weights[NTILES];
    stage_heads<WORDS>(at, first_head, 8 * NTILES, shared);
    copy_async_commit();
#pragma unroll
    for (int n = 0; n < NTILES; n++) {
        const float *own = at.weights + first_head + 8 * n + 2 * t;
        weights[n] = make_float2(own[0], own[1]);
    }
    for (uint32_t j = 0; j < ROW_STAGES - 1; j++) {
        if (j < run.n)
            stage_keys_row<WORDS>(at, first_key + j * INDEX_TILE, ring[j]);
        copy_async_commit();
    }
    copy_async_wait<ROW_STAGES - 1>();
    __syncthreads();
    load_heads<NTILES>(shared, q);
    uint32_t slot = 0, free_slot = ROW_STAGES - 1;
    for (uint32_t j = 0; j < run.n; j++) {
        const uint32_t key = first_key + j * INDEX_TILE;
        float dots[NTILES][4], sums[2];
        copy_async_wait<ROW_STAGES - 2>();
        __syncwarp();
        if (j + ROW_STAGES - 1 < run.n)
            stage_keys_row<WORDS>(at, key + (ROW_STAGES - 1) * INDEX_TILE, ring[free_slot]);
        copy_async_commit();
        multiply_keys<NTILES>(ring[slot], q, dots);
        sum_keys<NTILES>(dots, weights, sums);
        free_slot = slot;
        slot = slot + 1 < ROW_STAGES ? slot + 1 : 0;
        if (PART) {
#pragma unroll
            for (int k = 0; k < 2; k++) { /* every lane of the four has the sums */
                float *partial = at.scores + key + lane / 4 + 8 * k;
                const bool is_mine = t == 0 && key + lane / 4 + 8 * k < at.n_seen;
                if (PART == 1 && is_mine)
                    *partial = sums[k];
                const float first = PART == 2 && is_mine ? *partial : 0.0f;
                sums[k] = __fadd_rn(__shfl_sync(0xffffffffu, first, lane / 4 * 4), sums[k]);
            }
        }
        if (PART != 1)
            store_keys(at, key, sums);
    }
    copy_async_wait<0>();
    __syncthreads();
}

template <bool WORDS>
static __device__ __forceinline__ void score_run_of(uint32_t n_heads, const indexer_run &run, row_shared &shared)
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
    line_up<INDEX_TILE, PLAIN_ROWS>(plan, shared.line);
    for (indexer_piece piece = piece_of_block(shared.line); piece.next < piece.end;) {
        next_run<INDEX_TILE>(plan, shared.line, piece, shared.run);
        if (source_of(shared.run.at) == BY_WORDS)
            score_run_of<true>(plan.n_heads, shared.run, shared);
        else
            score_run_of<false>(plan.n_heads, shared.run, shared);
    }
}
