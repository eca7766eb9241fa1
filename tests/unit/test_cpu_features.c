/* Levels from mocked CPUID words: a level is taken only if all of its features are there, one never stands for another,
 * and registers that the system does not save are as good as absent. */
#include "core_test.h"

#include "cpu/cpu_features.h"

enum { FMA = 1 << 12, OSXSAVE = 1 << 27, AVX2 = 1 << 5, F = 1 << 16, DQ = 1 << 17, BW = 1 << 30, BF16 = 1 << 5 };
#define VL 0x80000000u
enum { XCR0_X87 = 1, XCR0_SSE = 3, XCR0_AVX = 7, XCR0_AVX512 = 0xe7 };

static const uint32_t all_x86 = 1u << DSR_ISA_SCALAR | 1u << DSR_ISA_AVX2 | 1u << DSR_ISA_AVX512;

static dsr_isa best(uint32_t leaf1_ecx, uint32_t leaf7_ebx, uint64_t xcr0)
{
    const dsri_cpuid cpuid = {.leaf1_ecx = leaf1_ecx, .leaf7_ebx = leaf7_ebx, .xcr0 = xcr0};
    return dsri_best_isa(dsri_features_of_cpuid(&cpuid), all_x86);
}

static void test_x86_levels(void **state)
{
    const uint32_t skx = AVX2 | F | BW | DQ | VL;
    (void)state;
    assert_int_equal(best(0, 0, 0), DSR_ISA_SCALAR);
    assert_int_equal(best(FMA | OSXSAVE, AVX2, XCR0_AVX), DSR_ISA_AVX2);
    assert_int_equal(best(FMA | OSXSAVE, skx, XCR0_AVX512), DSR_ISA_AVX512);
    /* AVX2 without FMA, FMA without AVX2. */
    assert_int_equal(best(OSXSAVE, AVX2, XCR0_AVX), DSR_ISA_SCALAR);
    assert_int_equal(best(FMA | OSXSAVE, 0, XCR0_AVX), DSR_ISA_SCALAR);
    assert_int_equal(best(OSXSAVE, skx, XCR0_AVX512), DSR_ISA_SCALAR);
    /* AVX-512 with one part missing. */
    assert_int_equal(best(FMA | OSXSAVE, skx & ~(uint32_t)F, XCR0_AVX512), DSR_ISA_AVX2);
    assert_int_equal(best(FMA | OSXSAVE, skx & ~(uint32_t)BW, XCR0_AVX512), DSR_ISA_AVX2);
    assert_int_equal(best(FMA | OSXSAVE, skx & ~(uint32_t)DQ, XCR0_AVX512), DSR_ISA_AVX2);
    assert_int_equal(best(FMA | OSXSAVE, skx & ~VL, XCR0_AVX512), DSR_ISA_AVX2);
}

static void test_registers_the_system_does_not_save(void **state)
{
    const uint32_t skx = AVX2 | F | BW | DQ | VL;
    (void)state;
    assert_int_equal(best(FMA | OSXSAVE, skx, XCR0_AVX), DSR_ISA_AVX2);
    assert_int_equal(best(FMA | OSXSAVE, skx, XCR0_SSE), DSR_ISA_SCALAR);
    assert_int_equal(best(FMA, skx, 0), DSR_ISA_SCALAR);
    for (uint64_t missing = 1 << 5; missing <= 1 << 7; missing *= 2)
        assert_int_equal(best(FMA | OSXSAVE, skx, XCR0_AVX512 & ~missing), DSR_ISA_AVX2);
    assert_int_equal(best(FMA | OSXSAVE, skx, XCR0_AVX512 & ~(uint64_t)4), DSR_ISA_SCALAR);
}

static void test_bf16_is_its_own_feature(void **state)
{
    dsri_cpuid cpuid = {.leaf1_ecx = FMA | OSXSAVE, .leaf7_ebx = AVX2 | F | BW | DQ | VL, .xcr0 = XCR0_AVX512};
    (void)state;
    assert_false(dsri_features_of_cpuid(&cpuid) & DSRI_CPU_AVX512_BF16);
    cpuid.leaf7_1_eax = BF16;
    assert_true(dsri_features_of_cpuid(&cpuid) & DSRI_CPU_AVX512_BF16);
    cpuid.xcr0 = XCR0_AVX;
    assert_false(dsri_features_of_cpuid(&cpuid) & DSRI_CPU_AVX512_BF16);
}

