#include "ops/op_checks.h"
#include "ops/op_plans.h"

#include <dsrows/ops.h>

#include <inttypes.h>
#include <stddef.h>

enum { INPUT, OUTPUT };
static const char *const field_names[] = {"input", "output"};

static uint32_t n_tokens_of(const dsr_rope_row *row)
{
    return dsri_or_default(row->n_tokens, 1);
}

static uint32_t position_step_of(const dsr_rope_row *row)
{
    return dsri_or_default(row->position_step, 1);
}

static dsr_status check_shape(const dsri_check *check, const dsr_rope_desc *desc)
{
    if (desc->n_heads == 0 || desc->n_heads > 128)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_UNSUPPORTED_SHAPE,
                               "n_heads must be in 1..=128, got %" PRIu32, desc->n_heads);
    if (desc->head_dim < 2 || desc->head_dim > DSR_HEAD_DIM || desc->head_dim % 2 != 0)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_UNSUPPORTED_SHAPE,
                               "head_dim must be even and in 2..=%d, got %" PRIu32, (int)DSR_HEAD_DIM, desc->head_dim);
    if (desc->rope_dim < 2 || desc->rope_dim % 2 != 0 || desc->rope_dim > desc->head_dim ||
        desc->rope_dim > 2 * DSRI_MAX_ROPE_PAIRS)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_UNSUPPORTED_SHAPE,
                               "rope_dim must be even, in 2..=%d and at most head_dim = %" PRIu32 ", got %" PRIu32,
                               2 * (int)DSRI_MAX_ROPE_PAIRS, desc->head_dim, desc->rope_dim);
    if (desc->inverse != 0 && desc->inverse != 1)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_VALUE, "inverse must be 0 or 1, got %d", desc->inverse);
    return DSR_OK;
}

static dsr_status copy_frequencies(const dsri_check *check, const dsr_rope_desc *desc, dsri_rope_plan *plan)
{
    if (!desc->frequencies)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_NULL, "frequencies is null");
    for (uint32_t i = 0; i < desc->rope_dim / 2; i++) {
        const float frequency = desc->frequencies[i];
        if (!dsri_is_positive(frequency))
            return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_VALUE,
                                   "frequencies[%" PRIu32 "] must be finite and positive, got %g", i,
                                   (double)frequency);
        plan->frequencies[i] = frequency;
    }
    return DSR_OK;
}

/* Positions and the number of heads to rotate fit 32 bits; rows do not meet. */
static dsr_status check_rows(const dsri_check *check, const dsr_rope_desc *desc, dsri_need *n_tokens)
{
    dsr_range tokens[DSRI_MAX_ROWS];
    uint32_t first, second;
    uint64_t n_heads = 0;
    *n_tokens = (dsri_need){0, 0};
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        const dsr_rope_row *row = &desc->rows[r];
        const uint64_t last = row->start_pos + (uint64_t)(n_tokens_of(row) - 1) * position_step_of(row);
        if (last > UINT32_MAX)
            return dsri_check_fail(check, r, DSR_ERR_POSITION,
                                   "position overflows: start_pos %" PRIu32 ", n_tokens %" PRIu32
                                   " and position_step %" PRIu32 " reach %" PRIu64 ", needs at most %" PRIu32,
                                   row->start_pos, n_tokens_of(row), position_step_of(row), last, UINT32_MAX);
        n_heads += (uint64_t)n_tokens_of(row) * desc->n_heads;
        DSRI_TRY(dsri_check_u32(check, r, "number of heads of all tokens", n_heads));
        tokens[r].begin = row->row;
        DSRI_TRY(dsri_check_sum(check, r, "row + n_tokens", row->row, n_tokens_of(row), &tokens[r].end));
        dsri_need_at_least(n_tokens, tokens[r].end, r);
    }
    if (dsri_find_overlap(tokens, desc->n_rows, &first, &second))
        return dsri_check_fail(check, second, DSR_ERR_OVERLAP,
                               "tokens of two rows overlap: [%" PRIu64 ", %" PRIu64 ") and [%" PRIu64 ", %" PRIu64
                               ") of row %" PRIu32 ", needs disjoint ones",
                               tokens[second].begin, tokens[second].end, tokens[first].begin, tokens[first].end, first);
    return DSR_OK;
}

