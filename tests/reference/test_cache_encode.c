/* Encoding of packed keys and rows: what entries decode to is what fake quantisation gives, bit for bit, and packing
 * what an entry decodes to keeps it. */
#include "reference_test.h"

#include <math.h>

/* Floors of the greatest value of a block: the model's code, engines' kernels. */
static const float fp8_floors[] = {1e-4f, 448e-4f};
static const float fp4_floors[] = {0x1.8p-124f, 1e-4f};

enum { SEED = 71, N_VECTORS = 3000 };

/* A vector with blocks of any magnitude, zeros, signs of zero, values close to the largest, and some that are not
 * finite. */
static void fill(uint64_t *random, uint16_t *x, size_t n)
{
    for (size_t first = 0; first < n; first += 32) {
        const uint64_t draw = random_bits(random);
        const float scale = ldexpf(1.0f, (int)(draw % 250) - 125);
        for (size_t i = first; i < first + 32; i++) {
            const uint64_t kind = draw >> 32 & 15;
            x[i] = kind == 0   ? (uint16_t)random_bits(random)
                   : kind == 1 ? (uint16_t)(random_bits(random) & 0x8000)
                   : kind == 2 ? (uint16_t)(random_bits(random) & 0x807f)
                               : bf(random_value(random) * scale);
        }
    }
}

static void assert_same(const uint16_t *x, const uint16_t *y, size_t n, uint32_t vector)
{
    for (size_t i = 0; i < n; i++) {
        if (x[i] != y[i]) {
            fail_msg("seed %d, vector %u, feature %zu: %04x and %04x", SEED, vector, i, x[i], y[i]);
        }
    }
}

static void rows_decode_to_fake_quantisation(void **state)
{
    uint64_t random = SEED;
    (void)state;
    for (uint32_t v = 0; v < N_VECTORS; v++) {
        uint16_t x[512], expected[512], decoded[512];
        uint8_t values[576], scales[8];
        fill(&random, x, 512);
        memset(scales, 0xee, sizeof scales);
        ref_fake_quant_fp8(x, 512, fp8_floors[v % 2], expected);
        ref_encode_fp8_row(x, fp8_floors[v % 2], values, scales);
        ref_decode_fp8_row(values, scales, decoded);
        assert_same(decoded, expected, 512, v);
        assert_int_equal(scales[7], 0);
    }
}

static void keys_decode_to_fake_quantisation(void **state)
{
    uint64_t random = SEED;
    (void)state;
    for (uint32_t v = 0; v < 4 * N_VECTORS; v++) {
        uint16_t x[128], expected[128], decoded[128];
        uint8_t values[64], scales[4];
        fill(&random, x, 128);
        ref_hadamard_fp4(x, fp4_floors[v % 2], expected);
        ref_encode_fp4_key(x, fp4_floors[v % 2], values, scales);
        ref_decode_fp4_key(values, scales, decoded);
        assert_same(decoded, expected, 128, v);
    }
}

/* Blocks of one value and zeros: all BF16 values, so that every scale and every rounding occurs. */
static void every_value_is_encoded(void **state)
{
    (void)state;
    for (uint32_t b = 0; b < 0x10000; b++) {
        uint16_t x[512] = {0}, expected[512], decoded[512];
        uint8_t values[576], scales[8];
        x[b % 448] = (uint16_t)b;
        ref_fake_quant_fp8(x, 512, fp8_floors[b / 7 % 2], expected);
        ref_encode_fp8_row(x, fp8_floors[b / 7 % 2], values, scales);
        ref_decode_fp8_row(values, scales, decoded);
        assert_same(decoded, expected, 512, b);
    }
}

