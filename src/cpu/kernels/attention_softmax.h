/* Phase "softmax": logits to weights exp(logit - max), and the denominators. Heads are lanes. */
#ifndef DSRI_ATTENTION_SOFTMAX_H
#define DSRI_ATTENTION_SOFTMAX_H

#include "cpu/kernels/attention_query.h"
#include "cpu/vec/vmath.h"

#include <math.h>

/* Largest of `max` and the logits of selected slots [begin, end) of the VF_LANES heads that `logits` begins with; lanes
 * with a logit that is not finite are added to *bad. A non-finite element in q or in a selected KV row leaves no logit
 * of it finite, so this covers those too. */
static inline vf largest_logit(const float *logits, size_t begin, size_t end, vf max, vm *bad)
{
    for (size_t i = begin; i < end; i++) {
        const vf logit = vf_load(logits + i * DSRI_HEAD_BLOCK);
        *bad = vm_or(*bad, vm_not_finite(logit));
        max = vf_max(logit, max);
    }
    return max;
}

/* Turns the logits into weights, and adds these to `sum` in order. */
static inline vf exponentiate(float *logits, size_t begin, size_t end, vf max, vf sum)
{
    for (size_t i = begin; i < end; i++) {
        float *at = logits + i * DSRI_HEAD_BLOCK;
        const vf weight = v_exp(vf_sub(vf_load(at), max));
        vf_store(at, weight);
        sum = vf_add(sum, weight);
    }
    return sum;
}

static inline vf two_pass_denominator(float *logits, size_t n, vf sink, vm *bad)
{
    const vf max = largest_logit(logits, 0, n, sink, bad);
    return exponentiate(logits, 0, n, max, v_exp(vf_sub(sink, max)));
}

/* Weights relative to each chunk's own maximum; chunk_max ends as the chunk's factor exp(m_c - M). */
static inline vf chunked_denominator(const attention_query *a, uint32_t head, vf sink, vm *bad)
{
    float *const logits = weight_at(a, head, 0);
    vf max = sink;
    for (size_t c = 0; c < a->n_chunks; c++) {
        const size_t begin = a->chunk_begin[c], end = a->chunk_begin[c + 1];
        if (begin == end) {
            continue;
        }
        const vf first = vf_load(logits + begin * DSRI_HEAD_BLOCK);
        const vf chunk_max = largest_logit(logits, begin, end, first, bad);
        vf_store(a->chunk_max + c * a->n_heads + head, chunk_max);
        vf_store(a->chunk_sums + c * a->n_heads + head, exponentiate(logits, begin, end, chunk_max, vf_zero()));
        max = vf_max(chunk_max, max);
    }
    vf denominator = v_exp(vf_sub(sink, max));
    for (size_t c = 0; c < a->n_chunks; c++) {
        if (a->chunk_begin[c] == a->chunk_begin[c + 1]) {
            continue;
        }
        float *const factor = a->chunk_max + c * a->n_heads + head;
        const vf f = v_exp(vf_sub(vf_load(factor), max));
        vf_store(factor, f);
        denominator = vf_fma(f, vf_load(a->chunk_sums + c * a->n_heads + head), denominator);
    }
    return denominator;
}

static inline void compute_weights(const attention_query *a, uint32_t first_head, const float *sinks, int chunked)
{
    const size_t n = n_selected(a);
    for (uint32_t h = first_head; h < first_head + DSRI_HEAD_BLOCK; h += VF_LANES) {
        const vf sink = vf_load(sinks + h);
        vm bad = vm_not_finite(sink);
        vf denominator = vf_set1(NAN);
        if (n > 0) {
            denominator = chunked ? chunked_denominator(a, h, sink, &bad)
                                  : two_pass_denominator(weight_at(a, h, 0), n, sink, &bad);
        }
        vf_store(a->denominators + h, vf_select(bad, vf_set1(NAN), denominator));
    }
}

#endif
