#include "case_file.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 64, TEXT_BYTES = 128, MAX_OUTPUTS = 3 * DSR_MAX_ROWS };

/* Stands in for a tensor that could not be had, until the caller looks at the code. */
static const st_tensor no_tensor = {.name = "", .dtype = "", .n_dims = 0, .data = ""};

void case_open(case_file *c, const cli_command *command, const char *path)
{
    char message[ST_MESSAGE_BYTES];
    *c = (case_file){.command = command, .path = path};
    c->file = st_open(path, message);
    c->outputs = calloc(MAX_OUTPUTS, sizeof *c->outputs);
    if (c->file == NULL) {
        cli_error(command, "%s", message);
        c->code = CLI_BAD_INPUT;
    } else if (c->outputs == NULL) {
        cli_error(command, "not enough memory");
        c->code = CLI_UNAVAILABLE;
    }
}

void case_close(case_file *c)
{
    for (size_t i = 0; i < c->n_outputs; i++) {
        free((void *)(uintptr_t)c->outputs[i].name);
        free((void *)(uintptr_t)c->outputs[i].data);
    }
    free(c->outputs);
    st_close(c->file);
}

void case_fail(case_file *c, int code, const char *format, ...)
{
    char text[ST_MESSAGE_BYTES];
    va_list arguments;
    if (c->code == CLI_DONE) {
        va_start(arguments, format);
        vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        cli_error(c->command, "%s: %s", c->path, text);
        c->code = code;
    }
}

