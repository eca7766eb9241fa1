#include "decode.h"

#include "near_tie.h"
#include "timing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PREFILL_PIECE = 256, MAX_CONTEXT = 1 << 20 };

/* An output beyond the bound, to be judged once all steps are done. */
typedef struct suspect {
    struct suspect *next;
    uint32_t token;
    double error;
    double sum_error;
    double rms;
    double *output; /* [hidden], then the recorded one */
    uint32_t n_selected;
    uint32_t *selected; /* entries the layer attended to; null: to all */
} suspect;

typedef struct request {
    const unsigned char *hidden; /* BF16 rows, not aligned */
    uint32_t length;
    const st_tensor *recorded;      /* null: none */
    const st_tensor *recorded_last; /* of the last prefilled token */
    dsr_sequence *joint;
    dsr_sequence *alone;
    double sum_error;
    uint64_t n_errors; /* outputs in sum_error */
    suspect *suspects; /* the last one first */
} request;

typedef struct decoder {
    session *s;
    dsr_attention *attention;
    dsr_attention_config config; /* with its defaults filled in */
    uint32_t hidden_size;
    uint32_t n_requests;
    uint32_t n_steps;
    request requests[DSR_MAX_ROWS];
    dsr_view hidden; /* rows of a step, or of a piece of prefill */
    dsr_view output;
    float *joint; /* host copies of a step's outputs */
    float *alone;
    double joint_seconds[DECODE_MAX_STEPS];
    double alone_seconds[DECODE_MAX_STEPS];
} decoder;

/* ---- requests ---------------------------------------------------------------------------------------------- */

static void read_record(case_file *c, const decoder *d, request *q, uint32_t r)
{
    q->recorded =
        case_optional_row_tensor(c, "y.decode", r, (case_shape){"F32", 2, {d->n_steps, d->hidden_size}, {NULL}});
    q->recorded_last =
        case_optional_row_tensor(c, "y.prefill_last", r, (case_shape){"F32", 2, {1, d->hidden_size}, {NULL}});
    if (q->recorded == NULL && q->recorded_last != NULL) {
        case_bad_value(c, q->recorded_last, "tensor y.decode.%u is missing", (unsigned)c->rows[r]);
    }
    if (q->recorded != NULL) {
        case_check_numbers(c, q->recorded, 0);
    }
    if (q->recorded_last != NULL) {
        case_check_numbers(c, q->recorded_last, 0);
    }
}

static void read_requests(case_file *c, const layer_file *layer, decoder *d, int uses_record)
{
    static const char *const inputs[] = {"x", NULL}, *const all[] = {"x", "y.decode", "y.prefill_last", NULL};
    static const case_names names = {all, &all[sizeof all / sizeof all[0] - 1]};
    case_check_names(c, &names, layer->prefix);
    case_find_rows(c, inputs, NULL, 0);
    case_check_rows(c, all);
    for (uint32_t r = 0; r < c->n_rows && c->code == CLI_DONE; r++) {
        request *q = &d->requests[r];
        const st_tensor *x = case_row_tensor(c, "x", r, (case_shape){"BF16", 2, {0, d->hidden_size}, {"tokens", NULL}});
        if (c->code == CLI_DONE && (x->shape[0] <= d->n_steps || x->shape[0] > MAX_CONTEXT)) {
            case_bad_value(c, x, "%llu tokens given, needed are %u decode steps and at least one before, at most 2^20",
                           (unsigned long long)x->shape[0], (unsigned)d->n_steps);
        }
        q->hidden = x->data;
        q->length = (uint32_t)(x->shape[0] - d->n_steps);
        if (uses_record) {
            read_record(c, d, q, r);
        }
    }
    d->n_requests = c->n_rows;
}

static const unsigned char *row_of(const decoder *d, const request *q, uint32_t token)
{
    return q->hidden + (size_t)token * d->hidden_size * sizeof(uint16_t);
}

/* ---- errors ------------------------------------------------------------------------------------------------ */

static double root_mean_square(const st_tensor *tensor)
{
    double sum = 0;
    for (uint64_t i = 0; i < tensor->n_elements; i++) {
        const double value = (double)case_f32_at(tensor, i);
        sum += value * value;
    }
    return sqrt(sum / (double)tensor->n_elements);
}

static void note_suspect(decoder *d, request *q, suspect noted, uint32_t step_token)
{
    suspect *to = cli_allocate(sizeof *to);
    *to = noted;
    to->next = q->suspects;
    q->suspects = to;
    if (d->config.kind == DSR_LAYER_RATIO_4) {
        to->selected = cli_allocate(d->config.top_k * sizeof *to->selected);
        session_check(d->s, dsr_attention_selection(d->attention, step_token, to->selected, &to->n_selected));
    }
}

