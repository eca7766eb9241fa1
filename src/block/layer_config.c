/* The configuration of an attention layer: checks, defaults, RoPE frequencies. */
#include "block/layer.h"

#include "cpu/fp_mode.h"
#include "ops/op_checks.h"

#include <math.h>
#include <string.h>

static dsr_status bad_value(dsr_context *context, const char *field, double given, const char *needed)
{
    return dsri_fail(context, DSR_ERR_VALUE, "attention: %s must be %s, got %.9g", field, needed, given);
}

static dsr_status bad_count(dsr_context *context, const char *field, uint32_t given, const char *needed)
{
    return dsri_fail(context, DSR_ERR_VALUE, "attention: %s must be %s, got %u", field, needed, given);
}

/* Not 0 and not -0, by bits: a caller's mode may take subnormal numbers for zero. */
static int is_given(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits << 1 != 0;
}

static void set_defaults(dsr_attention_config *c)
{
    const int is_window = c->kind == DSR_LAYER_WINDOW;
    if (c->kind == DSR_LAYER_RATIO_4) {
        c->n_index_heads = c->n_index_heads ? c->n_index_heads : 64;
        c->top_k = c->top_k ? c->top_k : 512;
    } else {
        c->n_index_heads = 0;
        c->top_k = 0;
    }
    c->epsilon = is_given(c->epsilon) ? c->epsilon : 1e-6f;
    c->scale = is_given(c->scale) ? c->scale : DSR_ATTENTION_SCALE;
    c->rope_theta = is_given(c->rope_theta) ? c->rope_theta : (is_window ? 10000.0f : 160000.0f);
    c->yarn_factor = is_given(c->yarn_factor) ? c->yarn_factor : (is_window ? 1.0f : 16.0f);
    c->yarn_original_context = is_given(c->yarn_original_context) ? c->yarn_original_context : 65536.0f;
    c->yarn_beta_fast = is_given(c->yarn_beta_fast) ? c->yarn_beta_fast : 32.0f;
    c->yarn_beta_slow = is_given(c->yarn_beta_slow) ? c->yarn_beta_slow : 1.0f;
}

static dsr_status check_shapes(dsr_context *context, const dsr_attention_config *c)
{
    if (c->n_heads != 64 && c->n_heads != 128)
        return dsri_fail(context, DSR_ERR_UNSUPPORTED_SHAPE, "attention: n_heads must be 64 or 128, got %u",
                         c->n_heads);
    if (c->hidden_size == 0 || c->hidden_size % 16 != 0 || c->hidden_size > 65536)
        return bad_count(context, "hidden_size", c->hidden_size, "a multiple of 16 up to 65536");
    if (c->q_rank == 0 || c->q_rank % 16 != 0 || c->q_rank > 16384)
        return bad_count(context, "q_rank", c->q_rank, "a multiple of 16 up to 16384");
    if (c->o_groups == 0 || c->n_heads % c->o_groups != 0)
        return bad_count(context, "o_groups", c->o_groups, "a divisor of n_heads");
    if (c->o_rank == 0 || c->o_rank % 16 != 0 || (uint64_t)c->o_rank * c->o_groups > 65536)
        return bad_count(context, "o_rank", c->o_rank, "a multiple of 16 with o_groups * o_rank up to 65536");
    if (c->kind == DSR_LAYER_RATIO_4) {
        if (c->n_index_heads != 32 && c->n_index_heads != 64 && c->n_index_heads != 128)
            return dsri_fail(context, DSR_ERR_UNSUPPORTED_SHAPE,
                             "attention: n_index_heads must be 32, 64 or 128, got %u", c->n_index_heads);
        if (c->top_k % 32 != 0 || c->top_k > DSR_MAX_TOP_K)
            return bad_count(context, "top_k", c->top_k, "a multiple of 32 up to 2048");
    }
    return DSR_OK;
}

static dsr_status check_scalars(dsr_context *context, const dsr_attention_config *c)
{
    if (!dsri_is_positive(c->epsilon))
        return bad_value(context, "epsilon", c->epsilon, "finite and positive");
    if (!dsri_is_positive(c->scale))
        return bad_value(context, "scale", c->scale, "finite and positive");
    if (!(dsri_is_positive(c->rope_theta) && c->rope_theta >= 2))
        return bad_value(context, "rope_theta", c->rope_theta, "finite and at least 2");
    if (!(dsri_is_positive(c->yarn_factor) && c->yarn_factor >= 1))
        return bad_value(context, "yarn_factor", c->yarn_factor, "finite and at least 1");
    if (!dsri_is_positive(c->yarn_original_context))
        return bad_value(context, "yarn_original_context", c->yarn_original_context, "finite and positive");
    if (!dsri_is_positive(c->yarn_beta_slow))
        return bad_value(context, "yarn_beta_slow", c->yarn_beta_slow, "finite and positive");
    if (!(dsri_is_positive(c->yarn_beta_fast) && c->yarn_beta_fast >= c->yarn_beta_slow))
        return bad_value(context, "yarn_beta_fast", c->yarn_beta_fast, "finite and at least yarn_beta_slow");
    return DSR_OK;
}

