/* Inside of the bit cases: what an op provides, and how it puts operands into a placement. */
#ifndef TEST_BIT_CASE_OPS_H
#define TEST_BIT_CASE_OPS_H

#include "bit_cases.h"

#include "guarded_memory.h"

enum { BIT_MAX_SHAPES = 12, BIT_MAX_SEGMENTS = 3 * BIT_MAX_ROWS + 8, BIT_MAX_PIECES = 1024 };

typedef struct bit_op {
    const char *name;
    uint32_t n_shapes;
    const char *shapes[BIT_MAX_SHAPES];
    /* Fill scalars, shared inputs and rows from (shape, seed). */
    void (*generate)(bit_case *c);
    void (*reference)(const bit_case *c, const bit_row *row, bit_array outputs[BIT_ROW_OUTPUTS]);
    void (*place)(bit_placement *p);
    /* Encode the placed rows; views come from bit_view(). */
    dsr_status (*encode)(const bit_placement *p, dsr_encoder *encoder);
    /* How much workspace that needs; null for ops that take none. */
    dsr_status (*workspace)(const bit_placement *p, dsr_context *context, uint64_t *n_bytes);
} bit_op;

extern const bit_op bit_op_sparse_attention, bit_op_flash_attention, bit_op_indexer, bit_op_compressor, bit_op_gather,
    bit_op_copy, bit_op_rope, bit_op_fake_quant, bit_op_rms_norm, bit_op_projection, bit_op_append, bit_op_convert;

typedef enum bit_segment_kind {
    BIT_SEGMENT_INPUT,     /* read-only while commands run */
    BIT_SEGMENT_OUTPUT,    /* checked to the last byte of its field */
    BIT_SEGMENT_WORKSPACE, /* its own bytes may hold anything after, the field around it may not */
} bit_segment_kind;

typedef struct bit_segment {
    guarded_segment guarded;
    bit_segment_kind kind;
    dsr_dtype dtype;
    const void *source;  /* data of the array it was made from, to share operands */
    uint64_t row_stride; /* of a shared operand */
    uint8_t *initial;    /* image of the field before a run; null for inputs */
    uint8_t *expected;   /* image of the field after a run; null for inputs */
    dsr_buffer *buffer;  /* on the context of the current run */
} bit_segment;

/* Elements [first, first + n) of output `output` of a row lie in a segment from element `at`. */
typedef struct bit_piece {
    uint32_t segment, row, output;
    size_t at, first, n;
} bit_piece;

/* Where a placed row lies; an op uses what it needs. */
typedef struct bit_slot {
    uint32_t segments[4];
    uint64_t query_row, row_stride, index_offset, index_stride, output_offset, output_stride, scores_offset, output_row;
} bit_slot;

struct bit_placement {
    const bit_case *c;
    bit_layout layout;
    dsr_context *context; /* while the placement is made */
    random_stream random;
    uint32_t n;
    uint32_t order[BIT_MAX_ROWS];
    bit_slot slots[BIT_MAX_ROWS];
    guarded_memory memory;
    uint32_t n_segments;
    bit_segment segments[BIT_MAX_SEGMENTS];
    uint32_t n_pieces;
    bit_piece pieces[BIT_MAX_PIECES];
    uint32_t operands[8]; /* segments of the operands that rows share, by the op's own numbering */
    uint32_t workspace;
    int has_workspace, has_scores, in_place;
};

static inline const bit_row *bit_placed_row(const bit_placement *p, uint32_t slot)
{
    return &p->c->rows[p->order[slot]];
}

/* A segment of n elements, all poison. */
uint32_t bit_add_segment(bit_placement *p, bit_segment_kind kind, dsr_dtype dtype, size_t n);
/* A segment of U8 for a packed cache: at a multiple of 16, its size rounded up to one. */
uint32_t bit_add_packed(bit_placement *p, bit_segment_kind kind, size_t n_bytes);
/* An input segment with the array's elements as they are. */
uint32_t bit_add_input(bit_placement *p, const bit_array *array);
/* An input segment with rows of row_elements at a stride that is drawn and stored; the segment already made from the
 * same data if there is one. */
uint32_t bit_add_rows(bit_placement *p, const bit_array *array, size_t row_elements, uint64_t *row_stride);
/* Put elements [first, first + n) of array into a segment from element `at`. */
void bit_put(bit_placement *p, uint32_t segment, size_t at, const bit_array *array, size_t first, size_t n);
void bit_add_piece(bit_placement *p, uint32_t segment, size_t at, uint32_t slot, uint32_t output, size_t first,
                   size_t n);
/* Draw places for blocks of lengths[0..n) rows in random order with gaps (in order, without, in the plain layout);
 * returns the length of the whole. */
uint64_t bit_draw_places(bit_placement *p, const uint64_t *lengths, uint64_t *places);
/* `least` in the plain layout, else sometimes more. */
uint64_t bit_draw_stride(bit_placement *p, uint64_t least);

dsr_view bit_view(const bit_placement *p, uint32_t segment);
/* The null view if there is no workspace. */
dsr_view bit_workspace_view(const bit_placement *p);

#endif