/* Compares the output of token `token`, which was number step_token of the last step, with row `row` of a recorded
 * tensor. */
static void note_row(decoder *d, request *q, decode_request *result, const st_tensor *recorded, uint32_t row,
                     const float *output, uint32_t token, uint32_t step_token)
{
    if (recorded == NULL) {
        return;
    }
    const double rms = root_mean_square(recorded);
    double *values = cli_allocate(2 * (size_t)d->hidden_size * sizeof *values), sum = 0;
    for (uint32_t i = 0; i < d->hidden_size; i++) {
        values[i] = (double)output[i];
        values[d->hidden_size + i] = (double)case_f32_at(recorded, (uint64_t)row * d->hidden_size + i);
        sum += near_tie_error(&values[i], &values[d->hidden_size + i], 1, rms);
    }
    q->sum_error += sum;
    q->n_errors++;
    const double largest = near_tie_error(values, values + d->hidden_size, d->hidden_size, rms);
    result->has_record = 1;
    result->largest_error = fmax(result->largest_error, largest);
    if (largest <= NEAR_TIE_LARGEST_ERROR) {
        free(values);
    } else {
        note_suspect(d, q, (suspect){.token = token, .error = largest, .sum_error = sum, .rms = rms, .output = values},
                     step_token);
    }
}

static void free_suspects(request *q)
{
    while (q->suspects != NULL) {
        suspect *next = q->suspects->next;
        free(q->suspects->output);
        free(q->suspects->selected);
        free(q->suspects);
        q->suspects = next;
    }
}

/* ---- near-ties --------------------------------------------------------------------------------------------- */

static void note_judgement(request *q, decode_request *result, const suspect *judged, const near_tie *tie,
                           const char *objection)
{
    if (objection != NULL) {
        result->n_unproven++;
        result->unproven = judged->token; /* in the end the first: the last one is judged first */
        result->unproven_error = judged->error;
        result->objection = objection;
        return;
    }
    if (result->n_near_ties == 0 || tie->gap > result->largest_gap) {
        result->largest_gap = tie->gap;
        result->allowed_gap = tie->allowed;
    }
    result->n_near_ties++;
    q->sum_error -= judged->sum_error;
    q->n_errors--;
}

static void judge_suspect(const decoder *d, request *q, const suspect *judged, const model_rows *exact,
                          const model_rows *rounded, decode_request *result)
{
    unsigned char *selected = cli_allocate(judged->token / 4 + 1);
    for (uint32_t i = 0; i < judged->n_selected; i++) {
        selected[judged->selected[i]] = 1;
    }
    const near_tie tie = near_tie_compare(exact, rounded, judged->token, selected, judged->output,
                                          judged->output + d->hidden_size, judged->rms, NULL);
    note_judgement(q, result, judged, &tie, near_tie_objection(&tie));
    free(selected);
}

/* Judges the outputs of a request that are beyond the bound; a float64 model takes seconds for thousands of tokens. */
static void judge_request(const decoder *d, const model_layer *model, request *q, decode_request *result)
{
    uint32_t first = q->length - 1, last = 0;
    for (const suspect *each = q->suspects; each != NULL; each = each->next) {
        first = each->token < first ? each->token : first;
        last = each->token > last ? each->token : last;
    }
    model_request *modelled =
        model_request_new(model, q->hidden, last + 1, first < DSR_WINDOW ? 0 : first - DSR_WINDOW + 1);
    model_rows *exact = model_rows_new(model, modelled, MODEL_EXACT);
    model_rows *rounded = model_rows_new(model, modelled, MODEL_ALL);
    for (const suspect *each = q->suspects; each != NULL; each = each->next) {
        judge_suspect(d, q, each, exact, rounded, result);
    }
    model_rows_free(exact);
    model_rows_free(rounded);
    model_request_free(modelled);
}

