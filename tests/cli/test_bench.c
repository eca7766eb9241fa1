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
        command_write_text("bad.txt", text);
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
                                     "two-pass rows=2 width=64 format=fp8 page=64\n"
                                     "flash rows=1 width=64 format=fp8\n"
                                     "flash rows=1 width=64 page=256\n");
    command_expect(0, "", "bench --shapes caches.txt --seconds 0.001 --versus format=bf16,threads=2");
    command_expect(2, "format=fp5", "bench --shapes caches.txt --versus format=fp5");
    command_write_text("page.txt", "flash rows=1 width=64 page=17\n");
    command_expect(2, "page_size must be 16, 32, 64, 128 or 256, got 17", "bench --shapes page.txt --seconds 0.001");
}

static void bench_report_escapes_its_command(void **state)
{
    (void)state;
    command_write_text("<b>&.txt", "compressor rows=1 ratio=4 dim=128\n");
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
        cmocka_unit_test(bench_refuses_empty_words),
        cmocka_unit_test(bench_times_patterns),
        cmocka_unit_test(bench_times_caches),
        cmocka_unit_test(bench_report_escapes_its_command),
        cmocka_unit_test(bench_checks_its_files_first),
    };
    return cmocka_run_group_tests(tests, command_enter_directory, command_leave_directory);
}
