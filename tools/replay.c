#include "replay.h"

#include "bf16.h"
#include "joint.h"
#include "sha256.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { TOP_K = 512, RATIO = 4 };

typedef struct operands {
    attention_shared attention;
    indexer_shared indexer;
    attention_row two_pass[DSR_MAX_ROWS]; /* result pointers unset */
    attention_row flash[DSR_MAX_ROWS];
    indexer_row keys[DSR_MAX_ROWS];
    const st_tensor *expected[DSR_MAX_ROWS];
    const st_tensor *scores[DSR_MAX_ROWS];
    const st_tensor *top_k[DSR_MAX_ROWS];
} operands;

/* Results of one way to run the rows. */
typedef struct results {
    uint16_t *two_pass[DSR_MAX_ROWS];
    uint16_t *flash[DSR_MAX_ROWS];
    int32_t *indices[DSR_MAX_ROWS];
    float *scores[DSR_MAX_ROWS];
} results;

/* ---- values ------------------------------------------------------------------------------------------------ */

/* Distance of neighbouring BF16 numbers (8 significant bits) at a value. */
static double bf16_unit(double value)
{
    const int smallest = -125; /* of a normal number, as frexp counts */
    int exponent = smallest;
    if (value != 0) {
        frexp(value, &exponent);
    }
    return ldexp(1.0, (exponent < smallest ? smallest : exponent) - 8);
}

/* Place of a BF16 number among all of them in rising order; both zeros have one place. */
static int32_t bf16_place(uint16_t x)
{
    const int32_t magnitude = x & 0x7fff;
    return x & 0x8000 ? -magnitude : magnitude;
}

static void note_error(replay_error *error, double value, double expected, double allowed)
{
    double difference = value == expected ? 0 : fabs(value - expected);
    if (isnan(difference)) {
        difference = HUGE_VAL; /* a NaN compares false with everything, but must fail */
    }
    error->largest = fmax(error->largest, difference);
    error->fraction = fmax(error->fraction, difference / allowed);
}

/* ---- operands ---------------------------------------------------------------------------------------------- */

static const case_shape one_i32 = {"I32", 1, {1}, {NULL}};

static void read_attention(case_file *c, operands *o)
{
    uint64_t n_heads = 0;
    for (uint32_t r = 0; r < c->n_rows; r++) {
        const st_tensor *q =
            case_row_tensor(c, "sparse.q", r, (case_shape){"BF16", 2, {n_heads, DSR_HEAD_DIM}, {"H", NULL}});
        const st_tensor *kv =
            case_row_tensor(c, "sparse.kv", r, (case_shape){"BF16", 2, {0, DSR_HEAD_DIM}, {"n", NULL}});
        const st_tensor *exact = case_row_tensor(c, "sparse.indices", r, (case_shape){"I32", 1, {0}, {"w"}});
        const st_tensor *padded = case_row_tensor(c, "sparse.indices640", r, (case_shape){"I32", 1, {0}, {"w"}});
        n_heads = q->shape[0];
        o->expected[r] =
            case_row_tensor(c, "sparse.expected", r, (case_shape){"F32", 2, {n_heads, DSR_HEAD_DIM}, {"H", NULL}});
        case_check_numbers(c, o->expected[r], 0);
        o->two_pass[r] = (attention_row){
            .q = q->data, .kv = kv->data, .kv_len = kv->shape[0], .indices = exact->data, .width = exact->shape[0]};
        o->flash[r] = o->two_pass[r];
        o->flash[r].indices = padded->data;
        o->flash[r].width = padded->shape[0];
    }
    const st_tensor *sinks = case_tensor(c, "sparse.sinks", (case_shape){"F32", 1, {n_heads}, {"H"}});
    const st_tensor *scale = case_tensor(c, "sparse.scale", (case_shape){"F32", 1, {1}, {NULL}});
    o->attention = (attention_shared){0, (uint32_t)n_heads, case_positive_f32(c, scale), sinks->data};
}

