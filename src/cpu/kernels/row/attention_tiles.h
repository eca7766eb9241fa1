/* Logits and numerators on AMX. Whatever else there is to do stands between the tile products: the tile unit is busy
 * for 16 cycles with one, and the rest of the core is free for that time. */
#ifndef DSRI_ROW_ATTENTION_TILES_H
#define DSRI_ROW_ATTENTION_TILES_H

#include "cpu/kernels/row/attention_panels.h"
#include "cpu/kernels/row/tiles.h"

enum {
    UNIT_HEADS = 2 * DSRI_HEAD_BLOCK,
    COLUMN_WORDS = TILE_ROW_BYTES / 4, /* a row is N_COLUMNS columns of 32 features */
    N_COLUMNS = ROW_WORDS / COLUMN_WORDS,
    COLUMNS_AHEAD = 2,
    PRODUCT_SLOTS = 8, /* slots copied beside a product */
    PASS_GROUPS = 32,  /* groups between two loads and stores of the numerators */
    PASS_SLOTS = PASS_GROUPS * GROUP_SLOTS,
    SLOTS_AHEAD = 64,
    PRODUCT_PAIRS = GROUP_PAIRS / 4 /* pairs of slots interleaved beside a product */
};

_Static_assert(LOGIT_SLOTS <= 3 * TILE_ROWS && SHORT_LOGIT_SLOTS <= LOGIT_SLOTS, "three tiles of slots");

/* ---- logits ------------------------------------------------------------------------------------------------- */

typedef struct logit_scratch {
    const uint16_t *from[LOGIT_SLOTS];       /* rows of the task's slots, */
    const uint16_t *later[LOGIT_SLOTS];      /* and of the next task's; past the end the last one again */
    uint32_t rows[LOGIT_SLOTS * ROW_STRIDE]; /* those of the task side by side */
    float dots[2][LOGIT_SLOTS * UNIT_HEADS]; /* [slot][head], of a unit and of the one before */
} logit_scratch;

/* A unit: n_tiles * TILE_ROWS slots times UNIT_HEADS heads; and what is done beside its products. */
typedef struct logit_unit {
    logit_scratch *scratch;
    const uint32_t *panel;
    float *dots;
    uint32_t fetch;   /* the first of the later rows to prefetch, */
    uint32_t n_fetch; /* and how many beside each product */
} logit_unit;

/* Dots of a unit on their way to the logits. */
typedef struct scaling {
    const float *dots;
    float *to[2]; /* of the first and the second half of the unit's heads */
    uint32_t n;   /* slots */
    vf scale;
} scaling;

static inline void copy_column(logit_scratch *scratch, uint32_t column, uint32_t slot, uint32_t n)
{
    for (uint32_t s = slot; s < slot + n; s++) {
        vi_store(scratch->rows + s * ROW_STRIDE + column * COLUMN_WORDS,
                 vi_load_pairs(scratch->from[s] + (size_t)2 * column * COLUMN_WORDS));
    }
}

static inline void scale_slot(const scaling *w, uint32_t s)
{
    if (s < w->n) {
        const float *dots = w->dots + s * UNIT_HEADS;
        vf_store(w->to[0] + s * DSRI_HEAD_BLOCK, vf_mul(vf_load(dots), w->scale));
        vf_store(w->to[1] + s * DSRI_HEAD_BLOCK, vf_mul(vf_load(dots + VF_LANES), w->scale));
    }
}

/* What goes with product j of a column: slots of a later column to copy, or a slot of the unit before to scale, and
 * later rows to prefetch. */
static inline __attribute__((always_inline)) void beside_product(const logit_unit *u, const scaling *before,
                                                                 int n_tiles, uint32_t column, uint32_t j)
{
    if (before != NULL) {
        if (j % 2 == 0) {
            scale_slot(before, column * (uint32_t)n_tiles + j / 2);
        }
    } else if (column + COLUMNS_AHEAD < N_COLUMNS) {
        copy_column(u->scratch, column + COLUMNS_AHEAD, j * PRODUCT_SLOTS, PRODUCT_SLOTS);
    }
    const uint16_t *const *later = u->scratch->later + u->fetch + j * u->n_fetch;
    for (uint32_t i = 0; i < u->n_fetch; i++) {
        prefetch_to_l2(later[i] + (size_t)2 * column * COLUMN_WORDS);
    }
}

