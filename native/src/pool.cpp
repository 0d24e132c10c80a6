#include "kt/pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "kt/cpu.h"

namespace kt {
namespace {

// About 50 to 100 us with the pause of current CPUs: longer than the gap between two phases of a layer,
// shorter than what a sleeping thread's neighbours would notice.
constexpr int kSpins = 2000;

std::atomic<bool> poison{[] {
    const char* value = std::getenv("KT_POISON");
    return value && std::string_view(value) == "1";
}()};

void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Default rounding and gradual underflow while it lives, whatever the caller or the thread that started this
// one had set: else results would depend on which thread computed them.
class DefaultFloats {
  public:
#if defined(__x86_64__)
    DefaultFloats() : before_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(0x1f80); }
    ~DefaultFloats() { __builtin_ia32_ldmxcsr(before_); }

  private:
    unsigned before_;
#elif defined(__aarch64__)
    DefaultFloats() : before_(__builtin_aarch64_get_fpcr()) { __builtin_aarch64_set_fpcr(0); }
    ~DefaultFloats() { __builtin_aarch64_set_fpcr(before_); }

  private:
    unsigned before_;
#endif
};

// Where thread i of a group may run.
cpu_set_t cpus_of(const ThreadGroup& group, int i) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (group.cpus.size() == static_cast<size_t>(group.threads)) {
        CPU_SET(group.cpus[i], &set);
    } else {
        for (const int cpu : group.cpus) CPU_SET(cpu, &set);
    }
    return set;
}

// Keeps the calling thread on its CPUs for the time of a region. It belongs to the caller, and threads that
// it starts inherit its mask, so it is not pinned for good; and once there it seldom moves away, so most
// regions cost no system call.
class Visit {
  public:
    explicit Visit(const ThreadGroup& group) {
        if (group.cpus.empty()) return;
        const cpu_set_t set = cpus_of(group, 0);
        if (const int cpu = sched_getcpu(); cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET(cpu, &set)) return;
        moved_ = pthread_getaffinity_np(pthread_self(), sizeof before_, &before_) == 0 &&
                 pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
    }
    ~Visit() {
        if (moved_) pthread_setaffinity_np(pthread_self(), sizeof before_, &before_);
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

  private:
    cpu_set_t before_;
    bool moved_ = false;
};

int total_threads(const std::vector<ThreadGroup>& groups) {
    int total = 0;
    for (const ThreadGroup& group : groups) total += group.threads;
    return total;
}

void check(const std::vector<ThreadGroup>& groups) {
    if (groups.empty() || groups.size() > kMostGroups) {
        throw std::invalid_argument("a pool has 1 to " + std::to_string(kMostGroups) + " groups, got " +
                                    std::to_string(groups.size()));
    }
    for (const ThreadGroup& group : groups) {
        if (group.threads < 1) throw std::invalid_argument("a group of a pool needs at least one thread");
        for (const int cpu : group.cpus) {
            if (cpu < 0 || cpu >= CPU_SETSIZE)
                throw std::invalid_argument("no such CPU: " + std::to_string(cpu));
        }
    }
}

// Whether every thread can have a CPU of its own.
bool fit(const std::vector<ThreadGroup>& groups) {
    return total_threads(groups) <= allowed_cpus() &&
           std::ranges::all_of(groups, [](const ThreadGroup& group) {
               const size_t own = std::set<int>(group.cpus.begin(), group.cpus.end()).size();
               return own == 0 || own >= static_cast<size_t>(group.threads);
           });
}

}  // namespace

// fork copies only the calling thread. The mutexes are held across it, so no region is under way; the child
// forgets the threads (they are not its own to join) and starts new ones when it first needs them.
struct ForkGuard {
    static std::mutex mutex;
    static std::vector<Pool*> pools;  // all that live

