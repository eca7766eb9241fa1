/* Phase "logits": scaled dot products of every head with a tile of selected KV rows.
 *
 * Heads are lanes, and each logit is one chain over the features in order. A register tile is 2 vectors of heads times
 * TILE_SLOTS rows; the rows of the next register tile are widened between the multiply-adds of this one, where they
 * cost nothing (in a batch they would not overlap). */
#ifndef DSRI_ATTENTION_LOGITS_H
#define DSRI_ATTENTION_LOGITS_H

#include "cpu/kernels/attention_query.h"

/* Divides SHORT_LOGIT_SLOTS and LOGIT_SLOTS. */
#if DSRI_VEC == DSRI_VEC_avx2
enum { TILE_SLOTS = 6 };
#elif DSRI_VEC == DSRI_VEC_scalar
enum { TILE_SLOTS = 4 };
#else
enum { TILE_SLOTS = 8 };
#endif

enum {
    ROW_PAIRS = DSRI_HEAD_DIM / (2 * VF_LANES), /* pairs of vectors of a row */
    TILE_PAIRS = TILE_SLOTS * ROW_PAIRS,
    STEP_FEATURES = 8 /* between two of these, one pair is widened */
};

typedef struct logit_scratch {
    /* Of the task's slots and of the next tile's; past the last selected slot its row again. */
    const uint16_t *rows[LOGIT_SLOTS + TILE_SLOTS];
    dsri_cache_entry packed[LOGIT_SLOTS + TILE_SLOTS]; /* if it is packed, */
    uint16_t *decoded[LOGIT_SLOTS + TILE_SLOTS];       /* and where it is decoded: rows */
    /* Rows of the register tile in use and of the next. */
    float kv[2][TILE_SLOTS][DSRI_HEAD_DIM];
} logit_scratch;

/* Place of a feature in a widened row: within 2 * VF_LANES features first the even ones, then the odd. */
static inline int kv_position(int f)
{
    return f / (2 * VF_LANES) * (2 * VF_LANES) + f % 2 * VF_LANES + f % (2 * VF_LANES) / 2;
}

/* Features [f, + ROW_BLOCK) of a packed row to `decoded`, and widened to `to`; a prefetch of the same place of row
 * `later`, and with the first block of what no block covers. */
static inline void widen_packed_block(dsri_cache_entry row, dsri_cache_entry later, uint32_t f, uint16_t *decoded,
                                      float *to)
{
    vec_prefetch(later.values + f);
    if (f == 0) {
        vec_prefetch(later.values + DSRI_FP8_ROW_BYTES - ROW_BLOCK);
        vec_prefetch(later.scales);
    }
    if (f < ROW_CODES && !row_scale_is_usual(row.scales[f / ROW_BLOCK])) {
        decode_row_block(row, f, decoded);
        for (uint32_t i = 0; i < ROW_BLOCK; i += 2 * VF_LANES) {
            widen_pair(decoded + i, to + i);
        }
        return;
    }
    const int is_normal = row_block_is_normal(row, f);
    VEC_UNROLL
    for (uint32_t i = 0; i < ROW_BLOCK; i += 2 * VF_LANES) {
        const vi pairs = row_pairs(row, f + i, is_normal);
        vf even, odd;
        vi_store_pairs(decoded + i, pairs);
        vf_from_pairs(pairs, &even, &odd);
        vf_store(to + i, even);
        vf_store(to + i + VF_LANES, odd);
    }
}

/* Pair `pair` of the register tile that begins with slot `slot`, and a prefetch of the same place a tile further on. A
 * packed row goes by blocks, with the first pair of each. */
static inline void widen_tile_pair(int is_packed, logit_scratch *scratch, int slot, int pair)
{
    const int s = slot + pair / ROW_PAIRS;
    const int f = pair % ROW_PAIRS * 2 * VF_LANES;
    float *const to = scratch->kv[slot / TILE_SLOTS % 2][s % TILE_SLOTS] + f;
    if (!is_packed) {
        vec_prefetch(scratch->rows[s + TILE_SLOTS] + f);
        widen_pair(scratch->rows[s] + f, to);
    } else if (f % ROW_BLOCK == 0) {
        widen_packed_block(scratch->packed[s], scratch->packed[s + TILE_SLOTS], (uint32_t)f, scratch->decoded[s] + f,
                           to);
    }
}

