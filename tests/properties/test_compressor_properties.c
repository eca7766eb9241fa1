/* The compressor's state and rows do not depend on how tokens are cut into calls, nor on who else is in a call. */
#include "property_test.h"

#include "direct.h"

enum { MAX_REQUESTS = 4, MAX_TOKENS = 400 };

typedef struct request {
    uint32_t n_tokens, done, n_emitted;
    float *kv, *score;                         /* [n_tokens][columns] */
    float *kv_state, *score_state;             /* as the calls left them */
    float *whole_kv_state, *whole_score_state; /* of one call with all tokens */
    uint16_t *rows, *whole_rows;               /* [n_tokens / ratio + 1][dim] */
} request;

typedef struct cutting {
    uint32_t ratio, dim, columns, n_requests;
    size_t n_state;
    float *ape, *norm;
    request requests[MAX_REQUESTS];
} cutting;

static void *zeros(size_t n_bytes)
{
    void *memory = calloc(1, n_bytes);
    assert_non_null(memory);
    return memory;
}

static float *random_f32(random_stream *random, pattern kind, float scale, size_t n)
{
    float *x = zeros(n * sizeof *x);
    pattern_fill_f32(random, kind, scale, x, n);
    return x;
}

static void open_cutting(cutting *c, uint32_t ratio, uint32_t dim, uint32_t max_tokens, random_stream *random)
{
    c->ratio = ratio;
    c->dim = dim;
    c->columns = (ratio == 4 ? 2 : 1) * dim;
    c->n_state = (size_t)dsr_compressor_state_elements(ratio, dim);
    c->n_requests = random_between(random, 2, MAX_REQUESTS);
    c->ape = random_f32(random, PATTERN_NORMAL, 0.5f, (size_t)ratio * c->columns);
    c->norm = random_f32(random, PATTERN_NORMAL, 1.0f, dim);
    for (uint32_t i = 0; i < c->n_requests; i++) {
        request *r = &c->requests[i];
        const pattern kind = random_one_in(random, 4) ? PATTERN_NONFINITE : PATTERN_NORMAL;
        memset(r, 0, sizeof *r);
        r->n_tokens = random_between(random, 1, max_tokens);
        r->kv = random_f32(random, kind, 1.0f, (size_t)r->n_tokens * c->columns);
        r->score = random_f32(random, kind, 2.0f, (size_t)r->n_tokens * c->columns);
        const size_t state_bytes = c->n_state * sizeof(float);
        const size_t row_bytes = (size_t)(r->n_tokens / ratio + 1) * dim * sizeof(uint16_t);
        r->kv_state = zeros(state_bytes);
        r->score_state = zeros(state_bytes);
        r->whole_kv_state = zeros(state_bytes);
        r->whole_score_state = zeros(state_bytes);
        memset(r->kv_state, 0xff, state_bytes); /* the call at position 0 sets the state */
        memset(r->whole_score_state, 0x55, state_bytes);
        r->rows = zeros(row_bytes);
        r->whole_rows = zeros(row_bytes);
    }
}

static void close_cutting(cutting *c)
{
    for (uint32_t i = 0; i < c->n_requests; i++) {
        request *r = &c->requests[i];
        void *all[] = {r->kv,   r->score,     r->kv_state, r->score_state, r->whole_kv_state, r->whole_score_state,
                       r->rows, r->whole_rows};
        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
            free(all[k]);
        }
    }
    free(c->ape);
    free(c->norm);
}

/* Tokens [first, first + n) of each of the chosen requests in one call. */
typedef struct piece {
    uint32_t request, first, n;
} piece;

static void call(direct *d, const cutting *c, const piece *pieces, uint32_t n_pieces, int whole, uint16_t *out)
{
    dsr_compressor_row rows[MAX_REQUESTS];
    dsr_compressor_desc desc = DSR_COMPRESSOR_DESC_INIT;
    uint32_t n_tokens = 0, n_out = 0, token = 0;

    for (uint32_t i = 0; i < n_pieces; i++) {
        n_tokens += pieces[i].n;
    }
    float *kv = zeros((size_t)n_tokens * c->columns * sizeof *kv),
          *score = zeros((size_t)n_tokens * c->columns * sizeof *kv);
    memset(rows, 0, sizeof rows);
    for (uint32_t i = 0; i < n_pieces; i++) {
        const request *r = &c->requests[pieces[i].request];
        const size_t from = (size_t)pieces[i].first * c->columns, n = (size_t)pieces[i].n * c->columns;
        const uint32_t emitted = dsr_compressor_emitted(c->ratio, pieces[i].first, pieces[i].n);
        memcpy(kv + (size_t)token * c->columns, r->kv + from, n * sizeof *kv);
        memcpy(score + (size_t)token * c->columns, r->score + from, n * sizeof *kv);
        rows[i].kv_state = direct_f32(d, whole ? r->whole_kv_state : r->kv_state, c->n_state);
        rows[i].score_state = direct_f32(d, whole ? r->whole_score_state : r->score_state, c->n_state);
        rows[i].token_row = token;
        rows[i].output_row = n_out;
        rows[i].start_pos = pieces[i].first;
        rows[i].n_tokens = pieces[i].n;
        token += pieces[i].n;
        n_out += emitted ? emitted : 1;
    }
    desc.n_rows = n_pieces;
    desc.rows = rows;
    desc.ratio = c->ratio;
    desc.dim = c->dim;
    desc.epsilon = 1e-6f;
    desc.kv = direct_f32(d, kv, (size_t)n_tokens * c->columns);
    desc.score = direct_f32(d, score, (size_t)n_tokens * c->columns);
    desc.ape = direct_f32(d, c->ape, (size_t)c->ratio * c->columns);
    desc.norm = direct_f32(d, c->norm, c->dim);
    desc.output = direct_bf16(d, out, (size_t)n_out * c->dim);
    if (dsr_encode_compressor(d->encoder, &desc) != DSR_OK || direct_run(d) != DSR_OK) {
        fail_msg("%s", direct_error(d));
    }
    free(kv);
    free(score);
}

