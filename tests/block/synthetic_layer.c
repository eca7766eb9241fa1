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
    const float magnitude = exponent ? ldexpf((float)(8 + (code & 7)), exponent - 10) : ldexpf((float)(code & 7), -9);
    return code & 0x80 ? -magnitude : magnitude;
}

/* A code near value, which is far below the largest. */
static uint8_t e4m3_code(float value)
{
    uint8_t best = 0;
    const float wanted = fabsf(value);
    for (uint8_t code = 0; code < 0x7f; code++)
        if (fabsf(e4m3_value(code) - wanted) < fabsf(e4m3_value(best) - wanted))
            best = code;
    return (uint8_t)(best | (value < 0 ? 0x80 : 0));
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
