/* Properties of the lightning indexer and its top-k. */
#include "property_test.h"

#include <math.h>

enum { Q = 0, KEYS = 1, WEIGHTS = 2, LISTS = 0, SCORES = 1, N_ROWS = 8 };
enum { SHAPE_H64 = 0, SHAPE_H32 = 1, SHAPE_QUERIES = 3 };

static const uint32_t all_rows[N_ROWS] = {0, 1, 2, 3, 4, 5, 6, 7};

static uint64_t n_causal(const bit_row *row, uint32_t query)
{
    return (row->start_pos + (uint64_t)query + 1) / row->ratio;
}

/* Lists and scores of the first rows of a case on a drawn context, scores included. */
static bit_results *run_scored(const bit_case *c, random_stream *random)
{
    dsr_context *chosen[N_CONTEXTS];
    const uint32_t n = choose_contexts(random, chosen);
    return run_rows(c, all_rows, c->n_rows, 3 * (uint64_t)random_below(random, 300), chosen[random_below(random, n)]);
}

/* ---- the list is a full sort of the scores ---------------------------------------------------------------- */

static const float *sorted_scores;

static int by_score_then_index(const void *a, const void *b)
{
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    const float x = sorted_scores[i], y = sorted_scores[j];
    return x > y ? -1 : x < y ? 1 : i < j ? -1 : i > j;
}

static void assert_full_sort(const float *scores, uint64_t n, int32_t offset, const int32_t *list, uint32_t top_k)
{
    int32_t *order = calloc(n + 1, sizeof *order);
    uint32_t n_finite = 0;
    assert_non_null(order);
    for (uint64_t t = 0; t < n; t++) {
        if (isfinite(scores[t])) {
            order[n_finite++] = (int32_t)t;
        } else {
            assert_true(scores[t] < 0); /* shown as -inf */
        }
    }
    sorted_scores = scores;
    qsort(order, n_finite, sizeof *order, by_score_then_index);
    for (uint32_t i = 0; i < top_k; i++) {
        assert_int_equal(list[i], i < n_finite ? order[i] + offset : -1);
    }
    free(order);
}

static void test_list_is_a_full_sort(void **state)
{
    const uint64_t seed = property_seed();
    random_stream random = random_open(seed, 1);
    (void)state;
    for (uint32_t shape = 0; shape < 4; shape++) {
        bit_case *c = small_case(bit_op_named("indexer"), shape, seed, N_ROWS);
        bit_results *results = run_scored(c, &random);
        for (uint32_t r = 0; r < c->n_rows; r++) {
            const bit_row *row = &c->rows[r];
            for (uint32_t i = 0; i < row->n_queries; i++) {
                const float *scores = bit_f32(&results->outputs[r][SCORES]) + i * row->kv_len;
                assert_full_sort(scores, row->kv_len, row->offset,
                                 bit_i32(&results->outputs[r][LISTS]) + (size_t)i * c->top_k, c->top_k);
                for (uint64_t t = n_causal(row, i); t < row->kv_len; t++) {
                    assert_true(isinf(scores[t]) && scores[t] < 0);
                }
            }
        }
        bit_results_free(results);
        bit_case_free(c);
    }
}

/* ---- a shorter list is the beginning of a longer one ------------------------------------------------------ */

static void test_prefixes(void **state)
{
    static const uint32_t ks[] = {32, 64, 96, 480, 512, 1024, 2048};
    const uint64_t seed = property_seed();
    random_stream random = random_open(seed, 2);
    (void)state;
    bit_case *c = small_case(bit_op_named("indexer"), SHAPE_H32, seed, N_ROWS);
    c->top_k = 2048;
    bit_results *longest = run_scored(c, &random);
    for (size_t k = 0; k < sizeof ks / sizeof ks[0]; k++) {
        c->top_k = ks[k];
        bit_results *results = run_scored(c, &random);
        for (uint32_t r = 0; r < c->n_rows; r++) {
            assert_memory_equal(results->outputs[r][LISTS].data, longest->outputs[r][LISTS].data,
                                ks[k] * sizeof(int32_t));
        }
        bit_results_free(results);
    }
    bit_results_free(longest);
    bit_case_free(c);
}

/* ---- changes that change nothing -------------------------------------------------------------------------- */

static void fill_key(bit_row *row, uint64_t t, uint16_t bits)
{
    for (uint32_t f = 0; f < DSR_INDEX_DIM; f++) {
        bit_bf16(&row->inputs[KEYS])[t * DSR_INDEX_DIM + f] = bits;
    }
}

/* Keys that no query sees yet hold NaN and infinities. */
static void test_unseen_keys_spoilt(void **state)
{
    static const uint16_t bad[4] = {0x7fc0, 0x7f80, 0xff80, 0xffff};
    const uint64_t seed = property_seed();
    random_stream random = random_open(seed, 3);
    (void)state;
    bit_case *c = small_case(bit_op_named("indexer"), SHAPE_QUERIES, seed, N_ROWS);
    bit_results *expected = bit_reference(c);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        bit_row *row = &c->rows[r];
        for (uint64_t t = n_causal(row, row->n_queries - 1); t < row->kv_len; t++) {
            fill_key(row, t, bad[random_below(&random, 4)]);
        }
    }
    bit_results *results = run_scored(c, &random);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        assert_same_row(results, r, expected, r, "indexer");
    }
    bit_results_free(results);
    bit_results_free(expected);
    bit_case_free(c);
}

