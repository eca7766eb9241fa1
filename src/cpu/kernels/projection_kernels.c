/* Projections of 1 to 64 rows. Lanes are outputs; every weight that comes from memory serves all rows.
 *
 * The micro-kernels read panels (ops/projection_layout.h): packed weights lie so in memory, others are transposed into
 * a panel in scratch, one segment at a time. A tile is some rows times some vectors of outputs of one segment; its
 * chains stay in registers and end in an addition to the totals. */
#include "cpu/kernels/projection_tasks.h"

#include <dsrows/ops.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    X_STRIDE = SEGMENT + 16, /* rows begin in different cache sets */
    TWO_STEP_ROWS = 3        /* from here on, prefetches of BF16 weights in two steps are faster */
};

/* TILE_CHAINS: what the registers hold beside weights and activations. MAX_FP8_VECTORS: codes and scales need registers
 * too. */
#if DSRI_VEC == DSRI_VEC_avx512
#define MAX_TILE_ROWS   8
#define TILE_CHAINS     16
#define MAX_FP8_VECTORS 2
#elif DSRI_VEC == DSRI_VEC_neon
#define MAX_TILE_ROWS   4
#define TILE_CHAINS     16
#define MAX_FP8_VECTORS 4
#elif DSRI_VEC == DSRI_VEC_avx2
#define MAX_TILE_ROWS   4
#define TILE_CHAINS     8
#define MAX_FP8_VECTORS 2
#else
#define MAX_TILE_ROWS   1
#define TILE_CHAINS     4
#define MAX_FP8_VECTORS 4
#endif

typedef struct projection_scratch {
    float x[DSRI_MAX_ROWS * X_STRIDE]; /* as many segments as fit, each of every row */
    uint32_t panel[SEGMENT / 2 * PANEL];
    uint32_t decoded[SEGMENT * PANEL];
    panel_totals totals[MAX_PANELS_PER_TASK];
} projection_scratch;

_Static_assert(sizeof(projection_scratch) <= DSRI_SCRATCH_BYTES, "scratch of a task");

/* ---- micro-kernels: `rows` rows times `vectors` vectors of a panel, both constants ---- */

enum { MAX_TILE_VECTORS = PANEL_VECTORS < TILE_CHAINS ? PANEL_VECTORS : TILE_CHAINS };

typedef struct tile {
    vf chains[MAX_TILE_ROWS][MAX_TILE_VECTORS];
} tile;

INLINE void clear_tile(tile *t, uint32_t rows, uint32_t vectors)
{
    VEC_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        VEC_UNROLL
        for (uint32_t v = 0; v < vectors; v++) {
            t->chains[r][v] = vf_zero();
        }
    }
}

/* chains[r][v] = fma(x[r], w[v], chains[r][v]) */
INLINE void step_tile(tile *t, uint32_t rows, uint32_t vectors, const float *x, const vf *w)
{
    VEC_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        const vf activation = vf_set1(x[r * X_STRIDE]);
        VEC_UNROLL
        for (uint32_t v = 0; v < vectors; v++) {
            t->chains[r][v] = vf_fma(activation, w[v], t->chains[r][v]);
        }
    }
}

INLINE void finish_tile(const tile *t, uint32_t rows, uint32_t vectors, float *totals)
{
    VEC_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        VEC_UNROLL
        for (uint32_t v = 0; v < vectors; v++) {
            float *total = totals + r * PANEL + v * VF_LANES;
            vf_store(total, vf_add(vf_load(total), t->chains[r][v]));
        }
    }
}

INLINE void bf16_tile(uint32_t rows, uint32_t vectors, const uint32_t *words, const float *x, uint32_t n, float *totals)
{
    tile t;
    clear_tile(&t, rows, vectors);
    for (uint32_t k = 0; k < n; k += 2, words += PANEL) {
        vf even[MAX_TILE_VECTORS], odd[MAX_TILE_VECTORS];
        if (rows < TWO_STEP_ROWS) {
            prefetch_panel(words);
        } else {
            prefetch_panel_in_two_steps(words);
        }
        VEC_UNROLL
        for (uint32_t v = 0; v < vectors; v++) {
            vf_from_pairs(vi_load(words + v * VF_LANES), &even[v], &odd[v]);
        }
        step_tile(&t, rows, vectors, x + k, even);
        step_tile(&t, rows, vectors, x + k + 1, odd);
    }
    finish_tile(&t, rows, vectors, totals);
}

