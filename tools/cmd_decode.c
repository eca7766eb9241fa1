#include "decode.h"

#include "near_tie.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MODELS = 128, DEFAULT_STEPS = 16, OPTION_MODEL = CLI_FIRST_OWN, OPTION_REQUESTS, OPTION_CACHE };

typedef struct decode_options {
    cli_device device;
    const char *models[MAX_MODELS];
    uint32_t n_models;
    const char *requests; /* null: each model file holds its own */
    dsr_cache_treatment cache;
    int json;
    int help;
} decode_options;

static int add_model(decode_options *o, const char *path)
{
    if (o->n_models == MAX_MODELS) {
        return cli_usage_error(&cli_decode, "--model: at most %d files", MAX_MODELS);
    }
    o->models[o->n_models++] = path;
    return CLI_DONE;
}

static int parse_cache(decode_options *o, const char *value)
{
    for (int cache = DSR_CACHE_BF16; cache <= DSR_CACHE_PACKED; cache++) {
        if (strcmp(value, layer_cache_name((dsr_cache_treatment)cache)) == 0) {
            o->cache = (dsr_cache_treatment)cache;
            return CLI_DONE;
        }
    }
    return cli_usage_error(&cli_decode, "--cache %s: give bf16, official or packed", value);
}

static int parse_option(decode_options *o, int option, const char *value)
{
    switch (option) {
    case 'h':
        o->help = 1;
        return CLI_DONE;
    case CLI_JSON:
        o->json = 1;
        return CLI_DONE;
    case OPTION_MODEL:
        return add_model(o, value);
    case OPTION_REQUESTS:
        o->requests = value;
        return CLI_DONE;
    case OPTION_CACHE:
        return parse_cache(o, value);
    default:
        return cli_device_option(&cli_decode, &o->device, option, value);
    }
}

static int parse(int argc, char **argv, decode_options *o)
{
    static const struct option options[] = {{"model", required_argument, NULL, OPTION_MODEL},
                                            {"requests", required_argument, NULL, OPTION_REQUESTS},
                                            {"cache", required_argument, NULL, OPTION_CACHE},
                                            CLI_DEVICE_OPTIONS,
                                            CLI_COMMON_OPTIONS,
                                            {0}};
    int option, code = CLI_DONE;
    uint64_t seen = 0;
    while (code == CLI_DONE && !o->help && (option = cli_next_option(&cli_decode, argc, argv, options, &seen)) != -1) {
        code = parse_option(o, option, optarg);
    }
    if (o->help || code != CLI_DONE) {
        return code;
    }
    if (o->n_models == 0) {
        return cli_usage_error(&cli_decode, "--model is needed");
    }
    for (; optind < argc && code == CLI_DONE; optind++) {
        code = add_model(o, argv[optind]); /* --model takes several files */
    }
    return code;
}

/* ---- text -------------------------------------------------------------------------------------------------- */

static void print_request(const decode_request *r)
{
    char errors[48] = "       -        -", ties[48] = "        -        -        -";
    if (r->has_record) {
        snprintf(errors, sizeof errors, "%8.1e %8.1e", r->largest_error, r->mean_error);
    }
    if (r->n_near_ties) {
        snprintf(ties, sizeof ties, "%9u %8.1e %8.1e", (unsigned)r->n_near_ties, r->largest_gap, r->allowed_gap);
    } else if (r->has_record) {
        snprintf(ties, sizeof ties, "%9u        -        -", 0u);
    }
    printf("%7u %7u %6u  %s  %s  %7s  %5s%s\n", (unsigned)r->row, (unsigned)r->length, (unsigned)r->n_steps, errors,
           ties, cli_yes_or_no(r->outputs_alone), cli_yes_or_no(r->state_alone),
           decode_request_passed(r) ? "" : "  FAILED");
}

