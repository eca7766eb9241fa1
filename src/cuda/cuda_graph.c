/* Running an encoder's commands. They become a graph whose edges are the commands' dependencies; while the list of
 * kernels and edges stays the same from submit to submit, only the nodes' arguments and grids are updated. */
#include "cuda/cuda_caller_kernel.h"

#include <string.h>

typedef struct launch_arguments {
    CUdeviceptr zeroed;
    void *pointers[DSRI_CUDA_MAX_PARAMETERS];
} launch_arguments;

/* The driver takes arguments as pointers to memory that it only reads. */
static void *address_of(const void *argument)
{
    union {
        const void *in;
        void *out;
    } address = {argument};
    return address.out;
}

static CUfunction function_of(const dsri_command *command, uint32_t launch)
{
    const dsri_cuda_entry *entry = command->kernel;
    return command->op == DSRI_OP_CUSTOM ? dsri_cuda_caller_kernel_of(command)->function : entry->functions[launch];
}

static void own_params(const dsri_cuda_encoder *encoder, const dsri_command *command, uint32_t launch,
                       launch_arguments *arguments, dsri_cuda_node_params *params)
{
    const dsri_cuda_entry *entry = command->kernel;
    const dsri_cuda_launch *l = &entry->kernel->launches[launch];
    const dsri_cuda_grid grid = l->grid(command->plan);
    arguments->zeroed = encoder->zeroed + command->backend_value;
    arguments->pointers[0] = address_of(command->plan);
    arguments->pointers[1] = &arguments->zeroed;
    params->grid[0] = grid.x;
    params->grid[1] = grid.y;
    params->grid[2] = grid.z;
    params->block[0] = l->block_x;
    params->block[1] = 1;
    params->block[2] = 1;
    params->shared_bytes = l->shared_of != NULL ? l->shared_of(command->plan) : l->shared_bytes;
}

static void callers_params(const dsri_command *command, launch_arguments *arguments, dsri_cuda_node_params *params)
{
    const dsri_custom_plan *plan = command->plan;
    for (uint32_t i = 0; i < plan->n_views; i++)
        arguments->pointers[i] = address_of(&plan->views[i]);
    if (plan->params_bytes)
        arguments->pointers[plan->n_views] = address_of(plan->params);
    memcpy(params->grid, plan->grid, sizeof params->grid);
    memcpy(params->block, plan->block, sizeof params->block);
    params->shared_bytes = plan->shared_bytes;
}

static void node_params(const dsri_cuda_encoder *encoder, const dsri_command *command, uint32_t launch,
                        launch_arguments *arguments, dsri_cuda_node_params *params)
{
    memset(params, 0, sizeof *params);
    params->function = function_of(command, launch);
    params->arguments = arguments->pointers;
    if (command->op == DSRI_OP_CUSTOM)
        callers_params(command, arguments, params);
    else
        own_params(encoder, command, launch, arguments, params);
}

void dsri_cuda_release_graph(dsri_cuda_encoder *encoder)
{
    const dsri_cuda_driver *driver = &encoder->device->driver;
    if (encoder->executable != NULL)
        (void)driver->cuGraphExecDestroy(encoder->executable);
    if (encoder->graph != NULL)
        (void)driver->cuGraphDestroy(encoder->graph);
    encoder->executable = NULL;
    encoder->is_current = 0;
    encoder->graph = NULL;
    encoder->n_nodes = 0;
    encoder->n_dependencies = 0;
}

static int may_begin_early(const dsri_command *command, uint32_t launch)
{
    const dsri_cuda_entry *entry = command->kernel;
    return command->op != DSRI_OP_CUSTOM && entry->may_begin_early[launch];
}

