#include "glue.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { LANES = 16 };

uint16_t glue_to_bf16(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return (uint16_t)((b + 0x7fffu + (b >> 16 & 1u)) >> 16);
}

float glue_to_f32(uint16_t x)
{
    const uint32_t b = (uint32_t)x << 16;
    float y;
    memcpy(&y, &b, sizeof y);
    return y;
}

void glue_relu_sum(const float *products, uint32_t n_keys, const float *weights, float *scores)
{
    for (uint32_t i = 0; i < n_keys; i++) {
        const float *row = products + (uint64_t)i * N_HEADS;
        float sum = 0;
        for (uint32_t h = 0; h < N_HEADS; h++)
            sum += weights[h] * (row[h] > 0 ? row[h] : 0);
        scores[i] = sum;
    }
}

/* ---- selection: keys order as (score, lower index) --------------------------------------------------------- */

static uint64_t order_key(float score, uint32_t index)
{
    uint32_t b;
    memcpy(&b, &score, sizeof b);
    b = b & 0x80000000u ? ~b : b | 0x80000000u;
    return (uint64_t)b << 32 | (uint32_t)~index;
}

static uint64_t median_of_three(uint64_t a, uint64_t b, uint64_t c)
{
    const uint64_t low = a < b ? a : b, high = a < b ? b : a;
    return c < low ? low : c > high ? high : c;
}

/* Larger keys first: everything before the returned place is at least as large as everything from it on. Both parts
 * hold something if n > 1. */
static uint32_t partition(uint64_t *keys, uint32_t n)
{
    const uint64_t pivot = median_of_three(keys[0], keys[n / 2], keys[n - 1]);
    uint32_t low = 0, high = n - 1;
    for (;;) {
        while (keys[low] > pivot)
            low++;
        while (keys[high] < pivot)
            high--;
        if (low >= high)
            return low > 0 ? low : 1;
        const uint64_t kept = keys[low];
        keys[low++] = keys[high];
        keys[high--] = kept;
    }
}

static void sort_small(uint64_t *keys, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        const uint64_t key = keys[i];
        uint32_t j = i;
        for (; j > 0 && keys[j - 1] < key; j--)
            keys[j] = keys[j - 1];
        keys[j] = key;
    }
}

static void sort_keys(uint64_t *keys, uint32_t n)
{
    while (n > LANES) {
        const uint32_t middle = partition(keys, n);
        if (middle < n - middle) {
            sort_keys(keys, middle);
            keys += middle;
            n -= middle;
        } else {
            sort_keys(keys + middle, n - middle);
            n = middle;
        }
    }
    sort_small(keys, n);
}

void glue_top_k(const float *scores, uint32_t n, uint64_t *keys, int32_t *list)
{
    uint64_t *part = keys;
    uint32_t left = n, wanted = TOP_K;
    for (uint32_t i = 0; i < n; i++)
        keys[i] = order_key(scores[i], i);
    while (wanted > 0 && wanted < left) {
        const uint32_t middle = partition(part, left);
        if (middle <= wanted) {
            part += middle;
            left -= middle;
            wanted -= middle;
        } else {
            left = middle;
        }
    }
    sort_keys(keys, TOP_K);
    for (uint32_t i = 0; i < TOP_K; i++)
        list[i] = (int32_t) ~(uint32_t)keys[i];
}

/* ---- attention --------------------------------------------------------------------------------------------- */

void glue_gather(const void *pool, uint32_t row_bytes, const int32_t *indices, uint32_t n, void *out)
{
    for (uint32_t i = 0; i < n; i++)
        memcpy((char *)out + (size_t)i * row_bytes, (const char *)pool + (size_t)indices[i] * row_bytes, row_bytes);
}

static void put_weights(const float *tile, int is_bf16, void *p, size_t at)
{
    uint16_t rounded[LANES * LANES];
    for (uint32_t x = 0; is_bf16 && x < LANES * LANES; x++)
        rounded[x] = glue_to_bf16(tile[x]);
    for (uint32_t j = 0; j < LANES; j++) {
        float *wide = (float *)p + at + (size_t)j * N_SLOTS;
        uint16_t *narrow = (uint16_t *)p + at + (size_t)j * N_SLOTS;
        if (is_bf16)
            for (uint32_t i = 0; i < LANES; i++)
                narrow[i] = rounded[i * LANES + j];
        else
            for (uint32_t i = 0; i < LANES; i++)
                wide[i] = tile[i * LANES + j];
    }
}

