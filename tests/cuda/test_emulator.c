/* What the emulator of CUDA kernels reports, and what it does not, on small kernels (emulator/faults). */
#include "caller_fp_mode.h"
#include "fake_cuda.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#ifndef EMULATED_FAULTS_LIBRARY
#define EMULATED_FAULTS_LIBRARY ""
#endif

enum { N_WORDS = 128, N_WRITTEN = 64, LAUNCH_FAILED = 719 };

static int (*cuMemAlloc)(unsigned long long *, size_t);
static int (*cuMemFree)(unsigned long long);
static int (*cuMemsetD8Async)(unsigned long long, unsigned char, size_t, void *);
static int (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                             void **, void **);
static int (*cuGraphCreate)(void **, unsigned);
static int (*cuGraphDestroy)(void *);
static int (*cuGraphAddKernelNode)(void **, void *, void *const *, size_t, const void *);
static int (*cuGraphAddDependencies)(void *, void *const *, void *const *, const void *, size_t);
static int (*cuGraphInstantiate)(void **, void *, unsigned long long);
static int (*cuGraphExecDestroy)(void *);
static int (*cuGraphLaunch)(void *, void *);

static void find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    assert_non_null(symbol);
    memcpy(function, &symbol, sizeof symbol);
}

static int open_library(void **state)
{
    (void)state;
    if (EMULATED_FAULTS_LIBRARY[0] == '\0')
        return 0; /* it was not built: the tests skip */
    void *library = dlopen(EMULATED_FAULTS_LIBRARY, RTLD_NOW);
    if (library == NULL)
        return -1;
    find(library, "cuMemAlloc_v2", &cuMemAlloc);
    find(library, "cuMemFree_v2", &cuMemFree);
    find(library, "cuMemsetD8Async", &cuMemsetD8Async);
    find(library, "cuLaunchKernel", &cuLaunchKernel);
    find(library, "cuGraphCreate", &cuGraphCreate);
    find(library, "cuGraphDestroy", &cuGraphDestroy);
    find(library, "cuGraphAddKernelNode_v2", &cuGraphAddKernelNode);
    find(library, "cuGraphAddDependencies_v2", &cuGraphAddDependencies);
    find(library, "cuGraphInstantiateWithFlags", &cuGraphInstantiate);
    find(library, "cuGraphExecDestroy", &cuGraphExecDestroy);
    find(library, "cuGraphLaunch", &cuGraphLaunch);
    return 0;
}

static unsigned has_two_blocks(const char *kernel)
{
    return strstr(kernel, "block") != NULL || strstr(kernel, "cluster") != NULL || strstr(kernel, "peer") != NULL;
}

/* A graph of the kernel twice, of which the second may begin early. */
static int launch_early(const node_params *params)
{
    static const unsigned char edge[8] = {1, 0, 1}; /* from a programmatic port, to any, a programmatic dependency */
    void *graph, *executable, *nodes[2];
    assert_int_equal(cuGraphCreate(&graph, 0), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(cuGraphAddKernelNode(&nodes[i], graph, NULL, 0, params), 0);
    assert_int_equal(cuGraphAddDependencies(graph, &nodes[0], &nodes[1], edge, 1), 0);
    assert_int_equal(cuGraphInstantiate(&executable, graph, 0), 0);
    const int result = cuGraphLaunch(executable, NULL);
    assert_int_equal(cuGraphExecDestroy(executable), 0);
    assert_int_equal(cuGraphDestroy(graph), 0);
    return result;
}

/* Launches a kernel and gives the driver's answer, with what was printed on stderr. */
static int launch(const char *kernel, int is_early, char *text, size_t text_bytes)
{
    unsigned long long data;
    assert_int_equal(cuMemAlloc(&data, N_WORDS * 4), 0);
    assert_int_equal(cuMemsetD8Async(data, 1, N_WRITTEN * 4, NULL), 0);
    union {
        const char *in;
        void *out;
    } name = {kernel};
    void *arguments[] = {&data};
    FILE *messages = tmpfile();
    assert_non_null(messages);
    const int old = dup(2);
    dup2(fileno(messages), 2);
    const node_params params = {.function = name.out,
                                .grid = {1 + has_two_blocks(kernel), 1, 1},
                                .block = {64, 1, 1},
                                .shared_bytes = 256,
                                .arguments = arguments};
    const int result = is_early ? launch_early(&params)
                                : cuLaunchKernel(name.out, params.grid[0], 1, 1, 64, 1, 1, 256, NULL, arguments, NULL);
    dup2(old, 2);
    close(old);
    rewind(messages);
    text[fread(text, 1, text_bytes - 1, messages)] = '\0';
    fclose(messages);
    assert_int_equal(cuMemFree(data), 0);
    return result;
}

static void test_right_kernels_pass(void **state)
{
    (void)state;
    static const char *const kernels[] = {"right_barrier", "right_warp", "right_same_value", "right_atomic",
                                          "right_copy",    "right_bulk", "right_cluster",    "right_last_block",
                                          "right_pairs",   "right_prior"};
    if (cuLaunchKernel == NULL)
        skip();
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        char text[4096];
        const int result = launch(kernels[i], 0, text, sizeof text);
        if (result != 0)
            print_error("%s: %d\n%s", kernels[i], result, text);
        assert_int_equal(result, 0);
        assert_string_equal(text, "");
    }
}

