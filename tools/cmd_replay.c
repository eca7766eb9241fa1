#include "replay.h"

#include <stdio.h>

typedef struct replay_options {
    cli_device device;
    const char *path;
    int json;
    int help;
} replay_options;

static int parse(int argc, char **argv, replay_options *o)
{
    static const struct option options[] = {CLI_DEVICE_OPTIONS, CLI_COMMON_OPTIONS, {0}};
    int option;
    uint64_t seen = 0;
    while ((option = cli_next_option(&cli_replay, argc, argv, options, &seen)) != -1) {
        if (option == 'h') {
            o->help = 1;
            return CLI_DONE;
        }
        if (option == CLI_JSON) {
            o->json = 1;
            continue;
        }
        const int code = cli_device_option(&cli_replay, &o->device, option, optarg);
        if (code != CLI_DONE) {
            return code;
        }
    }
    if (optind + 1 != argc) {
        return cli_usage_error(&cli_replay, "give one FILE");
    }
    o->path = argv[optind];
    return CLI_DONE;
}

/* ---- text -------------------------------------------------------------------------------------------------- */

static void print_requests(const replay_result *result)
{
    printf(
        "                                              largest error against float64    joint = alone, byte for byte\n"
        "request  length  keys  selected  width  padded    scores  two-pass     flash  scores  top-k  two-pass  "
        "flash\n");
    for (uint32_t i = 0; i < result->n_requests; i++) {
        const replay_request *r = &result->requests[i];
        printf("%7u %7u %5llu %9u %6llu %7llu  %8.1e  %8.1e  %8.1e  %6s %6s %9s %6s%s\n", (unsigned)r->row,
               (unsigned)r->length, (unsigned long long)r->n_keys, (unsigned)r->n_selected,
               (unsigned long long)r->two_pass_width, (unsigned long long)r->flash_width, r->scores.largest,
               r->two_pass.largest, r->flash.largest, cli_yes_or_no(r->scores_alone), cli_yes_or_no(r->top_k_alone),
               cli_yes_or_no(r->two_pass_alone), cli_yes_or_no(r->flash_alone),
               replay_request_passed(r) ? "" : "  FAILED");
        if (r->n_near_ties != 0 || r->n_wrong != 0) {
            printf("         top-k against the record: %u near ties in another order, %u wrong\n",
                   (unsigned)r->n_near_ties, (unsigned)r->n_wrong);
        }
    }
}

static void print_compressors(const replay_result *result)
{
    if (result->n_compressors != 0) {
        printf("\ncompressor    rows    tokens  groups  largest error  in BF16 units  BF16 steps  joint = alone\n");
    }
    for (uint32_t i = 0; i < result->n_compressors; i++) {
        const replay_compressor *c = &result->compressors[i];
        printf("ratio %3u, %3u %4u %4u..%-4u %6u  %13.1e  %13.2f  %10u  %13s%s\n", (unsigned)c->ratio, (unsigned)c->dim,
               (unsigned)c->n_rows, (unsigned)c->shortest, (unsigned)c->longest, (unsigned)c->n_groups,
               c->error.largest, c->error.fraction, (unsigned)c->largest_steps, cli_yes_or_no(c->alone),
               replay_compressor_passed(c) ? "" : "  FAILED");
    }
}

/* Largest part of the tolerance that any request uses. */
static double worst_fraction(const replay_result *result, int scores)
{
    double worst = 0;
    for (uint32_t i = 0; i < result->n_requests; i++) {
        const replay_request *r = &result->requests[i];
        const double attention = r->two_pass.fraction > r->flash.fraction ? r->two_pass.fraction : r->flash.fraction;
        const double fraction = scores ? r->scores.fraction : attention;
        worst = fraction > worst ? fraction : worst;
    }
    return worst;
}

static void print_text(const replay_options *o, const session *s, const replay_result *result)
{
    printf("%s: %u requests, %u heads, %u index heads; ", o->path, (unsigned)result->n_requests,
           (unsigned)result->n_heads, (unsigned)result->n_index_heads);
    session_print(s, "\n\n");
    print_requests(result);
    print_compressors(result);
    printf("\nused of what is allowed: scores %.0f %% of %.0e, attention %.0f %% of ", 100 * worst_fraction(result, 1),
           REPLAY_SCORE_TOLERANCE, 100 * worst_fraction(result, 0));
    if (o->device.exactness == DSR_EXACT_ROW) {
        printf("the row-exact bound\n");
    } else {
        printf("half a BF16 unit and %.0e\n", REPLAY_ATTENTION_TOLERANCE);
    }
    printf("digest of all joint results (SHA-256): %s\n", result->digest);
}

