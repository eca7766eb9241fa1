/* The compressor, gather, copy, RoPE, fake quantisation and RMS norm kernels against the reference, byte by byte. */
#include "kernel_test.h"

#include "ops/op_plans.h"
#include "ops/sincos_fixed.h"
#include "reference/reference.h"

#include <dsrows/ops.h>

KERNELS(compressor);
KERNELS(gather);
KERNELS(copy);
KERNELS(rope);
KERNELS(fake_quant);
KERNELS(rms_norm);

/* ---- compressor ------------------------------------------------------------------------------------------- */

typedef struct compressor_arrays {
    float *kv_state, *score_state;
    uint16_t *output;
} compressor_arrays;

static uint32_t coff_of(const dsri_compressor_plan *plan)
{
    return plan->ratio == 4 ? 2 : 1;
}

static uint32_t output_rows(const dsri_compressor_plan *plan, uint32_t r)
{
    const uint32_t emitted = (plan->rows[r].start_pos % plan->ratio + plan->rows[r].n_tokens) / plan->ratio;
    return emitted == 0 ? 1 : emitted;
}

static void reference_row(const dsri_compressor_plan *plan, const dsri_compressor_row_plan *row)
{
    const uint32_t width = coff_of(plan) * plan->dim;
    uint16_t *output = row->output, unused[512];
    if (row->start_pos == 0) {
        ref_compressor_init(plan->ratio, plan->dim, row->kv_state, row->score_state);
    }
    memset(output, 0, plan->dim * sizeof *output);
    for (uint32_t i = 0; i < row->n_tokens; i++) {
        const uint32_t pos = row->start_pos + i;
        const int emits = (pos + 1) % plan->ratio == 0;
        ref_compressor_step(plan->ratio, plan->dim, pos, row->kv + (size_t)i * width, row->score + (size_t)i * width,
                            plan->ape, plan->norm, plan->epsilon, row->kv_state, row->score_state,
                            emits ? output : unused);
        output += emits ? plan->dim : 0;
    }
}

static void draw_compressor_row(random_stream *random, const dsri_compressor_plan *plan, dsri_compressor_row_plan *row)
{
    const size_t width = (size_t)coff_of(plan) * plan->dim, state = coff_of(plan) * plan->ratio * width;
    const uint32_t near_end = UINT32_MAX - 600;
    row->n_tokens = random_one_in(random, 2) ? 1 : random_between(random, 1, plan->ratio == 4 ? 30 : 300);
    row->start_pos = random_one_in(random, 8)   ? near_end + random_below(random, 300)
                     : random_one_in(random, 3) ? 0
                                                : plan->ratio * random_below(random, 9) - random_below(random, 2);
    row->start_pos = row->start_pos > near_end + 300 ? 0 : row->start_pos;
    row->kv = new_f32(random, any_pattern(random), 1.0f, row->n_tokens * width);
    row->score = new_f32(random, any_pattern(random), 4.0f, row->n_tokens * width);
    row->kv_state = new_f32(random, any_pattern(random), 1.0f, state);
    row->score_state = new_f32(random, any_pattern(random), 4.0f, state);
    if (random_one_in(random, 2)) { /* a request that has not completed a group */
        for (size_t i = 0; i < state; i++) {
            row->score_state[i] = f32_from_bits(0xff800000u);
            row->kv_state[i] = 0.0f;
        }
    }
}

/* Half-way cases of BF16, the same value of a feature in every item: one bit lost in the softmax shows in the output.
 */
static void set_ties(random_stream *random, const dsri_compressor_plan *plan, dsri_compressor_row_plan *row)
{
    const size_t width = (size_t)coff_of(plan) * plan->dim, state = coff_of(plan) * plan->ratio * width;
    float *kv = new_array(row->n_tokens * width * sizeof *kv);
    for (size_t f = 0; f < plan->dim; f++) {
        const float tie = f32_from_bits(0x3f808000u + (random_below(random, 256) << 16));
        for (size_t at = f; at < row->n_tokens * width; at += plan->dim) {
            kv[at] = tie;
        }
        for (size_t at = f; at < state; at += plan->dim) {
            row->kv_state[at] = tie;
        }
    }
    row->kv = kv;
}

