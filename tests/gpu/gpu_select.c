/* Lists of the indexer for score patterns that are hard to select from, on a CUDA device: long rows, ties, crowds,
 * gaps. dsrows_gpu_select [MOST-KEYS] Queries are such that a key's score is the sum of its first two features, exactly
 * in any order, so both exactnesses must give the reference's list. Exit 0 if all lists are equal, 1 if not, 77 if
 * there is no device. */
#include "reference/reference.h"

#include <dsrows/dsrows.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_HEADS = 32, MAX_TOP_K = 2048, MAX_QUERIES = 128, DIM = 128 };

static dsr_context *context;
static int is_row_exact;
static uint32_t n_failed, n_passed;

static void check(dsr_status status, const char *what)
{
    if (status == DSR_OK)
        return;
    printf("FAIL %s: %s: %s\n", what, dsr_status_name(status), dsr_context_error_text(context));
    exit(1);
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static uint16_t to_bf16(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return (uint16_t)(b >> 16);
}

typedef enum score_pattern {
    RANDOM, /* all different, about */
    EQUAL,  /* one value */
    FEW,    /* four values */
    RISING, /* the best last, in crowded groups */
    FALLING,
    CROWD,      /* one great value, all others within a hair */
    MOSTLY_BAD, /* one key of 37 finite */
    ALL_BAD,
    NEGATIVE, /* scores below zero */
    ONE_TILE, /* the best side by side, the others equal */
    COMB,     /* the best 4,096 keys apart and in fours, the others random */
    EDGE,     /* as many equal ones below the best as chosen places are left, and more */
    SPREAD,   /* 1,024 great values, each the first of a four, the others random */
    OUTLIER,  /* a few values far above the others, which are random */
    SHARE,    /* the best in every eighth piece of 32 keys: one block's of the CUDA kernel */
    GROUPS,   /* of 512 keys: one block's where it looks at groups of 16 first */
    BRIM,     /* about as many of the best in such pieces as a block lists, the others random */
    N_PATTERNS
} score_pattern;

static const char *const pattern_names[N_PATTERNS] = {
    "random",   "equal", "few",  "rising", "falling", "crowd", "mostly bad", "all bad", "negative",
    "one tile", "comb",  "edge", "spread", "outlier", "share", "groups",     "brim"};

/* The two features of key t, multiples of 2^-7 below 2 and of 2^-15 below 2^-8. */
static void draw_key(score_pattern pattern, uint32_t t, uint32_t n, uint64_t *state, uint16_t key[2])
{
    const uint32_t place = pattern == FALLING ? n - 1 - t : t;
    uint32_t value; /* 15 bits */
    switch (pattern) {
    case EQUAL:
    case ALL_BAD:
        value = 20000;
        break;
    case FEW:
        value = 5000 * (1 + next_random(state) % 4);
        break;
    case RISING:
    case FALLING:
        value = (uint32_t)((uint64_t)place * 32767 / n);
        break;
    case ONE_TILE:
        value = t >= n - n / 5 && t < n - n / 5 + 600 ? 20000 + t % 600 : 100;
        break;
    case COMB:
        value = t % 4096 < 4 ? 30000 + t / 4096 % 2000 : next_random(state) % 30000;
        break;
    case EDGE:
        value = t % 64 == 63 ? 30000 + next_random(state) % 2000 : 29999 - (t % 64 > 40);
        break;
    case SPREAD:
        value = t < 4096 && t % 4 == 0 ? 30000 + next_random(state) % 2000 : next_random(state) % 29000;
        break;
    case OUTLIER:
        value = t % 1000 == 7 ? 32000 + t / 1000 : next_random(state) % 64;
        break;
    case SHARE:
    case GROUPS:
        value = next_random(state) % 16000 + (t / (pattern == SHARE ? 32 : 512) % 8 == 3 ? 16000 : 0);
        break;
    case BRIM:
        value = t / 32 % 8 == 3 && t / 256 * 32 + t % 32 < 127 + n % 3 ? 32000 - t / 256 : next_random(state) % 31000;
        break;
    case CROWD:
        value = t == n / 2 ? 32767 : 16384 + next_random(state) % 2;
        break;
    default:
        value = next_random(state) % 32768;
    }
    key[0] = to_bf16((float)(value >> 7) / 128.0f);
    key[1] = to_bf16((float)(value & 127) / 32768.0f);
    if (pattern == ALL_BAD || (pattern == MOSTLY_BAD && next_random(state) % 37 != 0))
        key[1] = 0x7fc0;
}

static dsr_buffer *filled(const void *from, uint64_t n_bytes)
{
    dsr_buffer *buffer;
    check(dsr_buffer_create(context, n_bytes, &buffer), "buffer");
    if (from)
        check(dsr_buffer_write(buffer, 0, from, n_bytes), "write");
    return buffer;
}

typedef struct one_case {
    uint32_t n_keys, top_k;
    score_pattern pattern;
    int wants_scores;
    uint32_t n_queries; /* the last positions, each with the same heads */
} one_case;

static void run_case(const one_case *c, const uint16_t *q, const float *weights, uint16_t *keys, float *scores)
{
    static int32_t expected[MAX_TOP_K], given[MAX_QUERIES * MAX_TOP_K];
    static uint16_t heads[MAX_QUERIES][N_HEADS * DIM];
    static float head_weights[MAX_QUERIES][N_HEADS];
    const uint32_t n_queries = c->n_queries;
    uint64_t state = c->n_keys * 31 + c->pattern, bytes;
    for (uint32_t i = 0; i < n_queries; i++) {
        memcpy(heads[i], q, sizeof heads[i]);
        memcpy(head_weights[i], weights, sizeof head_weights[i]);
    }
    for (uint32_t t = 0; t < c->n_keys; t++)
        draw_key(c->pattern, t, c->n_keys, &state, &keys[(size_t)t * DIM]);
    for (uint32_t t = 0; t < c->n_keys; t++) {
        const float sum = ref_f32_from_bf16(keys[(size_t)t * DIM]) + ref_f32_from_bf16(keys[(size_t)t * DIM + 1]);
        scores[t] = isfinite(sum) ? (weights[0] < 0 ? -sum : sum) : -INFINITY;
    }

    dsr_indexer_row row = {0};
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    dsr_buffer *buffers[6];
    dsr_encoder *encoder;
    row.keys = dsr_view_whole(buffers[0] = filled(keys, 2ull * DIM * c->n_keys), DSR_DTYPE_BF16);
    row.kv_len = c->n_keys;
    row.ratio = 1;
    row.start_pos = c->n_keys - n_queries;
    row.n_queries = n_queries;
    desc.n_rows = 1;
    desc.rows = &row;
    desc.n_heads = N_HEADS;
    desc.top_k = c->top_k;
    desc.q = dsr_view_whole(buffers[1] = filled(heads, 2ull * n_queries * N_HEADS * DIM), DSR_DTYPE_BF16);
    desc.weights = dsr_view_whole(buffers[2] = filled(head_weights, 4ull * n_queries * N_HEADS), DSR_DTYPE_F32);
    desc.output = dsr_view_whole(buffers[3] = filled(NULL, sizeof given), DSR_DTYPE_I32);
    buffers[4] = filled(NULL, 4ull * n_queries * c->n_keys);
    if (c->wants_scores)
        desc.scores = dsr_view_whole(buffers[4], DSR_DTYPE_F32);
    check(dsr_indexer_workspace(context, &desc, &bytes), "workspace");
    desc.workspace = dsr_view_whole(buffers[5] = filled(NULL, bytes), DSR_DTYPE_U8);
    check(dsr_encoder_create(context, &encoder), "encoder");
    check(dsr_encode_indexer(encoder, &desc), "indexer");
    for (int round = 0; round < 2; round++) {
        check(round ? dsr_encoder_replay(encoder) : dsr_encoder_submit(encoder), "submit");
        check(dsr_encoder_wait(encoder), "wait");
    }
    check(dsr_buffer_read(buffers[3], 0, given, 4ull * n_queries * c->top_k), "read");
    for (uint32_t query = 0; query < n_queries; query++) {
        const int32_t *list = given + (size_t)query * c->top_k;
        uint32_t i = 0;
        ref_top_k(scores, c->n_keys - n_queries + 1 + query, c->top_k, 0, expected);
        while (i < c->top_k && list[i] == expected[i])
            i++;
        n_passed += i == c->top_k;
        n_failed += i < c->top_k;
        if (i < c->top_k)
            printf("FAIL %u keys, query %u, top %u, %s: place %u has %d, expected %d\n", c->n_keys, query, c->top_k,
                   pattern_names[c->pattern], i, list[i], expected[i]);
    }
    fflush(stdout);
    dsr_encoder_destroy(encoder);
    for (int b = 0; b < 6; b++)
        dsr_buffer_destroy(buffers[b]);
}

typedef enum query_kind {
    OTHER,
    GRID,
    INTEGERS,   /* up to 127 >> spare */
    GREATEST,   /* every value is 127 >> spare, and every key's 6 */
    SPREAD_OUT, /* as GRID, but blocks of every third head lie up to `spare` binades apart, some being zeros */
    ALL_SIXES   /* blocks as far apart in every head, but all values are 6, and every key's */
} query_kind;

static const char *const query_names[] = {"other", "grid", "integers", "greatest", "spread out", "sixes"};

typedef enum key_kind {
    DRAWN,
    MIXED,      /* as DRAWN; a second row has the decoded keys */
    WITH_ZEROS, /* as DRAWN, some blocks zeros with scales drawn from all */
    AT_ENDS,    /* from other scales on than 126: the ends of E8M0, and of what the score kernels take for integers */
    APART       /* scales of every key lie scale_span apart */
} key_kind;

/* Packed keys: scores and lists against the reference on the decoded keys. */
typedef struct packed_case {
    uint32_t n_heads, n_keys, page_size; /* 0: one piece */
    query_kind query;
    uint32_t scale_span; /* scales are drawn from so many, from 126 on; 255: from all 256 */
    key_kind keys;
    uint32_t spare; /* bits of the query's bytes that are not used, or binades between its blocks */
} packed_case;

static uint16_t draw_grid(uint64_t *state, float scale)
{
    static const float sizes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const uint32_t code = next_random(state) % 16;
    return to_bf16(code & 8 ? -sizes[code & 7] * scale : sizes[code & 7] * scale);
}

/* A feature of a query whose blocks lie apart: the first has the least scale, the last but one the greatest. */
static uint16_t draw_spread(const packed_case *c, uint32_t head, uint32_t f, uint64_t *state)
{
    static const uint32_t parts[4] = {0, 1, 2, 1}; /* halves of the span */
    const uint32_t block = (f / 32 + head) % 4, binades = head % 3 == 1 || c->query == ALL_SIXES ? c->spare : 0;
    const float scale = (float)(1u << binades * parts[block] / 2);
    if (c->query == ALL_SIXES)
        return to_bf16(f % 32 == 0 ? 0.5f * scale : 6.0f * scale);
    return head % 6 == 4 && block % 2 ? to_bf16(block == 1 ? 0.0f : -0.0f) : draw_grid(state, scale);
}

static uint16_t draw_q(const packed_case *c, uint32_t head, uint32_t f, uint64_t *state)
{
    if (c->query == SPREAD_OUT || c->query == ALL_SIXES)
        return draw_spread(c, head, f, state);
    const uint32_t most = 127u >> c->spare;
    const int integer = (int)(next_random(state) % (2 * most + 1)) - (int)most;
    switch (c->query) {
    case GRID:
        return draw_grid(state, (float)(1u << head % 4));
    case INTEGERS:
        return to_bf16((float)integer);
    case GREATEST:
        return to_bf16((float)most);
    default:
        return to_bf16((float)next_random(state) / 1e9f - 1);
    }
}

/* The scales of key t, and what of its values goes with them. */
static void draw_scales(const packed_case *c, uint32_t t, uint64_t *state, uint8_t *values, uint8_t scales[4])
{
    static const uint32_t ends[] = {0, 1, 86, 87, 165, 166, 252, 254};
    const uint32_t low = next_random(state) % 4;
    const uint32_t least = c->scale_span == 255 ? 0 : c->keys == AT_ENDS ? ends[t / 32 % 8] : 126;
    const uint32_t n_scales = c->scale_span == 255 ? 256 : c->scale_span > 0 ? c->scale_span : 1;
    for (int b = 0; b < 4; b++) {
        const uint32_t scale = least + next_random(state) % n_scales;
        scales[b] = (uint8_t)(scale < 255 ? scale : 255);
    }
    if (c->keys == APART) { /* the least scale's values are odd */
        for (uint32_t b = 0; b < 4; b++)
            if (b == (low + 1) % 4 || c->query == GREATEST || c->query == ALL_SIXES)
                scales[b] = (uint8_t)(126 + c->scale_span);
        scales[low] = 126;
        memset(values + 16 * low, 0x11, 16);
    } else if (t % 97 == 5) {
        scales[1] = (uint8_t)(scales[0] + 9);
    }
    for (uint32_t b = 0; c->keys == WITH_ZEROS && t % 5 == 2 && b < 4; b++)
        if (b == low || t % 3 == 0) {
            scales[b] = (uint8_t)(next_random(state) % 256);
            memset(values + 16 * b, b % 2 ? 0x88 : 0, 16);
        }
}

static void run_packed(const packed_case *c)
{
    enum { TOP_K = 512 };
    const uint32_t page = c->page_size ? c->page_size : c->n_keys, n_pages = (c->n_keys - 1) / page + 1;
    uint64_t state = c->n_keys + c->scale_span * 7 + c->n_heads, bytes;
    uint8_t *pages = malloc((size_t)(n_pages + 1) * page * 68);
    int32_t *table = malloc(4 * n_pages), given[TOP_K], expected[TOP_K];
    uint16_t *q = malloc(2 * DIM * c->n_heads), *keys = malloc((size_t)c->n_keys * DIM * 2);
    float *weights = malloc(4 * c->n_heads), *scores = malloc(4 * c->n_keys), *given_scores = malloc(4 * c->n_keys);
    for (uint32_t i = 0; i < DIM * c->n_heads; i++)
        q[i] = draw_q(c, i / DIM, i % DIM, &state);
    for (uint32_t h = 0; h < c->n_heads; h++)
        weights[h] = c->scale_span == 1 ? -0.25f : (float)next_random(&state) / 4e9f - 0.2f;
    for (size_t i = 0; i < (size_t)(n_pages + 1) * page * 68; i++)
        pages[i] = c->query == GREATEST || c->query == ALL_SIXES ? 0x77 : (uint8_t)next_random(&state);
    for (uint32_t p = 0; p < n_pages; p++)
        table[p] = (int32_t)(n_pages - p);
    if (n_pages > 2)
        table[1] = -5;
    for (uint32_t t = 0; t < c->n_keys; t++) {
        const int32_t id = c->page_size ? table[t / page] : 0;
        uint8_t *at = pages + (size_t)(id < 0 ? 0 : id) * page * 68, *scale = at + page * 64 + t % page * 4;
        draw_scales(c, t, &state, at + t % page * 64, scale);
        ref_decode_fp4_key(at + t % page * 64, scale, &keys[(size_t)t * DIM]);
        if (id < 0)
            keys[(size_t)t * DIM] = 0x7fc0;
    }
    ref_indexer_scores(q, weights, keys, DIM, c->n_keys, c->n_keys, c->n_heads, scores);
    ref_top_k(scores, c->n_keys, TOP_K, 0, expected);

    dsr_indexer_row rows[2], *const row = rows;
    dsr_indexer_desc desc = DSR_INDEXER_DESC_INIT;
    dsr_buffer *buffers[8];
    memset(rows, 0, sizeof rows);
    dsr_encoder *encoder;
    row->keys =
        dsr_view_whole(buffers[0] = filled(pages, (uint64_t)(n_pages + (c->page_size != 0)) * page * 68), DSR_DTYPE_U8);
    buffers[1] = filled(table, 4 * n_pages);
    row->key_layout.format = DSR_FORMAT_FP4;
    row->key_layout.page_size = c->page_size;
    if (c->page_size)
        row->key_layout.page_table = dsr_view_whole(buffers[1], DSR_DTYPE_I32);
    row->kv_len = c->n_keys;
    row->ratio = 1;
    row->start_pos = c->n_keys - 1;
    rows[1] = rows[0];
    memset(&rows[1].key_layout, 0, sizeof rows[1].key_layout);
    rows[1].keys = dsr_view_whole(buffers[7] = filled(keys, 2ull * DIM * c->n_keys), DSR_DTYPE_BF16);
    rows[1].output_offset = TOP_K;
    rows[1].scores_offset = c->n_keys;
    desc.n_rows = c->keys == MIXED ? 2 : 1;
    desc.rows = rows;
    desc.n_heads = c->n_heads;
    desc.q = dsr_view_whole(buffers[2] = filled(q, 2 * c->n_heads * DIM), DSR_DTYPE_BF16);
    desc.weights = dsr_view_whole(buffers[3] = filled(weights, 4 * c->n_heads), DSR_DTYPE_F32);
    desc.output = dsr_view_whole(buffers[4] = filled(NULL, 8 * TOP_K), DSR_DTYPE_I32);
    desc.scores = dsr_view_whole(buffers[5] = filled(NULL, 8ull * c->n_keys), DSR_DTYPE_F32);
    check(dsr_indexer_workspace(context, &desc, &bytes), "workspace");
    desc.workspace = dsr_view_whole(buffers[6] = filled(NULL, bytes), DSR_DTYPE_U8);
    check(dsr_encoder_create(context, &encoder), "encoder");
    check(dsr_encode_indexer(encoder, &desc), "indexer");
    check(dsr_encoder_submit(encoder), "submit");
    check(dsr_encoder_wait(encoder), "wait");
    /* Plain keys have bits of their own in a row-exact context. */
    for (uint32_t r = 0; r < (is_row_exact ? 1 : desc.n_rows); r++) {
        check(dsr_buffer_read(buffers[4], r * sizeof given, given, sizeof given), "read");
        check(dsr_buffer_read(buffers[5], 4ull * r * c->n_keys, given_scores, 4ull * c->n_keys), "read");
        uint32_t t = 0;
        while (t < c->n_keys && memcmp(&scores[t], &given_scores[t], 4) == 0)
            t++;
        const int is_good = t == c->n_keys && memcmp(given, expected, sizeof given) == 0;
        n_passed += is_good ? 1u : 0u;
        n_failed += is_good ? 0u : 1u;
        if (!is_good)
            printf("FAIL packed: %u heads, %u keys, pages of %u, %s q, %u spare, span %u, row %u: score %u is %a, "
                   "expected %a\n",
                   c->n_heads, c->n_keys, c->page_size, query_names[c->query], c->spare, c->scale_span, r, t,
                   t < c->n_keys ? (double)given_scores[t] : 0, t < c->n_keys ? (double)scores[t] : 0);
        fflush(stdout);
    }
    dsr_encoder_destroy(encoder);
    for (int b = 0; b < 8; b++)
        dsr_buffer_destroy(buffers[b]);
    free(pages);
    free(table);
    free(q);
    free(keys);
    free(weights);
    free(scores);
    free(given_scores);
}

static void run_all_packed(void)
{
    static const packed_case cases[] = {{64, 700, 0, GRID, 3, DRAWN, 0},        {32, 130, 16, GRID, 2, DRAWN, 0},
                                        {64, 1000, 64, GRID, 4, DRAWN, 0},      {64, 300, 128, OTHER, 3, DRAWN, 0},
                                        {128, 250, 0, GRID, 3, DRAWN, 0},       {64, 200, 32, GRID, 255, DRAWN, 0},
                                        {32, 17, 256, GRID, 1, DRAWN, 0},       {64, 130, 0, GRID, 1, DRAWN, 0},
                                        {128, 90, 16, OTHER, 255, DRAWN, 0},    {64, 300, 32, GRID, 3, MIXED, 0},
                                        {32, 200, 0, OTHER, 255, MIXED, 0},     {64, 700, 0, GRID, 5, DRAWN, 0},
                                        {32, 300, 0, GRID, 6, DRAWN, 0},        {64, 300, 16, GRID, 7, DRAWN, 0},
                                        {128, 300, 0, GRID, 7, DRAWN, 0},       {32, 300, 64, GRID, 7, DRAWN, 0},
                                        {64, 300, 0, GRID, 8, DRAWN, 0},        {128, 200, 0, GRID, 10, DRAWN, 0},
                                        {64, 200, 0, GRID, 15, DRAWN, 0},       {64, 300, 0, GREATEST, 7, DRAWN, 0},
                                        {128, 200, 0, GREATEST, 7, DRAWN, 0},   {64, 300, 0, GREATEST, 8, DRAWN, 0},
                                        {64, 300, 16, GRID, 3, WITH_ZEROS, 0},  {32, 300, 0, GRID, 6, WITH_ZEROS, 0},
                                        {128, 200, 16, GRID, 4, WITH_ZEROS, 0}, {64, 100, 0, GREATEST, 14, APART, 3},
                                        {64, 256, 0, GRID, 3, AT_ENDS, 0},      {64, 256, 0, GRID, 7, AT_ENDS, 0},
                                        {128, 256, 0, GRID, 6, AT_ENDS, 0}};
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        run_packed(&cases[i]);
    /* As wide as the sums of the query's greatest values are exact, and one binade wider. */
    for (uint32_t i = 0; i < 36; i++) {
        const uint32_t spare = i / 3 % 4, span = 6 + spare + i / 24;
        const packed_case c = {32u << i % 3, 40, 0, i / 12 == 1 ? INTEGERS : GREATEST, span, APART, spare};
        run_packed(&c);
    }
    /* Queries and keys that span up to 9 binades together, and more. */
    for (uint32_t r = 3; r <= 14; r++) {
        const uint32_t edge = r < 9 ? 9 - r : 0, spans[4] = {0, edge, edge + 1, 14};
        for (uint32_t i = 0; i < 8; i++) {
            const query_kind kind = i % 2 ? ALL_SIXES : SPREAD_OUT;
            run_packed(&(packed_case){32u << (r + i) % 3, 34, 0, kind, spans[i / 2], APART, r});
        }
    }
    run_packed(&(packed_case){64, 256, 0, SPREAD_OUT, 2, AT_ENDS, 6});
    run_packed(&(packed_case){128, 256, 16, SPREAD_OUT, 3, WITH_ZEROS, 5});
}

static void set_weights(score_pattern pattern, float weights[N_HEADS])
{
    for (uint32_t h = 0; h < N_HEADS; h++)
        weights[h] = pattern == NEGATIVE ? -1.0f / N_HEADS : 1.0f / N_HEADS;
}

int main(int argc, char **argv)
{
    static const uint32_t sizes[] = {1, 15, 129, 511, 1024, 1025, 2048, 16384, 16385, 40000, 65537, 262144, 300001};
    static const uint32_t widths[] = {32, 512, 2048};
    const uint32_t most = argc > 1 ? (uint32_t)atoi(argv[1]) : 300001;
    static uint16_t q[N_HEADS * DIM];
    float weights[N_HEADS];
    uint16_t *keys = calloc((size_t)most * DIM, sizeof *keys);
    float *scores = malloc((size_t)most * sizeof *scores);
    if (keys == NULL || scores == NULL) {
        fprintf(stderr, "dsrows_gpu_select: out of memory\n");
        return 1;
    }
    for (uint32_t h = 0; h < N_HEADS; h++)
        q[h * DIM] = q[h * DIM + 1] = to_bf16(1.0f);
    for (int exactness = 0; exactness < 2; exactness++) {
        dsr_context_desc desc = DSR_CONTEXT_DESC_INIT;
        desc.device = DSR_DEVICE_CUDA;
        desc.exactness = exactness ? DSR_EXACT_ROW : DSR_EXACT_DEVICE;
        is_row_exact = exactness;
        if (dsr_context_create(&desc, &context) != DSR_OK) {
            printf("skipped: %s\n", dsr_create_error_text());
            return 77;
        }
        run_all_packed();
        for (int pattern = 0; pattern < N_PATTERNS; pattern += 3) {
            const one_case prefill = {700, 512, (score_pattern)pattern, pattern % 2, MAX_QUERIES};
            set_weights((score_pattern)pattern, weights);
            if (prefill.n_keys <= most)
                run_case(&prefill, q, weights, keys, scores);
        }
        for (uint32_t s = 0; s < sizeof sizes / sizeof sizes[0] && sizes[s] <= most; s++)
            for (uint32_t w = 0; w < 3; w++)
                for (int pattern = 0; pattern < N_PATTERNS; pattern++) {
                    const one_case c = {sizes[s], widths[w], (score_pattern)pattern, (pattern + (int)w) % 2, 1};
                    set_weights(c.pattern, weights);
                    run_case(&c, q, weights, keys, scores);
                }
        dsr_context_destroy(context);
    }
    free(keys);
    free(scores);
    printf("lists: %u equal, %u not\n", n_passed, n_failed);
    return n_failed != 0;
}
