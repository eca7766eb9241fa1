/* The core on a device that runs late and fails on demand: what CUDA will be, without one. Linked with --wrap, so that
 * the table of back ends gives ours. */
#include "../unit/core_test.h"

#include "core/context_internal.h"

typedef struct fake_device {
    dsr_context *context;
    int n_encoders;
    int n_memory;
    int n_in_flight; /* submitted and not waited for */
    int n_submits;
    int n_waits;
    int n_prepared;
    dsr_status next_open; /* what the next call gives */
    dsr_status next_encoder_open;
    dsr_status next_prepare;
    dsr_status next_submit;
    dsr_status next_wait;
    int is_open;
} fake_device;

static fake_device fake;

static dsr_status take(dsr_status *next, const char *what)
{
    const dsr_status status = *next;
    *next = DSR_OK;
    return status == DSR_OK ? DSR_OK : dsri_fail(fake.context, status, "fake device: %s failed", what);
}

static uint32_t fake_count(void)
{
    return 3;
}

static dsr_status fake_open(dsr_context *context, const dsr_context_desc *desc, void **device)
{
    fake.context = context;
    assert_int_equal(desc->isa, DSR_ISA_AUTO); /* DSR_ISA is the CPU's */
    const dsr_status status = take(&fake.next_open, "open");
    if (status != DSR_OK)
        return status;
    fake.is_open = 1;
    *device = &fake;
    return DSR_OK;
}

static void fake_close(void *device, int is_forked)
{
    assert_ptr_equal(device, &fake);
    assert_false(is_forked);
    assert_int_equal(fake.n_encoders, 0);
    assert_int_equal(fake.n_memory, 0);
    fake.is_open = 0;
}

static dsr_status fake_allocate(void *device, size_t size_bytes, void **memory)
{
    (void)device;
    fake.n_memory++;
    *memory = calloc(1, size_bytes);
    return *memory ? DSR_OK : DSR_ERR_OUT_OF_MEMORY;
}

static void fake_release(void *device, void *memory, size_t size_bytes, int is_forked)
{
    (void)device;
    (void)size_bytes;
    (void)is_forked;
    fake.n_memory--;
    free(memory);
}

static dsr_status fake_copy(void *device, void *destination, const void *source, size_t size_bytes)
{
    (void)device;
    memcpy(destination, source, size_bytes);
    return DSR_OK;
}

static const char *fake_kernel_name(void *device, uint32_t index)
{
    (void)device;
    return index == 0 ? "fake_kernel" : NULL;
}

static dsr_status fake_encoder_open(void *device, void **encoder_state)
{
    (void)device;
    const dsr_status status = take(&fake.next_encoder_open, "encoder open");
    if (status != DSR_OK)
        return status;
    fake.n_encoders++;
    *encoder_state = &fake.n_encoders;
    return DSR_OK;
}

static void fake_encoder_close(void *device, void *encoder_state, int is_forked)
{
    (void)device;
    (void)is_forked;
    assert_ptr_equal(encoder_state, &fake.n_encoders);
    assert_int_equal(fake.n_in_flight, 0);
    fake.n_encoders--;
}

static void fake_encoder_reset(void *device, void *encoder_state)
{
    (void)device;
    (void)encoder_state;
    assert_int_equal(fake.n_in_flight, 0);
    fake.n_prepared = 0;
}

static dsr_status fake_prepare(void *device, void *encoder_state, dsri_command *command)
{
    static const char *const names[] = {"fake_kernel"};
    (void)device;
    (void)encoder_state;
    const dsr_status status = take(&fake.next_prepare, "prepare");
    if (status != DSR_OK)
        return status;
    assert_true(command->index == 0 || command->wave == command->index);
    command->kernel = names;
    command->kernel_names = names;
    command->n_launches = 1;
    command->grid[0] = 7;
    fake.n_prepared++;
    return DSR_OK;
}

