/* Laying out, running and comparing placed cases. */
#define _DEFAULT_SOURCE
#include "bit_case_ops.h"
#include "bit_diff.h"
#include "need_memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Address space only; segments take what they need. */
static const size_t reserve_bytes = (size_t)1 << 30;

static int fail(char text[BIT_TEXT_BYTES], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, BIT_TEXT_BYTES, format, arguments);
    va_end(arguments);
    return -1;
}

static void stop(const char *what)
{
    fprintf(stderr, "test harness: %s\n", what);
    exit(EXIT_FAILURE);
}

/* ---- building --------------------------------------------------------------------------------------------- */

/* shift: bytes off 64-byte alignment in a misaligned layout. */
static uint32_t add_segment(bit_placement *p, bit_segment_kind kind, dsr_dtype dtype, size_t n, size_t shift)
{
    const size_t element = dsr_dtype_size(dtype);
    if (p->n_segments == BIT_MAX_SEGMENTS) {
        stop("too many segments");
    }
    bit_segment *segment = &p->segments[p->n_segments];
    segment->kind = kind;
    segment->dtype = dtype;
    segment->guarded = guarded_allocate(&p->memory, n * element, p->layout.misaligned ? shift : 0, p->layout.poison);
    if (!segment->guarded.memory) {
        stop("out of reserved address space");
    }
    return p->n_segments++;
}

uint32_t bit_add_segment(bit_placement *p, bit_segment_kind kind, dsr_dtype dtype, size_t n)
{
    return add_segment(p, kind, dtype, n, dsr_dtype_size(dtype));
}

uint32_t bit_add_packed(bit_placement *p, bit_segment_kind kind, size_t n_bytes)
{
    return add_segment(p, kind, DSR_DTYPE_U8, (n_bytes + 15) / 16 * 16, 16);
}

void bit_put(bit_placement *p, uint32_t segment, size_t at, const bit_array *array, size_t first, size_t n)
{
    const size_t element = dsr_dtype_size(array->dtype);
    memcpy(p->segments[segment].guarded.memory + at * element, (const uint8_t *)array->data + first * element,
           n * element);
}

uint32_t bit_add_input(bit_placement *p, const bit_array *array)
{
    const uint32_t segment = bit_add_segment(p, BIT_SEGMENT_INPUT, array->dtype, array->n);
    bit_put(p, segment, 0, array, 0, array->n);
    return segment;
}

uint32_t bit_add_rows(bit_placement *p, const bit_array *array, size_t row_elements, uint64_t *row_stride)
{
    for (uint32_t s = 0; s < p->n_segments; s++) {
        if (p->segments[s].source == array->data) {
            *row_stride = p->segments[s].row_stride;
            return s;
        }
    }
    const size_t n_rows = array->n / row_elements;
    const uint64_t stride = bit_draw_stride(p, row_elements);
    const uint32_t segment =
        bit_add_segment(p, BIT_SEGMENT_INPUT, array->dtype, (size_t)(stride * (n_rows - 1)) + row_elements);
    for (size_t r = 0; r < n_rows; r++) {
        bit_put(p, segment, (size_t)stride * r, array, row_elements * r, row_elements);
    }
    p->segments[segment].source = array->data;
    p->segments[segment].row_stride = stride;
    *row_stride = stride;
    return segment;
}

void bit_add_piece(bit_placement *p, uint32_t segment, size_t at, uint32_t slot, uint32_t output, size_t first,
                   size_t n)
{
    const bit_piece piece = {segment, p->order[slot], output, at, first, n};
    if (p->n_pieces == BIT_MAX_PIECES) {
        stop("too many pieces");
    }
    p->pieces[p->n_pieces++] = piece;
}

uint64_t bit_draw_places(bit_placement *p, const uint64_t *lengths, uint64_t *places)
{
    uint32_t order[BIT_MAX_ROWS];
    uint64_t at = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        order[i] = i;
    }
    if (p->layout.seed != 0) {
        random_shuffle(&p->random, order, p->n);
    }
    for (uint32_t i = 0; i < p->n; i++) {
        at += p->layout.seed != 0 ? random_below(&p->random, 3) : 0;
        places[order[i]] = at;
        at += lengths[order[i]];
    }
    return at;
}

