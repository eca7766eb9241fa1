/* Small commands of a step on a CUDA device against the CPU, byte for byte: many that depend on nothing, which share a
 * launch there, and others that wait for some of them; submitted, replayed, and submitted again at the next position.
 * And rotations of attention's outputs, which its kernels do where they can, against rotations by themselves.
 *
 *   dsrows_gpu_step [short]
 *
 * "short" leaves out the many rows. A plain program, for machines that have nothing else. Exit 0 if all agree, 1 if
 * not, 77 if there is no device. */
#include <dsrows/dsrows.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 64, MAX_BUFFERS = 1024, N_ENTRIES = 160, N_HEADS = 3 };

typedef struct step {
    dsr_context *context;
    dsr_encoder *encoder;
    uint32_t n_rows, position;
    uint64_t random;
    dsr_buffer *buffers[MAX_BUFFERS];
    uint32_t n_buffers, n_used; /* made, and taken by the commands of this submit */
} step;

static void must(const step *s, dsr_status status, int line)
{
    if (status == DSR_OK)
        return;
    printf("line %d: %s: %s\n", line, dsr_status_name(status), dsr_context_error_text(s->context));
    exit(1);
}
#define MUST(call) must(s, call, __LINE__)

/* The next buffer: made and filled with random values the first time. */
static dsr_view operand(step *s, uint64_t n_elements, dsr_dtype dtype)
{
    if (s->n_used == s->n_buffers) {
        const uint64_t n_bytes = n_elements * (dtype == DSR_DTYPE_F32 ? 4 : 2);
        unsigned char *bytes = malloc(n_bytes);
        if (bytes == NULL || s->n_buffers == MAX_BUFFERS)
            exit(1);
        for (uint64_t i = 0; i < n_bytes; i++) {
            s->random = s->random * 6364136223846793005u + 1442695040888963407u;
            const unsigned char byte = (unsigned char)(s->random >> 56);
            const int is_top = i % (dtype == DSR_DTYPE_F32 ? 4 : 2) == (dtype == DSR_DTYPE_F32 ? 3u : 1u);
            bytes[i] = is_top ? (unsigned char)((byte & 0x81) | 0x3e) : byte; /* of sizes around 1 */
        }
        MUST(dsr_buffer_create(s->context, n_bytes, &s->buffers[s->n_buffers]));
        MUST(dsr_buffer_write(s->buffers[s->n_buffers++], 0, bytes, n_bytes));
        free(bytes);
    }
    return dsr_view_whole(s->buffers[s->n_used++], dtype);
}

static dsr_view encode_compressor(step *s, uint32_t dim)
{
    dsr_compressor_row rows[MAX_ROWS];
    memset(rows, 0, sizeof rows);
    for (uint32_t r = 0; r < s->n_rows; r++) {
        rows[r].kv_state = operand(s, dsr_compressor_state_elements(4, dim), DSR_DTYPE_F32);
        rows[r].score_state = operand(s, dsr_compressor_state_elements(4, dim), DSR_DTYPE_F32);
        rows[r].token_row = rows[r].output_row = r;
        rows[r].start_pos = s->position + r;
    }
    dsr_compressor_desc desc = DSR_COMPRESSOR_DESC_INIT;
    desc.n_rows = s->n_rows;
    desc.rows = rows;
    desc.ratio = 4;
    desc.dim = dim;
    desc.epsilon = 1e-6f;
    desc.kv = operand(s, (uint64_t)s->n_rows * 2 * dim, DSR_DTYPE_F32);
    desc.score = operand(s, (uint64_t)s->n_rows * 2 * dim, DSR_DTYPE_F32);
    desc.ape = operand(s, 8 * dim, DSR_DTYPE_F32);
    desc.norm = operand(s, dim, DSR_DTYPE_F32);
    desc.output = operand(s, (uint64_t)s->n_rows * dim, DSR_DTYPE_BF16);
    MUST(dsr_encode_compressor(s->encoder, &desc));
    return desc.output;
}

static void encode_append(step *s, dsr_view source, uint32_t dim, const dsr_view *caches, uint64_t first)
{
    dsr_append_row rows[MAX_ROWS];
    memset(rows, 0, sizeof rows);
    for (uint32_t r = 0; r < s->n_rows; r++) {
        rows[r].cache = caches[r];
        rows[r].n_entries = N_ENTRIES;
        rows[r].first_entry = first + r % 7;
        rows[r].source_row = r;
        rows[r].start_pos = s->position + r;
    }
    dsr_append_desc desc = DSR_APPEND_DESC_INIT;
    desc.n_rows = s->n_rows;
    desc.rows = rows;
    desc.dim = dim;
    desc.source = source;
    desc.frequencies = dsr_rope_frequencies(DSR_ROPE_YARN);
    MUST(dsr_encode_append(s->encoder, &desc));
}

