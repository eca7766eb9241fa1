/* Row-exact index scores on tensor cores (mma.sync, BF16 in, F32 out), and the top-k of each query by the block that
 * finishes its last tile.
 *
 * Each warp streams 16 keys at a time through a ring of its own in shared memory; the queries stay in registers as
 * fragments; scores are summed over heads in registers and lanes. The order of features in a dot product is free here,
 * so a lane's fragment is 16 consecutive bytes of a key: word i of lane t's 16 bytes of block b stands for feature pair
 * (b, t, i), for keys and queries alike. */
#include "cuda/kernels/indexer_select.cuh"

enum {
    ROW_WARPS = 8,
    ROW_THREADS = 32 * ROW_WARPS,
    ROW_STAGES = 6,
    WARP_KEYS_ROW = 16,
    FEATURE_BLOCKS = DSRI_INDEX_DIM / 32
};

/* 16 keys of 16 words of 16 bytes; word w of an odd key lies at w ^ 4, so that two keys never meet in a bank. */
struct key_stage {
    uint4 words[WARP_KEYS_ROW][16];
};

struct row_shared {
    union {
        key_stage ring[ROW_WARPS][ROW_STAGES];
        select_shared select;
    };
    indexer_line line;
    indexer_run run;
    uint32_t is_last;
};

/* Starts the copies of the keys from first_key on; keys that are not seen give zeros. */
template <bool WORDS>
static __device__ __forceinline__ void stage_keys_row(const indexer_query &at, uint32_t first_key, key_stage &stage)
{
    const dsri_cache keys = at.keys;
    const uint32_t n_seen = at.n_seen, lane = threadIdx.x % 32, word = lane % 16;
    const uint8_t *first = keys.pages + first_key * keys.row_stride;
    if (keys.page_table) /* 16 keys are never in two pages */
        first = dsri_cache_at(&keys, first_key < n_seen ? first_key : 0).values;
#pragma unroll
    for (uint32_t row = lane / 16, i = 0; i < WARP_KEYS_ROW / 2; i++, row += 2) {
        dsri_cache_entry key = {first && first_key + row < n_seen ? first + row * keys.row_stride : nullptr, nullptr};
        stage_8<WORDS ? BY_WORDS : BY_ELEMENT>(&stage.words[row][word ^ (row & 1) * 4], key, 8 * word, keys.pages);
    }
}

/* Products of 16 keys with NTILES * 8 heads. */
template <int NTILES>
static __device__ __forceinline__ void multiply_keys(const key_stage &stage, const uint4 q[FEATURE_BLOCKS][NTILES],
                                                     float dots[NTILES][4])
{
    const uint32_t lane = threadIdx.x % 32, row = lane / 4, flip = (row & 1) * 4;
#pragma unroll
    for (int n = 0; n < NTILES; n++)
        dots[n][0] = dots[n][1] = dots[n][2] = dots[n][3] = 0.0f;
#pragma unroll
    for (int b = 0; b < FEATURE_BLOCKS; b++) {
        const uint32_t word = (4 * b + lane % 4) ^ flip;
        const uint4 low = stage.words[row][word], high = stage.words[row + 8][word];
        const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
        for (int n = 0; n < NTILES; n++) {
            multiply_add(dots[n], first, q[b][n].x, q[b][n].y);
            multiply_add(dots[n], second, q[b][n].z, q[b][n].w);
        }
    }
}

/* Weighted sums of a lane's heads for its two keys, then over the four lanes that share them; NaN if a dot is not
 * finite. */
