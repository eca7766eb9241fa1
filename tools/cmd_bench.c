#include "bench_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    OPTION_SHAPES = CLI_FIRST_OWN,
    OPTION_SECONDS,
    OPTION_THREAD_COUNTS,
    OPTION_VERSUS,
    OPTION_COMPARE,
    OPTION_BOUND,
    OPTION_REPORT
};
enum { MAX_FILES = 16, MAX_COUNTS = 16 };

typedef struct bench_options {
    cli_device device;
    int has_threads;
    cli_device versus;
    int has_versus;
    int has_versus_threads; /* 0: as many as the first context has */
    char versus_format[8];  /* empty: that of the shape */
    const char *files[MAX_FILES];
    size_t n_files;
    uint32_t thread_counts[MAX_COUNTS];
    size_t n_counts;
    double seconds;
    const char *compare;
    double bound; /* allowed growth of a least time, 0.1 for 10 %; 0: none given */
    const char *report;
    int json;
} bench_options;

/* ---- options ------------------------------------------------------------------------------------------------ */

/* The next word of a list with commas, cut out of it; null after the last one. An empty list is one empty word. */
static char *next_word(char **rest)
{
    char *word = *rest, *comma = word != NULL ? strchr(word, ',') : NULL;
    *rest = NULL;
    if (comma != NULL) {
        *comma = '\0';
        *rest = comma + 1;
    }
    return word;
}

static int are_equal(const cli_device *a, const cli_device *b)
{
    return a->backend == b->backend && a->isa == b->isa && a->exactness == b->exactness && a->n_threads == b->n_threads;
}

enum { VERSUS_FORMAT, N_VERSUS = 5 };

/* One word of --versus. seen: for each name whether it has been given. */
static int parse_versus_word(bench_options *options, const char *word, int seen[N_VERSUS])
{
    static const struct {
        const char *name;
        int option;
    } names[N_VERSUS] = {{"format=", VERSUS_FORMAT},
                         {"isa=", CLI_ISA},
                         {"exact=", CLI_EXACT},
                         {"threads=", CLI_THREADS},
                         {"backend=", CLI_BACKEND}};
    const cli_device before = options->versus;
    size_t i = 0;
    while (i < N_VERSUS && strncmp(names[i].name, word, strlen(names[i].name)) != 0) {
        i++;
    }
    if (i == N_VERSUS) {
        return cli_usage_error(&cli_bench, "--versus takes isa=, exact=, threads=, backend= or format=, '%s' given",
                               word);
    }
    const char *value = word + strlen(names[i].name);
    if (seen[i]++) {
        return cli_usage_error(&cli_bench, "--versus: %s is given twice", names[i].name);
    }
    if (names[i].option == VERSUS_FORMAT) {
        if (strcmp(value, "bf16") != 0 && strcmp(value, "fp4") != 0 && strcmp(value, "fp8") != 0) {
            return cli_usage_error(&cli_bench, "--versus %s: give format=bf16, fp4 or fp8", word);
        }
        snprintf(options->versus_format, sizeof options->versus_format, "%s", value);
        return CLI_DONE;
    }
    const int code = cli_device_option(&cli_bench, &options->versus, names[i].option, value);
    const int is_count = names[i].option == CLI_THREADS;
    options->has_versus_threads |= is_count;
    if (code == CLI_DONE && are_equal(&before, &options->versus) && (!is_count || options->n_counts <= 1)) {
        return cli_usage_error(&cli_bench, "--versus %s: the first context has that too", word);
    }
    return code;
}

/* "isa=avx2,exact=row,threads=1,format=bf16": what differs in the second context. */
static int parse_versus(bench_options *options, const char *text)
{
    char copy[128], *rest = copy;
    int seen[N_VERSUS] = {0}, code = CLI_DONE;
    if ((size_t)snprintf(copy, sizeof copy, "%s", text) >= sizeof copy) {
        return cli_usage_error(&cli_bench, "--versus %s is too long", text);
    }
    options->has_versus = 1;
    for (char *word = next_word(&rest); word != NULL && code == CLI_DONE; word = next_word(&rest)) {
        code = parse_versus_word(options, word, seen);
    }
    return code;
}

