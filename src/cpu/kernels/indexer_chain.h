/* Index scores as the contract's chains: what every F32 unit can do, and what kernels for special data fall back to.
 *
 * Lanes are heads. The inner loop keeps the products of one panel of the packed query with TILE_KEYS keys in registers,
 * while it widens keys that later tiles take. The panels pass a block of keys in turn. The sum over heads starts with
 * heads in different vectors, and ends across lanes for VF_LANES keys at once. */
#ifndef DSRI_INDEXER_CHAIN_H
#define DSRI_INDEXER_CHAIN_H

#include "cpu/kernels/cache_rows.h"
#include "cpu/kernels/indexer_query.h"

enum {
    MAX_PANEL_VECTORS = DSRI_VEC == DSRI_VEC_avx512 || DSRI_VEC == DSRI_VEC_neon ? 4 : 2,
    TILE_KEYS = 6,
    SMALL_TILE_KEYS = 4,
    BLOCK_KEYS = 48, /* a multiple of TILE_KEYS and of DSRI_SCORE_BLOCK */
    HALF_DIM = DSRI_INDEX_DIM / 2,
    RING_KEYS = 2 * BLOCK_KEYS,
    /* Keys widened during one tile, of which a block has 8 for 64 heads with AVX-512, 32 with AVX2 and NEON. */
    WIDEN_KEYS = DSRI_VEC == DSRI_VEC_avx512 ? 8 : 2,
    WIDEN_FEATURES = 2 * WIDEN_KEYS /* at each of the HALF_DIM steps of a tile */
};

typedef struct score_scratch {
    float keys[RING_KEYS * DSRI_INDEX_DIM];      /* widened: [key of task % RING_KEYS][even features, then odd ones] */
    uint16_t loaded[RING_KEYS * DSRI_INDEX_DIM]; /* [key of task % RING_KEYS], unless the cache is plain */
    float sums[BLOCK_KEYS * MAX_HEADS / 2];      /* [panel][key][lane] */
    float scores[BLOCK_KEYS];
    float maxima[BLOCK_KEYS / DSRI_SCORE_BLOCK];
} score_scratch;

_Static_assert(sizeof(score_scratch) <= DSRI_SCRATCH_BYTES, "scratch");

/* ---- pack --------------------------------------------------------------------------------------------------- */

/* Vectors of heads whose products with TILE_KEYS keys fill the registers. */
static inline uint32_t panel_vectors(uint32_t n_heads)
{
    return n_heads / VF_LANES < MAX_PANEL_VECTORS ? 2 : MAX_PANEL_VECTORS;
}

static inline uint32_t panel_heads(uint32_t n_heads)
{
    return panel_vectors(n_heads) * VF_LANES;
}

/* Panel p takes every n-th vector of heads from p on, n panels in all: its own sum is then the first steps of the
 * halving over heads. */
static void pack_query(const query *x, uint32_t n_heads)
{
    const uint32_t width = panel_heads(n_heads), n_panels = n_heads / width;
    for (uint32_t v = 0; v < n_heads / VF_LANES; v++) {
        const uint16_t *q = x->q + (size_t)v * VF_LANES * DSRI_INDEX_DIM;
        float *packed = x->packed_q + (size_t)(v % n_panels) * DSRI_INDEX_DIM * width + v / n_panels * VF_LANES;
        for (uint32_t f = 0; f < DSRI_INDEX_DIM; f += 2 * VF_LANES) {
            vi pairs[VF_LANES];
            VEC_UNROLL
            for (int i = 0; i < VF_LANES; i++) {
                pairs[i] = vi_load((const void *)(q + i * DSRI_INDEX_DIM + f));
            }
            vi_transpose(pairs);
            VEC_UNROLL
            for (uint32_t i = 0; i < VF_LANES; i++, packed += 2 * width) {
                vi_store((void *)packed, vi_shl(pairs[i], 16));
                vi_store((void *)(packed + width), vi_and(pairs[i], vi_set1(0xffff0000u)));
            }
        }
    }
}

/* ---- scores ------------------------------------------------------------------------------------------------- */

/* Keys of a task on their way into the ring of widened ones: as they lie in a plain cache, else from blocks that are
 * loaded ahead. */
