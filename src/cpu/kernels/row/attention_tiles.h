/* Logits and numerators on AMX. Whatever else there is to do stands between the tile products: the tile unit is busy
 * for 16 cycles with one, and the rest of the core is free for that time.
 *
 * A unit of heads leaves its sums in tiles. They are stored one by one before the first products of the next unit:
 * stores that wait for their product would keep those behind them from being issued. */
#ifndef DSRI_ROW_ATTENTION_TILES_H
#define DSRI_ROW_ATTENTION_TILES_H

#include "cpu/kernels/row/attention_panels.h"
#include "cpu/kernels/row/tiles.h"

enum { UNIT_HEADS = 2 * DSRI_HEAD_BLOCK };

/* ---- logits ------------------------------------------------------------------------------------------------- */

enum {
    COLUMN_WORDS = TILE_ROW_BYTES / 4, /* a row is N_COLUMNS columns of 32 features */
    N_COLUMNS = ROW_WORDS / COLUMN_WORDS,
    COLUMNS_AHEAD = 2, /* copied before they are multiplied */
    PRODUCT_SLOTS = 8, /* slots copied beside a product */
    MAX_TASK_SLOTS = 3 * TILE_ROWS
};

_Static_assert((int)LOGIT_SLOTS <= (int)MAX_TASK_SLOTS && SHORT_LOGIT_SLOTS <= LOGIT_SLOTS, "three tiles of slots");

typedef struct logit_scratch {
    const uint16_t *from[MAX_TASK_SLOTS];  /* rows of the task's slots, */
    const uint16_t *later[MAX_TASK_SLOTS]; /* and of the next task's; past the end the last one again */
    uint32_t rows[MAX_TASK_SLOTS * ROW_STRIDE];
    float products[TILE_ROWS * DSRI_HEAD_BLOCK];
} logit_scratch;

/* n_tiles * TILE_ROWS slots times UNIT_HEADS heads; and what is done beside it. */
typedef struct logit_unit {
    logit_scratch *scratch;
    const uint32_t *panel; /* [pair of features][PANEL_HEADS] */
    uint32_t fetch;        /* the first of the later rows to prefetch, */
    uint32_t n_fetch;      /* and how many beside each product */
    float *before[2];      /* where the products in the tiles go, of the first and the second half of their heads */
    uint32_t n;            /* slots of them */
} logit_unit;

static inline void copy_column(logit_scratch *scratch, uint32_t column, uint32_t slot, uint32_t n)
{
    for (uint32_t s = slot; s < slot + n; s++) {
        vi_store(scratch->rows + s * ROW_STRIDE + column * COLUMN_WORDS,
                 vi_load_pairs(scratch->from[s] + (size_t)2 * column * COLUMN_WORDS));
    }
}

/* What goes with product j of a column: slots of a later column to copy, and later rows to prefetch. */
static inline __attribute__((always_inline)) void beside_product(const logit_unit *u, int copies, uint32_t column,
                                                                 uint32_t j)
{
    if (copies && column + COLUMNS_AHEAD < N_COLUMNS) {
        copy_column(u->scratch, column + COLUMNS_AHEAD, j * PRODUCT_SLOTS, PRODUCT_SLOTS);
    }
    const uint16_t *const *later = u->scratch->later + u->fetch + j * u->n_fetch;
    for (uint32_t i = 0; i < u->n_fetch; i++) {
        vec_prefetch_to_l2(later[i] + (size_t)2 * column * COLUMN_WORDS);
    }
}

/* Tile c, a constant, is slots [c / 2 * 16, + 16) times one half of the heads. */
#define STORE_PRODUCTS(c, u)                                                                                           \
    do {                                                                                                               \
        float *const to = (u)->before[(c) % 2] + (c) / 2 * TILE_ROWS * DSRI_HEAD_BLOCK;                                \
        if ((u)->n >= ((c) / 2 + 1) * TILE_ROWS) {                                                                     \
            tile_store(c, to, DSRI_HEAD_BLOCK * sizeof(float));                                                        \
        } else {                                                                                                       \
            tile_store(c, (u)->scratch->products, DSRI_HEAD_BLOCK * sizeof(float));                                    \
            memcpy(to, (u)->scratch->products, ((u)->n - (c) / 2 * TILE_ROWS) * DSRI_HEAD_BLOCK * sizeof(float));      \
        }                                                                                                              \
    } while (0)

