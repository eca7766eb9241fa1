/* The step plan: from a position and a layer kind, what one decode step of one request reads and writes. Pure functions
 * of their arguments; they commit nothing. */
#ifndef DSROWS_STEP_PLAN_H
#define DSROWS_STEP_PLAN_H

#include <dsrows/export.h>
#include <dsrows/status.h>
#include <stdint.h>

DSR_BEGIN_DECLS

/* What a layer attends to, besides its window. The numbers are the compress ratios of the published configurations. */
typedef enum dsr_layer_kind {
    DSR_LAYER_WINDOW = 0,     /* the window alone */
    DSR_LAYER_RATIO_4 = 4,    /* and the indexer's top-k of the ratio-4 entries */
    DSR_LAYER_RATIO_128 = 128 /* and all ratio-128 entries */
} dsr_layer_kind;

enum { DSR_WINDOW = 128 };

typedef struct dsr_step_plan {
    uint32_t struct_size;        /* set by the caller: sizeof(dsr_step_plan) */
    uint32_t ring_slot;          /* the slot this token's KV row goes to: position mod capacity */
    uint32_t window_capacity;    /* min(context, 128); compressed entry g is cache row window_capacity + g */
    uint32_t window_count;       /* window rows this token sees, itself included: min(position + 1, capacity) */
    uint32_t compressed_count;   /* complete groups after this token: (position + 1) / ratio; 0 for window layers */
    uint32_t selected_count;     /* of those, how many are attended: min(count, top_k) for ratio 4, all for ratio 128 */
    uint32_t width;              /* window_count + selected_count */
    uint32_t emits;              /* 1 if this token completes a group */
    uint32_t emit_slot;          /* the group it completes: position / ratio */
    uint32_t emit_cache_row;     /* window_capacity + emit_slot */
    uint32_t emit_rope_position; /* first token of the group: position + 1 - ratio */
} dsr_step_plan;

/* Plan the step of the token at `position` in a request of at most `context` tokens (1..1048576). top_k matters for
 * ratio 4 only. Errors: DSR_ERR_NULL, DSR_ERR_STRUCT_SIZE, DSR_ERR_ENUM, DSR_ERR_VALUE (context, top_k 0),
 * DSR_ERR_POSITION (position >= context). Fields that do not apply are 0. */
DSR_API dsr_status dsr_plan_step(dsr_layer_kind kind, uint32_t position, uint32_t context, uint32_t top_k,
                                 dsr_step_plan *plan);
/* Write the window's ring slots, oldest to newest, to slots[0..window_count). capacity is 1..128. */
DSR_API void dsr_window_slots(uint32_t position, uint32_t capacity, int32_t *slots);

DSR_END_DECLS
#endif
