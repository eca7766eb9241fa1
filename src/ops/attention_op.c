#include "ops/attention_op.h"

#include "ops/attention_workspace.h"
#include "ops/cache_checks.h"
#include "ops/op_checks.h"
#include "ops/op_plans.h"

#include <inttypes.h>
#include <stddef.h>

enum { KV, PAGE_TABLE, INDICES, Q, SINKS, OUTPUT, WORKSPACE };
static const char *const field_names[] = {"kv", "kv_layout.page_table", "indices", "q", "sinks", "output", "workspace"};

/* What the rows need of the shared views. */
typedef struct attention_needs {
    dsri_need query_rows; /* rows of q and of output; less than 2^33 */
    dsri_need indices;    /* elements */
    uint64_t workspace_bytes;
} attention_needs;

static uint32_t n_queries_of(const dsr_attention_row *row)
{
    return dsri_or_default(row->n_queries, 1);
}

static int is_packed(const dsr_attention_row *row)
{
    return row->kv_layout.format != DSR_FORMAT_BF16;
}

static uint64_t index_stride_of(const dsr_attention_row *row)
{
    return dsri_or_default64(row->index_stride, row->width);
}

static dsr_status check_n_heads(const dsri_check *check, uint32_t n_heads)
{
    if (n_heads != 64 && n_heads != 128)
        return dsri_check_fail(check, DSRI_SHARED, DSR_ERR_UNSUPPORTED_SHAPE, "n_heads must be 64 or 128, got %" PRIu32,
                               n_heads);
    return DSR_OK;
}

static dsr_status check_lengths(const dsri_check *check, uint32_t r, const dsr_attention_row *row)
{
    if (row->kv_len == 0 || row->width == 0)
        return dsri_check_fail(check, r, DSR_ERR_VALUE,
                               "kv_len and width must be nonzero, got kv_len %" PRIu64 " and width %" PRIu64,
                               row->kv_len, row->width);
    return DSR_OK;
}

static dsr_status check_kv(const dsri_check *check, uint32_t r, const dsr_attention_row *row, dsri_cache *kv,
                           dsri_footprint *footprint)
{
    const dsri_cache_operand operand = {
        .field = "kv",
        .layout_field = "kv_layout",
        .stride_field = "kv_row_stride",
        .view = &row->kv,
        .layout = &row->kv_layout,
        .n_entries = row->kv_len,
        .row_stride = row->kv_row_stride,
        .dim = DSR_HEAD_DIM,
        .packed = DSR_FORMAT_FP8,
    };
    uint64_t kv_bytes, table_bytes;
    DSRI_TRY(dsri_check_cache(check, r, &operand, kv, &kv_bytes, &table_bytes));
    dsri_footprint_read(footprint, KV, r, kv->pages, kv_bytes);
    dsri_footprint_read(footprint, PAGE_TABLE, r, kv->page_table, table_bytes);
    return DSR_OK;
}

/* Query rows of two entries may not meet. past_all is past every query row of earlier entries, so that entries in
 * ascending order cost one comparison each. Written without sums, which could overflow. */
static dsr_status check_query_rows_unused(const dsri_check *check, const dsr_attention_row *rows, uint32_t r,
                                          uint64_t past_all)
{
    const uint64_t begin = rows[r].q_row;
    if (begin >= past_all)
        return DSR_OK;
    for (uint32_t e = 0; e < r; e++) {
        const uint64_t other = rows[e].q_row;
        if (begin < other ? other - begin < n_queries_of(&rows[r]) : begin - other < n_queries_of(&rows[e]))
            return dsri_check_fail(check, r, DSR_ERR_DUPLICATE_ROW,
                                   "q_row %" PRIu64 " is used twice, first by row %" PRIu32
                                   "; each query row may be named once",
                                   dsri_max64(begin, other), e);
    }
    return DSR_OK;
}

static dsr_status check_u32_fields(const dsri_check *check, uint32_t r, const dsr_attention_row *row)
{
    DSRI_TRY(dsri_check_u32(check, r, "kv_len", row->kv_len));
    DSRI_TRY(dsri_check_u32(check, r, "width", row->width));
    DSRI_TRY(dsri_check_u32(check, r, "index_offset", row->index_offset));
    return dsri_check_u32(check, r, "q_row", row->q_row);
}

