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

// One thread's view of a region. Worker 0 is the calling thread.
struct Worker {
    Pool& pool;
    int index;
    int count;

    // Waits for all workers of the region; what they wrote before it is visible after it.
    void barrier() const;
};

// Hands out 0, 1, 2, ... to whoever asks. On a cache line of its own.
class alignas(64) TaskCounter {
  public:
    size_t next() { return value_.fetch_add(1, std::memory_order_relaxed); }

  private:
    std::atomic<size_t> value_{0};
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

        // Runs body(const Worker&) once on every thread and returns when all are done. body must not
        // throw and must not use this pool's lease.
        template <class Body>
        void parallel(Body&& body) {
            using Plain = std::remove_reference_t<Body>;
            pool_.run(
                [](const Worker& worker, void* context) noexcept { (*static_cast<Plain*>(context))(worker); },
                const_cast<void*>(static_cast<const void*>(&body)));
        }

      private:
        Pool& pool_;
        std::lock_guard<std::mutex> lock_;
    };

  private:
    friend struct Worker;
    friend struct ForkGuard;
    using Function = void (*)(const Worker&, void*) noexcept;

    void start();
    void stop();
    void revive();
    void run(Function function, void* context);
    void work(int index, uint32_t seen);
    void barrier();
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
    alignas(64) std::atomic<uint32_t> running_{0};
    alignas(64) std::atomic<uint32_t> arrived_{0};
    alignas(64) std::atomic<uint32_t> phase_{0};
};

inline void Worker::barrier() const {
    pool.barrier();
}

// The process's pool, made at the first call with a thread for each allowed CPU, unpinned. It lives until
// the process ends, and a forked child that uses it starts its own threads.
Pool& default_pool();

}  // namespace kt
