/* Running an encoder's commands. They become a graph whose edges are the commands' dependencies; while the list of
 * kernels and edges stays the same from submit to submit, only the nodes' arguments and grids are updated. */
#include "core/arena.h"
#include "cuda/cuda_caller_kernel.h"
#include "cuda/cuda_plan.h"
#include "ops/op_plans.h"

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

/* The driver reads whole plans, of which the arena has the rows in use: the largest may not reach behind its margin. */
_Static_assert(sizeof(dsri_attention_plan) <= DSRI_ARENA_MARGIN_BYTES, "margin");
_Static_assert(sizeof(dsri_indexer_plan) <= DSRI_ARENA_MARGIN_BYTES, "margin");
_Static_assert(sizeof(dsri_append_plan) <= DSRI_ARENA_MARGIN_BYTES, "margin");
_Static_assert(sizeof(dsri_convert_plan) <= DSRI_ARENA_MARGIN_BYTES, "margin");

/* What kernels that take a third argument get where nothing follows. */
static const dsri_rope_plan no_rotation;

static void own_params(const dsri_cuda_encoder *encoder, const dsri_cuda_node *node, launch_arguments *arguments,
                       dsri_cuda_node_params *params)
{
    const dsri_command *const *members = &encoder->plan.members[node->first_member];
    const dsri_command *command = members[0], *follower = node->n_members > 1 ? members[1] : NULL;
    const dsri_cuda_entry *entry = command->kernel;
    const dsri_cuda_launch *l = &entry->kernel->launches[node->launch];
    const dsri_cuda_grid grid = l->grid(command->plan);
    arguments->zeroed = encoder->zeroed + command->backend_value;
    arguments->pointers[0] = address_of(command->plan);
    arguments->pointers[1] = &arguments->zeroed;
    arguments->pointers[2] = address_of(follower != NULL ? follower->plan : &no_rotation);
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

/* Puts the members' plans and grids into encoder->bundle. */
static void bundle_params(dsri_cuda_encoder *encoder, const dsri_cuda_node *node, launch_arguments *arguments,
                          dsri_cuda_node_params *params)
{
    dsri_bundle *bundle = &encoder->bundle;
    const dsri_command *const *members = &encoder->plan.members[node->first_member];
    uint32_t n_blocks = 0, n_words = 0, n_items = 0;
    for (uint32_t i = 0; i < node->n_members; i++) {
        const dsri_command *command = members[i];
        const dsri_cuda_entry *entry = command->kernel;
        const dsri_cuda_grid grid = entry->kernel->launches[0].grid(command->plan);
        const uint32_t own_words = dsri_cuda_bundled_words(command);
        if (command->wave > members[0]->wave) { /* follows the member before */
            bundle->items[n_items - 1].follower_word = n_words;
        } else {
            bundle->items[n_items++] =
                (dsri_bundle_item){entry->kernel->bundle, n_blocks, {grid.x, grid.y, grid.z}, n_words, 0};
            n_blocks += grid.x * grid.y * grid.z;
        }
        memcpy(&bundle->plans[n_words], command->plan, own_words * sizeof bundle->plans[0]);
        n_words += own_words;
    }
    bundle->n_items = n_items;
    arguments->zeroed = encoder->zeroed;
    arguments->pointers[0] = bundle;
    arguments->pointers[1] = &arguments->zeroed;
    params->grid[0] = n_blocks;
    params->grid[1] = params->grid[2] = 1;
    params->block[0] = DSRI_BUNDLE_THREADS;
    params->block[1] = params->block[2] = 1;
}

static void node_params(dsri_cuda_encoder *encoder, const dsri_cuda_node *node, launch_arguments *arguments,
                        dsri_cuda_node_params *params)
{
    const dsri_command *command = encoder->plan.members[node->first_member];
    memset(params, 0, sizeof *params);
    params->function = node->function;
    params->arguments = arguments->pointers;
    if (node->is_bundle)
        bundle_params(encoder, node, arguments, params);
    else if (command->op == DSRI_OP_CUSTOM)
        callers_params(command, arguments, params);
    else
        own_params(encoder, node, arguments, params);
}

static const char *name_of(const dsri_cuda_encoder *encoder, const dsri_cuda_node *node)
{
    return node->is_bundle ? dsri_cuda_bundle_entry
                           : encoder->plan.members[node->first_member]->kernel_names[node->launch];
}

static int may_begin_early(const dsri_cuda_encoder *encoder, const dsri_cuda_node *node)
{
    const dsri_command *command = encoder->plan.members[node->first_member];
    const dsri_cuda_entry *entry = command->kernel;
    if (node->is_bundle)
        return encoder->device->bundle_may_begin_early;
    return command->op != DSRI_OP_CUSTOM && entry->may_begin_early[node->launch];
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
    encoder->built.n_nodes = encoder->built.n_dependencies = 0;
}

void dsri_cuda_release_plans(dsri_cuda_encoder *encoder)
{
    const dsr_allocator *allocator = &encoder->device->context->allocator;
    dsri_cuda_plan_free(allocator, &encoder->plan);
    dsri_cuda_plan_free(allocator, &encoder->built);
    dsri_release(allocator, encoder->handles, encoder->handles_capacity * sizeof *encoder->handles);
    dsri_release(allocator, encoder->dependency_handles,
                 encoder->dependency_handles_capacity * sizeof *encoder->dependency_handles);
}

static dsr_status fail_memory(const dsri_cuda_encoder *encoder)
{
    return dsri_fail(encoder->device->context, DSR_ERR_OUT_OF_MEMORY, "submit: no memory for a graph");
}

/* ---- into a stream that is being captured ---- */

static dsr_status launch_node(dsri_cuda_encoder *encoder, const dsri_cuda_node *node)
{
    dsri_cuda_device *device = encoder->device;
    launch_arguments arguments;
    dsri_cuda_node_params p;
    node_params(encoder, node, &arguments, &p);
    dsri_cuda_launch_attribute attribute = {.id = DSRI_CU_LAUNCH_PROGRAMMATIC_SERIALIZATION, .value = {1}};
    dsri_cuda_launch_config config = {.shared_bytes = p.shared_bytes,
                                      .stream = encoder->stream,
                                      .attributes = &attribute,
                                      .n_attributes = may_begin_early(encoder, node) ? 1 : 0};
    memcpy(config.grid, p.grid, sizeof config.grid);
    memcpy(config.block, p.block, sizeof config.block);
    return dsri_cuda_check(device, device->driver.cuLaunchKernelEx(&config, p.function, p.arguments, NULL),
                           name_of(encoder, node));
}

static dsr_status launch_all(dsri_cuda_encoder *encoder, const dsri_wave *waves, uint32_t n_waves)
{
    dsr_status status = DSR_OK;
    if (!dsri_cuda_plan_make(encoder->device, &encoder->plan, waves, n_waves))
        return fail_memory(encoder);
    for (uint32_t i = 0; i < encoder->plan.n_nodes && status == DSR_OK; i++)
        status = launch_node(encoder, &encoder->plan.nodes[i]);
    return status;
}

/* ---- as a graph ---- */

static dsr_status update_graph(dsri_cuda_encoder *encoder)
{
    dsri_cuda_device *device = encoder->device;
    dsr_status status = DSR_OK;
    for (uint32_t i = 0; i < encoder->plan.n_nodes && status == DSR_OK; i++) {
        const dsri_cuda_node *node = &encoder->plan.nodes[i];
        launch_arguments arguments;
        dsri_cuda_node_params p;
        node_params(encoder, node, &arguments, &p);
        status = dsri_cuda_check(
            device, device->driver.cuGraphExecKernelNodeSetParams(encoder->executable, encoder->handles[i], &p),
            name_of(encoder, node));
    }
    return status;
}

/* Edges from encoder->dependency_handles to a node that waits for them itself. */
static dsr_status add_early_edges(dsri_cuda_encoder *encoder, const CUgraphNode *handle, uint32_t n)
{
    dsri_cuda_device *device = encoder->device;
    const dsri_cuda_edge edge = {.from_port = DSRI_CU_PORT_PROGRAMMATIC, .type = DSRI_CU_DEPENDENCY_PROGRAMMATIC};
    dsr_status status = DSR_OK;
    for (uint32_t d = 0; d < n && status == DSR_OK; d++)
        status = dsri_cuda_check(
            device,
            device->driver.cuGraphAddDependencies(encoder->graph, &encoder->dependency_handles[d], handle, &edge, 1),
            "cuGraphAddDependencies");
    return status;
}

static dsr_status add_node(dsri_cuda_encoder *encoder, uint32_t number)
{
    dsri_cuda_device *device = encoder->device;
    const dsri_cuda_node *node = &encoder->plan.nodes[number];
    for (uint32_t d = 0; d < node->n_dependencies; d++)
        encoder->dependency_handles[d] = encoder->handles[encoder->plan.dependencies[node->first_dependency + d]];
    launch_arguments arguments;
    dsri_cuda_node_params p;
    node_params(encoder, node, &arguments, &p);
    const int is_early = may_begin_early(encoder, node);
    const dsr_status status = dsri_cuda_check(
        device,
        device->driver.cuGraphAddKernelNode(&encoder->handles[number], encoder->graph, encoder->dependency_handles,
                                            is_early ? 0 : node->n_dependencies, &p),
        name_of(encoder, node));
    return status == DSR_OK && is_early ? add_early_edges(encoder, &encoder->handles[number], node->n_dependencies)
                                        : status;
}

static int reserve_handles(dsri_cuda_encoder *encoder)
{
    const dsr_allocator *allocator = &encoder->device->context->allocator;
    return dsri_cuda_reserve_handles(allocator, &encoder->handles, &encoder->handles_capacity, encoder->plan.n_nodes) &&
           dsri_cuda_reserve_handles(allocator, &encoder->dependency_handles, &encoder->dependency_handles_capacity,
                                     encoder->plan.n_dependencies);
}

static dsr_status build_graph(dsri_cuda_encoder *encoder)
{
    dsri_cuda_device *device = encoder->device;
    dsri_cuda_release_graph(encoder);
    if (!reserve_handles(encoder))
        return fail_memory(encoder);
    dsr_status status = dsri_cuda_check(device, device->driver.cuGraphCreate(&encoder->graph, 0), "cuGraphCreate");
    for (uint32_t i = 0; i < encoder->plan.n_nodes && status == DSR_OK; i++)
        status = add_node(encoder, i);
    if (status == DSR_OK)
        status = dsri_cuda_check(device, device->driver.cuGraphInstantiate(&encoder->executable, encoder->graph, 0),
                                 "cuGraphInstantiateWithFlags");
    if (status != DSR_OK) {
        dsri_cuda_release_graph(encoder);
        return status;
    }
    const dsri_cuda_plan old = encoder->built;
    encoder->built = encoder->plan;
    encoder->plan = old;
    return DSR_OK;
}

/* Makes the executable graph that of the commands; a replay finds it so. */
static dsr_status bring_up_to_date(dsri_cuda_encoder *encoder, const dsri_wave *waves, uint32_t n_waves)
{
    if (encoder->is_current)
        return DSR_OK;
    if (!dsri_cuda_plan_make(encoder->device, &encoder->plan, waves, n_waves))
        return fail_memory(encoder);
    const dsr_status status = encoder->executable != NULL && dsri_cuda_plan_is_like(&encoder->plan, &encoder->built)
                                  ? update_graph(encoder)
                                  : build_graph(encoder);
    encoder->is_current = status == DSR_OK;
    return status;
}

dsr_status dsri_cuda_run(dsri_cuda_encoder *encoder, const dsri_wave *waves, uint32_t n_waves)
{
    dsri_cuda_device *device = encoder->device;
    int is_capturing = 0;
    dsr_status status = DSR_OK;
    if (encoder->stream != encoder->own_stream)
        status = dsri_cuda_check(device, device->driver.cuStreamIsCapturing(encoder->stream, &is_capturing),
                                 "cuStreamIsCapturing");
    if (status != DSR_OK || is_capturing)
        return status == DSR_OK ? launch_all(encoder, waves, n_waves) : status;
    status = bring_up_to_date(encoder, waves, n_waves);
    if (status == DSR_OK)
        status = dsri_cuda_check(device, device->driver.cuGraphLaunch(encoder->executable, encoder->stream),
                                 "cuGraphLaunch");
    if (status != DSR_OK)
        return status;
    encoder->in_flight = 1;
    if (encoder->stream == encoder->own_stream)
        return DSR_OK;
    status = dsri_cuda_check(device, device->driver.cuEventRecord(encoder->done, encoder->stream), "cuEventRecord");
    if (status != DSR_OK) { /* nothing could wait for these kernels later */
        (void)device->driver.cuStreamSynchronize(encoder->stream);
        encoder->in_flight = 0;
    }
    return status;
}
