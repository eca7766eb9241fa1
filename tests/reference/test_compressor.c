/* The compressor's state machine, its emissions and what bad values do to both. */
#include "reference_test.h"

#include <math.h>

enum { MAX_DIM = 512, MAX_WIDTH = 1024, MAX_STATE = 128 * 512 };

static const float epsilon = 1e-6f;

/* One request: its state, and the operands of the step being made. */
struct request {
    uint32_t ratio, dim, width, rows, pos;
    float kv[MAX_WIDTH], score[MAX_WIDTH], ape[MAX_STATE], norm[MAX_DIM];
    float kv_state[MAX_STATE], score_state[MAX_STATE];
    uint16_t output[MAX_DIM];
};

static struct request *begin(uint32_t ratio, uint32_t dim)
{
    const uint32_t coff = ratio == 4 ? 2 : 1;
    struct request *r = allocate(sizeof *r);
    memset(r, 0xff, sizeof *r);
    r->ratio = ratio, r->dim = dim, r->width = coff * dim, r->rows = coff * ratio, r->pos = 0;
    memset(r->ape, 0, sizeof r->ape);
    for (int f = 0; f < MAX_DIM; f++) {
        r->norm[f] = 1;
    }
    ref_compressor_init(ratio, dim, r->kv_state, r->score_state);
    return r;
}

static int step(struct request *r)
{
    memset(r->output, 0x55, sizeof r->output);
    return ref_compressor_step(r->ratio, r->dim, r->pos++, r->kv, r->score, r->ape, r->norm, epsilon, r->kv_state,
                               r->score_state, r->output);
}

static void random_token(struct request *r, uint64_t seed)
{
    fill_f32(2 * seed + 1, r->kv, r->width);
    fill_f32(2 * seed + 1000001, r->score, r->width);
}

static int is_zero(const struct request *r)
{
    for (uint32_t f = 0; f < r->dim; f++) {
        if (r->output[f] != 0) {
            return 0;
        }
    }
    return 1;
}

static void the_first_state_is_dormant(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        struct request *r = kind ? begin(128, 512) : begin(4, 128);
        for (uint32_t i = 0; i < r->rows * r->width; i++) {
            assert_int_equal(bits(r->kv_state[i]), 0);
            assert_int_equal(bits(r->score_state[i]), 0xff800000u);
        }
        if (r->rows * r->width < MAX_STATE) {
            assert_int_equal(bits(r->kv_state[r->rows * r->width]), 0xffffffffu);
        }
        free(r);
    }
}

/* Weights 1, 2, 4, 8 from scores of p ln 2, given as score or as position bias. */
static void worked_example(void **state)
{
    (void)state;
    static const float ln2 = 0.69314718f;
    for (int by_ape = 0; by_ape < 2; by_ape++) {
        struct request *r = begin(4, 128);
        for (uint32_t j = 0; by_ape && j < 4; j++) {
            for (uint32_t f = 128; f < 256; f++) {
                r->ape[j * 256 + f] = (float)j * ln2;
            }
        }
        for (uint32_t p = 0; p < 8; p++) {
            for (uint32_t f = 0; f < 128; f++) {
                r->kv[f] = -(float)(p + 1);
                r->score[f] = 0;
                r->kv[128 + f] = (float)((p + 1) * (1 + f % 2));
                r->score[128 + f] = by_ape ? 0.0f : (float)(p % 4) * ln2;
            }
            assert_int_equal(step(r), p % 4 == 3);
            if (p == 3) {
                assert_int_equal(r->output[0], bf(0.6328125f)); /* pooled 49/15 and 98/15 */
                assert_int_equal(r->output[127], bf(1.265625f));
            } else if (p == 7) {
                assert_int_equal(r->output[126], bf(0.609375f)); /* pooled 99/19 and 208/19 */
                assert_int_equal(r->output[1], bf(1.2734375f));
            } else {
                assert_true(is_zero(r));
            }
        }
        free(r);
    }
}