uint64_t bit_draw_stride(bit_placement *p, uint64_t least)
{
    static const uint32_t extra[4] = {0, 1, 4, 160};
    return p->layout.seed != 0 ? least + extra[random_below(&p->random, 4)] : least;
}

static void snapshot(bit_segment *segment)
{
    const size_t n = segment->guarded.field_bytes;
    segment->initial = need_memory(malloc(n));
    segment->expected = need_memory(malloc(n));
    memcpy(segment->initial, segment->guarded.field, n);
}

static void seal(bit_placement *p)
{
    for (uint32_t s = 0; s < p->n_segments; s++) {
        bit_segment *segment = &p->segments[s];
        if (segment->kind == BIT_SEGMENT_INPUT) {
            guarded_protect(segment->guarded.field, segment->guarded.field_bytes, GUARDED_READ);
        } else {
            snapshot(segment);
        }
    }
}

/* ---- views ------------------------------------------------------------------------------------------------ */

dsr_view bit_view(const bit_placement *p, uint32_t segment)
{
    const bit_segment *s = &p->segments[segment];
    const dsr_view view = {s->buffer, (uint64_t)(s->guarded.memory - s->guarded.field), s->guarded.n_bytes, s->dtype};
    return view;
}

dsr_view bit_workspace_view(const bit_placement *p)
{
    const dsr_view none = {NULL, 0, 0, DSR_DTYPE_U8};
    return p->has_workspace ? bit_view(p, p->workspace) : none;
}

static void unwrap(bit_placement *p)
{
    for (uint32_t s = 0; s < p->n_segments; s++) {
        dsr_buffer_destroy(p->segments[s].buffer);
        p->segments[s].buffer = NULL;
    }
}

static int is_on_device(const dsr_context *context)
{
    return dsr_context_device(context) != DSR_DEVICE_CPU;
}

/* A field as the context's device sees it: the field itself, or a copy of it in device memory. */
static dsr_status make_buffer(dsr_context *context, bit_segment *segment)
{
    const guarded_segment *g = &segment->guarded;
    if (!is_on_device(context)) {
        return dsr_buffer_wrap(context, g->field, g->field_bytes, &segment->buffer);
    }
    const dsr_status status = dsr_buffer_create(context, g->field_bytes, &segment->buffer);
    return status == DSR_OK ? dsr_buffer_write(segment->buffer, 0, g->field, g->field_bytes) : status;
}

static dsr_status wrap(bit_placement *p, dsr_context *context)
{
    for (uint32_t s = 0; s < p->n_segments; s++) {
        const dsr_status status = make_buffer(context, &p->segments[s]);
        if (status != DSR_OK) {
            unwrap(p);
            return status;
        }
    }
    return DSR_OK;
}

static int add_workspace(bit_placement *p, dsr_context *context, char text[BIT_TEXT_BYTES])
{
    uint64_t n_bytes = 0;
    if (!p->c->op->workspace) {
        return 0;
    }
    dsr_status status = wrap(p, context);
    if (status == DSR_OK) {
        status = p->c->op->workspace(p, context, &n_bytes);
        unwrap(p);
    }
    if (status != DSR_OK) {
        return fail(text, "workspace size: %s: %s", dsr_status_name(status), dsr_context_error_text(context));
    }
    if (n_bytes > 0) {
        p->workspace = bit_add_segment(p, BIT_SEGMENT_WORKSPACE, DSR_DTYPE_U8, (size_t)n_bytes);
        p->has_workspace = 1;
    }
    return 0;
}

