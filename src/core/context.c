/* Contexts: creation from a descriptor, texts of failures, log. */
#include "core/context_internal.h"
#include "core/fork_guard.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_THREADS = 1024 };

static _Thread_local char create_error_text[DSRI_ERROR_TEXT_BYTES];

static const char *const isa_names[] = {
    [DSR_ISA_AUTO] = "auto",     [DSR_ISA_SCALAR] = "scalar", [DSR_ISA_AVX2] = "avx2",
    [DSR_ISA_AVX512] = "avx512", [DSR_ISA_NEON] = "neon",
};
enum { N_ISAS = sizeof isa_names / sizeof isa_names[0] };

const char *dsr_isa_name(dsr_isa isa)
{
    return (size_t)isa < N_ISAS ? isa_names[isa] : "?";
}

dsr_status dsri_fail(dsr_context *context, dsr_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (context)
        (void)vsnprintf(context->error_text, sizeof context->error_text, format, arguments);
    va_end(arguments);
    return status;
}

void dsri_log(const dsr_context *context, dsr_log_level level, const char *format, ...)
{
    char message[DSRI_ERROR_TEXT_BYTES];
    va_list arguments;
    if (!context->log)
        return;
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    context->log(context->log_user, level, message);
}

/* The instruction set asked for: the descriptor's, else the environment's. */
static dsr_status wanted_isa(dsr_context *context, dsr_isa from_desc, dsr_isa *isa)
{
    const char *name = from_desc == DSR_ISA_AUTO ? getenv("DSR_ISA") : NULL;
    *isa = from_desc;
    if (!name || !*name)
        return DSR_OK;
    for (size_t i = 0; i < N_ISAS; i++) {
        if (strcmp(name, isa_names[i]) == 0) {
            *isa = (dsr_isa)i;
            return DSR_OK;
        }
    }
    return dsri_fail(context, DSR_ERR_VALUE,
                     "context: environment variable DSR_ISA is \"%s\", needed is auto, scalar, avx2, avx512 or neon",
                     name);
}

static dsr_status check_desc(dsr_context *context, const dsr_context_desc *desc)
{
    if (desc->device != DSR_DEVICE_CPU && desc->device != DSR_DEVICE_CUDA)
        return dsri_fail(context, DSR_ERR_ENUM, "context: device is %d, which is no device kind", (int)desc->device);
    if (desc->exactness != DSR_EXACT_DEVICE && desc->exactness != DSR_EXACT_ROW)
        return dsri_fail(context, DSR_ERR_ENUM, "context: exactness is %d, which is none", (int)desc->exactness);
    if ((size_t)desc->isa >= N_ISAS)
        return dsri_fail(context, DSR_ERR_ENUM, "context: isa is %d, which is no instruction set", (int)desc->isa);
    if (desc->n_threads > MAX_THREADS)
        return dsri_fail(context, DSR_ERR_VALUE, "context: n_threads is %u, needed is at most %d", desc->n_threads,
                         MAX_THREADS);
    if (desc->cuda_context && desc->device != DSR_DEVICE_CUDA)
        return dsri_fail(context, DSR_ERR_VALUE, "context: cuda_context is given, but the device is not CUDA");
    if (!desc->allocator.allocate != !desc->allocator.release)
        return dsri_fail(context, DSR_ERR_NULL, "context: allocator has one of allocate and release, needed are both");
    return DSR_OK;
}

/* Sets every field that needs no memory and no device. */
static dsr_status fill_context(dsr_context *context, const dsr_context_desc *desc)
{
    const dsr_status status = check_desc(context, desc);
    if (status != DSR_OK)
        return status;
    context->backend = dsri_find_backend(desc->device);
    if (!context->backend)
        return dsri_fail(context, DSR_ERR_UNSUPPORTED_DEVICE, "context: the CUDA back end is not in this build");
    if (!dsri_fork_guard_install())
        return dsri_fail(context, DSR_ERR_OUT_OF_MEMORY, "context: memory to watch for forks could not be allocated");
    context->allocator = desc->allocator.allocate ? desc->allocator : dsri_default_allocator();
    context->exactness = desc->exactness;
    context->isa = DSR_ISA_SCALAR;
    context->n_threads = 1;
    context->fork_count = dsri_fork_count();
    return DSR_OK;
}

