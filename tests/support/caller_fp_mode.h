/* The floating-point mode of the calling thread, as a host may have left it. */
#ifndef TEST_CALLER_FP_MODE_H
#define TEST_CALLER_FP_MODE_H

#include <stdint.h>

typedef enum caller_fp_mode {
    FP_MODE_DEFAULT = 0,
    FP_MODE_FLUSH, /* FTZ and DAZ */
    FP_MODE_UP,
    FP_MODE_DOWN_FLUSH, /* round down, FTZ and DAZ */
    FP_MODE_TO_ZERO,
    N_CALLER_FP_MODES
} caller_fp_mode;

const char *caller_fp_mode_name(caller_fp_mode mode);
/* Set the thread's mode; returns the control word that was in force, for caller_fp_restore(). */
uint64_t caller_fp_set(caller_fp_mode mode);
/* The control word now, without the sticky exception flags. */
uint64_t caller_fp_word(void);
void caller_fp_restore(uint64_t word);

#endif