static dsr_status launch_one(dsri_cuda_encoder *encoder, const dsri_command *command, uint32_t launch)
{
    dsri_cuda_device *device = encoder->device;
    launch_arguments arguments;
    dsri_cuda_node_params p;
    node_params(encoder, command, launch, &arguments, &p);
    dsri_cuda_launch_attribute attribute = {.id = DSRI_CU_LAUNCH_PROGRAMMATIC_SERIALIZATION, .value = {1}};
    dsri_cuda_launch_config config = {.shared_bytes = p.shared_bytes,
                                      .stream = encoder->stream,
                                      .attributes = &attribute,
                                      .n_attributes = may_begin_early(command, launch) ? 1 : 0};
    memcpy(config.grid, p.grid, sizeof config.grid);
    memcpy(config.block, p.block, sizeof config.block);
    return dsri_cuda_check(device, device->driver.cuLaunchKernelEx(&config, p.function, p.arguments, NULL),
                           command->kernel_names[launch]);
}

static dsr_status launch_all(dsri_cuda_encoder *encoder, const dsri_wave *waves, uint32_t n_waves)
{
    dsr_status status = DSR_OK;
    for (uint32_t w = 0; w < n_waves; w++)
        for (const dsri_command *c = waves[w].first; c != NULL && status == DSR_OK; c = c->next_in_wave)
            for (uint32_t i = 0; i < c->n_launches && status == DSR_OK; i++)
                status = launch_one(encoder, c, i);
    return status;
}

/* The dependencies of a launch as node numbers: the launch before it, or the last launches of the commands it waits
 * for. */
static uint32_t n_dependencies_of(const dsri_command *command, uint32_t launch)
{
    return launch == 0 ? command->n_depends_on : 1;
}

static uint32_t dependency_of(const dsri_cuda_encoder *encoder, const dsri_command *command, uint32_t launch,
                              uint32_t node, uint32_t i)
{
    return launch == 0 ? encoder->last_nodes[command->depends_on[i]] : node - 1;
}

typedef struct graph_size {
    uint32_t n_nodes;
    uint32_t n_dependencies;
    uint32_t n_commands;
} graph_size;

static graph_size size_of(const dsri_wave *waves, uint32_t n_waves)
{
    graph_size size = {0, 0, 0};
    for (uint32_t w = 0; w < n_waves; w++)
        for (const dsri_command *c = waves[w].first; c != NULL; c = c->next_in_wave) {
            size.n_nodes += c->n_launches;
            size.n_dependencies += c->n_depends_on + (c->n_launches ? c->n_launches - 1 : 0);
            size.n_commands = c->index + 1 > size.n_commands ? c->index + 1 : size.n_commands;
        }
    return size;
}

static int grow(const dsr_allocator *allocator, void **array, uint32_t old_count, uint32_t new_count,
                size_t element_size)
{
    void *grown = dsri_allocate(allocator, new_count * element_size, 64);
    if (grown == NULL)
        return 0;
    dsri_release(allocator, *array, old_count * element_size);
    *array = grown;
    return 1;
}

/* Makes the arrays hold a graph; their contents are lost, so the present graph goes when they grow. */
static dsr_status reserve(dsri_cuda_encoder *encoder, const graph_size *size)
{
    const dsr_allocator *allocator = &encoder->device->context->allocator;
    int is_enough = 1;
    if (size->n_nodes > encoder->nodes_capacity) {
        void *nodes = encoder->nodes;
        dsri_cuda_release_graph(encoder);
        is_enough = grow(allocator, &nodes, encoder->nodes_capacity, 2 * size->n_nodes, sizeof *encoder->nodes);
        encoder->nodes = nodes;
        encoder->nodes_capacity = is_enough ? 2 * size->n_nodes : encoder->nodes_capacity;
    }
    if (is_enough && size->n_dependencies > encoder->dependencies_capacity) {
        void *numbers = encoder->dependencies, *handles = encoder->dependency_nodes;
        const uint32_t old = encoder->dependencies_capacity, capacity = 2 * size->n_dependencies;
        dsri_cuda_release_graph(encoder);
        void *new_numbers = dsri_allocate(allocator, capacity * sizeof *encoder->dependencies, 64);
        void *new_handles = dsri_allocate(allocator, capacity * sizeof *encoder->dependency_nodes, 64);
        is_enough = new_numbers != NULL && new_handles != NULL;
        dsri_release(allocator, is_enough ? numbers : new_numbers,
                     (is_enough ? old : capacity) * sizeof *encoder->dependencies);
        dsri_release(allocator, is_enough ? handles : new_handles,
                     (is_enough ? old : capacity) * sizeof *encoder->dependency_nodes);
        if (is_enough) {
            encoder->dependencies = new_numbers;
            encoder->dependency_nodes = new_handles;
            encoder->dependencies_capacity = capacity;
        }
    }
    if (is_enough && size->n_commands > encoder->last_nodes_capacity) {
        void *last = encoder->last_nodes;
        is_enough =
            grow(allocator, &last, encoder->last_nodes_capacity, 2 * size->n_commands, sizeof *encoder->last_nodes);
        encoder->last_nodes = last;
        encoder->last_nodes_capacity = is_enough ? 2 * size->n_commands : encoder->last_nodes_capacity;
    }
    return is_enough ? DSR_OK
                     : dsri_fail(encoder->device->context, DSR_ERR_OUT_OF_MEMORY, "submit: no memory for a graph");
}