static void a_step_writes_one_row_and_an_emission_shifts(void **state)
{
    (void)state;
    static const uint32_t kinds[][2] = {{4, 128}, {4, 512}, {128, 512}};
    for (int kind = 0; kind < 3; kind++) {
        struct request *r = begin(kinds[kind][0], kinds[kind][1]), *before = allocate(sizeof *before);
        fill_f32(77, r->ape, r->ratio * r->width);
        for (uint32_t p = 0; p < 3 * r->ratio; p++) {
            memcpy(before, r, sizeof *r);
            random_token(r, p);
            const int emitted = step(r);
            assert_int_equal(emitted, (p + 1) % r->ratio == 0);
            assert_int_equal(is_zero(r), !emitted);

            const uint32_t overlap = r->ratio == 4, written = overlap * 4 + p % r->ratio;
            const size_t row_size = r->width * sizeof(float);
            for (uint32_t row = 0; row < r->rows; row++) {
                const float *kv_row = r->kv_state + row * r->width, *score_row = r->score_state + row * r->width;
                if (row == written) {
                    assert_memory_equal(kv_row, r->kv, row_size);
                    for (uint32_t f = 0; f < r->width; f++) {
                        assert_int_equal(bits(score_row[f]), bits(r->score[f] + r->ape[p % r->ratio * r->width + f]));
                    }
                } else if (overlap && emitted && row < 4) {
                    assert_memory_equal(kv_row, kv_row + 4 * r->width, row_size);
                    assert_memory_equal(score_row, score_row + 4 * r->width, row_size);
                } else {
                    assert_memory_equal(kv_row, before->kv_state + row * r->width, row_size);
                    assert_memory_equal(score_row, before->score_state + row * r->width, row_size);
                }
            }
        }
        free(r);
        free(before);
    }
}

/* Runs groups of random tokens, one of them with a bad value, and says which groups then give a zero row. Groups not
 * hit must keep the bits of a clean run. */
static unsigned zeroed_groups(uint32_t ratio, uint32_t dim, uint32_t bad_pos, uint32_t column, int in_score, float bad)
{
    struct request *clean = begin(ratio, dim), *r = begin(ratio, dim);
    unsigned zeroed = 0;
    for (uint32_t p = 0; p < 4 * ratio; p++) {
        random_token(clean, p);
        random_token(r, p);
        if (p == bad_pos) {
            (in_score ? r->score : r->kv)[column] = bad;
        }
        const int emitted = step(r);
        assert_int_equal(step(clean), emitted);
        if (p == bad_pos && !(emitted && ratio == 4)) {
            const uint32_t row = (ratio == 4 ? 4 : 0) + p % ratio, at = row * r->width + column;
            assert_int_equal(bits(r->score_state[at]), 0x7fc00000u);
            assert_int_equal(bits(r->kv_state[at]), in_score ? bits(r->kv[column]) : 0);
        }
        if (emitted && is_zero(r)) {
            zeroed |= 1u << p / ratio;
        } else {
            assert_memory_equal(r->output, clean->output, dim * sizeof(uint16_t));
        }
        assert_false(emitted && is_zero(clean));
    }
    free(clean);
    free(r);
    return zeroed;
}

static void a_bad_token_zeroes_the_rows_that_use_it(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        for (int in_score = 0; in_score < 2; in_score++) {
            assert_int_equal(zeroed_groups(128, 512, 128 + 5, 511, in_score, bad[i]), 1u << 1);
            assert_int_equal(zeroed_groups(4, 128, 5, 128, in_score, bad[i]), 1u << 1); /* used by its own group */
            assert_int_equal(zeroed_groups(4, 128, 7, 255, in_score, bad[i]), 1u << 1);
            assert_int_equal(zeroed_groups(4, 128, 5, 127, in_score, bad[i]), 1u << 2); /* used by the next group */
            assert_int_equal(zeroed_groups(4, 512, 7, 0, in_score, bad[i]), 1u << 2);
        }
    }
}

static void bad_norm_and_overflow_give_a_zero_row(void **state)
{
    (void)state;
    enum { BAD_NORM, INFINITE_NORM, HUGE_NORM, HUGE_KV, HUGE_SUM, SCORE_OVERFLOW, FINE, KINDS };
    for (int kind = 0; kind < KINDS; kind++) {
        struct request *r = begin(4, 128);
        for (uint32_t f = 0; f < 128; f++) {
            r->norm[f] = kind == HUGE_NORM ? 3.4e38f : 1.0f;
        }
        r->norm[3] = kind == BAD_NORM ? NAN : kind == INFINITE_NORM ? -INFINITY : r->norm[3];
        for (uint32_t p = 0; p < 4; p++) {
            random_token(r, p);
            for (uint32_t f = 128; kind == HUGE_KV && f < 256; f++) {
                r->kv[f] = f % 2 ? 1e30f : -1e30f; /* finite, but its square is not */
            }
            if (kind == HUGE_SUM) { /* four equal weights, so their weighted sum overflows */
                r->kv[128 + 9] = 3.4e38f;
                r->score[128 + 9] = 0;
            }
            if (kind == SCORE_OVERFLOW && p == 2) { /* -inf, which only dormant rows may hold */
                r->score[128 + 9] = r->ape[2 * 256 + 128 + 9] = -3e38f;
            }
            assert_int_equal(step(r), p == 3);
        }
        assert_int_equal(is_zero(r), kind != FINE);
        /* the shift happens all the same */
        assert_memory_equal(r->kv_state, r->kv_state + 4 * 256, 4 * 256 * sizeof(float));
        assert_memory_equal(r->score_state, r->score_state + 4 * 256, 4 * 256 * sizeof(float));
        free(r);
    }
}

