/* All kernels, compiled for the host, and the table by which a driver finds them. */
#include "device.h"

#include "all_kernels.cu"

#undef __launch_bounds__
#undef __cluster_dims__
#define __launch_bounds__(...) .threads(__VA_ARGS__)
#define __cluster_dims__(...)  .blocks(__VA_ARGS__)

namespace
{

struct attributes {
    uint32_t cluster[3] = {1, 1, 1};
    uint32_t max_threads = 1024;

    attributes &threads(uint32_t most, uint32_t = 0, uint32_t = 0)
    {
        max_threads = most;
        return *this;
    }
    attributes &blocks(uint32_t x, uint32_t y = 1, uint32_t z = 1)
    {
        cluster[0] = x, cluster[1] = y, cluster[2] = z;
        return *this;
    }
};

template <auto F> struct caller;

template <typename... Arguments, void (*F)(Arguments...)> struct caller<F> {
    static constexpr size_t bytes[] = {sizeof(Arguments)...};

    template <size_t... I> static void call_with(void **arguments, std::index_sequence<I...>)
    {
        F(*static_cast<std::remove_cv_t<Arguments> *>(arguments[I])...);
    }
    static void call(void **arguments)
    {
        call_with(arguments, std::index_sequence_for<Arguments...>());
    }
    static emulated_kernel describe(const char *name, const attributes &a)
    {
        return {name, call, sizeof...(Arguments), bytes, {a.cluster[0], a.cluster[1], a.cluster[2]}, a.max_threads};
    }
};

const emulated_kernel table[] = {
#define KERNEL(name, ...) caller<name>::describe(#name, attributes() __VA_ARGS__),
#include "kernel_list.inc"
#undef KERNEL
};

} // namespace

extern "C" const emulated_kernel *emulator_find(const char *name)
{
    for (const emulated_kernel &kernel : table)
        if (strcmp(kernel.name, name) == 0)
            return &kernel;
    return nullptr;
}
