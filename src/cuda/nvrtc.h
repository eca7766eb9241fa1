/* CUDA C compiled at run time by NVRTC, a library of the CUDA toolkit that is loaded when it is needed. */
#ifndef DSRI_NVRTC_H
#define DSRI_NVRTC_H

#include "cuda/cuda_backend.h"

/* Compiles null-terminated source for the device to a cubin, which is to be released with dsri_release(). */
dsr_status dsri_nvrtc_compile(dsri_cuda_device *device, const dsr_device_kernel_desc *desc, const char *source,
                              void **image, size_t *image_bytes);
/* Logs a compiler's output line by line, as errors. */
void dsri_log_lines(const dsr_context *context, const char *text);

#endif