static dsr_status fake_submit(void *device, void *encoder_state, const dsri_wave *waves, uint32_t n_waves)
{
    (void)device;
    (void)encoder_state;
    assert_int_equal(fake.n_in_flight, 0);
    assert_int_equal(n_waves, fake.n_prepared);
    assert_int_equal(waves[0].n_commands, 1);
    const dsr_status status = take(&fake.next_submit, "submit");
    if (status != DSR_OK)
        return status;
    fake.n_submits++;
    fake.n_in_flight++;
    return DSR_OK;
}

static dsr_status fake_wait(void *device, void *encoder_state)
{
    (void)device;
    (void)encoder_state;
    fake.n_waits++;
    fake.n_in_flight--;
    return take(&fake.next_wait, "wait");
}

static const dsri_backend fake_backend = {
    .kind = DSR_DEVICE_CUDA,
    .name = "fake",
    .device_count = fake_count,
    .open = fake_open,
    .close = fake_close,
    .memory_allocate = fake_allocate,
    .memory_release = fake_release,
    .memory_write = fake_copy,
    .memory_read = fake_copy,
    .kernel_name = fake_kernel_name,
    .encoder_open = fake_encoder_open,
    .encoder_close = fake_encoder_close,
    .encoder_reset = fake_encoder_reset,
    .prepare = fake_prepare,
    .submit = fake_submit,
    .wait = fake_wait,
};

const dsri_backend *__wrap_dsri_find_backend(dsr_device_kind kind);
const dsri_backend *__wrap_dsri_find_backend(dsr_device_kind kind)
{
    return kind == DSR_DEVICE_CUDA ? &fake_backend : NULL;
}

/* ---- tests ---- */

typedef struct fixture {
    counting_allocator counter;
    dsr_context *context;
    dsr_buffer *buffer;
    dsr_encoder *encoder;
} fixture;

static int set_up(void **state)
{
    static fixture f;
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    memset(&f, 0, sizeof f);
    memset(&fake, 0, sizeof fake);
    desc.device = DSR_DEVICE_CUDA;
    desc.allocator = counting_hook(&f.counter);
    assert_ok(dsr_context_create(&desc, &f.context));
    f.buffer = new_buffer(f.context, 64);
    f.encoder = new_encoder(f.context);
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    dsr_encoder_destroy(f->encoder);
    dsr_buffer_destroy(f->buffer);
    dsr_context_destroy(f->context);
    assert_false(fake.is_open);
    assert_int_equal(f->counter.n_live, 0);
    return 0;
}

static dsr_status append(const fixture *f)
{
    static const int plan = 5;
    dsri_ranges ranges;
    ranges.n_reads = 0;
    ranges.n_writes = 0;
    dsri_ranges_write(&ranges, dsr_buffer_data(f->buffer), 64);
    return dsri_encoder_append(f->encoder, DSRI_OP_COPY, 1, &plan, sizeof plan, &ranges);
}

static void test_work_in_flight(void **state)
{
    const fixture *f = *state;
    assert_ok(append(f));
    assert_ok(append(f));
    assert_ok(dsr_encoder_submit(f->encoder));
    assert_int_equal(fake.n_in_flight, 1);
    assert_ok(dsr_encoder_replay(f->encoder)); /* waits for the run before */
    assert_int_equal(fake.n_waits, 1);
    assert_int_equal(fake.n_in_flight, 1);
    assert_ok(dsr_encoder_wait(f->encoder));
    assert_ok(dsr_encoder_wait(f->encoder));
    assert_int_equal(fake.n_waits, 2);
    assert_ok(dsr_encoder_replay(f->encoder));
    assert_ok(dsr_encoder_reset(f->encoder));
    assert_int_equal(fake.n_in_flight, 0);
    assert_ok(append(f));
    assert_ok(dsr_encoder_submit(f->encoder)); /* and tear-down destroys the encoder in flight */
}

