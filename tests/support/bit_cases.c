#include "bit_cases.h"

#include "bit_case_ops.h"
#include "bit_diff.h"
#include "need_memory.h"

#include <stdlib.h>
#include <string.h>

static const bit_op *const all_ops[] = {&bit_op_sparse_attention,
                                        &bit_op_flash_attention,
                                        &bit_op_indexer,
                                        &bit_op_compressor,
                                        &bit_op_gather,
                                        &bit_op_copy,
                                        &bit_op_rope,
                                        &bit_op_fake_quant,
                                        &bit_op_rms_norm,
                                        &bit_op_projection,
                                        &bit_op_append,
                                        &bit_op_convert};

uint32_t bit_n_ops(void)
{
    return (uint32_t)(sizeof all_ops / sizeof all_ops[0]);
}

const bit_op *bit_op_at(uint32_t index)
{
    return all_ops[index];
}

const bit_op *bit_op_named(const char *name)
{
    for (uint32_t i = 0; i < bit_n_ops(); i++) {
        if (strcmp(all_ops[i]->name, name) == 0) {
            return all_ops[i];
        }
    }
    return NULL;
}

const char *bit_op_name(const bit_op *op)
{
    return op->name;
}

uint32_t bit_n_shapes(const bit_op *op)
{
    return op->n_shapes;
}

const char *bit_shape_name(const bit_op *op, uint32_t shape)
{
    return op->shapes[shape];
}

bit_array bit_array_new(dsr_dtype dtype, size_t n)
{
    const bit_array array = {dtype, n, need_memory(calloc(n ? n : 1, dsr_dtype_size(dtype))), 0};
    return array;
}

bit_array bit_array_copy(const bit_array *array)
{
    bit_array copy = bit_array_new(array->dtype, array->n);
    memcpy(copy.data, array->data, bit_array_bytes(array));
    return copy;
}

bit_array bit_array_borrow(const bit_array *array)
{
    bit_array borrowed = *array;
    borrowed.borrowed = 1;
    return borrowed;
}

void bit_array_free(bit_array *array)
{
    if (!array->borrowed) {
        free(array->data);
    }
    memset(array, 0, sizeof *array);
}

size_t bit_array_bytes(const bit_array *array)
{
    return array->n * dsr_dtype_size(array->dtype);
}

uint16_t *bit_bf16(const bit_array *array)
{
    return array->data;
}

float *bit_f32(const bit_array *array)
{
    return array->data;
}

int32_t *bit_i32(const bit_array *array)
{
    return array->data;
}

bit_case *bit_case_new(const bit_op *op, uint32_t shape, uint64_t seed)
{
    bit_case *c = need_memory(calloc(1, sizeof *c));
    c->op = op;
    c->shape = shape;
    c->seed = seed;
    op->generate(c);
    return c;
}

void bit_case_free(bit_case *c)
{
    if (!c) {
        return;
    }
    for (uint32_t i = 0; i < BIT_SHARED_INPUTS; i++) {
        bit_array_free(&c->shared[i]);
    }
    for (uint32_t r = 0; r < c->n_rows; r++) {
        for (uint32_t i = 0; i < BIT_ROW_INPUTS; i++) {
            bit_array_free(&c->rows[r].inputs[i]);
        }
    }
    free(c);
}

bit_results *bit_reference(const bit_case *c)
{
    bit_results *results = need_memory(calloc(1, sizeof *results));
    results->n_rows = c->n_rows;
    for (uint32_t r = 0; r < c->n_rows; r++) {
        c->op->reference(c, &c->rows[r], results->outputs[r]);
    }
    return results;
}

void bit_results_free(bit_results *results)
{
    if (!results) {
        return;
    }
    for (uint32_t r = 0; r < results->n_rows; r++) {
        for (uint32_t i = 0; i < BIT_ROW_OUTPUTS; i++) {
            bit_array_free(&results->outputs[r][i]);
        }
    }
    free(results);
}

uint64_t bit_results_hash(const bit_results *results)
{
    uint64_t hash = BIT_HASH_START;
    for (uint32_t r = 0; r < results->n_rows; r++) {
        for (uint32_t i = 0; i < BIT_ROW_OUTPUTS; i++) {
            hash = bit_hash(hash, results->outputs[r][i].data, bit_array_bytes(&results->outputs[r][i]));
        }
    }
    return hash;
}

int bit_check(const bit_case *c, const bit_results *expected, const uint32_t *order, uint32_t n,
              const bit_layout *layout, dsr_context *context, const bit_run *run, char text[BIT_TEXT_BYTES])
{
    bit_placement *p = bit_place(c, order, n, layout, context, text);
    if (!p) {
        return -1;
    }
    const int result = bit_execute(p, context, run, expected, text);
    bit_placement_free(p);
    return result;
}
