/* Instructions that CUDA C++ has no function for, one small function each. Every asm statement of the kernels is here:
 * tests/cuda/emulator has a header of the same name that does the same on a CPU. */
#ifndef DSRI_PTX_CUH
#define DSRI_PTX_CUH

#include <stdint.h>

/* Address of a shared variable as the functions below take it. */
static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- launches that begin before those they depend on are done (compute capability 9.0; nothing elsewhere) ---- */

/* Waits until the launches that this one depends on are done and their writes are seen. A kernel whose entry in
 * cuda_kernels.c says .waits may begin before: every thread must call this before it touches device memory, to read or
 * to write, other than the kernel's arguments. What comes before the call (shared memory, barriers, arithmetic on the
 * plan) costs no time. */
static __device__ __forceinline__ void wait_for_prior_launch()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets launches that depend on this one begin, once all blocks have called this or ended; they wait by the function
 * above until this one is done. Their blocks take up room of a device's multiprocessors from then on. */
static __device__ __forceinline__ void let_next_launch_start()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- barriers ---- */

/* Waits for n_threads threads (a multiple of 32) at barrier `id`, 1 to 15. */
static __device__ __forceinline__ void named_barrier(uint32_t id, uint32_t n_threads)
{
    asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(n_threads) : "memory");
}

/* Two halves of a barrier of the cluster. What other blocks write after it does not come before what this block has
 * read; what this block has written they need not see: that would cost 700 cycles. */
static __device__ __forceinline__ void cluster_arrive_after_reads()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/* Says nothing of memory; barriers that are ready may be used after the wait. */
static __device__ __forceinline__ void cluster_arrive_relaxed()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

static __device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

/* The cluster's blocks see what all wrote to shared memory before. */
static __device__ __forceinline__ void cluster_barrier()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* ---- shared memory of the cluster's other blocks ---- */

/* Address of the same variable in another block of the cluster. */
static __device__ __forceinline__ uint32_t peer_address(const void *p, uint32_t rank)
{
    uint32_t address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(rank));
    return address;
}

static __device__ __forceinline__ uint32_t peer_word(const uint32_t *p, uint32_t rank)
{
    uint32_t x;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(x) : "r"(peer_address(p, rank)) : "memory");
    return x;
}

static __device__ __forceinline__ uint4 peer_word(const uint4 *p, uint32_t rank)
{
    uint4 x;
    asm volatile("ld.shared::cluster.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(peer_address(p, rank))
                 : "memory");
    return x;
}

/* ---- barriers in shared memory; copies can arrive at them with compute capability 9.0 ---- */

/* For n arrivals a phase. Others may use it after shared_barriers_ready() and a barrier of the block or the cluster. */
static __device__ __forceinline__ void shared_barrier_init(uint64_t *barrier, uint32_t n)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" : : "r"(shared_address(barrier)), "r"(n) : "memory");
}

static __device__ __forceinline__ void shared_barriers_ready()
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

static __device__ __forceinline__ void shared_barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" : : "r"(shared_address(barrier)) : "memory");
}

/* Arrives, and lets the phase wait for n_bytes of copies too. */
static __device__ __forceinline__ void shared_barrier_arrive_expecting(uint64_t *barrier, uint32_t n_bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
                 :
                 : "r"(shared_address(barrier)), "r"(n_bytes)
                 : "memory");
}

/* Waits until the phase of this parity (0 for the first, then in turn) is over. */
static __device__ __forceinline__ void shared_barrier_wait(uint64_t *barrier, uint32_t parity)
{
    uint32_t is_over;
    do {
        asm volatile("{\n\t.reg .pred p;\n\t"
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 /* which waits a little */
                     "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\t"
#else
                     "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\t"
#endif
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(is_over)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    } while (!is_over);
}

/* Writes to the same variable in another block of the cluster; the size arrives at that block's barrier. */
static __device__ __forceinline__ void send_float2(float2 *p, float2 x, uint64_t *barrier, uint32_t rank)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1,%2}, [%3];"
                 :
                 : "r"(peer_address(p, rank)), "f"(x.x), "f"(x.y), "r"(peer_address(barrier, rank))
                 : "memory");
}

