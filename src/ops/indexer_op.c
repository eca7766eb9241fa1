#include "ops/cache_checks.h"
#include "ops/indexer_workspace.h"
#include "ops/op_checks.h"
#include "ops/op_plans.h"

#include <dsrows/ops.h>

#include <inttypes.h>
#include <stddef.h>

enum { KEYS, PAGE_TABLE, Q, WEIGHTS, OUTPUT, SCORES, WORKSPACE };
static const char *const field_names[] = {"keys",     "key_layout.page_table", "q", "weights", "output", "scores",
                                          "workspace"};

/* What the rows need of the shared views. */
typedef struct indexer_needs {
    dsri_need query_rows;
    dsri_need output; /* elements */
    dsri_need scores; /* elements */
    uint64_t workspace_bytes;
    int interleaved; /* lists of one row lie in the gaps between lists of another */
} indexer_needs;

static uint32_t n_queries_of(const dsr_indexer_row *row)
{
    return dsri_or_default(row->n_queries, 1);
}

static uint32_t ratio_of(const dsr_indexer_row *row)
{
    return dsri_or_default(row->ratio, 4);
}

static uint32_t top_k_of(const dsr_indexer_desc *desc)
{
    return dsri_or_default(desc->top_k, 512);
}

/* Keys that the row's last query sees; its position is known to fit. */
static uint32_t n_causal_of(const dsr_indexer_row *row)
{
    return (row->start_pos + n_queries_of(row)) / ratio_of(row);
}

static dsr_status check_scalars(const dsri_check *check, const dsr_indexer_desc *desc)
{
    const uint32_t top_k = top_k_of(desc);
    if (desc->n_heads != 32 && desc->n_heads != 64 && desc->n_heads != 128)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_UNSUPPORTED_SHAPE,
                               "n_heads must be 32, 64 or 128, got %" PRIu32, desc->n_heads);
    if (top_k % 32 != 0 || top_k > DSR_MAX_TOP_K)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_UNSUPPORTED_SHAPE,
                               "top_k must be a multiple of 32 up to %d, got %" PRIu32, (int)DSR_MAX_TOP_K, top_k);
    return DSR_OK;
}

static dsr_status check_kv_len(const dsri_check *check, uint32_t r, const dsr_indexer_row *row)
{
    if (row->kv_len == 0)
        return dsri_check_fail(check, r, DSR_ERR_VALUE, "kv_len must be nonzero, got 0");
    return DSR_OK;
}

static dsr_status check_keys(const dsri_check *check, uint32_t r, const dsr_indexer_row *row, dsri_cache *keys,
                             dsri_footprint *footprint)
{
    const dsri_cache_operand operand = {
        .field = "keys",
        .layout_field = "key_layout",
        .stride_field = "key_row_stride",
        .view = &row->keys,
        .layout = &row->key_layout,
        .n_entries = row->kv_len,
        .row_stride = row->key_row_stride,
        .dim = DSR_INDEX_DIM,
        .packed = DSR_FORMAT_FP4,
    };
    uint64_t key_bytes, table_bytes;
    DSRI_TRY(dsri_check_cache(check, r, &operand, keys, &key_bytes, &table_bytes));
    dsri_footprint_read(footprint, KEYS, r, keys->pages, key_bytes);
    dsri_footprint_read(footprint, PAGE_TABLE, r, keys->page_table, table_bytes);
    return DSR_OK;
}

static dsr_status check_position(const dsri_check *check, uint32_t r, const dsr_indexer_row *row)
{
    const uint32_t n_queries = n_queries_of(row);
    if (row->start_pos > UINT32_MAX - n_queries)
        return dsri_check_fail(check, r, DSR_ERR_POSITION,
                               "position overflows: start_pos must be at most %" PRIu32 " for n_queries %" PRIu32
                               ", got %" PRIu32,
                               UINT32_MAX - n_queries, n_queries, row->start_pos);
    return DSR_OK;
}

