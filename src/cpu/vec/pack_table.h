/* Byte shuffles that pack the 32-bit lanes of a mask to the front of a 128-bit vector: row m for mask m. */
#ifndef DSRI_VEC_PACK_TABLE_H
#define DSRI_VEC_PACK_TABLE_H

#include <stdint.h>

#define LANE(i) 4 * (i), 4 * (i) + 1, 4 * (i) + 2, 4 * (i) + 3

static const uint8_t vec_pack_table[16][16] __attribute__((aligned(16))) = {
    {LANE(0)},
    {LANE(0)},
    {LANE(1)},
    {LANE(0), LANE(1)},
    {LANE(2)},
    {LANE(0), LANE(2)},
    {LANE(1), LANE(2)},
    {LANE(0), LANE(1), LANE(2)},
    {LANE(3)},
    {LANE(0), LANE(3)},
    {LANE(1), LANE(3)},
    {LANE(0), LANE(1), LANE(3)},
    {LANE(2), LANE(3)},
    {LANE(0), LANE(2), LANE(3)},
    {LANE(1), LANE(2), LANE(3)},
    {LANE(0), LANE(1), LANE(2), LANE(3)},
};

#undef LANE

#endif