static __device__ __forceinline__ void send_float4(float4 *p, float4 x, uint64_t *barrier, uint32_t rank)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];"
                 :
                 : "r"(peer_address(p, rank)), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(peer_address(barrier, rank))
                 : "memory");
}

/* How copies leave lines in the L2 cache: those of what is read once make room for others first. */
static __device__ __forceinline__ uint64_t cache_policy(bool is_read_once)
{
    uint64_t first, normal;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
    return is_read_once ? first : normal;
}

/* n_bytes, a multiple of 16, to shared memory; they arrive at the barrier. */
static __device__ __forceinline__ void copy_bulk(void *to, const void *from, uint32_t n_bytes, uint64_t *barrier,
                                                 uint64_t policy)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
        :
        : "r"(shared_address(to)), "l"(from), "r"(n_bytes), "r"(shared_address(barrier)), "l"(policy)
        : "memory");
}

/* ---- copies from global to shared memory that finish at a wait ---- */

/* 16 bytes, of which the last 16 - n_bytes are zeros. */
static __device__ __forceinline__ void copy_async_16(void *to, const void *from, uint32_t n_bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(from), "r"(n_bytes)
                 : "memory");
}

/* 16 bytes, by a cache policy. */
static __device__ __forceinline__ void copy_async_16_by(void *to, const void *from, uint64_t policy)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(from), "l"(policy)
                 : "memory");
}

static __device__ __forceinline__ void copy_async_4(void *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(shared_address(to)), "l"(from) : "memory");
}

static __device__ __forceinline__ void copy_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Lets this thread arrive at a barrier in shared memory when its copies so far are done. */
static __device__ __forceinline__ void copy_async_arrive(uint64_t *barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" : : "r"(shared_address(barrier)) : "memory");
}

/* Waits until at most N of this thread's groups are under way. */
template <int N> static __device__ __forceinline__ void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}

/* Asks for the line of device memory at p to be in the L2 cache. */
static __device__ __forceinline__ void prefetch_line(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" : : "l"(p));
}

/* ---- tensor cores ---- */

/* Four 8 x 8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix i / 8. */
static __device__ __forceinline__ void load_matrices(uint32_t address, uint32_t r[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

static __device__ __forceinline__ void load_matrices_transposed(uint32_t address, uint32_t r[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* d = a . b + c for a 16 x 32 matrix of signed and a 32 x 8 matrix of unsigned bytes, fragments as mma.m16n8k32 has
 * them. */
static __device__ __forceinline__ void multiply_add_bytes(int d[4], uint4 a, uint32_t b0, uint32_t b1, int4 c)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1), "r"(c.x), "r"(c.y), "r"(c.z), "r"(c.w));
}

/* The same without c, and with signed bytes in both. */
static __device__ __forceinline__ void multiply_signed_bytes(int d[4], uint4 a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1), "r"(0));
}

/* Bytes of a 160 x 64 matrix, 64 columns, in steps of 32 rows, as multiply_bytes_64 reads them: 8 columns of 16
 * rows are side by side. */
struct int8_matrix {
    uint32_t words[5][2][8][8][4];

    /* 16 rows of one column: those from 32 * step + 16 * half on, of column `column` of the 8 of a fragment. */
    __device__ uint32_t *at(uint32_t step, uint32_t half, uint32_t fragment, uint32_t column)
    {
        return words[step][half][fragment][column];
    }
};

