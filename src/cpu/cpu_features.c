#define _DEFAULT_SOURCE /* syscall */
#include "cpu/cpu_features.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif
#include <string.h>
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum {
    LEAF1_ECX_FMA = 1 << 12,
    LEAF1_ECX_OSXSAVE = 1 << 27,
    LEAF7_EBX_AVX2 = 1 << 5,
    LEAF7_EBX_AVX512F = 1 << 16,
    LEAF7_EBX_AVX512DQ = 1 << 17,
    LEAF7_EBX_AVX512BW = 1 << 30,
    LEAF7_ECX_AVX512_VNNI = 1 << 11,
    LEAF7_EDX_AMX_BF16 = 1 << 22,
    LEAF7_EDX_AMX_TILE = 1 << 24,
    LEAF7_EDX_AMX_INT8 = 1 << 25,
    LEAF7_1_EAX_AVX512_BF16 = 1 << 5,
    XCR0_YMM = 0x06,     /* XMM and the upper halves of YMM */
    XCR0_ZMM = 0xe6,     /* and mask registers, upper halves of ZMM0-15, ZMM16-31 */
    XCR0_TILES = 3 << 17 /* their configuration, their data */
};
static const uint32_t leaf7_ebx_avx512vl = (uint32_t)1 << 31;
static const uint32_t leaf0_ebx_intel = 0x756e6547; /* "Genu" */

uint32_t dsri_features_of_cpuid(const dsri_cpuid *cpuid)
{
    const int has_ymm = (cpuid->xcr0 & XCR0_YMM) == XCR0_YMM;
    const int has_zmm = (cpuid->xcr0 & XCR0_ZMM) == XCR0_ZMM;
    uint32_t features = 0;
    if (has_ymm && (cpuid->leaf7_ebx & LEAF7_EBX_AVX2))
        features |= DSRI_CPU_AVX2;
    if (has_ymm && (cpuid->leaf1_ecx & LEAF1_ECX_FMA))
        features |= DSRI_CPU_FMA;
    if (!has_zmm || !(cpuid->leaf7_ebx & LEAF7_EBX_AVX512F))
        return features;
    features |= DSRI_CPU_AVX512F;
    if (cpuid->leaf7_ebx & LEAF7_EBX_AVX512BW)
        features |= DSRI_CPU_AVX512BW;
    if (cpuid->leaf7_ebx & LEAF7_EBX_AVX512DQ)
        features |= DSRI_CPU_AVX512DQ;
    if (cpuid->leaf7_ebx & leaf7_ebx_avx512vl)
        features |= DSRI_CPU_AVX512VL;
    if (cpuid->leaf7_1_eax & LEAF7_1_EAX_AVX512_BF16)
        features |= DSRI_CPU_AVX512_BF16;
    /* Intel's cores (Sapphire Rapids measured) take so long over a dot product that F32 multiply-adds do more. */
    if (features & DSRI_CPU_AVX512_BF16 && cpuid->leaf0_ebx != leaf0_ebx_intel)
        features |= DSRI_CPU_FAST_AVX512_BF16;
    if (cpuid->leaf7_ecx & LEAF7_ECX_AVX512_VNNI)
        features |= DSRI_CPU_AVX512_VNNI;
    if ((cpuid->xcr0 & XCR0_TILES) != XCR0_TILES || !(cpuid->leaf7_edx & LEAF7_EDX_AMX_TILE))
        return features;
    if (cpuid->leaf7_edx & LEAF7_EDX_AMX_BF16)
        features |= DSRI_CPU_AMX_BF16;
    if (cpuid->leaf7_edx & LEAF7_EDX_AMX_INT8)
        features |= DSRI_CPU_AMX_INT8;
    return features;
}

#if defined(__x86_64__) || defined(__i386__)

static uint64_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

