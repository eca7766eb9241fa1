/* Functions on vectors beyond single operations. */
#ifndef DSRI_VMATH_H
#define DSRI_VMATH_H

#include "cpu/vec/vec.h"

/* exp(x) for x <= 0 or NaN, the bits of ref_exp (src/reference/ref_exp.c): error under 1 ulp on [-87.33, 0], exactly 0
 * where the result would be subnormal, NaN for NaN. */
static inline vf v_exp(vf x)
{
    /* Adding 1.5 * 2^23 rounds to an integer n and leaves n in the low bits of the sum. */
    const vf magic = vf_set1(12582912.0f);
    const vf t = vf_fma(x, vf_set1(0x1.715476p+0f), magic); /* log2(e) */
    const vf n = vf_sub(t, magic);

    /* r = x - n ln 2, |r| < 0.3467; r_high is exact, r_low corrects for the rounded constant. */
    const vf r_high = vf_fma(n, vf_set1(-0x1.62e430p-1f), x);
    const vf r_low = vf_mul(n, vf_set1(0x1.05c610p-29f));
    const vf r = vf_add(r_high, r_low);

    /* exp(r) = 1 + (r + r^2 q(r)) */
    vf q = vf_set1(0x1.6a23d0p-10f);
    q = vf_fma(q, r, vf_set1(0x1.123a20p-7f));
    q = vf_fma(q, r, vf_set1(0x1.5558f2p-5f));
    q = vf_fma(q, r, vf_set1(0x1.555492p-3f));
    q = vf_fma(q, r, vf_set1(0x1.fffffcp-2f));
    const vf p = vf_add(vf_add(r_high, vf_fma(vf_mul(r, r), q, r_low)), vf_set1(1.0f));

    /* Times 2^n in the exponent field. */
    const vf y = vf_from_bits(vi_add(vf_bits(p), vi_shl(vf_bits(t), 23)));
    const vf flushed = vf_select(vm_lt(x, vf_set1(-0x1.5d589ep+6f)), vf_zero(), y);
    return vf_select(vm_not_equal(x, x), x, flushed);
}

#endif
