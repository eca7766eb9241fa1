/* Sums over heads of a block of integer keys on AVX512-VNNI. */
#ifndef DSRI_INTEGER_DOTS_H
#define DSRI_INTEGER_DOTS_H

#include "cpu/kernels/exact/integer_block.h"

/* The compilers' own function has gcc 12 copy every sum in every step. */
static inline void add_byte_dots(vi *sum, vi unsigned_bytes, vi signed_bytes)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(unsigned_bytes), "v"(signed_bytes));
}

/* What a product with a vector of heads begins with: the bytes of the keys are KEY_BIAS too large. */
static inline vi start_of_heads(const integer_panel *p, int layer, int v)
{
    const int32_t *sums = p->query_sums + (uint32_t)layer * p->n_heads;
    return vi_sub(_mm512_setzero_si512(), vi_shl(vi_load((const void *)(sums + (uint32_t)v * p->vector_step)), 7));
}

/* Products with a layer of the query. */
static inline __attribute__((always_inline)) void add_layer(int n_keys, int n_vectors, const uint8_t *keys,
                                                            const integer_panel *p, int layer, vi acc[TILE_KEYS][4])
{
    const uint32_t *const words = p->words + (size_t)layer * p->n_heads * QUERY_WORDS;
    for (int g = 0; g < QUERY_WORDS; g++) {
        vi q[4];
        VEC_UNROLL
        for (int v = 0; v < n_vectors; v++) {
            q[v] = vi_load(words + (g * n_vectors + v) * VF_LANES);
        }
        VEC_UNROLL
        for (int j = 0; j < n_keys; j++) {
            uint32_t four;
            memcpy(&four, keys + j * DSRI_INDEX_DIM + 4 * g, sizeof four);
            const vi k = vi_set1(four);
            VEC_UNROLL
            for (int v = 0; v < n_vectors; v++) {
                add_byte_dots(&acc[j][v], k, q[v]);
            }
        }
    }
}

/* What is there of higher levels, times 2^LAYER_BINADES, and the products of this one. */
static inline __attribute__((always_inline)) void add_level(int n_keys, int n_vectors, const uint8_t *keys,
                                                            int n_layers, int level, const integer_panel *p,
                                                            vi acc[TILE_KEYS][4])
{
    VEC_UNROLL
    for (int v = 0; v < n_vectors; v++) {
        VEC_UNROLL
        for (int j = 0; j < n_keys; j++) {
            acc[j][v] = vi_shl(acc[j][v], LAYER_BINADES);
        }
    }
    for (int layer = 0; layer < p->n_layers; layer++) {
        const int key_layer = level - level_of(0, layer);
        if (key_layer < 0 || key_layer >= n_layers) {
            continue;
        }
        VEC_UNROLL
        for (int v = 0; v < n_vectors; v++) {
            const vi start = start_of_heads(p, layer, v);
            VEC_UNROLL
            for (int j = 0; j < n_keys; j++) {
                acc[j][v] = vi_add(acc[j][v], start);
            }
        }
        add_layer(n_keys, n_vectors, keys + key_layer * LAYER_BYTES, p, layer, acc);
    }
}

/* sums of n_keys keys, from the highest level down, which is one product. */
static inline __attribute__((always_inline)) void score_keys_of_tile(int n_keys, int n_vectors, const uint8_t *keys,
                                                                     int n_layers, const integer_panel *p, float *sums)
{
    const int last = p->n_layers - 1;
    vi acc[TILE_KEYS][4];
    vf dots[TILE_KEYS][4];
    VEC_UNROLL
    for (int v = 0; v < n_vectors; v++) {
        const vi start = start_of_heads(p, last, v);
        VEC_UNROLL
        for (int j = 0; j < n_keys; j++) {
            acc[j][v] = start;
        }
    }
    add_layer(n_keys, n_vectors, keys + (n_layers - 1) * LAYER_BYTES, p, last, acc);
    for (int level = level_of(n_layers - 1, last) - 1; level >= 0; level--) {
        add_level(n_keys, n_vectors, keys, n_layers, level, p, acc);
    }
    VEC_UNROLL
    for (int j = 0; j < n_keys; j++) {
        VEC_UNROLL
        for (int v = 0; v < n_vectors; v++) {
            dots[j][v] = _mm512_cvtepi32_ps(acc[j][v]);
        }
    }
    add_weighted(n_keys, n_vectors, dots, p->weights, p->vector_step, sums);
}

static void add_integer_heads(const integer_panel *panels, uint32_t n_panels, uint32_t n_heads, integer_scratch *s,
                              const integer_block *block, key_loading *next)
{
    const int n_layers = layers_of(block);
    (void)next; /* the same units would load it */
    for (uint32_t i = 0; i < n_panels; i++) {
        for (uint32_t t = 0, n_keys; t < block->n; t += n_keys) {
            const uint8_t *const keys = block->keys[0] + t * DSRI_INDEX_DIM;
            float *const sums = s->sums[i] + t * VF_LANES;
            n_keys = tile_keys(block->n - t);
            if (n_keys == SMALL_TILE_KEYS && panel_vectors(n_heads) == 4) {
                score_keys_of_tile(SMALL_TILE_KEYS, 4, keys, n_layers, panels + i, sums);
            } else if (n_keys == SMALL_TILE_KEYS) {
                score_keys_of_tile(SMALL_TILE_KEYS, 2, keys, n_layers, panels + i, sums);
            } else if (panel_vectors(n_heads) == 4) {
                score_keys_of_tile(TILE_KEYS, 4, keys, n_layers, panels + i, sums);
            } else {
                score_keys_of_tile(TILE_KEYS, 2, keys, n_layers, panels + i, sums);
            }
        }
    }
}

#endif
