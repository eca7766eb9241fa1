/* A block of keys as bytes, and a panel of the query that it is multiplied with. */
#ifndef DSRI_INTEGER_BLOCK_H
#define DSRI_INTEGER_BLOCK_H

#include "cpu/kernels/exact/exact_unit.h"
#include "cpu/kernels/exact/integer_keys.h"
#include "cpu/kernels/exact/integer_query.h"
#include "cpu/kernels/indexer_chain.h"
#include "cpu/kernels/indexer_fallback.h"

enum {
    INTEGER_KEYS = BLOCK_KEYS, /* of a block, a multiple of TILE_KEYS */
    LAYER_BYTES = INTEGER_KEYS * DSRI_INDEX_DIM,
    GROUP_KEYS = 16,
    KEY_BIAS = DSRI_EXACT_IS_AMX ? 0 : 128,
    MAX_PANEL_HEADS = MAX_PANEL_VECTORS * VF_LANES,
    MAX_PANELS = MAX_HEADS / MAX_PANEL_HEADS
};

typedef struct integer_block {
    _Alignas(64) uint8_t keys[MAX_LAYERS][LAYER_BYTES]; /* from the second on only where span asks for it */
    float units[INTEGER_KEYS];
    uint32_t narrow_spans[VF_LANES]; /* the greatest of keys that came 16 at once, in every byte */
    uint32_t n;
    uint32_t span; /* the greatest of other keys; NO_KEY_SPAN: one is of another kind, and the bytes mean nothing */
} integer_block;

_Static_assert(QUERY_LAYER_BITS % LAYER_BINADES == 0, "levels");

static inline uint32_t greatest_span(const integer_block *b)
{
    const uint32_t narrow = _mm512_reduce_max_epu32(vi_load(b->narrow_spans)) & 0xff;
    return b->span > narrow ? b->span : narrow;
}

static inline int layers_of(const integer_block *b)
{
    return 1 + (int)b->span / LAYER_BINADES;
}

typedef struct integer_scratch {
    integer_block blocks[2]; /* the one in use and the next */
#if DSRI_EXACT_IS_AMX
    int32_t dots[2][GROUP_KEYS * MAX_PANEL_HEADS]; /* of a step and of the one before */
#endif
    float sums[MAX_PANELS][INTEGER_KEYS * VF_LANES]; /* [panel][key][lane] */
    float scores[INTEGER_KEYS];
    float maxima[INTEGER_KEYS / DSRI_SCORE_BLOCK];
    float packed_q[MAX_HEADS * DSRI_INDEX_DIM]; /* for keys of another kind, as all below */
    _Alignas(64) uint8_t fallback[FALLBACK_SCRATCH_BYTES];
} integer_scratch;

_Static_assert(sizeof(score_scratch) <= FALLBACK_SCRATCH_BYTES && sizeof(integer_scratch) <= DSRI_SCRATCH_BYTES &&
                   INTEGER_KEYS % GROUP_KEYS == 0 && INTEGER_KEYS % DSRI_SCORE_BLOCK == 0,
               "scratch, blocks");

/* One panel of the query. */
typedef struct integer_panel {
    const uint32_t *words;
    const int32_t *query_sums; /* of the first vector of heads, the next ones vector_step on, as weights */
    const float *weights;
    uint32_t vector_step;
    int n_layers; /* words of the second lie QUERY_WORDS * n_heads on, and its sums n_heads */
    uint32_t n_heads;
} integer_panel;

/* A product of layer key_layer of the keys with layer query_layer of the query counts
 * 2^(LAYER_BINADES * level_of(key_layer, query_layer)). */
static inline int level_of(int key_layer, int query_layer)
{
    return key_layer + query_layer * (QUERY_LAYER_BITS / LAYER_BINADES);
}

/* A block on its way from the cache. */
typedef struct key_loading {
    const dsri_cache *cache;
    uint64_t first;
    uint64_t prefetch_end; /* of the keys whose blocks come after, in this task or others */
    uint32_t max_span;     /* keys of a greater one are of another kind */
    uint32_t done;
    integer_block *block;
} key_loading;

static inline key_loading loading_of(const dsri_cache *cache, uint64_t first, uint64_t end, uint64_t prefetch_end,
                                     uint32_t max_span, integer_block *block)
{
    block->n = end - first < INTEGER_KEYS ? (uint32_t)(end - first) : INTEGER_KEYS;
    block->span = 0;
    vi_store(block->narrow_spans, _mm512_setzero_si512());
    return (key_loading){cache, first, prefetch_end, max_span, 0, block};
}

/* n more keys, each by itself: for groups with one that is wider than a layer, or has a zero block of any scale. */
static inline void load_wide_keys(key_loading *l, uint32_t n)
{
    integer_block *const b = l->block;
    for (uint32_t k = l->done; k < l->done + n; k++) {
        float *const unit = b->units + k;
        uint8_t *const to = b->keys[0] + k * DSRI_INDEX_DIM;
        const uint32_t span = load_integer_key(l->cache, l->first + k, KEY_BIAS, to, LAYER_BYTES, unit);
        if (span > l->max_span) {
            b->span = NO_KEY_SPAN;
            return;
        }
        if (span >= LAYER_BINADES && b->span < LAYER_BINADES) {
            /* The first such key of the block: the others have zeros in the layers that it brought. */
            memset(b->keys + 1, KEY_BIAS, sizeof b->keys - LAYER_BYTES);
            load_integer_key(l->cache, l->first + k, KEY_BIAS, to, LAYER_BYTES, unit);
        }
        b->span = span > b->span ? span : b->span;
    }
}

/* Up to GROUP_KEYS more keys. */
static inline void load_key_group(key_loading *l)
{
    integer_block *const b = l->block;
    const uint32_t left = b->n - l->done, n = left < GROUP_KEYS ? left : GROUP_KEYS;
    const uint64_t t = l->first + l->done;
    if (n == 0) {
        return;
    }
    if (t + INTEGER_KEYS < l->prefetch_end) {
        prefetch_integer_keys(l->cache, t + INTEGER_KEYS);
    }
    if (b->span != NO_KEY_SPAN && !load_narrow_keys(l->cache, t, n, KEY_BIAS, b->keys[0] + l->done * DSRI_INDEX_DIM,
                                                    b->units + l->done, b->narrow_spans)) {
        load_wide_keys(l, n);
    }
    l->done += n;
}

/* The rest of them, and zeros up to a whole block. */
static inline void load_last_keys(key_loading *l)
{
    integer_block *const b = l->block;
    while (l->done < b->n) {
        load_key_group(l);
    }
    if (b->n == 0 || b->n == INTEGER_KEYS) {
        return;
    }
    memset(b->keys[0] + b->n * DSRI_INDEX_DIM, 0, (INTEGER_KEYS - b->n) * DSRI_INDEX_DIM);
    memset(b->units + b->n, 0, (INTEGER_KEYS - b->n) * sizeof *b->units);
}

#endif
