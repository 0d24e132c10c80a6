#include "kt/linear.h"

#include <algorithm>

namespace kt {
namespace {

enum Slot : size_t { kPrepared, kRowPointers, kWide, kTile };

constexpr size_t kTileFloats = kRowsPerTask * kPanelsPerTask * kPanelRows;

}  // namespace

Linear::Linear(Pool& pool, const Kernels& kernels, const StoredMatrix& stored, const float* bias)
    : pool_(pool),
      kernels_(kernels),
      weight_(panel_shape(kernels, stored)),
      bias_(bias ? std::vector<float>(bias, bias + stored.rows) : std::vector<float>()) {
    Pool::Lease lease(pool_);
    memory_ = lease.weights(weight_.bytes());
    pack(lease, kernels_, stored, memory_.data());
    weight_.panels = memory_.data();
}

void Linear::forward(const void* x, Dtype dtype, size_t tokens, void* y) const {
    Pool::Lease lease(pool_);
    for (size_t first = 0; first < tokens; first += kRowsPerChunk) {
        forward_chunk(lease, x, dtype, first, std::min(kRowsPerChunk, tokens - first), y);
    }
}

void Linear::forward_chunk(Pool::Lease& lease, const void* x, Dtype dtype, size_t first, size_t count,
                           void* y) const {
    const FormatEntry& format = kernels_.formats[weight_.format];
    const PrepareFn prepare = kernels_.prepare[static_cast<size_t>(format.info->policy)];
    const size_t threads = static_cast<size_t>(lease.threads());
    const size_t row_bytes = prepared_bytes(format.info->policy, weight_.cols);
    uint8_t* const prepared = lease.scratch<uint8_t>(kPrepared, count * row_bytes);
    const uint8_t** const rows = lease.scratch<const uint8_t*>(kRowPointers, count);
    float* const wide = lease.scratch<float>(kWide, threads * weight_.cols);
    float* const tiles = lease.scratch<float>(kTile, threads * kTileFloats);

    const size_t panels = weight_.panel_count();
    const size_t block = panels_per_task(panels, weight_.panel_bytes, lease.threads());
    const size_t row_tasks = divide_up(count, kRowsPerTask);
    const size_t tasks = row_tasks * divide_up(panels, block);
    Phase preparing(count), multiplying(tasks);

    const auto prepare_row = [&](const Worker& worker, size_t m) {
        float* const scratch = wide + worker.index * weight_.cols;
        rows[m] = prepared + m * row_bytes;
        prepare(row_f32(x, dtype, first + m, weight_.cols, scratch), 0, weight_.cols,
                prepared + m * row_bytes);
    };
    const auto multiply = [&](const Worker& worker, size_t task) {
        float* const tile = tiles + worker.index * kTileFloats;
        const size_t m = task % row_tasks * kRowsPerTask, p = task / row_tasks * block;
        const size_t height = std::min(kRowsPerTask, count - m), width = std::min(block, panels - p);
        const size_t stride = width * kPanelRows, column = p * kPanelRows;
        format.matmul({weight_.panels + p * weight_.panel_bytes, weight_.panel_bytes, width, weight_.cols,
                       rows + m, height, tile, stride});
        const size_t columns = std::min(stride, weight_.rows - column);
        for (size_t i = 0; i < height; ++i) {
            float* const out = tile + i * stride;
            for (size_t j = 0; j < columns && !bias_.empty(); ++j) out[j] += bias_[column + j];
            write_row(out, columns, dtype, y, (first + m + i) * weight_.rows + column);
        }
    };
    lease.parallel(
        [&](const Worker& worker) {
            preparing.run(worker, [&](size_t m) { prepare_row(worker, m); });
            multiplying.run(worker, [&](size_t task) { multiply(worker, task); });
        },
        weight_.bytes() * count);
}

}  // namespace kt
