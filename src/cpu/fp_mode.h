/* The floating-point mode of the calling thread: results may depend on nothing that the host has set. */
#ifndef DSRI_FP_MODE_H
#define DSRI_FP_MODE_H

#include <stdint.h>

typedef struct dsri_fp_mode {
    uint64_t control;
} dsri_fp_mode;

#if defined(__SSE__)

static inline dsri_fp_mode dsri_fp_mode_get(void)
{
    return (dsri_fp_mode){__builtin_ia32_stmxcsr()};
}

static inline void dsri_fp_mode_set(dsri_fp_mode mode)
{
    __builtin_ia32_ldmxcsr((unsigned int)mode.control);
}

/* MXCSR: round to nearest even, all exceptions masked, no flush to zero, subnormals kept. Bits 0 to 5 are sticky flags.
 */
enum { DSRI_FP_DEFAULT = 0x1f80, DSRI_FP_FLAGS = 0x3f };

#elif defined(__aarch64__)

static inline dsri_fp_mode dsri_fp_mode_get(void)
{
    dsri_fp_mode mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode.control));
    return mode;
}

static inline void dsri_fp_mode_set(dsri_fp_mode mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(mode.control) : "memory");
}

/* FPCR: round to nearest even, traps off, no flush to zero. */
enum { DSRI_FP_DEFAULT = 0, DSRI_FP_FLAGS = 0 };

#else
#error "no access to the floating-point mode on this architecture"
#endif

/* Sets the default mode; returns what dsri_fp_mode_leave needs. */
static inline dsri_fp_mode dsri_fp_mode_enter(void)
{
    const dsri_fp_mode saved = dsri_fp_mode_get();
    if ((saved.control & ~(uint64_t)DSRI_FP_FLAGS) != DSRI_FP_DEFAULT)
        dsri_fp_mode_set((dsri_fp_mode){DSRI_FP_DEFAULT});
    return saved;
}

/* Gives the caller its mode back, sticky flags included. */
static inline void dsri_fp_mode_leave(dsri_fp_mode saved)
{
    if (dsri_fp_mode_get().control != saved.control)
        dsri_fp_mode_set(saved);
}

#endif
