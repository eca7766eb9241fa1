/* The plain C reference: scalar loops that define the bits of every device-exact op, one short file per op,
 * and a float64 form of each (accuracy_*.c) as the measure of accuracy.
 *
 * It knows nothing of the rest of the library: raw pointers in, results out. Nothing is validated; callers pass
 * legal arguments. BF16 travels as uint16_t. All matrices are row-major, the last dimension contiguous.
 * Callers run it in the default floating-point mode (round to nearest, no flush to zero). */
#ifndef DSROWS_REFERENCE_H
#define DSROWS_REFERENCE_H

#include <stdint.h>

enum {
    REF_HEAD_DIM = 512,   /* features of a query head and of a shared KV row */
    REF_INDEX_DIM = 128,  /* features of an index head and of an index key */
    REF_CHUNK_SLOTS = 64, /* slots of a chunk in chunked attention */
    REF_MAX_HEADS = 128
};

/* ---- scalars ---------------------------------------------------------------------------------------------- */

float ref_f32_from_bf16(uint16_t x);
/* Round to nearest even; a NaN stays a (quiet) NaN. */
uint16_t ref_bf16_from_f32(float x);
/* x <= 0. Error under 1 ulp on [-87.33, 0], exactly 1 at 0, never decreasing, exactly 0 where the result would be
 * subnormal and at -inf. NaN gives NaN. */
float ref_exp(float x);
/* Sine and cosine of any finite F32 angle in radians, right to the last F32 bit but for near-ties. Integer arithmetic
 * inside (fixed point after an exact reduction), so that no device can differ. */
void ref_sincos(float angle, float *sine, float *cosine);
/* Smallest power of two >= x, x > 0 and normal. */
float ref_pow2_ceil(float x);
/* Round a value with |x| <= 448 to E4M3 (nearest even), returned as F32. */
float ref_round_e4m3(float x);
/* Round to the E2M1 grid 0, .5, 1, 1.5, 2, 3, 4, 6 (ties to the even code, clamped to 6), returned as F32. */
float ref_round_e2m1(float x);

/* ---- attention -------------------------------------------------------------------------------------------- */

/* Two-pass attention of one query: q [n_heads][512] BF16; kv rows of 512 BF16, row t at kv + t * kv_row_stride;
 * indices [width]; sinks [n_heads]; output [n_heads][512] BF16. scratch: width floats. */
void ref_sparse_attention(const uint16_t *q, const uint16_t *kv, uint64_t kv_row_stride, uint64_t kv_len,
                          const int32_t *indices, uint64_t width, const float *sinks, float scale, uint32_t n_heads,
                          float *scratch, uint16_t *output);
/* Chunked ("flash") attention of one query, same operands. scratch: (width + 63) / 64 * 514 floats. */
void ref_flash_attention(const uint16_t *q, const uint16_t *kv, uint64_t kv_row_stride, uint64_t kv_len,
                         const int32_t *indices, uint64_t width, const float *sinks, float scale, uint32_t n_heads,
                         float *scratch, uint16_t *output);
/* Float64 form of either: output [n_heads][512] double. scratch: width doubles. */
void acc_sparse_attention(const uint16_t *q, const uint16_t *kv, uint64_t kv_row_stride, uint64_t kv_len,
                          const int32_t *indices, uint64_t width, const float *sinks, float scale, uint32_t n_heads,
                          double *scratch, double *output);

/* ---- lightning indexer ------------------------------------------------------------------------------------ */

/* Scores of one query: q [n_heads][128] BF16, weights [n_heads], keys of 128 BF16 at keys + t * key_row_stride.
 * scores[t] for t < n_keys: the score where t < n_causal and everything is finite, -inf elsewhere. */
void ref_indexer_scores(const uint16_t *q, const float *weights, const uint16_t *keys, uint64_t key_row_stride,
                        uint64_t n_keys, uint64_t n_causal, uint32_t n_heads, float *scores);
/* The k best finite scores by (greater score, then lower index) as index + offset, then -1. */
void ref_top_k(const float *scores, uint64_t n_scores, uint32_t k, int32_t offset, int32_t *indices);
void acc_indexer_scores(const uint16_t *q, const float *weights, const uint16_t *keys, uint64_t key_row_stride,
                        uint64_t n_keys, uint64_t n_causal, uint32_t n_heads, double *scores);

/* ---- compressor ------------------------------------------------------------------------------------------- */

/* State of a request before its first token: kv 0, score -inf. coff = ratio == 4 ? 2 : 1; both arrays are
 * [coff * ratio][coff * dim]. */
