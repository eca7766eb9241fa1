/* The encoder: an arena of commands, the hazards among them, and their runs. */
#include "core/encoder_struct.h"

#include "core/ranges.h"

#include <string.h>

static const char *const op_names[DSRI_N_OPS] = {
    [DSRI_OP_SPARSE_ATTENTION] = "sparse-attention",
    [DSRI_OP_FLASH_ATTENTION] = "flash-attention",
    [DSRI_OP_INDEXER] = "indexer",
    [DSRI_OP_COMPRESSOR] = "compressor",
    [DSRI_OP_GATHER] = "gather",
    [DSRI_OP_COPY] = "copy",
    [DSRI_OP_ROPE] = "rope",
    [DSRI_OP_FAKE_QUANT] = "fake-quant",
    [DSRI_OP_RMS_NORM] = "rms-norm",
    [DSRI_OP_PROJECTION] = "projection",
    [DSRI_OP_APPEND] = "append",
    [DSRI_OP_CONVERT] = "convert",
    [DSRI_OP_CUSTOM] = "custom",
};

const char *dsri_op_name(dsri_op op)
{
    return (size_t)op < DSRI_N_OPS ? op_names[op] : "?";
}

static dsr_status fail_memory(dsr_context *context)
{
    return dsri_fail(context, DSR_ERR_OUT_OF_MEMORY, "encoder: memory for a command could not be allocated");
}

/* ---- creation and destruction ---- */

static void enter_encoder(dsr_encoder *encoder)
{
    dsr_context *context = encoder->context;
    encoder->next = context->encoders;
    if (encoder->next)
        encoder->next->previous = encoder;
    context->encoders = encoder;
}

static void leave_context(dsr_encoder *encoder)
{
    if (encoder->previous)
        encoder->previous->next = encoder->next;
    else
        encoder->context->encoders = encoder->next;
    if (encoder->next)
        encoder->next->previous = encoder->previous;
}

dsr_status dsr_encoder_create(dsr_context *context, dsr_encoder **encoder)
{
    if (!context)
        return DSR_ERR_NULL;
    dsr_status status = dsri_context_check_usable(context);
    if (status != DSR_OK)
        return status;
    if (!encoder)
        return dsri_fail(context, DSR_ERR_NULL, "encoder: the pointer for the result is null");
    dsr_encoder *created = dsri_allocate(&context->allocator, sizeof *created, _Alignof(dsr_encoder));
    if (!created)
        return dsri_fail(context, DSR_ERR_OUT_OF_MEMORY, "encoder: %zu bytes could not be allocated", sizeof *created);
    *created = (dsr_encoder){.context = context};
    dsri_arena_init(&created->arena, &context->allocator);
    if (context->backend->encoder_open) {
        status = context->backend->encoder_open(context->device, &created->backend_state);
        if (status != DSR_OK) {
            dsri_release(&context->allocator, created, sizeof *created);
            return status;
        }
    }
    enter_encoder(created);
    *encoder = created;
    return DSR_OK;
}

/* Waits for a run in flight; what it returns was, or would have been, the result of that run. */
static dsr_status drain(dsr_encoder *encoder)
{
    dsr_context *context = encoder->context;
    if (!encoder->is_in_flight)
        return DSR_OK;
    if (dsri_context_is_forked(context))
        return dsri_fail(context, DSR_ERR_FORKED,
                         "encoder: its context was made before a fork and is used in the child");
    encoder->is_in_flight = 0;
    return context->backend->wait(context->device, encoder->backend_state);
}

void dsr_encoder_destroy(dsr_encoder *encoder)
{
    if (!encoder)
        return;
    dsr_context *context = encoder->context;
    (void)drain(encoder);
    if (context->backend->encoder_close)
        context->backend->encoder_close(context->device, encoder->backend_state, dsri_context_is_forked(context));
    leave_context(encoder);
    dsri_arena_free(&encoder->arena);
    dsri_release(&context->allocator, encoder->commands, encoder->commands_capacity * sizeof *encoder->commands);
    dsri_release(&context->allocator, encoder->waves, encoder->waves_capacity * sizeof *encoder->waves);
    dsri_release(&context->allocator, encoder, sizeof *encoder);
    dsri_context_release_if_done(context);
}

/* ---- appending ---- */

