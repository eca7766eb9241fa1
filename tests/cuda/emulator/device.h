/* CUDA C++ as far as the kernels use it, for the host's compiler. Included before any kernel source. */
#ifndef DEVICE_H
#define DEVICE_H

#include "emulator.h"

#include <math.h>
#include <string.h>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__    __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __shared__                thread_local /* in the module's TLS block, which the emulator swaps from block to block */
#define __CUDA_ARCH__             900
#define __CUDA_ARCH_FEAT_SM90_ALL 1
#define __CUDACC__                1
#if !defined(__clang__)
#define __builtin_assume(condition) ((void)0)
#endif
#define __trap() emulator_fail("trap")

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
};
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

#define VECTOR_2(type, name, alignment)                                                                                \
    struct alignas(alignment) name {                                                                                   \
        type x, y;                                                                                                     \
    };                                                                                                                 \
    static inline name make_##name(type x, type y)                                                                     \
    {                                                                                                                  \
        return {x, y};                                                                                                 \
    }
#define VECTOR_4(type, name, alignment)                                                                                \
    struct alignas(alignment) name {                                                                                   \
        type x, y, z, w;                                                                                               \
    };                                                                                                                 \
    static inline name make_##name(type x, type y, type z, type w)                                                     \
    {                                                                                                                  \
        return {x, y, z, w};                                                                                           \
    }
VECTOR_2(float, float2, 8)
VECTOR_4(float, float4, 16)
VECTOR_2(int, int2, 8)
VECTOR_4(int, int4, 16)
VECTOR_2(unsigned, uint2, 8)
VECTOR_4(unsigned, uint4, 16)
VECTOR_2(unsigned short, ushort2, 4)
VECTOR_4(unsigned short, ushort4, 8)
VECTOR_4(unsigned char, uchar4, 4)
VECTOR_2(unsigned long long, ulonglong2, 16)

/* Dynamic shared memory: kernels declare it under this name. */
enum { EMULATOR_SHARED_BYTES = 227 * 1024 };
extern "C" {
extern thread_local uint4 shared_memory[EMULATOR_SHARED_BYTES / 16];
}

/* ---- arithmetic ---- */

template <typename To, typename From> static inline To same_bits(From x)
{
    static_assert(sizeof(To) == sizeof(From), "sizes differ");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}

static inline float __uint_as_float(unsigned x)
{
    return same_bits<float>(x);
}
static inline unsigned __float_as_uint(float x)
{
    return same_bits<unsigned>(x);
}
static inline float __int_as_float(int x)
{
    return same_bits<float>(x);
}
static inline int __float_as_int(float x)
{
    return same_bits<int>(x);
}

static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __frcp_rn(float a)
{
    return 1.0f / a;
}
static inline float __fsqrt_rn(float a)
{
    return __builtin_sqrtf(a);
}
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float device_expf(float x)
{
    return exp2f(x * 1.4426950408889634f);
}
#define __expf device_expf /* the C library has a function of this name */
static inline float __saturatef(float x)
{
    return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}
static inline float __uint2float_rn(unsigned x)
{
    return (float)x;
}
static inline float __int2float_rn(int x)
{
    return (float)x;
}
static inline int __float2int_rn(float x)
{
    return (int)rintf(x);
}
static inline int __float2int_rz(float x)
{
    return (int)x;
}

template <typename T> static inline T min(T a, T b)
{
    return b < a ? b : a;
}
template <typename T> static inline T max(T a, T b)
{
    return a < b ? b : a;
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __clzll(long long x)
{
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}
static inline unsigned __brev(unsigned x)
{
    unsigned y = 0;
    for (int i = 0; i < 32; i++)
        y |= (x >> i & 1u) << (31 - i);
    return y;
}
/* Selector bit 3 of a byte copies the sign of the byte that it selects. */
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selectors)
{
    const unsigned long long bytes = (unsigned long long)b << 32 | a;
    unsigned y = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned selector = selectors >> (4 * i) & 15u;
        const unsigned byte = (unsigned)(bytes >> (8 * (selector & 7u))) & 0xffu;
        y |= (selector & 8u ? (byte & 0x80u ? 0xffu : 0u) : byte) << (8 * i);
    }
    return y;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)((((unsigned long long)high << 32 | low) << (shift & 31u)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31u));
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((unsigned long long)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++)
        c += (int)(signed char)(a >> (8 * i)) * (int)(signed char)(b >> (8 * i));
    return c;
}

/* ---- memory ---- */

