/* The recorded layers: every request through the library, jointly and alone, against the record and against the float64
 * model. */
#ifndef TEST_RECORDED_H
#define TEST_RECORDED_H

#include <dsrows/attention.h>

/* Runs all requests of a file of at most max_tokens tokens. Fails the test on bytes that differ between joint and
 * alone, on errors beyond the bounds, and on selections that are no near-ties. Returns 0, after a message, if there is
 * no such file. */
int recorded_check(const char *path, dsr_layer_kind kind, uint32_t max_tokens);
/* Prints what each BF16 boundary costs on the requests of a file, alone and all together. */
int recorded_print_boundaries(const char *path, dsr_layer_kind kind);

#endif
