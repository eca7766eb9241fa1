#include "joint.h"

/* ---- caches ------------------------------------------------------------------------------------------------ */

static uint64_t cache_bytes(const cache_form *form, uint64_t kv_len, uint32_t dim)
{
    return form->n_bytes != 0 ? form->n_bytes : kv_len * dim * sizeof(uint16_t);
}

/* The caches of a call that are on the device already: rows may share one. */
typedef struct staged_caches {
    uint32_t n;
    const void *data[DSR_MAX_ROWS];
    dsr_view views[DSR_MAX_ROWS];
} staged_caches;

static dsr_view stage_cache(session *s, staged_caches *staged, const void *data, const cache_form *form,
                            uint64_t kv_len, uint32_t dim)
{
    const uint64_t n_bytes = cache_bytes(form, kv_len, dim);
    const uint32_t next = staged->n;
    for (uint32_t i = 0; i < next; i++) {
        if (staged->data[i] == data && staged->views[i].byte_length == n_bytes) {
            return staged->views[i];
        }
    }
    staged->data[next] = data;
    staged->views[next] =
        session_upload(s, data, n_bytes, form->format == DSR_FORMAT_BF16 ? DSR_DTYPE_BF16 : DSR_DTYPE_U8);
    staged->n++;
    return staged->views[next];
}

static dsr_cache_layout upload_layout(session *s, const cache_form *form)
{
    dsr_cache_layout layout = {.format = form->format, .page_size = form->page_size};
    if (form->page_table != NULL) {
        layout.page_table = session_upload(s, form->page_table, form->n_pages * sizeof(int32_t), DSR_DTYPE_I32);
    }
    return layout;
}

/* ---- attention --------------------------------------------------------------------------------------------- */

static dsr_status attention_workspace(session *s, int flash, const dsr_attention_desc *desc, uint64_t *size)
{
    return flash ? dsr_flash_attention_workspace(s->context, desc, size)
                 : dsr_sparse_attention_workspace(s->context, desc, size);
}

void joint_attention(session *s, const attention_shared *shared, const attention_row *rows, uint32_t n_rows)
{
    dsr_attention_row described[DSR_MAX_ROWS] = {0};
    staged_caches staged = {0};
    const uint64_t query_bytes = (uint64_t)shared->n_heads * DSR_HEAD_DIM * sizeof(uint16_t);
    uint64_t n_indices = 0, size = 0;

    for (uint32_t r = 0; r < n_rows; r++) {
        described[r].index_offset = n_indices;
        n_indices += rows[r].width;
    }
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    desc.n_rows = n_rows;
    desc.rows = described;
    desc.n_heads = shared->n_heads;
    desc.scale = shared->scale;
    desc.q = session_allocate(s, n_rows * query_bytes, DSR_DTYPE_BF16);
    desc.indices = session_allocate(s, n_indices * sizeof(int32_t), DSR_DTYPE_I32);
    desc.sinks = session_upload(s, shared->sinks, shared->n_heads * sizeof(float), DSR_DTYPE_F32);
    desc.output = session_allocate(s, n_rows * query_bytes, DSR_DTYPE_BF16);
    for (uint32_t r = 0; r < n_rows; r++) {
        described[r].kv = stage_cache(s, &staged, rows[r].kv, &rows[r].form, rows[r].kv_len, DSR_HEAD_DIM);
        described[r].kv_layout = upload_layout(s, &rows[r].form);
        described[r].kv_len = rows[r].kv_len;
        described[r].q_row = r;
        described[r].width = rows[r].width;
        session_write(s, desc.q, r * query_bytes, rows[r].q, query_bytes);
        session_write(s, desc.indices, described[r].index_offset * sizeof(int32_t), rows[r].indices,
                      rows[r].width * sizeof(int32_t));
    }
    if (s->code == CLI_DONE && session_check(s, attention_workspace(s, shared->flash, &desc, &size))) {
        desc.workspace = session_allocate(s, size, DSR_DTYPE_U8);
    }
    if (s->code == CLI_DONE) {
        session_check(s, shared->flash ? dsr_encode_flash_attention(s->encoder, &desc)
                                       : dsr_encode_sparse_attention(s->encoder, &desc));
    }
    session_run(s);
    for (uint32_t r = 0; r < n_rows; r++) {
        session_read(s, desc.output, r * query_bytes, rows[r].output, query_bytes);
    }
    session_release_buffers(s);
}

/* ---- indexer ----------------------------------------------------------------------------------------------- */

