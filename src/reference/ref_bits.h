#ifndef DSROWS_REF_BITS_H
#define DSROWS_REF_BITS_H

#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

static inline float float_of(uint32_t b)
{
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

#endif
