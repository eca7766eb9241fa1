/* dsrows decode on all recorded requests of the repository's layer. */
#include "command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void recorded_layer_passes(void **state)
{
    command_result result = command_run("decode --model " DSR_SOURCE_DIR "/data/layer_csa.safetensors --threads 2");
    (void)state;
    print_message("%s", result.out);
    assert_int_equal(result.code, 0);
    command_free(&result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(recorded_layer_passes)};
    return cmocka_run_group_tests(tests, command_enter_directory, command_leave_directory);
}