/* One feature of a register tile. q: PANEL_HEADS values; kv: of the tile's first slot. */
static inline void add_feature(vf acc[TILE_SLOTS][2], const float *q, const float *kv)
{
    const vf q0 = vf_load(q);
    const vf q1 = vf_load(q + VF_LANES);
    VEC_UNROLL
    for (int s = 0; s < TILE_SLOTS; s++) {
        const vf k = vf_set1(kv[s * DSRI_HEAD_DIM]);
        acc[s][0] = vf_fma(q0, k, acc[s][0]);
        acc[s][1] = vf_fma(q1, k, acc[s][1]);
    }
}

/* Dot products of a panel of q, [512][PANEL_HEADS], with the register tile that begins with slot `slot`. Beside them,
 * pairs [pair, end_pair) of the next tile are widened, at most one per STEP_FEATURES. */
static inline __attribute__((always_inline)) void dot_tile(int is_packed, const float *q, logit_scratch *scratch,
                                                           int slot, int pair, int end_pair, vf acc[TILE_SLOTS][2])
{
    const float *kv = scratch->kv[slot / TILE_SLOTS % 2][0];
    VEC_UNROLL
    for (int s = 0; s < TILE_SLOTS; s++) {
        acc[s][0] = vf_zero();
        acc[s][1] = vf_zero();
    }
    for (int f = 0; f < DSRI_HEAD_DIM; f += STEP_FEATURES) {
        if (pair < end_pair) {
            widen_tile_pair(is_packed, scratch, slot + TILE_SLOTS, pair++);
        }
        const float *const k = kv + kv_position(f);
        VEC_UNROLL
        for (int i = 0; i < STEP_FEATURES; i++) {
            add_feature(acc, q + (f + i) * PANEL_HEADS, k + kv_position(i));
        }
        VEC_UNROLL
        for (int s = 0; s < TILE_SLOTS; s++) {
            vf_pin(&acc[s][0]);
            vf_pin(&acc[s][1]);
        }
    }
}

/* Logits of n_slots selected slots of a task. */
static inline __attribute__((always_inline)) void multiply_slots(int is_packed, const attention_query *a, size_t first,
                                                                 int n_slots, float scale, logit_scratch *scratch)
{
    const int n_panels = (int)a->n_heads / PANEL_HEADS;
    const vf scales = vf_set1(scale);
    for (int pair = 0; pair < TILE_PAIRS; pair++) {
        widen_tile_pair(is_packed, scratch, 0, pair);
    }
    for (int slot = 0; slot < n_slots; slot += TILE_SLOTS) {
        const int n = n_slots - slot < TILE_SLOTS ? n_slots - slot : TILE_SLOTS;
        const int n_next = slot + TILE_SLOTS < n_slots ? TILE_PAIRS : 0;
        for (int p = 0; p < n_panels; p++) {
            vf acc[TILE_SLOTS][2];
            dot_tile(is_packed, a->q_panels + (size_t)p * DSRI_HEAD_DIM * PANEL_HEADS, scratch, slot,
                     n_next * p / n_panels, n_next * (p + 1) / n_panels, acc);
            float *const to0 = weight_at(a, (uint32_t)(p * PANEL_HEADS), first + (size_t)slot);
            float *const to1 = weight_at(a, (uint32_t)(p * PANEL_HEADS + VF_LANES), first + (size_t)slot);
            VEC_UNROLL
            for (int s = 0; s < TILE_SLOTS; s++) {
                if (s < n) {
                    vf_store(to0 + s * DSRI_HEAD_BLOCK, vf_mul(acc[s][0], scales));
                    vf_store(to1 + s * DSRI_HEAD_BLOCK, vf_mul(acc[s][1], scales));
                }
            }
        }
    }
}

/* Logits of a task's selected slots, as far as there are any. */
static inline void compute_logits(const attention_query *a, uint32_t task, float scale, logit_scratch *scratch)
{
    const uint32_t task_slots = logit_slots(a->row);
    const size_t first = (size_t)task * task_slots, end = n_selected(a);
    if (first >= end) {
        return;
    }
    const int n_slots = (int)(end - first < task_slots ? end - first : task_slots);
    for (size_t s = 0; s < task_slots + TILE_SLOTS; s++) {
        const size_t selected = first + s < end ? first + s : end - 1;
        scratch->rows[s] = kv_row(a, selected);
        scratch->packed[s] = kv_entry(a, selected);
        scratch->decoded[s] = decoded_row(a, selected);
    }
    if (rows_are_packed(a)) {
        multiply_slots(1, a, first, n_slots, scale, scratch);
    } else {
        multiply_slots(0, a, first, n_slots, scale, scratch);
    }
}

#endif
