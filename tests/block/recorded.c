#include "recorded.h"

#include "block_test.h"
#include "near_tie.h"

#include "block/layer.h"
#include "safetensors.h"

#include <math.h>

enum { N_STEPS = 16, HIDDEN = 256, MAX_REQUESTS = 8, MAX_ENTRIES = 1024 };

/* Bounds of errors relative to the root mean square of a request's recorded outputs; near_tie.h has the others. */
#define MEAN_ERROR    4e-3
#define ROUNDED_ERROR 1e-2 /* against the model with all boundaries, where a few values round the other way */

typedef struct recorded_request {
    uint32_t number;
    uint32_t length;
    const void *hidden;
    const st_tensor *recorded, *recorded_last;
    dsr_sequence *joint, *alone;
    dsr_buffer *inputs, *outputs;
    float results[N_STEPS + 1][HIDDEN];               /* of the last prefilled token, and the decoded ones */
    unsigned char selected[N_STEPS + 1][MAX_ENTRIES]; /* ratio 4: by the library */
} recorded_request;

typedef struct recording {
    dsr_layer_kind kind;
    st_file *file;
    dsr_context *context;
    dsr_attention_config config;
    dsr_attention *layer;
    model_layer *model;
    uint32_t n_requests;
    recorded_request requests[MAX_REQUESTS];
} recording;

static int file_lookup(void *user, const char *name, dsr_tensor *tensor)
{
    const st_tensor *found = st_find(user, name);
    if (found == NULL)
        return 0;
    *tensor = (dsr_tensor){.data = found->data, .size_bytes = found->n_bytes, .n_dims = found->n_dims};
    for (uint32_t d = 0; d < found->n_dims && d < 4; d++)
        tensor->shape[d] = found->shape[d];
    tensor->dtype = strcmp(found->dtype, "BF16") == 0 ? DSR_DTYPE_BF16 : DSR_DTYPE_F32;
    return 1;
}

static const st_tensor *request_tensor(const recording *r, const char *name, uint32_t number)
{
    char full_name[64];
    snprintf(full_name, sizeof full_name, "%s.%u", name, (unsigned)number);
    return st_find(r->file, full_name);
}

static int open_recording(recording *r, const char *path, dsr_layer_kind kind, uint32_t max_tokens)
{
    char message[ST_MESSAGE_BYTES];
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    memset(r, 0, sizeof *r);
    r->kind = kind;
    r->file = st_open(path, message);
    if (r->file == NULL) {
        print_message("skipped: %s\n", message);
        return 0;
    }
    desc.isa = block_best_isa();
    desc.n_threads = 2;
    assert_ok(dsr_context_create(&desc, &r->context));
    r->config = (dsr_attention_config)DSR_ATTENTION_CONFIG_INIT;
    r->config.kind = kind;
    r->config.hidden_size = HIDDEN;
    r->config.n_heads = 64;
    r->config.q_rank = 32;
    r->config.o_groups = 8;
    r->config.o_rank = 32;
    assert_ok(dsr_attention_create(r->context, &r->config, file_lookup, r->file, "w.", &r->layer));
    assert_ok(dsr_attention_get_config(r->layer, &r->config));
    r->model = model_layer_new(&r->config, file_lookup, r->file, "w.");
    for (uint32_t i = 0; i < MAX_REQUESTS; i++) {
        const st_tensor *x = request_tensor(r, "x", i);
        if (x == NULL || x->shape[0] > max_tokens)
            continue;
        recorded_request *q = &r->requests[r->n_requests++];
        q->number = i;
        q->hidden = x->data;
        q->length = (uint32_t)x->shape[0] - N_STEPS;
        q->recorded = request_tensor(r, "y.decode", i);
        q->recorded_last = request_tensor(r, "y.prefill_last", i);
        assert_non_null(q->recorded);
        assert_non_null(q->recorded_last);
    }
    assert_in_range(r->n_requests, 1, MAX_REQUESTS);
    return 1;
}

static void close_recording(recording *r)
{
    for (uint32_t i = 0; i < r->n_requests; i++) {
        dsr_sequence_destroy(r->requests[i].joint);
        dsr_sequence_destroy(r->requests[i].alone);
        dsr_buffer_destroy(r->requests[i].inputs);
        dsr_buffer_destroy(r->requests[i].outputs);
    }
    dsr_attention_destroy(r->layer);
    dsr_context_destroy(r->context);
    model_layer_free(r->model);
    st_close(r->file);
}

