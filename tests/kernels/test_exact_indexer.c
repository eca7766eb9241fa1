/* The indexer on FP4 keys by units for products of bytes: bits of the chain on the decoded keys, for queries on the
 * grid and not, for any scales, zero blocks and single keys of another kind. AMX on emulated tiles, and where there are
 * such on the machine's own. */
#include "kernel_test.h"

#include "cpu/cpu_features.h"
#include "ops/indexer_workspace.h"
#include "reference/reference.h"

#include <dsrows/cache.h>

#include <math.h>

#define COUNT_OF(x) (sizeof(x) / sizeof(x)[0])

#if defined(DSRI_HAVE_AVX512VNNI)

extern const dsri_cpu_kernel dsri_kernel_indexer__avx512vnni;
extern const dsri_cpu_kernel dsri_kernel_indexer_chains__avx512vnni;
extern const dsri_cpu_kernel dsri_kernel_indexer__amxint8;
extern const dsri_cpu_kernel dsri_kernel_indexer__amxemulated;

enum { KEY_BYTES = DSRI_FP4_KEY_BYTES + DSRI_FP4_SCALE_BYTES, SCALE_ONE = 127 };

/* How a row's data are drawn. */
typedef struct row_kind {
    uint32_t q_span;   /* binades between the blocks of a head of q */
    uint32_t key_span; /* likewise of a key */
    int zero_blocks;
    int largest;     /* every code is +6 */
    int one_odd_key; /* one key has scales that no exact unit takes */
    int q_off_grid;
    int tiny_weights; /* times the unit of q they are 0, times that of the keys not */
} row_kind;

static const row_kind kinds[] = {
    {.q_span = 0},
    {.q_span = 1, .key_span = 2},
    {.q_span = 3, .key_span = 3, .zero_blocks = 1},
    {.key_span = 4},
    {.q_span = 4},
    {.q_span = 3, .key_span = 3, .largest = 1},
    {.q_span = 2, .key_span = 1, .zero_blocks = 1, .one_odd_key = 1},
    {.q_span = 2, .key_span = 2, .q_off_grid = 1},
    {.q_span = 5, .key_span = 9, .zero_blocks = 1},
    {.q_span = 9, .key_span = 14, .largest = 1},
    {.q_span = 1, .key_span = 1, .tiny_weights = 1},
    {.q_span = 4, .key_span = 5},
    {.q_span = 6, .key_span = 3, .zero_blocks = 1},
    {.q_span = 9},
    {.q_span = 9, .largest = 1},
};