/* What the table does not say about a failure. */
static void report_request(const char *path, const decode_request *r)
{
    if (r->n_unproven) {
        cli_error(&cli_decode,
                  "%s: request %u: outputs beyond %g that are no near-ties: %u; the first, of token %u, has an error "
                  "of %.2g: %s",
                  path, (unsigned)r->row, NEAR_TIE_LARGEST_ERROR, (unsigned)r->n_unproven, (unsigned)r->unproven,
                  r->unproven_error, r->objection);
    }
    if (!(r->mean_error <= DECODE_MEAN_ERROR)) {
        cli_error(&cli_decode, "%s: request %u: the mean error is %.2g, at most %g is right", path, (unsigned)r->row,
                  r->mean_error, DECODE_MEAN_ERROR);
    }
    if (!r->outputs_alone || !r->state_alone) {
        cli_error(&cli_decode, "%s: request %u: %s differ between joint and alone", path, (unsigned)r->row,
                  !r->outputs_alone ? "outputs" : "states");
    }
}

static void print_layer(const char *path, const layer_file *layer, const decode_result *result)
{
    const double n = result->n_requests;
    printf("\n%s: %s, hidden %u, %u heads, %s caches\n", path, layer_kind_name(layer->config.kind),
           (unsigned)layer->config.hidden_size, (unsigned)layer->config.n_heads, layer_cache_name(layer->config.cache));
    printf("                        error / RMS of the record                              joint = alone, bytes\n"
           "request  length  steps   largest     mean  near-ties      gap  allowed  outputs  state\n");
    for (uint32_t r = 0; r < result->n_requests; r++) {
        print_request(&result->requests[r]);
    }
    printf(
        "joint: %.3f ms a step of %u requests, %.0f tokens/s; one by one: %.3f ms, %.0f tokens/s; %.2f times as fast\n",
        1e3 * result->joint_seconds, (unsigned)result->n_requests, n / result->joint_seconds,
        1e3 * result->alone_seconds, n / result->alone_seconds, result->alone_seconds / result->joint_seconds);
}

/* ---- JSON -------------------------------------------------------------------------------------------------- */

/* A number of a request with a record. */
static json_t *recorded_json(const decode_request *r, int is_known, double value)
{
    return r->has_record && is_known ? cli_json_number(value) : json_null();
}

static json_t *request_json(const decode_request *r)
{
    return json_pack("{s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:b, s:b}", "request", (int)r->row, "length",
                     (int)r->length, "steps", (int)r->n_steps, "largest_error", recorded_json(r, 1, r->largest_error),
                     "mean_error", recorded_json(r, 1, r->mean_error), "near_ties",
                     r->has_record ? json_integer((json_int_t)r->n_near_ties) : json_null(), "largest_gap",
                     recorded_json(r, r->n_near_ties != 0, r->largest_gap), "allowed_gap",
                     recorded_json(r, r->n_near_ties != 0, r->allowed_gap), "unproven",
                     r->has_record ? json_integer((json_int_t)r->n_unproven) : json_null(), "outputs_equal_alone",
                     r->outputs_alone, "state_equals_alone", r->state_alone, "passed", decode_request_passed(r));
}

static json_t *layer_json(const char *path, const layer_file *layer, const decode_result *result)
{
    json_t *requests = json_array();
    for (uint32_t r = 0; r < result->n_requests; r++) {
        cli_json_append(requests, request_json(&result->requests[r]));
    }
    return json_pack("{s:o, s:s, s:i, s:i, s:s, s:o, s:f, s:f}", "file", cli_json_text(path), "kind",
                     layer_kind_name(layer->config.kind), "hidden_size", (int)layer->config.hidden_size, "heads",
                     (int)layer->config.n_heads, "cache", layer_cache_name(layer->config.cache), "requests", requests,
                     "joint_seconds", result->joint_seconds, "one_by_one_seconds", result->alone_seconds);
}

/* ------------------------------------------------------------------------------------------------------------ */

/* 1 if all requests passed. */
static int report_failures(const char *path, const decode_result *result)
{
    int passed = 1;
    for (uint32_t r = 0; r < result->n_requests; r++) {
        report_request(path, &result->requests[r]);
        passed = passed && decode_request_passed(&result->requests[r]);
    }
    return passed;
}