/* ---- through the library --------------------------------------------------------------------------------------- */

/* What the token that was number `token` of the last step selected. */
static void read_selection(const recording *r, uint32_t token, unsigned char *selected)
{
    uint32_t entries[MAX_ENTRIES], n;
    if (r->kind != DSR_LAYER_RATIO_4)
        return;
    assert_true(r->config.top_k <= MAX_ENTRIES);
    assert_ok(dsr_attention_selection(r->layer, token, entries, &n));
    for (uint32_t i = 0; i < n; i++)
        selected[entries[i]] = 1;
}

static void prefill(const recording *r, recorded_request *q)
{
    const uint32_t n_tokens = q->length + N_STEPS;
    q->inputs = new_buffer(r->context, (uint64_t)n_tokens * HIDDEN * sizeof(uint16_t));
    q->outputs = new_buffer(r->context, (uint64_t)n_tokens * HIDDEN * sizeof(float));
    memcpy(dsr_buffer_data(q->inputs), q->hidden, (size_t)n_tokens * HIDDEN * sizeof(uint16_t));
    assert_ok(dsr_sequence_create(r->layer, n_tokens, &q->joint));
    assert_ok(dsr_attention_prefill(r->layer, q->joint, q->length, dsr_view_whole(q->inputs, DSR_DTYPE_BF16),
                                    dsr_view_whole(q->outputs, DSR_DTYPE_F32)));
    memcpy(q->results[0], (float *)dsr_buffer_data(q->outputs) + (size_t)(q->length - 1) * HIDDEN,
           sizeof q->results[0]);
    read_selection(r, (q->length - 1) % DSR_MAX_STEP_TOKENS, q->selected[0]);
    assert_ok(dsr_sequence_fork(q->joint, &q->alone));
}

static void decode_jointly(recording *r, dsr_buffer *hidden, dsr_buffer *output, uint32_t t)
{
    dsr_step_entry entries[MAX_REQUESTS];
    dsr_step_desc step = DSR_STEP_DESC_INIT;
    memset(entries, 0, sizeof entries);
    for (uint32_t i = 0; i < r->n_requests; i++) {
        const recorded_request *q = &r->requests[i];
        entries[i].sequence = q->joint;
        entries[i].first_row = i;
        memcpy((uint16_t *)dsr_buffer_data(hidden) + (size_t)i * HIDDEN,
               (uint16_t *)dsr_buffer_data(q->inputs) + (size_t)(q->length + t) * HIDDEN, HIDDEN * sizeof(uint16_t));
    }
    step.n_entries = r->n_requests;
    step.entries = entries;
    step.hidden = dsr_view_whole(hidden, DSR_DTYPE_BF16);
    step.output = dsr_view_whole(output, DSR_DTYPE_F32);
    assert_ok(dsr_attention_decode(r->layer, &step));
    for (uint32_t i = 0; i < r->n_requests; i++) {
        recorded_request *q = &r->requests[i];
        memcpy(q->results[t + 1], (float *)dsr_buffer_data(output) + (size_t)i * HIDDEN, sizeof q->results[0]);
        read_selection(r, i, q->selected[t + 1]);
    }
}

/* The last tokens of a request alone, in one call of prefill: the same bytes. */
static void check_alone(const recording *r, const recorded_request *q)
{
    assert_ok(dsr_attention_prefill(
        r->layer, q->alone, N_STEPS,
        dsr_view_slice(dsr_view_whole(q->inputs, DSR_DTYPE_BF16), (uint64_t)q->length * HIDDEN, N_STEPS * HIDDEN),
        dsr_view_whole(q->outputs, DSR_DTYPE_F32)));
    assert_memory_equal(dsr_buffer_data(q->outputs), q->results[1], N_STEPS * sizeof q->results[0]);
    block_state joint = block_save(q->joint);
    block_assert_unchanged(q->alone, &joint);
}

static void run_library(recording *r)
{
    dsr_buffer *hidden = new_buffer(r->context, MAX_REQUESTS * HIDDEN * sizeof(uint16_t));
    dsr_buffer *output = new_buffer(r->context, MAX_REQUESTS * HIDDEN * sizeof(float));
    for (uint32_t i = 0; i < r->n_requests; i++)
        prefill(r, &r->requests[i]);
    for (uint32_t t = 0; t < N_STEPS; t++)
        decode_jointly(r, hidden, output, t);
    for (uint32_t i = 0; i < r->n_requests; i++)
        check_alone(r, &r->requests[i]);
    dsr_buffer_destroy(hidden);
    dsr_buffer_destroy(output);
}

