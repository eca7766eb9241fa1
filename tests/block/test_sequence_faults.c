/* Every allocation of a life of sequences fails once, runs break off on the way, and steady states allocate nothing. */
#include "faults.h"

/* Every n-th allocation or fork is made to fail; far positions are for one kind of layer or for all. */
#ifdef DSR_TEST_EMULATED
enum { ALLOCATION_STRIDE = 13, FORK_STRIDE = 37, IS_EMULATED = 1 };
#else
enum { ALLOCATION_STRIDE = 1, FORK_STRIDE = 5, IS_EMULATED = 0 };
#endif

static void live(block_life *life, dsr_layer_kind kind, dsr_cache_treatment cache, uint32_t n_prefill,
                 dsr_parallel_fn parallel, void *user)
{
    memset(life, 0, sizeof *life);
    block_open_with(&life->f, kind, cache, parallel, user);
    life->n_prefill = n_prefill;
}

/* ---- allocations ----------------------------------------------------------------------------------------------- */

/* The layer itself: no n-th failure leaks or gives another status. */
static void allocations_of_a_layer(void **state)
{
    block_fixture f;
    uint64_t n_calls = UINT64_MAX;
    (void)state;
    block_open(&f, DSR_LAYER_RATIO_4, NULL, NULL);
    for (uint64_t n = 1; n <= n_calls; n++) {
        dsr_attention *layer = NULL;
        const uint64_t n_live = f.counter.n_live;
        f.counter.fail_at = f.counter.n_calls + n;
        const dsr_status status =
            dsr_attention_create(f.context, &f.config, synthetic_lookup, &f.weights, SYNTHETIC_PREFIX, &layer);
        f.counter.fail_at = 0;
        if (status == DSR_OK) {
            n_calls = n - 1;
            dsr_attention_destroy(layer);
        } else {
            assert_status(status, DSR_ERR_OUT_OF_MEMORY);
            assert_null(layer);
        }
        assert_int_equal(f.counter.n_live, n_live);
    }
    print_message("%llu allocations of a layer\n", (unsigned long long)n_calls);
    assert_in_range(n_calls, 30, 200);
    block_close(&f);
}

static void allocations_of_a_life(dsr_layer_kind kind, dsr_cache_treatment cache, uint32_t n_prefill)
{
    block_life healthy, life;
    uint64_t n_calls = UINT64_MAX;
    live(&healthy, kind, cache, n_prefill, NULL, NULL);
    block_live(&healthy);
    assert_int_equal(healthy.n_failures, 0);
    for (uint64_t n = 1; n <= n_calls; n += ALLOCATION_STRIDE) {
        live(&life, kind, cache, n_prefill, NULL, NULL);
        life.expected_failure = DSR_ERR_OUT_OF_MEMORY;
        life.f.counter.fail_at = life.f.counter.n_calls + n;
        block_live(&life);
        if (life.n_failures == 0)
            n_calls = n - 1;
        else
            assert_int_equal(life.n_failures, 1);
        assert_int_equal(life.result_bytes, healthy.result_bytes);
        assert_memory_equal(life.result, healthy.result, life.result_bytes);
        block_life_end(&life);
        block_close(&life.f);
    }
    print_message("kind %d: %llu allocations\n", (int)kind, (unsigned long long)n_calls);
    assert_in_range(n_calls, 30, 300);
    block_life_end(&healthy);
    block_close(&healthy.f);
}

static void allocations(void **state)
{
    (void)state;
    allocations_of_a_life(DSR_LAYER_RATIO_4, DSR_CACHE_BF16, 7);
    if (!IS_EMULATED)
        allocations_of_a_life(DSR_LAYER_RATIO_4, DSR_CACHE_PACKED, 6);
}

