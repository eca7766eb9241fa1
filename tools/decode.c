#include "decode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PREFILL_PIECE = 256, MAX_STEPS = 4096 };

typedef struct request {
    const unsigned char *hidden; /* BF16 rows, not aligned */
    uint32_t length;
    const st_tensor *recorded;      /* null: none */
    const st_tensor *recorded_last; /* of the last prefilled token */
    dsr_sequence *joint;
    dsr_sequence *alone;
    double sum_error;
    uint64_t n_errors;
} request;

typedef struct decoder {
    session *s;
    dsr_attention *attention;
    uint32_t hidden_size;
    uint32_t n_requests;
    uint32_t n_steps;
    request requests[DSR_MAX_ROWS];
    dsr_view hidden; /* rows of a step, or of a piece of prefill */
    dsr_view output;
    float *joint; /* host copies of a step's outputs */
    float *alone;
    double joint_seconds[MAX_STEPS];
    double alone_seconds[MAX_STEPS];
} decoder;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, compare_doubles);
    return values[n / 2];
}

/* ---- requests ---------------------------------------------------------------------------------------------- */

static void read_requests(case_file *c, decoder *d, int uses_record)
{
    static const char *const names[] = {"x", NULL};
    case_find_rows(c, names, NULL, 0);
    for (uint32_t r = 0; r < c->n_rows && c->code == CLI_DONE; r++) {
        request *q = &d->requests[r];
        const st_tensor *x = case_row_tensor(c, "x", r, (case_shape){"BF16", 2, {0, d->hidden_size}, {"tokens", NULL}});
        if (c->code == CLI_DONE && (x->shape[0] <= d->n_steps || x->shape[0] > 1048576)) {
            case_bad_value(c, x, "%llu tokens given, needed are %u decode steps and at least one before, at most 2^20",
                           (unsigned long long)x->shape[0], (unsigned)d->n_steps);
        }
        q->hidden = x->data;
        q->length = (uint32_t)(x->shape[0] - d->n_steps);
        if (!uses_record) {
            continue;
        }
        q->recorded =
            case_optional_row_tensor(c, "y.decode", r, (case_shape){"F32", 2, {d->n_steps, d->hidden_size}, {NULL}});
        q->recorded_last =
            case_optional_row_tensor(c, "y.prefill_last", r, (case_shape){"F32", 2, {1, d->hidden_size}, {NULL}});
    }
    d->n_requests = c->n_rows;
}

static const unsigned char *row_of(const decoder *d, const request *q, uint32_t token)
{
    return q->hidden + (size_t)token * d->hidden_size * sizeof(uint16_t);
}

/* ---- errors ------------------------------------------------------------------------------------------------ */

static float f32_at(const st_tensor *tensor, uint64_t i)
{
    float value;
    memcpy(&value, (const char *)tensor->data + i * sizeof value, sizeof value);
    return value;
}

static double root_mean_square(const st_tensor *tensor)
{
    double sum = 0;
    for (uint64_t i = 0; i < tensor->n_elements; i++) {
        const double value = (double)f32_at(tensor, i);
        sum += value * value;
    }
    return sqrt(sum / (double)tensor->n_elements);
}

/* Compares one row of outputs with row `row` of a recorded tensor. */
static double note_errors(const decoder *d, request *q, const st_tensor *recorded, uint32_t row, const float *output)
{
    const double rms = root_mean_square(recorded);
    double largest = 0;
    for (uint32_t i = 0; i < d->hidden_size; i++) {
        const double error =
            fabs((double)output[i] - (double)f32_at(recorded, (uint64_t)row * d->hidden_size + i)) / rms;
        largest = error <= largest ? largest : error; /* a NaN must count */
        q->sum_error += error;
        q->n_errors++;
    }
    return isnan(largest) ? HUGE_VAL : largest;
}

