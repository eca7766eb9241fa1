/* The bit matrix and the golden hashes on this machine, by the case generator of the tests (tests/support): it uses the
 * public interface and the reference only. */
#include "bit_golden.h"
#include "bit_matrix.h"
#include "cli.h"
#include "golden_bits.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct verify_options {
    bit_tier tier;
    uint64_t seed;
    cli_device device; /* its backend alone matters */
    int json;
    int help;
} verify_options;

typedef struct op_result {
    const struct bit_op *op;
    uint32_t n_runs;
    uint32_t n_failed_shapes;
    char difference[BIT_TEXT_BYTES]; /* the first one */
} op_result;

typedef struct golden_result {
    const char *level; /* an instruction set, or "cuda" */
    uint32_t n_wrong;
    char difference[BIT_TEXT_BYTES];
} golden_result;

enum { MAX_OPS = 32, OPTION_FULL = CLI_FIRST_OWN, OPTION_SEED };

typedef struct verify_result {
    uint32_t n_ops;
    uint32_t n_levels;
    op_result ops[MAX_OPS];
    golden_result golden[BIT_N_ISAS];
} verify_result;

static int parse(int argc, char **argv, verify_options *o)
{
    static const struct option options[] = {CLI_COMMON_OPTIONS,
                                            {"full", no_argument, NULL, OPTION_FULL},
                                            {"seed", required_argument, NULL, OPTION_SEED},
                                            {"backend", required_argument, NULL, CLI_BACKEND},
                                            {0}};
    int option;
    uint64_t seen = 0;
    while ((option = cli_next_option(&cli_verify, argc, argv, options, &seen)) != -1) {
        if (option == 'h') {
            o->help = 1;
            return CLI_DONE;
        } else if (option == CLI_JSON) {
            o->json = 1;
        } else if (option == OPTION_FULL) {
            o->tier = BIT_TIER_FULL;
        } else if (option == CLI_BACKEND) {
            const int code = cli_device_option(&cli_verify, &o->device, option, optarg);
            if (code != CLI_DONE) {
                return code;
            }
        } else if (option != OPTION_SEED) {
            return cli_unknown_option(&cli_verify);
        } else if (!cli_parse_u64(optarg, UINT64_MAX, &o->seed)) {
            return cli_usage_error(&cli_verify, "--seed %s: give a number", optarg);
        }
    }
    return optind == argc ? CLI_DONE : cli_usage_error(&cli_verify, "no argument is needed, '%s' given", argv[optind]);
}

/* ---- the matrix -------------------------------------------------------------------------------------------- */

static void verify_op(const verify_options *o, const bit_contexts *contexts, op_result *result)
{
    char text[BIT_TEXT_BYTES];
    for (uint32_t shape = 0; shape < bit_n_shapes(result->op); shape++) {
        uint32_t n_runs = 0;
        cli_progress(bit_op_name(result->op), shape + 1, bit_n_shapes(result->op));
        const int failed = bit_matrix_run(contexts, result->op, shape, o->seed, o->tier, &n_runs, text) != 0;
        if (failed && result->n_failed_shapes == 0) {
            memcpy(result->difference, text, sizeof text);
        }
        result->n_failed_shapes += (uint32_t)failed;
        result->n_runs += n_runs;
    }
    cli_progress_end();
}

/* ---- golden hashes ----------------------------------------------------------------------------------------- */

static void verify_golden(dsr_context *context, golden_result *result)
{
    char line[BIT_TEXT_BYTES], text[BIT_TEXT_BYTES];
    result->level = dsr_context_device(context) == DSR_DEVICE_CUDA ? "cuda" : dsr_isa_name(dsr_context_isa(context));
    for (uint32_t i = 0; i < bit_golden_n_lines(); i++) {
        const bit_golden_line wanted = bit_golden_case(i);
        uint64_t hash = 0;
        const int failed = bit_golden_run(&wanted, context, &hash, text) != 0;
        snprintf(line, sizeof line, "%s %s %" PRIu64 " %016" PRIx64, bit_op_name(wanted.op),
                 bit_shape_name(wanted.op, wanted.shape), wanted.seed, hash);
        cli_progress(result->level, i + 1, bit_golden_n_lines());
        if (!failed && i < n_golden_bits && strcmp(line, golden_bits[i]) == 0) {
            continue;
        }
        if (result->n_wrong++ == 0) {
            snprintf(result->difference, sizeof result->difference, "got %.200s, want %.200s", failed ? text : line,
                     i < n_golden_bits ? golden_bits[i] : "(no line)");
        }
    }
    cli_progress_end();
}

/* ---- reports ----------------------------------------------------------------------------------------------- */

