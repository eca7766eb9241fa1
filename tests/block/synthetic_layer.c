#include "synthetic_layer.h"

#include "patterns.h"
#include "random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct maker {
    synthetic_weights *weights;
    synthetic_format format;
    uint64_t seed;
} maker;

static void *allocate(uint64_t n_bytes)
{
    void *memory = calloc(1, n_bytes);
    if (memory == NULL) {
        fputs("out of memory\n", stderr);
        abort();
    }
    return memory;
}

static uint16_t to_bf16(float x)
{
    const uint32_t bits = f32_to_bits(x);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static synthetic_tensor *add(maker *m, const char *name, dsr_dtype dtype, uint64_t rows, uint64_t columns)
{
    synthetic_tensor *t = &m->weights->tensors[m->weights->n_tensors++];
    snprintf(t->name, sizeof t->name, SYNTHETIC_PREFIX "%s", name);
    const uint64_t n = (rows ? rows : 1) * columns;
    t->data = allocate(n * dsr_dtype_size(dtype));
    t->tensor = (dsr_tensor){.data = t->data, .size_bytes = n * dsr_dtype_size(dtype), .dtype = dtype};
    if (rows)
        t->tensor.shape[t->tensor.n_dims++] = rows;
    t->tensor.shape[t->tensor.n_dims++] = columns;
    return t;
}

static random_stream stream_of(maker *m)
{
    return random_open(m->seed, m->weights->n_tensors);
}

static void add_parameters(maker *m, const char *name, uint64_t rows, uint64_t columns, float mean, float deviation)
{
    random_stream random = stream_of(m);
    float *values = add(m, name, DSR_DTYPE_F32, rows, columns)->data;
    for (uint64_t i = 0; i < (rows ? rows : 1) * columns; i++)
        values[i] = mean + deviation * random_normal(&random);
}

/* Value of an E4M3 code that is not a NaN. */
static float e4m3_value(uint8_t code)
{
    const int exponent = code >> 3 & 15;
    const float magnitude = exponent ? (float)(8 + (code & 7)) * f32_from_bits((uint32_t)(exponent + 117) << 23)
                                     : (float)(code & 7) * 0x1p-9f;
    return code & 0x80 ? -magnitude : magnitude;
}

/* The code whose value is nearest; |value| is far below the largest. Codes rise with their values. */
static uint8_t e4m3_code(float value)
{
    uint8_t low = 0, high = 0x7e;
    const float wanted = fabsf(value);
    while (high - low > 1) {
        const uint8_t middle = (uint8_t)((low + high) / 2);
        if (e4m3_value(middle) <= wanted)
            low = middle;
        else
            high = middle;
    }
    const uint8_t code = e4m3_value(high) - wanted < wanted - e4m3_value(low) ? high : low;
    return (uint8_t)(code | (value < 0 ? 0x80 : 0));
}

/* The scale of a block is 2^-e with an e that differs from block to block. */
static int scale_exponent(uint64_t row_block, uint64_t column_block)
{
    return -6 + (int)((row_block * 3 + column_block) % 3);
}

static void add_fp8(maker *m, const char *name, uint64_t rows, uint64_t columns, float deviation)
{
    random_stream random = stream_of(m);
    const uint64_t row_blocks = (rows + 127) / 128, column_blocks = (columns + 127) / 128;
    const int as_bf16 = m->format == SYNTHETIC_FP8_AS_BF16;
    void *data = add(m, name, as_bf16 ? DSR_DTYPE_BF16 : DSR_DTYPE_U8, rows, columns)->data;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < columns; c++) {
            const float scale = ldexpf(1, scale_exponent(r / 128, c / 128));
            const uint8_t code = e4m3_code(deviation * random_normal(&random) / scale);
            if (as_bf16)
                ((uint16_t *)data)[r * columns + c] = bf16_from_f32_exact(e4m3_value(code) * scale);
            else
                ((uint8_t *)data)[r * columns + c] = code;
        }
    char scale_name[80];
    snprintf(scale_name, sizeof scale_name, "%s_scale_inv", name);
    const int is_f32 = m->format == SYNTHETIC_FP8_F32;
    void *scales = add(m, scale_name, is_f32 ? DSR_DTYPE_F32 : DSR_DTYPE_U8, row_blocks, column_blocks)->data;
    for (uint64_t r = 0; r < row_blocks; r++)
        for (uint64_t c = 0; c < column_blocks; c++) {
            if (is_f32)
                ((float *)scales)[r * column_blocks + c] = ldexpf(1, scale_exponent(r, c));
            else
                ((uint8_t *)scales)[r * column_blocks + c] = (uint8_t)(127 + scale_exponent(r, c));
        }
}

