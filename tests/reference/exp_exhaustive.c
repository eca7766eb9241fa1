/* Checks ref_exp against double exp for every float x <= 0: exactly 1 at zero, never decreasing, error below one unit
 * in the last place, exactly +0 where the result would be subnormal, NaN for NaN.
 *
 *   exp_exhaustive          a sample: every 521st float, and every float near the zero cut and around multiples of
 *                           ln 2 / 2, where the reduction changes its integer
 *   exp_exhaustive --full   all 2,139,095,041 floats from -0 to -inf, and every NaN */
#include "reference/reference.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const uint32_t minus_zero = 0x80000000u, minus_inf = 0xff800000u;
static double worst;
static float worst_at;
static uint64_t checked, failed;

static float float_of(uint32_t b)
{
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

static void fail(float x, float y, const char *why)
{
    if (failed++ < 20) {
        printf("exp(%a) = %a (%08x): %s\n", (double)x, (double)y, (unsigned)bits_of(y), why);
    }
}

/* The F32 unit in the last place of the binade just below a positive double. */
static double unit_below(double exact)
{
    uint64_t b;
    memcpy(&b, &exact, sizeof b);
    b = (((b - 1) >> 52) - 23) << 52;
    memcpy(&exact, &b, sizeof b);
    return exact;
}

/* Bits of the negative floats rise as x falls, so over a rising range the results must not rise. */
static void check_range(uint32_t first, uint32_t last, uint32_t stride)
{
    float previous = 1.0f;
    for (uint64_t b = first; b <= last; b += stride) {
        const float x = float_of((uint32_t)b), y = ref_exp(x);
        const double exact = exp((double)x);
        checked++;
        if (!(y <= previous)) {
            fail(x, y, "greater than at the next float up");
        }
        previous = y;
        if (exact < 0x1p-126) {
            if (bits_of(y) != 0) {
                fail(x, y, "should be +0");
            }
            continue;
        }
        if (x == 0.0f && bits_of(y) != 0x3f800000u) {
            fail(x, y, "should be 1");
        }
        const double error = fabs((double)y - exact) / unit_below(exact);
        if (error > worst) {
            worst = error;
            worst_at = x;
        }
        if (!(error < 1.0)) {
            fail(x, y, "error of one unit or more");
        }
    }
}

int main(int argc, char **argv)
{
    const int full = argc > 1 && strcmp(argv[1], "--full") == 0;

    if (full) {
        check_range(minus_zero, minus_inf, 1);
    } else {
        check_range(minus_zero, minus_inf, 521);
        check_range(bits_of(-87.40f), bits_of(-87.30f), 1);
        for (int k = 1; k <= 252; k++) {
            const uint32_t edge = bits_of((float)(-0.34657359027997264 * k));
            check_range(edge - 512, edge + 512, 1);
        }
        check_range(minus_inf, minus_inf, 1);
    }
    if (bits_of(ref_exp(0.0f)) != 0x3f800000u) {
        fail(0.0f, ref_exp(0.0f), "should be 1");
    }
    for (uint64_t b = 0x7f800001u; b <= 0xffffffffu; b += full ? 1 : 4099) {
        const float x = float_of((uint32_t)b);
        if (x != x && ref_exp(x) == ref_exp(x)) {
            fail(x, ref_exp(x), "should be NaN");
        }
    }
    printf("%llu floats, worst error %.6f units at %a, %llu failures\n", (unsigned long long)checked, worst,
           (double)worst_at, (unsigned long long)failed);
    return failed != 0;
}
