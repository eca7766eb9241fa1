/* Counter-based random numbers: value i of a stream is a pure function of (seed, stream, i), so a printed seed gives
 * the same data on every machine, in any order of generation. Integer arithmetic only. */
#ifndef TEST_RANDOM_H
#define TEST_RANDOM_H

#include <stdint.h>

typedef struct random_stream {
    uint64_t key;
    uint64_t counter;
} random_stream;

/* 64 well-mixed bits of x; a bijection. */
uint64_t random_mix(uint64_t x);

random_stream random_open(uint64_t seed, uint64_t stream);
uint64_t random_next(random_stream *random);
/* Uniform in 0..n-1, n not 0 (the bias of the multiplication is below 2^-32 for the sizes of tests). */
uint32_t random_below(random_stream *random, uint32_t n);
/* Uniform in first..last. */
uint32_t random_between(random_stream *random, uint32_t first, uint32_t last);
/* 1 once in n calls on average. */
int random_one_in(random_stream *random, uint32_t n);
/* Roughly normal with mean 0 and deviation 1, a multiple of 2^-15 with |x| < 4: exact in F32. */
float random_normal(random_stream *random);

/* Fisher-Yates over items[0..n). */
void random_shuffle(random_stream *random, uint32_t *items, uint32_t n);

#endif