bit_placement *bit_place(const bit_case *c, const uint32_t *order, uint32_t n, const bit_layout *layout,
                         dsr_context *context, char text[BIT_TEXT_BYTES])
{
    bit_placement *p = need_memory(calloc(1, sizeof *p));
    need_memory(guarded_open(&p->memory, reserve_bytes) == 0 ? p : NULL);
    p->c = c;
    p->layout = *layout;
    p->context = context;
    p->random = random_open(layout->seed, 0x1a70);
    p->n = n;
    memcpy(p->order, order, n * sizeof *order);
    c->op->place(p);
    if (add_workspace(p, context, text) != 0) {
        bit_placement_free(p);
        return NULL;
    }
    seal(p);
    return p;
}

void bit_placement_free(bit_placement *p)
{
    for (uint32_t s = 0; s < p->n_segments; s++) {
        free(p->segments[s].initial);
        free(p->segments[s].expected);
    }
    guarded_close(&p->memory);
    free(p);
}

/* ---- scrambling what no range covers ---------------------------------------------------------------------- */

static void mark(const guarded_segment *segment, const dsr_range *ranges, uint32_t n, uint8_t *covered)
{
    const uint64_t begin = (uint64_t)(uintptr_t)segment->field, end = begin + segment->field_bytes;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t first = ranges[i].begin > begin ? ranges[i].begin : begin;
        const uint64_t last = ranges[i].end < end ? ranges[i].end : end;
        if (first < last) {
            memset(covered + (first - begin), 1, (size_t)(last - first));
        }
    }
}

/* Flip the bits of every byte of a field that is not covered. Twice restores it. */
static void flip(const guarded_segment *segment, const uint8_t *covered)
{
    for (size_t i = 0; i < segment->field_bytes; i++) {
        segment->field[i] = (uint8_t)(segment->field[i] ^ (covered[i] ? 0 : 0xa5));
    }
}

static void hide_uncovered_pages(const guarded_memory *memory, const guarded_segment *segment, const uint8_t *covered)
{
    for (size_t at = 0; at < segment->field_bytes; at += memory->page_bytes) {
        if (!memchr(covered + at, 1, memory->page_bytes)) {
            guarded_protect(segment->field + at, memory->page_bytes, GUARDED_NONE);
        }
    }
}

static void cover(const bit_segment *segment, const dsr_encoder *encoder, uint8_t *covered)
{
    memset(covered, 0, segment->guarded.field_bytes);
    for (uint32_t i = 0; i < dsr_encoder_n_commands(encoder); i++) {
        dsr_command_info info = {.struct_size = sizeof info};
        if (dsr_encoder_command(encoder, i, &info) != DSR_OK) {
            stop("no command to look at");
        }
        mark(&segment->guarded, info.reads, info.n_reads, covered);
        mark(&segment->guarded, info.writes, info.n_writes, covered);
    }
}

static void scramble(bit_placement *p, const dsr_encoder *encoder, int on)
{
    for (uint32_t s = 0; s < p->n_segments; s++) {
        bit_segment *segment = &p->segments[s];
        const guarded_segment *g = &segment->guarded;
        uint8_t *covered = need_memory(malloc(g->field_bytes));
        cover(segment, encoder, covered);
        guarded_protect(g->field, g->field_bytes, GUARDED_READ_WRITE);
        flip(g, covered);
        if (segment->kind == BIT_SEGMENT_INPUT) {
            guarded_protect(g->field, g->field_bytes, GUARDED_READ);
        }
        if (on) {
            hide_uncovered_pages(&p->memory, g, covered);
        }
        free(covered);
    }
}

/* ---- running ---------------------------------------------------------------------------------------------- */

static void restore(bit_placement *p)
{
    for (uint32_t s = 0; s < p->n_segments; s++) {
        const bit_segment *segment = &p->segments[s];
        if (segment->initial) {
            memcpy(segment->guarded.field, segment->initial, segment->guarded.field_bytes);
        }
    }
}

/* Moves the fields that a run may write between host and device memory, where they are not one. */
static dsr_status move_fields(bit_placement *p, const dsr_context *context, int to_device)
{
    dsr_status status = DSR_OK;
    for (uint32_t s = 0; s < p->n_segments && status == DSR_OK && is_on_device(context); s++) {
        const bit_segment *segment = &p->segments[s];
        if (segment->kind != BIT_SEGMENT_INPUT) {
            const guarded_segment *g = &segment->guarded;
            status = to_device ? dsr_buffer_write(segment->buffer, 0, g->field, g->field_bytes)
                               : dsr_buffer_read(segment->buffer, 0, g->field, g->field_bytes);
        }
    }
    return status;
}

