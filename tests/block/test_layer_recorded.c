/* The repository's recorded layer, its short requests. */
#include "recorded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#ifdef DSR_TEST_EMULATED
enum { MAX_TOKENS = 60 };
#else
enum { MAX_TOKENS = 200 };
#endif

static void short_requests(void **state)
{
    (void)state;
    assert_true(recorded_check(DSR_SOURCE_DIR "/data/layer_csa.safetensors", DSR_LAYER_RATIO_4, MAX_TOKENS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(short_requests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
