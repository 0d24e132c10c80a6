// A pool of worker threads, and the scratch memory of what runs on it.
//
// There is one pool today. Nothing in here is global except default_pool(), so a machine with several
// NUMA nodes can have one pool per node, each with its own threads, scratch and slice of the weights.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "kt/memory.h"

namespace kt {

class Pool;

// One thread's view of a region. Worker 0 is the calling thread; the others may come late or not at all.
struct Worker {
    Pool& pool;
    int index;
};

// The tasks of one phase of a region. Whoever is there takes the next one, and only tasks are waited for,
// never threads: one that the system keeps off its CPU delays nothing unless it is in the middle of a task.
class Phase {
  public:
    explicit Phase(size_t tasks = 0) : total_(static_cast<uint32_t>(tasks)) {}
    void set(size_t tasks) { total_ = static_cast<uint32_t>(tasks); }

    // Calls task(i) for the tasks that nobody took yet, then waits until all are done. What they wrote is
    // visible after it.
    template <class Task>
    void run(const Worker& worker, Task&& task) {
        uint32_t finished = 0;
        for (uint32_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < total_; ++finished) task(i);
        finish(worker, finished);
    }

  private:
    void finish(const Worker& worker, uint32_t tasks);

    uint32_t total_;
    alignas(64) std::atomic<uint32_t> next_{0};
    alignas(64) std::atomic<uint32_t> done_{0};
};

// Lets tasks that add to the same memory run one after another, in the order of their turns 0, 1, ...
class alignas(64) Turn {
  public:
    // Whoever has the turn before must be running or done.
    void wait(const Worker& worker, uint32_t turn);
    void pass();

  private:
    std::atomic<uint32_t> now_{0};
};

class Pool {
  public:
    // threads >= 1, the caller included. cpus: empty, or one CPU id for each thread. Where the system
    // refuses to pin or to start a thread, the pool goes on without and settings().note says so.
    explicit Pool(int threads, std::vector<int> cpus = {});
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    void resize(int threads, std::vector<int> cpus);

    struct Settings {
        int threads;
        std::vector<int> cpus;
        std::string note;  // what the system refused; empty: nothing
    };
    Settings settings() const;

    // Sole use of the pool and its scratch until destroyed. Callers on several threads take turns.
    class Lease {
      public:
        explicit Lease(Pool& pool) : pool_(pool), lock_(pool.mutex_) { pool.revive(); }

        int threads() const { return pool_.size_; }

        // Memory that lives until the same slot is asked for again with more bytes.
        template <class T>
        T* scratch(size_t slot, size_t count) {
            return reinterpret_cast<T*>(pool_.scratch(slot, count * sizeof(T)));
        }

        // Memory for weights that this pool's threads will read.
        Arena::Piece weights(size_t bytes) { return pool_.arena_.take(bytes); }

        // Runs body(const Worker&) on this thread and on those of the pool that come while it runs; body
        // shares work out through Phases. Returns when this thread is through and no other is inside.
        // body must not throw and must not use this pool's lease. bytes says how much memory it reads:
        // for a little the others are not called.
        template <class Body>
        void parallel(Body&& body, size_t bytes = SIZE_MAX) {
            using Plain = std::remove_reference_t<Body>;
            pool_.run(
                [](const Worker& worker, void* context) noexcept { (*static_cast<Plain*>(context))(worker); },
                const_cast<void*>(static_cast<const void*>(&body)), bytes >= kShared);
        }

      private:
        Pool& pool_;
        std::lock_guard<std::mutex> lock_;
    };

  private:
    friend class Phase;
    friend class Turn;
    friend struct ForkGuard;
    using Function = void (*)(const Worker&, void*) noexcept;

    static constexpr uint32_t kClosed = 1u << 31;
    static constexpr size_t kShared = size_t{96} << 10;

    void start();
    void stop();
    void revive();
    void run(Function function, void* context, bool shared);
    void work(int index, uint32_t seen);
    bool enter();
    void leave();
    void wait_while(const std::atomic<uint32_t>& value, uint32_t old) const;
    uint8_t* scratch(size_t slot, size_t bytes);

    mutable std::mutex mutex_;
    int wanted_ = 1;
    int size_ = 1;
    int spins_ = 0;
    std::vector<int> cpus_;
    std::string note_;
    bool lost_ = false;  // a fork left the threads in the parent
    std::vector<std::thread> threads_;
    std::vector<Buffer> scratch_;
    Arena arena_;

    Function function_ = nullptr;
    void* context_ = nullptr;
    bool stopping_ = false;
    alignas(64) std::atomic<uint32_t> region_{0};
    alignas(64) std::atomic<uint32_t> gate_{kClosed};  // kClosed, and the number of workers inside
};

// The process's pool, made at the first call with a thread for each allowed CPU, unpinned. It lives until
// the process ends, and a forked child that uses it starts its own threads.
Pool& default_pool();

}  // namespace kt
