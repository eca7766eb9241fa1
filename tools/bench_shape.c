#include "bench_shape.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const op_names[BENCH_N_OPS] = {"indexer", "two-pass", "flash", "compressor", "projection", "core"};

/* ---- shape files -------------------------------------------------------------------------------------------- */

static uint32_t *field_named(bench_shape *shape, const char *name)
{
    const struct {
        const char *name;
        uint32_t *field;
    } fields[] = {{"rows", &shape->rows},
                  {"context", &shape->context},
                  {"heads", &shape->heads},
                  {"top_k", &shape->top_k},
                  {"width", &shape->width},
                  {"ratio", &shape->ratio},
                  {"dim", &shape->dim},
                  {"inputs", &shape->inputs},
                  {"outputs", &shape->outputs},
                  {"page", &shape->page},
                  {"key_span", &shape->key_span},
                  {"wide", &shape->wide},
                  {"query_span", &shape->query_span}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (strcmp(fields[i].name, name) == 0) {
            return fields[i].field;
        }
    }
    return NULL;
}

/* What an op takes besides rows. */
static const struct {
    struct {
        const char *name;
        uint32_t least;
    } needed[2];
    const char *optional[6];
} parameters_of[BENCH_N_OPS] = {
    [BENCH_INDEXER] = {{{"context", 4}}, {"heads", "top_k", "page", "key_span", "wide", "query_span"}},
    [BENCH_TWO_PASS] = {{{"width", 1}}, {"heads", "page"}},
    [BENCH_FLASH] = {{{"width", 1}}, {"heads", "page"}},
    [BENCH_COMPRESSOR] = {{{"ratio", 1}, {"dim", 1}}, {NULL}},
    [BENCH_PROJECTION] = {{{"inputs", 1}, {"outputs", 1}}, {NULL}},
    [BENCH_CORE] = {{{"context", 4}}, {"heads", "top_k"}}};

static int takes(bench_op op, const char *name)
{
    int found = strcmp(name, "rows") == 0;
    for (int i = 0; i < 2; i++) {
        const char *needed = parameters_of[op].needed[i].name;
        found = found || (needed != NULL && strcmp(name, needed) == 0);
    }
    for (int i = 0; i < 6; i++) {
        const char *optional = parameters_of[op].optional[i];
        found = found || (optional != NULL && strcmp(name, optional) == 0);
    }
    return found;
}

/* Why a line is no shape. */
typedef struct shape_fault {
    char text[192];
} shape_fault;

