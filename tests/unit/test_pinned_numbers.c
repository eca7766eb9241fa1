/* Numbers and names that may never change: they are in programs built long ago. */
#include "core_test.h"

#include "core/encoder_internal.h"

#include <dsrows/attention.h>

typedef struct pinned {
    int value;
    int number;
    const char *name;
} pinned;

#define PIN(symbol, number)                                                                                            \
    {                                                                                                                  \
        (int)symbol, number, #symbol                                                                                   \
    }

static const pinned statuses[] = {
    PIN(DSR_OK, 0),
    PIN(DSR_ERR_INTERNAL, 1),
    PIN(DSR_ERR_NULL, 10),
    PIN(DSR_ERR_STRUCT_SIZE, 11),
    PIN(DSR_ERR_ENUM, 12),
    PIN(DSR_ERR_ROW_COUNT, 13),
    PIN(DSR_ERR_VALUE, 14),
    PIN(DSR_ERR_POSITION, 15),
    PIN(DSR_ERR_DUPLICATE_ROW, 16),
    PIN(DSR_ERR_NAME, 17),
    PIN(DSR_ERR_DTYPE, 20),
    PIN(DSR_ERR_SIZE, 21),
    PIN(DSR_ERR_OVERFLOW, 22),
    PIN(DSR_ERR_OVERLAP, 23),
    PIN(DSR_ERR_ALIGNMENT, 24),
    PIN(DSR_ERR_STRIDE, 25),
    PIN(DSR_ERR_RANGE, 26),
    PIN(DSR_ERR_KV_LEN, 27),
    PIN(DSR_ERR_UNSUPPORTED_SHAPE, 30),
    PIN(DSR_ERR_UNSUPPORTED_ISA, 31),
    PIN(DSR_ERR_UNSUPPORTED_DEVICE, 32),
    PIN(DSR_ERR_UNSUPPORTED_KERNEL, 33),
    PIN(DSR_ERR_OUT_OF_MEMORY, 40),
    PIN(DSR_ERR_THREAD, 41),
    PIN(DSR_ERR_DEVICE, 50),
    PIN(DSR_ERR_DEVICE_LOST, 51),
    PIN(DSR_ERR_STATE, 60),
    PIN(DSR_ERR_FORKED, 61),
    PIN(DSR_ERR_CONTEXT_MISMATCH, 62),
    PIN(DSR_ERR_FULL, 63),
    PIN(DSR_ERR_IO, 70),
    PIN(DSR_ERR_FORMAT, 71),
    PIN(DSR_ERR_MISSING_TENSOR, 72),
};
enum { N_STATUSES = sizeof statuses / sizeof statuses[0] };

static void test_statuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_STATUSES; i++) {
        assert_int_equal(statuses[i].value, statuses[i].number);
        assert_string_equal(dsr_status_name((dsr_status)statuses[i].number), statuses[i].name);
        const char *text = dsr_status_text((dsr_status)statuses[i].number);
        assert_true(strlen(text) > 5 && text[strlen(text) - 1] == '.');
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(text, dsr_status_text((dsr_status)statuses[j].number));
    }
}

/* Every number that has a name is in the list above. */
static void test_no_other_status_has_a_name(void **state)
{
    (void)state;
    int n_named = 0;
    for (int number = -10; number < 1000; number++)
        n_named += strcmp(dsr_status_name((dsr_status)number), "DSR_ERR_?") != 0;
    assert_int_equal(n_named, N_STATUSES);
    assert_string_equal(dsr_status_name((dsr_status)9999), "DSR_ERR_?");
    assert_true(strlen(dsr_status_text((dsr_status)9999)) > 0);
}

