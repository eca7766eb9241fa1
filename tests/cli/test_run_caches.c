/* `dsrows run` on caches of every format, in one piece and in pages: the bits that the reference gives on the decoded
 * cache, and what it says of tensors that do not fit. */
#include "draft.h"

#include "bit_packed.h"
#include "reference/reference.h"

#include <dsrows/dsrows.h>

#include <math.h>

enum { N_ROWS = 3, N_HEADS = 64, PAGE_SIZE = 16, TOP_K = 64, MAX_ENTRIES = 80 };

static const float attention_scale = 0.0625f;
static const uint32_t lengths[N_ROWS] = {1, 40, 67};

/* What the caches of a case decode to. */
typedef struct decoded_case {
    draft *d;
    uint16_t entries[N_ROWS][MAX_ENTRIES * REF_HEAD_DIM];
} decoded_case;

static void add_number(draft *d, const char *name, int r, int32_t value)
{
    *(int32_t *)add(d, name, r, "I32", 1, 1, 1) = value;
}

static void set_number(const draft *d, const char *name, int r, int32_t value)
{
    *(int32_t *)(uintptr_t)drafted(d, name, r)->data = value;
}

static uint32_t value_bytes(uint32_t dim)
{
    return dim == REF_INDEX_DIM ? FP4_VALUE_BYTES : FP8_VALUE_BYTES;
}

static uint32_t scale_bytes(uint32_t dim)
{
    return dim == REF_INDEX_DIM ? FP4_SCALE_BYTES : FP8_SCALE_BYTES;
}

/* Entry i of a packed page of page_size entries; its decoded form goes to entry. */
static void fill_packed(draft *d, uint32_t dim, uint8_t *page, uint32_t page_size, uint32_t i, uint16_t *entry)
{
    uint8_t *values = page + (size_t)i * value_bytes(dim);
    uint8_t *scales = page + (size_t)page_size * value_bytes(dim) + (size_t)i * scale_bytes(dim);
    packed_fill(&d->random, PACKED_PLAIN, dim, i, page_size, values, scales);
    packed_decode(dim, values, scales, entry);
}

/* In one piece, kv_len entries in use and a few more. */
static void add_one_piece(decoded_case *c, uint32_t dim, int r)
{
    const uint32_t n = lengths[r] + (r == 1 ? 3 : 0);
    uint8_t *piece = add(c->d, "kv", r, "U8", 2, n, value_bytes(dim) + scale_bytes(dim));
    for (uint32_t t = 0; t < n; t++) {
        fill_packed(c->d, dim, piece, n, t, c->entries[r] + (size_t)t * dim);
    }
    if (r == 1) {
        add_number(c->d, "kv_len", r, (int32_t)lengths[r]);
    }
}

/* Rows of one pool, page 0 of which all share. */
static void add_pool(decoded_case *c, uint32_t dim, int is_packed)
{
    enum { N_PAGES = 12 };
    const uint64_t page_bytes =
        dsr_cache_page_bytes(is_packed ? (dim == 128 ? DSR_FORMAT_FP4 : DSR_FORMAT_FP8) : 0, dim, PAGE_SIZE);
    uint8_t *pool = is_packed ? add(c->d, "kv", -1, "U8", 2, N_PAGES, page_bytes)
                              : add(c->d, "kv", -1, "BF16", 2, N_PAGES * PAGE_SIZE, dim);
    uint16_t decoded[PAGE_SIZE * REF_HEAD_DIM];
    int32_t *tables[N_ROWS], next = N_PAGES - 1;
    for (int r = 0; r < N_ROWS; r++) {
        const uint32_t n_pages = (lengths[r] + PAGE_SIZE - 1) / PAGE_SIZE;
        tables[r] = add(c->d, "page_table", r, "I32", 1, n_pages, 1);
        for (uint32_t i = 1; i < n_pages; i++) {
            tables[r][i] = next--;
        }
        add_number(c->d, "kv_len", r, (int32_t)lengths[r]);
    }
    for (int32_t id = 0; id < N_PAGES; id++) {
        uint8_t *page = pool + (uint64_t)id * page_bytes;
        for (uint32_t i = 0; i < PAGE_SIZE; i++) {
            uint16_t *entry = decoded + (size_t)i * dim;
            if (is_packed) {
                fill_packed(c->d, dim, page, PAGE_SIZE, i, entry);
            } else {
                pattern_fill_bf16(&c->d->random, PATTERN_NORMAL, 1.0f, entry, dim);
                memcpy(page + (size_t)i * dim * sizeof *entry, entry, dim * sizeof *entry);
            }
        }
        for (int r = 0; r < N_ROWS; r++) {
            for (uint32_t i = 0; i * PAGE_SIZE < lengths[r]; i++) {
                if (tables[r][i] == id) {
                    memcpy(c->entries[r] + (size_t)i * PAGE_SIZE * dim, decoded, PAGE_SIZE * dim * sizeof *decoded);
                }
            }
        }
    }
    add_number(c->d, "page_size", -1, PAGE_SIZE);
}