static void read_indexer(case_file *c, operands *o)
{
    uint64_t n_heads = 0;
    for (uint32_t r = 0; r < c->n_rows; r++) {
        const st_tensor *q =
            case_row_tensor(c, "indexer.q", r, (case_shape){"BF16", 2, {n_heads, DSR_INDEX_DIM}, {"Hi", NULL}});
        n_heads = q->shape[0];
        const st_tensor *weights = case_row_tensor(c, "indexer.weights", r, (case_shape){"F32", 1, {n_heads}, {"Hi"}});
        const st_tensor *keys =
            case_row_tensor(c, "indexer.k", r, (case_shape){"BF16", 2, {0, DSR_INDEX_DIM}, {"n", NULL}});
        const st_tensor *start_pos = case_row_tensor(c, "indexer.start_pos", r, one_i32);
        o->scores[r] = case_row_tensor(c, "indexer.scores", r, (case_shape){"F32", 1, {keys->shape[0]}, {"n"}});
        case_check_numbers(c, o->scores[r], 1);
        o->top_k[r] = case_row_tensor(c, "indexer.top512", r, (case_shape){"I32", 1, {TOP_K}, {NULL}});
        if (case_i32(start_pos) < 0) {
            case_bad_value(c, start_pos, "%d given, needed is a position from 0 on", (int)case_i32(start_pos));
        }
        o->keys[r] = (indexer_row){.q = q->data,
                                   .weights = weights->data,
                                   .keys = keys->data,
                                   .kv_len = keys->shape[0],
                                   .start_pos = (uint32_t)case_i32(start_pos)};
    }
    o->indexer = (indexer_shared){(uint32_t)n_heads, TOP_K, RATIO};
}

/* ---- running ----------------------------------------------------------------------------------------------- */

static void allocate_results(const operands *o, uint32_t n_rows, results *r)
{
    const size_t query_bytes = (size_t)o->attention.n_heads * DSR_HEAD_DIM * sizeof(uint16_t);
    for (uint32_t i = 0; i < n_rows; i++) {
        r->two_pass[i] = cli_allocate(query_bytes);
        r->flash[i] = cli_allocate(query_bytes);
        r->indices[i] = cli_allocate(TOP_K * sizeof(int32_t));
        r->scores[i] = cli_allocate((size_t)o->keys[i].kv_len * sizeof(float));
    }
}

static void free_results(uint32_t n_rows, results *r)
{
    for (uint32_t i = 0; i < n_rows; i++) {
        free(r->two_pass[i]);
        free(r->flash[i]);
        free(r->indices[i]);
        free(r->scores[i]);
    }
}

/* Runs rows first..first+n_rows-1 in one call of each op. */
static void run_rows(session *s, operands *o, uint32_t first, uint32_t n_rows, const results *r)
{
    attention_shared flash = o->attention;
    flash.flash = 1;
    for (uint32_t i = first; i < first + n_rows; i++) {
        o->two_pass[i].output = r->two_pass[i];
        o->flash[i].output = r->flash[i];
        o->keys[i].indices = r->indices[i];
        o->keys[i].scores = r->scores[i];
    }
    joint_indexer(s, &o->indexer, o->keys + first, n_rows);
    joint_attention(s, &o->attention, o->two_pass + first, n_rows);
    joint_attention(s, &flash, o->flash + first, n_rows);
}

/* ---- comparing --------------------------------------------------------------------------------------------- */

static uint16_t bf16_at(const void *elements, uint64_t i)
{
    uint16_t value;
    memcpy(&value, (const char *)elements + i * sizeof value, sizeof value);
    return value;
}

/* What row-exact attention may be off by, beyond a part of the result itself (docs/numerics.md): set by the greatest
 * value among the selected rows and the greatest sum of |q k|. */