static int has_count(const bench_options *options, uint64_t n)
{
    for (size_t i = 0; i < options->n_counts; i++) {
        if (options->thread_counts[i] == n) {
            return 1;
        }
    }
    return 0;
}

static int parse_counts(bench_options *options, const char *text)
{
    char copy[128], *rest = copy;
    options->n_counts = 0;
    if ((size_t)snprintf(copy, sizeof copy, "%s", text) >= sizeof copy) {
        return cli_usage_error(&cli_bench, "--thread-counts %s is too long", text);
    }
    for (char *word = next_word(&rest); word != NULL; word = next_word(&rest)) {
        uint64_t n;
        if (!cli_parse_u64(word, 1024, &n) || n == 0 || options->n_counts == MAX_COUNTS || has_count(options, n)) {
            return cli_usage_error(&cli_bench,
                                   "--thread-counts takes up to 16 different numbers from 1 to 1024, '%s' given", text);
        }
        options->thread_counts[options->n_counts++] = (uint32_t)n;
    }
    return CLI_DONE;
}

static int parse_fraction(const char *text, double most, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && *value > 0 && *value <= most;
}

static int take_option(bench_options *options, int option, const char *value)
{
    switch (option) {
    case CLI_JSON:
        options->json = 1;
        return CLI_DONE;
    case OPTION_SHAPES:
        if (options->n_files == MAX_FILES) {
            return cli_usage_error(&cli_bench, "more than %d shape files", MAX_FILES);
        }
        options->files[options->n_files++] = value;
        return CLI_DONE;
    case OPTION_SECONDS:
        return parse_fraction(value, 3600, &options->seconds)
                   ? CLI_DONE
                   : cli_usage_error(&cli_bench, "--seconds takes a number up to 3600, '%s' given", value);
    case OPTION_BOUND:
        if (!parse_fraction(value, 1000, &options->bound)) {
            return cli_usage_error(&cli_bench, "--bound takes a percentage, '%s' given", value);
        }
        options->bound /= 100;
        return CLI_DONE;
    case OPTION_THREAD_COUNTS:
        return parse_counts(options, value);
    case OPTION_COMPARE:
        options->compare = value;
        return CLI_DONE;
    case OPTION_REPORT:
        options->report = value;
        return CLI_DONE;
    default:
        options->has_threads |= option == CLI_THREADS;
        return cli_device_option(&cli_bench, &options->device, option, value);
    }
}

/* What no option says alone. */
static int check_options(bench_options *options, const char *versus)
{
    if (options->n_files == 0) {
        return cli_usage_error(&cli_bench, "--shapes FILE is needed, such as bench/shapes/v4_flash.txt");
    }
    if (options->has_threads && options->n_counts != 0) {
        return cli_usage_error(&cli_bench, "give --threads or --thread-counts, not both");
    }
    if (options->bound > 0 && options->compare == NULL) {
        return cli_usage_error(&cli_bench, "--bound is for --compare");
    }
    if (options->n_counts == 0) {
        options->thread_counts[options->n_counts++] = options->device.n_threads;
    }
    options->device.n_threads = options->thread_counts[0];
    options->versus = options->device;
    return versus != NULL ? parse_versus(options, versus) : CLI_DONE;
}

/* CLI_DONE, an exit code after a message, or -1 after the help. */
static int parse(int argc, char **argv, bench_options *options)
{
    static const struct option names[] = {CLI_DEVICE_OPTIONS,
                                          CLI_COMMON_OPTIONS,
                                          {"shapes", required_argument, NULL, OPTION_SHAPES},
                                          {"seconds", required_argument, NULL, OPTION_SECONDS},
                                          {"thread-counts", required_argument, NULL, OPTION_THREAD_COUNTS},
                                          {"versus", required_argument, NULL, OPTION_VERSUS},
                                          {"compare", required_argument, NULL, OPTION_COMPARE},
                                          {"bound", required_argument, NULL, OPTION_BOUND},
                                          {"report", required_argument, NULL, OPTION_REPORT},
                                          {0}};
    int option, code = CLI_DONE;
    uint64_t seen = 0;
    const char *versus = NULL;
    while (code == CLI_DONE && (option = cli_next_option(&cli_bench, argc, argv, names, &seen)) != -1) {
        if (option == 'h') {
            cli_print_help(&cli_bench);
            return -1;
        }
        if (option == OPTION_VERSUS) {
            versus = optarg; /* after the device options that it starts from */
        } else {
            code = take_option(options, option, optarg);
        }
    }
    if (code == CLI_DONE && optind != argc) {
        code = cli_usage_error(&cli_bench, "no argument is needed, '%s' given", argv[optind]);
    }
    return code == CLI_DONE ? check_options(options, versus) : code;
}

