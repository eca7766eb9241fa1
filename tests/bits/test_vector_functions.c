/* exp, the rounding to BF16 and the decoding of packed caches on every level against the reference, bit by bit: results
 * of ops round away too much to show a difference in the last place.
 *
 * The quick tier takes a sample of the arguments of exp, DSR_TEST_TIER=full takes all of them. */
#include "vector_functions.h"

#include "patterns.h"
#include "reference/reference.h"

#include <dsrows/context.h>

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 4096 };

typedef struct level {
    dsr_isa isa;
    const vector_functions *functions;
} level;

static const level levels[] = {
    {DSR_ISA_SCALAR, &vector_functions_scalar},
#ifdef DSRI_HAVE_AVX2
    {DSR_ISA_AVX2, &vector_functions_avx2},
#endif
#ifdef DSRI_HAVE_AVX512
    {DSR_ISA_AVX512, &vector_functions_avx512},
#endif
#ifdef DSRI_HAVE_NEON
    {DSR_ISA_NEON, &vector_functions_neon},
#endif
};

enum { N_LEVELS = sizeof levels / sizeof levels[0] };

static uint32_t sample_step(void)
{
    const char *tier = getenv("DSR_TEST_TIER");
    return tier && strcmp(tier, "full") == 0 ? 1 : 1009;
}

static int is_nan(uint32_t bits)
{
    return (bits & 0x7fffffffu) > 0x7f800000u;
}

/* x of one block through every level, compared with what the reference gave. */
static void check_exp(const float *x, const float *want)
{
    float got[BLOCK];
    for (int l = 0; l < N_LEVELS; l++) {
        if (!dsr_isa_available(levels[l].isa)) {
            continue;
        }
        levels[l].functions->exp(x, got, BLOCK);
        for (int i = 0; i < BLOCK; i++) {
            const uint32_t a = f32_to_bits(got[i]), b = f32_to_bits(want[i]);
            if (a != b && !(is_nan(a) && is_nan(b))) {
                fail_msg("%s: exp(%08x) is %08x, want %08x", dsr_isa_name(levels[l].isa), f32_to_bits(x[i]), a, b);
            }
        }
    }
}

/* Negative floats from -0 to where results are 0, then a sample down to infinity and the NaNs behind it. */
static void test_exp(void **state)
{
    const uint64_t first = 0x80000000u, below_all_results = 0xc2d00000u, last = 0x100000000u, step = sample_step();
    float x[BLOCK], want[BLOCK];
    (void)state;
    for (uint64_t bits = first; bits < last;) {
        for (int i = 0; i < BLOCK; i++, bits += bits < below_all_results ? step : 4099) {
            x[i] = bits < last ? f32_from_bits((uint32_t)bits) : 0.0f;
            want[i] = ref_exp(x[i]);
        }
        check_exp(x, want);
    }
}

/* Where results stop being normal, and around every multiple of ln 2 / 2: two hundred floats on either side. */
static void test_exp_near_seams(void **state)
{
    enum { AROUND = BLOCK / 2 };
    float x[BLOCK], want[BLOCK];
    (void)state;
    for (int half = 0; half <= 260; half++) {
        const float seam = -(float)half * 0.34657359f;
        for (int i = 0; i < BLOCK; i++) {
            const int64_t bits = (int64_t)f32_to_bits(seam) + i - AROUND;
            x[i] = bits >= 0x80000000 ? f32_from_bits((uint32_t)bits) : 0.0f;
            want[i] = ref_exp(x[i]);
        }
        check_exp(x, want);
    }
}

static void check_bf16(const float *x)
{
    uint16_t got[BLOCK];
    for (int l = 0; l < N_LEVELS; l++) {
        if (!dsr_isa_available(levels[l].isa)) {
            continue;
        }
        levels[l].functions->store_bf16(x, got, BLOCK);
        for (int i = 0; i < BLOCK; i++) {
            const uint16_t want = ref_bf16_from_f32(x[i]);
            const int both_nan = is_nan((uint32_t)got[i] << 16) && is_nan((uint32_t)want << 16);
            if (got[i] != want && !both_nan) {
                fail_msg("%s: %08x gives %04x, want %04x", dsr_isa_name(levels[l].isa), f32_to_bits(x[i]), got[i],
                         want);
            }
        }
    }
}

/* Every upper half with every kind of lower half: exact, ties, their neighbours, and some in between. */
static void test_bf16_rounding(void **state)
{
    static const uint32_t low[8] = {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff, 0x4000, 0xc123};
    float x[BLOCK];
    (void)state;
    for (uint32_t high = 0; high < 0x10000; high += BLOCK / 8) {
        for (uint32_t i = 0; i < BLOCK; i++) {
            x[i] = f32_from_bits((high + i / 8) << 16 | low[i % 8]);
        }
        check_bf16(x);
    }
}

static void check_decoded(const char *what, const uint16_t *got, const uint16_t *want, uint32_t n, uint32_t scale,
                          dsr_isa isa)
{
    for (uint32_t i = 0; i < n; i++) {
        if (got[i] != want[i]) {
            fail_msg("%s: feature %u of %s with scale %u is %04x, want %04x", dsr_isa_name(isa), i, what, scale, got[i],
                     want[i]);
        }
    }
}

/* A normal E4M3 code. */
static uint8_t normal_code(uint32_t code)
{
    const uint32_t magnitude = code & 0x7f;
    return (uint8_t)(magnitude < 8 || magnitude == 0x7f ? code ^ 0x18 : code);
}

/* Every byte in every place of a block under every scale, the other blocks under other scales; the same with blocks of
 * normal codes alone, and with one that is not. */
static void test_decoding(void **state)
{
    uint16_t key[128], want_key[128], row[512], want_row[512];
    uint8_t values[576], scales[7];
    (void)state;
    for (uint32_t scale = 0; scale < 256; scale++) {
        for (uint32_t turn = 0; turn < 3 * 64; turn++) {
            for (uint32_t i = 0; i < sizeof values; i++) {
                values[i] = (uint8_t)(i * 37 + turn * 4 + (i >> 6));
                values[i] = turn < 64 || (turn < 128 && i % 64 == turn % 64) ? values[i] : normal_code(values[i]);
            }
            for (uint32_t i = 0; i < sizeof scales; i++) {
                scales[i] = (uint8_t)(scale + i * (turn % 40));
            }
            ref_decode_fp4_key(values, scales, want_key);
            ref_decode_fp8_row(values, scales, want_row);
            for (int l = 0; l < N_LEVELS; l++) {
                if (dsr_isa_available(levels[l].isa)) {
                    levels[l].functions->decode_key(values, scales, key);
                    levels[l].functions->decode_row(values, scales, row);
                    check_decoded("a key", key, want_key, 128, scale, levels[l].isa);
                    check_decoded("a row", row, want_row, 512, scale, levels[l].isa);
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_exp_near_seams),
        cmocka_unit_test(test_bf16_rounding),
        cmocka_unit_test(test_decoding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
