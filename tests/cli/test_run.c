/* `dsrows run`: every op through files against the reference, bit for bit; rows picked with --only; and what it says of
 * missing and ill-shaped tensors. */
#include "draft.h"
#include "reference/reference.h"

#include <math.h>

enum { N_ROWS = 5, TOP_K = 64, RATIO = 4 };

/* ---- attention --------------------------------------------------------------------------------------------- */

enum { N_HEADS = 64 };
static const float attention_scale = 0.0625f;
static const int all_rows[N_ROWS] = {0, 1, 2, 3, 4};
static const int picked_rows[3] = {3, 0, 4};

static draft *attention_case(void)
{
    draft *d = new_draft(1);
    for (int r = 0; r < N_ROWS; r++) {
        const uint32_t kv_len = (uint32_t)(5 + 40 * r), width = (uint32_t)(1 + 33 * r);
        add_bf16(d, "q", r, N_HEADS, REF_HEAD_DIM);
        add_bf16(d, "kv", r, kv_len, REF_HEAD_DIM);
        int32_t *indices = add(d, "indices", r, "I32", 1, width, 1);
        for (uint32_t i = 0; i < width; i++) {
            indices[i] = random_one_in(&d->random, 4) ? -1 : (int32_t)random_below(&d->random, kv_len);
        }
    }
    add_f32(d, "sinks", -1, 1, N_HEADS, 1);
    *(float *)add(d, "scale", -1, "F32", 1, 1, 1) = attention_scale;
    return d;
}

static void check_attention(const draft *d, st_file *file, int flash, const int *rows, int n_rows)
{
    uint16_t *expected = calloc(N_HEADS * REF_HEAD_DIM, sizeof *expected);
    float *scratch = calloc(4096, sizeof *scratch);
    assert_int_equal(st_n_tensors(file), n_rows);
    for (int i = 0; i < n_rows; i++) {
        const st_tensor *kv = drafted(d, "kv", rows[i]), *indices = drafted(d, "indices", rows[i]);
        (flash ? ref_flash_attention : ref_sparse_attention)(
            drafted(d, "q", rows[i])->data, kv->data, REF_HEAD_DIM, kv->shape[0], indices->data, indices->shape[0],
            drafted(d, "sinks", -1)->data, attention_scale, N_HEADS, scratch, expected);
        expect_tensor(file, "output", rows[i], "BF16", 2, N_HEADS, REF_HEAD_DIM, expected);
    }
    free(expected);
    free(scratch);
    st_close(file);
}

static void runs_attention(void **state)
{
    draft *d = attention_case();
    (void)state;
    write_draft(d, "case.safetensors");
    check_attention(d, run_and_open("sparse-attention", ""), 0, all_rows, N_ROWS);
    check_attention(d, run_and_open("flash-attention", "--threads 2 --isa scalar"), 1, all_rows, N_ROWS);
    check_attention(d, run_and_open("sparse-attention", "--only 3,0,4 --exact device"), 0, picked_rows, 3);
    check_attention(d, run_and_open("flash-attention", "--only 2"), 1, &all_rows[2], 1);
    free_draft(d);
}

/* ---- indexer ----------------------------------------------------------------------------------------------- */

static draft *indexer_case(int with_options)
{
    draft *d = new_draft(2);
    for (int r = 0; r < N_ROWS; r++) {
        const uint32_t n_keys = (uint32_t)(3 + 60 * r);
        add_bf16(d, "q", r, N_HEADS, REF_INDEX_DIM);
        add_f32(d, "weights", r, 1, N_HEADS, 1);
        add_bf16(d, "kv", r, n_keys, REF_INDEX_DIM);
        /* Some keys at the end are not seen yet. */
        *(int32_t *)add(d, "start_pos", r, "I32", 1, 1, 1) = (int32_t)(n_keys - (uint32_t)(r % 2) * 2) * RATIO - 1;
        if (with_options && r % 2 == 1) {
            *(int32_t *)add(d, "offset", r, "I32", 1, 1, 1) = 128;
        }
    }
    if (with_options) {
        *(int32_t *)add(d, "top_k", -1, "I32", 1, 1, 1) = TOP_K;
        *(int32_t *)add(d, "ratio", -1, "I32", 1, 1, 1) = RATIO;
    }
    return d;
}