typedef struct key_stream {
    const dsri_cache *cache;
    int is_plain;
    uint64_t first;
    uint64_t next;      /* the next key to widen, a multiple of WIDEN_KEYS after the first */
    uint64_t next_load; /* likewise to load, a multiple of BLOCK_KEYS */
    uint64_t end;
    uint64_t prefetch_end; /* of what other tasks take, too, which the same thread may run next */
    float *ring;
    uint16_t *loaded;
} key_stream;

/* Up to WIDEN_KEYS keys to widen. */
typedef struct widening {
    const uint16_t *from;
    uint64_t stride;
    uint64_t ahead; /* elements from a key to the one to prefetch with it */
    float *to;
} widening;

static float *wide_key(const key_stream *s, uint64_t t)
{
    return s->ring + (t - s->first) % RING_KEYS * DSRI_INDEX_DIM;
}

static uint16_t *loaded_key(const key_stream *s, uint64_t t)
{
    return s->loaded + (t - s->first) % RING_KEYS * DSRI_INDEX_DIM;
}

/* Sees to it that all keys before `end` are loaded. */
static void load_until(key_stream *s, uint64_t end)
{
    while (!s->is_plain && s->next_load < end) {
        const uint32_t n = end - s->next_load < BLOCK_KEYS ? (uint32_t)(end - s->next_load) : BLOCK_KEYS;
        load_keys(s->cache, s->next_load, n, s->prefetch_end, loaded_key(s, s->next_load));
        s->next_load += n;
    }
}

static widening next_widening(const key_stream *s)
{
    if (!s->is_plain) {
        return (widening){loaded_key(s, s->next), DSRI_INDEX_DIM, 0, wide_key(s, s->next)};
    }
    const uint64_t stride = s->cache->row_stride / sizeof(uint16_t);
    const int more = s->prefetch_end - s->next >= BLOCK_KEYS + WIDEN_KEYS;
    return (widening){(const uint16_t *)(const void *)s->cache->pages + s->next * stride, stride,
                      more ? BLOCK_KEYS * stride : 0, wide_key(s, s->next)};
}

/* Sees to it that all keys before `end` are widened. */
static void widen_until(key_stream *s, uint64_t end)
{
    while (s->next < end) {
        widening w = next_widening(s);
        for (int i = 0; i < WIDEN_KEYS && s->next < s->end; i++, s->next++) {
            for (int f = 0; f < HALF_DIM; f += VF_LANES) {
                vf even, odd;
                vf_load_bf16_pairs(w.from + 2 * f, &even, &odd);
                vf_store(w.to + f, even);
                vf_store(w.to + HALF_DIM + f, odd);
            }
            w.from += w.stride;
            w.to += DSRI_INDEX_DIM;
        }
    }
}

/* Widens WIDEN_FEATURES in general registers, so that vector units and their stores are left to the products around it.
 */
static inline void widen_some(const uint16_t *from, float *to)
{
    VEC_UNROLL
    for (int i = 0; i < WIDEN_FEATURES / 4; i++) {
        uint64_t four;
        memcpy(&four, from + 4 * i, sizeof four);
        __asm__("" : "+r"(four)); /* keeps compilers from using vectors */
        const uint64_t even = four << 16 & UINT64_C(0xffff0000ffff0000), odd = four & UINT64_C(0xffff0000ffff0000);
        memcpy(to + 2 * i, &even, sizeof even);
        memcpy(to + HALF_DIM + 2 * i, &odd, sizeof odd);
    }
}

/* Adds weight * relu(dot) over the vectors of a panel by halving. weights: those of the first vector, the next ones
 * weight_step on. */
static inline __attribute__((always_inline)) void add_weighted(int n_keys, int n_vectors, vf dots[TILE_KEYS][4],
                                                               const float *weights, uint32_t weight_step, float *sums)
{
    vf w[4];
    VEC_UNROLL
    for (int v = 0; v < n_vectors; v++) {
        w[v] = vf_load(weights + (uint32_t)v * weight_step);
    }
    VEC_UNROLL
    for (int j = 0; j < n_keys; j++) {
        VEC_UNROLL
        for (int v = 0; v < n_vectors; v++) {
            dots[j][v] = vf_mul(vf_relu(dots[j][v]), w[v]);
        }
        vf sum = vf_add(dots[j][0], dots[j][n_vectors / 2]);
        if (n_vectors == 4) {
            sum = vf_add(sum, vf_add(dots[j][1], dots[j][3]));
        }
        vf_store(sums + j * VF_LANES, sum);
    }
}

