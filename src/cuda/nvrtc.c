/* Compiling callers' CUDA C. */
#include "cuda/nvrtc.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int nvrtc_result;
typedef struct nvrtc_program_st *nvrtc_program;
enum { NVRTC_SUCCESS = 0, NVRTC_OUT_OF_MEMORY = 1, NVRTC_COMPILATION = 6 };

typedef struct nvrtc {
    void *handle;
    const char *(*error_string)(nvrtc_result result);
    nvrtc_result (*create)(nvrtc_program *program, const char *source, const char *name, int n_headers,
                           const char *const *headers, const char *const *include_names);
    nvrtc_result (*compile)(nvrtc_program program, int n_options, const char *const *options);
    nvrtc_result (*log_size)(nvrtc_program program, size_t *n_bytes);
    nvrtc_result (*log)(nvrtc_program program, char *text);
    nvrtc_result (*image_size)(nvrtc_program program, size_t *n_bytes);
    nvrtc_result (*image)(nvrtc_program program, char *image);
    nvrtc_result (*destroy)(nvrtc_program *program);
} nvrtc;

#define FIND(field, name) dsri_cuda_find_symbol(loaded->handle, name, &loaded->field, sizeof loaded->field)

static dsr_status load(dsr_context *context, nvrtc *loaded)
{
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
    const char *wanted = getenv("DSR_NVRTC");
    memset(loaded, 0, sizeof *loaded);
    if (wanted != NULL && wanted[0] != '\0')
        loaded->handle = dlopen(wanted, RTLD_NOW | RTLD_LOCAL);
    else
        for (size_t i = 0; i < sizeof names / sizeof names[0] && loaded->handle == NULL; i++)
            loaded->handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (loaded->handle == NULL)
        return dsri_fail(context, DSR_ERR_UNSUPPORTED_DEVICE,
                         "registry: CUDA C needs NVRTC, a library of the CUDA toolkit: %s cannot be loaded",
                         wanted != NULL && wanted[0] != '\0' ? wanted : names[0]);
    if (FIND(error_string, "nvrtcGetErrorString") && FIND(create, "nvrtcCreateProgram") &&
        FIND(compile, "nvrtcCompileProgram") && FIND(log_size, "nvrtcGetProgramLogSize") &&
        FIND(log, "nvrtcGetProgramLog") && FIND(image_size, "nvrtcGetCUBINSize") && FIND(image, "nvrtcGetCUBIN") &&
        FIND(destroy, "nvrtcDestroyProgram"))
        return DSR_OK;
    (void)dlclose(loaded->handle);
    return dsri_fail(context, DSR_ERR_UNSUPPORTED_DEVICE, "registry: NVRTC is too old: at least 11.2 is needed");
}

void dsri_log_lines(const dsr_context *context, const char *text)
{
    while (*text != '\0') {
        const int length = (int)strcspn(text, "\n");
        if (length > 0)
            dsri_log(context, DSR_LOG_ERROR, "%.*s", length, text);
        text += length;
        text += *text == '\n';
    }
}

/* The status of a failed call. Compiler errors go to the log; their beginning becomes the text. */
static dsr_status failure(const nvrtc *loaded, nvrtc_program program, dsr_context *context, const char *name,
                          nvrtc_result result)
{
    size_t n_bytes = 0;
    char *log = NULL;
    if (result == NVRTC_OUT_OF_MEMORY)
        return dsri_fail(context, DSR_ERR_OUT_OF_MEMORY, "registry: kernel %s: NVRTC is out of memory", name);
    if (result == NVRTC_COMPILATION && loaded->log_size(program, &n_bytes) == NVRTC_SUCCESS && n_bytes > 1)
        log = dsri_allocate(&context->allocator, n_bytes, 1);
    if (log == NULL || loaded->log(program, log) != NVRTC_SUCCESS) {
        dsri_release(&context->allocator, log, n_bytes);
        return dsri_fail(context, result == NVRTC_COMPILATION ? DSR_ERR_FORMAT : DSR_ERR_DEVICE,
                         "registry: kernel %s: NVRTC: %s", name, loaded->error_string(result));
    }
    log[n_bytes - 1] = '\0';
    dsri_log_lines(context, log);
    const dsr_status status = dsri_fail(context, DSR_ERR_FORMAT, "registry: kernel %s: %.300s", name, log);
    dsri_release(&context->allocator, log, n_bytes);
    return status;
}

static nvrtc_result get_image(const nvrtc *loaded, nvrtc_program program, const dsr_allocator *allocator, void **image,
                              size_t *image_bytes)
{
    nvrtc_result result = loaded->image_size(program, image_bytes);
    if (result != NVRTC_SUCCESS)
        return result;
    *image = dsri_allocate(allocator, *image_bytes, 64);
    if (*image == NULL)
        return NVRTC_OUT_OF_MEMORY;
    result = loaded->image(program, *image);
    if (result != NVRTC_SUCCESS) {
        dsri_release(allocator, *image, *image_bytes);
        *image = NULL;
    }
    return result;
}

static dsr_status compile(const nvrtc *loaded, dsri_cuda_device *device, const dsr_device_kernel_desc *desc,
                          const char *source, int n_options, const char *const *options, void **image,
                          size_t *image_bytes)
{
    nvrtc_program program = NULL;
    nvrtc_result result = loaded->create(&program, source, desc->name, 0, NULL, NULL);
    if (result == NVRTC_SUCCESS)
        result = loaded->compile(program, n_options, options);
    if (result == NVRTC_SUCCESS)
        result = get_image(loaded, program, &device->context->allocator, image, image_bytes);
    const dsr_status status =
        result == NVRTC_SUCCESS ? DSR_OK : failure(loaded, program, device->context, desc->name, result);
    if (program != NULL)
        (void)loaded->destroy(&program);
    return status;
}

static int names_architecture(const dsr_device_kernel_desc *desc)
{
    for (uint32_t i = 0; i < desc->n_options; i++)
        if (strncmp(desc->options[i], "--gpu-architecture", 18) == 0 || strncmp(desc->options[i], "-arch", 5) == 0)
            return 1;
    return 0;
}

dsr_status dsri_nvrtc_compile(dsri_cuda_device *device, const dsr_device_kernel_desc *desc, const char *source,
                              void **image, size_t *image_bytes)
{
    dsr_context *context = device->context;
    enum { MAX_OPTIONS = 1024 };
    char architecture[40];
    nvrtc loaded;
    if (desc->n_options > MAX_OPTIONS)
        return dsri_fail(context, DSR_ERR_VALUE, "registry: kernel %s: %u options, at most %d can be", desc->name,
                         desc->n_options, MAX_OPTIONS);
    const size_t n_bytes = (desc->n_options + (size_t)1) * sizeof(char *);
    const char **options = dsri_allocate(&context->allocator, n_bytes, _Alignof(char *));
    if (options == NULL)
        return dsri_fail(context, DSR_ERR_OUT_OF_MEMORY, "registry: %zu bytes could not be allocated", n_bytes);
    (void)snprintf(architecture, sizeof architecture, "--gpu-architecture=sm_%u", device->compute);
    int n_options = 0;
    if (!names_architecture(desc))
        options[n_options++] = architecture;
    for (uint32_t i = 0; i < desc->n_options; i++)
        options[n_options++] = desc->options[i];
    dsr_status status = load(context, &loaded);
    if (status == DSR_OK) {
        status = compile(&loaded, device, desc, source, n_options, options, image, image_bytes);
        (void)dlclose(loaded.handle);
    }
    dsri_release(&context->allocator, options, n_bytes);
    return status;
}