/* ---- JSON -------------------------------------------------------------------------------------------------- */

static json_t *error_json(const replay_error *error)
{
    return json_pack("{s:o, s:o}", "largest", cli_json_number(error->largest), "of_allowed",
                     cli_json_number(error->fraction));
}

static json_t *request_json(const replay_request *r)
{
    return json_pack("{s:i, s:i, s:I, s:i, s:I, s:I, s:i, s:i, s:o, s:o, s:o, s:{s:b, s:b, s:b, s:b}, s:b}", "request",
                     (int)r->row, "length", (int)r->length, "keys", (json_int_t)r->n_keys, "selected",
                     (int)r->n_selected, "width", (json_int_t)r->two_pass_width, "padded_width",
                     (json_int_t)r->flash_width, "top_k_near_ties", (int)r->n_near_ties, "top_k_wrong", (int)r->n_wrong,
                     "scores_error", error_json(&r->scores), "two_pass_error", error_json(&r->two_pass), "flash_error",
                     error_json(&r->flash), "joint_equals_alone", "scores", r->scores_alone, "top_k", r->top_k_alone,
                     "two_pass", r->two_pass_alone, "flash", r->flash_alone, "passed", replay_request_passed(r));
}

static json_t *compressor_json(const replay_compressor *c)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:i, s:b, s:b}", "ratio", (int)c->ratio, "dim",
                     (int)c->dim, "rows", (int)c->n_rows, "longest", (int)c->longest, "shortest", (int)c->shortest,
                     "groups", (int)c->n_groups, "largest_error", cli_json_number(c->error.largest),
                     "largest_error_in_bf16_units", cli_json_number(c->error.fraction), "bf16_steps",
                     (int)c->largest_steps, "joint_equals_alone", c->alone, "passed", replay_compressor_passed(c));
}

static void print_json(const replay_options *o, const session *s, const replay_result *result, int passed)
{
    json_t *requests = json_array(), *compressors = json_array();
    for (uint32_t i = 0; i < result->n_requests; i++) {
        cli_json_append(requests, request_json(&result->requests[i]));
    }
    for (uint32_t i = 0; i < result->n_compressors; i++) {
        cli_json_append(compressors, compressor_json(&result->compressors[i]));
    }
    json_t *document = json_pack("{s:o, s:i, s:i, s:o, s:o, s:s, s:b}", "file", cli_json_text(o->path), "heads",
                                 (int)result->n_heads, "index_heads", (int)result->n_index_heads, "requests", requests,
                                 "compressors", compressors, "digest", result->digest, "passed", passed);
    session_add_json(s, document);
    cli_print_json(document);
}

/* ------------------------------------------------------------------------------------------------------------ */

static int all_passed(const replay_result *result)
{
    int passed = 1;
    for (uint32_t i = 0; i < result->n_requests; i++) {
        passed = passed && replay_request_passed(&result->requests[i]);
    }
    for (uint32_t i = 0; i < result->n_compressors; i++) {
        passed = passed && replay_compressor_passed(&result->compressors[i]);
    }
    return passed;
}

static int report(const replay_options *o, const session *s, const replay_result *result)
{
    const int passed = all_passed(result);
    if (o->json) {
        print_json(o, s, result, passed);
    } else {
        print_text(o, s, result);
    }
    if (!passed) {
        cli_error(&cli_replay, "results differ");
    }
    return passed ? CLI_DONE : CLI_DIFFERS;
}

static int run(int argc, char **argv)
{
    replay_options o = {.device = CLI_DEVICE_INIT};
    replay_result result;
    case_file c;
    session s;
    int code = parse(argc, argv, &o);
    if (code != CLI_DONE || o.help) {
        return o.help ? cli_print_help(&cli_replay) : code;
    }
    session_open(&s, &cli_replay, &o.device);
    code = s.code;
    if (code == CLI_DONE) {
        case_open(&c, &cli_replay, o.path);
        if (c.code == CLI_DONE) {
            replay_all(&c, &s, &result);
        }
        code = c.code != CLI_DONE ? c.code : s.code;
        if (code == CLI_DONE) {
            code = report(&o, &s, &result);
        }
        case_close(&c);
    }
    session_close(&s);
    return code;
}

const cli_command cli_replay = {
    .name = "replay",
    .arguments = "FILE [OPTION]...",
    .summary = "a recorded decode step of several requests: joint, alone, and against the record",
    .help = "",
    .uses_device = 1,
    .run = run,
};
