#include "core/ranges.h"

/* Shell sort: a few hundred ranges at most, mostly in order already, no memory, no recursion. */
static void sort_by_begin(dsr_range *ranges, uint32_t n)
{
    static const uint32_t gaps[] = {301, 132, 57, 23, 10, 4, 1};
    for (uint32_t g = 0; g < sizeof gaps / sizeof gaps[0]; g++) {
        const uint32_t gap = gaps[g];
        for (uint32_t i = gap; i < n; i++) {
            const dsr_range range = ranges[i];
            uint32_t j = i;
            for (; j >= gap && ranges[j - gap].begin > range.begin; j -= gap)
                ranges[j] = ranges[j - gap];
            ranges[j] = range;
        }
    }
}

uint32_t dsri_ranges_normalize(dsr_range *ranges, uint32_t n)
{
    uint32_t n_left = 0;
    sort_by_begin(ranges, n);
    for (uint32_t i = 0; i < n; i++) {
        if (ranges[i].begin >= ranges[i].end)
            continue;
        if (n_left > 0 && ranges[i].begin <= ranges[n_left - 1].end) {
            if (ranges[i].end > ranges[n_left - 1].end)
                ranges[n_left - 1].end = ranges[i].end;
        } else {
            ranges[n_left++] = ranges[i];
        }
    }
    return n_left;
}

int dsri_ranges_overlap(const dsr_range *a, uint32_t n_a, const dsr_range *b, uint32_t n_b)
{
    if (n_a == 0 || n_b == 0 || a[n_a - 1].end <= b[0].begin || b[n_b - 1].end <= a[0].begin)
        return 0;
    uint32_t i = 0, j = 0;
    while (i < n_a && j < n_b) {
        if (a[i].end <= b[j].begin)
            i++;
        else if (b[j].end <= a[i].begin)
            j++;
        else
            return 1;
    }
    return 0;
}

static void add_range(dsr_range *ranges, uint32_t *n, const void *begin, uint64_t n_bytes)
{
    const dsr_range range = {(uintptr_t)begin, (uintptr_t)begin + n_bytes};
    if (n_bytes == 0)
        return;
    if (*n == DSRI_MAX_RANGES)
        *n = dsri_ranges_normalize(ranges, *n);
    if (*n < DSRI_MAX_RANGES) {
        ranges[(*n)++] = range;
        return;
    }
    /* No room: a range that covers more than is touched orders more commands than needed, and never fewer. */
    dsr_range *last = &ranges[*n - 1];
    if (range.begin < last->begin)
        last->begin = range.begin;
    if (range.end > last->end)
        last->end = range.end;
}

void dsri_ranges_read(dsri_ranges *ranges, const void *begin, uint64_t n_bytes)
{
    add_range(ranges->reads, &ranges->n_reads, begin, n_bytes);
}

void dsri_ranges_write(dsri_ranges *ranges, const void *begin, uint64_t n_bytes)
{
    add_range(ranges->writes, &ranges->n_writes, begin, n_bytes);
}