static int fault(shape_fault *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns 0. */
static int fault(shape_fault *f, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(f->text, sizeof f->text, format, arguments);
    va_end(arguments);
    return 0;
}

static int parse_pattern(bench_shape *shape, const char *name, shape_fault *f)
{
    static const char *const names[BENCH_N_PATTERNS] = {"random", "rising", "falling", "equal"};
    if (shape->op != BENCH_INDEXER) {
        return fault(f, "pattern: only op indexer has one");
    }
    for (int i = 0; i < BENCH_N_PATTERNS; i++) {
        if (strcmp(names[i], name) == 0) {
            shape->pattern = (bench_pattern)i;
            return 1;
        }
    }
    return fault(f, "pattern=%.40s: give random, rising, falling or equal", name);
}

int bench_parse_format(bench_op op, const char *name, dsr_cache_format *format)
{
    const int is_attention = op == BENCH_TWO_PASS || op == BENCH_FLASH;
    if (strcmp(name, "bf16") == 0 && (is_attention || op == BENCH_INDEXER)) {
        *format = DSR_FORMAT_BF16;
    } else if (strcmp(name, "fp4") == 0 && op == BENCH_INDEXER) {
        *format = DSR_FORMAT_FP4;
    } else if (strcmp(name, "fp8") == 0 && is_attention) {
        *format = DSR_FORMAT_FP8;
    } else {
        return 0;
    }
    return 1;
}

static int parse_parameter(bench_shape *shape, char *word, shape_fault *f)
{
    const uint64_t most = 16777216;
    char *value = strchr(word, '=');
    uint64_t number;
    if (value == NULL) {
        return fault(f, "'%.40s': needed is name=value", word);
    }
    *value++ = '\0';
    if (strcmp(word, "pattern") == 0) {
        return parse_pattern(shape, value, f);
    }
    if (strcmp(word, "format") == 0) {
        return bench_parse_format(shape->op, value, &shape->format) ||
               fault(f, "format=%.40s: attention takes bf16 or fp8, indexer bf16 or fp4, the other ops none", value);
    }
    uint32_t *field = field_named(shape, word);
    if (field == NULL) {
        return fault(f, "there is no parameter '%.40s'", word);
    }
    if (!takes(shape->op, word)) {
        return fault(f, "%s: op %s takes none", word, op_names[shape->op]);
    }
    if (!cli_parse_u64(value, most, &number)) {
        return fault(f, "%s=%.40s: needed is a number up to %llu", word, value, (unsigned long long)most);
    }
    if (strcmp(word, "page") == 0 &&
        (number < DSR_MIN_PAGE_SIZE || number > DSR_MAX_PAGE_SIZE || (number & (number - 1)) != 0)) {
        return fault(f, "page=%s: needed is a power of two from %d to %d", value, DSR_MIN_PAGE_SIZE, DSR_MAX_PAGE_SIZE);
    }
    if ((field == &shape->key_span || field == &shape->query_span) && (number == 0 || number > BENCH_MAX_SPAN)) {
        return fault(f, "%s=%s: needed is a number from 1 to %d", word, value, BENCH_MAX_SPAN);
    }
    if (strcmp(word, "wide") == 0 && (number == 0 || number > 100)) {
        return fault(f, "wide=%s: needed is a percentage from 1 to 100", value);
    }
    if (strcmp(word, "top_k") == 0 && number == 0) {
        return fault(f, "top_k=0: the library would take its default");
    }
    *field = (uint32_t)number;
    return 1;
}

static dsr_status ask_indexer(dsr_context *context, const bench_shape *shape, uint32_t heads, uint64_t *n_bytes)
{
    const dsr_indexer_row row = {.kv_len = shape->context / 4, .start_pos = shape->context - 1};
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.n_heads = heads;
    desc.top_k = shape->top_k;
    return dsr_indexer_workspace(context, &desc, n_bytes);
}

static dsr_status ask_attention(dsr_context *context, const bench_shape *shape, uint64_t *n_bytes)
{
    const dsr_attention_row row = {.width = shape->op == BENCH_CORE ? shape->top_k : shape->width};
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.n_heads = shape->heads;
    return dsr_sparse_attention_workspace(context, &desc, n_bytes);
}

static dsr_status ask_projection(dsr_context *context, const bench_shape *shape, uint64_t *n_bytes)
{
    dsr_projection_weights weights = DSR_PROJECTION_WEIGHTS_INIT;
    weights.n_inputs = shape->inputs;
    weights.n_outputs = shape->outputs;
    return dsr_projection_packed_bytes(context, &weights, n_bytes);
}

/* Whether the library takes heads, top_k, inputs and outputs, asked before operands are allocated. */
static int is_taken(dsr_context *context, const bench_shape *shape, shape_fault *f)
{
    uint64_t n_bytes;
    dsr_status status = DSR_OK;
    if (shape->op == BENCH_INDEXER || shape->op == BENCH_CORE) {
        status = ask_indexer(context, shape, shape->op == BENCH_CORE ? BENCH_CORE_INDEX_HEADS : shape->heads, &n_bytes);
    }
    if (status == DSR_OK && (shape->op == BENCH_TWO_PASS || shape->op == BENCH_FLASH || shape->op == BENCH_CORE)) {
        status = ask_attention(context, shape, &n_bytes);
    }
    if (shape->op == BENCH_PROJECTION) {
        status = ask_projection(context, shape, &n_bytes);
    }
    return status == DSR_OK || fault(f, "%s", dsr_context_error_text(context));
}

static int is_complete(const bench_shape *shape, shape_fault *f)
{
    bench_shape copy = *shape;
    const int is_plain = shape->format == DSR_FORMAT_BF16 && shape->page == 0;
    for (int i = 0; i < 2; i++) {
        const char *name = parameters_of[shape->op].needed[i].name;
        const uint32_t least = parameters_of[shape->op].needed[i].least;
        if (name != NULL && *field_named(&copy, name) < least) {
            return fault(f, "op %s needs %s=N, N from %u on", op_names[shape->op], name, (unsigned)least);
        }
    }
    if (shape->rows == 0 || shape->rows > DSR_MAX_ROWS) {
        return fault(f, "rows=%u: needed is a number from 1 to %d", (unsigned)shape->rows, DSR_MAX_ROWS);
    }
    if (shape->op == BENCH_COMPRESSOR && dsr_compressor_state_elements(shape->ratio, shape->dim) == 0) {
        return fault(f, "ratio=%u dim=%u: needed is (4, 128), (4, 512) or (128, 512)", (unsigned)shape->ratio,
                     (unsigned)shape->dim);
    }
    if (shape->key_span > 0 && shape->format != DSR_FORMAT_FP4) {
        return fault(f, "key_span: only keys in format=fp4 have one");
    }
    if (shape->query_span > 0 && shape->format != DSR_FORMAT_FP4) {
        return fault(f, "query_span: only queries of keys in format=fp4 have one");
    }
    if (shape->wide > 0 && shape->key_span == 0) {
        return fault(f, "wide: needed is key_span=N");
    }
    if (!is_plain && shape->pattern != BENCH_RANDOM) {
        return fault(f, "pattern: packed and paged caches take random only");
    }
    return 1;
}

static int parse_op(bench_shape *shape, const char *word, shape_fault *f)
{
    for (shape->op = 0; shape->op < BENCH_N_OPS; shape->op++) {
        if (strcmp(op_names[shape->op], word) == 0) {
            return 1;
        }
    }
    return fault(f, "'%.40s' is not an op: give indexer, two-pass, flash, compressor, projection or core", word);
}

/* 1 for a shape, 0 for an empty line, -1 for a bad one. */
static int parse_line(dsr_context *context, char *line, bench_shape *shape, shape_fault *f)
{
    enum { MAX_PARAMETERS = 16 }; /* more than there are names */
    const char *given[MAX_PARAMETERS];
    size_t n_given = 0;
    char *rest = NULL;
    memset(shape, 0, sizeof *shape);
    shape->heads = 64;
    shape->top_k = 512;
    char *word = strtok_r(line, " \t", &rest);
    if (word == NULL) {
        return 0;
    }
    if (!parse_op(shape, word, f)) {
        return -1;
    }
    size_t used = (size_t)snprintf(shape->name, sizeof shape->name, "%s", word);
    while ((word = strtok_r(NULL, " \t", &rest)) != NULL) {
        used += (size_t)snprintf(shape->name + used, sizeof shape->name - used, " %s", word);
        if (used >= sizeof shape->name) {
            fault(f, "the shape is too long");
            return -1;
        }
        if (!parse_parameter(shape, word, f)) {
            return -1;
        }
        for (size_t i = 0; i < n_given; i++) {
            if (strcmp(given[i], word) == 0) { /* the name alone is left of the word */
                fault(f, "%s is given twice", word);
                return -1;
            }
        }
        given[n_given++] = word;
    }
    return is_complete(shape, f) && is_taken(context, shape, f) ? 1 : -1;
}

/* Reads a line without its comment and its end. 1, 0 after the last one, or -1 for one that cannot be a shape. */
static int read_line(FILE *file, char *line, size_t size, shape_fault *f)
{
    size_t n = 0;
    int c = getc(file), is_comment = 0;
    if (c == EOF) {
        return 0;
    }
    for (; c != EOF && c != '\n'; c = getc(file)) {
        is_comment = is_comment || c == '#';
        if (c == '\0') {
            fault(f, "a zero byte: this is no text");
            return -1;
        }
        if (!is_comment && n == size - 1) {
            fault(f, "the line is too long");
            return -1;
        }
        if (!is_comment) {
            line[n++] = (char)c;
        }
    }
    line[n] = '\0';
    return 1;
}

static void append_shape(bench_shape **shapes, size_t *n_shapes, size_t *capacity, const bench_shape *shape)
{
    if (*n_shapes == *capacity) {
        *capacity = *capacity ? 2 * *capacity : 16;
        bench_shape *grown = cli_allocate(*capacity * sizeof *grown);
        if (*n_shapes > 0) {
            memcpy(grown, *shapes, *n_shapes * sizeof *grown);
        }
        free(*shapes);
        *shapes = grown;
    }
    (*shapes)[(*n_shapes)++] = *shape;
}

int bench_read_shapes(const cli_command *command, dsr_context *context, const char *path, bench_shape **shapes,
                      size_t *n_shapes)
{
    char line[256];
    size_t capacity = 0, number = 0;
    shape_fault f;
    *shapes = NULL;
    *n_shapes = 0;
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        cli_error(command, "%s: %s", path, strerror(errno));
        return CLI_BAD_INPUT;
    }
    int found;
    while (number++, (found = read_line(file, line, sizeof line, &f)) > 0) {
        bench_shape shape;
        found = parse_line(context, line, &shape, &f);
        if (found < 0) {
            break;
        }
        if (found > 0) {
            shape.file = path;
            shape.line = number;
            append_shape(shapes, n_shapes, &capacity, &shape);
        }
    }
    int code = CLI_DONE;
    if (found < 0) {
        cli_error(command, "%s:%zu: %s", path, number, f.text);
        code = CLI_BAD_INPUT;
    } else if (ferror(file) || *n_shapes == 0) {
        cli_error(command, "%s: %s", path, ferror(file) ? strerror(errno) : "no shape in it");
        code = CLI_BAD_INPUT;
    }
    fclose(file);
    return code;
}

