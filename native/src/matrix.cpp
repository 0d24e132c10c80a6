#include "kt/matrix.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace kt {
namespace {

size_t stored_row_bytes(const FormatInfo& info, size_t cols) {
    return cols / info.block * info.block_bytes;
}

uint16_t to_bf16(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace

StoredMatrix stored_matrix(const Kernels& kernels, std::string_view format, size_t rows, size_t cols,
                           const uint8_t* data, size_t stride) {
    const size_t index = kernels.format(format);
    const FormatInfo& info = *kernels.formats[index].info;
    if (rows == 0 || cols == 0) throw std::invalid_argument("a weight needs at least one row and one column");
    if (cols % info.block != 0) {
        throw std::invalid_argument(std::string(format) + " needs a multiple of " +
                                    std::to_string(info.block) + " columns, got " + std::to_string(cols));
    }
    if (stride < stored_row_bytes(info, cols)) {
        throw std::invalid_argument(std::string(format) + " rows of " + std::to_string(cols) +
                                    " columns take " + std::to_string(stored_row_bytes(info, cols)) +
                                    " bytes, got " + std::to_string(stride));
    }
    return {index, rows, cols, data, stride};
}

PanelMatrix panel_shape(const Kernels& kernels, const StoredMatrix& stored, size_t begin, size_t end) {
    const FormatInfo& info = *kernels.formats[stored.format].info;
    const size_t rows = std::min(stored.rows, end * kPanelRows) - std::min(stored.rows, begin * kPanelRows);
    return {stored.format, rows, stored.cols, divide_up(stored.cols, info.step) * info.step_bytes, nullptr};
}

namespace {

void pack_panel(const Kernels& kernels, const Packing& job, size_t panel) {
    const StoredMatrix& stored = *job.from;
    const FormatEntry& format = kernels.formats[stored.format];
    const size_t first = (job.first + panel) * kPanelRows;
    std::vector<uint8_t> zeros;  // rows after the last
    if (first + kPanelRows > stored.rows) zeros.resize(stored_row_bytes(*format.info, stored.cols));
    const uint8_t* rows[kPanelRows];
    for (size_t r = 0; r < kPanelRows; ++r) {
        rows[r] = first + r < stored.rows ? stored.data + (first + r) * stored.stride : zeros.data();
    }
    const size_t panel_bytes = divide_up(stored.cols, format.info->step) * format.info->step_bytes;
    format.pack(rows, stored.cols, job.to + panel * panel_bytes);
}

}  // namespace

void pack(Pool::Lease& lease, const Kernels& kernels, std::span<const Packing> jobs,
          std::span<const size_t> begins) {
    std::vector<size_t> starts{0};  // each job's first task, and the end
    for (const Packing& job : jobs) starts.push_back(starts.back() + job.count);
    std::vector<size_t> tasks;
    for (const size_t begin : begins) tasks.push_back(starts[begin]);
    Phase packing;
    packing.set(tasks, lease.can_stay(begins.size() - 1));
    lease.parallel([&](const Worker& worker) {
        packing.run(worker, [&](size_t task, size_t) {
            const size_t job = std::ranges::upper_bound(starts, task) - starts.begin() - 1;
            pack_panel(kernels, jobs[job], task - starts[job]);
        });
    });
}

size_t prepared_bytes(Policy policy, size_t k) {
    size_t bytes = 0;
    switch (policy) {
        case Policy::kF32:
            bytes = k * sizeof(float);
            break;
        case Policy::kBf16:
            bytes = divide_up(k, 2) * 4;
            break;
        case Policy::kInt8:
            bytes = divide_up(k, kGroup) * sizeof(Group32);
            break;
    }
    return divide_up(bytes, 64) * 64;
}

const float* row_f32(const void* x, Dtype dtype, size_t index, size_t k, float* scratch) {
    if (dtype == Dtype::kF32) return static_cast<const float*>(x) + index * k;
    const uint16_t* row = static_cast<const uint16_t*>(x) + index * k;
    for (size_t i = 0; i < k; ++i) scratch[i] = std::bit_cast<float>(static_cast<uint32_t>(row[i]) << 16);
    return scratch;
}

void write_row(const float* values, size_t n, Dtype dtype, void* y, size_t offset) {
    if (dtype == Dtype::kF32) {
        std::memcpy(static_cast<float*>(y) + offset, values, n * sizeof(float));
        return;
    }
    uint16_t* out = static_cast<uint16_t*>(y) + offset;
    for (size_t i = 0; i < n; ++i) out[i] = to_bf16(values[i]);
}

size_t panels_per_task(size_t total_panels, size_t panel_bytes, int threads) {
    constexpr size_t kTaskBytes = size_t{256} << 10;
    const size_t panels =
        std::min(kTaskBytes / panel_bytes, total_panels / (4 * static_cast<size_t>(threads)));
    return std::clamp<size_t>(panels / 2 * 2, 2, kPanelsPerTask);
}

}  // namespace kt
