/* Lightning indexer, row-exact: BF16 dot products in hardware. Tasks and selection are those of the device-exact
 * kernel.
 *
 * The packed query is [panel][feature pair][head of the panel], a word per pair: the unit multiplies it with keys as
 * they lie in the cache. Of a key, lane l of its sums takes every 16th head from l on; the lanes are then added by
 * halving. */
#include "cpu/kernels/cache_rows.h"
#include "cpu/kernels/indexer_query.h"
#include "cpu/kernels/row/pairs.h"
#include "cpu/kernels/row/row_kernel.h"
#if DSRI_ROW_IS_AMX
#include "cpu/kernels/row/tiles.h"
#else
#include "cpu/kernels/row/dots_avx512bf16.h"
#endif

enum {
    FEATURE_PAIRS = DSRI_INDEX_DIM / 2,
    MAX_PANEL_HEADS = 64,
    TILE_KEYS = DSRI_ROW_IS_AMX ? 32 : 12,
    BLOCK_KEYS = DSRI_ROW_IS_AMX ? 64 : 48 /* a multiple of TILE_KEYS and of DSRI_SCORE_BLOCK */
};

typedef struct score_scratch {
    float dots[2][TILE_KEYS * MAX_PANEL_HEADS]; /* [key][head of the panel] */
    float sums[BLOCK_KEYS * VF_LANES];
    float scores[BLOCK_KEYS];
    float maxima[BLOCK_KEYS / DSRI_SCORE_BLOCK];
    uint16_t keys[BLOCK_KEYS * DSRI_INDEX_DIM];
} score_scratch;

_Static_assert(sizeof(score_scratch) <= DSRI_SCRATCH_BYTES && TASK_KEYS % BLOCK_KEYS == 0, "scratch, blocks of a task");

static inline uint32_t panel_heads(uint32_t n_heads)
{
    return n_heads < MAX_PANEL_HEADS ? n_heads : MAX_PANEL_HEADS;
}

static void pack_query(const query *x, uint32_t n_heads)
{
    const uint32_t width = panel_heads(n_heads);
    for (uint32_t h = 0; h < n_heads; h += VF_LANES) {
        uint32_t *panel = (uint32_t *)(void *)x->packed_q + (size_t)(h / width) * FEATURE_PAIRS * width;
        pack_head_pairs(x->q + (size_t)h * DSRI_INDEX_DIM, DSRI_INDEX_DIM, DSRI_INDEX_DIM, width, panel + h % width);
    }
}

/* Keys that will be read next, n of them. */
typedef struct keys_ahead {
    const uint16_t *keys;
    uint64_t stride;
    uint64_t n;
} keys_ahead;

static inline void prefetch_keys(const keys_ahead *ahead, uint64_t first, uint64_t n)
{
    for (uint64_t t = first; t < first + n && t < ahead->n; t++) {
        for (int f = 0; f < DSRI_INDEX_DIM; f += 32) {
            vec_prefetch(ahead->keys + t * ahead->stride + f);
        }
    }
}

/* One panel of the query. */
typedef struct query_panel {
    const uint32_t *packed;
    const float *weights;
    uint32_t width; /* 32 or 64 heads */
    int is_first;   /* sums start with it */
} query_panel;

/* sums [VF_LANES] of a key, from its dots with the n_vectors vectors of a panel. */
static inline __attribute__((always_inline)) void add_weighted(int n_vectors, const vf *dots, const query_panel *p,
                                                               float *sums)
{
    vf sum = p->is_first ? vf_zero() : vf_load(sums);
    VEC_UNROLL
    for (int v = 0; v < n_vectors; v++) {
        sum = vf_fma(vf_relu(dots[v]), vf_load(p->weights + v * VF_LANES), sum);
    }
    vf_store(sums, sum);
}

#if DSRI_ROW_IS_AMX

