/* Top-k as a launch of its own, one block a query. */
#include "cuda/kernels/indexer_select.cuh"

enum { SELECT_THREADS = 1024 };

extern "C" __global__ void __launch_bounds__(SELECT_THREADS)
    dsr_indexer_select_f32__cuda(const __grid_constant__ dsri_indexer_plan plan, uint8_t *)
{
    extern __shared__ uint4 shared_memory[];
    select_shared &shared = *reinterpret_cast<select_shared *>(shared_memory);
    let_next_launch_start();
    indexer_query at;
    find_query(plan, blockIdx.x, at);
    prepare_select<SELECT_THREADS>(shared);
    __syncthreads();
    wait_for_prior_launch();
    select_query<SELECT_THREADS>(at, plan.top_k, shared);
}
