/* Ops whose shapes are the caller's choice: drawn shapes give the same bytes on a CUDA device as on the CPU, and change
 * no byte beside their output. */
#include "random.h"

#include <dsrows/dsrows.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { INPUT, WEIGHT, OUTPUT, N_BUFFERS, BUFFER_BYTES = 1 << 18, SKIPPED = 77 };

typedef struct side {
    dsr_context *context;
    dsr_encoder *encoder;
    dsr_buffer *buffers[N_BUFFERS];
} side;

static side sides[2]; /* CPU, CUDA */
static uint64_t seed = 1;

/* n elements from a drawn place on. */
static dsr_view draw_view(const side *s, random_stream *random, int buffer, dsr_dtype dtype, uint64_t n)
{
    const uint64_t room = BUFFER_BYTES / dsr_dtype_size(dtype) - n;
    const uint64_t first = random_below(random, (uint32_t)room + 1);
    const uint64_t alignment = random_one_in(random, 2) ? 64 : 1;
    return dsr_view_slice(dsr_view_whole(s->buffers[buffer], dtype), first / alignment * alignment, n);
}

static dsr_dtype draw_float(random_stream *random)
{
    return random_one_in(random, 2) ? DSR_DTYPE_F32 : DSR_DTYPE_BF16;
}

static dsr_status encode_rope(const side *s, random_stream *random)
{
    dsr_rope_row rows[4];
    float frequencies[64];
    uint32_t n_tokens = 0;
    dsr_rope_desc desc = DSR_ROPE_DESC_INIT;
    desc.n_rows = random_between(random, 1, 4);
    for (uint32_t r = 0; r < desc.n_rows; r++) {
        rows[r] = (dsr_rope_row){.row = n_tokens,
                                 .start_pos = random_below(random, 100000),
                                 .position_step = random_below(random, 5),
                                 .n_tokens = random_between(random, 1, 3)};
        n_tokens += rows[r].n_tokens;
    }
    for (int i = 0; i < 64; i++)
        frequencies[i] = 1 / (float)random_between(random, 1, 100000);
    desc.rows = rows;
    desc.n_heads = random_between(random, 1, 10);
    desc.head_dim = 2 * random_between(random, 1, random_one_in(random, 4) ? 4 : 256);
    desc.rope_dim = 2 * random_between(random, 1, desc.head_dim < 128 ? desc.head_dim / 2 : 64);
    desc.inverse = (int)random_below(random, 2);
    desc.frequencies = frequencies;
    const uint64_t n = (uint64_t)n_tokens * desc.n_heads * desc.head_dim;
    desc.input = draw_view(s, random, INPUT, draw_float(random), n);
    desc.output = draw_view(s, random, OUTPUT, DSR_DTYPE_BF16, n);
    return dsr_encode_rope(s->encoder, &desc);
}

static dsr_status encode_rms_norm(const side *s, random_stream *random)
{
    dsr_rms_norm_desc desc = DSR_RMS_NORM_DESC_INIT;
    desc.dim = 16 * random_between(random, 1, 64);
    desc.n_vectors = random_between(random, 1, 16);
    desc.epsilon = 1e-6f;
    const uint64_t n = desc.n_vectors * desc.dim;
    desc.input = draw_view(s, random, INPUT, draw_float(random), n);
    if (random_one_in(random, 2))
        desc.weight = draw_view(s, random, WEIGHT, DSR_DTYPE_F32, desc.dim);
    desc.output = draw_view(s, random, OUTPUT, draw_float(random), n);
    return dsr_encode_rms_norm(s->encoder, &desc);
}

