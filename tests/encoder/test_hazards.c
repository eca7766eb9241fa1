/* Which commands wait for which, against brute force, and that they really do. */
#include "../unit/core_test.h"

#include "random.h"

#include <stdatomic.h>
#include <time.h>

/* ---- dependencies against a map of bytes ---- */

enum { SPACE = 400, MAX_COMMANDS = 150, MAX_VIEWS = 5 };

typedef struct brute_command {
    unsigned char reads[SPACE];
    unsigned char writes[SPACE];
    unsigned char waits_for[MAX_COMMANDS]; /* directly or not */
    uint32_t wave;
} brute_command;

static int conflicts(const brute_command *earlier, const brute_command *later)
{
    for (int i = 0; i < SPACE; i++)
        if ((earlier->writes[i] && (later->reads[i] || later->writes[i])) || (earlier->reads[i] && later->writes[i]))
            return 1;
    return 0;
}

/* Mixes what it reads into what it writes, and its number too: any change of order changes some byte. */
static void mix_bytes(void *user, uint32_t task, uint32_t n_tasks, void *const *views, const void *params)
{
    const uint32_t *p = params; /* number, n views, then length and access of each */
    uint32_t hash = p[0] * 2654435761u;
    (void)user;
    (void)task;
    (void)n_tasks;
    for (uint32_t v = 0; v < p[1]; v++)
        for (uint32_t i = 0; (p[3 + 2 * v] & DSR_ACCESS_READ) && i < p[2 + 2 * v]; i++)
            hash = (hash ^ ((const unsigned char *)views[v])[i]) * 16777619u;
    for (uint32_t v = 0; v < p[1]; v++)
        for (uint32_t i = 0; (p[3 + 2 * v] & DSR_ACCESS_WRITE) && i < p[2 + 2 * v]; i++)
            ((unsigned char *)views[v])[i] = (unsigned char)(hash = hash * 1664525u + 1013904223u) ^ (unsigned char)i;
}

typedef struct random_call {
    uint32_t params[2 + 2 * MAX_VIEWS];
    dsr_view views[MAX_VIEWS];
    dsr_access access[MAX_VIEWS];
} random_call;

static void make_call(random_stream *random, dsr_buffer *buffer, uint32_t number, random_call *call)
{
    call->params[0] = number;
    call->params[1] = random_between(random, 1, MAX_VIEWS);
    for (uint32_t v = 0; v < call->params[1]; v++) {
        const uint32_t begin = random_below(random, SPACE);
        const uint32_t longest = random_one_in(random, 10) ? 120 : 12;
        uint32_t length = random_below(random, longest);
        if (length > SPACE - begin)
            length = SPACE - begin;
        call->views[v] = view_of(buffer, begin, length);
        call->access[v] = (dsr_access)random_between(random, 1, 3);
        call->params[2 + 2 * v] = length;
        call->params[3 + 2 * v] = call->access[v];
    }
}

static dsr_status encode_call(dsr_encoder *encoder, const random_call *call)
{
    dsr_kernel_desc desc = DSR_KERNEL_DESC_INIT;
    desc.name = "mix";
    desc.n_tasks = 1;
    desc.n_views = call->params[1];
    desc.views = call->views;
    desc.access = call->access;
    desc.params = call->params;
    desc.params_bytes = (uint32_t)((2 + 2 * call->params[1]) * sizeof call->params[0]);
    return dsr_encode_kernel(encoder, &desc);
}

static void add_brute(brute_command *commands, uint32_t n, const random_call *call)
{
    brute_command *c = &commands[n];
    memset(c, 0, sizeof *c);
    for (uint32_t v = 0; v < call->params[1]; v++) {
        if (call->access[v] & DSR_ACCESS_READ)
            memset(c->reads + call->views[v].byte_offset, 1, call->views[v].byte_length);
        if (call->access[v] & DSR_ACCESS_WRITE)
            memset(c->writes + call->views[v].byte_offset, 1, call->views[v].byte_length);
    }
    for (uint32_t j = n; j-- > 0;) {
        if (!conflicts(&commands[j], c))
            continue;
        c->waits_for[j] = 1;
        for (uint32_t k = 0; k < j; k++)
            c->waits_for[k] |= commands[j].waits_for[k];
        if (c->wave <= commands[j].wave)
            c->wave = commands[j].wave + 1;
    }
}

