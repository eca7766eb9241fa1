/* Buffers and views. */
#include "core/context_internal.h"

static dsr_status new_buffer(dsr_context *context, uint64_t size_bytes, dsr_buffer **buffer)
{
    const dsr_status status = dsri_context_check_usable(context);
    if (status != DSR_OK)
        return status;
    if (!buffer)
        return dsri_fail(context, DSR_ERR_NULL, "buffer: the pointer for the result is null");
    if (size_bytes == 0)
        return dsri_fail(context, DSR_ERR_VALUE, "buffer: size_bytes is 0, needed is at least 1");
    if (size_bytes > SIZE_MAX)
        return dsri_fail(context, DSR_ERR_OVERFLOW, "buffer: size_bytes does not fit this machine's addresses");
    dsr_buffer *created = dsri_allocate(&context->allocator, sizeof *created, _Alignof(dsr_buffer));
    if (!created)
        return dsri_fail(context, DSR_ERR_OUT_OF_MEMORY, "buffer: %zu bytes could not be allocated", sizeof *created);
    *created = (dsr_buffer){.context = context, .size_bytes = size_bytes};
    *buffer = created;
    return DSR_OK;
}

static void enter_buffer(dsr_buffer *buffer)
{
    dsr_context *context = buffer->context;
    buffer->serial = context->next_buffer_serial++;
    buffer->next = context->buffers;
    if (buffer->next)
        buffer->next->previous = buffer;
    context->buffers = buffer;
}

dsr_status dsr_buffer_create(dsr_context *context, uint64_t size_bytes, dsr_buffer **buffer)
{
    dsr_buffer *created = NULL;
    if (!context)
        return DSR_ERR_NULL;
    const dsr_status status = new_buffer(context, size_bytes, buffer ? &created : NULL);
    if (status != DSR_OK)
        return status;
    void *memory = NULL;
    const dsr_status allocated = context->backend->memory_allocate(context->device, (size_t)size_bytes, &memory);
    if (allocated != DSR_OK) {
        dsri_release(&context->allocator, created, sizeof *created);
        return allocated;
    }
    created->data = memory;
    created->is_ours = 1;
    enter_buffer(created);
    *buffer = created;
    return DSR_OK;
}

dsr_status dsr_buffer_wrap(dsr_context *context, void *memory, uint64_t size_bytes, dsr_buffer **buffer)
{
    dsr_buffer *created = NULL;
    if (!context)
        return DSR_ERR_NULL;
    if (!memory)
        return dsri_fail(context, DSR_ERR_NULL, "buffer: the memory to wrap is null");
    if (size_bytes > UINTPTR_MAX - (uintptr_t)memory)
        return dsri_fail(context, DSR_ERR_OVERFLOW, "buffer: %llu bytes from the address given pass the last address",
                         (unsigned long long)size_bytes);
    const dsr_status status = new_buffer(context, size_bytes, buffer ? &created : NULL);
    if (status != DSR_OK)
        return status;
    created->data = memory;
    enter_buffer(created);
    *buffer = created;
    return DSR_OK;
}

void dsr_buffer_destroy(dsr_buffer *buffer)
{
    if (!buffer)
        return;
    dsr_context *context = buffer->context;
    if (buffer->previous)
        buffer->previous->next = buffer->next;
    else
        context->buffers = buffer->next;
    if (buffer->next)
        buffer->next->previous = buffer->previous;
    if (buffer->is_ours) {
        dsri_encoders_forget_memory(context, buffer, "was destroyed");
        context->backend->memory_release(context->device, buffer->data, (size_t)buffer->size_bytes,
                                         dsri_context_is_forked(context));
    }
    dsri_release(&context->allocator, buffer, sizeof *buffer);
    dsri_context_release_if_done(context);
}

void *dsr_buffer_data(const dsr_buffer *buffer)
{
    return buffer ? buffer->data : NULL;
}

uint64_t dsr_buffer_size(const dsr_buffer *buffer)
{
    return buffer ? buffer->size_bytes : 0;
}