static dsr_status encode_projection(const side *s, random_stream *random)
{
    dsr_projection_desc desc = DSR_PROJECTION_DESC_INIT;
    desc.n_rows = random_between(random, 1, 20);
    desc.n_groups = random_between(random, 1, 3);
    desc.n_inputs = 16 * random_between(random, 1, 60);
    desc.n_outputs = random_between(random, 1, 40);
    desc.output_scale = random_normal(random);
    desc.format = random_one_in(random, 2) ? DSR_WEIGHT_BF16 : DSR_WEIGHT_FP8;
    const uint64_t n_outputs = (uint64_t)desc.n_groups * desc.n_outputs;
    const dsr_dtype weight = desc.format == DSR_WEIGHT_BF16 ? DSR_DTYPE_BF16 : DSR_DTYPE_U8;
    desc.input = draw_view(s, random, INPUT, DSR_DTYPE_BF16, (uint64_t)desc.n_rows * desc.n_groups * desc.n_inputs);
    desc.weight = draw_view(s, random, WEIGHT, weight, n_outputs * desc.n_inputs);
    if (desc.format == DSR_WEIGHT_FP8)
        desc.scales =
            draw_view(s, random, WEIGHT, DSR_DTYPE_F32, (n_outputs + 127) / 128 * ((desc.n_inputs + 127) / 128));
    desc.output = draw_view(s, random, OUTPUT, draw_float(random), desc.n_rows * n_outputs);
    return dsr_encode_projection(s->encoder, &desc);
}

static dsr_status encode_fake_quant(const side *s, random_stream *random)
{
    dsr_fake_quant_desc desc = DSR_FAKE_QUANT_DESC_INIT;
    desc.kind = (dsr_quant_kind)random_below(random, 2);
    desc.n_vectors = random_between(random, 1, 20);
    desc.dim = desc.kind == DSR_QUANT_HADAMARD_FP4_BLOCK32 ? 128 : 64 * random_between(random, 2, 8);
    desc.floor = (dsr_scale_floor)random_below(random, 2);
    desc.input = draw_view(s, random, INPUT, DSR_DTYPE_BF16, desc.n_vectors * desc.dim);
    desc.output = draw_view(s, random, OUTPUT, DSR_DTYPE_BF16, desc.n_vectors * desc.dim);
    return dsr_encode_fake_quant(s->encoder, &desc);
}

static dsr_status encode_gather(const side *s, random_stream *random)
{
    dsr_view sources[8];
    dsr_gather_desc desc = DSR_GATHER_DESC_INIT;
    desc.n_rows = random_between(random, 1, 8);
    desc.row_elements = random_between(random, 1, random_one_in(random, 2) ? 20 : 3000);
    for (uint32_t r = 0; r < desc.n_rows; r++)
        sources[r] = draw_view(s, random, INPUT, DSR_DTYPE_F32, desc.row_elements);
    desc.sources = sources;
    desc.output = draw_view(s, random, OUTPUT, DSR_DTYPE_F32, desc.n_rows * desc.row_elements);
    return dsr_encode_gather(s->encoder, &desc);
}

static dsr_status encode_copy(const side *s, random_stream *random)
{
    enum { RING = 9 };
    dsr_copy_row rows[4];
    dsr_copy_desc desc = DSR_COPY_DESC_INIT;
    const dsr_dtype dtype = (dsr_dtype)random_between(random, DSR_DTYPE_F32, DSR_DTYPE_I32);
    desc.n_rows = random_between(random, 1, 4);
    desc.row_elements = random_between(random, 1, random_one_in(random, 2) ? 20 : 700);
    const dsr_view all = draw_view(s, random, OUTPUT, dtype, desc.n_rows * RING * desc.row_elements);
    for (uint32_t r = 0; r < desc.n_rows; r++)
        rows[r] =
            (dsr_copy_row){.destination = dsr_view_slice(all, r * RING * desc.row_elements, RING * desc.row_elements),
                           .source_row = random_below(random, 10),
                           .destination_row = random_below(random, RING),
                           .ring_rows = RING,
                           .n_copies = random_between(random, 1, RING)};
    desc.rows = rows;
    desc.source = draw_view(s, random, INPUT, dtype, (10 + RING) * desc.row_elements);
    return dsr_encode_copy(s->encoder, &desc);
}

