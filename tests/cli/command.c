#include "command.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char directory[] = "/tmp/dsrows-cli-XXXXXX";

int command_enter_directory(void **state)
{
    (void)state;
    return mkdtemp(directory) == NULL || chdir(directory) != 0;
}

int command_leave_directory(void **state)
{
    (void)state;
    DIR *entries = opendir(".");
    struct dirent *entry;
    while (entries != NULL && (entry = readdir(entries)) != NULL) {
        unlink(entry->d_name);
    }
    if (entries != NULL) {
        closedir(entries);
    }
    return chdir("/") != 0 || rmdir(directory) != 0;
}

static char *read_text(const char *path)
{
    char *text = calloc(COMMAND_TEXT_BYTES, 1);
    FILE *stream = fopen(path, "rb");
    assert_non_null(text);
    assert_non_null(stream);
    const size_t n = fread(text, 1, COMMAND_TEXT_BYTES - 1, stream);
    text[n] = '\0';
    fclose(stream);
    return text;
}

command_result command_run(const char *format, ...)
{
    char line[2048];
    va_list arguments;
    const char *command = getenv("DSROWS");
    assert_non_null(command);
    int used = snprintf(line, sizeof line, "%s ", command);
    va_start(arguments, format);
    used += vsnprintf(line + used, sizeof line - (size_t)used, format, arguments);
    va_end(arguments);
    used += snprintf(line + used, sizeof line - (size_t)used, " >stdout.txt 2>stderr.txt");
    assert_true((size_t)used < sizeof line);
    const int status = system(line);
    assert_true(WIFEXITED(status));
    const command_result result = {WEXITSTATUS(status), read_text("stdout.txt"), read_text("stderr.txt")};
    return result;
}

void command_free(command_result *result)
{
    free(result->out);
    free(result->err);
}

void command_expect(int code, const char *text, const char *arguments)
{
    command_result result = command_run("%s", arguments);
    if (result.code != code || strstr(result.err, text) == NULL) {
        fail_msg("dsrows %s\nexit code %d, want %d\nstandard error: %s\nwant in it: %s", arguments, result.code, code,
                 result.err, text);
    }
    command_free(&result);
}

void command_write_text(const char *path, const char *text)
{
    FILE *stream = fopen(path, "w");
    assert_non_null(stream);
    assert_true(fputs(text, stream) >= 0);
    assert_int_equal(fclose(stream), 0);
}