static dsr_status submit(bit_placement *p, dsr_context *context, dsr_encoder *encoder, const bit_run *run)
{
    dsr_status status = dsr_encoder_submit(encoder);
    for (uint32_t i = 0; i < run->n_replays && status == DSR_OK; i++) {
        status = dsr_encoder_wait(encoder);
        restore(p);
        status = status == DSR_OK ? move_fields(p, context, 1) : status;
        status = status == DSR_OK ? dsr_encoder_replay(encoder) : status;
    }
    status = status == DSR_OK ? dsr_encoder_wait(encoder) : status;
    return status == DSR_OK ? move_fields(p, context, 0) : status;
}

/* Encode and run in the caller's mode; 0 if the calls succeed and leave the mode alone. */
static int run_commands(bit_placement *p, dsr_context *context, dsr_encoder *encoder, const bit_run *run,
                        char text[BIT_TEXT_BYTES])
{
    const uint64_t before = caller_fp_set(run->fp_mode), word = caller_fp_word();
    dsr_status status = p->c->op->encode(p, encoder);
    if (status == DSR_OK && run->scramble) {
        scramble(p, encoder, 1);
    }
    if (status == DSR_OK) {
        status = submit(p, context, encoder, run);
        if (run->scramble) {
            scramble(p, encoder, 0);
        }
    }
    const uint64_t word_after = caller_fp_word();
    caller_fp_restore(before);
    if (status != DSR_OK) {
        return fail(text, "%s: %s", dsr_status_name(status), dsr_context_error_text(context));
    }
    if (word_after != word) {
        return fail(text, "the caller's floating-point mode was %llx and became %llx", (unsigned long long)word,
                    (unsigned long long)word_after);
    }
    return 0;
}

static int run_placement(bit_placement *p, dsr_context *context, const bit_run *run, char text[BIT_TEXT_BYTES])
{
    dsr_encoder *encoder = NULL;
    int result = -1;

    restore(p);
    dsr_status status = wrap(p, context);
    if (status == DSR_OK) {
        status = dsr_encoder_create(context, &encoder);
    }
    if (status == DSR_OK) {
        result = run_commands(p, context, encoder, run, text);
    } else {
        fail(text, "%s: %s", dsr_status_name(status), dsr_context_error_text(context));
    }
    dsr_encoder_destroy(encoder);
    unwrap(p);
    return result;
}

/* ---- comparing -------------------------------------------------------------------------------------------- */

static void expect(bit_placement *p, const bit_results *expected)
{
    for (uint32_t s = 0; s < p->n_segments; s++) {
        if (p->segments[s].expected) {
            memcpy(p->segments[s].expected, p->segments[s].initial, p->segments[s].guarded.field_bytes);
        }
    }
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        const bit_piece *piece = &p->pieces[i];
        const bit_segment *segment = &p->segments[piece->segment];
        const bit_array *array = &expected->outputs[piece->row][piece->output];
        const size_t element = dsr_dtype_size(array->dtype);
        const size_t at = (size_t)(segment->guarded.memory - segment->guarded.field) + piece->at * element;
        if (piece->first + piece->n > array->n || array->dtype != segment->dtype) {
            stop("a piece and its result do not fit");
        }
        memcpy(segment->expected + at, (const uint8_t *)array->data + piece->first * element, piece->n * element);
    }
}

