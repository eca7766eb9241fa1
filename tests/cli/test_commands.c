/* Exit codes, messages, JSON and help of every command. */
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
#include <unistd.h>

#include <cmocka.h>

#define DATA  DSR_SOURCE_DIR "/data/open_ops.safetensors"
#define LAYER DSR_SOURCE_DIR "/data/layer_csa.safetensors"

static void says_what_bad_usage_is(void **state)
{
    (void)state;
    command_expect(2, "usage: dsrows COMMAND", "");
    command_expect(2, "'frobnicate' is not a command", "frobnicate");
    command_expect(2, "no argument is needed, 'x' given", "info x");
    command_expect(2, "dsrows decode: option '--model' requires an argument", "decode --model");
    command_expect(2, "no OP given", "run");
    command_expect(2, "'conv' is not an op", "run conv --in a --out b");
    command_expect(2, "more than one OP", "run gather indexer --in a --out b");
    command_expect(2, "--in and --out are needed", "run gather --in a");
    command_expect(2, "'x' is not a row number", "run gather --in a --out b --only 1,x");
    command_expect(2, "'' is not a row number", "run gather --in a --out b --only 1,");
    command_expect(2, "'00' is not a row number", "run gather --in a --out b --only 00");
    command_expect(2, "'0000000000000000000000005x' is not a row number",
                   "run gather --in a --out b --only 0000000000000000000000005x");
    command_expect(2, "row 1 is given twice", "run gather --in a --out b --only 1,2,1");
    command_expect(2, "--threads -1: give a number", "run gather --in a --out b --threads -1");
    command_expect(2, "--threads 0: give a number from 1 to 1024", "run gather --in a --out b --threads 0");
    command_expect(2, "--threads 1025", "run gather --in a --out b --threads 1025");
    command_expect(2, "--isa sse2: give auto", "run gather --in a --out b --isa sse2");
    command_expect(2, "--exact very: give row or device", "run gather --in a --out b --exact very");
    command_expect(2, "--backend tpu: give cpu or cuda", "run gather --in a --out b --backend tpu");
    command_write_text("same.safetensors", "");
    command_expect(2, "--out ./same.safetensors is the file of --in",
                   "run gather --in same.safetensors --out ./same.safetensors");
    command_expect(2, "give one FILE", "replay");
    command_expect(2, "missing.safetensors: No such file", "replay missing.safetensors");
}

/* One line from getopt_long, one hint. */
static void says_once_what_is_no_option(void **state)
{
    static const char *const commands[] = {"info", "run", "replay", "decode", "verify", "bench"};
    char text[128];
    (void)state;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        command_result result = command_run("%s --nonsense", commands[i]);
        snprintf(text, sizeof text, "dsrows %s: unrecognized option '--nonsense'\nTry 'dsrows %s --help'.\n",
                 commands[i], commands[i]);
        assert_int_equal(result.code, 2);
        assert_string_equal(result.err, text);
        command_free(&result);
    }
}

