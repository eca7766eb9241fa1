/* Random schedules of requests: joins, leaves, forks, truncations, saves, loads, prefill chunks and drafts, on every
 * instruction set and several thread counts. Every output row and every saved state is compared, byte for byte, with a
 * plain run: the request alone, token by token, with the best instruction set and one thread.
 *
 * Schedule i of a seed is a pure function of both. Environment: DSR_SCHEDULE_SEED sets the seed, DSR_SCHEDULE runs one
 * schedule alone, DSR_SOAK_SECONDS goes on with further schedules for that long. */
#ifndef TEST_SCHEDULES_H
#define TEST_SCHEDULES_H

#include <stdint.h>

typedef struct schedule_sizes {
    uint32_t n_schedules;
    uint32_t longest_stream; /* tokens of the longest plain run */
    uint32_t n_tokens;       /* of a schedule, roughly; the scalar level gets less */
    uint32_t n_scalar_tokens;
} schedule_sizes;

/* Runs them as the one test of a cmocka group; returns what main returns. */
int schedules_main(const schedule_sizes *sizes);

#endif
