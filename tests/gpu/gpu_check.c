/* The bit matrix on a CUDA device, or on the CPU, as one plain program without a test library, for machines that have
 * nothing else:
 *   dsrows_gpu_check [cpu|tiny|short|many] [OP...]
 * Device-exact results against the reference; row-exact ones against the row run alone. On the CPU the row run alone
 * has one thread, the others have four; DSR_WITHOUT=amx_bf16 or avx512_bf16,amx_bf16 chooses among the row-exact
 * kernels. "short" is a small part of the matrix, for checking tools that slow kernels down, and "tiny" a smaller one,
 * for those that slow them down by much; "many" a small part with many rows, for which other kernels serve. Exit 0 if
 * all agree, 1 if not, 2 if a word is not the name of an op, 77 if there is no device. */
#include "bit_cases.h"
#include "random.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static uint32_t n_failed, n_passed;

/* What of the matrix is run. */
static uint64_t n_seeds = 2;
static uint32_t row_counts[] = {1, 2, 3, 7, 8, 33, 64};
static uint32_t n_row_counts = sizeof row_counts / sizeof row_counts[0];
static uint32_t max_rows = BIT_MAX_ROWS;

static int ends_only; /* of an op's shapes the first and the last */

static void shorten(void)
{
    n_seeds = 1;
    row_counts[0] = 3;
    n_row_counts = 1;
    max_rows = 3;
}

static void take_tiny(void)
{
    n_seeds = 1;
    row_counts[0] = 2;
    n_row_counts = 1;
    max_rows = 2;
    ends_only = 1;
}

static void take_many(void)
{
    n_seeds = 1;
    row_counts[0] = 7;
    row_counts[1] = 28;
    n_row_counts = 2;
    max_rows = 28;
    ends_only = 1;
}

static void report(const bit_case *c, uint32_t n, const char *what, int result, const char *text)
{
    if (result == 0) {
        n_passed++;
        return;
    }
    n_failed++;
    if (n_failed <= 40)
        printf("FAIL %s / %s seed %llu rows %u %s: %s\n", bit_op_name(c->op), bit_shape_name(c->op, c->shape),
               (unsigned long long)c->seed, n, what, text);
}

static void draw_order(uint64_t seed, uint32_t n, uint32_t n_rows, uint32_t order[BIT_MAX_ROWS])
{
    random_stream random = random_open(seed, 77);
    for (uint32_t i = 0; i < n_rows; i++)
        order[i] = i;
    random_shuffle(&random, order, n_rows);
    (void)n;
}

static void check_device_exact(const bit_case *c, const bit_results *expected, dsr_context *context)
{
    for (uint32_t i = 0; i < n_row_counts; i++) {
        const uint32_t n = row_counts[i] < c->n_rows ? row_counts[i] : c->n_rows;
        uint32_t order[BIT_MAX_ROWS];
        draw_order(c->seed + i, n, c->n_rows, order);
        const bit_layout layout = {
            .seed = i ? c->seed * 7 + i : 0, .misaligned = (int)(i % 2), .poison = i % 2 ? 0xff : 0x55};
        const bit_run run = {.n_replays = i % 3};
        char text[BIT_TEXT_BYTES] = "";
        report(c, n, "device-exact", bit_check(c, expected, order, n, &layout, context, &run, text), text);
        if (row_counts[i] >= c->n_rows)
            break;
    }
}

/* Rows run alone give the expected bits of every joint run. */
static void check_row_exact(const bit_case *c, dsr_context *alone_context, dsr_context *context)
{
    bit_results alone = {.n_rows = c->n_rows};
    char text[BIT_TEXT_BYTES] = "";
    const bit_layout plain = {.poison = 0x55};
    const bit_run run = {.n_replays = 1};
    for (uint32_t r = 0; r < c->n_rows; r++) {
        bit_placement *p = bit_place(c, &r, 1, &plain, alone_context, text);
        bit_results *one = p ? bit_execute_read(p, alone_context, &run, text) : NULL;
        if (!one) {
            report(c, 1, "row-exact, alone", -1, text);
            return;
        }
        memcpy(alone.outputs[r], one->outputs[r], sizeof alone.outputs[r]);
        memset(one->outputs[r], 0, sizeof one->outputs[r]);
        bit_results_free(one);
        bit_placement_free(p);
    }
    check_device_exact(c, &alone, context);
    for (uint32_t r = 0; r < c->n_rows; r++)
        for (uint32_t i = 0; i < BIT_ROW_OUTPUTS; i++)
            bit_array_free(&alone.outputs[r][i]);
}

