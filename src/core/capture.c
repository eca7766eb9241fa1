/* What an encoder holds: as data, as JSON and as a Graphviz picture. Addresses change from run to run, so the texts
 * name buffers by number and never show, or order by, an address. */
#include "core/encoder_struct.h"

#include <stdarg.h>
#include <stdio.h>

uint32_t dsr_encoder_n_commands(const dsr_encoder *encoder)
{
    return encoder ? encoder->n_commands : 0;
}

dsr_status dsr_encoder_command(const dsr_encoder *encoder, uint32_t index, dsr_command_info *info)
{
    if (!encoder)
        return DSR_ERR_NULL;
    dsr_context *context = encoder->context;
    if (!info)
        return dsri_fail(context, DSR_ERR_NULL, "command info: info is null");
    if (info->struct_size != sizeof *info)
        return dsri_fail(context, DSR_ERR_STRUCT_SIZE, "command info: struct_size is %u, needed is %zu",
                         info->struct_size, sizeof *info);
    if (index >= encoder->n_commands)
        return dsri_fail(context, DSR_ERR_VALUE, "command info: index is %u, the encoder has %u commands", index,
                         encoder->n_commands);
    const dsri_command *command = encoder->commands[index];
    *info = (dsr_command_info){.struct_size = sizeof *info,
                               .op = dsri_op_name(command->op),
                               .kernels = command->kernel_names,
                               .n_kernels = command->n_launches,
                               .grid = command->grid,
                               .n_rows = command->n_rows,
                               .reads = command->reads,
                               .n_reads = command->n_reads,
                               .writes = command->writes,
                               .n_writes = command->n_writes,
                               .depends_on = command->depends_on,
                               .n_depends_on = command->n_depends_on,
                               .wave = command->wave};
    return DSR_OK;
}

/* ---- ranges by buffer ---- */

/* A piece of a range that lies in one buffer. */
typedef struct piece {
    dsr_buffer *buffer; /* null: a buffer that was destroyed; begin is 0 then */
    uint64_t begin;     /* bytes from the buffer's first */
    uint64_t end;
} piece;

/* The oldest buffer that holds the byte. Without one, *end is cut where the next buffer begins. */
static dsr_buffer *find_buffer(const dsr_context *context, uint64_t address, uint64_t *end)
{
    dsr_buffer *found = NULL;
    for (dsr_buffer *buffer = context->buffers; buffer; buffer = buffer->next) {
        const uint64_t begin = (uintptr_t)buffer->data;
        if (begin > address) {
            if (begin < *end && !found)
                *end = begin;
        } else if (address - begin < buffer->size_bytes && (!found || buffer->serial < found->serial)) {
            found = buffer;
        }
    }
    return found;
}

/* Cuts ranges at the ends of buffers, so that buffers that happen to touch show apart. pieces may be null: counts only.
 */
static uint32_t cut_ranges(const dsr_context *context, const dsr_range *ranges, uint32_t n_ranges, piece *pieces)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_ranges; i++) {
        for (uint64_t begin = ranges[i].begin, end; begin < ranges[i].end; begin = end) {
            end = ranges[i].end;
            dsr_buffer *buffer = find_buffer(context, begin, &end);
            const uint64_t origin = buffer ? (uintptr_t)buffer->data : begin;
            if (buffer)
                end = ranges[i].end - origin < buffer->size_bytes ? ranges[i].end : origin + buffer->size_bytes;
            if (pieces)
                pieces[n] = (piece){buffer, begin - origin, end - origin};
            n++;
        }
    }
    return n;
}

static int comes_before(const piece *a, const piece *b)
{
    const uint64_t serial_a = a->buffer ? a->buffer->serial : UINT64_MAX;
    const uint64_t serial_b = b->buffer ? b->buffer->serial : UINT64_MAX;
    if (serial_a != serial_b)
        return serial_a < serial_b;
    return a->begin != b->begin ? a->begin < b->begin : a->end < b->end;
}

static void sort_pieces(piece *pieces, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        const piece moved = pieces[i];
        uint32_t j = i;
        for (; j > 0 && comes_before(&moved, &pieces[j - 1]); j--)
            pieces[j] = pieces[j - 1];
        pieces[j] = moved;
    }
}

/* ---- writing ---- */

enum { TEXT_BYTES = 2048, LONGEST_PIECE = 256 };

typedef struct capture {
    const dsr_encoder *encoder;
    dsr_write_fn write;
    void *user;
    piece *pieces;      /* room for the ranges of any one command */
    uint32_t n_buffers; /* numbered so far */
    size_t n_bytes;     /* waiting in text */
    int has_failed;
    char text[TEXT_BYTES];
} capture;