static decoded_case *new_case(uint64_t seed, uint32_t dim, int is_packed, int is_paged)
{
    decoded_case *c = calloc(1, sizeof *c);
    assert_non_null(c);
    c->d = new_draft(seed);
    if (is_packed) {
        add_number(c->d, "kv_format", -1, dim == REF_INDEX_DIM ? DSR_FORMAT_FP4 : DSR_FORMAT_FP8);
    }
    if (is_paged) {
        add_pool(c, dim, is_packed);
    }
    for (int r = 0; r < N_ROWS && !is_paged; r++) {
        add_one_piece(c, dim, r);
    }
    return c;
}

static void free_case(decoded_case *c)
{
    free_draft(c->d);
    free(c);
}

/* ---- attention --------------------------------------------------------------------------------------------- */

static decoded_case *attention_case(int is_packed, int is_paged)
{
    decoded_case *c = new_case(1, REF_HEAD_DIM, is_packed, is_paged);
    for (int r = 0; r < N_ROWS; r++) {
        const uint32_t width = 20 + 33 * (uint32_t)r;
        add_bf16(c->d, "q", r, N_HEADS, REF_HEAD_DIM);
        int32_t *indices = add(c->d, "indices", r, "I32", 1, width, 1);
        for (uint32_t i = 0; i < width; i++) {
            indices[i] = random_one_in(&c->d->random, 4) ? -1 : (int32_t)random_below(&c->d->random, lengths[r]);
        }
    }
    add_f32(c->d, "sinks", -1, 1, N_HEADS, 1);
    *(float *)add(c->d, "scale", -1, "F32", 1, 1, 1) = attention_scale;
    return c;
}

static void check_attention(const decoded_case *c, st_file *file, int first_row, int end_row)
{
    static uint16_t expected[N_HEADS * REF_HEAD_DIM];
    static float scratch[4096];
    for (int r = first_row; r < end_row; r++) {
        const st_tensor *indices = drafted(c->d, "indices", r);
        ref_sparse_attention(drafted(c->d, "q", r)->data, c->entries[r], REF_HEAD_DIM, lengths[r], indices->data,
                             indices->shape[0], drafted(c->d, "sinks", -1)->data, attention_scale, N_HEADS, scratch,
                             expected);
        expect_tensor(file, "output", r, "BF16", 2, N_HEADS, REF_HEAD_DIM, expected);
    }
    st_close(file);
}

static void runs_attention(void **state)
{
    (void)state;
    for (int form = 1; form < 4; form++) {
        decoded_case *c = attention_case(form % 2, form / 2);
        write_draft(c->d, "case.safetensors");
        check_attention(c, run_and_open("sparse-attention", ""), 0, N_ROWS);
        check_attention(c, run_and_open("sparse-attention", "--only 2 --threads 2"), 2, N_ROWS);
        free_case(c);
    }
}

/* ---- indexer ----------------------------------------------------------------------------------------------- */

static decoded_case *indexer_case(int is_packed, int is_paged)
{
    decoded_case *c = new_case(2, REF_INDEX_DIM, is_packed, is_paged);
    for (int r = 0; r < N_ROWS; r++) {
        add_bf16(c->d, "q", r, N_HEADS, REF_INDEX_DIM);
        add_f32(c->d, "weights", r, 1, N_HEADS, 1);
        add_number(c->d, "start_pos", r, 4 * (int32_t)lengths[r] - 1);
    }
    add_number(c->d, "top_k", -1, TOP_K);
    return c;
}

