#include "ops/op_checks.h"
#include "ops/op_plans.h"

#include <dsrows/ops.h>

#include <inttypes.h>
#include <stddef.h>

enum { KV, SCORE, APE, NORM, OUTPUT, KV_STATE, SCORE_STATE };
static const char *const field_names[] = {"kv", "score", "ape", "norm", "output", "kv_state", "score_state"};

/* The ranges of all states: the rows' kv states, then their score states. */
enum { MAX_STATES = 2 * DSRI_MAX_ROWS };

static int is_supported(uint32_t ratio, uint32_t dim)
{
    return (ratio == 4 && (dim == 128 || dim == 512)) || (ratio == 128 && dim == 512);
}

/* Features of a token and of a state row: two views of a group where groups overlap. */
static uint64_t columns_of(uint32_t ratio, uint32_t dim)
{
    return ratio == 4 ? 2 * (uint64_t)dim : dim;
}

static uint32_t n_tokens_of(const dsr_compressor_row *row)
{
    return dsri_or_default(row->n_tokens, 1);
}

uint64_t dsr_compressor_state_elements(uint32_t ratio, uint32_t dim)
{
    if (!is_supported(ratio, dim))
        return 0;
    return (ratio == 4 ? 2 * (uint64_t)ratio : ratio) * columns_of(ratio, dim);
}

uint32_t dsr_compressor_emitted(uint32_t ratio, uint32_t start_pos, uint32_t n_tokens)
{
    if (ratio == 0)
        return 0;
    return (uint32_t)(((uint64_t)start_pos + n_tokens) / ratio - start_pos / ratio);
}

static uint64_t output_rows_of(const dsr_compressor_row *row, uint32_t ratio)
{
    return dsri_or_default(dsr_compressor_emitted(ratio, row->start_pos, n_tokens_of(row)), 1);
}

static dsr_status check_scalars(const dsri_check *check, const dsr_compressor_desc *desc)
{
    if (!is_supported(desc->ratio, desc->dim))
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_UNSUPPORTED_SHAPE,
                               "(ratio, dim) must be (4,128), (4,512) or (128,512), got (%" PRIu32 ",%" PRIu32 ")",
                               desc->ratio, desc->dim);
    return dsri_check_positive(check, "epsilon", desc->epsilon);
}

static dsr_status check_position(const dsri_check *check, uint32_t r, const dsr_compressor_desc *desc)
{
    const dsr_compressor_row *row = &desc->rows[r];
    const uint32_t lowest = desc->n_rows == 1 ? 0 : 1;
    const uint32_t highest = UINT32_MAX - n_tokens_of(row);
    if (row->start_pos >= lowest && row->start_pos <= highest)
        return DSR_OK;
    return dsri_check_fail(check, r, DSR_ERR_POSITION,
                           "position must be in %" PRIu32 "..=%" PRIu32 ", got %" PRIu32 "%s", lowest, highest,
                           row->start_pos, row->start_pos == 0 ? " (a request starts at 0 in the one-row form)" : "");
}

static dsr_status check_rows(const dsri_check *check, const dsr_compressor_desc *desc, dsri_compressor_plan *plan)
{
    const uint64_t n_elements = dsr_compressor_state_elements(desc->ratio, desc->dim);
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        const dsr_compressor_row *row = &desc->rows[r];
        void *kv_state, *score_state;
        DSRI_TRY(check_position(check, r, desc));
        DSRI_TRY(dsri_check_view(check, r, "kv_state", &row->kv_state, DSR_DTYPE_F32, n_elements, &kv_state));
        DSRI_TRY(dsri_check_view(check, r, "score_state", &row->score_state, DSR_DTYPE_F32, n_elements, &score_state));
        plan->rows[r].kv_state = kv_state;
        plan->rows[r].score_state = score_state;
    }
    return DSR_OK;
}

