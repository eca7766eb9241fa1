/* The pool alone: every task once, never two at a time on one worker, more threads than cores, no work when idle. */
#include "core_test.h"

#include "cpu/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

enum { MAX_TASKS = 3000, MAX_WORKERS = 64 };

typedef struct tally {
    atomic_int runs[MAX_TASKS];
    atomic_int is_busy[MAX_WORKERS];
    atomic_int errors;
    uint32_t n_tasks;
    uint32_t n_workers;
    uint32_t spin; /* work per task */
} tally;

static void count_task(void *context, uint32_t task, uint32_t worker)
{
    tally *t = context;
    if (task >= t->n_tasks || worker >= t->n_workers) {
        atomic_fetch_add(&t->errors, 1);
        return;
    }
    if (atomic_fetch_add(&t->is_busy[worker], 1) != 0)
        atomic_fetch_add(&t->errors, 1);
    for (volatile uint32_t i = 0; i < t->spin; i++)
        continue;
    atomic_fetch_add(&t->runs[task], 1);
    atomic_fetch_sub(&t->is_busy[worker], 1);
}

static void run_and_check(dsri_pool *pool, tally *t, uint32_t n_tasks)
{
    t->n_tasks = n_tasks;
    dsri_pool_run(pool, n_tasks, count_task, t);
    assert_int_equal(atomic_load(&t->errors), 0);
    for (uint32_t i = 0; i < n_tasks; i++)
        assert_int_equal(atomic_exchange(&t->runs[i], 0), 1);
}

static dsri_pool *new_pool(dsr_context *context, uint32_t n_threads, uint32_t spin_microseconds)
{
    dsri_pool *pool = NULL;
    assert_ok(dsri_pool_create(context, n_threads, spin_microseconds, &pool));
    return pool;
}

static void test_every_task_once(void **state)
{
    static tally t;
    const uint32_t threads[] = {2, 3, 7, 16}, spins[] = {0, 50};
    const uint32_t n_tasks[] = {0, 1, 2, 3, 15, 16, 17, 100, MAX_TASKS};
    dsr_context *context = new_context(1);
    (void)state;
    for (int i = 0; i < 8; i++) {
        dsri_pool *pool = new_pool(context, threads[i % 4], spins[i / 4]);
        t.n_workers = threads[i % 4];
        for (int round = 0; round < 20; round++) {
            t.spin = round % 2 ? 300 : 0;
            for (int n = 0; n < 9; n++)
                run_and_check(pool, &t, n_tasks[n]);
        }
        dsri_pool_destroy(pool, 0);
    }
    dsri_pool_destroy(NULL, 0);
    dsr_context_destroy(context);
}

