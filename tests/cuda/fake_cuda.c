#include "fake_cuda.h"

#include "emulator.h"

#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef int CUresult;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_PTX = 218, NO_DEVICE = 100, NOT_FOUND = 500 };

static fake_cuda_state state;

EXPORT fake_cuda_state *fake_cuda(void);
fake_cuda_state *fake_cuda(void)
{
    return &state;
}

/* Counts a call; the wanted failure, or success. */
static CUresult count(void)
{
    state.n_calls++;
    return state.n_calls == state.fail_at ? state.fail_with : SUCCESS;
}

/* Such as 90. */
static int device_compute(void)
{
    return state.compute ? state.compute : emulator_compute();
}

/* That a block can ask for: as much as 8.0, 9.0 and 8.6 have. */
static int most_shared_bytes(void)
{
    return (device_compute() >= 90 ? 227 : device_compute() == 80 ? 163 : 99) * 1024;
}

/* Every entry point counts itself first. */
#define ENTRY(name, arguments)                                                                                         \
    EXPORT CUresult name arguments;                                                                                    \
    CUresult name arguments
#define COUNT()                                                                                                        \
    do {                                                                                                               \
        const CUresult counted = count();                                                                              \
        if (counted != SUCCESS)                                                                                        \
            return counted;                                                                                            \
    } while (0)

typedef struct graph {
    uint32_t n_nodes;
    emulated_graph *emulated;
} graph;

/* As a driver does, it keeps what a lost device did not free: no leak of the library. */
static void *kept[4096];

static void *keep(size_t n_bytes)
{
    size_t i = 0;
    while (i < sizeof kept / sizeof kept[0] && kept[i] != NULL)
        i++;
    return i < sizeof kept / sizeof kept[0] ? (kept[i] = calloc(1, n_bytes)) : NULL;
}

static void release(void *memory)
{
    for (size_t i = 0; memory != NULL && i < sizeof kept / sizeof kept[0]; i++) {
        if (kept[i] == memory) {
            kept[i] = NULL;
            free(memory);
            return;
        }
    }
    if (memory != NULL)
        abort(); /* never made, or freed twice */
}

static int is_ours(const void *function)
{
    return strncmp(function, "dsr_", 4) == 0;
}

/* Of a launch or of a graph's node. */
static void note_kernel(const node_params *params)
{
    memcpy(state.last_grid, params->grid, sizeof state.last_grid);
    memcpy(state.last_block, params->block, sizeof state.last_block);
    state.last_shared_bytes = params->shared_bytes;
    if (is_ours(params->function))
        memcpy(state.last_plan, params->arguments[0], sizeof state.last_plan);
    for (uint32_t i = 0; i < state.n_params && !is_ours(params->function); i++)
        memcpy(state.last_arguments[i], params->arguments[i], state.params_bytes[i] < 64 ? state.params_bytes[i] : 64);
}

static emulated_launch launch_of(const node_params *params)
{
    const emulated_launch launch = {
        .entry = params->function,
        .grid = {params->grid[0], params->grid[1], params->grid[2]},
        .block = {params->block[0], params->block[1], params->block[2]},
        .shared_bytes = params->shared_bytes,
        .arguments = params->arguments,
    };
    return launch;
}

ENTRY(cuInit, (unsigned flags))
{
    (void)flags;
    COUNT();
    return emulator_works_here() ? SUCCESS : NO_DEVICE;
}

ENTRY(cuDriverGetVersion, (int *version))
{
    COUNT();
    *version = 13000;
    return SUCCESS;
}

ENTRY(cuGetErrorName, (CUresult result, const char **name))
{
    *name = result == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : result == 700         ? "CUDA_ERROR_ILLEGAL_ADDRESS"
            : result == 719         ? "CUDA_ERROR_LAUNCH_FAILED"
                                    : "FAKE";
    return SUCCESS;
}

ENTRY(cuDeviceGetCount, (int *n))
{
    COUNT();
    *n = state.n_devices ? state.n_devices : 1;
    return SUCCESS;
}

ENTRY(cuDeviceGet, (int *device, int ordinal))
{
    COUNT();
    *device = ordinal;
    return SUCCESS;
}

ENTRY(cuDeviceGetAttribute, (int *value, int attribute, int device))
{
    (void)device;
    COUNT();
    const int compute = device_compute();
    *value = attribute == 75 ? compute / 10 : attribute == 76 ? compute % 10 : most_shared_bytes();
    return SUCCESS;
}

ENTRY(cuDevicePrimaryCtxRetain, (void **context, int device))
{
    static char primaries[16];
    COUNT();
    state.n_retained++;
    *context = &primaries[device % 16];
    return SUCCESS;
}

ENTRY(cuDevicePrimaryCtxRelease_v2, (int device))
{
    (void)device;
    state.n_retained--;
    return SUCCESS;
}

ENTRY(cuCtxGetDevice, (int *device))
{
    COUNT();
    *device = state.context_device;
    return SUCCESS;
}

ENTRY(cuCtxPushCurrent_v2, (void *context))
{
    COUNT();
    state.push_depth++;
    state.last_pushed = context;
    return SUCCESS;
}

