/* dsrows decode on all recorded requests of the repository's layer: near-ties are proven, other errors are not. */
#include "command.h"
#include "safetensors.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "changed_file.h"

#define LAYER DSR_SOURCE_DIR "/data/layer_csa.safetensors"

enum { HIDDEN = 256, STEPS = 16, LONG_REQUEST = 4 };

static const json_t *request_of(const json_t *document, size_t request)
{
    const json_t *layer = json_array_get(json_object_get(document, "layers"), 0);
    return json_array_get(json_object_get(layer, "requests"), request);
}

static void recorded_layer_passes(void **state)
{
    command_result result = command_run("decode --json --threads 2 --model " LAYER);
    json_t *document = json_loads(result.out, 0, NULL);
    const json_t *request = request_of(document, LONG_REQUEST);
    (void)state;
    assert_int_equal(result.code, 0);
    assert_string_equal(result.err, "");
    assert_true(json_is_true(json_object_get(document, "passed")));
    assert_true(json_integer_value(json_object_get(request, "near_ties")) > 0);
    assert_int_equal(json_integer_value(json_object_get(request, "unproven")), 0);
    const double gap = json_real_value(json_object_get(request, "largest_gap"));
    assert_true(gap > 0 && gap <= json_real_value(json_object_get(request, "allowed_gap")));
    assert_true(json_real_value(json_object_get(request, "largest_error")) > 3e-2);
    json_decref(document);
    command_free(&result);
}

/* A record that the model does not give is no near-tie, though the request has near-ties at other steps. */
static void changed_record_fails(void **state)
{
    (void)state;
    write_changed_record(LAYER, LONG_REQUEST, 5 * HIDDEN, HIDDEN, 1.05f, "changed.safetensors");
    command_result result = command_run("decode --json --threads 2 --model " LAYER " --requests changed.safetensors");
    json_t *document = json_loads(result.out, 0, NULL);
    const json_t *request = request_of(document, 0);
    assert_int_equal(result.code, 1);
    assert_true(json_integer_value(json_object_get(request, "near_ties")) > 0);
    assert_int_equal(json_integer_value(json_object_get(request, "unproven")), 1);
    assert_true(json_is_false(json_object_get(request, "passed")));
    assert_non_null(strstr(result.err, "the first, of token 2605, "));
    assert_non_null(strstr(result.err, "a float64 model of the layer does not reproduce the record"));
    json_decref(document);
    command_free(&result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(recorded_layer_passes), cmocka_unit_test(changed_record_fails)};
    return cmocka_run_group_tests(tests, command_enter_directory, command_leave_directory);
}