dsr_context *dsri_encoder_context(const dsr_encoder *encoder)
{
    return encoder->context;
}

/* A context that is destroyed first stays for its encoders to be destroyed, and for nothing else. */
static dsr_status check_context(const dsr_encoder *encoder)
{
    return encoder->context->is_destroyed ? dsri_context_check_usable(encoder->context) : DSR_OK;
}

dsr_status dsri_encoder_check_open(dsr_encoder *encoder)
{
    if (encoder->is_submitted)
        return dsri_fail(encoder->context, DSR_ERR_STATE,
                         "encoder: it was submitted and takes commands after a reset only");
    return check_context(encoder);
}

/* Makes room for one more element in a grown array. */
static dsr_status grow(dsr_encoder *encoder, void **array, uint32_t *capacity, uint32_t n, size_t element_bytes)
{
    const dsr_allocator *allocator = &encoder->context->allocator;
    if (n < *capacity)
        return DSR_OK;
    if (*capacity > UINT32_MAX / 4)
        return fail_memory(encoder->context);
    const uint32_t new_capacity = *capacity ? *capacity * 2 : 64;
    void *grown = dsri_allocate(allocator, new_capacity * element_bytes, _Alignof(max_align_t));
    if (!grown)
        return fail_memory(encoder->context);
    if (*array)
        memcpy(grown, *array, *capacity * element_bytes);
    dsri_release(allocator, *array, *capacity * element_bytes);
    *array = grown;
    *capacity = new_capacity;
    return DSR_OK;
}

static dsr_status grow_arrays(dsr_encoder *encoder)
{
    void *commands = encoder->commands, *waves = encoder->waves;
    dsr_status status =
        grow(encoder, &commands, &encoder->commands_capacity, encoder->n_commands, sizeof *encoder->commands);
    encoder->commands = commands;
    if (status == DSR_OK)
        status = grow(encoder, &waves, &encoder->waves_capacity, encoder->n_waves, sizeof *encoder->waves);
    encoder->waves = waves;
    return status;
}

static dsr_range *copy_ranges(dsr_encoder *encoder, const dsr_range *ranges, uint32_t n, uint32_t *n_left)
{
    dsr_range *copy = dsri_arena_take(&encoder->arena, n * sizeof *copy, _Alignof(dsr_range));
    if (!copy)
        return NULL;
    if (n)
        memcpy(copy, ranges, n * sizeof *copy);
    *n_left = dsri_ranges_normalize(copy, n);
    return copy;
}

/* Copies what the caller gave into the arena. Null: no memory. */
static dsri_command *copy_command(dsr_encoder *encoder, const dsri_command *given, const dsri_ranges *ranges)
{
    dsri_arena *arena = &encoder->arena;
    dsri_command *command = dsri_arena_take(arena, sizeof *command, _Alignof(dsri_command));
    void *plan = dsri_arena_take(arena, given->plan_bytes, 64);
    if (!command || !plan)
        return NULL;
    *command = *given;
    memcpy(plan, given->plan, given->plan_bytes);
    command->plan = plan;
    command->reads = copy_ranges(encoder, ranges->reads, ranges->n_reads, &command->n_reads);
    command->writes = copy_ranges(encoder, ranges->writes, ranges->n_writes, &command->n_writes);
    return command->reads && command->writes ? command : NULL;
}

uint32_t dsri_command_hazards(const dsri_command *earlier, const dsri_command *later)
{
    uint32_t hazards = 0;
    if (dsri_ranges_overlap(earlier->writes, earlier->n_writes, later->reads, later->n_reads))
        hazards |= DSRI_HAZARD_READ_AFTER_WRITE;
    if (dsri_ranges_overlap(earlier->reads, earlier->n_reads, later->writes, later->n_writes))
        hazards |= DSRI_HAZARD_WRITE_AFTER_READ;
    if (dsri_ranges_overlap(earlier->writes, earlier->n_writes, later->writes, later->n_writes))
        hazards |= DSRI_HAZARD_WRITE_AFTER_WRITE;
    return hazards;
}

static uint32_t highest_bit(uint64_t word)
{
    uint32_t bit = 0;
    for (uint32_t step = 32; step > 0; step /= 2) {
        if (word >> step) {
            word >>= step;
            bit += step;
        }
    }
    return bit;
}

