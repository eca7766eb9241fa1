/* The shapes that `dsrows bench` times, read from text files.
 *
 * A line is an op and its parameters, name=value; '#' starts a comment:
 *   indexer    rows= context= [heads=64] [top_k=512] [pattern=random] [cache]   pattern, of the scores: or rising,
 *                                                                               falling, equal
 *   two-pass   rows= width= [heads=64] [cache]
 *   flash      rows= width= [heads=64] [cache]
 *   compressor rows= ratio= dim=
 *   projection rows= inputs= outputs=
 *   core       rows= context= [heads=64] [top_k=512]   compressors, indexer and attention of a ratio-4 layer
 * cache: format=bf16, fp4 (indexer, with queries on the FP4 grid) or fp8 (attention), and page=16, 32, 64, 128 or 256
 * for pages in random order; a pattern is in plain BF16. key_span=N, up to 30, for format=fp4: the scales of each key's
 * four blocks span N binades, in wide=P % of the keys (100), and are equal in the others; query_span=N does the same
 * for the blocks of each head of the queries, which are equal with key_span alone. */
#ifndef DSROWS_BENCH_SHAPE_H
#define DSROWS_BENCH_SHAPE_H

#include "session.h"

enum { BENCH_CORE_INDEX_HEADS = 64 }; /* of the indexer of op core */
enum { BENCH_MAX_SPAN = 30 };

typedef enum bench_op {
    BENCH_INDEXER,
    BENCH_TWO_PASS,
    BENCH_FLASH,
    BENCH_COMPRESSOR,
    BENCH_PROJECTION,
    BENCH_CORE,
    BENCH_N_OPS
} bench_op;

typedef enum bench_pattern { BENCH_RANDOM, BENCH_RISING, BENCH_FALLING, BENCH_EQUAL, BENCH_N_PATTERNS } bench_pattern;

typedef struct bench_shape {
    bench_op op;
    char name[96];    /* the line, with blanks made single */
    const char *file; /* the name that bench_read_shapes got */
    size_t line;
    uint32_t rows, context, heads, top_k, width, ratio, dim, inputs, outputs;
    uint32_t page;     /* 0: in one piece */
    uint32_t key_span; /* 0: not given */
    uint32_t wide;     /* percent of the keys that have it; 0: all */
    uint32_t query_span;
    bench_pattern pattern;
    dsr_cache_format format;
} bench_shape;

/* Reads all lines of a file; *shapes is to be freed. The context is asked whether the library takes a shape. CLI_DONE,
 * or CLI_BAD_INPUT after a message with file and line. */
int bench_read_shapes(const cli_command *command, dsr_context *context, const char *path, bench_shape **shapes,
                      size_t *n_shapes);

/* The format of a name, for caches of the op; 0 for one that it has not. */
int bench_parse_format(bench_op op, const char *name, dsr_cache_format *format);

/* Multiply-adds times 2, and bytes read from operands once, of all rows of a shape. */
double bench_flops(const bench_shape *shape);
double bench_bytes(const bench_shape *shape);

#endif
