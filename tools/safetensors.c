#include "safetensors.h"

#include "out_file.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The format's own limit on the header. */
static const uint64_t max_header_bytes = 100000000;

struct st_file {
    char *path;
    json_t *header;
    unsigned char *bytes; /* the data part */
    uint64_t n_data_bytes;
    st_tensor *tensors;
    size_t n_tensors;
};

typedef struct reader {
    st_file *file;
    char *message;
} reader;

static const struct {
    const char *name;
    uint64_t size;
} dtypes[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
              {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
              {"F32", 4},  {"I64", 8}, {"U64", 8}, {"F64", 8}};

static uint64_t dtype_size(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(name, dtypes[i].name) == 0) {
            return dtypes[i].size;
        }
    }
    return 0;
}

/* Names come from outside: control characters must not reach a terminal. */
static void make_printable(char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f) {
            *text = '?';
        }
    }
}

#define FAIL(reader, ...)                                                                                              \
    (snprintf((reader)->message, ST_MESSAGE_BYTES, __VA_ARGS__), make_printable((reader)->message), 0)

static uint64_t little_endian_u64(const unsigned char *bytes)
{
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--) {
        value = value << 8 | bytes[i];
    }
    return value;
}

/* ---- reading the bytes ------------------------------------------------------------------------------------- */

static int read_stream(reader *r, FILE *stream, unsigned char **bytes, uint64_t *n_bytes)
{
    size_t capacity = 1 << 16, used = 0;
    unsigned char *buffer = malloc(capacity);
    while (buffer != NULL) {
        used += fread(buffer + used, 1, capacity - used, stream);
        if (used < capacity) {
            break;
        }
        unsigned char *larger = capacity > SIZE_MAX / 2 ? NULL : realloc(buffer, capacity * 2);
        if (larger == NULL) {
            free(buffer);
            buffer = NULL;
        } else {
            buffer = larger;
            capacity *= 2;
        }
    }
    if (buffer == NULL) {
        return FAIL(r, "%s: not enough memory", r->file->path);
    }
    if (ferror(stream)) {
        free(buffer);
        return FAIL(r, "%s: %s", r->file->path, strerror(errno));
    }
    *bytes = buffer;
    *n_bytes = used;
    return 1;
}

static int read_file(reader *r, unsigned char **bytes, uint64_t *n_bytes)
{
    FILE *stream = fopen(r->file->path, "rb");
    if (stream == NULL) {
        return FAIL(r, "%.4096s: %s", r->file->path, strerror(errno));
    }
    const int done = read_stream(r, stream, bytes, n_bytes);
    fclose(stream);
    return done;
}

/* ---- the header -------------------------------------------------------------------------------------------- */

static int parse_header(reader *r, const unsigned char *bytes, uint64_t n_bytes, uint64_t *data_begin)
{
    const char *path = r->file->path;
    if (n_bytes < 8) {
        return FAIL(r, "%s: %llu bytes long; a safetensors file starts with 8 bytes of header length", path,
                    (unsigned long long)n_bytes);
    }
    const uint64_t length = little_endian_u64(bytes);
    if (length > n_bytes - 8 || length > max_header_bytes) {
        return FAIL(r, "%s: not a safetensors file, or truncated: header of %llu bytes in a file of %llu", path,
                    (unsigned long long)length, (unsigned long long)n_bytes);
    }
    json_error_t error;
    r->file->header = json_loadb((const char *)bytes + 8, (size_t)length, JSON_REJECT_DUPLICATES, &error);
    if (r->file->header == NULL) {
        return FAIL(r, "%s: header is not JSON: %s", path, error.text);
    }
    if (!json_is_object(r->file->header)) {
        return FAIL(r, "%s: header is not a JSON object", path);
    }
    *data_begin = 8 + length;
    return 1;
}

static int parse_shape(reader *r, const json_t *shape, st_tensor *tensor)
{
    const char *path = r->file->path, *name = tensor->name;
    if (!json_is_array(shape) || json_array_size(shape) > ST_MAX_DIMS) {
        return FAIL(r, "%s: tensor %s: shape is not a list of at most %d sizes", path, name, ST_MAX_DIMS);
    }
    tensor->n_dims = (uint32_t)json_array_size(shape);
    tensor->n_elements = 1;
    for (uint32_t i = 0; i < tensor->n_dims; i++) {
        const json_t *size = json_array_get(shape, i);
        if (!json_is_integer(size) || json_integer_value(size) < 0) {
            return FAIL(r, "%s: tensor %s: size %u of the shape is not a whole number from 0 on", path, name, i);
        }
        tensor->shape[i] = (uint64_t)json_integer_value(size);
        if (__builtin_mul_overflow(tensor->n_elements, tensor->shape[i], &tensor->n_elements)) {
            return FAIL(r, "%s: tensor %s: the shape's product does not fit in 64 bits", path, name);
        }
    }
    return 1;
}

