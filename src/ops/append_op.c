#include "ops/cache_checks.h"
#include "ops/op_plans.h"

#include <dsrows/ops.h>

#include <inttypes.h>
#include <stddef.h>

enum { SOURCE, CACHE, PAGE_TABLE };
static const char *const field_names[] = {"source", "cache", "cache_layout.page_table"};

static uint32_t n_tokens_of(const dsr_append_row *row)
{
    return dsri_or_default(row->n_tokens, 1);
}

/* What the checks leave for the footprint. */
typedef struct append_sizes {
    uint64_t cache_bytes[DSRI_MAX_ROWS];
    uint64_t table_bytes[DSRI_MAX_ROWS];
    dsri_need source_rows;
} append_sizes;

static dsr_status copy_frequencies(const dsri_check *check, const dsr_append_desc *desc, dsri_append_plan *plan)
{
    plan->rotates = desc->frequencies != NULL;
    for (uint32_t i = 0; i < DSRI_TAIL_PAIRS; i++) {
        plan->frequencies[i] = desc->frequencies ? desc->frequencies[i] : 0.0f;
        if (desc->frequencies && !dsri_is_positive(desc->frequencies[i]))
            return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_VALUE,
                                   "frequencies[%" PRIu32 "] must be finite and positive, got %g", i,
                                   (double)desc->frequencies[i]);
    }
    return DSR_OK;
}

static dsr_status check_positions(const dsri_check *check, uint32_t r, const dsr_append_row *row)
{
    const uint32_t step = dsri_or_default(row->position_step, 1);
    const uint64_t last = row->start_pos + (uint64_t)(n_tokens_of(row) - 1) * step;
    if (last > UINT32_MAX)
        return dsri_check_fail(check, r, DSR_ERR_POSITION,
                               "position overflows: start_pos %" PRIu32 ", n_tokens %" PRIu32
                               " and position_step %" PRIu32 " reach %" PRIu64 ", needs at most %" PRIu32,
                               row->start_pos, n_tokens_of(row), step, last, UINT32_MAX);
    return DSR_OK;
}

/* The entries that the tokens go to are there. A ring must be there as a whole, so that the answer is the same at every
 * position. */
static dsr_status check_entries(const dsri_check *check, uint32_t r, const dsr_append_row *row)
{
    uint64_t end;
    if (row->n_entries == 0)
        return dsri_check_fail(check, r, DSR_ERR_VALUE, "n_entries must be nonzero, got 0");
    if (row->ring_entries == 0) {
        DSRI_TRY(dsri_check_sum(check, r, "first_entry + n_tokens", row->first_entry, n_tokens_of(row), &end));
        if (end > row->n_entries)
            return dsri_check_fail(check, r, DSR_ERR_SIZE,
                                   "entries reach %" PRIu64 ", needs at most n_entries = %" PRIu64, end,
                                   row->n_entries);
        return DSR_OK;
    }
    if (row->ring_entries > row->n_entries)
        return dsri_check_fail(check, r, DSR_ERR_SIZE,
                               "ring_entries must be at most n_entries = %" PRIu64 ", got %" PRIu64, row->n_entries,
                               row->ring_entries);
    if (n_tokens_of(row) > row->ring_entries)
        return dsri_check_fail(check, r, DSR_ERR_VALUE,
                               "n_tokens must be at most ring_entries = %" PRIu64 ", got %" PRIu32, row->ring_entries,
                               n_tokens_of(row));
    return DSR_OK;
}

