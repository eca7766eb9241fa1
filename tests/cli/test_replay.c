/* dsrows replay: the recorded step, records that are wrong or no records, and the digest. */
#include "command.h"
#include "safetensors.h"
#include "sha256.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "changed_file.h"

#define DATA DSR_SOURCE_DIR "/data/open_ops.safetensors"

/* Replays a copy of the record with the first four bytes of one tensor replaced. */
static command_result replay_changed(const char *name, const void *four_bytes)
{
    char message[ST_MESSAGE_BYTES];
    st_file *file = st_open(DATA, message);
    assert_non_null(file);
    const size_t n = st_n_tensors(file);
    st_tensor *tensors = calloc(n, sizeof *tensors);
    char *changed = NULL;
    assert_non_null(tensors);
    for (size_t i = 0; i < n; i++) {
        tensors[i] = *st_tensor_at(file, i);
        if (strcmp(tensors[i].name, name) == 0) {
            changed = malloc(tensors[i].n_bytes);
            assert_non_null(changed);
            memcpy(changed, tensors[i].data, tensors[i].n_bytes);
            memcpy(changed, four_bytes, 4);
            tensors[i].data = changed;
        }
    }
    assert_non_null(changed);
    assert_true(st_write("changed.safetensors", tensors, n, message));
    free(changed);
    free(tensors);
    st_close(file);
    return command_run("replay changed.safetensors");
}

/* The main job: passes on the recorded data, and its digest depends on neither instruction set nor threads. */
static void replay_gives_one_digest(void **state)
{
    static const char *const options[] = {"",           "--isa scalar", "--isa avx2",  "--isa avx512",
                                          "--isa neon", "--threads 2",  "--threads 5", "--exact row --isa scalar"};
    char digest[65] = "";
    (void)state;
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        command_result result = command_run("replay " DATA " --json %s", options[i]);
        if (result.code == 3) {
            print_message("%s: not available here\n", options[i]);
            command_free(&result);
            continue;
        }
        json_t *document = json_loads(result.out, 0, NULL);
        assert_int_equal(result.code, 0);
        assert_true(json_is_true(json_object_get(document, "passed")));
        const char *text = json_string_value(json_object_get(document, "digest"));
        assert_int_equal(json_array_size(json_object_get(document, "requests")), 8);
        if (i == 0) {
            memcpy(digest, text, sizeof digest);
        }
        assert_string_equal(digest, text);
        json_decref(document);
        command_free(&result);
    }
}

/* Row-exact kernels have bits of their own, which are not those of the digest, and a wider bound for attention. */
static void replay_passes_row_exact(void **state)
{
    (void)state;
    command_expect(0, "", "replay " DATA " --exact row");
}

static void replay_finds_a_wrong_record(void **state)
{
    static const struct {
        const char *name;
        float value;
    } cases[] = {{"sparse.expected.3", 0.25f},
                 {"indexer.scores.5", 0.25f},
                 {"compressor.r4d128.expected", 0.25f},
                 {"compressor.r128d512.kv", 9.0f}};
    const int32_t wrong_key = 7;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        command_result result = replay_changed(cases[i].name, &cases[i].value);
        assert_int_equal(result.code, 1);
        assert_non_null(strstr(result.out, "FAILED"));
        command_free(&result);
    }
    command_result result = replay_changed("indexer.top512.4", &wrong_key);
    assert_int_equal(result.code, 1);
    assert_non_null(strstr(result.out, "0 near ties in another order, 1 wrong"));
    command_free(&result);
}

static void replay_refuses_a_record_without_numbers(void **state)
{
    static const struct {
        const char *name;
        float value;
        const char *text;
    } cases[] = {
        {"sparse.expected.3", NAN, "tensor sparse.expected.3: element [0, 0] is nan, needed is a finite"},
        {"indexer.scores.5", INFINITY, "tensor indexer.scores.5: element [0] is inf, needed is a finite number or"},
        {"compressor.r4d128.expected", -INFINITY, "tensor compressor.r4d128.expected: element [0, 0] is -inf"},
        {"sparse.scale", NAN, "tensor sparse.scale: nan given, needed is a finite number above 0"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        command_result result = replay_changed(cases[i].name, &cases[i].value);
        assert_int_equal(result.code, 2);
        assert_non_null(strstr(result.err, cases[i].text));
        command_free(&result);
    }
}

/* A request, or a compressor, that would be left out because of a name. */
static void replay_takes_every_tensor_or_none(void **state)
{
    static const char *const cases[][3] = {
        {"\"sparse.q.7\"", "\"sparse.q.07\"", "tensor sparse.q.07: needed is sparse.q.R"},
        {"\"indexer.top512.7\"", "\"indexer.Top512.7\"", "tensor indexer.Top512.7: needed is indexer.top512.R"},
        {"\"indexer.top512.7\"", "\"indexer.top.7\"", "tensor indexer.top512.7 is missing"},
        {"\"sparse.scale\"", "\"sparse.scale.0\"", "tensor sparse.scale.0: needed is sparse.scale, one for all rows"},
        {".7\"", ":7\"", "tensor indexer.scores:7: needed is indexer.scores.R"},
        {"\"sparse.q.7\"", "\"sparse/q.7\"", "tensor sparse/q.7: needed is sparse.q.R"},
        {"\"sparse.scale\"", "\"sparse_scale\"", "tensor sparse_scale: needed is sparse.scale, one for all rows"},
        {"\"compressor.", "\"compressor_", "needed is compressor.rXdY.kv, .score, .expected, .ape or"},
        {"\"compressor.r4d128.", "\"compressor.r8d128.", "needed is compressor.rXdY.kv, .score, .expected, .ape or"},
        {"\"compressor.r4d128.kv", "\"Compressor.r4d128.kv", "tensor Compressor.r4d128.kv: needed is compressor.rXdY"},
        {"\\\"rms_norm_eps\\\": ", "\\\"rms_norm_eps\\\": -", "metadata config: rms_norm_eps is not a number from"},
        {"\"config\":\"{", "\"config\":\"[]\",\"other\":\"{", "metadata config is not a JSON object"},
        {"\"config\":\"{", "\"config\":\"", "metadata config is not JSON: byte"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_changed_header(DATA, cases[i][0], cases[i][1]);
        command_expect(2, cases[i][2], "replay changed.safetensors");
    }
    /* Requests 0 to 6 are whole: there would be a result. */
    write_changed_header(DATA, ".q.7\"", ".other.7\"");
    command_expect(2, "tensor sparse.q.7 is missing", "replay changed.safetensors");
}

/* The two examples of FIPS 180-4's publisher, and a length where the padding takes a block of its own. */
static void digest_is_sha256(void **state)
{
    static const struct {
        const char *text;
        const char *digest;
    } cases[] = {
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    char text[65];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sha256 h;
        sha256_init(&h);
        sha256_add(&h, cases[i].text, strlen(cases[i].text));
        sha256_finish(&h, text);
        assert_string_equal(text, cases[i].digest);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replay_gives_one_digest),           cmocka_unit_test(replay_passes_row_exact),
        cmocka_unit_test(replay_finds_a_wrong_record),       cmocka_unit_test(replay_refuses_a_record_without_numbers),
        cmocka_unit_test(replay_takes_every_tensor_or_none), cmocka_unit_test(digest_is_sha256),
    };
    return cmocka_run_group_tests(tests, command_enter_directory, command_leave_directory);
}