static void add_weight(maker *m, const char *name, uint64_t rows, uint64_t columns, float factor)
{
    const float deviation = factor / sqrtf((float)columns);
    if (m->format != SYNTHETIC_BF16) {
        add_fp8(m, name, rows, columns, deviation);
        return;
    }
    random_stream random = stream_of(m);
    uint16_t *values = add(m, name, DSR_DTYPE_BF16, rows, columns)->data;
    for (uint64_t i = 0; i < rows * columns; i++)
        values[i] = to_bf16(deviation * random_normal(&random));
}

static void add_compressor(maker *m, const char *group, uint32_t ratio, uint32_t dim, uint32_t hidden_size)
{
    const uint64_t n_columns = (ratio == 4 ? 2 : 1) * (uint64_t)dim;
    char name[80];
    snprintf(name, sizeof name, "%skv_proj.weight", group);
    add_weight(m, name, n_columns, hidden_size, 1);
    snprintf(name, sizeof name, "%sgate_proj.weight", group);
    add_weight(m, name, n_columns, hidden_size, 2);
    snprintf(name, sizeof name, "%sposition_bias", group);
    add_parameters(m, name, ratio, n_columns, 0, 0.5f);
    snprintf(name, sizeof name, "%skv_norm.weight", group);
    add_parameters(m, name, 0, dim, 1, 0.125f);
}

void synthetic_weights_init(synthetic_weights *weights, const dsr_attention_config *c, synthetic_format format,
                            uint64_t seed)
{
    maker m = {weights, format, seed};
    const uint32_t n_index_heads = c->n_index_heads ? c->n_index_heads : 64;
    memset(weights, 0, sizeof *weights);
    add_weight(&m, "q_a_proj.weight", c->q_rank, c->hidden_size, 1);
    add_weight(&m, "q_b_proj.weight", (uint64_t)c->n_heads * DSR_HEAD_DIM, c->q_rank, 1);
    add_weight(&m, "kv_proj.weight", DSR_HEAD_DIM, c->hidden_size, 1);
    add_weight(&m, "o_a_proj.weight", (uint64_t)c->o_groups * c->o_rank,
               (uint64_t)c->n_heads / c->o_groups * DSR_HEAD_DIM, 1);
    add_weight(&m, "o_b_proj.weight", c->hidden_size, (uint64_t)c->o_groups * c->o_rank, 1);
    add_parameters(&m, "q_a_norm.weight", 0, c->q_rank, 1, 0.125f);
    add_parameters(&m, "kv_norm.weight", 0, DSR_HEAD_DIM, 1, 0.125f);
    add_parameters(&m, "sinks", 0, c->n_heads, 0, 1);
    if (c->kind != DSR_LAYER_WINDOW)
        add_compressor(&m, "compressor.", (uint32_t)c->kind, DSR_HEAD_DIM, c->hidden_size);
    if (c->kind == DSR_LAYER_RATIO_4) {
        add_compressor(&m, "compressor.indexer.", 4, DSR_INDEX_DIM, c->hidden_size);
        add_weight(&m, "compressor.indexer.q_b_proj.weight", (uint64_t)n_index_heads * DSR_INDEX_DIM, c->q_rank, 1);
        add_weight(&m, "compressor.indexer.scorer.weights_proj.weight", n_index_heads, c->hidden_size, 1);
    }
}

void synthetic_weights_free(synthetic_weights *weights)
{
    for (uint32_t i = 0; i < weights->n_tensors; i++)
        free(weights->tensors[i].data);
    weights->n_tensors = 0;
}

int synthetic_lookup(void *user, const char *name, dsr_tensor *tensor)
{
    const synthetic_weights *weights = user;
    for (uint32_t i = 0; i < weights->n_tensors; i++) {
        if (strcmp(weights->tensors[i].name, name) == 0) {
            *tensor = weights->tensors[i].tensor;
            return 1;
        }
    }
    return 0;
}

synthetic_tensor *synthetic_find(synthetic_weights *weights, const char *name)
{
    for (uint32_t i = 0; i < weights->n_tensors; i++)
        if (strcmp(weights->tensors[i].name + strlen(SYNTHETIC_PREFIX), name) == 0)
            return &weights->tensors[i];
    return NULL;
}

void synthetic_input(uint64_t seed, uint32_t stream, uint32_t token, uint32_t hidden_size, uint16_t *row)
{
    random_stream topic = random_open(seed, ((uint64_t)stream << 32 | token / 5) + 1);
    random_stream own = random_open(seed ^ 0x5eed, (uint64_t)stream << 32 | token);
    for (uint32_t i = 0; i < hidden_size; i++)
        row[i] = to_bf16(random_normal(&topic) + 0.5f * random_normal(&own));
}

/* ---- made-up states -------------------------------------------------------------------------------------------- */

enum { FORM_HEADER_BYTES = 92, FORM_KIND_AT = 16, FORM_CACHE_AT = 76, FORM_POSITION_AT = 88, FORM_SUM_BYTES = 8 };

