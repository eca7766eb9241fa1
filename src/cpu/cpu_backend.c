/* The CPU back end: runs the waves of an encoder phase by phase, each as one fork over the tasks of all commands. */
#define _DEFAULT_SOURCE /* madvise */
#include "core/backend.h"
#include "core/custom_plan.h"
#include "cpu/cpu_features.h"
#include "cpu/fp_mode.h"
#include "cpu/kernel_table.h"
#include "cpu/pool.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE_BYTES = 4096, DEFAULT_SPIN_MICROSECONDS = 50, HUGE_PAGE_BUFFER_BYTES = 8 << 20 };

_Static_assert((int)DSRI_MAX_PHASES <= (int)DSRI_MAX_LAUNCHES, "every phase is a launch");

/* Where a worker last found a task's command. Workers mostly take rising tasks, so the next one is here or further on.
 */
typedef struct task_cursor {
    _Alignas(64) uint64_t fork_serial;
    const dsri_command *command;
    uint32_t first_task; /* of the command, in the fork */
} task_cursor;

typedef struct cpu_device {
    dsr_context *context;
    dsri_candidates candidates[DSRI_N_OPS];
    uint32_t n_threads;
    dsri_worker_memory *memory; /* one per thread */
    task_cursor *cursors;       /* likewise */
    dsri_pool *pool;            /* null: the caller alone, or the host's runner */
    dsr_parallel_fn parallel;
    void *parallel_user;
    uint64_t fork_serial;
} cpu_device;

/* ---- a caller's kernel as one of ours ---- */

static uint32_t custom_n_tasks(const void *plan, uint32_t phase)
{
    (void)phase;
    return ((const dsri_custom_plan *)plan)->n_tasks;
}

static void custom_run(const void *plan, uint32_t phase, uint32_t task, void *scratch)
{
    const dsri_custom_plan *custom = plan;
    (void)phase;
    (void)scratch;
    custom->kernel->run(custom->kernel->user, task, custom->n_tasks, custom->views, custom->params);
}

static const dsri_cpu_kernel custom_kernel = {
    .op = DSRI_OP_CUSTOM, .isa = DSR_ISA_SCALAR, .n_phases = 1, .n_tasks = custom_n_tasks, .run = custom_run};

/* ---- opening and closing ---- */

static uint32_t device_count(void)
{
    return 1;
}

static dsr_status choose_isa(dsr_context *context, dsr_isa wanted)
{
    const uint32_t features = dsri_cpu_features();
    if (wanted == DSR_ISA_AUTO) {
        context->isa = dsri_best_isa(features, dsri_built_isas());
        return DSR_OK;
    }
    if (!(dsri_built_isas() >> wanted & 1))
        return dsri_fail(context, DSR_ERR_UNSUPPORTED_ISA, "context: instruction set %s is not in this build",
                         dsr_isa_name(wanted));
    if (!dsr_isa_available(wanted))
        return dsri_fail(context, DSR_ERR_UNSUPPORTED_ISA, "context: this machine cannot run instruction set %s",
                         dsr_isa_name(wanted));
    context->isa = wanted;
    return DSR_OK;
}

/* Features that kernels of this context may use beyond their instruction set's own. */
static dsr_status find_usable_features(dsr_context *context, uint32_t *usable)
{
    const uint32_t tiles = DSRI_CPU_AMX_BF16 | DSRI_CPU_AMX_INT8;
    const char *unknown;
    uint32_t features = dsri_without_features(dsri_cpu_features(), getenv("DSR_WITHOUT"), &unknown);
    if (unknown != NULL)
        return dsri_fail(context, DSR_ERR_VALUE,
                         "context: the environment's DSR_WITHOUT names \"%.*s\", known are avx512_bf16, amx_bf16, "
                         "avx512_vnni and amx_int8, with commas in between",
                         (int)strcspn(unknown, ","), unknown);
    if (context->isa != DSR_ISA_AVX512)
        features &= ~tiles;
    if (context->exactness != DSR_EXACT_ROW)
        features &= ~(uint32_t)DSRI_CPU_AMX_BF16;
    if (features & tiles && !dsri_ask_for_tiles())
        features &= ~tiles;
    *usable = features;
    return DSR_OK;
}