static int parse_range(reader *r, const json_t *offsets, st_tensor *tensor)
{
    const char *path = r->file->path, *name = tensor->name;
    const json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(second) ||
        json_integer_value(first) < 0 || json_integer_value(second) < json_integer_value(first)) {
        return FAIL(r, "%s: tensor %s: data_offsets are not two rising whole numbers", path, name);
    }
    const uint64_t begin = (uint64_t)json_integer_value(first), end = (uint64_t)json_integer_value(second);
    if (end > r->file->n_data_bytes) {
        return FAIL(r, "%s: truncated: tensor %s ends at data byte %llu, the file holds %llu", path, name,
                    (unsigned long long)end, (unsigned long long)r->file->n_data_bytes);
    }
    if (end - begin != tensor->n_bytes) {
        return FAIL(r, "%s: tensor %s: %llu bytes of data, its shape in %s needs %llu", path, name,
                    (unsigned long long)(end - begin), tensor->dtype, (unsigned long long)tensor->n_bytes);
    }
    tensor->data = r->file->bytes + begin;
    return 1;
}

static int parse_tensor(reader *r, const json_t *entry, st_tensor *tensor)
{
    const char *path = r->file->path;
    tensor->dtype = json_string_value(json_object_get(entry, "dtype"));
    if (tensor->dtype == NULL) {
        return FAIL(r, "%s: tensor %s: no dtype", path, tensor->name);
    }
    const uint64_t size = dtype_size(tensor->dtype);
    if (size == 0) {
        return FAIL(r, "%s: tensor %s: unknown dtype %s", path, tensor->name, tensor->dtype);
    }
    if (!parse_shape(r, json_object_get(entry, "shape"), tensor)) {
        return 0;
    }
    if (__builtin_mul_overflow(tensor->n_elements, size, &tensor->n_bytes)) {
        return FAIL(r, "%s: tensor %s: its size in bytes does not fit in 64 bits", path, tensor->name);
    }
    return parse_range(r, json_object_get(entry, "data_offsets"), tensor);
}

static int by_data(const void *left, const void *right)
{
    const st_tensor *a = left, *b = right;
    const uintptr_t x = (uintptr_t)a->data, y = (uintptr_t)b->data;
    if (x != y) {
        return x < y ? -1 : 1;
    }
    return a->n_bytes != b->n_bytes ? (a->n_bytes < b->n_bytes ? -1 : 1) : strcmp(a->name, b->name);
}

/* The data must be covered exactly: a byte that belongs to two tensors or to none means a damaged file. */
static int check_coverage(reader *r)
{
    const st_file *file = r->file;
    uint64_t expected = 0;
    for (size_t i = 0; i < file->n_tensors; i++) {
        const st_tensor *tensor = &file->tensors[i];
        const uint64_t begin = (uint64_t)((const unsigned char *)tensor->data - file->bytes);
        if (begin < expected) {
            return FAIL(r, "%s: tensor %s overlaps tensor %s", file->path, tensor->name, file->tensors[i - 1].name);
        }
        if (begin > expected) {
            return FAIL(r, "%s: %llu bytes before tensor %s belong to no tensor", file->path,
                        (unsigned long long)(begin - expected), tensor->name);
        }
        expected = begin + tensor->n_bytes;
    }
    if (expected != file->n_data_bytes) {
        return FAIL(r, "%s: %llu bytes at the end belong to no tensor", file->path,
                    (unsigned long long)(file->n_data_bytes - expected));
    }
    return 1;
}

static int check_metadata(reader *r, json_t *metadata)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata)) {
        return FAIL(r, "%s: __metadata__ is not a JSON object", r->file->path);
    }
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value)) {
            return FAIL(r, "%s: __metadata__: the value of %s is not a string", r->file->path, key);
        }
    }
    return 1;
}

static int parse_tensors(reader *r)
{
    st_file *file = r->file;
    const char *name;
    json_t *entry;
    file->tensors = calloc(json_object_size(file->header) + 1, sizeof *file->tensors);
    if (file->tensors == NULL) {
        return FAIL(r, "%s: not enough memory", file->path);
    }
    json_object_foreach(file->header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            if (!check_metadata(r, entry)) {
                return 0;
            }
            continue;
        }
        st_tensor *tensor = &file->tensors[file->n_tensors++];
        tensor->name = name;
        if (!parse_tensor(r, entry, tensor)) {
            return 0;
        }
    }
    qsort(file->tensors, file->n_tensors, sizeof *file->tensors, by_data);
    return check_coverage(r);
}