#define START_PRODUCTS(c)                                                                                              \
    do {                                                                                                               \
        if (column == 0 && !copies) {                                                                                  \
            STORE_PRODUCTS(c, u);                                                                                      \
        }                                                                                                              \
        if (column == 0) {                                                                                             \
            tile_zero(c);                                                                                              \
        }                                                                                                              \
    } while (0)

/* Operands of a column as tiles: slots in tile 6, heads in tile 7. */
static inline __attribute__((always_inline)) void multiply_column(const logit_unit *u, int copies, int n_tiles,
                                                                  uint32_t column)
{
    enum { PANEL_BYTES = PANEL_HEADS * 4, ROW_BYTES = ROW_STRIDE * 4 };
    const uint32_t *rows = u->scratch->rows + column * COLUMN_WORDS;
    const uint32_t *panel = u->panel + (size_t)column * TILE_ROWS * PANEL_HEADS;
    tile_load(6, rows, ROW_BYTES);
    tile_load(7, panel, PANEL_BYTES);
    START_PRODUCTS(0);
    tile_dots(0, 6, 7);
    beside_product(u, copies, column, 0);
    tile_load(7, panel + VF_LANES, PANEL_BYTES);
    START_PRODUCTS(1);
    tile_dots(1, 6, 7);
    beside_product(u, copies, column, 1);
    if (n_tiles > 1) {
        tile_load(6, rows + TILE_ROWS * ROW_STRIDE, ROW_BYTES);
        START_PRODUCTS(3);
        tile_dots(3, 6, 7);
        beside_product(u, copies, column, 2);
        tile_load(7, panel, PANEL_BYTES);
        START_PRODUCTS(2);
        tile_dots(2, 6, 7);
        beside_product(u, copies, column, 3);
    }
    if (n_tiles > 2) {
        tile_load(6, rows + 2 * TILE_ROWS * ROW_STRIDE, ROW_BYTES);
        START_PRODUCTS(4);
        tile_dots(4, 6, 7);
        beside_product(u, copies, column, 4);
        tile_load(7, panel + VF_LANES, PANEL_BYTES);
        START_PRODUCTS(5);
        tile_dots(5, 6, 7);
        beside_product(u, copies, column, 5);
    }
}

static inline __attribute__((always_inline)) void multiply_unit(const logit_unit *unit, int copies, int n_tiles)
{
    const logit_unit copy = *unit, *const u = &copy;
    multiply_column(u, copies, n_tiles, 0);
    for (uint32_t column = 1; column < N_COLUMNS; column++) {
        multiply_column(u, copies, n_tiles, column);
    }
}

/* Products of n slots of a task, (n_tiles - 1) * TILE_ROWS < n, with all heads. The first unit copies the rows. */
static inline __attribute__((always_inline)) void multiply_tiles(int n_tiles, const attention_query *a, size_t first,
                                                                 uint32_t n, logit_scratch *scratch)
{
    const uint32_t n_rows = (uint32_t)n_tiles * TILE_ROWS, n_units = a->n_heads / UNIT_HEADS;
    logit_unit u = {.scratch = scratch, .n_fetch = PRODUCT_SLOTS / n_units, .n = n};
    find_rows(a, first, n_rows, scratch->from);
    find_rows(a, first + logit_slots(a->row), n_rows, scratch->later);
    for (uint32_t column = 0; column < COLUMNS_AHEAD; column++) {
        copy_column(scratch, column, 0, n_rows);
    }
    for (uint32_t i = 0; i < n_units; i++) {
        u.panel = q_panel(a, i * UNIT_HEADS);
        u.fetch = i * n_rows / n_units;
        if (i == 0) {
            multiply_unit(&u, 1, n_tiles);
        } else {
            multiply_unit(&u, 0, n_tiles);
        }
        u.before[0] = weight_at(a, i * UNIT_HEADS, first);
        u.before[1] = weight_at(a, i * UNIT_HEADS + DSRI_HEAD_BLOCK, first);
    }
    STORE_PRODUCTS(0, &u);
    STORE_PRODUCTS(1, &u);
    if (n_tiles > 1) {
        STORE_PRODUCTS(2, &u);
        STORE_PRODUCTS(3, &u);
    }
    if (n_tiles > 2) {
        STORE_PRODUCTS(4, &u);
        STORE_PRODUCTS(5, &u);
    }
}

