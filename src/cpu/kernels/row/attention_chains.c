/* Two-pass and chunked attention on AVX512-BF16 with the device-exact bits: logits by the unit (chains.h), all else as
 * the kernel for F32 operations has it, whose phases and tasks these are. */
#include "cpu/kernels/row/row_kernel.h"

#if !DSRI_ROW_IS_AMX
#include "cpu/kernels/attention_pack.h"
#include "cpu/kernels/attention_softmax.h"
#include "cpu/kernels/attention_tasks.h"
#include "cpu/kernels/attention_values.h"
#include "cpu/kernels/row/attention_products.h"
#include "cpu/kernels/row/chains.h"

enum { PANEL_WORDS = ROW_WORDS * PANEL_HEADS };

typedef struct logit_scratch {
    const uint16_t *from[LOGIT_SLOTS];
    const uint16_t *later[LOGIT_SLOTS];
    uint32_t rows[LOGIT_SLOTS * ROW_STRIDE]; /* halves exchanged */
    int is_usable[LOGIT_SLOTS / DOT_SLOTS];  /* by the unit: rows multiplied at a time */
    float dots[2 * DOT_SLOTS * VF_LANES];    /* [half of a panel][slot][head] */
} logit_scratch;

_Static_assert(sizeof(logit_scratch) <= DSRI_SCRATCH_BYTES, "scratch too small");
_Static_assert(sizeof(value_scratch) + VALUE_FEATURES * MAX_HEADS * sizeof(float) <= DSRI_SCRATCH_BYTES,
               "scratch too small");

/* Behind the packed q, which takes half the room of a widened one: the least magnitude of each packing task. */
static uint32_t *q_magnitudes(const attention_query *a)
{
    return q_panel(a, 0) + (size_t)a->n_heads * ROW_WORDS;
}

/* Features [feature, + PACK_FEATURES) of all heads to their panels, halves exchanged. */
static void pack_q_chains(const attention_query *a, uint32_t feature)
{
    vi least = all_magnitudes();
    for (uint32_t h = 0; h < a->n_heads; h += VF_LANES) {
        uint32_t *const to = q_panel(a, h) + (size_t)feature / 2 * PANEL_HEADS;
        pack_head_pairs(a->q + (size_t)h * DSRI_HEAD_DIM + feature, DSRI_HEAD_DIM, PACK_FEATURES, PANEL_HEADS, to);
        for (uint32_t i = 0; i < PACK_FEATURES / 2 * PANEL_HEADS; i += PANEL_HEADS) {
            const vi pairs = vi_load(to + i);
            least = least_magnitudes(least, pairs);
            vi_store(to + i, exchange_halves(pairs));
        }
    }
    q_magnitudes(a)[feature / PACK_FEATURES] = least_of(least);
}

/* The least exponent that rows may have beside the packed q. */
static uint32_t least_row_exponent(const attention_query *a)
{
    uint32_t least = GREATEST_MAGNITUDE;
    for (uint32_t i = 0; i < DSRI_HEAD_DIM / PACK_FEATURES; i++) {
        least = q_magnitudes(a)[i] < least ? q_magnitudes(a)[i] : least;
    }
    return least_exponent(least);
}

/* Rows of n selected slots side by side, up to a multiple of DOT_SLOTS the last one again, and a prefetch of the next
 * task's rows. */
static void take_rows(const attention_query *a, size_t first, uint32_t n_own, logit_scratch *scratch)
{
    const uint32_t n = (n_own + DOT_SLOTS - 1) / DOT_SLOTS * DOT_SLOTS;
    const uint32_t exponent = least_row_exponent(a);
    vi least = all_magnitudes();
    find_rows(a, first, n, scratch->from);
    find_rows(a, first + logit_slots(a->row), n, scratch->later);
    for (uint32_t s = 0; s < n; s++) {
        if (rows_are_packed(a) && s < n_own) {
            decode_slot(a, first + s);
        }
        for (size_t i = 0; i < ROW_WORDS; i += VF_LANES) {
            const vi pairs = vi_load_pairs(scratch->from[s] + 2 * i);
            vec_prefetch_to_l2(scratch->later[s] + 2 * i);
            least = least_magnitudes(least, pairs);
            vi_store(scratch->rows + s * ROW_STRIDE + i, exchange_halves(pairs));
        }
        if (s % DOT_SLOTS == DOT_SLOTS - 1) {
            scratch->is_usable[s / DOT_SLOTS] = have_exponent(least, exponent);
            least = all_magnitudes();
        }
    }
}

