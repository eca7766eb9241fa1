/* The CUDA back end over the driver API. Its CUDA context, the caller's or the device's primary one, is current only
 * inside a call of ours. */
#include "cuda/cuda_backend.h"
#include "cuda/cuda_caller_kernel.h"

#include <stdio.h>
#include <string.h>

dsr_status dsri_cuda_check(dsri_cuda_device *device, CUresult result, const char *call)
{
    if (result == DSRI_CU_SUCCESS)
        return DSR_OK;
    const char *name = dsri_cuda_error_name(&device->driver, result);
    if (dsri_cuda_error_is_sticky(result)) {
        device->is_lost = 1;
        return dsri_fail(device->context, DSR_ERR_DEVICE_LOST, "cuda: %s: %s; the device is lost to this process", call,
                         name);
    }
    return dsri_fail(device->context, result == DSRI_CU_OUT_OF_MEMORY ? DSR_ERR_OUT_OF_MEMORY : DSR_ERR_DEVICE,
                     "cuda: %s: %s", call, name);
}

dsr_status dsri_cuda_enter(dsri_cuda_device *device)
{
    if (device->is_lost)
        return dsri_fail(device->context, DSR_ERR_DEVICE_LOST, "cuda: the device was lost by an earlier error");
    return dsri_cuda_check(device, device->driver.cuCtxPushCurrent(device->current), "cuCtxPushCurrent");
}

void dsri_cuda_leave(dsri_cuda_device *device)
{
    CUcontext popped;
    (void)device->driver.cuCtxPopCurrent(&popped);
}

/* ---- device ----------------------------------------------------------------------------------------------- */

static uint32_t cuda_device_count(void)
{
    dsri_cuda_driver driver;
    char text[DSRI_CUDA_TEXT_BYTES];
    int count = 0;
    if (!dsri_cuda_driver_load(&driver, text))
        return 0;
    if (driver.cuDeviceGetCount(&count) != DSRI_CU_SUCCESS || count < 0)
        count = 0;
    dsri_cuda_driver_unload(&driver);
    return (uint32_t)count;
}

static dsr_status set_attribute(dsri_cuda_device *device, CUfunction function, int attribute, int value)
{
    return dsri_cuda_check(device, device->driver.cuFuncSetAttribute(function, attribute, value), "cuFuncSetAttribute");
}

/* Code for older devices than 9.0, which newer ones run too, has no instruction to wait with. */
static dsr_status find_whether_it_waits(dsri_cuda_device *device, uint32_t waits, CUfunction function,
                                        uint8_t *may_begin_early)
{
    int code_compute = 0;
    if (!waits || device->compute < 90 || device->driver.cuGraphAddDependencies == NULL)
        return DSR_OK;
    const dsr_status status = dsri_cuda_check(
        device, device->driver.cuFuncGetAttribute(&code_compute, DSRI_CU_FUNCTION_PTX_VERSION, function),
        "cuFuncGetAttribute");
    *may_begin_early = status == DSR_OK && code_compute >= 90;
    return status;
}

static dsr_status load_launch(dsri_cuda_device *device, const dsri_cuda_launch *launch, CUfunction function,
                              uint8_t *may_begin_early)
{
    if (launch->shared_bytes > device->shared_bytes)
        return dsri_fail(device->context, DSR_ERR_UNSUPPORTED_DEVICE,
                         "context: CUDA device %d has %u bytes of shared memory for a block, %s needs %u",
                         device->ordinal, device->shared_bytes, launch->entry, launch->shared_bytes);
    dsr_status status = find_whether_it_waits(device, launch->waits, function, may_begin_early);
    if (status == DSR_OK && launch->shared_bytes > 48 * 1024)
        status = set_attribute(device, function, DSRI_CU_FUNCTION_MAX_DYNAMIC_SHARED, (int)launch->shared_bytes);
    if (status == DSR_OK && launch->non_portable_cluster)
        status = set_attribute(device, function, DSRI_CU_FUNCTION_NON_PORTABLE_CLUSTER, 1);
    return status;
}

