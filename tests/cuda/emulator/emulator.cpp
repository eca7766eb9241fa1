#include "checks.h"
#include "device.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <xmmintrin.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
alignas(1024) thread_local uint4 shared_memory[EMULATOR_SHARED_BYTES / 16];

namespace
{

enum { STACK_BYTES = 128 * 1024, MAX_FIBERS = 16 * 1024, STACK_MARK = 0x5a, MAX_BARRIERS = 16 };
constexpr unsigned DEFAULT_FP_MODE = 0x1f80; /* of MXCSR: round to nearest, subnormal numbers kept */
enum { PEER_FLAG = 1 << 30, PEER_SHIFT = 24, OFFSET_MASK = (1 << PEER_SHIFT) - 1 };

#ifdef EMULATOR_CHECKS
constexpr bool is_checked = true;
#else
constexpr bool is_checked = false;
#endif

/* Under way; an arrival of the thread's own where `from` is null. Bulk copies have their thread in n_zeros. */
struct async_copy {
    void *to;
    const void *from;
    uint32_t n_bytes, n_zeros;
    uint32_t barrier;
};

/* A barrier in shared memory. */
struct mbarrier {
    uint64_t phase : 1, n_expected : 12, n_missing : 12, is_made : 7;
    int64_t n_bytes_missing : 32;
};
static_assert(sizeof(mbarrier) == 8, "64 bits");
enum { MBARRIER_MARK = 0x35 };

struct block_state;

struct fiber {
    void *stack_pointer;
    uint8_t *stack;
    block_state *block;
    uint3 index;
    uint32_t number; /* in its block */
    bool has_ended, is_ready;
    bool has_waited, has_touched; /* for the launches before; device memory (checked) */
    const char *waits_for;        /* null while it runs or is ready */
    uint32_t mask;                /* of the lanes that a warp-wide operation waits for */
    emulator_warp_operation *operation;
    void *argument;
    uint32_t barrier_result;
    uint32_t cluster_phase;        /* arrivals of this thread */
    std::deque<async_copy> copies; /* of this thread, oldest first */
    uint64_t n_issued, n_finished; /* copies */
    std::deque<async_copy> unseen; /* checked: copies that no wait has covered; their numbers are in n_zeros' place */
    std::deque<uint64_t> groups;   /* n_issued when each was committed */
    uint64_t last_arrival;         /* n_issued when the last arrival was asked for */
    uint32_t waits_for_mbarrier, parity;
};

struct barrier_state {
    uint32_t n_expected, n_arrived, sum;
    std::vector<fiber *> waiting;
};

struct block_state {
    uint3 index;
    uint32_t rank, n_threads, n_live;
    fiber *fibers;
    barrier_state barriers[MAX_BARRIERS];
    std::vector<fiber *> mbarrier_waiting;
    std::vector<async_copy> bulk_copies; /* under way */
    std::vector<fiber *> ready;          /* a ring without a seed: next is at `head` */
    size_t head;
    std::vector<uint8_t> image; /* of shared memory while another block runs; empty before the first run */
};

struct launch_state {
    const emulated_kernel *kernel;
    void **arguments;
    uint32_t shared_bytes;
    std::vector<block_state> blocks; /* of the cluster */
    block_state *block;              /* whose shared memory is in place */
    fiber *current;
    void *scheduler; /* stack pointer of the host thread's own stack */
    uint32_t cluster_phase, n_cluster_arrived, n_cluster_live;
    std::vector<fiber *> cluster_waiting;
    checked_clock cluster_clock;
    std::map<uint64_t, checked_clock> mbarrier_clocks; /* by block and offset */
    const void *atomic;                                /* under change */
    uint64_t progress;                                 /* everything but yields */
    bool has_failed, may_begin_early;
    uintptr_t own_begin, own_end; /* this library */
    uint8_t *tls;                 /* the module's thread-local block: shared memory, static and dynamic */
    size_t tls_bytes, dynamic_offset;
};

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
launch_state launch;
uint64_t random_state;
bool is_seeded, is_seed_read;
uint8_t *stacks;
std::vector<fiber> *all_fibers;

/* ---- switching stacks ---- */

extern "C" void emulator_switch(void **from, void *to) __attribute__((visibility("hidden")));
asm(".text\n"
    ".globl emulator_switch\n"
    ".hidden emulator_switch\n"
    ".type emulator_switch, @function\n"
    "emulator_switch:\n"
    "    push %rbx\n"
    "    push %rbp\n"
    "    push %r12\n"
    "    push %r13\n"
    "    push %r14\n"
    "    push %r15\n"
    "    mov %rsp, (%rdi)\n"
    "    mov %rsi, %rsp\n"
    "    pop %r15\n"
    "    pop %r14\n"
    "    pop %r13\n"
    "    pop %r12\n"
    "    pop %rbp\n"
    "    pop %rbx\n"
    "    ret\n"
    ".size emulator_switch, . - emulator_switch\n");

void to_scheduler()
{
    if (is_checked)
        checks_settle();
    emulator_switch(&launch.current->stack_pointer, launch.scheduler);
}

/* ---- readiness ---- */

void make_ready(fiber *f)
{
    f->is_ready = true;
    f->waits_for = nullptr;
    f->block->ready.push_back(f);
    launch.progress++;
}

void wait_for(const char *what)
{
    launch.current->waits_for = what;
    launch.progress++;
    to_scheduler();
}

fiber *take_ready(block_state &block)
{
    std::vector<fiber *> &ready = block.ready;
    fiber *taken = nullptr;
    if (is_seeded && !ready.empty()) {
        fiber *&place = ready[emulator_draw((uint32_t)ready.size())];
        taken = place;
        place = ready.back();
        ready.pop_back();
    } else if (block.head < ready.size()) {
        taken = ready[block.head++];
        if (block.head == ready.size()) {
            ready.clear();
            block.head = 0;
        }
    }
    return taken;
}

bool has_ready(const block_state &block)
{
    return block.head < block.ready.size();
}

/* ---- checks ---- */

uint32_t checked_number(const fiber *f)
{
    return f->block->rank * ((f->block->n_threads + 31) / 32 * 32) + f->number;
}

uint32_t checked_warp(const fiber *f)
{
    return checked_number(f) / 32;
}

uint32_t rank_of(uint32_t address)
{
    return address & PEER_FLAG ? (address & ~(uint32_t)PEER_FLAG) >> PEER_SHIFT : launch.current->block->rank;
}

void join_clocks(const std::vector<fiber *> &threads)
{
    checked_clock all;
    uint32_t last = UINT32_MAX;
    for (const fiber *f : threads)
        if (checked_warp(f) != last)
            checks_release(last = checked_warp(f), all);
    last = UINT32_MAX;
    for (const fiber *f : threads)
        if (checked_warp(f) != last)
            checks_acquire(last = checked_warp(f), all);
}

void check_global(const void *p, uint32_t n, checked_access access, const void *code)
{
    if (launch.may_begin_early && !launch.current->has_waited && !emulator_is_own(p))
        emulator_fail("touches device memory and has not waited for the launches before");
    launch.current->has_touched |= !emulator_is_own(p);
    if (checks_global(checked_number(launch.current), p, n, access, code))
        return;
    launch.has_failed = true;
    to_scheduler();
}

void check_access(const void *p, uint32_t n, checked_access access, const void *code)
{
    if (launch.current == nullptr || p == launch.atomic)
        return;
    const uint8_t *at = static_cast<const uint8_t *>(p);
    if (at - stacks >= 0 && at - stacks < (ptrdiff_t)(MAX_FIBERS + 1) * STACK_BYTES)
        return;
    const size_t offset = (size_t)(at - launch.tls);
    if (offset >= launch.tls_bytes) {
        check_global(p, n, access, code);
        return;
    }
    const size_t dynamic = offset - launch.dynamic_offset;
    if (dynamic < EMULATOR_SHARED_BYTES && dynamic + n > launch.shared_bytes)
        emulator_fail("shared memory: %u bytes at %zu of %u are past the end", n, dynamic, launch.shared_bytes);
    checks_shared(checked_number(launch.current), launch.current->block->rank, offset, n, access, p, code);
}

/* ---- messages ---- */

void print_place(const fiber *f)
{
    const uint3 b = f->block->index, t = f->index;
    fprintf(stderr, "%s, block (%u, %u, %u), thread (%u, %u, %u): ", launch.kernel->name, b.x, b.y, b.z, t.x, t.y, t.z);
}

/* Groups of neighbouring threads that wait for the same. */
void print_waiting()
{
    for (const block_state &block : launch.blocks) {
        for (uint32_t first = 0; first < block.n_threads;) {
            const fiber &f = block.fibers[first];
            uint32_t end = first + 1;
            while (end < block.n_threads && block.fibers[end].waits_for == f.waits_for &&
                   block.fibers[end].has_ended == f.has_ended && block.fibers[end].mask == f.mask)
                end++;
            fprintf(stderr, "  block (%u, %u, %u) threads %u to %u: ", block.index.x, block.index.y, block.index.z,
                    first, end - 1);
            if (f.has_ended)
                fprintf(stderr, "returned\n");
            else if (f.operation != nullptr)
                fprintf(stderr, "at %s, mask %#x\n", f.waits_for, f.mask);
            else
                fprintf(stderr, "at %s\n", f.waits_for ? f.waits_for : "a loop that waits for memory");
            first = end;
        }
    }
}

/* ---- shared memory ---- */

int find_tls(struct dl_phdr_info *info, size_t, void *)
{
    const uintptr_t own = (uintptr_t)&launch;
    bool is_own = false;
    size_t bytes = 0;
    uintptr_t module_begin = UINTPTR_MAX, module_end = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) &header = info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + header.p_vaddr;
        if (header.p_type == PT_LOAD) {
            module_begin = std::min(module_begin, begin);
            module_end = std::max(module_end, begin + header.p_memsz);
        }
        is_own = is_own || (header.p_type == PT_LOAD && own >= begin && own - begin < header.p_memsz);
        bytes = header.p_type == PT_TLS ? header.p_memsz : bytes;
    }
    if (is_own) {
        launch.tls = static_cast<uint8_t *>(info->dlpi_tls_data);
        launch.tls_bytes = bytes;
        launch.own_begin = module_begin;
        launch.own_end = module_end;
    }
    return is_own;
}

