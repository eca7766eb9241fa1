#include "bench_work.h"

#include "bf16.h"

#include <stdlib.h>
#include <string.h>

/* ---- operands ----------------------------------------------------------------------------------------------- */

typedef struct generator {
    session *s;
    uint64_t state;
} generator;

static uint32_t next_word(generator *g)
{
    g->state = g->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(g->state >> 32);
}

/* About normal, with mean 0 and variance 1. */
static float next_value(generator *g)
{
    const uint32_t a = next_word(g), b = next_word(g);
    const float sum = (float)(a & 0xffffu) + (float)(a >> 16) + (float)(b & 0xffffu) + (float)(b >> 16);
    return (sum * 0x1p-16f - 2) * 1.7320508f;
}

static dsr_view random_view(generator *g, uint64_t n, dsr_dtype dtype, float scale)
{
    const uint64_t n_bytes = n * dsr_dtype_size(dtype);
    unsigned char *values = cli_allocate(n_bytes);
    for (uint64_t i = 0; i < n; i++) {
        const float x = next_value(g) * scale;
        if (dtype == DSR_DTYPE_F32) {
            memcpy(values + 4 * i, &x, sizeof x);
        } else {
            const uint16_t half = bf16_round(x);
            memcpy(values + 2 * i, &half, sizeof half);
        }
    }
    const dsr_view view = session_upload(g->s, values, n_bytes, dtype);
    free(values);
    return view;
}

static dsr_view indices_view(generator *g, uint32_t n, uint32_t limit)
{
    int32_t *indices = cli_allocate(n * sizeof *indices);
    for (uint32_t i = 0; i < n; i++) {
        indices[i] = (int32_t)(next_word(g) % limit);
    }
    const dsr_view view = session_upload(g->s, indices, n * sizeof *indices, DSR_DTYPE_I32);
    free(indices);
    return view;
}

/* A cache as a row takes it. */
typedef struct bench_cache {
    dsr_view view;
    dsr_cache_layout layout;
} bench_cache;

/* Page ids 0..n - 1 in random order. */
static dsr_view table_view(generator *g, uint32_t n)
{
    int32_t *ids = cli_allocate(n * sizeof *ids);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t other = next_word(g) % (i + 1);
        ids[i] = ids[other];
        ids[other] = (int32_t)i;
    }
    const dsr_view view = session_upload(g->s, ids, n * sizeof *ids, DSR_DTYPE_I32);
    free(ids);
    return view;
}

/* n random entries of BF16 to the form of the cache, by the library. */
static void convert_cache(session *s, uint32_t dim, uint32_t n, dsr_view entries, const bench_cache *cache)
{
    dsr_convert_row row = {.source = entries,
                           .source_entries = n,
                           .destination = cache->view,
                           .destination_layout = cache->layout,
                           .destination_entries = n,
                           .n_entries = n};
    dsr_convert_desc desc = DSR_CONVERT_DESC_INIT;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.dim = dim;
    if (s->code == CLI_DONE && session_check(s, dsr_encode_convert(s->encoder, &desc))) {
        session_run(s);
    }
}

/* n vectors of an index dimension on the FP4 grid, whose blocks begin with their greatest value, 6 times a power of
 * two; these lie `span` binades apart in `wide` percent of the vectors, and are alike in the others. */
static dsr_view spanning_view(generator *g, uint64_t n, uint32_t span, uint32_t wide)
{
    enum { BLOCK = 32, N_BLOCKS = DSR_INDEX_DIM / BLOCK };
    static const float sizes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    uint16_t *values = cli_allocate(n * DSR_INDEX_DIM * sizeof *values);
    for (uint64_t t = 0; t < n; t++) {
        const int is_wide = next_word(g) % 100 < wide;
        const uint32_t least = next_word(g) % N_BLOCKS,
                       greatest = (least + 1 + next_word(g) % (N_BLOCKS - 1)) % N_BLOCKS;
        for (uint32_t b = 0; b < N_BLOCKS; b++) {
            const uint32_t drawn = next_word(g) % (span + 1);
            const uint32_t above = !is_wide || b == least ? 0 : b == greatest ? span : drawn;
            for (uint32_t i = 0; i < BLOCK; i++) {
                const uint32_t code = i == 0 ? 7 : next_word(g) >> 28;
                const float size = sizes[code & 7] * (float)(1u << above);
                values[(t * N_BLOCKS + b) * BLOCK + i] = bf16_round(code & 8 ? -size : size);
            }
        }
    }
    const dsr_view view = session_upload(g->s, values, n * DSR_INDEX_DIM * sizeof *values, DSR_DTYPE_BF16);
    free(values);
    return view;
}

