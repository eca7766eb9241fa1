/* The step plan against worked examples. */
#include "api_fixture.h"

static dsr_step_plan plan(dsr_layer_kind kind, uint32_t position, uint32_t context, uint32_t top_k)
{
    dsr_step_plan step = {.struct_size = sizeof(step)};
    assert_int_equal(dsr_plan_step(kind, position, context, top_k, &step), DSR_OK);
    assert_int_equal(step.struct_size, sizeof(step));
    return step;
}

/* Widths of the published models: top-512 and top-1024 of ratio 4, and ratio 128. */
static void test_widths(void **state)
{
    static const struct {
        uint32_t position, flash, pro, ratio_128, window;
    } examples[] = {
        {0, 1, 1, 1, 1},
        {3, 5, 5, 4, 4},
        {7, 10, 10, 8, 8},
        {127, 160, 160, 129, 128},
        {130, 160, 160, 129, 128},
        {511, 256, 256, 132, 128},
        {2047, 640, 640, 144, 128},
        {4095, 640, 1152, 160, 128},
        {65535, 640, 1152, 640, 128},
        {1048575, 640, 1152, 8320, 128},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++) {
        const uint32_t position = examples[i].position;
        assert_int_equal(plan(DSR_LAYER_RATIO_4, position, 1048576, 512).width, examples[i].flash);
        assert_int_equal(plan(DSR_LAYER_RATIO_4, position, 1048576, 1024).width, examples[i].pro);
        assert_int_equal(plan(DSR_LAYER_RATIO_128, position, 1048576, 0).width, examples[i].ratio_128);
        assert_int_equal(plan(DSR_LAYER_WINDOW, position, 1048576, 0).width, examples[i].window);
    }
}

static void test_fields(void **state)
{
    dsr_step_plan step;
    (void)state;
    step = plan(DSR_LAYER_RATIO_4, 4099, 65536, 512);
    assert_int_equal(step.ring_slot, 3);
    assert_int_equal(step.window_capacity, 128);
    assert_int_equal(step.window_count, 128);
    assert_int_equal(step.compressed_count, 1025);
    assert_int_equal(step.selected_count, 512);
    assert_int_equal(step.width, 640);
    assert_int_equal(step.emits, 1);
    assert_int_equal(step.emit_slot, 1024);
    assert_int_equal(step.emit_cache_row, 1152);
    assert_int_equal(step.emit_rope_position, 4096);

    step = plan(DSR_LAYER_RATIO_128, 255, 4096, 0);
    assert_int_equal(step.emits, 1);
    assert_int_equal(step.emit_slot, 1);
    assert_int_equal(step.emit_cache_row, 129);
    assert_int_equal(step.emit_rope_position, 128);
    assert_int_equal(step.selected_count, 2);

    /* Fields that do not apply are 0. */
    step = plan(DSR_LAYER_RATIO_4, 4100, 65536, 512);
    assert_int_equal(step.emits + step.emit_slot + step.emit_cache_row + step.emit_rope_position, 0);
    step = plan(DSR_LAYER_WINDOW, 127, 65536, 0);
    assert_int_equal(step.compressed_count + step.selected_count + step.emits + step.emit_slot, 0);
    assert_int_equal(step.emit_cache_row + step.emit_rope_position, 0);

    /* A short context has a small window, and its compressed rows follow that. */
    step = plan(DSR_LAYER_RATIO_4, 7, 12, 512);
    assert_int_equal(step.window_capacity, 12);
    assert_int_equal(step.ring_slot, 7);
    assert_int_equal(step.emit_cache_row, 13);
}

static void expect_slots(uint32_t position, uint32_t capacity, const int32_t *expected, uint32_t n)
{
    int32_t slots[DSR_WINDOW + 1];
    for (uint32_t i = 0; i <= DSR_WINDOW; i++)
        slots[i] = -7;
    dsr_window_slots(position, capacity, slots);
    assert_memory_equal(slots, expected, n * sizeof(*slots));
    assert_int_equal(slots[n], -7);
}

