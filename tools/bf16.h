/* BF16 numbers: the upper half of an F32's bits. */
#ifndef DSROWS_BF16_H
#define DSROWS_BF16_H

#include <stdint.h>
#include <string.h>

static inline float bf16_value(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The nearest one, of two as near the even one. Not for NaNs. */
static inline uint16_t bf16_round(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#endif