static dsr_status check_piece(const dsr_buffer *buffer, uint64_t byte_offset, const void *host, uint64_t size_bytes)
{
    const dsr_status status = dsri_context_check_usable(buffer->context);
    if (status != DSR_OK)
        return status;
    if (!host)
        return dsri_fail(buffer->context, DSR_ERR_NULL, "buffer: the host pointer is null");
    if (byte_offset > buffer->size_bytes || size_bytes > buffer->size_bytes - byte_offset)
        return dsri_fail(buffer->context, DSR_ERR_RANGE, "buffer: %llu bytes from byte %llu, but it has %llu",
                         (unsigned long long)size_bytes, (unsigned long long)byte_offset,
                         (unsigned long long)buffer->size_bytes);
    return DSR_OK;
}

dsr_status dsr_buffer_write(dsr_buffer *buffer, uint64_t byte_offset, const void *source, uint64_t size_bytes)
{
    if (!buffer)
        return DSR_ERR_NULL;
    const dsr_status status = check_piece(buffer, byte_offset, source, size_bytes);
    if (status != DSR_OK || size_bytes == 0)
        return status;
    dsr_context *context = buffer->context;
    return context->backend->memory_write(context->device, buffer->data + byte_offset, source, (size_t)size_bytes);
}

dsr_status dsr_buffer_read(const dsr_buffer *buffer, uint64_t byte_offset, void *destination, uint64_t size_bytes)
{
    if (!buffer)
        return DSR_ERR_NULL;
    const dsr_status status = check_piece(buffer, byte_offset, destination, size_bytes);
    if (status != DSR_OK || size_bytes == 0)
        return status;
    dsr_context *context = buffer->context;
    return context->backend->memory_read(context->device, destination, buffer->data + byte_offset, (size_t)size_bytes);
}

dsr_view dsr_view_whole(dsr_buffer *buffer, dsr_dtype dtype)
{
    return (dsr_view){.buffer = buffer, .byte_length = dsr_buffer_size(buffer), .dtype = dtype};
}

dsr_view dsr_view_slice(dsr_view view, uint64_t first, uint64_t n_elements)
{
    const uint64_t element_bytes = dsr_dtype_size(view.dtype);
    dsr_view slice = view;
    if (!view.buffer)
        return slice;
    const uint64_t n_held = element_bytes ? view.byte_length / element_bytes : 0;
    if (first > n_held || n_elements > n_held - first || view.byte_offset > UINT64_MAX - view.byte_length) {
        slice.byte_length = UINT64_MAX;
        return slice;
    }
    slice.byte_offset += first * element_bytes;
    slice.byte_length = n_elements * element_bytes;
    return slice;
}

dsr_status dsri_view_address(dsr_context *context, const dsr_view *view, const char *what, void **address)
{
    if (!view || !view->buffer)
        return dsri_fail(context, DSR_ERR_NULL, "%s: no view given", what);
    const dsr_buffer *buffer = view->buffer;
    const size_t element_bytes = dsr_dtype_size(view->dtype);
    if (buffer->context != context)
        return dsri_fail(context, DSR_ERR_CONTEXT_MISMATCH, "%s: the view's buffer is of another context", what);
    if (element_bytes == 0)
        return dsri_fail(context, DSR_ERR_ENUM, "%s: dtype is %d, which is none", what, (int)view->dtype);
    if (view->byte_offset > buffer->size_bytes || view->byte_length > buffer->size_bytes - view->byte_offset)
        return dsri_fail(context, DSR_ERR_RANGE, "%s: the view has %llu bytes from byte %llu, its buffer has %llu",
                         what, (unsigned long long)view->byte_length, (unsigned long long)view->byte_offset,
                         (unsigned long long)buffer->size_bytes);
    unsigned char *begin = buffer->data + view->byte_offset;
    if ((uintptr_t)begin % element_bytes != 0)
        return dsri_fail(context, DSR_ERR_ALIGNMENT, "%s: the address is not a multiple of %zu (%s)", what,
                         element_bytes, dsr_dtype_name(view->dtype));
    *address = begin;
    return DSR_OK;
}
