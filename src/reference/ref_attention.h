/* What two-pass and chunked attention have in common. */
#ifndef DSROWS_REF_ATTENTION_H
#define DSROWS_REF_ATTENTION_H

#include <stdint.h>

/* 0 where every head of the query must be zero: an index other than -1 out of range, or a selected row with a
 * non-finite element. (Where nothing is selected the sums are zero by themselves.) */
int ref_selection_is_usable(const uint16_t *kv, uint64_t kv_row_stride, uint64_t kv_len, const int32_t *indices,
                            uint64_t width);
/* logits[i] of one head for every selected slot i; other slots are not written. 0 where this head must be zero: its
 * sink, an element of q or a logit is not finite. */
int ref_head_logits(const uint16_t *q, const uint16_t *kv, uint64_t kv_row_stride, const int32_t *indices,
                    uint64_t width, float sink, float scale, float *logits);
/* numerator[f] = fma(weight, row[f], numerator[f]) */
void ref_add_weighted_row(float weight, const uint16_t *row, float *numerator);
/* output[f] = bf16(numerator[f] / denominator), +0 where that is not finite. */
void ref_store_head(const float *numerator, float denominator, uint16_t *output);
void ref_zero_head(uint16_t *output);

#endif