/* Scales of less than 2^7, so that they can carry the 2^120 of e4m3_small. */
INLINE void fp8_tile(uint32_t rows, uint32_t vectors, const uint32_t *words, const float *x, uint32_t n, float *totals)
{
    tile t;
    clear_tile(&t, rows, vectors);
    for (uint32_t first = 0; first < n; first += DSRI_FP8_BLOCK) {
        const uint32_t end = n - first < DSRI_FP8_BLOCK ? n : first + DSRI_FP8_BLOCK;
        vf scales[MAX_TILE_VECTORS];
        VEC_UNROLL
        for (uint32_t v = 0; v < vectors; v++) {
            scales[v] = vf_mul(vf_from_bits(vi_load(words + v * VF_LANES)), vf_set1(0x1p120f));
        }
        words += PANEL;
        for (uint32_t k = first; k < end; k += 4, words += PANEL) {
            vi odd[MAX_TILE_VECTORS], even[MAX_TILE_VECTORS]; /* halves with codes 3 and 1 of a word, with 2 and 0 */
            prefetch_panel(words);
            VEC_UNROLL
            for (uint32_t v = 0; v < vectors; v++) {
                const vi codes = vi_load(words + v * VF_LANES);
                odd[v] = vi_sar_halves(codes, 4);
                even[v] = vi_sar_halves(vi_shl(codes, 8), 4);
            }
            VEC_UNROLL
            for (int place = 0; place < 4; place++) {
                vf w[MAX_TILE_VECTORS];
                VEC_UNROLL
                for (uint32_t v = 0; v < vectors; v++) {
                    w[v] = vf_mul(e4m3_small(place % 2 ? odd[v] : even[v], place >= 2), scales[v]);
                }
                step_tile(&t, rows, vectors, x + k + place, w);
            }
        }
    }
    finish_tile(&t, rows, vectors, totals);
}

/* words: F32 weights, PANEL of them for each input. */
INLINE void f32_tile(uint32_t rows, uint32_t vectors, const uint32_t *words, const float *x, uint32_t n, float *totals)
{
    tile t;
    clear_tile(&t, rows, vectors);
    for (uint32_t k = 0; k < n; k++, words += PANEL) {
        vf w[MAX_TILE_VECTORS];
        VEC_UNROLL
        for (uint32_t v = 0; v < vectors; v++) {
            w[v] = vf_from_bits(vi_load(words + v * VF_LANES));
        }
        step_tile(&t, rows, vectors, x + k, w);
    }
    finish_tile(&t, rows, vectors, totals);
}

/* ---- one segment of one panel, all rows ---- */

typedef enum weight_kind { BF16, FP8, F32 } weight_kind;

typedef struct segment {
    const uint32_t *words;
    const float *x; /* row r at x + r * X_STRIDE */
    uint32_t n_inputs;
    uint32_t n_rows;
    float *totals; /* row r at totals + r * PANEL */
} segment;

/* kind and rows are constants. */
INLINE void run_tiles(weight_kind kind, uint32_t rows, const segment *s, uint32_t first_row)
{
    const uint32_t most = kind == FP8 ? MAX_FP8_VECTORS : MAX_TILE_VECTORS;
    const uint32_t fit = TILE_CHAINS / rows < most ? TILE_CHAINS / rows : most;
    const uint32_t vectors = fit >= 8 ? 8 : fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
    for (uint32_t v = 0; v < PANEL_VECTORS; v += vectors) {
        const uint32_t *words = s->words + v * VF_LANES;
        const float *x = s->x + first_row * X_STRIDE;
        float *totals = s->totals + first_row * PANEL + v * VF_LANES;
        if (kind == BF16) {
            bf16_tile(rows, vectors, words, x, s->n_inputs, totals);
        } else if (kind == FP8) {
            fp8_tile(rows, vectors, words, x, s->n_inputs, totals);
        } else {
            f32_tile(rows, vectors, words, x, s->n_inputs, totals);
        }
    }
}