/* ---- counted work ------------------------------------------------------------------------------------------- */

static double keys_of(const bench_shape *shape)
{
    return shape->context / 4;
}

static double selected_of(const bench_shape *shape)
{
    return keys_of(shape) < shape->top_k ? keys_of(shape) : shape->top_k;
}

double bench_flops(const bench_shape *shape)
{
    const double rows = shape->rows;
    switch (shape->op) {
    case BENCH_INDEXER:
        return rows * keys_of(shape) * shape->heads * 2 * DSR_INDEX_DIM;
    case BENCH_TWO_PASS:
    case BENCH_FLASH:
        return rows * shape->width * shape->heads * 4 * DSR_HEAD_DIM;
    case BENCH_PROJECTION:
        return rows * shape->inputs * shape->outputs * 2;
    case BENCH_CORE:
        return rows * (keys_of(shape) * BENCH_CORE_INDEX_HEADS * 2 * DSR_INDEX_DIM +
                       (128 + selected_of(shape)) * shape->heads * 4 * DSR_HEAD_DIM);
    case BENCH_COMPRESSOR:
    case BENCH_N_OPS:
        break;
    }
    return 0;
}

/* Of an entry of a cache: values and the scales in use. */
static double entry_bytes(const bench_shape *shape, uint32_t dim)
{
    if (shape->format == DSR_FORMAT_BF16) {
        return 2.0 * dim;
    }
    return shape->format == DSR_FORMAT_FP4 ? 68 : 583;
}

double bench_bytes(const bench_shape *shape)
{
    const double rows = shape->rows;
    const double coff = shape->ratio == 4 ? 2 : 1;
    switch (shape->op) {
    case BENCH_INDEXER:
        return rows * keys_of(shape) * entry_bytes(shape, DSR_INDEX_DIM);
    case BENCH_TWO_PASS:
    case BENCH_FLASH:
        return rows * shape->width * entry_bytes(shape, DSR_HEAD_DIM);
    case BENCH_PROJECTION:
        return 2.0 * shape->inputs * shape->outputs;
    case BENCH_COMPRESSOR:
        return rows * coff * shape->ratio * shape->dim * 8;
    case BENCH_CORE:
        return rows * (keys_of(shape) * DSR_INDEX_DIM * 2 + (128 + selected_of(shape)) * DSR_HEAD_DIM * 2);
    case BENCH_N_OPS:
        break;
    }
    return 0;
}
