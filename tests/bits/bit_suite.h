/* A cmocka program that runs the bit matrix of one op: one test per shape. */
#ifndef TEST_BIT_SUITE_H
#define TEST_BIT_SUITE_H

#include "bit_matrix.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Seed of the quick tier and first seed of the full one; DSR_TEST_SEED replaces it. */
enum { BIT_SUITE_SEED = 1, BIT_SUITE_MAX_SHAPES = 16 };

static bit_contexts suite_contexts;
static const struct bit_op *suite_op;
static bit_tier suite_tier;

static uint64_t suite_seed(void)
{
    const char *text = getenv("DSR_TEST_SEED");
    return text ? strtoull(text, NULL, 0) : BIT_SUITE_SEED;
}

static void test_shape(void **state)
{
    const uint32_t shape = *(const uint32_t *)*state;
    char text[BIT_TEXT_BYTES] = "";
    uint32_t n_runs = 0;

    print_message("%s %s: seed %llu\n", bit_op_name(suite_op), bit_shape_name(suite_op, shape),
                  (unsigned long long)suite_seed());
    if (bit_matrix_run(&suite_contexts, suite_op, shape, suite_seed(), suite_tier, &n_runs, text) != 0) {
        fail_msg("%s", text);
    }
    print_message("%u runs\n", n_runs);
    assert_true(n_runs > 0);
}

static int bit_suite_run(const char *op_name, bit_tier tier)
{
    static uint32_t shapes[BIT_SUITE_MAX_SHAPES];
    static struct CMUnitTest tests[BIT_SUITE_MAX_SHAPES];
    char text[BIT_TEXT_BYTES];

    suite_op = bit_op_named(op_name);
    suite_tier = tier;
    if (!suite_op || bit_contexts_open(&suite_contexts, text) != 0) {
        fprintf(stderr, "%s: %s\n", op_name, suite_op ? text : "no such op");
        return EXIT_FAILURE;
    }
    for (uint32_t s = 0; s < bit_n_shapes(suite_op); s++) {
        const struct CMUnitTest test = {bit_shape_name(suite_op, s), test_shape, NULL, NULL, &shapes[s]};
        shapes[s] = s;
        memcpy(&tests[s], &test, sizeof test);
    }
    const int n_failed = _cmocka_run_group_tests(op_name, tests, bit_n_shapes(suite_op), NULL, NULL);
    bit_contexts_close(&suite_contexts);
    return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
