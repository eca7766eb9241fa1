/* Projections of packed weights on BF16 units. Tasks are those of the other kernels; each weight that comes from
 * memory serves all rows. On AVX512-BF16 the bits are the device-exact ones. */
#include "cpu/kernels/projection_tasks.h"
#include "cpu/kernels/row/row_kernel.h"

#include <dsrows/ops.h>

enum {
    SEGMENT_WORDS = SEGMENT / 2,
    X_STRIDE = SEGMENT_WORDS + 16, /* in words; rows begin in different cache sets */
    MAX_SEGMENT_ROWS = 2 * DSRI_MAX_ROWS
};

/* One segment of one panel, all rows. */
typedef struct segment {
    const uint32_t *words;
    const uint32_t *x; /* row r at x + r * X_STRIDE, as pack_words left it */
    uint32_t n_words;  /* of x, a multiple of 8 */
    uint32_t n_rows;
    uint32_t x_class; /* of pack_words, all rows together */
    float *totals;    /* row r at totals + r * PANEL */
} segment;

enum { BLOCK_X_WORDS = DSRI_FP8_BLOCK / 2, BLOCK_CODE_WORDS = DSRI_FP8_BLOCK / 4 };

/* Words of x that go with the block of FP8 weights that begins at word i of it. */
static inline uint32_t block_words(const segment *s, uint32_t i)
{
    return s->n_words - i < BLOCK_X_WORDS ? s->n_words - i : BLOCK_X_WORDS;
}

#if DSRI_ROW_IS_AMX
#include "cpu/kernels/row/projection_tiles.h"
#else
#include "cpu/kernels/row/projection_chains.h"
#endif

typedef struct projection_scratch {
    uint32_t x[MAX_SEGMENT_ROWS * X_STRIDE]; /* as many segments as fit, each of every row */
    uint32_t x_classes[MAX_SEGMENT_ROWS];
    panel_totals totals[MAX_PANELS_PER_TASK];
} projection_scratch;

_Static_assert(sizeof(projection_scratch) <= DSRI_SCRATCH_BYTES, "scratch of a task");

/* Inputs first .. first + n of the group: segment s of row r to x + (s * padded_rows + r) * X_STRIDE. */
static void pack_inputs(const dsri_projection_plan *plan, uint32_t group, uint32_t first, uint32_t n,
                        projection_scratch *s)
{
    const uint32_t n_padded = padded_rows(plan->n_rows), n_segments = (n + SEGMENT - 1) / SEGMENT;
    const int is_fp8 = plan->format == DSR_WEIGHT_FP8_PACKED;
    for (uint32_t i = 0; i < n_segments; i++) {
        uint32_t *const x = s->x + (size_t)(i * n_padded + plan->n_rows) * X_STRIDE;
        memset(x, 0, (size_t)(n_padded - plan->n_rows) * X_STRIDE * sizeof *x);
        s->x_classes[i] = X_CLASS_OF_NOTHING;
    }
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        const uint16_t *inputs = row_inputs(plan, group, r, first);
        for (uint32_t i = 0; i < n_segments; i++, inputs += SEGMENT) {
            const uint32_t left = n - i * SEGMENT, n_words = (left < SEGMENT ? left : SEGMENT) / 2;
            s->x_classes[i] =
                pack_words(is_fp8, inputs, n_words, s->x + (size_t)(i * n_padded + r) * X_STRIDE, s->x_classes[i]);
        }
    }
}

/* The inputs packed last, first .. first + n, times panel i of the task. */
static void add_inputs(const dsri_projection_plan *plan, const task_panels *panels, uint32_t i, uint32_t first,
                       uint32_t n, projection_scratch *s)
{
    const int is_fp8 = plan->format == DSR_WEIGHT_FP8_PACKED;
    uint64_t (*const panel_words)(uint64_t n_inputs) = is_fp8 ? dsri_fp8_panel_words : dsri_bf16_panel_words;
    const uint32_t *panel =
        (const uint32_t *)plan->weight + panel_of_all(plan, panels, i) * panel_words(plan->n_inputs);
    for (uint32_t k = 0; k < n; k += SEGMENT) {
        const segment piece = {.words = panel + panel_words(first + k),
                               .x = s->x + (size_t)(k / SEGMENT) * padded_rows(plan->n_rows) * X_STRIDE,
                               .n_words = (n - k < SEGMENT ? n - k : SEGMENT) / 2,
                               .n_rows = plan->n_rows,
                               .x_class = s->x_classes[k / SEGMENT],
                               .totals = s->totals[i]};
        if (is_fp8) {
            add_fp8_segment(&piece);
        } else {
            add_bf16_segment(&piece);
        }
    }
}

static void run(const void *plan, uint32_t phase, uint32_t task, void *scratch)
{
    const dsri_projection_plan *p = plan;
    projection_scratch *const s = scratch;
    const uint32_t at_once = MAX_SEGMENT_ROWS / padded_rows(p->n_rows) * SEGMENT;
    const task_panels panels = panels_of_task(p, task);
    (void)phase;

    begin_products();
    clear_totals(p, &panels, s->totals);
    for (uint32_t first = 0; first < p->n_inputs; first += at_once) {
        const uint32_t n = p->n_inputs - first < at_once ? p->n_inputs - first : at_once;
        pack_inputs(p, panels.group, first, n, s);
        for (uint32_t i = 0; i < panels.n; i++) {
            add_inputs(p, &panels, i, first, n, s);
        }
    }
    store_panels(p, &panels, s->totals);
    end_products();
}

static int accepts(const void *plan)
{
    const dsri_projection_plan *p = plan;
    return (p->format == DSR_WEIGHT_BF16_PACKED || p->format == DSR_WEIGHT_FP8_PACKED) && products_are_usable();
}

const dsri_cpu_kernel DSRI_ROW_KERNEL(projection) = {
    .op = DSRI_OP_PROJECTION,
    .isa = DSR_ISA_AVX512,
    .exactness = PRODUCTS_EXACTNESS,
    .n_phases = 1,
    .phase_names = {DSRI_ROW_KERNEL_NAME("projection_bf16")},
    .n_tasks = n_tasks,
    .run = run,
    .accepts = accepts,
};
