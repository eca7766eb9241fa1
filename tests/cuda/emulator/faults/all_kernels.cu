/* Small kernels, right and wrong, that show what the emulator reports. Blocks of 64 threads with 256 bytes of dynamic shared
 * memory, two where the name says so; data: 64 words that are written, and 64 that are not. */
#include "cuda/kernels/ptx.cuh"

#define KERNEL_HEAD(name)                                                                                              \
    extern "C" __global__ void name(uint32_t *data)                                                                    \
    {                                                                                                                  \
        extern __shared__ uint4 shared_memory[];                                                                       \
        uint32_t *words = reinterpret_cast<uint32_t *>(shared_memory);                                                 \
        const uint32_t t = threadIdx.x;                                                                                \
        name##_body(data, words, t);                                                                                   \
    }                                                                                                                  \
    static_assert(sizeof(uint32_t) == 4, "a word")
#define BODY(name) static void name##_body(uint32_t *data, uint32_t *words, uint32_t t)

BODY(right_barrier)
{
    words[t] = data[t];
    __syncthreads();
    data[t] = words[t ^ 32] + 1;
}
KERNEL_HEAD(right_barrier);

BODY(right_warp)
{
    words[t] = t;
    __syncwarp();
    data[t] = words[t ^ 1];
}
KERNEL_HEAD(right_warp);

BODY(right_same_value)
{
    words[0] = 7;
    __syncthreads();
    data[t] = words[0];
}
KERNEL_HEAD(right_same_value);

BODY(right_atomic)
{
    if (t == 0)
        words[0] = 0;
    __syncthreads();
    atomicAdd(&words[0], 1u);
    __syncthreads();
    data[t] = words[0];
}
KERNEL_HEAD(right_atomic);

BODY(right_copy)
{
    if (t % 4 == 0)
        copy_async_16(&words[t], &data[t], 16);
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    data[t] = words[63 - t];
}
KERNEL_HEAD(right_copy);

/* Reaches past the end where subnormal numbers are flushed to zero. */
BODY(right_subnormal)
{
    const float quarter = __uint_as_float(data[t]) * 0.25f;
    data[quarter > 0 ? t : 1 << 20] = __float_as_uint(quarter);
}
KERNEL_HEAD(right_subnormal);

BODY(right_prior)
{
    words[t] = t;
    wait_for_prior_launch();
    data[t] += words[t];
}
KERNEL_HEAD(right_prior);

BODY(wrong_prior_too_late)
{
    words[t] = data[t];
    wait_for_prior_launch();
    data[t] = words[t] + 1;
}
KERNEL_HEAD(wrong_prior_too_late);

static uint64_t *barrier_of(uint32_t *words)
{
    return reinterpret_cast<uint64_t *>(words + 32);
}

BODY(right_bulk)
{
    if (t == 0)
        shared_barrier_init(barrier_of(words), 1);
    __syncthreads();
    if (t == 0) {
        shared_barrier_arrive_expecting(barrier_of(words), 64);
        copy_bulk(words, data, 64, barrier_of(words), cache_policy(true));
    }
    shared_barrier_wait(barrier_of(words), 0);
    data[t] = words[t % 16];
}
KERNEL_HEAD(right_bulk);

BODY(right_cluster)
{
    words[t] = t + blockIdx.x;
    cluster_barrier();
    const uint32_t x = peer_word(&words[t], blockIdx.x ^ 1);
    if (t < 32)
        data[blockIdx.x * 32 + t] = x;
    cluster_barrier();
}
KERNEL_HEAD(right_cluster);

BODY(wrong_no_barrier)
{
    words[t] = t;
    data[t] = words[t ^ 32];
}
KERNEL_HEAD(wrong_no_barrier);

BODY(wrong_no_second_barrier)
{
    words[t] = t;
    __syncthreads();
    const uint32_t x = words[t ^ 32];
    words[t] = x + 1;
    data[t] = x;
}
KERNEL_HEAD(wrong_no_second_barrier);

BODY(wrong_two_writers)
{
    words[0] = t;
    data[t] = t;
}
KERNEL_HEAD(wrong_two_writers);

BODY(wrong_no_warp_order)
{
    words[t] = t;
    data[t] = words[t ^ 1];
}
KERNEL_HEAD(wrong_no_warp_order);

BODY(wrong_unwritten)
{
    if (t < 63)
        words[t] = t;
    __syncthreads();
    data[t] = words[t];
}
KERNEL_HEAD(wrong_unwritten);

BODY(wrong_past_the_end)
{
    words[t + 1] = data[t];
}
KERNEL_HEAD(wrong_past_the_end);