static dsr_status check_causal(const dsri_check *check, uint32_t r, const dsr_indexer_row *row)
{
    if (row->kv_len < n_causal_of(row))
        return dsri_check_fail(check, r, DSR_ERR_KV_LEN,
                               "kv_len %" PRIu64 " is shorter than %" PRIu32 " causal compressed entries", row->kv_len,
                               n_causal_of(row));
    return DSR_OK;
}

/* The list holds t + offset for keys, and -1 where there is none: no sum may be taken for it or wrap to it. */
static dsr_status check_offset(const dsri_check *check, uint32_t r, const dsr_indexer_row *row)
{
    const uint32_t n_causal = n_causal_of(row);
    if (row->offset < 0)
        return dsri_check_fail(check, r, DSR_ERR_VALUE,
                               "offset must be nonnegative, got %" PRId32 "; -1 is reserved for the sentinel",
                               row->offset);
    if (n_causal > 0 && n_causal - 1 > (uint32_t)(INT32_MAX - row->offset))
        return dsri_check_fail(check, r, DSR_ERR_OVERFLOW,
                               "offset plus compressed index exceeds i32: offset %" PRId32 " and %" PRIu32
                               " causal compressed entries",
                               row->offset, n_causal);
    return DSR_OK;
}

static dsr_status check_u32_fields(const dsri_check *check, uint32_t r, const dsr_indexer_row *row)
{
    DSRI_TRY(dsri_check_u32(check, r, "kv_len", row->kv_len));
    DSRI_TRY(dsri_check_u32(check, r, "q_row", row->q_row));
    return dsri_check_u32(check, r, "output_offset", row->output_offset);
}

static dsr_status check_output_range(const dsri_check *check, uint32_t r, const dsr_indexer_row *row, uint32_t top_k,
                                     dsri_indexer_row_plan *to, dsr_range *output)
{
    uint64_t span;
    to->output_stride = dsri_or_default64(row->output_stride, top_k);
    if (to->output_stride < top_k)
        return dsri_check_fail(check, r, DSR_ERR_STRIDE,
                               "output_stride must be at least top_k = %" PRIu32 " elements, got %" PRIu64, top_k,
                               to->output_stride);
    DSRI_TRY(dsri_check_extent(check, r, "output_stride", n_queries_of(row), to->output_stride, top_k, &span));
    output->begin = row->output_offset;
    return dsri_check_sum(check, r, "output_offset", row->output_offset, span, &output->end);
}

static dsr_status check_score_range(const dsri_check *check, uint32_t r, const dsr_indexer_row *row, dsr_range *scores)
{
    const uint64_t n_scores = n_queries_of(row) * row->kv_len; /* both fit 32 bits */
    scores->begin = row->scores_offset;
    return dsri_check_sum(check, r, "scores_offset + n_queries * kv_len", row->scores_offset, n_scores, &scores->end);
}

/* Whether a list of top_k elements at `begin` meets one of a row's lists. */
static int list_meets(uint64_t begin, uint32_t top_k, const dsr_indexer_row *row, uint64_t stride)
{
    /* The row's first list that ends past `begin`. */
    const uint64_t i = begin < row->output_offset + top_k ? 0 : (begin - row->output_offset - top_k) / stride + 1;
    return i < n_queries_of(row) && row->output_offset + i * stride < begin + top_k;
}

/* Lists may lie in each other's gaps: ranges that overlap as a whole are looked at list by list. */
static int lists_meet(const dsr_indexer_desc *desc, const dsri_indexer_plan *plan, uint32_t a, uint32_t b)
{
    const uint32_t few = n_queries_of(&desc->rows[a]) <= n_queries_of(&desc->rows[b]) ? a : b;
    const uint32_t many = few == a ? b : a;
    const dsr_indexer_row *row = &desc->rows[few];
    for (uint64_t i = 0; i < n_queries_of(row); i++) {
        if (list_meets(row->output_offset + i * plan->rows[few].output_stride, plan->top_k, &desc->rows[many],
                       plan->rows[many].output_stride))
            return 1;
    }
    return 0;
}

