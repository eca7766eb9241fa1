/* Kernels by name, and commands of the caller's kernels. */
#include "core/custom_plan.h"
#include "core/encoder_struct.h"
#include "core/ranges.h"

#include <stdio.h>
#include <string.h>

enum { MAX_CODE_BYTES = 1 << 30 };

static uint32_t count_built_in(const dsr_context *context)
{
    uint32_t n = 0;
    while (context->backend->kernel_name(context->device, n))
        n++;
    return n;
}

static const dsri_caller_kernel *find_caller_kernel(const dsr_context *context, const char *name)
{
    const dsri_caller_kernel *kernel = context->caller_kernels;
    while (kernel && strcmp(kernel->name, name) != 0)
        kernel = kernel->next;
    return kernel;
}

uint32_t dsr_registry_n_kernels(const dsr_context *context)
{
    if (!context)
        return 0;
    uint32_t n = count_built_in(context);
    for (const dsri_caller_kernel *kernel = context->caller_kernels; kernel; kernel = kernel->next)
        n++;
    return n;
}

const char *dsr_registry_kernel_name(const dsr_context *context, uint32_t index)
{
    if (!context)
        return NULL;
    const char *name = context->backend->kernel_name(context->device, index);
    if (name)
        return name;
    index -= count_built_in(context);
    const dsri_caller_kernel *kernel = context->caller_kernels;
    while (kernel && index-- > 0)
        kernel = kernel->next;
    return kernel ? kernel->name : NULL;
}

static int is_well_formed(const char *name)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    const size_t length = strnlen(name, DSRI_MAX_KERNEL_NAME + 1);
    return length >= 1 && length <= DSRI_MAX_KERNEL_NAME && strspn(name, allowed) == length;
}

static int is_taken(const dsr_context *context, const char *name)
{
    const char *built_in;
    for (uint32_t i = 0; (built_in = context->backend->kernel_name(context->device, i)) != NULL; i++)
        if (strcmp(built_in, name) == 0)
            return 1;
    return find_caller_kernel(context, name) != NULL;
}

static dsr_status check_name(dsr_context *context, const char *name)
{
    if (!is_well_formed(name))
        return dsri_fail(context, DSR_ERR_NAME,
                         "registry: kernel name \"%.80s\", needed are 1 to 63 of the characters A-Z a-z 0-9 _ . -",
                         name);
    if (is_taken(context, name))
        return dsri_fail(context, DSR_ERR_NAME, "registry: kernel name \"%s\" is taken", name);
    return DSR_OK;
}

/* Memory for a kernel of this name, not in the list yet. */
static dsr_status new_kernel(dsr_context *context, const char *name, dsri_caller_kernel **added)
{
    dsri_caller_kernel *kernel = dsri_allocate(&context->allocator, sizeof *kernel, _Alignof(dsri_caller_kernel));
    if (!kernel)
        return dsri_fail(context, DSR_ERR_OUT_OF_MEMORY, "registry: %zu bytes could not be allocated", sizeof *kernel);
    *kernel = (dsri_caller_kernel){.run = NULL};
    memcpy(kernel->name, name, strlen(name));
    kernel->names[0] = kernel->name;
    *added = kernel;
    return DSR_OK;
}

static void enter_kernel(dsr_context *context, dsri_caller_kernel *kernel)
{
    dsri_caller_kernel **end = &context->caller_kernels;
    while (*end)
        end = &(*end)->next;
    *end = kernel;
}

dsr_status dsr_registry_add_kernel(dsr_context *context, const char *name, dsr_kernel_fn kernel, void *user)
{
    if (!context)
        return DSR_ERR_NULL;
    dsr_status status = dsri_context_check_usable(context);
    if (status != DSR_OK)
        return status;
    if (!context->backend->takes_host_kernels)
        return dsri_fail(context, DSR_ERR_UNSUPPORTED_DEVICE, "registry: C kernels run on CPU contexts only");
    if (!name || !kernel)
        return dsri_fail(context, DSR_ERR_NULL, "registry: the kernel's %s is null", name ? "function" : "name");
    status = check_name(context, name);
    if (status != DSR_OK)
        return status;
    dsri_caller_kernel *added = NULL;
    status = new_kernel(context, name, &added);
    if (status != DSR_OK)
        return status;
    added->run = kernel;
    added->user = user;
    enter_kernel(context, added);
    return DSR_OK;
}

