/* The lines of tests/golden/bits.txt, put into the program by the build. */
#ifndef DSROWS_GOLDEN_BITS_H
#define DSROWS_GOLDEN_BITS_H

#include <stdint.h>

extern const char *const golden_bits[];
extern const uint32_t n_golden_bits;

#endif
