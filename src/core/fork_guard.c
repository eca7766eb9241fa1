#include "core/fork_guard.h"

#include <pthread.h>
#include <stdatomic.h>

static atomic_uint_least32_t fork_count;

static void count_fork(void)
{
    atomic_fetch_add_explicit(&fork_count, 1, memory_order_relaxed);
}

static int is_installed;

static void install(void)
{
    is_installed = pthread_atfork(NULL, NULL, count_fork) == 0;
}

int dsri_fork_guard_install(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, install);
    return is_installed;
}

uint32_t dsri_fork_count(void)
{
    return atomic_load_explicit(&fork_count, memory_order_relaxed);
}