/* Norm weights around the least value that rounds to infinity. */
static float *new_large_weights(random_stream *random, size_t n)
{
    float *weights = new_array(n * sizeof *weights);
    for (size_t f = 0; f < n; f++) {
        weights[f] = random_one_in(random, 64) ? f32_from_bits(0x7f7f7fffu + random_below(random, 4)) : 1.0f;
    }
    return weights;
}

static void compare_compressor(random_stream *random, const dsri_compressor_plan *drawn)
{
    const size_t state = (size_t)coff_of(drawn) * drawn->ratio * coff_of(drawn) * drawn->dim * sizeof(float);
    dsri_compressor_plan want = *drawn;
    for (uint32_t r = 0; r < want.n_rows; r++) {
        dsri_compressor_row_plan *row = &want.rows[r];
        row->kv_state = copy_array(row->kv_state, state);
        row->score_state = copy_array(row->score_state, state);
        row->output = new_array(output_rows(drawn, r) * drawn->dim * sizeof(uint16_t));
        reference_row(&want, row);
    }
    for (size_t k = 0; compressor_kernels[k] && can_run(compressor_kernels[k]); k++) {
        dsri_compressor_plan got = *drawn;
        for (uint32_t r = 0; r < got.n_rows; r++) {
            dsri_compressor_row_plan *row = &got.rows[r];
            row->kv_state = copy_array(row->kv_state, state);
            row->score_state = copy_array(row->score_state, state);
            row->output = new_array(output_rows(drawn, r) * drawn->dim * sizeof(uint16_t));
        }
        run_kernel(compressor_kernels[k], &got, random);
        for (uint32_t r = 0; r < got.n_rows; r++) {
            assert_bits(compressor_kernels[k], "kv_state", DSR_DTYPE_F32, got.rows[r].kv_state, want.rows[r].kv_state,
                        state);
            assert_bits(compressor_kernels[k], "score_state", DSR_DTYPE_F32, got.rows[r].score_state,
                        want.rows[r].score_state, state);
            assert_bits(compressor_kernels[k], "output", DSR_DTYPE_BF16, got.rows[r].output, want.rows[r].output,
                        output_rows(drawn, r) * drawn->dim * sizeof(uint16_t));
        }
    }
}

static void test_compressor(void **unused)
{
    static const struct {
        uint32_t ratio, dim;
    } shapes[] = {{4, 128}, {4, 512}, {128, 512}};
    (void)unused;
    for (test_seed = 1; test_seed <= 60; test_seed++) {
        random_stream random = random_open(test_seed, 1);
        dsri_compressor_plan plan = {.n_rows = random_between(&random, 1, 3)};
        plan.ratio = shapes[test_seed % 3].ratio;
        plan.dim = shapes[test_seed % 3].dim;
        plan.epsilon = 1e-6f;
        plan.ape = new_f32(&random, PATTERN_NORMAL, 1.0f, (size_t)plan.ratio * coff_of(&plan) * plan.dim);
        plan.norm = new_f32(&random, any_pattern(&random), 1.0f, plan.dim);
        for (uint32_t r = 0; r < plan.n_rows; r++) {
            draw_compressor_row(&random, &plan, &plan.rows[r]);
            if (random_one_in(&random, 3)) {
                set_ties(&random, &plan, &plan.rows[r]);
            }
        }
        compare_compressor(&random, &plan);
        drop_arrays();
    }
}