/* Adds a kernel to the device's, unless the image has none of it for this device: one for newer devices is missing from
 * an image that was compiled for older ones only (DSR_CUDA_ARCHS), whatever the device. */
static dsr_status load_kernel(dsri_cuda_device *device, const dsri_cuda_kernel *kernel)
{
    dsri_cuda_entry *entry = &device->entries[device->n_entries];
    dsr_status status = DSR_OK;
    for (uint32_t i = 0; i < kernel->n_launches && status == DSR_OK; i++) {
        const dsri_cuda_launch *launch = &kernel->launches[i];
        const CUresult result = device->driver.cuModuleGetFunction(&entry->functions[i], device->module, launch->entry);
        if (result == DSRI_CU_NOT_FOUND && kernel->min_compute > DSRI_CUDA_MIN_COMPUTE)
            return DSR_OK;
        entry->names[i] = launch->entry;
        status = dsri_cuda_check(device, result, launch->entry);
        if (status == DSR_OK)
            status = load_launch(device, launch, entry->functions[i], &entry->may_begin_early[i]);
    }
    entry->kernel = kernel;
    device->n_entries++;
    return status;
}

static dsr_status load_kernels(dsri_cuda_device *device)
{
    dsr_status status =
        dsri_cuda_check(device, device->driver.cuModuleLoadData(&device->module, dsri_cuda_image), "cuModuleLoadData");
    const dsri_cuda_kernel *kernel;
    for (uint32_t i = 0; (kernel = dsri_cuda_kernel_at(i)) != NULL && status == DSR_OK; i++)
        if (kernel->min_compute <= device->compute)
            status = load_kernel(device, kernel);
    if (status == DSR_OK)
        status = dsri_cuda_check(
            device, device->driver.cuModuleGetFunction(&device->bundle, device->module, dsri_cuda_bundle_entry),
            dsri_cuda_bundle_entry);
    if (status == DSR_OK)
        status = find_whether_it_waits(device, 1, device->bundle, &device->bundle_may_begin_early);
    if (status == DSR_OK)
        status = dsri_cuda_check(device, device->driver.cuStreamCreate(&device->stream, DSRI_CU_STREAM_NON_BLOCKING),
                                 "cuStreamCreate");
    return status;
}

/* Sets the device's number, and its primary context. */
static dsr_status take_primary_context(dsri_cuda_device *device, uint32_t index)
{
    const dsri_cuda_driver *driver = &device->driver;
    int count = 0;
    const CUresult counted = driver->cuDeviceGetCount(&count);
    if (counted != DSRI_CU_SUCCESS || count < 0 || (uint32_t)count <= index)
        return dsri_fail(device->context, DSR_ERR_UNSUPPORTED_DEVICE,
                         "context: CUDA device %u does not exist, there are %d", index, count);
    dsr_status status = dsri_cuda_check(device, driver->cuDeviceGet(&device->ordinal, (int)index), "cuDeviceGet");
    if (status == DSR_OK)
        status = dsri_cuda_check(device, driver->cuDevicePrimaryCtxRetain(&device->current, device->ordinal),
                                 "cuDevicePrimaryCtxRetain");
    device->is_primary = status == DSR_OK;
    return status;
}

static dsr_status take_callers_context(dsri_cuda_device *device, const dsr_context_desc *desc)
{
    if (desc->device_index != 0)
        return dsri_fail(device->context, DSR_ERR_VALUE,
                         "context: device_index is %u, needed is 0 where cuda_context is given", desc->device_index);
    device->current = desc->cuda_context;
    dsr_status status = dsri_cuda_enter(device);
    if (status != DSR_OK)
        return status;
    status = dsri_cuda_check(device, device->driver.cuCtxGetDevice(&device->ordinal), "cuCtxGetDevice");
    dsri_cuda_leave(device);
    return status;
}

static dsr_status ask_device(dsri_cuda_device *device, int attribute, uint32_t *value)
{
    int answer = 0;
    const dsr_status status = dsri_cuda_check(
        device, device->driver.cuDeviceGetAttribute(&answer, attribute, device->ordinal), "cuDeviceGetAttribute");
    *value = (uint32_t)answer;
    return status;
}

