/* The k best of many scores, in order. The list itself is the heap: its root is the entry that leaves first. */
#include "reference.h"

#include <math.h>

static int ranks_before(const float *scores, int32_t a, int32_t b)
{
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
}

/* Restores the heap (every parent ranks after its children) below one entry. */
static void sift_down(const float *scores, int32_t *heap, uint32_t n, uint32_t parent)
{
    for (;;) {
        uint32_t last = parent;
        for (uint32_t child = 2 * parent + 1; child <= 2 * parent + 2 && child < n; child++) {
            if (ranks_before(scores, heap[last], heap[child])) {
                last = child;
            }
        }
        if (last == parent) {
            return;
        }
        const int32_t moved = heap[parent];
        heap[parent] = heap[last];
        heap[last] = moved;
        parent = last;
    }
}

void ref_top_k(const float *scores, uint64_t n_scores, uint32_t k, int32_t offset, int32_t *indices)
{
    uint64_t t = 0;
    uint32_t n = 0;
    for (; t < n_scores && n < k; t++) {
        if (isfinite(scores[t])) {
            indices[n++] = (int32_t)t;
        }
    }
    for (uint32_t parent = n / 2; parent-- > 0;) {
        sift_down(scores, indices, n, parent);
    }
    for (; t < n_scores && n > 0; t++) {
        if (isfinite(scores[t]) && ranks_before(scores, (int32_t)t, indices[0])) {
            indices[0] = (int32_t)t;
            sift_down(scores, indices, n, 0);
        }
    }

    /* Take the last-ranked entry off the heap until the list is sorted. */
    for (uint32_t end = n; end > 1; end--) {
        const int32_t root = indices[0];
        indices[0] = indices[end - 1];
        indices[end - 1] = root;
        sift_down(scores, indices, end - 1, 0);
    }
    for (uint32_t i = 0; i < k; i++) {
        indices[i] = i < n ? indices[i] + offset : -1;
    }
}