/* n random entries in the shape's format. */
static bench_cache random_cache(generator *g, const bench_shape *shape, uint32_t dim, uint32_t n)
{
    bench_cache cache = {shape->key_span ? spanning_view(g, n, shape->key_span, shape->wide ? shape->wide : 100)
                                         : random_view(g, (uint64_t)n * dim, DSR_DTYPE_BF16, 1),
                         {0}};
    const dsr_view entries = cache.view;
    const uint32_t page_size = shape->page ? shape->page : n;
    const uint32_t n_pages = (n - 1) / page_size + 1;
    if (shape->format == DSR_FORMAT_BF16 && shape->page == 0) {
        return cache;
    }
    cache.layout.format = shape->format;
    cache.layout.page_size = page_size;
    if (shape->page) {
        cache.layout.page_table = table_view(g, n_pages);
    }
    cache.view = session_allocate(g->s, n_pages * dsr_cache_page_bytes(shape->format, dim, page_size),
                                  shape->format == DSR_FORMAT_BF16 ? DSR_DTYPE_BF16 : DSR_DTYPE_U8);
    convert_cache(g->s, dim, n, entries, &cache);
    return cache;
}

/* Index queries as the model has them: on the FP4 grid. */
static void quantise_queries(session *s, dsr_view q, uint64_t n_vectors)
{
    dsr_fake_quant_desc desc = DSR_FAKE_QUANT_DESC_INIT;
    desc.kind = DSR_QUANT_HADAMARD_FP4_BLOCK32;
    desc.n_vectors = n_vectors;
    desc.dim = DSR_INDEX_DIM;
    desc.input = q;
    desc.output = q;
    if (s->code == CLI_DONE && session_check(s, dsr_encode_fake_quant(s->encoder, &desc))) {
        session_run(s);
    }
}

/* Queries of random rows. */
static dsr_view queries_view(generator *g, const bench_shape *shape, uint64_t n_vectors)
{
    if (shape->key_span > 0 || shape->query_span > 0) {
        return spanning_view(g, n_vectors, shape->query_span, 100);
    }
    const dsr_view q = random_view(g, n_vectors * DSR_INDEX_DIM, DSR_DTYPE_BF16, 1);
    if (shape->format == DSR_FORMAT_FP4) {
        quantise_queries(g->s, q, n_vectors);
    }
    return q;
}

static void note_output(bench_work *work, dsr_view view)
{
    work->outputs[work->n_outputs++] = view;
}

/* Encodes every row alone by handing `encode` a range of rows. */
typedef void encode_rows(session *s, void *description, uint32_t first, uint32_t n, dsr_encoder *encoder);

static void encode_all(session *s, encode_rows *encode, void *description, uint32_t n_rows, int with_alone,
                       bench_work *work)
{
    if (work->joint == NULL && !session_check(s, dsr_encoder_create(s->context, &work->joint))) {
        return;
    }
    encode(s, description, 0, n_rows, work->joint);
    for (uint32_t r = 0; with_alone && r < n_rows && s->code == CLI_DONE; r++) {
        if (work->alone[r] == NULL && !session_check(s, dsr_encoder_create(s->context, &work->alone[r]))) {
            return;
        }
        work->n_alone = n_rows;
        encode(s, description, r, 1, work->alone[r]);
    }
}

/* ---- ops ---------------------------------------------------------------------------------------------------- */