/* A view stands for a request's state as a whole, so all its bytes count, not only those that are used. */
static dsr_status check_states_disjoint(const dsri_check *check, const dsr_compressor_desc *desc,
                                        const dsri_compressor_plan *plan)
{
    dsr_range states[MAX_STATES];
    const uint32_t n = desc->n_rows;
    uint32_t first, second;
    for (uint32_t r = 0; r < n; r++) {
        states[r].begin = (uintptr_t)plan->rows[r].kv_state;
        states[r].end = states[r].begin + desc->rows[r].kv_state.byte_length;
        states[n + r].begin = (uintptr_t)plan->rows[r].score_state;
        states[n + r].end = states[n + r].begin + desc->rows[r].score_state.byte_length;
    }
    if (!dsri_find_overlap(states, 2 * n, &first, &second))
        return DSR_OK;
    return dsri_check_fail(check, second % n, DSR_ERR_OVERLAP,
                           "states of two rows overlap: %s of %" PRIu64 " bytes meets %s of row %" PRIu32
                           ", each must be a request's own",
                           field_names[second < n ? KV_STATE : SCORE_STATE], states[second].end - states[second].begin,
                           field_names[first < n ? KV_STATE : SCORE_STATE], first % n);
}

/* Rows of kv and score, and of output, that the shared views must hold; output rows may not meet. */
static dsr_status check_row_ranges(const dsri_check *check, const dsr_compressor_desc *desc, dsri_need *token_rows,
                                   dsri_need *output_rows)
{
    dsr_range outputs[DSRI_MAX_ROWS];
    uint32_t first, second;
    *token_rows = *output_rows = (dsri_need){0, 0};
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        const dsr_compressor_row *row = &desc->rows[r];
        uint64_t token_end;
        DSRI_TRY(dsri_check_sum(check, r, "token_row + n_tokens", row->token_row, n_tokens_of(row), &token_end));
        outputs[r].begin = row->output_row;
        DSRI_TRY(
            dsri_check_sum(check, r, "output_row", row->output_row, output_rows_of(row, desc->ratio), &outputs[r].end));
        dsri_need_at_least(token_rows, token_end, r);
        dsri_need_at_least(output_rows, outputs[r].end, r);
    }
    if (dsri_find_overlap(outputs, desc->n_rows, &first, &second))
        return dsri_check_fail(check, second, DSR_ERR_OVERLAP,
                               "outputs of two rows overlap: output rows [%" PRIu64 ", %" PRIu64 ") and [%" PRIu64
                               ", %" PRIu64 ") of row %" PRIu32 ", needs disjoint ones",
                               outputs[second].begin, outputs[second].end, outputs[first].begin, outputs[first].end,
                               first);
    return DSR_OK;
}

typedef struct compressor_addresses {
    void *kv;
    void *score;
    void *ape;
    void *norm;
    void *output;
} compressor_addresses;

static dsr_status check_shared_views(const dsri_check *check, const dsr_compressor_desc *desc, dsri_need token_rows,
                                     dsri_need output_rows, compressor_addresses *at)
{
    const uint64_t columns = columns_of(desc->ratio, desc->dim);
    uint64_t n_tokens, n_output;
    DSRI_TRY(dsri_check_product(check, DSRI_SHARED, "kv: shape product", token_rows.n, columns, &n_tokens));
    DSRI_TRY(dsri_check_shared_view(check, "kv", &desc->kv, DSR_DTYPE_F32, n_tokens, token_rows.row, &at->kv));
    DSRI_TRY(dsri_check_shared_view(check, "score", &desc->score, DSR_DTYPE_F32, n_tokens, token_rows.row, &at->score));
    DSRI_TRY(dsri_check_view(check, DSRI_SHARED, "ape", &desc->ape, DSR_DTYPE_F32, desc->ratio * columns, &at->ape));
    DSRI_TRY(dsri_check_view(check, DSRI_SHARED, "norm", &desc->norm, DSR_DTYPE_F32, desc->dim, &at->norm));
    DSRI_TRY(dsri_check_product(check, DSRI_SHARED, "output: shape product", output_rows.n, desc->dim, &n_output));
    return dsri_check_shared_view(check, "output", &desc->output, DSR_DTYPE_BF16, n_output, output_rows.row,
                                  &at->output);
}