/* kv_len larger than needed: the same lists, the same scores, -inf for the rest. */
static void test_longer_cache(void **state)
{
    const uint64_t seed = property_seed();
    random_stream random = random_open(seed, 4);
    (void)state;
    bit_case *c = small_case(bit_op_named("indexer"), SHAPE_H64, seed, N_ROWS);
    bit_results *expected = bit_reference(c);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        bit_row *row = &c->rows[r];
        const uint64_t n_more = random_between(&random, 1, 70), before = row->kv_len;
        row->start_pos =
            (uint32_t)(n_causal(row, 0) * row->ratio + row->ratio - 2); /* the same keys, seen as late as can be */
        replace_array(&row->inputs[KEYS],
                      slice_array(&row->inputs[KEYS], 0, row->inputs[KEYS].n, (size_t)n_more * DSR_INDEX_DIM));
        row->kv_len += n_more;
        for (uint64_t t = before; t < row->kv_len; t++) {
            fill_key(row, t, 0x7fc0);
        }
    }
    bit_results *results = run_scored(c, &random);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        const size_t before = expected->outputs[r][SCORES].n;
        assert_memory_equal(results->outputs[r][LISTS].data, expected->outputs[r][LISTS].data,
                            c->top_k * sizeof(int32_t));
        assert_memory_equal(results->outputs[r][SCORES].data, expected->outputs[r][SCORES].data,
                            before * sizeof(float));
        for (size_t t = before; t < results->outputs[r][SCORES].n; t++) {
            assert_int_equal(f32_to_bits(bit_f32(&results->outputs[r][SCORES])[t]), 0xff800000u);
        }
    }
    bit_results_free(results);
    bit_results_free(expected);
    bit_case_free(c);
}

/* Only the number of keys seen counts, not the position and ratio it comes from; the offset is added to every index. */
static void test_position_ratio_offset(void **state)
{
    const uint64_t seed = property_seed();
    random_stream random = random_open(seed, 5);
    (void)state;
    bit_case *c = small_case(bit_op_named("indexer"), SHAPE_H64, seed, N_ROWS);
    bit_results *expected = bit_reference(c);
    int32_t before[N_ROWS];
    for (uint32_t r = 0; r < c->n_rows; r++) {
        bit_row *row = &c->rows[r];
        const uint64_t seen = n_causal(row, 0);
        before[r] = row->offset;
        row->offset = (int32_t)random_below(&random, 2000000000);
        row->ratio = random_between(&random, 1, 200);
        const uint64_t tokens = seen * row->ratio + random_below(&random, row->ratio);
        row->start_pos = tokens ? (uint32_t)tokens - 1 : 0;
        row->ratio += tokens ? 0 : 1; /* at position 0 a ratio of 1 would see a key */
    }
    bit_results *results = run_scored(c, &random);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        for (uint32_t i = 0; i < c->top_k; i++) {
            const int32_t want = bit_i32(&expected->outputs[r][LISTS])[i];
            assert_int_equal(bit_i32(&results->outputs[r][LISTS])[i],
                             want < 0 ? -1 : want - before[r] + c->rows[r].offset);
        }
        assert_memory_equal(results->outputs[r][SCORES].data, expected->outputs[r][SCORES].data,
                            bit_array_bytes(&expected->outputs[r][SCORES]));
    }
    bit_results_free(results);
    bit_results_free(expected);
    bit_case_free(c);
}

/* Keys in another order: the same scores, each at its new place. */
static void test_permuted_keys(void **state)
{
    const uint64_t seed = property_seed();
    random_stream random = random_open(seed, 6);
    (void)state;
    bit_case *c = small_case(bit_op_named("indexer"), SHAPE_H64, seed, N_ROWS);
    for (uint32_t r = 0; r < c->n_rows; r++) { /* all keys are seen */
        c->rows[r].start_pos = (uint32_t)(c->rows[r].kv_len * c->rows[r].ratio) - 1;
    }
    bit_results *expected = bit_reference(c);
    uint32_t places[N_ROWS][512];
    for (uint32_t r = 0; r < c->n_rows; r++) {
        bit_row *row = &c->rows[r];
        bit_array moved = bit_array_new(DSR_DTYPE_BF16, row->inputs[KEYS].n);
        for (uint32_t t = 0; t < row->kv_len; t++) {
            places[r][t] = t;
        }
        random_shuffle(&random, places[r], (uint32_t)row->kv_len);
        for (uint32_t t = 0; t < row->kv_len; t++) {
            memcpy(bit_bf16(&moved) + (size_t)places[r][t] * DSR_INDEX_DIM,
                   bit_bf16(&row->inputs[KEYS]) + (size_t)t * DSR_INDEX_DIM, DSR_INDEX_DIM * sizeof(uint16_t));
        }
        replace_array(&row->inputs[KEYS], moved);
    }
    bit_results *results = run_scored(c, &random);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        for (uint32_t t = 0; t < c->rows[r].kv_len; t++) {
            assert_int_equal(f32_to_bits(bit_f32(&results->outputs[r][SCORES])[places[r][t]]),
                             f32_to_bits(bit_f32(&expected->outputs[r][SCORES])[t]));
        }
        assert_full_sort(bit_f32(&results->outputs[r][SCORES]), c->rows[r].kv_len, c->rows[r].offset,
                         bit_i32(&results->outputs[r][LISTS]), c->top_k);
    }
    bit_results_free(results);
    bit_results_free(expected);
    bit_case_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_is_a_full_sort),   cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_unseen_keys_spoilt),    cmocka_unit_test(test_longer_cache),
        cmocka_unit_test(test_position_ratio_offset), cmocka_unit_test(test_permuted_keys),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