/* Blocks of zeros, and those that are zeros since a value is not finite. */
static void zero_blocks_have_the_smallest_scale(void **state)
{
    static const uint8_t fp8_bytes[] = {127 - 22, 127 - 13};
    static const uint8_t fp4_bytes[] = {127 - 126, 127 - 15};
    uint16_t x[512] = {0};
    uint8_t values[576], scales[8];
    (void)state;
    x[0] = 0x8000;
    x[64] = 0x7f80;
    x[65] = 0x3f80;
    for (int floor = 0; floor < 2; floor++) {
        ref_encode_fp8_row(x, fp8_floors[floor], values, scales);
        assert_int_equal(values[0], 0x80);
        for (int i = 1; i < 576; i++) {
            assert_int_equal(values[i], 0);
        }
        for (int block = 0; block < 7; block++) {
            assert_int_equal(scales[block], fp8_bytes[floor]);
        }
        ref_encode_fp4_key(x + 128, fp4_floors[floor], values, scales);
        for (int block = 0; block < 4; block++) {
            assert_int_equal(scales[block], fp4_bytes[floor]);
        }
        for (int i = 0; i < 64; i++) {
            assert_int_equal(values[i], 0);
        }
    }
    ref_pack_fp8_row(x, values, scales);
    assert_int_equal(scales[0], 0);
    assert_int_equal(scales[1], 0);
    assert_int_equal(values[65], 0);
}

/* Any packed entry of finite values, of any scales: what it decodes to is packed without loss, if perhaps to other
 * codes and scales. */
static void packing_keeps_what_entries_decode_to(void **state)
{
    uint64_t random = SEED;
    (void)state;
    for (uint32_t v = 0; v < 8 * N_VECTORS; v++) {
        uint8_t values[576], scales[8];
        uint16_t decoded[512], again[512];
        const uint64_t draw = random_bits(&random);
        for (uint32_t i = 0; i < 448; i++) {
            const uint32_t code = (uint32_t)(random_bits(&random) >> (v % 4 ? 24 : 32)) & 0xff;
            values[i] = (uint8_t)((code & 0x7f) == 0x7f ? 0 : v % 3 == 0 ? code & 0x87 : code);
        }
        memset(values + 448, 0, 128);
        for (int block = 0; block < 8; block++) {
            scales[block] = (uint8_t)(v % 2 ? (draw >> (8 * block)) % 246 : (draw >> (8 * block)) % 24);
        }
        ref_decode_fp8_row(values, scales, decoded);
        ref_pack_fp8_row(decoded, values, scales);
        ref_decode_fp8_row(values, scales, again);
        assert_same(again, decoded, 512, v);

        for (int i = 0; i < 64; i++) {
            values[i] = (uint8_t)random_bits(&random);
        }
        for (int block = 0; block < 4; block++) {
            scales[block] = (uint8_t)(v % 2 ? (draw >> (8 * block)) % 252 : (draw >> (8 * block)) % 8);
        }
        ref_decode_fp4_key(values, scales, decoded);
        ref_pack_fp4_key(decoded, values, scales);
        ref_decode_fp4_key(values, scales, again);
        assert_same(again, decoded, 128, v);
    }
}

/* A few codes by hand: low nibble first, sign in the top bit. */
static void codes_by_hand(void **state)
{
    uint16_t x[512] = {0};
    uint8_t values[576], scales[8];
    (void)state;
    x[0] = bf(-6.0f);
    x[1] = bf(0.5f);
    x[2] = bf(3.0f);
    x[3] = bf(-1.5f);
    ref_pack_fp4_key(x, values, scales);
    assert_int_equal(scales[0], 127);
    assert_int_equal(values[0], 0x1f);
    assert_int_equal(values[1], 0xb5);
    x[0] = bf(448.0f);
    x[1] = bf(-0x1p-9f);
    x[2] = bf(1.0f);
    x[3] = bf(0x1.cp-7f);
    ref_encode_fp8_row(x, 1e-4f, values, scales);
    assert_int_equal(scales[0], 127);
    assert_int_equal(values[0], 0x7e);
    assert_int_equal(values[1], 0x81);
    assert_int_equal(values[2], 0x38);
    assert_int_equal(values[3], 0x07);
    x[0] = bf(450.0f);
    ref_encode_fp8_row(x, 1e-4f, values, scales);
    assert_int_equal(scales[0], 128);
    assert_int_equal(values[2], 0x30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_decode_to_fake_quantisation),
        cmocka_unit_test(keys_decode_to_fake_quantisation),
        cmocka_unit_test(every_value_is_encoded),
        cmocka_unit_test(zero_blocks_have_the_smallest_scale),
        cmocka_unit_test(packing_keeps_what_entries_decode_to),
        cmocka_unit_test(codes_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
