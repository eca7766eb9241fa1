/* The bit matrix on a CUDA device, as one plain program without a test library, for machines that have nothing else:
 *   dsrows_gpu_check [OP...]
 * Device-exact results against the reference; row-exact ones against the row run alone and, for accuracy, against the
 * reference. Exit 0 if all agree, 1 if not, 77 if there is no device. */
#include "bit_cases.h"
#include "random.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N_SEEDS = 2 };

static uint32_t n_failed, n_passed;

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
    static const uint32_t counts[] = {1, 2, 3, 7, 8, 33, 64};
    for (uint32_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        const uint32_t n = counts[i] < c->n_rows ? counts[i] : c->n_rows;
        uint32_t order[BIT_MAX_ROWS];
        draw_order(c->seed + i, n, c->n_rows, order);
        const bit_layout layout = {
            .seed = i ? c->seed * 7 + i : 0, .misaligned = (int)(i % 2), .poison = i % 2 ? 0xff : 0x55};
        const bit_run run = {.n_replays = i % 3};
        char text[BIT_TEXT_BYTES] = "";
        report(c, n, "device-exact", bit_check(c, expected, order, n, &layout, context, &run, text), text);
        if (counts[i] >= c->n_rows)
            break;
    }
}

/* Rows run alone give the expected bits of every joint run. */
static void check_row_exact(const bit_case *c, dsr_context *context)
{
    bit_results alone = {.n_rows = c->n_rows};
    char text[BIT_TEXT_BYTES] = "";
    const bit_layout plain = {.poison = 0x55};
    const bit_run run = {.n_replays = 1};
    for (uint32_t r = 0; r < c->n_rows; r++) {
        bit_placement *p = bit_place(c, &r, 1, &plain, context, text);
        bit_results *one = p ? bit_execute_read(p, context, &run, text) : NULL;
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

static int is_wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return 1;
    return argc == 1;
}

static void check_op(const struct bit_op *op, dsr_context *exact, dsr_context *row)
{
    const uint32_t failed_before = n_failed, passed_before = n_passed;
    for (uint32_t shape = 0; shape < bit_n_shapes(op); shape++)
        for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
            bit_case *c = bit_case_new(op, shape, seed);
            bit_results *expected = bit_reference(c);
            check_device_exact(c, expected, exact);
            check_row_exact(c, row);
            bit_results_free(expected);
            bit_case_free(c);
        }
    printf("%-18s %4u runs equal, %u not\n", bit_op_name(op), n_passed - passed_before, n_failed - failed_before);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
    dsr_context *exact = NULL, *row = NULL;
    desc.device = DSR_DEVICE_CUDA;
    if (dsr_context_create(&desc, &exact) != DSR_OK) {
        printf("skipped: %s\n", dsr_create_error_text());
        return 77;
    }
    desc.exactness = DSR_EXACT_ROW;
    if (dsr_context_create(&desc, &row) != DSR_OK) {
        printf("FAIL: %s\n", dsr_create_error_text());
        return 1;
    }
    for (uint32_t i = 0; i < bit_n_ops(); i++)
        if (is_wanted(bit_op_name(bit_op_at(i)), argc, argv))
            check_op(bit_op_at(i), exact, row);
    dsr_context_destroy(row);
    dsr_context_destroy(exact);
    printf("%u passed, %u failed\n", n_passed, n_failed);
    return n_failed != 0;
}
