// Rates of the kernels alone, without layers or Python: `kt_bench_kernels cache|memory THREADS FORMAT ...`.
//
// cache: panels that each thread's second cache holds, the best of many short runs, which other programs on
// the machine hardly change. memory: 256 MiB of panels between two plain reads, median and spread of five;
// run it with a real-time priority (chrt -f 10) where others compute. INT4:G is INT4 with groups of G. GB/s
// of panels for one row, then GFLOP/s. In the environment: COLUMNS_OF_WEIGHT (2048); MOST_ROWS (64).

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "kt/ceilings.h"
#include "kt/matrix.h"

namespace {

using namespace kt;

constexpr size_t kPanels = 16, kMostRows = 64, kTaskPanels = 8, kMemory = size_t{256} << 20,
                 kCache = size_t{256} << 10;
constexpr std::array<size_t, 7> kRows{1, 2, 3, 4, 8, 16, 64};

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Bits of all kinds; scales are ordinary numbers, so that no sum is NaN or subnormal.
class Weight {
  public:
    Weight(const Kernels& kernels, const std::string& name, size_t cols) {
        const size_t colon = name.find(':'), rows = kPanels * kPanelRows;
        const FormatInfo& info = *kernels.formats[kernels.format(name.substr(0, colon))].info;
        Description d{.format = info.name, .rows = rows, .cols = cols, .data = {}};
        const size_t row = cols / info.block * info.block_bytes;
        d.data = array(data_, rows, row, 64, 111);
        if (info.scale_kinds) {
            const bool mx = info.scale_kinds == 1u << static_cast<int>(Scale::kE8m0);
            const bool nv = info.scale_kinds == 1u << static_cast<int>(Scale::kE4m3);
            d.scale = mx ? "E8M0" : nv ? "E4M3" : "F32";
            if (!info.group) d.group = colon < name.size() ? std::stoul(name.substr(colon + 1)) : 128;
            const size_t group = info.group == kWholeRow ? cols : info.group ? info.group : d.group;
            const size_t count = divide_up(cols, group), size = mx || nv ? 1 : sizeof(float);
            // E8M0 near 1; the others' bytes are E4M3 of 1/8 to 1, or of a float32 of about 3e-2
            d.scales = array(scales_, divide_up(rows, info.scale_rows), count * size,
                             mx   ? 118
                             : nv ? 40
                                  : 60,
                             mx ? 122 : 60);
        }
        stored = stored_matrix(kernels, d);
    }

    StoredMatrix stored;

  private:
    static StoredArray array(std::vector<uint8_t>& bytes, size_t rows, size_t row, int low, int high) {
        std::mt19937 random(7);
        bytes.resize(rows * row);
        for (uint8_t& byte : bytes)
            byte = static_cast<uint8_t>(std::uniform_int_distribution<int>(low, high)(random));
        return {bytes.data(), rows, row, row};
    }

    std::vector<uint8_t> data_, scales_;
};

// Panels, as many as `bytes` hold, and prepared rows that meet them.
class Product {
  public:
    Product(Pool& pool, const Kernels& kernels, const Weight& weight, size_t bytes)
        : pool_(pool),
          threads_(static_cast<size_t>(pool.settings().threads)),
          asks_(kernels.asks),
          entry_(kernels.formats[weight.stored.format]),
          cols_(weight.stored.cols),
          panel_bytes(panel_shape(kernels, weight.stored, 0, kPanels).panel_bytes),
          panels(std::max<size_t>(bytes / panel_bytes / kTaskPanels, 1) * kTaskPanels),
          memory_((panels + 1) * panel_bytes),
          prepared_(kMostRows * prepared_bytes(entry_.info->policy, cols_)),
          out_(threads_ * kOut) {
        for (size_t p = 0; p < panels; ++p) entry_.pack(weight.stored, p % kPanels * kPanelRows, at(p));
        std::mt19937 random(1);
        std::normal_distribution<float> normal;
        std::vector<float> x(cols_);
        for (size_t r = 0; r < kMostRows; ++r) {
            for (float& value : x) value = normal(random);
            uint8_t* const row = prepared_.data() + r * (prepared_.bytes() / kMostRows);
            kernels.prepare[static_cast<size_t>(entry_.info->policy)](x.data(), 0, cols_, row);
            rows_.push_back(row);
        }
    }