void ref_compressor_init(uint32_t ratio, uint32_t dim, float *kv_state, float *score_state);
/* One token at position pos. kv, score [coff*dim]; ape [ratio][coff*dim]; norm [dim]; output [dim] BF16: the emitted
 * row when (pos + 1) % ratio == 0, zeros otherwise. Returns 1 if the token completed a group (even if its row is zero
 * because something was not finite). */
int ref_compressor_step(uint32_t ratio, uint32_t dim, uint32_t pos, const float *kv, const float *score,
                        const float *ape, const float *norm, float epsilon, float *kv_state, float *score_state,
                        uint16_t *output);
/* Float64 emission from a state as ref_compressor_step leaves it before emission (all values finite or dormant -inf):
 * normalised row, without the BF16 rounding of the pooled value if round_pooled is 0. */
void acc_compressor_emit(uint32_t ratio, uint32_t dim, const float *kv_state, const float *score_state,
                         const float *norm, float epsilon, int round_pooled, double *output);

/* ---- edge ops --------------------------------------------------------------------------------------------- */

/* Interleaved RoPE on the last rope_dim features of n_heads heads of head_dim features at position pos.
 * frequencies [rope_dim / 2]. In: F32 or BF16; out: BF16. Input and output may be the same array. */
void ref_rope_f32(const float *input, uint32_t n_heads, uint32_t head_dim, uint32_t rope_dim, uint32_t pos,
                  const float *frequencies, int inverse, uint16_t *output);
void ref_rope_bf16(const uint16_t *input, uint32_t n_heads, uint32_t head_dim, uint32_t rope_dim, uint32_t pos,
                   const float *frequencies, int inverse, uint16_t *output);
/* The published tables as doubles: theta^(-2i/64), and theta 160000 with YaRN. */
void acc_rope_frequencies(double theta, int yarn, double frequencies[32]);

/* FP8 E4M3 fake quantisation of one row: blocks of 64 over the first dim - 64 features; the last 64 are copied. */
void ref_fake_quant_fp8(const uint16_t *input, uint32_t dim, float amax_floor, uint16_t *output);
/* Hadamard-128, times 128^-0.5; an element that is not finite counts as 0. */
void ref_hadamard(const uint16_t input[128], float output[128]);
/* The same, then FP4 E2M1 fake quantisation in blocks of 32. */
void ref_hadamard_fp4(const uint16_t input[128], float amax_floor, uint16_t output[128]);

/* One entry of a packed cache whose decoding is, bit for bit, what ref_hadamard_fp4 or ref_fake_quant_fp8 gives with
 * that floor. The 8th scale byte of a KV row is 0. */
void ref_encode_fp4_key(const uint16_t input[128], float amax_floor, uint8_t values[64], uint8_t scales[4]);
void ref_encode_fp8_row(const uint16_t input[512], float amax_floor, uint8_t values[576], uint8_t scales[8]);
/* One entry from values as a cache holds them: no Hadamard, and each block with the least scale that fits it, so that
 * packing what an entry decodes to (all of it finite) keeps the values. */
void ref_pack_fp4_key(const uint16_t input[128], uint8_t values[64], uint8_t scales[4]);
void ref_pack_fp8_row(const uint16_t input[512], uint8_t values[576], uint8_t scales[8]);

/* RMS norm of one row of n F32 features: squares summed by halving over the feature index padded with zeros to a power
 * of two, r = 1 / sqrt(sum / n + eps), y = (x * r) * weight (weight may be null: y = x * r). scratch: that power of two
 * of floats. */
void ref_rms_norm(const float *input, uint32_t n, const float *weight, float epsilon, float *scratch, float *output);

/* ---- packed caches ---------------------------------------------------------------------------------------- */

/* An index key: 64 bytes of pairs of E2M1 codes, the even feature in the low nibble, and an E8M0 scale per 32 features.
 * Each feature is value * 2^(scale - 127) in F32, rounded to BF16; scale 255 gives NaN, as 7fc0. */
void ref_decode_fp4_key(const uint8_t values[64], const uint8_t scales[4], uint16_t key[128]);
/* A KV row: 448 E4M3 codes with an E8M0 scale per 64, likewise (the codes 7f and ff are NaN); then 64 BF16 as they are.
 */
void ref_decode_fp8_row(const uint8_t values[576], const uint8_t scales[7], uint16_t row[512]);

/* ---- projection ------------------------------------------------------------------------------------------- */

/* One output: sum over k < n of x[k] * w[k], cut into segments of 512, each one fma chain from 0 in index order,
 * segment sums added in order. */
float ref_projection_bf16(const uint16_t *x, const uint16_t *w, uint64_t n);
/* The same with E4M3 weights and one F32 scale per 128 inputs: w decodes to F32 as e4m3 * scale. */
float ref_projection_fp8(const uint16_t *x, const uint8_t *w, const float *scales, uint64_t n);

#endif