/* Whether the instantiated graph has these kernels and edges. Fills last_nodes. */
static int same_graph(dsri_cuda_encoder *encoder, const dsri_wave *waves, uint32_t n_waves, const graph_size *size)
{
    int same = encoder->executable != NULL && encoder->n_nodes == size->n_nodes &&
               encoder->n_dependencies == size->n_dependencies;
    uint32_t node = 0, dependency = 0;
    for (uint32_t w = 0; w < n_waves; w++)
        for (const dsri_command *c = waves[w].first; c != NULL; c = c->next_in_wave) {
            for (uint32_t i = 0; i < c->n_launches; i++, node++) {
                const uint32_t n = n_dependencies_of(c, i);
                same = same && encoder->nodes[node].function == function_of(c, i) &&
                       encoder->nodes[node].n_dependencies == n;
                for (uint32_t d = 0; d < n; d++, dependency++)
                    same = same && encoder->dependencies[dependency] == dependency_of(encoder, c, i, node, d);
            }
            encoder->last_nodes[c->index] = node ? node - 1 : 0;
        }
    return same;
}

static dsr_status update_graph(dsri_cuda_encoder *encoder, const dsri_wave *waves, uint32_t n_waves)
{
    dsri_cuda_device *device = encoder->device;
    dsr_status status = DSR_OK;
    uint32_t node = 0;
    for (uint32_t w = 0; w < n_waves; w++)
        for (const dsri_command *c = waves[w].first; c != NULL; c = c->next_in_wave)
            for (uint32_t i = 0; i < c->n_launches && status == DSR_OK; i++, node++) {
                launch_arguments arguments;
                dsri_cuda_node_params p;
                node_params(encoder, c, i, &arguments, &p);
                status = dsri_cuda_check(
                    device,
                    device->driver.cuGraphExecKernelNodeSetParams(encoder->executable, encoder->nodes[node].node, &p),
                    c->kernel_names[i]);
            }
    return status;
}

/* Edges from encoder->dependency_nodes to a node that waits for them itself. */
static dsr_status add_early_edges(dsri_cuda_encoder *encoder, const dsri_cuda_node *node)
{
    dsri_cuda_device *device = encoder->device;
    const dsri_cuda_edge edge = {.from_port = DSRI_CU_PORT_PROGRAMMATIC, .type = DSRI_CU_DEPENDENCY_PROGRAMMATIC};
    dsr_status status = DSR_OK;
    for (uint32_t d = 0; d < node->n_dependencies && status == DSR_OK; d++)
        status = dsri_cuda_check(
            device,
            device->driver.cuGraphAddDependencies(encoder->graph, &encoder->dependency_nodes[d], &node->node, &edge, 1),
            "cuGraphAddDependencies");
    return status;
}