/* sums [n_keys][lane]: what add_weighted leaves of the panel's products with the keys. Meanwhile widens WIDEN_KEYS
 * keys, unless `next` is null. */
static inline __attribute__((always_inline)) void score_tile(int n_keys, int n_vectors, const float *keys,
                                                             const float *panel, const float *weights,
                                                             uint32_t weight_step, float *sums, const widening *next)
{
    const uint16_t *from = next ? next->from : NULL;
    float *to = next ? next->to : NULL;
    const uint64_t stride = next ? next->stride : 0, ahead = next ? next->ahead : 0;
    vf dots[TILE_KEYS][4], q[4];
    VEC_UNROLL
    for (int j = 0; j < n_keys; j++) {
        VEC_UNROLL
        for (int v = 0; v < n_vectors; v++) {
            dots[j][v] = vf_zero();
        }
    }
    for (int i = 0; i < WIDEN_KEYS; i++) {
        for (int f = 0; f < HALF_DIM / WIDEN_KEYS; f++, keys++) {
            if (next) {
                vec_prefetch(from + ahead + f * WIDEN_FEATURES);
                widen_some(from + f * WIDEN_FEATURES, to + f * WIDEN_FEATURES / 2);
            }
            VEC_UNROLL
            for (int odd = 0; odd < 2; odd++, panel += n_vectors * VF_LANES) {
                VEC_UNROLL
                for (int v = 0; v < n_vectors; v++) {
                    q[v] = vf_load(panel + v * VF_LANES);
                }
                VEC_UNROLL
                for (int j = 0; j < n_keys; j++) {
                    const vf k = vf_set1(keys[j * DSRI_INDEX_DIM + odd * HALF_DIM]);
                    VEC_UNROLL
                    for (int v = 0; v < n_vectors; v++) {
                        dots[j][v] = vf_fma(k, q[v], dots[j][v]);
                    }
                }
            }
        }
        if (next) {
            from += stride;
            to += DSRI_INDEX_DIM;
        }
    }
    add_weighted(n_keys, n_vectors, dots, weights, weight_step, sums);
}

typedef void tile_function(const float *keys, const float *panel, const float *weights, uint32_t weight_step,
                           float *sums, const widening *next);

/* Not inlined: a value that a compiler keeps in a register around the loop over features is one that the loop lacks. */
#define SCORE_TILE(name, n_keys, n_vectors, widening_or_null)                                                          \
    static __attribute__((noinline)) void name(const float *keys, const float *panel, const float *weights,            \
                                               uint32_t weight_step, float *sums, const widening *next)                \
    {                                                                                                                  \
        (void)next;                                                                                                    \
        score_tile(n_keys, n_vectors, keys, panel, weights, weight_step, sums, widening_or_null);                      \
    }
SCORE_TILE(score_tile_2, TILE_KEYS, 2, NULL)
SCORE_TILE(score_tile_2_widening, TILE_KEYS, 2, next)
SCORE_TILE(score_tile_max, TILE_KEYS, MAX_PANEL_VECTORS, NULL)
SCORE_TILE(score_tile_max_widening, TILE_KEYS, MAX_PANEL_VECTORS, next)
SCORE_TILE(score_small_tile_2, SMALL_TILE_KEYS, 2, NULL)
SCORE_TILE(score_small_tile_max, SMALL_TILE_KEYS, MAX_PANEL_VECTORS, NULL)

/* Keys of the next tile of n that are left, so that as few products as can be are of keys that are not there. */
static inline uint32_t tile_keys(uint32_t n)
{
    return n == SMALL_TILE_KEYS || n == 2 * SMALL_TILE_KEYS ? SMALL_TILE_KEYS : TILE_KEYS;
}

