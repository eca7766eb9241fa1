/* Faults that other libraries of the field had reported, tried at the interface of this one. */
#include "api_fixture.h"

#include <math.h>

enum { BF16_ONE = 0x3f80, BF16_NAN = 0x7fc0 };

static uint16_t bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void fill_u16(dsr_view view, uint16_t value)
{
    uint16_t *at = api_data(view);
    for (uint64_t i = 0; i < view.byte_length / sizeof(*at); i++)
        at[i] = value;
}

static void fill_f32(dsr_view view, float value)
{
    float *at = api_data(view);
    for (uint64_t i = 0; i < view.byte_length / sizeof(*at); i++)
        at[i] = value;
}

static void run(api_fixture *f)
{
    assert_int_equal(dsr_encoder_submit(f->encoder), DSR_OK);
    assert_int_equal(dsr_encoder_wait(f->encoder), DSR_OK);
    assert_int_equal(dsr_encoder_reset(f->encoder), DSR_OK);
}

/* A view of a buffer of its own, which lives as long as the test that puts it into `buffers`. */
typedef struct own_buffers {
    uint32_t n;
    dsr_buffer *buffers[8];
} own_buffers;

static dsr_view own_view(api_fixture *f, own_buffers *own, dsr_dtype dtype, uint64_t n_elements)
{
    dsr_buffer **buffer = &own->buffers[own->n++];
    assert_int_equal(dsr_buffer_create(f->context, n_elements * dsr_dtype_size(dtype), buffer), DSR_OK);
    return dsr_view_whole(*buffer, dtype);
}

static void release(own_buffers *own)
{
    while (own->n > 0)
        dsr_buffer_destroy(own->buffers[--own->n]);
}

/* An indexer call of one row with a random query and keys. */
static void make_indexer(api_fixture *f, dsr_indexer_desc *desc, dsr_indexer_row *row, uint32_t n_keys, uint32_t top_k)
{
    uint32_t seed = 12345;
    uint64_t size_bytes = 0;
    uint16_t *q, *keys;
    f->pool_used = POOL_MARGIN;
    memset(row, 0, sizeof(*row));
    *desc = (dsr_indexer_desc)DSR_INDEXER_DESC_INIT;
    desc->n_rows = 1;
    desc->rows = row;
    desc->n_heads = 32;
    desc->top_k = top_k;
    row->kv_len = n_keys;
    row->start_pos = 4 * n_keys - 1;
    row->keys = api_view(f, DSR_DTYPE_BF16, (uint64_t)n_keys * DSR_INDEX_DIM);
    desc->q = api_view(f, DSR_DTYPE_BF16, 32 * DSR_INDEX_DIM);
    desc->weights = api_view(f, DSR_DTYPE_F32, 32);
    desc->scores = api_view(f, DSR_DTYPE_F32, n_keys);
    desc->output = api_view(f, DSR_DTYPE_I32, top_k);
    assert_int_equal(dsr_indexer_workspace(f->context, desc, &size_bytes), DSR_OK);
    desc->workspace = api_view(f, DSR_DTYPE_U8, size_bytes);
    q = api_data(desc->q);
    keys = api_data(row->keys);
    for (uint64_t i = 0; i < ((uint64_t)n_keys + 32) * DSR_INDEX_DIM; i++) {
        uint16_t *at = i < 32 * DSR_INDEX_DIM ? &q[i] : &keys[i - 32 * DSR_INDEX_DIM];
        seed = seed * 1664525u + 1013904223u;
        *at = bf16((float)(int32_t)(seed >> 20) / 2048.0f - 1.0f);
    }
    fill_f32(desc->weights, 0.125f);
}

