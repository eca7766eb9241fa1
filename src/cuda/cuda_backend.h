/* Insides of the CUDA back end: its device and per-encoder state. */
#ifndef DSRI_CUDA_BACKEND_H
#define DSRI_CUDA_BACKEND_H

#include "core/context_internal.h"
#include "cuda/cuda_driver.h"
#include "cuda/cuda_kernel.h"

enum { DSRI_CUDA_MAX_KERNELS = 64, DSRI_CUDA_MIN_COMPUTE = 80 };
#define DSRI_NO_NODE UINT32_MAX

typedef struct dsri_cuda_entry {
    const dsri_cuda_kernel *kernel;
    CUfunction functions[DSRI_MAX_LAUNCHES];
    const char *names[DSRI_MAX_LAUNCHES];
    uint8_t may_begin_early[DSRI_MAX_LAUNCHES]; /* before the launches that it depends on are done: it waits itself */
} dsri_cuda_entry;

/* A kernel to run: a launch of a command, or a bundle of commands with one launch each. A command's follower, if there
 * is one, comes after it in members. */
typedef struct dsri_cuda_node {
    CUfunction function;
    uint32_t first_member; /* the command, or commands, from here on in members */
    uint32_t n_members;
    uint32_t is_bundle;
    uint32_t launch;
    uint32_t first_dependency; /* numbers of earlier nodes, from here on in dependencies */
    uint32_t n_dependencies;
} dsri_cuda_node;

/* The nodes of an encoder's commands, in an order to run them in. */
typedef struct dsri_cuda_plan {
    dsri_cuda_node *nodes;
    uint32_t *dependencies;
    const dsri_command **members;
    uint32_t *last_nodes; /* of each command, by its index; DSRI_NO_NODE: none yet */
    uint32_t n_nodes, n_dependencies, n_members;
    uint32_t nodes_capacity, dependencies_capacity, members_capacity, last_nodes_capacity;
} dsri_cuda_plan;

typedef struct dsri_cuda_device dsri_cuda_device;

typedef struct dsri_cuda_encoder {
    dsri_cuda_device *device;
    struct dsri_cuda_encoder *next;
    CUstream own_stream;
    CUstream stream; /* own_stream, or the caller's */
    CUevent done;    /* in a caller's stream, recorded after each submit */
    int in_flight;

    CUgraph graph;
    CUgraphExec executable; /* null: none yet */
    int is_current;         /* the executable has the arguments of all present commands */
    dsri_cuda_plan plan;    /* of the present commands */
    dsri_cuda_plan built;   /* of the graph; its members may be gone */
    CUgraphNode *handles;   /* of the graph's nodes */
    uint32_t handles_capacity;
    CUgraphNode *dependency_handles; /* of one node, as long as plan.dependencies */
    uint32_t dependency_handles_capacity;
    dsri_bundle bundle; /* arguments of the node at work */

    CUdeviceptr zeroed; /* memory that commands find and leave zero */
    uint64_t zeroed_capacity;
    uint64_t zeroed_used;
} dsri_cuda_encoder;

struct dsri_cuda_device {
    dsr_context *context;
    dsri_cuda_driver driver;
    CUdevice ordinal;
    CUcontext current; /* made current inside every call */
    int is_primary;    /* retained by us, not the caller's */
    CUmodule module;
    CUstream stream;       /* of memory calls */
    uint32_t compute;      /* such as 90 */
    uint32_t shared_bytes; /* that a block can ask for */
    int is_lost;
    dsri_cuda_encoder *encoders;
    CUfunction bundle; /* runs bundles */
    uint8_t bundle_may_begin_early;
    uint32_t n_entries;
    dsri_cuda_entry entries[DSRI_CUDA_MAX_KERNELS]; /* in the order of dsri_cuda_kernel_at() */
};

/* DSR_OK, or the status and text of a driver error in `call`. */
dsr_status dsri_cuda_check(dsri_cuda_device *device, CUresult result, const char *call);
/* Make the device's context current, and put back what was. */
dsr_status dsri_cuda_enter(dsri_cuda_device *device);
void dsri_cuda_leave(dsri_cuda_device *device);

/* Run an encoder's commands: as a graph, or one by one into a stream that is being captured. */
dsr_status dsri_cuda_run(dsri_cuda_encoder *encoder, const dsri_wave *waves, uint32_t n_waves);
void dsri_cuda_release_graph(dsri_cuda_encoder *encoder);
/* Frees the memory that running took. */
void dsri_cuda_release_plans(dsri_cuda_encoder *encoder);

#endif
