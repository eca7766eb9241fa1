/* Bit cases: generated operands of an op for up to 64 rows, the results the plain C reference gives, and the public API
 * run on the same operands in any layout, order and company of rows, compared byte by byte.
 *
 * A case is a pure function of (op, shape, seed). It holds values only; where they lie in memory is a layout, drawn
 * from a seed of its own. Uses the public API and the reference, nothing else of the library. */
#ifndef TEST_BIT_CASES_H
#define TEST_BIT_CASES_H

#include "caller_fp_mode.h"
#include "patterns.h"

#include <dsrows/dsrows.h>

#include <stddef.h>
#include <stdint.h>

enum { BIT_MAX_ROWS = 64, BIT_ROW_INPUTS = 4, BIT_ROW_OUTPUTS = 3, BIT_SHARED_INPUTS = 2, BIT_TEXT_BYTES = 512 };

typedef struct bit_array {
    dsr_dtype dtype;
    size_t n; /* elements */
    void *data;
    int borrowed; /* 1: data belongs to another array; two rows with the same data share one operand in memory */
} bit_array;

bit_array bit_array_new(dsr_dtype dtype, size_t n); /* zeros; ends the process without memory */
bit_array bit_array_copy(const bit_array *array);
bit_array bit_array_borrow(const bit_array *array);
void bit_array_free(bit_array *array);
size_t bit_array_bytes(const bit_array *array);
uint16_t *bit_bf16(const bit_array *array);
float *bit_f32(const bit_array *array);
int32_t *bit_i32(const bit_array *array);

/* One row: its operands and the scalars of its descriptor. An op uses those that it has.
 *
 *   op          inputs                                                      outputs
 *   attention   q, kv as BF16, indices [n_queries, width], kv pages         output
 *   indexer     q, keys as BF16, weights, key pages                         lists, scores [n_queries, kv_len]
 *   compressor  kv, score, kv_state, score_state                            output, kv_state, score_state
 *   gather      source                                                      row
 *   copy        source [n_copies, row_elements], destination before         destination after
 *   rope        input [n_tokens, n_heads, head_dim]                         output
 *   fake quant  input [dim]                                                 output
 *   rms norm    input [dim]                                                 output
 *   projection  input [n_groups, n_inputs]                                  output
 *   append      tokens [n_tokens, dim], pages before                        pages after
 *   convert     pages of the source, pages of the destination before        its pages after
 */
typedef struct bit_row {
    bit_array inputs[BIT_ROW_INPUTS];
    uint64_t kv_len;
    uint64_t width;
    uint64_t destination_row;
    uint64_t ring_rows;
    uint32_t n_queries;
    uint32_t start_pos;
    uint32_t ratio;
    uint32_t n_tokens;
    uint32_t position_step;
    uint32_t n_copies;
    int32_t offset;
    dsr_cache_format cache_format;
    uint32_t page_size; /* 0: in one piece */
    int32_t bad_page;   /* of the row's pages, or -1 */
} bit_row;

struct bit_op;

typedef struct bit_case {
    const struct bit_op *op;
    uint32_t shape;
    uint64_t seed;
    uint32_t n_rows;
    /* Scalars of the descriptor; an op uses those that it has. */
    uint32_t n_heads, top_k, ratio, dim, head_dim, rope_dim, row_elements;
    int inverse;
    dsr_quant_kind quant_kind;
    uint32_t n_groups, n_inputs, n_outputs;
    dsr_weight_format weight_format;
    dsr_dtype dtype;        /* of a copy, of the input of a rope or norm */
    dsr_dtype output_dtype; /* of a norm or projection */
    float scale, epsilon;
    float frequencies[64];
    bit_array shared[BIT_SHARED_INPUTS]; /* sinks; ape, norm; weight; weight, scales */
    bit_row rows[BIT_MAX_ROWS];
} bit_case;

typedef struct bit_results {
    uint32_t n_rows;
    bit_array outputs[BIT_MAX_ROWS][BIT_ROW_OUTPUTS];
} bit_results;

uint32_t bit_n_ops(void);
const struct bit_op *bit_op_at(uint32_t index);
/* Null for an unknown name. Names are those of the CLI: "sparse-attention". */
const struct bit_op *bit_op_named(const char *name);
const char *bit_op_name(const struct bit_op *op);
uint32_t bit_n_shapes(const struct bit_op *op);
const char *bit_shape_name(const struct bit_op *op, uint32_t shape);

bit_case *bit_case_new(const struct bit_op *op, uint32_t shape, uint64_t seed);
void bit_case_free(bit_case *c);
/* What the reference gives for every row. */
bit_results *bit_reference(const bit_case *c);
void bit_results_free(bit_results *results);
/* 64-bit FNV-1a over all outputs in row order; what a line of tests/golden/bits.txt holds. */
uint64_t bit_results_hash(const bit_results *results);

/* Where operands lie. */
typedef struct bit_layout {
    uint64_t seed;  /* 0: tight, in row order; else strides, gaps, places of rows and in-place use are drawn from it */
    int misaligned; /* 1: every operand one element off 64-byte alignment; 0: ends at an unreadable page */
    uint8_t poison; /* what fills outputs, gaps and the field around every operand */
} bit_layout;

/* n rows of a case laid out in memory: rows[order[0..n)] in that order. */
typedef struct bit_placement bit_placement;

/* The context is asked for workspace sizes only. Null on failure, with the reason in text. */
bit_placement *bit_place(const bit_case *c, const uint32_t *order, uint32_t n, const bit_layout *layout,
                         dsr_context *context, char text[BIT_TEXT_BYTES]);
void bit_placement_free(bit_placement *placement);

typedef struct bit_run {
    caller_fp_mode fp_mode; /* of the thread that encodes and submits */
    uint32_t n_replays;     /* submit, then this many replays on restored operands */
    int scramble; /* 1: change every byte that no range of the command's capture covers, and make pages without
                     such a byte unreadable, before submit: catches accesses outside the declared ranges */
} bit_run;

/* Encode and run on a context; compare every byte of every operand field with what `expected` says it must hold.
 * 0 if all bits agree; otherwise text says where the first difference is, with both bit patterns. */
int bit_execute(bit_placement *placement, dsr_context *context, const bit_run *run, const bit_results *expected,
                char text[BIT_TEXT_BYTES]);
/* Run and read the results back; rows that are not placed have no outputs. Null on failure. */
bit_results *bit_execute_read(bit_placement *placement, dsr_context *context, const bit_run *run,
                              char text[BIT_TEXT_BYTES]);

/* bit_place, bit_execute and free in one. */
int bit_check(const bit_case *c, const bit_results *expected, const uint32_t *order, uint32_t n,
              const bit_layout *layout, dsr_context *context, const bit_run *run, char text[BIT_TEXT_BYTES]);

#endif
