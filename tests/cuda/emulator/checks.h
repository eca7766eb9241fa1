/* What the checked emulator knows of memory: which bytes of shared memory are written, by whom, and what the barriers
 * order; which bytes of device memory exist and are written. Order is kept for warps, so that a race within a warp is
 * found only when no __syncwarp or barrier lies between, and one that another lane's barrier hides is not found.
 *
 * Threads are numbered through the cluster, each block from a multiple of 32 on. */
#ifndef CHECKS_H
#define CHECKS_H

#include <stddef.h>
#include <stdint.h>

#include <vector>

/* What memory holds that nobody wrote, by its address: NaNs of any width, and no likely integers. */
static inline uint8_t checks_poison(uintptr_t address)
{
    return address % 2 ? 0xff : 0xf1;
}
void checks_fill_poison(void *memory, size_t n_bytes);

enum checked_access { CHECKED_READ, CHECKED_WRITE, CHECKED_ATOMIC };

/* For each warp of the cluster, what has happened there up to this epoch. */
typedef std::vector<uint32_t> checked_clock;

/* A new launch: what earlier ones did is over. */
void checks_open_launch();
/* A new cluster: nothing of shared memory is written. window_bytes: of a block's shared memory, static and dynamic. */
void checks_open_cluster(uint32_t n_blocks, uint32_t threads_per_block, size_t window_bytes);

/* A thread is about to access n bytes at an offset in a block's shared memory, which is at `memory` now. What is wrong
 * is printed; code is where the access is. */
void checks_shared(uint32_t thread, uint32_t rank, size_t offset, uint32_t n, checked_access access, const void *memory,
                   const void *code);
/* The same for an asynchronous copy that writes, from its start on, until checks_copied(). */
void checks_copying(uint32_t thread, uint32_t rank, size_t offset, uint32_t n, const void *code);
void checks_copied(uint32_t thread, uint32_t rank, size_t offset, uint32_t n);
/* The last write is done: writes of the value that was there are no races. */
void checks_settle();

/* A __syncwarp; and any warp-wide operation, whose lanes have the values that they read before. */
void checks_warp(uint32_t warp);
void checks_exchange(uint32_t warp);
void checks_release(uint32_t warp, checked_clock &clock);
void checks_acquire(uint32_t warp, const checked_clock &clock);

/* Device memory. A fence of a thread orders what its atomic operations before have seen, and what those after tell
 * others. */
void checks_fence(uint32_t thread);
void checks_allocated(const void *memory, size_t n_bytes);
void checks_freed(const void *memory);
void checks_written(const void *memory, size_t n_bytes);
/* False if it lies outside, and would do harm. */
bool checks_global(uint32_t thread, const void *memory, uint32_t n, checked_access access, const void *code);

/* Faults since the last call. */
uint32_t checks_take_faults();

/* Printed before each message: which kernel, block and thread. */
void emulator_print_place();
/* Whether an address is in this library: constants of kernels. */
bool emulator_is_own(const void *p);
/* The name and address of code, as addr2line takes them. */
void emulator_print_code(const void *code);

#endif
