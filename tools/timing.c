#include "timing.h"

#include <stdlib.h>
#include <time.h>

double timing_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void timing_sort(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare_doubles);
}

double timing_median(double *values, size_t n)
{
    timing_sort(values, n);
    return values[n / 2];
}
