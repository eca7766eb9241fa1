/* Sets of half-open byte ranges, sorted and merged. */
#ifndef DSRI_RANGES_H
#define DSRI_RANGES_H

#include "core/encoder_internal.h"

/* Sorts n ranges by address, drops empty ones and joins those that overlap or touch. Returns how many are left. */
uint32_t dsri_ranges_normalize(dsr_range *ranges, uint32_t n);

/* Whether two normalized sets share a byte. */
int dsri_ranges_overlap(const dsr_range *a, uint32_t n_a, const dsr_range *b, uint32_t n_b);

#endif