typedef struct attention_work {
    dsr_attention_desc desc;
    dsr_attention_row rows[DSR_MAX_ROWS];
    int flash;
} attention_work;

static void encode_attention(session *s, void *description, uint32_t first, uint32_t n, dsr_encoder *encoder)
{
    attention_work *w = description;
    dsr_attention_desc desc = w->desc;
    desc.n_rows = n;
    desc.rows = w->rows + first;
    session_check(s,
                  w->flash ? dsr_encode_flash_attention(encoder, &desc) : dsr_encode_sparse_attention(encoder, &desc));
}

static void set_attention(generator *g, const bench_shape *shape, uint32_t width, attention_work *w)
{
    uint64_t workspace_bytes = 0;
    memset(w->rows, 0, sizeof w->rows);
    w->desc = (dsr_attention_desc)DSR_ATTENTION_DESC_INIT;
    w->desc.rows = w->rows;
    w->desc.n_rows = shape->rows;
    w->desc.n_heads = shape->heads;
    w->desc.scale = DSR_ATTENTION_SCALE;
    for (uint32_t r = 0; r < shape->rows; r++) {
        w->rows[r].q_row = r;
        w->rows[r].index_offset = (uint64_t)r * width;
        w->rows[r].width = width;
        w->rows[r].kv_layout.format = shape->format;
    }
    session_check(g->s, w->flash ? dsr_flash_attention_workspace(g->s->context, &w->desc, &workspace_bytes)
                                 : dsr_sparse_attention_workspace(g->s->context, &w->desc, &workspace_bytes));
    w->desc.q = random_view(g, (uint64_t)shape->rows * shape->heads * DSR_HEAD_DIM, DSR_DTYPE_BF16, 1);
    w->desc.sinks = random_view(g, shape->heads, DSR_DTYPE_F32, 1);
    w->desc.output =
        session_allocate(g->s, (uint64_t)shape->rows * shape->heads * DSR_HEAD_DIM * sizeof(uint16_t), DSR_DTYPE_BF16);
    w->desc.workspace = session_allocate(g->s, workspace_bytes, DSR_DTYPE_U8);
}

static void build_attention(generator *g, const bench_shape *shape, int with_alone, bench_work *work)
{
    /* As many rows in the cache as a selection of a long context is drawn from. */
    const uint32_t pool = shape->width < 16512 ? 16512 : shape->width;
    attention_work *w = cli_allocate(sizeof *w);
    w->flash = shape->op == BENCH_FLASH;
    set_attention(g, shape, shape->width, w);
    w->desc.indices = indices_view(g, shape->rows * shape->width, pool);
    for (uint32_t r = 0; r < shape->rows; r++) {
        const bench_cache kv = random_cache(g, shape, DSR_HEAD_DIM, pool);
        w->rows[r].kv = kv.view;
        w->rows[r].kv_layout = kv.layout;
        w->rows[r].kv_len = pool;
    }
    note_output(work, w->desc.output);
    encode_all(g->s, encode_attention, w, shape->rows, with_alone, work);
    free(w);
}

typedef struct indexer_work {
    dsr_indexer_desc desc;
    dsr_indexer_row rows[DSR_MAX_ROWS];
} indexer_work;

static void encode_indexer(session *s, void *description, uint32_t first, uint32_t n, dsr_encoder *encoder)
{
    indexer_work *w = description;
    dsr_indexer_desc desc = w->desc;
    desc.n_rows = n;
    desc.rows = w->rows + first;
    session_check(s, dsr_encode_indexer(encoder, &desc));
}

