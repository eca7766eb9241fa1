/* Logits and numerators on AVX512-BF16. */
#ifndef DSRI_ROW_ATTENTION_DOTS_H
#define DSRI_ROW_ATTENTION_DOTS_H

#include "cpu/kernels/row/attention_products.h"

enum {
    PASS_GROUPS = 4, /* groups between two loads and stores of the numerators */
    PASS_PAIRS = PASS_GROUPS * GROUP_PAIRS,
    PASS_SLOTS = PASS_GROUPS * GROUP_SLOTS,
    STEP_PAIRS = 2 /* pairs of slots gathered beside each group: of all heads at least a pass */
};

/* ---- logits ------------------------------------------------------------------------------------------------- */

typedef struct logit_scratch {
    const uint16_t *from[LOGIT_SLOTS];
    const uint16_t *later[LOGIT_SLOTS];
    uint32_t rows[LOGIT_SLOTS * ROW_STRIDE];
    float dots[2 * DOT_SLOTS * VF_LANES]; /* [half of a panel][slot][head] */
} logit_scratch;

/* Rows of n_own selected slots side by side, up to a multiple of DOT_SLOTS the last one again, and a prefetch of the
 * next task's rows. */
static inline void copy_rows(const attention_query *a, size_t first, uint32_t n_own, logit_scratch *scratch)
{
    const uint32_t n = (n_own + DOT_SLOTS - 1) / DOT_SLOTS * DOT_SLOTS;
    find_rows(a, first, n, scratch->from);
    find_rows(a, first + logit_slots(a->row), n, scratch->later);
    for (uint32_t s = 0; s < n; s++) {
        if (rows_are_packed(a) && s < n_own) {
            decode_slot(a, first + s);
        }
        for (size_t i = 0; i < ROW_WORDS; i += VF_LANES) {
            vi_store(scratch->rows + s * ROW_STRIDE + i, vi_load_pairs(scratch->from[s] + 2 * i));
            vec_prefetch_to_l2(scratch->later[s] + 2 * i);
        }
    }
}

static inline void store_products(const attention_query *a, uint32_t head, size_t slot, uint32_t n, const float *dots)
{
    memcpy(weight_at(a, head, slot), dots, n * DSRI_HEAD_BLOCK * sizeof *dots);
}

/* Products of q with n slots of a task. */
static inline void multiply_slots(const attention_query *a, size_t first, uint32_t n, logit_scratch *scratch)
{
    copy_rows(a, first, n, scratch);
    for (uint32_t h = 0; h < a->n_heads; h += PANEL_HEADS) {
        for (uint32_t s = 0; s < n; s += DOT_SLOTS) {
            const uint32_t n_here = n - s < DOT_SLOTS ? n - s : DOT_SLOTS;
            multiply_panel(scratch->rows + s * ROW_STRIDE, q_panel(a, h), scratch->dots);
            store_products(a, h, first + s, n_here, scratch->dots);
            store_products(a, h + VF_LANES, first + s, n_here, scratch->dots + DOT_SLOTS * VF_LANES);
        }
    }
}

/* ---- values ------------------------------------------------------------------------------------------------- */

typedef struct value_scratch {
    const uint16_t *rows[2 * PASS_SLOTS];           /* of the pass that is gathered, and of the one after it */
    uint32_t values[2][PASS_PAIRS][VALUE_FEATURES]; /* of the pass in use and of the next: pairs of slots */
    float numerators[MAX_HEADS][VALUE_FEATURES];
} value_scratch;

/* Interleaving of a pass on its way. */
typedef struct value_gather {
    const uint16_t *const *rows;
    uint32_t feature;
    uint32_t (*to)[VALUE_FEATURES];
    size_t done; /* pairs */
    size_t n_pairs;
} value_gather;

/* Of pass p. */
static inline value_gather gather_of(const attention_query *a, uint32_t feature, size_t p, value_scratch *scratch)
{
    const size_t n = n_groups(a), first = p * PASS_GROUPS < n ? p * PASS_GROUPS : n;
    const size_t n_pass = n - first < PASS_GROUPS ? n - first : PASS_GROUPS;
    find_rows(a, first * GROUP_SLOTS, 2 * PASS_SLOTS, scratch->rows);
    return (value_gather){scratch->rows, feature, scratch->values[p % 2], 0, n_pass * GROUP_PAIRS};
}

/* STEP_PAIRS more pairs; prefetches what stands a pass further on. */
static inline void gather_some(value_gather *w)
{
    if (w->done < w->n_pairs) {
        const uint16_t *const *rows = w->rows + 2 * w->done;
        interleave_pairs(rows, w->feature, STEP_PAIRS, w->to + w->done);
        VEC_UNROLL
        for (int i = 0; i < 2 * STEP_PAIRS; i++) {
            vec_prefetch_to_l2(rows[PASS_SLOTS + i] + w->feature);
        }
        w->done += STEP_PAIRS;
    }
}

/* Weights and values of a pass. */
typedef struct value_pass {
    const uint32_t *tiles; /* of the first group, of a block of heads */
    const uint32_t (*values)[VALUE_FEATURES];
    size_t n_groups;
} value_pass;

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
        gather_some(next);
        add_dots(HEADS, 2, tile, GROUP_PAIRS, pass.values[g * GROUP_PAIRS], VALUE_FEATURES, GROUP_PAIRS, acc);
    }
    VEC_UNROLL
    for (int h = 0; h < HEADS; h++) {
        vf_store(numerators[h], acc[2 * h]);
        vf_store(numerators[h] + VF_LANES, acc[2 * h + 1]);
    }
}

/* Numerators of features [feature, + VALUE_FEATURES) of all heads. Something is selected. While a pass is multiplied,
 * the next one is gathered. */
static void add_all_values(const attention_query *a, uint32_t feature, value_scratch *scratch)
{
    memset(scratch->numerators, 0, a->n_heads * sizeof scratch->numerators[0]);
    value_gather now = gather_of(a, feature, 0, scratch);
    while (now.done < now.n_pairs) {
        gather_some(&now);
    }
    for (size_t p = 0; p * PASS_GROUPS < n_groups(a); p++) {
        value_gather next = gather_of(a, feature, p + 1, scratch);
        for (uint32_t h = 0; h < a->n_heads; h += DSRI_HEAD_BLOCK) {
            value_pass pass = {weight_tiles(a, h) + p * PASS_GROUPS * TILE_WORDS,
                               (const uint32_t(*)[VALUE_FEATURES])scratch->values[p % 2], now.n_pairs / GROUP_PAIRS};
            add_half_block(pass, scratch->numerators + h, &next);
            pass.tiles += TILE_WORDS / 2;
            add_half_block(pass, scratch->numerators + h + DSRI_HEAD_BLOCK / 2, &next);
        }
        while (next.done < next.n_pairs) {
            gather_some(&next);
        }
        now = next;
    }
}

#endif