/* Gives *opened, a copy of the draft with an open device. A failure's text is in the draft. */
static dsr_status open_context(dsr_context *draft, const dsr_context_desc *desc, dsr_context **opened)
{
    dsr_context_desc resolved = *desc;
    if (desc->device == DSR_DEVICE_CPU) {
        const dsr_status status = wanted_isa(draft, desc->isa, &resolved.isa);
        if (status != DSR_OK)
            return status;
    }
    dsr_context *context = dsri_allocate(&draft->allocator, sizeof *context, _Alignof(dsr_context));
    if (!context)
        return dsri_fail(draft, DSR_ERR_OUT_OF_MEMORY, "context: %zu bytes could not be allocated", sizeof *context);
    *context = *draft;
    const dsr_status status = context->backend->open(context, &resolved, &context->device);
    if (status == DSR_OK) {
        *opened = context;
        return DSR_OK;
    }
    memcpy(draft->error_text, context->error_text, sizeof draft->error_text);
    dsri_release(&draft->allocator, context, sizeof *context);
    return status;
}

static dsr_status create_context(dsr_context *draft, const dsr_context_desc *desc, dsr_context **context)
{
    if (!context)
        return dsri_fail(draft, DSR_ERR_NULL, "context: the pointer for the result is null");
    if (desc->struct_size != sizeof *desc)
        return dsri_fail(draft, DSR_ERR_STRUCT_SIZE, "context: struct_size is %u, needed is %zu", desc->struct_size,
                         sizeof *desc);
    draft->log = desc->log;
    draft->log_user = desc->log_user;
    const dsr_status status = fill_context(draft, desc);
    return status == DSR_OK ? open_context(draft, desc, context) : status;
}

dsr_status dsr_context_create(const dsr_context_desc *desc, dsr_context **context)
{
    static const dsr_context_desc defaults = DSR_CONTEXT_DESC_INIT;
    dsr_context draft = {.error_text = ""};
    const dsr_status status = create_context(&draft, desc ? desc : &defaults, context);
    if (status != DSR_OK) {
        memcpy(create_error_text, draft.error_text, sizeof create_error_text);
        dsri_log(&draft, DSR_LOG_ERROR, "%s", draft.error_text);
    }
    return status;
}

const char *dsr_create_error_text(void)
{
    return create_error_text;
}

int dsri_context_is_forked(const dsr_context *context)
{
    return context->fork_count != dsri_fork_count();
}

dsr_status dsri_context_check_usable(dsr_context *context)
{
    if (context->is_destroyed)
        return dsri_fail(context, DSR_ERR_STATE, "context: it was destroyed before its buffers and encoders");
    if (dsri_context_is_forked(context))
        return dsri_fail(context, DSR_ERR_FORKED, "context: it was made before a fork and is used in the child");
    return DSR_OK;
}

static void release_caller_kernels(dsr_context *context)
{
    dsri_caller_kernel *kernel = context->caller_kernels;
    while (kernel) {
        dsri_caller_kernel *next = kernel->next;
        if (kernel->device_kernel)
            context->backend->device_kernel_unload(context->device, kernel->device_kernel,
                                                   dsri_context_is_forked(context));
        dsri_release(&context->allocator, kernel, sizeof *kernel);
        kernel = next;
    }
}

void dsri_context_release_if_done(dsr_context *context)
{
    if (!context->is_destroyed || context->buffers || context->encoders)
        return;
    release_caller_kernels(context);
    context->backend->close(context->device, dsri_context_is_forked(context));
    const dsr_allocator allocator = context->allocator;
    dsri_release(&allocator, context, sizeof *context);
}

void dsr_context_destroy(dsr_context *context)
{
    if (!context)
        return;
    if (context->buffers || context->encoders)
        dsri_log(context, DSR_LOG_ERROR, "context: destroyed before its %s; kept until they are destroyed",
                 context->encoders ? "encoders" : "buffers");
    context->is_destroyed = 1;
    dsri_context_release_if_done(context);
}

const char *dsr_context_error_text(const dsr_context *context)
{
    return context ? context->error_text : "";
}

dsr_isa dsr_context_isa(const dsr_context *context)
{
    return context->isa;
}

dsr_device_kind dsr_context_device(const dsr_context *context)
{
    return context->backend->kind;
}

dsr_exactness dsr_context_exactness(const dsr_context *context)
{
    return context->exactness;
}

uint32_t dsr_context_n_threads(const dsr_context *context)
{
    return context->n_threads;
}

uint32_t dsr_device_count(dsr_device_kind device)
{
    const dsri_backend *backend = dsri_find_backend(device);
    return backend ? backend->device_count() : 0;
}
