#include "run_ops.h"

#include "case_cache.h"
#include "joint.h"

#include <string.h>

/* ---- sparse-attention, flash-attention ---------------------------------------------------------------------- */

static void run_attention(case_file *c, session *s, int flash)
{
    attention_row rows[DSR_MAX_ROWS] = {{0}};
    uint64_t n_heads = 0; /* that of the first row, then asked of all */
    const case_cache_format format = case_read_cache_format(c, DSR_HEAD_DIM);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        const st_tensor *q = case_row_tensor(c, "q", r, (case_shape){"BF16", 2, {n_heads, DSR_HEAD_DIM}, {"H", NULL}});
        const case_cache kv = case_read_cache(c, r, &format);
        const st_tensor *indices = case_row_tensor(c, "indices", r, (case_shape){"I32", 1, {0}, {"w"}});
        n_heads = q->shape[0];
        if (n_heads > UINT32_MAX) {
            case_bad_value(c, q, "%llu heads", (unsigned long long)n_heads);
        }
        rows[r] = (attention_row){.q = q->data,
                                  .kv = kv.tensor->data,
                                  .form = kv.form,
                                  .kv_len = kv.kv_len,
                                  .indices = indices->data,
                                  .width = indices->shape[0]};
    }
    const st_tensor *sinks = case_tensor(c, "sinks", (case_shape){"F32", 1, {n_heads}, {"H"}});
    const st_tensor *scale = case_tensor(c, "scale", (case_shape){"F32", 1, {1}, {NULL}});
    const attention_shared shared = {flash, (uint32_t)n_heads, case_positive_f32(c, scale), sinks->data};
    for (uint32_t r = 0; r < c->n_rows; r++) {
        rows[r].output = case_row_output(c, "output", r, (case_shape){"BF16", 2, {n_heads, DSR_HEAD_DIM}, {NULL}});
    }
    if (c->code == CLI_DONE) {
        joint_attention(s, &shared, rows, c->n_rows);
    }
}

static void run_sparse_attention(case_file *c, session *s)
{
    run_attention(c, s, 0);
}

static void run_flash_attention(case_file *c, session *s)
{
    run_attention(c, s, 1);
}

/* ---- indexer ----------------------------------------------------------------------------------------------- */

static const case_shape one_i32 = {"I32", 1, {1}, {NULL}};

/* A whole number of an optional tensor; fallback where the file has none. */
static int32_t read_count(case_file *c, const char *name, int32_t fallback)
{
    const st_tensor *tensor = case_optional_tensor(c, name, one_i32);
    if (tensor == NULL) {
        return fallback;
    }
    const int32_t value = case_i32(tensor);
    if (value < 1) {
        case_bad_value(c, tensor, "%d given, needed is a number from 1 on", (int)value);
    }
    return value;
}

static int32_t read_top_k(case_file *c)
{
    const int32_t top_k = read_count(c, "top_k", 512);
    if (c->code == CLI_DONE && (top_k > DSR_MAX_TOP_K || top_k % 32 != 0)) {
        case_bad_value(c, case_tensor(c, "top_k", one_i32), "%d given, needed is a multiple of 32 up to %d", (int)top_k,
                       DSR_MAX_TOP_K);
    }
    return top_k;
}

/* The library checks these too, but it counts a call's rows, and with --only those are not the file's. */
static void check_indexer_row(case_file *c, const case_cache *keys, const st_tensor *offset, uint64_t n_visible)
{
    if (keys->kv_len < n_visible) {
        case_bad_value(c, keys->tensor, "%llu keys given, start_pos makes %llu visible",
                       (unsigned long long)keys->kv_len, (unsigned long long)n_visible);
    }
    if (offset != NULL && case_i32(offset) < 0) {
        case_bad_value(c, offset, "%d given, needed is a number from 0 on", (int)case_i32(offset));
    } else if (offset != NULL && n_visible > 0 && (uint64_t)case_i32(offset) + n_visible - 1 > INT32_MAX) {
        case_bad_value(c, offset, "%d given, with %llu visible keys an index does not fit in 32 bits",
                       (int)case_i32(offset), (unsigned long long)n_visible);
    }
}

