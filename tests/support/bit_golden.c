#include "bit_golden.h"

#include <inttypes.h>
#include <string.h>

enum { LINE_BYTES = 256, SEED = 1 };

uint32_t bit_golden_n_lines(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < bit_n_ops(); i++) {
        n += bit_n_shapes(bit_op_at(i));
    }
    return n;
}

bit_golden_line bit_golden_case(uint32_t index)
{
    bit_golden_line line = {NULL, 0, SEED, 0};
    uint32_t shape = index;
    for (uint32_t i = 0; i < bit_n_ops() && !line.op; i++) {
        const uint32_t n = bit_n_shapes(bit_op_at(i));
        if (shape < n) {
            line.op = bit_op_at(i);
            line.shape = shape;
        } else {
            shape -= n;
        }
    }
    return line;
}

static void print_key(char *key, size_t n_bytes, const bit_golden_line *line)
{
    snprintf(key, n_bytes, "%s %s %" PRIu64, bit_op_name(line->op), bit_shape_name(line->op, line->shape), line->seed);
}

/* "KEY HASH\n" for the expected key. */
static int parse(const char *text, const char *key, uint64_t *hash)
{
    const size_t n = strlen(key);
    char end;
    return strncmp(text, key, n) == 0 && sscanf(text + n, " %16" SCNx64 "%c", hash, &end) == 2 && end == '\n' ? 0 : -1;
}

int bit_golden_read(const char *path, bit_golden_line *lines, char text[BIT_TEXT_BYTES])
{
    char line[LINE_BYTES], key[LINE_BYTES];
    FILE *file = fopen(path, "r");
    if (!file) {
        snprintf(text, BIT_TEXT_BYTES, "cannot open %s", path);
        return -1;
    }
    int result = 0;
    for (uint32_t i = 0; i < bit_golden_n_lines() && result == 0; i++) {
        lines[i] = bit_golden_case(i);
        print_key(key, sizeof key, &lines[i]);
        if (!fgets(line, sizeof line, file) || parse(line, key, &lines[i].hash) != 0) {
            snprintf(text, BIT_TEXT_BYTES, "%s: line %u is not \"%s HASH\"", path, i + 1, key);
            result = -1;
        }
    }
    if (result == 0 && fgets(line, sizeof line, file)) {
        snprintf(text, BIT_TEXT_BYTES, "%s: more than %u lines", path, bit_golden_n_lines());
        result = -1;
    }
    fclose(file);
    return result;
}

int bit_golden_write(const char *path, char text[BIT_TEXT_BYTES])
{
    FILE *file = fopen(path, "w");
    int failed = !file;
    for (uint32_t i = 0; i < bit_golden_n_lines() && !failed; i++) {
        const bit_golden_line line = bit_golden_case(i);
        char key[LINE_BYTES];
        bit_case *c = bit_case_new(line.op, line.shape, line.seed);
        bit_results *results = bit_reference(c);
        print_key(key, sizeof key, &line);
        failed = fprintf(file, "%s %016" PRIx64 "\n", key, bit_results_hash(results)) < 0;
        bit_results_free(results);
        bit_case_free(c);
    }
    if (file) {
        failed |= fclose(file) != 0;
    }
    if (failed) {
        snprintf(text, BIT_TEXT_BYTES, "cannot write %s", path);
    }
    return failed ? -1 : 0;
}

int bit_golden_run(const bit_golden_line *line, dsr_context *context, uint64_t *hash, char text[BIT_TEXT_BYTES])
{
    const bit_layout layout = {0, 0, 0xff};
    const bit_run run = {FP_MODE_DEFAULT, 0, 0};
    uint32_t order[BIT_MAX_ROWS];
    bit_results *results = NULL;
    bit_case *c = bit_case_new(line->op, line->shape, line->seed);

    for (uint32_t r = 0; r < c->n_rows; r++) {
        order[r] = r;
    }
    bit_placement *placement = bit_place(c, order, c->n_rows, &layout, context, text);
    if (placement) {
        results = bit_execute_read(placement, context, &run, text);
        bit_placement_free(placement);
    }
    const int result = results ? 0 : -1;
    if (results) {
        *hash = bit_results_hash(results);
    }
    bit_results_free(results);
    bit_case_free(c);
    return result;
}