static double row_exact_allowance(const operands *o, const attention_row *row)
{
    double greatest_value = 0, greatest_sum = 0;
    for (uint64_t i = 0; i < row->width; i++) {
        int32_t index;
        memcpy(&index, (const char *)row->indices + i * sizeof index, sizeof index);
        if (index < 0 || (uint64_t)index >= row->kv_len) {
            continue;
        }
        for (uint32_t h = 0; h < o->attention.n_heads; h++) {
            double sum = 0;
            for (uint32_t f = 0; f < DSR_HEAD_DIM; f++) {
                const double k = fabs((double)bf16_value(bf16_at(row->kv, (uint64_t)index * DSR_HEAD_DIM + f)));
                sum += k * fabs((double)bf16_value(bf16_at(row->q, (uint64_t)h * DSR_HEAD_DIM + f)));
                greatest_value = fmax(greatest_value, k);
            }
            greatest_sum = fmax(greatest_sum, sum);
        }
    }
    return greatest_value * (ldexp(1, -8) + ldexp(1, -14) * greatest_sum * (double)o->attention.scale);
}

/* row_exact: what row-exact kernels may be off by, 0 for device-exact ones. */
static void compare_attention(const st_tensor *expected, const uint16_t *output, double row_exact, replay_error *error)
{
    for (uint64_t i = 0; i < expected->n_elements; i++) {
        const double value = (double)case_f32_at(expected, i);
        const double allowed =
            row_exact > 0 ? ldexp(fabs(value), -8) + row_exact : 0.5 * bf16_unit(value) + REPLAY_ATTENTION_TOLERANCE;
        note_error(error, (double)bf16_value(output[i]), value, allowed);
    }
}

/* A recorded list and ours may differ where two keys have nearly equal scores: then each of the two is a right answer.
 */
static void compare_top_k(const operands *o, uint32_t r, const int32_t *indices, replay_request *request)
{
    const int64_t n_keys = (int64_t)o->keys[r].kv_len;
    for (uint32_t i = 0; i < TOP_K; i++) {
        const int32_t recorded = case_i32_at(o->top_k[r], i), ours = indices[i];
        request->n_selected += ours != -1;
        if (recorded == ours) {
            continue;
        }
        const int comparable = recorded >= 0 && ours >= 0 && recorded < n_keys && ours < n_keys;
        if (comparable && fabs((double)case_f32_at(o->scores[r], (uint64_t)recorded) -
                               (double)case_f32_at(o->scores[r], (uint64_t)ours)) <= 2 * REPLAY_SCORE_TOLERANCE) {
            request->n_near_ties++;
        } else {
            request->n_wrong++;
        }
    }
}

static void compare_request(const session *s, const operands *o, uint32_t r, const results *joint, const results *alone,
                            replay_request *request)
{
    const int is_row_exact = dsr_context_exactness(s->context) == DSR_EXACT_ROW;
    const double row_exact = is_row_exact ? row_exact_allowance(o, &o->two_pass[r]) : 0;
    const size_t query_bytes = (size_t)o->attention.n_heads * DSR_HEAD_DIM * sizeof(uint16_t);
    const size_t score_bytes = (size_t)o->keys[r].kv_len * sizeof(float);
    request->length = o->keys[r].start_pos + 1;
    request->n_keys = o->keys[r].kv_len;
    request->two_pass_width = o->two_pass[r].width;
    request->flash_width = o->flash[r].width;
    for (uint64_t t = 0; t < request->n_keys; t++) {
        note_error(&request->scores, (double)joint->scores[r][t], (double)case_f32_at(o->scores[r], t),
                   REPLAY_SCORE_TOLERANCE);
    }
    compare_top_k(o, r, joint->indices[r], request);
    compare_attention(o->expected[r], joint->two_pass[r], row_exact, &request->two_pass);
    compare_attention(o->expected[r], joint->flash[r], row_exact, &request->flash);
    request->scores_alone = memcmp(joint->scores[r], alone->scores[r], score_bytes) == 0;
    request->top_k_alone = memcmp(joint->indices[r], alone->indices[r], TOP_K * sizeof(int32_t)) == 0;
    request->two_pass_alone = memcmp(joint->two_pass[r], alone->two_pass[r], query_bytes) == 0;
    request->flash_alone = memcmp(joint->flash[r], alone->flash[r], query_bytes) == 0;
}

