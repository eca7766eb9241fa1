/* Properties of every op: a row's bits depend on nothing but its own operands, and a command touches nothing outside
 * the ranges it declares. */
#include "property_test.h"

enum { MAX_ROWS = 8 }; /* of a case, to keep the reference quick */

static void in_order(uint32_t *order, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        order[i] = i;
    }
}

/* Long lists and caches are left to the full tier. */
static int is_long(const bit_case *c)
{
    uint64_t n = 0;
    for (uint32_t r = 0; r < c->n_rows; r++) {
        n += c->rows[r].n_queries * (c->rows[r].width * 4 + c->rows[r].kv_len);
    }
    return n > 4000;
}

typedef void (*property)(const bit_case *c, const bit_results *expected, random_stream *random);

static void for_every_shape(property holds)
{
    const uint64_t seed = property_seed();
    for (uint32_t i = 0; i < bit_n_ops(); i++) {
        for (uint32_t shape = 0; shape < bit_n_shapes(bit_op_at(i)); shape++) {
            random_stream random = random_open(seed, 100 * i + shape);
            bit_case *c = small_case(bit_op_at(i), shape, random_next(&random) % 1000, MAX_ROWS);
            if (is_full_tier() || !is_long(c)) {
                bit_results *expected = bit_reference(c);
                holds(c, expected, &random);
                bit_results_free(expected);
            }
            bit_case_free(c);
        }
    }
}

/* ---- rows permuted -> outputs permuted -------------------------------------------------------------------- */

static void permuted(const bit_case *c, const bit_results *expected, random_stream *random)
{
    dsr_context *chosen[N_CONTEXTS];
    uint32_t order[BIT_MAX_ROWS];
    const uint32_t n_contexts = choose_contexts(random, chosen);
    in_order(order, c->n_rows);
    for (uint32_t k = 0; k < n_contexts; k++) {
        random_shuffle(random, order, c->n_rows);
        const uint32_t n = random_between(random, 1, c->n_rows);
        bit_results *results = run_rows(c, order, n, random_next(random) % 1000, chosen[k]);
        for (uint32_t i = 0; i < n; i++) {
            assert_same_row(results, order[i], expected, order[i], bit_op_name(c->op));
        }
        bit_results_free(results);
    }
}

static void test_permuted_rows(void **state)
{
    (void)state;
    for_every_shape(permuted);
}

/* ---- the other rows' data do not matter ------------------------------------------------------------------- */

enum { FILL_NAN, FILL_HUGE, FILL_ZERO, FILL_BITS, N_FILLS };

static void fill(bit_array *array, int how, random_stream *random)
{
    static const uint32_t words[3] = {0x7fc00000u, 0x7149f2cau, 0}; /* NaN, 1e30, 0 */
    for (size_t i = 0; i < array->n; i++) {
        const uint32_t bits = how == FILL_BITS ? (uint32_t)random_next(random) : words[how];
        if (array->dtype == DSR_DTYPE_BF16) {
            bit_bf16(array)[i] = (uint16_t)(bits >> 16);
        } else if (dsr_dtype_size(array->dtype) == 4) {
            memcpy((uint8_t *)array->data + 4 * i, &bits, 4);
        } else {
            ((uint8_t *)array->data)[i] = (uint8_t)bits;
        }
    }
}

/* The case with every row but `kept` refilled, but for a cache that a row shares with it. */
static void refill_others(bit_case *c, uint32_t kept, int how, random_stream *random)
{
    for (uint32_t r = 0; r < c->n_rows; r++) {
        for (uint32_t i = 0; i < BIT_ROW_INPUTS && r != kept; i++) {
            if (c->rows[r].inputs[i].data && c->rows[r].inputs[i].data != c->rows[kept].inputs[i].data) {
                fill(&c->rows[r].inputs[i], how, random);
            }
        }
    }
}

static void other_rows_refilled(const bit_case *c, const bit_results *expected, random_stream *random)
{
    dsr_context *chosen[N_CONTEXTS];
    uint32_t order[BIT_MAX_ROWS];
    const uint32_t n_contexts = choose_contexts(random, chosen);
    in_order(order, c->n_rows);
    for (uint32_t k = 0; k < n_contexts; k++) {
        const int first_fill = is_full_tier() ? 0 : (int)random_below(random, N_FILLS - 1);
        for (int how = first_fill; how < (is_full_tier() ? (int)N_FILLS : first_fill + 2); how++) {
            const uint32_t kept = random_below(random, c->n_rows);
            bit_case *changed = small_case(c->op, c->shape, c->seed, MAX_ROWS);
            refill_others(changed, kept, how, random);
            random_shuffle(random, order, c->n_rows);
            bit_results *results = run_rows(changed, order, c->n_rows, random_next(random) % 1000, chosen[k]);
            assert_same_row(results, kept, expected, kept, bit_op_name(c->op));
            bit_results_free(results);
            bit_case_free(changed);
        }
    }
}

static void test_other_rows_refilled(void **state)
{
    (void)state;
    for_every_shape(other_rows_refilled);
}

/* ---- run to run, replays, addresses ----------------------------------------------------------------------- */

static void repeated(const bit_case *c, const bit_results *expected, random_stream *random)
{
    dsr_context *chosen[N_CONTEXTS];
    uint32_t order[BIT_MAX_ROWS];
    const uint32_t n_contexts = choose_contexts(random, chosen);
    char text[BIT_TEXT_BYTES] = "";
    in_order(order, c->n_rows);
    for (uint32_t k = 0; k < n_contexts; k++) {
        for (int address = 0; address < 2; address++) {
            const bit_layout layout = {random_next(random) % 1000, address == 1, address ? 0x55 : 0xff};
            const bit_run run = {FP_MODE_DEFAULT, 1, 0};
            if (bit_check(c, expected, order, c->n_rows, &layout, chosen[k], &run, text) != 0) {
                fail_msg("%s", text);
            }
        }
    }
}

static void test_repeated(void **state)
{
    (void)state;
    for_every_shape(repeated);
}

/* ---- declared ranges -------------------------------------------------------------------------------------- */

static void inside_declared_ranges(const bit_case *c, const bit_results *expected, random_stream *random)
{
    dsr_context *chosen[N_CONTEXTS];
    uint32_t order[BIT_MAX_ROWS];
    const uint32_t n_contexts = choose_contexts(random, chosen);
    char text[BIT_TEXT_BYTES] = "";
    in_order(order, c->n_rows);
    for (uint32_t k = 0; k < n_contexts; k++) {
        for (int i = 0; i < 2; i++) {
            const bit_layout layout = {i ? 1 + random_next(random) % 1000 : 0, i, 0xff};
            const bit_run run = {FP_MODE_DEFAULT, 0, 1};
            random_shuffle(random, order, c->n_rows);
            const uint32_t n = random_between(random, 1, c->n_rows);
            if (bit_check(c, expected, order, n, &layout, chosen[k], &run, text) != 0) {
                fail_msg("%s", text);
            }
        }
    }
}

static void test_inside_declared_ranges(void **state)
{
    (void)state;
    for_every_shape(inside_declared_ranges);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_permuted_rows),
        cmocka_unit_test(test_other_rows_refilled),
        cmocka_unit_test(test_repeated),
        cmocka_unit_test(test_inside_declared_ranges),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
