/* A driver library of our own that runs nothing: memory is host memory, kernels are counted. For testing the loader,
 * launch arguments and error paths on machines without a device. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdint.h>

typedef struct fake_cuda_state {
    uint32_t n_calls;        /* driver calls since the last reset, all kinds */
    uint32_t fail_at;        /* the call of this number fails (1 is the first); 0: none */
    int fail_with;           /* a CUresult */
    uint32_t n_launches;     /* kernels run, directly or as nodes of launched graphs */
    uint32_t n_instantiated; /* graphs */
    uint32_t n_updates;      /* of node arguments */
    int is_capturing;        /* what cuStreamIsCapturing answers */
    int push_depth;          /* contexts pushed and not popped */
    int n_allocations;       /* device allocations not freed */
    uint32_t last_grid[3];
    uint32_t last_n_dependencies;
    uint8_t last_plan[64]; /* the first bytes of the last launch's first argument */
} fake_cuda_state;

/* Exported by the library under this name. */
typedef fake_cuda_state *fake_cuda_state_fn(void);

#endif
