/* Kernels by name, and commands of the caller's kernels. */
#include "core/custom_plan.h"
#include "core/encoder_struct.h"
#include "core/ranges.h"

#include <stdio.h>
#include <string.h>

static uint32_t count_built_in(const dsr_context *context)
{
    uint32_t n = 0;
    while (context->backend->kernel_name(context->device, n))
        n++;
    return n;
}

static const dsri_host_kernel *find_host_kernel(const dsr_context *context, const char *name)
{
    const dsri_host_kernel *kernel = context->host_kernels;
    while (kernel && strcmp(kernel->name, name) != 0)
        kernel = kernel->next;
    return kernel;
}

uint32_t dsr_registry_n_kernels(const dsr_context *context)
{
    if (!context)
        return 0;
    uint32_t n = count_built_in(context);
    for (const dsri_host_kernel *kernel = context->host_kernels; kernel; kernel = kernel->next)
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
    const dsri_host_kernel *kernel = context->host_kernels;
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
    return find_host_kernel(context, name) != NULL;
}

static dsr_status check_kernel(dsr_context *context, const char *name, dsr_kernel_fn kernel)
{
    const dsr_status status = dsri_context_check_usable(context);
    if (status != DSR_OK)
        return status;
    if (!context->backend->takes_host_kernels)
        return dsri_fail(context, DSR_ERR_UNSUPPORTED_DEVICE, "registry: C kernels run on CPU contexts only");
    if (!name || !kernel)
        return dsri_fail(context, DSR_ERR_NULL, "registry: the kernel's %s is null", name ? "function" : "name");
    if (!is_well_formed(name))
        return dsri_fail(context, DSR_ERR_NAME,
                         "registry: kernel name \"%.80s\", needed are 1 to 63 of the characters A-Z a-z 0-9 _ . -",
                         name);
    if (is_taken(context, name))
        return dsri_fail(context, DSR_ERR_NAME, "registry: kernel name \"%s\" is taken", name);
    return DSR_OK;
}

dsr_status dsr_registry_add_kernel(dsr_context *context, const char *name, dsr_kernel_fn kernel, void *user)
{
    if (!context)
        return DSR_ERR_NULL;
    const dsr_status status = check_kernel(context, name, kernel);
    if (status != DSR_OK)
        return status;
    dsri_host_kernel *added = dsri_allocate(&context->allocator, sizeof *added, _Alignof(dsri_host_kernel));
    if (!added)
        return dsri_fail(context, DSR_ERR_OUT_OF_MEMORY, "registry: %zu bytes could not be allocated", sizeof *added);
    *added = (dsri_host_kernel){.run = kernel, .user = user};
    memcpy(added->name, name, strlen(name));
    added->names[0] = added->name;
    dsri_host_kernel **end = &context->host_kernels;
    while (*end)
        end = &(*end)->next;
    *end = added;
    return DSR_OK;
}

/* ---- commands ---- */

static dsr_status check_kernel_desc(dsr_context *context, const dsr_kernel_desc *desc)
{
    if (!desc)
        return dsri_fail(context, DSR_ERR_NULL, "kernel: desc is null");
    if (desc->struct_size != sizeof *desc)
        return dsri_fail(context, DSR_ERR_STRUCT_SIZE, "kernel: struct_size is %u, needed is %zu", desc->struct_size,
                         sizeof *desc);
    if (!desc->name)
        return dsri_fail(context, DSR_ERR_NULL, "kernel: name is null");
    if (!find_host_kernel(context, desc->name))
        return dsri_fail(context, DSR_ERR_NAME, "kernel: \"%.80s\" is not registered", desc->name);
    if (desc->n_tasks == 0)
        return dsri_fail(context, DSR_ERR_VALUE, "kernel %s: n_tasks is 0, needed is at least 1", desc->name);
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
    plan.kernel = find_host_kernel(context, desc->name);
    plan.n_tasks = desc->n_tasks;
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
