/* What both units share of row-exact attention: the packed query, tiles of weights, and where selected rows lie. */
#ifndef DSRI_ROW_ATTENTION_PANELS_H
#define DSRI_ROW_ATTENTION_PANELS_H

#include "cpu/kernels/attention_query.h"
#include "cpu/kernels/row/pairs.h"

#include <string.h>

enum {
    GROUP_SLOTS = 32, /* slots of a tile of weights */
    GROUP_PAIRS = GROUP_SLOTS / 2,
    TILE_WORDS = GROUP_PAIRS * DSRI_HEAD_BLOCK,
    ROW_WORDS = DSRI_HEAD_DIM / 2,
    ROW_STRIDE = ROW_WORDS + 16, /* words between the rows of a task: spreads them over the cache's sets */
    MAX_HEADS = 128
};

/* Panels of q: [512 / 2][PANEL_HEADS], a word per pair of features. */
static inline uint32_t *q_panel(const attention_query *a, uint32_t head)
{
    return (uint32_t *)(void *)a->q_panels + (size_t)(head / PANEL_HEADS) * ROW_WORDS * PANEL_HEADS +
           head % PANEL_HEADS;
}

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

/* Decodes the packed row of a slot, and prefetches that of the next logits task's same slot. */
static inline void decode_slot(const attention_query *a, size_t slot)
{
    const size_t last = n_selected(a) - 1, next = slot + logit_slots(a->row);
    decode_row(kv_entry(a, slot), decoded_row(a, slot));
    prefetch_packed_row(kv_entry(a, next < last ? next : last));
}

/* Rows of n slots from `slot` on; past the last slot its row again. */
static inline void find_rows(const attention_query *a, size_t slot, size_t n, const uint16_t **rows)
{
    const size_t end = n_selected(a), n_left = slot < end ? end - slot : 0, n_here = n < n_left ? n : n_left;
    memcpy(rows, a->rows + slot, n_here * sizeof *rows);
    for (size_t i = n_here; i < n; i++) {
        rows[i] = a->rows[end - 1];
    }
}

/* Features [feature, + VALUE_FEATURES) of n pairs of rows. What comes past the last slot has the weight 0; that it is
 * its row again does not matter, as an element that is not finite would make every output zero anyway. */
static inline __attribute__((always_inline)) void interleave_pairs(const uint16_t *const *rows, uint32_t feature,
                                                                   size_t n, uint32_t (*to)[VALUE_FEATURES])
{
    VEC_UNROLL
    for (size_t i = 0; i < n; i++) {
        interleave_rows(vi_load_pairs(rows[2 * i] + feature), vi_load_pairs(rows[2 * i + 1] + feature), to[i]);
    }
}

#endif
