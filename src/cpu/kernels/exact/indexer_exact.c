/* Lightning indexer over FP4 keys, device-exact, on units that multiply bytes: where query and keys are small integers
 * times powers of two, which the official rounding makes them, their dot products are exact in any order. Blocks with
 * any other key, and queries of another kind, take the chain. Tasks and selection are those of the chain's kernel. */
#include "cpu/kernels/exact/exact_unit.h"
#include "cpu/kernels/exact/integer_keys.h"
#include "cpu/kernels/exact/integer_query.h"
#include "cpu/kernels/indexer_chain.h"
#if DSRI_EXACT_IS_AMX
#include "cpu/kernels/row/tiles.h"
#endif

#include <dsrows/cache.h>

enum { KEY_BIAS = DSRI_EXACT_IS_AMX ? 0 : 128, MAX_PANEL_HEADS = MAX_PANEL_VECTORS * VF_LANES };

typedef struct exact_scratch {
    uint8_t keys[BLOCK_KEYS * DSRI_INDEX_DIM];
    float units[BLOCK_KEYS];
#if DSRI_EXACT_IS_AMX
    int32_t dots[TILE_ROWS * MAX_PANEL_HEADS]; /* [key][head of the panel] */
#endif
    score_scratch chain;
} exact_scratch;

_Static_assert(sizeof(exact_scratch) <= DSRI_SCRATCH_BYTES, "scratch too small");

/* One panel of the query. */
typedef struct integer_panel {
    const uint32_t *words;
    const int32_t *query_sums; /* of the first vector of heads, the next ones vector_step on, as weights */
    const float *weights;
    uint32_t vector_step;
} integer_panel;

/* Keys [first, + n) as bytes, and zeros up to a whole block. 0: some key is of another kind. */
static int load_integer_keys(const dsri_cache *cache, uint64_t first, uint32_t n, uint64_t end, exact_scratch *s)
{
    for (uint32_t t = 0; t < n; t++) {
        if (first + t + BLOCK_KEYS < end) {
            prefetch_key(cache, first + t + BLOCK_KEYS);
        }
        if (!load_integer_key(cache, first + t, KEY_BIAS, s->keys + t * DSRI_INDEX_DIM, s->units + t)) {
            return 0;
        }
    }
    memset(s->keys + n * DSRI_INDEX_DIM, 0, (BLOCK_KEYS - n) * DSRI_INDEX_DIM);
    memset(s->units + n, 0, (BLOCK_KEYS - n) * sizeof *s->units);
    return 1;
}

#if DSRI_EXACT_IS_AMX

/* sums of TILE_ROWS keys. */
static inline __attribute__((always_inline)) void score_rows(int n_vectors, const uint8_t *keys, const integer_panel *p,
                                                             int32_t *dots, float *sums)
{
    const uint32_t width = (uint32_t)n_vectors * VF_LANES;
    const size_t row_bytes = width * sizeof(int32_t);
    const uint32_t *odd = p->words + (size_t)TILE_ROWS * width;
    tile_load(4, keys, DSRI_INDEX_DIM);
    tile_load(5, keys + TILE_ROW_BYTES, DSRI_INDEX_DIM);
#define PRODUCTS(c, b)                                                                                                 \
    tile_zero(c);                                                                                                      \
    tile_load(b, p->words + (c)*VF_LANES, row_bytes);                                                                  \
    tile_byte_dots(c, 4, b);                                                                                           \
    tile_load(b, odd + (c)*VF_LANES, row_bytes);                                                                       \
    tile_byte_dots(c, 5, b);                                                                                           \
    tile_store(c, dots + (c)*VF_LANES, row_bytes);
    PRODUCTS(0, 6)
    PRODUCTS(1, 7)
    if (n_vectors == 4) {
        PRODUCTS(2, 6)
        PRODUCTS(3, 7)
    }
#undef PRODUCTS
    for (int t = 0; t < TILE_ROWS; t++) {
        vf x[4];
        VEC_UNROLL
        for (int v = 0; v < n_vectors; v++) {
            const vi dot =
                _mm512_max_epi32(vi_load((const void *)(dots + t * (int)width + v * VF_LANES)), _mm512_setzero_si512());
            x[v] = vf_mul(_mm512_cvtepi32_ps(dot), vf_load(p->weights + (uint32_t)v * p->vector_step));
        }
        vf sum = vf_add(x[0], x[n_vectors / 2]);
        if (n_vectors == 4) {
            sum = vf_add(sum, vf_add(x[1], x[3]));
        }
        vf_store(sums + t * VF_LANES, sum);
    }
}

static void score_panel(int n_vectors, exact_scratch *s, const integer_panel *p, float *sums)
{
    for (uint32_t t = 0; t < BLOCK_KEYS; t += TILE_ROWS) {
        if (n_vectors == 4) {
            score_rows(4, s->keys + t * DSRI_INDEX_DIM, p, s->dots, sums + t * VF_LANES);
        } else {
            score_rows(2, s->keys + t * DSRI_INDEX_DIM, p, s->dots, sums + t * VF_LANES);
        }
    }
}

#else

/* The compilers' own function has gcc 12 copy every sum in every step. */
static inline void add_byte_dots(vi *sum, vi unsigned_bytes, vi signed_bytes)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(unsigned_bytes), "v"(signed_bytes));
}