static void very_unequal_scores_are_no_overflow(void **state)
{
    (void)state;
    struct request *r = begin(128, 512);
    for (uint32_t p = 0; p < 128; p++) {
        for (uint32_t f = 0; f < 512; f++) {
            r->kv[f] = p == 77 ? (f % 2 ? 1.0f : -1.0f) : 1e30f;
            r->score[f] = p == 77 ? 3e38f : -3e38f;
        }
        step(r);
    }
    assert_int_equal(r->output[0], bf(-1));
    assert_int_equal(r->output[1], bf(1));
    free(r);
}

static void emissions_are_close_to_float64(void **state)
{
    (void)state;
    static const uint32_t kinds[][2] = {{4, 128}, {4, 512}, {128, 512}};
    static double exact[MAX_DIM];
    for (int kind = 0; kind < 3; kind++) {
        struct request *r = begin(kinds[kind][0], kinds[kind][1]), *before = allocate(sizeof *before);
        fill_f32(5, r->ape, r->ratio * r->width);
        fill_f32(6, r->norm, r->dim);
        for (uint32_t p = 0; p < 5 * r->ratio; p++) {
            memcpy(before, r, sizeof *r);
            random_token(r, p);
            if (!step(r)) {
                continue;
            }
            /* The state as it was with this token and before the shift: the old first rows, the new last ones. */
            const size_t group = r->ratio == 4 ? (size_t)4 * r->width : 0;
            memcpy(before->kv_state + group, r->kv_state + group, (r->rows * r->width - group) * sizeof(float));
            memcpy(before->score_state + group, r->score_state + group, (r->rows * r->width - group) * sizeof(float));
            acc_compressor_emit(r->ratio, r->dim, before->kv_state, before->score_state, r->norm, epsilon, 1, exact);
            for (uint32_t f = 0; f < r->dim; f++) {
                int exponent;
                frexp(exact[f], &exponent);
                assert_true(fabs((double)unbf(r->output[f]) - exact[f]) <= ldexp(1.0, exponent - 8));
            }
            acc_compressor_emit(r->ratio, r->dim, before->kv_state, before->score_state, r->norm, epsilon, 0, exact);
            for (uint32_t f = 0; f < r->dim; f++) {
                assert_true(fabs((double)unbf(r->output[f]) - exact[f]) <= 1e-4 + fabs(exact[f]) * 0x1p-6);
            }
        }
        free(r);
        free(before);
    }
}

/* Changing this number is changing the bits of the library. */
static void the_bits_are_pinned(void **state)
{
    (void)state;
    static uint16_t rows[8][512];
    struct request *r = begin(4, 512);
    fill_f32(5, r->ape, r->ratio * r->width);
    fill_f32(6, r->norm, r->dim);
    for (uint32_t p = 0; p < 32; p++) {
        random_token(r, p);
        if (step(r)) {
            memcpy(rows[p / 4], r->output, sizeof rows[0]);
        }
    }
    assert_int_equal(hash_of(rows, sizeof rows), 0x2eb3b08897453388u);
    free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_state_is_dormant),
        cmocka_unit_test(worked_example),
        cmocka_unit_test(a_step_writes_one_row_and_an_emission_shifts),
        cmocka_unit_test(a_bad_token_zeroes_the_rows_that_use_it),
        cmocka_unit_test(bad_norm_and_overflow_give_a_zero_row),
        cmocka_unit_test(very_unequal_scores_are_no_overflow),
        cmocka_unit_test(emissions_are_close_to_float64),
        cmocka_unit_test(the_bits_are_pinned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