static void add_to_digest(const operands *o, uint32_t r, const results *joint, sha256 *digest)
{
    const size_t query_bytes = (size_t)o->attention.n_heads * DSR_HEAD_DIM * sizeof(uint16_t);
    sha256_add(digest, joint->scores[r], (size_t)o->keys[r].kv_len * sizeof(float));
    sha256_add(digest, joint->indices[r], TOP_K * sizeof(int32_t));
    sha256_add(digest, joint->two_pass[r], query_bytes);
    sha256_add(digest, joint->flash[r], query_bytes);
}

static void replay_requests(case_file *c, session *s, operands *o, replay_result *result, sha256 *digest)
{
    results joint = {0}, alone = {0};
    allocate_results(o, c->n_rows, &joint);
    allocate_results(o, c->n_rows, &alone);
    run_rows(s, o, 0, c->n_rows, &joint);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        run_rows(s, o, r, 1, &alone);
        cli_progress("requests", r + 1, c->n_rows);
    }
    for (uint32_t r = 0; r < c->n_rows && s->code == CLI_DONE; r++) {
        result->requests[r].row = c->rows[r];
        compare_request(s, o, r, &joint, &alone, &result->requests[r]);
        add_to_digest(o, r, &joint, digest);
    }
    free_results(c->n_rows, &joint);
    free_results(c->n_rows, &alone);
}

/* ---- compressor -------------------------------------------------------------------------------------------- */

static const struct {
    uint32_t ratio;
    uint32_t dim;
} shapes[REPLAY_N_COMPRESSORS] = {{4, 128}, {4, 512}, {128, 512}};

typedef struct recorded_tokens {
    compressor_shared shared;
    const st_tensor *kv;
    const st_tensor *score;
    const st_tensor *expected;
} recorded_tokens;

enum { N_COMPRESSOR_PARTS = 5, COMPRESSOR_NAME_BYTES = 64 };

/* With an empty part: what the names of all parts begin with. */
static void name_compressor_tensor(uint32_t ratio, uint32_t dim, const char *part, char name[COMPRESSOR_NAME_BYTES])
{
    snprintf(name, COMPRESSOR_NAME_BYTES, "compressor.r%ud%u.%s", (unsigned)ratio, (unsigned)dim, part);
}

static const st_tensor *compressor_tensor(case_file *c, uint32_t ratio, uint32_t dim, const char *part,
                                          case_shape shape)
{
    char full_name[COMPRESSOR_NAME_BYTES];
    name_compressor_tensor(ratio, dim, part, full_name);
    return case_tensor(c, full_name, shape);
}

/* Whether the file has anything of a compressor shape: a record of few requests has none. */
static int is_recorded(const case_file *c, uint32_t ratio, uint32_t dim)
{
    char prefix[COMPRESSOR_NAME_BYTES];
    name_compressor_tensor(ratio, dim, "", prefix);
    for (size_t i = 0; i < st_n_tensors(c->file); i++) {
        if (strncmp(st_tensor_at(c->file, i)->name, prefix, strlen(prefix)) == 0) {
            return 1;
        }
    }
    return 0;
}

/* The norm's epsilon in the recorded configuration; the published models' where there is none. */
static float recorded_epsilon(case_file *c)
{
    json_t *config = case_config(c);
    const json_t *given = json_object_get(config, "rms_norm_eps");
    const double value = given == NULL || json_is_null(given) ? 1e-6 : json_number_value(given);
    if (!(value >= (double)FLT_MIN && value <= (double)FLT_MAX)) {
        case_fail(c, CLI_BAD_INPUT, "metadata config: rms_norm_eps is not a number from %.2g to %.2g", (double)FLT_MIN,
                  (double)FLT_MAX);
    }
    json_decref(config);
    return (float)value;
}

