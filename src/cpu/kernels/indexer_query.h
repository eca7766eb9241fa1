/* One query of an indexer plan as the kernels see it, how it is cut into tasks, and what all kernels share. */
#ifndef DSRI_INDEXER_QUERY_H
#define DSRI_INDEXER_QUERY_H

#include "cpu/cpu_kernel.h"
#include "cpu/kernels/top_k.h"
#include "ops/op_plans.h"

enum {
    MAX_HEADS = 128,
    TASK_KEYS_STEP = 32 /* what AMX kernels take at once, a multiple of DSRI_SCORE_BLOCK */
};

enum { PHASE_SCORE, PHASE_SELECT, N_PHASES };

/* One query of a row. */
typedef struct query {
    const uint16_t *q;
    const float *weights;
    uint64_t n_causal;
    float *packed_q; /* [128][n_heads] in the kernel's order */
    uint8_t *exact_q;
    float *scores;
    float *block_maxima;
    uint64_t n_blocks;
} query;

static inline uint64_t causal_keys(const dsri_indexer_row_plan *row, uint32_t i)
{
    return ((uint64_t)row->start_pos + i + 1) / row->ratio;
}

/* Room for the packed query, and for the query as bytes: 64 bytes, and 268 per head (src/cpu/kernels/exact). */
enum { PACKED_Q_BYTES = MAX_HEADS * DSRI_INDEX_DIM * sizeof(float), EXACT_Q_BYTES = 64 + MAX_HEADS * 268 };

_Static_assert(PACKED_Q_BYTES + EXACT_Q_BYTES <= DSRI_KEPT_BYTES, "room");

static inline query query_of(const dsri_indexer_plan *plan, const dsri_indexer_row_plan *row, uint32_t i,
                             dsri_kept *kept)
{
    const dsri_indexer_region region = dsri_indexer_region_of(causal_keys(row, row->n_queries - 1));
    uint8_t *base = row->workspace + i * region.size_bytes;
    query x;
    x.q = row->q + (size_t)i * plan->n_heads * DSRI_INDEX_DIM;
    x.weights = row->weights + (size_t)i * plan->n_heads;
    x.n_causal = causal_keys(row, i);
    x.packed_q = (void *)kept->bytes;
    x.exact_q = kept->bytes + PACKED_Q_BYTES;
    x.scores = row->scores ? row->scores + i * row->kv_len : (void *)(base + region.scores);
    x.block_maxima = (void *)(base + region.block_maxima);
    x.n_blocks = region.n_blocks;
    return x;
}

/* ---- tasks: one query each, and for the scores one range of keys of a query --------------------------------- */

/* Scores that each query of the row writes. */
static inline uint64_t row_scores(const dsri_indexer_row_plan *row)
{
    return row->scores ? row->kv_len : causal_keys(row, row->n_queries - 1);
}

/* A query's keys are cut into 2^task_bits() score tasks, of which the last ones may be empty: threads often come in
 * powers of two. That are up to 16 of at least 64 keys, then up to 256 of at least 128, since a task has a cost of its
 * own, and more of at least 1,024; fewer where those of 64 such rows would not stay below 2^32. */
static inline unsigned task_bits(const dsri_indexer_row_plan *row)
{
    const unsigned size = 63u - (unsigned)__builtin_clzll(row_scores(row) | 64); /* 2^size keys or more, or 64 */
    unsigned bits = size < 10 ? size - 6 : 4;
    if (size > 11) {
        bits = size < 15 ? size - 7 : size < 18 ? 8 : size - 10;
    }
    while (bits > 0 && (uint64_t)row->n_queries << bits > UINT64_C(1) << 25) {
        bits--;
    }
    return bits;
}

static inline uint64_t query_tasks(const dsri_indexer_row_plan *row, uint32_t phase)
{
    return phase == PHASE_SCORE ? UINT64_C(1) << task_bits(row) : 1;
}

static inline uint32_t n_tasks(const void *plan, uint32_t phase)
{
    const dsri_indexer_plan *p = plan;
    uint64_t n = 0;
    for (uint32_t r = 0; r < p->n_rows; r++) {
        n += p->rows[r].n_queries * query_tasks(&p->rows[r], phase);
    }
    return (uint32_t)n;
}