/* Keys whose dots with a query of ones are t, n_keys - t or 1 for key t: each digit of 8 bits is a BF16 number. */
static dsr_view patterned_keys(generator *g, uint32_t n_keys, bench_pattern pattern)
{
    const uint64_t n_bytes = (uint64_t)n_keys * DSR_INDEX_DIM * sizeof(uint16_t);
    uint16_t *keys = cli_allocate(n_bytes);
    for (uint32_t t = 0; t < n_keys; t++) {
        const uint32_t dot = pattern == BENCH_RISING ? t : pattern == BENCH_FALLING ? n_keys - t : 1;
        for (int digit = 0; digit < 4; digit++) {
            keys[(uint64_t)t * DSR_INDEX_DIM + (uint64_t)digit] = bf16_round((float)(dot & 255u << 8 * digit));
        }
    }
    const dsr_view view = session_upload(g->s, keys, n_bytes, DSR_DTYPE_BF16);
    free(keys);
    return view;
}

static dsr_view ones_view(generator *g, uint64_t n, dsr_dtype dtype)
{
    const uint64_t n_halves = n * dsr_dtype_size(dtype) / sizeof(uint16_t);
    const uint64_t step = dtype == DSR_DTYPE_F32 ? 2 : 1; /* F32: the upper half of each */
    uint16_t *halves = cli_allocate(n_halves * sizeof *halves);
    for (uint64_t i = step - 1; i < n_halves; i += step) {
        halves[i] = bf16_round(1);
    }
    const dsr_view view = session_upload(g->s, halves, n_halves * sizeof *halves, dtype);
    free(halves);
    return view;
}

/* Lists of row r at r * stride + 128 with 128 added, where the attention of a step finds them, or plain. */
static void set_indexer(generator *g, const bench_shape *shape, uint32_t heads, uint32_t stride, indexer_work *w)
{
    const uint32_t n_keys = shape->context / 4;
    const uint64_t n_weights = (uint64_t)shape->rows * heads;
    const int is_random = shape->pattern == BENCH_RANDOM;
    const uint32_t offset = stride == shape->top_k ? 0 : DSR_WINDOW;
    uint64_t workspace_bytes = 0;
    memset(w->rows, 0, sizeof w->rows);
    w->desc = (dsr_indexer_desc)DSR_INDEXER_DESC_INIT;
    w->desc.rows = w->rows;
    w->desc.n_rows = shape->rows;
    w->desc.n_heads = heads;
    w->desc.top_k = shape->top_k;
    for (uint32_t r = 0; r < shape->rows; r++) {
        w->rows[r].kv_len = n_keys;
        if (is_random) {
            const bench_cache keys = random_cache(g, shape, DSR_INDEX_DIM, n_keys);
            w->rows[r].keys = keys.view;
            w->rows[r].key_layout = keys.layout;
        } else {
            w->rows[r].keys = patterned_keys(g, n_keys, shape->pattern);
        }
        w->rows[r].q_row = r;
        w->rows[r].output_offset = (uint64_t)r * stride + offset;
        w->rows[r].start_pos = shape->context - 1;
        w->rows[r].offset = (int32_t)offset;
    }
    session_check(g->s, dsr_indexer_workspace(g->s->context, &w->desc, &workspace_bytes));
    w->desc.q = is_random ? queries_view(g, shape, n_weights) : ones_view(g, n_weights * DSR_INDEX_DIM, DSR_DTYPE_BF16);
    w->desc.weights = is_random ? random_view(g, n_weights, DSR_DTYPE_F32, DSR_INDEXER_SCALE)
                                : ones_view(g, n_weights, DSR_DTYPE_F32);
    w->desc.output = session_allocate(g->s, (uint64_t)shape->rows * stride * sizeof(int32_t), DSR_DTYPE_I32);
    w->desc.workspace = session_allocate(g->s, workspace_bytes, DSR_DTYPE_U8);
}

static void build_indexer(generator *g, const bench_shape *shape, int with_alone, bench_work *work)
{
    indexer_work *w = cli_allocate(sizeof *w);
    set_indexer(g, shape, shape->heads, shape->top_k, w);
    note_output(work, w->desc.output);
    encode_all(g->s, encode_indexer, w, shape->rows, with_alone, work);
    free(w);
}

typedef struct compressor_work {
    dsr_compressor_desc desc;
    dsr_compressor_row rows[DSR_MAX_ROWS];
} compressor_work;