static void check_indexer(const decoded_case *c, st_file *file, int first_row, int end_row)
{
    float scores[MAX_ENTRIES];
    int32_t indices[TOP_K];
    for (int r = first_row; r < end_row; r++) {
        ref_indexer_scores(drafted(c->d, "q", r)->data, drafted(c->d, "weights", r)->data, c->entries[r], REF_INDEX_DIM,
                           lengths[r], lengths[r], N_HEADS, scores);
        ref_top_k(scores, lengths[r], TOP_K, 0, indices);
        expect_tensor(file, "scores", r, "F32", 1, lengths[r], 1, scores);
        expect_tensor(file, "indices", r, "I32", 1, TOP_K, 1, indices);
    }
    st_close(file);
}

static void runs_indexer(void **state)
{
    (void)state;
    for (int form = 1; form < 4; form++) {
        decoded_case *c = indexer_case(form % 2, form / 2);
        write_draft(c->d, "case.safetensors");
        check_indexer(c, run_and_open("indexer", ""), 0, N_ROWS);
        check_indexer(c, run_and_open("indexer", "--only 1"), 1, 2);
        free_case(c);
    }
}

static void expect_error(const decoded_case *c, const char *op, const char *text)
{
    char arguments[128];
    snprintf(arguments, sizeof arguments, "run %s --in case.safetensors --out result.safetensors", op);
    write_draft(c->d, "case.safetensors");
    command_expect(2, text, arguments);
}