INLINE void run_rows(weight_kind kind, const segment *s)
{
    for (uint32_t r = 0; r < s->n_rows; r += MAX_TILE_ROWS) {
        switch (s->n_rows - r) {
        case 1:
            run_tiles(kind, 1, s, r);
            break;
#if MAX_TILE_ROWS > 4
        case 2:
            run_tiles(kind, 2, s, r);
            break;
        case 3:
            run_tiles(kind, 3, s, r);
            break;
        case 4:
            run_tiles(kind, 4, s, r);
            break;
        case 5:
            run_tiles(kind, 5, s, r);
            break;
        case 6:
            run_tiles(kind, 6, s, r);
            break;
        case 7:
            run_tiles(kind, 7, s, r);
            break;
#elif MAX_TILE_ROWS > 1
        case 2:
            run_tiles(kind, 2, s, r);
            break;
        case 3:
            run_tiles(kind, 3, s, r);
            break;
#endif
        default:
            run_tiles(kind, MAX_TILE_ROWS, s, r);
        }
    }
}

static void bf16_segment(const segment *s)
{
    run_rows(BF16, s);
}

/* Some scale of the segment is 2^7 or more. */
static int has_wide_scales(const segment *s)
{
    vm wide = vm_none();
    for (uint32_t first = 0; first < s->n_inputs; first += DSRI_FP8_BLOCK) {
        for (uint32_t o = 0; o < PANEL; o += VF_LANES) {
            const vf scale = vf_from_bits(vi_load(s->words + dsri_fp8_panel_words(first) + o));
            wide = vm_or(wide, vm_ge(vf_abs(scale), vf_set1(0x1p7f)));
        }
    }
    return vm_any(wide);
}

/* weights[k * PANEL + o]: the F32 weights of an FP8 segment. */
static void decode_segment(const segment *s, uint32_t *weights)
{
    const uint32_t *words = s->words;
    for (uint32_t k = 0; k < s->n_inputs; k += 4, words += PANEL) {
        const uint32_t *scales = s->words + dsri_fp8_panel_words(k / DSRI_FP8_BLOCK * DSRI_FP8_BLOCK);
        words += k % DSRI_FP8_BLOCK == 0 ? PANEL : 0;
        for (uint32_t o = 0; o < PANEL; o += VF_LANES) {
            const vi codes = vi_load(words + o);
            const vi halves[2] = {vi_sar_halves(vi_shl(codes, 8), 4), vi_sar_halves(codes, 4)};
            const vf scale = vf_from_bits(vi_load(scales + o));
            VEC_UNROLL
            for (uint32_t place = 0; place < 4; place++) {
                const vf value = vf_mul(e4m3_small(halves[place % 2], place >= 2), vf_set1(0x1p120f));
                vi_store(weights + (k + place) * PANEL + o, vf_bits(vf_mul(value, scale)));
            }
        }
    }
}

/* Tiles decode weights as they go. For more rows than a tile has that would be done again and again. */
static void fp8_segment(const segment *s, uint32_t *decoded)
{
    if (s->n_rows <= MAX_TILE_ROWS && !has_wide_scales(s)) {
        run_rows(FP8, s);
    } else {
        segment f32 = *s;
        decode_segment(s, decoded);
        f32.words = decoded;
        run_rows(F32, &f32);
    }
}

/* ---- weights that are not packed ---- */

/* words[i * PANEL + o] = word i of row o, for n words of PANEL rows that lie `pitch` bytes apart. Of rows that do not
 * exist the last one is taken. */
