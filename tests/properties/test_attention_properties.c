/* Properties of both attention forms: what a list may hold besides the rows it selects, and what it may not see. */
#include "property_test.h"

enum { Q = 0, KV = 1, INDICES = 2, N_ROWS = 8, SHAPE_H64 = 0, SHAPE_QUERIES = 2 };

/* Makes a changed case that must give the bits of the plain one. */
typedef void (*change)(bit_case *c, random_stream *random);

static void same_after(const char *op_name, uint32_t shape, change apply)
{
    const uint64_t seed = property_seed();
    random_stream random = random_open(seed, 1);
    dsr_context *chosen[N_CONTEXTS];
    const uint32_t n_contexts = choose_contexts(&random, chosen);
    bit_case *plain = small_case(bit_op_named(op_name), shape, seed, N_ROWS);
    bit_results *expected = bit_reference(plain);

    for (uint32_t trial = 0; trial < 4; trial++) {
        bit_case *changed = small_case(bit_op_named(op_name), shape, seed, N_ROWS);
        uint32_t order[N_ROWS] = {0, 1, 2, 3, 4, 5, 6, 7};
        apply(changed, &random);
        random_shuffle(&random, order, N_ROWS);
        bit_results *results =
            run_rows(changed, order, N_ROWS, random_next(&random) % 1000, chosen[trial % n_contexts]);
        for (uint32_t r = 0; r < N_ROWS; r++) {
            assert_same_row(results, r, expected, r, op_name);
        }
        bit_results_free(results);
        bit_case_free(changed);
    }
    bit_results_free(expected);
    bit_case_free(plain);
}

static void for_both_forms(uint32_t shape, change apply)
{
    same_after("sparse-attention", shape, apply);
    same_after("flash-attention", shape, apply);
}

/* Every list with n entries of -1 put in before entry `place`. */
static void insert_skips(bit_row *row, uint64_t place, uint64_t n)
{
    bit_array longer = bit_array_new(DSR_DTYPE_I32, (size_t)(row->n_queries * (row->width + n)));
    for (uint32_t i = 0; i < row->n_queries; i++) {
        const int32_t *from = bit_i32(&row->inputs[INDICES]) + i * row->width;
        int32_t *to = bit_i32(&longer) + i * (row->width + n);
        for (uint64_t j = 0; j < row->width + n; j++) {
            to[j] = j < place ? from[j] : j < place + n ? -1 : from[j - n];
        }
    }
    replace_array(&row->inputs[INDICES], longer);
    row->width += n;
}

static void pad_tails(bit_case *c, random_stream *random)
{
    for (uint32_t r = 0; r < c->n_rows; r++) {
        insert_skips(&c->rows[r], c->rows[r].width, random_between(random, 1, 130));
    }
}

static void test_padded_tail(void **state)
{
    (void)state;
    for_both_forms(SHAPE_H64, pad_tails);
    for_both_forms(SHAPE_QUERIES, pad_tails);
}

static void insert_skips_anywhere(bit_case *c, random_stream *random)
{
    for (uint32_t r = 0; r < c->n_rows; r++) {
        insert_skips(&c->rows[r], random_below(random, (uint32_t)c->rows[r].width + 1), random_between(random, 1, 9));
    }
}

static void test_skips_anywhere_two_pass(void **state)
{
    (void)state;
    same_after("sparse-attention", SHAPE_H64, insert_skips_anywhere);
}

/* A chunk without a selected slot is left out of the combination. */
static void insert_empty_chunks(bit_case *c, random_stream *random)
{
    for (uint32_t r = 0; r < c->n_rows; r++) {
        const uint32_t chunk = random_below(random, (uint32_t)c->rows[r].width / DSR_CHUNK_SLOTS + 1);
        insert_skips(&c->rows[r], (uint64_t)chunk * DSR_CHUNK_SLOTS, DSR_CHUNK_SLOTS);
    }
}

static void test_empty_chunks_flash(void **state)
{
    (void)state;
    same_after("flash-attention", SHAPE_H64, insert_empty_chunks);
}

static int names_row(const bit_row *row, uint64_t t)
{
    for (size_t i = 0; i < row->inputs[INDICES].n; i++) {
        if (bit_i32(&row->inputs[INDICES])[i] == (int32_t)t) {
            return 1;
        }
    }
    return 0;
}

static void fill_row(bit_row *row, uint64_t t, uint16_t bits)
{
    for (uint32_t f = 0; f < DSR_HEAD_DIM; f++) {
        bit_bf16(&row->inputs[KV])[t * DSR_HEAD_DIM + f] = bits;
    }
}

static void spoil_unselected(bit_case *c, random_stream *random)
{
    static const uint16_t bad[4] = {0x7fc0, 0x7f80, 0xff80, 0xffff};
    for (uint32_t r = 0; r < c->n_rows; r++) {
        for (uint64_t t = 0; t < c->rows[r].kv_len; t++) {
            if (!names_row(&c->rows[r], t)) {
                fill_row(&c->rows[r], t, bad[random_below(random, 4)]);
            }
        }
    }
}

static void test_unselected_rows_spoilt(void **state)
{
    (void)state;
    for_both_forms(SHAPE_H64, spoil_unselected);
    for_both_forms(SHAPE_QUERIES, spoil_unselected);
}

