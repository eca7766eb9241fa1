/* Packed caches: the outputs are those of the official treatment bit for bit, through all that a sequence goes through,
 * and a sequence takes the memory that the formats say. */
#include "block_test.h"

/* The same layer with caches as BF16 and packed. */
typedef struct both {
    block_fixture as_bf16;
    block_fixture packed;
} both;

static void open_both(both *b, dsr_layer_kind kind)
{
    block_open_with(&b->as_bf16, kind, DSR_CACHE_OFFICIAL, NULL, NULL);
    block_open_with(&b->packed, kind, DSR_CACHE_PACKED, NULL, NULL);
}

/* What the two calls before left in the outputs. */
static void assert_same_outputs(const both *b, uint32_t first_row, uint32_t n_rows)
{
    const float *x = (const float *)dsr_buffer_data(b->as_bf16.output) + (size_t)first_row * BLOCK_HIDDEN;
    const float *y = (const float *)dsr_buffer_data(b->packed.output) + (size_t)first_row * BLOCK_HIDDEN;
    double sum = 0;
    for (uint32_t i = 0; i < n_rows * BLOCK_HIDDEN; i++)
        sum += (double)x[i] * (double)x[i];
    assert_true(sum > 0);
    assert_memory_equal(y, x, n_rows * BLOCK_HIDDEN * sizeof *x);
}

static void prefill_both(const both *b, dsr_sequence *const sequences[2], uint32_t n_tokens)
{
    assert_ok(block_prefill(&b->as_bf16, sequences[0], n_tokens));
    assert_ok(block_prefill(&b->packed, sequences[1], n_tokens));
    assert_same_outputs(b, 0, n_tokens);
}

/* One joint step: a token of the first pair of sequences, three of the second. */
static void step_both(const both *b, dsr_sequence *const first[2], dsr_sequence *const second[2])
{
    const block_fixture *fixtures[2] = {&b->as_bf16, &b->packed};
    for (int i = 0; i < 2; i++) {
        const dsr_step_entry entries[2] = {{first[i], 3, 1}, {second[i], 0, 3}};
        const dsr_step_desc step = block_step(fixtures[i], 2, entries);
        assert_ok(dsr_attention_decode(fixtures[i]->layer, &step));
    }
    assert_same_outputs(b, 0, 4);
}

/* Replaces a sequence by one of little room that its saved state was loaded into. */
static void move_by_save(const block_fixture *f, dsr_sequence **sequence)
{
    dsr_sequence *moved = block_sequence(f, 8);
    block_state state = block_save(*sequence);
    assert_ok(dsr_sequence_load(moved, state.bytes, state.n_bytes));
    state.max_context = dsr_sequence_max_context(moved);
    block_assert_unchanged(moved, &state);
    assert_ok(dsr_sequence_grow(moved, 230));
    dsr_sequence_destroy(*sequence);
    *sequence = moved;
}

static void a_life(dsr_layer_kind kind)
{
    both b;
    dsr_sequence *first[2], *second[2], *forks[2];
    open_both(&b, kind);
    const block_fixture *fixtures[2] = {&b.as_bf16, &b.packed};
    for (int i = 0; i < 2; i++) {
        first[i] = block_sequence(fixtures[i], 200);
        second[i] = block_sequence(fixtures[i], 40);
    }
    prefill_both(&b, first, 131);
    prefill_both(&b, second, 5);
    for (int t = 0; t < 6; t++)
        step_both(&b, first, second);
    for (int i = 0; i < 2; i++) {
        assert_ok(dsr_sequence_truncate(second[i], 2));
        assert_ok(dsr_sequence_fork(second[i], &forks[i]));
        assert_ok(dsr_sequence_grow(second[i], 90));
    }
    step_both(&b, first, second);
    step_both(&b, second, forks);
    for (int i = 0; i < 2; i++)
        move_by_save(fixtures[i], &first[i]);
    step_both(&b, first, forks);
    prefill_both(&b, first, 66);
    for (int i = 0; i < 2; i++) {
        dsr_sequence_destroy(first[i]);
        dsr_sequence_destroy(second[i]);
        dsr_sequence_destroy(forks[i]);
    }
    block_close(&b.as_bf16);
    block_close(&b.packed);
}

static void outputs_equal_the_official_treatment(void **state)
{
    (void)state;
    a_life(DSR_LAYER_RATIO_4);
#ifndef DSR_TEST_EMULATED
    a_life(DSR_LAYER_WINDOW);
    a_life(DSR_LAYER_RATIO_128);
#endif
}

/* A saved state of one treatment is foreign to the other. */
static void forms_are_not_mixed(void **state)
{
    both b;
    (void)state;
    open_both(&b, DSR_LAYER_RATIO_4);
    dsr_sequence *as_bf16 = block_sequence(&b.as_bf16, 20), *packed = block_sequence(&b.packed, 20);
    assert_ok(block_prefill(&b.as_bf16, as_bf16, 9));
    assert_ok(block_prefill(&b.packed, packed, 9));
    block_state state_bf16 = block_save(as_bf16), state_packed = block_save(packed);
    /* 9 window rows, 2 compressed rows and 2 keys. */
    assert_int_equal(state_bf16.n_bytes - state_packed.n_bytes, 11 * (1024 - 584) + 2 * (256 - 68));
    assert_status(dsr_sequence_load(packed, state_bf16.bytes, state_bf16.n_bytes), DSR_ERR_FORMAT);
    assert_status(dsr_sequence_load(as_bf16, state_packed.bytes, state_packed.n_bytes), DSR_ERR_FORMAT);
    block_assert_unchanged(packed, &state_packed);
    block_assert_unchanged(as_bf16, &state_bf16);
    dsr_sequence_destroy(as_bf16);
    dsr_sequence_destroy(packed);
    block_close(&b.as_bf16);
    block_close(&b.packed);
}

/* Bytes of a request of 2^20 tokens in the 43 layers of V4-Flash. */
static uint64_t bytes_of_a_request(dsr_cache_treatment cache)
{
    static const struct {
        dsr_layer_kind kind;
        uint32_t n_layers;
    } model[] = {{DSR_LAYER_WINDOW, 2}, {DSR_LAYER_RATIO_4, 21}, {DSR_LAYER_RATIO_128, 20}};
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof model / sizeof model[0]; i++) {
        block_fixture f;
        uint64_t n_bytes = 0;
        block_open_with(&f, model[i].kind, cache, NULL, NULL);
        assert_ok(dsr_sequence_bytes(f.layer, 1048576, &n_bytes));
        sum += model[i].n_layers * n_bytes;
        block_close(&f);
    }
    return sum;
}

static void memory_of_a_million_tokens(void **state)
{
    const uint64_t as_bf16 = bytes_of_a_request(DSR_CACHE_BF16), packed = bytes_of_a_request(DSR_CACHE_PACKED);
    (void)state;
    print_message("a request of 2^20 tokens in 43 layers: %.3f GB as BF16, %.3f GB packed\n", (double)as_bf16 * 1e-9,
                  (double)packed * 1e-9);
    assert_int_equal(as_bf16, bytes_of_a_request(DSR_CACHE_OFFICIAL));
    assert_true(packed < 3800000000u);
    assert_true(as_bf16 > 7000000000u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_equal_the_official_treatment),
        cmocka_unit_test(forms_are_not_mixed),
        cmocka_unit_test(memory_of_a_million_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
