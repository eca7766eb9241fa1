#include "checks.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

namespace
{

enum { MAX_MESSAGES = 20, MAX_ACCESS = 64 };

struct stamp {
    uint32_t epoch;     /* of the thread's warp; 0: never */
    uint32_t exchanges; /* of the thread's warp */
    uint16_t thread;
    bool is_atomic;
};

/* Of one byte of shared memory. */
struct byte_state {
    stamp writer, readers[2];
    const void *writer_code;
    bool is_being_copied;
};

/* Of one byte of device memory. Clusters are numbered through all launches. */
struct place_state {
    stamp writer, readers[2];
    uint32_t writer_cluster, reader_clusters[2];
    const void *writer_code;
};
enum { PAGE_BYTES = 4096 };
typedef std::vector<place_state> page_state;

/* What of other clusters comes before. */
typedef std::map<uint32_t, checked_clock> cluster_clocks;

struct allocation {
    size_t n_bytes;
    std::vector<bool> is_written;
};

/* A write that races unless it writes what is there. */
struct doubtful_write {
    const uint8_t *memory;
    uint8_t old[MAX_ACCESS];
    uint32_t n;
    char text[200];
    const void *code, *other_code;
};

uint32_t n_blocks, warps_per_block;
size_t window;
std::vector<byte_state> bytes; /* [block][window] */
std::vector<checked_clock> clocks;
std::vector<uint32_t> exchanges; /* warp-wide operations of each warp */
uint32_t first_epoch = 1;        /* of this cluster: older stamps are other clusters' */
uint32_t cluster, launch_first_epoch = 1;
cluster_clocks acquired;    /* by this cluster */
cluster_clocks seen_by_any; /* by atomic operations of this cluster: writes that depend on them come later */
std::map<uint32_t, cluster_clocks> seen;         /* by a thread's atomic operations since its last fence */
std::map<uint32_t, cluster_clocks> fenced;       /* by a thread's last fence */
std::map<uintptr_t, cluster_clocks> published;   /* at an address, in this launch */
std::unordered_map<uintptr_t, page_state> pages; /* that launches have written */
std::map<uintptr_t, allocation> allocations;
allocation *last_found; /* in allocations, at last_begin */
uintptr_t last_begin;
doubtful_write doubtful;
uint32_t n_faults;
std::set<std::pair<const void *, const void *>> reported; /* pairs of code */

uint32_t warp_of(uint32_t thread)
{
    return thread / 32;
}

bool is_present(const stamp &s)
{
    return s.epoch >= first_epoch;
}

bool is_ordered(const stamp &s, uint32_t thread)
{
    return !is_present(s) || s.thread == thread || s.epoch < clocks[warp_of(thread)][warp_of(s.thread)];
}

/* For a write after a read: lanes exchange values once they have read. */
bool has_read(const stamp &s, uint32_t thread)
{
    return is_ordered(s, thread) || (warp_of(s.thread) == warp_of(thread) && s.exchanges < exchanges[warp_of(thread)]);
}

/* `known` is what of other clusters comes before. */
bool is_ordered_globally(const stamp &s, uint32_t its_cluster, uint32_t thread, const cluster_clocks &known)
{
    if (s.epoch < launch_first_epoch || its_cluster == cluster)
        return s.epoch < launch_first_epoch || is_ordered(s, thread);
    const auto its_clock = known.find(its_cluster);
    return its_clock != known.end() && s.epoch < its_clock->second[warp_of(s.thread)];
}

void join(cluster_clocks &to, const cluster_clocks &from)
{
    for (const auto &one : from) {
        checked_clock &clock = to[one.first];
        clock.resize(std::max(clock.size(), one.second.size()), 0);
        for (size_t i = 0; i < one.second.size(); i++)
            clock[i] = std::max(clock[i], one.second[i]);
    }
}

void report_text(const char *text, const void *code, const void *other_code)
{
    n_faults++;
    if (!reported.insert({code, other_code}).second || reported.size() > MAX_MESSAGES)
        return;
    emulator_print_place();
    fprintf(stderr, "%s\n  here:  ", text);
    emulator_print_code(code);
    if (other_code != nullptr) {
        fprintf(stderr, "  there: ");
        emulator_print_code(other_code);
    }
}

/* Some copies of structs escape the compiler's calls: memory that has lost its poison was written too. */
bool is_poison(const void *memory, uint32_t n)
{
    const uint8_t *at = static_cast<const uint8_t *>(memory);
    for (uint32_t i = 0; i < n; i++)
        if (at[i] != checks_poison((uintptr_t)(at + i)))
            return false;
    return true;
}

stamp stamp_of(uint32_t thread, bool is_atomic)
{
    const uint32_t warp = warp_of(thread);
    return {clocks[warp][warp], exchanges[warp], (uint16_t)thread, is_atomic};
}

void note_reader(byte_state &b, uint32_t thread, bool is_atomic)
{
    const stamp own = stamp_of(thread, is_atomic);
    stamp &first = b.readers[0];
    if (is_present(first) && first.thread != thread && !is_ordered(first, thread))
        b.readers[1] = first;
    first = own;
}

const char *verb(checked_access access)
{
    return access == CHECKED_READ ? "reads" : access == CHECKED_WRITE ? "writes" : "changes";
}

/* The race of an access with what was done to a byte before; null if there is none. */
const stamp *find_race(const byte_state &b, uint32_t thread, checked_access access, bool &with_writer)
{
    const bool is_atomic = access == CHECKED_ATOMIC;
    with_writer = !is_ordered(b.writer, thread) && !(is_atomic && b.writer.is_atomic);
    if (with_writer)
        return &b.writer;
    for (const stamp &reader : b.readers)
        if (access != CHECKED_READ && !has_read(reader, thread) && !(is_atomic && reader.is_atomic))
            return &reader;
    return nullptr;
}

/* Writes are reported once it is seen that they change something. */
void report_unless_equal(const char *text, checked_access access, uint32_t n, const void *memory, const void *code,
                         const void *other_code)
{
    if (access != CHECKED_WRITE || memory == nullptr) {
        report_text(text, code, other_code);
        return;
    }
    doubtful.memory = static_cast<const uint8_t *>(memory);
    doubtful.n = std::min<uint32_t>(n, MAX_ACCESS);
    memcpy(doubtful.old, memory, doubtful.n);
    snprintf(doubtful.text, sizeof doubtful.text, "%s", text);
    doubtful.code = code;
    doubtful.other_code = other_code;
}

void report_race(const byte_state &b, const stamp &other, bool with_writer, checked_access access, size_t offset,
                 uint32_t n, const void *memory, const void *code)
{
    char text[sizeof doubtful.text];
    const uint32_t threads = warps_per_block * 32;
    snprintf(text, sizeof text,
             "race: %s %u bytes at %#zx of shared memory, which thread %u of block %u of the cluster %s", verb(access),
             n, offset, other.thread % threads, other.thread / threads, with_writer ? "wrote" : "read");
    report_unless_equal(text, access, n, memory, code, with_writer ? b.writer_code : nullptr);
}

/* The race of an access with what was done to a byte of device memory before in this launch. */
const stamp *find_global_race(const place_state &p, uint32_t thread, checked_access access)
{
    const bool is_atomic = access == CHECKED_ATOMIC;
    const cluster_clocks &known = access == CHECKED_READ ? acquired : seen_by_any;
    if (!is_ordered_globally(p.writer, p.writer_cluster, thread, known) && !(is_atomic && p.writer.is_atomic))
        return &p.writer;
    for (int i = 0; i < 2 && access == CHECKED_WRITE; i++) {
        const stamp &reader = p.readers[i];
        const bool is_own = reader.epoch >= launch_first_epoch && p.reader_clusters[i] == cluster;
        if (is_own ? !has_read(reader, thread) : !is_ordered_globally(reader, p.reader_clusters[i], thread, known))
            return &reader;
    }
    return nullptr;
}

void note_global_access(place_state &p, uint32_t thread, checked_access access, const void *code)
{
    const stamp own = stamp_of(thread, access == CHECKED_ATOMIC);
    if (access == CHECKED_READ) {
        if (p.reader_clusters[0] != cluster) {
            p.readers[1] = p.readers[0];
            p.reader_clusters[1] = p.reader_clusters[0];
        }
        p.readers[0] = own;
        p.reader_clusters[0] = cluster;
        return;
    }
    p.writer = own;
    p.writer_cluster = cluster;
    p.writer_code = code;
    if (access == CHECKED_WRITE)
        p.readers[0].epoch = p.readers[1].epoch = 0;
}

/* Reads are kept of pages that the launch has written. */
void check_global_race(uint32_t thread, uintptr_t at, uint32_t n, checked_access access, const void *code)
{
    bool has_raced = false;
    for (uint32_t i = 0; i < n; i++) {
        const uintptr_t number = (at + i) / PAGE_BYTES;
        auto page = pages.find(number);
        if (page == pages.end() && access == CHECKED_READ)
            continue;
        if (page == pages.end())
            page = pages.emplace(number, page_state(PAGE_BYTES)).first;
        place_state &p = page->second[(at + i) % PAGE_BYTES];
        const stamp *other = has_raced ? nullptr : find_global_race(p, thread, access);
        if (other != nullptr) {
            const bool with_writer = other == &p.writer;
            char text[sizeof doubtful.text];
            snprintf(text, sizeof text,
                     "race: %s %u bytes of device memory, which a thread of another warp or block %s", verb(access), n,
                     with_writer ? "wrote" : "read");
            report_unless_equal(text, access, n, (const void *)at, code, with_writer ? p.writer_code : nullptr);
            has_raced = true;
        }
        note_global_access(p, thread, access, code);
    }
}

void pass_through_atomic(uint32_t thread, uintptr_t at)
{
    cluster_clocks &here = published[at];
    join(seen[thread], here);
    join(seen_by_any, here);
    const auto own = fenced.find(thread);
    if (own != fenced.end())
        join(here, own->second);
}

/* The allocation that holds an address; null if there is none. */
allocation *find_allocation(const void *memory, uintptr_t &begin)
{
    const uintptr_t at = (uintptr_t)memory;
    if (last_found != nullptr && at >= last_begin && at - last_begin < last_found->n_bytes) {
        begin = last_begin;
        return last_found;
    }
    auto next = allocations.upper_bound(at);
    if (next == allocations.begin())
        return nullptr;
    --next;
    if (at - next->first >= next->second.n_bytes)
        return nullptr;
    begin = last_begin = next->first;
    return last_found = &next->second;
}

uint32_t newest_epoch()
{
    uint32_t newest = first_epoch;
    for (const checked_clock &clock : clocks)
        for (const uint32_t epoch : clock)
            newest = std::max(newest, epoch);
    return newest;
}

} // namespace