/* A task of a phase: number `part` of those of query `index` of the row. */
typedef struct indexer_task {
    const dsri_indexer_row_plan *row;
    uint32_t index;
    uint64_t part;
} indexer_task;

static inline indexer_task find_task(const dsri_indexer_plan *plan, uint32_t phase, uint32_t task)
{
    const dsri_indexer_row_plan *row = plan->rows;
    uint64_t left = task;
    uint64_t tasks = query_tasks(row, phase);
    while (left >= row->n_queries * tasks) {
        left -= row->n_queries * tasks;
        tasks = query_tasks(++row, phase);
    }
    return (indexer_task){row, (uint32_t)(left / tasks), left % tasks};
}

/* The keys of a score task. */
typedef struct key_range {
    uint64_t first;
    uint64_t end;
} key_range;

/* step: the keys of tasks but the last are a multiple of it; a multiple of DSRI_SCORE_BLOCK. */
static inline key_range task_keys(const indexer_task *t, uint32_t step)
{
    const unsigned bits = task_bits(t->row);
    const uint64_t end = row_scores(t->row), share = (end + (UINT64_C(1) << bits) - 1) >> bits;
    const uint64_t n = (share + step - 1) / step * step, first = t->part * n;
    return (key_range){first < end ? first : end, first + n < end ? first + n : end};
}

/* ---- the last steps of a block of scores -------------------------------------------------------------------- */

/* Scores of n keys and the maxima of 16, from sums [n_padded][VF_LANES], times units [n_padded] if these are not null.
 * From n on the scores are -inf. n_padded is a multiple of DSRI_SCORE_BLOCK. */
static inline void finish_scores(const float *sums, const float *units, uint32_t n_padded, uint32_t n, float *scores,
                                 float *maxima)
{
    for (uint32_t t = 0; t < n_padded; t += VF_LANES) {
        vf x[VF_LANES];
        VEC_UNROLL
        for (uint32_t j = 0; j < VF_LANES; j++) {
            x[j] = vf_load(sums + (t + j) * VF_LANES);
        }
        const vf sums_of_heads = vf_halving_sums(x);
        const vf sum = units ? vf_mul(sums_of_heads, vf_load(units + t)) : sums_of_heads;
        vf_store(scores + t, vf_select(vm_not_finite(sum), vf_set1(-INFINITY), sum));
    }
    for (uint32_t t = n; t < n_padded; t++) {
        scores[t] = -INFINITY;
    }
    for (uint32_t b = 0; b < n_padded / DSRI_SCORE_BLOCK; b++) {
        maxima[b] = greatest_of(scores + b * DSRI_SCORE_BLOCK, DSRI_SCORE_BLOCK);
    }
}

/* The task's list. */
static inline void select_keys(const dsri_indexer_plan *plan, const indexer_task *t, const query *x, void *scratch)
{
    select_top_k(x->scores, x->n_causal, x->block_maxima, x->n_blocks, plan->top_k, t->row->offset,
                 t->row->output + t->index * t->row->output_stride, scratch);
}

/* Runs a task of an indexer kernel, which brings its own packing of a query and scores of a task's keys. Each worker
 * packs the queries of its tasks for itself: that takes less than to fetch them from the cache of another core. */
static inline void run_indexer_task(const dsri_indexer_plan *plan, uint32_t phase, uint32_t task, void *scratch,
                                    void (*pack)(const query *x, uint32_t n_heads),
                                    void (*score)(const indexer_task *t, const query *x, uint32_t n_heads,
                                                  void *scratch))
{
    const indexer_task t = find_task(plan, phase, task);
    dsri_kept *const kept = dsri_kept_beside(scratch);
    const query x = query_of(plan, t.row, t.index, kept);

    if (phase == PHASE_SELECT) {
        select_keys(plan, &t, &x, scratch);
        return;
    }
    if (!dsri_is_kept(kept, t.row, t.index))
        pack(&x, plan->n_heads);
    score(&t, &x, plan->n_heads, scratch);
}

#endif