/* Calls f(offset, bytes) for the parts of the TLS block that this launch may use. */
template <typename F> void for_shared_parts(F f)
{
    const size_t end = launch.dynamic_offset + EMULATOR_SHARED_BYTES;
    f((size_t)0, launch.dynamic_offset + launch.shared_bytes);
    f(end, launch.tls_bytes - end);
}

void put_in_place(block_state *block)
{
    if (launch.block == block)
        return;
    if (launch.block != nullptr) {
        std::vector<uint8_t> &image = launch.block->image;
        image.resize(launch.tls_bytes);
        for_shared_parts([&](size_t at, size_t n) { memcpy(image.data() + at, launch.tls + at, n); });
    }
    if (block->image.empty())
        for_shared_parts([&](size_t at, size_t n) { checks_fill_poison(launch.tls + at, n); });
    else
        for_shared_parts([&](size_t at, size_t n) { memcpy(launch.tls + at, block->image.data() + at, n); });
    launch.block = block;
    blockIdx = block->index;
}

bool is_untouched_past_the_end()
{
    const uint8_t *memory = launch.tls + launch.dynamic_offset;
    for (size_t i = launch.shared_bytes; i < EMULATOR_SHARED_BYTES; i++)
        if (memory[i] != checks_poison((uintptr_t)(memory + i)))
            return false;
    return true;
}

