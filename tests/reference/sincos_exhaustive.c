/* Checks ref_sincos against double sin and cos: the F32 result must be the rounded double one. Where the double lies so
 * close to the middle between two floats that its own error could decide, either float passes and is counted apart.
 *
 *   sincos_exhaustive          a sample: every 4099th float, the RoPE angles and the floats next to multiples of pi / 2
 *   sincos_exhaustive --full   every finite float */
#include "reference/reference.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static uint64_t checked, close_calls, failed;

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

static void check_value(const char *name, float angle, float got, double exact)
{
    checked++;
    if (bits_of(got) == bits_of((float)exact)) {
        return;
    }
    const double error = DBL_EPSILON * fabs(exact);
    if (bits_of(got) == bits_of((float)(exact - error)) || bits_of(got) == bits_of((float)(exact + error))) {
        close_calls++;
        printf("%s(%a) = %a: too close to the middle\n", name, (double)angle, (double)got);
    } else if (failed++ < 20) {
        printf("%s(%a) = %a, should be %a\n", name, (double)angle, (double)got, exact);
    }
}

/* At angle > 0, and that -angle mirrors it. */
static void check(float angle)
{
    float sine, cosine, mirrored_sine, mirrored_cosine;
    ref_sincos(angle, &sine, &cosine);
    ref_sincos(-angle, &mirrored_sine, &mirrored_cosine);
    check_value("sin", angle, sine, sin((double)angle));
    check_value("cos", angle, cosine, cos((double)angle));
    if (bits_of(mirrored_sine) != bits_of(-sine) || bits_of(mirrored_cosine) != bits_of(cosine)) {
        failed++;
        printf("sincos(%a) does not mirror\n", (double)-angle);
    }
}

int main(int argc, char **argv)
{
    const uint32_t infinity = 0x7f800000u;
    const int full = argc > 1 && strcmp(argv[1], "--full") == 0;

    for (uint32_t b = 0; b < infinity; b += full ? 1 : 4099) {
        check(float_of(b));
    }
    for (int yarn = 0; yarn < 2; yarn++) {
        double frequencies[32];
        acc_rope_frequencies(yarn ? 160000.0 : 10000.0, yarn, frequencies);
        for (uint32_t pos = 1; pos < 1048576; pos += pos < 1000 ? 1 : 211) {
            for (int i = 0; i < 32; i++) {
                check((float)pos * (float)frequencies[i]);
            }
        }
    }
    for (int k = 1; k <= 100000; k++) {
        const uint32_t b = bits_of((float)(k * 1.5707963267948966));
        check(float_of(b - 1));
        check(float_of(b));
        check(float_of(b + 1));
    }
    printf("%llu results, %llu too close for double to tell, %llu failures\n", (unsigned long long)checked,
           (unsigned long long)close_calls, (unsigned long long)failed);
    return failed != 0;
}
