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

static void key_to_bf16(const uint8_t *values, const uint8_t *scales, uint16_t *key)
{
    decode_key((dsri_cache_entry){values, scales}, key);
}

static void row_to_bf16(const uint8_t *values, const uint8_t *scales, uint16_t *row)
{
    decode_row((dsri_cache_entry){values, scales}, row);
}

#define FUNCTIONS(isa)        FUNCTIONS_JOIN(vector_functions_, isa)
#define FUNCTIONS_JOIN(a, b)  FUNCTIONS_JOIN2(a, b)
#define FUNCTIONS_JOIN2(a, b) a##b
const vector_functions FUNCTIONS(DSRI_ISA) = {exp_of, store_bf16, key_to_bf16, row_to_bf16};
