#include "core/alloc.h"

#include <stdlib.h>

static void *allocate_from_libc(void *user, size_t size_bytes, size_t alignment)
{
    void *memory = NULL;
    (void)user;
    if (alignment < sizeof(void *))
        alignment = sizeof(void *);
    return posix_memalign(&memory, alignment, size_bytes) == 0 ? memory : NULL;
}

static void release_to_libc(void *user, void *memory, size_t size_bytes)
{
    (void)user;
    (void)size_bytes;
    free(memory);
}

dsr_allocator dsri_default_allocator(void)
{
    return (dsr_allocator){.allocate = allocate_from_libc, .release = release_to_libc, .user = NULL};
}

void *dsri_allocate(const dsr_allocator *allocator, size_t size_bytes, size_t alignment)
{
    return allocator->allocate(allocator->user, size_bytes, alignment);
}

void dsri_release(const dsr_allocator *allocator, void *memory, size_t size_bytes)
{
    if (memory)
        allocator->release(allocator->user, memory, size_bytes);
}