static void test_wrong_kernels_are_reported(void **state)
{
    (void)state;
    static const struct {
        const char *kernel, *message;
    } cases[] = {
        {"wrong_prior_too_late", "after it has touched device memory"},
        {"wrong_no_barrier", "race: reads 4 bytes"},
        {"wrong_no_second_barrier", "race: writes 4 bytes"},
        {"wrong_two_writers", "race: writes 4 bytes"},
        {"wrong_no_warp_order", "race: reads 4 bytes"},
        {"wrong_unwritten", "reads shared memory that nobody wrote"},
        {"wrong_past_the_end", "past the end"},
        {"wrong_half_a_barrier", "returned"},
        {"wrong_two_barriers", "wait for ever"},
        {"wrong_mask", "mask 0xffffffff"},
        {"wrong_lanes_apart", "wait for ever"},
        {"wrong_copy_not_awaited", "asynchronous copy is writing"},
        {"wrong_no_arrival", "wait for ever"},
        {"wrong_no_cluster_barrier", "race: writes 4 bytes"},
        {"wrong_peer_has_ended", "which has ended"},
        {"wrong_outside_of_data", "outside of device memory"},
        {"wrong_last_block", "race: reads 4 bytes of device memory"},
        {"wrong_blocks_collide", "race: writes 4 bytes of device memory"},
        {"wrong_unwritten_data", "reads device memory that nobody wrote"},
        {"wrong_misaligned", "an access of 16 bytes"},
        {"wrong_misaligned_data", "an access of 8 bytes"},
        {"wrong_misaligned_copy", "cp.async"},
        {"wrong_misaligned_atomic", "an atomic operation of 8 bytes"},
    };
    if (cuLaunchKernel == NULL)
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[16384];
        const int result = launch(cases[i].kernel, 0, text, sizeof text);
        if (result != LAUNCH_FAILED || strstr(text, cases[i].message) == NULL)
            print_error("%s: %d, wanted '%s'\n%s", cases[i].kernel, result, cases[i].message, text);
        assert_int_equal(result, LAUNCH_FAILED);
        assert_non_null(strstr(text, cases[i].message));
    }
}

static void test_early_launches_must_wait(void **state)
{
    (void)state;
    if (cuLaunchKernel == NULL)
        skip();
    char text[16384];
    assert_int_equal(launch("right_prior", 1, text, sizeof text), 0);
    assert_string_equal(text, "");
    assert_int_equal(launch("right_barrier", 1, text, sizeof text), LAUNCH_FAILED);
    assert_non_null(strstr(text, "has not waited for the launches before"));
}

static void test_callers_mode_is_not_the_device_s(void **state)
{
    (void)state;
    if (cuLaunchKernel == NULL)
        skip();
    char text[16384];
    const uint64_t saved = caller_fp_set(FP_MODE_FLUSH), before = caller_fp_word();
    const int result = launch("right_subnormal", 0, text, sizeof text);
    const uint64_t after = caller_fp_word();
    caller_fp_restore(saved);
    assert_int_equal(result, 0);
    assert_int_equal(after, before);
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_kernels_pass),
        cmocka_unit_test(test_wrong_kernels_are_reported),
        cmocka_unit_test(test_early_launches_must_wait),
        cmocka_unit_test(test_callers_mode_is_not_the_device_s),
    };
    return cmocka_run_group_tests(tests, open_library, NULL);
}
