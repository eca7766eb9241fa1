/* Lightning indexer on BF16 units. Tasks and selection are those of the kernel for F32 operations. On AVX512-BF16 the
 * bits are the device-exact ones. On AMX, of a key, lane l of its sums takes every 16th head from l on; the lanes are
 * then added by halving. */
#include "cpu/kernels/row/row_kernel.h"
#if DSRI_ROW_IS_AMX
#include "cpu/kernels/row/indexer_tiles.h"
#else
#include "cpu/kernels/indexer_fallback.h"
#include "cpu/kernels/row/indexer_chains.h"
#endif

_Static_assert(sizeof(score_scratch) <= DSRI_SCRATCH_BYTES, "scratch");

#if DSRI_ROW_IS_AMX

#define SCORES_EXACTNESS DSR_EXACT_ROW

static int scores_are_usable(void)
{
    return 1;
}

/* [panel][feature pair][head of the panel], a word per pair: keys are multiplied as they lie in the cache. */
static void pack_query(const query *x, uint32_t n_heads)
{
    const uint32_t width = panel_heads(n_heads);
    for (uint32_t h = 0; h < n_heads; h += VF_LANES) {
        pack_head_pairs(x->q + (size_t)h * DSRI_INDEX_DIM, DSRI_INDEX_DIM, DSRI_INDEX_DIM, width,
                        query_panel(x, n_heads, h));
    }
}

#endif

/* Scores of a range of keys of a query: -inf from n_causal on. */
static void score_keys(const dsri_indexer_row_plan *row, const query *x, uint32_t n_heads, key_range keys,
                       score_scratch *s)
{
    const uint64_t end_causal = keys.end < x->n_causal ? keys.end : x->n_causal;
    if (keys.first < end_causal) {
        score_seen_keys(row, x, n_heads, (key_range){keys.first, end_causal}, s);
    }
    for (uint64_t t = keys.first < end_causal ? end_causal : keys.first; t < keys.end; t++) {
        x->scores[t] = -INFINITY;
    }
}

#if !DSRI_ROW_IS_AMX

_Static_assert(sizeof(score_scratch) <= FALLBACK_SCRATCH_BYTES, "scratch");

static void score_as_fallback(const dsri_indexer_row_plan *row, const query *x, uint32_t n_heads, uint64_t first,
                              uint64_t end, void *scratch)
{
    score_keys(row, x, n_heads, (key_range){first, end}, scratch);
}

const indexer_fallback dsri_indexer_fallback__avx512bf16 = {pack_query, score_as_fallback, scores_are_usable};

#endif

static void score_task(const indexer_task *t, const query *x, uint32_t n_heads, void *scratch)
{
#if DSRI_ROW_IS_AMX
    tiles_open();
    score_keys(t->row, x, n_heads, task_keys(t, TASK_KEYS_STEP), scratch);
    tiles_close();
#else
    score_keys(t->row, x, n_heads, task_keys(t, TASK_KEYS_STEP), scratch);
#endif
}

static void run(const void *plan, uint32_t phase, uint32_t task, void *scratch)
{
    run_indexer_task(plan, phase, task, scratch, pack_query, score_task);
}

static int accepts(const void *plan)
{
    (void)plan;
    return scores_are_usable();
}

const dsri_cpu_kernel DSRI_ROW_KERNEL(indexer) = {
    .op = DSRI_OP_INDEXER,
    .isa = DSR_ISA_AVX512,
    .exactness = SCORES_EXACTNESS,
    .n_phases = N_PHASES,
    .phase_names = {DSRI_ROW_KERNEL_NAME("indexer_scores_bf16"), DSRI_ROW_KERNEL_NAME("indexer_top_k_f32")},
    .n_tasks = n_tasks,
    .run = run,
    .accepts = accepts,
};