static void encode_compressor(session *s, void *description, uint32_t first, uint32_t n, dsr_encoder *encoder)
{
    compressor_work *w = description;
    dsr_compressor_desc desc = w->desc;
    desc.n_rows = n;
    desc.rows = w->rows + first;
    session_check(s, dsr_encode_compressor(encoder, &desc));
}

/* The token that completes a group: the dear step. */
static void set_compressor(generator *g, uint32_t n_rows, uint32_t ratio, uint32_t dim, uint32_t position,
                           compressor_work *w)
{
    const uint32_t width = (ratio == 4 ? 2 : 1) * dim;
    const uint64_t n_state = dsr_compressor_state_elements(ratio, dim);
    memset(w->rows, 0, sizeof w->rows);
    w->desc = (dsr_compressor_desc)DSR_COMPRESSOR_DESC_INIT;
    w->desc.rows = w->rows;
    w->desc.n_rows = n_rows;
    w->desc.ratio = ratio;
    w->desc.dim = dim;
    w->desc.epsilon = 1e-6f;
    for (uint32_t r = 0; r < n_rows; r++) {
        w->rows[r].kv_state = random_view(g, n_state, DSR_DTYPE_F32, 1);
        w->rows[r].score_state = random_view(g, n_state, DSR_DTYPE_F32, 1);
        w->rows[r].token_row = r;
        w->rows[r].output_row = r;
        w->rows[r].start_pos = position;
    }
    w->desc.kv = random_view(g, (uint64_t)n_rows * width, DSR_DTYPE_F32, 1);
    w->desc.score = random_view(g, (uint64_t)n_rows * width, DSR_DTYPE_F32, 1);
    w->desc.ape = random_view(g, (uint64_t)ratio * width, DSR_DTYPE_F32, 1);
    w->desc.norm = random_view(g, dim, DSR_DTYPE_F32, 1);
    w->desc.output = session_allocate(g->s, (uint64_t)n_rows * dim * sizeof(uint16_t), DSR_DTYPE_BF16);
}

static void build_compressor(generator *g, const bench_shape *shape, int with_alone, bench_work *work)
{
    compressor_work *w = cli_allocate(sizeof *w);
    set_compressor(g, shape->rows, shape->ratio, shape->dim, 8 * shape->ratio - 1, w);
    note_output(work, w->desc.output);
    encode_all(g->s, encode_compressor, w, shape->rows, with_alone, work);
    free(w);
}

static void encode_projection(session *s, void *description, uint32_t first, uint32_t n, dsr_encoder *encoder)
{
    dsr_projection_desc desc = *(const dsr_projection_desc *)description;
    desc.n_rows = n;
    desc.input = dsr_view_slice(desc.input, (uint64_t)first * desc.n_inputs, (uint64_t)n * desc.n_inputs);
    desc.output = dsr_view_slice(desc.output, (uint64_t)first * desc.n_outputs, (uint64_t)n * desc.n_outputs);
    session_check(s, dsr_encode_projection(encoder, &desc));
}

static void build_projection(generator *g, const bench_shape *shape, int with_alone, bench_work *work)
{
    dsr_projection_desc desc = DSR_PROJECTION_DESC_INIT;
    dsr_projection_weights weights = DSR_PROJECTION_WEIGHTS_INIT;
    const uint64_t n = (uint64_t)shape->inputs * shape->outputs;
    uint16_t *plain = cli_allocate(n * sizeof *plain);
    uint64_t packed_bytes = 0;
    for (uint64_t i = 0; i < n; i++) {
        plain[i] = (uint16_t)(0x3d00u + next_word(g) % 0x180u + (next_word(g) & 1u) * 0x8000u);
    }
    weights.n_inputs = shape->inputs;
    weights.n_outputs = shape->outputs;
    weights.data = plain;
    session_check(g->s, dsr_projection_packed_bytes(g->s->context, &weights, &packed_bytes));
    void *packed = cli_allocate(packed_bytes);
    session_check(g->s, dsr_projection_pack(g->s->context, &weights, packed, packed_bytes));
    desc.n_inputs = shape->inputs;
    desc.n_outputs = shape->outputs;
    desc.format = DSR_WEIGHT_BF16_PACKED;
    desc.weight = session_upload(g->s, packed, packed_bytes, DSR_DTYPE_U32);
    desc.input = random_view(g, (uint64_t)shape->rows * shape->inputs, DSR_DTYPE_BF16, 1);
    desc.output = session_allocate(g->s, (uint64_t)shape->rows * shape->outputs * sizeof(float), DSR_DTYPE_F32);
    free(packed);
    free(plain);
    note_output(work, desc.output);
    encode_all(g->s, encode_projection, &desc, shape->rows, with_alone, work);
}