static void flush(capture *out)
{
    if (out->n_bytes > 0 && !out->has_failed)
        out->has_failed = out->write(out->user, out->text, out->n_bytes) != 0;
    out->n_bytes = 0;
}

/* At most LONGEST_PIECE characters per call. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void
put(capture *out, const char *format, ...)
{
    va_list arguments;
    if (out->n_bytes > TEXT_BYTES - LONGEST_PIECE)
        flush(out);
    va_start(arguments, format);
    const int n = vsnprintf(out->text + out->n_bytes, LONGEST_PIECE, format, arguments);
    va_end(arguments);
    if (n > 0)
        out->n_bytes += n < LONGEST_PIECE ? (size_t)n : LONGEST_PIECE - 1;
}

/* Leaves the sorted pieces in out->pieces and numbers buffers that appear for the first time. */
static uint32_t take_pieces(capture *out, const dsr_range *ranges, uint32_t n_ranges)
{
    const uint32_t n = cut_ranges(out->encoder->context, ranges, n_ranges, out->pieces);
    sort_pieces(out->pieces, n);
    for (uint32_t i = 0; i < n; i++)
        if (out->pieces[i].buffer && out->pieces[i].buffer->capture_number == UINT32_MAX)
            out->pieces[i].buffer->capture_number = out->n_buffers++;
    return n;
}

/* ---- JSON ---- */

static void put_json_ranges(capture *out, const char *key, const dsr_range *ranges, uint32_t n_ranges)
{
    const uint32_t n = take_pieces(out, ranges, n_ranges);
    put(out, ", \"%s\": [", key);
    for (uint32_t i = 0; i < n; i++) {
        const piece *p = &out->pieces[i];
        put(out, i ? ", " : "");
        if (p->buffer)
            put(out, "{\"buffer\": %u", p->buffer->capture_number);
        else
            put(out, "{\"buffer\": null");
        put(out, ", \"begin\": %llu, \"end\": %llu}", (unsigned long long)p->begin, (unsigned long long)p->end);
    }
    put(out, "]");
}

static void put_json_command(capture *out, const dsri_command *command)
{
    put(out, "{\"index\": %u, \"op\": \"%s\", \"n_rows\": %u, \"wave\": %u, \"kernels\": [", command->index,
        dsri_op_name(command->op), command->n_rows, command->wave);
    for (uint32_t i = 0; i < command->n_launches; i++)
        put(out, "%s{\"name\": \"%s\", \"grid\": %u}", i ? ", " : "", command->kernel_names[i], command->grid[i]);
    put(out, "]");
    put_json_ranges(out, "reads", command->reads, command->n_reads);
    put_json_ranges(out, "writes", command->writes, command->n_writes);
    put(out, ", \"depends_on\": [");
    for (uint32_t i = 0; i < command->n_depends_on; i++)
        put(out, "%s%u", i ? ", " : "", command->depends_on[i]);
    put(out, "]}");
}

static const dsr_buffer *find_number(const dsr_context *context, uint32_t number)
{
    const dsr_buffer *buffer = context->buffers;
    while (buffer->capture_number != number)
        buffer = buffer->next;
    return buffer;
}

static void put_json(capture *out)
{
    const dsr_encoder *encoder = out->encoder;
    const dsr_context *context = encoder->context;
    put(out, "{\n\"format\": \"dsrows-capture\",\n\"version\": 1,\n\"device\": \"%s\",\n\"isa\": \"%s\",\n",
        context->backend->name, dsr_isa_name(context->isa));
    put(out, "\"exactness\": \"%s\",\n\"commands\": [", context->exactness == DSR_EXACT_ROW ? "row" : "device");
    for (uint32_t i = 0; i < encoder->n_commands; i++) {
        put(out, i ? ",\n" : "\n");
        put_json_command(out, encoder->commands[i]);
    }
    put(out, "],\n\"buffers\": [");
    for (uint32_t i = 0; i < out->n_buffers; i++)
        put(out, "%s{\"buffer\": %u, \"bytes\": %llu}", i ? ",\n" : "\n", i,
            (unsigned long long)find_number(context, i)->size_bytes);
    put(out, "]\n}\n");
}

/* ---- Graphviz ---- */

