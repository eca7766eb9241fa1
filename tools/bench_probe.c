#define _GNU_SOURCE
#include "bench_probe.h"

#include "cli.h"
#include "timing.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* Accumulators must be registers. */
#define UNROLL _Pragma("GCC unroll 12")

enum { ROUNDS = 20000, ACCUMULATORS = 12, PASSES = 9, READ_BYTES = 256 << 20 };

/* A result that the compiler must believe to be used. */
static volatile float sink;

/* static double name(void): operations of ROUNDS rounds of `acc = step` over all accumulators. The empty statement
 * keeps the compiler from leaving rounds out. `registers` is its letter for vector registers. */
#define FLOPS_LOOP(name, attributes, vector, set1, operand, a_value, b_value, step, registers, flops_of_step)          \
    attributes static double name(void)                                                                                \
    {                                                                                                                  \
        vector acc[ACCUMULATORS];                                                                                      \
        const operand a = a_value, b = b_value;                                                                        \
        UNROLL                                                                                                         \
        for (int i = 0; i < ACCUMULATORS; i++) {                                                                       \
            acc[i] = set1((float)i);                                                                                   \
        }                                                                                                              \
        for (int r = 0; r < ROUNDS; r++) {                                                                             \
            UNROLL                                                                                                     \
            for (int i = 0; i < ACCUMULATORS; i++) {                                                                   \
                acc[i] = step;                                                                                         \
                __asm__ volatile("" : "+" registers(acc[i]));                                                          \
            }                                                                                                          \
        }                                                                                                              \
        return (double)(flops_of_step)*ROUNDS * ACCUMULATORS;                                                          \
    }

#if defined(__x86_64__)
#define TARGET(features) __attribute__((target(features)))
FLOPS_LOOP(flops_avx512, TARGET("avx512f"), __m512, _mm512_set1_ps, __m512, _mm512_set1_ps(0.999f),
           _mm512_set1_ps(1e-3f), _mm512_fmadd_ps(acc[i], a, b), "v", 2 * 16)
FLOPS_LOOP(flops_avx2, TARGET("avx2,fma"), __m256, _mm256_set1_ps, __m256, _mm256_set1_ps(0.999f),
           _mm256_set1_ps(1e-3f), _mm256_fmadd_ps(acc[i], a, b), "x", 2 * 8)
FLOPS_LOOP(flops_bf16, TARGET("avx512f,avx512bf16"), __m512, _mm512_set1_ps, __m512bh,
           (__m512bh)_mm512_set1_epi16(0x3f80), (__m512bh)_mm512_set1_epi16(0x3a80), _mm512_dpbf16_ps(acc[i], a, b),
           "v", 2 * 32)

static int amx_is_allowed(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    uint32_t a = 7, b = 0, c = 0, d = 0;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    const int has_tiles = (d >> 24 & 1) && (d >> 22 & 1);
    return has_tiles && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

/* Four accumulator tiles, two by two, as a product of matrices has them. */
TARGET("amx-tile,amx-bf16") static double flops_amx(void)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t column_bytes[16];
        uint8_t rows[16];
    } config;
    static const uint8_t zeros[1024];
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int i = 0; i < 8; i++) {
        config.column_bytes[i] = 64;
        config.rows[i] = 16;
    }
    __asm__ volatile("" : : "r"(&config) : "memory"); /* the intrinsic admits to reading 8 bytes only */
    _tile_loadconfig(&config);
    _tile_loadd(4, zeros, 64);
    _tile_loadd(5, zeros, 64);
    _tile_loadd(6, zeros, 64);
    _tile_loadd(7, zeros, 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int r = 0; r < ROUNDS / 4; r++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return 2.0 * 16 * 16 * 32 * 4 * (ROUNDS / 4);
}
#endif

#if defined(__aarch64__)
FLOPS_LOOP(flops_neon, , float32x4_t, vdupq_n_f32, float32x4_t, vdupq_n_f32(0.999f), vdupq_n_f32(1e-3f),
           vfmaq_f32(b, acc[i], a), "w", 2 * 4)
#endif

static double rate(double (*work)(void))
{
    const double begin = timing_now(), flops = work();
    return flops / (timing_now() - begin) * 1e-9;
}

double bench_probe_fma(dsr_isa isa)
{
#if defined(__x86_64__)
    if (isa == DSR_ISA_AVX512) {
        return rate(flops_avx512);
    }
    if (isa == DSR_ISA_AVX2) {
        return rate(flops_avx2);
    }
#elif defined(__aarch64__)
    if (isa == DSR_ISA_NEON) {
        return rate(flops_neon);
    }
#endif
    (void)rate;
    (void)isa;
    return 0;
}