static int passed(const verify_result *result)
{
    uint32_t n_failed = 0;
    for (uint32_t i = 0; i < result->n_ops; i++) {
        n_failed += result->ops[i].n_failed_shapes;
    }
    for (uint32_t i = 0; i < result->n_levels; i++) {
        n_failed += result->golden[i].n_wrong;
    }
    return n_failed == 0;
}

/* Lines of text appear as soon as they are known: the whole matrix takes minutes. */
static void print_op(const op_result *op)
{
    printf("%-18s %6u %7u  %s\n", bit_op_name(op->op), (unsigned)bit_n_shapes(op->op), (unsigned)op->n_runs,
           op->n_failed_shapes == 0 ? "yes" : op->difference);
    fflush(stdout);
}

static void print_golden(const golden_result *golden)
{
    printf("%-9s %13u  %s\n", golden->level, (unsigned)bit_golden_n_lines(),
           golden->n_wrong == 0 ? "yes" : golden->difference);
    fflush(stdout);
}

static void print_json(const verify_result *result)
{
    json_t *ops = json_array(), *levels = json_array();
    for (uint32_t i = 0; i < result->n_ops; i++) {
        const op_result *op = &result->ops[i];
        cli_json_append(ops, json_pack("{s:s, s:i, s:i, s:i, s:s}", "op", bit_op_name(op->op), "shapes",
                                       (int)bit_n_shapes(op->op), "runs", (int)op->n_runs, "failed_shapes",
                                       (int)op->n_failed_shapes, "first_difference", op->difference));
    }
    for (uint32_t i = 0; i < result->n_levels; i++) {
        const golden_result *golden = &result->golden[i];
        cli_json_append(levels,
                        json_pack("{s:s, s:i, s:i, s:s}", "isa", golden->level, "golden", (int)bit_golden_n_lines(),
                                  "wrong", (int)golden->n_wrong, "first_difference", golden->difference));
    }
    cli_print_json(json_pack("{s:o, s:o, s:b}", "ops", ops, "levels", levels, "passed", passed(result)));
}

/* ------------------------------------------------------------------------------------------------------------ */

static void verify(const verify_options *o, const bit_contexts *contexts, verify_result *result)
{
    if (!o->json) {
        printf("op                 shapes    runs  bits equal to the reference\n");
    }
    for (uint32_t i = 0; i < bit_n_ops() && i < MAX_OPS; i++) {
        op_result *op = &result->ops[result->n_ops++];
        op->op = bit_op_at(i);
        verify_op(o, contexts, op);
        if (!o->json) {
            print_op(op);
        }
    }
    if (!o->json) {
        printf("\nlevel     golden hashes  equal\n");
    }
    for (uint32_t i = 0; i < BIT_N_ISAS; i++) {
        if (contexts->of[i][0] != NULL) {
            golden_result *golden = &result->golden[result->n_levels++];
            verify_golden(contexts->of[i][0], golden);
            if (!o->json) {
                print_golden(golden);
            }
        }
    }
}

static int run(int argc, char **argv)
{
    static verify_result result;
    verify_options o = {.tier = BIT_TIER_QUICK, .seed = 1, .device = CLI_DEVICE_INIT};
    bit_contexts contexts;
    char text[BIT_TEXT_BYTES];
    dsr_context *context;
    int code = parse(argc, argv, &o);
    if (code != CLI_DONE || o.help) {
        return o.help ? cli_print_help(&cli_verify) : code;
    }
    /* What is wrong with the environment is told as every command tells it. */
    code = cli_open_device(&cli_verify, &o.device, &context);
    if (code != CLI_DONE) {
        return code;
    }
    dsr_context_destroy(context);
    if ((o.device.backend == DSR_DEVICE_CUDA ? bit_contexts_open_cuda : bit_contexts_open)(&contexts, text) != 0) {
        cli_error(&cli_verify, "%s", text);
        return CLI_UNAVAILABLE;
    }
    verify(&o, &contexts, &result);
    bit_contexts_close(&contexts);
    if (o.json) {
        print_json(&result);
    }
    if (!passed(&result)) {
        cli_error(&cli_verify, "bits differ");
        return CLI_DIFFERS;
    }
    return CLI_DONE;
}

const cli_command cli_verify = {
    .name = "verify",
    .arguments = "[OPTION]...",
    .summary = "the bit matrix on this machine, against the reference and the golden hashes",
    .help = "  --full               every point of the matrix instead of a sample of it\n"
            "  --seed N             other operands (1)\n"
            "  --backend BACKEND    cpu (default): every instruction set here; cuda\n",
    .run = run,
};