static inline void multiply_slots(const attention_query *a, size_t first, uint32_t n, logit_scratch *scratch)
{
    for (uint32_t s = 0; rows_are_packed(a) && s < n; s++) {
        decode_slot(a, first + s);
    }
    if (n > 2 * TILE_ROWS) {
        multiply_tiles(3, a, first, n, scratch);
    } else if (n > TILE_ROWS) {
        multiply_tiles(2, a, first, n, scratch);
    } else {
        multiply_tiles(1, a, first, n, scratch);
    }
}

/* ---- values ------------------------------------------------------------------------------------------------- */

enum {
    PASS_GROUPS = 4,       /* groups that the units of heads pass in turn, while the next ones are gathered */
    FIRST_PASS_GROUPS = 2, /* nothing can be multiplied while the first ones are */
    PASS_PAIRS = PASS_GROUPS * GROUP_PAIRS,
    PASS_SLOTS = PASS_GROUPS * GROUP_SLOTS,
    SLOTS_AHEAD = 16, /* no more: one line of each of 64 rows would not fit into the sets of the cache they fall into */
    STEP_PAIRS = 2    /* pairs of slots gathered at a time */
};

typedef struct value_scratch {
    const uint16_t
        *rows[PASS_SLOTS + SLOTS_AHEAD]; /* of the pass that is gathered, and of what is prefetched with it */
    uint32_t values[2][PASS_PAIRS][VALUE_FEATURES]; /* of the pass in use and of the next: pairs of slots */
    float numerators[MAX_HEADS][VALUE_FEATURES];
} value_scratch;

/* Interleaving of a pass on its way. */
typedef struct value_gather {
    const uint16_t *const *rows;
    uint32_t (*to)[VALUE_FEATURES];
    uint32_t feature;
    uint32_t done; /* pairs */
    uint32_t n_pairs;
    uint32_t n_steps; /* beside each product */
} value_gather;

static inline void gather_step(value_gather *w)
{
    const uint16_t *const *rows = w->rows + 2 * w->done;
    interleave_pairs(rows, w->feature, STEP_PAIRS, w->to + w->done);
    VEC_UNROLL
    for (int i = 0; i < 2 * STEP_PAIRS; i++) {
        vec_prefetch(rows[SLOTS_AHEAD + i] + w->feature);
    }
    w->done += STEP_PAIRS;
}

static inline void gather_beside(value_gather *w)
{
    for (uint32_t i = 0; i < w->n_steps && w->done < w->n_pairs; i++) {
        gather_step(w);
    }
}

/* A pass: its groups, [first, first + n), as tiles of weights for UNIT_HEADS heads and as pairs of values. */
typedef struct value_pass {
    const uint32_t *upper; /* weights of the first half of the heads */
    const uint32_t *lower;
    const uint32_t (*values)[VALUE_FEATURES];
    size_t n_groups;
    int is_first;                               /* numerators start with it */
    float (*numerators)[VALUE_FEATURES];        /* of the unit */
    float (*numerators_before)[VALUE_FEATURES]; /* of what is in the tiles, to be stored; null: nothing */
} value_pass;

/* Tile c, a constant, is one half of the heads times one half of the features. */
#define SUMS_TILE(c, numerators)  (numerators)[(c) / 2 * DSRI_HEAD_BLOCK] + (c) % 2 * VF_LANES
#define SUMS_BYTES                (VALUE_FEATURES * sizeof(float))
#define STORE_SUMS(c, numerators) tile_store(c, SUMS_TILE(c, numerators), SUMS_BYTES)
#define START_SUMS(c)                                                                                                  \
    if (is_start && pass->numerators_before != pass->numerators) {                                                     \
        if (pass->numerators_before != NULL) {                                                                         \
            STORE_SUMS(c, pass->numerators_before);                                                                    \
        }                                                                                                              \
        if (pass->is_first) {                                                                                          \
            tile_zero(c);                                                                                              \
        } else {                                                                                                       \
            tile_load(c, SUMS_TILE(c, pass->numerators), SUMS_BYTES);                                                  \
        }                                                                                                              \
    }                                                                                                                  \
    (void)0

