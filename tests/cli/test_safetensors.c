/* The safetensors reader on good, damaged, foreign and hostile files. */
#include "command.h"
#include "safetensors.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmocka.h>

static const char path[] = "file.safetensors";

static void write_bytes(const void *bytes, size_t n)
{
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(bytes, 1, n, stream), n);
    assert_int_equal(fclose(stream), 0);
}

/* A file with this header text and n_data bytes of data. */
static void write_file(const char *header, size_t n_data)
{
    char bytes[4096] = {0};
    const size_t length = strlen(header);
    assert_true(8 + length + n_data <= sizeof bytes);
    bytes[0] = (char)(length & 0xff);
    bytes[1] = (char)(length >> 8);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < n_data; i++) {
        bytes[8 + length + i] = (char)i;
    }
    write_bytes(bytes, 8 + length + n_data);
}

static void expect_refusal(const char *text)
{
    char message[ST_MESSAGE_BYTES] = "";
    st_file *file = st_open(path, message);
    if (file != NULL || strstr(message, text) == NULL || strstr(message, path) == NULL) {
        fail_msg("message: %s\nwant in it: %s and the path", file != NULL ? "(accepted)" : message, text);
    }
}

typedef struct bad_header {
    const char *header;
    size_t n_data;
    const char *text;
} bad_header;

#define F32 "\"dtype\":\"F32\","
#define ONE "\"shape\":[1],"