/* ---- threads ---- */

void release_barrier(barrier_state &barrier)
{
    if (is_checked) {
        barrier.waiting.push_back(launch.current);
        join_clocks(barrier.waiting);
        barrier.waiting.pop_back();
    }
    for (fiber *f : barrier.waiting) {
        f->barrier_result = barrier.sum;
        make_ready(f);
    }
    barrier.waiting.clear();
    barrier.n_arrived = barrier.sum = barrier.n_expected = 0;
}

void release_cluster_if_complete()
{
    if (launch.n_cluster_arrived < launch.n_cluster_live || launch.n_cluster_arrived == 0)
        return;
    launch.n_cluster_arrived = 0;
    launch.cluster_phase++;
    for (fiber *f : launch.cluster_waiting)
        make_ready(f);
    launch.cluster_waiting.clear();
}

void check_range(uint32_t offset, uint32_t n_bytes)
{
    const size_t begin = launch.dynamic_offset, end = begin + EMULATOR_SHARED_BYTES;
    const bool is_dynamic = offset >= begin && offset < end;
    if (offset + n_bytes > launch.tls_bytes || (is_dynamic && offset + n_bytes > begin + launch.shared_bytes))
        emulator_fail("shared memory: %u bytes at %lld of %u are past the end", n_bytes,
                      (long long)offset - (long long)begin, launch.shared_bytes);
}

/* Accesses of n bytes by one instruction are at multiples of n. */
void check_alignment(const char *what, uintptr_t address, uint32_t n_bytes)
{
    if (address % n_bytes != 0)
        emulator_fail("%s of %u bytes at %#zx: not aligned", what, n_bytes, (size_t)address);
}

void *peer_memory(uint32_t address, uint32_t n_bytes)
{
    const uint32_t offset = address & OFFSET_MASK, rank = (address & ~(uint32_t)PEER_FLAG) >> PEER_SHIFT;
    check_range(offset, n_bytes);
    if (!(address & PEER_FLAG))
        return launch.tls + offset;
    block_state &block = launch.blocks[rank];
    if (block.n_live == 0)
        emulator_fail("shared memory of block %u of the cluster, which has ended", rank);
    if (&block == launch.block)
        return launch.tls + offset;
    if (block.image.empty()) { /* it has not started */
        block.image.resize(launch.tls_bytes);
        checks_fill_poison(block.image.data(), launch.tls_bytes);
    }
    return block.image.data() + offset;
}

mbarrier &mbarrier_at(uint32_t address)
{
    mbarrier &barrier = *static_cast<mbarrier *>(peer_memory(address, 8));
    if (address % 8 != 0 || barrier.is_made != MBARRIER_MARK)
        emulator_fail("there is no mbarrier at %#x", address);
    return barrier;
}

block_state &block_of(uint32_t address)
{
    return address & PEER_FLAG ? launch.blocks[(address & ~(uint32_t)PEER_FLAG) >> PEER_SHIFT] : *launch.block;
}

void end_phase_if_complete(uint32_t address)
{
    mbarrier &barrier = mbarrier_at(address);
    if (barrier.n_missing != 0 || barrier.n_bytes_missing != 0)
        return;
    barrier.phase = !barrier.phase;
    barrier.n_missing = barrier.n_expected;
    std::vector<fiber *> &waiting = block_of(address).mbarrier_waiting;
    for (size_t i = 0; i < waiting.size();)
        if (waiting[i]->waits_for_mbarrier == (address & OFFSET_MASK) && waiting[i]->parity != barrier.phase) {
            make_ready(waiting[i]);
            waiting.erase(waiting.begin() + (ptrdiff_t)i);
        } else {
            i++;
        }
}

checked_clock &mbarrier_clock(uint32_t address)
{
    return launch.mbarrier_clocks[(uint64_t)block_of(address).rank << 32 | (address & OFFSET_MASK)];
}

/* By a thread, or by a copy of a thread's. */
void arrive(const fiber *f, uint32_t address, uint32_t n_expected_bytes)
{
    if (is_checked)
        checks_release(checked_warp(f), mbarrier_clock(address));
    mbarrier &barrier = mbarrier_at(address);
    if (barrier.n_missing == 0)
        emulator_fail("more arrivals at an mbarrier than its %u", (unsigned)barrier.n_expected);
    barrier.n_missing--;
    barrier.n_bytes_missing += n_expected_bytes;
    end_phase_if_complete(address);
}

void run_bulk_copy(block_state &block, size_t i)
{
    const async_copy c = block.bulk_copies[i];
    block.bulk_copies.erase(block.bulk_copies.begin() + (ptrdiff_t)i);
    memcpy(c.to, c.from, c.n_bytes);
    if (is_checked) {
        const fiber *issuer = &block.fibers[c.n_zeros];
        checks_copied(checked_number(issuer), block.rank, (size_t)(static_cast<uint8_t *>(c.to) - launch.tls),
                      c.n_bytes);
        checks_release(checked_warp(issuer), mbarrier_clock(c.barrier));
    }
    mbarrier_at(c.barrier).n_bytes_missing -= c.n_bytes;
    end_phase_if_complete(c.barrier);
}

