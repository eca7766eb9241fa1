/* A fork gives every worker a share of neighbouring tasks, the same part of every fork: tasks of a row stay on the same
 * few threads from phase to phase, and what they leave in a core's cache is used there. A worker takes its own tasks
 * from the front; one that has none left takes single tasks from the back of others' shares.
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

enum { CACHE_LINE = 64, STACK_BYTES = 256 * 1024 };

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

/* Takes a task of a share, from its front or its back; 0 if there is none. A share that looks as it did in an earlier
 * fork is as good: its tasks are those of the fork at hand. */
static int take_task(share *from, int front, uint32_t *task)
{
    uint64_t tasks = atomic_load_explicit(&from->tasks, memory_order_relaxed);
    for (;;) {
        const uint32_t first = (uint32_t)(tasks >> 32), end = (uint32_t)tasks;
        if (first >= end)
            return 0;
        const uint64_t left = front ? tasks + (UINT64_C(1) << 32) : tasks - 1;
        if (atomic_compare_exchange_weak_explicit(&from->tasks, &tasks, left, memory_order_acquire,
                                                  memory_order_relaxed)) {
            *task = front ? first : end - 1;
            return 1;
        }
    }
}

/* Runs the tasks of a share that are left; returns how many it ran. A task in hand keeps the fork from ending, so its
 * fields stand still. */
static uint32_t run_share(dsri_pool *pool, share *from, uint32_t worker_number)
{
    const int is_own = from == &pool->shares[worker_number];
    uint32_t n_run = 0, task;
    for (; take_task(from, is_own, &task); n_run++)
        pool->body(pool->body_context, task, worker_number);
    return n_run;
}

/* Runs tasks of the current fork until none is left to take: own ones, then those of the nearest workers first, which
 * are likely to be of the same row. */
static void run_tasks(dsri_pool *pool, uint32_t worker_number)
{
    uint32_t n_run = 0;
    for (uint32_t distance = 0; distance < 2 * pool->n_threads; distance++) {
        const uint32_t other = worker_number ^ distance;
        if (other < pool->n_threads)
            n_run += run_share(pool, &pool->shares[other], worker_number);
    }
    if (n_run == 0)
        return;
    /* Sequentially consistent, as the caller's two steps in wait_for_tasks: one of the two sees the other. */
    const uint32_t n_tasks = pool->n_tasks;
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
