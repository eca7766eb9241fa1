/* Two-pass and chunked attention, device-exact. Phases:
 *   pack     the list of selected KV rows of one query; 128 features of q, widened, heads as lanes
 *   logits   48 selected slots of one query (24 of a short list), all heads
 *   softmax  16 heads of one query: weights and denominators
 *   values   32 features of one query, all heads */
#include "cpu/cpu_kernel.h"
#include "cpu/kernels/attention_logits.h"
#include "cpu/kernels/attention_pack.h"
#include "cpu/kernels/attention_softmax.h"
#include "cpu/kernels/attention_values.h"

enum { PACK, LOGITS, SOFTMAX, VALUES, N_PHASES };

_Static_assert(sizeof(logit_scratch) <= DSRI_SCRATCH_BYTES, "scratch too small");
_Static_assert(sizeof(value_scratch) + VALUE_FEATURES * 128 * sizeof(float) <= DSRI_SCRATCH_BYTES, "scratch too small");

static uint32_t tasks_per_query(const dsri_attention_plan *plan, const dsri_attention_row_plan *row, uint32_t phase)
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

static uint32_t n_tasks(const void *plan_, uint32_t phase)
{
    const dsri_attention_plan *plan = plan_;
    uint32_t n = 0;
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        n += plan->rows[r].n_queries * tasks_per_query(plan, &plan->rows[r], phase);
    }
    return n;
}

static void run(const void *plan_, uint32_t phase, uint32_t task, void *scratch)
{
    const dsri_attention_plan *plan = plan_;
    const dsri_attention_row_plan *row = plan->rows;
    uint32_t per_query = tasks_per_query(plan, row, phase);
    while (task >= row->n_queries * per_query) {
        task -= row->n_queries * per_query;
        row++;
        per_query = tasks_per_query(plan, row, phase);
    }
    const attention_query a = attention_query_of(plan, row, task / per_query);
    const uint32_t part = task % per_query;
    const int chunked = (int)plan->chunked;
    switch (phase) {
    case PACK:
        if (part == 0) {
            select_rows(&a, chunked);
        } else {
            pack_q(&a, (part - 1) * PACK_FEATURES);
        }
        break;
    case LOGITS:
        compute_logits(&a, part, plan->scale, scratch);
        break;
    case SOFTMAX:
        compute_weights(&a, part * DSRI_HEAD_BLOCK, plan->sinks, chunked);
        break;
    case VALUES:
        compute_output(&a, part * VALUE_FEATURES, chunked, scratch);
        break;
    }
}

#define ATTENTION_KERNEL(symbol, op_, name)                                                                            \
    const dsri_cpu_kernel DSRI_KERNEL(symbol) = {                                                                      \
        .op = op_,                                                                                                     \
        .isa = DSRI_ISA_ENUM,                                                                                          \
        .exactness = DSR_EXACT_DEVICE,                                                                                 \
        .n_phases = N_PHASES,                                                                                          \
        .phase_names = {DSRI_KERNEL_NAME(name "_pack_bf16"), DSRI_KERNEL_NAME(name "_logits_bf16"),                    \
                        DSRI_KERNEL_NAME(name "_softmax_f32"), DSRI_KERNEL_NAME(name "_values_bf16")},                 \
        .n_tasks = n_tasks,                                                                                            \
        .run = run,                                                                                                    \
    }

ATTENTION_KERNEL(sparse_attention, DSRI_OP_SPARSE_ATTENTION, "sparse_attention");
ATTENTION_KERNEL(flash_attention, DSRI_OP_FLASH_ATTENTION, "flash_attention");