/* Checked: a thread's copies before the one of this number are there for it to read. */
void see_copies(fiber *f, uint64_t end)
{
    while (!f->unseen.empty() && f->unseen.front().n_zeros < end) {
        const async_copy &c = f->unseen.front();
        const size_t offset = (size_t)(static_cast<uint8_t *>(c.to) - launch.tls);
        checks_copied(checked_number(f), f->block->rank, offset, c.n_bytes);
        f->unseen.pop_front();
    }
}

/* Finishes a thread's copies until n_finished is `end`. */
void run_copies(fiber *f, uint64_t end)
{
    while (f->n_finished < end) {
        const async_copy c = f->copies.front();
        f->copies.pop_front();
        f->n_finished++;
        if (c.from == nullptr) {
            if (is_checked)
                see_copies(f, f->n_finished);
            arrive(f, c.barrier, 0);
            continue;
        }
        memcpy(c.to, c.from, c.n_bytes);
        memset(static_cast<uint8_t *>(c.to) + c.n_bytes, 0, c.n_zeros);
    }
}

/* What is under way gets done when nothing else can be. */
void run_late_copies(block_state &block)
{
    while (!block.bulk_copies.empty())
        run_bulk_copy(block, 0);
    for (uint32_t t = 0; t < block.n_threads; t++)
        run_copies(&block.fibers[t], block.fibers[t].last_arrival);
}

void thread_main()
{
    fiber *f = launch.current;
    launch.kernel->call(launch.arguments);
    run_copies(f, f->n_issued);
    if (is_checked)
        see_copies(f, f->n_issued);
    for (size_t i = 0; i < 64; i++)
        if (f->stack[i] != STACK_MARK)
            emulator_fail("more than %d bytes of stack", (int)STACK_BYTES);
    f->has_ended = true;
    launch.progress++;
    f->block->n_live--;
    launch.n_cluster_live--;
    release_cluster_if_complete();
    to_scheduler();
    abort();
}

void open_fiber(fiber &f, block_state *block, uint32_t number)
{
    f.block = block;
    f.number = number;
    f.index.x = number % blockDim.x;
    f.index.y = number / blockDim.x % blockDim.y;
    f.index.z = number / blockDim.x / blockDim.y;
    f.has_ended = f.is_ready = f.has_waited = f.has_touched = false;
    f.waits_for = nullptr;
    f.operation = nullptr;
    f.mask = 0;
    f.cluster_phase = 0;
    f.copies.clear();
    f.unseen.clear();
    f.groups.clear();
    f.n_issued = f.n_finished = f.last_arrival = 0;
    memset(f.stack, STACK_MARK, 64);
    /* Stacks start at different places of a page, or they would all fall into the same lines of a cache. */
    void **top = reinterpret_cast<void **>(f.stack + STACK_BYTES - number % 61 * 320 / 16 * 16);
    *--top = nullptr;
    *--top = reinterpret_cast<void *>(thread_main);
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    f.stack_pointer = top;
}

void run_fiber(fiber *f)
{
    f->is_ready = false;
    launch.current = f;
    threadIdx = f->index;
    emulator_switch(&launch.scheduler, f->stack_pointer);
    launch.current = nullptr;
}

/* Runs a block until none of its threads is ready, or until they do nothing but yield. */
void run_block(block_state &block)
{
    put_in_place(&block);
    uint64_t progress = launch.progress;
    uint32_t n_idle = 0;
    while (!launch.has_failed && n_idle < 2 * block.n_threads) {
        if (is_seeded && !block.bulk_copies.empty() && emulator_draw(8) == 0)
            run_bulk_copy(block, emulator_draw((uint32_t)block.bulk_copies.size()));
        if (!has_ready(block))
            run_late_copies(block);
        fiber *f = take_ready(block);
        if (f == nullptr)
            return;
        run_fiber(f);
        n_idle = launch.progress == progress ? n_idle + 1 : 0;
        progress = launch.progress;
    }
}

bool run_cluster()
{
    const uint32_t n = (uint32_t)launch.blocks.size();
    uint32_t n_idle_rounds = 0;
    while (launch.n_cluster_live > 0 && !launch.has_failed) {
        const uint64_t progress = launch.progress;
        const uint32_t first = emulator_draw(n);
        bool is_any_ready = false;
        for (uint32_t i = 0; i < n && !launch.has_failed; i++)
            if (has_ready(launch.blocks[(first + i) % n])) {
                is_any_ready = true;
                run_block(launch.blocks[(first + i) % n]);
            }
        n_idle_rounds = launch.progress == progress ? n_idle_rounds + 1 : 0;
        if (launch.has_failed || (is_any_ready && n_idle_rounds < 100))
            continue;
        fprintf(stderr, "%s: the threads of a cluster wait for ever\n", launch.kernel->name);
        print_waiting();
        launch.has_failed = true;
    }
    return !launch.has_failed;
}