template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldcs(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldca(const T *p)
{
    return *p;
}
template <typename T> static inline void __stcg(T *p, T x)
{
    *p = x;
}
template <typename T> static inline void __stcs(T *p, T x)
{
    *p = x;
}
static inline void __threadfence()
{
    emulator_fence();
}
static inline void __threadfence_block()
{
}
static inline void __nanosleep(unsigned)
{
    emulator_yield();
}

template <typename T, typename Change> static inline T change_atomically(T *p, Change change)
{
    emulator_atomic(p, sizeof *p);
    const T old = *p;
    *p = change(old);
    emulator_atomic_done();
    return old;
}
template <typename T> static inline T atomicAdd(T *p, typename std::common_type<T>::type x)
{
    return change_atomically(p, [x](T old) -> T { return (T)(old + x); });
}
template <typename T> static inline T atomicSub(T *p, typename std::common_type<T>::type x)
{
    return change_atomically(p, [x](T old) -> T { return (T)(old - x); });
}
template <typename T> static inline T atomicMax(T *p, typename std::common_type<T>::type x)
{
    return change_atomically(p, [x](T old) -> T { return old < x ? x : old; });
}
template <typename T> static inline T atomicMin(T *p, typename std::common_type<T>::type x)
{
    return change_atomically(p, [x](T old) -> T { return x < old ? x : old; });
}
template <typename T> static inline T atomicOr(T *p, typename std::common_type<T>::type x)
{
    return change_atomically(p, [x](T old) -> T { return (T)(old | x); });
}
template <typename T> static inline T atomicAnd(T *p, typename std::common_type<T>::type x)
{
    return change_atomically(p, [x](T old) -> T { return (T)(old & x); });
}
template <typename T> static inline T atomicXor(T *p, typename std::common_type<T>::type x)
{
    return change_atomically(p, [x](T old) -> T { return (T)(old ^ x); });
}
template <typename T> static inline T atomicExch(T *p, typename std::common_type<T>::type x)
{
    return change_atomically(p, [x](T) -> T { return x; });
}
template <typename T>
static inline T atomicCAS(T *p, typename std::common_type<T>::type expected, typename std::common_type<T>::type x)
{
    return change_atomically(p, [x, expected](T old) -> T { return old == expected ? x : old; });
}

/* ---- barriers and warps ---- */

static inline void __syncthreads()
{
    emulator_barrier(0, 0, 0);
}
static inline int __syncthreads_count(int is_true)
{
    return (int)emulator_barrier(0, 0, is_true != 0);
}
static inline int __syncthreads_or(int is_true)
{
    return emulator_barrier(0, 0, is_true != 0) != 0;
}
static inline int __syncthreads_and(int is_true)
{
    return emulator_barrier(0, 0, is_true == 0) == 0;
}

static inline unsigned own_lane()
{
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    int nothing = 0;
    emulator_warp(
        "__syncwarp", [](void *const *, uint32_t) { emulator_order_warp(); }, mask, &nothing);
}

struct warp_value {
    unsigned long long value, result;
    unsigned other; /* the lane to read */
};

static inline unsigned long long exchange(const char *name, unsigned mask, unsigned long long value, unsigned other)
{
    warp_value own = {value, 0, other};
    emulator_warp(
        name,
        [](void *const arguments[32], uint32_t lanes) {
            for (unsigned i = 0; i < 32; i++) {
                if (!(lanes >> i & 1u))
                    continue;
                warp_value *to = static_cast<warp_value *>(arguments[i]);
                if (!(lanes >> to->other & 1u))
                    emulator_fail("lane %u reads lane %u, which is not in the mask %#x", i, to->other, lanes);
                to->result = static_cast<const warp_value *>(arguments[to->other])->value;
            }
        },
        mask, &own);
    return own.result;
}

template <typename T> static inline T shuffle(const char *name, unsigned mask, T x, unsigned other)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a word or two");
    unsigned long long value = 0;
    memcpy(&value, &x, sizeof x);
    value = exchange(name, mask, value, other);
    memcpy(&x, &value, sizeof x);
    return x;
}

