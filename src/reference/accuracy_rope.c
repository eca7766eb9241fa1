/* The published RoPE tables in float64: theta^(-i/32), and YaRN (factor 16, original length 65536, beta 32 and 1),
 * which divides slow frequencies by the factor, keeps fast ones, and blends those between. */
#include "reference.h"

#include <math.h>

/* The pair index, as a real number, that turns `turns` times within the original length. */
static double pair_with_turns(double theta, double turns)
{
    const double two_pi = 6.283185307179586476925;
    return 64.0 * log(65536.0 / (turns * two_pi)) / (2.0 * log(theta));
}

void acc_rope_frequencies(double theta, int yarn, double frequencies[32])
{
    const double low = fmax(floor(pair_with_turns(theta, 32.0)), 0.0);
    double high = fmin(ceil(pair_with_turns(theta, 1.0)), 63.0);
    high = high == low ? high + 0.001 : high;

    for (int i = 0; i < 32; i++) {
        const double f = pow(theta, -2.0 * i / 64.0);
        const double ramp = fmin(fmax((i - low) / (high - low), 0.0), 1.0);
        frequencies[i] = yarn ? f / 16.0 * ramp + f * (1.0 - ramp) : f;
    }
}