/* ---- against the record and the model -------------------------------------------------------------------------- */

typedef struct error_sum {
    double largest, sum;
    uint64_t n;
} error_sum;

static double largest_of(error_sum *total, const double *a, const double *b, double rms)
{
    double largest = 0;
    for (uint32_t i = 0; i < HIDDEN; i++) {
        const double error = fabs(a[i] - b[i]) / rms;
        assert_true(isfinite(error));
        largest = fmax(largest, error);
        total->sum += error;
        total->n++;
    }
    total->largest = fmax(total->largest, largest);
    return largest;
}

static double mean_of(const error_sum *total)
{
    return total->n ? total->sum / (double)total->n : 0;
}

static double f32_at(const void *data, uint64_t i)
{
    float value;
    memcpy(&value, (const char *)data + i * sizeof value, sizeof value);
    return (double)value;
}

static double rms_of(const st_tensor *tensor)
{
    double sum = 0;
    for (uint64_t i = 0; i < tensor->n_elements; i++)
        sum += f32_at(tensor->data, i) * f32_at(tensor->data, i);
    return sqrt(sum / (double)tensor->n_elements);
}

static void widen(const void *floats, uint64_t first, double *values)
{
    for (uint32_t i = 0; i < HIDDEN; i++)
        values[i] = f32_at(floats, first + i);
}

typedef struct comparison {
    error_sum plain;         /* library against record, equal selections */
    error_sum near_ties;     /* the same where selections differ by near-ties */
    error_sum rounded;       /* library against the model with all boundaries and the library's selection */
    double largest_forced;   /* library against the model with the library's selection */
    double largest_turned;   /* at near-ties: library with the model's selection against the record */
    double largest_of_model; /* model against record */
    uint32_t n_steps, n_near_ties;
    double widest_gap, widest_allowed;
} comparison;

typedef struct model_pair {
    model_request *request;
    model_rows *exact, *rounded;
} model_pair;

/* What follows the selection in a step of one token: attention over the rows of its list, inverse RoPE, output. */
static void run_rest(const recording *r, const dsr_sequence *sequence, uint32_t token, dsr_buffer *output)
{
    const dsri_sequence_cache *kv = &sequence->storage->layout.kv;
    dsr_buffer *const *slots = r->layer->slots;
    const dsr_view attention = dsr_view_slice(dsr_view_whole(slots[DSRI_SLOT_ATTENTION], DSR_DTYPE_BF16), 0,
                                              (uint64_t)r->config.n_heads * DSR_HEAD_DIM);
    const dsr_view grouped = dsr_view_slice(dsr_view_whole(slots[DSRI_SLOT_GROUPED], DSR_DTYPE_BF16), 0,
                                            (uint64_t)r->config.o_groups * r->config.o_rank);
    dsr_encoder *encoder = NULL;
    dsr_attention_row row = {0};
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    row.kv_len = DSRI_RING_ROWS + model_visible(r->model, token);
    row.kv = dsri_sequence_cache_view(sequence, kv);
    row.kv_layout = dsri_sequence_cache_layout(kv);
    row.width = DSR_WINDOW + r->config.top_k;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.n_heads = r->config.n_heads;
    desc.scale = r->config.scale;
    desc.q = dsr_view_whole(slots[DSRI_SLOT_Q], DSR_DTYPE_BF16);
    desc.indices = dsr_view_whole(slots[DSRI_SLOT_LISTS], DSR_DTYPE_I32);
    desc.sinks = dsr_view_whole(r->layer->sinks, DSR_DTYPE_F32);
    desc.output = attention;
    desc.workspace = dsr_view_whole(slots[DSRI_SLOT_ATTENTION_WORKSPACE], DSR_DTYPE_U8);
    const dsr_rope_row rope_row = {0, token, 1, 1};
    dsr_rope_desc rope = DSR_ROPE_DESC_INIT;
    rope.n_rows = 1;
    rope.rows = &rope_row;
    rope.n_heads = r->config.n_heads;
    rope.head_dim = DSR_HEAD_DIM;
    rope.rope_dim = DSR_ROPE_DIM;
    rope.inverse = 1;
    rope.input = rope.output = attention;
    rope.frequencies = r->layer->frequencies;
    assert_ok(dsr_encoder_create(r->context, &encoder));
    assert_ok(dsr_encode_flash_attention(encoder, &desc));
    assert_ok(dsr_encode_rope(encoder, &rope));
    assert_ok(dsri_layer_project(r->layer, encoder, DSRI_WEIGHT_O_A, 1, attention, grouped));
    assert_ok(
        dsri_layer_project(r->layer, encoder, DSRI_WEIGHT_O_B, 1, grouped, dsr_view_whole(output, DSR_DTYPE_F32)));
    assert_ok(dsr_encoder_submit(encoder));
    dsr_encoder_destroy(encoder);
}

