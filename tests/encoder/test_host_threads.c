/* The host's own threads as the runner, the floating-point mode on all of them, and runners that break the rules. */
#include "../unit/core_test.h"

#include "caller_fp_mode.h"
#include "random.h"

#include <pthread.h>
#include <stdatomic.h>

enum { N_HOST_THREADS = 3, N_VALUES = 999 };

/* ---- runners ---- */

typedef struct host {
    uint32_t n_calls;
    uint32_t n_tasks;
    dsr_task_fn body;
    void *body_context;
    atomic_uint next;
    caller_fp_mode mode;
    atomic_int n_modes_lost;
} host;

typedef struct host_thread {
    host *h;
    uint32_t worker;
} host_thread;

static void *host_thread_main(void *argument)
{
    const host_thread *self = argument;
    host *h = self->h;
    uint32_t i;
    (void)caller_fp_set(h->mode);
    const uint64_t word = caller_fp_word();
    /* Last task first: the order is the runner's. */
    while ((i = atomic_fetch_add(&h->next, 1)) < h->n_tasks) {
        h->body(h->body_context, h->n_tasks - 1 - i, self->worker);
        if (caller_fp_word() != word)
            atomic_fetch_add(&h->n_modes_lost, 1);
    }
    return NULL;
}

static void run_on_threads(void *user, uint32_t n_tasks, dsr_task_fn body, void *body_context)
{
    host *h = user;
    pthread_t threads[N_HOST_THREADS];
    host_thread arguments[N_HOST_THREADS];
    h->n_calls++;
    h->n_tasks = n_tasks;
    h->body = body;
    h->body_context = body_context;
    atomic_store(&h->next, 0);
    for (uint32_t i = 0; i < N_HOST_THREADS; i++) {
        arguments[i] = (host_thread){h, i};
        assert_int_equal(pthread_create(&threads[i], NULL, host_thread_main, &arguments[i]), 0);
    }
    for (int i = 0; i < N_HOST_THREADS; i++)
        (void)pthread_join(threads[i], NULL);
}

static void forget_last_task(void *user, uint32_t n_tasks, dsr_task_fn body, void *body_context)
{
    (void)user;
    for (uint32_t task = 0; task + 1 < n_tasks; task++)
        body(body_context, task, 0);
}

static void use_worker_out_of_range(void *user, uint32_t n_tasks, dsr_task_fn body, void *body_context)
{
    for (uint32_t task = 0; task < n_tasks; task++)
        body(body_context, task, *(const uint32_t *)user);
}

/* ---- commands ---- */

/* Results that rounding mode, FTZ and DAZ all change. */
static void compute(void *user, uint32_t task, uint32_t n_tasks, void *const *views, const void *params)
{
    const volatile float *in = views[0];
    volatile float *out = views[1];
    (void)user;
    (void)n_tasks;
    (void)params;
    for (uint32_t i = task * 10; i < (task + 1) * 10 && i < N_VALUES; i++) {
        const volatile float third = in[i] / 3.0f;
        const volatile float tiny = in[i] * 1e-20f;
        const volatile float tinier = tiny * 1e-20f;
        out[i] = third + tinier * 1e30f;
    }
}

static void disturb_mode(void *user, uint32_t task, uint32_t n_tasks, void *const *views, const void *params)
{
    (void)user;
    (void)task;
    (void)n_tasks;
    (void)views;
    (void)params;
    (void)caller_fp_set(FP_MODE_DOWN_FLUSH);
}

static void encode_computation(dsr_encoder *encoder, const dsr_view views[2])
{
    const dsr_access access[2] = {DSR_ACCESS_READ, DSR_ACCESS_WRITE};
    assert_ok(encode_kernel(encoder, "disturb", 7, 0, NULL, NULL));
    assert_ok(encode_kernel(encoder, "compute", N_VALUES / 10 + 1, 2, views, access));
    assert_ok(encode_kernel(encoder, "disturb", 7, 0, NULL, NULL));
}