static void close_device(void *device, int is_forked)
{
    cpu_device *cpu = device;
    const dsr_allocator *allocator = &cpu->context->allocator;
    dsri_pool_destroy(cpu->pool, is_forked);
    dsri_release(allocator, cpu->cursors, cpu->n_threads * sizeof *cpu->cursors);
    dsri_release(allocator, cpu->memory, cpu->n_threads * sizeof *cpu->memory);
    dsri_release(allocator, cpu, sizeof *cpu);
}

static dsr_status allocate_workers(cpu_device *cpu)
{
    const dsr_allocator *allocator = &cpu->context->allocator;
    const size_t memory_bytes = cpu->n_threads * sizeof *cpu->memory;
    cpu->memory = dsri_allocate(allocator, memory_bytes, PAGE_BYTES);
    cpu->cursors = dsri_allocate(allocator, cpu->n_threads * sizeof *cpu->cursors, _Alignof(task_cursor));
    if (!cpu->memory || !cpu->cursors)
        return dsri_fail(cpu->context, DSR_ERR_OUT_OF_MEMORY, "context: %zu bytes of scratch could not be allocated",
                         memory_bytes);
    memset(cpu->cursors, 0, cpu->n_threads * sizeof *cpu->cursors);
    return DSR_OK;
}

static dsr_status open_device(dsr_context *context, const dsr_context_desc *desc, void **device)
{
    uint32_t features = 0;
    dsr_status status = choose_isa(context, desc->isa);
    if (status == DSR_OK)
        status = find_usable_features(context, &features);
    if (status != DSR_OK)
        return status;
    if (desc->device_index != 0)
        return dsri_fail(context, DSR_ERR_UNSUPPORTED_DEVICE, "context: device_index is %u, the CPU is 0",
                         desc->device_index);
    cpu_device *cpu = dsri_allocate(&context->allocator, sizeof *cpu, _Alignof(cpu_device));
    if (!cpu)
        return dsri_fail(context, DSR_ERR_OUT_OF_MEMORY, "context: %zu bytes could not be allocated", sizeof *cpu);
    context->n_threads = desc->n_threads ? desc->n_threads : 1;
    *cpu = (cpu_device){.context = context,
                        .n_threads = context->n_threads,
                        .parallel = desc->parallel,
                        .parallel_user = desc->parallel_user};
    for (int op = 0; op < DSRI_N_OPS; op++)
        cpu->candidates[op] = dsri_find_candidates((dsri_op)op, context->isa, context->exactness, features);
    status = allocate_workers(cpu);
    if (status == DSR_OK && !cpu->parallel && cpu->n_threads > 1)
        status =
            dsri_pool_create(context, cpu->n_threads,
                             desc->spin_microseconds ? desc->spin_microseconds : DEFAULT_SPIN_MICROSECONDS, &cpu->pool);
    if (status != DSR_OK) {
        close_device(cpu, 0);
        return status;
    }
    *device = cpu;
    return DSR_OK;
}

/* ---- memory ---- */

/* Caches and weights are read as long streams: huge pages spare most of the address translation. A wish, before the
 * first touch; the system may ignore it. */
static void ask_for_huge_pages(void *memory, size_t size_bytes)
{
#ifdef MADV_HUGEPAGE
    const size_t before = (PAGE_BYTES - (uintptr_t)memory % PAGE_BYTES) % PAGE_BYTES;
    if (size_bytes >= HUGE_PAGE_BUFFER_BYTES)
        (void)madvise((unsigned char *)memory + before, (size_bytes - before) / PAGE_BYTES * PAGE_BYTES, MADV_HUGEPAGE);
#else
    (void)memory;
    (void)size_bytes;
#endif
}

