/* The CUDA back end against a driver library that runs nothing: loading, launch arguments, graphs, and every error
 * path. */
#include "fake_cuda.h"

#include <dsrows/dsrows.h>

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static fake_cuda_state *fake;

static dsr_status open_cuda(dsr_context **context)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    desc.device = DSR_DEVICE_CUDA;
    return dsr_context_create(&desc, context);
}

/* The driver library that DSR_CUDA_DRIVER names stays open here, so that its counters outlive contexts. */
static int load_fake(void **state)
{
    (void)state;
    setenv("DSR_CUDA_DRIVER", FAKE_CUDA_LIBRARY, 1);
    void *library = dlopen(FAKE_CUDA_LIBRARY, RTLD_NOW);
    if (library == NULL)
        return -1;
    fake_cuda_state_fn *get;
    void *symbol = dlsym(library, "fake_cuda");
    memcpy(&get, &symbol, sizeof get);
    fake = get();
    return 0;
}

static int reset_fake(void **state)
{
    (void)state;
    memset(fake, 0, sizeof *fake);
    return 0;
}

/* 0 where the library was built without CUDA. */
static int is_built(void)
{
    return dsr_device_count(DSR_DEVICE_CUDA) == 1;
}

static void skip_unless_built(void)
{
    if (!is_built())
        skip();
    memset(fake, 0, sizeof *fake);
}

typedef struct work {
    dsr_context *context;
    dsr_encoder *encoder;
    dsr_buffer *source, *destination;
} work;

static dsr_status encode_copy(work *w, uint64_t destination_row)
{
    dsr_copy_row row;
    memset(&row, 0, sizeof row);
    row.destination = dsr_view_whole(w->destination, DSR_DTYPE_BF16);
    row.destination_row = destination_row;
    dsr_copy_desc desc = DSR_COPY_DESC_INIT;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.row_elements = 64;
    desc.source = dsr_view_whole(w->source, DSR_DTYPE_BF16);
    return dsr_encode_copy(w->encoder, &desc);
}

static void close_work(work *w)
{
    dsr_encoder_destroy(w->encoder);
    dsr_buffer_destroy(w->source);
    dsr_buffer_destroy(w->destination);
    dsr_context_destroy(w->context);
}

/* Everything an ordinary user does once; stops at the first failure. */
static dsr_status run_all(work *w)
{
    memset(w, 0, sizeof *w);
    dsr_status status = open_cuda(&w->context);
    if (status == DSR_OK)
        status = dsr_buffer_create(w->context, 128, &w->source);
    if (status == DSR_OK)
        status = dsr_buffer_create(w->context, 1024, &w->destination);
    if (status == DSR_OK)
        status = dsr_encoder_create(w->context, &w->encoder);
    if (status == DSR_OK)
        status = encode_copy(w, 3);
    if (status == DSR_OK)
        status = dsr_encoder_submit(w->encoder);
    if (status == DSR_OK)
        status = dsr_encoder_wait(w->encoder);
    if (status == DSR_OK)
        status = dsr_encoder_replay(w->encoder);
    return status == DSR_OK ? dsr_encoder_wait(w->encoder) : status;
}

static void test_runs_as_a_graph(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    assert_int_equal(run_all(&w), DSR_OK);
    assert_int_equal(fake->n_instantiated, 1);
    assert_int_equal(fake->n_launches, 2);
    assert_int_equal(fake->last_grid[0], 1);
    close_work(&w);
    assert_int_equal(fake->n_allocations, 0);
    assert_int_equal(fake->push_depth, 0);
}

/* Replays go into the stream one after another; only a wait waits. */
static void test_replays_do_not_wait(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    int stream;
    assert_int_equal(run_all(&w), DSR_OK);
    for (int is_callers = 0; is_callers < 2; is_callers++) {
        assert_int_equal(dsr_encoder_set_stream(w.encoder, is_callers ? &stream : NULL), DSR_OK);
        const uint32_t n_launches = fake->n_launches, n_waits = fake->n_waits;
        for (int i = 0; i < 3; i++)
            assert_int_equal(dsr_encoder_replay(w.encoder), DSR_OK);
        assert_int_equal(fake->n_launches, n_launches + 3);
        assert_int_equal(fake->n_waits, n_waits);
        assert_int_equal(dsr_encoder_wait(w.encoder), DSR_OK);
        assert_int_equal(fake->n_waits, n_waits + 1);
        assert_int_equal(dsr_encoder_wait(w.encoder), DSR_OK);
        assert_int_equal(fake->n_waits, n_waits + 1);
    }
    close_work(&w);
}

