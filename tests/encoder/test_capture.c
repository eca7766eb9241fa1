/* Captures: JSON that parses and says what the commands are, a picture, and the same text from run to run. */
#include "../unit/core_test.h"

#include <dsrows/ops.h>

#include <jansson.h>

enum { TEXT_BYTES = 1 << 20 };

typedef struct text {
    char bytes[TEXT_BYTES];
    size_t n_bytes;
    int n_calls;
    int stop_at;
} text;

static int keep_text(void *user, const char *piece, size_t n_bytes)
{
    text *t = user;
    if (++t->n_calls == t->stop_at || n_bytes >= TEXT_BYTES - t->n_bytes)
        return 1;
    memcpy(t->bytes + t->n_bytes, piece, n_bytes);
    t->n_bytes += n_bytes;
    t->bytes[t->n_bytes] = 0;
    return 0;
}

static void nothing(void *user, uint32_t task, uint32_t n_tasks, void *const *views, const void *params)
{
    (void)user;
    (void)task;
    (void)n_tasks;
    (void)views;
    (void)params;
}

/* Memory from one block, pieces in falling or rising order: buffers that touch, in another order of addresses. */
typedef struct block_allocator {
    unsigned char *block;
    size_t low;
    size_t high;
    int falls;
} block_allocator;

static void *allocate_from_block(void *user, size_t size_bytes, size_t alignment)
{
    block_allocator *a = user;
    if (a->falls) {
        a->high = (a->high - size_bytes) & ~(alignment - 1);
        return a->block + a->high;
    }
    const size_t at = (a->low + alignment - 1) & ~(alignment - 1);
    a->low = at + size_bytes;
    return a->block + at;
}

static void release_nothing(void *user, void *memory, size_t size_bytes)
{
    (void)user;
    (void)memory;
    (void)size_bytes;
}

typedef struct scene {
    dsr_context *context;
    dsr_encoder *encoder;
    dsr_buffer *buffers[3];
} scene;

static void encode_scene(scene *s)
{
    const dsr_view sources[2] = {
        {.buffer = s->buffers[1], .byte_offset = 64, .byte_length = 64, .dtype = DSR_DTYPE_F32},
        {.buffer = s->buffers[0], .byte_offset = 128, .byte_length = 64, .dtype = DSR_DTYPE_F32},
    };
    dsr_gather_desc gather = DSR_GATHER_DESC_INIT;
    gather.n_rows = 2;
    gather.sources = sources;
    gather.row_elements = 16;
    gather.output = (dsr_view){.buffer = s->buffers[2], .byte_length = 128, .dtype = DSR_DTYPE_F32};
    assert_ok(dsr_encode_gather(s->encoder, &gather));
    /* All of two buffers, which may touch. */
    const dsr_view views[3] = {view_of(s->buffers[0], 0, 256), view_of(s->buffers[1], 0, 256),
                               view_of(s->buffers[2], 100, 28)};
    const dsr_access access[3] = {DSR_ACCESS_WRITE, DSR_ACCESS_WRITE, DSR_ACCESS_READ};
    assert_ok(encode_kernel(s->encoder, "my.kernel-1", 3, 3, views, access));
    assert_ok(encode_kernel(s->encoder, "my.kernel-1", 5, 1, &views[2], &access[2]));
    assert_ok(encode_kernel(s->encoder, "my.kernel-1", 7, 1, views, access));
}

static scene new_scene(const dsr_allocator *allocator)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    scene s = {0};
    desc.isa = DSR_ISA_SCALAR;
    if (allocator)
        desc.allocator = *allocator;
    assert_ok(dsr_context_create(&desc, &s.context));
    for (int i = 0; i < 3; i++)
        s.buffers[i] = new_buffer(s.context, 256);
    s.encoder = new_encoder(s.context);
    assert_ok(dsr_registry_add_kernel(s.context, "my.kernel-1", nothing, NULL));
    encode_scene(&s);
    return s;
}

static void end_scene(scene *s)
{
    dsr_encoder_destroy(s->encoder);
    for (int i = 0; i < 3; i++)
        dsr_buffer_destroy(s->buffers[i]);
    dsr_context_destroy(s->context);
}

