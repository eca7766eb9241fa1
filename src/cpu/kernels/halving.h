/* Sums by halving, as the norms define them. */
#ifndef DSRI_HALVING_H
#define DSRI_HALVING_H

#include "cpu/vec/vec.h"

/* x[f] += x[f + s] for f < s, with s = n / 2, n / 4, ... 1; returns x[0]. n is a power of two; x is overwritten. */
static inline float sum_by_halving(float *x, uint32_t n)
{
    uint32_t s = n / 2;
    for (; s >= VF_LANES; s /= 2) {
        for (uint32_t f = 0; f < s; f += VF_LANES) {
            vf_store(x + f, vf_add(vf_load(x + f), vf_load(x + f + s)));
        }
    }
    for (; s > 0; s /= 2) {
        for (uint32_t f = 0; f < s; f++) {
            x[f] += x[f + s];
        }
    }
    return x[0];
}

#endif