/* ---- output ------------------------------------------------------------------------------------------------- */

static void machine_name(char *name, size_t size)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(name, size, "unknown CPU");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':') != NULL) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(name, size, "%s", strchr(line, ':') + 2);
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

static void print_header(const bench_run *run, int has_versus)
{
    printf("%s, %s (%s), %s-exact; one thread: F32 FMA %.1f GFLOP/s (all threads %.1f), BF16 dot %.1f, AMX %.1f, "
           "memory read %.1f GB/s (all threads %.1f); smallest op %.2f us\n\n",
           run->machine, cli_backend_name(run->backend), dsr_isa_name(run->isa), cli_exactness_name(run->exactness),
           run->peaks.fma_gflops, run->peaks.fma_all_gflops, run->peaks.bf16_gflops, run->peaks.amx_gflops,
           run->peaks.read_gbytes, run->peaks.read_all_gbytes, 1e6 * run->smallest_seconds);
    printf("%-52s thr   median us     least      90 %%  GFLOP/s    GB/s   x FMA  alone/joint%s  equal\n", "shape",
           has_versus ? "  other/this" : "");
}

static void print_result(const bench_result *r, int has_versus)
{
    printf("%-52s %3u %11.2f %9.2f %9.2f %8.1f %7.2f %7.3f", r->shape.name, r->n_threads, 1e6 * r->joint.median,
           1e6 * r->joint.least, 1e6 * r->joint.p90, bench_flops(&r->shape) / r->joint.median * 1e-9,
           bench_bytes(&r->shape) / r->joint.median * 1e-9, bench_over_fma(r));
    if (r->alone.n > 0) {
        printf(" %12.2f", r->alone.median / r->joint.median);
    } else {
        printf(" %12s", "-");
    }
    if (has_versus) {
        printf(" %11.2f", r->versus.median / r->joint.median);
    }
    printf("  %s", r->is_equal ? "yes" : "NO");
    if (r->plain.n > 0) {
        printf("; a plain loop takes %.1f times as long", r->plain.median / r->joint.median);
    }
    putchar('\n');
    fflush(stdout);
}

static json_t *stats_json(const bench_stats *s)
{
    return s->n == 0 ? json_null()
                     : json_pack("{s:f, s:f, s:f, s:i}", "median_us", 1e6 * s->median, "least_us", 1e6 * s->least,
                                 "p90_us", 1e6 * s->p90, "samples", (int)s->n);
}

static json_t *result_json(const bench_result *r)
{
    return json_pack("{s:o, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "shape", cli_json_text(r->shape.name),
                     "threads", (int)r->n_threads, "joint", stats_json(&r->joint), "alone", stats_json(&r->alone),
                     "versus", stats_json(&r->versus), "plain", stats_json(&r->plain), "gflops",
                     cli_json_number(bench_flops(&r->shape) / r->joint.median * 1e-9), "gbytes",
                     cli_json_number(bench_bytes(&r->shape) / r->joint.median * 1e-9), "fma_fraction",
                     cli_json_number(bench_over_fma(r)), "joint_is_alone", r->is_equal);
}