static void plan_rows(const dsr_compressor_desc *desc, const compressor_addresses *at, dsri_compressor_plan *plan,
                      dsri_footprint *footprint)
{
    const uint64_t columns = columns_of(desc->ratio, desc->dim);
    const uint64_t state_bytes = dsr_compressor_state_elements(desc->ratio, desc->dim) * sizeof(float);
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        const dsr_compressor_row *row = &desc->rows[r];
        dsri_compressor_row_plan *to = &plan->rows[r];
        const uint64_t token_bytes = n_tokens_of(row) * columns * sizeof(float);
        to->kv = (const float *)at->kv + row->token_row * columns;
        to->score = (const float *)at->score + row->token_row * columns;
        to->output = (uint16_t *)at->output + row->output_row * desc->dim;
        to->start_pos = row->start_pos;
        to->n_tokens = n_tokens_of(row);
        dsri_footprint_read(footprint, KV, r, to->kv, token_bytes);
        dsri_footprint_read(footprint, SCORE, r, to->score, token_bytes);
        dsri_footprint_write(footprint, OUTPUT, r, to->output,
                             output_rows_of(row, desc->ratio) * desc->dim * sizeof(uint16_t));
        dsri_footprint_write(footprint, KV_STATE, r, to->kv_state, state_bytes);
        dsri_footprint_write(footprint, SCORE_STATE, r, to->score_state, state_bytes);
    }
    dsri_footprint_read(footprint, APE, DSRI_SHARED, at->ape, desc->ratio * columns * sizeof(float));
    dsri_footprint_read(footprint, NORM, DSRI_SHARED, at->norm, desc->dim * sizeof(float));
}

/* States are read where they are written. */
static void add_state_reads(const dsr_compressor_desc *desc, const dsri_compressor_plan *plan,
                            dsri_footprint *footprint)
{
    const uint64_t state_bytes = dsr_compressor_state_elements(desc->ratio, desc->dim) * sizeof(float);
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        dsri_footprint_read(footprint, KV_STATE, r, plan->rows[r].kv_state, state_bytes);
        dsri_footprint_read(footprint, SCORE_STATE, r, plan->rows[r].score_state, state_bytes);
    }
}

dsr_status dsr_encode_compressor(dsr_encoder *encoder, const dsr_compressor_desc *desc)
{
    dsri_check check;
    dsri_compressor_plan plan;
    dsri_footprint footprint;
    compressor_addresses at;
    dsri_need token_rows, output_rows;
    DSRI_TRY(dsri_check_encoder(&check, encoder, DSRI_OP_COMPRESSOR, desc));
    DSRI_TRY(dsri_check_struct_size(&check, desc->struct_size, sizeof(*desc)));
    DSRI_TRY(dsri_check_row_count(&check, desc->n_rows, desc->rows, "rows"));
    DSRI_TRY(check_scalars(&check, desc));
    DSRI_TRY(check_rows(&check, desc, &plan));
    DSRI_TRY(check_states_disjoint(&check, desc, &plan));
    DSRI_TRY(check_row_ranges(&check, desc, &token_rows, &output_rows));
    DSRI_TRY(check_shared_views(&check, desc, token_rows, output_rows, &at));
    plan.n_rows = desc->n_rows;
    plan.ratio = desc->ratio;
    plan.dim = desc->dim;
    plan.epsilon = desc->epsilon;
    plan.ape = at.ape;
    plan.norm = at.norm;
    dsri_footprint_init(&footprint, field_names);
    plan_rows(desc, &at, &plan, &footprint);
    DSRI_TRY(dsri_check_overlaps(&check, &footprint));
    add_state_reads(desc, &plan, &footprint);
    return dsri_encoder_append(encoder, DSRI_OP_COMPRESSOR, plan.n_rows, &plan,
                               offsetof(dsri_compressor_plan, rows) + plan.n_rows * sizeof(plan.rows[0]),
                               &footprint.ranges);
}
