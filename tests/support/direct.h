/* Direct calls of the public API on plain arrays, for cases written by hand. */
#ifndef TEST_DIRECT_H
#define TEST_DIRECT_H

#include <dsrows/dsrows.h>

#include <stddef.h>
#include <stdint.h>

enum { DIRECT_MAX_BUFFERS = 1024 };

typedef struct direct {
    dsr_context *context;
    dsr_encoder *encoder;
    dsr_buffer *buffers[DIRECT_MAX_BUFFERS];
    uint32_t n_buffers;
    void *workspaces[DIRECT_MAX_BUFFERS];
    uint32_t n_workspaces;
} direct;

/* A context (isa AUTO: the best one) and an encoder on it. Ends the process on failure. */
void direct_open(direct *d, dsr_isa isa, uint32_t n_threads);
void direct_close(direct *d);

/* A view of n elements at memory, which stays the caller's; wrapped anew by every call. Ends the process on failure. */
dsr_view direct_view(direct *d, const void *memory, size_t n, dsr_dtype dtype);
dsr_view direct_f32(direct *d, const float *memory, size_t n);
dsr_view direct_bf16(direct *d, const uint16_t *memory, size_t n);
dsr_view direct_i32(direct *d, const int32_t *memory, size_t n);

typedef enum direct_form { DIRECT_TWO_PASS, DIRECT_FLASH } direct_form;

/* Encode with a workspace of exactly the size asked for; on failure nothing is encoded. */
dsr_status direct_encode_attention(direct *d, direct_form form, dsr_attention_desc *desc);
dsr_status direct_encode_indexer(direct *d, dsr_indexer_desc *desc);

/* Submit what is encoded, wait, reset the encoder and drop all views. */
dsr_status direct_run(direct *d);
/* Reset and drop without running. */
void direct_drop(direct *d);
/* Text of the last failure. */
const char *direct_error(const direct *d);

#endif