static const text *capture(const scene *s, dsr_capture_format format)
{
    static text texts[2];
    text *t = &texts[format];
    t->n_bytes = 0;
    t->n_calls = 0;
    t->stop_at = 0;
    assert_ok(dsr_encoder_capture(s->encoder, format, keep_text, t));
    return t;
}

/* ---- JSON ---- */

static void check_range(json_t *list, size_t i, int buffer, json_int_t begin, json_int_t end)
{
    json_t *range = json_array_get(list, i);
    assert_int_equal(json_integer_value(json_object_get(range, "buffer")), buffer);
    assert_int_equal(json_integer_value(json_object_get(range, "begin")), begin);
    assert_int_equal(json_integer_value(json_object_get(range, "end")), end);
}

static json_t *list_of(json_t *command, const char *key, size_t n)
{
    json_t *list = json_object_get(command, key);
    assert_int_equal(json_array_size(list), n);
    return list;
}

static json_t *parse(const text *t)
{
    json_error_t error;
    json_t *root = json_loadb(t->bytes, t->n_bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        fail_msg("line %d: %s\n%s", error.line, error.text, t->bytes);
    return root;
}

static void test_json(void **state)
{
    scene s = new_scene(NULL);
    json_t *root = parse(capture(&s, DSR_CAPTURE_JSON));
    (void)state;
    assert_string_equal(json_string_value(json_object_get(root, "device")), "cpu");
    assert_string_equal(json_string_value(json_object_get(root, "isa")), "scalar");
    assert_string_equal(json_string_value(json_object_get(root, "exactness")), "device");
    json_t *commands = list_of(root, "commands", 4);
    json_t *gather = json_array_get(commands, 0), *kernel = json_array_get(commands, 1);
    assert_string_equal(json_string_value(json_object_get(gather, "op")), "gather");
    assert_int_equal(json_integer_value(json_object_get(gather, "n_rows")), 2);
    assert_int_equal(json_integer_value(json_object_get(gather, "wave")), 0);
    check_range(list_of(gather, "reads", 2), 0, 0, 128, 192); /* buffers[0], the older one, comes first */
    check_range(list_of(gather, "reads", 2), 1, 1, 64, 128);
    check_range(list_of(gather, "writes", 1), 0, 2, 0, 128);
    json_t *launch = json_array_get(json_object_get(gather, "kernels"), 0);
    assert_int_equal(strncmp(json_string_value(json_object_get(launch, "name")), "dsr_gather", 10), 0);
    assert_true(json_integer_value(json_object_get(launch, "grid")) > 0);
    assert_string_equal(json_string_value(json_object_get(kernel, "op")), "custom");
    launch = json_array_get(list_of(kernel, "kernels", 1), 0);
    assert_string_equal(json_string_value(json_object_get(launch, "name")), "my.kernel-1");
    assert_int_equal(json_integer_value(json_object_get(launch, "grid")), 3);
    check_range(list_of(kernel, "writes", 2), 0, 0, 0, 256);
    check_range(list_of(kernel, "writes", 2), 1, 1, 0, 256);
    assert_int_equal(json_integer_value(json_array_get(list_of(kernel, "depends_on", 1), 0)), 0);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(commands, 3), "wave")), 2);
    assert_int_equal(json_array_size(json_object_get(root, "buffers")), 3);
    json_decref(root);
    end_scene(&s);
}

static void test_empty_encoder(void **state)
{
    scene s = new_scene(NULL);
    (void)state;
    assert_ok(dsr_encoder_reset(s.encoder));
    json_t *root = parse(capture(&s, DSR_CAPTURE_JSON));
    (void)list_of(root, "commands", 0);
    (void)list_of(root, "buffers", 0);
    json_decref(root);
    assert_non_null(strstr(capture(&s, DSR_CAPTURE_DOT)->bytes, "digraph"));
    end_scene(&s);
}

static void test_buffer_that_is_gone(void **state)
{
    scene s = new_scene(NULL);
    (void)state;
    dsr_buffer_destroy(s.buffers[1]);
    s.buffers[1] = NULL;
    json_t *root = parse(capture(&s, DSR_CAPTURE_JSON));
    json_t *reads = list_of(json_array_get(json_object_get(root, "commands"), 0), "reads", 2);
    assert_true(json_is_null(json_object_get(json_array_get(reads, 1), "buffer")));
    check_range(reads, 0, 0, 128, 192);
    json_decref(root);
    end_scene(&s);
}