/* Decodes a token of a near-tie again, and then with another selection in place of the library's. */
static void decode_with_selection(const recording *r, const recorded_request *q, uint32_t t,
                                  const unsigned char *selection, double *output)
{
    const uint32_t token = q->length - 1 + t;
    dsr_sequence *sequence = NULL;
    dsr_buffer *result = new_buffer(r->context, HIDDEN * sizeof(float));
    assert_ok(dsr_sequence_fork(q->joint, &sequence));
    assert_ok(dsr_sequence_truncate(sequence, q->length + N_STEPS - token));
    assert_ok(dsr_attention_prefill(
        r->layer, sequence, 1,
        dsr_view_slice(dsr_view_whole(q->inputs, DSR_DTYPE_BF16), (uint64_t)token * HIDDEN, HIDDEN),
        dsr_view_whole(result, DSR_DTYPE_F32)));
    assert_memory_equal(dsr_buffer_data(result), q->results[t], sizeof q->results[t]);
    memset(dsr_buffer_data(result), 0, sizeof q->results[t]);
    run_rest(r, sequence, token, result); /* the library's selection still: the same bytes */
    assert_memory_equal(dsr_buffer_data(result), q->results[t], sizeof q->results[t]);
    int32_t *list = (int32_t *)dsr_buffer_data(r->layer->slots[DSRI_SLOT_LISTS]) + DSR_WINDOW;
    for (uint32_t e = 0, n = 0; n < r->config.top_k; e++)
        if (selection[e])
            list[n++] = (int32_t)(DSRI_RING_ROWS + e);
    run_rest(r, sequence, token, result);
    widen(dsr_buffer_data(result), 0, output);
    dsr_sequence_destroy(sequence);
    dsr_buffer_destroy(result);
}

/* The library attends to other entries than the model, and the record with it. That must be a near-tie, and all that
 * is wrong: with the model's selection the library's output is as near to the record as any. */
static void check_near_tie(const recording *r, const recorded_request *q, uint32_t t, const near_tie *tie,
                           const unsigned char *selection, const double *recorded, double rms, comparison *c)
{
    const char *objection = near_tie_objection(tie);
    double output[HIDDEN];
    if (objection != NULL)
        fail_msg("request %u, token %u: %s (gap %g, allowed %g)", (unsigned)q->number, (unsigned)(q->length - 1 + t),
                 objection, tie->gap, tie->allowed);
    decode_with_selection(r, q, t, selection, output);
    const double turned = near_tie_error(output, recorded, HIDDEN, rms);
    if (turned > NEAR_TIE_LARGEST_ERROR)
        fail_msg("request %u, token %u: with the recorded selection the error is still %g", (unsigned)q->number,
                 (unsigned)(q->length - 1 + t), turned);
    c->n_near_ties++;
    c->largest_turned = fmax(c->largest_turned, turned);
    c->widest_gap = fmax(c->widest_gap, tie->gap);
    c->widest_allowed = fmax(c->widest_allowed, tie->allowed);
}

