/* The work of a shape: operands of fresh random data, and encoders over them. */
#ifndef DSROWS_BENCH_WORK_H
#define DSROWS_BENCH_WORK_H

#include "bench_shape.h"

/* Work that can be run again and again: one encoder for all rows jointly, one for each row alone, on the same operands.
 */
typedef struct bench_work {
    dsr_encoder *joint;
    dsr_encoder *alone[DSR_MAX_ROWS];
    uint32_t n_alone;
    dsr_view outputs[4]; /* what the work writes, poisoned before each check */
    uint32_t n_outputs;
} bench_work;

/* Fills work; failures stay in the session. Alone encoders are made only if wanted. */
void bench_build(session *s, const bench_shape *shape, uint64_t seed, int with_alone, bench_work *work);
void bench_release(bench_work *work);

#endif
