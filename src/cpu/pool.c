/* A fork gives every worker a share of neighbouring tasks, the same part of every fork: tasks of a row stay on the same
 * few threads from phase to phase, and what they leave in a core's cache is used there. A worker takes its own tasks
 * from the front. One that has none left waits for a moment, since a task moved to another core costs both of them the
 * time to fetch its lines; then it takes single tasks from the back of others' shares, the last one of a share only
 * after another moment.
 *
 * The caller waits for tasks, not for threads: a thread that sleeps through a fork delays nobody, so that a machine
 * with fewer cores than threads only runs with fewer of them. */
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

enum { CACHE_LINE = 64, STACK_BYTES = 256 * 1024, MOMENT_NANOSECONDS = 8000 };

/* Tasks of a worker that nobody has taken yet: the first one in the upper half, the end in the lower. */
typedef struct share {
    _Alignas(CACHE_LINE) _Atomic uint64_t tasks;
} share;

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

    /* The fork. Written before the shares are, read by those who have taken a task only. */
    uint32_t n_tasks;
    dsr_task_fn body;
    void *body_context;

    _Alignas(CACHE_LINE) dsri_sleep_word n_done;
    atomic_int is_caller_asleep;
    _Alignas(CACHE_LINE) dsri_sleep_word fork_number;
    atomic_uint_least32_t n_asleep;
    atomic_int is_stopping;

    share shares[]; /* n_threads */
};

static size_t pool_bytes(uint32_t n_threads)
{
    return sizeof(dsri_pool) + n_threads * sizeof(share);
}

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
static uint32_t spin_while_equal(dsri_sleep_word *word, uint32_t value, uint64_t nanoseconds)
{
    enum { PAUSES_PER_LOOK_AT_CLOCK = 32 };
    uint32_t current = atomic_load_explicit(&word->value, memory_order_acquire);
    if (current != value || nanoseconds == 0)
        return current;
    const uint64_t end = now_nanoseconds() + nanoseconds;
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

/* Takes a task of a share that has n_least or more left, from its front or its back; 0 if it has not. A share that
 * looks as it did in an earlier fork is as good: its tasks are those of the fork at hand. */
static int take_task(share *from, int front, uint32_t n_least, uint32_t *task)
{
    uint64_t tasks = atomic_load_explicit(&from->tasks, memory_order_relaxed);
    for (;;) {
        const uint32_t first = (uint32_t)(tasks >> 32), end = (uint32_t)tasks;
        if (first >= end || end - first < n_least)
            return 0;
        const uint64_t left = front ? tasks + (UINT64_C(1) << 32) : tasks - 1;
        if (atomic_compare_exchange_weak_explicit(&from->tasks, &tasks, left, memory_order_acquire,
                                                  memory_order_relaxed)) {
            *task = front ? first : end - 1;
            return 1;
        }
    }
}

/* Counts tasks as done. The last of them have kept the fork from ending until here, so its fields stand still. */
static void count_done(dsri_pool *pool, uint32_t n_run)
{
    const uint32_t n_tasks = n_run ? pool->n_tasks : 0;
    /* Sequentially consistent, as the caller's two steps in wait_for_tasks: one of the two sees the other. */
    if (n_run > 0 && atomic_fetch_add(&pool->n_done.value, n_run) + n_run == n_tasks &&
        atomic_load(&pool->is_caller_asleep))
        dsri_sleep_word_wake(&pool->n_done, 1);
}

static void run_own_tasks(dsri_pool *pool, uint32_t worker_number)
{
    uint32_t n_run = 0, task;
    for (; take_task(&pool->shares[worker_number], 1, 1, &task); n_run++)
        pool->body(pool->body_context, task, worker_number);
    count_done(pool, n_run);
}

/* Runs tasks of shares with n_least or more left: of the nearest workers first, which are likely to have the same row.
 */
static void run_others_tasks(dsri_pool *pool, uint32_t worker_number, uint32_t n_least)
{
    uint32_t n_run = 0, task;
    for (uint32_t distance = 1; distance < 2 * pool->n_threads; distance++) {
        const uint32_t other = worker_number ^ distance;
        while (other < pool->n_threads && take_task(&pool->shares[other], 0, n_least, &task)) {
            pool->body(pool->body_context, task, worker_number);
            n_run++;
        }
    }
    count_done(pool, n_run);
}

/* 0 where threads outnumber CPUs: who should take a task may not be running. */
static uint64_t moment(const dsri_pool *pool)
{
    return pool->spin_microseconds ? MOMENT_NANOSECONDS : 0;
}

static void run_as_worker(dsri_pool *pool, uint32_t worker_number, uint32_t fork_number)
{
    run_own_tasks(pool, worker_number);
    for (uint32_t n_least = 2; n_least > 0; n_least--) {
        if (spin_while_equal(&pool->fork_number, fork_number, moment(pool)) != fork_number)
            return;
        run_others_tasks(pool, worker_number, n_least);
    }
}

static void run_as_caller(dsri_pool *pool, uint32_t n_tasks)
{
    run_own_tasks(pool, 0);
    for (uint32_t n_least = 2; n_least > 0; n_least--) {
        uint32_t before, n_done = atomic_load_explicit(&pool->n_done.value, memory_order_acquire);
        do {
            before = n_done;
            n_done = spin_while_equal(&pool->n_done, before, moment(pool));
        } while (n_done != before && n_done != n_tasks);
        if (n_done == n_tasks)
            return;
        run_others_tasks(pool, 0, n_least);
    }
}

static uint64_t spin_nanoseconds(const dsri_pool *pool)
{
    return (uint64_t)pool->spin_microseconds * 1000;
}

static uint32_t wait_for_fork(dsri_pool *pool, uint32_t seen)
{
    uint32_t current = spin_while_equal(&pool->fork_number, seen, spin_nanoseconds(pool));
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
        run_as_worker(pool, self->number, seen);
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
        n_done = spin_while_equal(&pool->n_done, before, spin_nanoseconds(pool));
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
    pool->n_tasks = n_tasks;
    pool->body = body;
    pool->body_context = body_context;
    atomic_store_explicit(&pool->n_done.value, 0, memory_order_relaxed);
    for (uint32_t w = 0; w < pool->n_threads; w++) {
        const uint64_t first = (uint64_t)n_tasks * w / pool->n_threads;
        const uint64_t end = (uint64_t)n_tasks * (w + 1) / pool->n_threads;
        atomic_store_explicit(&pool->shares[w].tasks, first << 32 | end, memory_order_release);
    }
    announce(pool, n_tasks - 1);
    run_as_caller(pool, n_tasks);
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
    dsri_pool *created = dsri_allocate(&context->allocator, pool_bytes(n_threads), CACHE_LINE);
    worker *workers = created ? dsri_allocate(&context->allocator, workers_bytes, _Alignof(worker)) : NULL;
    if (!workers) {
        dsri_release(&context->allocator, created, pool_bytes(n_threads));
        return dsri_fail(context, DSR_ERR_OUT_OF_MEMORY, "context: memory for %u threads could not be allocated",
                         n_threads);
    }
    memset(created, 0, pool_bytes(n_threads));
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
    dsri_release(pool->allocator, pool, pool_bytes(pool->n_threads));
}