/* ---- Graphviz ---- */

static int count(const char *bytes, const char *piece)
{
    int n = 0;
    for (const char *at = bytes; (at = strstr(at, piece)) != NULL; at++)
        n++;
    return n;
}

static void test_dot(void **state)
{
    scene s = new_scene(NULL);
    const char *bytes = capture(&s, DSR_CAPTURE_DOT)->bytes;
    (void)state;
    assert_int_equal(strncmp(bytes, "digraph dsrows {\n", 17), 0);
    assert_string_equal(bytes + strlen(bytes) - 2, "}\n");
    assert_int_equal(count(bytes, "{"), count(bytes, "}"));
    assert_int_equal(count(bytes, "\"") % 2, 0);
    assert_int_equal(count(bytes, " [label=\"0: gather, 2 rows\\l"), 1);
    assert_int_equal(count(bytes, "c0 -> c1 [label=\"RAW WAR\"];"), 1);
    assert_int_equal(count(bytes, "c0 -> c2 [label=\"RAW\"];"), 1);
    assert_int_equal(count(bytes, "c1 -> c3 [label=\"WAW\"];"), 1);
    assert_int_equal(count(bytes, " -> "), 3);
    assert_int_equal(count(bytes, "rank=same; c1; c2;"), 1);
    end_scene(&s);
}

/* ---- the same text wherever memory lies ---- */

static void test_text_does_not_depend_on_addresses(void **state)
{
    static char wanted[2][TEXT_BYTES];
    static const size_t block_bytes = 4 << 20;
    (void)state;
    for (int variant = 0; variant < 3; variant++) {
        block_allocator block = {.high = block_bytes, .falls = variant == 2};
        const dsr_allocator allocator = {allocate_from_block, release_nothing, &block};
        assert_int_equal(posix_memalign((void **)&block.block, 4096, block_bytes), 0);
        scene s = new_scene(variant == 0 ? NULL : &allocator);
        for (int format = 0; format < 2; format++) {
            const char *bytes = capture(&s, (dsr_capture_format)format)->bytes;
            if (variant == 0)
                strcpy(wanted[format], bytes);
            assert_string_equal(bytes, wanted[format]);
        }
        end_scene(&s);
        free(block.block);
    }
}

static void test_touching_wrapped_buffers(void **state)
{
    static char wanted[TEXT_BYTES];
    static unsigned char memory[2048];
    (void)state;
    for (int variant = 0; variant < 3; variant++) {
        const size_t at[3][3] = {{0, 256, 512}, {512, 256, 0}, {0, 1024, 512}};
        scene s = new_scene(NULL);
        assert_ok(dsr_encoder_reset(s.encoder));
        for (int i = 0; i < 3; i++) {
            dsr_buffer_destroy(s.buffers[i]);
            assert_ok(dsr_buffer_wrap(s.context, memory + at[variant][i], 256, &s.buffers[i]));
        }
        encode_scene(&s);
        const text *t = capture(&s, DSR_CAPTURE_JSON);
        if (variant == 0)
            strcpy(wanted, t->bytes);
        assert_string_equal(t->bytes, wanted);
        end_scene(&s);
    }
}

/* ---- refusals ---- */

static void test_refusals(void **state)
{
    static text t;
    scene s = new_scene(NULL);
    (void)state;
    assert_status(dsr_encoder_capture(NULL, DSR_CAPTURE_JSON, keep_text, &t), DSR_ERR_NULL);
    assert_status(dsr_encoder_capture(s.encoder, DSR_CAPTURE_JSON, NULL, &t), DSR_ERR_NULL);
    assert_status(dsr_encoder_capture(s.encoder, (dsr_capture_format)2, keep_text, &t), DSR_ERR_ENUM);
    assert_int_equal(t.n_calls, 0);
    t.stop_at = 1;
    assert_status(dsr_encoder_capture(s.encoder, DSR_CAPTURE_JSON, keep_text, &t), DSR_ERR_IO);
    assert_int_equal(t.n_calls, 1);
    end_scene(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_empty_encoder),
        cmocka_unit_test(test_buffer_that_is_gone),
        cmocka_unit_test(test_dot),
        cmocka_unit_test(test_text_does_not_depend_on_addresses),
        cmocka_unit_test(test_touching_wrapped_buffers),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