static dsr_status check_device(dsri_cuda_device *device)
{
    uint32_t major = 0, minor = 0;
    dsr_status status = ask_device(device, DSRI_CU_ATTRIBUTE_COMPUTE_MAJOR, &major);
    if (status == DSR_OK)
        status = ask_device(device, DSRI_CU_ATTRIBUTE_COMPUTE_MINOR, &minor);
    if (status == DSR_OK)
        status = ask_device(device, DSRI_CU_ATTRIBUTE_SHARED_BYTES, &device->shared_bytes);
    if (status != DSR_OK)
        return status;
    device->compute = 10 * major + minor;
    if (device->compute < DSRI_CUDA_MIN_COMPUTE)
        return dsri_fail(device->context, DSR_ERR_UNSUPPORTED_DEVICE,
                         "context: CUDA device %d has compute capability %u.%u, at least 8.0 is needed",
                         device->ordinal, major, minor);
    return DSR_OK;
}

static void cuda_close(void *opened, int is_forked)
{
    dsri_cuda_device *device = opened;
    dsr_context *context = device->context;
    if (!is_forked && device->driver.library != NULL) {
        if (device->current != NULL && !device->is_lost && dsri_cuda_enter(device) == DSR_OK) {
            if (device->stream != NULL)
                (void)device->driver.cuStreamDestroy(device->stream);
            if (device->module != NULL)
                (void)device->driver.cuModuleUnload(device->module);
            dsri_cuda_leave(device);
        }
        if (device->is_primary)
            (void)device->driver.cuDevicePrimaryCtxRelease(device->ordinal);
        dsri_cuda_driver_unload(&device->driver);
    }
    dsri_release(&context->allocator, device, sizeof *device);
}

static dsr_status cuda_open(dsr_context *context, const dsr_context_desc *desc, void **opened)
{
    dsri_cuda_device *device = dsri_allocate(&context->allocator, sizeof *device, 64);
    if (device == NULL)
        return dsri_fail(context, DSR_ERR_OUT_OF_MEMORY, "context: no memory for a device");
    memset(device, 0, sizeof *device);
    device->context = context;
    char text[DSRI_CUDA_TEXT_BYTES];
    dsr_status status = DSR_OK;
    if (!dsri_cuda_driver_load(&device->driver, text))
        status = dsri_fail(context, DSR_ERR_UNSUPPORTED_DEVICE, "context: no CUDA: %s", text);
    if (status == DSR_OK)
        status = desc->cuda_context != NULL ? take_callers_context(device, desc)
                                            : take_primary_context(device, desc->device_index);
    if (status == DSR_OK)
        status = check_device(device);
    if (status == DSR_OK)
        status = dsri_cuda_enter(device);
    if (status == DSR_OK) {
        status = load_kernels(device);
        dsri_cuda_leave(device);
    }
    if (status != DSR_OK) {
        cuda_close(device, 0);
        return status;
    }
    context->isa = DSR_ISA_SCALAR;
    context->n_threads = 1;
    *opened = device;
    return DSR_OK;
}

static const char *cuda_kernel_name(void *opened, uint32_t index)
{
    const dsri_cuda_device *device = opened;
    for (uint32_t i = 0; i < device->n_entries; i++) {
        const uint32_t n = device->entries[i].kernel->n_launches;
        if (index < n)
            return device->entries[i].names[index];
        index -= n;
    }
    return NULL;
}

/* ---- memory ----------------------------------------------------------------------------------------------- */

/* Lets the memory stream wait for an encoder's submits. */
static dsr_status wait_for_encoder(dsri_cuda_device *device, dsri_cuda_encoder *encoder)
{
    dsr_status status = DSR_OK;
    if (encoder->stream == encoder->own_stream)
        status = dsri_cuda_check(device, device->driver.cuEventRecord(encoder->done, encoder->stream), "cuEventRecord");
    if (status == DSR_OK)
        status = dsri_cuda_check(device, device->driver.cuStreamWaitEvent(device->stream, encoder->done, 0),
                                 "cuStreamWaitEvent");
    return status;
}

