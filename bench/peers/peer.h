/* A matrix product library as a peer: three products in its own best layout. What is around them (glue.h) is the same
 * for all peers. Each function is called from many threads at once and works on the calling thread alone. */
#ifndef DSROWS_BENCH_PEER_H
#define DSROWS_BENCH_PEER_H

#include "glue.h"

typedef struct peer_shape {
    uint32_t key_block;  /* index keys of one product */
    uint32_t slot_block; /* KV rows of one product */
    uint32_t head_group; /* heads of one product of weights and values */
    uint32_t n_threads;  /* that will call */
} peer_shape;

typedef struct peer {
    const char *name;
    int is_bf16;                    /* operands: BF16, else F32 */
    uint32_t key_block, slot_block; /* the largest that it likes, for one thread */
    /* Make kernels for a shape; null, or why the peer must be left out. */
    const char *(*prepare)(const peer_shape *shape);
    /* Bring q [64, dim], dim 128 or 512, into the form that products takes, at most PEER_PACKED_BYTES. */
    void (*pack_queries)(const void *q, uint32_t dim, void *packed);
    /* out[i][h] = keys[i] . q[h] for n_keys keys of dim features. */
    void (*products)(const void *keys, uint32_t n_keys, uint32_t dim, const void *packed, float *out);
    /* Bring slots [n, 512] into the form that mix takes, in place of slots of the same size; null: as they are. */
    void (*pack_values)(const void *slots, uint32_t n, void *packed);
    /* out[h][d] = sum over the 640 slots of p[h][s] * values[s][d] for n_heads heads. */
    void (*mix)(const void *p, uint32_t n_heads, const void *values, float *out);
    /* What the library says of the kernels it chose. */
    const char *(*detail)(void);
} peer;

enum { PEER_PACKED_BYTES = 1 << 18 };

extern const peer peer_openblas, peer_dnnl, peer_xsmm_f32, peer_xsmm_bf16;

#endif