static void check_indexer(const draft *d, st_file *file, const int *rows, int n_rows, uint32_t top_k, int with_options)
{
    float scores[512];
    int32_t indices[512];
    assert_int_equal(st_n_tensors(file), 2 * n_rows);
    for (int i = 0; i < n_rows; i++) {
        const int r = rows[i];
        const st_tensor *keys = drafted(d, "kv", r);
        int32_t start_pos;
        memcpy(&start_pos, drafted(d, "start_pos", r)->data, sizeof start_pos);
        ref_indexer_scores(drafted(d, "q", r)->data, drafted(d, "weights", r)->data, keys->data, REF_INDEX_DIM,
                           keys->shape[0], (uint64_t)(start_pos + 1) / RATIO, N_HEADS, scores);
        ref_top_k(scores, keys->shape[0], top_k, with_options && r % 2 == 1 ? 128 : 0, indices);
        expect_tensor(file, "scores", r, "F32", 1, keys->shape[0], 1, scores);
        expect_tensor(file, "indices", r, "I32", 1, top_k, 1, indices);
    }
    st_close(file);
}

static void runs_indexer(void **state)
{
    draft *d = indexer_case(1);
    (void)state;
    write_draft(d, "case.safetensors");
    check_indexer(d, run_and_open("indexer", ""), all_rows, N_ROWS, TOP_K, 1);
    check_indexer(d, run_and_open("indexer", "--only 3,0,4 --threads 5"), picked_rows, 3, TOP_K, 1);
    free_draft(d);
    d = indexer_case(0);
    write_draft(d, "case.safetensors");
    check_indexer(d, run_and_open("indexer", ""), all_rows, N_ROWS, 512, 0);
    free_draft(d);
}

/* ---- compressor -------------------------------------------------------------------------------------------- */

typedef struct shape {
    uint32_t ratio, dim, coff;
} shape;

static draft *compressor_case(shape s)
{
    draft *d = new_draft(3);
    for (int r = 0; r < N_ROWS; r++) {
        const uint32_t n_tokens = s.ratio * 2 + 3 - (uint32_t)r * (s.ratio / 2);
        add_f32(d, "kv", r, 2, n_tokens, s.coff * s.dim);
        add_f32(d, "score", r, 2, n_tokens, s.coff * s.dim);
    }
    add_f32(d, "ape", -1, 2, s.ratio, s.coff * s.dim);
    add_f32(d, "norm", -1, 1, s.dim, 1);
    *(float *)add(d, "epsilon", -1, "F32", 1, 1, 1) = 1e-6f;
    return d;
}

static void check_compressor(const draft *d, st_file *file, shape s, const int *rows, int n_rows)
{
    const uint32_t width = s.coff * s.dim;
    float *kv_state = calloc(s.coff * s.ratio * width, sizeof *kv_state);
    float *score_state = calloc(s.coff * s.ratio * width, sizeof *score_state);
    uint16_t output[4][512];
    for (int i = 0; i < n_rows; i++) {
        const st_tensor *kv = drafted(d, "kv", rows[i]);
        const float *values = kv->data, *scores = drafted(d, "score", rows[i])->data;
        uint32_t n_emitted = 0;
        ref_compressor_init(s.ratio, s.dim, kv_state, score_state);
        for (uint32_t t = 0; t < kv->shape[0]; t++) {
            n_emitted += (uint32_t)ref_compressor_step(s.ratio, s.dim, t, values + t * width, scores + t * width,
                                                       drafted(d, "ape", -1)->data, drafted(d, "norm", -1)->data, 1e-6f,
                                                       kv_state, score_state, &output[0][0] + n_emitted * s.dim);
        }
        expect_tensor(file, "output", rows[i], "BF16", 2, n_emitted, s.dim, output);
        expect_tensor(file, "kv_state", rows[i], "F32", 2, s.coff * s.ratio, width, kv_state);
        expect_tensor(file, "score_state", rows[i], "F32", 2, s.coff * s.ratio, width, score_state);
    }
    free(kv_state);
    free(score_state);
    st_close(file);
}

static void runs_compressor(void **state)
{
    static const shape shapes[] = {{4, 128, 2}, {4, 512, 2}, {128, 512, 1}};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        draft *d = compressor_case(shapes[i]);
        write_draft(d, "case.safetensors");
        check_compressor(d, run_and_open("compressor", ""), shapes[i], all_rows, N_ROWS);
        check_compressor(d, run_and_open("compressor", "--only 3,0,4 --threads 2"), shapes[i], picked_rows, 3);
        free_draft(d);
    }
}

/* ---- gather ------------------------------------------------------------------------------------------------ */

static void runs_gather(void **state)
{
    draft *d = new_draft(4);
    float expected[N_ROWS][37];
    (void)state;
    for (int r = 0; r < N_ROWS; r++) {
        pattern_fill_bits(&d->random, add(d, "source", r, "F32", 1, 37, 1), 37 * sizeof(float));
    }
    write_draft(d, "case.safetensors");
    for (int r = 0; r < N_ROWS; r++) {
        memcpy(expected[r], drafted(d, "source", r)->data, sizeof expected[r]);
    }
    st_file *file = run_and_open("gather", "");
    expect_tensor(file, "output", -1, "F32", 2, N_ROWS, 37, expected);
    st_close(file);
    for (int i = 0; i < 3; i++) {
        memcpy(expected[i], drafted(d, "source", picked_rows[i])->data, sizeof expected[i]);
    }
    file = run_and_open("gather", "--only 3,0,4");
    expect_tensor(file, "output", -1, "F32", 2, 3, 37, expected);
    st_close(file);
    free_draft(d);
}

