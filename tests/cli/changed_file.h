/* Copies of recorded files with something changed. */
#ifndef TEST_CHANGED_FILE_H
#define TEST_CHANGED_FILE_H

#include "safetensors.h"

/* Writes request `request` of a file as request 0 of another, n outputs from `first` on multiplied. */
static inline void write_changed_record(const char *from, int request, uint32_t first, uint32_t n, float factor,
                                        const char *to)
{
    char message[ST_MESSAGE_BYTES], name[32];
    st_tensor tensors[2];
    st_file *file = st_open(from, message);
    assert_non_null(file);
    snprintf(name, sizeof name, "x.%d", request);
    tensors[0] = *st_find(file, name);
    snprintf(name, sizeof name, "y.decode.%d", request);
    tensors[1] = *st_find(file, name);
    float *changed = malloc(tensors[1].n_bytes);
    assert_non_null(changed);
    memcpy(changed, tensors[1].data, tensors[1].n_bytes);
    for (uint32_t i = first; i < first + n; i++)
        changed[i] *= factor;
    tensors[0].name = "x.0";
    tensors[1].name = "y.decode.0";
    tensors[1].data = changed;
    if (!st_write(to, tensors, 2, message))
        fail_msg("%s", message);
    free(changed);
    st_close(file);
}

/* A copy of a file to changed.safetensors, in the header of which every `text` is replaced by `other`. */
static inline void write_changed_header(const char *path, const char *text, const char *other)
{
    enum { MOST_BYTES = 16 << 20 };
    char *bytes = malloc(MOST_BYTES), *header = calloc(MOST_BYTES, 1);
    FILE *from = fopen(path, "rb"), *to = fopen("changed.safetensors", "wb");
    uint64_t n_header;
    assert_true(bytes != NULL && header != NULL && from != NULL && to != NULL);
    assert_int_equal(fread(&n_header, sizeof n_header, 1, from), 1);
    assert_int_equal(fread(bytes, 1, n_header, from), n_header);
    bytes[n_header] = '\0';
    size_t used = 0, n_found = 0;
    for (const char *at = bytes; *at != '\0';) {
        const int is_found = strncmp(at, text, strlen(text)) == 0;
        const size_t n = is_found ? strlen(other) : 1;
        memcpy(header + used, is_found ? other : at, n);
        at += is_found ? strlen(text) : 1;
        used += n;
        n_found += (size_t)is_found;
    }
    assert_true(n_found > 0);
    n_header = used;
    fwrite(&n_header, sizeof n_header, 1, to);
    fwrite(header, 1, used, to);
    const size_t n_data = fread(bytes, 1, MOST_BYTES, from);
    assert_int_equal(fwrite(bytes, 1, n_data, to), n_data);
    fclose(from);
    assert_int_equal(fclose(to), 0);
    free(header);
    free(bytes);
}

#endif