static void test_new_fields_update_the_graph(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    uint8_t before[64];
    assert_int_equal(run_all(&w), DSR_OK);
    memcpy(before, fake->last_plan, sizeof before);
    const uint32_t n_updates = fake->n_updates;
    assert_int_equal(dsr_encoder_reset(w.encoder), DSR_OK);
    assert_int_equal(encode_copy(&w, 5), DSR_OK);
    assert_int_equal(dsr_encoder_submit(w.encoder), DSR_OK);
    assert_int_equal(fake->n_instantiated, 1);
    assert_int_equal(fake->n_updates, n_updates + 1);
    assert_int_equal(dsr_encoder_replay(w.encoder), DSR_OK);
    assert_int_equal(fake->n_updates, n_updates + 1);
    assert_memory_not_equal(before, fake->last_plan, sizeof before);
    close_work(&w);
}

static void test_other_kernels_make_a_new_graph(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    assert_int_equal(run_all(&w), DSR_OK);
    assert_int_equal(dsr_encoder_reset(w.encoder), DSR_OK);
    assert_int_equal(encode_copy(&w, 1), DSR_OK);
    assert_int_equal(encode_copy(&w, 1), DSR_OK); /* waits for the first: the same row is written */
    assert_int_equal(dsr_encoder_submit(w.encoder), DSR_OK);
    assert_int_equal(fake->n_instantiated, 2);
    assert_int_equal(fake->last_n_dependencies, 1);
    close_work(&w);
}

/* Small commands that do not wait for one another share a launch; what waits for two of them has one dependency. */
static void test_small_commands_share_a_launch(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    assert_int_equal(run_all(&w), DSR_OK);
    for (int round = 0; round < 2; round++) {
        const uint32_t n_launches = fake->n_launches, n_updates = fake->n_updates;
        assert_int_equal(dsr_encoder_reset(w.encoder), DSR_OK);
        for (uint64_t row = 0; row < 3; row++)
            assert_int_equal(encode_copy(&w, 2 * (uint64_t)round + row), DSR_OK);
        assert_int_equal(dsr_encoder_submit(w.encoder), DSR_OK);
        assert_int_equal(fake->n_launches, n_launches + 1);
        assert_int_equal(fake->n_updates, n_updates + (uint32_t)round);
        assert_int_equal(fake->last_grid[0], 3);
        assert_int_equal(fake->last_block[0], 512);
        assert_int_equal(dsr_encoder_replay(w.encoder), DSR_OK);
    }
    assert_int_equal(dsr_encoder_reset(w.encoder), DSR_OK);
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(encode_copy(&w, i % 2), DSR_OK); /* two, and two that wait for them */
    const uint32_t n_launches = fake->n_launches;
    assert_int_equal(dsr_encoder_submit(w.encoder), DSR_OK);
    assert_int_equal(fake->n_launches, n_launches + 2);
    assert_int_equal(fake->last_n_dependencies, 1);
    close_work(&w);
}

