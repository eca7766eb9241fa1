/* What a matrix product library leaves to its user: everything between and after the products of the indexer and of
 * sparse attention. Plain C, built for the machine at hand with -O3 -ffast-math. And exact results to check against. */
#ifndef DSROWS_BENCH_GLUE_H
#define DSROWS_BENCH_GLUE_H

#include <stdint.h>

enum { N_HEADS = 64, INDEX_DIM = 128, HEAD_DIM = 512, N_SLOTS = 640, TOP_K = 512 };

uint16_t glue_to_bf16(float x);
float glue_to_f32(uint16_t x);

/* scores[i] = sum over heads of weights[h] * max(0, products[i][h]). */
void glue_relu_sum(const float *products, uint32_t n_keys, const float *weights, float *scores);
/* The TOP_K best of n, at least TOP_K, best first, equal scores by lower index. keys: n of scratch. */
void glue_top_k(const float *scores, uint32_t n, uint64_t *keys, int32_t *list);

/* out[i] = pool[indices[i]]; row_bytes: 1024 or 2048. */
void glue_gather(const void *pool, uint32_t row_bytes, const int32_t *indices, uint32_t n, void *out);
/* p[h][s] = exp(scale * (logits[s][h] - max)) for n heads, a multiple of 16, from first; inverse[h] = 1 / their sum
 * with the sink's. logits [N_SLOTS, N_HEADS], p [N_HEADS, N_SLOTS] F32 or BF16. */
void glue_softmax(const float *logits, uint32_t first, uint32_t n, float scale, const float *sinks, int is_bf16,
                  void *p, float *inverse);
/* output[h][d] = values[h][d] * inverse[h], as BF16. */
void glue_output(const float *values, uint32_t n_heads, const float *inverse, uint16_t *output);

/* Float64 results, and how far off a correct F32 result can be (scores) or the sum of the terms' sizes (attention). */
void exact_scores(const float *keys, uint32_t n, const float *q, const float *weights, double *scores, double *bound);
void exact_attention(const float *pool, const int32_t *indices, const float *q, double scale, const float *sinks,
                     double *output, double *sizes);

#endif
