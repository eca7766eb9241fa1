/* Writing caches and reading them again: the fused writer against the ops that it joins, any cutting of tokens into
 * calls, conversions there and back, and commands that share pages. */
#include "property_test.h"

#include "direct.h"

enum {
    N_TOKENS = 53,
    PAGE = 16,
    N_PAGES = 4, /* of a request */
    N_POOL = 11,
    STEP = 4,
    N_HEADS = 64,
    N_INDEX_HEADS = 32,
    TOP_K = 32
};

/* Widest entries. */
enum { MOST_DIM = 512, MOST_PAGE_BYTES = 17 * 576 };

/* Tokens of one request, and what is made of them. */
typedef struct trial {
    direct d;
    random_stream random;
    uint32_t dim;
    uint32_t start_pos;
    uint16_t tokens[N_TOKENS * MOST_DIM];
    uint16_t plain[N_TOKENS * MOST_DIM]; /* rotated and fake quantised */
    int32_t table[N_PAGES];
    int32_t other_table[N_PAGES]; /* pages that the first has not */
    _Alignas(16) uint8_t pool[N_POOL * MOST_PAGE_BYTES];
    _Alignas(16) uint8_t other_pool[N_POOL * MOST_PAGE_BYTES];
} trial;

static dsr_cache_format packed_format(const trial *t)
{
    return t->dim == 128 ? DSR_FORMAT_FP4 : DSR_FORMAT_FP8;
}

static size_t pool_bytes(const trial *t)
{
    return N_POOL * (size_t)dsr_cache_page_bytes(packed_format(t), t->dim, PAGE);
}

#define must(t, call)                                                                                                  \
    do {                                                                                                               \
        if ((call) != DSR_OK)                                                                                          \
            fail_msg("%s", direct_error(&(t)->d));                                                                     \
    } while (0)

static dsr_view bf16_view(trial *t, const uint16_t *entries)
{
    return direct_bf16(&t->d, entries, (size_t)N_TOKENS * t->dim);
}

static dsr_view pool_view(trial *t, const uint8_t *pool)
{
    return direct_view(&t->d, pool, pool_bytes(t), DSR_DTYPE_U8);
}

static dsr_cache_layout paged(trial *t, const int32_t *table)
{
    dsr_cache_layout layout;
    memset(&layout, 0, sizeof layout);
    layout.format = packed_format(t);
    layout.page_size = PAGE;
    layout.page_table = direct_i32(&t->d, table, N_PAGES);
    return layout;
}

/* Tokens [first, first + n) to a pool. */
static dsr_append_row append_row(trial *t, dsr_view pool, const int32_t *table, uint32_t first, uint32_t n)
{
    dsr_append_row row;
    memset(&row, 0, sizeof row);
    row.cache = pool;
    row.cache_layout = paged(t, table);
    row.n_entries = N_TOKENS;
    row.first_entry = first;
    row.source_row = first;
    row.n_tokens = n;
    row.start_pos = t->start_pos + first * STEP;
    row.position_step = STEP;
    return row;
}

static dsr_append_desc append_call(trial *t, const dsr_append_row *rows, uint32_t n_rows)
{
    dsr_append_desc desc = DSR_APPEND_DESC_INIT;
    desc.n_rows = n_rows;
    desc.rows = rows;
    desc.dim = t->dim;
    desc.source = bf16_view(t, t->tokens);
    desc.frequencies = dsr_rope_frequencies(DSR_ROPE_YARN);
    return desc;
}

/* The ops one by one. */
static void make_plain(trial *t)
{
    const dsr_rope_row row = {0, t->start_pos, STEP, N_TOKENS};
    dsr_rope_desc rope = DSR_ROPE_DESC_INIT;
    dsr_fake_quant_desc quant = DSR_FAKE_QUANT_DESC_INIT;
    rope.n_rows = 1;
    rope.rows = &row;
    rope.n_heads = 1;
    rope.head_dim = t->dim;
    rope.rope_dim = DSR_ROPE_DIM;
    rope.input = bf16_view(t, t->tokens);
    rope.output = bf16_view(t, t->plain);
    rope.frequencies = dsr_rope_frequencies(DSR_ROPE_YARN);
    must(t, dsr_encode_rope(t->d.encoder, &rope));
    quant.kind = t->dim == 128 ? DSR_QUANT_HADAMARD_FP4_BLOCK32 : DSR_QUANT_FP8_BLOCK64;
    quant.n_vectors = N_TOKENS;
    quant.dim = t->dim;
    quant.input = quant.output = rope.output;
    must(t, dsr_encode_fake_quant(t->d.encoder, &quant));
    must(t, direct_run(&t->d));
}