/* Fewer features than a thread takes at once are work all the same. */
static void test_the_smallest_rotation_has_a_block(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    const float frequency = 1;
    dsr_rope_row row = {.start_pos = 1};
    assert_int_equal(run_all(&w), DSR_OK);
    assert_int_equal(dsr_encoder_reset(w.encoder), DSR_OK);
    dsr_rope_desc desc = DSR_ROPE_DESC_INIT;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.n_heads = 1;
    desc.head_dim = 2;
    desc.rope_dim = 2;
    desc.input = dsr_view_whole(w.source, DSR_DTYPE_BF16);
    desc.output = dsr_view_whole(w.destination, DSR_DTYPE_BF16);
    desc.frequencies = &frequency;
    assert_int_equal(dsr_encode_rope(w.encoder, &desc), DSR_OK);
    assert_int_equal(dsr_encoder_submit(w.encoder), DSR_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(fake->last_grid[i], 1);
    close_work(&w);
}

/* ---- followers ---- */

enum { N_HEADS = 64, Q_BYTES = N_HEADS * 1024 };

/* Memory that operands are cut from. */
typedef struct follower_work {
    work work;
    dsr_buffer *memory;
    uint64_t n_used;
} follower_work;

static void open_follower_work(follower_work *f, dsr_exactness exactness)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    memset(f, 0, sizeof *f);
    desc.device = DSR_DEVICE_CUDA;
    desc.exactness = exactness;
    assert_int_equal(dsr_context_create(&desc, &f->work.context), DSR_OK);
    assert_int_equal(dsr_encoder_create(f->work.context, &f->work.encoder), DSR_OK);
    assert_int_equal(dsr_buffer_create(f->work.context, 1 << 20, &f->memory), DSR_OK);
}

static void close_follower_work(follower_work *f)
{
    dsr_buffer_destroy(f->memory);
    close_work(&f->work);
}

static dsr_view cut(follower_work *f, uint64_t n_bytes, dsr_dtype dtype)
{
    const dsr_view view = {f->memory, f->n_used, n_bytes, dtype};
    f->n_used += n_bytes;
    return view;
}

static uint32_t launches_of_submit(follower_work *f)
{
    const uint32_t n_launches = fake->n_launches;
    assert_int_equal(dsr_encoder_submit(f->work.encoder), DSR_OK);
    const uint32_t n = fake->n_launches - n_launches;
    assert_int_equal(dsr_encoder_reset(f->work.encoder), DSR_OK);
    f->n_used = 0;
    return n;
}

static dsr_view encode_compressor(follower_work *f, dsr_view kv)
{
    dsr_compressor_row row;
    memset(&row, 0, sizeof row);
    row.kv_state = cut(f, 8 * 256 * 4, DSR_DTYPE_F32);
    row.score_state = cut(f, 8 * 256 * 4, DSR_DTYPE_F32);
    row.start_pos = 7;
    dsr_compressor_desc desc = DSR_COMPRESSOR_DESC_INIT;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.ratio = 4;
    desc.dim = 128;
    desc.epsilon = 1e-6f;
    desc.kv = kv;
    desc.score = cut(f, 256 * 4, DSR_DTYPE_F32);
    desc.ape = cut(f, 4 * 256 * 4, DSR_DTYPE_F32);
    desc.norm = cut(f, 128 * 4, DSR_DTYPE_F32);
    desc.output = cut(f, 2 * 128 * 2, DSR_DTYPE_BF16);
    assert_int_equal(dsr_encode_compressor(f->work.encoder, &desc), DSR_OK);
    return desc.output;
}

static void encode_append(follower_work *f, dsr_view source, dsr_view cache)
{
    dsr_append_row row;
    memset(&row, 0, sizeof row);
    row.cache = cache;
    row.n_entries = 1;
    dsr_append_desc desc = DSR_APPEND_DESC_INIT;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.dim = 128;
    desc.source = source;
    assert_int_equal(dsr_encode_append(f->work.encoder, &desc), DSR_OK);
}

/* A compressor's block appends the row's entry, but one append alone, and not to where other blocks read. */
static void test_appends_follow_compressors(void **state)
{
    (void)state;
    skip_unless_built();
    enum { ONE, TO_THE_INPUT, TWO, N_CASES };
    follower_work f;
    open_follower_work(&f, DSR_EXACT_ROW);
    for (int which = 0; which < N_CASES; which++) {
        const dsr_view kv = cut(&f, 256 * 4, DSR_DTYPE_F32), entry = encode_compressor(&f, kv);
        const dsr_view input = {f.memory, kv.byte_offset, 256, DSR_DTYPE_BF16};
        encode_append(&f, entry, which == TO_THE_INPUT ? input : cut(&f, 256, DSR_DTYPE_BF16));
        if (which == TWO)
            encode_append(&f, entry, cut(&f, 256, DSR_DTYPE_BF16));
        assert_int_equal(launches_of_submit(&f), which == ONE ? 1 : 2);
    }
    close_follower_work(&f);
}

