/* Lightning indexer, device-exact: pack the queries, score the keys, select. */
#include "cpu/cpu_kernel.h"
#include "cpu/kernels/indexer_chain.h"

static void run(const void *plan, uint32_t phase, uint32_t task, void *scratch)
{
    const dsri_indexer_plan *p = plan;
    const indexer_task t = find_task(p, phase, task);
    const query x = query_of(p, t.row, t.index);

    if (phase == PHASE_PACK) {
        pack_query(&x, p->n_heads);
    } else if (phase == PHASE_SCORE) {
        const key_range keys = task_keys(&t);
        score_keys(t.row, &x, p->n_heads, keys.first, keys.end, scratch);
    } else {
        select_keys(p, &t, &x, scratch);
    }
}

const dsri_cpu_kernel DSRI_KERNEL(indexer) = {
    .op = DSRI_OP_INDEXER,
    .isa = DSRI_ISA_ENUM,
    .exactness = DSR_EXACT_DEVICE,
    .n_phases = N_PHASES,
    .phase_names = {DSRI_KERNEL_NAME("indexer_pack_bf16"), DSRI_KERNEL_NAME("indexer_scores_bf16"),
                    DSRI_KERNEL_NAME("indexer_top_k_f32")},
    .n_tasks = n_tasks,
    .run = run,
};