static dsr_status check_outputs_disjoint(const dsri_check *check, const dsr_indexer_desc *desc,
                                         const dsri_indexer_plan *plan, const dsr_range *outputs, int *interleaved)
{
    uint32_t first, second;
    *interleaved = dsri_find_overlap(outputs, desc->n_rows, &first, &second);
    if (!*interleaved)
        return DSR_OK;
    for (uint32_t b = second; b < desc->n_rows; b++) {
        for (uint32_t a = 0; a < b; a++) {
            if (dsri_ranges_meet(outputs[a], outputs[b]) && lists_meet(desc, plan, a, b))
                return dsri_check_fail(check, b, DSR_ERR_OVERLAP,
                                       "outputs of two rows overlap: output_offset %" PRIu64
                                       " meets the list of row %" PRIu32 " at %" PRIu64 ", lists of %" PRIu32
                                       " elements must be disjoint",
                                       outputs[b].begin, a, outputs[a].begin, plan->top_k);
        }
    }
    return DSR_OK;
}

static dsr_status check_scores_disjoint(const dsri_check *check, const dsr_indexer_desc *desc, const dsr_range *scores)
{
    uint32_t first, second;
    if (dsri_find_overlap(scores, desc->n_rows, &first, &second))
        return dsri_check_fail(check, second, DSR_ERR_OVERLAP,
                               "scores of two rows overlap: elements [%" PRIu64 ", %" PRIu64 ") and [%" PRIu64
                               ", %" PRIu64 ") of row %" PRIu32 ", needs disjoint ones",
                               scores[second].begin, scores[second].end, scores[first].begin, scores[first].end, first);
    return DSR_OK;
}

/* All checks of the rows by themselves; keys and output strides go to the plan, keys to the footprint. */
static dsr_status check_rows(const dsri_check *check, const dsr_indexer_desc *desc, dsri_indexer_plan *plan,
                             indexer_needs *needs, dsri_footprint *footprint)
{
    dsr_range outputs[DSRI_MAX_ROWS], scores[DSRI_MAX_ROWS];
    needs->query_rows = needs->output = needs->scores = (dsri_need){0, 0};
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        const dsr_indexer_row *row = &desc->rows[r];
        DSRI_TRY(check_kv_len(check, r, row));
        DSRI_TRY(check_keys(check, r, row, &plan->rows[r].keys, footprint));
        DSRI_TRY(check_position(check, r, row));
        DSRI_TRY(check_causal(check, r, row));
        DSRI_TRY(check_offset(check, r, row));
        DSRI_TRY(check_u32_fields(check, r, row));
        DSRI_TRY(check_output_range(check, r, row, plan->top_k, &plan->rows[r], &outputs[r]));
        if (desc->scores.buffer) {
            DSRI_TRY(check_score_range(check, r, row, &scores[r]));
            dsri_need_at_least(&needs->scores, scores[r].end, r);
        }
        dsri_need_at_least(&needs->query_rows, row->q_row + n_queries_of(row), r);
        dsri_need_at_least(&needs->output, outputs[r].end, r);
    }
    DSRI_TRY(check_outputs_disjoint(check, desc, plan, outputs, &needs->interleaved));
    return desc->scores.buffer ? check_scores_disjoint(check, desc, scores) : DSR_OK;
}

/* Bytes of workspace, with room to align its base; every region is a multiple of 64 bytes. */
static dsr_status sum_workspace(const dsri_check *check, const dsr_indexer_desc *desc, uint64_t *size_bytes)
{
    uint64_t n_queries = 0, total = 64;
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        const dsr_indexer_row *row = &desc->rows[r];
        const size_t region_bytes = dsri_indexer_region_of(n_causal_of(row)).size_bytes;
        uint64_t row_bytes;
        n_queries += n_queries_of(row);
        DSRI_TRY(dsri_check_u32(check, r, "number of all queries", n_queries));
        DSRI_TRY(dsri_check_product(check, r, "workspace", n_queries_of(row), region_bytes, &row_bytes));
        DSRI_TRY(dsri_check_sum(check, r, "workspace", total, row_bytes, &total));
    }
    *size_bytes = total;
    return DSR_OK;
}

