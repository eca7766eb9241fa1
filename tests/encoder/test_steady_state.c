/* Once an encoder has seen a step, the same step allocates nothing: not at encode, run, replay, wait or reset. */
#include "../unit/core_test.h"

#include <dsrows/ops.h>

#include "random.h"

enum { N_ROWS = 8, N_ELEMENTS = 300, N_LAYERS = 40 };

static void add_one(void *user, uint32_t task, uint32_t n_tasks, void *const *views, const void *params)
{
    (void)user;
    (void)params;
    for (uint32_t i = task; i < N_ROWS * N_ELEMENTS; i += n_tasks)
        ((float *)views[0])[i] += 1;
}

typedef struct step {
    dsr_encoder *encoder;
    dsr_buffer *a;
    dsr_buffer *b;
} step;

/* The same commands every time, on offsets that move, as positions do in decoding. */
static void encode_step(const step *s, random_stream *random)
{
    const dsr_view a = dsr_view_whole(s->a, DSR_DTYPE_F32), b = dsr_view_whole(s->b, DSR_DTYPE_F32);
    const dsr_access access = DSR_ACCESS_READ_WRITE;
    for (int layer = 0; layer < N_LAYERS; layer++) {
        dsr_view sources[N_ROWS];
        const dsr_view to = dsr_view_slice(layer % 2 ? a : b, random_below(random, 500), N_ROWS * N_ELEMENTS);
        for (int row = 0; row < N_ROWS; row++)
            sources[row] = dsr_view_slice(layer % 2 ? b : a, random_below(random, 2000), N_ELEMENTS);
        dsr_gather_desc gather = DSR_GATHER_DESC_INIT;
        gather.n_rows = N_ROWS;
        gather.sources = sources;
        gather.row_elements = N_ELEMENTS;
        gather.output = to;
        assert_ok(dsr_encode_gather(s->encoder, &gather));
        assert_ok(encode_kernel(s->encoder, "add_one", 4, 1, &to, &access));
    }
}

static void run_step(const step *s, random_stream *random)
{
    encode_step(s, random);
    assert_ok(dsr_encoder_submit(s->encoder));
    assert_ok(dsr_encoder_replay(s->encoder));
    assert_ok(dsr_encoder_wait(s->encoder));
    assert_ok(dsr_encoder_reset(s->encoder));
}

static void run_steps(uint32_t n_threads)
{
    counting_allocator counter = {0};
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    dsr_context *context = NULL;
    random_stream random = random_open(11, n_threads);
    desc.n_threads = n_threads;
    desc.allocator = counting_hook(&counter);
    assert_ok(dsr_context_create(&desc, &context));
    assert_ok(dsr_registry_add_kernel(context, "add_one", add_one, NULL));
    const step s = {.encoder = new_encoder(context), .a = new_buffer(context, 16384), .b = new_buffer(context, 16384)};
    run_step(&s, &random);
    run_step(&s, &random);
    const uint64_t n_calls = counter.n_calls;
    for (int i = 0; i < 50; i++)
        run_step(&s, &random);
    assert_int_equal(counter.n_calls, n_calls);
    dsr_encoder_destroy(s.encoder);
    dsr_buffer_destroy(s.a);
    dsr_buffer_destroy(s.b);
    dsr_context_destroy(context);
    assert_int_equal(counter.n_live, 0);
    assert_int_equal(counter.live_bytes, 0);
}

static void test_one_thread(void **state)
{
    (void)state;
    run_steps(1);
}

static void test_pool(void **state)
{
    (void)state;
    run_steps(3);
}

/* Submit, wait and replay allocate nothing even the first time. */
static void test_first_run(void **state)
{
    counting_allocator counter = {0};
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    dsr_context *context = NULL;
    random_stream random = random_open(12, 0);
    (void)state;
    desc.n_threads = 2;
    desc.allocator = counting_hook(&counter);
    assert_ok(dsr_context_create(&desc, &context));
    assert_ok(dsr_registry_add_kernel(context, "add_one", add_one, NULL));
    const step s = {.encoder = new_encoder(context), .a = new_buffer(context, 16384), .b = new_buffer(context, 16384)};
    encode_step(&s, &random);
    const uint64_t n_calls = counter.n_calls;
    assert_ok(dsr_encoder_submit(s.encoder));
    assert_ok(dsr_encoder_wait(s.encoder));
    assert_ok(dsr_encoder_replay(s.encoder));
    assert_ok(dsr_encoder_wait(s.encoder));
    assert_int_equal(counter.n_calls, n_calls);
    dsr_encoder_destroy(s.encoder);
    dsr_buffer_destroy(s.a);
    dsr_buffer_destroy(s.b);
    dsr_context_destroy(context);
    assert_int_equal(counter.n_live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_thread),
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_first_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
