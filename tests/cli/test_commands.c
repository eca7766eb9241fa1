/* Exit codes, messages, JSON and help of every command. */
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
#include <unistd.h>

#include <cmocka.h>

#include "changed_file.h"

#define DATA  DSR_SOURCE_DIR "/data/open_ops.safetensors"
#define LAYER DSR_SOURCE_DIR "/data/layer_csa.safetensors"

static void write_text(const char *path, const char *text)
{
    FILE *stream = fopen(path, "w");
    assert_non_null(stream);
    assert_true(fputs(text, stream) >= 0);
    assert_int_equal(fclose(stream), 0);
}

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
    command_expect(2, "'0000000000000000000000005x' is not a row number",
                   "run gather --in a --out b --only 0000000000000000000000005x");
    command_expect(2, "row 1 is given twice", "run gather --in a --out b --only 1,2,1");
    command_expect(2, "--threads -1: give a number", "run gather --in a --out b --threads -1");
    command_expect(2, "--threads 0: give a number from 1 to 1024", "run gather --in a --out b --threads 0");
    command_expect(2, "--threads 1025", "run gather --in a --out b --threads 1025");
    command_expect(2, "--isa sse2: give auto", "run gather --in a --out b --isa sse2");
    command_expect(2, "--exact very: give row or device", "run gather --in a --out b --exact very");
    command_expect(2, "--backend tpu: give cpu or cuda", "run gather --in a --out b --backend tpu");
    write_text("same.safetensors", "");
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

static void bench_refuses_files_without_shapes(void **state)
{
    (void)state;
    write_text("empty.txt", "# nothing\n");
    write_text("shapes.txt", "compressor rows=1 ratio=4 dim=128\n");
    write_text("other.json", "{\"results\": []}");
    command_expect(2, "missing.txt: No such file", "bench --shapes missing.txt");
    command_expect(2, "missing.txt: No such file", "bench --shapes shapes.txt --shapes missing.txt");
    command_expect(2, "empty.txt: no shape in it", "bench --shapes empty.txt");
    command_expect(2, "Is a directory", "bench --shapes .");
    write_text("bad.txt", "# heads\nindexer rows=1 context=64 heads=7\n");
    command_expect(2, "bad.txt:2: this shape", "bench --shapes bad.txt");
    command_expect(2, "other.json: none of these shapes is in it",
                   "bench --shapes shapes.txt --seconds 0.001 --compare other.json");
}

/* The file, the line, and what of it is wrong. */
static void bench_says_what_is_no_shape(void **state)
{
    static const struct {
        const char *line, *text;
    } cases[] = {
        {"gather rows=1", "'gather' is not an op: give indexer, two-pass, flash, compressor, projection or core"},
        {"indexer rows=1", "op indexer needs context=N"},
        {"compressor rows=1 ratio=4", "op compressor needs dim=N"},
        {"projection rows=1 outputs=64", "op projection needs inputs=N"},
        {"flash rows=1", "op flash needs width=N"},
        {"flash width=64", "rows=0: needed is a number from 1 to 64"},
        {"flash width=64 rows=65", "rows=65: needed is a number from 1 to 64"},
        {"flash rows", "'rows': needed is name=value"},
        {"flash raws=1", "there is no parameter 'raws'"},
        {"flash rows=-1", "rows=-1: needed is a number up to 16777216"},
        {"flash rows=1 width=16777217", "width=16777217: needed is a number"},
        {"indexer rows=1 context=64 pattern=odd", "pattern=odd: give random, rising, falling or equal"},
        {"flash rows=1 width=64 pattern=equal", "pattern: only op indexer has one"},
        {"indexer rows=1 context=256 format=fp8", "format=fp8: attention takes bf16 or fp8, indexer bf16 or fp4"},
        {"flash rows=1 width=64 format=fp4", "format=fp4: "},
        {"core rows=1 context=256 format=fp4", "format=fp4: "},
        {"compressor rows=1 ratio=4 dim=128 page=64", "page: op compressor takes none"},
        {"flash rows=1 width=64 context=64", "context: op flash takes none"},
        {"projection rows=1 inputs=64 outputs=64 heads=64", "heads: op projection takes none"},
        {"flash rows=1 width=64 rows=2", "rows is given twice"},
        {"indexer rows=1 context=3 format=fp4", "op indexer needs context=N, N from 4 on"},
        {"indexer rows=1 context=256 format=fp4 pattern=rising", "pattern: packed and paged caches take random only"},
    };
    char text[256];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(text, sizeof text, "# shapes\nflash rows=1 width=64\n%s\n", cases[i].line);
        write_text("bad.txt", text);
        snprintf(text, sizeof text, "dsrows bench: bad.txt:3: %s", cases[i].text);
        command_expect(2, text, "bench --shapes bad.txt");
    }
    memset(text, ' ', sizeof text);
    memset(text + 200, 'x', sizeof text - 201);
    text[sizeof text - 1] = '\0';
    FILE *stream = fopen("bad.txt", "w");
    assert_non_null(stream);
    fprintf(stream, "%s%s\n", text, text);
    assert_int_equal(fclose(stream), 0);
    command_expect(2, "bad.txt:1: the line is too long", "bench --shapes bad.txt");
}