/* Lengths (5, 0, -1, 7): an error, and nothing is written. */
static void test_negative_length(void **state)
{
    static const int64_t lengths[] = {5, 0, -1, 7};
    api_fixture *f = *state;
    dsr_indexer_row rows[4];
    dsr_attention_row attention_rows[4];
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    dsr_attention_desc attention = DSR_ATTENTION_DESC_INIT;
    memset(rows, 0, sizeof(rows));
    memset(attention_rows, 0, sizeof(attention_rows));
    desc.n_rows = attention.n_rows = 4;
    desc.rows = rows;
    desc.n_heads = attention.n_heads = 64;
    desc.top_k = 32;
    desc.q = attention.q = attention.output = api_view(f, DSR_DTYPE_BF16, 4 * 64 * DSR_HEAD_DIM);
    desc.weights = attention.sinks = api_view(f, DSR_DTYPE_F32, 4 * 64);
    desc.output = attention.indices = api_view(f, DSR_DTYPE_I32, 4 * 32);
    desc.workspace = attention.workspace = api_view(f, DSR_DTYPE_U8, 1 << 20);
    attention.rows = attention_rows;
    attention.scale = 1.0f;
    for (uint32_t r = 0; r < 4; r++) {
        rows[r].keys = api_view(f, DSR_DTYPE_BF16, 8 * DSR_INDEX_DIM);
        rows[r].kv_len = (uint64_t)lengths[r];
        rows[r].output_offset = r * 32;
        attention_rows[r].kv = api_view(f, DSR_DTYPE_BF16, 8 * DSR_HEAD_DIM);
        attention_rows[r].kv_len = (uint64_t)lengths[r];
        attention_rows[r].width = 4;
        attention_rows[r].q_row = r;
    }
    memset(dsr_buffer_data(f->pool), POOL_FILL, POOL_BYTES);
    assert_int_equal(dsr_encode_indexer(f->encoder, &desc), DSR_ERR_VALUE);
    api_assert_text(f, "indexer: row 1: kv_len must be nonzero");
    assert_int_equal(dsr_encode_sparse_attention(f->encoder, &attention), DSR_ERR_VALUE);
    rows[1].kv_len = attention_rows[1].kv_len = 1;
    assert_int_equal(dsr_encode_indexer(f->encoder, &desc), DSR_ERR_OVERFLOW);
    api_assert_text(f, "indexer: row 2: keys");
    assert_int_equal(dsr_encode_sparse_attention(f->encoder, &attention), DSR_ERR_OVERFLOW);
    api_assert_text(f, "sparse-attention: row 2: kv");
    /* A width of -1. */
    attention_rows[2].kv_len = 8;
    attention_rows[2].width = (uint64_t)-1;
    assert_int_equal(dsr_encode_flash_attention(f->encoder, &attention), DSR_ERR_OVERFLOW);
    api_assert_text(f, "flash-attention: row 2: width");
    run(f);
    api_assert_pool_is_filled(f);
}

/* Every pair of operands that shares a byte, one of the two written, is refused; pairs that touch are taken. */
static void test_shared_buffers(void **state)
{
    api_fixture *f = *state;
    for (uint32_t n_keys = 1025; n_keys <= 5000; n_keys += 3975) {
        for (uint32_t i = 0; i < 6; i++) {
            for (uint32_t written = 3; written < 6; written++) {
                dsr_indexer_row row;
                dsr_indexer_desc desc;
                dsr_view *const views[] = {&row.keys,    &desc.q,      &desc.weights,
                                           &desc.scores, &desc.output, &desc.workspace};
                uint64_t begin, used_bytes;
                if (i == written)
                    continue;
                make_indexer(f, &desc, &row, n_keys, 512);
                used_bytes =
                    views[written] == &desc.workspace ? desc.workspace.byte_length - 64 : views[written]->byte_length;
                begin = views[written]->byte_offset;
                memset(dsr_buffer_data(f->pool), POOL_FILL, POOL_BYTES);
                /* The workspace is used from a multiple of 64 bytes on. */
                views[i]->byte_offset = i == 5 ? (begin + used_bytes - 4) / 64 * 64 : begin + used_bytes - 4;
                assert_int_equal(dsr_encode_indexer(f->encoder, &desc), DSR_ERR_OVERLAP);
                views[i]->byte_offset = begin;
                assert_int_equal(dsr_encode_indexer(f->encoder, &desc), DSR_ERR_OVERLAP);
                api_assert_pool_is_filled(f);
            }
        }
    }
    assert_int_equal(dsr_encoder_n_commands(f->encoder), 0);
}

/* Output that begins where an input ends, and the other way round. */
static void test_touching_buffers(void **state)
{
    api_fixture *f = *state;
    dsr_view source = api_view(f, DSR_DTYPE_F32, 64);
    dsr_gather_desc desc = DSR_GATHER_DESC_INIT;
    desc.n_rows = 1;
    desc.sources = &source;
    desc.row_elements = 16;
    desc.output = source;
    source.byte_length = desc.output.byte_length = 64;
    desc.output.byte_offset += 64;
    assert_int_equal(dsr_encode_gather(f->encoder, &desc), DSR_OK);
    desc.output.byte_offset -= 128;
    assert_int_equal(dsr_encode_gather(f->encoder, &desc), DSR_OK);
    desc.output.byte_offset += 4;
    assert_int_equal(dsr_encode_gather(f->encoder, &desc), DSR_ERR_OVERLAP);
}