static void note_row(const decoder *d, request *q, decode_request *result, const st_tensor *recorded, uint32_t row,
                     const float *output)
{
    if (recorded == NULL) {
        return;
    }
    const double largest = note_errors(d, q, recorded, row, output);
    result->has_record = 1;
    result->largest_error = fmax(result->largest_error, largest);
    result->n_near_ties += largest > DECODE_LARGEST_ERROR && result->selects;
    result->mean_error = q->sum_error / (double)q->n_errors;
}

/* ---- running ----------------------------------------------------------------------------------------------- */

static void prefill(decoder *d, request *q, decode_request *result, uint64_t *n_done, uint64_t n_total)
{
    const size_t row_bytes = d->hidden_size * sizeof(uint16_t);
    uint32_t n = 0;
    session_check(d->s, dsr_sequence_create(d->attention, q->length + d->n_steps, &q->joint));
    for (uint32_t done = 0; done < q->length && d->s->code == CLI_DONE; done += n) {
        n = q->length - done < PREFILL_PIECE ? q->length - done : PREFILL_PIECE;
        session_write(d->s, d->hidden, 0, row_of(d, q, done), n * row_bytes);
        if (d->s->code == CLI_DONE) {
            session_check(d->s, dsr_attention_prefill(d->attention, q->joint, n, d->hidden, d->output));
        }
        *n_done += n;
        cli_progress("prefill, tokens", *n_done, n_total);
    }
    if (d->s->code == CLI_DONE) {
        session_check(d->s, dsr_sequence_fork(q->joint, &q->alone));
    }
    session_read(d->s, d->output, (uint64_t)(n - 1) * d->hidden_size * sizeof(float), d->joint,
                 d->hidden_size * sizeof(float));
    if (d->s->code == CLI_DONE) {
        note_row(d, q, result, q->recorded_last, 0, d->joint);
    }
}

/* One token of requests first .. first + n - 1, into rows of the same number. Returns the seconds of the call. */
static double run_step(decoder *d, uint32_t first, uint32_t n, int alone)
{
    dsr_step_entry entries[DSR_MAX_ROWS];
    dsr_step_desc step = DSR_STEP_DESC_INIT;
    for (uint32_t i = 0; i < n; i++) {
        const request *q = &d->requests[first + i];
        entries[i] = (dsr_step_entry){alone ? q->alone : q->joint, first + i, 1};
    }
    step.n_entries = n;
    step.entries = entries;
    step.hidden = d->hidden;
    step.output = d->output;
    const double begin = now();
    if (d->s->code == CLI_DONE) {
        session_check(d->s, dsr_attention_decode(d->attention, &step));
    }
    return now() - begin;
}

static void decode_step(decoder *d, uint32_t t, decode_result *result)
{
    const size_t output_bytes = (size_t)d->hidden_size * sizeof(float);
    for (uint32_t r = 0; r < d->n_requests; r++) {
        const size_t row_bytes = d->hidden_size * sizeof(uint16_t);
        const request *q = &d->requests[r];
        session_write(d->s, d->hidden, r * row_bytes, row_of(d, q, q->length + t), row_bytes);
    }
    d->joint_seconds[t] = run_step(d, 0, d->n_requests, 0);
    session_read(d->s, d->output, 0, d->joint, d->n_requests * output_bytes);
    d->alone_seconds[t] = 0;
    for (uint32_t r = 0; r < d->n_requests; r++) {
        d->alone_seconds[t] += run_step(d, r, 1, 1);
    }
    session_read(d->s, d->output, 0, d->alone, d->n_requests * output_bytes);
    for (uint32_t r = 0; r < d->n_requests && d->s->code == CLI_DONE; r++) {
        decode_request *to = &result->requests[r];
        const float *row = d->joint + (size_t)r * d->hidden_size;
        to->outputs_alone = to->outputs_alone && memcmp(row, d->alone + (size_t)r * d->hidden_size, output_bytes) == 0;
        note_row(d, &d->requests[r], to, d->requests[r].recorded, t, row);
    }
}

