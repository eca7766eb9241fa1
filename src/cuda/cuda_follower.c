/* Which command another one's kernel does on the way. */
#include "cuda/cuda_follower.h"

#include "core/ranges.h"
#include "cuda/cuda_backend.h"
#include "ops/op_plans.h"

/* Whether a compressor's row makes one entry, perhaps of zeros. */
static int makes_one_entry(const dsri_compressor_plan *plan, const dsri_compressor_row_plan *row)
{
    const uint64_t end = (uint64_t)row->start_pos + row->n_tokens;
    return end / plan->ratio - row->start_pos / plan->ratio <= 1;
}

static int appends_rows_of(const dsri_compressor_plan *plan, const dsri_append_plan *append)
{
    int is_like = append->n_rows == plan->n_rows && append->dim == plan->dim;
    for (uint32_t r = 0; r < plan->n_rows && is_like; r++)
        is_like = append->rows[r].source == plan->rows[r].output && append->rows[r].n_tokens == 1 &&
                  makes_one_entry(plan, &plan->rows[r]);
    return is_like;
}

/* Whether an append of one entry a row finds its pages by words that the command does not write. */
static int finds_pages_elsewhere(const dsri_command *command, const dsri_append_plan *append)
{
    int is_elsewhere = 1;
    for (uint32_t r = 0; r < append->n_rows && is_elsewhere; r++) {
        const dsri_append_row_plan *row = &append->rows[r];
        if (row->cache.page_table == NULL)
            continue;
        const uint64_t entry = row->ring_entries ? row->first_entry % row->ring_entries : row->first_entry;
        const int32_t *page_id = &row->cache.page_table[entry >> row->cache.page_shift];
        const dsr_range word = {(uintptr_t)page_id, (uintptr_t)page_id + sizeof *page_id};
        is_elsewhere = !dsri_ranges_overlap(&word, 1, command->writes, command->n_writes);
    }
    return is_elsewhere;
}

static int rotates_rows_of(const dsri_attention_plan *plan, const dsri_rope_plan *rope)
{
    int is_like = rope->n_rows == plan->n_rows && rope->n_heads == plan->n_heads && rope->head_dim == DSRI_HEAD_DIM &&
                  rope->rope_dim == 2 * DSRI_TAIL_PAIRS && !rope->input_is_f32;
    for (uint32_t r = 0; r < plan->n_rows && is_like; r++)
        is_like = rope->rows[r].input == plan->rows[r].output && rope->rows[r].n_tokens == plan->rows[r].n_queries;
    return is_like;
}

static int is_in_place(const dsri_rope_plan *rope)
{
    for (uint32_t r = 0; r < rope->n_rows; r++)
        if (rope->rows[r].input != rope->rows[r].output)
            return 0;
    return 1;
}

/* Entries of more rows have a launch, which is faster as measured on an H200, and so is one of any in a device-exact
 * context. */
enum { MOST_APPENDED_ROWS = 32 };

static int works_on_rows_of(const dsri_command *command, dsri_follower kind, dsr_exactness exactness,
                            const dsri_command *later)
{
    if (kind == DSRI_FOLLOWER_APPEND)
        return later->op == DSRI_OP_APPEND && exactness == DSR_EXACT_ROW && later->n_rows <= MOST_APPENDED_ROWS &&
               appends_rows_of(command->plan, later->plan) && finds_pages_elsewhere(command, later->plan);
    return kind == DSRI_FOLLOWER_ROTATION && later->op == DSRI_OP_ROPE && rotates_rows_of(command->plan, later->plan);
}

/* Whether a block can write what `later` writes while other blocks are still at work on the command. */
static int may_write_at_once(const dsri_command *command, const dsri_command *later)
{
    if (dsri_ranges_overlap(later->writes, later->n_writes, command->reads, command->n_reads))
        return 0;
    return (later->op == DSRI_OP_ROPE && is_in_place(later->plan)) ||
           !dsri_ranges_overlap(later->writes, later->n_writes, command->writes, command->n_writes);
}

const dsri_command *dsri_cuda_find_follower(dsr_exactness exactness, const dsri_command *command, const dsri_wave *next)
{
    const dsri_cuda_entry *entry = command->kernel;
    if (next == NULL || command->op == DSRI_OP_CUSTOM || entry->kernel->follower == DSRI_FOLLOWER_NONE)
        return NULL;
    for (const dsri_command *later = next->first; later != NULL; later = later->next_in_wave)
        if (later->n_depends_on == 1 && later->depends_on[0] == command->index &&
            works_on_rows_of(command, entry->kernel->follower, exactness, later) && may_write_at_once(command, later))
            return later;
    return NULL;
}
