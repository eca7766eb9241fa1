/* Whether an attention layer's output is off because of a near-tie alone: at the cut-off of the top-k the scores of
 * entries were so close that rounding turned them round, and another entry was attended to. Judged with the float64
 * model of the layer. */
#ifndef TEST_NEAR_TIE_H
#define TEST_NEAR_TIE_H

#include "layer_model.h"

/* Bounds of errors relative to the root mean square of a request's recorded outputs. */
#define NEAR_TIE_LARGEST_ERROR 3e-2 /* of the library, against a record or a model with the same selection */
#define NEAR_TIE_MODEL_ERROR   1e-3 /* of the model against a record in float32 */

typedef struct near_tie {
    uint32_t n_swapped;  /* entries that one of the two selections has and the other has not */
    double gap;          /* how far the score of such an entry is from the cut-off, at most */
    double allowed;      /* twice what rounding moves a score of this token, at most */
    double model_error;  /* of the model with its own selection against the record */
    double forced_error; /* of the library against the model with the library's selection */
} near_tie;

/* Compares the library's selection and output at a token with the model's and the record's. exact and rounded: the
 * model without and with all roundings. selected: per visible entry, null where the layer attends to all. own: null, or
 * where to put the model's selection. output, recorded: [hidden_size]. rms: of the recorded outputs. */
near_tie near_tie_compare(const model_rows *exact, const model_rows *rounded, uint32_t token,
                          const unsigned char *selected, const double *output, const double *recorded, double rms,
                          unsigned char *own);
/* Null if the comparison proves that the output is off because of a near-tie: the model is the recorded one, its
 * selection differs in entries as near to the cut-off as rounding allows, and with the library's selection the library
 * is within NEAR_TIE_LARGEST_ERROR of it. Else what is not so. */
const char *near_tie_objection(const near_tie *tie);

/* Largest |a - b| / rms of n values; infinite where one is no number, 0 where all are equal, even to an rms of 0. */
double near_tie_error(const double *a, const double *b, uint32_t n, double rms);

#endif