    // Each thread passes its own share of the panels `repeats` times.
    double seconds(size_t rows, size_t repeats) {
        const size_t tasks = panels / kTaskPanels;
        std::vector<size_t> begins;
        for (size_t n = 0; n <= threads_; ++n) begins.push_back(tasks * n / threads_ * repeats);
        Phase phase;
        phase.set(begins, false, threads_);
        Pool::Lease lease(pool_);
        const double start = now();
        lease.parallel([&](const Worker& worker) {
            phase.run(worker, [&](size_t i, size_t n) {
                const size_t first = begins[n] / repeats, own = begins[n + 1] / repeats - first;
                const size_t p = (first + (i - begins[n]) % own) * kTaskPanels;
                entry_.matmul({at(p), panel_bytes, kTaskPanels, cols_, rows_.data(), rows,
                               out_.data() + static_cast<size_t>(worker.index) * kOut,
                               kTaskPanels * kPanelRows, asks_});
            });
        });
        return (now() - start) / static_cast<double>(repeats);
    }

    double bytes() const { return static_cast<double>(panels * panel_bytes); }
    double operations(size_t rows) const {
        return 2.0 * static_cast<double>(panels * kPanelRows * cols_ * rows);
    }

  private:
    uint8_t* at(size_t panel) { return memory_.data() + panel * panel_bytes; }

    static constexpr size_t kOut = kMostRows * kTaskPanels * kPanelRows;

    Pool& pool_;
    size_t threads_;
    bool asks_;
    const FormatEntry& entry_;
    size_t cols_;

  public:
    size_t panel_bytes, panels;

  private:
    Buffer memory_, prepared_;
    std::vector<float> out_;
    std::vector<const uint8_t*> rows_;
};

void from_cache(Product& product, size_t most) {
    for (const size_t rows : kRows) {
        if (rows > most) break;
        double best = 1e9;
        for (int i = 0; i < 150; ++i) best = std::min(best, product.seconds(rows, rows < 4 ? 4 : 1));
        if (rows == 1) std::printf(" %5.1f GB/s", product.bytes() / best / 1e9);
        std::printf(" | %zu: %3.0f", rows, product.operations(rows) / best / 1e9);
    }
}

void from_memory(Product& product, const ReadProbe& probe, size_t most) {
    for (const size_t rows : kRows) {
        if (rows > most) break;
        std::array<double, 5> rates, shares;
        for (size_t i = 0; i < rates.size(); ++i) {
            const double before = probe.rate();
            rates[i] = product.bytes() / product.seconds(rows, 1);
            shares[i] = rates[i] / std::max(before, probe.rate());
        }
        std::ranges::sort(rates);
        std::ranges::sort(shares);
        std::printf(" | %zu: %4.1f GB/s %3.0f%% (%.0f..%.0f) %3.0f", rows, rates[2] / 1e9, 100 * shares[2],
                    100 * shares[0], 100 * shares[4],
                    rates[2] / product.bytes() * product.operations(rows) / 1e9);
    }
}

}  // namespace

namespace {

size_t number(const char* text, size_t otherwise) {
    return text ? std::stoul(text) : otherwise;
}

}  // namespace

int main(int count, char** arguments) {
    if (count < 4) return std::puts("usage: kt_bench_kernels cache|memory THREADS FORMAT ..."), 2;
    const bool memory = std::string(arguments[1]) == "memory";
    const size_t threads = number(arguments[2], 1), columns = number(std::getenv("COLUMNS_OF_WEIGHT"), 2048),
                 most = number(std::getenv("MOST_ROWS"), kMostRows);
    const Kernels& all = kernels();
    std::vector<int> cpus;
    for (size_t i = 0; i < threads; ++i) cpus.push_back(static_cast<int>(i));
    Pool pool({{static_cast<int>(threads), cpus}});
    const ReadProbe probe(pool, memory ? kMemory : 1);
    for (int i = 3; i < count; ++i) {
        const Weight weight(all, arguments[i], columns);
        Product product(pool, all, weight, memory ? kMemory : kCache * threads);
        std::printf(
            "%-13s %5.2f bits", arguments[i],
            8.0 * static_cast<double>(product.panel_bytes) / 16 / static_cast<double>(weight.stored.cols));
        memory ? from_memory(product, probe, most) : from_cache(product, most);
        std::printf(" GFLOP/s\n");
        std::fflush(stdout);
    }
}