/* The last one would count and the others go unsaid. */
static void refuses_an_option_given_twice(void **state)
{
    static const char *const cases[][2] = {
        {"info --json --json", "dsrows info: --json is given twice\nTry 'dsrows info --help'."},
        {"run gather --in a --in b --out c", "dsrows run: --in is given twice"},
        {"run gather --in a --out c --only 1 --only 2", "dsrows run: --only is given twice"},
        {"replay --threads 1 --threads 1 " DATA, "dsrows replay: --threads is given twice"},
        {"decode --requests a --model b --req c", "dsrows decode: --requests is given twice"},
        {"verify --seed 1 --seed=2", "dsrows verify: --seed is given twice"},
        {"bench --shapes a --versus isa=avx2 --versus isa=scalar", "dsrows bench: --versus is given twice"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        command_expect(2, cases[i][1], cases[i][0]);
    }
    command_expect(2, "b: No such file", "decode --model " LAYER " --model b --requests b");
}

static void says_what_is_wrong_with_the_environment(void **state)
{
    static const char *const commands[] = {"info", "verify", "replay " DATA};
    (void)state;
    assert_int_equal(setenv("DSR_WITHOUT", "nonsense", 1), 0);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        command_expect(2, "DSR_WITHOUT names \"nonsense\", known are", commands[i]);
    assert_int_equal(setenv("DSR_WITHOUT", ",", 1), 0);
    command_expect(2, "DSR_WITHOUT names \"\", known are", "info");
    assert_int_equal(unsetenv("DSR_WITHOUT"), 0);
    assert_int_equal(setenv("DSR_ISA", "nonsense", 1), 0);
    command_expect(2, "DSR_ISA is \"nonsense\", needed is auto, scalar", "info");
    command_expect(2, "DSR_ISA is \"nonsense\", needed is auto, scalar", "replay " DATA);
    assert_int_equal(unsetenv("DSR_ISA"), 0);
}

/* No machine has both kinds of CPU. */
static void says_what_is_not_available(void **state)
{
    (void)state;
    command_result neon = command_run("replay " DATA " --isa neon");
    command_result avx2 = command_run("replay " DATA " --isa avx2");
    assert_true(neon.code == 3 || avx2.code == 3);
    assert_non_null(strstr(neon.code == 3 ? neon.err : avx2.err, "DSR_ERR_UNSUPPORTED_ISA"));
    command_free(&neon);
    command_free(&avx2);
}

static json_t *run_json(const char *arguments)
{
    command_result result = command_run("%s", arguments);
    assert_int_equal(result.code, 0);
    assert_string_equal(result.err, "");
    json_t *document = json_loads(result.out, 0, NULL);
    assert_non_null(document);
    command_free(&result);
    return document;
}

static void info_lists_kernels_of_every_level(void **state)
{
    size_t i, n_available = 0;
    json_t *level, *info = run_json("info --json");
    (void)state;
    assert_int_equal(json_integer_value(json_object_get(info, "bits")), 1);
    json_array_foreach(json_object_get(info, "levels"), i, level)
    {
        if (json_is_true(json_object_get(level, "available"))) {
            n_available++;
            assert_true(json_array_size(json_object_get(level, "kernels")) >= 8);
        }
    }
    assert_true(n_available >= 1);
    json_decref(info);
    command_result text = command_run("info");
    assert_int_equal(text.code, 0);
    assert_non_null(strstr(text.out, "scalar: available"));
    command_free(&text);
}

static void info_says_why_there_is_no_device(void **state)
{
    (void)state;
    command_result info = command_run("--version >version.txt; DSR_CUDA_DRIVER=/no/driver $DSROWS info");
    assert_non_null(strstr(info.out, "cuda (0 devices)\n             context: "));
    assert_true(strstr(info.out, "the driver library /no/driver cannot be loaded") != NULL ||
                strstr(info.out, "the CUDA back end is not in this build") != NULL);
    command_free(&info);
}

static void help_is_on_standard_output(void **state)
{
    static const char *const arguments[] = {"--help", "info --help", "run --help", "replay -h", "verify --help"};
    (void)state;
    for (size_t i = 0; i < sizeof arguments / sizeof arguments[0]; i++) {
        command_result result = command_run("%s", arguments[i]);
        assert_int_equal(result.code, 0);
        assert_string_equal(result.err, "");
        assert_non_null(strstr(result.out, "usage: dsrows"));
        command_free(&result);
    }
    command_result version = command_run("--version");
    assert_non_null(strstr(version.out, ", bits 1"));
    command_free(&version);
}

/* Of the command before, which wrote it to code.txt. */
static void expect_exit_code(const char *code)
{
    command_result result = command_run("--version >version.txt; cat code.txt");
    assert_string_equal(result.out, code);
    command_free(&result);
}

static void full_output_is_an_error(void **state)
{
    (void)state;
    command_result result = command_run("info >/dev/full; echo $? >code.txt; true");
    expect_exit_code("2\n");
    command_free(&result);
}

/* The first request of the recorded layer, and its weights are elsewhere. */
static void write_first_request(const char *path)
{
    char message[ST_MESSAGE_BYTES];
    st_file *file = st_open(LAYER, message);
    assert_non_null(file);
    assert_true(st_write(path, st_find(file, "x.0"), 1, message));
    st_close(file);
}

static void write_source(const char *path)
{
    static const float values[] = {1, 2};
    char message[ST_MESSAGE_BYTES];
    const st_tensor source = {.name = "source.0", .dtype = "F32", .n_dims = 1, .shape = {2}, .data = values};
    assert_true(st_write(path, &source, 1, message));
}

/* A closed descriptor is one of /dev/null: a file that is empty, where there would be none. */
static void opens_no_file_in_place_of_a_closed_descriptor(void **state)
{
    (void)state;
    write_source("source.safetensors");
    command_expect(2, "/dev/fd/0: 0 bytes long", "run gather --in /dev/fd/0 --out never.safetensors <&-");
    command_expect(
        2, "/dev/fd/1: 0 bytes long",
        "--version >version.txt; (exec >&-; exec $DSROWS run gather --in /dev/fd/1 --out never.safetensors)");
    command_result result = command_run("--version >version.txt; (exec <&- >&- 2>&-; exec $DSROWS run gather --in "
                                        "source.safetensors --out closed.safetensors); echo $? >code.txt; true");
    command_free(&result);
    expect_exit_code("2\n"); /* standard output cannot be written */
    result = command_run("run gather --in source.safetensors --out open.safetensors");
    command_free(&result);
    result = command_run("--version >version.txt; cmp open.safetensors closed.safetensors");
    assert_int_equal(result.code, 0);
    command_free(&result);
}

/* The bit matrix reserves more addresses than these. Sanitizers and emulators need more to begin with. */
static void lack_of_memory_is_no_difference(void **state)
{
    (void)state;
    command_result result = command_run("--version >version.txt; (ulimit -v 100000; $DSROWS info || exit 77; "
                                        "exec $DSROWS verify) >verify.txt 2>&1; echo $? >code.txt; cat verify.txt");
    command_result code = command_run("--version >version.txt; cat code.txt");
    const int is_too_little = strcmp(code.out, "77\n") == 0;
    if (!is_too_little) {
        assert_string_equal(code.out, "3\n");
        assert_non_null(strstr(result.out, "not enough memory"));
    }
    command_free(&result);
    command_free(&code);
    if (is_too_little) {
        skip();
    }
}

static void json_says_where_it_runs(void **state)
{
#define WHERE " --json --threads 2 --isa scalar --exact row "
    static const char *const commands[] = {
        ("replay" WHERE DATA),
        ("decode" WHERE "--requests first.safetensors --model " LAYER),
        ("run gather" WHERE "--in source.safetensors --out result.safetensors"),
    };
#undef WHERE
    (void)state;
    write_first_request("first.safetensors");
    write_source("source.safetensors");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        json_t *document = run_json(commands[i]);
        assert_string_equal(json_string_value(json_object_get(document, "backend")), "cpu");
        assert_string_equal(json_string_value(json_object_get(document, "isa")), "scalar");
        assert_string_equal(json_string_value(json_object_get(document, "exactness")), "row");
        assert_int_equal(json_integer_value(json_object_get(document, "threads")), 2);
        json_decref(document);
    }
}

