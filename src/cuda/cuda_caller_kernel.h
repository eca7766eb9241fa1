/* Callers' kernels in device code. */
#ifndef DSRI_CUDA_CALLER_KERNEL_H
#define DSRI_CUDA_CALLER_KERNEL_H

#include "core/custom_plan.h"
#include "cuda/cuda_backend.h"

/* A pointer for each view, and the struct of constants. */
enum { DSRI_CUDA_MAX_PARAMETERS = DSRI_MAX_CUSTOM_VIEWS + 1 };

typedef struct dsri_cuda_caller_kernel {
    CUmodule module;
    CUfunction function;
    uint32_t max_threads; /* of a block */
    uint32_t max_shared_bytes;
    int knows_parameters; /* 0: the driver is too old to tell them */
    uint32_t n_parameters;
    size_t parameter_bytes[DSRI_CUDA_MAX_PARAMETERS];
} dsri_cuda_caller_kernel;

/* dsri_backend.device_kernel_load and device_kernel_unload. */
dsr_status dsri_cuda_load_caller_kernel(void *opened, const dsr_device_kernel_desc *desc, void **kernel);
void dsri_cuda_unload_caller_kernel(void *opened, void *kernel, int is_forked);
/* Checks a call against what the code says of itself, and fills the command's last fields. */
dsr_status dsri_cuda_prepare_caller_kernel(dsri_cuda_device *device, dsri_command *command);

static inline const dsri_cuda_caller_kernel *dsri_cuda_caller_kernel_of(const dsri_command *command)
{
    const dsri_custom_plan *plan = command->plan;
    return plan->kernel->device_kernel;
}

#endif
