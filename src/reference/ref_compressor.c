/* The learned KV compressor, one token at a time.
 *
 * State rows are tokens, columns are features. With ratio 4 a row has two halves of dim columns: the first is used when
 * the token belongs to the previous group, the second when it belongs to the current one; rows 0..3 hold the previous
 * group, rows 4..7 the current one. With ratio 128 there is one group of 128 rows and one half. */
#include "ref_bits.h"
#include "reference.h"

#include <math.h>
#include <string.h>

enum {
    MAX_DIM = 512,
    STATE_NAN = 0x7fc00000 /* the one NaN a score state holds, so that its bytes are the same everywhere */
};

static uint32_t halves(uint32_t ratio)
{
    return ratio == 4 ? 2 : 1;
}

void ref_compressor_init(uint32_t ratio, uint32_t dim, float *kv_state, float *score_state)
{
    const uint32_t n = halves(ratio) * ratio * halves(ratio) * dim;
    for (uint32_t i = 0; i < n; i++) {
        kv_state[i] = 0.0f;
        score_state[i] = -INFINITY;
    }
}

static void write_row(uint32_t n, const float *kv, const float *score, const float *ape, float *kv_row,
                      float *score_row)
{
    for (uint32_t f = 0; f < n; f++) {
        const float s = score[f] + ape[f];
        kv_row[f] = isfinite(kv[f]) ? kv[f] : 0.0f;
        score_row[f] = isfinite(kv[f]) && isfinite(s) ? s : float_of(STATE_NAN);
    }
}

/* Softmax over a group's items for one feature; dormant items (score -inf) have weight 0. Any NaN, a score of +inf, a
 * non-finite kv and a group of dormant items alone all give a result that is not finite. */
static float pool(uint32_t ratio, uint32_t dim, uint32_t f, const float *kv_state, const float *score_state)
{
    const uint32_t n_items = halves(ratio) * ratio, row = halves(ratio) * dim;
    float max = -INFINITY, den = 0.0f, num = 0.0f;
    for (uint32_t i = 0; i < n_items; i++) {
        const float s = score_state[i * row + (i < ratio ? 0 : dim) + f];
        max = s > max ? s : max;
    }
    for (uint32_t i = 0; i < n_items; i++) {
        const uint32_t at = i * row + (i < ratio ? 0 : dim) + f;
        const float e = ref_exp(score_state[at] - max);
        den += e;
        num = fmaf(e, kv_state[at], num);
    }
    return num / den;
}

/* 0 if anything on the way was not finite; output is then unspecified. */
static int emit(uint32_t ratio, uint32_t dim, const float *kv_state, const float *score_state, const float *norm,
                float epsilon, uint16_t *output)
{
    float c[MAX_DIM], squares[MAX_DIM] = {0};
    for (uint32_t f = 0; f < dim; f++) {
        c[f] = ref_f32_from_bf16(ref_bf16_from_f32(pool(ratio, dim, f, kv_state, score_state)));
        squares[f] = c[f] * c[f];
    }
    for (uint32_t s = dim / 2; s > 0; s /= 2) {
        for (uint32_t f = 0; f < s; f++) {
            squares[f] += squares[f + s];
        }
    }
    const float r = 1.0f / sqrtf(squares[0] / (float)dim + epsilon);
    int finite = isfinite(squares[0]); /* r would hide it: 1 / inf is 0 */
    for (uint32_t f = 0; f < dim; f++) {
        output[f] = ref_bf16_from_f32((c[f] * r) * norm[f]);
        finite = finite && isfinite(ref_f32_from_bf16(output[f]));
    }
    return finite;
}

int ref_compressor_step(uint32_t ratio, uint32_t dim, uint32_t pos, const float *kv, const float *score,
                        const float *ape, const float *norm, float epsilon, float *kv_state, float *score_state,
                        uint16_t *output)
{
    const uint32_t coff = halves(ratio), width = coff * dim, j = pos % ratio;
    const size_t row = (size_t)((coff - 1) * ratio + j) * width;

    write_row(width, kv, score, ape + (size_t)j * width, kv_state + row, score_state + row);
    if (j + 1 < ratio) {
        memset(output, 0, dim * sizeof *output);
        return 0;
    }
    if (!emit(ratio, dim, kv_state, score_state, norm, epsilon, output)) {
        memset(output, 0, dim * sizeof *output);
    }
    if (coff == 2) { /* the current group becomes the previous one, also when its row failed */
        const size_t group = (size_t)ratio * width;
        memcpy(kv_state, kv_state + group, group * sizeof *kv_state);
        memcpy(score_state, score_state + group, group * sizeof *score_state);
    }
    return 1;
}
