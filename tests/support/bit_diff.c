#include "bit_diff.h"

#include "patterns.h"

#include <stdio.h>
#include <string.h>

size_t bit_diff_first(const void *a, const void *b, size_t n_bytes)
{
    const uint8_t *x = a, *y = b;
    if (memcmp(a, b, n_bytes) == 0) {
        return n_bytes;
    }
    size_t i = 0;
    while (x[i] == y[i]) {
        i++;
    }
    return i;
}

static void describe_element(const uint8_t *element, dsr_dtype dtype, char *text, size_t text_bytes)
{
    uint32_t bits = 0; /* tests run on little-endian machines */
    memcpy(&bits, element, dsr_dtype_size(dtype));
    switch (dtype) {
    case DSR_DTYPE_BF16:
        snprintf(text, text_bytes, "%04x (%.9g)", bits, (double)f32_from_bits(bits << 16));
        break;
    case DSR_DTYPE_F32:
        snprintf(text, text_bytes, "%08x (%.9g)", bits, (double)f32_from_bits(bits));
        break;
    default:
        snprintf(text, text_bytes, "%x (%d)", bits, (int)bits);
        break;
    }
}

void bit_diff_describe(const void *got, const void *want, size_t at, dsr_dtype dtype, char *text, size_t text_bytes)
{
    const size_t size = dsr_dtype_size(dtype), first = at / size * size;
    char got_text[48], want_text[48];
    describe_element((const uint8_t *)got + first, dtype, got_text, sizeof got_text);
    describe_element((const uint8_t *)want + first, dtype, want_text, sizeof want_text);
    snprintf(text, text_bytes, "got %s, want %s", got_text, want_text);
}

uint64_t bit_hash(uint64_t hash, const void *bytes, size_t n_bytes)
{
    const uint8_t *at = bytes;
    for (size_t i = 0; i < n_bytes; i++) {
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}
