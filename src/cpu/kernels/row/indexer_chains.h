/* Scores on AVX512-BF16 with the device-exact bits (chains.h).
 *
 * The packed query is [panel][feature pair][head of the panel], a word per pair, halves exchanged. A panel has 32 or 64
 * heads, 16 to a vector; vectors of heads go to the panels in turn, so that the sum over heads by halving is one over
 * the vectors of a panel, then over panels, then over lanes. */
#ifndef DSRI_ROW_INDEXER_CHAINS_H
#define DSRI_ROW_INDEXER_CHAINS_H

#include "cpu/kernels/row/chains.h"
#include "cpu/kernels/row/indexer_panels.h"

#define SCORES_EXACTNESS DSR_EXACT_DEVICE

enum {
    MAX_PANEL_VECTORS = 4,
    MAX_PANELS = MAX_HEADS / (MAX_PANEL_VECTORS * VF_LANES),
    MAX_TILE_KEYS = MAX_DOT_ACCUMULATORS / 2,
    BLOCK_KEYS = 48 /* a multiple of DSRI_SCORE_BLOCK and of the keys of a tile */
};

typedef struct score_scratch {
    uint32_t keys[MAX_TILE_KEYS * FEATURE_PAIRS];  /* of a tile, halves exchanged */
    uint16_t loaded[BLOCK_KEYS * DSRI_INDEX_DIM];  /* unless the cache is plain */
    float sums[MAX_PANELS][BLOCK_KEYS * VF_LANES]; /* [key][lane] */
} score_scratch;

/* How the heads of a query lie in panels. */
typedef struct head_panels {
    uint32_t n_panels;
    uint32_t n_vectors; /* of a panel: 2 or 4 */
    uint32_t width;     /* its heads */
} head_panels;

static head_panels panels_of(uint32_t n_heads)
{
    const uint32_t width = n_heads < MAX_PANEL_VECTORS * VF_LANES ? n_heads : MAX_PANEL_VECTORS * VF_LANES;
    return (head_panels){n_heads / width, width / VF_LANES, width};
}

static void pack_query(const query *x, uint32_t n_heads)
{
    const head_panels panels = panels_of(n_heads);
    uint32_t *const packed = (void *)x->packed_q;
    for (uint32_t h = 0; h < n_heads; h += VF_LANES) {
        const uint32_t vector = h / VF_LANES, panel = vector % panels.n_panels;
        pack_head_pairs(x->q + (size_t)h * DSRI_INDEX_DIM, DSRI_INDEX_DIM, DSRI_INDEX_DIM, panels.width,
                        packed + panel * FEATURE_PAIRS * panels.width + vector / panels.n_panels * VF_LANES);
    }
    for (uint32_t i = 0; i < n_heads * FEATURE_PAIRS; i += VF_LANES) {
        vi_store(packed + i, exchange_halves(vi_load(packed + i)));
    }
}

/* The least exponent that keys may have beside the packed query. */
static uint32_t least_key_exponent(const query *x, uint32_t n_heads)
{
    vi least = all_magnitudes();
    for (uint32_t i = 0; i < n_heads * FEATURE_PAIRS; i += VF_LANES) {
        least = least_magnitudes(least, vi_load((const uint32_t *)(const void *)x->packed_q + i));
    }
    return least_exponent(least_of(least));
}

/* ---- tiles: some keys times a panel ----------------------------------------------------------------------------- */

/* One panel of the query. */
typedef struct panel_operand {
    const uint32_t *packed;
    const float *weights; /* of its first vector */
    uint32_t weight_step; /* from vector to vector */
} panel_operand;