/* 16 slots of 16 heads at a time; one loop over all of a tile is what compilers make vector calls of expf from. */
static void softmax_lanes(const float *logits, float scale, const float *sinks, int is_bf16, void *p, size_t at,
                          float *inverse)
{
    float most[LANES], sum[LANES], tile[LANES * LANES];
    for (uint32_t j = 0; j < LANES; j++)
        most[j] = -FLT_MAX;
    for (uint32_t s = 0; s < N_SLOTS; s++)
        for (uint32_t j = 0; j < LANES; j++)
            most[j] = logits[s * N_HEADS + j] > most[j] ? logits[s * N_HEADS + j] : most[j];
    for (uint32_t j = 0; j < LANES; j++) {
        most[j] = most[j] * scale > sinks[j] ? most[j] * scale : sinks[j];
        sum[j] = expf(sinks[j] - most[j]);
    }
    for (uint32_t s = 0; s < N_SLOTS; s += LANES) {
        for (uint32_t i = 0; i < LANES; i++)
            for (uint32_t j = 0; j < LANES; j++)
                tile[i * LANES + j] = logits[(s + i) * N_HEADS + j] * scale - most[j];
        for (uint32_t x = 0; x < LANES * LANES; x++)
            tile[x] = expf(tile[x]);
        for (uint32_t i = 0; i < LANES; i++)
            for (uint32_t j = 0; j < LANES; j++)
                sum[j] += tile[i * LANES + j];
        put_weights(tile, is_bf16, p, at + s);
    }
    for (uint32_t j = 0; j < LANES; j++)
        inverse[j] = 1 / sum[j];
}

void glue_softmax(const float *logits, uint32_t first, uint32_t n, float scale, const float *sinks, int is_bf16,
                  void *p, float *inverse)
{
    for (uint32_t h = first; h < first + n; h += LANES)
        softmax_lanes(logits + h, scale, sinks + h, is_bf16, p, (size_t)h * N_SLOTS, inverse + h);
}

void glue_output(const float *values, uint32_t n_heads, const float *inverse, uint16_t *output)
{
    for (size_t h = 0; h < n_heads; h++)
        for (size_t d = 0; d < HEAD_DIM; d++)
            output[h * HEAD_DIM + d] = glue_to_bf16(values[h * HEAD_DIM + d] * inverse[h]);
}

/* ---- exact results ----------------------------------------------------------------------------------------- */

static double dot(const float *a, const float *b, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

void exact_scores(const float *keys, uint32_t n, const float *q, const float *weights, double *scores, double *bound)
{
    double reach = 0;
    for (uint32_t h = 0; h < N_HEADS; h++) {
        const float *head = q + h * INDEX_DIM;
        reach += fabs((double)weights[h]) * sqrt(dot(head, head, INDEX_DIM));
    }
    for (uint32_t i = 0; i < n; i++) {
        const float *key = keys + (size_t)i * INDEX_DIM;
        double sum = 0;
        for (uint32_t h = 0; h < N_HEADS; h++) {
            const double x = dot(key, q + h * INDEX_DIM, INDEX_DIM);
            sum += x > 0 ? x * weights[h] : 0;
        }
        scores[i] = sum;
        bound[i] = 1e-6 * reach * sqrt(dot(key, key, INDEX_DIM));
    }
}

void exact_attention(const float *pool, const int32_t *indices, const float *q, double scale, const float *sinks,
                     double *output, double *sizes)
{
    double p[N_SLOTS];
    memset(output, 0, sizeof *output * N_HEADS * HEAD_DIM);
    memset(sizes, 0, sizeof *sizes * N_HEADS * HEAD_DIM);
    for (uint32_t h = 0; h < N_HEADS; h++) {
        double most = sinks[h], sum;
        for (uint32_t s = 0; s < N_SLOTS; s++) {
            p[s] = scale * dot(q + h * HEAD_DIM, pool + (size_t)indices[s] * HEAD_DIM, HEAD_DIM);
            most = p[s] > most ? p[s] : most;
        }
        sum = exp(sinks[h] - most);
        for (uint32_t s = 0; s < N_SLOTS; s++)
            sum += p[s] = exp(p[s] - most);
        for (uint32_t s = 0; s < N_SLOTS; s++) {
            const float *row = pool + (size_t)indices[s] * HEAD_DIM;
            for (uint32_t d = 0; d < HEAD_DIM; d++) {
                output[h * HEAD_DIM + d] += p[s] / sum * row[d];
                sizes[h * HEAD_DIM + d] += p[s] / sum * fabs((double)row[d]);
            }
        }
    }
}
