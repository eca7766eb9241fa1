/* Several small commands in one launch: those of a wave whose kernels say so. Each has the blocks of its own launch,
 * which follow one another in the bundle's grid, and reads its own plan there. A compressor's block appends the row's
 * entries, too, if an append follows it. */
#ifndef DSRI_CUDA_BUNDLE_H
#define DSRI_CUDA_BUNDLE_H

#include <stdint.h>

enum { DSRI_BUNDLE_ITEMS = 8, DSRI_BUNDLE_BYTES = 24 * 1024, DSRI_BUNDLE_THREADS = 512 };

typedef enum dsri_bundle_code {
    DSRI_BUNDLE_NONE = 0, /* a kernel that has launches of its own only */
    DSRI_BUNDLE_COMPRESSOR,
    DSRI_BUNDLE_COPY,
    DSRI_BUNDLE_ROPE,
    DSRI_BUNDLE_APPEND
} dsri_bundle_code;

typedef struct dsri_bundle_item {
    uint32_t code;
    uint32_t first_block;
    uint32_t grid[3];
    uint32_t first_word;    /* of its plan, in units of 8 bytes */
    uint32_t follower_word; /* of its follower's plan; 0: it has none */
} dsri_bundle_item;

/* What the bundle's kernel gets in place of a plan. */
typedef struct dsri_bundle {
    uint32_t n_items;
    dsri_bundle_item items[DSRI_BUNDLE_ITEMS];
    uint64_t plans[DSRI_BUNDLE_BYTES / 8];
} dsri_bundle;

#endif