/* A constant row has the norm 1, so that the results are the weights: some round to infinity, some just not. */
static void test_compressor_rounds_to_infinity(void **unused)
{
    (void)unused;
    for (test_seed = 1; test_seed <= 40; test_seed++) {
        random_stream random = random_open(test_seed, 7);
        dsri_compressor_plan plan = {.n_rows = 1, .ratio = 4, .dim = 128, .epsilon = 1e-30f};
        float *kv = new_array(256 * sizeof *kv), *zeros = new_array(2048 * sizeof *zeros);
        memset(zeros, 0, 2048 * sizeof *zeros);
        for (size_t f = 0; f < 256; f++) {
            kv[f] = 1.0f;
        }
        plan.ape = zeros;
        plan.norm = new_large_weights(&random, plan.dim);
        plan.rows[0].n_tokens = 1;
        plan.rows[0].start_pos = 7;
        plan.rows[0].kv = kv;
        plan.rows[0].score = zeros;
        plan.rows[0].score_state = copy_array(zeros, 2048 * sizeof *zeros);
        plan.rows[0].kv_state = new_array(2048 * sizeof *zeros);
        for (size_t i = 0; i < 2048; i++) {
            plan.rows[0].kv_state[i] = 1.0f;
        }
        compare_compressor(&random, &plan);
        drop_arrays();
    }
}

/* ---- copies ----------------------------------------------------------------------------------------------- */

static void test_gather(void **unused)
{
    (void)unused;
    for (test_seed = 1; test_seed <= 20; test_seed++) {
        random_stream random = random_open(test_seed, 2);
        dsri_gather_plan plan = {.n_rows = random_between(&random, 1, 5)};
        plan.row_elements =
            random_one_in(&random, 2) ? random_between(&random, 1, 70) : random_between(&random, 16380, 33000);
        const size_t row_bytes = plan.row_elements * sizeof(float);
        for (uint32_t r = 0; r < plan.n_rows; r++) {
            float *source = new_array(row_bytes);
            pattern_fill_bits(&random, source, row_bytes);
            plan.sources[r] = source;
        }
        for (size_t k = 0; gather_kernels[k] && can_run(gather_kernels[k]); k++) {
            plan.output = new_array(plan.n_rows * row_bytes);
            run_kernel(gather_kernels[k], &plan, &random);
            for (uint32_t r = 0; r < plan.n_rows; r++) {
                assert_bits(gather_kernels[k], "row", DSR_DTYPE_F32, plan.output + r * plan.row_elements,
                            plan.sources[r], row_bytes);
            }
        }
        drop_arrays();
    }
}

static void test_copy(void **unused)
{
    (void)unused;
    for (test_seed = 1; test_seed <= 40; test_seed++) {
        random_stream random = random_open(test_seed, 3);
        dsri_copy_plan plan = {.n_rows = random_between(&random, 1, 4), .row_bytes = random_between(&random, 1, 1200)};
        uint8_t *before[4], *want[4];
        size_t n_bytes[4];
        for (uint32_t r = 0; r < plan.n_rows; r++) {
            dsri_copy_row_plan *row = &plan.rows[r];
            row->ring_rows = random_one_in(&random, 3) ? 0 : random_between(&random, 1, 130);
            row->n_copies = random_between(&random, 1, row->ring_rows == 0 ? 300 : (uint32_t)row->ring_rows);
            row->destination_row = random_below(&random, 400);
            n_bytes[r] =
                (size_t)(row->ring_rows != 0 ? row->ring_rows : row->destination_row + row->n_copies) * plan.row_bytes;
            uint8_t *source = new_array(row->n_copies * plan.row_bytes);
            pattern_fill_bits(&random, source, row->n_copies * plan.row_bytes);
            row->source = source;
            before[r] = new_array(n_bytes[r]);
            want[r] = copy_array(before[r], n_bytes[r]);
            for (uint64_t i = 0; i < row->n_copies; i++) {
                const uint64_t to = row->destination_row + i;
                memcpy(want[r] + (row->ring_rows != 0 ? to % row->ring_rows : to) * plan.row_bytes,
                       source + i * plan.row_bytes, plan.row_bytes);
            }
        }
        for (size_t k = 0; copy_kernels[k] && can_run(copy_kernels[k]); k++) {
            for (uint32_t r = 0; r < plan.n_rows; r++) {
                plan.rows[r].destination = copy_array(before[r], n_bytes[r]);
            }
            run_kernel(copy_kernels[k], &plan, &random);
            for (uint32_t r = 0; r < plan.n_rows; r++) {
                assert_bits(copy_kernels[k], "destination", DSR_DTYPE_U8, plan.rows[r].destination, want[r],
                            n_bytes[r]);
            }
        }
        drop_arrays();
    }
}

