/* What a caller gives a decode step or a prefill, checked. */
#include "block/step.h"

#include <stdio.h>
#include <string.h>

/* What a message about one sequence begins with: "prefill", or "decode: entry 3". */
typedef struct place {
    char text[32];
} place;

/* A decode step, or a prefill. */
typedef struct call {
    dsr_context *context;
    const char *op;  /* "decode" or "prefill" */
    place last;      /* whose rows end last */
    uint64_t n_rows; /* needed of hidden and output */
    uint64_t hidden_size;
} call;

static place entry_place(uint32_t entry)
{
    place p;
    snprintf(p.text, sizeof p.text, "decode: entry %u", entry);
    return p;
}

static dsr_status check_rows(const call *c, const char *field, const dsr_view *view, unsigned char **address)
{
    const uint64_t needed = c->n_rows * c->hidden_size * dsr_dtype_size(view->dtype);
    char what[32];
    void *begin;
    snprintf(what, sizeof what, "%s: %s", c->op, field);
    const dsr_status status = dsri_view_address(c->context, view, what, &begin);
    if (status != DSR_OK)
        return status;
    if (view->byte_length < needed)
        return dsri_fail(c->context, DSR_ERR_SIZE, "%s: %s holds %llu bytes, needs %llu up to row %llu", c->last.text,
                         field, (unsigned long long)view->byte_length, (unsigned long long)needed,
                         (unsigned long long)(c->n_rows - 1));
    *address = begin;
    return DSR_OK;
}

static dsr_status check_given(const call *c, const char *field, const dsr_view *view)
{
    if (view->buffer != NULL)
        return DSR_OK;
    return dsri_fail(c->context, DSR_ERR_NULL, "%s: %s is null", c->op, field);
}

static dsr_status check_memory(const call *c, const dsr_view *hidden, const dsr_view *output)
{
    dsr_status status = check_given(c, "hidden", hidden);
    if (status == DSR_OK)
        status = check_given(c, "output", output);
    if (status != DSR_OK)
        return status;
    if (hidden->dtype != DSR_DTYPE_BF16)
        return dsri_fail(c->context, DSR_ERR_DTYPE, "%s: hidden must be bf16, got %s", c->op,
                         dsr_dtype_name(hidden->dtype));
    if (output->dtype != DSR_DTYPE_F32 && output->dtype != DSR_DTYPE_BF16)
        return dsri_fail(c->context, DSR_ERR_DTYPE, "%s: output must be f32 or bf16, got %s", c->op,
                         dsr_dtype_name(output->dtype));
    unsigned char *in, *out;
    status = check_rows(c, "hidden", hidden, &in);
    if (status == DSR_OK)
        status = check_rows(c, "output", output, &out);
    if (status != DSR_OK)
        return status;
    const uint64_t in_bytes = c->n_rows * c->hidden_size * 2;
    const uint64_t out_bytes = c->n_rows * c->hidden_size * dsr_dtype_size(output->dtype);
    if (in < out + out_bytes && out < in + in_bytes)
        return dsri_fail(c->context, DSR_ERR_OVERLAP, "%s: hidden and output overlap", c->op);
    return DSR_OK;
}

static dsr_status check_room(const call *c, const place *p, const dsr_sequence *sequence, uint64_t n_tokens)
{
    if (n_tokens > sequence->storage->max_context - sequence->position)
        return dsri_fail(c->context, DSR_ERR_FULL,
                         "%s: the sequence holds %u of at most %u tokens, %llu more do not fit", p->text,
                         sequence->position, sequence->storage->max_context, (unsigned long long)n_tokens);
    return DSR_OK;
}

static dsr_status check_sequence(dsr_attention *layer, const place *p, const dsr_sequence *sequence)
{
    dsr_context *context = layer->context;
    if (sequence == NULL)
        return dsri_fail(context, DSR_ERR_NULL, "%s: sequence is null", p->text);
    if (sequence->attention != layer)
        return dsri_fail(context, DSR_ERR_CONTEXT_MISMATCH, "%s: the sequence is of another layer", p->text);
    return DSR_OK;
}

