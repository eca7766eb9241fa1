/* A case of `dsrows run`: operands looked up in a safetensors file with dtype and shape checked, and results collected
 * for another one. The first problem prints a message that names the tensor, what is given and what is needed; after it
 * every call does nothing and gives harmless values, and code says how to exit. */
#ifndef DSROWS_CASE_FILE_H
#define DSROWS_CASE_FILE_H

#include "cli.h"
#include "safetensors.h"

typedef struct case_file {
    const cli_command *command;
    const char *path;
    st_file *file;
    int code;
    uint32_t n_rows;
    uint32_t rows[DSR_MAX_ROWS]; /* row numbers, in the order of the call */
    st_tensor *outputs;
    size_t n_outputs;
} case_file;

/* Dtype and shape a tensor must have. A size of 0 stands for any size from 1 on, shown by its letter. */
typedef struct case_shape {
    const char *dtype;
    uint32_t n_dims;
    uint64_t sizes[2];
    const char *letters[2];
} case_shape;

/* Names of tensors, each list ended by a null. */
typedef struct case_names {
    const char *const *rows;  /* NAME.R for row R */
    const char *const *whole; /* NAME: of the whole case */
} case_names;

void case_open(case_file *c, const cli_command *command, const char *path);
void case_close(case_file *c);

/* A row's number as names have it, without leading zeros, at most `maximum`; 0 if text is something else. */
int case_parse_row(const char *text, uint64_t maximum, uint64_t *row);
/* Refuses a tensor that would be left out of the case because its name is not quite one of these: in other letters,
 * with other signs between them, with a number that is none of a row, without one, or with one where none belongs.
 * A tensor behind `prefix` ("": none) is not taken for NAME.R where the prefix itself begins with "NAME.". */
void case_check_names(case_file *c, const case_names *names, const char *prefix);
/* Sets the rows: `only` as given (n_only numbers), or, where n_only is 0, rows 0 to the highest number found behind one
 * of the names (ended by a null). */
void case_find_rows(case_file *c, const char *const *names, const uint32_t *only, uint32_t n_only);
/* Once rows 0 to the last are found: refuses a tensor NAME.R, NAME being one of the names, of a later row. */
void case_check_rows(case_file *c, const char *const *names);
/* The metadata's configuration, to be released; null where there is none, or after a failure. */
json_t *case_config(case_file *c);

/* Tensor of the whole case. */
const st_tensor *case_tensor(case_file *c, const char *name, case_shape shape);
/* Tensor NAME.R of row rows[index]. */
const st_tensor *case_row_tensor(case_file *c, const char *name, uint32_t index, case_shape shape);
/* Null if there is none. */
const st_tensor *case_optional_tensor(case_file *c, const char *name, case_shape shape);
const st_tensor *case_optional_row_tensor(case_file *c, const char *name, uint32_t index, case_shape shape);
float case_f32_at(const st_tensor *tensor, uint64_t i);
int32_t case_i32_at(const st_tensor *tensor, uint64_t i);
/* Only or first element of a tensor; 0 where it stands in for one that is missing. */
int32_t case_i32(const st_tensor *tensor);
/* The only element, which must be finite and above 0. */
float case_positive_f32(case_file *c, const st_tensor *tensor);
/* Refuses elements of an F32 tensor that are not finite, or, where some may be left out, neither that nor -inf. */
void case_check_numbers(case_file *c, const st_tensor *tensor, int may_leave_out);
/* Notes a failure and how to exit, with a message "FILE: ...", unless there is one already. */
void case_fail(case_file *c, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Notes a bad value of a tensor: "tensor NAME.R ..." */
void case_bad_value(case_file *c, const st_tensor *tensor, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Room for a result, zeros; kept by the case until case_close. Null after a failure. */
void *case_output(case_file *c, const char *name, case_shape shape);
void *case_row_output(case_file *c, const char *name, uint32_t index, case_shape shape);
/* Writes all results. */
void case_write(case_file *c, const char *path);

#endif
