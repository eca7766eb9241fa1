/* Kernels run on plans directly, tasks in random order, at every instruction set of this build and machine. */
#ifndef TEST_EDGE_KERNEL_TEST_H
#define TEST_EDGE_KERNEL_TEST_H

#include "cpu/cpu_kernel.h"
#include "guarded_memory.h"
#include "patterns.h"
#include "random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define DECLARE_KERNEL(name, isa) extern const dsri_cpu_kernel dsri_kernel_##name##__##isa;
#define DECLARE_EDGE_KERNELS(isa)                                                                                      \
    DECLARE_KERNEL(compressor, isa)                                                                                    \
    DECLARE_KERNEL(gather, isa)                                                                                        \
    DECLARE_KERNEL(copy, isa)                                                                                          \
    DECLARE_KERNEL(rope, isa)                                                                                          \
    DECLARE_KERNEL(fake_quant, isa)                                                                                    \
    DECLARE_KERNEL(rms_norm, isa)                                                                                      \
    DECLARE_KERNEL(projection, isa)
DECLARE_EDGE_KERNELS(scalar)
#ifdef DSRI_HAVE_AVX2
DECLARE_EDGE_KERNELS(avx2)
#define KERNEL_AVX2(name) , &dsri_kernel_##name##__avx2
#else
#define KERNEL_AVX2(name)
#endif
#ifdef DSRI_HAVE_AVX512
DECLARE_EDGE_KERNELS(avx512)
#define KERNEL_AVX512(name) , &dsri_kernel_##name##__avx512
#else
#define KERNEL_AVX512(name)
#endif
#ifdef DSRI_HAVE_NEON
DECLARE_EDGE_KERNELS(neon)
#define KERNEL_NEON(name) , &dsri_kernel_##name##__neon
#else
#define KERNEL_NEON(name)
#endif

/* Null-terminated. */
#define KERNELS(name)                                                                                                  \
    {                                                                                                                  \
        &dsri_kernel_##name##__scalar KERNEL_AVX2(name) KERNEL_AVX512(name) KERNEL_NEON(name), NULL                    \
    }

/* Run every task of every phase once. */
void run_kernel(const dsri_cpu_kernel *kernel, const void *plan, random_stream *random);
/* Fails with the kernel's name, `what` and the first byte that differs. */
void assert_bits(const dsri_cpu_kernel *kernel, const char *what, const void *got, const void *want, size_t n_bytes);

/* Test memory: each array ends at an unreadable page. Opened before every test and closed after it. */
int open_arrays(void **state);
int close_arrays(void **state);
void *new_array(size_t n_bytes);

#endif
