/* The CUDA driver, loaded at run time: types and entry points of our own, so that no CUDA header or library is needed
 * to build or to start. */
#ifndef DSRI_CUDA_DRIVER_H
#define DSRI_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUkern_st *CUkernel;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;

/* CUDA_KERNEL_NODE_PARAMS_v2 of the driver's interface. */
typedef struct dsri_cuda_node_params {
    CUfunction function;
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    void **arguments;
    void **extra;
    CUkernel kernel;
    CUcontext context;
} dsri_cuda_node_params;

/* CUlaunchAttribute and CUlaunchConfig of the driver's interface. */
typedef struct dsri_cuda_launch_attribute {
    int id;
    int padding;
    union {
        int is_allowed;
        unsigned long long words[8];
    } value;
} dsri_cuda_launch_attribute;

typedef struct dsri_cuda_launch_config {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    CUstream stream;
    dsri_cuda_launch_attribute *attributes;
    unsigned n_attributes;
} dsri_cuda_launch_config;

/* CUgraphEdgeData of the driver's interface. */
typedef struct dsri_cuda_edge {
    uint8_t from_port, to_port, type, reserved[5];
} dsri_cuda_edge;

enum {
    DSRI_CU_SUCCESS = 0,
    DSRI_CU_INVALID_VALUE = 1,
    DSRI_CU_OUT_OF_MEMORY = 2,
    DSRI_CU_INVALID_IMAGE = 200,
    DSRI_CU_NO_BINARY_FOR_GPU = 209,
    DSRI_CU_INVALID_PTX = 218,
    DSRI_CU_UNSUPPORTED_PTX_VERSION = 222,
    DSRI_CU_NOT_FOUND = 500,
    DSRI_CU_STREAM_NON_BLOCKING = 1,
    DSRI_CU_EVENT_DISABLE_TIMING = 2,
    DSRI_CU_ATTRIBUTE_COMPUTE_MAJOR = 75,
    DSRI_CU_ATTRIBUTE_COMPUTE_MINOR = 76,
    DSRI_CU_ATTRIBUTE_SHARED_BYTES = 97, /* that a block can ask for */
    DSRI_CU_FUNCTION_MAX_THREADS = 0,
    DSRI_CU_FUNCTION_PTX_VERSION = 5,
    DSRI_CU_FUNCTION_MAX_DYNAMIC_SHARED = 8,
    DSRI_CU_FUNCTION_NON_PORTABLE_CLUSTER = 14,
    DSRI_CU_LAUNCH_PROGRAMMATIC_SERIALIZATION = 6,
    DSRI_CU_PORT_PROGRAMMATIC = 1,
    DSRI_CU_DEPENDENCY_PROGRAMMATIC = 1,
    DSRI_CU_JIT_ERROR_LOG = 5,
    DSRI_CU_JIT_ERROR_LOG_BYTES = 6
};

typedef struct dsri_cuda_driver {
    void *library;
#define SYMBOL(name, exported, arguments) CUresult(*name) arguments;
#define OPTIONAL                          SYMBOL
#include "cuda/cuda_symbols.inc"
#undef OPTIONAL
#undef SYMBOL
} dsri_cuda_driver;

enum { DSRI_CUDA_TEXT_BYTES = 160 };

/* Loads libcuda.so.1 (or the file that DSR_CUDA_DRIVER names) and initialises it. Returns 1, or 0 with the reason in
 * text; a later call tries again. */
int dsri_cuda_driver_load(dsri_cuda_driver *driver, char text[DSRI_CUDA_TEXT_BYTES]);
void dsri_cuda_driver_unload(dsri_cuda_driver *driver);
/* Sets the function pointer of n_bytes at `function` to a symbol of a loaded library: null, and 0 returned, if it has
 * none. */
int dsri_cuda_find_symbol(void *library, const char *name, void *function, size_t n_bytes);
/* Name of a driver error, such as "CUDA_ERROR_INVALID_VALUE". */
const char *dsri_cuda_error_name(const dsri_cuda_driver *driver, CUresult result);
/* Whether an error outlives the call: the context is lost for the rest of the process. */
int dsri_cuda_error_is_sticky(CUresult result);

#endif