typedef struct indexer_addresses {
    void *q;
    void *weights;
    void *output;
    void *scores; /* null: not given */
    void *workspace;
} indexer_addresses;

static dsr_status check_shared_views(const dsri_check *check, const dsr_indexer_desc *desc, indexer_needs *needs,
                                     indexer_addresses *at)
{
    const uint64_t n_weights = needs->query_rows.n * desc->n_heads;
    DSRI_TRY(dsri_check_shared_view(check, "q", &desc->q, DSR_DTYPE_BF16, n_weights * DSR_INDEX_DIM,
                                    needs->query_rows.row, &at->q));
    DSRI_TRY(dsri_check_shared_view(check, "weights", &desc->weights, DSR_DTYPE_F32, n_weights, needs->query_rows.row,
                                    &at->weights));
    at->scores = NULL;
    if (desc->scores.buffer)
        DSRI_TRY(dsri_check_shared_view(check, "scores", &desc->scores, DSR_DTYPE_F32, needs->scores.n,
                                        needs->scores.row, &at->scores));
    DSRI_TRY(sum_workspace(check, desc, &needs->workspace_bytes));
    DSRI_TRY(dsri_check_view(check, DSRI_SHARED, "workspace", &desc->workspace, DSR_DTYPE_U8, needs->workspace_bytes,
                             &at->workspace));
    return dsri_check_shared_view(check, "output", &desc->output, DSR_DTYPE_I32, needs->output.n, needs->output.row,
                                  &at->output);
}

static uint64_t output_bytes(const dsri_indexer_plan *plan, uint32_t r)
{
    const dsri_indexer_row_plan *row = &plan->rows[r];
    return ((row->n_queries - 1) * row->output_stride + plan->top_k) * sizeof(int32_t);
}

static void add_row_ranges(const dsri_indexer_plan *plan, uint32_t r, dsri_footprint *footprint)
{
    const dsri_indexer_row_plan *row = &plan->rows[r];
    const uint64_t n_heads = (uint64_t)row->n_queries * plan->n_heads;
    dsri_footprint_read(footprint, Q, r, row->q, n_heads * DSR_INDEX_DIM * sizeof(uint16_t));
    dsri_footprint_read(footprint, WEIGHTS, r, row->weights, n_heads * sizeof(float));
    if (row->scores)
        dsri_footprint_write(footprint, SCORES, r, row->scores, row->n_queries * row->kv_len * sizeof(float));
}

/* One range per row, or one of all rows where rows interleave, since ranges written may not overlap. */
static void add_output_ranges(const dsri_indexer_plan *plan, int interleaved, dsri_footprint *footprint)
{
    const int32_t *begin = plan->rows[0].output, *end = begin;
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        const int32_t *const output = plan->rows[r].output;
        const int32_t *const output_end = output + output_bytes(plan, r) / sizeof(int32_t);
        begin = output < begin ? output : begin;
        end = output_end > end ? output_end : end;
        if (!interleaved)
            dsri_footprint_write(footprint, OUTPUT, r, output, output_bytes(plan, r));
    }
    if (interleaved)
        dsri_footprint_write(footprint, OUTPUT, DSRI_SHARED, begin, (uint64_t)((uintptr_t)end - (uintptr_t)begin));
}

/* As many as there are in memory: 2^32 tiles would be 2 TiB of scores. */
static uint32_t n_tiles_of(const dsri_indexer_row_plan *row)
{
    const uint64_t n = row->scores ? row->kv_len : ((uint64_t)row->start_pos + row->n_queries) / row->ratio;
    return n ? (uint32_t)((n + DSRI_INDEX_TILE - 1) / DSRI_INDEX_TILE) : 1;
}

