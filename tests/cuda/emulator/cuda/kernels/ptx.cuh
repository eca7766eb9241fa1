/* The functions of src/cuda/kernels/ptx.cuh on the emulator: found first when kernels are compiled for the host. */
#ifndef DSRI_PTX_CUH
#define DSRI_PTX_CUH

#include "device.h"

static inline uint32_t shared_address(const void *p)
{
    return emulator_shared_address(p);
}

/* ---- launches that begin before those they depend on are done ---- */

static inline void wait_for_prior_launch()
{
    emulator_wait_for_prior_launch();
}

static inline void let_next_launch_start()
{
}

/* ---- barriers ---- */

static inline void named_barrier(uint32_t id, uint32_t n_threads)
{
    emulator_barrier(id, n_threads, 0);
}

static inline void cluster_arrive_after_reads()
{
    emulator_cluster_arrive(0);
}

static inline void cluster_arrive_relaxed()
{
    emulator_cluster_arrive(1);
}

static inline void cluster_wait()
{
    emulator_cluster_wait();
}

static inline void cluster_barrier()
{
    emulator_cluster_arrive(0);
    emulator_cluster_wait();
}

/* ---- shared memory of the cluster's other blocks ---- */

static inline uint32_t peer_address(const void *p, uint32_t rank)
{
    return emulator_peer_address(shared_address(p), rank);
}

template <typename T> static inline T peer_value(const void *p, uint32_t rank)
{
    T x;
    emulator_read_peer(peer_address(p, rank), &x, sizeof x);
    return x;
}

static inline uint32_t peer_word(const uint32_t *p, uint32_t rank)
{
    return peer_value<uint32_t>(p, rank);
}

static inline uint4 peer_word(const uint4 *p, uint32_t rank)
{
    return peer_value<uint4>(p, rank);
}

/* ---- barriers in shared memory, which copies can arrive at ---- */

static inline void shared_barrier_init(uint64_t *barrier, uint32_t n)
{
    emulator_mbarrier_init(shared_address(barrier), n);
}

static inline void shared_barriers_ready()
{
}

static inline void shared_barrier_arrive(uint64_t *barrier)
{
    emulator_mbarrier_arrive(shared_address(barrier), 0);
}

static inline void shared_barrier_arrive_expecting(uint64_t *barrier, uint32_t n_bytes)
{
    emulator_mbarrier_arrive(shared_address(barrier), n_bytes);
}

static inline void shared_barrier_wait(uint64_t *barrier, uint32_t parity)
{
    emulator_mbarrier_wait(shared_address(barrier), parity);
}

static inline void send_float2(float2 *p, float2 x, uint64_t *barrier, uint32_t rank)
{
    emulator_send(peer_address(p, rank), &x, sizeof x, peer_address(barrier, rank));
}

static inline void send_float4(float4 *p, float4 x, uint64_t *barrier, uint32_t rank)
{
    emulator_send(peer_address(p, rank), &x, sizeof x, peer_address(barrier, rank));
}

static inline uint64_t cache_policy(bool is_read_once)
{
    return is_read_once;
}

static inline void copy_bulk(void *to, const void *from, uint32_t n_bytes, uint64_t *barrier, uint64_t)
{
    emulator_copy_bulk(to, from, n_bytes, shared_address(barrier));
}

/* ---- copies from global to shared memory that finish at a wait ---- */

static inline void copy_async_16(void *to, const void *from, uint32_t n_bytes)
{
    if (n_bytes > 16)
        emulator_fail("cp.async of %u bytes", n_bytes);
    if (((uintptr_t)to | (uintptr_t)from) % 16 != 0)
        emulator_fail("cp.async from %p to %p: not aligned", from, to);
    emulator_copy_async(to, from, n_bytes, 16 - n_bytes);
}

static inline void copy_async_16_by(void *to, const void *from, uint64_t)
{
    copy_async_16(to, from, 16);
}

static inline void copy_async_4(void *to, const void *from)
{
    if (((uintptr_t)to | (uintptr_t)from) % 4 != 0)
        emulator_fail("cp.async from %p to %p: not aligned", from, to);
    emulator_copy_async(to, from, 4, 0);
}

static inline void copy_async_commit()
{
    emulator_copy_commit();
}