/* Lets matrix products read, and bulk copies overwrite, what this thread has written to shared memory, after a barrier. */
static __device__ __forceinline__ void order_before_async()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* d = a . b for the 64 x 160 unsigned bytes of four warps side by side, 16 rows each, and a 160 x 64 matrix of signed
 * bytes in shared memory. Fragments are those of mma.m16n8k32: a[step], and d[4 * i] for columns 8 * i on. All rows of a
 * are alike in step 4: its fragment is low, low, high, high. */
static __device__ __forceinline__ void multiply_bytes_64(int d[32], const uint32_t a[4][4], uint32_t low, uint32_t high,
                                                         const int8_matrix &b)
{
    /* Blocks of 8 columns x 16 rows: 128 bytes from one to the next along the columns, 1024 along the rows. */
    const uint64_t first =
        (uint64_t)(shared_address(&b) >> 4) | (uint64_t)(1024 >> 4) << 16 | (uint64_t)(128 >> 4) << 32;
    asm volatile("{\n\t.reg .pred p, q;\n\tsetp.eq.u32 p, 0, 0;\n\tsetp.ne.u32 q, 0, 0;\n\t"
                 "wgmma.fence.sync.aligned;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                 "{%52,%52,%53,%53},%54,q;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                 "{%32,%33,%34,%35},%48,p;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                 "{%36,%37,%38,%39},%49,p;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                 "{%40,%41,%42,%43},%50,p;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                 "{%44,%45,%46,%47},%51,p;\n\t"
                 "wgmma.commit_group.sync.aligned;\n\t"
                 "wgmma.wait_group.sync.aligned 0;\n\t}"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]), "=r"(d[4]), "=r"(d[5]), "=r"(d[6]), "=r"(d[7]),
                   "=r"(d[8]), "=r"(d[9]), "=r"(d[10]), "=r"(d[11]), "=r"(d[12]), "=r"(d[13]), "=r"(d[14]), "=r"(d[15]),
                   "=r"(d[16]), "=r"(d[17]), "=r"(d[18]), "=r"(d[19]), "=r"(d[20]), "=r"(d[21]), "=r"(d[22]),
                   "=r"(d[23]), "=r"(d[24]), "=r"(d[25]), "=r"(d[26]), "=r"(d[27]), "=r"(d[28]), "=r"(d[29]),
                   "=r"(d[30]), "=r"(d[31])
                 : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]),
                   "r"(a[1][3]), "r"(a[2][0]), "r"(a[2][1]), "r"(a[2][2]), "r"(a[2][3]), "r"(a[3][0]), "r"(a[3][1]),
                   "r"(a[3][2]), "r"(a[3][3]), "l"(first), "l"(first + (2048 >> 4)), "l"(first + (4096 >> 4)),
                   "l"(first + (6144 >> 4)), "r"(low), "r"(high), "l"(first + (8192 >> 4))
                 : "memory");
}
#endif

/* Stores four 8 x 8 matrices of 16-bit values, fragments as load_matrices_transposed() gives them; lane i gives the
 * address of row i % 8 of matrix i / 8. */
