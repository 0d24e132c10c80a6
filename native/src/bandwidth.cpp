#include "kt/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <numeric>

namespace kt {
namespace {

// Sixteen sums: eight vectors of two, so that additions never wait for each other.
uint64_t sum_words(const uint64_t* words, size_t count) {
    uint64_t sums[16] = {};
    for (size_t i = 0; i + 16 <= count; i += 16) {
        for (size_t j = 0; j < 16; ++j) sums[j] += words[i + j];
    }
    return std::accumulate(std::begin(sums), std::end(sums), uint64_t{0});
}

}  // namespace

double read_rate(Pool& pool, size_t bytes, int repeats) {
    const Buffer memory(bytes);
    std::memset(memory.data(), 1, bytes);
    Pool::Lease lease(pool);
    std::atomic<uint64_t> total{0};  // keeps the reads
    const size_t parts = static_cast<size_t>(lease.threads());
    const size_t part = bytes / 64 / parts * 64;
    double best = 0;
    for (int i = 0; i < repeats; ++i) {
        const auto start = std::chrono::steady_clock::now();
        Phase reading(parts);
        lease.parallel([&](const Worker& worker) {
            reading.run(worker, [&](size_t at, size_t) {
                total += sum_words(reinterpret_cast<const uint64_t*>(memory.data() + at * part), part / 8);
            });
        });
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        best = std::max(best, static_cast<double>(part * parts) / took.count());
    }
    return total.load() == 0 ? 0.0 : best;
}

}  // namespace kt
