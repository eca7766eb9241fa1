/* A recorded request of which some outputs are changed. */
#ifndef CHANGED_RECORD_H
#define CHANGED_RECORD_H

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

#endif
