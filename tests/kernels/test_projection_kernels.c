/* Projection kernels against the reference, byte by byte, and packed weights against unpacked ones. */
#include "kernel_test.h"

#include "cpu/cpu_features.h"
#include "ops/op_plans.h"
#include "ops/projection_layout.h"
#include "reference/reference.h"

#include <dsrows/ops.h>

KERNELS(projection);

/* The device-exact kernel on AVX512-BF16, if it is in this build and the machine can run it. */
static const dsri_cpu_kernel *unit_kernel(void)
{
#ifdef DSRI_HAVE_AVX512BF16
    DECLARE_KERNEL(projection, avx512bf16);
    return dsri_cpu_features() & DSRI_CPU_AVX512_BF16 ? &dsri_kernel_projection__avx512bf16 : NULL;
#else
    return NULL;
#endif
}

/* A projection with its weights in every form. */
typedef struct projection_case {
    dsri_projection_plan plan; /* unpacked weights */
    const void *packed;
    float *scales; /* FP8: as F32 */
    void *want;
    size_t output_bytes;
} projection_case;

static int is_fp8(const projection_case *c)
{
    return c->plan.format == DSR_WEIGHT_FP8;
}

static uint64_t scales_per_row(const projection_case *c)
{
    return (c->plan.n_inputs + 127) / 128;
}

static float reference_output(const projection_case *c, uint32_t row, uint32_t group, uint32_t output)
{
    const uint64_t n = c->plan.n_inputs, global = (uint64_t)group * c->plan.n_outputs + output;
    const uint16_t *x = c->plan.input + ((uint64_t)row * c->plan.n_groups + group) * n;
    const float dot = is_fp8(c) ? ref_projection_fp8(x, (const uint8_t *)c->plan.weight + global * n,
                                                     c->scales + global / 128 * scales_per_row(c), n)
                                : ref_projection_bf16(x, (const uint16_t *)c->plan.weight + global * n, n);
    return dot * c->plan.output_scale;
}

static int is_finite_f32(float x)
{
    return (f32_to_bits(x) & 0x7f800000u) != 0x7f800000u;
}

static void make_reference(projection_case *c)
{
    const dsri_projection_plan *plan = &c->plan;
    size_t at = 0;
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        for (uint32_t g = 0; g < plan->n_groups; g++) {
            for (uint32_t o = 0; o < plan->n_outputs; o++, at++) {
                const float y = reference_output(c, r, g, o);
                const uint16_t rounded = ref_bf16_from_f32(y);
                if (plan->output_is_f32) {
                    ((float *)c->want)[at] = is_finite_f32(y) ? y : 0.0f;
                } else {
                    ((uint16_t *)c->want)[at] = is_finite_f32(f32_from_bf16(rounded)) ? rounded : 0;
                }
            }
        }
    }
}

static void draw_scales(random_stream *random, projection_case *c)
{
    const size_t n = (c->plan.n_groups * (size_t)c->plan.n_outputs + 127) / 128 * scales_per_row(c);
    const int odd = random_one_in(random, 4);
    float *f32 = new_array(n * sizeof *f32);
    uint8_t *e8m0 = new_array(n);
    for (size_t i = 0; i < n; i++) {
        e8m0[i] = (uint8_t)(odd ? random_below(random, 256) : random_between(random, 110, 125));
        f32[i] = odd ? f32_from_bits((uint32_t)random_next(random)) : random_normal(random) * 0x1p-7f;
    }
    c->plan.scales_are_f32 = random_below(random, 2);
    c->plan.scales = c->plan.scales_are_f32 ? (void *)f32 : (void *)e8m0;
    c->scales = f32;
    for (size_t i = 0; i < n && !c->plan.scales_are_f32; i++) {
        c->scales[i] = e8m0[i] == 255 ? f32_from_bits(0x7fc00000u) : f32_from_bits(0x00400000u);
        for (int power = 0; power < e8m0[i] && e8m0[i] < 255; power++) {
            c->scales[i] *= 2.0f;
        }
    }
}

