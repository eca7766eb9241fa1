/* Half-open range sets against a map of bytes. */
#include "core_test.h"

#include "core/ranges.h"
#include "random.h"

enum { SPACE = 96, MAX_PIECES = 12, ROUNDS = 20000 };

static uint32_t make_ranges(random_stream *random, dsr_range *ranges, unsigned char *map)
{
    const uint32_t n = random_below(random, MAX_PIECES + 1);
    memset(map, 0, SPACE);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t begin = random_below(random, SPACE);
        const uint32_t length = random_below(random, 9); /* 0 now and then */
        const uint32_t end = begin + length < SPACE ? begin + length : SPACE;
        ranges[i] = (dsr_range){begin, end};
        memset(map + begin, 1, end - begin);
    }
    return n;
}

static void check_normal(const dsr_range *ranges, uint32_t n, const unsigned char *map)
{
    unsigned char again[SPACE] = {0};
    for (uint32_t i = 0; i < n; i++) {
        assert_true(ranges[i].begin < ranges[i].end);
        if (i > 0)
            assert_true(ranges[i - 1].end < ranges[i].begin);
        memset(again + ranges[i].begin, 1, (size_t)(ranges[i].end - ranges[i].begin));
    }
    assert_memory_equal(again, map, SPACE);
}

static void test_against_map(void **state)
{
    const uint64_t seed = 20261201;
    random_stream random = random_open(seed, 1);
    uint32_t n_overlapping = 0;
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < ROUNDS; round++) {
        dsr_range a[MAX_PIECES], b[MAX_PIECES];
        unsigned char map_a[SPACE], map_b[SPACE];
        uint32_t n_a = make_ranges(&random, a, map_a), n_b = make_ranges(&random, b, map_b);
        n_a = dsri_ranges_normalize(a, n_a);
        n_b = dsri_ranges_normalize(b, n_b);
        check_normal(a, n_a, map_a);
        check_normal(b, n_b, map_b);
        int expected = 0;
        for (int i = 0; i < SPACE; i++)
            expected |= map_a[i] & map_b[i];
        assert_int_equal(dsri_ranges_overlap(a, n_a, b, n_b), expected);
        assert_int_equal(dsri_ranges_overlap(b, n_b, a, n_a), expected);
        n_overlapping += (uint32_t)expected;
    }
    assert_in_range(n_overlapping, ROUNDS / 10, ROUNDS - ROUNDS / 10);
}

static void test_touching_is_not_overlapping(void **state)
{
    const dsr_range low = {0, 96}, high = {96, 200}, across = {95, 97};
    (void)state;
    assert_false(dsri_ranges_overlap(&low, 1, &high, 1));
    assert_true(dsri_ranges_overlap(&low, 1, &across, 1));
    assert_true(dsri_ranges_overlap(&high, 1, &across, 1));
    assert_false(dsri_ranges_overlap(&low, 1, &across, 0));
}

/* More ranges than there is room for, in an order of their own: the set grows, it never loses a byte. */
static void check_too_many(uint32_t factor)
{
    enum { N = 2 * DSRI_MAX_RANGES };
    static dsri_ranges ranges;
    static unsigned char memory[4 * N];
    random_stream random = random_open(7, factor);
    ranges.n_reads = 0;
    ranges.n_writes = 0;
    for (uint32_t i = 0; i < N; i++) {
        dsri_ranges_read(&ranges, memory + 4 * (i * factor % N), 1 + random_below(&random, 3));
        dsri_ranges_write(&ranges, memory + 4 * i, 0);
    }
    assert_int_equal(ranges.n_writes, 0);
    assert_true(ranges.n_reads <= DSRI_MAX_RANGES);
    ranges.n_reads = dsri_ranges_normalize(ranges.reads, ranges.n_reads);
    for (uint32_t i = 0; i < N; i++) {
        const dsr_range byte = {(uintptr_t)(memory + 4 * i), (uintptr_t)(memory + 4 * i) + 1};
        assert_true(dsri_ranges_overlap(ranges.reads, ranges.n_reads, &byte, 1));
    }
}

static void test_too_many_ranges(void **state)
{
    (void)state;
    check_too_many(1);
    check_too_many(37);
    check_too_many(2 * DSRI_MAX_RANGES - 1); /* falling addresses */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_map),
        cmocka_unit_test(test_touching_is_not_overlapping),
        cmocka_unit_test(test_too_many_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