static void test_failed_run(void **state)
{
    const fixture *f = *state;
    assert_ok(append(f));
    fake.next_submit = DSR_ERR_DEVICE;
    assert_status(dsr_encoder_submit(f->encoder), DSR_ERR_DEVICE);
    assert_string_equal(dsr_context_error_text(f->context), "fake device: submit failed");
    assert_ok(dsr_encoder_wait(f->encoder));
    assert_int_equal(fake.n_waits, 0);
    assert_ok(append(f)); /* nothing was submitted, so it is open still */
    assert_ok(dsr_encoder_submit(f->encoder));
    fake.next_wait = DSR_ERR_DEVICE_LOST;
    assert_status(dsr_encoder_wait(f->encoder), DSR_ERR_DEVICE_LOST);
    assert_ok(dsr_encoder_wait(f->encoder));
    assert_ok(dsr_encoder_replay(f->encoder));
    fake.next_wait = DSR_ERR_DEVICE;
    assert_status(dsr_encoder_replay(f->encoder), DSR_ERR_DEVICE);
    assert_int_equal(fake.n_submits, 2);
    assert_ok(dsr_encoder_replay(f->encoder));
    fake.next_wait = DSR_ERR_DEVICE;
    assert_status(dsr_encoder_reset(f->encoder), DSR_ERR_DEVICE);
    assert_int_equal(dsr_encoder_n_commands(f->encoder), 0);
    assert_ok(append(f));
}

static void test_no_kernel_for_a_command(void **state)
{
    const fixture *f = *state;
    dsr_command_info info;
    assert_ok(append(f));
    fake.next_prepare = DSR_ERR_UNSUPPORTED_KERNEL;
    assert_status(append(f), DSR_ERR_UNSUPPORTED_KERNEL);
    assert_int_equal(dsr_encoder_n_commands(f->encoder), 1);
    assert_ok(append(f));
    info = command_info(f->encoder, 1);
    assert_int_equal(info.wave, 1);
    assert_int_equal(info.grid[0], 7);
    assert_ok(dsr_encoder_submit(f->encoder));
}

static void test_encoder_that_cannot_be_opened(void **state)
{
    const fixture *f = *state;
    dsr_encoder *encoder = NULL;
    const uint64_t n_live = f->counter.n_live;
    fake.next_encoder_open = DSR_ERR_DEVICE;
    assert_status(dsr_encoder_create(f->context, &encoder), DSR_ERR_DEVICE);
    assert_null(encoder);
    assert_int_equal(f->counter.n_live, n_live);
}

static void test_device_that_cannot_be_opened(void **state)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    counting_allocator counter = {0};
    dsr_context *context = NULL;
    (void)state;
    memset(&fake, 0, sizeof fake);
    desc.device = DSR_DEVICE_CUDA;
    desc.allocator = counting_hook(&counter);
    fake.next_open = DSR_ERR_UNSUPPORTED_DEVICE;
    assert_status(dsr_context_create(&desc, &context), DSR_ERR_UNSUPPORTED_DEVICE);
    assert_string_equal(dsr_create_error_text(), "fake device: open failed");
    assert_null(context);
    assert_int_equal(counter.n_live, 0);
    desc.device = DSR_DEVICE_CPU; /* not in this table */
    assert_status(dsr_context_create(&desc, &context), DSR_ERR_UNSUPPORTED_DEVICE);
}

static void kernel(void *user, uint32_t task, uint32_t n_tasks, void *const *views, const void *params)
{
    (void)user;
    (void)task;
    (void)n_tasks;
    (void)views;
    (void)params;
}

static void test_what_the_context_says(void **state)
{
    const fixture *f = *state;
    assert_int_equal(dsr_context_device(f->context), DSR_DEVICE_CUDA);
    assert_int_equal(dsr_context_isa(f->context), DSR_ISA_SCALAR);
    assert_int_equal(dsr_context_n_threads(f->context), 1);
    assert_int_equal(dsr_device_count(DSR_DEVICE_CUDA), 3);
    assert_int_equal(dsr_registry_n_kernels(f->context), 1);
    assert_status(dsr_registry_add_kernel(f->context, "mine", kernel, NULL), DSR_ERR_UNSUPPORTED_DEVICE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_work_in_flight, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_failed_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_kernel_for_a_command, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_encoder_that_cannot_be_opened, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_the_context_says, set_up, tear_down),
        cmocka_unit_test(test_device_that_cannot_be_opened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