static dsr_status add_node(dsri_cuda_encoder *encoder, const dsri_command *c, uint32_t launch)
{
    dsri_cuda_device *device = encoder->device;
    dsri_cuda_node *node = &encoder->nodes[encoder->n_nodes];
    node->function = function_of(c, launch);
    node->n_dependencies = n_dependencies_of(c, launch);
    for (uint32_t d = 0; d < node->n_dependencies; d++) {
        const uint32_t number = dependency_of(encoder, c, launch, encoder->n_nodes, d);
        encoder->dependencies[encoder->n_dependencies + d] = number;
        encoder->dependency_nodes[d] = encoder->nodes[number].node;
    }
    encoder->n_dependencies += node->n_dependencies;
    launch_arguments arguments;
    dsri_cuda_node_params p;
    node_params(encoder, c, launch, &arguments, &p);
    encoder->n_nodes++;
    const int is_early = may_begin_early(c, launch);
    const dsr_status status =
        dsri_cuda_check(device,
                        device->driver.cuGraphAddKernelNode(&node->node, encoder->graph, encoder->dependency_nodes,
                                                            is_early ? 0 : node->n_dependencies, &p),
                        c->kernel_names[launch]);
    return status == DSR_OK && is_early ? add_early_edges(encoder, node) : status;
}

static dsr_status build_graph(dsri_cuda_encoder *encoder, const dsri_wave *waves, uint32_t n_waves)
{
    dsri_cuda_device *device = encoder->device;
    dsri_cuda_release_graph(encoder);
    dsr_status status = dsri_cuda_check(device, device->driver.cuGraphCreate(&encoder->graph, 0), "cuGraphCreate");
    for (uint32_t w = 0; w < n_waves; w++)
        for (const dsri_command *c = waves[w].first; c != NULL && status == DSR_OK; c = c->next_in_wave)
            for (uint32_t i = 0; i < c->n_launches && status == DSR_OK; i++)
                status = add_node(encoder, c, i);
    if (status == DSR_OK)
        status = dsri_cuda_check(device, device->driver.cuGraphInstantiate(&encoder->executable, encoder->graph, 0),
                                 "cuGraphInstantiateWithFlags");
    if (status != DSR_OK)
        dsri_cuda_release_graph(encoder);
    return status;
}

/* Makes the executable graph that of the commands; a replay finds it so. */
static dsr_status bring_up_to_date(dsri_cuda_encoder *encoder, const dsri_wave *waves, uint32_t n_waves,
                                   const graph_size *size)
{
    dsr_status status = encoder->is_current ? DSR_OK : reserve(encoder, size);
    if (status == DSR_OK && !encoder->is_current)
        status = same_graph(encoder, waves, n_waves, size) ? update_graph(encoder, waves, n_waves)
                                                           : build_graph(encoder, waves, n_waves);
    encoder->is_current = status == DSR_OK;
    return status;
}

dsr_status dsri_cuda_run(dsri_cuda_encoder *encoder, const dsri_wave *waves, uint32_t n_waves)
{
    dsri_cuda_device *device = encoder->device;
    const graph_size size = size_of(waves, n_waves);
    if (size.n_nodes == 0)
        return DSR_OK;
    int is_capturing = 0;
    dsr_status status = DSR_OK;
    if (encoder->stream != encoder->own_stream)
        status = dsri_cuda_check(device, device->driver.cuStreamIsCapturing(encoder->stream, &is_capturing),
                                 "cuStreamIsCapturing");
    if (status != DSR_OK || is_capturing)
        return status == DSR_OK ? launch_all(encoder, waves, n_waves) : status;
    status = bring_up_to_date(encoder, waves, n_waves, &size);
    if (status == DSR_OK)
        status = dsri_cuda_check(device, device->driver.cuGraphLaunch(encoder->executable, encoder->stream),
                                 "cuGraphLaunch");
    if (status != DSR_OK)
        return status;
    encoder->in_flight = 1;
    if (encoder->stream == encoder->own_stream)
        return DSR_OK;
    return dsri_cuda_check(device, device->driver.cuEventRecord(encoder->done, encoder->stream), "cuEventRecord");
}
