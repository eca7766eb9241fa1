/* Plan of a caller's kernel. */
#ifndef DSRI_CUSTOM_PLAN_H
#define DSRI_CUSTOM_PLAN_H

#include "core/context_internal.h"

enum { DSRI_MAX_CUSTOM_VIEWS = 32, DSRI_MAX_CUSTOM_PARAMS = 4096 };

typedef struct dsri_custom_plan {
    const dsri_caller_kernel *kernel;
    uint32_t n_tasks; /* of a C function; what follows is of device code */
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t shared_bytes;
    uint32_t n_views;
    uint32_t params_bytes;
    void *views[DSRI_MAX_CUSTOM_VIEWS];
    _Alignas(16) unsigned char params[DSRI_MAX_CUSTOM_PARAMS]; /* cut to params_bytes in the encoder's copy */
} dsri_custom_plan;

#endif