static void test_window_slots(void **state)
{
    (void)state;
    expect_slots(0, 4, (const int32_t[]){0}, 1);
    expect_slots(2, 4, (const int32_t[]){0, 1, 2}, 3);
    expect_slots(3, 4, (const int32_t[]){0, 1, 2, 3}, 4);
    expect_slots(5, 4, (const int32_t[]){2, 3, 0, 1}, 4);
    expect_slots(9, 1, (const int32_t[]){0}, 1);
    expect_slots(UINT32_MAX, 4, (const int32_t[]){0, 1, 2, 3}, 4);
    /* With c = position mod 128: c + 1 .. 127, 0 .. c. */
    for (uint32_t position = 127; position < 600; position++) {
        int32_t slots[DSR_WINDOW];
        const int32_t c = (int32_t)(position % DSR_WINDOW);
        dsr_window_slots(position, DSR_WINDOW, slots);
        for (int32_t i = 0; i < DSR_WINDOW; i++)
            assert_int_equal(slots[i], i < 127 - c ? c + 1 + i : i - (127 - c));
    }
}

/* A query sees complete groups only: the one it completes, and none that it is still inside. */
static void test_no_group_is_seen_from_inside(void **state)
{
    static const uint32_t counts[] = {0, 0, 0, 1, 1, 1, 1, 2, 2};
    (void)state;
    for (uint32_t position = 0; position < 9; position++)
        assert_int_equal(plan(DSR_LAYER_RATIO_4, position, 4096, 8).selected_count, counts[position]);
    assert_int_equal(plan(DSR_LAYER_RATIO_128, 126, 4096, 0).selected_count, 0);
    assert_int_equal(plan(DSR_LAYER_RATIO_128, 127, 4096, 0).selected_count, 1);
    assert_int_equal(plan(DSR_LAYER_RATIO_128, 254, 4096, 0).selected_count, 1);
    assert_int_equal(plan(DSR_LAYER_RATIO_128, 255, 4096, 0).selected_count, 2);
}

/* Groups are emitted also while the context is shorter than the window. */
static void test_short_contexts_emit(void **state)
{
    (void)state;
    for (uint32_t context = 1; context <= 140; context++) {
        uint32_t n_emitted = 0;
        for (uint32_t position = 0; position < context; position++) {
            const dsr_step_plan step = plan(DSR_LAYER_RATIO_4, position, context, 512);
            if (step.emits)
                assert_int_equal(step.emit_slot, n_emitted);
            n_emitted += step.emits;
            assert_int_equal(step.compressed_count, n_emitted);
            assert_int_equal(n_emitted, (position + 1) / 4);
        }
    }
}

static void test_errors(void **state)
{
    dsr_step_plan step = {.struct_size = sizeof(step)}, before;
    (void)state;
    memset((uint8_t *)&step + sizeof(uint32_t), 0x5A, sizeof(step) - sizeof(uint32_t));
    before = step;
    assert_int_equal(dsr_plan_step(DSR_LAYER_RATIO_4, 0, 1, 1, NULL), DSR_ERR_NULL);
    assert_int_equal(dsr_plan_step((dsr_layer_kind)2, 0, 1, 1, &step), DSR_ERR_ENUM);
    assert_int_equal(dsr_plan_step(DSR_LAYER_RATIO_4, 0, 0, 1, &step), DSR_ERR_VALUE);
    assert_int_equal(dsr_plan_step(DSR_LAYER_RATIO_4, 0, 1048577, 1, &step), DSR_ERR_VALUE);
    assert_int_equal(dsr_plan_step(DSR_LAYER_RATIO_4, 0, 1, 0, &step), DSR_ERR_VALUE);
    assert_int_equal(dsr_plan_step(DSR_LAYER_RATIO_4, 1, 1, 1, &step), DSR_ERR_POSITION);
    assert_int_equal(dsr_plan_step(DSR_LAYER_RATIO_4, UINT32_MAX, 1048576, 1, &step), DSR_ERR_POSITION);
    assert_memory_equal(&step, &before, sizeof(step));
    step.struct_size++;
    assert_int_equal(dsr_plan_step(DSR_LAYER_RATIO_4, 0, 1, 1, &step), DSR_ERR_STRUCT_SIZE);
    assert_int_equal(dsr_plan_step(DSR_LAYER_WINDOW, 0, 1, 0, &before), DSR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widths),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_window_slots),
        cmocka_unit_test(test_no_group_is_seen_from_inside),
        cmocka_unit_test(test_short_contexts_emit),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