static void test_bf16_dots_are_slow_on_intel(void **state)
{
    const uint32_t both = DSRI_CPU_AVX512_BF16 | DSRI_CPU_FAST_AVX512_BF16;
    dsri_cpuid cpuid = {
        .leaf1_ecx = FMA | OSXSAVE, .leaf7_ebx = AVX2 | F | BW | DQ | VL, .leaf7_1_eax = BF16, .xcr0 = XCR0_AVX512};
    (void)state;
    memcpy(&cpuid.leaf0_ebx, "Auth", 4);
    assert_int_equal(dsri_features_of_cpuid(&cpuid) & both, both);
    memcpy(&cpuid.leaf0_ebx, "Genu", 4);
    assert_int_equal(dsri_features_of_cpuid(&cpuid) & both, DSRI_CPU_AVX512_BF16);
    memcpy(&cpuid.leaf0_ebx, "Auth", 4);
    cpuid.leaf7_1_eax = 0;
    assert_int_equal(dsri_features_of_cpuid(&cpuid) & both, 0);
}

static void test_amx_needs_tiles_products_and_the_system(void **state)
{
    const uint32_t tiles = 1u << 24, bf16 = 1u << 22, int8 = 1u << 25;
    const uint32_t both = DSRI_CPU_AMX_BF16 | DSRI_CPU_AMX_INT8;
    const uint64_t saved = (uint64_t)3 << 17;
    dsri_cpuid cpuid = {.leaf1_ecx = FMA | OSXSAVE,
                        .leaf7_ebx = AVX2 | F | BW | DQ | VL,
                        .leaf7_edx = tiles | bf16,
                        .xcr0 = XCR0_AVX512 | saved};
    (void)state;
    assert_true(dsri_features_of_cpuid(&cpuid) & DSRI_CPU_AMX_BF16);
    cpuid.leaf7_edx = tiles;
    assert_false(dsri_features_of_cpuid(&cpuid) & DSRI_CPU_AMX_BF16);
    cpuid.leaf7_edx = bf16;
    assert_false(dsri_features_of_cpuid(&cpuid) & DSRI_CPU_AMX_BF16);
    cpuid.leaf7_edx = tiles | bf16;
    for (int bit = 17; bit <= 18; bit++) {
        cpuid.xcr0 = (XCR0_AVX512 | saved) & ~((uint64_t)1 << bit);
        assert_false(dsri_features_of_cpuid(&cpuid) & DSRI_CPU_AMX_BF16);
    }
    cpuid.xcr0 = XCR0_AVX512 | saved;
    cpuid.leaf7_edx = tiles | int8;
    assert_int_equal(dsri_features_of_cpuid(&cpuid) & both, DSRI_CPU_AMX_INT8);
    cpuid.leaf7_edx = int8;
    assert_int_equal(dsri_features_of_cpuid(&cpuid) & both, 0);
}

static void test_vnni_is_its_own_feature(void **state)
{
    dsri_cpuid cpuid = {.leaf1_ecx = FMA | OSXSAVE, .leaf7_ebx = AVX2 | F | BW | DQ | VL, .xcr0 = XCR0_AVX512};
    (void)state;
    assert_false(dsri_features_of_cpuid(&cpuid) & DSRI_CPU_AVX512_VNNI);
    cpuid.leaf7_ecx = 1 << 11;
    assert_true(dsri_features_of_cpuid(&cpuid) & DSRI_CPU_AVX512_VNNI);
    cpuid.xcr0 = XCR0_AVX;
    assert_false(dsri_features_of_cpuid(&cpuid) & DSRI_CPU_AVX512_VNNI);
}

/* What is left, where every word is known. */
static uint32_t without(uint32_t features, const char *list)
{
    const char *unknown = list;
    const uint32_t left = dsri_without_features(features, list, &unknown);
    assert_null(unknown);
    return left;
}

static void test_refused_features(void **state)
{
    const uint32_t both = DSRI_CPU_AVX512_BF16 | DSRI_CPU_AMX_BF16, all = both | DSRI_CPU_AVX2;
    const char *unknown = NULL;
    (void)state;
    assert_int_equal(without(all, NULL), all);
    assert_int_equal(without(all, ""), all);
    assert_int_equal(without(all, "amx_bf16"), all & ~(uint32_t)DSRI_CPU_AMX_BF16);
    assert_int_equal(without(all, "avx512_bf16"), all & ~(uint32_t)DSRI_CPU_AVX512_BF16);
    assert_int_equal(without(all, "amx_bf16,avx512_bf16"), DSRI_CPU_AVX2);
    assert_int_equal(without(DSRI_CPU_FAST_AVX512_BF16, "avx512_bf16"), 0);
    assert_int_equal(without(DSRI_CPU_AVX512_VNNI | DSRI_CPU_AMX_INT8, "amx_int8"), DSRI_CPU_AVX512_VNNI);
    assert_int_equal(without(DSRI_CPU_AVX512_VNNI | DSRI_CPU_AMX_INT8, "avx512_vnni"), DSRI_CPU_AMX_INT8);
    const char *list = "avx512_bf16,amx,avx2";
    assert_int_equal(dsri_without_features(all, list, &unknown), all & ~(uint32_t)DSRI_CPU_AVX512_BF16);
    assert_ptr_equal(unknown, list + 12);
    assert_int_equal(dsri_without_features(all, "avx512_bf16x", &unknown), all);
    assert_non_null(unknown);
    static const char *const empty_words[] = {",", "amx_bf16,", ",amx_bf16", "amx_bf16,,avx512_bf16"};
    for (size_t i = 0; i < sizeof empty_words / sizeof empty_words[0]; i++) {
        (void)dsri_without_features(all, empty_words[i], &unknown);
        assert_non_null(unknown);
        assert_int_equal(strcspn(unknown, ","), 0);
    }
}