static void put_dot_ranges(capture *out, const char *label, const dsr_range *ranges, uint32_t n_ranges)
{
    enum { MAX_SHOWN = 4 };
    const uint32_t n = take_pieces(out, ranges, n_ranges);
    for (uint32_t i = 0; i < n && i < MAX_SHOWN; i++) {
        const piece *p = &out->pieces[i];
        put(out, "%s ", label);
        if (p->buffer)
            put(out, "buffer %u", p->buffer->capture_number);
        else
            put(out, "a destroyed buffer");
        put(out, " [%llu, %llu)\\l", (unsigned long long)p->begin, (unsigned long long)p->end);
    }
    if (n > MAX_SHOWN)
        put(out, "%s %u more\\l", label, n - MAX_SHOWN);
}

static void put_dot_command(capture *out, const dsri_command *command)
{
    put(out, "  c%u [label=\"%u: %s, %u row%s\\l", command->index, command->index, dsri_op_name(command->op),
        command->n_rows, command->n_rows == 1 ? "" : "s");
    for (uint32_t i = 0; i < command->n_launches; i++)
        put(out, "%s x %u\\l", command->kernel_names[i], command->grid[i]);
    put_dot_ranges(out, "reads", command->reads, command->n_reads);
    put_dot_ranges(out, "writes", command->writes, command->n_writes);
    put(out, "\"];\n");
}

static void put_dot_edges(capture *out, const dsri_command *command)
{
    static const char *const labels[8] = {"", "RAW", "WAR", "RAW WAR", "WAW", "RAW WAW", "WAR WAW", "RAW WAR WAW"};
    for (uint32_t i = 0; i < command->n_depends_on; i++) {
        const uint32_t earlier = command->depends_on[i];
        const uint32_t hazards = dsri_command_hazards(out->encoder->commands[earlier], command);
        put(out, "  c%u -> c%u [label=\"%s\"];\n", earlier, command->index, labels[hazards]);
    }
}

static void put_dot(capture *out)
{
    const dsr_encoder *encoder = out->encoder;
    put(out, "digraph dsrows {\n  node [shape=box, fontname=\"monospace\"];\n  edge [fontname=\"monospace\"];\n");
    for (uint32_t i = 0; i < encoder->n_commands; i++)
        put_dot_command(out, encoder->commands[i]);
    for (uint32_t w = 0; w < encoder->n_waves; w++) {
        put(out, "  { rank=same;");
        for (const dsri_command *command = encoder->waves[w].first; command; command = command->next_in_wave)
            put(out, " c%u;", command->index);
        put(out, " }\n");
    }
    for (uint32_t i = 0; i < encoder->n_commands; i++)
        put_dot_edges(out, encoder->commands[i]);
    put(out, "}\n");
}

/* ---- the call ---- */

static uint32_t count_pieces(const dsr_encoder *encoder)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < encoder->n_commands; i++) {
        const dsri_command *command = encoder->commands[i];
        const uint32_t n_reads = cut_ranges(encoder->context, command->reads, command->n_reads, NULL);
        const uint32_t n_writes = cut_ranges(encoder->context, command->writes, command->n_writes, NULL);
        if (n_reads > most)
            most = n_reads;
        if (n_writes > most)
            most = n_writes;
    }
    return most;
}

static dsr_status capture_into(capture *out, dsr_capture_format format)
{
    dsr_context *context = out->encoder->context;
    const size_t pieces_bytes = count_pieces(out->encoder) * sizeof *out->pieces;
    out->pieces = dsri_allocate(&context->allocator, pieces_bytes, _Alignof(piece));
    if (!out->pieces)
        return dsri_fail(context, DSR_ERR_OUT_OF_MEMORY, "capture: %zu bytes could not be allocated", pieces_bytes);
    for (dsr_buffer *buffer = context->buffers; buffer; buffer = buffer->next)
        buffer->capture_number = UINT32_MAX;
    if (format == DSR_CAPTURE_JSON)
        put_json(out);
    else
        put_dot(out);
    flush(out);
    dsri_release(&context->allocator, out->pieces, pieces_bytes);
    return out->has_failed ? dsri_fail(context, DSR_ERR_IO, "capture: the write function stopped it") : DSR_OK;
}

dsr_status dsr_encoder_capture(const dsr_encoder *encoder, dsr_capture_format format, dsr_write_fn write, void *user)
{
    if (!encoder)
        return DSR_ERR_NULL;
    if (!write)
        return dsri_fail(encoder->context, DSR_ERR_NULL, "capture: the write function is null");
    if (format != DSR_CAPTURE_JSON && format != DSR_CAPTURE_DOT)
        return dsri_fail(encoder->context, DSR_ERR_ENUM, "capture: format is %d, which is none", (int)format);
    capture out = {.encoder = encoder, .write = write, .user = user};
    return capture_into(&out, format);
}