static dsr_view encode_rope(step *s, dsr_view input, uint32_t head_dim, int inverse)
{
    dsr_rope_row rows[MAX_ROWS];
    memset(rows, 0, sizeof rows);
    for (uint32_t r = 0; r < s->n_rows; r++) {
        rows[r].row = r;
        rows[r].start_pos = s->position + r;
    }
    dsr_rope_desc desc = DSR_ROPE_DESC_INIT;
    desc.n_rows = s->n_rows;
    desc.rows = rows;
    desc.n_heads = N_HEADS;
    desc.head_dim = head_dim;
    desc.rope_dim = 64;
    desc.inverse = inverse;
    desc.input = input;
    desc.output = operand(s, (uint64_t)s->n_rows * N_HEADS * head_dim, DSR_DTYPE_BF16);
    desc.frequencies = dsr_rope_frequencies(DSR_ROPE_YARN);
    MUST(dsr_encode_rope(s->encoder, &desc));
    return desc.output;
}

static void encode_copy(step *s, dsr_view source, uint32_t n_elements)
{
    dsr_copy_row rows[MAX_ROWS];
    memset(rows, 0, sizeof rows);
    const dsr_view destination = operand(s, (uint64_t)s->n_rows * n_elements, DSR_DTYPE_BF16);
    for (uint32_t r = 0; r < s->n_rows; r++) {
        rows[r].destination = destination;
        rows[r].destination_row = s->n_rows - 1 - r;
        rows[r].source_row = r;
    }
    dsr_copy_desc desc = DSR_COPY_DESC_INIT;
    desc.n_rows = s->n_rows;
    desc.rows = rows;
    desc.row_elements = n_elements;
    desc.source = source;
    MUST(dsr_encode_copy(s->encoder, &desc));
}

static void encode_layer(step *s)
{
    dsr_view caches[MAX_ROWS], index_caches[MAX_ROWS];
    for (uint32_t r = 0; r < s->n_rows; r++) {
        caches[r] = operand(s, N_ENTRIES * 512, DSR_DTYPE_BF16);
        index_caches[r] = operand(s, N_ENTRIES * 128, DSR_DTYPE_BF16);
    }
    const dsr_view entries = encode_compressor(s, 512), index_entries = encode_compressor(s, 128);
    const dsr_view window = operand(s, (uint64_t)s->n_rows * 512, DSR_DTYPE_BF16);
    encode_append(s, window, 512, caches, 0);
    encode_copy(s, window, 512);
    encode_append(s, entries, 512, caches, 16);
    encode_append(s, index_entries, 128, index_caches, 0);
    const dsr_view q = operand(s, (uint64_t)s->n_rows * N_HEADS * 512, DSR_DTYPE_BF16);
    const dsr_view turned = encode_rope(s, q, 512, 0);
    const dsr_view index_q = operand(s, (uint64_t)s->n_rows * N_HEADS * 128, DSR_DTYPE_BF16);
    encode_copy(s, encode_rope(s, index_q, 128, 0), N_HEADS * 128);
    encode_copy(s, encode_rope(s, turned, 512, 1), N_HEADS * 512);
}

static void run(step *s, dsr_context *context, uint32_t n_rows)
{
    memset(s, 0, sizeof *s);
    s->context = context;
    s->n_rows = n_rows;
    s->random = n_rows;
    MUST(dsr_encoder_create(context, &s->encoder));
    for (s->position = 1000; s->position < 1003; s->position++) {
        MUST(dsr_encoder_reset(s->encoder));
        s->n_used = 0;
        for (int layer = 0; layer < 2; layer++) /* more commands at once than share a launch */
            encode_layer(s);
        MUST(dsr_encoder_submit(s->encoder));
        MUST(dsr_encoder_replay(s->encoder));
    }
    MUST(dsr_encoder_wait(s->encoder));
}

static void release(step *s)
{
    dsr_encoder_destroy(s->encoder);
    while (s->n_buffers)
        dsr_buffer_destroy(s->buffers[--s->n_buffers]);
}

