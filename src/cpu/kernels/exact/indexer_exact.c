/* Lightning indexer over FP4 keys, device-exact, on units that multiply bytes: where query and keys are small integers
 * times powers of two, which the official rounding makes them, their dot products are exact in any order. Blocks with
 * any other key, and queries of another kind, take the chain. Where AVX512-BF16 adds up the chain, that takes less than
 * keys of several layers do, and these take it, too. Tasks and selection are those of the chain's kernel. */
#include "cpu/kernels/exact/exact_unit.h"
#if DSRI_EXACT_IS_AMX
#include "cpu/kernels/exact/integer_tiles.h"
#else
#include "cpu/kernels/exact/integer_dots.h"
#endif

#include <dsrows/cache.h>

/* Scores of a block of keys, loaded before; loads the next one. */
static void score_integer_block(const query *x, const integer_query *y, uint32_t n_heads, uint64_t first,
                                const integer_block *block, key_loading *next, integer_scratch *s)
{
    const uint32_t width = panel_heads(n_heads), n_panels = n_heads / width, n = block->n;
    const uint32_t n_blocks = (n + DSRI_SCORE_BLOCK - 1) / DSRI_SCORE_BLOCK;
    integer_panel panels[MAX_PANELS];
    for (uint32_t i = 0; i < n_panels; i++) {
        panels[i] = (integer_panel){y->words + (size_t)i * QUERY_WORDS * width,
                                    y->sums + i * VF_LANES,
                                    y->weights + i * VF_LANES,
                                    n_panels * VF_LANES,
                                    (int)*y->n_layers,
                                    n_heads};
    }
    add_integer_heads(panels, n_panels, n_heads, s, block, next);
    for (uint32_t i = 0; n_panels == 2 && i < n * VF_LANES; i += VF_LANES) {
        vf_store(s->sums[0] + i, vf_add(vf_load(s->sums[0] + i), vf_load(s->sums[1] + i)));
    }
    float *const scores = x->scores + first, *const maxima = x->block_maxima + first / DSRI_SCORE_BLOCK;
    if (n == INTEGER_KEYS) {
        finish_scores(s->sums[0], block->units, INTEGER_KEYS, INTEGER_KEYS, scores, maxima);
        return;
    }
    finish_scores(s->sums[0], block->units, n_blocks * DSRI_SCORE_BLOCK, n, s->scores, s->maxima);
    memcpy(scores, s->scores, n * sizeof *scores);
    memcpy(maxima, s->maxima, n_blocks * sizeof *maxima);
}

static void score_by_f32(const dsri_indexer_row_plan *row, const query *x, uint32_t n_heads, uint64_t first,
                         uint64_t end, void *scratch)
{
    score_keys(row, x, n_heads, first, end, scratch);
}

static const indexer_fallback f32_chain = {.pack = pack_query, .score = score_by_f32};

/* The span of keys up to which bytes take less than the chain. */
static uint32_t max_span_beside(const indexer_fallback *chain)
{
    return chain == &f32_chain ? MAX_QUERY_KEY_SPAN : LAYER_BINADES - 1;
}

/* Scores first..end - 1 of a query: -inf from n_causal on. first is a multiple of DSRI_SCORE_BLOCK. The chain's query,
 * if bytes hold it, too, is packed where the first block of keys needs it. */
