/* What property tests share: cmocka, the seed that is printed, rows of results compared by bits. */
#ifndef TEST_PROPERTY_TEST_H
#define TEST_PROPERTY_TEST_H

#include "bit_diff.h"
#include "bit_matrix.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <stdlib.h>
#include <string.h>

static bit_contexts contexts;

/* DSR_TEST_SEED, else a fixed one; printed with every test that draws. */
static inline uint64_t property_seed(void)
{
    const char *text = getenv("DSR_TEST_SEED");
    const uint64_t seed = text ? strtoull(text, NULL, 0) : 20260;
    print_message("seed %llu\n", (unsigned long long)seed);
    return seed;
}

static inline int open_contexts(void **state)
{
    char text[BIT_TEXT_BYTES];
    (void)state;
    if (bit_contexts_open(&contexts, text) != 0) {
        print_error("%s\n", text);
        return -1;
    }
    return 0;
}

static inline int close_contexts(void **state)
{
    (void)state;
    bit_contexts_close(&contexts);
    return 0;
}

/* DSR_TEST_TIER=full: every level of the machine, where the quick tier draws one beside the best. */
static inline int is_full_tier(void)
{
    const char *tier = getenv("DSR_TEST_TIER");
    return tier && strcmp(tier, "full") == 0;
}

enum { N_CONTEXTS = BIT_N_ISAS * BIT_N_THREAD_COUNTS };

/* The contexts to try: all of them, or the best level with 5 threads and a drawn one. Returns how many. */
static inline uint32_t choose_contexts(random_stream *random, dsr_context *chosen[N_CONTEXTS])
{
    dsr_context *all[N_CONTEXTS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < N_CONTEXTS; i++) {
        dsr_context *context = contexts.of[i / BIT_N_THREAD_COUNTS][i % BIT_N_THREAD_COUNTS];
        if (context) {
            all[n++] = context;
        }
    }
    if (is_full_tier()) {
        memcpy(chosen, all, n * sizeof *all);
        return n;
    }
    chosen[0] = all[n - 1];
    chosen[1] = all[random_below(random, n)];
    return 2;
}

/* The first rows of a case. */
static inline bit_case *small_case(const struct bit_op *op, uint32_t shape, uint64_t seed, uint32_t max_rows)
{
    bit_case *c = bit_case_new(op, shape, seed);
    for (uint32_t r = max_rows; r < c->n_rows; r++) {
        for (uint32_t i = 0; i < BIT_ROW_INPUTS; i++) {
            bit_array_free(&c->rows[r].inputs[i]);
        }
    }
    c->n_rows = c->n_rows < max_rows ? c->n_rows : max_rows;
    return c;
}

/* Elements [first, first + n) of an array, followed by n_more zeros. */
static inline bit_array slice_array(const bit_array *array, size_t first, size_t n, size_t n_more)
{
    const size_t element = dsr_dtype_size(array->dtype);
    bit_array slice = bit_array_new(array->dtype, n + n_more);
    memcpy(slice.data, (const uint8_t *)array->data + first * element, n * element);
    return slice;
}

static inline void replace_array(bit_array *array, bit_array with)
{
    bit_array_free(array);
    *array = with;
}

static inline void assert_same_row(const bit_results *got, uint32_t got_row, const bit_results *want, uint32_t want_row,
                                   const char *what)
{
    for (uint32_t i = 0; i < BIT_ROW_OUTPUTS; i++) {
        const bit_array *a = &got->outputs[got_row][i], *b = &want->outputs[want_row][i];
        char text[128];
        if (!a->data) {
            continue; /* a layout without that output, such as an indexer's scores */
        }
        assert_int_equal(a->n, b->n);
        const size_t at = bit_diff_first(a->data, b->data, bit_array_bytes(a));
        if (at < bit_array_bytes(a)) {
            bit_diff_describe(a->data, b->data, at, a->dtype, text, sizeof text);
            fail_msg("%s: row %u output %u element %zu: %s", what, got_row, i, at / dsr_dtype_size(a->dtype), text);
        }
    }
}

/* Place rows[order[0..n)] in a layout, run, read back. */
static inline bit_results *run_rows(const bit_case *c, const uint32_t *order, uint32_t n, uint64_t layout_seed,
                                    dsr_context *context)
{
    const bit_layout layout = {layout_seed, (int)(layout_seed % 3 == 2), 0xff};
    const bit_run run = {FP_MODE_DEFAULT, 0, 0};
    char text[BIT_TEXT_BYTES];
    bit_placement *p = bit_place(c, order, n, &layout, context, text);
    if (!p) {
        fail_msg("%s", text);
    }
    bit_results *results = bit_execute_read(p, context, &run, text);
    bit_placement_free(p);
    if (!results) {
        fail_msg("%s", text);
    }
    return results;
}

#endif