static dsr_view encode_attention(follower_work *f, dsr_view q)
{
    dsr_attention_row row;
    uint64_t n_bytes;
    memset(&row, 0, sizeof row);
    row.kv = cut(f, 1024, DSR_DTYPE_BF16);
    row.kv_len = row.width = 1;
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.n_heads = N_HEADS;
    desc.scale = DSR_ATTENTION_SCALE;
    desc.q = q;
    desc.indices = cut(f, 16, DSR_DTYPE_I32);
    desc.sinks = cut(f, N_HEADS * 4, DSR_DTYPE_F32);
    desc.output = cut(f, Q_BYTES, DSR_DTYPE_BF16);
    assert_int_equal(dsr_flash_attention_workspace(f->work.context, &desc, &n_bytes), DSR_OK);
    desc.workspace = cut(f, n_bytes, DSR_DTYPE_U8);
    assert_int_equal(dsr_encode_flash_attention(f->work.encoder, &desc), DSR_OK);
    return desc.output;
}

static void encode_rotation(follower_work *f, dsr_view input, dsr_view output, uint32_t rope_dim)
{
    dsr_rope_row row;
    memset(&row, 0, sizeof row);
    dsr_rope_desc desc = DSR_ROPE_DESC_INIT;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.n_heads = N_HEADS;
    desc.head_dim = 512;
    desc.rope_dim = rope_dim;
    desc.input = input;
    desc.output = output;
    desc.frequencies = dsr_rope_frequencies(DSR_ROPE_BASE);
    assert_int_equal(dsr_encode_rope(f->work.encoder, &desc), DSR_OK);
}

/* Row-exact attention rotates its outputs, in place too, but not to where other blocks read, nor by other shapes. */
static void test_rotations_follow_attention(void **state)
{
    (void)state;
    skip_unless_built();
    enum { TO_OTHER_MEMORY, IN_PLACE, TO_THE_INPUT, OF_FEWER_FEATURES, N_CASES };
    for (int is_row_exact = 0; is_row_exact < 2; is_row_exact++) {
        follower_work f;
        open_follower_work(&f, is_row_exact ? DSR_EXACT_ROW : DSR_EXACT_DEVICE);
        for (int which = 0; which < N_CASES; which++) {
            const dsr_view q = cut(&f, Q_BYTES, DSR_DTYPE_BF16), other = cut(&f, Q_BYTES, DSR_DTYPE_BF16);
            const dsr_view output = encode_attention(&f, q);
            encode_rotation(&f, output,
                            which == IN_PLACE       ? output
                            : which == TO_THE_INPUT ? q
                                                    : other,
                            which == OF_FEWER_FEATURES ? 32 : 64);
            assert_int_equal(launches_of_submit(&f), !is_row_exact ? 3 : which <= IN_PLACE ? 1 : 2);
        }
        close_follower_work(&f);
    }
}

/* A kernel that waits itself begins before the one it depends on is done, where device and code know how. */
static void test_early_launches(void **state)
{
    (void)state;
    skip_unless_built();
    static const struct {
        int compute, code_compute;
        int is_early;
    } devices[] = {{90, 0, 1}, {80, 0, 0}, {90, 80, 0}};
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        memset(fake, 0, sizeof *fake);
        fake->compute = devices[i].compute;
        fake->code_compute = devices[i].code_compute;
        work w;
        dsr_status status = run_all(&w);
        assert_int_equal(status, DSR_OK);
        for (uint32_t fail_at = 1; i == 0 || fail_at == 1; fail_at++) {
            assert_int_equal(dsr_encoder_reset(w.encoder), DSR_OK);
            assert_int_equal(encode_copy(&w, 1), DSR_OK);
            assert_int_equal(encode_copy(&w, 1), DSR_OK);
            fake->fail_at = i == 0 ? fake->n_calls + fail_at : 0;
            fake->fail_with = 1;
            status = dsr_encoder_submit(w.encoder);
            if (fake->fail_at == 0 || fake->n_calls < fake->fail_at)
                break;
            assert_int_equal(status, DSR_ERR_DEVICE);
        }
        assert_int_equal(status, DSR_OK);
        fake->fail_at = 0;
        assert_int_equal(fake->last_n_dependencies, 1);
        assert_int_equal(fake->n_early_edges > 0, devices[i].is_early);
        close_work(&w);
    }
}