uint32_t dsri_cpu_features(void)
{
    dsri_cpuid cpuid = {0};
    uint32_t eax, ebx, ecx, edx;
    if (__get_cpuid(0, &eax, &ebx, &ecx, &edx))
        cpuid.leaf0_ebx = ebx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx))
        cpuid.leaf1_ecx = ecx;
    if (cpuid.leaf1_ecx & LEAF1_ECX_OSXSAVE)
        cpuid.xcr0 = read_xcr0();
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        cpuid.leaf7_ebx = ebx;
        cpuid.leaf7_ecx = ecx;
        cpuid.leaf7_edx = edx;
        if (eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx))
            cpuid.leaf7_1_eax = eax;
    }
    return dsri_features_of_cpuid(&cpuid);
}

#elif defined(__aarch64__)

uint32_t dsri_cpu_features(void)
{
    return DSRI_CPU_NEON; /* part of the architecture */
}

#else

uint32_t dsri_cpu_features(void)
{
    return 0;
}

#endif

int dsri_ask_for_tiles(void)
{
#if defined(__x86_64__) && defined(__linux__) && defined(SYS_arch_prctl)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return 0;
#endif
}

/* 0 if no feature has that name. */
static uint32_t features_named(const char *name, size_t length)
{
    static const struct {
        const char *name;
        uint32_t features;
    } names[] = {{"avx512_bf16", DSRI_CPU_AVX512_BF16 | DSRI_CPU_FAST_AVX512_BF16},
                 {"amx_bf16", DSRI_CPU_AMX_BF16},
                 {"avx512_vnni", DSRI_CPU_AVX512_VNNI},
                 {"amx_int8", DSRI_CPU_AMX_INT8}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i].name) == length && strncmp(names[i].name, name, length) == 0)
            return names[i].features;
    return 0;
}

uint32_t dsri_without_features(uint32_t features, const char *list, const char **unknown)
{
    const char *word = list;
    *unknown = NULL;
    while (word && *list != '\0') {
        const size_t length = strcspn(word, ",");
        const uint32_t refused = features_named(word, length);
        if (refused == 0 && *unknown == NULL)
            *unknown = word;
        features &= ~refused;
        word = word[length] == ',' ? word + length + 1 : NULL;
    }
    return features;
}

uint32_t dsri_isa_features(dsr_isa isa)
{
    switch (isa) {
    case DSR_ISA_AVX2:
        return DSRI_CPU_AVX2 | DSRI_CPU_FMA;
    case DSR_ISA_AVX512:
        return DSRI_CPU_AVX2 | DSRI_CPU_FMA | DSRI_CPU_AVX512F | DSRI_CPU_AVX512BW | DSRI_CPU_AVX512DQ |
               DSRI_CPU_AVX512VL;
    case DSR_ISA_NEON:
        return DSRI_CPU_NEON;
    case DSR_ISA_AUTO:
    case DSR_ISA_SCALAR:
        return 0;
    }
    return 0;
}

uint32_t dsri_built_isas(void)
{
    uint32_t built = 1u << DSR_ISA_SCALAR;
#ifdef DSRI_HAVE_AVX2
    built |= 1u << DSR_ISA_AVX2;
#endif
#ifdef DSRI_HAVE_AVX512
    built |= 1u << DSR_ISA_AVX512;
#endif
#ifdef DSRI_HAVE_NEON
    built |= 1u << DSR_ISA_NEON;
#endif
    return built;
}

static int is_usable(dsr_isa isa, uint32_t features, uint32_t built_isas)
{
    const uint32_t needed = dsri_isa_features(isa);
    return (built_isas >> isa & 1) && (features & needed) == needed;
}

dsr_isa dsri_best_isa(uint32_t features, uint32_t built_isas)
{
    static const dsr_isa best_first[] = {DSR_ISA_AVX512, DSR_ISA_AVX2, DSR_ISA_NEON};
    for (size_t i = 0; i < sizeof best_first / sizeof best_first[0]; i++)
        if (is_usable(best_first[i], features, built_isas))
            return best_first[i];
    return DSR_ISA_SCALAR;
}

int dsr_isa_available(dsr_isa isa)
{
    switch (isa) {
    case DSR_ISA_AUTO:
    case DSR_ISA_SCALAR:
        return 1;
    case DSR_ISA_AVX2:
    case DSR_ISA_AVX512:
    case DSR_ISA_NEON:
        return is_usable(isa, dsri_cpu_features(), dsri_built_isas());
    }
    return 0;
}
