#include "cli.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char device_help[] = "  --backend cpu|cuda   where to run (cpu)\n"
                                  "  --isa LEVEL          CPU kernels: auto, scalar, avx2, avx512 or neon (auto)\n"
                                  "  --exact row|device   the exactness promise (device)\n"
                                  "  --threads N          CPU threads, the calling one included (1)\n";
static const char common_help[] = "  --json               write JSON instead of text\n"
                                  "  --help               show this text\n";

int cli_print_help(const cli_command *command)
{
    printf("usage: dsrows %s %s\n\n%s\n\noptions:\n%s%s%s", command->name, command->arguments, command->summary,
           command->help, command->uses_device ? device_help : "", common_help);
    return CLI_DONE;
}

/* Names come from outside: control characters must not reach a terminal. */
static void print_error(const cli_command *command, const char *format, va_list arguments)
{
    va_list again;
    va_copy(again, arguments);
    const int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    const size_t size = length < 0 ? 1 : (size_t)length + 1;
    char *text = cli_allocate(size);
    vsnprintf(text, size, format, arguments);
    for (char *at = text; *at != '\0'; at++) {
        *at = (unsigned char)*at < 0x20 || *at == 0x7f ? '?' : *at;
    }
    fprintf(stderr, "dsrows %s: %s\n", command->name, text);
    free(text);
}

void cli_error(const cli_command *command, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_error(command, format, arguments);
    va_end(arguments);
}

int cli_unknown_option(const cli_command *command)
{
    fprintf(stderr, "Try 'dsrows %s --help'.\n", command->name);
    return CLI_BAD_INPUT;
}

int cli_usage_error(const cli_command *command, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_error(command, format, arguments);
    va_end(arguments);
    return cli_unknown_option(command);
}

int cli_next_option(const cli_command *command, int argc, char **argv, const struct option *options, uint64_t *seen)
{
    int index = -1; /* stays where the option is no long one */
    const int option = getopt_long(argc, argv, "h", options, &index);
    if (option == -1 || option == '?' || index < 0) {
        return option;
    }
    const char *name = options[index].name;
    const int is_repeatable = command->repeatable != NULL && strcmp(name, command->repeatable) == 0;
    if ((*seen >> index & 1) != 0 && !is_repeatable) {
        cli_error(command, "--%s is given twice", name);
        return '?';
    }
    *seen |= UINT64_C(1) << index;
    return option;
}

int cli_exit_code(dsr_status status)
{
    switch (status) {
    case DSR_OK:
        return CLI_DONE;
    case DSR_ERR_INTERNAL:
    case DSR_ERR_UNSUPPORTED_ISA:
    case DSR_ERR_UNSUPPORTED_DEVICE:
    case DSR_ERR_UNSUPPORTED_KERNEL:
    case DSR_ERR_OUT_OF_MEMORY:
    case DSR_ERR_THREAD:
    case DSR_ERR_DEVICE:
    case DSR_ERR_DEVICE_LOST:
        return CLI_UNAVAILABLE;
    default:
        return CLI_BAD_INPUT;
    }
}

int cli_parse_u64(const char *text, uint64_t maximum, uint64_t *value)
{
    uint64_t sum = 0;
    if (*text == '\0') {
        return 0;
    }
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9') {
            return 0;
        }
        const uint64_t digit = (uint64_t)(*text - '0');
        if (digit > maximum || sum > (maximum - digit) / 10) {
            return 0;
        }
        sum = sum * 10 + digit;
    }
    *value = sum;
    return 1;
}

const char *cli_backend_name(dsr_device_kind backend)
{
    return backend == DSR_DEVICE_CUDA ? "cuda" : "cpu";
}

const char *cli_exactness_name(dsr_exactness exactness)
{
    return exactness == DSR_EXACT_ROW ? "row" : "device";
}

const char *cli_yes_or_no(int yes)
{
    return yes ? "yes" : "NO";
}

static int parse_isa(const char *text, dsr_isa *isa)
{
    static const dsr_isa levels[] = {DSR_ISA_AUTO, DSR_ISA_SCALAR, DSR_ISA_AVX2, DSR_ISA_AVX512, DSR_ISA_NEON};
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        if (strcmp(text, dsr_isa_name(levels[i])) == 0) {
            *isa = levels[i];
            return 1;
        }
    }
    return 0;
}