static void test_a_capturing_stream_gets_the_kernels(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    int stream;
    assert_int_equal(run_all(&w), DSR_OK);
    assert_int_equal(dsr_encoder_set_stream(w.encoder, &stream), DSR_OK);
    fake->is_capturing = 1;
    const uint32_t n_launches = fake->n_launches, n_instantiated = fake->n_instantiated;
    assert_int_equal(dsr_encoder_replay(w.encoder), DSR_OK);
    assert_int_equal(fake->n_launches, n_launches + 1);
    assert_int_equal(fake->n_early_launches, 1);
    assert_int_equal(fake->n_instantiated, n_instantiated);
    fake->is_capturing = 0;
    close_work(&w);
}

/* Kernels that were launched although the run failed are done when it returns: their memory may go then. */
static void test_a_failed_run_leaves_nothing_running(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    int stream;
    uint32_t n_launched = 0;
    dsr_status status = run_all(&w);
    assert_int_equal(status, DSR_OK);
    assert_int_equal(dsr_encoder_set_stream(w.encoder, &stream), DSR_OK);
    fake->fail_with = 1;
    for (uint32_t i = 1; i == 1 || status != DSR_OK; i++) {
        const uint32_t n_launches = fake->n_launches, n_waits = fake->n_waits;
        fake->fail_at = fake->n_calls + i;
        status = dsr_encoder_replay(w.encoder);
        if (status != DSR_OK && fake->n_launches > n_launches) {
            assert_int_equal(fake->n_waits, n_waits + 1);
            n_launched++;
        }
    }
    assert_int_equal(n_launched, 1);
    close_work(&w);
}

static void test_every_driver_call_may_fail(void **state)
{
    (void)state;
    skip_unless_built();
    static const int errors[] = {2, 1, 700};
    for (size_t e = 0; e < sizeof errors / sizeof errors[0]; e++) {
        uint32_t n_calls = 1;
        for (uint32_t fail_at = 1; fail_at <= n_calls; fail_at++) {
            memset(fake, 0, sizeof *fake);
            fake->fail_at = fail_at;
            fake->fail_with = errors[e];
            work w;
            const dsr_status status = run_all(&w);
            const uint32_t n_made = fake->n_calls;
            if (n_made < fail_at)
                assert_int_equal(status, DSR_OK);
            else
                assert_int_not_equal(status, DSR_OK);
            if (status != DSR_OK && w.context != NULL && errors[e] != 2)
                assert_int_equal(status, errors[e] == 700 ? DSR_ERR_DEVICE_LOST : DSR_ERR_DEVICE);
            close_work(&w);
            assert_int_equal(fake->push_depth, 0);
            n_calls = n_made >= fail_at ? n_made + 1 : 0;
        }
    }
}

static void test_a_lost_device_stays_lost(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    assert_int_equal(run_all(&w), DSR_OK);
    fake->fail_at = fake->n_calls + 2; /* the first call past the push */
    fake->fail_with = 700;
    uint8_t byte;
    assert_int_equal(dsr_buffer_read(w.source, 0, &byte, 1), DSR_ERR_DEVICE_LOST);
    assert_non_null(strstr(dsr_context_error_text(w.context), "CUDA_ERROR_ILLEGAL_ADDRESS"));
    assert_int_equal(dsr_buffer_read(w.source, 0, &byte, 1), DSR_ERR_DEVICE_LOST);
    assert_int_equal(dsr_encoder_replay(w.encoder), DSR_ERR_DEVICE_LOST);
    dsr_context *cpu = NULL;
    assert_int_equal(dsr_context_create(NULL, &cpu), DSR_OK);
    dsr_context_destroy(cpu);
    close_work(&w);
}

