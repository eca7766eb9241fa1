/* Every allocation fails once, and every one from the n-th on fails: always the same status, nothing leaked, objects
 * left as they were, and work that goes on once there is memory again. */
#include "../unit/core_test.h"

#include <dsrows/ops.h>

#include "core/encoder_struct.h"

static void add_one(void *user, uint32_t task, uint32_t n_tasks, void *const *views, const void *params)
{
    (void)user;
    (void)n_tasks;
    (void)params;
    ((float *)views[0])[task] += 1;
}

static int drop_text(void *user, const char *piece, size_t n_bytes)
{
    (void)user;
    (void)piece;
    (void)n_bytes;
    return 0;
}

enum { N_ROWS = 4, N_ELEMENTS = 64, N_ROUNDS = 80 };

typedef struct scenario {
    counting_allocator counter;
    int goes_on; /* repeats a failed call, which must then succeed */
    uint32_t n_failures;
    dsr_context *context;
    dsr_buffer *in;
    dsr_buffer *out;
    dsr_encoder *encoder;
} scenario;

/* Checks a failed call. Returns whether to try it again. */
static int failed(scenario *s, dsr_status status)
{
    if (status == DSR_OK)
        return 0;
    assert_status(status, DSR_ERR_OUT_OF_MEMORY);
    s->n_failures++;
    const char *text = s->context ? dsr_context_error_text(s->context) : dsr_create_error_text();
    assert_non_null(strstr(text, "could not be allocated"));
    return s->goes_on;
}

/* Makes the call, again if it failed and the scenario goes on; leaves the function if it may not. */
#define STEP(call)                                                                                                     \
    do {                                                                                                               \
        dsr_status status_ = (call);                                                                                   \
        if (failed(s, status_))                                                                                        \
            status_ = (call);                                                                                          \
        if (status_ != DSR_OK)                                                                                         \
            return;                                                                                                    \
    } while (0)

/* A failed call leaves no trace in the encoder, nor in its arena. */
typedef struct encoder_trace {
    uint32_t n_commands;
    dsri_arena_mark mark;
} encoder_trace;

static encoder_trace trace_of(const scenario *s)
{
    return (encoder_trace){dsr_encoder_n_commands(s->encoder), dsri_arena_get_mark(&s->encoder->arena)};
}

static void check_trace(const scenario *s, encoder_trace before, dsr_status status)
{
    const encoder_trace now = trace_of(s);
    assert_int_equal(now.n_commands, before.n_commands + (status == DSR_OK));
    if (status == DSR_OK)
        return;
    assert_ptr_equal(now.mark.current, before.mark.current);
    assert_int_equal(now.mark.used_bytes, before.mark.used_bytes);
}

static dsr_status encode_gather(scenario *s, uint32_t round)
{
    dsr_view sources[N_ROWS];
    dsr_gather_desc gather = DSR_GATHER_DESC_INIT;
    for (uint32_t row = 0; row < N_ROWS; row++)
        sources[row] = dsr_view_slice(dsr_view_whole(s->in, DSR_DTYPE_F32), row + round, N_ELEMENTS);
    gather.n_rows = N_ROWS;
    gather.sources = sources;
    gather.row_elements = N_ELEMENTS;
    gather.output = dsr_view_slice(dsr_view_whole(s->out, DSR_DTYPE_F32), round * 8, N_ROWS * N_ELEMENTS);
    const encoder_trace before = trace_of(s);
    const dsr_status status = dsr_encode_gather(s->encoder, &gather);
    check_trace(s, before, status);
    return status;
}

static dsr_status encode_add(scenario *s)
{
    static unsigned char params[4000];
    const dsr_view view = dsr_view_whole(s->out, DSR_DTYPE_F32);
    const dsr_access access = DSR_ACCESS_READ_WRITE;
    dsr_kernel_desc desc = DSR_KERNEL_DESC_INIT;
    desc.name = "add_one";
    desc.n_tasks = N_ROWS * N_ELEMENTS;
    desc.n_views = 1;
    desc.views = &view;
    desc.access = &access;
    desc.params = params;
    desc.params_bytes = sizeof params;
    const encoder_trace before = trace_of(s);
    const dsr_status status = dsr_encode_kernel(s->encoder, &desc);
    check_trace(s, before, status);
    return status;
}

static void check_output(const scenario *s)
{
    float expected[N_ROUNDS * 8 + N_ROWS * N_ELEMENTS] = {0};
    const float *in = dsr_buffer_data(s->in);
    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        for (uint32_t row = 0; row < N_ROWS; row++)
            for (uint32_t i = 0; i < N_ELEMENTS; i++)
                expected[round * 8 + row * N_ELEMENTS + i] = in[row + round + i];
        for (uint32_t i = 0; i < N_ROWS * N_ELEMENTS; i++)
            expected[i] += 1;
    }
    assert_memory_equal(dsr_buffer_data(s->out), expected, sizeof expected);
}

static void run_scenario(scenario *s, uint32_t n_threads)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    desc.n_threads = n_threads;
    desc.allocator = counting_hook(&s->counter);
    STEP(dsr_context_create(&desc, &s->context));
    STEP(dsr_buffer_create(s->context, 4096, &s->in));
    STEP(dsr_buffer_create(s->context, (N_ROUNDS * 8 + N_ROWS * N_ELEMENTS) * 4, &s->out));
    STEP(dsr_encoder_create(s->context, &s->encoder));
    STEP(dsr_registry_add_kernel(s->context, "add_one", add_one, NULL));
    for (int i = 0; i < 1024; i++)
        ((float *)dsr_buffer_data(s->in))[i] = (float)i;
    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        STEP(encode_gather(s, round));
        STEP(encode_add(s));
    }
    STEP(dsr_encoder_capture(s->encoder, DSR_CAPTURE_JSON, drop_text, NULL));
    assert_ok(dsr_encoder_submit(s->encoder));
    assert_ok(dsr_encoder_wait(s->encoder));
    check_output(s);
}

static void end_scenario(scenario *s)
{
    dsr_encoder_destroy(s->encoder);
    dsr_buffer_destroy(s->in);
    dsr_buffer_destroy(s->out);
    dsr_context_destroy(s->context);
    assert_int_equal(s->counter.n_live, 0);
    assert_int_equal(s->counter.live_bytes, 0);
}

/* n = 1, 2, 3, ... until the scenario needs no n-th allocation. */
static void sweep(uint32_t n_threads, int fail_after, int goes_on)
{
    uint64_t n_calls = UINT64_MAX;
    for (uint64_t n = 1; n <= n_calls; n++) {
        scenario s = {.counter = {.fail_at = n, .fail_after = fail_after}, .goes_on = goes_on};
        run_scenario(&s, n_threads);
        if (s.n_failures == 0)
            n_calls = n - 1;
        else
            assert_int_equal(s.n_failures, 1);
        end_scenario(&s);
    }
    print_message("%llu allocations\n", (unsigned long long)n_calls);
    assert_in_range(n_calls, 8, 200);
}

static void test_one_thread(void **state)
{
    (void)state;
    sweep(1, 0, 0);
    sweep(1, 1, 0);
}

static void test_threads(void **state)
{
    (void)state;
    sweep(3, 0, 0);
}

static void test_going_on(void **state)
{
    (void)state;
    sweep(1, 0, 1);
    sweep(2, 0, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_thread),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_going_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
