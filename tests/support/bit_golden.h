/* The golden hashes: which cases they cover, and the file that holds them, one line per case: "OP SHAPE SEED HASH". */
#ifndef TEST_BIT_GOLDEN_H
#define TEST_BIT_GOLDEN_H

#include "bit_cases.h"

#include <stdio.h>

typedef struct bit_golden_line {
    const struct bit_op *op;
    uint32_t shape;
    uint64_t seed;
    uint64_t hash;
} bit_golden_line;

/* Every shape of every op. */
uint32_t bit_golden_n_lines(void);
/* The case of a line; hash 0. */
bit_golden_line bit_golden_case(uint32_t index);

/* Read the hashes of all cases, in the order of bit_golden_case(). A missing, foreign or ill-formed line fails.
 * lines: bit_golden_n_lines() of them. 0 on success. */
int bit_golden_read(const char *path, bit_golden_line *lines, char text[BIT_TEXT_BYTES]);
/* Write the hashes the reference gives. 0 on success. */
int bit_golden_write(const char *path, char text[BIT_TEXT_BYTES]);

/* Run a line's case on a context, all rows jointly, and hash what it gives. 0 on success. */
int bit_golden_run(const bit_golden_line *line, dsr_context *context, uint64_t *hash, char text[BIT_TEXT_BYTES]);

#endif