/* ---- bad cases --------------------------------------------------------------------------------------------- */

static void write_draft_without(draft *d, const char *name, int r)
{
    const st_tensor *tensor = drafted(d, name, r);
    const size_t index = (size_t)(tensor - d->tensors);
    const st_tensor removed = *tensor;
    memmove(&d->tensors[index], &d->tensors[index + 1], (d->n - index - 1) * sizeof *tensor);
    d->n--;
    write_draft(d, "case.safetensors");
    memmove(&d->tensors[index + 1], &d->tensors[index], (d->n - index) * sizeof *tensor);
    d->tensors[index] = removed;
    d->n++;
}

#define RUN(op) "run " op " --in case.safetensors --out result.safetensors "

static void names_missing_tensors(void **state)
{
    draft *d = attention_case();
    (void)state;
    write_draft_without(d, "q", 2);
    command_expect(2, "tensor q.2 is missing, needed is BF16 [64, 512]", RUN("sparse-attention"));
    write_draft_without(d, "kv", 4);
    command_expect(2, "tensor kv.4 is missing, needed is BF16 [n, 512]", RUN("sparse-attention"));
    command_expect(0, "", RUN("sparse-attention") "--only 0,3");
    write_draft_without(d, "indices", 0);
    command_expect(2, "tensor indices.0 is missing, needed is I32 [w]", RUN("flash-attention"));
    write_draft_without(d, "sinks", -1);
    command_expect(2, "tensor sinks is missing, needed is F32 [64]", RUN("flash-attention"));
    write_draft_without(d, "scale", -1);
    command_expect(2, "tensor scale is missing, needed is F32 [1]", RUN("flash-attention"));
    write_draft(d, "case.safetensors");
    command_expect(2, "case.safetensors: there is no row 5, the last one is 4", RUN("flash-attention") "--only 0,5");
    command_expect(2, "no rows: tensor source.0 is missing", RUN("gather"));
    free_draft(d);
}

static void names_ill_shaped_tensors(void **state)
{
    draft *d = new_draft(5);
    (void)state;
    add_bf16(d, "q", 0, N_HEADS, REF_INDEX_DIM);
    add_f32(d, "weights", 0, 1, N_HEADS - 1, 1);
    add_bf16(d, "kv", 0, 4, REF_INDEX_DIM);
    int32_t *start_pos = add(d, "start_pos", 0, "I32", 1, 1, 1);
    *start_pos = 15;
    write_draft(d, "case.safetensors");
    command_expect(2, "tensor weights.0 is F32 [63], needed is F32 [64]", RUN("indexer"));
    d->tensors[1].shape[0] = N_HEADS;
    d->tensors[1].dtype = "I32";
    write_draft(d, "case.safetensors");
    command_expect(2, "tensor weights.0 is I32 [64], needed is F32 [64]", RUN("indexer"));
    d->tensors[1].dtype = "F32";
    d->tensors[2].n_dims = 1;
    write_draft(d, "case.safetensors");
    command_expect(2, "tensor kv.0 is BF16 [4], needed is BF16 [n, 128]", RUN("indexer"));
    d->tensors[2].n_dims = 2;
    *start_pos = -1;
    write_draft(d, "case.safetensors");
    command_expect(2, "tensor start_pos.0: -1 given", RUN("indexer"));
    *start_pos = 19;
    write_draft(d, "case.safetensors");
    command_expect(2, "tensor kv.0: 4 keys given, start_pos makes 5 visible", RUN("indexer"));
    *start_pos = 15;
    *(int32_t *)add(d, "top_k", -1, "I32", 1, 1, 1) = 0;
    write_draft(d, "case.safetensors");
    command_expect(2, "tensor top_k: 0 given", RUN("indexer"));
    *(int32_t *)(uintptr_t)drafted(d, "top_k", -1)->data = INT32_MAX;
    write_draft(d, "case.safetensors");
    command_expect(2, "tensor top_k: 2147483647 given, needed is a multiple of 32 up to 2048", RUN("indexer"));
    free_draft(d);
}