static dsr_status check_rows(const dsri_check *check, const dsr_append_desc *desc, dsr_cache_format packed,
                             dsri_append_plan *plan, append_sizes *sizes)
{
    uint64_t n_tokens = 0;
    sizes->source_rows = (dsri_need){0, 0};
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        const dsr_append_row *row = &desc->rows[r];
        dsri_append_row_plan *to = &plan->rows[r];
        const dsri_cache_operand operand = {"cache",           "cache_layout",     "entry_stride",
                                            &row->cache,       &row->cache_layout, row->n_entries,
                                            row->entry_stride, desc->dim,          packed};
        uint64_t source_end;
        if (plan->rotates)
            DSRI_TRY(check_positions(check, r, row));
        n_tokens += n_tokens_of(row);
        DSRI_TRY(dsri_check_u32(check, r, "number of tokens of all rows", n_tokens));
        DSRI_TRY(check_entries(check, r, row));
        DSRI_TRY(dsri_check_cache(check, r, &operand, &to->cache, &sizes->cache_bytes[r], &sizes->table_bytes[r]));
        DSRI_TRY(dsri_check_sum(check, r, "source_row + n_tokens", row->source_row, n_tokens_of(row), &source_end));
        dsri_need_at_least(&sizes->source_rows, source_end, r);
        to->first_entry = row->ring_entries ? row->first_entry % row->ring_entries : row->first_entry;
        to->ring_entries = row->ring_entries;
        to->n_tokens = n_tokens_of(row);
        to->start_pos = row->start_pos;
        to->position_step = dsri_or_default(row->position_step, 1);
    }
    return DSR_OK;
}

/* What a row reads, and what it writes up to the end of a ring and from its start. */
static void add_row_ranges(const dsri_append_plan *plan, uint32_t r, const append_sizes *sizes,
                           dsri_cache_writes *writes)
{
    const dsri_append_row_plan *row = &plan->rows[r];
    const dsri_cache *cache = &row->cache;
    uint64_t n_before_wrap = row->n_tokens;
    if (row->ring_entries && n_before_wrap > row->ring_entries - row->first_entry)
        n_before_wrap = row->ring_entries - row->first_entry;
    dsri_footprint_read(writes->footprint, SOURCE, r, row->source,
                        (uint64_t)row->n_tokens * plan->dim * sizeof(uint16_t));
    dsri_footprint_read(writes->footprint, PAGE_TABLE, r, cache->page_table, sizes->table_bytes[r]);
    dsri_write_entries(writes, r, cache, plan->dim, sizes->cache_bytes[r], row->first_entry, n_before_wrap);
    dsri_write_entries(writes, r, cache, plan->dim, sizes->cache_bytes[r], 0, row->n_tokens - n_before_wrap);
}

dsr_status dsr_encode_append(dsr_encoder *encoder, const dsr_append_desc *desc)
{
    dsri_check check;
    dsri_append_plan plan;
    dsri_footprint footprint;
    append_sizes sizes;
    dsri_cache_writes writes = {.footprint = &footprint, .field = CACHE, .n_pools = 0};
    dsr_cache_format packed;
    uint64_t n_elements;
    void *source;
    DSRI_TRY(dsri_check_encoder(&check, encoder, DSRI_OP_APPEND, desc));
    DSRI_TRY(dsri_check_struct_size(&check, desc->struct_size, sizeof(*desc)));
    DSRI_TRY(dsri_check_row_count(&check, desc->n_rows, desc->rows, "rows"));
    DSRI_TRY(dsri_check_entry_dim(&check, desc->dim, &packed));
    DSRI_TRY(dsri_check_floor(&check, desc->floor));
    DSRI_TRY(copy_frequencies(&check, desc, &plan));
    plan.n_rows = desc->n_rows;
    plan.dim = desc->dim;
    plan.min_scale = dsri_min_scale(packed, desc->floor);
    DSRI_TRY(check_rows(&check, desc, packed, &plan, &sizes));
    DSRI_TRY(
        dsri_check_product(&check, DSRI_SHARED, "source: shape product", sizes.source_rows.n, desc->dim, &n_elements));
    DSRI_TRY(dsri_check_shared_view(&check, "source", &desc->source, DSR_DTYPE_BF16, n_elements, sizes.source_rows.row,
                                    &source));
    dsri_footprint_init(&footprint, field_names);
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        plan.rows[r].source = (const uint16_t *)source + desc->rows[r].source_row * desc->dim;
        add_row_ranges(&plan, r, &sizes, &writes);
    }
    DSRI_TRY(dsri_check_overlaps(&check, &footprint));
    return dsri_encoder_append(encoder, DSRI_OP_APPEND, plan.n_rows, &plan,
                               offsetof(dsri_append_plan, rows) + plan.n_rows * sizeof(plan.rows[0]),
                               &footprint.ranges);
}
