/* Memory that grows in blocks and is forgotten all at once. Blocks are kept when it is emptied, so that repeating the
 * same sequence of requests allocates nothing. Pieces never move. */
#ifndef DSRI_ARENA_H
#define DSRI_ARENA_H

#include "core/alloc.h"

typedef struct dsri_arena_block dsri_arena_block;

typedef struct dsri_arena {
    const dsr_allocator *allocator;
    dsri_arena_block *first;
    dsri_arena_block *current; /* null: nothing is in use */
    size_t used_bytes;         /* of the current block */
} dsri_arena;

typedef struct dsri_arena_mark {
    dsri_arena_block *current;
    size_t used_bytes;
} dsri_arena_mark;

/* Behind every piece so many bytes may be read, whatever they hold: a driver copies kernel parameters of a fixed size,
 * and plans are kept only as far as they have rows. */
enum { DSRI_ARENA_MARGIN_BYTES = 9 * 1024 };

/* The allocator must outlive the arena. */
void dsri_arena_init(dsri_arena *arena, const dsr_allocator *allocator);
void dsri_arena_free(dsri_arena *arena);
/* size_bytes aligned to a power of two up to 64, contents undefined; null if there is no memory. */
void *dsri_arena_take(dsri_arena *arena, size_t size_bytes, size_t alignment);
dsri_arena_mark dsri_arena_get_mark(const dsri_arena *arena);
/* Forget everything taken since the mark; the zero mark forgets everything. */
void dsri_arena_rewind(dsri_arena *arena, dsri_arena_mark mark);

#endif
