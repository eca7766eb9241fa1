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
    ROW_STRIDE = ROW_WORDS + 16,           /* words between the rows of a task: spreads them over the cache's sets */
    PASS_GROUPS = DSRI_ROW_IS_AMX ? 8 : 4, /* groups between two loads and stores of the numerators */
    GATHER_STEP = DSRI_ROW_IS_AMX ? 8 : 2, /* pairs of slots gathered beside each group: of all heads at least a pass */
    MAX_HEADS = 128
};

_Static_assert(LOGIT_SLOTS % DOT_SLOTS == 0 && LOGIT_SLOTS <= 48, "three tiles of slots");

typedef struct logit_scratch {
    uint32_t rows[LOGIT_SLOTS * ROW_STRIDE];
    float dots[2 * LOGIT_SLOTS * VF_LANES]; /* [half of a panel][slot][head] */
} logit_scratch;

typedef struct value_scratch {
    uint32_t values[2][PASS_GROUPS * GROUP_PAIRS]
                   [VALUE_FEATURES]; /* of the pass in use and of the next: pairs of slots */
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

/* Rows of selected slots side by side, the last one again past the end, and a prefetch of the next task's rows. */
static inline void copy_rows(const attention_query *a, size_t first, uint32_t n, uint32_t *to)
{
    const size_t end = n_selected(a);
    for (size_t s = first; s < first + n; s++, to += ROW_STRIDE) {
        const size_t slot = s < end ? s : end - 1,
                     next = s + logit_slots(a->row) < end ? s + logit_slots(a->row) : end - 1;
        const uint16_t *row = kv_row(a, slot);
        if (rows_are_packed(a)) {
            decode_row(kv_entry(a, slot), decoded_row(a, slot));
            prefetch_packed_row(kv_entry(a, next));
        }
        for (int i = 0; i < ROW_WORDS; i += VF_LANES) {
            vi_store(to + i, vi_load_pairs(row + 2 * i));
            vec_prefetch(kv_row(a, next) + 2 * i);
        }
    }
}

static inline void store_logits(const attention_query *a, uint32_t head, size_t slot, uint32_t n, const float *dots,
                                vf scale)
{
    float *to = weight_at(a, head, slot);
    for (uint32_t s = 0; s < n; s++) {
        vf_store(to + s * DSRI_HEAD_BLOCK, vf_mul(vf_load(dots + s * VF_LANES), scale));
    }
}

#if DSRI_ROW_IS_AMX

/* dots [n_tiles * 16][16]: products of n_tiles * 16 rows with 16 heads of a panel. */
static inline __attribute__((always_inline)) void tile_products(int n_tiles, const uint32_t *rows,
                                                                const uint32_t *panel, float *dots)
{
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
    if (n_tiles > 1) {
        tile_store(1, dots + TILE_ROWS * VF_LANES, TILE_ROW_BYTES);
    }
    if (n_tiles > 2) {
        tile_store(2, dots + 2 * TILE_ROWS * VF_LANES, TILE_ROW_BYTES);
    }
}

/* Logits of n slots of a task. The dots of 16 heads are scaled while the next ones are multiplied. */
static inline void multiply_slots(const attention_query *a, size_t first, uint32_t n, vf scale, logit_scratch *scratch)
{
    copy_rows(a, first, (n + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS, scratch->rows);
    for (uint32_t h = 0; h < a->n_heads; h += VF_LANES) {
        float *const dots = scratch->dots + h / VF_LANES % 2 * LOGIT_SLOTS * VF_LANES;
        if (n > 2 * TILE_ROWS) {
            tile_products(3, scratch->rows, q_panel(a, h), dots);
        } else if (n > TILE_ROWS) {
            tile_products(2, scratch->rows, q_panel(a, h), dots);
        } else {
            tile_products(1, scratch->rows, q_panel(a, h), dots);
        }
        if (h > 0) {
            const uint32_t before = h - VF_LANES;
            store_logits(a, before, first, n, scratch->dots + before / VF_LANES % 2 * LOGIT_SLOTS * VF_LANES, scale);
        }
    }
    const uint32_t last = a->n_heads - VF_LANES;
    store_logits(a, last, first, n, scratch->dots + last / VF_LANES % 2 * LOGIT_SLOTS * VF_LANES, scale);
}

#else

/* dots [2][DOT_SLOTS][16]: products of DOT_SLOTS rows with the heads of a panel. */
static __attribute__((noinline, aligned(64))) void multiply_panel(const uint32_t *rows, const uint32_t *panel,
                                                                  float *dots)
{
    vf acc[MAX_DOT_ACCUMULATORS];
    VEC_UNROLL
    for (int i = 0; i < MAX_DOT_ACCUMULATORS; i++) {
        acc[i] = vf_zero();
    }
    add_dots(DOT_SLOTS, 2, rows, ROW_STRIDE, panel, PANEL_HEADS, ROW_WORDS, acc);
    VEC_UNROLL
    for (int i = 0; i < DOT_SLOTS; i++) {
        vf_store(dots + i * VF_LANES, acc[2 * i]);
        vf_store(dots + (DOT_SLOTS + i) * VF_LANES, acc[2 * i + 1]);
    }
}

/* Logits of n slots of a task. */
static inline void multiply_slots(const attention_query *a, size_t first, uint32_t n, vf scale, logit_scratch *scratch)
{
    copy_rows(a, first, (n + DOT_SLOTS - 1) / DOT_SLOTS * DOT_SLOTS, scratch->rows);
    for (uint32_t h = 0; h < a->n_heads; h += PANEL_HEADS) {
        for (uint32_t s = 0; s < n; s += DOT_SLOTS) {
            const uint32_t n_here = n - s < DOT_SLOTS ? n - s : DOT_SLOTS;
            multiply_panel(scratch->rows + s * ROW_STRIDE, q_panel(a, h), scratch->dots);
            store_logits(a, h, first + s, n_here, scratch->dots, scale);
            store_logits(a, h + VF_LANES, first + s, n_here, scratch->dots + DOT_SLOTS * VF_LANES, scale);
        }
    }
}

#endif

/* Logits of a task's selected slots, as far as there are any. */
static void compute_logits(const attention_query *a, uint32_t task, float scale, logit_scratch *scratch)
{
    const uint32_t task_slots = logit_slots(a->row);
    const size_t first = (size_t)task * task_slots, end = n_selected(a);
    if (first < end) {
        const uint32_t n = (uint32_t)(end - first < task_slots ? end - first : task_slots);
        multiply_slots(a, first, n, vf_set1(scale), scratch);
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

/* ---- values ------------------------------------------------------------------------------------------------- */

/* Interleaving of the slots of a pass, pair by pair: features [feature, + VALUE_FEATURES), zeros past the last slot. */
typedef struct value_gather {
    const attention_query *query;
    uint32_t feature;
    size_t first; /* slot */
    size_t done;  /* pairs */
    size_t n_pairs;
    uint32_t (*to)[VALUE_FEATURES];
} value_gather;

static inline value_gather gather_of(const attention_query *a, uint32_t feature, size_t pass, value_scratch *scratch)
{
    const size_t n = n_groups(a), first = pass * PASS_GROUPS < n ? pass * PASS_GROUPS : n;
    const size_t n_pass = n - first < PASS_GROUPS ? n - first : PASS_GROUPS;
    return (value_gather){a, feature, first * GROUP_SLOTS, 0, n_pass * GROUP_PAIRS, scratch->values[pass % 2]};
}

/* At most n more pairs; prefetches what stands a pass further on. */
static inline void gather_pairs(value_gather *w, size_t n)
{
    const size_t end = n_selected(w->query);
    for (; n > 0 && w->done < w->n_pairs; n--, w->done++) {
        const size_t slot = w->first + 2 * w->done, later = slot + PASS_GROUPS * GROUP_SLOTS;
        const vi even = slot < end ? vi_load_pairs(kv_row(w->query, slot) + w->feature) : vi_set1(0);
        const vi odd = slot + 1 < end ? vi_load_pairs(kv_row(w->query, slot + 1) + w->feature) : vi_set1(0);
        interleave_rows(even, odd, w->to[w->done]);
        if (later + 1 < end) {
            vec_prefetch(kv_row(w->query, later) + w->feature);
            vec_prefetch(kv_row(w->query, later + 1) + w->feature);
        }
    }
}

/* Weights and values of a pass. */
typedef struct value_pass {
    const uint32_t *tiles; /* of the first group, of a block of heads */
    const uint32_t (*values)[VALUE_FEATURES];
    size_t n_groups;
} value_pass;

#if DSRI_ROW_IS_AMX

enum { STEP_HEADS = 2 * DSRI_HEAD_BLOCK };

/* Adds a pass to the numerators of STEP_HEADS heads, whose blocks have their tiles tile_step words apart. */
static inline void add_values(value_pass pass, size_t tile_step, float (*numerators)[VALUE_FEATURES],
                              value_gather *next)
{
    const size_t stride = sizeof *numerators;
    float *const upper = numerators[0], *const lower = numerators[DSRI_HEAD_BLOCK];
    tile_load(0, upper, stride);
    tile_load(1, upper + VF_LANES, stride);
    tile_load(2, lower, stride);
    tile_load(3, lower + VF_LANES, stride);
    for (size_t g = 0; g < pass.n_groups; g++) {
        const uint32_t *values = pass.values[g * GROUP_PAIRS], *tile = pass.tiles + g * TILE_WORDS;
        tile_load(4, tile, TILE_ROW_BYTES);
        tile_load(6, values, stride);
        tile_dots(0, 4, 6);
        tile_load(7, values + VF_LANES, stride);
        tile_dots(1, 4, 7);
        tile_load(5, tile + tile_step, TILE_ROW_BYTES);
        tile_dots(2, 5, 6);
        tile_dots(3, 5, 7);
        gather_pairs(next, GATHER_STEP);
    }
    tile_store(0, upper, stride);
    tile_store(1, upper + VF_LANES, stride);
    tile_store(2, lower, stride);
    tile_store(3, lower + VF_LANES, stride);
}

#else

enum { STEP_HEADS = DSRI_HEAD_BLOCK };

/* Adds a pass to the numerators of half a block of heads. Tiles from the first of these heads on. */
static __attribute__((noinline, aligned(64))) void add_half_block(value_pass pass, float (*numerators)[VALUE_FEATURES],
                                                                  value_gather *next)
{
    enum { HEADS = DSRI_HEAD_BLOCK / 2 };
    vf acc[2 * HEADS];
    VEC_UNROLL
    for (int h = 0; h < HEADS; h++) {
        acc[2 * h] = vf_load(numerators[h]);
        acc[2 * h + 1] = vf_load(numerators[h] + VF_LANES);
    }
    for (size_t g = 0; g < pass.n_groups; g++) {
        const uint32_t *tile = pass.tiles + g * TILE_WORDS;
        for (int h = 0; h < HEADS; h++) {
            vec_prefetch(tile + TILE_WORDS + h * GROUP_PAIRS);
        }
        gather_pairs(next, GATHER_STEP);
        add_dots(HEADS, 2, tile, GROUP_PAIRS, pass.values[g * GROUP_PAIRS], VALUE_FEATURES, GROUP_PAIRS, acc);
    }
    VEC_UNROLL
    for (int h = 0; h < HEADS; h++) {
        vf_store(numerators[h], acc[2 * h]);
        vf_store(numerators[h] + VF_LANES, acc[2 * h + 1]);
    }
}

/* Adds a pass to the numerators of STEP_HEADS heads. */
static inline void add_values(value_pass pass, size_t tile_step, float (*numerators)[VALUE_FEATURES],
                              value_gather *next)
{
    (void)tile_step;
    add_half_block(pass, numerators, next);
    pass.tiles += TILE_WORDS / 2;
    add_half_block(pass, numerators + DSRI_HEAD_BLOCK / 2, next);
}

#endif

/* While a pass is multiplied, the next one is gathered. */
static void add_all_values(const attention_query *a, uint32_t feature, value_scratch *scratch)
{
    memset(scratch->numerators, 0, a->n_heads * sizeof scratch->numerators[0]);
    if (n_selected(a) == 0) {
        return;
    }
    const size_t tile_step = (size_t)(weight_tiles(a, DSRI_HEAD_BLOCK) - weight_tiles(a, 0));
    value_gather now = gather_of(a, feature, 0, scratch);
    gather_pairs(&now, now.n_pairs);
    for (size_t p = 0; p * PASS_GROUPS < n_groups(a); p++) {
        value_gather next = gather_of(a, feature, p + 1, scratch);
        for (uint32_t h = 0; h < a->n_heads; h += STEP_HEADS) {
            const value_pass pass = {weight_tiles(a, h) + p * PASS_GROUPS * TILE_WORDS,
                                     (const uint32_t(*)[VALUE_FEATURES])scratch->values[p % 2],
                                     now.n_pairs / GROUP_PAIRS};
            add_values(pass, tile_step, scratch->numerators + h, &next);
        }
        gather_pairs(&next, next.n_pairs);
        now = next;
    }
}

/* Output features [feature, + VALUE_FEATURES) of all heads. */
static void compute_row_output(const attention_query *a, uint32_t feature, value_scratch *scratch)
{
    add_all_values(a, feature, scratch);
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
