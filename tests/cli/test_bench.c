/* dsrows bench: files and words that it refuses, what it times, and its report. */
#include "command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void bench_refuses_files_without_shapes(void **state)
{
    (void)state;
    command_write_text("empty.txt", "# nothing\n");
    command_write_text("shapes.txt", "compressor rows=1 ratio=4 dim=128\n");
    command_write_text("other.json", "{\"results\": []}");
    command_expect(2, "missing.txt: No such file", "bench --shapes missing.txt");
    command_expect(2, "missing.txt: No such file", "bench --shapes shapes.txt --shapes missing.txt");
    command_expect(2, "empty.txt: no shape in it", "bench --shapes empty.txt");
    command_expect(2, "Is a directory", "bench --shapes .");
    command_write_text("bad.txt", "# heads\nindexer rows=1 context=64 heads=7\n");
    command_expect(2, "bad.txt:2: indexer: n_heads must be 32, 64 or 128, got 7", "bench --shapes bad.txt");
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
        {"flash rows=1 width=64 page=16777216", "page=16777216: needed is a power of two from 16 to 256"},
        {"flash rows=1 width=64 page=0", "page=0: needed is a power"},
        {"flash rows=1 width=64 page=17", "page=17: needed is a power"},
        {"indexer rows=1 context=256 key_span=9", "key_span: only keys in format=fp4 have one"},
        {"indexer rows=1 context=256 format=fp4 key_span=31", "key_span=31: needed is a number from 1 to 30"},
        {"indexer rows=1 context=256 format=fp4 key_span=0", "key_span=0: needed is a number from 1 to 30"},
        {"indexer rows=1 context=256 format=fp4 wide=10", "wide: needed is key_span=N"},
        {"indexer rows=1 context=256 format=fp4 key_span=9 wide=101", "wide=101: needed is a percentage from 1 to 100"},
        {"flash rows=1 width=64 key_span=9", "key_span: op flash takes none"},
        {"indexer rows=1 context=256 query_span=9", "query_span: only queries of keys in format=fp4 have one"},
        {"indexer rows=1 context=256 format=fp4 query_span=31", "query_span=31: needed is a number from 1 to 30"},
        {"core rows=1 context=256 heads=32", "sparse-attention: n_heads must be 64 or 128, got 32"},
        {"indexer rows=1 context=256 top_k=0", "top_k=0: the library would take its default"},
        {"indexer rows=1 context=256 top_k=2080", "indexer: top_k must be a multiple of 32 up to 2048, got 2080"},
        {"compressor rows=1 ratio=128 dim=128", "ratio=128 dim=128: needed is (4, 128), (4, 512) or (128, 512)"},
        {"projection rows=1 inputs=24 outputs=64",
         "projection weights: n_inputs must be a multiple of 16 up to 65536, got 24"},
        {"projection rows=1 inputs=64 outputs=1048577",
         "projection weights: n_outputs must be in 1..=1048576, got 1048577"},
        {"flash rows=0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000001",
         "the shape is too long"},
    };
    char text[256];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(text, sizeof text, "# shapes\nflash rows=1 width=64\n%s\n", cases[i].line);
        command_write_text("bad.txt", text);
        snprintf(text, sizeof text, "dsrows bench: bad.txt:3: %s", cases[i].text);
        command_expect(2, text, "bench --shapes bad.txt");
    }
}

static void write_bytes(const char *path, const char *bytes, size_t n)
{
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(bytes, 1, n, stream), n);
    assert_int_equal(fclose(stream), 0);
}

/* A line may be as long as its comment. */
static void bench_says_what_is_no_line(void **state)
{
    static const char zero[] = "# shapes\ncompressor rows=1 \0ratio=4 dim=128\n", shape[] = "flash rows=1 width=64\n";
    char text[1024];
    (void)state;
    write_bytes("bad.txt", zero, sizeof zero - 1);
    command_expect(2, "bad.txt:2: a zero byte: this is no text", "bench --shapes bad.txt");
    memset(text, ' ', sizeof text);
    text[sizeof text - 1] = '\n';
    write_bytes("bad.txt", text, sizeof text);
    command_expect(2, "bad.txt:1: the line is too long", "bench --shapes bad.txt");
    text[0] = '#';
    write_bytes("bad.txt", text, sizeof text);
    command_expect(2, "bad.txt: no shape in it", "bench --shapes bad.txt");
    memcpy(text + sizeof text - sizeof shape, shape, sizeof shape - 1);
    text[sizeof text - sizeof shape - 1] = '\n';
    write_bytes("good.txt", text, sizeof text - 1);
    command_expect(0, "", "bench --shapes good.txt --seconds 0.001");
}