/* Dots of TILE_KEYS keys with 32 heads; dots and panel are `width` words wide. */
static inline void tile_products(const uint16_t *keys, size_t key_bytes, const uint32_t *panel, uint32_t width,
                                 float *dots)
{
    const size_t row_bytes = width * sizeof(float);
    const unsigned char *key = (const void *)keys;
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    for (int i = 0; i < FEATURE_PAIRS / TILE_ROWS; i++) {
        tile_load(4, key, key_bytes);
        tile_load(6, panel, row_bytes);
        tile_dots(0, 4, 6);
        tile_load(7, panel + VF_LANES, row_bytes);
        tile_dots(1, 4, 7);
        tile_load(5, key + TILE_ROWS * key_bytes, key_bytes);
        tile_dots(2, 5, 6);
        tile_dots(3, 5, 7);
        key += TILE_ROW_BYTES;
        panel += (size_t)TILE_ROWS * width;
    }
    tile_store(0, dots, row_bytes);
    tile_store(1, dots + VF_LANES, row_bytes);
    tile_store(2, dots + (size_t)TILE_ROWS * width, row_bytes);
    tile_store(3, dots + (size_t)TILE_ROWS * width + VF_LANES, row_bytes);
}

static inline __attribute__((always_inline)) void weigh_dots(int n_vectors, const float *dots, const query_panel *p,
                                                             float *sums)
{
    for (int j = 0; j < TILE_KEYS; j++) {
        vf x[4];
        VEC_UNROLL
        for (int v = 0; v < n_vectors; v++) {
            x[v] = vf_load(dots + v * VF_LANES);
        }
        add_weighted(n_vectors, x, p, sums + j * VF_LANES);
        dots += n_vectors * VF_LANES;
    }
}

static inline void weigh_tile(const float *dots, const query_panel *p, float *sums)
{
    if (p->width == MAX_PANEL_HEADS) {
        weigh_dots(4, dots, p, sums);
    } else {
        weigh_dots(2, dots, p, sums);
    }
}

/* Sums of n keys (rounded up to TILE_KEYS). A tile's dots are weighed while the tiles after it are multiplied,
 * and as many keys ahead are prefetched. */
static void score_panel(const query_panel *p, const uint16_t *keys, size_t stride, uint32_t n, const keys_ahead *ahead,
                        score_scratch *s)
{
    for (uint32_t t = 0; t < n; t += TILE_KEYS) {
        prefetch_keys(ahead, t, TILE_KEYS);
        float *const dots = s->dots[t / TILE_KEYS % 2];
        for (uint32_t h = 0; h < p->width; h += 2 * VF_LANES) {
            tile_products(keys + t * stride, stride * sizeof *keys, p->packed + h, p->width, dots + h);
        }
        if (t > 0) {
            weigh_tile(s->dots[(t / TILE_KEYS + 1) % 2], p, s->sums + (t - TILE_KEYS) * VF_LANES);
        }
    }
    const uint32_t last = (n - 1) / TILE_KEYS;
    weigh_tile(s->dots[last % 2], p, s->sums + last * TILE_KEYS * VF_LANES);
}

#else

static inline __attribute__((always_inline)) void score_tile(int n_vectors, const uint16_t *keys, size_t stride,
                                                             const query_panel *p, float *sums)
{
    const int n_keys = MAX_DOT_ACCUMULATORS / n_vectors;
    vf dots[MAX_DOT_ACCUMULATORS];
    VEC_UNROLL
    for (int i = 0; i < MAX_DOT_ACCUMULATORS; i++) {
        dots[i] = vf_zero();
    }
    add_dots(n_keys, n_vectors, keys, stride / 2, p->packed, (size_t)n_vectors * VF_LANES, FEATURE_PAIRS, dots);
    VEC_UNROLL
    for (int j = 0; j < n_keys; j++) {
        add_weighted(n_vectors, dots + j * n_vectors, p, sums + j * VF_LANES);
    }
}

static __attribute__((noinline)) void score_6_keys(const uint16_t *keys, const query_panel *p, float *sums)
{
    score_tile(4, keys, DSRI_INDEX_DIM, p, sums);
}

static __attribute__((noinline)) void score_12_keys(const uint16_t *keys, const query_panel *p, float *sums)
{
    score_tile(2, keys, DSRI_INDEX_DIM, p, sums);
}

/* Sums of n keys (rounded up to TILE_KEYS) that lie side by side. Prefetches the keys ahead, tile by tile. */
static void score_panel(const query_panel *p, const uint16_t *keys, size_t stride, uint32_t n, const keys_ahead *ahead,
                        score_scratch *s)
{
    const uint32_t step = p->width == MAX_PANEL_HEADS ? 6 : 12;
    (void)stride;
    for (uint32_t t = 0; t < n; t += step) {
        prefetch_keys(ahead, t, step);
        (step == 6 ? score_6_keys : score_12_keys)(keys + t * DSRI_INDEX_DIM, p, s->sums + t * VF_LANES);
    }
}

