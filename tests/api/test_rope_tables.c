/* The published RoPE tables against their formulas in float64. */
#include "api_fixture.h"

#include <math.h>

enum { N_PAIRS = DSR_ROPE_DIM / 2 };

static double yarn(int i)
{
    const double pi = acos(-1.0);
    const double low = floor(64.0 * log(65536.0 / (32.0 * 2.0 * pi)) / (2.0 * log(160000.0)));
    const double high = ceil(64.0 * log(65536.0 / (1.0 * 2.0 * pi)) / (2.0 * log(160000.0)));
    const double ramp = fmin(fmax((i - low) / (high - low), 0.0), 1.0);
    const double f = pow(160000.0, -2.0 * i / 64.0);
    return f / 16.0 * ramp + f * (1.0 - ramp);
}

static void test_formulas(void **state)
{
    const float *base = dsr_rope_frequencies(DSR_ROPE_BASE), *table = dsr_rope_frequencies(DSR_ROPE_YARN);
    (void)state;
    for (int i = 0; i < N_PAIRS; i++) {
        const float expected_base = (float)pow(10000.0, -2.0 * i / 64.0), expected = (float)yarn(i);
        assert_memory_equal(&base[i], &expected_base, sizeof(float));
        assert_memory_equal(&table[i], &expected, sizeof(float));
    }
}

static void test_reference_values(void **state)
{
    static const struct {
        int pair;
        double value;
    } values[] = {{0, 1},
                  {1, 0.687656022},
                  {8, 0.05},
                  {15, 0.00363553858},
                  {16, 0.002265625},
                  {18, 0.000849689727},
                  {20, 0.000296977778},
                  {22, 9.0867843e-05},
                  {24, 1.953125e-05},
                  {25, 5.37231267e-06},
                  {28, 1.74692811e-06},
                  {31, 5.68052904e-07}};
    (void)state;
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        const double found = (double)dsr_rope_frequencies(DSR_ROPE_YARN)[values[i].pair];
        assert_true(fabs(found - values[i].value) <= values[i].value * 0x1p-24);
    }
}

static void test_bad_table(void **state)
{
    (void)state;
    assert_null(dsr_rope_frequencies((dsr_rope_table)2));
    assert_null(dsr_rope_frequencies((dsr_rope_table)-1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_reference_values),
        cmocka_unit_test(test_bad_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