static void transpose_words(const uint8_t *weights, uint64_t pitch, uint64_t n_rows, uint32_t n, uint32_t *words)
{
    for (uint32_t o = 0; o < PANEL; o += VF_LANES) {
        const uint8_t *rows[VF_LANES];
        uint32_t i = 0;
        for (uint32_t j = 0; j < VF_LANES; j++) {
            rows[j] = weights + pitch * (o + j < n_rows ? o + j : n_rows - 1);
        }
        for (; i + VF_LANES <= n; i += VF_LANES) {
            vi square[VF_LANES];
            for (uint32_t j = 0; j < VF_LANES; j++) {
                square[j] = vi_load((const void *)(rows[j] + i * sizeof *words));
            }
            vi_transpose(square);
            for (uint32_t j = 0; j < VF_LANES; j++) {
                vi_store(words + (i + j) * PANEL + o, square[j]);
            }
        }
        for (; i < n; i++) {
            for (uint32_t j = 0; j < VF_LANES; j++) {
                memcpy(words + i * PANEL + o + j, rows[j] + i * sizeof *words, sizeof *words);
            }
        }
    }
}

static uint32_t scale_bits(const dsri_projection_plan *plan, uint64_t output, uint64_t input)
{
    const uint64_t per_row = (plan->n_inputs + DSRI_FP8_BLOCK - 1) / DSRI_FP8_BLOCK;
    const uint64_t at = output / DSRI_FP8_BLOCK * per_row + input / DSRI_FP8_BLOCK;
    return plan->scales_are_f32 ? ((const uint32_t *)plan->scales)[at]
                                : dsri_e8m0_bits(((const uint8_t *)plan->scales)[at]);
}

/* A NaN among the weights of an output makes its scale a NaN. */
static void mark_nans(const uint32_t *words, uint32_t n, uint32_t *scales)
{
    for (uint32_t o = 0; o < PANEL; o += VF_LANES) {
        vi nans = vi_set1(0);
        for (uint32_t i = 0; i < n; i++) {
            const vi sizes = vi_and(vi_load(words + i * PANEL + o), vi_set1(0x7f7f7f7fu));
            nans = vi_or(nans, vi_add(sizes, vi_set1(0x01010101u)));
        }
        const vm none = vm_eq_bits(vi_and(nans, vi_set1(0x80808080u)), vi_set1(0));
        const vf scale = vf_from_bits(vi_load(scales + o));
        vi_store(scales + o, vf_bits(vf_select(none, scale, vf_from_bits(vi_set1(0x7fc00000u)))));
    }
}

/* A segment of a panel as the packed form has it: n inputs from `input` on, of n_outputs outputs from `output` on,
 * counted over all groups. */
static void stage_bf16(const dsri_projection_plan *plan, uint64_t output, uint64_t n_outputs, uint32_t input,
                       uint32_t n, uint32_t *words)
{
    const uint16_t *weights = (const uint16_t *)plan->weight + output * plan->n_inputs + input;
    transpose_words((const uint8_t *)weights, plan->n_inputs * sizeof *weights, n_outputs, n / 2, words);
}

static void stage_fp8(const dsri_projection_plan *plan, uint64_t output, uint64_t n_outputs, uint32_t input, uint32_t n,
                      uint32_t *words)
{
    for (uint32_t first = 0; first < n; first += DSRI_FP8_BLOCK) {
        const uint32_t left = n - first, n_words = (left < DSRI_FP8_BLOCK ? left : DSRI_FP8_BLOCK) / 4;
        const uint8_t *weights = (const uint8_t *)plan->weight + output * plan->n_inputs + input + first;
        for (uint32_t o = 0; o < PANEL; o++) {
            words[o] = scale_bits(plan, output + (o < n_outputs ? o : n_outputs - 1), input + first);
        }
        transpose_words(weights, plan->n_inputs, n_outputs, n_words, words + PANEL);
        mark_nans(words + PANEL, n_words, words);
        words += (1 + n_words) * PANEL;
    }
}

/* ---- tasks ---- */

/* Segments of all rows that the scratch holds at once. */
static uint32_t segments_at_once(const dsri_projection_plan *plan)
{
    return DSRI_MAX_ROWS / plan->n_rows;
}