static dsr_status check_device_kernel(dsr_context *context, const dsr_device_kernel_desc *desc)
{
    if (!context->backend->device_kernel_load)
        return dsri_fail(context, DSR_ERR_UNSUPPORTED_DEVICE, "registry: the %s back end runs no device code",
                         context->backend->name);
    if (!desc)
        return dsri_fail(context, DSR_ERR_NULL, "registry: desc is null");
    if (desc->struct_size != sizeof *desc)
        return dsri_fail(context, DSR_ERR_STRUCT_SIZE, "registry: struct_size is %u, needed is %zu", desc->struct_size,
                         sizeof *desc);
    if (!desc->name)
        return dsri_fail(context, DSR_ERR_NULL, "registry: the kernel's name is null");
    const dsr_status status = check_name(context, desc->name);
    if (status != DSR_OK)
        return status;
    if (!desc->code || !desc->entry || (desc->n_options && !desc->options))
        return dsri_fail(context, DSR_ERR_NULL, "registry: kernel %s: code, entry or options is null", desc->name);
    if (desc->kind != DSR_CODE_BINARY && desc->kind != DSR_CODE_PTX && desc->kind != DSR_CODE_CUDA_C)
        return dsri_fail(context, DSR_ERR_ENUM, "registry: kernel %s: kind is %d, which is none", desc->name,
                         (int)desc->kind);
    if (desc->code_bytes == 0 || desc->code_bytes > MAX_CODE_BYTES)
        return dsri_fail(context, DSR_ERR_VALUE, "registry: kernel %s: code_bytes is %llu, needed are 1 to %d",
                         desc->name, (unsigned long long)desc->code_bytes, MAX_CODE_BYTES);
    if (desc->n_options && desc->kind != DSR_CODE_CUDA_C)
        return dsri_fail(context, DSR_ERR_VALUE, "registry: kernel %s: options are for CUDA C only", desc->name);
    for (uint32_t i = 0; i < desc->n_options; i++)
        if (!desc->options[i])
            return dsri_fail(context, DSR_ERR_NULL, "registry: kernel %s: option %u is null", desc->name, i);
    return DSR_OK;
}

dsr_status dsr_registry_add_device_kernel(dsr_context *context, const dsr_device_kernel_desc *desc)
{
    if (!context)
        return DSR_ERR_NULL;
    dsri_caller_kernel *added = NULL;
    dsr_status status = dsri_context_check_usable(context);
    if (status == DSR_OK)
        status = check_device_kernel(context, desc);
    if (status == DSR_OK)
        status = new_kernel(context, desc->name, &added);
    if (status != DSR_OK)
        return status;
    status = context->backend->device_kernel_load(context->device, desc, &added->device_kernel);
    if (status == DSR_OK)
        enter_kernel(context, added);
    else
        dsri_release(&context->allocator, added, sizeof *added);
    return status;
}

/* ---- commands ---- */

/* How a C function is called. */
static dsr_status check_tasks(dsr_context *context, const dsr_kernel_desc *desc)
{
    if (desc->n_tasks == 0)
        return dsri_fail(context, DSR_ERR_VALUE, "kernel %s: n_tasks is 0, needed is at least 1", desc->name);
    for (int i = 0; i < 3; i++)
        if (desc->grid[i] || desc->block[i] || desc->shared_bytes)
            return dsri_fail(context, DSR_ERR_VALUE,
                             "kernel %s: grid, block or shared_bytes is given, a C function takes n_tasks alone",
                             desc->name);
    return DSR_OK;
}

/* How device code is launched, within what every device takes. */
static dsr_status check_grid(dsr_context *context, const dsr_kernel_desc *desc)
{
    static const uint32_t most_blocks[3] = {INT32_MAX, 65535, 65535}, most_threads[3] = {1024, 1024, 64};
    uint64_t n_blocks = 1, n_threads = 1;
    if (desc->n_tasks != 0)
        return dsri_fail(context, DSR_ERR_VALUE, "kernel %s: n_tasks is %u, device code takes grid and block",
                         desc->name, desc->n_tasks);
    for (int i = 0; i < 3; i++) {
        if (desc->grid[i] == 0 || desc->grid[i] > most_blocks[i])
            return dsri_fail(context, DSR_ERR_VALUE, "kernel %s: grid[%d] is %u, needed are 1 to %u", desc->name, i,
                             desc->grid[i], most_blocks[i]);
        if (desc->block[i] == 0 || desc->block[i] > most_threads[i])
            return dsri_fail(context, DSR_ERR_VALUE, "kernel %s: block[%d] is %u, needed are 1 to %u", desc->name, i,
                             desc->block[i], most_threads[i]);
        n_blocks *= desc->grid[i];
        n_threads *= desc->block[i];
    }
    if (n_blocks > UINT32_MAX)
        return dsri_fail(context, DSR_ERR_OVERFLOW, "kernel %s: a grid of %llu blocks, at most 2^32 - 1 can be",
                         desc->name, (unsigned long long)n_blocks);
    if (n_threads > 1024)
        return dsri_fail(context, DSR_ERR_VALUE, "kernel %s: a block of %llu threads, needed are at most 1024",
                         desc->name, (unsigned long long)n_threads);
    return DSR_OK;
}

