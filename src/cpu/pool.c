/* A fork publishes its tasks as one number that workers count down; whoever takes the last unit leaves the others
 * nothing. The caller waits for tasks, not for threads: a thread that sleeps through a fork delays nobody, so that a
 * machine with fewer cores than threads only runs with fewer of them. */
#define _GNU_SOURCE
#include "cpu/pool.h"

#include "cpu/sleep_word.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { CACHE_LINE = 64, STACK_BYTES = 256 * 1024 };

typedef struct worker {
    struct dsri_pool *pool;
    pthread_t thread;
    uint32_t number; /* 1 and up */
} worker;

struct dsri_pool {
    const dsr_allocator *allocator;
    uint32_t n_threads;
    uint32_t n_started; /* threads that run, the caller not counted */
    uint32_t spin_microseconds;
    worker *workers; /* n_threads - 1 */

    /* The fork. Written before `tickets` is, read by holders of a ticket only. */
    uint32_t n_tasks;
    dsr_task_fn body;
    void *body_context;

    /* Upper half: number of the fork; lower half: tasks that nobody has taken yet. */
    _Alignas(CACHE_LINE) _Atomic uint64_t tickets;
    _Alignas(CACHE_LINE) dsri_sleep_word n_done;
    atomic_int is_caller_asleep;
    _Alignas(CACHE_LINE) dsri_sleep_word fork_number;
    atomic_uint_least32_t n_asleep;
    atomic_int is_stopping;
};

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static uint64_t now_nanoseconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Spins until the word is not `value` or the time is over; returns the word. */
static uint32_t spin_while_equal(const dsri_pool *pool, dsri_sleep_word *word, uint32_t value)
{
    enum { PAUSES_PER_LOOK_AT_CLOCK = 32 };
    uint32_t current = atomic_load_explicit(&word->value, memory_order_acquire);
    if (current != value || pool->spin_microseconds == 0)
        return current;
    const uint64_t end = now_nanoseconds() + (uint64_t)pool->spin_microseconds * 1000;
    do {
        for (int i = 0; i < PAUSES_PER_LOOK_AT_CLOCK; i++) {
            pause_cpu();
            current = atomic_load_explicit(&word->value, memory_order_acquire);
            if (current != value)
                return current;
        }
    } while (now_nanoseconds() < end);
    return current;
}

/* Runs tasks of the current fork until none is left to take. */
static void run_tasks(dsri_pool *pool, uint32_t worker_number)
{
    uint32_t n_run = 0, n_tasks = 0;
    uint64_t tickets = atomic_load_explicit(&pool->tickets, memory_order_relaxed);
    while ((uint32_t)tickets != 0) {
        if (!atomic_compare_exchange_weak_explicit(&pool->tickets, &tickets, tickets - 1, memory_order_acquire,
                                                   memory_order_relaxed))
            continue;
        /* A ticket in hand keeps the fork from ending, so its fields stand still. */
        n_tasks = pool->n_tasks;
        pool->body(pool->body_context, n_tasks - (uint32_t)tickets, worker_number);
        n_run++;
        tickets = atomic_load_explicit(&pool->tickets, memory_order_relaxed);
    }
    if (n_run == 0)
        return;
    /* Sequentially consistent, as the caller's two steps in wait_for_tasks: one of the two sees the other. */
    if (atomic_fetch_add(&pool->n_done.value, n_run) + n_run == n_tasks && atomic_load(&pool->is_caller_asleep))
        dsri_sleep_word_wake(&pool->n_done, 1);
}

static uint32_t wait_for_fork(dsri_pool *pool, uint32_t seen)
{
    uint32_t current = spin_while_equal(pool, &pool->fork_number, seen);
    while (current == seen) {
        atomic_fetch_add(&pool->n_asleep, 1);
        dsri_sleep_while_equal(&pool->fork_number, seen);
        atomic_fetch_sub(&pool->n_asleep, 1);
        current = atomic_load_explicit(&pool->fork_number.value, memory_order_acquire);
    }
    return current;
}

static void *worker_main(void *argument)
{
    const worker *self = argument;
    dsri_pool *pool = self->pool;
    uint32_t seen = 0;
    for (;;) {
        seen = wait_for_fork(pool, seen);
        if (atomic_load(&pool->is_stopping))
            return NULL;
        run_tasks(pool, self->number);
    }
}

/* Lets the workers see a new fork number. */
static void announce(dsri_pool *pool, uint32_t n_wanted)
{
    /* Sequentially consistent: either a sleeper's count is seen here, or it sees the new number and does not sleep. */
    atomic_fetch_add(&pool->fork_number.value, 1);
    const uint32_t n_asleep = atomic_load(&pool->n_asleep);
    if (n_asleep > 0)
        dsri_sleep_word_wake(&pool->fork_number, n_asleep < n_wanted ? n_asleep : n_wanted);
}