static recorded_tokens read_compressor(case_file *c, uint32_t ratio, uint32_t dim, float epsilon)
{
    recorded_tokens t = {.shared = {ratio, dim, epsilon, NULL, NULL}};
    const uint64_t width = compressor_token_elements(&t.shared);
    t.kv = compressor_tensor(c, ratio, dim, "kv", (case_shape){"F32", 2, {0, width}, {"T", NULL}});
    t.score = compressor_tensor(c, ratio, dim, "score", (case_shape){"F32", 2, {t.kv->shape[0], width}, {"T", NULL}});
    t.expected = compressor_tensor(c, ratio, dim, "expected",
                                   (case_shape){"F32", 2, {t.kv->shape[0] / ratio, dim}, {"T div ratio", NULL}});
    case_check_numbers(c, t.expected, 0);
    t.shared.ape = compressor_tensor(c, ratio, dim, "ape", (case_shape){"F32", 2, {ratio, width}, {NULL}})->data;
    t.shared.norm = compressor_tensor(c, ratio, dim, "norm", (case_shape){"F32", 1, {dim}, {NULL}})->data;
    return t;
}

static void allocate_compressor_row(const compressor_shared *shared, compressor_row *row)
{
    const size_t state_bytes =
        (size_t)(compressor_state_rows(shared) * compressor_token_elements(shared)) * sizeof(float);
    row->output = cli_allocate(row->n_tokens / shared->ratio * (size_t)shared->dim * sizeof(uint16_t));
    row->kv_state = cli_allocate(state_bytes);
    row->score_state = cli_allocate(state_bytes);
}

static void free_compressor_row(compressor_row *row)
{
    free(row->output);
    free(row->kv_state);
    free(row->score_state);
}

/* Compares one row with the recorded groups and with the same tokens in a single call alone. */
static void compare_compressor_row(session *s, const recorded_tokens *t, const compressor_row *joint,
                                   replay_compressor *result, sha256 *digest)
{
    const size_t output_bytes = joint->n_tokens / t->shared.ratio * (size_t)t->shared.dim * sizeof(uint16_t);
    const size_t state_bytes =
        (size_t)(compressor_state_rows(&t->shared) * compressor_token_elements(&t->shared)) * sizeof(float);
    compressor_row alone = *joint;
    allocate_compressor_row(&t->shared, &alone);
    alone_compressor(s, &t->shared, &alone);
    for (size_t i = 0; i < output_bytes / sizeof(uint16_t); i++) {
        const double expected = (double)case_f32_at(t->expected, i);
        const int32_t steps = abs(bf16_place(joint->output[i]) - bf16_place(bf16_round((float)expected)));
        note_error(&result->error, (double)bf16_value(joint->output[i]), expected, bf16_unit(expected));
        result->largest_steps = (uint32_t)steps > result->largest_steps ? (uint32_t)steps : result->largest_steps;
    }
    result->n_groups += joint->n_tokens / t->shared.ratio;
    result->alone = result->alone && memcmp(joint->output, alone.output, output_bytes) == 0 &&
                    memcmp(joint->kv_state, alone.kv_state, state_bytes) == 0 &&
                    memcmp(joint->score_state, alone.score_state, state_bytes) == 0;
    sha256_add(digest, joint->output, output_bytes);
    sha256_add(digest, joint->kv_state, state_bytes);
    sha256_add(digest, joint->score_state, state_bytes);
    free_compressor_row(&alone);
}

/* Every row takes the first tokens of the record, each another number, so that rows leave the joint steps one by one.
 */
static void replay_compressor_shape(case_file *c, session *s, float epsilon, replay_compressor *result, sha256 *digest)
{
    compressor_row rows[DSR_MAX_ROWS] = {{0}};
    const recorded_tokens t = read_compressor(c, result->ratio, result->dim, epsilon);
    const uint32_t n_rows = c->n_rows;
    if (c->code != CLI_DONE || s->code != CLI_DONE) {
        return;
    }
    const uint32_t n_tokens = (uint32_t)t.kv->shape[0];
    const uint32_t step = n_tokens > 2 * n_rows ? n_tokens / n_rows - 1 : 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        rows[r] = (compressor_row){.kv = t.kv->data, .score = t.score->data, .n_tokens = n_tokens - r * step};
        allocate_compressor_row(&t.shared, &rows[r]);
    }
    joint_compressor(s, &t.shared, rows, n_rows);
    result->n_rows = n_rows;
    result->longest = n_tokens;
    result->shortest = rows[n_rows - 1].n_tokens;
    result->alone = 1;
    for (uint32_t r = 0; r < n_rows; r++) {
        if (s->code == CLI_DONE) {
            compare_compressor_row(s, &t, &rows[r], result, digest);
        }
        free_compressor_row(&rows[r]);
    }
}

