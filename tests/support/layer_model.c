#include "layer_model.h"
#include "need_memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD = 512, ROPE = 64, INDEX = 128, WINDOW = 128, MAX_HEADS = 128 };

typedef struct matrix {
    uint64_t rows, columns;
    double *values;
} matrix;

struct model_layer {
    dsr_attention_config config;
    uint32_t ratio;
    float frequencies[ROPE / 2];
    matrix q_a, q_a_norm, q_b, kv, kv_norm, sinks, o_a, o_b;
    matrix main_kv, main_gate, main_bias, main_norm;
    matrix index_q, index_kv, index_gate, index_bias, index_norm, index_weights;
};

struct model_request {
    const model_layer *layer;
    uint32_t n_tokens, first_row;
    double *hidden;                /* [n_tokens, hidden_size] */
    double *kv;                    /* [n_tokens - first_row, 512] */
    double *main_kv, *main_gate;   /* [n_tokens, coff * 512] */
    double *index_kv, *index_gate; /* [n_tokens, 256] */
};

struct model_rows {
    const model_layer *layer;
    const model_request *request;
    uint32_t boundaries;
    double *kv;         /* [n_tokens - first_row, 512] */
    double *entries;    /* [n_tokens / ratio, 512] */
    double *index_keys; /* [n_tokens / ratio, 128] */
};

static const char *const names[MODEL_N_BOUNDARIES] = {
    "q residual", "q",         "window row", "pooled",    "entry norm",           "entry",     "index pooled",
    "index norm", "index key", "index q",    "attention", "attention, unrotated", "o_a output"};

const char *model_boundary_name(model_boundary boundary)
{
    return names[boundary];
}

static double *allocate(uint64_t n)
{
    return need_memory(calloc(n ? n : 1, sizeof(double)));
}

/* ---- BF16 ------------------------------------------------------------------------------------------------------ */

