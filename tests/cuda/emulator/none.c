/* In place of the emulator in a driver library that runs nothing: every entry is unknown. */
#include "emulator.h"

const emulated_kernel *emulator_find(const char *name)
{
    (void)name;
    return NULL;
}

int emulator_compute(void)
{
    return 90;
}

void emulator_allow_shared(const char *entry, uint32_t n_bytes)
{
    (void)entry;
    (void)n_bytes;
}

void emulator_allow_cluster(const char *entry)
{
    (void)entry;
}

int emulator_run(const emulated_launch *launch)
{
    (void)launch;
    return 0;
}

emulated_graph *emulator_graph_create(void)
{
    return NULL;
}

emulated_graph *emulator_graph_copy(const emulated_graph *graph)
{
    (void)graph;
    return NULL;
}

void emulator_graph_destroy(emulated_graph *graph)
{
    (void)graph;
}

void emulator_graph_add(emulated_graph *graph, const emulated_launch *launch, void *const *depends_on, size_t n)
{
    (void)graph;
    (void)launch;
    (void)depends_on;
    (void)n;
}

void emulator_graph_depend(emulated_graph *graph, const void *from, const void *to, int is_early)
{
    (void)graph;
    (void)from;
    (void)to;
    (void)is_early;
}

void emulator_graph_update(emulated_graph *graph, const void *node, const emulated_launch *launch)
{
    (void)graph;
    (void)node;
    (void)launch;
}

int emulator_graph_run(emulated_graph *graph)
{
    (void)graph;
    return 0;
}

void emulator_allocated(void *memory, size_t n_bytes)
{
    (void)memory;
    (void)n_bytes;
}

void emulator_freed(const void *memory)
{
    (void)memory;
}

void emulator_written(const void *memory, size_t n_bytes)
{
    (void)memory;
    (void)n_bytes;
}

int emulator_works_here(void)
{
    return 1;
}