static void test_enums(void **state)
{
    static const pinned enums[] = {
        PIN(DSR_DTYPE_F32, 0),    PIN(DSR_DTYPE_F16, 1),    PIN(DSR_DTYPE_BF16, 2),     PIN(DSR_DTYPE_U8, 3),
        PIN(DSR_DTYPE_U16, 4),    PIN(DSR_DTYPE_U32, 5),    PIN(DSR_DTYPE_I32, 6),      PIN(DSR_DEVICE_CPU, 0),
        PIN(DSR_DEVICE_CUDA, 1),  PIN(DSR_EXACT_DEVICE, 0), PIN(DSR_EXACT_ROW, 1),      PIN(DSR_ISA_AUTO, 0),
        PIN(DSR_ISA_SCALAR, 1),   PIN(DSR_ISA_AVX2, 2),     PIN(DSR_ISA_AVX512, 3),     PIN(DSR_ISA_NEON, 4),
        PIN(DSR_LOG_ERROR, 0),    PIN(DSR_LOG_WARNING, 1),  PIN(DSR_LOG_INFO, 2),       PIN(DSR_CAPTURE_JSON, 0),
        PIN(DSR_CAPTURE_DOT, 1),  PIN(DSR_ACCESS_READ, 1),  PIN(DSR_ACCESS_WRITE, 2),   PIN(DSR_ACCESS_READ_WRITE, 3),
        PIN(DSR_FORMAT_BF16, 0),  PIN(DSR_FORMAT_FP4, 1),   PIN(DSR_FORMAT_FP8, 2),     PIN(DSR_FLOOR_MODEL, 0),
        PIN(DSR_FLOOR_ENGINE, 1), PIN(DSR_CACHE_BF16, 0),   PIN(DSR_CACHE_OFFICIAL, 1), PIN(DSR_CACHE_PACKED, 2),
    };
    (void)state;
    for (size_t i = 0; i < sizeof enums / sizeof enums[0]; i++)
        if (enums[i].value != enums[i].number)
            fail_msg("%s is %d, pinned is %d", enums[i].name, enums[i].value, enums[i].number);
}

static void test_dtypes(void **state)
{
    static const struct {
        dsr_dtype dtype;
        size_t size;
        const char *name;
    } known[] = {{DSR_DTYPE_F32, 4, "f32"}, {DSR_DTYPE_F16, 2, "f16"}, {DSR_DTYPE_BF16, 2, "bf16"},
                 {DSR_DTYPE_U8, 1, "u8"},   {DSR_DTYPE_U16, 2, "u16"}, {DSR_DTYPE_U32, 4, "u32"},
                 {DSR_DTYPE_I32, 4, "i32"}};
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        assert_int_equal(dsr_dtype_size(known[i].dtype), known[i].size);
        assert_string_equal(dsr_dtype_name(known[i].dtype), known[i].name);
    }
    assert_int_equal(dsr_dtype_size((dsr_dtype)7), 0);
    assert_string_equal(dsr_dtype_name((dsr_dtype)7), "?");
    assert_int_equal(dsr_dtype_size((dsr_dtype)-1), 0);
}

static void test_isa_and_op_names(void **state)
{
    (void)state;
    assert_string_equal(dsr_isa_name(DSR_ISA_AUTO), "auto");
    assert_string_equal(dsr_isa_name(DSR_ISA_SCALAR), "scalar");
    assert_string_equal(dsr_isa_name(DSR_ISA_AVX2), "avx2");
    assert_string_equal(dsr_isa_name(DSR_ISA_AVX512), "avx512");
    assert_string_equal(dsr_isa_name(DSR_ISA_NEON), "neon");
    assert_string_equal(dsr_isa_name((dsr_isa)5), "?");
    assert_string_equal(dsr_isa_name((dsr_isa)-1), "?");
    for (int op = 0; op < DSRI_N_OPS; op++)
        assert_true(strlen(dsri_op_name((dsri_op)op)) > 1);
    assert_string_equal(dsri_op_name(DSRI_N_OPS), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statuses),
        cmocka_unit_test(test_no_other_status_has_a_name),
        cmocka_unit_test(test_enums),
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_isa_and_op_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