static void bench_refuses_empty_words(void **state)
{
    static const char *const counts[] = {"''", "0", "1,0", "1,", ",1", "1,,2", "1,1", "1,x", "1025"};
    static const char *const others[] = {"''", "isa=avx2,", ",isa=avx2", "isa", "i=avx2", "=avx2"};
    char command[128];
    (void)state;
    command_write_text("shapes.txt", "compressor rows=1 ratio=4 dim=128\n");
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        snprintf(command, sizeof command, "bench --shapes shapes.txt --thread-counts %s", counts[i]);
        command_expect(2, "--thread-counts takes", command);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        snprintf(command, sizeof command, "bench --shapes shapes.txt --versus %s", others[i]);
        command_expect(2, "--versus takes", command);
    }
}

/* What would be left out, or be taken for something else. */
static void bench_refuses_options_without_effect(void **state)
{
    static const char *const cases[][2] = {
        {"--bound 5", "--bound is for --compare"},
        {"--threads 2 --thread-counts 1,2", "give --threads or --thread-counts, not both"},
        {"--versus isa=scalar,isa=avx2", "--versus: isa= is given twice"},
        {"--versus format=fp8,format=bf16", "--versus: format= is given twice"},
        {"--versus exact=device", "--versus exact=device: the first context has that too"},
        {"--isa scalar --versus threads=2,isa=scalar", "--versus isa=scalar: the first context has that too"},
        {"--thread-counts 2 --versus threads=2", "--versus threads=2: the first context has that too"},
        {"--versus format=bf16", "--versus format=bf16: that changes none of the shapes"},
        {"--versus format=fp4", "--versus format=fp4: that changes none of the shapes"},
    };
    char command[128];
    (void)state;
    command_write_text("flash.txt", "flash rows=1 width=64\n");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(command, sizeof command, "bench --shapes flash.txt --seconds 0.001 %s", cases[i][0]);
        command_expect(2, cases[i][1], command);
    }
    command_expect(0, "", "bench --shapes flash.txt --seconds 0.001 --thread-counts 1,2 --versus threads=2,format=fp8");
}

/* What AUTO takes, given by name. */
static void bench_refuses_the_instruction_set_that_it_has(void **state)
{
    char isa[16], text[64];
    (void)state;
    command_write_text("flash.txt", "flash rows=1 width=64\n");
    command_result result = command_run("bench --shapes flash.txt --seconds 0.001 --json");
    const char *at = strstr(result.out, "\"isa\": \"");
    assert_non_null(strstr(result.out, "\"backend\": \"cpu\""));
    assert_non_null(at);
    assert_int_equal(sscanf(at, "\"isa\": \"%15[a-z0-9]", isa), 1);
    command_free(&result);
    snprintf(text, sizeof text, "--versus isa=%s: the first context has that too", isa);
    result = command_run("bench --shapes flash.txt --seconds 0.001 --versus threads=2,isa=%s", isa);
    assert_int_equal(result.code, 2);
    assert_string_equal(result.out, "");
    assert_non_null(strstr(result.err, text));
    command_free(&result);
}

/* One context that cannot be had: one message, and no report, nor part of one, where there was none. */
static void bench_leaves_nothing_after_a_failure(void **state)
{
    static const char *const cases[] = {"--backend cuda --versus exact=row", "--backend cuda --report new.html",
                                        "--versus backend=cuda --report new.html"};
    (void)state;
    command_write_text("flash.txt", "flash rows=1 width=64\n");
    assert_int_equal(setenv("DSR_CUDA_DRIVER", "missing/libcuda.so", 1), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        command_result result = command_run("bench --shapes flash.txt --seconds 0.001 %s", cases[i]);
        assert_int_equal(result.code, 3);
        assert_ptr_equal(strchr(result.err, '\n'), strrchr(result.err, '\n'));
        command_free(&result);
    }
    assert_int_equal(unsetenv("DSR_CUDA_DRIVER"), 0);
    command_result list = command_run("--version >version.txt; ls");
    assert_null(strstr(list.out, "new.html"));
    command_free(&list);
}

