/* All memory of the library's own objects comes from here, that is, from the context's allocator. */
#ifndef DSRI_ALLOC_H
#define DSRI_ALLOC_H

#include <dsrows/context.h>

/* The allocator of a context made without one: the C library's. */
dsr_allocator dsri_default_allocator(void);

/* size_bytes (not 0) aligned to a power of two up to 4096, contents undefined; null if there is none. */
void *dsri_allocate(const dsr_allocator *allocator, size_t size_bytes, size_t alignment);
/* Takes null. size_bytes must be that of the allocation. */
void dsri_release(const dsr_allocator *allocator, void *memory, size_t size_bytes);

#endif