/* Rows of the saved form at a position (src/block/sequence_form.c). */
typedef struct form_rows {
    uint64_t n_window, n_entries, n_keys;
    uint64_t f32_bytes;
    int is_packed;
} form_rows;

static form_rows rows_of(uint32_t ratio, uint32_t cache, uint32_t position)
{
    form_rows rows;
    const uint64_t n_entries = ratio ? position / ratio : 0;
    const uint64_t group_begin = n_entries * ratio;
    const uint64_t first = ratio == 4 && group_begin ? group_begin - 4 : group_begin;
    const uint64_t n_columns = ratio == 4 ? 2 * (DSR_HEAD_DIM + DSR_INDEX_DIM) : ratio ? DSR_HEAD_DIM : 0;
    rows.n_window = position < DSR_WINDOW ? position : DSR_WINDOW;
    rows.n_entries = n_entries;
    rows.n_keys = ratio == 4 ? n_entries : 0;
    rows.f32_bytes = (position - first) * n_columns * 4 * 2;
    rows.is_packed = cache == DSR_CACHE_PACKED;
    return rows;
}

static uint64_t form_bytes(const form_rows *rows)
{
    const uint64_t row = rows->is_packed ? 584 : 1024, key = rows->is_packed ? 68 : 256;
    return FORM_HEADER_BYTES + (rows->n_window + rows->n_entries) * row + rows->n_keys * key + rows->f32_bytes +
           FORM_SUM_BYTES;
}

static unsigned char *put_bf16(random_stream *random, unsigned char *at, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++, at += 2) {
        const uint16_t value = to_bf16(random_normal(random));
        memcpy(at, &value, sizeof value);
    }
    return at;
}

static unsigned char *put_bytes(unsigned char *at, uint64_t n, unsigned char value)
{
    memset(at, value, n);
    return at + n;
}

/* Codes of any E4M3 magnitude up to 240, under scales of 2^-7. */
static unsigned char *put_kv_rows(random_stream *random, unsigned char *at, uint64_t n, int is_packed)
{
    if (!is_packed)
        return put_bf16(random, at, n * DSR_HEAD_DIM);
    for (uint64_t r = 0; r < n; r++) {
        for (int i = 0; i < 448; i++)
            *at++ = (unsigned char)(random_next(random) % 0x78 | (random_next(random) & 0x80));
        at = put_bf16(random, at, 64);
    }
    for (uint64_t r = 0; r < n; r++)
        at = put_bytes(put_bytes(at, 7, 120), 1, 0);
    return at;
}

static unsigned char *put_keys(random_stream *random, unsigned char *at, uint64_t n, int is_packed)
{
    if (!is_packed)
        return put_bf16(random, at, n * DSR_INDEX_DIM);
    for (uint64_t i = 0; i < n * 64; i++)
        *at++ = (unsigned char)random_next(random);
    return put_bytes(at, n * 4, 126);
}

static uint64_t fnv1a(const unsigned char *bytes, uint64_t n_bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < n_bytes; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

void synthetic_state_load(dsr_sequence *sequence, uint32_t position, uint64_t seed)
{
    uint32_t ratio, cache;
    random_stream random = random_open(seed, position);
    const uint64_t present_bytes = dsr_sequence_save_bytes(sequence);
    unsigned char *present = allocate(present_bytes);
    if (dsr_sequence_save(sequence, present, present_bytes) != DSR_OK)
        abort();
    memcpy(&ratio, present + FORM_KIND_AT, sizeof ratio);
    memcpy(&cache, present + FORM_CACHE_AT, sizeof cache);
    const form_rows rows = rows_of(ratio, cache, position);
    const uint64_t n_bytes = form_bytes(&rows);
    unsigned char *form = allocate(n_bytes), *at = form + FORM_HEADER_BYTES;
    memcpy(form, present, FORM_HEADER_BYTES);
    memcpy(form + FORM_POSITION_AT, &position, sizeof position);
    at = put_kv_rows(&random, at, rows.n_window, rows.is_packed);
    at = put_kv_rows(&random, at, rows.n_entries, rows.is_packed);
    at = put_keys(&random, at, rows.n_keys, rows.is_packed);
    for (uint64_t i = 0; i < rows.f32_bytes; i += 4) {
        const float value = random_normal(&random);
        memcpy(at + i, &value, sizeof value);
    }
    const uint64_t sum = fnv1a(form, n_bytes - FORM_SUM_BYTES);
    memcpy(form + n_bytes - FORM_SUM_BYTES, &sum, sizeof sum);
    if (dsr_sequence_load(sequence, form, n_bytes) != DSR_OK) {
        fputs("the made-up state was refused\n", stderr);
        abort();
    }
    free(form);
    free(present);
}
