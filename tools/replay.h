/* The recorded decode step of several requests: run jointly, run alone, compared with the recorded results. */
#ifndef DSROWS_REPLAY_H
#define DSROWS_REPLAY_H

#include "case_file.h"
#include "session.h"

/* How far the results may be from the recorded float64 ones. */
#define REPLAY_SCORE_TOLERANCE     2e-5
#define REPLAY_ATTENTION_TOLERANCE 1e-5 /* on top of half a BF16 unit in the last place of the recorded value */
/* BF16 numbers from the recorded value's own rounding. The compressor rounds to BF16 before its norm and after it, the
 * record did neither: a right result may lie up to 1.5 units from the record itself. */
#define REPLAY_COMPRESSOR_STEPS 1

typedef struct replay_error {
    double largest;  /* absolute */
    double fraction; /* largest part of what is allowed that any element uses; above 1: failed */
} replay_error;

typedef struct replay_request {
    uint32_t row;
    uint32_t length; /* tokens, this step's included */
    uint64_t n_keys;
    uint64_t two_pass_width;
    uint64_t flash_width;
    uint32_t n_selected;  /* keys in the top-k list */
    uint32_t n_near_ties; /* places of the list with another key than recorded, of equal score within the tolerance */
    uint32_t n_wrong;     /* places with a wrong key */
    replay_error scores, two_pass, flash;
    int scores_alone, top_k_alone, two_pass_alone, flash_alone; /* 1: joint and alone have equal bytes */
} replay_request;

/* One compressor shape: the recorded tokens, cut to another length for each row. */
typedef struct replay_compressor {
    uint32_t ratio;
    uint32_t dim;
    uint32_t n_rows;
    uint32_t longest; /* tokens */
    uint32_t shortest;
    uint32_t n_groups;      /* emitted by all rows */
    replay_error error;     /* fraction: in BF16 units of the recorded value */
    uint32_t largest_steps; /* most BF16 numbers between a result and the recorded value's rounding */
    int alone;              /* joint steps and a single call alone leave equal outputs and states */
} replay_compressor;

enum { REPLAY_N_COMPRESSORS = 3 };

typedef struct replay_result {
    uint32_t n_heads;
    uint32_t n_index_heads;
    uint32_t n_requests;
    uint32_t n_compressors;
    replay_request requests[DSR_MAX_ROWS];
    replay_compressor compressors[REPLAY_N_COMPRESSORS];
    char digest[65]; /* SHA-256 over all joint results */
} replay_result;

/* Runs everything. Failures are the case's or the session's. */
void replay_all(case_file *c, session *s, replay_result *result);
/* 1 if every result is within its tolerance and every row alone gives the joint bytes. */
int replay_request_passed(const replay_request *request);
int replay_compressor_passed(const replay_compressor *compressor);

#endif