/* sums [VF_LANES] of a key from its dots: weighted, and added by halving over the vectors, 2 or 4, a constant. */
static inline __attribute__((always_inline)) void add_weighted(int n_vectors, const vf *dots, const panel_operand *p,
                                                               float *sums)
{
    vf x[MAX_PANEL_VECTORS];
    VEC_UNROLL
    for (int v = 0; v < n_vectors; v++) {
        x[v] = vf_mul(vf_relu(dots[v]), vf_load(p->weights + (uint32_t)v * p->weight_step));
    }
    VEC_UNROLL
    for (int half = n_vectors / 2; half > 0; half /= 2) {
        VEC_UNROLL
        for (int v = 0; v < half; v++) {
            x[v] = vf_add(x[v], x[v + half]);
        }
    }
    vf_store(sums, x[0]);
}

static inline __attribute__((always_inline)) void score_tile(int n_keys, int n_vectors, const uint32_t *keys,
                                                             const panel_operand *p, float *sums)
{
    vf dots[MAX_DOT_ACCUMULATORS];
    VEC_UNROLL
    for (int i = 0; i < n_keys * n_vectors; i++) {
        dots[i] = vf_zero();
    }
    add_dots(n_keys, n_vectors, keys, FEATURE_PAIRS, p->packed, (size_t)n_vectors * VF_LANES, FEATURE_PAIRS, dots);
    VEC_UNROLL
    for (int j = 0; j < n_keys; j++) {
        add_weighted(n_vectors, dots + j * n_vectors, p, sums + j * VF_LANES);
    }
}

typedef void tile_function(const uint32_t *keys, const panel_operand *p, float *sums);

#define SCORE_TILE(name, n_keys, n_vectors)                                                                            \
    static __attribute__((noinline)) void name(const uint32_t *keys, const panel_operand *p, float *sums)              \
    {                                                                                                                  \
        score_tile(n_keys, n_vectors, keys, p, sums);                                                                  \
    }
SCORE_TILE(score_4_keys, 4, 4)
SCORE_TILE(score_6_keys, 6, 4)
SCORE_TILE(score_8_keys, 8, 2)
SCORE_TILE(score_12_keys, 12, 2)

/* How to score the next tile of n keys that are left, so that as few products as can be are of keys that are not there.
 */
typedef struct tile_shape {
    uint32_t n_keys;
    tile_function *score;
} tile_shape;

static tile_shape next_tile(uint32_t n, uint32_t n_vectors)
{
    const uint32_t few = 16 / n_vectors;
    if (n == few || n == 2 * few) {
        return (tile_shape){few, n_vectors == 4 ? score_4_keys : score_8_keys};
    }
    return (tile_shape){MAX_DOT_ACCUMULATORS / n_vectors, n_vectors == 4 ? score_6_keys : score_12_keys};
}

