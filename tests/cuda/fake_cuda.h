/* A driver library of our own that runs nothing: memory is host memory, kernels are counted. For testing the loader,
 * launch arguments and error paths on machines without a device. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdint.h>

/* CUDA_KERNEL_NODE_PARAMS_v2 */
typedef struct node_params {
    void *function;
    unsigned grid[3], block[3], shared_bytes;
    void **arguments, **extra;
    void *kernel, *context;
} node_params;

typedef struct fake_cuda_state {
    uint32_t n_calls;        /* driver calls since the last reset, all kinds */
    uint32_t fail_at;        /* the call of this number fails (1 is the first); 0: none */
    int fail_with;           /* a CUresult */
    uint32_t n_launches;     /* kernels run, directly or as nodes of launched graphs */
    uint32_t n_instantiated; /* graphs */
    uint32_t n_updates;      /* of node arguments */
    uint32_t n_waits;        /* of the CPU, for streams and events */
    int is_capturing;        /* what cuStreamIsCapturing answers */
    int push_depth;          /* contexts pushed and not popped */
    const void *last_pushed; /* context */
    int n_retained;          /* primary contexts retained and not released */
    int n_devices;           /* 0: 1 */
    int compute;             /* compute capability of the devices, such as 80; 0: 90 */
    int context_device;      /* what cuCtxGetDevice answers */
    const char *missing;     /* entries with this in their names are in no module; null: none */
    int n_allocations;       /* device allocations not freed */
    uint32_t last_grid[3];
    uint32_t last_block[3];
    uint32_t last_shared_bytes;
    const void *last_stream; /* of direct launches */
    uint32_t last_n_dependencies;
    uint32_t n_early_edges;    /* of graphs: the later kernel may begin before the earlier one is done */
    uint32_t n_early_launches; /* direct ones that may begin before the launch in front of them is done */
    int code_compute;          /* what kernels were compiled for; 0: compute */
    uint8_t last_plan[64];     /* the first bytes of the last launch's first argument */

    /* Kernels that are not the library's (their names do not begin with dsr_). */
    uint32_t n_params; /* how many parameters they have, and the size of each */
    uint32_t params_bytes[40];
    uint32_t max_threads;       /* per block; 0: 1,024 */
    uint32_t max_dynamic_bytes; /* as set by cuFuncSetAttribute */
    const char *module_log;     /* loading a module fails with this text; null: it works */
    uint8_t last_image[64];     /* the first bytes of the last module of a caller */
    uint8_t last_arguments[40][64];
} fake_cuda_state;

/* Exported by the library under this name. */
typedef fake_cuda_state *fake_cuda_state_fn(void);

#endif