void checks_open_launch()
{
    launch_first_epoch = first_epoch = newest_epoch() + 1;
    clocks.clear();
    published.clear();
}

void checks_fence(uint32_t thread)
{
    join(acquired, seen[thread]);
    seen.erase(thread);
    cluster_clocks &all = fenced[thread] = acquired;
    checks_release(warp_of(thread), all[cluster]);
}

void checks_open_cluster(uint32_t blocks, uint32_t threads_per_block, size_t window_bytes)
{
    first_epoch = newest_epoch() + 1;
    cluster++;
    acquired.clear();
    seen_by_any.clear();
    seen.clear();
    fenced.clear();
    n_blocks = blocks;
    warps_per_block = (threads_per_block + 31) / 32;
    if (bytes.size() < blocks * window_bytes || window != window_bytes)
        bytes.assign(blocks * window_bytes, byte_state());
    window = window_bytes;
    clocks.assign(blocks * warps_per_block, checked_clock(blocks * warps_per_block, first_epoch));
    exchanges.assign(clocks.size(), 0);
    doubtful.memory = nullptr;
}

void checks_fill_poison(void *memory, size_t n_bytes)
{
    uint8_t *at = static_cast<uint8_t *>(memory);
    for (size_t i = 0; i < n_bytes; i++)
        at[i] = checks_poison((uintptr_t)(at + i));
}

