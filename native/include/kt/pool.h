// Worker threads in groups, one group for each NUMA node that is used, and the memory of what runs on them.
//
// Work is cut into phases, a phase into parts, a part into tasks. A group's threads begin with the part whose
// weights lie in their node's memory and then help with the others', so that a thread that the system keeps
// off its CPU delays nothing unless it is in the middle of a task.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "kt/memory.h"

namespace kt {

class Pool;

constexpr size_t kMostGroups = 64;
constexpr size_t kMostLanes = kMostGroups;

// Threads that share a node's CPUs and memory.
struct ThreadGroup {
    int threads;            // >= 1
    std::vector<int> cpus;  // empty: any; as many as threads: one for each; else all of them for each
    int node = -1;          // whose memory the group's weights lie in; -1: where they are first written
};

// One thread's view of a region. Worker 0 is the calling thread; the others may come late or not at all.
struct Worker {
    Pool& pool;
    int index;
    size_t group;
};

// The tasks of one phase of a region, in parts, and each part in as many lanes. Tasks of one lane are handed
// out in order, and only tasks are waited for, never threads. A thread begins with a lane of its own: where
// tasks that follow each other lie side by side in memory, it reads one long stream.
class Phase {
  public:
    explicit Phase(size_t tasks = 0) { set(tasks); }
    // All in one part.
    void set(size_t tasks);
    // Tasks begins[n] .. begins[n + 1] - 1 are those of lane n % lanes of part n / lanes; at most kMostLanes.
    // stay: only a part's own group works on it. There must be as many groups as parts, each with a thread,
    // and the region must be one that calls them.
    void set(std::span<const size_t> begins, bool stay = false, size_t lanes = 1);

    // The lane that the worker begins with.
    size_t first_lane(const Worker& worker) const {
        return own_part(worker) * lanes_ + static_cast<size_t>(worker.index) % lanes_;
    }

    // Calls task(i, n) for the tasks that nobody took yet, those of the worker's own lane first, then of its
    // part, then waits until all are done. What they wrote is visible after it.
    template <class Task>
    void run(const Worker& worker, Task&& task) {
        const size_t part = own_part(worker), lane = static_cast<size_t>(worker.index) % lanes_;
        for (size_t p = 0; p < (stay_ ? 1 : parts_); ++p) {
            const size_t first = (part + p) % parts_ * lanes_;
            for (size_t l = 0; l < lanes_; ++l) {
                const size_t n = first + (lane + l) % lanes_;
                uint32_t finished = 0;
                for (uint32_t i; take(n, i); ++finished) task(size_t{i}, n);
                if (finished) finish(n, finished);
            }
        }
        wait(worker);
    }

  private:
    struct alignas(64) Lane {
        uint32_t next;
        uint32_t done;
        uint32_t end;
    };

    size_t own_part(const Worker& worker) const;
    bool take(size_t n, uint32_t& task) {
        const std::atomic_ref<uint32_t> next(lane_[n].next);
        if (next.load(std::memory_order_relaxed) >= lane_[n].end) return false;
        return (task = next.fetch_add(1, std::memory_order_relaxed)) < lane_[n].end;
    }
    void finish(size_t n, uint32_t tasks);
    void wait(const Worker& worker);

    size_t parts_ = 0;
    size_t lanes_ = 1;  // of each part
    bool stay_ = false;
    Lane lane_[kMostLanes];                      // the first parts_ * lanes_ are set
    alignas(64) std::atomic<uint32_t> open_{0};  // lanes with tasks that are not done
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
    // Throws std::invalid_argument for a group without threads or an impossible CPU. The caller is the first
    // thread of the first group. Where the system refuses to pin, to bind memory or to start a thread, the
    // pool goes on without and settings().note says so.
    explicit Pool(std::vector<ThreadGroup> groups);
    explicit Pool(int threads) : Pool(std::vector<ThreadGroup>{{threads, {}}}) {}
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    void resize(std::vector<ThreadGroup> groups);

    struct Settings {
        int threads;
        std::vector<ThreadGroup> groups;  // as asked for
        std::string note;                 // what the system refused; empty: nothing
    };
    Settings settings() const;

    // Sole use of the pool and its scratch until destroyed. Callers on several threads take turns.
    class Lease {
      public:
        explicit Lease(Pool& pool) : pool_(pool), lock_(pool.mutex_) { pool.revive(); }

        int threads() const { return pool_.size_; }
        size_t groups() const { return pool_.groups_.size(); }

        // Cuts units into a part for each group, by its threads: begins of the parts, and the end. A part may
        // be empty.
        std::vector<size_t> split(size_t units) const { return pool_.split(units); }

        // Lanes of each of so many parts: one for each thread, as far as a phase has room.
        size_t lanes(size_t parts) const {
            const size_t most = kMostLanes / parts, wanted = static_cast<size_t>(threads()) / parts;
            return wanted < 1 ? 1 : wanted < most ? wanted : most;
        }

        // Whether phases of so many parts may stay in their groups.
        bool can_stay(size_t parts) const { return parts == groups() && threads() == pool_.wanted_; }

        // Memory that lives until the same slot is asked for again with more bytes.
        template <class T>
        T* scratch(size_t slot, size_t count) {
            return reinterpret_cast<T*>(pool_.scratch(slot, count * sizeof(T)));
        }

        // Memory for weights of part `part` of `parts`, on the node of the group that begins with it.
        Arena::Piece weights(size_t bytes, size_t part, size_t parts) {
            return pool_.arenas_[part * groups() / parts].take(bytes);
        }

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
    void pin(std::thread& thread, const ThreadGroup& group, int i);
    void stop();
    void revive();
    std::vector<size_t> split(size_t units) const;
    void run(Function function, void* context, bool shared);
    void work(int index, size_t group, uint32_t seen);
    bool enter();
    void leave();
    void wait_while(const std::atomic<uint32_t>& value, uint32_t old) const;
    uint8_t* scratch(size_t slot, size_t bytes);

    mutable std::mutex mutex_;
    int wanted_ = 1;
    int size_ = 1;
    int spins_ = 0;
    std::vector<ThreadGroup> groups_;
    std::string note_;
    bool lost_ = false;  // a fork left the threads in the parent
    std::vector<std::thread> threads_;
    std::vector<Buffer> scratch_;
    std::vector<Arena> arenas_;  // of the groups

    Function function_ = nullptr;
    void* context_ = nullptr;
    std::atomic<bool> stopping_{false};  // a worker that comes late to a region may see it before it must
    alignas(64) std::atomic<uint32_t> region_{0};
    alignas(64) std::atomic<uint32_t> gate_{kClosed};  // kClosed, and the number of workers inside
};

// For tests: whether a call's scratch memory begins as NaN (all bits set), so that a part that is read before
// it is written shows. KT_POISON=1 in the environment, or set by the caller.
bool poisoned();
void set_poison(bool on);

// The process's pool, made at the first call with a thread for each allowed CPU, unpinned. It lives until
// the process ends. Any pool goes on in a forked child, with threads of its own.
Pool& default_pool();

}  // namespace kt