static void test_no_driver_is_a_status(void **state)
{
    (void)state;
    dsr_context *context = NULL;
    setenv("DSR_CUDA_DRIVER", "/nonexistent/libcuda.so.1", 1);
    assert_int_equal(open_cuda(&context), DSR_ERR_UNSUPPORTED_DEVICE);
    assert_null(context);
    assert_int_not_equal(strlen(dsr_create_error_text()), 0);
    assert_int_equal(dsr_device_count(DSR_DEVICE_CUDA), 0);
    setenv("DSR_CUDA_DRIVER", FAKE_CUDA_LIBRARY, 1); /* a failed load is tried again */
    if (is_built()) {
        assert_int_equal(open_cuda(&context), DSR_OK);
        dsr_context_destroy(context);
    }
}

static dsr_status open_device(uint32_t index, void *cuda_context, dsr_exactness exactness, dsr_context **context)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    desc.device = DSR_DEVICE_CUDA;
    desc.device_index = index;
    desc.cuda_context = cuda_context;
    desc.exactness = exactness;
    return dsr_context_create(&desc, context);
}

/* Two contexts at once, on two devices: every call works in its own context's CUDA context. */
static void test_two_devices(void **state)
{
    (void)state;
    skip_unless_built();
    dsr_context *contexts[3] = {NULL, NULL, NULL};
    dsr_buffer *buffers[2];
    const void *current[2];
    const uint32_t byte = 1;
    fake->n_devices = 2;
    assert_int_equal(dsr_device_count(DSR_DEVICE_CUDA), 2);
    assert_int_equal(open_device(2, NULL, DSR_EXACT_DEVICE, &contexts[2]), DSR_ERR_UNSUPPORTED_DEVICE);
    assert_non_null(strstr(dsr_create_error_text(), "CUDA device 2 does not exist, there are 2"));
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(open_device(i, NULL, DSR_EXACT_DEVICE, &contexts[i]), DSR_OK);
        assert_int_equal(dsr_buffer_create(contexts[i], 4, &buffers[i]), DSR_OK);
        current[i] = fake->last_pushed;
    }
    assert_ptr_not_equal(current[0], current[1]);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(dsr_buffer_write(buffers[i], 0, &byte, 4), DSR_OK);
        assert_ptr_equal(fake->last_pushed, current[i]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        dsr_buffer_destroy(buffers[i]);
        dsr_context_destroy(contexts[i]);
    }
    assert_int_equal(fake->n_retained, 0);
    assert_int_equal(fake->push_depth, 0);
}

static void test_callers_cuda_context(void **state)
{
    (void)state;
    skip_unless_built();
    int own;
    dsr_context *context = NULL;
    dsr_buffer *buffer;
    fake->n_devices = 2;
    fake->context_device = 1;
    assert_int_equal(open_device(1, &own, DSR_EXACT_DEVICE, &context), DSR_ERR_VALUE);
    assert_int_equal(open_device(0, &own, DSR_EXACT_DEVICE, &context), DSR_OK);
    assert_ptr_equal(fake->last_pushed, &own);
    assert_int_equal(fake->n_retained, 0);
    assert_int_equal(dsr_buffer_create(context, 4, &buffer), DSR_OK);
    assert_ptr_equal(fake->last_pushed, &own);
    dsr_buffer_destroy(buffer);
    dsr_context_destroy(context);
    assert_int_equal(fake->n_retained, 0);
    assert_int_equal(fake->push_depth, 0);
    uint32_t n_calls = 0;
    for (uint32_t fail_at = 1; fail_at <= n_calls + 1; fail_at++) {
        memset(fake, 0, sizeof *fake);
        fake->fail_at = fail_at;
        fake->fail_with = 999;
        context = NULL;
        const dsr_status status = open_device(0, &own, DSR_EXACT_DEVICE, &context);
        n_calls = fake->n_calls;
        assert_int_equal(status == DSR_OK, context != NULL);
        assert_int_equal(status == DSR_OK, n_calls < fail_at);
        dsr_context_destroy(context);
        assert_int_equal(fake->push_depth, 0);
    }
}