static void compare_token(const recording *r, const recorded_request *q, const model_pair *m, uint32_t t, double rms,
                          comparison *c)
{
    const uint32_t token = q->length - 1 + t;
    const unsigned char *selected = r->kind == DSR_LAYER_RATIO_4 ? q->selected[t] : NULL;
    unsigned char own[MAX_ENTRIES];
    double ours[HIDDEN], recorded[HIDDEN], output[HIDDEN];
    widen(q->results[t], 0, ours);
    widen(t == 0 ? q->recorded_last->data : q->recorded->data, t == 0 ? 0 : (uint64_t)(t - 1) * HIDDEN, recorded);
    const near_tie tie = near_tie_compare(m->exact, m->rounded, token, selected, ours, recorded, rms, own);
    c->n_steps++;
    c->largest_of_model = fmax(c->largest_of_model, tie.model_error);
    c->largest_forced = fmax(c->largest_forced, tie.forced_error);
    if (tie.model_error > NEAR_TIE_MODEL_ERROR)
        fail_msg("request %u: the model is not the recorded one at token %u", (unsigned)q->number, (unsigned)token);
    if (tie.forced_error > NEAR_TIE_LARGEST_ERROR)
        fail_msg("request %u: the output of token %u is too far from the model's", (unsigned)q->number,
                 (unsigned)token);
    if (tie.n_swapped) {
        (void)largest_of(&c->near_ties, ours, recorded, rms);
        check_near_tie(r, q, t, &tie, own, recorded, rms, c);
    } else if (largest_of(&c->plain, ours, recorded, rms) > NEAR_TIE_LARGEST_ERROR) {
        fail_msg("request %u: the output of token %u is too far off", (unsigned)q->number, (unsigned)token);
    }
    model_output(m->rounded, token, selected, output);
    if (largest_of(&c->rounded, ours, output, rms) > ROUNDED_ERROR)
        fail_msg("request %u: the BF16 boundaries do not explain the output of token %u", (unsigned)q->number,
                 (unsigned)token);
}

static uint32_t first_needed_row(const recorded_request *q)
{
    return q->length < DSR_WINDOW ? 0 : q->length - DSR_WINDOW;
}

static void compare_request(const recording *r, const recorded_request *q, comparison *c)
{
    model_pair m;
    m.request = model_request_new(r->model, q->hidden, q->length + N_STEPS, first_needed_row(q));
    m.exact = model_rows_new(r->model, m.request, MODEL_EXACT);
    m.rounded = model_rows_new(r->model, m.request, MODEL_ALL);
    for (uint32_t t = 0; t <= N_STEPS; t++)
        compare_token(r, q, &m, t, rms_of(q->recorded), c);
    model_rows_free(m.exact);
    model_rows_free(m.rounded);
    model_request_free(m.request);
}

int recorded_check(const char *path, dsr_layer_kind kind, uint32_t max_tokens)
{
    recording *r = malloc(sizeof *r);
    comparison all;
    assert_non_null(r);
    memset(&all, 0, sizeof all);
    if (!open_recording(r, path, kind, max_tokens)) {
        free(r);
        return 0;
    }
    run_library(r);
    print_message("%s: errors relative to the RMS of the recorded outputs\n"
                  "request  length  equal selections    near-ties                    against the model\n"
                  "                  largest      mean  steps  largest  turned   same selection  all boundaries\n",
                  path);
    for (uint32_t i = 0; i < r->n_requests; i++) {
        const recorded_request *q = &r->requests[i];
        comparison c;
        memset(&c, 0, sizeof c);
        compare_request(r, q, &c);
        print_message("%7u %7u  %8.4f  %8.5f  %5u %8.4f %8.4f  %15.4f  %14.5f\n", (unsigned)q->number,
                      (unsigned)q->length, c.plain.largest, mean_of(&c.plain), (unsigned)c.n_near_ties,
                      c.near_ties.largest, c.largest_turned, c.largest_forced, c.rounded.largest);
        if (c.n_near_ties)
            print_message(
                "                 scores of swapped entries within %.2e of the cut-off, rounding allows %.2e\n",
                c.widest_gap, c.widest_allowed);
        assert_true(mean_of(&c.plain) <= MEAN_ERROR);
        all.plain.sum += c.plain.sum + c.near_ties.sum;
        all.plain.n += c.plain.n + c.near_ties.n;
        all.largest_of_model = fmax(all.largest_of_model, c.largest_of_model);
    }
    print_message("mean over all steps %.5f; float64 model against the record at most %.1e\n", mean_of(&all.plain),
                  all.largest_of_model);
    assert_true(mean_of(&all.plain) <= MEAN_ERROR);
    close_recording(r);
    free(r);
    return 1;
}

/* ---- what each boundary costs ---------------------------------------------------------------------------------- */

enum { TABLE_STEPS = 4 };

typedef struct boundary_cost {
    error_sum output; /* with the exact selection */
    double score_sum; /* mean error over the deviation of scores, summed */
    uint32_t n_score_tokens;
    uint32_t n_swapped; /* steps with another selection */
} boundary_cost;

static double deviation_of(const double *x, uint32_t n)
{
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += x[i];
        squares += x[i] * x[i];
    }
    return sqrt(fmax(squares / n - sum / n * (sum / n), 0));
}