static inline void copy_async_arrive(uint64_t *barrier)
{
    emulator_copy_arrive(shared_address(barrier));
}

template <int N> static inline void copy_async_wait()
{
    emulator_copy_wait(N);
}

static inline void prefetch_line(const void *)
{
}

/* ---- tensor cores ---- */

struct matrix_rows {
    uint32_t address;
    uint32_t r[4];
};

static inline const uint16_t *matrix_row(void *const arguments[32], int matrix, int row)
{
    const uint32_t address = static_cast<const matrix_rows *>(arguments[8 * matrix + row])->address;
    if (address % 16 != 0)
        emulator_fail("ldmatrix: address %#x is not aligned", address);
    return static_cast<const uint16_t *>(emulator_shared(address, 16));
}

static inline void load_matrices(uint32_t address, uint32_t r[4])
{
    matrix_rows own = {address, {}};
    emulator_warp(
        "ldmatrix",
        [](void *const arguments[32], uint32_t) {
            for (int matrix = 0; matrix < 4; matrix++)
                for (int row = 0; row < 8; row++) {
                    const uint16_t *from = matrix_row(arguments, matrix, row);
                    for (int i = 0; i < 4; i++)
                        static_cast<matrix_rows *>(arguments[4 * row + i])->r[matrix] =
                            from[2 * i] | (uint32_t)from[2 * i + 1] << 16;
                }
        },
        0xffffffffu, &own);
    memcpy(r, own.r, sizeof own.r);
}

static inline void load_matrices_transposed(uint32_t address, uint32_t r[4])
{
    matrix_rows own = {address, {}};
    emulator_warp(
        "ldmatrix.trans",
        [](void *const arguments[32], uint32_t) {
            for (int matrix = 0; matrix < 4; matrix++)
                for (int i = 0; i < 4; i++) {
                    const uint16_t *low = matrix_row(arguments, matrix, 2 * i);
                    const uint16_t *high = matrix_row(arguments, matrix, 2 * i + 1);
                    for (int column = 0; column < 8; column++)
                        static_cast<matrix_rows *>(arguments[4 * column + i])->r[matrix] =
                            low[column] | (uint32_t)high[column] << 16;
                }
        },
        0xffffffffu, &own);
    memcpy(r, own.r, sizeof own.r);
}

struct matrix_product {
    float *d;
    const uint32_t *a;
    uint32_t b[2];
};