/* Rows with caches of their own do not need it, which does not make it right. */
static void refuses_a_common_cache_of_another_dtype(void **state)
{
    static const struct {
        int is_packed;
        const char *dtype, *message;
    } cases[] = {{0, "F32", "tensor kv is F32 [5, 512], needed is BF16 [n, 512]"},
                 {1, "BF16", "tensor kv is BF16 [5, 512], needed is U8 [n, bytes]"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        decoded_case *c = attention_case(1, 0);
        set_number(c->d, "kv_format", -1, cases[i].is_packed ? DSR_FORMAT_FP8 : DSR_FORMAT_BF16);
        add(c->d, "kv", -1, cases[i].dtype, 2, 5, REF_HEAD_DIM);
        expect_error(c, "sparse-attention", cases[i].message);
        free_case(c);
    }
}

/* A pool of the row's own is taken before the common one. */
static void prefers_the_rows_own_pool(void **state)
{
    decoded_case *c = indexer_case(1, 1);
    (void)state;
    uint8_t *pool = add(c->d, "kv", 0, "U8", 2, 1, dsr_cache_page_bytes(DSR_FORMAT_FP4, 128, PAGE_SIZE));
    for (uint32_t i = 0; i < PAGE_SIZE; i++) {
        fill_packed(c->d, REF_INDEX_DIM, pool, PAGE_SIZE, i, c->entries[0] + (size_t)i * REF_INDEX_DIM);
    }
    write_draft(c->d, "case.safetensors");
    check_indexer(c, run_and_open("indexer", ""), 0, N_ROWS);
    free_case(c);
}

/* A page number outside the pool is a bad value, not an error. */
static void spoil_page(const decoded_case *c, int32_t page)
{
    ((int32_t *)(uintptr_t)drafted(c->d, "page_table", 2)->data)[1] = page;
    write_draft(c->d, "case.safetensors");
}

static void passes_over_keys_of_bad_pages(void **state)
{
    char message[ST_MESSAGE_BYTES];
    decoded_case *c = indexer_case(1, 1);
    (void)state;
    spoil_page(c, 12);
    check_indexer(c, run_and_open("indexer", ""), 0, 2);
    st_file *file = st_open("result.safetensors", message);
    assert_non_null(file);
    const float *scores = st_find(file, "scores.2")->data;
    for (uint32_t t = 0; t < lengths[2]; t++) {
        assert_int_equal(scores[t] == -INFINITY, t / PAGE_SIZE == 1);
    }
    st_close(file);
    free_case(c);
}

static void gives_zeros_for_entries_of_bad_pages(void **state)
{
    static const uint16_t zeros[N_HEADS * REF_HEAD_DIM];
    char message[ST_MESSAGE_BYTES];
    decoded_case *c = attention_case(0, 1);
    (void)state;
    ((int32_t *)(uintptr_t)drafted(c->d, "indices", 2)->data)[0] = PAGE_SIZE;
    spoil_page(c, -1);
    check_attention(c, run_and_open("sparse-attention", ""), 0, 2);
    st_file *file = st_open("result.safetensors", message);
    assert_non_null(file);
    expect_tensor(file, "output", 2, "BF16", 2, N_HEADS, REF_HEAD_DIM, zeros);
    st_close(file);
    free_case(c);
}

/* ---- bad cases --------------------------------------------------------------------------------------------- */

static void names_bad_formats(void **state)
{
    decoded_case *c = attention_case(1, 0);
    (void)state;
    set_number(c->d, "kv_format", -1, 1);
    expect_error(c, "sparse-attention", "tensor kv_format: 1 given, needed is 0 (BF16) or 2 (FP8)");
    set_number(c->d, "kv_format", -1, 0);
    expect_error(c, "sparse-attention", "tensor kv.0 is U8 [1, 584], needed is BF16 [n, 512]");
    set_number(c->d, "kv_format", -1, 2);
    set_number(c->d, "kv_len", 1, 44);
    expect_error(c, "sparse-attention", "tensor kv_len.1: 44 given, needed is a number from 1 to the 43 entries");
    set_number(c->d, "kv_len", 1, 0);
    expect_error(c, "flash-attention", "tensor kv_len.1: 0 given");
    free_case(c);
    c = indexer_case(1, 0);
    set_number(c->d, "kv_format", -1, 2);
    expect_error(c, "indexer", "tensor kv_format: 2 given, needed is 0 (BF16) or 1 (FP4)");
    set_number(c->d, "kv_format", -1, 1);
    set_number(c->d, "kv_len", 1, 30);
    expect_error(c, "indexer", "tensor kv.1: 30 keys given, start_pos makes 40 visible");
    free_case(c);
}

static void names_bad_pages(void **state)
{
    decoded_case *c = indexer_case(1, 1);
    (void)state;
    set_number(c->d, "page_size", -1, 24);
    expect_error(c, "indexer", "tensor page_size: 24 given, needed is 16, 32, 64, 128 or 256");
    set_number(c->d, "page_size", -1, 32);
    expect_error(c, "indexer", "tensor kv is U8 [12, 1088], needed is U8 [pool pages, 2176]");
    set_number(c->d, "page_size", -1, PAGE_SIZE);
    set_number(c->d, "kv_len", 2, 81);
    expect_error(c, "indexer", "tensor kv_len.2: 81 given, needed is a number from 1 to the 80 entries");
    free_case(c);
    c = indexer_case(0, 0);
    add_number(c->d, "page_size", -1, PAGE_SIZE);
    expect_error(c, "indexer", "tensor page_size: no row has a page_table");
    free_case(c);
    c = indexer_case(0, 1);
    set_number(c->d, "page_size", -1, 128);
    expect_error(c, "indexer", "tensor kv: 192 entries given, needed are whole pages of 128");
    free_case(c);
}

static void asks_for_the_page_size(void **state)
{
    decoded_case *c = indexer_case(1, 1);
    (void)state;
    st_tensor *page_size = (st_tensor *)(uintptr_t)drafted(c->d, "page_size", -1);
    free((void *)(uintptr_t)page_size->name);
    page_size->name = strdup("page_sizes");
    expect_error(c, "indexer", "tensor page_table.0: a page table needs tensor page_size, I32 [1]");
    free_case(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_attention),
        cmocka_unit_test(runs_indexer),
        cmocka_unit_test(names_bad_formats),
        cmocka_unit_test(names_bad_pages),
        cmocka_unit_test(asks_for_the_page_size),
        cmocka_unit_test(prefers_the_rows_own_pool),
        cmocka_unit_test(refuses_a_common_cache_of_another_dtype),
        cmocka_unit_test(passes_over_keys_of_bad_pages),
        cmocka_unit_test(gives_zeros_for_entries_of_bad_pages),
    };
    return cmocka_run_group_tests(tests, command_enter_directory, command_leave_directory);
}