static json_t *run_json(const bench_run *run)
{
    json_t *results = json_array();
    for (size_t i = 0; i < run->n_results; i++) {
        cli_json_append(results, result_json(&run->results[i]));
    }
    return json_pack("{s:s, s:o, s:s, s:o, s:s, s:s, s:s, s:{s:f, s:f, s:f, s:f, s:f, s:f}, s:f, s:o}", "dsrows",
                     dsr_version_string(), "machine", cli_json_text(run->machine), "date", run->date, "command",
                     cli_json_text(run->command), "backend", cli_backend_name(run->backend), "isa",
                     dsr_isa_name(run->isa), "exactness", cli_exactness_name(run->exactness), "peaks", "fma_gflops",
                     run->peaks.fma_gflops, "fma_all_gflops", run->peaks.fma_all_gflops, "bf16_gflops",
                     run->peaks.bf16_gflops, "amx_gflops", run->peaks.amx_gflops, "read_gbytes", run->peaks.read_gbytes,
                     "read_all_gbytes", run->peaks.read_all_gbytes, "smallest_op_us", 1e6 * run->smallest_seconds,
                     "results", results);
}

/* ---- comparison --------------------------------------------------------------------------------------------- */

static const json_t *find_old(const json_t *old, const bench_result *r)
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(old, "results"), i, one)
    {
        const char *name = json_string_value(json_object_get(one, "shape"));
        if (name != NULL && strcmp(name, r->shape.name) == 0 &&
            json_integer_value(json_object_get(one, "threads")) == (json_int_t)r->n_threads) {
            return one;
        }
    }
    return NULL;
}

/* The run to compare with. */
static int load_old(const char *path, json_t **old)
{
    json_error_t error;
    *old = json_load_file(path, 0, &error);
    if (*old == NULL || !json_is_array(json_object_get(*old, "results"))) {
        cli_error(&cli_bench, "%s: no results of dsrows bench --json: %s", path,
                  *old == NULL ? error.text : "no list of results");
        return CLI_BAD_INPUT;
    }
    return CLI_DONE;
}

/* Least times, which neighbours on the machine disturb least, relative to the FMA peak that each run saw, so that a
 * slower clock is no regression. */
static int compare_runs(const bench_run *run, const bench_options *options, const json_t *old)
{
    size_t n_compared = 0;
    int code = CLI_DONE;
    const double old_peak = json_number_value(json_object_get(json_object_get(old, "peaks"), "fma_gflops"));
    const double bound = options->bound > 0 ? options->bound : 0.1;
    const double clock = old_peak > 0 && run->peaks.fma_gflops > 0 ? run->peaks.fma_gflops / old_peak : 1;
    for (size_t i = 0; i < run->n_results; i++) {
        const json_t *one = find_old(old, &run->results[i]);
        const double before = json_number_value(json_object_get(json_object_get(one, "joint"), "least_us"));
        if (!(before > 0)) {
            fprintf(stderr, "%-52s not in %s\n", run->results[i].shape.name, options->compare);
            continue;
        }
        n_compared++;
        const double growth = 1e6 * run->results[i].joint.least * clock / before - 1;
        const int is_slower = growth > bound;
        fprintf(stderr, "%-52s %+6.1f %%%s\n", run->results[i].shape.name, 100 * growth, is_slower ? "  SLOWER" : "");
        code = is_slower ? CLI_DIFFERS : code;
    }
    if (n_compared == 0) {
        cli_error(&cli_bench, "%s: none of these shapes is in it", options->compare);
        code = CLI_BAD_INPUT;
    }
    return code;
}

/* ---- the run ------------------------------------------------------------------------------------------------ */

/* Words of --versus that change nothing because of what the contexts took: AUTO may be the instruction set given, and a
 * device has no threads of ours. */
static int check_versus(const bench_options *options, const session *s, const session *versus)
{
    const cli_device *a = &options->device, *b = &options->versus;
    if (a->isa != b->isa && a->backend == b->backend &&
        dsr_context_isa(s->context) == dsr_context_isa(versus->context)) {
        return cli_usage_error(&cli_bench, "--versus isa=%s: the first context has that too", dsr_isa_name(b->isa));
    }
    if (a->n_threads != b->n_threads && dsr_context_n_threads(s->context) == dsr_context_n_threads(versus->context)) {
        return cli_usage_error(&cli_bench, "--versus threads=%u: the first context has that too",
                               (unsigned)b->n_threads);
    }
    return CLI_DONE;
}

/* Opens the first session and, where there is a second one and the first could be had, that. */
static int open_sessions(const bench_options *options, session *s, session *versus)
{
    *versus = (session){.command = &cli_bench};
    session_open(s, &cli_bench, &options->device);
    if (s->code != CLI_DONE || !options->has_versus) {
        return s->code;
    }
    session_open(versus, &cli_bench, &options->versus);
    return versus->code != CLI_DONE ? versus->code : check_versus(options, s, versus);
}

