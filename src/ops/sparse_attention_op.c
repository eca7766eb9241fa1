#include "ops/attention_op.h"

dsr_status dsr_encode_sparse_attention(dsr_encoder *encoder, const dsr_attention_desc *desc)
{
    return dsri_encode_attention(encoder, DSRI_OP_SPARSE_ATTENTION, desc);
}

dsr_status dsr_sparse_attention_workspace(dsr_context *context, const dsr_attention_desc *desc, uint64_t *size_bytes)
{
    return dsri_attention_workspace(context, DSRI_OP_SPARSE_ATTENTION, desc, size_bytes);
}
