#include "vector_functions.h"

#include "cpu/cpu_kernel.h"
#include "cpu/kernels/cache_rows.h"
#include "cpu/vec/vec.h"
#include "cpu/vec/vmath.h"

static void exp_of(const float *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i += VF_LANES) {
        vf_store(y + i, v_exp(vf_load(x + i)));
    }
}

static void store_bf16(const float *x, uint16_t *y, size_t n)
{
    for (size_t i = 0; i < n; i += VF_LANES) {
        vf_store_bf16(y + i, vf_load(x + i));
    }
}

static void decode_key(const uint8_t *values, const uint8_t *scales, uint16_t *key)
{
    for (uint32_t f = 0; f < DSRI_INDEX_DIM; f += 2 * VF_LANES) {
        vi_store_pairs(key + f, key_pairs(values, scales, f));
    }
}

static void decode_row(const uint8_t *values, const uint8_t *scales, uint16_t *row)
{
    for (uint32_t f = 0; f < DSRI_HEAD_DIM; f += 2 * VF_LANES) {
        vi_store_pairs(row + f, row_pairs(values, scales, f));
    }
}

#define FUNCTIONS(isa)        FUNCTIONS_JOIN(vector_functions_, isa)
#define FUNCTIONS_JOIN(a, b)  FUNCTIONS_JOIN2(a, b)
#define FUNCTIONS_JOIN2(a, b) a##b
const vector_functions FUNCTIONS(DSRI_ISA) = {exp_of, store_bf16, decode_key, decode_row};