/* ------------------------------------------------------------------------------------------------------------ */

static const char *const row_names[] = {"sparse.q",        "sparse.kv",         "sparse.indices", "sparse.indices640",
                                        "sparse.expected", "indexer.q",         "indexer.k",      "indexer.weights",
                                        "indexer.scores",  "indexer.start_pos", "indexer.top512", NULL};
static const char *const whole_names[] = {"sparse.sinks", "sparse.scale", NULL};

/* A compressor's tensor of another name would be left out, and the compressor with it where all are. */
static void check_compressor_names(case_file *c)
{
    static const char begin[] = "compressor";
    static const char *const parts[N_COMPRESSOR_PARTS] = {"kv", "score", "expected", "ape", "norm"};
    for (size_t i = 0; c->code == CLI_DONE && i < st_n_tensors(c->file); i++) {
        const char *name = st_tensor_at(c->file, i)->name;
        int is_known = strncasecmp(name, begin, sizeof begin - 1) != 0;
        for (size_t k = 0; k < REPLAY_N_COMPRESSORS * N_COMPRESSOR_PARTS && !is_known; k++) {
            char known[COMPRESSOR_NAME_BYTES];
            name_compressor_tensor(shapes[k / N_COMPRESSOR_PARTS].ratio, shapes[k / N_COMPRESSOR_PARTS].dim,
                                   parts[k % N_COMPRESSOR_PARTS], known);
            is_known = strcmp(name, known) == 0;
        }
        if (!is_known) {
            case_fail(c, CLI_BAD_INPUT,
                      "tensor %s: needed is compressor.rXdY.kv, .score, .expected, .ape or .norm, where (X, Y) is "
                      "(4, 128), (4, 512) or (128, 512)",
                      name);
        }
    }
}

void replay_all(case_file *c, session *s, replay_result *result)
{
    static const case_names names = {row_names, whole_names};
    operands *o = cli_allocate(sizeof *o);
    sha256 digest;
    *result = (replay_result){0};
    sha256_init(&digest);
    case_check_names(c, &names, "");
    check_compressor_names(c);
    case_find_rows(c, row_names, NULL, 0);
    const float epsilon = recorded_epsilon(c);
    read_attention(c, o);
    read_indexer(c, o);
    result->n_requests = c->n_rows;
    result->n_heads = o->attention.n_heads;
    result->n_index_heads = o->indexer.n_heads;
    if (c->code == CLI_DONE) {
        replay_requests(c, s, o, result, &digest);
    }
    for (size_t i = 0; i < REPLAY_N_COMPRESSORS; i++) {
        if (is_recorded(c, shapes[i].ratio, shapes[i].dim)) {
            replay_compressor *compressor = &result->compressors[result->n_compressors++];
            compressor->ratio = shapes[i].ratio;
            compressor->dim = shapes[i].dim;
            replay_compressor_shape(c, s, epsilon, compressor, &digest);
        }
        cli_progress("compressors", i + 1, REPLAY_N_COMPRESSORS);
    }
    cli_progress_end();
    sha256_finish(&digest, result->digest);
    free(o);
}

int replay_request_passed(const replay_request *request)
{
    return request->n_wrong == 0 && request->scores.fraction <= 1 && request->two_pass.fraction <= 1 &&
           request->flash.fraction <= 1 && request->scores_alone && request->top_k_alone && request->two_pass_alone &&
           request->flash_alone;
}

int replay_compressor_passed(const replay_compressor *compressor)
{
    return compressor->largest_steps <= REPLAY_COMPRESSOR_STEPS && compressor->alone;
}