/* j is a direct dependency of n if n waits for it and for no other command that waits for it. */
static int is_direct(const brute_command *commands, uint32_t n, uint32_t j)
{
    for (uint32_t k = j + 1; k < n; k++)
        if (commands[n].waits_for[k] && commands[k].waits_for[j])
            return 0;
    return commands[n].waits_for[j];
}

static void check_against_brute(const dsr_encoder *encoder, const brute_command *commands, uint32_t n)
{
    const dsr_command_info info = command_info(encoder, n);
    assert_int_equal(info.wave, commands[n].wave);
    for (uint32_t i = 1; i < info.n_depends_on; i++)
        assert_true(info.depends_on[i - 1] < info.depends_on[i]);
    for (uint32_t j = 0; j < n; j++)
        if (depends_directly(&info, j) != is_direct(commands, n, j))
            fail_msg("command %u on command %u", n, j);
}

static void run_one_by_one(dsr_encoder *encoder, const random_call *calls, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_ok(encode_call(encoder, &calls[i]));
        assert_ok(dsr_encoder_submit(encoder));
        assert_ok(dsr_encoder_wait(encoder));
        assert_ok(dsr_encoder_reset(encoder));
    }
}

static void test_random_ranges(void **state)
{
    static brute_command commands[MAX_COMMANDS];
    static random_call calls[MAX_COMMANDS];
    const uint64_t seed = 92939500;
    dsr_context *context = new_context(3);
    dsr_buffer *joint = new_buffer(context, SPACE), *alone = new_buffer(context, SPACE);
    dsr_encoder *encoder = new_encoder(context), *single = new_encoder(context);
    uint32_t n_side_by_side = 0;
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    assert_ok(dsr_registry_add_kernel(context, "mix", mix_bytes, NULL));
    for (uint32_t round = 0; round < 25; round++) {
        random_stream random = random_open(seed, round);
        const uint32_t n_wanted = random_between(&random, 1, MAX_COMMANDS);
        uint32_t n = 0;
        while (n < n_wanted) {
            make_call(&random, joint, n, &calls[n]);
            const dsr_status status = encode_call(encoder, &calls[n]);
            if (status == DSR_ERR_OVERLAP)
                continue;
            assert_ok(status);
            add_brute(commands, n, &calls[n]);
            check_against_brute(encoder, commands, n++);
        }
        assert_int_equal(dsr_encoder_n_commands(encoder), n);
        n_side_by_side += commands[n - 1].wave + 1 < n;
        assert_ok(dsr_encoder_submit(encoder));
        assert_ok(dsr_encoder_wait(encoder));
        assert_ok(dsr_encoder_reset(encoder));
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t v = 0; v < calls[i].params[1]; v++)
                calls[i].views[v].buffer = alone;
        run_one_by_one(single, calls, n);
        assert_memory_equal(dsr_buffer_data(joint), dsr_buffer_data(alone), SPACE);
    }
    assert_true(n_side_by_side > 10);
    dsr_encoder_destroy(encoder);
    dsr_encoder_destroy(single);
    dsr_buffer_destroy(joint);
    dsr_buffer_destroy(alone);
    dsr_context_destroy(context);
}

/* ---- named cases ---- */

static void nothing(void *user, uint32_t task, uint32_t n_tasks, void *const *views, const void *params)
{
    (void)user;
    (void)task;
    (void)n_tasks;
    (void)views;
    (void)params;
}

static void encode_access(dsr_encoder *encoder, dsr_buffer *buffer, uint64_t begin, uint64_t end, dsr_access access)
{
    const dsr_view view = view_of(buffer, begin, end - begin);
    assert_ok(encode_kernel(encoder, "nothing", 1, 1, &view, &access));
}

