#include "peer.h"

#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_THREADS = 256, SCRATCHPAD_BYTES = 1 << 21 };

/* A BF16 product of src [m, k] and weights [k, n] to F32, and how its weights get into the form it likes. */
typedef struct product {
    dnnl_memory_desc_t src, plain_weights, weights, dst, scratchpad;
    dnnl_primitive_t matmul, reorder;
} product;

static dnnl_engine_t engine;
static dnnl_stream_t streams[MAX_THREADS];
static void *scratchpads[MAX_THREADS]; /* of SCRATCHPAD_BYTES: the library's own is not for many threads at once */
static product key_product, slot_product, mix_product;
static char chosen_text[64];

static void need(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return;
    fprintf(stderr, "oneDNN: %s: error %d\n", what, (int)status);
    exit(1);
}

static void describe(dnnl_memory_desc_t *desc, uint32_t rows, uint32_t columns, dnnl_data_type_t type,
                     dnnl_format_tag_t tag)
{
    const dnnl_dims_t dims = {rows, columns};
    need(dnnl_memory_desc_init_by_tag(desc, 2, dims, type, tag), "memory descriptor");
}

static void make_reorder(product *x)
{
    dnnl_primitive_desc_t desc;
    need(dnnl_reorder_primitive_desc_create(&desc, &x->plain_weights, engine, &x->weights, engine, NULL), "reorder");
    need(dnnl_primitive_create(&x->reorder, desc), "reorder");
    need(dnnl_primitive_desc_destroy(desc), "reorder");
}

static void make_matmul(product *x, dnnl_primitive_desc_t desc)
{
    const char *chosen = "";
    x->weights = *dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
    x->scratchpad = *dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    need(dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, &chosen), "implementation");
    snprintf(chosen_text, sizeof chosen_text, "%s", chosen);
    need(dnnl_primitive_create(&x->matmul, desc), "matmul");
    need(dnnl_primitive_desc_destroy(desc), "matmul");
}

/* is_any: weights in the form that the library picks, else as they are. */
static dnnl_status_t make_product(product *x, uint32_t m, uint32_t n, uint32_t k, dnnl_format_tag_t tag, int is_any)
{
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t desc;
    dnnl_memory_desc_t wanted;
    if (x->matmul)
        dnnl_primitive_destroy(x->matmul);
    if (x->reorder)
        dnnl_primitive_destroy(x->reorder);
    x->matmul = x->reorder = NULL;
    describe(&x->src, m, k, dnnl_bf16, dnnl_ab);
    describe(&x->plain_weights, k, n, dnnl_bf16, tag);
    describe(&wanted, k, n, dnnl_bf16, is_any ? dnnl_format_tag_any : tag);
    describe(&x->dst, m, n, dnnl_f32, dnnl_ab);
    need(dnnl_matmul_desc_init(&matmul, &x->src, &wanted, NULL, &x->dst), "matmul descriptor");
    need(dnnl_primitive_attr_create(&attr), "attributes");
    need(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), "scratchpad");
    const dnnl_status_t status = dnnl_primitive_desc_create(&desc, &matmul, attr, engine, NULL);
    if (status == dnnl_success) {
        make_matmul(x, desc);
        if (is_any)
            make_reorder(x);
    }
    need(dnnl_primitive_attr_destroy(attr), "attributes");
    return status;
}

static int fits(const product *x)
{
    return dnnl_memory_desc_get_size(&x->scratchpad) <= SCRATCHPAD_BYTES;
}

static const char *prepare(const peer_shape *shape)
{
    if (shape->n_threads > MAX_THREADS)
        return "too many threads";
    if (!engine)
        need(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine");
    for (uint32_t i = 0; i < shape->n_threads; i++) {
        if (streams[i])
            continue;
        need(dnnl_stream_create(&streams[i], engine, dnnl_stream_default_flags), "stream");
        scratchpads[i] = aligned_alloc(4096, SCRATCHPAD_BYTES);
        if (!scratchpads[i])
            return "out of memory";
    }
    if (make_product(&key_product, shape->key_block, N_HEADS, INDEX_DIM, dnnl_ba, 1) != dnnl_success ||
        make_product(&slot_product, shape->slot_block, N_HEADS, HEAD_DIM, dnnl_ba, 1) != dnnl_success ||
        make_product(&mix_product, shape->head_group, HEAD_DIM, N_SLOTS, dnnl_ab, 0) != dnnl_success)
        return "oneDNN has no BF16 matmul for this machine";
    if (dnnl_memory_desc_get_size(&slot_product.weights) > PEER_PACKED_BYTES || !fits(&key_product) ||
        !fits(&slot_product) || !fits(&mix_product))
        return "oneDNN wants more memory than expected";
    return NULL;
}

static dnnl_memory_t wrap(const dnnl_memory_desc_t *desc, const void *data)
{
    dnnl_memory_t memory;
    void *handle;
    *(const void **)&handle = data;
    need(dnnl_memory_create(&memory, desc, engine, handle), "memory");
    return memory;
}

static void execute(dnnl_primitive_t primitive, const dnnl_exec_arg_t *args, int n)
{
    dnnl_stream_t stream = streams[omp_get_thread_num()];
    need(dnnl_primitive_execute(primitive, stream, n, args), "execute");
    need(dnnl_stream_wait(stream), "wait");
    for (int i = 0; i < n; i++)
        dnnl_memory_destroy(args[i].memory);
}

static void pack_queries(const void *q, uint32_t dim, void *packed)
{
    const product *x = dim == INDEX_DIM ? &key_product : &slot_product;
    const dnnl_exec_arg_t args[2] = {{DNNL_ARG_FROM, wrap(&x->plain_weights, q)},
                                     {DNNL_ARG_TO, wrap(&x->weights, packed)}};
    execute(x->reorder, args, 2);
}

static void multiply(const product *x, const void *src, const void *weights, float *dst)
{
    void *scratchpad = scratchpads[omp_get_thread_num()];
    const dnnl_exec_arg_t args[4] = {{DNNL_ARG_SRC, wrap(&x->src, src)},
                                     {DNNL_ARG_WEIGHTS, wrap(&x->weights, weights)},
                                     {DNNL_ARG_DST, wrap(&x->dst, dst)},
                                     {DNNL_ARG_SCRATCHPAD, wrap(&x->scratchpad, scratchpad)}};
    execute(x->matmul, args, 4);
}

static void products(const void *keys, uint32_t n_keys, uint32_t dim, const void *packed, float *out)
{
    (void)n_keys;
    multiply(dim == INDEX_DIM ? &key_product : &slot_product, keys, packed, out);
}

static void mix(const void *p, uint32_t n_heads, const void *values, float *out)
{
    (void)n_heads;
    multiply(&mix_product, p, values, out);
}

static const char *detail(void)
{
    return chosen_text;
}

const peer peer_dnnl = {
    .name = "oneDNN BF16",
    .is_bf16 = 1,
    .key_block = 2048,
    .slot_block = N_SLOTS,
    .prepare = prepare,
    .pack_queries = pack_queries,
    .products = products,
    .mix = mix,
    .detail = detail,
};