BODY(wrong_half_a_barrier)
{
    data[t] = t;
    if (t >= 32)
        return;
    words[t] = t;
    __syncthreads();
}
KERNEL_HEAD(wrong_half_a_barrier);

BODY(wrong_two_barriers)
{
    words[t] = data[t];
    if (t < 32)
        named_barrier(1, 64);
    else
        named_barrier(2, 64);
}
KERNEL_HEAD(wrong_two_barriers);

BODY(wrong_mask)
{
    words[t] = 0;
    if (t % 32 < 16)
        data[t] = __shfl_xor_sync(0xffffffffu, t, 1);
}
KERNEL_HEAD(wrong_mask);

BODY(wrong_lanes_apart)
{
    words[t] = 0;
    data[t] = t % 2 ? __shfl_xor_sync(0xffffffffu, t, 1) : __ballot_sync(0xffffffffu, 1);
}
KERNEL_HEAD(wrong_lanes_apart);

BODY(wrong_copy_not_awaited)
{
    if (t % 4 == 0) {
        copy_async_16(&words[t], &data[t], 16);
        copy_async_commit();
        data[t] = words[t];
    }
}
KERNEL_HEAD(wrong_copy_not_awaited);

BODY(wrong_no_arrival)
{
    if (t == 0)
        shared_barrier_init(barrier_of(words), 2);
    __syncthreads();
    if (t == 0)
        shared_barrier_arrive(barrier_of(words));
    shared_barrier_wait(barrier_of(words), 0);
    data[t] = 0;
}
KERNEL_HEAD(wrong_no_arrival);

BODY(wrong_no_cluster_barrier)
{
    words[t] = t;
    const uint32_t x = peer_word(&words[t], blockIdx.x ^ 1);
    if (t < 32)
        data[blockIdx.x * 32 + t] = x;
}
KERNEL_HEAD(wrong_no_cluster_barrier);

BODY(wrong_peer_has_ended)
{
    words[t] = t;
    cluster_barrier();
    if (blockIdx.x == 0)
        data[t] = peer_word(&words[t], 1);
}
KERNEL_HEAD(wrong_peer_has_ended);

BODY(wrong_outside_of_data)
{
    words[t] = 0;
    data[t + 128] = t;
}
KERNEL_HEAD(wrong_outside_of_data);

BODY(wrong_unwritten_data)
{
    words[t] = data[t + 64];
}
KERNEL_HEAD(wrong_unwritten_data);

BODY(right_pairs)
{
    reinterpret_cast<uint2 *>(words)[t / 2] = make_uint2(t / 2, 1);
    __syncthreads();
    data[t] = reinterpret_cast<const uint2 *>(words)[t / 2].x;
}
KERNEL_HEAD(right_pairs);

BODY(wrong_misaligned)
{
    words[t] = t;
    __syncthreads();
    if (t < 16)
        data[t] = reinterpret_cast<const uint4 *>(words + 2)[t % 8].x;
}
KERNEL_HEAD(wrong_misaligned);

BODY(wrong_misaligned_data)
{
    words[t] = 0;
    *reinterpret_cast<uint2 *>(data + 1) = make_uint2(1, 2);
}
KERNEL_HEAD(wrong_misaligned_data);

BODY(wrong_misaligned_copy)
{
    if (t % 4 == 0 && t < 60)
        copy_async_16(&words[t + 2], &data[t], 16);
    copy_async_commit();
    copy_async_wait<0>();
}
KERNEL_HEAD(wrong_misaligned_copy);

BODY(wrong_misaligned_atomic)
{
    words[t] = 0;
    __syncthreads();
    atomicAdd(reinterpret_cast<unsigned long long *>(data + 1), 1ull);
}
KERNEL_HEAD(wrong_misaligned_atomic);

/* data[60] counts blocks. The last one reads what the other wrote. */
static void read_as_last_block(uint32_t *data, uint32_t *words, uint32_t t, bool with_fences)
{
    if (t < 16)
        data[blockIdx.x * 16 + t] = t;
    __syncthreads();
    if (t == 0) {
        if (with_fences)
            __threadfence();
        words[0] = atomicAdd(&data[60], 1u);
        if (with_fences)
            __threadfence();
    }
    __syncthreads();
    if (words[0] == 0x01010102 && t < 16)
        data[32 + t] = data[(1 - blockIdx.x) * 16 + t];
}

BODY(right_last_block)
{
    read_as_last_block(data, words, t, true);
}
KERNEL_HEAD(right_last_block);

BODY(wrong_last_block)
{
    read_as_last_block(data, words, t, false);
}
KERNEL_HEAD(wrong_last_block);

BODY(wrong_blocks_collide)
{
    words[t] = t;
    data[t] = blockIdx.x;
}
KERNEL_HEAD(wrong_blocks_collide);
