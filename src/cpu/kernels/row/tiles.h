/* AMX tiles: 8 registers of 16 rows of 64 bytes. With DSRI_TILES_EMULATED the same operations in plain C, for tests on
 * machines without them; the state is then the including file's own.
 *
 *   tiles_open()                     before the first use in a task; all tiles have 16 rows of 64 bytes
 *   tiles_close()                    after the last
 *   tile_zero(c)
 *   tile_load(t, memory, stride)     16 rows of 64 bytes, `stride` bytes apart
 *   tile_store(t, memory, stride)
 *   tile_dots(c, a, b)               c F32 [16][16] += a BF16 [16][32] times b: [16] rows of 16 words, word (k, n) is
 *                                    rows 2k and 2k + 1 of column n of the 32 x 16 matrix
 *   tile_byte_dots(c, a, b)          the same of signed bytes into 32-bit integers: c [16][16] += a [16][64] times b;
 *                                    word (k, n) is rows 4k to 4k + 3 of column n of the 64 x 16 matrix
 * Tile numbers are constants. */
#ifndef DSRI_ROW_TILES_H
#define DSRI_ROW_TILES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { TILE_ROWS = 16, TILE_ROW_BYTES = 64 };

#ifndef DSRI_TILES_EMULATED

/* What ldtilecfg reads. */
typedef struct tile_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

_Static_assert(sizeof(tile_config) == 64, "64 bytes");

static inline void tiles_open(void)
{
    static const tile_config config __attribute__((aligned(64))) = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, 16, 16},
    };
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
}

static inline void tiles_close(void)
{
    __asm__ volatile("tilerelease");
}

/* Not the compilers' own functions: those of gcc 12 do not say that a load reads memory. */
#define tile_zero(c) __asm__ volatile("tilezero %%tmm" #c : :)
#define tile_load(t, memory, stride)                                                                                   \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t                                                                   \
                     :                                                                                                 \
                     : "r"((const void *)(memory)), "r"((size_t)(stride))                                              \
                     : "memor"                                                                                         \
                       "y")
#define tile_store(t, memory, stride)                                                                                  \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"((void *)(memory)), "r"((size_t)(stride)) : "memory")
#define tile_byte_dots(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)
#define tile_dots(c, a, b)      __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

#else

#include <math.h>

static struct {
    int is_open;
    unsigned char tiles[8][TILE_ROWS][TILE_ROW_BYTES];
} tile_state;

/* A wrong use must show. */
static inline void tiles_open(void)
{
    tile_state.is_open = 1;
    memset(tile_state.tiles, 0, sizeof tile_state.tiles);
}

static inline void tiles_close(void)
{
    tile_state.is_open = 0;
    memset(tile_state.tiles, 0xff, sizeof tile_state.tiles);
}

static inline void tile_zero(int c)
{
    memset(tile_state.tiles[c], tile_state.is_open ? 0 : 0xff, sizeof tile_state.tiles[c]);
}

static inline void tile_load(int t, const void *memory, size_t stride)
{
    for (size_t r = 0; r < TILE_ROWS; r++) {
        memcpy(tile_state.tiles[t][r], (const unsigned char *)memory + r * stride, TILE_ROW_BYTES);
    }
}

static inline void tile_store(int t, void *memory, size_t stride)
{
    for (size_t r = 0; r < TILE_ROWS; r++) {
        memcpy((unsigned char *)memory + r * stride, tile_state.tiles[t][r], TILE_ROW_BYTES);
    }
}

static inline float emulated_flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

static inline float emulated_bf16(const unsigned char *p)
{
    uint16_t half;
    memcpy(&half, p, sizeof half);
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return emulated_flush(x);
}

/* As the manual has it: even and odd products in sums of their own, which meet before they are added to c; subnormal
 * operands and results are zero. */
static inline void tile_dots(int c, int a, int b)
{
    for (int m = 0; m < TILE_ROWS; m++) {
        for (int n = 0; n < 16; n++) {
            float sums[2] = {0.0f, 0.0f}, total;
            for (int k = 0; k < 16; k++) {
                for (int odd = 0; odd < 2; odd++) {
                    sums[odd] =
                        emulated_flush(fmaf(emulated_bf16(tile_state.tiles[a][m] + 4 * k + 2 * odd),
                                            emulated_bf16(tile_state.tiles[b][k] + 4 * n + 2 * odd), sums[odd]));
                }
            }
            memcpy(&total, tile_state.tiles[c][m] + 4 * n, sizeof total);
            total = emulated_flush(emulated_flush(total) + emulated_flush(sums[0] + sums[1]));
            memcpy(tile_state.tiles[c][m] + 4 * n, &total, sizeof total);
        }
    }
}

static inline void tile_byte_dots(int c, int a, int b)
{
    for (int m = 0; m < TILE_ROWS; m++) {
        for (int n = 0; n < 16; n++) {
            int32_t sum;
            memcpy(&sum, tile_state.tiles[c][m] + 4 * n, sizeof sum);
            for (int k = 0; k < TILE_ROW_BYTES; k++) {
                sum += (int8_t)tile_state.tiles[a][m][k] * (int8_t)tile_state.tiles[b][k / 4][4 * n + k % 4];
            }
            memcpy(tile_state.tiles[c][m] + 4 * n, &sum, sizeof sum);
        }
    }
}

#endif

#endif
