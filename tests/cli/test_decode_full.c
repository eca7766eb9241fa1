/* dsrows decode on all recorded requests of the repository's layer: near-ties are proven, other errors are not. */
#include "command.h"
#include "safetensors.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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

/* The long request, its record changed at one step. */
static void write_changed_record(uint32_t step, float factor)
{
    char message[ST_MESSAGE_BYTES];
    st_tensor tensors[2];
    st_file *file = st_open(LAYER, message);
    assert_non_null(file);
    tensors[0] = *st_find(file, "x.4");
    tensors[1] = *st_find(file, "y.decode.4");
    float *changed = malloc(tensors[1].n_bytes);
    assert_non_null(changed);
    memcpy(changed, tensors[1].data, tensors[1].n_bytes);
    for (uint32_t i = 0; i < HIDDEN; i++)
        changed[step * HIDDEN + i] *= factor;
    tensors[0].name = "x.0";
    tensors[1].name = "y.decode.0";
    tensors[1].data = changed;
    if (!st_write("changed.safetensors", tensors, 2, message))
        fail_msg("%s", message);
    free(changed);
    st_close(file);
}

/* A record that the model does not give is no near-tie, though the request has near-ties at other steps. */
static void changed_record_fails(void **state)
{
    (void)state;
    write_changed_record(5, 1.05f);
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
