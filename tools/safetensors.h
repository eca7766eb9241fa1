/* Reading and writing safetensors files.
 *
 * A file is an 8-byte little-endian header length, a JSON header that names every tensor with dtype, shape and byte
 * range, and the data. The reader takes nothing on trust: every range is checked against the file, the shape and the
 * other tensors before a tensor can be looked at. Messages name the file, the tensor, what is given and what is needed.
 */
#ifndef DSROWS_SAFETENSORS_H
#define DSROWS_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

enum { ST_MAX_DIMS = 8, ST_MESSAGE_BYTES = 8192 /* room for a path and more */ };

typedef struct st_tensor {
    const char *name;
    const char *dtype; /* as in the file: "F32", "BF16", "I32", ... */
    uint32_t n_dims;
    uint64_t shape[ST_MAX_DIMS];
    uint64_t n_elements;
    uint64_t n_bytes;
    const void *data; /* not aligned: copy elements out with memcpy */
} st_tensor;

typedef struct st_file st_file;

/* Reads a whole file. Returns null after writing the reason to message. */
st_file *st_open(const char *path, char message[ST_MESSAGE_BYTES]);
/* Takes null. Tensors and texts of the file are gone after it. */
void st_close(st_file *file);

size_t st_n_tensors(const st_file *file);
/* Tensors in the order of their data. */
const st_tensor *st_tensor_at(const st_file *file, size_t index);
/* Null if the file has no tensor of that name. */
const st_tensor *st_find(const st_file *file, const char *name);
/* Value of a key of the header's __metadata__; null if there is none. */
const char *st_metadata(const st_file *file, const char *key);

/* Writes tensors in the given order; n_elements and n_bytes are worked out from dtype and shape. 0 after writing the
 * reason to message. */
int st_write(const char *path, const st_tensor *tensors, size_t n_tensors, char message[ST_MESSAGE_BYTES]);

#endif
