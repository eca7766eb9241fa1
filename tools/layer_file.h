/* An attention layer of a safetensors file: weights under their Hugging Face names with any prefix, and the model's
 * configuration as JSON in the file's metadata under "config". */
#ifndef DSROWS_LAYER_FILE_H
#define DSROWS_LAYER_FILE_H

#include "case_file.h"

#include <dsrows/attention.h>

typedef struct layer_file {
    case_file *owner;
    char prefix[256]; /* of the layer's tensors, such as "w." */
    dsr_attention_config config;
} layer_file;

/* Finds the one layer of the file and reads its configuration. Failures are the case's: a message and c->code. */
void layer_file_read(case_file *c, dsr_cache_treatment cache, layer_file *layer);
/* A dsr_tensor_lookup_fn; user is a layer_file. A tensor of a dtype that the library does not have is a failure of the
 * case. */
int layer_file_lookup(void *user, const char *name, dsr_tensor *tensor);
/* "window", "ratio 4" or "ratio 128". */
const char *layer_kind_name(dsr_layer_kind kind);
/* As --cache takes it. */
const char *layer_cache_name(dsr_cache_treatment cache);

#endif
