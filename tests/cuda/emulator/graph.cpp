#include "emulator.h"

#include <string.h>

#include <algorithm>
#include <string>
#include <vector>

namespace
{

struct graph_node {
    emulated_launch launch;
    std::string entry;
    std::vector<std::vector<uint64_t>> values; /* of the arguments; empty for unknown entries */
    std::vector<uint32_t> depends_on;
};

uint32_t number_of(const void *handle)
{
    return (uint32_t)(uintptr_t)handle - 1;
}

void set_launch(graph_node &node, const emulated_launch *launch)
{
    const emulated_kernel *kernel = emulator_find(launch->entry);
    const int may_begin_early = node.launch.may_begin_early;
    node.launch = *launch;
    node.launch.may_begin_early = may_begin_early;
    node.entry = launch->entry;
    node.values.clear();
    for (uint32_t i = 0; kernel != nullptr && i < kernel->n_arguments; i++) {
        node.values.emplace_back((kernel->argument_bytes[i] + 7) / 8);
        memcpy(node.values[i].data(), launch->arguments[i], kernel->argument_bytes[i]);
    }
}

int run_node(graph_node &node)
{
    std::vector<void *> arguments;
    for (std::vector<uint64_t> &value : node.values)
        arguments.push_back(value.data());
    node.launch.entry = node.entry.c_str();
    node.launch.arguments = arguments.data();
    return emulator_run(&node.launch);
}

} // namespace

struct emulated_graph {
    std::vector<graph_node> nodes;
};

extern "C" {

emulated_graph *emulator_graph_create(void)
{
    return new emulated_graph;
}

emulated_graph *emulator_graph_copy(const emulated_graph *graph)
{
    return new emulated_graph(*graph);
}

void emulator_graph_destroy(emulated_graph *graph)
{
    delete graph;
}

void emulator_graph_add(emulated_graph *graph, const emulated_launch *launch, void *const *depends_on, size_t n)
{
    graph->nodes.emplace_back(); /* all zeros */
    set_launch(graph->nodes.back(), launch);
    for (size_t i = 0; i < n; i++)
        graph->nodes.back().depends_on.push_back(number_of(depends_on[i]));
}

void emulator_graph_depend(emulated_graph *graph, const void *from, const void *to, int is_early)
{
    graph_node &node = graph->nodes.at(number_of(to));
    node.depends_on.push_back(number_of(from));
    node.launch.may_begin_early |= is_early;
}

void emulator_graph_update(emulated_graph *graph, const void *node, const emulated_launch *launch)
{
    set_launch(graph->nodes.at(number_of(node)), launch);
}

int emulator_graph_run(emulated_graph *graph)
{
    std::vector<bool> is_done(graph->nodes.size());
    for (size_t n_done = 0; n_done < graph->nodes.size(); n_done++) {
        std::vector<uint32_t> possible;
        for (uint32_t i = 0; i < graph->nodes.size(); i++) {
            const std::vector<uint32_t> &needed = graph->nodes[i].depends_on;
            if (!is_done[i] && std::all_of(needed.begin(), needed.end(), [&](uint32_t n) { return (bool)is_done[n]; }))
                possible.push_back(i);
        }
        const uint32_t next = possible.at(emulator_draw((uint32_t)possible.size()));
        const int result = run_node(graph->nodes[next]);
        if (result != 0)
            return result;
        is_done[next] = true;
    }
    return 0;
}
}