static uint16_t *grid_query(random_stream *random, size_t n, const row_kind *kind)
{
    static const float grid[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    uint16_t *q = new_array(n * sizeof *q);
    float scale = 1.0f;
    for (size_t i = 0; i < n; i++) {
        if (i % 32 == 0) {
            scale = ldexpf(1.0f, (int)random_below(random, kind->q_span + 1) - (kind->tiny_weights ? 58 : 3));
        }
        const float value = kind->largest ? 6.0f : grid[random_below(random, 8)];
        q[i] = ref_bf16_from_f32((random_one_in(random, 2) && !kind->largest ? -value : value) * scale);
    }
    if (kind->q_off_grid) {
        q[random_below(random, (uint32_t)n)] = ref_bf16_from_f32(1.0f + 0x1p-7f);
    }
    return q;
}

static uint8_t *packed_keys(random_stream *random, uint32_t n, const row_kind *kind)
{
    uint8_t *keys = new_array((size_t)n * KEY_BYTES);
    uint8_t *scales = keys + (size_t)n * DSRI_FP4_KEY_BYTES;
    for (size_t i = 0; i < (size_t)n * DSRI_FP4_KEY_BYTES; i++) {
        keys[i] = kind->largest ? 0x77 : (uint8_t)random_below(random, 256);
    }
    for (size_t b = 0; b < (size_t)n * DSRI_FP4_SCALE_BYTES; b++) {
        scales[b] =
            (uint8_t)(SCALE_ONE + (kind->tiny_weights ? 35 : -4) + (int)random_below(random, kind->key_span + 1));
        if (kind->zero_blocks && random_one_in(random, 3)) {
            memset(keys + b * 16, random_one_in(random, 2) ? 0x88 : 0, 16);
            scales[b] = 1;
        }
    }
    if (kind->one_odd_key) {
        static const uint8_t odd[] = {0, 1, 254, 255};
        scales[random_below(random, n * 4)] = odd[random_below(random, 4)];
    }
    return keys;
}

static dsri_cache cache_of(const uint8_t *keys, uint64_t n)
{
    return (dsri_cache){.pages = keys,
                        .row_stride = DSRI_FP4_KEY_BYTES,
                        .scales_offset = n * DSRI_FP4_KEY_BYTES,
                        .n_pages = 1,
                        .format = DSR_FORMAT_FP4,
                        .scale_bytes = DSRI_FP4_SCALE_BYTES};
}

static void add_results(const dsri_indexer_plan *plan, dsri_indexer_row_plan *row)
{
    row->output_stride = plan->top_k;
    row->output = new_array((size_t)row->n_queries * plan->top_k * sizeof *row->output);
    row->scores = new_array((size_t)(row->n_queries * row->kv_len) * sizeof *row->scores);
    const uint64_t n_causal = row->start_pos + row->n_queries;
    row->workspace = new_array(row->n_queries * dsri_indexer_region_of(n_causal).size_bytes);
}

static void draw_row(random_stream *random, const dsri_indexer_plan *plan, dsri_indexer_row_plan *row)
{
    static const uint32_t lengths[] = {1, 15, 16, 17, 47, 48, 49, 52, 63, 64, 65, 96, 128, 193, 400};
    const row_kind *kind = &kinds[random_below(random, COUNT_OF(kinds))];
    row->n_queries = random_between(random, 1, 2);
    row->kv_len = lengths[random_below(random, COUNT_OF(lengths))];
    row->ratio = 1;
    row->start_pos = random_below(random, (uint32_t)row->kv_len);
    row->n_queries = row->start_pos + row->n_queries <= row->kv_len ? row->n_queries : 1;
    row->keys = cache_of(packed_keys(random, (uint32_t)row->kv_len, kind), row->kv_len);
    row->q = grid_query(random, (size_t)row->n_queries * plan->n_heads * DSRI_INDEX_DIM, kind);
    row->weights = new_f32(random, random_one_in(random, 4) ? any_pattern(random) : PATTERN_NORMAL, 0.1f,
                           (size_t)row->n_queries * plan->n_heads);
    if (kind->tiny_weights) {
        row->weights = new_f32(random, PATTERN_NORMAL, 0x1p-100f, (size_t)row->n_queries * plan->n_heads);
    }
    add_results(plan, row);
}

static uint16_t *decoded_keys(const dsri_indexer_row_plan *row)
{
    uint16_t *keys = new_array((size_t)row->kv_len * DSRI_INDEX_DIM * sizeof *keys);
    for (uint64_t t = 0; t < row->kv_len; t++) {
        const dsri_cache_entry key = dsri_cache_at(&row->keys, t);
        ref_decode_fp4_key(key.values, key.scales, keys + t * DSRI_INDEX_DIM);
    }
    return keys;
}

static void check_row(const dsri_cpu_kernel *kernel, const dsri_indexer_plan *plan, const dsri_indexer_row_plan *row)
{
    const uint16_t *keys = decoded_keys(row);
    float *scores = new_array((size_t)row->kv_len * sizeof *scores);
    int32_t *list = new_array(plan->top_k * sizeof *list);
    for (uint32_t i = 0; i < row->n_queries; i++) {
        ref_indexer_scores(row->q + (size_t)i * plan->n_heads * DSRI_INDEX_DIM, row->weights + i * plan->n_heads, keys,
                           DSRI_INDEX_DIM, row->kv_len, row->start_pos + i + 1, plan->n_heads, scores);
        ref_top_k(scores, row->kv_len, plan->top_k, row->offset, list);
        assert_bits(kernel, "scores", DSR_DTYPE_F32, row->scores + i * row->kv_len, scores,
                    (size_t)row->kv_len * sizeof *scores);
        assert_bits(kernel, "list", DSR_DTYPE_I32, row->output + i * row->output_stride, list,
                    plan->top_k * sizeof *list);
    }
}

static void bits_of_the_chain(const dsri_cpu_kernel *kernel, uint64_t n_seeds)
{
    for (test_seed = 1; test_seed <= n_seeds; test_seed++) {
        random_stream random = random_open(test_seed, 0);
        static dsri_indexer_plan plan;
        memset(&plan, 0, sizeof plan);
        plan.n_rows = random_between(&random, 1, 2);
        plan.n_heads = 32u << random_below(&random, 3);
        plan.top_k = 32;
        for (uint32_t r = 0; r < plan.n_rows; r++) {
            draw_row(&random, &plan, &plan.rows[r]);
            plan.rows[r].first_query = plan.n_queries;
            plan.n_queries += plan.rows[r].n_queries;
        }
        assert_true(kernel->accepts(&plan));
        run_kernel(kernel, &plan, &random);
        for (uint32_t r = 0; r < plan.n_rows; r++) {
            check_row(kernel, &plan, &plan.rows[r]);
        }
        drop_arrays();
    }
}

/* What heads of n_bits bits in eighths are made of: numbers of 7 or 8 bits, of which the greatest reaches n_bits, and
 * the least multiple of 2^spare is one. `largest`: all others are the greatest. */
static uint16_t *integer_queries(random_stream *random, size_t n, uint32_t n_bits, uint32_t spare, int largest)
{
    const uint32_t greatest_shift = n_bits > 8 ? n_bits - 8 : 0, most = 0xffu >> (n_bits > 8 ? 0 : 8 - n_bits);
    uint16_t *q = new_array(n * sizeof *q);
    for (size_t i = 0; i < n; i++) {
        const size_t feature = i % DSRI_INDEX_DIM;
        uint32_t a = most << greatest_shift >> spare;
        if (feature == 3 && n_bits > 7) {
            a = 1;
        } else if (!largest && feature != 1) {
            const uint32_t shift = n_bits > 8 ? random_between(random, 0, greatest_shift - spare) : 0;
            a = random_below(random, (n_bits > 8 ? most : most >> spare) + 1) << shift;
        }
        q[i] =
            ref_bf16_from_f32((random_one_in(random, 2) && !largest ? -1.0f : 1.0f) * ldexpf((float)(a << spare), -3));
    }
    return q;
}

/* Keys whose scales span just so many binades from `least` on. `largest`: one block of +0.5, the others +6. */
static uint8_t *spanning_keys(random_stream *random, uint32_t n, int least, uint32_t span, int largest)
{
    uint8_t *keys = new_array((size_t)n * KEY_BYTES);
    uint8_t *scales = keys + (size_t)n * DSRI_FP4_KEY_BYTES;
    for (size_t i = 0; i < (size_t)n * DSRI_FP4_KEY_BYTES; i++) {
        keys[i] = largest ? 0x77 : (uint8_t)(random_below(random, 256) | 1);
    }
    for (uint32_t t = 0; t < n; t++, scales += DSRI_FP4_SCALE_BYTES) {
        const uint32_t low = random_below(random, 4), high = (low + random_between(random, 1, 3)) % 4;
        for (uint32_t b = 0; b < 4; b++) {
            scales[b] = (uint8_t)(least + (int)(largest ? span : random_below(random, span + 1)));
        }
        scales[low] = (uint8_t)least;
        scales[high] = (uint8_t)(least + (int)span);
        if (largest) {
            memset(keys + (size_t)t * DSRI_FP4_KEY_BYTES + (size_t)low * 16, 0x11, 16);
        }
    }
    return keys;
}

/* Whether a worker's scratch holds the query as the chain takes it: a feature of the first 16 heads in F32. */
static int has_chain_query(const dsri_worker_memory *memory, const uint16_t *q)
{
    float heads[16];
    for (int h = 0; h < 16; h++) {
        heads[h] = ref_f32_from_bf16(q[h * DSRI_INDEX_DIM + 1]);
    }
    for (size_t i = 0; i + sizeof heads <= sizeof memory->scratch; i += sizeof *heads) {
        if (memcmp(memory->scratch + i, heads, sizeof heads) == 0) {
            return 1;
        }
    }
    return 0;
}

static void check_span(const dsri_cpu_kernel *kernel, random_stream *random, int least, uint32_t span, uint32_t n_bits,
                       uint32_t spare, int largest)
{
    enum { N_KEYS = 52, LEAST_SCALE = 127 - 39, GREATEST_SCALE = 127 + 40 };
    static dsri_worker_memory memory;
    static dsri_indexer_plan plan;
    dsri_indexer_row_plan *const row = plan.rows;
    memset(&plan, 0, sizeof plan);
    memset(&memory, 0, sizeof memory);
    plan.n_rows = plan.n_queries = 1;
    plan.n_heads = 32u << random_below(random, 3);
    plan.top_k = 32;
    *row = (dsri_indexer_row_plan){.n_queries = 1, .kv_len = N_KEYS, .ratio = 1, .start_pos = N_KEYS - 1};
    row->keys = cache_of(spanning_keys(random, N_KEYS, least, span, largest), N_KEYS);
    row->q = integer_queries(random, (size_t)plan.n_heads * DSRI_INDEX_DIM, n_bits, spare, largest);
    row->weights = new_f32(random, PATTERN_NORMAL, 0.1f, plan.n_heads);
    add_results(&plan, row);
    run_kernel_in(&memory, kernel, &plan, random);
    check_row(kernel, &plan, row);
    const int is_exact =
        span <= (n_bits == 7 ? 6 : 0) + spare && least >= LEAST_SCALE && least + (int)span <= GREATEST_SCALE;
    if (has_chain_query(&memory, row->q) == is_exact) {
        fail_msg("scales from %d on, %u binades, queries of %u bits, multiples of 2^%u: the chain is %s", least, span,
                 n_bits, spare, is_exact ? "taken" : "not taken");
    }
    drop_arrays();
}

/* Which spans the unit takes, and that none of them loses a bit. */
static void spans(const dsri_cpu_kernel *kernel)
{
    static const uint32_t all[] = {0, 3, 4, 5, 6, 7, 8, 9, 10, 14};
    random_stream random = random_open(1, 0);
    for (uint32_t i = 0; i < COUNT_OF(all) * 4 * 2; i++) {
        const uint32_t span = all[i / 8], spare = i / 2 % 4;
        const int s = (int)span, least[] = {SCALE_ONE, 88, 87, 167 - s, 168 - s, 0, 254 - s};
        for (uint32_t k = 0; k < COUNT_OF(least); k++) {
            check_span(kernel, &random, least[k], span, 7, spare, (int)(i % 2));
        }
    }
    for (uint32_t i = 0; i < COUNT_OF(all) * 5 * 2; i++) {
        check_span(kernel, &random, i % 3 ? SCALE_ONE : 88, all[i / 10], 13, i / 2 % 5, (int)(i % 2));
    }
}

static void check_kernel(const dsri_cpu_kernel *kernel, uint64_t n_seeds)
{
    bits_of_the_chain(kernel, n_seeds);
    spans(kernel);
}

static void vnni(void **state)
{
    (void)state;
    if (!(dsri_cpu_features() & DSRI_CPU_AVX512_VNNI)) {
        skip();
    }
    check_kernel(&dsri_kernel_indexer__avx512vnni, 150);
}

static void vnni_beside_bf16(void **state)
{
    const uint32_t needed = DSRI_CPU_AVX512_VNNI | DSRI_CPU_AVX512_BF16;
    (void)state;
    if ((dsri_cpu_features() & needed) != needed) {
        skip();
    }
    bits_of_the_chain(&dsri_kernel_indexer_chains__avx512vnni, 300);
}

static void amx(void **state)
{
    (void)state;
    if (!(dsri_cpu_features() & DSRI_CPU_AMX_INT8) || !dsri_ask_for_tiles()) {
        skip();
    }
    check_kernel(&dsri_kernel_indexer__amxint8, 150);
}

static void amx_on_emulated_tiles(void **state)
{
    (void)state;
    check_kernel(&dsri_kernel_indexer__amxemulated, 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(vnni), cmocka_unit_test(vnni_beside_bf16),
                                       cmocka_unit_test(amx), cmocka_unit_test(amx_on_emulated_tiles)};
    return dsr_isa_available(DSR_ISA_AVX512) ? cmocka_run_group_tests(tests, open_memory, close_memory) : 77;
}

#else

int main(void)
{
    return 77;
}

#endif