/* All checks of the rows by themselves; kv addresses go to the plan and the footprint. */
static dsr_status check_rows(const dsri_check *check, const dsr_attention_desc *desc, dsri_attention_plan *plan,
                             attention_needs *needs, dsri_footprint *footprint)
{
    needs->query_rows = (dsri_need){0, 0};
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        const dsr_attention_row *row = &desc->rows[r];
        DSRI_TRY(check_lengths(check, r, row));
        DSRI_TRY(check_kv(check, r, row, &plan->rows[r].kv, footprint));
        DSRI_TRY(check_query_rows_unused(check, desc->rows, r, needs->query_rows.n));
        DSRI_TRY(check_u32_fields(check, r, row));
        dsri_need_at_least(&needs->query_rows, row->q_row + n_queries_of(row), r);
    }
    return DSR_OK;
}

static dsr_status check_index_lists(const dsri_check *check, const dsr_attention_desc *desc, attention_needs *needs)
{
    needs->indices = (dsri_need){0, 0};
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        const dsr_attention_row *row = &desc->rows[r];
        uint64_t span, end;
        DSRI_TRY(
            dsri_check_extent(check, r, "index_stride", n_queries_of(row), index_stride_of(row), row->width, &span));
        DSRI_TRY(dsri_check_sum(check, r, "index_offset", row->index_offset, span, &end));
        dsri_need_at_least(&needs->indices, end, r);
    }
    return DSR_OK;
}

/* Bytes of workspace, with room to align its base; every region is a multiple of 64 bytes. Widths are known to fit 32
 * bits. The number of slots of all queries must too: it bounds the number of queries, and all sums here. */
static dsr_status sum_workspace(const dsri_check *check, const dsr_attention_desc *desc, uint64_t *size_bytes)
{
    uint64_t n_slots = 0, total = 64;
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        const dsr_attention_row *row = &desc->rows[r];
        n_slots += n_queries_of(row) * row->width;
        DSRI_TRY(dsri_check_u32(check, r, "number of slots of all queries", n_slots));
        total += n_queries_of(row) *
                 (uint64_t)dsri_attention_region_of(row->width, desc->n_heads, is_packed(row)).size_bytes;
    }
    *size_bytes = total;
    return DSR_OK;
}

typedef struct attention_addresses {
    void *q;
    void *output;
    void *indices;
    void *sinks;
    void *workspace;
} attention_addresses;

static dsr_status check_shared_views(const dsri_check *check, const dsr_attention_desc *desc, attention_needs *needs,
                                     attention_addresses *at)
{
    const uint64_t q_elements = needs->query_rows.n * desc->n_heads * DSR_HEAD_DIM;
    DSRI_TRY(dsri_check_shared_view(check, "q", &desc->q, DSR_DTYPE_BF16, q_elements, needs->query_rows.row, &at->q));
    DSRI_TRY(dsri_check_shared_view(check, "output", &desc->output, DSR_DTYPE_BF16, q_elements, needs->query_rows.row,
                                    &at->output));
    DSRI_TRY(check_index_lists(check, desc, needs));
    DSRI_TRY(dsri_check_shared_view(check, "indices", &desc->indices, DSR_DTYPE_I32, needs->indices.n,
                                    needs->indices.row, &at->indices));
    DSRI_TRY(dsri_check_view(check, DSRI_SHARED, "sinks", &desc->sinks, DSR_DTYPE_F32, desc->n_heads, &at->sinks));
    DSRI_TRY(sum_workspace(check, desc, &needs->workspace_bytes));
    return dsri_check_view(check, DSRI_SHARED, "workspace", &desc->workspace, DSR_DTYPE_U8, needs->workspace_bytes,
                           &at->workspace);
}

