#include "session.h"

#include <stdio.h>
#include <stdlib.h>

void session_open(session *s, const cli_command *command, const cli_device *device)
{
    *s = (session){.command = command};
    s->code = cli_open_device(command, device, &s->context);
    if (s->code == CLI_DONE) {
        session_check(s, dsr_encoder_create(s->context, &s->encoder));
    }
}

void session_close(session *s)
{
    dsr_encoder_destroy(s->encoder);
    session_release_buffers(s);
    free(s->buffers);
    dsr_context_destroy(s->context);
}

void session_print(const session *s, const char *end)
{
    const unsigned n_threads = (unsigned)dsr_context_n_threads(s->context);
    printf("%s (%s), %s-exact, %u thread%s%s", cli_backend_name(dsr_context_device(s->context)),
           dsr_isa_name(dsr_context_isa(s->context)), cli_exactness_name(dsr_context_exactness(s->context)), n_threads,
           n_threads == 1 ? "" : "s", end);
}

void session_add_json(const session *s, json_t *document)
{
    cli_json_add(document,
                 json_pack("{s:s, s:s, s:s, s:i}", "backend", cli_backend_name(dsr_context_device(s->context)), "isa",
                           dsr_isa_name(dsr_context_isa(s->context)), "exactness",
                           cli_exactness_name(dsr_context_exactness(s->context)), "threads",
                           (int)dsr_context_n_threads(s->context)));
}

int session_check(session *s, dsr_status status)
{
    if (s->code == CLI_DONE && status != DSR_OK) {
        cli_error(s->command, "%s (%s)", dsr_context_error_text(s->context), dsr_status_name(status));
        s->code = cli_exit_code(status);
    }
    return s->code == CLI_DONE;
}

static int reserve_buffer(session *s)
{
    if (s->n_buffers == s->capacity) {
        const size_t capacity = s->capacity == 0 ? 64 : s->capacity * 2;
        dsr_buffer **buffers = realloc(s->buffers, capacity * sizeof(dsr_buffer *));
        if (buffers == NULL) {
            cli_error(s->command, "not enough memory");
            s->code = CLI_UNAVAILABLE;
            return 0;
        }
        s->buffers = buffers;
        s->capacity = capacity;
    }
    return 1;
}

dsr_view session_allocate(session *s, uint64_t n_bytes, dsr_dtype dtype)
{
    dsr_buffer *buffer = NULL;
    if (s->code == CLI_DONE && reserve_buffer(s) && session_check(s, dsr_buffer_create(s->context, n_bytes, &buffer))) {
        s->buffers[s->n_buffers++] = buffer;
    }
    return dsr_view_whole(buffer, dtype);
}

dsr_view session_upload(session *s, const void *source, uint64_t n_bytes, dsr_dtype dtype)
{
    const dsr_view view = session_allocate(s, n_bytes, dtype);
    session_write(s, view, 0, source, n_bytes);
    return view;
}

void session_write(session *s, dsr_view view, uint64_t byte_offset, const void *source, uint64_t n_bytes)
{
    if (s->code == CLI_DONE) {
        session_check(s, dsr_buffer_write(view.buffer, view.byte_offset + byte_offset, source, n_bytes));
    }
}

void session_read(session *s, dsr_view view, uint64_t byte_offset, void *destination, uint64_t n_bytes)
{
    if (s->code == CLI_DONE) {
        session_check(s, dsr_buffer_read(view.buffer, view.byte_offset + byte_offset, destination, n_bytes));
    }
}

void session_run(session *s)
{
    if (s->code == CLI_DONE && session_check(s, dsr_encoder_submit(s->encoder)) &&
        session_check(s, dsr_encoder_wait(s->encoder))) {
        session_check(s, dsr_encoder_reset(s->encoder));
    }
}

void session_release_buffers(session *s)
{
    while (s->n_buffers > 0) {
        dsr_buffer_destroy(s->buffers[--s->n_buffers]);
    }
}
