/* dsrows: the command-line tool. It uses the public interface of the library only. */
#include "cli.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const cli_command *const commands[] = {&cli_info, &cli_run, &cli_replay, &cli_decode, &cli_verify, &cli_bench};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_usage(FILE *stream)
{
    fputs("usage: dsrows COMMAND [OPTION]...\n\n"
          "Joint-decode kernels for DeepSeek-V4 attention, bit-exact per request.\n\ncommands:\n",
          stream);
    for (size_t i = 0; i < N_COMMANDS; i++) {
        fprintf(stream, "  %-8s %s\n", commands[i]->name, commands[i]->summary);
    }
    fputs("\n'dsrows COMMAND --help' shows a command's options; 'dsrows --version' the version.\n"
          "Exit status: 0 done, 1 a comparison failed, 2 bad usage or bad input, 3 not available on this machine.\n",
          stream);
}

static int run_command(int argc, char **argv)
{
    static char name[32];
    if (argc < 2) {
        print_usage(stderr);
        return CLI_BAD_INPUT;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_usage(stdout);
        return CLI_DONE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("dsrows %s, bits %u\n", dsr_version_string(), (unsigned)dsr_bits_version());
        return CLI_DONE;
    }
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i]->name) == 0) {
            snprintf(name, sizeof name, "dsrows %s", commands[i]->name); /* what messages of getopt_long begin with */
            argv[1] = name;
            return commands[i]->run(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "dsrows: '%s' is not a command\nTry 'dsrows --help'.\n", argv[1]);
    return CLI_BAD_INPUT;
}

/* A file must not be opened in the place of a closed descriptor to which text goes. Using one of these still fails. */
static int occupy_standard_descriptors(void)
{
    for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; descriptor++) {
        const int mode = descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY;
        if (fcntl(descriptor, F_GETFD) < 0 && open("/dev/null", mode) != descriptor) {
            return 0;
        }
    }
    return 1;
}

int main(int argc, char **argv)
{
    if (!occupy_standard_descriptors()) {
        perror("dsrows: /dev/null");
        return CLI_UNAVAILABLE;
    }
    const int code = run_command(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("dsrows: standard output");
        return CLI_BAD_INPUT;
    }
    return code;
}
