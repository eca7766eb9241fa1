#include "core/arena.h"

#include <stdint.h>

enum { BLOCK_ALIGNMENT = 64, FIRST_BLOCK_BYTES = 32 * 1024 };

struct dsri_arena_block {
    dsri_arena_block *next;
    size_t size_bytes; /* header included, the margin behind it not */
};

/* Room for the header that keeps the first piece aligned. */
enum { HEADER_BYTES = BLOCK_ALIGNMENT };
_Static_assert(sizeof(dsri_arena_block) <= HEADER_BYTES, "the block header fits its room");

void dsri_arena_init(dsri_arena *arena, const dsr_allocator *allocator)
{
    *arena = (dsri_arena){.allocator = allocator};
}

void dsri_arena_free(dsri_arena *arena)
{
    dsri_arena_block *block = arena->first;
    while (block) {
        dsri_arena_block *next = block->next;
        dsri_release(arena->allocator, block, block->size_bytes + DSRI_ARENA_MARGIN_BYTES);
        block = next;
    }
    *arena = (dsri_arena){.allocator = arena->allocator};
}

/* Puts a new block of at least size_bytes behind the current one. */
static dsri_arena_block *insert_block(dsri_arena *arena, size_t size_bytes)
{
    dsri_arena_block *current = arena->current;
    size_t block_bytes = current ? current->size_bytes : FIRST_BLOCK_BYTES / 2;
    if (size_bytes > SIZE_MAX / 4 || block_bytes > SIZE_MAX / 4)
        return NULL;
    block_bytes *= 2;
    if (block_bytes < size_bytes + HEADER_BYTES)
        block_bytes = size_bytes + HEADER_BYTES;
    dsri_arena_block *block = dsri_allocate(arena->allocator, block_bytes + DSRI_ARENA_MARGIN_BYTES, BLOCK_ALIGNMENT);
    if (!block)
        return NULL;
    block->size_bytes = block_bytes;
    block->next = current ? current->next : arena->first;
    if (current)
        current->next = block;
    else
        arena->first = block;
    return block;
}

void *dsri_arena_take(dsri_arena *arena, size_t size_bytes, size_t alignment)
{
    if (arena->current) {
        const size_t begin = (arena->used_bytes + alignment - 1) & ~(alignment - 1);
        if (begin <= arena->current->size_bytes && size_bytes <= arena->current->size_bytes - begin) {
            arena->used_bytes = begin + size_bytes;
            return (unsigned char *)arena->current + begin;
        }
    }
    dsri_arena_block *block = arena->current ? arena->current->next : arena->first;
    if (!block || size_bytes > block->size_bytes - HEADER_BYTES)
        block = insert_block(arena, size_bytes);
    if (!block)
        return NULL;
    arena->current = block;
    arena->used_bytes = HEADER_BYTES + size_bytes;
    return (unsigned char *)block + HEADER_BYTES;
}

dsri_arena_mark dsri_arena_get_mark(const dsri_arena *arena)
{
    return (dsri_arena_mark){.current = arena->current, .used_bytes = arena->used_bytes};
}

void dsri_arena_rewind(dsri_arena *arena, dsri_arena_mark mark)
{
    arena->current = mark.current;
    arena->used_bytes = mark.used_bytes;
}
