/* What an encoder allows when: submit, wait, replay, reset, and buffers that go away. */
#include "../unit/core_test.h"

static void add_one(void *user, uint32_t task, uint32_t n_tasks, void *const *views, const void *params)
{
    (void)user;
    (void)n_tasks;
    (void)params;
    ((uint32_t *)views[0])[task]++;
}

typedef struct fixture {
    dsr_context *context;
    dsr_buffer *buffer;
    dsr_encoder *encoder;
} fixture;

static int set_up(void **state)
{
    static fixture f;
    f.context = new_context(2);
    f.buffer = new_buffer(f.context, 64 * 4);
    f.encoder = new_encoder(f.context);
    assert_ok(dsr_registry_add_kernel(f.context, "add_one", add_one, NULL));
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    dsr_encoder_destroy(f->encoder);
    dsr_buffer_destroy(f->buffer);
    dsr_context_destroy(f->context);
    return 0;
}

static dsr_status encode_add(fixture *f)
{
    const dsr_view view = dsr_view_whole(f->buffer, DSR_DTYPE_U32);
    const dsr_access access = DSR_ACCESS_READ_WRITE;
    return encode_kernel(f->encoder, "add_one", 64, 1, &view, &access);
}

static void check_values(const fixture *f, uint32_t value)
{
    const uint32_t *values = dsr_buffer_data(f->buffer);
    for (int i = 0; i < 64; i++)
        assert_int_equal(values[i], value);
}

static void test_nothing_runs_before_submit(void **state)
{
    fixture *f = *state;
    assert_ok(encode_add(f));
    assert_ok(encode_add(f));
    check_values(f, 0);
    assert_ok(dsr_encoder_submit(f->encoder));
    assert_ok(dsr_encoder_wait(f->encoder));
    check_values(f, 2);
}

static void test_no_commands_after_submit(void **state)
{
    fixture *f = *state;
    assert_ok(encode_add(f));
    assert_status(dsr_encoder_replay(f->encoder), DSR_ERR_STATE);
    assert_ok(dsr_encoder_wait(f->encoder));
    assert_ok(dsr_encoder_submit(f->encoder));
    assert_status(encode_add(f), DSR_ERR_STATE);
    assert_int_equal(dsr_encoder_n_commands(f->encoder), 1);
    assert_status(dsr_encoder_submit(f->encoder), DSR_ERR_STATE);
    assert_true(strlen(dsr_context_error_text(f->context)) > 0);
    check_values(f, 1);
    assert_ok(dsr_encoder_reset(f->encoder));
    assert_int_equal(dsr_encoder_n_commands(f->encoder), 0);
    assert_status(dsr_encoder_replay(f->encoder), DSR_ERR_STATE);
    assert_ok(encode_add(f));
    assert_ok(dsr_encoder_submit(f->encoder));
    assert_ok(dsr_encoder_wait(f->encoder));
    assert_ok(dsr_encoder_wait(f->encoder));
    check_values(f, 2);
}

static void test_replay_reads_what_is_there_now(void **state)
{
    fixture *f = *state;
    uint32_t values[64];
    assert_ok(encode_add(f));
    assert_ok(dsr_encoder_submit(f->encoder));
    for (int i = 0; i < 5; i++)
        assert_ok(dsr_encoder_replay(f->encoder));
    assert_ok(dsr_encoder_wait(f->encoder));
    check_values(f, 6);
    for (int i = 0; i < 64; i++)
        values[i] = 1000;
    assert_ok(dsr_buffer_write(f->buffer, 0, values, sizeof values));
    assert_ok(dsr_encoder_replay(f->encoder));
    assert_ok(dsr_encoder_wait(f->encoder));
    check_values(f, 1001);
}

static void test_no_commands_at_all(void **state)
{
    fixture *f = *state;
    assert_ok(dsr_encoder_wait(f->encoder));
    assert_ok(dsr_encoder_submit(f->encoder));
    assert_ok(dsr_encoder_replay(f->encoder));
    assert_ok(dsr_encoder_wait(f->encoder));
    assert_status(encode_add(f), DSR_ERR_STATE);
    assert_ok(dsr_encoder_reset(f->encoder));
    assert_ok(dsr_encoder_reset(f->encoder));
    assert_ok(encode_add(f));
}

static void test_nulls(void **state)
{
    fixture *f = *state;
    dsr_encoder *untouched = f->encoder;
    assert_status(dsr_encoder_create(NULL, &untouched), DSR_ERR_NULL);
    assert_status(dsr_encoder_create(f->context, NULL), DSR_ERR_NULL);
    assert_ptr_equal(untouched, f->encoder);
    assert_status(dsr_encoder_submit(NULL), DSR_ERR_NULL);
    assert_status(dsr_encoder_wait(NULL), DSR_ERR_NULL);
    assert_status(dsr_encoder_replay(NULL), DSR_ERR_NULL);
    assert_status(dsr_encoder_reset(NULL), DSR_ERR_NULL);
    assert_int_equal(dsr_encoder_n_commands(NULL), 0);
    dsr_encoder_destroy(NULL);
}