template <int NTILES>
static __device__ __forceinline__ void sum_keys(const float dots[NTILES][4], const float weights[NTILES][2],
                                                float sums[2])
{
    float poison[2] = {0.0f, 0.0f};
    sums[0] = sums[1] = 0.0f;
#pragma unroll
    for (int n = 0; n < NTILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sums[i / 2] = __fmaf_rn(fmaxf(dots[n][i], 0.0f), weights[n][i % 2], sums[i / 2]);
            poison[i / 2] = __fmaf_rn(dots[n][i], 0.0f, poison[i / 2]);
        }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        sums[k] = __fadd_rn(sums[k], poison[k]);
        sums[k] = __fadd_rn(sums[k], __shfl_xor_sync(0xffffffffu, sums[k], 1));
        sums[k] = __fadd_rn(sums[k], __shfl_xor_sync(0xffffffffu, sums[k], 2));
    }
}

/* Scores of a run of tiles against heads first_head... PART: 0 all heads at once; 1 leaves partial sums in the scores;
 * 2 adds to them. */
template <int NTILES, int PART, bool WORDS>
static __device__ __forceinline__ void score_run(const indexer_run &run, int first_head, row_shared &shared)
{
    const indexer_query &at = run.at;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
    key_stage *ring = shared.ring[warp];
    const uint32_t first_key = run.first * INDEX_TILE + warp * WARP_KEYS_ROW;
    uint4 q[FEATURE_BLOCKS][NTILES];
    float weights[NTILES][2];
    for (uint32_t j = 0; j < ROW_STAGES - 1; j++) {
        if (j < run.n)
            stage_keys_row<WORDS>(at, first_key + j * INDEX_TILE, ring[j]);
        copy_async_commit();
    }
#pragma unroll
    for (int n = 0; n < NTILES; n++) {
        const uint16_t *head = at.q + (uint64_t)(first_head + 8 * n + lane / 4) * DSRI_INDEX_DIM;
#pragma unroll
        for (int b = 0; b < FEATURE_BLOCKS; b++)
            q[b][n] = load_8<WORDS>(head, 32 * b + t * 8);
        weights[n][0] = at.weights[first_head + 8 * n + 2 * t];
        weights[n][1] = at.weights[first_head + 8 * n + 2 * t + 1];
    }
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
        /* Lane t = 0 keeps key lane / 4 of the 16, lane t = 1 the one 8 further. */
        const uint32_t own = key + lane / 4 + t * 8;
        float score = t ? sums[1] : sums[0];
        if (PART == 1) {
            if (t < 2 && own < at.n_seen)
                at.scores[own] = score;
            continue;
        }
        float stored = __uint_as_float(0xff800000u);
        if (t < 2) {
            const bool is_good = own < at.n_seen && dsri_cache_at(&at.keys, own).values != nullptr;
            if (PART == 2 && own < at.n_seen)
                score = __fadd_rn(__ldcg(at.scores + own), score);
            stored = store_score(at, own, is_good, score);
        }
        if (at.maxima) {
            const uint32_t greatest = __reduce_max_sync(0xffffffffu, ordered_score(stored));
            if (lane == 0 && key < at.n_seen)
                at.maxima[key / DSRI_SCORE_BLOCK] = score_of_ordered(greatest);
        }
    }
    copy_async_wait<0>();
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
        __syncwarp();
        score_run<8, 2, WORDS>(run, 64, shared);
    }
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS, 1)
    dsr_indexer_row_bf16__cuda(const __grid_constant__ dsri_indexer_plan plan, uint8_t *zeroed)
{
    extern __shared__ uint4 shared_memory[];
    row_shared &shared = *reinterpret_cast<row_shared *>(shared_memory);
    line_up<INDEX_TILE>(plan, shared.line);
    for (indexer_piece piece = piece_of_block(shared.line); piece.next < piece.end;) {
        next_run<INDEX_TILE>(plan, shared.line, piece, shared.run);
        if (source_of(shared.run.at) == BY_WORDS)
            score_run_of<true>(plan.n_heads, shared.run, shared);
        else
            score_run_of<false>(plan.n_heads, shared.run, shared);
        if (is_last_of_query(shared.run, zeroed, shared.is_last))
            select_query<ROW_THREADS>(shared.run.at, plan.top_k, shared.select);
        __syncthreads();
    }
}
