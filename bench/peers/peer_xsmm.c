#include "peer.h"

#include <libxsmm.h>
#include <string.h>

/* libxsmm is column-major: products are out^T [64, keys] = q^T [64, dim] * keys^T [dim, keys], so the keys are streamed
 * as they lie in memory, and only the queries are turned over. */
static struct {
    libxsmm_smmfunction key, slot, mix;
} f32;
static struct {
    libxsmm_bsmmfunction key, slot, mix;
} bf16;

static libxsmm_smmfunction f32_kernel(int m, int n, int k)
{
    const float one = 1, zero = 0;
    return libxsmm_smmdispatch(m, n, k, NULL, NULL, NULL, &one, &zero, NULL, NULL);
}

static libxsmm_bsmmfunction bf16_kernel(int m, int n, int k)
{
    const float one = 1, zero = 0;
    const int flags = LIBXSMM_GEMM_FLAG_VNNI_A;
    return libxsmm_bsmmdispatch(m, n, k, NULL, NULL, NULL, &one, &zero, &flags, NULL);
}

static const char *prepare_f32(const peer_shape *shape)
{
    libxsmm_init();
    f32.key = f32_kernel(N_HEADS, (int)shape->key_block, INDEX_DIM);
    f32.slot = f32_kernel(N_HEADS, (int)shape->slot_block, HEAD_DIM);
    f32.mix = f32_kernel(HEAD_DIM, (int)shape->head_group, N_SLOTS);
    return f32.key && f32.slot && f32.mix ? NULL : "libxsmm makes no F32 kernel for this machine";
}

static const char *prepare_bf16(const peer_shape *shape)
{
    libxsmm_init();
    bf16.key = bf16_kernel(N_HEADS, (int)shape->key_block, INDEX_DIM);
    bf16.slot = bf16_kernel(N_HEADS, (int)shape->slot_block, HEAD_DIM);
    bf16.mix = bf16_kernel(HEAD_DIM, (int)shape->head_group, N_SLOTS);
    return bf16.key && bf16.slot && bf16.mix ? NULL : "libxsmm makes no BF16 kernel for this machine";
}

/* [64, dim] to [dim, 64]. */
static void pack_queries_f32(const void *q, uint32_t dim, void *packed)
{
    const float *from = q;
    float *to = packed;
    for (uint32_t k = 0; k < dim; k++)
        for (uint32_t h = 0; h < N_HEADS; h++)
            to[k * N_HEADS + h] = from[h * dim + k];
}

/* [64, dim] to [dim / 2, 64, 2]. */
static void pack_queries_bf16(const void *q, uint32_t dim, void *packed)
{
    const uint32_t n_pairs = dim / 2;
    const char *from = q;
    char *to = packed;
    for (uint32_t k = 0; k < n_pairs; k++)
        for (uint32_t h = 0; h < N_HEADS; h++)
            memcpy(to + 4 * (k * N_HEADS + h), from + 4 * (h * n_pairs + k), 4);
}

static void products_f32(const void *keys, uint32_t n_keys, uint32_t dim, const void *packed, float *out)
{
    (void)n_keys;
    (dim == INDEX_DIM ? f32.key : f32.slot)(packed, keys, out);
}

static void products_bf16(const void *keys, uint32_t n_keys, uint32_t dim, const void *packed, float *out)
{
    (void)n_keys;
    (dim == INDEX_DIM ? bf16.key : bf16.slot)(packed, keys, out);
}

/* [n, 512] to [n / 2, 512, 2], as words of two (little-endian, like every machine that libxsmm knows). */
static void pack_values_bf16(const void *slots, uint32_t n, void *packed)
{
    for (uint32_t s = 0; s < n; s += 2) {
        const uint16_t *first = (const uint16_t *)slots + (size_t)s * HEAD_DIM, *second = first + HEAD_DIM;
        uint32_t *restrict to = (uint32_t *)packed + (size_t)s / 2 * HEAD_DIM;
        for (size_t d = 0; d < HEAD_DIM; d++)
            to[d] = first[d] | (uint32_t)second[d] << 16;
    }
}

static void mix_f32(const void *p, uint32_t n_heads, const void *values, float *out)
{
    (void)n_heads;
    f32.mix(values, p, out);
}

static void mix_bf16(const void *p, uint32_t n_heads, const void *values, float *out)
{
    (void)n_heads;
    bf16.mix(values, p, out);
}

static const char *detail(void)
{
    return libxsmm_get_target_arch();
}

const peer peer_xsmm_f32 = {
    .name = "libxsmm F32",
    .key_block = 256,
    .slot_block = 128,
    .prepare = prepare_f32,
    .pack_queries = pack_queries_f32,
    .products = products_f32,
    .mix = mix_f32,
    .detail = detail,
};

const peer peer_xsmm_bf16 = {
    .name = "libxsmm BF16",
    .is_bf16 = 1,
    .key_block = 64,
    .slot_block = 128,
    .prepare = prepare_bf16,
    .pack_queries = pack_queries_bf16,
    .products = products_bf16,
    .pack_values = pack_values_bf16,
    .mix = mix_bf16,
    .detail = detail,
};
