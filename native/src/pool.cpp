#include "kt/pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <stdexcept>
#include <system_error>

#include "kt/cpu.h"

namespace kt {
namespace {

// About 50 to 100 us with the pause of current CPUs: longer than the gap between two phases of a layer,
// shorter than what a sleeping thread's neighbours would notice.
constexpr int kSpins = 2000;

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

cpu_set_t only(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return set;
}

// Keeps the calling thread on its CPU for the time of a region. It belongs to the caller, and threads that
// it starts inherit its mask, so it is not pinned for good; and once there it seldom moves away, so most
// regions cost no system call.
class Visit {
  public:
    explicit Visit(int cpu) {
        if (cpu < 0 || sched_getcpu() == cpu) return;
        const cpu_set_t set = only(cpu);
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

}  // namespace

Pool::Pool(int threads, std::vector<int> cpus) {
    resize(threads, std::move(cpus));
}

Pool::~Pool() {
    stop();
}

void Pool::resize(int threads, std::vector<int> cpus) {
    if (threads < 1) throw std::invalid_argument("a pool needs at least one thread");
    if (!cpus.empty() && cpus.size() != static_cast<size_t>(threads)) {
        throw std::invalid_argument("cpus must be empty or name one CPU for each thread");
    }
    for (const int cpu : cpus) {
        if (cpu < 0 || cpu >= CPU_SETSIZE) throw std::invalid_argument("no such CPU: " + std::to_string(cpu));
    }
    const std::lock_guard lock(mutex_);
    if (!lost_) stop();
    wanted_ = threads;
    cpus_ = std::move(cpus);
    scratch_.clear();
    start();
}

Pool::Settings Pool::settings() const {
    const std::lock_guard lock(mutex_);
    return {size_, cpus_, note_};
}

void Pool::start() {
    lost_ = false;
    note_.clear();
    // A thread that spins while another waits for its core delays what it waits for.
    spins_ = wanted_ <= allowed_cpus() ? kSpins : 0;
    const uint32_t seen = region_.load(std::memory_order_relaxed);
    for (int i = 1; i < wanted_; ++i) {
        try {
            threads_.emplace_back([this, i, seen] { work(i, seen); });
        } catch (const std::system_error& error) {
            note_ = "only " + std::to_string(i) + " of " + std::to_string(wanted_) +
                    " threads started: " + error.what();
            break;
        }
        pthread_setname_np(threads_.back().native_handle(), "kt-worker");
        if (cpus_.empty()) continue;
        const cpu_set_t set = only(cpus_[i]);
        if (pthread_setaffinity_np(threads_.back().native_handle(), sizeof set, &set) != 0) {
            note_ = "threads are not pinned: CPU " + std::to_string(cpus_[i]) + " is not allowed";
        }
    }
    size_ = static_cast<int>(threads_.size()) + 1;
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
    const Visit visit(cpus_.empty() ? -1 : cpus_[0]);
    const DefaultFloats floats;
    if (size_ == 1 || !shared) return function(Worker{*this, 0}, context);
    function_ = function;
    context_ = context;
    gate_.store(0, std::memory_order_release);
    region_.fetch_add(1, std::memory_order_release);
    region_.notify_all();
    function(Worker{*this, 0}, context);
    uint32_t gate = gate_.fetch_or(kClosed, std::memory_order_acq_rel) | kClosed;
    for (; gate != kClosed; gate = gate_.load(std::memory_order_acquire)) wait_while(gate_, gate);
}

void Pool::work(int index, uint32_t seen) {
    const DefaultFloats floats;
    while (true) {
        wait_while(region_, seen);
        seen = region_.load(std::memory_order_acquire);
        if (stopping_) return;
        if (!enter()) continue;
        function_(Worker{*this, index}, context_);
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

void Phase::finish(const Worker& worker, uint32_t tasks) {
    uint32_t done = done_.load(std::memory_order_acquire);
    if (tasks) {
        done = done_.fetch_add(tasks, std::memory_order_acq_rel) + tasks;
        done_.notify_all();
    }
    for (; done != total_; done = done_.load(std::memory_order_acquire)) worker.pool.wait_while(done_, done);
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
    return scratch_[slot].data();
}

// fork copies only the calling thread. The mutex is held across it, so no region is under way; the child
// forgets the threads (they are not its own to join) and starts new ones when it first needs them.
struct ForkGuard {
    static Pool* pool;
    static void before() { pool->mutex_.lock(); }
    static void in_parent() { pool->mutex_.unlock(); }
    static void in_child() {
        // Leaked: destroying a std::thread that runs elsewhere would end the process.
        (new std::vector<std::thread>)->swap(pool->threads_);
        pool->lost_ = true;
        pool->mutex_.unlock();
    }
};
Pool* ForkGuard::pool = nullptr;

Pool& default_pool() {
    static Pool* const pool = [] {
        ForkGuard::pool = new Pool(std::max(1, allowed_cpus()));
        pthread_atfork(ForkGuard::before, ForkGuard::in_parent, ForkGuard::in_child);
        return ForkGuard::pool;
    }();
    return *pool;
}

}  // namespace kt