/* sums of TILE_KEYS keys. */
static inline __attribute__((always_inline)) void score_keys_of_tile(int n_vectors, const uint8_t *keys,
                                                                     const integer_panel *p, float *sums)
{
    vi acc[TILE_KEYS][4];
    vf dots[TILE_KEYS][4];
    VEC_UNROLL
    for (int v = 0; v < n_vectors; v++) {
        /* The bytes of the keys are KEY_BIAS too large. */
        const vi query_sum = vi_load((const void *)(p->query_sums + (uint32_t)v * p->vector_step));
        const vi start = vi_sub(_mm512_setzero_si512(), vi_shl(query_sum, 7));
        VEC_UNROLL
        for (int j = 0; j < TILE_KEYS; j++) {
            acc[j][v] = start;
        }
    }
    for (int g = 0; g < QUERY_WORDS; g++) {
        vi q[4];
        VEC_UNROLL
        for (int v = 0; v < n_vectors; v++) {
            q[v] = vi_load(p->words + (g * n_vectors + v) * VF_LANES);
        }
        VEC_UNROLL
        for (int j = 0; j < TILE_KEYS; j++) {
            uint32_t four;
            memcpy(&four, keys + j * DSRI_INDEX_DIM + 4 * g, sizeof four);
            const vi k = vi_set1(four);
            VEC_UNROLL
            for (int v = 0; v < n_vectors; v++) {
                add_byte_dots(&acc[j][v], k, q[v]);
            }
        }
    }
    VEC_UNROLL
    for (int j = 0; j < TILE_KEYS; j++) {
        VEC_UNROLL
        for (int v = 0; v < n_vectors; v++) {
            dots[j][v] = _mm512_cvtepi32_ps(acc[j][v]);
        }
    }
    add_weighted(n_vectors, dots, p->weights, p->vector_step, sums);
}

static void score_panel(int n_vectors, exact_scratch *s, const integer_panel *p, float *sums)
{
    for (uint32_t t = 0; t < BLOCK_KEYS; t += TILE_KEYS) {
        if (n_vectors == 4) {
            score_keys_of_tile(4, s->keys + t * DSRI_INDEX_DIM, p, sums + t * VF_LANES);
        } else {
            score_keys_of_tile(2, s->keys + t * DSRI_INDEX_DIM, p, sums + t * VF_LANES);
        }
    }
}

#endif

/* Scores of the n keys of a block, loaded before. */
static void score_integer_block(const query *x, const integer_query *y, uint32_t n_heads, uint64_t first, uint32_t n,
                                exact_scratch *s)
{
    const uint32_t width = panel_heads(n_heads), n_panels = n_heads / width;
    for (uint32_t i = 0; i < n_panels; i++) {
        const integer_panel p = {y->words + (size_t)i * QUERY_WORDS * width, y->sums + i * VF_LANES,
                                 y->weights + i * VF_LANES, n_panels * VF_LANES};
        score_panel((int)panel_vectors(n_heads), s, &p, s->chain.sums + i * BLOCK_KEYS * VF_LANES);
    }
    finish_block(&s->chain, s->units, n_panels, n);
    store_block(x, &s->chain, first, n);
}

/* Scores first..end - 1 of a query: -inf from n_causal on. first is a multiple of BLOCK_KEYS. */
static void score_packed_keys(const dsri_indexer_row_plan *row, const query *x, uint32_t n_heads, key_range keys,
                              exact_scratch *s)
{
    const integer_query y = integer_query_of(x, n_heads);
    const uint64_t end_causal = keys.end < x->n_causal ? keys.end : x->n_causal;
    uint64_t t = keys.first;
    while (*y.is_exact && t < end_causal) {
        const uint32_t n = end_causal - t < BLOCK_KEYS ? (uint32_t)(end_causal - t) : BLOCK_KEYS;
        if (load_integer_keys(&row->keys, t, n, end_causal, s)) {
            score_integer_block(x, &y, n_heads, t, n, s);
        } else {
            score_keys(row, x, n_heads, t, t + n, &s->chain);
        }
        t += n;
    }
    score_keys(row, x, n_heads, t, keys.end, &s->chain);
}

static void run(const void *plan, uint32_t phase, uint32_t task, void *scratch)
{
    const dsri_indexer_plan *p = plan;
    const indexer_task t = find_task(p, phase, task);
    const query x = query_of(p, t.row, t.index);

    if (phase == PHASE_PACK) {
        pack_query(&x, p->n_heads);
        pack_integer_query(&x, p->n_heads, panel_heads(p->n_heads));
    } else if (phase == PHASE_SCORE) {
#if DSRI_EXACT_IS_AMX
        tiles_open();
        score_packed_keys(t.row, &x, p->n_heads, task_keys(&t), scratch);
        tiles_close();
#else
        score_packed_keys(t.row, &x, p->n_heads, task_keys(&t), scratch);
#endif
    } else {
        select_keys(p, &t, &x, scratch);
    }
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
    .phase_names = {DSRI_EXACT_KERNEL_NAME("indexer_pack_fp4"), DSRI_EXACT_KERNEL_NAME("indexer_scores_fp4"),
                    DSRI_EXACT_KERNEL_NAME("indexer_top_k_f32")},
    .n_tasks = n_tasks,
    .run = run,
    .accepts = accepts,
};
