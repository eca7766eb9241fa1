/* Lightning indexer: pack the queries, score tiles of keys, select.
 *
 * Lanes are heads. Keys are widened in blocks that stay in the cache while the panels of the packed query pass; the
 * inner loop keeps the products of one panel with TILE_KEYS keys in registers. The sum over heads starts with heads in
 * different vectors, and ends across lanes for VF_LANES keys at once. */
#include "cpu/kernels/top_k.h"
#include "ops/op_plans.h"

enum {
    PANEL_VECTORS = 2,
    PANEL_HEADS = PANEL_VECTORS * VF_LANES,
    TILE_KEYS = DSRI_VEC == DSRI_VEC_avx512 || DSRI_VEC == DSRI_VEC_neon ? 12 : 6,
    BLOCK_KEYS = 48, /* a multiple of TILE_KEYS and of DSRI_SCORE_BLOCK */
    TASK_KEYS = 4 * BLOCK_KEYS,
    HALF_DIM = DSRI_INDEX_DIM / 2,
    MAX_HEADS = 128,
    LINE_BF16 = 32 /* BF16 in a cache line */
};

enum { PHASE_PACK, PHASE_SCORE, PHASE_SELECT, N_PHASES };

typedef struct score_scratch {
    float keys[BLOCK_KEYS * DSRI_INDEX_DIM]; /* [key][even features, then odd ones] */
    float sums[MAX_HEADS / 2 * BLOCK_KEYS];  /* [panel][key][lane]: sums over the panel's vectors */
    float scores[BLOCK_KEYS];
} score_scratch;

_Static_assert(sizeof(score_scratch) <= DSRI_SCRATCH_BYTES, "scratch");

/* One query of a row. */
typedef struct query {
    const uint16_t *q;
    const float *weights;
    uint64_t n_causal;
    float *packed_q; /* [panel][feature][PANEL_HEADS] */
    float *scores;
    float *block_maxima;
    uint64_t n_blocks;
} query;

static uint64_t causal_keys(const dsri_indexer_row_plan *row, uint32_t i)
{
    return ((uint64_t)row->start_pos + i + 1) / row->ratio;
}

static query query_of(const dsri_indexer_plan *plan, const dsri_indexer_row_plan *row, uint32_t i)
{
    const dsri_indexer_region region =
        dsri_indexer_region_of(causal_keys(row, row->n_queries - 1), plan->n_heads, plan->top_k);
    uint8_t *base = row->workspace + i * region.size_bytes;
    query x;
    x.q = row->q + (size_t)i * plan->n_heads * DSRI_INDEX_DIM;
    x.weights = row->weights + (size_t)i * plan->n_heads;
    x.n_causal = causal_keys(row, i);
    x.packed_q = (void *)(base + region.packed_q);
    x.scores = row->scores ? row->scores + i * row->kv_len : (void *)(base + region.scores);
    x.block_maxima = (void *)(base + region.block_maxima);
    x.n_blocks = region.n_blocks;
    return x;
}

/* ---- tasks: one query each, and for the scores one range of keys of a query --------------------------------- */

/* Scores that each query of the row writes. */
static uint64_t row_scores(const dsri_indexer_row_plan *row)
{
    return row->scores ? row->kv_len : causal_keys(row, row->n_queries - 1);
}

/* Keys of a score task: more than TASK_KEYS only where the tasks of 64 such rows might pass 2^32. */
static uint64_t task_keys(const dsri_indexer_row_plan *row)
{
    const uint64_t max_tasks = (UINT64_C(1) << 25) / row->n_queries + 1;
    const uint64_t n_tasks = (row_scores(row) + TASK_KEYS - 1) / TASK_KEYS;
    return TASK_KEYS * ((n_tasks + max_tasks - 1) / max_tasks + (n_tasks == 0));
}

static uint64_t query_tasks(const dsri_indexer_row_plan *row, uint32_t phase)
{
    return phase == PHASE_SCORE ? (row_scores(row) + task_keys(row) - 1) / task_keys(row) : 1;
}

static uint32_t n_tasks(const void *plan, uint32_t phase)
{
    const dsri_indexer_plan *p = plan;
    uint64_t n = 0;
    for (uint32_t r = 0; r < p->n_rows; r++) {
        n += p->rows[r].n_queries * query_tasks(&p->rows[r], phase);
    }
    return (uint32_t)n;
}

/* ---- pack --------------------------------------------------------------------------------------------------- */

/* Vectors v and v + n_panels form panel v, so that the panel's own sum is the first step of the halving over heads. */
static float *packed_vector(const query *x, uint32_t n_heads, uint32_t vector, uint32_t feature)
{
    const uint32_t n_panels = n_heads / PANEL_HEADS;
    return x->packed_q + ((size_t)(vector % n_panels) * DSRI_INDEX_DIM + feature) * PANEL_HEADS +
           vector / n_panels * VF_LANES;
}

