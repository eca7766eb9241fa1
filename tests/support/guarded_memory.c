#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "guarded_memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int guarded_open(guarded_memory *guarded, size_t reserve_bytes)
{
    void *region = mmap(NULL, reserve_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) {
        return -1;
    }
    guarded->region = region;
    guarded->region_bytes = reserve_bytes;
    guarded->used_bytes = 0;
    guarded->page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    return 0;
}

void guarded_close(guarded_memory *guarded)
{
    munmap(guarded->region, guarded->region_bytes);
    memset(guarded, 0, sizeof *guarded);
}

guarded_segment guarded_allocate(guarded_memory *guarded, size_t n_bytes, size_t shift, uint8_t poison)
{
    const size_t page = guarded->page_bytes;
    const size_t field_bytes = (n_bytes + 64 + page - 1) / page * page;
    guarded_segment segment = {NULL, n_bytes, NULL, field_bytes};

    if (guarded->region_bytes - guarded->used_bytes < field_bytes + 2 * page) {
        return segment;
    }
    segment.field = guarded->region + guarded->used_bytes + page;
    guarded->used_bytes += page + field_bytes;
    guarded_protect(segment.field, field_bytes, GUARDED_READ_WRITE);
    memset(segment.field, poison, field_bytes);
    segment.memory = segment.field + field_bytes - n_bytes;
    if (shift != 0) {
        segment.memory -= ((uintptr_t)segment.memory + 64 - shift) % 64;
    }
    return segment;
}

void guarded_protect(uint8_t *begin, size_t n_bytes, guarded_access access)
{
    const int protection = access == GUARDED_NONE   ? PROT_NONE
                           : access == GUARDED_READ ? PROT_READ
                                                    : PROT_READ | PROT_WRITE;
    if (mprotect(begin, n_bytes, protection) != 0) {
        abort(); /* a test harness that cannot guard must not go on */
    }
}