/* Lets the memory stream wait for every submit in flight. */
static dsr_status wait_for_encoders(dsri_cuda_device *device)
{
    dsr_status status = DSR_OK;
    for (dsri_cuda_encoder *e = device->encoders; e != NULL && status == DSR_OK; e = e->next)
        if (e->in_flight)
            status = wait_for_encoder(device, e);
    return status;
}

static dsr_status finish_memory_call(dsri_cuda_device *device, CUresult result, const char *call)
{
    dsr_status status = dsri_cuda_check(device, result, call);
    if (status == DSR_OK)
        status = dsri_cuda_check(device, device->driver.cuStreamSynchronize(device->stream), call);
    return status;
}

static dsr_status cuda_memory_allocate(void *opened, size_t size_bytes, void **memory)
{
    dsri_cuda_device *device = opened;
    CUdeviceptr allocated = 0;
    dsr_status status = dsri_cuda_enter(device);
    if (status != DSR_OK)
        return status;
    status = dsri_cuda_check(device, device->driver.cuMemAlloc(&allocated, size_bytes), "cuMemAlloc");
    if (status == DSR_OK)
        status = finish_memory_call(device, device->driver.cuMemsetD8Async(allocated, 0, size_bytes, device->stream),
                                    "cuMemsetD8Async");
    if (status == DSR_OK)
        *memory = (void *)(uintptr_t)allocated;
    else if (allocated != 0)
        (void)device->driver.cuMemFree(allocated);
    dsri_cuda_leave(device);
    return status;
}

static void cuda_memory_release(void *opened, void *memory, size_t size_bytes, int is_forked)
{
    dsri_cuda_device *device = opened;
    (void)size_bytes;
    if (is_forked || device->is_lost || dsri_cuda_enter(device) != DSR_OK)
        return;
    if (wait_for_encoders(device) == DSR_OK)
        (void)device->driver.cuStreamSynchronize(device->stream);
    (void)device->driver.cuMemFree((CUdeviceptr)(uintptr_t)memory);
    dsri_cuda_leave(device);
}

/* Copies size_bytes to the device, or from it, once no encoder is under way. */
static dsr_status copy_memory(dsri_cuda_device *device, void *destination, const void *source, size_t size_bytes,
                              int to_device)
{
    const dsri_cuda_driver *driver = &device->driver;
    dsr_status status = dsri_cuda_enter(device);
    if (status != DSR_OK)
        return status;
    status = wait_for_encoders(device);
    if (status == DSR_OK && to_device)
        status = finish_memory_call(
            device, driver->cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)destination, source, size_bytes, device->stream),
            "cuMemcpyHtoDAsync");
    else if (status == DSR_OK)
        status = finish_memory_call(
            device, driver->cuMemcpyDtoHAsync(destination, (CUdeviceptr)(uintptr_t)source, size_bytes, device->stream),
            "cuMemcpyDtoHAsync");
    dsri_cuda_leave(device);
    return status;
}

static dsr_status cuda_memory_write(void *opened, void *destination, const void *source, size_t size_bytes)
{
    return copy_memory(opened, destination, source, size_bytes, 1);
}

static dsr_status cuda_memory_read(void *opened, void *destination, const void *source, size_t size_bytes)
{
    return copy_memory(opened, destination, source, size_bytes, 0);
}

/* ---- encoders --------------------------------------------------------------------------------------------- */

/* Lets the CPU wait for an encoder's submits. */
static dsr_status finish_encoder(dsri_cuda_device *device, dsri_cuda_encoder *encoder)
{
    return encoder->stream == encoder->own_stream
               ? dsri_cuda_check(device, device->driver.cuStreamSynchronize(encoder->stream), "cuStreamSynchronize")
               : dsri_cuda_check(device, device->driver.cuEventSynchronize(encoder->done), "cuEventSynchronize");
}