static __device__ __forceinline__ void store_matrices_transposed(uint32_t address, const uint32_t r[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};"
                 :
                 : "r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* What a matrix product needs to know of BF16 values in shared memory: rows of 128 bytes one after another from a
 * multiple of 1,024 bytes on, of which 16-byte piece i of row r lies at place i ^ r % 8. `offset` is that of the first
 * row and of the first value in shared_memory, were it at its own place: a multiple of 32 bytes within the row. It
 * should be alike in all lanes in a way that the compiler sees; and the address of shared_memory is asked for each
 * time, since one that is kept is not: else each product waits for places that come from registers of lanes. */
static __device__ __forceinline__ uint32_t matrix_at(uint32_t offset)
{
    uint32_t address;
    asm volatile("mov.u32 %0, shared_memory;" : "=r"(address));
    return ((address + offset) & 0x3ffffu) >> 4 | 1u << 16;
}

/* The same n_bytes further, a multiple of 16. */
static __device__ __forceinline__ uint32_t matrix_further(uint32_t matrix, uint32_t n_bytes)
{
    return matrix + (n_bytes >> 4);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* Products of multiply_add_shared() may begin: the registers that they add to are ready. All warps of four, from a
 * multiple of four on, call these functions together. */
template <int N> static __device__ __forceinline__ void begin_products(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Waits for all of them. */
template <int N> static __device__ __forceinline__ void finish_products(float (&d)[N])
{
    asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* Begins a product: a and b of matrix_at(), to which belongs that groups of 8 rows are 1,024 bytes apart and how pieces
 * lie in them; p: whether it adds. */
#define PRODUCT_OPERANDS(matrix_a, matrix_b, adds)                                                                     \
    "{\n\t.reg .pred p;\n\t.reg .b64 a, b;\n\tsetp.ne.u32 p, " adds ", 0;\n\t"                                         \
    "mov.b64 a, {" matrix_a ", 0x40000040};\n\tmov.b64 b, {" matrix_b ", 0x40000040};\n\t"

/* d (+)= a . b for a 64 x 16 and a 16 x N matrix of BF16, N = 8, 16 or 32. A row of matrix_at() is a column of b, and a
 * row of a, or with A_IS_TRANSPOSED a column. d: 8 columns x 16 rows of a warp as mma.m16n8k16 has them, then the
 * next 8. adds: else d is not read. */
template <int N, int A_IS_TRANSPOSED>
static __device__ __forceinline__ void multiply_add_shared(float *d, uint32_t a, uint32_t b, bool adds)
{
    static_assert(N == 8 || N == 16 || N == 32, "columns");
    if constexpr (N == 8)
        asm volatile(PRODUCT_OPERANDS("%4", "%5", "%6")
                     "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3},a,b,p,1,1,%7,0;\n\t}"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a), "r"(b), "r"((uint32_t)adds), "n"(A_IS_TRANSPOSED)
                     : "memory");
    else if constexpr (N == 16)
        asm volatile(PRODUCT_OPERANDS("%8", "%9", "%10")
                     "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
                     "%0,%1,%2,%3,%4,%5,%6,%7},a,b,p,1,1,%11,0;\n\t}"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                     : "r"(a), "r"(b), "r"((uint32_t)adds), "n"(A_IS_TRANSPOSED)
                     : "memory");
    else
        asm volatile(PRODUCT_OPERANDS("%16", "%17", "%18")
                     "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                     "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},a,b,p,1,1,%19,0;\n\t}"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                       "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),
                       "+f"(d[15])
                     : "r"(a), "r"(b), "r"((uint32_t)adds), "n"(A_IS_TRANSPOSED)
                     : "memory");
}
#undef PRODUCT_OPERANDS
#endif

/* Byte i is that of low, high which the low 3 bits of nibble i of selectors number, or eight times its top bit where
 * the nibble's bit 3 is set. The upper half of selectors is not looked at. */
static __device__ __forceinline__ uint32_t select_bytes(uint32_t low, uint32_t high, uint32_t selectors)
{
    uint32_t bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selectors));
    return bytes;
}

/* The products of two pairs of BF16 values, rounded to nearest; subnormals are kept. */
static __device__ __forceinline__ uint32_t multiply_bf16_pairs(uint32_t a, uint32_t b)
{
    uint32_t products;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(products) : "r"(a), "r"(b), "r"(0x80008000u)); /* + -0 keeps signs */
    return products;
}

/* d += a . b for a 16 x 16 and a 16 x 8 matrix of BF16, fragments as mma.m16n8k16 has them. */
static __device__ __forceinline__ void multiply_add(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- arithmetic ---- */

/* 2^x within two units in the last place; 0 where that is subnormal. */
static __device__ __forceinline__ float exp2_approximate(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two values rounded to BF16: `low` in the low half. */
static __device__ __forceinline__ uint32_t round_to_bf16_pair(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

#endif