static void plan_rows(const dsr_attention_desc *desc, const attention_addresses *at, dsri_attention_plan *plan,
                      dsri_footprint *footprint)
{
    const uint64_t query_elements = (uint64_t)desc->n_heads * DSR_HEAD_DIM;
    uint8_t *const workspace = (uint8_t *)at->workspace + (64 - (uintptr_t)at->workspace % 64) % 64;
    uint8_t *region = workspace;
    plan->n_queries = 0;
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        const dsr_attention_row *row = &desc->rows[r];
        dsri_attention_row_plan *to = &plan->rows[r];
        const uint32_t n_queries = n_queries_of(row);
        const uint64_t query_bytes = n_queries * query_elements * sizeof(uint16_t);
        to->kv_len = row->kv_len;
        to->indices = (const int32_t *)at->indices + row->index_offset;
        to->index_stride = index_stride_of(row);
        to->q = (const uint16_t *)at->q + row->q_row * query_elements;
        to->output = (uint16_t *)at->output + row->q_row * query_elements;
        to->workspace = region;
        to->width = (uint32_t)row->width;
        to->n_queries = n_queries;
        to->first_query = plan->n_queries;
        plan->n_queries += n_queries;
        region += n_queries * dsri_attention_region_of(row->width, desc->n_heads, is_packed(row)).size_bytes;
        dsri_footprint_read(footprint, INDICES, r, to->indices,
                            ((n_queries - 1) * to->index_stride + row->width) * sizeof(int32_t));
        dsri_footprint_read(footprint, Q, r, to->q, query_bytes);
        dsri_footprint_write(footprint, OUTPUT, r, to->output, query_bytes);
    }
    dsri_footprint_read(footprint, SINKS, DSRI_SHARED, at->sinks, desc->n_heads * sizeof(float));
    dsri_footprint_write(footprint, WORKSPACE, DSRI_SHARED, workspace, (uint64_t)(region - workspace));
}

dsr_status dsri_encode_attention(dsr_encoder *encoder, dsri_op op, const dsr_attention_desc *desc)
{
    dsri_check check;
    dsri_attention_plan plan;
    dsri_footprint footprint;
    attention_needs needs;
    attention_addresses at;
    DSRI_TRY(dsri_check_encoder(&check, encoder, op, desc));
    DSRI_TRY(dsri_check_struct_size(&check, desc->struct_size, sizeof(*desc)));
    DSRI_TRY(dsri_check_row_count(&check, desc->n_rows, desc->rows, "rows"));
    DSRI_TRY(check_n_heads(&check, desc->n_heads));
    DSRI_TRY(dsri_check_positive(&check, "scale", desc->scale));
    dsri_footprint_init(&footprint, field_names);
    DSRI_TRY(check_rows(&check, desc, &plan, &needs, &footprint));
    DSRI_TRY(check_shared_views(&check, desc, &needs, &at));
    plan.n_rows = desc->n_rows;
    plan.n_heads = desc->n_heads;
    plan.chunked = op == DSRI_OP_FLASH_ATTENTION;
    plan.scale = desc->scale;
    plan.sinks = at.sinks;
    plan_rows(desc, &at, &plan, &footprint);
    DSRI_TRY(dsri_check_overlaps(&check, &footprint));
    return dsri_encoder_append(encoder, op, plan.n_rows, &plan,
                               offsetof(dsri_attention_plan, rows) + plan.n_rows * sizeof(plan.rows[0]),
                               &footprint.ranges);
}

dsr_status dsri_attention_workspace(dsr_context *context, dsri_op op, const dsr_attention_desc *desc,
                                    uint64_t *size_bytes)
{
    dsri_check check;
    uint64_t total;
    DSRI_TRY(dsri_check_query(&check, context, op, desc, size_bytes));
    DSRI_TRY(dsri_check_struct_size(&check, desc->struct_size, sizeof(*desc)));
    DSRI_TRY(dsri_check_row_count(&check, desc->n_rows, desc->rows, "rows"));
    DSRI_TRY(check_n_heads(&check, desc->n_heads));
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        if (desc->rows[r].width == 0)
            return dsri_check_fail(&check, r, DSR_ERR_VALUE, "width must be nonzero, got 0");
        DSRI_TRY(dsri_check_u32(&check, r, "width", desc->rows[r].width));
    }
    DSRI_TRY(sum_workspace(&check, desc, &total));
    *size_bytes = total;
    return DSR_OK;
}
