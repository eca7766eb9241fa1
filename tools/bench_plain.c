#include "bench_plain.h"

#include "bf16.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DIM = 512 };

struct bench_plain {
    uint32_t n_rows, ratio, dim;
    uint32_t n_items, width; /* rows and columns of a state */
    float *kv_states, *score_states, *kv, *score, *ape, *norm;
    uint16_t *output;
};

static float *random_values(size_t n)
{
    float *values = cli_allocate(n * sizeof *values);
    for (size_t i = 0; i < n; i++) {
        values[i] = (float)rand() / (float)RAND_MAX * 4 - 2;
    }
    return values;
}

bench_plain *bench_plain_create(const bench_shape *shape)
{
    if (shape->op != BENCH_COMPRESSOR || shape->dim > MAX_DIM) {
        return NULL;
    }
    bench_plain *p = cli_allocate(sizeof *p);
    const uint32_t halves = shape->ratio == 4 ? 2 : 1;
    p->n_rows = shape->rows;
    p->ratio = shape->ratio;
    p->dim = shape->dim;
    p->n_items = halves * shape->ratio;
    p->width = halves * shape->dim;
    p->kv_states = random_values((size_t)p->n_rows * p->n_items * p->width);
    p->score_states = random_values((size_t)p->n_rows * p->n_items * p->width);
    p->kv = random_values((size_t)p->n_rows * p->width);
    p->score = random_values((size_t)p->n_rows * p->width);
    p->ape = random_values((size_t)p->ratio * p->width);
    p->norm = random_values(p->dim);
    p->output = cli_allocate((size_t)p->n_rows * p->dim * sizeof *p->output);
    return p;
}

static float pool(const bench_plain *p, const float *kv, const float *score, uint32_t f)
{
    float most = -INFINITY, sum = 0, total = 0;
    for (uint32_t i = 0; i < p->n_items; i++) {
        const float s = score[i * p->width + (i < p->ratio ? f : p->width - p->dim + f)];
        most = s > most ? s : most;
    }
    for (uint32_t i = 0; i < p->n_items; i++) {
        const uint32_t at = i * p->width + (i < p->ratio ? f : p->width - p->dim + f);
        const float weight = expf(score[at] - most);
        sum += weight;
        total += weight * kv[at];
    }
    return total / sum;
}

static void step(const bench_plain *p, uint32_t row)
{
    const size_t state = (size_t)p->n_items * p->width, last = state - p->width;
    float *kv = p->kv_states + row * state, *score = p->score_states + row * state;
    float pooled[MAX_DIM], squares = 0;
    for (uint32_t f = 0; f < p->width; f++) {
        kv[last + f] = p->kv[row * p->width + f];
        score[last + f] = p->score[row * p->width + f] + p->ape[(p->ratio - 1) * p->width + f];
    }
    for (uint32_t f = 0; f < p->dim; f++) {
        pooled[f] = pool(p, kv, score, f);
        squares += pooled[f] * pooled[f];
    }
    const float factor = 1 / sqrtf(squares / (float)p->dim + 1e-6f);
    for (uint32_t f = 0; f < p->dim; f++) {
        p->output[row * p->dim + f] = bf16_round(pooled[f] * factor * p->norm[f]);
    }
    if (p->n_items > p->ratio) {
        memcpy(kv, kv + state / 2, state / 2 * sizeof *kv);
        memcpy(score, score + state / 2, state / 2 * sizeof *score);
    }
}

void bench_plain_run(bench_plain *p)
{
    for (uint32_t row = 0; row < p->n_rows; row++) {
        step(p, row);
    }
}

void bench_plain_destroy(bench_plain *p)
{
    if (p != NULL) {
        free(p->kv_states);
        free(p->score_states);
        free(p->kv);
        free(p->score);
        free(p->ape);
        free(p->norm);
        free(p->output);
        free(p);
    }
}
