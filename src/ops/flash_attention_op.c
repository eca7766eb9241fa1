#include "ops/attention_op.h"
#include "ops/op_checks.h"

dsr_status dsr_encode_flash_attention(dsr_encoder *encoder, const dsr_attention_desc *desc)
{
    return dsri_encode_attention(encoder, DSRI_OP_FLASH_ATTENTION, desc);
}

dsr_status dsr_flash_attention_workspace(dsr_context *context, const dsr_attention_desc *desc, uint64_t *size_bytes)
{
    return dsri_attention_workspace(context, DSRI_OP_FLASH_ATTENTION, desc, size_bytes);
}

/* Grouping by width moves a row ahead exactly when its width was seen before, but not in the row just before it. */
static int grouping_moves_row(const dsr_attention_row *rows, uint32_t r)
{
    if (r == 0 || rows[r].width == rows[r - 1].width)
        return 0;
    for (uint32_t e = 0; e + 1 < r; e++) {
        if (rows[e].width == rows[r].width)
            return 1;
    }
    return 0;
}

int dsr_flash_attention_contiguous(const dsr_attention_desc *desc)
{
    uint64_t next_query = 0;
    if (!desc || desc->struct_size != sizeof(*desc) || !desc->rows || desc->n_rows == 0 || desc->n_rows > DSR_MAX_ROWS)
        return 0;
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        if (desc->rows[r].width == 0 || desc->rows[r].q_row != next_query || grouping_moves_row(desc->rows, r))
            return 0;
        next_query += dsri_or_default(desc->rows[r].n_queries, 1);
    }
    return 1;
}
