/* What the machine can do at most, measured in this process: the yardsticks of `dsrows bench`. */
#ifndef DSROWS_BENCH_PROBE_H
#define DSROWS_BENCH_PROBE_H

#include <dsrows/dsrows.h>

/* Rates of one thread, unless it says otherwise; 0 where this machine has no such instructions. */
typedef struct bench_peaks {
    double fma_gflops;      /* F32 multiply-adds of the context's instruction set, registers only, 2 operations each */
    double fma_all_gflops;  /* all threads of the run together: what they can gain over one at most */
    double bf16_gflops;     /* AVX512-BF16 dot products */
    double amx_gflops;      /* AMX BF16 tile products */
    double read_gbytes;     /* one thread reading memory far larger than the caches, GB/s */
    double read_all_gbytes; /* all threads of the run reading together */
} bench_peaks;

/* One pass of the FMA probe, a few hundred microseconds; used between samples, so that a rate and its yardstick see the
 * same clock. */
double bench_probe_fma(dsr_isa isa);
/* The sum of the rates of n_threads threads at the same time. */
double bench_probe_fma_all(dsr_isa isa, uint32_t n_threads);
double bench_probe_bf16(void);
/* Asks the system for the AMX tiles first. */
double bench_probe_amx(void);
/* Reads a buffer of n_bytes on n_threads threads, or as many as can be started, once and returns GB/s. */
double bench_probe_read(const void *memory, size_t n_bytes, uint32_t n_threads);
/* Medians of several passes of every probe. */
bench_peaks bench_measure_peaks(dsr_isa isa, uint32_t n_threads);

#endif
