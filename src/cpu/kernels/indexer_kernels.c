/* Lightning indexer, device-exact: score the keys, select. */
#include "cpu/cpu_kernel.h"
#include "cpu/kernels/indexer_chain.h"

static void score_task(const indexer_task *t, const query *x, uint32_t n_heads, void *scratch)
{
    const key_range keys = task_keys(t, TASK_KEYS_STEP);
    score_keys(t->row, x, n_heads, keys.first, keys.end, scratch);
}

static void run(const void *plan, uint32_t phase, uint32_t task, void *scratch)
{
    run_indexer_task(plan, phase, task, scratch, pack_query, score_task);
}

const dsri_cpu_kernel DSRI_KERNEL(indexer) = {
    .op = DSRI_OP_INDEXER,
    .isa = DSRI_ISA_ENUM,
    .exactness = DSR_EXACT_DEVICE,
    .n_phases = N_PHASES,
    .phase_names = {DSRI_KERNEL_NAME("indexer_scores_bf16"), DSRI_KERNEL_NAME("indexer_top_k_f32")},
    .n_tasks = n_tasks,
    .run = run,
};
