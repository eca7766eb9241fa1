/* From an encoder's commands to the kernels that run them. */
#ifndef DSRI_CUDA_PLAN_H
#define DSRI_CUDA_PLAN_H

#include "cuda/cuda_backend.h"

/* Fills a plan; 0 if there is no memory for it. */
int dsri_cuda_plan_make(const dsri_cuda_device *device, dsri_cuda_plan *plan, const dsri_wave *waves, uint32_t n_waves);
/* Whether two plans are of the same kernels with the same dependencies. */
int dsri_cuda_plan_is_like(const dsri_cuda_plan *a, const dsri_cuda_plan *b);
void dsri_cuda_plan_free(const dsr_allocator *allocator, dsri_cuda_plan *plan);

/* Of 8 bytes, of a command's plan in a bundle. */
uint32_t dsri_cuda_bundled_words(const dsri_command *command);
/* Makes an array hold `needed` handles; its contents are lost when it grows. 0: no memory. */
int dsri_cuda_reserve_handles(const dsr_allocator *allocator, CUgraphNode **handles, uint32_t *capacity,
                              uint32_t needed);

#endif