/* Whether each word is the name of an op. */
static int are_ops(int n, char **names)
{
    for (int i = 0; i < n; i++) {
        uint32_t op = 0;
        while (op < bit_n_ops() && strcmp(names[i], bit_op_name(bit_op_at(op))) != 0)
            op++;
        if (op == bit_n_ops()) {
            fprintf(stderr, "dsrows_gpu_check: there is no op '%s'\n", names[i]);
            return 0;
        }
    }
    return 1;
}

static int is_wanted(const char *name, int n, char **names)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return 1;
    return n == 0;
}

typedef struct check_contexts {
    dsr_context *exact;
    dsr_context *row_alone;
    dsr_context *row; /* may be row_alone */
} check_contexts;

static void check_op(const struct bit_op *op, const check_contexts *contexts)
{
    const uint32_t failed_before = n_failed, passed_before = n_passed;
    const uint32_t n_shapes = bit_n_shapes(op), step = ends_only && n_shapes > 1 ? n_shapes - 1 : 1;
    for (uint32_t shape = 0; shape < n_shapes; shape += step)
        for (uint64_t seed = 1; seed <= n_seeds; seed++) {
            bit_case *c = bit_case_new(op, shape, seed);
            const uint32_t n_rows = c->n_rows;
            c->n_rows = n_rows < max_rows ? n_rows : max_rows;
            bit_results *expected = bit_reference(c);
            check_device_exact(c, expected, contexts->exact);
            check_row_exact(c, contexts->row_alone, contexts->row);
            bit_results_free(expected);
            c->n_rows = n_rows;
            bit_case_free(c);
        }
    printf("%-18s %4u runs equal, %u not\n", bit_op_name(op), n_passed - passed_before, n_failed - failed_before);
    fflush(stdout);
}

static dsr_status open_contexts(dsr_device_kind device, check_contexts *contexts)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    desc.device = device;
    dsr_status status = dsr_context_create(&desc, &contexts->exact);
    desc.exactness = DSR_EXACT_ROW;
    if (status == DSR_OK)
        status = dsr_context_create(&desc, &contexts->row_alone);
    contexts->row = contexts->row_alone;
    desc.n_threads = 4;
    if (status == DSR_OK && device == DSR_DEVICE_CPU)
        status = dsr_context_create(&desc, &contexts->row);
    return status;
}

static void close_contexts(const check_contexts *contexts)
{
    if (contexts->row != contexts->row_alone)
        dsr_context_destroy(contexts->row);
    dsr_context_destroy(contexts->row_alone);
    dsr_context_destroy(contexts->exact);
}

int main(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : "";
    const int on_cpu = strcmp(word, "cpu") == 0, is_short = strcmp(word, "short") == 0;
    const int is_many = strcmp(word, "many") == 0, is_tiny = strcmp(word, "tiny") == 0;
    const int n_words = 1 + on_cpu + is_short + is_many + is_tiny;
    if (!are_ops(argc - n_words, argv + n_words))
        return 2;
    if (is_short)
        shorten();
    if (is_many)
        take_many();
    if (is_tiny)
        take_tiny();
    check_contexts contexts = {NULL, NULL, NULL};
    if (open_contexts(on_cpu ? DSR_DEVICE_CPU : DSR_DEVICE_CUDA, &contexts) != DSR_OK) {
        const int status = contexts.exact ? 1 : 77;
        printf("%s: %s\n", status == 1 ? "FAIL" : "skipped", dsr_create_error_text());
        close_contexts(&contexts);
        return status;
    }
    printf("row-exact: %s, ...\n", dsr_registry_kernel_name(contexts.row, 0));
    for (uint32_t i = 0; i < bit_n_ops(); i++)
        if (is_wanted(bit_op_name(bit_op_at(i)), argc - n_words, argv + n_words))
            check_op(bit_op_at(i), &contexts);
    close_contexts(&contexts);
    printf("%u passed, %u failed\n", n_passed, n_failed);
    return n_failed != 0;
}