/* ---- RoPE and fake quantisation --------------------------------------------------------------------------- */

/* Every 2003rd float below the infinities, and its negative. */
static void test_sincos(void **unused)
{
    (void)unused;
    for (uint32_t bits = 0; bits < 0x7f800000u; bits += 2003) {
        for (int negative = 0; negative < 2; negative++) {
            const float angle = f32_from_bits(negative ? bits | 0x80000000u : bits);
            float got[2], want[2];
            sincos_fixed(angle, &got[0], &got[1]);
            ref_sincos(angle, &want[0], &want[1]);
            if (memcmp(got, want, sizeof got) != 0) {
                fail_msg("angle %a: got %a, %a, want %a, %a", (double)angle, (double)got[0], (double)got[1],
                         (double)want[0], (double)want[1]);
            }
        }
    }
}

static void reference_rope(const dsri_rope_plan *plan, const dsri_rope_row_plan *row, uint16_t *output)
{
    const size_t token = (size_t)plan->n_heads * plan->head_dim;
    for (uint32_t i = 0; i < row->n_tokens; i++) {
        const uint32_t pos = row->start_pos + i * row->position_step;
        if (plan->input_is_f32) {
            ref_rope_f32((const float *)row->input + i * token, plan->n_heads, plan->head_dim, plan->rope_dim, pos,
                         plan->frequencies, (int)plan->inverse, output + i * token);
        } else {
            ref_rope_bf16((const uint16_t *)row->input + i * token, plan->n_heads, plan->head_dim, plan->rope_dim, pos,
                          plan->frequencies, (int)plan->inverse, output + i * token);
        }
    }
}

static void draw_rope(random_stream *random, dsri_rope_plan *plan)
{
    const int usual = random_one_in(random, 2);
    plan->n_rows = random_between(random, 1, 3);
    plan->n_heads = random_one_in(random, 4) ? random_between(random, 1, 128) : random_between(random, 1, 4);
    plan->head_dim = usual ? 512 : 2 * random_between(random, 1, 256);
    plan->rope_dim = usual ? 64 : 2 * random_between(random, 1, plan->head_dim / 2 < 64 ? plan->head_dim / 2 : 64);
    plan->inverse = random_below(random, 2);
    plan->input_is_f32 = random_below(random, 2);
    for (uint32_t i = 0; i < plan->rope_dim / 2; i++) {
        plan->frequencies[i] = random_one_in(random, 20) ? 0x1p127f : 1.0f / (float)random_between(random, 1, 1000000);
    }
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        dsri_rope_row_plan *row = &plan->rows[r];
        row->n_tokens = random_between(random, 1, 3);
        row->start_pos = random_one_in(random, 2) ? random_below(random, 1048576) : (uint32_t)random_next(random);
        row->position_step = random_one_in(random, 2) ? 1 : 128;
        const size_t n = (size_t)row->n_tokens * plan->n_heads * plan->head_dim;
        row->input = plan->input_is_f32 ? (void *)new_f32(random, any_pattern(random), 1.0f, n)
                                        : (void *)new_bf16(random, any_pattern(random), 1.0f, n);
    }
}

