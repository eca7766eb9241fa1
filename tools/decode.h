/* One layer on the hidden states of several requests: prefill of each, then joint decode of its last tokens beside the
 * same tokens decoded alone. */
#ifndef DSROWS_DECODE_H
#define DSROWS_DECODE_H

#include "layer_file.h"
#include "session.h"

/* Bounds of an error, relative to the root mean square of a request's recorded outputs. Where a layer selects among
 * more entries than its top-k, two nearly equal scores may be ordered either way, and another entry is attended to. */
#define DECODE_LARGEST_ERROR  3e-2
#define DECODE_NEAR_TIE_ERROR 1e-1
#define DECODE_MEAN_ERROR     4e-3

typedef struct decode_request {
    uint32_t row;
    uint32_t length; /* prefilled tokens */
    uint32_t n_steps;
    int has_record;
    int selects;          /* more entries than top-k at the last step */
    double largest_error; /* over all steps and the last prefilled token */
    double mean_error;
    uint32_t n_near_ties; /* steps over DECODE_LARGEST_ERROR, where the layer selects */
    int outputs_alone;    /* byte-equal */
    int state_alone;
} decode_request;

typedef struct decode_result {
    uint32_t n_requests;
    decode_request requests[DSR_MAX_ROWS];
    double joint_seconds; /* of a step, median */
    double alone_seconds; /* of the same tokens one request after the other, median */
} decode_result;

/* The case holds the requests: x.R BF16 [tokens, hidden], the last n_steps of them decoded; where uses_record is set
 * and they are there, y.decode.R F32 [n_steps, hidden] and y.prefill_last.R F32 [1, hidden] are compared with. Failures
 * are the session's or the case's. */
void decode_layer(case_file *c, session *s, layer_file *layer, uint32_t n_steps, int uses_record,
                  decode_result *result);
int decode_request_passed(const decode_request *request);

#endif