/* Operands of a column as tiles: slots in tile 6, heads in tile 7; two of each where the registers suffice. */
static inline __attribute__((always_inline)) void multiply_column(const logit_unit *u, const scaling *before,
                                                                  int n_tiles, uint32_t column)
{
    enum { PANEL_BYTES = PANEL_HEADS * 4, ROW_BYTES = ROW_STRIDE * 4 };
    const uint32_t *rows = u->scratch->rows + column * COLUMN_WORDS;
    const uint32_t *panel = u->panel + (size_t)column * TILE_ROWS * PANEL_HEADS;
    tile_load(6, rows, ROW_BYTES);
    tile_load(7, panel, PANEL_BYTES);
    tile_dots(0, 6, 7);
    beside_product(u, before, n_tiles, column, 0);
    tile_load(7, panel + VF_LANES, PANEL_BYTES);
    tile_dots(1, 6, 7);
    beside_product(u, before, n_tiles, column, 1);
    if (n_tiles > 1) {
        tile_load(6, rows + TILE_ROWS * ROW_STRIDE, ROW_BYTES);
        tile_dots(3, 6, 7);
        beside_product(u, before, n_tiles, column, 2);
        tile_load(7, panel, PANEL_BYTES);
        tile_dots(2, 6, 7);
        beside_product(u, before, n_tiles, column, 3);
    }
    if (n_tiles > 2) {
        tile_load(6, rows + 2 * TILE_ROWS * ROW_STRIDE, ROW_BYTES);
        tile_dots(4, 6, 7);
        beside_product(u, before, n_tiles, column, 4);
        tile_load(7, panel + VF_LANES, PANEL_BYTES);
        tile_dots(5, 6, 7);
        beside_product(u, before, n_tiles, column, 5);
    }
}

/* before: null in the first unit of a task. */
static inline __attribute__((always_inline)) void multiply_unit(const logit_unit *u, const scaling *before, int n_tiles)
{
    enum { DOTS_BYTES = UNIT_HEADS * sizeof(float), TILE_DOTS = TILE_ROWS * UNIT_HEADS };
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    tile_zero(4);
    tile_zero(5);
    for (uint32_t column = 0; column < N_COLUMNS; column++) {
        multiply_column(u, before, n_tiles, column);
    }
    tile_store(0, u->dots, DOTS_BYTES);
    tile_store(1, u->dots + VF_LANES, DOTS_BYTES);
    if (n_tiles > 1) {
        tile_store(2, u->dots + TILE_DOTS, DOTS_BYTES);
        tile_store(3, u->dots + TILE_DOTS + VF_LANES, DOTS_BYTES);
    }
    if (n_tiles > 2) {
        tile_store(4, u->dots + 2 * TILE_DOTS, DOTS_BYTES);
        tile_store(5, u->dots + 2 * TILE_DOTS + VF_LANES, DOTS_BYTES);
    }
}

/* Logits of n <= n_tiles * TILE_ROWS slots of a task. */
static inline __attribute__((always_inline)) void multiply_tiles(int n_tiles, const attention_query *a, size_t first,
                                                                 uint32_t n, vf scale, logit_scratch *scratch)
{
    const uint32_t n_rows = (uint32_t)n_tiles * TILE_ROWS, n_units = a->n_heads / UNIT_HEADS;
    scaling before = {.n = n, .scale = scale};
    find_rows(a, first, n_rows, scratch->from);
    find_rows(a, first + logit_slots(a->row), n_rows, scratch->later);
    for (uint32_t column = 0; column < COLUMNS_AHEAD; column++) {
        copy_column(scratch, column, 0, n_rows);
    }
    for (uint32_t i = 0; i < n_units; i++) {
        const uint32_t head = i * UNIT_HEADS;
        const logit_unit unit = {.scratch = scratch,
                                 .panel = q_panel(a, head),
                                 .dots = scratch->dots[i % 2],
                                 .fetch = i * n_rows / n_units,
                                 .n_fetch = PRODUCT_SLOTS / n_units};
        if (i == 0) {
            multiply_unit(&unit, NULL, n_tiles);
        } else {
            const scaling last = before;
            multiply_unit(&unit, &last, n_tiles);
        }
        before.dots = unit.dots;
        before.to[0] = weight_at(a, head, first);
        before.to[1] = weight_at(a, head + DSRI_HEAD_BLOCK, first);
    }
    for (uint32_t s = 0; s < n; s++) {
        scale_slot(&before, s);
    }
}

static inline void multiply_slots(const attention_query *a, size_t first, uint32_t n, vf scale, logit_scratch *scratch)
{
    if (n > 2 * TILE_ROWS) {
        multiply_tiles(3, a, first, n, scale, scratch);
    } else if (n > TILE_ROWS) {
        multiply_tiles(2, a, first, n, scale, scratch);
    } else {
        multiply_tiles(1, a, first, n, scale, scratch);
    }
}

/* ---- values ------------------------------------------------------------------------------------------------- */

