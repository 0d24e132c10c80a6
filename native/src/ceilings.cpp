#include "kt/ceilings.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <numeric>

#include "kt/cpu.h"

namespace kt {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// Sixteen sums: eight vectors of two, so that additions never wait for each other. Words kAhead further are
// asked for where the CPU's own look-ahead ends early: with as much as the kernels ask for, or their ceiling
// would be too low.
constexpr size_t kAhead = 8192 / sizeof(uint64_t);

template <bool Ask>
uint64_t sum_words(const uint64_t* words, size_t count) {
    uint64_t sums[16] = {};
    for (size_t i = 0; i + 16 <= count; i += 16) {
        if constexpr (Ask) {
            __builtin_prefetch(words + i + kAhead, 0, 2);
            __builtin_prefetch(words + i + kAhead + 8, 0, 2);
        }
        for (size_t j = 0; j < 16; ++j) sums[j] += words[i + j];
    }
    return std::accumulate(std::begin(sums), std::end(sums), uint64_t{0});
}

// Time of one call of peak(rounds), measured with enough rounds for the clock.
double round_seconds(PeakFn peak) {
    for (size_t rounds = 1000;; rounds *= 4) {
        const auto start = Clock::now();
        peak(rounds);
        const double took = seconds_since(start);
        if (took > 1e-4) return took / static_cast<double>(rounds);
    }
}

// A task of reading: long enough to be one stream.
constexpr size_t kChunk = size_t{2} << 20;

// Pieces of a thread's work: one that comes late, as from sleep, leaves its pieces to the others.
constexpr size_t kPieces = 16;

}  // namespace

ReadProbe::ReadProbe(Pool& pool, size_t bytes) : pool_(pool) {
    Pool::Lease lease(pool_);
    const std::vector<size_t> begins = lease.split(std::max<size_t>(1, bytes / kChunk));
    for (size_t g = 0; g + 1 < begins.size(); ++g) {
        const size_t size = (begins[g + 1] - begins[g]) * kChunk;
        parts_.push_back(lease.weights(size, g, begins.size() - 1));
        std::memset(parts_.back().data(), 1, size);
    }
}

double ReadProbe::rate() const {
    Pool::Lease lease(pool_);
    std::vector<size_t> begins{0};
    for (const Arena::Piece& part : parts_) begins.push_back(begins.back() + part.bytes() / kChunk);
    std::atomic<uint64_t> total{0};  // keeps the reads
    const auto sum = looks_ahead_within_pages() ? sum_words<true> : sum_words<false>;
    Phase reading;
    reading.set(begins);
    const auto start = Clock::now();
    lease.parallel([&](const Worker& worker) {
        reading.run(worker, [&](size_t chunk, size_t part) {
            const uint8_t* const from = parts_[part].data() + (chunk - begins[part]) * kChunk;
            total += sum(reinterpret_cast<const uint64_t*>(from), kChunk / 8);
        });
    });
    const double took = seconds_since(start);
    return total.load() == 0 ? 0.0 : static_cast<double>(begins.back() * kChunk) / took;
}

double peak_rate(Pool& pool, PeakFn peak, double seconds) {
    Pool::Lease lease(pool);
    const double pieces = seconds / static_cast<double>(kPieces);
    const size_t rounds = std::max<size_t>(1, static_cast<size_t>(pieces / round_seconds(peak)));
    std::atomic<double> operations{0};
    const auto start = Clock::now();
    Phase working(kPieces * static_cast<size_t>(lease.threads()));
    lease.parallel([&](const Worker& worker) {
        working.run(worker, [&](size_t, size_t) { operations += peak(rounds); });
    });
    return operations.load() / seconds_since(start);
}

}  // namespace kt