/* A write is remembered past its first reader; a write after reads waits for all of them. */
static void test_write_with_two_readers(void **state)
{
    dsr_context *context = new_context(1);
    dsr_buffer *a = new_buffer(context, 200);
    dsr_encoder *encoder = new_encoder(context);
    (void)state;
    assert_ok(dsr_registry_add_kernel(context, "nothing", nothing, NULL));
    encode_access(encoder, a, 0, 100, DSR_ACCESS_WRITE);
    encode_access(encoder, a, 96, 200, DSR_ACCESS_READ);
    encode_access(encoder, a, 0, 100, DSR_ACCESS_READ);
    encode_access(encoder, a, 96, 200, DSR_ACCESS_WRITE);
    encode_access(encoder, a, 99, 100, DSR_ACCESS_READ);
    const uint32_t waves[] = {0, 1, 1, 2, 3};
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(command_info(encoder, i).wave, waves[i]);
    dsr_command_info info = command_info(encoder, 2);
    assert_int_equal(info.n_depends_on, 1);
    assert_true(depends_directly(&info, 0));
    info = command_info(encoder, 3);
    assert_int_equal(info.n_depends_on, 2);
    assert_true(depends_directly(&info, 1) && depends_directly(&info, 2));
    info = command_info(encoder, 4);
    assert_int_equal(info.n_depends_on, 1);
    assert_true(depends_directly(&info, 3));
    dsr_encoder_destroy(encoder);
    dsr_buffer_destroy(a);
    dsr_context_destroy(context);
}

static void test_touching_ranges_run_side_by_side(void **state)
{
    dsr_context *context = new_context(1);
    dsr_buffer *a = new_buffer(context, 200);
    dsr_encoder *encoder = new_encoder(context);
    (void)state;
    assert_ok(dsr_registry_add_kernel(context, "nothing", nothing, NULL));
    encode_access(encoder, a, 0, 96, DSR_ACCESS_WRITE);
    encode_access(encoder, a, 96, 200, DSR_ACCESS_WRITE);
    encode_access(encoder, a, 0, 96, DSR_ACCESS_READ);
    encode_access(encoder, a, 40, 50, DSR_ACCESS_READ);
    encode_access(encoder, a, 95, 97, DSR_ACCESS_WRITE);
    const uint32_t waves[] = {0, 0, 1, 1, 2};
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(command_info(encoder, i).wave, waves[i]);
    dsr_encoder_destroy(encoder);
    dsr_buffer_destroy(a);
    dsr_context_destroy(context);
}

/* Several writers of one buffer: the reader waits for all, a later writer for those it overlaps. */
static void test_several_writers(void **state)
{
    dsr_context *context = new_context(1);
    dsr_buffer *c = new_buffer(context, 300);
    dsr_encoder *encoder = new_encoder(context);
    (void)state;
    assert_ok(dsr_registry_add_kernel(context, "nothing", nothing, NULL));
    encode_access(encoder, c, 0, 100, DSR_ACCESS_WRITE);
    encode_access(encoder, c, 100, 200, DSR_ACCESS_WRITE);
    encode_access(encoder, c, 200, 300, DSR_ACCESS_WRITE);
    encode_access(encoder, c, 50, 150, DSR_ACCESS_WRITE);
    encode_access(encoder, c, 0, 300, DSR_ACCESS_READ);
    dsr_command_info info = command_info(encoder, 3);
    assert_int_equal(info.n_depends_on, 2);
    assert_true(depends_directly(&info, 0) && depends_directly(&info, 1));
    info = command_info(encoder, 4);
    assert_int_equal(info.n_depends_on, 2); /* 0 and 1 through 3 */
    assert_true(depends_directly(&info, 2) && depends_directly(&info, 3));
    assert_int_equal(info.wave, 2);
    dsr_encoder_destroy(encoder);
    dsr_buffer_destroy(c);
    dsr_context_destroy(context);
}

/* ---- commands that run ---- */

enum { N_VALUES = 1 << 18, N_TAKEN = 64 };

static void take_some(void *user, uint32_t task, uint32_t n_tasks, void *const *views, const void *params)
{
    (void)user;
    (void)params;
    const uint32_t at = task * (N_VALUES / n_tasks) + N_VALUES / n_tasks - 1;
    ((uint32_t *)views[1])[task] = ((const uint32_t *)views[0])[at];
}

static void fill_part(void *user, uint32_t task, uint32_t n_tasks, void *const *views, const void *params)
{
    const uint32_t n = N_VALUES / n_tasks;
    (void)user;
    for (uint32_t i = 0; i < n; i++)
        ((uint32_t *)views[0])[task * n + i] = *(const uint32_t *)params;
}