static uint32_t n_unlike(const step *a, const step *b)
{
    uint32_t n = a->n_buffers != b->n_buffers;
    for (uint32_t i = 0; i < a->n_buffers && i < b->n_buffers; i++) {
        const uint64_t n_bytes = dsr_buffer_size(a->buffers[i]);
        unsigned char *x = malloc(n_bytes), *y = malloc(n_bytes);
        if (x == NULL || y == NULL)
            exit(1);
        must(a, dsr_buffer_read(a->buffers[i], 0, x, n_bytes), __LINE__);
        must(b, dsr_buffer_read(b->buffers[i], 0, y, n_bytes), __LINE__);
        n += memcmp(x, y, n_bytes) != 0;
        free(x);
        free(y);
    }
    return n;
}

/* ---- attention and a rotation of its outputs ---- */

enum { WIDTH = 130, N_KV = 160, ATTENTION_HEADS = 64 };

/* Row 1 has two queries. */
static uint32_t n_queries_of(uint32_t row)
{
    return row == 1 ? 2 : 1;
}

static uint32_t n_queries_before(uint32_t row)
{
    return row > 1 ? row + 1 : row;
}

static void encode_attention(step *s, int flash, const dsr_view operands[3], dsr_view indices, dsr_view output)
{
    dsr_attention_row rows[MAX_ROWS];
    uint64_t n_bytes;
    memset(rows, 0, sizeof rows);
    for (uint32_t r = 0; r < s->n_rows; r++) {
        rows[r].kv = operands[1];
        rows[r].kv_len = N_KV;
        rows[r].q_row = n_queries_before(r);
        rows[r].n_queries = n_queries_of(r);
        rows[r].index_offset = (uint64_t)n_queries_before(r) * WIDTH;
        rows[r].width = r % 3 ? WIDTH : WIDTH - 70;
    }
    dsr_attention_desc desc = DSR_ATTENTION_DESC_INIT;
    desc.n_rows = s->n_rows;
    desc.rows = rows;
    desc.n_heads = ATTENTION_HEADS;
    desc.scale = DSR_ATTENTION_SCALE;
    desc.q = operands[0];
    desc.indices = indices;
    desc.sinks = operands[2];
    desc.output = output;
    MUST(flash ? dsr_flash_attention_workspace(s->context, &desc, &n_bytes)
               : dsr_sparse_attention_workspace(s->context, &desc, &n_bytes));
    desc.workspace = operand(s, n_bytes / 2, DSR_DTYPE_BF16);
    desc.workspace.dtype = DSR_DTYPE_U8;
    MUST(flash ? dsr_encode_flash_attention(s->encoder, &desc) : dsr_encode_sparse_attention(s->encoder, &desc));
}

static void encode_rotation(step *s, dsr_view input, dsr_view output)
{
    dsr_rope_row rows[MAX_ROWS];
    memset(rows, 0, sizeof rows);
    for (uint32_t r = 0; r < s->n_rows; r++) {
        rows[r].row = n_queries_before(r);
        rows[r].start_pos = r == 0 ? 0 : 262143 * r;
        rows[r].n_tokens = n_queries_of(r);
        rows[r].position_step = 3;
    }
    dsr_rope_desc desc = DSR_ROPE_DESC_INIT;
    desc.n_rows = s->n_rows;
    desc.rows = rows;
    desc.n_heads = ATTENTION_HEADS;
    desc.head_dim = 512;
    desc.rope_dim = 64;
    desc.inverse = 1;
    desc.input = input;
    desc.output = output;
    desc.frequencies = dsr_rope_frequencies(DSR_ROPE_YARN);
    MUST(dsr_encode_rope(s->encoder, &desc));
}

static void finish(step *s)
{
    MUST(dsr_encoder_submit(s->encoder));
    MUST(dsr_encoder_wait(s->encoder));
    MUST(dsr_encoder_reset(s->encoder));
}

static int are_equal(const step *s, dsr_view a, dsr_view b)
{
    unsigned char *x = malloc(a.byte_length), *y = malloc(a.byte_length);
    if (x == NULL || y == NULL)
        exit(1);
    MUST(dsr_buffer_read(a.buffer, 0, x, a.byte_length));
    MUST(dsr_buffer_read(b.buffer, 0, y, a.byte_length));
    const int are_equal = memcmp(x, y, a.byte_length) == 0;
    free(x);
    free(y);
    return are_equal;
}

/* Whether attention and a rotation of its outputs give the same in one submit as in two, to other memory and in place.
 */