static int load(reader *r)
{
    uint64_t n_bytes = 0, data_begin = 0;
    unsigned char *bytes = NULL;
    if (!read_file(r, &bytes, &n_bytes)) {
        return 0;
    }
    r->file->bytes = bytes;
    if (!parse_header(r, bytes, n_bytes, &data_begin)) {
        return 0;
    }
    r->file->n_data_bytes = n_bytes - data_begin;
    memmove(bytes, bytes + data_begin, (size_t)r->file->n_data_bytes);
    return parse_tensors(r);
}

st_file *st_open(const char *path, char message[ST_MESSAGE_BYTES])
{
    st_file *file = calloc(1, sizeof *file);
    if (file != NULL) {
        file->path = strdup(path);
    }
    if (file == NULL || file->path == NULL) {
        snprintf(message, ST_MESSAGE_BYTES, "not enough memory");
        st_close(file);
        return NULL;
    }
    reader r = {file, message};
    if (!load(&r)) {
        st_close(file);
        return NULL;
    }
    return file;
}

void st_close(st_file *file)
{
    if (file != NULL) {
        json_decref(file->header);
        free(file->tensors);
        free(file->bytes);
        free(file->path);
        free(file);
    }
}

/* ---- looking things up ------------------------------------------------------------------------------------- */

size_t st_n_tensors(const st_file *file)
{
    return file->n_tensors;
}

const st_tensor *st_tensor_at(const st_file *file, size_t index)
{
    return &file->tensors[index];
}

const st_tensor *st_find(const st_file *file, const char *name)
{
    for (size_t i = 0; i < file->n_tensors; i++) {
        if (strcmp(file->tensors[i].name, name) == 0) {
            return &file->tensors[i];
        }
    }
    return NULL;
}

const char *st_metadata(const st_file *file, const char *key)
{
    return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), key));
}

/* ---- writing ----------------------------------------------------------------------------------------------- */

static uint64_t bytes_of(const st_tensor *tensor)
{
    uint64_t n = dtype_size(tensor->dtype);
    for (uint32_t i = 0; i < tensor->n_dims; i++) {
        n *= tensor->shape[i];
    }
    return n;
}

/* The header as text, padded with spaces so that the data starts at a multiple of 8. Null when memory is short. */
static char *header_text(const st_tensor *tensors, size_t n_tensors)
{
    uint64_t offset = 0;
    json_t *header = json_object();
    for (size_t i = 0; i < n_tensors; i++) {
        json_t *shape = json_array();
        for (uint32_t d = 0; d < tensors[i].n_dims; d++) {
            json_array_append_new(shape, json_integer((json_int_t)tensors[i].shape[d]));
        }
        const uint64_t end = offset + bytes_of(&tensors[i]);
        json_object_set_new(header, tensors[i].name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", tensors[i].dtype, "shape", shape, "data_offsets",
                                      (json_int_t)offset, (json_int_t)end));
        offset = end;
    }
    char *text = json_dumps(header, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(header);
    if (text == NULL) {
        return NULL;
    }
    const size_t length = strlen(text), padded = (length + 7) / 8 * 8;
    char *result = realloc(text, padded + 1);
    if (result == NULL) {
        free(text);
        return NULL;
    }
    memset(result + length, ' ', padded - length);
    result[padded] = '\0';
    return result;
}

/* A failure stays in the stream. */
static void write_stream(FILE *stream, const char *header, const st_tensor *tensors, size_t n_tensors)
{
    const uint64_t length = strlen(header);
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++) {
        prefix[i] = (unsigned char)(length >> 8 * i);
    }
    fwrite(prefix, 1, 8, stream);
    fwrite(header, 1, (size_t)length, stream);
    for (size_t i = 0; i < n_tensors && !ferror(stream); i++) {
        const size_t n_bytes = (size_t)bytes_of(&tensors[i]);
        if (n_bytes != 0) {
            fwrite(tensors[i].data, 1, n_bytes, stream);
        }
    }
}

int st_write(const char *path, const st_tensor *tensors, size_t n_tensors, char message[ST_MESSAGE_BYTES])
{
    char *header = header_text(tensors, n_tensors);
    out_file file;
    if (header == NULL) {
        snprintf(message, ST_MESSAGE_BYTES, "%s: not enough memory", path);
        return 0;
    }
    const int is_open = out_open(&file, path);
    if (is_open) {
        write_stream(file.stream, header, tensors, n_tensors);
    }
    const int done = is_open && out_close(&file);
    if (!done) {
        snprintf(message, ST_MESSAGE_BYTES, "%.4096s: cannot write: %s", path, strerror(errno));
    }
    free(header);
    return done;
}
