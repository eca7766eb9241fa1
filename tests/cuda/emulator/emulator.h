/* Runs device code that was compiled for the host: every thread of a block is a fiber of one host thread, the blocks of
 * a cluster are alive together, clusters run one after another. Barriers, warp-wide operations and copies under way are
 * known to the scheduler, so that code which waits for ever, or for threads that have returned, is reported.
 *
 * DSR_EMULATOR_SEED=N, N not 0: threads, blocks and asynchronous copies run in an order drawn from N. Without it,
 * threads run in the order of their numbers and copies take place when they are waited for. DSR_EMULATOR_COMPUTE=80:
 * the device says that its compute capability is 8.0, and not 9.0, and has as much shared memory as such a one. */
#ifndef EMULATOR_H
#define EMULATOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct emulated_kernel {
    const char *name;
    void (*call)(void **arguments); /* with the values that arguments points at */
    uint32_t n_arguments;
    const size_t *argument_bytes;
    uint32_t cluster[3];
    uint32_t max_threads;
} emulated_kernel;

/* Null if there is no kernel of this name. */
const emulated_kernel *emulator_find(const char *name);

typedef struct emulated_launch {
    const char *entry;
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t shared_bytes;
    int may_begin_early; /* before the launches that it depends on are done */
    void **arguments;
} emulated_launch;

/* Compute capability of the device, such as 90. */
int emulator_compute(void);

/* Allows an entry more than 48 KiB of dynamic shared memory, or more than 8 blocks a cluster. */
void emulator_allow_shared(const char *entry, uint32_t n_bytes);
void emulator_allow_cluster(const char *entry);

/* What the driver would answer: 0, 1 for a launch that no device takes, 719 for code that went wrong; the reason is on
 * stderr. A launch of an unknown entry does nothing. */
int emulator_run(const emulated_launch *launch);

/* Launches with dependencies and copies of their arguments. A node's handle is its number as a pointer, from 1 on. */
typedef struct emulated_graph emulated_graph;
emulated_graph *emulator_graph_create(void);
emulated_graph *emulator_graph_copy(const emulated_graph *graph);
void emulator_graph_destroy(emulated_graph *graph);
void emulator_graph_add(emulated_graph *graph, const emulated_launch *launch, void *const *depends_on, size_t n);
/* A dependency of a node that is there; is_early: `to` may begin before `from` is done. */
void emulator_graph_depend(emulated_graph *graph, const void *from, const void *to, int is_early);
void emulator_graph_update(emulated_graph *graph, const void *node, const emulated_launch *launch);
/* Runs the nodes in an order that their dependencies allow; stops at the first that fails. */
int emulator_graph_run(emulated_graph *graph);

/* Device memory that came, went, and was written by the driver. New memory is filled with NaNs. */
void emulator_allocated(void *memory, size_t n_bytes);
void emulator_freed(const void *memory);
void emulator_written(const void *memory, size_t n_bytes);

/* Whether this processor runs the code. */
int emulator_works_here(void);

/* Uniform below n; 0 without a seed. For orders that may vary. */
uint32_t emulator_draw(uint32_t n);

/* ---- for device code ---- */

/* What a warp-wide operation does once all its lanes are there: arguments[i] is what lane i handed over, null for lanes
 * out of the mask. */
typedef void emulator_warp_operation(void *const arguments[32], uint32_t mask);

void emulator_warp(const char *name, emulator_warp_operation *operation, uint32_t mask, void *argument);
/* Waits for n_threads threads at a barrier, 0 for the whole block, and gives the sum of their values. */
uint32_t emulator_barrier(uint32_t id, uint32_t n_threads, uint32_t value);
/* A relaxed arrival says nothing of memory. */
void emulator_cluster_arrive(int is_relaxed);
void emulator_cluster_wait(void);
uint32_t emulator_cluster_rank(void);

/* Within a warp-wide operation: what its lanes did before is seen by all of them after. */
void emulator_order_warp(void);

/* Orders memory between this thread and others of the device. */
void emulator_fence(void);

/* Shared memory by the 32-bit addresses of PTX: bits 24 and up are a block of the cluster and a flag. */
uint32_t emulator_shared_address(const void *p);
/* n_bytes of this block's shared memory, to read. */
void *emulator_shared(uint32_t address, uint32_t n_bytes);
uint32_t emulator_peer_address(uint32_t address, uint32_t rank);
/* Reads n_bytes of a block of the cluster. */
void emulator_read_peer(uint32_t address, void *to, uint32_t n_bytes);

/* Copies of a thread that finish at a wait, or at an arrival that they make; n_zeros bytes of zeros follow the n_bytes.
 */
void emulator_copy_async(void *to, const void *from, uint32_t n_bytes, uint32_t n_zeros);
void emulator_copy_commit(void);
void emulator_copy_wait(uint32_t n_groups);
void emulator_copy_arrive(uint32_t barrier);

/* Barriers in shared memory, by their address; arrivals may be at a barrier of another block of the cluster. */
void emulator_mbarrier_init(uint32_t barrier, uint32_t n);
void emulator_mbarrier_arrive(uint32_t barrier, uint32_t n_expected_bytes);
void emulator_mbarrier_wait(uint32_t barrier, uint32_t parity);
/* Writes to a block of the cluster, and arrives at a barrier of that block with the bytes. */
void emulator_send(uint32_t to, const void *from, uint32_t n_bytes, uint32_t barrier);
/* The copy engine's; arrives at the barrier of the same block with its bytes. */
void emulator_copy_bulk(void *to, const void *from, uint32_t n_bytes, uint32_t barrier);

/* Around a change of memory that other threads may make at the same time. */
void emulator_atomic(const void *p, uint32_t n_bytes);
void emulator_atomic_done(void);

/* Device memory before this call is a fault, and so is device memory without it in a launch that may begin early. */
void emulator_wait_for_prior_launch(void);

/* Lets other threads run: for loops that wait for a change of memory. */
void emulator_yield(void);

/* Ends the launch with a message. */
__attribute__((noreturn, format(printf, 1, 2))) void emulator_fail(const char *format, ...);

#ifdef __cplusplus
}
#endif

#endif
