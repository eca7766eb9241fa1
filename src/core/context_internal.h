/* Insides of contexts and buffers, for the core and the back ends. */
#ifndef DSRI_CONTEXT_INTERNAL_H
#define DSRI_CONTEXT_INTERNAL_H

#include "core/alloc.h"
#include "core/backend.h"

enum { DSRI_ERROR_TEXT_BYTES = 512, DSRI_MAX_KERNEL_NAME = 63 };

/* A kernel of the caller's. */
typedef struct dsri_caller_kernel {
    struct dsri_caller_kernel *next;
    dsr_kernel_fn run; /* null: device code */
    void *user;
    void *device_kernel;  /* of device code: the back end's object */
    const char *names[1]; /* the name, as a command's list of launches wants it */
    char name[DSRI_MAX_KERNEL_NAME + 1];
} dsri_caller_kernel;

struct dsr_context {
    dsr_allocator allocator;
    dsr_log_fn log;
    void *log_user;
    const dsri_backend *backend;
    void *device; /* the back end's object */
    dsr_exactness exactness;
    dsr_isa isa;
    uint32_t n_threads;
    uint32_t fork_count; /* dsri_fork_count() at creation */

    dsr_buffer *buffers;
    dsr_encoder *encoders;
    uint64_t next_buffer_serial;
    dsri_caller_kernel *caller_kernels; /* in order of registration */
    /* Destroyed by the caller while buffers or encoders live: memory stays until the last of them goes. */
    int is_destroyed;
    char error_text[DSRI_ERROR_TEXT_BYTES];
};

struct dsr_buffer {
    dsr_context *context;
    dsr_buffer *previous;
    dsr_buffer *next;
    unsigned char *data;
    uint64_t size_bytes;
    uint64_t serial; /* order of creation in the context */
    int is_ours;
    uint32_t capture_number; /* scratch of dsr_encoder_capture */
};

/* Forwards a log message, nowhere if the context has no callback. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
void dsri_log(const dsr_context *context, dsr_log_level level, const char *format, ...);

/* DSR_ERR_FORKED in a child of the process that made the context, DSR_ERR_STATE after its destruction. */
dsr_status dsri_context_check_usable(dsr_context *context);
int dsri_context_is_forked(const dsr_context *context);
/* Frees a destroyed context once nothing of it lives. */
void dsri_context_release_if_done(dsr_context *context);
/* Memory under a buffer of ours goes away, or gets an owner that the commands know nothing of: encoders with commands
 * on it refuse to run them. `what` is a literal that ends the sentence "a buffer that its commands use ...". */
void dsri_encoders_forget_memory(dsr_context *context, const dsr_buffer *buffer, const char *what);

#endif