static void pack_query(const query *x, uint32_t n_heads)
{
    for (uint32_t v = 0; v < n_heads / VF_LANES; v++) {
        const uint16_t *q = x->q + (size_t)v * VF_LANES * DSRI_INDEX_DIM;
        for (uint32_t f = 0; f < DSRI_INDEX_DIM; f += 2 * VF_LANES) {
            vi pairs[VF_LANES];
            for (int i = 0; i < VF_LANES; i++) {
                pairs[i] = vi_load((const void *)(q + i * DSRI_INDEX_DIM + f));
            }
            vi_transpose(pairs);
            for (uint32_t i = 0; i < VF_LANES; i++) {
                vi_store((void *)packed_vector(x, n_heads, v, f + 2 * i), vi_shl(pairs[i], 16));
                vi_store((void *)packed_vector(x, n_heads, v, f + 2 * i + 1), vi_and(pairs[i], vi_set1(0xffff0000u)));
            }
        }
    }
}

/* ---- scores ------------------------------------------------------------------------------------------------- */

/* Widens n keys and fills the last tile up with zeros. */
static void widen_keys(score_scratch *s, const uint16_t *keys, uint64_t stride, uint32_t n)
{
    uint32_t t = 0;
    for (; t < n; t++) {
        const uint16_t *key = keys + t * stride;
        float *wide = s->keys + t * DSRI_INDEX_DIM;
        for (int f = 0; f < HALF_DIM; f += VF_LANES) {
            vf even, odd;
            vf_load_bf16_pairs(key + 2 * f, &even, &odd);
            vf_store(wide + f, even);
            vf_store(wide + HALF_DIM + f, odd);
        }
    }
    for (; t % TILE_KEYS != 0; t++) {
        memset(s->keys + t * DSRI_INDEX_DIM, 0, DSRI_INDEX_DIM * sizeof(float));
    }
}

/* dot > 0 ? dot : +0, and NaN where dot is not finite. */
static inline vf relu(vf dot)
{
    return vf_fma(dot, vf_zero(), vf_max(dot, vf_zero()));
}

/* Sums over the panel's vectors of weight * relu(dot) for TILE_KEYS keys. w: the weights of the two vectors. `ahead`:
 * 16 keys that will be wanted soon. */
static inline void score_tile(const float *keys, const float *panel, vf w0, vf w1, float *sums, const uint16_t *ahead,
                              uint64_t ahead_stride)
{
    vf dot0[TILE_KEYS], dot1[TILE_KEYS];
#pragma GCC unroll 12
    for (int j = 0; j < TILE_KEYS; j++) {
        dot0[j] = dot1[j] = vf_zero();
    }
    for (int f = 0; f < HALF_DIM; ahead += ahead_stride) {
        for (int line = 0; line < 4; line++, f++, panel += 2 * PANEL_HEADS) {
            vec_prefetch(ahead + line * LINE_BF16);
            vf q0 = vf_load(panel), q1 = vf_load(panel + VF_LANES);
#pragma GCC unroll 12
            for (int j = 0; j < TILE_KEYS; j++) {
                const vf k = vf_set1(keys[j * DSRI_INDEX_DIM + f]);
                dot0[j] = vf_fma(k, q0, dot0[j]);
                dot1[j] = vf_fma(k, q1, dot1[j]);
            }
            q0 = vf_load(panel + PANEL_HEADS), q1 = vf_load(panel + PANEL_HEADS + VF_LANES);
#pragma GCC unroll 12
            for (int j = 0; j < TILE_KEYS; j++) {
                const vf k = vf_set1(keys[j * DSRI_INDEX_DIM + HALF_DIM + f]);
                dot0[j] = vf_fma(k, q0, dot0[j]);
                dot1[j] = vf_fma(k, q1, dot1[j]);
            }
        }
    }
#pragma GCC unroll 12
    for (int j = 0; j < TILE_KEYS; j++) {
        vf_store(sums + j * VF_LANES, vf_add(vf_mul(relu(dot0[j]), w0), vf_mul(relu(dot1[j]), w1)));
    }
}

/* Scores of the n keys in the block, from the sums per panel. */
static void finish_block(score_scratch *s, uint32_t n_panels, uint32_t n)
{
    const uint32_t panel_size = BLOCK_KEYS * VF_LANES;
    for (uint32_t half = n_panels / 2; half > 0; half /= 2) {
        for (uint32_t i = 0; i < half * panel_size; i += VF_LANES) {
            vf_store(s->sums + i, vf_add(vf_load(s->sums + i), vf_load(s->sums + half * panel_size + i)));
        }
    }
    for (uint32_t t = 0; t < BLOCK_KEYS; t += VF_LANES) {
        vf x[VF_LANES];
        for (uint32_t j = 0; j < VF_LANES; j++) {
            x[j] = vf_load(s->sums + (t + j) * VF_LANES);
        }
        const vf sum = vf_halving_sums(x);
        vf_store(s->scores + t, vf_select(vm_not_finite(sum), vf_set1(-INFINITY), sum));
    }
    for (uint32_t t = n; t < BLOCK_KEYS; t++) {
        s->scores[t] = -INFINITY;
    }
}

