#include "random.h"

uint64_t random_mix(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0xe9846af9b1a615d);
    x ^= x >> 32;
    x *= UINT64_C(0xe9846af9b1a615d);
    x ^= x >> 28;
    return x;
}

random_stream random_open(uint64_t seed, uint64_t stream)
{
    const random_stream random = {random_mix(random_mix(seed) + random_mix(~stream)), 0};
    return random;
}

uint64_t random_next(random_stream *random)
{
    return random_mix(random->key + random_mix(++random->counter));
}

uint32_t random_below(random_stream *random, uint32_t n)
{
    return (uint32_t)(((random_next(random) >> 32) * n) >> 32);
}

uint32_t random_between(random_stream *random, uint32_t first, uint32_t last)
{
    return first + random_below(random, last - first + 1);
}

int random_one_in(random_stream *random, uint32_t n)
{
    return random_below(random, n) == 0;
}

float random_normal(random_stream *random)
{
    const uint64_t bits = random_next(random);
    int32_t sum = -131070;
    for (int part = 0; part < 4; part++) {
        sum += (int32_t)((bits >> (16 * part)) & 0xffff);
    }
    return (float)sum * 0x1p-15f; /* four uniform 16-bit numbers: deviation 1.155 */
}

void random_shuffle(random_stream *random, uint32_t *items, uint32_t n)
{
    for (uint32_t i = n; i > 1; i--) {
        const uint32_t j = random_below(random, i);
        const uint32_t item = items[i - 1];
        items[i - 1] = items[j];
        items[j] = item;
    }
}