/* The sum over 16 features starts from d and runs in feature order; a device promises no order. */
static inline void multiply_matrices(void *const arguments[32], uint32_t)
{
    float a[16][16], b[16][8], d[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const matrix_product *p = static_cast<const matrix_product *>(arguments[lane]);
        const int g = lane / 4, t = lane % 4 * 2;
        for (int i = 0; i < 4; i++) {
            a[g + i % 2 * 8][t + i / 2 * 8] = __uint_as_float(p->a[i] << 16);
            a[g + i % 2 * 8][t + i / 2 * 8 + 1] = __uint_as_float(p->a[i] & 0xffff0000u);
            d[g + i / 2 * 8][t + i % 2] = p->d[i];
        }
        for (int i = 0; i < 2; i++) {
            b[t + 8 * i][g] = __uint_as_float(p->b[i] << 16);
            b[t + 8 * i + 1][g] = __uint_as_float(p->b[i] & 0xffff0000u);
        }
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            for (int column = 0; column < 8; column++)
                d[row][column] += a[row][k] * b[k][column];
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            static_cast<matrix_product *>(arguments[lane])->d[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}

static inline uint32_t multiply_bf16_pairs(uint32_t a, uint32_t b)
{
    uint32_t products = 0;
    for (int i = 0; i < 2; i++) {
        const double x = __uint_as_float(a >> 16 * i << 16), y = __uint_as_float(b >> 16 * i << 16);
        /* Exact in double, and in float but where it rounds to zero as BF16 too. */
        const float product = (float)(x * y);
        const uint32_t bits = __float_as_uint(product);
        const uint32_t rounded = product != product ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
        products |= (rounded & 0xffffu) << 16 * i;
    }
    return products;
}

static inline void multiply_add(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    matrix_product own = {d, a, {b0, b1}};
    emulator_warp("mma.m16n8k16", multiply_matrices, 0xffffffffu, &own);
}

struct byte_product {
    int *d;
    uint32_t a[4];
    uint32_t b[2];
    int c[4];
};

template <typename A, typename B> static inline void multiply_byte_matrices(void *const arguments[32], uint32_t)
{
    int a[16][32], b[32][8], d[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const byte_product *p = static_cast<const byte_product *>(arguments[lane]);
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) {
            for (int byte = 0; byte < 4; byte++)
                a[g + i % 2 * 8][4 * t + byte + i / 2 * 16] = (A)(p->a[i] >> 8 * byte & 255u);
            d[g + i / 2 * 8][2 * t + i % 2] = p->c[i];
        }
        for (int i = 0; i < 2; i++)
            for (int byte = 0; byte < 4; byte++)
                b[4 * t + byte + 16 * i][g] = (B)(p->b[i] >> 8 * byte & 255u);
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 32; k++)
            for (int column = 0; column < 8; column++)
                d[row][column] = (int)((unsigned)d[row][column] + (unsigned)(a[row][k] * b[k][column]));
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            static_cast<const byte_product *>(arguments[lane])->d[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}

static inline void multiply_add_bytes(int d[4], uint4 a, uint32_t b0, uint32_t b1, int4 c)
{
    byte_product own = {d, {a.x, a.y, a.z, a.w}, {b0, b1}, {c.x, c.y, c.z, c.w}};
    emulator_warp("mma.m16n8k32", multiply_byte_matrices<int8_t, uint8_t>, 0xffffffffu, &own);
}

static inline void multiply_signed_bytes(int d[4], uint4 a, uint32_t b0, uint32_t b1)
{
    byte_product own = {d, {a.x, a.y, a.z, a.w}, {b0, b1}, {}};
    emulator_warp("mma.m16n8k32", multiply_byte_matrices<int8_t, int8_t>, 0xffffffffu, &own);
}

struct int8_matrix {
    uint32_t words[5][2][8][8][4];

    uint32_t *at(uint32_t step, uint32_t half, uint32_t fragment, uint32_t column)
    {
        return words[step][half][fragment][column];
    }
};

static inline void order_before_async()
{
}

struct wide_byte_product {
    int *d;
    const uint32_t (*a)[4];
    const int8_matrix *b;
};

/* Of one warp: four warps of a device do it together. */
static inline void multiply_wide_byte_matrices(void *const arguments[32], uint32_t)
{
    for (int step = 0; step < 5; step++)
        for (int fragment = 0; fragment < 8; fragment++) {
            byte_product products[32];
            void *lanes[32];
            for (int lane = 0; lane < 32; lane++) {
                const wide_byte_product *own = static_cast<const wide_byte_product *>(arguments[lane]);
                byte_product &p = products[lane];
                p.d = own->d + 4 * fragment;
                memcpy(p.c, p.d, sizeof p.c);
                memcpy(p.a, own->a[step], sizeof p.a);
                for (int half = 0; half < 2; half++)
                    p.b[half] = own->b->words[step][half][fragment][lane / 4][lane % 4];
                lanes[lane] = &p;
            }
            multiply_byte_matrices<uint8_t, int8_t>(lanes, 0xffffffffu);
        }
}

static inline void multiply_bytes_64(int d[32], const uint32_t a[4][4], uint32_t low, uint32_t high,
                                     const int8_matrix &b)
{
    uint32_t all[5][4] = {{}, {}, {}, {}, {low, low, high, high}};
    memcpy(all, a, 4 * sizeof all[0]);
    memset(d, 0, 32 * sizeof d[0]);
    wide_byte_product own = {d, all, &b};
    emulator_warp("wgmma.m64n64k32", multiply_wide_byte_matrices, 0xffffffffu, &own);
}

static inline void store_matrices_transposed(uint32_t address, const uint32_t r[4])
{
    matrix_rows own = {address, {r[0], r[1], r[2], r[3]}};
    emulator_warp(
        "stmatrix.trans",
        [](void *const arguments[32], uint32_t) {
            for (int matrix = 0; matrix < 4; matrix++)
                for (int column = 0; column < 8; column++) {
                    uint32_t pairs[4] = {};
                    for (int row = 0; row < 8; row++) {
                        const matrix_rows *from = static_cast<const matrix_rows *>(arguments[4 * row + column / 2]);
                        pairs[row / 2] |= (from->r[matrix] >> 16 * (column % 2) & 0xffffu) << 16 * (row % 2);
                    }
                    const uint32_t to = static_cast<const matrix_rows *>(arguments[8 * matrix + column])->address;
                    if (to % 16 != 0)
                        emulator_fail("stmatrix: address %#x is not aligned", to);
                    shared_memory[(to - shared_address(shared_memory)) / 16] = {pairs[0], pairs[1], pairs[2], pairs[3]};
                }
        },
        0xffffffffu, &own);
}

static inline uint32_t matrix_at(uint32_t offset)
{
    return shared_address(shared_memory) + offset;
}

static inline uint32_t matrix_further(uint32_t matrix, uint32_t n_bytes)
{
    return matrix + n_bytes;
}

template <int N> static inline void begin_products(float (&)[N])
{
}

template <int N> static inline void finish_products(float (&)[N])
{
}

struct shared_product {
    float *d;
    uint32_t a, b;
    bool adds;
};

/* 16 bytes of a matrix in shared memory. */
static inline const uint16_t *matrix_piece(uint32_t matrix, uint32_t row, uint32_t piece)
{
    const uint32_t first = shared_address(shared_memory);
    uint32_t offset = matrix - first + row * 128 + piece * 16;
    offset ^= (offset >> 7 & 7u) << 4;
    return static_cast<const uint16_t *>(emulator_shared(first + offset, 16));
}

/* Of one warp: four warps of a device do it together. The sum runs in order; a device promises none. */
template <int N, int A_IS_TRANSPOSED> static inline void multiply_shared(void *const arguments[32], uint32_t)
{
    float a[16][16], b[N][16];
    const shared_product &p = *static_cast<const shared_product *>(arguments[0]);
    const uint32_t first_row = threadIdx.x / 32 % 4 * 16;
    for (uint32_t i = 0; i < 16; i++)
        for (uint32_t half = 0; half < 2; half++) {
            const uint16_t *from =
                A_IS_TRANSPOSED ? matrix_piece(p.a, i, first_row / 8 + half) : matrix_piece(p.a, first_row + i, half);
            for (uint32_t j = 0; j < 8; j++)
                (A_IS_TRANSPOSED ? a[8 * half + j][i] : a[i][8 * half + j]) = __uint_as_float((uint32_t)from[j] << 16);
        }
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t half = 0; half < 2; half++) {
            const uint16_t *from = matrix_piece(p.b, i, half);
            for (uint32_t j = 0; j < 8; j++)
                b[i][8 * half + j] = __uint_as_float((uint32_t)from[j] << 16);
        }
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < N; column++) {
            float &own = static_cast<const shared_product *>(arguments[row % 8 * 4 + column % 8 / 2])
                             ->d[column / 8 * 4 + row / 8 * 2 + column % 2];
            float sum = p.adds ? own : 0.0f;
            for (int k = 0; k < 16; k++)
                sum += a[row][k] * b[column][k];
            own = sum;
        }
}

template <int N, int A_IS_TRANSPOSED>
static inline void multiply_add_shared(float *d, uint32_t a, uint32_t b, bool adds)
{
    shared_product own = {d, a, b, adds};
    emulator_warp("wgmma.m64k16", multiply_shared<N, A_IS_TRANSPOSED>, 0xffffffffu, &own);
}

static inline uint32_t select_bytes(uint32_t low, uint32_t high, uint32_t selectors)
{
    return __byte_perm(low, high, selectors);
}

/* ---- arithmetic ---- */

static inline float exp2_approximate(float x)
{
    const float y = __builtin_exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}

static inline uint32_t round_to_bf16_pair(float low, float high)
{
    const float values[2] = {low, high};
    uint32_t pair = 0;
    for (int i = 0; i < 2; i++) {
        const uint32_t b = __float_as_uint(values[i]);
        const uint32_t rounded = values[i] != values[i] ? 0x7fffu : (b + 0x7fffu + (b >> 16 & 1u)) >> 16;
        pair |= rounded << (16 * i);
    }
    return pair;
}

#endif