static dsr_status memory_allocate(void *device, size_t size_bytes, void **memory)
{
    const cpu_device *cpu = device;
    void *allocated = dsri_allocate(&cpu->context->allocator, size_bytes, 64);
    if (!allocated)
        return dsri_fail(cpu->context, DSR_ERR_OUT_OF_MEMORY, "buffer: %zu bytes could not be allocated", size_bytes);
    ask_for_huge_pages(allocated, size_bytes);
    memset(allocated, 0, size_bytes);
    *memory = allocated;
    return DSR_OK;
}

static void memory_release(void *device, void *memory, size_t size_bytes, int is_forked)
{
    const cpu_device *cpu = device;
    (void)is_forked;
    dsri_release(&cpu->context->allocator, memory, size_bytes);
}

static dsr_status memory_copy(void *device, void *destination, const void *source, size_t size_bytes)
{
    (void)device;
    memmove(destination, source, size_bytes);
    return DSR_OK;
}

/* ---- kernels ---- */

static const char *kernel_name(void *device, uint32_t index)
{
    const cpu_device *cpu = device;
    for (int op = 0; op < DSRI_N_OPS; op++) {
        for (const dsri_cpu_kernel *const *kernel = cpu->candidates[op].kernels; *kernel; kernel++) {
            if (index < (*kernel)->n_phases)
                return (*kernel)->phase_names[index];
            index -= (*kernel)->n_phases;
        }
    }
    return NULL;
}

static const dsri_cpu_kernel *choose_kernel(const cpu_device *cpu, const dsri_command *command)
{
    for (const dsri_cpu_kernel *const *kernel = cpu->candidates[command->op].kernels; *kernel; kernel++)
        if (!(*kernel)->accepts || (*kernel)->accepts(command->plan))
            return *kernel;
    return NULL;
}

static dsr_status prepare(void *device, void *encoder_state, dsri_command *command)
{
    const cpu_device *cpu = device;
    const int is_custom = command->op == DSRI_OP_CUSTOM;
    const dsri_cpu_kernel *kernel = is_custom ? &custom_kernel : choose_kernel(cpu, command);
    (void)encoder_state;
    if (!kernel)
        return dsri_fail(cpu->context, DSR_ERR_UNSUPPORTED_KERNEL, "%s: this build has no CPU kernel for it",
                         dsri_op_name(command->op));
    command->kernel = kernel;
    command->kernel_names =
        is_custom ? ((const dsri_custom_plan *)command->plan)->kernel->names : (const char *const *)kernel->phase_names;
    command->n_launches = kernel->n_phases;
    for (uint32_t phase = 0; phase < kernel->n_phases; phase++)
        command->grid[phase] = kernel->n_tasks(command->plan, phase);
    return DSR_OK;
}

/* ---- running ---- */

static void run_task(const cpu_device *cpu, const dsri_command *command, uint32_t phase, uint32_t task, uint32_t worker)
{
    const dsri_cpu_kernel *kernel = command->kernel;
    const dsri_fp_mode mode = dsri_fp_mode_enter();
    kernel->run(command->plan, phase, task, cpu->memory[worker].scratch);
    dsri_fp_mode_leave(mode);
}

/* One phase of one wave. */
typedef struct phase_fork {
    const cpu_device *cpu;
    const dsri_wave *wave;
    uint64_t serial;
    uint32_t phase;
    uint32_t n_tasks;
    atomic_uint_least32_t n_run; /* counted for the host's runner only */
} phase_fork;

static uint32_t tasks_of(const dsri_command *command, uint32_t phase)
{
    return phase < command->n_launches ? command->grid[phase] : 0;
}

/* Runs task number `task` of the fork: tasks are numbered through the wave's commands. */
static void run_numbered_task(void *context, uint32_t task, uint32_t worker)
{
    const phase_fork *fork = context;
    task_cursor *cursor = &fork->cpu->cursors[worker];
    if (cursor->fork_serial != fork->serial)
        fork->cpu->memory[worker].kept.owner = NULL;
    if (cursor->fork_serial != fork->serial || task < cursor->first_task)
        *cursor = (task_cursor){.fork_serial = fork->serial, .command = fork->wave->first};
    while (task - cursor->first_task >= tasks_of(cursor->command, fork->phase)) {
        cursor->first_task += tasks_of(cursor->command, fork->phase);
        cursor->command = cursor->command->next_in_wave;
    }
    run_task(fork->cpu, cursor->command, fork->phase, task - cursor->first_task, worker);
}