static int has_extremes(int32_t token)
{
    return token % 5 == 4;
}

static void open_trial(trial *t, dsr_context *like, uint32_t dim, random_stream *random)
{
    uint32_t pages[N_POOL];
    memset(t, 0, sizeof *t);
    direct_open(&t->d, dsr_context_isa(like), dsr_context_n_threads(like));
    t->random = random_open(random_next(random), dim);
    t->dim = dim;
    t->start_pos = random_below(&t->random, 100000) * STEP;
    for (int32_t i = 0; i < N_TOKENS; i++) {
        pattern_fill_bf16(&t->random, has_extremes(i) ? PATTERN_MIXED : PATTERN_NORMAL, i % 3 == 2 ? 0x1p-16f : 1.0f,
                          t->tokens + (size_t)i * dim, dim);
    }
    for (uint32_t i = 0; i < N_POOL; i++) {
        pages[i] = i;
    }
    random_shuffle(&t->random, pages, N_POOL);
    for (uint32_t i = 0; i < N_PAGES; i++) {
        t->table[i] = (int32_t)pages[i];
        t->other_table[i] = (int32_t)pages[N_PAGES + i];
    }
    memset(t->pool, 0x5a, sizeof t->pool);
    memset(t->other_pool, 0x5a, sizeof t->other_pool);
    make_plain(t);
}

typedef void (*property)(trial *t);

static void for_levels(property holds)
{
    random_stream random = random_open(property_seed(), 31);
    dsr_context *chosen[N_CONTEXTS];
    const uint32_t n = choose_contexts(&random, chosen);
    trial *t = malloc(sizeof *t);
    assert_non_null(t);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t dim = 128; dim <= 512; dim *= 4) {
            open_trial(t, chosen[i], dim, &random);
            holds(t);
            direct_close(&t->d);
        }
    }
    free(t);
}

/* Entries of pages to BF16 in one piece. */
static void encode_decoding(trial *t, dsr_view pool, const int32_t *table, uint16_t *entries)
{
    dsr_convert_row row;
    dsr_convert_desc desc = DSR_CONVERT_DESC_INIT;
    memset(&row, 0, sizeof row);
    row.source = pool;
    row.source_layout = paged(t, table);
    row.source_entries = row.destination_entries = row.n_entries = N_TOKENS;
    row.destination = bf16_view(t, entries);
    desc.n_rows = 1;
    desc.rows = &row;
    desc.dim = t->dim;
    must(t, dsr_encode_convert(t->d.encoder, &desc));
}

static void assert_same_entries(const trial *t, const uint16_t *found, const uint16_t *expected)
{
    const size_t at = bit_diff_first(found, expected, (size_t)N_TOKENS * t->dim * sizeof *found) / sizeof *found;
    if (at < (size_t)N_TOKENS * t->dim) {
        fail_msg("%s, dim %u, token %zu, feature %zu: %04x, needed is %04x",
                 dsr_isa_name(dsr_context_isa(t->d.context)), t->dim, at / t->dim, at % t->dim, found[at],
                 expected[at]);
    }
}

/* ---- the writer and the ops it joins ---------------------------------------------------------------------- */

static void decodes_to_the_ops_apart(trial *t)
{
    static uint16_t decoded[N_TOKENS * MOST_DIM];
    const dsr_view pool = pool_view(t, t->pool);
    const dsr_append_row row = append_row(t, pool, t->table, 0, N_TOKENS);
    const dsr_append_desc desc = append_call(t, &row, 1);
    must(t, dsr_encode_append(t->d.encoder, &desc));
    encode_decoding(t, pool, t->table, decoded);
    must(t, direct_run(&t->d));
    assert_same_entries(t, decoded, t->plain);
}

static void test_append_equals_the_ops_apart(void **state)
{
    (void)state;
    for_levels(decodes_to_the_ops_apart);
}

/* ---- any cutting of tokens into calls and rows -------------------------------------------------------------- */

static void cuts_do_not_matter(trial *t)
{
    const dsr_view whole = pool_view(t, t->pool), cut = pool_view(t, t->other_pool);
    dsr_append_row rows[3];
    rows[0] = append_row(t, whole, t->table, 0, N_TOKENS);
    dsr_append_desc desc = append_call(t, rows, 1);
    must(t, dsr_encode_append(t->d.encoder, &desc));
    for (uint32_t first = 0; first < N_TOKENS;) {
        uint32_t n_rows = 0;
        for (; n_rows < 3 && first < N_TOKENS; n_rows++) {
            const uint32_t n = random_between(&t->random, 1, N_TOKENS - first < 12 ? N_TOKENS - first : 12);
            rows[n_rows] = append_row(t, cut, t->table, first, n);
            first += n;
        }
        desc = append_call(t, rows, n_rows);
        must(t, dsr_encode_append(t->d.encoder, &desc));
    }
    must(t, direct_run(&t->d));
    assert_memory_equal(t->pool, t->other_pool, pool_bytes(t));
}