/* An attention call of one row on a cache whose rows are all ones, with q = 0 and sink 0: m rows give m / (m + 1). */
static void make_attention(api_fixture *f, own_buffers *own, dsr_attention_desc *desc, dsr_attention_row *rows,
                           uint32_t n_rows, const uint32_t *widths, uint32_t kv_len, uint32_t n_heads)
{
    uint64_t n_indices = 0, size_bytes = 0;
    const dsr_view kv = own_view(f, own, DSR_DTYPE_BF16, (uint64_t)kv_len * DSR_HEAD_DIM);
    int32_t *indices;
    fill_u16(kv, BF16_ONE);
    memset(rows, 0, n_rows * sizeof(*rows));
    *desc = (dsr_attention_desc)DSR_ATTENTION_DESC_INIT;
    for (uint32_t r = 0; r < n_rows; r++) {
        rows[r].kv = kv;
        rows[r].kv_len = kv_len;
        rows[r].q_row = r;
        rows[r].index_offset = n_indices;
        rows[r].width = widths[r];
        n_indices += widths[r];
    }
    desc->n_rows = n_rows;
    desc->rows = rows;
    desc->n_heads = n_heads;
    desc->scale = DSR_ATTENTION_SCALE;
    desc->q = own_view(f, own, DSR_DTYPE_BF16, (uint64_t)n_rows * n_heads * DSR_HEAD_DIM);
    desc->output = own_view(f, own, DSR_DTYPE_BF16, (uint64_t)n_rows * n_heads * DSR_HEAD_DIM);
    desc->sinks = own_view(f, own, DSR_DTYPE_F32, n_heads);
    desc->indices = own_view(f, own, DSR_DTYPE_I32, n_indices);
    indices = api_data(desc->indices);
    for (uint32_t r = 0; r < n_rows; r++) {
        for (uint32_t i = 0; i < widths[r]; i++)
            indices[rows[r].index_offset + i] = (int32_t)(i % kv_len);
    }
    assert_int_equal(dsr_sparse_attention_workspace(f->context, desc, &size_bytes), DSR_OK);
    desc->workspace = own_view(f, own, DSR_DTYPE_U8, size_bytes);
}

static void assert_query(const dsr_attention_desc *desc, uint32_t query, uint16_t expected)
{
    const uint64_t n = (uint64_t)desc->n_heads * DSR_HEAD_DIM;
    const uint16_t *output = (const uint16_t *)api_data(desc->output) + query * n;
    for (uint64_t i = 0; i < n; i++) {
        if (output[i] != expected)
            fail_msg("query %u, element %u: %04x, expected %04x", query, (unsigned)i, output[i], expected);
    }
}

/* The sink counts once whatever the width and the company. */
static void test_sink_counts(void **state)
{
    static const uint32_t ms[] = {1, 2, 31, 32, 33, 512, 5000};
    static const uint32_t row_counts[] = {1, 64};
    api_fixture *f = *state;
    for (uint32_t chunked = 0; chunked < 2; chunked++) {
        for (size_t b = 0; b < 2; b++) {
            for (uint32_t first = 0; first < (row_counts[b] == 1 ? 7u : 1u); first++) {
                own_buffers own = {0};
                dsr_attention_row rows[DSR_MAX_ROWS];
                dsr_attention_desc desc;
                uint32_t widths[DSR_MAX_ROWS];
                for (uint32_t r = 0; r < row_counts[b]; r++)
                    widths[r] = ms[(first + r) % 7];
                make_attention(f, &own, &desc, rows, row_counts[b], widths, 100, 64);
                fill_u16(desc.output, BF16_NAN);
                assert_int_equal(
                    (chunked ? dsr_encode_flash_attention : dsr_encode_sparse_attention)(f->encoder, &desc), DSR_OK);
                run(f);
                for (uint32_t r = 0; r < row_counts[b]; r++)
                    assert_query(&desc, r, bf16((float)widths[r] / (float)(widths[r] + 1)));
                release(&own);
            }
        }
    }
}

