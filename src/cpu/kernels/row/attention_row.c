/* Attention, row-exact: BF16 products in hardware. Both forms are computed alike, since any order of the sums will do
 * here: one maximum over all selected slots, no chunks. Phases and tasks are those of the device-exact kernel, and
 * selection and the scan of the logits are shared with it.
 *
 * Weights are rounded to BF16, and the denominator is the sum of the rounded ones. */
#include "cpu/kernels/attention_pack.h"
#include "cpu/kernels/attention_softmax.h"
#include "cpu/kernels/attention_tasks.h"
#include "cpu/kernels/row/pairs.h"
#include "cpu/kernels/row/row_kernel.h"
#if DSRI_ROW_IS_AMX
#include "cpu/kernels/row/tiles.h"
#else
#include "cpu/kernels/row/dots_avx512bf16.h"
#endif

#include <string.h>

enum {
    GROUP_SLOTS = 32, /* slots of a tile of weights */
    GROUP_PAIRS = GROUP_SLOTS / 2,
    TILE_WORDS = GROUP_PAIRS * DSRI_HEAD_BLOCK,
    DOT_SLOTS = DSRI_ROW_IS_AMX ? 16 : 12, /* slots multiplied at a time; LOGIT_SLOTS is a multiple */
    ROW_WORDS = DSRI_HEAD_DIM / 2,
    ROW_STRIDE = ROW_WORDS + 16, /* words between the rows of a task: spreads them over the cache's sets */
    PASS_GROUPS = DSRI_ROW_IS_AMX ? 16 : 4,
    MAX_HEADS = 128
};

_Static_assert(LOGIT_SLOTS % DOT_SLOTS == 0 && LOGIT_SLOTS <= 48, "three tiles of slots");

typedef struct logit_scratch {
    uint32_t rows[LOGIT_SLOTS * ROW_STRIDE];
    float dots[2 * LOGIT_SLOTS * VF_LANES]; /* [half of a panel][slot][head] */
} logit_scratch;

typedef struct value_scratch {
    uint32_t values[PASS_GROUPS * GROUP_PAIRS][VALUE_FEATURES]; /* pairs of slots */
    float numerators[MAX_HEADS][VALUE_FEATURES];
} value_scratch;

_Static_assert(sizeof(logit_scratch) <= DSRI_SCRATCH_BYTES && sizeof(value_scratch) <= DSRI_SCRATCH_BYTES, "scratch");

/* ---- pack --------------------------------------------------------------------------------------------------- */

/* Panels of q: [512 / 2][PANEL_HEADS], a word per pair of features. */
static inline uint32_t *q_panel(const attention_query *a, uint32_t head)
{
    return (uint32_t *)(void *)a->q_panels + (size_t)(head / PANEL_HEADS) * ROW_WORDS * PANEL_HEADS +
           head % PANEL_HEADS;
}

static void pack_q_pairs(const attention_query *a, uint32_t feature)
{
    for (uint32_t h = 0; h < a->n_heads; h += VF_LANES) {
        pack_head_pairs(a->q + (size_t)h * DSRI_HEAD_DIM + feature, DSRI_HEAD_DIM, PACK_FEATURES, PANEL_HEADS,
                        q_panel(a, h) + (size_t)feature / 2 * PANEL_HEADS);
    }
}

/* ---- logits ------------------------------------------------------------------------------------------------- */

#if DSRI_ROW_IS_AMX

/* dots [2][LOGIT_SLOTS][16]: products of n_tiles * 16 rows with the heads of a panel; other slots are undefined. */
static inline __attribute__((always_inline)) void panel_products(int n_tiles, const uint32_t *rows,
                                                                 const uint32_t *panel, float *dots)
{
    for (int half = 0; half < 2; half++, panel += VF_LANES, dots += LOGIT_SLOTS * VF_LANES) {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        for (int i = 0; i < ROW_WORDS / TILE_ROWS; i++) {
            const uint32_t *row = rows + i * TILE_ROWS;
            tile_load(6, panel + i * TILE_ROWS * PANEL_HEADS, PANEL_HEADS * sizeof *panel);
            tile_load(3, row, ROW_STRIDE * sizeof *row);
            tile_dots(0, 3, 6);
            if (n_tiles > 1) {
                tile_load(4, row + TILE_ROWS * ROW_STRIDE, ROW_STRIDE * sizeof *row);
                tile_dots(1, 4, 6);
            }
            if (n_tiles > 2) {
                tile_load(5, row + 2 * TILE_ROWS * ROW_STRIDE, ROW_STRIDE * sizeof *row);
                tile_dots(2, 5, 6);
            }
        }
        tile_store(0, dots, TILE_ROW_BYTES);
        tile_store(1, dots + TILE_ROWS * VF_LANES, TILE_ROW_BYTES);
        tile_store(2, dots + 2 * TILE_ROWS * VF_LANES, TILE_ROW_BYTES);
    }
}