void open_cluster(const uint32_t first[3])
{
    const uint32_t *shape = launch.kernel->cluster;
    const uint32_t n_threads = blockDim.x * blockDim.y * blockDim.z, n_blocks = shape[0] * shape[1] * shape[2];
    launch.blocks.resize(n_blocks);
    launch.block = nullptr;
    launch.cluster_phase = launch.n_cluster_arrived = 0;
    launch.n_cluster_live = n_blocks * n_threads;
    launch.cluster_waiting.clear();
    launch.cluster_clock.clear();
    launch.mbarrier_clocks.clear();
    if (is_checked)
        checks_open_cluster(n_blocks, n_threads, launch.tls_bytes);
    for (uint32_t rank = 0; rank < n_blocks; rank++) {
        block_state &block = launch.blocks[rank];
        block.index.x = first[0] + rank % shape[0];
        block.index.y = first[1] + rank / shape[0] % shape[1];
        block.index.z = first[2] + rank / shape[0] / shape[1];
        block.rank = rank;
        block.n_threads = block.n_live = n_threads;
        block.fibers = all_fibers->data() + (size_t)rank * n_threads;
        block.ready.clear();
        block.head = 0;
        block.image.clear();
        block.mbarrier_waiting.clear();
        block.bulk_copies.clear();
        for (barrier_state &barrier : block.barriers) {
            barrier.n_expected = barrier.n_arrived = barrier.sum = 0;
            barrier.waiting.clear();
        }
        for (uint32_t t = 0; t < n_threads; t++) {
            open_fiber(block.fibers[t], &block, t);
            make_ready(&block.fibers[t]);
        }
    }
}

void read_seed()
{
    if (is_seed_read)
        return;
    const char *text = getenv("DSR_EMULATOR_SEED");
    random_state = text ? strtoull(text, nullptr, 0) : 0;
    is_seeded = random_state != 0;
    is_seed_read = true;
}

bool make_stacks(size_t n)
{
    if (stacks == nullptr) {
        void *memory = mmap(nullptr, (size_t)(MAX_FIBERS + 1) * STACK_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            return false;
        stacks = static_cast<uint8_t *>(memory);
        all_fibers = new std::vector<fiber>(MAX_FIBERS);
        for (size_t i = 0; i < MAX_FIBERS; i++)
            (*all_fibers)[i].stack = stacks + i * STACK_BYTES;
    }
    return n <= MAX_FIBERS;
}

struct allowance {
    uint32_t shared_bytes = 48 * 1024;
    bool is_large_cluster = false;
};
std::map<std::string, allowance> allowances;

/* What a device would not take; null if it takes it. */
const char *refusal(const emulated_kernel *kernel, const emulated_launch *wanted)
{
    const uint32_t *grid = wanted->grid, *block = wanted->block, *c = kernel->cluster;
    const uint64_t n_threads = (uint64_t)block[0] * block[1] * block[2];
    const uint32_t n_blocks = c[0] * c[1] * c[2];
    const allowance &allowed = allowances[kernel->name];
    if (n_threads == 0 || n_threads > 1024 || n_threads > kernel->max_threads)
        return "threads of a block";
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[0] > 0x7fffffffu || grid[1] > 65535 || grid[2] > 65535)
        return "grid";
    if (grid[0] % c[0] || grid[1] % c[1] || grid[2] % c[2])
        return "the grid is no multiple of the cluster";
    if (n_blocks > (allowed.is_large_cluster ? 16u : 8u))
        return "blocks of a cluster";
    if (wanted->shared_bytes > allowed.shared_bytes || wanted->shared_bytes > EMULATOR_SHARED_BYTES)
        return "dynamic shared memory";
    return make_stacks((size_t)n_threads * n_blocks) ? nullptr : "stacks";
}

/* The numbers below n, in order or shuffled. */
std::vector<uint32_t> order_of(uint64_t n)
{
    std::vector<uint32_t> order(n);
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = 0; is_seeded && i + 1 < n; i++)
        std::swap(order[i], order[i + emulator_draw((uint32_t)n - i)]);
    return order;
}

int run_grid(const uint32_t grid[3])
{
    const uint32_t *c = launch.kernel->cluster;
    const uint32_t n[3] = {grid[0] / c[0], grid[1] / c[1], grid[2] / c[2]};
    for (const uint32_t i : order_of((uint64_t)n[0] * n[1] * n[2])) {
        const uint32_t first[3] = {i % n[0] * c[0], i / n[0] % n[1] * c[1], i / n[0] / n[1] * c[2]};
        open_cluster(first);
        if (!run_cluster())
            return 719;
    }
    return 0;
}

/* Copies the arguments to memory that counts as the threads' own. */
void **place_arguments(const emulated_kernel *kernel, void *const *arguments)
{
    uint8_t *to = stacks + (size_t)MAX_FIBERS * STACK_BYTES;
    void **pointers = reinterpret_cast<void **>(to);
    to += 4096;
    for (uint32_t i = 0; i < kernel->n_arguments; i++) {
        pointers[i] = to;
        memcpy(to, arguments[i], kernel->argument_bytes[i]);
        to += (kernel->argument_bytes[i] + 63) / 64 * 64;
    }
    return pointers;
}

int run_launch(const emulated_kernel *kernel, const emulated_launch *wanted)
{
    shared_memory[0].x = 0; /* makes the TLS block */
    launch.kernel = kernel;
    launch.arguments = place_arguments(kernel, wanted->arguments);
    launch.shared_bytes = wanted->shared_bytes;
    launch.has_failed = false;
    launch.may_begin_early = wanted->may_begin_early != 0;
    dl_iterate_phdr(find_tls, nullptr);
    launch.dynamic_offset = (size_t)(reinterpret_cast<uint8_t *>(shared_memory) - launch.tls);
    checks_fill_poison(shared_memory, sizeof shared_memory);
    blockDim = {wanted->block[0], wanted->block[1], wanted->block[2]};
    gridDim = {wanted->grid[0], wanted->grid[1], wanted->grid[2]};
    if (is_checked)
        checks_open_launch();
    int result = run_grid(wanted->grid);
    if (is_checked && checks_take_faults() != 0)
        result = 719;
    if (result != 0 || is_untouched_past_the_end())
        return result;
    fprintf(stderr, "%s: writes past the %u bytes of dynamic shared memory\n", kernel->name, wanted->shared_bytes);
    return 719;
}

} // namespace

