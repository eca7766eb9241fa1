/* exp for softmax weights. Every step is one IEEE operation or a compare and select, so any vector unit gives the same
 * bits lane by lane. tests/reference/exp_exhaustive.c proves the promises of reference.h for every float. */
#include "ref_bits.h"
#include "reference.h"

#include <math.h>

float ref_exp(float x)
{
    /* Adding 1.5 * 2^23 rounds to an integer n and leaves n in the low bits of the sum. */
    const float magic = 12582912.0f;
    const float t = fmaf(x, 0x1.715476p+0f, magic); /* log2(e) */
    const float n = t - magic;

    /* r = x - n ln 2, |r| < 0.3467; r_high is exact, r_low corrects for the rounded constant. */
    const float r_high = fmaf(n, -0x1.62e430p-1f, x);
    const float r_low = n * 0x1.05c610p-29f;
    const float r = r_high + r_low;

    /* exp(r) = 1 + (r + r^2 q(r)), q minimax. */
    float q = 0x1.6a23d0p-10f;
    q = fmaf(q, r, 0x1.123a20p-7f);
    q = fmaf(q, r, 0x1.5558f2p-5f);
    q = fmaf(q, r, 0x1.555492p-3f);
    q = fmaf(q, r, 0x1.fffffcp-2f);
    const float p = r_high + fmaf(r * r, q, r_low) + 1.0f;

    /* Times 2^n in the exponent field. Results are normal down to the last float above ln(2^-126). */
    float y = float_of(bits_of(p) + (bits_of(t) << 23));
    y = x < -0x1.5d589ep+6f ? 0.0f : y;
    return x != x ? x : y;
}
