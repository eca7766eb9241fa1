/* The packed form of projection weights, for the packer and the kernels.
 *
 * Weights are taken as 32-bit words of consecutive inputs: 2 BF16 or 4 E4M3 values. Outputs are cut into panels of 32,
 * and a panel holds word k of its 32 outputs side by side, then word k + 1: lanes are outputs, and a panel is one
 * stream. FP8 panels are cut into blocks of 128 inputs, each led by the F32 scale of every output; a NaN weight makes
 * its scale a NaN. Places of outputs that do not exist hold zeros. */
#ifndef DSRI_PROJECTION_LAYOUT_H
#define DSRI_PROJECTION_LAYOUT_H

#include "ops/op_plans.h"

#include <stdint.h>

enum { DSRI_PANEL_OUTPUTS = 32, DSRI_FP8_BLOCK = 128, DSRI_SEGMENT_INPUTS = 512 };

DSRI_LAYOUT_CODE uint64_t dsri_panels(uint64_t n_outputs)
{
    return (n_outputs + DSRI_PANEL_OUTPUTS - 1) / DSRI_PANEL_OUTPUTS;
}

/* Words of the first n_inputs of a panel; n_inputs is a multiple of 16, and of 128 if more follow. */
DSRI_LAYOUT_CODE uint64_t dsri_bf16_panel_words(uint64_t n_inputs)
{
    return n_inputs / 2 * DSRI_PANEL_OUTPUTS;
}

DSRI_LAYOUT_CODE uint64_t dsri_fp8_panel_words(uint64_t n_inputs)
{
    const uint64_t n_blocks = (n_inputs + DSRI_FP8_BLOCK - 1) / DSRI_FP8_BLOCK;
    return (n_blocks + n_inputs / 4) * DSRI_PANEL_OUTPUTS;
}

/* 1 in the top bit of every byte of four E4M3 codes that is a NaN. */
DSRI_LAYOUT_CODE uint32_t dsri_e4m3_nans(uint32_t codes)
{
    return ((codes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
}

/* Bits of the F32 value of an E8M0 scale: 2^(code - 127), and 255 is a NaN. */
DSRI_LAYOUT_CODE uint32_t dsri_e8m0_bits(uint8_t code)
{
    return code == 255 ? 0x7fc00000u : code == 0 ? 0x00400000u : (uint32_t)code << 23;
}

#endif
