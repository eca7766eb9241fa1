/* Insides of an encoder, for encoder.c and capture.c. */
#ifndef DSRI_ENCODER_STRUCT_H
#define DSRI_ENCODER_STRUCT_H

#include "core/arena.h"
#include "core/context_internal.h"

struct dsr_encoder {
    dsr_context *context;
    dsr_encoder *previous;
    dsr_encoder *next;
    void *backend_state;
    dsri_arena arena;
    dsri_command **commands;
    dsri_wave *waves;
    uint32_t n_commands;
    uint32_t n_waves;
    uint32_t commands_capacity;
    uint32_t waves_capacity;
    int is_submitted;
    int is_in_flight;
    const char *lost_memory; /* what became of a buffer under a command, so that no run may use it; null: nothing */
    dsri_replay_guard *replay_guard; /* null: none */
    void *replay_owner;
};

enum { DSRI_HAZARD_READ_AFTER_WRITE = 1, DSRI_HAZARD_WRITE_AFTER_READ = 2, DSRI_HAZARD_WRITE_AFTER_WRITE = 4 };

/* Why a command may not start before an earlier one is done; 0: it may. */
uint32_t dsri_command_hazards(const dsri_command *earlier, const dsri_command *later);

#endif
