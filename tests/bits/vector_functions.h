/* The vector functions of one instruction set on arrays; built once per level, as the kernels are. */
#ifndef TEST_VECTOR_FUNCTIONS_H
#define TEST_VECTOR_FUNCTIONS_H

#include <stddef.h>
#include <stdint.h>

/* n is a multiple of 16. */
typedef struct vector_functions {
    void (*exp)(const float *x, float *y, size_t n);
    void (*store_bf16)(const float *x, uint16_t *y, size_t n);
    /* As ref_decode_fp4_key and ref_decode_fp8_row. */
    void (*decode_key)(const uint8_t *values, const uint8_t *scales, uint16_t *key);
    void (*decode_row)(const uint8_t *values, const uint8_t *scales, uint16_t *row);
} vector_functions;

extern const vector_functions vector_functions_scalar, vector_functions_avx2, vector_functions_avx512,
    vector_functions_neon;

#endif