static void read_indexer_row(case_file *c, uint32_t r, const case_cache_format *format, uint64_t n_heads, int32_t ratio,
                             indexer_row *row, uint64_t *row_heads)
{
    const st_tensor *q = case_row_tensor(c, "q", r, (case_shape){"BF16", 2, {n_heads, DSR_INDEX_DIM}, {"Hi", NULL}});
    const st_tensor *weights = case_row_tensor(c, "weights", r, (case_shape){"F32", 1, {q->shape[0]}, {"Hi"}});
    const case_cache keys = case_read_cache(c, r, format);
    const st_tensor *start_pos = case_row_tensor(c, "start_pos", r, one_i32);
    const st_tensor *offset = case_optional_row_tensor(c, "offset", r, one_i32);
    if (case_i32(start_pos) < 0) {
        case_bad_value(c, start_pos, "%d given, needed is a position from 0 on", (int)case_i32(start_pos));
    }
    if (c->code == CLI_DONE) {
        check_indexer_row(c, &keys, offset, ((uint64_t)case_i32(start_pos) + 1) / (uint64_t)ratio);
    }
    *row_heads = q->shape[0];
    if (*row_heads > UINT32_MAX) {
        case_bad_value(c, q, "%llu heads", (unsigned long long)*row_heads);
    }
    *row = (indexer_row){.q = q->data,
                         .weights = weights->data,
                         .keys = keys.tensor->data,
                         .form = keys.form,
                         .kv_len = keys.kv_len,
                         .start_pos = (uint32_t)case_i32(start_pos),
                         .offset = offset == NULL ? 0 : case_i32(offset)};
}

static void run_indexer(case_file *c, session *s)
{
    indexer_row rows[DSR_MAX_ROWS] = {{0}};
    uint64_t n_heads = 0;
    const int32_t top_k = read_top_k(c), ratio = read_count(c, "ratio", 4);
    const case_cache_format format = case_read_cache_format(c, DSR_INDEX_DIM);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        read_indexer_row(c, r, &format, n_heads, ratio, &rows[r], &n_heads);
    }
    for (uint32_t r = 0; r < c->n_rows; r++) {
        rows[r].indices = case_row_output(c, "indices", r, (case_shape){"I32", 1, {(uint64_t)top_k}, {NULL}});
        rows[r].scores = case_row_output(c, "scores", r, (case_shape){"F32", 1, {rows[r].kv_len}, {NULL}});
    }
    if (c->code == CLI_DONE) {
        const indexer_shared shared = {(uint32_t)n_heads, (uint32_t)top_k, (uint32_t)ratio};
        joint_indexer(s, &shared, rows, c->n_rows);
    }
}

/* ---- compressor -------------------------------------------------------------------------------------------- */

static void read_compressor_shared(case_file *c, compressor_shared *shared)
{
    const st_tensor *norm = case_tensor(c, "norm", (case_shape){"F32", 1, {0}, {"dim"}});
    const st_tensor *ape = case_tensor(c, "ape", (case_shape){"F32", 2, {0, 0}, {"ratio", "coff*dim"}});
    const st_tensor *epsilon = case_tensor(c, "epsilon", (case_shape){"F32", 1, {1}, {NULL}});
    const uint64_t ratio = ape->shape[0], dim = norm->shape[0];
    if (c->code == CLI_DONE && !((ratio == 4 && (dim == 128 || dim == 512)) || (ratio == 128 && dim == 512))) {
        case_bad_value(c, ape, "ratio %llu and dim %llu (of norm) given, needed is (4, 128), (4, 512) or (128, 512)",
                       (unsigned long long)ratio, (unsigned long long)dim);
    }
    *shared = (compressor_shared){(uint32_t)ratio, (uint32_t)dim, case_positive_f32(c, epsilon), ape->data, norm->data};
    case_tensor(c, "ape", (case_shape){"F32", 2, {ratio, compressor_token_elements(shared)}, {NULL}});
}