static void multiply_panel(const uint32_t *rows, uint32_t n_slots, const uint32_t *panel, float *dots)
{
    if (n_slots > 2 * TILE_ROWS) {
        panel_products(3, rows, panel, dots);
    } else if (n_slots > TILE_ROWS) {
        panel_products(2, rows, panel, dots);
    } else {
        panel_products(1, rows, panel, dots);
    }
}

#else

static void multiply_panel(const uint32_t *rows, uint32_t n_slots, const uint32_t *panel, float *dots)
{
    for (uint32_t s = 0; s < n_slots; s += DOT_SLOTS, rows += DOT_SLOTS * ROW_STRIDE, dots += DOT_SLOTS * VF_LANES) {
        vf acc[MAX_DOT_ACCUMULATORS];
        VEC_UNROLL
        for (int i = 0; i < MAX_DOT_ACCUMULATORS; i++) {
            acc[i] = vf_zero();
        }
        add_dots(DOT_SLOTS, 2, rows, ROW_STRIDE, panel, PANEL_HEADS, ROW_WORDS, acc);
        VEC_UNROLL
        for (int i = 0; i < DOT_SLOTS; i++) {
            vf_store(dots + i * VF_LANES, acc[2 * i]);
            vf_store(dots + (LOGIT_SLOTS + i) * VF_LANES, acc[2 * i + 1]);
        }
    }
}

#endif

