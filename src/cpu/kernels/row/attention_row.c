/* Attention, row-exact: BF16 products in hardware. Both forms are computed alike, since any order of the sums will do
 * here: one maximum over all selected slots, no chunks. Phases and tasks are those of the device-exact kernel, and
 * selection and the scan of the logits are shared with it.
 *
 * Weights are rounded to BF16, and the denominator is the sum of the rounded ones. */
#include "cpu/kernels/attention_pack.h"
#include "cpu/kernels/attention_softmax.h"
#include "cpu/kernels/attention_tasks.h"
#include "cpu/kernels/row/row_kernel.h"
#if DSRI_ROW_IS_AMX
#include "cpu/kernels/row/attention_tiles.h"
#else
#include "cpu/kernels/row/attention_dots.h"
#endif

#include <string.h>

_Static_assert(sizeof(logit_scratch) <= DSRI_SCRATCH_BYTES && sizeof(value_scratch) <= DSRI_SCRATCH_BYTES, "scratch");

static void pack_q_pairs(const attention_query *a, uint32_t feature)
{
    for (uint32_t h = 0; h < a->n_heads; h += VF_LANES) {
        pack_head_pairs(a->q + (size_t)h * DSRI_HEAD_DIM + feature, DSRI_HEAD_DIM, PACK_FEATURES, PANEL_HEADS,
                        q_panel(a, h) + (size_t)feature / 2 * PANEL_HEADS);
    }
}

/* Logits of a task's selected slots, as far as there are any. */
static void compute_logits(const attention_query *a, uint32_t task, float scale, logit_scratch *scratch)
{
    const uint32_t task_slots = logit_slots(a->row);
    const size_t first = (size_t)task * task_slots, end = n_selected(a);
    if (first < end) {
        const uint32_t n = (uint32_t)(end - first < task_slots ? end - first : task_slots);
        if (rows_are_packed(a)) {
            decode_rows(a, first, n);
        }
        multiply_slots(a, first, n, vf_set1(scale), scratch);
    }
}

static inline vi exponentiate_slot(const float *logits, size_t slot, size_t n, vf max, vf *sum)
{
    if (slot >= n) {
        return vi_set1(0);
    }
    const vi weight = round_to_upper(v_exp(vf_sub(vf_load(logits + slot * DSRI_HEAD_BLOCK), max)));
    *sum = vf_add(*sum, vf_from_bits(weight));
    return weight;
}

/* Logits of n slots to tiles of weights; adds these to sum in order. */
static inline void exponentiate_groups(const float *logits, size_t n, vf max, uint32_t *tiles, vf *sum)
{
    for (size_t s = 0; s < n; s += GROUP_SLOTS, tiles += TILE_WORDS) {
        vi pairs[GROUP_PAIRS];
        for (size_t i = 0; i < GROUP_PAIRS; i++) {
            const vi even = exponentiate_slot(logits, s + 2 * i, n, max, sum);
            const vi odd = exponentiate_slot(logits, s + 2 * i + 1, n, max, sum);
            pairs[i] = vi_or(vi_shr(even, 16), odd);
        }
        vi_transpose(pairs);
        VEC_UNROLL
        for (int h = 0; h < DSRI_HEAD_BLOCK; h++) {
            vi_store(tiles + h * GROUP_PAIRS, pairs[h]);
        }
    }
}

/* Weights of heads [head, + DSRI_HEAD_BLOCK), and in the place of the denominators their reciprocals. */
static void compute_row_weights(const attention_query *a, uint32_t head, const float *sinks)
{
    const vf zero_output = vf_set1(NAN), sink = vf_load(sinks + head);
    block_softmax s = {.max = {sink}, .bad = {vm_not_finite(sink)}};
    vf sum = zero_output;
    if (n_selected(a) > 0) {
        const float *logits = weight_at(a, head, 0);
        scan_logits(&s, logits, n_selected(a));
        sum = v_exp(vf_sub(sink, s.max[0]));
        exponentiate_groups(logits, n_selected(a), s.max[0], weight_tiles(a, head), &sum);
    }
    vf_store(a->denominators + head, vf_select(s.bad[0], zero_output, vf_div(vf_set1(1.0f), sum)));
}

/* Output features [feature, + VALUE_FEATURES) of all heads. */
static void compute_row_output(const attention_query *a, uint32_t feature, value_scratch *scratch)
{
    if (n_selected(a) > 0) {
        add_all_values(a, feature, scratch);
    } else {
        memset(scratch->numerators, 0, a->n_heads * sizeof scratch->numerators[0]);
    }
    for (uint32_t h = 0; h < a->n_heads; h++) {
        const vf factor = vf_set1(a->denominators[h]);
        store_rounded(a->output + (size_t)h * DSRI_HEAD_DIM + feature,
                      finite_output(vf_mul(vf_load(scratch->numerators[h]), factor)),
                      finite_output(vf_mul(vf_load(scratch->numerators[h] + VF_LANES), factor)));
    }
}

/* ---- kernel ------------------------------------------------------------------------------------------------- */

static void run(const void *plan_, uint32_t phase, uint32_t task, void *scratch)
{
    const dsri_attention_plan *plan = plan_;
    const attention_task t = find_attention_task(plan, phase, task);
    const attention_query a = attention_query_of(plan, t.row, t.query);
#if DSRI_ROW_IS_AMX
    if (phase == LOGITS || phase == VALUES) {
        tiles_open();
    }
#endif
    switch (phase) {
    case PACK:
        if (t.part == 0) {
            select_rows(&a, 0);
        } else {
            pack_q_pairs(&a, (t.part - 1) * PACK_FEATURES);
        }
        break;
    case LOGITS:
        compute_logits(&a, t.part, plan->scale, scratch);
        break;
    case SOFTMAX:
        compute_row_weights(&a, t.part * DSRI_HEAD_BLOCK, plan->sinks);
        break;
    case VALUES:
        compute_row_output(&a, t.part * VALUE_FEATURES, scratch);
        break;
    }
#if DSRI_ROW_IS_AMX
    if (phase == LOGITS || phase == VALUES) {
        tiles_close();
    }
#endif
}

#define ATTENTION_KERNEL(symbol, op_, name)                                                                            \
    const dsri_cpu_kernel DSRI_ROW_KERNEL(symbol) = {                                                                  \
        .op = op_,                                                                                                     \
        .isa = DSR_ISA_AVX512,                                                                                         \
        .exactness = DSR_EXACT_ROW,                                                                                    \
        .n_phases = N_PHASES,                                                                                          \
        .phase_names = {DSRI_ROW_KERNEL_NAME(name "_pack_bf16"), DSRI_ROW_KERNEL_NAME(name "_logits_bf16"),            \
                        DSRI_ROW_KERNEL_NAME(name "_softmax_f32"), DSRI_ROW_KERNEL_NAME(name "_values_bf16")},         \
        .n_tasks = n_attention_tasks,                                                                                  \
        .run = run,                                                                                                    \
    }

ATTENTION_KERNEL(sparse_attention, DSRI_OP_SPARSE_ATTENTION, "sparse_attention");
ATTENTION_KERNEL(flash_attention, DSRI_OP_FLASH_ATTENTION, "flash_attention");