/* Only rows whose lists name no row that is not there: for them a longer cache changes what the index means. */
static void lengthen_caches(bit_case *c, random_stream *random)
{
    for (uint32_t r = 0; r < c->n_rows; r++) {
        bit_row *row = &c->rows[r];
        const uint64_t n_more = random_between(random, 1, 40);
        int outside = 0;
        for (uint64_t t = row->kv_len; t < row->kv_len + n_more; t++) {
            outside |= names_row(row, t);
        }
        if (outside) {
            continue;
        }
        replace_array(&row->inputs[KV],
                      slice_array(&row->inputs[KV], 0, row->inputs[KV].n, (size_t)n_more * DSR_HEAD_DIM));
        row->kv_len += n_more;
        for (uint64_t t = row->kv_len - n_more; t < row->kv_len; t++) {
            fill_row(row, t, 0xffff);
        }
    }
}

static void test_longer_cache(void **state)
{
    (void)state;
    for_both_forms(SHAPE_H64, lengthen_caches);
}

/* ---- rows that share a cache ------------------------------------------------------------------------------ */

static void shared_cache(const char *op_name)
{
    const uint64_t seed = property_seed();
    random_stream random = random_open(seed, 2);
    dsr_context *chosen[N_CONTEXTS];
    const uint32_t n_contexts = choose_contexts(&random, chosen);
    uint32_t order[N_ROWS] = {0, 1, 2, 3, 4, 5, 6, 7};
    bit_case *c = small_case(bit_op_named(op_name), SHAPE_H64, seed, N_ROWS);

    for (uint32_t r = 1; r < N_ROWS; r++) { /* all rows read the cache of row 0, most entries anew */
        replace_array(&c->rows[r].inputs[KV], bit_array_borrow(&c->rows[0].inputs[KV]));
        c->rows[r].kv_len = c->rows[0].kv_len;
        for (size_t i = 0; i < c->rows[r].inputs[INDICES].n; i++) {
            int32_t *index = &bit_i32(&c->rows[r].inputs[INDICES])[i];
            *index = *index < 0 ? -1 : *index % (int32_t)c->rows[0].kv_len;
        }
    }
    bit_results *expected = bit_reference(c);
    for (uint32_t i = 0; i < n_contexts; i++) {
        bit_results *results = run_rows(c, order, N_ROWS, random_next(&random) % 1000, chosen[i]);
        for (uint32_t r = 0; r < N_ROWS; r++) {
            assert_same_row(results, r, expected, r, op_name);
        }
        bit_results_free(results);
    }
    bit_results_free(expected);
    for (uint32_t r = 1; r < N_ROWS; r++) {
        bit_array_free(&c->rows[r].inputs[KV]);
    }
    bit_case_free(c);
}

static void test_shared_cache(void **state)
{
    (void)state;
    shared_cache("sparse-attention");
    shared_cache("flash-attention");
}

/* ---- queries of a row are queries of their own ------------------------------------------------------------ */

/* One row per query of row r. */
static void split_queries(bit_case *c, const bit_row *row)
{
    const size_t query = (size_t)c->n_heads * DSR_HEAD_DIM, width = (size_t)row->width;
    c->n_rows = row->n_queries;
    for (uint32_t i = 0; i < row->n_queries; i++) {
        c->rows[i] = *row;
        c->rows[i].n_queries = 1;
        c->rows[i].inputs[Q] = slice_array(&row->inputs[Q], i * query, query, 0);
        c->rows[i].inputs[INDICES] = slice_array(&row->inputs[INDICES], i * width, width, 0);
        c->rows[i].inputs[KV] = bit_array_borrow(&row->inputs[KV]);
    }
}

static void split(const char *op_name)
{
    const uint64_t seed = property_seed();
    random_stream random = random_open(seed, 3);
    dsr_context *chosen[N_CONTEXTS];
    choose_contexts(&random, chosen);
    const uint32_t order[4] = {0, 1, 2, 3};
    bit_case *joint = small_case(bit_op_named(op_name), SHAPE_QUERIES, seed, N_ROWS);
    const uint32_t r = 3; /* the one with 4 queries */
    bit_results *expected = run_rows(joint, &r, 1, 0, chosen[0]);
    bit_case *apart = bit_case_new(bit_op_named(op_name), SHAPE_QUERIES, seed);
    const uint32_t n_before = apart->n_rows;
    bit_row kept[BIT_MAX_ROWS];
    memcpy(kept, apart->rows, sizeof kept);
    split_queries(apart, &joint->rows[r]);
    assert_int_equal(apart->n_rows, 4);

    bit_results *results = run_rows(apart, order, 4, random_next(&random) % 1000, chosen[1]);
    const size_t query = (size_t)joint->n_heads * DSR_HEAD_DIM;
    for (uint32_t i = 0; i < 4; i++) {
        assert_memory_equal(bit_bf16(&results->outputs[i][0]), bit_bf16(&expected->outputs[r][0]) + i * query,
                            query * sizeof(uint16_t));
    }
    bit_results_free(results);
    for (uint32_t i = 0; i < 4; i++) {
        bit_array_free(&apart->rows[i].inputs[Q]);
        bit_array_free(&apart->rows[i].inputs[INDICES]);
    }
    memcpy(apart->rows, kept, sizeof kept);
    apart->n_rows = n_before;
    bit_case_free(apart);
    bit_results_free(expected);
    bit_case_free(joint);
}

static void test_split_queries(void **state)
{
    (void)state;
    split("sparse-attention");
    split("flash-attention");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_padded_tail),        cmocka_unit_test(test_skips_anywhere_two_pass),
        cmocka_unit_test(test_empty_chunks_flash), cmocka_unit_test(test_unselected_rows_spoilt),
        cmocka_unit_test(test_longer_cache),       cmocka_unit_test(test_shared_cache),
        cmocka_unit_test(test_split_queries),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