static void run_context(const dsr_context_desc *desc, const float *in, float *out)
{
    dsr_context *context = NULL;
    assert_ok(dsr_context_create(desc, &context));
    dsr_buffer *a = new_buffer(context, N_VALUES * 4), *b = new_buffer(context, N_VALUES * 4);
    dsr_encoder *encoder = new_encoder(context);
    const dsr_view views[2] = {dsr_view_whole(a, DSR_DTYPE_F32), dsr_view_whole(b, DSR_DTYPE_F32)};
    assert_ok(dsr_registry_add_kernel(context, "compute", compute, NULL));
    assert_ok(dsr_registry_add_kernel(context, "disturb", disturb_mode, NULL));
    assert_ok(dsr_buffer_write(a, 0, in, N_VALUES * 4));
    encode_computation(encoder, views);
    assert_ok(dsr_encoder_submit(encoder));
    assert_ok(dsr_encoder_replay(encoder));
    assert_ok(dsr_encoder_wait(encoder));
    assert_ok(dsr_buffer_read(b, 0, out, N_VALUES * 4));
    dsr_encoder_destroy(encoder);
    dsr_buffer_destroy(a);
    dsr_buffer_destroy(b);
    dsr_context_destroy(context);
}

static void make_input(float *in)
{
    random_stream random = random_open(5, 5);
    for (int i = 0; i < N_VALUES; i++)
        in[i] = random_normal(&random);
}

/* ---- tests ---- */

static void test_any_mode_of_the_caller(void **state)
{
    static float in[N_VALUES], expected[N_VALUES], out[N_VALUES];
    void *views[2] = {in, expected};
    uint32_t n_different = 0;
    (void)state;
    make_input(in);
    for (uint32_t task = 0; task <= N_VALUES / 10; task++)
        compute(NULL, task, 0, views, NULL);
    for (int mode = 0; mode < N_CALLER_FP_MODES; mode++) {
        /* The modes do change these results outside of the library. */
        const uint64_t before = caller_fp_set((caller_fp_mode)mode);
        void *plain[2] = {in, out};
        for (uint32_t task = 0; task <= N_VALUES / 10; task++)
            compute(NULL, task, 0, plain, NULL);
        caller_fp_restore(before);
        n_different += memcmp(out, expected, sizeof out) != 0;
        for (uint32_t n_threads = 0; n_threads <= 5; n_threads++) {
            dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
            desc.n_threads = n_threads;
            memset(out, 0, sizeof out);
            (void)caller_fp_set((caller_fp_mode)mode);
            const uint64_t word = caller_fp_word();
            run_context(&desc, in, out);
            const uint64_t after = caller_fp_word();
            caller_fp_restore(before);
            assert_int_equal(after, word);
            assert_memory_equal(out, expected, sizeof out);
        }
    }
    assert_true(n_different >= 3);
}

static void test_host_threads(void **state)
{
    static float in[N_VALUES], expected[N_VALUES], out[N_VALUES];
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    (void)state;
    make_input(in);
    run_context(&desc, in, expected);
    for (int mode = 0; mode < N_CALLER_FP_MODES; mode++) {
        host h = {.mode = (caller_fp_mode)mode};
        desc.n_threads = N_HOST_THREADS;
        desc.parallel = run_on_threads;
        desc.parallel_user = &h;
        memset(out, 0, sizeof out);
        run_context(&desc, in, out);
        assert_memory_equal(out, expected, sizeof out);
        assert_int_equal(h.n_calls, 2); /* two runs of one wave */
        assert_int_equal(atomic_load(&h.n_modes_lost), 0);
    }
}

static void check_refused(dsr_parallel_fn parallel, void *user, const char *reason)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    dsr_context *context = NULL;
    desc.n_threads = 2;
    desc.parallel = parallel;
    desc.parallel_user = user;
    assert_ok(dsr_context_create(&desc, &context));
    dsr_encoder *encoder = new_encoder(context);
    assert_ok(dsr_registry_add_kernel(context, "disturb", disturb_mode, NULL));
    assert_ok(encode_kernel(encoder, "disturb", 5, 0, NULL, NULL));
    const uint64_t word = caller_fp_word();
    assert_status(dsr_encoder_submit(encoder), DSR_ERR_STATE);
    assert_int_equal(caller_fp_word(), word);
    assert_non_null(strstr(dsr_context_error_text(context), reason));
    dsr_encoder_destroy(encoder);
    dsr_context_destroy(context);
}

static void test_runners_that_break_the_rules(void **state)
{
    uint32_t worker = 2;
    (void)state;
    check_refused(forget_last_task, NULL, "4 of 5 tasks");
    check_refused(use_worker_out_of_range, &worker, "0 of 5 tasks");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_mode_of_the_caller),
        cmocka_unit_test(test_host_threads),
        cmocka_unit_test(test_runners_that_break_the_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