/* What is written as it is, and what cannot be written whole. */
static void bench_writes_reports_to_links_and_devices(void **state)
{
    (void)state;
    command_write_text("flash.txt", "flash rows=1 width=64\n");
    command_result result = command_run("--version >version.txt; ln -s target.html link.html; ln -s . here.html");
    command_free(&result);
    command_expect(0, "", "bench --shapes flash.txt --seconds 0.001 --report link.html");
    result = command_run("--version >version.txt; cat target.html");
    assert_non_null(strstr(result.out, "</html>"));
    command_free(&result);
    result = command_run("--version >version.txt; ls");
    assert_null(strstr(result.out, "partial"));
    command_free(&result);
    command_expect(2, "here.html: Is a directory", "bench --shapes flash.txt --seconds 0.001 --report here.html");
    command_expect(2, "/dev/full: No space left", "bench --shapes flash.txt --seconds 0.001 --report /dev/full");
}

static void bench_times_patterns(void **state)
{
    (void)state;
    command_write_text("patterns.txt",
                       "indexer rows=1 context=256 pattern=rising\nindexer rows=2 context=256 pattern=falling\n"
                       "indexer rows=1 context=256 pattern=equal\n");
    command_expect(0, "", "bench --shapes patterns.txt --seconds 0.001");
}

static void bench_times_caches(void **state)
{
    (void)state;
    command_write_text("caches.txt", "indexer rows=2 context=256 format=fp4\n"
                                     "indexer rows=1 context=256 format=fp4 page=16\n"
                                     "indexer rows=1 context=256 format=fp4 key_span=5 query_span=4\n"
                                     "indexer rows=2 context=256 format=fp4 page=16 key_span=14 wide=10\n"
                                     "two-pass rows=2 width=64 format=fp8 page=64\n"
                                     "flash rows=1 width=64 format=fp8\n"
                                     "flash rows=1 width=64 page=256\n");
    command_expect(0, "", "bench --shapes caches.txt --seconds 0.001 --versus format=bf16,threads=2");
    command_expect(2, "format=fp5", "bench --shapes caches.txt --versus format=fp5");
}

static void bench_report_escapes_its_command(void **state)
{
    (void)state;
    command_write_text("<b>&.txt", "compressor rows=1 ratio=4 dim=128\n");
    command_expect(0, "", "bench --shapes '<b>&.txt' --seconds 0.001 --report report.html");
    command_result page = command_run("--version; cat report.html");
    assert_non_null(strstr(page.out, "<code>dsrows bench --shapes &#60;b&#62;&#38;.txt"));
    assert_non_null(strstr(page.out, "<td>-</td><td>-</td><td>yes</td>")); /* one row, one context: no ratios */
    command_free(&page);
}

/* Nothing is timed, and a report of before stays. */
static void bench_checks_its_files_first(void **state)
{
    static const char *const files[] = {"--report missing/report.html", "--report .", "--compare missing.json",
                                        "--compare before.html", "--report before.html --compare missing.json"};
    (void)state;
    command_write_text("one.txt", "compressor rows=1 ratio=4 dim=128\n");
    command_write_text("before.html", "before\n");
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bench_refuses_files_without_shapes),
        cmocka_unit_test(bench_says_what_is_no_shape),
        cmocka_unit_test(bench_says_what_is_no_line),
        cmocka_unit_test(bench_refuses_empty_words),
        cmocka_unit_test(bench_refuses_options_without_effect),
        cmocka_unit_test(bench_refuses_the_instruction_set_that_it_has),
        cmocka_unit_test(bench_leaves_nothing_after_a_failure),
        cmocka_unit_test(bench_writes_reports_to_links_and_devices),
        cmocka_unit_test(bench_times_patterns),
        cmocka_unit_test(bench_times_caches),
        cmocka_unit_test(bench_report_escapes_its_command),
        cmocka_unit_test(bench_checks_its_files_first),
    };
    return cmocka_run_group_tests(tests, command_enter_directory, command_leave_directory);
}