static int report(const bit_placement *p, uint32_t s, size_t at, char text[BIT_TEXT_BYTES])
{
    const bit_segment *segment = &p->segments[s];
    const size_t element = dsr_dtype_size(segment->dtype);
    const size_t before = (size_t)(segment->guarded.memory - segment->guarded.field);
    char values[128];

    if (at < before || at >= before + segment->guarded.n_bytes) {
        return fail(text, "byte %zd outside segment %u of %zu bytes was written: %02x, was %02x",
                    (ptrdiff_t)at - (ptrdiff_t)before, s, segment->guarded.n_bytes, segment->guarded.field[at],
                    segment->expected[at]);
    }
    bit_diff_describe(segment->guarded.memory, segment->expected + before, at - before, segment->dtype, values,
                      sizeof values);
    const size_t index = (at - before) / element;
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        const bit_piece *piece = &p->pieces[i];
        if (piece->segment == s && index >= piece->at && index < piece->at + piece->n) {
            return fail(text, "row %u output %u element %zu: %s", piece->row, piece->output,
                        index - piece->at + piece->first, values);
        }
    }
    return fail(text, "element %zu of segment %u belongs to no row and was written: %s", index, s, values);
}

static int compare(const bit_placement *p, char text[BIT_TEXT_BYTES])
{
    for (uint32_t s = 0; s < p->n_segments; s++) {
        const bit_segment *segment = &p->segments[s];
        const guarded_segment *g = &segment->guarded;
        if (segment->kind == BIT_SEGMENT_INPUT) {
            continue;
        }
        if (segment->kind == BIT_SEGMENT_WORKSPACE) {
            memcpy(segment->expected + (g->memory - g->field), g->memory, g->n_bytes);
        }
        const size_t at = bit_diff_first(g->field, segment->expected, g->field_bytes);
        if (at < g->field_bytes) {
            return report(p, s, at, text);
        }
    }
    return 0;
}

static void add_context(const bit_placement *p, dsr_context *context, const bit_run *run, char text[BIT_TEXT_BYTES])
{
    char what[BIT_TEXT_BYTES];
    memcpy(what, text, sizeof what);
    what[BIT_TEXT_BYTES - 1] = '\0';
    fail(text, "%s %s seed %llu, %u rows from %u, %s, %u threads, layout %llu%s, poison %02x, caller's mode %s: %s",
         p->c->op->name, p->c->op->shapes[p->c->shape], (unsigned long long)p->c->seed, p->n, p->order[0],
         dsr_isa_name(dsr_context_isa(context)), dsr_context_n_threads(context), (unsigned long long)p->layout.seed,
         p->layout.misaligned ? " misaligned" : "", p->layout.poison, caller_fp_mode_name(run->fp_mode), what);
}

int bit_execute(bit_placement *p, dsr_context *context, const bit_run *run, const bit_results *expected,
                char text[BIT_TEXT_BYTES])
{
    expect(p, expected);
    int result = run_placement(p, context, run, text);
    if (result == 0) {
        result = compare(p, text);
    }
    if (result != 0) {
        add_context(p, context, run, text);
    }
    return result;
}

static bit_array *output_of(const bit_placement *p, const bit_piece *piece, bit_results *results)
{
    bit_array *array = &results->outputs[piece->row][piece->output];
    if (!array->data) {
        size_t n = 0;
        for (uint32_t i = 0; i < p->n_pieces; i++) {
            const bit_piece *other = &p->pieces[i];
            if (other->row == piece->row && other->output == piece->output && other->first + other->n > n) {
                n = other->first + other->n;
            }
        }
        *array = bit_array_new(p->segments[piece->segment].dtype, n);
    }
    return array;
}

bit_results *bit_execute_read(bit_placement *p, dsr_context *context, const bit_run *run, char text[BIT_TEXT_BYTES])
{
    if (run_placement(p, context, run, text) != 0) {
        add_context(p, context, run, text);
        return NULL;
    }
    bit_results *results = need_memory(calloc(1, sizeof *results));
    results->n_rows = p->c->n_rows;
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        const bit_piece *piece = &p->pieces[i];
        bit_array *array = output_of(p, piece, results);
        const size_t element = dsr_dtype_size(array->dtype);
        memcpy((uint8_t *)array->data + piece->first * element,
               p->segments[piece->segment].guarded.memory + piece->at * element, piece->n * element);
    }
    return results;
}