static double from_bf16(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* To nearest even, straight from float64. */
static double to_bf16(double x)
{
    if (x == 0 || !isfinite(x))
        return x;
    int exponent;
    (void)frexp(x, &exponent);
    return ldexp(nearbyint(ldexp(x, 8 - exponent)), exponent - 8);
}

static void round_at(uint32_t boundaries, model_boundary boundary, double *x, uint64_t n)
{
    if (boundaries >> boundary & 1)
        for (uint64_t i = 0; i < n; i++)
            x[i] = to_bf16(x[i]);
}

/* ---- loading --------------------------------------------------------------------------------------------------- */

typedef struct source {
    dsr_tensor_lookup_fn lookup;
    void *user;
    const char *prefix;
} source;

static dsr_tensor find(const source *from, const char *name, const char *suffix)
{
    char full_name[256];
    dsr_tensor t = {0};
    snprintf(full_name, sizeof full_name, "%s%s%s", from->prefix, name, suffix);
    if (!from->lookup(from->user, full_name, &t)) {
        fprintf(stderr, "%s is missing\n", full_name);
        abort();
    }
    return t;
}

static double from_e4m3(uint8_t x)
{
    const int exponent = x >> 3 & 15, mantissa = x & 7;
    const double size = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    if (exponent == 15 && mantissa == 7)
        return NAN;
    return x >> 7 ? -size : size;
}

/* Element i of a tensor: U8 is E4M3. */
static double element(const dsr_tensor *t, uint64_t i)
{
    const unsigned char *data = t->data;
    float wide;
    uint16_t half;
    if (t->dtype == DSR_DTYPE_U8)
        return from_e4m3(data[i]);
    if (t->dtype == DSR_DTYPE_F32) {
        memcpy(&wide, data + 4 * i, 4);
        return (double)wide;
    }
    memcpy(&half, data + 2 * i, 2);
    return from_bf16(half);
}

/* FP8: one scale per block of 128 x 128, F32 or E8M0. */
static void apply_scales(const source *from, const char *name, matrix *m)
{
    const dsr_tensor scales = find(from, name, "_scale_inv");
    const uint64_t blocks = (m->columns + 127) / 128;
    for (uint64_t r = 0; r < m->rows; r++)
        for (uint64_t c = 0; c < m->columns; c++) {
            const uint64_t at = r / 128 * blocks + c / 128;
            const double scale = scales.dtype == DSR_DTYPE_U8 ? ldexp(1, ((const uint8_t *)scales.data)[at] - 127)
                                                              : element(&scales, at);
            m->values[r * m->columns + c] *= scale;
        }
}

static matrix load(const source *from, const char *name)
{
    const dsr_tensor t = find(from, name, "");
    matrix m = {1, 1, NULL};
    m.columns = t.shape[t.n_dims - 1];
    m.rows = t.n_dims == 2 ? t.shape[0] : 1;
    m.values = allocate(m.rows * m.columns);
    for (uint64_t i = 0; i < m.rows * m.columns; i++)
        m.values[i] = element(&t, i);
    if (t.dtype == DSR_DTYPE_U8)
        apply_scales(from, name, &m);
    return m;
}

static void set_frequencies(model_layer *layer)
{
    const dsr_attention_config *c = &layer->config;
    const double log_theta = log((double)c->rope_theta);
    const double context = (double)c->yarn_original_context / (2 * acos(-1.0));
    double low = floor(ROPE / 2 * log(context / (double)c->yarn_beta_fast) / log_theta);
    double high = ceil(ROPE / 2 * log(context / (double)c->yarn_beta_slow) / log_theta);
    low = fmax(low, 0);
    high = fmin(high, ROPE - 1);
    for (int i = 0; i < ROPE / 2; i++) {
        const double plain = exp(-log_theta * i / (ROPE / 2));
        const double ramp = fmin(fmax((i - low) / (high == low ? 0.001 : high - low), 0), 1);
        layer->frequencies[i] = (float)(plain / (double)c->yarn_factor * ramp + plain * (1 - ramp));
    }
}

model_layer *model_layer_new(const dsr_attention_config *config, dsr_tensor_lookup_fn lookup, void *user,
                             const char *prefix)
{
    const source from = {lookup, user, prefix};
    model_layer *l = need_memory(calloc(1, sizeof *l));
    l->config = *config;
    l->ratio = (uint32_t)config->kind;
    set_frequencies(l);
    l->q_a = load(&from, "q_a_proj.weight");
    l->q_a_norm = load(&from, "q_a_norm.weight");
    l->q_b = load(&from, "q_b_proj.weight");
    l->kv = load(&from, "kv_proj.weight");
    l->kv_norm = load(&from, "kv_norm.weight");
    l->sinks = load(&from, "sinks");
    l->o_a = load(&from, "o_a_proj.weight");
    l->o_b = load(&from, "o_b_proj.weight");
    if (l->ratio) {
        l->main_kv = load(&from, "compressor.kv_proj.weight");
        l->main_gate = load(&from, "compressor.gate_proj.weight");
        l->main_bias = load(&from, "compressor.position_bias");
        l->main_norm = load(&from, "compressor.kv_norm.weight");
    }
    if (l->ratio == 4) {
        l->index_q = load(&from, "compressor.indexer.q_b_proj.weight");
        l->index_kv = load(&from, "compressor.indexer.kv_proj.weight");
        l->index_gate = load(&from, "compressor.indexer.gate_proj.weight");
        l->index_bias = load(&from, "compressor.indexer.position_bias");
        l->index_norm = load(&from, "compressor.indexer.kv_norm.weight");
        l->index_weights = load(&from, "compressor.indexer.scorer.weights_proj.weight");
    }
    return l;
}

const dsr_attention_config *model_config(const model_layer *l)
{
    return &l->config;
}

void model_layer_free(model_layer *l)
{
    matrix *all[] = {&l->q_a,     &l->q_a_norm, &l->q_b,        &l->kv,         &l->kv_norm,    &l->sinks,
                     &l->o_a,     &l->o_b,      &l->main_kv,    &l->main_gate,  &l->main_bias,  &l->main_norm,
                     &l->index_q, &l->index_kv, &l->index_gate, &l->index_bias, &l->index_norm, &l->index_weights};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]->values);
    free(l);
}

/* ---- steps of the formula -------------------------------------------------------------------------------------- */

/* y = W x; four sums side by side. */
static void multiply(const double *w, uint64_t rows, uint64_t columns, const double *x, double *y)
{
    for (uint64_t r = 0; r < rows; r++) {
        double sum[4] = {0};
        for (uint64_t c = 0; c < columns; c += 4)
            for (uint64_t k = 0; k < 4; k++)
                sum[k] += w[r * columns + c + k] * x[c + k];
        y[r] = sum[0] + sum[1] + (sum[2] + sum[3]);
    }
}

