/* Phase "softmax": logits to weights exp(logit - max), and the denominators, for one block of heads. Heads are lanes.
 */
#ifndef DSRI_ATTENTION_SOFTMAX_H
#define DSRI_ATTENTION_SOFTMAX_H

#include "cpu/kernels/attention_query.h"
#include "cpu/vec/vmath.h"

#include <math.h>

enum { BLOCK_VECTORS = DSRI_HEAD_BLOCK / VF_LANES };

typedef struct block_softmax {
    vf max[BLOCK_VECTORS];
    vf sum[BLOCK_VECTORS];
    vm bad[BLOCK_VECTORS]; /* heads with a sink or a logit that is not finite */
} block_softmax;

/* Raises max to the largest logit of n slots, and adds to bad. A non-finite element in q or in a selected KV row leaves
 * no logit of it finite, so this covers those too. */
static inline void scan_logits(block_softmax *s, const float *logits, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        VEC_UNROLL
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            const vf logit = vf_load(logits + i * DSRI_HEAD_BLOCK + v * VF_LANES);
            s->bad[v] = vm_or(s->bad[v], vm_not_finite(logit));
            s->max[v] = vf_max(logit, s->max[v]);
        }
    }
}

/* Turns the logits of n slots into weights relative to max, and adds these to sum in order. */
static inline void exponentiate(block_softmax *s, float *logits, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        VEC_UNROLL
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            float *at = logits + i * DSRI_HEAD_BLOCK + v * VF_LANES;
            const vf weight = v_exp(vf_sub(vf_load(at), s->max[v]));
            vf_store(at, weight);
            s->sum[v] = vf_add(s->sum[v], weight);
        }
    }
}

static inline void two_pass_softmax(const attention_query *a, uint32_t head, block_softmax *s)
{
    float *const logits = weight_at(a, head, 0);
    const size_t n = n_selected(a);
    block_softmax total = *s;
    scan_logits(&total, logits, n);
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        total.sum[v] = v_exp(vf_sub(s->max[v], total.max[v]));
    }
    exponentiate(&total, logits, n);
    *s = total;
}

/* Each chunk on its own: weights relative to its maximum, which goes to chunk_max, and their sum. */
static inline void chunk_softmax(const attention_query *a, uint32_t head, size_t chunk, block_softmax *s)
{
    const size_t begin = a->chunk_begin[chunk], n = a->chunk_begin[chunk + 1] - begin;
    float *const logits = weight_at(a, head, begin);
    block_softmax own = *s;
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        own.max[v] = vf_load(logits + v * VF_LANES);
        own.sum[v] = vf_zero();
    }
    scan_logits(&own, logits, n);
    exponentiate(&own, logits, n);
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        const size_t at = chunk * a->n_heads + head + (size_t)(v * VF_LANES);
        vf_store(a->chunk_max + at, own.max[v]);
        vf_store(a->chunk_sums + at, own.sum[v]);
        s->max[v] = vf_max(own.max[v], s->max[v]);
        s->bad[v] = own.bad[v];
    }
}

/* chunk_max becomes the chunk's factor exp(m_c - M), and the chunk's sum times it is added to the denominator. */
static inline void combine_chunk(const attention_query *a, uint32_t head, size_t chunk, block_softmax *s)
{
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        const size_t at = chunk * a->n_heads + head + (size_t)(v * VF_LANES);
        const vf factor = v_exp(vf_sub(vf_load(a->chunk_max + at), s->max[v]));
        vf_store(a->chunk_max + at, factor);
        s->sum[v] = vf_fma(factor, vf_load(a->chunk_sums + at), s->sum[v]);
    }
}

static inline void chunked_softmax(const attention_query *a, uint32_t head, block_softmax *s)
{
    const block_softmax sinks = *s;
    for (size_t c = 0; c < a->n_chunks; c++) {
        if (a->chunk_begin[c] < a->chunk_begin[c + 1]) {
            chunk_softmax(a, head, c, s);
        }
    }
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        s->sum[v] = v_exp(vf_sub(sinks.max[v], s->max[v]));
    }
    for (size_t c = 0; c < a->n_chunks; c++) {
        if (a->chunk_begin[c] < a->chunk_begin[c + 1]) {
            combine_chunk(a, head, c, s);
        }
    }
}

/* Weights and denominators of heads [head, + DSRI_HEAD_BLOCK). */
static inline void compute_weights(const attention_query *a, uint32_t head, const float *sinks, int chunked)
{
    const vf zero_output = vf_set1(NAN);
    block_softmax s;
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        s.max[v] = vf_load(sinks + head + v * VF_LANES);
        s.bad[v] = vm_not_finite(s.max[v]);
        s.sum[v] = zero_output;
    }
    if (n_selected(a) > 0) {
        if (chunked) {
            chunked_softmax(a, head, &s);
        } else {
            two_pass_softmax(a, head, &s);
        }
    }
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        vf_store(a->denominators + head + v * VF_LANES, vf_select(s.bad[v], zero_output, s.sum[v]));
    }
}

#endif