static void draw_weights(random_stream *random, projection_case *c)
{
    const size_t n = (size_t)c->plan.n_groups * c->plan.n_outputs * c->plan.n_inputs;
    if (!is_fp8(c)) {
        c->plan.weight = new_bf16(random, any_pattern(random), 0x1p-5f, n);
        return;
    }
    uint8_t *codes = new_array(n);
    const int nans = random_one_in(random, 3);
    pattern_fill_bits(random, codes, n);
    for (size_t i = 0; i < n; i++) {
        codes[i] =
            (codes[i] & 0x7f) == 0x7f && !(nans && random_one_in(random, 4)) ? (uint8_t)(codes[i] - 1) : codes[i];
    }
    c->plan.weight = codes;
    draw_scales(random, c);
}

static void pack(projection_case *c)
{
    dsr_context *context;
    uint64_t n_bytes;
    const dsr_projection_weights weights = {.struct_size = sizeof weights,
                                            .n_groups = c->plan.n_groups,
                                            .n_inputs = c->plan.n_inputs,
                                            .n_outputs = c->plan.n_outputs,
                                            .format = (dsr_weight_format)c->plan.format,
                                            .scales_dtype = c->plan.scales_are_f32 ? DSR_DTYPE_F32 : DSR_DTYPE_U8,
                                            .data = c->plan.weight,
                                            .scales = c->plan.scales};
    assert_int_equal(dsr_context_create(NULL, &context), DSR_OK);
    assert_int_equal(dsr_projection_packed_bytes(context, &weights, &n_bytes), DSR_OK);
    void *packed = new_array(n_bytes);
    assert_int_equal(dsr_projection_pack(context, &weights, packed, n_bytes), DSR_OK);
    dsr_context_destroy(context);
    c->packed = packed;
}

static void draw_case(random_stream *random, projection_case *c)
{
    static const uint32_t inputs[] = {16, 32, 48, 64, 112, 128, 144, 256, 496, 512, 528, 640, 1024, 1040, 1536, 2064};
    static const uint32_t rows[] = {1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 64};
    dsri_projection_plan *plan = &c->plan;
    memset(c, 0, sizeof *c);
    plan->n_rows = rows[random_below(random, 13)];
    plan->n_groups = random_one_in(random, 3) ? random_between(random, 2, 4) : 1;
    plan->n_inputs = inputs[random_below(random, plan->n_rows > 8 ? 12 : 16)];
    plan->n_outputs = random_one_in(random, 6) ? random_between(random, 1000, 2100) : random_between(random, 1, 200);
    if ((uint64_t)plan->n_outputs * plan->n_inputs * plan->n_rows * plan->n_groups > 3000000) {
        plan->n_outputs = random_between(random, 1, 70);
    }
    plan->format = random_below(random, 2) ? DSR_WEIGHT_BF16 : DSR_WEIGHT_FP8;
    plan->output_is_f32 = random_below(random, 2);
    plan->output_scale = random_one_in(random, 2) ? 1.0f : 0.01104854346f;
    plan->input = new_bf16(random, any_pattern(random), 1.0f, (size_t)plan->n_rows * plan->n_groups * plan->n_inputs);
    draw_weights(random, c);
    pack(c);
    c->output_bytes =
        (size_t)plan->n_rows * plan->n_groups * plan->n_outputs * (plan->output_is_f32 ? sizeof(float) : 2);
    c->want = new_array(c->output_bytes);
    make_reference(c);
}

static void compare_kernel(random_stream *random, const projection_case *c, const dsri_cpu_kernel *kernel, int packed)
{
    dsri_projection_plan plan = c->plan;
    plan.output = new_array(c->output_bytes);
    if (packed) {
        plan.format = is_fp8(c) ? DSR_WEIGHT_FP8_PACKED : DSR_WEIGHT_BF16_PACKED;
        plan.weight = c->packed;
        plan.scales = NULL;
    }
    if (kernel->accepts && !kernel->accepts(&plan)) {
        return;
    }
    run_kernel(kernel, &plan, random);
    assert_bits(kernel, packed ? "packed" : "unpacked", plan.output_is_f32 ? DSR_DTYPE_F32 : DSR_DTYPE_BF16,
                plan.output, c->want, c->output_bytes);
}

