/* Products of attention's q with rows, on AVX512-BF16. */
#ifndef DSRI_ROW_ATTENTION_PRODUCTS_H
#define DSRI_ROW_ATTENTION_PRODUCTS_H

#include "cpu/kernels/row/attention_panels.h"
#include "cpu/kernels/row/dots_avx512bf16.h"

enum { DOT_SLOTS = 12 }; /* slots multiplied at a time */

_Static_assert(LOGIT_SLOTS % DOT_SLOTS == 0 && SHORT_LOGIT_SLOTS % DOT_SLOTS == 0, "slots of a task");

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

#endif
