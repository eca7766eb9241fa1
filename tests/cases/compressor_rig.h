/* A compressor of one shape with requests of their own states, driven token by token through the public API. */
#ifndef TEST_COMPRESSOR_RIG_H
#define TEST_COMPRESSOR_RIG_H

#include "case_test.h"

enum { RIG_MAX_ROWS = 8, RIG_MAX_COLUMNS = 1024 };

typedef struct rig {
    uint32_t ratio, dim, columns;
    size_t n_state;
    float *ape, *norm;
} rig;

typedef struct rig_state {
    float *kv, *score;
} rig_state;

static inline rig rig_open(uint32_t ratio, uint32_t dim)
{
    rig r = {ratio, dim, (ratio == 4 ? 2 : 1) * dim, (size_t)dsr_compressor_state_elements(ratio, dim), NULL, NULL};
    r.ape = zeros((size_t)ratio * r.columns * sizeof *r.ape);
    r.norm = zeros(dim * sizeof *r.norm);
    for (uint32_t f = 0; f < dim; f++) {
        r.norm[f] = 1.0f;
    }
    return r;
}

static inline void rig_close(rig *r)
{
    free(r->ape);
    free(r->norm);
}

/* A state full of rubbish: the call at position 0 sets it. */
static inline rig_state rig_state_new(const rig *r)
{
    const rig_state state = {filled(r->n_state * sizeof(float), 0xff), filled(r->n_state * sizeof(float), 0x55)};
    return state;
}

static inline void rig_state_free(rig_state *state)
{
    free(state->kv);
    free(state->score);
}

static inline void rig_state_copy(const rig *r, rig_state *to, const rig_state *from)
{
    memcpy(to->kv, from->kv, r->n_state * sizeof(float));
    memcpy(to->score, from->score, r->n_state * sizeof(float));
}

static inline void assert_same_state(const rig *r, const rig_state *a, const rig_state *b)
{
    assert_memory_equal(a->kv, b->kv, r->n_state * sizeof(float));
    assert_memory_equal(a->score, b->score, r->n_state * sizeof(float));
}

/* n_tokens tokens of a request from position pos; kv and score hold them, [n_tokens][columns]. */
typedef struct rig_row {
    rig_state *state;
    uint32_t pos, n_tokens;
    const float *kv, *score;
    uint16_t *output; /* max(1, emitted) rows of dim */
} rig_row;

/* One joint call. */
static inline dsr_status rig_step(direct *d, const rig *r, const rig_row *rows, uint32_t n_rows)
{
    dsr_compressor_row at[RIG_MAX_ROWS];
    dsr_compressor_desc desc = DSR_COMPRESSOR_DESC_INIT;
    size_t n_tokens = 0, n_out = 0;
    memset(at, 0, sizeof at);
    for (uint32_t i = 0; i < n_rows; i++) {
        const uint32_t emitted = dsr_compressor_emitted(r->ratio, rows[i].pos, rows[i].n_tokens);
        at[i].kv_state = direct_f32(d, rows[i].state->kv, r->n_state);
        at[i].score_state = direct_f32(d, rows[i].state->score, r->n_state);
        at[i].token_row = n_tokens;
        at[i].output_row = n_out;
        at[i].start_pos = rows[i].pos;
        at[i].n_tokens = rows[i].n_tokens;
        n_tokens += rows[i].n_tokens;
        n_out += emitted ? emitted : 1;
    }
    float *kv = zeros(n_tokens * r->columns * sizeof *kv), *score = zeros(n_tokens * r->columns * sizeof *kv);
    uint16_t *output = filled(n_out * r->dim * sizeof *output, 0xff);
    for (uint32_t i = 0; i < n_rows; i++) {
        const size_t n = (size_t)rows[i].n_tokens * r->columns;
        memcpy(kv + (size_t)at[i].token_row * r->columns, rows[i].kv, n * sizeof *kv);
        memcpy(score + (size_t)at[i].token_row * r->columns, rows[i].score, n * sizeof *kv);
    }
    desc.n_rows = n_rows;
    desc.rows = at;
    desc.ratio = r->ratio;
    desc.dim = r->dim;
    desc.epsilon = 1e-6f;
    desc.kv = direct_f32(d, kv, n_tokens * r->columns);
    desc.score = direct_f32(d, score, n_tokens * r->columns);
    desc.ape = direct_f32(d, r->ape, (size_t)r->ratio * r->columns);
    desc.norm = direct_f32(d, r->norm, r->dim);
    desc.output = direct_bf16(d, output, n_out * r->dim);
    dsr_status status = dsr_encode_compressor(d->encoder, &desc);
    status = status == DSR_OK ? direct_run(d) : status;
    for (uint32_t i = 0; i < n_rows && status == DSR_OK; i++) {
        const size_t n = (i + 1 < n_rows ? at[i + 1].output_row : n_out) - at[i].output_row;
        memcpy(rows[i].output, output + at[i].output_row * r->dim, n * r->dim * sizeof *output);
    }
    free(kv);
    free(score);
    free(output);
    return status;
}

/* One token of one request whose columns all follow from its number: kv and score as given by `make`. */
typedef void (*rig_token)(const rig *r, uint64_t token, float *kv, float *score);

/* Tokens first..first + n - 1 of the stream `make` at positions from pos on, alone, one call each. output: the rows
 * that are emitted, one after the other. Returns how many. */
static inline uint32_t rig_feed(direct *d, const rig *r, rig_state *state, uint32_t pos, uint64_t first, uint32_t n,
                                rig_token make, uint16_t *output)
{
    float kv[RIG_MAX_COLUMNS], score[RIG_MAX_COLUMNS];
    uint16_t row[DSR_HEAD_DIM];
    uint32_t n_emitted = 0;
    for (uint32_t i = 0; i < n; i++) {
        const rig_row at = {state, pos + i, 1, kv, score, row};
        make(r, first + i, kv, score);
        assert_ok(d, rig_step(d, r, &at, 1));
        if (dsr_compressor_emitted(r->ratio, pos + i, 1)) {
            memcpy(output + (size_t)n_emitted++ * r->dim, row, r->dim * sizeof *row);
        }
    }
    return n_emitted;
}

/* Values and scores of PAT. */
static inline void pat_token(const rig *r, uint64_t token, float *kv, float *score)
{
    for (uint32_t f = 0; f < r->columns; f++) {
        kv[f] = pat(token, f);
        score[f] = pat(token + 1000, f);
    }
}

#endif