void checks_settle()
{
    if (doubtful.memory == nullptr)
        return;
    if (memcmp(doubtful.memory, doubtful.old, doubtful.n) != 0)
        report_text(doubtful.text, doubtful.code, doubtful.other_code);
    doubtful.memory = nullptr;
}

void checks_shared(uint32_t thread, uint32_t rank, size_t offset, uint32_t n, checked_access access, const void *memory,
                   const void *code)
{
    checks_settle();
    bool has_raced = false, is_unwritten = false;
    for (uint32_t i = 0; i < n; i++) {
        byte_state &b = bytes[rank * window + offset + i];
        if (b.is_being_copied && !has_raced) {
            report_text("race: access to shared memory that an asynchronous copy is writing", code, b.writer_code);
            has_raced = true;
        }
        bool with_writer;
        const stamp *other = has_raced ? nullptr : find_race(b, thread, access, with_writer);
        if (other != nullptr) {
            report_race(b, *other, with_writer, access, offset, n, memory, code);
            has_raced = true;
        }
        is_unwritten = is_unwritten || (access != CHECKED_WRITE && !is_present(b.writer));
        if (access != CHECKED_WRITE)
            note_reader(b, thread, access == CHECKED_ATOMIC);
        if (access != CHECKED_READ) {
            b.writer = stamp_of(thread, access == CHECKED_ATOMIC);
            b.writer_code = code;
            b.readers[1].epoch = 0;
            if (access == CHECKED_WRITE)
                b.readers[0].epoch = 0;
        }
    }
    if (is_unwritten && !has_raced && is_poison(memory, n)) {
        char text[100];
        snprintf(text, sizeof text, "reads shared memory that nobody wrote: %u bytes at %#zx", n, offset);
        report_text(text, code, nullptr);
    }
}