static void stage_indexer_rows(session *s, const dsr_indexer_desc *desc, const indexer_row *rows,
                               dsr_indexer_row *described)
{
    const uint64_t query_bytes = (uint64_t)desc->n_heads * DSR_INDEX_DIM * sizeof(uint16_t);
    const uint64_t weight_bytes = desc->n_heads * sizeof(float);
    staged_caches staged = {0};
    for (uint32_t r = 0; r < desc->n_rows; r++) {
        described[r].keys = stage_cache(s, &staged, rows[r].keys, &rows[r].form, rows[r].kv_len, DSR_INDEX_DIM);
        described[r].key_layout = upload_layout(s, &rows[r].form);
        described[r].kv_len = rows[r].kv_len;
        described[r].q_row = r;
        described[r].output_offset = (uint64_t)r * desc->top_k;
        described[r].start_pos = rows[r].start_pos;
        described[r].offset = rows[r].offset;
        session_write(s, desc->q, r * query_bytes, rows[r].q, query_bytes);
        session_write(s, desc->weights, r * weight_bytes, rows[r].weights, weight_bytes);
    }
}

void joint_indexer(session *s, const indexer_shared *shared, const indexer_row *rows, uint32_t n_rows)
{
    dsr_indexer_row described[DSR_MAX_ROWS] = {0};
    const uint64_t query_elements = (uint64_t)shared->n_heads * DSR_INDEX_DIM;
    const uint64_t list_bytes = shared->top_k * sizeof(int32_t);
    uint64_t n_scores = 0, size = 0;

    for (uint32_t r = 0; r < n_rows; r++) {
        described[r].ratio = shared->ratio;
        described[r].scores_offset = n_scores;
        n_scores += rows[r].kv_len;
    }
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    desc.n_rows = n_rows;
    desc.rows = described;
    desc.n_heads = shared->n_heads;
    desc.top_k = shared->top_k;
    desc.q = session_allocate(s, n_rows * query_elements * sizeof(uint16_t), DSR_DTYPE_BF16);
    desc.weights = session_allocate(s, (uint64_t)n_rows * shared->n_heads * sizeof(float), DSR_DTYPE_F32);
    desc.output = session_allocate(s, n_rows * list_bytes, DSR_DTYPE_I32);
    desc.scores = session_allocate(s, n_scores * sizeof(float), DSR_DTYPE_F32);
    stage_indexer_rows(s, &desc, rows, described);
    if (s->code == CLI_DONE && session_check(s, dsr_indexer_workspace(s->context, &desc, &size)) && size != 0) {
        desc.workspace = session_allocate(s, size, DSR_DTYPE_U8);
    }
    if (s->code == CLI_DONE) {
        session_check(s, dsr_encode_indexer(s->encoder, &desc));
    }
    session_run(s);
    for (uint32_t r = 0; r < n_rows; r++) {
        session_read(s, desc.output, r * list_bytes, rows[r].indices, list_bytes);
        session_read(s, desc.scores, described[r].scores_offset * sizeof(float), rows[r].scores,
                     rows[r].kv_len * sizeof(float));
    }
    session_release_buffers(s);
}

/* ---- compressor -------------------------------------------------------------------------------------------- */

uint64_t compressor_token_elements(const compressor_shared *shared)
{
    return (shared->ratio == 4 ? 2u : 1u) * (uint64_t)shared->dim;
}

uint64_t compressor_state_rows(const compressor_shared *shared)
{
    return (shared->ratio == 4 ? 2u : 1u) * (uint64_t)shared->ratio;
}

/* Rows on the device. Row r's tokens start at first_token[r]; its emitted rows at first_output[r], and after them comes
 * one row for the zeros of a token that emits nothing. */
typedef struct staged_compressor {
    dsr_compressor_desc desc;
    dsr_view kv_state[DSR_MAX_ROWS];
    dsr_view score_state[DSR_MAX_ROWS];
    uint64_t first_token[DSR_MAX_ROWS];
    uint64_t first_output[DSR_MAX_ROWS];
} staged_compressor;

static void stage_compressor(session *s, const compressor_shared *shared, const compressor_row *rows, uint32_t n_rows,
                             staged_compressor *staged)
{
    const uint64_t token_bytes = compressor_token_elements(shared) * sizeof(float);
    const uint64_t state_bytes = compressor_state_rows(shared) * token_bytes;
    uint64_t n_tokens = 0, n_outputs = 0;

    for (uint32_t r = 0; r < n_rows; r++) {
        staged->first_token[r] = n_tokens;
        staged->first_output[r] = n_outputs;
        n_tokens += rows[r].n_tokens;
        n_outputs += rows[r].n_tokens / shared->ratio + 1;
    }
    dsr_compressor_desc *desc = &staged->desc;
    *desc = (dsr_compressor_desc)DSR_COMPRESSOR_DESC_INIT;
    desc->ratio = shared->ratio;
    desc->dim = shared->dim;
    desc->epsilon = shared->epsilon;
    desc->kv = session_allocate(s, n_tokens * token_bytes, DSR_DTYPE_F32);
    desc->score = session_allocate(s, n_tokens * token_bytes, DSR_DTYPE_F32);
    desc->ape = session_upload(s, shared->ape, shared->ratio * token_bytes, DSR_DTYPE_F32);
    desc->norm = session_upload(s, shared->norm, shared->dim * sizeof(float), DSR_DTYPE_F32);
    desc->output = session_allocate(s, n_outputs * shared->dim * sizeof(uint16_t), DSR_DTYPE_BF16);
    for (uint32_t r = 0; r < n_rows; r++) {
        staged->kv_state[r] = session_allocate(s, state_bytes, DSR_DTYPE_F32);
        staged->score_state[r] = session_allocate(s, state_bytes, DSR_DTYPE_F32);
        session_write(s, desc->kv, staged->first_token[r] * token_bytes, rows[r].kv, rows[r].n_tokens * token_bytes);
        session_write(s, desc->score, staged->first_token[r] * token_bytes, rows[r].score,
                      rows[r].n_tokens * token_bytes);
    }
}