#endif

/* Keys of a block, rounded up to TILE_KEYS. */
typedef struct block_keys {
    const uint16_t *keys;
    uint64_t stride;
    keys_ahead ahead;
} block_keys;

/* Keys [t, + n), after which n_after more of the query follow: where they lie, or else loaded into the scratch, with
 * zeros for what the last tile lacks. */
static block_keys find_keys(const dsri_cache *cache, uint64_t t, uint32_t n, uint64_t n_after, score_scratch *s)
{
    const uint32_t n_padded = (n + TILE_KEYS - 1) / TILE_KEYS * TILE_KEYS;
    const uint64_t stride = cache->row_stride / sizeof(uint16_t);
    if (dsri_cache_is_plain(cache) && n == n_padded && (DSRI_ROW_IS_AMX || stride == DSRI_INDEX_DIM)) {
        const uint16_t *keys = (const uint16_t *)(const void *)cache->pages + t * stride;
        return (block_keys){keys, stride, {keys + n * stride, stride, n_after}};
    }
    load_keys(cache, t, n, t + n + n_after, s->keys);
    memset(s->keys + n * DSRI_INDEX_DIM, 0, (size_t)(n_padded - n) * DSRI_INDEX_DIM * sizeof(uint16_t));
    return (block_keys){s->keys, DSRI_INDEX_DIM, {NULL, 0, 0}};
}

/* Scores of a block of n <= BLOCK_KEYS keys. */
static void score_block(const query *x, uint32_t n_heads, block_keys b, uint32_t n, score_scratch *s)
{
    const uint32_t width = panel_heads(n_heads);
    for (uint32_t h = 0; h < n_heads; h += width) {
        const query_panel p = {(const uint32_t *)(const void *)x->packed_q + (size_t)h * FEATURE_PAIRS, x->weights + h,
                               width, h == 0};
        score_panel(&p, b.keys, b.stride, n, &b.ahead, s);
        b.ahead.n = 0;
    }
    finish_scores(s->sums, BLOCK_KEYS, n, s->scores, s->maxima);
}

/* Scores of a range of keys of a query: -inf from n_causal on. */
static void score_keys(const dsri_indexer_row_plan *row, const query *x, uint32_t n_heads, key_range keys,
                       score_scratch *s)
{
    const uint64_t end_causal = keys.end < x->n_causal ? keys.end : x->n_causal;
    uint64_t t = keys.first;
    while (t < end_causal) {
        const uint32_t n = end_causal - t < BLOCK_KEYS ? (uint32_t)(end_causal - t) : BLOCK_KEYS;
        score_block(x, n_heads, find_keys(&row->keys, t, n, x->n_causal - t - n, s), n, s);
        memcpy(x->scores + t, s->scores, n * sizeof(float));
        memcpy(x->block_maxima + t / DSRI_SCORE_BLOCK, s->maxima,
               (n + DSRI_SCORE_BLOCK - 1) / DSRI_SCORE_BLOCK * sizeof(float));
        t += n;
    }
    for (; t < keys.end; t++) {
        x->scores[t] = -INFINITY;
    }
}

static void run(const void *plan, uint32_t phase, uint32_t task, void *scratch)
{
    const dsri_indexer_plan *p = plan;
    const indexer_task t = find_task(p, phase, task);
    const query x = query_of(p, t.row, t.index);

    if (phase == PHASE_PACK) {
        pack_query(&x, p->n_heads);
    } else if (phase == PHASE_SCORE) {
#if DSRI_ROW_IS_AMX
        tiles_open();
        score_keys(t.row, &x, p->n_heads, task_keys(&t), scratch);
        tiles_close();
#else
        score_keys(t.row, &x, p->n_heads, task_keys(&t), scratch);
#endif
    } else {
        select_keys(p, &t, &x, scratch);
    }
}

const dsri_cpu_kernel DSRI_ROW_KERNEL(indexer) = {
    .op = DSRI_OP_INDEXER,
    .isa = DSR_ISA_AVX512,
    .exactness = DSR_EXACT_ROW,
    .n_phases = N_PHASES,
    .phase_names = {DSRI_ROW_KERNEL_NAME("indexer_pack_bf16"), DSRI_ROW_KERNEL_NAME("indexer_scores_bf16"),
                    DSRI_ROW_KERNEL_NAME("indexer_top_k_f32")},
    .n_tasks = n_tasks,
    .run = run,
};