static void add_score_cost(const recording *r, const model_rows *rows, uint32_t token, const double *scores,
                           const unsigned char *selection, boundary_cost *cost)
{
    const uint32_t n = model_visible(r->model, token);
    double rounded[MAX_ENTRIES], sum = 0;
    unsigned char other[MAX_ENTRIES];
    if (n < 2)
        return;
    model_scores(rows, token, rounded);
    for (uint32_t g = 0; g < n; g++)
        sum += fabs(rounded[g] - scores[g]);
    cost->score_sum += sum / n / deviation_of(scores, n);
    cost->n_score_tokens++;
    model_select(rounded, n, r->config.top_k, other);
    cost->n_swapped += memcmp(other, selection, n) != 0;
}

static void add_costs(const recording *r, const recorded_request *q, const model_request *request,
                      const model_rows *exact, uint32_t boundaries, boundary_cost *cost)
{
    model_rows *rows = model_rows_new(r->model, request, boundaries);
    for (uint32_t t = N_STEPS + 1 - TABLE_STEPS; t <= N_STEPS; t++) {
        const uint32_t token = q->length - 1 + t;
        double wanted[HIDDEN], output[HIDDEN], scores[MAX_ENTRIES];
        unsigned char selection[MAX_ENTRIES];
        if (r->kind == DSR_LAYER_RATIO_4) {
            model_scores(exact, token, scores);
            model_select(scores, model_visible(r->model, token), r->config.top_k, selection);
            add_score_cost(r, rows, token, scores, selection, cost);
        }
        model_output(exact, token, r->kind == DSR_LAYER_RATIO_4 ? selection : NULL, wanted);
        model_output(rows, token, r->kind == DSR_LAYER_RATIO_4 ? selection : NULL, output);
        (void)largest_of(&cost->output, output, wanted, rms_of(q->recorded));
    }
    model_rows_free(rows);
}

static int has_boundary(dsr_layer_kind kind, uint32_t boundary)
{
    const int is_index = boundary >= MODEL_INDEX_POOLED && boundary <= MODEL_INDEX_Q;
    const int is_entry = boundary >= MODEL_POOLED && boundary <= MODEL_ENTRY;
    return is_index ? kind == DSR_LAYER_RATIO_4 : !is_entry || kind != DSR_LAYER_WINDOW;
}

static void print_cost(const char *name, const boundary_cost *cost)
{
    print_message("| %-20s | %8.5f | %8.4f |", name, mean_of(&cost->output), cost->output.largest);
    if (cost->n_score_tokens)
        print_message(" %8.5f | %2u of %u |", cost->score_sum / cost->n_score_tokens, (unsigned)cost->n_swapped,
                      (unsigned)cost->n_score_tokens);
    print_message("\n");
}

int recorded_print_boundaries(const char *path, dsr_layer_kind kind)
{
    recording *r = malloc(sizeof *r);
    boundary_cost costs[MODEL_N_BOUNDARIES + 1];
    assert_non_null(r);
    memset(costs, 0, sizeof costs);
    if (!open_recording(r, path, kind, UINT32_MAX)) {
        free(r);
        return 0;
    }
    for (uint32_t i = 0; i < r->n_requests; i++) {
        const recorded_request *q = &r->requests[i];
        model_request *request = model_request_new(r->model, q->hidden, q->length + N_STEPS, first_needed_row(q));
        model_rows *exact = model_rows_new(r->model, request, MODEL_EXACT);
        for (uint32_t b = 0; b < MODEL_N_BOUNDARIES; b++)
            if (has_boundary(kind, b))
                add_costs(r, q, request, exact, 1u << b, &costs[b]);
        add_costs(r, q, request, exact, MODEL_ALL, &costs[MODEL_N_BOUNDARIES]);
        model_rows_free(exact);
        model_request_free(request);
    }
    print_message("%s, last %d steps of %u requests\n", path, TABLE_STEPS, (unsigned)r->n_requests);
    for (uint32_t b = 0; b < MODEL_N_BOUNDARIES; b++)
        if (has_boundary(kind, b))
            print_cost(model_boundary_name((model_boundary)b), &costs[b]);
    print_cost("all", &costs[MODEL_N_BOUNDARIES]);
    assert_true(mean_of(&costs[MODEL_N_BOUNDARIES].output) <= MEAN_ERROR);
    close_recording(r);
    free(r);
    return 1;
}