static void run_hosted_task(void *context, uint32_t task, uint32_t worker)
{
    phase_fork *fork = context;
    if (task >= fork->n_tasks || worker >= fork->cpu->n_threads)
        return;
    run_numbered_task(fork, task, worker);
    atomic_fetch_add_explicit(&fork->n_run, 1, memory_order_relaxed);
}

static dsr_status run_on_host_threads(const cpu_device *cpu, phase_fork *fork)
{
    cpu->parallel(cpu->parallel_user, fork->n_tasks, run_hosted_task, fork);
    const uint32_t n_run = atomic_load(&fork->n_run);
    if (n_run != fork->n_tasks)
        return dsri_fail(cpu->context, DSR_ERR_STATE,
                         "encoder: the host's runner called %u of %u tasks with a task and worker in range", n_run,
                         fork->n_tasks);
    return DSR_OK;
}

static dsr_status run_phase(cpu_device *cpu, const dsri_wave *wave, uint32_t phase)
{
    uint64_t n_tasks = 0;
    for (const dsri_command *command = wave->first; command; command = command->next_in_wave)
        n_tasks += tasks_of(command, phase);
    if (n_tasks > UINT32_MAX)
        return dsri_fail(cpu->context, DSR_ERR_OVERFLOW,
                         "encoder: %llu tasks may run side by side, at most 2^32 - 1 can", (unsigned long long)n_tasks);
    if (n_tasks == 0)
        return DSR_OK;
    phase_fork fork = {
        .cpu = cpu, .wave = wave, .serial = ++cpu->fork_serial, .phase = phase, .n_tasks = (uint32_t)n_tasks};
    if (cpu->parallel)
        return run_on_host_threads(cpu, &fork);
    dsri_pool_run(cpu->pool, fork.n_tasks, run_numbered_task, &fork);
    return DSR_OK;
}

static void run_wave_alone(const cpu_device *cpu, const dsri_wave *wave)
{
    for (const dsri_command *command = wave->first; command; command = command->next_in_wave)
        for (uint32_t phase = 0; phase < command->n_launches; phase++) {
            cpu->memory[0].kept.owner = NULL;
            for (uint32_t task = 0; task < command->grid[phase]; task++)
                run_task(cpu, command, phase, task, 0);
        }
}

static uint32_t count_phases(const dsri_wave *wave)
{
    uint32_t n = 0;
    for (const dsri_command *command = wave->first; command; command = command->next_in_wave)
        if (command->n_launches > n)
            n = command->n_launches;
    return n;
}

static dsr_status submit(void *device, void *encoder_state, const dsri_wave *waves, uint32_t n_waves)
{
    cpu_device *cpu = device;
    dsr_status status = DSR_OK;
    (void)encoder_state;
    for (uint32_t w = 0; w < n_waves && status == DSR_OK; w++) {
        if (!cpu->pool && !cpu->parallel) {
            run_wave_alone(cpu, &waves[w]);
            continue;
        }
        const uint32_t n_phases = count_phases(&waves[w]);
        for (uint32_t phase = 0; phase < n_phases && status == DSR_OK; phase++)
            status = run_phase(cpu, &waves[w], phase);
    }
    return status;
}

extern const dsri_backend dsri_cpu_backend;
const dsri_backend dsri_cpu_backend = {
    .kind = DSR_DEVICE_CPU,
    .name = "cpu",
    .device_count = device_count,
    .open = open_device,
    .close = close_device,
    .memory_allocate = memory_allocate,
    .memory_release = memory_release,
    .memory_write = memory_copy,
    .memory_read = memory_copy,
    .kernel_name = kernel_name,
    .takes_host_kernels = 1,
    .prepare = prepare,
    .submit = submit,
};