static void plan_rows(const dsr_indexer_desc *desc, const indexer_addresses *at, dsri_indexer_plan *plan,
                      dsri_footprint *footprint)
{
    uint8_t *const workspace = (uint8_t *)at->workspace + (64 - (uintptr_t)at->workspace % 64) % 64;
    uint8_t *region = workspace;
    plan->n_queries = 0;
    plan->first_tile[0] = 0;
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        const dsr_indexer_row *row = &desc->rows[r];
        dsri_indexer_row_plan *to = &plan->rows[r];
        const uint64_t first_head = row->q_row * desc->n_heads;
        to->kv_len = row->kv_len;
        to->q = (const uint16_t *)at->q + first_head * DSR_INDEX_DIM;
        to->weights = (const float *)at->weights + first_head;
        to->output = (int32_t *)at->output + row->output_offset;
        to->scores = at->scores ? (float *)at->scores + row->scores_offset : NULL;
        to->workspace = region;
        to->start_pos = row->start_pos;
        to->ratio = ratio_of(row);
        to->offset = row->offset;
        to->n_queries = n_queries_of(row);
        to->first_query = plan->n_queries;
        plan->n_queries += to->n_queries;
        to->n_tiles = n_tiles_of(to);
        plan->first_tile[r + 1] = plan->first_tile[r] + to->n_queries * to->n_tiles;
        region += to->n_queries * dsri_indexer_region_of(n_causal_of(row)).size_bytes;
        add_row_ranges(plan, r, footprint);
    }
    dsri_footprint_write(footprint, WORKSPACE, DSRI_SHARED, workspace, (uint64_t)(region - workspace));
}

dsr_status dsr_encode_indexer(dsr_encoder *encoder, const dsr_indexer_desc *desc)
{
    dsri_check check;
    dsri_indexer_plan plan;
    dsri_footprint footprint;
    indexer_needs needs;
    indexer_addresses at;
    DSRI_TRY(dsri_check_encoder(&check, encoder, DSRI_OP_INDEXER, desc));
    DSRI_TRY(dsri_check_struct_size(&check, desc->struct_size, sizeof(*desc)));
    DSRI_TRY(dsri_check_row_count(&check, desc->n_rows, desc->rows, "rows"));
    DSRI_TRY(check_scalars(&check, desc));
    plan.n_rows = desc->n_rows;
    plan.n_heads = desc->n_heads;
    plan.top_k = top_k_of(desc);
    dsri_footprint_init(&footprint, field_names);
    DSRI_TRY(check_rows(&check, desc, &plan, &needs, &footprint));
    DSRI_TRY(check_shared_views(&check, desc, &needs, &at));
    plan_rows(desc, &at, &plan, &footprint);
    add_output_ranges(&plan, needs.interleaved, &footprint);
    DSRI_TRY(dsri_check_overlaps(&check, &footprint));
    return dsri_encoder_append(encoder, DSRI_OP_INDEXER, plan.n_rows, &plan,
                               offsetof(dsri_indexer_plan, rows) + plan.n_rows * sizeof(plan.rows[0]),
                               &footprint.ranges);
}

dsr_status dsr_indexer_workspace(dsr_context *context, const dsr_indexer_desc *desc, uint64_t *size_bytes)
{
    dsri_check check;
    uint64_t total;
    DSRI_TRY(dsri_check_query(&check, context, DSRI_OP_INDEXER, desc, size_bytes));
    DSRI_TRY(dsri_check_struct_size(&check, desc->struct_size, sizeof(*desc)));
    DSRI_TRY(dsri_check_row_count(&check, desc->n_rows, desc->rows, "rows"));
    DSRI_TRY(check_scalars(&check, desc));
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        DSRI_TRY(check_kv_len(&check, r, &desc->rows[r]));
        DSRI_TRY(check_position(&check, r, &desc->rows[r]));
        DSRI_TRY(check_causal(&check, r, &desc->rows[r]));
    }
    DSRI_TRY(sum_workspace(&check, desc, &total));
    *size_bytes = total;
    return DSR_OK;
}