extern "C" {

uint32_t emulator_draw(uint32_t n)
{
    if (!is_seeded || n == 0)
        return 0;
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

void emulator_allocated(void *memory, size_t n_bytes)
{
    checks_fill_poison(memory, n_bytes);
    pthread_mutex_lock(&mutex);
    if (is_checked)
        checks_allocated(memory, n_bytes);
    pthread_mutex_unlock(&mutex);
}

void emulator_freed(const void *memory)
{
    pthread_mutex_lock(&mutex);
    if (is_checked)
        checks_freed(memory);
    pthread_mutex_unlock(&mutex);
}

void emulator_written(const void *memory, size_t n_bytes)
{
    pthread_mutex_lock(&mutex);
    if (is_checked)
        checks_written(memory, n_bytes);
    pthread_mutex_unlock(&mutex);
}

void emulator_atomic(const void *p, uint32_t n_bytes)
{
    check_alignment("an atomic operation", (uintptr_t)p, n_bytes);
    if (is_checked)
        check_access(p, n_bytes, CHECKED_ATOMIC, __builtin_return_address(0));
    launch.atomic = p;
}

void emulator_atomic_done(void)
{
    launch.atomic = nullptr;
}

int emulator_works_here(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

int emulator_compute(void)
{
    const char *text = getenv("DSR_EMULATOR_COMPUTE");
    return text ? atoi(text) : 90;
}

void emulator_allow_shared(const char *entry, uint32_t n_bytes)
{
    pthread_mutex_lock(&mutex);
    allowances[entry].shared_bytes = n_bytes;
    pthread_mutex_unlock(&mutex);
}

void emulator_allow_cluster(const char *entry)
{
    pthread_mutex_lock(&mutex);
    allowances[entry].is_large_cluster = true;
    pthread_mutex_unlock(&mutex);
}

int emulator_run(const emulated_launch *wanted)
{
    const emulated_kernel *kernel = emulator_find(wanted->entry);
    if (kernel == nullptr)
        return 0;
    pthread_mutex_lock(&mutex);
    read_seed();
    const char *why = refusal(kernel, wanted);
    if (why)
        fprintf(stderr, "%s: launch refused: %s\n", kernel->name, why);
    const unsigned mode = _mm_getcsr(); /* the caller's, of which a device knows nothing */
    _mm_setcsr(DEFAULT_FP_MODE);
    const int result = why ? 1 : run_launch(kernel, wanted);
    _mm_setcsr(mode);
    pthread_mutex_unlock(&mutex);
    return result;
}

void emulator_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_place(launch.current);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    launch.has_failed = true;
    to_scheduler();
    abort();
}

void emulator_warp(const char *name, emulator_warp_operation *operation, uint32_t mask, void *argument)
{
    fiber *own = launch.current;
    fiber *lanes = own->block->fibers + own->number / 32 * 32;
    const uint32_t n_lanes = own->block->n_threads - own->number / 32 * 32;
    if (!(mask >> own->number % 32 & 1u))
        emulator_fail("%s: the calling lane is not in the mask %#x", name, mask);
    own->operation = operation;
    own->mask = mask;
    own->argument = argument;
    void *present[32] = {};
    bool is_complete = true;
    for (uint32_t i = 0; i < 32; i++) {
        if (!(mask >> i & 1u))
            continue;
        if (i >= n_lanes || lanes[i].has_ended)
            emulator_fail("%s: lane %u of the mask %#x has returned", name, i, mask);
        present[i] = lanes[i].argument;
        is_complete = is_complete && lanes[i].operation == operation && lanes[i].mask == mask;
    }
    if (!is_complete) {
        wait_for(name);
        return;
    }
    if (is_checked)
        checks_exchange(checked_warp(own));
    operation(present, mask);
    for (uint32_t i = 0; i < 32; i++) {
        if (!(mask >> i & 1u))
            continue;
        lanes[i].operation = nullptr;
        if (&lanes[i] != own)
            make_ready(&lanes[i]);
    }
}

uint32_t emulator_barrier(uint32_t id, uint32_t n_threads, uint32_t value)
{
    static const char *const names[MAX_BARRIERS] = {"__syncthreads", "barrier 1",  "barrier 2",  "barrier 3",
                                                    "barrier 4",     "barrier 5",  "barrier 6",  "barrier 7",
                                                    "barrier 8",     "barrier 9",  "barrier 10", "barrier 11",
                                                    "barrier 12",    "barrier 13", "barrier 14", "barrier 15"};
    block_state &block = *launch.current->block;
    if (id >= MAX_BARRIERS || n_threads % 32 != 0)
        emulator_fail("barrier %u of %u threads", id, n_threads);
    if (n_threads == 0 && block.n_live != block.n_threads)
        emulator_fail("%s: %u threads of the block have returned", names[id], block.n_threads - block.n_live);
    barrier_state &barrier = block.barriers[id];
    const uint32_t n_expected = n_threads ? n_threads : block.n_threads;
    if (barrier.n_arrived != 0 && barrier.n_expected != n_expected)
        emulator_fail("%s: %u threads here, %u elsewhere", names[id], n_expected, barrier.n_expected);
    barrier.n_expected = n_expected;
    barrier.n_arrived++;
    barrier.sum += value;
    const uint32_t sum = barrier.sum;
    if (barrier.n_arrived < n_expected) {
        barrier.waiting.push_back(launch.current);
        wait_for(names[id]);
        return launch.current->barrier_result;
    }
    release_barrier(barrier);
    return sum;
}

void emulator_cluster_arrive(int is_relaxed)
{
    fiber *own = launch.current;
    if (own->cluster_phase != launch.cluster_phase)
        emulator_fail("a second arrival at the cluster's barrier without a wait");
    if (is_checked && !is_relaxed)
        checks_release(checked_warp(own), launch.cluster_clock);
    own->cluster_phase++;
    launch.n_cluster_arrived++;
    release_cluster_if_complete();
}

void emulator_cluster_wait(void)
{
    fiber *own = launch.current;
    if (own->cluster_phase > launch.cluster_phase) {
        launch.cluster_waiting.push_back(own);
        wait_for("the cluster's barrier");
    }
    if (is_checked)
        checks_acquire(checked_warp(own), launch.cluster_clock);
}

void emulator_wait_for_prior_launch(void)
{
    if (launch.current->has_touched)
        emulator_fail("waits for the launches before after it has touched device memory");
    launch.current->has_waited = true;
}

void emulator_fence(void)
{
    if (is_checked)
        checks_fence(checked_number(launch.current));
}

void emulator_order_warp(void)
{
    if (is_checked)
        checks_warp(checked_warp(launch.current));
}

uint32_t emulator_cluster_rank(void)
{
    return launch.current->block->rank;
}

uint32_t emulator_shared_address(const void *p)
{
    const size_t offset = (size_t)(static_cast<const uint8_t *>(p) - launch.tls);
    if (offset >= launch.tls_bytes)
        emulator_fail("%p is not in shared memory", p);
    return (uint32_t)offset;
}

void *emulator_shared(uint32_t address, uint32_t n_bytes)
{
    if (address & PEER_FLAG)
        emulator_fail("an address of the cluster's shared memory where one of the block's own is needed");
    check_range(address, n_bytes);
    if (is_checked)
        check_access(launch.tls + address, n_bytes, CHECKED_READ, __builtin_return_address(0));
    return launch.tls + address;
}

uint32_t emulator_peer_address(uint32_t address, uint32_t rank)
{
    if (rank >= launch.blocks.size())
        emulator_fail("block %u of a cluster of %zu", rank, launch.blocks.size());
    return (uint32_t)PEER_FLAG | rank << PEER_SHIFT | (address & OFFSET_MASK);
}

static void check_peer(uint32_t address, uint32_t n_bytes, checked_access access, const void *code)
{
    if (is_checked)
        checks_shared(checked_number(launch.current), rank_of(address), address & OFFSET_MASK, n_bytes, access,
                      access == CHECKED_READ ? peer_memory(address, n_bytes) : nullptr, code);
}

void emulator_read_peer(uint32_t address, void *to, uint32_t n_bytes)
{
    check_alignment("a read", address, n_bytes);
    check_peer(address, n_bytes, CHECKED_READ, __builtin_return_address(0));
    memcpy(to, peer_memory(address, n_bytes), n_bytes);
}

static void issue(const async_copy &copy, const void *code)
{
    fiber *own = launch.current;
    if (is_checked && copy.from != nullptr) {
        const uint32_t n = copy.n_bytes + copy.n_zeros;
        const size_t offset = (size_t)(static_cast<uint8_t *>(copy.to) - launch.tls);
        if (copy.n_bytes != 0) /* of all bytes, as compute-sanitizer has it, though the last are not used */
            check_global(copy.from, n, CHECKED_READ, code);
        checks_copying(checked_number(own), own->block->rank, offset, n, code);
        own->unseen.push_back({copy.to, nullptr, n, (uint32_t)own->n_issued, 0});
    }
    own->copies.push_back(copy);
    own->n_issued++;
    if (is_seeded && emulator_draw(4) == 0) /* done at once, with all before it */
        run_copies(own, own->n_issued);
}

void emulator_copy_async(void *to, const void *from, uint32_t n_bytes, uint32_t n_zeros)
{
    check_range(emulator_shared_address(to), n_bytes + n_zeros);
    issue({to, from, n_bytes, n_zeros, 0}, __builtin_return_address(0));
}

void emulator_copy_arrive(uint32_t barrier)
{
    launch.current->last_arrival = launch.current->n_issued + 1;
    issue({nullptr, nullptr, 0, 0, barrier}, nullptr);
}

void emulator_copy_commit(void)
{
    launch.current->groups.push_back(launch.current->n_issued);
}

void emulator_copy_wait(uint32_t n_groups)
{
    fiber *own = launch.current;
    while (own->groups.size() > n_groups) {
        run_copies(own, own->groups.front());
        if (is_checked)
            see_copies(own, own->groups.front());
        own->groups.pop_front();
    }
}

void emulator_mbarrier_init(uint32_t address, uint32_t n)
{
    mbarrier barrier = {};
    if (address % 8 != 0 || n == 0 || n >= 4096)
        emulator_fail("mbarrier.init at %#x for %u arrivals", address, n);
    barrier.n_expected = barrier.n_missing = n;
    barrier.is_made = MBARRIER_MARK;
    memcpy(peer_memory(address, 8), &barrier, 8);
}

void emulator_mbarrier_arrive(uint32_t barrier, uint32_t n_expected_bytes)
{
    arrive(launch.current, barrier, n_expected_bytes);
}

void emulator_send(uint32_t to, const void *from, uint32_t n_bytes, uint32_t barrier)
{
    check_alignment("an asynchronous store", to, n_bytes);
    check_peer(to, n_bytes, CHECKED_WRITE, __builtin_return_address(0));
    memcpy(peer_memory(to, n_bytes), from, n_bytes);
    if (is_checked)
        checks_release(checked_warp(launch.current), mbarrier_clock(barrier));
    mbarrier_at(barrier).n_bytes_missing -= n_bytes;
    end_phase_if_complete(barrier);
}

void emulator_mbarrier_wait(uint32_t address, uint32_t parity)
{
    fiber *own = launch.current;
    if (mbarrier_at(address).phase == (parity & 1u)) {
        own->waits_for_mbarrier = address;
        own->parity = parity & 1u;
        own->block->mbarrier_waiting.push_back(own);
        wait_for("an mbarrier");
    }
    if (is_checked)
        checks_acquire(checked_warp(own), mbarrier_clock(address));
}

void emulator_copy_bulk(void *to, const void *from, uint32_t n_bytes, uint32_t barrier)
{
    if (n_bytes == 0 || n_bytes % 16 != 0 || ((uintptr_t)to | (uintptr_t)from) % 16 != 0)
        emulator_fail("cp.async.bulk of %u bytes from %p to %p", n_bytes, from, to);
    fiber *own = launch.current;
    const uint32_t offset = emulator_shared_address(to);
    check_range(offset, n_bytes);
    (void)mbarrier_at(barrier);
    if (is_checked) {
        check_global(from, n_bytes, CHECKED_READ, __builtin_return_address(0));
        checks_copying(checked_number(own), own->block->rank, offset, n_bytes, __builtin_return_address(0));
    }
    own->block->bulk_copies.push_back({to, from, n_bytes, own->number, barrier});
}

void emulator_yield(void)
{
    fiber *own = launch.current;
    own->is_ready = true;
    own->block->ready.push_back(own);
    to_scheduler();
}
}

void emulator_print_place()
{
    print_place(launch.current);
}

bool emulator_is_own(const void *p)
{
    return (uintptr_t)p >= launch.own_begin && (uintptr_t)p < launch.own_end;
}

void emulator_print_code(const void *code)
{
    Dl_info info = {};
    if (dladdr(code, &info) == 0 || info.dli_fname == nullptr)
        fprintf(stderr, "%p\n", code);
    else
        fprintf(stderr, "addr2line -fpiCe %s %#zx\n", info.dli_fname,
                (size_t)(static_cast<const char *>(code) - static_cast<const char *>(info.dli_fbase)) - 1);
}

/* What the compiler calls before every access with -fsanitize=thread. */
#ifdef EMULATOR_CHECKS
#define ACCESS(name, n, access)                                                                                        \
    extern "C" void name(void *p);                                                                                     \
    extern "C" void name(void *p)                                                                                      \
    {                                                                                                                  \
        check_access(p, n, access, __builtin_return_address(0));                                                       \
    }
ACCESS(__tsan_read1, 1, CHECKED_READ)
ACCESS(__tsan_read2, 2, CHECKED_READ)
ACCESS(__tsan_read4, 4, CHECKED_READ)
ACCESS(__tsan_read8, 8, CHECKED_READ)
ACCESS(__tsan_read16, 16, CHECKED_READ)
ACCESS(__tsan_unaligned_read2, 2, CHECKED_READ)
ACCESS(__tsan_unaligned_read4, 4, CHECKED_READ)
ACCESS(__tsan_unaligned_read8, 8, CHECKED_READ)
ACCESS(__tsan_unaligned_read16, 16, CHECKED_READ)
ACCESS(__tsan_write1, 1, CHECKED_WRITE)
ACCESS(__tsan_write2, 2, CHECKED_WRITE)
ACCESS(__tsan_write4, 4, CHECKED_WRITE)
ACCESS(__tsan_write8, 8, CHECKED_WRITE)
ACCESS(__tsan_write16, 16, CHECKED_WRITE)
ACCESS(__tsan_unaligned_write2, 2, CHECKED_WRITE)
ACCESS(__tsan_unaligned_write4, 4, CHECKED_WRITE)
ACCESS(__tsan_unaligned_write8, 8, CHECKED_WRITE)
ACCESS(__tsan_unaligned_write16, 16, CHECKED_WRITE)

/* What the compiler calls where -fsanitize=alignment finds a pointer that its type does not allow. */
struct misaligned_access {
    const char *file;
    uint32_t line, column;
    const void *type;
    uint8_t log2_alignment, kind;
};

extern "C" {
void __ubsan_handle_type_mismatch_v1(const misaligned_access *access, const void *p);
void __tsan_init(void);
void __tsan_func_entry(void *);
void __tsan_func_exit(void);
void __tsan_read_range(void *p, unsigned long n);
void __tsan_write_range(void *p, unsigned long n);

void __ubsan_handle_type_mismatch_v1(const misaligned_access *access, const void *p)
{
    emulator_fail("%s:%u: an access of %u bytes at %p: not aligned", access->file, access->line,
                  1u << access->log2_alignment, p);
}
void __tsan_init(void)
{
}
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit(void)
{
}
void __tsan_read_range(void *p, unsigned long n)
{
    check_access(p, (uint32_t)n, CHECKED_READ, __builtin_return_address(0));
}
void __tsan_write_range(void *p, unsigned long n)
{
    check_access(p, (uint32_t)n, CHECKED_WRITE, __builtin_return_address(0));
}
}
#endif
