/* How a query of an attention plan is cut into phases and tasks. */
#ifndef DSRI_ATTENTION_TASKS_H
#define DSRI_ATTENTION_TASKS_H

#include "cpu/kernels/attention_query.h"

enum { PACK, LOGITS, SOFTMAX, VALUES, N_PHASES };

static inline uint32_t tasks_per_query(const dsri_attention_plan *plan, const dsri_attention_row_plan *row,
                                       uint32_t phase)
{
    switch (phase) {
    case PACK:
        return 1 + DSRI_HEAD_DIM / PACK_FEATURES;
    case LOGITS:
        return (row->width - 1) / logit_slots(row) + 1;
    case VALUES:
        return VALUE_TASKS;
    default:
        return plan->n_heads / DSRI_HEAD_BLOCK;
    }
}

static inline uint32_t n_attention_tasks(const void *plan_, uint32_t phase)
{
    const dsri_attention_plan *plan = plan_;
    uint32_t n = 0;
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        n += plan->rows[r].n_queries * tasks_per_query(plan, &plan->rows[r], phase);
    }
    return n;
}

/* A task of a phase: number `part` of those of a query of the row. */
typedef struct attention_task {
    const dsri_attention_row_plan *row;
    uint32_t query;
    uint32_t part;
} attention_task;

static inline attention_task find_attention_task(const dsri_attention_plan *plan, uint32_t phase, uint32_t task)
{
    const dsri_attention_row_plan *row = plan->rows;
    uint32_t per_query = tasks_per_query(plan, row, phase);
    while (task >= row->n_queries * per_query) {
        task -= row->n_queries * per_query;
        row++;
        per_query = tasks_per_query(plan, row, phase);
    }
    return (attention_task){row, task / per_query, task % per_query};
}

#endif
