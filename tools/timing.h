/* A clock, and medians of what it shows. */
#ifndef DSROWS_TIMING_H
#define DSROWS_TIMING_H

#include <stddef.h>

/* Seconds of a clock that only goes forward. */
double timing_now(void);
void timing_sort(double *values, size_t n);
/* Sorts the values, of which there is one at least. */
double timing_median(double *values, size_t n);

#endif
