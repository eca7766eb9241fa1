/* The n-th thread cannot be started: a code, nothing leaked, the threads before it gone. Linked with --wrap. */
#include "../unit/core_test.h"

#include <errno.h>
#include <pthread.h>

static int n_until_failure; /* 0: none fails */

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument)
{
    if (n_until_failure > 0 && --n_until_failure == 0)
        return EAGAIN;
    return __real_pthread_create(thread, attributes, start, argument);
}

static void test_every_thread(void **state)
{
    enum { N_THREADS = 6 };
    (void)state;
    for (int n = 1; n < N_THREADS; n++) {
        counting_allocator counter = {0};
        dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
        dsr_context *const untouched = (dsr_context *)&counter;
        dsr_context *context = untouched;
        char expected[64];
        desc.n_threads = N_THREADS;
        desc.allocator = counting_hook(&counter);
        n_until_failure = n;
        assert_status(dsr_context_create(&desc, &context), DSR_ERR_THREAD);
        assert_int_equal(n_until_failure, 0);
        assert_ptr_equal(context, untouched);
        assert_int_equal(counter.n_live, 0);
        (void)snprintf(expected, sizeof expected, "thread %d of %d could not be started", n + 1, N_THREADS);
        assert_non_null(strstr(dsr_create_error_text(), expected));
        assert_ok(dsr_context_create(&desc, &context));
        dsr_context_destroy(context);
        assert_int_equal(counter.n_live, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
