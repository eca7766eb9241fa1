/* Which kernels an encoder's commands run: nodes with dependencies. Small commands of a wave share one. */
#include "cuda/cuda_plan.h"

#include "cuda/cuda_caller_kernel.h"

/* Makes an array hold `needed` elements; its contents are lost when it grows. */
static int reserve_array(const dsr_allocator *allocator, void **array, uint32_t *capacity, uint32_t needed,
                         size_t element_bytes)
{
    if (needed <= *capacity)
        return 1;
    void *larger = dsri_allocate(allocator, 2 * (size_t)needed * element_bytes, 64);
    if (larger == NULL)
        return 0;
    dsri_release(allocator, *array, *capacity * element_bytes);
    *array = larger;
    *capacity = 2 * needed;
    return 1;
}

int dsri_cuda_reserve_handles(const dsr_allocator *allocator, CUgraphNode **handles, uint32_t *capacity,
                              uint32_t needed)
{
    void *array = *handles;
    const int is_enough = reserve_array(allocator, &array, capacity, needed, sizeof **handles);
    *handles = array;
    return is_enough;
}

typedef struct plan_size {
    uint32_t n_nodes, n_dependencies, n_commands, n_indices; /* at most; one more than the greatest index */
} plan_size;

static plan_size size_of(const dsri_wave *waves, uint32_t n_waves)
{
    plan_size size = {0, 0, 0, 0};
    for (uint32_t w = 0; w < n_waves; w++)
        for (const dsri_command *c = waves[w].first; c != NULL; c = c->next_in_wave) {
            size.n_nodes += c->n_launches;
            size.n_dependencies += c->n_depends_on + c->n_launches;
            size.n_commands++;
            size.n_indices = c->index + 1 > size.n_indices ? c->index + 1 : size.n_indices;
        }
    return size;
}

static int reserve(const dsr_allocator *allocator, dsri_cuda_plan *plan, const plan_size *size)
{
    void *nodes = plan->nodes, *dependencies = plan->dependencies, *members = plan->members, *last = plan->last_nodes;
    const int is_enough =
        reserve_array(allocator, &nodes, &plan->nodes_capacity, size->n_nodes, sizeof *plan->nodes) &&
        reserve_array(allocator, &dependencies, &plan->dependencies_capacity, size->n_dependencies,
                      sizeof *plan->dependencies) &&
        reserve_array(allocator, &members, &plan->members_capacity, size->n_commands, sizeof *plan->members) &&
        reserve_array(allocator, &last, &plan->last_nodes_capacity, size->n_indices, sizeof *plan->last_nodes);
    plan->nodes = nodes;
    plan->dependencies = dependencies;
    plan->members = members;
    plan->last_nodes = last;
    return is_enough;
}

void dsri_cuda_plan_free(const dsr_allocator *allocator, dsri_cuda_plan *plan)
{
    dsri_release(allocator, plan->nodes, plan->nodes_capacity * sizeof *plan->nodes);
    dsri_release(allocator, plan->dependencies, plan->dependencies_capacity * sizeof *plan->dependencies);
    dsri_release(allocator, plan->members, plan->members_capacity * sizeof *plan->members);
    dsri_release(allocator, plan->last_nodes, plan->last_nodes_capacity * sizeof *plan->last_nodes);
}

/* ---- dependencies ---- */

static int waits_for(const dsri_command *later, const dsri_command *earlier)
{
    return earlier->index < later->index && (later->ancestors[earlier->index / 64] >> (earlier->index % 64) & 1);
}

/* Whether a command of one node waits for one of another. */
static int is_before(const dsri_cuda_plan *plan, uint32_t earlier, uint32_t later)
{
    const dsri_cuda_node *a = &plan->nodes[earlier], *b = &plan->nodes[later];
    for (uint32_t i = 0; i < a->n_members; i++)
        for (uint32_t k = 0; k < b->n_members; k++)
            if (waits_for(plan->members[b->first_member + k], plan->members[a->first_member + i]))
                return 1;
    return 0;
}

/* Adds a number unless it is there. */
static void add_number(uint32_t *numbers, uint32_t *n, uint32_t number)
{
    for (uint32_t i = 0; i < *n; i++)
        if (numbers[i] == number)
            return;
    numbers[(*n)++] = number;
}

/* Leaves out the nodes that another of them waits for. */
static uint32_t reduce(const dsri_cuda_plan *plan, uint32_t *numbers, uint32_t n)
{
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        int is_needed = 1;
        for (uint32_t k = 0; k < n && is_needed; k++)
            is_needed = k == i || !is_before(plan, numbers[i], numbers[k]);
        if (is_needed) {
            const uint32_t kept = numbers[i]; /* moved, not overwritten: later ones are compared with all */
            numbers[i] = numbers[n_kept];
            numbers[n_kept++] = kept;
        }
    }
    return n_kept;
}

static void find_dependencies(dsri_cuda_plan *plan, dsri_cuda_node *node)
{
    uint32_t *numbers = plan->dependencies + plan->n_dependencies, n = 0;
    if (node->launch > 0) {
        numbers[n++] = plan->n_nodes - 1;
    } else {
        for (uint32_t m = 0; m < node->n_members; m++) {
            const dsri_command *c = plan->members[node->first_member + m];
            for (uint32_t d = 0; d < c->n_depends_on; d++)
                if (plan->last_nodes[c->depends_on[d]] != DSRI_NO_NODE) /* a follower waits for a member of its node */
                    add_number(numbers, &n, plan->last_nodes[c->depends_on[d]]);
        }
        n = reduce(plan, numbers, n);
    }
    node->first_dependency = plan->n_dependencies;
    node->n_dependencies = n;
    plan->n_dependencies += n;
}

