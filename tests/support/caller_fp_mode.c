#include "caller_fp_mode.h"

const char *caller_fp_mode_name(caller_fp_mode mode)
{
    static const char *const names[N_CALLER_FP_MODES] = {"default", "flush", "up", "down+flush", "to-zero"};
    return names[mode];
}

#if defined(__x86_64__)
#include <xmmintrin.h>

enum { MXCSR_FLAGS = 0x3f, MXCSR_DAZ = 0x40, MXCSR_ROUNDING = 0x6000, MXCSR_FTZ = 0x8000 };

static const uint32_t mode_bits[N_CALLER_FP_MODES] = {0, MXCSR_DAZ | MXCSR_FTZ, 0x4000, 0x2000 | MXCSR_DAZ | MXCSR_FTZ,
                                                      0x6000};

uint64_t caller_fp_word(void)
{
    return _mm_getcsr() & ~(uint32_t)MXCSR_FLAGS;
}

void caller_fp_restore(uint64_t word)
{
    _mm_setcsr((uint32_t)word);
}

uint64_t caller_fp_set(caller_fp_mode mode)
{
    const uint64_t before = caller_fp_word();
    const uint64_t cleared = before & ~(uint64_t)(MXCSR_DAZ | MXCSR_FTZ | MXCSR_ROUNDING);
    caller_fp_restore(cleared | mode_bits[mode]);
    return before;
}

#elif defined(__aarch64__)

static const uint64_t mode_bits[N_CALLER_FP_MODES] = {0, 1u << 24, 1u << 22, (2u << 22) | (1u << 24), 3u << 22};

uint64_t caller_fp_word(void)
{
    uint64_t word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
}

void caller_fp_restore(uint64_t word)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(word));
}

uint64_t caller_fp_set(caller_fp_mode mode)
{
    const uint64_t before = caller_fp_word();
    caller_fp_restore((before & ~(UINT64_C(7) << 22)) | mode_bits[mode]);
    return before;
}

#else
#error "the caller's floating-point mode is not known for this machine"
#endif