static void judge_requests(decoder *d, layer_file *layer, decode_result *result)
{
    static const char attends_to_all[] = "the layer attends to all entries, there is nothing to select";
    const int selects = d->config.kind == DSR_LAYER_RATIO_4;
    model_layer *model = NULL;
    for (uint32_t r = 0; r < d->n_requests; r++) {
        request *q = &d->requests[r];
        decode_request *to = &result->requests[r];
        for (const suspect *each = q->suspects; each != NULL && !selects; each = each->next) {
            note_judgement(q, to, each, NULL, attends_to_all);
        }
        if (q->suspects != NULL && selects) {
            cli_progress("near-ties, request", r, d->n_requests);
            if (model == NULL) {
                model = model_layer_new(&d->config, layer_file_lookup, layer, layer->prefix);
            }
            judge_request(d, model, q, to);
        }
        /* Each output has hidden_size errors. */
        to->mean_error = q->n_errors ? q->sum_error / (double)q->n_errors / d->hidden_size : 0;
    }
    cli_progress_end();
    if (model != NULL) {
        model_layer_free(model);
    }
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
        note_row(d, q, result, q->recorded_last, 0, d->joint, q->length - 1, (n - 1) % DSR_MAX_STEP_TOKENS);
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
    const double begin = timing_now();
    if (d->s->code == CLI_DONE) {
        session_check(d->s, dsr_attention_decode(d->attention, &step));
    }
    return timing_now() - begin;
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
    for (uint32_t r = 0; r < d->n_requests && d->s->code == CLI_DONE; r++) {
        request *q = &d->requests[r];
        note_row(d, q, &result->requests[r], q->recorded, t, d->joint + (size_t)r * d->hidden_size, q->length + t, r);
    }
    d->alone_seconds[t] = 0;
    for (uint32_t r = 0; r < d->n_requests; r++) {
        d->alone_seconds[t] += run_step(d, r, 1, 1);
    }
    session_read(d->s, d->output, 0, d->alone, d->n_requests * output_bytes);
    for (uint32_t r = 0; r < d->n_requests && d->s->code == CLI_DONE; r++) {
        decode_request *to = &result->requests[r];
        const float *row = d->joint + (size_t)r * d->hidden_size;
        to->outputs_alone = to->outputs_alone && memcmp(row, d->alone + (size_t)r * d->hidden_size, output_bytes) == 0;
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

static void run_requests(decoder *d, layer_file *layer, const case_file *c, decode_result *result)
{
    uint64_t n_tokens = 0, n_done = 0;
    for (uint32_t r = 0; r < d->n_requests; r++) {
        n_tokens += d->requests[r].length;
    }
    for (uint32_t r = 0; r < d->n_requests && d->s->code == CLI_DONE; r++) {
        decode_request *to = &result->requests[r];
        *to = (decode_request){.row = c->rows[r], .length = d->requests[r].length, .n_steps = d->n_steps};
        to->outputs_alone = 1;
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
        judge_requests(d, layer, result);
        result->joint_seconds = timing_median(d->joint_seconds, d->n_steps);
        result->alone_seconds = timing_median(d->alone_seconds, d->n_steps);
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

/* A failure is that of the layer's file. Looking up tensors may end in one, which has been told then. */
static void create_attention(decoder *d, layer_file *layer)
{
    const dsr_status status =
        dsr_attention_create(d->s->context, &layer->config, layer_file_lookup, layer, layer->prefix, &d->attention);
    if (status != DSR_OK) {
        case_fail(layer->owner, cli_exit_code(status), "%s (%s)", dsr_context_error_text(d->s->context),
                  dsr_status_name(status));
    }
}

void decode_layer(case_file *c, session *s, layer_file *layer, uint32_t n_steps, int uses_record, decode_result *result)
{
    decoder *d = cli_allocate(sizeof *d);
    d->s = s;
    d->config = (dsr_attention_config)DSR_ATTENTION_CONFIG_INIT;
    d->hidden_size = layer->config.hidden_size;
    d->n_steps = n_steps;
    read_requests(c, layer, d, uses_record);
    if (c->code == CLI_DONE) {
        create_attention(d, layer);
    }
    if (c->code == CLI_DONE && layer->owner->code == CLI_DONE &&
        session_check(s, dsr_attention_get_config(d->attention, &d->config))) {
        result->n_requests = d->n_requests;
        open_buffers(d);
        run_requests(d, layer, c, result);
    }
    for (uint32_t r = 0; r < d->n_requests; r++) {
        dsr_sequence_destroy(d->requests[r].joint);
        dsr_sequence_destroy(d->requests[r].alone);
        free_suspects(&d->requests[r]);
    }
    dsr_attention_destroy(d->attention);
    session_release_buffers(s);
    free(d->joint);
    free(d->alone);
    free(d);
}

int decode_request_passed(const decode_request *r)
{
    return r->outputs_alone && r->state_alone && r->n_unproven == 0 && r->mean_error <= DECODE_MEAN_ERROR;
}
