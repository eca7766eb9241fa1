/* What every sub-command of the dsrows tool shares: exit codes, device options, messages, progress. */
#ifndef DSROWS_CLI_H
#define DSROWS_CLI_H

#include <dsrows/dsrows.h>
#include <getopt.h>
#include <jansson.h>

enum {
    CLI_DONE = 0,
    CLI_DIFFERS = 1,    /* a comparison failed */
    CLI_BAD_INPUT = 2,  /* bad usage, or a file that cannot be used */
    CLI_UNAVAILABLE = 3 /* this machine or build cannot do it */
};

/* A sub-command. run gets argv with "dsrows NAME" as argv[0] and returns an exit code. */
typedef struct cli_command {
    const char *name;
    const char *arguments; /* after the name in the usage line */
    const char *summary;   /* one line for `dsrows --help` */
    const char *help;      /* options, one a line; the device options are added where uses_device is set */
    int uses_device;
    const char *repeatable; /* the one option that may be given several times, or null */
    int (*run)(int argc, char **argv);
} cli_command;

extern const cli_command cli_info, cli_run, cli_replay, cli_decode, cli_verify, cli_bench;

/* --backend, --isa, --exact and --threads. */
typedef struct cli_device {
    dsr_device_kind backend;
    dsr_isa isa;
    dsr_exactness exactness;
    uint32_t n_threads;
} cli_device;

#define CLI_DEVICE_INIT                                                                                                \
    {                                                                                                                  \
        DSR_DEVICE_CPU, DSR_ISA_AUTO, DSR_EXACT_DEVICE, 1                                                              \
    }

/* getopt_long values of options without a letter. */
enum { CLI_BACKEND = 256, CLI_ISA, CLI_EXACT, CLI_THREADS, CLI_JSON, CLI_FIRST_OWN };

#define CLI_DEVICE_OPTIONS                                                                                             \
    {"backend", required_argument, NULL, CLI_BACKEND}, {"isa", required_argument, NULL, CLI_ISA},                      \
        {"exact", required_argument, NULL, CLI_EXACT},                                                                 \
    {                                                                                                                  \
        "threads", required_argument, NULL, CLI_THREADS                                                                \
    }
#define CLI_COMMON_OPTIONS                                                                                             \
    {"json", no_argument, NULL, CLI_JSON},                                                                             \
    {                                                                                                                  \
        "help", no_argument, NULL, 'h'                                                                                 \
    }

/* getopt_long; '?' also, after a message, for an option that was given before and is not the repeatable one. *seen:
 * which were, 0 at first. */
int cli_next_option(const cli_command *command, int argc, char **argv, const struct option *options, uint64_t *seen);
/* Takes a device option; any other is unknown. CLI_DONE, or CLI_BAD_INPUT after a message. */
int cli_device_option(const cli_command *command, cli_device *device, int option, const char *value);
/* Creates the context the options ask for. CLI_DONE, or another exit code after a message. */
int cli_open_device(const cli_command *command, const cli_device *device, dsr_context **context);
const char *cli_backend_name(dsr_device_kind backend);
const char *cli_exactness_name(dsr_exactness exactness);
/* As tables show what must be so. */
const char *cli_yes_or_no(int yes);

/* Prints a command's help to standard output and returns CLI_DONE. */
int cli_print_help(const cli_command *command);
/* Message "dsrows COMMAND: ..." on standard error. */
void cli_error(const cli_command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A hint at --help, for an option that getopt_long has complained of; returns CLI_BAD_INPUT. */
int cli_unknown_option(const cli_command *command);
/* A message and the hint; returns CLI_BAD_INPUT. */
int cli_usage_error(const cli_command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Exit code that stands for a failed library call. */
int cli_exit_code(dsr_status status);

/* Decimal digits only, at most `maximum`; 0 if text is something else. */
int cli_parse_u64(const char *text, uint64_t maximum, uint64_t *value);

/* Memory of n_bytes, zeros, to be freed with free. Never null: without memory the tool says so and exits. */
void *cli_allocate(size_t n_bytes);

/* Parts of a document. Text that is not UTF-8, such as a file's name may be, gets U+FFFD for each byte that is not; a
 * number that is not finite becomes null. */
json_t *cli_json_text(const char *text);
json_t *cli_json_number(double value);
/* Appends and gives up the reference. A value that could not be made (null) ends the tool, after a message. */
void cli_json_append(json_t *array, json_t *value);
/* Adds the members of another object to an object and gives up the reference of that; likewise. */
void cli_json_add(json_t *object, json_t *members);
/* Prints a document to standard output and gives up the reference. Null ends the tool as above. */
void cli_print_json(json_t *document);

/* A line on standard error that shows how far long work is, only where that is a terminal. */
void cli_progress(const char *what, uint64_t done, uint64_t total);
void cli_progress_end(void);

#endif
