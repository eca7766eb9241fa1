/* Every level of this build gives the bits of tests/golden/bits.txt.
 *
 *   test_golden_bits             check the reference and every level of this machine against the file
 *   test_golden_bits --write     maintainers: write the file anew from the reference. The bits are part of the
 * interface (docs/numerics.md): a line that changes needs a commit of its own that says why. */
#include "bit_golden.h"
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

static const char golden_path[] = DSR_SOURCE_DIR "/tests/golden/bits.txt";

static bit_golden_line *lines;
static bit_contexts contexts;

static int setup(void **state)
{
    char text[BIT_TEXT_BYTES];
    (void)state;
    lines = calloc(bit_golden_n_lines(), sizeof *lines);
    if (!lines) {
        return -1;
    }
    if (bit_golden_read(golden_path, lines, text) != 0 || bit_contexts_open(&contexts, text) != 0) {
        print_error("%s\n", text);
        return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    bit_contexts_close(&contexts);
    free(lines);
    return 0;
}

static uint32_t n_wrong; /* of the current test */

static void check(const char *who, const bit_golden_line *line, uint64_t hash)
{
    if (hash != line->hash) {
        print_error("%s, %s %s seed %llu: hash %016llx, want %016llx\n", who, bit_op_name(line->op),
                    bit_shape_name(line->op, line->shape), (unsigned long long)line->seed, (unsigned long long)hash,
                    (unsigned long long)line->hash);
        n_wrong++;
    }
}

static void test_reference(void **state)
{
    (void)state;
    n_wrong = 0;
    for (uint32_t i = 0; i < bit_golden_n_lines(); i++) {
        bit_case *c = bit_case_new(lines[i].op, lines[i].shape, lines[i].seed);
        bit_results *results = bit_reference(c);
        check("reference", &lines[i], bit_results_hash(results));
        bit_results_free(results);
        bit_case_free(c);
    }
    assert_int_equal(n_wrong, 0);
}

static void check_level(dsr_context *context)
{
    char text[BIT_TEXT_BYTES];
    if (!context) {
        skip();
    }
    n_wrong = 0;
    for (uint32_t i = 0; i < bit_golden_n_lines(); i++) {
        uint64_t hash = 0;
        if (bit_golden_run(&lines[i], context, &hash, text) != 0) {
            fail_msg("%s", text);
        }
        check(dsr_isa_name(dsr_context_isa(context)), &lines[i], hash);
    }
    assert_int_equal(n_wrong, 0);
}

static void test_scalar(void **state)
{
    (void)state;
    check_level(contexts.of[0][2]);
}

static void test_avx2(void **state)
{
    (void)state;
    check_level(contexts.of[1][2]);
}

static void test_avx512(void **state)
{
    (void)state;
    check_level(contexts.of[2][2]);
}

static void test_neon(void **state)
{
    (void)state;
    check_level(contexts.of[3][2]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference), cmocka_unit_test(test_scalar), cmocka_unit_test(test_avx2),
        cmocka_unit_test(test_avx512),    cmocka_unit_test(test_neon),
    };
    char text[BIT_TEXT_BYTES];

    if (argc == 2 && strcmp(argv[1], "--write") == 0) {
        if (bit_golden_write(golden_path, text) != 0) {
            print_error("%s\n", text);
            return EXIT_FAILURE;
        }
        return EXIT_SUCCESS;
    }
    return cmocka_run_group_tests(tests, setup, teardown) ? EXIT_FAILURE : EXIT_SUCCESS;
}