ENTRY(cuCtxPopCurrent_v2, (void **context))
{
    *context = &state;
    state.push_depth--;
    return SUCCESS;
}

ENTRY(cuCtxSynchronize, (void))
{
    COUNT();
    return SUCCESS;
}

ENTRY(cuMemAlloc_v2, (unsigned long long *memory, size_t n_bytes))
{
    COUNT();
    void *allocated = keep(n_bytes);
    if (allocated == NULL)
        return OUT_OF_MEMORY;
    emulator_allocated(allocated, n_bytes);
    state.n_allocations++;
    *memory = (unsigned long long)(uintptr_t)allocated;
    return SUCCESS;
}

ENTRY(cuMemFree_v2, (unsigned long long memory))
{
    state.n_allocations--;
    emulator_freed((void *)(uintptr_t)memory);
    release((void *)(uintptr_t)memory);
    return SUCCESS;
}

ENTRY(cuMemsetD8Async, (unsigned long long memory, unsigned char value, size_t n_bytes, void *stream))
{
    (void)stream;
    COUNT();
    memset((void *)(uintptr_t)memory, value, n_bytes);
    emulator_written((void *)(uintptr_t)memory, n_bytes);
    return SUCCESS;
}

ENTRY(cuMemcpyHtoDAsync_v2, (unsigned long long to, const void *from, size_t n_bytes, void *stream))
{
    (void)stream;
    COUNT();
    memcpy((void *)(uintptr_t)to, from, n_bytes);
    emulator_written((void *)(uintptr_t)to, n_bytes);
    return SUCCESS;
}

ENTRY(cuMemcpyDtoHAsync_v2, (void *to, unsigned long long from, size_t n_bytes, void *stream))
{
    (void)stream;
    COUNT();
    memcpy(to, (const void *)(uintptr_t)from, n_bytes);
    return SUCCESS;
}

static CUresult create_handle(void **handle)
{
    COUNT();
    *handle = keep(1);
    return *handle != NULL ? SUCCESS : OUT_OF_MEMORY;
}

static CUresult destroy_handle(void *handle)
{
    release(handle);
    return SUCCESS;
}

ENTRY(cuStreamCreate, (void **stream, unsigned flags))
{
    (void)flags;
    return create_handle(stream);
}

ENTRY(cuStreamDestroy_v2, (void *stream))
{
    return destroy_handle(stream);
}

ENTRY(cuStreamSynchronize, (void *stream))
{
    (void)stream;
    COUNT();
    state.n_waits++;
    return SUCCESS;
}

ENTRY(cuStreamIsCapturing, (void *stream, int *status))
{
    (void)stream;
    COUNT();
    *status = state.is_capturing;
    return SUCCESS;
}

ENTRY(cuStreamWaitEvent, (void *stream, void *event, unsigned flags))
{
    (void)stream;
    (void)event;
    (void)flags;
    COUNT();
    return SUCCESS;
}

ENTRY(cuEventCreate, (void **event, unsigned flags))
{
    (void)flags;
    return create_handle(event);
}

ENTRY(cuEventDestroy_v2, (void *event))
{
    return destroy_handle(event);
}

ENTRY(cuEventRecord, (void *event, void *stream))
{
    (void)event;
    (void)stream;
    COUNT();
    return SUCCESS;
}

ENTRY(cuEventSynchronize, (void *event))
{
    (void)event;
    COUNT();
    state.n_waits++;
    return SUCCESS;
}

ENTRY(cuModuleLoadData, (void **module, const void *image))
{
    (void)image;
    return create_handle(module);
}

ENTRY(cuModuleLoadDataEx, (void **module, const void *image, unsigned n_options, int *options, void **values))
{
    COUNT();
    memcpy(state.last_image, image, sizeof state.last_image);
    for (unsigned i = 0; i < n_options && state.module_log != NULL; i++)
        if (options[i] == 5) /* the error log's buffer; its size comes next */
            strncpy(values[i], state.module_log, (size_t)(uintptr_t)values[i + 1]);
    if (state.module_log != NULL)
        return INVALID_PTX;
    *module = keep(1);
    return *module != NULL ? SUCCESS : OUT_OF_MEMORY;
}

ENTRY(cuModuleUnload, (void *module))
{
    return destroy_handle(module);
}

ENTRY(cuModuleGetFunction, (void **function, void *module, const char *name))
{
    (void)module;
    COUNT();
    /* Distinct kernels are distinct names; the pointer to the table's text will do. */
    union {
        const char *in;
        void *out;
    } address = {name};
    *function = address.out;
    return name[0] != '\0' && (state.missing == NULL || strstr(name, state.missing) == NULL) ? SUCCESS : NOT_FOUND;
}

ENTRY(cuFuncSetAttribute, (void *function, int attribute, int value))
{
    COUNT();
    if (attribute == 8 && value > most_shared_bytes())
        return INVALID_VALUE;
    if (!is_ours(function) && attribute == 8)
        state.max_dynamic_bytes = (uint32_t)value;
    if (attribute == 8)
        emulator_allow_shared(function, (uint32_t)value);
    if (attribute == 14 && value != 0)
        emulator_allow_cluster(function);
    return SUCCESS;
}