void checks_copying(uint32_t thread, uint32_t rank, size_t offset, uint32_t n, const void *code)
{
    checks_shared(thread, rank, offset, n, CHECKED_WRITE, nullptr, code);
    for (uint32_t i = 0; i < n; i++)
        bytes[rank * window + offset + i].is_being_copied = true;
}

void checks_copied(uint32_t thread, uint32_t rank, size_t offset, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        byte_state &b = bytes[rank * window + offset + i];
        b.is_being_copied = false;
        b.writer = stamp_of(thread, false);
    }
}

void checks_warp(uint32_t warp)
{
    clocks[warp][warp]++;
}

void checks_exchange(uint32_t warp)
{
    exchanges[warp]++;
}

void checks_release(uint32_t warp, checked_clock &clock)
{
    checked_clock &own = clocks[warp];
    own[warp]++;
    if (clock.size() < own.size())
        clock.resize(own.size(), 0);
    for (size_t i = 0; i < own.size(); i++)
        clock[i] = std::max(clock[i], own[i]);
}

void checks_acquire(uint32_t warp, const checked_clock &clock)
{
    checked_clock &own = clocks[warp];
    for (size_t i = 0; i < clock.size(); i++)
        own[i] = std::max(own[i], clock[i]);
}

void checks_allocated(const void *memory, size_t n_bytes)
{
    allocations[(uintptr_t)memory] = {n_bytes, std::vector<bool>(n_bytes)};
}

void checks_freed(const void *memory)
{
    const auto found = allocations.find((uintptr_t)memory);
    for (uintptr_t i = 0; found != allocations.end() && i < found->second.n_bytes + PAGE_BYTES; i += PAGE_BYTES)
        pages.erase(((uintptr_t)memory + i) / PAGE_BYTES);
    last_found = nullptr;
    allocations.erase((uintptr_t)memory);
}

void checks_written(const void *memory, size_t n_bytes)
{
    uintptr_t begin;
    allocation *found = find_allocation(memory, begin);
    for (size_t i = 0; found != nullptr && i < n_bytes && (uintptr_t)memory - begin + i < found->n_bytes; i++)
        found->is_written[(uintptr_t)memory - begin + i] = true;
}

bool checks_global(uint32_t thread, const void *memory, uint32_t n, checked_access access, const void *code)
{
    checks_settle();
    uintptr_t begin = 0;
    allocation *found = find_allocation(memory, begin);
    if (found == nullptr && access == CHECKED_READ && emulator_is_own(memory))
        return true;
    if (found == nullptr || (uintptr_t)memory - begin + n > found->n_bytes) {
        report_text("access outside of device memory", code, nullptr);
        return false;
    }
    const size_t first = (uintptr_t)memory - begin;
    bool is_unwritten = false;
    for (uint32_t i = 0; i < n; i++) {
        is_unwritten = is_unwritten || (access != CHECKED_WRITE && !found->is_written[first + i]);
        if (access != CHECKED_READ)
            found->is_written[first + i] = true;
    }
    if (is_unwritten && is_poison(memory, n))
        report_text("reads device memory that nobody wrote", code, nullptr);
    else
        check_global_race(thread, (uintptr_t)memory, n, access, code);
    if (access == CHECKED_ATOMIC)
        pass_through_atomic(thread, (uintptr_t)memory);
    return true;
}

uint32_t checks_take_faults()
{
    checks_settle();
    const uint32_t n = n_faults;
    n_faults = 0;
    return n;
}
