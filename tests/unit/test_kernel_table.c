/* The table of built-in CPU kernels: what a context of each level chooses from. */
#include "core_test.h"

#include "cpu/cpu_features.h"
#include "cpu/kernel_table.h"

static const dsr_isa isas[] = {DSR_ISA_SCALAR, DSR_ISA_AVX2, DSR_ISA_AVX512, DSR_ISA_NEON};
enum { N_ISAS = sizeof isas / sizeof isas[0] };

/* The names in the list of kernels, spelled as the table spells them. */
static void check_name(const dsri_cpu_kernel *kernel, const char *name)
{
    const char *suffix = dsr_isa_name(kernel->isa);
    assert_non_null(name);
    assert_int_equal(strncmp(name, "dsr_", 4), 0);
    assert_true(strlen(name) < 64);
    assert_true(strlen(name) > strlen(suffix) + 2);
    const char *end = name + strlen(name) - strlen(suffix);
    assert_string_equal(end, suffix);
    assert_int_equal(strncmp(end - 2, "__", 2), 0);
}

static void check_kernel(const dsri_cpu_kernel *kernel, dsri_op op, dsr_isa isa)
{
    assert_int_equal(kernel->op, op);
    assert_true(kernel->isa == isa || kernel->isa == DSR_ISA_SCALAR);
    assert_int_equal(kernel->exactness, DSR_EXACT_DEVICE);
    assert_in_range(kernel->n_phases, 1, DSRI_MAX_PHASES);
    assert_true(kernel->run && kernel->n_tasks);
    for (uint32_t phase = 0; phase < kernel->n_phases; phase++)
        check_name(kernel, kernel->phase_names[phase]);
}

static void test_candidates(void **state)
{
    (void)state;
    for (int i = 0; i < N_ISAS; i++) {
        if (!(dsri_built_isas() >> isas[i] & 1))
            continue;
        for (int op = 0; op < DSRI_OP_CUSTOM; op++) {
            const dsri_candidates found =
                dsri_find_candidates((dsri_op)op, isas[i], DSR_EXACT_DEVICE, dsri_isa_features(isas[i]));
            const dsri_cpu_kernel *const *kernel = found.kernels;
            if (!*kernel)
                fail_msg("no kernel for %s on %s", dsri_op_name((dsri_op)op), dsr_isa_name(isas[i]));
            assert_int_equal((*kernel)->isa, isas[i]);
            for (int is_scalar_seen = 0; *kernel; kernel++) {
                check_kernel(*kernel, (dsri_op)op, isas[i]);
                assert_false(is_scalar_seen && (*kernel)->isa != DSR_ISA_SCALAR);
                is_scalar_seen |= (*kernel)->isa == DSR_ISA_SCALAR;
            }
        }
    }
}

static void test_nothing_for_callers_kernels(void **state)
{
    (void)state;
    assert_null(dsri_find_candidates(DSRI_OP_CUSTOM, DSR_ISA_SCALAR, DSR_EXACT_ROW, UINT32_MAX).kernels[0]);
}

/* A row-exact context has every device-exact kernel to fall back to. */
static void test_row_exact_contexts(void **state)
{
    (void)state;
    for (int op = 0; op < DSRI_OP_CUSTOM; op++) {
        const dsri_candidates device = dsri_find_candidates((dsri_op)op, DSR_ISA_SCALAR, DSR_EXACT_DEVICE, 0);
        const dsri_candidates row = dsri_find_candidates((dsri_op)op, DSR_ISA_SCALAR, DSR_EXACT_ROW, 0);
        for (const dsri_cpu_kernel *const *kernel = device.kernels; *kernel; kernel++) {
            const dsri_cpu_kernel *const *other = row.kernels;
            while (*other && *other != *kernel)
                other++;
            assert_ptr_equal(*other, *kernel);
        }
    }
}

/* Units that the CPU is slow at are not taken. */
static void test_slow_units(void **state)
{
    const uint32_t features = dsri_isa_features(DSR_ISA_AVX512) | DSRI_CPU_AVX512_BF16;
    (void)state;
    if (!(dsri_built_isas() >> DSR_ISA_AVX512 & 1))
        return;
    for (int fast = 0; fast < 2; fast++) {
        const dsri_candidates found = dsri_find_candidates(DSRI_OP_SPARSE_ATTENTION, DSR_ISA_AVX512, DSR_EXACT_ROW,
                                                           features | (fast ? DSRI_CPU_FAST_AVX512_BF16 : 0));
        assert_int_equal(found.kernels[0]->exactness, fast ? DSR_EXACT_ROW : DSR_EXACT_DEVICE);
    }
}

/* Data that byte units do not serve goes to the faster chain. */
static void test_chains_beside_byte_units(void **state)
{
    const uint32_t features = dsri_isa_features(DSR_ISA_AVX512) | DSRI_CPU_AVX512_VNNI;
    (void)state;
    if (!(dsri_built_isas() >> DSR_ISA_AVX512 & 1))
        return;
    for (int fast = 0; fast < 2; fast++) {
        const dsri_candidates found = dsri_find_candidates(DSRI_OP_INDEXER, DSR_ISA_AVX512, DSR_EXACT_DEVICE,
                                                           features | (fast ? DSRI_CPU_FAST_AVX512_BF16 : 0));
        assert_string_equal(found.kernels[0]->phase_names[0],
                            fast ? "dsr_indexer_scores_fp4__avx512vnni_bf16" : "dsr_indexer_scores_fp4__avx512vnni");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_candidates),
        cmocka_unit_test(test_nothing_for_callers_kernels),
        cmocka_unit_test(test_row_exact_contexts),
        cmocka_unit_test(test_slow_units),
        cmocka_unit_test(test_chains_beside_byte_units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
