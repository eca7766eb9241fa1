/* All requests of the recorded layers: the repository's cut, and the whole recordings where they lie beside it. */
#include "recorded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define SHARED DSR_SOURCE_DIR "/../shared/data/open_layer_"

static void cut_layer(void **state)
{
    (void)state;
    assert_true(recorded_check(DSR_SOURCE_DIR "/data/layer_csa.safetensors", DSR_LAYER_RATIO_4, UINT32_MAX));
}

static void window_layer(void **state)
{
    (void)state;
    if (!recorded_check(SHARED "sliding.safetensors", DSR_LAYER_WINDOW, UINT32_MAX))
        skip();
}

static void ratio_4_layer(void **state)
{
    (void)state;
    if (!recorded_check(SHARED "csa.safetensors", DSR_LAYER_RATIO_4, UINT32_MAX))
        skip();
}

static void ratio_128_layer(void **state)
{
    (void)state;
    if (!recorded_check(SHARED "hca.safetensors", DSR_LAYER_RATIO_128, UINT32_MAX))
        skip();
}

static void cost_of_each_boundary(void **state)
{
    (void)state;
    assert_true(recorded_print_boundaries(DSR_SOURCE_DIR "/data/layer_csa.safetensors", DSR_LAYER_RATIO_4));
    (void)recorded_print_boundaries(SHARED "sliding.safetensors", DSR_LAYER_WINDOW);
    (void)recorded_print_boundaries(SHARED "hca.safetensors", DSR_LAYER_RATIO_128);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_layer),       cmocka_unit_test(window_layer),          cmocka_unit_test(ratio_4_layer),
        cmocka_unit_test(ratio_128_layer), cmocka_unit_test(cost_of_each_boundary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
