/* What test data look like: kinds of BF16 and F32 values, each a pure function of a random stream. */
#ifndef TEST_PATTERNS_H
#define TEST_PATTERNS_H

#include "random.h"

#include <stddef.h>
#include <stdint.h>

typedef enum pattern {
    PATTERN_NORMAL = 0,  /* roughly normal, deviation `scale` */
    PATTERN_EQUAL,       /* few distinct values: ties everywhere */
    PATTERN_SIGNED_ZERO, /* +0 and -0 with a normal value now and then */
    PATTERN_SUBNORMAL,   /* subnormal and barely normal values */
    PATTERN_LARGE,       /* up to the largest finite value: sums and products overflow */
    PATTERN_MIXED,       /* all of the above side by side */
    PATTERN_GRID_FP4,    /* E2M1 times a power of two per block of 32, as quantised index queries and keys are */
    PATTERN_NONFINITE,   /* normal with NaN and infinities sprinkled in */
    N_PATTERNS
} pattern;

const char *pattern_name(pattern kind);

uint16_t bf16_from_f32_exact(float x); /* high half; x must have no lower bits */
float f32_from_bits(uint32_t bits);
uint32_t f32_to_bits(float x);
float f32_from_bf16(uint16_t x);

/* scale: deviation of the normal values, a power of two. */
void pattern_fill_bf16(random_stream *random, pattern kind, float scale, uint16_t *x, size_t n);
void pattern_fill_f32(random_stream *random, pattern kind, float scale, float *x, size_t n);
/* Any 32-bit patterns, NaN payloads included. */
void pattern_fill_bits(random_stream *random, void *bytes, size_t n_bytes);

#endif