/* One rule for indices: -1 is skipped anywhere, one out of range zeroes its query, and no slots at all are an error. */
static void test_one_rule_for_indices(void **state)
{
    static const int32_t lists[][4] = {{3, -1, 5, -1}, {-1, -1, -1, -1}, {3, 10, 5, 4}, {3, -2, 5, 4}, {9, 0, 1, 2}};
    static const uint32_t widths[] = {4, 4, 4, 4, 4};
    api_fixture *f = *state;
    own_buffers own = {0};
    dsr_attention_row rows[5];
    dsr_attention_desc desc;
    make_attention(f, &own, &desc, rows, 5, widths, 10, 128);
    memcpy(api_data(desc.indices), lists, sizeof(lists));
    for (uint32_t chunked = 0; chunked < 2; chunked++) {
        fill_u16(desc.output, BF16_NAN);
        assert_int_equal((chunked ? dsr_encode_flash_attention : dsr_encode_sparse_attention)(f->encoder, &desc),
                         DSR_OK);
        run(f);
        assert_query(&desc, 0, bf16(2.0f / 3.0f));
        assert_query(&desc, 1, 0);
        assert_query(&desc, 2, 0);
        assert_query(&desc, 3, 0);
        assert_query(&desc, 4, bf16(4.0f / 5.0f));
    }
    rows[0].width = 2;
    fill_u16(desc.output, BF16_NAN);
    assert_int_equal(dsr_encode_sparse_attention(f->encoder, &desc), DSR_OK);
    run(f);
    assert_query(&desc, 0, bf16(1.0f / 2.0f));
    rows[0].width = 0;
    assert_int_equal(dsr_encode_sparse_attention(f->encoder, &desc), DSR_ERR_VALUE);
    release(&own);
}

static void run_indexer(api_fixture *f, const dsr_indexer_desc *desc)
{
    const dsr_status status = dsr_encode_indexer(f->encoder, desc);
    if (status != DSR_OK)
        fail_msg("%s: %s", dsr_status_name(status), dsr_context_error_text(f->context));
    run(f);
}

/* A cache with a row stride of its own and NaN in the gaps gives the scores of a packed one. */
static void test_key_stride(void **state)
{
    enum { N_KEYS = 65, STRIDE = DSR_INDEX_DIM + 4 };
    api_fixture *f = *state;
    dsr_indexer_row row;
    dsr_indexer_desc desc;
    dsr_view wide;
    float packed_scores[N_KEYS];
    int32_t packed_list[64];
    make_indexer(f, &desc, &row, N_KEYS, 64);
    run_indexer(f, &desc);
    memcpy(packed_scores, api_data(desc.scores), sizeof(packed_scores));
    memcpy(packed_list, api_data(desc.output), sizeof(packed_list));

    wide = api_view(f, DSR_DTYPE_BF16, (N_KEYS - 1) * STRIDE + DSR_INDEX_DIM);
    fill_u16(wide, BF16_NAN);
    for (uint32_t t = 0; t < N_KEYS; t++)
        memcpy((uint16_t *)api_data(wide) + t * STRIDE, (uint16_t *)api_data(row.keys) + t * DSR_INDEX_DIM,
               DSR_INDEX_DIM * sizeof(uint16_t));
    row.keys = wide;
    row.key_row_stride = STRIDE;
    memset(api_data(desc.scores), POOL_FILL, sizeof(packed_scores));
    memset(api_data(desc.output), POOL_FILL, sizeof(packed_list));
    run_indexer(f, &desc);
    assert_memory_equal(api_data(desc.scores), packed_scores, sizeof(packed_scores));
    assert_memory_equal(api_data(desc.output), packed_list, sizeof(packed_list));
    row.key_row_stride = DSR_INDEX_DIM - 1;
    assert_int_equal(dsr_encode_indexer(f->encoder, &desc), DSR_ERR_STRIDE);
}

/* The length of a key cache is in keys: 4,100 tokens are 1,025 of them. */
static void test_lengths_are_in_keys(void **state)
{
    enum { N_TOKENS = 4100, N_KEYS = 1025, TOP_K = 2048 };
    api_fixture *f = *state;
    dsr_indexer_row row;
    dsr_indexer_desc desc;
    const float *scores;
    const int32_t *list;
    uint8_t seen[N_KEYS] = {0};
    make_indexer(f, &desc, &row, N_KEYS, TOP_K);
    row.start_pos = N_TOKENS - 1;
    row.kv_len = N_TOKENS;
    assert_int_equal(dsr_encode_indexer(f->encoder, &desc), DSR_ERR_SIZE);
    api_assert_text(f, "indexer: row 0: keys holds 262400 bytes, needs 1049600");
    row.kv_len = N_KEYS;
    run_indexer(f, &desc);
    scores = api_data(desc.scores);
    list = api_data(desc.output);
    for (uint32_t i = 0; i < TOP_K; i++) {
        if (i >= N_KEYS) {
            assert_int_equal(list[i], -1);
            continue;
        }
        assert_true(list[i] >= 0 && list[i] < N_KEYS && !seen[list[i]]);
        seen[list[i]] = 1;
        if (i > 0)
            assert_true(scores[list[i - 1]] > scores[list[i]] ||
                        (scores[list[i - 1]] == scores[list[i]] && list[i - 1] < list[i]));
    }
}