/* Command 1 reads all over A into B, command 2 overwrites A: B holds the old A, every time. */
static void test_write_after_read(void **state)
{
    dsr_context *context = new_context(4);
    dsr_buffer *a = new_buffer(context, N_VALUES * 4), *b = new_buffer(context, N_TAKEN * 4);
    dsr_encoder *encoder = new_encoder(context);
    const dsr_view views[2] = {dsr_view_whole(a, DSR_DTYPE_U32), dsr_view_whole(b, DSR_DTYPE_U32)};
    const dsr_access access[2] = {DSR_ACCESS_READ, DSR_ACCESS_WRITE};
    (void)state;
    assert_ok(dsr_registry_add_kernel(context, "take", take_some, NULL));
    assert_ok(dsr_registry_add_kernel(context, "fill", fill_part, NULL));
    for (uint32_t round = 0; round < 200; round++) {
        const uint32_t value = round + 1;
        dsr_kernel_desc fill = DSR_KERNEL_DESC_INIT;
        fill.name = "fill";
        fill.n_tasks = 16;
        fill.n_views = 1;
        fill.views = views;
        fill.access = &access[1];
        fill.params = &value;
        fill.params_bytes = sizeof value;
        assert_ok(encode_kernel(encoder, "take", N_TAKEN, 2, views, access));
        assert_ok(dsr_encode_kernel(encoder, &fill));
        assert_ok(dsr_encoder_submit(encoder));
        assert_ok(dsr_encoder_wait(encoder));
        for (int i = 0; i < N_TAKEN; i++)
            assert_int_equal(((const uint32_t *)dsr_buffer_data(b))[i], round);
        assert_ok(dsr_encoder_reset(encoder));
    }
    dsr_encoder_destroy(encoder);
    dsr_buffer_destroy(a);
    dsr_buffer_destroy(b);
    dsr_context_destroy(context);
}

typedef struct meeting {
    atomic_int n_here;
    atomic_int n_met;
} meeting;

/* Comes back when both commands are running, or gives up after a while. */
static void meet(void *user, uint32_t task, uint32_t n_tasks, void *const *views, const void *params)
{
    meeting *m = user;
    const struct timespec moment = {.tv_nsec = 100000};
    (void)task;
    (void)n_tasks;
    (void)views;
    (void)params;
    atomic_fetch_add(&m->n_here, 1);
    for (int i = 0; i < 500 && atomic_load(&m->n_here) < 2; i++)
        (void)nanosleep(&moment, NULL);
    if (atomic_load(&m->n_here) == 2)
        atomic_fetch_add(&m->n_met, 1);
    (void)nanosleep(&moment, NULL);
    atomic_fetch_sub(&m->n_here, 1);
}

static int count_meetings(uint64_t begin_of_second)
{
    meeting m = {0};
    dsr_context *context = new_context(2);
    dsr_buffer *a = new_buffer(context, 64);
    dsr_encoder *encoder = new_encoder(context);
    const dsr_view first = view_of(a, 0, 32), second = view_of(a, begin_of_second, 32);
    const dsr_access write = DSR_ACCESS_WRITE;
    assert_ok(dsr_registry_add_kernel(context, "meet", meet, &m));
    assert_ok(encode_kernel(encoder, "meet", 1, 1, &first, &write));
    assert_ok(encode_kernel(encoder, "meet", 1, 1, &second, &write));
    assert_ok(dsr_encoder_submit(encoder));
    assert_ok(dsr_encoder_wait(encoder));
    dsr_encoder_destroy(encoder);
    dsr_buffer_destroy(a);
    dsr_context_destroy(context);
    return atomic_load(&m.n_met);
}

static void test_commands_meet_if_they_may(void **state)
{
    (void)state;
    assert_true(count_meetings(32) > 0);
    assert_int_equal(count_meetings(31), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_ranges),
        cmocka_unit_test(test_write_with_two_readers),
        cmocka_unit_test(test_touching_ranges_run_side_by_side),
        cmocka_unit_test(test_several_writers),
        cmocka_unit_test(test_write_after_read),
        cmocka_unit_test(test_commands_meet_if_they_may),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