/* Scores of the keys first..first + n - 1, n at most BLOCK_KEYS. The next block is wanted soon if `more`. */
static void score_block(const dsri_indexer_row_plan *row, const query *x, uint32_t n_heads, uint64_t first, uint32_t n,
                        int more, score_scratch *s)
{
    const uint32_t n_panels = n_heads / PANEL_HEADS, n_tiles = (n + TILE_KEYS - 1) / TILE_KEYS;
    const uint16_t *keys = row->keys + first * row->key_row_stride;
    uint32_t n_ahead = more ? BLOCK_KEYS : 0;
    const uint16_t *ahead = keys + n_ahead * row->key_row_stride;

    widen_keys(s, keys, row->key_row_stride, n);
    for (uint32_t p = 0; p < n_panels; p++) {
        const float *panel = x->packed_q + (size_t)p * DSRI_INDEX_DIM * PANEL_HEADS;
        const vf w0 = vf_load(x->weights + p * VF_LANES);
        const vf w1 = vf_load(x->weights + (p + n_panels) * VF_LANES);
        for (uint32_t t = 0; t < n_tiles; t++) {
            float *sums = s->sums + (p * BLOCK_KEYS + t * TILE_KEYS) * VF_LANES;
            score_tile(s->keys + t * TILE_KEYS * DSRI_INDEX_DIM, panel, w0, w1, sums, ahead,
                       n_ahead ? row->key_row_stride : 0);
            if (n_ahead) {
                n_ahead -= 16;
                ahead += 16 * row->key_row_stride;
            }
        }
    }
    finish_block(s, n_panels, n);

    memcpy(x->scores + first, s->scores, n * sizeof(float));
    for (uint32_t t = 0; t < n; t += DSRI_SCORE_BLOCK) {
        vf m = vf_load(s->scores + t);
        for (int i = VF_LANES; i < DSRI_SCORE_BLOCK; i += VF_LANES) {
            m = vf_max(m, vf_load(s->scores + t + i));
        }
        x->block_maxima[(first + t) / DSRI_SCORE_BLOCK] = vf_max_lane(m);
    }
}

/* Scores first..end - 1 of a query: -inf from n_causal on. */
static void score_keys(const dsri_indexer_row_plan *row, const query *x, uint32_t n_heads, uint64_t first, uint64_t end,
                       score_scratch *s)
{
    const uint64_t end_causal = end < x->n_causal ? end : x->n_causal;
    while (first < end_causal) {
        const uint64_t left = end_causal - first;
        const uint32_t n = left < BLOCK_KEYS ? (uint32_t)left : BLOCK_KEYS;
        score_block(row, x, n_heads, first, n, left >= 2 * BLOCK_KEYS, s);
        first += n;
    }
    for (; first < end; first++) {
        x->scores[first] = -INFINITY;
    }
}

/* ---- kernel ------------------------------------------------------------------------------------------------- */

static void run(const void *plan, uint32_t phase, uint32_t task, void *scratch)
{
    const dsri_indexer_plan *p = plan;
    const dsri_indexer_row_plan *row = p->rows;
    uint64_t left = task;
    for (; left >= row->n_queries * query_tasks(row, phase); row++) {
        left -= row->n_queries * query_tasks(row, phase);
    }
    const uint64_t tasks = query_tasks(row, phase);
    const uint32_t i = (uint32_t)(left / tasks);
    const query x = query_of(p, row, i);

    if (phase == PHASE_PACK) {
        pack_query(&x, p->n_heads);
    } else if (phase == PHASE_SCORE) {
        const uint64_t first = left % tasks * task_keys(row), end = first + task_keys(row);
        score_keys(row, &x, p->n_heads, first, end < row_scores(row) ? end : row_scores(row), scratch);
    } else {
        select_top_k(x.scores, x.n_causal, x.block_maxima, x.n_blocks, p->top_k, row->offset,
                     row->output + i * row->output_stride, scratch);
    }
}

const dsri_cpu_kernel DSRI_KERNEL(indexer) = {
    .op = DSRI_OP_INDEXER,
    .isa = DSRI_ISA_ENUM,
    .exactness = DSR_EXACT_DEVICE,
    .n_phases = N_PHASES,
    .phase_names = {DSRI_KERNEL_NAME("indexer_pack_bf16"), DSRI_KERNEL_NAME("indexer_scores_bf16"),
                    DSRI_KERNEL_NAME("indexer_top_k_f32")},
    .n_tasks = n_tasks,
    .run = run,
};