/* Lengths and lists are taken when the call is encoded; there is no second copy to disagree with. */
static void test_lengths_are_copied(void **state)
{
    enum { N_KEYS = 40, TOP_K = 64 };
    api_fixture *f = *state;
    dsr_indexer_row row;
    dsr_indexer_desc desc;
    int32_t expected[TOP_K];
    make_indexer(f, &desc, &row, N_KEYS, TOP_K);
    run_indexer(f, &desc);
    memcpy(expected, api_data(desc.output), sizeof(expected));
    memset(api_data(desc.output), POOL_FILL, sizeof(expected));
    assert_int_equal(dsr_encode_indexer(f->encoder, &desc), DSR_OK);
    memset(&row, 0xff, sizeof(row));
    memset(&desc.n_rows, 0xff, sizeof(desc) - offsetof(dsr_indexer_desc, n_rows));
    assert_int_equal(dsr_encoder_submit(f->encoder), DSR_OK);
    assert_int_equal(dsr_encoder_replay(f->encoder), DSR_OK);
    assert_int_equal(dsr_encoder_wait(f->encoder), DSR_OK);
    make_indexer(f, &desc, &row, N_KEYS, TOP_K);
    assert_memory_equal(api_data(desc.output), expected, sizeof(expected));
}

/* Views at any multiple of the element size give the same bits; others are refused by name. */
static void test_misaligned_views(void **state)
{
    enum { N_KEYS = 70, TOP_K = 64 };
    static const char *const names[] = {"keys", "q", "weights", "scores", "output", "workspace"};
    api_fixture *f = *state;
    dsr_indexer_row row;
    dsr_indexer_desc desc;
    dsr_view *const views[] = {&row.keys, &desc.q, &desc.weights, &desc.scores, &desc.output, &desc.workspace};
    float scores[N_KEYS];
    int32_t list[TOP_K];
    make_indexer(f, &desc, &row, N_KEYS, TOP_K);
    run_indexer(f, &desc);
    memcpy(scores, api_data(desc.scores), sizeof(scores));
    memcpy(list, api_data(desc.output), sizeof(list));
    for (uint32_t shift = 1; shift <= 15; shift += 2) {
        make_indexer(f, &desc, &row, N_KEYS, TOP_K);
        for (uint32_t i = 0; i < 6; i++) {
            const uint64_t bytes = shift * dsr_dtype_size(views[i]->dtype);
            uint8_t *at = api_data(*views[i]);
            memmove(at + bytes, at, views[i]->byte_length);
            views[i]->byte_offset += bytes;
        }
        run_indexer(f, &desc);
        assert_memory_equal(api_data(desc.scores), scores, sizeof(scores));
        assert_memory_equal(api_data(desc.output), list, sizeof(list));
    }
    for (uint32_t i = 0; i < 5; i++) {
        views[i]->byte_offset++;
        assert_int_equal(dsr_encode_indexer(f->encoder, &desc), DSR_ERR_ALIGNMENT);
        api_assert_text(f, names[i]);
        views[i]->byte_offset--;
    }
}

