/* What a CUDA kernel of ours is: up to 8 launches, each a grid worked out from the plan.
 *
 * Every entry has the signature  extern "C" __global__ void name(const __grid_constant__ PLAN plan, uint8_t *zeroed)
 * where PLAN is the op's plan of ops/op_plans.h, handed over by value: a launch needs no upload, and a captured graph's
 * nodes are updated by new arguments. zeroed is device memory of the encoder that holds zeros when a command starts;
 * the last launch of a command must leave zeros behind. As on the CPU, what a thread block computes may depend on its
 * row alone. A kernel that can do a follower (cuda_follower.h) of another op on the way says so. Attention's get its
 * plan as a third argument: one of no rows if there is none. */
#ifndef DSRI_CUDA_KERNEL_H
#define DSRI_CUDA_KERNEL_H

#include "core/backend.h"
#include "cuda/cuda_bundle.h"
#include "cuda/cuda_follower.h"

typedef struct dsri_cuda_grid {
    uint32_t x, y, z;
} dsri_cuda_grid;

typedef struct dsri_cuda_launch {
    const char *entry; /* name of the __global__ function, and of the kernel in listings */
    uint32_t block_x;
    uint32_t shared_bytes;                   /* dynamic shared memory, at most */
    uint32_t (*shared_of)(const void *plan); /* null: shared_bytes */
    uint32_t non_portable_cluster;           /* 1: compiled for clusters of more than 8 blocks */
    uint32_t waits; /* 1: every thread calls wait_for_prior_launch() before it touches device memory */
    dsri_cuda_grid (*grid)(const void *plan);
} dsri_cuda_launch;

typedef struct dsri_cuda_kernel {
    dsri_op op;
    dsr_exactness exactness;
    uint32_t n_launches;
    dsri_cuda_launch launches[DSRI_MAX_LAUNCHES];
    uint64_t (*zeroed_bytes)(const void *plan); /* null: none */
    int (*accepts)(const void *plan);           /* null: every plan */
    dsri_bundle_code bundle;                    /* of one launch, without shared or zeroed memory: may be in a bundle */
    dsri_follower follower;
    uint32_t min_compute; /* such as 90; lower devices take the next kernel of the list */
} dsri_cuda_kernel;

/* All kernels, device-exact ones first under each op; null past the end. */
const dsri_cuda_kernel *dsri_cuda_kernel_at(uint32_t index);
/* Entry of the kernel that runs a bundle. */
extern const char dsri_cuda_bundle_entry[];
/* Bytes of a plan that a kernel of this code reads: those of the rows it has. */
size_t dsri_cuda_bundled_bytes(dsri_bundle_code code, const void *plan);

/* The embedded fatbin. */
extern const unsigned char dsri_cuda_image[];

#endif
