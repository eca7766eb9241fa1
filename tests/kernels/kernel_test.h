/* Kernels run on plans directly: every instruction set of this build and machine, tasks in random order, operands that
 * end at unreadable pages. */
#ifndef TEST_KERNEL_TEST_H
#define TEST_KERNEL_TEST_H

#include "bit_diff.h"
#include "cpu/cpu_kernel.h"
#include "guarded_memory.h"
#include "ops/cache_plan.h"
#include "patterns.h"
#include "random.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DECLARE_KERNEL(name, isa) extern const dsri_cpu_kernel dsri_kernel_##name##__##isa
#ifdef DSRI_HAVE_AVX2
#define DECLARE_KERNEL_AVX2(name) DECLARE_KERNEL(name, avx2)
#define KERNEL_AVX2(name)         , &dsri_kernel_##name##__avx2
#else
#define DECLARE_KERNEL_AVX2(name) DECLARE_KERNEL(name, scalar)
#define KERNEL_AVX2(name)
#endif
#ifdef DSRI_HAVE_AVX512
#define DECLARE_KERNEL_AVX512(name) DECLARE_KERNEL(name, avx512)
#define KERNEL_AVX512(name)         , &dsri_kernel_##name##__avx512
#else
#define DECLARE_KERNEL_AVX512(name) DECLARE_KERNEL(name, scalar)
#define KERNEL_AVX512(name)
#endif
#ifdef DSRI_HAVE_NEON
#define DECLARE_KERNEL_NEON(name) DECLARE_KERNEL(name, neon)
#define KERNEL_NEON(name)         , &dsri_kernel_##name##__neon
#else
#define DECLARE_KERNEL_NEON(name) DECLARE_KERNEL(name, scalar)
#define KERNEL_NEON(name)
#endif
/* Defines name##_kernels[]: the kernel at every instruction set of this build, then null. */
#define KERNELS(name)                                                                                                  \
    DECLARE_KERNEL(name, scalar);                                                                                      \
    DECLARE_KERNEL_AVX2(name);                                                                                         \
    DECLARE_KERNEL_AVX512(name);                                                                                       \
    DECLARE_KERNEL_NEON(name);                                                                                         \
    static const dsri_cpu_kernel *const name##_kernels[] = {                                                           \
        &dsri_kernel_##name##__scalar KERNEL_AVX2(name) KERNEL_AVX512(name) KERNEL_NEON(name), NULL}

/* BF16 entries in one piece, `stride` elements apart. */
static inline dsri_cache plain_cache(const uint16_t *entries, uint64_t stride)
{
    return (dsri_cache){.pages = (const void *)entries, .row_stride = stride * sizeof *entries, .n_pages = 1};
}

static inline const uint16_t *plain_entry(const dsri_cache *cache, uint64_t t)
{
    return (const void *)(cache->pages + t * cache->row_stride);
}

static guarded_memory test_memory;
static uint64_t test_seed = 1;

static inline int open_memory(void **state)
{
    (void)state;
    return guarded_open(&test_memory, (size_t)1 << 30);
}

static inline int close_memory(void **state)
{
    (void)state;
    guarded_close(&test_memory);
    return 0;
}

/* Ends at an unreadable page; poisoned. */
static inline void *new_array(size_t n_bytes)
{
    const guarded_segment segment = guarded_allocate(&test_memory, n_bytes, 0, 0xa5);
    assert_non_null(segment.memory);
    return segment.memory;
}

/* Give all arrays back. */
static inline void drop_arrays(void)
{
    close_memory(NULL);
    assert_int_equal(open_memory(NULL), 0);
}

static inline void *copy_array(const void *array, size_t n_bytes)
{
    void *copy = new_array(n_bytes);
    memcpy(copy, array, n_bytes);
    return copy;
}

static inline float *new_f32(random_stream *random, pattern kind, float scale, size_t n)
{
    float *x = new_array(n * sizeof *x);
    pattern_fill_f32(random, kind, scale, x, n);
    return x;
}

static inline uint16_t *new_bf16(random_stream *random, pattern kind, float scale, size_t n)
{
    uint16_t *x = new_array(n * sizeof *x);
    pattern_fill_bf16(random, kind, scale, x, n);
    return x;
}

/* Signs and mantissas at random, biased exponents from `exponent` on, zeros among them: for products whose sums are
 * subnormal now and then. */
static inline uint16_t *new_small_bf16(random_stream *random, uint32_t exponent, size_t n)
{
    uint16_t *x = new_array(n * sizeof *x);
    const uint32_t spread = random_between(random, 1, 3);
    const uint32_t n_mantissas = random_one_in(random, 2) ? 4 : 128; /* with few, sums nearly cancel now and then */
    const uint32_t least_mantissa = random_one_in(random, 3) ? random_below(random, 129 - n_mantissas) : 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t mantissa = least_mantissa + random_below(random, n_mantissas);
        x[i] = (uint16_t)(random_below(random, 2) << 15 | (exponent + random_below(random, spread)) << 7 | mantissa);
        x[i] = random_one_in(random, 8) ? (uint16_t)(x[i] & 0x8000u) : x[i];
    }
    return x;
}

static inline pattern any_pattern(random_stream *random)
{
    return random_one_in(random, 2) ? PATTERN_NORMAL : (pattern)random_below(random, N_PATTERNS);
}

/* Every task of every phase once, as one worker with this memory. */
static inline void run_kernel_in(dsri_worker_memory *memory, const dsri_cpu_kernel *kernel, const void *plan,
                                 random_stream *random)
{
    for (uint32_t phase = 0; phase < kernel->n_phases; phase++) {
        const uint32_t n = kernel->n_tasks(plan, phase);
        uint32_t *order = malloc((n + 1) * sizeof *order);
        assert_non_null(order);
        for (uint32_t i = 0; i < n; i++) {
            order[i] = i;
        }
        random_shuffle(random, order, n);
        memory->kept.owner = NULL;
        for (uint32_t i = 0; i < n; i++) {
            pattern_fill_bits(random, memory->scratch, 256);
            kernel->run(plan, phase, order[i], memory->scratch);
        }
        free(order);
    }
}

static inline void run_kernel(const dsri_cpu_kernel *kernel, const void *plan, random_stream *random)
{
    static dsri_worker_memory memory;
    run_kernel_in(&memory, kernel, plan, random);
}

static inline void assert_bits(const dsri_cpu_kernel *kernel, const char *what, dsr_dtype dtype, const void *got,
                               const void *want, size_t n_bytes)
{
    const size_t at = bit_diff_first(got, want, n_bytes);
    if (at < n_bytes) {
        char text[256];
        bit_diff_describe(got, want, at, dtype, text, sizeof text);
        fail_msg("%s, seed %" PRIu64 ": %s, byte %zu of %zu: %s", kernel->phase_names[0], test_seed, what, at, n_bytes,
                 text);
    }
}

static inline int can_run(const dsri_cpu_kernel *kernel)
{
    return dsr_isa_available(kernel->isa);
}

#endif