/* With --only a row is the first of the call, but messages speak of the file's. */
static void names_rows_of_the_file(void **state)
{
    draft *d = new_draft(8);
    (void)state;
    add_bf16(d, "q", 3, N_HEADS, REF_INDEX_DIM);
    add_f32(d, "weights", 3, 1, N_HEADS, 1);
    add_bf16(d, "kv", 3, 4, REF_INDEX_DIM);
    int32_t *start_pos = add(d, "start_pos", 3, "I32", 1, 1, 1), *offset = add(d, "offset", 3, "I32", 1, 1, 1);
    *start_pos = 15;
    *offset = INT32_MAX - 3;
    write_draft(d, "case.safetensors");
    command_expect(0, "", RUN("indexer") "--only 3");
    *offset = INT32_MAX - 2;
    write_draft(d, "case.safetensors");
    command_expect(2, "tensor offset.3: 2147483645 given", RUN("indexer") "--only 3");
    *offset = -1;
    write_draft(d, "case.safetensors");
    command_expect(2, "tensor offset.3: -1 given", RUN("indexer") "--only 3");
    *offset = 0;
    *start_pos = 19;
    write_draft(d, "case.safetensors");
    command_expect(2, "tensor kv.3: 4 keys given", RUN("indexer") "--only 3");
    free_draft(d);
}

/* What would be left out because of its name: a row's own value, or a value for all rows. */
static void refuses_names_that_are_not_quite_right(void **state)
{
    static const char *const names[][2] = {
        {"offset.01", "offset.R, R the number of a row without leading zeros"},
        {"offset", "offset.R"},
        {"Offset.0", "offset.R"},
        {"kv_len.x", "kv_len.R"},
        {"KV_LEN", "kv_len.R"},
        {"top_k.0", "top_k, one for all rows"},
        {"Top_K", "top_k, one"},
        {"page_size.1", "page_size, one"},
    };
    char text[128];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        draft *d = indexer_case(0);
        *(int32_t *)add(d, names[i][0], -1, "I32", 1, 1, 1) = 32;
        write_draft(d, "case.safetensors");
        snprintf(text, sizeof text, "case.safetensors: tensor %s: needed is %s", names[i][0], names[i][1]);
        command_expect(2, text, RUN("indexer"));
        free_draft(d);
    }
    draft *d = indexer_case(0);
    add_f32(d, "expected_scores", 0, 1, 3, 1);
    add_f32(d, "offset_of_something", -1, 1, 3, 1);
    write_draft(d, "case.safetensors");
    command_expect(0, "", RUN("indexer"));
    free_draft(d);
}

static void refuses_a_scale_that_is_none(void **state)
{
    static const struct {
        float scale;
        const char *text;
    } cases[] = {{NAN, "nan"}, {INFINITY, "inf"}, {0, "0"}, {-2, "-2"}};
    char text[128];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        draft *d = attention_case();
        *(float *)(uintptr_t)drafted(d, "scale", -1)->data = cases[i].scale;
        write_draft(d, "case.safetensors");
        snprintf(text, sizeof text, "case.safetensors: tensor scale: %s given, needed is a finite number above 0",
                 cases[i].text);
        command_expect(2, text, RUN("sparse-attention"));
        free_draft(d);
    }
}

static void refuses_too_many_rows(void **state)
{
    draft *d = new_draft(6);
    (void)state;
    add_f32(d, "source", 0, 1, 3, 1);
    add_f32(d, "source", 64, 1, 3, 1);
    write_draft(d, "case.safetensors");
    command_expect(2, "row 64 given, a call takes at most 64 rows", RUN("gather"));
    command_expect(0, "", RUN("gather") "--only 64,0");
    free_draft(d);
}

static void refuses_unsupported_shapes(void **state)
{
    draft *d = compressor_case((shape){4, 256, 2});
    (void)state;
    write_draft(d, "case.safetensors");
    command_expect(2, "tensor ape: ratio 4 and dim 256 (of norm) given", RUN("compressor"));
    free_draft(d);
    d = compressor_case((shape){4, 128, 1});
    write_draft(d, "case.safetensors");
    command_expect(2, "tensor ape is F32 [4, 128], needed is F32 [4, 256]", RUN("compressor"));
    free_draft(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_attention),
        cmocka_unit_test(runs_indexer),
        cmocka_unit_test(runs_compressor),
        cmocka_unit_test(runs_gather),
        cmocka_unit_test(names_missing_tensors),
        cmocka_unit_test(names_ill_shaped_tensors),
        cmocka_unit_test(refuses_too_many_rows),
        cmocka_unit_test(refuses_unsupported_shapes),
        cmocka_unit_test(names_rows_of_the_file),
        cmocka_unit_test(refuses_names_that_are_not_quite_right),
        cmocka_unit_test(refuses_a_scale_that_is_none),
    };
    return cmocka_run_group_tests(tests, command_enter_directory, command_leave_directory);
}
