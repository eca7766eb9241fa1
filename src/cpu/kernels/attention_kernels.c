/* Two-pass and chunked attention, device-exact. Phases:
 *   pack     the list of selected KV rows of one query; 128 features of q, widened, heads as lanes
 *   logits   48 selected slots of one query (24 of a short list), all heads
 *   softmax  16 heads of one query: weights and denominators
 *   values   32 features of one query, all heads */
#include "cpu/cpu_kernel.h"
#include "cpu/kernels/attention_logits.h"
#include "cpu/kernels/attention_pack.h"
#include "cpu/kernels/attention_softmax.h"
#include "cpu/kernels/attention_tasks.h"
#include "cpu/kernels/attention_values.h"

_Static_assert(sizeof(logit_scratch) <= DSRI_SCRATCH_BYTES, "scratch too small");
_Static_assert(sizeof(value_scratch) + VALUE_FEATURES * 128 * sizeof(float) <= DSRI_SCRATCH_BYTES, "scratch too small");

static void run(const void *plan_, uint32_t phase, uint32_t task, void *scratch)
{
    const dsri_attention_plan *plan = plan_;
    const attention_task t = find_attention_task(plan, phase, task);
    const attention_query a = attention_query_of(plan, t.row, t.query);
    const uint32_t part = t.part;
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
        .n_tasks = n_attention_tasks,                                                                                  \
        .run = run,                                                                                                    \
    }

ATTENTION_KERNEL(sparse_attention, DSRI_OP_SPARSE_ATTENTION, "sparse_attention");
ATTENTION_KERNEL(flash_attention, DSRI_OP_FLASH_ATTENTION, "flash_attention");