    static void add(Pool* pool) {
        static const int registered = pthread_atfork(before, in_parent, in_child);
        (void)registered;
        const std::lock_guard lock(mutex);
        pools.push_back(pool);
    }
    static void remove(Pool* pool) {
        const std::lock_guard lock(mutex);
        std::erase(pools, pool);
    }
    static void before() {
        mutex.lock();
        for (Pool* pool : pools) pool->mutex_.lock();
    }
    static void in_parent() {
        for (Pool* pool : pools) pool->mutex_.unlock();
        mutex.unlock();
    }
    static void in_child() {
        for (Pool* pool : pools) {
            // Leaked: destroying a std::thread that runs elsewhere would end the process.
            (new std::vector<std::thread>)->swap(pool->threads_);
            pool->lost_ = true;
        }
        in_parent();
    }
};
std::mutex ForkGuard::mutex;
std::vector<Pool*> ForkGuard::pools;

Pool::Pool(std::vector<ThreadGroup> groups) {
    resize(std::move(groups));
    ForkGuard::add(this);
}

Pool::~Pool() {
    ForkGuard::remove(this);
    stop();
}

void Pool::resize(std::vector<ThreadGroup> groups) {
    check(groups);
    const std::lock_guard lock(mutex_);
    if (!lost_) stop();
    groups_ = std::move(groups);
    wanted_ = total_threads(groups_);
    scratch_.clear();
    arenas_.clear();
    for (const ThreadGroup& group : groups_) arenas_.emplace_back(group.node);
    start();
}

Pool::Settings Pool::settings() const {
    const std::lock_guard lock(mutex_);
    std::string note = note_;
    for (const Arena& arena : arenas_) {
        if (arena.refusal().empty()) continue;
        note += (note.empty() ? "" : "; ") + arena.refusal();
        break;
    }
    return {size_, groups_, note};
}

void Pool::start() {
    lost_ = false;
    note_.clear();
    // A thread that spins while another waits for its core delays what it waits for.
    spins_ = fit(groups_) ? kSpins : 0;
    const uint32_t seen = region_.load(std::memory_order_relaxed);
    for (size_t g = 0; g < groups_.size(); ++g) {
        for (int i = g == 0; i < groups_[g].threads; ++i) {
            const int index = static_cast<int>(threads_.size()) + 1;
            size_ = index;
            try {
                threads_.emplace_back([this, index, g, seen] { work(index, g, seen); });
            } catch (const std::system_error& error) {
                note_ = "only " + std::to_string(index) + " of " + std::to_string(wanted_) +
                        " threads started: " + error.what();
                return;
            }
            pthread_setname_np(threads_.back().native_handle(), "kt-worker");
            pin(threads_.back(), groups_[g], i);
        }
    }
    size_ = static_cast<int>(threads_.size()) + 1;
}

void Pool::pin(std::thread& thread, const ThreadGroup& group, int i) {
    if (group.cpus.empty()) return;
    const cpu_set_t set = cpus_of(group, i);
    if (pthread_setaffinity_np(thread.native_handle(), sizeof set, &set) == 0) return;
    const size_t which = group.cpus.size() == static_cast<size_t>(group.threads) ? i : 0;
    note_ = "threads are not pinned: CPU " + std::to_string(group.cpus[which]) + " is not allowed";
}

// In proportion to the threads, to the nearest unit below.
std::vector<size_t> Pool::split(size_t units) const {
    std::vector<size_t> begins{0};
    size_t threads = 0;
    for (const ThreadGroup& group : groups_) {
        threads += static_cast<size_t>(group.threads);
        begins.push_back(units * threads / static_cast<size_t>(wanted_));
    }
    return begins;
}

void Pool::stop() {
    stopping_ = true;
    region_.fetch_add(1, std::memory_order_release);
    region_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    stopping_ = false;
}

void Pool::revive() {
    if (lost_) start();
}

void Pool::wait_while(const std::atomic<uint32_t>& value, uint32_t old) const {
    for (int i = 0; i < spins_; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause_cpu();
    }
    value.wait(old, std::memory_order_acquire);
}