static void score_packed_keys(const dsri_indexer_row_plan *row, const query *x, uint32_t n_heads, key_range keys,
                              const indexer_fallback *chain, integer_scratch *s)
{
    const integer_query y = integer_query_of(x, n_heads);
    query chain_query = *x;
    int is_packed = 0;
    chain_query.packed_q = s->packed_q;
    const uint64_t end = keys.end < x->n_causal ? keys.end : x->n_causal;
    const uint32_t max_span = max_span_beside(chain) < *y.key_span ? max_span_beside(chain) : *y.key_span;
    uint64_t t = keys.first;
    integer_block *block = &s->blocks[0], *other = &s->blocks[1];
    if (*y.n_layers && t < end) {
        key_loading loading = loading_of(&row->keys, t, end, x->n_causal, max_span, block);
        load_last_keys(&loading);
    }
    while (*y.n_layers && t < end) {
        const uint64_t next = t + block->n;
        key_loading loading = loading_of(&row->keys, next, end, x->n_causal, max_span, other);
        if (greatest_span(block) <= *y.key_span) {
            score_integer_block(x, &y, n_heads, t, block, &loading, s);
        } else {
            if (!is_packed) {
                chain->pack(&chain_query, n_heads);
                is_packed = 1;
            }
            chain->score(row, &chain_query, n_heads, t, next, s->fallback);
        }
        load_last_keys(&loading);
        integer_block *const used = block;
        block = other;
        other = used;
        t = next;
    }
    chain->score(row, x, n_heads, t, keys.end, s->fallback);
}

static void pack_either_query(const query *x, uint32_t n_heads)
{
    if (!pack_integer_query(x, n_heads, panel_heads(n_heads))) {
        pack_query(x, n_heads);
    }
}

static void score_task(const indexer_task *t, const query *x, uint32_t n_heads, void *scratch)
{
#if DSRI_EXACT_IS_AMX
    tiles_open();
    score_packed_keys(t->row, x, n_heads, task_keys(t, 2 * INTEGER_KEYS), &f32_chain, scratch);
    tiles_close();
#else
    score_packed_keys(t->row, x, n_heads, task_keys(t, 2 * INTEGER_KEYS), &f32_chain, scratch);
#endif
}

static void run(const void *plan, uint32_t phase, uint32_t task, void *scratch)
{
    run_indexer_task(plan, phase, task, scratch, pack_either_query, score_task);
}

static int accepts(const void *plan)
{
    const dsri_indexer_plan *p = plan;
    for (uint32_t r = 0; r < p->n_rows; r++) {
        if (p->rows[r].keys.format != DSR_FORMAT_FP4) {
            return 0;
        }
    }
    return 1;
}

const dsri_cpu_kernel DSRI_EXACT_KERNEL(indexer) = {
    .op = DSRI_OP_INDEXER,
    .isa = DSR_ISA_AVX512,
    .exactness = DSR_EXACT_DEVICE,
    .n_phases = N_PHASES,
    .phase_names = {DSRI_EXACT_KERNEL_NAME("indexer_scores_fp4"), DSRI_EXACT_KERNEL_NAME("indexer_top_k_f32")},
    .n_tasks = n_tasks,
    .run = run,
    .accepts = accepts,
};

#if !DSRI_EXACT_IS_AMX

static void pack_query_or_pairs(const query *x, uint32_t n_heads)
{
    if (!pack_integer_query(x, n_heads, panel_heads(n_heads))) {
        dsri_indexer_fallback__avx512bf16.pack(x, n_heads);
    }
}

static void score_task_beside_bf16(const indexer_task *t, const query *x, uint32_t n_heads, void *scratch)
{
    score_packed_keys(t->row, x, n_heads, task_keys(t, 2 * INTEGER_KEYS), &dsri_indexer_fallback__avx512bf16, scratch);
}

static void run_beside_bf16(const void *plan, uint32_t phase, uint32_t task, void *scratch)
{
    run_indexer_task(plan, phase, task, scratch, pack_query_or_pairs, score_task_beside_bf16);
}

static int accepts_beside_bf16(const void *plan)
{
    return accepts(plan) && dsri_indexer_fallback__avx512bf16.is_usable();
}

const dsri_cpu_kernel DSRI_EXACT_KERNEL(indexer_chains) = {
    .op = DSRI_OP_INDEXER,
    .isa = DSR_ISA_AVX512,
    .exactness = DSR_EXACT_DEVICE,
    .n_phases = N_PHASES,
    .phase_names = {DSRI_EXACT_KERNEL_NAME("indexer_scores_fp4") "_bf16",
                    DSRI_EXACT_KERNEL_NAME("indexer_top_k_f32") "_bf16"},
    .n_tasks = n_tasks,
    .run = run_beside_bf16,
    .accepts = accepts_beside_bf16,
};

#endif
