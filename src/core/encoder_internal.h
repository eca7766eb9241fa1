/* What the ops layer needs of the core: addresses of views, failure texts, and appending a planned command. */
#ifndef DSRI_ENCODER_INTERNAL_H
#define DSRI_ENCODER_INTERNAL_H

#include <dsrows/encoder.h>

typedef enum dsri_op {
    DSRI_OP_SPARSE_ATTENTION = 0,
    DSRI_OP_FLASH_ATTENTION,
    DSRI_OP_INDEXER,
    DSRI_OP_COMPRESSOR,
    DSRI_OP_GATHER,
    DSRI_OP_COPY,
    DSRI_OP_ROPE,
    DSRI_OP_FAKE_QUANT,
    DSRI_OP_RMS_NORM,
    DSRI_OP_PROJECTION,
    DSRI_OP_APPEND,
    DSRI_OP_CONVERT,
    DSRI_OP_CUSTOM,
    DSRI_N_OPS
} dsri_op;

/* Name of an op as texts and captures show it, such as "flash-attention". */
const char *dsri_op_name(dsri_op op);

/* Byte ranges of one command. 64 rows with up to 4 ranges each and 16 shared ones fit. */
enum { DSRI_MAX_RANGES = 64 * 4 + 16 };
typedef struct dsri_ranges {
    uint32_t n_reads;
    uint32_t n_writes;
    dsr_range reads[DSRI_MAX_RANGES];
    dsr_range writes[DSRI_MAX_RANGES];
} dsri_ranges;

void dsri_ranges_read(dsri_ranges *ranges, const void *begin, uint64_t n_bytes);
void dsri_ranges_write(dsri_ranges *ranges, const void *begin, uint64_t n_bytes);

/* Sets the context's error text and returns `status`. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
dsr_status
dsri_fail(dsr_context *context, dsr_status status, const char *format, ...);

dsr_context *dsri_encoder_context(const dsr_encoder *encoder);
/* DSR_OK if the encoder takes commands now (not submitted since its last reset). */
dsr_status dsri_encoder_check_open(dsr_encoder *encoder);
/* Address of a view's first byte after checks that it lies in its buffer and belongs to the context. `what` names the
 * op, row and field in the error text. The null view gives DSR_ERR_NULL. Dtype and size checks are the ops layer's. */
dsr_status dsri_view_address(dsr_context *context, const dsr_view *view, const char *what, void **address);

/* Append a command. plan is copied (plan_bytes, 64-byte aligned copy); ranges are copied and merged. On failure the
 * encoder is unchanged. The back end chooses the kernel here: DSR_ERR_UNSUPPORTED_KERNEL if it has none. */
dsr_status dsri_encoder_append(dsr_encoder *encoder, dsri_op op, uint32_t n_rows, const void *plan, size_t plan_bytes,
                               const dsri_ranges *ranges);
/* What the owner of an encoder does just before a replay. Returns a literal that says why it may not run, or null. */
typedef const char *dsri_replay_guard(void *owner);
/* Every replay until the next reset asks `guard` first. */
void dsri_encoder_guard_replays(dsr_encoder *encoder, dsri_replay_guard *guard, void *owner);

#endif