/* Walks the earlier commands from the newest on and skips those already waited for through another, so that a chain of
 * commands costs one comparison per append. Sets the bits of `ancestors` and `direct`; returns the number of the
 * latter. */
static uint32_t find_hazards(const dsr_encoder *encoder, dsri_command *command, uint64_t *ancestors, uint64_t *direct)
{
    uint32_t n_direct = 0;
    for (uint32_t w = (command->index + 63) / 64; w-- > 0;) {
        const uint32_t n_left = command->index - w * 64;
        uint64_t untested = n_left < 64 ? ((uint64_t)1 << n_left) - 1 : UINT64_MAX;
        while ((untested &= ~ancestors[w]) != 0) {
            const uint32_t bit = highest_bit(untested);
            const dsri_command *earlier = encoder->commands[w * 64 + bit];
            untested &= ~((uint64_t)1 << bit);
            if (!dsri_command_hazards(earlier, command))
                continue;
            for (uint32_t i = 0; i < (earlier->index + 63) / 64; i++)
                ancestors[i] |= earlier->ancestors[i];
            ancestors[w] |= (uint64_t)1 << bit;
            direct[w] |= (uint64_t)1 << bit;
            n_direct++;
            if (command->wave <= earlier->wave)
                command->wave = earlier->wave + 1;
        }
    }
    return n_direct;
}

/* Fills depends_on, ancestors and wave. */
static int order_command(dsr_encoder *encoder, dsri_command *command)
{
    const uint32_t n_words = (command->index + 63) / 64;
    uint64_t *ancestors = dsri_arena_take(&encoder->arena, 2 * n_words * sizeof *ancestors, _Alignof(uint64_t));
    if (!ancestors)
        return 0;
    memset(ancestors, 0, 2 * n_words * sizeof *ancestors);
    uint64_t *direct = ancestors + n_words;
    command->ancestors = ancestors;
    command->n_depends_on = find_hazards(encoder, command, ancestors, direct);
    uint32_t *depends_on =
        dsri_arena_take(&encoder->arena, command->n_depends_on * sizeof *depends_on, _Alignof(uint32_t));
    if (!depends_on)
        return 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < command->index; i++)
        if (direct[i / 64] >> (i % 64) & 1)
            depends_on[n++] = i;
    command->depends_on = depends_on;
    return 1;
}

/* The command is complete; from here on nothing fails. */
static void enter_command(dsr_encoder *encoder, dsri_command *command)
{
    dsri_wave *wave = &encoder->waves[command->wave];
    if (command->wave == encoder->n_waves) {
        *wave = (dsri_wave){.first = command};
        encoder->n_waves++;
    } else {
        wave->last->next_in_wave = command;
    }
    wave->last = command;
    wave->n_commands++;
    encoder->commands[encoder->n_commands++] = command;
}

static dsr_status build_command(dsr_encoder *encoder, const dsri_command *given, const dsri_ranges *ranges)
{
    dsr_context *context = encoder->context;
    dsri_command *command = copy_command(encoder, given, ranges);
    if (!command || !order_command(encoder, command))
        return fail_memory(context);
    const dsr_status status = context->backend->prepare(context->device, encoder->backend_state, command);
    if (status == DSR_OK)
        enter_command(encoder, command);
    return status;
}

dsr_status dsri_encoder_append(dsr_encoder *encoder, dsri_op op, uint32_t n_rows, const void *plan, size_t plan_bytes,
                               const dsri_ranges *ranges)
{
    const dsri_command given = {
        .op = op, .n_rows = n_rows, .plan = plan, .plan_bytes = plan_bytes, .index = encoder->n_commands};
    dsr_status status = dsri_encoder_check_open(encoder);
    if (status == DSR_OK)
        status = grow_arrays(encoder);
    if (status != DSR_OK)
        return status;
    const dsri_arena_mark mark = dsri_arena_get_mark(&encoder->arena);
    status = build_command(encoder, &given, ranges);
    if (status != DSR_OK)
        dsri_arena_rewind(&encoder->arena, mark);
    return status;
}

/* ---- running ---- */