/* ---- nodes ---- */

static CUfunction function_of(const dsri_command *command, uint32_t launch)
{
    const dsri_cuda_entry *entry = command->kernel;
    return command->op == DSRI_OP_CUSTOM ? dsri_cuda_caller_kernel_of(command)->function : entry->functions[launch];
}

static dsri_bundle_code code_of(const dsri_command *command)
{
    const dsri_cuda_entry *entry = command->kernel;
    return command->op == DSRI_OP_CUSTOM ? DSRI_BUNDLE_NONE : entry->kernel->bundle;
}

uint32_t dsri_cuda_bundled_words(const dsri_command *command)
{
    return (uint32_t)((dsri_cuda_bundled_bytes(code_of(command), command->plan) + 7) / 8);
}

static int may_share(const dsri_command *command)
{
    return code_of(command) != DSRI_BUNDLE_NONE && dsri_cuda_bundled_words(command) <= DSRI_BUNDLE_BYTES / 8;
}

static void add_node(const dsri_cuda_device *device, dsri_cuda_plan *plan, uint32_t first_member, uint32_t n_members,
                     uint32_t launch)
{
    dsri_cuda_node *node = &plan->nodes[plan->n_nodes];
    node->first_member = first_member;
    node->n_members = n_members;
    node->launch = launch;
    node->is_bundle = n_members > 1 && may_share(plan->members[first_member]);
    node->function = node->is_bundle ? device->bundle : function_of(plan->members[first_member], launch);
    find_dependencies(plan, node);
    for (uint32_t m = 0; m < n_members; m++)
        plan->last_nodes[plan->members[first_member + m]->index] = plan->n_nodes;
    plan->n_nodes++;
}

/* Whether a node has the command already, as a follower. */
static int has_node(const dsri_cuda_plan *plan, const dsri_command *command)
{
    return plan->last_nodes[command->index] != DSRI_NO_NODE;
}

static void add_member(dsri_cuda_plan *plan, const dsri_command *command, const dsri_command *follower)
{
    plan->members[plan->n_members++] = command;
    if (follower != NULL)
        plan->members[plan->n_members++] = follower;
}

/* One node for as many commands, and their followers of the next wave, as go into a bundle. */
static void add_shared_nodes(const dsri_cuda_device *device, dsri_cuda_plan *plan, const dsri_wave *wave,
                             const dsri_wave *next)
{
    uint32_t first = plan->n_members, n_items = 0, n_words = 0;
    for (const dsri_command *c = wave->first; c != NULL; c = c->next_in_wave) {
        if (!may_share(c) || has_node(plan, c))
            continue;
        const dsri_command *follower = dsri_cuda_find_follower(device->context->exactness, c, next);
        uint32_t own_words = dsri_cuda_bundled_words(c);
        if (follower != NULL)
            own_words += dsri_cuda_bundled_words(follower);
        if (n_items == DSRI_BUNDLE_ITEMS || n_words + own_words > DSRI_BUNDLE_BYTES / 8) {
            add_node(device, plan, first, plan->n_members - first, 0);
            first = plan->n_members;
            n_items = n_words = 0;
        }
        add_member(plan, c, follower);
        n_items++;
        n_words += own_words;
    }
    if (plan->n_members > first)
        add_node(device, plan, first, plan->n_members - first, 0);
}

static void add_own_nodes(const dsri_cuda_device *device, dsri_cuda_plan *plan, const dsri_wave *wave,
                          const dsri_wave *next)
{
    for (const dsri_command *c = wave->first; c != NULL; c = c->next_in_wave) {
        if (may_share(c) || has_node(plan, c))
            continue;
        const uint32_t first = plan->n_members;
        add_member(plan, c, dsri_cuda_find_follower(device->context->exactness, c, next));
        for (uint32_t i = 0; i < c->n_launches; i++)
            add_node(device, plan, first, plan->n_members - first, i);
    }
}

int dsri_cuda_plan_make(const dsri_cuda_device *device, dsri_cuda_plan *plan, const dsri_wave *waves, uint32_t n_waves)
{
    const plan_size size = size_of(waves, n_waves);
    plan->n_nodes = plan->n_dependencies = plan->n_members = 0;
    if (!reserve(&device->context->allocator, plan, &size))
        return 0;
    for (uint32_t i = 0; i < size.n_indices; i++)
        plan->last_nodes[i] = DSRI_NO_NODE;
    for (uint32_t w = 0; w < n_waves; w++) {
        const dsri_wave *next = w + 1 < n_waves ? &waves[w + 1] : NULL;
        add_shared_nodes(device, plan, &waves[w], next);
        add_own_nodes(device, plan, &waves[w], next);
    }
    return 1;
}

int dsri_cuda_plan_is_like(const dsri_cuda_plan *a, const dsri_cuda_plan *b)
{
    int is_like = a->n_nodes == b->n_nodes && a->n_dependencies == b->n_dependencies;
    for (uint32_t i = 0; i < a->n_nodes && is_like; i++)
        is_like =
            a->nodes[i].function == b->nodes[i].function && a->nodes[i].n_dependencies == b->nodes[i].n_dependencies;
    for (uint32_t i = 0; i < a->n_dependencies && is_like; i++)
        is_like = a->dependencies[i] == b->dependencies[i];
    return is_like;
}
