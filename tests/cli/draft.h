/* Case files in the making, and results of `dsrows run` on them. */
#ifndef TEST_DRAFT_H
#define TEST_DRAFT_H

#include "command.h"
#include "patterns.h"
#include "safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_TENSORS = 64 };

typedef struct draft {
    st_tensor tensors[MAX_TENSORS];
    size_t n;
    random_stream random;
} draft;

static inline draft *new_draft(uint64_t seed)
{
    draft *d = calloc(1, sizeof *d);
    assert_non_null(d);
    d->random = random_open(seed, 0);
    return d;
}

static inline void free_draft(draft *d)
{
    for (size_t i = 0; i < d->n; i++) {
        free((void *)(uintptr_t)d->tensors[i].name);
        free((void *)(uintptr_t)d->tensors[i].data);
    }
    free(d);
}

/* A tensor NAME, or NAME.R for r >= 0, of zeros. */
static inline void *add(draft *d, const char *name, int r, const char *dtype, uint32_t n_dims, uint64_t rows,
                        uint64_t columns)
{
    char full_name[32];
    const size_t size = strcmp(dtype, "U8") == 0 ? 1 : strcmp(dtype, "BF16") == 0 ? 2 : 4;
    assert_true(d->n < MAX_TENSORS);
    st_tensor *tensor = &d->tensors[d->n++];
    snprintf(full_name, sizeof full_name, r < 0 ? "%s" : "%s.%d", name, r);
    void *data = calloc(rows * columns + 1, size);
    *tensor = (st_tensor){.name = strdup(full_name),
                          .dtype = dtype,
                          .n_dims = n_dims,
                          .shape = {rows, columns},
                          .n_elements = rows * columns,
                          .n_bytes = rows * columns * size,
                          .data = data};
    assert_non_null(data);
    return data;
}

static inline uint16_t *add_bf16(draft *d, const char *name, int r, uint64_t rows, uint64_t columns)
{
    uint16_t *x = add(d, name, r, "BF16", 2, rows, columns);
    pattern_fill_bf16(&d->random, PATTERN_NORMAL, 1, x, rows * columns);
    return x;
}

static inline float *add_f32(draft *d, const char *name, int r, uint32_t n_dims, uint64_t rows, uint64_t columns)
{
    float *x = add(d, name, r, "F32", n_dims, rows, columns);
    pattern_fill_f32(&d->random, PATTERN_NORMAL, 1, x, rows * columns);
    return x;
}

static inline void write_draft(const draft *d, const char *path)
{
    char message[ST_MESSAGE_BYTES];
    if (!st_write(path, d->tensors, d->n, message)) {
        fail_msg("%s", message);
    }
}

static inline const st_tensor *drafted(const draft *d, const char *name, int r)
{
    char full_name[32];
    snprintf(full_name, sizeof full_name, r < 0 ? "%s" : "%s.%d", name, r);
    for (size_t i = 0; i < d->n; i++) {
        if (strcmp(d->tensors[i].name, full_name) == 0) {
            return &d->tensors[i];
        }
    }
    fail_msg("no tensor %s", full_name);
    return NULL;
}

static inline void expect_tensor(st_file *file, const char *name, int r, const char *dtype, uint32_t n_dims,
                                 uint64_t rows, uint64_t columns, const void *expected)
{
    char full_name[32];
    snprintf(full_name, sizeof full_name, r < 0 ? "%s" : "%s.%d", name, r);
    const st_tensor *tensor = st_find(file, full_name);
    assert_non_null(tensor);
    assert_string_equal(tensor->dtype, dtype);
    assert_int_equal(tensor->n_dims, n_dims);
    assert_int_equal(tensor->shape[0], rows);
    assert_int_equal(n_dims == 2 ? tensor->shape[1] : columns, columns);
    if (memcmp(tensor->data, expected, (size_t)tensor->n_bytes) != 0) {
        fail_msg("bits of %s differ from the reference's", full_name);
    }
}

static inline st_file *run_and_open(const char *op, const char *options)
{
    char message[ST_MESSAGE_BYTES];
    command_result result = command_run("run %s --in case.safetensors --out result.safetensors %s", op, options);
    if (result.code != 0) {
        fail_msg("dsrows run %s %s: exit code %d, %s", op, options, result.code, result.err);
    }
    command_free(&result);
    st_file *file = st_open("result.safetensors", message);
    assert_non_null(file);
    return file;
}

#endif