void dsri_encoders_forget_memory(dsr_context *context, const dsr_buffer *buffer, const char *what)
{
    const uint64_t begin = (uintptr_t)buffer->data;
    const dsr_range gone = {begin, begin + buffer->size_bytes};
    for (dsr_encoder *encoder = context->encoders; encoder; encoder = encoder->next) {
        for (uint32_t i = 0; i < encoder->n_commands && !encoder->lost_memory; i++) {
            const dsri_command *command = encoder->commands[i];
            if (dsri_ranges_overlap(command->reads, command->n_reads, &gone, 1) ||
                dsri_ranges_overlap(command->writes, command->n_writes, &gone, 1))
                encoder->lost_memory = what;
        }
    }
}

static dsr_status check_runnable(const dsr_encoder *encoder)
{
    dsr_context *context = encoder->context;
    const dsr_status status = dsri_context_check_usable(context);
    if (status == DSR_OK && encoder->lost_memory)
        return dsri_fail(context, DSR_ERR_STATE, "encoder: a buffer that its commands use %s", encoder->lost_memory);
    return status;
}

/* Of a runnable encoder. */
static dsr_status run_commands(dsr_encoder *encoder)
{
    dsr_context *context = encoder->context;
    dsr_status status = context->backend->runs_in_order ? DSR_OK : drain(encoder);
    if (status == DSR_OK && encoder->n_waves > 0)
        status = context->backend->submit(context->device, encoder->backend_state, encoder->waves, encoder->n_waves);
    if (status != DSR_OK)
        return status;
    encoder->is_submitted = 1;
    encoder->is_in_flight = context->backend->wait && encoder->n_waves > 0;
    return DSR_OK;
}

dsr_status dsr_encoder_submit(dsr_encoder *encoder)
{
    if (!encoder)
        return DSR_ERR_NULL;
    if (encoder->is_submitted)
        return dsri_fail(encoder->context, DSR_ERR_STATE, "encoder: it was submitted already; replay runs it again");
    const dsr_status status = check_runnable(encoder);
    return status == DSR_OK ? run_commands(encoder) : status;
}

void dsri_encoder_guard_replays(dsr_encoder *encoder, dsri_replay_guard *guard, void *owner)
{
    encoder->replay_guard = guard;
    encoder->replay_owner = owner;
}

dsr_status dsr_encoder_replay(dsr_encoder *encoder)
{
    if (!encoder)
        return DSR_ERR_NULL;
    if (!encoder->is_submitted)
        return dsri_fail(encoder->context, DSR_ERR_STATE, "encoder: replay before submit");
    dsr_status status = check_runnable(encoder);
    if (status != DSR_OK)
        return status;
    const char *objection = encoder->replay_guard ? encoder->replay_guard(encoder->replay_owner) : NULL;
    if (objection)
        return dsri_fail(encoder->context, DSR_ERR_STATE, "encoder: %s", objection);
    return run_commands(encoder);
}

dsr_status dsr_encoder_wait(dsr_encoder *encoder)
{
    if (!encoder)
        return DSR_ERR_NULL;
    const dsr_status status = check_context(encoder);
    return status == DSR_OK ? drain(encoder) : status;
}

dsr_status dsr_encoder_set_stream(dsr_encoder *encoder, void *stream)
{
    if (!encoder)
        return DSR_ERR_NULL;
    dsr_context *context = encoder->context;
    dsr_status status = check_context(encoder);
    if (status != DSR_OK)
        return status;
    if (!context->backend->encoder_set_stream)
        return dsri_fail(context, DSR_ERR_UNSUPPORTED_DEVICE, "encoder: the %s back end has no streams",
                         context->backend->name);
    status = drain(encoder);
    return status == DSR_OK ? context->backend->encoder_set_stream(context->device, encoder->backend_state, stream)
                            : status;
}

dsr_status dsr_encoder_reset(dsr_encoder *encoder)
{
    if (!encoder)
        return DSR_ERR_NULL;
    dsr_context *context = encoder->context;
    dsr_status status = check_context(encoder);
    if (status != DSR_OK)
        return status;
    status = drain(encoder);
    if (context->backend->encoder_reset)
        context->backend->encoder_reset(context->device, encoder->backend_state);
    dsri_arena_rewind(&encoder->arena, (dsri_arena_mark){.current = NULL});
    encoder->n_commands = 0;
    encoder->n_waves = 0;
    encoder->is_submitted = 0;
    encoder->lost_memory = NULL;
    encoder->replay_guard = NULL;
    return status;
}