/* A word that is none stops the context, and the text names it. */
static void test_unknown_feature_in_the_environment(void **state)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    dsr_context *context = NULL;
    (void)state;
    assert_int_equal(setenv("DSR_WITHOUT", "amx_bf16,amxint8,avx2", 1), 0);
    assert_int_equal(dsr_context_create(&desc, &context), DSR_ERR_VALUE);
    assert_null(context);
    assert_non_null(strstr(dsr_create_error_text(), "DSR_WITHOUT names \"amxint8\", known are"));
    assert_int_equal(setenv("DSR_WITHOUT", "amx_bf16", 1), 0);
    assert_int_equal(dsr_context_create(&desc, &context), DSR_OK);
    dsr_context_destroy(context);
    assert_int_equal(unsetenv("DSR_WITHOUT"), 0);
}

static void test_levels_outside_the_build(void **state)
{
    const uint32_t everything = UINT32_MAX;
    (void)state;
    assert_int_equal(dsri_best_isa(everything, 1u << DSR_ISA_SCALAR), DSR_ISA_SCALAR);
    assert_int_equal(dsri_best_isa(everything, 1u << DSR_ISA_SCALAR | 1u << DSR_ISA_AVX2), DSR_ISA_AVX2);
    assert_int_equal(dsri_best_isa(everything, 1u << DSR_ISA_SCALAR | 1u << DSR_ISA_NEON), DSR_ISA_NEON);
    assert_int_equal(dsri_best_isa(everything, all_x86), DSR_ISA_AVX512);
}

/* What this machine reports agrees with the compiler's own detection. */
static void test_this_machine(void **state)
{
    const uint32_t features = dsri_cpu_features();
    (void)state;
#if defined(__x86_64__)
    __builtin_cpu_init();
    assert_int_equal(!(features & DSRI_CPU_AVX2), !__builtin_cpu_supports("avx2"));
    assert_int_equal(!(features & DSRI_CPU_FMA), !__builtin_cpu_supports("fma"));
    assert_int_equal(!(features & DSRI_CPU_AVX512F), !__builtin_cpu_supports("avx512f"));
    assert_int_equal(!(features & DSRI_CPU_AVX512BW), !__builtin_cpu_supports("avx512bw"));
    assert_int_equal(!(features & DSRI_CPU_AVX512DQ), !__builtin_cpu_supports("avx512dq"));
    assert_int_equal(!(features & DSRI_CPU_AVX512VL), !__builtin_cpu_supports("avx512vl"));
    assert_int_equal(!(features & DSRI_CPU_AVX512_BF16), !__builtin_cpu_supports("avx512bf16"));
    assert_int_equal(!(features & DSRI_CPU_AVX512_VNNI), !__builtin_cpu_supports("avx512vnni"));
#elif defined(__aarch64__)
    assert_int_equal(features, DSRI_CPU_NEON);
#endif
    const dsr_isa isa = dsri_best_isa(features, dsri_built_isas());
    print_message("best level: %s\n", dsr_isa_name(isa));
    assert_true(dsr_isa_available(isa));
    assert_true(dsr_isa_available(DSR_ISA_AUTO) && dsr_isa_available(DSR_ISA_SCALAR));
    assert_false(dsr_isa_available((dsr_isa)77));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_x86_levels),
        cmocka_unit_test(test_registers_the_system_does_not_save),
        cmocka_unit_test(test_bf16_is_its_own_feature),
        cmocka_unit_test(test_bf16_dots_are_slow_on_intel),
        cmocka_unit_test(test_amx_needs_tiles_products_and_the_system),
        cmocka_unit_test(test_vnni_is_its_own_feature),
        cmocka_unit_test(test_refused_features),
        cmocka_unit_test(test_unknown_feature_in_the_environment),
        cmocka_unit_test(test_levels_outside_the_build),
        cmocka_unit_test(test_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
