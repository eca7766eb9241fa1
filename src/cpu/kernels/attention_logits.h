/* Phase "logits": scaled dot products of every head with a tile of selected KV rows.
 *
 * Heads are lanes, and each logit is one chain over the features in order. The chain is cut at blocks of features, so
 * that the panel of q in use stays in the first-level cache; between blocks the partial sums wait in scratch. */
#ifndef DSRI_ATTENTION_LOGITS_H
#define DSRI_ATTENTION_LOGITS_H

#include "cpu/kernels/attention_query.h"

/* Slots of a register tile of 2 head vectors; divides LOGIT_SLOTS. */
#if DSRI_VEC == DSRI_VEC_avx2
enum { TILE_SLOTS = 6 };
#elif DSRI_VEC == DSRI_VEC_scalar
enum { TILE_SLOTS = 4 };
#else
enum { TILE_SLOTS = 8 };
#endif

enum { LOGIT_FEATURES = 128 };

typedef struct logit_scratch {
    /* Widened rows, each block of features on its own; within 2 * VF_LANES features first the even, then the odd. */
    float kv[DSRI_HEAD_DIM / LOGIT_FEATURES][LOGIT_SLOTS][LOGIT_FEATURES];
    float sums[]; /* [panels][LOGIT_SLOTS][PANEL_HEADS] */
} logit_scratch;

static inline void widen_kv_row(const uint16_t *row, logit_scratch *scratch, int slot)
{
    for (int b = 0; b < DSRI_HEAD_DIM / LOGIT_FEATURES; b++) {
        float *to = scratch->kv[b][slot];
        const uint16_t *from = row + b * LOGIT_FEATURES;
        VEC_UNROLL
        for (int f = 0; f < LOGIT_FEATURES; f += 2 * VF_LANES) {
            vf even, odd;
            vf_load_bf16_pairs(from + f, &even, &odd);
            vf_store(to + f, even);
            vf_store(to + f + VF_LANES, odd);
        }
    }
}

static inline void zero_kv_row(logit_scratch *scratch, int slot)
{
    for (int b = 0; b < DSRI_HEAD_DIM / LOGIT_FEATURES; b++) {
        for (int f = 0; f < LOGIT_FEATURES; f += VF_LANES) {
            vf_store(scratch->kv[b][slot] + f, vf_zero());
        }
    }
}

/* Rows of the tile, filled up with zero rows to a multiple of TILE_SLOTS. Returns that number. */
static inline int widen_kv_tile(const attention_query *a, size_t first, int n_slots, logit_scratch *scratch)
{
    enum { AHEAD = 6, LINE_FEATURES = 32 };
    int s = 0;
    for (; s < n_slots; s++) {
        if (s + AHEAD < n_slots) {
            const uint16_t *later = kv_row(a, first + (size_t)(s + AHEAD));
            for (int f = 0; f < DSRI_HEAD_DIM; f += LINE_FEATURES) {
                vec_prefetch(later + f);
            }
        }
        widen_kv_row(kv_row(a, first + (size_t)s), scratch, s);
    }
    for (; s % TILE_SLOTS != 0; s++) {
        zero_kv_row(scratch, s);
    }
    return s;
}

/* One feature of a register tile. q: PANEL_HEADS values; kv: of the tile's first slot. */
static inline void add_feature(vf acc[TILE_SLOTS][2], const float *q, const float *kv)
{
    const vf q0 = vf_load(q);
    const vf q1 = vf_load(q + VF_LANES);
    VEC_UNROLL
    for (int s = 0; s < TILE_SLOTS; s++) {
        const vf k = vf_set1(kv[s * LOGIT_FEATURES]);
        acc[s][0] = vf_fma(q0, k, acc[s][0]);
        acc[s][1] = vf_fma(q1, k, acc[s][1]);
    }
}

/* One block of features of a register tile. q [LOGIT_FEATURES][PANEL_HEADS]; kv [TILE_SLOTS][LOGIT_FEATURES];
 * sums [TILE_SLOTS][PANEL_HEADS], begun at 0 if `first`. */
static inline void add_feature_block(const float *q, const float *kv, float *sums, int first)
{
    vf acc[TILE_SLOTS][2];
    VEC_UNROLL
    for (int s = 0; s < TILE_SLOTS; s++) {
        acc[s][0] = first ? vf_zero() : vf_load(sums + s * PANEL_HEADS);
        acc[s][1] = first ? vf_zero() : vf_load(sums + s * PANEL_HEADS + VF_LANES);
    }
    for (int f = 0; f < LOGIT_FEATURES; f += 2 * VF_LANES) {
        for (int i = 0; i < VF_LANES; i++) {
            add_feature(acc, q + (f + 2 * i) * PANEL_HEADS, kv + f + i);
            add_feature(acc, q + (f + 2 * i + 1) * PANEL_HEADS, kv + f + VF_LANES + i);
        }
    }
    VEC_UNROLL
    for (int s = 0; s < TILE_SLOTS; s++) {
        vf_store(sums + s * PANEL_HEADS, acc[s][0]);
        vf_store(sums + s * PANEL_HEADS + VF_LANES, acc[s][1]);
    }
}

static inline void store_logits(const attention_query *a, size_t first, int n_slots, float scale, const float *sums)
{
    const vf scales = vf_set1(scale);
    for (uint32_t h = 0; h < a->n_heads; h += VF_LANES) {
        const float *from = sums + (size_t)(h / PANEL_HEADS) * LOGIT_SLOTS * PANEL_HEADS + h % PANEL_HEADS;
        float *to = weight_at(a, h, first);
        for (int s = 0; s < n_slots; s++) {
            vf_store(to + s * DSRI_HEAD_BLOCK, vf_mul(vf_load(from + s * PANEL_HEADS), scales));
        }
    }
}

/* Logits of selected slots [tile * LOGIT_SLOTS, + LOGIT_SLOTS), as far as there are any. */
static inline void compute_logits(const attention_query *a, size_t tile, float scale, logit_scratch *scratch)
{
    const size_t first = tile * LOGIT_SLOTS;
    const size_t end = n_selected(a);
    if (first >= end) {
        return;
    }
    const int n_slots = end - first < LOGIT_SLOTS ? (int)(end - first) : LOGIT_SLOTS;
    const int n_padded = widen_kv_tile(a, first, n_slots, scratch);
    const uint32_t n_panels = a->n_heads / PANEL_HEADS;
    for (int b = 0; b < DSRI_HEAD_DIM / LOGIT_FEATURES; b++) {
        for (uint32_t p = 0; p < n_panels; p++) {
            const float *q = a->q_panels + ((size_t)p * DSRI_HEAD_DIM + (size_t)(b * LOGIT_FEATURES)) * PANEL_HEADS;
            float *sums = scratch->sums + (size_t)p * LOGIT_SLOTS * PANEL_HEADS;
            for (int s = 0; s < n_padded; s += TILE_SLOTS) {
                add_feature_block(q, scratch->kv[b][s], sums + s * PANEL_HEADS, b == 0);
            }
        }
    }
    store_logits(a, first, n_slots, scale, scratch->sums);
}

#endif