static void test_rope(void **unused)
{
    (void)unused;
    for (test_seed = 1; test_seed <= 80; test_seed++) {
        random_stream random = random_open(test_seed, 4);
        dsri_rope_plan plan = {0};
        uint16_t *want[3];
        size_t n_bytes[3];
        draw_rope(&random, &plan);
        for (uint32_t r = 0; r < plan.n_rows; r++) {
            n_bytes[r] = (size_t)plan.rows[r].n_tokens * plan.n_heads * plan.head_dim * sizeof(uint16_t);
            want[r] = new_array(n_bytes[r]);
            reference_rope(&plan, &plan.rows[r], want[r]);
        }
        for (size_t k = 0; rope_kernels[k] && can_run(rope_kernels[k]); k++) {
            dsri_rope_plan got = plan;
            const int in_place = !plan.input_is_f32 && random_one_in(&random, 2);
            for (uint32_t r = 0; r < plan.n_rows; r++) {
                got.rows[r].output = in_place ? copy_array(plan.rows[r].input, n_bytes[r]) : new_array(n_bytes[r]);
                got.rows[r].input = in_place ? got.rows[r].output : plan.rows[r].input;
            }
            run_kernel(rope_kernels[k], &got, &random);
            for (uint32_t r = 0; r < plan.n_rows; r++) {
                assert_bits(rope_kernels[k], "output", DSR_DTYPE_BF16, got.rows[r].output, want[r], n_bytes[r]);
            }
        }
        drop_arrays();
    }
}

static void test_fake_quant(void **unused)
{
    (void)unused;
    for (test_seed = 1; test_seed <= 120; test_seed++) {
        random_stream random = random_open(test_seed, 5);
        const int is_fp8 = test_seed % 2 == 0;
        dsri_fake_quant_plan plan = {.kind = is_fp8 ? DSR_QUANT_FP8_BLOCK64 : DSR_QUANT_HADAMARD_FP4_BLOCK32};
        plan.dim = is_fp8 ? 64 * random_between(&random, 2, 8) : 128;
        const uint32_t floor = random_below(&random, 2);
        plan.min_scale = is_fp8 ? (floor ? 114 : 105) : (floor ? 112 : 1);
        plan.n_vectors = random_between(&random, 1, 40);
        const size_t n = plan.n_vectors * plan.dim, n_bytes = n * sizeof(uint16_t);
        const float scale = f32_from_bits(random_between(&random, 20, 230) << 23);
        uint16_t *input = new_bf16(&random, any_pattern(&random), scale, n), *want = new_array(n_bytes);
        for (size_t at = 0; at < n; at += plan.dim) {
            if (is_fp8) {
                ref_fake_quant_fp8(input + at, plan.dim, floor ? 448e-4f : 1e-4f, want + at);
            } else {
                ref_hadamard_fp4(input + at, floor ? 1e-4f : 0x1.8p-124f, want + at);
            }
        }
        for (size_t k = 0; fake_quant_kernels[k] && can_run(fake_quant_kernels[k]); k++) {
            const int in_place = random_one_in(&random, 2);
            plan.output = in_place ? copy_array(input, n_bytes) : new_array(n_bytes);
            plan.input = in_place ? plan.output : input;
            run_kernel(fake_quant_kernels[k], &plan, &random);
            assert_bits(fake_quant_kernels[k], "output", DSR_DTYPE_BF16, plan.output, want, n_bytes);
        }
        drop_arrays();
    }
}

/* ---- RMS norm --------------------------------------------------------------------------------------------- */

static int is_finite_f32(float x)
{
    return (f32_to_bits(x) & 0x7f800000u) != 0x7f800000u;
}

