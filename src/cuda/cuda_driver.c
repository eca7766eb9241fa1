/* Loading the CUDA driver. */
#include "cuda/cuda_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The only conversion of an object pointer to a function pointer; POSIX wants dlsym results to allow it. */
int dsri_cuda_find_symbol(void *library, const char *name, void *function, size_t n_bytes)
{
    void *address = dlsym(library, name);
    memcpy(function, &address, n_bytes);
    return address != NULL;
}

int dsri_cuda_driver_load(dsri_cuda_driver *driver, char text[DSRI_CUDA_TEXT_BYTES])
{
    memset(driver, 0, sizeof *driver);
    const char *path = getenv("DSR_CUDA_DRIVER");
    path = path != NULL && path[0] != '\0' ? path : "libcuda.so.1";
    driver->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (driver->library == NULL) {
        snprintf(text, DSRI_CUDA_TEXT_BYTES, "the driver library %s cannot be loaded", path);
        return 0;
    }
#define SYMBOL(name, exported, arguments)                                                                              \
    if (!dsri_cuda_find_symbol(driver->library, exported, &driver->name, sizeof driver->name)) {                       \
        snprintf(text, DSRI_CUDA_TEXT_BYTES, "the driver is too old: it has no %s", exported);                         \
        dsri_cuda_driver_unload(driver);                                                                               \
        return 0;                                                                                                      \
    }
#define OPTIONAL(name, exported, arguments)                                                                            \
    (void)dsri_cuda_find_symbol(driver->library, exported, &driver->name, sizeof driver->name);
#include "cuda/cuda_symbols.inc"
#undef OPTIONAL
#undef SYMBOL
    const CUresult result = driver->cuInit(0);
    if (result != DSRI_CU_SUCCESS) {
        snprintf(text, DSRI_CUDA_TEXT_BYTES, "cuInit: %s", dsri_cuda_error_name(driver, result));
        dsri_cuda_driver_unload(driver);
        return 0;
    }
    return 1;
}

void dsri_cuda_driver_unload(dsri_cuda_driver *driver)
{
    if (driver->library != NULL)
        dlclose(driver->library);
    memset(driver, 0, sizeof *driver);
}

const char *dsri_cuda_error_name(const dsri_cuda_driver *driver, CUresult result)
{
    const char *name = NULL;
    if (driver->cuGetErrorName == NULL || driver->cuGetErrorName(result, &name) != DSRI_CU_SUCCESS || name == NULL)
        return "an unknown error";
    return name;
}

int dsri_cuda_error_is_sticky(CUresult result)
{
    switch (result) {
    case 214: /* uncorrectable ECC */
    case 220: /* uncorrectable NVLink */
    case 700: /* illegal address */
    case 702: /* launch timeout */
    case 710: /* assert */
    case 714: /* hardware stack */
    case 715: /* illegal instruction */
    case 716: /* misaligned address */
    case 717: /* invalid address space */
    case 718: /* invalid program counter */
    case 719: /* launch failed */
        return 1;
    default:
        return 0;
    }
}