static void refuses_bad_headers(void **state)
{
    static const bad_header cases[] = {
        {"", 0, "header is not JSON"},
        {"{", 0, "header is not JSON"},
        {"[]", 0, "header is not a JSON object"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is not a JSON object"},
        {"{\"__metadata__\":{\"j\":\"1\",\"k\":1}}", 0, "__metadata__: the value of k is not a string"},
        {"{\"__metadata__\":{\"k\":{}}}", 0, "__metadata__: the value of k is not a string"},
        {"{\"a\":1}", 0, "tensor a: no dtype"},
        {"{\"a\":{" ONE "\"data_offsets\":[0,4]}}", 4, "tensor a: no dtype"},
        {"{\"a\":{\"dtype\":\"F31\"," ONE "\"data_offsets\":[0,4]}}", 4, "tensor a: unknown dtype F31"},
        {"{\"a\":{" F32 "\"data_offsets\":[0,4]}}", 4, "tensor a: shape is not a list"},
        {"{\"a\":{" F32 "\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "tensor a: size 0 of the shape"},
        {"{\"a\":{" F32 "\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4, "tensor a: size 0 of the shape"},
        {"{\"a\":{" F32 "\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "a list of at most 8"},
        {"{\"a\":{" F32 "\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "does not fit in 64 bits"},
        {"{\"a\":{" F32 "\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0, "size in bytes does not fit"},
        {"{\"a\":{" F32 "\"shape\":[99999999999999999999],\"data_offsets\":[0,0]}}", 0, "header is not JSON"},
        {"{\"a\":{" F32 ONE "\"data_offsets\":[0,8]}}", 8, "8 bytes of data, its shape in F32 needs 4"},
        {"{\"a\":{" F32 ONE "\"data_offsets\":[4,0]}}", 4, "not two rising whole numbers"},
        {"{\"a\":{" F32 ONE "\"data_offsets\":[-4,0]}}", 4, "not two rising whole numbers"},
        {"{\"a\":{" F32 ONE "\"data_offsets\":[0]}}", 4, "not two rising whole numbers"},
        {"{\"a\":{" F32 ONE "\"data_offsets\":[0,4]}}", 3, "truncated: tensor a ends at data byte 4, the file holds 3"},
        {"{\"a\":{" F32 ONE "\"data_offsets\":[0,4]},\"b\":{" F32 ONE "\"data_offsets\":[2,6]}}", 6,
         "tensor b overlaps tensor a"},
        {"{\"a\":{" F32 ONE "\"data_offsets\":[0,4]},\"b\":{" F32 ONE "\"data_offsets\":[0,4]}}", 4,
         "tensor b overlaps tensor a"},
        {"{\"a\":{" F32 ONE "\"data_offsets\":[4,8]}}", 8, "4 bytes before tensor a belong to no tensor"},
        {"{\"a\":{" F32 ONE "\"data_offsets\":[0,4]}}", 9, "5 bytes at the end belong to no tensor"},
        {"{\"a\":{" F32 ONE "\"data_offsets\":[0,4]},\"a\":{" F32 ONE "\"data_offsets\":[4,8]}}", 8, "not JSON"},
        {"{\"\\u001b[2J\":{" ONE "\"data_offsets\":[0,4]}}", 4, "tensor ?[2J: no dtype"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file(cases[i].header, cases[i].n_data);
        expect_refusal(cases[i].text);
    }
}

static void refuses_bad_lengths(void **state)
{
    static const unsigned char huge[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{', '}'};
    static const unsigned char wraps[] = {0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{', '}'};
    static const unsigned char past_end[] = {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    (void)state;
    write_bytes("", 0);
    expect_refusal("0 bytes long");
    write_bytes("\2\0\0\0\0\0\0", 7);
    expect_refusal("7 bytes long");
    write_bytes(huge, sizeof huge);
    expect_refusal("header of 18446744073709551615 bytes in a file of 10");
    write_bytes(wraps, sizeof wraps);
    expect_refusal("not a safetensors file");
    write_bytes(past_end, sizeof past_end);
    expect_refusal("header of 3 bytes in a file of 10");
    write_bytes("GGUF\3\0\0\0\0\0\0\0\0\0\0\0", 16);
    expect_refusal("not a safetensors file");
}

static void refuses_what_is_no_file(void **state)
{
    char message[ST_MESSAGE_BYTES];
    (void)state;
    assert_null(st_open("missing.safetensors", message));
    assert_non_null(strstr(message, "missing.safetensors: No such file"));
    assert_null(st_open(".", message));
    assert_non_null(strstr(message, "Is a directory"));
}

/* Every truncation of a good file is refused, whatever the cut goes through. */
static void refuses_every_truncation(void **state)
{
    static const char header[] = "{\"a\":{" F32 "\"shape\":[2,3],\"data_offsets\":[0,24]},\"b\":{\"dtype\":\"U8\","
                                 "\"shape\":[],\"data_offsets\":[24,25]}}";
    char bytes[256], message[ST_MESSAGE_BYTES];
    (void)state;
    write_file(header, 25);
    FILE *stream = fopen(path, "rb");
    const size_t n = fread(bytes, 1, sizeof bytes, stream);
    fclose(stream);
    assert_int_equal(n, 8 + strlen(header) + 25);
    for (size_t cut = 0; cut < n; cut++) {
        write_bytes(bytes, cut);
        assert_null(st_open(path, message));
    }
}

static void reads_what_is_there(void **state)
{
    char message[ST_MESSAGE_BYTES];
    (void)state;
    write_file("{\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[24,25]},\"__metadata__\":{\"k\":\"v\"},"
               "\"none\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[25,25]},"
               "\"a\":{" F32 "\"shape\":[2,3],\"data_offsets\":[0,24]}}  ",
               25);
    st_file *file = st_open(path, message);
    assert_non_null(file);
    assert_int_equal(st_n_tensors(file), 3);
    assert_string_equal(st_tensor_at(file, 0)->name, "a");
    const st_tensor *a = st_find(file, "a"), *b = st_find(file, "b"), *none = st_find(file, "none");
    assert_string_equal(a->dtype, "F32");
    assert_int_equal(a->n_dims, 2);
    assert_int_equal(a->shape[1], 3);
    assert_int_equal(a->n_elements, 6);
    assert_int_equal(((const char *)a->data)[5], 5);
    assert_int_equal(b->n_elements, 1);
    assert_int_equal(((const char *)b->data)[0], 24);
    assert_int_equal(none->n_elements, 0);
    assert_null(st_find(file, "__metadata__"));
    assert_string_equal(st_metadata(file, "k"), "v");
    assert_null(st_metadata(file, "x"));
    st_close(file);
}

static void writes_what_it_reads(void **state)
{
    static const float values[] = {1, -2, 3, 4, 5, 6};
    static const int32_t list[] = {-1, 7};
    const st_tensor tensors[] = {
        {.name = "values", .dtype = "F32", .n_dims = 2, .shape = {3, 2}, .data = values},
        {.name = "empty", .dtype = "BF16", .n_dims = 2, .shape = {0, 512}, .data = values},
        {.name = "list", .dtype = "I32", .n_dims = 1, .shape = {2}, .data = list},
    };
    char message[ST_MESSAGE_BYTES];
    (void)state;
    assert_true(st_write(path, tensors, 3, message));
    st_file *file = st_open(path, message);
    assert_non_null(file);
    assert_int_equal(st_n_tensors(file), 3);
    assert_memory_equal(st_find(file, "values")->data, values, sizeof values);
    assert_memory_equal(st_find(file, "list")->data, list, sizeof list);
    assert_int_equal(st_find(file, "empty")->shape[1], 512);
    st_close(file);
    assert_false(st_write("no/such/directory", tensors, 3, message));
    assert_non_null(strstr(message, "cannot write"));
}

/* A file system that is full: a limit on the size of files stands in for it. */
static void failed_write_leaves_what_was_there(void **state)
{
    static const float values[4096];
    const st_tensor small = {.name = "x", .dtype = "F32", .n_dims = 1, .shape = {8}, .data = values};
    const st_tensor large = {.name = "x", .dtype = "F32", .n_dims = 1, .shape = {4096}, .data = values};
    char message[ST_MESSAGE_BYTES];
    struct rlimit before, limited;
    (void)state;
    assert_true(st_write(path, &small, 1, message));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limited = before;
    limited.rlim_cur = 1024;
    void (*const handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limited), 0);
    const int old_kept = !st_write(path, &large, 1, message), none_made = !st_write("new.st", &large, 1, message);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_true(old_kept && none_made);
    st_file *file = st_open(path, message);
    assert_non_null(file);
    assert_int_equal(st_find(file, "x")->n_elements, 8);
    st_close(file);
    assert_null(st_open("new.st", message));
    assert_null(st_open("new.st.partial", message));
}

static void write_leaves_others_partial_files(void **state)
{
    static const float values[2] = {1, 2};
    const st_tensor tensor = {.name = "x", .dtype = "F32", .n_dims = 1, .shape = {2}, .data = values};
    char message[ST_MESSAGE_BYTES], text[8] = "";
    (void)state;
    FILE *others = fopen("kept.st.partial", "w");
    assert_non_null(others);
    assert_true(fputs("mine", others) >= 0);
    assert_int_equal(fclose(others), 0);
    assert_true(st_write("kept.st", &tensor, 1, message));
    assert_int_equal(chmod("kept.st", 0600), 0);
    assert_true(st_write("kept.st", &tensor, 1, message));
    struct stat found;
    assert_int_equal(stat("kept.st", &found), 0);
    assert_int_equal(found.st_mode & 0777, 0600);
    others = fopen("kept.st.partial", "r");
    assert_non_null(others);
    assert_non_null(fgets(text, sizeof text, others));
    assert_int_equal(fclose(others), 0);
    assert_string_equal(text, "mine");
    assert_null(fopen("kept.st.partial1", "r"));
    st_file *file = st_open("kept.st", message);
    assert_non_null(file);
    st_close(file);
    assert_int_equal(remove("kept.st.partial"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_bad_headers),
        cmocka_unit_test(refuses_bad_lengths),
        cmocka_unit_test(refuses_what_is_no_file),
        cmocka_unit_test(refuses_every_truncation),
        cmocka_unit_test(reads_what_is_there),
        cmocka_unit_test(writes_what_it_reads),
        cmocka_unit_test(failed_write_leaves_what_was_there),
        cmocka_unit_test(write_leaves_others_partial_files),
    };
    return cmocka_run_group_tests(tests, command_enter_directory, command_leave_directory);
}