static inline __attribute__((always_inline)) void add_group(const value_pass *pass, int is_start, size_t g,
                                                            value_gather *next)
{
    const uint32_t *values = pass->values[g * GROUP_PAIRS];
    tile_load(4, pass->upper + g * TILE_WORDS, TILE_ROW_BYTES);
    tile_load(6, values, SUMS_BYTES);
    START_SUMS(0);
    tile_dots(0, 4, 6);
    gather_beside(next);
    tile_load(7, values + VF_LANES, SUMS_BYTES);
    START_SUMS(1);
    tile_dots(1, 4, 7);
    gather_beside(next);
    tile_load(5, pass->lower + g * TILE_WORDS, TILE_ROW_BYTES);
    START_SUMS(2);
    tile_dots(2, 5, 6);
    gather_beside(next);
    START_SUMS(3);
    tile_dots(3, 5, 7);
    gather_beside(next);
}

static __attribute__((noinline)) void add_pass(const value_pass *pass, value_gather *gather)
{
    value_gather next = *gather;
    add_group(pass, 1, 0, &next);
    for (size_t g = 1; g < pass->n_groups; g++) {
        add_group(pass, 0, g, &next);
    }
    *gather = next;
}

/* Gathering of the groups [first, end) into buffer `buffer`, with n_products products beside it. */
static inline value_gather gather_of(const attention_query *a, uint32_t feature, size_t first, size_t end,
                                     uint32_t buffer, uint32_t n_products, value_scratch *scratch)
{
    const uint32_t n_pairs = (uint32_t)(end - first) * GROUP_PAIRS;
    find_rows(a, first * GROUP_SLOTS, (end - first) * GROUP_SLOTS + SLOTS_AHEAD, scratch->rows);
    return (value_gather){scratch->rows, scratch->values[buffer],
                          feature,       0,
                          n_pairs,       (n_pairs / STEP_PAIRS + n_products - 1) / n_products};
}

/* Numerators of features [feature, + VALUE_FEATURES) of all heads. Something is selected. */
static void add_all_values(const attention_query *a, uint32_t feature, value_scratch *scratch)
{
    const size_t n = n_groups(a);
    size_t first = 0, end = n < FIRST_PASS_GROUPS ? n : FIRST_PASS_GROUPS;
    value_pass pass = {.is_first = 1, .numerators_before = NULL};
    value_gather gather = gather_of(a, feature, first, end, 0, 1, scratch);
    gather_beside(&gather);
    for (uint32_t p = 0; first < end; p++) {
        const size_t next_end = n - end < PASS_GROUPS ? n : end + PASS_GROUPS;
        const uint32_t n_products = 4 * (uint32_t)(end - first) * a->n_heads / UNIT_HEADS;
        gather = gather_of(a, feature, end, next_end, (p + 1) % 2, n_products, scratch);
        pass.values = (const uint32_t(*)[VALUE_FEATURES])scratch->values[p % 2];
        pass.n_groups = end - first;
        for (uint32_t i = 0; i < a->n_heads; i += UNIT_HEADS) {
            /* To and fro, so that the last unit of a pass goes on with the next pass. */
            const uint32_t h = p % 2 ? a->n_heads - UNIT_HEADS - i : i;
            pass.upper = weight_tiles(a, h) + first * TILE_WORDS;
            pass.lower = weight_tiles(a, h + DSRI_HEAD_BLOCK) + first * TILE_WORDS;
            pass.numerators = scratch->numerators + h;
            add_pass(&pass, &gather);
            pass.numerators_before = pass.numerators;
        }
        pass.is_first = 0;
        first = end;
        end = next_end;
    }
    STORE_SUMS(0, pass.numerators);
    STORE_SUMS(1, pass.numerators);
    STORE_SUMS(2, pass.numerators);
    STORE_SUMS(3, pass.numerators);
}

#endif