/* The same by F32 operations, for one key. */
static __attribute__((noinline)) void score_f32(int n_vectors, const uint32_t *key, const panel_operand *p, float *sums)
{
    vf dots[MAX_PANEL_VECTORS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    const uint32_t *packed = p->packed;
    for (int i = 0; i < FEATURE_PAIRS; i++) {
        vf key_even, key_odd;
        vf_from_exchanged(vi_set1(key[i]), &key_even, &key_odd);
        for (int v = 0; v < n_vectors; v++, packed += VF_LANES) {
            vf even, odd;
            vf_from_exchanged(vi_load(packed), &even, &odd);
            dots[v] = vf_fma(key_odd, odd, vf_fma(key_even, even, dots[v]));
        }
    }
    if (n_vectors == MAX_PANEL_VECTORS) {
        add_weighted(MAX_PANEL_VECTORS, dots, p, sums);
    } else {
        add_weighted(2, dots, p, sums);
    }
}

/* ---- blocks of keys --------------------------------------------------------------------------------------------- */

/* Keys that lie `stride` apart, n of them, n_after more after them. */
typedef struct key_block {
    const uint16_t *keys;
    uint64_t stride;
    uint32_t n;
    uint64_t n_after;
} key_block;

/* Keys [t, + n), after which n_after more of the query follow: where they lie, or else loaded into the scratch. */
static key_block find_keys(const dsri_cache *cache, uint64_t t, uint32_t n, uint64_t n_after, score_scratch *s)
{
    if (dsri_cache_is_plain(cache)) {
        const uint64_t stride = cache->row_stride / sizeof(uint16_t);
        return (key_block){(const uint16_t *)(const void *)cache->pages + t * stride, stride, n, n_after};
    }
    load_keys(cache, t, n, t + n + n_after, s->loaded);
    return (key_block){s->loaded, DSRI_INDEX_DIM, n, 0};
}

/* Keys t .. t + n of a block to `to`, halves exchanged, zeros where there is none; returns their magnitudes. Prefetches
 * those a block later. */
static vi take_tile(const key_block *b, uint32_t t, uint32_t n, uint32_t *to)
{
    const uint32_t n_there = b->n - t < n ? b->n - t : n;
    const uint16_t *key = b->keys + t * b->stride;
    vi least = all_magnitudes();
    for (uint32_t j = 0; j < n_there; j++, key += b->stride) {
        const int is_prefetching = t + j + BLOCK_KEYS < b->n + b->n_after;
        for (uint32_t f = 0; f < DSRI_INDEX_DIM; f += 2 * VF_LANES, to += VF_LANES) {
            const vi pairs = vi_load_pairs(key + f);
            if (is_prefetching) {
                vec_prefetch(key + BLOCK_KEYS * b->stride + f);
            }
            least = least_magnitudes(least, pairs);
            vi_store(to, exchange_halves(pairs));
        }
    }
    memset(to, 0, (size_t)(n - n_there) * FEATURE_PAIRS * sizeof *to);
    return least;
}

/* Sums of a block, rounded up to whole tiles, of each panel. */
static void score_panels(const query *x, head_panels panels, const key_block *b, uint32_t key_exponent,
                         score_scratch *s)
{
    for (uint32_t t = 0, n_keys; t < b->n; t += n_keys) {
        const tile_shape tile = next_tile(b->n - t, panels.n_vectors);
        n_keys = tile.n_keys;
        const int is_usable = have_exponent(take_tile(b, t, n_keys, s->keys), key_exponent);
        for (uint32_t i = 0; i < panels.n_panels; i++) {
            const panel_operand p = {(const uint32_t *)(const void *)x->packed_q + i * FEATURE_PAIRS * panels.width,
                                     x->weights + i * VF_LANES, panels.n_panels * VF_LANES};
            float *sums = s->sums[i] + t * VF_LANES;
            if (is_usable) {
                tile.score(s->keys, &p, sums);
            }
            for (uint32_t j = 0; !is_usable && j < n_keys; j++) {
                score_f32((int)panels.n_vectors, s->keys + j * FEATURE_PAIRS, &p, sums + j * VF_LANES);
            }
        }
    }
}

static void add_panels(uint32_t n_panels, uint32_t n, score_scratch *s)
{
    for (uint32_t i = 0; n_panels > 1 && i < n * VF_LANES; i += VF_LANES) {
        vf_store(s->sums[0] + i, vf_add(vf_load(s->sums[0] + i), vf_load(s->sums[1] + i)));
    }
}

/* Scores of a range of keys that the query sees. */
static void score_seen_keys(const dsri_indexer_row_plan *row, const query *x, uint32_t n_heads, key_range range,
                            score_scratch *s)
{
    const head_panels panels = panels_of(n_heads);
    const uint32_t key_exponent = least_key_exponent(x, n_heads);
    for (uint64_t t = range.first; t < range.end; t += BLOCK_KEYS) {
        const uint32_t n = range.end - t < BLOCK_KEYS ? (uint32_t)(range.end - t) : BLOCK_KEYS;
        const key_block b = find_keys(&row->keys, t, n, x->n_causal - t - n, s);
        score_panels(x, panels, &b, key_exponent, s);
        add_panels(panels.n_panels, n, s);
        store_scores(x, t, n, BLOCK_KEYS, s->sums[0]);
    }
}

static inline int scores_are_usable(void)
{
    return chains_are_in_order();
}

#endif