/* JSON is UTF-8, a path need not be: what is none is replaced, and nothing is left out. */
static void json_has_every_path(void **state)
{
#define BAD "\xff\xc3\xa4\xe2\x82.bad" /* bad, good, cut off */
    static const char shown[] = "\xef\xbf\xbd\xc3\xa4\xef\xbf\xbd\xef\xbf\xbd.bad";
    (void)state;
    assert_int_equal(symlink(DATA, BAD), 0);
    json_t *document = run_json("replay --json " BAD);
    assert_string_equal(json_string_value(json_object_get(document, "file")), shown);
    json_decref(document);
    unlink(BAD);
    assert_int_equal(symlink(LAYER, BAD), 0);
    write_first_request("first.safetensors");
    document = run_json("decode --json --requests first.safetensors --model " LAYER " " BAD);
    const json_t *layers = json_object_get(document, "layers");
    assert_int_equal(json_array_size(layers), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(layers, 1), "file")), shown);
    json_decref(document);
    unlink(BAD);
    command_write_text(BAD, "compressor rows=1 ratio=4 dim=128\n");
    document = run_json("bench --json --seconds 0.001 --shapes " BAD);
    assert_non_null(strstr(json_string_value(json_object_get(document, "command")), shown));
    json_decref(document);
    unlink(BAD);
    write_source("source.safetensors");
    document = run_json("run gather --json --in source.safetensors --out " BAD);
    assert_string_equal(json_string_value(json_object_get(document, "out")), shown);
    json_decref(document);
#undef BAD
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_says_where_it_runs),
        cmocka_unit_test(json_has_every_path),
        cmocka_unit_test(says_what_bad_usage_is),
        cmocka_unit_test(says_once_what_is_no_option),
        cmocka_unit_test(says_what_is_wrong_with_the_environment),
        cmocka_unit_test(says_what_is_not_available),
        cmocka_unit_test(info_lists_kernels_of_every_level),
        cmocka_unit_test(info_says_why_there_is_no_device),
        cmocka_unit_test(refuses_an_option_given_twice),
        cmocka_unit_test(help_is_on_standard_output),
        cmocka_unit_test(full_output_is_an_error),
        cmocka_unit_test(opens_no_file_in_place_of_a_closed_descriptor),
        cmocka_unit_test(lack_of_memory_is_no_difference),
    };
    return cmocka_run_group_tests(tests, command_enter_directory, command_leave_directory);
}