/* What multiply_panel does, by F32 operations. */
static __attribute__((noinline)) void multiply_panel_f32(const uint32_t *rows, const uint32_t *panel, float *dots)
{
    for (int i = 0; i < 2 * DOT_SLOTS; i++, dots += VF_LANES) {
        const uint32_t *row = rows + i % DOT_SLOTS * ROW_STRIDE, *q = panel + i / DOT_SLOTS * VF_LANES;
        vf chain = vf_zero();
        for (int f = 0; f < ROW_WORDS; f++, q += PANEL_HEADS) {
            vf q_even, q_odd, row_even, row_odd;
            vf_from_exchanged(vi_load(q), &q_even, &q_odd);
            vf_from_exchanged(vi_set1(row[f]), &row_even, &row_odd);
            chain = vf_fma(q_odd, row_odd, vf_fma(q_even, row_even, chain));
        }
        vf_store(dots, chain);
    }
}

static void store_logits(const attention_query *a, uint32_t head, size_t slot, uint32_t n, const float *dots, vf scale)
{
    float *to = weight_at(a, head, slot);
    for (uint32_t s = 0; s < n; s++) {
        vf_store(to + s * DSRI_HEAD_BLOCK, vf_mul(vf_load(dots + s * VF_LANES), scale));
    }
}

/* Logits of a task's selected slots, as far as there are any. */
static void compute_logits(const attention_query *a, uint32_t task, float scale, logit_scratch *scratch)
{
    const uint32_t task_slots = logit_slots(a->row);
    const size_t first = (size_t)task * task_slots, end = n_selected(a);
    if (first >= end) {
        return;
    }
    const uint32_t n = (uint32_t)(end - first < task_slots ? end - first : task_slots);
    take_rows(a, first, n, scratch);
    for (uint32_t h = 0; h < a->n_heads; h += PANEL_HEADS) {
        for (uint32_t s = 0; s < n; s += DOT_SLOTS) {
            const uint32_t n_here = n - s < DOT_SLOTS ? n - s : DOT_SLOTS;
            const int is_usable = scratch->is_usable[s / DOT_SLOTS];
            (is_usable ? multiply_panel : multiply_panel_f32)(scratch->rows + s * ROW_STRIDE, q_panel(a, h),
                                                              scratch->dots);
            store_logits(a, h, first + s, n_here, scratch->dots, vf_set1(scale));
            store_logits(a, h + VF_LANES, first + s, n_here, scratch->dots + DOT_SLOTS * VF_LANES, vf_set1(scale));
        }
    }
}

static void run(const void *plan_, uint32_t phase, uint32_t task, void *scratch)
{
    const dsri_attention_plan *plan = plan_;
    const attention_task t = find_attention_task(plan, phase, task);
    const attention_query a = attention_query_of(plan, t.row, t.query);
    const int chunked = (int)plan->chunked;
    switch (phase) {
    case PACK:
        if (t.part == 0) {
            select_rows(&a, chunked);
        } else {
            pack_q_chains(&a, (t.part - 1) * PACK_FEATURES);
        }
        break;
    case LOGITS:
        compute_logits(&a, t.part, plan->scale, scratch);
        break;
    case SOFTMAX:
        compute_weights(&a, t.part * DSRI_HEAD_BLOCK, plan->sinks, chunked);
        break;
    case VALUES:
        compute_output(&a, t.part * VALUE_FEATURES, chunked, scratch);
        break;
    }
}

static int accepts(const void *plan)
{
    (void)plan;
    return chains_are_in_order();
}

#define ATTENTION_KERNEL(symbol, op_, name)                                                                            \
    const dsri_cpu_kernel DSRI_ROW_KERNEL(symbol) = {                                                                  \
        .op = op_,                                                                                                     \
        .isa = DSR_ISA_AVX512,                                                                                         \
        .exactness = DSR_EXACT_DEVICE,                                                                                 \
        .n_phases = N_PHASES,                                                                                          \
        .phase_names = {DSRI_ROW_KERNEL_NAME(name "_chains_pack_bf16"),                                                \
                        DSRI_ROW_KERNEL_NAME(name "_chains_logits_bf16"),                                              \
                        DSRI_ROW_KERNEL_NAME(name "_chains_softmax_f32"),                                              \
                        DSRI_ROW_KERNEL_NAME(name "_chains_values_bf16")},                                             \
        .n_tasks = n_attention_tasks,                                                                                  \
        .run = run,                                                                                                    \
        .accepts = accepts,                                                                                            \
    }

ATTENTION_KERNEL(sparse_attention_chains, DSRI_OP_SPARSE_ATTENTION, "sparse_attention");
ATTENTION_KERNEL(flash_attention_chains, DSRI_OP_FLASH_ATTENTION, "flash_attention");

#endif
