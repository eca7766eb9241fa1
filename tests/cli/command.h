/* Running the dsrows command from a test. */
#ifndef TEST_COMMAND_H
#define TEST_COMMAND_H

enum { COMMAND_TEXT_BYTES = 1 << 20 };

typedef struct command_result {
    int code;
    char *out; /* standard output, ended by a null */
    char *err; /* standard error */
} command_result;

/* Runs "dsrows ARGUMENTS" through the shell, in the test's own directory. */
command_result command_run(const char *format, ...) __attribute__((format(printf, 1, 2)));
void command_free(command_result *result);
/* Runs it, and fails the test unless it exits with `code` and its standard error contains `text`. */
void command_expect(int code, const char *text, const char *arguments);

/* Writes a file of this text, instead of what is there. */
void command_write_text(const char *path, const char *text);
/* Makes a fresh directory and works in it; command_leave_directory removes it with the files in it. For use as a
 * group's setup and teardown. */
int command_enter_directory(void **state);
int command_leave_directory(void **state);

#endif