void Pool::run(Function function, void* context, bool shared) {
    const Visit visit(groups_[0]);
    const DefaultFloats floats;
    if (size_ == 1 || !shared) return function(Worker{*this, 0, 0}, context);
    function_ = function;
    context_ = context;
    gate_.store(0, std::memory_order_release);
    region_.fetch_add(1, std::memory_order_release);
    region_.notify_all();
    function(Worker{*this, 0, 0}, context);
    uint32_t gate = gate_.fetch_or(kClosed, std::memory_order_acq_rel) | kClosed;
    for (; gate != kClosed; gate = gate_.load(std::memory_order_acquire)) wait_while(gate_, gate);
}

void Pool::work(int index, size_t group, uint32_t seen) {
    const DefaultFloats floats;
    while (true) {
        wait_while(region_, seen);
        seen = region_.load(std::memory_order_acquire);
        if (stopping_) return;
        if (!enter()) continue;
        function_(Worker{*this, index, group}, context_);
        leave();
    }
}

// Into the region that is under way, if there is one: it may be another than the one that woke the thread,
// and its function and context are read only once inside.
bool Pool::enter() {
    uint32_t gate = gate_.load(std::memory_order_relaxed);
    while (!(gate & kClosed)) {
        if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire)) return true;
    }
    return false;
}

void Pool::leave() {
    if (gate_.fetch_sub(1, std::memory_order_acq_rel) == (kClosed | 1)) gate_.notify_all();
}

void Phase::set(size_t tasks) {
    const size_t begins[] = {0, tasks};
    set(begins);
}

void Phase::set(std::span<const size_t> begins, bool stay, size_t lanes) {
    const size_t count = begins.size() - 1;
    parts_ = count / lanes;
    lanes_ = lanes;
    stay_ = stay;
    uint32_t open = 0;
    for (size_t n = 0; n < count; ++n) {
        const uint32_t begin = static_cast<uint32_t>(begins[n]), end = static_cast<uint32_t>(begins[n + 1]);
        lane_[n] = {.next = begin, .done = begin, .end = end};
        open += begin != end;
    }
    open_.store(open, std::memory_order_relaxed);
}

size_t Phase::own_part(const Worker& worker) const {
    return worker.group * parts_ / worker.pool.groups_.size();
}

// Each thread once: those that wait look at another line, which changes when a lane is done.
void Phase::finish(size_t n, uint32_t tasks) {
    const std::atomic_ref<uint32_t> done(lane_[n].done);
    if (done.fetch_add(tasks, std::memory_order_acq_rel) + tasks != lane_[n].end) return;
    if (open_.fetch_sub(1, std::memory_order_acq_rel) == 1) open_.notify_all();
}

void Phase::wait(const Worker& worker) {
    for (uint32_t open; (open = open_.load(std::memory_order_acquire)) != 0;)
        worker.pool.wait_while(open_, open);
}

void Turn::wait(const Worker& worker, uint32_t turn) {
    for (uint32_t now; (now = now_.load(std::memory_order_acquire)) != turn;)
        worker.pool.wait_while(now_, now);
}

void Turn::pass() {
    now_.fetch_add(1, std::memory_order_release);
    now_.notify_all();
}

uint8_t* Pool::scratch(size_t slot, size_t bytes) {
    if (slot >= scratch_.size()) scratch_.resize(slot + 1);
    if (scratch_[slot].bytes() < bytes) {
        scratch_[slot] = Buffer();  // the old memory first: two at once would double the peak
        scratch_[slot] = Buffer(bytes);
    }
    if (poisoned()) std::memset(scratch_[slot].data(), 0xff, bytes);
    return scratch_[slot].data();
}

bool poisoned() {
    return poison.load(std::memory_order_relaxed);
}

void set_poison(bool on) {
    poison.store(on, std::memory_order_relaxed);
}

Pool& default_pool() {
    static Pool* const pool = new Pool(std::max(1, allowed_cpus()));
    return *pool;
}

}  // namespace kt