/* A fork's first write finds no memory: the text says whose. */
static void failed_write_of_a_fork(void **state)
{
    block_fixture f;
    dsr_sequence *a, *b, *fork = NULL;
    (void)state;
    block_open(&f, DSR_LAYER_RATIO_4, NULL, NULL);
    a = block_sequence(&f, 40);
    b = block_sequence(&f, 40);
    const dsr_step_entry warm[2] = {{a, 0, 1}, {b, 1, 1}};
    const dsr_step_desc first = block_step(&f, 2, warm);
    assert_ok(dsr_attention_decode(f.layer, &first));
    assert_ok(dsr_sequence_fork(b, &fork));
    const dsr_step_entry entries[2] = {{a, 0, 1}, {fork, 1, 1}};
    const dsr_step_desc step = block_step(&f, 2, entries);
    f.counter.fail_at = f.counter.n_calls + 1;
    assert_status(dsr_attention_decode(f.layer, &step), DSR_ERR_OUT_OF_MEMORY);
    const char *text = dsr_context_error_text(f.context), wanted[] = "decode: entry 1: ";
    assert_int_equal(strncmp(text, wanted, sizeof wanted - 1), 0);
    assert_true(strlen(text) > sizeof wanted + 10);
    f.counter.fail_at = 0;
    assert_ok(dsr_attention_decode(f.layer, &step));
    assert_int_equal(dsr_sequence_position(fork), 2);
    dsr_sequence_destroy(a);
    dsr_sequence_destroy(b);
    dsr_sequence_destroy(fork);
    block_close(&f);
}

/* ---- runs that break off --------------------------------------------------------------------------------------- */

/* A host's runner that leaves out tasks of one of its calls: half of them, or all. */
typedef struct bad_runner {
    uint64_t n_calls;
    uint64_t fail_at;
    int drops_all;
} bad_runner;

static void run_tasks(void *user, uint32_t n_tasks, dsr_task_fn body, void *body_context)
{
    bad_runner *runner = user;
    runner->n_calls++;
    uint32_t n = n_tasks;
    if (runner->n_calls == runner->fail_at)
        n = runner->drops_all ? 0 : n_tasks / 2;
    for (uint32_t i = 0; i < n; i++)
        body(body_context, i, i % 2);
}

static void broken_runs(dsr_layer_kind kind, dsr_cache_treatment cache, uint32_t n_prefill, uint64_t stride)
{
    bad_runner runner = {0};
    block_life healthy, life;
    uint64_t n_forks;
    live(&healthy, kind, cache, n_prefill, run_tasks, &runner);
    block_live(&healthy);
    n_forks = runner.n_calls;
    for (uint64_t n = 1; n <= n_forks; n += stride) {
        runner = (bad_runner){.fail_at = n, .drops_all = n % 2 == 0};
        live(&life, kind, cache, n_prefill, run_tasks, &runner);
        life.expected_failure = DSR_ERR_STATE;
        block_live(&life);
        assert_int_equal(life.n_failures, 1);
        assert_int_equal(life.result_bytes, healthy.result_bytes);
        assert_memory_equal(life.result, healthy.result, life.result_bytes);
        block_life_end(&life);
        block_close(&life.f);
    }
    print_message("kind %d: %llu forks\n", (int)kind, (unsigned long long)n_forks);
    block_life_end(&healthy);
    block_close(&healthy.f);
}

static void runs_that_break_off(void **state)
{
    (void)state;
    broken_runs(DSR_LAYER_RATIO_4, DSR_CACHE_BF16, 7, FORK_STRIDE);
    if (IS_EMULATED)
        return;
    broken_runs(DSR_LAYER_RATIO_128, DSR_CACHE_BF16, 125, 53);
    broken_runs(DSR_LAYER_RATIO_4, DSR_CACHE_PACKED, 7, 31);
}

/* ---- steady state ---------------------------------------------------------------------------------------------- */

/* After the first steps of a size and the first truncation, none of the next allocates, whatever boundaries they cross
 * and wherever their rows lie. */
