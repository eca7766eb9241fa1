/* Threads that share the tasks of one fork at a time. */
#ifndef DSRI_POOL_H
#define DSRI_POOL_H

#include "core/context_internal.h"

typedef struct dsri_pool dsri_pool;

/* Starts n_threads - 1 threads (n_threads is at least 2); the caller of dsri_pool_run is worker 0. An idle thread spins
 * for spin_microseconds before it sleeps, and not at all where the pool has more threads than the process has CPUs. The
 * context's allocator gives the memory. DSR_ERR_OUT_OF_MEMORY, DSR_ERR_THREAD. */
dsr_status dsri_pool_create(dsr_context *context, uint32_t n_threads, uint32_t spin_microseconds, dsri_pool **pool);
/* After a fork the child has no threads to stop. Takes null. */
void dsri_pool_destroy(dsri_pool *pool, int is_forked);
/* Calls body once for every task, in any order, and returns when all calls have returned. Worker w begins with the w-th
 * part of the tasks, in order. */
void dsri_pool_run(dsri_pool *pool, uint32_t n_tasks, dsr_task_fn body, void *body_context);

#endif