static void test_buffer_of_another_context(void **state)
{
    fixture *f = *state;
    dsr_context *other = new_context(1);
    dsr_buffer *foreign = new_buffer(other, 256);
    const dsr_view view = dsr_view_whole(foreign, DSR_DTYPE_U32);
    const dsr_access access = DSR_ACCESS_READ_WRITE;
    assert_status(encode_kernel(f->encoder, "add_one", 64, 1, &view, &access), DSR_ERR_CONTEXT_MISMATCH);
    assert_int_equal(dsr_encoder_n_commands(f->encoder), 0);
    dsr_buffer_destroy(foreign);
    dsr_context_destroy(other);
}

/* Memory of ours under a command is gone: the run is refused, it reads nothing. */
static void test_buffer_destroyed_before_the_run(void **state)
{
    fixture *f = *state;
    dsr_buffer *unrelated = new_buffer(f->context, 64);
    assert_ok(encode_add(f));
    dsr_buffer_destroy(unrelated);
    assert_ok(dsr_encoder_submit(f->encoder));
    dsr_buffer_destroy(f->buffer);
    assert_status(dsr_encoder_replay(f->encoder), DSR_ERR_STATE);
    f->buffer = new_buffer(f->context, 64 * 4);
    assert_status(dsr_encoder_replay(f->encoder), DSR_ERR_STATE);
    assert_ok(dsr_encoder_reset(f->encoder));
    assert_ok(encode_add(f));
    assert_ok(dsr_encoder_submit(f->encoder));
    check_values(f, 1);
}

/* Right after submit everything may go, in this order; what was promised is there. */
static void test_everything_goes_after_submit(void **state)
{
    uint32_t values[64] = {0};
    dsr_context *context = new_context(3);
    dsr_encoder *encoder = new_encoder(context);
    dsr_buffer *buffer = NULL;
    const dsr_access access = DSR_ACCESS_READ_WRITE;
    (void)state;
    assert_ok(dsr_buffer_wrap(context, values, sizeof values, &buffer));
    assert_ok(dsr_registry_add_kernel(context, "add_one", add_one, NULL));
    const dsr_view view = dsr_view_whole(buffer, DSR_DTYPE_U32);
    for (int i = 0; i < 10; i++)
        assert_ok(encode_kernel(encoder, "add_one", 64, 1, &view, &access));
    assert_ok(dsr_encoder_submit(encoder));
    dsr_encoder_destroy(encoder);
    dsr_buffer_destroy(buffer);
    dsr_context_destroy(context);
    for (int i = 0; i < 64; i++)
        assert_int_equal(values[i], 10);
}

static void test_no_streams_on_the_cpu(void **state)
{
    const fixture *f = *state;
    int stream = 0;
    assert_status(dsr_encoder_set_stream(f->encoder, &stream), DSR_ERR_UNSUPPORTED_DEVICE);
    assert_status(dsr_encoder_set_stream(NULL, &stream), DSR_ERR_NULL);
}

static void test_command_info(void **state)
{
    fixture *f = *state;
    dsr_command_info info = {.struct_size = sizeof info};
    assert_ok(encode_add(f));
    assert_ok(dsr_encoder_command(f->encoder, 0, &info));
    const uint64_t begin = (uintptr_t)dsr_buffer_data(f->buffer);
    assert_string_equal(info.op, "custom");
    assert_int_equal(info.n_kernels, 1);
    assert_string_equal(info.kernels[0], "add_one");
    assert_int_equal(info.grid[0], 64);
    assert_int_equal(info.n_rows, 1);
    assert_int_equal(info.n_reads, 1);
    assert_int_equal(info.n_writes, 1);
    assert_true(info.reads[0].begin == begin && info.reads[0].end == begin + 256);
    assert_true(info.writes[0].begin == begin && info.writes[0].end == begin + 256);
    assert_int_equal(info.n_depends_on, 0);
    assert_int_equal(info.wave, 0);
    assert_status(dsr_encoder_command(f->encoder, 1, &info), DSR_ERR_VALUE);
    assert_status(dsr_encoder_command(f->encoder, 0, NULL), DSR_ERR_NULL);
    assert_status(dsr_encoder_command(NULL, 0, &info), DSR_ERR_NULL);
    info.struct_size = 8;
    assert_status(dsr_encoder_command(f->encoder, 0, &info), DSR_ERR_STRUCT_SIZE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nothing_runs_before_submit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_commands_after_submit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_replay_reads_what_is_there_now, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_commands_at_all, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nulls, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_buffer_of_another_context, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_buffer_destroyed_before_the_run, set_up, tear_down),
        cmocka_unit_test(test_everything_goes_after_submit),
        cmocka_unit_test_setup_teardown(test_no_streams_on_the_cpu, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_command_info, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
