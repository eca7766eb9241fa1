/* What this machine's CPU can do, operating system's support included. */
#ifndef DSRI_CPU_FEATURES_H
#define DSRI_CPU_FEATURES_H

#include <dsrows/context.h>

/* A set bit says that the instructions may be run: the CPU has them and the system saves their registers. */
enum {
    DSRI_CPU_AVX2 = 1 << 0,
    DSRI_CPU_FMA = 1 << 1,
    DSRI_CPU_AVX512F = 1 << 2,
    DSRI_CPU_AVX512BW = 1 << 3,
    DSRI_CPU_AVX512DQ = 1 << 4,
    DSRI_CPU_AVX512VL = 1 << 5,
    DSRI_CPU_AVX512_BF16 = 1 << 6,
    DSRI_CPU_NEON = 1 << 7,
    DSRI_CPU_AMX_BF16 = 1 << 8,         /* tiles included; the system wants to be asked before their first use */
    DSRI_CPU_FAST_AVX512_BF16 = 1 << 9, /* AVX512_BF16, and its dot products outrun F32 multiply-adds */
    DSRI_CPU_AVX512_VNNI = 1 << 10,
    DSRI_CPU_AMX_INT8 = 1 << 11 /* as AMX_BF16 */
};

/* What CPUID and XGETBV report on x86. */
typedef struct dsri_cpuid {
    uint32_t leaf0_ebx; /* the vendor's first four letters */
    uint32_t leaf1_ecx;
    uint32_t leaf7_ebx;
    uint32_t leaf7_ecx;
    uint32_t leaf7_edx;
    uint32_t leaf7_1_eax;
    uint64_t xcr0; /* 0 if the system has not switched XSAVE on */
} dsri_cpuid;

uint32_t dsri_features_of_cpuid(const dsri_cpuid *cpuid);
/* The features of this machine. */
uint32_t dsri_cpu_features(void);

/* Asks the system for the tile registers of AMX, on behalf of all threads of the process, now and later. 0 if it does
 * not grant them. Asking again costs one system call. */
int dsri_ask_for_tiles(void);

/* The features left of `features` when those named in `list` are refused: "avx512_bf16", "amx_bf16", "avx512_vnni",
 * "amx_int8", with commas in between. Null and "" refuse nothing. *unknown is set to the first other word in the
 * list, an empty one included, or null. */
uint32_t dsri_without_features(uint32_t features, const char *list, const char **unknown);

/* Features that an instruction set needs, all of them. */
uint32_t dsri_isa_features(dsr_isa isa);
/* Bit 1 << isa for every instruction set in this build. */
uint32_t dsri_built_isas(void);
/* The best level in the build whose features are all present. */
dsr_isa dsri_best_isa(uint32_t features, uint32_t built_isas);

#endif