static void steady_state(dsr_layer_kind kind)
{
    block_fixture f;
    dsr_sequence *sequences[2];
    block_open(&f, kind, NULL, NULL);
    for (int i = 0; i < 2; i++)
        sequences[i] = block_sequence(&f, 200);
    assert_ok(block_prefill(&f, sequences[0], 100)); /* so that the two complete entries at other times */
    uint64_t n_calls = 0;
    assert_ok(dsr_sequence_truncate(sequences[0], 5));
    for (uint32_t t = 0; t < 90; t++) {
        const dsr_step_entry entries[2] = {{sequences[t % 2], 0, 1}, {sequences[1 - t % 2], t < 8 ? 1 : 1 + t % 3, 1}};
        const dsr_step_desc step = block_step(&f, 2, entries);
        if (t == 8)
            n_calls = f.counter.n_calls;
        assert_ok(dsr_attention_decode(f.layer, &step));
    }
    for (uint32_t t = 0; t < 10; t++) {
        assert_ok(dsr_sequence_truncate(sequences[0], 3));
        for (uint32_t i = 0; i < 3; i++) {
            const dsr_step_entry entries[2] = {{sequences[0], 0, 1}, {sequences[1], 1, 1}};
            const dsr_step_desc step = block_step(&f, 2, entries);
            assert_ok(dsr_attention_decode(f.layer, &step));
        }
    }
    assert_int_equal(f.counter.n_calls, n_calls);
    for (int i = 0; i < 2; i++)
        dsr_sequence_destroy(sequences[i]);
    block_close(&f);
}

static void steady_states(void **state)
{
    (void)state;
    steady_state(DSR_LAYER_RATIO_4);
    if (IS_EMULATED)
        return;
    steady_state(DSR_LAYER_WINDOW);
    steady_state(DSR_LAYER_RATIO_128);
}

/* A sequence that was broken off can still go back, if not as far. */
static void truncation_after_a_broken_run(void **state)
{
    bad_runner runner = {0};
    block_fixture f;
    (void)state;
    block_open(&f, DSR_LAYER_RATIO_4, run_tasks, &runner);
    dsr_sequence *sequence = block_sequence(&f, 200), *plain = block_sequence(&f, 200);
    assert_ok(block_prefill(&f, sequence, 140));
    runner.fail_at = runner.n_calls + 12;
    assert_status(block_prefill(&f, sequence, 40), DSR_ERR_STATE);
    assert_int_equal(dsr_sequence_position(sequence), 140);
    assert_int_equal(dsr_sequence_max_truncate(sequence), 24);
    assert_ok(dsr_sequence_truncate(sequence, 24));
    assert_ok(block_prefill(&f, plain, 116));
    for (int i = 0; i < 2; i++) {
        block_state a = block_save(sequence), b = block_save(plain);
        assert_int_equal(a.n_bytes, b.n_bytes);
        assert_memory_equal(a.bytes, b.bytes, a.n_bytes);
        free(a.bytes);
        free(b.bytes);
        assert_ok(block_prefill(&f, sequence, 30));
        assert_ok(block_prefill(&f, plain, 30));
    }
    dsr_sequence_destroy(sequence);
    dsr_sequence_destroy(plain);
    block_close(&f);
}

/* Whichever piece of a prefill breaks off, its selection and its commands go with it. */
static void broken_piece_leaves_no_step(void **state)
{
    enum { N_TOKENS = 150 };
    bad_runner runner = {0};
    block_fixture f;
    uint32_t entries[32], n_entries;
    (void)state;
    block_open(&f, DSR_LAYER_RATIO_4, run_tasks, &runner);
    dsr_sequence *sequence = block_sequence(&f, 200);
    assert_ok(block_prefill(&f, sequence, N_TOKENS));
    assert_ok(dsr_attention_selection(f.layer, 0, entries, &n_entries));
    const uint64_t n_calls = runner.n_calls;
    for (uint64_t n = 3; n <= n_calls; n += n_calls / 7) {
        assert_ok(dsr_sequence_reset(sequence));
        runner = (bad_runner){.fail_at = n};
        assert_status(block_prefill(&f, sequence, N_TOKENS), DSR_ERR_STATE);
        assert_status(dsr_attention_selection(f.layer, 0, entries, &n_entries), DSR_ERR_STATE);
        assert_status(dsr_encoder_replay(dsr_attention_encoder(f.layer)), DSR_ERR_STATE);
    }
    dsr_sequence_destroy(sequence);
    block_close(&f);
}

