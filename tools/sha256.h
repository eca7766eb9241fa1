/* SHA-256 (FIPS 180-4), for the digest of results. */
#ifndef DSROWS_SHA256_H
#define DSROWS_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct sha256 {
    uint32_t state[8];
    uint64_t n_bytes;
    unsigned char block[64];
} sha256;

void sha256_init(sha256 *h);
void sha256_add(sha256 *h, const void *data, size_t n_bytes);
/* Lower-case hexadecimal text, ended by a null. h is used up. */
void sha256_finish(sha256 *h, char text[65]);

#endif