template <typename T> static inline T __shfl_sync(unsigned mask, T x, int lane, int width = 32)
{
    const unsigned first = own_lane() / (unsigned)width * (unsigned)width;
    return shuffle("__shfl_sync", mask, x, first + (unsigned)lane % (unsigned)width);
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T x, int bits, int width = 32)
{
    const unsigned own = own_lane(), other = own ^ (unsigned)bits;
    const bool is_inside = other / (unsigned)width <= own / (unsigned)width;
    return shuffle("__shfl_xor_sync", mask, x, is_inside ? other : own);
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T x, unsigned distance, int width = 32)
{
    const unsigned own = own_lane();
    return shuffle("__shfl_up_sync", mask, x, own % (unsigned)width >= distance ? own - distance : own);
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T x, unsigned distance, int width = 32)
{
    const unsigned own = own_lane();
    return shuffle("__shfl_down_sync", mask, x,
                   own % (unsigned)width + distance < (unsigned)width ? own + distance : own);
}

static inline unsigned __ballot_sync(unsigned mask, int is_true)
{
    warp_value own = {(unsigned long long)(is_true != 0), 0, 0};
    emulator_warp(
        "__ballot_sync",
        [](void *const arguments[32], uint32_t lanes) {
            unsigned bits = 0;
            for (unsigned i = 0; i < 32; i++)
                if (lanes >> i & 1u)
                    bits |= (unsigned)static_cast<warp_value *>(arguments[i])->value << i;
            for (unsigned i = 0; i < 32; i++)
                if (lanes >> i & 1u)
                    static_cast<warp_value *>(arguments[i])->result = bits;
        },
        mask, &own);
    return (unsigned)own.result;
}
static inline int __any_sync(unsigned mask, int is_true)
{
    return __ballot_sync(mask, is_true) != 0;
}
static inline int __all_sync(unsigned mask, int is_true)
{
    return __ballot_sync(mask, is_true) == mask;
}

template <typename T> static inline unsigned __match_any_sync(unsigned mask, T x)
{
    warp_value own = {0, 0, 0};
    memcpy(&own.value, &x, sizeof x);
    emulator_warp(
        "__match_any_sync",
        [](void *const arguments[32], uint32_t lanes) {
            for (unsigned i = 0; i < 32; i++)
                for (unsigned j = 0; j < 32; j++)
                    if ((lanes >> i & 1u) && (lanes >> j & 1u) &&
                        static_cast<warp_value *>(arguments[i])->value ==
                            static_cast<warp_value *>(arguments[j])->value)
                        static_cast<warp_value *>(arguments[i])->result |= 1ull << j;
        },
        mask, &own);
    return (unsigned)own.result;
}

/* Folds the lanes' values in lane order. */
template <typename T, T fold(T, T)> static inline T reduce(const char *name, unsigned mask, T x)
{
    warp_value own = {0, 0, 0};
    memcpy(&own.value, &x, sizeof x);
    emulator_warp(
        name,
        [](void *const arguments[32], uint32_t lanes) {
            T all{};
            bool is_first = true;
            for (unsigned i = 0; i < 32; i++) {
                if (!(lanes >> i & 1u))
                    continue;
                T one;
                memcpy(&one, &static_cast<warp_value *>(arguments[i])->value, sizeof one);
                all = is_first ? one : fold(all, one);
                is_first = false;
            }
            for (unsigned i = 0; i < 32; i++)
                if (lanes >> i & 1u)
                    memcpy(&static_cast<warp_value *>(arguments[i])->result, &all, sizeof all);
        },
        mask, &own);
    memcpy(&x, &own.result, sizeof x);
    return x;
}
template <typename T> static inline T fold_sum(T a, T b)
{
    return a + b;
}
template <typename T> static inline T fold_and(T a, T b)
{
    return a & b;
}
template <typename T> static inline T fold_or(T a, T b)
{
    return a | b;
}
template <typename T> static inline T fold_xor(T a, T b)
{
    return a ^ b;
}
template <typename T> static inline T __reduce_add_sync(unsigned mask, T x)
{
    return reduce<T, fold_sum<T>>("__reduce_add_sync", mask, x);
}
template <typename T> static inline T __reduce_min_sync(unsigned mask, T x)
{
    return reduce<T, min<T>>("__reduce_min_sync", mask, x);
}
template <typename T> static inline T __reduce_max_sync(unsigned mask, T x)
{
    return reduce<T, max<T>>("__reduce_max_sync", mask, x);
}
template <typename T> static inline T __reduce_and_sync(unsigned mask, T x)
{
    return reduce<T, fold_and<T>>("__reduce_and_sync", mask, x);
}
template <typename T> static inline T __reduce_or_sync(unsigned mask, T x)
{
    return reduce<T, fold_or<T>>("__reduce_or_sync", mask, x);
}
template <typename T> static inline T __reduce_xor_sync(unsigned mask, T x)
{
    return reduce<T, fold_xor<T>>("__reduce_xor_sync", mask, x);
}

#endif
