#define _GNU_SOURCE
#include "cpu/sleep_word.h"

#ifdef __linux__

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

_Static_assert(sizeof(atomic_uint_least32_t) == 4, "a futex is a 32-bit word");

void dsri_sleep_word_init(dsri_sleep_word *word)
{
    atomic_init(&word->value, 0);
}

void dsri_sleep_word_free(dsri_sleep_word *word)
{
    (void)word;
}

void dsri_sleep_while_equal(dsri_sleep_word *word, uint32_t value)
{
    (void)syscall(SYS_futex, &word->value, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

void dsri_sleep_word_wake(dsri_sleep_word *word, uint32_t n_threads)
{
    const int n = n_threads > INT_MAX ? INT_MAX : (int)n_threads;
    (void)syscall(SYS_futex, &word->value, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

#else

void dsri_sleep_word_init(dsri_sleep_word *word)
{
    atomic_init(&word->value, 0);
    (void)pthread_mutex_init(&word->mutex, NULL);
    (void)pthread_cond_init(&word->changed, NULL);
}

void dsri_sleep_word_free(dsri_sleep_word *word)
{
    (void)pthread_cond_destroy(&word->changed);
    (void)pthread_mutex_destroy(&word->mutex);
}

void dsri_sleep_while_equal(dsri_sleep_word *word, uint32_t value)
{
    (void)pthread_mutex_lock(&word->mutex);
    while (atomic_load(&word->value) == value)
        (void)pthread_cond_wait(&word->changed, &word->mutex);
    (void)pthread_mutex_unlock(&word->mutex);
}

void dsri_sleep_word_wake(dsri_sleep_word *word, uint32_t n_threads)
{
    /* The mutex closes the gap between a sleeper's look at the value and its wait. */
    (void)pthread_mutex_lock(&word->mutex);
    if (n_threads == 1)
        (void)pthread_cond_signal(&word->changed);
    else
        (void)pthread_cond_broadcast(&word->changed);
    (void)pthread_mutex_unlock(&word->mutex);
}

#endif