static double *multiply_tokens(const model_request *r, const matrix *w, uint32_t first)
{
    const uint64_t hidden_size = r->layer->config.hidden_size;
    double *y = allocate((uint64_t)(r->n_tokens - first) * w->rows);
    for (uint32_t t = first; t < r->n_tokens; t++)
        multiply(w->values, w->rows, w->columns, r->hidden + t * hidden_size, y + (uint64_t)(t - first) * w->rows);
    return y;
}

static void rms_norm(double *x, uint32_t n, double epsilon, const double *weight)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    const double r = 1 / sqrt(sum / n + epsilon);
    for (uint32_t i = 0; i < n; i++)
        x[i] = x[i] * r * (weight ? weight[i] : 1);
}

/* Turns the last 64 of n features; the angle is one F32 product, as the model has it. */
static void rotate(const model_layer *l, double *x, uint32_t n, uint32_t position, int inverse)
{
    double *tail = x + n - ROPE;
    for (int i = 0; i < ROPE / 2; i++) {
        const float angle = (float)position * l->frequencies[i];
        const double c = cos((double)angle), s = inverse ? -sin((double)angle) : sin((double)angle);
        const double a = tail[2 * i], b = tail[2 * i + 1];
        tail[2 * i] = a * c - b * s;
        tail[2 * i + 1] = a * s + b * c;
    }
}

model_request *model_request_new(const model_layer *l, const void *hidden, uint32_t n_tokens, uint32_t first_row)
{
    model_request *r = need_memory(calloc(1, sizeof *r));
    r->layer = l;
    r->n_tokens = n_tokens;
    r->first_row = first_row;
    r->hidden = allocate((uint64_t)n_tokens * l->config.hidden_size);
    for (uint64_t i = 0; i < (uint64_t)n_tokens * l->config.hidden_size; i++) {
        uint16_t half;
        memcpy(&half, (const char *)hidden + 2 * i, 2);
        r->hidden[i] = from_bf16(half);
    }
    r->kv = multiply_tokens(r, &l->kv, first_row);
    if (l->ratio) {
        r->main_kv = multiply_tokens(r, &l->main_kv, 0);
        r->main_gate = multiply_tokens(r, &l->main_gate, 0);
    }
    if (l->ratio == 4) {
        r->index_kv = multiply_tokens(r, &l->index_kv, 0);
        r->index_gate = multiply_tokens(r, &l->index_gate, 0);
    }
    return r;
}

void model_request_free(model_request *r)
{
    free(r->hidden);
    free(r->kv);
    free(r->main_kv);
    free(r->main_gate);
    free(r->index_kv);
    free(r->index_gate);
    free(r);
}

/* One feature of entry g: a softmax over the group's tokens; for ratio 4 also over the group before, whose first half
 * of columns looks ahead. */
static double pool(const double *kv, const double *gate, const double *bias, uint32_t ratio, uint32_t dim, uint32_t g,
                   uint32_t feature)
{
    const uint32_t coff = ratio == 4 ? 2 : 1, n_columns = coff * dim;
    double top = -HUGE_VAL, sum = 0, pooled = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < coff * ratio; i++) {
            const int is_before = coff == 2 && i < ratio;
            if (is_before && g == 0)
                continue;
            const uint32_t place = i % ratio, column = feature + (coff == 2 && !is_before ? dim : 0);
            const uint64_t at = (uint64_t)((g - (is_before ? 1 : 0)) * ratio + place) * n_columns + column;
            const double score = gate[at] + bias[place * n_columns + column];
            if (pass == 0) {
                top = fmax(top, score);
            } else {
                sum += exp(score - top);
                pooled += exp(score - top) * kv[at];
            }
        }
    }
    return pooled / sum;
}

static double *compress(const model_rows *rows, const double *kv, const double *gate, const double *bias,
                        const double *norm, uint32_t dim, model_boundary first_boundary)
{
    const model_layer *l = rows->layer;
    const uint32_t n = rows->request->n_tokens / l->ratio;
    double *entries = allocate((uint64_t)n * dim);
    for (uint32_t g = 0; g < n; g++) {
        double *entry = entries + (uint64_t)g * dim;
        for (uint32_t f = 0; f < dim; f++)
            entry[f] = pool(kv, gate, bias, l->ratio, dim, g, f);
        round_at(rows->boundaries, first_boundary, entry, dim);
        rms_norm(entry, dim, (double)l->config.epsilon, norm);
        round_at(rows->boundaries, (model_boundary)(first_boundary + 1), entry, dim);
        rotate(l, entry, dim, g * l->ratio, 0);
        round_at(rows->boundaries, (model_boundary)(first_boundary + 2), entry, dim);
    }
    return entries;
}