static int check_rotation(step *s, dsr_context *context, uint32_t n_rows, int flash)
{
    const uint32_t n_queries = n_queries_before(n_rows);
    static int32_t indices[(MAX_ROWS + 1) * WIDTH];
    memset(s, 0, sizeof *s);
    s->context = context;
    s->n_rows = n_rows;
    s->random = n_rows;
    MUST(dsr_encoder_create(context, &s->encoder));
    const uint64_t n_outputs = (uint64_t)n_queries * ATTENTION_HEADS * 512;
    const dsr_view operands[3] = {operand(s, n_outputs, DSR_DTYPE_BF16), operand(s, N_KV * 512, DSR_DTYPE_BF16),
                                  operand(s, ATTENTION_HEADS, DSR_DTYPE_F32)};
    dsr_view list = operand(s, n_queries * WIDTH, DSR_DTYPE_F32), outputs[5];
    for (uint32_t i = 0; i < n_queries * WIDTH; i++)
        indices[i] = (int32_t)(i * 7919 % N_KV);
    MUST(dsr_buffer_write(list.buffer, 0, indices, (uint64_t)n_queries * WIDTH * 4));
    list.dtype = DSR_DTYPE_I32;
    for (int i = 0; i < 5; i++)
        outputs[i] = operand(s, n_outputs, DSR_DTYPE_BF16);
    encode_attention(s, flash, operands, list, outputs[0]);
    finish(s);
    encode_rotation(s, outputs[0], outputs[1]);
    finish(s);
    encode_attention(s, flash, operands, list, outputs[2]);
    encode_rotation(s, outputs[2], outputs[3]);
    encode_attention(s, flash, operands, list, outputs[4]);
    encode_rotation(s, outputs[4], outputs[4]);
    finish(s);
    const int is_right = are_equal(s, outputs[0], outputs[2]) && are_equal(s, outputs[1], outputs[3]) &&
                         are_equal(s, outputs[1], outputs[4]);
    release(s);
    return is_right;
}

static uint32_t check_rotations(step *s, uint32_t n_shapes)
{
    static const uint32_t n_rows[] = {1, 7, 3, 24};
    uint32_t n_wrong = 0;
    for (int exactness = 0; exactness < 2; exactness++) {
        dsr_context *context;
        dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
        desc.device = DSR_DEVICE_CUDA;
        desc.exactness = exactness ? DSR_EXACT_ROW : DSR_EXACT_DEVICE;
        if (dsr_context_create(&desc, &context) != DSR_OK)
            exit(1);
        for (uint32_t i = 0; i < n_shapes; i++)
            for (int flash = 0; flash < 2; flash++)
                if (!check_rotation(s, context, n_rows[i], flash)) {
                    printf("FAIL a rotation of %s attention, %u rows\n", flash ? "flash" : "two-pass", n_rows[i]);
                    n_wrong++;
                }
        dsr_context_destroy(context);
    }
    printf("rotations of attention's outputs: %s\n", n_wrong ? "not those by themselves" : "as by themselves");
    return n_wrong;
}

int main(int argc, char **argv)
{
    static const uint32_t n_rows[] = {1, 5, 33, MAX_ROWS};
    const uint32_t n_shapes = argc > 1 && strcmp(argv[1], "short") == 0 ? 2 : 4;
    static step on_cpu, on_cuda;
    dsr_context *cpu, *cuda;
    uint32_t n_wrong = 0;
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    desc.device = DSR_DEVICE_CUDA;
    desc.exactness = DSR_EXACT_ROW; /* of which the small ones have the CPU's bits, and more of them share launches */
    if (dsr_context_create(&desc, &cuda) != DSR_OK) {
        printf("skipped: %s\n", dsr_create_error_text());
        return 77;
    }
    if (dsr_context_create(NULL, &cpu) != DSR_OK)
        return 1;
    for (uint32_t i = 0; i < n_shapes; i++) {
        run(&on_cpu, cpu, n_rows[i]);
        run(&on_cuda, cuda, n_rows[i]);
        const uint32_t n = n_unlike(&on_cpu, &on_cuda);
        if (n)
            printf("FAIL %u rows: %u buffers of %u differ\n", n_rows[i], n, on_cpu.n_buffers);
        n_wrong += n;
        release(&on_cpu);
        release(&on_cuda);
    }
    dsr_context_destroy(cpu);
    dsr_context_destroy(cuda);
    printf("steps of small commands: %s\n",
           n_wrong ? "CUDA differs from the CPU" : "CUDA equals the CPU, byte for byte");
    n_wrong += check_rotations(&on_cuda, n_shapes);
    return n_wrong != 0;
}
