/* What somebody would write without this library: a plain loop in C with the C library's exp, the yardstick of the
 * compressor. */
#ifndef DSROWS_BENCH_PLAIN_H
#define DSROWS_BENCH_PLAIN_H

#include "bench_shape.h"

typedef struct bench_plain bench_plain;

/* Operands of a compressor shape with random data; null for other shapes. */
bench_plain *bench_plain_create(const bench_shape *shape);
/* The token that completes a group, of every row, one row after the other. */
void bench_plain_run(bench_plain *plain);
void bench_plain_destroy(bench_plain *plain);

#endif