/* Both compressors, the indexer and the attention over what it selects, as one list of commands. */
static void build_core(generator *g, const bench_shape *shape, int with_alone, bench_work *work)
{
    const uint32_t n_keys = shape->context / 4, stride = DSR_WINDOW + shape->top_k;
    const uint32_t n_selected = n_keys < shape->top_k ? n_keys : shape->top_k;
    compressor_work *main_entry = cli_allocate(sizeof *main_entry), *index_entry = cli_allocate(sizeof *index_entry);
    indexer_work *indexer = cli_allocate(sizeof *indexer);
    attention_work *attention = cli_allocate(sizeof *attention);
    set_compressor(g, shape->rows, 4, 512, shape->context - 1, main_entry);
    set_compressor(g, shape->rows, 4, 128, shape->context - 1, index_entry);
    set_indexer(g, shape, BENCH_CORE_INDEX_HEADS, stride, indexer);
    attention->flash = DSR_WINDOW + n_selected >= 384;
    set_attention(g, shape, DSR_WINDOW + n_selected, attention);
    attention->desc.indices = indexer->desc.output;
    int32_t window[DSR_WINDOW];
    for (uint32_t r = 0; r < shape->rows; r++) {
        attention->rows[r].kv = random_view(g, (uint64_t)(DSR_WINDOW + n_keys) * DSR_HEAD_DIM, DSR_DTYPE_BF16, 1);
        attention->rows[r].kv_len = DSR_WINDOW + n_keys;
        attention->rows[r].index_offset = (uint64_t)r * stride;
        dsr_window_slots(shape->context - 1, DSR_WINDOW, window);
        session_write(g->s, indexer->desc.output, (uint64_t)r * stride * sizeof *window, window, sizeof window);
    }
    note_output(work, attention->desc.output);
    note_output(work, main_entry->desc.output);
    note_output(work, index_entry->desc.output);
    encode_all(g->s, encode_compressor, main_entry, shape->rows, with_alone, work);
    encode_all(g->s, encode_compressor, index_entry, shape->rows, with_alone, work);
    encode_all(g->s, encode_indexer, indexer, shape->rows, with_alone, work);
    encode_all(g->s, encode_attention, attention, shape->rows, with_alone, work);
    free(attention);
    free(indexer);
    free(index_entry);
    free(main_entry);
}

void bench_build(session *s, const bench_shape *shape, uint64_t seed, int with_alone, bench_work *work)
{
    generator g = {s, seed * 2654435761u + 1};
    memset(work, 0, sizeof *work);
    switch (shape->op) {
    case BENCH_INDEXER:
        build_indexer(&g, shape, with_alone, work);
        break;
    case BENCH_TWO_PASS:
    case BENCH_FLASH:
        build_attention(&g, shape, with_alone, work);
        break;
    case BENCH_COMPRESSOR:
        build_compressor(&g, shape, with_alone, work);
        break;
    case BENCH_PROJECTION:
        build_projection(&g, shape, with_alone, work);
        break;
    case BENCH_CORE:
        build_core(&g, shape, with_alone, work);
        break;
    case BENCH_N_OPS:
        break;
    }
}

void bench_release(bench_work *work)
{
    dsr_encoder_destroy(work->joint);
    for (uint32_t r = 0; r < work->n_alone; r++) {
        dsr_encoder_destroy(work->alone[r]);
    }
}
