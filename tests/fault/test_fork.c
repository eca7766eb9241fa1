/* A child of a fork: its parent's contexts give a code there and never hang, new ones work, the parent goes on. */
#include "../unit/core_test.h"

#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define HAS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HAS_TSAN 1
#endif
#endif
#ifndef HAS_TSAN
#define HAS_TSAN 0
#endif
#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif
#ifndef HAS_ASAN
#define HAS_ASAN 0
#endif

enum { CHILD_SECONDS = 60, REST_NANOSECONDS = 50000000 };

static void add_one(void *user, uint32_t task, uint32_t n_tasks, void *const *views, const void *params)
{
    (void)user;
    (void)n_tasks;
    (void)params;
    ((uint32_t *)views[0])[task]++;
}

typedef struct session {
    dsr_context *context;
    dsr_buffer *buffer;
    dsr_encoder *ran;
    dsr_encoder *encoded;
} session;

static session new_session(uint32_t n_threads)
{
    session s = {.context = new_context(n_threads)};
    s.buffer = new_buffer(s.context, 64 * 4);
    s.ran = new_encoder(s.context);
    s.encoded = new_encoder(s.context);
    const dsr_view view = dsr_view_whole(s.buffer, DSR_DTYPE_U32);
    const dsr_access access = DSR_ACCESS_READ_WRITE;
    assert_ok(dsr_registry_add_kernel(s.context, "add_one", add_one, NULL));
    assert_ok(encode_kernel(s.ran, "add_one", 64, 1, &view, &access));
    assert_ok(encode_kernel(s.encoded, "add_one", 64, 1, &view, &access));
    assert_ok(dsr_encoder_submit(s.ran));
    return s;
}

static void end_session(session *s)
{
    dsr_encoder_destroy(s->ran);
    dsr_encoder_destroy(s->encoded);
    dsr_buffer_destroy(s->buffer);
    dsr_context_destroy(s->context);
}

/* Number of the first check that fails, 0 if none. cmocka's assertions do not belong in a child. */
static int check_child(session *s)
{
    dsr_buffer *buffer = NULL;
    dsr_encoder *encoder = NULL;
    uint32_t value;
    if (dsr_encoder_submit(s->encoded) != DSR_ERR_FORKED)
        return 1;
    if (dsr_encoder_replay(s->ran) != DSR_ERR_FORKED)
        return 2;
    if (!strstr(dsr_context_error_text(s->context), "fork"))
        return 3;
    if (dsr_buffer_create(s->context, 8, &buffer) != DSR_ERR_FORKED || buffer)
        return 4;
    if (dsr_encoder_create(s->context, &encoder) != DSR_ERR_FORKED || encoder)
        return 5;
    if (dsr_buffer_read(s->buffer, 0, &value, 4) != DSR_ERR_FORKED)
        return 6;
    if (dsr_encoder_wait(s->ran) != DSR_OK || dsr_encoder_reset(s->ran) != DSR_OK)
        return 7;
    if (((const uint32_t *)dsr_buffer_data(s->buffer))[63] != 1)
        return 8;
    end_session(s);
    /* The thread sanitizer allows no new threads here. */
    session own = new_session(HAS_TSAN ? 1 : 3);
    if (((const uint32_t *)dsr_buffer_data(own.buffer))[63] != 1)
        return 9;
    end_session(&own);
    return 0;
}

static void check_fork(session *s)
{
    int child_status = -1;
    /* The address sanitizer's allocator stays locked in the child if a thread that starts up is in it. */
    if (HAS_ASAN)
        (void)nanosleep(&(struct timespec){.tv_nsec = REST_NANOSECONDS}, NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)alarm(CHILD_SECONDS); /* a hang ends as a death by signal */
        _exit(check_child(s));
    }
    assert_int_equal(waitpid(child, &child_status, 0), child);
    if (!WIFEXITED(child_status))
        fail_msg("the child died of signal %d", WTERMSIG(child_status));
    assert_int_equal(WEXITSTATUS(child_status), 0);
}

static void test_fork(void **state)
{
    const uint32_t n_threads[] = {1, 2, 5};
    (void)state;
    for (int i = 0; i < 3; i++) {
        session s = new_session(n_threads[i]);
        check_fork(&s);
        check_fork(&s);
        assert_ok(dsr_encoder_replay(s.ran));
        assert_ok(dsr_encoder_submit(s.encoded));
        assert_int_equal(((const uint32_t *)dsr_buffer_data(s.buffer))[63], 3);
        end_session(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
