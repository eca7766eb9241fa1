/* Contexts side by side with more threads than cores: as right as alone, and within a small multiple of the time. */
#define _GNU_SOURCE
#include "../unit/core_test.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

enum { N_CONTEXTS = 4, N_CALLS = 200, N_TASKS = 16, N_CORES = 2 };

/* About a microsecond of integer work per task. */
static void work(void *user, uint32_t task, uint32_t n_tasks, void *const *views, const void *params)
{
    uint32_t *value = (uint32_t *)views[0] + task;
    (void)user;
    (void)n_tasks;
    (void)params;
    for (int i = 0; i < 400; i++)
        *(volatile uint32_t *)value = *value * 1664525u + 1013904223u;
}

typedef struct client {
    uint32_t n_threads;
    uint32_t values[N_TASKS];
    dsr_status status;
} client;

static dsr_status run_calls(dsr_context *context, client *c)
{
    dsr_buffer *buffer = NULL;
    dsr_encoder *encoder = NULL;
    dsr_status status = dsr_registry_add_kernel(context, "work", work, NULL);
    if (status == DSR_OK)
        status = dsr_buffer_wrap(context, c->values, sizeof c->values, &buffer);
    if (status == DSR_OK)
        status = dsr_encoder_create(context, &encoder);
    const dsr_view view = dsr_view_whole(buffer, DSR_DTYPE_U32);
    const dsr_access access = DSR_ACCESS_READ_WRITE;
    for (int i = 0; i < N_CALLS && status == DSR_OK; i++) {
        status = encode_kernel(encoder, "work", N_TASKS, 1, &view, &access);
        if (status == DSR_OK)
            status = dsr_encoder_submit(encoder);
        if (status == DSR_OK)
            status = dsr_encoder_reset(encoder);
    }
    dsr_encoder_destroy(encoder);
    dsr_buffer_destroy(buffer);
    return status;
}

static void *client_main(void *argument)
{
    client *c = argument;
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    dsr_context *context = NULL;
    desc.n_threads = c->n_threads;
    c->status = dsr_context_create(&desc, &context);
    if (c->status == DSR_OK)
        c->status = run_calls(context, c);
    dsr_context_destroy(context);
    return NULL;
}

static uint64_t run_clients(uint32_t n_threads, client *clients)
{
    pthread_t threads[N_CONTEXTS];
    struct timespec begin, end;
    (void)clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < N_CONTEXTS; i++) {
        clients[i] = (client){.n_threads = n_threads};
        assert_int_equal(pthread_create(&threads[i], NULL, client_main, &clients[i]), 0);
    }
    for (int i = 0; i < N_CONTEXTS; i++) {
        (void)pthread_join(threads[i], NULL);
        assert_ok(clients[i].status);
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    return (uint64_t)(end.tv_sec - begin.tv_sec) * 1000000 + (uint64_t)end.tv_nsec / 1000 -
           (uint64_t)begin.tv_nsec / 1000;
}

/* Keeps the process on the first two of its cores. */
static void take_two_cores(void)
{
    cpu_set_t all, two;
    int n = 0;
    CPU_ZERO(&two);
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    for (size_t cpu = 0; cpu < CPU_SETSIZE && n < N_CORES; cpu++) {
        if (CPU_ISSET(cpu, &all)) {
            CPU_SET(cpu, &two);
            n++;
        }
    }
    (void)sched_setaffinity(0, sizeof two, &two);
}

static void test_four_by_four_on_two_cores(void **state)
{
    static client one[N_CONTEXTS], four[N_CONTEXTS];
    uint64_t best_one = UINT64_MAX, best_four = UINT64_MAX;
    (void)state;
    take_two_cores();
    for (int round = 0; round < 5; round++) {
        const uint64_t a = run_clients(1, one), b = run_clients(4, four);
        best_one = a < best_one ? a : best_one;
        best_four = b < best_four ? b : best_four;
        for (int i = 0; i < N_CONTEXTS; i++) {
            assert_memory_equal(four[i].values, one[0].values, sizeof one[0].values);
            assert_memory_equal(one[i].values, one[0].values, sizeof one[0].values);
        }
    }
    print_message("4 contexts, 200 calls each: 1 thread %llu us, 4 threads %llu us\n", (unsigned long long)best_one,
                  (unsigned long long)best_four);
    assert_true(best_four < 10 * best_one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_four_by_four_on_two_cores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