static void test_cuts_do_not_matter(void **state)
{
    (void)state;
    for_levels(cuts_do_not_matter);
}

/* ---- there and back ----------------------------------------------------------------------------------------- */

/* BF16 values of the grid, packed into other pages, are the same values. */
static void packing_keeps_values(trial *t)
{
    static uint16_t decoded[N_TOKENS * MOST_DIM];
    const dsr_view pool = pool_view(t, t->pool);
    dsr_convert_row row;
    dsr_convert_desc desc = DSR_CONVERT_DESC_INIT;
    memset(&row, 0, sizeof row);
    row.source = bf16_view(t, t->plain);
    row.destination = pool;
    row.destination_layout = paged(t, t->other_table);
    row.source_entries = row.destination_entries = row.n_entries = N_TOKENS;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.dim = t->dim;
    must(t, dsr_encode_convert(t->d.encoder, &desc));
    encode_decoding(t, pool, t->other_table, decoded);
    must(t, direct_run(&t->d));
    assert_same_entries(t, decoded, t->plain);
}

static void test_packing_keeps_values(void **state)
{
    (void)state;
    for_levels(packing_keeps_values);
}

/* ---- readers behind writers --------------------------------------------------------------------------------- */

enum { PACKED_REQUEST, OTHER_PACKED_REQUEST, PLAIN_REQUEST, N_REQUESTS };

static void attend(trial *t, dsr_view pool, const int32_t *lists, uint16_t *output)
{
    static uint16_t q[N_REQUESTS * N_HEADS * MOST_DIM];
    static float sinks[N_HEADS];
    dsr_attention_row rows[N_REQUESTS];
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    pattern_fill_bf16(&t->random, PATTERN_NORMAL, 1.0f, q, N_HEADS * MOST_DIM);
    memset(rows, 0, sizeof rows);
    for (uint32_t r = 0; r < N_REQUESTS; r++) {
        memcpy(q + (size_t)r * N_HEADS * MOST_DIM, q, N_HEADS * MOST_DIM * sizeof *q);
        rows[r].kv = r == PLAIN_REQUEST ? bf16_view(t, t->plain) : pool;
        if (r != PLAIN_REQUEST) {
            rows[r].kv_layout = paged(t, r == PACKED_REQUEST ? t->table : t->other_table);
        }
        rows[r].kv_len = N_TOKENS;
        rows[r].q_row = r;
        rows[r].width = N_TOKENS;
    }
    desc.n_rows = N_REQUESTS;
    desc.rows = rows;
    desc.n_heads = N_HEADS;
    desc.scale = DSR_ATTENTION_SCALE;
    desc.q = direct_bf16(&t->d, q, sizeof q / sizeof *q);
    desc.indices = direct_i32(&t->d, lists, N_TOKENS);
    desc.sinks = direct_f32(&t->d, sinks, N_HEADS);
    desc.output = direct_bf16(&t->d, output, sizeof q / sizeof *q);
    must(t, direct_encode_attention(&t->d, DIRECT_TWO_PASS, &desc));
}

static void score(trial *t, dsr_view pool, float *scores)
{
    static uint16_t q[N_INDEX_HEADS * 128];
    static float weights[N_INDEX_HEADS];
    static int32_t lists[N_REQUESTS * TOP_K];
    dsr_indexer_row rows[N_REQUESTS];
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    pattern_fill_bf16(&t->random, PATTERN_GRID_FP4, 1.0f, q, N_INDEX_HEADS * 128);
    pattern_fill_f32(&t->random, PATTERN_NORMAL, 1.0f, weights, N_INDEX_HEADS);
    memset(rows, 0, sizeof rows);
    for (uint32_t r = 0; r < N_REQUESTS; r++) {
        rows[r].keys = r == PLAIN_REQUEST ? bf16_view(t, t->plain) : pool;
        if (r != PLAIN_REQUEST) {
            rows[r].key_layout = paged(t, r == PACKED_REQUEST ? t->table : t->other_table);
        }
        rows[r].kv_len = N_TOKENS;
        rows[r].start_pos = 4 * N_TOKENS - 1;
        rows[r].output_offset = r * TOP_K;
        rows[r].scores_offset = r * N_TOKENS;
    }
    desc.n_rows = N_REQUESTS;
    desc.rows = rows;
    desc.n_heads = N_INDEX_HEADS;
    desc.top_k = TOP_K;
    desc.q = direct_bf16(&t->d, q, N_INDEX_HEADS * 128);
    desc.weights = direct_f32(&t->d, weights, N_INDEX_HEADS);
    desc.output = direct_i32(&t->d, lists, N_REQUESTS * TOP_K);
    desc.scores = direct_f32(&t->d, scores, N_REQUESTS * N_TOKENS);
    must(t, direct_encode_indexer(&t->d, &desc));
}

