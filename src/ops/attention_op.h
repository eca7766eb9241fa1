/* Validation and planning that the two forms of sparse attention share. */
#ifndef DSRI_ATTENTION_OP_H
#define DSRI_ATTENTION_OP_H

#include "core/encoder_internal.h"

#include <dsrows/ops.h>

/* op is DSRI_OP_SPARSE_ATTENTION or DSRI_OP_FLASH_ATTENTION. */
dsr_status dsri_encode_attention(dsr_encoder *encoder, dsri_op op, const dsr_attention_desc *desc);
dsr_status dsri_attention_workspace(dsr_context *context, dsri_op op, const dsr_attention_desc *desc,
                                    uint64_t *size_bytes);

#endif