ENTRY(cuFuncGetAttribute, (int *value, int attribute, void *function))
{
    (void)function;
    COUNT();
    *value = attribute == 0   ? (int)(state.max_threads ? state.max_threads : 1024)
             : attribute == 5 ? (state.code_compute ? state.code_compute : device_compute())
                              : 0;
    return SUCCESS;
}

/* Asking past the last parameter is how one learns their number: that failure is not counted. */
ENTRY(cuFuncGetParamInfo, (void *function, size_t index, size_t *offset, size_t *n_bytes))
{
    (void)function;
    if (index >= state.n_params)
        return INVALID_VALUE;
    *offset = 0;
    *n_bytes = state.params_bytes[index];
    return SUCCESS;
}

ENTRY(cuLaunchKernel, (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared_bytes, void *stream, void **arguments, void **extra))
{
    const node_params params = {.function = function,
                                .grid = {gx, gy, gz},
                                .block = {bx, by, bz},
                                .shared_bytes = shared_bytes,
                                .arguments = arguments};
    (void)extra;
    COUNT();
    state.n_launches++;
    state.last_stream = stream;
    note_kernel(&params);
    const emulated_launch launch = launch_of(&params);
    return state.is_capturing ? SUCCESS : emulator_run(&launch);
}

typedef struct launch_attribute {
    int id, padding, is_allowed, rest[15];
} launch_attribute;

typedef struct launch_config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    const launch_attribute *attributes;
    unsigned n_attributes;
} launch_config;

ENTRY(cuLaunchKernelEx, (const launch_config *config, void *function, void **arguments, void **extra))
{
    for (unsigned i = 0; i < config->n_attributes; i++)
        state.n_early_launches += config->attributes[i].id == 6 && config->attributes[i].is_allowed;
    return cuLaunchKernel(function, config->grid[0], config->grid[1], config->grid[2], config->block[0],
                          config->block[1], config->block[2], config->shared_bytes, config->stream, arguments, extra);
}

static CUresult create_graph(void **created, const graph *from)
{
    graph *g = keep(sizeof *g);
    if (g == NULL)
        return OUT_OF_MEMORY;
    g->n_nodes = from != NULL ? from->n_nodes : 0;
    g->emulated = from != NULL ? emulator_graph_copy(from->emulated) : emulator_graph_create();
    *created = g;
    return SUCCESS;
}

static CUresult destroy_graph(void *destroyed)
{
    emulator_graph_destroy(((graph *)destroyed)->emulated);
    release(destroyed);
    return SUCCESS;
}

ENTRY(cuGraphCreate, (void **created, unsigned flags))
{
    (void)flags;
    COUNT();
    return create_graph(created, NULL);
}

ENTRY(cuGraphDestroy, (void *destroyed))
{
    return destroy_graph(destroyed);
}

ENTRY(cuGraphAddKernelNode_v2,
      (void **node, void *to, void *const *dependencies, size_t n_dependencies, const node_params *params))
{
    COUNT();
    graph *g = to;
    const emulated_launch launch = launch_of(params);
    emulator_graph_add(g->emulated, &launch, dependencies, n_dependencies);
    g->n_nodes++;
    *node = (void *)(uintptr_t)g->n_nodes;
    state.last_n_dependencies = (uint32_t)n_dependencies;
    note_kernel(params);
    return SUCCESS;
}

typedef struct edge_data {
    unsigned char from_port, to_port, type, reserved[5];
} edge_data;

ENTRY(cuGraphAddDependencies_v2,
      (void *to, void *const *from_nodes, void *const *to_nodes, const edge_data *edges, size_t n))
{
    COUNT();
    graph *g = to;
    for (size_t i = 0; i < n; i++) {
        const int is_early = edges[i].type == 1 && edges[i].from_port == 1;
        emulator_graph_depend(g->emulated, from_nodes[i], to_nodes[i], is_early);
        state.n_early_edges += (uint32_t)is_early;
        state.last_n_dependencies++;
    }
    return SUCCESS;
}

ENTRY(cuGraphInstantiateWithFlags, (void **executable, void *from, unsigned long long flags))
{
    (void)flags;
    COUNT();
    const CUresult result = create_graph(executable, from);
    if (result != SUCCESS)
        return result;
    state.n_instantiated++;
    return SUCCESS;
}

ENTRY(cuGraphExecKernelNodeSetParams_v2, (void *executable, void *node, const node_params *params))
{
    COUNT();
    const emulated_launch launch = launch_of(params);
    emulator_graph_update(((graph *)executable)->emulated, node, &launch);
    state.n_updates++;
    note_kernel(params);
    return SUCCESS;
}

ENTRY(cuGraphExecDestroy, (void *executable))
{
    return destroy_graph(executable);
}

ENTRY(cuGraphLaunch, (void *executable, void *stream))
{
    (void)stream;
    COUNT();
    state.n_launches += ((const graph *)executable)->n_nodes;
    return emulator_graph_run(((graph *)executable)->emulated);
}