static void bench_refuses_empty_words(void **state)
{
    static const char *const counts[] = {"''", "0", "1,0", "1,", ",1", "1,,2", "1,1", "1,x", "1025"};
    static const char *const others[] = {"''", "isa=avx2,", ",isa=avx2", "isa", "i=avx2", "=avx2"};
    char command[128];
    (void)state;
    write_text("shapes.txt", "compressor rows=1 ratio=4 dim=128\n");
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        snprintf(command, sizeof command, "bench --shapes shapes.txt --thread-counts %s", counts[i]);
        command_expect(2, "--thread-counts takes", command);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        snprintf(command, sizeof command, "bench --shapes shapes.txt --versus %s", others[i]);
        command_expect(2, "--versus takes", command);
    }
}

static void bench_times_patterns(void **state)
{
    (void)state;
    write_text("patterns.txt", "indexer rows=1 context=256 pattern=rising\nindexer rows=2 context=256 pattern=falling\n"
                               "indexer rows=1 context=256 pattern=equal\n");
    command_expect(0, "", "bench --shapes patterns.txt --seconds 0.001");
}

static void bench_times_caches(void **state)
{
    (void)state;
    write_text("caches.txt", "indexer rows=2 context=256 format=fp4\n"
                             "indexer rows=1 context=256 format=fp4 page=16\n"
                             "two-pass rows=2 width=64 format=fp8 page=64\n"
                             "flash rows=1 width=64 format=fp8\n"
                             "flash rows=1 width=64 page=256\n");
    command_expect(0, "", "bench --shapes caches.txt --seconds 0.001 --versus format=bf16,threads=2");
    command_expect(2, "format=fp5", "bench --shapes caches.txt --versus format=fp5");
    write_text("page.txt", "flash rows=1 width=64 page=17\n");
    command_expect(2, "page_size must be 16, 32, 64, 128 or 256, got 17", "bench --shapes page.txt --seconds 0.001");
}

static void bench_report_escapes_its_command(void **state)
{
    (void)state;
    write_text("<b>&.txt", "compressor rows=1 ratio=4 dim=128\n");
    command_expect(0, "", "bench --shapes '<b>&.txt' --seconds 0.001 --report report.html");
    command_result page = command_run("--version; cat report.html");
    assert_non_null(strstr(page.out, "<code>dsrows bench --shapes &#60;b&#62;&#38;.txt"));
    command_free(&page);
}

/* Nothing is timed, and a report of before stays. */
static void bench_checks_its_files_first(void **state)
{
    static const char *const files[] = {"--report missing/report.html", "--report .", "--compare missing.json",
                                        "--compare before.html", "--report before.html --compare missing.json"};
    (void)state;
    write_text("one.txt", "compressor rows=1 ratio=4 dim=128\n");
    write_text("before.html", "before\n");
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        command_result result = command_run("bench --shapes one.txt --seconds 0.001 %s", files[i]);
        assert_int_equal(result.code, 2);
        assert_string_equal(result.out, "");
        command_free(&result);
    }
    command_result before = command_run("--version > version.txt; cat before.html");
    assert_string_equal(before.out, "before\n");
    command_free(&before);
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
        {"\"compressor.r4d128.", "\"compressor.r8d128.", "needed is compressor.rXdY.kv, .score, .expected, .ape or"},
        {"\"compressor.r4d128.kv", "\"Compressor.r4d128.kv", "tensor Compressor.r4d128.kv: needed is compressor.rXdY"},
        {"\\\"rms_norm_eps\\\": ", "\\\"rms_norm_eps\\\": -", "metadata config: rms_norm_eps is not a number from"},
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

static void full_output_is_an_error(void **state)
{
    (void)state;
    command_result first = command_run("info >/dev/full; echo $? >code.txt; true");
    command_result code = command_run("--version >version.txt; cat code.txt");
    assert_string_equal(code.out, "2\n");
    command_free(&first);
    command_free(&code);
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
    write_text(BAD, "compressor rows=1 ratio=4 dim=128\n");
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
        cmocka_unit_test(bench_refuses_files_without_shapes),
        cmocka_unit_test(bench_says_what_is_no_shape),
        cmocka_unit_test(bench_refuses_empty_words),
        cmocka_unit_test(bench_times_patterns),
        cmocka_unit_test(bench_times_caches),
        cmocka_unit_test(bench_report_escapes_its_command),
        cmocka_unit_test(bench_checks_its_files_first),
        cmocka_unit_test(json_has_every_path),
        cmocka_unit_test(says_what_bad_usage_is),
        cmocka_unit_test(says_once_what_is_no_option),
        cmocka_unit_test(says_what_is_wrong_with_the_environment),
        cmocka_unit_test(says_what_is_not_available),
        cmocka_unit_test(info_lists_kernels_of_every_level),
        cmocka_unit_test(replay_gives_one_digest),
        cmocka_unit_test(replay_passes_row_exact),
        cmocka_unit_test(replay_finds_a_wrong_record),
        cmocka_unit_test(replay_refuses_a_record_without_numbers),
        cmocka_unit_test(replay_takes_every_tensor_or_none),
        cmocka_unit_test(help_is_on_standard_output),
        cmocka_unit_test(full_output_is_an_error),
        cmocka_unit_test(digest_is_sha256),
    };
    return cmocka_run_group_tests(tests, command_enter_directory, command_leave_directory);
}