static int equal_states(session *s, const dsr_sequence *a, const dsr_sequence *b)
{
    const uint64_t n_bytes = dsr_sequence_save_bytes(a);
    if (n_bytes != dsr_sequence_save_bytes(b)) {
        return 0;
    }
    void *saved = cli_allocate(n_bytes), *other = cli_allocate(n_bytes);
    const int equal = session_check(s, dsr_sequence_save(a, saved, n_bytes)) &&
                      session_check(s, dsr_sequence_save(b, other, n_bytes)) && memcmp(saved, other, n_bytes) == 0;
    free(saved);
    free(other);
    return equal;
}

static void run_requests(decoder *d, const layer_file *layer, const case_file *c, decode_result *result)
{
    uint64_t n_tokens = 0, n_done = 0;
    for (uint32_t r = 0; r < d->n_requests; r++) {
        n_tokens += d->requests[r].length;
    }
    for (uint32_t r = 0; r < d->n_requests && d->s->code == CLI_DONE; r++) {
        decode_request *to = &result->requests[r];
        const uint32_t n_entries = (d->requests[r].length + d->n_steps) / 4;
        *to = (decode_request){.row = c->rows[r], .length = d->requests[r].length, .n_steps = d->n_steps};
        to->outputs_alone = 1;
        to->selects = layer->config.kind == DSR_LAYER_RATIO_4 && n_entries > layer->config.top_k;
        prefill(d, &d->requests[r], to, &n_done, n_tokens);
    }
    for (uint32_t t = 0; t < d->n_steps && d->s->code == CLI_DONE; t++) {
        decode_step(d, t, result);
        cli_progress("decode, steps", t + 1, d->n_steps);
    }
    cli_progress_end();
    for (uint32_t r = 0; r < d->n_requests && d->s->code == CLI_DONE; r++) {
        result->requests[r].state_alone = equal_states(d->s, d->requests[r].joint, d->requests[r].alone);
    }
    if (d->s->code == CLI_DONE) {
        result->joint_seconds = median(d->joint_seconds, d->n_steps);
        result->alone_seconds = median(d->alone_seconds, d->n_steps);
    }
}

static void open_buffers(decoder *d)
{
    const uint64_t n_rows = PREFILL_PIECE; /* at least DSR_MAX_ROWS */
    d->hidden = session_allocate(d->s, n_rows * d->hidden_size * sizeof(uint16_t), DSR_DTYPE_BF16);
    d->output = session_allocate(d->s, n_rows * d->hidden_size * sizeof(float), DSR_DTYPE_F32);
    d->joint = cli_allocate(n_rows * d->hidden_size * sizeof(float));
    d->alone = cli_allocate(n_rows * d->hidden_size * sizeof(float));
}

void decode_layer(case_file *c, session *s, layer_file *layer, uint32_t n_steps, int uses_record, decode_result *result)
{
    decoder *d = cli_allocate(sizeof *d);
    d->s = s;
    d->hidden_size = layer->config.hidden_size;
    d->n_steps = n_steps;
    read_requests(c, d, uses_record);
    if (c->code == CLI_DONE && session_check(s, dsr_attention_create(s->context, &layer->config, layer_file_lookup,
                                                                     layer, layer->prefix, &d->attention))) {
        result->n_requests = d->n_requests;
        open_buffers(d);
        run_requests(d, layer, c, result);
    }
    for (uint32_t r = 0; r < d->n_requests; r++) {
        dsr_sequence_destroy(d->requests[r].joint);
        dsr_sequence_destroy(d->requests[r].alone);
    }
    dsr_attention_destroy(d->attention);
    session_release_buffers(s);
    free(d->joint);
    free(d->alone);
    free(d);
}

int decode_request_passed(const decode_request *r)
{
    const double allowed = r->selects ? DECODE_NEAR_TIE_ERROR : DECODE_LARGEST_ERROR;
    return r->outputs_alone && r->state_alone && r->largest_error <= allowed && r->mean_error <= DECODE_MEAN_ERROR;
}