typedef struct multiplier {
    pthread_t thread;
    atomic_int *may_start;
    dsr_isa isa;
    double gflops;
} multiplier;

static void *multiply_with_others(void *argument)
{
    enum { LOOPS = 50 };
    multiplier *m = argument;
    double sum = 0;
    while (!atomic_load(m->may_start)) {
    }
    for (int i = 0; i < LOOPS; i++) {
        sum += bench_probe_fma(m->isa);
    }
    m->gflops = sum / LOOPS;
    return NULL;
}

double bench_probe_fma_all(dsr_isa isa, uint32_t n_threads)
{
    multiplier *all = cli_allocate(n_threads * sizeof *all);
    atomic_int may_start = 0;
    uint32_t n_started = 0;
    double sum = 0;
    for (uint32_t i = 0; i < n_threads; i++) {
        all[i] = (multiplier){.may_start = &may_start, .isa = isa};
    }
    while (n_started + 1 < n_threads &&
           pthread_create(&all[n_started].thread, NULL, multiply_with_others, &all[n_started]) == 0) {
        n_started++;
    }
    atomic_store(&may_start, 1);
    multiply_with_others(&all[n_threads - 1]);
    for (uint32_t i = 0; i < n_started; i++) {
        pthread_join(all[i].thread, NULL);
    }
    for (uint32_t i = 0; i < n_threads; i++) {
        sum += all[i].gflops;
    }
    free(all);
    return sum;
}

double bench_probe_bf16(void)
{
#if defined(__x86_64__)
    if (dsr_isa_available(DSR_ISA_AVX512) && __builtin_cpu_supports("avx512bf16")) {
        return rate(flops_bf16);
    }
#endif
    return 0;
}

double bench_probe_amx(void)
{
#if defined(__x86_64__)
    if (amx_is_allowed()) {
        return rate(flops_amx);
    }
#endif
    return 0;
}

typedef struct reader {
    pthread_t thread;
    const uint64_t *words;
    size_t n;
    uint64_t sum;
} reader;

static void *read_words(void *argument)
{
    reader *r = argument;
    uint64_t sum[8] = {0};
    for (size_t i = 0; i + 8 <= r->n; i += 8) {
        for (size_t j = 0; j < 8; j++) {
            sum[j] += r->words[i + j];
        }
    }
    r->sum = sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
    return NULL;
}

double bench_probe_read(const void *memory, size_t n_bytes, uint32_t n_threads)
{
    reader *readers = cli_allocate(n_threads * sizeof *readers);
    const size_t n = n_bytes / sizeof(uint64_t) / n_threads;
    uint32_t n_started = 0; /* besides this one, which reads the part after theirs */
    const double begin = timing_now();
    for (uint32_t i = 0; i < n_threads; i++) {
        readers[i].words = (const uint64_t *)memory + i * n;
        readers[i].n = n;
        if (i + 1 == n_threads || pthread_create(&readers[i].thread, NULL, read_words, &readers[i]) != 0) {
            read_words(&readers[i]);
            break;
        }
        n_started++;
    }
    for (uint32_t i = 0; i < n_started; i++) {
        pthread_join(readers[i].thread, NULL);
    }
    const double seconds = timing_now() - begin;
    sink = (float)readers[0].sum;
    free(readers);
    return (n_started + 1) * (double)(n * sizeof(uint64_t)) / seconds * 1e-9;
}

bench_peaks bench_measure_peaks(dsr_isa isa, uint32_t n_threads)
{
    double samples[5][PASSES];
    uint64_t *memory = cli_allocate(READ_BYTES);
    for (size_t i = 0; i < READ_BYTES / sizeof *memory; i += 512) {
        memory[i] = i; /* a page of its own for every page */
    }
    for (int i = 0; i < PASSES; i++) {
        samples[0][i] = bench_probe_fma(isa);
        samples[1][i] = bench_probe_bf16();
        samples[2][i] = bench_probe_amx();
        samples[3][i] = bench_probe_read(memory, READ_BYTES, 1);
        samples[4][i] = bench_probe_read(memory, READ_BYTES, n_threads);
    }
    free(memory);
    return (bench_peaks){.fma_gflops = timing_median(samples[0], PASSES),
                         .fma_all_gflops = bench_probe_fma_all(isa, n_threads),
                         .bf16_gflops = timing_median(samples[1], PASSES),
                         .amx_gflops = timing_median(samples[2], PASSES),
                         .read_gbytes = timing_median(samples[3], PASSES),
                         .read_all_gbytes = timing_median(samples[4], PASSES)};
}
