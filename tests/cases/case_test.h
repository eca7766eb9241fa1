/* What hand-written cases share: cmocka, a direct call per level, small arrays and the values that many cases use. */
#ifndef TEST_CASE_TEST_H
#define TEST_CASE_TEST_H

#include "direct.h"
#include "guarded_memory.h"
#include "patterns.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BF16_NAN        ((uint16_t)0x7fc0)
#define BF16_INF        ((uint16_t)0x7f80)
#define BF16_ONE        ((uint16_t)0x3f80)
#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

#ifdef DSR_TEST_EMULATED
enum { IS_EMULATED = 1 };
#else
enum { IS_EMULATED = 0 };
#endif

static const dsr_isa all_isas[] = {DSR_ISA_SCALAR, DSR_ISA_AVX2, DSR_ISA_AVX512, DSR_ISA_NEON};

/* Run a case once per level of this machine, with 0 and with 3 threads in turn. */
static inline void on_every_level(void (*run)(direct *d))
{
    for (size_t i = 0; i < COUNT_OF(all_isas); i++) {
        if (dsr_isa_available(all_isas[i])) {
            direct d;
            direct_open(&d, all_isas[i], i % 2 ? 3 : 0);
            run(&d);
            direct_close(&d);
        }
    }
}

/* On the best level only: for cases that are about size. */
static inline void on_best_level(void (*run)(direct *d))
{
    direct d;
    direct_open(&d, DSR_ISA_AUTO, 2);
    run(&d);
    direct_close(&d);
}

static inline void *zeros(size_t n_bytes)
{
    void *memory = calloc(1, n_bytes ? n_bytes : 1);
    assert_non_null(memory);
    return memory;
}

static inline void *filled(size_t n_bytes, int byte)
{
    void *memory = zeros(n_bytes);
    memset(memory, byte, n_bytes);
    return memory;
}

static inline void assert_ok(const direct *d, dsr_status status)
{
    if (status != DSR_OK) {
        fail_msg("%s: %s", dsr_status_name(status), direct_error(d));
    }
}

/* Refused with this status and a text that says why, and nothing encoded. */
static inline void assert_refused(const direct *d, dsr_status got, dsr_status want)
{
    if (got != want) {
        fail_msg("got %s, want %s: %s", dsr_status_name(got), dsr_status_name(want), direct_error(d));
    }
    assert_true(strlen(direct_error(d)) > 0);
    assert_int_equal(dsr_encoder_n_commands(d->encoder), 0);
}

static inline uint16_t bf16_nearest(float x)
{
    const uint32_t bits = f32_to_bits(x);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline void fill_bf16(uint16_t *x, size_t n, uint16_t value)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = value;
    }
}

/* PAT of the case list: (((131 r + 17 j) mod 251) - 128) / 64, exact in BF16. */
static inline float pat(uint64_t r, uint64_t j)
{
    return (float)((int)((131 * r + 17 * j) % 251) - 128) / 64.0f;
}

static inline void fill_pat(uint16_t *x, uint64_t r, size_t n)
{
    for (size_t j = 0; j < n; j++) {
        x[j] = bf16_from_f32_exact(pat(r, j));
    }
}

/* ---- attention of one list ---------------------------------------------------------------------------------- */

typedef struct attention_case {
    const uint16_t *q; /* [n_heads][512] */
    const uint16_t *kv;
    uint64_t kv_len;
    const int32_t *indices;
    uint64_t width;
    const float *sinks;
    uint32_t n_heads; /* 0: 64 */
    float scale;      /* 0: that of the model */
} attention_case;

static inline void attention_row(direct *d, const attention_case *c, dsr_attention_row *row)
{
    memset(row, 0, sizeof *row);
    row->kv = direct_bf16(d, c->kv, (size_t)c->kv_len * DSR_HEAD_DIM);
    row->kv_len = c->kv_len;
    row->width = c->width;
}

/* One query alone, output [n_heads][512]. */
static inline dsr_status attend(direct *d, direct_form form, const attention_case *c, uint16_t *output)
{
    dsr_attention_row row;
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    attention_row(d, c, &row);
    desc.n_rows = 1;
    desc.rows = &row;
    desc.n_heads = c->n_heads ? c->n_heads : 64;
    desc.scale = c->scale > 0.0f ? c->scale : DSR_ATTENTION_SCALE;
    desc.q = direct_bf16(d, c->q, (size_t)desc.n_heads * DSR_HEAD_DIM);
    desc.indices = direct_i32(d, c->indices, (size_t)c->width);
    desc.sinks = direct_f32(d, c->sinks, desc.n_heads);
    desc.output = direct_bf16(d, output, (size_t)desc.n_heads * DSR_HEAD_DIM);
    const dsr_status status = direct_encode_attention(d, form, &desc);
    return status == DSR_OK ? direct_run(d) : status;
}

/* A call of one row with one query: q [n_heads, 128], weights [n_heads], list [top_k]. The row stays the caller's. */
static inline dsr_indexer_desc indexer_of_row(direct *d, const dsr_indexer_row *row, uint32_t n_heads, uint32_t top_k,
                                              const uint16_t *q, const float *weights, int32_t *list)
{
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    desc.n_rows = 1;
    desc.rows = row;
    desc.n_heads = n_heads;
    desc.top_k = top_k;
    desc.q = direct_bf16(d, q, (size_t)n_heads * DSR_INDEX_DIM);
    desc.weights = direct_f32(d, weights, n_heads);
    desc.output = direct_i32(d, list, top_k);
    return desc;
}

#endif