static void compare_case(random_stream *random, const projection_case *c)
{
    for (int packed = 0; packed < 2; packed++) {
        for (size_t k = 0; projection_kernels[k] && can_run(projection_kernels[k]); k++) {
            compare_kernel(random, c, projection_kernels[k], packed);
        }
        if (unit_kernel()) {
            compare_kernel(random, c, unit_kernel(), packed);
        }
    }
}

static void test_projection(void **unused)
{
    (void)unused;
    for (test_seed = 1; test_seed <= 150; test_seed++) {
        random_stream random = random_open(test_seed, 1);
        projection_case c;
        draw_case(&random, &c);
        compare_case(&random, &c);
        drop_arrays();
    }
}

/* ---- products near the least normal number, for units that do not know subnormal ones -------------------------- */

/* FP8 codes and scales whose least product, 2^-9 times a scale, has about the exponent; of scales with many bits now
 * and then, which BF16 cannot hold. */
static void draw_small_fp8(random_stream *random, projection_case *c, uint32_t exponent)
{
    const size_t n = (size_t)c->plan.n_outputs * c->plan.n_inputs;
    const size_t n_scales = (c->plan.n_outputs + 127) / 128 * scales_per_row(c);
    const uint32_t n_bits = random_one_in(random, 3) ? random_below(random, 6) : random_below(random, 4);
    uint8_t *codes = new_array(n);
    c->scales = new_array(n_scales * sizeof *c->scales);
    for (size_t i = 0; i < n; i++) {
        const uint32_t code = random_one_in(random, 2) ? random_below(random, 16) : random_below(random, 0x7f);
        codes[i] = (uint8_t)(random_below(random, 2) << 7 | code);
    }
    for (size_t i = 0; i < n_scales; i++) {
        const uint32_t mantissa = random_below(random, 1u << n_bits) << (23 - n_bits);
        const uint32_t bits = (exponent + 9 + random_below(random, 2)) << 23 | mantissa;
        c->scales[i] = f32_from_bits(random_one_in(random, 8) ? 0 : bits | random_below(random, 2) << 31);
    }
    c->plan.weight = codes;
    c->plan.scales = c->scales;
    c->plan.scales_are_f32 = 1;
}

/* Exponents of the least products and of what they are cut off at: sums of them are subnormal now and then, at the
 * least, or never. */
static void draw_small_case(random_stream *random, projection_case *c)
{
    memset(c, 0, sizeof *c);
    c->plan.n_rows = random_between(random, 1, 10);
    c->plan.n_groups = 1;
    c->plan.n_inputs = 16 * random_between(random, 1, 70);
    c->plan.n_outputs = random_between(random, 1, 70);
    c->plan.format = random_one_in(random, 3) ? DSR_WEIGHT_FP8 : DSR_WEIGHT_BF16;
    c->plan.output_is_f32 = 1;
    c->plan.output_scale = 1.0f;
    const uint32_t sum = random_between(random, 136, 143), end = random_below(random, 2);
    const uint32_t all_of_x[] = {random_between(random, 0, sum), end, sum - end};
    const uint32_t of_x = all_of_x[random_below(random, 3)];
    const size_t n_x = (size_t)c->plan.n_rows * c->plan.n_inputs;
    uint16_t *const x = new_small_bf16(random, of_x, n_x);
    if (random_one_in(random, 2)) {
        x[random_below(random, (uint32_t)n_x)] = (uint16_t)random_below(random, 0x80); /* one subnormal */
    }
    c->plan.input = x;
    if (is_fp8(c)) {
        draw_small_fp8(random, c, sum - of_x);
    } else {
        c->plan.weight = new_small_bf16(random, sum - of_x, (size_t)c->plan.n_outputs * c->plan.n_inputs);
    }
    pack(c);
    c->output_bytes = (size_t)c->plan.n_rows * c->plan.n_outputs * sizeof(float);
    c->want = new_array(c->output_bytes);
    make_reference(c);
}

static void test_small_products(void **unused)
{
    (void)unused;
    for (test_seed = 1; test_seed <= 600; test_seed++) {
        random_stream random = random_open(test_seed, 2);
        projection_case c;
        draw_small_case(&random, &c);
        compare_case(&random, &c);
        drop_arrays();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_projection, open_memory, close_memory),
        cmocka_unit_test_setup_teardown(test_small_products, open_memory, close_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