void case_bad_value(case_file *c, const st_tensor *tensor, const char *format, ...)
{
    char text[ST_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    case_fail(c, CLI_BAD_INPUT, "tensor %s: %s", tensor->name, text);
}

json_t *case_config(case_file *c)
{
    json_error_t error;
    const char *text = c->code == CLI_DONE ? st_metadata(c->file, "config") : NULL;
    json_t *config = text == NULL ? NULL : json_loads(text, 0, &error);
    if (text != NULL && config == NULL) {
        case_fail(c, CLI_BAD_INPUT, "metadata config is not JSON: byte %d: %s", error.position, error.text);
    } else if (text != NULL && !json_is_object(config)) {
        case_fail(c, CLI_BAD_INPUT, "metadata config is not a JSON object");
    }
    if (c->code != CLI_DONE) {
        json_decref(config);
        return NULL;
    }
    return config;
}

/* ---- rows -------------------------------------------------------------------------------------------------- */

int case_parse_row(const char *text, uint64_t maximum, uint64_t *row)
{
    return !(text[0] == '0' && text[1] != '\0') && cli_parse_u64(text, maximum, row);
}

/* Row number of a tensor called NAME.R; -1 for any other name. */
static int64_t row_number(const char *tensor_name, const char *name)
{
    const size_t length = strlen(name);
    uint64_t row;
    if (strncmp(tensor_name, name, length) != 0 || tensor_name[length] != '.') {
        return -1;
    }
    return case_parse_row(tensor_name + length + 1, INT64_MAX, &row) ? (int64_t)row : -1;
}

/* The next letter, small, or digit of a name, past anything else; 0 at its end. */
static int next_sign(const char **name)
{
    while (**name != '\0' && !isalnum((unsigned char)**name)) {
        (*name)++;
    }
    return **name == '\0' ? 0 : tolower((unsigned char)*(*name)++);
}

/* Whether a tensor is called NAME but for the case of letters, what is between them, and a number behind it. */
static int resembles(const char *tensor_name, const char *name)
{
    int sign, given;
    do {
        sign = next_sign(&name);
        given = next_sign(&tensor_name);
    } while (sign != 0 && given == sign);
    while (sign == 0 && isdigit(given)) {
        given = next_sign(&tensor_name);
    }
    return sign == 0 && given == 0;
}

static int has_row_name(const char *tensor_name, const case_names *names)
{
    for (size_t n = 0; names->rows[n] != NULL; n++) {
        if (row_number(tensor_name, names->rows[n]) >= 0) {
            return 1;
        }
    }
    return 0;
}

static int has_whole_name(const char *tensor_name, const case_names *names)
{
    for (size_t n = 0; names->whole[n] != NULL; n++) {
        if (strcmp(tensor_name, names->whole[n]) == 0) {
            return 1;
        }
    }
    return 0;
}

static int begins_with(const char *text, const char *begin)
{
    return strncmp(text, begin, strlen(begin)) == 0;
}

/* Whether a tensor is called "NAME." and more, and not because of the prefix that it is behind. */
static int is_of_row(const char *tensor_name, const char *name, const char *prefix)
{
    const size_t length = strlen(name);
    const int is_others = begins_with(tensor_name, prefix) && begins_with(prefix, name) && prefix[length] == '.';
    return begins_with(tensor_name, name) && tensor_name[length] == '.' && !is_others;
}

static void check_name(case_file *c, const char *tensor_name, const case_names *names, const char *prefix)
{
    if (has_row_name(tensor_name, names) || has_whole_name(tensor_name, names)) {
        return;
    }
    for (size_t n = 0; names->rows[n] != NULL; n++) {
        const char *name = names->rows[n];
        if (is_of_row(tensor_name, name, prefix) || resembles(tensor_name, name)) {
            case_fail(c, CLI_BAD_INPUT, "tensor %s: needed is %s.R, R the number of a row without leading zeros",
                      tensor_name, name);
        }
    }
    for (size_t n = 0; names->whole[n] != NULL; n++) {
        if (resembles(tensor_name, names->whole[n])) {
            case_fail(c, CLI_BAD_INPUT, "tensor %s: needed is %s, one for all rows", tensor_name, names->whole[n]);
        }
    }
}

void case_check_names(case_file *c, const case_names *names, const char *prefix)
{
    for (size_t i = 0; c->code == CLI_DONE && i < st_n_tensors(c->file); i++) {
        check_name(c, st_tensor_at(c->file, i)->name, names, prefix);
    }
}

static void take_rows(case_file *c, int64_t highest, const uint32_t *only, uint32_t n_only)
{
    for (uint32_t i = 0; i < n_only; i++) {
        if (only[i] > highest) {
            case_fail(c, CLI_BAD_INPUT, "there is no row %u, the last one is %lld", (unsigned)only[i],
                      (long long)highest);
        }
        c->rows[c->n_rows++] = only[i];
    }
}

void case_find_rows(case_file *c, const char *const *names, const uint32_t *only, uint32_t n_only)
{
    int64_t highest = -1;
    if (c->code != CLI_DONE) {
        return;
    }
    for (size_t i = 0; i < st_n_tensors(c->file); i++) {
        for (size_t n = 0; names[n] != NULL; n++) {
            const int64_t row = row_number(st_tensor_at(c->file, i)->name, names[n]);
            highest = row > highest ? row : highest;
        }
    }
    if (highest < 0) {
        case_fail(c, CLI_BAD_INPUT, "no rows: tensor %s.0 is missing", names[0]);
    } else if (n_only != 0) {
        take_rows(c, highest, only, n_only);
    } else if (highest >= DSR_MAX_ROWS) {
        case_fail(c, CLI_BAD_INPUT, "row %lld given, a call takes at most %d rows (0 to %d)", (long long)highest,
                  DSR_MAX_ROWS, DSR_MAX_ROWS - 1);
    } else {
        for (uint32_t r = 0; r <= (uint32_t)highest; r++) {
            c->rows[c->n_rows++] = r;
        }
    }
}

void case_check_rows(case_file *c, const char *const *names)
{
    for (size_t i = 0; c->code == CLI_DONE && i < st_n_tensors(c->file); i++) {
        const char *tensor_name = st_tensor_at(c->file, i)->name;
        for (size_t n = 0; names[n] != NULL; n++) {
            const int64_t row = row_number(tensor_name, names[n]);
            if (row >= c->n_rows) {
                case_fail(c, CLI_BAD_INPUT, "tensor %s: there is no row %lld, the last one is %u", tensor_name,
                          (long long)row, (unsigned)(c->n_rows - 1));
            }
        }
    }
}

/* ---- operands ---------------------------------------------------------------------------------------------- */

static void describe_needed(const case_shape *shape, char text[TEXT_BYTES])
{
    int used = snprintf(text, TEXT_BYTES, "%s [", shape->dtype);
    for (uint32_t d = 0; d < shape->n_dims; d++) {
        const char *comma = d == 0 ? "" : ", ";
        used += shape->sizes[d] == 0
                    ? snprintf(text + used, TEXT_BYTES - (size_t)used, "%s%s", comma, shape->letters[d])
                    : snprintf(text + used, TEXT_BYTES - (size_t)used, "%s%llu", comma,
                               (unsigned long long)shape->sizes[d]);
    }
    snprintf(text + used, TEXT_BYTES - (size_t)used, "]");
}

static void describe_given(const st_tensor *tensor, char text[2 * TEXT_BYTES])
{
    const size_t size = 2 * TEXT_BYTES;
    int used = snprintf(text, size, "%s [", tensor->dtype);
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        used += snprintf(text + used, size - (size_t)used, "%s%llu", d == 0 ? "" : ", ",
                         (unsigned long long)tensor->shape[d]);
    }
    snprintf(text + used, size - (size_t)used, "]");
}

static int has_shape(const st_tensor *tensor, const case_shape *shape)
{
    if (strcmp(tensor->dtype, shape->dtype) != 0 || tensor->n_dims != shape->n_dims) {
        return 0;
    }
    for (uint32_t d = 0; d < shape->n_dims; d++) {
        if (shape->sizes[d] == 0 ? tensor->shape[d] == 0 : tensor->shape[d] != shape->sizes[d]) {
            return 0;
        }
    }
    return 1;
}

const st_tensor *case_optional_tensor(case_file *c, const char *name, case_shape shape)
{
    char needed[TEXT_BYTES], given[2 * TEXT_BYTES];
    if (c->code != CLI_DONE) {
        return NULL;
    }
    const st_tensor *tensor = st_find(c->file, name);
    if (tensor != NULL && !has_shape(tensor, &shape)) {
        describe_needed(&shape, needed);
        describe_given(tensor, given);
        case_fail(c, CLI_BAD_INPUT, "tensor %s is %s, needed is %s", name, given, needed);
        return NULL;
    }
    return tensor;
}