/* Numbers as BF16 pairs and as F32, a few of them not finite. */
static void fill_buffers(void)
{
    static uint32_t words[BUFFER_BYTES / 4];
    for (int b = 0; b < N_BUFFERS; b++) {
        random_stream random = random_open(seed, (uint64_t)b);
        for (int i = 0; i < BUFFER_BYTES / 4; i++) {
            const float x[2] = {random_normal(&random), random_normal(&random)};
            uint32_t bits[2];
            memcpy(bits, x, sizeof bits);
            words[i] = random_one_in(&random, 5000) ? 0x7f80ff80 : (bits[0] & 0xffff0000) | bits[1] >> 16;
        }
        for (int i = 0; i < 2; i++)
            assert_int_equal(dsr_buffer_write(sides[i].buffers[b], 0, words, BUFFER_BYTES), DSR_OK);
    }
}

static void expect_equal_bytes(const char *op, int draw)
{
    static uint8_t bytes[2][BUFFER_BYTES];
    for (int i = 0; i < 2; i++)
        assert_int_equal(dsr_buffer_read(sides[i].buffers[OUTPUT], 0, bytes[i], BUFFER_BYTES), DSR_OK);
    for (int i = 0; i < BUFFER_BYTES; i++)
        if (bytes[0][i] != bytes[1][i])
            fail_msg("%s, draw %d of seed %llu: byte %d differs", op, draw, (unsigned long long)seed, i);
}

static void test_drawn_shapes(void **state)
{
    static const struct {
        const char *name;
        dsr_status (*encode)(const side *, random_stream *);
    } ops[] = {{"rope", encode_rope},
               {"rms-norm", encode_rms_norm},
               {"projection", encode_projection},
               {"fake-quant", encode_fake_quant},
               {"gather", encode_gather},
               {"copy", encode_copy}};
    enum { N_OPS = sizeof ops / sizeof ops[0], N_DRAWS = 100 * N_OPS };
    (void)state;
    fill_buffers();
    for (int draw = 0; draw < N_DRAWS; draw++) {
        for (int i = 0; i < 2; i++) {
            const side *s = &sides[i];
            random_stream random = random_open(seed, 100 + (uint64_t)draw);
            dsr_status status = ops[draw % N_OPS].encode(s, &random);
            if (status == DSR_OK)
                status = dsr_encoder_submit(s->encoder);
            if (status == DSR_OK)
                status = dsr_encoder_wait(s->encoder);
            if (status != DSR_OK)
                fail_msg("%s, draw %d of seed %llu: %s", ops[draw % N_OPS].name, draw, (unsigned long long)seed,
                         dsr_context_error_text(s->context));
            assert_int_equal(dsr_encoder_reset(s->encoder), DSR_OK);
        }
        expect_equal_bytes(ops[draw % N_OPS].name, draw);
    }
}

static dsr_status open_side(side *s, dsr_device_kind device)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    desc.device = device;
    dsr_status status = dsr_context_create(&desc, &s->context);
    if (status == DSR_OK)
        status = dsr_encoder_create(s->context, &s->encoder);
    for (int b = 0; b < N_BUFFERS && status == DSR_OK; b++)
        status = dsr_buffer_create(s->context, BUFFER_BYTES, &s->buffers[b]);
    return status;
}

static void close_side(side *s)
{
    for (int b = 0; b < N_BUFFERS; b++)
        dsr_buffer_destroy(s->buffers[b]);
    dsr_encoder_destroy(s->encoder);
    dsr_context_destroy(s->context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_drawn_shapes)};
    const char *given = getenv("DSR_TEST_SEED");
    seed = given != NULL ? strtoull(given, NULL, 10) : seed;
    int code = SKIPPED;
    if (open_side(&sides[0], DSR_DEVICE_CPU) == DSR_OK && open_side(&sides[1], DSR_DEVICE_CUDA) == DSR_OK) {
        printf("seed %llu\n", (unsigned long long)seed);
        code = cmocka_run_group_tests(tests, NULL, NULL);
    } else {
        printf("skipped: %s\n", dsr_create_error_text());
    }
    close_side(&sides[0]);
    close_side(&sides[1]);
    return code;
}
