/* Failures under way: every allocation fails once, runs break off, and steps go on from where they were. */
#ifndef TEST_FAULTS_H
#define TEST_FAULTS_H

#include "block_test.h"

/* A life of two sequences: prefill of n_prefill tokens, joint steps with drafts, fork, truncation, growth, save and
 * load, reset. Every call that fails is checked to have changed nothing and made again. */
typedef struct block_life {
    block_fixture f;
    uint32_t n_prefill;
    dsr_status expected_failure;
    uint32_t n_failures;
    dsr_sequence *sequences[3];
    unsigned char *result; /* saved states and outputs along the way */
    size_t result_bytes;
    size_t result_room;
    char file[64];
} block_life;

/* Lives it in an open fixture; `result` is the record, to be compared between lives. */
void block_live(block_life *life);
void block_life_end(block_life *life);

#endif
