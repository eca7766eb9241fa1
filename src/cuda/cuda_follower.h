/* A follower: a command that waits for one other alone and works row by row on what that one writes, so that the blocks
 * of that one's kernel do it on the way: a launch less. */
#ifndef DSRI_CUDA_FOLLOWER_H
#define DSRI_CUDA_FOLLOWER_H

#include "core/backend.h"

/* What a kernel does on the way. */
typedef enum dsri_follower {
    DSRI_FOLLOWER_NONE = 0,
    DSRI_FOLLOWER_APPEND,  /* of a compressor's entries, one a row */
    DSRI_FOLLOWER_ROTATION /* of attention's outputs, in place or to other memory */
} dsri_follower;

/* The command of the next wave (null: there is none) that this command's kernel does in a context; null: it does none.
 */
const dsri_command *dsri_cuda_find_follower(dsr_exactness exactness, const dsri_command *command,
                                            const dsri_wave *next);

#endif