/* The op on one vector: the reference, and what it says of values that are not finite. */
static void reference_norm(const dsri_rms_norm_plan *plan, const float *x, void *output)
{
    float *scratch = malloc(2 * plan->dim * sizeof *scratch + 64), *y = malloc(plan->dim * sizeof *y);
    assert_non_null(scratch);
    assert_non_null(y);
    ref_rms_norm(x, plan->dim, plan->weight, plan->epsilon, scratch, y);
    const int good = is_finite_f32(scratch[0]);
    for (uint32_t f = 0; f < plan->dim; f++) {
        const uint16_t rounded = ref_bf16_from_f32(y[f]);
        if (plan->output_is_f32) {
            ((float *)output)[f] = good && is_finite_f32(y[f]) ? y[f] : 0.0f;
        } else {
            ((uint16_t *)output)[f] = good && is_finite_f32(f32_from_bf16(rounded)) ? rounded : 0;
        }
    }
    free(scratch);
    free(y);
}

static void test_rms_norm(void **unused)
{
    (void)unused;
    for (test_seed = 1; test_seed <= 100; test_seed++) {
        random_stream random = random_open(test_seed, 6);
        dsri_rms_norm_plan plan = {.input_is_f32 = random_below(&random, 2), .output_is_f32 = random_below(&random, 2)};
        plan.dim =
            random_one_in(&random, 3) ? 512 : 16 * random_between(&random, 1, random_one_in(&random, 4) ? 1024 : 40);
        plan.epsilon = random_one_in(&random, 4) ? 1e-30f : 1e-6f;
        plan.n_vectors = plan.dim > 2000 ? random_between(&random, 1, 3) : random_between(&random, 1, 70);
        const size_t n = plan.n_vectors * plan.dim;
        const size_t in_bytes = n * (plan.input_is_f32 ? 4 : 2), out_bytes = n * (plan.output_is_f32 ? 4 : 2);
        float *x = new_f32(&random, any_pattern(&random), 1.0f, n);
        void *input = x, *want = new_array(out_bytes);
        if (!plan.input_is_f32) {
            uint16_t *narrow = new_bf16(&random, any_pattern(&random), 1.0f, n);
            for (size_t i = 0; i < n; i++) {
                x[i] = f32_from_bf16(narrow[i]);
            }
            input = narrow;
        }
        plan.weight = random_one_in(&random, 3) ? NULL : new_f32(&random, any_pattern(&random), 1.0f, plan.dim);
        if (random_one_in(&random, 4)) {
            for (size_t i = 0; i < n && plan.input_is_f32; i++) {
                x[i] = 1.0f;
            }
            plan.weight = new_large_weights(&random, plan.dim);
        }
        for (size_t v = 0; v < plan.n_vectors; v++) {
            reference_norm(&plan, x + v * plan.dim, (char *)want + v * plan.dim * (plan.output_is_f32 ? 4 : 2));
        }
        for (size_t k = 0; rms_norm_kernels[k] && can_run(rms_norm_kernels[k]); k++) {
            const int in_place = plan.input_is_f32 == plan.output_is_f32 && random_one_in(&random, 2);
            plan.output = in_place ? copy_array(input, in_bytes) : new_array(out_bytes);
            plan.input = in_place ? plan.output : input;
            run_kernel(rms_norm_kernels[k], &plan, &random);
            assert_bits(rms_norm_kernels[k], "output", plan.output_is_f32 ? DSR_DTYPE_F32 : DSR_DTYPE_BF16, plan.output,
                        want, out_bytes);
        }
        drop_arrays();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_compressor, open_memory, close_memory),
        cmocka_unit_test_setup_teardown(test_compressor_rounds_to_infinity, open_memory, close_memory),
        cmocka_unit_test_setup_teardown(test_gather, open_memory, close_memory),
        cmocka_unit_test_setup_teardown(test_copy, open_memory, close_memory),
        cmocka_unit_test(test_sincos),
        cmocka_unit_test_setup_teardown(test_rope, open_memory, close_memory),
        cmocka_unit_test_setup_teardown(test_fake_quant, open_memory, close_memory),
        cmocka_unit_test_setup_teardown(test_rms_norm, open_memory, close_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
