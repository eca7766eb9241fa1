/* A 32-bit word that threads can sleep on: a futex on Linux, a condition variable elsewhere. */
#ifndef DSRI_SLEEP_WORD_H
#define DSRI_SLEEP_WORD_H

#include <stdatomic.h>
#include <stdint.h>
#ifndef __linux__
#include <pthread.h>
#endif

typedef struct dsri_sleep_word {
    atomic_uint_least32_t value;
#ifndef __linux__
    pthread_mutex_t mutex;
    pthread_cond_t changed;
#endif
} dsri_sleep_word;

void dsri_sleep_word_init(dsri_sleep_word *word);
void dsri_sleep_word_free(dsri_sleep_word *word);
/* Sleeps while the value is `value`; may return early. */
void dsri_sleep_while_equal(dsri_sleep_word *word, uint32_t value);
/* Wakes up to n_threads sleepers; called after the value has changed. */
void dsri_sleep_word_wake(dsri_sleep_word *word, uint32_t n_threads);

#endif