/* Decode steps of recorded requests, from the file's metadata. */
static uint32_t read_steps(case_file *c)
{
    uint64_t n_steps = DEFAULT_STEPS;
    const char *text = c->code == CLI_DONE ? st_metadata(c->file, "decode_steps") : NULL;
    if (text != NULL && (!cli_parse_u64(text, DECODE_MAX_STEPS, &n_steps) || n_steps == 0)) {
        case_fail(c, CLI_BAD_INPUT, "metadata decode_steps is %s, needed is a number from 1 to %d", text,
                  DECODE_MAX_STEPS);
    }
    return (uint32_t)n_steps;
}

/* Runs one layer; adds it to `documents`, or prints it where that is null, the first one below the device. */
static int run_layer(const decode_options *o, session *s, uint32_t index, json_t *documents)
{
    const char *path = o->models[index];
    decode_result *result = cli_allocate(sizeof *result);
    case_file model, other;
    layer_file layer;
    case_open(&model, &cli_decode, path);
    layer_file_read(&model, o->cache, &layer);
    case_file *requests = &model;
    if (o->requests != NULL && model.code == CLI_DONE) {
        case_open(&other, &cli_decode, o->requests);
        requests = &other;
    }
    const uint32_t n_steps = read_steps(requests);
    if (requests->code == CLI_DONE) {
        const int uses_record = o->cache == DSR_CACHE_BF16 && (o->requests == NULL || o->n_models == 1);
        decode_layer(requests, s, &layer, n_steps, uses_record, result);
    }
    int code = model.code != CLI_DONE ? model.code : requests->code != CLI_DONE ? requests->code : s->code;
    if (code == CLI_DONE) {
        code = report_failures(path, result) ? CLI_DONE : CLI_DIFFERS;
        if (documents == NULL) {
            if (index == 0) {
                session_print(s, "\n");
            }
            print_layer(path, &layer, result);
        } else {
            cli_json_append(documents, layer_json(path, &layer, result));
        }
    }
    if (requests == &other) {
        case_close(&other);
    }
    case_close(&model);
    free(result);
    return code;
}

static int run_layers(const decode_options *o, session *s)
{
    json_t *documents = o->json ? json_array() : NULL;
    int differs = 0, code = CLI_DONE;
    for (uint32_t i = 0; i < o->n_models && (code == CLI_DONE || code == CLI_DIFFERS); i++) {
        code = run_layer(o, s, i, documents);
        differs = differs || code == CLI_DIFFERS;
    }
    if (code != CLI_DONE && code != CLI_DIFFERS) {
        json_decref(documents);
        return code;
    }
    if (o->json) {
        json_t *document = json_pack("{s:o, s:b}", "layers", documents, "passed", !differs);
        session_add_json(s, document);
        cli_print_json(document);
    }
    if (differs) {
        cli_error(&cli_decode, "results differ");
    }
    return differs ? CLI_DIFFERS : CLI_DONE;
}

static int run(int argc, char **argv)
{
    decode_options o = {.device = CLI_DEVICE_INIT};
    session s;
    int code = parse(argc, argv, &o);
    if (code != CLI_DONE || o.help) {
        return o.help ? cli_print_help(&cli_decode) : code;
    }
    session_open(&s, &cli_decode, &o.device);
    code = s.code == CLI_DONE ? run_layers(&o, &s) : s.code;
    session_close(&s);
    return code;
}

const cli_command cli_decode = {
    .name = "decode",
    .arguments = "--model FILE... [--requests FILE] [OPTION]...",
    .summary = "attention layers on whole requests: prefill, then joint decode, beside each one alone",
    .help = "  --model FILE...      attention layers, run in turn: safetensors files\n"
            "  --requests FILE      the requests' hidden states (each model file's own)\n"
            "  --cache bf16|official|packed  how cache rows are rounded and stored (bf16)\n",
    .uses_device = 1,
    .repeatable = "model",
    .run = run,
};
