/* Attention, row-exact: BF16 products in hardware. Both forms are computed alike, since any order of the sums will do
 * here: one maximum over all selected slots, no chunks. Phases and tasks are those of the device-exact kernel, and
 * selection is shared with it.
 *
 * Weights come from a short polynomial and are rounded to BF16; the denominator is the sum of the rounded ones. */
#include "cpu/kernels/attention_pack.h"
#include "cpu/kernels/attention_tasks.h"
#include "cpu/kernels/row/row_kernel.h"
#if DSRI_ROW_IS_AMX
#include "cpu/kernels/row/attention_tiles.h"
#else
#include "cpu/kernels/row/attention_dots.h"
#endif

#include <math.h>
#include <string.h>

_Static_assert(sizeof(logit_scratch) <= DSRI_SCRATCH_BYTES && sizeof(value_scratch) <= DSRI_SCRATCH_BYTES, "scratch");

static void pack_q_pairs(const attention_query *a, uint32_t feature)
{
    for (uint32_t h = 0; h < a->n_heads; h += VF_LANES) {
        pack_head_pairs(a->q + (size_t)h * DSRI_HEAD_DIM + feature, DSRI_HEAD_DIM, PACK_FEATURES, PANEL_HEADS,
                        q_panel(a, h) + (size_t)feature / 2 * PANEL_HEADS);
    }
}

/* Products of q with a task's selected slots, as far as there are any: the logits before they are scaled. */
static void compute_logits(const attention_query *a, uint32_t task, logit_scratch *scratch)
{
    const uint32_t task_slots = logit_slots(a->row);
    const size_t first = (size_t)task * task_slots, end = n_selected(a);
    if (first < end) {
        const uint32_t n = (uint32_t)(end - first < task_slots ? end - first : task_slots);
        multiply_slots(a, first, n, scratch);
    }
}

/* Logits of a block of heads as powers of two: 2^(product * scale + offset) is exp(logit - greatest logit). */
typedef struct block_powers {
    vf scale;
    vf offset;
} block_powers;

/* 2^(x * scale + offset) with an error of 2^-13, far below that of the rounding that follows; 0 below 2^-125. */
static inline vf power_of(vf x, block_powers b)
{
    /* Adding 1.5 * 2^23 rounds to an integer n and leaves n in the low bits of the sum. */
    const vf magic = vf_set1(12582912.0f);
    const vf y = vf_fma(x, b.scale, b.offset);
    const vf t = vf_add(y, magic);
    const vf r = vf_sub(y, vf_sub(t, magic));
    vf p = vf_fma(vf_set1(0x1.c3f764p-5f), r, vf_set1(0x1.f0de20p-3f));
    p = vf_fma(p, r, vf_set1(0x1.62f31ap-1f));
    p = vf_fma(p, r, vf_set1(0x1.fff692p-1f));
    const vf power = vf_from_bits(vi_add(vf_bits(p), vi_shl(vf_bits(t), 23)));
    return vf_select(vm_lt(y, vf_set1(-125.5f)), vf_zero(), power);
}

/* The greatest logit of n slots and of `max`, and where one is not finite. */
static vf greatest_logit(const float *products, size_t n, vf scale, vf max, vm *bad)
{
    enum { CHAINS = 4 };
    vf most[CHAINS] = {max, max, max, max}, zeros[CHAINS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    for (size_t i = 0; i < n; i += CHAINS) {
        VEC_UNROLL
        for (size_t c = 0; c < CHAINS; c++) {
            const size_t slot = i + c < n ? i + c : n - 1;
            const vf logit = vf_mul(vf_load(products + slot * DSRI_HEAD_BLOCK), scale);
            most[c] = vf_max(logit, most[c]);
            zeros[c] = vf_fma(logit, vf_zero(), zeros[c]); /* NaN for infinity and NaN */
        }
    }
    *bad = vm_not_finite(vf_add(vf_add(zeros[0], zeros[1]), vf_add(zeros[2], zeros[3])));
    return vf_max(vf_max(most[0], most[1]), vf_max(most[2], most[3]));
}

/* A weight rounded to BF16, in the upper half. */
static inline vi weigh(const float *product, block_powers b, vf *sum)
{
    const vi rounded = vi_add(vf_bits(power_of(vf_load(product), b)), vi_set1(0x8000));
    const vi weight = vi_and(rounded, vi_set1(0xffff0000u));
    *sum = vf_add(*sum, vf_from_bits(weight));
    return weight;
}

/* Products of the first n slots of a group to its tile of weights; adds these to sum in order. */
static inline __attribute__((always_inline)) void weigh_group(const float *products, size_t n, block_powers b,
                                                              uint32_t *tile, vf *sum)
{
    vi pairs[GROUP_PAIRS];
    VEC_UNROLL
    for (size_t i = 0; i < GROUP_PAIRS; i++) {
        const float *product = products + 2 * i * DSRI_HEAD_BLOCK;
        const vi even = 2 * i < n ? weigh(product, b, sum) : vi_set1(0);
        const vi odd = 2 * i + 1 < n ? weigh(product + DSRI_HEAD_BLOCK, b, sum) : vi_set1(0);
        pairs[i] = vi_or(vi_shr(even, 16), odd);
    }
    vi_transpose(pairs);
    VEC_UNROLL
    for (int h = 0; h < DSRI_HEAD_BLOCK; h++) {
        vi_store(tile + h * GROUP_PAIRS, pairs[h]);
    }
}

static inline void weigh_groups(const float *products, size_t n, block_powers b, uint32_t *tiles, vf *sum)
{
    for (; n >= GROUP_SLOTS; n -= GROUP_SLOTS, products += GROUP_SLOTS * DSRI_HEAD_BLOCK, tiles += TILE_WORDS) {
        weigh_group(products, GROUP_SLOTS, b, tiles, sum);
    }
    if (n > 0) {
        weigh_group(products, n, b, tiles, sum);
    }
}

/* Weights of heads [head, + DSRI_HEAD_BLOCK), and in the place of the denominators their reciprocals. */
static void compute_row_weights(const attention_query *a, uint32_t head, const dsri_attention_plan *plan)
{
    const vf log2_e = vf_set1(0x1.715476p+0f), scale = vf_set1(plan->scale), zero_output = vf_set1(NAN);
    const vf sink = vf_load(plan->sinks + head);
    vm bad = vm_not_finite(sink);
    vf sum = zero_output;
    if (n_selected(a) > 0) {
        const float *products = weight_at(a, head, 0);
        vm bad_logit;
        const vf greatest = greatest_logit(products, n_selected(a), scale, sink, &bad_logit);
        const vf offset = vf_mul(greatest, vf_set1(-0x1.715476p+0f));
        bad = vm_or(bad, bad_logit);
        sum = power_of(sink, (block_powers){log2_e, offset});
        weigh_groups(products, n_selected(a), (block_powers){vf_mul(scale, log2_e), offset}, weight_tiles(a, head),
                     &sum);
    }
    vf_store(a->denominators + head, vf_select(bad, zero_output, vf_div(vf_set1(1.0f), sum)));
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
        compute_logits(&a, t.part, scratch);
        break;
    case SOFTMAX:
        compute_row_weights(&a, t.part * DSRI_HEAD_BLOCK, plan);
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
