/* Comparing and hashing bits. */
#ifndef TEST_BIT_DIFF_H
#define TEST_BIT_DIFF_H

#include <dsrows/context.h>

#include <stddef.h>
#include <stdint.h>

/* Index of the first byte that differs, n_bytes if none does. */
size_t bit_diff_first(const void *a, const void *b, size_t n_bytes);
/* Text for the element of dtype at byte `at`: "got 3f80 (1), want 3f81 (1.0078125)". */
void bit_diff_describe(const void *got, const void *want, size_t at, dsr_dtype dtype, char *text, size_t text_bytes);

/* 64-bit FNV-1a. Start with BIT_HASH_START and chain. */
#define BIT_HASH_START UINT64_C(0xcbf29ce484222325)
uint64_t bit_hash(uint64_t hash, const void *bytes, size_t n_bytes);

#endif
