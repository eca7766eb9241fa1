/* Memory that shows every stray access: segments that end at an unreadable page, in fields of poison.
 *
 * A segment lies in whole pages of its own; the page after them is unreadable, and so is the one before. The bytes of
 * those pages that are not the segment's hold the poison byte. */
#ifndef TEST_GUARDED_MEMORY_H
#define TEST_GUARDED_MEMORY_H

#include <stddef.h>
#include <stdint.h>

typedef struct guarded_memory {
    uint8_t *region;
    size_t region_bytes;
    size_t used_bytes;
    size_t page_bytes;
} guarded_memory;

typedef struct guarded_segment {
    uint8_t *memory; /* the segment's own bytes */
    size_t n_bytes;
    uint8_t *field; /* whole pages around it */
    size_t field_bytes;
} guarded_segment;

/* Reserve address space; 0 on success. The reservation costs no memory until segments are made. */
int guarded_open(guarded_memory *guarded, size_t reserve_bytes);
void guarded_close(guarded_memory *guarded);
/* A segment whose last byte is the last before the guard page if shift is 0; with shift, the first byte's address is
 * `shift` modulo 64, and up to 63 poison bytes lie between the end and the guard page. Null memory when out of space.
 */
guarded_segment guarded_allocate(guarded_memory *guarded, size_t n_bytes, size_t shift, uint8_t poison);

typedef enum guarded_access { GUARDED_NONE, GUARDED_READ, GUARDED_READ_WRITE } guarded_access;
/* Set what may be done with the pages of [begin, begin + n_bytes); both ends on page boundaries. */
void guarded_protect(uint8_t *begin, size_t n_bytes, guarded_access access);

#endif