/* Selected rows from slot `first` on, where there are any. */
static void prefetch_rows(const attention_query *a, size_t first, size_t n)
{
    for (size_t s = first; s < first + n && s < n_selected(a); s++) {
        for (int f = 0; f < DSRI_HEAD_DIM; f += 32) {
            vec_prefetch(kv_row(a, s) + f);
        }
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
    const uint32_t n_slots = (uint32_t)(end - first < task_slots ? end - first : task_slots);
    const vf scales = vf_set1(scale);
    const uint32_t n_rows = (n_slots + DOT_SLOTS - 1) / DOT_SLOTS * DOT_SLOTS;
    for (uint32_t s = 0; s < n_rows; s++) {
        const uint32_t slot = s < n_slots ? s : n_slots - 1;
        memcpy(scratch->rows + s * ROW_STRIDE, kv_row(a, first + slot), ROW_WORDS * sizeof(uint32_t));
    }
    for (uint32_t h = 0; h < a->n_heads; h += PANEL_HEADS) {
        const size_t share = task_slots * PANEL_HEADS / a->n_heads;
        prefetch_rows(a, first + task_slots + h / PANEL_HEADS * share, share);
        multiply_panel(scratch->rows, n_slots, q_panel(a, h), scratch->dots);
        for (uint32_t half = 0; half < 2; half++) {
            const float *dots = scratch->dots + half * LOGIT_SLOTS * VF_LANES;
            float *to = weight_at(a, h + half * VF_LANES, first);
            for (uint32_t s = 0; s < n_slots; s++) {
                vf_store(to + s * DSRI_HEAD_BLOCK, vf_mul(vf_load(dots + s * VF_LANES), scales));
            }
        }
    }
}

/* ---- softmax ------------------------------------------------------------------------------------------------ */

static inline size_t n_groups(const attention_query *a)
{
    return (n_selected(a) + GROUP_SLOTS - 1) / GROUP_SLOTS;
}

/* Tiles of weights of a block of heads, [group][head][pair of slots]: half the size of the logits whose place they
 * take, but for a list too short for one tile. That one takes the place of q. */
static inline uint32_t *weight_tiles(const attention_query *a, uint32_t head)
{
    return n_selected(a) < GROUP_SLOTS ? (uint32_t *)(void *)(a->q_panels + (size_t)head * TILE_WORDS)
                                       : (uint32_t *)(void *)weight_at(a, head, 0);
}

/* x >= 0 rounded to BF16, in the upper half. */
static inline vi round_weight(vf x)
{
    const vi b = vf_bits(x);
    const vi tie = vi_and(vi_shr(b, 16), vi_set1(1));
    return vi_and(vi_add(b, vi_add(tie, vi_set1(0x7fff))), vi_set1(0xffff0000u));
}

static inline vi exponentiate_slot(const float *logits, size_t slot, size_t n, vf max, vf *sum)
{
    if (slot >= n) {
        return vi_set1(0);
    }
    const vi weight = round_weight(v_exp(vf_sub(vf_load(logits + slot * DSRI_HEAD_BLOCK), max)));
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

/* Weights and denominators of heads [head, + DSRI_HEAD_BLOCK). */
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
    vf_store(a->denominators + head, vf_select(s.bad[0], zero_output, sum));
}

/* ---- values ------------------------------------------------------------------------------------------------- */

/* Interleaves features [feature, + VALUE_FEATURES) of the slots of a pass, zeros past the last one, and prefetches the
 * slots of the next pass. */
static void gather_values(const attention_query *a, size_t first, size_t n_pairs, uint32_t feature,
                          value_scratch *scratch)
{
    const size_t end = n_selected(a);
    for (size_t i = 0; i < n_pairs; i++) {
        const size_t slot = first + 2 * i, later = slot + PASS_GROUPS * GROUP_SLOTS;
        const vi even = slot < end ? vi_load_pairs(kv_row(a, slot) + feature) : vi_set1(0);
        const vi odd = slot + 1 < end ? vi_load_pairs(kv_row(a, slot + 1) + feature) : vi_set1(0);
        interleave_rows(even, odd, scratch->values[i]);
        if (later + 1 < end) {
            vec_prefetch(kv_row(a, later) + feature);
            vec_prefetch(kv_row(a, later + 1) + feature);
        }
    }
}

#if DSRI_ROW_IS_AMX

/* Adds n groups of slots to the numerators of two blocks of heads. tiles: of the first group, one block's after the
 * other's. */
static void add_values(const uint32_t *const tiles[2], size_t n, const value_scratch *scratch,
                       float (*numerators)[VALUE_FEATURES])
{
    const size_t stride = sizeof *numerators;
    float *const upper = numerators[0], *const lower = numerators[DSRI_HEAD_BLOCK];
    tile_load(0, upper, stride);
    tile_load(1, upper + VF_LANES, stride);
    tile_load(2, lower, stride);
    tile_load(3, lower + VF_LANES, stride);
    for (size_t g = 0; g < n; g++) {
        const uint32_t *values = scratch->values[g * GROUP_PAIRS];
        tile_load(4, tiles[0] + g * TILE_WORDS, TILE_ROW_BYTES);
        tile_load(6, values, stride);
        tile_dots(0, 4, 6);
        tile_load(7, values + VF_LANES, stride);
        tile_dots(1, 4, 7);
        tile_load(5, tiles[1] + g * TILE_WORDS, TILE_ROW_BYTES);
        tile_dots(2, 5, 6);
        tile_dots(3, 5, 7);
    }
    tile_store(0, upper, stride);
    tile_store(1, upper + VF_LANES, stride);
    tile_store(2, lower, stride);
    tile_store(3, lower + VF_LANES, stride);
}

#else

/* Adds n groups of slots to the numerators of half a block of heads. tiles: of the first group, from the first of these
 * heads on. */
static void add_half_block(const uint32_t *tiles, size_t n, const value_scratch *scratch,
                           float (*numerators)[VALUE_FEATURES])
{
    enum { HEADS = DSRI_HEAD_BLOCK / 2 };
    vf acc[2 * HEADS];
    VEC_UNROLL
    for (int h = 0; h < HEADS; h++) {
        acc[2 * h] = vf_load(numerators[h]);
        acc[2 * h + 1] = vf_load(numerators[h] + VF_LANES);
    }
    for (size_t g = 0; g < n; g++) {
        for (int h = 0; h < HEADS; h++) {
            vec_prefetch(tiles + (g + 1) * TILE_WORDS + h * GROUP_PAIRS);
        }
        add_dots(HEADS, 2, tiles + g * TILE_WORDS, GROUP_PAIRS, scratch->values[g * GROUP_PAIRS], VALUE_FEATURES,
                 GROUP_PAIRS, acc);
    }
    VEC_UNROLL
    for (int h = 0; h < HEADS; h++) {
        vf_store(numerators[h], acc[2 * h]);
        vf_store(numerators[h] + VF_LANES, acc[2 * h + 1]);
    }
}

static void add_values(const uint32_t *const tiles[2], size_t n, const value_scratch *scratch,
                       float (*numerators)[VALUE_FEATURES])
{
    for (int half = 0; half < 4; half++) {
        add_half_block(tiles[half / 2] + half % 2 * (TILE_WORDS / 2), n, scratch,
                       numerators + half * (DSRI_HEAD_BLOCK / 2));
    }
}

#endif

static void add_all_values(const attention_query *a, uint32_t feature, value_scratch *scratch)
{
    memset(scratch->numerators, 0, a->n_heads * sizeof scratch->numerators[0]);
    for (size_t g = 0; g < n_groups(a); g += PASS_GROUPS) {
        const size_t n = n_groups(a) - g < PASS_GROUPS ? n_groups(a) - g : PASS_GROUPS;
        gather_values(a, g * GROUP_SLOTS, n * GROUP_PAIRS, feature, scratch);
        for (uint32_t h = 0; h < a->n_heads; h += 2 * DSRI_HEAD_BLOCK) {
            const uint32_t *const tiles[2] = {weight_tiles(a, h) + g * TILE_WORDS,
                                              weight_tiles(a, h + DSRI_HEAD_BLOCK) + g * TILE_WORDS};
            add_values(tiles, n, scratch, scratch->numerators + h);
        }
    }
}

/* Output features [feature, + VALUE_FEATURES) of all heads. */
static void compute_row_output(const attention_query *a, uint32_t feature, value_scratch *scratch)
{
    add_all_values(a, feature, scratch);
    for (uint32_t h = 0; h < a->n_heads; h++) {
        const vf denominator = vf_set1(a->denominators[h]);
        uint16_t *to = a->output + (size_t)h * DSRI_HEAD_DIM + feature;
        vf_store_bf16(to, finite_quotient(vf_load(scratch->numerators[h]), denominator));
        vf_store_bf16(to + VF_LANES, finite_quotient(vf_load(scratch->numerators[h] + VF_LANES), denominator));
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
