#include "run_ops.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

typedef struct run_options {
    cli_device device;
    const run_op *op;
    const char *in;
    const char *out;
    uint32_t n_only;
    uint32_t only[DSR_MAX_ROWS];
    int json;
    int help;
} run_options;

enum { OPTION_IN = CLI_FIRST_OWN, OPTION_OUT, OPTION_ONLY };

static int add_only_row(run_options *o, const char *number)
{
    uint64_t row;
    if (!case_parse_row(number, UINT32_MAX, &row)) {
        return cli_usage_error(&cli_run, "--only: '%s' is not a row number", number);
    }
    for (uint32_t i = 0; i < o->n_only; i++) {
        if (o->only[i] == row) {
            return cli_usage_error(&cli_run, "--only: row %s is given twice", number);
        }
    }
    if (o->n_only == DSR_MAX_ROWS) {
        return cli_usage_error(&cli_run, "--only: a call takes at most %d rows", DSR_MAX_ROWS);
    }
    o->only[o->n_only++] = (uint32_t)row;
    return CLI_DONE;
}

/* R[,R]: */
static int parse_only(run_options *o, const char *text)
{
    char number[24];
    for (;;) {
        const size_t length = strcspn(text, ",");
        if (length >= sizeof number) {
            return cli_usage_error(&cli_run, "--only: '%.*s' is not a row number", (int)length, text);
        }
        snprintf(number, sizeof number, "%.*s", (int)length, text);
        const int code = add_only_row(o, number);
        if (code != CLI_DONE || text[length] == '\0') {
            return code;
        }
        text += length + 1;
    }
}

static int parse_option(run_options *o, int option, const char *value)
{
    switch (option) {
    case 'h':
        o->help = 1;
        return CLI_DONE;
    case CLI_JSON:
        o->json = 1;
        return CLI_DONE;
    case OPTION_IN:
        o->in = value;
        return CLI_DONE;
    case OPTION_OUT:
        o->out = value;
        return CLI_DONE;
    case OPTION_ONLY:
        return parse_only(o, value);
    default:
        return cli_device_option(&cli_run, &o->device, option, value);
    }
}

/* Results must not replace operands. */
static int are_one_file(const char *in, const char *out)
{
    struct stat a, b;
    return stat(in, &a) == 0 && stat(out, &b) == 0 && S_ISREG(a.st_mode) && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

static int parse(int argc, char **argv, run_options *o)
{
    static const struct option options[] = {CLI_DEVICE_OPTIONS,
                                            CLI_COMMON_OPTIONS,
                                            {"in", required_argument, NULL, OPTION_IN},
                                            {"out", required_argument, NULL, OPTION_OUT},
                                            {"only", required_argument, NULL, OPTION_ONLY},
                                            {0}};
    int option;
    uint64_t seen = 0;
    while ((option = cli_next_option(&cli_run, argc, argv, options, &seen)) != -1) {
        const int code = parse_option(o, option, optarg);
        if (code != CLI_DONE || o->help) {
            return code;
        }
    }
    if (optind + 1 != argc) {
        return cli_usage_error(&cli_run, optind == argc ? "no OP given" : "more than one OP given");
    }
    o->op = run_op_find(argv[optind]);
    if (o->op == NULL) {
        return cli_usage_error(&cli_run,
                               "'%s' is not an op: give sparse-attention, flash-attention, indexer, compressor "
                               "or gather",
                               argv[optind]);
    }
    if (o->in == NULL || o->out == NULL) {
        return cli_usage_error(&cli_run, "--in and --out are needed");
    }
    if (are_one_file(o->in, o->out)) {
        return cli_usage_error(&cli_run, "--out %s is the file of --in", o->out);
    }
    return CLI_DONE;
}

static void report_json(const run_options *o, const case_file *c, const session *s)
{
    json_t *rows = json_array(), *outputs = json_array();
    for (uint32_t r = 0; r < c->n_rows; r++) {
        cli_json_append(rows, json_integer(c->rows[r]));
    }
    for (size_t i = 0; i < c->n_outputs; i++) {
        cli_json_append(outputs, cli_json_text(c->outputs[i].name));
    }
    json_t *document = json_pack("{s:s, s:o, s:o, s:o}", "op", o->op->name, "rows", rows, "out", cli_json_text(o->out),
                                 "outputs", outputs);
    session_add_json(s, document);
    cli_print_json(document);
}

static void report(const run_options *o, const case_file *c, const session *s)
{
    if (o->json) {
        report_json(o, c, s);
    } else {
        printf("%s: %u %s, ", o->op->name, (unsigned)c->n_rows, c->n_rows == 1 ? "row" : "rows");
        session_print(s, ", results in ");
        printf("%s\n", o->out);
    }
}

static int run(int argc, char **argv)
{
    run_options o = {.device = CLI_DEVICE_INIT};
    case_file c;
    session s;
    int code = parse(argc, argv, &o);
    if (code != CLI_DONE || o.help) {
        return o.help ? cli_print_help(&cli_run) : code;
    }
    session_open(&s, &cli_run, &o.device);
    code = s.code;
    if (code == CLI_DONE) {
        case_open(&c, &cli_run, o.in);
        case_check_names(&c, &o.op->names, "");
        case_find_rows(&c, o.op->names.rows, o.only, o.n_only);
        if (c.code == CLI_DONE) {
            o.op->run(&c, &s);
        }
        if (c.code == CLI_DONE && s.code == CLI_DONE) {
            case_write(&c, o.out);
        }
        code = c.code != CLI_DONE ? c.code : s.code;
        if (code == CLI_DONE) {
            report(&o, &c, &s);
        }
        case_close(&c);
    }
    session_close(&s);
    return code;
}

const cli_command cli_run = {
    .name = "run",
    .arguments = "OP --in CASE --out RESULT [OPTION]...",
    .summary = "one op on operands from a safetensors file, all rows jointly",
    .help = "  --in CASE            operands: a safetensors file, per-row tensors named NAME.R\n"
            "  --out RESULT         where the results go, a safetensors file, another one than CASE\n"
            "  --only R[,R]...      just these rows, in this order; results keep their row numbers\n"
            "\n"
            "dsrows(1) lists the tensors of each op. Caches may be packed and in pages: kv_format,\n"
            "page_table.R, page_size.\n",
    .uses_device = 1,
    .run = run,
};
