/* A context, an encoder and the buffers of the work at hand, with one sticky failure: after the first call that fails,
 * which prints its message, every other one does nothing, and the code says how to exit. */
#ifndef DSROWS_SESSION_H
#define DSROWS_SESSION_H

#include "cli.h"

typedef struct session {
    const cli_command *command;
    dsr_context *context;
    dsr_encoder *encoder;
    dsr_buffer **buffers;
    size_t n_buffers;
    size_t capacity;
    int code; /* CLI_DONE, or the exit code of the first failure */
} session;

void session_open(session *s, const cli_command *command, const cli_device *device);
void session_close(session *s);
/* Prints where it runs, such as "cpu (avx512), device-exact, 2 threads", and an end. */
void session_print(const session *s, const char *end);
/* Adds where it runs to a document: backend, isa, exactness and threads. */
void session_add_json(const session *s, json_t *document);
/* Notes a library call's result; 1 if the session is still good. */
int session_check(session *s, dsr_status status);

/* A new buffer on the device, zeros. */
dsr_view session_allocate(session *s, uint64_t n_bytes, dsr_dtype dtype);
/* A new buffer with a copy of host memory. */
dsr_view session_upload(session *s, const void *source, uint64_t n_bytes, dsr_dtype dtype);
void session_write(session *s, dsr_view view, uint64_t byte_offset, const void *source, uint64_t n_bytes);
void session_read(session *s, dsr_view view, uint64_t byte_offset, void *destination, uint64_t n_bytes);
/* Runs what was encoded and empties the encoder. */
void session_run(session *s);
/* Destroys all buffers. */
void session_release_buffers(session *s);

#endif