/* What is measured once, by the first session. */
static void begin_run(const bench_options *options, bench_run *run, session *s)
{
    run->backend = dsr_context_device(s->context);
    run->isa = dsr_context_isa(s->context);
    run->peaks = bench_measure_peaks(run->isa, run->n_threads);
    run->smallest_seconds = bench_measure_smallest(s);
    if (!options->json) {
        print_header(run, options->has_versus);
    }
}

/* The shape in the second context: its format stays where the op has no such caches. */
static bench_shape versus_shape(const bench_options *options, const bench_shape *shape)
{
    bench_shape other = *shape;
    bench_parse_format(other.op, options->versus_format, &other.format);
    return other;
}

/* versus: null where there is none. */
static int measure_shape(const bench_options *options, bench_run *run, session *s, session *versus,
                         const bench_shape *shape)
{
    bench_result *result = &run->results[run->n_results];
    const bench_shape other = versus_shape(options, shape);
    const int code = bench_measure(s, versus, shape, &other, options->seconds, result);
    cli_progress_end();
    if (code != CLI_DONE) {
        cli_error(&cli_bench, "%s:%zu: this shape could not be timed", shape->file, shape->line);
        return code;
    }
    run->n_results++;
    if (!options->json) {
        print_result(result, options->has_versus);
    }
    return CLI_DONE;
}

static int measure_all(bench_options *options, bench_run *run, const bench_shape *shapes, size_t n_shapes)
{
    int code = CLI_DONE;
    for (size_t c = 0; c < options->n_counts && code == CLI_DONE; c++) {
        session s, versus;
        options->device.n_threads = options->thread_counts[c];
        options->versus.n_threads = options->has_versus_threads ? options->versus.n_threads : options->thread_counts[c];
        code = open_sessions(options, &s, &versus);
        if (code == CLI_DONE && run->n_results == 0) {
            begin_run(options, run, &s);
        }
        for (size_t i = 0; i < n_shapes && code == CLI_DONE; i++) {
            cli_progress("timing", c * n_shapes + i, options->n_counts * n_shapes);
            code = measure_shape(options, run, &s, options->has_versus ? &versus : NULL, &shapes[i]);
        }
        session_close(&versus);
        session_close(&s);
    }
    return code;
}

/* Adds n shapes to *n_all others. */
static void join_shapes(bench_shape **all, size_t *n_all, const bench_shape *shapes, size_t n)
{
    bench_shape *joined = cli_allocate((*n_all + n + 1) * sizeof *joined);
    if (*n_all > 0) {
        memcpy(joined, *all, *n_all * sizeof *joined);
    }
    if (n > 0) {
        memcpy(joined + *n_all, shapes, n * sizeof *joined);
    }
    free(*all);
    *all = joined;
    *n_all += n;
}

static int read_all_shapes(const bench_options *options, bench_shape **all, size_t *n_all)
{
    const cli_device any = CLI_DEVICE_INIT;
    dsr_context *context = NULL;
    int code = cli_open_device(&cli_bench, &any, &context);
    *all = NULL;
    *n_all = 0;
    for (size_t f = 0; f < options->n_files && code == CLI_DONE; f++) {
        bench_shape *shapes;
        size_t n;
        code = bench_read_shapes(&cli_bench, context, options->files[f], &shapes, &n);
        if (code == CLI_DONE) {
            join_shapes(all, n_all, shapes, n);
        }
        free(shapes);
    }
    dsr_context_destroy(context);
    return code;
}

/* Refuses a format for the second context that it would have in no shape, or in each one anyway. */
static int check_format(const bench_options *options, const bench_shape *shapes, size_t n_shapes)
{
    int changes = options->versus_format[0] == '\0';
    for (size_t i = 0; i < n_shapes && !changes; i++) {
        changes = versus_shape(options, &shapes[i]).format != shapes[i].format;
    }
    return changes ? CLI_DONE
                   : cli_usage_error(&cli_bench, "--versus format=%s: that changes none of the shapes",
                                     options->versus_format);
}