static void run_compressor(case_file *c, session *s)
{
    compressor_row rows[DSR_MAX_ROWS] = {{0}};
    compressor_shared shared;
    read_compressor_shared(c, &shared);
    const uint64_t width = compressor_token_elements(&shared);
    const case_shape state = {"F32", 2, {compressor_state_rows(&shared), width}, {NULL}};
    for (uint32_t r = 0; r < c->n_rows; r++) {
        const st_tensor *kv = case_row_tensor(c, "kv", r, (case_shape){"F32", 2, {0, width}, {"T", NULL}});
        const st_tensor *score =
            case_row_tensor(c, "score", r, (case_shape){"F32", 2, {kv->shape[0], width}, {"T", NULL}});
        if (kv->shape[0] >= UINT32_MAX) {
            case_bad_value(c, kv, "%llu tokens", (unsigned long long)kv->shape[0]);
        }
        rows[r] = (compressor_row){.kv = kv->data, .score = score->data, .n_tokens = (uint32_t)kv->shape[0]};
    }
    for (uint32_t r = 0; r < c->n_rows && c->code == CLI_DONE; r++) {
        const case_shape emitted = {"BF16", 2, {rows[r].n_tokens / shared.ratio, shared.dim}, {NULL}};
        rows[r].output = case_row_output(c, "output", r, emitted);
        rows[r].kv_state = case_row_output(c, "kv_state", r, state);
        rows[r].score_state = case_row_output(c, "score_state", r, state);
    }
    if (c->code == CLI_DONE) {
        joint_compressor(s, &shared, rows, c->n_rows);
    }
}

/* ---- gather ------------------------------------------------------------------------------------------------ */

static void run_gather(case_file *c, session *s)
{
    const void *sources[DSR_MAX_ROWS];
    uint64_t n_elements = 0; /* that of the first row, then asked of all */
    for (uint32_t r = 0; r < c->n_rows; r++) {
        const st_tensor *source = case_row_tensor(c, "source", r, (case_shape){"F32", 1, {n_elements}, {"n"}});
        sources[r] = source->data;
        n_elements = source->shape[0];
    }
    float *output = case_output(c, "output", (case_shape){"F32", 2, {c->n_rows, n_elements}, {NULL}});
    if (c->code == CLI_DONE) {
        joint_gather(s, sources, n_elements, c->n_rows, output);
    }
}

/* ------------------------------------------------------------------------------------------------------------ */

#define NAMES(...)  ((const char *const[]){__VA_ARGS__, NULL})
#define CACHE_ROWS  "kv", "page_table", "kv_len"
#define CACHE_WHOLE "kv", "kv_format", "page_size"

static const run_op ops[] = {
    {"sparse-attention",
     {NAMES(CACHE_ROWS, "q", "indices"), NAMES(CACHE_WHOLE, "sinks", "scale")},
     run_sparse_attention},
    {"flash-attention", {NAMES(CACHE_ROWS, "q", "indices"), NAMES(CACHE_WHOLE, "sinks", "scale")}, run_flash_attention},
    {"indexer",
     {NAMES(CACHE_ROWS, "q", "weights", "start_pos", "offset"), NAMES(CACHE_WHOLE, "top_k", "ratio")},
     run_indexer},
    {"compressor", {NAMES("kv", "score"), NAMES("ape", "norm", "epsilon")}, run_compressor},
    {"gather", {NAMES("source"), (const char *const[]){NULL}}, run_gather},
};

const run_op *run_op_find(const char *name)
{
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        if (strcmp(name, ops[i].name) == 0) {
            return &ops[i];
        }
    }
    return NULL;
}