int cli_device_option(const cli_command *command, cli_device *device, int option, const char *value)
{
    uint64_t number;
    switch (option) {
    case CLI_BACKEND:
        if (strcmp(value, "cpu") != 0 && strcmp(value, "cuda") != 0) {
            return cli_usage_error(command, "--backend %s: give cpu or cuda", value);
        }
        device->backend = strcmp(value, "cuda") == 0 ? DSR_DEVICE_CUDA : DSR_DEVICE_CPU;
        return CLI_DONE;
    case CLI_ISA:
        if (!parse_isa(value, &device->isa)) {
            return cli_usage_error(command, "--isa %s: give auto, scalar, avx2, avx512 or neon", value);
        }
        return CLI_DONE;
    case CLI_EXACT:
        if (strcmp(value, "row") != 0 && strcmp(value, "device") != 0) {
            return cli_usage_error(command, "--exact %s: give row or device", value);
        }
        device->exactness = strcmp(value, "row") == 0 ? DSR_EXACT_ROW : DSR_EXACT_DEVICE;
        return CLI_DONE;
    case CLI_THREADS:
        if (!cli_parse_u64(value, 1024, &number) || number == 0) {
            return cli_usage_error(command, "--threads %s: give a number from 1 to 1024", value);
        }
        device->n_threads = (uint32_t)number;
        return CLI_DONE;
    default:
        return cli_unknown_option(command);
    }
}

int cli_open_device(const cli_command *command, const cli_device *device, dsr_context **context)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    desc.device = device->backend;
    desc.exactness = device->exactness;
    desc.isa = device->isa;
    desc.n_threads = device->n_threads;
    const dsr_status status = dsr_context_create(&desc, context);
    if (status != DSR_OK) {
        cli_error(command, "%s (%s)", dsr_create_error_text(), dsr_status_name(status));
    }
    return cli_exit_code(status);
}

void *cli_allocate(size_t n_bytes)
{
    void *memory = calloc(n_bytes == 0 ? 1 : n_bytes, 1);
    if (memory == NULL) {
        fputs("dsrows: not enough memory\n", stderr);
        exit(CLI_UNAVAILABLE);
    }
    return memory;
}

/* Bytes of the UTF-8 character a text begins with; 0 where it begins with none. */
static size_t character_bytes(const char *text)
{
    for (size_t n = 1; n <= 4 && strnlen(text, n) == n; n++) {
        json_t *character = json_stringn(text, n);
        if (character != NULL) {
            json_decref(character);
            return n;
        }
    }
    return 0;
}

json_t *cli_json_text(const char *text)
{
    static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */
    char *valid = cli_allocate(strlen(text) * (sizeof replacement - 1) + 1), *to = valid;
    while (*text != '\0') {
        const size_t n = character_bytes(text);
        const size_t n_written = n != 0 ? n : sizeof replacement - 1;
        memcpy(to, n != 0 ? text : replacement, n_written);
        to += n_written;
        text += n != 0 ? n : 1;
    }
    json_t *value = json_string(valid);
    free(valid);
    return value;
}

json_t *cli_json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static void end_without_json(void)
{
    fputs("dsrows: the results cannot be written as JSON\n", stderr);
    exit(CLI_UNAVAILABLE);
}

void cli_json_append(json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) != 0) {
        end_without_json();
    }
}

void cli_json_add(json_t *object, json_t *members)
{
    if (json_object_update(object, members) != 0) {
        end_without_json();
    }
    json_decref(members);
}

void cli_print_json(json_t *document)
{
    if (json_dumpf(document, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER) != 0 && !ferror(stdout)) {
        end_without_json();
    }
    putchar('\n');
    json_decref(document);
}

void cli_progress(const char *what, uint64_t done, uint64_t total)
{
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r%s %llu/%llu", what, (unsigned long long)done, (unsigned long long)total);
    }
}

void cli_progress_end(void)
{
    if (isatty(STDERR_FILENO)) {
        fputs("\r\033[K", stderr);
    }
}