/* Nobody gets the commands of a run that broke off to run once more: they would write into states and rows in use. */
static void broken_run_leaves_no_commands_of(dsr_layer_kind kind, uint32_t n_tokens)
{
    enum { N_BEFORE = 40 };
    bad_runner runner = {0};
    block_fixture f;
    block_open(&f, kind, run_tasks, &runner);
    dsr_sequence *sequence = block_sequence(&f, 200);
    assert_ok(block_prefill(&f, sequence, N_BEFORE));
    runner.n_calls = 0;
    assert_ok(block_prefill(&f, sequence, n_tokens));
    const uint64_t n_calls = runner.n_calls;
    for (uint64_t n = 1; n <= n_calls; n += n_calls / 5) {
        assert_ok(dsr_sequence_reset(sequence));
        runner = (bad_runner){0};
        assert_ok(block_prefill(&f, sequence, N_BEFORE));
        runner = (bad_runner){.fail_at = n};
        assert_status(block_prefill(&f, sequence, n_tokens), DSR_ERR_STATE);
        assert_ok(dsr_sequence_truncate(sequence, 0));
        block_state before = block_save(sequence);
        runner = (bad_runner){0};
        (void)dsr_encoder_submit(dsr_attention_encoder(f.layer));
        (void)dsr_encoder_replay(dsr_attention_encoder(f.layer));
        assert_int_equal(runner.n_calls, 0);
        block_assert_unchanged(sequence, &before);
    }
    dsr_sequence_destroy(sequence);
    block_close(&f);
}

static void broken_run_leaves_no_commands(void **state)
{
    static const dsr_layer_kind kinds[] = {DSR_LAYER_WINDOW, DSR_LAYER_RATIO_4, DSR_LAYER_RATIO_128};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        broken_run_leaves_no_commands_of(kinds[i], 3);
        broken_run_leaves_no_commands_of(kinds[i], 130);
    }
}

static void assert_same_state(const dsr_sequence *a, const dsr_sequence *b)
{
    block_state state = block_save(b);
    state.max_context = dsr_sequence_max_context(a);
    block_assert_unchanged(a, &state);
}

/* As far back as a sequence remembers, from every place in a group: what the rings and histories must just still hold.
 */
static void deepest_truncations_of(dsr_layer_kind kind)
{
    block_fixture f;
    block_open(&f, kind, NULL, NULL);
    dsr_sequence *far = block_sequence(&f, 250), *plain = block_sequence(&f, 250);
    assert_ok(block_prefill(&f, far, 188));
    assert_ok(block_prefill(&f, plain, 124));
    for (int i = 0; i < 8; i++) {
        dsr_sequence *back = NULL, *next = NULL;
        float expected[3 * BLOCK_HIDDEN];
        assert_ok(dsr_sequence_fork(far, &back));
        assert_ok(dsr_sequence_fork(plain, &next));
        assert_ok(dsr_sequence_truncate(back, DSR_MAX_TRUNCATE_TOKENS));
        assert_same_state(back, plain);
        assert_ok(block_prefill(&f, next, 3));
        memcpy(expected, dsr_buffer_data(f.output), sizeof expected);
        assert_ok(block_prefill(&f, back, 3));
        assert_memory_equal(dsr_buffer_data(f.output), expected, sizeof expected);
        assert_same_state(back, next);
        dsr_sequence_destroy(back);
        dsr_sequence_destroy(next);
        assert_ok(block_prefill(&f, far, 1));
        assert_ok(block_prefill(&f, plain, 1));
    }
    dsr_sequence_destroy(far);
    dsr_sequence_destroy(plain);
    block_close(&f);
}

static void deepest_truncations(void **state)
{
    (void)state;
    if (IS_EMULATED)
        return;
    deepest_truncations_of(DSR_LAYER_WINDOW);
    deepest_truncations_of(DSR_LAYER_RATIO_4);
    deepest_truncations_of(DSR_LAYER_RATIO_128);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_of_a_layer),
        cmocka_unit_test(allocations),
        cmocka_unit_test(failed_write_of_a_fork),
        cmocka_unit_test(runs_that_break_off),
        cmocka_unit_test(steady_states),
        cmocka_unit_test(truncation_after_a_broken_run),
        cmocka_unit_test(broken_piece_leaves_no_step),
        cmocka_unit_test(broken_run_leaves_no_commands),
        cmocka_unit_test(deepest_truncations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