const st_tensor *case_tensor(case_file *c, const char *name, case_shape shape)
{
    char needed[TEXT_BYTES];
    const st_tensor *tensor = case_optional_tensor(c, name, shape);
    if (tensor == NULL) {
        describe_needed(&shape, needed);
        case_fail(c, CLI_BAD_INPUT, "tensor %s is missing, needed is %s", name, needed);
        return &no_tensor;
    }
    return tensor;
}

static void row_name(const case_file *c, const char *name, uint32_t index, char text[NAME_BYTES])
{
    snprintf(text, NAME_BYTES, "%s.%u", name, (unsigned)c->rows[index]);
}

const st_tensor *case_row_tensor(case_file *c, const char *name, uint32_t index, case_shape shape)
{
    char full_name[NAME_BYTES];
    row_name(c, name, index, full_name);
    return case_tensor(c, full_name, shape);
}

const st_tensor *case_optional_row_tensor(case_file *c, const char *name, uint32_t index, case_shape shape)
{
    char full_name[NAME_BYTES];
    row_name(c, name, index, full_name);
    return case_optional_tensor(c, full_name, shape);
}

float case_f32_at(const st_tensor *tensor, uint64_t i)
{
    float value;
    memcpy(&value, (const char *)tensor->data + i * sizeof value, sizeof value);
    return value;
}

int32_t case_i32_at(const st_tensor *tensor, uint64_t i)
{
    int32_t value;
    memcpy(&value, (const char *)tensor->data + i * sizeof value, sizeof value);
    return value;
}

int32_t case_i32(const st_tensor *tensor)
{
    return tensor->n_elements == 0 ? 0 : case_i32_at(tensor, 0);
}

float case_positive_f32(case_file *c, const st_tensor *tensor)
{
    const float value = tensor->n_elements == 0 ? 0 : case_f32_at(tensor, 0);
    if (!(isfinite(value) && value > 0)) {
        case_bad_value(c, tensor, "%g given, needed is a finite number above 0", (double)value);
    }
    return value;
}

/* "[3, 7]": the place of an element of a tensor of one or two dimensions. */
static void describe_place(const st_tensor *tensor, uint64_t i, char text[TEXT_BYTES])
{
    const unsigned long long columns = tensor->shape[tensor->n_dims - 1];
    if (tensor->n_dims == 1) {
        snprintf(text, TEXT_BYTES, "[%llu]", (unsigned long long)i);
    } else {
        snprintf(text, TEXT_BYTES, "[%llu, %llu]", i / columns, i % columns);
    }
}

void case_check_numbers(case_file *c, const st_tensor *tensor, int may_leave_out)
{
    char place[TEXT_BYTES];
    for (uint64_t i = 0; i < tensor->n_elements && c->code == CLI_DONE; i++) {
        const float value = case_f32_at(tensor, i);
        if (!isfinite(value) && !(may_leave_out && value < 0)) {
            describe_place(tensor, i, place);
            case_bad_value(c, tensor, "element %s is %s, needed is a finite number%s", place,
                           isnan(value)  ? "nan"
                           : (value > 0) ? "inf"
                                         : "-inf",
                           may_leave_out ? " or -inf" : "");
        }
    }
}

/* ---- results ----------------------------------------------------------------------------------------------- */

void *case_output(case_file *c, const char *name, case_shape shape)
{
    if (c->code != CLI_DONE) {
        return NULL;
    }
    uint64_t n_bytes = strcmp(shape.dtype, "BF16") == 0 ? 2 : 4;
    st_tensor *output = &c->outputs[c->n_outputs];
    output->dtype = shape.dtype;
    output->n_dims = shape.n_dims;
    for (uint32_t d = 0; d < shape.n_dims; d++) {
        output->shape[d] = shape.sizes[d];
        if (__builtin_mul_overflow(n_bytes, shape.sizes[d], &n_bytes)) {
            case_fail(c, CLI_BAD_INPUT, "result %s does not fit in memory", name);
            return NULL;
        }
    }
    char *own_name = strdup(name);
    void *data = calloc(n_bytes == 0 ? 1 : (size_t)n_bytes, 1);
    if (own_name == NULL || data == NULL) {
        free(own_name);
        free(data);
        case_fail(c, CLI_UNAVAILABLE, "not enough memory for result %s", name);
        return NULL;
    }
    output->name = own_name;
    output->data = data;
    output->n_bytes = n_bytes;
    c->n_outputs++;
    return data;
}

void *case_row_output(case_file *c, const char *name, uint32_t index, case_shape shape)
{
    char full_name[NAME_BYTES];
    row_name(c, name, index, full_name);
    return case_output(c, full_name, shape);
}

void case_write(case_file *c, const char *path)
{
    char message[ST_MESSAGE_BYTES];
    if (c->code == CLI_DONE && !st_write(path, c->outputs, c->n_outputs, message)) {
        cli_error(c->command, "%s", message);
        c->code = CLI_BAD_INPUT;
    }
}
