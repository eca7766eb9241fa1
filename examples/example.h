/* What the examples share: stopping on errors, and operands to compute with. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <dsrows/dsrows.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program if a call failed. The context's text says which row and field, what was given and what is needed. */
static inline void check(const dsr_context *context, dsr_status status)
{
    if (status != DSR_OK) {
        fprintf(stderr, "%s: %s\n", dsr_status_name(status), dsr_context_error_text(context));
        exit(1);
    }
}

static inline dsr_context *open_context(const dsr_context_desc *desc)
{
    dsr_context *context = NULL;
    if (dsr_context_create(desc, &context) != DSR_OK) {
        fprintf(stderr, "%s\n", dsr_create_error_text());
        exit(1);
    }
    return context;
}

/* A new buffer of n elements. */
static inline dsr_view new_view(dsr_context *context, uint64_t n, dsr_dtype dtype)
{
    dsr_buffer *buffer = NULL;
    check(context, dsr_buffer_create(context, n * dsr_dtype_size(dtype), &buffer));
    return dsr_view_whole(buffer, dtype);
}

/* On a CPU context a buffer's memory is ordinary memory. */
static inline void *data_of(dsr_view view)
{
    return (char *)dsr_buffer_data(view.buffer) + view.byte_offset;
}

/* n BF16 numbers between -1 and 1. */
static inline void fill_bf16(uint16_t *x, uint64_t n, uint32_t seed)
{
    for (uint64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        const float value = (float)(int32_t)seed * 0x1p-31f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        x[i] = (uint16_t)(bits >> 16);
    }
}

static inline float f32_of_bf16(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