typedef struct value_scratch {
    const uint16_t *rows[PASS_SLOTS + SLOTS_AHEAD];             /* of a pass, and of what is prefetched in it */
    uint32_t values[PASS_GROUPS * GROUP_PAIRS][VALUE_FEATURES]; /* pairs of slots */
    float numerators[MAX_HEADS][VALUE_FEATURES];
} value_scratch;

/* Pairs [pair, + PRODUCT_PAIRS) of a pass. */
static inline void gather_pairs(value_scratch *scratch, uint32_t feature, size_t pair)
{
    const uint16_t *const *rows = scratch->rows + 2 * pair;
    interleave_pairs(rows, feature, PRODUCT_PAIRS, scratch->values + pair);
    VEC_UNROLL
    for (int i = 0; i < 2 * PRODUCT_PAIRS; i++) {
        vec_prefetch(rows[SLOTS_AHEAD + i] + feature);
    }
}

/* Groups of a pass, as the tiles of weights have them for UNIT_HEADS heads. */
typedef struct value_pass {
    const uint32_t *upper; /* the first half of the heads */
    const uint32_t *lower;
    size_t n_groups;
    int is_first;
    uint32_t feature;
} value_pass;

/* Adds a pass to the numerators of UNIT_HEADS heads. Gathers, unless it has been done: group by group, each while the
 * one before is multiplied. */
static inline __attribute__((always_inline)) void add_values(value_pass pass, int gathers, value_scratch *scratch,
                                                             float (*numerators)[VALUE_FEATURES])
{
    enum { ROW_BYTES = VALUE_FEATURES * 4 };
    float *const upper = numerators[0], *const lower = numerators[DSRI_HEAD_BLOCK];
    if (pass.is_first) {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    } else {
        tile_load(0, upper, ROW_BYTES);
        tile_load(1, upper + VF_LANES, ROW_BYTES);
        tile_load(2, lower, ROW_BYTES);
        tile_load(3, lower + VF_LANES, ROW_BYTES);
    }
    for (size_t g = 0; g < pass.n_groups; g++) {
        const uint32_t *values = scratch->values[g * GROUP_PAIRS];
        const int gathers_next = gathers && g + 1 < pass.n_groups;
        const size_t next = (g + 1) * GROUP_PAIRS;
        tile_load(4, pass.upper + g * TILE_WORDS, TILE_ROW_BYTES);
        tile_load(6, values, ROW_BYTES);
        tile_dots(0, 4, 6);
        if (gathers_next) {
            gather_pairs(scratch, pass.feature, next);
        }
        tile_load(7, values + VF_LANES, ROW_BYTES);
        tile_dots(1, 4, 7);
        if (gathers_next) {
            gather_pairs(scratch, pass.feature, next + PRODUCT_PAIRS);
        }
        tile_load(5, pass.lower + g * TILE_WORDS, TILE_ROW_BYTES);
        tile_dots(2, 5, 6);
        if (gathers_next) {
            gather_pairs(scratch, pass.feature, next + 2 * PRODUCT_PAIRS);
        }
        tile_dots(3, 5, 7);
        if (gathers_next) {
            gather_pairs(scratch, pass.feature, next + 3 * PRODUCT_PAIRS);
        }
    }
    tile_store(0, upper, ROW_BYTES);
    tile_store(1, upper + VF_LANES, ROW_BYTES);
    tile_store(2, lower, ROW_BYTES);
    tile_store(3, lower + VF_LANES, ROW_BYTES);
}

/* Numerators of features [feature, + VALUE_FEATURES) of all heads. Something is selected. */
static void add_all_values(const attention_query *a, uint32_t feature, value_scratch *scratch)
{
    for (size_t first = 0; first < n_groups(a); first += PASS_GROUPS) {
        const size_t n_left = n_groups(a) - first, n = n_left < PASS_GROUPS ? n_left : PASS_GROUPS;
        find_rows(a, first * GROUP_SLOTS, n * GROUP_SLOTS + SLOTS_AHEAD, scratch->rows);
        for (size_t pair = 0; pair < GROUP_PAIRS; pair += PRODUCT_PAIRS) {
            gather_pairs(scratch, feature, pair);
        }
        for (uint32_t h = 0; h < a->n_heads; h += UNIT_HEADS) {
            const value_pass pass = {weight_tiles(a, h) + first * TILE_WORDS,
                                     weight_tiles(a, h + DSRI_HEAD_BLOCK) + first * TILE_WORDS, n, first == 0, feature};
            if (h == 0) {
                add_values(pass, 1, scratch, scratch->numerators);
            } else {
                add_values(pass, 0, scratch, scratch->numerators + h);
            }
        }
    }
}

#endif
