#include "near_tie.h"
#include "need_memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *allocate(uint64_t n_bytes)
{
    return need_memory(calloc(n_bytes ? n_bytes : 1, 1));
}

double near_tie_error(const double *a, const double *b, uint32_t n, double rms)
{
    double largest = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double difference = fabs(a[i] - b[i]);
        const double error = difference == 0 ? 0 : difference / rms;
        largest = isnan(error) ? HUGE_VAL : fmax(largest, error);
    }
    return largest;
}

static void compare_selections(near_tie *tie, const model_rows *exact, const model_rows *rounded, uint32_t token,
                               const unsigned char *selected, unsigned char *own)
{
    const model_layer *layer = model_rows_layer(exact);
    const uint32_t n = model_visible(layer, token);
    double *scores = allocate(n * sizeof *scores), *moved_scores = allocate(n * sizeof *scores), moved = 0;
    model_scores(exact, token, scores);
    model_scores(rounded, token, moved_scores);
    const double cut_off = model_select(scores, n, model_config(layer)->top_k, own);
    for (uint32_t e = 0; e < n; e++) {
        moved = fmax(moved, fabs(scores[e] - moved_scores[e]));
        if (!own[e] == !selected[e])
            continue;
        tie->n_swapped++;
        tie->gap = fmax(tie->gap, fabs(scores[e] - cut_off));
    }
    tie->allowed = 2 * moved + 1e-5; /* the library's float32 sums */
    free(scores);
    free(moved_scores);
}

near_tie near_tie_compare(const model_rows *exact, const model_rows *rounded, uint32_t token,
                          const unsigned char *selected, const double *output, const double *recorded, double rms,
                          unsigned char *own)
{
    const model_layer *layer = model_rows_layer(exact);
    const uint32_t hidden_size = model_config(layer)->hidden_size;
    unsigned char *selection = selected == NULL ? NULL : allocate(model_visible(layer, token));
    double *wanted = allocate(hidden_size * sizeof *wanted);
    near_tie tie = {0};
    if (selected != NULL)
        compare_selections(&tie, exact, rounded, token, selected, selection);
    model_output(exact, token, selection, wanted);
    tie.model_error = near_tie_error(wanted, recorded, hidden_size, rms);
    if (tie.n_swapped)
        model_output(exact, token, selected, wanted);
    tie.forced_error = near_tie_error(output, wanted, hidden_size, rms);
    if (own != NULL && selected != NULL)
        memcpy(own, selection, model_visible(layer, token));
    free(selection);
    free(wanted);
    return tie;
}

const char *near_tie_objection(const near_tie *tie)
{
    if (!(tie->model_error <= NEAR_TIE_MODEL_ERROR))
        return "a float64 model of the layer does not reproduce the record";
    if (tie->n_swapped == 0)
        return "the same entries are selected as in a float64 model";
    if (!(tie->gap <= tie->allowed))
        return "other entries are selected, whose scores are no near-ties";
    if (!(tie->forced_error <= NEAR_TIE_LARGEST_ERROR))
        return "other entries are selected, but the output is as far from a float64 model with these";
    return NULL;
}
