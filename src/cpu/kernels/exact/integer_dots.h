/* Sums over heads of a block of integer keys on AVX512-VNNI. */
#ifndef DSRI_INTEGER_DOTS_H
#define DSRI_INTEGER_DOTS_H

#include "cpu/kernels/exact/integer_block.h"

/* The compilers' own function has gcc 12 copy every sum in every step. */
static inline void add_byte_dots(vi *sum, vi unsigned_bytes, vi signed_bytes)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(unsigned_bytes), "v"(signed_bytes));
}

/* What the sum of a vector of heads starts with: the bytes of the keys are KEY_BIAS too large. */
static inline vi start_of_heads(const integer_panel *p, int v)
{
    const vi query_sum = vi_load((const void *)(p->query_sums + (uint32_t)v * p->vector_step));
    return vi_sub(_mm512_setzero_si512(), vi_shl(query_sum, 7));
}

static inline __attribute__((always_inline)) void add_layer(int n_keys, int n_vectors, const uint8_t *keys,
                                                            const integer_panel *p, vi acc[TILE_KEYS][4])
{
    for (int g = 0; g < QUERY_WORDS; g++) {
        vi q[4];
        VEC_UNROLL
        for (int v = 0; v < n_vectors; v++) {
            q[v] = vi_load(p->words + (g * n_vectors + v) * VF_LANES);
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

/* sums of n_keys keys, their layers from the last one down. */
static inline __attribute__((always_inline)) void score_keys_of_tile(int n_keys, int n_vectors, const uint8_t *keys,
                                                                     int n_layers, const integer_panel *p, float *sums)
{
    vi acc[TILE_KEYS][4];
    vf dots[TILE_KEYS][4];
    VEC_UNROLL
    for (int v = 0; v < n_vectors; v++) {
        const vi start = start_of_heads(p, v);
        VEC_UNROLL
        for (int j = 0; j < n_keys; j++) {
            acc[j][v] = start;
        }
    }
    for (int layer = n_layers - 1; layer > 0; layer--) {
        add_layer(n_keys, n_vectors, keys + layer * LAYER_BYTES, p, acc);
        VEC_UNROLL
        for (int v = 0; v < n_vectors; v++) {
            const vi start = start_of_heads(p, v);
            VEC_UNROLL
            for (int j = 0; j < n_keys; j++) {
                acc[j][v] = vi_add(vi_shl(acc[j][v], LAYER_BINADES), start);
            }
        }
    }
    add_layer(n_keys, n_vectors, keys, p, acc);
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