/* Two requests of one pool, written and read in one submission, against the same entries as BF16. */
static void readers_see_what_is_written(trial *t)
{
    static uint16_t output[N_REQUESTS * N_HEADS * MOST_DIM];
    static float scores[N_REQUESTS * N_TOKENS];
    static int32_t lists[N_TOKENS];
    const dsr_view pool = pool_view(t, t->pool);
    const dsr_append_row rows[2] = {append_row(t, pool, t->table, 0, N_TOKENS),
                                    append_row(t, pool, t->other_table, 0, N_TOKENS)};
    const dsr_append_desc desc = append_call(t, rows, 2);
    dsr_command_info info = {.struct_size = sizeof info};
    must(t, dsr_encode_append(t->d.encoder, &desc));
    for (int32_t i = 0; i < N_TOKENS; i++) {
        lists[i] = has_extremes(i) ? -1 : i; /* with them a logit overflows, and all is zero */
    }
    if (t->dim == 128) {
        score(t, pool, scores);
    } else {
        attend(t, pool, lists, output);
    }
    must(t, dsr_encoder_command(t->d.encoder, 1, &info));
    assert_int_equal(info.n_depends_on, 1);
    must(t, direct_run(&t->d));
    assert_true(t->dim == 128 ? scores[0] != 0.0f && scores[0] != scores[1] : (output[0] & 0x7fff) != 0);
    for (uint32_t r = 0; r < PLAIN_REQUEST; r++) {
        const size_t n_output = N_HEADS * MOST_DIM;
        assert_memory_equal(scores + r * N_TOKENS, scores + PLAIN_REQUEST * N_TOKENS, N_TOKENS * sizeof *scores);
        assert_memory_equal(output + r * n_output, output + PLAIN_REQUEST * n_output, n_output * sizeof *output);
    }
}

static void test_readers_see_what_is_written(void **state)
{
    (void)state;
    for_levels(readers_see_what_is_written);
}

/* ---- hazards ------------------------------------------------------------------------------------------------ */

static uint32_t dependences_of_last(const trial *t)
{
    dsr_command_info info = {.struct_size = sizeof info};
    assert_int_equal(dsr_encoder_command(t->d.encoder, dsr_encoder_n_commands(t->d.encoder) - 1, &info), DSR_OK);
    return info.n_depends_on;
}

/* Writers of one pool run in turn, whatever their pages; in one piece, those of the same entries do. */
static void writers_wait_for_each_other(trial *t)
{
    const dsr_view pool = pool_view(t, t->pool), piece = pool_view(t, t->other_pool);
    dsr_append_row row = append_row(t, pool, t->table, 0, 5);
    const dsr_append_desc desc = append_call(t, &row, 1);
    must(t, dsr_encode_append(t->d.encoder, &desc));
    row = append_row(t, pool, t->other_table, 0, 5);
    must(t, dsr_encode_append(t->d.encoder, &desc));
    assert_int_equal(dependences_of_last(t), 1);
    row.cache = piece;
    memset(&row.cache_layout, 0, sizeof row.cache_layout);
    row.cache_layout.format = packed_format(t);
    must(t, dsr_encode_append(t->d.encoder, &desc));
    assert_int_equal(dependences_of_last(t), 0);
    row.first_entry = 5;
    must(t, dsr_encode_append(t->d.encoder, &desc));
    assert_int_equal(dependences_of_last(t), 0);
    row.first_entry = 4;
    must(t, dsr_encode_append(t->d.encoder, &desc));
    assert_int_equal(dependences_of_last(t), 2);
    must(t, direct_run(&t->d));
}

static void test_writers_wait_for_each_other(void **state)
{
    (void)state;
    for_levels(writers_wait_for_each_other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append_equals_the_ops_apart), cmocka_unit_test(test_cuts_do_not_matter),
        cmocka_unit_test(test_packing_keeps_values),        cmocka_unit_test(test_readers_see_what_is_written),
        cmocka_unit_test(test_writers_wait_for_each_other),
    };
    return cmocka_run_group_tests_name("cache properties", tests, open_contexts, close_contexts);
}
