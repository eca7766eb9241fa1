#include "faults.h"

#include <unistd.h>

static void record(block_life *life, const void *bytes, size_t n_bytes)
{
    if (life->result_bytes + n_bytes > life->result_room) {
        life->result_room = 2 * (life->result_bytes + n_bytes);
        life->result = realloc(life->result, life->result_room);
        assert_non_null(life->result);
    }
    memcpy(life->result + life->result_bytes, bytes, n_bytes);
    life->result_bytes += n_bytes;
}

static void record_output(block_life *life, uint32_t n_rows)
{
    record(life, dsr_buffer_data(life->f.output), (size_t)n_rows * BLOCK_HIDDEN * sizeof(float));
}

static void record_state(block_life *life, const dsr_sequence *sequence)
{
    block_state state = block_save(sequence);
    record(life, state.bytes, state.n_bytes);
    free(state.bytes);
}

typedef struct snapshot {
    block_state states[3];
} snapshot;

static snapshot take(const block_life *life)
{
    snapshot s;
    memset(&s, 0, sizeof s);
    for (int i = 0; i < 3; i++)
        if (life->sequences[i] != NULL)
            s.states[i] = block_save(life->sequences[i]);
    return s;
}

/* Whether to make the call again: it failed as expected and left the sequences as they were. */
static int check_failure(block_life *life, dsr_status status, snapshot *before)
{
    for (int i = 0; i < 3; i++) {
        if (status == DSR_OK)
            free(before->states[i].bytes);
        else if (life->sequences[i] != NULL)
            block_assert_unchanged(life->sequences[i], &before->states[i]);
    }
    if (status == DSR_OK)
        return 0;
    assert_status(status, life->expected_failure);
    life->n_failures++;
    assert_in_range(life->n_failures, 1, 10000);
    return 1;
}

#define STEP(call)                                                                                                     \
    do {                                                                                                               \
        snapshot before_ = take(life);                                                                                 \
        const dsr_status status_ = (call);                                                                             \
        if (!check_failure(life, status_, &before_))                                                                   \
            break;                                                                                                     \
    } while (1)

static dsr_status step(block_life *life, uint32_t n_a, uint32_t n_b, int scattered)
{
    const dsr_step_entry entries[2] = {{life->sequences[0], scattered ? 20 : 0, n_a},
                                       {life->sequences[1], scattered ? 3 : n_a, n_b}};
    const dsr_step_desc desc = block_step(&life->f, 2, entries);
    return dsr_attention_decode(life->f.layer, &desc);
}

static void prefill_and_steps(block_life *life)
{
    block_fixture *f = &life->f;
    STEP(dsr_sequence_create(f->layer, life->n_prefill + 20, &life->sequences[0]));
    STEP(dsr_sequence_create(f->layer, 40, &life->sequences[1]));
    STEP(block_prefill(f, life->sequences[0], life->n_prefill));
    record_output(life, life->n_prefill);
    STEP(step(life, 1, 1, 0));
    record_output(life, 2);
    STEP(step(life, 5, 3, 1));
    record_output(life, 25);
    STEP(dsr_sequence_truncate(life->sequences[0], 3));
    STEP(step(life, 2, 6, 0));
    record_output(life, 8);
}

static void forks_and_saves(block_life *life)
{
    block_fixture *f = &life->f;
    STEP(dsr_sequence_fork(life->sequences[0], &life->sequences[2]));
    STEP(step(life, 1, 2, 0)); /* the first write after the fork */
    record_output(life, 3);
    STEP(dsr_sequence_truncate(life->sequences[2], 1));
    STEP(dsr_sequence_grow(life->sequences[1], life->n_prefill + 90));
    STEP(dsr_sequence_save_file(life->sequences[0], life->file));
    STEP(dsr_sequence_load_file(life->sequences[1], life->file));
    STEP(step(life, 2, 2, 0));
    record_output(life, 4);
    for (int i = 0; i < 3; i++)
        record_state(life, life->sequences[i]);
    STEP(dsr_sequence_reset(life->sequences[1]));
    STEP(block_prefill(f, life->sequences[1], 6));
    record_output(life, 6);
    record_state(life, life->sequences[1]);
}

void block_live(block_life *life)
{
    snprintf(life->file, sizeof life->file, "block-life-%ld.seq", (long)getpid());
    prefill_and_steps(life);
    forks_and_saves(life);
    remove(life->file);
}

void block_life_end(block_life *life)
{
    for (int i = 0; i < 3; i++) {
        dsr_sequence_destroy(life->sequences[i]);
        life->sequences[i] = NULL;
    }
    free(life->result);
    life->result = NULL;
    life->result_bytes = life->result_room = 0;
}
