#include "cpu/kernel_table.h"

#include "cpu/cpu_features.h"
#include "cpu/kernels.inc"

#define DECLARE_KERNEL(symbol, isa) extern const dsri_cpu_kernel dsri_kernel_##symbol##__##isa;
DSRI_ALL_OPS(DECLARE_KERNEL, scalar)
#ifdef DSRI_HAVE_AVX2
DSRI_ALL_OPS(DECLARE_KERNEL, avx2)
#endif
#ifdef DSRI_HAVE_AVX512
DSRI_ALL_OPS(DECLARE_KERNEL, avx512)
#endif
#ifdef DSRI_HAVE_NEON
DSRI_ALL_OPS(DECLARE_KERNEL, neon)
#endif
#ifdef DSRI_HAVE_AVX512BF16
DSRI_ROW_OPS(DECLARE_KERNEL, avx512bf16)
DSRI_CHAIN_OPS(DECLARE_KERNEL, avx512bf16)
#endif
#ifdef DSRI_HAVE_AMXBF16
DSRI_ROW_OPS(DECLARE_KERNEL, amxbf16)
#endif
#ifdef DSRI_HAVE_AVX512VNNI
DSRI_EXACT_OPS(DECLARE_KERNEL, avx512vnni)
DSRI_EXACT_CHAIN_OPS(DECLARE_KERNEL, avx512vnni)
#endif
#ifdef DSRI_HAVE_AMXINT8
DSRI_EXACT_OPS(DECLARE_KERNEL, amxint8)
#endif

typedef struct kernel_line {
    const dsri_cpu_kernel *kernel;
    uint32_t features; /* needed beyond those of the kernel's instruction set */
} kernel_line;

#define KERNEL_LINE(symbol, isa)      {&dsri_kernel_##symbol##__##isa, 0},
#define AVX512BF16_LINE(symbol, unit) {&dsri_kernel_##symbol##__##unit, DSRI_CPU_FAST_AVX512_BF16},
#define AMXBF16_LINE(symbol, unit)    {&dsri_kernel_##symbol##__##unit, DSRI_CPU_AMX_BF16},
#define AVX512VNNI_LINE(symbol, unit) {&dsri_kernel_##symbol##__##unit, DSRI_CPU_AVX512_VNNI},
#define AVX512VNNI_BF16_LINE(symbol, unit)                                                                             \
    {&dsri_kernel_##symbol##__##unit, DSRI_CPU_AVX512_VNNI | DSRI_CPU_FAST_AVX512_BF16},
#define AMXINT8_LINE(symbol, unit) {&dsri_kernel_##symbol##__##unit, DSRI_CPU_AMX_INT8},

static const kernel_line lines[] = {
    DSRI_ALL_OPS(KERNEL_LINE, scalar)
#ifdef DSRI_HAVE_AVX2
        DSRI_ALL_OPS(KERNEL_LINE, avx2)
#endif
#ifdef DSRI_HAVE_AVX512
            DSRI_ALL_OPS(KERNEL_LINE, avx512)
#endif
#ifdef DSRI_HAVE_NEON
                DSRI_ALL_OPS(KERNEL_LINE, neon)
#endif
#ifdef DSRI_HAVE_AVX512BF16
                    DSRI_CHAIN_OPS(AVX512BF16_LINE, avx512bf16) DSRI_ROW_OPS(AVX512BF16_LINE, avx512bf16)
#endif
#ifdef DSRI_HAVE_AMXBF16
                        DSRI_ROW_OPS(AMXBF16_LINE, amxbf16)
#endif
#ifdef DSRI_HAVE_AVX512VNNI
                            DSRI_EXACT_OPS(AVX512VNNI_LINE, avx512vnni)
                                DSRI_EXACT_CHAIN_OPS(AVX512VNNI_BF16_LINE, avx512vnni)
#endif
#ifdef DSRI_HAVE_AMXINT8
                                    DSRI_EXACT_OPS(AMXINT8_LINE, amxint8)
#endif
};

static int is_candidate(const kernel_line *line, dsri_op op, dsr_isa isa, dsr_exactness exactness, uint32_t features)
{
    const dsri_cpu_kernel *kernel = line->kernel;
    return kernel->op == op && (kernel->isa == isa || kernel->isa == DSR_ISA_SCALAR) &&
           (kernel->exactness == DSR_EXACT_DEVICE || exactness == DSR_EXACT_ROW) &&
           (line->features & features) == line->features;
}

static int merit(const dsri_cpu_kernel *kernel)
{
    return (kernel->exactness == DSR_EXACT_ROW) * 2 + (kernel->isa != DSR_ISA_SCALAR);
}

dsri_candidates dsri_find_candidates(dsri_op op, dsr_isa isa, dsr_exactness exactness, uint32_t features)
{
    dsri_candidates found = {{NULL}};
    uint32_t n = 0;
    for (size_t i = sizeof lines / sizeof lines[0]; i-- > 0 && n < DSRI_MAX_CANDIDATES;) {
        if (!is_candidate(&lines[i], op, isa, exactness, features))
            continue;
        uint32_t place = n++;
        for (; place > 0 && merit(found.kernels[place - 1]) < merit(lines[i].kernel); place--)
            found.kernels[place] = found.kernels[place - 1];
        found.kernels[place] = lines[i].kernel;
    }
    return found;
}