static dsr_status check_views(const dsri_check *check, const dsr_rope_desc *desc, dsri_need n_tokens, void **input,
                              void **output)
{
    uint64_t n_elements;
    DSRI_TRY(dsri_check_product(check, DSRI_SHARED, "input: shape product", n_tokens.n,
                                (uint64_t)desc->n_heads * desc->head_dim, &n_elements));
    DSRI_TRY(dsri_check_float_view(check, "input", &desc->input, n_elements, n_tokens.row, input));
    return dsri_check_shared_view(check, "output", &desc->output, DSR_DTYPE_BF16, n_elements, n_tokens.row, output);
}

static void plan_rows(const dsr_rope_desc *desc, void *input, void *output, dsri_rope_plan *plan)
{
    const uint64_t token_elements = (uint64_t)desc->n_heads * desc->head_dim;
    const size_t input_bytes = dsr_dtype_size(desc->input.dtype);
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        const dsr_rope_row *row = &desc->rows[r];
        plan->rows[r].input = (const uint8_t *)input + row->row * token_elements * input_bytes;
        plan->rows[r].output = (uint16_t *)output + row->row * token_elements;
        plan->rows[r].start_pos = row->start_pos;
        plan->rows[r].position_step = position_step_of(row);
        plan->rows[r].n_tokens = n_tokens_of(row);
    }
}

static void add_reads(const dsri_rope_plan *plan, dsri_footprint *footprint)
{
    const uint64_t element_bytes = plan->input_is_f32 ? sizeof(float) : sizeof(uint16_t);
    const uint64_t token_bytes = (uint64_t)plan->n_heads * plan->head_dim * element_bytes;
    for (uint32_t r = 0; r < plan->n_rows; r++)
        dsri_footprint_read(footprint, INPUT, r, plan->rows[r].input, plan->rows[r].n_tokens * token_bytes);
}

static void add_writes(const dsri_rope_plan *plan, dsri_footprint *footprint)
{
    const uint64_t token_bytes = (uint64_t)plan->n_heads * plan->head_dim * sizeof(uint16_t);
    for (uint32_t r = 0; r < plan->n_rows; r++)
        dsri_footprint_write(footprint, OUTPUT, r, plan->rows[r].output, plan->rows[r].n_tokens * token_bytes);
}

dsr_status dsr_encode_rope(dsr_encoder *encoder, const dsr_rope_desc *desc)
{
    dsri_check check;
    dsri_rope_plan plan;
    dsri_footprint footprint;
    dsri_need n_tokens;
    void *input, *output;
    int in_place;
    DSRI_TRY(dsri_check_encoder(&check, encoder, DSRI_OP_ROPE, desc));
    DSRI_TRY(dsri_check_struct_size(&check, desc->struct_size, sizeof(*desc)));
    DSRI_TRY(dsri_check_row_count(&check, desc->n_rows, desc->rows, "rows"));
    DSRI_TRY(check_shape(&check, desc));
    DSRI_TRY(copy_frequencies(&check, desc, &plan));
    DSRI_TRY(check_rows(&check, desc, &n_tokens));
    DSRI_TRY(check_views(&check, desc, n_tokens, &input, &output));
    plan.n_rows = desc->n_rows;
    plan.n_heads = desc->n_heads;
    plan.head_dim = desc->head_dim;
    plan.rope_dim = desc->rope_dim;
    plan.inverse = (uint32_t)desc->inverse;
    plan.input_is_f32 = desc->input.dtype == DSR_DTYPE_F32;
    plan_rows(desc, input, output, &plan);
    dsri_footprint_init(&footprint, field_names);
    in_place = input == output && !plan.input_is_f32;
    add_writes(&plan, &footprint);
    if (!in_place)
        add_reads(&plan, &footprint);
    DSRI_TRY(dsri_check_overlaps(&check, &footprint));
    if (in_place)
        add_reads(&plan, &footprint);
    return dsri_encoder_append(encoder, DSRI_OP_ROPE, plan.n_rows, &plan,
                               offsetof(dsri_rope_plan, rows) + plan.n_rows * sizeof(plan.rows[0]), &footprint.ranges);
}