static void encoder_close(void *opened, void *state, int is_forked)
{
    dsri_cuda_device *device = opened;
    dsri_cuda_encoder *encoder = state;
    const dsr_allocator *allocator = &device->context->allocator;
    for (dsri_cuda_encoder **link = &device->encoders; *link != NULL; link = &(*link)->next)
        if (*link == encoder) {
            *link = encoder->next;
            break;
        }
    if (!is_forked && !device->is_lost && dsri_cuda_enter(device) == DSR_OK) {
        if (encoder->in_flight)
            (void)finish_encoder(device, encoder);
        dsri_cuda_release_graph(encoder);
        if (encoder->zeroed != 0)
            (void)device->driver.cuMemFree(encoder->zeroed);
        if (encoder->done != NULL)
            (void)device->driver.cuEventDestroy(encoder->done);
        if (encoder->own_stream != NULL)
            (void)device->driver.cuStreamDestroy(encoder->own_stream);
        dsri_cuda_leave(device);
    }
    dsri_cuda_release_plans(encoder);
    dsri_release(allocator, encoder, sizeof *encoder);
}

static dsr_status encoder_open(void *opened, void **state)
{
    dsri_cuda_device *device = opened;
    dsri_cuda_encoder *encoder = dsri_allocate(&device->context->allocator, sizeof *encoder, 64);
    if (encoder == NULL)
        return dsri_fail(device->context, DSR_ERR_OUT_OF_MEMORY, "encoder: no memory");
    memset(encoder, 0, sizeof *encoder);
    encoder->device = device;
    dsr_status status = dsri_cuda_enter(device);
    if (status == DSR_OK) {
        status = dsri_cuda_check(
            device, device->driver.cuStreamCreate(&encoder->own_stream, DSRI_CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        if (status == DSR_OK)
            status = dsri_cuda_check(device, device->driver.cuEventCreate(&encoder->done, DSRI_CU_EVENT_DISABLE_TIMING),
                                     "cuEventCreate");
        dsri_cuda_leave(device);
    }
    if (status != DSR_OK) {
        encoder_close(device, encoder, 0);
        return status;
    }
    encoder->stream = encoder->own_stream;
    encoder->next = device->encoders;
    device->encoders = encoder;
    *state = encoder;
    return DSR_OK;
}

static void encoder_reset(void *opened, void *state)
{
    dsri_cuda_encoder *encoder = state;
    (void)opened;
    encoder->zeroed_used = 0;
    encoder->is_current = 0;
}

static dsr_status encoder_set_stream(void *opened, void *state, void *stream)
{
    dsri_cuda_encoder *encoder = state;
    (void)opened;
    encoder->stream = stream != NULL ? (CUstream)stream : encoder->own_stream;
    return DSR_OK;
}

static const dsri_cuda_entry *choose(const dsri_cuda_device *device, dsri_op op, const void *plan)
{
    const dsri_cuda_entry *best = NULL;
    for (uint32_t i = 0; i < device->n_entries; i++) {
        const dsri_cuda_kernel *kernel = device->entries[i].kernel;
        if (kernel->op != op || (kernel->accepts != NULL && !kernel->accepts(plan)))
            continue;
        if (kernel->exactness == device->context->exactness)
            return &device->entries[i];
        if (kernel->exactness == DSR_EXACT_DEVICE && best == NULL)
            best = &device->entries[i];
    }
    return best;
}

/* Makes room for a command's zeroed memory. */
static dsr_status reserve_zeroed(dsri_cuda_encoder *encoder, uint64_t n_bytes, uint64_t *offset)
{
    dsri_cuda_device *device = encoder->device;
    const uint64_t needed = encoder->zeroed_used + ((n_bytes + 255) & ~(uint64_t)255);
    *offset = encoder->zeroed_used;
    if (needed <= encoder->zeroed_capacity) {
        encoder->zeroed_used = needed;
        return DSR_OK;
    }
    const uint64_t capacity = needed * 2 < 65536 ? 65536 : needed * 2;
    CUdeviceptr memory = 0;
    dsr_status status = dsri_cuda_enter(device);
    if (status != DSR_OK)
        return status;
    if (encoder->in_flight)
        status = finish_encoder(device, encoder);
    if (status == DSR_OK)
        status = dsri_cuda_check(device, device->driver.cuMemAlloc(&memory, capacity), "cuMemAlloc");
    if (status == DSR_OK)
        status = finish_memory_call(device, device->driver.cuMemsetD8Async(memory, 0, capacity, device->stream),
                                    "cuMemsetD8Async");
    if (status == DSR_OK && encoder->zeroed != 0)
        (void)device->driver.cuMemFree(encoder->zeroed);
    if (status == DSR_OK) {
        encoder->zeroed = memory;
        encoder->zeroed_capacity = capacity;
        encoder->zeroed_used = needed;
    } else if (memory != 0) {
        (void)device->driver.cuMemFree(memory);
    }
    dsri_cuda_leave(device);
    return status;
}

static dsr_status prepare(void *opened, void *state, dsri_command *command)
{
    dsri_cuda_device *device = opened;
    dsri_cuda_encoder *encoder = state;
    encoder->is_current = 0;
    if (command->op == DSRI_OP_CUSTOM)
        return dsri_cuda_prepare_caller_kernel(device, command);
    const dsri_cuda_entry *entry = choose(device, command->op, command->plan);
    if (entry == NULL)
        return dsri_fail(device->context, DSR_ERR_UNSUPPORTED_KERNEL, "%s: the CUDA back end has no kernel for it",
                         dsri_op_name(command->op));
    const dsri_cuda_kernel *kernel = entry->kernel;
    if (kernel->zeroed_bytes != NULL) {
        const dsr_status status = reserve_zeroed(encoder, kernel->zeroed_bytes(command->plan), &command->backend_value);
        if (status != DSR_OK)
            return status;
    }
    command->kernel = entry;
    command->kernel_names = entry->names;
    command->n_launches = kernel->n_launches;
    for (uint32_t i = 0; i < kernel->n_launches; i++) {
        const dsri_cuda_grid grid = kernel->launches[i].grid(command->plan);
        command->grid[i] = grid.x * grid.y * grid.z;
    }
    return DSR_OK;
}

static dsr_status submit(void *opened, void *state, const dsri_wave *waves, uint32_t n_waves)
{
    dsri_cuda_device *device = opened;
    dsri_cuda_encoder *encoder = state;
    dsr_status status = dsri_cuda_enter(device);
    if (status != DSR_OK)
        return status;
    status = dsri_cuda_run(encoder, waves, n_waves);
    dsri_cuda_leave(device);
    return status;
}

static dsr_status wait(void *opened, void *state)
{
    dsri_cuda_device *device = opened;
    dsri_cuda_encoder *encoder = state;
    if (!encoder->in_flight)
        return device->is_lost ? dsri_cuda_enter(device) : DSR_OK;
    dsr_status status = dsri_cuda_enter(device);
    if (status != DSR_OK)
        return status;
    status = finish_encoder(device, encoder);
    encoder->in_flight = 0;
    dsri_cuda_leave(device);
    return status;
}

const dsri_backend dsri_cuda_backend = {
    .kind = DSR_DEVICE_CUDA,
    .name = "cuda",
    .device_count = cuda_device_count,
    .open = cuda_open,
    .close = cuda_close,
    .memory_allocate = cuda_memory_allocate,
    .memory_release = cuda_memory_release,
    .memory_write = cuda_memory_write,
    .memory_read = cuda_memory_read,
    .kernel_name = cuda_kernel_name,
    .takes_host_kernels = 0,
    .device_kernel_load = dsri_cuda_load_caller_kernel,
    .device_kernel_unload = dsri_cuda_unload_caller_kernel,
    .encoder_open = encoder_open,
    .encoder_close = encoder_close,
    .encoder_reset = encoder_reset,
    .encoder_set_stream = encoder_set_stream,
    .prepare = prepare,
    .runs_in_order = 1,
    .submit = submit,
    .wait = wait,
};
