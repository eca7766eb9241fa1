/* Loading callers' device code, and what a call of it must fit. */
#include "cuda/cuda_caller_kernel.h"
#include "cuda/nvrtc.h"

#include <string.h>

enum { DEFAULT_SHARED_BYTES = 48 * 1024, LOG_BYTES = 4096 };

/* ---- images ----------------------------------------------------------------------------------------------- */

static uint64_t little_endian(const uint8_t *at, uint32_t n_bytes)
{
    uint64_t value = 0;
    for (uint32_t i = n_bytes; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

static int ends_within(uint64_t begin, uint64_t length, uint64_t n_bytes)
{
    return begin <= n_bytes && length <= n_bytes - begin;
}

/* An ELF file of 64 bits: its table of sections, and every section that takes space in it. */
static int is_whole_cubin(const uint8_t *code, uint64_t n_bytes)
{
    enum { HEADER_BYTES = 64, SECTION_BYTES = 64, NO_BITS = 8 };
    if (n_bytes < HEADER_BYTES || memcmp(code, "\177ELF\2\1", 6) != 0)
        return 0;
    const uint64_t table = little_endian(code + 40, 8), n_sections = little_endian(code + 60, 2);
    if (little_endian(code + 58, 2) != SECTION_BYTES || !ends_within(table, n_sections * SECTION_BYTES, n_bytes))
        return 0;
    for (uint64_t i = 0; i < n_sections; i++) {
        const uint8_t *section = code + table + i * SECTION_BYTES;
        if (little_endian(section + 4, 4) != NO_BITS &&
            !ends_within(little_endian(section + 24, 8), little_endian(section + 32, 8), n_bytes))
            return 0;
    }
    return 1;
}

/* Its header has the magic number, a version, the header's size (2 bytes at 6), and the size of the rest. */
static int is_whole_fatbin(const uint8_t *code, uint64_t n_bytes)
{
    return n_bytes >= 16 && little_endian(code, 4) == 0xba55ed50u && little_endian(code + 6, 2) <= n_bytes &&
           little_endian(code + 8, 8) <= n_bytes - little_endian(code + 6, 2);
}

/* The driver is not told how long an image is: what is cut short must not reach it. */
static dsr_status check_binary(dsr_context *context, const dsr_device_kernel_desc *desc)
{
    if (is_whole_cubin(desc->code, desc->code_bytes) || is_whole_fatbin(desc->code, desc->code_bytes))
        return DSR_OK;
    return dsri_fail(context, DSR_ERR_FORMAT,
                     "registry: kernel %s: the code is no cubin and no fatbin, or is cut short", desc->name);
}

/* ---- loading ---------------------------------------------------------------------------------------------- */

static dsr_status load_failure(dsri_cuda_device *device, const dsr_device_kernel_desc *desc, CUresult result,
                               const char *log)
{
    switch (result) {
    case DSRI_CU_INVALID_IMAGE:
    case DSRI_CU_NO_BINARY_FOR_GPU:
    case DSRI_CU_INVALID_PTX:
    case DSRI_CU_UNSUPPORTED_PTX_VERSION:
        dsri_log_lines(device->context, log);
        return dsri_fail(device->context, DSR_ERR_FORMAT, "registry: kernel %s: cuModuleLoadDataEx: %s%s%.300s",
                         desc->name, dsri_cuda_error_name(&device->driver, result), log[0] != '\0' ? ": " : "", log);
    default:
        return dsri_cuda_check(device, result, "cuModuleLoadDataEx");
    }
}

static dsr_status load_module(dsri_cuda_device *device, const dsr_device_kernel_desc *desc, const void *image,
                              CUmodule *module)
{
    char log[LOG_BYTES] = "";
    int options[2] = {DSRI_CU_JIT_ERROR_LOG, DSRI_CU_JIT_ERROR_LOG_BYTES};
    void *values[2] = {log, (void *)(uintptr_t)(sizeof log - 1)};
    const CUresult result = device->driver.cuModuleLoadDataEx(module, image, 2, options, values);
    return result == DSRI_CU_SUCCESS ? DSR_OK : load_failure(device, desc, result, log);
}

/* The code as the driver wants it: aligned, text with a final null character, CUDA C compiled. */
static dsr_status load_code(dsri_cuda_device *device, const dsr_device_kernel_desc *desc, CUmodule *module)
{
    const dsr_allocator *allocator = &device->context->allocator;
    const size_t n_bytes = (size_t)desc->code_bytes + 1;
    dsr_status status = desc->kind == DSR_CODE_BINARY ? check_binary(device->context, desc) : DSR_OK;
    if (status != DSR_OK)
        return status;
    char *code = dsri_allocate(allocator, n_bytes, 64);
    if (code == NULL)
        return dsri_fail(device->context, DSR_ERR_OUT_OF_MEMORY, "registry: %zu bytes could not be allocated", n_bytes);
    memcpy(code, desc->code, n_bytes - 1);
    code[n_bytes - 1] = '\0';
    void *image = NULL;
    size_t image_bytes = 0;
    if (desc->kind == DSR_CODE_CUDA_C)
        status = dsri_nvrtc_compile(device, desc, code, &image, &image_bytes);
    if (status == DSR_OK)
        status = load_module(device, desc, image != NULL ? image : code, module);
    dsri_release(allocator, image, image_bytes);
    dsri_release(allocator, code, n_bytes);
    return status;
}

static dsr_status find_entry(dsri_cuda_device *device, const dsr_device_kernel_desc *desc,
                             dsri_cuda_caller_kernel *kernel)
{
    const CUresult result = device->driver.cuModuleGetFunction(&kernel->function, kernel->module, desc->entry);
    if (result == DSRI_CU_NOT_FOUND)
        return dsri_fail(device->context, DSR_ERR_NAME,
                         "registry: kernel %s: its code has no entry \"%.80s\"; it must be extern \"C\" __global__",
                         desc->name, desc->entry);
    return dsri_cuda_check(device, result, "cuModuleGetFunction");
}

static dsr_status read_parameters(dsri_cuda_device *device, const dsr_device_kernel_desc *desc,
                                  dsri_cuda_caller_kernel *kernel)
{
    if (device->driver.cuFuncGetParamInfo == NULL)
        return DSR_OK;
    size_t offset, n_bytes;
    while (device->driver.cuFuncGetParamInfo(kernel->function, kernel->n_parameters, &offset, &n_bytes) ==
           DSRI_CU_SUCCESS) {
        if (kernel->n_parameters == DSRI_CUDA_MAX_PARAMETERS)
            return dsri_fail(device->context, DSR_ERR_VALUE,
                             "registry: kernel %s: it has more than %d parameters, which no call could give",
                             desc->name, DSRI_CUDA_MAX_PARAMETERS);
        kernel->parameter_bytes[kernel->n_parameters++] = n_bytes;
    }
    kernel->knows_parameters = 1;
    return DSR_OK;
}

static dsr_status read_limits(dsri_cuda_device *device, const dsr_device_kernel_desc *desc,
                              dsri_cuda_caller_kernel *kernel)
{
    int max_threads = 0;
    dsr_status status = dsri_cuda_check(
        device, device->driver.cuFuncGetAttribute(&max_threads, DSRI_CU_FUNCTION_MAX_THREADS, kernel->function),
        "cuFuncGetAttribute");
    kernel->max_threads = (uint32_t)max_threads;
    kernel->max_shared_bytes = desc->max_shared_bytes ? desc->max_shared_bytes : DEFAULT_SHARED_BYTES;
    if (status != DSR_OK || desc->max_shared_bytes <= DEFAULT_SHARED_BYTES)
        return status;
    const CUresult result =
        device->driver.cuFuncSetAttribute(kernel->function, DSRI_CU_FUNCTION_MAX_DYNAMIC_SHARED,
                                          desc->max_shared_bytes > INT32_MAX ? INT32_MAX : (int)desc->max_shared_bytes);
    if (result == DSRI_CU_INVALID_VALUE)
        return dsri_fail(device->context, DSR_ERR_VALUE,
                         "registry: kernel %s: max_shared_bytes is %u, more than a block can have", desc->name,
                         desc->max_shared_bytes);
    return dsri_cuda_check(device, result, "cuFuncSetAttribute");
}

void dsri_cuda_unload_caller_kernel(void *opened, void *unloaded, int is_forked)
{
    dsri_cuda_device *device = opened;
    dsri_cuda_caller_kernel *kernel = unloaded;
    if (!is_forked && !device->is_lost && kernel->module != NULL && dsri_cuda_enter(device) == DSR_OK) {
        (void)device->driver.cuModuleUnload(kernel->module);
        dsri_cuda_leave(device);
    }
    dsri_release(&device->context->allocator, kernel, sizeof *kernel);
}

dsr_status dsri_cuda_load_caller_kernel(void *opened, const dsr_device_kernel_desc *desc, void **loaded)
{
    dsri_cuda_device *device = opened;
    dsri_cuda_caller_kernel *kernel = dsri_allocate(&device->context->allocator, sizeof *kernel, 64);
    if (kernel == NULL)
        return dsri_fail(device->context, DSR_ERR_OUT_OF_MEMORY, "registry: %zu bytes could not be allocated",
                         sizeof *kernel);
    memset(kernel, 0, sizeof *kernel);
    dsr_status status = dsri_cuda_enter(device);
    if (status == DSR_OK) {
        status = load_code(device, desc, &kernel->module);
        if (status == DSR_OK)
            status = find_entry(device, desc, kernel);
        if (status == DSR_OK)
            status = read_parameters(device, desc, kernel);
        if (status == DSR_OK)
            status = read_limits(device, desc, kernel);
        dsri_cuda_leave(device);
    }
    if (status == DSR_OK)
        *loaded = kernel;
    else
        dsri_cuda_unload_caller_kernel(device, kernel, 0);
    return status;
}

/* ---- calls ------------------------------------------------------------------------------------------------ */

static dsr_status check_parameters(dsr_context *context, const dsri_custom_plan *plan,
                                   const dsri_cuda_caller_kernel *kernel)
{
    const char *name = plan->kernel->name;
    const uint32_t n_given = plan->n_views + (plan->params_bytes != 0);
    if (!kernel->knows_parameters)
        return DSR_OK;
    if (n_given != kernel->n_parameters)
        return dsri_fail(context, DSR_ERR_VALUE, "kernel %s: it has %u parameters, given are %u (n_views is %u%s)",
                         name, kernel->n_parameters, n_given, plan->n_views, plan->params_bytes ? ", and params" : "");
    for (uint32_t i = 0; i < n_given; i++) {
        const size_t n_bytes = i < plan->n_views ? sizeof plan->views[i] : plan->params_bytes;
        if (kernel->parameter_bytes[i] != n_bytes)
            return dsri_fail(context, DSR_ERR_SIZE, "kernel %s: parameter %u has %zu bytes, given are %zu (%s)", name,
                             i, kernel->parameter_bytes[i], n_bytes, i < plan->n_views ? "a view" : "params");
    }
    return DSR_OK;
}

dsr_status dsri_cuda_prepare_caller_kernel(dsri_cuda_device *device, dsri_command *command)
{
    const dsri_custom_plan *plan = command->plan;
    const dsri_cuda_caller_kernel *kernel = dsri_cuda_caller_kernel_of(command);
    const uint32_t n_threads = plan->block[0] * plan->block[1] * plan->block[2];
    if (n_threads > kernel->max_threads)
        return dsri_fail(device->context, DSR_ERR_VALUE, "kernel %s: a block of %u threads, the code runs at most %u",
                         plan->kernel->name, n_threads, kernel->max_threads);
    if (plan->shared_bytes > kernel->max_shared_bytes)
        return dsri_fail(device->context, DSR_ERR_VALUE,
                         "kernel %s: shared_bytes is %u, it was registered for at most %u", plan->kernel->name,
                         plan->shared_bytes, kernel->max_shared_bytes);
    const dsr_status status = check_parameters(device->context, plan, kernel);
    if (status != DSR_OK)
        return status;
    command->kernel = kernel;
    command->kernel_names = plan->kernel->names;
    command->n_launches = 1;
    command->grid[0] = plan->grid[0] * plan->grid[1] * plan->grid[2];
    return DSR_OK;
}
