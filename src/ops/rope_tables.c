/* The published RoPE frequencies, computed in float64 and rounded to F32. With t = theta^(-2 i / 64):
 *   base: t, theta 10000.
 *   YaRN: (t / 16) * ramp + t * (1 - ramp), theta 160000, ramp = clamp((i - 15) / 10, 0, 1): the corrections of factor
 * 16, original length 65536, beta_fast 32 and beta_slow 1 begin at pair 15 and are whole from pair 25 on. */
#include <dsrows/ops.h>

#include <stddef.h>

static const float base_frequencies[DSR_ROPE_DIM / 2] = {
    1.0f,           0.749894202f,    0.562341332f,    0.421696514f,    0.316227764f,    0.237137377f,
    0.177827939f,   0.133352146f,    0.100000001f,    0.0749894232f,   0.0562341325f,   0.0421696492f,
    0.0316227749f,  0.0237137377f,   0.0177827943f,   0.013335214f,    0.00999999978f,  0.00749894232f,
    0.00562341325f, 0.00421696482f,  0.00316227763f,  0.00237137382f,  0.00177827943f,  0.00133352145f,
    0.00100000005f, 0.000749894185f, 0.000562341302f, 0.000421696517f, 0.000316227757f, 0.00023713737f,
    0.00017782794f, 0.00013335215f};

static const float yarn_frequencies[DSR_ROPE_DIM / 2] = {1.0f,
                                                         0.687656045f,
                                                         0.472870797f,
                                                         0.325172454f,
                                                         0.223606795f,
                                                         0.153764561f,
                                                         0.105737127f,
                                                         0.0727107748f,
                                                         0.0500000007f,
                                                         0.0343828015f,
                                                         0.0236435402f,
                                                         0.0162586235f,
                                                         0.0111803403f,
                                                         0.00768822804f,
                                                         0.00528685609f,
                                                         0.00363553851f,
                                                         0.00226562493f,
                                                         0.00139680132f,
                                                         0.000849689706f,
                                                         0.000508081983f,
                                                         0.000296977785f,
                                                         0.000168179991f,
                                                         9.08678412e-05f,
                                                         4.54442306e-05f,
                                                         1.95312496e-05f,
                                                         5.3723129e-06f,
                                                         3.69430313e-06f,
                                                         2.54040992e-06f,
                                                         1.74692809e-06f,
                                                         1.20128561e-06f,
                                                         8.260713e-07f,
                                                         5.68052883e-07f};

const float *dsr_rope_frequencies(dsr_rope_table table)
{
    switch (table) {
    case DSR_ROPE_BASE:
        return base_frequencies;
    case DSR_ROPE_YARN:
        return yarn_frequencies;
    }
    return NULL;
}