model_rows *model_rows_new(const model_layer *l, const model_request *r, uint32_t boundaries)
{
    model_rows *rows = need_memory(calloc(1, sizeof *rows));
    rows->layer = l;
    rows->request = r;
    rows->boundaries = boundaries;
    const uint64_t n = (uint64_t)(r->n_tokens - r->first_row) * HEAD;
    rows->kv = allocate(n);
    memcpy(rows->kv, r->kv, n * sizeof *rows->kv);
    for (uint32_t t = r->first_row; t < r->n_tokens; t++) {
        double *row = rows->kv + (uint64_t)(t - r->first_row) * HEAD;
        rms_norm(row, HEAD, (double)l->config.epsilon, l->kv_norm.values);
        rotate(l, row, HEAD, t, 0);
        round_at(boundaries, MODEL_KV, row, HEAD);
    }
    if (l->ratio)
        rows->entries =
            compress(rows, r->main_kv, r->main_gate, l->main_bias.values, l->main_norm.values, HEAD, MODEL_POOLED);
    if (l->ratio == 4)
        rows->index_keys = compress(rows, r->index_kv, r->index_gate, l->index_bias.values, l->index_norm.values, INDEX,
                                    MODEL_INDEX_POOLED);
    return rows;
}

void model_rows_free(model_rows *rows)
{
    free(rows->kv);
    free(rows->entries);
    free(rows->index_keys);
    free(rows);
}

const model_layer *model_rows_layer(const model_rows *rows)
{
    return rows->layer;
}

uint32_t model_visible(const model_layer *l, uint32_t token)
{
    return l->ratio ? (token + 1) / l->ratio : 0;
}

static double *q_residual(const model_rows *rows, uint32_t token)
{
    const model_layer *l = rows->layer;
    double *residual = allocate(l->q_a.rows);
    multiply(l->q_a.values, l->q_a.rows, l->q_a.columns, rows->request->hidden + (uint64_t)token * l->q_a.columns,
             residual);
    rms_norm(residual, (uint32_t)l->q_a.rows, (double)l->config.epsilon, l->q_a_norm.values);
    round_at(rows->boundaries, MODEL_Q_RESIDUAL, residual, l->q_a.rows);
    return residual;
}

/* ---- selection ------------------------------------------------------------------------------------------------- */

void model_scores(const model_rows *rows, uint32_t token, double *scores)
{
    const model_layer *l = rows->layer;
    const uint32_t n_heads = l->config.n_index_heads;
    double *residual = q_residual(rows, token), *q = allocate((uint64_t)n_heads * INDEX), weights[MAX_HEADS];
    multiply(l->index_q.values, l->index_q.rows, l->index_q.columns, residual, q);
    for (uint32_t h = 0; h < n_heads; h++)
        rotate(l, q + h * INDEX, INDEX, token, 0);
    round_at(rows->boundaries, MODEL_INDEX_Q, q, (uint64_t)n_heads * INDEX);
    multiply(l->index_weights.values, n_heads, l->index_weights.columns,
             rows->request->hidden + (uint64_t)token * l->index_weights.columns, weights);
    for (uint32_t g = 0; g < model_visible(l, token); g++) {
        double dots[MAX_HEADS];
        multiply(q, n_heads, INDEX, rows->index_keys + (uint64_t)g * INDEX, dots);
        scores[g] = 0;
        for (uint32_t h = 0; h < n_heads; h++)
            scores[g] += fmax(dots[h], 0) * weights[h] / sqrt((double)INDEX * n_heads);
    }
    free(residual);
    free(q);
}

typedef struct ranked {
    double score;
    uint32_t index;
} ranked;

