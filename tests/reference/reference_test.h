/* Small helpers shared by the tests of the reference. */
#ifndef DSROWS_REFERENCE_TEST_H
#define DSROWS_REFERENCE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "reference/reference.h"

static inline uint32_t bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

static inline float from_bits(uint32_t b)
{
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

static inline uint16_t bf(float x)
{
    return ref_bf16_from_f32(x);
}

static inline float unbf(uint16_t x)
{
    return ref_f32_from_bf16(x);
}

static inline uint64_t random_bits(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * 0x2545f4914f6cdd1dull;
}

/* Close to normal, mean 0 and deviation 1, and the same on every machine: four 16-bit numbers, summed and scaled. */
static inline float random_value(uint64_t *state)
{
    const uint64_t r = random_bits(state);
    const int32_t sum = (int32_t)((r & 0xffff) + (r >> 16 & 0xffff) + (r >> 32 & 0xffff) + (r >> 48)) - 2 * 0xffff;
    return (float)sum * 0x1.bb67aep-16f;
}

static inline void fill_bf16(uint64_t seed, uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = bf(random_value(&seed));
    }
}

static inline void fill_f32(uint64_t seed, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = random_value(&seed);
    }
}

/* FNV-1a, to pin the bits of a larger result in one number. */
static inline uint64_t hash_of(const void *data, size_t n)
{
    const unsigned char *bytes = data;
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ bytes[i]) * 0x100000001b3ull;
    }
    return hash;
}

static inline void *allocate(size_t n)
{
    void *p = malloc(n);
    assert_non_null(p);
    return p;
}

#endif