dsr_status dsri_layer_config(dsr_context *context, const dsr_attention_config *config, dsr_attention_config *filled)
{
    if (config->struct_size != sizeof *config)
        return dsri_fail(context, DSR_ERR_STRUCT_SIZE, "attention: config.struct_size is %u, this library knows %zu",
                         config->struct_size, sizeof *config);
    dsr_attention_config c = *config;
    if (c.kind != DSR_LAYER_WINDOW && c.kind != DSR_LAYER_RATIO_4 && c.kind != DSR_LAYER_RATIO_128)
        return dsri_fail(context, DSR_ERR_ENUM, "attention: kind must be 0, 4 or 128, got %d", (int)c.kind);
    if (c.cache != DSR_CACHE_BF16 && c.cache != DSR_CACHE_OFFICIAL && c.cache != DSR_CACHE_PACKED)
        return dsri_fail(context, DSR_ERR_ENUM, "attention: cache must be 0, 1 or 2, got %d", (int)c.cache);
    set_defaults(&c);
    dsr_status status = check_shapes(context, &c);
    if (status == DSR_OK)
        status = check_scalars(context, &c);
    if (status == DSR_OK)
        *filled = c;
    return status;
}

/* theta^(i/32) from square roots and products alone (IEEE fixes their bits), so that every machine gets the same
 * frequencies. */
static double power_of_theta(double theta, uint32_t i)
{
    double root = theta;
    double power = 1;
    for (uint32_t bit = 32; bit != 0; bit /= 2) {
        if (i & bit)
            power *= root;
        root = sqrt(root);
    }
    return power;
}

static void compute_frequencies(const dsr_attention_config *c, float frequencies[DSRI_N_FREQUENCIES])
{
    const int is_base = c->rope_theta == 10000.0f && c->yarn_factor == 1.0f;
    const int is_yarn = c->rope_theta == 160000.0f && c->yarn_factor == 16.0f && c->yarn_original_context == 65536.0f &&
                        c->yarn_beta_fast == 32.0f && c->yarn_beta_slow == 1.0f;
    if (is_base || is_yarn) {
        memcpy(frequencies, dsr_rope_frequencies(is_base ? DSR_ROPE_BASE : DSR_ROPE_YARN),
               DSRI_N_FREQUENCIES * sizeof *frequencies);
        return;
    }
    /* The blend runs from the last pair that turns beta_fast times within the original context to the first that turns
     * beta_slow times: theta^(i/32) against context / (2 pi beta). */
    const double two_pi = 6.283185307179586;
    const double fast = c->yarn_original_context / (two_pi * c->yarn_beta_fast);
    const double slow = c->yarn_original_context / (two_pi * c->yarn_beta_slow);
    double low = 0, high = DSR_ROPE_DIM - 1;
    for (uint32_t i = 0; i < DSR_ROPE_DIM && power_of_theta(c->rope_theta, i) <= fast; i++)
        low = i;
    for (uint32_t i = DSR_ROPE_DIM; i-- > 0 && power_of_theta(c->rope_theta, i) >= slow;)
        high = i;
    if (low == high)
        high += 0.001;
    for (uint32_t i = 0; i < DSRI_N_FREQUENCIES; i++) {
        const double plain = 1 / power_of_theta(c->rope_theta, i);
        double ramp = ((double)i - low) / (high - low);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        frequencies[i] = (float)(plain / c->yarn_factor * ramp + plain * (1 - ramp));
    }
}

dsr_status dsri_layer_frequencies(dsr_attention *layer)
{
    const dsri_fp_mode mode = dsri_fp_mode_enter();
    compute_frequencies(&layer->config, layer->frequencies);
    dsri_fp_mode_leave(mode);
    for (uint32_t i = 0; i < DSRI_N_FREQUENCIES; i++)
        if (!dsri_is_positive(layer->frequencies[i]))
            return dsri_fail(layer->context, DSR_ERR_VALUE,
                             "attention: rope_theta %g and yarn_factor %g give a frequency of 0",
                             (double)layer->config.rope_theta, (double)layer->config.yarn_factor);
    return DSR_OK;
}
