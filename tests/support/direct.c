#include "direct.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void need(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "test harness: %s\n", what);
        exit(EXIT_FAILURE);
    }
}

void direct_open(direct *d, dsr_isa isa, uint32_t n_threads)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    memset(d, 0, sizeof *d);
    desc.isa = isa;
    desc.n_threads = n_threads;
    need(dsr_context_create(&desc, &d->context) == DSR_OK, dsr_create_error_text());
    need(dsr_encoder_create(d->context, &d->encoder) == DSR_OK, "no encoder");
}

void direct_close(direct *d)
{
    direct_drop(d);
    dsr_encoder_destroy(d->encoder);
    dsr_context_destroy(d->context);
    memset(d, 0, sizeof *d);
}

dsr_view direct_view(direct *d, const void *memory, size_t n, dsr_dtype dtype)
{
    dsr_buffer *buffer = NULL;
    need(d->n_buffers < DIRECT_MAX_BUFFERS, "too many views");
    /* Wrapping takes a plain pointer; operands that an op only reads stay unwritten. */
    need(dsr_buffer_wrap(d->context, (void *)(uintptr_t)memory, n * dsr_dtype_size(dtype), &buffer) == DSR_OK,
         dsr_context_error_text(d->context));
    d->buffers[d->n_buffers++] = buffer;
    return dsr_view_whole(buffer, dtype);
}

dsr_view direct_f32(direct *d, const float *memory, size_t n)
{
    return direct_view(d, memory, n, DSR_DTYPE_F32);
}

dsr_view direct_bf16(direct *d, const uint16_t *memory, size_t n)
{
    return direct_view(d, memory, n, DSR_DTYPE_BF16);
}

dsr_view direct_i32(direct *d, const int32_t *memory, size_t n)
{
    return direct_view(d, memory, n, DSR_DTYPE_I32);
}

static dsr_view workspace(direct *d, uint64_t n_bytes)
{
    void *memory = malloc(n_bytes ? (size_t)n_bytes : 1);
    need(memory && d->n_workspaces < DIRECT_MAX_BUFFERS, "no workspace");
    memset(memory, 0xff, (size_t)n_bytes);
    d->workspaces[d->n_workspaces++] = memory;
    return direct_view(d, memory, n_bytes ? (size_t)n_bytes : 1, DSR_DTYPE_U8);
}

dsr_status direct_encode_attention(direct *d, direct_form form, dsr_attention_desc *desc)
{
    uint64_t n_bytes = 0;
    dsr_status status = (form == DIRECT_FLASH ? dsr_flash_attention_workspace
                                              : dsr_sparse_attention_workspace)(d->context, desc, &n_bytes);
    if (status != DSR_OK) {
        return status;
    }
    desc->workspace = workspace(d, n_bytes);
    return (form == DIRECT_FLASH ? dsr_encode_flash_attention : dsr_encode_sparse_attention)(d->encoder, desc);
}

dsr_status direct_encode_indexer(direct *d, dsr_indexer_desc *desc)
{
    uint64_t n_bytes = 0;
    dsr_status status = dsr_indexer_workspace(d->context, desc, &n_bytes);
    if (status != DSR_OK) {
        return status;
    }
    desc->workspace = workspace(d, n_bytes);
    return dsr_encode_indexer(d->encoder, desc);
}

dsr_status direct_run(direct *d)
{
    dsr_status status = dsr_encoder_submit(d->encoder);
    if (status == DSR_OK) {
        status = dsr_encoder_wait(d->encoder);
    }
    direct_drop(d);
    return status;
}

void direct_drop(direct *d)
{
    need(dsr_encoder_reset(d->encoder) == DSR_OK, "no reset");
    for (uint32_t i = 0; i < d->n_buffers; i++) {
        dsr_buffer_destroy(d->buffers[i]);
    }
    for (uint32_t i = 0; i < d->n_workspaces; i++) {
        free(d->workspaces[i]);
    }
    d->n_buffers = d->n_workspaces = 0;
}

const char *direct_error(const direct *d)
{
    return dsr_context_error_text(d->context);
}