static int has_kernel(const dsr_context *context, const char *part)
{
    for (uint32_t i = 0; i < dsr_registry_n_kernels(context); i++)
        if (strstr(dsr_registry_kernel_name(context, i), part) != NULL)
            return 1;
    return 0;
}

/* Kernels for newer devices are left out on older ones, and where the image was compiled without them. */
static void test_older_devices(void **state)
{
    (void)state;
    skip_unless_built();
    dsr_context *context = NULL;
    fake->compute = 75;
    assert_int_equal(open_device(0, NULL, DSR_EXACT_ROW, &context), DSR_ERR_UNSUPPORTED_DEVICE);
    assert_non_null(strstr(dsr_create_error_text(), "compute capability 7.5"));
    fake->compute = 86;
    assert_int_equal(open_device(0, NULL, DSR_EXACT_DEVICE, &context), DSR_ERR_UNSUPPORTED_DEVICE);
    assert_non_null(strstr(dsr_create_error_text(), "has 101376 bytes of shared memory for a block"));
    assert_int_equal(fake->n_retained, 0);
    static const struct {
        int compute;
        const char *missing;
        int has_cluster_kernel;
    } devices[] = {{80, NULL, 0}, {90, "attention_row", 0}, {90, NULL, 1}};
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        fake->compute = devices[i].compute;
        fake->missing = devices[i].missing;
        assert_int_equal(open_device(0, NULL, DSR_EXACT_ROW, &context), DSR_OK);
        assert_int_equal(has_kernel(context, "attention_row"), devices[i].has_cluster_kernel);
        assert_true(has_kernel(context, "attention_mma16"));
        assert_true(has_kernel(context, "attention_values"));
        dsr_context_destroy(context);
    }
    fake->missing = "dsr_copy"; /* one that every device has: the image is not the library's */
    assert_int_equal(open_device(0, NULL, DSR_EXACT_ROW, &context), DSR_ERR_DEVICE);
    assert_int_equal(fake->n_retained, 0);
}

static void test_host_kernels_are_refused(void **state)
{
    (void)state;
    skip_unless_built();
    work w;
    assert_int_equal(run_all(&w), DSR_OK);
    assert_int_not_equal(dsr_registry_add_kernel(w.context, "mine", (dsr_kernel_fn)0, NULL), DSR_OK);
    close_work(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_runs_as_a_graph, reset_fake),
        cmocka_unit_test_setup(test_replays_do_not_wait, reset_fake),
        cmocka_unit_test_setup(test_new_fields_update_the_graph, reset_fake),
        cmocka_unit_test_setup(test_other_kernels_make_a_new_graph, reset_fake),
        cmocka_unit_test_setup(test_small_commands_share_a_launch, reset_fake),
        cmocka_unit_test_setup(test_the_smallest_rotation_has_a_block, reset_fake),
        cmocka_unit_test_setup(test_appends_follow_compressors, reset_fake),
        cmocka_unit_test_setup(test_rotations_follow_attention, reset_fake),
        cmocka_unit_test_setup(test_early_launches, reset_fake),
        cmocka_unit_test_setup(test_a_capturing_stream_gets_the_kernels, reset_fake),
        cmocka_unit_test_setup(test_a_failed_run_leaves_nothing_running, reset_fake),
        cmocka_unit_test_setup(test_every_driver_call_may_fail, reset_fake),
        cmocka_unit_test_setup(test_a_lost_device_stays_lost, reset_fake),
        cmocka_unit_test_setup(test_no_driver_is_a_status, reset_fake),
        cmocka_unit_test_setup(test_two_devices, reset_fake),
        cmocka_unit_test_setup(test_callers_cuda_context, reset_fake),
        cmocka_unit_test_setup(test_older_devices, reset_fake),
        cmocka_unit_test_setup(test_host_kernels_are_refused, reset_fake),
    };
    return cmocka_run_group_tests(tests, load_fake, NULL);
}
