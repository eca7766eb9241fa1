/* One layer on the hidden states of several requests: prefill of each, then joint decode of its last tokens beside the
 * same tokens decoded alone. */
#ifndef DSROWS_DECODE_H
#define DSROWS_DECODE_H

#include "layer_file.h"
#include "session.h"

/* Bound of the mean error relative to the root mean square of a request's recorded outputs; of the largest one it is
 * NEAR_TIE_LARGEST_ERROR. */
#define DECODE_MEAN_ERROR 4e-3

enum { DECODE_MAX_STEPS = 4096 };

typedef struct decode_request {
    uint32_t row;
    uint32_t length; /* prefilled tokens */
    uint32_t n_steps;
    int has_record;
    double largest_error;  /* over all steps and the last prefilled token */
    double mean_error;     /* near-ties left out */
    uint32_t n_near_ties;  /* steps beyond the bound, proven to be off because of a near-tie alone */
    double largest_gap;    /* over the near-ties: of a swapped entry's score from the cut-off */
    double allowed_gap;    /* at the near-tie with the largest gap: what rounding allows */
    uint32_t n_unproven;   /* steps beyond the bound without such a proof */
    uint32_t unproven;     /* token of the first of them */
    double unproven_error; /* its error */
    const char *objection; /* why it is no near-tie */
    int outputs_alone;     /* byte-equal */
    int state_alone;
} decode_request;

typedef struct decode_result {
    uint32_t n_requests;
    decode_request requests[DSR_MAX_ROWS];
    double joint_seconds; /* of a step, median */
    double alone_seconds; /* of the same tokens one request after the other, median */
} decode_result;

/* The case holds the requests: x.R BF16 [tokens, hidden], the last n_steps of them decoded; where uses_record is set
 * and they are there, y.decode.R F32 [n_steps, hidden] and with it y.prefill_last.R F32 [1, hidden] are compared with.
 * Failures are the session's or the case's. */
void decode_layer(case_file *c, session *s, layer_file *layer, uint32_t n_steps, int uses_record,
                  decode_result *result);
int decode_request_passed(const decode_request *request);

#endif