/* Inputs first .. first + n of the group: segment s of row r to x + (s * n_rows + r) * X_STRIDE. */
static void widen_inputs(const dsri_projection_plan *plan, uint32_t group, uint32_t first, uint32_t n, float *x)
{
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        const uint16_t *input = row_inputs(plan, group, r, first);
        for (uint32_t k = 0; k < n; k += VF_LANES) {
            float *segment_x = x + (k / SEGMENT * plan->n_rows + r) * X_STRIDE;
            vf_store(segment_x + k % SEGMENT, vf_load_bf16(input + k));
        }
    }
}

/* The words of one segment of a panel: in the packed weights, or made in scratch. */
static const uint32_t *segment_words(const dsri_projection_plan *plan, const task_panels *panels, uint32_t i,
                                     uint32_t first, uint32_t n, uint32_t *scratch)
{
    const uint64_t panel = panel_of_all(plan, panels, i), first_output = (panels->first + i) * PANEL;
    const uint64_t output = (uint64_t)panels->group * plan->n_outputs + first_output;
    const uint64_t left = plan->n_outputs - first_output, n_outputs = left < PANEL ? left : PANEL;
    const uint32_t *packed = plan->weight;

    switch (plan->format) {
    case DSR_WEIGHT_BF16_PACKED:
        return packed + panel * dsri_bf16_panel_words(plan->n_inputs) + dsri_bf16_panel_words(first);
    case DSR_WEIGHT_FP8_PACKED:
        return packed + panel * dsri_fp8_panel_words(plan->n_inputs) + dsri_fp8_panel_words(first);
    case DSR_WEIGHT_BF16:
        stage_bf16(plan, output, n_outputs, first, n, scratch);
        return scratch;
    default:
        stage_fp8(plan, output, n_outputs, first, n, scratch);
        return scratch;
    }
}

/* Inputs first .. first + n, widened, times panel i of the task. */
static void add_inputs(const dsri_projection_plan *plan, const task_panels *panels, uint32_t i, uint32_t first,
                       uint32_t n, projection_scratch *scratch)
{
    const int is_bf16 = plan->format == DSR_WEIGHT_BF16 || plan->format == DSR_WEIGHT_BF16_PACKED;
    for (uint32_t at = 0; at < n; at += SEGMENT) {
        const uint32_t n_inputs = n - at < SEGMENT ? n - at : SEGMENT;
        const segment piece = {.words = segment_words(plan, panels, i, first + at, n_inputs, scratch->panel),
                               .x = scratch->x + at / SEGMENT * plan->n_rows * X_STRIDE,
                               .n_inputs = n_inputs,
                               .n_rows = plan->n_rows,
                               .totals = scratch->totals[i]};
        if (is_bf16) {
            bf16_segment(&piece);
        } else {
            fp8_segment(&piece, scratch->decoded);
        }
    }
}

static void run(const void *plan, uint32_t phase, uint32_t task, void *scratch)
{
    const dsri_projection_plan *projection = plan;
    projection_scratch *const s = scratch;
    const uint32_t n_inputs = projection->n_inputs, at_once = segments_at_once(projection) * SEGMENT;
    const task_panels panels = panels_of_task(projection, task);
    (void)phase;

    clear_totals(projection, &panels, s->totals);
    for (uint32_t first = 0; first < n_inputs; first += at_once) {
        const uint32_t n = n_inputs - first < at_once ? n_inputs - first : at_once;
        widen_inputs(projection, panels.group, first, n, s->x);
        for (uint32_t i = 0; i < panels.n; i++) {
            add_inputs(projection, &panels, i, first, n, s);
        }
    }
    store_panels(projection, &panels, s->totals);
}

const dsri_cpu_kernel DSRI_KERNEL(projection) = {
    .op = DSRI_OP_PROJECTION,
    .isa = DSRI_ISA_ENUM,
    .exactness = DSR_EXACT_DEVICE,
    .n_phases = 1,
    .phase_names = {DSRI_KERNEL_NAME("projection_bf16")},
    .n_tasks = n_tasks,
    .run = run,
};
