/* Status codes. Numbers are pinned: they never change meaning, new ones are added at the end of their group of ten. */
#ifndef DSROWS_STATUS_H
#define DSROWS_STATUS_H

#include <dsrows/export.h>

DSR_BEGIN_DECLS

typedef enum dsr_status {
    DSR_OK = 0,
    DSR_ERR_INTERNAL = 1,

    /* Arguments. */
    DSR_ERR_NULL = 10,          /* a required pointer or view is null */
    DSR_ERR_STRUCT_SIZE = 11,   /* struct_size is not one this library knows */
    DSR_ERR_ENUM = 12,          /* an enum value is out of range */
    DSR_ERR_ROW_COUNT = 13,     /* rows outside 1..64 */
    DSR_ERR_VALUE = 14,         /* a scalar is out of its range: scale, epsilon, offset, frequency, zero length */
    DSR_ERR_POSITION = 15,      /* a token position that the op cannot take */
    DSR_ERR_DUPLICATE_ROW = 16, /* two rows name one query row, or one sequence twice */
    DSR_ERR_NAME = 17,          /* a kernel or tensor name is unknown, empty or taken */

    /* Shape and layout. */
    DSR_ERR_DTYPE = 20,     /* a view has another dtype than needed */
    DSR_ERR_SIZE = 21,      /* a view holds fewer bytes than needed */
    DSR_ERR_OVERFLOW = 22,  /* a product or sum of sizes does not fit */
    DSR_ERR_OVERLAP = 23,   /* writable ranges overlap each other or an operand */
    DSR_ERR_ALIGNMENT = 24, /* an address is not a multiple of its element size */
    DSR_ERR_STRIDE = 25,    /* a row stride is smaller than the row */
    DSR_ERR_RANGE = 26,     /* a view reaches past its buffer */
    DSR_ERR_KV_LEN = 27,    /* kv_len is shorter than the entries the position can see */

    /* Not supported. */
    DSR_ERR_UNSUPPORTED_SHAPE = 30,  /* head count, dimension, ratio or k outside the supported set */
    DSR_ERR_UNSUPPORTED_ISA = 31,    /* a forced instruction set is not in this build or not on this machine */
    DSR_ERR_UNSUPPORTED_DEVICE = 32, /* the back end is not in this build or no such device here */
    DSR_ERR_UNSUPPORTED_KERNEL = 33, /* no kernel of the wanted exactness for this op here */

    /* Resources. */
    DSR_ERR_OUT_OF_MEMORY = 40,
    DSR_ERR_THREAD = 41, /* a thread could not be started */

    /* Device and driver. */
    DSR_ERR_DEVICE = 50,      /* the driver reported an error; the context's last error names it */
    DSR_ERR_DEVICE_LOST = 51, /* a sticky error: every later call on this device fails */

    /* State. */
    DSR_ERR_STATE = 60,            /* the object is not in a state that allows the call */
    DSR_ERR_FORKED = 61,           /* the context was made before a fork and is used in the child */
    DSR_ERR_CONTEXT_MISMATCH = 62, /* objects of two contexts in one call */
    DSR_ERR_FULL = 63,             /* a sequence has no room for the token */

    /* Data from outside. */
    DSR_ERR_IO = 70,
    DSR_ERR_FORMAT = 71, /* not the expected file format, truncated or damaged */
    DSR_ERR_MISSING_TENSOR = 72
} dsr_status;

/* Name of a status, such as "DSR_ERR_SIZE"; "DSR_ERR_?" for a number this library does not know. Static storage. */
DSR_API const char *dsr_status_name(dsr_status status);
/* One sentence for people. Static storage. */
DSR_API const char *dsr_status_text(dsr_status status);

DSR_END_DECLS
#endif
