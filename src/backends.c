/* The back ends of this build: the only file that names them. */
#include "core/backend.h"

extern const dsri_backend dsri_cpu_backend;
#ifdef DSRI_HAVE_CUDA
extern const dsri_backend dsri_cuda_backend;
#endif

const dsri_backend *dsri_find_backend(dsr_device_kind kind)
{
    switch (kind) {
    case DSR_DEVICE_CPU:
        return &dsri_cpu_backend;
    case DSR_DEVICE_CUDA:
#ifdef DSRI_HAVE_CUDA
        return &dsri_cuda_backend;
#else
        return NULL;
#endif
    }
    return NULL;
}