static dsr_status check_kernel_desc(dsr_context *context, const dsr_kernel_desc *desc)
{
    if (!desc)
        return dsri_fail(context, DSR_ERR_NULL, "kernel: desc is null");
    if (desc->struct_size != sizeof *desc)
        return dsri_fail(context, DSR_ERR_STRUCT_SIZE, "kernel: struct_size is %u, needed is %zu", desc->struct_size,
                         sizeof *desc);
    if (!desc->name)
        return dsri_fail(context, DSR_ERR_NULL, "kernel: name is null");
    const dsri_caller_kernel *kernel = find_caller_kernel(context, desc->name);
    if (!kernel)
        return dsri_fail(context, DSR_ERR_NAME, "kernel: \"%.80s\" is not registered", desc->name);
    const dsr_status status = kernel->run ? check_tasks(context, desc) : check_grid(context, desc);
    if (status != DSR_OK)
        return status;
    if (desc->n_views > DSRI_MAX_CUSTOM_VIEWS)
        return dsri_fail(context, DSR_ERR_VALUE, "kernel %s: n_views is %u, needed is at most %d", desc->name,
                         desc->n_views, DSRI_MAX_CUSTOM_VIEWS);
    if (desc->params_bytes > DSRI_MAX_CUSTOM_PARAMS)
        return dsri_fail(context, DSR_ERR_VALUE, "kernel %s: params_bytes is %u, needed is at most %d", desc->name,
                         desc->params_bytes, DSRI_MAX_CUSTOM_PARAMS);
    if ((desc->n_views && (!desc->views || !desc->access)) || (desc->params_bytes && !desc->params))
        return dsri_fail(context, DSR_ERR_NULL, "kernel %s: views, access or params is null", desc->name);
    return DSR_OK;
}

/* Resolves view i and adds its range. */
static dsr_status take_view(dsr_context *context, const dsr_kernel_desc *desc, uint32_t i, dsri_ranges *ranges,
                            void **address)
{
    char what[DSRI_MAX_KERNEL_NAME + 32];
    (void)snprintf(what, sizeof what, "kernel %s: view %u", desc->name, i);
    const dsr_access access = desc->access[i];
    if (access != DSR_ACCESS_READ && access != DSR_ACCESS_WRITE && access != DSR_ACCESS_READ_WRITE)
        return dsri_fail(context, DSR_ERR_ENUM, "%s: access is %d, which is none", what, (int)access);
    const dsr_status status = dsri_view_address(context, &desc->views[i], what, address);
    if (status != DSR_OK)
        return status;
    if (access != DSR_ACCESS_WRITE)
        dsri_ranges_read(ranges, *address, desc->views[i].byte_length);
    if (access != DSR_ACCESS_READ)
        dsri_ranges_write(ranges, *address, desc->views[i].byte_length);
    return DSR_OK;
}

static dsr_status check_overlap(dsr_context *context, const dsr_kernel_desc *desc, void *const *addresses)
{
    for (uint32_t i = 0; i < desc->n_views; i++) {
        const dsr_range a = {(uintptr_t)addresses[i], (uintptr_t)addresses[i] + desc->views[i].byte_length};
        for (uint32_t j = 0; j < i; j++) {
            const dsr_range b = {(uintptr_t)addresses[j], (uintptr_t)addresses[j] + desc->views[j].byte_length};
            const int is_written = desc->access[i] != DSR_ACCESS_READ || desc->access[j] != DSR_ACCESS_READ;
            if (is_written && a.begin < b.end && b.begin < a.end && a.begin < a.end && b.begin < b.end)
                return dsri_fail(context, DSR_ERR_OVERLAP, "kernel %s: views %u and %u overlap and one is written",
                                 desc->name, j, i);
        }
    }
    return DSR_OK;
}

dsr_status dsr_encode_kernel(dsr_encoder *encoder, const dsr_kernel_desc *desc)
{
    dsri_custom_plan plan;
    dsri_ranges ranges;
    if (!encoder)
        return DSR_ERR_NULL;
    dsr_context *context = encoder->context;
    dsr_status status = dsri_encoder_check_open(encoder);
    if (status == DSR_OK)
        status = check_kernel_desc(context, desc);
    if (status != DSR_OK)
        return status;
    ranges.n_reads = 0;
    ranges.n_writes = 0;
    plan.kernel = find_caller_kernel(context, desc->name);
    plan.n_tasks = desc->n_tasks;
    memcpy(plan.grid, desc->grid, sizeof plan.grid);
    memcpy(plan.block, desc->block, sizeof plan.block);
    plan.shared_bytes = desc->shared_bytes;
    plan.n_views = desc->n_views;
    plan.params_bytes = desc->params_bytes;
    for (uint32_t i = 0; i < desc->n_views && status == DSR_OK; i++)
        status = take_view(context, desc, i, &ranges, &plan.views[i]);
    if (status == DSR_OK)
        status = check_overlap(context, desc, plan.views);
    if (status != DSR_OK)
        return status;
    if (desc->params_bytes)
        memcpy(plan.params, desc->params, desc->params_bytes);
    return dsri_encoder_append(encoder, DSRI_OP_CUSTOM, 1, &plan,
                               offsetof(dsri_custom_plan, params) + desc->params_bytes, &ranges);
}
