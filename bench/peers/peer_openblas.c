#include "peer.h"

#include <cblas.h>
#include <string.h>

static const char *prepare(const peer_shape *shape)
{
    (void)shape;
    openblas_set_num_threads(1);
    return NULL;
}

static void pack_queries(const void *q, uint32_t dim, void *packed)
{
    memcpy(packed, q, sizeof(float) * N_HEADS * dim);
}

static void products(const void *keys, uint32_t n_keys, uint32_t dim, const void *packed, float *out)
{
    const int k = (int)dim;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)n_keys, N_HEADS, k, 1, keys, k, packed, k, 0, out,
                N_HEADS);
}

static void mix(const void *p, uint32_t n_heads, const void *values, float *out)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)n_heads, HEAD_DIM, N_SLOTS, 1, p, N_SLOTS, values,
                HEAD_DIM, 0, out, HEAD_DIM);
}

static const char *detail(void)
{
    return openblas_get_corename();
}

const peer peer_openblas = {
    .name = "OpenBLAS F32",
    .key_block = 2048,
    .slot_block = N_SLOTS,
    .prepare = prepare,
    .pack_queries = pack_queries,
    .products = products,
    .mix = mix,
    .detail = detail,
};
