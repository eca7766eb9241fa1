/* Timing of one shape: samples of several variants in turn, so that all of them meet the same clock and neighbours. */
#ifndef DSROWS_BENCH_MEASURE_H
#define DSROWS_BENCH_MEASURE_H

#include "bench_probe.h"
#include "bench_shape.h"

typedef struct bench_stats {
    double least, median, p90; /* seconds; 0 where it was not measured */
    uint32_t n;
} bench_stats;

typedef struct bench_result {
    bench_shape shape;
    bench_stats joint;
    bench_stats alone;  /* all rows one after the other */
    bench_stats versus; /* the joint call of the second context */
    bench_stats plain;  /* bench_plain.h */
    double fma_gflops;  /* one thread, probed between the samples */
    uint32_t n_threads; /* that worked on it */
    int is_equal;       /* joint and alone left the same bytes */
} bench_result;

/* Context A and, if `versus` is not null, context B with a shape of its own. seconds: how long to take samples.
 * CLI_DONE or an exit code. */
int bench_measure(session *a, session *versus, const bench_shape *shape, const bench_shape *versus_shape,
                  double seconds, bench_result *result);

/* Seconds of encoding, submitting and waiting for the smallest op there is: one value to gather. */
double bench_measure_smallest(session *s);

#endif