/* Rows that a call emitted go to the request; a row that stands for "nothing emitted" must be zeros. */
static void take_rows(cutting *c, const piece *p, const uint16_t **out, uint16_t *rows, uint32_t *n_rows)
{
    const uint32_t emitted = dsr_compressor_emitted(c->ratio, p->first, p->n);
    const uint16_t *from = *out;
    for (uint32_t f = 0; f < c->dim && emitted == 0; f++) {
        assert_int_equal(from[f], 0);
    }
    memcpy(rows + (size_t)*n_rows * c->dim, from, (size_t)emitted * c->dim * sizeof *rows);
    *n_rows += emitted;
    *out += (size_t)(emitted ? emitted : 1) * c->dim;
}

static void run_whole(direct *d, cutting *c, uint16_t *out)
{
    for (uint32_t i = 0; i < c->n_requests; i++) {
        const piece all = {i, 0, c->requests[i].n_tokens};
        const uint16_t *from = out;
        uint32_t n = 0;
        call(d, c, &all, 1, 1, out);
        take_rows(c, &all, &from, c->requests[i].whole_rows, &n);
    }
}

/* One joint call over drawn requests; a request's first tokens go alone, since a call of several rows starts none. */
static int run_piece(direct *d, cutting *c, random_stream *random, uint32_t max_piece, uint16_t *out)
{
    piece pieces[MAX_REQUESTS];
    uint32_t n = 0, order[MAX_REQUESTS] = {0, 1, 2, 3};

    random_shuffle(random, order, c->n_requests);
    for (uint32_t k = 0; k < c->n_requests; k++) {
        const request *r = &c->requests[order[k]];
        const uint32_t left = r->n_tokens - r->done;
        if (left == 0 || (n > 0 && (r->done == 0 || random_one_in(random, 3)))) {
            continue;
        }
        const uint32_t most = left < max_piece ? left : max_piece;
        const piece p = {order[k], r->done, random_between(random, 1, most)};
        pieces[n++] = p;
        if (r->done == 0) {
            break;
        }
    }
    if (n == 0) {
        return 0;
    }
    call(d, c, pieces, n, 0, out);
    const uint16_t *from = out;
    for (uint32_t k = 0; k < n; k++) {
        request *r = &c->requests[pieces[k].request];
        take_rows(c, &pieces[k], &from, r->rows, &r->n_emitted);
        r->done += pieces[k].n;
    }
    return 1;
}

static void check_cutting(uint32_t ratio, uint32_t dim, uint32_t max_tokens, uint32_t n_trials)
{
    const uint64_t seed = property_seed();
    random_stream random = random_open(seed, 100 * ratio + dim);
    uint16_t *out = zeros((size_t)MAX_REQUESTS * MAX_TOKENS * dim * sizeof *out);

    for (uint32_t trial = 0; trial < n_trials; trial++) {
        static const dsr_isa isas[4] = {DSR_ISA_AUTO, DSR_ISA_SCALAR, DSR_ISA_AVX2, DSR_ISA_AUTO};
        const dsr_isa isa = dsr_isa_available(isas[trial % 4]) ? isas[trial % 4] : DSR_ISA_AUTO;
        const uint32_t max_piece = trial % 3 == 0 ? 1 : random_between(&random, 1, 2 * ratio + 3);
        cutting c;
        direct d;
        direct_open(&d, isa, trial % 3);
        open_cutting(&c, ratio, dim, max_tokens, &random);
        run_whole(&d, &c, out);
        while (run_piece(&d, &c, &random, max_piece, out)) {
        }
        for (uint32_t i = 0; i < c.n_requests; i++) {
            const request *r = &c.requests[i];
            assert_int_equal(r->n_emitted, r->n_tokens / ratio);
            assert_memory_equal(r->kv_state, r->whole_kv_state, c.n_state * sizeof(float));
            assert_memory_equal(r->score_state, r->whole_score_state, c.n_state * sizeof(float));
            assert_memory_equal(r->rows, r->whole_rows, (size_t)r->n_emitted * dim * sizeof(uint16_t));
        }
        close_cutting(&c);
        direct_close(&d);
    }
    free(out);
}

static void test_any_cutting_r4_d128(void **state)
{
    (void)state;
    check_cutting(4, 128, 41, 60);
}

static void test_any_cutting_r4_d512(void **state)
{
    (void)state;
    check_cutting(4, 512, 23, 12);
}

static void test_any_cutting_r128_d512(void **state)
{
    (void)state;
    check_cutting(128, 512, MAX_TOKENS, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_cutting_r4_d128),
        cmocka_unit_test(test_any_cutting_r4_d512),
        cmocka_unit_test(test_any_cutting_r128_d512),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