/* An entry beside the ones before it. */
static dsr_status check_others(const dsri_step *s, const place *p, const dsr_step_entry *entry, uint32_t n_tokens)
{
    dsr_context *context = s->layer->context;
    for (uint32_t other = 0; other < s->n_entries; other++) {
        if (s->sequences[other] == entry->sequence)
            return dsri_fail(context, DSR_ERR_DUPLICATE_ROW, "%s: its sequence is entry %u's too", p->text, other);
        if (entry->first_row < s->first_row[other] + s->n_entry_tokens[other] &&
            s->first_row[other] < entry->first_row + n_tokens)
            return dsri_fail(context, DSR_ERR_OVERLAP, "decode: entries %u and %u share rows", other, s->n_entries);
    }
    if (s->n_tokens + n_tokens > DSR_MAX_STEP_TOKENS)
        return dsri_fail(context, DSR_ERR_ROW_COUNT, "%s: more than %d tokens in one step", p->text,
                         (int)DSR_MAX_STEP_TOKENS);
    return DSR_OK;
}

/* Checks one more entry and takes it into the step. */
static dsr_status take_entry(call *c, dsri_step *s, const dsr_step_entry *entry)
{
    const uint32_t e = s->n_entries;
    const uint32_t n_tokens = entry->n_tokens ? entry->n_tokens : 1;
    const place p = entry_place(e);
    dsr_status status = check_sequence(s->layer, &p, entry->sequence);
    if (status != DSR_OK)
        return status;
    if (n_tokens > DSR_MAX_DRAFT_TOKENS)
        return dsri_fail(c->context, DSR_ERR_VALUE, "%s: n_tokens must be in 1..=%d, got %u", p.text,
                         (int)DSR_MAX_DRAFT_TOKENS, n_tokens);
    if (entry->first_row > UINT32_MAX)
        return dsri_fail(c->context, DSR_ERR_OVERFLOW, "%s: first_row %llu exceeds u32", p.text,
                         (unsigned long long)entry->first_row);
    status = check_others(s, &p, entry, n_tokens);
    if (status == DSR_OK)
        status = check_room(c, &p, entry->sequence, n_tokens);
    if (status != DSR_OK)
        return status;
    s->sequences[e] = entry->sequence;
    s->n_entry_tokens[e] = n_tokens;
    s->first_token[e] = s->n_tokens;
    s->first_row[e] = entry->first_row;
    s->n_entries = e + 1;
    s->n_tokens += n_tokens;
    if (entry->first_row + n_tokens > c->n_rows) {
        c->n_rows = entry->first_row + n_tokens;
        c->last = p;
    }
    return DSR_OK;
}

dsr_status dsri_step_check_decode(dsri_step *s, dsr_attention *layer, const dsr_step_desc *desc)
{
    dsr_context *context = layer->context;
    if (desc == NULL || desc->entries == NULL)
        return dsri_fail(context, DSR_ERR_NULL, "decode: %s is null", desc == NULL ? "desc" : "entries");
    if (desc->struct_size != sizeof *desc)
        return dsri_fail(context, DSR_ERR_STRUCT_SIZE, "decode: struct_size is %u, this library knows %zu",
                         desc->struct_size, sizeof *desc);
    if (desc->n_entries == 0 || desc->n_entries > DSR_MAX_ROWS)
        return dsri_fail(context, DSR_ERR_ROW_COUNT, "decode: entries must be 1..=%d, got %u", (int)DSR_MAX_ROWS,
                         desc->n_entries);
    call c = {.context = context, .op = "decode", .hidden_size = layer->config.hidden_size};
    s->layer = layer;
    s->hidden = desc->hidden;
    s->output = desc->output;
    dsr_status status = DSR_OK;
    for (uint32_t e = 0; e < desc->n_entries && status == DSR_OK; e++)
        status = take_entry(&c, s, &desc->entries[e]);
    return status == DSR_OK ? check_memory(&c, &desc->hidden, &desc->output) : status;
}

dsr_status dsri_step_check_prefill(dsr_attention *layer, const dsr_sequence *sequence, uint64_t n_tokens,
                                   const dsr_view *hidden, const dsr_view *output)
{
    const call c = {layer->context, "prefill", {"prefill"}, n_tokens, layer->config.hidden_size};
    dsr_status status = check_sequence(layer, &c.last, sequence);
    if (status != DSR_OK)
        return status;
    if (n_tokens == 0)
        return dsri_fail(layer->context, DSR_ERR_VALUE, "prefill: n_tokens must not be 0");
    status = check_room(&c, &c.last, sequence, n_tokens);
    return status == DSR_OK ? check_memory(&c, hidden, output) : status;
}