/* Fills sums for the keys first..first + n - 1, at most BLOCK_KEYS, and widens the keys after them meanwhile. */
static void score_panels(const query *x, uint32_t n_heads, uint64_t first, uint32_t n, key_stream *s, float *sums)
{
    const int narrow = panel_vectors(n_heads) < MAX_PANEL_VECTORS;
    tile_function *const plain = narrow ? score_tile_2 : score_tile_max;
    tile_function *const small = narrow ? score_small_tile_2 : score_small_tile_max;
    tile_function *const widening_too = narrow ? score_tile_2_widening : score_tile_max_widening;
    const uint32_t panel_size = DSRI_INDEX_DIM * panel_heads(n_heads), n_panels = n_heads / panel_heads(n_heads);
    const uint64_t widen_end = s->end < first + RING_KEYS ? s->end : first + RING_KEYS;

    load_until(s, widen_end);
    for (uint32_t p = 0; p < n_panels; p++) {
        const float *panel = x->packed_q + (size_t)p * panel_size, *weights = x->weights + p * VF_LANES;
        for (uint32_t t = 0, n_keys; t < n; t += n_keys) {
            const float *keys = wide_key(s, first + t);
            float *tile_sums = sums + (p * BLOCK_KEYS + t) * VF_LANES;
            n_keys = tile_keys(n - t);
            widen_until(s, first + (n - t < n_keys ? n : t + n_keys));
            if (n_keys == SMALL_TILE_KEYS) {
                small(keys, panel, weights, n_panels * VF_LANES, tile_sums, NULL);
            } else if (widen_end - s->next < WIDEN_KEYS) {
                plain(keys, panel, weights, n_panels * VF_LANES, tile_sums, NULL);
            } else {
                const widening next = next_widening(s);
                widening_too(keys, panel, weights, n_panels * VF_LANES, tile_sums, &next);
                s->next += WIDEN_KEYS;
            }
        }
    }
}

/* Scores of the n keys of a block and the maxima of 16, from the sums per panel, times units if these are not null. */
static void finish_block(score_scratch *s, const float *units, uint32_t n_panels, uint32_t n)
{
    const uint32_t panel_size = BLOCK_KEYS * VF_LANES;
    for (uint32_t half = n_panels / 2; half > 0; half /= 2) {
        for (uint32_t i = 0; i < half * panel_size; i += VF_LANES) {
            vf_store(s->sums + i, vf_add(vf_load(s->sums + i), vf_load(s->sums + half * panel_size + i)));
        }
    }
    finish_scores(s->sums, units, BLOCK_KEYS, n, s->scores, s->maxima);
}

static void store_block(const query *x, const score_scratch *s, uint64_t first, uint32_t n)
{
    memcpy(x->scores + first, s->scores, n * sizeof(float));
    memcpy(x->block_maxima + first / DSRI_SCORE_BLOCK, s->maxima,
           (n + DSRI_SCORE_BLOCK - 1) / DSRI_SCORE_BLOCK * sizeof(float));
}

/* Scores first..end - 1 of a query: -inf from n_causal on. first is a multiple of DSRI_SCORE_BLOCK. */
static void score_keys(const dsri_indexer_row_plan *row, const query *x, uint32_t n_heads, uint64_t first, uint64_t end,
                       score_scratch *s)
{
    const uint64_t end_causal = end < x->n_causal ? end : x->n_causal;
    key_stream stream = {
        &row->keys, dsri_cache_is_plain(&row->keys), first, first, first, end_causal, x->n_causal, s->keys, s->loaded};
    while (first < end_causal) {
        const uint32_t n = end_causal - first < BLOCK_KEYS ? (uint32_t)(end_causal - first) : BLOCK_KEYS;
        /* What the last tile lacks is 0: whatever else the scratch holds could be slow to multiply. */
        memset(wide_key(&stream, first) + n * DSRI_INDEX_DIM, 0,
               (BLOCK_KEYS - n) % TILE_KEYS * DSRI_INDEX_DIM * sizeof(float));
        score_panels(x, n_heads, first, n, &stream, s->sums);
        finish_block(s, NULL, n_heads / panel_heads(n_heads), n);
        store_block(x, s, first, n);
        first += n;
    }
    for (; first < end; first++) {
        x->scores[first] = -INFINITY;
    }
}

#endif
