/* The arena: alignment, pieces that stand still, rewinding, and no allocation the second time. */
#include "core_test.h"

#include "core/arena.h"
#include "random.h"

enum { N_PIECES = 400 };

typedef struct taken {
    unsigned char *memory;
    size_t size;
} taken;

static size_t piece_size(random_stream *random)
{
    return random_one_in(random, 16) ? random_below(random, 100000) : random_below(random, 700);
}

static void fill(dsri_arena *arena, taken *pieces, uint64_t seed)
{
    static const size_t alignments[] = {1, 4, 8, 16, 64};
    random_stream random = random_open(seed, 0);
    for (int i = 0; i < N_PIECES; i++) {
        const size_t alignment = alignments[random_below(&random, 5)];
        pieces[i].size = piece_size(&random);
        pieces[i].memory = dsri_arena_take(arena, pieces[i].size, alignment);
        assert_non_null(pieces[i].memory);
        assert_int_equal((uintptr_t)pieces[i].memory % alignment, 0);
        memset(pieces[i].memory, i & 0xff, pieces[i].size);
    }
}

static void check(const taken *pieces)
{
    for (int i = 0; i < N_PIECES; i++)
        for (size_t j = 0; j < pieces[i].size; j++)
            if (pieces[i].memory[j] != (i & 0xff))
                fail_msg("piece %d was overwritten at byte %zu", i, j);
}

static void test_steady_state(void **state)
{
    static taken pieces[N_PIECES];
    counting_allocator counter = {0};
    const dsr_allocator allocator = counting_hook(&counter);
    dsri_arena arena;
    (void)state;
    dsri_arena_init(&arena, &allocator);
    fill(&arena, pieces, 3);
    check(pieces);
    const uint64_t n_calls = counter.n_calls;
    for (int round = 0; round < 3; round++) {
        dsri_arena_rewind(&arena, (dsri_arena_mark){.current = NULL});
        fill(&arena, pieces, 3);
        check(pieces);
    }
    assert_int_equal(counter.n_calls, n_calls);
    dsri_arena_free(&arena);
    assert_int_equal(counter.n_live, 0);
    assert_int_equal(counter.live_bytes, 0);
}

/* A block that comes in between two others: none is lost, and all are used again. */
static void test_block_in_between(void **state)
{
    static const size_t sizes[2][3] = {{1000, 60000, 1000}, {1000, 500000, 60000}};
    counting_allocator counter = {0};
    const dsr_allocator allocator = counting_hook(&counter);
    dsri_arena arena;
    (void)state;
    dsri_arena_init(&arena, &allocator);
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < 3; i++)
            assert_non_null(dsri_arena_take(&arena, sizes[round % 2][i], 64));
        assert_int_equal(counter.n_calls, round == 0 ? 2 : 3);
        dsri_arena_rewind(&arena, (dsri_arena_mark){.current = NULL});
    }
    dsri_arena_free(&arena);
    assert_int_equal(counter.n_live, 0);
    assert_int_equal(counter.live_bytes, 0);
}

static void test_rewind_after_failure(void **state)
{
    counting_allocator counter = {0};
    const dsr_allocator allocator = counting_hook(&counter);
    dsri_arena arena;
    (void)state;
    dsri_arena_init(&arena, &allocator);
    unsigned char *first = dsri_arena_take(&arena, 1000, 64);
    memset(first, 1, 1000);
    const dsri_arena_mark mark = dsri_arena_get_mark(&arena);
    unsigned char *second = dsri_arena_take(&arena, 500, 64);
    counter.fail_at = counter.n_calls + 1;
    assert_null(dsri_arena_take(&arena, 10000000, 64));
    dsri_arena_rewind(&arena, mark);
    assert_ptr_equal(dsri_arena_take(&arena, 500, 64), second);
    assert_non_null(dsri_arena_take(&arena, 10000000, 64));
    assert_null(dsri_arena_take(&arena, SIZE_MAX - 8, 64));
    dsri_arena_free(&arena);
    assert_int_equal(counter.n_live, 0);
}

/* What a driver does with a plan of few rows: it reads the room that one of all rows would take. */
static void test_margin(void **state)
{
    counting_allocator counter = {0};
    const dsr_allocator allocator = counting_hook(&counter);
    dsri_arena arena;
    (void)state;
    dsri_arena_init(&arena, &allocator);
    for (size_t n = 100; n < 1000000; n *= 7) {
        const volatile unsigned char *piece = dsri_arena_take(&arena, n, 64);
        assert_non_null(piece);
        assert_true(counter.live_bytes >= n + DSRI_ARENA_MARGIN_BYTES);
        (void)piece[n + DSRI_ARENA_MARGIN_BYTES - 1];
    }
    dsri_arena_free(&arena);
    assert_int_equal(counter.live_bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steady_state),
        cmocka_unit_test(test_block_in_between),
        cmocka_unit_test(test_rewind_after_failure),
        cmocka_unit_test(test_margin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