static uint64_t now(clockid_t clock)
{
    struct timespec time;
    (void)clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static uint64_t time_forks(dsri_pool *pool, tally *t, int n)
{
    const uint64_t begin = now(CLOCK_MONOTONIC);
    for (int i = 0; i < n; i++)
        run_and_check(pool, t, 64);
    return now(CLOCK_MONOTONIC) - begin;
}

/* 16 threads on the cores there are: a small multiple of two threads' time, measured in turns. */
static void test_more_threads_than_cores(void **state)
{
    static tally t;
    dsr_context *context = new_context(1);
    dsri_pool *few = new_pool(context, 2, 50), *many = new_pool(context, 16, 50);
    uint64_t best_few = UINT64_MAX, best_many = UINT64_MAX;
    (void)state;
    t.n_workers = 16;
    t.spin = 2000;
    for (int round = 0; round < 5; round++) {
        const uint64_t a = time_forks(few, &t, 40), b = time_forks(many, &t, 40);
        best_few = a < best_few ? a : best_few;
        best_many = b < best_many ? b : best_many;
    }
    print_message("40 forks of 64 tasks: 2 threads %llu us, 16 threads %llu us\n",
                  (unsigned long long)(best_few / 1000), (unsigned long long)(best_many / 1000));
    assert_true(best_many < 10 * best_few);
    dsri_pool_destroy(few, 0);
    dsri_pool_destroy(many, 0);
    dsr_context_destroy(context);
}

static void test_idle_threads_use_no_cpu(void **state)
{
    static tally t;
    dsr_context *context = new_context(1);
    dsri_pool *pool = new_pool(context, 4, 50);
    const struct timespec pause = {.tv_nsec = 10000000}, nap = {.tv_nsec = 200000000};
    (void)state;
    t.n_workers = 4;
    run_and_check(pool, &t, 64);
    (void)nanosleep(&pause, NULL);
    const uint64_t begin = now(CLOCK_PROCESS_CPUTIME_ID);
    (void)nanosleep(&nap, NULL);
    const uint64_t used = now(CLOCK_PROCESS_CPUTIME_ID) - begin;
    print_message("CPU time of 200 ms of idling: %llu us\n", (unsigned long long)(used / 1000));
    assert_true(used < 20000000);
    run_and_check(pool, &t, 64);
    dsri_pool_destroy(pool, 0);
    dsr_context_destroy(context);
}

typedef struct signal_seen {
    atomic_int n_threads_with_signals;
    atomic_int n_workers_seen;
    pthread_t caller;
} signal_seen;

static void look_at_mask(void *context, uint32_t task, uint32_t worker)
{
    signal_seen *seen = context;
    sigset_t mask;
    const struct timespec moment = {.tv_nsec = 1000000};
    (void)task;
    (void)worker;
    (void)pthread_sigmask(SIG_BLOCK, NULL, &mask);
    if (pthread_equal(pthread_self(), seen->caller)) {
        (void)nanosleep(&moment, NULL); /* leaves tasks to the others */
        return;
    }
    atomic_fetch_add(&seen->n_workers_seen, 1);
    if (!sigismember(&mask, SIGINT) || !sigismember(&mask, SIGUSR1) || !sigismember(&mask, SIGPROF))
        atomic_fetch_add(&seen->n_threads_with_signals, 1);
}

static void test_workers_take_no_signals(void **state)
{
    signal_seen seen = {.caller = pthread_self()};
    dsr_context *context = new_context(1);
    dsri_pool *pool = new_pool(context, 3, 50);
    sigset_t mask;
    (void)state;
    for (int i = 0; i < 50 && atomic_load(&seen.n_workers_seen) == 0; i++)
        dsri_pool_run(pool, 50, look_at_mask, &seen);
    assert_true(atomic_load(&seen.n_workers_seen) > 0);
    assert_int_equal(atomic_load(&seen.n_threads_with_signals), 0);
    (void)pthread_sigmask(SIG_BLOCK, NULL, &mask);
    assert_false(sigismember(&mask, SIGUSR1));
    dsri_pool_destroy(pool, 0);
    dsr_context_destroy(context);
}

/* Tasks of one fork see what tasks of the fork before wrote, whichever thread ran them. */
enum { N_LINKS = 40 };
typedef struct chain {
    uint32_t values[N_LINKS];
    uint32_t n_wrong[N_LINKS];
    uint32_t generation;
} chain;

static void step_chain(void *context, uint32_t task, uint32_t worker)
{
    chain *c = context;
    (void)worker;
    c->n_wrong[task] += c->values[task] != c->generation;
    c->values[task] = c->generation + 1;
}

static void test_forks_are_ordered(void **state)
{
    static chain c;
    dsr_context *context = new_context(1);
    dsri_pool *pool = new_pool(context, 4, 50);
    (void)state;
    for (c.generation = 0; c.generation < 3000; c.generation++)
        dsri_pool_run(pool, N_LINKS, step_chain, &c);
    for (int i = 0; i < N_LINKS; i++)
        assert_int_equal(c.n_wrong[i], 0);
    dsri_pool_destroy(pool, 0);
    dsr_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_task_once),         cmocka_unit_test(test_more_threads_than_cores),
        cmocka_unit_test(test_idle_threads_use_no_cpu), cmocka_unit_test(test_workers_take_no_signals),
        cmocka_unit_test(test_forks_are_ordered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
