/* How most score kernels deal their work: each block takes a piece of the line of all tiles of all queries,
 * and goes through it run by run. */
#ifndef DSRI_INDEXER_RUNS_CUH
#define DSRI_INDEXER_RUNS_CUH

#include "cuda/kernels/indexer_common.cuh"

/* A block's piece of the line: [next, end). */
struct tile_piece {
    uint32_t next, end;
};

static __device__ __forceinline__ tile_piece tiles_of_block(const dsri_indexer_plan &plan)
{
    const uint32_t n = plan.first_tile[plan.n_rows], share = n / gridDim.x, rest = n % gridDim.x;
    tile_piece piece;
    piece.next = blockIdx.x * share + min(blockIdx.x, rest);
    piece.end = piece.next + share + (blockIdx.x < rest);
    return piece;
}

/* Consecutive tiles [first, first + n) of one query. */
struct tile_run {
    indexer_query at;
    uint32_t first, n;
};

/* Takes the next run, in shared memory, off the piece. The whole block calls it, when it is done with the last run. */
static __device__ __forceinline__ void take_run(const dsri_indexer_plan &plan, tile_piece &piece, tile_run &run)
{
    if (threadIdx.x == 0) {
        uint32_t r = 0, i = 0;
#pragma unroll 1
        for (uint32_t step = DSRI_MAX_ROWS / 2; step > 0; step /= 2)
            if (r + step < plan.n_rows && plan.first_tile[r + step] <= piece.next)
                r += step;
        const dsri_indexer_row_plan &row = plan.rows[r];
        uint32_t tile = piece.next - plan.first_tile[r];
        if (row.n_queries > 1) {
            i = tile / row.n_tiles;
            tile -= i * row.n_tiles;
        }
        query_at(plan, r, i, run.at);
        run.first = tile;
        run.n = min(row.n_tiles - tile, piece.end - piece.next);
    }
    __syncthreads();
    piece.next += run.n;
}

#endif