/* Every pair of sizes works or is refused by name; the workspace function says the same as the call. */
static void test_supported_sizes(void **state)
{
    static const uint32_t heads[] = {1, 2, 3, 8, 16, 24, 32, 64, 128},
                          top_ks[] = {1, 64, 128, 256, 500, 512, 1024, 2048};
    api_fixture *f = *state;
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        for (size_t j = 0; j < sizeof(top_ks) / sizeof(top_ks[0]); j++) {
            const int has_index_heads = heads[i] == 32 || heads[i] == 64 || heads[i] == 128;
            const dsr_status expected = has_index_heads && top_ks[j] % 32 == 0 ? DSR_OK : DSR_ERR_UNSUPPORTED_SHAPE;
            const uint32_t width = top_ks[j];
            dsr_indexer_row row;
            dsr_indexer_desc desc;
            uint64_t size_bytes;
            make_indexer(f, &desc, &row, 8, 2048);
            desc.n_heads = heads[i];
            desc.top_k = top_ks[j];
            desc.q = api_view(f, DSR_DTYPE_BF16, 128 * DSR_INDEX_DIM);
            desc.weights = api_view(f, DSR_DTYPE_F32, 128);
            desc.workspace = api_view(f, DSR_DTYPE_U8, 1 << 20);
            assert_int_equal(dsr_encode_indexer(f->encoder, &desc), expected);
            assert_int_equal(dsr_indexer_workspace(f->context, &desc, &size_bytes), expected);
            if (expected == DSR_OK)
                run(f);
            if (heads[i] == 64 || heads[i] == 128) {
                own_buffers own = {0};
                dsr_attention_row attention_row;
                dsr_attention_desc attention;
                make_attention(f, &own, &attention, &attention_row, 1, &width, 3, heads[i]);
                assert_int_equal(dsr_encode_flash_attention(f->encoder, &attention), DSR_OK);
                run(f);
                assert_query(&attention, 0, bf16((float)width / (float)(width + 1)));
                attention.n_heads -= 1;
                assert_int_equal(dsr_encode_flash_attention(f->encoder, &attention), DSR_ERR_UNSUPPORTED_SHAPE);
                assert_int_equal(dsr_flash_attention_workspace(f->context, &attention, &size_bytes),
                                 DSR_ERR_UNSUPPORTED_SHAPE);
                release(&own);
            }
        }
    }
}

/* Memory that fails at the i-th request, for each i. */
typedef struct failing_allocator {
    uint32_t n_calls;
    uint32_t fail_at;
} failing_allocator;

static void *allocate(void *user, size_t size_bytes, size_t alignment)
{
    failing_allocator *a = user;
    void *memory = NULL;
    if (++a->n_calls == a->fail_at)
        return NULL;
    return posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, size_bytes) == 0 ? memory
                                                                                                             : NULL;
}

static void release_memory(void *user, void *memory, size_t size_bytes)
{
    (void)user;
    (void)size_bytes;
    free(memory);
}

/* A call that finds no memory says so, leaves the encoder as it was, and works when there is memory again. */
static void test_out_of_memory(void **state)
{
    failing_allocator memory = {0};
    dsr_context_desc context_desc = DSR_CONTEXT_DESC_INIT;
    api_fixture own = {0};
    dsr_indexer_row row;
    dsr_indexer_desc desc;
    uint32_t n_failures = 0;
    (void)state;
    context_desc.allocator = (dsr_allocator){allocate, release_memory, &memory};
    assert_int_equal(dsr_context_create(&context_desc, &own.context), DSR_OK);
    assert_int_equal(dsr_buffer_create(own.context, POOL_BYTES, &own.pool), DSR_OK);
    make_indexer(&own, &desc, &row, 100, 64);
    for (uint32_t fail_at = 1;; fail_at++) {
        dsr_status status;
        memory.fail_at = 0;
        assert_int_equal(dsr_encoder_create(own.context, &own.encoder), DSR_OK);
        memory.n_calls = 0;
        memory.fail_at = fail_at;
        status = dsr_encode_indexer(own.encoder, &desc);
        if (status != DSR_OK) {
            assert_int_equal(status, DSR_ERR_OUT_OF_MEMORY);
            assert_true(strlen(dsr_context_error_text(own.context)) > 0);
            assert_int_equal(dsr_encoder_n_commands(own.encoder), 0);
            assert_int_equal(dsr_encode_indexer(own.encoder, &desc), DSR_OK);
            n_failures++;
        }
        assert_int_equal(dsr_encoder_n_commands(own.encoder), 1);
        memory.fail_at = 0;
        memory.n_calls = 0;
        run(&own);
        /* What a run needs was stated before: it asks for no memory. */
        assert_int_equal(dsr_encode_indexer(own.encoder, &desc), DSR_OK);
        run(&own);
        assert_int_equal(memory.n_calls, 0);
        dsr_encoder_destroy(own.encoder);
        if (status == DSR_OK)
            break;
    }
    assert_true(n_failures > 0);
    dsr_buffer_destroy(own.pool);
    dsr_context_destroy(own.context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_negative_length, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_shared_buffers, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_touching_buffers, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_sink_counts, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_one_rule_for_indices, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_key_stride, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_lengths_are_in_keys, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_lengths_are_copied, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_misaligned_views, api_setup, api_teardown),
        cmocka_unit_test_setup_teardown(test_supported_sizes, api_setup, api_teardown),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