static void wait_for_tasks(dsri_pool *pool, uint32_t n_tasks)
{
    uint32_t n_done = atomic_load_explicit(&pool->n_done.value, memory_order_acquire);
    for (uint32_t before; n_done != n_tasks && pool->spin_microseconds > 0;) {
        before = n_done;
        n_done = spin_while_equal(pool, &pool->n_done, before);
        if (n_done == before)
            break;
    }
    if (n_done == n_tasks)
        return;
    atomic_store(&pool->is_caller_asleep, 1);
    while ((n_done = atomic_load(&pool->n_done.value)) != n_tasks)
        dsri_sleep_while_equal(&pool->n_done, n_done);
    atomic_store(&pool->is_caller_asleep, 0);
}

void dsri_pool_run(dsri_pool *pool, uint32_t n_tasks, dsr_task_fn body, void *body_context)
{
    if (n_tasks <= 1) {
        if (n_tasks == 1)
            body(body_context, 0, 0);
        return;
    }
    const uint64_t fork_number = (atomic_load_explicit(&pool->tickets, memory_order_relaxed) >> 32) + 1;
    pool->n_tasks = n_tasks;
    pool->body = body;
    pool->body_context = body_context;
    atomic_store_explicit(&pool->n_done.value, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->tickets, fork_number << 32 | n_tasks, memory_order_release);
    announce(pool, n_tasks - 1);
    run_tasks(pool, 0);
    wait_for_tasks(pool, n_tasks);
}

/* ---- creation and destruction ---- */

static uint32_t count_cpus(void)
{
#ifdef __linux__
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0)
        return (uint32_t)CPU_COUNT(&cpus);
#endif
    return UINT32_MAX;
}

static size_t stack_bytes(void)
{
    const size_t least = (size_t)PTHREAD_STACK_MIN;
    return least > STACK_BYTES ? least : STACK_BYTES;
}

/* Signals are for the host's threads: ours start, and stay, with all of them blocked. */
static int start_threads(dsri_pool *pool)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    int error = pthread_attr_init(&attributes);
    if (error)
        return error;
    error = pthread_attr_setstacksize(&attributes, stack_bytes());
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    for (uint32_t i = 0; i < pool->n_threads - 1 && error == 0; i++) {
        worker *w = &pool->workers[i];
        *w = (worker){.pool = pool, .number = i + 1};
        error = pthread_create(&w->thread, &attributes, worker_main, w);
        if (error == 0)
            pool->n_started++;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attributes);
    return error;
}

dsr_status dsri_pool_create(dsr_context *context, uint32_t n_threads, uint32_t spin_microseconds, dsri_pool **pool)
{
    const size_t workers_bytes = (n_threads - 1) * sizeof(worker);
    dsri_pool *created = dsri_allocate(&context->allocator, sizeof *created, CACHE_LINE);
    worker *workers = created ? dsri_allocate(&context->allocator, workers_bytes, _Alignof(worker)) : NULL;
    if (!workers) {
        dsri_release(&context->allocator, created, sizeof *created);
        return dsri_fail(context, DSR_ERR_OUT_OF_MEMORY, "context: memory for %u threads could not be allocated",
                         n_threads);
    }
    memset(created, 0, sizeof *created);
    created->allocator = &context->allocator;
    created->n_threads = n_threads;
    created->spin_microseconds = n_threads > count_cpus() ? 0 : spin_microseconds;
    created->workers = workers;
    dsri_sleep_word_init(&created->n_done);
    dsri_sleep_word_init(&created->fork_number);
    const int error = start_threads(created);
    if (error) {
        const uint32_t n_started = created->n_started;
        dsri_pool_destroy(created, 0);
        return dsri_fail(context, DSR_ERR_THREAD, "context: thread %u of %u could not be started (error %d)",
                         n_started + 2, n_threads, error);
    }
    *pool = created;
    return DSR_OK;
}

void dsri_pool_destroy(dsri_pool *pool, int is_forked)
{
    if (!pool)
        return;
    if (!is_forked) {
        atomic_store(&pool->is_stopping, 1);
        announce(pool, UINT32_MAX);
        for (uint32_t i = 0; i < pool->n_started; i++)
            (void)pthread_join(pool->workers[i].thread, NULL);
        dsri_sleep_word_free(&pool->n_done);
        dsri_sleep_word_free(&pool->fork_number);
    }
    dsri_release(pool->allocator, pool->workers, (pool->n_threads - 1) * sizeof *pool->workers);
    dsri_release(pool->allocator, pool, sizeof *pool);
}