static int compare_ranked(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

double model_select(const double *scores, uint32_t n, uint32_t top_k, unsigned char *is_selected)
{
    ranked *order = need_memory(malloc((n + 1) * sizeof *order));
    for (uint32_t i = 0; i < n; i++)
        order[i] = (ranked){scores[i], i};
    qsort(order, n, sizeof *order, compare_ranked);
    memset(is_selected, 0, n);
    const uint32_t n_selected = n < top_k ? n : top_k;
    for (uint32_t i = 0; i < n_selected; i++)
        is_selected[order[i].index] = 1;
    const double last = n_selected ? order[n_selected - 1].score : 0;
    free(order);
    return last;
}

/* ---- attention ------------------------------------------------------------------------------------------------- */

/* Queries with features outside: [512, n_heads]. */
static double *queries(const model_rows *rows, uint32_t token)
{
    const model_layer *l = rows->layer;
    const uint32_t n_heads = l->config.n_heads;
    double *residual = q_residual(rows, token), *q = allocate((uint64_t)n_heads * HEAD);
    double *turned = allocate((uint64_t)n_heads * HEAD);
    multiply(l->q_b.values, l->q_b.rows, l->q_b.columns, residual, q);
    for (uint32_t h = 0; h < n_heads; h++) {
        rms_norm(q + h * HEAD, HEAD, (double)l->config.epsilon, NULL);
        rotate(l, q + h * HEAD, HEAD, token, 0);
    }
    round_at(rows->boundaries, MODEL_Q, q, (uint64_t)n_heads * HEAD);
    for (uint32_t h = 0; h < n_heads; h++)
        for (uint32_t f = 0; f < HEAD; f++)
            turned[f * n_heads + h] = q[h * HEAD + f];
    free(residual);
    free(q);
    return turned;
}

/* KV rows that a token attends to. */
static uint32_t list_rows(const model_rows *rows, uint32_t token, const unsigned char *is_selected, const double **list)
{
    uint32_t n = 0;
    for (uint32_t t = token < WINDOW ? 0 : token - WINDOW + 1; t <= token; t++)
        list[n++] = rows->kv + (uint64_t)(t - rows->request->first_row) * HEAD;
    for (uint32_t g = 0; g < model_visible(rows->layer, token); g++)
        if (is_selected == NULL || is_selected[g])
            list[n++] = rows->entries + (uint64_t)g * HEAD;
    return n;
}

/* out: [n_heads, 512] */
static void attend(const model_layer *l, const double *q, const double *const *list, uint32_t n, double *out)
{
    const uint32_t n_heads = l->config.n_heads;
    double *weights = allocate((uint64_t)n * n_heads);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t f = 0; f < HEAD; f++)
            for (uint32_t h = 0; h < n_heads; h++)
                weights[(uint64_t)i * n_heads + h] += q[f * n_heads + h] * list[i][f];
    for (uint32_t h = 0; h < n_heads; h++) {
        double top = l->sinks.values[h], sum;
        for (uint32_t i = 0; i < n; i++)
            top = fmax(top, weights[(uint64_t)i * n_heads + h] *= (double)l->config.scale);
        sum = exp(l->sinks.values[h] - top);
        for (uint32_t i = 0; i < n; i++)
            sum += weights[(uint64_t)i * n_heads + h] = exp(weights[(uint64_t)i * n_heads + h] - top);
        for (uint32_t i = 0; i < n; i++) {
            const double w = weights[(uint64_t)i * n_heads + h] / sum;
            for (uint32_t f = 0; f < HEAD; f++)
                out[h * HEAD + f] += w * list[i][f];
        }
    }
    free(weights);
}

void model_output(const model_rows *rows, uint32_t token, const unsigned char *is_selected, double *output)
{
    const model_layer *l = rows->layer;
    const dsr_attention_config *c = &l->config;
    const double **list = need_memory(malloc((WINDOW + model_visible(l, token)) * sizeof *list));
    double *q = queries(rows, token), *heads = allocate((uint64_t)c->n_heads * HEAD);
    double *grouped = allocate((uint64_t)c->o_groups * c->o_rank);
    attend(l, q, list, list_rows(rows, token, is_selected, list), heads);
    round_at(rows->boundaries, MODEL_ATTENTION, heads, (uint64_t)c->n_heads * HEAD);
    for (uint32_t h = 0; h < c->n_heads; h++)
        rotate(l, heads + h * HEAD, HEAD, token, 1);
    round_at(rows->boundaries, MODEL_UNROTATED, heads, (uint64_t)c->n_heads * HEAD);
    for (uint32_t g = 0; g < c->o_groups; g++)
        multiply(l->o_a.values + (uint64_t)g * c->o_rank * l->o_a.columns, c->o_rank, l->o_a.columns,
                 heads + g * l->o_a.columns, grouped + (uint64_t)g * c->o_rank);
    round_at(rows->boundaries, MODEL_GROUPED, grouped, (uint64_t)c->o_groups * c->o_rank);
    multiply(l->o_b.values, l->o_b.rows, l->o_b.columns, grouped, output);
    free(list);
    free(q);
    free(heads);
    free(grouped);
}