/* Any result whose joint bytes are not those of the rows alone is a failure of the library, not of the bench. */
static int all_equal(const bench_run *run)
{
    for (size_t i = 0; i < run->n_results; i++) {
        if (!run->results[i].is_equal) {
            return 0;
        }
    }
    return 1;
}

/* Whether the files that are needed in the end are there, before time is spent. */
static int check_files(const bench_options *options, json_t **old)
{
    int code = options->compare != NULL ? load_old(options->compare, old) : CLI_DONE;
    if (code == CLI_DONE && options->report != NULL) {
        code = bench_check_report(&cli_bench, options->report);
    }
    return code;
}

static int finish(const bench_options *options, const bench_run *run, const json_t *old)
{
    int code = all_equal(run) ? CLI_DONE : CLI_DIFFERS;
    if (options->json) {
        cli_print_json(run_json(run));
    }
    if (options->report != NULL && bench_write_report(&cli_bench, run, options->report) != CLI_DONE) {
        return CLI_BAD_INPUT;
    }
    if (old != NULL) {
        const int compared = compare_runs(run, options, old);
        code = compared != CLI_DONE ? compared : code;
    }
    return code;
}

static void join_words(int argc, char **argv, char *text, size_t size)
{
    size_t used = 0;
    for (int i = 0; i < argc && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? " " : "", argv[i]);
    }
}

/* Measures everything and reports it. */
static int measure_and_finish(bench_options *options, const char *command, const bench_shape *shapes, size_t n_shapes,
                              const json_t *old)
{
    char machine[128], date[32] = "";
    const time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    machine_name(machine, sizeof machine);
    bench_run run = {.machine = machine, .date = date, .command = command, .exactness = options->device.exactness};
    for (size_t c = 0; c < options->n_counts; c++) {
        run.n_threads = options->thread_counts[c] > run.n_threads ? options->thread_counts[c] : run.n_threads;
    }
    run.results = cli_allocate((options->n_counts * n_shapes + 1) * sizeof *run.results);
    int code = measure_all(options, &run, shapes, n_shapes);
    if (code == CLI_DONE) {
        code = finish(options, &run, old);
    }
    free(run.results);
    return code;
}

static int run_bench(int argc, char **argv)
{
    bench_options options = {.device = CLI_DEVICE_INIT, .versus = CLI_DEVICE_INIT, .seconds = 0.3};
    char command[512];
    bench_shape *shapes;
    size_t n_shapes;
    json_t *old = NULL;
    join_words(argc, argv, command, sizeof command);
    int code = parse(argc, argv, &options);
    if (code != CLI_DONE) {
        return code < 0 ? CLI_DONE : code;
    }
    code = read_all_shapes(&options, &shapes, &n_shapes);
    code = code == CLI_DONE ? check_format(&options, shapes, n_shapes) : code;
    code = code == CLI_DONE ? check_files(&options, &old) : code;
    code = code == CLI_DONE ? measure_and_finish(&options, command, shapes, n_shapes, old) : code;
    json_decref(old);
    free(shapes);
    return code;
}

const cli_command cli_bench = {
    .name = "bench",
    .arguments = "--shapes FILE... [OPTION]...",
    .summary = "times, rates and fractions of the machine's measured peaks",
    .help = "  --shapes FILE          shapes to time (bench/shapes/*.txt); may be repeated\n"
            "  --seconds S            how long to sample each shape (0.3)\n"
            "  --thread-counts N,...  run all shapes once for each number of threads, in place of --threads\n"
            "  --versus SPEC          a second context in turn with the first: isa=, exact=, threads=, backend=,\n"
            "                         or its caches in format=bf16, fp4 or fp8, joined by commas; prints its\n"
            "                         time over this one's\n"
            "  --compare FILE         compare with an earlier --json; exit 1 if a shape is slower than the bound\n"
            "  --bound PERCENT        for --compare (10)\n"
            "  --report FILE          write one HTML file with tables and drawings\n"
            "\n"
            "x FMA is GFLOP/s over the F32 multiply-add peak: above 1 where kernels use units for narrower numbers.\n",
    .uses_device = 1,
    .repeatable = "shapes",
    .run = run_bench,
};