static dsr_compressor_row describe_compressor_row(const staged_compressor *staged, uint32_t r, uint32_t n_rows_before,
                                                  uint32_t start_pos, uint32_t n_tokens)
{
    const dsr_compressor_row row = {.kv_state = staged->kv_state[r],
                                    .score_state = staged->score_state[r],
                                    .token_row = staged->first_token[r] + start_pos,
                                    .output_row = staged->first_output[r] + n_rows_before,
                                    .start_pos = start_pos,
                                    .n_tokens = n_tokens};
    return row;
}

static void run_compressor_call(session *s, staged_compressor *staged, const dsr_compressor_row *rows, uint32_t n_rows)
{
    staged->desc.rows = rows;
    staged->desc.n_rows = n_rows;
    if (s->code == CLI_DONE) {
        session_check(s, dsr_encode_compressor(s->encoder, &staged->desc));
    }
    session_run(s);
}

static void fetch_compressor(session *s, const compressor_shared *shared, const compressor_row *rows, uint32_t n_rows,
                             const staged_compressor *staged)
{
    const uint64_t row_bytes = shared->dim * sizeof(uint16_t);
    const uint64_t state_bytes = compressor_state_rows(shared) * compressor_token_elements(shared) * sizeof(float);
    for (uint32_t r = 0; r < n_rows; r++) {
        const uint64_t n_emitted = rows[r].n_tokens / shared->ratio;
        if (n_emitted != 0) {
            session_read(s, staged->desc.output, staged->first_output[r] * row_bytes, rows[r].output,
                         n_emitted * row_bytes);
        }
        session_read(s, staged->kv_state[r], 0, rows[r].kv_state, state_bytes);
        session_read(s, staged->score_state[r], 0, rows[r].score_state, state_bytes);
    }
    session_release_buffers(s);
}

void joint_compressor(session *s, const compressor_shared *shared, const compressor_row *rows, uint32_t n_rows)
{
    staged_compressor staged;
    dsr_compressor_row call[DSR_MAX_ROWS];
    uint32_t longest = 0;

    stage_compressor(s, shared, rows, n_rows, &staged);
    for (uint32_t r = 0; r < n_rows; r++) {
        const uint32_t n_emitted = rows[r].n_tokens / shared->ratio;
        longest = rows[r].n_tokens > longest ? rows[r].n_tokens : longest;
        call[0] = describe_compressor_row(&staged, r, n_emitted, 0, 1);
        run_compressor_call(s, &staged, call, 1);
    }
    for (uint32_t t = 1; t < longest && s->code == CLI_DONE; t++) {
        uint32_t n_active = 0;
        for (uint32_t r = 0; r < n_rows; r++) {
            if (t < rows[r].n_tokens) {
                const int emits = (t + 1) % shared->ratio == 0;
                const uint32_t place = emits ? t / shared->ratio : rows[r].n_tokens / shared->ratio;
                call[n_active++] = describe_compressor_row(&staged, r, place, t, 1);
            }
        }
        run_compressor_call(s, &staged, call, n_active);
    }
    fetch_compressor(s, shared, rows, n_rows, &staged);
}

void alone_compressor(session *s, const compressor_shared *shared, const compressor_row *row)
{
    staged_compressor staged;
    stage_compressor(s, shared, row, 1, &staged);
    const dsr_compressor_row call = describe_compressor_row(&staged, 0, 0, 0, row->n_tokens);
    run_compressor_call(s, &staged, &call, 1);
    fetch_compressor(s, shared, row, 1, &staged);
}

/* ---- gather ------------------------------------------------------------------------------------------------ */

void joint_gather(session *s, const void *const *sources, uint64_t row_elements, uint32_t n_rows, float *output)
{
    dsr_view views[DSR_MAX_ROWS];
    const uint64_t row_bytes = row_elements * sizeof(float);
    for (uint32_t r = 0; r < n_rows; r++) {
        views[r] = session_upload(s, sources[r], row_bytes, DSR_DTYPE_F32);
    }
    dsr_gather_desc desc = DSR_GATHER_DESC_INIT;
    desc.n_rows = n_rows;
    desc.sources = views;
    desc.row_elements = row_elements;
    desc.output = session_allocate(s, n_rows * row_bytes, DSR_DTYPE_F32);
    if (s->code == CLI_DONE) {
        session_check(s, dsr_encode_gather(s->encoder, &desc));
    }
    session_run(s);
    session_read(s, desc.output, 0, output, n_rows * row_bytes);
    session_release_buffers(s);
}
